#include "cli/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/supervisor_state.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/defaults.h"
#include "proto/secret.h"

/* All in all less than 15 s from a failure to the end of every process. */
#define LAUNCH_NS (8 * BT_NS_PER_S) /* then the ranks are told by a signal */
#define KILL_NS   (13 * BT_NS_PER_S)
#define LAST_NS   (3 * BT_NS_PER_S)
#define TICK_MS   100
#define QUIET_NS  (3 * BT_NS_PER_S) /* of the coordinator at least: it speaks every second */

static void begin_stop(supervisor *s)
{
    uint64_t now = bt_awake_ns();

    if (s->phase == STOPPING) return;
    /* Asked to end, the coordinator tells its ranks.  After a failure it ends open requests with
     * the reason, then itself; where there are none yet, nobody need wait. */
    s->coordinator_term_ns = s->phase == SERVING && !s->asked ? now + BT_SUPERVISOR_LEAVE_NS : now;
    s->launch_term_ns      = now;
    if (s->phase == SERVING && !s->asked)
        s->launch_term_ns += BT_SUPERVISOR_LEAVE_NS;
    else if (s->phase == SERVING && s->opt->join == NULL) /* else nobody else tells the ranks */
        s->launch_term_ns += LAUNCH_NS;
    s->fresh_term_ns = s->launch_term_ns;
    s->served        = s->phase == SERVING;
    s->stop_ns       = now;
    s->phase         = STOPPING;
    bt_child_kill(&s->client, SIGTERM);
    bt_child_kill(&s->asker, SIGKILL);
    bt_echo_clear_bar(&s->echo);
}

void bt_supervisor_fail(supervisor *s, const char *fmt, ...)
{
    va_list ap;

    if (s->failure[0] == '\0') {
        va_start(ap, fmt);
        vsnprintf(s->failure, sizeof(s->failure), fmt, ap);
        va_end(ap);
    }
    begin_stop(s);
}

bool bt_supervisor_ended_ranks(const supervisor *s)
{
    return s->asked && s->phase == STOPPING &&
           (!s->served || s->hurried || s->opt->join != NULL); /* nobody else tells them */
}

/* ---- the loop */

static void read_all(supervisor *s)
{
    bt_lines_read(&s->coordinator.report, bt_supervisor_on_announcement, s);
    bt_lines_read(&s->coordinator.err, bt_echo_line, &s->echo);
    bt_lines_read(&s->launch.err, bt_supervisor_on_rank_line, s);
    bt_lines_read(&s->fresh.err, bt_supervisor_on_fresh_line, s);
    bt_lines_read(&s->asker.err, bt_supervisor_host_line, s);
}

/* While it serves, SIGUSR1 drains, and so does SIGTERM unless --drain-s is 0.  While it drains,
 * SIGTERM ends it at once, as SIGINT always does. */
static bool drain(supervisor *s, int number)
{
    uint64_t most_ns = (uint64_t)(s->opt->server.drain_s * BT_NS_PER_S);

    if (s->phase == STOPPING) return number == SIGUSR1;
    if (s->phase != SERVING) return false;
    if (number != SIGUSR1 && (number != SIGTERM || most_ns == 0 || s->draining)) return false;
    if (s->draining) return true;
    s->draining = true;
    if (number == SIGTERM) s->drain_end_ns = bt_awake_ns() + most_ns;
    if (s->opt->join != NULL) { /* its ranks tell the coordinator, which lets them go */
        bt_child_kill(&s->launch, SIGUSR1);
    } else {
        if (number == SIGTERM) s->drain_end_ns += BT_SUPERVISOR_LEAVE_NS; /* it ends them itself */
        bt_child_tell(&s->coordinator, number == SIGUSR1 ? SIGUSR1 : SIGTERM,
                      bt_child_running(&s->fresh) && !s->fresh_serves);
    }
    return true;
}

static void on_signals(supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (drain(s, (int)info.ssi_signo)) continue;
        if (s->phase == STOPPING) { /* again: no more patience, for what was not yet told */
            if (s->coordinator_term_ns != 0) s->coordinator_term_ns = bt_awake_ns();
            if (s->launch_term_ns != 0) s->launch_term_ns = bt_awake_ns();
            s->hurried = true;
            continue;
        }
        s->asked = true;
        begin_stop(s);
    }
}

/* Or has not ended: its status is 0 until then. */
static bool ended_well(const bt_child *child)
{
    return WIFEXITED(child->status) && WEXITSTATUS(child->status) == 0;
}

static void on_client_end(supervisor *s)
{
    s->asked = true; /* the cell is well: end it in order */
    begin_stop(s);
    if (!ended_well(&s->client)) bt_supervisor_fail(s, "the answer did not come");
}

/* By our own signal, before it could say how it wants to end. */
static bool ended_as_asked(const supervisor *s, const bt_child *child)
{
    return s->asked && WIFSIGNALED(child->status) &&
           (WTERMSIG(child->status) == SIGTERM || WTERMSIG(child->status) == SIGINT);
}

/* ---- starting again */

BT_PRINTF(3, 4) static void start_again(supervisor *s, uint64_t *at_ns, const char *fmt, ...)
{
    uint64_t now = bt_awake_ns(), wait_ns;
    char     why[400];
    va_list  ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    bt_echo_clear_bar(&s->echo);
    if (!bt_restart_wait_next(&s->restart_wait, s->opt->restarts, &s->serving_ns, now, &wait_ns)) {
        bt_supervisor_fail(s, "%s; given up after %u restarts in a row", why, s->opt->restarts);
        return;
    }
    BT_WARN("%s; starting again in %.1f s, the %u. of at most %u times in a row", why,
            (double)wait_ns * 1e-9, s->restart_wait.n, s->opt->restarts);
    if (s->died_ns == 0) s->died_ns = now;
    s->n_restarts++;
    s->heard_ns = *at_ns = now + wait_ns; /* nothing is to be heard before */
}

/* Why: how the launcher itself ends says little of ranks that others have ended. */
static void tell_ranks_end(const supervisor *s, char *buf, size_t capacity)
{
    char text[128];

    if (s->rank_failed)
        snprintf(buf, capacity, "one has failed while the cell loaded");
    else if ((s->died_ns != 0 || s->lost) && ended_well(&s->launch))
        snprintf(buf, capacity, "the cell was lost, and those that were left were told to leave");
    else
        snprintf(buf, capacity, "baton-launch %s", bt_child_ending(&s->launch, text, sizeof(text)));
}

static void on_ranks_end(supervisor *s)
{
    char text[192];
    bool told = s->opt->join != NULL && ended_well(&s->launch) && !s->lost; /* as was wanted */

    tell_ranks_end(s, text, sizeof(text));
    if (told) {
        s->asked = true;
        begin_stop(s);
    } else if (!bt_supervisor_may_restart(s)) {
        bt_supervisor_fail(s, "the ranks have ended: %s", text);
    } else {
        bt_child_close(&s->launch);
        bt_progress_reset(&s->progress);
        s->n_ready        = 0;
        s->launch_term_ns = 0;
        s->fresh_at_ns    = 0; /* it comes anew as a whole */
        if (s->opt->join == NULL && !bt_child_running(&s->coordinator)) return; /* it comes first */
        s->phase = LOADING;
        start_again(s, &s->launch_at_ns, "the ranks have ended: %s", text);
    }
}

static void on_fresh_end(supervisor *s)
{
    char   text[160] = "baton-launch ";
    size_t n         = strlen(text);

    bt_child_ending(&s->fresh, text + n, sizeof(text) - n);
    bt_supervisor_fresh_ended(s, text);
}

static void on_coordinator_end(supervisor *s)
{
    char text[128];

    bt_child_ending(&s->coordinator, text, sizeof(text));
    if (s->hung_s != 0)
        snprintf(text, sizeof(text),
                 s->has_spoken ? "has not answered for %u s" : "has not started within %u s",
                 s->hung_s);
    s->hung_s     = 0;
    s->has_spoken = false;
    if (!bt_supervisor_may_restart(s) && !(s->phase == LOADING && s->opt->restarts != 0)) {
        bt_supervisor_fail(s, "the coordinator %s", text);
        return;
    }
    bt_child_close(&s->coordinator);
    s->phase = STARTING; /* its ranks wait for the next one, at the same address */
    start_again(s, &s->coordinator_at_ns, "the coordinator %s", text);
}

static bool is_silent(const supervisor *s, uint64_t since_ns)
{
    return bt_child_running(&s->coordinator) && bt_awake_ns() > s->spoke_ns + since_ns;
}

/* No other one will come. */
static void end_silent_coordinator(supervisor *s, const char *when)
{
    bt_supervisor_fail(s, "the coordinator has not answered for %llu s%s",
                       (unsigned long long)((bt_awake_ns() - s->spoke_ns) / BT_NS_PER_S), when);
    bt_child_kill(&s->coordinator, SIGKILL);
}

/* Starts the child when its time has come; ranks, when their hosts have been chosen too. */
static void start_when_due(supervisor *s, uint64_t *at_ns, const bt_child *child,
                           bt_status (*start)(supervisor *s), uint64_t now)
{
    bt_status st = BT_OK;
    bool      go = now >= *at_ns;

    if (*at_ns == 0 || bt_child_running(child)) return;
    if (child != &s->coordinator) BT_TRY(bt_supervisor_choose_hosts(s, at_ns, now, &go));
    if (!go) return;
    *at_ns = 0;
    bt_supervisor_hear(s, now);
    BT_TRY(start(s));
out:
    if (st == BT_OK) return;
    if (!bt_supervisor_may_restart(s) && (child != &s->coordinator || s->opt->restarts == 0)) {
        bt_supervisor_fail(s, "%s", bt_error_text());
    } else if (child == &s->fresh) {
        bt_supervisor_fresh_ended(s, bt_error_text());
    } else {
        char why[300];

        snprintf(why, sizeof(why), "%s", bt_error_text());
        start_again(s, at_ns, "%s", why);
    }
}

static void start_what_is_due(supervisor *s, uint64_t now)
{
    if (s->phase == STARTING)
        start_when_due(s, &s->coordinator_at_ns, &s->coordinator, bt_supervisor_start_coordinator,
                       now);
    if (s->phase == LOADING)
        start_when_due(s, &s->launch_at_ns, &s->launch, bt_supervisor_start_ranks, now);
    if (s->phase == SERVING && !s->draining)
        start_when_due(s, &s->fresh_at_ns, &s->fresh, bt_supervisor_start_fresh, now);
}

static void on_child_end(supervisor *s)
{
    read_all(s); /* what they said last */
    if (s->client.ended && s->phase == SERVING) on_client_end(s);
    if (s->phase == STOPPING) {
        /* When one side has gone, the other one has nothing to wait for. */
        uint64_t soon = bt_awake_ns() + BT_SUPERVISOR_LEAVE_NS;

        if (s->coordinator.ended && s->launch_term_ns > soon) s->launch_term_ns = soon;
        return;
    }
    if (s->asker.ended) bt_supervisor_hosts_asked(s);
    if (s->fresh.ended) on_fresh_end(s);
    if (s->launch.ended && bt_supervisor_take_fresh(s) && !s->coordinator.ended) return;
    if (s->draining && (s->coordinator.ended || s->launch.ended) && ended_well(&s->coordinator) &&
        ended_well(&s->launch)) {
        s->asked = true; /* nothing runs any more: the end that was asked for */
        begin_stop(s);
        return;
    }
    if (s->coordinator.ended) on_coordinator_end(s); /* which may be why the ranks ended */
    if (!s->launch.ended || s->phase == STOPPING) return;
    if (is_silent(s, s->quiet_ns / 2) && !bt_supervisor_may_restart(s))
        end_silent_coordinator(s, ", and its ranks have left"); /* they found that sooner than we */
    else
        on_ranks_end(s);
}

static void kill_at(bt_child *child, int sig, uint64_t *at_ns, uint64_t now)
{
    if (*at_ns == 0 || now < *at_ns) return;
    bt_child_kill(child, sig);
    *at_ns = 0; /* once: a second SIGTERM would cut their own clean-up short */
}

/* A launcher ends within 12 s of SIGTERM whatever its ranks do, unless it hangs itself. */
static void kill_what_stays(bt_child *child, uint64_t now)
{
    if (child->told_ns != 0 && now > child->told_ns + KILL_NS) bt_child_kill(child, SIGKILL);
}

/* How long the coordinator may be silent.  One that is started again is waited for no longer, since
 * ranks look for it. */
static uint64_t coordinator_limit_ns(const supervisor *s)
{
    if (s->has_spoken || (s->has_served && s->quiet_ns < s->opt->stall_ns)) return s->quiet_ns;
    return s->opt->stall_ns;
}

/* One that hangs answers neither clients nor ranks, and may do so for ever. */
static void watch_coordinator(supervisor *s, uint64_t now)
{
    uint64_t limit_ns = coordinator_limit_ns(s);

    if (!bt_child_running(&s->coordinator)) s->spoke_ns = now;
    if (s->hung_s != 0 || now <= s->spoke_ns + limit_ns) return;
    s->hung_s = (uint32_t)(limit_ns / BT_NS_PER_S);
    bt_child_kill(&s->coordinator, SIGKILL);
}

/* Nothing has come for too long before the cell was ready. */
static void on_stall(supervisor *s, uint64_t now)
{
    char text[640], last[480] = "the last is ";

    if (!bt_supervisor_silent_host(s, last, sizeof(last)))
        bt_progress_last_rank(&s->progress, now, last + strlen(last), sizeof(last) - strlen(last));
    snprintf(text, sizeof(text), "no sign of life for %llu s while the ranks load; %s",
             (unsigned long long)(s->opt->stall_ns / BT_NS_PER_S), last);
    if (!bt_supervisor_may_restart(s) || !bt_child_running(&s->launch)) {
        bt_supervisor_fail(s, "not ready: %s", text);
        return;
    }
    BT_WARN("%s: ending them", text);
    s->heard_ns       = now;
    s->launch_term_ns = now;
}

/* The drain should be over, and the coordinator have let its ranks go. */
static void on_drain_end(supervisor *s, uint64_t now)
{
    s->asked = true;
    begin_stop(s);
    if (!is_silent(s, QUIET_NS)) return;
    end_silent_coordinator(s, " while it drained");
    s->launch_term_ns = s->fresh_term_ns = now; /* nobody else tells them */
}

static void on_tick(supervisor *s)
{
    uint64_t now = bt_awake_ns();

    if (s->phase == STOPPING) {
        kill_at(&s->coordinator, SIGINT, &s->coordinator_term_ns, now); /* SIGTERM would drain */
        kill_at(&s->launch, SIGTERM, &s->launch_term_ns, now);
        kill_at(&s->fresh, SIGTERM, &s->fresh_term_ns, now);
        if (now - s->stop_ns > KILL_NS) {
            bt_child_kill(&s->coordinator, SIGKILL);
            bt_child_kill(&s->launch, SIGKILL);
            bt_child_kill(&s->fresh, SIGKILL);
            bt_child_kill(&s->client, SIGKILL);
        }
        return;
    }
    if (bt_child_running(&s->launch)) kill_at(&s->launch, SIGTERM, &s->launch_term_ns, now);
    if (bt_child_running(&s->fresh)) kill_at(&s->fresh, SIGTERM, &s->fresh_term_ns, now);
    kill_what_stays(&s->launch, now);
    kill_what_stays(&s->fresh, now);
    start_what_is_due(s, now);
    watch_coordinator(s, now);
    bt_supervisor_watch_fresh(s, now);
    bt_supervisor_watch_hosts(s, now);
    if (s->phase == LOADING && now > s->heard_ns + s->opt->stall_ns) on_stall(s, now);
    if (s->drain_end_ns != 0 && now > s->drain_end_ns && s->phase != STOPPING) on_drain_end(s, now);
}

static bool all_ended(const supervisor *s)
{
    return !bt_child_running(&s->coordinator) && !bt_child_running(&s->launch) &&
           !bt_child_running(&s->fresh) && !bt_child_running(&s->client);
}

static void loop(supervisor *s)
{
    bt_child *children[] = {&s->coordinator, &s->launch, &s->fresh, &s->client, &s->asker};

    while (!(s->phase == STOPPING && all_ended(s))) {
        struct pollfd fds[] = {
            {s->signal_fd,             POLLIN, 0}, /* a negative fd is passed over */
            {s->coordinator.report.fd, POLLIN, 0},
            {s->coordinator.err.fd,    POLLIN, 0},
            {s->launch.err.fd,         POLLIN, 0},
            {s->fresh.err.fd,          POLLIN, 0},
            {s->asker.err.fd,          POLLIN, 0},
        };

        poll(fds, sizeof(fds) / sizeof(fds[0]), TICK_MS);
        on_signals(s);
        read_all(s);
        if (bt_child_collect(children, sizeof(children) / sizeof(children[0]))) on_child_end(s);
        on_tick(s);
        bt_outlet_push(&s->out);
    }
}

/* ---- the end */

/* Where nobody reads it the end does not wait for that. */
static void say(const char *intro, const char *what)
{
    char line[1024];
    int  n = snprintf(line, sizeof(line), "%s: %s%s\n", program_invocation_short_name, intro, what);

    bt_log_pass_on(line, n < (int)sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

/* Ranks that were slow to leave after all had been served, as on a machine that is short of time:
 * our own signal has ended them. */
static bool left_late(const supervisor *s)
{
    return s->asked && s->launch_term_ns == 0 && WIFEXITED(s->launch.status);
}

static int verdict(supervisor *s)
{
    char text[128];

    if (s->failure[0] == '\0' && !ended_well(&s->coordinator) &&
        !ended_as_asked(s, &s->coordinator) &&
        (WIFSIGNALED(s->coordinator.status) || !bt_supervisor_ended_ranks(s))) {
        bt_supervisor_fail(s, "the coordinator %s",
                           bt_child_ending(&s->coordinator, text, sizeof(text)));
    }
    if (s->failure[0] == '\0' && s->served && !bt_supervisor_ended_ranks(s) &&
        !ended_well(&s->launch)) {
        bt_child_ending(&s->launch, text, sizeof(text));
        if (left_late(s))
            BT_WARN("the ranks had not left in time, and were told by a signal: baton-launch %s",
                    text);
        else
            bt_supervisor_fail(s, "at the end baton-launch %s", text);
    }
    if (s->failure[0] == '\0') return EXIT_SUCCESS;
    say("", s->failure);
    if (s->echo.first_error[0] != '\0') say("first error of a rank: ", s->echo.first_error);
    return s->client.ended && !ended_well(&s->client) && WIFEXITED(s->client.status)
               ? WEXITSTATUS(s->client.status)
               : EXIT_FAILURE;
}

static uint64_t quiet_ns(const bt_cell_options *cell)
{
    const char *text = bt_passed_value(&cell->worker, "--coordinator-timeout-s");
    uint64_t    ns =
        (text != NULL ? strtoul(text, NULL, 10) : BT_DEFAULT_COORDINATOR_TIMEOUT_S) * BT_NS_PER_S;

    return ns > QUIET_NS ? ns : QUIET_NS;
}

static bt_status prepare(supervisor *s, const bt_run_options *opt)
{
    bt_status        st = BT_OK;
    sigset_t         signals;
    struct sigaction hangup;

    s->opt = opt;
    bt_child_init(&s->coordinator);
    bt_child_init(&s->launch);
    bt_child_init(&s->fresh);
    bt_child_init(&s->client);
    bt_child_init(&s->asker);
    bt_echo_init(&s->echo, opt->log);
    bt_outlet_open(&s->out, opt->chat != NULL ? STDERR_FILENO : STDOUT_FILENO);
    s->heard_ns = s->start_ns = bt_awake_ns();
    s->quiet_ns               = quiet_ns(&opt->cell);
    s->port                   = opt->port;
    BT_TRY(bt_supervisor_find_hosts(s));
    BT_TRY(bt_progress_init(&s->progress, bt_cell_n_ranks(&opt->cell)));
    s->accounts = bt_calloc(bt_cell_n_ranks(&opt->cell), sizeof(*s->accounts));
    BT_REQUIRE(s->accounts != NULL, BT_ERR_NO_MEMORY, "%u ranks", bt_cell_n_ranks(&opt->cell));
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* not under nohup */
        sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    s->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    BT_REQUIRE(s->signal_fd >= 0, BT_ERR_IO, "signalfd: %s", strerror(errno));
    bt_child_adopt();
    BT_TRY(bt_secret_provide()); /* coordinator and ranks inherit it */
    if (opt->join != NULL) {
        s->phase        = LOADING;
        s->launch_at_ns = s->start_ns;
        snprintf(s->control, sizeof(s->control), "%s", opt->join);
    } else {
        BT_TRY(bt_supervisor_start_coordinator(s));
        s->spoke_ns = bt_awake_ns();
    }
out:
    return st;
}

int bt_supervisor_run(const bt_run_options *opt)
{
    supervisor s    = {.signal_fd = -1, .hosts = {.map_fd = -1}, .out = {.fd = -1}};
    int        code = EXIT_FAILURE;

    if (prepare(&s, opt) == BT_OK) {
        loop(&s);
        bt_child_end_all(LAST_NS);
        read_all(&s);
        if (opt->chat != NULL) bt_account_print(&opt->cell, s.accounts);
        code = verdict(&s);
    }
    bt_echo_clear_bar(&s.echo);
    bt_child_close(&s.coordinator);
    bt_child_close(&s.launch);
    bt_child_close(&s.fresh);
    bt_child_close(&s.client);
    bt_supervisor_forget_hosts(&s);
    bt_outlet_close(&s.out);
    if (s.signal_fd >= 0) close(s.signal_fd);
    bt_progress_fini(&s.progress);
    bt_free(s.accounts);
    return code;
}
