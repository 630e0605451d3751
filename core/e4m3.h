/* core/e4m3.h - FP8 E4M3: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; no infinity, 0x7f and
 * 0xff are NaN (Micikevicius et al., "FP8 Formats for Deep Learning", 2022). */
#ifndef BT_CORE_E4M3_H
#define BT_CORE_E4M3_H

#include <stdint.h>
#include <string.h>

static inline float bt_e4m3_to_f32(uint8_t v)
{
    uint32_t sign = (uint32_t)(v & 0x80) << 24, exponent = v >> 3 & 15, mantissa = v & 7;
    uint32_t bits;
    float    f;

    if (exponent == 0) {
        f = (float)mantissa * 0x1p-9f;
        return sign != 0 ? -f : f;
    }
    bits = sign | (exponent + 120) << 23 | mantissa << 20;
    if ((v & 0x7f) == 0x7f) bits = sign | 0x7fc00000u;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Round to nearest even, at most 448; a NaN becomes 448 too. */
static inline uint8_t bt_e4m3_from_f32(float f)
{
    uint32_t bits, sign, code;
    float    size;

    memcpy(&bits, &f, sizeof(bits));
    sign = bits >> 24 & 0x80;
    bits &= 0x7fffffffu;
    memcpy(&size, &bits, sizeof(size));
    if (size < 0x1p-6f) /* steps of 2^-9, rounded as 1.5 * 2^14 has no smaller ones */
        code = (uint32_t)((size + 0x1.8p14f - 0x1.8p14f) * 0x1p9f);
    else
        code = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120 << 3);
    return (uint8_t)(sign | (code > 0x7e ? 0x7e : code));
}

#endif
