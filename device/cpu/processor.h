/* device/cpu/processor.h - what one thread asks of its core that C has no words for. */
#ifndef BT_DEVICE_CPU_PROCESSOR_H
#define BT_DEVICE_CPU_PROCESSOR_H

#include <stdint.h>

#if defined(__x86_64__)
#include <x86intrin.h>

enum { BT_CPU_MXCSR_DAZ_FTZ = 0x8040 };

/* Ticks of the TSC, and some 10 microseconds of them. */
static inline uint64_t bt_cpu_ticks(void) { return __rdtsc(); }
static inline uint64_t bt_cpu_spin_ticks(void) { return 25000; }
static inline void     bt_cpu_pause(void) { _mm_pause(); }
/* Subnormals are 0 on the way in and out, for this thread. */
static inline void bt_cpu_flush(void) { _mm_setcsr(_mm_getcsr() | BT_CPU_MXCSR_DAZ_FTZ); }

#elif defined(__aarch64__)

/* Ticks of the generic timer, and 10 microseconds of them. */
static inline uint64_t bt_cpu_ticks(void)
{
    uint64_t ticks;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
}
static inline uint64_t bt_cpu_spin_ticks(void)
{
    uint64_t hz;

    __asm__("mrs %0, cntfrq_el0" : "=r"(hz));
    return hz / 100000;
}
static inline void bt_cpu_pause(void) { __asm__ volatile("yield"); }
/* FZ.  It flushes a result that is subnormal before it is rounded, x86-64 one that is so after. */
static inline void bt_cpu_flush(void)
{
    uint64_t fpcr;

    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | UINT64_C(1) << 24) : "memory");
}

#else
#error "neither x86-64 nor aarch64"
#endif

#endif
