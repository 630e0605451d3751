/* device/cpu/mm_dp2.inc.h - dp2 by tiles of vector registers, whatever the instruction set.  The
 * including file defines what mm.inc.h wants but tile(), and
 *     vec, VEC            a register of sums, and how many it has; zeros(), load_y(), store_y()
 *     weights             a register of B, for HALVES halves of a pair of k: both at once (1), or
 *                         the odd k and then the even ones (2)
 *     half_of(b, half)    those of VEC columns, from the pairs at b
 *     multiply(x, w, acc) acc + x w, with x at its (half of a) pair
 *     MAX_VECS            of a tile's row
 *     AHEAD(rows, blocks) pairs, from what such a tile reads of B to what it fetches from memory,
 *     FETCH_TO            and to where: FIRST_LEVEL or SECOND_LEVEL
 *     FEW_ROWS            of products without panels, at most: FEW_TILES * MAX_ROWS or fewer; of
 *                         narrow weights, which each tile would widen again, MAX_ROWS
 *     MAKES_PANELS        0: a panel is B as it is packed; 1: its weights as registers want them
 *     PANEL_K             k of a piece: a multiple of 32
 *     PANEL_BLOCKS        column blocks of a panel: a power of two, four at most
 *     GROUP               rows that go past a panel, at most
 *     PANEL_ROWS          those of the largest tile: MAX_ROWS or fewer
 *     PANEL_CASES         those tiles: for all rows that share_of() gives
 *
 * A panel is a piece of k of some columns, as tiles read it.  It comes from memory once, to a near
 * cache, with the first tile of rows, which also makes it where it is made, and stays there while
 * all rows go past it, a tile of them after the other.  Meanwhile the next panel's B is fetched
 * into the second-level cache. */
#include "device/cpu/mm.inc.h"

enum {
    PANEL_LD   = PANEL_K + 32, /* from row to row of x: not all in one set of a cache */
    AHEAD_NEAR = 6, /* pairs, from what is read of B to what is fetched from the second level */
    PANEL_WIDE = PANEL_K * LANES + 32 /* elements of a column block that was narrow */
};
/* As many bytes of weights that are `times` narrower, in whole steps of what is widened. */
#define NARROW_AHEAD(rows, blocks, times) \
    ((AHEAD(rows, blocks) * (times) + WIDE_K / 2 - 1) / (WIDE_K / 2) * (WIDE_K / 2))
_Static_assert(sizeof(x_elem) * GROUP * PANEL_LD + sizeof(bt_bf16) * PANEL_BLOCKS * PANEL_WIDE <=
                   400 << 10,
               "x of a panel's rows, and what was narrow of it, on the stack of any thread");
_Static_assert((int)PANEL_BLOCKS <= (int)WIDE_BLOCKS &&
                   (int)MAX_VECS * (int)VEC / (int)LANES <= (int)WIDE_BLOCKS,
               "a table for each block of columns");

/* What a tile reads: B outside panels; B of a panel, as the first tile past it; or the panel. */
typedef enum { PACKED, FIRST, PANEL } b_source;

INLINE vec     zeros(void);
INLINE vec     load_y(const float *y);
INLINE void    store_y(float *y, vec v);
INLINE weights half_of(const bt_bf16 *b, int half);
INLINE vec     multiply(const x_elem *x, weights w, vec acc);

/* A register of B, or the i-th of a panel that was made of it. */
INLINE weights weights_at(const b_source from, const bt_bf16 *b, int half, weights *panel, int i)
{
    weights w;

    if (MAKES_PANELS && from == PANEL) return panel[i];
    w = half_of(b, half);
    if (MAKES_PANELS && from == FIRST) panel[i] = w;
    return w;
}

/* A pair of k: b, of the first block, or panel. */
INLINE void multiply_pair(const int rows, const int vecs, const b_source from, const x_elem *x,
                          const bt_bf16 *b, size_t block, weights *panel, vec acc[][MAX_VECS])
{
    const size_t ld_x = from == PACKED ? STAGE_LD(rows) : PANEL_LD;
    weights      w[MAX_VECS];

    UNROLL
    for (int i = 0; i < HALVES; i++) {
        const int half = HALVES - 1 - i;

        UNROLL
        for (int v = 0; v < vecs; v++)
            w[v] = weights_at(from, b + (size_t)(v * VEC / LANES) * block + v * VEC % LANES * 2,
                              half, panel, i * vecs + v);
        UNROLL
        for (int r = 0; r < rows; r++)
            UNROLL
        for (int v = 0; v < vecs; v++)
            acc[r][v] = multiply(x + r * ld_x + half, w[v], acc[r][v]);
    }
}

INLINE void dp2_tile(const int rows, const int blocks, const b_source from, const tile_args *a)
{
    const int      vecs  = blocks * LANES / VEC;
    const uint32_t ahead = a->kind == BT_WEIGHT_BF16   ? AHEAD(rows, blocks)
                           : a->kind == BT_WEIGHT_BF12 ? NARROW_AHEAD(rows, blocks, 1)
                           : a->kind == BT_WEIGHT_FP8  ? NARROW_AHEAD(rows, blocks, 2)
                                                       : NARROW_AHEAD(rows, blocks, 4);
    const x_elem  *x     = a->x;
    weights       *panel = a->panel;
    vec            acc[MAX_ROWS][MAX_VECS];

    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int v = 0; v < vecs; v++)
        acc[r][v] = a->from_zero ? zeros() : load_y(a->y + (size_t)r * a->ld_y + v * VEC);
    for (uint32_t p0 = 0, n; p0 < a->n_pairs; p0 += n) {
        const char    *later = a->next;
        const bt_bf16 *b     = a->panel_b;
        size_t         block = a->panel_block;

        n = from == PACKED ? pairs_until_next(a, p0, ahead, &later) : a->n_pairs;
        if (from == PACKED) b = wide_b(a, p0, blocks, &n, &block);
        for (uint32_t p = 0; p < n; p++) {
            for (int c = 0; from == FIRST && c < blocks; c++)
                __builtin_prefetch(b + AHEAD_NEAR * 2 * LANES + (size_t)c * block, 0, FIRST_LEVEL);
            for (int c = 0; from == PACKED && c < blocks; c++)
                __builtin_prefetch(later + c * a->block, 0, FETCH_TO);
            if (from != PACKED) __builtin_prefetch(later, 0, SECOND_LEVEL);
            multiply_pair(rows, vecs, from, x, b, block, panel, acc);
            x += 2;
            b += 2 * LANES;
            later += a->pair;
            if (MAKES_PANELS && from != PACKED) panel += HALVES * vecs;
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int v = 0; v < vecs; v++)
        store_y(a->y + (size_t)r * a->ld_y + v * VEC, acc[r][v]);
}

INLINE void tile(const int rows, const int blocks, const tile_args *a)
{
    dp2_tile(rows, blocks, PACKED, a);
}

#define PANEL_CASE(rows, blocks)              \
    case (rows)*8 + (blocks):                 \
        if (a->first)                         \
            dp2_tile(rows, blocks, FIRST, a); \
        else                                  \
            dp2_tile(rows, blocks, PANEL, a); \
        break;
static void run_panel_tile(uint32_t rows, uint32_t blocks, const tile_args *a)
{
    switch (rows * 8 + blocks) {
        PANEL_CASES
    default: BT_ASSERT(false);
    }
}

/* All rows past the panel of `cols` columns; B at `next` is read after it, of which each tile
 * fetches a block. */
static void run_panel(uint32_t m, uint32_t cols, const char *next, tile_args a)
{
    uint32_t n_tiles = (m + PANEL_ROWS - 1) / PANEL_ROWS, rows;

    for (uint32_t i = 0; i < n_tiles; i++, a.x += rows * PANEL_LD, a.y += rows * a.ld_y) {
        rows    = share_of(m, n_tiles, i);
        a.first = i == 0;
        a.next  = next + i % PANEL_BLOCKS * a.block;
        run_wide(run_panel_tile, rows, cols, &a);
    }
}

/* The panel at a->b as it is read: where it lies, or widened. */
static void begin_panel(uint32_t blocks, bt_bf16 *wide, tile_args *a)
{
    a->panel_b     = (const bt_bf16 *)(const void *)a->b;
    a->panel_block = a->block / sizeof(bt_bf16);
    if (a->kind == BT_WEIGHT_BF16) return;
    widen_pairs(a, 0, a->n_pairs, blocks, wide, PANEL_WIDE);
    a->panel_b     = wide;
    a->panel_block = PANEL_WIDE;
}

/* Some rows times a piece of all columns; B at `later` is read after it. */
static void run_piece(uint32_t m, uint32_t n, const char *later, tile_args a)
{
    weights panel[MAKES_PANELS ? PANEL_K / 2 * PANEL_BLOCKS * LANES / VEC * HALVES : 1];
    _Alignas(64) bt_bf16 wide[PANEL_BLOCKS * PANEL_WIDE];
    uint32_t             blocks = PANEL_BLOCKS;

    a.panel = panel;
    for (uint32_t cols; n != 0; n -= cols, a.y += cols, skip_blocks(&a, blocks)) {
        if (blocks * LANES > n) blocks = n < LANES ? 1 : n / LANES;
        cols = n < LANES ? n : blocks * LANES;
        begin_panel(blocks, wide, &a);
        run_panel(m, cols, n > cols ? a.b + blocks * a.block : later, a);
    }
}

static void run_many(const bt_cpu_mm *mm)
{
    _Alignas(64) x_elem staged[GROUP * PANEL_LD];
    bt_cpu_wide_table   tables[WIDE_BLOCKS];
    uint32_t            k_pad = bt_cpu_pad(mm->k, 32), n_groups = (mm->m + GROUP - 1) / GROUP;
    tile_args           a = args_of(mm, tables, NULL);

    a.x = staged;
    for (uint32_t i = 0, m0 = 0, m; i < n_groups; i++, m0 += m) {
        m   = share_of(mm->m, n_groups, i);
        a.y = mm->y + m0 * mm->ld_y;
        for (uint32_t k0 = 0, n_k; k0 < k_pad; k0 += n_k) {
            const char *later;

            n_k = k_pad - k0 < PANEL_K ? k_pad - k0 : PANEL_K;
            begin_piece(mm, k0, n_k, &a);
            later = k0 + n_k == k_pad && mm->after != NULL ? mm->after : a.b + PANEL_K / 2 * a.pair;
            for (uint32_t r = 0; r < m; r++)
                stage_row(mm->x + (m0 + r) * mm->ld_x + k0, mm->k - k0 < n_k ? mm->k - k0 : n_k,
                          n_k, staged + r * PANEL_LD);
            run_piece(m, mm->n, later, a);
        }
    }
}

static void run_dp2(const bt_cpu_mm *mm)
{
    if (mm->m > (mm->kind == BT_WEIGHT_BF16 ? (int)FEW_ROWS : (int)MAX_ROWS))
        run_many(mm);
    else
        run_few(mm);
}
