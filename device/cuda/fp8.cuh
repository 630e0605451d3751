/* device/cuda/fp8.cuh - e4m3 (4 exponent bits, 3 of mantissa, no infinity, largest 448) to fp32. */
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

/* The low and the high byte. */
static __device__ __forceinline__ void f32_of_e4m3x2(uint16_t v, float *low, float *high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890 /* has an instruction; by way of fp16, exactly \
                                                    */
    asm("{.reg .b32 both; .reg .b16 l, h;"
        "cvt.rn.f16x2.e4m3x2 both, %2; mov.b32 {l, h}, both;"
        "cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(*low), "=f"(*high)
        : "h"(v));
#else
    *low  = f32_of_e4m3((uint8_t)v);
    *high = f32_of_e4m3((uint8_t)(v >> 8));
#endif
}

#endif
