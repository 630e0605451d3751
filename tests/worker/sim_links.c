/* tests/worker/sim_links.c - the hand-off of the simulated cell: reorders, delays and, on request,
 * corrupts. */
#include <stdlib.h>
#include <string.h>

#include "tests/worker/no_links.h"
#include "tests/worker/sim_state.h"

static uint64_t sim_now(void *ctx)
{
    sim_rank *r = ctx;

    return r->cell->now;
}

static bt_page_payload payload_at(void *memory, const bt_page_message *m)
{
    return (bt_page_payload){.rows = memory,
                             .tail = (uint8_t *)memory + m->payload_bytes - m->tail_bytes};
}

static bt_page_payload sim_slot(void *ctx, void *slot, const bt_page_message *m)
{
    (void)ctx;
    return payload_at(slot, m);
}

static void *sim_stage(void *ctx)
{
    sim_rank *r = ctx;

    if (r->n_slots_used == r->cell->opt.n_slots) return NULL;
    r->n_slots_used++;
    return malloc(r->cell->opt.payload_max);
}

static void sim_unstage(void *ctx, void *slot)
{
    sim_rank *r = ctx;

    r->n_slots_used--;
    free(slot);
}

static void sim_send(void *ctx, uint32_t to, const bt_page_message *m, void *slot)
{
    sim_rank   *r = ctx;
    sim_cell   *c = r->cell;
    sim_flight *f = &c->flights[c->n_flights++];

    if (c->n_flights == SIM_MAX_FLIGHT) abort();
    *f = (sim_flight){.m = *m, .from = r->rank, .to = to, .payload = slot};
    if (m->request != 1 || c->n_sent_of_first++ != 1) return;
    if (c->opt.fault == SIM_BAD_TAG) f->m.pages_tag ^= 1;
    if (c->opt.fault == SIM_BAD_CHECKSUM) f->refuse = true;
    if (c->opt.fault == SIM_TWICE) {
        c->flights[c->n_flights]         = *f;
        c->flights[c->n_flights].payload = malloc(c->opt.payload_max);
        memcpy(c->flights[c->n_flights++].payload, slot, m->payload_bytes);
        r->n_slots_used++;
    }
}

void sim_drop_flight(sim_cell *c, uint32_t i)
{
    free(c->flights[i].payload);
    c->ranks[c->flights[i].from].n_slots_used--;
    memmove(&c->flights[i], &c->flights[i + 1], (--c->n_flights - i) * sizeof(sim_flight));
}

static bool sim_cancel(void *ctx, uint64_t request)
{
    sim_rank *r    = ctx;
    sim_cell *c    = r->cell;
    bool      none = true;

    for (uint32_t i = c->n_flights; i-- > 0;) {
        sim_flight *f = &c->flights[i];

        if (f->from != r->rank || f->m.request != request) continue;
        if (f->granted)
            none = false;
        else
            sim_drop_flight(c, i);
    }
    return none;
}

/* Grants, delivers or confirms one random message that concerns this rank. */
static bool sim_poll(void *ctx)
{
    sim_rank  *r = ctx;
    sim_cell  *c = r->cell;
    uint32_t   i;
    sim_flight f;

    if (c->n_flights == 0) return false;
    i = sim_roll(c, c->n_flights);
    f = c->flights[i];
    if (f.from == r->rank && !f.granted) {
        c->flights[i].granted = true;
        return true;
    }
    if (f.to == r->rank && f.granted && !f.delivered) {
        bt_page_payload payload = payload_at(f.payload, &f.m);

        c->flights[i].delivered = true;
        if (c->opt.fault == SIM_LOST && f.m.request == 1 && f.m.token0 == 0) return true;
        if (f.refuse)
            bt_worker_rejected(r->worker, f.from, f.m.request, BT_ERR_CHECKSUM);
        else
            bt_worker_delivered(r->worker, f.from, &f.m, &payload);
        return true;
    }
    if (f.from == r->rank && f.delivered) {
        sim_drop_flight(c, i);
        bt_worker_sent(r->worker, &f.m);
        return true;
    }
    return false;
}

bt_worker_links sim_links(sim_rank *r)
{
    bt_worker_links links = no_links(r);

    links.now_ns      = sim_now;
    links.up          = sim_up;
    links.payload_max = links.tail_max = r->cell->opt.payload_max;
    links.stage                        = sim_stage;
    links.slot                         = sim_slot;
    links.unstage                      = sim_unstage;
    links.send                         = sim_send;
    links.cancel                       = sim_cancel;
    links.poll                         = sim_poll;
    links.launch                       = sim_launch;
    links.await                        = sim_await;
    links.draft                        = sim_draft;
    return links;
}
