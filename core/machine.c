#include "core/machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CPUS = 8192 };

/* Of a control group, in both versions. */
static const char *const LIMITS[][2] = {
    {"/sys/fs/cgroup/memory.max",                   "/sys/fs/cgroup/memory.current"              },
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
};
#define NO_LIMIT (UINT64_C(1) << 60) /* version 1 says so by a larger number */

/* The number after `key` in a file of "Key: value" lines, or the whole file's number when key is
 * ""; 0 when there is none ("max" of a control group too). */
static uint64_t number_in(const char *path, const char *key)
{
    char     line[256];
    uint64_t value = 0;
    size_t   n     = strlen(key);
    FILE    *f     = fopen(path, "r");

    if (f == NULL) return 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, key, n) != 0) continue;
        value = strtoull(line + n, NULL, 10);
        break;
    }
    fclose(f);
    return value;
}

uint32_t bt_machine_cores(void)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    uint32_t   n   = 0;

    if (set == NULL) return 1;
    if (sched_getaffinity(0, CPU_ALLOC_SIZE(MAX_CPUS), set) == 0)
        n = (uint32_t)CPU_COUNT_S(CPU_ALLOC_SIZE(MAX_CPUS), set);
    CPU_FREE(set);
    return n == 0 ? 1 : n;
}

void bt_machine_look(bt_machine *m)
{
    m->total_bytes = number_in("/proc/meminfo", "MemTotal:") * 1024;
    m->free_bytes  = number_in("/proc/meminfo", "MemAvailable:") * 1024;
    for (size_t i = 0; i < sizeof(LIMITS) / sizeof(LIMITS[0]); i++) {
        uint64_t limit = number_in(LIMITS[i][0], ""), used = number_in(LIMITS[i][1], "");
        uint64_t left = limit > used ? limit - used : 0;

        if (limit == 0 || limit >= NO_LIMIT) continue;
        if (limit < m->total_bytes) m->total_bytes = limit;
        if (left < m->free_bytes) m->free_bytes = left;
    }
    m->n_cores = bt_machine_cores();
}
