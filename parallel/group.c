/* parallel/group.c - exchanges of a group over non-blocking point-to-point.
 *
 * Each pair of ranks has a lane.  A message crosses it in fragments through the group's own
 * staging memory, never through the caller's: a request that is abandoned at a deadline may
 * complete much later, and then must not meet memory that has a new use.
 *
 * Under the TCP rule (mpi_world.h) a lane goes in rounds: fragment k + 1 leaves when fragment k of
 * the peer has come, and a side that has nothing left answers each fragment with an empty message.
 * In shared memory both directions run on their own and zero bytes mean no message. */
#include "parallel/group.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/watchdog.h"
#include "parallel/backoff.h"
#include "parallel/group_parts.h"
#include "parallel/mpi_world.h"

enum {
    N_TAG_SPACES    = 8,
    SHARED_FRAGMENT = 256 * 1024, /* staged copies stay in the cache */
    STAGING_ALIGN   = 64,
    RANK_LIST_BYTES = 160,
    BARRIER_BYTES   = 1,
    SEND            = 0, /* requests[2 * lane + SEND] */
    RECV            = 1,
};

typedef struct {
    uint32_t peer;   /* world rank */
    bool     rounds; /* the TCP rule holds */
    size_t   fragment_bytes;
    uint8_t *out, *in; /* staging, fragment_bytes each; NULL on the lane to itself */

    const uint8_t *send; /* of the present operation: the caller's */
    uint8_t       *recv;
    size_t         send_bytes, recv_bytes;
    size_t         n_send, n_recv; /* messages */
    size_t         n_sent, n_received;
    size_t         in_bytes; /* expected in the message under way */
} lane;

struct bt_group {
    bt_world    *world;
    uint32_t     n, self, tag_space, epoch;
    uint64_t     sequence, start_ns; /* start_ns: of the present operation */
    int          tag;
    bool         broken; /* an operation failed: the ranks disagree on the sequence */
    bt_wreck    *arena;  /* staging and requests, in one block that may outlive the group */
    MPI_Request *requests;
    MPI_Status  *statuses;
    int         *indices;
    lane        *lanes;
    bt_carrier  *carrier; /* owned; NULL: none */
};

static size_t padded(size_t bytes)
{
    return (bytes + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
}

static void set_lane(bt_group *group, uint32_t i, uint32_t peer)
{
    lane *l = &group->lanes[i];

    l->peer           = peer;
    l->rounds         = bt_world_tcp_rule(group->world, peer);
    l->fragment_bytes = l->rounds ? group->world->fragment_bytes : SHARED_FRAGMENT;
}

/* One block: the wreck's header, the requests, two staging areas a lane. */
static bt_status take_arena(bt_group *group)
{
    bt_status st        = BT_OK;
    size_t    header    = padded(sizeof(bt_wreck));
    size_t    req_bytes = padded(2 * (size_t)group->n * sizeof(MPI_Request));
    size_t    bytes     = header + req_bytes;
    uint8_t  *at;

    for (uint32_t i = 0; i < group->n; i++)
        if (i != group->self) bytes += 2 * padded(group->lanes[i].fragment_bytes);
    at = bt_calloc_aligned(bytes, 1);
    BT_REQUIRE(at != NULL, BT_ERR_NO_MEMORY, "%zu bytes of staging for a group of %u ranks", bytes,
               group->n);
    group->arena             = (bt_wreck *)(void *)at;
    group->requests          = (MPI_Request *)(void *)(at + header);
    group->arena->memory     = at;
    group->arena->requests   = group->requests;
    group->arena->n_requests = 2 * (int)group->n;
    at += header + req_bytes;
    for (uint32_t i = 0; i < 2 * group->n; i++)
        group->requests[i] = MPI_REQUEST_NULL;
    for (uint32_t i = 0; i < group->n; i++) {
        lane *l = &group->lanes[i];

        if (i == group->self) continue;
        l->out = at;
        l->in  = at + padded(l->fragment_bytes);
        at += 2 * padded(l->fragment_bytes);
    }
out:
    return st;
}

static bt_status check_ranks(const bt_world *world, uint32_t n, const uint32_t *ranks,
                             uint32_t *self_out)
{
    bt_status st   = BT_OK;
    uint32_t  self = n;

    BT_REQUIRE(n >= 1 && n <= world->size, BT_ERR_INVALID_ARG,
               "a group of %u ranks, want 1..%u (the job's ranks)", n, world->size);
    for (uint32_t i = 0; i < n; i++) {
        BT_REQUIRE(ranks[i] < world->size, BT_ERR_INVALID_ARG,
                   "member %u of a group is rank %u, want one below %u", i, ranks[i], world->size);
        for (uint32_t j = 0; j < i; j++)
            BT_REQUIRE(ranks[j] != ranks[i], BT_ERR_INVALID_ARG, "rank %u is twice in a group",
                       ranks[i]);
        if (ranks[i] == world->rank) self = i;
    }
    BT_REQUIRE(self < n, BT_ERR_INVALID_ARG, "rank %u creates a group that it is not in",
               world->rank);
    *self_out = self;
out:
    return st;
}

bt_status bt_group_create(bt_world *world, uint32_t n, const uint32_t *ranks, uint32_t tag_space,
                          uint32_t epoch, bt_group **group_out)
{
    bt_status st    = BT_OK;
    bt_group *group = NULL;
    uint32_t  self  = 0;

    BT_REQUIRE(tag_space < N_TAG_SPACES, BT_ERR_INVALID_ARG, "tag space %u, want 0..%d", tag_space,
               N_TAG_SPACES - 1);
    BT_TRY(check_ranks(world, n, ranks, &self));
    bt_world_sweep(world);
    group = bt_calloc(1, sizeof(*group));
    BT_REQUIRE(group != NULL, BT_ERR_NO_MEMORY, "a group of %u ranks", n);
    group->world     = world;
    group->n         = n;
    group->self      = self;
    group->tag_space = tag_space;
    group->epoch     = epoch;
    group->lanes     = bt_calloc(n, sizeof(*group->lanes));
    group->statuses  = bt_calloc(2 * (size_t)n, sizeof(*group->statuses));
    group->indices   = bt_calloc(2 * (size_t)n, sizeof(*group->indices));
    BT_REQUIRE(group->lanes != NULL && group->statuses != NULL && group->indices != NULL,
               BT_ERR_NO_MEMORY, "the lanes of a group of %u ranks", n);
    for (uint32_t i = 0; i < n; i++)
        set_lane(group, i, ranks[i]);
    BT_TRY(take_arena(group));
    *group_out = group;
    group      = NULL;
out:
    bt_group_destroy(group);
    return st;
}

void bt_group_destroy(bt_group *group)
{
    if (group == NULL) return;
    if (group->carrier != NULL) group->carrier->ops->destroy(group->carrier);
    if (group->arena != NULL) {
        bt_world_abandon(group->world, group->arena);
        bt_world_sweep(group->world); /* frees it at once unless a request is still open */
    }
    bt_free(group->indices);
    bt_free(group->statuses);
    bt_free(group->lanes);
    bt_free(group);
}

uint32_t bt_group_size(const bt_group *group) { return group->n; }
uint32_t bt_group_self(const bt_group *group) { return group->self; }
uint32_t bt_group_epoch(const bt_group *group) { return group->epoch; }
uint32_t bt_group_world_rank(const bt_group *group, uint32_t index)
{
    BT_ASSERT(index < group->n);
    return group->lanes[index].peer;
}

/* ---- one operation ---------------------------------------------------------------------- */

static size_t n_fragments(size_t bytes, size_t fragment_bytes)
{
    return bytes / fragment_bytes + (bytes % fragment_bytes != 0);
}

static void load_lane(lane *l, const uint8_t *send, size_t send_bytes, uint8_t *recv,
                      size_t recv_bytes)
{
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

/* Bytes of message k of a direction that has `bytes` in all; 0 for an answer in a round. */
static size_t message_bytes(const lane *l, size_t bytes, size_t k)
{
    size_t at = k * l->fragment_bytes;

    if (at >= bytes) return 0;
    return bytes - at < l->fragment_bytes ? bytes - at : l->fragment_bytes;
}

static bool may_send(const lane *l)
{
    size_t k = l->n_sent;

    if (k == l->n_send) return false;
    if (!l->rounds) return true;
    return l->n_received >= k + (message_bytes(l, l->send_bytes, k) == 0);
}

static bt_status start_recv(bt_group *group, uint32_t i)
{
    bt_status st = BT_OK;
    lane     *l  = &group->lanes[i];
    int       code;

    /* Room for a whole fragment, whatever is awaited: a longer message must not be cut (see
     * bt_world_drain), finish_recv() compares the sizes. */
    l->in_bytes = message_bytes(l, l->recv_bytes, l->n_received);
    code        = MPI_Irecv(l->in, (int)l->fragment_bytes, MPI_BYTE, (int)l->peer, group->tag,
                            group->world->group_comm, &group->requests[2 * i + RECV]);
    BT_REQUIRE(code == MPI_SUCCESS, BT_ERR_PEER, "receiving from rank %u: %s", l->peer,
               bt_mpi_text(code));
out:
    return st;
}

/* Sends that complete at once never show up in MPI_Testsome (Open MPI gives them an inactive
 * request), so each is tested here. */
static bt_status start_send(bt_group *group, uint32_t i)
{
    bt_status    st      = BT_OK;
    lane        *l       = &group->lanes[i];
    size_t       bytes   = message_bytes(l, l->send_bytes, l->n_sent);
    MPI_Request *request = &group->requests[2 * i + SEND];
    int          code, done = 0;

    if (bytes > 0) memcpy(l->out, l->send + l->n_sent * l->fragment_bytes, bytes);
    code = MPI_Isend(l->out, (int)bytes, MPI_BYTE, (int)l->peer, group->tag,
                     group->world->group_comm, request);
    if (code == MPI_SUCCESS) code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    BT_REQUIRE(code == MPI_SUCCESS, BT_ERR_PEER, "sending to rank %u: %s", l->peer,
               bt_mpi_text(code));
    if (!done) goto out;
    *request = MPI_REQUEST_NULL;
    l->n_sent++;
out:
    return st;
}

/* Starts what may start on a lane. */
static bt_status feed_lane(bt_group *group, uint32_t i)
{
    bt_status st = BT_OK;
    lane     *l  = &group->lanes[i];

    if (group->requests[2 * i + RECV] == MPI_REQUEST_NULL && l->n_received < l->n_recv)
        BT_TRY(start_recv(group, i));
    while (group->requests[2 * i + SEND] == MPI_REQUEST_NULL && may_send(l))
        BT_TRY(start_send(group, i));
out:
    return st;
}

static bt_status finish_recv(lane *l, const MPI_Status *status)
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
    bt_status st = BT_OK;
    lane     *l  = &group->lanes[index / 2];

    BT_REQUIRE(error == MPI_SUCCESS, BT_ERR_PEER, "%s rank %u: %s",
               index % 2 == SEND ? "sending to" : "receiving from", l->peer, bt_mpi_text(error));
    if (index % 2 == SEND)
        l->n_sent++;
    else
        BT_TRY(finish_recv(l, status));
    if (index % 2 == RECV && l->n_received == l->n_recv)
        group->world->traffic[l->peer].waited_ns += bt_now_ns() - group->start_ns;
out:
    return st;
}

static bt_status progress(bt_group *group, bool *moved_out, bool *done_out)
{
    bt_status st     = BT_OK;
    int       n_done = 0, code;

    code =
        MPI_Testsome(2 * (int)group->n, group->requests, &n_done, group->indices, group->statuses);
    BT_REQUIRE(code == MPI_SUCCESS || code == MPI_ERR_IN_STATUS, BT_ERR_PEER, "MPI_Testsome: %s",
               bt_mpi_text(code));
    *done_out  = n_done == MPI_UNDEFINED; /* no request is active */
    *moved_out = n_done > 0;
    for (int i = 0; i < n_done; i++)
        BT_TRY(finish_request(group, group->indices[i], &group->statuses[i],
                              code == MPI_SUCCESS ? MPI_SUCCESS : group->statuses[i].MPI_ERROR));
    for (int i = 0; i < n_done; i++) /* only now: both ends of a lane may have finished at once */
        BT_TRY(feed_lane(group, (uint32_t)group->indices[i] / 2));
out:
    return st;
}

/* The world ranks of the lanes whose send (or receive) is unfinished, as "1, 3". */
static const char *list_ranks(const bt_group *group, bool receiving, char text[RANK_LIST_BYTES])
{
    size_t n = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < group->n && n < RANK_LIST_BYTES - 16; i++) {
        const lane *l    = &group->lanes[i];
        bool        open = receiving ? l->n_received < l->n_recv : l->n_sent < l->n_send;

        if (i == group->self || !open) continue;
        n += (size_t)snprintf(text + n, RANK_LIST_BYTES - n, "%s%u", n > 0 ? ", " : "", l->peer);
    }
    return text[0] != '\0' ? text : "none";
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

    bt_backoff_init(&backoff, group->world->spin_ns);
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
        if (!moved && now_ns - start_ns >= wait->timeout_ns) BT_TRY(fail_timeout(group, wait));
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

bt_status bt_group_check(const bt_group *group, const bt_wait *wait)
{
    bt_status st = BT_OK;

    BT_REQUIRE(!group->broken, BT_ERR_PEER,
               "%s: the group of epoch %u failed before and must be made anew", bt_wait_name(wait),
               group->epoch);
out:
    return st;
}

/* Runs the loaded lanes.  Afterwards a failed group stays broken. */
static bt_status run(bt_group *group, const bt_wait *wait)
{
    bt_status st = BT_OK;
    lane     *l  = &group->lanes[group->self];

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
        load_lane(&group->lanes[i], send, bytes, bytes > 0 ? (uint8_t *)recv + i * bytes : NULL,
                  bytes);
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
        load_lane(&group->lanes[i], send_bytes[i] > 0 ? (const uint8_t *)send + send_at[i] : NULL,
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
        load_lane(&group->lanes[i], &word, BARRIER_BYTES, heard, BARRIER_BYTES);
    return run(group, wait);
}

bool bt_group_is_broken(const bt_group *group) { return group->broken; }
void bt_group_break(bt_group *group) { group->broken = true; }

bool bt_group_is_called(const bt_group *group)
{
    int tag   = bt_tag_make(group->world->tags, group->tag_space, group->epoch, group->sequence);
    int found = 0;

    return MPI_Iprobe(MPI_ANY_SOURCE, tag, group->world->group_comm, &found, MPI_STATUS_IGNORE) ==
               MPI_SUCCESS &&
           found;
}

void bt_group_attach(bt_group *group, bt_carrier *carrier)
{
    BT_ASSERT(group->carrier == NULL);
    group->carrier = carrier;
}

bt_carrier *bt_group_carrier(const bt_group *group) { return group->carrier; }

uint32_t bt_group_missing(const bt_group *group, uint32_t *ranks_out)
{
    uint32_t n = 0;

    if (group->broken && group->carrier != NULL)
        n = group->carrier->ops->missing(group->carrier, ranks_out);
    if (n > 0) return n;
    for (uint32_t i = 0; group->broken && i < group->n; i++) {
        const lane *l = &group->lanes[i];

        if (i != group->self && (l->n_received < l->n_recv || l->n_sent < l->n_send))
            ranks_out[n++] = l->peer;
    }
    return n;
}

/* ---- what came before */

/* Messages of one rank come in the order in which they were sent: the first one that is not of an
 * older group ends them. */
static void drain_lane(bt_group *group, const lane *l)
{
    bt_world *world = group->world;

    for (;;) {
        MPI_Message message;
        MPI_Status  status;
        int         found = 0, n_bytes = 0;

        if (MPI_Iprobe((int)l->peer, MPI_ANY_TAG, world->group_comm, &found, &status) !=
                MPI_SUCCESS ||
            !found || bt_tag_is_recent(world->tags, status.MPI_TAG, group->tag_space, group->epoch))
            return;
        if (MPI_Improbe((int)l->peer, status.MPI_TAG, world->group_comm, &found, &message,
                        &status) != MPI_SUCCESS ||
            !found)
            return;
        MPI_Get_count(&status, MPI_BYTE, &n_bytes);
        bt_world_drain(world, &message, (size_t)n_bytes);
    }
}

void bt_group_drain(bt_group *group)
{
    for (uint32_t i = 0; i < group->n; i++)
        if (i != group->self) drain_lane(group, &group->lanes[i]);
    bt_world_sweep(group->world);
}
