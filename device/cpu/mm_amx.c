/* device/cpu/mm_amx.c - tile32 as tdpbf16ps, which is where its order of additions is from.
 *
 * Tiles 0-3 accumulate, 4-5 hold x, 6-7 hold B.  A step of 32 k is 2 x 2 tiles (32 rows, 32
 * columns), or 1 x 2 for the last 16 rows or fewer.  The tile state belongs to the thread; each
 * call configures and releases it, since a held state makes context switches dearer. */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/families.h"

enum { TILE = 16, STEP = 32, K_PIECE = 512 };

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
    const bt_bf16 *x; /* at the piece's first k */
    size_t         ld_x;
    const bt_bf16 *b;     /* at the piece's first k, two column blocks */
    size_t         block; /* elements from one column block to the next; 0: there is only one */
    uint32_t       n_steps;
    float         *y;
    size_t         ld_y;
    bool           from_zero;
} tile_args;

/* 2 x 2 tiles. */
static void tiles_22(const tile_args *a)
{
    const bt_bf16 *x = a->x, *b = a->b;
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
    for (uint32_t s = 0; s < a->n_steps; s++, x += STEP, b += STEP * TILE) {
        _tile_loadd(4, x, ld);
        _tile_loadd(6, b, 64);
        _tile_loadd(5, x + TILE * a->ld_x, ld);
        _tile_loadd(7, b + a->block, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, a->y, ld_y);
    _tile_stored(1, a->y + TILE, ld_y);
    _tile_stored(2, low, ld_y);
    _tile_stored(3, low + TILE, ld_y);
}

/* 1 x 2 tiles: at most 16 rows, where reading B is what takes the time. */
static void tiles_12(const tile_args *a)
{
    enum { AHEAD = 4 * STEP * TILE };
    const bt_bf16 *x = a->x, *b = a->b;
    size_t         ld = a->ld_x * sizeof(*x), ld_y = a->ld_y * sizeof(*a->y);

    if (a->from_zero) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, a->y, ld_y);
        _tile_loadd(1, a->y + TILE, ld_y);
    }
    for (uint32_t s = 0; s < a->n_steps; s++, x += STEP, b += STEP * TILE) {
        for (int line = 0; line < STEP * TILE; line += 32) {
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

static void copy_rows(float *dst, size_t ld_dst, const float *src, size_t ld_src, uint32_t rows,
                      uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++)
        memcpy(dst + r * ld_dst, src + r * ld_src, cols * sizeof(*dst));
}

/* Rows <= 32 (upper + lower) times all columns.  Fewer than 32 columns go through a buffer. */
static void run_columns(uint32_t rows, uint32_t n, tile_args a)
{
    size_t block = a.block;

    for (uint32_t cols; n != 0; n -= cols, a.y += cols, a.b += 2 * block) {
        float     edge[2 * TILE][2 * TILE];
        tile_args inner = a;

        cols = n < 2 * TILE ? n : 2 * TILE;
        if (cols < 2 * TILE) {
            inner.y    = edge[0];
            inner.ld_y = 2 * TILE;
            if (cols <= TILE) inner.block = 0;
            memset(edge, 0, sizeof(edge));
            if (!a.from_zero) copy_rows(edge[0], 2 * TILE, a.y, a.ld_y, rows, cols);
            publish(edge);
        }
        if (rows > TILE)
            tiles_22(&inner);
        else
            tiles_12(&inner);
        if (cols < 2 * TILE) copy_rows(a.y, a.ld_y, edge[0], 2 * TILE, rows, cols);
    }
}

/* One piece of k over all rows; `tail` counts the k of a last, partial step. */
static void run_piece(const bt_cpu_mm *mm, uint32_t k0, uint32_t n_k, uint32_t tail)
{
    for (uint32_t m0 = 0, rows; m0 < mm->m; m0 += rows) {
        _Alignas(64) bt_bf16 edge[2 * TILE][STEP];
        tile_args            a = {.x         = mm->x + m0 * mm->ld_x + k0,
                                  .ld_x      = mm->ld_x,
                                  .b         = mm->packed + (size_t)k0 * TILE,
                                  .block     = (size_t)bt_cpu_pad(mm->k, STEP) * TILE,
                                  .n_steps   = tail != 0 ? 1 : n_k / STEP,
                                  .y         = mm->y + m0 * mm->ld_y,
                                  .ld_y      = mm->ld_y,
                                  .from_zero = k0 == 0 && !mm->add};

        rows = mm->m - m0 < 2 * TILE ? mm->m - m0 : 2 * TILE;
        if (m0 == 0 || rows < 2 * TILE)
            configure(rows < TILE ? rows : TILE, rows > TILE ? rows - TILE : 0);
        if (tail != 0) {
            memset(edge, 0, sizeof(edge));
            for (uint32_t r = 0; r < rows; r++)
                memcpy(edge[r], a.x + r * a.ld_x, tail * sizeof(edge[0][0]));
            publish(edge);
            a.x    = edge[0];
            a.ld_x = STEP;
        }
        run_columns(rows, mm->n, a);
    }
}

void bt_cpu_mm_tile32_amx(const bt_cpu_mm *mm)
{
    uint32_t whole = mm->k / STEP * STEP;

    for (uint32_t k0 = 0, n_k; k0 < whole; k0 += n_k) {
        n_k = whole - k0 < K_PIECE ? whole - k0 : K_PIECE;
        run_piece(mm, k0, n_k, 0);
    }
    if (whole != mm->k) run_piece(mm, whole, STEP, mm->k - whole);
    _tile_release();
}
