#include "device/cpu/cpuid.h"

#include <cpuid.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    ARCH_REQ_XCOMP_PERM = 0x1023, /* asm/prctl.h of newer kernels */
    XFEATURE_TILE_DATA  = 18,
    /* Register state that the kernel saves: XCR0. */
    STATE_AVX    = 0x6,
    STATE_AVX512 = 0xe6,
    STATE_TILE   = 0x60000
};

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static unsigned       g_features;

static uint32_t saved_state(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has(uint32_t word, unsigned bit) { return (word >> bit & 1) != 0; }
static bool covers(uint32_t state, uint32_t need) { return (state & need) == need; }

/* Intel's cores since Sapphire Rapids; Cooper Lake, whose pairs are quick, has no VBMI. */
static bool has_slow_pairs(void)
{
    uint32_t a, b, c, d;

    return (g_features & BT_CPU_AVX512VBMI) != 0 && __get_cpuid(0, &a, &b, &c, &d) != 0 &&
           b == signature_INTEL_ebx;
}

/* The tile state is large, so Linux wants to be asked before a process uses it. */
static bool tiles_granted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

static void detect(void)
{
    uint32_t a, b, c, d, sub_a = 0, ignored, state;
    bool     fma;

    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || !has(c, 27)) return; /* no OSXSAVE */
    state = saved_state();
    fma   = has(c, 12);
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
    if (a >= 1) __get_cpuid_count(7, 1, &sub_a, &ignored, &ignored, &ignored);
    if (!covers(state, STATE_AVX) || !has(b, 5) || !fma) return;
    g_features = BT_CPU_AVX2;
    if (!covers(state, STATE_AVX512) || !has(b, 16) || !has(b, 17) || !has(b, 30) || !has(b, 31))
        return;
    g_features |= BT_CPU_AVX512;
    if (has(c, 1) && has(c, 6)) g_features |= BT_CPU_AVX512VBMI;
    if (!has(sub_a, 5)) return;
    g_features |= BT_CPU_AVX512BF16;
    if (has_slow_pairs()) g_features |= BT_CPU_SLOW_PAIRS;
    if ((g_features & BT_CPU_AVX512VBMI) != 0 && covers(state, STATE_TILE) && has(d, 22) &&
        has(d, 24) && tiles_granted())
        g_features |= BT_CPU_AMX;
}

unsigned bt_cpu_features(void)
{
    pthread_once(&g_once, detect);
    return g_features;
}
