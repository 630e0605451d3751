#include "coordinator/coordinator.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/announce.h"
#include "coordinator/cell.h"
#include "coordinator/http.h"
#include "coordinator/observer.h"
#include "coordinator/public.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/control_server.h"
#include "proto/secret.h"

enum { TICK_MS = 50, CLOSE_S = 4, FLUSH_MS = 50, VERDICT_MS = 250, TEXT_MAX = 512 };

/* Draining: running requests go on, new ones are refused. */
typedef enum { OPENING, SERVING, DRAINING, CLOSING } phase;

typedef struct {
    const bt_coordinator_options *opt;
    bt_rpc_loop                  *loop; /* owned, as the next four */
    bt_control_server            *control;
    bt_relay                     *relay;
    bt_public                    *pub;
    bt_observer                  *observer;
    bt_http                      *http;  /* NULL: not asked for */
    bt_rpc_tls                    tls;   /* owned */
    bt_control_peer             **peers; /* [n_ranks]; NULL: lost */
    bt_cell                       cell;
    uint32_t                      n_peers;
    phase                         phase;
    uint64_t                      deadline_ns; /* of the phase; UINT64_MAX: none */
    int                           exit_code;
    uint64_t                      short_since_ns;    /* a group has no rank left; 0: none has */
    char                          stuck[TEXT_MAX];   /* by the relay, acted upon after it returns */
    char                          refusal[TEXT_MAX]; /* the last rank that was refused, and why */
} coordinator;

static volatile sig_atomic_t g_signal, g_drain; /* to end, and to drain and then end */

static void on_signal(int number) { g_signal = number; }
static void on_drain(int number) { g_drain = number; }

/* ---- the end */

static void tell_ranks_to_leave(coordinator *c, const char *reason)
{
    for (uint32_t i = 0; i < c->cell.n_ranks; i++) {
        bt_down m = {.kind = BT_DOWN_SHUTDOWN};

        if (c->peers == NULL || c->peers[i] == NULL) continue;
        m.u.shutdown.reason = bt_strdup(reason);
        bt_control_send(c->peers[i], &m);
    }
}

static void close_down(coordinator *c, int exit_code, const char *reason)
{
    if (c->phase == CLOSING) return;
    c->phase       = CLOSING;
    c->exit_code   = exit_code;
    c->deadline_ns = bt_now_ns() + CLOSE_S * BT_NS_PER_S;
    if (c->pub != NULL) bt_public_drain(c->pub);
    if (c->relay != NULL) bt_relay_stop(c->relay, GRPC_STATUS_UNAVAILABLE, reason);
    tell_ranks_to_leave(c, reason);
}

__attribute__((format(printf, 2, 3))) static void fail(coordinator *c, const char *fmt, ...)
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

/* ---- the relay's events */

static void send_to_rank(void *ctx, uint32_t rank, bt_down *m)
{
    coordinator *c = ctx;

    if (c->peers[rank] != NULL)
        bt_control_send(c->peers[rank], m);
    else
        bt_down_free(
            m); /* the relay hears of its loss, or the cell ends: no answer is waited for */
}

static bt_finish on_token(void *ctx, void *client, const bt_token *token)
{
    (void)ctx;
    return bt_public_token(client, token);
}

static void on_prompt(void *ctx, void *client, const bt_up_prompt_logprobs *m)
{
    (void)ctx;
    bt_public_prompt(client, m);
}

static void on_end(void *ctx, void *client, const bt_relay_end *end)
{
    (void)ctx;
    bt_public_end(client, end);
}

/* Whoever it is, this cell does without it: it hears that, if it can, and nothing of it is heard.
 */
static void shut_out(coordinator *c, uint32_t rank, const char *reason)
{
    bt_control_peer *peer = c->peers[rank];

    c->cell.ranks[rank].lost = true;
    if (peer == NULL) return;
    c->peers[rank] = NULL;
    c->n_peers--;
    bt_control_refuse(peer, reason);
}

static void on_stuck(void *ctx, uint32_t rank, const char *reason)
{
    coordinator *c = ctx;
    char         who[128], text[TEXT_MAX];

    bt_cell_rank_text(&c->cell, rank, who, sizeof(who));
    if (!c->opt->replace) {
        snprintf(c->stuck, sizeof(c->stuck), "%s is stuck: %s", who, reason);
        return;
    }
    snprintf(text, sizeof(text), "%s is removed from the cell: %s", who, reason);
    BT_WARN("%s", text);
    shut_out(c, rank, text);
}

/* ---- from attached ranks to an open port */

/* HOST:PORT; a bare IPv6 address gets its brackets. */
static void public_address(const bt_coordinator_options *opt, uint32_t port, char *buf,
                           size_t capacity)
{
    bool bare = strchr(opt->host, ':') != NULL && opt->host[0] != '[';

    snprintf(buf, capacity, "%s%s%s:%u", bare ? "[" : "", opt->host, bare ? "]" : "", port);
}

static uint64_t seconds_ns(double s) { return (uint64_t)(s * (double)BT_NS_PER_S); }

static bt_status create_relay(coordinator *c)
{
    bt_status          st     = BT_OK;
    const bt_up_hello *facts  = bt_cell_facts(&c->cell);
    bt_relay_rank     *ranks  = bt_calloc(c->cell.n_ranks, sizeof(*ranks));
    bt_relay_events    events = {.send   = send_to_rank,
                                 .token  = on_token,
                                 .end    = on_end,
                                 .stuck  = on_stuck,
                                 .ctx    = c,
                                 .prompt = on_prompt};
    bt_relay_config    config = {.n_ranks        = c->cell.n_ranks,
                                 .n_prefill      = facts->n_prefill,
                                 .n_decode       = facts->n_decode,
                                 .ranks          = ranks,
                                 .n_spares       = facts->n_spares,
                                 .epoch          = c->cell.max_epoch + 1,
                                 .group_epoch    = c->cell.max_epoch,
                                 .replace        = c->opt->replace,
                                 .verdict_ns     = VERDICT_MS * BT_NS_PER_MS,
                                 .page_tokens    = facts->page_tokens,
                                 .vocab_size     = facts->vocab_size,
                                 .queue_tokens   = c->opt->queue_tokens,
                                 .queue_ns       = seconds_ns(c->opt->queue_s),
                                 .rank_quiet_ns  = seconds_ns(c->opt->rank_timeout_s),
                                 .stall_ns       = seconds_ns(c->opt->stall_s),
                                 .prefill_window = c->opt->prefill_window};

    BT_REQUIRE(ranks != NULL, BT_ERR_NO_MEMORY, "table of %u ranks", c->cell.n_ranks);
    for (uint32_t i = 0; i < c->cell.n_ranks; i++)
        ranks[i] = (bt_relay_rank){.n_pages  = c->cell.ranks[i].hello.n_pages,
                                   .max_rows = c->cell.ranks[i].hello.max_rows};
    BT_TRY(bt_relay_create(&config, &events, &c->relay));
out:
    bt_free(ranks);
    return st;
}

static void open_port(coordinator *c)
{
    bt_status        st     = BT_OK;
    uint16_t         port   = 0;
    bt_public_config config = {.model_path  = c->opt->model,
                               .served_name = c->opt->served_name,
                               .version     = BT_VERSION,
                               .facts       = bt_cell_facts(&c->cell),
                               .metrics     = bt_observer_metrics(c->observer),
                               .tls         = c->tls.cert != NULL ? &c->tls : NULL};
    char             address[300];

    public_address(c->opt, c->opt->port, address, sizeof(address));
    BT_TRY(create_relay(c));
    BT_TRY(bt_public_create(c->loop, address, &config, c->relay, &c->pub, &port));
    c->phase       = SERVING;
    c->deadline_ns = UINT64_MAX;
    public_address(c->opt, port, address, sizeof(address));
    bt_observer_set_address(c->observer, address);
    BT_INFO("ready: %s serves %s on %s", c->opt->served_name, config.facts->model_type, address);
    bt_announce(c->opt->announce_fd, true, "ready %s", address);
out:
    if (st != BT_OK) {
        char why[TEXT_MAX];

        snprintf(why, sizeof(why), "%s", bt_error_text());
        fail(c, "%s", why);
    }
}

/* Everybody is here: the epoch lies above all that any rank has seen. */
static void welcome_all(coordinator *c)
{
    for (uint32_t i = 0; i < c->cell.n_ranks; i++) {
        bt_down m = {.kind = BT_DOWN_WELCOME, .u.welcome = {c->cell.max_epoch + 1}};

        if (c->peers[i] != NULL) bt_control_send(c->peers[i], &m);
    }
    c->deadline_ns = bt_now_ns() + seconds_ns(c->opt->load_s);
    BT_INFO("all %u ranks have attached", c->cell.n_ranks);
}

/* ---- messages of ranks */

static void on_hello(coordinator *c, bt_control_peer *peer, bt_up_hello *hello)
{
    uint32_t rank = hello->rank, n_ranks = hello->n_ranks;

    if (c->phase == CLOSING) {
        bt_control_refuse(peer, "the coordinator is shutting down");
        return;
    }
    if (bt_cell_attach(&c->cell, hello) != BT_OK) {
        snprintf(c->refusal, sizeof(c->refusal), "%s", bt_error_text());
        bt_control_refuse(peer, c->refusal);
        return;
    }
    if (c->peers == NULL) c->peers = bt_calloc(n_ranks, sizeof(bt_control_peer *));
    if (c->peers == NULL) {
        bt_control_refuse(peer, "the coordinator is out of memory");
        fail(c, "out of memory for a table of %u ranks", n_ranks);
        return;
    }
    if (c->n_peers++ == 0) c->deadline_ns = bt_now_ns() + seconds_ns(c->opt->attach_s);
    c->peers[rank] = peer;
    bt_control_peer_set_data(peer, &c->peers[rank]);
    if (bt_cell_complete(&c->cell)) welcome_all(c);
}

static void on_progress(coordinator *c, uint32_t rank, const bt_up *m)
{
    bt_cell_rank *k = &c->cell.ranks[rank];

    k->done_bytes  = m->u.progress.done_bytes;
    k->total_bytes = m->u.progress.total_bytes;
    bt_announce(c->opt->announce_fd, false, "progress %u %llu %llu", rank,
                (unsigned long long)k->done_bytes, (unsigned long long)k->total_bytes);
}

static void on_ready(coordinator *c, uint32_t rank)
{
    bt_cell_rank *k = &c->cell.ranks[rank];

    if (k->ready) return;
    k->ready = true;
    c->cell.n_ready++;
    if (bt_cell_ready(&c->cell) && c->phase == OPENING) open_port(c);
}

static void on_leaving(coordinator *c, uint32_t rank, bt_up *m)
{
    bt_cell_rank *k = &c->cell.ranks[rank];

    k->left = true;
    bt_free(k->leave_reason);
    k->leave_reason     = m->u.leaving.reason;
    m->u.leaving.reason = NULL; /* ours now */
}

static void on_message(void *ctx, bt_control_peer *peer, bt_up *m)
{
    coordinator *c = ctx;
    uint32_t     rank;

    if (m->kind == BT_UP_HELLO) {
        on_hello(c, peer, &m->u.hello);
        return;
    }
    rank = (uint32_t)((bt_control_peer **)bt_control_peer_data(peer) - c->peers);
    if (c->peers[rank] != peer) return; /* it has been shut out */
    switch (m->kind) {
    case BT_UP_PROGRESS: on_progress(c, rank, m); break;
    case BT_UP_READY: on_ready(c, rank); break;
    case BT_UP_LEAVING: on_leaving(c, rank, m); break;
    case BT_UP_BEAT: c->cell.ranks[rank].beat = m->u.beat; /* fall through */
    default:
        if (c->relay != NULL) bt_relay_message(c->relay, rank, m, bt_now_ns());
    }
}

static void on_lost(void *ctx, bt_control_peer *peer)
{
    coordinator      *c    = ctx;
    bt_control_peer **slot = bt_control_peer_data(peer);
    uint32_t          rank = (uint32_t)(slot - c->peers);
    const char       *why  = c->cell.ranks[rank].leave_reason;
    char              who[128];

    if (*slot != peer) return; /* it has been shut out */
    *slot = NULL;
    c->n_peers--;
    if (c->phase == CLOSING) return;
    bt_cell_rank_text(&c->cell, rank, who, sizeof(who));
    if (c->opt->replace && c->phase != OPENING) {
        c->cell.ranks[rank].lost = true;
        BT_WARN("%s was lost: %s", who, why != NULL ? why : "its control stream ended");
        bt_relay_lose(c->relay, rank, bt_now_ns());
        return;
    }
    fail(c, "%s was lost%s: %s%s%s", who, c->phase == OPENING ? " while the cell was starting" : "",
         why != NULL ? why : "its control stream ended",
         c->refusal[0] != 0 && c->phase == OPENING ? "; a rank was refused before: " : "",
         c->phase == OPENING ? c->refusal : "");
}

/* ---- the loop */

static void observe(coordinator *c)
{
    bt_phase shown = BT_PHASE_STARTING;

    switch (c->phase) {
    case OPENING: shown = bt_cell_complete(&c->cell) ? BT_PHASE_LOADING : shown; break;
    case SERVING: shown = c->short_since_ns != 0 ? BT_PHASE_WAITING : BT_PHASE_SERVING; break;
    case DRAINING: shown = BT_PHASE_DRAINING; break;
    case CLOSING: shown = BT_PHASE_CLOSING; break;
    }
    bt_observer_tick(c->observer, shown, &c->cell, c->relay, bt_now_ns());
}

/* No new request from now on; the process ends with the last one that runs. */
static void drain(coordinator *c, double limit_s)
{
    if (c->phase != SERVING) return;
    c->phase = DRAINING;
    if (limit_s > 0) c->deadline_ns = bt_now_ns() + seconds_ns(limit_s);
    BT_INFO("draining: %u requests run", bt_public_n_streams(c->pub));
    bt_announce(c->opt->announce_fd, true, "draining");
    bt_public_drain(c->pub);
}

static void check_drained(coordinator *c)
{
    uint32_t n = bt_public_n_streams(c->pub);

    if (n == 0) {
        BT_INFO("drained");
        close_down(c, 0, "the server has drained");
    } else if (bt_now_ns() >= c->deadline_ns) {
        BT_WARN("%u requests have not ended within the %.0f s of draining", n, c->opt->drain_s);
        close_down(c, 0, "the server is shutting down");
    }
}

/* SIGUSR1 drains without a limit, SIGTERM for --drain-s; SIGINT, and SIGTERM while it drains, end
 * at once. */
static void check_signals(coordinator *c)
{
    int number = g_signal;

    if (g_drain != 0) {
        g_drain = 0;
        if (c->phase == SERVING)
            drain(c, 0);
        else if (c->phase == OPENING)
            number = SIGUSR1; /* there is nothing to wait for */
    }
    if (number == 0 || c->phase == CLOSING) return;
    g_signal = 0;
    if (number == SIGTERM && c->phase == SERVING && c->opt->drain_s > 0) {
        drain(c, c->opt->drain_s);
        return;
    }
    BT_INFO("shutting down on signal %d", number);
    close_down(c, 0, "the server is shutting down");
}

static void check_deadline(coordinator *c)
{
    char who[256];

    if (bt_now_ns() < c->deadline_ns) return;
    bt_cell_missing(&c->cell, who, sizeof(who));
    if (!bt_cell_complete(&c->cell))
        fail(c, "%s of %u have not attached within %.0f s of the first%s%s", who, c->cell.n_ranks,
             c->opt->attach_s, c->refusal[0] != 0 ? "; a rank was refused: " : "", c->refusal);
    else
        fail(c, "%s of %u are not ready after %.0f s of loading", who, c->cell.n_ranks,
             c->opt->load_s);
}

/* A group that has lost its last rank is waited for; requests wait meanwhile. */
static void check_seats(coordinator *c)
{
    uint64_t    now = bt_now_ns();
    uint32_t    taken[2];
    const char *missing;

    bt_relay_count_seats(c->relay, taken);
    missing = bt_cell_facts(&c->cell)->n_decode == 0 ? "" : taken[0] == 0 ? "prefill " : "decode ";
    if (taken[0] > 0 && (taken[1] > 0 || bt_cell_facts(&c->cell)->n_decode == 0)) {
        if (c->short_since_ns != 0) BT_INFO("the cell has ranks for every role again");
        c->short_since_ns = 0;
    } else if (c->short_since_ns == 0) {
        c->short_since_ns = now;
        BT_WARN("no %srank is left: requests wait, for %.0f s at most, until one joins", missing,
                c->opt->rejoin_s);
    } else if (now - c->short_since_ns >= seconds_ns(c->opt->rejoin_s)) {
        fail(c, "no %srank was left, and none has joined within %.0f s", missing, c->opt->rejoin_s);
    }
}

static void serve(coordinator *c)
{
    while (c->phase != CLOSING) {
        bt_rpc_loop_run_once(c->loop, bt_now_ns() + TICK_MS * BT_NS_PER_MS);
        if (c->pub != NULL) bt_public_poll(c->pub);
        if (c->relay != NULL) bt_relay_tick(c->relay, bt_now_ns());
        if (c->stuck[0] != 0) fail(c, "%s", c->stuck);
        if (c->phase == SERVING || c->phase == DRAINING) check_seats(c);
        if (c->phase == OPENING || c->phase == SERVING) check_deadline(c);
        if (c->phase == DRAINING) check_drained(c);
        check_signals(c);
        observe(c);
    }
}

/* Statuses to clients, Shutdown to ranks, and their leaving; each has until the deadline. */
static void close_up(coordinator *c)
{
    uint64_t flush_ns = bt_now_ns() + FLUSH_MS * BT_NS_PER_MS;

    observe(c);
    if (c->pub != NULL) bt_public_poll(c->pub);
    while (bt_now_ns() < c->deadline_ns &&
           (c->n_peers > 0 || (c->pub != NULL && bt_public_n_streams(c->pub) > 0))) {
        bt_rpc_loop_run_once(c->loop, bt_now_ns() + TICK_MS * BT_NS_PER_MS);
        if (c->pub != NULL) bt_public_poll(c->pub);
    }
    for (uint32_t i = 0; i < c->cell.n_ranks && c->n_peers > 0; i++)
        if (c->peers[i] != NULL) {
            char who[128];

            bt_cell_rank_text(&c->cell, i, who, sizeof(who));
            BT_WARN("%s has not left within %d s", who, CLOSE_S);
        }
    while (bt_now_ns() < flush_ns) { /* what is said last should reach the wire */
        bt_rpc_loop_run_once(c->loop, flush_ns);
        if (c->pub != NULL) bt_public_poll(c->pub);
    }
}

static bt_status open_http(coordinator *c)
{
    bt_status st   = BT_OK;
    uint16_t  port = 0;
    bool      bare = strchr(c->opt->http_host, ':') != NULL;

    BT_TRY(bt_http_start(c->opt->http_host, (uint16_t)c->opt->http_port,
                         bt_observer_board(c->observer), &c->http, &port));
    BT_INFO("metrics and status page on http://%s%s%s:%u", bare ? "[" : "", c->opt->http_host,
            bare ? "]" : "", port);
    bt_announce(c->opt->announce_fd, true, "http %s%s%s:%u", bare ? "[" : "", c->opt->http_host,
                bare ? "]" : "", port);
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
    bt_control_events events = {.message = on_message, .lost = on_lost, .ctx = c};
    uint16_t          port   = 0;
    char              address[300];
    const char       *colon = strrchr(c->opt->control, ':');

    bt_observer_config seen = {
        .model = c->opt->model, .served_name = c->opt->served_name, .version = BT_VERSION};

    public_address(c->opt, c->opt->port, address, sizeof(address));
    BT_TRY(check_secret(c->opt));
    BT_TRY(bt_rpc_try_bind(address)); /* better known now than after an hour of loading */
    if (c->opt->tls_cert != NULL)
        BT_TRY(bt_rpc_tls_read(c->opt->tls_cert, c->opt->tls_key, c->opt->tls_client_ca, &c->tls));
    BT_TRY(bt_observer_create(&seen, &c->observer));
    observe(c); /* so that the HTTP port never shows an empty board */
    if (c->opt->http_port >= 0) BT_TRY(open_http(c));
    BT_TRY(bt_rpc_loop_create(&c->loop));
    BT_TRY(bt_control_server_create(c->loop, c->opt->control, &events, &c->control, &port));
    BT_INFO("workers attach on %.*s:%u", (int)(colon - c->opt->control), c->opt->control, port);
    bt_announce(c->opt->announce_fd, true, "control %.*s:%u", (int)(colon - c->opt->control),
                c->opt->control, port);
out:
    if (st != BT_OK) bt_announce(c->opt->announce_fd, true, "failed %s", bt_error_text());
    return st;
}

int bt_coordinator_run(const bt_coordinator_options *options)
{
    coordinator      c      = {.opt = options, .deadline_ns = UINT64_MAX, .exit_code = 1};
    struct sigaction action = {.sa_handler = on_signal}, gently = {.sa_handler = on_drain};

    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGUSR1, &gently, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (start(&c) == BT_OK) {
        serve(&c);
        close_up(&c);
    }
    bt_http_stop(c.http);
    bt_public_destroy(c.pub);
    bt_control_server_destroy(c.control);
    bt_relay_destroy(c.relay);
    bt_observer_destroy(c.observer);
    bt_cell_fini(&c.cell);
    bt_rpc_tls_free(&c.tls);
    bt_free(c.peers);
    bt_rpc_loop_destroy(c.loop);
    return c.exit_code;
}
