/* device/cuda/fp8.cuh - e4m3 to and from wider numbers; every finite e4m3 is a bf16. */
#ifndef BT_DEVICE_CUDA_FP8_CUH
#define BT_DEVICE_CUDA_FP8_CUH

#include "device/cuda/gpu.cuh"

enum { FP8_BIAS_UP = 127 - 7 };

static __device__ __forceinline__ float f32_of_e4m3(uint8_t v)
{
    uint32_t sign = (uint32_t)(v & 0x80) << 24, size = v & 0x7f;
    uint32_t bits = size >= 8 ? (size << 20) + ((uint32_t)FP8_BIAS_UP << 23)
                              : __float_as_uint((float)size * 0x1p-9f);

    if (size == 0x7f) bits = 0x7fc00000u;
    return __uint_as_float(bits | sign);
}

/* To nearest, ties to even; beyond 448 the largest; a NaN stays one. */
static __device__ __forceinline__ uint8_t e4m3_of(float f)
{
    uint32_t bits = __float_as_uint(f), sign = bits >> 24 & 0x80u, size;
    float    a = __uint_as_float(bits & 0x7fffffffu);

    if (!(a <= 448.0f)) {
        size = a > 448.0f ? 0x7eu : 0x7fu;
    } else if (a < 0x1p-6f) { /* subnormal: steps of 2^-9; adding 2^14 rounds to them */
        size = __float_as_uint(a + 0x1p14f) - __float_as_uint(0x1p14f);
    } else {
        bits = __float_as_uint(a);
        size = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - ((uint32_t)FP8_BIAS_UP << 3);
    }
    return (uint8_t)(sign | size);
}

#endif
