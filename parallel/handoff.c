/* parallel/handoff.c - staging, the queue, and the poll that moves everything. */
#include "parallel/handoff.h"

#include <limits.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/watchdog.h"
#include "parallel/backoff.h"
#include "parallel/group_parts.h"
#include "parallel/handoff_parts.h"

enum { POLL_PASSES = 8 };

size_t bt_handoff_stage_bytes(const bt_handoff *h)
{
    return bt_wreck_pad(BT_HANDOFF_HEAD + (h->line != NULL ? BT_LINE_TAIL_MAX : h->payload_max));
}

/* One block: wreck, requests, signals, send slots, inboxes. */
static bt_status take_arena(bt_handoff *h)
{
    bt_status st         = BT_OK;
    size_t    n_signals  = (size_t)h->world->size * BT_SIGNAL_OUTBOX;
    size_t    n_requests = h->n_slots + BT_HANDOFF_INBOXES + n_signals + 1;
    size_t    stage      = bt_handoff_stage_bytes(h);
    size_t   head = bt_wreck_pad(sizeof(bt_wreck)) + bt_wreck_pad(n_requests * sizeof(MPI_Request));
    size_t   signals = bt_wreck_pad((n_signals + 1) * BT_SIGNAL_BYTES); /* the last: incoming */
    size_t   bytes;
    uint8_t *at;

    bytes = head + signals + (h->n_slots + BT_HANDOFF_INBOXES) * stage;
    at    = bt_calloc_aligned(bytes, 1);
    BT_REQUIRE(at != NULL, BT_ERR_NO_MEMORY, "%zu bytes of hand-off staging, %u slots", bytes,
               h->n_slots);
    h->arena             = (bt_wreck *)(void *)at;
    h->arena->memory     = at;
    h->arena->requests   = (MPI_Request *)(void *)(at + bt_wreck_pad(sizeof(bt_wreck)));
    h->arena->n_requests = (int)n_requests;
    for (size_t i = 0; i < n_requests; i++)
        h->arena->requests[i] = MPI_REQUEST_NULL;
    h->signal_requests   = h->arena->requests + h->n_slots + BT_HANDOFF_INBOXES;
    h->signal_in_request = h->signal_requests + n_signals;
    h->signal_memory     = at + head;
    h->signal_in         = h->signal_memory + n_signals * BT_SIGNAL_BYTES;
    at += head + signals;
    for (uint32_t i = 0; i < h->n_slots; i++, at += stage) {
        h->slots[i].memory  = at;
        h->slots[i].request = h->arena->requests + i;
    }
    for (uint32_t i = 0; i < BT_HANDOFF_INBOXES; i++, at += stage) {
        h->inboxes[i].memory  = at;
        h->inboxes[i].request = h->arena->requests + h->n_slots + i;
    }
out:
    return st;
}

bt_status bt_handoff_create(bt_world *world, const bt_handoff_config *cfg,
                            const bt_handoff_events *events, bt_handoff **handoff_out)
{
    bt_status   st = BT_OK;
    bt_handoff *h  = NULL;

    BT_ASSERT(events->deliver != NULL && events->reject != NULL && events->sent != NULL &&
              events->expired != NULL);
    BT_REQUIRE(cfg->n_slots >= 1 && cfg->n_slots <= 4096 && cfg->grant_ns > 0 &&
                   cfg->slot_bytes >= 1 && cfg->slot_bytes <= INT_MAX / 2,
               BT_ERR_INVALID_ARG,
               "hand-off of %u slots of %zu bytes, grants of %llu ns: want 1..4096 slots of "
               "1..%d bytes and a time above 0",
               cfg->n_slots, cfg->slot_bytes, (unsigned long long)cfg->grant_ns, INT_MAX / 2);
    bt_world_sweep(world);
    h = bt_calloc(1, sizeof(*h));
    BT_REQUIRE(h != NULL, BT_ERR_NO_MEMORY, "the hand-off");
    h->world       = world;
    h->events      = *events;
    h->grant_ns    = cfg->grant_ns;
    h->payload_max = cfg->slot_bytes;
    h->n_slots     = cfg->n_slots;
    h->grant_to    = BT_NO_PEER;
    h->last_asked  = world->rank;
    if (cfg->nccl == NULL && !bt_world_all_shared(world) &&
        h->payload_max > world->fragment_bytes - BT_PAGE_MESSAGE_BYTES)
        h->payload_max = world->fragment_bytes - BT_PAGE_MESSAGE_BYTES;
    h->slots = bt_calloc(h->n_slots, sizeof(*h->slots));
    h->peers = bt_calloc(world->size, sizeof(*h->peers));
    BT_REQUIRE(h->slots != NULL && h->peers != NULL, BT_ERR_NO_MEMORY,
               "a hand-off of %u slots among %u ranks", h->n_slots, world->size);
    if (cfg->nccl != NULL) BT_TRY(bt_line_create(h, cfg->nccl, cfg->dev, h->payload_max, &h->line));
    BT_TRY(take_arena(h)); /* less where rows do not lie there */
    *handoff_out = h;
    h            = NULL;
out:
    bt_handoff_destroy(h);
    return st;
}

void bt_handoff_destroy(bt_handoff *handoff)
{
    if (handoff == NULL) return;
    bt_line_destroy(handoff->world, handoff->line);
    while (handoff->extra != NULL) {
        bt_wreck *wreck = handoff->extra;

        handoff->extra = wreck->next;
        bt_world_abandon(handoff->world, wreck);
    }
    if (handoff->arena != NULL) bt_world_abandon(handoff->world, handoff->arena);
    bt_world_sweep(handoff->world); /* frees at once what no request is open of */
    bt_free(handoff->peers);
    bt_free(handoff->slots);
    bt_free(handoff);
}

size_t bt_handoff_payload_max(const bt_handoff *handoff) { return handoff->payload_max; }

size_t bt_handoff_tail_max(const bt_handoff *handoff)
{
    return handoff->line != NULL && handoff->payload_max > BT_LINE_TAIL_MAX ? BT_LINE_TAIL_MAX
                                                                            : handoff->payload_max;
}

void *bt_handoff_stage(bt_handoff *handoff)
{
    for (uint32_t i = 0; i < handoff->n_slots; i++) {
        if (handoff->slots[i].state != BT_SLOT_FREE) continue;
        handoff->slots[i].state = BT_SLOT_STAGED;
        return handoff->slots[i].memory + BT_HANDOFF_HEAD;
    }
    return NULL;
}

static bt_slot *staged_slot(bt_handoff *h, const void *memory)
{
    for (uint32_t i = 0; i < h->n_slots; i++)
        if (h->slots[i].memory + BT_HANDOFF_HEAD == (const uint8_t *)memory) {
            BT_ASSERT(h->slots[i].state == BT_SLOT_STAGED);
            return &h->slots[i];
        }
    BT_ASSERT(!"a pointer from bt_handoff_stage()");
    return NULL;
}

bt_page_payload bt_handoff_slot(bt_handoff *handoff, void *slot, const bt_page_message *m)
{
    uint32_t i = (uint32_t)(staged_slot(handoff, slot) - handoff->slots);

    if (handoff->line != NULL)
        return (bt_page_payload){.rows      = bt_line_rows(handoff->line, i),
                                 .tail      = slot,
                                 .on_device = true,
                                 .stream    = bt_device_stream(handoff->line->dev)};
    return (bt_page_payload){.rows = slot,
                             .tail = (uint8_t *)slot + m->payload_bytes - m->tail_bytes};
}

bt_status bt_handoff_take(bt_handoff *handoff)
{
    return handoff->line == NULL ? BT_OK : bt_line_take(handoff);
}

bt_status bt_handoff_join(bt_handoff *handoff, uint32_t epoch, uint32_t n, uint32_t n_senders,
                          const uint32_t *ranks)
{
    BT_ASSERT(!handoff->polling);
    return handoff->line == NULL ? BT_OK : bt_line_join(handoff, epoch, n, n_senders, ranks);
}

void bt_handoff_unstage(bt_handoff *handoff, void *slot)
{
    staged_slot(handoff, slot)->state = BT_SLOT_FREE;
}

void bt_handoff_send(bt_handoff *handoff, uint32_t to, const bt_page_message *m, void *slot)
{
    bt_slot *s    = staged_slot(handoff, slot);
    uint8_t *wire = bt_handoff_header(s->memory);

    BT_ASSERT(to < handoff->world->size && to != handoff->world->rank);
    BT_ASSERT(handoff->line == NULL || m->tail_bytes <= BT_LINE_TAIL_MAX);
    if (handoff->peers[to].excluded) {
        s->state = BT_SLOT_FREE;
        return;
    }
    s->message = *m;
    bt_page_message_seal(&s->message, slot, handoff->line == NULL, wire);
    BT_ASSERT(s->message.payload_bytes <= handoff->payload_max);
    s->to    = to;
    s->taken = false;
    if (handoff->line != NULL) bt_line_pack(handoff, (uint32_t)(s - handoff->slots));
    s->order          = handoff->next_order++;
    handoff->has_sent = true;
    s->state          = BT_SLOT_QUEUED;
}

bt_status bt_handoff_check(const bt_handoff *handoff)
{
    bool broken = handoff != NULL && handoff->line != NULL && handoff->line->broken;

    return broken ? BT_ERR_DEVICE : BT_OK;
}

bool bt_handoff_is_ready(const bt_handoff *handoff)
{
    return handoff->line == NULL || handoff->line->state == BT_LINE_READY;
}

static bt_status fail_unready(const bt_line *l, const bt_wait *wait)
{
    bt_status st     = BT_OK;
    uint32_t  absent = bt_line_absent(l);
    char      who[64];

    if (absent == BT_NO_PEER)
        snprintf(who, sizeof(who), "all have come, and it has failed");
    else
        snprintf(who, sizeof(who), "nothing came from rank %u", absent);
    BT_REQUIRE(false, BT_ERR_TIMEOUT,
               "%s in epoch %u: the hand-off by NCCL of %u ranks is not ready after %.3f s: %s",
               bt_wait_name(wait), l->epoch, l->n, (double)wait->timeout_ns / 1e9, who);
out:
    return st;
}

bt_status bt_handoff_await_ready(bt_handoff *handoff, const bt_wait *wait)
{
    uint64_t   now_ns;
    bt_backoff backoff;

    bt_backoff_init(&backoff, bt_world_spin_ns(handoff->world), bt_now_ns());
    for (;;) {
        now_ns = bt_now_ns();
        if (bt_handoff_poll(handoff)) bt_backoff_reset(&backoff);
        if (bt_handoff_is_ready(handoff)) return BT_OK;
        if (bt_handoff_check(handoff) != BT_OK) return BT_ERR_DEVICE;
        if (wait->stop != NULL && wait->stop(wait->ctx)) return BT_ERR_CANCELLED;
        if (bt_backoff_late(&backoff, now_ns, wait->timeout_ns))
            return fail_unready(handoff->line, wait);
        bt_backoff_wait(&backoff, now_ns);
    }
}

bool bt_handoff_cancel(bt_handoff *handoff, uint64_t request)
{
    bool none_in_flight = true;

    for (uint32_t i = 0; i < handoff->n_slots; i++) {
        bt_slot *s = &handoff->slots[i];

        if (s->state < BT_SLOT_QUEUED || s->message.request != request) continue;
        if (s->state == BT_SLOT_SENDING) {
            none_in_flight = false;
            continue;
        }
        if (s->state == BT_SLOT_ASKED) handoff->ask_slot = BT_NO_SLOT; /* the poll withdraws it */
        s->state = BT_SLOT_FREE;
    }
    return none_in_flight;
}

/* Grants go by this: of the time between two looks half a grant at most counts, since a rank that
 * stood still, most often with its machine, goes on before or after the others. */
static uint64_t awake_ns(bt_handoff *h, uint64_t now_ns)
{
    uint64_t most_ns = h->grant_ns / 2, gap_ns = bt_stood_still_ns(&h->polled_ns, now_ns, most_ns);

    h->is_late = gap_ns != 0;
    if (h->is_late) h->still_ns += gap_ns - most_ns;
    return now_ns - h->still_ns;
}

bool bt_handoff_poll(bt_handoff *handoff)
{
    bool any = false;

    if (handoff->polling) return false; /* called from one of its own events */
    handoff->polling = true;
    bt_watchdog_enter("hand-off of pages", -1);
    for (int pass = 0; pass < POLL_PASSES; pass++) {
        uint64_t now_ns = bt_now_ns(), own_ns = awake_ns(handoff, now_ns);
        bool     moved = bt_signal_test(handoff);

        if (handoff->world->wrecks != NULL) bt_world_sweep(handoff->world);
        /* Answers first: a grant that waits here must not expire because this rank came late.  Open
         * MPI's first look after a while may find nothing and yet take in what the next one finds.
         */
        moved |= bt_signal_receive(handoff);
        moved |= bt_handoff_recv_progress(handoff, own_ns);
        moved |= bt_handoff_send_progress(handoff, own_ns);
        if (handoff->line != NULL) moved |= bt_line_poll(handoff, now_ns);
        if (!moved && !handoff->is_late) break;
        any = any || moved;
    }
    bt_watchdog_leave();
    handoff->polling = false;
    return any;
}
