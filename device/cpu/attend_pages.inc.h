/* device/cpu/attend_pages.inc.h - a few queries through a block of keys in pages, which are the
 * values too, by dp2 with fused multiply-adds.  The including file defines WIDTH, the floats in a
 * register; TILE_LANES, whose sums in two vectors each are the registers' tile; PACK_ROWS; and the
 * function's name, ATTEND_PAGES.
 *
 * In both products a number of a lane multiplies two vectors, which it takes one load to spread:
 *     scores:  of keys, packed page by page for a piece of k, so that lanes share the packing
 *     sums:    of columns, as rows have them
 * A pair of bf16 becomes floats by a shift and a mask.  So the sums' vectors are even and odd
 * columns, which meet again when they leave. */
#include "device/cpu/families.h"
#include "device/cpu/lanes.inc.h"

enum {
    PIECE     = 128, /* of k: queries and packed keys of a page stay in the first-level cache */
    TILE_COLS = 2 * WIDTH,
    PAGE      = BT_CPU_PAGE_ROWS,
    LD        = BT_CPU_LD_SCORES,
    LINE      = 32 /* elements of a cache line */
};

typedef struct {
    vf part[2];
} two;

/* Even and odd elements of TILE_COLS bf16. */
INLINE two split(const bt_bf16 *x)
{
    vu pairs;

    memcpy(&pairs, x, sizeof(pairs));
    return (two){
        {(vf)(pairs << 16), (vf)(pairs & 0xffff0000u)}
    };
}

INLINE void add(float a, vf x, vf y, two *sum)
{
    vf all = a - (vf){0}; /* splat() of what may be -0 takes an addition */

    sum->part[0] = fused(all, x, sum->part[0]);
    sum->part[1] = fused(all, y, sum->part[1]);
}

/* ---- scores ---- */

/* A piece of k: of the queries as floats, and of a page's keys. */
typedef struct {
    float    q[PIECE / 2][2][LANES]; /* [pair][even, odd][lane] */
    bt_bf16  keys[PIECE * PAGE];     /* packed [PAGE, 2 n_pairs] */
    uint32_t n_pairs;
} piece;

/* scores[lane][key] += q K^T of a tile, whose lanes and keys begin here. */
INLINE void score_tile(const piece *p, uint32_t lane, uint32_t key, bool begins, float *scores)
{
    const bt_bf16 *keys   = p->keys + (size_t)key * 2 * p->n_pairs;
    size_t         second = WIDTH == LANES ? (size_t)2 * LANES * p->n_pairs : TILE_COLS;
    two            acc[TILE_LANES];

    for (size_t i = 0; i < TILE_LANES; i++)
        for (int v = 0; v < 2; v++)
            acc[i].part[v] = begins ? splat(0) : load(scores + i * LD + v * WIDTH);
    for (uint32_t pair = 0; pair < p->n_pairs; pair++, keys += 2 * LANES) {
        const float *q = p->q[pair][0] + lane;
        two          x = split(keys), y = split(keys + second);

        for (int i = 0; i < TILE_LANES; i++)
            add(q[LANES + i], x.part[1], y.part[1], &acc[i]);
        for (int i = 0; i < TILE_LANES; i++)
            add(q[i], x.part[0], y.part[0], &acc[i]);
    }
    for (size_t i = 0; i < TILE_LANES; i++)
        for (int v = 0; v < 2; v++)
            store(scores + i * LD + v * WIDTH, acc[i].part[v]);
}

static void add_scores(const bt_cpu_attend_pages *a, uint32_t k0)
{
    _Alignas(64) piece p;
    uint32_t           n_k = a->k - k0 < PIECE ? a->k - k0 : PIECE;
    const bt_bf16     *q   = a->q + (size_t)k0 * LANES;

    p.n_pairs = bt_cpu_pad(n_k, 32) / 2;
    for (uint32_t pair = 0; pair < p.n_pairs; pair++)
        for (uint32_t lane = 0; lane < LANES; lane += WIDTH, q += TILE_COLS) {
            two x = split(q);

            store(&p.q[pair][0][lane], x.part[0]);
            store(&p.q[pair][1][lane], x.part[1]);
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
            float *s = scores + key + q * WIDTH;
            vf     e = exp_below(load(s) * a->scale - max);

            sum.part[q] = sum.part[q] + e;
            store(s, widen(round_result(e)));
        }
    shrink       = exp_below(splat(before - max))[0];
    a->max[lane] = max;
    a->sum[lane] = a->sum[lane] * shrink + sum_lanes(&sum);
    return shrink;
}

/* ---- sums ---- */

#if WIDTH == 16
#define EVEN  0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD   1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define LAST  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#else
#define EVEN  0, 2, 4, 6, 8, 10, 12, 14
#define ODD   1, 3, 5, 7, 9, 11, 13, 15
#define FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define LAST  4, 12, 5, 13, 6, 14, 7, 15
#endif

/* A lane's columns of a tile. */
INLINE two take(const float *o, float shrink)
{
    vf low = load(o) * shrink, high = load(o + WIDTH) * shrink;

    return (two){
        {__builtin_shufflevector(low, high, EVEN), __builtin_shufflevector(low, high, ODD)}
    };
}
INLINE void leave(two sum, float *o)
{
    store(o, __builtin_shufflevector(sum.part[0], sum.part[1], FIRST));
    store(o + WIDTH, __builtin_shufflevector(sum.part[0], sum.part[1], LAST));
}

INLINE void add_row(const float *weights, two row, two acc[TILE_LANES])
{
    for (size_t i = 0; i < TILE_LANES; i++)
        add(weights[i * LD], row.part[0], row.part[1], &acc[i]);
}

/* n keys' rows, from the tile's columns on.  A line is fetched with each pair. */
INLINE void add_page(const float *weights, const bt_bf16 *row, size_t ld, uint32_t n,
                     const bt_bf16 *later, two acc[TILE_LANES])
{
    for (uint32_t pair = 0; pair < n / 2; pair++, row += 2 * ld, weights += 2, later += LINE) {
        two even = split(row), odd = split(row + ld);

        __builtin_prefetch(later, 0, 1);
        add_row(weights + 1, odd, acc);
        add_row(weights, even, acc);
    }
    if (n % 2 != 0) add_row(weights, split(row), acc);
}

static void add_values(const bt_cpu_attend_pages *a, uint32_t lane, uint32_t col,
                       const float shrink[LANES])
{
    const float *weights = a->scores + (size_t)lane * LD;
    float       *o       = a->o + lane * a->ld_o + col;
    size_t       at =
        ((size_t)col / TILE_COLS * (LANES / TILE_LANES) + lane / TILE_LANES) * PAGE / 2 * LINE;
    two acc[TILE_LANES];

    for (size_t i = 0; i < TILE_LANES; i++)
        acc[i] = a->begins ? (two){{{0}}} : take(o + i * a->ld_o, shrink[lane + i]);
    for (uint32_t key = 0; key < a->n_keys; key += PAGE) {
        uint32_t       n   = a->n_keys - key < PAGE ? a->n_keys - key : PAGE;
        const bt_bf16 *row = a->pages[key / PAGE] + col, *later = a->later[key / PAGE];

        later = later != NULL && at + PAGE / 2 * LINE <= PAGE * a->ld ? later + at : row;
        add_page(weights + key, row, a->ld, n, later, acc);
    }
    for (size_t i = 0; i < TILE_LANES; i++)
        leave(acc[i], o + i * a->ld_o);
}

void ATTEND_PAGES(const bt_cpu_attend_pages *a)
{
    float shrink[LANES] = {0};

    for (uint32_t k = 0; k < a->k; k += PIECE)
        add_scores(a, k);
    for (uint32_t lane = 0; lane < a->n_lanes; lane++)
        shrink[lane] = softmax(a, lane);
    for (uint32_t col = 0; col < a->v_dim; col += TILE_COLS)
        for (uint32_t lane = 0; lane < a->n_lanes; lane += TILE_LANES)
            add_values(a, lane, col, shrink);
}
