/* tools/profile/model.h - the model whose attention is studied: a published one by its name, or a
 * model directory's. */
#ifndef BT_TOOLS_PROFILE_MODEL_H
#define BT_TOOLS_PROFILE_MODEL_H

#include "attention/mla.h"
#include "model/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char          name[256]; /* as asked for */
    char          title[96];
    bt_mla_config mla; /* max_context 0: the caller sets it; rope_inv_freq points here */
    double        inv_freq[BT_MAX_ROPE_PAIRS];
    uint32_t      n_layers; /* with attention, each with a cache of its own */
    uint64_t      attention_params, expert_params; /* over all layers */
    uint64_t      other_params;                    /* all the rest */
    bool          fp8;  /* all but embedding, head, routers, norms and kv_b in 8 bits */
    bool          int4; /* the experts in 4 bits */
    double attention_bytes, expert_bytes, other_bytes; /* of the same, in the checkpoint's types */
    const char *note;                                  /* what the figures leave out, or NULL */
} bt_profile_model;

/* Whether --like takes it; and what it takes, as "v2, v2-lite, ...". */
bool        bt_profile_model_known(const char *name);
const char *bt_profile_model_names(void);

/* A name that --like takes, or a directory with a config.json.  INVALID_ARG with all names
 * when it is neither; else the errors of bt_model_config_read(). */
bt_status bt_profile_model_find(const char *name, bt_profile_model *model_out);

/* Bytes of one token's latents, and of its keys and values if every head's were kept: all layers.
 */
uint64_t bt_profile_latent_bytes(const bt_profile_model *m);
uint64_t bt_profile_expanded_bytes(const bt_profile_model *m);

#ifdef __cplusplus
}
#endif
#endif
