/* The grouped product on the CPU, against sums in double. */
#include "core/bf16.h"
#include "device/cpu/device_cpu.h"
#include "device/cuda/gemm.h"
#include "tests/cuda/numbers.h"

typedef struct {
    uint32_t       n, k, n_groups, rows[8]; /* rows of each group */
    bt_cuda_out    out;
    bt_weight_kind kind;
    bool           gathered, ragged; /* ragged: strides that no vector access fits */
} shape;

typedef struct {
    bt_cuda_gemm g;
    uint32_t     total, w_rows, n_scales; /* of a row */
    uint32_t    *row_at, *x_row;
    void        *x, *w[8];
    void        *w_scale[8];
    void        *y;
    size_t       y_bytes;
} problem;

/* Every value but the NaNs. */
static void *random_weights(bt_weight_kind kind, size_t n, uint64_t *rng)
{
    uint8_t *v;

    if (kind == BT_WEIGHT_BF16) return random_bf16(n, 1, rng);
    v = ARRAY(uint8_t, n);
    if (kind == BT_WEIGHT_INT4) {
        for (size_t i = 0; i < n / 2; i++)
            v[i] = (uint8_t)random_bits(rng);
        return v;
    }
    for (size_t i = 0; i < n; i++)
        v[i] = (uint8_t)(random_bits(rng) % 0x7f | (random_bits(rng) & 0x80));
    return v;
}

static problem make(const shape *s, uint64_t *rng)
{
    problem p = {.n_scales = s->kind == BT_WEIGHT_INT4 ? s->k / 32 : (s->k + 127) / 128};

    p.w_rows    = s->out == BT_CUDA_OUT_SWIGLU ? 2 * s->n : s->n;
    p.row_at    = ARRAY(uint32_t, s->n_groups + 1);
    p.row_at[0] = 0;
    for (uint32_t i = 0; i < s->n_groups; i++)
        p.row_at[i + 1] = p.row_at[i] + s->rows[i];
    p.total = p.row_at[s->n_groups];
    p.g     = (bt_cuda_gemm){.n        = s->n,
                             .kind     = s->kind,
                             .k        = s->k,
                             .n_groups = s->n_groups,
                             .out      = s->out,
                             .max_rows = p.total,
                             .row_at   = p.row_at,
                             .ld_x     = s->k + (s->ragged ? 1 : 0),
                             .ld_y     = s->n + (s->ragged ? 3 : 0)};
    p.x     = random_bf16((p.total + 1) * p.g.ld_x, 1, rng);
    p.g.x   = p.x;
    if (s->gathered) {
        p.x_row = ARRAY(uint32_t, p.total);
        for (uint32_t r = 0; r < p.total; r++)
            p.x_row[r] = (r * 7 + 3) % (p.total + 1);
        p.g.x_row = p.x_row;
    }
    for (uint32_t i = 0; i < s->n_groups; i++) {
        p.g.w[i] = p.w[i] = random_weights(s->kind, (size_t)p.w_rows * s->k, rng);
        if (s->kind == BT_WEIGHT_BF16) continue;
        p.g.w_scale[i] = p.w_scale[i] =
            s->kind == BT_WEIGHT_FP8 ? (void *)random_f32((size_t)p.w_rows * p.n_scales, 0.02f, rng)
                                     : random_bf16((size_t)p.w_rows * p.n_scales, 0.2f, rng);
    }
    p.y_bytes = p.total * p.g.ld_y * (s->out == BT_CUDA_OUT_F32 ? 4 : 2);
    p.g.y = p.y = poisoned(p.y_bytes, 1);
    return p;
}

static void drop(problem *p)
{
    for (int i = 0; i < 8; i++)
        free(p->w[i]), free(p->w_scale[i]);
    free(p->row_at), free(p->x_row), free(p->x), free(p->y);
}

/* Element k of weight row c of group g, as bf16. */
static bt_bf16 weight(const shape *s, const problem *p, uint32_t g, uint32_t c, uint32_t k)
{
    size_t i = (size_t)c * s->k + k;

    if (s->kind == BT_WEIGHT_BF16) return ((const bt_bf16 *)p->w[g])[i];
    if (s->kind == BT_WEIGHT_FP8)
        return bt_bf16_from_f32(e4m3(((const uint8_t *)p->w[g])[i]) *
                                ((const float *)p->w_scale[g])[(size_t)c * p->n_scales + k / 128]);
    return bt_bf16_from_f32(
        (float)((((const uint8_t *)p->w[g])[i / 2] >> i % 2 * 4 & 15) - 8) *
        bt_bf16_to_f32(((const bt_bf16 *)p->w_scale[g])[(size_t)c * p->n_scales + k / 32]));
}

/* Tensor cores cut off what they add below the largest term's last bits, always towards zero: that
 * adds up to 1.6e-6 here, where each addition cuts 8 products off at 24 bits. */
static const double SUM_LIMIT = 5e-6;

/* Row r (of y) times weight row c of group g. */
static double dot(const shape *s, const problem *p, uint32_t g, uint32_t r, uint32_t c)
{
    const bt_bf16 *x   = (const bt_bf16 *)p->x + (s->gathered ? p->x_row[r] : r) * p->g.ld_x;
    double         sum = 0;

    for (uint32_t k = 0; k < s->k; k++)
        sum += (double)bt_bf16_to_f32(x[k]) * (double)bt_bf16_to_f32(weight(s, p, g, c, k));
    return sum;
}

static double silu(double z) { return z / (1 + exp(-z)); }

static double got_at(const shape *s, const problem *p, uint32_t r, uint32_t c)
{
    size_t i = r * p->g.ld_y + c;

    return s->out == BT_CUDA_OUT_F32 ? (double)((float *)p->y)[i]
                                     : (double)bt_bf16_to_f32(((bt_bf16 *)p->y)[i]);
}

static void check(const shape *s)
{
    uint64_t   rng  = s->n * 31 + s->k;
    problem    p    = make(s, &rng);
    difference e    = {0, 0};
    double     size = sqrt(s->k);

    EXPECT_EQ(bt_cuda_gemm_run(NULL, &p.g), 0);
    for (uint32_t g = 0; g < s->n_groups; g++)
        for (uint32_t r = p.row_at[g]; r < p.row_at[g + 1]; r++)
            for (uint32_t c = 0; c < s->n; c++) {
                double want = dot(s, &p, g, r, c);

                if (s->out == BT_CUDA_OUT_SWIGLU) want = silu(want) * dot(s, &p, g, r, c + s->n);
                differ(&e, got_at(s, &p, r, c), want, size, r * s->n + c);
            }
    EXPECT_CLOSE(e, s->out == BT_CUDA_OUT_F32 ? SUM_LIMIT : 0.012);
    drop(&p);
}

static void products_of_odd_shapes_are_right(void)
{
    static const shape SHAPES[] = {
        {1,   1,   1, {1},   BT_CUDA_OUT_F32,  BT_WEIGHT_BF16, false, false},
        {128, 64,  1, {16},  BT_CUDA_OUT_F32,  BT_WEIGHT_BF16, false, false},
        {129, 65,  1, {17},  BT_CUDA_OUT_F32,  BT_WEIGHT_BF16, false, false},
        {127, 72,  1, {65},  BT_CUDA_OUT_BF16, BT_WEIGHT_BF16, false, true },
        {40,  200, 1, {129}, BT_CUDA_OUT_F32,  BT_WEIGHT_BF16, false, false},
        {136, 584, 1, {3},   BT_CUDA_OUT_BF16, BT_WEIGHT_BF16, false, false},
    };

    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++)
        check(&SHAPES[i]);
}

static void groups_with_and_without_rows_are_right(void)
{
    static const shape SHAPES[] = {
        {24, 64,  8, {0, 3, 0, 0, 17, 1, 16, 0}, BT_CUDA_OUT_F32,    BT_WEIGHT_BF16, true,  false},
        {66, 96,  5, {70, 0, 1, 64, 65},         BT_CUDA_OUT_SWIGLU, BT_WEIGHT_BF16, true,  false},
        {65, 40,  3, {0, 200, 0},                BT_CUDA_OUT_SWIGLU, BT_WEIGHT_BF16, false, true },
        {70, 129, 2, {300, 2},                   BT_CUDA_OUT_BF16,   BT_WEIGHT_BF16, true,  true },
        {70, 136, 2, {300, 2},                   BT_CUDA_OUT_BF16,   BT_WEIGHT_BF16, true,  false},
    };

    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++)
        check(&SHAPES[i]);
}

/* As with weights that were widened before, to the last bit. */
static void narrow_products_are_right(void)
{
    static const shape SHAPES[] = {
        {130, 256, 2, {5, 9},       BT_CUDA_OUT_F32,    BT_WEIGHT_FP8,  false, false},
        {66,  136, 3, {20, 0, 33},  BT_CUDA_OUT_SWIGLU, BT_WEIGHT_FP8,  true,  false},
        {130, 131, 1, {70},         BT_CUDA_OUT_BF16,   BT_WEIGHT_FP8,  false, true },
        {40,  400, 2, {3, 130},     BT_CUDA_OUT_F32,    BT_WEIGHT_FP8,  false, false},
        {66,  144, 3, {200, 0, 70}, BT_CUDA_OUT_SWIGLU, BT_WEIGHT_FP8,  true,  false},
        {130, 256, 2, {5, 9},       BT_CUDA_OUT_F32,    BT_WEIGHT_INT4, false, false},
        {66,  160, 3, {20, 0, 33},  BT_CUDA_OUT_SWIGLU, BT_WEIGHT_INT4, true,  false},
        {130, 96,  1, {70},         BT_CUDA_OUT_BF16,   BT_WEIGHT_INT4, false, true },
        {40,  416, 2, {3, 130},     BT_CUDA_OUT_F32,    BT_WEIGHT_INT4, false, false},
        {66,  32,  3, {200, 0, 70}, BT_CUDA_OUT_SWIGLU, BT_WEIGHT_INT4, true,  false},
        {257, 224, 2, {300, 40},    BT_CUDA_OUT_BF16,   BT_WEIGHT_INT4, false, false},
    };

    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++) {
        const shape *s   = &SHAPES[i];
        uint64_t     rng = 5;
        problem      p   = make(s, &rng);
        void        *y = poisoned(p.y_bytes, 1), *wide[8] = {NULL};

        check(s);
        EXPECT_EQ(bt_cuda_gemm_run(NULL, &p.g), 0);
        p.g.y    = y;
        p.g.kind = BT_WEIGHT_BF16;
        for (uint32_t g = 0; g < s->n_groups; g++) {
            bt_bf16 *w = ARRAY(bt_bf16, (size_t)p.w_rows * s->k);

            for (size_t e = 0; e < (size_t)p.w_rows * s->k; e++)
                w[e] = weight(s, &p, g, (uint32_t)(e / s->k), (uint32_t)(e % s->k));
            p.g.w[g] = wide[g] = w;
            p.g.w_scale[g]     = NULL;
        }
        EXPECT_EQ(bt_cuda_gemm_run(NULL, &p.g), 0);
        EXPECT_EQ(n_different(p.y, y, p.y_bytes), 0);
        p.g.w_scale[s->n_groups - 1] = p.w_scale[s->n_groups - 1]; /* scales belong to a kind */
        EXPECT(bt_cuda_gemm_run(NULL, &p.g) != 0);
        p.g.w_scale[s->n_groups - 1] = NULL;
        p.g.kind                     = s->kind;
        EXPECT(bt_cuda_gemm_run(NULL, &p.g) != 0);
        for (uint32_t g = 0; g < 8; g++)
            free(wide[g]);
        free(y);
        drop(&p);
    }
}

static void weights_of_4_bits_want_whole_groups(void)
{
    shape    s   = {8, 48, 1, {1}, BT_CUDA_OUT_F32, BT_WEIGHT_INT4, false, false};
    uint64_t rng = 3;
    problem  p   = make(&s, &rng);

    EXPECT(bt_cuda_gemm_run(NULL, &p.g) != 0);
    drop(&p);
}

/* Laws A and B: a row alone has the bits that it has among 15, 63 and 200, whatever the tile. */
static void a_rows_bits_do_not_depend_on_its_neighbours(void)
{
    static const uint32_t COUNTS[] = {2, 15, 16, 17, 64, 65, 200};
    shape                 s = {136, 336, 1, {200}, BT_CUDA_OUT_F32, BT_WEIGHT_BF16, false, false};

    for (int kind = 0; kind < 3; kind++) {
        uint64_t rng = 77;
        problem  p;
        float   *alone;

        s.kind = (bt_weight_kind)kind;
        s.k    = kind == BT_WEIGHT_INT4 ? 352 : 336;
        p      = make(&s, &rng);
        alone  = ARRAY(float, 200 * s.n);
        for (uint32_t r = 0; r < 200; r++) {
            bt_cuda_gemm one = p.g;

            simt_seed(r);
            one.row_at   = NULL;
            one.max_rows = 1;
            one.x        = (const bt_bf16 *)p.x + r * p.g.ld_x;
            one.y        = alone + r * s.n;
            EXPECT_EQ(bt_cuda_gemm_run(NULL, &one), 0);
        }
        for (size_t i = 0; i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++) {
            bt_cuda_gemm some = p.g;

            memset(p.y, 0xff, p.y_bytes);
            some.row_at   = NULL;
            some.max_rows = COUNTS[i];
            EXPECT_EQ(bt_cuda_gemm_run(NULL, &some), 0);
            EXPECT_EQ(n_different(p.y, alone, COUNTS[i] * s.n * sizeof(float)), 0);
        }
        free(alone);
        drop(&p);
    }
}

/* One group leaves most of a GPU idle, MANY of them do not. */
static void narrow_tiles_have_the_bits_of_wide_ones(void)
{
    enum { MANY = 80 };
    static const uint32_t ROWS[] = {5, 40, 70};

    for (int i = 0; i < 6; i++) {
        shape        s   = {72, 208, 1, {ROWS[i / 2]}, BT_CUDA_OUT_SWIGLU, i % 2, false, false};
        uint64_t     rng = 3;
        problem      p   = make(&s, &rng);
        bt_bf16     *y   = poisoned(MANY * p.y_bytes, 1);
        bt_cuda_gemm g   = p.g;

        g.row_at = NULL;
        EXPECT_EQ(bt_cuda_gemm_run(NULL, &g), 0);
        g.n_groups = MANY;
        g.y        = y;
        g.y_group  = p.y_bytes / sizeof(*y);
        for (int group = 1; group < MANY; group++) {
            g.w[group]       = g.w[0];
            g.w_scale[group] = g.w_scale[0];
        }
        EXPECT_EQ(bt_cuda_gemm_run(NULL, &g), 0);
        for (int group = 0; group < MANY; group++)
            EXPECT_EQ(n_different(p.y, y + group * g.y_group, p.y_bytes), 0);
        free(y);
        drop(&p);
    }
}

/* Decode's few rows among many experts: no block without a row, if the rows stand apart; and what
 * is likely changes tiles, not bits. */
static void few_rows_take_few_blocks(void)
{
    enum { GROUPS = 256, N = 40, K = 72, ROWS = 5 };
    static const uint32_t AT[ROWS] = {0, 7, 8, 200, 255}; /* the rows' groups */
    uint64_t              rng      = 4, before;
    bt_bf16     *x = random_bf16(ROWS * K, 1, &rng), *w = random_bf16(ROWS * N * K, 1, &rng);
    float       *y = ARRAY(float, ROWS *N), *alone = ARRAY(float, ROWS *N);
    uint32_t    *row_at = ARRAY(uint32_t, GROUPS + 1);
    bt_cuda_gemm g      = {.n        = N,
                           .k        = K,
                           .n_groups = GROUPS,
                           .out      = BT_CUDA_OUT_F32,
                           .max_rows = ROWS,
                           .row_at   = row_at,
                           .x        = x,
                           .ld_x     = K,
                           .ld_y     = N};

    for (uint32_t i = 0, r = 0; i < GROUPS; i++) {
        row_at[i] = r;
        g.w[i]    = w + (r < ROWS ? r : 0) * N * K;
        r += r < ROWS && AT[r] == i;
        row_at[i + 1] = r;
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        bt_cuda_gemm one = g;

        one.n_groups = 1;
        one.max_rows = 1;
        one.row_at   = NULL;
        one.x        = x + r * K;
        one.w[0]     = w + r * N * K;
        one.y        = alone + r * N;
        EXPECT_EQ(bt_cuda_gemm_run(NULL, &one), 0);
    }
    for (uint32_t likely = 0; likely <= 80; likely += 40) {
        memset(y, 0xff, ROWS * N * sizeof(*y));
        g.y           = y;
        g.likely_rows = likely;
        before        = simt_n_blocks();
        EXPECT_EQ(bt_cuda_gemm_run(NULL, &g), 0);
        EXPECT(simt_n_blocks() - before <= ROWS);
        EXPECT_EQ(n_different(y, alone, ROWS * N * sizeof(*y)), 0);
    }
    free(x), free(w), free(y), free(alone), free(row_at);
}

/* Fewer rows than there may be, and not as many to a group as is likely: in the second shape blocks
 * go on to a second and third tile, whatever the tile's height. */
static void likely_rows_change_no_bits(void)
{
    static const struct {
        uint32_t n_groups, max_rows, rows[5];
    } OF[] = {
        {5, 400, {0, 200, 0, 1, 17}},
        {2, 700, {600, 1}          },
    };
    static const uint32_t LIKELY[] = {1, 40, 80};

    for (int at = 0; at < 6; at++) {
        shape    s   = {.n        = 72,
                        .k        = 224,
                        .n_groups = OF[at / 3].n_groups,
                        .out      = BT_CUDA_OUT_SWIGLU,
                        .kind     = (bt_weight_kind)(at % 3),
                        .gathered = true};
        uint64_t rng = 6;
        problem  p;
        void    *y;

        memcpy(s.rows, OF[at / 3].rows, sizeof(OF[0].rows));
        p            = make(&s, &rng);
        y            = poisoned(p.y_bytes, 1);
        p.g.max_rows = OF[at / 3].max_rows;
        EXPECT_EQ(bt_cuda_gemm_run(NULL, &p.g), 0);
        p.g.y = y;
        for (int i = 0; i < 3; i++) {
            memset(y, 0xff, p.y_bytes);
            p.g.likely_rows = LIKELY[i];
            EXPECT_EQ(bt_cuda_gemm_run(NULL, &p.g), 0);
            EXPECT_EQ(n_different(p.y, y, p.y_bytes), 0);
        }
        free(y);
        drop(&p);
    }
}

/* The heads of a layer: one x and one y with a stride between the groups.  Of a stride of 20 each
 * second head begins where no wide copy may. */
static void strided_groups_are_heads(void)
{
    enum { HEADS = 4, ROWS = 5, N = 24, K = 16 };
    uint64_t rng = 9;
    bt_bf16 *w   = random_bf16(HEADS * N * K, 1, &rng);
    float   *y   = ARRAY(float, ROWS *HEADS *N);

    for (uint32_t stride = K; stride <= K + 4; stride += 4) {
        bt_bf16     *x = random_bf16(ROWS * HEADS * stride, 1, &rng);
        bt_cuda_gemm g = {.n        = N,
                          .k        = K,
                          .n_groups = HEADS,
                          .out      = BT_CUDA_OUT_F32,
                          .max_rows = ROWS,
                          .x_group  = stride,
                          .y_group  = N,
                          .x        = x,
                          .ld_x     = HEADS * stride,
                          .y        = y,
                          .ld_y     = HEADS * N};
        difference   e = {0, 0};

        for (int h = 0; h < HEADS; h++)
            g.w[h] = w + h * N * K;
        EXPECT_EQ(bt_cuda_gemm_run(NULL, &g), 0);
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t h = 0; h < HEADS; h++)
                for (uint32_t c = 0; c < N; c++) {
                    double want = 0;

                    for (uint32_t k = 0; k < K; k++)
                        want += (double)bt_bf16_to_f32(x[(r * HEADS + h) * stride + k]) *
                                (double)bt_bf16_to_f32(w[(h * N + c) * K + k]);
                    differ(&e, y[(r * HEADS + h) * N + c], want, 4, r);
                }
        EXPECT_CLOSE(e, SUM_LIMIT);
        free(x);
    }
    free(w), free(y);
}

static void no_rows_launch_nothing(void)
{
    bt_cuda_gemm g      = {.n = 8, .k = 8, .n_groups = 1};
    uint64_t     before = simt_n_launches();

    EXPECT_EQ(bt_cuda_gemm_run(NULL, &g), 0);
    EXPECT_EQ(simt_n_launches() - before, 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(products_of_odd_shapes_are_right),
        BT_TEST(groups_with_and_without_rows_are_right),
        BT_TEST(narrow_products_are_right),
        BT_TEST(weights_of_4_bits_want_whole_groups),
        BT_TEST(a_rows_bits_do_not_depend_on_its_neighbours),
        BT_TEST(narrow_tiles_have_the_bits_of_wide_ones),
        BT_TEST(few_rows_take_few_blocks),
        BT_TEST(likely_rows_change_no_bits),
        BT_TEST(strided_groups_are_heads),
        BT_TEST(no_rows_launch_nothing),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
