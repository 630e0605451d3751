/* device/cpu/attend_pages.inc.h - a few queries through a block of keys in pages, which are the
 * values too, by dp2.  The including file defines WIDTH, the floats in a register; TILE_LANES,
 * whose sums in two vectors each are the registers' tile; PACK_ROWS; the function's name,
 * ATTEND_PAGES; and HALVES, in which a pair of k is multiplied: at once (1), or the odd k and then
 * the even one with fused multiply-adds (2).
 *
 * In both products one load spreads a number that multiplies vectors:
 *     scores:  with HALVES 1 that of a key, by all lanes; with 2 that of a lane, by keys, which are
 *              packed page by page for a piece of k, so that lanes share the packing
 *     sums:    that of a lane, by two vectors of columns, of a pair of rows
 *
 * With HALVES 2 a number is a float, of which a pair of bf16 becomes two by a shift and a mask;
 * with 1 it is the pair.  So the sums' vectors are even and odd columns, or fours of columns by
 * turns, and meet again when they leave. */
#include "device/cpu/families.h"
#include "device/cpu/lanes.inc.h"

enum {
    TILE_COLS = 2 * WIDTH,
    PAGE      = BT_CPU_PAGE_ROWS,
    LD        = BT_CPU_LD_SCORES,
    LINE      = 32 /* elements of a cache line */
};

typedef struct {
    vf part[2];
} two;

INLINE vu load_pairs(const bt_bf16 *x)
{
    vu pairs;

    memcpy(&pairs, x, sizeof(pairs));
    return pairs;
}

/* ---- what HALVES makes different ----
 *
 *     number, halves        of a pair of k, or of a vector of them, what is multiplied at a time
 *     add(a, x, y, sum)     sum + a x, and sum + a y
 *     pair_rows(...)        x, y: a tile's columns of two rows
 *     store_weights(...)    where scores were: floats, or from the first one on bf16
 *     ONE, OTHER            which columns are in either vector of a tile's;
 *     FIRST, LAST           and where its columns are in both */
#if HALVES == 1
typedef uint32_t number;
typedef struct {
    vu half[HALVES];
} halves;

INLINE void add(number a, vu x, vu y, two *sum)
{
    __m512bh all = (__m512bh)((vu){0} + a);

    sum->part[0] = (vf)_mm512_dpbf16_ps((__m512)sum->part[0], all, (__m512bh)x);
    sum->part[1] = (vf)_mm512_dpbf16_ps((__m512)sum->part[1], all, (__m512bh)y);
}

INLINE void pair_rows(const bt_bf16 *even, const bt_bf16 *odd, halves *x, halves *y)
{
    __m512i e = (__m512i)load_pairs(even), o = (__m512i)load_pairs(odd);

    x->half[0] = (vu)_mm512_unpacklo_epi16(e, o);
    y->half[0] = (vu)_mm512_unpackhi_epi16(e, o);
}

INLINE void store_weights(float *scores, uint32_t key, vf e)
{
    store_bf16((bt_bf16 *)scores + key, e);
}

#define ONE   0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define OTHER 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#define FIRST 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23
#define LAST  8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31
#else
typedef float number;
typedef struct {
    vf half[HALVES];
} halves;

INLINE halves halves_of(vu pairs)
{
    return (halves){
        {(vf)(pairs << 16), (vf)(pairs & 0xffff0000u)}
    };
}

INLINE void add(number a, vf x, vf y, two *sum)
{
    vf all = a - (vf){0}; /* splat() of what may be -0 takes an addition */

    sum->part[0] = fused(all, x, sum->part[0]);
    sum->part[1] = fused(all, y, sum->part[1]);
}

INLINE void pair_rows(const bt_bf16 *even, const bt_bf16 *odd, halves *x, halves *y)
{
    halves e = halves_of(load_pairs(even)), o = halves_of(load_pairs(odd));

    x->half[0] = e.half[0];
    x->half[1] = o.half[0];
    y->half[0] = e.half[1];
    y->half[1] = o.half[1];
}

INLINE void store_weights(float *scores, uint32_t key, vf e)
{
    store(scores + key, widen(round_result(e)));
}

#if WIDTH == 16
#define ONE   0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define OTHER 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define LAST  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif WIDTH == 8
#define ONE   0, 2, 4, 6, 8, 10, 12, 14
#define OTHER 1, 3, 5, 7, 9, 11, 13, 15
#define FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define LAST  4, 12, 5, 13, 6, 14, 7, 15
#else
#define ONE   0, 2, 4, 6
#define OTHER 1, 3, 5, 7
#define FIRST 0, 4, 1, 5
#define LAST  2, 6, 3, 7
#endif
#endif

/* ---- scores ---- */

#if HALVES == 1
/* Loops over sums: what they go through must be registers. */
#define UNROLL _Pragma("GCC unroll 16")

/* A pair of a key, spread, by the pairs of all lanes. */
INLINE vf add_key(const bt_bf16 *key, vu q, vf sum)
{
    uint32_t pair;

    memcpy(&pair, key, sizeof(pair));
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)q, (__m512bh)((vu){0} + pair));
}

/* Scores of sixteen keys: sums of [key][lane] that leave as [lane][key]. */
static void score_keys(const bt_cpu_attend_pages *a, const bt_bf16 *keys, float *scores)
{
    const bt_bf16 *q = a->q, *at[] = {keys, keys + 4 * a->ld, keys + 8 * a->ld, keys + 12 * a->ld};
    size_t         ld         = a->ld;
    vf             sum[LANES] = {{0}}, by_key[LANES], by_lane[LANES];

    for (uint32_t pair = 0; pair < a->k / 2; pair++, q += 2 * LANES) {
        vu pairs = load_pairs(q);

        UNROLL
        for (int i = 0; i < LANES; i++)
            sum[i] = add_key(at[i / 4] + (size_t)(i % 4) * ld, pairs, sum[i]);
        UNROLL
        for (int i = 0; i < 4; i++)
            at[i] += 2;
    }
    if (a->k % 2 != 0) {
        UNROLL
        for (int i = 0; i < LANES; i++) {
            const bt_bf16 last[2] = {at[i / 4][(size_t)(i % 4) * ld], 0};

            sum[i] = add_key(last, load_pairs(q), sum[i]);
        }
    }
    UNROLL
    for (int i = 0; i < LANES; i++)
        by_key[i] = sum[i];
    PACK_ROWS((const bt_bf16 *)by_key, 2 * LANES, LANES, 2 * LANES, (bt_bf16 *)by_lane);
    for (size_t lane = 0; lane < LANES; lane++)
        store(scores + lane * LD, by_lane[lane]);
}

static void make_scores(const bt_cpu_attend_pages *a)
{
    for (uint32_t key = 0; key < a->n_keys; key += LANES)
        score_keys(a, a->pages[key / PAGE] + key % PAGE * a->ld, a->scores + key);
}
#else
enum { PIECE = 128 }; /* of k: queries and packed keys of a page stay in the first-level cache */

/* A piece of k: of the queries' numbers, and of a page's keys. */
typedef struct {
    number   q[PIECE / 2][HALVES][LANES]; /* [pair][even, odd][lane] */
    bt_bf16  keys[PIECE * PAGE];          /* packed [PAGE, 2 n_pairs] */
    uint32_t n_pairs;
} piece;

/* scores[lane][key] += q K^T of a tile, whose lanes and keys begin here. */
INLINE void score_tile(const piece *p, uint32_t lane, uint32_t key, bool begins, float *scores)
{
    uint32_t       within = 2 * WIDTH < (int)LANES ? key % LANES : 0; /* a block of packed keys */
    const bt_bf16 *keys   = p->keys + (size_t)(key - within) * 2 * p->n_pairs + 2 * within;
    size_t         second = WIDTH == LANES ? (size_t)2 * LANES * p->n_pairs : TILE_COLS;
    two            acc[TILE_LANES];

    for (size_t i = 0; i < TILE_LANES; i++)
        for (int v = 0; v < 2; v++)
            acc[i].part[v] = begins ? splat(0) : load(scores + i * LD + v * WIDTH);
    for (uint32_t pair = 0; pair < p->n_pairs; pair++, keys += 2 * LANES) {
        halves x = halves_of(load_pairs(keys)), y = halves_of(load_pairs(keys + second));

        for (int half = HALVES - 1; half >= 0; half--)
            for (int i = 0; i < TILE_LANES; i++)
                add(p->q[pair][half][lane + i], x.half[half], y.half[half], &acc[i]);
    }
    for (size_t i = 0; i < TILE_LANES; i++)
        for (int v = 0; v < 2; v++)
            store(scores + i * LD + v * WIDTH, acc[i].part[v]);
}

static void add_piece(const bt_cpu_attend_pages *a, uint32_t k0)
{
    _Alignas(64) piece p;
    uint32_t           n_k = a->k - k0 < PIECE ? a->k - k0 : PIECE;
    const bt_bf16     *q   = a->q + (size_t)k0 * LANES;

    p.n_pairs = bt_cpu_pad(n_k, 32) / 2;
    for (uint32_t pair = 0; pair < p.n_pairs; pair++)
        for (uint32_t lane = 0; lane < LANES; lane += WIDTH, q += TILE_COLS) {
            halves x = halves_of(load_pairs(q));

            for (int half = 0; half < HALVES; half++)
                memcpy(&p.q[pair][half][lane], &x.half[half], sizeof(vf));
        }
    for (uint32_t key0 = 0; key0 < a->n_keys; key0 += PAGE) {
        uint32_t n = a->n_keys - key0 < PAGE ? a->n_keys - key0 : PAGE;

        if (n < PAGE) memset(p.keys, 0, sizeof(p.keys));
        PACK_ROWS(a->pages[key0 / PAGE] + k0, a->ld, n, n_k, p.keys);
        for (uint32_t key = 0; key < n; key += TILE_COLS)
            for (uint32_t lane = 0; lane < a->n_lanes; lane += TILE_LANES)
                score_tile(&p, lane, key, k0 == 0, a->scores + lane * LD + key0 + key);
    }
}

static void make_scores(const bt_cpu_attend_pages *a)
{
    for (uint32_t k = 0; k < a->k; k += PIECE)
        add_piece(a, k);
}
#endif

/* ---- softmax ---- */

/* A lane's maximum with these scores counted, its scores to weights, and their sum; returns by how
 * much what was summed before shrinks. */
static float softmax(const bt_cpu_attend_pages *a, uint32_t lane)
{
    float   *scores = a->scores + (size_t)lane * LD, before = a->max[lane], max, shrink;
    uint32_t end  = bt_cpu_pad(a->n_keys, LANES);
    lanes    best = {{{0}}}, sum = {{{0}}};

    for (uint32_t key = a->n_keys; key < end; key++)
        scores[key] = -INFINITY; /* its weight is 0, or, like any here, NaN */
    for (int q = 0; q < PARTS; q++)
        best.part[q] = splat(-INFINITY);
    for (uint32_t key = 0; key < end; key += LANES)
        for (int q = 0; q < PARTS; q++)
            best.part[q] = greater(load(scores + key + q * WIDTH), best.part[q]);
    max = max_lanes(&best) * a->scale;
    max = max > before ? max : before;
    for (uint32_t key = 0; key < end; key += LANES)
        for (int q = 0; q < PARTS; q++) {
            uint32_t at = key + (uint32_t)q * WIDTH;
            vf       e  = exp_below(load(scores + at) * a->scale - max);

            sum.part[q] = sum.part[q] + e;
            store_weights(scores, at, e);
        }
    shrink       = exp_below(splat(before - max))[0];
    a->max[lane] = max;
    a->sum[lane] = a->sum[lane] * shrink + sum_lanes(&sum);
    return shrink;
}

/* ---- sums ---- */

/* A lane's columns of a tile. */
INLINE two take(const float *o, float shrink)
{
    vf low = load(o) * shrink, high = load(o + WIDTH) * shrink;

    return (two){
        {__builtin_shufflevector(low, high, ONE), __builtin_shufflevector(low, high, OTHER)}
    };
}
INLINE void leave(two sum, float *o)
{
    store(o, __builtin_shufflevector(sum.part[0], sum.part[1], FIRST));
    store(o + WIDTH, __builtin_shufflevector(sum.part[0], sum.part[1], LAST));
}

INLINE number weight_at(const float *weights, uint32_t pair, int half)
{
    number w;

    memcpy(&w, weights + (size_t)pair * HALVES + half, sizeof(w));
    return w;
}

INLINE void add_rows(const float *weights, uint32_t pair, const bt_bf16 *even, const bt_bf16 *odd,
                     two acc[TILE_LANES])
{
    halves x, y;

    pair_rows(even, odd, &x, &y);
    for (int half = HALVES - 1; half >= 0; half--)
        for (size_t i = 0; i < TILE_LANES; i++)
            add(weight_at(weights + i * LD, pair, half), x.half[half], y.half[half], &acc[i]);
}

/* n keys' rows, from the tile's columns on.  Of the lines from `later` to `end` one is fetched with
 * each pair (that at `end`, when there are fewer), and the others after them.  The last row of an
 * odd number has one of zeros beside it, whose weight is 0. */
INLINE void add_page(const float *weights, const bt_bf16 *row, size_t ld, uint32_t n,
                     const bt_bf16 *later, const bt_bf16 *end, two acc[TILE_LANES])
{
    static const bt_bf16 ZEROS[TILE_COLS];
    uint32_t             pair = 0;

    for (; pair < n / 2; pair++, row += 2 * ld, later += later < end ? LINE : 0) {
        __builtin_prefetch(later, 0, 1);
        add_rows(weights, pair, row, row + ld, acc);
    }
    if (n % 2 != 0) add_rows(weights, pair, row, ZEROS, acc);
    for (; later < end; later += LINE)
        __builtin_prefetch(later, 0, 1);
}

static void add_values(const bt_cpu_attend_pages *a, uint32_t lane, uint32_t col,
                       const float shrink[LANES])
{
    const float *weights = a->scores + (size_t)lane * LD;
    float       *o       = a->o + lane * a->ld_o + col;
    /* The tiles share the lines of the pages that are read later. */
    size_t rows = (a->n_lanes + TILE_LANES - 1) / TILE_LANES, n = a->v_dim / TILE_COLS * rows;
    size_t tile = col / TILE_COLS * rows + lane / TILE_LANES, n_lines = PAGE * a->ld / LINE;
    size_t from = n_lines * tile / n * LINE, end = n_lines * (tile + 1) / n * LINE;
    two    acc[TILE_LANES];

    for (size_t i = 0; i < TILE_LANES; i++)
        acc[i] = a->begins ? (two){{{0}}} : take(o + i * a->ld_o, shrink[lane + i]);
    for (uint32_t key = 0; key < a->n_keys; key += PAGE) {
        uint32_t       n_keys = a->n_keys - key < PAGE ? a->n_keys - key : PAGE;
        const bt_bf16 *row = a->pages[key / PAGE] + col, *page = a->later[key / PAGE];
        const bt_bf16 *later = page != NULL ? page + from : row;

        add_page(weights + key / 2 * HALVES, row, a->ld, n_keys, later,
                 page != NULL ? page + end : later, acc);
    }
    for (size_t i = 0; i < TILE_LANES; i++)
        leave(acc[i], o + i * a->ld_o);
}

void ATTEND_PAGES(const bt_cpu_attend_pages *a)
{
    float shrink[LANES] = {0};

    make_scores(a);
    for (uint32_t lane = 0; lane < a->n_lanes; lane++)
        shrink[lane] = softmax(a, lane);
    for (uint32_t col = 0; col < a->v_dim; col += TILE_COLS)
        for (uint32_t lane = 0; lane < a->n_lanes; lane += TILE_LANES)
            add_values(a, lane, col, shrink);
}
