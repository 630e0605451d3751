#include "attention/cpu/tile.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/minmax.h"

uint32_t bt_tile_first_lane(const bt_tile *t, uint32_t pos)
{
    uint64_t lane;

    if (pos <= t->pos0) return 0;
    lane = (uint64_t)(pos - t->pos0) * t->lanes_per_pos;
    if (lane <= t->lane0) return 0;
    return lane - t->lane0 < t->n_lanes ? (uint32_t)(lane - t->lane0) : t->n_lanes;
}

void bt_tile_reset(const bt_tile *t, const bt_tile_state *state)
{
    for (uint32_t i = 0; i < t->n_lanes; i++) {
        state->max[i] = -INFINITY;
        state->sum[i] = 0;
    }
}

/* e^(x - max) by the kernels' exponential. */
static float exp_of(const bt_tile *t, float x, float max)
{
    bt_bf16 p;
    float   e;

    t->kernels->rows->exp_row(&x, 1, 1, 1.0f, max, &p, &e);
    return e;
}

static uint32_t n_visible(const bt_tile *t, const bt_key_block *block, uint32_t lane)
{
    return bt_min_u32(bt_tile_pos(t, lane) + 1 - block->start, block->n_keys);
}

/* Keys of the block that any lane sees, in whole tiles: those that the products go through. */
static uint32_t n_seen(const bt_tile *t, const bt_key_block *block)
{
    return bt_cpu_pad(n_visible(t, block, t->n_lanes - 1), 32);
}

/* The first block of a part finds sums that nothing was written to: it starts them from +0. */
static bool begins_part(const bt_tile *t, const bt_key_block *block)
{
    return block->start % t->split == 0;
}

/* max[lane] of the lanes from `first` on, with the block's keys counted, and by how much what was
 * summed under an earlier maximum shrinks. */
static void raise_max(const bt_tile *t, const bt_key_block *block, uint32_t first,
                      const bt_tile_scratch *scratch, const bt_tile_state *state,
                      float shrink[BT_TILE_LANES])
{
    const bt_cpu_row_kernels *rows = t->kernels->rows;
    float                     fell[BT_TILE_LANES];
    bt_bf16                   rounded[BT_TILE_LANES];

    for (uint32_t lane = first; lane < t->n_lanes; lane++) {
        const float *scores = scratch->scores + (size_t)lane * t->block_keys;
        float        before = state->max[lane];
        float        max    = rows->row_max(scores, n_visible(t, block, lane)) * t->scale;

        state->max[lane] = max > before ? max : before;
        fell[lane]       = before - state->max[lane];
    }
    rows->exp_row(fell + first, t->n_lanes - first, t->n_lanes - first, 1.0f, 0.0f, rounded,
                  shrink + first);
}

/* Scores to weights: p[lane][key] = e^(scale score - max), +0 for keys that the lane does not see,
 * to whole tiles; what was summed under an earlier maximum shrinks. */
static void add_softmax(const bt_tile *t, const bt_key_block *block, uint32_t lane, float shrink,
                        const bt_tile_scratch *scratch, const bt_tile_state *state)
{
    const bt_cpu_row_kernels *rows = t->kernels->rows;
    size_t                    at   = (size_t)lane * t->block_keys;
    float sum = rows->exp_row(scratch->scores + at, n_visible(t, block, lane), n_seen(t, block),
                              t->scale, state->max[lane], scratch->p + at, NULL);

    state->sum[lane] = state->sum[lane] * shrink + sum;
    if (shrink != 1.0f && !begins_part(t, block))
        rows->scale(state->o + lane * bt_tile_ld(t->v_dim), t->v_dim, shrink);
}

/* Some columns of the values. */
typedef struct {
    const bt_bf16 *packed;
    uint32_t       first, n;
    const bt_bf16 *fetch; /* meanwhile */
    uint32_t       n_fetch;
} columns;

static void add_values(const bt_tile *t, const bt_key_block *block, const columns *cols,
                       uint32_t lane, uint32_t n_lanes, const bt_tile_scratch *scratch,
                       const bt_tile_state *state)
{
    bt_cpu_mm mm = {.x        = scratch->p + (size_t)lane * t->block_keys,
                    .ld_x     = t->block_keys,
                    .packed   = cols->packed,
                    .k_packed = block->n_keys,
                    .y        = state->o + lane * bt_tile_ld(t->v_dim) + cols->first,
                    .ld_y     = bt_tile_ld(t->v_dim),
                    .m        = n_lanes,
                    .n        = cols->n,
                    .k        = n_seen(t, block),
                    .add      = !begins_part(t, block),
                    .cached   = true,
                    .fetch    = cols->fetch,
                    .n_fetch  = cols->n_fetch};

    if (n_lanes != 0) t->kernels->mm[t->role](&mm);
}

/* The values of keys from .. to-1, and of a neighbour where these are odd; `to` may be in the
 * padding. */
static bool all_finite(const bt_key_block *block, const columns *cols, uint32_t from, uint32_t to)
{
    uint32_t bad = 0, k_pad = bt_cpu_pad(block->n_keys, 32);

    for (uint32_t col = 0; col < cols->n; col += 16) {
        const bt_bf16 *x = cols->packed + (size_t)col * k_pad;

        for (uint32_t i = from / 2 * 32; i < (to + 1) / 2 * 32; i++)
            bad |= (x[i] & 0x7f80u) == 0x7f80u;
    }
    return bad == 0;
}

bool bt_tile_hides_finite(const bt_tile *t, const bt_key_block *block)
{
    return all_finite(block, &(columns){.packed = block->values, .n = t->v_dim},
                      n_visible(t, block, 0), n_seen(t, block));
}

/* dst = the packed [k, n] operand with +0 in its rows from `keep` on. */
static void cut_packed(const bt_bf16 *packed, uint32_t k, uint32_t n, uint32_t keep, bt_bf16 *dst)
{
    uint32_t k_pad = bt_cpu_pad(k, 32), n_pad = bt_cpu_pad(n, 16);

    memcpy(dst, packed, (size_t)k_pad * n_pad * sizeof(*dst));
    for (uint32_t group = 0; group < n_pad / 16; group++, dst += (size_t)k_pad * 16)
        for (uint32_t key = keep; key < k; key++)
            for (uint32_t col = 0; col < 16; col++)
                dst[(size_t)(key / 2) * 32 + col * 2 + key % 2] = 0;
}

/* For the lanes from `first` on; those from `full` on see all of the block's keys. */
static void add_columns(const bt_tile *t, const bt_key_block *block, const columns *cols,
                        uint32_t first, uint32_t full, const bt_tile_scratch *scratch,
                        const bt_tile_state *state)
{
    /* A weight of 0 keeps a finite value away from a lane, but not an inf or a NaN that a later
     * token of the same request has brought. */
    if (first < full && !all_finite(block, cols, n_visible(t, block, first), n_seen(t, block))) {
        columns cut = {.packed = scratch->cut, .first = cols->first, .n = cols->n};

        for (; first < full; first++) {
            cut_packed(cols->packed, block->n_keys, cols->n, n_visible(t, block, first),
                       scratch->cut);
            add_values(t, block, &cut, first, 1, scratch, state);
        }
    }
    add_values(t, block, cols, first, t->n_lanes - first, scratch, state);
}

static void pack_slab(const bt_tile *t, const bt_key_block *block, const columns *cols,
                      bt_bf16 *slab)
{
    for (uint32_t at = 0; at < block->n_keys; at += BT_PAGE_TOKENS)
        t->kernels->rows->pack_cols(block->pages[at / BT_PAGE_TOKENS] + cols->first, block->ld,
                                    bt_min_u32(block->n_keys - at, BT_PAGE_TOKENS), cols->n,
                                    bt_cpu_pad(block->n_keys, 32),
                                    slab + bt_cpu_packed_elems(1, at));
}

/* Columns of a slab: more where there are few keys. */
static uint32_t slab_cols(const bt_tile *t, const bt_key_block *block)
{
    return bt_max_u32(t->block_keys / bt_cpu_pad(block->n_keys, 32), 1) * BT_TILE_SLAB;
}

/* A slab's share of what is fetched. */
static void plan_fetch(const bt_tile *t, const bt_key_block *block, uint32_t slab, columns *cols)
{
    uint32_t       n_slabs = (t->v_dim + slab - 1) / slab;
    uint32_t       n_pages = t->block_keys / BT_PAGE_TOKENS, at = cols->first / slab * n_pages;
    const bt_bf16 *page = block->n_later != 0 ? block->later[at / n_slabs] : NULL;

    cols->n_fetch = page != NULL ? block->n_later * n_pages / n_slabs : 0;
    if (page != NULL) cols->fetch = page + (size_t)block->n_later * (at % n_slabs) / n_slabs;
}

/* Few lanes that see all keys take the values as they lie in the pages. */
static bool takes_pages(const bt_tile *t, uint32_t first, uint32_t full)
{
    return t->kernels->mm_pages != NULL && first == full && t->n_lanes - first <= BT_CPU_FEW_ROWS &&
           t->v_dim % 32 == 0;
}

static void add_pages(const bt_tile *t, const bt_key_block *block, uint32_t first,
                      const bt_tile_scratch *scratch, const bt_tile_state *state)
{
    bt_cpu_mm_pages mm = {.x       = scratch->p + (size_t)first * t->block_keys,
                          .ld_x    = t->block_keys,
                          .pages   = block->pages,
                          .ld      = block->ld,
                          .y       = state->o + first * bt_tile_ld(t->v_dim),
                          .ld_y    = bt_tile_ld(t->v_dim),
                          .m       = t->n_lanes - first,
                          .n       = t->v_dim,
                          .k       = block->n_keys,
                          .add     = !begins_part(t, block),
                          .later   = block->later,
                          .n_later = block->n_later};

    t->kernels->mm_pages(&mm);
}

void bt_tile_add(const bt_tile *t, const bt_key_block *block, const bt_tile_scratch *scratch,
                 const bt_tile_state *state)
{
    uint32_t first = bt_tile_first_lane(t, block->start);                     /* sees a key */
    uint32_t full  = bt_tile_first_lane(t, block->start + block->n_keys - 1); /* sees them all */
    columns  cols  = {.packed = block->values, .n = t->v_dim};
    float    shrink[BT_TILE_LANES];

    raise_max(t, block, first, scratch, state, shrink);
    for (uint32_t lane = first; lane < t->n_lanes; lane++)
        add_softmax(t, block, lane, shrink[lane], scratch, state);
    if (block->values != NULL) {
        add_columns(t, block, &cols, first, full, scratch, state);
        return;
    }
    if (takes_pages(t, first, full)) {
        add_pages(t, block, first, scratch, state);
        return;
    }
    for (uint32_t slab = slab_cols(t, block); cols.first < t->v_dim; cols.first += cols.n) {
        cols.n      = bt_min_u32(t->v_dim - cols.first, slab);
        cols.packed = scratch->slab;
        plan_fetch(t, block, slab, &cols);
        pack_slab(t, block, &cols, scratch->slab);
        add_columns(t, block, &cols, first, full, scratch, state);
    }
}

void bt_tile_merge(const bt_tile *t, uint32_t part_start, const bt_tile_state *src,
                   const bt_tile_state *dst)
{
    const bt_cpu_row_kernels *rows = t->kernels->rows;

    for (uint32_t i = bt_tile_first_lane(t, part_start); i < t->n_lanes; i++) {
        float  max = src->max[i] > dst->max[i] ? src->max[i] : dst->max[i];
        float  a = exp_of(t, dst->max[i], max), b = exp_of(t, src->max[i], max);
        float *o = dst->o + i * bt_tile_ld(t->v_dim);

        dst->max[i] = max;
        dst->sum[i] = dst->sum[i] * a + src->sum[i] * b;
        rows->scale(o, t->v_dim, a);
        rows->axpy(b, src->o + i * bt_tile_ld(t->v_dim), t->v_dim, o);
    }
}

void bt_tile_finish(const bt_tile *t, const bt_tile_state *state, bt_bf16 *out, size_t ld)
{
    /* The sign of a zero depends on keys that the lane does not see: there is only +0. */
    for (uint32_t i = 0; i < t->n_lanes; i++)
        t->kernels->rows->scale_bf16(state->o + i * bt_tile_ld(t->v_dim), t->v_dim,
                                     1.0f / state->sum[i], out + i * ld);
}
