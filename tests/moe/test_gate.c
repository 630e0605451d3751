/* The gates against hand-made cases, and against an oracle that sorts in double precision. */
#include "moe/gate.h"

#include <math.h>

#include "tests/support/test.h"

static const bt_gate_config GREEDY = {.kind        = BT_GATE_SOFTMAX,
                                      .n_experts   = 4,
                                      .top_k       = 2,
                                      .n_groups    = 1,
                                      .topk_groups = 1,
                                      .norm_topk   = false,
                                      .scale       = 2.0f};
static const bt_gate_config V2     = {.kind        = BT_GATE_SOFTMAX_GROUPS,
                                      .n_experts   = 8,
                                      .top_k       = 3,
                                      .n_groups    = 4,
                                      .topk_groups = 2,
                                      .norm_topk   = false,
                                      .scale       = 16.0f};
static const bt_gate_config V3     = {.kind        = BT_GATE_SIGMOID_BIAS,
                                      .n_experts   = 8,
                                      .top_k       = 2,
                                      .n_groups    = 4,
                                      .topk_groups = 2,
                                      .norm_topk   = true,
                                      .scale       = 2.5f};

static void expect_near(float got, double want)
{
    if (!(fabs((double)got - want) <= 1e-6 * (1.0 + fabs(want)))) {
        fprintf(stderr, "weight %.9g, want %.9g\n", (double)got, want);
        g_failures++;
    }
}

static void gate_greedy_takes_the_best_and_scales(void)
{
    static const float logits[4] = {0.0f, 2.0f, 1.0f, -1.0f}, steep[4] = {200.0f};
    uint16_t           experts[2];
    float              w[2];
    double             sum = exp(0.0) + exp(2.0) + exp(1.0) + exp(-1.0);

    bt_gate_select(&GREEDY, logits, NULL, NULL, experts, w);
    EXPECT_EQ(experts[0], 1);
    EXPECT_EQ(experts[1], 2);
    expect_near(w[0], 2.0 * exp(2.0) / sum);
    expect_near(w[1], 2.0 * exp(1.0) / sum);
    bt_gate_select(&GREEDY, steep, NULL, NULL, experts, w); /* exp(200) is no float */
    expect_near(w[0], 2.0);
}

static void gate_softmax_divides_and_scales(void)
{
    static const float logits[4] = {0.0f, 2.0f, 1.0f, -1.0f};
    bt_gate_config     cfg       = GREEDY;
    uint16_t           experts[2];
    float              w[2];

    cfg.norm_topk = true;
    bt_gate_select(&cfg, logits, NULL, NULL, experts, w);
    expect_near(w[0], 2.0 * exp(2.0) / (exp(2.0) + exp(1.0)));
    expect_near(w[1], 2.0 * exp(1.0) / (exp(2.0) + exp(1.0)));
    cfg.top_k = 1; /* one weight alone is divided by itself */
    bt_gate_select(&cfg, logits, NULL, NULL, experts, w);
    expect_near(w[0], 2.0);
}

static void gate_v2_keeps_groups_by_their_best_expert(void)
{
    /* Groups (0 1) (2 3) (4 5) (6 7): best experts 5, 4, 3, 2.  Expert 5 and 7 are out although
     * both beat expert 1. */
    static const float logits[8] = {5.0f, -3.0f, 4.0f, 0.0f, 3.0f, 2.9f, 2.0f, 1.9f};
    uint16_t           experts[3];
    float              w[3];

    bt_gate_select(&V2, logits, NULL, NULL, experts, w);
    EXPECT_EQ(experts[0], 0);
    EXPECT_EQ(experts[1], 2);
    EXPECT_EQ(experts[2], 3);
}

static void gate_v3_groups_by_two_best_and_bias_only_selects(void)
{
    /* Group (2 3) has the single best z, but (0 1) and (6 7) the better pairs. */
    static const float logits[8] = {1.0f, 1.0f, 2.0f, -9.0f, -1.0f, -1.0f, 0.5f, 1.5f};
    static const float bias[8]   = {0.0f, 0.05f, 0.0f, 0.0f, 0.0f, 0.0f, 0.3f, 0.0f};
    double             s6 = 1 / (1 + exp(-0.5)), s7 = 1 / (1 + exp(-1.5));
    uint16_t           experts[2];
    float              w[2];

    bt_gate_select(&V3, logits, bias, NULL, experts, w);
    EXPECT_EQ(experts[0], 6); /* 0.6225 + 0.3 */
    EXPECT_EQ(experts[1], 7); /* 0.8176 beats 0.7311 + 0.05 */
    expect_near(w[0], 2.5 * s6 / (s6 + s7));
    expect_near(w[1], 2.5 * s7 / (s6 + s7));
}

static void gate_v3_takes_groups_of_one_expert(void)
{
    static const float logits[8] = {-4.0f, 1.0f, -3.0f, 3.0f, -2.0f, 2.0f, -1.0f, 0.0f};
    bt_gate_config     cfg       = V3;
    uint16_t           experts[2];
    float              w[2];

    cfg.n_groups = 8;
    bt_gate_select(&cfg, logits, NULL, NULL, experts, w);
    EXPECT_EQ(experts[0], 3);
    EXPECT_EQ(experts[1], 5);
}

static void gate_never_leaves_the_kept_groups(void)
{
    /* All choice scores are below zero: a mask of 0 would let dropped groups in. */
    static const float logits[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    static const float bias[8]   = {-9.0f, -9.0f, -1.0f, -3.0f, -8.0f, -8.0f, -2.0f, -2.0f};
    uint16_t           experts[2];
    float              w[2];

    bt_gate_select(&V3, logits, bias, NULL, experts, w);
    EXPECT_EQ(experts[0], 2); /* kept: (2 3) and (6 7) */
    EXPECT_EQ(experts[1], 6);
}

static void gate_ties_go_to_the_lower_id(void)
{
    static const float logits[8] = {0};
    uint16_t           experts[3];
    float              w[3];

    bt_gate_select(&V2, logits, NULL, NULL, experts, w);
    for (uint16_t j = 0; j < 3; j++)
        EXPECT_EQ(experts[j], j);
    bt_gate_select(&V3, logits, NULL, NULL, experts, w);
    for (uint16_t j = 0; j < 2; j++)
        EXPECT_EQ(experts[j], j);
}

static void gate_survives_nan_and_infinity(void)
{
    static const float logits[4]  = {NAN, -INFINITY, INFINITY, 3.0f};
    static const float nothing[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    bt_gate_config     cfg        = GREEDY;
    uint16_t           experts[3];
    float              w[3];

    bt_gate_select(&cfg, logits, NULL, NULL, experts, w);
    EXPECT_EQ(experts[0], 1); /* 1 and 3 both have score 0: the lower id; NaN is below them */
    EXPECT_EQ(experts[1], 2);
    expect_near(w[0], 0.0);
    expect_near(w[1], 2.0);
    cfg.kind = BT_GATE_SIGMOID_BIAS;
    bt_gate_select(&cfg, logits, NULL, NULL, experts, w);
    EXPECT_EQ(experts[0], 2);
    EXPECT_EQ(experts[1], 3);
    expect_near(w[0], 2.0);
    bt_gate_select(&V2, nothing, NULL, NULL, experts, w);
    EXPECT_EQ(experts[2], 2);
    expect_near(w[0], 0.0);
    bt_gate_select(&V3, nothing, nothing, NULL, experts, w);
    EXPECT_EQ(experts[1], 1);
    expect_near(w[0], 0.0);
}

static void gate_keeps_out_what_a_nan_or_an_infinity_spoils(void)
{
    static const float logits[8] = {NAN, 0.0f, 1.0f, 1.0f, 2.0f, 2.0f, -1.0f, -1.0f};
    static const float zero[8]   = {0};
    static const float bias[8] = {0.0f, INFINITY}, nan_bias[8] = {NAN};
    bt_gate_config     single = V3;
    uint16_t           experts[2];
    float              w[2];

    bt_gate_select(&V3, logits, bias, NULL, experts, w); /* -inf and inf: no score of a group */
    EXPECT_EQ(experts[0], 4);
    EXPECT_EQ(experts[1], 5);
    single.n_groups = single.topk_groups = 1;
    bt_gate_select(&single, zero, nan_bias, NULL, experts, w);
    EXPECT_EQ(experts[0], 1);
    EXPECT_EQ(experts[1], 2);
}

static void gate_forced_experts_take_weights_from_the_scores(void)
{
    static const float    logits[8] = {5.0f, -3.0f, 4.0f, 0.0f, 3.0f, 2.9f, 2.0f, 1.9f};
    static const uint16_t forced[2] = {1, 5}, twice[2] = {4, 4}, down[2] = {5, 1}, out[2] = {1, 8};
    double                s1 = 1 / (1 + exp(3.0)), s5 = 1 / (1 + exp(-2.9));
    uint16_t              experts[2];
    float                 w[2];

    EXPECT(bt_gate_forced_ok(&V3, forced));
    EXPECT(!bt_gate_forced_ok(&V3, twice));
    EXPECT(!bt_gate_forced_ok(&V3, down));
    EXPECT(!bt_gate_forced_ok(&V3, out));
    bt_gate_select(&V3, logits, NULL, forced, experts, w);
    EXPECT_EQ(experts[0], 1);
    EXPECT_EQ(experts[1], 5);
    expect_near(w[0], 2.5 * s1 / (s1 + s5));
    expect_near(w[1], 2.5 * s5 / (s1 + s5));
}

static void gate_check_refuses_numbers_that_do_not_fit(void)
{
    bt_gate_config cfg;

    EXPECT_EQ(bt_gate_check(&V2), BT_OK);
    EXPECT_EQ(bt_gate_check(&V3), BT_OK);
    cfg       = V3;
    cfg.top_k = 5; /* two groups of two are kept */
    EXPECT_EQ(bt_gate_check(&cfg), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "top-k 5");
    cfg.top_k = 0;
    EXPECT_EQ(bt_gate_check(&cfg), BT_ERR_INVALID_ARG);
    cfg          = V3;
    cfg.n_groups = 3;
    EXPECT_EQ(bt_gate_check(&cfg), BT_ERR_INVALID_ARG);
    cfg             = V3;
    cfg.topk_groups = 5;
    EXPECT_EQ(bt_gate_check(&cfg), BT_ERR_INVALID_ARG);
    cfg           = V3;
    cfg.n_experts = BT_MAX_EXPERTS;
    EXPECT_EQ(bt_gate_check(&cfg), BT_OK);
    cfg.n_groups = cfg.topk_groups = 1;
    cfg.top_k                      = BT_MAX_TOP_K;
    EXPECT_EQ(bt_gate_check(&cfg), BT_OK);
    cfg.top_k++;
    EXPECT_EQ(bt_gate_check(&cfg), BT_ERR_INVALID_ARG);
    cfg.top_k = 1;
    cfg.n_experts++;
    EXPECT_EQ(bt_gate_check(&cfg), BT_ERR_INVALID_ARG);
    cfg       = V3;
    cfg.scale = NAN;
    EXPECT_EQ(bt_gate_check(&cfg), BT_ERR_INVALID_ARG);
}

static uint32_t g_random = 1;
static float    random_logit(void)
{
    g_random = g_random * 1664525u + 1013904223u;
    return (float)(g_random >> 8) / (float)(1 << 22) - 2.0f;
}

/* How many of values[0..n) stand before i, when sorted descending and then by id. */
static uint32_t rank_of(uint32_t n, const double *values, uint32_t i)
{
    uint32_t before = 0;

    for (uint32_t o = 0; o < n; o++)
        before += values[o] > values[i] || (values[o] == values[i] && o < i);
    return before;
}

static void oracle(const bt_gate_config *cfg, const float *logits, const float *bias,
                   uint16_t *experts, double *weights)
{
    uint32_t n = cfg->n_experts, size = n / cfg->n_groups, j = 0;
    bool     sigmoid = cfg->kind == BT_GATE_SIGMOID_BIAS;
    double   s[64], z[64], groups[64], all = 0, sum = 0;

    for (uint32_t e = 0; e < n; e++)
        all += exp((double)logits[e]);
    for (uint32_t e = 0; e < n; e++) {
        s[e] = sigmoid ? 1 / (1 + exp(-(double)logits[e])) : exp((double)logits[e]) / all;
        z[e] = s[e] + (bias != NULL ? (double)bias[e] : 0);
    }
    for (uint32_t g = 0; g < cfg->n_groups; g++) {
        groups[g] = 0;
        for (uint32_t i = 0; i < size; i++)
            if (rank_of(size, z + g * size, i) < (sigmoid ? 2u : 1u)) groups[g] += z[g * size + i];
    }
    for (uint32_t e = 0; e < n && cfg->kind != BT_GATE_SOFTMAX && cfg->n_groups > 1; e++)
        if (rank_of(cfg->n_groups, groups, e / size) >= cfg->topk_groups) z[e] = -1e30;
    for (uint32_t e = 0; e < n; e++)
        if (rank_of(n, z, e) < cfg->top_k) experts[j++] = (uint16_t)e;
    for (j = 0; j < cfg->top_k; j++)
        sum += s[experts[j]];
    for (j = 0; j < cfg->top_k; j++)
        weights[j] = s[experts[j]] * (double)cfg->scale / (cfg->norm_topk ? sum : 1);
}

static void gate_agrees_with_a_sorting_oracle(void)
{
    static const bt_gate_config cfgs[] = {
        {BT_GATE_SOFTMAX,        64, 6, 1, 1, false, 1.0f  },
        {BT_GATE_SOFTMAX,        64, 6, 8, 1, false, 1.0f  }, /* greedy: groups only shape the sum */
        {BT_GATE_SOFTMAX,        32, 4, 1, 1, true,  1.8f  },
        {BT_GATE_SOFTMAX_GROUPS, 60, 6, 6, 3, false, 16.0f },
        {BT_GATE_SIGMOID_BIAS,   64, 8, 8, 4, true,  2.5f  },
        {BT_GATE_SIGMOID_BIAS,   48, 8, 1, 1, true,  2.827f},
        {BT_GATE_SIGMOID_BIAS,   16, 1, 1, 1, false, 1.8f  },
    };

    for (size_t c = 0; c < sizeof(cfgs) / sizeof(cfgs[0]); c++) {
        for (int round = 0; round < 200; round++) {
            float    logits[64], bias[64], w[8];
            uint16_t got[8], want[8];
            double   want_w[8];
            bool     biased = cfgs[c].kind == BT_GATE_SIGMOID_BIAS && round % 2 == 0;

            for (uint32_t e = 0; e < cfgs[c].n_experts; e++) {
                logits[e] = random_logit();
                bias[e]   = 0.1f * random_logit();
            }
            EXPECT_EQ(bt_gate_check(&cfgs[c]), BT_OK);
            bt_gate_select(&cfgs[c], logits, biased ? bias : NULL, NULL, got, w);
            oracle(&cfgs[c], logits, biased ? bias : NULL, want, want_w);
            for (uint32_t j = 0; j < cfgs[c].top_k; j++) {
                EXPECT_EQ(got[j], want[j]);
                expect_near(w[j], want_w[j]);
            }
        }
    }
}

static const bt_test TESTS[] = {
    BT_TEST(gate_greedy_takes_the_best_and_scales),
    BT_TEST(gate_softmax_divides_and_scales),
    BT_TEST(gate_v2_keeps_groups_by_their_best_expert),
    BT_TEST(gate_v3_groups_by_two_best_and_bias_only_selects),
    BT_TEST(gate_v3_takes_groups_of_one_expert),
    BT_TEST(gate_never_leaves_the_kept_groups),
    BT_TEST(gate_ties_go_to_the_lower_id),
    BT_TEST(gate_survives_nan_and_infinity),
    BT_TEST(gate_keeps_out_what_a_nan_or_an_infinity_spoils),
    BT_TEST(gate_forced_experts_take_weights_from_the_scores),
    BT_TEST(gate_check_refuses_numbers_that_do_not_fit),
    BT_TEST(gate_agrees_with_a_sorting_oracle),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }
