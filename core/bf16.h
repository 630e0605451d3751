/* core/bf16.h - bfloat16 as the upper half of an IEEE binary32. */
#ifndef BT_CORE_BF16_H
#define BT_CORE_BF16_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t bt_bf16;

static inline float bt_bf16_to_f32(bt_bf16 v)
{
    uint32_t bits = (uint32_t)v << 16;
    float    f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Round to nearest even; a NaN stays a NaN (quiet, sign and upper payload kept). */
static inline bt_bf16 bt_bf16_from_f32(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bt_bf16)(bits >> 16 | 0x40u);
    return (bt_bf16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#ifdef __cplusplus
}
#endif
#endif
