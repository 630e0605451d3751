/* device/cpu/pool.c - chunks from one atomic word, sleep on a futex.
 *
 * `work` holds the number of the run (upper half) and how many chunks nobody has taken yet (lower
 * half).  Taking a chunk is one compare-and-swap on it: success proves that this run is still open,
 * and since the caller cannot leave before the chunk is done, the job's fields may be read then.  A
 * member that wakes late finds 0 chunks left and touches nothing. */
#include "device/cpu/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/machine.h"
#include "core/thread.h"
#include "device/cpu/processor.h"

typedef struct {
    bt_cpu_pool *pool;
    uint32_t     index;
    pthread_t    thread;
} member;

struct bt_cpu_pool {
    _Alignas(64) _Atomic uint64_t work;
    _Alignas(64) _Atomic uint32_t done;   /* chunks of this run that are complete; a futex */
    _Atomic uint32_t caller_waits;        /* the caller sleeps on `done` */
    _Alignas(64) _Atomic uint32_t signal; /* counts runs; a futex */
    _Atomic uint32_t n_asleep;
    _Atomic bool     leave;
    /* The job; written by the caller between runs, read after taking a chunk. */
    bt_cpu_task task;
    void       *ctx;
    uint32_t    n_chunks;

    uint32_t n_threads, n_started;
    member  *members; /* [n_threads]; 0 is the caller */
};

void bt_cpu_flush_denormals(void) { bt_cpu_flush(); }

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, uint32_t n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Takes one chunk of the open run; *left_out is how many there were. */
static bool take(bt_cpu_pool *pool, uint32_t *left_out)
{
    uint64_t seen = atomic_load_explicit(&pool->work, memory_order_acquire);

    while ((uint32_t)seen != 0) {
        if (atomic_compare_exchange_weak_explicit(&pool->work, &seen, seen - 1,
                                                  memory_order_acq_rel, memory_order_acquire)) {
            *left_out = (uint32_t)seen;
            return true;
        }
    }
    return false;
}

/* Runs chunks until none is left to take. */
static void work_on(bt_cpu_pool *pool, uint32_t index)
{
    uint32_t left;

    while (take(pool, &left)) {
        uint32_t n_chunks = pool->n_chunks;

        pool->task(pool->ctx, n_chunks - left, index);
        if (atomic_fetch_add(&pool->done, 1) + 1 == n_chunks && index != 0 &&
            atomic_load(&pool->caller_waits) != 0)
            futex_wake(&pool->done, 1);
    }
}

/* Looks for some ten microseconds, which is the gaps between operations of a layer and most ends of
 * chunks, whether the word comes to be `value`, or with `leaves` ceases to be: true when it has. */
static bool comes_soon(const _Atomic uint32_t *word, uint32_t value, bool leaves)
{
    uint64_t start = bt_cpu_ticks(), spin = bt_cpu_spin_ticks();

    do {
        if ((atomic_load_explicit(word, memory_order_acquire) == value) != leaves) return true;
        bt_cpu_pause();
    } while (bt_cpu_ticks() - start < spin);
    return false;
}

/* Waits for a new run: a while, then asleep. */
static void await_run(bt_cpu_pool *pool, uint32_t seen)
{
    if (comes_soon(&pool->signal, seen, true)) return;
    atomic_fetch_add(&pool->n_asleep, 1);
    while (atomic_load(&pool->signal) == seen)
        futex_wait(&pool->signal, seen);
    atomic_fetch_sub(&pool->n_asleep, 1);
}

static void *member_main(void *arg)
{
    member      *me   = arg;
    bt_cpu_pool *pool = me->pool;

    bt_cpu_flush_denormals();
    for (;;) {
        uint32_t seen = atomic_load(&pool->signal);

        if (atomic_load(&pool->leave)) return NULL;
        work_on(pool, me->index);
        await_run(pool, seen);
    }
}

static int start_member(member *m)
{
    int rc = bt_thread_start(&m->thread, member_main, m);

    if (rc == 0) pthread_setname_np(m->thread, "bt-compute");
    return rc;
}

bt_status bt_cpu_pool_create(uint32_t n_threads, bt_cpu_pool **pool_out)
{
    bt_status    st   = BT_OK;
    bt_cpu_pool *pool = NULL;
    int          rc;

    BT_REQUIRE(n_threads >= 1 && n_threads <= BT_MAX_THREADS, BT_ERR_INVALID_ARG,
               "a pool has 1 to %d threads, not %u", BT_MAX_THREADS, n_threads);
    pool = bt_calloc_aligned(1, sizeof(*pool));
    BT_REQUIRE(pool != NULL, BT_ERR_NO_MEMORY, "compute pool");
    pool->n_threads = n_threads;
    pool->members   = bt_calloc(n_threads, sizeof(*pool->members));
    BT_REQUIRE(pool->members != NULL, BT_ERR_NO_MEMORY, "%u members of the compute pool",
               n_threads);
    for (uint32_t i = 1; i < n_threads; i++) {
        pool->members[i] = (member){.pool = pool, .index = i};
        rc               = start_member(&pool->members[i]);
        BT_REQUIRE(rc == 0, BT_ERR_DEVICE, "compute thread %u of %u does not start (%s): %s", i,
                   n_threads, strerror(rc), BT_RAISE_THREADS);
        pool->n_started = i;
    }
    *pool_out = pool;
    pool      = NULL;
out:
    bt_cpu_pool_destroy(pool);
    return st;
}

void bt_cpu_pool_destroy(bt_cpu_pool *pool)
{
    if (pool == NULL) return;
    atomic_store(&pool->leave, true);
    atomic_fetch_add(&pool->signal, 1);
    futex_wake(&pool->signal, BT_MAX_THREADS);
    for (uint32_t i = 1; i <= pool->n_started; i++)
        pthread_join(pool->members[i].thread, NULL);
    bt_free(pool->members);
    bt_free(pool);
}

uint32_t bt_cpu_pool_n_threads(const bt_cpu_pool *pool) { return pool->n_threads; }

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t = {0};

    return clock_gettime(clock, &t) == 0 ? (uint64_t)t.tv_sec * BT_NS_PER_S + (uint64_t)t.tv_nsec
                                         : 0;
}

uint64_t bt_cpu_pool_cpu_ns(const bt_cpu_pool *pool)
{
    uint64_t  ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    clockid_t clock;

    for (uint32_t i = 1; i <= pool->n_started; i++)
        if (pthread_getcpuclockid(pool->members[i].thread, &clock) == 0) ns += clock_ns(clock);
    return ns;
}

/* Waits for chunks that others have taken. */
static void await_others(bt_cpu_pool *pool, uint32_t n_chunks)
{
    uint32_t done;

    if (comes_soon(&pool->done, n_chunks, false)) return;
    atomic_store(&pool->caller_waits, 1);
    while ((done = atomic_load(&pool->done)) != n_chunks)
        futex_wait(&pool->done, done);
    atomic_store(&pool->caller_waits, 0);
}

/* Opens a run for the members; those asleep are woken, as many as there is work for. */
static void open_run(bt_cpu_pool *pool, uint32_t n_chunks, bt_cpu_task task, void *ctx)
{
    uint64_t run    = (atomic_load_explicit(&pool->work, memory_order_relaxed) >> 32) + 1;
    uint32_t others = pool->n_threads - 1;

    pool->task     = task;
    pool->ctx      = ctx;
    pool->n_chunks = n_chunks;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->work, run << 32 | n_chunks, memory_order_release);
    atomic_fetch_add(&pool->signal, 1);
    if (atomic_load(&pool->n_asleep) != 0)
        futex_wake(&pool->signal, others < n_chunks - 1 ? others : n_chunks - 1);
}

void bt_cpu_pool_run(bt_cpu_pool *pool, uint32_t n_chunks, bt_cpu_task task, void *ctx)
{
    if (n_chunks <= 1 || pool->n_threads == 1) {
        for (uint32_t c = 0; c < n_chunks; c++)
            task(ctx, c, 0);
        return;
    }
    open_run(pool, n_chunks, task, ctx);
    work_on(pool, 0);
    await_others(pool, n_chunks);
}
