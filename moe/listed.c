/* moe/listed.c - experts and combination where the host may look at device memory: it knows every
 * route, makes lists of what is to be done, and only what was asked for travels. */
#include "moe/state.h"
#include "parallel/carrier.h"

/* Whether the j-th expert of a row begins an item: outputs of a whole block share one, outputs of
 * a split block travel singly. */
static bool begins_item(const bt_moe *moe, const uint16_t *experts, uint32_t j)
{
    uint32_t block = bt_moe_block_of(moe, experts[j]);

    return j == 0 || !moe->whole[block] || bt_moe_block_of(moe, experts[j - 1]) != block;
}

/* Numbers the items that this rank owes, row after row, after checking what peers sent; no item has
 * a place yet. */
static bt_status number_items(bt_moe *moe)
{
    const bt_gate_config *gate = &moe->cfg.gate;
    uint32_t              n = 0, own = moe->row_at[moe->self];
    bt_status             st = BT_OK;

    BT_TRY(moe->ops->read(moe->dev, &(bt_moe_read){.n_rows  = moe->row_at[moe->n_ranks],
                                                   .hidden  = moe->cfg.hidden,
                                                   .top_k   = gate->top_k,
                                                   .wire    = moe->wire,
                                                   .entries = moe->entries,
                                                   .scratch = moe->scratch}));
    memset(moe->items, 0, (size_t)bt_moe_own_rows(moe) * gate->top_k * sizeof(*moe->items));
    for (uint32_t r = own; r < moe->row_at[moe->self + 1]; r++)
        memcpy(moe->experts + (size_t)(r - own) * gate->top_k, bt_moe_entries(moe, r),
               gate->top_k * sizeof(*moe->experts));

    for (uint32_t q = 0; q < moe->n_ranks; q++) {
        for (uint32_t r = moe->row_at[q]; r < moe->row_at[q + 1]; r++) {
            const uint16_t *experts = bt_moe_entries(moe, r);

            BT_REQUIRE(bt_gate_forced_ok(gate, experts), BT_ERR_PROTOCOL,
                       "moe dispatch: row %u of rank %u (world rank %u) names experts that are not "
                       "%u ascending ids below %u",
                       r - moe->row_at[q], q, bt_group_world_rank(moe->group, q), gate->top_k,
                       gate->n_experts);
            moe->first_item[r] = n;
            for (uint32_t j = 0; j < gate->top_k; j++)
                n += moe->placement->owner[experts[j]] == moe->self && begins_item(moe, experts, j);
        }
    }
    moe->first_item[moe->row_at[moe->n_ranks]] = n;
out:
    return st;
}

/* The blocks of the experts that have rows in the tile; returns how many. */
static uint32_t fill_ffns(bt_moe *moe, const bt_moe_weights *w)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < moe->n_local; i++) {
        size_t first = moe->local_at[i], hidden = moe->cfg.hidden;

        if (moe->local_at[i + 1] == first) continue;
        moe->ffns[n++] = (bt_ffn){.gate_up  = w->gate_up[moe->local_expert[i]],
                                  .down     = w->down[moe->local_expert[i]],
                                  .x        = moe->wire,
                                  .ld_x     = moe->wire_elems,
                                  .y        = moe->tile_y + first * hidden,
                                  .ld_y     = hidden,
                                  .m        = moe->local_at[i + 1] - (uint32_t)first,
                                  .y_dtype  = BT_BF16,
                                  .weight   = moe->sorted_weight + first,
                                  .x_row    = moe->gather + first,
                                  .gathered = moe->tile_x + first * moe->wire_elems};
    }
    return n;
}

/* Sorts the tile's terms by expert: gather[] says which wire row stands where, term_y[] where each
 * term's output will stand. */
static void sort_tile(bt_moe *moe)
{
    memset(moe->local_at, 0, ((size_t)moe->n_local + 1) * sizeof(*moe->local_at));
    for (uint32_t t = 0; t < moe->n_terms; t++)
        moe->local_at[moe->term_local[t] + 1]++;
    for (uint32_t i = 0; i < moe->n_local; i++)
        moe->local_at[i + 1] += moe->local_at[i];
    for (uint32_t t = 0; t < moe->n_terms; t++) {
        uint32_t y = moe->local_at[moe->term_local[t]]++; /* becomes the next one's first */

        moe->gather[y]        = moe->term_row[t];
        moe->sorted_weight[y] = moe->term_weight[t];
        moe->term_y[t]        = y;
    }
    memmove(moe->local_at + 1, moe->local_at, moe->n_local * sizeof(*moe->local_at));
    moe->local_at[0] = 0;
    for (uint32_t i = 0; i < moe->n_local; i++)
        moe->expert_rows[moe->local_expert[i]] += moe->local_at[i + 1] - moe->local_at[i];
}

/* The tile's terms through the experts. */
static bt_status run_tile(bt_moe *moe, const bt_moe_weights *w, bt_role role)
{
    bt_status st = BT_OK;

    if (moe->n_terms == 0 || moe->tile_ran) return BT_OK;
    moe->term_at[moe->n_items] = moe->n_terms;
    sort_tile(moe);
    BT_TRY(bt_device_ffn(moe->dev, role, fill_ffns(moe, w), moe->ffns, moe->tile_h, moe->tile_a));
    moe->tile_ran = true;
out:
    return st;
}

/* Items first .. end of the tile, from its terms. */
static bt_status sum_items(const bt_moe *moe, uint32_t first, uint32_t end)
{
    return moe->ops->listed->sum(moe->dev, &(bt_moe_sums){.n_items = end - first,
                                                          .hidden  = moe->cfg.hidden,
                                                          .dst     = moe->item_dst + first,
                                                          .term_at = moe->term_at + first,
                                                          .y_row   = moe->term_y,
                                                          .y       = moe->tile_y,
                                                          .items   = moe->sent});
}

/* The tile has run; it is empty then. */
static bt_status empty_tile(bt_moe *moe)
{
    bt_status st = sum_items(moe, 0, moe->n_items);

    moe->n_terms = moe->n_items = 0;
    moe->tile_ran               = false;
    return st;
}

/* The layer's last tile stays: what it has of this rank's rows is combined where it lies. */
static bt_status keep_tile(bt_moe *moe)
{
    uint32_t own = moe->row_at[moe->self], end = moe->row_at[moe->self + 1],
             top_k  = moe->cfg.gate.top_k;
    uint32_t  first = 0, last;
    bt_status st    = BT_OK;

    while (first < moe->n_items && moe->item_dst[first] < moe->first_item[own])
        first++;
    for (last = first; last < moe->n_items && moe->item_dst[last] < moe->first_item[end];)
        last++;
    BT_TRY(sum_items(moe, 0, first));
    BT_TRY(sum_items(moe, last, moe->n_items));
    for (uint32_t t = 0; t < moe->n_terms; t++) {
        uint32_t row = moe->term_row[t];

        if (row >= own && row < end)
            moe->items[(size_t)(row - own) * top_k + moe->term_place[t]] =
                moe->tile_y + (size_t)moe->term_y[t] * moe->cfg.hidden;
    }
out:
    return st;
}

static void add_to_tile(bt_moe *moe, uint32_t row, const uint16_t *experts)
{
    const bt_moe_config *c    = &moe->cfg;
    uint32_t             item = moe->first_item[row];

    for (uint32_t j = 0; j < c->gate.top_k; j++) {
        uint32_t t = moe->n_terms;

        if (moe->placement->owner[experts[j]] != moe->self) continue;
        if (begins_item(moe, experts, j)) {
            moe->term_at[moe->n_items]    = t;
            moe->item_dst[moe->n_items++] = item++;
        }
        moe->term_row[t]    = row;
        moe->term_place[t]  = (uint16_t)j;
        moe->term_local[t]  = moe->local_index[experts[j]];
        moe->term_weight[t] = bt_entry_weight(experts, c->gate.top_k, j);
        moe->n_terms++;
    }
}

/* This rank's experts on every row that asks for them, one role after the other. */
bt_status bt_moe_listed_experts(bt_moe *moe, const bt_moe_weights *w, const bt_step_rows *rows,
                                const bt_wait *wait)
{
    uint32_t  per_row = bt_min_u32(moe->cfg.gate.top_k, moe->n_local);
    bt_status st      = BT_OK;

    BT_TRY(bt_group_settle(moe->group, wait)); /* before the host looks at the rows */
    BT_TRY(number_items(moe));
    moe->n_terms = moe->n_items = 0;
    moe->tile_ran               = false;
    for (int role = 0; role < BT_N_ROLES && moe->n_local != 0; role++) {
        for (uint32_t q = 0; q < moe->n_ranks; q++) {
            uint32_t first = moe->row_at[q];

            for (int before = 0; before < role; before++)
                first += rows->n_rows[q][before];
            for (uint32_t r = first; r < first + rows->n_rows[q][role]; r++) {
                if (moe->n_terms + per_row > moe->tile_terms)
                    BT_TRY(run_tile(moe, w, (bt_role)role));
                if (moe->tile_ran) BT_TRY(empty_tile(moe));
                add_to_tile(moe, r, bt_moe_entries(moe, r));
            }
        }
        BT_TRY(run_tile(moe, w, (bt_role)role));
    }
    BT_TRY(keep_tile(moe));
out:
    return st;
}

/* Items back to the rows' owners; moe->items[] then says where each expert's output lies, unless
 * keep_tile() has said so. */
static bt_status collect(bt_moe *moe, const bt_wait *wait)
{
    size_t   item_bytes = moe->cfg.hidden * sizeof(bt_bf16), at = 0;
    uint32_t top_k = moe->cfg.gate.top_k, self = moe->self;
    uint32_t n_entries = bt_moe_own_rows(moe) * top_k;

    memset(moe->n_came, 0, moe->n_ranks * sizeof(*moe->n_came));
    for (uint32_t i = 0; i < n_entries; i++)
        moe->n_came[moe->placement->owner[moe->experts[i]]] +=
            begins_item(moe, moe->experts + i / top_k * top_k, i % top_k);
    for (uint32_t q = 0; q < moe->n_ranks; q++) {
        uint32_t first     = moe->first_item[moe->row_at[q]];
        uint32_t end       = moe->first_item[moe->row_at[q + 1]];
        bool     other     = q != self;
        moe->send_at[q]    = first * item_bytes;
        moe->send_bytes[q] = other ? (end - first) * item_bytes : 0;
        moe->recv_at[q]    = at;
        moe->recv_bytes[q] = other ? moe->n_came[q] * item_bytes : 0;
        at += moe->recv_bytes[q];
        moe->n_came[q] = 0;
    }
    for (uint32_t i = 0; i < n_entries; i++) {
        uint32_t       q    = moe->placement->owner[moe->experts[i]];
        const bt_bf16 *from = q == self ? moe->sent + moe->send_at[q] / sizeof(bt_bf16)
                                        : moe->came + moe->recv_at[q] / sizeof(bt_bf16);

        if (!begins_item(moe, moe->experts + i / top_k * top_k, i % top_k)) continue;
        from += (size_t)moe->n_came[q]++ * moe->cfg.hidden;
        if (moe->items[i] == NULL) moe->items[i] = from;
    }
    return bt_moe_exchange(moe, "moe combine", moe->sent, moe->came, wait);
}

bt_status bt_moe_listed_combine(bt_moe *moe, bt_bf16 *y, uint16_t *chosen_out, const bt_wait *wait)
{
    const bt_moe_config *c      = &moe->cfg;
    uint32_t             n_rows = bt_moe_own_rows(moe);
    bt_status            st     = BT_OK;
    bt_moe_combine       params = {.n_rows     = n_rows,
                                   .hidden     = c->hidden,
                                   .top_k      = c->gate.top_k,
                                   .block_size = bt_block_size(moe->placement),
                                   .experts    = moe->experts,
                                   .items      = moe->items,
                                   .shared     = moe->shared_y,
                                   .y          = y};

    BT_TRY(collect(moe, wait));
    BT_TRY(moe->ops->listed->combine(moe->dev, &params));
    if (chosen_out != NULL)
        memcpy(chosen_out, moe->experts, (size_t)n_rows * c->gate.top_k * sizeof(*chosen_out));
out:
    return st;
}
