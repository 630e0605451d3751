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

#include "cli/account.h"
#include "cli/child.h"
#include "cli/relay.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/secret.h"

/* All in all less than 15 s from a failure to the end of every process. */
#define LEAVE_NS  (5 * BT_NS_PER_S) /* for what ends by itself when its peer has gone */
#define LAUNCH_NS (8 * BT_NS_PER_S) /* then the ranks are told by a signal */
#define KILL_NS   (13 * BT_NS_PER_S)
#define LAST_NS   (3 * BT_NS_PER_S)
#define TICK_MS   100

typedef enum { STARTING, LOADING, SERVING, STOPPING } phase;

typedef struct {
    const bt_run_options *opt;
    phase                 phase;
    bt_relay              relay;
    bt_child              coordinator, launch, client;
    int                   signal_fd;
    char                  address[128];
    uint64_t             *done, *total; /* [n_ranks] bytes of weights */
    bt_account           *accounts;     /* [n_ranks] */
    uint64_t              heard_ns;     /* when anything came */
    uint64_t              start_ns, stop_ns;
    uint64_t              coordinator_term_ns, launch_term_ns; /* while stopping */
    bool                  asked;                               /* the end was asked for */
    bool                  draining;  /* and the coordinator ends when nothing runs any more */
    char                  http[128]; /* where its HTTP port is; "" */
    bool                  hurried;   /* asked again: the ranks were ended by a signal at our word */
    bool                  served;    /* the cell was ready when it stopped */
    char                  failure[700]; /* the first one; "" so far */
} supervisor;

static void begin_stop(supervisor *s)
{
    uint64_t now = bt_now_ns();

    if (s->phase == STOPPING) return;
    /* Asked to end, the coordinator tells its ranks.  After a failure it ends open requests with
     * the reason, then itself; where there are none yet, nobody need wait. */
    s->coordinator_term_ns = s->phase == SERVING && !s->asked ? now + LEAVE_NS : now;
    s->launch_term_ns      = now;
    if (s->phase == SERVING) s->launch_term_ns += s->asked ? LAUNCH_NS : LEAVE_NS;
    s->served  = s->phase == SERVING;
    s->stop_ns = now;
    s->phase   = STOPPING;
    bt_child_kill(&s->client, SIGTERM);
    bt_relay_clear_bar(&s->relay);
}

BT_PRINTF(2, 3) static void fail(supervisor *s, const char *fmt, ...)
{
    va_list ap;

    if (s->failure[0] == '\0') {
        va_start(ap, fmt);
        vsnprintf(s->failure, sizeof(s->failure), fmt, ap);
        va_end(ap);
    }
    begin_stop(s);
}

/* ---- children */

static bt_status start_coordinator(supervisor *s)
{
    bt_status             st  = BT_OK;
    const bt_run_options *opt = s->opt;
    char                  path[PATH_MAX], port[16];
    char                 *argv[20 + BT_RUN_COORDINATOR_ARGS];
    size_t                n = 0;

    BT_TRY(bt_program_path("baton-coordinator", path));
    snprintf(port, sizeof(port), "%u", opt->port);
#define ADD(text) argv[n++] = (char *)(text)
    ADD(path);
    ADD("--model");
    ADD(opt->cell.model);
    ADD("--host");
    ADD(opt->host);
    ADD("--port");
    ADD(port);
    ADD("--control");
    ADD(opt->control);
    ADD("--on-death");
    ADD(opt->cell.replace ? "replace" : "stop");
    for (uint32_t i = 0; i < opt->n_coordinator_args; i++)
        ADD(opt->coordinator_args[i]);
    ADD("--announce-fd");
    ADD("@report");
    ADD(NULL);
#undef ADD
    st = bt_child_spawn(
        &(bt_child_spec){.name = "coordinator", .argv = argv, .reports = true, .own_group = true},
        &s->coordinator);
out:
    return st;
}

static bt_status start_ranks(supervisor *s, const char *control)
{
    bt_status st   = BT_OK;
    char    **argv = NULL;

    BT_TRY(bt_cell_launch_argv(&s->opt->cell, control, &argv));
    st = bt_child_spawn(&(bt_child_spec){.name = "baton-launch", .argv = argv, .own_group = true},
                        &s->launch);
out:
    bt_free(argv);
    return st;
}

/* The client shares our terminal: its output is the user's. */
static bt_status start_client(supervisor *s)
{
    bt_status st = BT_OK;
    char      path[PATH_MAX];
    char     *argv[] = {path,
                        (char *)"--address",
                        s->address,
                        (char *)"--model",
                        (char *)s->opt->cell.model,
                        (char *)"--max-tokens",
                        (char *)s->opt->max_tokens,
                        (char *)"--message",
                        (char *)s->opt->chat,
                        NULL};

    BT_TRY(bt_program_path("baton-chat", path));
    st = bt_child_spawn(&(bt_child_spec){.name = "chat", .argv = argv, .own_stderr = true},
                        &s->client);
out:
    return st;
}

/* ---- what the coordinator announces */

static void on_ready(supervisor *s, const char *address)
{
    const bt_cell_options *cell = &s->opt->cell;
    char                   ranks[64];

    s->phase = SERVING;
    bt_relay_clear_bar(&s->relay);
    snprintf(s->address, sizeof(s->address), "%s", address);
    if (cell->n_both != 0) {
        snprintf(ranks, sizeof(ranks), "%u ranks with both roles", cell->n_both);
    } else {
        snprintf(ranks, sizeof(ranks), "%u prefill and %u decode ranks", cell->n_prefill,
                 cell->n_decode);
    }
    fprintf(s->opt->chat != NULL ? stderr : stdout, "serving %s at %s (%s; ready after %.1f s)\n",
            cell->model, address, ranks, (double)(bt_now_ns() - s->start_ns) / 1e9);
    if (s->http[0] != '\0')
        fprintf(s->opt->chat != NULL ? stderr : stdout, "metrics and status page at http://%s/\n",
                s->http);
    fflush(stdout);
    if (s->opt->chat == NULL) return;
    fprintf(stderr, "> %s\n", s->opt->chat);
    if (start_client(s) != BT_OK) fail(s, "%s", bt_error_text());
}

static void on_progress(supervisor *s, const char *text)
{
    enum { BAR = 40 };
    unsigned long long rank, done, total;
    double             all_done = 0, all = 0;
    int                n;

    if (sscanf(text, "%llu %llu %llu", &rank, &done, &total) != 3 ||
        rank >= bt_cell_n_ranks(&s->opt->cell)) {
        return;
    }
    s->done[rank]  = done < total ? done : total;
    s->total[rank] = total;
    for (uint32_t r = 0; r < bt_cell_n_ranks(&s->opt->cell); r++) {
        all_done += (double)s->done[r];
        all += (double)s->total[r];
    }
    if (all == 0 || s->phase != LOADING) return;
    n = (int)(all_done / all * BAR);
    bt_relay_bar(&s->relay, "loading %.*s%.*s %3d%%", n, "########################################",
                 BAR - n, "........................................", (int)(all_done / all * 100));
}

/* Asked to end, we end ranks ourselves that still load or for which nobody waits any more; what
 * becomes of them, and what the coordinator then says of them, is no failure. */
static bool ended_ranks(const supervisor *s)
{
    return s->asked && s->phase == STOPPING && (!s->served || s->hurried);
}

static void on_announcement(void *ctx, const char *line)
{
    supervisor *s = ctx;

    s->heard_ns = bt_now_ns();
    if (strncmp(line, "control ", 8) == 0 && s->phase == STARTING) {
        s->phase = LOADING;
        if (start_ranks(s, line + 8) != BT_OK) fail(s, "%s", bt_error_text());
    } else if (strncmp(line, "http ", 5) == 0) {
        snprintf(s->http, sizeof(s->http), "%s", line + 5);
    } else if (strncmp(line, "progress ", 9) == 0) {
        on_progress(s, line + 9);
    } else if (strncmp(line, "ready ", 6) == 0 && s->phase == LOADING) {
        on_ready(s, line + 6);
    } else if (strncmp(line, "failed ", 7) == 0 && !ended_ranks(s)) {
        fail(s, "coordinator: %s", line + 7);
    }
}

static void on_rank_line(void *ctx, const char *line)
{
    supervisor *s = ctx;

    s->heard_ns = bt_now_ns();
    bt_account_read(line, bt_cell_n_ranks(&s->opt->cell), s->accounts);
    bt_relay_line(&s->relay, line);
}

/* ---- the loop */

static void read_all(supervisor *s)
{
    bt_lines_read(&s->coordinator.report, on_announcement, s);
    bt_lines_read(&s->coordinator.err, bt_relay_line, &s->relay);
    bt_lines_read(&s->launch.err, on_rank_line, s);
}

/* Serving, SIGUSR1 drains, and so does SIGTERM unless it may take no time; while it drains, SIGTERM
 * ends it at once, as SIGINT always does. */
static bool drain(supervisor *s, int number)
{
    if (s->phase == STOPPING) return number == SIGUSR1;
    if (s->phase != SERVING) return false;
    if (number != SIGUSR1 && (number != SIGTERM || !s->opt->drains || s->draining)) return false;
    if (s->draining) return true;
    s->draining = true;
    bt_child_kill(&s->coordinator, number == SIGUSR1 ? SIGUSR1 : SIGTERM);
    return true;
}

static void on_signals(supervisor *s)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (drain(s, (int)info.ssi_signo)) continue;
        if (s->phase == STOPPING) { /* again: no more patience, for what was not yet told */
            if (s->coordinator_term_ns != 0) s->coordinator_term_ns = bt_now_ns();
            if (s->launch_term_ns != 0) s->launch_term_ns = bt_now_ns();
            s->hurried = true;
            continue;
        }
        s->asked = true;
        begin_stop(s);
    }
}

static void on_client_end(supervisor *s)
{
    if (WIFEXITED(s->client.status) && WEXITSTATUS(s->client.status) == 0) {
        s->asked = true;
        begin_stop(s);
    } else {
        s->asked = true; /* the cell is well: end it in order */
        begin_stop(s);
        fail(s, "the answer did not come");
    }
}

static bool ended_well(const bt_child *child)
{
    return child->pid == 0 || (WIFEXITED(child->status) && WEXITSTATUS(child->status) == 0);
}

static void on_child_end(supervisor *s)
{
    char text[128];

    read_all(s); /* what they said last */
    if (s->client.ended && s->phase == SERVING) on_client_end(s);
    if (s->phase == STOPPING) {
        /* When one side has gone, the other one has nothing to wait for. */
        uint64_t soon = bt_now_ns() + LEAVE_NS;

        if (s->coordinator.ended && s->launch_term_ns > soon) s->launch_term_ns = soon;
        return;
    }
    if (s->draining && (s->coordinator.ended || s->launch.ended) &&
        (!s->coordinator.ended || ended_well(&s->coordinator)) &&
        (!s->launch.ended || ended_well(&s->launch))) {
        s->asked = true; /* nothing runs any more: the end that was asked for */
        begin_stop(s);
        return;
    }
    if (s->launch.ended) {
        fail(s, "the ranks have ended: baton-launch %s",
             bt_child_ending(&s->launch, text, sizeof(text)));
    }
    if (s->coordinator.ended) {
        fail(s, "the coordinator %s", bt_child_ending(&s->coordinator, text, sizeof(text)));
    }
}

static void kill_at(bt_child *child, int sig, uint64_t *at_ns, uint64_t now)
{
    if (*at_ns == 0 || now < *at_ns) return;
    bt_child_kill(child, sig);
    *at_ns = 0; /* once: a second SIGTERM would cut their own clean-up short */
}

static void on_tick(supervisor *s)
{
    uint64_t now = bt_now_ns();

    if (s->phase == STOPPING) {
        kill_at(&s->coordinator, SIGTERM, &s->coordinator_term_ns, now);
        kill_at(&s->launch, SIGTERM, &s->launch_term_ns, now);
        if (now - s->stop_ns > KILL_NS) {
            bt_child_kill(&s->coordinator, SIGKILL);
            bt_child_kill(&s->launch, SIGKILL);
            bt_child_kill(&s->client, SIGKILL);
        }
    } else if (s->phase != SERVING && now - s->heard_ns > s->opt->stall_ns) {
        fail(s, "not ready: no sign of life for %llu s while %s",
             (unsigned long long)(s->opt->stall_ns / BT_NS_PER_S),
             s->phase == STARTING ? "the coordinator starts" : "the ranks load");
    }
}

static bool all_ended(const supervisor *s)
{
    return !bt_child_running(&s->coordinator) && !bt_child_running(&s->launch) &&
           !bt_child_running(&s->client);
}

static void loop(supervisor *s)
{
    bt_child *children[] = {&s->coordinator, &s->launch, &s->client};

    while (!(s->phase == STOPPING && all_ended(s))) {
        struct pollfd fds[] = {
            {s->signal_fd,             POLLIN, 0}, /* a negative fd is passed over */
            {s->coordinator.report.fd, POLLIN, 0},
            {s->coordinator.err.fd,    POLLIN, 0},
            {s->launch.err.fd,         POLLIN, 0},
        };

        poll(fds, sizeof(fds) / sizeof(fds[0]), TICK_MS);
        on_signals(s);
        read_all(s);
        if (bt_child_collect(children, 3)) on_child_end(s);
        on_tick(s);
    }
}

/* ---- the end */

static int verdict(supervisor *s)
{
    char text[128];

    if (s->failure[0] == '\0' && !ended_well(&s->coordinator) &&
        (WIFSIGNALED(s->coordinator.status) || !ended_ranks(s))) {
        fail(s, "the coordinator %s", bt_child_ending(&s->coordinator, text, sizeof(text)));
    }
    if (s->failure[0] == '\0' && s->served && !ended_ranks(s) && !ended_well(&s->launch)) {
        fail(s, "at the end baton-launch %s", bt_child_ending(&s->launch, text, sizeof(text)));
    }
    if (s->failure[0] == '\0') return EXIT_SUCCESS;
    fprintf(stderr, "baton-run: %s\n", s->failure);
    if (s->relay.first_error[0] != '\0') {
        fprintf(stderr, "baton-run: first error of a rank: %s\n", s->relay.first_error);
    }
    return s->client.ended && !ended_well(&s->client) && WIFEXITED(s->client.status)
               ? WEXITSTATUS(s->client.status)
               : EXIT_FAILURE;
}

static bt_status prepare(supervisor *s, const bt_run_options *opt)
{
    bt_status st = BT_OK;
    sigset_t  signals;

    s->opt = opt;
    bt_child_init(&s->coordinator);
    bt_child_init(&s->launch);
    bt_child_init(&s->client);
    bt_relay_init(&s->relay, opt->log);
    s->heard_ns = s->start_ns = bt_now_ns();
    s->done                   = bt_calloc(bt_cell_n_ranks(&opt->cell), sizeof(*s->done));
    s->total                  = bt_calloc(bt_cell_n_ranks(&opt->cell), sizeof(*s->total));
    s->accounts               = bt_calloc(bt_cell_n_ranks(&opt->cell), sizeof(*s->accounts));
    BT_REQUIRE(s->done != NULL && s->total != NULL && s->accounts != NULL, BT_ERR_NO_MEMORY,
               "%u ranks", bt_cell_n_ranks(&opt->cell));
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    s->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    BT_REQUIRE(s->signal_fd >= 0, BT_ERR_IO, "signalfd: %s", strerror(errno));
    bt_child_adopt();
    BT_TRY(bt_secret_provide()); /* coordinator and ranks inherit it */
    BT_TRY(start_coordinator(s));
out:
    return st;
}

int bt_supervisor_run(const bt_run_options *opt)
{
    supervisor s    = {.signal_fd = -1};
    int        code = EXIT_FAILURE;

    if (prepare(&s, opt) == BT_OK) {
        loop(&s);
        bt_child_end_all(LAST_NS);
        read_all(&s);
        if (opt->chat != NULL) bt_account_print(&opt->cell, s.accounts);
        code = verdict(&s);
    }
    bt_relay_clear_bar(&s.relay);
    bt_child_close(&s.coordinator);
    bt_child_close(&s.launch);
    bt_child_close(&s.client);
    if (s.signal_fd >= 0) close(s.signal_fd);
    bt_free(s.done);
    bt_free(s.total);
    bt_free(s.accounts);
    return code;
}
