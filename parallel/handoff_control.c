/* parallel/handoff_control.c - the hand-off's small messages. */
#include <string.h>
#include <xxhash.h>

#include "parallel/handoff_parts.h"

enum { MAGIC = 0x6c635442, SUM_AT = 24, RECEIVE_BUDGET = 64 }; /* "BTcl" */

/* All ranks of a job run one build on machines of one byte order (config of MPI's homogeneous
 * jobs): native order, guarded by the magic number. */
void bt_control_encode(const bt_control *c, uint8_t wire_out[BT_CONTROL_BYTES])
{
    uint32_t head[2] = {MAGIC, c->kind};
    uint64_t sum;

    memcpy(wire_out, head, 8);
    memcpy(wire_out + 8, &c->serial, 8);
    memcpy(wire_out + 16, &c->request, 8);
    sum = XXH3_64bits(wire_out, SUM_AT);
    memcpy(wire_out + SUM_AT, &sum, 8);
}

bt_status bt_control_parse(const uint8_t *wire, size_t n_bytes, bt_control *c_out)
{
    bt_status  st = BT_OK;
    bt_control c;
    uint32_t   head[2];
    uint64_t   sum;

    BT_REQUIRE(n_bytes == BT_CONTROL_BYTES, BT_ERR_PROTOCOL,
               "a hand-off control message of %zu bytes, want %d", n_bytes, BT_CONTROL_BYTES);
    memcpy(head, wire, 8);
    memcpy(&c.serial, wire + 8, 8);
    memcpy(&c.request, wire + 16, 8);
    memcpy(&sum, wire + SUM_AT, 8);
    BT_REQUIRE(head[0] == MAGIC && sum == XXH3_64bits(wire, SUM_AT), BT_ERR_PROTOCOL,
               "a hand-off control message begins with %08x, want %08x, or its checksum is wrong",
               head[0], MAGIC);
    BT_REQUIRE(head[1] >= BT_CONTROL_ASK && head[1] <= BT_CONTROL_WITHDRAWN && c.serial != 0,
               BT_ERR_PROTOCOL, "a hand-off control message of kind %u with serial %llu", head[1],
               (unsigned long long)c.serial);
    c.kind = (bt_control_kind)head[1];
    *c_out = c;
out:
    return st;
}

bool bt_control_send(bt_handoff *h, uint32_t to, bt_control_kind kind, uint64_t serial,
                     uint64_t request)
{
    bt_control c = {.kind = kind, .serial = serial, .request = request};
    size_t     i = (size_t)to * BT_CONTROL_OUTBOX, end = i + BT_CONTROL_OUTBOX;
    uint8_t   *wire;
    int        done = 0;

    while (i < end && h->control_requests[i] != MPI_REQUEST_NULL)
        i++;
    if (i == end) return false;
    wire = h->control_memory + i * BT_CONTROL_BYTES;
    bt_control_encode(&c, wire);
    if (MPI_Isend(wire, BT_CONTROL_BYTES, MPI_BYTE, (int)to, BT_TAG_CONTROL, h->world->handoff_comm,
                  &h->control_requests[i]) != MPI_SUCCESS) {
        h->control_requests[i] = MPI_REQUEST_NULL;
        return false;
    }
    if (MPI_Test(&h->control_requests[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done)
        h->control_requests[i] = MPI_REQUEST_NULL; /* Open MPI leaves an inactive one */
    else
        h->n_control_open++;
    return true;
}

bool bt_control_test(bt_handoff *h)
{
    bool   moved = false;
    size_t n     = (size_t)h->world->size * BT_CONTROL_OUTBOX;

    for (size_t i = 0; i < n && h->n_control_open > 0; i++) {
        int done = 0;

        if (h->control_requests[i] == MPI_REQUEST_NULL) continue;
        if (MPI_Test(&h->control_requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done)
            continue;
        h->control_requests[i] = MPI_REQUEST_NULL;
        h->n_control_open--;
        moved = true;
    }
    return moved;
}

static void dispatch(bt_handoff *h, uint32_t from, const uint8_t *wire, size_t n_bytes)
{
    bt_control c;
    bt_status  st = bt_control_parse(wire, n_bytes, &c);

    if (st != BT_OK) {
        h->events.reject(h->events.ctx, from, 0, st);
        return;
    }
    switch (c.kind) {
    case BT_CONTROL_ASK: bt_handoff_on_ask(h, from, &c); break;
    case BT_CONTROL_GRANT: bt_handoff_on_grant(h, from, c.serial); break;
    case BT_CONTROL_WITHDRAW: bt_handoff_on_withdraw(h, from, c.serial); break;
    case BT_CONTROL_WITHDRAWN: bt_handoff_on_withdrawn(h, from, c.serial); break;
    }
}

/* A message of a wrong size may be long: it is received into nothing, without waiting for it. */
static void receive_junk(bt_handoff *h, MPI_Message *message, uint32_t from, size_t n_bytes)
{
    static uint8_t nothing;

    if (MPI_Imrecv(&nothing, 0, MPI_BYTE, message, h->junk_request) != MPI_SUCCESS)
        *h->junk_request = MPI_REQUEST_NULL;
    dispatch(h, from, &nothing, n_bytes);
}

/* True when no junk is under way any more. */
static bool junk_is_gone(bt_handoff *h)
{
    int done = 0;

    if (*h->junk_request == MPI_REQUEST_NULL) return true;
    if (MPI_Test(h->junk_request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) return false;
    *h->junk_request = MPI_REQUEST_NULL; /* done, or ended as "truncated" */
    return true;
}

bool bt_control_receive(bt_handoff *h)
{
    bool moved = false;

    for (int i = 0; i < RECEIVE_BUDGET && junk_is_gone(h); i++) {
        uint8_t     wire[BT_CONTROL_BYTES];
        MPI_Message message;
        MPI_Status  status;
        int         found = 0, n_bytes = 0;

        if (MPI_Improbe(MPI_ANY_SOURCE, BT_TAG_CONTROL, h->world->handoff_comm, &found, &message,
                        &status) != MPI_SUCCESS ||
            !found)
            break;
        moved = true;
        MPI_Get_count(&status, MPI_BYTE, &n_bytes);
        if (n_bytes != BT_CONTROL_BYTES)
            receive_junk(h, &message, (uint32_t)status.MPI_SOURCE, (size_t)n_bytes);
        else if (MPI_Mrecv(wire, BT_CONTROL_BYTES, MPI_BYTE, &message, MPI_STATUS_IGNORE) ==
                 MPI_SUCCESS) /* eager: it is here already */
            dispatch(h, (uint32_t)status.MPI_SOURCE, wire, BT_CONTROL_BYTES);
    }
    return moved;
}
