/* device/cpu/kernels.c - the tables, and which of them this CPU can run. */
#include "device/cpu/kernels.h"

#include <pthread.h>
#include <string.h>

#include "device/cpu/cpuid.h"
#include "device/cpu/families.h"

typedef struct {
    unsigned       needs; /* BT_CPU_... */
    bt_cpu_kernels table;
} family;

#define BOTH_ROLES(fn)                                  \
    {                                                   \
        [BT_ROLE_PROMPT] = fn, [BT_ROLE_GENERATED] = fn \
    }

/* Best first. */
static const family FAMILIES[] = {
    {BT_CPU_AMX,
     {.name       = "amx",
      .arithmetic = BOTH_ROLES(BT_CPU_TILE32),
      .mm         = BOTH_ROLES(bt_cpu_mm_tile32_amx),
      .mm_tiles   = bt_cpu_mm_tile32_amx_tiles,
      .mm_pages   = bt_cpu_mm_tile32_amx_pages,
      .attend     = bt_cpu_attend_amx,
      .rows       = &bt_cpu_rows_avx512bf16}  },
    {BT_CPU_AVX512BF16,
     {.name         = "avx512bf16",
      .arithmetic   = BOTH_ROLES(BT_CPU_DP2),
      .mm           = BOTH_ROLES(bt_cpu_mm_dp2_avx512bf16),
      .attend_pages = bt_cpu_attend_pages_avx512bf16,
      .rows         = &bt_cpu_rows_avx512bf16}},
    {BT_CPU_AVX512,
     {.name         = "avx512",
      .arithmetic   = BOTH_ROLES(BT_CPU_DP2),
      .mm           = BOTH_ROLES(bt_cpu_mm_dp2_avx512),
      .attend_pages = bt_cpu_attend_pages_avx512,
      .rows         = &bt_cpu_rows_avx512}    },
    {BT_CPU_AVX2,
     {.name         = "avx2",
      .arithmetic   = BOTH_ROLES(BT_CPU_DP2),
      .mm           = BOTH_ROLES(bt_cpu_mm_dp2_avx2),
      .attend_pages = bt_cpu_attend_pages_avx2,
      .rows         = &bt_cpu_rows_avx2}      },
    {0,
     {.name       = "scalar",
      .arithmetic = BOTH_ROLES(BT_CPU_DP2),
      .mm         = BOTH_ROLES(bt_cpu_mm_dp2_scalar),
      .rows       = &bt_cpu_rows_sse2}        },
};
enum { N_FAMILIES = sizeof(FAMILIES) / sizeof(FAMILIES[0]) };

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static char           g_names[64];

const bt_cpu_kernels *bt_cpu_kernels_find(const char *name)
{
    unsigned features = bt_cpu_features();

    for (size_t i = 0; i < N_FAMILIES; i++) {
        const bt_cpu_kernels *table = &FAMILIES[i].table;

        if ((FAMILIES[i].needs & ~features) != 0) continue;
        if (strcmp(name, "auto") == 0 || strcmp(name, table->name) == 0) return table;
    }
    return NULL;
}

static void list_names(void)
{
    for (size_t i = 0; i < N_FAMILIES; i++) {
        if (bt_cpu_kernels_find(FAMILIES[i].table.name) == NULL) continue;
        if (g_names[0] != '\0') strcat(g_names, ",");
        strcat(g_names, FAMILIES[i].table.name);
    }
}

const char *bt_device_cpu_kernels(void)
{
    pthread_once(&g_once, list_names);
    return g_names;
}
