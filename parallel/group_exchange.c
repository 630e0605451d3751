/* parallel/group_exchange.c - the operations of a group, over non-blocking point-to-point.
 *
 * Under the TCP rule (world_state.h) a lane goes in rounds: fragment k + 1 leaves when fragment k
 * of the peer has come, and a side that has nothing left answers each fragment with an empty
 * message. In shared memory both directions run on their own and zero bytes mean no message. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/watchdog.h"
#include "parallel/backoff.h"
#include "parallel/group_state.h"

enum {
    RANK_LIST_BYTES = 160,
    BARRIER_BYTES   = 1,
    SEND            = 0, /* requests[2 * lane + SEND] */
    RECV            = 1,
};

static size_t n_fragments(size_t bytes, size_t fragment_bytes)
{
    return bytes / fragment_bytes + (bytes % fragment_bytes != 0);
}

/* Lanes of a group that has failed still say who was missing then. */
static void load_lane(bt_group *group, uint32_t i, const uint8_t *send, size_t send_bytes,
                      uint8_t *recv, size_t recv_bytes)
{
    bt_group_lane *l = &group->lanes[i];

    if (group->broken) return;
    l->send       = send;
    l->recv       = recv;
    l->send_bytes = send_bytes;
    l->recv_bytes = recv_bytes;
    l->n_sent = l->n_received = 0;
    l->n_send                 = n_fragments(send_bytes, l->fragment_bytes);
    l->n_recv                 = n_fragments(recv_bytes, l->fragment_bytes);
    if (l->rounds && l->n_send < l->n_recv) l->n_send = l->n_recv;
    if (l->rounds && l->n_recv < l->n_send) l->n_recv = l->n_send;
}

/* Messages of a peer whose process has died never come or leave, as of one that hangs: the wait
 * ends as it would have. */
static bool peer_has_died(const bt_group *group, const bt_group_lane *l, int code)
{
    return bt_world_has_died(group->world, l->peer, code);
}

/* Bytes of message k of a direction that has `bytes` in all; 0 for an answer in a round. */
static size_t message_bytes(const bt_group_lane *l, size_t bytes, size_t k)
{
    size_t at = k * l->fragment_bytes;

    if (at >= bytes) return 0;
    return bytes - at < l->fragment_bytes ? bytes - at : l->fragment_bytes;
}

static bool may_send(const bt_group_lane *l)
{
    size_t k = l->n_sent;

    if (k == l->n_send) return false;
    if (!l->rounds) return true;
    return l->n_received >= k + (message_bytes(l, l->send_bytes, k) == 0);
}

static bt_status start_recv(bt_group *group, uint32_t i)
{
    bt_status      st = BT_OK;
    bt_group_lane *l  = &group->lanes[i];
    int            code;

    /* Room for a whole fragment, whatever is awaited: a longer message must not be cut (see
     * bt_world_drain), finish_recv() compares the sizes. */
    l->in_bytes = message_bytes(l, l->recv_bytes, l->n_received);
    code        = MPI_Irecv(l->in, (int)l->fragment_bytes, MPI_BYTE, (int)l->peer, group->tag,
                            group->world->group_comm, &group->requests[2 * i + RECV]);
    BT_REQUIRE(code == MPI_SUCCESS || peer_has_died(group, l, code), BT_ERR_PEER,
               "receiving from rank %u: %s", l->peer, bt_mpi_text(code));
out:
    return st;
}

/* Sends that complete at once never show up in MPI_Testsome (Open MPI gives them an inactive
 * request), so each is tested here. */
static bt_status start_send(bt_group *group, uint32_t i)
{
    bt_status      st      = BT_OK;
    bt_group_lane *l       = &group->lanes[i];
    size_t         bytes   = message_bytes(l, l->send_bytes, l->n_sent);
    MPI_Request   *request = &group->requests[2 * i + SEND];
    int            code, done = 0;

    if (bytes > 0) memcpy(l->out, l->send + l->n_sent * l->fragment_bytes, bytes);
    code = MPI_Isend(l->out, (int)bytes, MPI_BYTE, (int)l->peer, group->tag,
                     group->world->group_comm, request);
    if (code == MPI_SUCCESS) code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    BT_REQUIRE(code == MPI_SUCCESS || peer_has_died(group, l, code), BT_ERR_PEER,
               "sending to rank %u: %s", l->peer, bt_mpi_text(code));
    if (code != MPI_SUCCESS || done) *request = MPI_REQUEST_NULL;
    if (code == MPI_SUCCESS && done) l->n_sent++;
out:
    return st;
}

/* Starts what may start on a lane. */
static bt_status feed_lane(bt_group *group, uint32_t i)
{
    bt_status      st = BT_OK;
    bt_group_lane *l  = &group->lanes[i];

    if (peer_has_died(group, l, MPI_SUCCESS)) return BT_OK;
    if (group->requests[2 * i + RECV] == MPI_REQUEST_NULL && l->n_received < l->n_recv)
        BT_TRY(start_recv(group, i));
    while (group->requests[2 * i + SEND] == MPI_REQUEST_NULL && may_send(l) &&
           !peer_has_died(group, l, MPI_SUCCESS))
        BT_TRY(start_send(group, i));
out:
    return st;
}

static bt_status finish_recv(bt_group_lane *l, const MPI_Status *status)
{
    bt_status st    = BT_OK;
    int       bytes = 0;

    MPI_Get_count(status, MPI_BYTE, &bytes);
    BT_REQUIRE(bytes >= 0 && (size_t)bytes == l->in_bytes, BT_ERR_PROTOCOL,
               "rank %u sent %d bytes, want %zu: its counts differ from this rank's", l->peer,
               bytes, l->in_bytes);
    if (bytes > 0) memcpy(l->recv + l->n_received * l->fragment_bytes, l->in, l->in_bytes);
    l->n_received++;
out:
    return st;
}

static bt_status finish_request(bt_group *group, int index, const MPI_Status *status, int error)
{
    bt_status      st = BT_OK;
    bt_group_lane *l  = &group->lanes[index / 2];

    BT_REQUIRE(error == MPI_SUCCESS || peer_has_died(group, l, error), BT_ERR_PEER,
               "%s rank %u: %s", index % 2 == SEND ? "sending to" : "receiving from", l->peer,
               bt_mpi_text(error));
    if (error != MPI_SUCCESS) return BT_OK;
    if (index % 2 == SEND)
        l->n_sent++;
    else
        BT_TRY(finish_recv(l, status));
    if (index % 2 == RECV && l->n_received == l->n_recv)
        group->world->traffic[l->peer].waited_ns += bt_now_ns() - group->start_ns;
out:
    return st;
}

/* Whether a lane has more to receive (or to send). */
static bool is_open(const bt_group *group, uint32_t i, bool receiving)
{
    const bt_group_lane *l = &group->lanes[i];

    return i != group->self && (receiving ? l->n_received < l->n_recv : l->n_sent < l->n_send);
}

static bool all_have_come(const bt_group *group)
{
    for (uint32_t i = 0; i < group->n; i++)
        if (is_open(group, i, true) || is_open(group, i, false)) return false;
    return true;
}

static bt_status progress(bt_group *group, bool *moved_out, bool *done_out)
{
    bt_status st     = BT_OK;
    int       n_done = 0, code;

    code =
        MPI_Testsome(2 * (int)group->n, group->requests, &n_done, group->indices, group->statuses);
    BT_REQUIRE(code == MPI_SUCCESS || code == MPI_ERR_IN_STATUS, BT_ERR_PEER, "MPI_Testsome: %s",
               bt_mpi_text(code));
    *done_out  = n_done == MPI_UNDEFINED && all_have_come(group); /* no request is active */
    *moved_out = n_done > 0;
    for (int i = 0; i < n_done; i++)
        BT_TRY(finish_request(group, group->indices[i], &group->statuses[i],
                              code == MPI_SUCCESS ? MPI_SUCCESS : group->statuses[i].MPI_ERROR));
    for (int i = 0; i < n_done; i++) /* only now: both ends of a lane may have finished at once */
        BT_TRY(feed_lane(group, (uint32_t)group->indices[i] / 2));
out:
    return st;
}

/* The world ranks of the lanes whose send (or receive) is unfinished, as "1, 3 and 90 more". */
static const char *list_ranks(const bt_group *group, bool receiving, char text[RANK_LIST_BYTES])
{
    size_t   n      = 0;
    uint32_t n_more = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < group->n; i++) {
        if (!is_open(group, i, receiving)) continue;
        if (n < RANK_LIST_BYTES - 32)
            n += (size_t)snprintf(text + n, RANK_LIST_BYTES - n, "%s%u", n > 0 ? ", " : "",
                                  group->lanes[i].peer);
        else
            n_more++;
    }
    if (n_more > 0) snprintf(text + n, RANK_LIST_BYTES - n, " and %u more", n_more);
    return n > 0 ? text : "none";
}

const char *bt_wait_name(const bt_wait *wait)
{
    return wait->what != NULL ? wait->what : "an exchange";
}

static bt_status fail_timeout(const bt_group *group, const bt_wait *wait)
{
    bt_status st = BT_OK;
    char      from[RANK_LIST_BYTES], to[RANK_LIST_BYTES], layer[32] = "";

    if (wait->layer >= 0) snprintf(layer, sizeof(layer), " of layer %d", (int)wait->layer);
    BT_REQUIRE(false, BT_ERR_TIMEOUT,
               "%s%s in epoch %u (operation %" PRIu64
               "): after %.3f s nothing came from ranks: %s; not taken by ranks: %s",
               bt_wait_name(wait), layer, group->epoch, group->sequence,
               (double)wait->timeout_ns / 1e9, list_ranks(group, true, from),
               list_ranks(group, false, to));
out:
    return st;
}

static bt_status wait_all(bt_group *group, const bt_wait *wait)
{
    bt_status  st       = BT_OK;
    uint64_t   start_ns = bt_now_ns(), now_ns;
    bool       moved = false, done = false;
    bt_backoff backoff;

    bt_backoff_init(&backoff, group->world->spin_ns, start_ns);
    for (;;) {
        now_ns = bt_now_ns(); /* before the poll: a process that was stopped looks once more */
        bt_watchdog_enter(bt_wait_name(wait), wait->layer);
        st = progress(group, &moved, &done);
        bt_watchdog_leave();
        BT_TRY(st);
        if (done) break;
        if (wait->stop != NULL && wait->stop(wait->ctx)) {
            st = BT_ERR_CANCELLED;
            goto out;
        }
        if (group->carrier != NULL) BT_TRY(group->carrier->ops->tend(group->carrier, wait));
        if (bt_backoff_late(&backoff, now_ns, wait->timeout_ns) && !moved)
            BT_TRY(fail_timeout(group, wait));
        if (wait->idle != NULL) wait->idle(wait->ctx);
        if (moved)
            bt_backoff_reset(&backoff);
        else
            bt_backoff_wait(&backoff, now_ns);
    }
out:
    group->world->waited_ns += bt_now_ns() - start_ns;
    return st;
}

/* Runs the loaded lanes.  Afterwards a failed group stays broken. */
static bt_status run(bt_group *group, const bt_wait *wait)
{
    bt_status      st = BT_OK;
    bt_group_lane *l  = &group->lanes[group->self];

    BT_TRY(bt_group_check(group, wait));
    if (l->recv_bytes > 0 && l->recv != l->send) memcpy(l->recv, l->send, l->recv_bytes);
    if (group->n == 1) return BT_OK;
    group->broken   = true; /* until the end */
    group->start_ns = bt_now_ns();
    group->tag = bt_tag_make(group->world->tags, group->tag_space, group->epoch, group->sequence);
    bt_watchdog_enter(bt_wait_name(wait), wait->layer);
    for (uint32_t i = 0; i < group->n && st == BT_OK; i++)
        if (i != group->self) st = feed_lane(group, i);
    bt_watchdog_leave();
    BT_TRY(st);
    BT_TRY(wait_all(group, wait));
    group->sequence++;
    group->broken = false;
out:
    return st;
}

bt_status bt_group_all_gather(bt_group *group, const void *send, size_t bytes, void *recv,
                              const bt_wait *wait)
{
    BT_ASSERT(wait != NULL && wait->timeout_ns > 0);
    BT_ASSERT(bytes == 0 || (send != NULL && recv != NULL));
    for (uint32_t i = 0; i < group->n; i++)
        load_lane(group, i, send, bytes, bytes > 0 ? (uint8_t *)recv + i * bytes : NULL, bytes);
    return run(group, wait);
}

bt_status bt_group_exchange(bt_group *group, const void *send, const size_t *send_at,
                            const size_t *send_bytes, void *recv, const size_t *recv_at,
                            const size_t *recv_bytes, const bt_wait *wait)
{
    bt_status st = BT_OK;

    BT_ASSERT(wait != NULL && wait->timeout_ns > 0);
    BT_REQUIRE(send_bytes[group->self] == recv_bytes[group->self], BT_ERR_INVALID_ARG,
               "this rank sends itself %zu bytes and awaits %zu", send_bytes[group->self],
               recv_bytes[group->self]);
    for (uint32_t i = 0; i < group->n; i++)
        load_lane(group, i, send_bytes[i] > 0 ? (const uint8_t *)send + send_at[i] : NULL,
                  send_bytes[i], recv_bytes[i] > 0 ? (uint8_t *)recv + recv_at[i] : NULL,
                  recv_bytes[i]);
    st = run(group, wait);
out:
    return st;
}

bt_status bt_group_barrier(bt_group *group, const bt_wait *wait)
{
    static const uint8_t word = 0xb7;
    uint8_t              heard[BARRIER_BYTES];

    BT_ASSERT(wait != NULL && wait->timeout_ns > 0);
    for (uint32_t i = 0; i < group->n; i++)
        load_lane(group, i, &word, BARRIER_BYTES, heard, BARRIER_BYTES);
    return run(group, wait);
}
