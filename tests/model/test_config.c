/* What config.json says: every field, the spellings of rope, and what generation_config.json adds.
 */
#include <math.h>

#include "model/config.h"
#include "tests/model/config_patch.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

static bool near(double got, double want) { return fabs(got - want) <= 1e-8 * fabs(want); }
static bool near_fp32(double got, double want) { return fabs(got - want) <= 1e-6 * fabs(want); }

static void config_of_demo_has_every_field(void)
{
    bt_model_config c;

    EXPECT_EQ(bt_model_config_read(DEMO, &c), BT_OK);
    EXPECT(strcmp(c.model_type, "deepseek_v3") == 0);
    EXPECT(strcmp(c.architecture, "DeepseekV3ForCausalLM") == 0);
    EXPECT_EQ(c.vocab_size, 2048);
    EXPECT_EQ(c.hidden, 256);
    EXPECT_EQ(c.n_layers, 4);
    EXPECT_EQ(c.max_context, 8192);
    EXPECT(near(c.rms_norm_eps, 1e-6f));
    EXPECT(!c.tie_embeddings);
    EXPECT_EQ(c.mla.hidden, 256);
    EXPECT_EQ(c.mla.n_heads, 4);
    EXPECT_EQ(c.mla.q_lora_rank, 192);
    EXPECT_EQ(c.mla.kv_lora_rank, 512);
    EXPECT_EQ(c.mla.qk_nope_dim, 128);
    EXPECT_EQ(c.mla.qk_rope_dim, 64);
    EXPECT_EQ(c.mla.v_dim, 128);
    EXPECT_EQ(c.mla.max_context, 8192);
    EXPECT(c.mla.latent_eps == 1e-6f);
    EXPECT(c.mla.rope_inv_freq == c.rope_inv_freq);
    EXPECT(c.mla.rope_magnitude == 1);
    EXPECT(c.yarn && c.yarn_factor == 4 && c.yarn_original_context == 2048);
    EXPECT_EQ(c.dense_dim, 512);
    EXPECT_EQ(c.first_moe_layer, 1);
    EXPECT_EQ(c.moe_layer_freq, 1);
    EXPECT_EQ(c.moe.hidden, 256);
    EXPECT_EQ(c.moe.expert_dim, 64);
    EXPECT_EQ(c.moe.shared_dim, 64);
    EXPECT_EQ(c.moe.gate.kind, BT_GATE_SIGMOID_BIAS);
    EXPECT_EQ(c.moe.gate.n_experts, 16);
    EXPECT_EQ(c.moe.gate.top_k, 4);
    EXPECT_EQ(c.moe.gate.n_groups, 4);
    EXPECT_EQ(c.moe.gate.topk_groups, 2);
    EXPECT(c.moe.gate.norm_topk && c.moe.gate.scale == 2.5f);
    EXPECT_EQ(c.n_mtp_layers, 1);
    EXPECT(!c.fp8 && !c.int4);
    EXPECT_EQ(c.bos_token, 0);
    EXPECT_EQ(c.pad_token, -1);
    EXPECT_EQ(c.n_eos, 1);
    EXPECT_EQ(c.eos_tokens[0], 1);
    EXPECT(strcmp(c.default_sampling_json, "{\"temperature\":0.6,\"top_p\":0.95}") == 0);
    EXPECT_EQ(bt_model_n_moe_layers(&c), 3);
    EXPECT(!bt_model_layer_is_moe(&c, 0) && bt_model_layer_is_moe(&c, 1));
}

static void config_of_every_model_is_read(void)
{
    static const struct {
        const char  *dir;
        bt_gate_kind kind;
        uint32_t     n_heads, q_lora, shared, groups;
        float        eps;
        bool         yarn, fp8, int4;
    } MODELS[] = {
        {"v2-lite",   BT_GATE_SOFTMAX,        4, 0,  96,  1, 1e-6f, true,  false, false},
        {"v2",        BT_GATE_SOFTMAX_GROUPS, 6, 56, 80,  4, 1e-6f, true,  false, false},
        {"v3-fp8",    BT_GATE_SIGMOID_BIAS,   4, 96, 72,  4, 1e-6f, true,  true,  false},
        {"kimi-k2",   BT_GATE_SIGMOID_BIAS,   2, 48, 32,  1, 1e-5f, true,  false, false},
        {"k2-int4",   BT_GATE_SIGMOID_BIAS,   4, 48, 96,  1, 1e-5f, true,  false, true },
        {"moonlight", BT_GATE_SIGMOID_BIAS,   4, 0,  96,  1, 1e-5f, false, false, false},
        {"glm-flash", BT_GATE_SIGMOID_BIAS,   5, 48, 48,  1, 1e-5f, false, false, false},
        {"v3.2",      BT_GATE_SIGMOID_BIAS,   4, 96, 72,  4, 1e-6f, true,  true,  false},
        {"glm-5",     BT_GATE_SIGMOID_BIAS,   5, 48, 48,  1, 1e-5f, false, false, false},
        {"axk1",      BT_GATE_SIGMOID_BIAS,   4, 48, 48,  4, 1e-5f, true,  false, false},
        {"mistral-4", BT_GATE_SOFTMAX,        4, 48, 128, 1, 1e-6f, true,  true,  false},
    };

    for (size_t i = 0; i < sizeof(MODELS) / sizeof(MODELS[0]); i++) {
        bt_model_config c;
        char            dir[512];

        snprintf(dir, sizeof(dir), "%s/tests/models/%s", BT_SOURCE_DIR, MODELS[i].dir);
        EXPECT_EQ(bt_model_config_read(dir, &c), BT_OK);
        EXPECT_EQ(c.moe.gate.kind, MODELS[i].kind);
        EXPECT_EQ(c.mla.n_heads, MODELS[i].n_heads);
        EXPECT_EQ(c.mla.q_lora_rank, MODELS[i].q_lora);
        EXPECT_EQ(c.moe.shared_dim, MODELS[i].shared);
        EXPECT_EQ(c.moe.gate.n_groups, MODELS[i].groups);
        EXPECT(c.rms_norm_eps == MODELS[i].eps);
        EXPECT_EQ(c.yarn, MODELS[i].yarn);
        EXPECT_EQ(c.fp8, MODELS[i].fp8);
        EXPECT_EQ(c.int4, MODELS[i].int4);
        EXPECT(c.default_sampling_json[0] == '\0');
    }
}

/* Published values: DeepSeek-V3, V2, Kimi-K2. */
static void config_yarn_gives_the_published_numbers(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
                           "\"original_max_position_embeddings\": 4096, \"beta_fast\": 32, "
                           "\"beta_slow\": 1, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}}",
                           &c),
              BT_OK);
    EXPECT(c.rope_inv_freq[0] == 1);
    EXPECT(near(c.rope_inv_freq[10], 0.056234132519));
    EXPECT(fabs(c.rope_inv_freq[11] - 0.0390069266) < 1e-10);
    EXPECT(fabs(c.rope_inv_freq[16] - 0.0055) < 1e-12);
    EXPECT(fabs(c.rope_inv_freq[22] - 1.77827941e-4) < 1e-12);
    EXPECT(fabs(c.rope_inv_freq[23] - 3.33380358e-5) < 1e-13);
    EXPECT(fabs(c.rope_inv_freq[31] - 3.33380358e-6) < 1e-14);
    EXPECT(fabs(c.mla.softmax_scale - 0.1352338) < 1e-7);
    EXPECT(c.mla.rope_magnitude == 1);

    EXPECT_EQ(read_patched("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
                           "\"original_max_position_embeddings\": 4096, \"mscale\": 0.707, "
                           "\"mscale_all_dim\": 0.707}}",
                           &c),
              BT_OK);
    EXPECT(fabs(c.mla.softmax_scale - 0.1147214) < 1e-7);

    EXPECT_EQ(read_patched("{\"rope_theta\": 50000.0, \"rope_scaling\": {\"type\": \"yarn\", "
                           "\"factor\": 32.0, \"original_max_position_embeddings\": 4096, "
                           "\"beta_fast\": 1.0, \"beta_slow\": 1.0, \"mscale\": 1.0, "
                           "\"mscale_all_dim\": 1.0}}",
                           &c),
              BT_OK);
    EXPECT(fabs(c.rope_inv_freq[19] - 0.00162175991) < 1e-11);
    EXPECT(fabs(c.rope_inv_freq[20] - 3.61404677e-5) < 1e-13);
    EXPECT(fabs(c.rope_inv_freq[31] - 8.76441291e-7) < 1e-15);
    EXPECT(fabs(c.mla.softmax_scale - 0.1308608) < 1e-7);
}

static void config_without_yarn_has_plain_rope(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"rope_scaling\": null, \"rope_theta\": 10000.0}", &c), BT_OK);
    EXPECT(!c.yarn);
    EXPECT(near(c.rope_inv_freq[16], 0.01));
    EXPECT(fabs(c.mla.softmax_scale - 0.0721688) < 1e-7);
    EXPECT_EQ(read_patched("{\"rope_scaling\": {}, \"rope_theta\": 10000.0}", &c), BT_OK);
    EXPECT(!c.yarn && near(c.rope_inv_freq[16], 0.01));
    EXPECT_EQ(read_patched("{\"rope_scaling\": \"-\", \"rope_parameters\": {}}", &c), BT_OK);
    EXPECT(!c.yarn);
}

/* Hugging Face takes it from there, and only for YaRN. */
static void config_original_context_may_be_told_twice(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"original_max_position_embeddings\": 2048}", &c), BT_OK);
    EXPECT(c.yarn_original_context == 2048);
    EXPECT_EQ(
        read_patched("{\"rope_scaling\": null, \"original_max_position_embeddings\": 1024}", &c),
        BT_OK);
    EXPECT(!c.yarn);
}

/* transformers 5 writes one object, with theta in it. */
static void config_new_rope_spelling_equals_the_old(void)
{
    bt_model_config a, b;

    EXPECT_EQ(bt_model_config_read(DEMO, &a), BT_OK);
    EXPECT_EQ(read_patched("{\"rope_scaling\": \"-\", \"rope_theta\": \"-\", \"rope_parameters\": "
                           "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 4.0, "
                           "\"original_max_position_embeddings\": 2048, \"beta_fast\": 32.0, "
                           "\"beta_slow\": 1.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}}",
                           &b),
              BT_OK);
    EXPECT(memcmp(a.rope_inv_freq, b.rope_inv_freq, sizeof(a.rope_inv_freq)) == 0);
    EXPECT(a.mla.softmax_scale == b.mla.softmax_scale);
    EXPECT_EQ(read_patched("{\"rope_scaling\": \"-\", \"rope_theta\": \"-\", \"rope_parameters\": "
                           "{\"rope_type\": \"default\", \"rope_theta\": 10000.0}}",
                           &b),
              BT_OK);
    EXPECT(!b.yarn);
}

/* What no published model has.  The numbers are those of transformers 5.24.0, in fp32:
 * ROPE_INIT_FUNCTIONS["yarn"](config) and DeepseekV3Attention(config, 0).scaling, with
 * qk_rope_head_dim 64 (as head_dim too), qk_nope_head_dim 128 and rope_theta 10000. */
static void config_yarn_is_that_of_transformers(void)
{
    static const struct {
        const char *scaling;
        double      inv_freq[4]; /* of pairs 0, 11, 20 and 31 */
        double      magnitude, softmax_scale;
    } CASES[] = {
        {"\"factor\": 40.0, \"original_max_position_embeddings\": 4096",
         {1, 0.039006926, 0.00079056941, 3.3338035e-06},
         1.36888795, 0.0721687836},
        {"\"factor\": 40.0, \"original_max_position_embeddings\": 4096, \"beta_slow\": 0.02, "
         "\"mscale\": 0.707",                                   {1, 0.040646855, 0.0020203441, 3.2226766e-05},
         1.36888795, 0.0721687836},
        {"\"factor\": 40.0, \"original_max_position_embeddings\": 4096, \"beta_fast\": 8.0, "
         "\"mscale_all_dim\": 0.707",                           {1, 0.042169649, 0.0012352648, 3.3338035e-06},
         1.36888795, 0.114721387 },
        {"\"factor\": 8.0, \"original_max_position_embeddings\": 6, \"mscale\": 1.0, "
         "\"mscale_all_dim\": 0.5",                             {1, 0.0052712061, 0.00039528473, 1.6669019e-05},
         1.09417999, 0.0879560188},
    };
    static const uint32_t PAIRS[4] = {0, 11, 20, 31};

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_model_config c;
        char            patch[300];

        snprintf(patch, sizeof(patch),
                 "{\"rope_theta\": 10000.0, \"rope_scaling\": {\"type\": \"yarn\", %s}}",
                 CASES[i].scaling);
        EXPECT_EQ(read_patched(patch, &c), BT_OK);
        for (int k = 0; k < 4; k++)
            EXPECT(near_fp32(c.rope_inv_freq[PAIRS[k]], CASES[i].inv_freq[k]));
        EXPECT(near_fp32(c.mla.rope_magnitude, CASES[i].magnitude));
        EXPECT(near_fp32(c.mla.softmax_scale, CASES[i].softmax_scale));
    }
}

/* As transformers reads a factor of null. */
static void config_yarn_without_a_factor_has_the_ratio_of_contexts(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"rope_theta\": 10000.0, \"max_position_embeddings\": 8192, "
                           "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": null, "
                           "\"original_max_position_embeddings\": 2048}}",
                           &c),
              BT_OK);
    EXPECT(c.yarn_factor == 4);
    EXPECT(near_fp32(c.rope_inv_freq[16], 0.005384615156799555));
    EXPECT(near_fp32(c.rope_inv_freq[31], 3.333803761051968e-05));
    EXPECT(near_fp32(c.mla.rope_magnitude, 1.138629436111989));
    EXPECT_EQ(read_patched("{\"max_position_embeddings\": 1024, \"rope_scaling\": {\"type\": "
                           "\"yarn\", \"factor\": null, "
                           "\"original_max_position_embeddings\": 2048}}",
                           &c),
              BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field rope_scaling.factor: expected a number from 1, or null");
}

static void config_eos_ids_of_both_files_are_joined(void)
{
    bt_model_config c;
    const char *generation = "{\"eos_token_id\": [7, 1, 9], \"pad_token_id\": 2, \"top_k\": 20}";

    scratch_clear();
    write_patched("{\"eos_token_id\": [1, 5, 1], \"bos_token_id\": null}");
    scratch_write("generation_config.json", generation, strlen(generation));
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_OK);
    EXPECT_EQ(c.bos_token, -1);
    EXPECT_EQ(c.pad_token, 2);
    EXPECT_EQ(c.n_eos, 4);
    EXPECT(c.eos_tokens[0] == 1 && c.eos_tokens[1] == 5 && c.eos_tokens[2] == 7 &&
           c.eos_tokens[3] == 9);
    EXPECT(strcmp(c.default_sampling_json, "{\"top_k\":20}") == 0);
}

/* Which layers choose, in each of the ways that say so. */
static void config_reads_indexers(void)
{
    static const char BASE[] =
        "{\"model_type\": \"%s\", \"architectures\": null, \"index_topk\": 16, "
        "\"index_n_heads\": 4, \"index_head_dim\": 64%s}";
    static const struct {
        const char *type, *more, *layers; /* F: full, S: shared */
        bool        halves;
    } CASES[] = {
        {"deepseek_v32", "",                                                                     "FFFF", true },
        {"deepseek_v32", ", \"index_topk_freq\": 2",                                             "FFFF", true },
        {"glm_moe_dsa",  "",                                                                     "FFFF", false},
        {"glm_moe_dsa",  ", \"index_topk_freq\": 0",                                             "FFFF", false},
        {"glm_moe_dsa",  ", \"index_topk_freq\": 2",                                             "FFSF", false},
        {"glm_moe_dsa",  ", \"index_topk_freq\": 4, \"index_skip_topk_offset\": 1",              "FSSS", false},
        {"glm_moe_dsa",  ", \"index_topk_pattern\": \"FSFS\", \"index_topk_freq\": 4",           "FSFS",
         false                                                                                                },
        {"glm_moe_dsa",  ", \"indexer_types\": [\"full\", \"shared\", \"shared\", \"full\"]",    "FSSF",
         false                                                                                                },
        {"glm_moe_dsa",  ", \"index_topk_pattern\": [\"F\", \"S\", \"S\", \"F\"]",               "FSSF", false},
        {"glm_moe_dsa",  ", \"index_topk_pattern\": [\"full\", \"full\", \"shared\", \"full\"]",
         "FFSF",                                                                                         false},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_model_config c;
        char            patch[512];

        snprintf(patch, sizeof(patch), BASE, CASES[i].type, CASES[i].more);
        EXPECT_EQ(read_patched(patch, &c), BT_OK);
        EXPECT(c.mla.index_topk == 16 && c.mla.index_heads == 4 && c.mla.index_dim == 64);
        EXPECT_EQ(c.mla.index_halves, CASES[i].halves);
        EXPECT_EQ(bt_mla_kv_dim(&c.mla), c.mla.kv_lora_rank + c.mla.qk_rope_dim + 64);
        for (uint32_t layer = 0; layer < 4; layer++)
            EXPECT_EQ(bt_model_layer_has_indexer(&c, layer), CASES[i].layers[layer] == 'F');
    }
}

static void config_of_4_bits_may_leave_out_what_is_null(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched(
                  "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
                  "\"format\": \"pack-quantized\", \"ignore\": null, \"sparsity_config\": {}, "
                  "\"transform_config\": {}, \"kv_cache_scheme\": null, \"config_groups\": "
                  "{\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": "
                  "true, \"strategy\": \"group\", \"group_size\": 32, \"actorder\": false}}}}}",
                  &c),
              BT_OK);
    EXPECT(c.int4 && !c.fp8);
    EXPECT_EQ(read_patched(
                  "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
                  "\"format\": \"pack-quantized\", \"ignore\": null, \"sparsity_config\": {}, "
                  "\"transform_config\": {}, \"kv_cache_scheme\": null, \"config_groups\": "
                  "{\"group_0\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": "
                  "true, \"strategy\": \"group\", \"group_size\": 32, \"actorder\": false}}, "
                  "\"group_1\": {\"format\": null, \"targets\": [\"re:.*up_proj\"], \"weights\": "
                  "{\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": "
                  "\"group\", \"group_size\": 32, \"dynamic\": false}}}}}",
                  &c),
              BT_OK);
    EXPECT(c.int4);
}

/* Ours only: jansson 2.14 does not survive every failure of its own. */
static void config_read_unwinds_at_every_allocation(void)
{
    bt_model_config c;

    EXPECT_EQ(BT_SWEEP(bt_model_config_read(DEMO, &c), (void)0), 2); /* the texts of two files */
}

static const bt_test TESTS[] = {
    BT_TEST(config_of_demo_has_every_field),
    BT_TEST(config_of_every_model_is_read),
    BT_TEST(config_yarn_gives_the_published_numbers),
    BT_TEST(config_without_yarn_has_plain_rope),
    BT_TEST(config_original_context_may_be_told_twice),
    BT_TEST(config_new_rope_spelling_equals_the_old),
    BT_TEST(config_yarn_is_that_of_transformers),
    BT_TEST(config_yarn_without_a_factor_has_the_ratio_of_contexts),
    BT_TEST(config_eos_ids_of_both_files_are_joined),
    BT_TEST(config_reads_indexers),
    BT_TEST(config_of_4_bits_may_leave_out_what_is_null),
    BT_TEST(config_read_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
