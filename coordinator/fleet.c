/* The cells: how they come, and how they go. */
#include "coordinator/fleet.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/announce.h"
#include "coordinator/fleet_state.h"
#include "coordinator/pairs.h"
#include "core/alloc.h"
#include "core/clock.h"

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
    fleet->cfg         = *config;
    fleet->events      = *events;
    fleet->life        = bt_fleet_draw_life();
    fleet->prefix_seed = bt_prefix_seed();
    *fleet_out         = fleet;
out:
    return st;
}

static void member_free(bt_member *m)
{
    if (m == NULL) return;
    bt_relay_destroy(m->relay);
    bt_cell_fini(&m->cell);
    bt_free(m->seats);
    bt_free(m);
}

void bt_fleet_destroy(bt_fleet *fleet)
{
    if (fleet == NULL) return;
    for (uint32_t i = 0; i < fleet->n_members; i++)
        member_free(fleet->members[i]);
    BT_ASSERT(fleet->n_lobby == 0); /* stop() has ended what was there */
    bt_table_fini(&fleet->lobby_names);
    bt_cell_hello_free(&fleet->facts);
    bt_free(fleet);
}

void bt_fleet_remove(bt_fleet *fleet, bt_member *m)
{
    uint32_t i = 0;

    while (fleet->members[i] != m)
        i++;
    fleet->n_members--;
    memmove(&fleet->members[i], &fleet->members[i + 1],
            (fleet->n_members - i) * sizeof(fleet->members[0]));
    member_free(m);
}

/* ---- the end of a cell */

static void tell_ranks_to_leave(bt_member *m, const char *reason)
{
    for (uint32_t i = 0; i < m->cell.n_ranks; i++) {
        bt_down down = {.kind = BT_DOWN_SHUTDOWN};

        if (m->seats[i].peer == NULL) continue;
        down.u.shutdown.reason = bt_strdup(reason);
        bt_control_send(m->seats[i].peer, &down);
    }
}

void bt_fleet_dismiss(bt_member *m, const char *reason)
{
    bt_relay_loads loads;

    if (m->relay != NULL) {
        bt_relay_get_loads(m->relay, &loads);
        m->fleet->tokens_before += loads.tokens_out;
        m->fleet->retracted_before += loads.retracted;
        bt_relay_destroy(m->relay);
        m->relay = NULL;
    }
    m->state       = BT_CELL_LEAVING;
    m->deadline_ns = bt_now_ns() + LEAVE_S * BT_NS_PER_S;
    tell_ranks_to_leave(m, reason);
}

/* Some cell serves, or is about to. */
static bool any_left(const bt_fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->n_members; i++)
        if (fleet->members[i]->state != BT_CELL_LEAVING) return true;
    return false;
}

void bt_fleet_over_if_last(bt_fleet *fleet, bool well, const char *reason)
{
    if (!any_left(fleet) && fleet->cfg.wait_ns == 0 && !fleet->stopped)
        fleet->events.over(fleet->events.ctx, well, reason);
}

void bt_fleet_lose(bt_member *m, const char *fmt, ...)
{
    bt_fleet *fleet = m->fleet;
    char      reason[BT_FLEET_TEXT];
    va_list   ap;

    if (m->state == BT_CELL_LEAVING) return;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    bt_log_error(__FILE__, __LINE__, "the cell has failed", "%s", reason);
    bt_announce(fleet->cfg.announce_fd, true, "lost %s: %s", m->cell.name, reason);
    m->state = BT_CELL_LEAVING; /* so that nothing goes there */
    bt_fleet_move_all(fleet, m, bt_now_ns());
    bt_fleet_dismiss(m, reason);
    bt_fleet_over_if_last(fleet, false, reason);
}

/* ---- from attached ranks to a serving cell */

static void send_to_rank(void *ctx, uint32_t rank, bt_down *down)
{
    bt_member *m = ctx;

    if (m->seats[rank].peer != NULL)
        bt_control_send(m->seats[rank].peer, down);
    else
        bt_down_free(down); /* its loss is known, or will be: no answer is waited for */
}

static bt_finish on_token(void *ctx, void *client, const bt_token *token)
{
    const bt_fleet_events *e = &((bt_member *)ctx)->fleet->events;

    return e->token(e->ctx, client, token);
}

static void on_prompt(void *ctx, void *client, const bt_up_prompt_logprobs *up)
{
    const bt_fleet_events *e = &((bt_member *)ctx)->fleet->events;

    e->prompt(e->ctx, client, up);
}

static void on_end(void *ctx, void *client, const bt_relay_end *end)
{
    const bt_fleet_events *e = &((bt_member *)ctx)->fleet->events;

    e->end(e->ctx, client, end);
}

void bt_fleet_shut_out(bt_member *m, uint32_t rank, const char *reason)
{
    bt_control_peer *peer = m->seats[rank].peer;

    m->cell.ranks[rank].lost = true;
    if (peer == NULL) return;
    m->seats[rank].peer = NULL;
    m->n_peers--;
    bt_control_refuse(peer, GRPC_STATUS_FAILED_PRECONDITION, reason);
}

static void on_stuck(void *ctx, uint32_t rank, const char *reason)
{
    bt_member *m = ctx;
    char       who[192], text[BT_FLEET_TEXT];

    bt_cell_rank_text(&m->cell, rank, who, sizeof(who));
    if (!m->fleet->cfg.relay.replace) {
        snprintf(m->stuck, sizeof(m->stuck), "%s is stuck: %s", who, reason);
        return;
    }
    snprintf(text, sizeof(text), "%s is removed from the cell: %s", who, reason);
    BT_WARN("%s", text);
    bt_fleet_shut_out(m, rank, text);
}

static bt_status create_relay(bt_member *m)
{
    bt_status          st     = BT_OK;
    const bt_up_hello *facts  = bt_cell_facts(&m->cell);
    bt_relay_rank     *ranks  = bt_calloc(m->cell.n_ranks, sizeof(*ranks));
    bool               back   = m->cell.incarnation != 0; /* from another coordinator */
    bt_relay_config    config = m->fleet->cfg.relay;
    bt_relay_events    events = {.send   = send_to_rank,
                                 .token  = on_token,
                                 .end    = on_end,
                                 .stuck  = on_stuck,
                                 .ctx    = m,
                                 .prompt = on_prompt};

    BT_REQUIRE(ranks != NULL, BT_ERR_NO_MEMORY, "table of %u ranks", m->cell.n_ranks);
    for (uint32_t i = 0; i < m->cell.n_ranks; i++)
        ranks[i] = (bt_relay_rank){.n_pages  = m->cell.ranks[i].hello.n_pages,
                                   .max_rows = m->cell.ranks[i].hello.max_rows,
                                   .lost     = m->cell.ranks[i].lost};
    config.n_ranks         = m->cell.n_ranks;
    config.n_prefill       = facts->n_prefill;
    config.n_decode        = facts->n_decode;
    config.ranks           = ranks;
    config.n_spares        = facts->n_spares;
    config.epoch           = m->cell.max_epoch + 1;
    config.group_epoch     = m->cell.max_epoch;
    config.page_tokens     = facts->page_tokens;
    config.vocab_size      = facts->vocab_size;
    config.share_generated = facts->share_generated;
    config.prefix_seed     = m->fleet->prefix_seed;
    config.seats           = back ? &bt_cell_memory(&m->cell)->seats : NULL;
    config.first_number    = 1 + ((m->incarnation >> 32) - 1) * NUMBERS;
    BT_TRY(bt_relay_create(&config, &events, &m->relay));
    if (back) bt_relay_begin_anew(m->relay, bt_now_ns());
    for (uint32_t i = 0; i < m->cell.n_ranks; i++) /* all are, or the cell would not serve */
        bt_relay_ready(m->relay, i, bt_now_ns());
out:
    bt_free(ranks);
    return st;
}

static void serve(bt_member *m)
{
    bt_status st    = BT_OK;
    bt_fleet *fleet = m->fleet;
    char      title[BT_CELL_TITLE];

    BT_TRY(create_relay(m));
    if (!fleet->has_facts) BT_TRY(bt_cell_hello_copy(bt_cell_facts(&m->cell), &fleet->facts));
    fleet->has_facts = true;
    m->state         = BT_CELL_SERVING;
    m->deadline_ns   = UINT64_MAX;
    BT_INFO("%s serves with %u rank%s", bt_cell_title(&m->cell, title), m->n_peers,
            m->n_peers == 1 ? "" : "s");
    fleet->events.serving(fleet->events.ctx);
    bt_announce(fleet->cfg.announce_fd, true, "serving %s", m->cell.name);
    bt_fleet_balance(fleet, bt_now_ns());
out:
    if (st != BT_OK) {
        char why[BT_FLEET_TEXT];

        snprintf(why, sizeof(why), "%s", bt_error_text());
        bt_fleet_lose(m, "%s", why);
    }
}

void bt_fleet_advance(bt_member *m)
{
    if (m->state == BT_CELL_ATTACHING && bt_cell_complete(&m->cell)) {
        bt_fleet_welcome(m);
        m->state       = BT_CELL_LOADING;
        m->deadline_ns = bt_now_ns() + m->fleet->cfg.load_ns;
    }
    if (m->state == BT_CELL_LOADING && bt_cell_ready(&m->cell)) serve(m);
}

bt_member *bt_fleet_find(const bt_fleet *fleet, const char *name)
{
    for (uint32_t i = 0; i < fleet->n_members; i++)
        if (strcmp(fleet->members[i]->cell.name, name) == 0) return fleet->members[i];
    return NULL;
}

/* ---- time */

static void check_deadline(bt_member *m, uint64_t now_ns)
{
    bt_fleet *fleet = m->fleet;
    char      who[256];

    if (now_ns < m->deadline_ns) return;
    bt_cell_missing(&m->cell, who, sizeof(who));
    if (m->state == BT_CELL_ATTACHING && bt_fleet_go_without(m))
        bt_fleet_advance(m);
    else if (m->state == BT_CELL_ATTACHING)
        bt_fleet_lose(m, "%s of %u have not attached within %.0f s of the first%s%s", who,
                      m->cell.n_ranks,
                      (double)(m->cell.incarnation != 0 ? fleet->cfg.relay.rank_quiet_ns
                                                        : fleet->cfg.attach_ns) *
                          1e-9,
                      fleet->refusal[0] != 0 ? "; a rank was refused: " : "", fleet->refusal);
    else if (m->state == BT_CELL_LOADING)
        bt_fleet_lose(m, "%s of %u are not ready after %.0f s of loading", who, m->cell.n_ranks,
                      (double)fleet->cfg.load_ns * 1e-9);
}

/* The cell serves, but lacks ranks that no spare can replace: announced once for each further
 * rank. */
static void announce_worn(bt_member *m, const uint32_t taken[2])
{
    const bt_up_hello *facts = bt_cell_facts(&m->cell);
    uint32_t           n     = facts->n_ranks - facts->n_spares - taken[0] - taken[1];

    if (n <= m->n_worn || m->state != BT_CELL_SERVING || bt_relay_n_spares(m->relay) > 0) return;
    m->n_worn = n;
    bt_announce(m->fleet->cfg.announce_fd, true, "worn %s", m->cell.name);
}

/* A group that has lost its last rank is waited for as long as a spare could come; the requests of
 * its cell wait meanwhile. */
static void check_seats(bt_member *m, uint64_t now_ns)
{
    uint64_t    rejoin_ns = m->fleet->cfg.rejoin_ns;
    bool        both      = bt_cell_facts(&m->cell)->n_decode == 0;
    uint32_t    taken[2];
    const char *missing;

    bt_relay_count_seats(m->relay, taken);
    missing = both ? "" : taken[0] == 0 ? "prefill " : "decode ";
    if (taken[0] > 0 && (taken[1] > 0 || both)) {
        if (m->short_since_ns != 0) BT_INFO("the cell has ranks for every role again");
        m->short_since_ns = 0;
        announce_worn(m, taken);
    } else if (bt_relay_n_spares(m->relay) == 0) {
        bt_fleet_lose(m, "no %srank is left, and no spare", missing);
    } else if (m->short_since_ns == 0) {
        m->short_since_ns = now_ns;
        BT_WARN("no %srank is left: requests wait, for %.0f s at most, until one joins", missing,
                (double)rejoin_ns * 1e-9);
    } else if (now_ns - m->short_since_ns >= rejoin_ns) {
        bt_fleet_lose(m, "no %srank was left, and none has joined within %.0f s", missing,
                      (double)rejoin_ns * 1e-9);
    }
}

static void check_drained(bt_member *m)
{
    bt_relay_loads loads;
    char           title[BT_CELL_TITLE];

    bt_relay_get_loads(m->relay, &loads);
    if (loads.n_running + loads.n_waiting > 0) return;
    BT_INFO("%s has drained", bt_cell_title(&m->cell, title));
    bt_fleet_dismiss(m, "the cell has drained");
    bt_fleet_over_if_last(m->fleet, true, "the last cell has drained");
}

/* True when the member has gone. */
static bool bury(bt_member *m, uint64_t now_ns)
{
    if (m->state != BT_CELL_LEAVING || (m->n_peers > 0 && now_ns < m->deadline_ns)) return false;
    for (uint32_t i = 0; i < m->cell.n_ranks; i++) {
        char who[192];

        if (m->seats[i].peer == NULL) continue;
        bt_cell_rank_text(&m->cell, i, who, sizeof(who));
        BT_WARN("%s has not left within %d s", who, LEAVE_S);
        bt_control_refuse(m->seats[i].peer, GRPC_STATUS_FAILED_PRECONDITION,
                          "this cell is no longer served");
    }
    bt_announce(m->fleet->cfg.announce_fd, true, "left %s", m->cell.name);
    bt_fleet_remove(m->fleet, m);
    return true;
}

/* While the process stood still no rank and no cell was late. */
static void forgive_own_silence(bt_fleet *fleet, uint64_t now_ns)
{
    uint64_t gap_ns =
        bt_stood_still_ns(&fleet->ticked_ns, now_ns, fleet->cfg.relay.rank_quiet_ns / 2);

    if (gap_ns == 0) return;
    BT_WARN("this process stood still for %.1f s: deadlines begin anew", (double)gap_ns * 1e-9);
    fleet->awake_ns = now_ns;
    for (uint32_t i = 0; i < fleet->n_members; i++) {
        bt_member *m = fleet->members[i];

        if (m->deadline_ns != UINT64_MAX) m->deadline_ns += gap_ns;
        if (m->short_since_ns != 0) m->short_since_ns = now_ns;
    }
}

void bt_fleet_tick(bt_fleet *fleet, uint64_t now_ns)
{
    forgive_own_silence(fleet, now_ns);
    for (uint32_t i = 0; i < fleet->n_members && !fleet->stopped;) {
        bt_member *m = fleet->members[i];

        if (m->relay != NULL) bt_relay_tick(m->relay, now_ns);
        if (m->stuck[0] != 0) bt_fleet_lose(m, "%s", m->stuck);
        if (m->relay != NULL) check_seats(m, now_ns);
        check_deadline(m, now_ns);
        if (m->state == BT_CELL_DRAINING) {
            bt_fleet_move_queue(fleet, m, now_ns); /* what was retracted meanwhile */
            check_drained(m);
        }
        if (fleet->stopped || !bury(m, now_ns)) i++;
    }
    if (!fleet->stopped) bt_fleet_balance(fleet, now_ns);
}

/* ---- the end of all */

void bt_fleet_stop(bt_fleet *fleet, grpc_status_code code, const char *reason)
{
    if (fleet->stopped) return;
    fleet->stopped   = true;
    fleet->stop_code = code;
    snprintf(fleet->stop_reason, sizeof(fleet->stop_reason), "%s", reason);
    for (uint32_t i = 0; i < fleet->n_members; i++) {
        bt_member *m = fleet->members[i];

        if (m->relay != NULL) bt_relay_stop(m->relay, code, reason);
        if (m->state != BT_CELL_LEAVING) tell_ranks_to_leave(m, reason);
    }
    bt_fleet_empty_lobby(fleet, code, reason);
}

uint32_t bt_fleet_n_peers(const bt_fleet *fleet)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < fleet->n_members; i++)
        n += fleet->members[i]->n_peers;
    return n;
}

void bt_fleet_name_stragglers(const bt_fleet *fleet, uint32_t after_s)
{
    for (uint32_t i = 0; i < fleet->n_members; i++)
        for (uint32_t k = 0; k < fleet->members[i]->cell.n_ranks; k++) {
            char who[192];

            if (fleet->members[i]->seats[k].peer == NULL) continue;
            bt_cell_rank_text(&fleet->members[i]->cell, k, who, sizeof(who));
            BT_WARN("%s has not left within %u s", who, after_s);
        }
}

/* ---- what is shown */

const bt_up_hello *bt_fleet_facts(const bt_fleet *fleet)
{
    return fleet->has_facts ? &fleet->facts : NULL;
}

uint32_t bt_fleet_n_cells(const bt_fleet *fleet) { return fleet->n_members; }
bt_cell *bt_fleet_cell(const bt_fleet *fleet, uint32_t i) { return &fleet->members[i]->cell; }
const bt_relay *bt_fleet_relay(const bt_fleet *fleet, uint32_t i)
{
    return fleet->members[i]->relay;
}
bool bt_fleet_is_short(const bt_fleet *fleet, uint32_t i)
{
    return fleet->members[i]->short_since_ns != 0;
}
bt_cell_state bt_fleet_state(const bt_fleet *fleet, uint32_t i) { return fleet->members[i]->state; }
