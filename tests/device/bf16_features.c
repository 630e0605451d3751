/* tests/device/bf16_features.c - a CPU with AVX-512 has the bf16 instructions too, where they are
 * emulated: the linker sends every question of cpuid.h here. */
#include "device/cpu/cpuid.h"

unsigned __real_bt_cpu_features(void);
unsigned __wrap_bt_cpu_features(void);

unsigned __wrap_bt_cpu_features(void)
{
    unsigned features = __real_bt_cpu_features();

    return (features & BT_CPU_AVX512) != 0 ? features | BT_CPU_AVX512BF16 : features;
}
