/* Sparse attention on the CPU: which positions rows choose, against plain loops, and attention to
 * lists of positions, against the same keys side by side. */
#include "device/cpu/device_cpu.h"
#include "tests/cuda/attention_world.h"

static const bt_cuda_dims SMALL = {3, 24, 8, 6, 10, 0.3f}; /* no vector access fits */
static const bt_cuda_dims ODD   = {3, 136, 8, 6, 10, 0.3f};
static const bt_cuda_dims EVEN  = {3, 24, 8, 8, 16, 0.3f};
static const bt_cuda_dims MID   = {40, 136, 16, 32, 16, 0.1f};
static const bt_cuda_dims WIDE  = {16, 512, 128, 64, 128, 0.0722f};

enum { MAX_CHOOSERS = 64 };

/* Rows that choose: all of a world's spans, each a span of its own. */
typedef struct {
    bt_bf16       *q;
    float         *w, *scores;
    uint32_t      *chosen;
    size_t         n_scores;
    bt_cuda_span   spans[MAX_CHOOSERS];
    bt_cuda_choose c;
} choosing;

/* Eighths of -8 .. 8, so that sums are exact in any order, and many are equal. */
static void make_exact(bt_bf16 *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = bt_bf16_from_f32(roundf(bt_bf16_to_f32(v[i]) * 2) / 8);
}

static bt_bf16 *index_key(const world *w, uint32_t span, uint32_t pos)
{
    return token_at(w, span, pos) + latent_dim(w);
}

static choosing make_choosing(world *w, uint32_t n_heads, uint32_t topk, bool exact)
{
    uint32_t dim = w->pages.index_dim;
    size_t   n = (size_t)w->n_rows * n_heads, ld = (size_t)(w->max_end + PAGE - 1) / PAGE * PAGE;
    choosing k = {.q        = random_bf16(n * dim, 1, &w->rng),
                  .w        = random_f32(n, 1, &w->rng),
                  .n_scores = w->n_rows * ld,
                  .scores   = ARRAY(float, w->n_rows *ld),
                  .chosen   = ARRAY(uint32_t, (size_t)w->n_rows * topk)};

    if (exact) {
        make_exact(k.q, n * dim);
        for (size_t i = 0; i < n; i++)
            k.w[i] = roundf(k.w[i] * 3) / 4;
        for (uint32_t s = 0; s < w->n_spans; s++)
            for (uint32_t pos = 0; pos < w->spans[s].start + w->spans[s].n_rows; pos++)
                make_exact(index_key(w, s, pos), dim);
    }
    for (uint32_t s = 0; s < w->n_spans; s++)
        for (uint32_t r = 0; r < w->spans[s].n_rows; r++)
            k.spans[w->spans[s].first_row + r] = (bt_cuda_span){
                w->spans[s].first_row + r, 1, w->spans[s].start + r, w->spans[s].page_at, 0};
    k.c = (bt_cuda_choose){.dims     = w->dims,
                           .pages    = w->pages,
                           .spans    = k.spans,
                           .n_spans  = w->n_rows,
                           .max_keys = w->max_end,
                           .n_heads  = n_heads,
                           .topk     = topk,
                           .q        = k.q,
                           .w        = k.w,
                           .scores   = k.scores,
                           .chosen   = k.chosen};
    return k;
}

static void drop_choosing(choosing *k) { free(k->q), free(k->w), free(k->scores), free(k->chosen); }

static int choose(choosing *k)
{
    k->c.spans = k->spans; /* which may have moved */
    return bt_cuda_choose_run(NULL, &k->c);
}

static uint32_t span_of(const world *w, uint32_t row)
{
    uint32_t s = 0;

    while (row - w->spans[s].first_row >= w->spans[s].n_rows)
        s++;
    return s;
}

static double score_of(const world *w, const choosing *k, uint32_t row, uint32_t pos)
{
    double   sum = 0;
    uint32_t dim = w->pages.index_dim, n = k->c.n_heads;

    for (uint32_t h = 0; h < n; h++) {
        double dot =
            dot_bf16(k->q + ((size_t)row * n + h) * dim, index_key(w, span_of(w, row), pos), dim);

        sum += (double)k->w[(size_t)row * n + h] * (dot > 0 ? dot : 0);
    }
    return sum;
}

static const float *row_scores(const world *w, const choosing *k, uint32_t row)
{
    return k->scores + (size_t)row * ((w->max_end + PAGE - 1) / PAGE * PAGE);
}

/* A row's list: the largest of the scores that the device has, of equal ones the earliest. */
static void expect_largest(const world *w, const choosing *k, uint32_t row)
{
    const float    *scores = row_scores(w, k, row);
    const uint32_t *got    = k->chosen + (size_t)row * k->c.topk;
    uint32_t        n_keys = k->spans[row].start + 1, n = 0, wrong = 0;
    bool           *taken = ARRAY(bool, n_keys);

    memset(taken, 0, n_keys * sizeof(*taken));
    for (uint32_t i = 0; i < k->c.topk; i++) {
        uint32_t best = n_keys;

        for (uint32_t key = 0; key < n_keys; key++)
            if (!taken[key] && (best == n_keys || scores[key] > scores[best])) best = key;
        taken[best] = true;
    }
    for (uint32_t key = 0; key < n_keys; key++)
        if (taken[key]) wrong += got[n++] != key;
    if (wrong != 0) fprintf(stderr, "row %u with %u keys chooses %u others\n", row, n_keys, wrong);
    EXPECT_EQ(wrong, 0);
    free(taken);
}

/* Heads and dimensions beyond one tile and below it; as many keys as are chosen, plus one; contexts
 * over pages, blocks of pages, and what a block reads at once. */
static void rows_choose_the_largest_scores(void)
{
    static const struct {
        const bt_cuda_dims *dims;
        uint32_t            index_dim, heads, topk, spans[4][2];
    } CASES[] = {
        {&SMALL, 20,  5,   7,    {{7, 2}, {62, 4}, {130, 1}}},
        {&EVEN,  8,   1,   1,    {{1, 1}, {64, 2}}          },
        {&EVEN,  128, 64,  100,  {{100, 1}, {1022, 4}}      },
        {&SMALL, 127, 17,  50,   {{1100, 3}, {50, 1}}       },
        {&EVEN,  72,  33,  64,   {{64, 1}, {127, 2}}        },
        {&EVEN,  16,  256, 30,   {{70, 2}}                  },
        {&EVEN,  24,  3,   2048, {{2048, 1}, {4095, 2}}     },
        {&SMALL, 9,   2,   4100, {{4200, 1}}                }
    };

    for (size_t i = 0; i < 2 * sizeof(CASES) / sizeof(CASES[0]); i++) {
        bool  exact = i % 2;
        world w =
            make_index_world(*CASES[i / 2].dims, CASES[i / 2].index_dim, CASES[i / 2].spans, i);
        choosing   k = make_choosing(&w, CASES[i / 2].heads, CASES[i / 2].topk, exact);
        difference e = {0, 0};

        for (uint32_t s = 0; s < w.n_spans; s++) { /* what lies behind the context */
            uint32_t end = w.spans[s].start + w.spans[s].n_rows;

            if (end % PAGE != 0)
                memset(token_at(&w, s, end), 0xff, (PAGE - end % PAGE) * kv_dim(&w) * 2);
        }
        EXPECT_EQ(choose(&k), 0);
        for (uint32_t row = 0; row < w.n_rows; row++) {
            for (uint32_t pos = 0; pos <= k.spans[row].start; pos++)
                differ(&e, (double)row_scores(&w, &k, row)[pos], score_of(&w, &k, row, pos),
                       1 + k.c.n_heads, row * w.max_end + pos);
            expect_largest(&w, &k, row);
        }
        EXPECT_CLOSE(e, exact ? 0 : 1e-5);
        drop_choosing(&k);
        drop_world(&w);
    }
}

/* Equal scores of either sign, weights that make zeros of either sign, and scores that underflow.
 */
static void of_equal_scores_the_earliest_are_chosen(void)
{
    static const uint32_t SPANS[][2] = {
        {1500, 5},
        {0,    0}
    };
    enum { HEADS = 16, DIM = 16 };
    uint32_t others = 0;
    world    w      = make_index_world(EVEN, DIM, SPANS, 3);
    choosing k      = make_choosing(&w, HEADS, 300, true);

    for (uint32_t i = 0; i < DIM; i++) /* row 4: a zero from below, of every head */
        index_key(&w, 0, 3)[i] = 0x3f80;
    for (uint32_t pos = 0; pos < w.max_end; pos++)
        memcpy(index_key(&w, 0, pos), index_key(&w, 0, pos % 7), DIM * sizeof(bt_bf16));
    for (uint32_t h = 0; h < HEADS; h++) {
        k.w[HEADS + h]     = -1 - k.w[HEADS + h] * k.w[HEADS + h]; /* row 1: none above 0 */
        k.w[2 * HEADS + h] = h % 2 ? -0.0f : 0.0f;                 /* row 2: zeros */
        k.w[4 * HEADS + h] = -0x1p-100f;                           /* row 4, with its queries */
    }
    memset(k.q + (size_t)3 * HEADS * DIM, 0, HEADS * DIM * sizeof(bt_bf16)); /* row 3 */
    for (uint32_t i = 0; i < HEADS * DIM; i++)
        k.q[4 * HEADS * DIM + i] = bt_bf16_from_f32(0x1p-50f);
    EXPECT_EQ(choose(&k), 0);
    for (uint32_t row = 0; row < 5; row++)
        expect_largest(&w, &k, row);
    for (uint32_t i = 0; i < 3 * 300; i++) /* rows 2, 3, 4 */
        others += k.chosen[2 * 300 + i] != i % 300;
    EXPECT_EQ(others, 0);
    drop_choosing(&k);
    drop_world(&w);
}

/* A key of which nothing is known, weights that are no number: as many positions as ever, each of
 * them the row's own. */
static void positions_are_positions_whatever_the_scores(void)
{
    static const uint32_t SPANS[][2] = {
        {400, 5},
        {0,   0}
    };
    world    w = make_index_world(SMALL, 10, SPANS, 4);
    choosing k = make_choosing(&w, 6, 150, false);

    for (uint32_t pos = 50; pos < 300; pos++)
        memset(index_key(&w, 0, pos), 0xff, 10 * sizeof(bt_bf16));
    k.w[6 + 2]  = NAN;
    k.w[12 + 2] = -NAN;
    k.w[18 + 2] = -INFINITY;
    k.w[24 + 2] = INFINITY;
    EXPECT_EQ(choose(&k), 0);
    for (uint32_t row = 0; row < 5; row++)
        for (uint32_t i = 0; i < 150; i++) {
            const uint32_t *got = k.chosen + row * 150;

            EXPECT(got[i] <= 400 + row && (i == 0 || got[i] > got[i - 1]));
        }
    drop_choosing(&k);
    drop_world(&w);
}

/* A score depends on its row and its key: not on other rows, on what order they come in, on how
 * queries are read, nor on later keys. */
static void choices_do_not_depend_on_neighbours(void)
{
    static const uint32_t SPANS[][2] = {
        {62,   4},
        {1020, 3},
        {30,   1},
        {0,    0}
    };
    enum { HEADS = 19, TOPK = 25 };

    for (uint32_t way = 0; way < 3; way++) {
        world     w      = make_index_world(EVEN, 40, SPANS, 7);
        choosing  k      = make_choosing(&w, HEADS, TOPK, false);
        size_t    q_size = (size_t)w.n_rows * HEADS * 40;
        bt_bf16  *q      = ARRAY(bt_bf16, q_size + 1);
        float    *scores = ARRAY(float, k.n_scores);
        uint32_t *chosen = ARRAY(uint32_t, (size_t)w.n_rows * TOPK);

        EXPECT_EQ(choose(&k), 0);
        memcpy(q + 1, k.q, q_size * sizeof(*q));
        for (uint32_t row = w.n_rows; row-- > 0;) {
            bt_cuda_choose c      = k.c;
            uint32_t       n_keys = k.spans[row].start + 1;

            simt_seed(row + way);
            c.spans    = &k.spans[row];
            c.n_spans  = 1;
            c.max_keys = n_keys;
            c.scores   = scores;
            c.chosen   = chosen;
            if (way == 1) c.q = q + 1; /* no vector access fits */
            if (way == 2)
                for (uint32_t pos = n_keys; pos < w.spans[span_of(&w, row)].start + 3; pos++)
                    memset(index_key(&w, span_of(&w, row), pos), 0xff, 40 * sizeof(bt_bf16));
            EXPECT_EQ(bt_cuda_choose_run(NULL, &c), 0);
            EXPECT_EQ(n_different(scores, row_scores(&w, &k, row), n_keys * sizeof(float)), 0);
        }
        EXPECT_EQ(n_different(chosen, k.chosen, (size_t)w.n_rows * TOPK * sizeof(*chosen)), 0);
        free(q), free(scores), free(chosen);
        drop_choosing(&k);
        drop_world(&w);
    }
}

/* ---- attention to lists */

typedef struct {
    bt_bf16       *ql, *q, *out;
    float         *part_o, *part_ms;
    bt_cuda_decode d;
} attending;

/* Rows of the world's spans, one a span. */
static attending make_attending(world *w, uint32_t split_pages, uint32_t topk)
{
    size_t    lanes = (size_t)w->n_rows * w->dims.n_heads, c = w->dims.kv_lora;
    attending a = {.ql  = random_bf16(lanes * c, 2, &w->rng),
                   .q   = random_bf16(lanes * (w->dims.nope + w->dims.rope), 2, &w->rng),
                   .out = ARRAY(bt_bf16, lanes * c)};

    a.d        = (bt_cuda_decode){.dims        = w->dims,
                                  .pages       = w->pages,
                                  .n_spans     = w->n_rows,
                                  .max_rows    = 1,
                                  .max_parts   = (w->max_end - 1) / (split_pages * PAGE) + 1,
                                  .split_pages = split_pages,
                                  .ql          = a.ql,
                                  .q           = a.q,
                                  .out         = a.out,
                                  .topk        = topk};
    a.d.part_o = a.part_o = ARRAY(float, lanes *a.d.max_parts *c);
    a.d.part_ms = a.part_ms = ARRAY(float, lanes *a.d.max_parts * 2);
    return a;
}

static void drop_attending(attending *a)
{
    free(a->ql), free(a->q), free(a->out), free(a->part_o), free(a->part_ms);
}

/* topk ascending positions out of n. */
static void choose_some(uint32_t *list, uint32_t topk, uint32_t n, uint64_t *rng)
{
    for (uint32_t pos = 0, left = topk; left > 0; pos++) {
        if (random_bits(rng) % (n - pos) >= left) continue;
        *list++ = pos;
        left--;
    }
}

/* What the row makes of the positions of a list, when these are all that there is of its request:
 * copies in pages of their own. */
static void attend_to_copies(const world *w, const attending *a, uint32_t row, const uint32_t *list,
                             uint32_t n, bt_bf16 *out)
{
    uint32_t       n_pages = (n + PAGE - 1) / PAGE, span = span_of(w, row);
    bt_bf16       *copies = ARRAY(bt_bf16, n_pages * w->pages.page_stride);
    uint32_t      *ids    = ARRAY(uint32_t, n_pages);
    bt_cuda_span   s      = {row, 1, n - 1, 0, 0};
    bt_cuda_decode d      = a->d;

    for (uint32_t i = 0; i < n_pages; i++)
        ids[i] = i;
    for (uint32_t i = 0; i < n; i++)
        memcpy(copies + i / PAGE * w->pages.page_stride + i % PAGE * kv_dim(w),
               token_at(w, span, list == NULL ? i : list[i]), kv_dim(w) * sizeof(bt_bf16));
    d.pages.base = copies;
    d.pages.ids  = ids;
    d.spans      = &s;
    d.n_spans    = 1;
    d.max_parts  = (n - 1) / (d.split_pages * PAGE) + 1;
    d.out        = out;
    d.chosen     = NULL;
    EXPECT_EQ(bt_cuda_decode_run(NULL, &d), 0);
    free(copies), free(ids);
}

/* Rows with a list and rows without in one launch: the bits of the same keys side by side, and of
 * all keys. */
static void attention_to_lists_is_that_to_the_same_keys_alone(void)
{
    static const uint32_t SPANS[][2] = {
        {190, 3},
        {20,  1},
        {69,  1},
        {401, 1},
        {0,   0}
    };
    /* A row's heads, by 16, in tiles of 16, 32 or 64, with as many pages as there is room for. */
    static const struct {
        const bt_cuda_dims *dims;
        uint32_t            n_heads, topk, split_pages, max_shared;
    } CASES[] = {
        {&SMALL, 3,  70,  1,  232448   },
        {&ODD,   3,  70,  2,  232448   },
        {&EVEN,  3,  64,  1,  232448   },
        {&EVEN,  20, 65,  32, 163 << 10},
        {&EVEN,  40, 65,  2,  232448   },
        {&MID,   20, 70,  2,  232448   },
        {&MID,   20, 65,  32, 163 << 10},
        {&MID,   40, 150, 2,  232448   },
        {&MID,   40, 70,  32, 163 << 10},
        {&WIDE,  16, 130, 1,  232448   },
        {&WIDE,  16, 70,  32, 163 << 10}
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_cuda_dims dims   = *CASES[i].dims;
        uint32_t     topk   = CASES[i].topk;
        dims.n_heads        = CASES[i].n_heads;
        world        w      = make_world(dims, SPANS, i);
        attending    a      = make_attending(&w, CASES[i].split_pages, topk);
        size_t       row_at = (size_t)w.dims.n_heads * w.dims.kv_lora;
        uint32_t    *lists  = ARRAY(uint32_t, (size_t)w.n_rows * topk);
        bt_bf16     *want   = ARRAY(bt_bf16, w.n_rows * row_at);
        bt_cuda_span spans[MAX_CHOOSERS];

        poison_the_rest(&w);
        for (uint32_t row = 0; row < w.n_rows; row++) {
            bt_cuda_span s      = w.spans[span_of(&w, row)];
            uint32_t     n_keys = s.start + (row - s.first_row) + 1, list = w.n_rows - 1 - row;
            bool         has = n_keys > topk;
            uint32_t     n   = has ? topk : n_keys;

            if (has) choose_some(lists + list * topk, topk, n_keys, &w.rng);
            spans[row] = (bt_cuda_span){row, 1, n - 1, s.page_at, has ? 1 + list : 0};
            simt_limit_shared(232448);
            attend_to_copies(&w, &a, row, has ? lists + list * topk : NULL, n, want);
        }
        simt_limit_shared(CASES[i].max_shared);
        a.d.spans  = spans;
        a.d.chosen = lists;
        EXPECT_EQ(bt_cuda_decode_run(NULL, &a.d), 0);
        EXPECT_EQ(n_different(a.out, want, w.n_rows * row_at * sizeof(*want)), 0);
        simt_limit_shared(232448);
        free(lists), free(want);
        drop_attending(&a);
        drop_world(&w);
    }
}

static void no_rows_and_shapes_beyond_the_tiles(void)
{
    bt_cuda_choose c = {.dims = EVEN, .n_spans = 1, .max_keys = 2, .n_heads = 1, .topk = 1};

    c.pages.index_dim = 129;
    EXPECT_EQ(bt_cuda_choose_run(NULL, &c), BT_CUDA_BAD_SHAPE);
    c.pages.index_dim = 128;
    c.n_heads         = 257;
    EXPECT_EQ(bt_cuda_choose_run(NULL, &c), BT_CUDA_BAD_SHAPE);
    c.n_spans = 0;
    EXPECT_EQ(bt_cuda_choose_run(NULL, &c), 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(rows_choose_the_largest_scores),
        BT_TEST(of_equal_scores_the_earliest_are_chosen),
        BT_TEST(positions_are_positions_whatever_the_scores),
        BT_TEST(choices_do_not_depend_on_neighbours),
        BT_TEST(attention_to_lists_is_that_to_the_same_keys_alone),
        BT_TEST(no_rows_and_shapes_beyond_the_tiles),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
