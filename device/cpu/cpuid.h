/* device/cpu/cpuid.h - which instruction sets this CPU has and this kernel lets us use. */
#ifndef BT_DEVICE_CPU_CPUID_H
#define BT_DEVICE_CPU_CPUID_H

enum {
    BT_CPU_AVX2       = 1, /* with FMA */
    BT_CPU_AVX512     = 2, /* F, BW, DQ, VL */
    BT_CPU_AVX512VBMI = 4, /* and VBMI2 */
    BT_CPU_AVX512BF16 = 8,
    BT_CPU_AMX        = 16, /* tile and bf16, after the kernel has granted the tile state; with all
                               of the above */
    BT_CPU_SLOW_PAIRS = 32  /* BF16, but its products of pairs take longer than those of fp32 */
};

/* Asks once per process; any thread.  0 on aarch64, whose kernels want nothing but NEON. */
unsigned bt_cpu_features(void);

#endif
