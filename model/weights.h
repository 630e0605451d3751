/* model/weights.h - the weights of one rank: all of attention, dense layers and head, and of the
 * experts only its own.
 *
 * FP8 blocks (e4m3, one fp32 scale per 128 x 128, partial at both ends) stay so, but for W_UK
 * transposed and, on the CPU, the other heads of kv_b, which its attention reads as bf16; and where
 * rows that the device takes together have different scales (device.h: fp8_rows).  These are
 * dequantised to bf16 while they are packed.  fp32 matrices are rounded to bf16.
 *
 * What is in bf16 and only products read, a CPU may pack in 12 bits, which loses nothing
 * (device/cpu/kernels.h).
 *
 * Weights of 4 bits (symmetric, a bf16 scale for 32 of a row; which matrices have them the tensors
 * say) stay so likewise, but for what of kv_b is read as bf16. */
#ifndef BT_MODEL_WEIGHTS_H
#define BT_MODEL_WEIGHTS_H

#include "model/config.h"
#include "model/safetensors.h"
#include "model/store.h"

typedef struct {
    bt_bf16       *input_norm, *post_norm; /* device, [hidden] */
    bt_mla_weights mla;
    bt_linear     *gate_up, *down; /* of a dense layer, else NULL */
    bt_moe_weights moe;            /* of an expert layer, else zero */
    bt_bf16       *moe_norm;       /* device, [hidden]: where cfg->moe_norm says so, else NULL */
} bt_layer_weights;

/* What the layer for multi-token prediction has beside a layer's weights (model.h). */
typedef struct {
    bt_bf16   *token_norm, *hidden_norm; /* device, [hidden]: enorm, hnorm */
    bt_linear *join;                     /* [hidden, 2 hidden]: eh_proj */
    bt_bf16   *norm;                     /* device, [hidden]: of shared_head */
} bt_mtp_weights;

typedef struct {
    bt_device        *dev;                          /* borrowed */
    uint32_t          n_layers, n_heads, n_experts; /* layers: those that are served */
    const bt_bf16    *embedding; /* device, [vocab_size, hidden]; in the store or packed, or own */
    bt_bf16          *own_embedding;
    bt_bf16          *norm;         /* device, [hidden] */
    bt_linear        *lm_head;      /* [vocab_size, hidden] */
    bt_layer_weights *layers;       /* [n_layers] */
    bt_mtp_weights    mtp;          /* where cfg->mtp says so, beside the last of these */
    size_t            bytes;        /* device memory of all of these, */
    size_t            shared_bytes; /* and how many of them lie in the store or in `packed` */
    bool              few_rows;     /* as it was loaded */
    bt_store         *store;        /* borrowed: holds matrices and embedding; or NULL */
    const bt_packed  *packed;       /* the same, packed earlier */
} bt_weights;

/* Routed experts that this rank has not, and that no rank of the machine has in the store as this
 * one packs them: what they all could still have to read together. */
uint32_t bt_weights_missing_experts(const bt_model_config *cfg, const bt_weights *w);

/* Whether a machine with so much memory free has plenty for `all` bytes of weights and `more`: then
 * its ranks that only prefill and those that decode may pack bf16 in two ways (few_rows, below). */
static inline bool bt_weights_fit_twice(uint64_t all, uint64_t more, uint64_t available)
{
    return all + more <= available / 2;
}

typedef struct {
    bt_device *dev;
    /* [n_experts]: true for this rank's; NULL when the model has none. */
    const bool *own_experts;
    bool        normal, absorbed; /* forms that this rank will run */
    bool        few_rows; /* a CPU packs what is in bf16 in 12 bits, which come from memory sooner
                             and are widened for each product: so it does with the head always */
    bt_store *store;      /* where this machine's ranks share packed weights, for the CPU back end
                             only; borrowed for the weights' life.  NULL: this rank has its own */
    const bt_packed *packed; /* what need not be packed, for the CPU back end only; borrowed for the
                                weights' life; or NULL */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes); /* or NULL */
    void *progress_ctx;
} bt_weights_options;

/* Has st every tensor that ranks need together, with the right dtype and shape?  Reads headers
 * only. FORMAT names the first that is missing or differs, with expected and found; UNSUPPORTED one
 * of a served layer that cfg has no use for. */
bt_status bt_weights_check(const bt_model_config *cfg, const bt_safetensors *st);
/* Checks the tensors that this rank needs likewise before it reads the first.  FORMAT also names a
 * scale that is negative or not finite, when it comes to it.  cfg and st are borrowed during the
 * call.  *w_out is written on success only. */
bt_status bt_weights_load(const bt_model_config *cfg, const bt_safetensors *st,
                          const bt_weights_options *opt, bt_weights *w_out);
/* Loads the experts of opt->own_experts that are not here, frees those that are and are not own;
 * counts their bytes to opt->progress.  After an error w is only good for fini(). */
bt_status bt_weights_move_experts(const bt_model_config *cfg, const bt_safetensors *st,
                                  const bt_weights_options *opt, bt_weights *w);
void      bt_weights_fini(bt_weights *w);
/* Warns where st holds layers behind those that config.json names. */
void bt_weights_warn_of_layers(const bt_model_config *cfg, const bt_safetensors *st);

#endif
