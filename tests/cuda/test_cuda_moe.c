/* The kernels of an expert layer on the CPU, against the CPU back end: equal bits. */
#include "device/cpu/device_cpu.h"
#include "moe/cuda/moe_kernels.h"
#include "tests/cuda/numbers.h"

/* ---- gate */

static void check_gate(const bt_gate_config *g, uint32_t rows, uint32_t hidden, bool biased,
                       bool forced, uint64_t seed)
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
    logits[rows * n - 1] = NAN;
    if (rows > 1) logits[n] = INFINITY;
    for (uint32_t i = 0; i < g->top_k; i++)
        wish[i] = (uint16_t)(i * (n / g->top_k)); /* the other rows choose: all ones */
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
            check_gate(&GATES[i], rows, 33 + i, i % 2 == 0, false, i);
            check_gate(&GATES[i], rows, 40, true, true, i + 100);
        }
}

/* ---- permutation */

static void check_permutation(uint32_t rows, uint32_t top_k, uint32_t n_experts, uint64_t seed,
                              uint32_t bad)
{
    enum { HIDDEN = 5 };
    uint64_t  rng    = seed;
    uint32_t  n_wire = bt_wire_elems(HIDDEN, top_k), n_local = 0, n_entries = rows * top_k, at = 0;
    bt_bf16  *wire     = random_bf16((size_t)rows * n_wire + 1, 1, &rng);
    uint16_t *local_of = ARRAY(uint16_t, n_experts), *entries = ARRAY(uint16_t, n_entries * 3 + 1);
    uint32_t *count, *row_at, *term_row = ARRAY(uint32_t, n_entries + 1);
    uint32_t *term_of = ARRAY(uint32_t, n_entries + 1), *bad_row = ARRAY(uint32_t, 1);
    float    *weight = ARRAY(float, n_entries + 1);

    for (uint32_t e = 0; e < n_experts; e++) /* e.g. 1, 2, 4, 5, .. live here */
        local_of[e] = e % 3 != 0 || n_experts == 1 ? (uint16_t)n_local++ : UINT16_MAX;
    count  = ARRAY(uint32_t, n_local);
    row_at = ARRAY(uint32_t, n_local + 1);
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
                                                           .count       = count,
                                                           .row_at      = row_at,
                                                           .term_row    = term_row,
                                                           .term_weight = weight,
                                                           .term_of     = term_of,
                                                           .bad_row     = bad_row}),
              0);
    EXPECT_EQ(bad_row[0], bad < rows ? bad : UINT32_MAX);
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
    for (uint32_t i = 0; i < n_entries; i++) {
        uint32_t e = wire[i / top_k * n_wire + HIDDEN + i % top_k];

        if (e >= n_experts || local_of[e] == UINT16_MAX) EXPECT_EQ(term_of[i], UINT32_MAX);
    }
    free(wire), free(local_of), free(count), free(row_at), free(term_row), free(term_of);
    free(bad_row), free(weight), free(entries);
}

static void terms_stand_by_expert_then_row(void)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        simt_seed(seed);
        check_permutation(0, 2, 4, seed, UINT32_MAX);
        check_permutation(1, 1, 1, seed, UINT32_MAX);
        check_permutation(7, 3, 8, seed, UINT32_MAX);
        check_permutation(129, 6, 20, seed, UINT32_MAX);
    }
}

static void a_row_that_says_nonsense_is_told_and_ignored(void)
{
    check_permutation(7, 3, 8, 1, 4);
    check_permutation(90, 4, 9, 2, 0);
}

/* ---- sums */

static bt_device *cpu_device(void)
{
    bt_device *dev = NULL;

    EXPECT_EQ(bt_device_cpu_create(&(bt_device_cpu_options){1, "scalar"}, &dev), BT_OK);
    return dev;
}

static float *scratch_of(bt_device *dev, uint32_t hidden)
{
    return ARRAY(float, bt_moe_cpu_ops.scratch_bytes(dev, &(bt_moe_sizes){.hidden = hidden}) / 4);
}

static void items_are_those_of_the_cpu(void)
{
    enum { ITEMS = 4, TERMS = 7 };
    static const uint32_t DST[] = {2, 0, 3, 1}, TERM_AT[] = {0, 1, 3, 3, 7};
    static const uint32_t Y_ROW[] = {6, 0, 2, 1, 3, 5, 4};
    bt_device            *dev     = cpu_device();

    for (uint32_t hidden = 1; hidden <= 601; hidden += 200) {
        uint64_t    rng = hidden;
        float      *y = random_f32(TERMS * hidden, 3, &rng), *w = random_f32(TERMS, 1, &rng);
        bt_bf16    *got = ARRAY(bt_bf16, ITEMS * hidden), *want = ARRAY(bt_bf16, ITEMS * hidden);
        float      *scratch = scratch_of(dev, hidden);
        bt_moe_sums s       = {ITEMS, hidden, DST, TERM_AT, Y_ROW, w, y, want, scratch};

        w[6] = -0.0f;
        EXPECT_EQ(
            bt_cuda_sums_run(NULL, &(bt_cuda_sums){ITEMS, hidden, DST, TERM_AT, Y_ROW, w, y, got}),
            0);
        EXPECT_EQ(bt_moe_cpu_ops.sum(dev, &s), BT_OK); /* destroys y */
        EXPECT_EQ(n_different(got, want, ITEMS * hidden * sizeof(*got)), 0);
        free(y), free(w), free(got), free(want), free(scratch);
    }
    bt_device_destroy(dev);
}

static void combined_rows_are_those_of_the_cpu(void)
{
    enum { ROWS = 3, TOP_K = 4, BLOCKS = 4, BLOCK = 2 };
    static const uint16_t EXPERTS[] = {0, 1, 4, 7, 2, 3, 6, 7, 1, 2, 3, 5};
    /* row 0: whole, (it), single, single; row 1: two singles of a block, a whole one; row 2 */
    static const bool COMES[] = {1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1};
    bt_device        *dev     = cpu_device();

    for (uint32_t hidden = 1; hidden <= 301; hidden += 100)
        for (int shared = 0; shared < 2; shared++) {
            uint64_t rng  = hidden;
            bt_bf16 *from = random_bf16(ROWS * TOP_K * hidden, 1, &rng);
            float   *own  = random_f32(ROWS * hidden, 1, &rng);
            bt_bf16 *got = ARRAY(bt_bf16, ROWS * hidden), *want = ARRAY(bt_bf16, ROWS * hidden);
            float   *scratch = scratch_of(dev, hidden);
            const bt_bf16  *items[ROWS * TOP_K];
            bt_moe_combine  c = {ROWS,    hidden, TOP_K, BLOCKS, BLOCK,
                                 EXPERTS, items,  NULL,  want,   scratch};
            bt_cuda_combine k = {ROWS, hidden, TOP_K, BLOCKS, BLOCK, EXPERTS, items, NULL, got};

            from[0] = 0x8000; /* -0 */
            for (int i = 0; i < ROWS * TOP_K; i++)
                items[i] = COMES[i] ? from + i * hidden : NULL;
            c.shared = k.shared = shared ? own : NULL;
            EXPECT_EQ(bt_cuda_combine_run(NULL, &k), 0);
            EXPECT_EQ(bt_moe_cpu_ops.combine(dev, &c), BT_OK);
            EXPECT_EQ(n_different(got, want, ROWS * hidden * sizeof(*got)), 0);
            free(from), free(own), free(got), free(want), free(scratch);
        }
    bt_device_destroy(dev);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(every_gate_chooses_as_the_cpu_does),
        BT_TEST(terms_stand_by_expert_then_row),
        BT_TEST(a_row_that_says_nonsense_is_told_and_ignored),
        BT_TEST(items_are_those_of_the_cpu),
        BT_TEST(combined_rows_are_those_of_the_cpu),
    };

    bt_cpu_flush_denormals();
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
