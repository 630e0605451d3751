/* tools/synth_shape.h - the sizes and rules of a model whose checkpoint is written, and its
 * config.json.
 *
 * For a model that is made up, fields have the values of the published ones (named in
 * synth_shape.c); each size may be overridden. */
#ifndef BT_TOOLS_SYNTH_SHAPE_H
#define BT_TOOLS_SYNTH_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *like, *architecture, *model_type;
    bool        sigmoid;  /* sigmoid scores with a correction bias (noaux_tc), else softmax */
    bool        moe_norm; /* a norm behind each layer's experts, and no correction: A.X-K1's */
    uint32_t    hidden, n_layers, n_dense_layers, vocab_size, context;
    uint32_t n_heads, q_lora_rank, kv_lora_rank, qk_nope_dim, qk_rope_dim, v_dim; /* 0: no LoRA */
    uint32_t dense_dim, expert_dim, n_experts, n_shared, top_k, n_groups, topk_groups;
    bool     norm_topk;
    double   scale, eps, theta;
    double   yarn_factor, beta_fast, beta_slow, mscale; /* factor 0: no YaRN */
    uint32_t yarn_context;                              /* before it was extended */
    uint32_t index_topk, index_heads, index_dim;        /* sparse attention; 0: none */
    uint32_t n_mtp;                                     /* layers for multi-token prediction */
    int32_t  bos, eos[3];                               /* -1: none */
    bool     fp8;  /* matrices but gate, embedding and head in e4m3, as V3 has them */
    bool     int4; /* those of the experts in 4 bits, as Kimi-K2-Thinking has them */
} bt_synth_shape;

/* A size that the command line may set. */
typedef struct {
    const char *option, *text;
    size_t      offset; /* of a uint32_t in bt_synth_shape */
    uint32_t    least, most;
} bt_synth_size;

extern const bt_synth_size bt_synth_sizes[];
extern const size_t        bt_synth_n_sizes;

/* Copies the shape of that name; false when there is none. */
bool bt_synth_find(const char *like, bt_synth_shape *shape_out);
/* "v2-lite, v2, ..." */
const char *bt_synth_names(void);

/* Ids that the vocabulary lacks become 0 and 1; dense layers are at most all layers. */
void bt_synth_settle(bt_synth_shape *shape);

/* Writes its config.json into the directory and reads it back: sizes that no model can have are
 * refused in the words that loading would use.  IO, NO_MEMORY; INVALID_ARG: the path is too long
 * for the files that are to follow. */
bt_status bt_synth_write_config(const bt_synth_shape *shape, const char *dir);

#ifdef __cplusplus
}
#endif
#endif
