/* config.json at the edges of what is read and what is refused (most fields:
 * test_config_refused.c). */
#include <math.h>

#include "tests/model/config_patch.h"

/* Its message has all three parts. */
static void expect_refused(const char *patch, bt_status want, const char *field,
                           const char *expected, const char *found)
{
    bt_model_config c;
    int             before = g_failures;

    EXPECT_EQ(read_patched(patch, &c), want);
    EXPECT_HAS(bt_error_text(), field);
    EXPECT_HAS(bt_error_text(), expected);
    EXPECT_HAS(bt_error_text(), found);
    if (g_failures != before) fprintf(stderr, "    for the patch %s\n", patch);
}

static void config_pad_behind_the_vocabulary_is_none(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"pad_token_id\": 2047}", &c), BT_OK);
    EXPECT_EQ(c.pad_token, 2047);
    EXPECT_EQ(read_patched("{\"pad_token_id\": 2048}", &c), BT_OK);
    EXPECT_EQ(c.pad_token, -1);
}

#define GLM                                                                          \
    "\"model_type\": \"glm_moe_dsa\", \"architectures\": null, \"index_topk\": 16, " \
    "\"index_n_heads\": 4, \"index_head_dim\": 64, \"mlp_layer_types\": null, "

/* A bit for each layer, in several words. */
static void config_indexers_of_many_layers_are_told_apart(void)
{
    enum { LAYERS = 100 };
    bt_model_config c;
    char            patch[512], pattern[LAYERS + 1];

    for (uint32_t i = 0; i < LAYERS; i++)
        pattern[i] = i == 0 || i % 7 == 5 ? 'F' : 'S';
    pattern[LAYERS] = '\0';
    snprintf(patch, sizeof(patch),
             "{" GLM "\"num_hidden_layers\": %d, \"index_topk_pattern\": \"%s\"}", LAYERS, pattern);
    NEED(read_patched(patch, &c) == BT_OK);
    for (uint32_t i = 0; i < LAYERS; i++)
        EXPECT_EQ(bt_model_layer_has_indexer(&c, i), pattern[i] == 'F');
    EXPECT_EQ(bt_model_n_indexers(&c), 15);
}

static void config_lists_of_layers_have_one_entry_each(void)
{
    expect_refused("{" GLM "\"index_topk_pattern\": \"FSFX\"}", BT_ERR_FORMAT,
                   "field index_topk_pattern", "expected 4 letters", "found \"FSFX\"");
    expect_refused("{" GLM "\"index_topk_pattern\": \"FSFS-\"}", BT_ERR_FORMAT,
                   "field index_topk_pattern", "expected 4 letters", "found \"FSFS-\"");
    expect_refused("{" GLM "\"indexer_types\": [\"full\", \"full\", \"full\", \"full\", \"full\"]}",
                   BT_ERR_FORMAT, "field indexer_types", "expected a list of 4", "found [");
}

static void config_glm4_counts_dense_layers_by_its_list_alone(void)
{
    expect_refused("{\"model_type\": \"glm4_moe_lite\", \"architectures\": null, "
                   "\"first_k_dense_replace\": 2}",
                   BT_ERR_UNSUPPORTED, "field first_k_dense_replace",
                   "expected 1 where mlp_layer_types is missing", "found 2");
}

/* As in Hugging Face, whatever the fields say. */
static void config_greedy_gate_has_no_groups(void)
{
    bt_model_config c;

    EXPECT_EQ(read_patched("{\"model_type\": \"deepseek_v2\", \"architectures\": null, "
                           "\"topk_method\": \"greedy\", \"scoring_func\": \"softmax\", "
                           "\"norm_topk_prob\": false, \"n_group\": 8, \"topk_group\": 1}",
                           &c),
              BT_OK);
    EXPECT(c.moe.gate.n_groups == 1 && c.moe.gate.topk_groups == 1);
}

static void config_groups_have_two_experts_for_their_score(void)
{
    expect_refused("{\"n_group\": 16, \"topk_group\": 16}", BT_ERR_FORMAT, "field n_group",
                   "expected groups of two experts or more", "found 16 groups of 16 experts");
}

/* Where the slowest pair turns less than once in the original context, the ramp ends at the last
 * dimension. */
static void config_yarn_ramp_ends_within_the_dimensions(void)
{
    const double    PI2 = 2 * 3.14159265358979323846, theta = 10;
    double          low, ramp;
    bt_model_config c;

    NEED(read_patched(
             "{\"rope_theta\": 10.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
             "\"original_max_position_embeddings\": 1024}}",
             &c) == BT_OK);
    EXPECT_EQ(c.mla.qk_rope_dim, 64);
    low  = floor(64 * log(1024 / (32 * PI2)) / (2 * log(theta)));
    ramp = fmax((31 - low) / (63 - low), 0);
    EXPECT(fabs(c.rope_inv_freq[31] / (pow(theta, -62 / 64.0) * (ramp / 4 + 1 - ramp)) - 1) < 1e-9);
}

static void config_rope_parameters_have_the_same_bounds(void)
{
    expect_refused("{\"rope_scaling\": null, \"rope_theta\": null, \"rope_parameters\": "
                   "{\"rope_type\": \"default\", \"rope_theta\": 1}}",
                   BT_ERR_FORMAT, "field rope_parameters.rope_theta",
                   "expected a number from 1.001", "found 1");
}

#define INT4(weights, ignore)                                                     \
    "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "       \
    "\"format\": \"pack-quantized\", \"ignore\": " ignore ", \"config_groups\": " \
    "{\"group_0\": {\"weights\": {" weights "}}}}}"

static void config_of_4_bits_says_all_that_changes_the_numbers(void)
{
    static const char WEIGHTS[] = "field quantization_config.config_groups.group_0.weights.";

    expect_refused(INT4("\"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", "
                        "\"group_size\": 32",
                        "[]"),
                   BT_ERR_UNSUPPORTED, WEIGHTS, "num_bits: expected 4", "found nothing");
    expect_refused(INT4("\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\", "
                        "\"group_size\": 32",
                        "[]"),
                   BT_ERR_UNSUPPORTED, WEIGHTS, "symmetric: expected true", "found nothing");
    expect_refused(INT4("\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, "
                        "\"strategy\": \"group\"",
                        "[]"),
                   BT_ERR_UNSUPPORTED, WEIGHTS, "group_size: expected 32", "found nothing");
    expect_refused(INT4("\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, "
                        "\"strategy\": \"group\", \"group_size\": 32",
                        "[1, \"lm_head\"]"),
                   BT_ERR_FORMAT, "field quantization_config.ignore", "expected a list of names",
                   "found [1,");
}

/* Kimi-K2.5's says within its language model how that is quantized. */
static void config_quantization_of_a_language_model_is_read_within(void)
{
    static const char PATCH[] =
        "{\"model_type\": \"kimi_k25\", \"text_config\": %s, \"architectures\": null}";
    json_t *text = json_load_file(DEMO "/config.json", 0, NULL);
    json_t *fp8 =
        json_pack("{s:s, s:[i, i]}", "quant_method", "fp8", "weight_block_size", 128, 128);
    char           *dump, *patch = malloc(1 << 16);
    bt_model_config c;

    NEED(text != NULL && fp8 != NULL && patch != NULL);
    json_object_set_new(text, "quantization_config", fp8);
    dump = json_dumps(text, 0);
    snprintf(patch, 1 << 16, PATCH, dump);
    EXPECT_EQ(read_patched(patch, &c), BT_OK);
    EXPECT(c.fp8);
    free(patch);
    free(dump);
    json_decref(text);
}

static void config_default_top_p_is_above_0(void)
{
    static const char ZERO[] = "{\"top_p\": 0}";
    bt_model_config   c;

    scratch_clear();
    write_patched("{}");
    scratch_write("generation_config.json", ZERO, strlen(ZERO));
    EXPECT_EQ(bt_model_config_read(g_scratch, &c), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "field top_p: expected a number from 1e-09 to 1, found 0");
}

static const bt_test TESTS[] = {
    BT_TEST(config_pad_behind_the_vocabulary_is_none),
    BT_TEST(config_indexers_of_many_layers_are_told_apart),
    BT_TEST(config_lists_of_layers_have_one_entry_each),
    BT_TEST(config_glm4_counts_dense_layers_by_its_list_alone),
    BT_TEST(config_greedy_gate_has_no_groups),
    BT_TEST(config_groups_have_two_experts_for_their_score),
    BT_TEST(config_yarn_ramp_ends_within_the_dimensions),
    BT_TEST(config_rope_parameters_have_the_same_bounds),
    BT_TEST(config_of_4_bits_says_all_that_changes_the_numbers),
    BT_TEST(config_quantization_of_a_language_model_is_read_within),
    BT_TEST(config_default_top_p_is_above_0),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
