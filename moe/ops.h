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
    const float          *bias;   /* [n_experts], or NULL */
    const uint16_t       *forced; /* host [n_forced, top_k], of the first rows, or NULL */
    uint32_t              n_forced;
    const uint32_t       *live; /* [1]: rows from it on are padding; NULL: none are */
    bt_bf16              *wire; /* out [n_rows, bt_wire_elems()] */
    void                 *scratch;
} bt_moe_route;

/* items[dst[i]] = bf16(sum of y[y_row[t]]) over the terms t of item i, ascending, fp32 from +0;
 * terms are outputs of experts, weighted and rounded, their zeros positive. */
typedef struct {
    uint32_t        n_items, hidden;
    const uint32_t *dst;     /* host [n_items] */
    const uint32_t *term_at; /* host [n_items + 1] */
    const uint32_t *y_row;   /* host [n_terms] */
    const bt_bf16  *y;       /* [n_terms, hidden] */
    bt_bf16        *items;   /* out [.., hidden] */
} bt_moe_sums;

/* y[r] = bf16(sum over all blocks b ascending of (+0 + part_b), fp32 from +0, then + shared[r]).
 * part_b is what came for the block: one whole sum, or the sum of its single items, fp32 from +0,
 * rounded to bf16; +0 where nothing came. */
typedef struct {
    uint32_t              n_rows, hidden, top_k, block_size;
    const uint16_t       *experts; /* host [n_rows, top_k] */
    const bt_bf16 *const *items;   /* host [n_rows, top_k]: what came for the expert, or NULL when
                                      the entry before holds it too */
    const float *shared;           /* [n_rows, hidden], or NULL */
    bt_bf16     *y;                /* out [n_rows, hidden] */
} bt_moe_combine;

/* What wire rows say of experts and weights, on the host. */
typedef struct {
    uint32_t       n_rows, hidden, top_k;
    const bt_bf16 *wire;
    uint16_t      *entries; /* out, host: [n_rows][3 top_k], as a wire row has them */
    void          *scratch;
} bt_moe_read;

/* Lists that the host makes of the routes; they are free again when a call returns. */
typedef struct {
    bt_status (*sum)(bt_device *dev, const bt_moe_sums *s);
    bt_status (*combine)(bt_device *dev, const bt_moe_combine *c);
} bt_moe_listed_ops;

/* What routes are worked out from, on the device.  Lists are host memory, borrowed during
 * create(). */
typedef struct {
    uint32_t        hidden, expert_dim, top_k, n_experts, n_blocks, block_size;
    uint32_t        n_ranks, self, n_local, tile_rows; /* tile_rows: of one call of experts() */
    const uint16_t *owner;                             /* [n_experts] */
    const uint16_t *local_index; /* [n_experts], of this rank's; UINT16_MAX: another's */
    const bool     *whole;       /* [n_blocks]: one rank has the whole block */
    const uint32_t *items_of;    /* [n_ranks]: items that a row may ask of each rank */
} bt_moe_layout;

typedef struct bt_moe_routed bt_moe_routed;

/* What stands in place of the first expert of a row that is padding: it asks for nothing. */
enum { BT_NO_EXPERTS = UINT16_MAX };

/* Items of a row, by rank that makes them: [items_of[rank], hidden], in the order of the row's
 * experts; what a row does not ask for is left as it was. */
typedef struct {
    bt_status (*create)(bt_device *dev, const bt_moe_layout *layout, bt_moe_routed **routed_out);
    void (*destroy)(bt_moe_routed *r);       /* NULL is allowed */
    size_t (*bytes)(const bt_moe_routed *r); /* of the device that create() took */
    /* gate_up, down: [n_local], host.  wire: n_rows of the group's rows, of which the first is its
     * row first_row; items: out, [n_rows, items_of[self], hidden]. */
    bt_status (*experts)(bt_moe_routed *r, bt_linear *const *gate_up, bt_linear *const *down,
                         uint32_t first_row, uint32_t n_rows, const bt_bf16 *wire, bt_bf16 *items);
    /* As bt_moe_combine, of this rank's n_rows.  own: its items for them; came: those of each other
     * rank, one rank after the other, [n_rows, items_of[rank], hidden]. */
    bt_status (*join)(bt_moe_routed *r, uint32_t n_rows, const bt_bf16 *wire, const bt_bf16 *own,
                      const bt_bf16 *came, const float *shared, bt_bf16 *y);
    /* Enqueued: *row_out, memory of bt_device_alloc_host(), becomes the first row that has named
     * nonsense, or UINT32_MAX. */
    bt_status (*bad_row)(bt_moe_routed *r, uint32_t *row_out);
    /* Complete when it returns: the rows that each of this rank's experts has run, [n_local]. */
    bt_status (*rows)(bt_moe_routed *r, uint64_t *rows_out);
} bt_moe_routed_ops;

/* Lists in host memory are free again when a call returns.  `scratch` is that of scratch_bytes().
 * Of listed and routed one is there, the other NULL. */
typedef struct {
    const char *device; /* the name of the device back end that it belongs to */
    size_t (*scratch_bytes)(uint32_t max_rows, uint32_t top_k); /* of this rank's rows */
    bt_status (*route)(bt_device *dev, const bt_moe_route *r);
    bt_status (*read)(bt_device *dev, const bt_moe_read *r); /* complete when it returns */
    const bt_moe_listed_ops *listed;
    const bt_moe_routed_ops *routed;
} bt_moe_ops;

extern const bt_moe_ops bt_moe_cpu_ops;
/* The name under which the module of another back end shows its table. */
#define BT_MOE_MODULE_SYMBOL "bt_moe_cuda_ops"

#endif
