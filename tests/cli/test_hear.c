/* What a supervisor makes of its coordinator's lines. */
#include <signal.h>
#include <unistd.h>

#include "cli/supervisor_state.h"
#include "core/clock.h"
#include "tests/support/test.h"

static int  g_n_fails;
static bool g_ended_ranks;

void bt_supervisor_fail(supervisor *s, const char *fmt, ...)
{
    (void)s, (void)fmt;
    g_n_fails++;
}
bool bt_supervisor_ended_ranks(const supervisor *s)
{
    (void)s;
    return g_ended_ranks;
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
        bt_supervisor_on_announcement(&s, "lost theirs");
        EXPECT(s.died_ns == 0 && s.launch_term_ns == 0);
        snprintf(line, sizeof(line), "worn %s", NAMES[i]);
        bt_supervisor_on_announcement(&s, line);
        EXPECT(s.fresh_at_ns != 0);
        bt_progress_fini(&s.progress);
    }
    EXPECT_EQ(g_n_fails, 0);
}

/* A cell that serves, of two ranks, with the programs that serve it. */
static supervisor serving(const bt_run_options *opt)
{
    supervisor s = {.opt = opt, .cell = opt->cell, .phase = SERVING, .has_served = true};

    s.launch_heard = true;
    s.launch.pid   = getpid();
    snprintf(s.launch_name, sizeof(s.launch_name), "mine");
    bt_child_init(&s.fresh);
    bt_echo_init(&s.echo, BT_LOG_ERROR);
    return s;
}

static void hear_that_the_cell_is_lost_restarts_it(void)
{
    bt_run_options opt = {.restarts = 3};
    supervisor     s   = serving(&opt);
    uint64_t       died, term;

    bt_supervisor_on_announcement(&s, "lost mine: rank 1 has died");
    died = s.died_ns;
    term = s.launch_term_ns;
    EXPECT(died != 0 && term > died);
    bt_supervisor_on_announcement(&s, "lost mine");
    EXPECT(s.died_ns == died && s.launch_term_ns == term); /* counted from the first */
    s          = serving(&opt);
    s.draining = true;
    bt_supervisor_on_announcement(&s, "lost mine");
    EXPECT(s.died_ns == 0 && s.launch_term_ns == 0); /* it ends anyway */
    opt.restarts = 0;
    s            = serving(&opt);
    bt_supervisor_on_announcement(&s, "lost mine");
    EXPECT(s.died_ns == 0 && s.launch_term_ns == 0);
}

/* A coordinator that stood still hears of the end of ranks when others have been started in their
 * place, of which it has not heard yet. */
static void hear_late_that_earlier_ranks_are_lost_ends_none(void)
{
    static const char *const SIGNS[] = {"progress 0 1 10 mine", "serving mine"};
    bt_run_options           opt     = {.restarts = 3};

    for (size_t i = 0; i < sizeof(SIGNS) / sizeof(SIGNS[0]); i++) {
        supervisor s = serving(&opt);

        s.phase        = LOADING;
        s.launch_heard = false;
        EXPECT_EQ(bt_progress_init(&s.progress, 1), BT_OK);
        bt_supervisor_on_announcement(&s, "lost mine: no rank is left");
        EXPECT(s.died_ns == 0 && s.launch_term_ns == 0);
        bt_supervisor_on_announcement(&s, SIGNS[i]);
        bt_supervisor_on_announcement(&s, "lost mine: no rank is left");
        EXPECT(s.died_ns != 0 && s.launch_term_ns > s.died_ns);
        bt_progress_fini(&s.progress);
    }
}

/* Under another's coordinator its ranks alone know, and whether it was lost or drained. */
static void hear_that_a_cell_that_joins_is_lost_restarts_it(void)
{
    bt_run_options opt = {.restarts = 3, .join = "127.0.0.1:9"};
    supervisor     s   = serving(&opt);

    bt_supervisor_on_rank_line(&s, "rank=1 - told to leave: the cell has drained");
    EXPECT(!s.lost && s.died_ns == 0);
    bt_supervisor_on_rank_line(&s, "rank=1 - told to leave: the cell has failed: no spare");
    EXPECT(s.lost && s.died_ns != 0 && s.launch_term_ns > s.died_ns);
    opt.restarts = 0;
    s            = serving(&opt);
    bt_supervisor_on_rank_line(&s, "rank=1 - told to leave: the cell has failed: no spare");
    EXPECT(s.lost && s.launch_term_ns == 0);
    opt.join = NULL; /* its coordinator says so */
    s        = serving(&opt);
    bt_supervisor_on_rank_line(&s, "rank=1 - told to leave: the cell has failed: no spare");
    EXPECT(!s.lost);
}

static void hear_of_a_failure_ends_what_is_not_restarted(void)
{
    bt_run_options opt = {.restarts = 3};
    supervisor     s   = serving(&opt);

    g_n_fails = 0;
    bt_supervisor_on_announcement(&s, "failed rank 1 has died");
    EXPECT_EQ(g_n_fails, 0);
    opt.restarts  = 0;
    g_ended_ranks = true;
    bt_supervisor_on_announcement(&s, "failed rank 1 has died"); /* by our own word */
    EXPECT_EQ(g_n_fails, 0);
    g_ended_ranks = false;
    bt_supervisor_on_announcement(&s, "failed rank 1 has died");
    EXPECT_EQ(g_n_fails, 1);
}

/* The ranks outlive a coordinator: they attach to the next one, at the same ports. */
static void hear_of_another_coordinator_keeps_the_ranks(void)
{
    bt_run_options opt = {.restarts = 3};
    supervisor     s   = serving(&opt);

    bt_supervisor_on_announcement(&s, "alive");
    EXPECT(s.has_spoken && s.heard_ns == 0);
    s.phase = STARTING;
    bt_supervisor_on_announcement(&s, "control 127.0.0.1:9");
    EXPECT(s.phase == LOADING && s.launch_at_ns == 0);
    EXPECT(strcmp(s.control, "127.0.0.1:9") == 0);
    s.died_ns = 1;
    bt_supervisor_on_announcement(&s, "ready 127.0.0.1:4711");
    EXPECT(s.phase == SERVING && s.port == 4711 && s.serving_ns != 0 && s.died_ns == 0);
    EXPECT(strcmp(s.address, "127.0.0.1:4711") == 0);
    s.phase        = STARTING;
    s.launch.ended = true;
    bt_supervisor_on_announcement(&s, "control 127.0.0.1:9");
    EXPECT(s.launch_at_ns != 0 && s.heard_ns != 0 && s.spoke_ns >= s.heard_ns);
    s.heard_ns = UINT64_MAX; /* what is only to be started has time */
    bt_supervisor_hear(&s, 7);
    EXPECT(s.heard_ns == UINT64_MAX);
    s            = serving(&opt);
    s.phase      = LOADING;
    s.has_served = false;
    bt_supervisor_on_announcement(&s, "serving mine"); /* "ready" comes, with an address */
    EXPECT_EQ(s.phase, LOADING);
}

/* Ranks that would wait for one that has died while it loads are ended, where mpirun does not. */
static void hear_that_a_rank_failed_ends_those_that_load(void)
{
    static const char LINE[] =
        "2026-01-01 00:00:00.000 E rank=1 - launch/rank.c:71 the worker died: "
        "baton-worker (pid 9) was ended by signal 9 (Killed)";
    static const char *const OTHERS[] = {
        "I rank=1 - launch/rank.c:60 rank 1 runs", "I rank=1 - launch/main.c:9 2 ranks",
        "I rank=1 - worker/main.c:1 ranks have failed, was ended by signal 9, with exit code 1"};
    bt_account accounts[2] = {0};

    for (int i = 0; i < 4; i++) {
        bt_run_options opt = {
            .cell = {.n_both = 2, .replace = i != 1}
        };
        supervisor s = serving(&opt);

        s.accounts          = accounts;
        s.phase             = i == 2 ? SERVING : LOADING;
        s.launch_has_served = i == 3;
        for (size_t k = 0; k < sizeof(OTHERS) / sizeof(OTHERS[0]); k++)
            bt_supervisor_on_rank_line(&s, OTHERS[k]);
        EXPECT(s.launch_term_ns == 0 && s.heard_ns != 0);
        bt_supervisor_on_rank_line(&s, LINE);
        EXPECT_EQ(s.launch_term_ns != 0, i == 0);
        EXPECT_EQ(s.rank_failed, i == 0);
    }
}

static void hear_of_the_last_rank_makes_a_cell_that_joins_serve(void)
{
    bt_account     accounts[2] = {0};
    bt_run_options opt         = {.cell = {.n_both = 2}, .join = "127.0.0.1:9"};
    supervisor     s           = serving(&opt);

    s.accounts = accounts;
    s.phase    = LOADING;
    bt_supervisor_on_rank_line(&s, "I rank=0 - worker/main.c:1 ready: rank 0 serves");
    EXPECT_EQ(s.phase, LOADING);
    bt_supervisor_on_rank_line(&s, "I rank=1 - worker/main.c:1 ready: rank 1 serves");
    EXPECT_EQ(s.phase, SERVING);
}

/* The fresh cell beside one that lacks ranks. */
static void hear_of_a_fresh_cell(void)
{
    bt_run_options opt   = {.renew = true, .restarts = 3, .stall_ns = BT_NS_PER_S};
    supervisor     s     = serving(&opt);
    uint64_t       begun = bt_awake_ns(), term;

    EXPECT_EQ(bt_progress_init(&s.progress, 1), BT_OK);
    bt_supervisor_renew(&s);
    bt_supervisor_renew(&s); /* one at a time */
    EXPECT(s.n_renewed == 1 && s.fresh_at_ns > begun);
    s.fresh_at_ns = 0;
    s.fresh.pid   = getpid();
    bt_supervisor_on_announcement(&s, "lost renewed-1");
    term = s.fresh_term_ns;
    EXPECT(term > s.spoke_ns); /* its ranks have been told, and leave by themselves */
    bt_supervisor_on_announcement(&s, "lost renewed-1: again");
    EXPECT_EQ(s.fresh_term_ns, term);
    s.fresh_term_ns = 0;
    s.fresh_serves  = true;
    bt_supervisor_watch_fresh(&s, bt_now_ns() + 9 * BT_NS_PER_S); /* it need not speak any more */
    EXPECT_EQ(s.fresh_term_ns, 0);
    bt_supervisor_on_announcement(&s, "worn renewed-1");
    s.fresh_term_ns = 5;
    s.launch.ended  = true;
    s.launch_heard  = false;
    EXPECT(bt_supervisor_take_fresh(&s));
    EXPECT(s.launch_heard);
    EXPECT(strcmp(s.launch_name, "renewed-1") == 0 && s.launch_term_ns == 5);
    EXPECT(s.fresh_at_ns != 0 && s.n_renewed == 2); /* it lacks some too */
    bt_progress_fini(&s.progress);
}

static volatile sig_atomic_t g_n_drains;

static void on_drain(int number)
{
    (void)number;
    g_n_drains++;
}

static void hear_of_a_worn_cell_that_ends_or_comes_starts_none(void)
{
    bt_run_options opt = {.renew = true, .restarts = 3};
    supervisor     s   = serving(&opt);

    s.draining = true;
    bt_supervisor_on_announcement(&s, "worn mine");
    s.draining = false;
    s.phase    = LOADING;
    bt_supervisor_on_announcement(&s, "worn mine");
    s.phase   = SERVING;
    opt.renew = false;
    bt_supervisor_on_announcement(&s, "worn mine");
    EXPECT(s.fresh_at_ns == 0 && s.n_renewed == 0);
    EXPECT(!bt_supervisor_take_fresh(&s));
    EXPECT_EQ(s.launch.pid, getpid());
}

/* Its ranks load beside the old cell's, which drains when they serve.  It may hang, or not come. */
static void hear_of_a_fresh_cell_that_hangs(void)
{
    bt_run_options opt = {.renew = true, .restarts = 3, .stall_ns = 2 * BT_NS_PER_S};
    supervisor     s   = serving(&opt);

    signal(SIGUSR1, on_drain);
    bt_supervisor_renew(&s);
    s.fresh.pid = getpid();
    bt_supervisor_on_fresh_line(&s, "a sign of life");
    EXPECT(s.heard_ns != 0);
    s.heard_ns = 100 * BT_NS_PER_S;
    bt_supervisor_watch_fresh(&s, 101 * BT_NS_PER_S);
    EXPECT_EQ(s.fresh_term_ns, 0);
    bt_supervisor_watch_fresh(&s, 103 * BT_NS_PER_S);
    EXPECT_EQ(s.fresh_term_ns, 103 * BT_NS_PER_S);
    bt_supervisor_watch_fresh(&s, 104 * BT_NS_PER_S); /* once */
    EXPECT_EQ(s.fresh_term_ns, 103 * BT_NS_PER_S);
    EXPECT_EQ(g_n_drains, 0);
    bt_supervisor_on_announcement(&s, "serving renewed-1"); /* it does come */
    EXPECT(s.fresh_serves && g_n_drains == 1 && s.phase == SERVING);
    s.fresh_worn = true;
    bt_supervisor_fresh_ended(&s, "so");
    EXPECT(!s.fresh_serves && !s.fresh_worn && s.fresh_term_ns == 0);
    EXPECT(!bt_child_running(&s.fresh) && bt_child_running(&s.launch));
}

/* The old one goes on with one that has not come.  Once one has served it drains, and takes nothing
 * new: another one comes after each that ends or does not come, unless that goes on and on. */
static void hear_of_a_fresh_cell_that_ends_first(void)
{
    enum { NONE_SERVES = 1 << 3 };
    static const uint32_t SERVE[] = {7, 1, 5, NONE_SERVES}; /* a bit for each that does */

    signal(SIGUSR1, on_drain);
    for (size_t i = 0; i < sizeof(SERVE) / sizeof(SERVE[0]); i++) {
        bt_run_options opt = {.renew = true, .restarts = 3};
        supervisor     s   = serving(&opt);

        s.serving_ns = 1; /* long ago */
        bt_supervisor_renew(&s);
        for (uint32_t k = 0; k < opt.restarts && s.fresh_at_ns != 0; k++) {
            EXPECT_EQ(s.n_renewed, 1 + k);
            s.fresh_at_ns = 0;
            s.fresh.pid   = getpid();
            if (SERVE[i] >> k & 1) bt_supervisor_fresh_serves(&s);
            bt_supervisor_fresh_ended(&s, "so");
            EXPECT(!bt_child_running(&s.fresh));
        }
        EXPECT_EQ(s.n_renewed, SERVE[i] == NONE_SERVES ? 1 : 3);
        EXPECT_EQ(s.fresh_at_ns, 0);
    }
}

/* However long the last good one had served, those that do not come after it are in a row; where
 * the old cell goes on, a good minute ends the row. */
static void hear_of_fresh_cells_that_never_come_gives_up(void)
{
    for (int drains = 0; drains < 2; drains++) {
        bt_run_options opt = {.renew = true, .restarts = 3};
        supervisor     s   = serving(&opt);

        s.serving_ns    = 1; /* long ago */
        s.launch_drains = drains;
        for (uint32_t k = 0; k < 9; k++) {
            if (!drains || k == 0) bt_supervisor_renew(&s);
            if (s.fresh_at_ns == 0) break;
            s.fresh_at_ns = 0;
            s.fresh.pid   = getpid();
            bt_supervisor_fresh_ended(&s, "so");
            if (!drains) EXPECT(s.serving_ns > 1);
            if (!drains) s.serving_ns = 1; /* and so it went on */
        }
        EXPECT_EQ(s.n_renewed, drains ? 3 : 9);
    }
}

/* The old one ends: because it has drained, or before the fresh one serves. */
static void hear_of_a_fresh_cell_that_takes_over(void)
{
    for (int serves = 0; serves < 2; serves++) {
        bt_run_options opt = {.renew = true, .restarts = 3};
        supervisor     s   = serving(&opt);

        EXPECT_EQ(bt_progress_init(&s.progress, 1), BT_OK);
        EXPECT(bt_progress_take(&s.progress, "0 5 10", 1));
        bt_supervisor_renew(&s);
        s.fresh_at_ns       = 0;
        s.fresh.pid         = getpid();
        s.fresh_serves      = serves;
        s.fresh_term_ns     = 7;
        s.launch_has_served = !serves;
        s.launch.ended      = true;
        s.died_ns           = serves ? 5 : 0;
        s.fresh_worn        = !serves; /* of one that does not serve nothing is made */
        EXPECT(bt_supervisor_take_fresh(&s));
        EXPECT(bt_child_running(&s.launch) && !bt_child_running(&s.fresh));
        EXPECT(s.launch_term_ns == 7 && s.fresh_term_ns == 0);
        EXPECT(s.launch_has_served == serves && !s.fresh_serves && !s.fresh_worn);
        EXPECT_EQ(s.phase, serves ? SERVING : LOADING);
        EXPECT_EQ(s.died_ns == 0, serves);
        EXPECT_EQ(s.serving_ns != 0, serves);
        EXPECT_EQ(s.heard_ns != 0, !serves);
        EXPECT(s.fresh_at_ns == 0 && bt_progress_part(&s.progress) == 0);
        bt_progress_fini(&s.progress);
    }
}

/* Both the coordinator and the old cell have died: what follows needs a coordinator first. */
static void hear_of_a_fresh_cell_without_a_coordinator_starts_one(void)
{
    bt_run_options opt = {.renew = true, .restarts = 3};
    supervisor     s   = serving(&opt);

    EXPECT_EQ(bt_progress_init(&s.progress, 1), BT_OK);
    s.phase     = STARTING;
    s.fresh.pid = getpid();
    EXPECT(bt_supervisor_take_fresh(&s));
    EXPECT_EQ(s.phase, STARTING);
    EXPECT(s.died_ns != 0 && s.heard_ns != 0);
    bt_progress_fini(&s.progress);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(hear_of_cells_of_others_changes_nothing),
        BT_TEST(hear_that_the_cell_is_lost_restarts_it),
        BT_TEST(hear_late_that_earlier_ranks_are_lost_ends_none),
        BT_TEST(hear_that_a_cell_that_joins_is_lost_restarts_it),
        BT_TEST(hear_of_a_failure_ends_what_is_not_restarted),
        BT_TEST(hear_of_another_coordinator_keeps_the_ranks),
        BT_TEST(hear_that_a_rank_failed_ends_those_that_load),
        BT_TEST(hear_of_the_last_rank_makes_a_cell_that_joins_serve),
        BT_TEST(hear_of_a_fresh_cell),
        BT_TEST(hear_of_a_worn_cell_that_ends_or_comes_starts_none),
        BT_TEST(hear_of_a_fresh_cell_that_hangs),
        BT_TEST(hear_of_a_fresh_cell_that_ends_first),
        BT_TEST(hear_of_fresh_cells_that_never_come_gives_up),
        BT_TEST(hear_of_a_fresh_cell_that_takes_over),
        BT_TEST(hear_of_a_fresh_cell_without_a_coordinator_starts_one),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
