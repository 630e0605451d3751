/* The absorbed form on the CPU, against sums in double; and what its bits may depend on. */
#include "device/cpu/device_cpu.h"
#include "tests/cuda/attention_world.h"

static const bt_cuda_dims SMALL = {3, 24, 8, 6, 10, 0.3f}; /* no vector access fits */
static const bt_cuda_dims EVEN  = {3, 24, 8, 8, 16, 0.3f};
static const bt_cuda_dims WIDE  = {16, 512, 128, 64, 128, 0.0722f};
static const bt_cuda_dims MID   = {5, 136, 16, 32, 16, 0.1f};

typedef struct {
    bt_bf16       *ql, *q, *out;
    float         *part_o, *part_ms;
    bt_cuda_decode d;
} call;

static call make_call(world *w, uint32_t split_pages)
{
    size_t lanes = (size_t)w->n_rows * w->dims.n_heads, c = w->dims.kv_lora;
    call   k = {.ql  = random_bf16(lanes * c, 2, &w->rng),
                .q   = random_bf16(lanes * (w->dims.nope + w->dims.rope), 2, &w->rng),
                .out = ARRAY(bt_bf16, lanes * c)};

    k.d        = (bt_cuda_decode){.dims        = w->dims,
                                  .pages       = w->pages,
                                  .spans       = w->spans,
                                  .n_spans     = w->n_spans,
                                  .max_rows    = w->max_rows,
                                  .max_parts   = (w->max_end - 1) / (split_pages * PAGE) + 1,
                                  .split_pages = split_pages,
                                  .ql          = k.ql,
                                  .q           = k.q,
                                  .out         = k.out};
    k.d.part_o = k.part_o = ARRAY(float, lanes *k.d.max_parts *c);
    k.d.part_ms = k.part_ms = ARRAY(float, lanes *k.d.max_parts * 2);
    return k;
}

static void drop_call(call *k)
{
    free(k->ql), free(k->q), free(k->out), free(k->part_o), free(k->part_ms);
}

static void expect_right(const world *w, const call *k, double limit)
{
    uint32_t   c = w->dims.kv_lora, rope = w->dims.rope, head_dim = w->dims.nope + rope;
    double    *s = ARRAY(double, w->max_end);
    difference e = {0, 0};

    for (uint32_t i = 0; i < w->n_spans; i++)
        for (uint32_t r = 0; r < w->spans[i].n_rows; r++)
            for (uint32_t h = 0; h < w->dims.n_heads; h++) {
                size_t   lane = (size_t)(w->spans[i].first_row + r) * w->dims.n_heads + h;
                uint32_t n    = w->spans[i].start + r + 1;

                for (uint32_t j = 0; j < n; j++)
                    s[j] =
                        (double)w->dims.scale * (dot_bf16(k->ql + lane * c, token_at(w, i, j), c) +
                                                 dot_bf16(k->q + lane * head_dim + w->dims.nope,
                                                          token_at(w, i, j) + c, rope));
                softmax_of(s, n);
                for (uint32_t col = 0; col < c; col++) {
                    double want = 0;

                    for (uint32_t j = 0; j < n; j++)
                        want += s[j] * (double)bt_bf16_to_f32(token_at(w, i, j)[col]);
                    differ(&e, (double)bt_bf16_to_f32(k->out[lane * c + col]), want, 0.3,
                           lane * c + col);
                }
            }
    EXPECT_CLOSE(e, limit);
    free(s);
}

static void attention_of_odd_shapes_is_right(void)
{
    static const uint32_t SPANS[][2] = {
        {0,   1 },
        {63,  1 },
        {62,  4 },
        {64,  1 },
        {300, 13},
        {0,   0 }
    };
    const bt_cuda_dims *DIMS[] = {&SMALL, &EVEN, &MID};

    for (int i = 0; i < 3; i++)
        for (uint32_t split = 1; split <= 32; split *= 4) { /* 1, 4: many parts; 16: one */
            world w = make_world(*DIMS[i], SPANS, split);
            call  k = make_call(&w, split);

            poison_the_rest(&w);
            EXPECT_EQ(bt_cuda_decode_run(NULL, &k.d), 0);
            expect_right(&w, &k, 0.01);
            drop_call(&k);
            drop_world(&w);
        }
}

static void attention_of_the_real_shape_is_right(void)
{
    static const uint32_t SPANS[][2] = {
        {130, 1},
        {190, 3},
        {0,   0}
    };
    static const uint32_t ALONE[][2] = {
        {330, 1},
        {130, 1},
        {0,   0}
    };

    for (int i = 0; i < 4; i++) {
        world w = make_world(WIDE, i < 2 ? SPANS : ALONE, 9);
        call  k = make_call(&w, i < 2 ? 2 : 6);

        simt_limit_shared(i % 2 == 0 ? 163 << 10 : 232448); /* pages in it: 1, 2; of one row 2, 3 */
        poison_the_rest(&w);
        EXPECT_EQ(bt_cuda_decode_run(NULL, &k.d), 0);
        expect_right(&w, &k, 0.01);
        drop_call(&k);
        drop_world(&w);
    }
}

/* Runs span i alone, `rows` of its rows at a time, with its own pages' list, into `out`. */
static void run_apart(const world *w, const call *k, uint32_t i, uint32_t rows, bt_bf16 *out)
{
    bt_cuda_decode d = k->d;

    for (uint32_t r = 0; r < w->spans[i].n_rows; r += rows) {
        uint32_t     left = w->spans[i].n_rows - r;
        bt_cuda_span s    = w->spans[i];

        s.first_row += r;
        s.start += r;
        s.n_rows    = left < rows ? left : rows;
        d.spans     = &s;
        d.n_spans   = 1;
        d.max_rows  = s.n_rows;
        d.max_parts = (s.start + s.n_rows - 1) / (d.split_pages * PAGE) + 1;
        d.out       = out;
        EXPECT_EQ(bt_cuda_decode_run(NULL, &d), 0);
    }
}

/* The same with queries that no vector access fits. */
static void run_unaligned(const world *w, const call *k, bt_bf16 *out)
{
    size_t         elems = (size_t)w->n_rows * w->dims.n_heads * (w->dims.nope + w->dims.rope);
    bt_bf16       *q     = ARRAY(bt_bf16, elems + 1);
    bt_cuda_decode d     = k->d;

    memcpy(q + 1, k->q, elems * sizeof(*q));
    d.q   = q + 1;
    d.out = out;
    EXPECT_EQ(bt_cuda_decode_run(NULL, &d), 0);
    free(q);
}

static void bits_do_not_depend_on_tiles_neighbours_or_order(void)
{
    const bt_cuda_dims   *DIMS[]     = {&SMALL, &EVEN, &MID, &MID};
    static const uint32_t SPANS[][2] = {
        {60,  30},
        {120, 20},
        {5,   1 },
        {250, 9 },
        {0,   0 }
    };

    for (uint32_t seed = 0; seed < 4; seed++) {
        world    w = make_world(*DIMS[seed], SPANS, seed);
        call     k = make_call(&w, seed % 2 == 0 ? 2 : 5); /* 5: more than the pages in memory */
        size_t   elems = (size_t)w.n_rows * w.dims.n_heads * w.dims.kv_lora;
        bt_bf16 *out   = ARRAY(bt_bf16, elems);

        poison_the_rest(&w);
        EXPECT_EQ(bt_cuda_decode_run(NULL, &k.d), 0);
        if (seed == 3) simt_limit_shared(163 << 10); /* a page less at a time */
        for (uint32_t rows = 1; rows <= 16; rows = rows * 2 + 1) {
            simt_seed(rows);
            memset(out, 0xff, elems * sizeof(*out));
            for (uint32_t i = w.n_spans; i-- > 0;)
                run_apart(&w, &k, i, rows, out);
            EXPECT_EQ(n_different(out, k.out, elems * sizeof(*out)), 0);
        }
        memset(out, 0xff, elems * sizeof(*out));
        run_unaligned(&w, &k, out);
        EXPECT_EQ(n_different(out, k.out, elems * sizeof(*out)), 0);
        simt_limit_shared(232448);
        free(out);
        drop_call(&k);
        drop_world(&w);
    }
}

/* 64 lanes a span: as four, two tiles or one, for each part that there may be. */
static void launches_that_leave_the_gpu_idle_take_low_tiles_with_the_same_bits(void)
{
    static const bt_cuda_dims HEADS      = {64, 24, 8, 8, 16, 0.3f};
    static const uint32_t     SPANS[][2] = {
            {130, 1},
            {70,  1},
            {99,  1},
            {0,   0}
    };
    static const struct {
        uint32_t n_spans, max_parts, n_blocks;
    } CASES[] = {
        {3, 1, 3     },
        {2, 1, 4     },
        {1, 1, 4     },
        {1, 2, 4 + 64}, /* of which 64 would merge */
    };
    world    w     = make_world(HEADS, SPANS, 3);
    call     k     = make_call(&w, 32);
    size_t   elems = (size_t)HEADS.n_heads * HEADS.kv_lora;
    bt_bf16 *out   = ARRAY(bt_bf16, w.n_rows * elems);

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_cuda_decode d      = k.d;
        uint64_t       before = simt_n_blocks();

        d.n_spans   = CASES[i].n_spans;
        d.max_parts = CASES[i].max_parts;
        d.out       = i == 0 ? k.out : out;
        EXPECT_EQ(bt_cuda_decode_run(NULL, &d), 0);
        EXPECT_EQ(simt_n_blocks() - before, simt_counts() ? CASES[i].n_blocks : 0);
        EXPECT_EQ(n_different(d.out, k.out, d.n_spans * elems * sizeof(*out)), 0);
    }
    expect_right(&w, &k, 0.01);
    free(out);
    drop_call(&k);
    drop_world(&w);
}

/* A NaN or inf that token 70 brings is seen by the rows from 70 on, and by no row before. */
static void a_later_tokens_nan_stays_with_the_later_tokens(void)
{
    static const uint32_t SPANS[][2] = {
        {60, 14},
        {0,  0 }
    };

    for (int i = 0; i < 2; i++) {
        world    w      = make_world(i == 0 ? EVEN : SMALL, SPANS, 5);
        call     k      = make_call(&w, 32);
        uint32_t row    = w.dims.n_heads * w.dims.kv_lora;
        bt_bf16 *before = ARRAY(bt_bf16, w.n_rows * row);

        EXPECT_EQ(bt_cuda_decode_run(NULL, &k.d), 0);
        memcpy(before, k.out, w.n_rows * row * sizeof(*before));
        token_at(&w, 0, 70)[3]  = 0x7fc0;
        token_at(&w, 0, 72)[20] = 0xff80;
        EXPECT_EQ(bt_cuda_decode_run(NULL, &k.d), 0);
        EXPECT_EQ(n_different(before, k.out, 10 * row * sizeof(*before)), 0);
        for (uint32_t r = 10; r < 14; r++)
            EXPECT(isnan(bt_bf16_to_f32(k.out[r * row + 3])));
        free(before);
        drop_call(&k);
        drop_world(&w);
    }
}

static void shapes_beyond_the_tiles_are_refused(void)
{
    bt_cuda_decode d = {
        .dims = SMALL, .n_spans = 1, .max_rows = 1, .max_parts = 1, .split_pages = 1};

    d.dims.kv_lora = 513;
    EXPECT_EQ(bt_cuda_decode_run(NULL, &d), BT_CUDA_BAD_SHAPE);
    d.dims      = SMALL;
    d.dims.rope = 66;
    EXPECT_EQ(bt_cuda_decode_run(NULL, &d), BT_CUDA_BAD_SHAPE);
    d.dims    = SMALL;
    d.n_spans = 0;
    EXPECT_EQ(bt_cuda_decode_run(NULL, &d), 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(attention_of_odd_shapes_is_right),
        BT_TEST(attention_of_the_real_shape_is_right),
        BT_TEST(bits_do_not_depend_on_tiles_neighbours_or_order),
        BT_TEST(launches_that_leave_the_gpu_idle_take_low_tiles_with_the_same_bits),
        BT_TEST(a_later_tokens_nan_stays_with_the_later_tokens),
        BT_TEST(shapes_beyond_the_tiles_are_refused),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
