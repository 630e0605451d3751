/* attention/reference/variants_counted.h - a decode step of each variant in plain loops that count.
 *
 * One request, double precision, no page, tile or thread: every multiply-accumulate counts 2 FLOP,
 * and every element of a weight, of the cache, and of what the variant writes down in between is
 * marked when it is read or written, so that counts are what happened and not what a formula says.
 * The softmax, norms and rope do not count (attention/variants/account.h).  Nothing that serves
 * links it.
 *
 * Memory: allocates in the call. */
#ifndef BT_ATTENTION_REFERENCE_VARIANTS_COUNTED_H
#define BT_ATTENTION_REFERENCE_VARIANTS_COUNTED_H

#include "attention/variants/variants.h"

typedef struct {
    uint64_t flops;
    uint64_t weight_bytes, cache_bytes; /* of elements read, each once, 2 bytes */
    uint64_t moved_bytes;               /* of elements written, and of elements read, each once */
} bt_variant_counts;

/* rows: [n_prefix][kv_lora_rank + qk_rope_dim], the cache before the step; x: [hidden] of the token
 * at position n_prefix; out: [hidden].  cfg->rope_inv_freq is read.  NO_MEMORY. */
bt_status bt_variant_counted(bt_variant_kind kind, const bt_mla_config *cfg,
                             const bt_study_weights *w, uint32_t n_prefix, const bt_bf16 *rows,
                             const bt_bf16 *x, float *out, bt_variant_counts *counts_out);

#endif
