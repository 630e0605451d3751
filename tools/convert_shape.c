/* The keys of architecture deepseek2, which V2, V3, R1, Kimi-K2, Moonlight and GLM-4.7-Flash share,
 * as a config.json's fields.  What older files leave out has the value of the models of their
 * time. */
#include <stdio.h>

#include "model/config.h"
#include "tools/convert.h"

#define ARCH "deepseek2"
enum { MAX_DIM = 1 << 20, MAX_LAYERS = 256, MAX_EXPERTS = 1024 };

static bt_status need(const bt_gguf *g, const char *key, const char *what)
{
    bt_status st = BT_OK;

    BT_REQUIRE(bt_gguf_has(g, key), BT_ERR_FORMAT, "%s: key %s: expected %s, found nothing",
               bt_gguf_path(g), key, what);
out:
    return st;
}

static bt_status check_architecture(const bt_gguf *g)
{
    bt_status    st   = BT_OK;
    bt_gguf_text arch = {0};

    BT_TRY(need(g, "general.architecture", "\"" ARCH "\""));
    BT_TRY(bt_gguf_string(g, "general.architecture", &arch));
    BT_REQUIRE(bt_convert_is(arch, ARCH), BT_ERR_UNSUPPORTED,
               "%s: key general.architecture: expected \"" ARCH "\", found \"%.*s\"",
               bt_gguf_path(g), arch.n < 64 ? (int)arch.n : 64, arch.text);
out:
    return st;
}

typedef struct {
    const char *key;
    uint32_t   *v;
    uint32_t    lo, hi;
    bool        required;
} field;

static bt_status read_fields(const bt_gguf *g, const field *fields, size_t n)
{
    bt_status st = BT_OK;

    for (size_t i = 0; i < n; i++) {
        if (fields[i].required) BT_TRY(need(g, fields[i].key, "a number"));
        BT_TRY(bt_gguf_u32(g, fields[i].key, fields[i].lo, fields[i].hi, fields[i].v));
    }
out:
    return st;
}

static bt_status read_sizes(const bt_gguf *g, bt_synth_shape *s, uint32_t *n_mtp_out)
{
    bt_status             st    = BT_OK;
    const bt_gguf_tensor *embed = bt_gguf_find(g, "token_embd.weight");
    /* of a head; beside them, key_length and value_length may mean the latent's */
    bool        mla     = bt_gguf_has(g, ARCH ".attention.key_length_mla");
    const char *key_key = mla ? ARCH ".attention.key_length_mla" : ARCH ".attention.key_length";
    const char *value_key =
        mla ? ARCH ".attention.value_length_mla" : ARCH ".attention.value_length";
    uint32_t    n_blocks = 0, n_mtp = 0, key_dim = 0;
    const field fields[] = {
        {ARCH ".block_count",               &n_blocks,          1, MAX_LAYERS,            true },
        {ARCH ".nextn_predict_layers",      &n_mtp,             0, MAX_LAYERS,            false},
        {ARCH ".context_length",            &s->context,        1, 1 << 20,               true },
        {ARCH ".embedding_length",          &s->hidden,         1, MAX_DIM,               true },
        {ARCH ".feed_forward_length",       &s->dense_dim,      1, MAX_DIM,               true },
        {ARCH ".attention.head_count",      &s->n_heads,        1, 1 << 14,               true },
        {ARCH ".attention.q_lora_rank",     &s->q_lora_rank,    0, MAX_DIM,               false},
        {ARCH ".attention.kv_lora_rank",    &s->kv_lora_rank,   1, MAX_DIM,               true },
        {key_key,                           &key_dim,           1, 1 << 14,               true },
        {value_key,                         &s->v_dim,          1, 1 << 14,               true },
        {ARCH ".rope.dimension_count",      &s->qk_rope_dim,    2, 2 * BT_MAX_ROPE_PAIRS, true },
        {ARCH ".leading_dense_block_count", &s->n_dense_layers, 0, MAX_LAYERS,            true },
    };

    BT_TRY(read_fields(g, fields, sizeof(fields) / sizeof(fields[0])));
    BT_REQUIRE(n_mtp < n_blocks && s->n_dense_layers <= n_blocks - n_mtp, BT_ERR_FORMAT,
               "%s: key " ARCH ".block_count: expected more than nextn_predict_layers (%u), and "
               "with them at least leading_dense_block_count (%u), found %u",
               bt_gguf_path(g), n_mtp, s->n_dense_layers, n_blocks);
    BT_REQUIRE(key_dim > s->qk_rope_dim, BT_ERR_FORMAT,
               "%s: keys of a head: expected more than " ARCH ".rope.dimension_count (%u), found "
               "%u",
               bt_gguf_path(g), s->qk_rope_dim, key_dim);
    BT_REQUIRE(embed != NULL && embed->ne[1] <= 1 << 24, BT_ERR_FORMAT,
               "%s: tensor token_embd.weight: expected one of at most %d rows, found %s",
               bt_gguf_path(g), 1 << 24, embed == NULL ? "nothing" : "more");
    s->n_layers    = n_blocks - n_mtp;
    s->qk_nope_dim = key_dim - s->qk_rope_dim;
    s->vocab_size  = (uint32_t)embed->ne[1];
    *n_mtp_out     = n_mtp;
out:
    return st;
}

/* Some layer's gate corrects its choice, which only those with sigmoid scores do. */
static bool corrects(const bt_gguf *g, uint32_t n_layers)
{
    char name[64];

    for (uint32_t layer = 0; layer < n_layers; layer++) {
        snprintf(name, sizeof(name), "blk.%u.exp_probs_b.bias", layer);
        if (bt_gguf_find(g, name) != NULL) return true;
    }
    return false;
}

static bt_status read_gate(const bt_gguf *g, bt_synth_shape *s)
{
    bt_status   st       = BT_OK;
    uint32_t    gating   = 0; /* files of V2's time have none, nor have GLM-4.7-Flash's */
    const field fields[] = {
        {ARCH ".expert_count",               &s->n_experts,   1, MAX_EXPERTS, true },
        {ARCH ".expert_used_count",          &s->top_k,       1, MAX_EXPERTS, true },
        {ARCH ".expert_shared_count",        &s->n_shared,    0, 1 << 10,     false},
        {ARCH ".expert_feed_forward_length", &s->expert_dim,  1, MAX_DIM,     true },
        {ARCH ".expert_gating_func",         &gating,         0, UINT32_MAX,  false},
        {ARCH ".expert_group_count",         &s->n_groups,    0, MAX_EXPERTS, false},
        {ARCH ".expert_group_used_count",    &s->topk_groups, 0, MAX_EXPERTS, false},
    };

    BT_TRY(read_fields(g, fields, sizeof(fields) / sizeof(fields[0])));
    if (bt_gguf_has(g, ARCH ".expert_group_count"))
        BT_TRY(need(g, ARCH ".expert_group_used_count", "a number"));
    else { /* V2's and V3's first files lack it */
        bool v2 = s->n_experts == 160, v3 = s->n_experts == 256;

        s->n_groups    = v2 || v3 ? 8 : 1;
        s->topk_groups = v2 ? 3 : v3 ? 4 : 1;
    }
    if (s->n_groups <= 1) s->n_groups = s->topk_groups = 1;
    BT_REQUIRE(gating <= 2, BT_ERR_UNSUPPORTED,
               "%s: key " ARCH ".expert_gating_func: expected 1 (softmax) or 2 (sigmoid), found %u",
               bt_gguf_path(g), gating);
    s->sigmoid      = gating == 2 || (gating == 0 && corrects(g, s->n_layers));
    s->model_type   = s->sigmoid ? "deepseek_v3" : "deepseek_v2";
    s->architecture = s->sigmoid ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM";
    s->scale        = 1;
    BT_TRY(bt_gguf_f64(g, ARCH ".expert_weights_scale", 1e-6, 1e6, &s->scale));
    BT_TRY(bt_gguf_bool(g, ARCH ".expert_weights_norm", &s->norm_topk));
    BT_REQUIRE(s->sigmoid || !s->norm_topk, BT_ERR_UNSUPPORTED,
               "%s: key " ARCH ".expert_weights_norm: expected false for a softmax gate, found "
               "true",
               bt_gguf_path(g));
out:
    return st;
}

static bt_status read_yarn(const bt_gguf *g, bt_synth_shape *s)
{
    bt_status st             = BT_OK;
    double    log_multiplier = 0.0707; /* V2's first files lack it */

    BT_TRY(need(g, ARCH ".rope.scaling.factor", "a number"));
    BT_TRY(bt_gguf_f64(g, ARCH ".rope.scaling.factor", 1, 1e6, &s->yarn_factor));
    BT_TRY(need(g, ARCH ".rope.scaling.original_context_length", "a number"));
    BT_TRY(
        bt_gguf_u32(g, ARCH ".rope.scaling.original_context_length", 1, 1 << 24, &s->yarn_context));
    s->beta_fast = s->n_experts == 384 ? 1 : 32; /* Kimi-K2's first files lack it too */
    s->beta_slow = 1;
    BT_TRY(bt_gguf_f64(g, ARCH ".rope.scaling.yarn_beta_fast", 1e-3, 1e6, &s->beta_fast));
    BT_TRY(bt_gguf_f64(g, ARCH ".rope.scaling.yarn_beta_slow", 1e-3, 1e6, &s->beta_slow));
    if (s->sigmoid) BT_TRY(need(g, ARCH ".rope.scaling.yarn_log_multiplier", "a number"));
    BT_TRY(bt_gguf_f64(g, ARCH ".rope.scaling.yarn_log_multiplier", 1e-6, 10, &log_multiplier));
    s->mscale = log_multiplier * 10; /* the key is 0.1 * mscale_all_dim */
out:
    return st;
}

/* What would change the model's results, and no config.json of the family can say. */
static bt_status refuse_others(const bt_gguf *g)
{
    static const struct {
        const char *key;
        double      neutral;
    } OTHERS[] = {
        {ARCH ".attention.temperature_scale",   0},
        {ARCH ".attention.scale",               0},
        {ARCH ".attn_logit_softcapping",        0},
        {ARCH ".final_logit_softcapping",       0},
        {ARCH ".logit_scale",                   1},
        {ARCH ".rope.scale_linear",             1},
        {ARCH ".rope.scaling.attn_factor",      1},
        {ARCH ".rope.scaling.yarn_attn_factor", 1},
    };
    bt_status st     = BT_OK;
    uint32_t  window = 0;

    for (size_t i = 0; i < sizeof(OTHERS) / sizeof(OTHERS[0]); i++) {
        double v = OTHERS[i].neutral;

        BT_TRY(bt_gguf_f64(g, OTHERS[i].key, -1e30, 1e30, &v));
        BT_REQUIRE(v == OTHERS[i].neutral, BT_ERR_UNSUPPORTED,
                   "%s: key %s: expected it absent or %g, found %g: models that it says something "
                   "about are not supported",
                   bt_gguf_path(g), OTHERS[i].key, OTHERS[i].neutral, v);
    }
    BT_TRY(bt_gguf_u32(g, ARCH ".attention.sliding_window", 0, UINT32_MAX, &window));
    BT_REQUIRE(window == 0, BT_ERR_UNSUPPORTED,
               "%s: key " ARCH ".attention.sliding_window: expected it absent or 0, found %u",
               bt_gguf_path(g), window);
out:
    return st;
}

static bt_status read_rope(const bt_gguf *g, bt_synth_shape *s)
{
    bt_status    st     = BT_OK;
    bt_gguf_text type   = {"none", 4};
    double       factor = 1;
    bool         yarn;

    BT_TRY(need(g, ARCH ".rope.freq_base", "a number"));
    BT_TRY(bt_gguf_f64(g, ARCH ".rope.freq_base", 1.001, 1e12, &s->theta));
    BT_TRY(bt_gguf_string(g, ARCH ".rope.scaling.type", &type));
    yarn = bt_convert_is(type, "yarn");
    BT_REQUIRE(yarn || bt_convert_is(type, "none"), BT_ERR_UNSUPPORTED,
               "%s: key " ARCH ".rope.scaling.type: expected \"yarn\" or \"none\", found \"%.*s\"",
               bt_gguf_path(g), type.n < 32 ? (int)type.n : 32, type.text);
    BT_TRY(bt_gguf_f64(g, ARCH ".rope.scaling.factor", 1, 1e6, &factor));
    if (factor != 1) BT_TRY(need(g, ARCH ".rope.scaling.type", "one beside its factor"));
    if (yarn) BT_TRY(read_yarn(g, s));
out:
    return st;
}

/* An id, or -1 when the file has none. */
static bt_status read_token(const bt_gguf *g, const char *key, uint32_t vocab_size, int32_t *id_out)
{
    bt_status st = BT_OK;
    uint32_t  id = UINT32_MAX;

    BT_TRY(bt_gguf_u32(g, key, 0, vocab_size - 1, &id));
    *id_out = id == UINT32_MAX ? -1 : (int32_t)id;
out:
    return st;
}

/* The ids that end an answer: of a text, of a turn, of a message.  llama.cpp stops at any. */
static bt_status read_ends(const bt_gguf *g, bt_synth_shape *s)
{
    static const char *const KEYS[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    bt_status                st     = BT_OK;
    int                      n      = 0;

    for (int i = 0; i < 3; i++) {
        int32_t id;
        bool    known = false;

        BT_TRY(read_token(g, KEYS[i], s->vocab_size, &id));
        for (int j = 0; j < n; j++)
            known = known || s->eos[j] == id;
        if (id >= 0 && !known) s->eos[n++] = id;
    }
out:
    return st;
}

bt_status bt_convert_shape(const bt_gguf *g, bt_synth_shape *shape_out, uint32_t *n_mtp_out)
{
    bt_status      st    = BT_OK;
    uint32_t       n_mtp = 0;
    bt_synth_shape s     = {
            .eos = {-1, -1, -1}
    };

    BT_TRY(check_architecture(g));
    BT_TRY(read_sizes(g, &s, &n_mtp));
    BT_TRY(read_gate(g, &s));
    BT_TRY(read_rope(g, &s));
    BT_TRY(need(g, ARCH ".attention.layer_norm_rms_epsilon", "a number"));
    BT_TRY(bt_gguf_f64(g, ARCH ".attention.layer_norm_rms_epsilon", 1e-12, 1e-1, &s.eps));
    BT_TRY(read_token(g, "tokenizer.ggml.bos_token_id", s.vocab_size, &s.bos));
    BT_TRY(read_ends(g, &s));
    BT_TRY(refuse_others(g));
    *shape_out = s;
    *n_mtp_out = n_mtp;
out:
    return st;
}
