/* device/cpu/rows.inc.h - every kernel but the products, written once on 16 lanes of compiler
 * vectors and compiled once per instruction set: rows_sse2.c, rows_avx2.c, rows_avx512.c define
 * ROWS(name) and include it.  Only plain additions, multiplications, divisions and square roots,
 * so that all of them give the same bits. */
#include <math.h>
#include <string.h>

#include "device/cpu/families.h"
#include "device/cpu/math.h"

enum { LANES = 16 };

typedef float    vf __attribute__((vector_size(64)));
typedef int32_t  vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf splat(float a) { return (vf){a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a}; }
INLINE vf load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof(v));
    return v;
}
INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof(v)); }
/* n < 16 elements; the other lanes are `pad`. */
INLINE vf load_part(const float *p, size_t n, float pad)
{
    vf v = splat(pad);

    memcpy(&v, p, n * sizeof(*p));
    return v;
}
INLINE vf widen(vh h)
{
    vu bits = __builtin_convertvector(h, vu) << 16;

    return (vf)bits;
}
INLINE vf load_bf16(const bt_bf16 *p)
{
    vh h;

    memcpy(&h, p, sizeof(h));
    return widen(h);
}
INLINE vf load_bf16_part(const bt_bf16 *p, size_t n)
{
    vh h = {0};

    memcpy(&h, p, n * sizeof(*p));
    return widen(h);
}
INLINE vf select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

/* As bt_bf16_from_f32. */
INLINE vh round_bf16(vf v)
{
    vu bits    = (vu)v;
    vu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    vu nan     = bits >> 16 | 0x40u;
    vu is_nan  = (vu)((bits & 0x7fffffffu) > 0x7f800000u);

    return __builtin_convertvector((is_nan & nan) | (~is_nan & rounded), vh);
}
INLINE void store_bf16(bt_bf16 *p, vf v)
{
    vh h = round_bf16(v);

    memcpy(p, &h, sizeof(h));
}
INLINE void store_bf16_part(bt_bf16 *p, vf v, size_t n)
{
    vh h = round_bf16(v);

    memcpy(p, &h, n * sizeof(*p));
}

/* Lane i adds lane i+8, i+4, i+2, i+1. */
INLINE float sum_lanes(vf v)
{
    float a[LANES];

    store(a, v);
    for (int width = LANES / 2; width >= 1; width /= 2)
        for (int i = 0; i < width; i++)
            a[i] = a[i] + a[i + width];
    return a[0];
}

/* The steps of bt_expf. */
INLINE vf exp_lanes(vf x)
{
    vf t, n, r, y;
    vi k, half;

    x    = select(x < -110.0f, splat(-110.0f), x);
    x    = select(x > 89.0f, splat(89.0f), x);
    t    = x * BT_LOG2_E_F32 + BT_ROUND_F32;
    n    = t - BT_ROUND_F32;
    r    = x - n * BT_LN2_HI_F32;
    r    = r - n * BT_LN2_LO_F32;
    y    = 1.0f / 5040 * r + 1.0f / 720;
    y    = y * r + 1.0f / 120;
    y    = y * r + 1.0f / 24;
    y    = y * r + 1.0f / 6;
    y    = y * r + 0.5f;
    y    = y * r * r + r;
    y    = y + 1.0f;
    k    = (vi)((vu)t - 0x4b400000u);
    half = k >> 1;
    y    = y * (vf)((vu)(half + 127) << 23);
    return y * (vf)((vu)(k - half + 127) << 23);
}

static void to_bf16(const float *x, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store_bf16(y + i, load(x + i));
    if (i < n) store_bf16_part(y + i, load_part(x + i, n - i, 0), n - i);
}

static void to_f32(const bt_bf16 *x, size_t n, float *y)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store(y + i, load_bf16(x + i));
    for (; i < n; i++)
        y[i] = bt_bf16_to_f32(x[i]);
}

static void scale(float *x, size_t n, float a)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store(x + i, load(x + i) * a);
    for (; i < n; i++)
        x[i] = x[i] * a;
}

static void axpy(float a, const float *x, size_t n, float *y)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store(y + i, load(y + i) + load(x + i) * a);
    for (; i < n; i++)
        y[i] = y[i] + x[i] * a;
}

static float row_max(const float *x, size_t n, float start)
{
    vf     best = splat(start), v;
    float  lanes[LANES], max;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        v    = load(x + i);
        best = select(v > best, v, best);
    }
    if (i < n) {
        v    = load_part(x + i, n - i, start);
        best = select(v > best, v, best);
    }
    store(lanes, best);
    max = lanes[0];
    for (int l = 1; l < LANES; l++)
        max = lanes[l] > max ? lanes[l] : max;
    return max;
}

static float row_sum(const float *x, size_t n)
{
    vf     sum = splat(0);
    size_t i   = 0;

    for (; i + LANES <= n; i += LANES)
        sum = sum + load(x + i);
    if (i < n) sum = sum + load_part(x + i, n - i, 0);
    return sum_lanes(sum);
}

static float exp_row(const float *x, size_t n, size_t n_pad, float factor, float max, bt_bf16 *p,
                     float *p_f32)
{
    vf     sum = splat(0), e;
    size_t i   = 0;

    for (; i + LANES <= n; i += LANES) {
        e   = exp_lanes(load(x + i) * factor - max);
        sum = sum + e;
        store_bf16(p + i, e);
        if (p_f32 != NULL) store(p_f32 + i, e);
    }
    if (i < n) {
        float lanes[LANES];

        store(lanes, exp_lanes(load_part(x + i, n - i, 0) * factor - max));
        e   = load_part(lanes, n - i, 0);
        sum = sum + e;
        store_bf16_part(p + i, e, n - i);
        if (p_f32 != NULL) memcpy(p_f32 + i, lanes, (n - i) * sizeof(*lanes));
    }
    for (i = n; i < n_pad; i++) {
        p[i] = 0;
        if (p_f32 != NULL) p_f32[i] = 0;
    }
    return sum_lanes(sum);
}

static void rms_norm_row(const bt_bf16 *x, const bt_bf16 *weight, size_t n, float eps, bt_bf16 *y)
{
    vf     sum = splat(0), v;
    float  factor;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        v   = load_bf16(x + i);
        sum = sum + v * v;
    }
    if (i < n) {
        v   = load_bf16_part(x + i, n - i);
        sum = sum + v * v;
    }
    factor = 1.0f / sqrtf(sum_lanes(sum) / (float)n + eps);
    for (i = 0; i + LANES <= n; i += LANES)
        store_bf16(y + i, widen(round_bf16(load_bf16(x + i) * factor)) * load_bf16(weight + i));
    if (i < n) {
        v = widen(round_bf16(load_bf16_part(x + i, n - i) * factor));
        store_bf16_part(y + i, v * load_bf16_part(weight + i, n - i), n - i);
    }
}

static void add_row(const bt_bf16 *x, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store_bf16(y + i, load_bf16(y + i) + load_bf16(x + i));
    if (i < n)
        store_bf16_part(y + i, load_bf16_part(y + i, n - i) + load_bf16_part(x + i, n - i), n - i);
}

INLINE vf swiglu_lanes(vf gate, vf up) { return gate / (exp_lanes(-gate) + 1.0f) * up; }

static void swiglu_row(const bt_bf16 *gate, const bt_bf16 *up, size_t n, bt_bf16 *y)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        store_bf16(y + i, swiglu_lanes(load_bf16(gate + i), load_bf16(up + i)));
    if (i < n)
        store_bf16_part(
            y + i, swiglu_lanes(load_bf16_part(gate + i, n - i), load_bf16_part(up + i, n - i)),
            n - i);
}

/* One block of 16 columns: rows of src become columns, two k at a time. */
static void pack_rows(const bt_bf16 *src, size_t ld, uint32_t n, uint32_t k, bt_bf16 *packed)
{
    uint32_t n_pairs = bt_cpu_pad(k, 32) / 2;

    for (uint32_t n0 = 0; n0 < n; n0 += LANES, packed += (size_t)n_pairs * 2 * LANES) {
        uint32_t cols = n - n0 < LANES ? n - n0 : LANES;

        if (cols < LANES || k % 32 != 0)
            memset(packed, 0, (size_t)n_pairs * 2 * LANES * sizeof(*packed));
        for (uint32_t p = 0; p < k / 2; p++)
            for (uint32_t j = 0; j < cols; j++)
                memcpy(packed + (size_t)p * 2 * LANES + 2 * j, src + (n0 + j) * ld + 2 * p,
                       2 * sizeof(*src));
        for (uint32_t j = 0; k % 2 != 0 && j < cols; j++)
            packed[(size_t)(k / 2) * 2 * LANES + 2 * j] = src[(n0 + j) * ld + k - 1];
    }
}

INLINE void interleave(const bt_bf16 *even, const bt_bf16 *odd, bt_bf16 *out)
{
    for (int j = 0; j < LANES; j++) {
        out[2 * j]     = even[j];
        out[2 * j + 1] = odd[j];
    }
}

static void pack_cols(const bt_bf16 *src, size_t ld, uint32_t k, uint32_t n, bt_bf16 *packed)
{
    uint32_t n_pairs = bt_cpu_pad(k, 32) / 2, used = (k + 1) / 2;

    for (uint32_t n0 = 0; n0 < n; n0 += LANES, packed += (size_t)n_pairs * 2 * LANES) {
        uint32_t cols = n - n0 < LANES ? n - n0 : LANES;

        for (uint32_t p = 0; p < used; p++) {
            const bt_bf16 *even = src + (size_t)2 * p * ld + n0, *odd = even + ld;
            bt_bf16       *out            = packed + (size_t)p * 2 * LANES;
            bt_bf16        edge[2][LANES] = {{0}};

            if (cols < LANES || 2 * p + 1 == k) {
                memcpy(edge[0], even, cols * sizeof(*even));
                if (2 * p + 1 < k) memcpy(edge[1], odd, cols * sizeof(*odd));
                even = edge[0];
                odd  = edge[1];
            }
            interleave(even, odd, out);
        }
        memset(packed + (size_t)used * 2 * LANES, 0,
               (size_t)(n_pairs - used) * 2 * LANES * sizeof(*packed));
    }
}

const bt_cpu_row_kernels ROWS_TABLE = {
    .pack_rows    = pack_rows,
    .pack_cols    = pack_cols,
    .to_bf16      = to_bf16,
    .to_f32       = to_f32,
    .scale        = scale,
    .axpy         = axpy,
    .row_max      = row_max,
    .row_sum      = row_sum,
    .exp_row      = exp_row,
    .rms_norm_row = rms_norm_row,
    .add_row      = add_row,
    .swiglu_row   = swiglu_row,
};
