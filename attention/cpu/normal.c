/* attention/cpu/normal.c - the normal form: latents become keys and values of each head.
 *
 * For each span, for some heads at a time, for each part of the context ascending: the pool expands
 * the part's blocks (one chunk a head and block: k = W_UK c, v = W_UV c, rounded, packed), then
 * runs the query tiles (one chunk a head and tile, which goes through the part strip by strip).  A
 * strip's first part goes straight to its running state, later ones are merged into it. */
#include <string.h>

#include "attention/cpu/attn_cpu.h"

enum { NEAR_BYTES = 1408 << 10 }; /* of keys and values, in a second-level cache */

typedef struct {
    bt_attn_cpu        *a;
    const bt_attn_call *call;
    const bt_span      *span;
    uint32_t            end;            /* the span's end, absolute */
    uint32_t            head0, n_heads; /* of this group */
    uint32_t            part, first_page, n_pages;
    uint32_t            n_tiles; /* of one head */
} normal_job;

static uint32_t keys_of(const normal_job *job, uint32_t page)
{
    return bt_min_u32(job->end - page * BT_PAGE_TOKENS, BT_PAGE_TOKENS);
}

/* Of the block of keys that begins at `start`. */
static uint32_t block_keys(const normal_job *job, uint32_t start)
{
    return bt_min_u32(job->end - start, BT_BLOCK_TOKENS);
}

/* Packed keys of the i-th page of the part, and packed values of its block. */
static bt_bf16 *keys_at(const normal_job *job, uint32_t head, uint32_t i)
{
    return job->a->keys +
           ((size_t)head * job->a->part_pages + i) * bt_packed_keys(bt_joined_dim(&job->a->cfg));
}
static bt_bf16 *values_at(const normal_job *job, uint32_t head, uint32_t i)
{
    return job->a->values +
           ((size_t)head * bt_part_blocks(job->a->part_pages) + i / BT_BLOCK_PAGES) *
               bt_packed_values(job->a->cfg.v_dim);
}

/* The block that begins with the i-th page of the part. */
static bt_key_block block_at(const normal_job *job, uint32_t head, uint32_t i)
{
    uint32_t start = (job->first_page + i) * BT_PAGE_TOKENS;

    return (bt_key_block){
        .start = start, .n_keys = block_keys(job, start), .values = values_at(job, head, i)};
}

static const bt_bf16 *page_rows(const normal_job *job, uint32_t i)
{
    return bt_kv_pool_rows(job->call->pool, job->span->pages[job->first_page + i],
                           job->call->layer);
}

/* Latents of the i-th page of the part, in tiles. */
static bt_bf16 *tiles_at(const normal_job *job, uint32_t i)
{
    return job->a->latents + bt_cpu_tiled_elems(i * BT_PAGE_TOKENS, job->a->cfg.kv_lora_rank);
}

/* Chunks: pages. */
static void tile_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const normal_job *job  = ctx;
    uint32_t          rank = job->a->cfg.kv_lora_rank, n = keys_of(job, job->first_page + chunk);

    (void)member;
    for (uint32_t key = 0; key < n; key += BT_CPU_TILE_ROWS)
        bt_cpu_make_tiles(page_rows(job, chunk), bt_kv_pool_kv_dim(job->call->pool), NULL, key,
                          bt_min_u32(n - key, BT_CPU_TILE_ROWS), rank,
                          tiles_at(job, chunk) + bt_cpu_tiled_elems(key, rank));
}

/* rows_bf16[key] = W latent[key], `ld` elements from row to row, for the keys of a block that
 * begins with the i-th page of the part. */
static void expand(const normal_job *job, const bt_linear *w, uint32_t n, uint32_t i,
                   uint32_t n_keys, size_t ld, const bt_attn_member *m)
{
    const bt_attn_cpu    *a    = job->a;
    const bt_cpu_kernels *kern = a->kernels;

    if (kern->mm_tiles != NULL) {
        kern->mm_tiles(&(bt_cpu_mm_tiles){.x       = tiles_at(job, i),
                                          .packed  = bt_linear_packed(w),
                                          .y       = m->rows_bf16,
                                          .ld_y    = ld,
                                          .y_dtype = BT_BF16,
                                          .sums    = m->rows_f32,
                                          .m       = n_keys,
                                          .n       = n,
                                          .k       = a->cfg.kv_lora_rank,
                                          .near    = true});
        return;
    }
    for (uint32_t key = 0; key < n_keys; key += BT_PAGE_TOKENS, i++)
        kern->mm[job->span->role](&(bt_cpu_mm){.x      = page_rows(job, i),
                                               .ld_x   = bt_kv_pool_kv_dim(job->call->pool),
                                               .packed = bt_linear_packed(w),
                                               .y      = m->rows_f32 + (size_t)key * n,
                                               .ld_y   = n,
                                               .m      = bt_min_u32(n_keys - key, BT_PAGE_TOKENS),
                                               .n      = n,
                                               .k      = a->cfg.kv_lora_rank});
    for (uint32_t key = 0; key < n_keys; key++)
        kern->rows->to_bf16(m->rows_f32 + (size_t)key * n, n, m->rows_bf16 + key * ld);
}

/* A query or a key as one row: the nope part, then the rope part, each padded with +0 to a step of
 * the products, so that one product adds what two would, in the same order. */
static void join(const bt_mla_config *cfg, const bt_bf16 *rope, bt_bf16 *row)
{
    uint32_t nope = bt_cpu_pad(cfg->qk_nope_dim, 32), end = nope + cfg->qk_rope_dim;

    memset(row + cfg->qk_nope_dim, 0, (nope - cfg->qk_nope_dim) * sizeof(*row));
    memcpy(row + nope, rope, cfg->qk_rope_dim * sizeof(*row));
    memset(row + end, 0, (bt_joined_dim(cfg) - end) * sizeof(*row));
}

/* Chunks: [n_blocks][n_heads]. */
static void expand_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const normal_job         *job  = ctx;
    const bt_attn_cpu        *a    = job->a;
    const bt_mla_config      *cfg  = &a->cfg;
    const bt_attn_member     *m    = &a->members[member];
    const bt_cpu_row_kernels *rows = a->kernels->rows;
    uint32_t head = chunk % job->n_heads, i = chunk / job->n_heads * BT_BLOCK_PAGES;
    uint32_t width = bt_joined_dim(cfg), kv_dim = bt_kv_pool_kv_dim(job->call->pool);
    uint32_t n_keys = block_keys(job, (job->first_page + i) * BT_PAGE_TOKENS);

    expand(job, job->call->w->uk[job->head0 + head], cfg->qk_nope_dim, i, n_keys, width, m);
    for (uint32_t key = 0; key < n_keys; key++)
        join(cfg,
             page_rows(job, i + key / BT_PAGE_TOKENS) + (size_t)(key % BT_PAGE_TOKENS) * kv_dim +
                 cfg->kv_lora_rank,
             m->rows_bf16 + (size_t)key * width);
    rows->pack_rows(m->rows_bf16, width, n_keys, width, keys_at(job, head, i));
    expand(job, job->call->w->uv[job->head0 + head], cfg->v_dim, i, n_keys, cfg->v_dim, m);
    rows->pack_cols(m->rows_bf16, cfg->v_dim, n_keys, cfg->v_dim, bt_cpu_pad(n_keys, 32),
                    values_at(job, head, i));
}

/* The tile's queries next to each other: as they lie, rows of a tile share few sets of a cache. */
static void gather_queries(const bt_mla_config *cfg, const bt_bf16 *q, uint32_t n_lanes,
                           bt_bf16 *out)
{
    for (uint32_t i = 0; i < n_lanes; i++, q += bt_attn_q_dim(cfg), out += bt_joined_dim(cfg)) {
        memcpy(out, q, cfg->qk_nope_dim * sizeof(*out));
        join(cfg, q + cfg->qk_nope_dim, out);
    }
}

/* scores[lane][key] = q . k of the block that begins with the i-th page of the part, for the lanes
 * that see its first key, and keys that a lane of the tile sees. */
static void score(const normal_job *job, const bt_tile *t, const bt_key_block *block,
                  const bt_bf16 *q, uint32_t head, uint32_t i, float *scores)
{
    uint32_t  width = bt_joined_dim(&job->a->cfg), first = bt_tile_first_lane(t, block->start);
    bt_cpu_mm mm = {.x      = q + (size_t)first * width,
                    .ld_x   = width,
                    .packed = keys_at(job, head, i), /* pages follow each other */
                    .y      = scores + (size_t)first * BT_BLOCK_TOKENS,
                    .ld_y   = BT_BLOCK_TOKENS,
                    .m      = t->n_lanes - first,
                    .n      = bt_min_u32(block->n_keys, bt_tile_last_pos(t) + 1 - block->start),
                    .k      = width,
                    .cached = true};

    t->kernels->mm[t->role](&mm);
}

/* The blocks of the part, from its first one, in which every lane sees a key, where there is one
 * kernel for that: those that all see all of, and the one in which they end; returns their pages.
 */
static uint32_t attend_blocks(const normal_job *job, const bt_tile *t, const bt_bf16 *q,
                              uint32_t head, const bt_attn_member *m, const bt_tile_state *state)
{
    uint32_t part_start = job->first_page * BT_PAGE_TOKENS, width = bt_joined_dim(&job->a->cfg);
    uint32_t n_seen   = t->pos0 < part_start ? 0 : t->pos0 + 1 - part_start; /* by lane 0 */
    uint32_t n_blocks = bt_min_u32(n_seen / BT_BLOCK_TOKENS, job->n_pages / BT_BLOCK_PAGES);
    uint32_t last     = n_blocks * BT_BLOCK_PAGES; /* the first page behind them */
    bt_cpu_attend a   = {.q         = q,
                         .keys      = keys_at(job, head, 0),
                         .values    = values_at(job, head, 0),
                         .last_k    = BT_BLOCK_TOKENS,
                         .last_keys = BT_BLOCK_TOKENS,
                         .k         = width,
                         .v_dim     = t->v_dim,
                         .n_blocks  = n_blocks,
                         .scale     = t->scale,
                         .max       = state->max,
                         .sum       = state->sum,
                         .o         = state->o,
                         .ld_o      = bt_tile_ld(t->v_dim),
                         .scores    = m->tile.scores,
                         .p         = m->tile.p};

    _Static_assert((int)BT_CPU_STRIP_KEYS == (int)BT_BLOCK_TOKENS, "a block of keys");
    if (t->kernels->attend == NULL || t->n_lanes != BT_CPU_STRIP || t->v_dim % 32 != 0) return 0;
    if (last < job->n_pages && n_seen > last * BT_PAGE_TOKENS) {
        bt_key_block block = block_at(job, head, last);

        if (bt_tile_hides_finite(t, &block)) {
            a.last_keys = n_seen - last * BT_PAGE_TOKENS;
            a.last_k    = bt_cpu_pad(block.n_keys, 32);
            a.n_blocks++;
        }
    }
    if (a.n_blocks != 0) t->kernels->attend(&a);
    return a.n_blocks * BT_BLOCK_PAGES;
}

/* Lanes of a tile that go through the part together: what they need between the products stays in
 * the first-level cache. */
static void attend_strip(const normal_job *job, const bt_tile *t, const bt_bf16 *q, uint32_t head,
                         const bt_attn_member *m, const bt_tile_state *running,
                         const bt_tile_state *state, bt_bf16 *out)
{
    const bt_mla_config *cfg  = &job->a->cfg;
    uint32_t             last = bt_tile_last_pos(t), part_start = job->first_page * BT_PAGE_TOKENS;

    if (last < part_start) return; /* finished with an earlier part */
    gather_queries(cfg, q, t->n_lanes, m->joined);
    bt_tile_reset(t, state);
    for (uint32_t i = attend_blocks(job, t, m->joined, head, m, state); i < job->n_pages;
         i += BT_BLOCK_PAGES) {
        bt_key_block block = block_at(job, head, i);

        if (block.start > last) break;
        score(job, t, &block, m->joined, head, i, m->tile.scores);
        bt_tile_add(t, &block, &m->tile, state);
    }
    if (job->part != 0) bt_tile_merge(t, part_start, state, running);
    if (last < (job->part + 1) * BT_ATTN_SPLIT_TOKENS)
        bt_tile_finish(t, running, out, (size_t)cfg->n_heads * cfg->v_dim);
}

/* The state of lanes from `lane` on. */
static bt_tile_state lanes_from(const bt_tile_state *s, uint32_t lane, uint32_t v_dim)
{
    return (bt_tile_state){s->max + lane, s->sum + lane, s->o + lane * bt_tile_ld(v_dim)};
}

/* Chunks: [n_tiles][n_heads], the tiles that attend to most first. */
static void attend_task(void *ctx, uint32_t chunk, uint32_t member)
{
    const normal_job     *job = ctx;
    const bt_attn_cpu    *a   = job->a;
    const bt_mla_config  *cfg = &a->cfg;
    const bt_attn_member *m   = &a->members[member];
    uint32_t head = chunk % job->n_heads, tile = job->n_tiles - 1 - chunk / job->n_heads;
    uint32_t row = tile * BT_TILE_LANES, end = bt_min_u32(row + BT_TILE_LANES, job->span->n_rows);
    size_t   h        = job->head0 + head;
    bt_tile_state all = bt_tile_state_at(a->running + (head * a->tiles_per_head + tile) *
                                                          bt_tile_state_floats(cfg->v_dim));

    for (uint32_t lane = 0; row < end; lane += BT_CPU_STRIP, row += BT_CPU_STRIP) {
        bt_tile       t       = {.kernels       = a->kernels,
                                 .role          = job->span->role,
                                 .scale         = cfg->softmax_scale,
                                 .v_dim         = cfg->v_dim,
                                 .block_keys    = BT_BLOCK_TOKENS,
                                 .split         = BT_ATTN_SPLIT_TOKENS,
                                 .n_lanes       = bt_min_u32(end - row, BT_CPU_STRIP),
                                 .lanes_per_pos = 1,
                                 .pos0          = job->span->start + row};
        size_t        q_row   = (size_t)job->span->first_row + row;
        bt_tile_state running = lanes_from(&all, lane, cfg->v_dim);
        bt_tile_state state   = job->part == 0 ? running : bt_tile_state_at(m->state);

        attend_strip(
            job, &t,
            job->call->q + q_row * bt_attn_q_dim(cfg) + h * (cfg->qk_nope_dim + cfg->qk_rope_dim),
            head, m, &running, &state, job->call->out + (q_row * cfg->n_heads + h) * cfg->v_dim);
    }
}

/* Heads that go together: whose keys and values stay in the second-level cache of the thread that
 * probably makes them and attends to them, since chunks of a head follow each other at a distance
 * of as many as there are threads. */
static uint32_t heads_together(const normal_job *job, uint32_t n_pages)
{
    const bt_attn_cpu *a        = job->a;
    uint32_t           n_tokens = bt_min_u32(n_pages, BT_PART_PAGES) * BT_PAGE_TOKENS;
    size_t             bytes = n_tokens * (bt_joined_dim(&a->cfg) + a->cfg.v_dim) * sizeof(bt_bf16);
    uint32_t           each  = (uint32_t)(NEAR_BYTES / bytes);

    return bt_min_u32(a->head_group, bt_cpu_pool_n_threads(a->pool) * bt_max_u32(each, 1));
}

static void attend_span(bt_attn_cpu *a, const bt_attn_call *call, const bt_span *span)
{
    normal_job job     = {.a       = a,
                          .call    = call,
                          .span    = span,
                          .end     = span->start + span->n_rows,
                          .n_tiles = (span->n_rows + BT_TILE_LANES - 1) / BT_TILE_LANES};
    uint32_t   n_pages = bt_kv_pages_for(job.end), most = heads_together(&job, n_pages);

    for (job.head0 = 0; job.head0 < a->cfg.n_heads; job.head0 += job.n_heads) {
        job.n_heads = bt_min_u32(a->cfg.n_heads - job.head0, most);
        for (job.part = 0; job.part * BT_PART_PAGES < n_pages; job.part++) {
            job.first_page = job.part * BT_PART_PAGES;
            job.n_pages    = bt_min_u32(n_pages - job.first_page, BT_PART_PAGES);
            if (a->kernels->mm_tiles != NULL && (job.head0 == 0 || n_pages > BT_PART_PAGES))
                bt_cpu_pool_run(a->pool, job.n_pages, tile_task, &job);
            bt_cpu_pool_run(a->pool, job.n_heads * bt_part_blocks(job.n_pages), expand_task, &job);
            bt_cpu_pool_run(a->pool, job.n_heads * job.n_tiles, attend_task, &job);
        }
    }
}

bt_status bt_attn_cpu_normal(bt_attn *attn, const bt_attn_call *call)
{
    for (uint32_t i = 0; i < call->n_spans; i++)
        if (call->spans[i].n_rows != 0) attend_span((bt_attn_cpu *)attn, call, &call->spans[i]);
    return BT_OK;
}
