/* The expert layer against its definition, row by row and term by term, to the bit; on 1 to 4
 * ranks, under placements that keep blocks whole and that split them; and its errors. */
#include "moe/moe.h"

#include <math.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "device/cpu/device_cpu.h"
#include "moe/ops.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

enum {
    HIDDEN     = 200,
    EXPERT_DIM = 72,
    SHARED_DIM = 144,
    N_EXPERTS  = 12,
    TOP_K      = 5,
    MAX_ROWS   = 1000,
    MAX_RANKS  = 4,
    N_BLOCKS   = 4,
    BLOCK      = N_EXPERTS / N_BLOCKS,
    TILE_TERMS = (64 << 20) / (HIDDEN * 2) /* of moe/create.c */
};

static const bt_moe_config CFG = {
    .gate       = {.kind        = BT_GATE_SIGMOID_BIAS,
                   .n_experts   = N_EXPERTS,
                   .top_k       = TOP_K,
                   .n_groups    = N_BLOCKS,
                   .topk_groups = 3,
                   .norm_topk   = true,
                   .scale       = 2.5f},
    .hidden     = HIDDEN,
    .expert_dim = EXPERT_DIM,
    .shared_dim = SHARED_DIM
};

static bt_world  *g_world;
static bt_device *g_dev;
static uint32_t   g_n_ranks, g_rank;

/* ---- values that every rank makes alike ---- */

static uint32_t hash(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t h = a * 0x9e3779b1u ^ b * 0x85ebca77u ^ c * 0xc2b2ae3du;

    h = (h ^ h >> 15) * 0x2c1b3c6du;
    h = (h ^ h >> 12) * 0x297a2d39u;
    return h ^ h >> 15;
}

static float unit(uint32_t h) { return (float)(h >> 8) / (float)(1 << 23) - 1.0f; }

typedef struct {
    uint32_t seed, k;
    float    scale;
} matrix_seed;

static void make_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const matrix_seed *m = ctx;

    for (uint32_t i = 0; i < m->k; i++)
        row[i] = bt_bf16_from_f32(m->scale * unit(hash(m->seed, n, i)));
}

static bt_linear *make(uint32_t seed, uint32_t n, uint32_t k)
{
    matrix_seed m      = {seed, k, 1.5f / sqrtf((float)k)};
    bt_linear  *linear = NULL;

    NEED(bt_device_linear_create(g_dev, n, k, make_row, &m, &linear) == BT_OK);
    return linear;
}

/* Row r of rank q: mostly numbers; some rows hold zeros of both signs, subnormals, large values
 * that cancel, an infinity. */
static void make_x(uint32_t q, uint32_t r, bt_bf16 *x)
{
    for (uint32_t i = 0; i < HIDDEN; i++) {
        uint32_t h = hash(1000 + q, r, i);

        x[i] = bt_bf16_from_f32(unit(h));
        if (r % 7 == 3) x[i] = (bt_bf16)(h & 0x8000u);               /* +-0 */
        if (r % 7 == 4) x[i] = (bt_bf16)((h & 0x807fu) | 1u);        /* subnormal */
        if (r % 7 == 5) x[i] = bt_bf16_from_f32(unit(h) * 0x1p-62f); /* products underflow */
        if (r % 7 == 6) x[i] = bt_bf16_from_f32(unit(h) * 0x1p40f);  /* gates saturate */
    }
    if (r % 29 == 28) x[3] = 0x7f80;
}

/* ---- all weights, so that every rank can compute every row by the definition ---- */

typedef struct {
    bt_moe_weights w;
    bt_linear     *gate_up[N_EXPERTS], *down[N_EXPERTS];
    float          bias[N_EXPERTS];
} all_weights;

static void weights_make(all_weights *a)
{
    memset(a, 0, sizeof(*a));
    a->w.router = make(1, N_EXPERTS, HIDDEN);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        a->bias[e]    = 0.2f * unit(hash(2, e, 0));
        a->gate_up[e] = make(100 + e, 2 * EXPERT_DIM, HIDDEN);
        a->down[e]    = make(200 + e, HIDDEN, EXPERT_DIM);
    }
    a->w.router_bias    = a->bias;
    a->w.gate_up        = a->gate_up;
    a->w.down           = a->down;
    a->w.shared_gate_up = make(3, 2 * SHARED_DIM, HIDDEN);
    a->w.shared_down    = make(4, HIDDEN, SHARED_DIM);
}

static void weights_free(all_weights *a)
{
    bt_device_linear_destroy(g_dev, a->w.router);
    bt_device_linear_destroy(g_dev, a->w.shared_gate_up);
    bt_device_linear_destroy(g_dev, a->w.shared_down);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        bt_device_linear_destroy(g_dev, a->gate_up[e]);
        bt_device_linear_destroy(g_dev, a->down[e]);
    }
}

static void one_product(bt_role role, const bt_linear *w, const bt_bf16 *x, void *y,
                        bt_dtype y_dtype)
{
    bt_gemm g = {.w       = w,
                 .x       = x,
                 .ld_x    = bt_linear_k(w),
                 .y       = y,
                 .ld_y    = bt_linear_n(w),
                 .m       = 1,
                 .y_dtype = y_dtype};

    NEED(bt_device_gemm(g_dev, role, 1, &g) == BT_OK);
}

static void one_mlp(bt_role role, const bt_linear *gate_up, const bt_linear *down, uint32_t dim,
                    const bt_bf16 *x, float y[HIDDEN])
{
    bt_bf16 h[2 * SHARED_DIM], a[SHARED_DIM];

    one_product(role, gate_up, x, h, BT_BF16);
    NEED(bt_cpu_swiglu(g_dev, 1, dim, h, a) == BT_OK);
    one_product(role, down, a, y, BT_F32);
}

static float rounded(float v) { return bt_bf16_to_f32(bt_bf16_from_f32(v)); }

/* The definition in moe.h, for one row. */
static void define_row(const all_weights *a, bt_role role, const bt_bf16 *x, const uint16_t *forced,
                       bt_bf16 y[HIDDEN], uint16_t experts[TOP_K])
{
    float logits[N_EXPERTS], weights[TOP_K], outputs[TOP_K][HIDDEN], shared[HIDDEN];

    one_product(role, a->w.router, x, logits, BT_F32);
    bt_gate_select(&CFG.gate, logits, a->bias, forced, experts, weights);
    for (uint32_t j = 0; j < TOP_K; j++)
        one_mlp(role, a->gate_up[experts[j]], a->down[experts[j]], EXPERT_DIM, x, outputs[j]);
    one_mlp(role, a->w.shared_gate_up, a->w.shared_down, SHARED_DIM, x, shared);
    for (uint32_t i = 0; i < HIDDEN; i++) {
        float sum = 0.0f;

        for (uint32_t b = 0; b < N_BLOCKS; b++) {
            float part = 0.0f;

            for (uint32_t j = 0; j < TOP_K; j++)
                if (experts[j] / BLOCK == b) part += rounded(weights[j] * outputs[j][i]);
            sum += 0.0f + rounded(part);
        }
        y[i] = bt_bf16_from_f32(sum + shared[i]);
    }
}

static bool is_nan(bt_bf16 v) { return (v & 0x7fff) > 0x7f80; }

static void expect_row(const bt_bf16 *got, const bt_bf16 *want, uint32_t r, const char *what)
{
    for (uint32_t i = 0; i < HIDDEN; i++) {
        if (got[i] == want[i] || (is_nan(got[i]) && is_nan(want[i]))) continue;
        g_failures++;
        fprintf(stderr, "rank %u of %u, %s, row %u element %u: %04x, want %04x\n", g_rank,
                g_n_ranks, what, r, i, got[i], want[i]);
        return;
    }
}

/* ---- a layer on this group ---- */

typedef struct {
    bt_group    *group;
    bt_placement placement;
    bt_moe      *moe;
} layer;

static void layer_open(layer *l, uint32_t max_rows, const uint16_t *owner)
{
    uint32_t ranks[MAX_RANKS] = {0, 1, 2, 3};

    NEED(bt_group_create(g_world, g_n_ranks, ranks, 0, 1, &l->group) == BT_OK);
    NEED(bt_placement_init(&l->placement, N_EXPERTS, N_BLOCKS, g_n_ranks) == BT_OK);
    if (owner != NULL) memcpy(l->placement.owner, owner, N_EXPERTS * sizeof(*owner));
    NEED(bt_moe_create(g_dev, l->group, &l->placement, &CFG, max_rows, &l->moe) == BT_OK);
}

static void layer_close(layer *l)
{
    bt_moe_destroy(l->moe);
    bt_placement_fini(&l->placement);
    bt_group_destroy(l->group);
}

/* Only this rank's experts: another's would be a crash. */
static bt_moe_weights own_weights(const all_weights *a, const layer *l, bt_linear **gate_up,
                                  bt_linear **down)
{
    bt_moe_weights w = a->w;

    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        bool own   = l->placement.owner[e] == g_rank;
        gate_up[e] = own ? a->gate_up[e] : NULL;
        down[e]    = own ? a->down[e] : NULL;
    }
    w.gate_up = gate_up;
    w.down    = down;
    return w;
}

static bt_wait waiting(uint64_t ms)
{
    return (bt_wait){.timeout_ns = ms * BT_NS_PER_MS, .what = "test", .layer = 7};
}

/* Each row is counted once for each of its experts.  Of several ranks each counts what its own have
 * run for all: one that is alone knows how much that is. */
static void expect_counted(const layer *l, const uint64_t before[N_EXPERTS], uint32_t n,
                           const uint16_t *chosen)
{
    const uint64_t *counted = bt_moe_expert_rows(l->moe);
    uint64_t        want[N_EXPERTS];

    memcpy(want, before, sizeof(want));
    for (uint32_t i = 0; i < n * TOP_K && g_n_ranks == 1; i++)
        want[chosen[i]]++;
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        if (g_n_ranks == 1 || l->placement.owner[e] != g_rank) EXPECT_EQ(counted[e], want[e]);
}

/* Of a large step: its end, where the last tile is, and some of what stands before. */
static bool is_checked(uint32_t r, uint32_t n) { return r + 2000 >= n || r % 16 == 0; }

/* Runs one step with rows[rank][role], every fifth row forced, and holds it to the definition. */
static void check_step(const all_weights *a, layer *l, const uint32_t rows[MAX_RANKS][BT_N_ROLES],
                       const char *what)
{
    static const uint16_t replay[TOP_K] = {0, 4, 5, 9, 11};
    bt_linear            *gate_up[N_EXPERTS], *down[N_EXPERTS];
    bt_moe_weights        w      = own_weights(a, l, gate_up, down);
    uint32_t              n      = rows[g_rank][0] + rows[g_rank][1];
    bt_bf16              *x      = calloc((size_t)n * HIDDEN + 1, sizeof(*x));
    bt_bf16              *y      = calloc((size_t)n * HIDDEN + 1, sizeof(*y));
    uint16_t             *forced = calloc((size_t)n * TOP_K + 1, sizeof(*forced));
    uint16_t             *chosen = calloc((size_t)n * TOP_K + 1, sizeof(*chosen));
    bt_step_rows          counts = {.n_ranks = g_n_ranks, .n_rows = rows};
    bt_wait               wait   = waiting(60000);
    uint64_t              before[N_EXPERTS];

    NEED(x && y && forced && chosen);
    memcpy(before, bt_moe_expert_rows(l->moe), sizeof(before));
    for (uint32_t r = 0; r < n; r++) {
        make_x(g_rank, r, x + (size_t)r * HIDDEN);
        memset(forced + (size_t)r * TOP_K, 0xff, sizeof(replay));
        if (r % 5 == 1) memcpy(forced + (size_t)r * TOP_K, replay, sizeof(replay));
    }
    bt_alloc_fail_at(0); /* a step allocates nothing */
    EXPECT_EQ(bt_moe_forward(l->moe, &w, &counts, x, forced, y, chosen, &wait), BT_OK);
    bt_alloc_fail_at(-1);
    for (uint32_t r = 0; r < n; r++) {
        bt_role  role = r < rows[g_rank][0] ? BT_ROLE_PROMPT : BT_ROLE_GENERATED;
        bt_bf16  want[HIDDEN];
        uint16_t experts[TOP_K];

        if (!is_checked(r, n)) continue;
        define_row(a, role, x + (size_t)r * HIDDEN, r % 5 == 1 ? replay : NULL, want, experts);
        EXPECT(memcmp(experts, chosen + (size_t)r * TOP_K, sizeof(experts)) == 0);
        expect_row(y + (size_t)r * HIDDEN, want, r, what);
    }
    expect_counted(l, before, n, chosen);
    free(x);
    free(y);
    free(forced);
    free(chosen);
}

static void check_placement(const all_weights *a, const uint16_t *owner, const char *what)
{
    uint32_t rows[MAX_RANKS][BT_N_ROLES];
    layer    l;

    layer_open(&l, MAX_ROWS, owner);
    for (uint32_t pattern = 0; pattern < 12; pattern++) {
        for (uint32_t q = 0; q < g_n_ranks; q++)
            for (uint32_t role = 0; role < BT_N_ROLES; role++) {
                uint32_t h = hash(pattern, q, role);

                rows[q][role] = h % 3 == 0 ? 0 : h % (pattern < 6 ? 4 : 60);
            }
        check_step(a, &l, (const uint32_t(*)[BT_N_ROLES])rows, what);
    }
    memset(rows, 0, sizeof(rows));
    check_step(a, &l, (const uint32_t(*)[BT_N_ROLES])rows, "no rows at all");
    for (uint32_t q = 0; q < g_n_ranks; q++) {
        rows[q][BT_ROLE_PROMPT]    = q % 2 == 0 ? MAX_ROWS - 200 : 0;
        rows[q][BT_ROLE_GENERATED] = 200;
    }
    check_step(a, &l, (const uint32_t(*)[BT_N_ROLES])rows, what);
    layer_close(&l);
}

static void moe_equals_its_definition_under_every_placement(void)
{
    uint16_t    owner[N_EXPERTS];
    all_weights a;

    weights_make(&a);
    check_placement(&a, NULL, "default");
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        owner[e] = (uint16_t)(e % g_n_ranks);
    check_placement(&a, owner, "every block split");
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        owner[e] = (uint16_t)(g_n_ranks - 1);
    check_placement(&a, owner, "all on the last rank");
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        owner[e] = (uint16_t)(e < BLOCK ? e % g_n_ranks : (N_EXPERTS - e) / BLOCK % g_n_ranks);
    check_placement(&a, owner, "one block split, others whole and shuffled");
    weights_free(&a);
}

/* One rank has all experts: its tile is full, is added up and begins again. */
static void moe_more_terms_than_a_tile_holds_equal_their_definition(void)
{
    uint32_t    rows[MAX_RANKS][BT_N_ROLES];
    uint16_t    owner[N_EXPERTS];
    uint32_t    n_rows = (TILE_TERMS / TOP_K + 1000) / g_n_ranks;
    all_weights a;
    layer       l;

    for (uint32_t e = 0; e < N_EXPERTS; e++)
        owner[e] = (uint16_t)(g_n_ranks - 1);
    for (uint32_t q = 0; q < g_n_ranks; q++) {
        rows[q][BT_ROLE_PROMPT]    = n_rows;
        rows[q][BT_ROLE_GENERATED] = 7;
    }
    weights_make(&a);
    layer_open(&l, n_rows + 7, owner);
    check_step(&a, &l, (const uint32_t(*)[BT_N_ROLES])rows, "more than a tile");
    layer_close(&l);
    weights_free(&a);
}

static void moe_refuses_rows_that_do_not_fit(void)
{
    uint32_t     rows[MAX_RANKS][BT_N_ROLES] = {{0}};
    bt_step_rows counts = {.n_ranks = g_n_ranks, .n_rows = (const uint32_t(*)[BT_N_ROLES])rows};
    bt_wait      wait   = waiting(1000);
    all_weights  a;
    layer        l;

    weights_make(&a);
    layer_open(&l, 8, NULL);
    rows[g_n_ranks - 1][BT_ROLE_PROMPT]    = 5;
    rows[g_n_ranks - 1][BT_ROLE_GENERATED] = 4;
    EXPECT_EQ(bt_moe_forward(l.moe, &a.w, &counts, NULL, NULL, NULL, NULL, &wait), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), "brings 9 rows to a step of at most 8");
    rows[g_n_ranks - 1][BT_ROLE_PROMPT] = UINT32_MAX; /* 3 with the others, in 32 bits */
    EXPECT_EQ(bt_moe_forward(l.moe, &a.w, &counts, NULL, NULL, NULL, NULL, &wait), BT_ERR_PROTOCOL);
    counts.n_ranks++;
    EXPECT_EQ(bt_moe_forward(l.moe, &a.w, &counts, NULL, NULL, NULL, NULL, &wait),
              BT_ERR_INVALID_ARG);
    layer_close(&l);
    weights_free(&a);
}

/* The last rank sends rows whose experts make no sense; the others must notice and name it. */
static void moe_names_a_peer_that_sends_nonsense(void)
{
    uint32_t     liar                        = g_n_ranks - 1;
    uint32_t     rows[MAX_RANKS][BT_N_ROLES] = {{0}};
    bt_step_rows counts = {.n_ranks = g_n_ranks, .n_rows = (const uint32_t(*)[BT_N_ROLES])rows};
    bt_wait      wait   = waiting(60000);
    size_t       bytes  = bt_wire_elems(HIDDEN, TOP_K) * sizeof(bt_bf16);
    size_t       zero[MAX_RANKS] = {0}, sizes[MAX_RANKS] = {0}, come[MAX_RANKS] = {bytes};
    all_weights  a;
    layer        l;
    uint16_t    *row = calloc(bytes, 1), *came = calloc(bytes, 1);
    bt_bf16      x[HIDDEN] = {0}, y[HIDDEN]; /* of rank 0's row, which is good */
    char         says[64];

    NEED(row != NULL && came != NULL);
    if (g_n_ranks == 1) goto out;
    weights_make(&a);
    layer_open(&l, 8, NULL);
    rows[0][BT_ROLE_PROMPT] = rows[liar][BT_ROLE_GENERATED] = 1;
    snprintf(says, sizeof(says), "row 0 of rank %u (world rank %u) names experts", liar, liar);
    if (g_rank == liar) {
        row[HIDDEN + 2] = N_EXPERTS; /* not below the number of experts */
        for (uint32_t q = 0; q < g_n_ranks; q++)
            sizes[q] = q == g_rank ? 0 : bytes;
        EXPECT_EQ(bt_group_exchange(l.group, row, zero, sizes, came, zero, come, &wait), BT_OK);
    } else {
        EXPECT_EQ(bt_moe_forward(l.moe, &a.w, &counts, x, NULL, y, NULL, &wait), BT_ERR_PROTOCOL);
        EXPECT_HAS(bt_error_text(), says);
        EXPECT_HAS(bt_error_text(), "ascending ids below 12");
    }
    layer_close(&l);
    weights_free(&a);
out:
    free(came);
    free(row);
}

/* The last rank does not come. */
static void moe_that_waits_in_vain_says_for_what(void)
{
    uint32_t     ranks[MAX_RANKS] = {0, 1, 2, 3}, rows[MAX_RANKS][BT_N_ROLES] = {{0}};
    bt_step_rows counts = {.n_ranks = g_n_ranks, .n_rows = (const uint32_t(*)[BT_N_ROLES])rows};
    bt_wait      wait   = waiting(200);
    all_weights  a;
    layer        l = {0};

    if (g_n_ranks == 1) return;
    weights_make(&a);
    NEED(bt_group_create(g_world, g_n_ranks, ranks, 1, 9, &l.group) == BT_OK); /* with tags apart */
    NEED(bt_placement_init(&l.placement, N_EXPERTS, N_BLOCKS, g_n_ranks) == BT_OK);
    NEED(bt_moe_create(g_dev, l.group, &l.placement, &CFG, 8, &l.moe) == BT_OK);
    rows[g_n_ranks - 1][BT_ROLE_PROMPT] = 1;
    if (g_rank != g_n_ranks - 1) {
        EXPECT_EQ(bt_moe_forward(l.moe, &a.w, &counts, NULL, NULL, NULL, NULL, &wait),
                  BT_ERR_TIMEOUT);
        EXPECT_HAS(bt_error_text(), "moe dispatch of layer 7 in epoch 9");
    }
    layer_close(&l);
    weights_free(&a);
}

static void moe_create_unwinds_at_every_allocation(void)
{
    uint32_t     ranks[MAX_RANKS] = {0, 1, 2, 3};
    bt_group    *group            = NULL;
    bt_moe      *moe              = NULL;
    bt_placement placement;

    NEED(bt_group_create(g_world, g_n_ranks, ranks, 0, 1, &group) == BT_OK);
    NEED(bt_placement_init(&placement, N_EXPERTS, N_BLOCKS, g_n_ranks) == BT_OK);
    EXPECT(BT_SWEEP(bt_moe_create(g_dev, group, &placement, &CFG, 16, &moe), bt_moe_destroy(moe)) >
           20);
    EXPECT_EQ(bt_moe_create(g_dev, group, &placement, &CFG, 16, &moe), BT_OK);
    EXPECT(bt_moe_workspace_bytes(moe) > 0);
    bt_moe_destroy(moe);
    bt_moe_destroy(NULL);
    bt_placement_fini(&placement);
    bt_group_destroy(group);
}

static void moe_create_refuses_what_does_not_fit(void)
{
    uint32_t      ranks[MAX_RANKS] = {0, 1, 2, 3};
    bt_moe_config cfg              = CFG;
    bt_group     *group            = NULL;
    bt_moe       *moe              = NULL;
    bt_placement  placement;

    NEED(bt_group_create(g_world, g_n_ranks, ranks, 0, 1, &group) == BT_OK);
    NEED(bt_placement_init(&placement, N_EXPERTS, N_BLOCKS, g_n_ranks) == BT_OK);
    EXPECT_EQ(bt_moe_create(g_dev, group, &placement, &cfg, 0, &moe), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "0 rows: each must be above 0");
    cfg.gate.top_k = 10; /* three groups of three are kept */
    EXPECT_EQ(bt_moe_create(g_dev, group, &placement, &cfg, 8, &moe), BT_ERR_INVALID_ARG);
    cfg                = CFG;
    cfg.gate.n_experts = 2 * N_EXPERTS; /* not the placement's */
    EXPECT_EQ(bt_moe_create(g_dev, group, &placement, &cfg, 8, &moe), BT_ERR_INVALID_ARG);
    cfg            = CFG;
    cfg.expert_dim = 0;
    EXPECT_EQ(bt_moe_create(g_dev, group, &placement, &cfg, 8, &moe), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_moe_create(g_dev, group, &placement, &CFG, UINT32_MAX, &moe), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "4294967295 rows: expected less than 67108863 rows in all");
    bt_placement_fini(&placement);
    NEED(bt_placement_init(&placement, N_EXPERTS, N_BLOCKS, g_n_ranks + 1) == BT_OK);
    EXPECT_EQ(bt_moe_create(g_dev, group, &placement, &CFG, 8, &moe), BT_ERR_INVALID_ARG);
    EXPECT(moe == NULL);
    bt_placement_fini(&placement);
    bt_group_destroy(group);
}

static const bt_test TESTS[] = {
    BT_TEST(moe_equals_its_definition_under_every_placement),
    BT_TEST(moe_more_terms_than_a_tile_holds_equal_their_definition),
    BT_TEST(moe_refuses_rows_that_do_not_fit),
    BT_TEST(moe_names_a_peer_that_sends_nonsense),
    BT_TEST(moe_that_waits_in_vain_says_for_what),
    BT_TEST(moe_create_unwinds_at_every_allocation),
    BT_TEST(moe_create_refuses_what_does_not_fit),
};

/* usage: mpiexec -n N test_moe [test]; any rank's failure fails the job. */
int main(int argc, char **argv)
{
    bt_device_cpu_options opt = {.n_threads = 2, .kernels = "auto"};
    int                   rc;

    NEED(bt_world_init(&argc, &argv, &g_world) == BT_OK);
    g_n_ranks = bt_world_size(g_world);
    g_rank    = bt_world_rank(g_world);
    NEED(g_n_ranks <= MAX_RANKS);
    NEED(bt_device_cpu_create(&opt, &g_dev) == BT_OK);
    rc = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    bt_device_destroy(g_dev);
    bt_world_fini(g_world);
    return rc;
}
