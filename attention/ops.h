/* attention/ops.h - the table behind which a back end implements attention over pages.
 *
 * Internal to attention/: mla.c runs the products with weights, the queries' norm and the order of
 * things; a back end norms latents, turns rope pairs, writes pages and computes the two forms.
 * Pointers are device memory.
 *
 * Threads: the step thread.  Memory: taken in create. */
#ifndef BT_ATTENTION_OPS_H
#define BT_ATTENTION_OPS_H

#include "attention/mla.h"
#include "attention/page_rows.h"
#include "core/minmax.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bt_attn bt_attn;

/* One call over consecutive spans.  Row matrices are those of the whole step: spans name their rows
 * in them. */
typedef struct {
    const bt_mla_weights *w;
    bt_kv_pool           *pool;
    uint32_t              layer;
    bt_bf16              *q;   /* [rows, n_heads, qk_nope_dim + qk_rope_dim]; append: or NULL */
    const bt_bf16        *kv;  /* [rows, kv_lora_rank + qk_rope_dim]: latent, rope key before RoPE;
                                  append: or NULL */
    const bt_bf16  *kv_norm;   /* [kv_lora_rank]: the latent's RMS norm; NULL: it has had it */
    bt_bf16        *out;       /* [rows, n_heads, v_dim] */
    bt_bf16        *index_q;   /* [rows, index_heads, index_dim], or NULL */
    const bt_bf16  *index_k;   /* [rows, index_dim] before LayerNorm and RoPE, or NULL */
    const float    *index_w;   /* [rows, index_heads] */
    const uint32_t *step_rows; /* row r attends to what was chosen for row step_rows[r]; NULL:
                                  for itself */
    uint32_t             n_spans;
    const bt_span       *spans;
    const bt_attn_fixed *fixed; /* append and the absorbed form: what send_fixed() was given, and no
                                   spans; or NULL */
} bt_attn_call;

/* Of back ends that capture their work. */
typedef struct {
    bool (*fits)(const bt_attn *attn, const bt_attn_fixed *fixed, uint32_t n_spans,
                 const bt_span *spans);
    bt_status (*send)(bt_attn *attn, const bt_attn_fixed *fixed, uint32_t n_spans,
                      const bt_span *spans);
} bt_attn_fixed_ops;

/* A slot is never NULL, but for `fixed`. */
typedef struct {
    const char *device; /* the name of the device back end that it belongs to */
    /* Of bt_mla_large_bytes(). */
    size_t (*large_bytes)(const bt_mla_config *cfg, uint32_t max_rows);
    /* rope is [max_context][qk_rope_dim / 2][2] = {cos, sin}, and behind it, where query_beta is
     * not 0, [max_context] factors of the queries; borrowed. */
    bt_status (*create)(bt_device *dev, const bt_mla_config *cfg, uint32_t max_rows,
                        const float *rope, bt_attn **attn_out);
    /* Turns the rope parts of q and index_q in place, multiplies q by its factors, writes kv, its
     * latent normed and its rope key turned, and the ki that index_k becomes, to the pages; what is
     * NULL is left out. */
    bt_status (*append)(bt_attn *attn, const bt_attn_call *call);
    /* out = attention, by form; the spans have one role and this form. */
    bt_status (*attend[2])(bt_attn *attn, const bt_attn_call *call);
    /* Chooses positions for the rows that have more than index_topk, by index_q and index_w; then
     * out = attention in the absorbed form to what was chosen last, or to all positions of rows
     * that have no more.  The spans have one role. */
    bt_status (*choose)(bt_attn *attn, const bt_attn_call *call);
    bt_status (*attend_chosen)(bt_attn *attn, const bt_attn_call *call);
    /* Between pages and a run of device memory; enqueued on `stream`. */
    bt_status (*move_rows)(const bt_page_rows *r, void *stream, void *run, bool to_pages);
    void (*destroy)(bt_attn *attn); /* NULL is allowed */
    const bt_attn_fixed_ops *fixed;
} bt_attn_ops;

struct bt_attn {
    const bt_attn_ops *ops;
    size_t             bytes; /* of its workspaces */
};                            /* first member of each implementation */

extern const bt_attn_ops bt_attn_cpu_ops;
/* The name under which the module of another back end shows its table. */
#define BT_ATTN_MODULE_SYMBOL "bt_attn_cuda_ops"
/* NULL: the device has none. */
const bt_attn_ops *bt_attn_find(const bt_device *dev);

/* In the table that create() is given, behind the rotations; NULL: the queries have no factors. */
static inline const float *bt_mla_query_factors(const bt_mla_config *cfg, const float *rope)
{
    return cfg->query_beta == 0 ? NULL : rope + (size_t)cfg->max_context * cfg->qk_rope_dim;
}

#ifdef __cplusplus
}
#endif
#endif
