/* worker/regroup.c - the cell's seats have changed: what becomes of this rank's requests. */
#include "worker/state.h"

bt_status bt_seats_check(const bt_rank_facts *f, uint32_t epoch, const bt_down_regroup *m)
{
    bt_status st = BT_OK;

    BT_REQUIRE(m->epoch > epoch || (m->prepare && m->epoch == epoch), BT_ERR_PROTOCOL,
               "the cell is to regroup in epoch %u, and has been in epoch %u", m->epoch, epoch);
    for (uint32_t g = 0; g < 2; g++) {
        const bt_seats *before = &f->seats[g], *now = &m->groups[g];

        BT_REQUIRE(now->epoch >= before->epoch && now->epoch <= m->epoch, BT_ERR_PROTOCOL,
                   "epoch %u has epoch %u for group %u, which has been in epoch %u", m->epoch,
                   now->epoch, g, before->epoch);
        BT_REQUIRE(now->n == before->n, BT_ERR_PROTOCOL,
                   "epoch %u has %u seats in group %u, this cell has %u", m->epoch, now->n, g,
                   before->n);
        for (uint32_t i = 0; i < now->n; i++)
            BT_REQUIRE(now->ranks[i] < f->n_ranks || now->ranks[i] == BT_NO_RANK, BT_ERR_PROTOCOL,
                       "epoch %u gives a seat to rank %u of %u", m->epoch, now->ranks[i],
                       f->n_ranks);
    }
    BT_REQUIRE(bt_seats_group_of(m->groups, f->rank) < 2 ||
                   bt_seats_group_of(f->seats, f->rank) == 2,
               BT_ERR_PROTOCOL, "rank %u has lost its seat in epoch %u", f->rank, m->epoch);
out:
    return st;
}

/* How many of a group's seats are taken. */
static uint32_t count_taken(const bt_seats *seats)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < seats->n; i++)
        n += seats->ranks[i] != BT_NO_RANK;
    return n;
}

/* Its hand-off is not complete, and its other end has no seat any more.  (Choices that wait for the
 * prompt go with the one that it is handed over for.) */
static bool lost_its_peer(const bt_worker *w, const bt_request *r)
{
    const bt_rank_facts *f = &w->cfg.facts;

    if (bt_rank_has_both(f) || r->peer == f->rank) return false;
    if (r->state == BT_REQUEST_DECODE || r->state == BT_REQUEST_WAITING ||
        r->state == BT_REQUEST_DRAINING) /* it has ended already */
        return false;
    return !bt_rank_sits(f, BT_GROUP_PREFILL, r->peer) &&
           !bt_rank_sits(f, BT_GROUP_DECODE, r->peer);
}

static bt_request *next_to_go(const bt_worker *w)
{
    for (uint32_t i = 0; i < w->requests.n; i++)
        if (lost_its_peer(w, w->requests.at[i])) return w->requests.at[i];
    return NULL;
}

/* Each goes with all its choices; nothing is in flight to a peer that is excluded. */
static bt_status let_go(bt_worker *w)
{
    bt_status   st = BT_OK;
    bt_request *r;

    while ((r = next_to_go(w)) != NULL) {
        if (r->state == BT_REQUEST_RESERVED)
            BT_TRY(bt_worker_retract(w, r));
        else
            BT_TRY(bt_worker_end(w, r));
    }
out:
    return st;
}

bt_status bt_worker_regroup(bt_worker *w, const bt_down_regroup *m)
{
    bt_status       st    = BT_OK;
    const bt_seats *seats = w->seating.groups;
    bt_down_regroup now;
    uint32_t        group;
    bool            seated;

    BT_TRY(bt_regroup_copy(m, &now));
    bt_regroup_free(&w->seating);
    w->seating         = now;
    w->cfg.facts.seats = seats;
    group              = bt_seats_group_of(seats, w->cfg.facts.rank);
    seated             = group < 2;
    BT_REQUIRE(seated || w->cfg.group_size == 0, BT_ERR_PROTOCOL,
               "rank %u has no seat in epoch %u any more", w->cfg.facts.rank, m->epoch);
    BT_TRY(let_go(w));
    if (!seated || seats[group].epoch == w->cfg.epoch) goto out;
    BT_TRY(bt_worker_abandon(w));
    w->cfg.epoch      = seats[group].epoch;
    w->cfg.group_size = count_taken(&seats[group]);
    w->parked = w->asked = false;
out:
    return st;
}

/* One that does not only wait for a granted message to leave. */
static bt_request *first_alive(const bt_worker *w)
{
    for (uint32_t i = 0; i < w->requests.n; i++)
        if (w->requests.at[i]->state != BT_REQUEST_DRAINING) return w->requests.at[i];
    return NULL;
}

bt_status bt_worker_drop_all(bt_worker *w)
{
    bt_status   st = BT_OK;
    bt_request *r;

    BT_TRY(bt_worker_abandon(w));
    while ((r = first_alive(w)) != NULL)
        BT_TRY(bt_worker_end(w, r));
    w->wake_seen = w->wake_parked = 0;
    w->parked                     = true;
    w->asked                      = false;
out:
    return st;
}
