/* device/cpu/math.h - exp, log, sin and cos that give the same bits on every machine.
 *
 * libm picks its code by CPU; these are plain IEEE additions, multiplications, divisions and fused
 * multiply-adds in a fixed order (the build sets -ffp-contract=off), from series rather than fitted
 * tables, so any compiler and any vector width agrees.  Float results are within 2 ulp, double ones
 * within 4. Subnormal results are 0 where the thread has FTZ set. */
#ifndef BT_DEVICE_CPU_MATH_H
#define BT_DEVICE_CPU_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "device/host_device.h"

/* Adding and taking away 1.5 * 2^23 (2^52) rounds to an integer, which the low bits then hold. */
#define BT_ROUND_F32 12582912.0f
#define BT_ROUND_F64 6755399441055744.0
/* ln 2 in two parts: an integer of the exponent's size times the first is exact. */
#define BT_LN2_HI_F32 0x1.62e4p-1f
#define BT_LN2_LO_F32 0x1.7f7d1cp-20f
#define BT_LN2_HI_F64 0x1.62e42fefap-1
#define BT_LN2_LO_F64 0x1.cf79abc9e3b3ap-40
#define BT_LOG2_E_F32 0x1.715476p+0f

BT_HOST_DEVICE float bt_f32_from_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

BT_HOST_DEVICE double bt_f64_from_bits(uint64_t bits)
{
    double d;

    memcpy(&d, &bits, sizeof(d));
    return d;
}

/* e^x.  device/cpu/rows.inc.h has the same steps on 16 lanes; the tests hold them together. */
BT_HOST_DEVICE float bt_expf(float x)
{
    float    t, n, r, y;
    uint32_t bits;
    int32_t  k, half;

    x = x < -110.0f ? -110.0f : x; /* a NaN passes both */
    x = x > 89.0f ? 89.0f : x;
    t = fmaf(x, BT_LOG2_E_F32, BT_ROUND_F32);
    n = t - BT_ROUND_F32;
    r = fmaf(n, -BT_LN2_HI_F32, x);
    r = fmaf(n, -BT_LN2_LO_F32, r);
    y = fmaf(r, 1.0f / 5040, 1.0f / 720);
    y = fmaf(y, r, 1.0f / 120);
    y = fmaf(y, r, 1.0f / 24);
    y = fmaf(y, r, 1.0f / 6);
    y = fmaf(y, r, 0.5f);
    y = fmaf(y * r, r, r) + 1.0f;
    memcpy(&bits, &t, sizeof(bits));
    k    = (int32_t)(bits - 0x4b400000u);
    half = k >> 1; /* in two steps, since 2^128 and 2^-150 are no floats */
    y    = y * bt_f32_from_bits((uint32_t)(half + 127) << 23);
    return y * bt_f32_from_bits((uint32_t)(k - half + 127) << 23);
}

/* Natural logarithm: x = 2^k m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m-1) / (m+1)). */
BT_HOST_DEVICE double bt_log(double x)
{
    double   k = 0, m, s, z, y = 1.0 / 23;
    uint64_t bits;

    if (!(x > 0)) return x == 0 ? -1.0 / 0.0 : 0.0 / 0.0;
    if (x > 0x1.fffffffffffffp1023) return x;
    if (x < 0x1p-1022) { /* only where subnormals are not flushed */
        x = x * 0x1p54;
        k = -54;
    }
    memcpy(&bits, &x, sizeof(bits));
    k += (double)(int64_t)(bits >> 52) - 1023;
    m = bt_f64_from_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m = m * 0.5;
        k = k + 1;
    }
    s = (m - 1.0) / (m + 1.0);
    z = s * s;
    for (int i = 21; i >= 3; i -= 2)
        y = y * z + 1.0 / i;
    y = 2.0 * s + 2.0 * s * (z * y);
    return k * BT_LN2_HI_F64 + (y + k * BT_LN2_LO_F64);
}

BT_HOST_DEVICE float bt_logf(float x) { return (float)bt_log((double)x); }

/* sin and cos of the same angle in radians, for |x| <= 2^20 (a rope angle is at most the context
 * length); beyond that, and for inf, both are NaN. */
BT_HOST_DEVICE void bt_sincos(double x, double *sin_out, double *cos_out)
{
    /* pi/2 in three parts of 33 bits, so that n * part is exact for |n| < 2^20. */
    static const double P1 = 0x1.921fb544p+0, P2 = 0x1.0b4611a6p-34, P3 = 0x1.3198a2e037073p-69;
    double              t, n, r, low, z, s = 1.0, c = 1.0;
    uint64_t            bits;

    if (!(x <= 0x1p20 && x >= -0x1p20)) {
        *sin_out = *cos_out = 0.0 / 0.0;
        return;
    }
    t   = x * 0x1.45f306dc9c883p-1 + BT_ROUND_F64;
    n   = t - BT_ROUND_F64;
    r   = x - n * P1;
    low = n * P2;
    z   = r - low; /* z + its rounding error, so that a small result keeps its digits */
    low = (r - z) - low - n * P3;
    r   = z + low;
    z   = r * r;
    for (int i = 18; i >= 2; i -= 2) { /* nested Taylor series to r^19 and r^18 */
        s = 1.0 - s * z * (1.0 / (i * (i + 1)));
        c = 1.0 - c * z * (1.0 / (i * (i - 1)));
    }
    s = s * r;
    memcpy(&bits, &t, sizeof(bits));
    switch (bits & 3) {
    case 0: *sin_out = s, *cos_out = c; break;
    case 1: *sin_out = c, *cos_out = -s; break;
    case 2: *sin_out = -s, *cos_out = -c; break;
    default: *sin_out = -c, *cos_out = s; break;
    }
}

#endif
