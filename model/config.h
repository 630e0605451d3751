/* model/config.h - what a checkpoint's config.json says, checked.
 *
 * Families: deepseek_v2, deepseek_v3 (Kimi-K2, Moonlight; the language model of kimi_k25, which is
 * Kimi-K2.5 and K2.6, and of kimi_vl), glm4_moe_lite, sarvam_mla, axk1 (A.X-K1), youtu (dense
 * layers alone), mistral4 (Mistral Small 4, also within mistral3; Mistral Large 3); with sparse
 * attention deepseek_v32 and glm_moe_dsa (GLM-5).  Both spellings of the rope fields are read
 * (rope_scaling, and rope_parameters of transformers 5). */
#ifndef BT_MODEL_CONFIG_H
#define BT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/mla.h"
#include "core/status.h"
#include "moe/moe.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_MAX_ROPE_PAIRS = 256, BT_MAX_EOS = 16, BT_CONFIG_MAX_LAYERS = 1 << 12 };

typedef struct {
    char     model_type[32];   /* "deepseek_v3" */
    char     architecture[64]; /* "DeepseekV3ForCausalLM" */
    uint32_t vocab_size, hidden, n_layers, max_context;
    float    rms_norm_eps;
    bool     tie_embeddings;

    bt_mla_config mla; /* rope_inv_freq points into this struct: do not copy it by value */
    double        rope_inv_freq[BT_MAX_ROPE_PAIRS];
    double        rope_theta;
    bool          yarn;
    double        yarn_factor, yarn_original_context;

    uint64_t index_shared[BT_CONFIG_MAX_LAYERS / 64]; /* bit i: layer i has no indexer of its own */

    uint32_t      dense_dim; /* intermediate_size */
    uint32_t      first_moe_layer, moe_layer_freq;
    bt_moe_config moe;      /* moe.gate.n_experts == 0: all layers are dense */
    bool          moe_norm; /* what experts give is normed before it is added, as in A.X-K1, whose
                               gate may be without correction */

    uint32_t n_mtp_layers; /* for multi-token prediction: in the file after the last layer */
    bool     mtp;          /* the first of them is served, as layer n_layers: for whom reads the
                              config to say (bt_model_config_serve_mtp()); else they are skipped */
    bool fp8;              /* weights are e4m3 with 128x128 scales, or ... */
    bool fp8_one_scale;    /* ... each matrix with one of its own */
    bool int4; /* some, as a rule the experts', have 4 bits with a scale for 32 of a row */

    int64_t  bos_token; /* -1: none */
    int64_t  pad_token; /* -1: none */
    uint32_t n_eos;     /* config.json and generation_config.json together, distinct */
    uint32_t eos_tokens[BT_MAX_EOS];
    char     default_sampling_json[256]; /* {"temperature":0.6,"top_p":0.95} from
                                            generation_config.json, or "" */
} bt_model_config;

/* Reads dir/config.json, or dir/params.json where there is only that (and
 * dir/generation_config.json when it is there), into *cfg_out.
 * IO, FORMAT or UNSUPPORTED with file, field, what was expected and what was found. */
bt_status bt_model_config_read(const char *dir, bt_model_config *cfg_out);

/* Before anything else is made of it: UNSUPPORTED when the model has no such layer. */
bt_status bt_model_config_serve_mtp(bt_model_config *cfg);

/* Layers that have weights and pages. */
static inline uint32_t bt_model_n_served_layers(const bt_model_config *cfg)
{
    return cfg->n_layers + cfg->mtp;
}
static inline bool bt_model_layer_is_moe(const bt_model_config *cfg, uint32_t layer)
{
    return cfg->moe.gate.n_experts != 0 && layer >= cfg->first_moe_layer &&
           layer % cfg->moe_layer_freq == 0;
}
/* Whether the layer chooses which positions its tokens attend to. */
static inline bool bt_model_layer_has_indexer(const bt_model_config *cfg, uint32_t layer)
{
    return cfg->mla.index_topk != 0 && (cfg->index_shared[layer / 64] >> layer % 64 & 1) == 0;
}
uint32_t bt_model_n_indexers(const bt_model_config *cfg); /* layers that do, MTP aside */
/* MoE layers, MTP aside. */
uint32_t bt_model_n_moe_layers(const bt_model_config *cfg);

#ifdef __cplusplus
}
#endif
#endif
