/* The cases of an evaluation, the rows that come for them, and the cell that computes them, without
 * any rank. */
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/eval_cases.h"
#include "cli/eval_cell.h"
#include "core/parse.h"
#include "model/safetensors.h"
#include "tests/support/scratch.h"
#include "tests/support/sweep.h"

enum { N = 6, VOCAB = 5, N_MOE = 2, TOP_K = 3 };

static uint32_t g_ids[N] = {4, 3, 2, 1, 0, 4};

static void init_cases(bt_eval_cases *cases)
{
    memset(cases, 0, sizeof(*cases));
    cases->n     = 1;
    cases->cases = bt_calloc(1, sizeof(*cases->cases));
    cases->top_k = TOP_K;
    cases->path  = "IN";
    strcpy(cases->cases[0].name, "one");
    cases->cases[0].n_tokens = N;
    cases->cases[0].n_prompt = 2;
    cases->cases[0].ids      = bt_calloc(N, sizeof(uint32_t));
    memcpy(cases->cases[0].ids, g_ids, sizeof(g_ids));
}

static void eval_rows_are_checked(void)
{
    bt_eval_cases cases;
    bt_eval_case *c;
    float         logits[N * VOCAB];
    int32_t       experts[N_MOE * N * TOP_K];

    init_cases(&cases);
    c = &cases.cases[0];
    for (int i = 0; i < N * VOCAB; i++)
        logits[i] = (float)i;
    for (int i = 0; i < N_MOE * N * TOP_K; i++)
        experts[i] = N_MOE * N * TOP_K - i;
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N - 1), BT_ERR_INVALID_ARG); /* too long */
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB - 1, N), BT_ERR_INVALID_ARG); /* id 4 */
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, c), BT_OK);

#define ROWS(at, n, logit_rows, expert_bytes)                                                \
    bt_eval_case_rows(&cases, c, at, n, logits, (logit_rows)*VOCAB * sizeof(float), experts, \
                      expert_bytes)
#define WHOLE(n) ((size_t)N_MOE * (n)*TOP_K * sizeof(int32_t))
    EXPECT_EQ(ROWS(0, 0, 0, 0), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(N, 1, 1, WHOLE(1)), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(4, 3, 3, WHOLE(3)), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(UINT32_MAX, 2, 2, WHOLE(2)), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(0, 2, 1, WHOLE(2)), BT_ERR_PROTOCOL);
    EXPECT_EQ(ROWS(0, 2, 2, WHOLE(2) - 4), BT_ERR_PROTOCOL);
    EXPECT_EQ(c->n_seen, 0);
    EXPECT_EQ(ROWS(1, 2, 2, WHOLE(2)), BT_OK);
    EXPECT_EQ(cases.n_moe, N_MOE);
    EXPECT_EQ(ROWS(2, 1, 1, WHOLE(1)), BT_ERR_PROTOCOL);     /* twice */
    EXPECT_EQ(ROWS(3, 1, 1, 3 * WHOLE(1)), BT_ERR_PROTOCOL); /* other layers than before */
    EXPECT_EQ(c->n_seen, 2);
    EXPECT(c->logits[1 * VOCAB] == 0.0f && c->logits[2 * VOCAB + 4] == 9.0f);
    /* Layer 1 of row 2: the last three of the message, sorted. */
    EXPECT_EQ(c->experts[(1 * N + 2) * TOP_K], experts[(1 * 2 + 1) * TOP_K + 2]);
    EXPECT_EQ(c->experts[(1 * N + 2) * TOP_K + 2], experts[(1 * 2 + 1) * TOP_K]);
    bt_eval_cases_free(&cases);
#undef ROWS
#undef WHOLE
}

static void eval_dense_model_has_no_experts(void)
{
    bt_eval_cases cases;
    float         logits[VOCAB] = {0};
    int32_t       one           = 0;

    init_cases(&cases);
    cases.top_k = 0;
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 0, 1, logits, sizeof(logits), NULL, 0),
              BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 1, 1, logits, sizeof(logits), &one, 4),
              BT_ERR_PROTOCOL);
    EXPECT(cases.cases[0].experts == NULL);
    bt_eval_cases_free(&cases);
}

/* As those of a damaged model are; the cell then ends. */
static void eval_logit_that_is_no_finite_number_is_refused(void)
{
    const float   bad[] = {NAN, INFINITY, -INFINITY};
    bt_eval_cases cases;
    float         logits[2 * VOCAB];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memset(logits, 0, sizeof(logits));
        init_cases(&cases);
        cases.top_k = 0;
        EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
        EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
#define ROWS(at) bt_eval_case_rows(&cases, &cases.cases[0], at, 2, logits, sizeof(logits), NULL, 0)
        EXPECT_EQ(ROWS(0), BT_OK);
        logits[2 * VOCAB - 1] = bad[i]; /* the last one */
        EXPECT_EQ(ROWS(2), BT_ERR_FORMAT);
        logits[0] = bad[i];
        EXPECT_EQ(ROWS(4), BT_ERR_FORMAT);
#undef ROWS
        bt_eval_cases_free(&cases);
    }
}

/* Its config names experts, but its layers are all dense. */
static void eval_layers_without_experts_are_dense(void)
{
    bt_eval_cases cases;
    float         logits[VOCAB]  = {0};
    int32_t       experts[TOP_K] = {0};

    init_cases(&cases);
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 0, 1, logits, sizeof(logits), NULL, 0),
              BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 1, 1, logits, sizeof(logits), experts,
                                sizeof(experts)),
              BT_ERR_PROTOCOL);
    EXPECT(cases.cases[0].experts == NULL);
    bt_eval_cases_free(&cases);
    init_cases(&cases);
    cases.n_moe = N_MOE; /* as forced experts say */
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT_EQ(bt_eval_case_rows(&cases, &cases.cases[0], 0, 1, logits, sizeof(logits), NULL, 0),
              BT_ERR_PROTOCOL);
    bt_eval_cases_free(&cases);
}

/* A pipe stays a pipe, and what lies beside OUT stays as it was. */
static void eval_out_may_be_a_pipe(void)
{
    const char   *pipe_path = scratch_path("out"), *beside = scratch_path("out.part");
    char          got[4096];
    bt_eval_cases cases;
    struct stat   info;
    int           fd, other;
    ssize_t       n;

    init_cases(&cases);
    cases.top_k = 0;
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT(mkfifo(pipe_path, 0600) == 0);
    EXPECT((fd = open(pipe_path, O_RDWR | O_NONBLOCK | O_CLOEXEC)) >= 0);
    EXPECT((other = open(beside, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)) >= 0);
    EXPECT(write(other, "mine", 4) == 4);
    close(other);
    EXPECT_EQ(bt_eval_cases_write(&cases, pipe_path), BT_OK);
    EXPECT(stat(pipe_path, &info) == 0 && S_ISFIFO(info.st_mode));
    EXPECT(stat(beside, &info) == 0 && info.st_size == 4);
    n = read(fd, got, sizeof(got));
    EXPECT(n > (ssize_t)(N * VOCAB * sizeof(float)) && memcmp(got + 8, "{\"", 2) == 0);
    close(fd);
    EXPECT(unlink(beside) == 0 && unlink(pipe_path) == 0 && rmdir(g_scratch) == 0);
    scratch_make();
    bt_eval_cases_free(&cases);
}

/* As /dev/stdout is one to the file that a shell has opened: it stays, and the file gets all. */
static void eval_out_may_be_a_link(void)
{
    const char     *link_path = scratch_path("link"), *file_path = scratch_path("file");
    bt_eval_cases   cases;
    bt_safetensors *got = NULL;
    struct stat     info;
    int             fd;

    init_cases(&cases);
    cases.top_k = 0;
    EXPECT_EQ(bt_eval_cases_check(&cases, VOCAB, N), BT_OK);
    EXPECT_EQ(bt_eval_case_prepare(&cases, &cases.cases[0]), BT_OK);
    EXPECT((fd = open(file_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)) >= 0);
    close(fd);
    EXPECT(symlink(file_path, link_path) == 0);
    EXPECT_EQ(bt_eval_cases_write(&cases, link_path), BT_OK);
    EXPECT(lstat(link_path, &info) == 0 && S_ISLNK(info.st_mode));
    EXPECT_EQ(bt_safetensors_open(file_path, &got), BT_OK);
    bt_safetensors_close(got);
    EXPECT(unlink(link_path) == 0 && unlink(file_path) == 0 && rmdir(g_scratch) == 0);
    scratch_make();
    bt_eval_cases_free(&cases);
}

static void eval_cases_read_unwinds_at_every_allocation(void)
{
    static int32_t  ids[N] = {1, 2, 3, 4, 0, 1}, prompt = 2, experts[N_MOE * N * TOP_K];
    const bt_tensor tensors[] = {
        {"a.experts", BT_ST_I32, 3, {N_MOE, N, TOP_K}, experts, sizeof(experts), NULL},
        {"a.ids",     BT_ST_I32, 1, {N},               ids,     sizeof(ids),     NULL},
        {"a.prompt",  BT_ST_I32, 1, {1},               &prompt, sizeof(prompt),  NULL},
    };
    const char   *path  = scratch_path("in");
    bt_eval_cases cases = {0};

    EXPECT_EQ(bt_safetensors_write(path, 3, tensors), BT_OK);
    EXPECT(BT_SWEEP(bt_eval_cases_read(path, TOP_K, VOCAB, &cases), bt_eval_cases_free(&cases)) >=
           3);
}

static bt_status read_cases(size_t n, const bt_tensor *tensors, bt_eval_cases *cases)
{
    const char *path = scratch_path("in");

    EXPECT_EQ(bt_safetensors_write(path, n, tensors), BT_OK);
    return bt_eval_cases_read(path, TOP_K, VOCAB, cases);
}

static void eval_cases_are_read_in_one_look(void)
{
    enum { N_CASES = 100000 };
    static char      names[2 * N_CASES][24];
    static bt_tensor tensors[2 * N_CASES];
    int32_t          one   = 1;
    bt_eval_cases    cases = {0};
    clock_t          from  = clock(); /* another program's time does not count */

    for (int i = 0; i < 2 * N_CASES; i++) {
        snprintf(names[i], sizeof(names[i]), "c%05d.%s", i / 2, i % 2 == 0 ? "ids" : "prompt");
        tensors[i] = (bt_tensor){names[i], BT_ST_I32, 1, {1}, &one, sizeof(one), NULL};
    }
    EXPECT_EQ(read_cases(2 * N_CASES, tensors, &cases), BT_OK);
    EXPECT_EQ(cases.n, N_CASES);
    EXPECT(strcmp(cases.cases[N_CASES - 1].name, "c99999") == 0);
    bt_eval_cases_free(&cases);
    EXPECT((double)(clock() - from) / CLOCKS_PER_SEC < 20); /* case against case takes minutes */
}

static void eval_case_without_ids_is_named(void)
{
    int32_t         one       = 1;
    const bt_tensor tensors[] = {
        {"a.ids",     BT_ST_I32, 1, {1}, &one, sizeof(one), NULL},
        {"a.prompt",  BT_ST_I32, 1, {1}, &one, sizeof(one), NULL},
        {"bb.prompt", BT_ST_I32, 1, {1}, &one, sizeof(one), NULL},
    };
    bt_eval_cases cases = {0};

    EXPECT_EQ(read_cases(3, tensors, &cases), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), ": bb.ids is missing beside the case's other tensors");
    bt_eval_cases_free(&cases);
}

static void eval_cell_create_unwinds_at_every_allocation(void)
{
    const bt_eval_options opt = {
        .address = "127.0.0.1:0", .n_prefill = 1, .n_decode = 2, .n_ranks = 3, .n_parallel = 1};
    char          address[BT_ADDRESS_BYTES];
    bt_rpc_loop  *loop = NULL;
    bt_eval_cell *cell = NULL;
    bt_eval_cases cases;

    init_cases(&cases);
    EXPECT_EQ(bt_rpc_loop_create(&loop), BT_OK);
    /* it takes ranks as soon as there is memory for one */
    EXPECT(BT_SWEEP_BUT(2, bt_eval_cell_create(loop, &opt, &cases, &cell, address),
                        (bt_eval_cell_destroy(cell), cell = NULL)) >= 3);
    bt_rpc_loop_destroy(loop);
    bt_eval_cases_free(&cases);
}

static const bt_test TESTS[] = {
    BT_TEST(eval_rows_are_checked),
    BT_TEST(eval_dense_model_has_no_experts),
    BT_TEST(eval_logit_that_is_no_finite_number_is_refused),
    BT_TEST(eval_layers_without_experts_are_dense),
    BT_TEST(eval_out_may_be_a_pipe),
    BT_TEST(eval_out_may_be_a_link),
    BT_TEST(eval_cases_are_read_in_one_look),
    BT_TEST(eval_case_without_ids_is_named),
    BT_TEST(eval_cases_read_unwinds_at_every_allocation),
    BT_TEST(eval_cell_create_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
