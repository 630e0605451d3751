/* The profile: its models against their published sizes, its formulas against the figures of the
 * reference, and the program as a user runs it. */
#include <math.h>
#include <unistd.h>

#include "tests/support/command.h"
#include "tests/support/test.h"
#include "tools/profile/analysis.h"
#include "tools/profile/measure.h"
#include "tools/profile/report.h"
#include "tools/profile/study001.h"
#include "tools/profile/text.h"

static const char *g_program;
static bt_command  g_command;

static int run(const char *args)
{
    char        line[512], *rest = line;
    const char *argv[24] = {g_program};
    int         n        = 1;

    snprintf(line, sizeof(line), "%s", args);
    while (n < 23 && (argv[n] = strtok_r(rest, " ", &rest)) != NULL)
        n++;
    argv[n] = NULL;
    return bt_command_run(&g_command, argv, NULL, 250);
}

/* KV bytes a token over all layers, and the sum of all parameters in millions. */
static void profile_knows_the_published_models(void)
{
    static const struct {
        const char *name;
        uint64_t    kv_bytes;
        double      total;
    } WANT[] = {
        {"v2",              69120, 235741e6},
        {"v2.5",            69120, 235741e6},
        {"v2-lite",         31104, 15706e6 },
        {"v3",              70272, 671026e6},
        {"r1",              70272, 671026e6},
        {"v3.2",            70272, 671878e6},
        {"kimi-k2",         70272, 1026.4e9},
        {"moonlight",       31104, 15960e6 },
        {"glm-flash",       54144, 29943e6 },
        {"glm-5",           89856, 743.9e9 },
        {"mistral-large-3", 70272, 673.4e9 },
        {"mistral-small-4", 23040, 118.97e9},
        {"longcat-flash",   64512, 560.66e9},
        {"minicpm3",        35712, 4.07e9  },
    };
    static bt_profile_model m;

    for (size_t i = 0; i < sizeof(WANT) / sizeof(WANT[0]); i++) {
        EXPECT_EQ(bt_profile_model_find(WANT[i].name, &m), BT_OK);
        EXPECT_EQ(bt_profile_latent_bytes(&m), WANT[i].kv_bytes);
        EXPECT(fabs((double)(m.attention_params + m.expert_params + m.other_params) -
                    WANT[i].total) < 1e6);
        /* What attention and experts leave must be embedding, head, dense MLPs and the like. */
        EXPECT((double)m.other_params > 0);
        EXPECT(m.expert_params == 0 || (double)m.other_params < 0.3 * WANT[i].total);
    }
    EXPECT_EQ(bt_profile_model_find("v3", &m), BT_OK);
    EXPECT(fabs(m.mla.softmax_scale - 0.1352338) < 1e-7);
    EXPECT_EQ(bt_profile_model_find("v2", &m), BT_OK);
    EXPECT(fabs(m.mla.softmax_scale - 0.1147214) < 1e-7);
    EXPECT_EQ(bt_profile_expanded_bytes(&m), 60 * 81920);
    EXPECT_EQ(bt_profile_model_find(BT_SOURCE_DIR "/models/demo", &m), BT_OK);
    EXPECT_EQ(m.n_layers, 4);
    EXPECT_EQ(bt_profile_model_find("v9", &m), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "kimi-k2");
}

static void profile_counts_weights_in_8_bits(void)
{
    static bt_profile_model m;
    static const double     FP8  = 1 + 4.0 / 128;           /* with scales */
    const double            kv_b = 3 * 4 * (32 + 32) * 128; /* layers, heads, nope + v, latent */

    EXPECT_EQ(bt_profile_model_find(BT_SOURCE_DIR "/tests/models/v3-fp8", &m), BT_OK);
    EXPECT(m.fp8);
    EXPECT_EQ(m.expert_bytes, 663552 * FP8);
    EXPECT_EQ(m.attention_bytes, 2 * kv_b + (366240 - kv_b) * FP8);
    /* Dense and shared MLPs; embedding, head, routers and norms. */
    EXPECT_EQ(m.other_bytes, (184320 + 82944) * FP8 + 2 * (2 * 61440 + 3088 + 1344));
    EXPECT_EQ(run(BT_SOURCE_DIR "/tests/models/v3-fp8 --analysis --gpu H100"), 0);
    EXPECT_HAS(g_command.output, "weights (FP8) on a rank");
    EXPECT_EQ(bt_profile_model_find("v3", &m), BT_OK);
    EXPECT(!m.fp8 && m.expert_bytes == 2.0 * (double)m.expert_params);
}

static void profile_counts_weights_in_4_bits(void)
{
    static bt_profile_model m;

    EXPECT_EQ(bt_profile_model_find(BT_SOURCE_DIR "/tests/models/k2-int4", &m), BT_OK);
    EXPECT(m.int4 && !m.fp8);
    EXPECT_EQ(m.expert_params, 2 * 12 * 3 * 160 * 96);
    EXPECT_EQ(m.expert_bytes, (double)m.expert_params * 9 / 16);
    EXPECT_EQ(m.attention_bytes, 2.0 * (double)m.attention_params);
    EXPECT_EQ(m.other_bytes, 2.0 * (double)m.other_params);
    EXPECT_EQ(run(BT_SOURCE_DIR "/tests/models/k2-int4 --analysis --gpu H100"), 0);
    EXPECT_HAS(g_command.output, "weights (bf16, experts in 4 bits) on a rank");
}

static void study001_figures_are_those_of_the_reference(void)
{
    EXPECT(bt_study001_us("A100-40GB", 1, 131072, BT_VARIANT_A_CC_ME) == 2397.1f);
    EXPECT(bt_study001_us("A100-40GB", 32, 8192, BT_VARIANT_CD) == 16277.1f);
    EXPECT(bt_study001_us("RTX4080", 1, 65536, BT_VARIANT_CC) == 41709.1f);
    EXPECT(bt_study001_us("RTX4080", 32, 512, BT_VARIANT_AM_CC_ME) == 5772.7f);
    EXPECT(bt_study001_us("RTX4080", 32, 16384, BT_VARIANT_CD) == 0); /* out of memory */
    EXPECT(bt_study001_us("A100-40GB", 1, 33, BT_VARIANT_CD) == 0);
    /* At batch 32 on the A100, A_CC_ME lost at every length. */
    for (uint32_t n = 32; n <= 8192; n *= 2) {
        double ratio = bt_study001_us("A100-40GB", 32, n, BT_VARIANT_CD) /
                       bt_study001_us("A100-40GB", 32, n, BT_VARIANT_A_CC_ME);

        EXPECT(ratio > 0.535 && ratio < 0.80);
    }
}

/* In microseconds, of the layer without kv_a and norms. */
static void roof_gives_known_floors_of_an_a100(void)
{
    static bt_profile_model m;
    bt_variant_account      me;
    const bt_roof          *a100 = bt_roof_gpu("a100-40gb");

    EXPECT_EQ(bt_profile_model_find("v2", &m), BT_OK);
    me = bt_variant_account_of(BT_VARIANT_A_CC_ME, &m.mla);
    me.weight_bytes -= 2ull * (5120 * 576 + 1536 + 512);
    EXPECT(fabs(bt_roof_step_s(a100, &me, 1, 32) * 1e6 - 188) < 1);
    EXPECT(fabs(bt_roof_step_s(a100, &me, 1, 131072) * 1e6 - 305) < 1);
    EXPECT(fabs(bt_roof_step_s(a100, &me, 32, 8192) * 1e6 - 422) < 1);
    EXPECT(fabs(bt_roof_step_s(a100, &me, 32, 65536) * 1e6 - 2060) < 1);
    EXPECT(bt_roof_gpu("A100") == NULL);
}

static void shares_of_ranks_follow_the_rules(void)
{
    static bt_profile_model m;
    bt_roof                 roof = *bt_roof_gpu("H200");
    bt_analysis             a    = {.model = &m, .roof = &roof, .batch = 1, .n_keys = 32};
    bt_analysis_rank        tp, dp, pd;

    EXPECT_EQ(bt_profile_model_find("v3", &m), BT_OK);
    tp = bt_analysis_share(&a, BT_SHARE_TP, 16);
    dp = bt_analysis_share(&a, BT_SHARE_DP_EP, 16);
    pd = bt_analysis_share(&a, BT_SHARE_PD, 32);
    EXPECT(tp.kv_bytes == 70272); /* every rank has every latent */
    EXPECT(dp.kv_bytes == 70272 / 16.0);
    EXPECT(pd.kv_bytes == dp.kv_bytes && pd.weight_bytes == dp.weight_bytes);
    EXPECT(tp.weight_bytes < dp.weight_bytes && dp.tokens > tp.tokens);
    EXPECT(bt_analysis_share(&a, BT_SHARE_DP_EP, 32).tokens >
           10 * bt_analysis_share(&a, BT_SHARE_TP, 32).tokens);
    EXPECT(bt_analysis_share(&a, BT_SHARE_TP, 1).tokens == 0); /* 1.3 TB of weights */
}

static void price_of_the_laws_is_one_where_the_forms_agree(void)
{
    static bt_profile_model m;

    EXPECT_EQ(bt_profile_model_find("v2", &m), BT_OK);
    EXPECT(bt_analysis_chunk_price(&m.mla, 8192, 8192) == 1);
    EXPECT(bt_analysis_chunk_price(&m.mla, 32768, 512) == 1);
    EXPECT(bt_analysis_chunk_price(&m.mla, 32768, 64) > 2);
    for (uint32_t p = 256; p <= 65536; p *= 2) {
        uint32_t q = bt_study_crossover_causal(&m.mla, p);

        EXPECT(bt_analysis_normal_flops(&m.mla, p, q) <= bt_analysis_absorbed_flops(&m.mla, p, q));
        EXPECT(bt_analysis_normal_flops(&m.mla, p, q - 1) >
               bt_analysis_absorbed_flops(&m.mla, p, q - 1));
    }
}

static void text_has_few_digits_and_a_unit(void)
{
    EXPECT(strcmp(bt_text_bytes(1152).text, "1.152 kB") == 0);
    EXPECT(strcmp(bt_text_bytes(81920).text, "81.92 kB") == 0);
    EXPECT(strcmp(bt_text_flops(33636352).text, "33.64 MFLOP") == 0);
    EXPECT(strcmp(bt_text_bytes(0).text, "0 B") == 0);
    EXPECT(strcmp(bt_text_time(0.000358).text, "358.0 us") == 0);
    EXPECT(strcmp(bt_text_time(12.5).text, "12.50 s") == 0);
    EXPECT(strcmp(bt_text_count(312700).text, "312.7 k") == 0);
    EXPECT(strcmp(bt_text_time(INFINITY).text, "-") == 0);
}

static void program_teaches_its_use(void)
{
    EXPECT_EQ(run("--help"), 0);
    EXPECT_HAS(g_command.output, "Examples:");
    EXPECT_HAS(g_command.output, "--explain=Q,KV,BATCH");
    EXPECT_HAS(g_command.output, "CD         caches each");
}

static void program_refuses_what_it_cannot_read(void)
{
    EXPECT_EQ(run("--like v9"), 64);
    EXPECT_HAS(g_command.output, "--like is \"v9\", expected one of v2, v2-lite");
    EXPECT_EQ(run("/nowhere/at/all --out made"), 1);
    EXPECT_HAS(g_command.output, "known are v2, v2-lite");
    EXPECT(rmdir("made") != 0); /* nothing was made for nothing */
    EXPECT_EQ(run("--batch 0"), 64);
    EXPECT_EQ(run("--context 32,x"), 64);
    EXPECT_EQ(run("--variants CD,fused"), 64);
    EXPECT_HAS(g_command.output, "--variants CD,fused: expected some of CD, CC");
    EXPECT_EQ(run("--explain 1,2"), 64);
    EXPECT_EQ(run("--explain 9,8,1"), 64);
    EXPECT_HAS(g_command.output, "at least Q");
    EXPECT_EQ(run("--gpu H999"), 64);
    EXPECT_HAS(g_command.output, "RTX4080");
    EXPECT_EQ(run("--like v2 --kernels mmx --analysis"), 64);
    EXPECT_EQ(run("--like v2 --out /nowhere/at/all"), 1); /* at once, before it measures */
    EXPECT_HAS(g_command.output, "--out /nowhere/at/all: No such file or directory");
    EXPECT(strstr(g_command.output, "measuring") == NULL);
    EXPECT_EQ(run("--json --csv"), 64);
    EXPECT_EQ(run("--analysis --seconds 3"), 64);
    EXPECT_HAS(g_command.output, "--seconds has no effect with --analysis: leave it out, since");
    EXPECT_EQ(run("--explain 1,2,3 --out d"), 64);
    EXPECT_HAS(g_command.output, "--out has no effect with --explain");
    EXPECT_EQ(run("v2 v3"), 64);
}

static void program_explains_a_form(void)
{
    EXPECT_EQ(run("--like v2 --explain 170,131072,1 --gpu A100-40GB"), 0);
    EXPECT_HAS(g_command.output, "takes the absorbed form");
    EXPECT_EQ(run("--like v2 --explain 171,131072,8 --gpu A100-40GB"), 0);
    EXPECT_HAS(g_command.output, "takes the normal form");
    EXPECT_HAS(g_command.output, "8 requests");
    EXPECT_HAS(g_command.output, "q* = 170.44");
}

static void program_analyses_a_model_on_a_gpu(void)
{
    EXPECT_EQ(run("--like v2 --analysis --gpu A100-40GB"), 0);
    EXPECT_HAS(g_command.output, "81.92 kFLOP");
    EXPECT_HAS(g_command.output, "33.64 MFLOP");
    EXPECT_HAS(g_command.output, "278.5 kFLOP");
    EXPECT_HAS(g_command.output, "1.152 kB");
    EXPECT_HAS(g_command.output, "98.59 % less");
    EXPECT_HAS(g_command.output, "170.67");
    EXPECT_HAS(g_command.output, "6.34x");
    EXPECT_EQ(run(BT_SOURCE_DIR "/models/demo --analysis --gpu H100"), 0);
    EXPECT_HAS(g_command.output, "4 layers");
}

/* What the report prints of a measurement; owned by this function until the next call. */
static const char *report_of(const bt_measurement *m)
{
    static bt_profile_model model;
    static char            *text;
    size_t                  n;
    FILE                   *to;

    free(text);
    text = NULL;
    to   = open_memstream(&text, &n);
    if (to == NULL || bt_profile_model_find("v2", &model) != BT_OK) abort();
    bt_report_print(&model, m, to);
    fclose(to);
    return text;
}

/* One point at which `kind` ran beside the fused kernel. */
static void set_point(bt_measurement *m, bt_variant_kind kind, uint32_t n_rounds, double distance)
{
    bt_point done = {.state = BT_POINT_DONE, .n_rounds = n_rounds, .step_s = 1, .roof_s = 1};

    memset(m, 0, sizeof(*m));
    m->n_points  = 1;
    m->points[0] = (bt_measured){.batch = 3, .n_keys = 5};
    for (int k = 0; k < BT_N_VARIANTS; k++)
        m->points[0].of[k].state = BT_POINT_LEFT_OUT;
    done.over_fused = done.cpu_over_fused = (bt_ratio){1, 0.875, 1.125};
    m->points[0].of[BT_VARIANT_FUSED]     = done;
    m->points[0].of[kind]                 = done;
    m->points[0].of[kind].distance        = distance;
}

static void report_tells_a_variant_with_another_result(void)
{
    static bt_measurement m;
    static const char     SAME[] = "gave the fused kernel's result";

    set_point(&m, BT_VARIANT_CC, 9, 0.04);
    EXPECT_EQ(bt_report_check(&m), BT_OK);
    EXPECT_HAS(report_of(&m), "result, to 0.04 of its rms (comparisons: 1)");
    for (int i = 0; i < 2; i++) {
        set_point(&m, BT_VARIANT_CC, 9, i == 0 ? 0.06 : NAN);
        EXPECT_EQ(bt_report_check(&m), BT_ERR_DEVICE);
        EXPECT_HAS(bt_error_text(), "CC at batch 3, context 5: expected");
        EXPECT(strstr(report_of(&m), SAME) == NULL);
    }
    set_point(&m, BT_VARIANT_FUSED, 9, 0); /* alone: nothing was compared */
    EXPECT_EQ(bt_report_check(&m), BT_OK);
    EXPECT(strstr(report_of(&m), SAME) == NULL);
}

static void report_gives_intervals_of_enough_rounds_only(void)
{
    static bt_measurement m;

    set_point(&m, BT_VARIANT_CC, 6, 0);
    EXPECT_HAS(report_of(&m), "CC   1.000x (0.875-1.125)");
    set_point(&m, BT_VARIANT_CC, 5, 0);
    EXPECT_HAS(report_of(&m), "CC   1.000x - ");
}

static void program_says_politely_what_does_not_fit(void)
{
    EXPECT_EQ(run("--like v2-lite --batch 4096 --context 1048576 --seconds 1"), 0);
    EXPECT_HAS(g_command.output, "needs 4.9");
    EXPECT_HAS(g_command.output, "TB");
}

static void program_measures_the_variants_asked_for(void)
{
    EXPECT_EQ(run(BT_SOURCE_DIR "/models/demo --variants A_CC_ME,CD --batch 1 --context 9 --csv "
                                "--seconds 0.05"),
              0);
    EXPECT_HAS(g_command.output, "demo,CD,1,9,measured");
    EXPECT_HAS(g_command.output, "demo,CC,1,9,left out,");
    EXPECT_HAS(g_command.output, "demo,A_CC_ME,1,9,measured");
    EXPECT_HAS(g_command.output, "demo,fused,1,9,measured");
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(profile_knows_the_published_models),
        BT_TEST(profile_counts_weights_in_8_bits),
        BT_TEST(profile_counts_weights_in_4_bits),
        BT_TEST(study001_figures_are_those_of_the_reference),
        BT_TEST(roof_gives_known_floors_of_an_a100),
        BT_TEST(shares_of_ranks_follow_the_rules),
        BT_TEST(price_of_the_laws_is_one_where_the_forms_agree),
        BT_TEST(text_has_few_digits_and_a_unit),
        BT_TEST(program_teaches_its_use),
        BT_TEST(program_refuses_what_it_cannot_read),
        BT_TEST(program_explains_a_form),
        BT_TEST(program_analyses_a_model_on_a_gpu),
        BT_TEST(report_tells_a_variant_with_another_result),
        BT_TEST(report_gives_intervals_of_enough_rounds_only),
        BT_TEST(program_says_politely_what_does_not_fit),
        BT_TEST(program_measures_the_variants_asked_for),
    };

    bt_log_init("test", BT_LOG_ERROR);
    if (argc < 2) return EXIT_FAILURE;
    g_program = argv[1];
    return BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
}
