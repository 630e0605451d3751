/* tests/device/emulated_cpu.c - a CPU with AVX-512 has the bf16 instructions and AMX too, where
 * they are emulated: the linker sends every question of cpuid.h here. */
#include "device/cpu/cpuid.h"
#include "tests/device/amx_emulated.h"

emulated_tile *emulated_tiles_of_thread(void)
{
    static _Thread_local emulated_tile tiles[EMULATED_TILES];

    return tiles;
}

unsigned __real_bt_cpu_features(void);
unsigned __wrap_bt_cpu_features(void);

unsigned __wrap_bt_cpu_features(void)
{
    unsigned features = __real_bt_cpu_features();

    if ((features & BT_CPU_AVX512) == 0) return features;
    return features | BT_CPU_AVX512BF16 | BT_CPU_AMX;
}
