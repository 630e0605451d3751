/* moe/create.c - takes and gives back everything that an expert layer needs: a step allocates
 * nothing. */
#include "core/alloc.h"
#include "moe/state.h"
#include "parallel/carrier.h"

/* Terms (row, expert) that go through the experts together, at least, and bytes of their results:
 * larger steps are cut into tiles of rows, which bounds the workspace and changes no bit, but each
 * of them reads the experts' weights.  Where routes stay on the device nobody knows how many terms
 * of a tile's rows are this rank's, and room is made for all. */
enum { TILE_TERMS = 4096, TILE_BYTES = 64 << 20, ROUTED_TILE_BYTES = 1 << 30 };

static size_t routed_term_bytes(const bt_moe_config *cfg)
{
    return cfg->hidden * sizeof(float) + cfg->expert_dim * sizeof(bt_bf16);
}

static uint32_t most_terms(const bt_moe_ops *ops, const bt_moe_config *cfg)
{
    size_t n = ops->routed != NULL ? ROUTED_TILE_BYTES / routed_term_bytes(cfg)
                                   : TILE_BYTES / (cfg->hidden * sizeof(bt_bf16));

    return n < TILE_TERMS ? TILE_TERMS : (uint32_t)n;
}

/* Rows of a tile, and terms that the host makes room for. */
static void size_tile(bt_moe *moe, size_t all_rows)
{
    uint32_t per_row = bt_min_u32(moe->cfg.gate.top_k, moe->n_local);
    uint32_t most    = most_terms(moe->ops, &moe->cfg);
    size_t   terms   = all_rows * per_row;

    moe->tile_rows  = bt_min_u32((uint32_t)all_rows, most / (per_row == 0 ? 1 : per_row));
    moe->tile_terms = terms < most ? (uint32_t)terms : most;
    if (moe->ops->routed != NULL) moe->tile_terms = 0; /* the back end has its own */
}

static bt_status check_config(const bt_moe_config *cfg, const bt_group *group,
                              const bt_placement *placement, uint32_t max_rows)
{
    bt_status st = BT_OK;

    BT_TRY(bt_gate_check(&cfg->gate));
    BT_REQUIRE(cfg->hidden != 0 && cfg->expert_dim != 0 && max_rows != 0, BT_ERR_INVALID_ARG,
               "moe: hidden %u, expert width %u, %u rows: each must be above 0", cfg->hidden,
               cfg->expert_dim, max_rows);
    BT_REQUIRE(placement->n_experts == cfg->gate.n_experts &&
                   placement->n_ranks == bt_group_size(group),
               BT_ERR_INVALID_ARG, "moe: placement of %u experts on %u ranks, expected %u on %u",
               placement->n_experts, placement->n_ranks, cfg->gate.n_experts, bt_group_size(group));
out:
    return st;
}

static bt_status take(bt_moe *moe, size_t n, size_t elem_bytes, void *ptr_out)
{
    return bt_device_alloc_array(moe->dev, n, elem_bytes, &moe->bytes, ptr_out);
}

/* Which experts are here, which blocks are whole. */
static bt_status map_experts(bt_moe *moe)
{
    const bt_placement *p  = moe->placement;
    bt_status           st = BT_OK;

    moe->local_expert = bt_calloc(p->n_experts, sizeof(*moe->local_expert));
    moe->local_index  = bt_calloc(p->n_experts, sizeof(*moe->local_index));
    moe->whole        = bt_calloc(p->n_blocks, sizeof(*moe->whole));
    moe->expert_rows  = bt_calloc(p->n_experts, sizeof(*moe->expert_rows));
    BT_REQUIRE(moe->local_expert != NULL && moe->local_index != NULL && moe->whole != NULL &&
                   moe->expert_rows != NULL,
               BT_ERR_NO_MEMORY, "moe map of %u experts", p->n_experts);
    for (uint32_t b = 0; b < p->n_blocks; b++)
        moe->whole[b] = bt_placement_block_owner(p, b) >= 0;
    for (uint32_t e = 0; e < p->n_experts; e++) {
        moe->local_index[e] = UINT16_MAX;
        if (p->owner[e] != moe->self) continue;
        moe->local_index[e]               = (uint16_t)moe->n_local;
        moe->local_expert[moe->n_local++] = (uint16_t)e;
    }
out:
    return st;
}

/* How many items a row can ask of a rank, at most. */
static uint32_t items_of(const bt_placement *p, uint32_t top_k, uint32_t rank)
{
    uint32_t n = 0, size = bt_block_size(p);

    for (uint32_t b = 0; b < p->n_blocks; b++) {
        int owner = bt_placement_block_owner(p, b);

        n += owner == (int)rank;
        for (uint32_t e = b * size; owner < 0 && e < (b + 1) * size; e++)
            n += p->owner[e] == rank;
    }
    return bt_min_u32(n, top_k);
}

/* What a row gets from all others: where only what was asked for travels, no more than top_k. */
static uint32_t items_that_come(const bt_moe_ops *ops, const bt_placement *p, uint32_t top_k,
                                uint32_t self)
{
    uint32_t n = 0;

    for (uint32_t q = 0; q < p->n_ranks; q++)
        if (q != self) n += items_of(p, top_k, q);
    return ops->listed != NULL ? bt_min_u32(n, top_k) : n;
}

static bt_status take_device(bt_moe *moe, size_t all_rows)
{
    const bt_moe_config *c     = &moe->cfg;
    size_t               terms = moe->tile_terms, rows = moe->max_rows; /* no terms where routed */
    uint32_t             k    = c->gate.top_k;
    size_t               sent = items_of(moe->placement, k, moe->self);
    size_t               came = items_that_come(moe->ops, moe->placement, k, moe->self);
    bt_status            st   = BT_OK;

    BT_TRY(take(moe, rows * c->gate.n_experts, sizeof(float), &moe->logits));
    BT_TRY(take(moe, all_rows * moe->wire_elems, sizeof(bt_bf16), &moe->wire));
    BT_TRY(take(moe, terms * moe->wire_elems, sizeof(bt_bf16), &moe->tile_x));
    BT_TRY(take(moe, terms * 2 * c->expert_dim, sizeof(bt_bf16), &moe->tile_h));
    BT_TRY(take(moe, terms * c->expert_dim, sizeof(bt_bf16), &moe->tile_a));
    BT_TRY(take(moe, terms * c->hidden, sizeof(bt_bf16), &moe->tile_y));
    BT_TRY(take(moe, all_rows * sent * c->hidden, sizeof(bt_bf16), &moe->sent));
    BT_TRY(take(moe, rows * came * c->hidden, sizeof(bt_bf16), &moe->came));
    BT_TRY(take(moe, rows * 2 * c->shared_dim, sizeof(bt_bf16), &moe->shared_h));
    BT_TRY(take(moe, rows * c->shared_dim, sizeof(bt_bf16), &moe->shared_a));
    if (c->shared_dim != 0) BT_TRY(take(moe, rows * c->hidden, sizeof(float), &moe->shared_y));
    BT_TRY(take(moe, moe->ops->scratch_bytes(moe->max_rows, k), 1, &moe->scratch));
out:
    return st;
}

static bt_status take_host(bt_moe *moe, size_t all_rows)
{
    size_t    ranks = moe->n_ranks, rows = moe->max_rows, terms = moe->tile_terms;
    uint32_t  k  = moe->cfg.gate.top_k;
    bt_status st = BT_OK;

    moe->row_at        = bt_calloc(ranks + 1, sizeof(*moe->row_at));
    moe->all_at        = bt_calloc(ranks + 1, sizeof(*moe->all_at));
    moe->first_item    = bt_calloc(all_rows + 1, sizeof(*moe->first_item));
    moe->n_came        = bt_calloc(ranks, sizeof(*moe->n_came));
    moe->entries       = bt_calloc(all_rows * 3 * k, sizeof(*moe->entries));
    moe->experts       = bt_calloc(rows * k, sizeof(*moe->experts));
    moe->items         = bt_calloc(rows * k, sizeof(*moe->items));
    moe->send_at       = bt_calloc(ranks, sizeof(*moe->send_at));
    moe->send_bytes    = bt_calloc(ranks, sizeof(*moe->send_bytes));
    moe->recv_at       = bt_calloc(ranks, sizeof(*moe->recv_at));
    moe->recv_bytes    = bt_calloc(ranks, sizeof(*moe->recv_bytes));
    moe->ffns          = bt_calloc(moe->n_local, sizeof(*moe->ffns));
    moe->item_dst      = bt_calloc(terms, sizeof(*moe->item_dst));
    moe->term_at       = bt_calloc(terms + 1, sizeof(*moe->term_at));
    moe->term_row      = bt_calloc(terms, sizeof(*moe->term_row));
    moe->term_y        = bt_calloc(terms, sizeof(*moe->term_y));
    moe->gather        = bt_calloc(terms, sizeof(*moe->gather));
    moe->term_local    = bt_calloc(terms, sizeof(*moe->term_local));
    moe->term_place    = bt_calloc(terms, sizeof(*moe->term_place));
    moe->term_weight   = bt_calloc(terms, sizeof(*moe->term_weight));
    moe->sorted_weight = bt_calloc(terms, sizeof(*moe->sorted_weight));
    moe->local_at      = bt_calloc((size_t)moe->n_local + 1, sizeof(*moe->local_at));
    BT_REQUIRE(moe->row_at != NULL && moe->all_at != NULL && moe->first_item != NULL &&
                   moe->n_came != NULL && moe->entries != NULL && moe->experts != NULL &&
                   moe->items != NULL && moe->send_at != NULL && moe->send_bytes != NULL &&
                   moe->recv_at != NULL && moe->recv_bytes != NULL && moe->ffns != NULL,
               BT_ERR_NO_MEMORY, "moe tables of %zu rows", all_rows);
    BT_REQUIRE(moe->item_dst != NULL && moe->term_at != NULL && moe->term_row != NULL &&
                   moe->term_y != NULL && moe->gather != NULL && moe->term_local != NULL &&
                   moe->term_weight != NULL && moe->term_place != NULL &&
                   moe->sorted_weight != NULL && moe->local_at != NULL,
               BT_ERR_NO_MEMORY, "moe tile of %zu terms", terms);
out:
    return st;
}

/* What the routed path knows of every rank. */
static bt_status take_routed(bt_moe *moe)
{
    bt_status st = BT_OK;

    moe->items_of   = bt_calloc(moe->n_ranks, sizeof(*moe->items_of));
    moe->local_rows = bt_calloc(moe->n_local, sizeof(*moe->local_rows));
    moe->gate_up    = bt_calloc(moe->n_local, sizeof(bt_linear *));
    moe->down       = bt_calloc(moe->n_local, sizeof(bt_linear *));
    BT_REQUIRE(moe->items_of != NULL && moe->local_rows != NULL && moe->gate_up != NULL &&
                   moe->down != NULL,
               BT_ERR_NO_MEMORY, "moe lists of %u experts", moe->n_local);
    for (uint32_t q = 0; q < moe->n_ranks; q++)
        moe->items_of[q] = items_of(moe->placement, moe->cfg.gate.top_k, q);
    BT_TRY(bt_moe_routed_create(moe));
out:
    return st;
}

/* Of the rank's memory, as bt_group_reserve() has them. */
typedef struct {
    size_t out_bytes, in_bytes;
} room;

/* Dispatch has the same rows at the same place on both ends. */
static room largest_exchange(const bt_moe_ops *ops, const bt_placement *p, const bt_moe_config *cfg,
                             uint32_t self, uint32_t max_rows)
{
    size_t item = cfg->hidden * sizeof(bt_bf16), all_rows = (size_t)p->n_ranks * max_rows;
    size_t wire = all_rows * bt_wire_elems(cfg->hidden, cfg->gate.top_k) * sizeof(bt_bf16);
    size_t sent = all_rows * items_of(p, cfg->gate.top_k, self) * item;
    size_t came = max_rows * items_that_come(ops, p, cfg->gate.top_k, self) * item;

    return (room){sent > wire ? sent : wire, came > wire ? came : wire};
}

static const bt_moe_ops *find_back_end(const bt_device *dev)
{
    if (strcmp(bt_moe_cpu_ops.device, dev->ops->name) == 0) return &bt_moe_cpu_ops;
    return bt_device_symbol(dev, BT_MOE_MODULE_SYMBOL);
}

uint64_t bt_moe_tile_bytes(const bt_device *dev, const bt_moe_config *cfg, uint32_t n_ranks,
                           uint32_t max_rows)
{
    const bt_moe_ops *ops   = find_back_end(dev);
    uint64_t          terms = (uint64_t)n_ranks * max_rows * cfg->gate.top_k, most;

    if (ops == NULL || ops->routed == NULL || cfg->gate.n_experts == 0) return 0;
    most = most_terms(ops, cfg);
    return (terms < most ? terms : most) * routed_term_bytes(cfg);
}

uint64_t bt_moe_exchange_bytes(const bt_device *dev, const bt_placement *placement,
                               const bt_moe_config *cfg, uint32_t self, uint32_t max_rows)
{
    const bt_moe_ops *ops = find_back_end(dev);
    room              r;

    if (ops == NULL) return 0;
    r = largest_exchange(ops, placement, cfg, self, max_rows);
    return (uint64_t)r.out_bytes + r.in_bytes;
}

bt_status bt_moe_create(bt_device *dev, bt_group *group, const bt_placement *placement,
                        const bt_moe_config *cfg, uint32_t max_rows, bt_moe **moe_out)
{
    bt_status         st  = BT_OK;
    bt_moe           *moe = NULL;
    const bt_moe_ops *ops = find_back_end(dev);
    room              exchange;
    size_t            all_rows;

    BT_REQUIRE(ops != NULL, BT_ERR_UNSUPPORTED, "moe: no implementation for device \"%s\"",
               dev->ops->name);
    BT_REQUIRE(
        bt_group_carries(group, dev), BT_ERR_UNSUPPORTED,
        "moe: %u ranks on device \"%s\": its memory does not travel by MPI, and the group has "
        "no carrier",
        bt_group_size(group), dev->ops->name);
    BT_TRY(check_config(cfg, group, placement, max_rows));
    moe = bt_calloc(1, sizeof(*moe));
    BT_REQUIRE(moe != NULL, BT_ERR_NO_MEMORY, "moe");
    moe->dev        = dev;
    moe->group      = group;
    moe->placement  = placement;
    moe->ops        = ops;
    moe->cfg        = *cfg;
    moe->n_ranks    = bt_group_size(group);
    moe->self       = bt_group_self(group);
    moe->max_rows   = max_rows;
    moe->wire_elems = bt_wire_elems(cfg->hidden, cfg->gate.top_k);
    all_rows        = (size_t)moe->n_ranks * max_rows;
    BT_REQUIRE(all_rows < UINT32_MAX / BT_MAX_TOP_K, BT_ERR_INVALID_ARG,
               "moe: %u ranks of %u rows: expected less than %u rows in all", moe->n_ranks,
               max_rows, UINT32_MAX / BT_MAX_TOP_K);
    BT_TRY(map_experts(moe));
    size_tile(moe, all_rows);
    BT_TRY(take_device(moe, all_rows));
    BT_TRY(take_host(moe, all_rows));
    if (ops->routed != NULL) BT_TRY(take_routed(moe));
    exchange = largest_exchange(ops, placement, cfg, moe->self, max_rows);
    BT_TRY(bt_group_reserve(group, exchange.out_bytes, exchange.in_bytes));
    *moe_out = moe;
    moe      = NULL; /* handed over */
out:
    bt_moe_destroy(moe);
    return st;
}

void bt_moe_destroy(bt_moe *moe)
{
    if (moe == NULL) return;
    if (moe->routed != NULL) moe->ops->routed->destroy(moe->routed);
    bt_device_free_host(moe->dev, moe->bad_row);
    void *device[] = {moe->logits,   moe->wire,     moe->tile_x,   moe->tile_h,
                      moe->tile_a,   moe->tile_y,   moe->sent,     moe->came,
                      moe->shared_h, moe->shared_a, moe->shared_y, moe->scratch};
    void *host[]   = {moe->local_expert,  moe->local_index,   moe->whole,      moe->row_at,
                      moe->expert_rows,   moe->first_item,    moe->n_came,     moe->experts,
                      (void *)moe->items, moe->entries,       moe->send_at,    moe->send_bytes,
                      moe->recv_at,       moe->recv_bytes,    moe->ffns,       moe->item_dst,
                      moe->term_at,       moe->term_row,      moe->term_y,     moe->gather,
                      moe->term_local,    moe->term_weight,   moe->local_at,   moe->items_of,
                      moe->local_rows,    moe->sorted_weight, moe->term_place, (void *)moe->gate_up,
                      (void *)moe->down,  moe->noted_at,      moe->all_at};

    for (size_t i = 0; i < sizeof(device) / sizeof(device[0]); i++)
        bt_device_free(moe->dev, device[i]);
    for (size_t i = 0; i < sizeof(host) / sizeof(host[0]); i++)
        bt_free(host[i]);
    bt_free(moe);
}

size_t bt_moe_workspace_bytes(const bt_moe *moe) { return moe->bytes; }
