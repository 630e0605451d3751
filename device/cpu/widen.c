#include "device/cpu/widen.h"

#include <string.h>

#include "device/cpu/cpuid.h"
#include "device/cpu/families.h"

static const struct {
    unsigned        needs; /* BT_CPU_... */
    const char     *name;
    bt_cpu_widen_fn widen;
} SETS[] = {
    {BT_CPU_AVX512VBMI, "avx512vbmi", bt_cpu_widen_avx512vbmi},
    {BT_CPU_AVX512,     "avx512",     bt_cpu_widen_avx512    },
    {BT_CPU_AVX2,       "avx2",       bt_cpu_widen_avx2      },
    {0,                 "scalar",     bt_cpu_widen_scalar    }
};

/* Of that name, or the first. */
static bt_cpu_widen_fn find(const char *name)
{
    unsigned features = bt_cpu_features();

    for (size_t i = 0; i < sizeof(SETS) / sizeof(*SETS); i++)
        if ((SETS[i].needs & ~features) == 0 && (name == NULL || strcmp(name, SETS[i].name) == 0))
            return SETS[i].widen;
    return NULL;
}

bt_cpu_widen_fn bt_cpu_widen_best(void) { return find(NULL); }
bt_cpu_widen_fn bt_cpu_widen_find(const char *name) { return find(name); }
