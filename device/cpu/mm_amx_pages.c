/* device/cpu/mm_amx_pages.c - tile32 for few rows times a B that nobody has packed: pairs of its
 * rows become tiles, 32 rows and columns at a time, while the tiles before them are multiplied.
 *
 * With few rows of x each tile of B is used once: to pack all of it first and to read it again
 * takes longer than the products.  A step is 32 rows of B, and 32 columns, which are a line.  Tiles
 * 0-1 accumulate, 4 holds x, 6-7 hold B. */
#include "device/cpu/amx.h"
#include "device/cpu/families.h"

enum {
    RING = 2 /* steps whose tiles are kept: a tile load waits for the stores, so products follow
                one step behind */
};

#define INLINE static inline __attribute__((always_inline))

/* 32 columns of two rows: those of the first 16 columns, in pairs, to `out`, of the others to the
 * tile behind it. */
INLINE void pack_pair(__m512i even, __m512i odd, bt_bf16 *out)
{
    const __m512i halves = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);

    even = _mm512_permutexvar_epi64(halves, even);
    odd  = _mm512_permutexvar_epi64(halves, odd);
    _mm512_store_si512(out, _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(out + TILE_ELEMS, _mm512_unpackhi_epi16(even, odd));
}

/* n rows, at most 32, and +0 below them. */
INLINE void pack_step(const bt_bf16 *rows, size_t ld, uint32_t n, bt_bf16 *out)
{
    for (uint32_t r = 0; r < STEP; r += 2, rows += 2 * ld, out += STEP)
        pack_pair(r < n ? _mm512_loadu_si512(rows) : _mm512_setzero_si512(),
                  r + 1 < n ? _mm512_loadu_si512(rows + ld) : _mm512_setzero_si512(), out);
}

/* Step s of the columns from n0 on. */
INLINE void pack(const bt_cpu_mm_pages *mm, uint32_t n0, uint32_t s, bt_bf16 *out)
{
    const bt_bf16 *rows =
        mm->pages[s * STEP / BT_CPU_PAGE_ROWS] + s * STEP % BT_CPU_PAGE_ROWS * mm->ld + n0;

    if (mm->k - s * STEP >= STEP)
        pack_step(rows, mm->ld, STEP, out);
    else
        pack_step(rows, mm->ld, mm->k - s * STEP, out);
    publish(out);
}

/* A share of what is read after the page that step s is of. */
INLINE void fetch(const bt_cpu_mm_pages *mm, uint32_t n0, uint32_t s)
{
    const bt_bf16 *later  = mm->later[s * STEP / BT_CPU_PAGE_ROWS];
    uint32_t       shares = mm->n / STEP * (BT_CPU_PAGE_ROWS / STEP);
    uint32_t       lines  = (mm->n_later / STEP + shares - 1) / shares;
    uint32_t       share  = n0 / STEP * (BT_CPU_PAGE_ROWS / STEP) + s % (BT_CPU_PAGE_ROWS / STEP);

    if (later == NULL) return;
    for (uint32_t i = share * lines; i < (share + 1) * lines && i < mm->n_later / STEP; i++)
        _mm_prefetch((const char *)(later + (size_t)i * STEP), _MM_HINT_T2);
}

/* Step s of the columns from n0 on, whose tiles are in b. */
INLINE void multiply(const bt_cpu_mm_pages *mm, uint32_t n0, uint32_t s, const bt_bf16 *b)
{
    float *y    = mm->y + n0;
    size_t ld_y = mm->ld_y * sizeof(*y);

    if (s == 0 && mm->add) {
        _tile_loadd(0, y, ld_y);
        _tile_loadd(1, y + TILE, ld_y);
    } else if (s == 0) {
        _tile_zero(0);
        _tile_zero(1);
    }
    _tile_loadd(4, mm->x + (size_t)s * STEP, mm->ld_x * sizeof(*mm->x));
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + TILE_ELEMS, 64);
    _tile_dpbf16ps(1, 4, 7);
    if ((s + 1) * STEP < mm->k) return;
    _tile_stored(0, y, ld_y);
    _tile_stored(1, y + TILE, ld_y);
}

void bt_cpu_mm_tile32_amx_pages(const bt_cpu_mm_pages *mm)
{
    _Alignas(64) bt_bf16 ring[RING][2 * TILE_ELEMS];
    uint32_t             n_steps = bt_cpu_pad(mm->k, STEP) / STEP, n0 = 0, s = 0;

    configure(mm->m);
    pack(mm, n0, s, ring[0]);
    for (uint32_t i = 0; n0 < mm->n; i++) {
        uint32_t next_s = s + 1 < n_steps ? s + 1 : 0, next_n0 = next_s != 0 ? n0 : n0 + STEP;

        if (mm->n_later != 0) fetch(mm, n0, s);
        if (next_n0 < mm->n) pack(mm, next_n0, next_s, ring[(i + 1) % RING]);
        multiply(mm, n0, s, ring[i % RING]);
        n0 = next_n0;
        s  = next_s;
    }
    _tile_release();
}
