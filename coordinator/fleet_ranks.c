/* The ranks of the cells: how they attach, what they say of themselves, how they are lost. */
#include <stdio.h>
#include <string.h>

#include "coordinator/announce.h"
#include "coordinator/fleet_state.h"
#include "coordinator/pairs.h"
#include "core/alloc.h"
#include "core/clock.h"

/* How long the first rank of a cell waits for the last one.  Ranks that come back are all running
 * already. */
static uint64_t wait_for(const bt_fleet *fleet, const bt_up_hello *hello)
{
    uint64_t quiet_ns = fleet->cfg.relay.rank_quiet_ns, attach_ns = fleet->cfg.attach_ns;

    return hello->incarnation != 0 && quiet_ns < attach_ns ? quiet_ns : attach_ns;
}

/* The member that the hello belongs to, made when it is the first of its cell. */
static bt_status find_place(bt_fleet *fleet, const bt_up_hello *hello, bt_member **member_out)
{
    bt_status          st = BT_OK;
    bt_member         *m = bt_fleet_find(fleet, hello->cell), *fresh = NULL;
    const bt_up_hello *facts = fleet->has_facts ? &fleet->facts : NULL;

    BT_REQUIRE(!fleet->stopped, BT_ERR_PEER, "the coordinator is shutting down");
    BT_REQUIRE(m == NULL || m->state != BT_CELL_LEAVING, BT_ERR_PEER,
               "rank %u comes too early: the cell \"%s\" before it has not left yet", hello->rank,
               hello->cell);
    if (facts == NULL && m == NULL && fleet->n_members > 0)
        facts = bt_cell_facts(&fleet->members[0]->cell);
    if (facts != NULL && m == NULL) BT_TRY(bt_cell_agree(facts, hello));
    if (m == NULL) {
        BT_REQUIRE(fleet->n_members < BT_FLEET_CELLS, BT_ERR_INVALID_ARG,
                   "there are %d cells already", BT_FLEET_CELLS);
        fresh = bt_calloc(1, sizeof(*fresh));
        BT_REQUIRE(fresh != NULL, BT_ERR_NO_MEMORY, "a cell");
        fresh->fleet                       = fleet;
        fresh->deadline_ns                 = bt_now_ns() + wait_for(fleet, hello);
        fleet->members[fleet->n_members++] = fresh;
        m                                  = fresh;
    }
    *member_out = m;
out:
    return st;
}

static bt_status attach(bt_member *m, bt_control_peer *peer, bt_up_hello *hello)
{
    bt_status st   = BT_OK;
    uint32_t  rank = hello->rank, n_ranks = hello->n_ranks;

    BT_TRY(bt_cell_attach(&m->cell, hello));
    if (m->seats == NULL) m->seats = bt_calloc(n_ranks, sizeof(*m->seats));
    BT_REQUIRE(m->seats != NULL, BT_ERR_NO_MEMORY, "a table of %u ranks", n_ranks);
    m->seats[rank] = (bt_seat){.member = m, .rank = rank, .peer = peer};
    m->n_peers++;
    bt_control_peer_set_data(peer, &m->seats[rank]);
    bt_fleet_advance(m);
out:
    return st;
}

static void on_hello(bt_fleet *fleet, bt_control_peer *peer, bt_up_hello *hello)
{
    bt_member *m     = NULL;
    bool       again = hello->incarnation != 0;

    if (bt_fleet_check_origin(fleet, hello, &again) == BT_OK &&
        find_place(fleet, hello, &m) == BT_OK && attach(m, peer, hello) == BT_OK)
        return;
    snprintf(fleet->refusal, sizeof(fleet->refusal), "%s", bt_error_text());
    if (m != NULL && hello->rank < m->cell.n_ranks && m->cell.ranks[hello->rank].lost)
        again = false;
    /* The cell never served.  One with a relay that has just lost all its ranks has requests. */
    if (m != NULL && m->n_peers == 0 && m->relay == NULL) bt_fleet_remove(fleet, m);
    bt_control_refuse(peer, again ? GRPC_STATUS_UNAVAILABLE : GRPC_STATUS_FAILED_PRECONDITION,
                      fleet->refusal);
}

/* ---- messages of ranks */

static void on_progress(bt_member *m, uint32_t rank, const bt_up *up)
{
    bt_cell_rank *k    = &m->cell.ranks[rank];
    const char   *name = m->cell.name;

    k->done_bytes  = up->u.progress.done_bytes;
    k->total_bytes = up->u.progress.total_bytes;
    bt_announce(m->fleet->cfg.announce_fd, false, "progress %u %llu %llu%s%s", rank,
                (unsigned long long)k->done_bytes, (unsigned long long)k->total_bytes,
                name[0] != 0 ? " " : "", name);
}

static void on_ready(bt_member *m, uint32_t rank)
{
    bt_cell_rank *k = &m->cell.ranks[rank];

    if (m->relay != NULL) bt_relay_ready(m->relay, rank, bt_now_ns());
    if (k->ready) return;
    k->ready = true;
    bt_fleet_advance(m);
}

static void on_leaving(bt_member *m, uint32_t rank, bt_up *up)
{
    bt_cell_rank *k = &m->cell.ranks[rank];

    k->left = true;
    bt_free(k->leave_reason);
    k->leave_reason      = up->u.leaving.reason;
    up->u.leaving.reason = NULL; /* ours now */
}

/* Somebody has signalled a rank: what runs goes on, what waits goes elsewhere. */
static void on_drain(bt_member *m)
{
    char title[BT_CELL_TITLE];

    if (m->state == BT_CELL_ATTACHING || m->state == BT_CELL_LOADING) {
        bt_fleet_dismiss(m, "drained before it served");
        bt_fleet_over_if_last(m->fleet, true, "the last cell has drained");
    } else if (m->state == BT_CELL_SERVING) {
        BT_INFO("%s drains", bt_cell_title(&m->cell, title));
        m->state = BT_CELL_DRAINING;
        bt_fleet_move_queue(m->fleet, m, bt_now_ns());
    }
}

static void on_load(bt_cell_rank *k, bt_up *up)
{
    bt_free(k->expert_rows);
    k->expert_rows         = up->u.expert_load.rows;
    k->n_experts           = up->u.expert_load.n;
    up->u.expert_load.rows = NULL; /* ours now */
}

void bt_fleet_message(void *ctx, bt_control_peer *peer, bt_up *up)
{
    bt_seat *seat = bt_control_peer_data(peer);

    if (up->kind == BT_UP_HELLO) {
        on_hello(ctx, peer, &up->u.hello);
        return;
    }
    if (seat->peer != peer) return; /* it has been shut out */
    switch (up->kind) {
    case BT_UP_PROGRESS: on_progress(seat->member, seat->rank, up); break;
    case BT_UP_READY: on_ready(seat->member, seat->rank); break;
    case BT_UP_LEAVING: on_leaving(seat->member, seat->rank, up); break;
    case BT_UP_DRAIN: on_drain(seat->member); break;
    case BT_UP_EXPERT_LOAD: on_load(&seat->member->cell.ranks[seat->rank], up); break;
    case BT_UP_PEER_LOAD:
        bt_pairs_hear(&seat->member->cell, seat->rank, up->u.peer_load.at_ns, up->u.peer_load.n,
                      up->u.peer_load.peers);
        break;
    case BT_UP_BEAT: seat->member->cell.ranks[seat->rank].beat = up->u.beat; /* fall through */
    default:
        if (seat->member->relay != NULL)
            bt_relay_message(seat->member->relay, seat->rank, up, bt_now_ns());
    }
}

void bt_fleet_lost(void *ctx, bt_control_peer *peer)
{
    bt_fleet   *fleet   = ctx;
    bt_seat    *seat    = bt_control_peer_data(peer);
    bt_member  *m       = seat->member;
    const char *why     = m->cell.ranks[seat->rank].leave_reason;
    bool        opening = m->state == BT_CELL_ATTACHING || m->state == BT_CELL_LOADING;
    char        who[192];

    if (seat->peer != peer) return; /* it has been shut out */
    seat->peer = NULL;
    m->n_peers--;
    if (fleet->stopped || m->state == BT_CELL_LEAVING) return;
    bt_cell_rank_text(&m->cell, seat->rank, who, sizeof(who));
    if (fleet->cfg.relay.replace && m->relay != NULL) {
        m->cell.ranks[seat->rank].lost = true;
        BT_WARN("%s was lost: %s", who, why != NULL ? why : "its control stream ended");
        bt_relay_lose(m->relay, seat->rank, bt_now_ns());
        return;
    }
    if (opening && bt_fleet_go_without_rank(m, seat->rank)) {
        bt_fleet_advance(m);
        return;
    }
    bt_fleet_lose(m, "%s was lost%s: %s%s%s", who, opening ? " while the cell was starting" : "",
                  why != NULL ? why : "its control stream ended",
                  fleet->refusal[0] != 0 && opening ? "; a rank was refused before: " : "",
                  opening ? fleet->refusal : "");
}
