#include "coordinator/coordinator.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/accept.h"
#include "coordinator/announce.h"
#include "coordinator/fleet.h"
#include "coordinator/http.h"
#include "coordinator/observer.h"
#include "coordinator/public.h"
#include "core/clock.h"
#include "core/parse.h"
#include "proto/config_hash.h"
#include "proto/secret.h"

enum { TICK_MS = 100, CLOSE_S = 4, FLUSH_MS = 50, VERDICT_MS = 250, TEXT_MAX = 512 };

/* Draining: running requests go on, new ones are refused. */
typedef enum { OPENING, SERVING, DRAINING, CLOSING } phase;

typedef struct {
    const bt_coordinator_options *opt;
    bt_rpc_loop                  *loop; /* owned, as the next five */
    bt_control_server            *control;
    bt_fleet                     *fleet;
    bt_public                    *pub;
    bt_observer                  *observer;
    bt_http                      *http; /* NULL: not asked for */
    bt_rpc_tls_files             *tls;  /* owned; NULL: plain text */
    phase                         phase;
    uint64_t                      deadline_ns; /* of the phase; UINT64_MAX: none */
    uint64_t                      alive_ns;    /* when that is to be announced next */
    int                           exit_code;
} coordinator;

/* To end, and to drain and then end; a cell is being started. Atomic, as a signal may find any
 * thread of gRPC's. */
static atomic_int g_signal, g_drain, g_cell_comes;

/* baton run sends a value: whether it is starting a cell. */
static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    g_cell_comes = info->si_code == SI_QUEUE && info->si_value.sival_int != 0;
    if (number == SIGUSR1)
        g_drain = number;
    else if (number != SIGTERM || g_signal == 0) /* it makes no drain of an end at once before it */
        g_signal = number;
}

/* ---- the end */

static void close_down(coordinator *c, int exit_code, const char *reason)
{
    if (c->phase == CLOSING) return;
    c->phase       = CLOSING;
    c->exit_code   = exit_code;
    c->deadline_ns = bt_now_ns() + CLOSE_S * BT_NS_PER_S;
    if (c->pub != NULL) bt_public_drain(c->pub);
    bt_fleet_stop(c->fleet, GRPC_STATUS_UNAVAILABLE, reason);
}

BT_PRINTF(2, 3) static void fail(coordinator *c, const char *fmt, ...)
{
    char    reason[TEXT_MAX];
    va_list ap;

    if (c->phase == CLOSING) return;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    bt_log_error(__FILE__, __LINE__, "the cell has failed", "%s", reason);
    bt_announce(c->opt->announce_fd, true, "failed %s", reason);
    close_down(c, 1, reason);
}

/* ---- the fleet's events */

static void on_over(void *ctx, bool well, const char *reason)
{
    coordinator *c = ctx;

    if (well)
        close_down(c, 0, reason);
    else
        fail(c, "%s", reason);
}

/* ---- the public port */

static uint64_t seconds_ns(double s) { return (uint64_t)(s * (double)BT_NS_PER_S); }

/* With the first cell that serves; the others may hold more. */
static void open_port(void *ctx)
{
    coordinator     *c      = ctx;
    bt_status        st     = BT_OK;
    uint16_t         port   = 0;
    bt_public_config config = {.model_path  = c->opt->model,
                               .public_path = c->opt->server.public_path,
                               .served_name = c->opt->server.served_name,
                               .facts       = bt_fleet_facts(c->fleet),
                               .metrics     = bt_observer_metrics(c->observer),
                               .tls         = c->tls,
                               .sglang      = c->opt->server.sglang,
                               .unread_ns   = seconds_ns(c->opt->server.unread_s)};
    char             address[BT_ADDRESS_BYTES];

    if (c->pub != NULL) bt_public_grow(c->pub);
    if (c->phase != OPENING) return;
    bt_join_address(c->opt->server.host, (uint16_t)c->opt->port, address);
    BT_TRY(bt_public_create(c->loop, address, &config, c->fleet, &c->pub, &port));
    c->phase = SERVING;
    bt_join_address(c->opt->server.host, port, address);
    bt_observer_set_address(c->observer, address);
    BT_INFO("ready: %s serves %s on %s", c->opt->server.served_name, config.facts->model_type,
            address);
    bt_announce(c->opt->announce_fd, true, "ready %s", address);
out:
    if (st != BT_OK) fail(c, "%s", bt_error_text());
}

static bt_status create_fleet(coordinator *c)
{
    const bt_coordinator_options *o      = c->opt;
    bt_fleet_config               config = {
                      .relay       = {.queue_tokens   = o->server.queue_tokens,
                                      .queue_ns       = seconds_ns(o->server.queue_s),
                                      .rank_quiet_ns  = seconds_ns(o->server.rank_timeout_s),
                                      .stall_ns       = seconds_ns(o->stall_s),
                                      .replace        = o->replace,
                                      .verdict_ns     = VERDICT_MS * BT_NS_PER_MS,
                                      .prefill_window = o->prefill_window},
                      .attach_ns   = seconds_ns(o->attach_s),
                      .load_ns     = seconds_ns(o->load_s),
                      .rejoin_ns   = seconds_ns(o->server.rejoin_s),
                      .wait_ns     = seconds_ns(o->cell_wait_s),
                      .config_hash = bt_config_hash(o->model),
                      .announce_fd = o->announce_fd
    };
    bt_fleet_events events = {
        .client = bt_public_events, .serving = open_port, .over = on_over, .ctx = c};

    return bt_fleet_create(&config, &events, &c->fleet);
}

/* ---- the loop */

static bt_phase shown_phase(const coordinator *c)
{
    bool loading = false;

    for (uint32_t i = 0; i < bt_fleet_n_cells(c->fleet); i++)
        loading = loading || bt_fleet_state(c->fleet, i) == BT_CELL_LOADING;
    switch (c->phase) {
    case SERVING: return bt_fleet_serves(c->fleet) ? BT_PHASE_SERVING : BT_PHASE_WAITING;
    case DRAINING: return BT_PHASE_DRAINING;
    case CLOSING: return BT_PHASE_CLOSING;
    default: return loading ? BT_PHASE_LOADING : BT_PHASE_STARTING;
    }
}

static void observe(coordinator *c)
{
    bt_observer_tick(c->observer, shown_phase(c), c->fleet, bt_now_ns());
}

/* Takes no new request from now on; the process ends with the last one that runs. */
static void drain(coordinator *c, double limit_s)
{
    uint32_t n;

    if (c->phase != SERVING) return;
    n        = bt_public_n_streams(c->pub);
    c->phase = DRAINING;
    if (limit_s > 0) c->deadline_ns = bt_now_ns() + seconds_ns(limit_s);
    BT_INFO("draining: %u request%s under way", n, n == 1 ? "" : "s");
    bt_announce(c->opt->announce_fd, true, "draining");
    bt_public_drain(c->pub);
    if (!g_cell_comes) bt_fleet_wait_no_more(c->fleet);
}

/* Requests that wait for a cell which was to come, and does not, hear of that. */
static const char *end_reason(const coordinator *c)
{
    return c->phase == DRAINING && !bt_fleet_any_left(c->fleet) ? BT_FLEET_NONE_COMES
                                                                : "the server is shutting down";
}

static void check_drained(coordinator *c)
{
    uint32_t n = bt_public_n_streams(c->pub);

    if (n == 0) {
        BT_INFO("drained");
        close_down(c, 0, "the server has drained");
    } else if (bt_now_ns() >= c->deadline_ns) {
        BT_WARN("%u requests have not ended within the %.0f s of draining", n,
                c->opt->server.drain_s);
        close_down(c, 0, end_reason(c));
    }
}

/* SIGUSR1 drains without a limit, SIGTERM for --drain-s; SIGINT, and SIGTERM while it drains, end
 * at once. */
static void check_signals(coordinator *c)
{
    int number = atomic_exchange(&g_signal, 0);

    if (atomic_exchange(&g_drain, 0) != 0) {
        if (c->phase == SERVING)
            drain(c, 0);
        else if (c->phase == OPENING)
            number = SIGUSR1; /* there is nothing to wait for */
    }
    if (number == 0 || c->phase == CLOSING) return;
    if (number == SIGTERM && c->phase == SERVING && c->opt->server.drain_s > 0) {
        drain(c, c->opt->server.drain_s);
        return;
    }
    BT_INFO("shutting down on signal %d", number);
    close_down(c, 0, end_reason(c));
}

/* Until something happens, at most until the deadline, and not where there is something to send;
 * and sends it. */
static void turn(coordinator *c, uint64_t deadline_ns, bool spin)
{
    if (c->pub != NULL && bt_public_has_more(c->pub)) deadline_ns = 0;
    if (spin)
        bt_rpc_loop_spin_once(c->loop, deadline_ns);
    else
        bt_rpc_loop_run_once(c->loop, deadline_ns);
    if (c->pub != NULL) bt_public_poll(c->pub);
}

/* At most a tick. With --busy-poll awake while ranks have requests. */
static void await(coordinator *c)
{
    bt_relay_loads loads = {0};

    if (c->opt->server.busy_poll) bt_fleet_get_loads(c->fleet, &loads);
    turn(c, bt_now_ns() + TICK_MS * BT_NS_PER_MS, loads.n_running > 0);
}

static void serve(coordinator *c)
{
    while (c->phase != CLOSING) {
        await(c);
        bt_fleet_tick(c->fleet, bt_now_ns());
        bt_control_server_tick(c->control, bt_now_ns());
        bt_accept_again(bt_now_ns());
        bt_log_tell_omitted(bt_now_ns());
        bt_http_tick(c->http, bt_now_ns());
        bt_rpc_tls_refresh(c->tls, bt_now_ns());
        bt_observer_set_tls_refused(c->observer, bt_rpc_tls_refused(c->tls));
        if (c->phase == DRAINING) check_drained(c);
        check_signals(c);
        observe(c);
        bt_announce_alive(c->opt->announce_fd, bt_now_ns(), &c->alive_ns);
    }
}

/* Sends statuses to clients and Shutdown to ranks, and waits for them to leave; each has until the
 * deadline. */
static void close_up(coordinator *c)
{
    uint64_t flush_ns = bt_now_ns() + FLUSH_MS * BT_NS_PER_MS;

    observe(c);
    if (c->pub != NULL) bt_public_poll(c->pub);
    while (bt_now_ns() < c->deadline_ns && (bt_fleet_n_peers(c->fleet) > 0 ||
                                            (c->pub != NULL && bt_public_n_streams(c->pub) > 0))) {
        turn(c, bt_now_ns() + TICK_MS * BT_NS_PER_MS, false);
        bt_announce_alive(c->opt->announce_fd, bt_now_ns(), &c->alive_ns);
    }
    bt_fleet_name_stragglers(c->fleet, CLOSE_S);
    while (bt_now_ns() < flush_ns) /* what is said last should reach the wire */
        turn(c, flush_ns, false);
}

static bt_status open_http(coordinator *c)
{
    bt_status st   = BT_OK;
    uint16_t  port = 0;
    char      address[BT_ADDRESS_BYTES];

    BT_TRY(bt_http_start(c->opt->server.http_host, (uint16_t)c->opt->server.http_port,
                         bt_observer_board(c->observer), &c->http, &port));
    bt_join_address(c->opt->server.http_host, port, address);
    BT_INFO("metrics and status page on http://%s", address);
    bt_announce(c->opt->announce_fd, true, "http %s", address);
out:
    return st;
}

/* Beyond this machine nobody gets in without a secret. */
static bt_status check_secret(const bt_coordinator_options *opt)
{
    bt_status st = BT_OK;
    char      secret[BT_SECRET_MAX + 1];
    bool      local = strncmp(opt->control, "127.", 4) == 0 ||
                 strncmp(opt->control, "localhost:", 10) == 0 ||
                 strncmp(opt->control, "[::1]:", 6) == 0;

    BT_TRY(bt_secret_read(secret));
    BT_REQUIRE(local || secret[0] != 0, BT_ERR_INVALID_ARG,
               "the control address %s is open to other machines and the cell has no secret: set "
               "BATON_SECRET or give --secret-file here, and the same to the ranks",
               opt->control);
    explicit_bzero(secret, sizeof(secret));
out:
    return st;
}

static bt_status start(coordinator *c)
{
    bt_status         st     = BT_OK;
    bt_control_events events = {.message = bt_fleet_message, .lost = bt_fleet_lost};
    uint16_t          port   = 0;
    char              host[BT_ADDRESS_BYTES], address[BT_ADDRESS_BYTES];

    bt_observer_config seen = {.model = c->opt->model, .served_name = c->opt->server.served_name};

    BT_TRY(check_secret(c->opt));
    BT_TRY(create_fleet(c));
    events.ctx = c->fleet;
    BT_TRY(bt_observer_create(&seen, &c->observer));
    observe(c); /* so that the HTTP port never shows an empty board */
    if (c->opt->server.http_port >= 0) BT_TRY(open_http(c));
    BT_TRY(bt_rpc_loop_create(&c->loop));
    BT_TRY(bt_control_server_create(c->loop, c->opt->control, &events, &c->control, &port));
    bt_accept_keep_for(port);
    /* Better known now than after an hour of loading, also that one of our own ports is there. */
    bt_join_address(c->opt->server.host, (uint16_t)c->opt->port, address);
    BT_TRY(bt_rpc_try_bind(address));
    if (c->opt->server.tls_cert != NULL)
        BT_TRY(bt_rpc_tls_open(c->opt->server.tls_cert, c->opt->server.tls_key,
                               c->opt->server.tls_client_ca, c->opt->server.host, &c->tls));
    bt_split_address(c->opt->control, host);
    bt_join_address(host, port, address);
    BT_INFO("workers attach on %s", address);
    bt_announce(c->opt->announce_fd, true, "control %s", address);
out:
    if (st != BT_OK) bt_announce(c->opt->announce_fd, true, "failed %s", bt_error_text());
    return st;
}

int bt_coordinator_run(const bt_coordinator_options *options)
{
    coordinator      c      = {.opt = options, .deadline_ns = UINT64_MAX, .exit_code = 1};
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};

    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (start(&c) == BT_OK) {
        serve(&c);
        close_up(&c);
    }
    bt_http_stop(c.http);
    /* Where gRPC does not end, it has pointers to what follows; the process ends nonetheless. */
    if (bt_public_destroy(c.pub) && bt_control_server_destroy(c.control)) {
        bt_fleet_destroy(c.fleet);
        bt_observer_destroy(c.observer);
        bt_rpc_tls_close(c.tls);
        bt_rpc_loop_destroy(c.loop);
    }
    bt_log_tell_omitted(UINT64_MAX);
    return c.exit_code;
}
