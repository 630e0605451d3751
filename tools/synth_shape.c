#include "tools/synth_shape.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "model/config.h"
#include "moe/placement.h"

/* clang-format off */
/* None has the layer for multi-token prediction that the published one may have. */
static const bt_synth_shape SHAPES[] = {
    {.like = "v2-lite", /* DeepSeek-V2-Lite */
     .architecture = "DeepseekV2ForCausalLM", .model_type = "deepseek_v2",
     .hidden = 2048, .n_layers = 27, .n_dense_layers = 1, .vocab_size = 102400, .context = 163840,
     .n_heads = 16, .q_lora_rank = 0, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 10944, .expert_dim = 1408, .n_experts = 64, .n_shared = 2, .top_k = 6, .n_groups = 1, .topk_groups = 1,
     .scale = 1, .eps = 1e-6, .theta = 10000, .yarn_factor = 40, .yarn_context = 4096, .beta_fast = 32, .beta_slow = 1, .mscale = 0.707,
     .bos = 100000, .eos = {100001, -1, -1}},
    {.like = "v2", /* DeepSeek-V2, V2.5 */
     .architecture = "DeepseekV2ForCausalLM", .model_type = "deepseek_v2",
     .hidden = 5120, .n_layers = 60, .n_dense_layers = 1, .vocab_size = 102400, .context = 163840,
     .n_heads = 128, .q_lora_rank = 1536, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 12288, .expert_dim = 1536, .n_experts = 160, .n_shared = 2, .top_k = 6, .n_groups = 8, .topk_groups = 3,
     .scale = 16, .eps = 1e-6, .theta = 10000, .yarn_factor = 40, .yarn_context = 4096, .beta_fast = 32, .beta_slow = 1, .mscale = 0.707,
     .bos = 100000, .eos = {100001, -1, -1}},
    {.like = "v3", /* DeepSeek-V3, R1, V3.1; in bf16 */
     .architecture = "DeepseekV3ForCausalLM", .model_type = "deepseek_v3", .sigmoid = true,
     .hidden = 7168, .n_layers = 61, .n_dense_layers = 3, .vocab_size = 129280, .context = 163840,
     .n_heads = 128, .q_lora_rank = 1536, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 18432, .expert_dim = 2048, .n_experts = 256, .n_shared = 1, .top_k = 8, .n_groups = 8, .topk_groups = 4,
     .norm_topk = true, .scale = 2.5, .eps = 1e-6, .theta = 10000, .yarn_factor = 40, .yarn_context = 4096, .beta_fast = 32, .beta_slow = 1, .mscale = 1,
     .bos = 0, .eos = {1, -1, -1}},
    {.like = "kimi-k2", /* Kimi-K2, in bf16; its own model_type, kimi_k2, needs remote code in Hugging Face */
     .architecture = "DeepseekV3ForCausalLM", .model_type = "deepseek_v3", .sigmoid = true,
     .hidden = 7168, .n_layers = 61, .n_dense_layers = 1, .vocab_size = 163840, .context = 131072,
     .n_heads = 64, .q_lora_rank = 1536, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 18432, .expert_dim = 2048, .n_experts = 384, .n_shared = 1, .top_k = 8, .n_groups = 1, .topk_groups = 1,
     .norm_topk = true, .scale = 2.827, .eps = 1e-6, .theta = 50000, .yarn_factor = 32, .yarn_context = 4096, .beta_fast = 1, .beta_slow = 1, .mscale = 1,
     .bos = 163584, .eos = {163585, -1, -1}},
    {.like = "kimi-k2-thinking", /* Kimi-K2-Thinking, experts in 4 bits; model_type as above */
     .architecture = "DeepseekV3ForCausalLM", .model_type = "deepseek_v3", .sigmoid = true,
     .hidden = 7168, .n_layers = 61, .n_dense_layers = 1, .vocab_size = 163840, .context = 262144,
     .n_heads = 64, .q_lora_rank = 1536, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 18432, .expert_dim = 2048, .n_experts = 384, .n_shared = 1, .top_k = 8, .n_groups = 1, .topk_groups = 1,
     .norm_topk = true, .scale = 2.827, .eps = 1e-5, .theta = 50000, .yarn_factor = 64, .yarn_context = 4096, .beta_fast = 1, .beta_slow = 1, .mscale = 1,
     .bos = 163584, .eos = {163586, -1, -1}, .int4 = true},
    {.like = "moonlight", /* Moonlight-16B-A3B */
     .architecture = "DeepseekV3ForCausalLM", .model_type = "deepseek_v3", .sigmoid = true,
     .hidden = 2048, .n_layers = 27, .n_dense_layers = 1, .vocab_size = 163840, .context = 8192,
     .n_heads = 16, .q_lora_rank = 0, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 11264, .expert_dim = 1408, .n_experts = 64, .n_shared = 2, .top_k = 6, .n_groups = 1, .topk_groups = 1,
     .norm_topk = true, .scale = 2.446, .eps = 1e-5, .theta = 50000,
     .bos = 163584, .eos = {163585, -1, -1}},
    {.like = "glm-flash", /* GLM-4.7-Flash */
     .architecture = "Glm4MoeLiteForCausalLM", .model_type = "glm4_moe_lite", .sigmoid = true,
     .hidden = 2048, .n_layers = 47, .n_dense_layers = 1, .vocab_size = 154880, .context = 202752,
     .n_heads = 20, .q_lora_rank = 768, .kv_lora_rank = 512, .qk_nope_dim = 192, .qk_rope_dim = 64, .v_dim = 256,
     .dense_dim = 10240, .expert_dim = 1536, .n_experts = 64, .n_shared = 1, .top_k = 4, .n_groups = 1, .topk_groups = 1,
     .norm_topk = true, .scale = 1.8, .eps = 1e-5, .theta = 1000000,
     .bos = -1, .eos = {154820, 154827, 154829}},
    {.like = "v3.2", /* DeepSeek-V3.2; in bf16 */
     .architecture = "DeepseekV32ForCausalLM", .model_type = "deepseek_v32", .sigmoid = true,
     .hidden = 7168, .n_layers = 61, .n_dense_layers = 3, .vocab_size = 129280, .context = 163840,
     .n_heads = 128, .q_lora_rank = 1536, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 18432, .expert_dim = 2048, .n_experts = 256, .n_shared = 1, .top_k = 8, .n_groups = 8, .topk_groups = 4,
     .norm_topk = true, .scale = 2.5, .eps = 1e-6, .theta = 10000, .yarn_factor = 40, .yarn_context = 4096, .beta_fast = 32, .beta_slow = 1, .mscale = 1,
     .index_topk = 2048, .index_heads = 64, .index_dim = 128, .bos = 0, .eos = {1, -1, -1}},
    {.like = "glm-5", /* GLM-5, 5.1 */
     .architecture = "GlmMoeDsaForCausalLM", .model_type = "glm_moe_dsa", .sigmoid = true,
     .hidden = 6144, .n_layers = 78, .n_dense_layers = 3, .vocab_size = 154880, .context = 202752,
     .n_heads = 64, .q_lora_rank = 2048, .kv_lora_rank = 512, .qk_nope_dim = 192, .qk_rope_dim = 64, .v_dim = 256,
     .dense_dim = 12288, .expert_dim = 2048, .n_experts = 256, .n_shared = 1, .top_k = 8, .n_groups = 1, .topk_groups = 1,
     .norm_topk = true, .scale = 2.5, .eps = 1e-5, .theta = 1000000,
     .index_topk = 2048, .index_heads = 32, .index_dim = 128, .bos = -1, .eos = {154820, 154827, 154829}},
    {.like = "sarvam", /* Sarvam-105B, as transformers names its fields */
     .architecture = "SarvamMLAForCausalLM", .model_type = "sarvam_mla", .sigmoid = true,
     .hidden = 4096, .n_layers = 32, .n_dense_layers = 1, .vocab_size = 262144, .context = 131072,
     .n_heads = 64, .q_lora_rank = 0, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 16384, .expert_dim = 2048, .n_experts = 128, .n_shared = 1, .top_k = 8, .n_groups = 1, .topk_groups = 1,
     .norm_topk = true, .scale = 2.5, .eps = 1e-6, .theta = 10000, .yarn_factor = 40, .yarn_context = 4096, .beta_fast = 32, .beta_slow = 1, .mscale = 1,
     .bos = -1, .eos = {1, -1, -1}},
    {.like = "axk1", /* A.X-K1 */
     .architecture = "AXK1ForCausalLM", .model_type = "axk1", .sigmoid = true, .moe_norm = true,
     .hidden = 7168, .n_layers = 61, .n_dense_layers = 1, .vocab_size = 163840, .context = 131072,
     .n_heads = 64, .q_lora_rank = 1536, .kv_lora_rank = 512, .qk_nope_dim = 128, .qk_rope_dim = 64, .v_dim = 128,
     .dense_dim = 18432, .expert_dim = 2048, .n_experts = 192, .n_shared = 1, .top_k = 8, .n_groups = 8, .topk_groups = 4,
     .norm_topk = true, .scale = 2.5, .eps = 1e-6, .theta = 10000,
     .bos = 163691, .eos = {163691, -1, -1}},
};

#define SIZE(option, field, least, most, text) {option, text, offsetof(bt_synth_shape, field), least, most}
const bt_synth_size bt_synth_sizes[] = {
    SIZE("layers",        n_layers,       1, 1024,    "Layers in all"),
    SIZE("dense-layers",  n_dense_layers, 0, 1024,    "Dense layers, the first ones"),
    SIZE("hidden",        hidden,         1, 1 << 20, "Width of the residual stream"),
    SIZE("heads",         n_heads,        1, 4096,    "Attention heads"),
    SIZE("q-lora-rank",   q_lora_rank,    0, 1 << 20, "Rank of the query; 0: not compressed"),
    SIZE("kv-lora-rank",  kv_lora_rank,   1, 1 << 20, "Width of the latent"),
    SIZE("qk-nope-dim",   qk_nope_dim,    1, 1 << 16, "Width of a query head without RoPE"),
    SIZE("qk-rope-dim",   qk_rope_dim,    2, 512,     "Width of a query head with RoPE"),
    SIZE("v-dim",         v_dim,          1, 1 << 16, "Width of a value head"),
    SIZE("dense-dim",     dense_dim,      1, 1 << 20, "Width of a dense MLP"),
    SIZE("expert-dim",    expert_dim,     1, 1 << 20, "Width of an expert"),
    SIZE("experts",       n_experts,      1, BT_MAX_EXPERTS, "Routed experts of a layer"),
    SIZE("shared-experts", n_shared,      0, 64,      "Shared experts of a layer"),
    SIZE("top-k",         top_k,          1, 1024,    "Experts that a token uses"),
    SIZE("groups",        n_groups,       1, 1024,    "Groups of experts"),
    SIZE("topk-groups",   topk_groups,    1, 1024,    "Groups that a token may use"),
    SIZE("vocab",         vocab_size,     2, 1 << 24, "Size of the vocabulary"),
    SIZE("context",       context,        1, 1 << 20, "Length of the context"),
    SIZE("index-topk",    index_topk,     1, 1 << 17, "Positions that the indexer chooses for a token; of v3.2 and glm-5"),
    SIZE("index-heads",   index_heads,    1, 1 << 10, "Heads of the indexer; of v3.2 and glm-5"),
    SIZE("index-dim",     index_dim,      1, 4096,    "Width of a head of the indexer"),
    SIZE("mtp",           n_mtp,          0, 1,       "Layers for multi-token prediction, after the model's own (default 0)"),
};
/* clang-format on */
const size_t bt_synth_n_sizes = sizeof(bt_synth_sizes) / sizeof(bt_synth_sizes[0]);

bool bt_synth_find(const char *like, bt_synth_shape *shape_out)
{
    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++) {
        if (strcmp(SHAPES[i].like, like) == 0) {
            *shape_out = SHAPES[i];
            return true;
        }
    }
    return false;
}

const char *bt_synth_names(void)
{
    static char names[192]; /* of eleven of 17 bytes */
    size_t      n = 0;

    for (size_t i = 0; i < sizeof(SHAPES) / sizeof(SHAPES[0]); i++)
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i == 0 ? "" : ", ",
                              SHAPES[i].like);
    return names;
}

void bt_synth_settle(bt_synth_shape *shape)
{
    bool has_all = shape->bos < (int32_t)shape->vocab_size;

    for (int i = 0; i < 3; i++)
        has_all = has_all && shape->eos[i] < (int32_t)shape->vocab_size;
    if (!has_all) {
        shape->bos    = 0;
        shape->eos[0] = 1;
        shape->eos[1] = shape->eos[2] = -1;
    }
    if (shape->n_dense_layers > shape->n_layers) shape->n_dense_layers = shape->n_layers;
}

static json_t *token(int32_t id) { return id < 0 ? json_null() : json_integer(id); }

static json_t *eos(const bt_synth_shape *s)
{
    json_t *list;

    if (s->eos[1] < 0) return token(s->eos[0]);
    list = json_array();
    for (int i = 0; i < 3 && s->eos[i] >= 0; i++)
        json_array_append_new(list, json_integer(s->eos[i]));
    return list;
}

static json_t *yarn(const bt_synth_shape *s)
{
    if (s->yarn_factor == 0) return json_null();
    return json_pack("{s:s, s:f, s:i, s:f, s:f, s:f, s:f}", "type", "yarn", "factor",
                     s->yarn_factor, "original_max_position_embeddings", s->yarn_context,
                     "beta_fast", s->beta_fast, "beta_slow", s->beta_slow, "mscale", s->mscale,
                     "mscale_all_dim", s->mscale);
}

static const char *topk_method(const bt_synth_shape *s)
{
    if (s->sigmoid) return "noaux_tc";
    return s->n_groups > 1 ? "group_limited_greedy" : "greedy";
}

/* The sizes under the names of Hugging Face. */
static json_t *sizes(const bt_synth_shape *s)
{
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, "
        "s:i}",
        "hidden_size", s->hidden, "num_hidden_layers", s->n_layers, "num_attention_heads",
        s->n_heads, "num_key_value_heads", s->n_heads, "vocab_size", s->vocab_size, "q_lora_rank",
        s->q_lora_rank == 0 ? json_null() : json_integer(s->q_lora_rank), "kv_lora_rank",
        s->kv_lora_rank, "qk_nope_head_dim", s->qk_nope_dim, "qk_rope_head_dim", s->qk_rope_dim,
        "v_head_dim", s->v_dim, "intermediate_size", s->dense_dim, "moe_intermediate_size",
        s->expert_dim, "n_routed_experts", s->n_experts, "n_shared_experts", s->n_shared,
        "num_experts_per_tok", s->top_k, "n_group", s->n_groups, "topk_group", s->topk_groups,
        "max_position_embeddings", s->context);
}

static json_t *rules(const bt_synth_shape *s)
{
    return json_pack(
        "{s:[s], s:s, s:s, s:i, s:i, s:s, s:s, s:b, s:f, s:f, s:f, s:o, s:o, s:o, s:i, s:s, s:b, "
        "s:b, s:f, s:b, s:f}",
        "architectures", s->architecture, "model_type", s->model_type, "torch_dtype", "bfloat16",
        "first_k_dense_replace", s->n_dense_layers, "moe_layer_freq", 1, "topk_method",
        topk_method(s), "scoring_func", s->sigmoid ? "sigmoid" : "softmax", "norm_topk_prob",
        s->norm_topk, "routed_scaling_factor", s->scale, "rms_norm_eps", s->eps, "rope_theta",
        s->theta, "rope_scaling", yarn(s), "bos_token_id", token(s->bos), "eos_token_id", eos(s),
        "num_nextn_predict_layers", s->n_mtp, "hidden_act", "silu", "tie_word_embeddings", 0,
        "attention_bias", 0, "attention_dropout", 0.0, "use_cache", 1, "initializer_range", 0.02);
}

static json_t *quantization(const bt_synth_shape *s)
{
    json_t *weights;

    if (!s->int4)
        return json_pack("{s:s, s:s, s:s, s:[i, i]}", "quant_method", "fp8", "fmt", "e4m3",
                         "activation_scheme", "dynamic", "weight_block_size", 128, 128);
    weights =
        json_pack("{s:i, s:s, s:b, s:s, s:i, s:b, s:n, s:n, s:s, s:{}}", "num_bits", 4, "type",
                  "int", "symmetric", 1, "strategy", "group", "group_size", 32, "dynamic", 0,
                  "actorder", "block_structure", "observer", "minmax", "observer_kwargs");
    return json_pack("{s:s, s:s, s:s, s:n, s:{s:{s:[s], s:n, s:n, s:o}}, s:[s, s, s, s]}",
                     "quant_method", "compressed-tensors", "format", "pack-quantized",
                     "quantization_status", "compressed", "kv_cache_scheme", "config_groups",
                     "group_0", "targets", "Linear", "input_activations", "output_activations",
                     "weights", weights, "ignore", "lm_head", "re:.*self_attn.*",
                     "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*");
}

/* For glm4_moe_lite, of which Hugging Face does not read first_k_dense_replace. */
static json_t *layer_types(const bt_synth_shape *s)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < s->n_layers; i++)
        json_array_append_new(list, json_string(i < s->n_dense_layers ? "dense" : "sparse"));
    return list;
}

bt_status bt_synth_write_config(const bt_synth_shape *shape, const char *dir)
{
    bt_status       st     = BT_OK;
    json_t         *config = rules(shape), *dims = sizes(shape);
    bt_model_config cfg;
    char            path[PATH_MAX];
    const struct {
        const char *field;
        uint32_t    value;
    } index[] = {
        {"index_topk",     shape->index_topk },
        {"index_n_heads",  shape->index_heads},
        {"index_head_dim", shape->index_dim  }
    };

    BT_REQUIRE(snprintf(path, sizeof(path), "%s/config.json", dir) < PATH_MAX - 64,
               BT_ERR_INVALID_ARG, "%s: expected a path under %d bytes", dir, PATH_MAX - 64);
    if (strcmp(shape->model_type, "glm4_moe_lite") == 0 && dims != NULL)
        json_object_set_new(dims, "mlp_layer_types", layer_types(shape));
    if ((shape->fp8 || shape->int4) && dims != NULL)
        json_object_set_new(dims, "quantization_config", quantization(shape));
    /* Of a model without an indexer they are refused where the config is read. */
    for (int i = 0; i < 3 && dims != NULL; i++)
        if (index[i].value != 0)
            json_object_set_new(dims, index[i].field, json_integer(index[i].value));
    BT_REQUIRE(config != NULL && dims != NULL && json_object_update(config, dims) == 0,
               BT_ERR_NO_MEMORY, "%s", path);
    BT_REQUIRE(json_dump_file(config, path, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) == 0,
               BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_TRY(bt_model_config_read(dir, &cfg));
out:
    json_decref(config);
    json_decref(dims);
    return st;
}
