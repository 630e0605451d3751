/* device/cpu/mm_amx_pages.c - tile32 for few rows times a B that nobody has packed: pairs of its
 * rows become tiles, 32 rows and 64 columns at a time, while the tiles before them are multiplied.
 *
 * With few rows of x each tile of B is used once: to pack all of it first and to read it again
 * takes longer than the products.  A step is 32 rows of B, and one or two slices of 32 columns,
 * which are a line.  Rows pair up as the instruction does it, within 128 bits: the two tiles of a
 * slice have its columns in another order, which is undone when sums leave.  Tiles 0-3 accumulate,
 * 4 holds x, 6-7 hold B. */
#include "device/cpu/amx.h"
#include "device/cpu/families.h"

enum {
    RING = 2, /* steps whose tiles are kept: a tile load waits for the stores, so products follow
                 one step behind */
    SLICES = 2
};

#define INLINE static inline __attribute__((always_inline))

/* Of a slice, row by row: the first tile has columns 0-3, 8-11, 16-19 and 24-27, the second one the
 * others. */
typedef float tile_sums[TILE * TILE];

/* Lines that are fetched with a slice of a step. */
typedef struct {
    const bt_bf16 *at;
    uint32_t       n;
} lines;

/* A share of what is read after the page that step s is of. */
INLINE lines lines_of(const bt_cpu_mm_pages *mm, uint32_t n0, uint32_t s)
{
    uint32_t       per_page = BT_CPU_PAGE_ROWS / STEP, shares = mm->n / STEP * per_page;
    uint32_t       share = n0 / STEP * per_page + s % per_page, n = mm->n_later / STEP;
    const bt_bf16 *later = n != 0 ? mm->later[s / per_page] : NULL;
    uint32_t       from  = n * share / shares;

    if (later == NULL) return (lines){NULL, 0};
    return (lines){later + (size_t)from * STEP, n * (share + 1) / shares - from};
}

/* 32 columns of n rows, at most 32, and +0 below them. */
INLINE void pack_slice(const bt_bf16 *rows, size_t ld, uint32_t n, lines later, bt_bf16 *out)
{
    uint32_t fetched = 0;

    for (uint32_t r = 0; r < STEP; r += 2, rows += 2 * ld, out += STEP) {
        __m512i even = r < n ? _mm512_loadu_si512(rows) : _mm512_setzero_si512();
        __m512i odd  = r + 1 < n ? _mm512_loadu_si512(rows + ld) : _mm512_setzero_si512();

        for (; fetched < later.n * (r + 2) / STEP; fetched++)
            _mm_prefetch((const char *)(later.at + (size_t)fetched * STEP), _MM_HINT_T2);
        _mm512_store_si512(out, _mm512_unpacklo_epi16(even, odd));
        _mm512_store_si512(out + TILE_ELEMS, _mm512_unpackhi_epi16(even, odd));
    }
}

/* Step s of the columns from n0 on. */
INLINE void pack(const bt_cpu_mm_pages *mm, uint32_t n0, uint32_t slices, uint32_t s, bt_bf16 *out)
{
    const bt_bf16 *rows =
        mm->pages[s * STEP / BT_CPU_PAGE_ROWS] + s * STEP % BT_CPU_PAGE_ROWS * mm->ld + n0;

    for (uint32_t i = 0; i < slices; i++, n0 += STEP, rows += STEP, out += 2 * TILE_ELEMS) {
        if (mm->k - s * STEP >= STEP)
            pack_slice(rows, mm->ld, STEP, lines_of(mm, n0, s), out);
        else
            pack_slice(rows, mm->ld, mm->k - s * STEP, lines_of(mm, n0, s), out);
    }
    publish(out);
}

/* A slice of y to the order of tiles. */
INLINE void take(const bt_cpu_mm_pages *mm, uint32_t n0, tile_sums sums[2])
{
    const __m512i first =
        _mm512_set_epi32(27, 26, 25, 24, 19, 18, 17, 16, 11, 10, 9, 8, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));

    for (uint32_t r = 0; r < mm->m; r++) {
        const float *y   = mm->y + r * mm->ld_y + n0;
        __m512       low = _mm512_loadu_ps(y), high = _mm512_loadu_ps(y + TILE);

        _mm512_store_ps(sums[0] + r * TILE, _mm512_permutex2var_ps(low, first, high));
        _mm512_store_ps(sums[1] + r * TILE, _mm512_permutex2var_ps(low, second, high));
    }
}

INLINE void leave(const bt_cpu_mm_pages *mm, uint32_t n0, const tile_sums sums[2])
{
    const __m512i low  = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));

    for (uint32_t r = 0; r < mm->m; r++) {
        float *y      = mm->y + r * mm->ld_y + n0;
        __m512 first  = _mm512_load_ps(sums[0] + r * TILE),
               second = _mm512_load_ps(sums[1] + r * TILE);

        _mm512_storeu_ps(y, _mm512_permutex2var_ps(first, low, second));
        _mm512_storeu_ps(y + TILE, _mm512_permutex2var_ps(first, high, second));
    }
}

INLINE void begin(const bt_cpu_mm_pages *mm, uint32_t n0, uint32_t slices, tile_sums *sums)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (!mm->add) return;
    for (uint32_t i = 0; i < slices; i++)
        take(mm, n0 + i * STEP, sums + 2 * i);
    publish(sums);
    _tile_loadd(0, sums[0], 64);
    _tile_loadd(1, sums[1], 64);
    if (slices == 1) return;
    _tile_loadd(2, sums[2], 64);
    _tile_loadd(3, sums[3], 64);
}

INLINE void end(const bt_cpu_mm_pages *mm, uint32_t n0, uint32_t slices, tile_sums *sums)
{
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    if (slices == 2) {
        _tile_stored(2, sums[2], 64);
        _tile_stored(3, sums[3], 64);
    }
    publish(sums);
    for (uint32_t i = 0; i < slices; i++)
        leave(mm, n0 + i * STEP, (const tile_sums *)(sums + 2 * i));
}

/* Step s, whose tiles are in b. */
INLINE void multiply(const bt_cpu_mm_pages *mm, uint32_t slices, uint32_t s, const bt_bf16 *b)
{
    _tile_loadd(4, mm->x + (size_t)s * STEP, mm->ld_x * sizeof(*mm->x));
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + TILE_ELEMS, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (slices == 1) return;
    _tile_loadd(6, b + (size_t)2 * TILE_ELEMS, 64);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, b + (size_t)3 * TILE_ELEMS, 64);
    _tile_dpbf16ps(3, 4, 7);
}

/* Columns n0 to n1, so many slices at a time. */
INLINE void multiply_columns(const bt_cpu_mm_pages *mm, uint32_t n0, uint32_t n1,
                             const uint32_t slices)
{
    _Alignas(64) bt_bf16   ring[RING][SLICES * 2 * TILE_ELEMS];
    _Alignas(64) tile_sums sums[SLICES * 2];
    uint32_t               n_steps = bt_cpu_pad(mm->k, STEP) / STEP, s = 0;

    if (n0 == n1) return;
    pack(mm, n0, slices, s, ring[0]);
    for (uint32_t i = 0; n0 < n1; i++) {
        uint32_t next_s  = s + 1 < n_steps ? s + 1 : 0;
        uint32_t next_n0 = next_s != 0 ? n0 : n0 + slices * STEP;

        if (next_n0 < n1) pack(mm, next_n0, slices, next_s, ring[(i + 1) % RING]);
        if (s == 0) begin(mm, n0, slices, sums);
        multiply(mm, slices, s, ring[i % RING]);
        if (next_s == 0) end(mm, n0, slices, sums);
        n0 = next_n0;
        s  = next_s;
    }
}

void bt_cpu_mm_tile32_amx_pages(const bt_cpu_mm_pages *mm)
{
    uint32_t pairs = mm->n / (SLICES * STEP) * (SLICES * STEP);

    configure(mm->m, TILE);
    multiply_columns(mm, 0, pairs, SLICES);
    multiply_columns(mm, pairs, mm->n, 1);
    _tile_release();
}
