/* tests/device/bf16_emulated.h - the bf16 instructions of AVX-512 in AVX-512 F, bit for bit:
 * included ahead of the sources of the kernel family avx512bf16 (bt_bf16_emulated), it takes the
 * place of their intrinsics, so that they are tested on CPUs without the instructions.
 *
 * As Intel's manual has them (Software Developer's Manual, volume 2, VDPBF16PS and VCVTNEPS2BF16),
 * whatever MXCSR says: rounding to nearest even; subnormals are 0, of their sign, on the way in and
 * out; and
 *     vdpbf16ps:      acc = fma(a[2i+1], b[2i+1], acc);  acc = fma(a[2i], b[2i], acc)
 *     vcvtneps2bf16:  an infinity stays; a NaN is cut off, and quiet
 *     vcvtne2ps2bf16: the same of two registers
 * A CPU that has the instructions compares them with these (test_bf16.c).  Here products leave
 * rounding and subnormals to MXCSR, which for every kernel's thread says the same
 * (device/cpu/kernels.h); and a NaN of theirs is some NaN. */
#ifndef BT_TESTS_DEVICE_BF16_EMULATED_H
#define BT_TESTS_DEVICE_BF16_EMULATED_H

#include <immintrin.h>

#define EMULATED static inline __attribute__((target("avx512f"), always_inline))

EMULATED __m512 emulated_even(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
EMULATED __m512 emulated_odd(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

EMULATED __m512 emulated_dpbf16_ps(__m512 acc, __m512bh a, __m512bh b)
{
    __m512i x = (__m512i)a, y = (__m512i)b;

    acc = _mm512_fmadd_ps(emulated_odd(x), emulated_odd(y), acc);
    return _mm512_fmadd_ps(emulated_even(x), emulated_even(y), acc);
}

EMULATED __m256i emulated_to_bf16(__m512 x)
{
    __m512i   bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
    __m512i   size    = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __mmask16 nan     = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
    __mmask16 flushed = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x00800000));
    __m512i   last    = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    __m512i   half    = _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff));
    __m512i   y       = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);

    y = _mm512_mask_or_epi32(y, nan, upper, _mm512_set1_epi32(0x0040));
    y = _mm512_mask_and_epi32(y, flushed, upper, _mm512_set1_epi32(0x8000));
    return _mm512_cvtepi32_epi16(y);
}
EMULATED __m256bh emulated_cvtneps_pbh(__m512 x) { return (__m256bh)emulated_to_bf16(x); }

EMULATED __m512bh emulated_cvtne2ps_pbh(__m512 high, __m512 low)
{
    __m512i y = _mm512_castsi256_si512(emulated_to_bf16(low));

    return (__m512bh)_mm512_inserti64x4(y, emulated_to_bf16(high), 1);
}

/* For the sources behind this. */
#ifndef __AVX512BF16__
#define __AVX512BF16__ 1
#endif
#define _mm512_dpbf16_ps(acc, a, b) emulated_dpbf16_ps(acc, a, b)
#define _mm512_cvtneps_pbh(x)       emulated_cvtneps_pbh(x)
#define _mm512_cvtne2ps_pbh(a, b)   emulated_cvtne2ps_pbh(a, b)

#endif
