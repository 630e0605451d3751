/* Weights in 12, 8 and 4 bits on the CPU: products and blocks have the bits of the same weights
 * widened beforehand, in every family; scales that cannot be are refused. */
#include "core/e4m3.h"
#include "device/cpu/linear.h"
#include "tests/device/cpu_device.h"

typedef struct {
    uint32_t k, odd; /* row whose scales no other has; or beyond all */
    float    wrong;  /* a scale of its own */
} narrow_matrix;

static void narrow_row(void *ctx, uint32_t n, uint8_t *row, float *scale)
{
    const narrow_matrix *m = ctx;

    for (uint32_t i = 0; i < m->k; i++)
        row[i] = (uint8_t)((n * 37 + i * 11) % 0x7f | (n + i) % 2 << 7); /* no NaN */
    for (uint32_t i = 0; i < m->k; i += BT_FP8_BLOCK)
        scale[i / BT_FP8_BLOCK] = 0x1p-7f * (float)(1 + (n / 16 + i) % 7);
    if (n == m->odd) scale[0] = m->wrong;
}

static void widened_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const narrow_matrix *m = ctx;
    uint8_t             *v = bt_calloc(m->k, 1);
    float                scale[32];

    narrow_row(ctx, n, v, scale);
    for (uint32_t i = 0; i < m->k; i++)
        row[i] = bt_bf16_from_f32(bt_e4m3_to_f32(v[i]) * scale[i / BT_FP8_BLOCK]);
    bt_free(v);
}

static void int4_row(void *ctx, uint32_t n, uint32_t *row, bt_bf16 *scale)
{
    const narrow_matrix *m = ctx;

    for (uint32_t i = 0; i < m->k / BT_INT4_IN_WORD; i++)
        row[i] = (n + 3) * 2654435761u + i * 40503u * (n % 5 + 1);
    for (uint32_t i = 0; i < m->k / BT_INT4_GROUP; i++)
        scale[i] = bt_bf16_from_f32(0x1p-5f * (1 + (float)((n + i) % 97) / 97));
    if (n == m->odd) scale[m->k / BT_INT4_GROUP - 1] = bt_bf16_from_f32(m->wrong);
}

static void widened_int4_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const narrow_matrix *m = ctx;
    uint32_t            *v = bt_calloc(m->k / BT_INT4_IN_WORD, sizeof(*v));
    bt_bf16              scale[32];

    int4_row(ctx, n, v, scale);
    for (uint32_t i = 0; i < m->k; i++)
        row[i] = bt_bf16_from_f32((float)((int)(v[i / 8] >> i % 8 * 4 & 15) - 8) *
                                  bt_bf16_to_f32(scale[i / BT_INT4_GROUP]));
    bt_free(v);
}

enum { NARROW_N = 330, NARROW_K = 320, NARROW_DIM = 160, NARROW_M = 300, MAX_FFNS = 9 };

/* The same matrix twice, the first of them narrow. */
static void make_narrow(bt_device *dev, bt_weight_kind kind, uint32_t n, uint32_t k,
                        bt_linear *w[2])
{
    narrow_matrix    m   = {k, UINT32_MAX, 0};
    bool             fp8 = kind == BT_WEIGHT_FP8, int4 = kind == BT_WEIGHT_INT4;
    bt_linear_row_fn wide = fp8 ? widened_row : widened_int4_row;
    bt_cpu_rows      rows = {kind, wide, narrow_row, int4_row, &m};

    EXPECT_EQ(bt_cpu_linear_create(dev, n, k, rows, &w[0]), BT_OK);
    EXPECT_EQ(bt_device_linear_create(dev, n, k, wide, &m, &w[1]), BT_OK);
    EXPECT(w[0]->kind == kind && w[1]->kind == BT_WEIGHT_BF16);
    EXPECT_EQ(bt_linear_bytes(w[0]),
              int4  ? bt_cpu_pad(n, 16) * (k / 2 + k / 32 * 2)
              : fp8 ? bt_cpu_packed_elems(n, k) + (n + 15) / 16 * ((k + 127) / 128) * sizeof(float)
                    : bt_cpu_packed_elems(n, k) / 2 * 3 +
                          (n + 15) / 16 * (16 + (bt_cpu_n_rare(k) + 1) * sizeof(bt_cpu_rare)));
}

/* Both in one call, side by side. */
static void check_narrow_gemm(bt_device *dev, bt_linear *const w[2], const bt_bf16 *x, uint32_t m)
{
    static float y[2][NARROW_M * 2 * NARROW_DIM];
    uint32_t     n = bt_linear_n(w[0]), wrong = 0;
    bt_gemm      g[2];

    for (int j = 0; j < 2; j++)
        g[j] = (bt_gemm){w[j], x, NARROW_K, y[j], n, m, BT_F32, NULL};
    EXPECT_EQ(bt_device_gemm(dev, BT_ROLE_PROMPT, 2, g), BT_OK);
    for (uint32_t i = 0; i < m * n; i++)
        wrong += !twin_same(y[0][i], y[1][i]);
    EXPECT_EQ(wrong, 0);
}

static void check_narrow_ffn(bt_device *dev, bt_linear *const up[2], bt_linear *const down[2],
                             const bt_bf16 *x, uint32_t n_ffns, const uint32_t *ms)
{
    static float weight[NARROW_M];
    size_t       rows = (size_t)n_ffns * NARROW_M, wrong = 0;
    bt_bf16 *h = bt_calloc(rows * 2 * NARROW_DIM, 2), *act = bt_calloc(rows * NARROW_DIM, 2), *y[2];

    for (uint32_t i = 0; i < NARROW_M; i++)
        weight[i] = 0.01f * (float)i - 1;
    for (int j = 0; j < 2; j++) {
        bt_ffn ffns[MAX_FFNS];

        y[j] = bt_calloc(rows * NARROW_N, sizeof(bt_bf16));
        for (uint32_t i = 0; i < n_ffns; i++)
            ffns[i] = (bt_ffn){.gate_up = up[j],
                               .down    = down[j],
                               .x       = x,
                               .ld_x    = NARROW_K,
                               .y       = y[j] + (size_t)i * NARROW_M * NARROW_N,
                               .ld_y    = NARROW_N,
                               .m       = ms[i],
                               .y_dtype = BT_BF16,
                               .weight  = i % 2 == 0 ? weight : NULL};
        EXPECT_EQ(bt_device_ffn(dev, BT_ROLE_PROMPT, n_ffns, ffns, h, act), BT_OK);
    }
    for (size_t i = 0; i < rows * NARROW_N; i++)
        wrong += !twin_same_bf16(y[0][i], y[1][i]);
    EXPECT_EQ(wrong, 0);
    for (int j = 0; j < 2; j++)
        bt_free(y[j]);
    bt_free(h);
    bt_free(act);
}

/* With the bits of the wider ones in products and blocks, whichever kernels their rows take. */
static void check_narrow_kind(bt_weight_kind kind)
{
    static const char *const FAMILIES[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx", "neon"};
    static const uint32_t    MS[MAX_FFNS] = {1, 3, 40, 300, 17, 33, 0, 64, 20};
    matrix                   x            = random_matrix(NARROW_M, NARROW_K, 3);

    for (size_t f = 0; f < sizeof(FAMILIES) / sizeof(*FAMILIES); f++) {
        bt_linear *up[2] = {NULL}, *down[2] = {NULL};
        bt_device *dev;

        if (bt_cpu_kernels_find(FAMILIES[f]) == NULL) continue;
        dev = device(FAMILIES[f], 1);
        make_narrow(dev, kind, 2 * NARROW_DIM, NARROW_K, up);
        make_narrow(dev, kind, NARROW_N, NARROW_DIM, down);
        for (uint32_t i = 0; i < MAX_FFNS; i++)
            check_narrow_gemm(dev, up, x.values, MS[i]);
        check_narrow_ffn(dev, up, down, x.values, 4, MS);
        check_narrow_ffn(dev, up, down, x.values, MAX_FFNS, MS); /* enough for one thread each */
        for (int j = 0; j < 2; j++) {
            bt_device_linear_destroy(dev, up[j]);
            bt_device_linear_destroy(dev, down[j]);
        }
        bt_device_destroy(dev);
    }
    bt_free(x.values);
}

static void weights_in_12_bits_give_the_same_bits(void) { check_narrow_kind(BT_WEIGHT_BF12); }
static void weights_in_8_bits_give_the_same_bits(void) { check_narrow_kind(BT_WEIGHT_FP8); }
static void weights_in_4_bits_give_the_same_bits(void) { check_narrow_kind(BT_WEIGHT_INT4); }

/* Of two blocks of columns, the second with two rare weights, in whatever order, or no end. */
static void rare_weights_without_end_are_no_matrix(void)
{
    enum { N = 17, K = 64 };
    size_t   side   = bt_cpu_side_bytes(BT_WEIGHT_BF12, K);
    char    *packed = bt_calloc_aligned(bt_cpu_linear_bytes(N, K, BT_WEIGHT_BF12), 1);
    char    *sides  = packed + bt_cpu_weight_bytes(BT_WEIGHT_BF12, bt_cpu_packed_elems(N, K));
    uint32_t most   = bt_cpu_n_rare(K);
    bt_cpu_bf12_side *first = (void *)sides, *second = (void *)(sides + side);

    first->rare[0].at  = UINT32_MAX;
    second->rare[0].at = 7;
    second->rare[1].at = 8;
    EXPECT(!bt_cpu_linear_is_whole(N, K, BT_WEIGHT_BF12, packed));
    second->rare[2].at = UINT32_MAX;
    EXPECT(bt_cpu_linear_is_whole(N, K, BT_WEIGHT_BF12, packed));
    second->rare[1].at = 7;
    EXPECT(!bt_cpu_linear_is_whole(N, K, BT_WEIGHT_BF12, packed));
    for (uint32_t i = 0; i < most; i++)
        second->rare[i].at = i;
    second->rare[most].at = UINT32_MAX;
    EXPECT(bt_cpu_linear_is_whole(N, K, BT_WEIGHT_BF12, packed));
    second->rare[most].at = most;
    EXPECT(!bt_cpu_linear_is_whole(N, K, BT_WEIGHT_BF12, packed));
    first->high[0] = BT_CPU_BF12_NONE;
    EXPECT(!bt_cpu_linear_is_whole(N, K, BT_WEIGHT_BF12, packed));
    EXPECT(bt_cpu_linear_is_whole(N, K, BT_WEIGHT_BF16, packed));
    bt_free(packed);
}

static void weights_in_4_bits_that_are_wrong_are_refused(void)
{
    static const float WRONG[] = {INFINITY, -INFINITY, NAN, 0x1p-127f, -0x1p-133f};
    bt_device         *dev     = device("auto", 2);
    bt_linear         *linear  = NULL;
    narrow_matrix      m       = {40, UINT32_MAX, 0};

    EXPECT_EQ(bt_device_linear_create_int4(dev, 33, m.k, int4_row, &m, &linear),
              BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "[33, 40] of 4 bits: expected a multiple of 32 columns");
    m.k = 96;
    for (size_t i = 0; i < sizeof(WRONG) / sizeof(*WRONG); i++) {
        m.odd   = i % 2 == 0 ? 17 : 32;
        m.wrong = WRONG[i];
        EXPECT_EQ(bt_device_linear_create_int4(dev, 33, m.k, int4_row, &m, &linear),
                  BT_ERR_INVALID_ARG);
        EXPECT_HAS(bt_error_text(),
                   "[33, 96] of 4 bits: expected finite scales that are not subnormal");
    }
    EXPECT(linear == NULL);
    m.wrong = -0.0f;
    EXPECT_EQ(bt_device_linear_create_int4(dev, 33, m.k, int4_row, &m, &linear), BT_OK);
    bt_device_linear_destroy(dev, linear);
    bt_device_destroy(dev);
}

static void weights_in_8_bits_with_wrong_scales_are_refused(void)
{
    static const narrow_matrix WRONG[] = {
        {40, 17, 3.0f    }, /* one of sixteen */
        {40, 0,  3.0f    }, /* the first of them */
        {40, 32, INFINITY}, /* alone */
        {40, 32, NAN     },
        {40, 32, -1.0f   },
        {40, 32, -0.0f   }
    };
    bt_device *dev = device("auto", 2);

    for (size_t i = 0; i < sizeof(WRONG) / sizeof(*WRONG); i++) {
        narrow_matrix m      = WRONG[i];
        bt_linear    *linear = NULL;

        EXPECT_EQ(bt_device_linear_create_fp8(dev, 33, m.k, narrow_row, &m, &linear),
                  BT_ERR_INVALID_ARG);
        EXPECT_HAS(bt_error_text(), "[33, 40] of e4m3: expected finite scales of 0 or more");
        EXPECT(linear == NULL);
    }
    bt_device_destroy(dev);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(weights_in_12_bits_give_the_same_bits),
        BT_TEST(weights_in_8_bits_give_the_same_bits),
        BT_TEST(weights_in_8_bits_with_wrong_scales_are_refused),
        BT_TEST(rare_weights_without_end_are_no_matrix),
        BT_TEST(weights_in_4_bits_give_the_same_bits),
        BT_TEST(weights_in_4_bits_that_are_wrong_are_refused),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
