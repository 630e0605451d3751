/* baton-worker - one rank of a cell: options -> MPI -> start -> steps -> leave. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/limits.h"
#include "core/watchdog.h"
#include "worker/rank.h"
#include "worker/sources.h"

/* What this program is made of. */
#define BUILD BT_VERSION " (sources " BT_SOURCES ")"

#define IDLE_SLEEP_NS  (200 * BT_NS_PER_MS) /* a message or a signal ends it */
#define WATCH_SLEEP_NS (1 * BT_NS_PER_MS)   /* between looks for pages that are expected */
#define FIRST_SLEEP_NS (20 * BT_NS_PER_US)
#define MPI_START_NS   (300 * BT_NS_PER_S) /* ranks of a large job start one after the other */

/* Atomic, as a signal may find any thread of MPI's or gRPC's. */
static atomic_int g_signal;
static atomic_int g_drain;
static atomic_int g_tell; /* somebody is there to be told why this rank leaves */

/* Of the signal, as it would without a handler: who started it sees that it has not ended well. The
 * first process of a container does not die of its own signals. */
static void end_by(int number)
{
    sigset_t one;

    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
    _exit(128 + number);
}

static void on_signal(int number)
{
    if (g_tell)
        g_signal = number;
    else
        end_by(number);
}

static void on_drain(int number)
{
    if (g_tell)
        g_drain = 1;
    else
        end_by(number);
}

static void on_alarm(int number)
{
    static const char why[] = "baton-worker: saying good-bye to the coordinator hangs: ended\n";

    (void)number;
    if (write(STDERR_FILENO, why, sizeof(why) - 1) < 0) _exit(EXIT_FAILURE);
    _exit(EXIT_FAILURE);
}

/* On the watchdog's thread, while the step thread hangs inside a library. */
static void on_stuck(void *ctx, const char *where, uint64_t quiet_ns)
{
    bt_rank *r = ctx;

    bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_TIMEOUT),
                 "%s has not come back from the %s for %.1f s",
                 r->nccl != NULL       ? "MPI, NCCL or CUDA"
                 : r->gpu_sharers != 0 ? "MPI or CUDA"
                                       : "MPI",
                 where, (double)quiet_ns / 1e9);
    bt_rank_leave(r, EXIT_FAILURE, bt_error_text());
}

static void install_signals(void)
{
    struct sigaction leave = {.sa_handler = on_signal}, late = {.sa_handler = on_alarm};
    struct sigaction drain = {.sa_handler = on_drain};

    sigaction(SIGTERM, &leave, NULL);
    sigaction(SIGINT, &leave, NULL);
    sigaction(SIGUSR1, &drain, NULL);
    sigaction(SIGALRM, &late, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static bt_status take_messages(bt_rank *r)
{
    bt_status st = BT_OK;
    bt_down   m;

    while (bt_links_receive(&r->links, &m)) {
        switch (m.kind) {
        case BT_DOWN_WELCOME: st = bt_rank_welcome(r, &m); break;
        case BT_DOWN_REGROUP: st = bt_rank_regroup(r, &m); break;
        default: st = bt_worker_control(r->worker, &m);
        }
        bt_down_free(&m);
        BT_TRY(st);
    }
out:
    return st;
}

/* Parked.  Expected pages are polled for every millisecond, and at once after some came; otherwise
 * only the control stream can bring anything. */
static void rest(bt_rank *r, uint64_t *sleep_ns)
{
    if (bt_worker_background(r->worker)) {
        *sleep_ns = 0;
        return;
    }
    *sleep_ns = *sleep_ns == 0 ? FIRST_SLEEP_NS : 2 * *sleep_ns;
    if (!bt_worker_expects_pages(r->worker))
        *sleep_ns = IDLE_SLEEP_NS;
    else if (*sleep_ns > WATCH_SLEEP_NS)
        *sleep_ns = WATCH_SLEEP_NS;
    bt_links_sleep(&r->links, *sleep_ns);
}

static bool is_broken(const bt_rank *r) { return r->group != NULL && bt_group_is_broken(r->group); }

/* When the group changes while this rank waits for it, or an exchange fails and the coordinator
 * changes the group, the step is void and its rows are computed again.  When the coordinator is
 * lost nobody wants them any more. */
static bt_status what_follows(bt_rank *r, bt_status st)
{
    if (st == BT_ERR_CANCELLED)
        return r->links.regroup_due || bt_links_orphaned(&r->links) ? BT_OK : st;
    return is_broken(r) && r->opt.replace ? bt_rank_await_regroup(r, st) : st;
}

/* One step with the group. */
static bt_status step(bt_rank *r, const bt_plan *plan, bool *together_out)
{
    bt_status st = bt_links_gather(&r->links, plan, r->plans);

    if (st == BT_OK) st = bt_worker_finish(r->worker, r->plans, together_out);
    if (st != BT_OK) return what_follows(r, st);
    r->n_in_vain = 0;
    return BT_OK;
}

/* Until the group leaves together (BT_OK), or this rank must leave alone (CANCELLED), or fails. */
static bt_status work(bt_rank *r)
{
    bt_status st       = BT_OK;
    bool      together = false;
    uint64_t  sleep_ns = 0;
    bt_plan   plan;
    bt_next   next;

    while (!together) {
        if (bt_links_must_leave(&r->links)) return BT_ERR_CANCELLED;
        bt_rank_pass_on_drain(r);
        BT_TRY(bt_rank_tend_coordinator(r));
        BT_TRY(take_messages(r));
        BT_TRY(bt_worker_background_status(r->worker));
        BT_TRY(bt_handoff_check(r->handoff)); /* steps may take long to meet such an error */
        if (r->orphan_ns != 0) {
            bt_worker_background(r->worker);
            bt_links_sleep(&r->links, WATCH_SLEEP_NS);
            continue;
        }
        st = bt_worker_begin(r->worker, &plan, &next);
        if (st == BT_ERR_TIMEOUT && !is_broken(r) && bt_links_forsake(&r->links))
            continue; /* it sends no Wake */
        if (st != BT_OK) {
            BT_TRY(what_follows(r, st));
            continue;
        }
        if (next == BT_NEXT_LEAVE) return BT_OK;
        if (next == BT_NEXT_PARK) {
            rest(r, &sleep_ns);
            continue;
        }
        sleep_ns = 0;
        BT_TRY(step(r, &plan, &together));
        bt_worker_background(r->worker);
    }
out:
    return st;
}

int main(int argc, char **argv)
{
    static bt_rank r;               /* large, and borrowed from by everything */
    bt_settings   *settings = NULL; /* as is this, to the end */
    char           who[32];
    bt_status      st;

    install_signals();
    bt_log_init("worker", BT_LOG_INFO);
    bt_log_never_block();
    if (bt_settings_gather(&bt_worker_settings, argc, argv, &settings) != BT_OK ||
        bt_worker_options_parse(bt_settings_argc(settings), bt_settings_argv(settings), true,
                                &r.opt) != BT_OK) {
        fprintf(stderr, "baton-worker --help says more\n");
        bt_settings_destroy(settings);
        return EX_USAGE;
    }
    if (bt_limits_check() != BT_OK) return EXIT_FAILURE;
    if (r.opt.device != BT_ON_CPU) bt_device_cuda_environment();
    if (bt_watchdog_start(MPI_START_NS, on_stuck, &r) != BT_OK) return EXIT_FAILURE;
    if (bt_world_same_build(&argc, &argv, BUILD) != BT_OK ||
        bt_world_init(&argc, &argv, &r.world) != BT_OK)
        return EXIT_FAILURE;
    bt_watchdog_set_limit(r.opt.timeout_ns);
    install_signals(); /* MPI may have put its own */
    snprintf(who, sizeof(who), "rank=%u", bt_world_rank(r.world));
    bt_log_init(who, r.opt.verbose ? BT_LOG_DEBUG : BT_LOG_INFO);
    if (bt_world_rank(r.world) == 0) bt_settings_log(settings);
    r.links.timeout_ns = r.opt.timeout_ns;
    r.links.orphan_ns  = r.opt.orphan_ns;
    r.links.signal     = &g_signal;
    r.drain            = &g_drain;
    r.tell             = &g_tell;

    st = bt_rank_start(&r);
    if (st == BT_OK) st = work(&r);
    if (st != BT_OK) bt_rank_leave_early(&r, st);
    bt_rank_leave_together(&r);
    bt_settings_destroy(settings);
    return EXIT_SUCCESS;
}
