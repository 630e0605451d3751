/* attention/reference/mla_reference.h - one layer's attention of one request in plain loops.
 *
 * The formulas of attention/mla.h in the normal form, without pages, blocks, tiles, threads or
 * bf16: float matrices, sums in double, libm.  What the engine is held against; nothing that serves
 * links it.
 *
 * Memory: allocates in the call. */
#ifndef BT_ATTENTION_REFERENCE_MLA_REFERENCE_H
#define BT_ATTENTION_REFERENCE_MLA_REFERENCE_H

#include "attention/mla.h"

/* Row-major [out, in], as in the checkpoint. */
typedef struct {
    const float *q;         /* [n_heads (nope+rope), hidden], or NULL with q_lora_rank */
    const float *q_a;       /* [q_lora_rank, hidden] */
    const float *q_b;       /* [n_heads (nope+rope), q_lora_rank] */
    const float *kv_a;      /* [kv_lora_rank + qk_rope_dim, hidden] */
    const float *kv_b;      /* [n_heads (nope+v_dim), kv_lora_rank]: per head its W_UK, then W_UV */
    const float *o;         /* [hidden, n_heads v_dim] */
    const float *q_a_norm;  /* [q_lora_rank] */
    const float *kv_a_norm; /* [kv_lora_rank] */
} bt_mla_reference_weights;

/* n tokens at positions 0 .. n-1.  x, out: [n, hidden]; latent_out: [n, kv_lora_rank] after its
 * norm; rope_key_out: [n, qk_rope_dim] after RoPE, pairs interleaved.  NO_MEMORY. */
bt_status bt_mla_reference(const bt_mla_config *cfg, const bt_mla_reference_weights *w, uint32_t n,
                           const float *x, float *latent_out, float *rope_key_out, float *out);

#endif
