/* model/reference_parts.h - the pieces of the float32 reference.  Internal to model/reference*.c.
 *
 * Matrices are row-major [n_tokens][...]; t is n_tokens. */
#ifndef BT_MODEL_REFERENCE_PARTS_H
#define BT_MODEL_REFERENCE_PARTS_H

#include "model/reference.h"

typedef struct {
    const bt_model_config  *cfg;
    const bt_safetensors   *st;
    const bt_reference_run *run;
    uint32_t                t;
    float                  *h, *normed, *out; /* [t][hidden] */
    bool *seen; /* [t][t]: row p attends to j <= p, by the last indexer; NULL: to all of them */
    char  name[256];
} bt_reference;

/* "model.layers.<layer>.<what>", in r->name. */
const char *bt_ref_name(bt_reference *r, uint32_t layer, const char *what);
/* A tensor as [n][k] floats, or [k][n] when transposed; *values_out is the caller's. */
bt_status bt_ref_load(const bt_reference *r, uint32_t n, uint32_t k, bool transpose,
                      const char *name, float **values_out);
/* y[rows][n] = x[rows][k] wt[k][n]; the sum over k ascends. */
void bt_ref_matmul(size_t rows, size_t n, size_t k, const float *x, const float *wt, float *y);
/* y[rows][n] = x[rows][k] W^T with the tensor `name` [n, k]. */
bt_status bt_ref_linear(const bt_reference *r, size_t rows, uint32_t n, uint32_t k, const float *x,
                        float *y, const char *name);
/* y[rows][n] = rms_norm(x), the weight being the tensor `name`. */
bt_status bt_ref_norm(const bt_reference *r, size_t rows, uint32_t n, const float *x, size_t ld_x,
                      float eps, float *y, const char *name);
/* y[rows][hidden] = down(silu(gate x) (up x)) with the matrices under model.layers.<layer>.<what>.
 */
bt_status bt_ref_mlp(bt_reference *r, size_t rows, uint32_t layer, const char *what, uint32_t dim,
                     const float *x, float *y);

/* out[row] = the embedding of tokens[row]. */
bt_status bt_ref_embed(const bt_reference *r, size_t rows, const uint32_t *tokens, float *out);
/* h += attention, h += dense or experts; moe_layer counts the layers with experts. */
bt_status   bt_ref_layer(bt_reference *r, uint32_t layer, uint32_t moe_layer);
const char *bt_ref_head_name(const bt_reference *r);
/* What the run asks of the layer for multi-token prediction; of the model, which has run, normed is
 * what the head got. */
bt_status bt_ref_mtp(const bt_reference *model);

/* RoPE of x's first qk_rope_dim elements: in pairs (2i, 2i+1), or, in halves, (i, i + half). */
void bt_ref_rope(const bt_model_config *cfg, uint32_t position, bool halves, float *x);
/* seen = what the layer's indexer chooses, by x [t][hidden] and the normed q_a: low [t][q_lora]. */
bt_status bt_ref_choose(bt_reference *r, uint32_t layer, const float *x, const float *low,
                        bool *seen);
/* y = attention(x), y = experts(x): [t][hidden]. */
bt_status bt_ref_attention(bt_reference *r, uint32_t layer, const float *x, float *y);
bt_status bt_ref_experts(bt_reference *r, uint32_t layer, uint32_t moe_layer, const float *x,
                         float *y);

#endif
