/* device/cpu/mm_amx_attend.c - a strip of queries through whole blocks of keys on AMX: scores,
 * exponentials and weighted values, with the exponentials of one block beside the products of its
 * neighbours, whose tiles leave the vector units idle.
 *
 * For each block b, in this order:    maxima of the scores of b
 *                                     scores of b+1 = q K^T       | exponentials of b, while
 *                                     o += weights of b-1 * V     | these last
 *                                     o shrinks where b has raised a maximum
 * so that each sum and each rounding is that of bt_cpu_attend, however they are interleaved.
 *
 * Tiles 0-3 accumulate, 4-5 hold queries or weights, 6-7 keys or values: 2 x 2 tiles a step. */
#include "device/cpu/amx.h"
#include "device/cpu/families.h"

#define WIDTH 16
#include "device/cpu/lanes.inc.h"

enum {
    STRIP = BT_CPU_STRIP,
    BLOCK = BT_CPU_STRIP_KEYS,
    ROW   = BLOCK / LANES, /* vectors */
    SOME  = 8              /* of them beside a step of products */
};

/* Exponentials of a block, a few vectors at a time. */
typedef struct {
    const float *scores; /* [STRIP][BLOCK] */
    bt_bf16     *p;      /* [STRIP][BLOCK] */
    const float *max;    /* [STRIP] */
    float        scale;
    float       *sum;  /* out [STRIP] */
    uint32_t     done; /* vectors */
    lanes        part; /* the sum of a row's first vectors */
} exps;

INLINE bool are_left(const exps *e) { return e->done < STRIP * ROW; }

INLINE void do_some(exps *e)
{
    uint32_t row = e->done / ROW;
    size_t   at  = (size_t)e->done * LANES;
    vf       max = splat(e->max[row]), sum = e->done % ROW == 0 ? splat(0) : e->part.part[0];

    for (int i = 0; i < SOME; i += 2, at += 2 * LANES) {
        vf v = exp_lanes(load(e->scores + at) * e->scale - max);
        vf w = exp_lanes(load(e->scores + at + LANES) * e->scale - max);

        sum = sum + v + w;
        _mm512_store_si512(e->p + at, (__m512i)_mm512_cvtne2ps_pbh((__m512)w, (__m512)v));
    }
    e->part.part[0] = sum;
    e->done += SOME;
    if (e->done % ROW == 0) e->sum[row] = sum_lanes(&e->part);
}

/* y[STRIP, 32 n_panels] (+)= x B. */
typedef struct {
    const bt_bf16 *x;
    size_t         ld_x;
    const bt_bf16 *b; /* packed, of 32 n_steps k */
    uint32_t       n_steps, n_panels;
    float         *y;
    size_t         ld_y;
    bool           from_zero;
} product;

/* With as many exponentials as there is time for. */
static void multiply(const product *m, exps *beside)
{
    size_t block = (size_t)m->n_steps * TILE_ELEMS, ld_x = m->ld_x * sizeof(*m->x),
           ld_y = m->ld_y * sizeof(*m->y);

    for (uint32_t n = 0; n < m->n_panels; n++) {
        const bt_bf16 *x = m->x, *low_x = m->x + TILE * m->ld_x, *b = m->b + 2 * n * block;
        float         *y = m->y + (size_t)n * 2 * TILE, *low_y = y + TILE * m->ld_y;

        if (m->from_zero) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        } else {
            _tile_loadd(0, y, ld_y);
            _tile_loadd(1, y + TILE, ld_y);
            _tile_loadd(2, low_y, ld_y);
            _tile_loadd(3, low_y + TILE, ld_y);
        }
        for (uint32_t s = 0; s < m->n_steps; s++, x += STEP, low_x += STEP, b += TILE_ELEMS) {
            _tile_loadd(4, x, ld_x);
            _tile_stream_loadd(6, b, 64);
            _tile_loadd(5, low_x, ld_x);
            _tile_stream_loadd(7, b + block, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            if (are_left(beside)) do_some(beside);
        }
        _tile_stored(0, y, ld_y);
        _tile_stored(1, y + TILE, ld_y);
        _tile_stored(2, low_y, ld_y);
        _tile_stored(3, low_y + TILE, ld_y);
    }
    publish(beside->p);
}

/* The scores of a block. */
static void score(const bt_cpu_attend *a, uint32_t block, exps *beside)
{
    multiply(&(product){.x         = a->q,
                        .ld_x      = a->k,
                        .b         = a->keys + (size_t)block * BLOCK * a->k,
                        .n_steps   = a->k / STEP,
                        .n_panels  = BLOCK / (2 * TILE),
                        .y         = a->scores + (size_t)(block % 2) * STRIP * BLOCK,
                        .ld_y      = BLOCK,
                        .from_zero = true},
             beside);
}

static void add_values(const bt_cpu_attend *a, uint32_t block, exps *beside)
{
    multiply(&(product){.x         = a->p + (size_t)(block % 2) * STRIP * BLOCK,
                        .ld_x      = BLOCK,
                        .b         = a->values + (size_t)block * BLOCK * a->v_dim,
                        .n_steps   = BLOCK / STEP,
                        .n_panels  = a->v_dim / (2 * TILE),
                        .y         = a->o,
                        .ld_y      = a->ld_o,
                        .from_zero = block == 0},
             beside);
}

/* max[] with the block's scores counted, and by how much what was summed before shrinks. */
static void raise_max(const bt_cpu_attend *a, const float *scores, float shrink[STRIP])
{
    const bt_cpu_row_kernels *rows = &bt_cpu_rows_avx512bf16;
    float                     fell[STRIP];
    bt_bf16                   rounded[STRIP];

    for (uint32_t lane = 0; lane < STRIP; lane++, scores += BLOCK) {
        float max = rows->row_max(scores, BLOCK, -INFINITY) * a->scale;

        fell[lane]   = a->max[lane];
        a->max[lane] = max > a->max[lane] ? max : a->max[lane];
        fell[lane]   = fell[lane] - a->max[lane];
    }
    rows->exp_row(fell, STRIP, STRIP, 1.0f, 0.0f, rounded, shrink);
}

void bt_cpu_attend_amx(const bt_cpu_attend *a)
{
    float shrink[STRIP], sum[STRIP];
    exps  none = {.p = a->p, .done = STRIP * ROW};

    publish(a->q);
    configure(TILE);
    score(a, 0, &none);
    for (uint32_t b = 0; b < a->n_blocks; b++) {
        size_t at = (size_t)(b % 2) * STRIP * BLOCK;
        exps   e  = {
               .scores = a->scores + at, .p = a->p + at, .max = a->max, .scale = a->scale, .sum = sum};

        raise_max(a, e.scores, shrink);
        if (b + 1 < a->n_blocks) score(a, b + 1, &e);
        if (b != 0) add_values(a, b - 1, &e);
        while (are_left(&e))
            do_some(&e);
        publish(e.p);
        for (uint32_t lane = 0; lane < STRIP; lane++) {
            a->sum[lane] = a->sum[lane] * shrink[lane] + sum[lane];
            if (shrink[lane] != 1.0f && b != 0)
                bt_cpu_rows_avx512bf16.scale(a->o + lane * a->ld_o, a->v_dim, shrink[lane]);
        }
    }
    add_values(a, a->n_blocks - 1, &none);
    _tile_release();
}
