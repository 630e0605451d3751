#include "tools/machine.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static uint64_t meminfo_bytes(const char *field)
{
    FILE    *f     = fopen("/proc/meminfo", "r");
    uint64_t bytes = 0;
    char     line[128];

    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, field, strlen(field)) == 0 &&
            sscanf(line + strlen(field), ": %" SCNu64 " kB", &bytes) == 1)
            bytes *= 1024;
    if (f != NULL) fclose(f);
    return bytes;
}

/* A number in a file of the control group; "max", or no file, is no limit. */
static uint64_t group_bytes(const char *path)
{
    FILE    *f     = fopen(path, "r");
    uint64_t bytes = UINT64_MAX;

    if (f == NULL) return UINT64_MAX;
    if (fscanf(f, "%" SCNu64, &bytes) != 1) bytes = UINT64_MAX;
    fclose(f);
    return bytes;
}

void bt_machine_look(bt_machine *m)
{
    uint64_t  limit = group_bytes("/sys/fs/cgroup/memory.max");
    uint64_t  used  = group_bytes("/sys/fs/cgroup/memory.current");
    cpu_set_t cores;

    m->total_bytes = meminfo_bytes("MemTotal");
    m->free_bytes  = meminfo_bytes("MemAvailable");
    if (limit < m->total_bytes) {
        m->total_bytes = limit;
        if (used < limit && limit - used < m->free_bytes) m->free_bytes = limit - used;
    }
    m->n_cores = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? (uint32_t)CPU_COUNT(&cores) : 1;
}
