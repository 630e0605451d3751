/* device/cpu/mm.inc.h - the loops around a register tile that the including file defines, for
 * arithmetics that go through k from one end to the other:
 *     x_elem, STAGE(v)           an element of x as the tile wants it: float, or bt_bf16 as it is
 *     STAGE_ELEMS                of x, at most, that a tile goes through in one piece of k
 *     MAX_ROWS                   rows of the largest tile
 *     tile_blocks(rows)          column blocks of 16 in a tile of so many rows
 *     tile(rows, blocks, args)   y += x b for a tile; rows and blocks are constants in each call
 *     TILE_CASES                 the tiles that there are
 * k goes in pieces, multiples of 32, whose x is in a near cache; between pieces the accumulators
 * wait in y, which is exact, so the pieces change no bit.  B in 12, 8 or 4 bits is widened a few k
 * at a time, just before they are multiplied. */
#include <string.h>

#include "core/log.h"
#include "device/cpu/families.h"
#include "device/cpu/widen.h"

#define INLINE static inline __attribute__((always_inline))
/* Loops over a tile's rows, blocks and vectors: what they go through must be registers. */
#define UNROLL _Pragma("GCC unroll 16")

enum {
    LANES       = 16,
    FEW_TILES   = 2,                           /* that go past the same columns, at most */
    PAIR_BYTES  = 2 * LANES * sizeof(bt_bf16), /* of a block */
    WIDE_K      = 32,                          /* at a time, of */
    WIDE_BLOCKS = 4,                           /* column blocks at most, */
    WIDE_LD     = WIDE_K * LANES + 32          /* elements apart */
};
/* Caches, as __builtin_prefetch calls them. */
enum { SECOND_LEVEL = 2, FIRST_LEVEL = 3 };
/* From one staged row to the next: a constant in each tile. */
#define STAGE_LD(rows) ((size_t)(STAGE_ELEMS / (rows) / 32 * 32))

typedef struct {
    const x_elem   *x;     /* [rows] STAGE_LD(rows) apart, padded with 0 to the end of the piece */
    const char     *b;     /* this piece of the first column block, */
    size_t          block; /* bytes from one column block to the next, */
    size_t          pair;  /* and from one pair of k to the next */
    const char     *next;  /* this piece of what is read after these columns, or what lies there */
    uint32_t        k0;    /* where the piece begins */
    uint32_t        n_pairs; /* in it */
    bt_weight_kind  kind;    /* of b; */
    const void     *side;    /* what stands beside the first column block, */
    size_t          ld_side; /* and bytes to the next one's */
    bt_cpu_widen_fn widen;
    bt_cpu_wide_table *tables; /* [WIDE_BLOCKS] */
    bt_bf16           *wide;   /* [WIDE_BLOCKS], WIDE_LD apart */
    float             *y;
    size_t             ld_y;
    bool               from_zero; /* else from y */
    /* For mm_dp2.inc.h: */
    const bt_bf16 *panel_b; /* a panel's B, */
    size_t         panel_block;
    void          *panel; /* what is made of it, */
    bool           first; /* and the tile that goes past it first */
} tile_args;

INLINE void     tile(const int rows, const int blocks, const tile_args *a);
INLINE uint32_t tile_blocks(uint32_t rows);

#define TILE_CASE(rows, blocks) \
    case (rows)*8 + (blocks): tile(rows, blocks, a); break;
static void run_tile(uint32_t rows, uint32_t blocks, const tile_args *a)
{
    switch (rows * 8 + blocks) {
        TILE_CASES
    default: BT_ASSERT(false);
    }
}

typedef void (*tile_runner)(uint32_t rows, uint32_t blocks, const tile_args *a);

/* Pairs from p0 on while which those `ahead` of them are to be fetched, from `later_out` on: of
 * this piece, or of what is read next. */
INLINE uint32_t pairs_until_next(const tile_args *a, uint32_t p0, uint32_t ahead,
                                 const char **later_out)
{
    uint32_t n = a->n_pairs - p0;

    if (n > ahead) {
        *later_out = a->b + (p0 + ahead) * a->pair;
        return n - ahead;
    }
    *later_out = a->next + (ahead - n) * a->pair;
    return n;
}

/* n_pairs of a narrow B, from p0 of the piece on, of some blocks. */
INLINE void widen_pairs(const tile_args *a, uint32_t p0, uint32_t n_pairs, uint32_t blocks,
                        bt_bf16 *out, size_t ld_out)
{
    const char *from_0 = a->b - a->k0 / 2 * a->pair;

    a->widen(&(bt_cpu_narrow){a->kind, from_0, a->block, a->side, a->ld_side}, a->k0 + 2 * p0,
             2 * n_pairs, blocks, a->tables, out, ld_out);
}

/* The piece's B from p0 on, in bf16 with its blocks *block_elems apart.  Where it is narrow,
 * *n_pairs becomes how many pairs have been widened. */
INLINE const bt_bf16 *wide_b(const tile_args *a, uint32_t p0, uint32_t blocks, uint32_t *n_pairs,
                             size_t *block_elems)
{
    if (a->kind == BT_WEIGHT_BF16) {
        *block_elems = a->block / sizeof(bt_bf16);
        return (const bt_bf16 *)(const void *)(a->b + (size_t)p0 * PAIR_BYTES);
    }
    if (*n_pairs > WIDE_K / 2) *n_pairs = WIDE_K / 2;
    widen_pairs(a, p0, *n_pairs, blocks, a->wide, WIDE_LD);
    *block_elems = WIDE_LD;
    return a->wide;
}

/* The columns behind the first blocks. */
INLINE void skip_blocks(tile_args *a, uint32_t blocks)
{
    a->b += blocks * a->block;
    if (a->ld_side != 0) a->side = (const char *)a->side + blocks * a->ld_side;
}

/* What all pieces of a product have in common; of a narrow B, tables and wide are set. */
INLINE tile_args args_of(const bt_cpu_mm *mm, bt_cpu_wide_table *tables, bt_bf16 *wide)
{
    bool      narrow = mm->kind != BT_WEIGHT_BF16;
    tile_args a      = {.block   = bt_cpu_weight_bytes(mm->kind, bt_cpu_block_elems(mm)),
                        .pair    = bt_cpu_weight_bytes(mm->kind, 2 * LANES),
                        .kind    = mm->kind,
                        .side    = mm->side,
                        .ld_side = bt_cpu_side_bytes(mm->kind, mm->k),
                        .tables  = tables,
                        .wide    = wide,
                        .y       = mm->y,
                        .ld_y    = mm->ld_y};

    if (narrow) a.widen = bt_cpu_widen_best();
    for (int c = 0; narrow && c < WIDE_BLOCKS; c++)
        bt_cpu_wide_begin(&tables[c]);
    return a;
}

/* The piece from k0 on. */
INLINE void begin_piece(const bt_cpu_mm *mm, uint32_t k0, uint32_t n_k, tile_args *a)
{
    a->b         = (const char *)mm->packed + k0 / 2 * a->pair;
    a->k0        = k0;
    a->n_pairs   = n_k / 2;
    a->from_zero = k0 == 0 && !mm->add;
}

/* A tile with part of a block of columns, which goes through a buffer. */
static __attribute__((noinline)) void run_edge(tile_runner run, uint32_t rows, uint32_t cols,
                                               const tile_args *a)
{
    float     edge[MAX_ROWS][LANES];
    tile_args inner = *a;

    inner.y    = edge[0];
    inner.ld_y = LANES;
    memset(edge, 0, rows * sizeof(edge[0]));
    for (uint32_t r = 0; !a->from_zero && r < rows; r++)
        memcpy(edge[r], a->y + r * a->ld_y, cols * sizeof(float));
    run(rows, 1, &inner);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(a->y + r * a->ld_y, edge[r], cols * sizeof(float));
}

/* A tile of `cols` columns: whole blocks, or part of one. */
INLINE void run_wide(tile_runner run, uint32_t rows, uint32_t cols, const tile_args *a)
{
    if (cols >= LANES)
        run(rows, cols / LANES, a);
    else
        run_edge(run, rows, cols, a);
}

INLINE void stage_row(const bt_bf16 *x, uint32_t n, uint32_t n_pad, x_elem *out)
{
    uint32_t i = 0;

    for (; i + 32 <= n; i += 32)
        for (uint32_t j = 0; j < 32; j++)
            out[i + j] = STAGE(x[i + j]);
    for (; i < n_pad; i++)
        out[i] = i < n ? STAGE(x[i]) : 0;
}

/* Rows of tile `i` of `n`, as even as they can be. */
static uint32_t share_of(uint32_t rows, uint32_t n, uint32_t i)
{
    return rows / n + (i < rows % n);
}

/* Rows of at most FEW_TILES tiles past some columns after the other. */
static void run_columns(uint32_t m, uint32_t n, const char *after, tile_args a)
{
    uint32_t n_tiles = (m + MAX_ROWS - 1) / MAX_ROWS, rows;
    uint32_t blocks  = tile_blocks(share_of(m, n_tiles, 0));

    for (uint32_t cols; n != 0; n -= cols, a.y += cols, skip_blocks(&a, blocks)) {
        tile_args t = a;

        if (blocks * LANES > n) blocks = n < LANES ? 1 : n / LANES;
        cols   = n < LANES ? n : blocks * LANES;
        t.next = n > cols || after == NULL ? a.b + blocks * a.block : after;
        for (uint32_t i = 0; i < n_tiles; i++, t.x += STAGE_ELEMS, t.y += rows * a.ld_y) {
            rows = share_of(m, n_tiles, i);
            run_wide(run_tile, rows, cols, &t);
        }
    }
}

static void run_few(const bt_cpu_mm *mm)
{
    _Alignas(64) x_elem  staged[FEW_TILES * STAGE_ELEMS];
    _Alignas(64) bt_bf16 wide[WIDE_BLOCKS * WIDE_LD];
    bt_cpu_wide_table    tables[WIDE_BLOCKS];
    uint32_t             k_pad = bt_cpu_pad(mm->k, 32), n_tiles = (mm->m + MAX_ROWS - 1) / MAX_ROWS;
    uint32_t             piece = (uint32_t)STAGE_LD(share_of(mm->m, n_tiles, 0));
    tile_args            a     = args_of(mm, tables, wide);

    BT_ASSERT(n_tiles <= FEW_TILES);

    a.x = staged;
    for (uint32_t k0 = 0, n_k; k0 < k_pad; k0 += n_k) {
        const bt_bf16 *x = mm->x + k0;

        n_k = k_pad - k0 < piece ? k_pad - k0 : piece;
        for (uint32_t i = 0; i < n_tiles; i++)
            for (uint32_t r = 0, rows = share_of(mm->m, n_tiles, i); r < rows; r++, x += mm->ld_x)
                stage_row(x, mm->k - k0 < n_k ? mm->k - k0 : n_k, n_k,
                          staged + i * STAGE_ELEMS + r * STAGE_LD(rows));
        begin_piece(mm, k0, n_k, &a);
        run_columns(mm->m, mm->n,
                    mm->after == NULL ? NULL : (const char *)mm->after + k0 / 2 * a.pair, a);
    }
}
