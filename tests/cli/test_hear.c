/* What a supervisor makes of its coordinator's lines. */
#include <unistd.h>

#include "cli/supervisor_state.h"
#include "tests/support/test.h"

void bt_supervisor_fail(supervisor *s, const char *fmt, ...)
{
    (void)s, (void)fmt;
    EXPECT(false);
}
bool bt_supervisor_ended_ranks(const supervisor *s)
{
    (void)s;
    return false;
}
bt_status bt_supervisor_start_client(supervisor *s)
{
    (void)s;
    return BT_OK;
}

/* Others have cells under this coordinator too: baton run --coordinator. */
static void hear_of_cells_of_others_changes_nothing(void)
{
    static const char *const NAMES[] = {"", "mine"};

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        bt_run_options opt = {.renew = true, .restarts = 3};
        supervisor     s   = {.opt = &opt, .phase = LOADING, .has_served = true};
        char           line[64];

        s.launch.pid = getpid();
        snprintf(s.launch_name, sizeof(s.launch_name), "%s", NAMES[i]);
        EXPECT_EQ(bt_progress_init(&s.progress, 1), BT_OK);
        bt_supervisor_on_announcement(&s, "progress 0 5 10 theirs");
        EXPECT_EQ(s.progress.ranks[0].done_bytes, 0);
        snprintf(line, sizeof(line), "progress 0 5 10%s%s", i > 0 ? " " : "", NAMES[i]);
        bt_supervisor_on_announcement(&s, line);
        EXPECT_EQ(s.progress.ranks[0].done_bytes, 5);
        bt_supervisor_on_announcement(&s, "serving theirs");
        EXPECT_EQ(s.phase, LOADING);
        snprintf(line, sizeof(line), "serving %s", NAMES[i]);
        bt_supervisor_on_announcement(&s, line);
        EXPECT_EQ(s.phase, SERVING);
        bt_supervisor_on_announcement(&s, "worn theirs");
        EXPECT_EQ(s.fresh_at_ns, 0);
        snprintf(line, sizeof(line), "worn %s", NAMES[i]);
        bt_supervisor_on_announcement(&s, line);
        EXPECT(s.fresh_at_ns != 0);
        bt_progress_fini(&s.progress);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {BT_TEST(hear_of_cells_of_others_changes_nothing)};

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
