/* model/fingerprint.c - one number for "the same model": ranks of a cell compare it. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "model/model.h"

/* Of the layout in device/cpu/kernels.h, which all kernel families share. */
enum { PACKING_VERSION = 3 };

static void add_tensor(XXH3_state_t *hash, const bt_tensor *t)
{
    uint64_t head[2] = {t->dtype, t->n_dims};

    XXH3_64bits_update(hash, t->name, strlen(t->name) + 1);
    XXH3_64bits_update(hash, head, sizeof(head));
    XXH3_64bits_update(hash, t->shape, t->n_dims * sizeof(t->shape[0]));
    for (size_t i = 0; i < BT_TENSOR_SLICES; i++) {
        size_t      bytes;
        const void *slice = bt_tensor_slice(t, i, &bytes);

        XXH3_64bits_update(hash, slice, bytes);
    }
}

/* Field by field: the struct has padding and a pointer. */
static void add_config(XXH3_state_t *hash, const bt_model_config *c)
{
    char text[1024];
    int  n = snprintf(text, sizeof(text),
                      "%s %u %u %u %u %a %d | %u %u %u %u %u %u %a %a %a | %u %u %u %d | %u %u %u | "
                       "%d %u %u %u %u %d %a %u %u | %a %u",
                      c->model_type, c->vocab_size, c->hidden, c->n_layers, c->max_context,
                      (double)c->rms_norm_eps, c->tie_embeddings, c->mla.n_heads, c->mla.q_lora_rank,
                      c->mla.kv_lora_rank, c->mla.qk_nope_dim, c->mla.qk_rope_dim, c->mla.v_dim,
                      (double)c->mla.latent_eps, (double)c->mla.softmax_scale, c->mla.rope_magnitude,
                      c->mla.index_topk, c->mla.index_heads, c->mla.index_dim, c->mla.index_halves,
                      c->dense_dim, c->first_moe_layer, c->moe_layer_freq, (int)c->moe.gate.kind,
                      c->moe.gate.n_experts, c->moe.gate.top_k, c->moe.gate.n_groups,
                      c->moe.gate.topk_groups, c->moe.gate.norm_topk, (double)c->moe.gate.scale,
                      c->moe.expert_dim, c->moe.shared_dim, c->mla.query_beta, c->mla.query_context);

    BT_ASSERT(n > 0 && (size_t)n < sizeof(text));
    XXH3_64bits_update(hash, text, (size_t)n);
    XXH3_64bits_update(hash, c->rope_inv_freq,
                       c->mla.qk_rope_dim / 2 * sizeof(c->rope_inv_freq[0]));
    XXH3_64bits_update(hash, c->index_shared, sizeof(c->index_shared));
    XXH3_64bits_update(hash, c->eos_tokens, c->n_eos * sizeof(c->eos_tokens[0]));
}

uint64_t bt_model_fingerprint(const bt_model_config *cfg, const bt_safetensors *st)
{
    XXH3_state_t *hash = XXH3_createState();
    uint64_t      digest;

    if (hash == NULL)
        return 0; /* no memory: equals no other model's, and the caller goes on to
                     fail at its first own allocation */
    XXH3_64bits_reset(hash);
    add_config(hash, cfg);
    /* Else each slice would bring in all that lies around it: the whole checkpoint. */
    bt_safetensors_expect_samples(st, true);
    for (size_t i = 0; i < bt_safetensors_count(st); i++)
        add_tensor(hash, bt_safetensors_at(st, i));
    bt_safetensors_expect_samples(st, false);
    digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return digest;
}

/* Size and time of each file, since only samples of the tensors are in the fingerprint. */
static uint64_t files_key(const bt_safetensors *st)
{
    uint64_t key = 0, facts[3];

    for (size_t i = 0; bt_safetensors_file(st, i, facts); i++)
        key = XXH3_64bits_withSeed(facts, sizeof(facts), key);
    return key;
}

/* A matrix packed is hardly larger than its tensor, FP8 and what is there in two forms aside (of
 * bf16 that of ranks that prefill and that of others); a small one has padding. */
void bt_model_store_options(const bt_model_config *cfg, const bt_safetensors *st,
                            bt_store_options *opt_out)
{
    enum { MOST_TIMES = 4, PADDING_BYTES = (60 << 10) + BT_STORE_PAGE_BYTES };
    uint64_t key[3] = {bt_model_fingerprint(cfg, st), files_key(st), PACKING_VERSION}, bytes = 0;
    size_t   n = 2 * bt_safetensors_count(st) + 3ul * cfg->n_layers * cfg->mla.n_heads;

    for (size_t i = 0; i < bt_safetensors_count(st); i++)
        bytes += bt_safetensors_at(st, i)->bytes;
    opt_out->key     = XXH3_64bits(key, sizeof(key));
    opt_out->n_slots = (uint32_t)(2 * n);
    opt_out->bytes   = MOST_TIMES * bytes + n * PADDING_BYTES;
}
