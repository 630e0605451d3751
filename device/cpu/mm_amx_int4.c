/* device/cpu/mm_amx_int4.c - tile32 for at most 48 rows and weights of 4 bits.
 *
 * Widening is most of the work here, so products are turned round: 16 columns of B are the rows of
 * a left tile, x is the right one, and y leaves turned.  Then a register of weights is 32 k of one
 * column, which have one scale: each is one of 16, and is looked up.  A table of 2 MiB has these 16
 * for every scale; those of one exponent and sign, which is about what a matrix has, are 4 KiB.
 *
 * Tiles 0-3 sum up to four blocks of columns and one tile row of x, which 4 holds, or two and two,
 * in 4 and 5; or 0-5 two and three, in 6 by turns.  7 holds weights.  A tile load waits for the
 * stores of what it loads, so a block is widened a step before it is multiplied. */
#include <pthread.h>
#include <string.h>

#include "core/log.h"
#include "core/minmax.h"
#include "device/cpu/amx.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    X_K    = 6144, /* k of 16 rows of x at a time */
    AHEAD  = 8,    /* steps, from what is read to what is fetched from memory */
    VALUES = 16,
    SCALES = 1 << 16,
    QUAD   = 4 /* rows that are turned at a time */
};

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static _Alignas(64) bt_bf16 g_products[SCALES][VALUES]; /* by a scale's bits */

static void fill_products(void)
{
    for (uint32_t s = 0; s < SCALES; s++)
        for (uint32_t v = 0; v < VALUES; v++)
            g_products[s][v] = bt_bf16_from_f32((float)((int)(v ^ VALUES / 2) - VALUES / 2) *
                                                bt_bf16_to_f32((bt_bf16)s));
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
    /* Bits where k lie, 16 in each half; what stands above the lowest four matters not, nor what
     * the fifth chooses, of two copies. */
    const __m512i bits = _mm512_setr_epi64(
        0x0024000400200000, 0x002c000c00280008, 0x0034001400300010, 0x003c001c00380018,
        0x0024000400200000, 0x002c000c00280008, 0x0034001400300010, 0x003c001c00380018);
    const __mmask8 upper = 0xf0;

#pragma GCC unroll 16
    for (uint32_t c = 0; c < TILE; c++, out += STEP) {
        __m512i words =
            _mm512_mask_set1_epi64(_mm512_set1_epi64(pair_of(g, 0, c)), upper, pair_of(g, 1, c));
        __m512i row =
            _mm512_broadcast_i64x4(_mm256_load_si256((const void *)g_products[g->scale[c]]));

        words = _mm512_multishift_epi64_epi8(bits, words);
        _mm512_store_si512(out, _mm512_permutexvar_epi16(words, row));
    }
}

/* Some column blocks past one to three tile rows of x. */
typedef struct {
    const bt_cpu_int4_group *b;     /* of the first one, */
    size_t                   block; /* and groups to the next one */
    const bt_cpu_int4_group *next;  /* what is read afterwards, its blocks as far apart */
    const bt_bf16           *x;     /* [n_steps][n_tile_rows][16][m][2] */
    uint32_t                 n_steps, n_tile_rows, m; /* rows of one, else 16: the last again */
    bool                     from_zero;               /* else from the sums */
    float                   *sums;                    /* [n_blocks][n_tile_rows][16][m] */
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
/* Widens a block's next step, and takes this one. */
#define WIDENED(block)                                                     \
    do {                                                                   \
        if (step + 1 < t->n_steps) widen_block(t, step + 1, block, &wide); \
        _tile_loadd(7, wide.b[step % 2][block], 64);                       \
    } while (0)
#define MULTIPLY(block)              \
    do {                             \
        WIDENED(block);              \
        _tile_dpbf16ps(block, 7, 4); \
    } while (0)

/* One tile row of x: y has a tile for each block. */
INLINE void one_row(const turned *t, const uint32_t n_blocks)
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
        _tile_loadd(4, t->x + step * 2 * size, row);
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

/* Two: y has two. */
INLINE void two_rows(const turned *t, const uint32_t n_blocks)
{
    const size_t size = (size_t)TILE * t->m, row = t->m * sizeof(float);
    wide_tiles   wide;

    TAKE(0);
    TAKE(1);
    if (n_blocks > 1) TAKE(2);
    if (n_blocks > 1) TAKE(3);
    for (uint32_t c = 0; c < n_blocks; c++)
        widen_block(t, 0, c, &wide);
    for (uint32_t step = 0; step < t->n_steps; step++) {
        _tile_loadd(4, t->x + step * 4 * size, row);
        _tile_loadd(5, t->x + step * 4 * size + 2 * size, row);
        WIDENED(0);
        _tile_dpbf16ps(0, 7, 4);
        _tile_dpbf16ps(1, 7, 5);
        if (n_blocks == 1) continue;
        WIDENED(1);
        _tile_dpbf16ps(2, 7, 4);
        _tile_dpbf16ps(3, 7, 5);
    }
    LEAVE(0);
    LEAVE(1);
    if (n_blocks > 1) LEAVE(2);
    if (n_blocks > 1) LEAVE(3);
}

/* Three: y has three, block after block.  Blocks are widened where the products hide most of it. */
INLINE void three_rows(const turned *t, const uint32_t n_blocks)
{
    const size_t size = (size_t)TILE * t->m, row = t->m * sizeof(float);
    wide_tiles   wide;

    TAKE(0);
    TAKE(1);
    TAKE(2);
    if (n_blocks > 1) TAKE(3);
    if (n_blocks > 1) TAKE(4);
    if (n_blocks > 1) TAKE(5);
    for (uint32_t c = 0; c < n_blocks; c++)
        widen_block(t, 0, c, &wide);
    for (uint32_t step = 0; step < t->n_steps; step++) {
        const bt_bf16 *x = t->x + step * 6 * size, *b = wide.b[step % 2][0];
        bool           more = step + 1 < t->n_steps;

        if (more) widen_block(t, step + 1, 0, &wide);
        _tile_loadd(6, x, row);
        _tile_loadd(7, b, 64);
        _tile_dpbf16ps(0, 7, 6);
        if (n_blocks > 1) {
            _tile_loadd(7, b + TILE_ELEMS, 64);
            _tile_dpbf16ps(3, 7, 6);
        }
        _tile_loadd(6, x + 2 * size, row);
        if (n_blocks > 1) {
            _tile_dpbf16ps(4, 7, 6);
            if (more) widen_block(t, step + 1, 1, &wide);
            _tile_loadd(7, b, 64);
        }
        _tile_dpbf16ps(1, 7, 6);
        _tile_loadd(6, x + 4 * size, row);
        _tile_dpbf16ps(2, 7, 6);
        if (n_blocks > 1) {
            _tile_loadd(7, b + TILE_ELEMS, 64);
            _tile_dpbf16ps(5, 7, 6);
        }
    }
    LEAVE(0);
    LEAVE(1);
    LEAVE(2);
    if (n_blocks > 1) LEAVE(3);
    if (n_blocks > 1) LEAVE(4);
    if (n_blocks > 1) LEAVE(5);
}

static void run_blocks(const turned *t, uint32_t n_blocks)
{
    publish(t->sums);
    switch (t->n_tile_rows * 8 + n_blocks) {
        AMX_CASE(1, 1, one_row(t, 1))
        AMX_CASE(1, 2, one_row(t, 2))
        AMX_CASE(1, 3, one_row(t, 3))
        AMX_CASE(1, 4, one_row(t, 4))
        AMX_CASE(2, 1, two_rows(t, 1))
        AMX_CASE(2, 2, two_rows(t, 2))
        AMX_CASE(3, 1, three_rows(t, 1))
        AMX_CASE(3, 2, three_rows(t, 2))
    default: BT_ASSERT(false);
    }
    publish(t->sums);
}

/* In each quarter of four registers a square is turned. */
INLINE void turn_squares(__m512i v[QUAD])
{
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
    __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);

    v[0] = _mm512_unpacklo_epi64(a, b);
    v[1] = _mm512_unpackhi_epi64(a, b);
    v[2] = _mm512_unpacklo_epi64(c, d);
    v[3] = _mm512_unpackhi_epi64(c, d);
}

/* Four words of four rows each. */
#define PUT_QUARTERS(i)                           \
    for (uint32_t j = 0; j < QUAD; j++, to += ld) \
    _mm_storeu_si128((void *)to, _mm512_extracti32x4_epi32(v[j], i))

/* m rows of n <= 16 words, pairs of k or floats, become [16][ld], m <= ld.  Rows from m on are the
 * last one again; what of the last four is beyond ld goes where the first ones of the next word do,
 * which are written later, or behind the last word. */
static void turn_rows(const void *rows, size_t row_bytes, uint32_t m, uint32_t n, void *out,
                      uint32_t ld)
{
    __mmask16 there = (__mmask16)((1u << n) - 1);

    for (uint32_t r = bt_cpu_pad(ld, QUAD); r != 0; r -= QUAD) {
        uint32_t *to = (uint32_t *)out + r - QUAD;
        __m512i   v[QUAD];

        for (uint32_t i = 0; i < QUAD; i++)
            v[i] = _mm512_maskz_loadu_epi32(there, (const char *)rows +
                                                       bt_min_u32(r - QUAD + i, m - 1) * row_bytes);
        turn_squares(v);
        PUT_QUARTERS(0);
        PUT_QUARTERS(1);
        PUT_QUARTERS(2);
        PUT_QUARTERS(3);
    }
}

/* The i-th of each four columns of sixteen, four rows of it. */
INLINE __m512i quarters(const float *sums, uint32_t ld, uint32_t i)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(sums + i * ld)));

    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(sums + (4 + i) * ld)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(sums + (8 + i) * ld)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(sums + (12 + i) * ld)), 3);
}

/* The other way round: [n][ld] become m rows of n <= 16 floats. */
static void turn_back(const float *sums, uint32_t ld, uint32_t m, uint32_t n, float *y, size_t ld_y)
{
    __mmask16 there = (__mmask16)((1u << n) - 1);

    for (uint32_t r = 0; r < m; r += QUAD) {
        __m512i v[QUAD];

        for (uint32_t i = 0; i < QUAD; i++)
            v[i] = quarters(sums + r, ld, i);
        turn_squares(v);
        for (uint32_t i = 0; i < QUAD && r + i < m; i++)
            _mm512_mask_storeu_epi32(y + (r + i) * ld_y, there, v[i]);
    }
}

/* Rows of x that are in a tile row. */
static uint32_t rows_of(const bt_cpu_mm *mm, uint32_t tile_row)
{
    return bt_min_u32(mm->m - tile_row * TILE, TILE);
}

/* Pairs of k of all rows next to each other. */
static void turn_x(const bt_cpu_mm *mm, const turned *t, const bt_bf16 *x, size_t step_x,
                   size_t low_x, bt_bf16 *out)
{
    for (uint32_t step = 0; step < t->n_steps; step++, x += step_x)
        for (uint32_t i = 0; i < t->n_tile_rows; i++, out += STEP * t->m)
            turn_rows(x + i * low_x, mm->ld_x * sizeof(*x), rows_of(mm, i), TILE, out, t->m);
    publish(out);
}

/* Columns of y, from n0 on, become sums, or the other way round. */
static void turn_sums(const bt_cpu_mm *mm, const turned *t, uint32_t n0, uint32_t n_blocks,
                      bool to_sums)
{
    float *sums = t->sums;

    for (uint32_t c = 0; c < n_blocks; c++, n0 += TILE) {
        for (uint32_t i = 0; i < t->n_tile_rows; i++, sums += TILE * t->m) {
            float   *y = mm->y + i * TILE * mm->ld_y + n0;
            uint32_t n = bt_min_u32(mm->n - n0, TILE);

            if (to_sums)
                turn_rows(y, mm->ld_y * sizeof(*y), rows_of(mm, i), n, sums, t->m);
            else
                turn_back(sums, t->m, rows_of(mm, i), n, y, mm->ld_y);
        }
    }
}

void bt_cpu_amx_int4(const bt_cpu_mm *mm, size_t step_x, size_t low_x)
{
    _Alignas(64) bt_bf16     x[X_K * TILE];
    _Alignas(64) float       sums[AMX_STREAM_SUMS * TILE * TILE];
    const bt_cpu_int4_group *packed = mm->packed;
    turned                   t      = {.block = mm->k / BT_INT4_GROUP, .x = x, .sums = sums};

    pthread_once(&g_once, fill_products);
    t.n_tile_rows = (mm->m + TILE - 1) / TILE;
    t.m           = bt_min_u32(mm->m, TILE);
    configure(TILE, t.m);
    for (uint32_t k0 = 0, k1; k0 < mm->k; k0 = k1) {
        k1          = bt_min_u32(mm->k, k0 + X_K / t.n_tile_rows);
        t.n_steps   = (k1 - k0) / STEP;
        t.from_zero = k0 == 0 && !mm->add;
        turn_x(mm, &t, mm->x + k0 / STEP * step_x, step_x, low_x, x);
        for (uint32_t n0 = 0, n_blocks; n0 < mm->n; n0 += n_blocks * TILE) {
            n_blocks =
                t.n_tile_rows == 1 ? amx_stream_blocks(1, mm->n - n0) : 1 + (mm->n - n0 > TILE);
            t.b    = packed + n0 / TILE * t.block + k0 / BT_INT4_GROUP;
            t.next = n0 + n_blocks * TILE < mm->n ? t.b + n_blocks * t.block
                     : k1 < mm->k                 ? packed + k1 / BT_INT4_GROUP
                     : mm->after != NULL          ? mm->after
                                                  : t.b;
            if (!t.from_zero) turn_sums(mm, &t, n0, n_blocks, true);
            run_blocks(&t, n_blocks);
            turn_sums(mm, &t, n0, n_blocks, false);
        }
    }
}
