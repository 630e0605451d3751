/* parallel/handoff_recv.c - granting one request to send at a time, receiving, verifying.
 *
 * Payloads are found by Improbe, so that nothing is posted ahead, and land in an inbox.  A grant
 * that its sender does not use in time makes room for the next one; should its payload come late
 * it is taken all the same. */
#include <inttypes.h>

#include "parallel/handoff_parts.h"

void bt_handoff_on_ask(bt_handoff *h, uint32_t from, const bt_signal *c)
{
    bt_peer *peer = &h->peers[from];

    if (h->line != NULL && h->has_sent) {
        bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_PROTOCOL),
                     "rank %u asks to send rows by NCCL to a rank that sends", from);
        h->events.reject(h->events.ctx, from, c->request, BT_ERR_PROTOCOL);
        return;
    }
    if (peer->asked_serial != 0) {
        bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_PROTOCOL),
                     "rank %u asks to send %" PRIu64 " while %" PRIu64 " is not answered", from,
                     c->serial, peer->asked_serial);
        h->events.reject(h->events.ctx, from, c->request, BT_ERR_PROTOCOL);
        h->n_asked--;
    }
    peer->asked_serial  = c->serial;
    peer->asked_request = c->request;
    peer->asked_order   = h->next_order++;
    h->n_asked++;
}

void bt_handoff_on_withdraw(bt_handoff *h, uint32_t from, uint64_t serial)
{
    bt_peer *peer = &h->peers[from];

    if (peer->asked_serial == serial) {
        peer->asked_serial = 0;
        h->n_asked--;
    } else if (peer->granted_serial == serial && peer->n_granted > 0) {
        peer->n_granted--; /* the payload will not come */
        peer->granted_serial = 0;
        if (h->grant_to == from) h->grant_to = BT_NO_PEER;
    }
    if (peer->owed_serial == 0) h->n_owed++;
    peer->owed_serial = serial;
}

static bool pay_owed(bt_handoff *h)
{
    bool moved = false;

    for (uint32_t r = 0; r < h->world->size && h->n_owed > 0; r++) {
        bt_peer *peer = &h->peers[r];

        if (peer->owed_serial == 0) continue;
        if (!bt_signal_send(h, r, BT_SIGNAL_WITHDRAWN, peer->owed_serial, 0)) continue;
        peer->owed_serial = 0;
        h->n_owed--;
        moved = true;
    }
    return moved;
}

/* Checks what lies in `wire` (header, then n_bytes - header of payload) and tells the events. */
static void accept_payload(bt_handoff *h, uint32_t from, uint8_t *wire, size_t n_bytes)
{
    bt_status       st = BT_OK;
    bt_page_message m  = {.request = 0};
    bt_page_payload p  = {.on_device = false};

    BT_TRY(bt_page_message_parse(wire, n_bytes, &m));
    BT_REQUIRE(n_bytes - BT_PAGE_MESSAGE_BYTES == m.payload_bytes, BT_ERR_PROTOCOL,
               "rank %u sent %zu payload bytes for request %" PRIu64 ", want %" PRIu64, from,
               n_bytes - BT_PAGE_MESSAGE_BYTES, m.request, m.payload_bytes);
    BT_TRY(bt_page_message_verify(&m, wire + BT_PAGE_MESSAGE_BYTES, true));
    p.rows = wire + BT_PAGE_MESSAGE_BYTES;
    p.tail = wire + n_bytes - m.tail_bytes;
    h->events.deliver(h->events.ctx, from, &m, &p);
out:
    if (st != BT_OK) h->events.reject(h->events.ctx, from, m.request, st);
}

/* Room for the header and the largest payload. */
static size_t inbox_bytes(const bt_handoff *h)
{
    if (h->line != NULL) return BT_LINE_PREFIX + BT_PAGE_MESSAGE_BYTES + BT_LINE_TAIL_MAX;
    return BT_PAGE_MESSAGE_BYTES + h->payload_max;
}

static bool finish_inboxes(bt_handoff *h)
{
    bool moved = false;

    for (int i = 0; i < BT_HANDOFF_INBOXES; i++) {
        bt_inbox *in   = &h->inboxes[i];
        int       done = 0, code;

        if (!in->busy || (h->line != NULL && *in->request == MPI_REQUEST_NULL)) continue;
        code = MPI_Test(in->request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && !done) continue;
        *in->request = MPI_REQUEST_NULL;
        moved        = true;
        if (code == MPI_SUCCESS && h->line != NULL) {
            in->busy = bt_line_receive(h, (uint32_t)i);
            continue;
        }
        if (code == MPI_SUCCESS) {
            accept_payload(h, in->from, bt_handoff_header(in->memory), in->n_bytes);
        } else {
            bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_PEER),
                         "receiving pages from rank %u: %s", in->from, bt_mpi_text(code));
            h->events.reject(h->events.ctx, in->from, 0, BT_ERR_PEER);
        }
        in->busy = false;
    }
    return moved;
}

/* The payload's sender has used its grant, if it had one: a payload without one is taken all the
 * same, since only its content decides, but it is noted. */
static void note_payload(bt_handoff *h, uint32_t from)
{
    bt_peer *peer = &h->peers[from];

    if (peer->n_granted == 0) {
        bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_PROTOCOL),
                     "rank %u sends pages without a grant", from);
        h->events.reject(h->events.ctx, from, 0, BT_ERR_PROTOCOL);
        peer->granted_request = 0;
        return;
    }
    peer->n_granted--;
    if (h->grant_to == from) h->grant_to = BT_NO_PEER;
}

/* A payload that no inbox holds: the request that asked for it is told. */
static void refuse_long(bt_handoff *h, uint32_t from, MPI_Message *message, size_t n_bytes)
{
    uint64_t request = h->peers[from].granted_request;

    bt_world_drain(h->world, message, n_bytes);
    bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_PROTOCOL),
                 "rank %u sent %zu bytes of pages for request %" PRIu64
                 ", room is for %zu: all ranks must stage alike",
                 from, n_bytes, request, inbox_bytes(h));
    h->events.reject(h->events.ctx, from, request, BT_ERR_PROTOCOL);
}

/* By a line one message comes at a time, and its inbox is busy until it has. */
static int free_inbox(const bt_handoff *h)
{
    if (h->line != NULL && (!bt_handoff_is_ready(h) || h->inboxes[0].busy)) return -1;
    for (int i = 0; i < BT_HANDOFF_INBOXES; i++)
        if (!h->inboxes[i].busy) return i;
    return -1;
}

/* Takes one payload that has begun to arrive into a free inbox. */
static bool receive_payload(bt_handoff *h)
{
    int         i = free_inbox(h), found = 0, n_bytes = 0;
    bt_inbox   *in;
    MPI_Message message;
    MPI_Status  status;

    if (i < 0) return false;
    if (MPI_Improbe(MPI_ANY_SOURCE, BT_TAG_PAYLOAD, h->world->handoff_comm, &found, &message,
                    &status) != MPI_SUCCESS ||
        !found)
        return false;
    MPI_Get_count(&status, MPI_BYTE, &n_bytes);
    if (h->peers[status.MPI_SOURCE].excluded) {
        bt_world_drain(h->world, &message, (size_t)n_bytes);
        return true;
    }
    note_payload(h, (uint32_t)status.MPI_SOURCE);
    if ((size_t)n_bytes > inbox_bytes(h)) {
        refuse_long(h, (uint32_t)status.MPI_SOURCE, &message, (size_t)n_bytes);
        return true;
    }
    in          = &h->inboxes[i];
    in->from    = (uint32_t)status.MPI_SOURCE;
    in->n_bytes = (size_t)n_bytes;
    in->busy    = true;
    if (MPI_Imrecv(bt_handoff_wire(h, in->memory), (int)inbox_bytes(h), MPI_BYTE, &message,
                   in->request) != MPI_SUCCESS) {
        *in->request = MPI_REQUEST_NULL;
        in->busy     = false;
        h->events.reject(h->events.ctx, in->from, 0, BT_ERR_PEER);
    }
    return true;
}

/* The peer that asked first. */
static uint32_t pick_asker(const bt_handoff *h)
{
    uint32_t best = BT_NO_PEER;

    for (uint32_t r = 0; r < h->world->size; r++) {
        if (h->peers[r].asked_serial == 0) continue;
        if (best == BT_NO_PEER || h->peers[r].asked_order < h->peers[best].asked_order) best = r;
    }
    return best;
}

static bool grant_next(bt_handoff *h, uint64_t now_ns)
{
    bt_peer *peer;
    uint32_t to;

    if (h->grant_to != BT_NO_PEER) {
        if (now_ns - h->grant_since_ns < h->grant_ns) return false;
        h->grant_to = BT_NO_PEER; /* expired: others come first now */
    }
    if (h->n_asked == 0 || free_inbox(h) < 0) return false;
    to   = pick_asker(h);
    peer = &h->peers[to];
    if (!bt_signal_send(h, to, BT_SIGNAL_GRANT, peer->asked_serial, 0)) return false;
    peer->granted_serial  = peer->asked_serial;
    peer->granted_request = peer->asked_request;
    peer->asked_serial    = 0;
    peer->n_granted++;
    h->n_asked--;
    h->grant_to       = to;
    h->grant_since_ns = now_ns;
    return true;
}

bool bt_handoff_recv_progress(bt_handoff *h, uint64_t now_ns)
{
    bool moved = receive_payload(h);

    moved |= finish_inboxes(h);
    moved |= grant_next(h, now_ns);
    moved |= pay_owed(h);
    return moved;
}
