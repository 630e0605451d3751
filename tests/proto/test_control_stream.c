/* Both ends of a control stream in one process: order, back pressure, refusals, lost streams. */
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"
#include "proto/control_attach.h"
#include "proto/control_server.h"
#include "tests/proto/control_samples.h"
#include "tests/support/test.h"

enum { WAIT_S = 60 };

typedef struct {
    bt_rpc_loop       *loop;
    bt_control_server *server;
    bt_control_peer   *peer; /* the last that said hello */
    uint16_t           port;
    char               address[64];
    int                n_hello, n_up, n_lost;
    grpc_status_code   refuse; /* OK: not */
    uint64_t           next;   /* progress messages count up: order */
    bool               in_order;
    char               reason[32]; /* of a leaving */
} host;

static void on_message(void *ctx, bt_control_peer *peer, bt_up *m)
{
    host *h = ctx;

    h->n_up++;
    h->peer = peer;
    if (m->kind == BT_UP_HELLO) {
        h->n_hello++;
        bt_control_peer_set_data(peer, h);
        if (h->refuse != GRPC_STATUS_OK)
            bt_control_refuse(peer, h->refuse, "rank 1 has another model");
    } else {
        EXPECT(bt_control_peer_data(peer) == h);
    }
    if (m->kind == BT_UP_PROGRESS && m->u.progress.done_bytes != h->next++) h->in_order = false;
    if (m->kind == BT_UP_LEAVING) snprintf(h->reason, sizeof(h->reason), "%s", m->u.leaving.reason);
}

static void on_lost(void *ctx, bt_control_peer *peer)
{
    host *h = ctx;

    h->n_lost++;
    if (h->peer == peer) h->peer = NULL;
}

static void host_start_at(host *h, const char *address)
{
    bt_control_events events = {.message = on_message, .lost = on_lost, .ctx = h};

    memset(h, 0, sizeof(*h));
    h->in_order = true;
    EXPECT_EQ(bt_rpc_loop_create(&h->loop), BT_OK);
    EXPECT_EQ(bt_control_server_create(h->loop, address, &events, &h->server, &h->port), BT_OK);
    snprintf(h->address, sizeof(h->address), "127.0.0.1:%u", h->port);
}

static void host_start(host *h) { host_start_at(h, "127.0.0.1:0"); }

static void host_stop(host *h)
{
    bt_control_server_stop(h->server);
    bt_control_server_destroy(h->server);
    EXPECT(bt_rpc_loop_idle(h->loop));
    bt_rpc_loop_destroy(h->loop);
}

/* Drives the host until the condition holds. */
#define UNTIL(h, cond)                                                       \
    do {                                                                     \
        uint64_t end_ = bt_now_ns() + WAIT_S * BT_NS_PER_S;                  \
        while (!(cond) && bt_now_ns() < end_)                                \
            bt_rpc_loop_run_once((h)->loop, bt_now_ns() + 5 * BT_NS_PER_MS); \
        EXPECT(cond);                                                        \
    } while (0)

/* start() blocks its thread until the server answers, so the server needs one of its own here. */
typedef struct {
    host       *h;
    atomic_bool stop;
} driver;

static void *drive(void *arg)
{
    driver *d = arg;

    while (!atomic_load(&d->stop))
        bt_rpc_loop_run_once(d->h->loop, bt_now_ns() + 2 * BT_NS_PER_MS);
    return NULL;
}

static bt_status attach_quiet(host *h, uint64_t connect_ns, uint64_t quiet_ns,
                              bt_control_client **client_out)
{
    driver    d = {.h = h};
    pthread_t thread;
    bt_status st;

    pthread_create(&thread, NULL, drive, &d);
    st = bt_control_client_start(h->address, connect_ns, quiet_ns, client_out);
    atomic_store(&d.stop, true);
    pthread_join(thread, NULL);
    return st;
}

static bt_status attach(host *h, uint64_t connect_ns, bt_control_client **client_out)
{
    return attach_quiet(h, connect_ns, 0, client_out);
}

static void say_hello(bt_control_client *client)
{
    bt_up m = sample_hello(1, 4);

    EXPECT_EQ(bt_control_client_send(client, &m), BT_OK);
}

/* The next message from the host, within the time. */
static bool take(host *h, bt_control_client *client, bt_down *m)
{
    uint64_t end = bt_now_ns() + WAIT_S * BT_NS_PER_S;

    while (bt_now_ns() < end) {
        if (bt_control_client_poll(client, m)) return true;
        if (bt_control_client_lost(client)) return false;
        bt_rpc_loop_run_once(h->loop, bt_now_ns() + BT_NS_PER_MS);
    }
    return false;
}

static bool readable(bt_control_client *client)
{
    struct pollfd p = {.fd = bt_control_client_fd(client), .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

static void stream_messages_arrive_whole_and_in_order(void)
{
    enum { N = 3000 };
    host               h;
    bt_control_client *client = NULL;
    bt_down            m;
    long               live = bt_alloc_live();

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    say_hello(client);
    UNTIL(&h, h.n_hello == 1);
    for (uint64_t i = 0; i < N; i++) {
        bt_up up = {
            .kind = BT_UP_PROGRESS, .u.progress = {i, N}
        };

        EXPECT_EQ(bt_control_client_send(client, &up), BT_OK);
    }
    for (uint32_t i = 0; i < N; i++) {
        bt_down down = {.kind = BT_DOWN_WAKE, .u.wake = {i}};

        bt_control_send(h.peer, &down);
    }
    for (uint32_t i = 0; i < N; i++) {
        if (!take(&h, client, &m)) break;
        EXPECT(m.kind == BT_DOWN_WAKE && m.u.wake.wake == i);
        bt_down_free(&m);
    }
    UNTIL(&h, h.n_up == N + 1);
    EXPECT(h.in_order);
    EXPECT(!readable(client));
    EXPECT(!bt_control_client_lost(client));
    bt_control_client_stop(client, BT_NS_PER_S);
    UNTIL(&h, h.n_lost == 1);
    host_stop(&h);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void stream_big_message_arrives(void)
{
    enum { BYTES = 24 << 20 };
    host               h;
    bt_control_client *client = NULL;
    bt_up              m      = {.kind = BT_UP_EVAL_ROWS};

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    say_hello(client);
    m.u.eval_rows.n_rows        = 1;
    m.u.eval_rows.n_logit_bytes = BYTES;
    m.u.eval_rows.logits        = bt_calloc(BYTES, 1);
    EXPECT_EQ(bt_control_client_send(client, &m), BT_OK);
    UNTIL(&h, h.n_up == 2);
    bt_control_client_stop(client, BT_NS_PER_S);
    host_stop(&h);
}

static void stream_stop_flushes_what_was_sent(void)
{
    host               h;
    bt_control_client *client = NULL;
    bt_up              m      = {.kind = BT_UP_LEAVING};
    driver             d      = {.h = &h};
    pthread_t          thread;

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    say_hello(client);
    m.u.leaving.reason = bt_strdup("asked");
    EXPECT_EQ(bt_control_client_send(client, &m), BT_OK);
    pthread_create(&thread, NULL, drive, &d);
    bt_control_client_stop(client, 10 * BT_NS_PER_S);
    atomic_store(&d.stop, true);
    pthread_join(thread, NULL);
    UNTIL(&h, h.n_lost == 1);
    EXPECT(strcmp(h.reason, "asked") == 0);
    host_stop(&h);
}

/* orphaned: it may try again. */
static void check_refusal(grpc_status_code code, bool orphaned)
{
    host               h;
    bt_control_client *client = NULL;
    bt_down            m;
    char               why[512];

    host_start(&h);
    h.refuse = code;
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    say_hello(client);
    EXPECT(!take(&h, client, &m));
    EXPECT(bt_control_client_lost(client) && readable(client));
    bt_control_client_loss(client, why, sizeof(why));
    EXPECT_HAS(why, "rank 1 has another model");
    EXPECT_EQ(bt_control_client_orphaned(client), orphaned);
    EXPECT_EQ(h.n_lost, 0); /* who refuses knows */
    bt_control_client_stop(client, 0);
    host_stop(&h);
}

static void stream_refusal_reaches_the_rank(void)
{
    check_refusal(GRPC_STATUS_FAILED_PRECONDITION, false);
    check_refusal(GRPC_STATUS_UNAVAILABLE, true);
}

static void attach_finds_the_next_host_at_the_address(void)
{
    host               h;
    bt_control_attach *search = NULL;
    bt_control_client *client = NULL;
    char               address[64], why[512];
    bool               over  = false;
    long               live  = bt_alloc_live();
    bt_up              hello = sample_hello(1, 4);
    uint64_t           end;

    host_start(&h);
    memcpy(address, h.address, sizeof(address));
    host_stop(&h);
    EXPECT_EQ(bt_control_attach_start(address, WAIT_S * BT_NS_PER_S, 0, &hello, &search), BT_OK);
    bt_sleep_ns(300 * BT_NS_PER_MS);
    EXPECT(!bt_control_attach_poll(search, &client, why, sizeof(why)));
    host_start_at(&h, address);
    UNTIL(&h, h.n_hello == 1); /* also while nobody polls */
    for (end = bt_now_ns() + WAIT_S * BT_NS_PER_S; !over && bt_now_ns() < end;) {
        bt_rpc_loop_run_once(h.loop, bt_now_ns() + BT_NS_PER_MS);
        over = bt_control_attach_poll(search, &client, why, sizeof(why));
    }
    EXPECT(over && client != NULL);
    EXPECT(bt_control_client_orphaned(client) == false);
    host_stop(&h);
    end = bt_now_ns() + WAIT_S * BT_NS_PER_S;
    while (!bt_control_client_lost(client) && bt_now_ns() < end)
        bt_sleep_ns(BT_NS_PER_MS);
    EXPECT(bt_control_client_lost(client));
    bt_control_client_stop(client, 0);

    hello = sample_hello(1, 4);
    EXPECT_EQ(bt_control_attach_start(address, 100 * BT_NS_PER_MS, 0, &hello, &search), BT_OK);
    for (over = false, end = bt_now_ns() + WAIT_S * BT_NS_PER_S; !over && bt_now_ns() < end;)
        over = bt_control_attach_poll(search, &client, why, sizeof(why));
    EXPECT(over && client == NULL);
    EXPECT_HAS(why, address);
    EXPECT_HAS(why, " for "); /* one of several searches: no limit of its own */
    EXPECT_EQ(bt_alloc_live(), live);
}

static void stream_first_message_must_be_a_hello(void)
{
    host               h;
    bt_control_client *client = NULL;
    bt_up              m      = {.kind = BT_UP_READY};
    bt_down            down;
    char               why[512];

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    EXPECT_EQ(bt_control_client_send(client, &m), BT_OK);
    EXPECT(!take(&h, client, &down));
    bt_control_client_loss(client, why, sizeof(why));
    EXPECT_HAS(why, "hello");
    EXPECT_EQ(h.n_up, 0);
    bt_control_client_stop(client, 0);
    host_stop(&h);
}

static void stream_first_message_longer_than_any_hello_is_not_unpacked(void)
{
    host               h;
    bt_control_client *client = NULL;
    bt_up              m      = sample_hello(1, 4);
    bt_down            down;
    char               why[512];
    enum { LONG = 2 << 20 };

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    bt_free(m.u.hello.model_type);
    m.u.hello.model_type = bt_calloc(LONG, 1);
    EXPECT(m.u.hello.model_type != NULL);
    memset(m.u.hello.model_type, 'a', LONG - 1);
    EXPECT_EQ(bt_control_client_send(client, &m), BT_OK);
    EXPECT(!take(&h, client, &down));
    bt_control_client_loss(client, why, sizeof(why));
    EXPECT_HAS(why, "too long for a hello");
    EXPECT(h.n_up == 0 && h.n_lost == 0);
    bt_control_client_stop(client, 0);
    host_stop(&h);
}

static void stream_without_a_hello_ends_at_its_deadline(void)
{
    host               h;
    bt_control_client *early = NULL, *late = NULL;
    bt_down            down;
    char               why[512];
    uint64_t           now_ns;

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &early), BT_OK);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &late), BT_OK);
    now_ns = bt_now_ns();
    for (int s = 0; s < BT_CONTROL_HELLO_S; s += BT_CONTROL_HELLO_S / 3)
        bt_control_server_tick(h.server, now_ns + (uint64_t)s * BT_NS_PER_S);
    say_hello(early); /* just in time */
    UNTIL(&h, h.n_hello == 1);
    bt_control_server_tick(h.server, now_ns + BT_CONTROL_HELLO_S * BT_NS_PER_S);
    EXPECT(!take(&h, late, &down));
    bt_control_client_loss(late, why, sizeof(why));
    EXPECT_HAS(why, "no hello has come");
    EXPECT(bt_control_client_orphaned(late));
    EXPECT_EQ(h.n_lost, 0);
    EXPECT(!bt_control_client_lost(early));
    bt_control_client_stop(early, 0);
    bt_control_client_stop(late, 0);
    host_stop(&h);
}

static void stream_without_a_hello_is_not_late_while_the_host_stands_still(void)
{
    host               h;
    bt_control_client *client = NULL;

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    bt_control_server_tick(h.server, bt_now_ns());
    bt_control_server_tick(h.server, bt_now_ns() + BT_CONTROL_HELLO_S * BT_NS_PER_S);
    say_hello(client);
    UNTIL(&h, h.n_hello == 1);
    bt_control_client_stop(client, 0);
    host_stop(&h);
}

/* Whatever allocation of the start fails: where the server is there, it listens. */
static void server_that_had_no_memory_to_listen_tries_again(void)
{
    uint32_t n_served = 0;

    for (long k = 0; k < 4; k++) {
        bt_control_events  events = {on_message, on_lost, NULL};
        host               h      = {.in_order = true};
        bt_control_client *client = NULL;
        bt_status          st;

        events.ctx = &h;
        EXPECT_EQ(bt_rpc_loop_create(&h.loop), BT_OK);
        bt_alloc_fail_at(k);
        st = bt_control_server_create(h.loop, "127.0.0.1:0", &events, &h.server, &h.port);
        bt_alloc_fail_at(-1);
        if (st == BT_OK) {
            n_served++;
            snprintf(h.address, sizeof(h.address), "127.0.0.1:%u", h.port);
            bt_control_server_tick(h.server, bt_now_ns());
            EXPECT_EQ(attach(&h, 2 * BT_NS_PER_S, &client), BT_OK);
            bt_control_client_stop(client, 0);
            bt_control_server_stop(h.server);
            bt_control_server_destroy(h.server);
        }
        bt_rpc_loop_destroy(h.loop);
    }
    EXPECT(n_served >= 3); /* without memory for peers, for strays, and with all of it */
}

static bool g_no_thread;

/* In place of core/thread.c. */
int bt_thread_start(pthread_t *thread_out, void *(*run)(void *ctx), void *ctx)
{
    return g_no_thread ? EAGAIN : pthread_create(thread_out, NULL, run, ctx);
}

/* For the search, then for its thread. */
static void attach_without_memory_frees_the_hello(void)
{
    for (int i = 0; i < 2; i++) {
        bt_control_attach *attach = NULL;
        long               live   = bt_alloc_live();
        bt_up              hello  = sample_hello(1, 4);

        bt_alloc_fail_at(i == 0 ? 0 : -1);
        g_no_thread = i == 1;
        EXPECT_EQ(bt_control_attach_start("127.0.0.1:1", 0, 0, &hello, &attach), BT_ERR_NO_MEMORY);
        bt_alloc_fail_at(-1);
        g_no_thread = false;
        EXPECT_EQ(bt_alloc_live(), live);
    }
}

static void stream_message_out_of_range_ends_it(void)
{
    host               h;
    bt_control_client *client = NULL;
    bt_up              m      = sample_up(BT_UP_FAILED);
    bt_down            down;
    char               why[512];

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    say_hello(client);
    m.u.failed.code = 99;
    EXPECT_EQ(bt_control_client_send(client, &m), BT_OK);
    EXPECT(!take(&h, client, &down));
    bt_control_client_loss(client, why, sizeof(why));
    EXPECT_HAS(why, "code 99");
    EXPECT_EQ(h.n_lost, 1);
    bt_control_client_stop(client, 0);
    host_stop(&h);
}

static void stream_server_gone_is_reported_after_its_last_message(void)
{
    host               h;
    bt_control_client *client = NULL;
    bt_down            m      = {.kind = BT_DOWN_SHUTDOWN}, got;
    bt_up              late   = {.kind = BT_UP_READY};
    uint64_t           end    = bt_now_ns() + WAIT_S * BT_NS_PER_S;

    host_start(&h);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    say_hello(client);
    UNTIL(&h, h.n_hello == 1);
    m.u.shutdown.reason = bt_strdup("enough");
    bt_control_send(h.peer, &m);
    UNTIL(&h, readable(client));
    host_stop(&h);
    bt_sleep_ns(50 * BT_NS_PER_MS);
    EXPECT(!bt_control_client_lost(client)); /* one message is still there */
    EXPECT(bt_control_client_poll(client, &got) && got.kind == BT_DOWN_SHUTDOWN);
    EXPECT_HAS(got.u.shutdown.reason, "enough");
    bt_down_free(&got);
    while (!bt_control_client_lost(client) && bt_now_ns() < end)
        bt_sleep_ns(BT_NS_PER_MS);
    EXPECT(bt_control_client_lost(client) && readable(client));
    EXPECT_EQ(bt_control_client_send(client, &late), BT_ERR_PEER);
    bt_control_client_stop(client, BT_NS_PER_S);
}

/* From now on the socket hears nothing, nor is anything acknowledged that is sent to it. */
static void go_deaf(void *ctx, int fd)
{
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog  drop = {1, &none};

    NEED(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &drop, sizeof(drop)) == 0);
    ++*(int *)ctx;
}

/* Its machine has gone, and no word comes of it: the rank, which says nothing itself, finds out in
 * the time that it was given, and not before. */
static void stream_to_a_machine_that_has_gone_is_lost_in_its_time(void)
{
    enum { QUIET_MS = 1000, MOST_MS = 4000 }; /* by itself gRPC would look after 5 s, for 10 s */
    host               h;
    bt_control_client *client = NULL;
    uint64_t           begin, took_ns;
    int                n_deaf = 0;

    host_start(&h);
    EXPECT_EQ(attach_quiet(&h, WAIT_S * BT_NS_PER_S, QUIET_MS * BT_NS_PER_MS, &client), BT_OK);
    say_hello(client);
    UNTIL(&h, h.n_hello == 1);
    bt_sleep_ns(5 * QUIET_MS / 4 * BT_NS_PER_MS); /* who has nothing to say is not lost */
    EXPECT(!bt_control_client_lost(client));
    begin = bt_now_ns();
    bt_rpc_each_socket(h.port, go_deaf, &n_deaf);
    EXPECT(n_deaf >= 2); /* the listener too */
    while (!bt_control_client_lost(client) && bt_now_ns() - begin < WAIT_S * BT_NS_PER_S)
        bt_sleep_ns(10 * BT_NS_PER_MS);
    took_ns = bt_now_ns() - begin;
    EXPECT(took_ns >= QUIET_MS * BT_NS_PER_MS / 2 && took_ns < MOST_MS * BT_NS_PER_MS);
    EXPECT(bt_control_client_orphaned(client));
    bt_control_client_stop(client, 0);
    host_stop(&h);
}

static void stream_to_a_closed_port_names_address_and_cause(void)
{
    bt_control_client *client = NULL;
    uint64_t           begin  = bt_now_ns();

    EXPECT_EQ(bt_control_client_start("127.0.0.1:1", 400 * BT_NS_PER_MS, 0, &client), BT_ERR_PEER);
    EXPECT(bt_now_ns() - begin < WAIT_S * BT_NS_PER_S);
    EXPECT_HAS(bt_error_text(), "127.0.0.1:1");
    EXPECT_HAS(bt_error_text(), "refused");
    EXPECT(client == NULL);
}

/* A port that accepts and says nothing. */
static void stream_to_a_mute_port_ends_at_its_deadline(void)
{
    bt_control_client *client = NULL;
    struct sockaddr_in a      = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          n      = sizeof(a);
    int                fd     = socket(AF_INET, SOCK_STREAM, 0);
    uint64_t           begin  = bt_now_ns();
    char               address[64];

    EXPECT_EQ(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    EXPECT_EQ(listen(fd, 8), 0);
    EXPECT_EQ(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(a.sin_port));
    EXPECT_EQ(bt_control_client_start(address, 400 * BT_NS_PER_MS, 0, &client), BT_ERR_PEER);
    EXPECT(bt_now_ns() - begin < WAIT_S * BT_NS_PER_S);
    EXPECT_HAS(bt_error_text(), "no answer");
    close(fd);
}

static void server_on_a_used_port_says_so(void)
{
    host               h;
    bt_control_server *second = NULL;
    bt_control_events  events = {.message = on_message, .lost = on_lost, .ctx = &h};
    uint16_t           port   = 0;

    host_start(&h);
    EXPECT_EQ(bt_control_server_create(h.loop, h.address, &events, &second, &port), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), h.address);
    EXPECT_HAS(bt_error_text(), "in use");
    EXPECT_EQ(bt_control_server_create(h.loop, "nonsense", &events, &second, &port), BT_ERR_IO);
    host_stop(&h);
}

static void client_with_short_memory_fails_cleanly(void)
{
    bt_control_client *client = NULL;
    host               h;
    long               live;

    host_start(&h);
    live = bt_alloc_live();
    bt_alloc_fail_at(0); /* the client's own one; gRPC's are not ours to fail */
    EXPECT_EQ(bt_control_client_start(h.address, BT_NS_PER_S, 0, &client), BT_ERR_NO_MEMORY);
    EXPECT_EQ(bt_alloc_live(), live);
    bt_alloc_fail_at(-1);
    host_stop(&h);
}

/* The server knows one secret; who shows another or none is turned away and never heard of. */
static void stream_needs_the_secret(void)
{
    static const char *const wrong[] = {"", "0123456789abcdeX", "0123456789abcdef0",
                                        "0123456789abcde!"};
    host                     h;
    bt_control_client       *client = NULL;

    setenv("BATON_SECRET", "0123456789abcdef", 1);
    host_start(&h);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        setenv("BATON_SECRET", wrong[i], 1);
        EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_ERR_PEER);
        EXPECT_HAS(bt_error_text(), "refuses this rank: it does not show the cell's secret");
    }
    EXPECT_EQ(h.n_hello, 0);
    setenv("BATON_SECRET", "0123456789abcdef", 1);
    EXPECT_EQ(attach(&h, WAIT_S * BT_NS_PER_S, &client), BT_OK);
    say_hello(client);
    UNTIL(&h, h.n_hello == 1);
    bt_control_client_stop(client, BT_NS_PER_S);
    host_stop(&h);
    unsetenv("BATON_SECRET");
}

static const bt_test tests[] = {
    BT_TEST(stream_needs_the_secret),
    BT_TEST(stream_messages_arrive_whole_and_in_order),
    BT_TEST(stream_big_message_arrives),
    BT_TEST(stream_stop_flushes_what_was_sent),
    BT_TEST(stream_refusal_reaches_the_rank),
    BT_TEST(attach_finds_the_next_host_at_the_address),
    BT_TEST(stream_first_message_must_be_a_hello),
    BT_TEST(stream_first_message_longer_than_any_hello_is_not_unpacked),
    BT_TEST(stream_without_a_hello_ends_at_its_deadline),
    BT_TEST(stream_without_a_hello_is_not_late_while_the_host_stands_still),
    BT_TEST(server_that_had_no_memory_to_listen_tries_again),
    BT_TEST(attach_without_memory_frees_the_hello),
    BT_TEST(stream_message_out_of_range_ends_it),
    BT_TEST(stream_server_gone_is_reported_after_its_last_message),
    BT_TEST(stream_to_a_machine_that_has_gone_is_lost_in_its_time),
    BT_TEST(stream_to_a_closed_port_names_address_and_cause),
    BT_TEST(stream_to_a_mute_port_ends_at_its_deadline),
    BT_TEST(server_on_a_used_port_says_so),
    BT_TEST(client_with_short_memory_fails_cleanly),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
