/* device/cpu/families_arm.c - the tables of aarch64: NEON is in all of them, so that there is
 * nothing to ask for. */
#include "device/cpu/cpuid.h"
#include "device/cpu/families.h"

const bt_cpu_family bt_cpu_families[] = {
    {0,
     {.name         = "neon",
      .arithmetic   = BT_CPU_BOTH_ROLES(BT_CPU_DP2),
      .mm           = BT_CPU_BOTH_ROLES(bt_cpu_mm_dp2_neon),
      .attend_pages = bt_cpu_attend_pages_neon,
      .rows         = &bt_cpu_rows_base}},
    {0,
     {.name       = "scalar",
      .arithmetic = BT_CPU_BOTH_ROLES(BT_CPU_DP2),
      .mm         = BT_CPU_BOTH_ROLES(bt_cpu_mm_dp2_scalar),
      .rows       = &bt_cpu_rows_base}  },
};
const size_t bt_cpu_n_families = sizeof(bt_cpu_families) / sizeof(bt_cpu_families[0]);

const bt_cpu_widen_set bt_cpu_widen_sets[] = {
    {0, "neon",   bt_cpu_widen_neon  },
    {0, "scalar", bt_cpu_widen_scalar},
};
const size_t bt_cpu_n_widen_sets = sizeof(bt_cpu_widen_sets) / sizeof(bt_cpu_widen_sets[0]);

unsigned bt_cpu_features(void) { return 0; }
