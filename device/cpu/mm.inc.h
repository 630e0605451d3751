/* device/cpu/mm.inc.h - the loops around a register tile that the including file defines, for
 * arithmetics that go through k from one end to the other:
 *     x_elem, STAGE(v)           an element of x as the tile wants it: float, or bt_bf16 as it is
 *     STAGE_ELEMS                of x, at most, that a tile goes through in one piece of k
 *     MAX_ROWS                   rows of the largest tile
 *     tile_blocks(rows)          column blocks of 16 in a tile of so many rows
 *     tile(rows, blocks, args)   y += x b for a tile; rows and blocks are constants in each call
 *     TILE_CASES                 the tiles that there are
 * k goes in pieces, multiples of 32, whose x is in a near cache; between pieces the accumulators
 * wait in y, which is exact, so the pieces change no bit. */
#include <string.h>

#include "core/log.h"
#include "device/cpu/families.h"

#define INLINE static inline __attribute__((always_inline))
/* Loops over a tile's rows, blocks and vectors: what they go through must be registers. */
#define UNROLL _Pragma("GCC unroll 16")

enum {
    LANES     = 16,
    FEW_TILES = 2 /* that go past the same columns, at most */
};
/* From one staged row to the next: a constant in each tile. */
#define STAGE_LD(rows) ((size_t)(STAGE_ELEMS / (rows) / 32 * 32))

typedef struct {
    const x_elem  *x;       /* [rows] STAGE_LD(rows) apart, padded with 0 to the end of the piece */
    const bt_bf16 *b;       /* this piece of the first column block */
    size_t         block;   /* elements from one column block to the next */
    const bt_bf16 *next;    /* this piece of what is read after these columns, or what lies there */
    uint32_t       n_pairs; /* in this piece */
    float         *y;
    size_t         ld_y;
    bool           from_zero; /* else from y */
    void          *panel;     /* for mm_dp2.inc.h; */
    bool           first;     /* the tile that goes past it first */
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
                                 const bt_bf16 **later_out)
{
    uint32_t n = a->n_pairs - p0;

    if (n > ahead) {
        *later_out = a->b + (size_t)(p0 + ahead) * 2 * LANES;
        return n - ahead;
    }
    *later_out = a->next + (size_t)(ahead - n) * 2 * LANES;
    return n;
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
static void run_columns(uint32_t m, uint32_t n, const bt_bf16 *after, tile_args a)
{
    uint32_t n_tiles = (m + MAX_ROWS - 1) / MAX_ROWS, rows;
    uint32_t blocks  = tile_blocks(share_of(m, n_tiles, 0));

    for (uint32_t cols; n != 0; n -= cols, a.y += cols, a.b += blocks * a.block) {
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
    _Alignas(64) x_elem staged[FEW_TILES * STAGE_ELEMS];
    uint32_t            k_pad = bt_cpu_pad(mm->k, 32), n_tiles = (mm->m + MAX_ROWS - 1) / MAX_ROWS;
    uint32_t            piece = (uint32_t)STAGE_LD(share_of(mm->m, n_tiles, 0));

    BT_ASSERT(n_tiles <= FEW_TILES);

    for (uint32_t k0 = 0, n_k; k0 < k_pad; k0 += n_k) {
        const bt_bf16 *x = mm->x + k0;

        n_k = k_pad - k0 < piece ? k_pad - k0 : piece;
        for (uint32_t i = 0; i < n_tiles; i++)
            for (uint32_t r = 0, rows = share_of(mm->m, n_tiles, i); r < rows; r++, x += mm->ld_x)
                stage_row(x, mm->k - k0 < n_k ? mm->k - k0 : n_k, n_k,
                          staged + i * STAGE_ELEMS + r * STAGE_LD(rows));
        run_columns(mm->m, mm->n, mm->after == NULL ? NULL : mm->after + (size_t)k0 * LANES,
                    (tile_args){.x         = staged,
                                .b         = mm->packed + (size_t)k0 * LANES,
                                .block     = bt_cpu_block_elems(mm),
                                .n_pairs   = n_k / 2,
                                .y         = mm->y,
                                .ld_y      = mm->ld_y,
                                .from_zero = k0 == 0 && !mm->add});
    }
}
