/* attention/variants/cpu/core_cpu.h - what the files of the study's CPU back end share.
 *
 * An item is a request's head (CD, CC) or some of its heads (the absorbed variants); items are
 * spread over the device's pool.  Each goes through its whole context in steps: all scores, the
 * softmax over them, all weighted sums. */
#ifndef BT_ATTENTION_VARIANTS_CPU_CORE_CPU_H
#define BT_ATTENTION_VARIANTS_CPU_CORE_CPU_H

#include "attention/variants/core.h"
#include "device/cpu/kernels.h"

enum { BT_CORE_HEADS = 128 }; /* of an item, at most */

/* One pool member's buffers; those that a variant has no use for are NULL. */
typedef struct {
    float   *scores;     /* [item heads][keys_pad] */
    bt_bf16 *p;          /* [item heads][keys_pad] */
    float   *o;          /* [item heads][max(kv_lora_rank, v_dim)] */
    bt_bf16 *keys;       /* CC: one head's, packed; A_CC: the concatenated ones */
    bt_bf16 *values;     /* CC: one head's, packed */
    float   *rows_f32;   /* CD, CC: [64][max(nope, v_dim)] */
    bt_bf16 *rows_bf16;  /* CD, CC: [64][max(nope + rope, v_dim)] */
    float   *scores_t;   /* absorbed: [64][item heads] */
    bt_bf16 *query;      /* absorbed: packed [item heads, kv_lora_rank]; A_CC: a row of c + rope */
    bt_bf16 *query_rope; /* absorbed: packed [item heads, rope] */
    bt_bf16 *latents;    /* absorbed: packed [64 keys, kv_lora_rank] as values */
} bt_core_member;

typedef struct {
    bt_core               base;
    bt_study             *s; /* borrowed */
    bt_variant_kind       kind;
    bt_role               role; /* of the step under way */
    const bt_cpu_kernels *kernels;
    bt_cpu_pool          *pool;
    uint32_t              n_keys, n_pages, keys_pad; /* keys_pad: n_pages whole pages */
    uint32_t              item_heads;
    bt_core_member       *members; /* owned */
    void                 *scratch; /* owned: what they point to */

    /* CD: packed keys [head][keys_pad / 16]... and values, page after page, of every request. */
    bt_bf16 *keys, *values; /* owned: [batch][n_heads][keys_elems], [..][values_elems] */
    bt_bf16 *new_k, *new_v; /* owned: [batch][n_heads][nope], [v_dim] */
    size_t   keys_elems, values_elems;
} bt_core_cpu;

/* For pages[0, n_pages) of a cache that is filled from the study's first request. */
bt_status bt_core_fill(bt_core_cpu *k);
bt_status bt_core_append(bt_core_cpu *k);

void bt_core_attend_heads(bt_core_cpu *k);   /* CD, CC */
void bt_core_attend_latents(bt_core_cpu *k); /* the absorbed variants */

/* scores -> p of item lane `lane`, and 1 / the sum of the weights. */
static inline float bt_core_softmax(const bt_core_cpu *k, const bt_core_member *m, uint32_t lane)
{
    const bt_cpu_row_kernels *rows   = k->kernels->rows;
    const float              *scores = m->scores + (size_t)lane * k->keys_pad;
    float                     scale  = k->s->cfg.softmax_scale;
    float                     max    = rows->row_max(scores, k->n_keys) * scale;

    return 1.0f / rows->exp_row(scores, k->n_keys, k->keys_pad, scale, max,
                                m->p + (size_t)lane * k->keys_pad, NULL);
}

#endif
