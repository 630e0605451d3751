/* worker/seats.c - who sits where in the cell, and what follows from it for this rank: its group,
 * where experts live, whom it takes pages from. */
#include "core/alloc.h"
#include "core/clock.h"
#include "core/watchdog.h"
#include "parallel/carrier.h"
#include "worker/rank.h"

#define BEAT_NS  (50 * BT_NS_PER_MS)
#define SLEEP_NS (1 * BT_NS_PER_MS)

enum { MOST_IN_VAIN = 3 }; /* a group that begins anew so often begins no more */

/* ---- as launched */

static bt_status number_seats(bt_seats *seats, uint32_t n, uint32_t first)
{
    bt_status st = BT_OK;

    seats->ranks = bt_calloc(n, sizeof(*seats->ranks));
    BT_REQUIRE(seats->ranks != NULL, BT_ERR_NO_MEMORY, "%u seats", n);
    seats->n     = n;
    seats->epoch = BT_FIRST_EPOCH;
    for (uint32_t i = 0; i < n; i++)
        seats->ranks[i] = first + i;
out:
    return st;
}

bt_status bt_rank_find_place(bt_rank *r)
{
    bt_status st    = BT_OK;
    uint32_t  first = r->opt.n_both != 0 ? r->opt.n_both : r->opt.n_prefill;

    r->facts = (bt_rank_facts){.rank      = bt_world_rank(r->world),
                               .n_ranks   = bt_world_size(r->world),
                               .n_prefill = r->opt.n_prefill,
                               .n_decode  = r->opt.n_decode,
                               .model     = &r->cfg,
                               .seats     = r->seating.groups};
    BT_TRY(number_seats(&r->seating.groups[BT_GROUP_PREFILL], first, 0));
    BT_TRY(number_seats(&r->seating.groups[BT_GROUP_DECODE], r->opt.n_decode, first));
    r->links.rank    = r->facts.rank;
    r->seating.epoch = r->epoch = BT_FIRST_EPOCH;
out:
    return st;
}

/* ---- a group */

static bt_status place_experts(bt_rank *r, const bool *taken, uint32_t n_seats,
                               bt_placement *placement_out)
{
    const bt_gate_config *gate = &r->cfg.moe.gate;

    if (gate->n_experts == 0) return BT_OK;
    return bt_placement_of_seats(placement_out, gate->n_experts, gate->n_groups, n_seats, taken);
}

/* What the group's device memory travels by; host memory needs nothing. */
static bt_status attach_carrier(bt_rank *r, uint32_t index, bt_group *group)
{
    bt_status   st      = BT_OK;
    bt_carrier *carrier = NULL;

    if (r->dev->host_memory || bt_group_size(group) == 1) goto out;
    if (r->nccl != NULL)
        BT_TRY(bt_carrier_nccl_create(r->nccl, r->dev, r->world, BT_SPACE_ROLL + index, &carrier));
    else
        BT_TRY(bt_carrier_staged_create(r->dev, &carrier));
    bt_group_attach(group, carrier);
out:
    return st;
}

bt_status bt_rank_form_group(bt_rank *r, const bt_seats seats[2])
{
    bt_status       st    = BT_OK;
    uint32_t        index = bt_seats_group_of(seats, r->facts.rank), n = 0;
    const bt_seats *own       = &seats[index % 2];
    uint32_t       *ranks     = bt_calloc(own->n, sizeof(*ranks));
    bool           *taken     = bt_calloc(own->n, sizeof(*taken));
    bt_plan        *plans     = bt_calloc(own->n, sizeof(*plans));
    bt_placement    placement = {0};
    bt_group       *group     = NULL;

    if (index == 2) goto out; /* a spare */
    BT_REQUIRE(ranks != NULL && taken != NULL && plans != NULL, BT_ERR_NO_MEMORY,
               "a group of %u seats", own->n);
    for (uint32_t i = 0; i < own->n; i++) {
        taken[i] = own->ranks[i] != BT_NO_RANK;
        if (taken[i]) ranks[n++] = own->ranks[i];
    }
    BT_TRY(place_experts(r, taken, own->n, &placement));
    BT_TRY(bt_group_create(r->world, n, ranks, index, own->epoch, &group));
    BT_TRY(attach_carrier(r, index, group));
    bt_group_destroy(r->group);
    bt_placement_fini(&r->placement);
    bt_free(r->plans);
    r->plans     = plans;
    r->placement = placement;
    r->group = r->links.group = group;
    r->group_size             = n;
    r->group_self             = bt_group_self(group);
    plans                     = NULL; /* handed over, as are the next two */
    placement                 = (bt_placement){0};
    group                     = NULL;
out:
    bt_group_destroy(group);
    bt_placement_fini(&placement);
    bt_free(plans);
    bt_free(taken);
    bt_free(ranks);
    return st;
}

/* ---- a change */

/* Of what each rank of a group would say the first says it for all. */
static bt_log_level level_of(bool first, bt_log_level level)
{
    return first ? level : BT_LOG_DEBUG;
}

static bool is_first(const bt_rank *r, const bt_seats *seats)
{
    uint32_t i = 0;

    while (i < seats->n && seats->ranks[i] == BT_NO_RANK)
        i++;
    return i < seats->n && seats->ranks[i] == r->facts.rank;
}

/* Excludes those that have lost their seat: nothing is taken from them or sent to them. */
static bt_status exclude_lost(bt_rank *r, const bt_down_regroup *m)
{
    bt_status st = BT_OK;

    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < r->seating.groups[g].n; i++) {
            uint32_t rank = r->seating.groups[g].ranks[i];

            if (rank == BT_NO_RANK || bt_seats_group_of(m->groups, rank) < 2) continue;
            bt_log_write(level_of(is_first(r, &m->groups[g]), BT_LOG_WARN), __FILE__, __LINE__,
                         "rank %u has lost its seat %u of group %u: epoch %u", rank, i, g,
                         m->epoch);
            if (r->handoff != NULL) BT_TRY(bt_handoff_exclude(r->handoff, rank));
        }
out:
    return st;
}

bt_status bt_rank_join_handoff(bt_rank *r, uint32_t epoch, const bt_seats seats[2])
{
    bt_status st = BT_OK;
    uint32_t  n = 0, n_senders = 0;
    uint32_t *ranks = bt_calloc(r->facts.n_ranks, sizeof(*ranks));

    BT_REQUIRE(ranks != NULL, BT_ERR_NO_MEMORY, "the ranks of epoch %u", epoch);
    for (uint32_t g = 0; g < 2; g++) {
        for (uint32_t i = 0; i < seats[g].n; i++)
            if (seats[g].ranks[i] != BT_NO_RANK) ranks[n++] = seats[g].ranks[i];
        if (g == BT_GROUP_PREFILL) n_senders = n;
    }
    if (r->handoff != NULL) BT_TRY(bt_handoff_join(r->handoff, epoch, n, n_senders, ranks));
out:
    bt_free(ranks);
    return st;
}

/* Experts are read and packed: a sign of life from time to time, without which the coordinator
 * would take this rank, or those that wait for it, for stuck. */
static void on_load(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    bt_rank *r   = ctx;
    uint64_t now = bt_now_ns();

    if (now - r->progress_ns < BEAT_NS) return;
    r->progress_ns = now;
    if (bt_links_must_leave(&r->links)) bt_rank_leave_early(r, BT_ERR_CANCELLED);
    bt_worker_background(r->worker); /* a beat that is due tells of the last step: it goes first */
    bt_rank_say_progress(r, done_bytes, total_bytes);
}

/* None without a group, or in a model without any. */
static uint32_t count_experts(const bt_rank *r)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < r->placement.n_experts; e++)
        n += r->placement.owner[e] == r->group_self;
    return n;
}

/* Checked before experts are read: other ranks of this machine may adopt some at the same time. */
static bt_status check_room(const bt_rank *r, uint32_t n_before)
{
    bt_status st = BT_OK;
    uint32_t  n = count_experts(r), n_at_once = n_before == 0 ? 1 : r->memory.local_size;
    uint64_t  left = bt_memory_available(), most = UINT64_MAX;

    if (n <= n_before) return BT_OK;
    if (r->memory.on_gpu) BT_TRY(bt_memory_available_on(r->dev, &left));
    if (r->store != NULL) /* a lost rank's experts are still there */
        most = bt_model_missing_experts(r->model) * r->memory.expert;
    BT_TRY(bt_memory_check_room(&r->memory, n - n_before, n_at_once, most, left));
out:
    return st;
}

/* Steps that have come to nothing.  All that frees memory below waits for them, perhaps for ever:
 * NCCL's end may leave some on the GPU. */
static bt_status await_device(bt_rank *r)
{
    bt_status st;

    bt_watchdog_enter("GPU's steps of the last group", -1);
    st = bt_device_sync(r->dev);
    bt_watchdog_leave();
    return st;
}

static bt_status follow(bt_rank *r, const bt_seats seats[2])
{
    bt_status        st       = BT_OK;
    uint64_t         now      = bt_now_ns();
    uint32_t         n_before = count_experts(r);
    bt_model_options opt      = {.dev = r->dev, .progress = on_load, .progress_ctx = r};

    bt_model_leave_group(r->model);
    BT_TRY(await_device(r));
    BT_TRY(bt_rank_form_group(r, seats));
    BT_TRY(check_room(r, n_before));
    opt.group     = r->group;
    opt.placement = &r->placement;
    BT_TRY(bt_model_regroup(r->model, r->st, &opt));
    bt_group_drain(r->group);
    bt_rank_say_progress(r, 0, 0); /* from here on whoever waits for it in vain blames it */
    bt_log_write(level_of(r->group_self == 0, BT_LOG_INFO), __FILE__, __LINE__,
                 "regrouped in epoch %u: %u ranks, this one is number %u; %.1f MiB of weights "
                 "after %.1f ms",
                 bt_group_epoch(r->group), r->group_size, r->group_self,
                 (double)bt_model_weight_bytes(r->model) / (1 << 20),
                 (double)(bt_now_ns() - now) / BT_NS_PER_MS);
out:
    return st;
}

/* A spare gets ready for a seat: the group that it forms is not used, since that seat will be taken
 * in a later epoch. */
static bt_status prepare(bt_rank *r, const bt_down_regroup *m)
{
    bt_status st = BT_OK;

    BT_REQUIRE(bt_seats_group_of(r->seating.groups, r->facts.rank) == 2 &&
                   bt_seats_group_of(m->groups, r->facts.rank) < 2,
               BT_ERR_PROTOCOL, "rank %u is to prepare for a seat that it %s", r->facts.rank,
               bt_seats_group_of(r->seating.groups, r->facts.rank) == 2 ? "is not given" : "has");
    BT_TRY(follow(r, m->groups));
    BT_TRY(bt_rank_say_ready(r));
out:
    return st;
}

/* Else a spare was lost, whom no group knows. */
static bool has_new_groups(const bt_rank *r, const bt_down_regroup *g)
{
    return g->groups[0].epoch != r->seating.groups[0].epoch ||
           g->groups[1].epoch != r->seating.groups[1].epoch;
}

bt_status bt_rank_regroup(bt_rank *r, bt_down *m)
{
    bt_status        st = BT_OK;
    bt_down_regroup *g  = &m->u.regroup;
    uint32_t         own;
    bool             follows;

    BT_TRY(bt_seats_check(&r->facts, r->epoch, g));
    r->shrunk = r->shrunk || g->n_gone != 0;
    if (g->prepare) return prepare(r, g);
    own     = bt_seats_group_of(g->groups, r->facts.rank);
    follows = own < 2 && (r->group == NULL || g->groups[own].epoch != bt_group_epoch(r->group));
    /* Exchanges may wait for one who is lost by this change, or by the next one, which has come
     * too: they end before the hand-off's communicator does. */
    if ((follows || r->links.regroup_due) && r->group != NULL) bt_group_end_exchanges(r->group);
    BT_TRY(exclude_lost(r, g));
    if (has_new_groups(r, g)) BT_TRY(bt_rank_join_handoff(r, g->epoch, g->groups));
    r->links.regroup_due = false; /* a later one that waits in the inbox is taken before any step */
    if (follows) BT_TRY(follow(r, g->groups));
    BT_TRY(bt_worker_control(r->worker, m));
    bt_regroup_free(&r->seating);
    r->seating = *g;
    r->epoch   = g->epoch;
    *g         = (bt_down_regroup){0}; /* handed over */
    bt_rank_adopted(r);
out:
    return st;
}

static bt_status say_expired(bt_rank *r)
{
    bt_status st = BT_OK;
    bt_up     m  = {.kind = BT_UP_EXPIRED};

    m.u.expired.epoch = bt_group_epoch(r->group);
    m.u.expired.n_met = bt_group_n_met(r->group);
    m.u.expired.ranks = bt_calloc(r->group_size, sizeof(*m.u.expired.ranks));
    m.u.expired.what  = bt_strdup(bt_error_text());
    BT_REQUIRE(m.u.expired.ranks != NULL && m.u.expired.what != NULL, BT_ERR_NO_MEMORY,
               "the report of an expired wait");
    m.u.expired.n = bt_group_missing(r->group, m.u.expired.ranks);
    r->n_in_vain  = m.u.expired.n == 0 ? r->n_in_vain + 1 : 0;
    st            = bt_links_send(&r->links, &m);
    m.kind        = BT_UP_READY; /* it owns nothing any more */
out:
    bt_up_free(&m);
    return st;
}

bt_status bt_rank_await_regroup(bt_rank *r, bt_status why)
{
    bt_status st       = BT_OK;
    uint64_t  start_ns = bt_awake_ns(), limit_ns = bt_rank_patience_ns(r);

    if (why == BT_ERR_DEVICE && r->nccl == NULL) return why; /* no new group mends it */
    BT_TRY(say_expired(r));
    if (r->n_in_vain >= MOST_IN_VAIN) return why;
    while (!r->links.regroup_due) {
        uint64_t now = bt_awake_ns();

        if (bt_links_must_leave(&r->links)) return BT_ERR_CANCELLED;
        if (now - start_ns >= limit_ns) bt_links_forsake(&r->links);
        if (bt_links_orphaned(&r->links)) return BT_OK;
        BT_REQUIRE(now - start_ns < limit_ns, BT_ERR_TIMEOUT,
                   "the coordinator has not said within %.1f s how the group of epoch %u goes on",
                   (double)limit_ns / BT_NS_PER_S, bt_group_epoch(r->group));
        bt_worker_background(r->worker);
        bt_links_sleep(&r->links, SLEEP_NS);
    }
out:
    return st;
}
