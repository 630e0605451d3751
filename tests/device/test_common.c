/* What all back ends have in common: the checksum of what ranks send each other, arrays that are
 * accounted for, products that are weighed, what a list of feed-forward blocks may be. */
#include "device/cpu/device_cpu.h"
#include "tests/support/test.h"

enum { MOST = 29, WORD = 8, SEED = 5 };

static bt_device *g_dev;

static void fill(uint8_t data[MOST + 1])
{
    for (size_t i = 0; i <= MOST; i++)
        data[i] = (uint8_t)(i * 37 + 1);
}

static void checksum_tells_every_bit(void)
{
    uint8_t data[MOST + 1];

    fill(data);
    for (size_t bytes = 0; bytes <= MOST; bytes++) {
        uint64_t sum = bt_checksum(data, bytes, SEED);

        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            EXPECT(bt_checksum(data, bytes, SEED) != sum);
            data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        data[bytes] ^= 1; /* behind it */
        EXPECT(bt_checksum(data, bytes, SEED) == sum);
        data[bytes] ^= 1;
    }
}

static void checksum_tells_places_lengths_and_seeds(void)
{
    uint8_t  data[MOST + 1], swapped[MOST + 1], zeros[MOST] = {0};
    uint64_t sum;

    fill(data);
    sum = bt_checksum(data, MOST, SEED);
    memcpy(swapped, data + WORD, WORD);
    memcpy(swapped + WORD, data, WORD);
    memcpy(swapped + 2 * WORD, data + 2 * WORD, MOST - 2 * WORD);
    EXPECT(bt_checksum(swapped, MOST, SEED) != sum);
    EXPECT(bt_checksum(data, MOST, SEED + 1) != sum);
    for (size_t bytes = 1; bytes <= MOST; bytes++)
        EXPECT(bt_checksum(zeros, bytes, SEED) != bt_checksum(zeros, bytes - 1, SEED));
}

static void array_takes_what_its_elements_are(void)
{
    size_t bytes = 3;
    float *array = NULL;

    EXPECT_EQ(bt_device_alloc_array(g_dev, 0, sizeof(*array), &bytes, &array), BT_OK);
    EXPECT(array == NULL && bytes == 3);
    EXPECT_EQ(bt_device_alloc_array(g_dev, SIZE_MAX / 4 + 2, sizeof(*array), &bytes, &array),
              BT_ERR_NO_MEMORY); /* 4 bytes, where that overflows */
    EXPECT(array == NULL && bytes == 3);
    EXPECT_EQ(bt_device_alloc_array(g_dev, 10, sizeof(*array), &bytes, &array), BT_OK);
    EXPECT(array != NULL && bytes == 43);
    bt_device_free(g_dev, array);
}

/* ---- products ---- */

static bt_device *device(const char *kernels, uint32_t n_threads)
{
    bt_device_cpu_options opt = {.n_threads = n_threads, .kernels = kernels};
    bt_device            *dev = NULL;

    NEED(bt_device_cpu_create(&opt, &dev) == BT_OK);
    return dev;
}

static void make_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    for (uint32_t i = 0; i < *(const uint32_t *)ctx; i++)
        row[i] = bt_bf16_from_f32((float)((n * 31 + i * 17) % 23) / 64.0f - 0.15f);
}

/* Rows that are weighed, of more chunks than one, and of more than can be prepared at once. */
static void gemm_weighs_each_row_by_its_own(void)
{
    enum { M = 300 };
    static const uint32_t SHAPES[][2] = {
        {64, 96   },
        {2,  65536}
    };
    static const char *const KERNELS[] = {"auto", "scalar"};
    static float             plain[M * 64], weight[M];
    static bt_bf16           got[M * 64];

    for (uint32_t r = 0; r < M; r++)
        weight[r] = 0.37f * (float)r - 20;
    for (int c = 0; c < 4; c++) {
        uint32_t   n = SHAPES[c / 2][0], k = SHAPES[c / 2][1], wrong = 0;
        bt_device *dev = device(KERNELS[c % 2], 2);
        bt_linear *w   = NULL;
        bt_bf16   *x   = malloc((size_t)M * k * sizeof(*x));
        bt_gemm    g;

        NEED(x != NULL && bt_device_linear_create(dev, n, k, make_row, &k, &w) == BT_OK);
        for (uint32_t r = 0; r < M; r++)
            make_row(&k, r + 5, x + (size_t)r * k);
        g = (bt_gemm){w, x, k, plain, n, M, BT_F32, NULL};
        EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g), BT_OK);
        g = (bt_gemm){w, x, k, got, n, M, BT_BF16, weight};
        EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g), BT_OK);
        for (uint32_t i = 0; i < M * n; i++)
            wrong += got[i] != bt_bf16_from_f32(plain[i] * weight[i / n]);
        EXPECT_EQ(wrong, 0);
        free(x);
        bt_device_linear_destroy(dev, w);
        bt_device_destroy(dev);
    }
}

/* Where a product leaves no numbers, the next one finds its own. */
static void gemm_sees_nothing_of_the_one_before(void)
{
    enum { M = 40, N = 33, K = 40 };
    static bt_bf16 x[M * K], nan[M * 2 * K];
    static float   want[M * N], got[M * N], none[M * N];
    uint32_t       k[] = {K, 2 * K};
    bt_linear     *w[] = {NULL, NULL};
    bt_device     *dev = device("auto", 2);
    bt_gemm        g[] = {
               {NULL, x,   K,     want, N, M, BT_F32, NULL},
               {NULL, nan, 2 * K, none, N, M, BT_F32, NULL}
    };

    for (int i = 0; i < 2; i++) {
        NEED(bt_device_linear_create(dev, N, k[i], make_row, &k[i], &w[i]) == BT_OK);
        g[i].w = w[i];
    }
    for (uint32_t r = 0; r < M; r++)
        make_row(&k[0], r, x + (size_t)r * K);
    memset(nan, 0xff, sizeof(nan));
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g[0]), BT_OK);
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g[1]), BT_OK);
    g[0].y = got;
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 1, &g[0]), BT_OK);
    EXPECT(got[0] == got[0] && memcmp(want, got, sizeof(want)) == 0);
    bt_device_linear_destroy(dev, w[1]);
    bt_device_linear_destroy(dev, w[0]);
    bt_device_destroy(dev);
}

/* ---- feed-forward blocks ---- */

enum { HIDDEN = 64, DIM = 32, ROWS = 12 };

static bt_linear *make(bt_device *dev, uint32_t n, uint32_t k)
{
    bt_linear *linear = NULL;

    NEED(bt_device_linear_create(dev, n, k, make_row, &k, &linear) == BT_OK);
    return linear;
}

static void expect_refused(uint32_t n_ffns, const bt_ffn *ffns, const char *says)
{
    static bt_bf16 h[ROWS * 4 * DIM], act[ROWS * 2 * DIM];

    EXPECT_EQ(bt_device_ffn(g_dev, BT_ROLE_PROMPT, n_ffns, ffns, h, act), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), says);
}

static void ffn_of_shapes_that_do_not_fit_is_refused(void)
{
    static bt_bf16 x[ROWS * HIDDEN], y[2 * ROWS * HIDDEN];
    static float   weight[ROWS];
    const uint32_t row[] = {1, 0};
    bt_linear     *up = make(g_dev, 2 * DIM, HIDDEN), *down = make(g_dev, HIDDEN, DIM),
              *square = make(g_dev, HIDDEN, HIDDEN), *wide = make(g_dev, 2 * HIDDEN, HIDDEN);
    const bt_ffn good = {.gate_up = up,
                         .down    = down,
                         .x       = x,
                         .ld_x    = HIDDEN,
                         .y       = y,
                         .ld_y    = HIDDEN,
                         .m       = 2,
                         .y_dtype = BT_BF16};
    bt_ffn       f[2] = {good, good};

    f[0].gate_up = wide;
    expect_refused(1, f, "gate and up of 128: expected 32, 64");
    f[0]         = good;
    f[1].gate_up = wide;
    f[1].down    = square;
    expect_refused(2, f, "block 1 of 2: width 64, gate and up of 128: expected 32, 64");
    f[0].ld_x = HIDDEN - 1;
    expect_refused(1, f, "block 0 of 1, [64, 32, 64]: row strides 63 and 64");
    f[0]      = good;
    f[0].ld_y = HIDDEN - 1;
    expect_refused(1, f, "row strides 64 and 63: expected 64 and 64 or more");
    f[0]         = good;
    f[0].y_dtype = BT_F32;
    f[0].weight  = weight;
    expect_refused(1, f, "weights need results of bf16");
    f[0]       = good;
    f[0].x_row = row;
    expect_refused(1, f, "rows to gather need a place");
    f[0]          = good;
    f[0].gathered = x;
    expect_refused(1, f, "and only they");
    bt_device_linear_destroy(g_dev, wide);
    bt_device_linear_destroy(g_dev, square);
    bt_device_linear_destroy(g_dev, down);
    bt_device_linear_destroy(g_dev, up);
}

/* Blocks whose lists of rows, or whose places for them, do not follow each other. */
static void ffn_gathers_from_and_to_anywhere(void)
{
    enum { BLOCKS = 4, EACH = 2 };
    static const uint32_t rows[]       = {7, 0, 5, 5, 11, 3, 1, 9, 2, 8};
    static const uint32_t from[BLOCKS] = {0, 2, 6, 8}, to[BLOCKS] = {0, 2, 4, 8};
    static bt_bf16        x[ROWS * HIDDEN], gathered[ROWS * HIDDEN];
    static bt_bf16        y[BLOCKS][EACH * HIDDEN], want[EACH * HIDDEN];
    static bt_bf16        h[BLOCKS * EACH * 2 * DIM], act[BLOCKS * EACH * DIM];
    bt_linear            *up = make(g_dev, 2 * DIM, HIDDEN), *down = make(g_dev, HIDDEN, DIM);
    bt_ffn                f[BLOCKS];
    uint32_t              k = HIDDEN;

    for (uint32_t r = 0; r < ROWS; r++)
        make_row(&k, r, x + (size_t)r * HIDDEN);
    for (uint32_t i = 0; i < BLOCKS; i++)
        f[i] = (bt_ffn){.gate_up  = up,
                        .down     = down,
                        .x        = x,
                        .ld_x     = HIDDEN,
                        .y        = y[i],
                        .ld_y     = HIDDEN,
                        .m        = EACH,
                        .y_dtype  = BT_BF16,
                        .x_row    = rows + from[i],
                        .gathered = gathered + (size_t)to[i] * HIDDEN};
    EXPECT_EQ(bt_device_ffn(g_dev, BT_ROLE_GENERATED, BLOCKS, f, h, act), BT_OK);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        f[i].y = want;
        EXPECT_EQ(bt_device_ffn(g_dev, BT_ROLE_GENERATED, 1, &f[i], h, act), BT_OK);
        EXPECT(memcmp(want, y[i], sizeof(want)) == 0);
    }
    bt_device_linear_destroy(g_dev, down);
    bt_device_linear_destroy(g_dev, up);
}

/* More blocks than go together in one way or another, on few threads and on many. */
static void ffn_of_many_blocks_equals_its_parts(void)
{
    enum { MANY = 600, EACH = 17, ELEMS = MANY * EACH * HIDDEN };
    static const uint32_t CASES[][2] = {
        {300,  2 },
        {MANY, 2 },
        {MANY, 80}
    }; /* blocks, threads */
    static bt_bf16 x[ELEMS], y[2][ELEMS], h[ELEMS], act[ELEMS / 2];
    static bt_ffn  f[2][MANY];
    uint32_t       k = HIDDEN;

    for (uint32_t r = 0; r < MANY * EACH; r++)
        make_row(&k, r, x + (size_t)r * HIDDEN);
    for (size_t c = 0; c < sizeof(CASES) / sizeof(CASES[0]); c++) {
        uint32_t   n   = CASES[c][0];
        bt_device *dev = device("auto", CASES[c][1]);
        bt_linear *up = make(dev, 2 * DIM, HIDDEN), *down = make(dev, HIDDEN, DIM);

        for (uint32_t i = 0; i < 2 * n; i++)
            f[i / n][i % n] = (bt_ffn){.gate_up = up,
                                       .down    = down,
                                       .x       = x + (size_t)(i % n) * EACH * HIDDEN,
                                       .ld_x    = HIDDEN,
                                       .y       = y[i / n] + (size_t)(i % n) * EACH * HIDDEN,
                                       .ld_y    = HIDDEN,
                                       .m       = EACH,
                                       .y_dtype = BT_BF16};
        memset(y, 0, sizeof(y));
        EXPECT_EQ(bt_device_ffn(dev, BT_ROLE_PROMPT, n, f[0], h, act), BT_OK);
        EXPECT_EQ(bt_cpu_ffn_by_parts(dev, BT_ROLE_PROMPT, n, f[1], h, act), BT_OK);
        EXPECT(memcmp(y[0], y[1], sizeof(y[0])) == 0);
        bt_device_linear_destroy(dev, down);
        bt_device_linear_destroy(dev, up);
        bt_device_destroy(dev);
    }
}

/* A block of more rows than can be prepared at once. */
static void ffn_of_a_long_block_gathers_and_weighs(void)
{
    enum { M = 300, LONG = 65536, N = 2 };
    static float    plain[M * N], weight[M];
    static uint32_t row[M];
    static bt_bf16  got[M * N], h[M * 2 * DIM], act[M * DIM];
    size_t          bytes = (size_t)M * LONG * sizeof(bt_bf16);
    bt_bf16        *x = malloc(bytes), *gathered = malloc(bytes);
    bt_linear      *up = make(g_dev, 2 * DIM, LONG), *down = make(g_dev, N, DIM);
    uint32_t        k = LONG, wrong = 0;
    bt_ffn          f = {.gate_up = up,
                         .down    = down,
                         .x       = x,
                         .ld_x    = LONG,
                         .y       = plain,
                         .ld_y    = N,
                         .m       = M,
                         .y_dtype = BT_F32};

    NEED(x != NULL && gathered != NULL);
    for (uint32_t r = 0; r < M; r++) {
        make_row(&k, r, x + (size_t)r * LONG);
        row[r]    = M - 1 - r;
        weight[r] = 0.37f * (float)r - 20;
    }
    EXPECT_EQ(bt_device_ffn(g_dev, BT_ROLE_PROMPT, 1, &f, h, act), BT_OK);
    f.x_row    = row;
    f.gathered = gathered;
    f.weight   = weight;
    f.y        = got;
    f.y_dtype  = BT_BF16;
    EXPECT_EQ(bt_device_ffn(g_dev, BT_ROLE_PROMPT, 1, &f, h, act), BT_OK);
    for (uint32_t i = 0; i < M * N; i++)
        wrong += got[i] != bt_bf16_from_f32(plain[row[i / N] * N + i % N] * weight[i / N]);
    EXPECT_EQ(wrong, 0);
    bt_device_linear_destroy(g_dev, down);
    bt_device_linear_destroy(g_dev, up);
    free(gathered);
    free(x);
}

static const bt_test TESTS[] = {
    BT_TEST(checksum_tells_every_bit),
    BT_TEST(checksum_tells_places_lengths_and_seeds),
    BT_TEST(array_takes_what_its_elements_are),
    BT_TEST(gemm_weighs_each_row_by_its_own),
    BT_TEST(gemm_sees_nothing_of_the_one_before),
    BT_TEST(ffn_of_shapes_that_do_not_fit_is_refused),
    BT_TEST(ffn_gathers_from_and_to_anywhere),
    BT_TEST(ffn_of_many_blocks_equals_its_parts),
    BT_TEST(ffn_of_a_long_block_gathers_and_weighs),
};

int main(int argc, char **argv)
{
    int rc;

    g_dev = device("auto", 2);
    rc    = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    bt_device_destroy(g_dev);
    return rc;
}
