#include "core/limits.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include "core/thread.h"

/* Programs of ours have been seen to crash at 128. */
enum { STACK_KIB = 512, THREADS_MAX = 64 };

bt_status bt_limits_allow_files(const char *who, uint32_t n_files)
{
    bt_status     st = BT_OK;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= n_files) return BT_OK;
    limit.rlim_cur = n_files < limit.rlim_max ? n_files : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    BT_REQUIRE(limit.rlim_cur >= n_files, BT_ERR_IO,
               "%s may open %llu files, and needs up to %u: raise `ulimit -n`", who,
               (unsigned long long)limit.rlim_cur, n_files);
out:
    return st;
}

static void *pass(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

bt_status bt_limits_allow_threads(const char *who, uint32_t n_threads)
{
    bt_status       st   = BT_OK;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t       threads[THREADS_MAX];
    uint32_t        n    = 0;
    int             code = 0;

    BT_ASSERT(n_threads <= THREADS_MAX);
    pthread_mutex_lock(&gate);
    while (n < n_threads && (code = bt_thread_start(&threads[n], pass, &gate)) == 0)
        n++;
    pthread_mutex_unlock(&gate);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    BT_REQUIRE(code == 0, BT_ERR_IO,
               "%s can start %u threads, and needs up to %u (%s): " BT_RAISE_THREADS, who, n,
               n_threads, strerror(code));
out:
    return st;
}

/* Raised by the process itself it would not hold for its threads. */
static bt_status check_stack(void)
{
    bt_status     st = BT_OK;
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) != 0) return BT_OK;
    BT_REQUIRE(limit.rlim_cur >= STACK_KIB * 1024, BT_ERR_IO,
               "a stack may have %llu KiB, and needs %d: raise `ulimit -s`",
               (unsigned long long)limit.rlim_cur / 1024, STACK_KIB);
out:
    return st;
}

bt_status bt_limits_check(void)
{
    bt_status st = bt_limits_allow_files("this program", BT_FILES);

    signal(SIGCHLD, SIG_DFL); /* ignored, the ends of children would never be told */
    return st == BT_OK ? check_stack() : st;
}
