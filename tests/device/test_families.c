/* Which kernel family a CPU takes by itself, and in what order it names those that it has: the
 * linker sends every question of cpuid.h here. */
#include <string.h>

#include "device/cpu/cpuid.h"
#include "device/cpu/kernels.h"
#include "tests/support/test.h"

static unsigned g_features;

unsigned __wrap_bt_cpu_features(void);
unsigned __wrap_bt_cpu_features(void) { return g_features; }

static void the_best_family_is_chosen(void)
{
    static const struct {
        unsigned    features;
        const char *best;
    } CPUS[] = {
        {0,                                                                                "scalar"    },
        {BT_CPU_AVX2,                                                                      "avx2"      },
        {BT_CPU_AVX2 | BT_CPU_AVX512,                                                      "avx512"    },
        {BT_CPU_AVX2 | BT_CPU_AVX512 | BT_CPU_AVX512BF16,                                  "avx512bf16"},
        {BT_CPU_AVX2 | BT_CPU_AVX512 | BT_CPU_AVX512BF16 | BT_CPU_SLOW_PAIRS,              "avx512"    },
        {BT_CPU_AVX2 | BT_CPU_AVX512 | BT_CPU_AVX512BF16 | BT_CPU_SLOW_PAIRS | BT_CPU_AMX, "amx"       },
    };

    for (size_t i = 0; i < sizeof(CPUS) / sizeof(*CPUS); i++) {
        g_features = CPUS[i].features;
        EXPECT(strcmp(bt_cpu_kernels_find("auto")->name, CPUS[i].best) == 0);
    }
}

static void slow_pairs_come_behind_fp32(void)
{
    g_features = BT_CPU_AVX2 | BT_CPU_AVX512 | BT_CPU_AVX512BF16 | BT_CPU_SLOW_PAIRS | BT_CPU_AMX;
    EXPECT(strcmp(bt_device_cpu_kernels(), "amx,avx512,avx512bf16,avx2,scalar") == 0);
    EXPECT(strcmp(bt_cpu_kernels_find("avx512bf16")->name, "avx512bf16") == 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {BT_TEST(the_best_family_is_chosen),
                                    BT_TEST(slow_pairs_come_behind_fp32)};

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
