/* baton-synth as a user runs it.  What it writes is held against the micro models, which Hugging
 * Face loads (tests/oracles): the same names, shapes, dtypes and configuration fields. */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "model/reference.h"
#include "model/weights.h"
#include "tests/support/command.h"
#include "tests/support/test.h"

enum { MAX_ARGS = 64, RUN_S = 60 };
#define MICRO BT_SOURCE_DIR "/tests/models/"

static char       g_dir[256];
static bt_command g_command;

static const char *path_of(const char *name)
{
    static char paths[4][1024];
    static int  turn;

    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof(paths[turn]), "%s/%s", g_dir, name);
    return paths[turn];
}

static void clear(void)
{
    char command[1024];

    snprintf(command, sizeof(command), "rm -rf '%s' && mkdir '%s'", g_dir, g_dir);
    if (system(command) != 0) abort();
}

/* Runs the program with the words of `line`; returns its exit code. */
static int synth(const char *line)
{
    static char text[2048];
    const char *argv[MAX_ARGS] = {BT_SYNTH};
    char       *rest           = text;
    int         n              = 1;

    snprintf(text, sizeof(text), "%s", line);
    while (n < MAX_ARGS - 1 && (argv[n] = strtok_r(rest, " ", &rest)) != NULL)
        n++;
    return bt_command_run(&g_command, argv, NULL, RUN_S);
}

/* A small model of the kind, named `out` in the test's directory. */
static int synth_small(const char *like, const char *out, const char *more)
{
    char line[1024];

    snprintf(line, sizeof(line),
             "--like %s --hidden 64 --layers 3 --heads 2 --kv-lora-rank 32 --qk-nope-dim 16 "
             "--qk-rope-dim 16 --v-dim 16 --dense-dim 96 --expert-dim 32 --experts 16 --vocab 512 "
             "%s %s",
             like, more, path_of(out));
    return synth(line);
}

static long number(const json_t *config, const char *field)
{
    return (long)json_integer_value(json_object_get(config, field)); /* 0 for null */
}

/* The command that asks for the sizes of a micro model. */
static int synth_as(const char *like, const char *micro, const char *out, const char *more)
{
    static const char *const FIELDS[][2] = {
        {"layers",         "num_hidden_layers"       },
        {"dense-layers",   "first_k_dense_replace"   },
        {"hidden",         "hidden_size"             },
        {"heads",          "num_attention_heads"     },
        {"q-lora-rank",    "q_lora_rank"             },
        {"kv-lora-rank",   "kv_lora_rank"            },
        {"qk-nope-dim",    "qk_nope_head_dim"        },
        {"qk-rope-dim",    "qk_rope_head_dim"        },
        {"v-dim",          "v_head_dim"              },
        {"dense-dim",      "intermediate_size"       },
        {"expert-dim",     "moe_intermediate_size"   },
        {"experts",        "n_routed_experts"        },
        {"shared-experts", "n_shared_experts"        },
        {"top-k",          "num_experts_per_tok"     },
        {"groups",         "n_group"                 },
        {"topk-groups",    "topk_group"              },
        {"vocab",          "vocab_size"              },
        {"context",        "max_position_embeddings" },
        {"index-topk",     "index_topk"              },
        {"index-heads",    "index_n_heads"           },
        {"index-dim",      "index_head_dim"          },
        {"mtp",            "num_nextn_predict_layers"}
    };
    char    line[2048];
    size_t  n      = (size_t)snprintf(line, sizeof(line), "--like %s", like);
    json_t *config = json_load_file(micro, 0, NULL);

    if (config == NULL) abort();
    for (size_t i = 0; i < sizeof(FIELDS) / sizeof(FIELDS[0]); i++)
        if (json_object_get(config, FIELDS[i][1]) != NULL)
            n += (size_t)snprintf(line + n, sizeof(line) - n, " --%s %ld", FIELDS[i][0],
                                  number(config, FIELDS[i][1]));
    snprintf(line + n, sizeof(line) - n, " %s %s", more, path_of(out));
    json_decref(config);
    return synth(line);
}

static void expect_same_tensors(const char *name, const bt_safetensors *got,
                                const bt_safetensors *want)
{
    EXPECT_EQ(bt_safetensors_count(got), bt_safetensors_count(want));
    for (size_t i = 0; i < bt_safetensors_count(want); i++) {
        const bt_tensor *w = bt_safetensors_at(want, i), *g = bt_safetensors_find(got, w->name);

        if (g == NULL || g->dtype != w->dtype || g->n_dims != w->n_dims ||
            memcmp(g->shape, w->shape, w->n_dims * sizeof(w->shape[0])) != 0) {
            fprintf(stderr, "%s: %s is missing or differs\n", name, w->name);
            g_failures++;
        }
    }
}

/* Every field of the micro model, but those that hold a scale of their own. */
static void expect_same_config(const char *name, const char *got_path, const char *want_path)
{
    static const char *const OTHER[] = {"routed_scaling_factor", "rms_norm_eps",   "ep_size",
                                        "pretraining_tp",        "aux_loss_alpha", "seq_aux",
                                        "rope_scaling",          "rope_theta",     NULL};
    json_t     *got = json_load_file(got_path, 0, NULL), *want = json_load_file(want_path, 0, NULL);
    const char *field;
    json_t     *value;

    if (got == NULL || want == NULL) abort();
    json_object_foreach(want, field, value)
    {
        int i = 0;

        while (OTHER[i] != NULL && strcmp(OTHER[i], field) != 0)
            i++;
        if (OTHER[i] == NULL && !json_equal(json_object_get(got, field), value)) {
            fprintf(stderr, "%s: field %s differs\n", name, field);
            g_failures++;
        }
    }
    json_decref(got);
    json_decref(want);
}

static void synth_writes_what_hugging_face_reads(void)
{
    static const char *const NAMES[] = {"v2-lite",   "v2",     "kimi-k2", "moonlight",
                                        "glm-flash", "v3-fp8", "v3.2",    "k2-int4"};
    char                     micro[512], config[600];

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        bool            v3   = strcmp(NAMES[i], "v3-fp8") == 0;
        bool            fp8  = v3 || strcmp(NAMES[i], "v3.2") == 0;
        bool            int4 = strcmp(NAMES[i], "k2-int4") == 0;
        const char     *like = v3 ? "v3" : int4 ? "kimi-k2-thinking" : NAMES[i];
        bt_safetensors *got = NULL, *want = NULL;

        snprintf(micro, sizeof(micro), MICRO "%s", NAMES[i]);
        snprintf(config, sizeof(config), "%s/config.json", micro);
        clear();
        EXPECT_EQ(synth_as(like, config, "m", fp8 ? "--fp8" : ""), 0);
        expect_same_config(NAMES[i], path_of("m/config.json"), config);
        EXPECT_EQ(bt_safetensors_open(path_of("m"), &got), BT_OK);
        EXPECT_EQ(bt_safetensors_open(micro, &want), BT_OK);
        if (got != NULL && want != NULL) expect_same_tensors(NAMES[i], got, want);
        bt_safetensors_close(got);
        bt_safetensors_close(want);
    }
}

static void synth_lists_the_layers_of_glm(void)
{
    static const char *const WANT[] = {"dense", "dense", "sparse"};
    json_t                  *config, *list;
    bt_model_config          cfg;

    clear();
    EXPECT_EQ(synth_small("glm-flash", "m", "--dense-layers 2"), 0);
    config = json_load_file(path_of("m/config.json"), 0, NULL);
    list   = json_object_get(config, "mlp_layer_types");
    EXPECT_EQ(json_array_size(list), 3);
    for (size_t i = 0; i < json_array_size(list); i++)
        EXPECT(strcmp(json_string_value(json_array_get(list, i)), WANT[i]) == 0);
    EXPECT_EQ(bt_model_config_read(path_of("m"), &cfg), BT_OK);
    EXPECT_EQ(cfg.first_moe_layer, 2);
    /* Without the list Hugging Face would take only the first layer for dense. */
    json_object_del(config, "mlp_layer_types");
    EXPECT_EQ(json_dump_file(config, path_of("m/config.json"), 0), 0);
    EXPECT_EQ(bt_model_config_read(path_of("m"), &cfg), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "field first_k_dense_replace: expected 1");
    json_decref(config);
}

/* Bytes of the tensors that differ between two models of the same shape; -1 when one is missing. */
static long count_different(const char *a_dir, const char *b_dir)
{
    bt_safetensors *a = NULL, *b = NULL;
    long            n = -1;

    EXPECT_EQ(bt_safetensors_open(path_of(a_dir), &a), BT_OK);
    EXPECT_EQ(bt_safetensors_open(path_of(b_dir), &b), BT_OK);
    if (a != NULL && b != NULL) n = 0;
    for (size_t i = 0; n >= 0 && i < bt_safetensors_count(a); i++) {
        const bt_tensor *x = bt_safetensors_at(a, i), *y = bt_safetensors_find(b, x->name);

        if (y == NULL || y->bytes != x->bytes) {
            n = -1;
            break;
        }
        for (size_t k = 0; k < x->bytes; k++)
            n += ((const char *)x->data)[k] != ((const char *)y->data)[k];
    }
    bt_safetensors_close(a);
    bt_safetensors_close(b);
    return n;
}

/* One file or many, the numbers are those of the seed. */
static void synth_repeats_a_seed(void)
{
    struct stat info;

    clear();
    EXPECT_EQ(synth_small("v3", "a", "--groups 4 --seed 7"), 0);
    EXPECT_EQ(synth_small("v3", "b", "--groups 4 --seed 7 --file-mib 1 --vocab 16384"), 0);
    EXPECT_EQ(stat(path_of("b/model.safetensors.index.json"), &info), 0);
    EXPECT_EQ(synth_small("v3", "c", "--groups 4 --seed 7"), 0);
    EXPECT_EQ(synth_small("v3", "d", "--groups 4 --seed 8"), 0);
    EXPECT_EQ(count_different("a", "c"), 0);
    EXPECT(count_different("a", "d") > 100000);
    EXPECT_EQ(synth_small("v3", "e", "--groups 4 --seed 7 --vocab 16384"), 0);
    EXPECT_EQ(count_different("b", "e"), 0);
}

static void expect_copy(const bt_safetensors *set, const char *name, const char *of)
{
    const bt_tensor *copy     = bt_safetensors_find(set, name),
                    *original = bt_safetensors_find(set, of);

    EXPECT(copy != NULL && original != NULL && copy->bytes == original->bytes &&
           memcmp(copy->data, original->data, copy->bytes) == 0);
}

/* The layer for multi-token prediction changes no other number, and repeats embedding and head. */
static void synth_adds_a_layer_that_predicts(void)
{
    static const char *const LIKE[] = {"v3 --groups 4",        "v3.2 --index-topk 8 --index-dim 24",
                                       "glm-5 --index-topk 8", "glm-flash --dense-layers 3",
                                       "kimi-k2-thinking",     "v2-lite --fp8"};

    for (size_t i = 0; i < sizeof(LIKE) / sizeof(LIKE[0]); i++) {
        bt_safetensors *set = NULL;
        bt_model_config cfg;

        clear();
        EXPECT_EQ(synth_small(LIKE[i], "a", ""), 0);
        EXPECT_EQ(synth_small(LIKE[i], "m", "--mtp 1"), 0);
        EXPECT_EQ(count_different("a", "m"), 0);
        EXPECT_EQ(bt_model_config_read(path_of("m"), &cfg), BT_OK);
        EXPECT_EQ(bt_safetensors_open(path_of("m"), &set), BT_OK);
        EXPECT_EQ(bt_weights_check(&cfg, set), BT_OK);
        EXPECT_EQ(bt_model_config_serve_mtp(&cfg), BT_OK);
        EXPECT_EQ(bt_weights_check(&cfg, set), BT_OK);
        expect_copy(set, "model.layers.3.embed_tokens.weight", "model.embed_tokens.weight");
        expect_copy(set, "model.layers.3.shared_head.head.weight", "lm_head.weight");
        bt_safetensors_close(set);
    }
}

/* Logits of a few random tokens are finite and a few units wide, in every family. */
static void synth_gives_sane_logits(void)
{
    static const char *const NAMES[] = {"v2-lite",
                                        "v2",
                                        "v3",
                                        "kimi-k2",
                                        "moonlight",
                                        "glm-flash",
                                        "v3 --fp8",
                                        "v3.2 --index-topk 8 --index-dim 24",
                                        "glm-5 --index-topk 8",
                                        "v2 --int4",
                                        "kimi-k2-thinking",
                                        "sarvam",
                                        "axk1"};
    enum { N = 24, VOCAB = 512 };
    static float logits[N * VOCAB];
    uint32_t     tokens[N];

    for (uint32_t i = 0; i < N; i++)
        tokens[i] = i * 37 % VOCAB;
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        bt_safetensors  *set = NULL;
        bt_model_config  cfg;
        bt_reference_run run = {
            .n_tokens = N, .tokens = tokens, .n_logit_rows = N, .logits = logits};
        double sum = 0, sum2 = 0, deviation;

        clear();
        EXPECT_EQ(synth_small(NAMES[i], "m", ""), 0);
        EXPECT_EQ(bt_model_config_read(path_of("m"), &cfg), BT_OK);
        EXPECT_EQ(bt_safetensors_open(path_of("m"), &set), BT_OK);
        EXPECT_EQ(bt_reference_forward(&cfg, set, &run), BT_OK);
        bt_safetensors_close(set);
        for (size_t k = 0; k < N * VOCAB; k++) {
            sum += (double)logits[k];
            sum2 += (double)logits[k] * (double)logits[k];
        }
        deviation = sqrt(sum2 / (N * VOCAB));
        printf("  %-10s mean %.3f, deviation %.2f\n", NAMES[i], sum / (N * VOCAB), deviation);
        EXPECT(deviation > 1 && deviation < 4);
        EXPECT(fabs(sum / (N * VOCAB)) < 0.2);
    }
}

static void synth_is_counted_right(void)
{
    const char *argv[] = {BT_INSPECT, NULL, NULL};

    clear();
    EXPECT_EQ(synth_small("glm-flash", "m", "--q-lora-rank 24"), 0);
    argv[1] = path_of("m");
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, RUN_S), 0);
    EXPECT_HAS(g_command.output, "Glm4MoeLiteForCausalLM");
    EXPECT(strstr(g_command.output, "expected") == NULL);
    EXPECT(strstr(g_command.output, "unknown") == NULL);
}

static bool exists(const char *name)
{
    struct stat info;

    return stat(path_of(name), &info) == 0;
}

static void synth_refuses_by_name(void)
{
    char line[2048];

    clear();
    EXPECT_EQ(synth("--like v4 x"), 64);
    EXPECT_HAS(g_command.output, "v2-lite, v2, v3, kimi-k2, kimi-k2-thinking, moonlight, "
                                 "glm-flash, v3.2, glm-5, sarvam, axk1");
    EXPECT_EQ(synth_small("v3", "m", "--index-topk 8"), 1);
    EXPECT_HAS(g_command.output, "field index_topk: not supported for this model_type");
    EXPECT_EQ(synth_small("v3", "m", "--index-dim 16"), 1);
    EXPECT_HAS(g_command.output, "field index_head_dim");
    EXPECT_EQ(synth_small("v3.2", "m", "--index-dim 8"), 1);
    EXPECT_HAS(g_command.output, "field index_head_dim: expected an integer from 16");
    EXPECT_EQ(synth("--like v3 --layers 0 x"), 64);
    EXPECT_HAS(g_command.output, "--layers must be a whole number from 1");
    EXPECT_EQ(synth("--like v3 --layers -1 x"), 64);
    EXPECT_EQ(synth("--like v3 --mtp 2 x"), 64);
    EXPECT_HAS(g_command.output, "--mtp must be a whole number from 0 to 1");
    EXPECT_EQ(synth("--like v3"), 64);
    EXPECT_HAS(g_command.output, "OUT is missing");
    EXPECT_EQ(synth("--like kimi-k2-thinking --fp8 x"), 64);
    EXPECT_HAS(g_command.output, "--fp8 does not go with weights of 4 bits");
    EXPECT_EQ(synth("--like v3 --int4 --expert-dim 48 x"), 64);
    EXPECT_HAS(g_command.output,
               "must be multiples of 32 for weights of 4 bits, found 7168 and 48");
    EXPECT_EQ(synth_small("v3", "m", "--groups 5"), 1);
    EXPECT_HAS(g_command.output, "n_group: expected a divisor");
    EXPECT(!exists("m"));
    EXPECT_EQ(synth_small("v3", "no/such", ""), 1);
    EXPECT_HAS(g_command.output, "no/such: No such file or directory");
    snprintf(line, sizeof(line), "--like v3 --layers 1024 --experts 512 %s", path_of("m"));
    EXPECT_EQ(synth(line), 1);
    EXPECT_HAS(g_command.output, "MiB free");
    EXPECT(!exists("m"));
}

/* Sizes that no model can have cost nothing: the tensors would not fit this. */
static void synth_refuses_before_it_lists_tensors(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    char        line[2048];
    const char *argv[] = {"/bin/sh", "-c", line, NULL};

    clear();
    snprintf(line, sizeof(line),
             "ulimit -v 200000; exec '%s' --like v3 --layers 1024 --experts 1024 --groups 7 '%s'",
             BT_SYNTH, path_of("m"));
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, RUN_S), 1);
    EXPECT_HAS(g_command.output, "n_group: expected a divisor");
    EXPECT(!exists("m"));
#endif
    EXPECT_EQ(synth("--like v3 --experts 1025 x"), 64);
    EXPECT_HAS(g_command.output, "--experts must be a whole number from 1 to 1024");
}

/* A tensor's name is anything that its file says. */
static void inspect_shows_names_without_control_bytes(void)
{
    static const char name[] = "x\x1b[31m\nModel fine";
    const bt_tensor   tensor = {name, BT_ST_F32, 1, {1}, &(float){1}, sizeof(float), NULL};
    const char       *argv[] = {BT_INSPECT, NULL, NULL};

    clear();
    EXPECT_EQ(synth_small("v2-lite", "m", ""), 0);
    EXPECT_EQ(bt_safetensors_write(path_of("m/model.safetensors"), 1, &tensor), BT_OK);
    argv[1] = path_of("m");
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, RUN_S), 1);
    EXPECT_HAS(g_command.output, "(the first is x?[31m?Model fine)");
}

static const char *inspected(const char *dir)
{
    const char *argv[] = {BT_INSPECT, dir, NULL};

    (void)bt_command_run(&g_command, argv, NULL, RUN_S);
    return g_command.output;
}

/* What is cut off or misspelt in a config.json makes another model, which is served. */
static void inspect_warns_of_what_config_json_does_not_reach(void)
{
    json_t *cfg, *rope;

    clear();
    EXPECT_EQ(synth_small("v3", "m", ""), 0);
    EXPECT(strstr(inspected(path_of("m")), "warn") == NULL);
    cfg  = json_load_file(path_of("m/config.json"), 0, NULL);
    rope = json_object_get(cfg, "rope_scaling");
    NEED(cfg != NULL && rope != NULL);
    json_object_set_new(cfg, "num_hidden_layers", json_integer(2));
    json_object_set_new(cfg, "n_groups", json_integer(4));
    json_object_set_new(cfg, "num_routed_experts", json_integer(16));
    json_object_set_new(cfg, "head_dim", json_integer(16)); /* not read, and none of them */
    json_object_set_new(rope, "mscale_all_dims", json_real(1));
    NEED(json_dump_file(cfg, path_of("m/config.json"), 0) == 0);
    json_decref(cfg);
    EXPECT_HAS(inspected(path_of("m")), "field n_groups: not known, and not read: is it n_group?");
    EXPECT_EQ(g_command.code, 0);
    EXPECT_HAS(g_command.output,
               "field num_routed_experts: not known, and not read: is it n_routed_experts?");
    EXPECT_HAS(
        g_command.output,
        "field rope_scaling.mscale_all_dims: not known, and not read: is it mscale_all_dim?");
    EXPECT_HAS(g_command.output, "expected no layer behind the 2 that config.json names "
                                 "(num_hidden_layers 2, num_nextn_predict_layers 0), found it");
    EXPECT(strstr(g_command.output, "head_dim:") == NULL);
    EXPECT_HAS(g_command.output, "(the first is model.layers.2.input_layernorm.weight)");
}

static void inspect_names_the_gate_that_is(void)
{
    EXPECT_HAS(inspected(MICRO "axk1"), "gate        sigmoid, 2 of 8 experts");
    EXPECT_HAS(inspected(MICRO "v3-fp8"), "gate        sigmoid with correction bias, 2 of 8");
    EXPECT_HAS(inspected(MICRO "mistral-4"),
               "gate        softmax, 2 of 8 experts, weights normalised");
    EXPECT_HAS(g_command.output, "FP8 weights, each matrix with one scale");
    EXPECT(strstr(g_command.output, "expected") == NULL &&
           strstr(g_command.output, "warn") == NULL);
}

static void synth_overwrites_nothing(void)
{
    clear();
    if (mkdir(path_of("m"), 0777) != 0) abort();
    EXPECT_EQ(synth_small("v2", "m", ""), 0); /* empty is as good as absent */
    EXPECT_EQ(synth_small("v2", "m", ""), 1);
    EXPECT_HAS(g_command.output, "expected an empty directory");
    EXPECT(exists("m/config.json") && exists("m/model.safetensors"));
}

/* Files by their first bytes are there long before the end: the end must not come. */
static void interrupt(int sig)
{
    char        line[2048];
    const char *argv[] = {BT_SYNTH, "--like", "v2-lite", "--layers", "2", line, NULL};
    double      end    = bt_command_now() + RUN_S;

    clear();
    snprintf(line, sizeof(line), "%s", path_of("m"));
    bt_command_start(&g_command, argv, NULL);
    while (!exists("m/model.safetensors") && bt_command_now() < end)
        usleep(1000);
    EXPECT(exists("m/model.safetensors"));
    kill(g_command.pid, sig);
    EXPECT_EQ(bt_command_finish(&g_command, RUN_S), 130);
    EXPECT_HAS(g_command.output, "interrupted");
    EXPECT(!exists("m"));
}

static void synth_interrupted_leaves_nothing(void)
{
    interrupt(SIGTERM);
    interrupt(SIGHUP);
}

static void synth_beyond_a_file_limit_leaves_nothing(void)
{
    char        line[2048];
    const char *argv[] = {"/bin/sh", "-c", line, NULL};

    clear();
    snprintf(line, sizeof(line), "ulimit -f 100; exec '%s' --like v2-lite --layers 2 '%s'",
             BT_SYNTH, path_of("m"));
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, RUN_S), 1);
    EXPECT_HAS(g_command.output, "File too large");
    EXPECT(!exists("m"));
}

static const bt_test TESTS[] = {BT_TEST(synth_writes_what_hugging_face_reads),
                                BT_TEST(synth_lists_the_layers_of_glm),
                                BT_TEST(synth_repeats_a_seed),
                                BT_TEST(synth_adds_a_layer_that_predicts),
                                BT_TEST(synth_gives_sane_logits),
                                BT_TEST(synth_is_counted_right),
                                BT_TEST(synth_refuses_by_name),
                                BT_TEST(synth_refuses_before_it_lists_tensors),
                                BT_TEST(inspect_shows_names_without_control_bytes),
                                BT_TEST(inspect_warns_of_what_config_json_does_not_reach),
                                BT_TEST(inspect_names_the_gate_that_is),
                                BT_TEST(synth_overwrites_nothing),
                                BT_TEST(synth_interrupted_leaves_nothing),
                                BT_TEST(synth_beyond_a_file_limit_leaves_nothing)};

int main(int argc, char **argv)
{
    const char *base = getenv("TMPDIR");
    int         code;

    bt_log_init("test", BT_LOG_INFO);
    snprintf(g_dir, sizeof(g_dir), "%s/baton-synth-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(g_dir) == NULL) abort();
    code = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    clear();
    rmdir(g_dir);
    return code;
}
