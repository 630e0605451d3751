/* moe/routed.c - experts and combination where routes stay on the device: the host knows only how
 * many rows each rank brings, so every rank sends each row as many items as it could ask for. */
#include "core/alloc.h"
#include "moe/state.h"
#include "parallel/carrier.h"

bt_status bt_moe_routed_create(bt_moe *moe)
{
    const bt_moe_config *c      = &moe->cfg;
    bt_moe_layout        layout = {.hidden      = c->hidden,
                                   .expert_dim  = c->expert_dim,
                                   .top_k       = c->gate.top_k,
                                   .n_experts   = c->gate.n_experts,
                                   .n_blocks    = moe->placement->n_blocks,
                                   .block_size  = bt_block_size(moe->placement),
                                   .n_ranks     = moe->n_ranks,
                                   .self        = moe->self,
                                   .n_local     = moe->n_local,
                                   .tile_rows   = moe->tile_rows,
                                   .owner       = moe->placement->owner,
                                   .local_index = moe->local_index,
                                   .whole       = moe->whole,
                                   .items_of    = moe->items_of};
    bt_status            st     = BT_OK;
    void                *noted  = NULL;

    BT_TRY(bt_device_alloc_host(moe->dev, BT_N_MARKS * sizeof(*moe->bad_row), &noted));
    moe->bad_row  = noted;
    moe->noted_at = bt_calloc((size_t)BT_N_MARKS * 2 * (moe->n_ranks + 1), sizeof(*moe->noted_at));
    BT_REQUIRE(moe->noted_at != NULL, BT_ERR_NO_MEMORY, "rows of %u ranks", moe->n_ranks);
    BT_TRY(moe->ops->routed->create(moe->dev, &layout, &moe->routed));
    moe->bytes += moe->ops->routed->bytes(moe->routed);
out:
    return st;
}

/* The first row of a partial layer: in layers of all rows they have the numbers below. */
static uint32_t partial_from(const bt_moe *moe) { return moe->n_ranks * moe->max_rows; }

bt_status bt_moe_experts(bt_moe *moe, const bt_moe_weights *w)
{
    uint32_t  all = moe->row_at[moe->n_ranks], first = moe->partial ? partial_from(moe) : 0;
    size_t    row = (size_t)moe->items_of[moe->self] * moe->cfg.hidden;
    bt_status st  = BT_OK;

    if (moe->n_local == 0) goto out;
    for (uint32_t i = 0; i < moe->n_local; i++) {
        moe->gate_up[i] = w->gate_up[moe->local_expert[i]];
        moe->down[i]    = w->down[moe->local_expert[i]];
    }
    for (uint32_t r = 0, n; r < all; r += n) {
        n = bt_min_u32(all - r, moe->tile_rows);
        BT_TRY(moe->ops->routed->experts(moe->routed, moe->gate_up, moe->down, first + r, n,
                                         bt_moe_wire_row(moe, r), moe->sent + r * row));
    }
out:
    return st;
}

bt_status bt_moe_return(bt_moe *moe, const bt_wait *wait)
{
    size_t item = moe->cfg.hidden * sizeof(bt_bf16), at = 0;

    for (uint32_t q = 0; q < moe->n_ranks; q++) {
        size_t own   = moe->items_of[moe->self] * item;
        bool   other = q != moe->self;

        moe->send_at[q]    = moe->row_at[q] * own;
        moe->send_bytes[q] = other ? (moe->row_at[q + 1] - moe->row_at[q]) * own : 0;
        moe->recv_at[q]    = at;
        moe->recv_bytes[q] = other ? bt_moe_own_rows(moe) * moe->items_of[q] * item : 0;
        at += moe->recv_bytes[q];
    }
    return bt_moe_exchange(moe, "moe combine", moe->sent, moe->came, wait);
}

bt_status bt_moe_join(bt_moe *moe, bt_bf16 *y)
{
    uint32_t       first = moe->row_at[moe->self];
    const bt_bf16 *own   = moe->sent + (size_t)first * moe->items_of[moe->self] * moe->cfg.hidden;

    return moe->ops->routed->join(moe->routed, bt_moe_own_rows(moe), bt_moe_wire_row(moe, first),
                                  own, moe->came, moe->shared_y, y);
}

bt_status bt_moe_routed_chosen(bt_moe *moe, const bt_step_rows *rows, uint16_t *chosen_out,
                               const bt_wait *wait)
{
    bt_status   st     = BT_OK;
    uint32_t    top_k  = moe->cfg.gate.top_k;
    uint32_t    n_rows = rows->live != NULL ? rows->n_live : bt_moe_own_rows(moe);
    bt_moe_read read   = {.n_rows  = n_rows,
                          .hidden  = moe->cfg.hidden,
                          .top_k   = top_k,
                          .wire    = bt_moe_wire_row(moe, moe->row_at[moe->self]),
                          .entries = moe->entries,
                          .scratch = moe->scratch};

    if (chosen_out == NULL) goto out;
    BT_TRY(bt_group_settle(moe->group, wait)); /* before the host waits for the device */
    BT_TRY(moe->ops->read(moe->dev, &read));
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(chosen_out + (size_t)r * top_k, bt_moe_entries(moe, r), top_k * sizeof(*chosen_out));
out:
    return st;
}

static uint32_t *noted_at(const bt_moe *moe, uint32_t i, bool partial)
{
    return moe->noted_at + ((size_t)2 * i + partial) * (moe->n_ranks + 1);
}

bt_status bt_moe_routed_note(bt_moe *moe, uint32_t i)
{
    size_t bytes = (moe->n_ranks + 1) * sizeof(*moe->row_at);

    memcpy(noted_at(moe, i, false), moe->all_at, bytes);
    memcpy(noted_at(moe, i, true), moe->row_at, bytes);
    return moe->ops->routed->bad_row(moe->routed, &moe->bad_row[i]);
}

bt_status bt_moe_routed_check(const bt_moe *moe, uint32_t i)
{
    bt_status       st = BT_OK;
    const uint32_t *row_at;
    uint32_t        row = moe->bad_row[i], q = 0;
    bool            partial = row >= partial_from(moe);

    if (row == UINT32_MAX) return BT_OK;
    row_at = noted_at(moe, i, partial);
    row -= partial ? partial_from(moe) : 0;
    while (q + 1 < moe->n_ranks && row >= row_at[q + 1])
        q++;
    BT_REQUIRE(false, BT_ERR_PROTOCOL,
               "moe dispatch: row %u of rank %u (world rank %u) names experts that are not "
               "%u ascending ids below %u",
               row - row_at[q], q, bt_group_world_rank(moe->group, q), moe->cfg.gate.top_k,
               moe->cfg.gate.n_experts);
out:
    return st;
}

void bt_moe_routed_rows(bt_moe *moe)
{
    if (moe->ops->routed->rows(moe->routed, moe->local_rows) != BT_OK) return; /* logged */
    for (uint32_t i = 0; i < moe->n_local; i++)
        moe->expert_rows[moe->local_expert[i]] = moe->local_rows[i];
}
