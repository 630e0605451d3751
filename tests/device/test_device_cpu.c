/* The CPU back end as its callers see it: products of ragged lists, bit-equal for every family of
 * one arithmetic and every number of threads; the operations on rows; refusals; no leak when
 * memory runs out. */
#include <sched.h>

#include "core/alloc.h"
#include "device/cpu/device_cpu.h"
#include "tests/device/cpu_device.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

enum { N_GEMMS = 6 };

/* n, k, m: more than one chunk both ways, none at all, odd ones. */
static const uint32_t SHAPES[N_GEMMS][3] = {
    {600, 128,  300},
    {17,  33,   5  },
    {64,  64,   0  },
    {1,   1,    1  },
    {300, 2112, 3  },
    {100, 48,   256}
};

typedef struct {
    matrix     x[N_GEMMS], w[N_GEMMS];
    bt_linear *linear[N_GEMMS];
    float     *y[N_GEMMS];
    bt_bf16   *y_bf16[N_GEMMS];
    bt_gemm    gemms[2 * N_GEMMS];
} gemm_set;

/* Each product twice in the list: fp32 and bf16. */
static void make_set(bt_device *dev, gemm_set *s)
{
    for (uint32_t i = 0; i < N_GEMMS; i++) {
        uint32_t n = SHAPES[i][0], k = SHAPES[i][1], m = SHAPES[i][2];
        size_t   ld_y = n + 7;

        s->x[i]      = random_matrix(m, k + 5, i);
        s->w[i]      = random_matrix(n, k, i + 50);
        s->y[i]      = bt_calloc(m * ld_y, sizeof(float));
        s->y_bf16[i] = bt_calloc(m * ld_y, sizeof(bt_bf16));
        EXPECT_EQ(bt_device_linear_create(dev, n, k, copy_row, &s->w[i], &s->linear[i]), BT_OK);
        EXPECT_EQ(bt_linear_n(s->linear[i]), n);
        EXPECT_EQ(bt_linear_k(s->linear[i]), k);
        EXPECT_EQ(bt_linear_bytes(s->linear[i]), bt_cpu_packed_elems(n, k) * 2);
        s->gemms[i] =
            (bt_gemm){s->linear[i], s->x[i].values, k + 5, s->y[i], ld_y, m, BT_F32, NULL};
        s->gemms[N_GEMMS + i]         = s->gemms[i];
        s->gemms[N_GEMMS + i].y       = s->y_bf16[i];
        s->gemms[N_GEMMS + i].y_dtype = BT_BF16;
    }
}

static void free_set(bt_device *dev, gemm_set *s)
{
    for (uint32_t i = 0; i < N_GEMMS; i++) {
        bt_device_linear_destroy(dev, s->linear[i]);
        bt_free(s->x[i].values);
        bt_free(s->w[i].values);
        bt_free(s->y[i]);
        bt_free(s->y_bf16[i]);
    }
}

static void expect_set(const gemm_set *s, bt_cpu_arithmetic arithmetic)
{
    for (uint32_t i = 0; i < N_GEMMS; i++) {
        uint32_t n = SHAPES[i][0], k = SHAPES[i][1], m = SHAPES[i][2], wrong = 0;

        for (uint32_t r = 0; r < m; r++) {
            for (uint32_t c = 0; c < n + 7; c++) { /* no more than n of them are written */
                size_t at   = (size_t)r * (n + 7) + c;
                float  want = c >= n ? 0
                                     : twin(arithmetic, s->x[i].values + (size_t)r * (k + 5),
                                            s->w[i].values + (size_t)c * k, k, 0);

                wrong += !twin_same(s->y[i][at], want);
                wrong += s->y_bf16[i][at] != bt_bf16_from_f32(want);
            }
        }
        EXPECT_EQ(wrong, 0);
    }
}

static void gemm_of_a_list_equals_the_twin_in_every_family(void)
{
    static const char *const FAMILIES[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx", "neon"};

    for (size_t f = 0; f < sizeof(FAMILIES) / sizeof(*FAMILIES); f++) {
        bt_device *dev;
        gemm_set   s;

        if (bt_cpu_kernels_find(FAMILIES[f]) == NULL) continue;
        dev = device(FAMILIES[f], (uint32_t)(f % 3 + 1));
        make_set(dev, &s);
        for (int role = 0; role < BT_N_ROLES; role++) {
            EXPECT_EQ(bt_device_gemm(dev, (bt_role)role, 2 * N_GEMMS, s.gemms), BT_OK);
            expect_set(&s, bt_device_cpu_table(dev)->arithmetic[role]);
        }
        EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 0, NULL), BT_OK);
        free_set(dev, &s);
        bt_device_destroy(dev);
    }
}

/* Rows whose x is longer than a cache, in wide chunks, and the same rows alone. */
static void gemm_of_a_long_x_equals_its_rows_alone(void)
{
    enum { N = 2100, K = 2144, M = 512 };
    static const uint32_t ROWS[] = {0, 17, 255, 256, 300, M - 1};
    matrix                w = random_matrix(N, K, 1), x = random_matrix(M, K, 2);
    float     *all = bt_calloc((size_t)M * N, sizeof(*all)), *alone = bt_calloc(N, sizeof(*alone));
    bt_device *dev    = device("auto", 2);
    bt_linear *linear = NULL;
    bt_gemm    g;

    EXPECT_EQ(bt_device_linear_create(dev, N, K, copy_row, &w, &linear), BT_OK);
    g = (bt_gemm){linear, x.values, K, all, N, M, BT_F32, NULL};
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g), BT_OK);
    for (size_t i = 0; i < sizeof(ROWS) / sizeof(*ROWS); i++) {
        g = (bt_gemm){linear, x.values + (size_t)ROWS[i] * K, K, alone, N, 1, BT_F32, NULL};
        EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g), BT_OK);
        EXPECT(memcmp(alone, all + (size_t)ROWS[i] * N, N * sizeof(*alone)) == 0);
    }
    bt_device_linear_destroy(dev, linear);
    bt_device_destroy(dev);
    bt_free(w.values);
    bt_free(x.values);
    bt_free(all);
    bt_free(alone);
}

/* A row's bits, alone and beside others, with one thread and with several. */
static void gemm_row_depends_on_nothing_beside_it(void)
{
    enum { N = 333, K = 700, M = 150 };
    static float want[M * N], got[M * N];
    matrix       w = random_matrix(N, K, 1), x = random_matrix(M, K, 2);

    for (int role = 0; role < BT_N_ROLES; role++) {
        for (uint32_t threads = 1; threads <= 5; threads += 2) {
            bt_device *dev    = device("auto", threads);
            bt_linear *linear = NULL;
            bt_gemm    g;

            EXPECT_EQ(bt_device_linear_create(dev, N, K, copy_row, &w, &linear), BT_OK);
            g = (bt_gemm){linear, x.values, K, threads == 1 ? want : got, N, M, BT_F32, NULL};
            EXPECT_EQ(bt_device_gemm(dev, (bt_role)role, 1, &g), BT_OK);
            EXPECT(threads == 1 || memcmp(got, want, sizeof(want)) == 0);
            for (uint32_t at = 0, m = 1; at < M; at += m, m = m * 2 % 37) {
                g.m = m < M - at ? m : M - at;
                g.x = x.values + (size_t)at * K;
                g.y = got + (size_t)at * N;
                memset(g.y, 0, (size_t)g.m * N * sizeof(float));
                EXPECT_EQ(bt_device_gemm(dev, (bt_role)role, 1, &g), BT_OK);
            }
            EXPECT(memcmp(got, want, sizeof(want)) == 0);
            bt_device_linear_destroy(dev, linear);
            bt_device_destroy(dev);
        }
    }
    bt_free(w.values);
    bt_free(x.values);
}

enum { MAX_FFNS = 9 };

/* Blocks of [hidden, dim, n] with ms[i] rows each: in one call as in parts, in both dtypes. */
static void check_ffn(bt_device *dev, uint32_t hidden, uint32_t dim, uint32_t n, uint32_t n_ffns,
                      const uint32_t *ms, bt_dtype dtype)
{
    matrix     x[MAX_FFNS], up[MAX_FFNS], down[MAX_FFNS];
    bt_linear *linear[2][MAX_FFNS] = {{NULL}};
    bt_ffn     ffns[MAX_FFNS], parts[MAX_FFNS];
    size_t     rows = 0, bytes = bt_dtype_bytes(dtype);
    bt_bf16   *h, *act;

    for (uint32_t i = 0; i < n_ffns; i++) {
        x[i]    = random_matrix(ms[i], hidden, i + 1);
        up[i]   = random_matrix(2 * dim, hidden, i + 20);
        down[i] = random_matrix(n, dim, i + 40);
        EXPECT_EQ(bt_device_linear_create(dev, 2 * dim, hidden, copy_row, &up[i], &linear[0][i]),
                  BT_OK);
        EXPECT_EQ(bt_device_linear_create(dev, n, dim, copy_row, &down[i], &linear[1][i]), BT_OK);
        ffns[i]    = (bt_ffn){.gate_up = linear[0][i],
                              .down    = linear[1][i],
                              .x       = x[i].values,
                              .ld_x    = hidden,
                              .y       = bt_calloc((size_t)ms[i] * n + 1, bytes),
                              .ld_y    = n,
                              .m       = ms[i],
                              .y_dtype = dtype};
        parts[i]   = ffns[i];
        parts[i].y = bt_calloc((size_t)ms[i] * n + 1, bytes);
        rows += ms[i];
    }
    h   = bt_calloc(rows * 2 * dim, sizeof(*h));
    act = bt_calloc(rows * dim, sizeof(*act));
    EXPECT_EQ(bt_device_ffn(dev, BT_ROLE_PROMPT, n_ffns, ffns, h, act), BT_OK);
    EXPECT_EQ(bt_cpu_ffn_by_parts(dev, BT_ROLE_PROMPT, n_ffns, parts, h, act), BT_OK);
    for (uint32_t i = 0; i < n_ffns; i++) {
        EXPECT(memcmp(ffns[i].y, parts[i].y, ((size_t)ms[i] * n + 1) * bytes) == 0);
        bt_free(ffns[i].y);
        bt_free(parts[i].y);
        bt_device_linear_destroy(dev, linear[0][i]);
        bt_device_linear_destroy(dev, linear[1][i]);
        bt_free(x[i].values);
        bt_free(up[i].values);
        bt_free(down[i].values);
    }
    bt_free(h);
    bt_free(act);
}

static void ffn_of_a_list_equals_its_parts(void)
{
    static const uint32_t MANY[] = {300, 0, 1, 48, 17}, FEW[] = {1, 0, 3, 2, 9};
    static const uint32_t EACH[] = {40, 257, 17, 0, 33, 16, 64, 5, 20}; /* enough for one thread */
    static const uint32_t LONG[] = {2100};                              /* more than tiles fit of */
    enum { N_MANY = 5, N_EACH = 9 };

    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        bt_device *dev = device("auto", threads);

        check_ffn(dev, 96, 160, 80, N_MANY, MANY, BT_F32);
        check_ffn(dev, 600, 352, 64, N_MANY, MANY, BT_BF16);
        check_ffn(dev, 64, 48, 64, N_MANY, MANY, BT_BF16); /* of no whole tiles */
        check_ffn(dev, 96, 64, 64, N_MANY, FEW, BT_BF16);
        check_ffn(dev, 200, 544, 1056, N_EACH, EACH, BT_BF16);
        check_ffn(dev, 64, 32, 48, N_EACH, EACH, BT_F32);
        if (bt_device_cpu_table(dev)->mm_tiles != NULL && threads != 1)
            check_ffn(dev, 8192, 32, 33, 1, LONG, BT_F32);
        bt_device_destroy(dev);
    }
}

/* Rows that are gathered and weighed equal rows that lie so, whose results are weighed later. */
static void ffn_gathers_and_weighs_rows(void)
{
    enum { HIDDEN = 96, LD = HIDDEN + 8, DIM = 64, N = 70, ROWS = 700, BLOCKS = 8 };
    static const uint32_t MS[][BLOCKS] = {
        {3,   2,  1,  1,  1,  1,  1,  1 },
        {40,  40, 17, 33, 60, 20, 32, 48},
        {400, 40, 40, 40, 40, 40, 40, 60}  /* the first one in two shares */
    }; /* by parts, in tiles; of the latter one thread makes each block whole */
    static uint32_t row[ROWS];
    static float    weight[ROWS], plain[ROWS * N];
    static bt_bf16  h[ROWS * 2 * DIM], act[ROWS * DIM], got[ROWS * N + 1], want[N];
    static bt_bf16  gathered[ROWS * LD], there[ROWS * LD];
    matrix          x  = random_matrix(ROWS, LD, 1);
    matrix          up = random_matrix(2 * DIM, HIDDEN, 2), down = random_matrix(N, DIM, 3);

    for (uint32_t i = 0; i < ROWS; i++) {
        row[i]    = i * 7919 % ROWS;
        weight[i] = (float)i * 0.37f - 20;
        memcpy(gathered + i * LD, x.values + row[i] * LD, LD * sizeof(*gathered));
    }
    for (size_t c = 0; c < 4 * sizeof(MS) / sizeof(*MS); c++) {
        bt_device                *dev  = device(c % 2 != 0 ? "scalar" : "auto", 1 + c / 2 % 2);
        const bt_cpu_row_kernels *rows = bt_device_cpu_table(dev)->rows;
        bt_linear                *w[2] = {NULL};
        bt_ffn                    lie[BLOCKS], routed[BLOCKS];
        size_t                    at = 0;

        EXPECT_EQ(bt_device_linear_create(dev, 2 * DIM, HIDDEN, copy_row, &up, &w[0]), BT_OK);
        EXPECT_EQ(bt_device_linear_create(dev, N, DIM, copy_row, &down, &w[1]), BT_OK);
        memset(got, 0x5a, sizeof(got));
        for (uint32_t i = 0; i < BLOCKS; at += MS[c / 4][i++]) {
            lie[i]    = (bt_ffn){.gate_up = w[0],
                                 .down    = w[1],
                                 .x       = gathered + at * LD,
                                 .ld_x    = LD,
                                 .y       = plain + at * N,
                                 .ld_y    = N,
                                 .m       = MS[c / 4][i],
                                 .y_dtype = BT_F32};
            routed[i] = lie[i];

            routed[i].x        = x.values;
            routed[i].x_row    = row + at;
            routed[i].gathered = there + at * LD;
            routed[i].weight   = weight + at;
            routed[i].y        = got + at * N;
            EXPECT_EQ(bt_device_ffn(dev, BT_ROLE_PROMPT, 1, &routed[i], h, act),
                      BT_ERR_INVALID_ARG);
            routed[i].y_dtype = BT_BF16;
        }
        EXPECT_EQ(bt_device_ffn(dev, BT_ROLE_PROMPT, BLOCKS, lie, h, act), BT_OK);
        EXPECT_EQ(bt_device_ffn(dev, BT_ROLE_PROMPT, BLOCKS, routed, h, act), BT_OK);
        for (size_t r = 0; r < at; r++) {
            rows->scale_bf16(plain + r * N, N, weight[r], want);
            EXPECT(memcmp(want, got + r * N, sizeof(want)) == 0);
        }
        EXPECT_EQ(got[at * N], 0x5a5a);
        bt_device_linear_destroy(dev, w[0]);
        bt_device_linear_destroy(dev, w[1]);
        bt_device_destroy(dev);
    }
    bt_free(x.values);
    bt_free(up.values);
    bt_free(down.values);
}

static void gemm_with_a_wrong_description_is_refused(void)
{
    bt_device *dev    = device("auto", 1);
    matrix     w      = random_matrix(32, 64, 1);
    bt_linear *linear = NULL;
    bt_gemm    g;

    EXPECT_EQ(bt_device_linear_create(dev, 32, 64, copy_row, &w, &linear), BT_OK);
    g = (bt_gemm){linear, w.values, 63, w.values, 32, 2, BT_BF16, NULL};
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "row strides 63 and 32: expected 64 and 32 or more");
    g.ld_x = 64;
    g.ld_y = 31;
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "row strides 64 and 31");
    g = (bt_gemm){
        linear, w.values, 64, w.values, 32, 2, BT_F32, (float[]){1, 1}
    };
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "weighs rows of fp32");
    EXPECT_EQ(bt_device_linear_create(dev, 0, 64, copy_row, &w, &linear), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "[0, 64]: expected 1 to 2147483647 of both");
    bt_device_linear_destroy(dev, linear);
    bt_device_destroy(dev);
    bt_free(w.values);
}

/* What a device makes of rows is what its row kernels make of each. */
static void row_operations_equal_row_kernels(void)
{
    enum { ROWS = 700, DIM = 130 };
    static bt_bf16            x[ROWS * 2 * DIM], y[ROWS * 2 * DIM], want[2 * DIM];
    static uint32_t           index[ROWS];
    bt_device                *dev  = device("auto", 3);
    const bt_cpu_row_kernels *rows = bt_device_cpu_table(dev)->rows;
    uint64_t                  seed = 5;
    bt_bf16                   weight[DIM];

    for (size_t i = 0; i < ROWS * 2 * DIM; i++)
        x[i] = twin_value(TWIN_ORDINARY, &seed);
    for (size_t i = 0; i < DIM; i++)
        weight[i] = twin_value(TWIN_ORDINARY, &seed);
    for (size_t i = 0; i < ROWS; i++)
        index[i] = twin_random(&seed) % (2 * ROWS);

    EXPECT_EQ(bt_device_rms_norm(dev, ROWS, DIM, x, 2 * DIM, weight, 1e-6f, y, DIM), BT_OK);
    for (size_t r = 0; r < ROWS; r++) {
        rows->rms_norm_row(x + r * 2 * DIM, weight, DIM, 1e-6f, want);
        EXPECT(memcmp(want, y + r * DIM, DIM * sizeof(*y)) == 0);
    }
    EXPECT_EQ(bt_cpu_swiglu(dev, ROWS, DIM, x, y), BT_OK);
    for (size_t r = 0; r < ROWS; r++) {
        rows->swiglu_row(x + r * 2 * DIM, x + r * 2 * DIM + DIM, DIM, want);
        EXPECT(memcmp(want, y + r * DIM, DIM * sizeof(*y)) == 0);
    }
    EXPECT_EQ(bt_device_gather_rows(dev, ROWS, DIM, x, index, y), BT_OK);
    for (size_t r = 0; r < ROWS; r++)
        EXPECT(memcmp(x + index[r] * DIM, y + r * DIM, DIM * sizeof(*y)) == 0);
    memcpy(y, x, sizeof(x));
    EXPECT_EQ(bt_device_add_norm(dev, ROWS, DIM, x, y, weight, 1e-6f, y + ROWS * DIM), BT_OK);
    for (size_t r = 0; r < ROWS; r++) {
        memcpy(want, x + r * DIM, DIM * sizeof(*x));
        rows->add_norm_row(x + r * DIM, want, weight, DIM, 1e-6f, want + DIM);
        EXPECT(memcmp(want, y + r * DIM, DIM * sizeof(*y)) == 0);
        EXPECT(memcmp(want + DIM, y + (ROWS + r) * DIM, DIM * sizeof(*y)) == 0);
    }
    EXPECT_EQ(bt_device_add_norm(dev, 0, DIM, x, y, weight, 1e-6f, y), BT_OK);
    EXPECT_EQ(bt_device_gather_rows(dev, 0, DIM, x, index, y), BT_OK);
    bt_device_destroy(dev);
}

static void memory_goes_there_and_back(void)
{
    bt_device *dev = device("scalar", 1);
    void      *ptr = NULL;
    char       back[6];

    EXPECT_EQ(bt_device_alloc(dev, 6, &ptr), BT_OK);
    EXPECT_EQ((uintptr_t)ptr % 64, 0);
    EXPECT_EQ(bt_device_upload(dev, ptr, "baton", 6), BT_OK);
    EXPECT_EQ(bt_device_download(dev, back, ptr, 6), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    EXPECT_EQ(strcmp(back, "baton"), 0);
    bt_device_free(dev, ptr);
    EXPECT_EQ(bt_device_alloc(dev, SIZE_MAX, &ptr), BT_ERR_NO_MEMORY);
    bt_device_destroy(dev);
    bt_device_destroy(NULL);
}

static void create_chooses_what_the_machine_has(void)
{
    bt_device_cpu_options opt = {.n_threads = 1, .kernels = "mmx"};
    bt_device            *dev = NULL;
    cpu_set_t             before, one;

    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "\"mmx\"");
    EXPECT_HAS(bt_error_text(), "scalar");
    EXPECT_HAS(bt_device_cpu_kernels(), "scalar");

    EXPECT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    dev = device("scalar", 0);
    EXPECT_EQ(bt_cpu_pool_n_threads(bt_device_cpu_pool(dev)), CPU_COUNT(&before));
    EXPECT_EQ(strcmp(dev->arithmetic, "prompt:dp2,generated:dp2"), 0);
    bt_device_destroy(dev);

    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; c++)
        if (CPU_ISSET(c, &before)) CPU_SET(c, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    dev = device("auto", 0);
    EXPECT_EQ(bt_cpu_pool_n_threads(bt_device_cpu_pool(dev)), 1);
    EXPECT_EQ(strcmp(dev->arithmetic, bt_cpu_kernels_find("amx") != NULL
                                          ? "prompt:tile32,generated:tile32"
                                          : "prompt:dp2,generated:dp2"),
              0);
    bt_device_destroy(dev);
    EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

static void create_without_memory_leaves_nothing(void)
{
    bt_device_cpu_options opt    = {.n_threads = 2, .kernels = "auto"};
    bt_device            *dev    = NULL;
    bt_linear            *linear = NULL;
    matrix                w      = random_matrix(40, 50, 1);
    long                  k = BT_SWEEP(bt_device_cpu_create(&opt, &dev), bt_device_destroy(dev));

    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    EXPECT_EQ(k, bt_device_cpu_table(dev)->mm_tiles != NULL ? 6 : 5);
    EXPECT_EQ(BT_SWEEP(bt_device_linear_create(dev, 40, 50, copy_row, &w, &linear),
                       bt_device_linear_destroy(dev, linear)),
              3);
    bt_free(w.values);
    bt_device_destroy(dev);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(gemm_of_a_list_equals_the_twin_in_every_family),
        BT_TEST(gemm_row_depends_on_nothing_beside_it),
        BT_TEST(gemm_of_a_long_x_equals_its_rows_alone),
        BT_TEST(ffn_of_a_list_equals_its_parts),
        BT_TEST(ffn_gathers_and_weighs_rows),
        BT_TEST(gemm_with_a_wrong_description_is_refused),
        BT_TEST(row_operations_equal_row_kernels),
        BT_TEST(memory_goes_there_and_back),
        BT_TEST(create_chooses_what_the_machine_has),
        BT_TEST(create_without_memory_leaves_nothing),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
