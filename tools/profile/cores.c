#include "tools/profile/cores.h"

#include <sched.h>
#include <stdatomic.h>

enum { MAX_THREADS = 64 };

typedef struct {
    uint32_t         n_threads;
    _Atomic uint32_t n_there;
    cpu_set_t        own[MAX_THREADS];
} cores;

/* A chunk for each thread: none ends before all have begun. */
static void keep(void *ctx, uint32_t chunk, uint32_t member)
{
    cores *c = ctx;

    (void)chunk;
    sched_setaffinity(0, sizeof(c->own[member]), &c->own[member]);
    atomic_fetch_add(&c->n_there, 1);
    while (atomic_load(&c->n_there) != c->n_threads)
        sched_yield();
}

void bt_cores_keep(bt_cpu_pool *pool)
{
    cores     c = {.n_threads = bt_cpu_pool_n_threads(pool)};
    cpu_set_t allowed;
    uint32_t  n = 0;

    if (c.n_threads == 1 || c.n_threads > MAX_THREADS ||
        sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE && n < c.n_threads; cpu++)
        if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &c.own[n++]);
    if (n == c.n_threads) bt_cpu_pool_run(pool, n, keep, &c);
}
