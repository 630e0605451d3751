/* moe/ops.h - the steps of an expert layer that are no matrix product, one table per back end.
 *
 * A row as it travels to the ranks of the group ("wire row"):
 *     [hidden] bf16 x | [top_k] u16 experts, ascending | [top_k] f32 weights | padding to 64 bytes
 * so that one message, one gather and one row stride serve all three.
 *
 * Internal to moe/.  Pointers are device memory where the comment does not say host. */
#ifndef BT_MOE_OPS_H
#define BT_MOE_OPS_H

#include <string.h>

#include "device/device.h"
#include "moe/gate.h"

/* Elements (of 2 bytes) of a wire row. */
static inline uint32_t bt_wire_elems(uint32_t hidden, uint32_t top_k)
{
    return (hidden + 3 * top_k + 31) / 32 * 32;
}
/* The weight of expert j of a row's entries, [top_k] experts and their weights. */
static inline float bt_entry_weight(const uint16_t *entries, uint32_t top_k, uint32_t j)
{
    float w;

    memcpy(&w, entries + top_k + 2 * (size_t)j, sizeof(w)); /* not always aligned */
    return w;
}

/* Chooses experts from router logits and makes wire rows. */
typedef struct {
    const bt_gate_config *gate;
    uint32_t              n_rows, hidden;
    const bt_bf16        *x;      /* [n_rows, hidden] */
    const float          *logits; /* [n_rows, n_experts] */
    const float          *bias;   /* host [n_experts], or NULL */
    const uint16_t       *forced; /* host [n_rows, top_k], or NULL */
    bt_bf16              *wire;   /* out [n_rows, bt_wire_elems()] */
    void                 *scratch;
} bt_moe_route;

/* items[dst[i]] = bf16(sum of bf16(weight[t] y[y_row[t]])) over the terms t of item i, ascending,
 * fp32 from +0; an item of one term is that term.  Each row of y belongs to one term; y is
 * destroyed. */
typedef struct {
    uint32_t        n_items, hidden;
    const uint32_t *dst;     /* host [n_items] */
    const uint32_t *term_at; /* host [n_items + 1] */
    const uint32_t *y_row;   /* host [n_terms] */
    const float    *weight;  /* host [n_terms] */
    float          *y;       /* [n_terms, hidden] */
    bt_bf16        *items;   /* out [.., hidden] */
    void           *scratch;
} bt_moe_sums;

/* y[r] = bf16(sum over all blocks b ascending of (+0 + part_b), fp32 from +0, then + shared[r]).
 * part_b is what came for the block: one whole sum, or the sum of its single items, fp32 from +0,
 * rounded to bf16; +0 where nothing came. */
typedef struct {
    uint32_t              n_rows, hidden, top_k, n_blocks, block_size;
    const uint16_t       *experts; /* host [n_rows, top_k] */
    const bt_bf16 *const *items;   /* host [n_rows, top_k]: what came for the expert, or NULL when
                                      the entry before holds it too */
    const float *shared;           /* [n_rows, hidden], or NULL */
    bt_bf16     *y;                /* out [n_rows, hidden] */
    void        *scratch;
} bt_moe_combine;

/* What wire rows say of experts and weights, on the host. */
typedef struct {
    uint32_t       n_rows, hidden, top_k;
    const bt_bf16 *wire;
    uint16_t      *entries; /* out, host: [n_rows][3 top_k], as a wire row has them */
    void          *scratch;
} bt_moe_read;

/* The largest call of each kind, for the scratch. */
typedef struct {
    uint32_t max_rows, all_rows, max_terms; /* of this rank; of the group; of a tile */
    uint32_t hidden, top_k, n_experts;
} bt_moe_sizes;

/* Lists in host memory are free again when a call returns.  `scratch` is that of scratch_bytes().
 */
typedef struct {
    const char *device; /* the name of the device back end that it belongs to */
    size_t (*scratch_bytes)(bt_device *dev, const bt_moe_sizes *sizes);
    bt_status (*route)(bt_device *dev, const bt_moe_route *r);
    bt_status (*read)(bt_device *dev, const bt_moe_read *r); /* complete when it returns */
    bt_status (*sum)(bt_device *dev, const bt_moe_sums *s);
    bt_status (*combine)(bt_device *dev, const bt_moe_combine *c);
} bt_moe_ops;

extern const bt_moe_ops bt_moe_cpu_ops;
/* The name under which the module of another back end shows its table. */
#define BT_MOE_MODULE_SYMBOL "bt_moe_cuda_ops"

#endif
