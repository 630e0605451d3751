/* device/cpu/mm_amx_attend.c - a strip of queries through blocks of keys on AMX: scores,
 * exponentials and weighted values, with the exponentials of one block beside the products of its
 * neighbours, whose tiles leave the vector units idle.
 *
 * For each block b, in this order:    maxima of the scores of b
 *                                     scores of b+1 = q K^T       | exponentials of b, while
 *                                     o += weights of b-1 * V     | these last
 *                                     o shrinks where b has raised a maximum
 * so that each sum and each rounding is that of bt_cpu_attend, however they are interleaved.  While
 * the tile unit works, other vector instructions have one port instead of two: what does not go
 * beside it is done alone, faster.
 *
 * Tiles 0-3 accumulate, 4-5 hold queries or weights, 6-7 keys or values: 2 x 2 tiles a step. */
#include "device/cpu/amx.h"
#include "device/cpu/families.h"

#define WIDTH 16
#include "device/cpu/lanes.inc.h"

enum {
    STRIP = BT_CPU_STRIP,
    BLOCK = BT_CPU_STRIP_KEYS,
    SOME  = 4 /* vectors of exponentials beside a step of products */
};

/* Exponentials of a block, a few vectors at a time. */
typedef struct {
    const float *scores; /* [STRIP][BLOCK] */
    bt_bf16     *p;      /* [STRIP][BLOCK] */
    const float *max;    /* [STRIP] */
    float        scale;
    float       *sum;     /* out [STRIP] */
    uint32_t     n_keys;  /* that row 0 sees; each further one sees one more */
    uint32_t     width;   /* keys of a row, in SOME vectors; what is not seen becomes +0 */
    uint32_t     row, at; /* what is next */
    lanes        part;    /* the sum of a row's first vectors */
} exps;

INLINE bool are_left(const exps *e) { return e->row < STRIP; }

/* e^(x - max), x not above max: as exp_lanes(), without what only larger ones need. */
INLINE vf weight_of(const float *score, float scale, vf max)
{
    return exp_below(load(score) * scale - max);
}

INLINE void store_two(bt_bf16 *p, vf v, vf w)
{
    _mm512_store_si512(p, (__m512i)_mm512_cvtne2ps_pbh((__m512)w, (__m512)v));
}

INLINE __mmask16 first_lanes(uint32_t n) { return (__mmask16)(n < LANES ? (1u << n) - 1 : 0xffff); }

/* SOME vectors of which `n` keys are seen. */
static vf do_last(const float *scores, float scale, vf max, uint32_t n, vf sum, bt_bf16 *p)
{
    for (uint32_t i = 0; i < SOME * LANES; i += 2 * LANES) {
        uint32_t in_v = n > i ? n - i : 0, in_w = n > i + LANES ? n - i - LANES : 0;
        vf       v =
            (vf)_mm512_maskz_mov_ps(first_lanes(in_v), (__m512)weight_of(scores + i, scale, max));
        vf w = (vf)_mm512_maskz_mov_ps(first_lanes(in_w),
                                       (__m512)weight_of(scores + i + LANES, scale, max));

        sum = sum + v + w;
        store_two(p + i, v, w);
    }
    return sum;
}

INLINE void do_some(exps *e)
{
    size_t       from   = (size_t)e->row * BLOCK + e->at;
    uint32_t     seen   = e->n_keys + e->row;
    const float *scores = e->scores + from;
    vf           max = splat(e->max[e->row]), sum = e->at == 0 ? splat(0) : e->part.part[0];

    if (e->at + SOME * LANES <= seen) {
        for (uint32_t i = 0; i < SOME * LANES; i += 2 * LANES) {
            vf v = weight_of(scores + i, e->scale, max);
            vf w = weight_of(scores + i + LANES, e->scale, max);

            sum = sum + v + w;
            store_two(e->p + from + i, v, w);
        }
    } else {
        sum = do_last(scores, e->scale, max, seen > e->at ? seen - e->at : 0, sum, e->p + from);
    }
    e->part.part[0] = sum;
    e->at += SOME * LANES;
    if (e->at < e->width) return;
    e->sum[e->row++] = sum_lanes(&e->part);
    e->at            = 0;
}

/* y[STRIP, 32 n_panels] (+)= x B. */
typedef struct {
    const bt_bf16 *x;
    size_t         ld_x;
    const bt_bf16 *b;     /* packed, */
    size_t         block; /* so many elements from one block of 16 columns to the next */
    uint32_t       n_steps, n_panels;
    float         *y;
    size_t         ld_y;
    bool           from_zero;
} product;

/* Where the sums in tiles 0-3 belong; y NULL: they are there. */
typedef struct {
    float *y;
    size_t ld;
} place;

#define PLACE(t, y, ld) ((y) + (t) / 2 * TILE * (ld) + (t) % 2 * TILE)
#define LEAVE_SUMS(t, to)                                                              \
    do {                                                                               \
        if ((to)->y != NULL)                                                           \
            _tile_stored(t, PLACE(t, (to)->y, (to)->ld), (to)->ld * sizeof(*(to)->y)); \
    } while (0)
#define TAKE_SUMS(t, m, from)                                                       \
    do {                                                                            \
        if ((m)->from_zero)                                                         \
            _tile_zero(t);                                                          \
        else                                                                        \
            _tile_loadd(t, PLACE(t, from, (m)->ld_y), (m)->ld_y * sizeof(*(m)->y)); \
    } while (0)

static void leave_held(place *held)
{
    LEAVE_SUMS(0, held);
    LEAVE_SUMS(1, held);
    LEAVE_SUMS(2, held);
    LEAVE_SUMS(3, held);
    held->y = NULL;
}

/* With as many exponentials as there is time for.  Sums leave one tile at a time, among the first
 * products of the panel that follows. */
static void multiply(const product *m, exps *beside, place *held)
{
    size_t ld_x = m->ld_x * sizeof(*m->x);

    for (uint32_t n = 0; n < m->n_panels; n++) {
        const bt_bf16 *x = m->x, *low_x = m->x + TILE * m->ld_x, *b = m->b + 2 * n * m->block;
        float         *y = m->y + (size_t)n * 2 * TILE;

        _tile_loadd(4, x, ld_x);
        _tile_stream_loadd(6, b, 64);
        LEAVE_SUMS(0, held);
        TAKE_SUMS(0, m, y);
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(7, b + m->block, 64);
        LEAVE_SUMS(1, held);
        TAKE_SUMS(1, m, y);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, low_x, ld_x);
        LEAVE_SUMS(2, held);
        TAKE_SUMS(2, m, y);
        _tile_dpbf16ps(2, 5, 6);
        LEAVE_SUMS(3, held);
        TAKE_SUMS(3, m, y);
        _tile_dpbf16ps(3, 5, 7);
        *held = (place){y, m->ld_y};
        if (are_left(beside)) do_some(beside);
        for (uint32_t s = 1; s < m->n_steps; s++) {
            x += STEP, low_x += STEP, b += TILE_ELEMS;
            _tile_loadd(4, x, ld_x);
            _tile_stream_loadd(6, b, 64);
            _tile_loadd(5, low_x, ld_x);
            _tile_stream_loadd(7, b + m->block, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            if (are_left(beside)) do_some(beside);
        }
    }
    publish(beside->p);
}

/* Keys of the block that the last query sees, in whole steps. */
static uint32_t n_seen(const bt_cpu_attend *a, uint32_t block)
{
    uint32_t n = a->last_keys + STRIP - 1;

    return block + 1 < a->n_blocks || n > BLOCK ? (uint32_t)BLOCK : bt_cpu_pad(n, STEP);
}

/* The scores of a block. */
static void score(const bt_cpu_attend *a, uint32_t block, exps *beside, place *held)
{
    multiply(&(product){.x         = a->q,
                        .ld_x      = a->k,
                        .b         = a->keys + (size_t)block * BLOCK * a->k,
                        .block     = (size_t)a->k * TILE,
                        .n_steps   = a->k / STEP,
                        .n_panels  = n_seen(a, block) / (2 * TILE),
                        .y         = a->scores + (size_t)(block % 2) * STRIP * BLOCK,
                        .ld_y      = BLOCK,
                        .from_zero = true},
             beside, held);
}

static void add_values(const bt_cpu_attend *a, uint32_t block, exps *beside, place *held)
{
    uint32_t k = block + 1 < a->n_blocks ? (uint32_t)BLOCK : a->last_k;

    multiply(&(product){.x         = a->p + (size_t)(block % 2) * STRIP * BLOCK,
                        .ld_x      = BLOCK,
                        .b         = a->values + (size_t)block * BLOCK * a->v_dim,
                        .block     = (size_t)k * TILE,
                        .n_steps   = n_seen(a, block) / STEP,
                        .n_panels  = a->v_dim / (2 * TILE),
                        .y         = a->o,
                        .ld_y      = a->ld_o,
                        .from_zero = block == 0},
             beside, held);
}

/* The exponentials of a block, of which none is done. */
static exps exps_of(const bt_cpu_attend *a, uint32_t block, float *sum)
{
    size_t at = (size_t)(block % 2) * STRIP * BLOCK;

    return (exps){.scores = a->scores + at,
                  .p      = a->p + at,
                  .max    = a->max,
                  .scale  = a->scale,
                  .sum    = sum,
                  .n_keys = block + 1 < a->n_blocks ? (uint32_t)BLOCK : a->last_keys,
                  .width  = bt_cpu_pad(n_seen(a, block), SOME * LANES)};
}

/* The maxima in each lane of a row's first n scores; a NaN is passed over. */
INLINE vf lane_maxima(const float *scores, uint32_t n)
{
    vf       best = splat(-INFINITY), more = best;
    uint32_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        best = greater(load(scores + i), best);
        more = greater(load(scores + i + LANES), more);
    }
    if (i < n)
        best = (vf)_mm512_mask_max_ps((__m512)best, first_lanes(n - i), (__m512)load(scores + i),
                                      (__m512)best);
    i += LANES;
    if (i < n)
        more = (vf)_mm512_mask_max_ps((__m512)more, first_lanes(n - i), (__m512)load(scores + i),
                                      (__m512)more);
    return greater(best, more);
}

/* Lane i: the greatest of rows[i]. */
INLINE vf fold_rows(const vf rows[LANES])
{
    __m512 a[8], b[4], c[2];

    for (int i = 0; i < 8; i++) {
        __m512 x = (__m512)rows[2 * i], y = (__m512)rows[2 * i + 1];

        a[i] = _mm512_max_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    }
    for (int i = 0; i < 4; i++) {
        __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);

        b[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_max_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    return (vf)_mm512_max_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88),
                             _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
}

/* max[] with the block's scores counted, and by how much what was summed before shrinks. */
static void raise_max(const bt_cpu_attend *a, const exps *e, float shrink[STRIP])
{
    for (uint32_t row = 0; row < STRIP; row += LANES) {
        vf rows[LANES], before = load(a->max + row), max;

        for (uint32_t i = 0; i < LANES; i++) {
            uint32_t n = e->n_keys + row + i;

            rows[i] =
                lane_maxima(e->scores + (size_t)(row + i) * BLOCK, n < BLOCK ? n : (uint32_t)BLOCK);
        }
        max = greater(fold_rows(rows) * a->scale, before);
        store(a->max + row, max);
        store(shrink + row, exp_below(before - max));
    }
}

/* What was summed before the block shrinks; its own sums are added. */
static void add_sums(const bt_cpu_attend *a, uint32_t block, const float shrink[STRIP],
                     const float sum[STRIP])
{
    for (uint32_t row = 0; row < STRIP; row++) {
        a->sum[row] = a->sum[row] * shrink[row] + sum[row];
        if (shrink[row] != 1.0f && block != 0)
            bt_cpu_rows_avx512bf16.scale(a->o + row * a->ld_o, a->v_dim, shrink[row]);
    }
}

void bt_cpu_attend_amx(const bt_cpu_attend *a)
{
    float shrink[STRIP], sum[STRIP];
    exps  none = {.p = a->p, .row = STRIP};
    place held = {NULL, 0};

    publish(a->q);
    configure(TILE, TILE);
    score(a, 0, &none, &held);
    leave_held(&held);
    for (uint32_t b = 0; b < a->n_blocks; b++) {
        exps e = exps_of(a, b, sum);

        raise_max(a, &e, shrink);
        if (b + 1 < a->n_blocks) score(a, b + 1, &e, &held);
        if (b != 0) add_values(a, b - 1, &e, &held);
        leave_held(&held);
        while (are_left(&e))
            do_some(&e);
        publish(e.p);
        add_sums(a, b, shrink, sum);
    }
    add_values(a, a->n_blocks - 1, &none, &held);
    leave_held(&held);
    _tile_release();
}
