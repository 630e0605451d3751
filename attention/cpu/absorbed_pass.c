/* attention/cpu/absorbed_pass.c - one fused pass of a tile of absorbed queries over a part of its
 * context: for each block of pages the scores, the softmax and the weighted sum of the latents.
 * While a block is worked on, the pages of the one that follows are fetched, a few lines at a time.
 */
#include <string.h>

#include "attention/cpu/attn_cpu.h"

enum {
    SQUARE     = 4,
    LINE       = 32,
    THEN_ELEMS = 16384 /* that the sums of a page leave time to fetch */
};
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

void bt_absorbed_pack(const bt_attn_cpu *a, const bt_absorbed_lanes *lanes, const bt_attn_member *m)
{
    uint32_t c = a->cfg.kv_lora_rank, rope = a->cfg.qk_rope_dim, kv_dim = c + rope;

    for (uint32_t lane0 = 0; lane0 < lanes->tile.n_lanes; lane0 += BT_QUERY_LANES) {
        uint32_t n = bt_min_u32(lanes->tile.n_lanes - lane0, BT_QUERY_LANES);

        for (size_t i = 0; i < n; i++) {
            bt_bf16 *query = m->queries + i * kv_dim;

            memcpy(query, lanes->latent + (lane0 + i) * lanes->ld_latent, c * sizeof(*query));
            memcpy(query + c, lanes->rope + (lane0 + i) * lanes->ld_rope, rope * sizeof(*query));
        }
        a->kernels->rows->pack_rows(m->queries, kv_dim, n, kv_dim,
                                    m->query + bt_cpu_packed_elems(lane0, kv_dim));
    }
}

/* The queries are the packed operand and the page's rows the plain one, so that no page is packed
 * for its scores; they come out as [key][lane], of whole tiles, and are turned. */
void bt_absorbed_score(const bt_tile *t, bt_some_rows page, bt_some_rows later, uint32_t kv_dim,
                       const bt_attn_member *m, float *scores)
{
    uint32_t  ld = bt_cpu_pad(t->n_lanes, BT_QUERY_LANES);
    bt_cpu_mm mm = {.x       = page.rows,
                    .ld_x    = kv_dim,
                    .packed  = m->query,
                    .y       = m->scores_t,
                    .ld_y    = ld,
                    .m       = page.n,
                    .n       = ld,
                    .k       = kv_dim,
                    .cached  = true,
                    .fetch   = later.rows,
                    .n_fetch = later.n * kv_dim};

    t->kernels->mm[t->role](&mm);
    for (uint32_t lane = 0; lane < t->n_lanes; lane += SQUARE)
        for (uint32_t key = 0; key < page.n; key += SQUARE)
            turn_square(m->scores_t + (size_t)key * ld + lane, ld,
                        scores + (size_t)lane * BT_BLOCK_TOKENS + key);
}

/* Of the page from `pos` on, up to the part's end. */
static bt_some_rows page_rows(const bt_attn_call *call, const bt_absorbed_part *part, uint32_t pos)
{
    if (pos >= part->end) return (bt_some_rows){NULL, 0};
    return (bt_some_rows){
        bt_kv_pool_rows(call->pool, part->span->pages[pos / BT_PAGE_TOKENS], call->layer),
        bt_min_u32(part->end - pos, BT_PAGE_TOKENS)};
}

/* The page that is read a block after the one at `pos`: of the same part, or of what comes next. */
static bt_some_rows page_ahead(const bt_attn_call *call, const bt_absorbed_lanes *lanes,
                               uint32_t pos)
{
    if (pos + BT_BLOCK_TOKENS < lanes->part.end || lanes->next.span == NULL)
        return page_rows(call, &lanes->part, pos + BT_BLOCK_TOKENS);
    return page_rows(call, &lanes->next, lanes->next.start + pos % BT_BLOCK_TOKENS);
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

void bt_absorbed_pass(const bt_attn_cpu *a, const bt_attn_call *call,
                      const bt_absorbed_lanes *lanes, const bt_attn_member *m,
                      const bt_tile_state *state)
{
    const bt_tile *t      = &lanes->tile;
    uint32_t       kv_dim = bt_kv_pool_kv_dim(call->pool), start = lanes->part.start;

    if (!lanes->packed) bt_absorbed_pack(a, lanes, m);
    bt_tile_reset(t, state);
    for (; start < lanes->part.end; start += BT_BLOCK_TOKENS) {
        const bt_bf16 *pages[BT_BLOCK_PAGES], *later[BT_BLOCK_PAGES] = {NULL};
        bt_key_block   block = {.start  = start,
                                .n_keys = bt_min_u32(lanes->part.end - start, BT_BLOCK_TOKENS),
                                .pages  = pages,
                                .ld     = kv_dim,
                                .later  = later};

        for (uint32_t at = 0; at < block.n_keys; at += BT_PAGE_TOKENS) {
            bt_some_rows page  = page_rows(call, &lanes->part, start + at);
            bt_some_rows ahead = page_ahead(call, lanes, start + at);

            /* Half of it while scores are made, half of it with the sums. */
            pages[at / BT_PAGE_TOKENS] = page.rows;
            ahead.n                    = (ahead.n + 1) / 2;
            if (ahead.n != 0) {
                later[at / BT_PAGE_TOKENS] = ahead.rows + (size_t)ahead.n * kv_dim;
                block.n_later              = ahead.n * kv_dim;
            }
            bt_absorbed_score(t, page, ahead, kv_dim, m, m->tile.scores + at);
        }
        if (block.n_later == 0 && lanes->then.packed != NULL)
            fetch_then(&lanes->then, later, &block);
        bt_tile_add(t, &block, &m->tile, state);
    }
}
