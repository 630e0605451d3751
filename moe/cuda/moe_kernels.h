/* moe/cuda/moe_kernels.h - the steps of an expert layer as kernels: gate, permutation by expert,
 * sums of items, combination.  The products between them: device/cuda/gemm.h.
 *
 * Formulas and orders: moe/gate.h and moe/ops.h; the results are those of moe/cpu bit for bit. Wire
 * rows as in moe/ops.h.  Each function enqueues on `stream` (a cudaStream_t) and returns a
 * cudaError_t, 0 for success; no rows, no launch.  Pointers are device memory. */
#ifndef BT_MOE_CUDA_MOE_KERNELS_H
#define BT_MOE_CUDA_MOE_KERNELS_H

#include "moe/gate.h"
#include "moe/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Chooses experts from router logits and makes wire rows. */
typedef struct {
    bt_gate_config  gate; /* has passed bt_gate_check() */
    uint32_t        n_rows, hidden;
    const bt_bf16  *x;      /* [n_rows, hidden] */
    const float    *logits; /* [n_rows, n_experts] */
    const float    *bias;   /* [n_experts], or NULL */
    const uint16_t *forced; /* [n_rows, top_k], or NULL; UINT16_MAX first in a row: not this one.
                               Others have passed bt_gate_forced_ok() */
    const uint32_t *live;   /* [1]: rows from it on are padding, with BT_NO_EXPERTS; or NULL */
    bt_bf16        *wire;   /* out [n_rows, bt_wire_elems()] */
} bt_cuda_route;
int bt_cuda_route_run(void *stream, const bt_cuda_route *r);

/* Sorts what wire rows ask of this rank's experts: by expert, then row.  A row whose experts are
 * not top_k ascending ids below n_experts asks for nothing, and the first such row is told, unless
 * it is padding. */
typedef struct {
    uint32_t       n_rows, n_wire; /* elements of a wire row */
    uint32_t       hidden, top_k, n_experts, n_local;
    const bt_bf16 *wire;
    const uint16_t
             *local_of;    /* [n_experts]: index among this rank's experts, UINT16_MAX: elsewhere */
    uint32_t *row_at;      /* out [n_local + 1]: first term of each expert; the number of all */
    uint32_t *term_row;    /* out [n_rows top_k]: wire row of each term */
    float    *term_weight; /* out [n_rows top_k] */
    uint32_t *term_of;     /* out [n_rows, top_k]: the term of each entry, UINT32_MAX: elsewhere */
    uint32_t  first_row;   /* number of the first row, for bad_row */
    uint32_t *bad_row;     /* [1] falls to the first such row; UINT32_MAX at first */
    uint64_t *rows_run;    /* [n_local] grows by each expert's terms */
} bt_cuda_permute;
int bt_cuda_permute_run(void *stream, const bt_cuda_permute *p);

/* What wire rows say of experts and weights, side by side: out is [n_rows][3 top_k]. */
int bt_cuda_entries_run(void *stream, uint32_t n_rows, uint32_t hidden, uint32_t top_k,
                        const bt_bf16 *wire, uint16_t *out);

/* What this rank's experts made of each row: outputs of a whole block in one item, which adds
 * ascending from +0 in fp32, those of a split block singly; each output rounds to bf16 after its
 * weight. An item of one output is that output.  Items stand in the order of the row's experts. */
typedef struct {
    uint32_t        n_rows, n_wire, hidden, top_k, block_size, items_per_row;
    const bt_bf16  *wire;
    const uint8_t  *whole;       /* [n_blocks] 1: one rank has the whole block */
    const uint32_t *term_of;     /* [n_rows, top_k], as permute left it */
    const float    *term_weight; /* [terms] */
    const float    *y;           /* [terms, hidden] */
    bt_bf16        *items;       /* out [n_rows, items_per_row, hidden] */
} bt_cuda_items;
int bt_cuda_items_run(void *stream, const bt_cuda_items *p);

/* As bt_moe_combine, for rows of this rank, whose items lie by rank: own, and came.  Rows that are
 * padding keep what they have in y. */
typedef struct {
    uint32_t        n_rows, n_wire, hidden, top_k, block_size, self;
    const bt_bf16  *wire;         /* [n_rows, n_wire] */
    const uint16_t *owner;        /* [n_experts] */
    const uint8_t  *whole;        /* [n_blocks] */
    const uint32_t *items_of;     /* [n_ranks] items of a row, by rank */
    const uint32_t *items_before; /* [n_ranks] those of the ranks before it, self's not counted */
    const bt_bf16  *own;          /* [n_rows, items_of[self], hidden] */
    const bt_bf16  *came;         /* rank after rank: [n_rows, items_of[rank], hidden] */
    const float    *shared;       /* [n_rows, hidden], or NULL */
    bt_bf16        *y;            /* out [n_rows, hidden] */
} bt_cuda_join;
int bt_cuda_join_run(void *stream, const bt_cuda_join *c);

#ifdef __cplusplus
}
#endif
#endif
