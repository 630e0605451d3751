/* What the variants cost: the formulas against an implementation that counts, and the figures of
 * the studies 001 and 002. */
#include "attention/reference/variants_counted.h"
#include "attention/variants/account.h"
#include "tests/attention/shapes.h"
#include "tests/attention/study.h"

static const bt_mla_config V2 = {.hidden       = 5120,
                                 .n_heads      = 128,
                                 .q_lora_rank  = 1536,
                                 .kv_lora_rank = 512,
                                 .qk_nope_dim  = 128,
                                 .qk_rope_dim  = 64,
                                 .v_dim        = 128};

static bt_mla_config dims(uint32_t c, uint32_t dn, uint32_t dv)
{
    return (bt_mla_config){
        .hidden = 2048, .n_heads = 16, .kv_lora_rank = c, .qk_nope_dim = dn, .v_dim = dv};
}

static void expect_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fprintf(stderr, "%.9g, want %.9g\n", got, want);
    EXPECT(fabs(got - want) <= tolerance);
}

static void account_of_every_variant_equals_what_is_counted(void)
{
    static const uint32_t PREFIX[] = {0, 1, 63, 65};

    for (int s = 0; s < N_SHAPES; s++) {
        layer_data      *d   = layer_data_new(SHAPES[s].name, &SHAPES[s].cfg);
        bt_study_weights w   = study_weights_new(d);
        bt_bf16         *x   = random_rows(1, d->cfg.hidden, 30);
        float           *out = bt_calloc(d->cfg.hidden, sizeof(float));

        for (size_t p = 0; p < (s == SHAPE_DEMO ? 2 : sizeof(PREFIX) / sizeof(PREFIX[0])); p++) {
            uint32_t n_keys = PREFIX[p] + 1;
            bt_bf16 *rows   = random_rows(PREFIX[p], d->cfg.kv_lora_rank + d->cfg.qk_rope_dim, 31);

            for (int kind = 0; kind < BT_N_VARIANTS; kind++) {
                bt_variant_account a = bt_variant_account_of((bt_variant_kind)kind, &d->cfg);
                bt_variant_counts  c = {0};

                EXPECT_EQ(bt_variant_counted((bt_variant_kind)kind, &d->cfg, &w, PREFIX[p], rows, x,
                                             out, &c),
                          BT_OK);
                EXPECT_EQ(a.row_flops + n_keys * a.key_flops, c.flops);
                EXPECT_EQ(a.weight_bytes, c.weight_bytes);
                EXPECT_EQ(n_keys * a.cache_bytes, c.cache_bytes);
                EXPECT_EQ(n_keys * a.moved_bytes, c.moved_bytes);
            }
            bt_free(rows);
        }
        bt_free(out);
        bt_free(x);
        study_weights_free(&w);
        layer_data_free(d);
    }
}

static void account_of_v2_gives_the_figures_of_study_001(void)
{
    bt_variant_account cd = bt_variant_account_of(BT_VARIANT_CD, &V2);
    bt_variant_account cc = bt_variant_account_of(BT_VARIANT_CC, &V2);
    bt_variant_account me = bt_variant_account_of(BT_VARIANT_A_CC_ME, &V2);

    EXPECT_EQ(cd.key_flops, 81920);    /* 0.08 MFLOP */
    EXPECT_EQ(cc.key_flops, 33636352); /* 33.64 */
    EXPECT_EQ(me.key_flops, 278528);   /* 0.28 */
    EXPECT_EQ(cd.cache_bytes, 81920);  /* 81.92 kB */
    EXPECT_EQ(me.cache_bytes, 1152);   /* 1.152 kB */
    EXPECT_EQ(cc.cache_bytes, 1152);
    expect_near((double)me.key_flops / (double)me.cache_bytes, 241.8, 0.05);
    expect_near((double)cd.key_flops / (double)cd.cache_bytes, 1, 0);
    expect_near(1 - (double)me.cache_bytes / (double)cd.cache_bytes, 0.9859, 0.00005);
    for (int kind = BT_VARIANT_A_CC; kind < BT_N_VARIANTS; kind++)
        EXPECT_EQ(bt_variant_account_of((bt_variant_kind)kind, &V2).key_flops, 278528);
    /* 292.6 MB of q_a, q_b, kv_b and o; here kv_a and the norms too.  Merged: 872 MB more for them.
     */
    EXPECT_EQ(me.weight_bytes - 2ull * (5120 * 576 + 1536 + 512), 292552704);
    expect_near((double)bt_variant_account_of(BT_VARIANT_AM_CC_ME, &V2).weight_bytes / 1e6, 919.1,
                1.5);
}

static void macs_of_v2_and_v3_give_the_figures_of_study_002(void)
{
    bt_mla_config v3 = V2;

    v3.hidden = 7168;
    expect_near(bt_study_macs_normal(&V2, 1, 4096), 8.110e10, 0.0005e10);
    expect_near(bt_study_macs_absorbed(&V2, 1, 4096), 1.280e10, 0.0005e10);
    expect_near(bt_study_macs_normal(&V2, 1, 131072), 2.591e12, 0.0005e12);
    expect_near(bt_study_macs_absorbed(&V2, 1, 131072), 4.049e11, 0.0005e11);
    expect_near(bt_study_macs_normal(&V2, 4096, 4096), 1.298e12, 0.0005e12);
    expect_near(bt_study_macs_absorbed(&V2, 4096, 4096), 2.948e12, 0.0005e12);
    expect_near(bt_study_macs_normal(&v3, 1, 4096), 8.596e10, 0.0005e10);
    expect_near(bt_study_macs_absorbed(&v3, 1, 4096), 1.766e10, 0.0005e10);
    expect_near(bt_study_macs_normal(&v3, 4096, 4096), 1.454e12, 0.0005e12);
    expect_near(bt_study_macs_absorbed(&v3, 4096, 4096), 3.103e12, 0.0005e12);
}

static void crossover_is_that_of_study_002(void)
{
    static const double KV[]         = {512, 1024, 4096, 32768, 131072};
    static const double TABLE[4][10] = {
        {512, 128, 128, 170.67, 128.0, 146.3, 163.8, 169.8, 170.4},
        {512, 192, 256, 398.2,  224.0, 286.7, 362.9, 393.4, 397.0},
        {256, 64,  128, 153.6,  118.2, 133.6, 148.0, 152.9, 153.4},
        {256, 64,  64,  85.3,   73.1,  78.8,  83.6,  85.1,  85.3 },
    };

    for (int f = 0; f < 4; f++) {
        bt_mla_config cfg =
            dims((uint32_t)TABLE[f][0], (uint32_t)TABLE[f][1], (uint32_t)TABLE[f][2]);

        expect_near(bt_study_crossover(&cfg, INFINITY), TABLE[f][3], 0.05);
        for (int i = 0; i < 5; i++)
            expect_near(bt_study_crossover(&cfg, KV[i]), TABLE[f][4 + i], 0.05);
    }
    for (double kv = 1; kv < 1e6; kv *= 1.7) {
        double limit = 512.0 / 3;

        expect_near(bt_study_crossover(&V2, kv), limit * kv / (kv + limit), 1e-9 * kv);
        /* It is where the two functions meet. */
        expect_near(bt_study_macs_normal(&V2, bt_study_crossover(&V2, kv), kv) /
                        bt_study_macs_absorbed(&V2, bt_study_crossover(&V2, kv), kv),
                    1, 1e-9);
    }
}

static void crossover_with_the_causal_mask_is_that_of_the_reference(void)
{
    static const uint32_t WANT[][2] = {
        {0,       0  },
        {256,     135},
        {512,     149},
        {1024,    159},
        {2048,    165},
        {4096,    168},
        {8192,    169},
        {16384,   170},
        {32768,   171},
        {131072,  171},
        {1 << 24, 171}
    };

    for (size_t i = 0; i < sizeof(WANT) / sizeof(WANT[0]); i++)
        EXPECT_EQ(bt_study_crossover_causal(&V2, WANT[i][0]), WANT[i][1]);
}

/* --form cost decides by the same count. */
static void cheaper_form_changes_at_the_crossover(void)
{
    for (uint32_t kv = 64; kv <= 131072; kv *= 2) {
        double at = bt_study_crossover(&V2, kv);

        EXPECT_EQ(bt_mla_cheaper_form(&V2, (uint32_t)floor(at), kv),
                  floor(at) < at ? BT_FORM_ABSORBED : BT_FORM_NORMAL);
        EXPECT_EQ(bt_mla_cheaper_form(&V2, (uint32_t)floor(at) + 1, kv), BT_FORM_NORMAL);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(account_of_every_variant_equals_what_is_counted),
        BT_TEST(account_of_v2_gives_the_figures_of_study_001),
        BT_TEST(macs_of_v2_and_v3_give_the_figures_of_study_002),
        BT_TEST(crossover_is_that_of_study_002),
        BT_TEST(crossover_with_the_causal_mask_is_that_of_the_reference),
        BT_TEST(cheaper_form_changes_at_the_crossover),
    };

    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
