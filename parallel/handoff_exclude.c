/* parallel/handoff_exclude.c - doing without a peer for good.
 *
 * What it may still read or write (a payload granted to it, one that has begun to arrive) stays
 * where it is, in a block of requests that never complete; the slot goes on in a new block. */
#include "core/clock.h"
#include "parallel/handoff_parts.h"

/* Memory and a request of their own for a slot or an inbox. */
static bt_status renew(bt_handoff *h, uint8_t **memory, MPI_Request **request)
{
    bt_status st    = BT_OK;
    bt_wreck *wreck = bt_wreck_create(bt_handoff_stage_bytes(h));

    BT_REQUIRE(wreck != NULL, BT_ERR_NO_MEMORY, "a staging slot in place of one that is lost");
    wreck->next = h->extra;
    h->extra    = wreck;
    *memory     = bt_wreck_room(wreck);
    *request    = wreck->requests;
out:
    return st;
}

static bt_status drop_messages(bt_handoff *h, uint32_t rank)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < h->n_slots; i++) {
        bt_slot *s = &h->slots[i];

        if (s->state < BT_SLOT_QUEUED || s->to != rank) continue;
        if (s->state == BT_SLOT_SENDING) BT_TRY(renew(h, &s->memory, &s->request));
        s->state = BT_SLOT_FREE;
    }
    for (int i = 0; i < BT_HANDOFF_INBOXES; i++) {
        bt_inbox *in = &h->inboxes[i];

        if (!in->busy || in->from != rank) continue;
        BT_TRY(renew(h, &in->memory, &in->request));
        in->busy = false;
    }
    if (*h->signal_in_request != MPI_REQUEST_NULL && h->signal_from == rank)
        BT_TRY(renew(h, &h->signal_in, &h->signal_in_request));
out:
    return st;
}

/* Signals that are under way to it will not be waited for. */
static void forget_signals(bt_handoff *h, uint32_t rank)
{
    for (uint32_t i = rank * BT_SIGNAL_OUTBOX; i < (rank + 1) * BT_SIGNAL_OUTBOX; i++)
        if (h->signal_requests[i] != MPI_REQUEST_NULL) h->n_signals_open--;
}

bt_status bt_handoff_exclude(bt_handoff *handoff, uint32_t rank)
{
    bt_status st   = BT_OK;
    bt_peer  *peer = &handoff->peers[rank];

    BT_ASSERT(rank < handoff->world->size && rank != handoff->world->rank && !handoff->polling);
    if (peer->excluded) goto out;
    if (handoff->line != NULL) bt_line_end(handoff, bt_now_ns()); /* one without it follows */
    BT_TRY(drop_messages(handoff, rank));
    forget_signals(handoff, rank);
    if (handoff->ask_serial != 0 && handoff->ask_to == rank) handoff->ask_serial = 0;
    if (handoff->grant_to == rank) handoff->grant_to = BT_NO_PEER;
    if (peer->withdrawn_serial != 0) handoff->n_withdrawing--;
    if (peer->asked_serial != 0) handoff->n_asked--;
    if (peer->owed_serial != 0) handoff->n_owed--;
    *peer = (bt_peer){.excluded = true};
out:
    return st;
}
