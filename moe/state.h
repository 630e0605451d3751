/* moe/state.h - what an expert layer keeps between and during steps.  Internal to moe/. */
#ifndef BT_MOE_STATE_H
#define BT_MOE_STATE_H

#include "core/minmax.h"
#include "moe/moe.h"
#include "moe/ops.h"

struct bt_moe {
    bt_device          *dev;       /* borrowed */
    bt_group           *group;     /* borrowed */
    const bt_placement *placement; /* borrowed */
    const bt_moe_ops   *ops;
    bt_moe_config       cfg;
    uint32_t            n_ranks, self, max_rows, wire_elems;

    /* Who holds what. */
    uint32_t  n_local;
    uint16_t *local_expert; /* owned: [n_local] ids ascending */
    uint16_t *local_index;  /* owned: [n_experts], of this rank's experts */
    bool     *whole;        /* owned: [n_blocks] one rank holds the whole block */
    uint64_t *expert_rows;  /* owned: [n_experts] rows that this rank's have run */

    /* Device memory, owned. */
    float   *logits; /* [max_rows, n_experts] */
    bt_bf16 *wire;   /* [n_ranks max_rows, wire_elems]: every rank's rows, rank after rank */
    bt_bf16 *tile_x; /* [tile_terms, wire_elems]: rows sorted by expert */
    bt_bf16 *tile_h; /* [tile_terms, 2 expert_dim] */
    bt_bf16 *tile_a; /* [tile_terms, expert_dim] */
    bt_bf16 *tile_y; /* [tile_terms, hidden]: weighted */
    bt_bf16 *sent;   /* items that this rank made, by destination */
    bt_bf16 *came;   /* items that other ranks made for this rank's rows */
    bt_bf16 *shared_h, *shared_a;
    float   *shared_y; /* [max_rows, hidden]; NULL without a shared expert */
    void    *scratch;
    size_t   bytes; /* of all of these */

    /* Of a back end that keeps routes on the device, owned. */
    bt_moe_routed *routed;
    uint32_t       tile_rows;
    uint32_t      *items_of;        /* [n_ranks] items that a row may ask of each rank */
    uint64_t      *local_rows;      /* [n_local] */
    uint32_t      *bad_row;         /* [BT_N_MARKS] of bt_device_alloc_host(): as noted */
    uint32_t      *noted_at;        /* [BT_N_MARKS][2][n_ranks + 1] all_at, row_at of those steps */
    bt_linear    **gate_up, **down; /* [n_local] of the layer that runs */

    /* Host memory, owned. */
    uint32_t       *row_at;     /* [n_ranks + 1] first wire row of each rank */
    uint32_t       *all_at;     /* [n_ranks + 1] the same where all rows of the step went on */
    bool            partial;    /* not all do now */
    uint32_t       *first_item; /* [n_ranks max_rows + 1] first item of each wire row */
    uint32_t       *n_came;     /* [n_ranks] items seen from each rank */
    uint16_t       *entries;    /* [n_ranks max_rows][3 top_k] of every rank's wire rows */
    uint16_t       *experts;    /* [max_rows, top_k] of this rank's rows */
    const bt_bf16 **items;      /* [max_rows, top_k] what came for each expert */
    size_t         *send_at, *send_bytes, *recv_at, *recv_bytes; /* [n_ranks] */
    bt_ffn         *ffns;                                        /* [n_local] */

    /* The tile that is being filled, or has run and was not yet added up, host, owned. */
    uint32_t  tile_terms, n_terms, n_items;
    bool      tile_ran;
    uint32_t *item_dst, *term_at, *term_row, *term_y, *gather; /* [tile_terms (+1)] */
    uint16_t *term_local, *term_place;     /* of its expert among this rank's, among its row's */
    float    *term_weight, *sorted_weight; /* by term, by row of tile_y */
    uint32_t *local_at;                    /* [n_local + 1] */
};

static inline uint32_t bt_moe_block_of(const bt_moe *moe, uint32_t expert)
{
    return expert / bt_block_size(moe->placement);
}

/* A wire row's experts, and its weights behind them. */
static inline const uint16_t *bt_moe_entries(const bt_moe *moe, uint32_t row)
{
    return moe->entries + (size_t)row * 3 * moe->cfg.gate.top_k;
}

static inline uint32_t bt_moe_own_rows(const bt_moe *moe)
{
    return moe->row_at[moe->self + 1] - moe->row_at[moe->self];
}

static inline bt_bf16 *bt_moe_wire_row(const bt_moe *moe, uint32_t row)
{
    return moe->wire + (size_t)row * moe->wire_elems;
}

/* moe.c: sends and receives what send_at, send_bytes, recv_at and recv_bytes say; `what` names it
 * in errors. */
bt_status bt_moe_exchange(bt_moe *moe, const char *what, const bt_bf16 *send, bt_bf16 *recv,
                          const bt_wait *wait);
/* listed.c: this rank's experts on the rows of all ranks, which have come; sums back to their
 * owners, and the rows' results.  Collective over the group. */
bt_status bt_moe_listed_experts(bt_moe *moe, const bt_moe_weights *w, const bt_step_rows *rows,
                                const bt_wait *wait);
bt_status bt_moe_listed_combine(bt_moe *moe, bt_bf16 *y, uint16_t *chosen_out, const bt_wait *wait);
/* routed.c: the same without a route on the host. */
bt_status bt_moe_routed_create(bt_moe *moe);
/* Which experts each of this rank's rows chose, for those who ask; NULL: nobody does. */
bt_status bt_moe_routed_chosen(bt_moe *moe, const bt_step_rows *rows, uint16_t *chosen_out,
                               const bt_wait *wait);
bt_status bt_moe_routed_note(bt_moe *moe, uint32_t i);
bt_status bt_moe_routed_check(const bt_moe *moe, uint32_t i);
void      bt_moe_routed_rows(bt_moe *moe);

#endif
