/* tests/support/seeds.h - a test that is played from many seeds, up to the first one that fails.
 *
 *     test_something [TEST [SEED]]    SEED: it alone, of any number
 *
 * The one that fails is named, however it ends. */
#ifndef BT_TESTS_SUPPORT_SEEDS_H
#define BT_TESTS_SUPPORT_SEEDS_H

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "tests/support/test.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { BT_SEEDS_SLOWER = 10 }; /* so many times fewer are played */
#else
enum { BT_SEEDS_SLOWER = 1 };
#endif

static uint64_t bt_only_seed; /* 0: all */
static uint64_t bt_seed_now;  /* 0: none is played */

static inline void bt_name_seed(void)
{
    if (bt_seed_now != 0) fprintf(stderr, "this was seed %" PRIu64 "\n", bt_seed_now);
}

static inline void bt_name_seed_and_die(int number)
{
    bt_name_seed();
    signal(number, SIG_DFL);
    raise(number);
}

/* Seeds 1 to n; how: whatever the test makes of it. */
static inline void bt_play_seeds(uint64_t n, uint32_t how,
                                 void (*play)(uint64_t seed, uint32_t how))
{
    uint64_t last   = bt_only_seed != 0 ? bt_only_seed : n / BT_SEEDS_SLOWER;
    int      before = g_failures;

    for (bt_seed_now = bt_only_seed != 0 ? bt_only_seed : 1; bt_seed_now <= last; bt_seed_now++) {
        play(bt_seed_now, how);
        if (g_failures == before) continue;
        bt_name_seed();
        break;
    }
    bt_seed_now = 0;
}

/* Where errors are what is played there are a hundred thousand of them: the log goes nowhere, what
 * tests say where it did.  A seed alone shows its log, and a sanitizer's build, which plays few. */
static inline void bt_hide_log(void)
{
    int   none, own;
    FILE *file;

    if (BT_SEEDS_SLOWER > 1 || bt_only_seed != 0) return;
    none = open("/dev/null", O_WRONLY | O_CLOEXEC);
    own  = dup(STDERR_FILENO);
    file = own < 0 ? NULL : fdopen(own, "w");
    NEED(none >= 0 && file != NULL && setvbuf(file, NULL, _IONBF, 0) == 0);
    stderr = file;
    NEED(dup2(none, STDERR_FILENO) >= 0);
    close(none);
}

/* noisy: see bt_hide_log(). */
static inline int bt_run_seeded_tests(const bt_test *tests, size_t n, bool noisy, int argc,
                                      char **argv)
{
    if (argc > 2) bt_only_seed = strtoull(argv[2], NULL, 10);
    if (noisy) bt_hide_log();
    atexit(bt_name_seed);
    signal(SIGABRT, bt_name_seed_and_die);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_set_death_callback(bt_name_seed);
#else
    signal(SIGSEGV, bt_name_seed_and_die);
#endif
    return bt_run_tests(tests, n, argc > 1 ? argv[1] : NULL);
}

#endif
