/* device/cpu/mm.inc.h - the loops around a register tile that the including file defines, for
 * arithmetics that go through k from one end to the other:
 *     x_elem                     an element of x as the tile wants it: float, or bt_bf16 as it is
 *     MAX_ROWS                   rows of the largest tile
 *     tile_blocks(rows)          column blocks of 16 in a tile of so many rows (a power of two)
 *     tile(rows, blocks, args)   y += x b for a tile; rows and blocks are constants in each call
 *     MM                         the function's name
 * k goes in pieces, multiples of 32, whose x fits the first-level cache; between pieces the
 * accumulators wait in y, which is exact, so the pieces change no bit. */
#include <string.h>

#include "device/cpu/families.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES       = 16,
    STAGE_ELEMS = 4096,
    AHEAD       = 24 * 2 * LANES /* elements of B to prefetch: 24 pairs */
};
/* From one staged row to the next: a constant in each tile. */
#define STAGE_LD(rows) ((size_t)(STAGE_ELEMS / (rows) / 32 * 32))

typedef struct {
    const x_elem  *x;       /* [rows][STAGE_LD(rows)], padded with 0 to the end of the piece */
    const bt_bf16 *b;       /* this piece of the first column block */
    size_t         block;   /* elements from one column block to the next */
    const bt_bf16 *next;    /* this piece of what is read after these columns, or what lies there */
    uint32_t       n_pairs; /* in this piece */
    float         *y;
    size_t         ld_y;
    bool           from_zero; /* else from y */
} tile_args;

INLINE void     tile(const int rows, const int blocks, const tile_args *a);
INLINE uint32_t tile_blocks(uint32_t rows);

#define TILE_CASE(rows, blocks) \
    case (rows)*8 + (blocks): tile(rows, blocks, a); break;
static void run_tile(uint32_t rows, uint32_t blocks, const tile_args *a)
{
    switch (rows * 8 + blocks) {
        TILE_CASES
    default: break;
    }
}

/* The last, partial block of columns goes through a buffer. */
static void run_edge(uint32_t rows, uint32_t cols, const tile_args *a)
{
    float     edge[MAX_ROWS][LANES] = {{0}};
    tile_args inner                 = *a;

    inner.y    = edge[0];
    inner.ld_y = LANES;
    for (uint32_t r = 0; !a->from_zero && r < rows; r++)
        memcpy(edge[r], a->y + r * a->ld_y, cols * sizeof(float));
    run_tile(rows, 1, &inner);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(a->y + r * a->ld_y, edge[r], cols * sizeof(float));
}

static void run_columns(uint32_t rows, uint32_t n, const bt_bf16 *after, tile_args *a)
{
    uint32_t wide = tile_blocks(rows), blocks;

    for (; n >= LANES; n -= blocks * LANES) {
        for (blocks = wide; blocks * LANES > n;)
            blocks /= 2;
        a->next = n > blocks * LANES || after == NULL ? a->b + blocks * a->block : after;
        run_tile(rows, blocks, a);
        a->b += blocks * a->block;
        a->y += blocks * LANES;
    }
    if (n != 0) run_edge(rows, n, a);
}

INLINE void stage_row(const bt_bf16 *x, uint32_t n, uint32_t n_pad, x_elem *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = STAGE(x[i]);
    memset(out + n, 0, (n_pad - n) * sizeof(*out));
}

static uint32_t tile_rows(uint32_t left)
{
    uint32_t rows = MAX_ROWS;

    while (rows > left)
        rows = rows == 12 ? 8 : rows / 2;
    return rows;
}

void MM(const bt_cpu_mm *mm)
{
    _Alignas(64) x_elem staged[STAGE_ELEMS];
    uint32_t            k_pad = bt_cpu_pad(mm->k, 32);
    uint32_t            piece = (uint32_t)STAGE_LD(tile_rows(mm->m));

    for (uint32_t k0 = 0, n_k; k0 < k_pad; k0 += n_k) {
        n_k = k_pad - k0 < piece ? k_pad - k0 : piece;
        for (uint32_t m0 = 0, rows; m0 < mm->m; m0 += rows) {
            tile_args a = {.x         = staged,
                           .b         = mm->packed + (size_t)k0 * LANES,
                           .block     = bt_cpu_block_elems(mm),
                           .n_pairs   = n_k / 2,
                           .y         = mm->y + m0 * mm->ld_y,
                           .ld_y      = mm->ld_y,
                           .from_zero = k0 == 0 && !mm->add};

            rows = tile_rows(mm->m - m0);
            for (uint32_t r = 0; r < rows; r++)
                stage_row(mm->x + (m0 + r) * mm->ld_x + k0, mm->k - k0 < n_k ? mm->k - k0 : n_k,
                          n_k, staged + r * STAGE_LD(rows));
            run_columns(rows, mm->n, mm->after == NULL ? NULL : mm->after + (size_t)k0 * LANES, &a);
        }
    }
}
