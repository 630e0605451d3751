/* Both forms of the CPU back end against the scalar twin, bit by bit.  Keys and values are the same
 * in both, so that they compute the same: positions, pages, parts and their merge are what is left.
 */
#include <stdbool.h>

#include "attention/cpu/attn_cpu.h"
#include "tests/attention/identity.h"

enum { KV = WIDTH, CONTEXT = 4300, LONG = MAX_CONTEXT };

static bt_mla_config g_cfg = {.hidden        = 1,
                              .n_heads       = HEADS,
                              .kv_lora_rank  = DIM,
                              .qk_nope_dim   = DIM,
                              .qk_rope_dim   = ROPE,
                              .v_dim         = DIM,
                              .softmax_scale = 0.4f,
                              .max_context   = LONG};
static bt_bf16       g_q[LONG][Q], g_kv[LONG][KV], g_out[LONG][HEADS][DIM];

/* Positions [start, end) in one call: their pages, and, unless it is NULL, what they attend to. */
static void run(bt_attn *attn, uint32_t start, uint32_t end, const bt_attn_form *form)
{
    bt_mla_weights w    = {.uk = g_identity, .ukt = g_identity, .uv = g_identity};
    bt_span        span = {g_pages, 0, end - start, start, BT_ROLE_GENERATED, BT_FORM_NORMAL};
    bt_attn_call   call = {.w       = &w,
                           .pool    = g_pool,
                           .q       = g_q[start],
                           .kv      = g_kv[start],
                           .out     = g_out[start][0],
                           .n_spans = 1,
                           .spans   = &span};

    EXPECT_EQ(attn->ops->append(attn, &call), BT_OK);
    if (form == NULL) return;
    span.form = *form;
    EXPECT_EQ(attn->ops->attend[*form](attn, &call), BT_OK);
}

static void twin_at(uint32_t pos, bt_attn_form form, bt_bf16 want[HEADS][DIM])
{
    static float scores[LONG];
    twin_keys    keys = {.scores = scores,
                         .values = g_kv[0],
                         .ld     = KV,
                         .n      = pos + 1,
                         .block  = BLOCK,
                         .part   = pos < BLOCK ? BLOCK / 2 : BLOCK,
                         .scale  = g_cfg.softmax_scale,
                         .v_dim  = DIM};

    if (form == BT_FORM_NORMAL) keys.part = BT_ATTN_SPLIT_TOKENS;
    for (uint32_t h = 0; h < HEADS; h++) {
        const bt_bf16 *q = g_q[pos] + (size_t)h * KV;

        for (uint32_t j = 0; j <= pos; j++)
            scores[j] = twin_dot(q + DIM, g_kv[j] + DIM, ROPE, twin_dot(q, g_kv[j], DIM, 0));
        twin_attend(&keys, want[h]);
    }
}

static void expect_at(uint32_t pos, bt_bf16 want[HEADS][DIM])
{
    bool same = memcmp(g_out[pos], want, sizeof(g_out[pos])) == 0;

    if (!same) fprintf(stderr, "position %u differs\n", pos);
    EXPECT(same);
}

/* n positions in both forms, in one call and, with 4 ways, in three. */
static void expect_twin(uint32_t n, int n_ways)
{
    static const uint32_t AT[] = {0,    1,    62,   63,   64,   65,   127,  128,  255,
                                  256,  257,  511,  512,  1000, 2046, 2047, 2048, 2049,
                                  2111, 2112, 4095, 4096, 4097, 4150, 4272, 4299};
    enum { N_AT = sizeof(AT) / sizeof(AT[0]) };
    static bt_bf16 want[2][N_AT][HEADS][DIM];

    for (int form = 0; form < 2; form++)
        for (size_t i = 0; i < N_AT && AT[i] < n; i++)
            twin_at(AT[i], (bt_attn_form)form, want[form][i]);
    for (int way = 0; way < n_ways; way++) {
        bt_attn_form form  = way & 1 ? BT_FORM_ABSORBED : BT_FORM_NORMAL;
        uint32_t     split = way & 2 ? 2031 : 0;

        memset(g_out, 0xff, sizeof(g_out));
        if (split != 0) {
            run(g_attn, 0, 200, &form); /* the next rows are on both sides of 256 */
            run(g_attn, 200, split, &form);
        }
        run(g_attn, split, n, &form);
        for (size_t i = 0; i < N_AT && AT[i] < n; i++)
            expect_at(AT[i], want[form][i]);
    }
}

/* Before them another request was all NaN, which stays in the buffers that all of them share. */
static void attn_cpu_both_forms_equal_the_twin(void)
{
    memset(g_q, 0xff, sizeof(g_q));
    memset(g_kv, 0xff, sizeof(g_kv));
    for (int form = 0; form < 2; form++)
        run(g_attn, 0, CONTEXT, &(bt_attn_form){(bt_attn_form)form});
    fill(g_q[0], sizeof(g_q) / 2, 1, 4);
    fill(g_kv[0], sizeof(g_kv) / 2, 2, 1);
    expect_twin(CONTEXT, 4);
}

/* Rows of equal scores, a maximum that grows with the position, and one that is reached early. */
static void attn_cpu_moving_maxima_equal_the_twin(void)
{
    fill(g_q[0], sizeof(g_q) / 2, 3, 2);
    fill(g_kv[0], sizeof(g_kv) / 2, 4, 1);
    for (uint32_t t = 0; t < CONTEXT; t++) {
        memset(g_q[t], 0, KV * sizeof(bt_bf16));
        g_q[t][KV] = g_q[t][2 * KV] = bt_bf16_from_f32(8);
        g_kv[t][0]                  = bt_bf16_from_f32((float)t / 40);
    }
    g_kv[70][0] = bt_bf16_from_f32(200);
    expect_twin(2150, 2);
}

static void attn_cpu_subnormals_and_signed_zeros_equal_the_twin(void)
{
    fill(g_q[0], sizeof(g_q) / 2, 5, 0x1p100f);
    fill(g_kv[0], sizeof(g_kv) / 2, 6, 0x1p-122f);
    for (uint32_t t = 0; t < CONTEXT; t++)
        for (uint32_t i = t % 3; i < KV; i += 3)
            g_kv[t][i] = i % 2 ? 0x8000 : t % 2 ? 0x8003 : 0;
    expect_twin(2150, 2);
}

/* One thread has 8 slots for the parts of tiles: a tile of 10 parts goes through a wave and a
 * second takes its end together with the next tile's begin. */
static void attn_cpu_tiles_carried_over_waves_equal_the_twin(void)
{
    enum { FIRST = LONG - 60 };
    static bt_bf16        want[HEADS][DIM];
    bt_device_cpu_options opt = {.n_threads = 1, .kernels = g_family};
    bt_device            *dev = NULL;
    bt_attn              *one = NULL;

    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    EXPECT_EQ(bt_attn_cpu_ops.create(dev, &g_cfg, LONG, g_rope, &one), BT_OK);
    fill(g_q[0], sizeof(g_q) / 2, 7, 4);
    fill(g_kv[0], sizeof(g_kv) / 2, 8, 1);
    run(one, 0, FIRST, NULL);
    for (int form = 0; form < 2; form++) {
        memset(g_out, 0xff, sizeof(g_out));
        run(one, FIRST, LONG, &(bt_attn_form){(bt_attn_form)form});
        for (uint32_t pos = FIRST; pos < LONG; pos += 3) {
            twin_at(pos, (bt_attn_form)form, want);
            expect_at(pos, want);
        }
    }
    one->ops->destroy(one);
    bt_device_destroy(dev);
}

/* Decode steps, whose parts any number of threads share: 3 of them merge the parts of a head each.
 * Two rows of a request, with contexts as short as can be. */
static void attn_cpu_few_rows_on_any_threads_equal_the_twin(void)
{
    static const uint32_t AT[]     = {127,  128,  200,  255,  256,  300,  511,  512,  767,  900,
                                      1023, 1279, 1535, 2047, 2048, 2600, 4095, 4299, 7000, 8800};
    static const uint32_t TWO_AT[] = {0, 30, 63, 126};
    enum { N_AT = sizeof(AT) / sizeof(AT[0]), N_TWO = sizeof(TWO_AT) / sizeof(TWO_AT[0]) };
    static bt_bf16 want[N_AT][HEADS][DIM], of_two[HEADS][DIM];

    fill(g_q[0], sizeof(g_q) / 2, 11, 4);
    fill(g_kv[0], sizeof(g_kv) / 2, 12, 1);
    for (uint32_t t = 0; t <= AT[N_AT - 1]; t += CONTEXT)
        run(g_attn, t, t + CONTEXT, NULL);
    for (size_t i = 0; i < N_AT; i++)
        twin_at(AT[i], BT_FORM_ABSORBED, want[i]);
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads++) {
        bt_device_cpu_options opt  = {.n_threads = n_threads, .kernels = g_family};
        bt_device            *dev  = NULL;
        bt_attn              *attn = NULL;

        EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
        EXPECT_EQ(bt_attn_cpu_ops.create(dev, &g_cfg, 2, g_rope, &attn), BT_OK);
        memset(g_out, 0xff, sizeof(g_out));
        for (size_t i = 0; i < N_TWO; i++) {
            run(attn, TWO_AT[i], TWO_AT[i] + 2, &(bt_attn_form){BT_FORM_ABSORBED});
            for (uint32_t pos = TWO_AT[i]; pos < TWO_AT[i] + 2; pos++) {
                twin_at(pos, BT_FORM_ABSORBED, of_two);
                expect_at(pos, of_two);
            }
        }
        for (size_t i = 0; i < N_AT; i++) {
            run(attn, AT[i], AT[i] + 1, &(bt_attn_form){BT_FORM_ABSORBED});
            expect_at(AT[i], want[i]);
        }
        attn->ops->destroy(attn);
        bt_device_destroy(dev);
    }
}

static void ones_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    for (uint32_t i = 0; i < *(const uint32_t *)ctx; i++)
        row[i] = bt_bf16_from_f32(n % 3 == i % 2 ? 0.5f : 0.0f);
}

/* Queries that are much wider than a latent stay in their own scratch (the address sanitizer
 * tells), whatever the rows beside them. */
static void attn_cpu_heads_wider_than_the_latent_stay_apart(void)
{
    enum { ROWS = 128, RANK = 16, NOPE = 256, WIDE_KV = RANK + ROPE, WIDE_Q = NOPE + ROPE };
    static bt_bf16    q[ROWS][WIDE_Q], kv[ROWS][WIDE_KV], out[2][ROWS][DIM];
    uint32_t          rank = RANK;
    bt_mla_config     cfg  = g_cfg;
    bt_kv_pool_config room = {.n_layers = 1, .n_pages = ROWS / BT_PAGE_TOKENS, .kv_dim = WIDE_KV};
    bt_device_cpu_options opt  = {.n_threads = 1, .kernels = g_family};
    bt_device            *dev  = NULL;
    bt_attn              *attn = NULL;
    bt_kv_pool           *pool = NULL;
    bt_linear            *uk = NULL, *uv = NULL;
    bt_page_id            pages[ROWS / BT_PAGE_TOKENS];

    cfg.n_heads      = 1;
    cfg.kv_lora_rank = RANK;
    cfg.qk_nope_dim  = NOPE;
    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    EXPECT_EQ(bt_attn_cpu_ops.create(dev, &cfg, ROWS, g_rope, &attn), BT_OK);
    EXPECT_EQ(bt_kv_pool_create(dev, &room, &pool), BT_OK);
    EXPECT_EQ(bt_kv_pool_acquire(pool, room.n_pages, pages), BT_OK);
    EXPECT_EQ(bt_device_linear_create(dev, NOPE, RANK, ones_row, &rank, &uk), BT_OK);
    EXPECT_EQ(bt_device_linear_create(dev, DIM, RANK, ones_row, &rank, &uv), BT_OK);
    fill(kv[0], sizeof(kv) / 2, 9, 1);
    for (int way = 0; way < 2; way++) {
        fill(q[0], sizeof(q) / 2, 10, 1);
        for (uint32_t at = 0, n = way == 0 ? ROWS : ROWS / 2; at < ROWS; at += n) {
            bt_mla_weights w    = {.uk = &uk, .uv = &uv};
            bt_span        span = {pages, 0, n, at, BT_ROLE_PROMPT, BT_FORM_NORMAL};
            bt_attn_call   call = {.w       = &w,
                                   .pool    = pool,
                                   .q       = q[at],
                                   .kv      = kv[at],
                                   .out     = out[way][at],
                                   .n_spans = 1,
                                   .spans   = &span};

            EXPECT_EQ(attn->ops->append(attn, &call), BT_OK);
            EXPECT_EQ(attn->ops->attend[BT_FORM_NORMAL](attn, &call), BT_OK);
        }
    }
    EXPECT(memcmp(out[0], out[1], sizeof(out[0])) == 0);
    bt_device_linear_destroy(dev, uk);
    bt_device_linear_destroy(dev, uv);
    for (uint32_t i = 0; i < room.n_pages; i++)
        bt_kv_pool_release(pool, pages[i]);
    bt_kv_pool_destroy(pool);
    attn->ops->destroy(attn);
    bt_device_destroy(dev);
}

static void no_attend(const bt_cpu_attend_pages *pages) { (void)pages; }

static void expect_plan(const bt_attn_call *call, uint32_t n_heads, uint32_t n_threads,
                        uint32_t first_row, bt_absorbed_plan want)
{
    static const bt_cpu_kernels PLAIN = {.name = "plain"};
    bt_attn_cpu      a    = {.cfg.n_heads = n_heads, .n_members = n_threads, .kernels = &PLAIN};
    bt_absorbed_plan plan = bt_absorbed_plan_for(&a, call, first_row, BT_ABSORBED_ROWS);

    EXPECT_EQ(plan.tile_lanes, want.tile_lanes);
    EXPECT_EQ(plan.part_size, want.part_size);
}

/* Large tiles where a thread has them all; smaller ones, and parts, while they leave work for more
 * threads. */
static void attn_cpu_work_is_cut_for_the_threads(void)
{
    static const struct {
        uint32_t         n_heads, n_threads, n_rows, end; /* position after the last row */
        bt_absorbed_plan want;
    } CASES[] = {
        {128, 1,   1, 4096, {128, 2048}},
        {128, 16,  1, 4096, {16, 2048} },
        {128, 100, 1, 4096, {8, 2048}  },
        {128, 16,  3, 4096, {64, 2048} },
        {20,  1,   1, 100,  {32, 2048} },
        {8,   1,   1, 8192, {8, 2048}  },
        {8,   8,   1, 8192, {8, 512}   },
        {8,   64,  1, 8192, {8, 256}   },
        {8,   3,   1, 5000, {8, 256}   },
        {8,   8,   1, 256,  {8, 128}   },
    };
    bt_span      spans[2] = {{0}};
    bt_attn_call call     = {.n_spans = 1, .spans = spans};

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        spans[0].n_rows = CASES[i].n_rows;
        spans[0].start  = CASES[i].end - CASES[i].n_rows;
        expect_plan(&call, CASES[i].n_heads, CASES[i].n_threads, 0, CASES[i].want);
    }
    /* The block has the last row of a span alone, and then none of a longer one. */
    spans[0] = (bt_span){.n_rows = 200, .start = 4095};
    expect_plan(&call, 128, 16, 199, (bt_absorbed_plan){32, 2048});
    call.n_spans = 2;
    spans[0]     = (bt_span){.n_rows = 1, .start = 255};
    spans[1]     = (bt_span){.first_row = BT_ABSORBED_ROWS + 1, .n_rows = 9, .start = 8191};
    expect_plan(&call, 8, 8, 0, (bt_absorbed_plan){8, 128});
}

/* Where the keys of a page are packed for all tiles at once, a small one costs little. */
static void attn_cpu_tiles_are_small_where_pages_are_packed(void)
{
    static const bt_cpu_kernels PACKS = {.name = "packs", .attend_pages = no_attend};
    bt_attn_cpu                 a     = {.cfg.n_heads = 128, .n_members = 16, .kernels = &PACKS};
    bt_span                     span  = {.n_rows = 3, .start = 4093};
    bt_attn_call                call  = {.n_spans = 1, .spans = &span};

    EXPECT_EQ(bt_absorbed_plan_for(&a, &call, 0, BT_ABSORBED_ROWS).tile_lanes, 16);
}

static const bt_test TESTS[] = {
    BT_TEST(attn_cpu_work_is_cut_for_the_threads),
    BT_TEST(attn_cpu_tiles_are_small_where_pages_are_packed),
    BT_TEST(attn_cpu_both_forms_equal_the_twin),
    BT_TEST(attn_cpu_moving_maxima_equal_the_twin),
    BT_TEST(attn_cpu_subnormals_and_signed_zeros_equal_the_twin),
    BT_TEST(attn_cpu_tiles_carried_over_waves_equal_the_twin),
    BT_TEST(attn_cpu_few_rows_on_any_threads_equal_the_twin),
    BT_TEST(attn_cpu_heads_wider_than_the_latent_stay_apart),
};

int main(int argc, char **argv)
{
    return identity_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]), &g_cfg, CONTEXT, 2);
}
