/* device/cpu/lanes.inc.h - vectors of WIDTH floats and what is made of them lane by lane, in the
 * same bits whatever the width: included by files that are compiled for one instruction set each.
 */
#include <math.h>
#include <string.h>

#include "device/cpu/kernels.h"
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
#if WIDTH == 16
    return (vf)_mm512_mask_loadu_ps((__m512)splat(pad), (__mmask16)((1u << n) - 1), p);
#else
    vf v = splat(pad);

    memcpy(&v, p, n * sizeof(*p));
    return v;
#endif
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

/* a b + c, rounded once. */
INLINE vf fused(vf a, vf b, vf c)
{
#if WIDTH == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif WIDTH == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    for (int i = 0; i < WIDTH; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
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

/* The steps of bt_expf, for x <= 89 or NaN. */
INLINE vf exp_below(vf x)
{
    vf n, r, y;

    x = greater(splat(-110.0f), x);
    n = fused(x, splat(BT_LOG2_E_F32), splat(BT_ROUND_F32)) - BT_ROUND_F32;
    r = fused(n, splat(-BT_LN2_HI_F32), x);
    r = fused(n, splat(-BT_LN2_LO_F32), r);
    y = fused(r, splat(1.0f / 5040), splat(1.0f / 720));
    y = fused(y, r, splat(1.0f / 120));
    y = fused(y, r, splat(1.0f / 24));
    y = fused(y, r, splat(1.0f / 6));
    y = fused(y, r, splat(0.5f));
    y = fused(y * r, r, r) + 1.0f;
    return scale_exponent(y, n);
}

INLINE vf exp_lanes(vf x) { return exp_below(less(splat(89.0f), x)); }

INLINE vf swiglu_lanes(vf gate, vf up) { return gate / (exp_lanes(-gate) + 1.0f) * up; }
