/* The cells: how they come, and how they go. */
#include "coordinator/fleet.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/announce.h"
#include "coordinator/fleet_state.h"
#include "coordinator/relay_view.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/hello.h"

enum { LEAVE_S = 4 };
#define NUMBERS 1000000000ull /* of requests in a life of a coordinator */

const char *bt_cell_state_name(bt_cell_state state)
{
    static const char *const names[] = {"attaching", "loading", "serving", "draining", "leaving"};

    return names[state];
}

/* ---- creation */

bt_status bt_fleet_create(const bt_fleet_config *config, const bt_fleet_events *events,
                          bt_fleet **fleet_out)
{
    bt_status st    = BT_OK;
    bt_fleet *fleet = bt_calloc(1, sizeof(*fleet));

    BT_REQUIRE(fleet != NULL, BT_ERR_NO_MEMORY, "the table of cells");
    fleet->cfg                    = *config;
    fleet->events                 = *events;
    fleet->life                   = bt_fleet_draw_life();
    fleet->prefix_seed            = bt_prefix_seed();
    fleet->counts_before.n_groups = 1;
    *fleet_out                    = fleet;
out:
    return st;
}

static void cell_free(bt_fleet_cell *c)
{
    if (c == NULL) return;
    bt_relay_destroy(c->relay);
    bt_cell_fini(&c->cell);
    bt_free(c->streams);
    bt_free(c);
}

void bt_fleet_destroy(bt_fleet *fleet)
{
    if (fleet == NULL) return;
    for (uint32_t i = 0; i < fleet->n_cells; i++)
        cell_free(fleet->cells[i]);
    BT_ASSERT(fleet->n_lobby == 0); /* stop() has ended what was there */
    bt_table_fini(&fleet->lobby_names);
    bt_hello_free(&fleet->facts);
    bt_free(fleet);
}

void bt_fleet_remove(bt_fleet *fleet, bt_fleet_cell *c)
{
    uint32_t i = 0;

    while (fleet->cells[i] != c)
        i++;
    fleet->n_cells--;
    memmove(&fleet->cells[i], &fleet->cells[i + 1], (fleet->n_cells - i) * sizeof(fleet->cells[0]));
    bt_cell_count(&c->cell, &fleet->counts_before);
    cell_free(c);
}

/* ---- the end of a cell */

void bt_fleet_tell_to_leave(const bt_rank_stream *stream, const char *reason)
{
    bt_down down = {.kind = BT_DOWN_SHUTDOWN};

    down.u.shutdown.reason = bt_strdup(reason);
    bt_control_send(stream->peer, &down);
}

static void tell_ranks_to_leave(bt_fleet_cell *c, const char *reason)
{
    for (uint32_t i = 0; i < c->cell.n_ranks; i++)
        if (c->streams[i].peer != NULL) bt_fleet_tell_to_leave(&c->streams[i], reason);
}

void bt_fleet_dismiss(bt_fleet_cell *c, const char *reason)
{
    bt_relay_loads loads;

    if (c->relay != NULL) {
        bt_relay_get_loads(c->relay, &loads);
        c->fleet->tokens_before += loads.tokens_out;
        c->fleet->retracted_before += loads.retracted;
        bt_relay_destroy(c->relay);
        c->relay = NULL;
    }
    c->state       = BT_CELL_LEAVING;
    c->deadline_ns = bt_now_ns() + LEAVE_S * BT_NS_PER_S;
    tell_ranks_to_leave(c, reason);
}

bool bt_fleet_any_left(const bt_fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (fleet->cells[i]->state != BT_CELL_LEAVING) return true;
    return false;
}

void bt_fleet_over_if_last(bt_fleet *fleet, bool well, const char *reason)
{
    if (!bt_fleet_any_left(fleet) && (fleet->cfg.wait_ns == 0 || fleet->no_more) && !fleet->stopped)
        fleet->events.over(fleet->events.ctx, well, reason);
}

void bt_fleet_lose(bt_fleet_cell *c, const char *fmt, ...)
{
    bt_fleet *fleet = c->fleet;
    char      reason[BT_FLEET_TEXT], told[BT_FLEET_TEXT + 64];
    va_list   ap;

    if (c->state == BT_CELL_LEAVING) return;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    bt_log_error(__FILE__, __LINE__, "the cell has failed", "%s", reason);
    bt_announce(fleet->cfg.announce_fd, true, "lost %s: %s", c->cell.name, reason);
    c->state = BT_CELL_LEAVING; /* so that nothing goes there */
    bt_fleet_move_all(fleet, c, bt_now_ns());
    /* baton run --coordinator looks for this: such a cell it starts again. */
    snprintf(told, sizeof(told), "the cell has failed: %s", reason);
    bt_fleet_dismiss(c, told);
    snprintf(told, sizeof(told), "%s%s", reason, fleet->no_more ? "; " BT_FLEET_NONE_COMES : "");
    bt_fleet_over_if_last(fleet, false, told);
}

/* ---- from attached ranks to a serving cell */

static void send_to_rank(void *ctx, uint32_t rank, bt_down *down)
{
    bt_fleet_cell *c = ctx;

    if (c->streams[rank].peer != NULL)
        bt_control_send(c->streams[rank].peer, down);
    else
        bt_down_free(down); /* its loss is known, or will be: no answer is waited for */
}

void bt_fleet_shut_out(bt_fleet_cell *c, uint32_t rank, const char *reason)
{
    bt_control_peer *peer = c->streams[rank].peer;

    c->cell.ranks[rank].lost = true;
    if (peer == NULL) return;
    c->streams[rank].peer = NULL;
    c->n_peers--;
    bt_control_refuse(peer, GRPC_STATUS_FAILED_PRECONDITION, reason);
}

static void on_stuck(void *ctx, uint32_t rank, const char *reason)
{
    bt_fleet_cell *c = ctx;
    char           who[192], text[BT_FLEET_TEXT];

    bt_cell_rank_text(&c->cell, rank, who, sizeof(who));
    if (!c->fleet->cfg.relay.replace) {
        snprintf(c->stuck, sizeof(c->stuck), "%s is stuck: %s", who, reason);
        return;
    }
    snprintf(text, sizeof(text), "%s is removed from the cell: %s", who, reason);
    BT_WARN("%s", text);
    bt_fleet_shut_out(c, rank, text);
}

static bt_status create_relay(bt_fleet_cell *c)
{
    bt_status          st     = BT_OK;
    const bt_up_hello *facts  = bt_cell_facts(&c->cell);
    bt_relay_rank     *ranks  = bt_calloc(c->cell.n_ranks, sizeof(*ranks));
    bool               back   = c->cell.incarnation != 0; /* from another coordinator */
    bt_relay_config    config = c->fleet->cfg.relay;
    bt_relay_events    events = {
           .client = c->fleet->events.client, .send = send_to_rank, .stuck = on_stuck, .ctx = c};

    BT_REQUIRE(ranks != NULL, BT_ERR_NO_MEMORY, "table of %u ranks", c->cell.n_ranks);
    for (uint32_t i = 0; i < c->cell.n_ranks; i++)
        ranks[i] = (bt_relay_rank){.n_pages  = c->cell.ranks[i].hello.n_pages,
                                   .max_rows = c->cell.ranks[i].hello.max_rows,
                                   .lost     = c->cell.ranks[i].lost};
    config.n_ranks         = c->cell.n_ranks;
    config.n_prefill       = facts->n_prefill;
    config.n_decode        = facts->n_decode;
    config.ranks           = ranks;
    config.n_spares        = facts->n_spares;
    config.epoch           = c->cell.max_epoch + 1;
    config.page_tokens     = facts->page_tokens;
    config.vocab_size      = facts->vocab_size;
    config.share_generated = facts->share_generated;
    config.speculates      = facts->speculates;
    config.prefix_seed     = c->fleet->prefix_seed;
    config.seats           = back ? &bt_cell_memory(&c->cell)->seats : NULL;
    config.first_number    = 1 + ((c->incarnation >> 32) - 1) * NUMBERS;
    BT_TRY(bt_relay_create(&config, &events, &c->relay));
    if (back) bt_relay_begin_anew(c->relay, bt_now_ns());
    for (uint32_t i = 0; i < c->cell.n_ranks; i++) /* all are, or the cell would not serve */
        bt_relay_ready(c->relay, i, bt_now_ns());
out:
    bt_free(ranks);
    return st;
}

static void serve(bt_fleet_cell *c)
{
    bt_status st    = BT_OK;
    bt_fleet *fleet = c->fleet;
    char      title[BT_CELL_TITLE];

    BT_TRY(create_relay(c));
    if (c->comes_to_drain) {
        c->state       = BT_CELL_DRAINING;
        c->deadline_ns = UINT64_MAX;
        goto out;
    }
    if (bt_fleet_facts(fleet) == NULL)
        BT_TRY(bt_hello_copy(bt_cell_facts(&c->cell), &fleet->facts));
    c->state       = BT_CELL_SERVING;
    c->deadline_ns = UINT64_MAX;

    fleet->next_lobby_ns = 0;
    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (fleet->cells[i]->relay != NULL) bt_relay_begin_turns(fleet->cells[i]->relay);
    BT_INFO("%s serves with %u rank%s", bt_cell_title(&c->cell, title), c->n_peers,
            c->n_peers == 1 ? "" : "s");
    fleet->events.serving(fleet->events.ctx);
    bt_announce(fleet->cfg.announce_fd, true, "serving %s", c->cell.name);
    bt_fleet_balance(fleet, bt_now_ns());
out:
    if (st != BT_OK) bt_fleet_lose(c, "%s", bt_error_text());
}

void bt_fleet_advance(bt_fleet_cell *c)
{
    if (c->fleet->stopped) return;
    if (c->state == BT_CELL_ATTACHING && bt_cell_complete(&c->cell)) {
        bt_fleet_welcome(c);
        c->state       = BT_CELL_LOADING;
        c->deadline_ns = bt_now_ns() + c->fleet->cfg.load_ns;
    }
    if (c->state == BT_CELL_LOADING && bt_cell_ready(&c->cell)) serve(c);
}

bt_fleet_cell *bt_fleet_find(const bt_fleet *fleet, const char *name)
{
    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (strcmp(fleet->cells[i]->cell.name, name) == 0) return fleet->cells[i];
    return NULL;
}

/* ---- time */

static void check_deadline(bt_fleet_cell *c, uint64_t now_ns)
{
    bt_fleet *fleet = c->fleet;
    char      who[256];

    if (now_ns < c->deadline_ns) return;
    bt_cell_missing(&c->cell, who, sizeof(who));
    if (c->state == BT_CELL_ATTACHING && bt_fleet_go_without(c))
        bt_fleet_advance(c);
    else if (c->state == BT_CELL_ATTACHING)
        bt_fleet_lose(c, "%s of %u have not attached within %.0f s of the first%s%s", who,
                      c->cell.n_ranks,
                      (double)(c->cell.incarnation != 0 ? fleet->cfg.relay.rank_quiet_ns
                                                        : fleet->cfg.attach_ns) *
                          1e-9,
                      fleet->refusal[0] != 0 ? "; a rank was refused: " : "", fleet->refusal);
    else if (c->state == BT_CELL_LOADING)
        bt_fleet_lose(c, "%s of %u are not ready after %.0f s of loading", who, c->cell.n_ranks,
                      (double)fleet->cfg.load_ns * 1e-9);
}

/* The cell serves, but lacks ranks that no spare can replace: announced once for each further
 * rank. */
static void announce_worn(bt_fleet_cell *c, const uint32_t taken[2])
{
    const bt_up_hello *facts = bt_cell_facts(&c->cell);
    uint32_t           n     = facts->n_ranks - facts->n_spares - taken[0] - taken[1];

    if (n <= c->n_worn || c->state != BT_CELL_SERVING || bt_relay_n_spares(c->relay) > 0) return;
    c->n_worn = n;
    bt_announce(c->fleet->cfg.announce_fd, true, "worn %s", c->cell.name);
}

/* A group that has lost its last rank is waited for as long as a spare could come; the requests of
 * its cell wait meanwhile. */
static void check_seats(bt_fleet_cell *c, uint64_t now_ns)
{
    uint64_t    rejoin_ns = c->fleet->cfg.rejoin_ns;
    bool        both      = bt_cell_facts(&c->cell)->n_decode == 0;
    uint32_t    taken[2];
    const char *missing;

    bt_relay_count_seats(c->relay, taken);
    missing = both ? "" : taken[0] == 0 ? "prefill " : "decode ";
    if (taken[0] > 0 && (taken[1] > 0 || both)) {
        if (c->short_since_ns != 0) BT_INFO("the cell has ranks for every role again");
        c->short_since_ns = 0;
        announce_worn(c, taken);
    } else if (bt_relay_n_spares(c->relay) == 0) {
        bt_fleet_lose(c, "no %srank is left, and no spare", missing);
    } else if (c->short_since_ns == 0) {
        c->short_since_ns = now_ns;
        BT_WARN("no %srank is left: requests wait, for %.0f s at most, until one joins", missing,
                (double)rejoin_ns * 1e-9);
    } else if (now_ns - c->short_since_ns >= rejoin_ns) {
        bt_fleet_lose(c, "no %srank was left, and none has joined within %.0f s", missing,
                      (double)rejoin_ns * 1e-9);
    }
}

static void check_drained(bt_fleet_cell *c)
{
    bt_relay_loads loads;
    char           title[BT_CELL_TITLE];

    bt_relay_get_loads(c->relay, &loads);
    if (loads.n_running + loads.n_waiting > 0) return;
    BT_INFO("%s has drained", bt_cell_title(&c->cell, title));
    bt_fleet_dismiss(c, "the cell has drained");
    if (bt_fleet_facts(c->fleet) == NULL) return; /* others are on their way back, too */
    bt_fleet_over_if_last(c->fleet, true, "the last cell has drained");
}

/* Whether the rank is still attached, which the log tells. */
static bool lingers(const bt_fleet_cell *c, uint32_t rank, uint32_t after_s)
{
    char who[192];

    if (c->streams[rank].peer == NULL) return false;
    bt_cell_rank_text(&c->cell, rank, who, sizeof(who));
    BT_WARN("%s has not left within %u s", who, after_s);
    return true;
}

/* True when the cell has gone. */
static bool bury(bt_fleet_cell *c, uint64_t now_ns)
{
    if (c->state != BT_CELL_LEAVING || (c->n_peers > 0 && now_ns < c->deadline_ns)) return false;
    for (uint32_t i = 0; i < c->cell.n_ranks; i++)
        if (lingers(c, i, LEAVE_S))
            bt_control_refuse(c->streams[i].peer, GRPC_STATUS_FAILED_PRECONDITION,
                              "this cell is no longer served");
    bt_announce(c->fleet->cfg.announce_fd, true, "left %s", c->cell.name);
    bt_fleet_remove(c->fleet, c);
    return true;
}

/* Where ranks sit by now. */
static void note_groups(bt_fleet_cell *c)
{
    for (uint32_t i = 0; i < c->cell.n_ranks; i++) {
        bt_relay_rank_view v;

        bt_relay_view_rank(c->relay, i, &v);
        if (v.group < 2) c->cell.ranks[i].group = v.group;
    }
}

/* While the process stood still no rank and no cell was late. */
static void forgive_own_silence(bt_fleet *fleet, uint64_t now_ns)
{
    uint64_t gap_ns =
        bt_stood_still_ns(&fleet->ticked_ns, now_ns, fleet->cfg.relay.rank_quiet_ns / 2);

    if (gap_ns == 0) return;
    BT_WARN("this process stood still for %.1f s: deadlines begin anew", (double)gap_ns * 1e-9);
    fleet->awake_ns = now_ns;
    for (uint32_t i = 0; i < fleet->n_cells; i++) {
        bt_fleet_cell *c = fleet->cells[i];

        if (c->deadline_ns != UINT64_MAX) c->deadline_ns += gap_ns;
        if (c->short_since_ns != 0) c->short_since_ns = now_ns;
    }
}

void bt_fleet_tick(bt_fleet *fleet, uint64_t now_ns)
{
    forgive_own_silence(fleet, now_ns);
    for (uint32_t i = 0; i < fleet->n_cells && !fleet->stopped;) {
        bt_fleet_cell *c = fleet->cells[i];

        if (c->relay != NULL) bt_relay_tick(c->relay, now_ns);
        if (c->stuck[0] != 0) bt_fleet_lose(c, "%s", c->stuck);
        if (c->relay != NULL) {
            note_groups(c);
            check_seats(c, now_ns);
        }
        check_deadline(c, now_ns);
        if (c->state == BT_CELL_DRAINING) {
            bt_fleet_move_queue(fleet, c, now_ns); /* what was retracted meanwhile */
            check_drained(c);
        }
        if (fleet->stopped || !bury(c, now_ns)) i++;
    }
    if (!fleet->stopped) bt_fleet_balance(fleet, now_ns);
}

/* ---- the end of all */

void bt_fleet_wait_no_more(bt_fleet *fleet)
{
    fleet->no_more = true;
    if (fleet->n_lobby > 0) bt_fleet_over_if_last(fleet, false, BT_FLEET_NONE_COMES);
}

void bt_fleet_stop(bt_fleet *fleet, grpc_status_code code, const char *reason)
{
    if (fleet->stopped) return;
    fleet->stopped   = true;
    fleet->stop_code = code;
    snprintf(fleet->stop_reason, sizeof(fleet->stop_reason), "%s", reason);
    for (uint32_t i = 0; i < fleet->n_cells; i++) {
        bt_fleet_cell *c = fleet->cells[i];

        if (c->relay != NULL) bt_relay_stop(c->relay, code, reason);
        if (c->state != BT_CELL_LEAVING) tell_ranks_to_leave(c, reason);
    }
    bt_fleet_empty_lobby(fleet, code, reason);
}

uint32_t bt_fleet_n_peers(const bt_fleet *fleet)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < fleet->n_cells; i++)
        n += fleet->cells[i]->n_peers;
    return n;
}

void bt_fleet_name_stragglers(const bt_fleet *fleet, uint32_t after_s)
{
    for (uint32_t i = 0; i < fleet->n_cells; i++)
        for (uint32_t k = 0; k < fleet->cells[i]->cell.n_ranks; k++)
            lingers(fleet->cells[i], k, after_s);
}

/* ---- what is shown */

const bt_up_hello *bt_fleet_facts(const bt_fleet *fleet)
{
    return fleet->facts.n_ranks != 0 ? &fleet->facts : NULL;
}

uint32_t bt_fleet_n_cells(const bt_fleet *fleet) { return fleet->n_cells; }
bt_cell *bt_fleet_cell_at(const bt_fleet *fleet, uint32_t i) { return &fleet->cells[i]->cell; }
const bt_relay *bt_fleet_relay(const bt_fleet *fleet, uint32_t i) { return fleet->cells[i]->relay; }

void bt_fleet_count(const bt_fleet *fleet, bt_cell_counts *counts_out)
{
    *counts_out = fleet->counts_before;
    for (uint32_t i = 0; i < fleet->n_cells; i++)
        bt_cell_count(&fleet->cells[i]->cell, counts_out);
}

bt_cell_state bt_fleet_state(const bt_fleet *fleet, uint32_t i) { return fleet->cells[i]->state; }

bool bt_fleet_serves(const bt_fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (fleet->cells[i]->state == BT_CELL_SERVING && fleet->cells[i]->short_since_ns == 0)
            return true;
    return false;
}
