/* model/reference.h - the whole model in plain float32 loops, for tests.
 *
 * Weights as stored (FP8 blocks and 4 bits dequantised to bf16), all arithmetic in float32, the
 * normal form of attention, no pages, no kernels, no code shared with the engine: what the engine
 * and the golden outputs are held against.  Slow, and it allocates as it goes. */
#ifndef BT_MODEL_REFERENCE_H
#define BT_MODEL_REFERENCE_H

#include "model/config.h"
#include "model/safetensors.h"

/* One prompt of n_tokens.  Every out pointer but logits may be NULL.  L layers, Lm of them with
 * experts, H hidden, c kv_lora_rank, dr qk_rope_dim, k top_k. */
typedef struct {
    uint32_t        n_tokens;
    const uint32_t *tokens;
    const uint16_t *forced; /* [Lm][n_tokens][k] ascending, or NULL: the gate chooses */
    uint32_t        n_logit_rows;
    float          *logits;  /* out [n_logit_rows][vocab_size]: of the last rows */
    float          *hidden;  /* out [L + 1][n_tokens][H]: embedding, then each layer's output */
    float          *latent;  /* out [L][n_tokens][c] */
    float          *k_rope;  /* out [L][n_tokens][dr], pairs interleaved */
    uint16_t       *experts; /* out [Lm][n_tokens][k] ascending */
    float          *weights; /* out [Lm][n_tokens][k] */

    /* The layer for multi-token prediction, over rows 0 .. n_tokens-2 of two tokens each, row and
     * row+1; not run where mtp_logits is NULL. */
    uint32_t  n_mtp_rows;
    float    *mtp_logits;  /* out [n_mtp_rows][vocab_size]: of the last rows */
    uint16_t *mtp_experts; /* out [n_tokens - 1][k] ascending */
    /* And again, behind rows 0 .. row: what the layer made of row, and token row+2, at position
     * row+1. */
    uint32_t n_chained_rows;
    float   *chained; /* out [n_chained_rows][vocab_size]: of the last of rows 0 .. n_tokens-3 */
} bt_reference_run;

bt_status bt_reference_forward(const bt_model_config *cfg, const bt_safetensors *st,
                               const bt_reference_run *run);

#endif
