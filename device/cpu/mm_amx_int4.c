/* device/cpu/mm_amx_int4.c - tile32 for at most 16 rows and weights of 4 bits.
 *
 * Widening is most of the work here, so products are turned round: 16 columns of B are the rows of
 * a left tile, x is the right one, and y leaves turned.  Then a register of weights is 32 k of one
 * column, which have one scale: each is one of 16, and is looked up.  These 16 are a row of a
 * table, which has them for each mantissa and sign of a scale, moved to the scale's exponent.
 *
 * Tiles 0-3 sum up to four blocks of columns, 4 holds x and 7 weights.  A tile load waits for the
 * stores of what it loads, so a block is widened a step before it is multiplied. */
#include <pthread.h>
#include <string.h>

#include "core/minmax.h"
#include "device/cpu/amx.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    X_K       = 4096, /* k of x at a time */
    AHEAD     = 8,    /* steps, from what is read to what is fetched from memory */
    VALUES    = 16,
    MANTISSAS = 128,
    SIGN      = 0x8000,
    BIAS      = 127,
    LARGEST   = 251 /* exponent of a scale whose products are all finite */
};

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
/* Of scales from 1 to 2, then from -1 to -2; each twice. */
static _Alignas(64) bt_bf16 g_products[2 * MANTISSAS][2][VALUES];

static float value_of(uint32_t v) { return v < VALUES / 2 ? (float)v : (float)v - VALUES; }

static void fill_products(void)
{
    for (uint32_t m = 0; m < 2 * MANTISSAS; m++) {
        float scale = 1 + (float)(m % MANTISSAS) / MANTISSAS;

        for (uint32_t v = 0; v < VALUES; v++)
            g_products[m][0][v] = g_products[m][1][v] =
                bt_bf16_from_f32(value_of(v) * (m < MANTISSAS ? scale : -scale));
    }
}

/* With any scales, one weight after the other. */
static __attribute__((noinline)) void widen_singly(const bt_cpu_int4_group *g, bt_bf16 *out)
{
    for (uint32_t c = 0; c < TILE; c++) {
        for (uint32_t k = 0; k < STEP; k++) {
            uint32_t v = g->words[k / 16][2 * c + k % 2] >> k % 16 / 2 * 4 & 15;

            *out++ = bt_bf16_from_f32(value_of(v) * bt_bf16_to_f32(g->scale[c]));
        }
    }
}

/* Where the products of 16 scales are, in bytes, and what moves them to the scales' exponents. */
typedef struct {
    _Alignas(64) uint32_t row[TILE], move[TILE];
} places;

/* False: one is 0, or so large that a product may be infinite. */
INLINE bool find_places(const bt_bf16 *scales, places *out)
{
    __m512i s        = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)scales));
    __m512i mantissa = _mm512_and_si512(s, _mm512_set1_epi32(MANTISSAS - 1));
    __m512i sign     = _mm512_and_si512(s, _mm512_set1_epi32(SIGN));
    __m512i exponent = _mm512_sub_epi32(_mm512_sub_epi32(s, mantissa), sign); /* where it stands */
    __m512i move     = _mm512_sub_epi32(exponent, _mm512_set1_epi32(BIAS << 7));
    __m512i row      = _mm512_add_epi32(mantissa, _mm512_srli_epi32(sign, 8));

    _mm512_store_si512(out->row, _mm512_slli_epi32(row, 6));
    _mm512_store_si512(out->move,
                       _mm512_mask_blend_epi16(0xaaaaaaaa, move, _mm512_slli_epi32(move, 16)));
    publish(out);
    exponent = _mm512_sub_epi32(exponent, _mm512_set1_epi32(1 << 7));
    return _mm512_cmpge_epu32_mask(exponent, _mm512_set1_epi32(LARGEST << 7)) == 0;
}

/* A column's words for even k and odd ones, of 16. */
INLINE long long pair_of(const bt_cpu_int4_group *g, int half, uint32_t column)
{
    long long pair;

    memcpy(&pair, &g->words[half][2 * column], sizeof(pair));
    return pair;
}

/* 32 k of 16 columns become the rows of a tile. */
INLINE void widen(const bt_cpu_int4_group *g, bt_bf16 *out)
{
    /* Bits where k lie, 16 in each half; what stands above the lowest four matters not, nor what a
     * table's second copy has the fifth for. */
    const __m512i bits = _mm512_setr_epi64(
        0x0024000400200000, 0x002c000c00280008, 0x0034001400300010, 0x003c001c00380018,
        0x0024000400200000, 0x002c000c00280008, 0x0034001400300010, 0x003c001c00380018);
    const __mmask8  upper = 0xf0;
    const __mmask32 not_0 = 0xfffefffe;
    places          p;

    if (__builtin_expect(!find_places(g->scale, &p), 0)) {
        widen_singly(g, out);
        return;
    }
#pragma GCC unroll 16
    for (uint32_t c = 0; c < TILE; c++, out += STEP) {
        __m512i words =
            _mm512_mask_set1_epi64(_mm512_set1_epi64(pair_of(g, 0, c)), upper, pair_of(g, 1, c));
        __m512i row = _mm512_load_si512((const char *)g_products + p.row[c]);

        row   = _mm512_mask_add_epi16(row, not_0, row, _mm512_set1_epi32((int)p.move[c]));
        words = _mm512_multishift_epi64_epi8(bits, words);
        _mm512_store_si512(out, _mm512_permutexvar_epi16(words, row));
    }
}

/* Some column blocks past rows of x. */
typedef struct {
    const bt_cpu_int4_group *b;     /* of the first one, */
    size_t                   block; /* and groups to the next one */
    const bt_cpu_int4_group *next;  /* what is read afterwards, its blocks as far apart */
    const bt_bf16           *x;     /* [n_steps][16][m][2] */
    uint32_t                 m, n_steps;
    bool                     from_zero; /* else from the sums */
    float                   *sums;      /* [n_blocks][16][m] */
} turned;

typedef struct {
    _Alignas(64) bt_bf16 b[2][AMX_STREAM_BLOCKS][TILE_ELEMS]; /* even and odd steps */
} wide_tiles;

/* A step of a block, and fetches what is read later. */
INLINE void widen_block(const turned *t, uint32_t step, uint32_t block, wide_tiles *wide)
{
    const bt_cpu_int4_group *g = t->b + block * t->block + step, *later = g + AHEAD;

    if (step + AHEAD >= t->n_steps)
        later = t->next + block * t->block + (step + AHEAD - t->n_steps);
    for (size_t i = 0; i < sizeof(*later); i += 64)
        _mm_prefetch((const char *)later + i, _MM_HINT_T1);
    widen(g, wide->b[step % 2][block]);
    publish(wide);
}

/* Sums of a tile and where they wait; gcc wants a tile's number as it stands. */
#define TAKE(tile)                                         \
    do {                                                   \
        if (t->from_zero)                                  \
            _tile_zero(tile);                              \
        else                                               \
            _tile_loadd(tile, t->sums + (tile)*size, row); \
    } while (0)
#define LEAVE(tile) _tile_stored(tile, t->sums + (tile)*size, row)
#define MULTIPLY(tile)                                                    \
    do {                                                                  \
        if (step + 1 < t->n_steps) widen_block(t, step + 1, tile, &wide); \
        _tile_loadd(7, wide.b[step % 2][tile], 64);                       \
        _tile_dpbf16ps(tile, 7, 4);                                       \
    } while (0)

INLINE void run(const turned *t, const uint32_t n_blocks)
{
    const size_t size = (size_t)TILE * t->m, row = t->m * sizeof(float);
    wide_tiles   wide;

    TAKE(0);
    if (n_blocks > 1) TAKE(1);
    if (n_blocks > 2) TAKE(2);
    if (n_blocks > 3) TAKE(3);
    for (uint32_t c = 0; c < n_blocks; c++)
        widen_block(t, 0, c, &wide);
    for (uint32_t step = 0; step < t->n_steps; step++) {
        _tile_loadd(4, t->x + step * STEP * size / TILE, row);
        MULTIPLY(0);
        if (n_blocks > 1) MULTIPLY(1);
        if (n_blocks > 2) MULTIPLY(2);
        if (n_blocks > 3) MULTIPLY(3);
    }
    LEAVE(0);
    if (n_blocks > 1) LEAVE(1);
    if (n_blocks > 2) LEAVE(2);
    if (n_blocks > 3) LEAVE(3);
}

static void run_blocks(const turned *t, uint32_t n_blocks)
{
    publish(t->sums);
    switch (n_blocks) {
    case 1: run(t, 1); break;
    case 2: run(t, 2); break;
    case 3: run(t, 3); break;
    default: run(t, 4);
    }
    publish(t->sums);
}

/* Pairs of k of all rows next to each other. */
static void turn_x(const bt_cpu_mm *mm, uint32_t k0, uint32_t n_k, bt_bf16 *out)
{
    for (uint32_t k = k0; k < k0 + n_k; k += STEP, out += STEP * mm->m)
        for (uint32_t r = 0; r < mm->m; r++)
            for (uint32_t p = 0; p < STEP / 2; p++)
                memcpy(out + 2 * (p * mm->m + r), mm->x + r * mm->ld_x + k + 2 * p,
                       2 * sizeof(*out));
    publish(out);
}

/* Columns of y become sums, or the other way round. */
static void turn_sums(float *y, size_t ld_y, uint32_t m, uint32_t cols, float *sums, bool to_sums)
{
    for (uint32_t r = 0; r < m; r++, y += ld_y) {
        for (uint32_t c = 0; to_sums && c < cols; c++)
            sums[c * m + r] = y[c];
        for (uint32_t c = 0; !to_sums && c < cols; c++)
            y[c] = sums[c * m + r];
    }
}

void bt_cpu_amx_int4(const bt_cpu_mm *mm)
{
    _Alignas(64) bt_bf16     x[X_K * TILE];
    _Alignas(64) float       sums[AMX_STREAM_BLOCKS * TILE * TILE];
    const bt_cpu_int4_group *packed = mm->packed;
    turned                   t = {.block = mm->k / BT_INT4_GROUP, .x = x, .m = mm->m, .sums = sums};

    pthread_once(&g_once, fill_products);
    memset(sums, 0, sizeof(sums)); /* some are loaded where there are no columns */
    configure(TILE, mm->m);
    for (uint32_t k0 = 0, k1; k0 < mm->k; k0 = k1) {
        k1          = bt_min_u32(mm->k, k0 + X_K);
        t.n_steps   = (k1 - k0) / STEP;
        t.from_zero = k0 == 0 && !mm->add;
        turn_x(mm, k0, k1 - k0, x);
        for (uint32_t n0 = 0, cols; n0 < mm->n; n0 += cols) {
            uint32_t n_blocks = amx_stream_blocks(1, mm->n - n0);

            cols   = bt_min_u32(mm->n - n0, n_blocks * TILE);
            t.b    = packed + n0 / TILE * t.block + k0 / BT_INT4_GROUP;
            t.next = n0 + cols < mm->n   ? t.b + n_blocks * t.block
                     : k1 < mm->k        ? packed + k1 / BT_INT4_GROUP
                     : mm->after != NULL ? mm->after
                                         : t.b;
            if (!t.from_zero) turn_sums(mm->y + n0, mm->ld_y, mm->m, cols, sums, true);
            run_blocks(&t, n_blocks);
            turn_sums(mm->y + n0, mm->ld_y, mm->m, cols, sums, false);
        }
    }
}
