/* Where a request goes: from the queue to a ticket, from a ticket to its prefill. */
#include <string.h>

#include "coordinator/relay_state.h"
#include "core/alloc.h"
#include "core/clock.h"

enum { REFUSED_MS = 200, NO_RANK = -1 };

uint32_t bt_relay_pages(const bt_relay *relay, uint64_t n_tokens)
{
    uint64_t pages = (n_tokens + relay->cfg.page_tokens - 1) / relay->cfg.page_tokens;

    return pages > UINT32_MAX ? UINT32_MAX : (uint32_t)pages;
}

static uint32_t first_decode(const bt_relay *r) { return bt_relay_both(r) ? 0 : r->cfg.n_prefill; }
static uint32_t end_prefill(const bt_relay *r)
{
    return bt_relay_both(r) ? r->cfg.n_ranks : r->cfg.n_prefill;
}

uint64_t bt_relay_max_tokens(const bt_relay *relay)
{
    uint64_t pages = 0;

    for (uint32_t i = first_decode(relay); i < relay->cfg.n_ranks; i++)
        if (relay->ranks[i].limits.n_pages > pages) pages = relay->ranks[i].limits.n_pages;
    return pages * relay->cfg.page_tokens;
}

uint64_t bt_relay_max_prompt(const bt_relay *relay)
{
    uint64_t pages = 0;

    for (uint32_t i = 0; i < end_prefill(relay); i++)
        if (relay->ranks[i].limits.n_pages > pages) pages = relay->ranks[i].limits.n_pages;
    return pages * relay->cfg.page_tokens;
}

void bt_relay_wake(bt_relay *relay, uint32_t rank)
{
    bool     decode = !bt_relay_both(relay) && rank >= relay->cfg.n_prefill;
    uint32_t begin  = decode ? relay->cfg.n_prefill : 0;
    uint32_t end    = decode ? relay->cfg.n_ranks : end_prefill(relay);

    relay->wake[decode]++;
    for (uint32_t i = begin; i < end; i++) {
        bt_down m = {.kind = BT_DOWN_WAKE, .u.wake = {relay->wake[decode]}};

        relay->events.send(relay->events.ctx, i, &m);
    }
}

static uint32_t free_pages(const bt_rank_state *k)
{
    return k->taken_pages < k->limits.n_pages ? k->limits.n_pages - k->taken_pages : 0;
}

/* The decode rank with the fewest tokens reserved, of those that have room. */
static int choose_decode(const bt_relay *r, uint32_t n_pages, uint64_t now_ns)
{
    int best = NO_RANK;

    for (uint32_t i = first_decode(r); i < r->cfg.n_ranks; i++) {
        const bt_rank_state *k = &r->ranks[i];

        if (free_pages(k) < n_pages || k->n_held >= k->limits.max_rows ||
            k->refused_until_ns > now_ns)
            continue;
        if (best == NO_RANK || k->taken_pages < r->ranks[best].taken_pages) best = (int)i;
    }
    return best;
}

/* The prefill rank with the fewest prompt tokens to do, of those that have room. */
static int choose_prefill(const bt_relay *r, uint32_t n_prompt)
{
    uint32_t n_pages = bt_relay_pages(r, n_prompt);
    int      best    = NO_RANK;

    for (uint32_t i = 0; i < end_prefill(r); i++) {
        const bt_rank_state *k = &r->ranks[i];

        if (free_pages(k) < n_pages) continue;
        if (k->prefill_tokens > 0 && k->prefill_tokens + n_prompt > r->cfg.prefill_window) continue;
        if (best == NO_RANK || k->prefill_tokens < r->ranks[best].prefill_tokens) best = (int)i;
    }
    return best;
}

/* A rank that had nothing to do has nothing to show: its quiet time begins with the work. */
static void hold(bt_rank_state *k, uint64_t now_ns)
{
    if (k->n_held++ == 0) k->progress_ns = now_ns;
}

void bt_relay_free_decode(bt_relay *relay, bt_request *q)
{
    bt_rank_state *k = &relay->ranks[q->decode_rank];

    if (!q->decode_holds) return;
    q->decode_holds = false;
    k->taken_pages -= q->decode_pages;
    k->n_held--;
    k->refused_until_ns = 0; /* there is room again */
}

void bt_relay_free_prefill(bt_relay *relay, bt_request *q)
{
    bt_rank_state *k = &relay->ranks[q->prefill_rank];

    k->taken_pages -= q->prefill_pages;
    q->prefill_pages = 0;
    if (!q->prefill_holds) return;
    q->prefill_holds = false;
    k->n_held--;
}

void bt_relay_prefill_done(bt_relay *relay, bt_request *q)
{
    if (!q->prefill_counts) return;
    q->prefill_counts = false;
    relay->ranks[q->prefill_rank].prefill_tokens -= q->n_prompt;
}

/* For a decode rank whose choices depend on it. */
static bt_status copy_prompt(const bt_request *q, uint32_t **prompt_out)
{
    bt_status st = BT_OK;
    uint32_t *prompt;

    if (!bt_sampling_needs_prompt(&q->sampling)) goto out;
    prompt = bt_calloc(q->n_prompt, sizeof(*prompt));
    BT_REQUIRE(prompt != NULL, BT_ERR_NO_MEMORY, "a prompt of %u tokens", q->n_prompt);
    memcpy(prompt, q->prompt, q->n_prompt * sizeof(*prompt));
    *prompt_out = prompt;
out:
    return st;
}

static void reserve(bt_relay *r, bt_request *q, uint32_t decode, uint32_t prefill, uint64_t now_ns)
{
    bt_down m = {.kind = BT_DOWN_RESERVE};

    bt_list_remove(&r->queue, q);
    r->queued_tokens -= q->n_prompt;
    bt_list_insert(&r->placed, q);
    q->state        = BT_RESERVING;
    q->heard_ns     = now_ns;
    q->decode_rank  = decode;
    q->prefill_rank = prefill;
    if (bt_sampling_copy(&q->sampling, &m.u.reserve.sampling) != BT_OK ||
        copy_prompt(q, &m.u.reserve.prompt) != BT_OK) {
        bt_sampling_free(&m.u.reserve.sampling);
        bt_relay_end_request(r, q, GRPC_STATUS_RESOURCE_EXHAUSTED,
                             "the coordinator is out of memory");
        return;
    }
    q->decode_holds = true;
    q->decode_pages = bt_relay_pages(r, (uint64_t)q->n_prompt + q->sampling.max_tokens);
    r->ranks[decode].taken_pages += q->decode_pages;
    hold(&r->ranks[decode], now_ns);
    q->prefill_counts = true;
    r->ranks[prefill].prefill_tokens += q->n_prompt;
    if (prefill != decode) { /* with both roles it writes into the ticket's pages */
        q->prefill_pages = bt_relay_pages(r, q->n_prompt);
        r->ranks[prefill].taken_pages += q->prefill_pages;
    }

    m.u.reserve.request      = q->number;
    m.u.reserve.epoch        = r->cfg.epoch;
    m.u.reserve.n_prompt     = q->n_prompt;
    m.u.reserve.prefill_rank = prefill;
    bt_relay_wake(r, decode);
    r->events.send(r->events.ctx, decode, &m);
}

void bt_relay_place(bt_relay *relay, uint64_t now_ns)
{
    bt_request *q;

    while ((q = relay->queue.first) != NULL) {
        uint32_t n_pages = bt_relay_pages(relay, (uint64_t)q->n_prompt + q->sampling.max_tokens);
        int      decode  = choose_decode(relay, n_pages, now_ns);
        int      prefill = bt_relay_both(relay) ? decode : choose_prefill(relay, q->n_prompt);

        if (decode == NO_RANK || prefill == NO_RANK) break; /* first come, first served */
        reserve(relay, q, (uint32_t)decode, (uint32_t)prefill, now_ns);
    }
}

/* The rank has no pages although it should: back to the queue, with a new number. */
static void refused(bt_relay *r, bt_request *q, uint64_t now_ns)
{
    bt_relay_free_decode(r, q);
    bt_relay_free_prefill(r, q);
    bt_relay_prefill_done(r, q);
    r->ranks[q->decode_rank].refused_until_ns = now_ns + REFUSED_MS * BT_NS_PER_MS;
    bt_table_remove(&r->numbers, q->number);
    BT_DEBUG("request %llu got no pages on rank %u and is queued again as %llu",
             (unsigned long long)q->number, q->decode_rank, (unsigned long long)r->next_number);
    q->number = r->next_number++;
    bt_list_remove(&r->placed, q);
    bt_list_insert(&r->queue, q);
    r->queued_tokens += q->n_prompt;
    q->state = BT_QUEUED;
    if (bt_table_put(&r->numbers, q->number, q) != BT_OK)
        bt_relay_end_request(r, q, GRPC_STATUS_RESOURCE_EXHAUSTED,
                             "the coordinator is out of memory");
}

static bool pages_are_sound(const bt_relay *r, const bt_request *q, const bt_up *m)
{
    uint32_t n_pages = r->ranks[q->decode_rank].limits.n_pages;
    /* the last token generated is never read back, so its row need not exist */
    uint32_t least = bt_relay_pages(r, (uint64_t)q->n_prompt + q->sampling.max_tokens - 1);

    if (m->u.ticket.n_pages < least || m->u.ticket.n_pages > n_pages) return false;
    for (uint32_t i = 0; i < m->u.ticket.n_pages; i++)
        if (m->u.ticket.pages[i].id >= n_pages) return false;
    return true;
}

static void prefill(bt_relay *r, bt_request *q, bt_up *ticket, uint64_t now_ns)
{
    bt_down m = {.kind = BT_DOWN_PREFILL};

    m.u.prefill            = (bt_down_prefill){.request     = q->number,
                                               .epoch       = r->cfg.epoch,
                                               .n_prompt    = q->n_prompt,
                                               .prompt      = q->prompt,
                                               .decode_rank = q->decode_rank,
                                               .sampling    = bt_sampling_take(&q->sampling),
                                               .n_pages     = ticket->u.ticket.n_pages,
                                               .pages       = ticket->u.ticket.pages};
    q->prompt              = NULL; /* all three go with the message */
    ticket->u.ticket.pages = NULL;

    q->state    = BT_PREFILL;
    q->heard_ns = now_ns;
    if (q->prefill_rank != q->decode_rank) {
        q->prefill_holds = true;
        hold(&r->ranks[q->prefill_rank], now_ns);
    }
    bt_relay_wake(r, q->prefill_rank);
    r->events.send(r->events.ctx, q->prefill_rank, &m);
}

void bt_relay_ticket(bt_relay *relay, uint32_t rank, bt_up *m, uint64_t now_ns)
{
    bt_request *q = bt_table_get(&relay->numbers, m->u.ticket.request);

    /* An ended request's Abort is on its way already; a Released will follow. */
    if (q == NULL || q->state == BT_ENDED || m->u.ticket.epoch != relay->cfg.epoch) return;
    if (q->state != BT_RESERVING || rank != q->decode_rank) {
        BT_WARN("rank %u sends a ticket for request %llu that it was not asked for", rank,
                (unsigned long long)q->number);
        return;
    }
    if (m->u.ticket.refused) {
        refused(relay, q, now_ns);
        return;
    }
    if (!pages_are_sound(relay, q, m)) {
        bt_relay_end_request(
            relay, q, GRPC_STATUS_INTERNAL,
            "rank %u sent a ticket of %u pages for %u + %u tokens, of its %u pages", rank,
            m->u.ticket.n_pages, q->n_prompt, q->sampling.max_tokens,
            relay->ranks[rank].limits.n_pages);
        return;
    }
    relay->ranks[rank].taken_pages += m->u.ticket.n_pages - q->decode_pages;
    q->decode_pages = m->u.ticket.n_pages;
    prefill(relay, q, m, now_ns);
}
