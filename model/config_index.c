#include <string.h>

#include "model/config_parts.h"

static bt_status set_shared(const bt_json_at *at, uint32_t layer, bool shared, bt_model_config *cfg)
{
    bt_status st = BT_OK;

    BT_REQUIRE(!shared || layer != 0, BT_ERR_FORMAT,
               "%s: the first layer would attend to what no layer has chosen: expected it to have "
               "an indexer (\"full\"), found \"shared\"",
               at->file);
    if (shared) cfg->index_shared[layer / 64] |= (uint64_t)1 << layer % 64;
out:
    return st;
}

/* ["full", "shared", ...], a layer each, as Hugging Face reads both fields; or, as others read the
 * pattern, ["F", "S", ...]. */
static bt_status read_types(const bt_json_at *at, const char *field, bt_model_config *cfg)
{
    bt_status   st      = BT_OK;
    const char *first   = json_string_value(json_array_get(bt_json_field(at, field), 0));
    bool        letters = first != NULL && strcmp(first, "F") == 0;

    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        bool full = false;

        BT_TRY(bt_config_layer_is(at, field, i, cfg->n_layers, letters ? "F" : "full",
                                  letters ? "S" : "shared", &full));
        BT_TRY(set_shared(at, i, !full, cfg));
    }
out:
    return st;
}

/* "FSSF...": a layer each. */
static bt_status read_pattern(const bt_json_at *at, bt_model_config *cfg)
{
    bt_status   st      = BT_OK;
    const char *pattern = NULL;
    char        found[BT_JSON_SHOW_BYTES];

    if (json_is_array(bt_json_field(at, "index_topk_pattern"))) {
        BT_TRY(read_types(at, "index_topk_pattern", cfg));
        goto out;
    }
    BT_TRY(bt_json_str(at, "index_topk_pattern", &pattern));
    BT_REQUIRE(strlen(pattern) == cfg->n_layers && strspn(pattern, "FS") == cfg->n_layers,
               BT_ERR_FORMAT,
               "%s: field index_topk_pattern: expected %u letters F (full) or S (shared), found "
               "\"%s\"",
               at->file, cfg->n_layers, bt_json_printable(pattern, found, sizeof(found)));
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        BT_TRY(set_shared(at, i, pattern[i] == 'S', cfg));
out:
    return st;
}

/* Which layers have no indexer, in the three ways that Hugging Face's GlmMoeDsaConfig reads. */
static bt_status read_shared(const bt_json_at *at, bt_model_config *cfg)
{
    bt_status           st   = BT_OK;
    uint32_t            freq = 1, offset = 2;
    const bt_config_u32 fields[] = {
        {"index_topk_freq",        &freq,   0, BT_CONFIG_MAX_LAYERS, false},
        {"index_skip_topk_offset", &offset, 0, BT_CONFIG_MAX_LAYERS, false},
    };

    if (bt_json_field(at, "indexer_types") != NULL) {
        BT_TRY(read_types(at, "indexer_types", cfg));
        goto out;
    }
    if (bt_json_field(at, "index_topk_pattern") != NULL) {
        BT_TRY(read_pattern(at, cfg));
        goto out;
    }
    BT_TRY(bt_config_u32_fields(at, fields, sizeof(fields) / sizeof(fields[0])));
    for (uint32_t i = 0; i < cfg->n_layers && freq > 1; i++) /* 0 counts as 1 */
        BT_TRY(set_shared(at, i, i + 1 > offset && (i + 1 - offset) % freq != 0, cfg));
out:
    return st;
}

bt_status bt_config_index(const bt_json_at *at, bt_model_family fam, bt_model_config *cfg)
{
    bt_status           st          = BT_OK;
    bt_mla_config      *m           = &cfg->mla;
    bool                interleaved = fam != BT_FAMILY_V32; /* as Hugging Face computes */
    const bt_config_u32 fields[]    = {
           {"index_topk",     &m->index_topk,  1,              BT_CONFIG_MAX_TOPK, true},
           {"index_n_heads",  &m->index_heads, 1,              1 << 10,            true},
           {"index_head_dim", &m->index_dim,   m->qk_rope_dim, BT_INDEX_MAX_DIM,   true},
    };

    BT_TRY(bt_config_u32_fields(at, fields, sizeof(fields) / sizeof(fields[0])));
    BT_REQUIRE(m->q_lora_rank != 0, BT_ERR_UNSUPPORTED,
               "%s: field q_lora_rank: expected an integer from 1 for this model_type, whose "
               "indexer reads the low-rank query, found nothing",
               at->file);
    m->index_halves = fam == BT_FAMILY_V32;
    if (bt_json_field(at, "indexer_rope_interleave") != NULL)
        BT_TRY(bt_json_bool(at, "indexer_rope_interleave", &interleaved));
    BT_REQUIRE(interleaved == !m->index_halves, BT_ERR_UNSUPPORTED,
               "%s: field indexer_rope_interleave: expected %s for this model_type, found %s",
               at->file, interleaved ? "false" : "true", interleaved ? "true" : "false");
    if (fam == BT_FAMILY_GLM_DSA) BT_TRY(read_shared(at, cfg));
out:
    return st;
}
