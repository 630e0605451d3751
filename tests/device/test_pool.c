/* The compute pool: every chunk once, its caller a member, no work lost or done twice however the
 * threads are scheduled, and no processor time when idle.  Under tsan this is the race test. */
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/machine.h"
#include "device/cpu/pool.h"
#include "tests/support/no_threads.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

enum { MAX_CHUNKS = 300, MAX_THREADS = 16, NO_CPU_RUNS = 2000 };

typedef struct {
    atomic_uint times[MAX_CHUNKS];
    atomic_uint busy[MAX_THREADS]; /* a member runs one chunk at a time */
    atomic_uint wrong;
    uint32_t    n_chunks, n_threads, work;
    uint64_t    sums[MAX_CHUNKS]; /* plain memory: the run's end must order it */
} job;

static void count(void *ctx, uint32_t chunk, uint32_t member)
{
    job              *j = ctx;
    volatile uint64_t x = chunk;

    if (chunk >= j->n_chunks || member >= j->n_threads) {
        atomic_fetch_add(&j->wrong, 1);
        return;
    }
    if (atomic_exchange(&j->busy[member], 1) != 0) atomic_fetch_add(&j->wrong, 1);
    for (uint32_t i = 0; i < j->work; i++)
        x = x * 3 + 1;
    j->sums[chunk] += x + 1;
    atomic_fetch_add(&j->times[chunk], 1);
    atomic_store(&j->busy[member], 0);
}

static void run_and_check(bt_cpu_pool *pool, job *j, uint32_t n_chunks, uint32_t work)
{
    memset(j, 0, sizeof(*j));
    j->n_chunks  = n_chunks;
    j->n_threads = bt_cpu_pool_n_threads(pool);
    j->work      = work;
    bt_cpu_pool_run(pool, n_chunks, count, j);
    for (uint32_t c = 0; c < n_chunks; c++)
        if (atomic_load(&j->times[c]) != 1 || j->sums[c] == 0) atomic_fetch_add(&j->wrong, 1);
    EXPECT_EQ(atomic_load(&j->wrong), 0);
}

static void run_does_every_chunk_once(void)
{
    static const uint32_t THREADS[] = {1, 2, 3, MAX_THREADS};
    static job            j;

    for (size_t t = 0; t < sizeof(THREADS) / sizeof(*THREADS); t++) {
        bt_cpu_pool *pool = NULL;

        EXPECT_EQ(bt_cpu_pool_create(THREADS[t], &pool), BT_OK);
        EXPECT_EQ(bt_cpu_pool_n_threads(pool), THREADS[t]);
        for (uint32_t n = 0; n < MAX_CHUNKS; n += n < 20 ? 1 : 37)
            run_and_check(pool, &j, n, n % 3 * 200);
        bt_cpu_pool_destroy(pool);
    }
}

static uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * BT_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Works for a millisecond of CPU time and adds what it used. */
static void use_time(void *ctx, uint32_t chunk, uint32_t member)
{
    uint64_t start = thread_ns();

    (void)chunk, (void)member;
    while (thread_ns() - start < BT_NS_PER_MS) {
    }
    atomic_fetch_add((_Atomic uint64_t *)ctx, thread_ns() - start);
}

static void cpu_time_has_that_of_all_threads(void)
{
    bt_cpu_pool     *pool = NULL;
    _Atomic uint64_t used = 0;
    uint64_t         start;

    EXPECT_EQ(bt_cpu_pool_create(3, &pool), BT_OK);
    start = bt_cpu_pool_cpu_ns(pool);
    bt_cpu_pool_run(pool, 12, use_time, &used);
    EXPECT(bt_cpu_pool_cpu_ns(pool) - start >= used); /* at once, though they still spin */
    bt_cpu_pool_destroy(pool);
}

static void run_many_short_ones_loses_none(void)
{
    static job   j[2];
    bt_cpu_pool *pool = NULL;

    EXPECT_EQ(bt_cpu_pool_create(4, &pool), BT_OK);
    for (uint32_t i = 0; i < 20000 && g_failures == 0; i++) {
        run_and_check(pool, &j[i % 2], 2 + i % 5, 0);
        if (i % 1000 == 0) bt_sleep_ns(BT_NS_PER_MS); /* everyone sleeps */
    }
    bt_cpu_pool_destroy(pool);
}

/* Members that get no core: all threads share one, so that a member runs only when the caller
 * sleeps or is preempted. */
static void run_on_one_core_ends(void)
{
    static job   j;
    cpu_set_t    before, one;
    bt_cpu_pool *pool = NULL;

    EXPECT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&one) == 0; c++)
        if (CPU_ISSET(c, &before)) CPU_SET(c, &one);
    EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(bt_cpu_pool_create(8, &pool), BT_OK);
    for (uint32_t i = 0; i < NO_CPU_RUNS; i++)
        run_and_check(pool, &j, 16, 500);
    bt_cpu_pool_destroy(pool);
    EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

/* A chunk for each member, none of which ends before all have begun. */
typedef struct {
    atomic_uint n_begun, n_alone;
    uint32_t    n;
} meeting;

static void meet(void *ctx, uint32_t chunk, uint32_t member)
{
    meeting *m     = ctx;
    uint64_t start = bt_now_ns();

    (void)chunk, (void)member;
    atomic_fetch_add(&m->n_begun, 1);
    while (atomic_load(&m->n_begun) < m->n && bt_now_ns() - start < 20 * BT_NS_PER_S)
        sched_yield();
    if (atomic_load(&m->n_begun) < m->n) atomic_fetch_add(&m->n_alone, 1);
}

static void run_wakes_all_that_it_has_work_for(void)
{
    for (uint32_t threads = 2; threads <= 4; threads++) {
        bt_cpu_pool *pool = NULL;
        meeting      m    = {.n = threads};

        EXPECT_EQ(bt_cpu_pool_create(threads, &pool), BT_OK);
        bt_sleep_ns(20 * BT_NS_PER_MS); /* everyone sleeps */
        bt_cpu_pool_run(pool, threads, meet, &m);
        EXPECT_EQ(atomic_load(&m.n_alone), 0);
        bt_cpu_pool_destroy(pool);
    }
}

static void idle_pool_takes_no_processor_time(void)
{
    static job      j;
    bt_cpu_pool    *pool = NULL;
    struct timespec a, b;
    double          ms;

    EXPECT_EQ(bt_cpu_pool_create(8, &pool), BT_OK);
    run_and_check(pool, &j, 64, 100);
    bt_sleep_ns(5 * BT_NS_PER_MS);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    bt_sleep_ns(300 * BT_NS_PER_MS);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6;
    if (!(ms < 30)) fprintf(stderr, "%g ms of processor time in 300 ms of idleness\n", ms);
    EXPECT(ms < 30);
    bt_cpu_pool_destroy(pool);
}

/* Subnormals are 0 on the way in and out. */
static bool flushes(void)
{
    volatile float least = 0x1p-126f, subnormal = 0x1p-127f, out = least * 0.5f,
                   in = subnormal * 0x1p100f;

    return fpclassify(out) == FP_ZERO && fpclassify(in) == FP_ZERO;
}

static void look_at_thread(void *ctx, uint32_t chunk, uint32_t member)
{
    atomic_uint *wrong = ctx;
    sigset_t     blocked;

    (void)chunk;
    if (!flushes()) atomic_fetch_add(wrong, 1);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (member != 0 && sigismember(&blocked, SIGTERM) != 1) atomic_fetch_add(wrong, 1);
    bt_sleep_ns(BT_NS_PER_MS); /* so that each member gets a chunk */
}

static void members_flush_denormals_and_block_signals(void)
{
    bt_cpu_pool *pool  = NULL;
    atomic_uint  wrong = 0;

    EXPECT_EQ(bt_cpu_pool_create(4, &pool), BT_OK);
    bt_cpu_flush_denormals(); /* of the caller, when the members have begun: they inherit nothing */
    for (int i = 0; i < 4; i++)
        bt_cpu_pool_run(pool, 16, look_at_thread, &wrong);
    EXPECT_EQ(atomic_load(&wrong), 0);
    bt_cpu_pool_destroy(pool);
}

static void create_with_no_threads_is_refused(void)
{
    bt_cpu_pool *pool = NULL;

    EXPECT_EQ(bt_cpu_pool_create(0, &pool), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "not 0");
    EXPECT_EQ(bt_cpu_pool_create(BT_MAX_THREADS + 1, &pool), BT_ERR_INVALID_ARG);
    EXPECT(pool == NULL);
    bt_cpu_pool_destroy(NULL);
}

/* In a child, whose limit and user are its own. */
static void create_without_a_thread_says_what_to_raise(void)
{
    bt_cpu_pool *pool   = NULL;
    int          status = -1;
    pid_t        child  = fork();

    if (child == 0) {
        bt_test_have_no_threads();
        _exit(bt_cpu_pool_create(2, &pool) != BT_ERR_DEVICE ||
              strstr(bt_error_text(), "raise `ulimit -u`") == NULL);
    }
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
}

static void create_without_memory_leaves_nothing(void)
{
    bt_cpu_pool *pool = NULL;

    EXPECT_EQ(BT_SWEEP(bt_cpu_pool_create(3, &pool), bt_cpu_pool_destroy(pool)), 2);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(run_does_every_chunk_once),
        BT_TEST(cpu_time_has_that_of_all_threads),
        BT_TEST(run_many_short_ones_loses_none),
        BT_TEST(run_on_one_core_ends),
        BT_TEST(run_wakes_all_that_it_has_work_for),
        BT_TEST(idle_pool_takes_no_processor_time),
        BT_TEST(members_flush_denormals_and_block_signals),
        BT_TEST(create_with_no_threads_is_refused),
        BT_TEST(create_without_a_thread_says_what_to_raise),
        BT_TEST(create_without_memory_leaves_nothing),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
