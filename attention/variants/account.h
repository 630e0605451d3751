/* attention/variants/account.h - what each variant's decode step costs, by formula.
 *
 * FLOP = 2 x multiply-accumulate; the softmax, norms and rope are not counted, as in the studies
 * 001 and 002.  Bytes are bf16 elements x 2, each tensor of a step read or written once: weights
 * and cache at least that often, `moved` what a variant writes down between two of its products and
 * reads back although the mathematics does not ask for it.  tests/attention holds the counts
 * against an implementation that counts. */
#ifndef BT_ATTENTION_VARIANTS_ACCOUNT_H
#define BT_ATTENTION_VARIANTS_ACCOUNT_H

#include "attention/variants/variants.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    uint64_t row_flops;    /* per new token, whatever the context */
    uint64_t key_flops;    /* per request and token in its context, the new one counted */
    uint64_t weight_bytes; /* read by a step, however many requests */
    uint64_t cache_bytes;  /* per request and token in its context: kept, and read by each step */
    uint64_t moved_bytes;  /* per request and token in its context: written and read again */
} bt_variant_account;

bt_variant_account bt_variant_account_of(bt_variant_kind kind, const bt_mla_config *cfg);

static inline double bt_account_flops(const bt_variant_account *a, double batch, double n_keys)
{
    return batch * ((double)a->row_flops + n_keys * (double)a->key_flops);
}
/* What no implementation of the variant can do without. */
static inline double bt_account_bytes(const bt_variant_account *a, double batch, double n_keys)
{
    return (double)a->weight_bytes + batch * n_keys * (double)a->cache_bytes;
}

/* Multiply-accumulates of a layer for n_new tokens that attend to n_kv (n_new among them), all n_kv
 * compressed, no causal mask: flops_vanilla and flops_absorb of study 002. */
double bt_study_macs_normal(const bt_mla_config *cfg, double n_new, double n_kv);
double bt_study_macs_absorbed(const bt_mla_config *cfg, double n_new, double n_kv);
/* The number of new tokens from which the normal form takes fewer of them:
 *     1/q = 1/n_kv + (2c - nope - v) / (c (nope + v))
 * n_kv may be infinite; infinite when the absorbed form is never dearer. */
double bt_study_crossover(const bt_mla_config *cfg, double n_kv);
/* The same with a prefix of n_prefix cached tokens and the causal mask counted, as a whole number;
 * 0 when n_prefix is 0. */
uint32_t bt_study_crossover_causal(const bt_mla_config *cfg, uint32_t n_prefix);

#ifdef __cplusplus
}
#endif
#endif
