/* tests/support/no_threads.h - a child of a test that can start no thread. */
#ifndef BT_TESTS_SUPPORT_NO_THREADS_H
#define BT_TESTS_SUPPORT_NO_THREADS_H

#include <sys/resource.h>
#include <unistd.h>

/* The calling process, a child of a test's, is one from now on, as another user where it was root,
 * whom no limit holds; it ends with 2 where it cannot be. */
static inline void bt_test_have_no_threads(void)
{
    struct rlimit none = {1, 1};

    if (setrlimit(RLIMIT_NPROC, &none) != 0 || (geteuid() == 0 && setuid(65534) != 0)) _exit(2);
}

#endif
