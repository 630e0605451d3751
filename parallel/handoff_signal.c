/* parallel/handoff_signal.c - the hand-off's small messages. */
#include <string.h>
#include <xxhash.h>

#include "parallel/handoff_parts.h"

enum { MAGIC = 0x6c635442, SUM_AT = 24, RECEIVE_BUDGET = 64 }; /* "BTcl" */

/* All ranks of a job run one build: native byte order, guarded by the magic number. */
void bt_signal_encode(const bt_signal *c, uint8_t wire_out[BT_SIGNAL_BYTES])
{
    uint32_t head[2] = {MAGIC, c->kind};
    uint64_t sum;

    memcpy(wire_out, head, 8);
    memcpy(wire_out + 8, &c->serial, 8);
    memcpy(wire_out + 16, &c->request, 8);
    sum = XXH3_64bits(wire_out, SUM_AT);
    memcpy(wire_out + SUM_AT, &sum, 8);
}

static bt_status parse(const uint8_t *wire, size_t n_bytes, bt_signal *c_out)
{
    bt_status st = BT_OK;
    bt_signal c;
    uint32_t  head[2];
    uint64_t  sum;

    BT_REQUIRE(n_bytes == BT_SIGNAL_BYTES, BT_ERR_PROTOCOL,
               "a hand-off signal of %zu bytes, want %d", n_bytes, BT_SIGNAL_BYTES);
    memcpy(head, wire, 8);
    memcpy(&c.serial, wire + 8, 8);
    memcpy(&c.request, wire + 16, 8);
    memcpy(&sum, wire + SUM_AT, 8);
    BT_REQUIRE(head[0] == MAGIC && sum == XXH3_64bits(wire, SUM_AT), BT_ERR_PROTOCOL,
               "a hand-off signal begins with %08x, want %08x, or its checksum is wrong", head[0],
               MAGIC);
    BT_REQUIRE(head[1] >= BT_SIGNAL_ASK && head[1] <= BT_SIGNAL_TAKEN && c.serial != 0,
               BT_ERR_PROTOCOL, "a hand-off signal of kind %u with serial %llu", head[1],
               (unsigned long long)c.serial);
    c.kind = (bt_signal_kind)head[1];
    *c_out = c;
out:
    return st;
}

/* Also one that failed, since its receiver has died: nobody answers it. */
static bool has_left(bt_handoff *h, uint32_t to, MPI_Request *request)
{
    int done = 0, code = MPI_Test(request, &done, MPI_STATUS_IGNORE);

    bt_world_has_died(h->world, to, code);
    return code != MPI_SUCCESS || done;
}

bool bt_signal_send(bt_handoff *h, uint32_t to, bt_signal_kind kind, uint64_t serial,
                    uint64_t request)
{
    bt_signal c = {.kind = kind, .serial = serial, .request = request};
    size_t    i = (size_t)to * BT_SIGNAL_OUTBOX, end = i + BT_SIGNAL_OUTBOX;
    uint8_t  *wire;

    if (bt_world_has_died(h->world, to, MPI_SUCCESS)) return true; /* as lost as one on its way */
    while (i < end && h->signal_requests[i] != MPI_REQUEST_NULL)
        i++;
    if (i == end) return false;
    wire = h->signal_memory + i * BT_SIGNAL_BYTES;
    bt_signal_encode(&c, wire);
    if (MPI_Isend(wire, BT_SIGNAL_BYTES, MPI_BYTE, (int)to, BT_TAG_SIGNAL, h->world->handoff_comm,
                  &h->signal_requests[i]) != MPI_SUCCESS) {
        h->signal_requests[i] = MPI_REQUEST_NULL;
        return false;
    }
    if (has_left(h, to, &h->signal_requests[i]))
        h->signal_requests[i] = MPI_REQUEST_NULL; /* Open MPI leaves an inactive one */
    else
        h->n_signals_open++;
    return true;
}

bool bt_signal_test(bt_handoff *h)
{
    bool   moved = false;
    size_t n     = (size_t)h->world->size * BT_SIGNAL_OUTBOX;

    for (size_t i = 0; i < n && h->n_signals_open > 0; i++) {
        if (h->signal_requests[i] == MPI_REQUEST_NULL || h->peers[i / BT_SIGNAL_OUTBOX].excluded)
            continue;
        if (!has_left(h, (uint32_t)(i / BT_SIGNAL_OUTBOX), &h->signal_requests[i])) continue;
        h->signal_requests[i] = MPI_REQUEST_NULL;
        h->n_signals_open--;
        moved = true;
    }
    return moved;
}

static void dispatch(bt_handoff *h, uint32_t from, const uint8_t *wire, size_t n_bytes)
{
    bt_signal c;
    bt_status st;

    if (h->peers[from].excluded) return;
    st = parse(wire, n_bytes, &c);
    if (st != BT_OK) {
        h->events.reject(h->events.ctx, from, 0, st);
        return;
    }
    switch (c.kind) {
    case BT_SIGNAL_ASK: bt_handoff_on_ask(h, from, &c); break;
    case BT_SIGNAL_GRANT: bt_handoff_on_grant(h, from, c.serial); break;
    case BT_SIGNAL_WITHDRAW: bt_handoff_on_withdraw(h, from, c.serial); break;
    case BT_SIGNAL_WITHDRAWN: bt_handoff_on_withdrawn(h, from, c.serial); break;
    case BT_SIGNAL_TAKEN: bt_handoff_on_taken(h, from, c.serial); break;
    }
}

/* Matches the next signal and starts to receive it. False: there is none. */
static bool match_signal(bt_handoff *h)
{
    MPI_Message message;
    MPI_Status  status;
    int         found = 0, n_bytes = 0;

    if (MPI_Improbe(MPI_ANY_SOURCE, BT_TAG_SIGNAL, h->world->handoff_comm, &found, &message,
                    &status) != MPI_SUCCESS ||
        !found)
        return false;
    h->signal_from = (uint32_t)status.MPI_SOURCE;
    MPI_Get_count(&status, MPI_BYTE, &n_bytes);
    if (n_bytes != BT_SIGNAL_BYTES) {
        bt_world_drain(h->world, &message, (size_t)n_bytes);
        dispatch(h, h->signal_from, h->signal_in, (size_t)n_bytes); /* the length is refused */
    } else if (MPI_Imrecv(h->signal_in, BT_SIGNAL_BYTES, MPI_BYTE, &message,
                          h->signal_in_request) != MPI_SUCCESS) {
        *h->signal_in_request = MPI_REQUEST_NULL;
    }
    return true;
}

bool bt_signal_receive(bt_handoff *h)
{
    bool moved = false;

    for (int i = 0; i < RECEIVE_BUDGET; i++) {
        int done = 0;

        if (*h->signal_in_request == MPI_REQUEST_NULL) {
            if (!match_signal(h)) break;
            moved = true;
        }
        if (*h->signal_in_request == MPI_REQUEST_NULL) continue;
        if (MPI_Test(h->signal_in_request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) break;
        *h->signal_in_request = MPI_REQUEST_NULL;
        moved                 = true;
        dispatch(h, h->signal_from, h->signal_in, BT_SIGNAL_BYTES);
    }
    return moved;
}
