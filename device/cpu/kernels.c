/* device/cpu/kernels.c - which of the tables this CPU can run. */
#include "device/cpu/kernels.h"

#include <pthread.h>
#include <string.h>

#include "device/cpu/cpuid.h"
#include "device/cpu/families.h"

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static char           g_names[64];

/* The i-th best: where products of pairs are slow, their family comes behind the next one. */
static const bt_cpu_family *family_at(size_t i)
{
    if ((bt_cpu_features() & BT_CPU_SLOW_PAIRS) == 0) return &bt_cpu_families[i];
    if (bt_cpu_families[i].needs == BT_CPU_AVX512BF16) return &bt_cpu_families[i + 1];
    if (i != 0 && bt_cpu_families[i - 1].needs == BT_CPU_AVX512BF16) return &bt_cpu_families[i - 1];
    return &bt_cpu_families[i];
}

const bt_cpu_kernels *bt_cpu_kernels_find(const char *name)
{
    unsigned features = bt_cpu_features();

    for (size_t i = 0; i < bt_cpu_n_families; i++) {
        const bt_cpu_family *f = family_at(i);

        if ((f->needs & ~features) != 0) continue;
        if (strcmp(name, "auto") == 0 || strcmp(name, f->table.name) == 0) return &f->table;
    }
    return NULL;
}

static void list_names(void)
{
    for (size_t i = 0; i < bt_cpu_n_families; i++) {
        const char *name = family_at(i)->table.name;

        if (bt_cpu_kernels_find(name) == NULL) continue;
        if (g_names[0] != '\0') strcat(g_names, ",");
        strcat(g_names, name);
    }
}

const char *bt_device_cpu_kernels(void)
{
    pthread_once(&g_once, list_names);
    return g_names;
}
