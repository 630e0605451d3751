/* The ranks of the cells: how they attach, what they say of themselves, how they are lost. */
#include <stdio.h>
#include <string.h>

#include "coordinator/announce.h"
#include "coordinator/fleet_state.h"
#include "coordinator/pairs.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/hello.h"

/* How long the first rank of a cell waits for the last one.  Ranks that come back are all running
 * already. */
static uint64_t wait_for(const bt_fleet *fleet, const bt_up_hello *hello)
{
    uint64_t quiet_ns = fleet->cfg.relay.rank_quiet_ns, attach_ns = fleet->cfg.attach_ns;

    return hello->incarnation != 0 && quiet_ns < attach_ns ? quiet_ns : attach_ns;
}

/* The cell that the hello names, made when it is the first of it. */
static bt_status find_cell(bt_fleet *fleet, const bt_up_hello *hello, bt_fleet_cell **cell_out)
{
    bt_status          st    = BT_OK;
    bt_fleet_cell     *c     = bt_fleet_find(fleet, hello->cell);
    const bt_up_hello *facts = bt_fleet_facts(fleet);

    BT_REQUIRE(c == NULL || c->state != BT_CELL_LEAVING || fleet->stopped, BT_ERR_PEER,
               "rank %u comes too early: the cell \"%s\" before it has not left yet", hello->rank,
               hello->cell);
    if (c == NULL) {
        if (facts == NULL && fleet->n_cells > 0) facts = bt_cell_facts(&fleet->cells[0]->cell);
        if (facts != NULL) BT_TRY(bt_hello_agree(facts, hello));
        BT_REQUIRE(fleet->n_cells < BT_FLEET_CELLS, BT_ERR_INVALID_ARG,
                   "there are %d cells already", BT_FLEET_CELLS);
        c = bt_calloc(1, sizeof(*c));
        BT_REQUIRE(c != NULL, BT_ERR_NO_MEMORY, "a cell");
        c->fleet                       = fleet;
        c->deadline_ns                 = bt_now_ns() + wait_for(fleet, hello);
        fleet->cells[fleet->n_cells++] = c;
    }
    *cell_out = c;
out:
    return st;
}

/* What it says is understood, or it would have been refused; but fields that are new are passed
 * over, and what both compute may have changed. */
static void compare_versions(const bt_cell *cell, uint32_t rank)
{
    const char *version = cell->ranks[rank].hello.version;
    char        who[192];

    if (version[0] == 0 || strcmp(version, bt_hello_build()) == 0) return;
    bt_cell_rank_text(cell, rank, who, sizeof(who));
    BT_WARN("%s is of version %.40s, this coordinator of %s: they should be of one", who, version,
            bt_hello_build());
}

static bt_status attach(bt_fleet_cell *c, bt_control_peer *peer, bt_up_hello *hello)
{
    bt_status st   = BT_OK;
    uint32_t  rank = hello->rank, n_ranks = hello->n_ranks;

    BT_TRY(bt_cell_attach(&c->cell, hello));
    compare_versions(&c->cell, rank);
    if (c->streams == NULL) c->streams = bt_calloc(n_ranks, sizeof(*c->streams));
    BT_REQUIRE(c->streams != NULL, BT_ERR_NO_MEMORY, "a table of %u ranks", n_ranks);
    c->streams[rank] = (bt_rank_stream){.cell = c, .rank = rank, .peer = peer};
    c->n_peers++;
    bt_control_peer_set_data(peer, &c->streams[rank]);
    if (c->fleet->stopped) { /* as those before it were told */
        BT_INFO("rank %u comes while the coordinator ends", rank);
        bt_fleet_tell_to_leave(&c->streams[rank], c->fleet->stop_reason);
    }
    bt_fleet_advance(c);
out:
    return st;
}

static void on_hello(bt_fleet *fleet, bt_control_peer *peer, bt_up_hello *hello)
{
    bt_fleet_cell *c = NULL;
    bool           again;
    char           name[96];

    snprintf(name, sizeof(name), "%s", hello->cell); /* which may be handed over */
    if (bt_fleet_check_origin(fleet, hello, &again) == BT_OK &&
        find_cell(fleet, hello, &c) == BT_OK && attach(c, peer, hello) == BT_OK)
        return;
    snprintf(fleet->refusal, sizeof(fleet->refusal), "%s%s%s%s", name[0] != '\0' ? "cell \"" : "",
             name, name[0] != '\0' ? "\": " : "", bt_error_text());
    if (c != NULL && hello->rank < c->cell.n_ranks && c->cell.ranks[hello->rank].lost)
        again = false;
    /* The cell never served.  One with a relay that has just lost all its ranks has requests. */
    if (c != NULL && c->n_peers == 0 && c->relay == NULL) bt_fleet_remove(fleet, c);
    bt_control_refuse(peer, again ? GRPC_STATUS_UNAVAILABLE : GRPC_STATUS_FAILED_PRECONDITION,
                      fleet->refusal);
}

/* ---- messages of ranks */

static void on_progress(bt_fleet_cell *c, uint32_t rank, const bt_up *up)
{
    bt_cell_rank *k    = &c->cell.ranks[rank];
    const char   *name = c->cell.name;

    k->done_bytes  = up->u.progress.done_bytes;
    k->total_bytes = up->u.progress.total_bytes;
    bt_announce(c->fleet->cfg.announce_fd, false, "progress %u %llu %llu%s%s", rank,
                (unsigned long long)k->done_bytes, (unsigned long long)k->total_bytes,
                name[0] != 0 ? " " : "", name);
}

static void on_ready(bt_fleet_cell *c, uint32_t rank)
{
    bt_cell_rank *k = &c->cell.ranks[rank];

    if (c->relay != NULL) bt_relay_ready(c->relay, rank, bt_now_ns());
    if (k->ready) return;
    k->ready = true;
    bt_fleet_advance(c);
}

static void on_leaving(bt_fleet_cell *c, uint32_t rank, bt_up *up)
{
    bt_cell_rank *k = &c->cell.ranks[rank];

    bt_free(k->leave_reason);
    k->leave_reason      = up->u.leaving.reason;
    up->u.leaving.reason = NULL; /* ours now */
}

/* Somebody has signalled a rank: what runs goes on, what waits goes elsewhere.  Of a cell that
 * comes back nothing runs: it leaves once all its ranks are there, which then do so together. */
static void on_drain(bt_fleet_cell *c)
{
    bool opening = c->state == BT_CELL_ATTACHING || c->state == BT_CELL_LOADING;
    char title[BT_CELL_TITLE];

    if (opening && c->cell.incarnation != 0) {
        c->comes_to_drain = true;
    } else if (opening) {
        bt_fleet_dismiss(c, "drained before it served");
        bt_fleet_over_if_last(c->fleet, true, "the last cell has drained");
    } else if (c->state == BT_CELL_SERVING) {
        BT_INFO("%s drains", bt_cell_title(&c->cell, title));
        c->state = BT_CELL_DRAINING;
        bt_fleet_move_queue(c->fleet, c, bt_now_ns());
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
    bt_rank_stream *stream = bt_control_peer_data(peer);
    bt_fleet_cell  *c;

    if (up->kind == BT_UP_HELLO) {
        on_hello(ctx, peer, &up->u.hello);
        return;
    }
    c = stream->cell;
    if (up->kind == BT_UP_BEAT) c->cell.ranks[stream->rank].beat = up->u.beat;
    if (up->kind == BT_UP_PROGRESS && !c->cell.ranks[stream->rank].ready)
        on_progress(c, stream->rank, up); /* else it reads experts of a lost rank */
    switch (up->kind) {
    case BT_UP_READY: on_ready(c, stream->rank); break;
    case BT_UP_LEAVING: on_leaving(c, stream->rank, up); break;
    case BT_UP_DRAIN: on_drain(c); break;
    case BT_UP_EXPERT_LOAD: on_load(&c->cell.ranks[stream->rank], up); break;
    case BT_UP_PEER_LOAD:
        bt_pairs_hear(&c->cell, stream->rank, up->u.peer_load.at_ns, up->u.peer_load.n,
                      up->u.peer_load.peers);
        break;
    default:
        if (c->relay != NULL) bt_relay_message(c->relay, stream->rank, up, bt_now_ns());
    }
}

void bt_fleet_lost(void *ctx, bt_control_peer *peer)
{
    bt_fleet       *fleet   = ctx;
    bt_rank_stream *stream  = bt_control_peer_data(peer);
    bt_fleet_cell  *c       = stream->cell;
    const char     *why     = c->cell.ranks[stream->rank].leave_reason;
    bool            opening = c->state == BT_CELL_ATTACHING || c->state == BT_CELL_LOADING;
    char            who[192];

    stream->peer = NULL;
    c->n_peers--;
    if (fleet->stopped || c->state == BT_CELL_LEAVING) return;
    bt_cell_rank_text(&c->cell, stream->rank, who, sizeof(who));
    if (fleet->cfg.relay.replace && c->relay != NULL) {
        c->cell.ranks[stream->rank].lost = true;
        BT_WARN("%s was lost: %s", who, why != NULL ? why : "its control stream ended");
        bt_relay_lose(c->relay, stream->rank, bt_now_ns());
        return;
    }
    if (opening && bt_fleet_go_without_rank(c, stream->rank)) {
        bt_fleet_advance(c);
        return;
    }
    bt_fleet_lose(c, "%s was lost%s: %s%s%s", who, opening ? " while the cell was starting" : "",
                  why != NULL ? why : "its control stream ended",
                  fleet->refusal[0] != 0 && opening ? "; a rank was refused before: " : "",
                  opening ? fleet->refusal : "");
}
