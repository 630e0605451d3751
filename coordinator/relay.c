/* The life of a request, except its placement (placement.c) and its tokens (relay_tokens.c). */
#include "coordinator/relay.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/relay_state.h"
#include "core/alloc.h"
#include "core/clock.h"

enum { SCAN_MS = 250, MESSAGE_MAX = 512, STILL_MAX = 8 };

static void request_free(bt_relay *r, bt_relay_request *q)
{
    bt_relay_list_remove(q->state == BT_QUEUED ? &r->queue : &r->placed, q);
    bt_table_remove(&r->numbers, q->number);
    r->n_in[q->state]--;
    bt_relay_request_destroy(q);
}

/* ---- the end of a request */

void bt_relay_send_abort(bt_relay *r, const bt_relay_request *q, uint32_t rank,
                         uint32_t only_choice)
{
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {q->number, q->epoch, only_choice}
    };

    r->events.send(r->events.ctx, rank, &m);
}

void bt_relay_settle(bt_relay *relay, bt_relay_request *q)
{
    if (q->state == BT_ENDED && !q->decode_holds && !q->prefill_holds) request_free(relay, q);
}

void bt_relay_finish(bt_relay *r, bt_relay_request *q, const bt_relay_end *end)
{
    if (q->state == BT_ENDED) return;
    if (q->state == BT_QUEUED) {
        bt_relay_list_remove(&r->queue, q);
        bt_relay_list_insert(&r->placed, q);
        bt_relay_count_queued(r, q, false);
        r->freed = true;
    }
    bt_relay_prefill_done(r, q);
    if (!q->prefill_holds && q->prefill_pages != 0) bt_relay_free_prefill(r, q);
    bt_relay_turn(r, q, BT_ENDED);
    bt_relay_forget_early(q);
    bt_table_remove(&r->names, q->name_key);
    r->events.client.end(q->client, end);
    q->client = NULL;
    if (!r->stopped) { /* else the ranks are told to leave altogether */
        if (q->decode_holds) bt_relay_send_abort(r, q, q->decode_rank, 0);
        if (q->prefill_holds) bt_relay_send_abort(r, q, q->prefill_rank, 0);
    }
}

void bt_relay_log_number(bt_relay_request *q)
{
    if (q->logged == q->number) return;
    bt_log_set_request(q->logged);
    BT_INFO("goes on as %llu: its decode ranks had no pages for it before",
            (unsigned long long)q->number);
    bt_log_set_request(0);
    q->logged = q->number;
}

void bt_relay_end_request(bt_relay *relay, bt_relay_request *q, grpc_status_code code,
                          const char *fmt, ...)
{
    char         message[MESSAGE_MAX];
    bt_relay_end end = {.code = code, .message = message};
    va_list      ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    bt_relay_log_number(q);
    bt_log_set_request(q->number);
    BT_INFO("ends with status %d: %s", (int)code, message);
    bt_log_set_request(0);
    bt_relay_finish(relay, q, &end);
    bt_relay_settle(relay, q);
}

void bt_relay_end_no_memory(bt_relay *relay, bt_relay_request *q)
{
    bt_relay_end_request(relay, q, GRPC_STATUS_RESOURCE_EXHAUSTED,
                         "the coordinator is out of memory");
}

/* ---- creation */

bt_status bt_relay_create(const bt_relay_config *config, const bt_relay_events *events,
                          bt_relay **relay_out)
{
    bt_status st   = BT_OK;
    bt_relay *r    = bt_calloc(1, sizeof(*r));
    uint32_t  most = 0; /* pages of a rank */

    BT_REQUIRE(r != NULL, BT_ERR_NO_MEMORY, "request table");
    r->cfg         = *config;
    r->cfg.ranks   = NULL;
    r->cfg.seats   = NULL;
    r->events      = *events;
    r->next_number = config->first_number;
    r->ranks       = bt_calloc(config->n_ranks, sizeof(*r->ranks));
    r->gone        = bt_calloc(config->n_ranks, sizeof(*r->gone));
    BT_REQUIRE(r->ranks != NULL && r->gone != NULL, BT_ERR_NO_MEMORY, "table of %u ranks",
               config->n_ranks);
    for (uint32_t i = 0; i < config->n_ranks; i++) {
        r->ranks[i].limits = config->ranks[i];
        if (config->ranks[i].n_pages > most) most = config->ranks[i].n_pages;
    }
    r->slots = bt_prefix_slots_create(config->n_ranks, most);
    BT_REQUIRE(r->slots != NULL, BT_ERR_NO_MEMORY, "indexes of %u pages", most);
    BT_TRY(bt_relay_seat_ranks(r, config->seats));
    for (uint32_t i = 0; i < config->n_ranks; i++)
        BT_TRY(bt_prefix_index_init(&r->ranks[i].index, config->ranks[i].n_pages, r->slots, i,
                                    config->n_ranks));
    for (uint32_t i = 0; i < config->n_ranks; i++)
        BT_TRY(bt_held_pages_init(&r->ranks[i].held, config->ranks[i].n_pages));
    *relay_out = r;
    r          = NULL; /* handed over */
out:
    bt_relay_destroy(r);
    return st;
}

void bt_relay_destroy(bt_relay *relay)
{
    if (relay == NULL) return;
    while (relay->queue.first != NULL)
        request_free(relay, relay->queue.first);
    while (relay->placed.first != NULL)
        request_free(relay, relay->placed.first);
    bt_table_fini(&relay->numbers);
    bt_table_fini(&relay->names);
    for (uint32_t i = 0; relay->ranks != NULL && i < relay->cfg.n_ranks; i++) {
        bt_prefix_index_fini(&relay->ranks[i].index);
        bt_held_pages_fini(&relay->ranks[i].held);
        bt_free(relay->ranks[i].awaits);
    }
    bt_free(relay->seats[0].ranks);
    bt_free(relay->seats[1].ranks);
    bt_free(relay->ranks);
    bt_free(relay->slots);
    bt_free(relay->gone);
    bt_free(relay);
}

/* ---- clients */

bt_status bt_relay_submit(bt_relay *relay, bt_relay_submission *request, void *client,
                          uint64_t now_ns, uint64_t *number_out, grpc_status_code *code_out)
{
    bt_status         st  = BT_OK;
    bt_relay_request *q   = NULL;
    uint64_t          key = bt_relay_name_key(request->name);

    BT_REFUSE_UNLESS(!relay->stopped, BT_ERR_PEER, relay->stop_code, "%s", relay->stop_reason);
    BT_REFUSE_UNLESS(bt_table_get(&relay->names, key) == NULL, BT_ERR_INVALID_ARG,
                     GRPC_STATUS_ALREADY_EXISTS,
                     "request_id \"%.200s\" belongs to a request that still runs", request->name);
    BT_REFUSE_UNLESS(
        relay->queue.first == NULL ||
            relay->queued_tokens + request->n_prompt <= relay->cfg.queue_tokens,
        BT_ERR_NO_PAGES, GRPC_STATUS_RESOURCE_EXHAUSTED,
        "the queue is full: %llu prompt tokens wait, at most %llu may (--queue-tokens)",
        (unsigned long long)relay->queued_tokens, (unsigned long long)relay->cfg.queue_tokens);
    BT_REFUSE_UNLESS(relay->queued_text + request->sampling.n_constraint_bytes <=
                         BT_QUEUED_TEXT_MAX,
                     BT_ERR_NO_PAGES, GRPC_STATUS_RESOURCE_EXHAUSTED,
                     "the queue is full: constraints of %llu bytes wait, at most %llu may",
                     (unsigned long long)relay->queued_text, BT_QUEUED_TEXT_MAX);

    *code_out = GRPC_STATUS_RESOURCE_EXHAUSTED; /* memory, from here on */
    BT_TRY(bt_relay_request_create(request, client, now_ns, &q));
    BT_TRY(bt_relay_enter(relay, q));
    *number_out = q->number;
    q           = NULL; /* handed over */
    bt_relay_place_soon(relay, now_ns);
out:
    if (q != NULL) bt_relay_request_return(q, request);
    return st;
}

void bt_relay_abort_client(bt_relay *relay, const void *client, const char *name,
                           const char *reason)
{
    bt_relay_request *q = bt_table_get(&relay->names, bt_relay_name_key(name));

    if (q != NULL && q->client == client)
        bt_relay_end_request(relay, q, GRPC_STATUS_CANCELLED, "%s", reason);
}

bool bt_relay_abort_name(bt_relay *relay, const char *name, const char *reason)
{
    bt_relay_request *q = bt_table_get(&relay->names, bt_relay_name_key(name));

    if (q == NULL || strcmp(q->name, name) != 0) return false;
    bt_relay_end_request(relay, q, GRPC_STATUS_CANCELLED, "%s", reason);
    return true;
}

/* Ends every open request of the list; ended ones may be freed under way. */
static void end_all(bt_relay *r, bt_relay_list *list, grpc_status_code code, const char *reason)
{
    bt_relay_request *q, *next;

    for (q = list->first; q != NULL; q = next) {
        next = q->next;
        if (q->state != BT_ENDED) bt_relay_end_request(r, q, code, "%s", reason);
    }
}

void bt_relay_stop(bt_relay *relay, grpc_status_code code, const char *reason)
{
    if (relay->stopped) return;
    relay->stopped   = true;
    relay->stop_code = code;
    snprintf(relay->stop_reason, sizeof(relay->stop_reason), "%s", reason);
    end_all(relay, &relay->placed, code, reason);
    end_all(relay, &relay->queue, code, reason);
}

/* ---- messages */

/* Only the prefill rank's first tokens have alternatives, so that the decode rank does not repeat
 * them.  All other tokens may therefore arrive, and the decode rank finish, before these. */
static bool waits_for_firsts(const bt_relay_request *q)
{
    if (!q->prefill_holds) return false;
    for (uint32_t i = 0; i < q->n_choices; i++)
        if (!q->choices[i].ended && q->choices[i].n_out > 0) return false;
    return true;
}

static void on_released(bt_relay *r, uint32_t rank, const bt_up *m, uint64_t now_ns)
{
    bt_relay_request *q = bt_table_get(&r->numbers, m->u.released.request);

    if (q == NULL || m->u.released.epoch != q->epoch) return;
    r->moved_ns = now_ns;
    if (q->decode_holds && rank == q->decode_rank) {
        bt_relay_free_decode(r, q);
    } else if (q->prefill_holds && rank == q->prefill_rank) {
        bt_relay_free_prefill(r, q);
        bt_relay_prefill_done(r, q);
    }
    if (q->state != BT_ENDED && q->state != BT_QUEUED && !q->decode_holds && !waits_for_firsts(q))
        bt_relay_end_request(r, q, GRPC_STATUS_INTERNAL,
                             "rank %u dropped the request after %u of up to %u tokens of %u "
                             "choices",
                             rank, q->n_out, q->sampling.max_tokens, q->n_choices);
    else
        bt_relay_settle(r, q);
    bt_relay_place_soon(r, now_ns);
}

void bt_relay_requeue(bt_relay *r, bt_relay_request *q, bool abort_decode, uint64_t now_ns)
{
    bt_relay_request *again = bt_calloc(1, sizeof(*again));

    if (again == NULL || bt_table_put(&r->numbers, r->next_number, again) != BT_OK) {
        bt_free(again);
        bt_relay_end_no_memory(r, q);
        return;
    }
    *again        = *q;
    again->number = again->logged = r->next_number++;
    again->state                  = BT_QUEUED;
    again->resumed                = true;
    bt_relay_request_unplace(again); /* held_pages stay with q */
    bt_relay_forget_early(again);
    again->heard_ns = now_ns;
    bt_table_remove(&r->names, q->name_key);
    (void)bt_table_put(&r->names, q->name_key, again); /* in its place */
    bt_relay_log_number(q);
    bt_log_set_request(q->number);
    BT_INFO("queued again as %llu after %u tokens", (unsigned long long)again->number, q->n_out);
    bt_log_set_request(0);
    bt_relay_list_insert(&r->queue, again);
    r->n_in[BT_QUEUED]++;
    bt_relay_count_queued(r, again, true);

    bt_relay_prefill_done(r, q);
    if (!q->prefill_holds && q->prefill_pages != 0) bt_relay_free_prefill(r, q);
    if (q->prefill_holds) bt_relay_send_abort(r, q, q->prefill_rank, 0);
    if (abort_decode && q->decode_holds) bt_relay_send_abort(r, q, q->decode_rank, 0);
    bt_relay_request_disown(q);
    bt_relay_turn(r, q, BT_ENDED);
    bt_relay_settle(r, q);
}

static void on_retracted(bt_relay *r, uint32_t rank, const bt_up *m, uint64_t now_ns)
{
    bt_relay_request *q = bt_table_get(&r->numbers, m->u.retracted.request);

    if (q == NULL || q->state == BT_ENDED || m->u.retracted.epoch != q->epoch) return;
    if (q->state == BT_QUEUED || rank != q->decode_rank) return;
    r->n_retracted++;
    bt_relay_requeue(r, q, false, now_ns);
    bt_relay_place_soon(r, now_ns);
}

/* Nothing comes from the request's prefill rank to its decode rank: it is placed again, and so is
 * what else waits for the same, and holds the prefill rank's slots meanwhile. */
static void place_elsewhere(bt_relay *r, bt_relay_request *still, uint64_t now_ns)
{
    uint32_t          prefill = still->prefill_rank, decode = still->decode_rank;
    bt_relay_request *q, *older;

    still->n_still++;
    for (q = r->placed.last; q != NULL; q = older) {
        older = q->prev;
        if (q->state == BT_ENDED || q->prefill_rank != prefill || q->decode_rank != decode)
            continue;
        if (q == still || q->state == BT_RESERVING || q->prefill_holds)
            bt_relay_requeue(r, q, true, now_ns);
    }
}

static void on_failed(bt_relay *r, uint32_t rank, const bt_up *m, uint64_t now_ns)
{
    bt_relay_request *q = bt_table_get(&r->numbers, m->u.failed.request);

    if (q == NULL || q->state == BT_ENDED || m->u.failed.epoch != q->epoch) return;
    if (q->state == BT_QUEUED || (rank != q->decode_rank && rank != q->prefill_rank)) return;
    if (m->u.failed.stands_still && bt_relay_avoid(r, q, now_ns) && q->n_still < STILL_MAX)
        place_elsewhere(r, q, now_ns);
    else if (m->u.failed.message[0] != '\0')
        bt_relay_end_request(r, q, (grpc_status_code)m->u.failed.code, "%s", m->u.failed.message);
    else
        bt_relay_end_request(
            r, q, (grpc_status_code)m->u.failed.code,
            "rank %u failed request \"%.80s\" and did not say why: its log may, at "
            "req=%llu; the request can be sent again",
            rank, q->name, (unsigned long long)q->number);
    bt_relay_place_soon(r, now_ns);
}

static void on_prompt_logprobs(bt_relay *r, uint32_t rank, const bt_up_prompt_logprobs *m,
                               uint64_t now_ns)
{
    bt_relay_request *q = bt_table_get(&r->numbers, m->request);
    uint32_t          wanted;

    if (q == NULL || !bt_relay_runs(q) || m->epoch != q->epoch || rank != q->prefill_rank) return;
    wanted      = q->sampling.prompt_logprobs;
    r->moved_ns = q->heard_ns = now_ns;
    if (wanted == 0 || m->n_top + 1 != wanted || m->position > 1 + q->n_prompt_logprobs ||
        (uint64_t)m->position + m->n > q->n_prompt ||
        !bt_relay_has_ids(r, (size_t)m->n * m->n_top, m->top_ids)) {
        bt_relay_end_request(
            r, q, GRPC_STATUS_INTERNAL,
            "rank %u sent %u logprobs from position %u on for a prompt of %u tokens that has %u, "
            "with a vocabulary of %u",
            rank, m->n, m->position, q->n_prompt, q->n_prompt_logprobs, r->cfg.vocab_size);
        return;
    }
    r->events.client.prompt(q->client, m);
    if (m->position + m->n > 1 + q->n_prompt_logprobs)
        q->n_prompt_logprobs = m->position + m->n - 1;
}

/* Kept for replays, which must not differ from it once the client has a token. */
static void on_form_map(bt_relay *r, uint32_t rank, bt_up *m)
{
    bt_relay_request *q = bt_table_get(&r->numbers, m->u.form_map.request);
    size_t            n = m->u.form_map.n_form_map_bytes;
    size_t want = q == NULL ? 0 : bt_relay_pages(r, q->n_prompt) * (size_t)BT_PAGE_MAP_BYTES;

    if (q == NULL || !bt_relay_runs(q) || m->u.form_map.epoch != q->epoch ||
        (rank != q->prefill_rank && rank != q->decode_rank))
        return;
    if (n != want || (q->n_out > 0 && q->form_map != NULL &&
                      memcmp(q->form_map, m->u.form_map.form_map, n) != 0)) {
        bt_relay_end_request(r, q, GRPC_STATUS_INTERNAL,
                             "rank %u computed the prompt of %u tokens in other forms than those "
                             "that it had (a map of %zu bytes, expected %zu)",
                             rank, q->n_prompt, n, want);
        return;
    }
    bt_free(q->form_map);
    q->form_map            = m->u.form_map.form_map;
    q->n_form_map_bytes    = n;
    m->u.form_map.form_map = NULL; /* ours now */
}

static void on_beat(bt_relay *r, bt_rank_state *k, const bt_up_beat *beat, uint64_t now_ns)
{
    k->beat_ns = now_ns;
    if (beat->progress == k->progress) k->waits_ns = now_ns;
    if (beat->prompt_rows != k->prompt_rows) r->moved_ns = k->rows_ns = now_ns;
    k->progress    = beat->progress;
    k->prompt_rows = beat->prompt_rows;
}

static void on_wake_request(bt_relay *r, uint32_t rank, uint64_t wake)
{
    uint32_t group = r->ranks[rank].group;

    if (group == BT_UNSEATED) return;
    if (wake < r->wake[group]) return; /* it asked before the last one reached it */
    r->wake[group] = wake;
    bt_relay_wake(r, rank);
}

void bt_relay_message(bt_relay *relay, uint32_t rank, bt_up *m, uint64_t now_ns)
{
    bt_rank_state *k = &relay->ranks[rank];

    BT_ASSERT(rank < relay->cfg.n_ranks);
    if (relay->stopped || k->lost) return;
    k->heard_ns = now_ns;
    /* A beat shows life only when its counter moves; any other message is work. */
    if (m->kind != BT_UP_BEAT || m->u.beat.progress != k->progress) k->progress_ns = now_ns;
    switch (m->kind) {
    case BT_UP_BEAT: on_beat(relay, k, &m->u.beat, now_ns); break;
    case BT_UP_PROGRESS: bt_relay_reads(relay, rank, m->u.progress.total_bytes == 0, now_ns); break;
    case BT_UP_TICKET:
        bt_relay_ticket(relay, rank, m, now_ns);
        bt_relay_place_soon(relay, now_ns);
        break;
    case BT_UP_TOKENS:
        for (uint32_t i = 0; i < m->u.tokens.n; i++)
            bt_relay_token(relay, rank, &m->u.tokens.tokens[i], now_ns);
        if (relay->freed) bt_relay_place_soon(relay, now_ns); /* most only go on */
        break;
    case BT_UP_FAILED: on_failed(relay, rank, m, now_ns); break;
    case BT_UP_RELEASED: on_released(relay, rank, m, now_ns); break;
    case BT_UP_RETRACTED: on_retracted(relay, rank, m, now_ns); break;
    case BT_UP_FORM_MAP: on_form_map(relay, rank, m); break;
    case BT_UP_PROMPT_LOGPROBS:
        on_prompt_logprobs(relay, rank, &m->u.prompt_logprobs, now_ns);
        break;
    case BT_UP_EXPIRED: bt_relay_expired(relay, rank, m, now_ns); break;
    case BT_UP_WAKE_REQUEST: on_wake_request(relay, rank, m->u.wake_request.wake); break;
    default:
        BT_WARN("rank %u sends a message of kind %d, which has no meaning here", rank,
                (int)m->kind);
    }
}

/* ---- time */

/* How long the request has waited in vain.  One that has been placed before, whose client has been
 * promised an answer, waits as long as others move that make room for it in the end; where a role
 * is missing, or no rank could ever hold it, they make none. */
static uint64_t in_vain_ns(const bt_relay *r, const bt_relay_request *q, bool has_roles,
                           uint64_t now_ns)
{
    uint64_t since_ns = q->resumed ? q->heard_ns : q->arrived_ns;

    if (q->resumed && has_roles && r->moved_ns > since_ns && bt_relay_could_ever_hold(r, q))
        since_ns = r->moved_ns;
    return bt_relay_waited_ns(r, since_ns, now_ns);
}

static void end_waiting(bt_relay *r, uint64_t now_ns)
{
    bt_relay_request *q = r->queue.first, *next;
    const char       *short_of;
    uint32_t          taken[2];
    bool              full = false; /* those not looked at wait for what the ones before them do */

    bt_relay_count_seats(r, taken);
    short_of = taken[0] == 0 ? "prefill" : taken[1] == 0 && !bt_relay_both(r) ? "decode" : NULL;
    for (; q != NULL && bt_relay_waited_ns(r, q->arrived_ns, now_ns) >= r->cfg.queue_ns;
         q = next) { /* oldest first */
        uint64_t waited_ns = in_vain_ns(r, q, short_of == NULL, now_ns);

        next = q->next;
        if (q->short_of != BT_SHORT_UNKNOWN) full = q->short_of == BT_SHORT_OF_WINDOW;
        if (q->resumed && waited_ns < r->cfg.stall_ns) continue;
        if (short_of != NULL)
            bt_relay_end_request(r, q, GRPC_STATUS_UNAVAILABLE,
                                 "no %s rank is left; the request waited %.1f s for one", short_of,
                                 (double)waited_ns * 1e-9);
        else if (full)
            bt_relay_end_request(
                r, q, GRPC_STATUS_RESOURCE_EXHAUSTED,
                "the prefill ranks were busy for %.1f s with other prompts than "
                "this one of %u tokens; more prefill ranks take more, and a longer "
                "--queue-s waits longer",
                (double)waited_ns * 1e-9, q->n_prompt);
        else
            bt_relay_end_request(r, q, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                 "no rank had room for %u + %u tokens, %u %s, within %.1f s; more "
                                 "ranks or a larger --kv-bytes make room",
                                 q->n_prompt, q->sampling.max_tokens, q->n_choices,
                                 q->n_choices == 1 ? "choice" : "choices",
                                 (double)waited_ns * 1e-9);
    }
}

static const char *state_text(bt_relay_request_state state)
{
    static const char *const texts[] = {"queued", "waiting for its ticket", "in prefill",
                                        "decoding", "ended"};

    return texts[state];
}

/* When a request last moved.  Nothing is heard of a prompt until its first token, which takes as
 * long as the prompt is: meanwhile the rows that its rank computes of prompts, which it takes in
 * their order, speak for it.  Mere steps do not: a rank that has forgotten the request still joins
 * those of its group. */
static uint64_t moved_ns(const bt_relay *r, const bt_relay_request *q)
{
    const bt_rank_state *k        = &r->ranks[q->prefill_rank];
    bool                 computes = q->state == BT_PREFILL && q->prefill_counts > 0;

    return computes && k->rows_ns > q->heard_ns ? k->rows_ns : q->heard_ns;
}

static void end_stalled(bt_relay *r, uint64_t now_ns)
{
    bt_relay_request *q, *next;

    for (q = r->placed.first; q != NULL; q = next) {
        next = q->next;
        if (q->state == BT_ENDED || bt_relay_waited_ns(r, moved_ns(r, q), now_ns) < r->cfg.stall_ns)
            continue;
        r->moved_ns = now_ns; /* room, soon */
        bt_relay_end_request(r, q, GRPC_STATUS_DEADLINE_EXCEEDED,
                             "nothing from rank %u for %.1f s; the request is %s",
                             q->state == BT_PREFILL ? q->prefill_rank : q->decode_rank,
                             (double)r->cfg.stall_ns * 1e-9, state_text(q->state));
    }
}

void bt_relay_tick(bt_relay *relay, uint64_t now_ns)
{
    uint64_t gap_ns;

    if (relay->stopped) return;
    gap_ns = bt_stood_still_ns(&relay->ticked_ns, now_ns, 0);
    if (gap_ns >= relay->cfg.rank_quiet_ns / 2) relay->awake_ns = now_ns;
    bt_relay_stood_still(relay, gap_ns, now_ns);
    bt_relay_decide(relay, now_ns);
    if (now_ns < relay->next_scan_ns) {
        if (relay->freed) bt_relay_place(relay, now_ns);
        return;
    }
    relay->next_scan_ns = now_ns + SCAN_MS * BT_NS_PER_MS;
    bt_relay_find_stuck(relay, now_ns);
    end_stalled(relay, now_ns);
    end_waiting(relay, now_ns);
    bt_relay_place(relay, now_ns);
}

void bt_relay_get_loads(const bt_relay *relay, bt_relay_loads *loads_out)
{
    bt_relay_loads l = {.n_waiting  = relay->n_in[BT_QUEUED] + relay->n_in[BT_RESERVING],
                        .n_running  = relay->n_in[BT_PREFILL] + relay->n_in[BT_DECODE],
                        .tokens_out = relay->tokens_out,
                        .retracted  = relay->n_retracted};

    for (uint32_t i = 0; i < relay->cfg.n_ranks; i++) {
        const bt_rank_state *k = &relay->ranks[i];

        if (!bt_relay_decodes(relay, i)) continue;
        l.max_running += k->limits.max_rows;
        l.used_tokens += (uint64_t)k->taken_pages * relay->cfg.page_tokens;
        l.total_tokens += (uint64_t)k->limits.n_pages * relay->cfg.page_tokens;
    }
    *loads_out = l;
}
