#include "core/machine.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

/* The whole of 127.0.0.0/8 is the loopback's. */
static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (b == NULL || a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET) {
        uint32_t x = ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr);
        uint32_t y = ntohl(((const struct sockaddr_in *)b)->sin_addr.s_addr);

        return x == y || (x >> 24 == IN_LOOPBACKNET && y >> 24 == IN_LOOPBACKNET);
    }
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

bool bt_machine_is(const char *host, bool look_up)
{
    struct addrinfo  hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = look_up ? 0 : AI_NUMERICHOST};
    struct addrinfo *list  = NULL;
    struct ifaddrs  *own   = NULL;
    char             name[256] = "";
    bool             is        = false;

    if (strcmp(host, "localhost") == 0) return true;
    if (gethostname(name, sizeof(name) - 1) == 0 && strcmp(host, name) == 0) return true;
    if (getaddrinfo(host, NULL, &hints, &list) != 0) return false;
    if (getifaddrs(&own) == 0) {
        for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
            for (const struct ifaddrs *i = own; i != NULL && !is; i = i->ifa_next)
                is = same_address(a->ai_addr, i->ifa_addr);
        freeifaddrs(own);
    }
    freeaddrinfo(list);
    return is;
}
