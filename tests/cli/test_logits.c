/* baton-logits against ranks that compute formulas (fake_worker.c): every row goes to its place,
 * and every way in which ranks or inputs can fail ends with a clear error and nothing left. */
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "model/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/test.h"

enum { VOCAB = 2048, N_MOE = 3, TOP_K = 4, N_EXPERTS = 16, MAX_IN = 64 };

static const char *g_bin;
static char        g_dir[] = "/tmp/test-logits-XXXXXX";
static char        g_in[64], g_out[64];
static bt_command  g_command;

/* ---- input */

typedef struct {
    size_t    n;
    char      names[MAX_IN][40];
    bt_tensor tensors[MAX_IN];
    int32_t   ids[8][512], prompt[8], experts[N_MOE * 512 * TOP_K];
} input;
static input g_input;

static void add(const char *name, const char *part, uint32_t n_dims, uint64_t a, uint64_t b,
                uint64_t c, const void *data)
{
    bt_tensor *t = &g_input.tensors[g_input.n];

    snprintf(g_input.names[g_input.n], 40, "%s.%s", name, part);
    *t = (bt_tensor){
        .name   = g_input.names[g_input.n],
        .dtype  = BT_ST_I32,
        .n_dims = n_dims,
        .shape  = {a, b, c},
        .data   = data,
        .bytes  = 4 * (size_t)(a * (n_dims > 1 ? b * c : 1))
    };
    g_input.n++;
}

/* Case i: n tokens, of which n_prompt are the prompt. */
static void add_case(int i, int n, int n_prompt)
{
    char name[16];

    snprintf(name, sizeof(name), "case%d", i);
    for (int t = 0; t < n; t++)
        g_input.ids[i][t] = (37 * t + 11 * i) % VOCAB;
    g_input.prompt[i] = n_prompt;
    add(name, "ids", 1, (uint64_t)n, 1, 1, g_input.ids[i]);
    add(name, "prompt", 1, 1, 1, 1, &g_input.prompt[i]);
}

static void force_case(int i, int n)
{
    char name[16];

    snprintf(name, sizeof(name), "case%d", i);
    for (int k = 0; k < N_MOE * n; k++) { /* four different ones each, ascending */
        for (int j = 0; j < TOP_K; j++)
            g_input.experts[k * TOP_K + j] = k % 5 + 3 * j;
    }
    add(name, "experts", 3, N_MOE, (uint64_t)n, TOP_K, g_input.experts);
}

static void write_input(void)
{
    EXPECT_EQ(bt_safetensors_write(g_in, g_input.n, g_input.tensors), BT_OK);
    unlink(g_out);
}

static int logits(const char *fake, const char *const *more)
{
    char              program[256], model[256], setting[64];
    const char       *argv[32] = {program, "--model", model, "--ids", g_in, "--out", g_out};
    const char *const env[]    = {setting, NULL};

    snprintf(program, sizeof(program), "%s/baton-logits", g_bin);
    snprintf(model, sizeof(model), "%s/models/demo", BT_SOURCE_DIR);
    snprintf(setting, sizeof(setting), "FAKE=%s", fake);
    for (int i = 0; more != NULL && more[i] != NULL; i++)
        argv[7 + i] = more[i];
    return bt_command_run(&g_command, argv, env, 100); /* a stall would be found after 120 s */
}

/* ---- output */

static void expect_rows(const bt_safetensors *st, int i, int n, bool forced)
{
    char             name[40];
    const bt_tensor *l, *e;
    float            x;
    int32_t          id;
    int              wrong = 0;

    snprintf(name, sizeof(name), "case%d.logits", i);
    l = bt_safetensors_find(st, name);
    snprintf(name, sizeof(name), "case%d.experts", i);
    e = bt_safetensors_find(st, name);
    EXPECT(l != NULL && e != NULL);
    if (l == NULL || e == NULL) return;
    EXPECT(l->dtype == BT_ST_F32 && l->n_dims == 2 && l->shape[0] == (uint64_t)n &&
           l->shape[1] == VOCAB);
    EXPECT(e->dtype == BT_ST_I32 && e->n_dims == 3 && e->shape[0] == N_MOE &&
           e->shape[1] == (uint64_t)n && e->shape[2] == TOP_K);
    for (int t = 0; t < n; t++) {
        for (int v = 0; v < VOCAB; v += 97) {
            memcpy(&x, (const char *)l->data + ((size_t)t * VOCAB + (size_t)v) * 4, 4);
            wrong += x != (float)g_input.ids[i][t] * 100.0f + (float)v;
        }
        for (int k = 0; k < N_MOE * TOP_K; k++) {
            int     layer = k / TOP_K, j = k % TOP_K;
            int32_t last;

            memcpy(&id,
                   (const char *)e->data +
                       (((size_t)layer * (size_t)n + (size_t)t) * TOP_K + (size_t)j) * 4,
                   4);
            if (forced) {
                wrong += id != (layer * n + t) % 5 + 3 * j;
            } else {
                wrong += (id - t - 7 * layer) % 1 != 0 || id < 0 || id >= N_EXPERTS;
            }
            if (j == 0) continue;
            memcpy(&last,
                   (const char *)e->data +
                       (((size_t)layer * (size_t)n + (size_t)t) * TOP_K + (size_t)j - 1) * 4,
                   4);
            wrong += last >= id; /* ascending */
        }
    }
    EXPECT_EQ(wrong, 0);
}

static void logits_rows_of_every_case_come_back(void)
{
    const char *const routes[][6] = {
        {"--prefill",   "1", "--decode", "1", NULL   },
        {"--prefill",   "2", "--decode", "3", NULL   },
        {"--both",      "2", NULL      },
        {"--both", "1", "--parallel",       "1",    NULL   },
        {"--both", "1", "--max-rows",       "7", NULL}, /* a prompt is cut then */
    };
    bt_safetensors *st = NULL;

    g_input.n = 0;
    add_case(0, 40, 12);
    add_case(1, 1, 1);
    add_case(2, 200, 200); /* nothing after the prompt */
    add_case(3, 65, 1);
    force_case(3, 65);
    write_input();
    for (size_t r = 0; r < sizeof(routes) / sizeof(routes[0]); r++) {
        unlink(g_out);
        EXPECT_EQ(logits("", routes[r]), 0);
        EXPECT_EQ(bt_safetensors_open(g_out, &st), BT_OK);
        if (st == NULL) continue;
        EXPECT_EQ(bt_safetensors_count(st), 8);
        expect_rows(st, 0, 40, false);
        expect_rows(st, 1, 1, false);
        expect_rows(st, 2, 200, false);
        expect_rows(st, 3, 65, true);
        bt_safetensors_close(st);
        st = NULL;
    }
}

static void logits_refused_ticket_is_asked_again(void)
{
    const char *const one[] = {"--parallel", "2", NULL};

    g_input.n = 0;
    add_case(0, 40, 12);
    add_case(1, 30, 10);
    write_input();
    /* The first ticket is refused while the second one is under way. */
    EXPECT_EQ(logits("refuse_once:1", one), 0);
}

static void logits_failures_of_ranks_are_named(void)
{
    static const struct {
        const char *fake, *says, *also;
    } CASES[] = {
        {"error_at_start:1",   "the fake rank cannot start",      "rank 1"                 },
        {"die_at_start:0",     "signal 9",                        "rank 0"                 },
        {"die_loading:1",      "rank 1",                          "signal 9"               },
        {"die_in_prefill:0",   "rank 0",                          "signal 9"               },
        {"absent:1",           "no progress for 4 s",             "rank 1 has not attached"},
        {"never_ready:0",      "no progress for 4 s",             "rank 0 is loading"      },
        {"other_arithmetic:1", "\"another\"",                     "rank 1 on here"         },
        {"other_model:1",      "has another model (fingerprint ", "rank 1 on here"         },
        {"leave:1",            "the fake rank had enough",        "rank 1"                 },
        {"fail:0",             "the fake rank cannot",            "case case0"             },
        {"refuse_always:1",    "--kv-bytes",                      "rank 1"                 },
        {"rows_twice:0",       "came twice",                      "case0"                  },
        {"nan:1",              "of token 5 in row 12 is nan",     "case0"                  },
        {"short_rows:0",       "bytes of logits",                 "case0"                  },
        {"silent:0",           "no progress for 20 s",            "28 of 40"               },
    };
    const char *const stall[] = {"--stall-s", "4", NULL};

    g_input.n = 0;
    add_case(0, 40, 12);
    write_input();
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bool stalls = strncmp(CASES[i].says, "no progress", 11) == 0;
        int  before = g_failures;

        EXPECT_EQ(logits(CASES[i].fake, stalls ? stall : NULL), 1);
        EXPECT_HAS(g_command.output, CASES[i].says);
        EXPECT_HAS(g_command.output, CASES[i].also);
        EXPECT(access(g_out, F_OK) != 0);
        if (g_failures != before) {
            fprintf(stderr, "%s: it wrote:\n%s\n", CASES[i].fake, g_command.output);
        }
    }
}

static void logits_bad_inputs_are_refused(void)
{
    /* Wrong in turn: an id past the vocabulary, a prompt longer than the case, of 0 tokens, experts
     * of another length, no prompt, a name that is no part of a case.  Of all of them IN is named,
     * and no rank hears. */
    for (int i = 0; i < 6; i++) {
        static const char *const SAYS[] = {
            ": case0.ids[20] is 2048, the model's vocabulary has 2048 ids\n",
            ": case0.prompt is 41",
            ": case0.prompt is 0",
            ": case0.experts: expected i32 [MoE layers, 40, 4], found i32 [3, 39, 4]",
            ": case0.prompt: expected i32 [1], the length of the prompt, found no such tensor",
            ": tensor case0.logits"};
        char says[160];

        g_input.n = 0;
        add_case(0, 40, i == 1 ? 41 : i == 2 ? 0 : 12);
        if (i == 0) g_input.ids[0][20] = VOCAB;
        if (i == 3) force_case(0, 39);
        if (i == 4) g_input.n--;
        if (i == 5) add("case0", "logits", 1, 1, 1, 1, g_input.ids[0]);
        write_input();
        snprintf(says, sizeof(says), "%s%s", g_in, SAYS[i]);
        EXPECT_EQ(logits("", NULL), 1);
        EXPECT_HAS(g_command.output, says);
        EXPECT(strstr(g_command.output, " rank=") == NULL);
        EXPECT(access(g_out, F_OK) != 0);
    }
}

static void logits_bad_command_lines_are_refused(void)
{
    const char *const form[]  = {"--form", "sideways", NULL};
    const char *const both[]  = {"--both", "1", "--decode", "1", NULL};
    const char *const chunk[] = {"--chunk", "0", NULL};
    const char *const bytes[] = {"--kv-bytes", "2X", NULL};
    const char        MAP[]   = "both localhost\nspare localhost\n";
    int               map     = memfd_create("map", 0);
    char              path[64];
    const char *const spare[] = {"--rank-map", path, NULL};

    EXPECT(write(map, MAP, sizeof(MAP) - 1) > 0);
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), map);
    EXPECT_EQ(logits("", spare), 64);
    EXPECT_HAS(g_command.output, "--rank-map has a spare");
    close(map);
    EXPECT_EQ(logits("", form), 64);
    EXPECT_HAS(g_command.output, "sideways");
    EXPECT_EQ(logits("", both), 64);
    EXPECT_HAS(g_command.output, "--both");
    EXPECT_EQ(logits("", chunk), 64);
    EXPECT_HAS(g_command.output, "--chunk");
    EXPECT_EQ(logits("", bytes), 64);
    EXPECT_HAS(g_command.output, "2X");
}

/* At once: a rank that was started would hang. */
static void logits_out_that_cannot_be_is_refused_at_once(void)
{
    const char *const nowhere[]   = {"--out", "/nowhere/at/all/out", NULL};
    const char *const directory[] = {"--out", g_dir, NULL};

    g_input.n = 0;
    add_case(0, 40, 12);
    write_input();
    EXPECT_EQ(logits("never_ready:0", nowhere), 1);
    EXPECT_HAS(g_command.output, "directory /nowhere/at/all/: No such file");
    EXPECT_EQ(logits("never_ready:0", directory), 1);
    EXPECT_HAS(g_command.output, "found a directory");
}

/* Of a multimodal model's language model, or by Sarvam's name. */
static void expect_experts_found(const char *config)
{
    char              model[64], path[80], says[160];
    const char *const args[] = {"--model", model, "--both", "1", NULL};
    FILE             *f;
    bt_safetensors   *st = NULL;

    snprintf(model, sizeof(model), "%s/model", g_dir);
    snprintf(path, sizeof(path), "%s/config.json", model);
    EXPECT_EQ(mkdir(model, 0700), 0);
    f = fopen(path, "w");
    EXPECT(f != NULL);
    if (f == NULL) return;
    fputs(config, f);
    fclose(f);
    g_input.n = 0;
    add_case(0, 40, 12);
    write_input();
    unlink(g_out);
    EXPECT_EQ(logits("", args), 0);
    EXPECT_EQ(bt_safetensors_open(g_out, &st), BT_OK);
    if (st != NULL) expect_rows(st, 0, 40, false);
    bt_safetensors_close(st);
    g_input.ids[0][20] = VOCAB; /* of which this config says nothing: the ranks do */
    write_input();
    snprintf(says, sizeof(says), "%s: case0.ids[20] is 2048, the model's vocabulary", g_in);
    EXPECT_EQ(logits("", args), 1);
    EXPECT_HAS(g_command.output, says);
    unlink(path);
    EXPECT(rmdir(model) == 0);
}

static void logits_of_a_multimodal_model(void)
{
    expect_experts_found(
        "{\"text_config\": {\"n_routed_experts\": 16, \"num_experts_per_tok\": 4}}");
}

static void logits_of_a_model_with_sarvams_names(void)
{
    expect_experts_found("{\"num_experts\": 16, \"num_experts_per_tok\": 4}");
}

static void logits_config_that_is_a_pipe_is_refused(void)
{
    char              model[64], path[80];
    const char *const args[] = {"--model", model, NULL};

    snprintf(model, sizeof(model), "%s/model", g_dir);
    snprintf(path, sizeof(path), "%s/config.json", model);
    EXPECT(mkdir(model, 0700) == 0 && mkfifo(path, 0600) == 0);
    EXPECT_EQ(logits("", args), 1);
    EXPECT_HAS(g_command.output, "config.json: expected a regular file, found a pipe");
    unlink(path);
    EXPECT(rmdir(model) == 0);
}

static void logits_sigterm_ends_it(void)
{
    char              program[256], model[256];
    const char       *argv[] = {program, "--model", model, "--ids", g_in, "--out", g_out, NULL};
    const char *const env[]  = {"FAKE=never_ready:0", NULL};

    g_input.n = 0;
    add_case(0, 40, 12);
    write_input();
    snprintf(program, sizeof(program), "%s/baton-logits", g_bin);
    snprintf(model, sizeof(model), "%s/models/demo", BT_SOURCE_DIR);
    bt_command_start(&g_command, argv, env);
    EXPECT(bt_command_has_child(&g_command, 60)); /* from then on it hears signals */
    kill(g_command.pid, SIGTERM);
    EXPECT_EQ(bt_command_finish(&g_command, 60), 1);
    EXPECT_HAS(g_command.output, "signal 15");
    EXPECT(access(g_out, F_OK) != 0);
}

static const bt_test TESTS[] = {
    BT_TEST(logits_rows_of_every_case_come_back),
    BT_TEST(logits_refused_ticket_is_asked_again),
    BT_TEST(logits_failures_of_ranks_are_named),
    BT_TEST(logits_bad_inputs_are_refused),
    BT_TEST(logits_bad_command_lines_are_refused),
    BT_TEST(logits_sigterm_ends_it),
    BT_TEST(logits_out_that_cannot_be_is_refused_at_once),
    BT_TEST(logits_of_a_multimodal_model),
    BT_TEST(logits_of_a_model_with_sarvams_names),
    BT_TEST(logits_config_that_is_a_pipe_is_refused),
};

/* usage: test_logits BIN_DIR [test] */
int main(int argc, char **argv)
{
    int code;

    if (argc < 2 || mkdtemp(g_dir) == NULL) return EXIT_FAILURE;
    g_bin = argv[1];
    snprintf(g_in, sizeof(g_in), "%s/in", g_dir);
    snprintf(g_out, sizeof(g_out), "%s/out", g_dir);
    code = BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
    unlink(g_in);
    unlink(g_out);
    EXPECT(rmdir(g_dir) == 0); /* nothing else was left there */
    return g_failures == 0 ? code : EXIT_FAILURE;
}
