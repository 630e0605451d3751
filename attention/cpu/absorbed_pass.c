/* attention/cpu/absorbed_pass.c - one fused pass of a tile of absorbed queries over a part of its
 * context: for each block of pages the scores, the softmax and the weighted sum of the latents.
 * While a block is worked on, the pages of the one that follows are fetched, a few lines at a time.
 * Where the softmax restarts within the part, halves merge while they are in the thread's cache.
 * A block that all lanes see is one kernel's work where there is one (bt_cpu_attend_pages). */
#include <string.h>

#include "attention/cpu/attn_cpu.h"

enum {
    SQUARE     = 4,
    LINE       = 32,
    FEW_LANES  = 8,
    THEN_ELEMS = 16384 /* that the sums of a page leave time to fetch */
};
/* Rows of a page. */
typedef struct {
    const bt_bf16 *rows;
    uint32_t       n;
} some_rows;

typedef struct {
    const bt_attn_cpu       *a;
    const bt_attn_call      *call;
    const bt_absorbed_lanes *lanes;
    const bt_attn_member    *m;
} pass;

typedef float vec4 __attribute__((vector_size(4 * SQUARE)));

/* to[lane][key] = from[key][lane] of a square; the buffers are whole squares, and what no score was
 * written to is turned too and never read. */
static void turn_square(const float *from, size_t ld, float *to)
{
    vec4 r[SQUARE], low[SQUARE / 2], high[SQUARE / 2];

    for (size_t i = 0; i < SQUARE; i++)
        memcpy(&r[i], from + i * ld, sizeof(r[i]));
    for (int i = 0; i < 2; i++) {
        low[i]  = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 4, 1, 5);
        high[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 6, 3, 7);
    }
    r[0] = __builtin_shufflevector(low[0], low[1], 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7);
    for (int i = 0; i < SQUARE; i++)
        memcpy(to + (size_t)i * BT_BLOCK_TOKENS, &r[i], sizeof(r[i]));
}

/* Elements of a key: a page's rows may have others behind them. */
static uint32_t key_width(const pass *p) { return p->a->cfg.kv_lora_rank + p->a->cfg.qk_rope_dim; }

/* m->query = the queries [latent | rope] of the lanes, as the packed operand of the scores. */
static void pack_queries(const pass *p)
{
    const bt_absorbed_lanes *lanes = p->lanes;
    const bt_attn_member    *m     = p->m;
    uint32_t c = p->a->cfg.kv_lora_rank, rope = p->a->cfg.qk_rope_dim, kv_dim = key_width(p);

    for (uint32_t lane0 = 0; lane0 < lanes->tile.n_lanes; lane0 += BT_QUERY_LANES) {
        uint32_t n = bt_min_u32(lanes->tile.n_lanes - lane0, BT_QUERY_LANES);

        for (size_t i = 0; i < n; i++) {
            bt_bf16 *query = m->queries + i * kv_dim;

            memcpy(query, lanes->latent + (lane0 + i) * lanes->ld_latent, c * sizeof(*query));
            memcpy(query + c, lanes->rope + (lane0 + i) * lanes->ld_rope, rope * sizeof(*query));
        }
        p->a->kernels->rows->pack_rows(m->queries, kv_dim, n, kv_dim,
                                       m->query + bt_cpu_packed_elems(lane0, kv_dim));
    }
}

/* scores[lane][key], BT_BLOCK_TOKENS from lane to lane, of the queries with a page's rows; squares
 * are written whole.  Meanwhile the rows `later` are fetched.
 *
 * The queries are the packed operand and the page's rows the plain one, so that no page is packed
 * for its scores; they come out as [key][lane], of whole tiles, and are turned. */
static void score(const pass *p, some_rows page, some_rows later, float *scores)
{
    const bt_tile *t      = &p->lanes->tile;
    uint32_t       ld     = bt_cpu_pad(t->n_lanes, BT_QUERY_LANES);
    uint32_t       kv_dim = bt_kv_pool_kv_dim(p->call->pool), width = key_width(p);
    bt_cpu_mm      mm = {.x       = page.rows,
                         .ld_x    = kv_dim,
                         .packed  = p->m->query,
                         .y       = p->m->scores_t,
                         .ld_y    = ld,
                         .m       = page.n,
                         .n       = ld,
                         .k       = width,
                         .cached  = true,
                         .fetch   = later.rows,
                         .n_fetch = later.n * kv_dim};

    t->kernels->mm[t->role](&mm);
    for (uint32_t lane = 0; lane < t->n_lanes; lane += SQUARE)
        for (uint32_t key = 0; key < page.n; key += SQUARE)
            turn_square(p->m->scores_t + (size_t)key * ld + lane, ld,
                        scores + (size_t)lane * BT_BLOCK_TOKENS + key);
}

/* Of the page from `pos` on, up to the part's end. */
static some_rows page_rows(const pass *p, const bt_absorbed_part *part, uint32_t pos)
{
    if (part->span == NULL || pos >= part->end) return (some_rows){NULL, 0};
    return (some_rows){
        bt_kv_pool_rows(p->call->pool, part->span->pages[pos / BT_PAGE_TOKENS], p->call->layer),
        bt_min_u32(part->end - pos, BT_PAGE_TOKENS)};
}

/* Of the page `at` in the block that follows the one that ends at `end`. */
static some_rows page_ahead(const pass *p, uint32_t end, uint32_t at)
{
    const bt_absorbed_lanes *lanes = p->lanes;

    if (end < lanes->part.end) return page_rows(p, &lanes->part, end + at);
    return page_rows(p, &lanes->next, lanes->next.start + at);
}

/* The beginning of the weights is fetched with the block's sums, a share with each page's. */
static void fetch_then(const bt_absorbed_then *then, const bt_bf16 *later[BT_BLOCK_PAGES],
                       bt_key_block *block)
{
    uint32_t n_pages = bt_kv_pages_for(block->n_keys);
    size_t   n       = then->n_elems / n_pages / LINE * LINE;

    if (n > THEN_ELEMS) n = THEN_ELEMS;
    block->n_later = (uint32_t)n;
    for (uint32_t i = 0; i < n_pages; i++)
        later[i] = then->packed + i * n;
}

/* Rows of a page that are fetched while scores are made; the others, with the sums.  Few lanes'
 * scores do nothing but read their own. */
static uint32_t n_early(const pass *p, uint32_t n)
{
    return p->lanes->tile.n_lanes <= FEW_LANES ? 0 : (n + 1) / 2;
}

/* A page's elements that are read after the block that ends at `end`: the page `at` behind that, or
 * as much of the weights. */
static const bt_bf16 *read_later(const pass *p, uint32_t end, uint32_t at)
{
    const bt_absorbed_then *then = &p->lanes->then;
    size_t                  from = (size_t)at * bt_kv_pool_kv_dim(p->call->pool);
    size_t                  n    = (size_t)BT_PAGE_TOKENS * bt_kv_pool_kv_dim(p->call->pool);
    some_rows               page = page_ahead(p, end, at);

    if (page.n != 0) return page.rows;
    return then->packed != NULL && from + n <= then->n_elems ? then->packed + from : NULL;
}

/* Whether one kernel takes the block: every lane sees all of it. */
static bool is_seen(const bt_tile *t, uint32_t end)
{
    return t->kernels->attend_pages != NULL && t->v_dim % 32 == 0 && bt_tile_pos(t, 0) + 1 >= end;
}

static void attend_pages(const pass *p, uint32_t start, uint32_t end, const bt_tile_state *state)
{
    const bt_tile      *t = &p->lanes->tile;
    const bt_bf16      *pages[BT_BLOCK_PAGES], *later[BT_BLOCK_PAGES];
    uint32_t            kv_dim = key_width(p);
    bt_cpu_attend_pages a      = {.pages  = pages,
                                  .ld     = bt_kv_pool_kv_dim(p->call->pool),
                                  .later  = later,
                                  .n_keys = end - start,
                                  .k      = kv_dim,
                                  .v_dim  = t->v_dim,
                                  .scale  = t->scale,
                                  .ld_o   = bt_tile_ld(t->v_dim),
                                  .begins = start % t->split == 0,
                                  .scores = p->m->tile.scores};

    for (uint32_t at = 0; at < a.n_keys; at += BT_PAGE_TOKENS) {
        pages[at / BT_PAGE_TOKENS] = page_rows(p, &p->lanes->part, start + at).rows;
        later[at / BT_PAGE_TOKENS] = read_later(p, end, at);
    }
    for (uint32_t lane = 0; lane < t->n_lanes; lane += BT_QUERY_LANES) {
        a.n_lanes = bt_min_u32(t->n_lanes - lane, BT_QUERY_LANES);
        a.q       = p->m->query + bt_cpu_packed_elems(lane, kv_dim);
        a.max     = state->max + lane;
        a.sum     = state->sum + lane;
        a.o       = state->o + lane * a.ld_o;
        t->kernels->attend_pages(&a);
    }
}

static void add_block(const pass *p, uint32_t start, uint32_t end, const bt_tile_state *state)
{
    const bt_bf16 *pages[BT_BLOCK_PAGES], *later[BT_BLOCK_PAGES] = {NULL};
    uint32_t       kv_dim = bt_kv_pool_kv_dim(p->call->pool);
    bt_key_block   block  = {
           .start = start, .n_keys = end - start, .pages = pages, .ld = kv_dim, .later = later};

    if (is_seen(&p->lanes->tile, end)) {
        attend_pages(p, start, end, state);
        return;
    }
    for (uint32_t at = 0; at < block.n_keys; at += BT_PAGE_TOKENS) {
        some_rows page  = page_rows(p, &p->lanes->part, start + at);
        some_rows ahead = page_ahead(p, end, at), early = {ahead.rows, n_early(p, ahead.n)};

        pages[at / BT_PAGE_TOKENS] = page.rows;
        if (ahead.n > early.n) {
            later[at / BT_PAGE_TOKENS] = ahead.rows + (size_t)early.n * kv_dim;
            if (block.n_later == 0) block.n_later = (ahead.n - early.n) * kv_dim;
        }
        score(p, page, early, p->m->tile.scores + at);
    }
    if (block.n_later == 0 && p->lanes->then.packed != NULL)
        fetch_then(&p->lanes->then, later, &block);
    bt_tile_add(&p->lanes->tile, &block, &p->m->tile, state);
}

/* `halves` is where the states of second halves may be. */
static void add_part(const pass *p, bt_absorbed_part part, float *halves,
                     const bt_tile_state *state)
{
    const bt_mla_config *cfg   = &p->a->cfg;
    bt_absorbed_part     first = part, second = part;
    bt_tile_state        other;

    if (part.size <= bt_attn_absorbed_part(cfg->n_heads, bt_tile_last_pos(&p->lanes->tile) + 1)) {
        bt_tile_reset(&p->lanes->tile, state);
        for (uint32_t start = part.start; start < part.end; start += BT_BLOCK_TOKENS)
            add_block(p, start, bt_min_u32(start + BT_BLOCK_TOKENS, part.end), state);
        return;
    }
    first.size = second.size = part.size / 2;
    first.end = second.start = bt_min_u32(part.start + first.size, part.end);
    add_part(p, first, halves, state);
    if (second.start == second.end) return;
    other = bt_tile_state_at(halves);
    add_part(p, second, halves + bt_tile_state_floats(cfg->kv_lora_rank), &other);
    bt_tile_merge(&p->lanes->tile, second.start, &other, state);
}

void bt_absorbed_pass(const bt_attn_cpu *a, const bt_attn_call *call,
                      const bt_absorbed_lanes *lanes, const bt_attn_member *m,
                      const bt_tile_state *state)
{
    pass p = {a, call, lanes, m};

    if (!lanes->packed) pack_queries(&p);
    add_part(&p, lanes->part, m->halves, state);
}
