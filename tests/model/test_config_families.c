/* What config.json means in one family or another. */
#include <math.h>

#include "tests/model/config_patch.h"
#include "tests/support/test.h"

static void config_takes_groups_that_are_absent_from_the_family(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"n_group\": \"-\", \"topk_group\": \"-\"}", &c), BT_OK);
    EXPECT_EQ(c.moe.gate.n_groups, 8);
    EXPECT_EQ(c.moe.gate.topk_groups, 4);
}

static void config_dense_model_has_no_experts(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"n_routed_experts\": null}", &c), BT_OK);
    EXPECT_EQ(c.moe.gate.n_experts, 0);
    EXPECT_EQ(bt_model_n_moe_layers(&c), 0);
}

static void config_layer_list_of_transformers_5_is_read(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"first_k_dense_replace\": \"-\", \"mlp_layer_types\": [\"dense\", "
                           "\"dense\", \"sparse\", \"sparse\"]}",
                           &c),
              BT_OK);
    EXPECT_EQ(c.first_moe_layer, 2);
    /* beside its default, where the list alone counts */
    EXPECT_EQ(read_patched("{\"model_type\": \"glm_moe_dsa\", \"architectures\": null, "
                           "\"index_topk\": 16, \"index_n_heads\": 4, \"index_head_dim\": 64, "
                           "\"first_k_dense_replace\": 3, \"mlp_layer_types\": [\"dense\", "
                           "\"sparse\", \"sparse\", \"sparse\"]}",
                           &c),
              BT_OK);
    EXPECT_EQ(c.first_moe_layer, 1);
}

static void config_of_fewer_layers_than_dense_ones_is_dense(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"first_k_dense_replace\": 5}", &c), BT_OK);
    EXPECT_EQ(c.first_moe_layer, 4);
    EXPECT_EQ(bt_model_n_moe_layers(&c), 0);
}

/* A multimodal model's config.json: the demo's under text_config; `more` are members beside it. */
static bt_status read_wrapped(const char *type, const char *more, bt_model_config *cfg)
{
    json_t   *all = json_loads(more, 0, NULL), *text = json_load_file(DEMO "/config.json", 0, NULL);
    char     *dump;
    bt_status st;

    if (all == NULL || text == NULL) abort();
    json_object_set_new(all, "model_type", json_string(type));
    if (json_object_get(all, "text_config") == NULL) json_object_set(all, "text_config", text);
    dump = json_dumps(all, 0);
    scratch_clear();
    scratch_write("config.json", dump, strlen(dump));
    st = bt_model_config_read(g_scratch, cfg);
    free(dump);
    json_decref(all);
    json_decref(text);
    return st;
}

static void config_of_a_language_model_is_read_within(void)
{
    bt_model_config c, demo;

    EXPECT_EQ(bt_model_config_read(DEMO, &demo), BT_OK);
    EXPECT_EQ(read_wrapped("kimi_k25",
                           "{\"eos_token_id\": 77, \"pad_token_id\": 5, \"vision_config\": {}}",
                           &c),
              BT_OK);
    EXPECT(strcmp(c.model_type, "deepseek_v3") == 0);
    EXPECT(c.hidden == demo.hidden && c.n_layers == demo.n_layers && !c.fp8);
    EXPECT_EQ(c.n_eos, 2); /* its own, and that of the whole */
    EXPECT(c.eos_tokens[0] == demo.eos_tokens[0] && c.eos_tokens[1] == 77);
    EXPECT(c.bos_token == demo.bos_token && c.pad_token == 5);
    EXPECT_EQ(read_wrapped("kimi_vl", "{\"pad_token_id\": -1}", &c), BT_OK);
    EXPECT(c.hidden == demo.hidden && c.pad_token == -1);
    EXPECT_EQ(read_wrapped("kimi_k25",
                           "{\"quantization_config\": {\"quant_method\": \"fp8\", "
                           "\"weight_block_size\": [128, 128]}}",
                           &c),
              BT_OK);
    EXPECT(c.fp8);
    EXPECT_EQ(read_wrapped("kimi_k25", "{\"text_config\": [1]}", &c), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field text_config: expected an object, found [1]");
    EXPECT_EQ(read_wrapped("kimi_k25", "{\"text_config\": {\"model_type\": \"llama\"}}", &c),
              BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "found \"llama\"");
}

#define SARVAM_SCORES(how)                                                                \
    "{\"model_type\": \"sarvam_mla\", \"architectures\": null, \"scoring_func\": \"-\", " \
    "\"topk_method\": \"-\", \"score_function\": " how "}"

static void config_of_sarvam_has_its_own_names_and_defaults(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"model_type\": \"sarvam_mla\", \"architectures\": "
                           "[\"SarvamMLAForCausalLM\"], \"q_lora_rank\": \"-\", "
                           "\"n_routed_experts\": \"-\", \"num_experts\": 12, "
                           "\"n_shared_experts\": \"-\", \"num_shared_experts\": 2, "
                           "\"n_group\": \"-\", \"topk_group\": \"-\", "
                           "\"norm_topk_prob\": \"-\", \"routed_scaling_factor\": \"-\", "
                           "\"first_k_dense_replace\": \"-\", \"topk_method\": \"-\", "
                           "\"scoring_func\": \"-\", \"head_dim\": 576, \"rope_scaling\": "
                           "{\"type\": \"deepseek_yarn\", \"factor\": 40, \"mscale\": 1, "
                           "\"mscale_all_dim\": 1, \"original_max_position_embeddings\": 4096}}",
                           &c),
              BT_OK);
    EXPECT(strcmp(c.architecture, "SarvamMLAForCausalLM") == 0);
    EXPECT(c.mla.q_lora_rank == 0 && c.yarn && c.yarn_factor == 40);
    EXPECT(c.moe.gate.n_experts == 12 && c.moe.shared_dim == 2 * c.moe.expert_dim);
    EXPECT(c.moe.gate.n_groups == 1 && c.moe.gate.topk_groups == 1);
    EXPECT(c.moe.gate.norm_topk && c.moe.gate.scale == 2.5f);
    EXPECT(c.first_moe_layer == 1 && !c.moe_norm);
    /* as transformers saves it */
    EXPECT_EQ(read_patched("{\"model_type\": \"sarvam_mla\"}", &c), BT_OK);
    EXPECT(c.moe.gate.n_experts == 16 && strcmp(c.architecture, "SarvamMLAForCausalLM") == 0);
    EXPECT_EQ(read_patched("{\"model_type\": \"sarvam_mla\", \"architectures\": "
                           "[\"DeepseekV2ForCausalLM\"]}",
                           &c),
              BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "expected \"SarvamMLAForCausalLM\" for model_type \"sarvam_mla\"");
    EXPECT_EQ(read_patched(SARVAM_SCORES("\"sigmoid\""), &c), BT_OK);
    EXPECT_EQ(read_patched(SARVAM_SCORES("\"softmax\""), &c), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "fields topk_method and score_function: expected noaux_tc with "
                                "sigmoid");
    EXPECT_EQ(read_patched(SARVAM_SCORES("5"), &c), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field score_function: expected a string, found 5");
}

static void config_of_axk1_norms_what_its_experts_give(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"model_type\": \"AXK1\", \"architectures\": [\"AXK1ForCausalLM\"], "
                           "\"n_group\": \"-\", \"topk_group\": \"-\", "
                           "\"first_k_dense_replace\": \"-\"}",
                           &c),
              BT_OK);
    EXPECT(c.moe_norm && c.first_moe_layer == 1);
    EXPECT(c.moe.gate.n_groups == 8 && c.moe.gate.topk_groups == 4);
    /* the list counts, whatever stands beside it */
    EXPECT_EQ(read_patched("{\"model_type\": \"axk1\", \"architectures\": null, "
                           "\"first_k_dense_replace\": 3, \"mlp_layer_types\": "
                           "[\"dense\", \"dense\", \"sparse\", \"sparse\"]}",
                           &c),
              BT_OK);
    EXPECT_EQ(c.first_moe_layer, 2);
}

static void config_of_youtu_is_dense(void)
{
    bt_model_config c;

    EXPECT_EQ(bt_model_config_read(BT_SOURCE_DIR "/tests/models/youtu", &c), BT_OK);
    EXPECT(strcmp(c.architecture, "YoutuForCausalLM") == 0);
    EXPECT(c.moe.gate.n_experts == 0 && bt_model_n_moe_layers(&c) == 0 && c.tie_embeddings);
}

#define MISTRAL(more)                                                                          \
    "{\"model_type\": \"mistral4\", \"architectures\": [\"Mistral4ForCausalLM\"], "            \
    "\"n_group\": 1, \"topk_group\": 1, \"topk_method\": \"-\", \"scoring_func\": \"-\", "     \
    "\"rope_scaling\": \"-\", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": " \
    "10000, \"factor\": 40, \"original_max_position_embeddings\": 2048, \"mscale\": 1, "       \
    "\"mscale_all_dim\": 1, \"llama_4_scaling_beta\": 0.1}" more "}"

static void config_of_mistral_scales_queries(void)
{
    static const struct {
        const char *patch;
        bt_status   st;
        const char *parts[2];
    } BAD_MISTRAL[] = {
        {MISTRAL(", \"n_group\": 2"),                                    BT_ERR_UNSUPPORTED, {"field n_group: expected 1", "found 2"}                                    },
        {MISTRAL(", \"partial_rotary_factor\": 1"),
         BT_ERR_UNSUPPORTED,                                                                 {"field partial_rotary_factor: expected 0.333", "found 1"}                  },
        {MISTRAL(", \"rope_parameters\": \"-\""),
         BT_ERR_UNSUPPORTED,                                                                 {"field rope_parameters: expected an object", "found nothing"}              },
        {MISTRAL(", \"rope_parameters\": {\"rope_type\": \"default\"}"),
         BT_ERR_FORMAT,                                                                      {"rope_parameters.llama_4_scaling_beta: expected a number", "found nothing"}},
        {MISTRAL(", \"rope_parameters\": {\"rope_type\": \"default\", "
                 "\"llama_4_scaling_beta\": 0.1}"),
         BT_ERR_FORMAT,                                                                      {"rope_parameters.original_max_position_embeddings: expected an integer from 1",
          "found nothing"}                                                                                                                        },
    };
    bt_model_config c;

    EXPECT_EQ(read_patched(MISTRAL(", \"partial_rotary_factor\": 0.3333333333333333"), &c), BT_OK);
    EXPECT(strcmp(c.architecture, "Mistral4ForCausalLM") == 0);
    EXPECT(c.moe.gate.kind == BT_GATE_SOFTMAX && c.moe.gate.norm_topk && c.yarn);
    EXPECT(c.mla.query_beta == 0.1 && c.mla.query_context == 2048);
    EXPECT(c.mla.rope_magnitude == 1);
    EXPECT(c.mla.softmax_scale == (float)(pow(0.1 * log(40) + 1, 2) / sqrt(192)));
    EXPECT_EQ(read_wrapped("mistral3", "{\"text_config\": {\"model_type\": \"mistral\"}}", &c),
              BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "mistral4 as such or within mistral3, found \"mistral\"");
    for (size_t i = 0; i < sizeof(BAD_MISTRAL) / sizeof(BAD_MISTRAL[0]); i++) {
        EXPECT_EQ(read_patched(BAD_MISTRAL[i].patch, &c), BAD_MISTRAL[i].st);
        EXPECT_HAS(bt_error_text(), BAD_MISTRAL[i].parts[0]);
        EXPECT_HAS(bt_error_text(), BAD_MISTRAL[i].parts[1]);
    }
}

#define LARGE_3 BT_SOURCE_DIR "/tests/models/mistral-large-3"

/* Its params.json with a member set, of the object `in` where it is one, or without it. */
static bt_status read_params(const char *in, const char *name, const char *value,
                             bt_model_config *cfg)
{
    json_t *params = json_load_file(LARGE_3 "/params.json", 0, NULL);
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL), *of = json_object_get(params, in);
    char   *text;

    if (params == NULL || v == NULL) abort();
    json_object_set_new(of != NULL ? of : params, name, v);
    text = json_dumps(params, 0);
    scratch_clear();
    scratch_write("params.json", text, strlen(text));
    free(text);
    json_decref(params);
    return bt_model_config_read(g_scratch, cfg);
}

static void config_of_params_is_read(void)
{
    bt_model_config c;

    EXPECT_EQ(bt_model_config_read(LARGE_3, &c), BT_OK);
    EXPECT(strcmp(c.model_type, "mistral4") == 0 && c.n_layers == 3 && c.hidden == 144);
    EXPECT(c.first_moe_layer == 1 && c.dense_dim == 160 && c.moe.expert_dim == 40);
    EXPECT(c.moe.gate.kind == BT_GATE_SOFTMAX && c.moe.gate.norm_topk && c.moe.gate.scale == 1);
    EXPECT(c.mla.query_beta == 0.5 && c.mla.query_context == 32 && c.yarn_factor == 36);
    EXPECT(c.mla.rope_magnitude == 1 && c.mla.softmax_scale == (float)(1 / sqrt(40)));
    EXPECT(c.fp8 && !c.fp8_one_scale && !c.int4);
    EXPECT(c.bos_token == 1 && c.n_eos == 1 && c.eos_tokens[0] == 2 && c.pad_token == 11);
    /* config.json counts first */
    EXPECT_EQ(read_params("", "vision_encoder", "{\"image_size\": 1540}", &c), BT_OK);
    write_patched("{}");
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_OK);
    EXPECT(strcmp(c.model_type, "deepseek_v3") == 0);
}

static void config_of_other_params_is_refused(void)
{
    static const char NO_CONTEXT[] = "{\"moe\": {}, \"yarn\": {\"apply_scale\": false}, "
                                     "\"llama_4_scaling\": {}}"; /* which then is the same */
    static const struct {
        const char *in, *name, *value;
        bt_status   st;
        const char *parts[2];
    } BAD[] = {
        {"",
         "moe",                              "null",
         BT_ERR_UNSUPPORTED,                                                {"params.json: field moe: expected an object", "found nothing"}             },
        {"",                "yarn",          "[1]",     BT_ERR_UNSUPPORTED, {"field yarn: expected an object", "found [1]"}                             },
        {"",
         "llama_4_scaling",                  "null",
         BT_ERR_UNSUPPORTED,                                                {"field llama_4_scaling: expected an object", "found nothing"}              },
        {"",
         "sliding_window",                   "4096",
         BT_ERR_UNSUPPORTED,                                                {"field sliding_window: not one of Mistral Large 3", "found 4096"}          },
        {"",                "quantization",  "{}",      BT_ERR_UNSUPPORTED, {"field quantization: not one", "found {}"}                                 },
        {"moe",
         "use_load_balancing_bias",          "true",
         BT_ERR_UNSUPPORTED,                                                {"field moe.use_load_balancing_bias: not one", "found true"}                },
        {"moe",
         "num_expert_groups",                "2",
         BT_ERR_UNSUPPORTED,                                                {"names of config.json: field n_group: expected 1", "found 2"}              },
        {"yarn",
         "apply_scale",                      "true",
         BT_ERR_UNSUPPORTED,                                                {"field yarn.apply_scale: expected false", "found true"}                    },
        {"yarn",
         "apply_scale",                      "null",
         BT_ERR_FORMAT,                                                     {"field yarn.apply_scale: expected true or false", "found nothing"}         },
        {"llama_4_scaling",
         "original_max_position_embeddings", "64",
         BT_ERR_UNSUPPORTED,                                                {"expected 32", "found 64"}                                                 },
        {"llama_4_scaling",
         "beta",                             "\"0.1\"",
         BT_ERR_FORMAT,                                                     {"rope_parameters.llama_4_scaling_beta: expected a number", "found \"0.1\""}},
        {"",
         "kv_lora_rank",                     "null",
         BT_ERR_FORMAT,                                                     {"config.json: field kv_lora_rank: expected an integer", "found nothing"}   },
    };
    bt_model_config c;

    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        EXPECT_EQ(read_params(BAD[i].in, BAD[i].name, BAD[i].value, &c), BAD[i].st);
        EXPECT_HAS(bt_error_text(), BAD[i].parts[0]);
        EXPECT_HAS(bt_error_text(), BAD[i].parts[1]);
    }
    scratch_clear();
    scratch_write("params.json", NO_CONTEXT, strlen(NO_CONTEXT));
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field vocab_size: expected an integer");
    scratch_clear();
    scratch_write("params.json", "[]", 2);
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "params.json: expected an object, found []");
}

/* Families with latent attention of which something is not served. */
static void config_of_families_that_are_not_served_names_them(void)
{
    static const char *const TYPES[] = {"minicpm3",  "mistral_large4", "axk2",       "hy_v4",
                                        "hy_v4_vl",  "bailing_hybrid", "dots3_note", "kimi_linear",
                                        "glm5_next", "longcat_flash"};
    bt_model_config          c;
    char                     patch[64], found[64];

    for (size_t i = 0; i < sizeof(TYPES) / sizeof(TYPES[0]); i++) {
        snprintf(patch, sizeof(patch), "{\"model_type\": \"%s\"}", TYPES[i]);
        snprintf(found, sizeof(found), "found \"%s\"", TYPES[i]);
        EXPECT_EQ(read_patched(patch, &c), BT_ERR_UNSUPPORTED);
        EXPECT_HAS(bt_error_text(), "field model_type: expected deepseek_v2");
        EXPECT_HAS(bt_error_text(), found);
    }
}

static const bt_test TESTS[] = {
    BT_TEST(config_takes_groups_that_are_absent_from_the_family),
    BT_TEST(config_dense_model_has_no_experts),
    BT_TEST(config_layer_list_of_transformers_5_is_read),
    BT_TEST(config_of_fewer_layers_than_dense_ones_is_dense),
    BT_TEST(config_of_a_language_model_is_read_within),
    BT_TEST(config_of_sarvam_has_its_own_names_and_defaults),
    BT_TEST(config_of_axk1_norms_what_its_experts_give),
    BT_TEST(config_of_youtu_is_dense),
    BT_TEST(config_of_mistral_scales_queries),
    BT_TEST(config_of_params_is_read),
    BT_TEST(config_of_other_params_is_refused),
    BT_TEST(config_of_families_that_are_not_served_names_them),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
