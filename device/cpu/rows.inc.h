/* device/cpu/rows.inc.h - every kernel but the products, written once on compiler vectors and
 * compiled once per instruction set: each rows_<isa>.c defines ROWS_TABLE
 * and WIDTH, the floats in a register, and includes it.  Only plain additions, multiplications,
 * divisions, square roots and fused multiply-adds, and sums in LANES lanes whatever the width, so
 * that all of them give the same bits. */
#include "device/cpu/families.h"
#include "device/cpu/lanes.inc.h"

enum { SUM_VECTORS = 4 };

/* Steps i over whole vectors; n % WIDTH elements are left at i. */
#define FOR_VECTORS(i, n) for (; i + WIDTH <= (n); i += WIDTH)

static void to_bf16(const float *x, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    FOR_VECTORS(i, n) store_bf16(y + i, load(x + i));
    if (i < n) store_bf16_part(y + i, load_part(x + i, n - i, 0), n - i);
}

static void scale(float *x, size_t n, float a)
{
    size_t i = 0;

    FOR_VECTORS(i, n) store(x + i, load(x + i) * a);
    for (; i < n; i++)
        x[i] = x[i] * a;
}

static void scale_bf16(const float *x, size_t n, float a, bt_bf16 *y)
{
    size_t i = 0;

    FOR_VECTORS(i, n) store_bf16(y + i, load(x + i) * a + 0.0f);
    if (i < n) store_bf16_part(y + i, load_part(x + i, n - i, 0) * a + 0.0f, n - i);
}

static void axpy(float a, const float *x, size_t n, float *y)
{
    size_t i = 0;

    FOR_VECTORS(i, n) store(y + i, load(y + i) + load(x + i) * a);
    for (; i < n; i++)
        y[i] = y[i] + x[i] * a;
}

static float row_max(const float *x, size_t n)
{
    lanes  best;
    size_t i = 0, left;

    for (int q = 0; q < PARTS; q++)
        best.part[q] = splat(-INFINITY);
    for (; i + LANES <= n; i += LANES)
        for (int q = 0; q < PARTS; q++)
            best.part[q] = greater(load(x + i + q * WIDTH), best.part[q]);
    for (int q = 0; i < n; q++, i += left) {
        left         = n - i < WIDTH ? n - i : WIDTH;
        best.part[q] = greater(load_part(x + i, left, -INFINITY), best.part[q]);
    }
    return max_lanes(&best);
}

static float row_sum(const float *x, size_t n)
{
    lanes  sum = {{{0}}};
    size_t i   = 0, left;

    for (; i + LANES <= n; i += LANES)
        for (int q = 0; q < PARTS; q++)
            sum.part[q] = sum.part[q] + load(x + i + q * WIDTH);
    for (int q = 0; i < n; q++, i += left) {
        left        = n - i < WIDTH ? n - i : WIDTH;
        sum.part[q] = sum.part[q] + load_part(x + i, left, 0);
    }
    return sum_lanes(&sum);
}

static void relu_dots(const float *w, const float *x, size_t ld_x, size_t m, size_t n, float *y)
{
    for (size_t row = 0; row < m; row++, x += ld_x) {
        lanes  sum = {{{0}}};
        size_t i   = 0, left;

        for (; i + LANES <= n; i += LANES)
            for (int q = 0; q < PARTS; q++) {
                size_t at = i + q * WIDTH;

                sum.part[q] = sum.part[q] + load(w + at) * greater(load(x + at), splat(0));
            }
        for (int q = 0; i < n; q++, i += left) {
            left        = n - i < WIDTH ? n - i : WIDTH;
            sum.part[q] = sum.part[q] +
                          load_part(w + i, left, 0) * greater(load_part(x + i, left, 0), splat(0));
        }
        y[row] = sum_lanes(&sum);
    }
}

static uint32_t count_above(const float *x, size_t n, uint32_t order)
{
    vi       above = {0};
    uint32_t count = 0;
    size_t   i     = 0;

    FOR_VECTORS(i, n)
    {
        vu bits = (vu)load(x + i);

        above -= (vi)((bits ^ ((vu)((vi)bits >> 31) | 0x80000000u)) > order);
    }
    for (; i < n; i++)
        count += bt_cpu_order_of(x[i]) > order;
    for (int lane = 0; lane < WIDTH; lane++)
        count += (uint32_t)above[lane];
    return count;
}

/* n <= WIDTH elements of exp_row(); returns them, 0 in the other lanes. */
INLINE vf exp_some(const float *x, size_t n, float factor, float max, bt_bf16 *p, float *p_f32)
{
    float e[WIDTH];

    memset(e, 0, sizeof(e));
    store_part(e, exp_lanes(load_part(x, n, 0) * factor - max), n);
    store_bf16_part(p, load(e), n);
    if (p_f32 != NULL) memcpy(p_f32, e, n * sizeof(*e));
    return load(e);
}

static float exp_row(const float *x, size_t n, size_t n_pad, float factor, float max, bt_bf16 *p,
                     float *p_f32)
{
    lanes  sum = {{{0}}};
    size_t i   = 0, left;

    for (; i + LANES <= n; i += LANES) {
        for (int q = 0; q < PARTS; q++) {
            size_t at = i + q * WIDTH;
            vf     e  = exp_lanes(load(x + at) * factor - max);

            sum.part[q] = sum.part[q] + e;
            store_bf16(p + at, e);
            if (p_f32 != NULL) store(p_f32 + at, e);
        }
    }
    for (int q = 0; i < n; q++, i += left) {
        left        = n - i < WIDTH ? n - i : WIDTH;
        sum.part[q] = sum.part[q] +
                      exp_some(x + i, left, factor, max, p + i, p_f32 != NULL ? p_f32 + i : NULL);
    }
    if (n_pad > n) memset(p + n, 0, (n_pad - n) * sizeof(*p));
    if (n_pad > n && p_f32 != NULL) memset(p_f32 + n, 0, (n_pad - n) * sizeof(*p_f32));
    return sum_lanes(&sum);
}

static float sum_of_squares(const bt_bf16 *x, size_t n)
{
    lanes  sum = {{{0}}};
    size_t i   = 0, left;
    vf     v;

    for (; i + LANES <= n; i += LANES) {
        for (int q = 0; q < PARTS; q++) {
            v           = load_bf16(x + i + q * WIDTH);
            sum.part[q] = sum.part[q] + v * v;
        }
    }
    for (int q = 0; i < n; q++, i += left) {
        left        = n - i < WIDTH ? n - i : WIDTH;
        v           = load_bf16_part(x + i, left);
        sum.part[q] = sum.part[q] + v * v;
    }
    return sum_lanes(&sum);
}

static void rms_norm_row(const bt_bf16 *x, const bt_bf16 *weight, size_t n, float eps, bt_bf16 *y)
{
    float  factor = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    size_t i      = 0;
    vf     v;

    FOR_VECTORS(i, n)
    {
        v = widen(round_result(load_bf16(x + i) * factor));
        store_bf16(y + i, v * load_bf16(weight + i));
    }
    if (i < n) {
        v = widen(round_result(load_bf16_part(x + i, n - i) * factor));
        store_bf16_part(y + i, v * load_bf16_part(weight + i, n - i), n - i);
    }
}

static void add_row(const bt_bf16 *x, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    FOR_VECTORS(i, n) store_bf16(y + i, load_bf16(y + i) + load_bf16(x + i));
    if (i < n)
        store_bf16_part(y + i, load_bf16_part(y + i, n - i) + load_bf16_part(x + i, n - i), n - i);
}

static void add_norm_row(const bt_bf16 *x, bt_bf16 *residual, const bt_bf16 *weight, size_t n,
                         float eps, bt_bf16 *y)
{
    add_row(x, n, residual);
    rms_norm_row(residual, weight, n, eps, y);
}

/* Columns i .. i + n_vectors WIDTH of sum_parts(), or the `count` < WIDTH last ones. */
INLINE void sum_columns(const bt_bf16 *const *rows, const uint32_t *n_of, uint32_t n_parts,
                        const float *last, size_t i, int n_vectors, size_t count, bt_bf16 *y)
{
    vf   acc[SUM_VECTORS], part[SUM_VECTORS];
    bool whole = count == WIDTH;

    for (int v = 0; v < n_vectors; v++)
        acc[v] = splat(0);
    for (uint32_t j = 0; j < n_parts; rows += n_of[j++]) {
        for (int v = 0; v < n_vectors; v++)
            part[v] = splat(0);
        for (uint32_t t = 0; t < n_of[j]; t++)
            for (int v = 0; v < n_vectors; v++)
                part[v] = part[v] + (whole ? load_bf16(rows[t] + i + v * WIDTH)
                                           : load_bf16_part(rows[t] + i, count));
        for (int v = 0; v < n_vectors; v++)
            acc[v] = acc[v] + (n_of[j] > 1 ? widen(round_result(part[v])) + 0.0f : part[v]);
    }
    for (int v = 0; v < n_vectors; v++) {
        if (last != NULL)
            acc[v] = acc[v] + (whole ? load(last + i + v * WIDTH) : load_part(last + i, count, 0));
        if (whole)
            store_bf16(y + i + v * WIDTH, acc[v]);
        else
            store_bf16_part(y + i, acc[v], count);
    }
}

static void sum_parts(const bt_bf16 *const *rows, const uint32_t *n_of, uint32_t n_parts,
                      const float *last, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    for (; i + SUM_VECTORS * WIDTH <= n; i += SUM_VECTORS * WIDTH)
        sum_columns(rows, n_of, n_parts, last, i, SUM_VECTORS, WIDTH, y);
    FOR_VECTORS(i, n) sum_columns(rows, n_of, n_parts, last, i, 1, WIDTH, y);
    if (i < n) sum_columns(rows, n_of, n_parts, last, i, 1, n - i, y);
}

/* Of each pair of lanes the even or the odd one, for lanes even and odd. */
#if WIDTH == 16
#define OF_PAIRS(v, even, odd)                                                                    \
    __builtin_shufflevector(v, v, even, odd, even + 2, odd + 2, even + 4, odd + 4, even + 6,      \
                            odd + 6, even + 8, odd + 8, even + 10, odd + 10, even + 12, odd + 12, \
                            even + 14, odd + 14)
#elif WIDTH == 8
#define OF_PAIRS(v, even, odd)                                                               \
    __builtin_shufflevector(v, v, even, odd, even + 2, odd + 2, even + 4, odd + 4, even + 6, \
                            odd + 6)
#else
#define OF_PAIRS(v, even, odd) __builtin_shufflevector(v, v, even, odd, even + 2, odd + 2)
#endif

INLINE vf turn_lanes(vf cos_sin, vf x)
{
    vf turned = OF_PAIRS(x, 1, 0) * OF_PAIRS(cos_sin, 1, 1);
    vu minus  = {0};

    for (int i = 0; i < WIDTH; i += 2)
        minus[i] = 0x80000000u;
    return x * OF_PAIRS(cos_sin, 0, 0) + (vf)((vu)turned ^ minus);
}

static void rope_row(const float *cos_sin, const bt_bf16 *x, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    FOR_VECTORS(i, n) store_bf16(y + i, turn_lanes(load(cos_sin + i), load_bf16(x + i)));
    if (i < n)
        store_bf16_part(y + i,
                        turn_lanes(load_part(cos_sin + i, n - i, 0), load_bf16_part(x + i, n - i)),
                        n - i);
}

static void swiglu_row(const bt_bf16 *gate, const bt_bf16 *up, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    FOR_VECTORS(i, n) { store_bf16(y + i, swiglu_lanes(load_bf16(gate + i), load_bf16(up + i))); }
    if (i < n) {
        vf g = load_bf16_part(gate + i, n - i), u = load_bf16_part(up + i, n - i);

        store_bf16_part(y + i, swiglu_lanes(g, u), n - i);
    }
}

#include "device/cpu/pack.inc.h"
#include "device/cpu/pack_bf12.inc.h"

const bt_cpu_row_kernels ROWS_TABLE = {
    .pack_rows    = pack_rows,
    .pack_bf12    = pack_bf12,
    .pack_cols    = pack_cols,
    .to_bf16      = to_bf16,
    .scale        = scale,
    .scale_bf16   = scale_bf16,
    .axpy         = axpy,
    .row_max      = row_max,
    .row_sum      = row_sum,
    .relu_dots    = relu_dots,
    .count_above  = count_above,
    .exp_row      = exp_row,
    .sum_parts    = sum_parts,
    .rms_norm_row = rms_norm_row,
    .add_norm_row = add_norm_row,
    .rope_row     = rope_row,
    .swiglu_row   = swiglu_row,
};
