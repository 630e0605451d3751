#include "model/config.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "model/config_parts.h"
#include "model/json.h"

enum { MAX_FILE_BYTES = 16 << 20, MAX_VOCAB = 1 << 24, MAX_CONTEXT = 1 << 20 };

typedef struct {
    const char     *model_type, *architecture;
    const char     *as_saved; /* by transformers, where that is another class; or NULL */
    bt_model_family family;
} family;

static const family FAMILIES[] = {
    {"deepseek_v2",   "DeepseekV2ForCausalLM",  NULL,                    BT_FAMILY_V2     },
    {"deepseek_v3",   "DeepseekV3ForCausalLM",  NULL,                    BT_FAMILY_V3     },
    {"kimi_k2",       "DeepseekV3ForCausalLM",  NULL,                    BT_FAMILY_V3     },
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", NULL,                    BT_FAMILY_GLM4   },
    {"sarvam_mla",    "SarvamMLAForCausalLM",   "DeepseekV3ForCausalLM", BT_FAMILY_SARVAM },
    {"axk1",          "AXK1ForCausalLM",        NULL,                    BT_FAMILY_AXK1   },
    {"AXK1",          "AXK1ForCausalLM",        NULL,                    BT_FAMILY_AXK1   },
    {"youtu",         "YoutuForCausalLM",       NULL,                    BT_FAMILY_V3     },
    {"mistral4",      "Mistral4ForCausalLM",    NULL,                    BT_FAMILY_MISTRAL},
    {"deepseek_v32",  "DeepseekV32ForCausalLM", NULL,                    BT_FAMILY_V32    },
    {"glm_moe_dsa",   "GlmMoeDsaForCausalLM",   NULL,                    BT_FAMILY_GLM_DSA},
};
enum { N_FAMILIES = sizeof(FAMILIES) / sizeof(FAMILIES[0]) };

static bt_status read_architecture(const bt_json_at *at, const family *f, bt_model_config *cfg)
{
    bt_status     st   = BT_OK;
    const json_t *list = bt_json_field(at, "architectures"), *first = json_array_get(list, 0);
    const char   *name = json_string_value(first);
    char          found[BT_JSON_SHOW_BYTES];

    snprintf(cfg->architecture, sizeof(cfg->architecture), "%s", f->architecture);
    if (list == NULL) goto out; /* the model_type says it too */
    BT_REQUIRE(name != NULL, BT_ERR_FORMAT,
               "%s: field architectures: expected a list of names, found %s", at->file,
               bt_json_show(list, found, sizeof(found)));
    BT_REQUIRE(strcmp(name, f->architecture) == 0 ||
                   (f->as_saved != NULL && strcmp(name, f->as_saved) == 0),
               BT_ERR_UNSUPPORTED,
               "%s: field architectures: expected \"%s\" for model_type \"%s\", found %s", at->file,
               f->architecture, cfg->model_type, bt_json_show(first, found, sizeof(found)));
out:
    return st;
}

/* The language model of a multimodal one (Kimi-K2.5, K2.6, Kimi-VL, Mistral Small 4), of which
 * nothing else is served. */
static bt_status enter_language_model(bt_json_at *at)
{
    bt_status   st   = BT_OK;
    const char *type = json_string_value(bt_json_field(at, "model_type"));
    char        found[BT_JSON_SHOW_BYTES];

    if (type == NULL || (strcmp(type, "kimi_k25") != 0 && strcmp(type, "kimi_vl") != 0 &&
                         strcmp(type, "mistral3") != 0))
        goto out;
    *at = (bt_json_at){at->file, "text_config", bt_json_field(at, "text_config")};
    BT_REQUIRE(json_is_object(at->obj), BT_ERR_FORMAT, "%s: field %s: expected an object, found %s",
               at->file, at->in, bt_json_show(at->obj, found, sizeof(found)));
out:
    return st;
}

static bt_status read_family(const bt_json_at *at, bt_model_config *cfg,
                             bt_model_family *family_out)
{
    bt_status   st   = BT_OK;
    const char *type = NULL;
    char        found[64];
    int         i = 0;

    BT_TRY(bt_json_str(at, "model_type", &type));
    while (i < N_FAMILIES && strcmp(type, FAMILIES[i].model_type) != 0)
        i++;
    BT_REQUIRE(
        i < N_FAMILIES, BT_ERR_UNSUPPORTED,
        "%s: field model_type: expected deepseek_v2, deepseek_v3, deepseek_v32, kimi_k2, "
        "kimi_k25, kimi_vl, glm4_moe_lite, glm_moe_dsa, sarvam_mla, axk1, youtu, or mistral4 "
        "as such or within mistral3, found \"%s\"",
        at->file, bt_json_printable(type, found, sizeof(found)));
    snprintf(cfg->model_type, sizeof(cfg->model_type), "%s", type);
    BT_TRY(read_architecture(at, &FAMILIES[i], cfg));
    *family_out = FAMILIES[i].family;
out:
    return st;
}

/* Fields that would change the mathematics: they must say what this engine computes. */
static bt_status refuse_variants(const bt_json_at *at, bool sparse)
{
    static const struct {
        const char *name;
        bool        want;
    } FLAGS[] = {
        {"attention_bias", false},
        {"mlp_bias",       false},
        {"is_causal",      true },
    };
    static const char *const MUST_BE_NULL[] = {"sliding_window", "index_topk", "index_n_heads",
                                               "index_head_dim"};
    bt_status                st             = BT_OK;
    const char              *act            = "silu";
    char                     found[BT_JSON_SHOW_BYTES];

    if (bt_json_field(at, "hidden_act") != NULL) BT_TRY(bt_json_str(at, "hidden_act", &act));
    BT_REQUIRE(strcmp(act, "silu") == 0, BT_ERR_UNSUPPORTED,
               "%s: field hidden_act: expected \"silu\", found \"%s\"", at->file,
               bt_json_printable(act, found, sizeof(found)));
    for (size_t i = 0; i < sizeof(FLAGS) / sizeof(FLAGS[0]); i++) {
        bool want = FLAGS[i].want, is = want;

        if (bt_json_field(at, FLAGS[i].name) != NULL) BT_TRY(bt_json_bool(at, FLAGS[i].name, &is));
        BT_REQUIRE(is == want, BT_ERR_UNSUPPORTED, "%s: field %s: expected %s, found %s", at->file,
                   FLAGS[i].name, want ? "true" : "false", is ? "true" : "false");
    }
    for (size_t i = 0; i < (sparse ? 1 : sizeof(MUST_BE_NULL) / sizeof(MUST_BE_NULL[0])); i++) {
        const json_t *v = bt_json_field(at, MUST_BE_NULL[i]);

        BT_REQUIRE(v == NULL, BT_ERR_UNSUPPORTED,
                   "%s: field %s: not supported for this model_type, expected it absent, found %s",
                   at->file, MUST_BE_NULL[i], bt_json_show(v, found, sizeof(found)));
    }
out:
    return st;
}

bt_status bt_config_u32_fields(const bt_json_at *at, const bt_config_u32 *fields, size_t n)
{
    bt_status st = BT_OK;

    for (size_t i = 0; i < n; i++) {
        const bt_config_u32 *f = &fields[i];

        if (!f->required && bt_json_field(at, f->name) == NULL) continue;
        BT_TRY(bt_json_u32(at, f->name, f->lo, f->hi, f->v));
    }
out:
    return st;
}

bt_status bt_config_layer_is(const bt_json_at *at, const char *field, uint32_t layer,
                             uint32_t n_layers, const char *yes, const char *no, bool *is_out)
{
    bt_status     st   = BT_OK;
    const json_t *list = bt_json_field(at, field), *v = json_array_get(list, layer);
    const char   *kind = json_is_string(v) ? json_string_value(v) : "";
    char          found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_array_size(list) == n_layers, BT_ERR_FORMAT,
               "%s: field %s: expected a list of %u, found %s", at->file, field, n_layers,
               bt_json_show(list, found, sizeof(found)));
    *is_out = strcmp(kind, yes) == 0;
    BT_REQUIRE(*is_out || strcmp(kind, no) == 0, BT_ERR_FORMAT,
               "%s: field %s[%u]: expected \"%s\" or \"%s\", found %s", at->file, field, layer, yes,
               no, bt_json_show(v, found, sizeof(found)));
out:
    return st;
}

static bt_status read_sizes(const bt_json_at *at, bt_model_config *cfg)
{
    bt_status           st       = BT_OK;
    double              eps      = 0;
    const bt_config_u32 fields[] = {
        {"vocab_size",               &cfg->vocab_size,       1, MAX_VOCAB,             true },
        {"hidden_size",              &cfg->hidden,           1, BT_CONFIG_MAX_DIM,     true },
        {"num_hidden_layers",        &cfg->n_layers,         1, BT_CONFIG_MAX_LAYERS,  true },
        {"max_position_embeddings",  &cfg->max_context,      1, MAX_CONTEXT,           true },
        {"num_attention_heads",      &cfg->mla.n_heads,      1, 1 << 14,               true },
        {"q_lora_rank",              &cfg->mla.q_lora_rank,  1, BT_CONFIG_MAX_DIM,     false},
        {"kv_lora_rank",             &cfg->mla.kv_lora_rank, 1, BT_CONFIG_MAX_DIM,     true },
        {"qk_nope_head_dim",         &cfg->mla.qk_nope_dim,  1, 1 << 14,               true },
        {"qk_rope_head_dim",         &cfg->mla.qk_rope_dim,  2, 2 * BT_MAX_ROPE_PAIRS, true },
        {"v_head_dim",               &cfg->mla.v_dim,        1, 1 << 14,               true },
        {"intermediate_size",        &cfg->dense_dim,        1, BT_CONFIG_MAX_DIM,     true },
        {"num_nextn_predict_layers", &cfg->n_mtp_layers,     0, 64,                    false},
    };

    BT_TRY(bt_config_u32_fields(at, fields, sizeof(fields) / sizeof(fields[0])));
    BT_REQUIRE(cfg->mla.qk_rope_dim % 2 == 0, BT_ERR_FORMAT,
               "%s: field qk_rope_head_dim: expected an even number, found %u", at->file,
               cfg->mla.qk_rope_dim);
    BT_TRY(bt_json_f64(at, "rms_norm_eps", 1e-12, 1e-1, &eps));
    cfg->rms_norm_eps = (float)eps;
    if (bt_json_field(at, "tie_word_embeddings") != NULL)
        BT_TRY(bt_json_bool(at, "tie_word_embeddings", &cfg->tie_embeddings));
    cfg->mla.hidden      = cfg->hidden;
    cfg->mla.max_context = cfg->max_context;
    cfg->mla.latent_eps  = 1e-6f; /* in Hugging Face's code, whatever rms_norm_eps says */
out:
    return st;
}

static bt_status check_token(const bt_json_at *at, const char *field, const json_t *v,
                             const bt_model_config *cfg)
{
    bt_status st = BT_OK;
    char      found[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_is_integer(v) && json_integer_value(v) >= 0 &&
                   json_integer_value(v) < cfg->vocab_size,
               BT_ERR_FORMAT, "%s: field %s: expected a token id from 0 to %u, found %s", at->file,
               field, cfg->vocab_size - 1, bt_json_show(v, found, sizeof(found)));
out:
    return st;
}

static bt_status read_token(const bt_json_at *at, const char *field, const bt_model_config *cfg,
                            int64_t *id)
{
    const json_t *v  = bt_json_field(at, field);
    bt_status     st = v == NULL ? BT_OK : check_token(at, field, v, cfg);

    if (st == BT_OK && v != NULL) *id = json_integer_value(v);
    return st;
}

/* Nothing is padded here: what is no token, as -1 or one behind a vocabulary that was cut, only
 * goes unsaid to clients. */
static bt_status read_pad(const bt_json_at *at, bt_model_config *cfg)
{
    const json_t *v  = bt_json_field(at, "pad_token_id");
    json_int_t    id = json_integer_value(v);

    if (!json_is_integer(v) || (id >= 0 && id < cfg->vocab_size))
        return read_token(at, "pad_token_id", cfg, &cfg->pad_token);
    cfg->pad_token = -1;
    return BT_OK;
}

static bt_status add_eos(const bt_json_at *at, const json_t *v, bt_model_config *cfg)
{
    bt_status st = BT_OK;
    uint32_t  id;

    BT_TRY(check_token(at, "eos_token_id", v, cfg));
    id = (uint32_t)json_integer_value(v);
    for (uint32_t i = 0; i < cfg->n_eos; i++)
        if (cfg->eos_tokens[i] == id) goto out;
    BT_REQUIRE(cfg->n_eos < BT_MAX_EOS, BT_ERR_UNSUPPORTED,
               "%s: field eos_token_id: expected at most %d distinct ids", at->file, BT_MAX_EOS);
    cfg->eos_tokens[cfg->n_eos++] = id;
out:
    return st;
}

/* From config.json, then generation_config.json, whose bos and pad win as in Hugging Face. */
static bt_status read_tokens(const bt_json_at *at, bt_model_config *cfg)
{
    bt_status     st  = BT_OK;
    const json_t *eos = bt_json_field(at, "eos_token_id");

    BT_TRY(read_token(at, "bos_token_id", cfg, &cfg->bos_token));
    BT_TRY(read_pad(at, cfg));
    if (json_is_array(eos)) {
        for (size_t i = 0; i < json_array_size(eos); i++)
            BT_TRY(add_eos(at, json_array_get(eos, i), cfg));
    } else if (eos != NULL) {
        BT_TRY(add_eos(at, eos, cfg));
    }
out:
    return st;
}

/* The sampling fields that a request may leave out, as a compact JSON object. */
static bt_status read_sampling(const bt_json_at *at, bt_model_config *cfg)
{
    static const struct {
        const char *name;
        double      lo, hi;
        bool        whole;
    } FIELDS[] = {
        {"temperature",        0,    100,     false},
        {"top_p",              1e-9, 1,       false},
        {"top_k",              -1,   1 << 24, true },
        {"min_p",              0,    1,       false},
        {"repetition_penalty", 1e-6, 100,     false},
    };
    bt_status st = BT_OK;
    size_t    n  = 0;

    for (size_t i = 0; i < sizeof(FIELDS) / sizeof(FIELDS[0]); i++) {
        double v = 0;

        if (bt_json_field(at, FIELDS[i].name) == NULL) continue;
        BT_TRY(bt_json_f64(at, FIELDS[i].name, FIELDS[i].lo, FIELDS[i].hi, &v));
        BT_REQUIRE(!FIELDS[i].whole || v == (double)(int64_t)v, BT_ERR_FORMAT,
                   "%s: field %s: expected a whole number, found %.10g", at->file, FIELDS[i].name,
                   v);
        /* five fields of at most 45 bytes fit */
        n +=
            (size_t)snprintf(cfg->default_sampling_json + n, sizeof(cfg->default_sampling_json) - n,
                             "%c\"%s\":%.10g", n == 0 ? '{' : ',', FIELDS[i].name, v);
    }
    if (n != 0)
        snprintf(cfg->default_sampling_json + n, sizeof(cfg->default_sampling_json) - n, "}");
out:
    return st;
}

static bt_status read_object(const char *path, json_t **json_out)
{
    bt_status st   = BT_OK;
    json_t   *json = NULL;
    char      found[BT_JSON_SHOW_BYTES];

    BT_TRY(bt_json_read_file(path, MAX_FILE_BYTES, &json));
    BT_REQUIRE(json_is_object(json), BT_ERR_FORMAT, "%s: expected an object, found %s", path,
               bt_json_show(json, found, sizeof(found)));
    *json_out = json;
    json      = NULL;
out:
    json_decref(json);
    return st;
}

static bt_status read_generation(const char *dir, bt_model_config *cfg)
{
    bt_status  st   = BT_OK;
    json_t    *json = NULL;
    bt_json_at at;
    char       path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/generation_config.json", dir);
    if (!bt_file_exists(path)) goto out; /* it may be absent */
    BT_TRY(read_object(path, &json));
    at = (bt_json_at){path, "", json};
    BT_TRY(read_tokens(&at, cfg));
    BT_TRY(read_sampling(&at, cfg));
out:
    json_decref(json);
    return st;
}

/* params.json in the names of config.json, which errors then speak of. */
static bt_status read_description(char path[PATH_MAX], json_t **json_out)
{
    bt_status   st     = BT_OK;
    json_t     *json   = NULL;
    const char *name   = strrchr(path, '/');
    bool        native = strcmp(name, "/params.json") == 0;

    BT_TRY(read_object(path, &json));
    if (native) {
        json_t *params = json;

        st = bt_config_of_params(path, params, &json);
        json_decref(params);
        if (st != BT_OK) goto out;
        strncat(path, " in the names of config.json", PATH_MAX - strlen(path) - 1);
    }
    *json_out = json;
out:
    return st;
}

bt_status bt_model_config_read(const char *dir, bt_model_config *cfg_out)
{
    bt_status       st   = BT_OK;
    bt_model_config cfg  = {.bos_token = -1, .pad_token = -1};
    json_t         *json = NULL;
    bt_model_family fam  = BT_FAMILY_V3;
    bool            sparse;
    bt_json_at      at, all;
    char            path[PATH_MAX];

    BT_REQUIRE(strlen(dir) < PATH_MAX - 64, BT_ERR_IO,
               "model directory: expected a path under %d bytes", PATH_MAX - 64);
    bt_model_config_file(dir, path);
    BT_TRY(read_description(path, &json));
    at = all = (bt_json_at){path, "", json};
    BT_TRY(enter_language_model(&at));
    BT_TRY(read_family(&at, &cfg, &fam));
    sparse = fam == BT_FAMILY_V32 || fam == BT_FAMILY_GLM_DSA;
    BT_TRY(refuse_variants(&at, sparse));
    BT_TRY(read_sizes(&at, &cfg));
    if (sparse) BT_TRY(bt_config_index(&at, fam, &cfg));
    BT_TRY(bt_config_rope(&at, fam, &cfg));
    BT_TRY(bt_config_moe(&at, fam, &cfg));
    BT_TRY(bt_config_quantization(bt_json_field(&all, "quantization_config") != NULL ? &all : &at,
                                  &cfg));
    BT_TRY(read_tokens(&at, &cfg));
    if (at.obj != all.obj) BT_TRY(read_tokens(&all, &cfg));
    BT_TRY(read_generation(dir, &cfg));
    bt_config_warn_of_names(&at);
    *cfg_out                   = cfg;
    cfg_out->mla.rope_inv_freq = cfg_out->rope_inv_freq;
out:
    json_decref(json);
    return st;
}

bt_status bt_model_config_serve_mtp(bt_model_config *cfg)
{
    bt_status st = BT_OK;

    BT_REQUIRE(cfg->n_mtp_layers > 0, BT_ERR_UNSUPPORTED,
               "this model's config.json names no layer for multi-token prediction "
               "(num_nextn_predict_layers): leave --mtp out; --speculate drafts without one");
    BT_REQUIRE(cfg->n_layers < BT_CONFIG_MAX_LAYERS, BT_ERR_UNSUPPORTED,
               "%u layers and one for multi-token prediction: expected at most %d in all",
               cfg->n_layers, (int)BT_CONFIG_MAX_LAYERS);
    cfg->mtp = true;
out:
    return st;
}

uint32_t bt_model_n_indexers(const bt_model_config *cfg)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < cfg->n_layers; i++)
        n += bt_model_layer_has_indexer(cfg, i);
    return n;
}

uint32_t bt_model_n_moe_layers(const bt_model_config *cfg)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < cfg->n_layers; i++)
        n += bt_model_layer_is_moe(cfg, i);
    return n;
}
