#include "proto/control_client.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/limits.h"
#include "proto/control_client_state.h"
#include "proto/control_wire.h"
#include "proto/rpc.h"

enum { UP_MAX = 65536 }; /* messages waiting for a coordinator that does not read */

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
    grpc_call_error e = grpc_call_start_batch(c->call, &op, 1, bt_control_tag_ptr(TAG_RECV), NULL);
    BT_ASSERT(e == GRPC_CALL_OK);
}

static bt_status push_down(bt_control_client *c, const bt_down *m)
{
    bt_status st = BT_OK;

    pthread_mutex_lock(&c->lock);
    BT_REQUIRE(bt_ring_push(&c->down, m), BT_ERR_NO_MEMORY, "queue of more than %u orders",
               c->down.n);
    if (c->down.n == 1) wake_owner(c);
out:
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* Logged before the step thread can act on it, so that a log shows how many steps lie between. */
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
    c->heard = true;
    st       = bt_control_read_down(buffer, &m);
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
    char details[BT_CONTROL_TEXT / 2];
    bool refused;

    bt_rpc_slice_text(c->details, details, sizeof(details));
    refused = !c->heard && (c->code == GRPC_STATUS_FAILED_PRECONDITION ||
                            c->code == GRPC_STATUS_INVALID_ARGUMENT);
    pthread_mutex_lock(&c->lock);
    c->has_status = true;
    if (c->code == GRPC_STATUS_OK)
        snprintf(c->loss, sizeof(c->loss), "the coordinator at %s ended the stream", c->address);
    else if (refused)
        snprintf(c->loss, sizeof(c->loss), "the coordinator at %s refused this rank: %s",
                 c->address, details);
    else
        snprintf(c->loss, sizeof(c->loss), "the stream to the coordinator at %s ended: %s (%d)",
                 c->address, details, (int)c->code);
    if (!c->stopping && !c->heard) /* else whoever was heard says what follows from the loss */
        bt_log_write(refused ? BT_LOG_ERROR : BT_LOG_WARN, __FILE__, __LINE__, "%s", c->loss);
    pthread_mutex_unlock(&c->lock);
}

static void *reader_main(void *arg)
{
    bt_control_client *c = arg;
    grpc_event         ev;

    for (;;) { /* ends when stop() has shut the queue down */
        ev = grpc_completion_queue_next(c->cq, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (ev.type == GRPC_QUEUE_SHUTDOWN) return NULL;
        if (ev.tag == bt_control_tag_ptr(TAG_RECV)) on_recv(c);
        if (ev.tag == bt_control_tag_ptr(TAG_STATUS)) on_status(c);
        pthread_mutex_lock(&c->lock);
        if (ev.tag == bt_control_tag_ptr(TAG_SEND)) c->sending = false;
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
        e = grpc_call_start_batch(c->call, &op, 1, bt_control_tag_ptr(TAG_SEND), NULL);
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
        if (!c->sending && bt_ring_pop(&c->up, &m)) {
            c->sending = true;
            pthread_mutex_unlock(&c->lock);
            send_one(c, &m);
            pthread_mutex_lock(&c->lock);
        } else if (!c->stopping) {
            /* until send(), stop() or the stream's end */
            pthread_cond_wait(&c->changed, &c->lock);
        } else if (c->up.n == 0 && !c->sending) {
            grpc_call_error e =
                grpc_call_start_batch(c->call, &close, 1, bt_control_tag_ptr(TAG_CLOSE), NULL);
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
    c->up.item_bytes   = sizeof(bt_up);
    c->down.item_bytes = sizeof(bt_down);
    c->fd              = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    BT_REQUIRE(c->fd >= 0, BT_ERR_IO, "eventfd of the control stream");
out:
    return st;
}

static void destroy(bt_control_client *c)
{
    bt_up   up;
    bt_down down;

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
    bt_control_disconnect(c);
    if (c->received != NULL) grpc_byte_buffer_destroy(c->received);
    if (c->cq != NULL) grpc_completion_queue_destroy(c->cq);
    while (bt_ring_pop(&c->up, &up))
        bt_up_free(&up);
    while (bt_ring_pop(&c->down, &down))
        bt_down_free(&down);
    bt_free(c->up.items);
    bt_free(c->down.items);
    if (c->fd >= 0) close(c->fd);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    bt_free(c);
    grpc_shutdown_blocking();
}

static bt_status start_threads(bt_control_client *c)
{
    bt_status st = BT_OK;
    bool      both;

    c->has_reader = pthread_create(&c->reader, NULL, reader_main, c) == 0;
    both          = c->has_reader && pthread_create(&c->writer, NULL, writer_main, c) == 0;
    if (!both) grpc_call_cancel(c->call, NULL);
    BT_REQUIRE(both, BT_ERR_NO_MEMORY,
               "threads of the control stream do not start: " BT_RAISE_THREADS);
out:
    return st;
}

bt_status bt_control_client_start(const char *address, uint64_t connect_ns, uint64_t quiet_ns,
                                  bt_control_client **client_out)
{
    bt_status          st = BT_OK;
    bt_control_client *c  = NULL;
    sigset_t           all, before;

    BT_TRY(bt_rpc_allow_threads(2)); /* reader and writer */
    c = bt_calloc(1, sizeof(*c));
    BT_REQUIRE(c != NULL, BT_ERR_NO_MEMORY, "control client");
    sigfillset(&all); /* threads made here, gRPC's too, leave the process's signals to its main */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    grpc_init();
    st = init(c, address);
    if (st == BT_OK) st = bt_secret_read(c->secret);
    if (st == BT_OK) {
        c->quiet_ns = quiet_ns;
        c->cq       = grpc_completion_queue_create_for_next(NULL);
        st          = bt_control_connect(c, connect_ns);
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

void bt_control_client_stop(bt_control_client *c, uint64_t flush_ns)
{
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
    BT_REQUIRE(c->up.n < UP_MAX, BT_ERR_TIMEOUT,
               "the coordinator at %s reads nothing: %u messages wait", c->address, c->up.n);
    BT_REQUIRE(bt_ring_push(&c->up, m), BT_ERR_NO_MEMORY, "queue of more than %u events", c->up.n);
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

bool bt_control_client_poll(bt_control_client *c, bt_down *m_out)
{
    bool     any;
    uint64_t count;

    pthread_mutex_lock(&c->lock);
    any = bt_ring_pop(&c->down, m_out);
    if (any && c->down.n == 0 && !c->ended && read(c->fd, &count, sizeof(count)) < 0)
        BT_DEBUG("the control event was not set");
    pthread_mutex_unlock(&c->lock);
    return any;
}

bool bt_control_client_lost(bt_control_client *client)
{
    bool lost;

    pthread_mutex_lock(&client->lock);
    lost = client->ended && client->down.n == 0;
    pthread_mutex_unlock(&client->lock);
    return lost;
}

bool bt_control_client_orphaned(bt_control_client *client)
{
    bool orphaned;

    pthread_mutex_lock(&client->lock);
    orphaned = client->ended && client->down.n == 0 && client->code == GRPC_STATUS_UNAVAILABLE;
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
