#include "tools/census.h"

#include <stdbool.h>
#include <string.h>

#include "model/json.h"
#include "model/tensor_kind.h"

const char *bt_part_name(bt_part part)
{
    static const char *const NAMES[BT_N_PARTS] = {
        [BT_PART_EMBEDDING] = "embedding",
        [BT_PART_ATTENTION] = "attention",
        [BT_PART_DENSE]     = "dense MLPs",
        [BT_PART_ROUTER]    = "routers",
        [BT_PART_EXPERTS]   = "routed experts",
        [BT_PART_SHARED]    = "shared experts",
        [BT_PART_NORMS]     = "norms",
        [BT_PART_HEAD]      = "LM head",
        [BT_PART_MTP]       = "MTP (with --mtp)",
        [BT_PART_OTHER]     = "unknown",
    };

    return NAMES[part];
}

static bool begins(const char *text, const char *head)
{
    return strncmp(text, head, strlen(head)) == 0;
}

static bt_part part_in_layer(const char *name)
{
    if (begins(name, "self_attn.")) return BT_PART_ATTENTION;
    if (begins(name, "mlp.experts.")) return BT_PART_EXPERTS;
    if (begins(name, "mlp.shared_experts.")) return BT_PART_SHARED;
    if (begins(name, "mlp.gate.")) return BT_PART_ROUTER;
    if (begins(name, "mlp.")) return BT_PART_DENSE;
    if (begins(name, "input_layernorm.") || begins(name, "post_attention_layernorm.") ||
        begins(name, "post_mlp_layernorm."))
        return BT_PART_NORMS;
    return BT_PART_OTHER;
}

static bt_part part_of(const char *name, const bt_model_config *cfg)
{
    const char *rest;
    uint32_t    layer;

    if (strcmp(name, "lm_head.weight") == 0) return BT_PART_HEAD;
    if (strcmp(name, "model.embed_tokens.weight") == 0) return BT_PART_EMBEDDING;
    if (strcmp(name, "model.norm.weight") == 0) return BT_PART_NORMS;
    rest = bt_tensor_name_index(name, "model.layers.", &layer);
    if (rest == NULL) return BT_PART_OTHER;
    if (layer >= cfg->n_layers && layer < cfg->n_layers + cfg->n_mtp_layers) return BT_PART_MTP;
    return layer < cfg->n_layers ? part_in_layer(rest) : BT_PART_OTHER;
}

/* RoPE's frequencies, which older checkpoints hold. */
static bool is_computed(const char *name) { return strstr(name, ".rotary_emb.inv_freq") != NULL; }

/* What its weights are in memory: the embedding's rows and kv_b are read as bf16. */
static bt_weight_kind loaded_kind(const bt_tensor *t, bt_part part)
{
    bool widened = part == BT_PART_EMBEDDING || strstr(t->name, "kv_b_proj") != NULL;

    return widened ? BT_WEIGHT_BF16 : bt_tensor_kind(t);
}

void bt_census_take(const bt_safetensors *files, const bt_model_config *cfg, bt_census *c)
{
    *c = (bt_census){.n_tensors = bt_safetensors_count(files)};
    for (size_t i = 0; i < c->n_tensors; i++) {
        const bt_tensor *t    = bt_safetensors_at(files, i);
        bt_part          part = part_of(t->name, cfg);

        c->bytes[part] += t->bytes;
        c->corrected |=
            part == BT_PART_ROUTER && strstr(t->name, "e_score_correction_bias") != NULL;
        if (!bt_tensor_is_beside_weights(t) && !is_computed(t->name)) {
            c->n_params[part] += bt_tensor_n_weights(t);
            c->loaded[part] += bt_weight_bytes(loaded_kind(t, part), bt_tensor_n_weights(t));
        }
        if (part == BT_PART_OTHER && c->first_other[0] == '\0')
            bt_json_printable(t->name, c->first_other, sizeof(c->first_other));
    }
}

uint64_t bt_census_served(const uint64_t of[BT_N_PARTS])
{
    uint64_t sum = 0;

    for (int i = 0; i < BT_PART_MTP; i++)
        sum += of[i];
    return sum;
}

static uint64_t of_an_indexer(const bt_mla_config *m)
{
    return (uint64_t)m->index_heads * (m->index_dim * (uint64_t)m->q_lora_rank + m->hidden) +
           m->index_dim * ((uint64_t)m->hidden + 2);
}

uint64_t bt_census_attention(const bt_mla_config *m)
{
    uint64_t q_rows = (uint64_t)m->n_heads * (m->qk_nope_dim + m->qk_rope_dim);
    uint64_t q      = m->q_lora_rank == 0 ? q_rows * m->hidden
                                          : (uint64_t)m->q_lora_rank * (m->hidden + 1 + q_rows);
    uint64_t kv_a   = ((uint64_t)m->kv_lora_rank + m->qk_rope_dim) * m->hidden + m->kv_lora_rank;
    uint64_t kv_b   = (uint64_t)m->n_heads * (m->qk_nope_dim + m->v_dim) * m->kv_lora_rank;

    return q + kv_a + kv_b + (uint64_t)m->hidden * m->n_heads * m->v_dim;
}

void bt_census_expect(const bt_model_config *cfg, uint64_t n_params[BT_N_PARTS])
{
    const bt_gate_config *g        = &cfg->moe.gate;
    uint64_t              h        = cfg->hidden;
    uint64_t              n_moe    = bt_model_n_moe_layers(cfg);
    bool                  has_bias = g->kind == BT_GATE_SIGMOID_BIAS && !cfg->moe_norm;

    memset(n_params, 0, BT_N_PARTS * sizeof(*n_params));
    n_params[BT_PART_EMBEDDING] = cfg->vocab_size * h;
    n_params[BT_PART_HEAD]      = cfg->tie_embeddings ? 0 : cfg->vocab_size * h;
    n_params[BT_PART_NORMS]     = ((cfg->moe_norm ? 3 : 2) * (uint64_t)cfg->n_layers + 1) * h;
    n_params[BT_PART_ATTENTION] = cfg->n_layers * bt_census_attention(&cfg->mla) +
                                  bt_model_n_indexers(cfg) * of_an_indexer(&cfg->mla);
    n_params[BT_PART_DENSE]   = (cfg->n_layers - n_moe) * 3 * cfg->dense_dim * h;
    n_params[BT_PART_ROUTER]  = n_moe * (g->n_experts * h + (has_bias ? g->n_experts : 0));
    n_params[BT_PART_EXPERTS] = n_moe * g->n_experts * 3 * cfg->moe.expert_dim * h;
    n_params[BT_PART_SHARED]  = n_moe * 3 * cfg->moe.shared_dim * h;
}
