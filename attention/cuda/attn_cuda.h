/* attention/cuda/attn_cuda.h - what the files of the CUDA back end of attention share.
 *
 * A step's spans run in batches that fit the workspaces: consecutive rows, cut between any two
 * rows. A batch's spans and pages go up first; then the kernels run over it. */
#ifndef BT_ATTENTION_CUDA_ATTN_CUDA_H
#define BT_ATTENTION_CUDA_ATTN_CUDA_H

#include "attention/cuda/attn_kernels.h"
#include "attention/ops.h"

typedef struct {
    bt_attn               base;
    bt_device            *dev; /* borrowed */
    bt_mla_config         cfg;
    const float          *rope;                     /* borrowed, device: the table of ops.h */
    uint32_t              max_spans, max_ids;       /* of a batch */
    uint32_t              absorbed_rows, part_rows; /* rows; rows times parts, of a batch */
    uint32_t              normal_rows, kv_tokens;   /* rows of a batch; keys expanded at once */
    bt_cuda_span         *spans, *spans_dev;        /* owned: host, device */
    bt_cuda_prefill_item *items, *items_dev;        /* owned: host, device */
    uint32_t             *ids, *ids_dev;            /* owned: host, device */
    bt_bf16              *ql, *ol;                  /* owned: [absorbed_rows, n_heads, kv_lora] */
    float                *part_o, *part_ms;         /* owned: [part_rows, n_heads, kv_lora], 2 */
    bt_bf16              *latents, *keys, *values;  /* owned: [kv_tokens, ..] */
    float                *run_o, *run_ms;           /* owned: [normal_rows, n_heads, v_dim], 2 */
    bt_gemm              *gemms;                    /* owned: [n_heads] */

    /* Sparse attention, where some context can need it. */
    size_t    n_scores, n_chosen; /* elements: of a batch, of a step */
    float    *scores;             /* owned, device: [n_scores], of the rows that choose at once */
    uint32_t *chosen;             /* owned, device: [rows of the step][index_topk] */
} bt_attn_cuda;

/* Where the next batch begins. */
typedef struct {
    uint32_t span, row; /* row of that span */
} bt_attn_cursor;

typedef struct {
    uint32_t first_row; /* in the step; the spans count from it */
    uint32_t n_rows, n_spans, max_rows, max_end;
} bt_attn_batch;

/* The batch from the cursor on, at most max_rows rows and, unless that is 0, part_rows rows times
 * parts; its spans and pages are on their way to the device.  n_rows is 0 at the end. */
bt_status     bt_attn_cuda_next(bt_attn_cuda *a, const bt_attn_call *call, uint32_t max_rows,
                                uint32_t part_rows, bt_attn_cursor *at, bt_attn_batch *batch_out);
bt_cuda_dims  bt_attn_cuda_dims(const bt_attn_cuda *a);
bt_cuda_pages bt_attn_cuda_pages(const bt_attn_cuda *a, const bt_attn_call *call);

/* All of the absorbed form for a batch; chosen: where spans have lists, or NULL. */
bt_status bt_attn_cuda_absorbed_batch(bt_attn_cuda *a, const bt_attn_call *call,
                                      const bt_attn_batch *b, const uint32_t *chosen);
/* n_scores and n_chosen, by the shapes. */
void bt_attn_cuda_chosen_sizes(bt_attn_cuda *a, uint32_t max_rows);

bt_status bt_attn_cuda_choose(bt_attn *attn, const bt_attn_call *call);
bt_status bt_attn_cuda_attend_chosen(bt_attn *attn, const bt_attn_call *call);
bt_status bt_attn_cuda_normal(bt_attn *attn, const bt_attn_call *call);
bt_status bt_attn_cuda_absorbed(bt_attn *attn, const bt_attn_call *call);

extern const bt_attn_ops bt_attn_cuda_ops;

#endif
