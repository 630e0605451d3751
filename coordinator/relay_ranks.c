/* Who sits where, who is lost, and who is to blame: the relay's ranks.
 *
 * Every change raises the epoch and goes to all ranks that are left, before anything is placed in
 * it.  A rank whose wait has expired says for whom it waited (Expired), once an epoch.  Then
 *   - the rank that most of its group name is removed; of several one that has not reported itself
 *     (who reports is alive), of these the highest;
 *   - but not one that was held up itself, by ranks that did not wait for it: of those that it
 *     names the same is asked;
 *   - where that goes round in a ring a message was lost: the one that has been through the fewest
 *     exchanges waits for it, and is removed;
 *   - who reads a lost one's experts counts as not named (is_excused()), nor does who has given up
 *     waiting for it;
 *   - who is to be removed, and beats, is given time to say that it waited too, until it does where
 *     its beats show that it does not get on; and all are when the coordinator has stood still;
 *   - where nobody is named the same ranks form the group anew. */
#include <stdio.h>

#include "coordinator/relay_state.h"
#include "core/alloc.h"
#include "core/clock.h"

/* Verdicts that a rank is waited for which beats, until it says for whom it waits itself. */
enum { BEATING_VERDICTS = 3 };

static bt_status number_seats(bt_relay *r, uint32_t group, uint32_t n, uint32_t first)
{
    bt_status st    = BT_OK;
    bt_seats *seats = &r->seats[group];

    seats->ranks = bt_calloc(n, sizeof(*seats->ranks));
    BT_REQUIRE(seats->ranks != NULL, BT_ERR_NO_MEMORY, "%u seats", n);
    seats->n     = n;
    seats->epoch = r->cfg.epoch - 1;
    for (uint32_t i = 0; i < n; i++)
        seats->ranks[i] = first + i;
out:
    return st;
}

static bt_status launch_seats(bt_relay *r, uint32_t group, uint32_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++)
        r->ranks[first + i].group = group;
    return number_seats(r, group, n, first);
}

/* The seats as they were; ranks that have not come back lose theirs. */
static bt_status take_seats(bt_relay *r, uint32_t group, const bt_seats *from)
{
    bt_status st = BT_OK;
    bt_seats *to = &r->seats[group];

    BT_TRY(number_seats(r, group, from->n, 0));
    for (uint32_t i = 0; i < from->n; i++) {
        uint32_t rank = from->ranks[i];
        bool     here = rank != BT_NO_RANK && !r->ranks[rank].lost;

        to->ranks[i] = here ? rank : BT_NO_RANK;
        if (here) r->ranks[rank].group = group;
    }
out:
    return st;
}

bt_status bt_relay_seat_ranks(bt_relay *relay, const bt_down_regroup *seats)
{
    bt_status st = BT_OK;
    uint32_t  first =
        bt_relay_both(relay) ? relay->cfg.n_ranks - relay->cfg.n_spares : relay->cfg.n_prefill;

    relay->epoch = relay->cfg.epoch;
    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) {
        bt_rank_state *k = &relay->ranks[i];

        k->group = BT_UNSEATED;
        k->lost  = k->limits.lost;
        if (k->lost) relay->gone[relay->n_gone++] = i;
    }
    if (seats != NULL) {
        BT_TRY(take_seats(relay, BT_SEATED_PREFILL, &seats->groups[0]));
        BT_TRY(take_seats(relay, BT_SEATED_DECODE, &seats->groups[1]));
        goto out;
    }
    BT_TRY(launch_seats(relay, BT_SEATED_PREFILL, first, 0));
    BT_TRY(launch_seats(relay, BT_SEATED_DECODE, relay->cfg.n_decode, first));
out:
    return st;
}

void bt_relay_count_seats(const bt_relay *relay, uint32_t taken_out[2])
{
    for (uint32_t g = 0; g < 2; g++) {
        taken_out[g] = 0;
        for (uint32_t i = 0; i < relay->seats[g].n; i++)
            taken_out[g] += relay->seats[g].ranks[i] != BT_NO_RANK;
    }
}

uint32_t bt_relay_n_spares(const bt_relay *relay)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++)
        n += !relay->ranks[i].lost && relay->ranks[i].group == BT_UNSEATED;
    return n;
}

/* ---- a new epoch */

/* prepare: as if it had its seat already. */
static void tell(bt_relay *r, uint32_t rank, bool prepare)
{
    bt_rank_state  *k   = &r->ranks[rank];
    bt_down         m   = {.kind = BT_DOWN_REGROUP};
    bt_down_regroup now = {
        .epoch   = r->epoch,
        .groups  = {r->seats[0], r->seats[1]},
        .prepare = prepare,
        .n_gone  = r->n_gone,
        .gone    = r->gone
    };

    if (bt_regroup_copy(&now, &m.u.regroup) != BT_OK) {
        /* the rank will be the next one that its group waits for */
        BT_WARN("no memory to tell rank %u of epoch %u", rank, r->epoch);
        return;
    }
    if (prepare) m.u.regroup.groups[k->next_group].ranks[k->next_seat] = rank;
    r->events.send(r->events.ctx, rank, &m);
}

static void tell_all(bt_relay *r, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        bt_rank_state *k = &r->ranks[i];

        if (k->lost) continue;
        k->progress_ns = now_ns; /* they waited, and not through their own fault */
        tell(r, i, false);
    }
}

/* The group's ranks have changed, or shall begin anew. */
static void raise_epoch(bt_relay *r, uint32_t group)
{
    bool met = r->has_met[group];

    r->seats[group].epoch = ++r->epoch;
    r->verdict_ns[group]  = 0;
    r->has_met[group]     = false;
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        bt_rank_state *k = &r->ranks[i];

        if (k->group != group) continue;
        if (k->has_read || met) k->reads_ns = 0;
        k->reported = false;
        k->n_blamed = k->n_awaits = 0;
        bt_free(k->awaits);
        k->awaits = NULL;
    }
}

void bt_relay_begin_anew(bt_relay *relay, uint64_t now_ns)
{
    raise_epoch(relay, BT_SEATED_PREFILL);
    if (!bt_relay_both(relay)) raise_epoch(relay, BT_SEATED_DECODE);
    tell_all(relay, now_ns);
}

/* ---- spares */

static bool somebody_prepares(const bt_relay *r, uint32_t group, uint32_t seat)
{
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++)
        if (r->ranks[i].prepares && r->ranks[i].next_group == group &&
            r->ranks[i].next_seat == seat)
            return true;
    return false;
}

/* An empty seat that no spare prepares for, in the group with the fewest ranks. */
static bool find_empty_seat(const bt_relay *r, uint32_t *group_out, uint32_t *seat_out)
{
    uint32_t taken[2], least = UINT32_MAX;

    bt_relay_count_seats(r, taken);
    for (uint32_t g = 0; g < 2; g++) {
        for (uint32_t i = 0; i < r->seats[g].n; i++) {
            if (r->seats[g].ranks[i] != BT_NO_RANK || somebody_prepares(r, g, i) ||
                taken[g] >= least)
                continue;
            least      = taken[g];
            *group_out = g;
            *seat_out  = i;
        }
    }
    return least != UINT32_MAX;
}

/* Spares that are ready prepare for the empty seats. */
static void recruit(bt_relay *r)
{
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        bt_rank_state *k = &r->ranks[i];

        if (k->lost || !k->ready || k->prepares || k->group != BT_UNSEATED) continue;
        if (!find_empty_seat(r, &k->next_group, &k->next_seat)) return;
        k->prepares = true;
        BT_INFO("spare rank %u prepares for seat %u of the %s group", i, k->next_seat,
                k->next_group == BT_SEATED_PREFILL ? "first" : "decode");
        tell(r, i, true);
    }
}

/* The other group has lost its last rank meanwhile: the spare is needed there more than in the
 * group that it has prepared for.  A spare that prepares for that group already may be hanging. */
static bool other_group_is_empty(const bt_relay *r, const bt_rank_state *k)
{
    uint32_t taken[2], group, seat;

    bt_relay_count_seats(r, taken);
    return taken[k->next_group] > 0 && find_empty_seat(r, &group, &seat) && taken[group] == 0;
}

void bt_relay_ready(bt_relay *relay, uint32_t rank, uint64_t now_ns)
{
    bt_rank_state *k = &relay->ranks[rank];

    if (relay->stopped || k->lost || k->group != BT_UNSEATED) return;
    k->ready    = true;
    k->heard_ns = now_ns;
    if (k->prepares && other_group_is_empty(relay, k)) {
        k->prepares = false; /* to be recruited for that group */
    } else if (k->prepares) {
        k->prepares = false;
        k->group    = k->next_group;

        relay->seats[k->group].ranks[k->next_seat] = rank;
        raise_epoch(relay, k->group);
        tell_all(relay, now_ns);
        bt_relay_begin_turns(relay);
        bt_relay_wake(relay, rank); /* or a group that has nothing to do could not agree to park */
        BT_INFO("rank %u has taken seat %u of the %s group in epoch %u", rank, k->next_seat,
                k->group == BT_SEATED_PREFILL ? "first" : "decode", relay->epoch);
        bt_relay_place(relay, now_ns);
    }
    recruit(relay);
}

/* ---- a rank is lost */

/* Whether a choice has not begun, so that its first token may have been lost with the prefill
 * rank. */
static bool lacks_first(const bt_relay_request *q)
{
    for (uint32_t i = 0; i < q->n_choices; i++)
        if (q->choices[i].n_out == 0) return true;
    return false;
}

/* Undoes what the lost rank had of the placement.  q may be gone afterwards. */
static void lose_placement(bt_relay *r, bt_relay_request *q, uint32_t rank, uint64_t now_ns)
{
    bool decoded = q->decode_rank == rank, prefilled = q->prefill_rank == rank;

    if (!decoded && !prefilled) return;
    if (decoded) bt_relay_free_decode(r, q);
    if (prefilled) bt_relay_free_prefill(r, q);
    if (q->state == BT_ENDED)
        bt_relay_settle(r, q);
    else if (decoded || q->state != BT_DECODE || lacks_first(q))
        bt_relay_requeue(r, q, true, now_ns);
    /* else the decode rank knows whether all pages have come: it goes on, or retracts it */
}

void bt_relay_lose(bt_relay *relay, uint32_t rank, uint64_t now_ns)
{
    bt_rank_state    *k     = &relay->ranks[rank];
    uint32_t          group = k->group;
    bt_relay_request *q, *older;

    if (k->lost || relay->stopped) return;
    k->lost     = true;
    k->prepares = false;
    k->group    = BT_UNSEATED;

    relay->gone[relay->n_gone++] = rank;
    if (group != BT_UNSEATED) {
        for (uint32_t i = 0; i < relay->seats[group].n; i++)
            if (relay->seats[group].ranks[i] == rank) relay->seats[group].ranks[i] = BT_NO_RANK;
        raise_epoch(relay, group);
    } else {
        relay->epoch++; /* that of no group; else the next coordinator would wait for it */
    }
    tell_all(relay, now_ns);
    for (q = relay->placed.last; q != NULL; q = older) { /* each goes to the queue's front */
        older = q->prev;
        lose_placement(relay, q, rank, now_ns);
    }
    recruit(relay);
    bt_relay_place(relay, now_ns);
}

/* ---- who is to blame */

static void remove_rank(bt_relay *r, uint32_t rank, const char *why, uint64_t now_ns)
{
    r->ranks[rank].stuck = true;
    if (r->cfg.replace) bt_relay_lose(r, rank, now_ns);
    r->events.stuck(r->events.ctx, rank, why);
}

static bool awaits(const bt_rank_state *k, uint32_t rank)
{
    for (uint32_t i = 0; i < k->n_awaits; i++)
        if (k->awaits[i] == rank) return true;
    return false;
}

void bt_relay_expired(bt_relay *relay, uint32_t rank, bt_up *m, uint64_t now_ns)
{
    bt_rank_state *k = &relay->ranks[rank];

    if (!relay->cfg.replace || k->group == BT_UNSEATED || k->reported ||
        m->u.expired.epoch != relay->seats[k->group].epoch)
        return; /* it has been decided meanwhile */
    k->reported = true;
    BT_WARN("rank %u has waited too long: %s", rank, m->u.expired.what);
    k->n_met           = m->u.expired.n_met;
    k->awaits          = m->u.expired.ranks;
    m->u.expired.ranks = NULL; /* ours now */
    for (uint32_t i = 0; i < m->u.expired.n; i++) {
        uint32_t named = k->awaits[i];

        if (named >= relay->cfg.n_ranks || named == rank || relay->ranks[named].group != k->group ||
            awaits(k, named))
            continue;
        relay->ranks[named].n_blamed++;
        k->awaits[k->n_awaits++] = named;
    }
    if (k->n_met > 0) relay->has_met[k->group] = true;
    if (relay->verdict_ns[k->group] == 0)
        relay->verdict_ns[k->group] = now_ns + relay->cfg.verdict_ns;
}

void bt_relay_reads(bt_relay *relay, uint32_t rank, bool has_read, uint64_t now_ns)
{
    relay->ranks[rank].has_read = has_read;
    if (has_read) return;
    relay->ranks[rank].reads_ns = now_ns;
    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) /* which wait for it */
        if (relay->ranks[i].group == relay->ranks[rank].group) relay->ranks[i].progress_ns = now_ns;
}

/* Is a, the higher rank, more likely than b to be the one that holds the group up? */
static bool is_likelier(const bt_rank_state *a, const bt_rank_state *b)
{
    return a->n_blamed != b->n_blamed ? a->n_blamed > b->n_blamed : b->reported || !a->reported;
}

/* Nobody who reads, or has in this epoch, is to blame for that: the others begin anew until it is
 * there.  Once all have met it is one like others, unless it waits itself: then it came late. */
static bool is_excused(const bt_relay *r, const bt_rank_state *k, uint64_t now_ns)
{
    return k->reads_ns != 0 && bt_relay_waited_ns(r, k->reads_ns, now_ns) < r->cfg.rank_quiet_ns &&
           (k->reported || !r->has_met[k->group]);
}

/* Who came late finds nobody there any more of those that have waited for it. */
static bool has_given_up(const bt_relay *r, const bt_rank_state *k, uint64_t now_ns)
{
    for (uint32_t i = 0; i < k->n_awaits; i++)
        if (is_excused(r, &r->ranks[k->awaits[i]], now_ns)) return true;
    return false;
}

static bool is_to_blame(const bt_relay *r, const bt_rank_state *k, uint64_t now_ns)
{
    return k->n_blamed > 0 && !is_excused(r, k, now_ns) && !has_given_up(r, k, now_ns);
}

/* Of the group, or of those of it that `waiter` waits for; BT_NO_RANK when nobody is named. */
static uint32_t most_blamed(const bt_relay *r, uint32_t group, uint32_t waiter, uint64_t now_ns)
{
    uint32_t found = BT_NO_RANK;

    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        const bt_rank_state *k = &r->ranks[i];

        if (k->group == group && is_to_blame(r, k, now_ns) &&
            (waiter == BT_NO_RANK || awaits(&r->ranks[waiter], i)) &&
            (found == BT_NO_RANK || is_likelier(k, &r->ranks[found])))
            found = i;
    }
    return found;
}

/* The rank waits, and nobody that it waits for waits for it, as they would if it could not be
 * reached. */
static bool is_held_up(const bt_relay *r, uint32_t rank)
{
    const bt_rank_state *k = &r->ranks[rank];

    for (uint32_t i = 0; i < k->n_awaits; i++)
        if (awaits(&r->ranks[k->awaits[i]], rank)) return false;
    return k->n_awaits > 0;
}

/* All wait in a ring, so a message was lost, and who has got least far waits for it. */
static uint32_t furthest_behind(const bt_relay *r, uint32_t group, uint64_t now_ns)
{
    uint32_t found = BT_NO_RANK;

    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        const bt_rank_state *k = &r->ranks[i], *f = &r->ranks[found == BT_NO_RANK ? i : found];

        if (k->group != group || !k->reported || !is_to_blame(r, k, now_ns)) continue;
        if (found == BT_NO_RANK || k->n_met < f->n_met ||
            (k->n_met == f->n_met && is_likelier(k, f)))
            found = i;
    }
    return found;
}

/* Most wait for the owner of a row, where it alone waits for the expert's rank that hangs. */
static uint32_t find_culprit(const bt_relay *r, uint32_t group, uint64_t now_ns)
{
    uint32_t rank = most_blamed(r, group, BT_NO_RANK, now_ns);

    for (uint32_t i = 0; i < r->cfg.n_ranks && rank != BT_NO_RANK && is_held_up(r, rank); i++)
        rank = most_blamed(r, group, rank, now_ns);
    return rank != BT_NO_RANK && is_held_up(r, rank) ? furthest_behind(r, group, now_ns) : rank;
}

/* Its step thread lives: it says so five times a second, also while it waits. */
static bool beats(const bt_rank_state *k, uint64_t now_ns)
{
    return bt_since_ns(k->beat_ns, now_ns) < BT_NS_PER_S;
}

/* From the verdict's time on, for a report of who beats.  One that does not get on waits for
 * others: they come, or it reports them, however late its wait has begun. */
static uint64_t patience_ns(const bt_relay *r, const bt_rank_state *k, uint64_t now_ns)
{
    bool waits = bt_since_ns(k->waits_ns, now_ns) < BT_NS_PER_S;

    return waits ? r->cfg.rank_quiet_ns : BEATING_VERDICTS * r->cfg.verdict_ns;
}

/* Who is named and beats may have waited itself, and is about to say so. */
static bool may_report(const bt_relay *r, const bt_rank_state *k, uint64_t now_ns)
{
    if (k->reported) return false;
    return k->n_blamed == 0 || (beats(k, now_ns) && !is_excused(r, k, now_ns));
}

static bool all_have_spoken(const bt_relay *r, uint32_t group, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++)
        if (r->ranks[i].group == group && may_report(r, &r->ranks[i], now_ns)) return false;
    return true;
}

void bt_relay_stood_still(bt_relay *relay, uint64_t still_ns, uint64_t now_ns)
{
    if (still_ns < BEATING_VERDICTS * relay->cfg.verdict_ns) return;
    for (uint32_t g = 0; g < 2; g++)
        if (relay->verdict_ns[g] != 0) relay->verdict_ns[g] = now_ns + relay->cfg.verdict_ns;
    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) {
        uint64_t beat_ns = relay->ranks[i].beat_ns + still_ns;

        relay->ranks[i].beat_ns = beat_ns < now_ns ? beat_ns : now_ns;
    }
}

void bt_relay_decide(bt_relay *relay, uint64_t now_ns)
{
    for (uint32_t g = 0; g < 2; g++) {
        uint32_t rank;
        char     why[128];

        if (relay->verdict_ns[g] == 0) continue;
        if (now_ns < relay->verdict_ns[g] && !all_have_spoken(relay, g, now_ns)) continue;
        rank = find_culprit(relay, g, now_ns);
        if (rank != BT_NO_RANK && may_report(relay, &relay->ranks[rank], now_ns) &&
            now_ns < relay->verdict_ns[g] + patience_ns(relay, &relay->ranks[rank], now_ns))
            continue;
        if (rank == BT_NO_RANK) {
            raise_epoch(relay, g);
            tell_all(relay, now_ns);
            continue;
        }
        snprintf(why, sizeof(why), "ranks of its group that waited for it too long: %u",
                 relay->ranks[rank].n_blamed);
        remove_rank(relay, rank, why, now_ns);
    }
}

/* A spare that says nothing would not come when it is needed. */
static bool is_silent_spare(const bt_relay *r, const bt_rank_state *k, uint64_t now_ns)
{
    return r->cfg.replace && k->ready && k->group == BT_UNSEATED &&
           bt_relay_waited_ns(r, k->heard_ns, now_ns) >= r->cfg.rank_quiet_ns;
}

/* Of the ranks that have work and show no progress, removes the one that has been silent for
 * longest: those that only wait for it still beat. */
void bt_relay_find_stuck(bt_relay *relay, uint64_t now_ns)
{
    uint32_t       found = BT_NO_RANK;
    char           why[128];
    bt_rank_state *k;

    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) {
        k = &relay->ranks[i];
        if (k->stuck || k->lost) continue;
        if (!is_silent_spare(relay, k, now_ns) &&
            (k->n_held == 0 ||
             bt_relay_waited_ns(relay, k->progress_ns, now_ns) < relay->cfg.rank_quiet_ns))
            continue;
        if (found == BT_NO_RANK || k->heard_ns < relay->ranks[found].heard_ns) found = i;
    }
    if (found == BT_NO_RANK) return;
    k = &relay->ranks[found];
    if (k->n_held == 0)
        snprintf(why, sizeof(why), "nothing was heard of the spare for %.1f s",
                 (double)bt_relay_waited_ns(relay, k->heard_ns, now_ns) * 1e-9);
    else
        snprintf(why, sizeof(why), "rank %u has made no progress for %.1f s with %u requests",
                 found, (double)bt_relay_waited_ns(relay, k->progress_ns, now_ns) * 1e-9,
                 k->n_held);
    remove_rank(relay, found, why, now_ns);
}
