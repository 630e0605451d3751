/* device/cpu/mm_amx.c - tile32 as tdpbf16ps, which is where its order of additions is from.
 *
 * Tiles 0-3 accumulate, 4-5 hold x, 6-7 hold B.  A step of 32 k is 2 x 2 tiles (32 rows, 32
 * columns), or 1 x 2 for the last 16 rows or fewer.  k goes in pieces; x is copied into whole tiles
 * piece by piece, since its rows lie a page or so apart; between pieces the accumulators wait in y,
 * which is exact.
 *
 * The tile state belongs to the thread; each call configures and releases it, since a held state
 * makes context switches dearer. */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/families.h"

enum {
    TILE        = 16,
    STEP        = 32,
    TILE_ELEMS  = TILE * STEP,
    FEW_COLUMNS = 128, /* x is not worth copying */
    K_PIECE     = 512, /* 32 columns of it stay in the first-level cache, */
    GROUP       = 128  /* and so many rows of x in the second */
};

typedef struct {
    uint8_t  palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t  rows[16];
} tile_config;

/* gcc's tile intrinsics do not say that they read memory: what they are to read must be there. */
static inline void publish(const void *written)
{
    __asm__ volatile("" : : "r"(written) : "memory");
}

/* Tiles 0, 1, 4 have `upper` rows, tiles 2, 3, 5 have `lower`; 0 leaves them out. */
static void configure(uint32_t upper, uint32_t lower)
{
    tile_config c = {.palette = 1};

    for (int t = 0; t < 8; t++) {
        c.rows[t]      = t >= 6 ? TILE : (uint8_t)(t == 2 || t == 3 || t == 5 ? lower : upper);
        c.row_bytes[t] = c.rows[t] == 0 ? 0 : 64;
    }
    publish(&c);
    _tile_loadconfig(&c);
}

typedef struct {
    const bt_bf16 *x;       /* at the piece's first k */
    size_t         ld_x;    /* elements from row to row, */
    size_t         step_x;  /* from one step of 32 k to the next, */
    size_t         low_x;   /* and to the row 16 further down */
    const bt_bf16 *b;       /* at the piece's first k, two column blocks */
    size_t         block;   /* elements from one column block to the next; 0: there is only one */
    uint32_t       n_steps; /* in this piece */
    float         *y;
    size_t         ld_y;
    bool           from_zero; /* else from y */
} tile_args;

/* 2 x 2 tiles. */
static void tiles_22(const tile_args *a)
{
    const bt_bf16 *x = a->x, *b = a->b, *ahead = x + 2 * a->step_x;
    size_t         ld = a->ld_x * sizeof(*x), ld_y = a->ld_y * sizeof(*a->y);
    float         *low = a->y + TILE * a->ld_y;

    if (a->from_zero) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, a->y, ld_y);
        _tile_loadd(1, a->y + TILE, ld_y);
        _tile_loadd(2, low, ld_y);
        _tile_loadd(3, low + TILE, ld_y);
    }
    for (uint32_t s = 0; s < a->n_steps; s++) {
        for (size_t row = 0; row < TILE; row++) {
            _mm_prefetch((const char *)(ahead + row * a->ld_x), _MM_HINT_T0);
            _mm_prefetch((const char *)(ahead + a->low_x + row * a->ld_x), _MM_HINT_T0);
        }
        _tile_loadd(4, x, ld);
        _tile_loadd(6, b, 64);
        _tile_loadd(5, x + a->low_x, ld);
        _tile_loadd(7, b + a->block, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        x += a->step_x;
        ahead += a->step_x;
        b += TILE_ELEMS;
    }
    _tile_stored(0, a->y, ld_y);
    _tile_stored(1, a->y + TILE, ld_y);
    _tile_stored(2, low, ld_y);
    _tile_stored(3, low + TILE, ld_y);
}

/* 1 x 2 tiles: at most 16 rows, where reading B is what takes the time. */
static void tiles_12(const tile_args *a)
{
    enum { AHEAD = 4 * TILE_ELEMS };
    const bt_bf16 *x = a->x, *b = a->b;
    size_t         ld = a->ld_x * sizeof(*x), ld_y = a->ld_y * sizeof(*a->y);

    if (a->from_zero) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, a->y, ld_y);
        _tile_loadd(1, a->y + TILE, ld_y);
    }
    for (uint32_t s = 0; s < a->n_steps; s++, x += a->step_x, b += TILE_ELEMS) {
        for (int line = 0; line < TILE_ELEMS; line += 32) {
            _mm_prefetch((const char *)(b + AHEAD + line), _MM_HINT_T0);
            _mm_prefetch((const char *)(b + a->block + AHEAD + line), _MM_HINT_T0);
        }
        _tile_loadd(4, x, ld);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + a->block, 64);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, a->y, ld_y);
    _tile_stored(1, a->y + TILE, ld_y);
}

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void copy_rows(float *dst, size_t ld_dst, const float *src, size_t ld_src, uint32_t rows,
                      uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++)
        memcpy(dst + r * ld_dst, src + r * ld_src, cols * sizeof(*dst));
}

/* At most 32 rows and 32 columns; fewer columns go through a buffer. */
static void run_tiles(uint32_t rows, uint32_t cols, const tile_args *a)
{
    _Alignas(64) float edge[2 * TILE][2 * TILE];
    tile_args          inner = *a;

    if (cols < 2 * TILE) {
        inner.y    = edge[0];
        inner.ld_y = 2 * TILE;
        if (cols <= TILE) inner.block = 0;
        memset(edge, 0, sizeof(edge));
        if (!a->from_zero) copy_rows(edge[0], 2 * TILE, a->y, a->ld_y, rows, cols);
        publish(edge);
    }
    if (rows > TILE)
        tiles_22(&inner);
    else
        tiles_12(&inner);
    if (cols < 2 * TILE) copy_rows(a->y, a->ld_y, edge[0], 2 * TILE, rows, cols);
}

/* Copies rows of a piece of x into tiles; n_k elements of each, then +0 to whole steps. */
static void stage(const bt_bf16 *x, size_t ld_x, uint32_t rows, uint32_t n_k, bt_bf16 *tiles)
{
    uint32_t n_steps = bt_cpu_pad(n_k, STEP) / STEP;

    for (uint32_t r = 0; r < rows; r++) {
        const bt_bf16 *row = x + r * ld_x;
        bt_bf16       *out = tiles + (size_t)(r / TILE) * n_steps * TILE_ELEMS + r % TILE * STEP;

        for (uint32_t s = 0; s < n_k / STEP; s++)
            memcpy(out + (size_t)s * TILE_ELEMS, row + s * STEP, STEP * sizeof(*row));
        if (n_k % STEP != 0) {
            bt_bf16 *last = out + (size_t)(n_steps - 1) * TILE_ELEMS;

            memset(last, 0, STEP * sizeof(*last));
            memcpy(last, row + n_k / STEP * STEP, n_k % STEP * sizeof(*last));
        }
    }
    publish(tiles);
}

/* Rows m0 .. m0+rows of one piece of k: whole pairs of tiles, or at most 32.  With few columns x
 * is read where it lies, if its last step is whole. */
static void run_group(const bt_cpu_mm *mm, uint32_t m0, uint32_t rows, uint32_t k0, uint32_t n_k)
{
    _Alignas(64) bt_bf16 tiles[GROUP * K_PIECE];
    const bt_bf16       *x  = mm->x + m0 * mm->ld_x + k0;
    size_t               ld = mm->ld_x;
    tile_args            a  = {.ld_x      = ld,
                               .step_x    = STEP,
                               .low_x     = TILE * ld,
                               .block     = (size_t)bt_cpu_pad(mm->k, STEP) * TILE,
                               .n_steps   = bt_cpu_pad(n_k, STEP) / STEP,
                               .ld_y      = mm->ld_y,
                               .from_zero = k0 == 0 && !mm->add};

    if (mm->n > FEW_COLUMNS || n_k % STEP != 0) {
        stage(x, ld, rows, n_k, tiles);
        x        = tiles;
        a.ld_x   = STEP;
        a.step_x = TILE_ELEMS;
        a.low_x  = (size_t)a.n_steps * TILE_ELEMS;
    }
    for (uint32_t n0 = 0; n0 < mm->n; n0 += 2 * TILE) {
        a.b = mm->packed + n0 / TILE * a.block + (size_t)k0 * TILE;
        for (uint32_t r = 0; r < rows; r += 2 * TILE) {
            a.x = x + r / TILE * a.low_x;
            a.y = mm->y + (m0 + r) * mm->ld_y + n0;
            run_tiles(min_u32(rows - r, 2 * TILE), min_u32(mm->n - n0, 2 * TILE), &a);
        }
    }
}

void bt_cpu_mm_tile32_amx(const bt_cpu_mm *mm)
{
    for (uint32_t k0 = 0, n_k; k0 < mm->k; k0 += n_k) {
        n_k = min_u32(mm->k - k0, K_PIECE);
        for (uint32_t m0 = 0, rows; m0 < mm->m; m0 += rows) {
            rows = min_u32(mm->m - m0, GROUP);
            if (rows > 2 * TILE) rows = rows / (2 * TILE) * (2 * TILE);
            configure(rows < TILE ? rows : TILE, rows >= 2 * TILE ? TILE
                                                 : rows > TILE    ? rows - TILE
                                                                  : 0);
            run_group(mm, m0, rows, k0, n_k);
        }
    }
    _tile_release();
}
