/* device/cpu/mm_amx.c - tile32 as tdpbf16ps, which is where its order of additions is from.
 *
 * Weights, which come from memory, go past 16 rows of x at a time that have been copied into tiles
 * (mm_amx_stream.c; those of 4 bits: mm_amx_int4.c).  (mm_amx_tiles.c has many rows, which the
 * caller has made into tiles.)
 *
 * Of a B that is near: tiles 0-3 accumulate, 4-5 hold x, 6-7 hold B.  A step of 32 k is 2 x 2 tiles
 * (32 rows, 32 columns), 1 x 2 or 2 x 1.  The last rows that fill no tile are a group of their own.
 * x is read where it lies unless its k are no whole steps; then it is copied into tiles, some rows
 * and a piece of k at a time.  Between pieces the accumulators wait in y, which is exact. */
#include <string.h>

#include "core/minmax.h"
#include "device/cpu/amx.h"
#include "device/cpu/families.h"

enum {
    LINE     = 32,  /* elements */
    FEW_ROWS = 2,   /* of weights in bf16: a register tile does better */
    K_PIECE  = 512, /* of what is copied, */
    GROUP    = 128, /* rows */
    STREAM_K = 4096 /* of a copy of 16 rows */
};

#define INLINE static inline __attribute__((always_inline))

typedef struct {
    const bt_bf16 *x;      /* at the piece's first k */
    size_t         ld_x;   /* elements from row to row, */
    size_t         step_x; /* from one step of 32 k to the next, */
    size_t         low_x;  /* and to the row 16 further down */
    const bt_bf16 *b;      /* at the piece's first k, two column blocks */
    size_t         block;  /* elements from one column block to the next; 0: there is only one */
    const bt_bf16 *next;   /* of `fetch`: `n_next` lines a step */
    size_t         next_2; /* from there, and as many from so many elements further on */
    uint32_t       n_next;
    uint32_t       n_steps; /* in this piece */
    float         *y;
    size_t         ld_y;
    bool           from_zero; /* else from y */
} tile_args;

INLINE void fetch(const tile_args *a, uint32_t s)
{
    const bt_bf16 *b = a->next + (size_t)s * a->n_next * LINE;

    for (uint32_t i = 0; i < a->n_next; i++, b += LINE) {
        _mm_prefetch((const char *)b, _MM_HINT_T2);
        _mm_prefetch((const char *)(b + a->next_2), _MM_HINT_T2);
    }
}

/* Sums of a tile, which gcc wants by a number as it stands. */
#define TAKE(t, at)                   \
    do {                              \
        if (a->from_zero)             \
            _tile_zero(t);            \
        else                          \
            _tile_loadd(t, at, ld_y); \
    } while (0)

/* One or two tiles of rows by one or two of columns. */
INLINE void multiply(const tile_args *a, const bool lower, const bool right)
{
    const bt_bf16 *x = a->x, *b = a->b;
    size_t         ld = a->ld_x * sizeof(*x), ld_y = a->ld_y * sizeof(*a->y);
    float         *low = a->y + TILE * a->ld_y;

    TAKE(0, a->y);
    if (right) TAKE(1, a->y + TILE);
    if (lower) TAKE(2, low);
    if (lower && right) TAKE(3, low + TILE);
    for (uint32_t s = 0; s < a->n_steps; s++) {
        fetch(a, s);
        _tile_loadd(4, x, ld);
        _tile_loadd(6, b, 64);
        if (lower) _tile_loadd(5, x + a->low_x, ld);
        if (right) _tile_loadd(7, b + a->block, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (right) _tile_dpbf16ps(1, 4, 7);
        if (lower) _tile_dpbf16ps(2, 5, 6);
        if (lower && right) _tile_dpbf16ps(3, 5, 7);
        x += a->step_x;
        b += TILE_ELEMS;
    }
    _tile_stored(0, a->y, ld_y);
    if (right) _tile_stored(1, a->y + TILE, ld_y);
    if (lower) _tile_stored(2, low, ld_y);
    if (lower && right) _tile_stored(3, low + TILE, ld_y);
}

static void run_whole(bool lower, const tile_args *a)
{
    if (lower)
        multiply(a, true, true);
    else
        multiply(a, false, true);
}

static void copy_rows(float *dst, size_t ld_dst, const float *src, size_t ld_src, uint32_t rows,
                      uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++)
        memcpy(dst + r * ld_dst, src + r * ld_src, cols * sizeof(*dst));
}

/* At most 32 rows, fewer than 32 columns: through a buffer. */
static void run_edge(uint32_t rows, uint32_t cols, const tile_args *a)
{
    _Alignas(64) float edge[2 * TILE][2 * TILE];
    tile_args          inner = *a;

    inner.y    = edge[0];
    inner.ld_y = 2 * TILE;
    if (cols <= TILE) inner.block = 0;
    if (!a->from_zero) {
        memset(edge, 0, sizeof(edge));
        copy_rows(edge[0], 2 * TILE, a->y, a->ld_y, rows, cols);
    }
    publish(edge);
    run_whole(rows > TILE, &inner);
    copy_rows(a->y, a->ld_y, edge[0], 2 * TILE, rows, cols);
}

/* Copies rows of a piece of x into tiles; n_k elements of each, then +0 to whole steps. */
static void stage(const bt_bf16 *x, size_t ld_x, uint32_t rows, uint32_t n_k, bt_bf16 *tiles)
{
    uint32_t n_steps = bt_cpu_pad(n_k, STEP) / STEP;

    for (uint32_t r = 0; r < rows; r++) {
        const bt_bf16 *row  = x + r * ld_x;
        bt_bf16       *out  = tiles + (size_t)(r / TILE) * n_steps * TILE_ELEMS + r % TILE * STEP;
        bt_bf16       *last = out + (size_t)(n_steps - 1) * TILE_ELEMS;

        for (uint32_t s = 0; s < n_k / STEP; s++)
            memcpy(out + (size_t)s * TILE_ELEMS, row + s * STEP, STEP * sizeof(*row));
        if (n_k % STEP != 0) {
            memset(last, 0, STEP * sizeof(*last));
            memcpy(last, row + n_k / STEP * STEP, n_k % STEP * sizeof(*last));
        }
    }
    publish(tiles);
}

/* B from k0 on of a column block. */
static const void *b_at(const bt_cpu_mm *mm, uint32_t block, uint32_t k0)
{
    return weight_at(mm->packed, mm->kind, block * bt_cpu_block_elems(mm) + (size_t)k0 * TILE);
}

/* Where B goes on at n0 in the piece from k0 on to k1: these columns, or the first ones of the next
 * piece, or what comes after. */
static const void *b_after(const bt_cpu_mm *mm, uint32_t n0, uint32_t k0, uint32_t k1)
{
    if (n0 < mm->n) return b_at(mm, n0 / TILE, k0);
    return k1 < mm->k ? b_at(mm, 0, k1) : mm->after;
}

/* The blocks from n0 on, narrow. */
static bt_cpu_narrow narrow_at(const bt_cpu_mm *mm, uint32_t n0)
{
    return (bt_cpu_narrow){
        mm->kind, b_at(mm, n0 / TILE, 0), bt_cpu_weight_bytes(mm->kind, bt_cpu_block_elems(mm)),
        bt_cpu_side_at(mm->side, mm->kind, mm->k, n0 / TILE), bt_cpu_side_bytes(mm->kind, mm->k)};
}

/* Rows m0 .. m0+rows, whole tiles or fewer rows than one, of the piece from k0 to k1, whose tiles
 * or rows of x are in a. */
static void run_group(const bt_cpu_mm *mm, uint32_t m0, uint32_t rows, uint32_t k0, uint32_t k1,
                      tile_args *a)
{
    const bt_bf16 *x = a->x;

    configure(rows < TILE ? rows : TILE, TILE);
    a->block     = bt_cpu_block_elems(mm);
    a->n_steps   = bt_cpu_pad(k1 - k0, STEP) / STEP;
    a->ld_y      = mm->ld_y;
    a->from_zero = k0 == 0 && !mm->add;
    for (uint32_t n0 = 0; n0 < mm->n; n0 += 2 * TILE) {
        a->b = b_at(mm, n0 / TILE, k0);
        for (uint32_t r = 0; r < rows; r += 2 * TILE) {
            a->x = x + r / TILE * a->low_x;
            a->y = mm->y + (m0 + r) * mm->ld_y + n0;
            if (mm->n - n0 >= 2 * TILE)
                run_whole(rows - r > TILE, a);
            else if (mm->n - n0 == TILE && rows - r > TILE)
                multiply(a, true, false);
            else
                run_edge(bt_min_u32(rows - r, 2 * TILE), mm->n - n0, a);
            a->next += (size_t)a->n_steps * a->n_next * LINE;
        }
    }
}

/* How many of `left` rows go together: whole tiles, or the last few. */
static uint32_t group_rows(uint32_t left, uint32_t most)
{
    left = bt_min_u32(left, most);
    return left > TILE ? left / TILE * TILE : left;
}

/* Lines of each half of `fetch` that a step fetches. */
static uint32_t fetch_lines(const bt_cpu_mm *mm)
{
    uint32_t n_steps = bt_cpu_pad(mm->n, 2 * TILE) / (2 * TILE) *
                       (bt_cpu_pad(mm->m, 2 * TILE) / (2 * TILE)) *
                       (bt_cpu_pad(mm->k, STEP) / STEP);

    return (mm->n_fetch / 2 / LINE + n_steps - 1) / n_steps;
}

/* Columns of y become sums of blocks, or the other way round. */
static void turn_sums(float *y, size_t ld_y, uint32_t rows, uint32_t cols,
                      float (*sums)[TILE][TILE], bool to_sums)
{
    for (uint32_t c = 0; c < cols; c += TILE) {
        float   *block = sums[c / TILE][0];
        uint32_t n     = bt_min_u32(cols - c, TILE);

        if (to_sums)
            copy_rows(block, TILE, y + c, ld_y, rows, n);
        else
            copy_rows(y + c, ld_y, block, TILE, rows, n);
    }
}

/* B in bf16 that is near, as pages' keys and values are, or queries that keys pass. */
static void multiply_near(const bt_cpu_mm *mm)
{
    _Alignas(64) bt_bf16 tiles[GROUP * K_PIECE];
    bool                 staged = mm->k % STEP != 0;
    tile_args            a      = {.next   = mm->n_fetch != 0 ? mm->fetch : mm->x,
                                   .next_2 = mm->n_fetch / 2,
                                   .n_next = fetch_lines(mm)};

    for (uint32_t k0 = 0, k1; k0 < mm->k; k0 = k1) {
        k1 = staged ? bt_min_u32(mm->k, k0 + K_PIECE) : mm->k;
        for (uint32_t m0 = 0, rows; m0 < mm->m; m0 += rows) {
            a.x      = mm->x + m0 * mm->ld_x + k0;
            a.ld_x   = mm->ld_x;
            a.step_x = STEP;
            a.low_x  = TILE * mm->ld_x;
            rows     = group_rows(mm->m - m0, GROUP);
            if (staged) {
                stage(a.x, mm->ld_x, rows, k1 - k0, tiles);
                a.x      = tiles;
                a.ld_x   = STEP;
                a.step_x = TILE_ELEMS;
                a.low_x  = (size_t)bt_cpu_pad(k1 - k0, STEP) * TILE;
            }
            run_group(mm, m0, rows, k0, k1, &a);
        }
    }
}

/* At most 16 rows, and weights of 8, 12 or 16 bits, which come from memory: all of k at a time,
 * where that fits. */
static void stream_rows(const bt_cpu_mm *mm)
{
    _Alignas(64) bt_bf16 tiles[STREAM_K * TILE];
    _Alignas(64) float   sums[AMX_STREAM_BLOCKS][TILE][TILE];
    bt_cpu_wide_table    tables[AMX_STREAM_BLOCKS];
    bt_cpu_amx_stream    s = {.x = tiles, .block = bt_cpu_block_elems(mm), .sums = sums[0][0]};
    bt_cpu_amx_narrow    n = {.tables = tables};

    memset(sums, 0, sizeof(sums)); /* some are loaded where there are no columns */
    for (uint32_t c = 0; c < AMX_STREAM_BLOCKS; c++)
        bt_cpu_wide_begin(&tables[c]);

    configure(mm->m, TILE);
    for (uint32_t k0 = 0, k1; k0 < mm->k; k0 = k1) {
        k1          = bt_min_u32(mm->k, k0 + STREAM_K);
        s.n_steps   = bt_cpu_pad(k1 - k0, STEP) / STEP;
        s.from_zero = k0 == 0 && !mm->add;
        stage(mm->x + k0, mm->ld_x, mm->m, k1 - k0, tiles);
        for (uint32_t n0 = 0, cols; n0 < mm->n; n0 += cols) {
            uint32_t n_blocks = amx_stream_blocks(1, mm->n - n0);

            cols   = bt_min_u32(mm->n - n0, n_blocks * TILE);
            s.b    = b_at(mm, n0 / TILE, k0);
            s.next = b_after(mm, n0 + cols, k0, k1);
            if (s.next == NULL) s.next = s.b;
            if (!s.from_zero) turn_sums(mm->y + n0, mm->ld_y, mm->m, cols, sums, true);
            if (mm->kind == BT_WEIGHT_BF16) {
                bt_cpu_amx_stream_run(&s, 1, n_blocks);
            } else {
                n.from = narrow_at(mm, n0);
                n.k0   = k0;
                bt_cpu_amx_stream_narrow(&s, &n, 1, n_blocks);
            }
            turn_sums(mm->y + n0, mm->ld_y, mm->m, cols, sums, false);
        }
    }
}

void bt_cpu_mm_tile32_amx(const bt_cpu_mm *mm)
{
    bool int4 = mm->kind == BT_WEIGHT_INT4;

    if (mm->m <= FEW_ROWS && mm->kind == BT_WEIGHT_BF16) {
        bt_cpu_mm_tile32_avx512(mm);
        return;
    }
    if (mm->cached && mm->kind == BT_WEIGHT_BF16) {
        multiply_near(mm);
    } else {
        uint32_t most = int4 ? AMX_NARROW_ROWS : TILE;

        for (uint32_t m0 = 0; m0 < mm->m; m0 += most) {
            bt_cpu_mm rows = *mm;

            rows.x += m0 * mm->ld_x;
            rows.y += m0 * mm->ld_y;
            rows.m = bt_min_u32(mm->m - m0, most);
            if (int4)
                bt_cpu_amx_int4(&rows, STEP, TILE * mm->ld_x);
            else
                stream_rows(&rows);
        }
    }
    _tile_release();
}
