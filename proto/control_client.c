#include "proto/control_client.h"

#include <grpc/grpc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "proto/control_wire.h"
#include "proto/rpc.h"
#include "proto/secret.h"

enum {
    RETRY_MS  = 50,    /* between attempts at first; it doubles */
    SLOW_MS   = 400,   /* up to this */
    TRY_MS    = 5000,  /* an attempt may take: who listens there may be stopped */
    CANCEL_MS = 100,   /* a cancelled call completes at once; this process may be slow, */
    CANCEL_N  = 100,   /* or stand still, so that the clock alone does not tell: more is a bug */
    UP_MAX    = 65536, /* messages waiting for a coordinator that does not read */
    TEXT_MAX  = 512,
    RING_INIT = 64
};
typedef enum { TAG_HEADERS = 1, TAG_STATUS, TAG_RECV, TAG_SEND, TAG_CLOSE } tag;

struct bt_control_client {
    char                   address[256], secret[BT_SECRET_MAX + 1];
    grpc_channel          *channel; /* owned, as all of gRPC's here */
    grpc_completion_queue *cq;
    grpc_call             *call;
    grpc_metadata_array    headers, trailers;
    grpc_status_code       code, refusal; /* refusal: of the last attempt to attach */
    grpc_slice             details;
    grpc_byte_buffer      *received; /* of the RECV_MESSAGE in flight */
    pthread_t              reader, writer;
    bool                   has_call, has_reader, has_writer;
    uint64_t               quiet_ns;
    int                    fd;
    pthread_mutex_t        lock; /* of everything below */
    pthread_cond_t         changed;
    bt_up                 *up; /* rings */
    bt_down               *down;
    uint32_t               up_cap, up_at, n_up, down_cap, down_at, n_down;
    bool                   sending, stopping, cancelled, no_more, has_status, ended;
    uint64_t               flush_deadline_ns;
    char                   loss[2 * TEXT_MAX];
};

static void *tag_ptr(tag t) { return (void *)(uintptr_t)t; }

/* ---- the stream's start, on the caller's thread */

/* A channel of its own for each attempt: none waits because of what an earlier one has met. */
static void open_channel(bt_control_client *c)
{
    const grpc_channel_args  *usual   = bt_rpc_client_args();
    grpc_channel_credentials *creds   = grpc_insecure_credentials_create();
    int                       half_ms = (int)(c->quiet_ns / (2 * BT_NS_PER_MS));
    grpc_arg                  args[16];
    grpc_channel_args         all = {0, args};

    BT_ASSERT(usual->num_args < sizeof(args) / sizeof(args[0]));
    for (size_t i = 0; i < usual->num_args; i++) {
        args[i] = usual->args[i];
        if (c->quiet_ns != 0 && (strcmp(args[i].key, GRPC_ARG_KEEPALIVE_TIME_MS) == 0 ||
                                 strcmp(args[i].key, GRPC_ARG_KEEPALIVE_TIMEOUT_MS) == 0))
            args[i].value.integer = half_ms;
    }
    all.num_args          = usual->num_args + 1;
    args[usual->num_args] = (grpc_arg)BT_RPC_INT_ARG(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    c->channel            = grpc_channel_create(c->address, creds, &all);
    grpc_channel_credentials_release(creds);
}

static void close_channel(bt_control_client *c)
{
    if (c->channel != NULL) grpc_channel_destroy(c->channel);
    c->channel = NULL;
}

static void call_begin(bt_control_client *c)
{
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    grpc_slice      method = grpc_slice_from_static_string(BT_CONTROL_METHOD);
    grpc_metadata   secret = {.key   = grpc_slice_from_static_string(BT_SECRET_HEADER),
                              .value = grpc_slice_from_copied_string(c->secret)};
    grpc_call_error e;

    ops[0].data.send_initial_metadata.count    = c->secret[0] != 0;
    ops[0].data.send_initial_metadata.metadata = &secret;
    grpc_metadata_array_init(&c->headers);
    grpc_metadata_array_init(&c->trailers);
    c->details  = grpc_empty_slice();
    c->call     = grpc_channel_create_call(c->channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->cq, method,
                                           NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    c->has_call = true;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &c->headers;
    status.data.recv_status_on_client.trailing_metadata     = &c->trailers;
    status.data.recv_status_on_client.status                = &c->code;
    status.data.recv_status_on_client.status_details        = &c->details;
    e = grpc_call_start_batch(c->call, &status, 1, tag_ptr(TAG_STATUS), NULL);
    BT_ASSERT(e == GRPC_CALL_OK);
    e = grpc_call_start_batch(c->call, ops, 2, tag_ptr(TAG_HEADERS), NULL);
    BT_ASSERT(e == GRPC_CALL_OK);
    grpc_slice_unref(secret.value);
}

static void call_end(bt_control_client *c)
{
    if (!c->has_call) return;
    grpc_metadata_array_destroy(&c->headers);
    grpc_metadata_array_destroy(&c->trailers);
    grpc_slice_unref(c->details);
    grpc_call_unref(c->call);
    c->has_call = false;
}

static bool is_coordinator(const grpc_metadata_array *headers)
{
    for (size_t i = 0; i < headers->count; i++)
        if (grpc_slice_str_cmp(headers->metadata[i].key, BT_CONTROL_HEADER) == 0) return true;
    return false;
}

/* One attempt: attached, or the call is over and cause says why; *retry_out when another attempt
 * may find somebody. */
static bool attach_once(bt_control_client *c, uint64_t deadline_ns, char *cause, bool *retry_out)
{
    bool       has_headers = false, has_status = false;
    uint32_t   late = 0; /* since it was cancelled: waits in vain */
    grpc_event ev;

    open_channel(c);
    call_begin(c);
    while (!has_headers || !has_status) {
        ev = grpc_completion_queue_next(c->cq, bt_rpc_deadline(deadline_ns), NULL);
        if (ev.type == GRPC_QUEUE_TIMEOUT) {
            BT_ASSERT(late < CANCEL_N);
            if (late++ == 0) grpc_call_cancel(c->call, NULL);
            deadline_ns = bt_now_ns() + CANCEL_MS * BT_NS_PER_MS;
            continue;
        }
        if (ev.tag == tag_ptr(TAG_STATUS)) has_status = true;
        if (ev.tag != tag_ptr(TAG_HEADERS)) continue;
        has_headers = true;
        if (has_status || late != 0 || !ev.success) continue;
        if (is_coordinator(&c->headers)) return true;
        if (c->headers.count > 0) grpc_call_cancel(c->call, NULL); /* somebody else's stream */
    }
    bt_rpc_slice_text(c->details, cause, TEXT_MAX);
    if (late != 0) snprintf(cause, TEXT_MAX, "no answer");
    *retry_out = c->code == GRPC_STATUS_UNAVAILABLE || late != 0;
    c->refusal = c->code;
    call_end(c);
    close_channel(c);
    return false;
}

static bt_status attach(bt_control_client *c, uint64_t connect_ns)
{
    bt_status st    = BT_OK;
    uint64_t  begin = bt_now_ns(), deadline = begin + connect_ns, wait_ns = RETRY_MS * BT_NS_PER_MS;
    uint64_t  end_ns;
    bool      attached = false, retry = true;
    char      cause[TEXT_MAX] = "no attempt was made";

    for (;;) {
        end_ns   = bt_now_ns() + TRY_MS * BT_NS_PER_MS;
        attached = attach_once(c, end_ns < deadline ? end_ns : deadline, cause, &retry);
        if (attached || !retry || bt_now_ns() + wait_ns >= deadline) break;
        bt_sleep_ns(wait_ns);
        if (wait_ns < SLOW_MS * BT_NS_PER_MS) wait_ns *= 2;
    }
    BT_REQUIRE(attached || c->refusal != GRPC_STATUS_UNAUTHENTICATED, BT_ERR_PEER,
               "the coordinator at %s refuses this rank: %s", c->address, cause);
    BT_REQUIRE(attached || retry, BT_ERR_PEER, "at %s there is no Baton coordinator: %s",
               c->address, cause);
    BT_REQUIRE(attached, BT_ERR_PEER, "no coordinator at %s within %.1f s: %s", c->address,
               (double)(bt_now_ns() - begin) * 1e-9, cause);
out:
    return st;
}

/* ---- both threads */

static void wake_owner(bt_control_client *c)
{
    uint64_t one = 1;

    if (write(c->fd, &one, sizeof(one)) < 0) return; /* its counter is full: it is readable */
}

static void recv_next(bt_control_client *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    op.data.recv_message.recv_message = &c->received;
    grpc_call_error e = grpc_call_start_batch(c->call, &op, 1, tag_ptr(TAG_RECV), NULL);
    BT_ASSERT(e == GRPC_CALL_OK);
}

static bt_status push_down(bt_control_client *c, const bt_down *m)
{
    bt_status st = BT_OK;

    pthread_mutex_lock(&c->lock);
    if (c->n_down == c->down_cap) {
        uint32_t cap   = c->down_cap * 2;
        bt_down *grown = bt_calloc(cap, sizeof(*grown));

        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "queue of %u control messages", cap);
        for (uint32_t i = 0; i < c->n_down; i++)
            grown[i] = c->down[(c->down_at + i) % c->down_cap];
        bt_free(c->down);
        c->down     = grown;
        c->down_cap = cap;
        c->down_at  = 0;
    }
    c->down[(c->down_at + c->n_down++) % c->down_cap] = *m;
    if (c->n_down == 1) wake_owner(c);
out:
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* Before the step thread can act on it, so that a log shows how many steps lie between. */
static void log_order(const bt_down *m)
{
    if (m->kind == BT_DOWN_ABORT)
        BT_DEBUG("an abort of request %llu has come", (unsigned long long)m->u.abort.request);
    else if (m->kind == BT_DOWN_PREFILL)
        BT_DEBUG("the prompt of request %llu has come", (unsigned long long)m->u.prefill.request);
}

/* A message has come, or the stream has none any more. */
static void on_recv(bt_control_client *c)
{
    bt_down           m      = {0};
    grpc_byte_buffer *buffer = c->received;
    bt_status         st     = BT_OK;
    bool              cancelled;

    c->received = NULL;
    if (buffer == NULL) {
        pthread_mutex_lock(&c->lock);
        c->no_more = true;
        pthread_mutex_unlock(&c->lock);
        return;
    }
    st = bt_control_read_down(buffer, &m);
    grpc_byte_buffer_destroy(buffer);
    if (st == BT_OK) {
        log_order(&m);
        st = push_down(c, &m);
    }
    if (st != BT_OK) {
        bt_down_free(&m);
        grpc_call_cancel_with_status(c->call, GRPC_STATUS_INVALID_ARGUMENT,
                                     "the coordinator sent what this rank cannot take", NULL);
    }
    pthread_mutex_lock(&c->lock);
    cancelled = c->cancelled; /* then the queue is about to close */
    if (cancelled) c->no_more = true;
    pthread_mutex_unlock(&c->lock);
    if (!cancelled) recv_next(c);
}

static void on_status(bt_control_client *c)
{
    char details[TEXT_MAX / 2];

    bt_rpc_slice_text(c->details, details, sizeof(details));
    pthread_mutex_lock(&c->lock);
    c->has_status = true;
    if (c->code == GRPC_STATUS_OK)
        snprintf(c->loss, sizeof(c->loss), "the coordinator at %s ended the stream", c->address);
    else
        snprintf(c->loss, sizeof(c->loss), "the stream to the coordinator at %s ended: %s (%d)",
                 c->address, details, (int)c->code);
    if (!c->stopping) BT_WARN("%s", c->loss);
    pthread_mutex_unlock(&c->lock);
}

static void *reader_main(void *arg)
{
    bt_control_client *c = arg;
    grpc_event         ev;

    for (;;) { /* ends when stop() has shut the queue down */
        ev = grpc_completion_queue_next(c->cq, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (ev.type == GRPC_QUEUE_SHUTDOWN) return NULL;
        if (ev.tag == tag_ptr(TAG_RECV)) on_recv(c);
        if (ev.tag == tag_ptr(TAG_STATUS)) on_status(c);
        pthread_mutex_lock(&c->lock);
        if (ev.tag == tag_ptr(TAG_SEND)) c->sending = false;
        if (c->no_more && c->has_status && !c->ended) {
            c->ended = true;
            wake_owner(c);
        }
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
    }
}

/* Packs and sends one message; the lock is not held. */
static void send_one(bt_control_client *c, bt_up *m)
{
    grpc_op           op     = {.op = GRPC_OP_SEND_MESSAGE};
    grpc_byte_buffer *buffer = NULL;
    grpc_call_error   e;

    if (bt_control_write_up(m, &buffer) == BT_OK) {
        op.data.send_message.send_message = buffer;
        e = grpc_call_start_batch(c->call, &op, 1, tag_ptr(TAG_SEND), NULL);
        BT_ASSERT(e == GRPC_CALL_OK);
        grpc_byte_buffer_destroy(buffer);
    } else { /* out of memory: a message must not be missing in silence */
        grpc_call_cancel_with_status(c->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                     "this rank is out of memory", NULL);
        pthread_mutex_lock(&c->lock);
        c->sending = false;
        pthread_mutex_unlock(&c->lock);
    }
    bt_up_free(m);
}

/* Until the time, or until something changes; false at the time. */
static bool wait_until(bt_control_client *c, uint64_t deadline_ns)
{
    struct timespec t = {.tv_sec  = (time_t)(deadline_ns / BT_NS_PER_S),
                         .tv_nsec = (long)(deadline_ns % BT_NS_PER_S)};

    return pthread_cond_timedwait(&c->changed, &c->lock, &t) == 0;
}

static void *writer_main(void *arg)
{
    bt_control_client *c     = arg;
    grpc_op            close = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    bt_up              m;

    pthread_mutex_lock(&c->lock);
    while (!c->ended) {
        if (c->n_up > 0 && !c->sending) {
            m          = c->up[c->up_at];
            c->up_at   = (c->up_at + 1) % c->up_cap;
            c->sending = true;
            c->n_up--;
            pthread_mutex_unlock(&c->lock);
            send_one(c, &m);
            pthread_mutex_lock(&c->lock);
        } else if (!c->stopping) {
            pthread_cond_wait(&c->changed,
                              &c->lock); /* ended by send(), stop() or the stream's end */
        } else if (c->n_up == 0 && !c->sending) {
            grpc_call_error e = grpc_call_start_batch(c->call, &close, 1, tag_ptr(TAG_CLOSE), NULL);
            BT_ASSERT(e == GRPC_CALL_OK);
            break;
        } else if (!wait_until(c, c->flush_deadline_ns)) {
            break;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- start and stop */

static bt_status init(bt_control_client *c, const char *address)
{
    bt_status          st = BT_OK;
    pthread_condattr_t attr;

    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    snprintf(c->address, sizeof(c->address), "%s", address);
    c->fd       = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    c->up_cap   = RING_INIT;
    c->down_cap = RING_INIT;
    c->up       = bt_calloc(c->up_cap, sizeof(*c->up));
    c->down     = bt_calloc(c->down_cap, sizeof(*c->down));
    BT_REQUIRE(c->up != NULL && c->down != NULL, BT_ERR_NO_MEMORY, "control queues");
    BT_REQUIRE(c->fd >= 0, BT_ERR_IO, "eventfd of the control stream");
out:
    return st;
}

static void destroy(bt_control_client *c)
{
    if (c->cq != NULL) {
        grpc_completion_queue_shutdown(c->cq);
        if (c->has_reader)
            pthread_join(c->reader, NULL);
        else
            while (
                grpc_completion_queue_next(c->cq, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
                GRPC_QUEUE_SHUTDOWN) {
            }
    }
    call_end(c);
    if (c->received != NULL) grpc_byte_buffer_destroy(c->received);
    if (c->cq != NULL) grpc_completion_queue_destroy(c->cq);
    close_channel(c);
    while (c->n_up > 0)
        bt_up_free(&c->up[(c->up_at + --c->n_up) % c->up_cap]);
    while (c->n_down > 0)
        bt_down_free(&c->down[(c->down_at + --c->n_down) % c->down_cap]);
    bt_free(c->up);
    bt_free(c->down);
    if (c->fd >= 0) close(c->fd);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    bt_free(c);
    grpc_shutdown_blocking();
}

static bt_status start_threads(bt_control_client *c)
{
    bt_status st = BT_OK;

    c->has_reader = pthread_create(&c->reader, NULL, reader_main, c) == 0;
    c->has_writer = c->has_reader && pthread_create(&c->writer, NULL, writer_main, c) == 0;
    if (!c->has_writer) grpc_call_cancel(c->call, NULL);
    BT_REQUIRE(c->has_writer, BT_ERR_NO_MEMORY, "threads of the control stream");
out:
    return st;
}

bt_status bt_control_client_start(const char *address, uint64_t connect_ns, uint64_t quiet_ns,
                                  bt_control_client **client_out)
{
    bt_status          st = BT_OK;
    bt_control_client *c  = bt_calloc(1, sizeof(*c));
    sigset_t           all, before;

    BT_REQUIRE(c != NULL, BT_ERR_NO_MEMORY, "control client");
    sigfillset(&all); /* threads made here, gRPC's too, leave the process's signals to its main */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    grpc_init();
    st = init(c, address);
    if (st == BT_OK) st = bt_secret_read(c->secret);
    if (st == BT_OK) {
        c->quiet_ns = quiet_ns;
        c->cq       = grpc_completion_queue_create_for_next(NULL);
        st          = attach(c, connect_ns);
    }
    if (st == BT_OK) {
        recv_next(c);
        st = start_threads(c);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st != BT_OK) goto out;
    *client_out = c;
    c           = NULL; /* handed over */
out:
    if (c != NULL) destroy(c);
    return st;
}

void bt_control_client_stop(bt_control_client *client, uint64_t flush_ns)
{
    bt_control_client *c = client;

    if (c == NULL) return;
    pthread_mutex_lock(&c->lock);
    c->stopping          = true;
    c->flush_deadline_ns = bt_now_ns() + flush_ns;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->writer, NULL);

    pthread_mutex_lock(&c->lock);
    while (!c->ended && wait_until(c, c->flush_deadline_ns)) {
    }
    c->cancelled = !c->ended;
    if (c->cancelled) grpc_call_cancel(c->call, NULL);
    pthread_mutex_unlock(&c->lock);
    destroy(c);
}

/* ---- the step thread's side */

static bt_status push_up(bt_control_client *c, const bt_up *m)
{
    bt_status st = BT_OK;

    if (c->ended || c->stopping) return BT_ERR_PEER;
    BT_REQUIRE(c->n_up < UP_MAX, BT_ERR_TIMEOUT,
               "the coordinator at %s reads nothing: %u messages wait", c->address, c->n_up);
    if (c->n_up == c->up_cap) {
        uint32_t cap   = c->up_cap * 2;
        bt_up   *grown = bt_calloc(cap, sizeof(*grown));

        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "queue of %u control messages", cap);
        for (uint32_t i = 0; i < c->n_up; i++)
            grown[i] = c->up[(c->up_at + i) % c->up_cap];
        bt_free(c->up);
        c->up     = grown;
        c->up_cap = cap;
        c->up_at  = 0;
    }
    c->up[(c->up_at + c->n_up++) % c->up_cap] = *m;
    pthread_cond_broadcast(&c->changed);
out:
    return st;
}

bt_status bt_control_client_send(bt_control_client *client, bt_up *m)
{
    bt_status st;

    pthread_mutex_lock(&client->lock);
    st = push_up(client, m);
    pthread_mutex_unlock(&client->lock);
    if (st == BT_OK)
        memset(&m->u, 0, sizeof(m->u)); /* the queue has it */
    else
        bt_up_free(m);
    return st;
}

bool bt_control_client_poll(bt_control_client *client, bt_down *m_out)
{
    bt_control_client *c = client;
    bool               any;
    uint64_t           count;

    pthread_mutex_lock(&c->lock);
    any = c->n_down > 0;
    if (any) {
        *m_out     = c->down[c->down_at];
        c->down_at = (c->down_at + 1) % c->down_cap;
        c->n_down--;
    }
    if (any && c->n_down == 0 && !c->ended && read(c->fd, &count, sizeof(count)) < 0)
        BT_DEBUG("the control event was not set");
    pthread_mutex_unlock(&c->lock);
    return any;
}

bool bt_control_client_lost(bt_control_client *client)
{
    bool lost;

    pthread_mutex_lock(&client->lock);
    lost = client->ended && client->n_down == 0;
    pthread_mutex_unlock(&client->lock);
    return lost;
}

bool bt_control_client_orphaned(bt_control_client *client)
{
    bool orphaned;

    pthread_mutex_lock(&client->lock);
    orphaned = client->ended && client->n_down == 0 && client->code == GRPC_STATUS_UNAVAILABLE;
    pthread_mutex_unlock(&client->lock);
    return orphaned;
}

void bt_control_client_loss(bt_control_client *client, char *buf, size_t capacity)
{
    pthread_mutex_lock(&client->lock);
    snprintf(buf, capacity, "%s", client->loss);
    pthread_mutex_unlock(&client->lock);
}

int bt_control_client_fd(const bt_control_client *client) { return client->fd; }
