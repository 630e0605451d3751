/* attention/variants/core.h - what the files of the study share, and the table that a back end
 * implements: the parts of a variant that are not products with weights. */
#ifndef BT_ATTENTION_VARIANTS_CORE_H
#define BT_ATTENTION_VARIANTS_CORE_H

#include <stdbool.h>

#include "attention/ops.h"
#include "attention/variants/variants.h"

typedef struct bt_core bt_core;

/* A slot is never NULL.  Pointers of the study are device memory. */
typedef struct {
    const bt_attn_ops *attn; /* of the same device: page writes, and the fused kernel */
    size_t (*bytes)(const bt_study *s, bt_variant_kind kind, uint32_t batch, uint32_t n_keys);
    /* Takes cache and buffers for the study's requests; CD fills its cache from the pages. */
    bt_status (*open)(bt_study *s, bt_variant_kind kind, bt_core **core_out);
    /* The step's tokens, whose rows are in s->kv and in the pages, to the variant's own cache. */
    bt_status (*append)(bt_core *core, bt_role role);
    /* CD, CC: s->heads from s->q.  A_CC, A_CC_ME, AM_CC_ME: s->ol from s->ql and the rope part of
     * s->q. */
    bt_status (*attend)(bt_core *core, bt_role role);
    void (*close)(bt_core *core); /* NULL is allowed */
} bt_core_ops;

struct bt_core {
    const bt_core_ops *ops;
}; /* first member of each implementation */

extern const bt_core_ops bt_core_cpu_ops;

/* AM_CC_ME: W_UK_h^T W_UQ_h of all heads, the rope rows of W_UQ, and W_O W_UV_h of all heads. */
typedef struct {
    bt_linear  *q;    /* [n_heads kv_lora_rank, q_in] */
    bt_linear **rope; /* n_heads of [qk_rope_dim, q_in] */
    bt_linear  *o;    /* [hidden, n_heads kv_lora_rank] */
} bt_merged;

struct bt_study {
    bt_device         *dev; /* borrowed */
    const bt_core_ops *ops;
    bt_mla_config      cfg;
    bt_study_weights   host; /* borrowed */
    bt_mla_weights     w;    /* owned: uk, ukt and uv all there */
    bt_merged          merged;
    bt_attn           *attn; /* owned */
    float             *rope; /* owned, device */
    uint32_t           max_batch;
    uint32_t           q_in, q_dim, kv_dim; /* q_lora_rank or hidden; n_heads (nope+rope); c+rope */

    /* Owned, device: rows of the step, [max_batch][...]. */
    bt_bf16 *q_a;   /* [q_in], or NULL without the low rank */
    bt_bf16 *q;     /* [q_dim] */
    bt_bf16 *kv;    /* [kv_dim] */
    bt_bf16 *ql;    /* [n_heads][kv_lora_rank] */
    bt_bf16 *ol;    /* [n_heads][kv_lora_rank] */
    bt_bf16 *heads; /* [n_heads][v_dim] */
    bt_gemm *gemms; /* host, [n_heads] */

    /* The requests. */
    uint32_t    batch, n_prefix, n_rows; /* n_rows: tokens t and t + n_rows are equal */
    bt_kv_pool *pool;                    /* owned */
    bt_page_id *pages;                   /* owned: [batch][pages of n_prefix + 1 tokens] */
    bt_span    *spans;                   /* owned: [max_batch] */
};

struct bt_variant {
    bt_study       *study; /* borrowed */
    bt_variant_kind kind;
    bt_core        *core; /* owned; NULL for the fused kernel */
};

static inline uint32_t          bt_study_n_keys(const bt_study *s) { return s->n_prefix + 1; }
static inline const bt_page_id *bt_study_pages(const bt_study *s, uint32_t request)
{
    return s->pages + (size_t)request * bt_kv_pages_for(bt_study_n_keys(s));
}

/* Rows of W are rows, or columns when transposed, of a matrix on the host. */
bt_status bt_study_linear(bt_device *dev, const bt_bf16 *data, size_t ld, uint32_t n, uint32_t k,
                          bool transposed, bt_linear **linear_out);
/* Memory of the device, owned by the caller; complete when it returns. */
bt_status bt_study_upload(bt_study *s, const bt_bf16 *host, size_t elems, bt_bf16 **ptr_out);

/* merged.c */
bt_status bt_merged_init(bt_study *s);
void      bt_merged_fini(bt_study *s);

#endif
