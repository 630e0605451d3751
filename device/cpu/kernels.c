/* device/cpu/kernels.c - the tables, and which of them this CPU can run. */
#include "device/cpu/kernels.h"

#include <string.h>

#include "device/cpu/families.h"

static const bt_cpu_kernels TABLES[] = {
    {.name       = "scalar",
     .arithmetic = {BT_CPU_DP2, BT_CPU_DP2},
     .mm         = {bt_cpu_mm_dp2_scalar, bt_cpu_mm_dp2_scalar},
     .rows       = &bt_cpu_rows_sse2},
};
enum { N_TABLES = sizeof(TABLES) / sizeof(TABLES[0]) };

const bt_cpu_kernels *bt_cpu_kernels_find(const char *name)
{
    for (size_t i = 0; i < N_TABLES; i++)
        if (strcmp(name, "auto") == 0 || strcmp(name, TABLES[i].name) == 0) return &TABLES[i];
    return NULL;
}

const char *bt_device_cpu_kernels(void) { return "scalar"; }
