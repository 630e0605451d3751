/* A process has one watchdog, so each case is a child of its own; how it ended is the verdict. */
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/watchdog.h"
#include "tests/support/no_threads.h"
#include "tests/support/test.h"

#define LIMIT_NS (100 * BT_NS_PER_MS)
enum { BITES = 42, TEXT = 256, RACES = 30, LOOKS = 16 };

static int         g_say;    /* where a child writes what the watchdog said */
static atomic_bool g_bitten; /* it has said it */

static void bite(void *ctx, const char *where, uint64_t quiet_ns)
{
    char text[TEXT];
    int  n = snprintf(text, sizeof(text), "%s%s%s", (const char *)ctx, where,
                     quiet_ns >= LIMIT_NS && quiet_ns < 2 * LIMIT_NS ? "" : " at a wrong time");

    if (write(g_say, text, (size_t)n) != n) _exit(1);
    atomic_store(&g_bitten, true);
    bt_sleep_ns(LIMIT_NS / 2); /* time for the watched thread to come back */
    _exit(BITES);
}

/* Runs it in a child; returns the exit code, and what was said. */
static int run(void (*body)(void), bool stop_it, char said[TEXT])
{
    int     ends[2], status = 0;
    ssize_t n;
    pid_t   child;

    EXPECT(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        g_say = ends[1];
        body();
        _exit(0);
    }
    close(ends[1]);
    if (stop_it) {
        EXPECT(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
        bt_sleep_ns(3 * LIMIT_NS);
        kill(child, SIGCONT);
    }
    n       = read(ends[0], said, TEXT - 1);
    said[n] = '\0';
    close(ends[0]);
    EXPECT(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void start(void)
{
    static char dog[] = "stuck in ";

    if (bt_watchdog_start(LIMIT_NS, bite, dog) != BT_OK) _exit(1);
}

static void hang_in_a_layer(void)
{
    start();
    bt_watchdog_enter("step plan", -1);
    bt_watchdog_leave();
    bt_watchdog_enter("experts", 0);
    for (;;)
        pause();
}

static void come_back_too_late(void)
{
    start();
    bt_watchdog_enter("MPI_Finalize", -1);
    while (!atomic_load(&g_bitten))
        bt_sleep_ns(BT_NS_PER_MS);
    bt_watchdog_leave(); /* must not return: the process ends by the watchdog's word */
    _exit(1);
}

/* Calls that take longer than the limit together, and a long time outside of any. */
static void behave(void)
{
    start();
    bt_watchdog_set_limit(10 * LIMIT_NS);
    for (int i = 0; i < 6; i++) {
        bt_watchdog_enter("step plan", -1);
        bt_sleep_ns(3 * LIMIT_NS);
        bt_watchdog_leave();
    }
    bt_watchdog_set_limit(LIMIT_NS);
    bt_sleep_ns(4 * LIMIT_NS);
}

static void be_stopped(void)
{
    start();
    bt_watchdog_enter("step plan", -1);
    raise(SIGSTOP);
    bt_watchdog_leave();
}

static void get_more_time(void)
{
    start();
    bt_watchdog_set_limit(20 * LIMIT_NS);
    bt_watchdog_enter("MPI_Init", -1);
    bt_sleep_ns(2 * LIMIT_NS);
    bt_watchdog_leave();
}

/* The start of MPI may take long, what comes after it may not. */
static void get_less_time(void)
{
    static char dog[] = "stuck in ";

    alarm(20); /* a watchdog that looks too late */
    if (bt_watchdog_start(3600 * BT_NS_PER_S, bite, dog) != BT_OK) _exit(1);
    bt_sleep_ns(LIMIT_NS / 2); /* it looks, as often as an hour asks for */
    bt_watchdog_set_limit(LIMIT_NS);
    bt_watchdog_enter("step plan", -1);
    for (;;)
        pause();
}

static void get_no_thread(void)
{
    bool named;

    bt_test_have_no_threads();
    named = bt_watchdog_start(LIMIT_NS, bite, NULL) == BT_ERR_NO_MEMORY &&
            strstr(bt_error_text(), "raise `ulimit -u`") != NULL;
    _exit(named ? BITES : 1);
}

static void have_no_dog(void)
{
    bt_watchdog_enter("step plan", -1);
    bt_watchdog_leave();
}

/* ---- a call that comes back when its time is over */

static _Thread_local bool t_watched;
static atomic_uint        g_looks, g_steps;
static uint64_t           g_late_ns;

/* The linker puts this in its place. */
void __real_bt_sleep_ns(uint64_t ns);
void __wrap_bt_sleep_ns(uint64_t ns);
void __wrap_bt_sleep_ns(uint64_t ns)
{
    __real_bt_sleep_ns(ns);
    if (!t_watched) atomic_fetch_add(&g_looks, 1);
}

static void bite_who_stands_still(void *ctx, const char *where, uint64_t quiet_ns)
{
    unsigned steps = atomic_load(&g_steps);

    (void)ctx, (void)where, (void)quiet_ns;
    __real_bt_sleep_ns(BT_NS_PER_MS);
    _exit(atomic_load(&g_steps) == steps ? BITES : 1);
}

static void step_for(uint64_t ns)
{
    for (uint64_t end_ns = bt_now_ns() + ns; bt_now_ns() < end_ns;)
        atomic_fetch_add(&g_steps, 1);
}

/* Comes back as the watchdog wakes for its last look, or a little later. */
static void come_back_at_the_end(void)
{
    t_watched = true;
    if (bt_watchdog_start(LOOKS, bite_who_stands_still, NULL) != BT_OK) _exit(1);
    for (;;) {
        unsigned seen;

        bt_watchdog_enter("step plan", -1);
        for (seen = atomic_load(&g_looks); atomic_load(&g_looks) <= seen + LOOKS;) {
        }
        for (uint64_t end_ns = bt_now_ns() + g_late_ns; bt_now_ns() < end_ns;) {
        }
        bt_watchdog_leave();
        step_for(100 * BT_NS_PER_US);
    }
}

static void call_that_ends_at_the_limit_is_late_or_goes_on(void)
{
    char said[TEXT];

    for (int i = 0; i < RACES; i++) {
        g_late_ns = (uint64_t)i * 20;
        EXPECT_EQ(run(come_back_at_the_end, false, said), BITES);
    }
}

static void call_that_hangs_is_named(void)
{
    char said[TEXT];

    EXPECT_EQ(run(hang_in_a_layer, false, said), BITES);
    EXPECT(strcmp(said, "stuck in experts of layer 0") == 0);
}

static void without_a_thread_what_to_raise_is_said(void)
{
    char said[TEXT];

    EXPECT_EQ(run(get_no_thread, false, said), BITES);
}

static void limit_that_shrinks_holds_within_seconds(void)
{
    char said[TEXT];

    EXPECT_EQ(run(get_less_time, false, said), BITES);
    EXPECT(strcmp(said, "stuck in step plan") == 0);
}

static void call_that_ends_too_late_never_goes_on(void)
{
    char said[TEXT];

    EXPECT_EQ(run(come_back_too_late, false, said), BITES);
    EXPECT(strcmp(said, "stuck in MPI_Finalize") == 0);
}

static void calls_that_end_in_time_are_left_alone(void)
{
    char said[TEXT];

    EXPECT_EQ(run(behave, false, said), 0);
    EXPECT_EQ(run(get_more_time, false, said), 0);
    EXPECT_EQ(run(have_no_dog, false, said), 0);
}

static void time_while_stopped_does_not_count(void)
{
    char said[TEXT];

    EXPECT_EQ(run(be_stopped, true, said), 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(call_that_hangs_is_named),
        BT_TEST(without_a_thread_what_to_raise_is_said),
        BT_TEST(limit_that_shrinks_holds_within_seconds),
        BT_TEST(call_that_ends_too_late_never_goes_on),
        BT_TEST(call_that_ends_at_the_limit_is_late_or_goes_on),
        BT_TEST(calls_that_end_in_time_are_left_alone),
        BT_TEST(time_while_stopped_does_not_count),
    };

    return bt_run_tests(TESTS, sizeof(TESTS) / sizeof(TESTS[0]), argc > 1 ? argv[1] : NULL);
}
