/* attention/cpu/tile.h - the running softmax of a tile of query lanes over blocks of keys.
 *
 * A lane is one query of one head.  Lanes of a tile stand at ascending positions:
 *     normal:    consecutive rows of a span, one head       (one lane a position)
 *     absorbed:  (row, head) pairs of a span, row-major     (n_heads lanes a position)
 * Blocks of 256 keys are added ascending within a part of `split` positions; parts are merged
 * ascending.  A lane sees the keys up to its own position and nothing else: scores of later
 * keys are passed over, and a value that is not finite is kept away from lanes before it.  So a
 * lane's bits depend on its query, its position and the keys up to it, never on the tile.
 *
 * Threads: any, each with its own scratch and slots.  Memory: never allocates. */
#ifndef BT_ATTENTION_CPU_TILE_H
#define BT_ATTENTION_CPU_TILE_H

#include "attention/mla.h"
#include "device/cpu/kernels.h"

enum {
    BT_TILE_LANES = 128,
    BT_TILE_SLAB  = 64 /* columns of 256 keys that stay in the first-level cache */
};

/* State of up to BT_TILE_LANES lanes: max and sum of the softmax, and the sum of values that are
 * weighted but not yet divided. */
typedef struct {
    float *max, *sum; /* [lanes] */
    float *o;         /* [lanes][bt_tile_ld(v_dim)] */
} bt_tile_state;

/* Floats from one lane's sums to the next one's: a line more than v_dim, which is often a power of
 * two, so that rows of an AMX tile would compete for two sets of the cache. */
static inline size_t bt_tile_ld(uint32_t v_dim) { return (size_t)v_dim + 16; }
/* Floats of a state, and the state that lies in such memory. */
static inline size_t bt_tile_state_floats(uint32_t v_dim)
{
    return BT_TILE_LANES * (bt_tile_ld(v_dim) + 2);
}
static inline bt_tile_state bt_tile_state_at(float *mem)
{
    return (bt_tile_state){mem, mem + BT_TILE_LANES, mem + (size_t)2 * BT_TILE_LANES};
}

typedef struct {
    const bt_cpu_kernels *kernels;
    bt_role               role;
    float                 scale;      /* of the scores, above 0 */
    uint32_t              v_dim;      /* elements of a value */
    uint32_t              block_keys; /* of a block, and of a row of the scratch */
    uint32_t              split;      /* positions of a part, a multiple of block_keys */
    uint32_t              n_lanes;
    uint32_t lane0, lanes_per_pos, pos0; /* lane i: position pos0 + (lane0 + i) / lanes_per_pos */
} bt_tile;

/* Up to block_keys consecutive keys from absolute position `start`, a multiple of block_keys. */
typedef struct {
    uint32_t              start, n_keys;
    const bt_bf16        *values;  /* packed, k = n_keys, n = v_dim; or NULL: */
    const bt_bf16 *const *pages;   /* the values lie in rows of these pages, */
    size_t                ld;      /* so far apart, and are packed as they are needed */
    const bt_bf16 *const *later;   /* for each of these pages, or NULL, n_later elements that are */
    uint32_t              n_later; /* read soon, to be fetched while the sums are made; or 0 */
} bt_key_block;

/* Per thread. */
typedef struct {
    float   *scores; /* [lanes][block_keys]: given to bt_tile_add, not kept */
    bt_bf16 *p;      /* [lanes][block_keys] */
    bt_bf16 *slab;   /* packed [block_keys, BT_TILE_SLAB]: some columns of the values */
    bt_bf16 *cut;    /* packed values of a block, or of a slab */
} bt_tile_scratch;

static inline uint32_t bt_tile_pos(const bt_tile *t, uint32_t lane)
{
    return t->pos0 + (t->lane0 + lane) / t->lanes_per_pos;
}
static inline uint32_t bt_tile_last_pos(const bt_tile *t) { return bt_tile_pos(t, t->n_lanes - 1); }
/* The first lane that sees the key at `pos`; n_lanes when none does. */
uint32_t bt_tile_first_lane(const bt_tile *t, uint32_t pos);

/* Whether a weight of +0 keeps every value of the block, whose values are packed, from lanes that
 * do not see its key, as far as products with what some lane sees go: not an inf or a NaN.  Lane 0
 * sees the first key. */
bool bt_tile_hides_finite(const bt_tile *t, const bt_key_block *block);

/* No key seen yet.  o is not written: the part's first block, at a multiple of `split`,
 * does that for the lanes that see it. */
void bt_tile_reset(const bt_tile *t, const bt_tile_state *state);
/* Adds a block that at least one lane sees; a part's blocks come ascending from its first.
 * scratch->scores holds q . k, not yet scaled, for the lanes that see its first key; the others
 * stay untouched. */
void bt_tile_add(const bt_tile *t, const bt_key_block *block, const bt_tile_scratch *scratch,
                 const bt_tile_state *state);
/* dst += src, the state of the part that starts at `part_start`, by log-sum-exp; lanes that see
 * nothing of the part stay untouched. */
void bt_tile_merge(const bt_tile *t, uint32_t part_start, const bt_tile_state *src,
                   const bt_tile_state *dst);
/* out[lane] = o / sum, rounded; row stride ld elements. */
void bt_tile_finish(const bt_tile *t, const bt_tile_state *state, bt_bf16 *out, size_t ld);

#endif
