/* attention/cpu/absorbed.c - the absorbed form: queries go to the latents' space, all heads attend
 * to the pages as they lie, and the weighted latents come back through W_UV.
 *
 * Rows are taken in blocks of BT_ABSORBED_ROWS.  Lanes of a span are (row, head) pairs, cut into
 * tiles; a tile against one part of the context is an item, the unit of work: one fused pass over
 * the part's pages (scores, softmax, weighted sum).  An item's part has BT_ATTN_SPLIT_TOKENS
 * positions, or fewer, where the softmax restarts more often, so that all threads have as much to
 * do.  Items run in waves, tile by tile and parts ascending, as many as there are slots for the
 * parts of tiles that have several; after a wave each tile's parts merge as mla.h says, and the
 * tile that goes on in the next wave is carried over.  Neither tiles nor items nor waves change a
 * bit.  Short contexts go another way, absorbed_short.c. */
#include <stdatomic.h>

#include "attention/cpu/attn_cpu.h"

enum {
    MIN_COLS          = 64, /* of a head's product; a multiple of 32 */
    CHUNKS_PER_MEMBER = 8,
    FEW_ROWS          = 16, /* not worth making into tiles */
    MERGE_LANES       = 2,  /* that merge together */
    MAX_OWN           = 64  /* chunks that threads have as their own */
};

/* Chunks of a run of the pool that follow each other in memory, in equal shares for the threads:
 * each takes its own first, then those that nobody has taken. */
typedef struct {
    uint32_t         n_chunks, n_members;
    _Atomic uint64_t taken; /* bit i: chunk i, of at most MAX_OWN */
} shares;

typedef struct {
    bt_attn_cpu        *a;
    const bt_attn_call *call;
    uint32_t            first_row, n_rows; /* of the row block, in the step */
    bt_absorbed_plan    plan;
    uint32_t            n_items, n_groups, n_used; /* of the wave; n_used: slots */
    bool                merges_late;               /* in latent_to_value() */
    shares              own;                       /* items */
} absorbed_job;

static uint32_t share_start(const shares *own, uint32_t member)
{
    return (uint32_t)((uint64_t)own->n_chunks * member / own->n_members);
}

/* Which chunk the member goes through; called once for each. */
static uint32_t take_own(shares *own, uint32_t chunk, uint32_t member)
{
    if (own->n_chunks > MAX_OWN) return chunk;
    chunk = share_start(own, member);
    while ((atomic_fetch_or(&own->taken, (uint64_t)1 << chunk) >> chunk & 1) != 0)
        chunk = chunk + 1 < own->n_chunks ? chunk + 1 : 0;
    return chunk;
}

/* The chunk that the member probably takes after this one; n_chunks: none. */
static uint32_t probably_next(const shares *own, uint32_t chunk, uint32_t member)
{
    uint32_t next = own->n_chunks > MAX_OWN ? chunk + own->n_members : chunk + 1;
    uint32_t end  = own->n_chunks > MAX_OWN ? own->n_chunks : share_start(own, member + 1);

    return next < end ? next : own->n_chunks;
}

static uint32_t cuts_of(uint32_t n, uint32_t cols) { return (n + cols - 1) / cols; }

static bt_tile tile_of(const absorbed_job *job, const bt_absorbed_item *item)
{
    const bt_mla_config *cfg = &job->a->cfg;

    return (bt_tile){.kernels       = job->a->kernels,
                     .role          = item->span->role,
                     .scale         = cfg->softmax_scale,
                     .v_dim         = cfg->kv_lora_rank,
                     .block_keys    = BT_BLOCK_TOKENS,
                     .split         = job->a->split,
                     .n_lanes       = item->n_lanes,
                     .lane0         = item->lane0,
                     .lanes_per_pos = cfg->n_heads,
                     .pos0          = item->pos0};
}

/* The item's first lane, counted from the row block's. */
static size_t lane_in_block(const absorbed_job *job, const bt_absorbed_item *item)
{
    return (size_t)(item->row - job->first_row) * job->a->cfg.n_heads + item->lane0;
}

static void finish(const absorbed_job *job, const bt_absorbed_item *item, const bt_tile *t,
                   const bt_tile_state *state)
{
    uint32_t c = job->a->cfg.kv_lora_rank;

    bt_tile_finish(t, state, job->a->ol + lane_in_block(job, item) * c, c);
}

/* Positions of the item's part. */
static bt_absorbed_part part_of(const absorbed_job *job, const bt_absorbed_item *item)
{
    return (bt_absorbed_part){item->span, item->start,
                              bt_min_u32(item->end, item->start + job->plan.part_size),
                              job->plan.part_size};
}

static bt_absorbed_lanes lanes_of(const absorbed_job *job, const bt_absorbed_item *item)
{
    const bt_mla_config *cfg  = &job->a->cfg;
    size_t               lane = (size_t)item->row * cfg->n_heads + item->lane0;
    size_t               ld   = cfg->qk_nope_dim + cfg->qk_rope_dim;

    return (bt_absorbed_lanes){.part   = part_of(job, item),
                               .tile   = tile_of(job, item),
                               .latent = job->a->ql + lane_in_block(job, item) * cfg->kv_lora_rank,
                               .ld_latent = cfg->kv_lora_rank,
                               .rope      = job->call->q + lane * ld + cfg->qk_nope_dim,
                               .ld_rope   = ld};
}

/* y_h = W_h x_h of every head, for the rows of a block. */
typedef struct {
    const absorbed_job *job;
    bt_linear *const   *w;
    const bt_bf16      *x;
    bt_bf16            *y;
    size_t              ld_x, step_x, ld_y, step_y; /* from row to row, and from head to head */
    uint32_t            cols, cuts;                 /* of a chunk; of a head */
    bool                merges;                     /* x first */
    shares              own;                        /* chunks */
} heads_job;

/* Columns are cut until there are enough chunks for the threads to end together. */
static void cut_heads(heads_job *heads)
{
    uint32_t n = bt_linear_n(heads->w[0]), n_heads = heads->job->a->cfg.n_heads;

    heads->cols = bt_cpu_pad(n, MIN_COLS);
    while (n_heads * cuts_of(n, heads->cols) < CHUNKS_PER_MEMBER * heads->job->a->n_members &&
           heads->cols > MIN_COLS && !heads->merges)
        heads->cols = bt_cpu_pad(heads->cols / 2, MIN_COLS);
    heads->cuts = cuts_of(n, heads->cols);
    heads->own = (shares){.n_chunks = n_heads * heads->cuts, .n_members = heads->job->a->n_members};
}

static heads_job latent_to_value(const absorbed_job *job)
{
    const bt_attn_cpu   *a     = job->a;
    const bt_mla_config *cfg   = &a->cfg;
    size_t               ld    = (size_t)cfg->n_heads * cfg->v_dim;
    heads_job            heads = {.job    = job,
                                  .w      = job->call->w->uv,
                                  .x      = a->ol,
                                  .ld_x   = (size_t)cfg->n_heads * cfg->kv_lora_rank,
                                  .step_x = cfg->kv_lora_rank,
                                  .y      = job->call->out + job->first_row * ld,
                                  .ld_y   = ld,
                                  .step_y = cfg->v_dim,
                                  .merges = job->merges_late};

    cut_heads(&heads);
    return heads;
}

/* From the chunk's first column to its head's last. */
static bt_absorbed_then columns(const heads_job *heads, uint32_t chunk)
{
    const bt_linear *w   = heads->w[chunk / heads->cuts];
    uint32_t         col = chunk % heads->cuts * heads->cols;

    return (bt_absorbed_then){bt_linear_packed(w) + bt_cpu_packed_elems(col, bt_linear_k(w)),
                              bt_cpu_packed_elems(bt_linear_n(w) - col, bt_linear_k(w))};
}

/* What a member reads of W_UV first. */
static bt_absorbed_then first_values(const absorbed_job *job, uint32_t member)
{
    heads_job heads = latent_to_value(job);

    if (job->n_rows > FEW_ROWS || heads.own.n_chunks > MAX_OWN) return (bt_absorbed_then){NULL, 0};
    return columns(&heads, share_start(&heads.own, member));
}

/* One item of a wave: its part of the softmax goes to its slot, or, when it is the tile's only one,
 * through the member's own buffer, which stays in its cache, to the end. */
static void item_task(void *ctx, uint32_t chunk, uint32_t member)
{
    absorbed_job           *job   = ctx;
    const bt_attn_cpu      *a     = job->a;
    bt_attn_member         *m     = &a->members[member];
    uint32_t                i     = take_own(&job->own, chunk, member);
    uint32_t                next  = probably_next(&job->own, i, member);
    const bt_absorbed_item *item  = &a->items[i];
    bt_absorbed_lanes       lanes = lanes_of(job, item);
    bt_tile_state           state = bt_tile_state_at(item->alone ? m->state : a->slot[item->slot]);

    lanes.packed    = m->has_packed && m->packed_row == item->row && m->packed_lane0 == item->lane0;
    m->packed_row   = item->row;
    m->packed_lane0 = item->lane0;
    m->has_packed   = true;
    if (next < job->n_items)
        lanes.next = part_of(job, &a->items[next]);
    else
        lanes.then = first_values(job, member);
    bt_absorbed_pass(a, job->call, &lanes, m, &state);
    if (item->alone) finish(job, item, &lanes.tile, &state);
}

/* Chunks that the lanes of a tile merge in. */
static uint32_t merges_of(const absorbed_job *job)
{
    return (job->plan.tile_lanes + MERGE_LANES - 1) / MERGE_LANES;
}

/* The state from one of a slot's lanes on. */
static bt_tile_state slot_lanes(const absorbed_job *job, uint32_t slot, uint32_t lane)
{
    bt_tile_state s = bt_tile_state_at(job->a->slot[slot]);

    return (bt_tile_state){s.max + lane, s.sum + lane,
                           s.o + lane * bt_tile_ld(job->a->cfg.kv_lora_rank)};
}

/* The first of these items' slots = all of them, which are of the same BT_ATTN_SPLIT_TOKENS. */
static void merge_halves(const absorbed_job *job, const bt_tile *t, uint32_t first, uint32_t end,
                         uint32_t lane)
{
    const bt_absorbed_item *items = job->a->items;

    for (uint32_t step = 1; step < end - first; step *= 2)
        for (uint32_t i = first; i + step < end; i += 2 * step) {
            bt_tile_state into  = slot_lanes(job, items[i].slot, lane);
            bt_tile_state state = slot_lanes(job, items[i + step].slot, lane);

            bt_tile_merge(t, items[i + step].start, &state, &into);
        }
}

/* Some lanes of a tile of a wave: its parts, in the slots from the end of the tile before to its
 * own end, merge into the first one, or into the carry that holds the tile's earlier parts. */
static void merge_lanes(const absorbed_job *job, uint32_t group, uint32_t lane, uint32_t n_lanes)
{
    const bt_attn_cpu *a       = job->a;
    uint32_t           first   = group == 0 ? 0 : a->group_ends[group - 1];
    uint32_t           end     = a->group_ends[group];
    bt_absorbed_item   item    = a->items[first];
    bool               goes_on = item.start != 0;
    bt_tile_state      into;
    bt_tile            t;

    if (item.alone || lane >= item.n_lanes) return; /* it has finished; or has fewer lanes */
    item.n_lanes = bt_min_u32(item.n_lanes - lane, n_lanes);
    item.lane0 += lane;
    t    = tile_of(job, &item);
    into = slot_lanes(job, goes_on ? a->n_slots : item.slot, lane);
    for (uint32_t i = first, next; i < end; i = next) {
        bt_tile_state state = slot_lanes(job, a->items[i].slot, lane);

        for (next = i + 1; next < end && a->items[next].start % BT_ATTN_SPLIT_TOKENS != 0;)
            next++;
        merge_halves(job, &t, i, next, lane);
        if (goes_on || i != first) bt_tile_merge(&t, a->items[i].start, &state, &into);
    }
    if (part_of(job, &a->items[end - 1]).end == item.end) finish(job, &item, &t, &into);
}

static void merge_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const absorbed_job *job = ctx;

    (void)member;
    merge_lanes(job, chunk / merges_of(job), chunk % merges_of(job) * MERGE_LANES, MERGE_LANES);
}

static void run_wave(absorbed_job *job)
{
    bt_attn_cpu *a = job->a;
    uint32_t     last_first;
    bool         merges = false;

    if (job->n_items == 0) return;
    job->n_groups = 0;
    for (uint32_t i = 0; i < job->n_items; i++) {
        merges = merges || !a->items[i].alone;
        if (i + 1 == job->n_items || a->items[i + 1].start == 0)
            a->group_ends[job->n_groups++] = i + 1;
    }
    job->own = (shares){.n_chunks = job->n_items, .n_members = a->n_members};
    bt_cpu_pool_run(a->pool, job->n_items, item_task, job);
    if (job->merges_late) return;
    if (merges) bt_cpu_pool_run(a->pool, job->n_groups * merges_of(job), merge_task, job);

    last_first = job->n_groups == 1 ? 0 : a->group_ends[job->n_groups - 2];
    /* The last tile may go on; with an earlier part here the carry already holds what there is. */
    if (!a->items[last_first].alone && a->items[last_first].start == 0) {
        uint32_t slot       = a->items[last_first].slot;
        float   *carry      = a->slot[a->n_slots];
        a->slot[a->n_slots] = a->slot[slot];
        a->slot[slot]       = carry;
    }
    job->n_items = job->n_used = 0;
}

/* Whether a wave has room for a tile's items of the next BT_ATTN_SPLIT_TOKENS positions. */
static bool has_room(const absorbed_job *job, const bt_absorbed_item *item)
{
    uint32_t n =
        cuts_of(bt_min_u32(item->end - item->start, BT_ATTN_SPLIT_TOKENS), job->plan.part_size);

    return job->n_items + n <= job->a->max_items &&
           (item->alone || job->n_used + n <= job->a->n_slots);
}

/* Lanes of the tile that begins like the item, of n_lanes that are left: their contexts are all
 * short or all long. */
static uint32_t cut_tile(const absorbed_job *job, const bt_absorbed_item *item, uint32_t n_lanes)
{
    bool     few     = job->a->split < BT_ATTN_SPLIT_TOKENS;
    uint32_t n_short = few && item->pos0 < BT_ATTN_FEW_TOKENS ? BT_ATTN_FEW_TOKENS - item->pos0 : 0;

    n_short *= job->a->cfg.n_heads;
    n_lanes = bt_min_u32(n_lanes, job->plan.tile_lanes);
    return item->lane0 < n_short ? bt_min_u32(n_lanes, n_short - item->lane0) : n_lanes;
}

/* A tile's items; those that the wave has no room for begin another one. */
static void add_items(absorbed_job *job, bt_absorbed_item item)
{
    bt_tile t = tile_of(job, &item);

    item.end   = bt_tile_last_pos(&t) + 1;
    item.alone = item.end <= job->plan.part_size;
    for (; item.start < item.end; item.start += job->plan.part_size) {
        if (item.start % BT_ATTN_SPLIT_TOKENS == 0 && !has_room(job, &item)) run_wave(job);
        if (!item.alone) item.slot = job->n_used++;
        job->a->items[job->n_items++] = item;
    }
}

/* Whether each head's parts may merge where the head goes on through W_UV: with the only tile of
 * the only wave, and as many heads for each thread. */
static bool merges_late(const absorbed_job *job)
{
    const bt_attn_cpu *a = job->a;

    return job->n_rows == 1 && a->cfg.n_heads % a->n_members == 0 && job->n_items != 0 &&
           a->items[0].start == 0 && !a->items[0].alone && a->items[0].n_lanes == a->cfg.n_heads;
}

static void attend_block(absorbed_job *job)
{
    bt_attn_cpu *a = job->a;

    for (uint32_t i = 0; i < a->n_members; i++)
        a->members[i].has_packed = false;
    job->n_items     = 0;
    job->n_used      = 0;
    job->merges_late = false;
    job->plan        = bt_absorbed_plan_for(a, job->call, job->first_row, job->n_rows);
    for (uint32_t i = 0; i < job->call->n_spans; i++) {
        const bt_span *span = &job->call->spans[i];
        uint32_t       row  = 0;
        uint32_t       n_lanes =
            bt_absorbed_rows(span, job->first_row, job->n_rows, &row) * a->cfg.n_heads;

        for (uint32_t lane0 = 0, n; lane0 < n_lanes; lane0 += n) {
            bt_absorbed_item item = {.span  = span,
                                     .row   = row,
                                     .pos0  = span->start + (row - span->first_row),
                                     .lane0 = lane0};

            n = item.n_lanes = cut_tile(job, &item, n_lanes - lane0);
            add_items(job, item);
        }
    }
    job->merges_late = merges_late(job);
    run_wave(job);
}

static void head_task(void *ctx, uint32_t chunk, uint32_t member)
{
    heads_job            *heads = ctx;
    const bt_attn_cpu    *a     = heads->job->a;
    const bt_attn_member *m     = &a->members[member];
    bt_role               role  = heads->job->call->spans[0].role;
    uint32_t              n = bt_linear_n(heads->w[0]), step = a->n_members, head, col;
    bt_cpu_mm             mm = {.y = m->state, .m = heads->job->n_rows};

    if (heads->own.n_chunks <= MAX_OWN) step = 1;
    chunk = take_own(&heads->own, chunk, member);
    head  = chunk / heads->cuts;
    if (heads->merges) merge_lanes(heads->job, 0, head, 1);
    col       = chunk % heads->cuts * heads->cols;
    mm.k      = bt_linear_k(heads->w[0]);
    mm.x      = heads->x + head * heads->step_x;
    mm.ld_x   = heads->ld_x;
    mm.packed = columns(heads, chunk).packed;
    mm.n = mm.ld_y = bt_min_u32(n - col, heads->cols);
    if (chunk + step < heads->own.n_chunks) mm.after = columns(heads, chunk + step).packed;
    a->kernels->mm[role](&mm);
    for (size_t r = 0; r < mm.m; r++)
        a->kernels->rows->to_bf16(mm.y + r * mm.ld_y, mm.n,
                                  heads->y + r * heads->ld_y + head * heads->step_y + col);
}

/* As the device multiplies many rows: all heads' rows become tiles first. */
static bt_status multiply_many(const heads_job *heads)
{
    const bt_attn_cpu *a = heads->job->a;

    for (size_t h = 0; h < a->cfg.n_heads; h++)
        a->gemms[h] = (bt_gemm){.w       = heads->w[h],
                                .x       = heads->x + h * heads->step_x,
                                .ld_x    = heads->ld_x,
                                .y       = heads->y + h * heads->step_y,
                                .ld_y    = heads->ld_y,
                                .m       = heads->job->n_rows,
                                .y_dtype = BT_BF16};
    return bt_device_gemm(a->dev, heads->job->call->spans[0].role, a->cfg.n_heads, a->gemms);
}

static bt_status run_heads(heads_job heads)
{
    if (heads.job->n_rows > FEW_ROWS) return multiply_many(&heads);
    bt_cpu_pool_run(heads.job->a->pool, heads.own.n_chunks, head_task, &heads);
    return BT_OK;
}

static heads_job query_to_latent(const absorbed_job *job)
{
    const bt_attn_cpu   *a     = job->a;
    const bt_mla_config *cfg   = &a->cfg;
    heads_job            heads = {.job    = job,
                                  .w      = job->call->w->ukt,
                                  .x      = job->call->q + job->first_row * bt_attn_q_dim(cfg),
                                  .ld_x   = bt_attn_q_dim(cfg),
                                  .step_x = cfg->qk_nope_dim + cfg->qk_rope_dim,
                                  .y      = a->ql,
                                  .ld_y   = (size_t)cfg->n_heads * cfg->kv_lora_rank,
                                  .step_y = cfg->kv_lora_rank};

    cut_heads(&heads);
    return heads;
}

bt_status bt_attn_cpu_absorbed(bt_attn *attn, const bt_attn_call *call)
{
    bt_status      st   = BT_OK;
    bt_attn_cpu   *a    = (bt_attn_cpu *)attn;
    const bt_span *last = &call->spans[call->n_spans - 1];
    uint32_t       end  = last->first_row + last->n_rows;
    absorbed_job   job  = {.a = a, .call = call, .first_row = call->spans[0].first_row};

    for (; job.first_row < end; job.first_row += job.n_rows) {
        job.n_rows = bt_min_u32(end - job.first_row, a->absorbed_rows);
        if (bt_absorbed_short(a, call, job.first_row, job.n_rows)) continue;
        BT_TRY(run_heads(query_to_latent(&job)));
        attend_block(&job);
        BT_TRY(run_heads(latent_to_value(&job)));
    }
out:
    return st;
}
