#include "device/cpu/roofs.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define TARGET(isa) __attribute__((target(isa)))

/* What a loop computed must seem to be used. */
static volatile uint64_t g_sink;

enum { AHEAD = 32 * 4 }; /* vectors, that is 32 lines: plain loads alone read a tenth less */

void bt_roof_read(const void *memory, size_t bytes)
{
    const __m128i *p = memory;
    size_t         n = bytes / 4 / sizeof(*p);
    __m128i        s[4];

    memset(s, 0, sizeof(s));
    for (size_t i = 0; i < n; i += 4) { /* a cache line of each stream */
        for (size_t stream = 0; stream < 4; stream++)
            _mm_prefetch((const char *)(p + stream * n + i + AHEAD), _MM_HINT_T1);
        for (size_t j = 0; j < 4; j++) {
            s[0] = _mm_xor_si128(s[0], _mm_load_si128(p + i + j));
            s[1] = _mm_xor_si128(s[1], _mm_load_si128(p + n + i + j));
            s[2] = _mm_xor_si128(s[2], _mm_load_si128(p + 2 * n + i + j));
            s[3] = _mm_xor_si128(s[3], _mm_load_si128(p + 3 * n + i + j));
        }
    }
    s[0]   = _mm_xor_si128(_mm_xor_si128(s[0], s[1]), _mm_xor_si128(s[2], s[3]));
    g_sink = (uint64_t)_mm_cvtsi128_si64(s[0]);
}

/* Independent chains, enough to fill any unit's latency, kept in registers. */
#define CHAINS(type, count, zero, step, n)                                          \
    do {                                                                            \
        type acc[count];                                                            \
        _Pragma("GCC unroll 32") for (int c = 0; c < (count); c++) acc[c] = (zero); \
        for (long i = 0; i < (n); i++) {                                            \
            _Pragma("GCC unroll 32") for (int c = 0; c < (count); c++)              \
            {                                                                       \
                acc[c] = (step);                                                    \
                __asm__ volatile("" : "+v"(acc[c]));                                \
            }                                                                       \
        }                                                                           \
        _Pragma("GCC unroll 32") for (int c = 0; c < (count); c++)                  \
            memcpy((void *)&sink, &acc[c], 8);                                      \
    } while (0)

TARGET("avx512f,avx512bf16") static double dpbf16(long n)
{
    uint64_t sink;
    __m512i  one = _mm512_set1_epi16(0x3f80);
    __m512bh a   = (__m512bh)one;

    CHAINS(__m512, 24, _mm512_setzero_ps(), _mm512_dpbf16_ps(acc[c], a, a), n);
    g_sink = sink;
    return (double)n * 24 * 64;
}

TARGET("avx512f") static double fma512(long n)
{
    uint64_t sink;
    __m512   a = _mm512_set1_ps(1e-9f);

    CHAINS(__m512, 24, _mm512_setzero_ps(), _mm512_fmadd_ps(a, a, acc[c]), n);
    g_sink = sink;
    return (double)n * 24 * 32;
}

TARGET("avx2,fma") static double fma256(long n)
{
    uint64_t sink;
    __m256   a = _mm256_set1_ps(1e-9f);

    CHAINS(__m256, 12, _mm256_setzero_ps(), _mm256_fmadd_ps(a, a, acc[c]), n);
    g_sink = sink;
    return (double)n * 12 * 16;
}

static double scalar(long n)
{
    uint64_t sink;
    __m128d  a = _mm_set1_pd(1e-9);

    CHAINS(__m128d, 12, _mm_setzero_pd(), _mm_add_pd(_mm_mul_pd(a, a), acc[c]), n);
    g_sink = sink;
    return (double)n * 12 * 4;
}

TARGET("amx-tile,amx-bf16") static double tiles(long n)
{
    struct {
        uint8_t  palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t  rows[16];
    } config = {.palette = 1};
    enum { STEPS = 8 }; /* whose tiles fill most of a first-level cache */
    /* Ordinary numbers of both signs: on zeros the unit runs faster. */
    static _Thread_local _Alignas(64) uint16_t numbers[4 * STEPS][16 * 32];

    for (uint32_t i = 0; i < 4 * STEPS * 16 * 32; i++)
        numbers[i / 512][i % 512] =
            (uint16_t)((i * 2654435761u >> 31) << 15 | (0x3e00 + (i * 2654435761u >> 9) % 0x200));
    __asm__ volatile("" : : "r"(numbers) : "memory");
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t]      = 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long i = 0; i < n; i++) {
        uint16_t(*at)[16 * 32] = numbers + i % STEPS * 4;

        _tile_loadd(4, at[0], 64);
        _tile_loadd(5, at[1], 64);
        _tile_loadd(6, at[2], 64);
        _tile_loadd(7, at[3], 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return (double)n * 4 * 16 * 16 * 32 * 2;
}

double bt_roof_multiply(const char *kernels, long n)
{
    if (strcmp(kernels, "amx") == 0) return tiles(n);
    if (strcmp(kernels, "avx512bf16") == 0) return dpbf16(n);
    if (strcmp(kernels, "avx512") == 0) return fma512(n);
    if (strcmp(kernels, "avx2") == 0) return fma256(n);
    return scalar(n);
}
