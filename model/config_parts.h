/* model/config_parts.h - the parts that config.json is read in.  Only for config*.c. */
#ifndef BT_MODEL_CONFIG_PARTS_H
#define BT_MODEL_CONFIG_PARTS_H

#include "model/config.h"
#include "model/json.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_CONFIG_MAX_DIM = 1 << 20, BT_CONFIG_MAX_TOPK = 1 << 17 };

/* Whose defaults count for what a file leaves out. */
typedef enum {
    BT_FAMILY_V2,
    BT_FAMILY_V3,
    BT_FAMILY_GLM4,
    BT_FAMILY_SARVAM,
    BT_FAMILY_AXK1,
    BT_FAMILY_MISTRAL,
    BT_FAMILY_V32, /* these two with sparse attention */
    BT_FAMILY_GLM_DSA
} bt_model_family;

typedef struct {
    const char *name;
    uint32_t   *v;
    uint32_t    lo, hi;
    bool        required; /* else *v keeps its default when the field is absent or null */
} bt_config_u32;

bt_status bt_config_u32_fields(const bt_json_at *at, const bt_config_u32 *fields, size_t n);

/* The rope fields in both spellings, and what follows from them.  Needs cfg->mla's head sizes;
 * fills the rope fields, mla.softmax_scale, mla.rope_magnitude and mla.query_*. */
bt_status bt_config_rope(const bt_json_at *at, bt_model_family fam, bt_model_config *cfg);

/* Whether a list of each layer's kind says `yes` of this one, where else it must say `no`. */
bt_status bt_config_layer_is(const bt_json_at *at, const char *field, uint32_t layer,
                             uint32_t n_layers, const char *yes, const char *no, bool *is_out);

/* Sparse attention, of the families that have it.  Needs cfg->mla's sizes and n_layers. */
bt_status bt_config_index(const bt_json_at *at, bt_model_family fam, bt_model_config *cfg);

/* Which layers are MoE, the experts' sizes and the gate.  Needs cfg->hidden and n_layers. */
bt_status bt_config_moe(const bt_json_at *at, bt_model_family fam, bt_model_config *cfg);

/* What the object of params.json says, as that of config.json, counted.  UNSUPPORTED names a field
 * that it does not know, or without which this is no Mistral Large 3; FORMAT; NO_MEMORY. */
bt_status bt_config_of_params(const char *file, const json_t *params, json_t **config_out);

/* Warns of names that look misspelt. */
void bt_config_warn_of_names(const bt_json_at *at);

/* quantization_config, which may be absent: fills fp8, fp8_one_scale and int4. */
bt_status bt_config_quantization(const bt_json_at *at, bt_model_config *cfg);

#ifdef __cplusplus
}
#endif
#endif
