/* Sparse attention of the CPU back end against the scalar twin, bit by bit: which positions rows
 * choose, and what they make of them. */
#include "attention/cpu/attn_cpu.h"
#include "tests/attention/identity.h"

enum {
    TOPK    = 150, /* no multiple of a page */
    I_HEADS = 21,  /* nor of lanes */
    I_DIM   = 24,
    KV      = WIDTH + I_DIM,
    CONTEXT = 1500 /* over two chunks of keys */
};

static const bt_mla_config CFG = {.hidden        = 1,
                                  .n_heads       = HEADS,
                                  .q_lora_rank   = 1,
                                  .kv_lora_rank  = DIM,
                                  .qk_nope_dim   = DIM,
                                  .qk_rope_dim   = ROPE,
                                  .v_dim         = DIM,
                                  .softmax_scale = 0.4f,
                                  .max_context   = CONTEXT,
                                  .index_topk    = TOPK,
                                  .index_heads   = I_HEADS,
                                  .index_dim     = I_DIM};
static float               g_w[CONTEXT][I_HEADS];
static bt_bf16             g_q[CONTEXT][Q], g_rows[CONTEXT][KV], g_out[CONTEXT][HEADS][DIM];
static bt_bf16             g_index_q[CONTEXT][I_HEADS][I_DIM];

static void fill_all(uint32_t seed)
{
    static bt_bf16 w[CONTEXT][I_HEADS];

    fill(g_q[0], sizeof(g_q) / 2, seed, 4);
    fill(g_rows[0], sizeof(g_rows) / 2, seed + 1, 1);
    fill(g_index_q[0][0], sizeof(g_index_q) / 2, seed + 2, 1);
    fill(w[0], sizeof(w) / 2, seed + 3, 1);
    for (uint32_t t = 0; t < CONTEXT; t++)
        for (uint32_t h = 0; h < I_HEADS; h++)
            g_w[t][h] = bt_bf16_to_f32(w[t][h]);
}

static void write_pages(void)
{
    for (uint32_t t = 0; t < CONTEXT; t++)
        memcpy(bt_kv_pool_rows(g_pool, g_pages[t / BT_PAGE_TOKENS], 0) +
                   (size_t)(t % BT_PAGE_TOKENS) * KV,
               g_rows[t], sizeof(g_rows[t]));
}

/* A step whose rows are positions from `start` on. */
static bt_attn_call call_of(const bt_mla_weights *w, const bt_span *span, uint32_t start)
{
    return (bt_attn_call){.w       = w,
                          .pool    = g_pool,
                          .q       = g_q[start],
                          .out     = g_out[start][0],
                          .index_q = g_index_q[start][0],
                          .index_w = g_w[start],
                          .n_spans = 1,
                          .spans   = span};
}

static void run(uint32_t start, uint32_t end)
{
    bt_mla_weights w    = {.uk = g_identity, .ukt = g_identity, .uv = g_identity};
    bt_span        span = {g_pages, 0, end - start, start, BT_ROLE_GENERATED, BT_FORM_ABSORBED};
    bt_attn_call   call = call_of(&w, &span, start);

    EXPECT_EQ(g_attn->ops->choose(g_attn, &call), BT_OK);
    EXPECT_EQ(g_attn->ops->attend_chosen(g_attn, &call), BT_OK);
}

static float twin_score(uint32_t pos, uint32_t key)
{
    float lanes[16] = {0};

    for (uint32_t h = 0; h < I_HEADS; h++) {
        float dot = twin_dot(g_index_q[pos][h], g_rows[key] + WIDTH, I_DIM, 0);

        lanes[h % 16] = lanes[h % 16] + g_w[pos][h] * (dot > 0 ? dot : 0);
    }
    return twin_sum(lanes);
}

/* The largest, of equal ones the earliest, ascending; returns how many. */
static uint32_t twin_choose(uint32_t pos, uint32_t *chosen)
{
    static float scores[CONTEXT];
    static bool  taken[CONTEXT];
    uint32_t     n = 0, most = pos + 1 < TOPK ? pos + 1 : TOPK;

    memset(taken, 0, sizeof(taken));
    for (uint32_t key = 0; key <= pos; key++)
        scores[key] = twin_score(pos, key);
    for (uint32_t i = 0; i < most; i++) {
        uint32_t best = CONTEXT;

        for (uint32_t key = 0; key <= pos; key++)
            if (!taken[key] && (best == CONTEXT || scores[key] > scores[best])) best = key;
        taken[best] = true;
    }
    for (uint32_t key = 0; key <= pos; key++)
        if (taken[key]) chosen[n++] = key;
    return n;
}

/* What position pos makes of what `chooser` chooses. */
static void twin_at(uint32_t pos, uint32_t chooser, bt_bf16 want[HEADS][DIM])
{
    uint32_t  chosen[TOPK], n = twin_choose(chooser, chosen);
    float     scores[TOPK];
    bt_bf16   values[TOPK][DIM];
    twin_keys keys = {.scores = scores,
                      .values = values[0],
                      .ld     = DIM,
                      .n      = n,
                      .block  = BLOCK,
                      .part   = bt_attn_absorbed_part(HEADS, n),
                      .scale  = CFG.softmax_scale,
                      .v_dim  = DIM};

    for (uint32_t i = 0; i < n; i++)
        memcpy(values[i], g_rows[chosen[i]], sizeof(values[i]));
    for (uint32_t h = 0; h < HEADS; h++) {
        const bt_bf16 *q = g_q[pos] + (size_t)h * WIDTH;

        for (uint32_t i = 0; i < n; i++)
            scores[i] = twin_dot(q + DIM, g_rows[chosen[i]] + DIM, ROPE,
                                 twin_dot(q, g_rows[chosen[i]], DIM, 0));
        twin_attend(&keys, want[h]);
    }
}

static void expect_at(uint32_t pos, uint32_t chooser)
{
    bt_bf16 want[HEADS][DIM];
    bool    same;

    twin_at(pos, chooser, want);
    same = memcmp(g_out[pos], want, sizeof(want)) == 0;
    if (!same) fprintf(stderr, "position %u differs\n", pos);
    EXPECT(same);
}

static void expect_chosen(uint32_t start, uint32_t pos)
{
    const uint32_t *got = ((const bt_attn_cpu *)g_attn)->chosen + (size_t)(pos - start) * TOPK;
    uint32_t        want[TOPK];

    EXPECT_EQ(twin_choose(pos, want), TOPK);
    if (memcmp(got, want, sizeof(want)) == 0) return;
    fprintf(stderr, "position %u chooses others\n", pos);
    EXPECT(false);
}

static void chosen_rows_equal_the_twin(void)
{
    static const uint32_t AT[] = {0,   1,    TOPK - 2, TOPK - 1, TOPK, TOPK + 1,   200,
                                  255, 1023, 1024,     1087,     1088, CONTEXT - 1};

    fill_all(1);
    write_pages();
    memset(g_out, 0xff, sizeof(g_out));
    run(0, CONTEXT);
    for (size_t i = 0; i < sizeof(AT) / sizeof(AT[0]); i++) {
        expect_at(AT[i], AT[i]);
        if (AT[i] >= TOPK) expect_chosen(0, AT[i]);
    }
    memset(g_out, 0xff, sizeof(g_out));
    for (uint32_t start = TOPK - 5; start < TOPK + 5; start++) { /* rows that come alone */
        run(start, start + 1);
        expect_at(start, start);
    }
    run(CONTEXT - 3, CONTEXT);
    for (uint32_t pos = CONTEXT - 3; pos < CONTEXT; pos++)
        expect_at(pos, pos);
}

/* Runs of equal keys around the last one that is chosen; none that is above 0; negative scores. */
static void chosen_of_equal_scores_are_the_earliest(void)
{
    fill_all(20);
    for (uint32_t t = 0; t < CONTEXT; t++)
        memcpy(g_rows[t] + WIDTH, g_rows[t % 7] + WIDTH, I_DIM * sizeof(bt_bf16));
    for (uint32_t t = 600; t < 700; t++)
        memset(g_rows[t] + WIDTH, 0, I_DIM * sizeof(bt_bf16));
    for (uint32_t h = 0; h < I_HEADS; h++)
        g_w[901][h] = -g_w[901][h] * g_w[901][h];
    memset(g_index_q[902], 0, sizeof(g_index_q[902]));
    write_pages();
    run(700, 1000);
    for (uint32_t pos = 890; pos < 910; pos++)
        expect_chosen(700, pos);
}

/* A key of which nothing is known, and a row whose scores are none: what is chosen is as many
 * positions as ever, each of them the row's own. */
static void chosen_positions_are_positions_whatever_the_scores(void)
{
    fill_all(30);
    for (uint32_t t = 50; t < 300; t++)
        memset(g_rows[t] + WIDTH, 0xff, I_DIM * sizeof(bt_bf16));
    g_w[400][3] = NAN;
    g_w[401][3] = -INFINITY;
    write_pages();
    run(380, 420);
    for (uint32_t pos = 380; pos < 420; pos++) {
        const uint32_t *got = ((const bt_attn_cpu *)g_attn)->chosen + (size_t)(pos - 380) * TOPK;

        for (uint32_t i = 0; i < TOPK; i++)
            EXPECT(got[i] <= pos && (i == 0 || got[i] > got[i - 1]));
    }
}

/* Where one key begins a chunk of keys, and is the only one that is no zero. */
static void chosen_key_that_is_alone_in_its_chunk(void)
{
    enum { KEY = 1024 };
    const uint32_t *chosen = ((const bt_attn_cpu *)g_attn)->chosen;

    fill_all(60);
    for (uint32_t t = 0; t < CONTEXT; t++)
        memset(g_rows[t] + WIDTH, 0, I_DIM * sizeof(bt_bf16));
    write_pages();
    run(CONTEXT - 3, CONTEXT); /* no score is left from rows before */
    fill(g_rows[KEY] + WIDTH, I_DIM, 61, 1);
    for (uint32_t h = 0; h < I_HEADS; h++)
        g_w[KEY][h] = 1;
    write_pages();
    run(KEY, KEY + 1);
    for (uint32_t i = 0; i < TOPK; i++)
        EXPECT_EQ(chosen[i], i + 1 < TOPK ? i : KEY);
}

/* For one row at least, and no more rows than there is room for; what create() takes is counted. */
static void chosen_workspaces_are_bounded(void)
{
    static const struct {
        uint32_t topk, max_rows, n_gathered;
    } CASES[] = {
        {2048,    4,   4  },
        {2048,    512, 14 }, /* of 32 pages, in 32 MiB */
        {64,      512, 128},
        {1 << 17, 4,   1  },
    };
    enum { LONG = 1 << 18 };
    bt_attn      *attn = NULL, *dense = NULL;
    bt_mla_config cfg = CFG;

    cfg.kv_lora_rank = 512;
    cfg.qk_rope_dim  = 64;
    cfg.max_context  = LONG;
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        cfg.index_topk = CASES[i].topk;
        EXPECT_EQ(bt_attn_cpu_ops.large_bytes(&cfg, CASES[i].max_rows),
                  CASES[i].max_rows * CASES[i].topk * 4ull + BT_MAX_CHOOSERS * LONG * 4ull +
                      CASES[i].n_gathered * (CASES[i].topk / BT_PAGE_TOKENS * 73728ull));
    }
    cfg.index_topk = 0;
    EXPECT_EQ(bt_attn_cpu_ops.large_bytes(&cfg, 4), 0);
    NEED(bt_attn_cpu_ops.create(g_dev, &CFG, 4, g_rope, &attn) == BT_OK);
    cfg             = CFG;
    cfg.max_context = TOPK; /* of which all is attended to */
    NEED(bt_attn_cpu_ops.create(g_dev, &cfg, 4, g_rope, &dense) == BT_OK);
    EXPECT(attn->bytes - dense->bytes >= bt_attn_cpu_ops.large_bytes(&CFG, 4));
    attn->ops->destroy(attn);
    dense->ops->destroy(dense);
}

/* Requests of other lengths beside each other, the longest first. */
static void chosen_lengths_beside_each_other_equal_the_twin(void)
{
    static const uint32_t AT[] = {1400, 160, 149, 151, 1100, 20};
    enum { N = sizeof(AT) / sizeof(AT[0]) };
    static bt_bf16 q[N][Q], index_q[N][I_HEADS][I_DIM], out[N][HEADS][DIM];
    static float   w[N][I_HEADS];
    bt_mla_weights weights = {.uk = g_identity, .ukt = g_identity, .uv = g_identity};
    bt_span        spans[N];
    bt_attn_call   call = {.w       = &weights,
                           .pool    = g_pool,
                           .q       = q[0],
                           .out     = out[0][0],
                           .index_q = index_q[0][0],
                           .index_w = w[0],
                           .n_spans = N,
                           .spans   = spans};

    fill_all(50);
    write_pages();
    for (uint32_t i = 0; i < N; i++) {
        spans[i] = (bt_span){g_pages, i, 1, AT[i], BT_ROLE_GENERATED, BT_FORM_ABSORBED};
        memcpy(q[i], g_q[AT[i]], sizeof(q[i]));
        memcpy(index_q[i], g_index_q[AT[i]], sizeof(index_q[i]));
        memcpy(w[i], g_w[AT[i]], sizeof(w[i]));
    }
    EXPECT_EQ(g_attn->ops->choose(g_attn, &call), BT_OK);
    EXPECT_EQ(g_attn->ops->attend_chosen(g_attn, &call), BT_OK);
    for (uint32_t i = 0; i < N; i++) {
        memcpy(g_out[AT[i]], out[i], sizeof(out[i]));
        expect_at(AT[i], AT[i]);
    }
}

/* In a layer without an indexer rows attend to what was chosen before, under another number where
 * step_rows says so. */
static void chosen_lists_serve_other_rows(void)
{
    enum { START = 800, N = 90 };
    bt_mla_weights w       = {.uk = g_identity, .ukt = g_identity, .uv = g_identity};
    bt_span        all     = {g_pages, 0, N, START, BT_ROLE_PROMPT, BT_FORM_ABSORBED};
    bt_span        some    = {g_pages, 0, 3, START + 40, BT_ROLE_PROMPT, BT_FORM_ABSORBED};
    uint32_t       rows[3] = {40, 41, 42};
    bt_attn_call   call    = call_of(&w, &all, START);

    fill_all(40);
    write_pages();
    EXPECT_EQ(g_attn->ops->choose(g_attn, &call), BT_OK);
    call.index_q = NULL;
    EXPECT_EQ(g_attn->ops->attend_chosen(g_attn, &call), BT_OK);
    for (uint32_t pos = START; pos < START + N; pos += 13)
        expect_at(pos, pos);

    call           = call_of(&w, &some, START + 40);
    call.index_q   = NULL;
    call.step_rows = rows;
    memset(g_out, 0xff, sizeof(g_out));
    EXPECT_EQ(g_attn->ops->attend_chosen(g_attn, &call), BT_OK);
    for (uint32_t i = 0; i < 3; i++)
        expect_at(START + 40 + i, START + 40 + i);
    rows[0] = 20; /* another row's list */
    EXPECT_EQ(g_attn->ops->attend_chosen(g_attn, &call), BT_OK);
    expect_at(START + 40, START + 20);
}

static const bt_test TESTS[] = {
    BT_TEST(chosen_rows_equal_the_twin),
    BT_TEST(chosen_lengths_beside_each_other_equal_the_twin),
    BT_TEST(chosen_of_equal_scores_are_the_earliest),
    BT_TEST(chosen_positions_are_positions_whatever_the_scores),
    BT_TEST(chosen_lists_serve_other_rows),
    BT_TEST(chosen_key_that_is_alone_in_its_chunk),
    BT_TEST(chosen_workspaces_are_bounded),
};

int main(int argc, char **argv)
{
    return identity_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]), &CFG, CONTEXT, 3);
}
