/* How long a supervisor waits before it starts something again, and how long a load will take. */
#include <string.h>

#include "cli/progress.h"
#include "cli/restart_wait.h"
#include "core/clock.h"
#include "tests/support/test.h"

#define S BT_NS_PER_S

static void restart_wait_doubles_and_gives_up(void)
{
    static const double WAITS[] = {0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30};

    bt_restart_wait b = {0};
    uint64_t        wait, none = 0;

    for (int i = 0; i < 10; i++) {
        uint64_t serving = 100 * S;

        EXPECT(bt_restart_wait_next(&b, 10, &serving, 101 * S, &wait));
        EXPECT_EQ(wait, (uint64_t)(WAITS[i] * 1e9 + 0.5));
    }
    EXPECT(!bt_restart_wait_next(&b, 10, &none, 999 * S,
                                 &wait)); /* what never served has not worked */
}

static void restart_wait_begins_anew_after_a_good_minute(void)
{
    bt_restart_wait b = {0};
    uint64_t        wait, serving = 0;

    for (int i = 0; i < 5; i++)
        EXPECT(bt_restart_wait_next(&b, 5, &serving, S, &wait));
    serving = 100 * S;
    EXPECT(bt_restart_wait_next(&b, 5, &serving, 160 * S, &wait));
    EXPECT_EQ(wait, 200 * BT_NS_PER_MS);
    for (int i = 1; i < 5; i++) /* the minute counts once, and what has not served since has none */
        EXPECT(bt_restart_wait_next(&b, 5, &serving, (160 + 99 * (uint64_t)i) * S, &wait));
    EXPECT_EQ(wait, 3200 * BT_NS_PER_MS);
    EXPECT(!bt_restart_wait_next(&b, 5, &serving, 999 * S, &wait));
}

static void progress_names_the_rank_that_will_be_last(void)
{
    bt_progress p;
    char        text[128];

    EXPECT_EQ(bt_progress_init(&p, 2), BT_OK);
    EXPECT(!bt_progress_take(&p, "2 1 2", S) && !bt_progress_take(&p, "x", S));
    EXPECT(bt_progress_take(&p, "0 0 1073741824", S));
    bt_progress_last_rank(&p, S, text, sizeof(text));
    EXPECT(strcmp(text, "rank 0: 0.00 of 1.00 GiB, no rate yet") == 0);
    EXPECT(bt_progress_take(&p, "1 0 1073741824", S));
    EXPECT(bt_progress_take(&p, "0 536870912 1073741824", 3 * S));
    EXPECT(bt_progress_take(&p, "1 268435456 1073741824", 3 * S));
    EXPECT(bt_progress_part(&p) == 0.375);
    bt_progress_last_rank(&p, 3 * S, text, sizeof(text));
    EXPECT(strcmp(text, "rank 1: 0.25 of 1.00 GiB, 6 s left") == 0);
    EXPECT(bt_progress_take(&p, "1 1073741824 1073741824", 4 * S));
    bt_progress_last_rank(&p, 4 * S, text, sizeof(text));
    EXPECT(strcmp(text, "rank 0: 0.50 of 1.00 GiB, 3 s left") == 0);
    bt_progress_reset(&p);
    EXPECT(bt_progress_part(&p) == 0);
    EXPECT(bt_progress_take(&p, "1 0 13568096", S) && bt_progress_take(&p, "0 0 13568096", S));
    bt_progress_last_rank(&p, S, text, sizeof(text));
    EXPECT(strcmp(text, "rank 0: 0 of 13 MiB, no rate yet") == 0);
    bt_progress_last_rank(&p, 9 * S, text, sizeof(text)); /* it stands still */
    EXPECT(strcmp(text, "rank 0: 0 of 13 MiB, no rate yet") == 0);
    EXPECT(bt_progress_take(&p, "0 1048576 13568096", 9 * S)); /* a rate, and none */
    bt_progress_last_rank(&p, 9 * S, text, sizeof(text));
    EXPECT(strcmp(text, "rank 1: 0 of 13 MiB, no rate yet") == 0);
    bt_progress_fini(&p);
}

static void progress_never_falls_when_a_rank_begins(void)
{
    bt_progress p;
    char        text[128];

    EXPECT_EQ(bt_progress_init(&p, 2), BT_OK);
    EXPECT(bt_progress_take(&p, "1 100 100", S));
    EXPECT(bt_progress_part(&p) == 0.5); /* not all of what is known to be read */
    bt_progress_last_rank(&p, S, text, sizeof(text));
    EXPECT(strcmp(text, "rank 0: not begun") == 0);
    EXPECT(bt_progress_take(&p, "0 0 300", 2 * S));
    EXPECT(bt_progress_part(&p) == 0.5);
    EXPECT(bt_progress_take(&p, "0 400 300", 3 * S)); /* never more than all */
    EXPECT(bt_progress_part(&p) == 1);
    bt_progress_fini(&p);
}

static const bt_test TESTS[] = {
    BT_TEST(restart_wait_doubles_and_gives_up),
    BT_TEST(restart_wait_begins_anew_after_a_good_minute),
    BT_TEST(progress_names_the_rank_that_will_be_last),
    BT_TEST(progress_never_falls_when_a_rank_begins),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }
