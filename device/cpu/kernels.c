/* device/cpu/kernels.c - which of the tables this CPU can run. */
#include "device/cpu/kernels.h"

#include <pthread.h>
#include <string.h>

#include "device/cpu/cpuid.h"
#include "device/cpu/families.h"

static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static char           g_names[64];

const bt_cpu_kernels *bt_cpu_kernels_find(const char *name)
{
    unsigned features = bt_cpu_features();

    for (size_t i = 0; i < bt_cpu_n_families; i++) {
        const bt_cpu_kernels *table = &bt_cpu_families[i].table;

        if ((bt_cpu_families[i].needs & ~features) != 0) continue;
        if (strcmp(name, "auto") == 0 || strcmp(name, table->name) == 0) return table;
    }
    return NULL;
}

static void list_names(void)
{
    for (size_t i = 0; i < bt_cpu_n_families; i++) {
        const char *name = bt_cpu_families[i].table.name;

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
