/* device/cpu/families_x86.c - the tables of x86-64. */
#include "device/cpu/cpuid.h"
#include "device/cpu/families.h"

const bt_cpu_family bt_cpu_families[] = {
    {BT_CPU_AMX,
     {.name       = "amx",
      .arithmetic = BT_CPU_BOTH_ROLES(BT_CPU_TILE32),
      .mm         = BT_CPU_BOTH_ROLES(bt_cpu_mm_tile32_amx),
      .mm_tiles   = bt_cpu_mm_tile32_amx_tiles,
      .mm_pages   = bt_cpu_mm_tile32_amx_pages,
      .attend     = bt_cpu_attend_amx,
      .rows       = &bt_cpu_rows_avx512bf16,
      .bf12       = true}               },
    {BT_CPU_AVX512BF16,
     {.name         = "avx512bf16",
      .arithmetic   = BT_CPU_BOTH_ROLES(BT_CPU_DP2),
      .mm           = BT_CPU_BOTH_ROLES(bt_cpu_mm_dp2_avx512bf16),
      .attend_pages = bt_cpu_attend_pages_avx512bf16,
      .rows         = &bt_cpu_rows_avx512bf16,
      .bf12         = true}             },
    {BT_CPU_AVX512,
     {.name         = "avx512",
      .arithmetic   = BT_CPU_BOTH_ROLES(BT_CPU_DP2),
      .mm           = BT_CPU_BOTH_ROLES(bt_cpu_mm_dp2_avx512),
      .attend_pages = bt_cpu_attend_pages_avx512,
      .rows         = &bt_cpu_rows_avx512,
      .bf12         = true}             },
    {BT_CPU_AVX2,
     {.name         = "avx2",
      .arithmetic   = BT_CPU_BOTH_ROLES(BT_CPU_DP2),
      .mm           = BT_CPU_BOTH_ROLES(bt_cpu_mm_dp2_avx2),
      .attend_pages = bt_cpu_attend_pages_avx2,
      .rows         = &bt_cpu_rows_avx2}},
    {0,
     {.name       = "scalar",
      .arithmetic = BT_CPU_BOTH_ROLES(BT_CPU_DP2),
      .mm         = BT_CPU_BOTH_ROLES(bt_cpu_mm_dp2_scalar),
      .rows       = &bt_cpu_rows_base}  },
};
const size_t bt_cpu_n_families = sizeof(bt_cpu_families) / sizeof(bt_cpu_families[0]);

const bt_cpu_widen_set bt_cpu_widen_sets[] = {
    {BT_CPU_AVX512VBMI | BT_CPU_AVX512BF16, "avx512bf16", bt_cpu_widen_avx512bf16},
    {BT_CPU_AVX512VBMI,                     "avx512vbmi", bt_cpu_widen_avx512vbmi},
    {BT_CPU_AVX512,                         "avx512",     bt_cpu_widen_avx512    },
    {BT_CPU_AVX2,                           "avx2",       bt_cpu_widen_avx2      },
    {0,                                     "scalar",     bt_cpu_widen_scalar    }
};
const size_t bt_cpu_n_widen_sets = sizeof(bt_cpu_widen_sets) / sizeof(bt_cpu_widen_sets[0]);
