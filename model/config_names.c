/* Names of fields that look misspelt: config.json has many that change nothing here, and one that
 * is a letter off would leave a default in its place. */
#include <string.h>

#include "core/log.h"
#include "core/spelling.h"
#include "model/config_parts.h"

enum { MAX_NAME = 48, SURE_LENGTH = 10 };

static const char *const FIELDS[] = {
    "architectures",
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "first_k_dense_replace",
    "hidden_act",
    "hidden_size",
    "index_head_dim",
    "index_n_heads",
    "index_skip_topk_offset",
    "index_topk",
    "index_topk_freq",
    "index_topk_pattern",
    "indexer_rope_interleave",
    "indexer_types",
    "intermediate_size",
    "is_causal",
    "kv_lora_rank",
    "max_position_embeddings",
    "mlp_bias",
    "mlp_layer_types",
    "model_type",
    "moe_intermediate_size",
    "moe_layer_freq",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_nextn_predict_layers",
    "num_shared_experts",
    "original_max_position_embeddings",
    "pad_token_id",
    "partial_rotary_factor",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "quantization_config",
    "rms_norm_eps",
    "rope_interleave",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "routed_scaling_factor",
    "score_function",
    "scoring_func",
    "sliding_window",
    "text_config",
    "tie_word_embeddings",
    "topk_group",
    "topk_method",
    "v_head_dim",
    "vocab_size",
    /* not read, and near to one that is */
    "head_dim",
    "q_head_dim",
    "qk_head_dim",
};
static const char *const ROPE_FIELDS[] = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "llama_4_scaling_beta",
    "max_position_embeddings",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "truncate",
    "type",
};

/* NULL: it is one of them, or near to none. */
static const char *meant(const char *name, const char *const *fields, size_t n_fields)
{
    const char *near  = NULL;
    size_t      n     = strlen(name);
    uint32_t    least = UINT32_MAX;

    for (size_t i = 0; i < n_fields; i++) {
        size_t   m    = strlen(fields[i]);
        uint32_t most = n < SURE_LENGTH || m < SURE_LENGTH ? 1 : 2, apart;

        if (n > m + most || m > n + most) continue; /* a large file has many names */
        apart = bt_letters_apart(name, fields[i]);
        if (apart == 0) return NULL;
        if (apart > most || apart >= least) continue;
        least = apart;
        near  = fields[i];
    }
    return near;
}

static void warn(const bt_json_at *at, const char *const *fields, size_t n_fields)
{
    const char *name;
    json_t     *v;
    char        show[MAX_NAME + 1];

    json_object_foreach((json_t *)at->obj, name, v)
    {
        const char *near = meant(name, fields, n_fields);

        if (near != NULL)
            BT_WARN("%s: field %s%s%s: not known, and not read: is it %s?", at->file, at->in,
                    at->in[0] == '\0' ? "" : ".", bt_json_printable(name, show, sizeof(show)),
                    near);
    }
}

void bt_config_warn_of_names(const bt_json_at *at)
{
    static const char *const ROPES[] = {"rope_scaling", "rope_parameters"};

    warn(at, FIELDS, sizeof(FIELDS) / sizeof(FIELDS[0]));
    for (size_t i = 0; i < sizeof(ROPES) / sizeof(ROPES[0]); i++) {
        bt_json_at rope = {at->file, ROPES[i], bt_json_field(at, ROPES[i])};

        warn(&rope, ROPE_FIELDS, sizeof(ROPE_FIELDS) / sizeof(ROPE_FIELDS[0]));
    }
}
