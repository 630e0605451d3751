#include "core/machine.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_CPUS = 8192 };

/* Memory and CPU time of control groups, in both versions; NULL: said by another one. */
typedef struct {
    const char *controllers; /* the version's line of /proc/self/cgroup: "4:memory:/job" */
    const char *mount, *limit, *high, *used; /* high: above it the kernel slows processes down */
    const char *inactive, *active; /* in memory.stat: pages of files, which the kernel takes back */
    const char *quota, *period;    /* of CPU time; NULL: the period follows the quota */
} hierarchy;
static const hierarchy HIERARCHIES[] = {
    {.controllers = "",
     .mount       = "/sys/fs/cgroup",
     .limit       = "memory.max",
     .high        = "memory.high",
     .used        = "memory.current",
     .inactive    = "inactive_file ",
     .active      = "active_file ",
     .quota       = "cpu.max"},
    {.controllers = "memory",
     .mount       = "/sys/fs/cgroup/memory",
     .limit       = "memory.limit_in_bytes",
     .used        = "memory.usage_in_bytes",
     .inactive    = "total_inactive_file ",
     .active      = "total_active_file "},
    {.controllers = "cpu",
     .mount       = "/sys/fs/cgroup/cpu",
     .quota       = "cpu.cfs_quota_us",
     .period      = "cpu.cfs_period_us"},
};

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

/* Whether one of the names between commas is the word. */
static bool has_word(const char *names, size_t n, const char *word)
{
    size_t n_word = strlen(word);

    for (size_t at = 0, end; at <= n; at = end + 1) {
        for (end = at; end < n && names[end] != ',';)
            end++;
        if (end - at == n_word && memcmp(names + at, word, n_word) == 0) return true;
    }
    return false;
}

/* The group of this process in a hierarchy, "" at its top or where the kernel does not say. */
static void find_group(const char *root, const hierarchy *h, char group[PATH_MAX])
{
    char  path[PATH_MAX], line[PATH_MAX];
    FILE *f;

    group[0] = '\0';
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    f = fopen(path, "r");
    if (f == NULL) return;
    while (fgets(line, sizeof(line), f) != NULL) {
        char *names = strchr(line, ':'), *where = names != NULL ? strchr(names + 1, ':') : NULL;

        if (where == NULL || !has_word(names + 1, (size_t)(where - names - 1), h->controllers))
            continue;
        where[1 + strcspn(where + 1, "\n")] = '\0';
        if (strcmp(where + 1, "/") != 0) snprintf(group, PATH_MAX, "%s", where + 1);
        break;
    }
    fclose(f);
}

static uint64_t number_of(const char *root, const hierarchy *h, const char *group, const char *file,
                          const char *key)
{
    char path[3 * PATH_MAX];

    snprintf(path, sizeof(path), "%s%s%s/%s", root, h->mount, group, file);
    return number_in(path, key);
}

/* What a group may have, and what it could still take. */
static void heed_memory(const char *root, const hierarchy *h, const char *group, bt_machine *m)
{
    uint64_t limit = number_of(root, h, group, h->limit, "");
    uint64_t used  = number_of(root, h, group, h->used, "");
    uint64_t files = number_of(root, h, group, "memory.stat", h->inactive) +
                     number_of(root, h, group, "memory.stat", h->active);
    uint64_t high = h->high != NULL ? number_of(root, h, group, h->high, "") : 0, left;

    if (high != 0 && (limit == 0 || high < limit)) limit = high;
    if (limit == 0) return; /* without one, version 1 says an endless number */
    used = used > files ? used - files : 0;
    left = limit > used ? limit - used : 0;
    if (limit < m->total_bytes) m->total_bytes = limit;
    if (left < m->free_bytes) m->free_bytes = left;
}

static void heed_quota(const char *root, const hierarchy *h, const char *group, bt_machine *m)
{
    char      path[3 * PATH_MAX];
    long long quota = 0, period = 0; /* "max", or -1: none */
    FILE     *f;

    snprintf(path, sizeof(path), "%s%s%s/%s", root, h->mount, group, h->quota);
    f = fopen(path, "r");
    if (f == NULL) return;
    if (fscanf(f, "%lld %lld", &quota, &period) == 1 && h->period != NULL)
        period = (long long)number_of(root, h, group, h->period, "");
    fclose(f);
    if (quota > 0 && period > 0 && (quota - 1) / period + 1 < m->n_cores)
        m->n_cores = (uint32_t)((quota - 1) / period + 1);
}

static void heed(const char *root, const hierarchy *h, const char *group, bt_machine *m)
{
    if (h->limit != NULL) heed_memory(root, h, group, m);
    if (h->quota != NULL) heed_quota(root, h, group, m);
}

/* Cores that the scheduler may use for this process. */
static uint32_t n_allowed(void)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    uint32_t   n   = 0;

    if (set == NULL) return 1;
    if (sched_getaffinity(0, CPU_ALLOC_SIZE(MAX_CPUS), set) == 0)
        n = (uint32_t)CPU_COUNT_S(CPU_ALLOC_SIZE(MAX_CPUS), set);
    CPU_FREE(set);
    return n == 0 ? 1 : n;
}

void bt_machine_look_in(const char *root, bt_machine *m)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    m->total_bytes = number_in(path, "MemTotal:") * 1024;
    m->free_bytes  = number_in(path, "MemAvailable:") * 1024;
    m->n_cores     = n_allowed();
    for (size_t i = 0; i < sizeof(HIERARCHIES) / sizeof(HIERARCHIES[0]); i++) {
        find_group(root, &HIERARCHIES[i], path);
        heed(root, &HIERARCHIES[i], path, m);
        for (char *last; (last = strrchr(path, '/')) != NULL;) { /* those above it */
            *last = '\0';
            heed(root, &HIERARCHIES[i], path, m);
        }
    }
}

void bt_machine_look(bt_machine *m) { bt_machine_look_in("", m); }

uint32_t bt_machine_cores(void)
{
    bt_machine m;

    bt_machine_look(&m);
    return m.n_cores;
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

static bool is_own(const struct sockaddr *a)
{
    const struct in6_addr *x = &((const struct sockaddr_in6 *)a)->sin6_addr;
    uint32_t               y = ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr);

    if (a->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(x) || IN6_IS_ADDR_UNSPECIFIED(x);
    return y == INADDR_ANY || y >> 24 == IN_LOOPBACKNET;
}

bool bt_machine_is_any(const char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *list = NULL;
    bool            is = true;

    if (getaddrinfo(host, NULL, &hints, &list) != 0) return false;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
        is = is && is_own(a->ai_addr);
    freeaddrinfo(list);
    return is;
}

int bt_machine_port(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t               n = sizeof(a);

    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return -1;
    if (a.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)&a)->sin_port);
    if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return -1;
}

bool bt_machine_peer(int fd, char text_out[BT_PEER_BYTES])
{
    struct sockaddr_storage    a  = {0};
    const struct sockaddr_in6 *v6 = (const void *)&a;
    const struct sockaddr_in  *v4 = (const void *)&a;
    socklen_t                  n  = sizeof(a);
    char                       host[INET6_ADDRSTRLEN];
    const uint8_t             *mapped = NULL;

    if (getpeername(fd, (struct sockaddr *)&a, &n) != 0) return false;
    if (a.ss_family == AF_INET) mapped = (const uint8_t *)&v4->sin_addr;
    if (a.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        mapped = &v6->sin6_addr.s6_addr[12];
    if (mapped == NULL && a.ss_family != AF_INET6) return false;
    if (mapped != NULL)
        inet_ntop(AF_INET, mapped, host, sizeof(host));
    else
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    snprintf(text_out, BT_PEER_BYTES, mapped != NULL ? "ipv4:%s:%u" : "ipv6:%%5B%s%%5D:%u", host,
             ntohs(mapped != NULL && a.ss_family == AF_INET ? v4->sin_port : v6->sin6_port));
    return true;
}
