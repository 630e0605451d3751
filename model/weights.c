/* The weights of a model: which tensors each layer has, and what becomes of them when experts move.
 */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "device/cpu/linear.h"
#include "model/json.h"
#include "model/weights_loader.h"

#define LAYERS "model.layers."

static bt_status upload_embedding(bt_loader *l, const bt_matrix *m)
{
    const bt_model_config *cfg    = l->cfg;
    bt_row_source          source = {.part = {*m}, .first = 0, .n = cfg->vocab_size};
    bt_status              st     = BT_OK;

    BT_TRY(bt_device_alloc_array(l->opt->dev, (size_t)cfg->vocab_size * cfg->hidden,
                                 sizeof(bt_bf16), &l->w->bytes, &l->w->own_embedding));
    l->w->embedding = l->w->own_embedding;
    BT_TRY(bt_device_upload_rows(l->opt->dev, cfg->vocab_size, cfg->hidden, bt_source_row, &source,
                                 l->w->own_embedding));
out:
    return st;
}

/* Into what is shared, or this rank's own memory; nothing while another rank packs it. */
static bt_status place_embedding(bt_loader *l, const bt_matrix *m)
{
    const bt_model_config *cfg   = l->cfg;
    size_t                 bytes = (size_t)cfg->vocab_size * cfg->hidden * sizeof(bt_bf16);
    bt_store_entry         entry;
    bt_store_claim         got;

    got = bt_loader_take_shared(l, "the embedding", bytes, &entry); /* no tensor has this name */
    if (got == BT_STORE_BUSY) return BT_OK;
    if (got == BT_STORE_FULL) return upload_embedding(l, m);
    if (got == BT_STORE_MINE) {
        for (uint32_t n = 0; n < cfg->vocab_size; n++) {
            bt_matrix_row(m, n, (bt_bf16 *)entry.fill + (size_t)n * cfg->hidden);
            bt_store_beat(l->w->store);
        }
        bt_store_commit(l->w->store, &entry);
    }
    bt_bring_weights(entry.data, bytes);
    l->w->embedding = entry.data;
    l->w->bytes += bytes;
    l->w->shared_bytes += bytes;
    return BT_OK;
}

static bt_status load_embedding(bt_loader *l)
{
    bt_status st = BT_OK;
    bt_matrix m;

    BT_TRY(bt_loader_find(l, "model.embed_tokens.weight", l->cfg->vocab_size, l->cfg->hidden, &m));
    if (!l->dry && l->w->embedding == NULL) BT_TRY(place_embedding(l, &m));
    bt_loader_count(l, &m);
out:
    return st;
}

/* Of kv_b, head-major with nope rows of K before v rows of V: per head W_UK as it is (normal form),
 * W_UK transposed (absorbed form), W_UV (both). */
static bt_status load_heads(bt_loader *l, uint32_t layer, bt_mla_weights *w)
{
    const bt_mla_config *m    = &l->cfg->mla;
    uint32_t             both = m->qk_nope_dim + m->v_dim, rank = m->kv_lora_rank;
    bt_status            st = BT_OK;
    bt_matrix            kv_b;

    BT_TRY(bt_loader_find(l, bt_loader_name(l, "model.layers.%u.self_attn.kv_b_proj.weight", layer),
                          m->n_heads * both, rank, &kv_b));
    if (!l->dry) {
        if (w->uv == NULL) w->uv = bt_calloc(m->n_heads, sizeof(bt_linear *));
        if (l->opt->normal && w->uk == NULL) w->uk = bt_calloc(m->n_heads, sizeof(bt_linear *));
        if (l->opt->absorbed && w->ukt == NULL) w->ukt = bt_calloc(m->n_heads, sizeof(bt_linear *));
        BT_REQUIRE(w->uv != NULL && (w->uk != NULL || !l->opt->normal) &&
                       (w->ukt != NULL || !l->opt->absorbed),
                   BT_ERR_NO_MEMORY, "heads of layer %u", layer);
        for (uint32_t h = 0; h < m->n_heads; h++) {
            bool          cpu = l->opt->dev->host_memory;
            bt_row_source k   = {{kv_b}, h * both, m->qk_nope_dim, cpu};
            bt_row_source v   = {{kv_b}, k.first + k.n, m->v_dim, cpu};

            BT_TRY(bt_loader_pack(l, bt_loader_name(l, "%u.uv.%u", layer, h), m->v_dim, rank,
                                  bt_source_row, &v, &w->uv[h]));
            if (w->uk != NULL)
                BT_TRY(bt_loader_pack(l, bt_loader_name(l, "%u.uk.%u", layer, h), m->qk_nope_dim,
                                      rank, bt_source_row, &k, &w->uk[h]));
            if (w->ukt != NULL)
                BT_TRY(bt_loader_pack(l, bt_loader_name(l, "%u.ukt.%u", layer, h), rank,
                                      m->qk_nope_dim, bt_source_column, &k, &w->ukt[h]));
        }
    }
    bt_loader_count(l, &kv_b);
out:
    return st;
}

static bt_status load_attention(bt_loader *l, uint32_t layer, bt_mla_weights *w)
{
    const bt_mla_config *m    = &l->cfg->mla;
    uint32_t             n_q  = m->n_heads * (m->qk_nope_dim + m->qk_rope_dim);
    uint32_t             rank = m->q_lora_rank;
    bt_status            st   = BT_OK;

#define NAME(what) bt_loader_name(l, "model.layers.%u.self_attn." what ".weight", layer)
    if (rank == 0) {
        BT_TRY(bt_loader_matrix(l, n_q, m->hidden, NAME("q_proj"), &w->q));
    } else {
        BT_TRY(bt_loader_matrix(l, rank, m->hidden, NAME("q_a_proj"), &w->q_a));
        BT_TRY(bt_loader_vector(l, rank, NAME("q_a_layernorm"), &w->q_a_norm));
        BT_TRY(bt_loader_matrix(l, n_q, rank, NAME("q_b_proj"), &w->q_b));
    }
    BT_TRY(bt_loader_matrix(l, m->kv_lora_rank + m->qk_rope_dim, m->hidden,
                            NAME("kv_a_proj_with_mqa"), &w->kv_a));
    BT_TRY(bt_loader_vector(l, m->kv_lora_rank, NAME("kv_a_layernorm"), &w->kv_a_norm));
    BT_TRY(load_heads(l, layer, w));
    BT_TRY(bt_loader_matrix(l, m->hidden, m->n_heads * m->v_dim, NAME("o_proj"), &w->o));
    if (!bt_model_layer_has_indexer(l->cfg, layer)) goto out;
    BT_TRY(bt_loader_matrix(l, m->index_heads * m->index_dim, rank, NAME("indexer.wq_b"),
                            &w->index_q));
    BT_TRY(bt_loader_matrix(l, m->index_dim, m->hidden, NAME("indexer.wk"), &w->index_k));
    BT_TRY(
        bt_loader_matrix(l, m->index_heads, m->hidden, NAME("indexer.weights_proj"), &w->index_w));
    BT_TRY(bt_loader_vector(l, m->index_dim, NAME("indexer.k_norm"), &w->index_k_norm));
    BT_TRY(bt_loader_vector(
        l, m->index_dim, bt_loader_name(l, "model.layers.%u.self_attn.indexer.k_norm.bias", layer),
        &w->index_k_bias));
#undef NAME
out:
    return st;
}

static bt_status load_bias(bt_loader *l, uint32_t layer, float **bias_out)
{
    uint32_t    n    = l->cfg->moe.gate.n_experts;
    float      *bias = NULL;
    bt_status   st   = BT_OK;
    bt_matrix   v    = {0};
    const char *name = bt_loader_name(l, "model.layers.%u.mlp.gate.e_score_correction_bias", layer);

    if (bt_safetensors_find(l->st, name) != NULL || !l->cfg->moe_norm) /* else it is 0 */
        BT_TRY(bt_vector_find(l->st, name, n, &v));
    if (!l->dry && !l->again) {
        bias = bt_calloc(n, sizeof(*bias));
        BT_REQUIRE(bias != NULL, BT_ERR_NO_MEMORY, "gate of layer %u", layer);
        for (uint32_t e = 0; e < n && v.t != NULL; e++)
            bias[e] = bt_matrix_element(&v, e);
        BT_TRY(bt_device_alloc_array(l->opt->dev, n, sizeof(*bias), &l->w->bytes, bias_out));
        BT_TRY(bt_device_upload(l->opt->dev, *bias_out, bias, n * sizeof(*bias)));
    }
    if (v.t != NULL) bt_loader_count(l, &v);
out:
    bt_free(bias);
    return st;
}

/* A layer's experts run in one call, which on a GPU wants them alike.  *first: one that is loaded
 * already; n_experts: none yet. */
static bt_status check_alike(const bt_loader *l, const bt_moe_weights *w, uint32_t layer,
                             uint32_t e, uint32_t *first)
{
    bt_status st = BT_OK;

    if (l->opt->dev->host_memory) goto out;
    if (*first == l->cfg->moe.gate.n_experts) *first = e;
    BT_REQUIRE(
        bt_linear_kind(w->gate_up[e]) == bt_linear_kind(w->gate_up[*first]) &&
            bt_linear_kind(w->down[e]) == bt_linear_kind(w->down[*first]),
        BT_ERR_UNSUPPORTED,
        "experts %u and %u of layer %u are not stored alike: on this device all of a layer's "
        "experts are F8_E4M3 or in 4 bits, or none is",
        *first, e, layer);
out:
    return st;
}

static bt_status load_experts(bt_loader *l, uint32_t layer, bt_moe_weights *w)
{
    const bt_moe_config *c = &l->cfg->moe;
    uint32_t             n = c->gate.n_experts, first = n;
    bt_status            st = BT_OK;

    BT_TRY(bt_loader_matrix(
        l, n, c->hidden, bt_loader_name(l, "model.layers.%u.mlp.gate.weight", layer), &w->router));
    if (c->gate.kind == BT_GATE_SIGMOID_BIAS) BT_TRY(load_bias(l, layer, &w->router_bias));
    if (c->shared_dim != 0)
        BT_TRY(bt_loader_mlp(l, c->shared_dim,
                             bt_loader_name(l, "model.layers.%u.mlp.shared_experts", layer),
                             &w->shared_gate_up, &w->shared_down));
    if (!l->dry && !l->again) {
        w->gate_up = bt_calloc(n, sizeof(bt_linear *));
        w->down    = bt_calloc(n, sizeof(bt_linear *));
        BT_REQUIRE(w->gate_up != NULL && w->down != NULL, BT_ERR_NO_MEMORY, "experts of layer %u",
                   layer);
    }
    for (uint32_t e = 0; e < n; e++) {
        if (!l->opt->own_experts[e]) continue;
        BT_TRY(bt_loader_mlp(l, c->expert_dim,
                             bt_loader_name(l, "model.layers.%u.mlp.experts.%u", layer, e),
                             l->dry ? NULL : &w->gate_up[e], l->dry ? NULL : &w->down[e]));
        if (!l->dry) BT_TRY(check_alike(l, w, layer, e, &first));
    }
out:
    return st;
}

static bt_status load_layer(bt_loader *l, uint32_t layer, bt_layer_weights *w)
{
    uint32_t  hidden = l->cfg->hidden;
    bt_status st     = BT_OK;

    BT_TRY(bt_loader_vector(l, hidden,
                            bt_loader_name(l, "model.layers.%u.input_layernorm.weight", layer),
                            &w->input_norm));
    BT_TRY(load_attention(l, layer, &w->mla));
    BT_TRY(bt_loader_vector(
        l, hidden, bt_loader_name(l, "model.layers.%u.post_attention_layernorm.weight", layer),
        &w->post_norm));
    if (bt_model_layer_is_moe(l->cfg, layer)) {
        if (l->cfg->moe_norm)
            BT_TRY(bt_loader_vector(
                l, hidden, bt_loader_name(l, "model.layers.%u.post_mlp_layernorm.weight", layer),
                &w->moe_norm));
        BT_TRY(load_experts(l, layer, &w->moe));
    } else {
        BT_TRY(bt_loader_mlp(l, l->cfg->dense_dim, bt_loader_name(l, "model.layers.%u.mlp", layer),
                             &w->gate_up, &w->down));
    }
out:
    return st;
}

static const char *head_name(const bt_model_config *cfg)
{
    return cfg->tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
}

/* By samples, since these are the largest tensors. */
static bool looks_the_same(const bt_tensor *a, const bt_tensor *b)
{
    if (a->dtype != b->dtype || a->bytes != b->bytes || a->n_dims != b->n_dims ||
        memcmp(a->shape, b->shape, a->n_dims * sizeof(a->shape[0])) != 0)
        return false;
    for (size_t i = 0; i < BT_TENSOR_SLICES; i++) {
        size_t      bytes;
        const void *of_a = bt_tensor_slice(a, i, &bytes), *of_b = bt_tensor_slice(b, i, &bytes);

        if (memcmp(of_a, of_b, bytes) != 0) return false;
    }
    return true;
}

/* Embedding and head stand once more in the layer for multi-token prediction, and are the model's:
 * one copy is loaded.  `copy` need not be there. */
static bt_status check_copy(bt_loader *l, const char *of, const char *copy)
{
    bt_status        st = BT_OK;
    const bt_tensor *t = bt_safetensors_find(l->st, copy), *m = bt_safetensors_find(l->st, of);

    if (!l->dry || t == NULL) goto out;
    BT_REQUIRE(m != NULL && looks_the_same(t, m), BT_ERR_UNSUPPORTED,
               "%s: tensor %s: expected a copy of %s, found something else", t->file, copy, of);
    l->used[t - bt_safetensors_at(l->st, 0)] = true;
out:
    return st;
}

static bt_status load_mtp(bt_loader *l, bt_mtp_weights *w)
{
    const bt_model_config *cfg   = l->cfg;
    uint32_t               layer = cfg->n_layers, hidden = cfg->hidden;
    bt_status              st = BT_OK;

#define NAME(what) bt_loader_name(l, "model.layers.%u." what ".weight", layer)
    BT_REQUIRE(bt_safetensors_find(l->st, NAME("enorm")) != NULL, BT_ERR_FORMAT,
               "%s: expected tensor %s of the layer for multi-token prediction that config.json "
               "names, found none (transformers saves models without it): leave --mtp out; "
               "--speculate drafts without one",
               bt_safetensors_path(l->st), NAME("enorm"));
    BT_TRY(load_layer(l, layer, &l->w->layers[layer]));
    BT_TRY(bt_loader_vector(l, hidden, NAME("enorm"), &w->token_norm));
    BT_TRY(bt_loader_vector(l, hidden, NAME("hnorm"), &w->hidden_norm));
    BT_TRY(bt_loader_matrix(l, hidden, 2 * hidden, NAME("eh_proj"), &w->join));
    BT_TRY(bt_loader_vector(l, hidden, NAME("shared_head.norm"), &w->norm));
    BT_TRY(check_copy(l, "model.embed_tokens.weight", NAME("embed_tokens")));
    BT_TRY(check_copy(l, head_name(cfg), NAME("shared_head.head")));
#undef NAME
out:
    return st;
}

static bt_status walk(bt_loader *l)
{
    const bt_model_config *cfg = l->cfg;
    bt_status              st  = BT_OK;

    BT_TRY(load_embedding(l));
    for (uint32_t layer = 0; layer < cfg->n_layers; layer++)
        BT_TRY(load_layer(l, layer, &l->w->layers[layer]));
    BT_TRY(bt_loader_vector(l, cfg->hidden, "model.norm.weight", &l->w->norm));
    l->few_rows = true;
    BT_TRY(bt_loader_matrix(l, cfg->vocab_size, cfg->hidden, head_name(cfg), &l->w->lm_head));
    l->few_rows = l->w->few_rows;
    if (cfg->mtp) BT_TRY(load_mtp(l, &l->w->mtp));
out:
    return st;
}

static bool is_of_other_rank(const bt_loader *l, const char *rest)
{
    uint32_t expert;

    return bt_tensor_name_index(rest, "mlp.experts.", &expert) != NULL &&
           expert < l->cfg->moe.gate.n_experts && !l->opt->own_experts[expert];
}

/* A tensor of a served layer that may be there without a use: an expert of another rank, a scale,
 * RoPE's frequencies, which are computed; the indexer of a layer that config.json says to do
 * without; the norm behind a dense layer that A.X-K1 stores and does not use; with FP8 weights of
 * one scale those of activations, which are not rounded here. */
static bool may_be_unused(const bt_loader *l, unsigned layer, const char *rest)
{
    const bt_model_config *cfg = l->cfg;

    return is_of_other_rank(l, rest) || strcmp(rest, "self_attn.rotary_emb.inv_freq") == 0 ||
           (cfg->mla.index_topk != 0 && !bt_model_layer_has_indexer(cfg, layer) &&
            strncmp(rest, "self_attn.indexer.", strlen("self_attn.indexer.")) == 0) ||
           (cfg->moe_norm && !bt_model_layer_is_moe(cfg, layer) &&
            strcmp(rest, "post_mlp_layernorm.weight") == 0) ||
           (cfg->fp8_one_scale && bt_tensor_name_ends(rest, BT_NAME_SCALE_IN)) ||
           bt_tensor_name_ends(rest, BT_NAME_SCALE_FP8);
}

/* Of the embedding, a layer, the last norm or the head; other tensors are of towers. */
static bool is_of_model(const char *name)
{
    static const char *const PARTS[] = {"model.embed_tokens.", LAYERS, "model.norm.", "lm_head."};

    for (size_t i = 0; i < sizeof(PARTS) / sizeof(PARTS[0]); i++)
        if (strncmp(name, PARTS[i], strlen(PARTS[i])) == 0) return true;
    return false;
}

/* What files hold for the language model and config.json does not speak of would change the
 * results. */
static bt_status refuse_unused(const bt_loader *l)
{
    bt_status        st   = BT_OK;
    const bt_tensor *head = bt_safetensors_find(l->st, "lm_head.weight");

    /* Hugging Face's version 4 would use the embedding, version 5 the tensor. */
    BT_REQUIRE(!l->cfg->tie_embeddings || head == NULL, BT_ERR_UNSUPPORTED,
               "%s: tensor lm_head.weight: expected none, since config.json says "
               "tie_word_embeddings, found one: set that field to false to use the tensor",
               head->file);
    for (size_t i = 0; i < bt_safetensors_count(l->st); i++) {
        const bt_tensor *t = bt_safetensors_at(l->st, i);
        char             name[160];
        uint32_t         layer;
        const char      *rest = bt_tensor_name_index(t->name, LAYERS, &layer);

        if (l->used[i] || t->bytes == 0) /* as of 0 shared experts, which Hugging Face saves */
            continue;
        if (rest == NULL && !is_of_model(t->name)) continue;
        BT_REQUIRE(rest != NULL &&
                       (layer >= bt_model_n_served_layers(l->cfg) || may_be_unused(l, layer, rest)),
                   BT_ERR_UNSUPPORTED,
                   "%s: tensor %s: expected none of this name by config.json, found one: do they "
                   "belong together?",
                   t->file, bt_json_printable(t->name, name, sizeof(name)));
    }
out:
    return st;
}

void bt_weights_warn_of_layers(const bt_model_config *cfg, const bt_safetensors *set)
{
    const bt_tensor *last     = NULL;
    unsigned         n_stored = 0;
    char             name[160];

    for (size_t i = 0; i < bt_safetensors_count(set); i++) {
        const bt_tensor *t = bt_safetensors_at(set, i);
        uint32_t         layer;

        if (bt_tensor_name_index(t->name, LAYERS, &layer) == NULL || layer < n_stored) continue;
        n_stored = layer + 1;
        last     = t;
    }
    if (last != NULL && n_stored > cfg->n_layers + cfg->n_mtp_layers)
        BT_WARN("%s: tensor %s: expected no layer behind the %u that config.json names "
                "(num_hidden_layers %u, num_nextn_predict_layers %u), found it: what is behind is "
                "not served",
                last->file, bt_json_printable(last->name, name, sizeof(name)),
                cfg->n_layers + cfg->n_mtp_layers, cfg->n_layers, cfg->n_mtp_layers);
}

/* Which matrices have 4 bits the tensors say; but where config.json speaks of it, some do, unless a
 * rank without experts has no files of theirs. */
static bt_status want_int4(const bt_loader *l)
{
    bt_status st    = BT_OK;
    bool      found = !l->cfg->int4, wanted = false;

    for (uint32_t e = 0; e < l->cfg->moe.gate.n_experts; e++)
        wanted |= l->opt->own_experts[e];
    for (size_t i = 0; !found && i < bt_safetensors_count(l->st); i++)
        found = bt_tensor_kind(bt_safetensors_at(l->st, i)) == BT_WEIGHT_INT4;
    BT_REQUIRE(found || !wanted, BT_ERR_UNSUPPORTED,
               "%s: expected I32 tensors called ..weight_packed, since config.json has a "
               "quantization_config of compressed-tensors, found none",
               bt_safetensors_path(l->st));
out:
    return st;
}

/* Checks and counts what is to be loaded. */
static bt_status walk_dry(bt_loader *l)
{
    bt_status st = BT_OK;

    l->dry  = true;
    l->used = bt_calloc(bt_safetensors_count(l->st) + 1, sizeof(*l->used));
    BT_REQUIRE(l->used != NULL, BT_ERR_NO_MEMORY, "%zu tensors", bt_safetensors_count(l->st));
    BT_TRY(walk(l));
    BT_TRY(refuse_unused(l));
    BT_TRY(want_int4(l));
    l->dry = false;
out:
    bt_free(l->used);
    l->used = NULL;
    return st;
}

bt_status bt_weights_check(const bt_model_config *cfg, const bt_safetensors *set)
{
    uint32_t           n_experts = cfg->moe.gate.n_experts;
    bool              *all       = bt_calloc(n_experts + 1, sizeof(*all));
    uint32_t           n_layers  = bt_model_n_served_layers(cfg);
    bt_weights         w         = {.layers = bt_calloc(n_layers, sizeof(*w.layers))};
    bt_weights_options opt       = {.own_experts = all, .normal = true, .absorbed = true};
    bt_loader          l         = {.cfg = cfg, .st = set, .opt = &opt, .w = &w};
    bt_status          st        = BT_OK;

    BT_REQUIRE(all != NULL && w.layers != NULL, BT_ERR_NO_MEMORY, "tensors of %u layers", n_layers);
    memset(all, true, n_experts);
    BT_TRY(walk_dry(&l));
out:
    bt_free(w.layers);
    bt_free(all);
    return st;
}

bt_status bt_weights_load(const bt_model_config *cfg, const bt_safetensors *set,
                          const bt_weights_options *opt, bt_weights *w_out)
{
    bt_weights w  = {.dev       = opt->dev,
                     .n_layers  = bt_model_n_served_layers(cfg),
                     .n_heads   = cfg->mla.n_heads,
                     .n_experts = cfg->moe.gate.n_experts,
                     .few_rows  = opt->few_rows,
                     .store     = opt->store,
                     .packed    = opt->packed};
    bt_loader  l  = {.cfg = cfg, .st = set, .opt = opt, .w = &w, .few_rows = opt->few_rows};
    bt_status  st = BT_OK;

    w.layers = bt_calloc(w.n_layers, sizeof(*w.layers));
    BT_REQUIRE(w.layers != NULL, BT_ERR_NO_MEMORY, "weights of %u layers", w.n_layers);
    BT_TRY(walk_dry(&l));
    BT_TRY(walk(&l));
    l.again = l.n_busy != 0;
    if (l.again) BT_TRY(walk(&l));
    if (w.store != NULL) bt_store_seal(w.store);
    *w_out = w;
    memset(&w, 0, sizeof(w)); /* handed over */
out:
    bt_weights_fini(&w);
    return st;
}

/* ---- other experts ---- */

static void drop_matrix(bt_loader *l, bt_linear **linear, const char *name)
{
    bt_weights *w      = l->w;
    bool        shared = (*linear)->borrowed;
    char        entry[BT_ENTRY_NAME];

    bt_loader_entry_name(name, (*linear)->kind, entry);
    w->bytes -= bt_linear_bytes(*linear);
    if (shared) w->shared_bytes -= bt_linear_bytes(*linear);
    bt_device_linear_destroy(l->opt->dev, *linear);
    *linear = NULL;
    if (shared && w->store != NULL) bt_store_drop(w->store, entry);
}

static void drop_expert(bt_loader *l, uint32_t layer, uint32_t e, bt_moe_weights *w)
{
    drop_matrix(l, &w->gate_up[e],
                bt_loader_name(l, "model.layers.%u.mlp.experts.%u.up_proj.weight", layer, e));
    drop_matrix(l, &w->down[e],
                bt_loader_name(l, "model.layers.%u.mlp.experts.%u.down_proj.weight", layer, e));
}

/* In a dry walk: checks and counts what is to come; else moves. */
static bt_status move_layer(bt_loader *l, uint32_t layer)
{
    bt_moe_weights *w   = &l->w->layers[layer].moe;
    uint32_t        dim = l->cfg->moe.expert_dim;
    bt_status       st  = BT_OK;

    for (uint32_t e = 0; e < l->cfg->moe.gate.n_experts; e++) {
        bool here = w->gate_up[e] != NULL;

        if (here && !l->opt->own_experts[e] && !l->dry) {
            drop_expert(l, layer, e, w);
        } else if ((!here || w->down[e] == NULL) && l->opt->own_experts[e]) {
            BT_TRY(bt_loader_mlp(l, dim,
                                 bt_loader_name(l, "model.layers.%u.mlp.experts.%u", layer, e),
                                 &w->gate_up[e], &w->down[e]));
        }
    }
out:
    return st;
}

bt_status bt_weights_move_experts(const bt_model_config *cfg, const bt_safetensors *set,
                                  const bt_weights_options *opt, bt_weights *w)
{
    bt_loader l  = {.cfg = cfg, .st = set, .opt = opt, .w = w, .few_rows = w->few_rows};
    bt_status st = BT_OK;

    for (int pass = 0; pass < 2 + (l.n_busy != 0); pass++) {
        l.dry   = pass == 0;
        l.again = pass == 2;
        for (uint32_t layer = 0; layer < w->n_layers; layer++)
            if (bt_model_layer_is_moe(cfg, layer)) BT_TRY(move_layer(&l, layer));
    }
    if (w->store != NULL) {
        bt_store_seal(w->store);
        bt_store_sweep(w->store);
    }
out:
    return st;
}

uint32_t bt_weights_missing_experts(const bt_model_config *cfg, const bt_weights *w)
{
    const bt_moe_weights *moe;
    bt_weight_kind        kind  = BT_WEIGHT_BF16;
    uint32_t              layer = 0, n = 0;

    while (layer < w->n_layers && !bt_model_layer_is_moe(cfg, layer))
        layer++;
    if (layer == w->n_layers) return 0;
    moe = &w->layers[layer].moe;
    for (uint32_t e = 0; e < w->n_experts; e++)
        if (moe->down[e] != NULL) kind = moe->down[e]->kind;
    for (uint32_t e = 0; e < w->n_experts; e++) {
        char name[BT_ENTRY_NAME / 2], entry[BT_ENTRY_NAME];

        snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u.down_proj.weight", layer, e);
        bt_loader_entry_name(name, kind, entry);
        n += moe->down[e] == NULL && (w->store == NULL || !bt_store_holds(w->store, entry));
    }
    return n;
}

/* ---- giving back ---- */

static void destroy_list(bt_device *dev, bt_linear **list, uint32_t n)
{
    for (uint32_t i = 0; i < n && list != NULL; i++)
        bt_device_linear_destroy(dev, list[i]);
    bt_free(list);
}

static void fini_layer(const bt_weights *w, bt_layer_weights *layer)
{
    bt_mla_weights *mla      = &layer->mla;
    bt_moe_weights *moe      = &layer->moe;
    bt_linear      *single[] = {mla->q,          mla->q_a,     mla->q_b,     mla->kv_a,
                                mla->o,          mla->index_q, mla->index_k, mla->index_w,
                                layer->gate_up,  layer->down,  moe->router,  moe->shared_gate_up,
                                moe->shared_down};
    bt_bf16 *vector[] = {layer->input_norm, layer->post_norm,  layer->moe_norm,  mla->q_a_norm,
                         mla->kv_a_norm,    mla->index_k_norm, mla->index_k_bias};

    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++)
        bt_device_linear_destroy(w->dev, single[i]);
    for (size_t i = 0; i < sizeof(vector) / sizeof(vector[0]); i++)
        bt_device_free(w->dev, vector[i]);
    destroy_list(w->dev, mla->uk, w->n_heads);
    destroy_list(w->dev, mla->ukt, w->n_heads);
    destroy_list(w->dev, mla->uv, w->n_heads);
    destroy_list(w->dev, moe->gate_up, w->n_experts);
    destroy_list(w->dev, moe->down, w->n_experts);
    bt_device_free(w->dev, moe->router_bias);
}

void bt_weights_fini(bt_weights *w)
{
    if (w->layers == NULL) return;
    for (uint32_t i = 0; i < w->n_layers; i++)
        fini_layer(w, &w->layers[i]);
    bt_device_free(w->dev, w->own_embedding);
    bt_device_free(w->dev, w->norm);
    bt_device_linear_destroy(w->dev, w->lm_head);
    bt_device_free(w->dev, w->mtp.token_norm);
    bt_device_free(w->dev, w->mtp.hidden_norm);
    bt_device_free(w->dev, w->mtp.norm);
    bt_device_linear_destroy(w->dev, w->mtp.join);
    bt_free(w->layers);
    memset(w, 0, sizeof(*w));
}
