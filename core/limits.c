#include "core/limits.h"

#include <signal.h>
#include <sys/resource.h>

/* Programs of ours have been seen to crash at 128. */
enum { STACK_KIB = 512 };

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
