#include "device/cpu/widen.h"

#include <string.h>

#include "device/cpu/cpuid.h"
#include "device/cpu/families.h"

bt_cpu_widen_fn bt_cpu_widen_find(const char *name)
{
    unsigned features = bt_cpu_features();

    for (size_t i = 0; i < bt_cpu_n_widen_sets; i++)
        if ((bt_cpu_widen_sets[i].needs & ~features) == 0 &&
            (name == NULL || strcmp(name, bt_cpu_widen_sets[i].name) == 0))
            return bt_cpu_widen_sets[i].widen;
    return NULL;
}

bt_cpu_widen_fn bt_cpu_widen_best(void) { return bt_cpu_widen_find(NULL); }
