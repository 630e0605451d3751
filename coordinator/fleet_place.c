/* Which cell a request goes to, now and later. */
#include <stdio.h>
#include <string.h>

#include "coordinator/fleet_state.h"
#include "coordinator/relay_view.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "proto/prefix_key.h"

enum { MOVES_MAX = 64, LEFT_MAX = 8 }; /* a tick, so that the loop goes on */
enum { LOBBY_MS = 250, SHORT = 1000000 /* pressure of a cell without ranks in a group */ };

/* ---- the choice */

/* What is to be placed. */
typedef struct {
    uint32_t           n_prompt, n_keys;
    uint32_t           max_tokens, n_choices; /* that may follow, in each of so many */
    const uint32_t    *prompt;                /* NULL: it uses no cached prefix */
    const char        *cache_salt;            /* NULL: none */
    const bt_page_key *keys;                  /* borrowed: the prompt's, where they are known */
    bool               moves;                 /* it waits already: only cells that take more */
} wish;

/* Nobody waits there, and it is not full. */
static bool takes_more(const bt_fleet_cell *c)
{
    return c->state == BT_CELL_SERVING && c->short_since_ns == 0 &&
           bt_relay_first_queued(c->relay) == NULL && bt_relay_pressure(c->relay) < 1;
}

/* The serving cell that could ever hold the request and would have the least to do for it; a
 * prefix that a rank has cached counts as done.  Of equal ones that which was given the fewest new
 * pages, as of ranks.  NULL: none. */
static bt_fleet_cell *choose(const bt_fleet *fleet, const wish *w, const bt_fleet_cell *but)
{
    bt_fleet_cell *best  = NULL, *found[BT_FLEET_CELLS];
    double         least = 0;
    uint32_t       n = 0, n_keys = w->n_keys;
    bt_page_key   *made = NULL;
    uint64_t       new_pages, fewest = 0;

    for (uint32_t i = 0; i < fleet->n_cells; i++) {
        bt_fleet_cell *c = fleet->cells[i];

        if (c->state == BT_CELL_SERVING && c != but && (!w->moves || takes_more(c)) &&
            bt_relay_could_hold(c->relay, w->n_prompt, w->max_tokens, w->n_choices))
            found[n++] = c;
    }
    if (n < 2) return n == 0 ? NULL : found[0];
    /* Where memory is short it is placed by load alone. */
    if (w->prompt != NULL && w->keys == NULL)
        bt_page_keys(bt_cache_salt_seed(fleet->prefix_seed, w->cache_salt),
                     bt_cell_facts(&found[0]->cell)->page_tokens, w->n_prompt, w->prompt, &made,
                     &n_keys);
    for (uint32_t i = 0; i < n; i++) {
        double pressure = bt_relay_pressure(found[i]->relay) +
                          bt_relay_pressure_of(found[i]->relay, w->n_prompt, n_keys,
                                               made != NULL ? made : w->keys);

        if (found[i]->short_since_ns != 0) pressure += SHORT; /* only when there is no other */
        new_pages = bt_relay_new_pages(found[i]->relay);
        if (best == NULL || pressure < least || (pressure == least && new_pages < fewest)) {
            best   = found[i];
            least  = pressure;
            fewest = new_pages;
        }
    }
    bt_free(made);
    return best;
}

static bt_fleet_cell *choose_for(const bt_fleet *fleet, const bt_relay_request *q,
                                 const bt_fleet_cell *but, bool moves)
{
    wish w = {.n_prompt   = q->n_prompt,
              .cache_salt = q->cache_salt,
              .max_tokens = q->sampling.max_tokens,
              .n_choices  = q->n_open,
              .prompt     = q->sampling.prompt_logprobs == 0 ? q->prompt : NULL,
              .n_keys     = q->n_keys,
              .keys       = q->keys,
              .moves      = moves};

    return choose(fleet, &w, but);
}

/* ---- the lobby */

/* The relay's end(), for a request that no relay has. */
static void end_request(bt_fleet *fleet, bt_relay_request *q, grpc_status_code code,
                        const char *why)
{
    bt_relay_end end = {.code = code, .message = why};

    BT_INFO("request \"%.200s\" ends with status %d: %s", q->name, (int)code, why);
    fleet->events.client.end(q->client, &end);
    bt_relay_request_destroy(q);
}

static void leave_lobby(bt_fleet *fleet, bt_relay_request *q)
{
    bt_relay_list_remove(&fleet->lobby, q);
    bt_table_remove(&fleet->lobby_names, q->name_key);
    fleet->lobby_tokens -= q->n_prompt;
    fleet->lobby_text -= q->sampling.n_constraint_bytes;
    fleet->n_lobby--;
}

static bt_status enter_lobby(bt_fleet *fleet, bt_relay_request *q, uint64_t now_ns)
{
    bt_status st = BT_OK;

    q->heard_ns = now_ns;
    BT_TRY(bt_table_put(&fleet->lobby_names, q->name_key, q));
    bt_relay_list_insert(&fleet->lobby, q);
    fleet->lobby_tokens += q->n_prompt;
    fleet->lobby_text += q->sampling.n_constraint_bytes;
    fleet->n_lobby++;
out:
    return st;
}

static void end_in_lobby(bt_fleet *fleet, bt_relay_request *q, grpc_status_code code,
                         const char *why)
{
    leave_lobby(fleet, q);
    end_request(fleet, q, code, why);
}

void bt_fleet_empty_lobby(bt_fleet *fleet, grpc_status_code code, const char *why)
{
    while (fleet->lobby.first != NULL)
        end_in_lobby(fleet, fleet->lobby.first, code, why);
}

/* ---- moving */

/* To the cell, or where that is NULL, to the lobby. */
static void move(bt_fleet *fleet, bt_relay_request *q, bt_fleet_cell *to, uint64_t now_ns)
{
    bt_status st =
        to != NULL ? bt_relay_adopt(to->relay, q, now_ns) : enter_lobby(fleet, q, now_ns);

    if (st != BT_OK)
        end_request(fleet, q, GRPC_STATUS_RESOURCE_EXHAUSTED, "the coordinator is out of memory");
}

void bt_fleet_move_all(bt_fleet *fleet, bt_fleet_cell *from, uint64_t now_ns)
{
    bt_relay_request *q;

    while (from->relay != NULL && (q = bt_relay_take_open(from->relay)) != NULL)
        move(fleet, q, choose_for(fleet, q, from, false), now_ns);
}

void bt_fleet_move_queue(bt_fleet *fleet, bt_fleet_cell *from, uint64_t now_ns)
{
    bt_relay_request *q, *next;
    bt_fleet_cell    *to;
    int               n_left = 0;

    for (q = bt_relay_first_queued(from->relay); q != NULL && n_left < LEFT_MAX; q = next) {
        next = q->next;
        to   = choose_for(fleet, q, from, false);
        if (to == NULL && q->resumed) /* it has begun here and ends here */
            n_left++;
        else
            move(fleet, bt_relay_take_queued(from->relay, q), to, now_ns);
    }
}

/* Whether it goes on sooner in another cell: at once there, or never where it is.  Else it would be
 * moved to and fro. */
static bool gains(const bt_relay *from, const bt_relay *to, const bt_relay_request *q,
                  uint64_t now_ns)
{
    return bt_relay_has_room(to, q, now_ns) || !bt_relay_could_ever_hold(from, q);
}

/* Moves requests from a cell in which they wait to those in which none waits; those that gain
 * nothing there do not keep back the ones behind them. */
static void even_out(bt_fleet *fleet, uint64_t now_ns)
{
    for (uint32_t i = 0; i < fleet->n_cells; i++) {
        bt_fleet_cell    *from = fleet->cells[i], *to;
        bt_relay_request *q, *next;
        int               n_moved = 0, n_left = 0;

        if (from->state != BT_CELL_SERVING) continue;
        for (q = bt_relay_first_queued(from->relay); q != NULL; q = next) {
            if (n_moved == MOVES_MAX || n_left == LEFT_MAX) break;
            next = q->next;
            to   = choose_for(fleet, q, from, true);
            if (to == NULL || !gains(from->relay, to->relay, q, now_ns)) {
                n_left++;
                continue;
            }
            n_moved++;
            move(fleet, bt_relay_take_queued(from->relay, q), to, now_ns);
        }
    }
}

static void serve_lobby(bt_fleet *fleet, uint64_t now_ns)
{
    bt_relay_request *q, *next;
    bt_fleet_cell    *to;

    for (q = fleet->lobby.first; q != NULL; q = next) {
        next = q->next;
        to   = choose_for(fleet, q, NULL, false);
        if (to == NULL) continue;
        leave_lobby(fleet, q);
        move(fleet, q, to, now_ns);
    }
}

/* Requests that never had a place wait as long as in a queue.  The others, whose clients already
 * have an answer begun, wait as long as a cell may take to come back. */
static void end_waiting(bt_fleet *fleet, uint64_t now_ns)
{
    bt_relay_request *q, *next;

    for (q = fleet->lobby.first; q != NULL; q = next) {
        bool     again = q->resumed;
        uint64_t from  = again ? q->heard_ns : q->arrived_ns;
        uint64_t limit = again ? fleet->cfg.wait_ns : fleet->cfg.relay.queue_ns;
        char     why[BT_FLEET_TEXT];

        next = q->next;
        if (from < fleet->awake_ns) from = fleet->awake_ns;
        if (bt_since_ns(from, now_ns) < limit) continue;
        snprintf(why, sizeof(why), "no cell that could go on with it came within %.1f s",
                 (double)limit * 1e-9);
        end_in_lobby(fleet, q, GRPC_STATUS_UNAVAILABLE, why);
    }
}

void bt_fleet_balance(bt_fleet *fleet, uint64_t now_ns)
{
    if (now_ns >= fleet->next_lobby_ns) { /* it may be long, and changes little from turn to turn */
        fleet->next_lobby_ns = now_ns + LOBBY_MS * BT_NS_PER_MS;
        serve_lobby(fleet, now_ns);
        end_waiting(fleet, now_ns);
    }
    even_out(fleet, now_ns);
}

/* ---- clients */

static bool has_name(const bt_fleet *fleet, const char *name)
{
    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (fleet->cells[i]->relay != NULL && bt_relay_has_name(fleet->cells[i]->relay, name))
            return true;
    return bt_table_get(&fleet->lobby_names, bt_relay_name_key(name)) != NULL;
}

bt_status bt_fleet_submit(bt_fleet *fleet, bt_relay_submission *request, void *client,
                          uint64_t now_ns, uint64_t *number_out, grpc_status_code *code_out)
{
    bt_status         st = BT_OK;
    bt_relay_request *q  = NULL;
    wish              w  = {.n_prompt   = request->n_prompt,
                            .cache_salt = request->cache_salt,
                            .max_tokens = request->sampling.max_tokens,
                            .n_choices  = request->n_choices,
                            .prompt = request->sampling.prompt_logprobs == 0 ? request->prompt : NULL};
    bt_fleet_cell    *c;

    BT_REFUSE_UNLESS(!fleet->stopped, BT_ERR_PEER, fleet->stop_code, "%s", fleet->stop_reason);
    BT_REFUSE_UNLESS(!has_name(fleet, request->name), BT_ERR_INVALID_ARG,
                     GRPC_STATUS_ALREADY_EXISTS,
                     "request_id \"%.200s\" belongs to a request that still runs", request->name);
    request->arrival = ++fleet->arrivals;
    c                = choose(fleet, &w, NULL);
    if (c != NULL) return bt_relay_submit(c->relay, request, client, now_ns, number_out, code_out);
    BT_REFUSE_UNLESS(
        fleet->n_lobby == 0 ||
            fleet->lobby_tokens + request->n_prompt <= fleet->cfg.relay.queue_tokens,
        BT_ERR_NO_PAGES, GRPC_STATUS_RESOURCE_EXHAUSTED,
        "the queue is full: %llu prompt tokens wait for a cell, at most %llu may (--queue-tokens)",
        (unsigned long long)fleet->lobby_tokens, (unsigned long long)fleet->cfg.relay.queue_tokens);
    BT_REFUSE_UNLESS(
        fleet->lobby_text + request->sampling.n_constraint_bytes <= BT_QUEUED_TEXT_MAX,
        BT_ERR_NO_PAGES, GRPC_STATUS_RESOURCE_EXHAUSTED,
        "the queue is full: constraints of %llu bytes wait for a cell, at most %llu may",
        (unsigned long long)fleet->lobby_text, BT_QUEUED_TEXT_MAX);
    *code_out = GRPC_STATUS_RESOURCE_EXHAUSTED; /* memory, from here on */
    BT_TRY(bt_relay_request_create(request, client, now_ns, &q));
    st = enter_lobby(fleet, q, now_ns);
    if (st != BT_OK) bt_relay_request_return(q, request);
    *number_out = 0; /* it gets one with its place */
out:
    return st;
}

void bt_fleet_abort_client(bt_fleet *fleet, const void *client, const char *name,
                           const char *reason)
{
    bt_relay_request *q;

    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (fleet->cells[i]->relay != NULL)
            bt_relay_abort_client(fleet->cells[i]->relay, client, name, reason);
    q = bt_table_get(&fleet->lobby_names, bt_relay_name_key(name));
    if (q != NULL && q->client == client) end_in_lobby(fleet, q, GRPC_STATUS_CANCELLED, reason);
}

bool bt_fleet_abort_name(bt_fleet *fleet, const char *name, const char *reason)
{
    bt_relay_request *q;
    bool              found = false;

    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (fleet->cells[i]->relay != NULL)
            found = bt_relay_abort_name(fleet->cells[i]->relay, name, reason) || found;
    q = bt_table_get(&fleet->lobby_names, bt_relay_name_key(name));
    if (q == NULL || strcmp(q->name, name) != 0) return found;
    end_in_lobby(fleet, q, GRPC_STATUS_CANCELLED, reason);
    return true;
}

void bt_fleet_get_loads(const bt_fleet *fleet, bt_relay_loads *loads_out)
{
    bt_relay_loads all = {.n_waiting  = fleet->n_lobby,
                          .tokens_out = fleet->tokens_before,
                          .retracted  = fleet->retracted_before};

    for (uint32_t i = 0; i < fleet->n_cells; i++) {
        bt_relay_loads l;

        if (fleet->cells[i]->relay == NULL) continue;
        bt_relay_get_loads(fleet->cells[i]->relay, &l);
        all.n_waiting += l.n_waiting;
        all.n_running += l.n_running;
        all.max_running += l.max_running;
        all.used_tokens += l.used_tokens;
        all.total_tokens += l.total_tokens;
        all.tokens_out += l.tokens_out;
        all.retracted += l.retracted;
    }
    *loads_out = all;
}

static uint64_t most_of(const bt_fleet *fleet, uint64_t (*of)(const bt_relay *relay))
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < fleet->n_cells; i++) {
        uint64_t n = fleet->cells[i]->relay != NULL ? of(fleet->cells[i]->relay) : 0;

        if (n > most) most = n;
    }
    return most;
}

uint64_t bt_fleet_max_tokens(const bt_fleet *fleet) { return most_of(fleet, bt_relay_max_tokens); }
uint64_t bt_fleet_max_prompt(const bt_fleet *fleet) { return most_of(fleet, bt_relay_max_prompt); }

uint64_t bt_fleet_queued_tokens(const bt_fleet *fleet)
{
    uint64_t n = fleet->lobby_tokens;

    for (uint32_t i = 0; i < fleet->n_cells; i++)
        if (fleet->cells[i]->relay != NULL) n += bt_relay_queued_tokens(fleet->cells[i]->relay);
    return n;
}

uint32_t bt_fleet_view_lobby(const bt_fleet *fleet, uint64_t now_ns, bt_relay_request_view *out,
                             uint32_t n_max)
{
    return bt_relay_view_list(&fleet->lobby, now_ns, out, n_max);
}
