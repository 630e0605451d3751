/* device/cpu/rows.inc.h - every kernel but the products, written once on compiler vectors and
 * compiled once per instruction set: each rows_<isa>.c defines ROWS_TABLE
 * and WIDTH, the floats in a register, and includes it.  Only plain additions, multiplications,
 * divisions and square roots, and sums in LANES lanes whatever the width, so that all of them give
 * the same bits. */
#include <math.h>
#include <string.h>

#include "device/cpu/families.h"
#include "device/cpu/math.h"

enum { LANES = 16, PARTS = LANES / WIDTH };

typedef float    vf __attribute__((vector_size(4 * WIDTH)));
typedef int32_t  vi __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t vu __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t vh __attribute__((vector_size(2 * WIDTH)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf splat(float a) { return (vf){0} + a; }
INLINE vf load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof(v));
    return v;
}
INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof(v)); }
/* n < WIDTH elements; the other lanes are `pad`. */
INLINE vf load_part(const float *p, size_t n, float pad)
{
    vf v = splat(pad);

    memcpy(&v, p, n * sizeof(*p));
    return v;
}
INLINE void store_part(float *p, vf v, size_t n) { memcpy(p, &v, n * sizeof(*p)); }
INLINE vh   load_half(const bt_bf16 *p)
{
    vh h;

    memcpy(&h, p, sizeof(h));
    return h;
}
INLINE vf widen(vh h)
{
    vu bits = __builtin_convertvector(h, vu) << 16;

    return (vf)bits;
}
INLINE vf load_bf16(const bt_bf16 *p) { return widen(load_half(p)); }
INLINE vf load_bf16_part(const bt_bf16 *p, size_t n)
{
    vh h = {0};

    memcpy(&h, p, n * sizeof(*p));
    return widen(h);
}
INLINE vf choose(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
/* v > best ? v : best, and the same with <: `best` when either is a NaN, as the instructions do. */
INLINE vf greater(vf v, vf best)
{
#if WIDTH == 16
    return (vf)_mm512_max_ps((__m512)v, (__m512)best);
#else
    return choose(v > best, v, best);
#endif
}
INLINE vf less(vf v, vf best)
{
#if WIDTH == 16
    return (vf)_mm512_min_ps((__m512)v, (__m512)best);
#else
    return choose(v < best, v, best);
#endif
}

/* As bt_bf16_from_f32. */
INLINE vh round_bf16(vf v)
{
    vu bits    = (vu)v;
    vu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    vu nan     = bits >> 16 | 0x40u;
    vu is_nan  = (vu)((vi)(bits & 0x7fffffffu) > 0x7f800000);

    return __builtin_convertvector((is_nan & nan) | (~is_nan & rounded), vh);
}
/* The same for what an addition or a multiplication gave, which is no subnormal: the instruction
 * flushes those. */
INLINE vh round_result(vf v)
{
#ifdef __AVX512BF16__
    return (vh)_mm512_cvtneps_pbh((__m512)v);
#else
    return round_bf16(v);
#endif
}
INLINE void store_bf16(bt_bf16 *p, vf v)
{
    vh h = round_result(v);

    memcpy(p, &h, sizeof(h));
}
INLINE void store_bf16_part(bt_bf16 *p, vf v, size_t n)
{
    vh h = round_result(v);

    memcpy(p, &h, n * sizeof(*p));
}

/* The sum of element i goes to lane i % LANES: part q of `sum` holds the lanes from q * WIDTH. */
typedef struct {
    vf part[PARTS];
} lanes;

/* Sixteen lanes fold to one: lane i with lane i+8, i+4, i+2, i+1. */
typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));

INLINE float sum_lanes(const lanes *sum)
{
    v8 low, high;
    v4 a, b;

    memcpy(&low, sum, sizeof(low));
    memcpy(&high, (const char *)sum + sizeof(low), sizeof(high));
    low = low + high;
    a   = __builtin_shufflevector(low, low, 0, 1, 2, 3);
    b   = __builtin_shufflevector(low, low, 4, 5, 6, 7);
    a   = a + b;
    a   = a + __builtin_shufflevector(a, a, 2, 3, 2, 3);
    return a[0] + a[1];
}

INLINE v8 greater8(v8 a, v8 b)
{
    typedef int32_t mask8 __attribute__((vector_size(32)));
    mask8           more = a > b;

    return (v8)((more & (mask8)a) | (~more & (mask8)b));
}

INLINE float max_lanes(const lanes *best)
{
    v8 low, high;

    memcpy(&low, best, sizeof(low));
    memcpy(&high, (const char *)best + sizeof(low), sizeof(high));
    low = greater8(high, low);
    low = greater8(__builtin_shufflevector(low, low, 4, 5, 6, 7, 4, 5, 6, 7), low);
    low = greater8(__builtin_shufflevector(low, low, 2, 3, 2, 3, 2, 3, 2, 3), low);
    return low[1] > low[0] ? low[1] : low[0];
}

/* y 2^n, n whole, as bt_expf makes it of two factors: only the second one can overflow, or give a
 * subnormal, which is flushed. */
INLINE vf scale_exponent(vf y, vf n)
{
#if WIDTH == 16
    return (vf)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
    vi k    = (vi)((vu)(n + BT_ROUND_F32) - 0x4b400000u);
    vi half = k >> 1;

    y = y * (vf)((vu)(half + 127) << 23);
    return y * (vf)((vu)(k - half + 127) << 23);
#endif
}

/* The steps of bt_expf. */
INLINE vf exp_lanes(vf x)
{
    vf n, r, y;

    x = greater(splat(-110.0f), x);
    x = less(splat(89.0f), x);
    n = x * BT_LOG2_E_F32 + BT_ROUND_F32 - BT_ROUND_F32;
    r = x - n * BT_LN2_HI_F32;
    r = r - n * BT_LN2_LO_F32;
    y = 1.0f / 5040 * r + 1.0f / 720;
    y = y * r + 1.0f / 120;
    y = y * r + 1.0f / 24;
    y = y * r + 1.0f / 6;
    y = y * r + 0.5f;
    y = y * r * r + r;
    return scale_exponent(y + 1.0f, n);
}

/* Steps i over whole vectors; n % WIDTH elements are left at i. */
#define FOR_VECTORS(i, n) for (; i + WIDTH <= (n); i += WIDTH)

static void to_bf16(const float *x, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    vh h;

    FOR_VECTORS(i, n)
    {
        h = round_bf16(load(x + i));
        memcpy(y + i, &h, sizeof(h));
    }
    if (i == n) return;
    h = round_bf16(load_part(x + i, n - i, 0));
    memcpy(y + i, &h, (n - i) * sizeof(*y));
}

static void to_f32(const bt_bf16 *x, size_t n, float *y)
{
    size_t i = 0;

    FOR_VECTORS(i, n) store(y + i, load_bf16(x + i));
    if (i < n) store_part(y + i, load_bf16_part(x + i, n - i), n - i);
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

static float row_max(const float *x, size_t n, float start)
{
    lanes  best;
    size_t i = 0, left;

    for (int q = 0; q < PARTS; q++)
        best.part[q] = splat(start);
    for (; i + LANES <= n; i += LANES)
        for (int q = 0; q < PARTS; q++)
            best.part[q] = greater(load(x + i + q * WIDTH), best.part[q]);
    for (int q = 0; i < n; q++, i += left) {
        left         = n - i < WIDTH ? n - i : WIDTH;
        best.part[q] = greater(load_part(x + i, left, start), best.part[q]);
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

INLINE vf swiglu_lanes(vf gate, vf up) { return gate / (exp_lanes(-gate) + 1.0f) * up; }

static void swiglu_row(const bt_bf16 *gate, const bt_bf16 *up, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    FOR_VECTORS(i, n) { store_bf16(y + i, swiglu_lanes(load_bf16(gate + i), load_bf16(up + i))); }
    if (i < n) {
        vf g = load_bf16_part(gate + i, n - i), u = load_bf16_part(up + i, n - i);

        store_bf16_part(y + i, swiglu_lanes(g, u), n - i);
    }
}

/* Four pairs of k of four rows, [row][pair] to [pair][row]. */
INLINE void turn_pairs(const bt_bf16 *src, size_t ld, bt_bf16 *out)
{
    typedef uint32_t quad __attribute__((vector_size(16)));
    quad             r[4], low[2], high[2];

    for (int i = 0; i < 4; i++)
        memcpy(&r[i], src + (size_t)i * ld, sizeof(r[i]));
    for (int i = 0; i < 2; i++) {
        low[i]  = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 4, 1, 5);
        high[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 6, 3, 7);
    }
    r[0] = __builtin_shufflevector(low[0], low[1], 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7);
    for (int i = 0; i < 4; i++)
        memcpy(out + (size_t)i * 2 * LANES, &r[i], sizeof(r[i]));
}

#if WIDTH == 16
/* Sixteen pairs of k of sixteen rows: four perfect shuffles turn a square. */
INLINE void turn_square(const bt_bf16 *src, size_t ld, bt_bf16 *out)
{
    vu a[LANES], b[LANES];

    for (int i = 0; i < LANES; i++)
        memcpy(&a[i], src + (size_t)i * ld, sizeof(a[i]));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < LANES / 2; i++) {
            b[2 * i] = __builtin_shufflevector(a[i], a[i + LANES / 2], 0, 16, 1, 17, 2, 18, 3, 19,
                                               4, 20, 5, 21, 6, 22, 7, 23);
            b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + LANES / 2], 8, 24, 9, 25, 10, 26, 11,
                                                   27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(a, b, sizeof(a));
    }
    memcpy(out, a, sizeof(a));
}
#endif

/* Pairs of k of whole rows of a block, as many as squares of pairs fill; returns how many. */
INLINE uint32_t pack_squares(const bt_bf16 *rows, size_t ld, uint32_t cols, uint32_t k,
                             bt_bf16 *packed)
{
    uint32_t p = 0;

#if WIDTH == 16
    if (cols == LANES)
        for (; p + LANES <= k / 2; p += LANES)
            turn_square(rows + 2 * p, ld, packed + (size_t)p * 2 * LANES);
#endif
    for (; p < k / 8 * 4; p += 4)
        for (uint32_t j = 0; j + 4 <= cols; j += 4)
            turn_pairs(rows + j * ld + 2 * p, ld, packed + (size_t)p * 2 * LANES + 2 * j);
    return p;
}

/* One row's pairs of k from `from` on: a column of a block. */
INLINE void pack_column(const bt_bf16 *row, uint32_t from, uint32_t k, bt_bf16 *column)
{
    for (uint32_t p = from; p < k / 2; p++)
        memcpy(column + (size_t)p * 2 * LANES, row + 2 * p, 2 * sizeof(*row));
    if (k % 2 != 0) column[(size_t)(k / 2) * 2 * LANES] = row[k - 1];
}

/* Block by block of 16 columns: rows of src become columns, two k at a time. */
static void pack_rows(const bt_bf16 *src, size_t ld, uint32_t n, uint32_t k, bt_bf16 *packed)
{
    uint32_t n_pairs = bt_cpu_pad(k, 32) / 2;

    for (uint32_t n0 = 0; n0 < n; n0 += LANES, packed += (size_t)n_pairs * 2 * LANES) {
        uint32_t       cols = n - n0 < LANES ? n - n0 : LANES, squares;
        const bt_bf16 *rows = src + n0 * ld;

        if (cols < LANES || k % 32 != 0)
            memset(packed, 0, (size_t)n_pairs * 2 * LANES * sizeof(*packed));
        squares = pack_squares(rows, ld, cols, k, packed);
        for (uint32_t j = 0; j < cols; j++)
            pack_column(rows + j * ld, j < cols / 4 * 4 ? squares : 0, k, packed + 2 * (size_t)j);
    }
}

/* WIDTH columns of two rows: column j of both becomes one 32-bit element. */
INLINE void interleave(vh even, vh odd, bt_bf16 *out)
{
    typedef uint16_t pairs __attribute__((vector_size(4 * WIDTH)));
#if WIDTH == 16
    pairs both =
        __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif WIDTH == 8
    pairs both =
        __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    pairs both = __builtin_shufflevector(even, odd, 0, 4, 1, 5, 2, 6, 3, 7);
#endif
    memcpy(out, &both, sizeof(both));
}

/* A block of LANES columns, and with `both` the next one, which shares the lines of src. */
INLINE void pack_blocks(const bt_bf16 *src, size_t ld, uint32_t n_pairs, bool both, size_t block,
                        bt_bf16 *out)
{
    for (uint32_t p = 0; p < n_pairs; p++, src += 2 * ld, out += 2 * LANES)
        for (int q = 0; q < LANES; q += WIDTH) {
            interleave(load_half(src + q), load_half(src + ld + q), out + 2 * q);
            if (both)
                interleave(load_half(src + LANES + q), load_half(src + ld + LANES + q),
                           out + block + 2 * q);
        }
}

static void pack_cols(const bt_bf16 *src, size_t ld, uint32_t k, uint32_t n, uint32_t k_packed,
                      bt_bf16 *packed)
{
    uint32_t n_pairs = bt_cpu_pad(k, 32) / 2, whole = k / 2;
    size_t   block = (size_t)k_packed * LANES;

    for (uint32_t n0 = 0, cols; n0 < n; n0 += LANES, packed += block) {
        bt_bf16  edge[2][LANES] = {{0}};
        bt_bf16 *tail           = packed + (size_t)whole * 2 * LANES;

        cols = n - n0 < LANES ? n - n0 : LANES;
        if (cols < LANES) {
            for (uint32_t p = 0; p < whole; p++) {
                memcpy(edge[0], src + (size_t)2 * p * ld + n0, cols * sizeof(*src));
                memcpy(edge[1], src + (size_t)(2 * p + 1) * ld + n0, cols * sizeof(*src));
                pack_blocks(edge[0], LANES, 1, false, 0, packed + (size_t)p * 2 * LANES);
            }
        } else if (n0 / LANES % 2 == 0) {
            if (n - n0 >= 2 * LANES)
                pack_blocks(src + n0, ld, whole, true, block, packed);
            else
                pack_blocks(src + n0, ld, whole, false, block, packed);
        }
        memset(tail, 0, (size_t)(n_pairs - whole) * 2 * LANES * sizeof(*tail));
        for (uint32_t j = 0; k % 2 != 0 && j < cols; j++)
            tail[2 * j] = src[(size_t)(k - 1) * ld + n0 + j];
    }
}

const bt_cpu_row_kernels ROWS_TABLE = {
    .pack_rows    = pack_rows,
    .pack_cols    = pack_cols,
    .to_bf16      = to_bf16,
    .to_f32       = to_f32,
    .scale        = scale,
    .scale_bf16   = scale_bf16,
    .axpy         = axpy,
    .row_max      = row_max,
    .row_sum      = row_sum,
    .exp_row      = exp_row,
    .rms_norm_row = rms_norm_row,
    .add_row      = add_row,
    .swiglu_row   = swiglu_row,
};
