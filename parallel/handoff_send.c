/* parallel/handoff_send.c - asking one receiver after the other, and sending what was granted. */
#include "parallel/handoff_parts.h"

/* Ends the request to send; the receiver hears of it, and until it answers it is not asked again.
 */
static void withdraw(bt_handoff *h, uint64_t now_ns)
{
    bt_peer *peer = &h->peers[h->ask_to];

    if (!bt_signal_send(h, h->ask_to, BT_SIGNAL_WITHDRAW, h->ask_serial, 0)) return; /* later */
    if (h->ask_slot != BT_NO_SLOT) h->slots[h->ask_slot].state = BT_SLOT_QUEUED;
    peer->withdrawn_serial = h->ask_serial;
    peer->silent_since_ns  = now_ns;
    h->ask_serial          = 0;
    h->n_withdrawing++;
}

static bool has_gone(const bt_slot *s)
{
    return s->state == BT_SLOT_SENDING && s->carry == BT_CARRY_GONE;
}

uint32_t bt_handoff_first_for(const bt_handoff *h, uint32_t to)
{
    uint32_t first = BT_NO_SLOT;

    for (uint32_t i = 0; i < h->n_slots; i++) {
        const bt_slot *s = &h->slots[i];

        if (s->state >= BT_SLOT_QUEUED && s->to == to && !has_gone(s) &&
            (first == BT_NO_SLOT || s->order < h->slots[first].order))
            first = i;
    }
    return first;
}

void bt_handoff_pass_grant(bt_handoff *h, uint32_t i, uint32_t first)
{
    bt_slot *s = &h->slots[i], *f = &h->slots[first];

    if (i == first) return;
    if (f->state == BT_SLOT_ASKED) h->ask_slot = i; /* what comes of the request is slot i's now */
    s->state = f->state;
    f->state = BT_SLOT_SENDING;
}

/* The granted payload leaves.  Open MPI may give a request that is inactive at once. */
static void start_payload(bt_handoff *h, uint32_t i)
{
    bt_slot     *s       = &h->slots[i];
    MPI_Request *request = s->request;
    size_t       bytes   = BT_PAGE_MESSAGE_BYTES + s->message.payload_bytes;

    s->asked_ns = h->ask_since_ns;
    s->state    = BT_SLOT_SENDING;
    if (h->line != NULL) {
        bt_line_send(h, i);
        return;
    }
    if (bt_world_has_died(h->world, s->to, MPI_SUCCESS)) {
        s->state = BT_SLOT_QUEUED;
        return;
    }
    if (MPI_Isend(bt_handoff_header(s->memory), (int)bytes, MPI_BYTE, (int)s->to, BT_TAG_PAYLOAD,
                  h->world->handoff_comm, request) != MPI_SUCCESS) {
        *request = MPI_REQUEST_NULL;
        s->state = BT_SLOT_QUEUED; /* asked for again; the grant expires over there */
    }
}

void bt_handoff_on_grant(bt_handoff *h, uint32_t from, uint64_t serial)
{
    bt_peer *peer = &h->peers[from];

    if (h->ask_serial == serial && h->ask_to == from) {
        if (h->ask_slot == BT_NO_SLOT) return; /* cancelled: the withdrawal is on its way */
        h->ask_serial = 0;
        start_payload(h, h->ask_slot);
        return;
    }
    if (peer->withdrawn_serial != serial) /* of a hand-off before this one: let it go */
        bt_signal_send(h, from, BT_SIGNAL_WITHDRAW, serial, 0);
}

void bt_handoff_on_withdrawn(bt_handoff *h, uint32_t from, uint64_t serial)
{
    bt_peer *peer = &h->peers[from];

    if (peer->withdrawn_serial != serial) return;
    peer->withdrawn_serial = 0;
    peer->n_expired        = 0;
    h->n_withdrawing--;
}

/* Those that wait for it leave with the next look at payloads. */
void bt_handoff_on_taken(bt_handoff *h, uint32_t from, uint64_t n_ordered)
{
    for (uint32_t i = 0; i < h->n_slots; i++) {
        bt_slot *s = &h->slots[i];

        if (s->state == BT_SLOT_SENDING && s->to == from && s->order < n_ordered) s->taken = true;
    }
}

/* Its memory is free of NCCL, and where its rows go by a line the receiver has them. */
static bool has_left(const bt_slot *s)
{
    return s->carry == BT_CARRY_NONE || (s->carry >= BT_CARRY_GONE && s->taken);
}

static void count_sent(bt_handoff *h, const bt_slot *s, uint64_t now_ns)
{
    bt_traffic *t = &h->world->traffic[s->to];

    if (s->carry != BT_CARRY_NONE) return; /* by NCCL a slow link shows elsewhere */
    t->handoff_bytes += s->message.payload_bytes;
    t->handoff_ns += now_ns - s->asked_ns;
}

static bool test_payloads(bt_handoff *h, uint64_t now_ns)
{
    bool moved = false;

    for (uint32_t i = 0; i < h->n_slots; i++) {
        bt_slot        *s    = &h->slots[i];
        bt_page_message m    = s->message;
        int             done = 0, code;

        if (s->state != BT_SLOT_SENDING) continue;
        code = MPI_Test(s->request, &done, MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS && !done) continue;
        *s->request = MPI_REQUEST_NULL;
        bt_world_has_died(h->world, s->to, code);
        if (code != MPI_SUCCESS && s->carry == BT_CARRY_NONE) {
            s->state = BT_SLOT_QUEUED; /* as in start_payload() */
            continue;
        }
        if (!has_left(s)) {
            if (s->carry == BT_CARRY_AGAIN) s->state = BT_SLOT_QUEUED;
            continue;
        }
        count_sent(h, s, now_ns);
        s->state = BT_SLOT_FREE;
        h->events.sent(h->events.ctx, &m);
        moved = true;
    }
    return moved;
}

static void count_expired(bt_handoff *h, uint32_t to, uint64_t now_ns)
{
    bt_peer *peer = &h->peers[to];

    peer->silent_since_ns = now_ns;
    peer->n_expired++;
    h->events.expired(h->events.ctx, to, peer->n_expired);
}

static bool check_expiry(bt_handoff *h, uint64_t now_ns)
{
    bool moved = false;

    for (uint32_t r = 0; r < h->world->size && h->n_withdrawing > 0; r++) {
        bt_peer *peer = &h->peers[r];

        if (peer->withdrawn_serial != 0 && now_ns - peer->silent_since_ns >= h->grant_ns)
            count_expired(h, r, now_ns);
    }
    if (h->ask_serial != 0 && h->ask_slot == BT_NO_SLOT) { /* cancelled, outbox was full */
        withdraw(h, now_ns);
        moved = h->ask_serial == 0;
    } else if (h->ask_serial != 0 && now_ns - h->ask_since_ns >= h->grant_ns) {
        uint32_t to = h->ask_to;

        withdraw(h, now_ns);
        moved = h->ask_serial == 0;
        if (moved) count_expired(h, to, now_ns);
    }
    return moved;
}

/* Steps from the one behind the receiver asked last, below the world's size: the smallest comes
 * next. */
static uint32_t turn_of(const bt_handoff *h, uint32_t to)
{
    uint32_t size = h->world->size;

    return (to + size - h->last_asked - 1) % size;
}

/* The queued slot whose receiver comes next in the round, the oldest of that receiver; or
 * BT_NO_SLOT. */
static uint32_t pick_slot(const bt_handoff *h)
{
    uint32_t best = BT_NO_SLOT;

    for (uint32_t i = 0; i < h->n_slots; i++) {
        const bt_slot *s = &h->slots[i], *b = best == BT_NO_SLOT ? NULL : &h->slots[best];

        if (s->state != BT_SLOT_QUEUED || h->peers[s->to].withdrawn_serial != 0) continue;
        if (b == NULL || turn_of(h, s->to) < turn_of(h, b->to) ||
            (s->to == b->to && s->order < b->order))
            best = i;
    }
    return best;
}

static bool ask_next(bt_handoff *h, uint64_t now_ns)
{
    uint32_t i;
    bt_slot *s;

    if (h->ask_serial != 0 || !bt_handoff_is_ready(h)) return false;
    i = pick_slot(h);
    if (i == BT_NO_SLOT) return false;
    s             = &h->slots[i];
    h->last_asked = s->to;
    if (!bt_signal_send(h, s->to, BT_SIGNAL_ASK, h->world->next_serial, s->message.request))
        return false;
    s->state        = BT_SLOT_ASKED;
    h->ask_serial   = h->world->next_serial++;
    h->ask_to       = s->to;
    h->ask_slot     = i;
    h->ask_since_ns = now_ns;
    return true;
}

bool bt_handoff_send_progress(bt_handoff *h, uint64_t now_ns)
{
    bool moved = test_payloads(h, now_ns);

    if (!h->is_late) moved |= check_expiry(h, now_ns);
    moved |= ask_next(h, now_ns);
    return moved;
}
