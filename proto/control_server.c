#include "proto/control_server.h"

#include <grpc/support/alloc.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/rank_map.h"
#include "proto/control_wire.h"
#include "proto/ring.h"
#include "proto/secret.h"
#include "proto/text.h"

enum { REASON_MAX = 512, LOOK_S = 1, END_S = 20 };
/* Calls of who has not said hello: ranks do so at once. */
enum { UNKNOWN_MAX = 2 * BT_RANKS_MAX };
/* Of a hello.  A stranger's longer message is not unpacked, which may take many times its size. */
enum { HELLO_BYTES = 1 << 20 };

/* One stream.  Its memory lives until every operation on its call has completed; the owner may use
 * it from its hello until lost() or refuse. */
struct bt_control_peer {
    bt_control_server  *server;
    bt_control_peer    *prev, *next; /* list of the server */
    grpc_call          *call;        /* owned */
    gpr_timespec        deadline;    /* written by gRPC, not used */
    grpc_metadata_array request_headers;
    grpc_byte_buffer   *received;
    int                 cancelled;
    bt_rpc_tag          attached, opened, arrived, sent, closed, finished;
    bt_rpc_later        again;
    uint32_t            n_ops;       /* in flight */
    bt_ring             queue;       /* of grpc_byte_buffer *: messages to send */
    uint64_t            attached_ns; /* 0: it is still waited for */
    bool                unknown;     /* counts as such */
    bool                said_hello, sending, ended, finishing;
    grpc_status_code    code; /* that ends the stream */
    char                reason[REASON_MAX];
    void               *data;
};

/* A call of another method: answered and forgotten. */
typedef struct {
    bt_control_server  *server;
    grpc_call          *call;
    grpc_call_details   details;
    grpc_metadata_array request_headers;
    int                 cancelled;
    bt_rpc_tag          arrived, answered;
} stray;

struct bt_control_server {
    bt_rpc_loop      *loop; /* borrowed */
    grpc_server      *server;
    uint16_t          port;
    void             *method;
    bt_control_events events;
    bt_control_peer  *peers;
    uint64_t          n_peers;   /* so many, the one that is waited for too */
    uint32_t          n_unknown; /* calls of who has not said hello, of any method */
    bt_rpc_tag        down;
    bool              stopping, is_down;
    bool              deaf, deaf_to_strays;      /* there was no memory to wait for the next one */
    uint64_t          looked_ns;                 /* for peers that say nothing */
    char              secret[BT_SECRET_MAX + 1]; /* "": none is asked for */
};

static void begin(bt_control_peer *p, const grpc_op *ops, size_t n, bt_rpc_tag *tag)
{
    grpc_call_error e = grpc_call_start_batch(p->call, ops, n, tag, NULL);

    BT_ASSERT(e == GRPC_CALL_OK);
    bt_rpc_loop_begin(p->server->loop);
    p->n_ops++;
}

/* Whether one more may be here that has not said hello.  Else its call just ends: who begins calls
 * and reads nothing would hold them all. */
static bool admit(bt_control_server *s)
{
    if (s->n_unknown == UNKNOWN_MAX) return false;
    s->n_unknown++;
    return true;
}

/* It has said hello, or has gone. */
static void is_known(bt_control_peer *p)
{
    if (p->unknown) p->server->n_unknown--;
    p->unknown = false;
}

static void peer_free(bt_control_peer *p)
{
    grpc_byte_buffer *buffer;

    is_known(p);
    if (p->prev != NULL) p->prev->next = p->next;
    if (p->server->peers == p) p->server->peers = p->next;
    if (p->next != NULL) p->next->prev = p->prev;
    while (bt_ring_pop(&p->queue, &buffer))
        grpc_byte_buffer_destroy(buffer);
    bt_free(p->queue.items);
    grpc_metadata_array_destroy(&p->request_headers);
    if (p->call != NULL) grpc_call_unref(p->call);
    p->server->n_peers--;
    bt_free(p);
}

/* One operation fewer; with the last one the peer goes. */
static void done(bt_control_peer *p)
{
    if (--p->n_ops == 0) peer_free(p);
}

/* Sends the status once nothing else is under way to the rank. */
static void finish(bt_control_peer *p)
{
    grpc_op    op      = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    grpc_slice details = grpc_slice_from_copied_string(p->reason);

    p->finishing                                   = true;
    op.data.send_status_from_server.status         = p->code;
    op.data.send_status_from_server.status_details = &details;
    begin(p, &op, 1, &p->finished);
    grpc_slice_unref(details);
}

/* Starts the next send, or the end, when nothing is being sent. */
static void pump(bt_control_peer *p)
{
    grpc_op           op = {.op = GRPC_OP_SEND_MESSAGE};
    grpc_byte_buffer *buffer;

    if (p->sending || p->finishing) return;
    if (bt_ring_pop(&p->queue, &buffer)) {
        op.data.send_message.send_message = buffer;
        p->sending                        = true;
        begin(p, &op, 1, &p->sent);
        grpc_byte_buffer_destroy(buffer);
    } else if (p->ended) {
        finish(p);
    }
}

/* The stream is over for the owner: tells it, once, unless the owner itself ended it. */
static void end(bt_control_peer *p, grpc_status_code code, const char *reason, bool tell)
{
    if (p->ended) return;
    p->ended = true;
    p->code  = code;
    bt_text_clean(reason, p->reason, sizeof(p->reason));
    if (tell && p->said_hello) p->server->events.lost(p->server->events.ctx, p);
    pump(p);
}

static void on_sent(bt_rpc_tag *tag, bool ok)
{
    bt_control_peer *p = tag->ctx;

    (void)ok; /* a failed send means that the call is closing: on_closed() tells */
    p->sending = false;
    pump(p);
    done(p);
}

static void on_simple(bt_rpc_tag *tag, bool ok)
{
    (void)ok;
    done(tag->ctx);
}

/* The stream was cancelled from the other side or by us, or has ended in order. */
static void on_closed(bt_rpc_tag *tag, bool ok)
{
    bt_control_peer *p = tag->ctx;

    (void)ok;
    if (p->cancelled) end(p, GRPC_STATUS_CANCELLED, "the stream was cut", true);
    done(p);
}

static void recv_next(bt_control_peer *p)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    op.data.recv_message.recv_message = &p->received;
    begin(p, &op, 1, &p->arrived);
}

static void handle(bt_control_peer *p, grpc_byte_buffer *buffer)
{
    bt_up     m = {0};
    bt_status st;

    if (!p->said_hello && grpc_byte_buffer_length(buffer) > HELLO_BYTES) {
        end(p, GRPC_STATUS_INVALID_ARGUMENT, "the first message is too long for a hello", false);
        return;
    }
    st = bt_control_read_up(buffer, &m);
    if (st != BT_OK) {
        end(p, GRPC_STATUS_INVALID_ARGUMENT, bt_error_text(), true);
        return;
    }
    if (!p->said_hello && m.kind != BT_UP_HELLO)
        end(p, GRPC_STATUS_FAILED_PRECONDITION, "the first message must be a hello", false);
    else if (p->said_hello && m.kind == BT_UP_HELLO)
        end(p, GRPC_STATUS_FAILED_PRECONDITION, "a second hello", true);
    else {
        p->said_hello = true;
        is_known(p);
        p->server->events.message(p->server->events.ctx, p, &m);
    }
    bt_up_free(&m);
}

static void on_arrived(bt_rpc_tag *tag, bool ok)
{
    bt_control_peer  *p      = tag->ctx;
    grpc_byte_buffer *buffer = p->received;

    (void)ok;
    p->received = NULL;
    if (buffer == NULL) {
        end(p, GRPC_STATUS_OK, "", true); /* the rank has closed its side */
    } else {
        if (!p->ended) handle(p, buffer);
        grpc_byte_buffer_destroy(buffer);
        bt_rpc_loop_defer(p->server->loop, &p->again); /* tokens go to their clients first */
        p->n_ops++;
    }
    done(p);
}

static void on_again(void *ctx)
{
    recv_next(ctx);
    done(ctx);
}

static void listen_for_peer(bt_control_server *s);

static bool knows_the_secret(const bt_control_peer *p)
{
    const char                *secret = p->server->secret;
    const grpc_metadata_array *all    = &p->request_headers;

    if (secret[0] == 0) return true;
    for (size_t i = 0; i < all->count; i++) {
        grpc_slice value = all->metadata[i].value;

        if (grpc_slice_str_cmp(all->metadata[i].key, BT_SECRET_HEADER) == 0)
            return bt_secret_equal(GRPC_SLICE_START_PTR(value), GRPC_SLICE_LENGTH(value), secret,
                                   strlen(secret));
    }
    return false;
}

/* A stranger learns nothing but this, not even that it has found a coordinator. */
static void turn_away(bt_control_peer *p)
{
    grpc_slice why = grpc_slice_from_static_string(
        "it does not show the cell's secret (BATON_SECRET or BATON_SECRET_FILE)");
    grpc_op ops[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                      {.op = GRPC_OP_SEND_STATUS_FROM_SERVER},
                      {.op = GRPC_OP_RECV_CLOSE_ON_SERVER}};

    BT_WARN("a peer without the cell's secret was turned away");
    p->ended = p->finishing                            = true;
    ops[1].data.send_status_from_server.status         = GRPC_STATUS_UNAUTHENTICATED;
    ops[1].data.send_status_from_server.status_details = &why;
    ops[2].data.recv_close_on_server.cancelled         = &p->cancelled;
    begin(p, ops, 3, &p->finished);
}

static void open_stream(bt_control_peer *p)
{
    grpc_metadata header     = {.key   = grpc_slice_from_static_string(BT_CONTROL_HEADER),
                                .value = grpc_slice_from_static_string("1")};
    grpc_op       open       = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    grpc_op       wait_close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    open.data.send_initial_metadata.count          = 1;
    open.data.send_initial_metadata.metadata       = &header;
    wait_close.data.recv_close_on_server.cancelled = &p->cancelled;
    p->attached_ns                                 = bt_now_ns();
    begin(p, &wait_close, 1, &p->closed);
    begin(p, &open, 1, &p->opened);
    recv_next(p);
}

static void on_attached(bt_rpc_tag *tag, bool ok)
{
    bt_control_peer *p = tag->ctx;

    if (ok) { /* else the server is stopping */
        listen_for_peer(p->server);
        p->unknown = admit(p->server);
        if (p->unknown && knows_the_secret(p))
            open_stream(p);
        else if (p->unknown)
            turn_away(p);
    }
    done(p);
}

static void listen_for_peer(bt_control_server *s)
{
    bt_control_peer *p = s->stopping ? NULL : bt_calloc(1, sizeof(*p));
    grpc_call_error  e;

    if (p == NULL && !s->stopping && !s->deaf)
        BT_WARN("out of memory: ranks that attach wait until there is some");
    s->deaf = p == NULL;
    if (p == NULL) return;
    p->server           = s;
    p->queue.item_bytes = sizeof(grpc_byte_buffer *);
    p->attached         = (bt_rpc_tag){on_attached, p};
    p->opened           = (bt_rpc_tag){on_simple, p};
    p->arrived          = (bt_rpc_tag){on_arrived, p};
    p->again            = (bt_rpc_later){.fn = on_again, .ctx = p};
    p->sent             = (bt_rpc_tag){on_sent, p};
    p->closed           = (bt_rpc_tag){on_closed, p};
    p->finished         = (bt_rpc_tag){on_simple, p};
    p->n_ops            = 1;
    s->n_peers++;
    p->next = s->peers;
    if (p->next != NULL) p->next->prev = p;
    s->peers = p;
    grpc_metadata_array_init(&p->request_headers);
    e = grpc_server_request_registered_call(s->server, s->method, &p->call, &p->deadline,
                                            &p->request_headers, NULL, bt_rpc_loop_cq(s->loop),
                                            bt_rpc_loop_cq(s->loop), &p->attached);
    BT_ASSERT(e == GRPC_CALL_OK);
    bt_rpc_loop_begin(s->loop);
}

static void listen_for_stray(bt_control_server *s);

/* It may be a rank that is slow: it may try again. */
static void cut_off(bt_control_peer *p)
{
    char *who = grpc_call_get_peer(p->call);

    BT_WARN("%s has opened a control stream and not said hello within %d s: it is cut off", who,
            BT_CONTROL_HELLO_S);
    gpr_free(who);
    end(p, GRPC_STATUS_UNAVAILABLE, "no hello has come", false);
}

void bt_control_server_tick(bt_control_server *server, uint64_t now_ns)
{
    const uint64_t hello_ns = BT_CONTROL_HELLO_S * BT_NS_PER_S;
    uint64_t       gap_ns;

    if (server->deaf) listen_for_peer(server);
    if (server->deaf_to_strays) listen_for_stray(server);
    if (now_ns - server->looked_ns < LOOK_S * BT_NS_PER_S) return;
    gap_ns = bt_stood_still_ns(&server->looked_ns, now_ns, LOOK_S * BT_NS_PER_S + hello_ns / 2);
    for (bt_control_peer *p = server->peers; p != NULL; p = p->next) {
        if (p->attached_ns == 0 || p->said_hello || p->ended) continue;
        if (gap_ns != 0)
            p->attached_ns = now_ns;
        else if (bt_since_ns(p->attached_ns, now_ns) >= hello_ns)
            cut_off(p);
    }
}

/* ---- other methods */

static void stray_free(stray *x)
{
    grpc_metadata_array_destroy(&x->request_headers);
    grpc_call_details_destroy(&x->details);
    if (x->call != NULL) grpc_call_unref(x->call);
    bt_free(x);
}

static void on_answered(bt_rpc_tag *tag, bool ok)
{
    stray *x = tag->ctx;

    (void)ok;
    x->server->n_unknown--;
    stray_free(x);
}

static void on_stray(bt_rpc_tag *tag, bool ok)
{
    stray          *x       = tag->ctx;
    grpc_slice      details = grpc_slice_from_static_string("this is a Baton control port");
    grpc_op         ops[3]  = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                               {.op = GRPC_OP_SEND_STATUS_FROM_SERVER},
                               {.op = GRPC_OP_RECV_CLOSE_ON_SERVER}};
    grpc_call_error e;

    if (ok) listen_for_stray(x->server);
    if (!ok || !admit(x->server)) {
        stray_free(x);
        return;
    }
    ops[1].data.send_status_from_server.status         = GRPC_STATUS_UNIMPLEMENTED;
    ops[1].data.send_status_from_server.status_details = &details;
    ops[2].data.recv_close_on_server.cancelled         = &x->cancelled;
    e = grpc_call_start_batch(x->call, ops, 3, &x->answered, NULL);
    BT_ASSERT(e == GRPC_CALL_OK);
    bt_rpc_loop_begin(x->server->loop);
}

static void listen_for_stray(bt_control_server *s)
{
    stray          *x = s->stopping ? NULL : bt_calloc(1, sizeof(*x));
    grpc_call_error e;

    s->deaf_to_strays = x == NULL;
    if (x == NULL) return;
    x->server   = s;
    x->arrived  = (bt_rpc_tag){on_stray, x};
    x->answered = (bt_rpc_tag){on_answered, x};
    grpc_call_details_init(&x->details);
    grpc_metadata_array_init(&x->request_headers);
    e = grpc_server_request_call(s->server, &x->call, &x->details, &x->request_headers,
                                 bt_rpc_loop_cq(s->loop), bt_rpc_loop_cq(s->loop), &x->arrived);
    BT_ASSERT(e == GRPC_CALL_OK);
    bt_rpc_loop_begin(s->loop);
}

/* ---- the server */

static void on_down(bt_rpc_tag *tag, bool ok)
{
    bt_control_server *s = tag->ctx;

    (void)ok;
    s->is_down = true;
}

/* When gRPC uses none of it: the server has ended, or has never started. */
static void discard(bt_control_server *s)
{
    if (s == NULL) return;
    if (s->server != NULL) grpc_server_destroy(s->server);
    explicit_bzero(s->secret, sizeof(s->secret));
    bt_free(s);
}

bt_status bt_control_server_create(bt_rpc_loop *loop, const char *address,
                                   const bt_control_events *events, bt_control_server **server_out,
                                   uint16_t *port_out)
{
    bt_status          st = BT_OK;
    bt_control_server *s  = bt_calloc(1, sizeof(*s));

    BT_REQUIRE(s != NULL, BT_ERR_NO_MEMORY, "control server");
    BT_TRY(bt_secret_read(s->secret));
    s->loop   = loop;
    s->events = *events;
    s->down   = (bt_rpc_tag){on_down, s};
    s->server = grpc_server_create(bt_rpc_server_args(), NULL);
    grpc_server_register_completion_queue(s->server, bt_rpc_loop_cq(loop), NULL);
    s->method =
        grpc_server_register_method(s->server, BT_CONTROL_METHOD, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
    BT_TRY(bt_rpc_listen(s->server, address, NULL, &s->port));
    grpc_server_start(s->server);
    listen_for_peer(s);
    listen_for_stray(s);
    *port_out   = s->port;
    *server_out = s;
    s           = NULL; /* handed over */
out:
    discard(s);
    return st;
}

void bt_control_server_stop(bt_control_server *server)
{
    if (server == NULL || server->stopping) return;
    server->stopping = true;
    grpc_server_shutdown_and_notify(server->server, bt_rpc_loop_cq(server->loop), &server->down);
    bt_rpc_loop_begin(server->loop);
    grpc_server_cancel_all_calls(server->server);
}

/* Calls that point to the server; unknown peers twice. */
static uint64_t n_calls(const bt_control_server *s) { return s->n_peers + s->n_unknown; }

static bool is_over(void *server)
{
    const bt_control_server *s = server;

    return s->is_down && n_calls(s) == 0;
}

/* Cancelled operations complete at once, however many there are; the tags point into memory that we
 * are about to free.  Connections on which nobody reads end only when they are cut. */
static bool await_end(bt_control_server *s)
{
    if (bt_rpc_loop_await(s->loop, is_over, s, BT_NS_PER_S)) return true;
    bt_rpc_hang_up(s->port);
    if (bt_rpc_loop_await(s->loop, is_over, s, END_S * BT_NS_PER_S)) return true;
    BT_WARN("gRPC has not closed port %u within %d s of the end, with %llu calls left; the process "
            "ends without that",
            s->port, END_S, (unsigned long long)n_calls(s));
    return false;
}

bool bt_control_server_destroy(bt_control_server *server)
{
    if (server == NULL) return true;
    bt_control_server_stop(server);
    if (!await_end(server)) return false;
    discard(server);
    return true;
}

/* ---- sending */

void bt_control_send(bt_control_peer *peer, bt_down *m)
{
    grpc_byte_buffer *buffer = NULL;

    if (!peer->ended) {
        bool ok = bt_control_write_down(m, &buffer) == BT_OK && bt_ring_push(&peer->queue, &buffer);

        if (ok) {
            pump(peer);
        } else { /* no message may be lost silently: the stream ends instead */
            BT_WARN("out of memory: a control stream is cut");
            if (buffer != NULL) grpc_byte_buffer_destroy(buffer);
            grpc_call_cancel(peer->call, NULL);
        }
    }
    bt_down_free(m);
}

void  bt_control_peer_set_data(bt_control_peer *peer, void *data) { peer->data = data; }
void *bt_control_peer_data(const bt_control_peer *peer) { return peer->data; }

void bt_control_refuse(bt_control_peer *peer, grpc_status_code code, const char *reason)
{
    end(peer, code, reason, false);
}
