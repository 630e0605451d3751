/* tests/device/twin.h - the two arithmetics of device/cpu/kernels.h in plain loops, and numbers to
 * try them on. */
#ifndef BT_TESTS_DEVICE_TWIN_H
#define BT_TESTS_DEVICE_TWIN_H

#include <math.h>
#include <stdint.h>

#include "device/cpu/kernels.h"

/* Element i of a row of k elements, padded with +0. */
static inline float twin_at(const bt_bf16 *row, uint32_t k, uint32_t i)
{
    return i < k ? bt_bf16_to_f32(row[i]) : 0.0f;
}

static inline float twin_dp2(const bt_bf16 *x, const bt_bf16 *w, uint32_t k, float acc)
{
    for (uint32_t i = 0; i < bt_cpu_pad(k, 32); i += 2) {
        acc = fmaf(twin_at(x, k, i + 1), twin_at(w, k, i + 1), acc);
        acc = fmaf(twin_at(x, k, i), twin_at(w, k, i), acc);
    }
    return acc;
}

static inline float twin_tile32(const bt_bf16 *x, const bt_bf16 *w, uint32_t k, float acc)
{
    for (uint32_t k0 = 0; k0 < bt_cpu_pad(k, 32); k0 += 32) {
        float even = 0, odd = 0;

        for (uint32_t i = k0; i < k0 + 32; i += 2) {
            even = fmaf(twin_at(x, k, i), twin_at(w, k, i), even);
            odd  = fmaf(twin_at(x, k, i + 1), twin_at(w, k, i + 1), odd);
        }
        acc = acc + (even + odd);
    }
    return acc;
}

static inline float twin(bt_cpu_arithmetic a, const bt_bf16 *x, const bt_bf16 *w, uint32_t k,
                         float acc)
{
    return a == BT_CPU_TILE32 ? twin_tile32(x, w, k, acc) : twin_dp2(x, w, k, acc);
}

static inline uint32_t twin_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) ^ (uint32_t)(*state >> 45);
}

typedef enum {
    TWIN_ORDINARY, /* about -2 .. 2 */
    TWIN_TINY,   /* products and sums on both sides of the smallest normal float; +-0; subnormal */
    TWIN_SPARSE, /* ordinary, with a few infinities, NaNs, zeros and subnormals */
    TWIN_BITS,   /* any bits */
    TWIN_N_KINDS
} twin_kind;

static inline bt_bf16 twin_value(twin_kind kind, uint64_t *state)
{
    static const bt_bf16 SPECIAL[] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0xffa0,
                                      0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080};
    uint32_t             r         = twin_random(state);
    bt_bf16              ordinary  = (bt_bf16)((r & 0x807fu) | (120u + (r >> 8) % 8u) << 7);

    switch (kind) {
    case TWIN_TINY:
        if ((r >> 20) % 8 == 0) return (bt_bf16)(r & 0x80ffu & ((r >> 24) % 2 ? 0xffffu : 0x8000u));
        return (bt_bf16)((r & 0x807fu) | (58u + (r >> 8) % 12u) << 7);
    case TWIN_SPARSE:
        if ((r >> 16) % 200 == 0) return SPECIAL[(r >> 24) % (sizeof(SPECIAL) / sizeof(*SPECIAL))];
        return ordinary;
    case TWIN_BITS: return (bt_bf16)r;
    default: return ordinary;
    }
}

static inline uint32_t twin_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

/* Equal bits, or both are NaN. */
static inline int twin_same(float a, float b)
{
    return (isnan(a) && isnan(b)) || twin_bits(a) == twin_bits(b);
}
static inline int twin_same_bf16(bt_bf16 a, bt_bf16 b)
{
    return twin_same(bt_bf16_to_f32(a), bt_bf16_to_f32(b));
}

#endif
