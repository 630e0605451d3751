/* The kernels of an expert layer on the CPU, against the CPU back end: equal bits. */
#include "device/cpu/device_cpu.h"
#include "moe/cuda/moe_kernels.h"
#include "tests/cuda/numbers.h"

/* ---- gate */

static void check_gate(const bt_gate_config *g, uint32_t rows, uint32_t hidden, bool biased,
                       bool forced, bool infinite, uint64_t seed)
{
    uint64_t      rng = seed;
    uint32_t      n = g->n_experts, n_wire = bt_wire_elems(hidden, g->top_k);
    bt_bf16      *x = random_bf16(rows * hidden, 1, &rng), *wire = ARRAY(bt_bf16, rows * n_wire);
    float        *logits = random_f32(rows * n, 4, &rng), *bias = random_f32(n, 1, &rng);
    uint16_t     *wish = ARRAY(uint16_t, rows * g->top_k);
    bt_cuda_route r    = {.gate   = *g,
                          .n_rows = rows,
                          .hidden = hidden,
                          .x      = x,
                          .logits = logits,
                          .bias   = biased ? bias : NULL,
                          .forced = forced ? wish : NULL,
                          .wire   = wire};

    for (uint32_t i = 0; i < n; i += 3) /* ties */
        logits[i] = 1.5f;
    for (uint32_t i = 0; i < n && infinite;
         i++) /* the two best of some groups add up to no number */
        if (i / (n / g->n_groups) % 3 == 1)
            bias[i] = i % (n / g->n_groups) == 0 ? INFINITY : -INFINITY;
    logits[rows * n - 1] = NAN;
    if (rows > 1) logits[n] = INFINITY;
    for (uint32_t i = 0; i < rows * g->top_k; i++) /* the other rows choose */
        wish[i] = i < g->top_k ? (uint16_t)(i * (n / g->top_k)) : UINT16_MAX;
    EXPECT_EQ(bt_cuda_route_run(NULL, &r), 0);
    for (uint32_t i = 0; i < rows; i++) {
        uint16_t        experts[BT_MAX_TOP_K];
        float           weights[BT_MAX_TOP_K];
        const uint16_t *w = wire + i * n_wire;

        bt_gate_select(g, logits + i * n, r.bias, forced && i == 0 ? wish : NULL, experts, weights);
        EXPECT_EQ(n_different(w, x + i * hidden, hidden * sizeof(*x)), 0);
        EXPECT_EQ(n_different(w + hidden, experts, g->top_k * sizeof(*experts)), 0);
        EXPECT_EQ(n_different(w + hidden + g->top_k, weights, g->top_k * sizeof(*weights)), 0);
    }
    free(x), free(wire), free(logits), free(bias), free(wish);
}

static void every_gate_chooses_as_the_cpu_does(void)
{
    static const bt_gate_config GATES[] = {
        {BT_GATE_SOFTMAX,        64,   6,  1,  1,  false, 1.0f  },
        {BT_GATE_SOFTMAX,        37,   5,  1,  1,  true,  2.5f  },
        {BT_GATE_SOFTMAX,        1,    1,  1,  1,  true,  1.0f  },
        {BT_GATE_SOFTMAX_GROUPS, 160,  6,  8,  3,  false, 16.0f },
        {BT_GATE_SIGMOID_BIAS,   256,  8,  8,  4,  true,  2.5f  },
        {BT_GATE_SIGMOID_BIAS,   384,  8,  1,  1,  true,  2.827f},
        {BT_GATE_SIGMOID_BIAS,   6,    2,  6,  3,  false, 1.0f  },
        {BT_GATE_SIGMOID_BIAS,   1024, 64, 32, 32, true,  1.0f  },
    };

    for (uint32_t i = 0; i < sizeof(GATES) / sizeof(GATES[0]); i++)
        for (uint32_t rows = 1; rows <= 5; rows += 4) {
            simt_seed(i);
            check_gate(&GATES[i], rows, 33 + i, i % 2 == 0, false, false, i);
            check_gate(&GATES[i], rows, 40, true, true, false, i + 100);
            check_gate(&GATES[i], rows, 40, true, false, true, i + 200);
        }
    /* more elements than threads copy, and more vectors */
    check_gate(&GATES[0], 5, 301, false, false, false, 1);
    check_gate(&GATES[0], 5, 1000, false, false, false, 2);
}

/* Rows from the live ones on. */
static void padding_rows_have_no_experts(void)
{
    enum { HIDDEN = 8, LIVE = 2, ALL = 4 };
    const bt_gate_config gate = {BT_GATE_SOFTMAX, 8, 2, 1, 1, false, 1.0f};
    uint64_t             rng  = 7;
    uint32_t             live = LIVE, n_wire = bt_wire_elems(HIDDEN, 2);
    bt_bf16 *x = random_bf16(ALL * HIDDEN, 1, &rng), *wire = ARRAY(bt_bf16, ALL * n_wire);
    float   *logits = random_f32(ALL * 8, 4, &rng);

    EXPECT_EQ(bt_cuda_route_run(NULL, &(bt_cuda_route){.gate   = gate,
                                                       .n_rows = ALL,
                                                       .hidden = HIDDEN,
                                                       .x      = x,
                                                       .logits = logits,
                                                       .live   = &live,
                                                       .wire   = wire}),
              0);
    for (uint32_t r = 0; r < ALL; r++)
        EXPECT(r < LIVE ? wire[r * n_wire + HIDDEN] < 8
                        : wire[r * n_wire + HIDDEN] == BT_NO_EXPERTS);
    free(x), free(wire), free(logits);
}

/* ---- permutation */

static void check_permutation(uint32_t rows, uint32_t top_k, uint32_t n_experts, uint64_t seed,
                              uint32_t bad)
{
    enum { HIDDEN = 5, FIRST = 3, RUN = 7 }; /* not the first tile, and not the first call */
    uint64_t  rng    = seed;
    uint32_t  n_wire = bt_wire_elems(HIDDEN, top_k), n_local = 0, n_entries = rows * top_k, at = 0;
    bt_bf16  *wire     = random_bf16((size_t)rows * n_wire + 1, 1, &rng);
    uint16_t *local_of = ARRAY(uint16_t, n_experts), *entries = ARRAY(uint16_t, n_entries * 3 + 1);
    uint32_t *row_at, *term_row                               = ARRAY(uint32_t, n_entries + 1);
    uint32_t *term_of = ARRAY(uint32_t, n_entries + 1), *bad_row = ARRAY(uint32_t, 1);
    float    *weight = ARRAY(float, n_entries + 1);
    uint64_t *run, before = simt_n_launches();

    for (uint32_t e = 0; e < n_experts; e++) /* e.g. 1, 2, 4, 5, .. live here */
        local_of[e] = e % 3 != 0 || n_experts == 1 ? (uint16_t)n_local++ : UINT16_MAX;
    row_at = ARRAY(uint32_t, n_local + 1);
    run    = ARRAY(uint64_t, n_local);
    for (uint32_t e = 0; e < n_local; e++)
        run[e] = RUN;
    bad_row[0] = UINT32_MAX;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t j = 0, e = 0; j < top_k; j++, e++) {
            e += random_bits(&rng) % (n_experts - top_k + j - e + 1);
            wire[r * n_wire + HIDDEN + j] = (bt_bf16)e;
        }
    if (bad < rows) wire[bad * n_wire + HIDDEN + top_k - 1] = (bt_bf16)n_experts;
    if (bad < rows && bad + 1 < rows)
        wire[(bad + 1) * n_wire + HIDDEN] = wire[(bad + 1) * n_wire + HIDDEN + 1];

    EXPECT_EQ(bt_cuda_permute_run(NULL, &(bt_cuda_permute){.n_rows      = rows,
                                                           .n_wire      = n_wire,
                                                           .hidden      = HIDDEN,
                                                           .top_k       = top_k,
                                                           .n_experts   = n_experts,
                                                           .n_local     = n_local,
                                                           .wire        = wire,
                                                           .local_of    = local_of,
                                                           .row_at      = row_at,
                                                           .term_row    = term_row,
                                                           .term_weight = weight,
                                                           .term_of     = term_of,
                                                           .first_row   = FIRST,
                                                           .bad_row     = bad_row,
                                                           .rows_run    = run}),
              0);
    EXPECT(simt_n_launches() - before <= 1);
    EXPECT_EQ(bad_row[0], bad < rows ? FIRST + bad : UINT32_MAX);
    EXPECT_EQ(bt_cuda_entries_run(NULL, rows, HIDDEN, top_k, wire, entries), 0);
    for (uint32_t r = 0; r < rows; r++)
        EXPECT_EQ(n_different(entries + r * 3 * top_k, wire + r * n_wire + HIDDEN, 6 * top_k), 0);
    for (uint32_t e = 0; e < n_experts; e++) {
        if (local_of[e] == UINT16_MAX) continue;
        EXPECT_EQ(row_at[local_of[e]], at);
        for (uint32_t i = 0; i < n_entries; i++) {
            uint32_t r = i / top_k;

            if (wire[r * n_wire + HIDDEN + i % top_k] != e || r == bad) continue;
            if (bad < rows && r == bad + 1) continue;
            EXPECT_EQ(term_row[at], r);
            EXPECT_EQ(term_of[i], at);
            EXPECT_EQ(n_different(&weight[at], wire + r * n_wire + HIDDEN + top_k + 2 * (i % top_k),
                                  sizeof(float)),
                      0);
            at++;
        }
    }
    EXPECT_EQ(row_at[n_local], at);
    for (uint32_t e = 0; e < n_local; e++)
        EXPECT_EQ(run[e], RUN + row_at[e + 1] - row_at[e]);
    for (uint32_t i = 0; i < n_entries; i++) {
        uint32_t e = wire[i / top_k * n_wire + HIDDEN + i % top_k];

        if (e >= n_experts || local_of[e] == UINT16_MAX) EXPECT_EQ(term_of[i], UINT32_MAX);
    }
    free(wire), free(local_of), free(row_at), free(term_row), free(term_of);
    free(bad_row), free(weight), free(entries), free(run);
}

static void terms_stand_by_expert_then_row(void)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        simt_seed(seed);
        check_permutation(0, 2, 4, seed, UINT32_MAX);
        check_permutation(1, 1, 1, seed, UINT32_MAX);
        check_permutation(7, 3, 8, seed, UINT32_MAX);
        check_permutation(129, 6, 20, seed, UINT32_MAX);
        check_permutation(600, 3, 20, seed, UINT32_MAX); /* more rows than threads in a block */
    }
    check_permutation(60, 8, 400, 3, UINT32_MAX); /* more experts here than rows */
}

static void a_row_that_says_nonsense_is_told_and_ignored(void)
{
    check_permutation(7, 3, 8, 1, 4);
    check_permutation(90, 4, 9, 2, 0);
}

/* ---- items and what is joined of them: three ranks, blocks of two experts, of which two are split
 */

enum { N_RANKS = 3, N_EXPERTS = 8, BLOCK = 2, N_BLOCKS = N_EXPERTS / BLOCK, TOP_K = 4, ROWS = 6 };
static const uint16_t OWNER[N_EXPERTS] = {0, 0, 0, 1, 2, 2, 1, 2};
static const uint8_t  WHOLE[N_BLOCKS]  = {1, 0, 1, 0};
static const uint32_t ITEMS_OF[]       = {2, 2, 2}; /* rank 0: block 0 and expert 2; and so on */

typedef struct {
    uint32_t hidden, n_wire;
    bt_bf16 *wire;  /* [ROWS, n_wire] */
    float   *y;     /* [ROWS, TOP_K, hidden]: what an entry's expert makes of the row */
    bt_bf16 *items; /* [N_RANKS, ROWS, 2, hidden] */
} sum_case;

static float weight_at(const sum_case *c, uint32_t r, uint32_t j)
{
    return bt_entry_weight(c->wire + (size_t)r * c->n_wire + c->hidden, TOP_K, j);
}

static void choose_experts(sum_case *c, uint64_t *rng)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        bt_bf16 *experts = c->wire + (size_t)r * c->n_wire + c->hidden;
        float   *w       = random_f32(TOP_K, 2, rng);
        uint32_t j       = 0;

        for (uint32_t e = 0; e < N_EXPERTS && j < TOP_K;
             e++) /* all rows differ, rows 0 and 1 fill blocks */
            if ((r < 2 ? e / 4 != r : (e + r) % 3 != 0) || N_EXPERTS - e == TOP_K - j)
                experts[j++] = (bt_bf16)e;
        w[0] = r == 3 ? -0.0f : w[0];
        memcpy(experts + TOP_K, w, TOP_K * sizeof(*w));
        free(w);
    }
}

/* The order of moe/ops.h, in plain loops. */
static bt_bf16 sum_by_hand(const sum_case *c, uint32_t r, uint32_t i, float shared)
{
    const bt_bf16 *experts = c->wire + (size_t)r * c->n_wire + c->hidden;
    float          sum     = 0;

    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        float    part = 0, one = 0;
        uint32_t n = 0;

        for (uint32_t j = 0; j < TOP_K; j++) {
            if (experts[j] / BLOCK != b) continue;
            one = bt_bf16_to_f32(bt_bf16_from_f32(c->y[((size_t)r * TOP_K + j) * c->hidden + i] *
                                                  weight_at(c, r, j)));
            part += one;
            n++;
        }
        if (n > 1) part = bt_bf16_to_f32(bt_bf16_from_f32(part));
        sum += part + 0.0f;
    }
    return bt_bf16_from_f32(sum + shared);
}

static void make_items(const sum_case *c, uint32_t rank)
{
    uint32_t term_of[ROWS * TOP_K], n = 0;
    uint8_t  whole[N_BLOCKS];
    float   *y = ARRAY(float, ROWS *TOP_K * c->hidden), weight[ROWS * TOP_K];

    memcpy(whole, WHOLE, sizeof(whole));        /* a GPU reads stacks, not constants */
    for (uint32_t i = ROWS * TOP_K; i-- > 0;) { /* terms in another order than entries */
        uint32_t e = c->wire[(size_t)(i / TOP_K) * c->n_wire + c->hidden + i % TOP_K];

        term_of[i] = UINT32_MAX;
        if (OWNER[e] != rank) continue;
        memcpy(y + (size_t)n * c->hidden, c->y + (size_t)i * c->hidden, c->hidden * sizeof(*y));
        weight[n]  = weight_at(c, i / TOP_K, i % TOP_K);
        term_of[i] = n++;
    }
    EXPECT_EQ(bt_cuda_items_run(
                  NULL, &(bt_cuda_items){.n_rows        = ROWS,
                                         .n_wire        = c->n_wire,
                                         .hidden        = c->hidden,
                                         .top_k         = TOP_K,
                                         .block_size    = BLOCK,
                                         .items_per_row = ITEMS_OF[rank],
                                         .wire          = c->wire,
                                         .whole         = whole,
                                         .term_of       = term_of,
                                         .term_weight   = weight,
                                         .y             = y,
                                         .items = c->items + (size_t)rank * ROWS * 2 * c->hidden}),
              0);
    free(y);
}

/* As the rank of each number in turn: its own items stand apart from those that came. */
static void join_as(const sum_case *c, uint32_t self, const float *shared, bt_bf16 *got)
{
    size_t   rank_elems = (size_t)ROWS * 2 * c->hidden;
    bt_bf16 *came       = ARRAY(bt_bf16, (N_RANKS - 1) * rank_elems);
    uint32_t before[N_RANKS], items_of[N_RANKS], n = 0;
    uint16_t owner[N_EXPERTS];
    uint8_t  whole[N_BLOCKS];

    memcpy(owner, OWNER, sizeof(owner));
    memcpy(whole, WHOLE, sizeof(whole));
    memcpy(items_of, ITEMS_OF, sizeof(items_of));
    for (uint32_t q = 0; q < N_RANKS; q++) {
        before[q] = 2 * n;
        if (q == self) continue;
        memcpy(came + n++ * rank_elems, c->items + q * rank_elems, rank_elems * sizeof(*came));
    }
    EXPECT_EQ(bt_cuda_join_run(NULL, &(bt_cuda_join){.n_rows       = ROWS,
                                                     .n_wire       = c->n_wire,
                                                     .hidden       = c->hidden,
                                                     .top_k        = TOP_K,
                                                     .block_size   = BLOCK,
                                                     .self         = self,
                                                     .wire         = c->wire,
                                                     .owner        = owner,
                                                     .whole        = whole,
                                                     .items_of     = items_of,
                                                     .items_before = before,
                                                     .own          = c->items + self * rank_elems,
                                                     .came         = came,
                                                     .shared       = shared,
                                                     .y            = got}),
              0);
    free(came);
}

static void sums_do_not_depend_on_who_makes_them(void)
{
    for (uint32_t hidden = 1; hidden <= 301; hidden += 100) {
        uint64_t rng    = hidden;
        sum_case c      = {.hidden = hidden, .n_wire = bt_wire_elems(hidden, TOP_K)};
        float   *shared = random_f32(ROWS * hidden, 1, &rng);
        bt_bf16 *got    = ARRAY(bt_bf16, ROWS * hidden);

        c.wire  = ARRAY(bt_bf16, ROWS * c.n_wire);
        c.y     = random_f32(ROWS * TOP_K * hidden, 3, &rng);
        c.items = ARRAY(bt_bf16, N_RANKS * ROWS * 2 * hidden);
        memset(c.items, 0xff,
               N_RANKS * ROWS * 2 * hidden * sizeof(*c.items)); /* what is not asked for */
        choose_experts(&c, &rng);
        for (uint32_t q = 0; q < N_RANKS; q++)
            make_items(&c, q);
        for (uint32_t self = 0; self < N_RANKS; self++)
            for (int with = 0; with < 2; with++) {
                join_as(&c, self, with ? shared : NULL, got);
                for (uint32_t i = 0; i < ROWS * hidden; i++)
                    EXPECT_EQ(got[i],
                              sum_by_hand(&c, i / hidden, i % hidden, with ? shared[i] : 0));
            }
        free(c.wire), free(c.y), free(c.items), free(shared), free(got);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(every_gate_chooses_as_the_cpu_does),
        BT_TEST(padding_rows_have_no_experts),
        BT_TEST(terms_stand_by_expert_then_row),
        BT_TEST(a_row_that_says_nonsense_is_told_and_ignored),
        BT_TEST(sums_do_not_depend_on_who_makes_them),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
