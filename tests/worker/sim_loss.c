/* tests/worker/sim_loss.c - deaths in the simulated cell: of ranks and of the coordinator. */
#include "tests/worker/sim_state.h"

static bt_seats seats_of(const sim_cell *c, uint32_t group)
{
    bt_seats seats = {.epoch = c->group_epoch[group], .n = c->group_size[group]};

    seats.ranks = bt_calloc(seats.n, sizeof(*seats.ranks));
    for (uint32_t i = 0; i < seats.n; i++) {
        uint32_t rank = c->group_first[group] + i;

        seats.ranks[i] = c->ranks[rank].dead ? BT_NO_RANK : rank;
    }
    return seats;
}

/* Some choice has not begun: its first token may have died with the prefill rank. */
static bool lacks_first(sim_cell *c, sim_request *q)
{
    for (uint32_t i = 0; i < q->n_choices; i++)
        if (sim_choice(c, q, i)->n_tokens == 0 && sim_choice(c, q, i)->finish == BT_FINISH_NONE)
            return true;
    return false;
}

/* As the coordinator does. */
static void lose_placement(sim_cell *c, sim_request *q, uint32_t rank)
{
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {q->number, q->epoch, 0}
    };

    if (q->n_choices == 0 || !q->reserved) return;
    q->released[rank] = true;
    if (q->aborted || q->resume) return;
    if (q->decode_rank == rank) {
        q->resume = true;
        if (q->ticketed && !q->released[q->prefill_rank]) sim_give(c, q->prefill_rank, &m);
    } else if (q->prefill_rank == rank && lacks_first(c, q)) {
        q->resume = true;
        sim_give(c, q->decode_rank, &m);
    }
}

static void empty_inbox(sim_rank *r)
{
    while (r->inbox_at < r->n_inbox)
        bt_down_free(&r->inbox[r->inbox_at++]);
    r->inbox_at = r->n_inbox = 0;
}

static void tell_seats(sim_cell *c)
{
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        bt_down m = {.kind = BT_DOWN_REGROUP};

        if (c->ranks[i].dead) continue;
        m.u.regroup.epoch     = c->epoch;
        m.u.regroup.groups[0] = seats_of(c, 0);
        m.u.regroup.groups[1] = seats_of(c, 1);
        sim_give(c, i, &m);
    }
}

static void lose_coordinator(sim_cell *c)
{
    c->forsaken = false;
    for (uint32_t i = 0; i < c->n_requests; i++) {
        sim_request *q = &c->requests[i];

        if (q->epoch != 0 && !sim_ended(q)) q->lost = true;
    }
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        sim_rank *r = &c->ranks[i];

        if (r->dead) continue;
        r->waiting = false;
        empty_inbox(r);
        sim_forget_said(r); /* first, lest what the rank says now has some of it heard */
        sim_check(c, bt_worker_drop_all(r->worker));
        sim_forget_said(r);
    }
    c->wake[0] = c->wake[1] = 0;
    c->group_epoch[0]       = ++c->epoch;
    if (c->opt.n_both == 0) c->group_epoch[1] = ++c->epoch;
    tell_seats(c);
}

void sim_lose_coordinator(sim_cell *c, bool in_a_step)
{
    if (in_a_step)
        c->forsaken = true;
    else
        lose_coordinator(c);
}

static void die(sim_cell *c, uint32_t rank)
{
    sim_rank *r = &c->ranks[rank];

    r->dead    = true;
    r->waiting = false;
    empty_inbox(r);
    sim_forget_said(r);
    for (uint32_t i = c->n_flights; i-- > 0;)
        if (c->flights[i].from == rank) sim_drop_flight(c, i);
    c->group_epoch[r->group] = ++c->epoch;
    tell_seats(c);
    for (uint32_t i = 0; i < c->n_requests; i++)
        lose_placement(c, &c->requests[i], rank);
}

void sim_kill(sim_cell *c, uint32_t rank, bool in_a_step)
{
    if (in_a_step)
        c->doomed = 1 + rank;
    else
        die(c, rank);
}

bool sim_is_dead(const sim_cell *c, uint32_t rank) { return c->ranks[rank].dead; }
bool sim_is_doomed(const sim_cell *c) { return c->doomed != 0 || c->forsaken; }

void sim_follow(sim_cell *c, sim_rank *r, const bt_down_regroup *m)
{
    if (r->epoch != m->groups[r->group].epoch) r->n_late = 0; /* it has come to nothing */
    r->epoch = m->groups[r->group].epoch;
    for (uint32_t i = c->n_flights; i-- > 0;)
        if (c->flights[i].from == r->rank && c->ranks[c->flights[i].to].dead) sim_drop_flight(c, i);
}
