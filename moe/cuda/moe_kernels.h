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
    bt_bf16 *wire;          /* out [n_rows, bt_wire_elems()] */
} bt_cuda_route;
int bt_cuda_route_run(void *stream, const bt_cuda_route *r);

/* Sorts what wire rows ask of this rank's experts: by expert, then row.  A row whose experts are
 * not top_k ascending ids below n_experts asks for nothing, and the first such row is told. */
typedef struct {
    uint32_t       n_rows, n_wire; /* elements of a wire row */
    uint32_t       hidden, top_k, n_experts, n_local;
    const bt_bf16 *wire;
    const uint16_t
             *local_of;    /* [n_experts]: index among this rank's experts, UINT16_MAX: elsewhere */
    uint32_t *count;       /* [n_local], scratch */
    uint32_t *row_at;      /* out [n_local + 1]: first term of each expert; the number of all */
    uint32_t *term_row;    /* out [n_rows top_k]: wire row of each term */
    float    *term_weight; /* out [n_rows top_k] */
    uint32_t *term_of;     /* out [n_rows, top_k]: the term of each entry, UINT32_MAX: elsewhere */
    uint32_t *bad_row;     /* out [1]: UINT32_MAX: none */
} bt_cuda_permute;
int bt_cuda_permute_run(void *stream, const bt_cuda_permute *p);

/* What wire rows say of experts and weights, side by side: out is [n_rows][3 top_k]. */
int bt_cuda_entries_run(void *stream, uint32_t n_rows, uint32_t hidden, uint32_t top_k,
                        const bt_bf16 *wire, uint16_t *out);

/* As bt_moe_sums, with its lists on the device; y is left as it is. */
typedef struct {
    uint32_t        n_items, hidden;
    const uint32_t *dst;     /* [n_items] */
    const uint32_t *term_at; /* [n_items + 1] */
    const uint32_t *y_row;   /* [n_terms] */
    const float    *weight;  /* [n_terms] */
    const float    *y;       /* [n_terms, hidden] */
    bt_bf16        *items;   /* out [.., hidden] */
} bt_cuda_sums;
int bt_cuda_sums_run(void *stream, const bt_cuda_sums *s);

/* As bt_moe_combine, with its lists on the device. */
typedef struct {
    uint32_t              n_rows, hidden, top_k, n_blocks, block_size;
    const uint16_t       *experts; /* [n_rows, top_k] */
    const bt_bf16 *const *items;   /* [n_rows, top_k] */
    const float          *shared;  /* [n_rows, hidden], or NULL */
    bt_bf16              *y;       /* out [n_rows, hidden] */
} bt_cuda_combine;
int bt_cuda_combine_run(void *stream, const bt_cuda_combine *c);

#ifdef __cplusplus
}
#endif
#endif
