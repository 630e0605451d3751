/* device/cpu/roofs_arm.c - roofs.h for aarch64. */
#include "device/cpu/roofs.h"

#include <arm_neon.h>
#include <stdint.h>

/* What a loop computed must seem to be used. */
static volatile uint64_t g_sink;

enum { AHEAD = 32 * 4 }; /* vectors, that is 32 lines */

void bt_roof_read(const void *memory, size_t bytes)
{
    const uint32x4_t *p = memory;
    size_t            n = bytes / 4 / sizeof(*p);
    uint32x4_t        s[4];

    for (size_t stream = 0; stream < 4; stream++)
        s[stream] = vdupq_n_u32(0);
    for (size_t i = 0; i < n; i += 4) { /* 64 bytes of each stream */
        for (size_t stream = 0; stream < 4; stream++)
            __builtin_prefetch(p + stream * n + i + AHEAD, 0, 2);
        for (size_t j = 0; j < 4; j++)
            for (size_t stream = 0; stream < 4; stream++)
                s[stream] = veorq_u32(s[stream], p[stream * n + i + j]);
    }
    s[0]   = veorq_u32(veorq_u32(s[0], s[1]), veorq_u32(s[2], s[3]));
    g_sink = vgetq_lane_u64(vreinterpretq_u64_u32(s[0]), 0);
}

/* Independent chains, enough for four units of a latency of four, kept in registers. */
double bt_roof_multiply(const char *kernels, long n)
{
    enum { CHAINS = 24 };
    float32x4_t acc[CHAINS], a = vdupq_n_f32(1e-9f);

    (void)kernels; /* all of them have these instructions */
    _Pragma("GCC unroll 32") for (int c = 0; c < CHAINS; c++) acc[c] = vdupq_n_f32(0);
    for (long i = 0; i < n; i++) {
        _Pragma("GCC unroll 32") for (int c = 0; c < CHAINS; c++)
        {
            acc[c] = vfmaq_f32(acc[c], a, a);
            __asm__ volatile("" : "+w"(acc[c]));
        }
    }
    for (int c = 1; c < CHAINS; c++)
        acc[0] = vaddq_f32(acc[0], acc[c]);
    g_sink = vgetq_lane_u64(vreinterpretq_u64_f32(acc[0]), 0);
    return (double)n * CHAINS * 8;
}
