/* device/cpu/mm_amx_tiles.c - tile32 for many rows: x lies in tiles, 16 rows of 32 k each.
 *
 * What limits a core is the lines that its first-level cache waits for, from the second level and,
 * for longer, from memory.  So x stays in the second-level cache while all columns pass; a piece of
 * a panel of 32 columns stays in the first, while the tiles of x stream past it; and the panel that
 * follows is fetched a few lines at a time.  Between pieces of k the sums of a panel wait in
 * memory, which is exact.  When x is too long for the cache, the columns pass once for each macro
 * piece.
 *
 * With `up`, a panel is 16 columns of gate and the same of up.
 *
 * Tiles 0-3 accumulate, 4-5 hold x, 6-7 hold B: a step of 32 k is 2 x 2 tiles, or 1 x 2 for the
 * last 16 rows. */
#include <immintrin.h>
#include <string.h>

#include "device/cpu/families.h"

enum {
    TILE          = 16,
    STEP          = 32,
    PANEL         = 2 * TILE,
    TILE_ELEMS    = TILE * STEP,
    LINE          = 32,           /* elements */
    PIECE         = 512,          /* k of a panel in the first-level cache: 32 KiB */
    X_ELEMS       = 512 << 10,    /* of x in the second-level cache, */
    X_ELEMS_FEW   = 128 << 10,    /* through which more weights pass where rows are few */
    MANY_ROWS     = 128,          /* of a result that no cache keeps for its reader */
    SUMS          = TILE * PANEL, /* of a tile row and a panel */
    SUM_LINES     = 4,            /* that a step fetches: two tile rows' in a piece */
    FEW_TILE_ROWS = 4             /* whose sums stay in the first-level cache */
};

#define INLINE static inline __attribute__((always_inline))

/* gcc's tile intrinsics do not say that they read memory: what they are to read must be there. */
static inline void publish(const void *written)
{
    __asm__ volatile("" : : "r"(written) : "memory");
}

static void configure(void)
{
    struct {
        uint8_t  palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t  rows[16];
    } c = {.palette = 1};

    for (int t = 0; t < 8; t++) {
        c.rows[t]      = TILE;
        c.row_bytes[t] = 64;
    }
    publish(&c);
    _tile_loadconfig(&c);
}

/* A piece of k of one panel, and what is fetched meanwhile. */
typedef struct {
    const bt_bf16 *x;     /* of the first tile row, */
    size_t         low_x; /* and elements to the next one */
    const bt_bf16 *b;     /* of the first column block, */
    size_t         block; /* and elements to the second one; 0: there is only one */
    const bt_bf16 *next;  /* the same of what follows */
    size_t         next_block;
    uint32_t       n_next; /* lines of it that a step fetches */
    uint32_t       n_steps;
    float         *sums;      /* [tile rows][2][16][16] */
    const float   *next_sums; /* those of the next rows, */
    uint32_t       sum_lines; /* and how many lines of them a step fetches */
    bool           from_zero;
} piece;

INLINE void fetch(const piece *p, uint32_t step)
{
    const bt_bf16 *next = p->next + (size_t)step * p->n_next * LINE;

    for (uint32_t i = 0; i < p->n_next; i++, next += LINE) {
        _mm_prefetch((const char *)next, _MM_HINT_T1);
        _mm_prefetch((const char *)(next + p->next_block), _MM_HINT_T1);
    }
}

/* What the next rows' sums are read and written of, to the first-level cache. */
INLINE void fetch_sums(const piece *p, uint32_t step)
{
    const float *next = p->next_sums + (size_t)step * p->sum_lines * LINE / 2;

    for (uint32_t i = 0; i < p->sum_lines; i++, next += LINE / 2)
        _mm_prefetch((const char *)next, _MM_HINT_T0);
}

/* 2 x 2 tiles.  Loads of x say that it streams, so that B stays. */
static void tiles_22(const piece *p)
{
    const bt_bf16 *x = p->x, *b = p->b;

    if (p->from_zero) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, p->sums, 64);
        _tile_loadd(1, p->sums + 256, 64);
        _tile_loadd(2, p->sums + 512, 64);
        _tile_loadd(3, p->sums + 768, 64);
    }
    for (uint32_t s = 0; s < p->n_steps; s++) {
        fetch(p, s);
        fetch_sums(p, s);
        _tile_stream_loadd(4, x, 64);
        _tile_loadd(6, b, 64);
        _tile_stream_loadd(5, x + p->low_x, 64);
        _tile_loadd(7, b + p->block, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        x += TILE_ELEMS;
        b += TILE_ELEMS;
    }
    _tile_stored(0, p->sums, 64);
    _tile_stored(1, p->sums + 256, 64);
    _tile_stored(2, p->sums + 512, 64);
    _tile_stored(3, p->sums + 768, 64);
}

/* 1 x 2 tiles. */
static void tiles_12(const piece *p)
{
    const bt_bf16 *x = p->x, *b = p->b;

    if (p->from_zero) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, p->sums, 64);
        _tile_loadd(1, p->sums + 256, 64);
    }
    for (uint32_t s = 0; s < p->n_steps; s++) {
        fetch(p, s);
        _tile_stream_loadd(4, x, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + p->block, 64);
        _tile_dpbf16ps(1, 4, 7);
        x += TILE_ELEMS;
        b += TILE_ELEMS;
    }
    _tile_stored(0, p->sums, 64);
    _tile_stored(1, p->sums + 256, 64);
}

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* One piece of k of a panel against all rows; p says where it begins. */
static void run_piece(piece p, uint32_t n_tile_rows)
{
    uint32_t     n_passes = (n_tile_rows + 1) / 2, left = TILE;
    uint32_t     lines      = p.next == NULL ? 0 : (TILE + n_passes - 1) / n_passes;
    const float *first_sums = p.sums;

    if (p.next == NULL) p.next = p.b;
    p.sum_lines = n_tile_rows > FEW_TILE_ROWS ? SUM_LINES : 0;
    for (uint32_t r = 0; r < n_tile_rows; r += 2) {
        p.n_next = min_u32(lines, left);
        left -= p.n_next;
        p.next_sums = r + 2 < n_tile_rows ? p.sums + (size_t)2 * SUMS : first_sums;
        if (r + 1 < n_tile_rows)
            tiles_22(&p);
        else
            tiles_12(&p);
        p.x += 2 * p.low_x;
        p.next += (size_t)p.n_steps * p.n_next * LINE;
        p.sums += (size_t)2 * SUMS;
    }
}

/* Full lines go past the caches: the next one to read them comes late, and to own a line first, its
 * old contents would have to be fetched. */
INLINE void put_line(void *to, __m512i line, bool past)
{
    if (past)
        _mm512_stream_si512(to, line);
    else
        _mm512_storeu_si512(to, line);
}

/* Up to 16 columns of a row, to fp32 or bf16. */
INLINE void put_some(const bt_cpu_mm_tiles *mm, size_t at, __m512 v, uint32_t cols)
{
    __mmask16 mask = (__mmask16)((1u << cols) - 1);

    if (mm->y_dtype == BT_F32)
        _mm512_mask_storeu_ps((float *)mm->y + at, mask, v);
    else
        _mm256_mask_storeu_epi16((bt_bf16 *)mm->y + at, mask, (__m256i)_mm512_cvtneps_pbh(v));
}

static void put_panel(const bt_cpu_mm_tiles *mm, const float *sums, uint32_t n0)
{
    uint32_t cols = min_u32(mm->n - n0, PANEL), low = min_u32(cols, TILE);
    size_t   elem = mm->y_dtype == BT_F32 ? sizeof(float) : sizeof(bt_bf16);
    bool     past = mm->m >= MANY_ROWS && mm->ld_y * elem % 64 == 0 && (uintptr_t)mm->y % 64 == 0;

    for (uint32_t r = 0; r < mm->m; r++) {
        const float *row = sums + (size_t)(r / TILE) * SUMS + (size_t)(r % TILE) * TILE;
        size_t       at  = r * mm->ld_y + n0;
        __m512       v0 = _mm512_load_ps(row), v1 = _mm512_load_ps(row + SUMS / 2);

        if (cols != PANEL) {
            put_some(mm, at, v0, low);
            put_some(mm, at + TILE, v1, cols - low);
        } else if (mm->y_dtype == BT_BF16) {
            put_line((bt_bf16 *)mm->y + at, (__m512i)_mm512_cvtne2ps_pbh(v1, v0), past);
        } else {
            put_line((float *)mm->y + at, _mm512_castps_si512(v0), past);
            put_line((float *)mm->y + at + TILE, _mm512_castps_si512(v1), past);
        }
    }
}

/* A tile of sums, rounded. */
INLINE void round_tile(const float *sums, bt_bf16 *out)
{
    for (uint32_t i = 0; i < TILE * TILE; i += 2 * TILE) {
        __m512 v0 = _mm512_load_ps(sums + i), v1 = _mm512_load_ps(sums + i + TILE);

        _mm512_store_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(v1, v0));
    }
}

/* 16 columns of gate and up become as many of the activation, which are half a tile's. */
static void put_swiglu(const bt_cpu_mm_tiles *mm, const float *sums, uint32_t n0)
{
    _Alignas(64) bt_bf16 gate[TILE * TILE], up[TILE * TILE], act[TILE * TILE];

    for (uint32_t r = 0; r < mm->m; r += TILE, sums += SUMS) {
        bt_bf16 *out = (bt_bf16 *)mm->y + r / TILE * mm->ld_y + n0 / STEP * TILE_ELEMS + n0 % STEP;

        round_tile(sums, gate);
        round_tile(sums + SUMS / 2, up);
        bt_cpu_rows_avx512bf16.swiglu_row(gate, up, TILE * TILE, act);
        for (uint32_t i = 0; i < TILE; i++)
            memcpy(out + (size_t)i * STEP, act + (size_t)i * TILE, TILE * sizeof(*out));
    }
}

/* The panel that begins at column n0, over the k of a macro piece. */
static void run_panel(const bt_cpu_mm_tiles *mm, uint32_t n0, uint32_t from_k, uint32_t to_k,
                      float *sums, const bt_bf16 *next)
{
    size_t   tile_row    = (size_t)bt_cpu_pad(mm->k, STEP) * TILE;
    uint32_t n_tile_rows = bt_cpu_pad(mm->m, TILE) / TILE;
    size_t   block       = mm->up != 0 ? mm->up : tile_row;

    for (uint32_t k0 = from_k, k1; k0 < to_k; k0 = k1) {
        k1      = min_u32(to_k, k0 + PIECE);
        piece p = {.x          = mm->x + (size_t)k0 * TILE,
                   .low_x      = tile_row,
                   .b          = mm->packed + n0 / TILE * tile_row + (size_t)k0 * TILE,
                   .block      = mm->up == 0 && mm->n - n0 <= TILE ? 0 : block,
                   .next       = next == NULL ? NULL : next + (size_t)(k0 - from_k) * TILE,
                   .next_block = block,
                   .n_steps    = bt_cpu_pad(k1 - k0, STEP) / STEP,
                   .sums       = sums,
                   .from_zero  = k0 == 0};

        run_piece(p, n_tile_rows);
    }
    if (to_k != mm->k) return;
    if (mm->up != 0)
        put_swiglu(mm, sums, n0);
    else
        put_panel(mm, sums, n0);
}

void bt_cpu_mm_tile32_amx_tiles(const bt_cpu_mm_tiles *mm)
{
    size_t   tile_row   = (size_t)bt_cpu_pad(mm->k, STEP) * TILE;
    size_t   panel_sums = (size_t)bt_cpu_pad(mm->m, TILE) * PANEL;
    uint32_t width      = mm->up != 0 ? TILE : PANEL; /* columns of B from panel to panel */
    uint32_t x_elems    = mm->m <= FEW_TILE_ROWS * TILE ? X_ELEMS_FEW : X_ELEMS;
    uint32_t macro      = x_elems / bt_cpu_pad(mm->m, TILE) / PIECE * PIECE;
    float   *sums;

    if (macro == 0) macro = PIECE;
    configure();
    for (uint32_t from_k = 0, to_k; from_k < mm->k; from_k = to_k) {
        to_k = min_u32(mm->k, from_k + macro);
        for (uint32_t n0 = 0; n0 < mm->n; n0 += width) {
            const bt_bf16 *next = mm->next;

            if (n0 + width < mm->n)
                next = mm->packed + (n0 + width) / TILE * tile_row + (size_t)from_k * TILE;
            else if (to_k < mm->k)
                next = mm->packed + (size_t)to_k * TILE;
            sums = mm->sums + (macro < mm->k ? n0 / width * panel_sums : 0);
            run_panel(mm, n0, from_k, to_k, sums, next);
        }
    }
    _tile_release();
    _mm_sfence();
}
