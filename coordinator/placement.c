/* Where a request goes: from the queue to a ticket, from a ticket to its prefill. */
#include <string.h>

#include "coordinator/relay_state.h"
#include "core/alloc.h"
#include "core/clock.h"

enum { REFUSED_MS = 200, NO_RANK = -1, LOOK_BEHIND = 1024 };
/* Of requests that no decode rank has room for: so many are looked at in a pass, and so many ranks
 * kept for them. */
enum { FULL_MAX = 64, KEPT_MAX = 4 };
/* Of looks in a pass over the queue: so many in vain may follow each message; beyond so many no
 * long prompt is asked whether it is a short one where its prefix is; after so many it ends. */
enum { LOOKS_CHEAP = 1024, LOOKS_LONG = 4096, LOOKS_MAX = 16384 };

uint32_t bt_relay_pages(const bt_relay *relay, uint64_t n_tokens)
{
    uint64_t pages = (n_tokens + relay->cfg.page_tokens - 1) / relay->cfg.page_tokens;

    return pages > UINT32_MAX ? UINT32_MAX : (uint32_t)pages;
}

/* Of the ranks that have the role; if none is left, of all ranks, lost ones among them, since
 * another one will come. */
static uint64_t most_pages(const bt_relay *r, bool (*has_role)(const bt_relay *, uint32_t))
{
    uint64_t left = 0, ever = 0;

    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        uint64_t n = r->ranks[i].limits.n_pages;

        if (n > ever) ever = n;
        if (has_role(r, i) && n > left) left = n;
    }
    return left != 0 ? left : ever;
}

uint64_t bt_relay_max_tokens(const bt_relay *relay)
{
    return most_pages(relay, bt_relay_decodes) * relay->cfg.page_tokens;
}

uint64_t bt_relay_max_prompt(const bt_relay *relay)
{
    return most_pages(relay, bt_relay_prefills) * relay->cfg.page_tokens;
}

/* What the choices hold together once they are as long as they may get: a decode rank with fewer
 * pages takes none of them. */
static uint64_t pages_at_last(const bt_relay *r, uint32_t n_prompt, uint32_t max_tokens,
                              uint32_t n_choices)
{
    uint64_t full = n_prompt / r->cfg.page_tokens;

    return full + n_choices * (bt_relay_pages(r, (uint64_t)n_prompt + max_tokens) - full);
}

static bool could_hold(const bt_relay *r, uint32_t n_prompt, uint32_t max_tokens,
                       uint32_t n_choices, bool (*prefills)(const bt_relay *, uint32_t),
                       bool (*decodes)(const bt_relay *, uint32_t))
{
    return pages_at_last(r, n_prompt, max_tokens, n_choices) <= most_pages(r, decodes) &&
           bt_relay_pages(r, n_prompt) <= most_pages(r, prefills);
}

bool bt_relay_could_hold(const bt_relay *relay, uint32_t n_prompt, uint32_t max_tokens,
                         uint32_t n_choices)
{
    return could_hold(relay, n_prompt, max_tokens, n_choices, bt_relay_prefills, bt_relay_decodes);
}

/* It hands over to some decode rank; or some prefill rank to it. */
static bool reaches(const bt_relay *r, uint32_t rank)
{
    return bt_relay_prefills(r, rank) && !r->ranks[rank].cut_off;
}

static bool is_reached(const bt_relay *r, uint32_t rank)
{
    return bt_relay_decodes(r, rank) && !r->ranks[rank].cut_off;
}

/* Whether the prompt could be computed there, if not now. */
static bool may_prefill(const bt_relay *r, const bt_relay_request *q, uint32_t rank)
{
    return reaches(r, rank) && bt_relay_pages(r, q->n_prompt) <= r->ranks[rank].limits.n_pages;
}

static bool may_decode(const bt_relay *r, const bt_relay_request *q, uint32_t rank)
{
    return is_reached(r, rank) && pages_at_last(r, q->n_prompt, q->sampling.max_tokens,
                                                q->n_open) <= r->ranks[rank].limits.n_pages;
}

/* Whether some rank that could compute its prompt hands over to one that could hold it to its end;
 * where a role has no rank, another one will come. */
static bool has_pair(const bt_relay *r, const bt_relay_request *q)
{
    uint32_t taken[2];

    bt_relay_count_seats(r, taken);
    if (taken[BT_SEATED_PREFILL] == 0 || taken[BT_SEATED_DECODE] == 0) return true;
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        if (!may_prefill(r, q, i)) continue; /* a queue may be full of such that nobody computes */
        for (uint32_t k = 0; k < r->cfg.n_ranks; k++)
            if (may_decode(r, q, k) && !bt_relay_is_avoided(r, i, (int)k)) return true;
    }
    return false;
}

bool bt_relay_could_ever_hold(const bt_relay *relay, const bt_relay_request *q)
{
    return could_hold(relay, q->n_prompt, q->sampling.max_tokens, q->n_open, reaches, is_reached) &&
           (relay->n_avoided == 0 || has_pair(relay, q));
}

void bt_relay_wake(bt_relay *relay, uint32_t rank)
{
    uint32_t        group = relay->ranks[rank].group;
    const bt_seats *seats = &relay->seats[group];

    relay->wake[group]++;
    for (uint32_t i = 0; i < seats->n; i++) {
        bt_down m = {.kind = BT_DOWN_WAKE, .u.wake = {relay->wake[group]}};

        if (seats->ranks[i] != BT_NO_RANK)
            relay->events.send(relay->events.ctx, seats->ranks[i], &m);
    }
}

/* For a request that the rank holds by now.  Its group takes steps while it holds others; where it
 * does not, the first rank with a row asks.  So a burst costs no message to every rank for each. */
static void wake_for(bt_relay *r, uint32_t rank)
{
    uint32_t group = r->ranks[rank].group, n_held = 0;

    if (r->ranks[rank].n_held > 1) return;
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++)
        if (r->ranks[i].group == group) n_held += r->ranks[i].n_held;
    if (n_held <= 1) bt_relay_wake(r, rank);
}

/* Pages of the prompt that the rank probably has; its last token is always computed. */
static uint32_t prefix_pages(const bt_relay *r, const bt_relay_request *q, uint32_t rank)
{
    const bt_prefix_index *index = &r->ranks[rank].index;
    uint32_t               most  = (q->n_prompt - 1) / r->cfg.page_tokens;
    uint32_t               n     = most < q->n_keys ? most : q->n_keys;

    if (q->matches == NULL) return bt_prefix_index_match(index, n, q->keys);
    return bt_prefix_index_rematch(index, n, q->keys, &q->matches[rank]);
}

/* Of them, those that requests which decode there hold: they count already. */
static uint32_t held_pages(const bt_relay *r, const bt_relay_request *q, uint32_t rank)
{
    const bt_rank_state *k    = &r->ranks[rank];
    bt_prefix_match      none = {0}, *m = q->matches != NULL ? &q->matches[rank] : &none;
    uint32_t             n = prefix_pages(r, q, rank);

    if (m->held_version == k->held.version) return m->n_held;
    m->held_version = k->held.version;
    m->n_held       = 0;
    for (uint32_t i = 0; i < n; i++)
        m->n_held +=
            bt_held_pages_has(&k->held, bt_prefix_index_page(&k->index, &q->keys[i]), &q->keys[i]);
    return m->n_held;
}

/* Pages that the prompt fills. */
static uint32_t full_pages(const bt_relay *r, const bt_relay_request *q)
{
    return q->n_prompt / r->cfg.page_tokens;
}

/* Pages for what is known, and for the next token of each open choice; the prompt's full pages
 * once. */
static uint32_t pages_now(const bt_relay *r, const bt_relay_request *q)
{
    uint32_t full = full_pages(r, q), pages = full;

    for (uint32_t i = 0; i < q->n_choices; i++)
        if (!q->choices[i].ended)
            pages += bt_relay_pages(r, (uint64_t)q->n_prompt + q->choices[i].n_out + 1) - full;
    return pages;
}

/* Whether the rank, with so much to hold or to do, is better than the best one so far.  Of equal
 * ones that is the one that was given the fewest new pages: while little comes all would fill the
 * cache of the first one. */
static bool is_better(const bt_relay *r, uint32_t rank, int64_t much, int best, int64_t least)
{
    if (best == NO_RANK || much != least) return best == NO_RANK || much < least;
    return r->ranks[rank].index.n_new < r->ranks[best].index.n_new;
}

/* Pages that the decode rank would hold with the request, which needs so many, and one more for
 * each choice that grows there already: else it refuses.  Those that others hold too count once. */
static int64_t pages_with(const bt_relay *r, const bt_relay_request *q, uint32_t need,
                          uint32_t rank)
{
    const bt_rank_state *k = &r->ranks[rank];

    return (int64_t)k->taken_pages + k->n_choices + need - held_pages(r, q, rank);
}

/* Tokens of the prompt that its prefill rank would probably compute. */
static uint32_t rest_of(const bt_relay *r, const bt_relay_request *q, uint32_t rank)
{
    return q->n_prompt - prefix_pages(r, q, rank) * r->cfg.page_tokens;
}

/* Whether the rank cannot compute so many in one step. */
static bool takes_steps(const bt_rank_state *k, uint32_t n_tokens)
{
    return n_tokens > k->limits.max_rows;
}

/* A prompt of which its prefill rank cannot compute the rest in one step. */
static bool is_long(const bt_relay *r, const bt_relay_request *q, uint32_t rank)
{
    const bt_rank_state *k = &r->ranks[rank];

    return takes_steps(k, q->n_prompt) && takes_steps(k, rest_of(r, q, rank));
}

/* Whether the rank has so many pages, and keeps those that an older prompt of the other kind waits
 * for: what others of that kind hold comes back before its turn. */
static bool has_pages(const bt_rank_state *k, bool many, uint32_t n_pages)
{
    uint32_t own = many ? k->long_pages : k->taken_pages - k->long_pages;

    return (uint64_t)k->taken_pages + n_pages <= k->limits.n_pages &&
           (uint64_t)own + n_pages + k->awaited[!many] <= k->limits.n_pages;
}

/* The prefill rank that would be done with the prompt first: the one with the fewest tokens to
 * compute, less those of its cached prefix, among those that have room.  Prompts of one step and
 * longer ones have a window each, so that the former never wait for the latter; none passes an
 * older one of its kind, and none goes where hand-offs to its decode rank stood still.  Where none
 * is chosen, full_out says whether one had room, and a full window. */
static int choose_prefill(const bt_relay *r, const bt_relay_request *q, int decode, bool *full_out)
{
    uint32_t n_pages = bt_relay_pages(r, q->n_prompt);
    int      best    = NO_RANK;
    int64_t  least   = 0, much;

    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        const bt_rank_state *k = &r->ranks[i];
        uint64_t             lane;
        uint32_t             rest;
        bool                 many;

        if (!bt_relay_prefills(r, i) || bt_relay_is_avoided(r, i, decode)) continue;
        rest = rest_of(r, q, i);
        many = takes_steps(k, rest);
        if (k->passed_over[many]) continue;
        lane = many ? k->long_tokens : k->prefill_tokens - k->long_tokens;
        if (!has_pages(k, many, n_pages)) continue;
        if (lane > 0 && lane + rest > r->cfg.prefill_window) {
            *full_out = true;
            continue;
        }
        much = (int64_t)k->prefill_tokens + rest;
        if (is_better(r, i, much, best, least)) {
            best  = (int)i;
            least = much;
        }
    }
    return best;
}

/* Whether a prefill rank would take it now, of those that hand over to the decode rank. */
static bool has_prefill(const bt_relay *r, const bt_relay_request *q, uint32_t decode)
{
    bool full;

    return bt_relay_n_avoided(r, decode) == 0 ||
           choose_prefill(r, q, (int)decode, &full) != NO_RANK;
}

/* The decode rank that would hold the fewest pages, those of its prefix that are in the cache not
 * counted, since they need not be sent; of those that have room for it beside `others` pages and
 * are not kept for an older request; with_prefill: and of which has_prefill() holds. */
static int least_decode(const bt_relay *r, const bt_relay_request *q, uint32_t others,
                        bool with_prefill, uint64_t now_ns)
{
    int      best  = NO_RANK;
    uint32_t need  = pages_now(r, q);
    uint64_t last  = pages_at_last(r, q->n_prompt, q->sampling.max_tokens, q->n_open);
    int64_t  least = 0;

    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        const bt_rank_state *k = &r->ranks[i];
        int64_t              much;

        if (!is_reached(r, i) || k->kept || k->refused_until_ns > now_ns) continue;
        if (last > k->limits.n_pages) continue;
        if (pages_with(r, q, need, i) + others > k->limits.n_pages) continue;
        if (!bt_rank_has_rows(k, q->n_open)) continue;
        if (with_prefill && !has_prefill(r, q, i)) continue;
        much = (int64_t)k->taken_pages - prefix_pages(r, q, i); /* what it needs adds to each */
        if (is_better(r, i, much, best, least)) {
            best  = (int)i;
            least = much;
        }
    }
    return best;
}

/* Where hand-offs stood still the best may lack a prefill rank that another one has. */
static int choose_decode(const bt_relay *r, const bt_relay_request *q, uint32_t others,
                         uint64_t now_ns)
{
    int best = r->n_avoided == 0 ? NO_RANK : least_decode(r, q, others, true, now_ns);

    return best != NO_RANK ? best : least_decode(r, q, others, false, now_ns);
}

/* A rank without work shows no progress: its quiet time begins with the work. */
static void hold(bt_rank_state *k, uint64_t now_ns)
{
    if (k->n_held++ == 0) k->progress_ns = now_ns;
}

/* The request's held_pages come, or go. */
static void count_held(bt_relay *r, bt_relay_request *q, bool comes)
{
    bt_rank_state *k = &r->ranks[q->decode_rank];

    k->taken_pages -= k->held.n_found;
    bt_held_pages_count(&k->held, q->n_held / r->cfg.page_tokens, full_pages(r, q), q->held_pages,
                        comes);
    k->taken_pages += k->held.n_found;
}

/* The rows of so many of them are there, for others to find; unless its decode rank has said that
 * it gave them back. */
static void name_held(bt_relay *r, const bt_relay_request *q, uint32_t n)
{
    if (q->held_pages != NULL && q->n_keys > 0)
        bt_held_pages_name(&r->ranks[q->decode_rank].held, n, q->held_pages, q->keys);
}

static void forget_held(bt_relay *r, bt_relay_request *q)
{
    if (q->held_pages == NULL) return;
    count_held(r, q, false);
    bt_free(q->held_pages);
    q->held_pages = NULL;
}

void bt_relay_free_decode(bt_relay *relay, bt_relay_request *q)
{
    bt_rank_state *k = &relay->ranks[q->decode_rank];

    if (!q->decode_holds) return;
    q->decode_holds = false;
    k->taken_pages -= q->decode_pages;
    k->n_choices -= q->decode_choices;
    q->decode_pages = q->decode_choices = 0;
    forget_held(relay, q);
    k->n_held--;
    k->refused_until_ns = 0; /* there is room again */
}

void bt_relay_free_prefill(bt_relay *relay, bt_relay_request *q)
{
    bt_rank_state *k = &relay->ranks[q->prefill_rank];

    k->taken_pages -= q->prefill_pages;
    if (q->is_long) k->long_pages -= q->prefill_pages;
    q->prefill_pages = 0;
    if (!q->prefill_holds) return;
    q->prefill_holds = false;
    k->n_held--;
}

void bt_relay_prefill_done(bt_relay *relay, bt_relay_request *q)
{
    bt_rank_state *k = &relay->ranks[q->prefill_rank];

    relay->freed = relay->freed || q->prefill_counts != 0;
    k->prefill_tokens -= q->prefill_counts;
    if (q->is_long) k->long_tokens -= q->prefill_counts;
    q->prefill_counts = 0;
}

void bt_relay_prompt_done(bt_relay *relay, bt_relay_request *q)
{
    bt_relay_prefill_done(relay, q);
    name_held(relay, q, q->n_keys);
}

/* Its pages and open choices on its decode rank, as they are by now. */
static void count_decode(bt_relay *r, bt_relay_request *q)
{
    bt_rank_state *k     = &r->ranks[q->decode_rank];
    uint32_t       pages = pages_now(r, q) - q->n_held / r->cfg.page_tokens;

    r->freed = r->freed || pages < q->decode_pages;
    k->taken_pages += pages - q->decode_pages;
    k->n_choices += q->n_open - q->decode_choices;
    q->decode_pages   = pages;
    q->decode_choices = q->n_open;
}

void bt_relay_grew(bt_relay *relay, bt_relay_request *q)
{
    if (q->decode_holds) count_decode(relay, q);
}

void bt_relay_learn(bt_relay *relay, const bt_relay_request *q, uint32_t choice)
{
    const bt_relay_request_choice *c    = &q->choices[choice];
    uint32_t                      *all  = NULL;
    bt_page_key                   *keys = NULL;
    uint32_t                       n    = 0;

    if (!relay->cfg.share_generated || q->prefix_seed == 0 || c->n_out == 0) return;
    all = bt_calloc((size_t)q->n_prompt + c->n_out, sizeof(*all));
    if (all == NULL) return; /* only a guess is lost */
    memcpy(all, q->prompt, q->n_prompt * sizeof(*all));
    memcpy(all + q->n_prompt, c->out, c->n_out * sizeof(*all));
    /* The last token's row is not computed. */
    if (bt_page_keys(q->prefix_seed, relay->cfg.page_tokens, q->n_prompt + c->n_out - 1, all, &keys,
                     &n) == BT_OK)
        bt_prefix_index_add(&relay->ranks[q->decode_rank].index, n, keys, NULL);
    bt_free(keys);
    bt_free(all);
}

static void reserve(bt_relay *r, bt_relay_request *q, uint32_t decode, uint32_t prefill,
                    uint64_t now_ns)
{
    bt_down m = {.kind = BT_DOWN_RESERVE};

    bt_relay_list_remove(&r->queue, q);
    bt_relay_count_queued(r, q, false);
    bt_relay_list_insert(&r->placed, q);
    bt_relay_turn(r, q, BT_RESERVING);
    q->epoch        = r->epoch;
    q->heard_ns     = now_ns;
    q->decode_rank  = decode;
    q->prefill_rank = prefill;
    if (bt_relay_fill_reserve(r, q, &m.u.reserve) != BT_OK) {
        bt_down_free(&m);
        bt_relay_end_no_memory(r, q);
        return;
    }
    q->decode_holds = true;
    q->n_held       = held_pages(r, q, decode) * r->cfg.page_tokens;
    count_decode(r, q);
    hold(&r->ranks[decode], now_ns);
    q->prefill_counts = rest_of(r, q, prefill);
    q->is_long        = takes_steps(&r->ranks[prefill], q->prefill_counts);
    r->ranks[prefill].prefill_tokens += q->prefill_counts;
    if (q->is_long) r->ranks[prefill].long_tokens += q->prefill_counts;
    if (prefill != decode) { /* with both roles it writes into the ticket's pages */
        q->prefill_pages = bt_relay_pages(r, q->n_prompt);
        r->ranks[prefill].taken_pages += q->prefill_pages;
        if (q->is_long) r->ranks[prefill].long_pages += q->prefill_pages;
    }
    wake_for(r, decode);
    r->events.send(r->events.ctx, decode, &m);
}

/* What its ranks' indexes say of it is kept from now on: it costs more than it while it waits. */
static void remember_matches(const bt_relay *r, bt_relay_request *q)
{
    if (q->matches == NULL && q->n_keys != 0)
        q->matches = bt_calloc(r->cfg.n_ranks, sizeof(*q->matches));
}

/* Whether there are prefill ranks that it may go to, and an older one of its kind waits for all. */
static bool waits_behind(bt_relay *r, bt_relay_request *q)
{
    bool may_be_long = q->n_prompt > r->least_rows, may_go = false;

    if (r->n_open[may_be_long] == 0 &&
        (!may_be_long || r->n_open[0] == 0 || r->looks >= LOOKS_LONG))
        return true;
    if (may_be_long) remember_matches(r, q);
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        r->looks++;
        if (!may_prefill(r, q, i)) continue;
        if (!r->ranks[i].passed_over[is_long(r, q, i)]) return false;
        may_go = true;
    }
    return may_go;
}

/* No prefill rank has taken it: wherever it may go those of its kind that follow do not pass it,
 * and others leave it its pages.  False: it may go nowhere, since all that could hold it are lost,
 * or hand nothing over to one another. */
static bool let_wait(bt_relay *r, const bt_relay_request *q)
{
    uint32_t n_pages = bt_relay_pages(r, q->n_prompt);
    bool     may_go  = false;

    if (r->n_avoided > 0 && !has_pair(r, q)) return false;
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        bt_rank_state *k    = &r->ranks[i];
        bool           many = is_long(r, q, i);

        if (!may_prefill(r, q, i)) continue;
        may_go = true;
        r->n_open[many] -= !k->passed_over[many];
        k->passed_over[many] = true;
        if (n_pages > k->awaited[many]) k->awaited[many] = n_pages;
    }
    return may_go;
}

/* No decode rank has room for it: the one that lacks the fewest rows and pages takes nobody who is
 * younger before, so that the others go on; and where all that it could wait for are kept already
 * it needs no more.  False: nobody who is younger may go on. */
static bool keep_decode(bt_relay *r, const bt_relay_request *q, uint32_t *n_kept)
{
    bt_rank_state *best  = NULL;
    uint32_t       need  = pages_now(r, q);
    uint64_t       last  = pages_at_last(r, q->n_prompt, q->sampling.max_tokens, q->n_open);
    int64_t        least = 0;
    bool           any   = false; /* is not kept */

    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        bt_rank_state *k = &r->ranks[i];
        int64_t        lacks;

        if (!is_reached(r, i) || k->kept) continue;
        any = true;
        if (last > k->limits.n_pages) continue;
        lacks = pages_with(r, q, need, i) - k->limits.n_pages;
        if (!bt_rank_has_rows(k, q->n_open))
            lacks += (int64_t)(k->n_choices + q->n_open - k->limits.max_rows) << 32;
        if (best == NULL || lacks < least) {
            best  = k;
            least = lacks;
        }
    }
    if (best == NULL) return any;
    if (*n_kept == KEPT_MAX) return false;
    best->kept = true;
    ++*n_kept;
    return true;
}

static void forget_waiting(bt_relay *r)
{
    r->least_rows = UINT32_MAX;
    r->n_open[0] = r->n_open[1] = 0;
    for (uint32_t i = 0; i < r->cfg.n_ranks; i++) {
        bt_rank_state *k = &r->ranks[i];

        k->kept = false;
        for (int many = 0; many < 2; many++) {
            k->passed_over[many] = false;
            k->awaited[many]     = 0;
            r->n_open[many] += bt_relay_prefills(r, i);
        }
        if (k->limits.max_rows < r->least_rows) r->least_rows = k->limits.max_rows;
    }
}

void bt_relay_place(bt_relay *relay, uint64_t now_ns)
{
    bt_relay_request *q            = relay->queue.first, *next;
    uint32_t          passed_pages = 0, n_passed = 0, n_full = 0, n_kept = 0, n_reserved = 0;

    relay->blocked = BT_BLOCKED_NOT;
    relay->freed   = false;
    relay->looks   = 0;
    bt_relay_look_at_avoided(relay, now_ns);
    forget_waiting(relay);
    for (; q != NULL && n_passed < LOOK_BEHIND && relay->looks < LOOKS_MAX; q = next) {
        int  decode, prefill;
        bool full = false;

        next = q->next;
        relay->looks++;
        if (n_passed > 0 && waits_behind(relay, q)) {
            q->short_of = BT_SHORT_UNKNOWN;
            n_passed++;
            continue;
        }
        remember_matches(relay, q);
        relay->looks += relay->cfg.n_ranks;
        decode      = choose_decode(relay, q, passed_pages, now_ns);
        prefill     = bt_relay_both(relay) ? decode : choose_prefill(relay, q, decode, &full);
        q->short_of = decode != NO_RANK && full ? BT_SHORT_OF_WINDOW : BT_SHORT_OF_ROOM;
        if ((decode == NO_RANK || prefill == NO_RANK) && relay->blocked == BT_BLOCKED_NOT)
            relay->blocked = decode == NO_RANK ? BT_BLOCKED_DECODE : BT_BLOCKED_PREFILL;
        if (decode == NO_RANK) {
            if (bt_relay_could_ever_hold(relay, q) &&
                (n_full++ == FULL_MAX || !keep_decode(relay, q, &n_kept)))
                break;
            n_passed++;
            continue;
        }
        if (prefill == NO_RANK) { /* those of the other kind may pass that leave it its pages */
            if (let_wait(relay, q)) passed_pages += pages_now(relay, q) + q->n_open;
            n_passed++;
            continue;
        }
        reserve(relay, q, (uint32_t)decode, (uint32_t)prefill, now_ns);
        n_reserved++;
    }
    if (relay->looks >= LOOKS_MAX && n_reserved > 0) relay->freed = true; /* there may be more */
    relay->dear = relay->queue.first != NULL && relay->looks > LOOKS_CHEAP;
}

void bt_relay_place_soon(bt_relay *relay, uint64_t now_ns)
{
    relay->freed = true;
    if (!relay->dear) bt_relay_place(relay, now_ns);
}

bool bt_relay_has_room(const bt_relay *relay, const bt_relay_request *q, uint64_t now_ns)
{
    bool             full  = false;
    bt_relay_request asked = *q;
    int              decode;

    asked.matches = NULL; /* those of another relay are of its ranks */
    decode        = choose_decode(relay, &asked, 0, now_ns);
    return decode != NO_RANK &&
           (bt_relay_both(relay) || choose_prefill(relay, &asked, decode, &full) != NO_RANK);
}

/* The rank has no pages although it should have: the request goes back to the queue, with a new
 * number. */
static void refused(bt_relay *r, bt_relay_request *q, uint64_t now_ns)
{
    bt_relay_free_decode(r, q);
    bt_relay_free_prefill(r, q);
    bt_relay_prefill_done(r, q);
    r->ranks[q->decode_rank].refused_until_ns = now_ns + REFUSED_MS * BT_NS_PER_MS;
    bt_log_set_request(q->number);
    BT_DEBUG("no pages on rank %u: queued again as %llu", q->decode_rank,
             (unsigned long long)r->next_number);
    bt_log_set_request(0);
    bt_table_remove(&r->numbers, q->number);
    q->number = r->next_number++;
    (void)bt_table_put(&r->numbers, q->number, q); /* in the place of the one before */
    bt_relay_list_remove(&r->placed, q);
    bt_relay_list_insert(&r->queue, q);
    bt_relay_count_queued(r, q, true);
    bt_relay_turn(r, q, BT_QUEUED);
}

static bool pages_are_sound(const bt_relay *r, const bt_relay_request *q, const bt_up *m)
{
    uint32_t n_pages = r->ranks[q->decode_rank].limits.n_pages;
    uint32_t least   = bt_relay_pages(r, q->n_prompt);

    if (m->u.ticket.n_pages < least || m->u.ticket.n_pages > n_pages) return false;
    if (m->u.ticket.held >= q->n_prompt || m->u.ticket.held % r->cfg.page_tokens != 0) return false;
    for (uint32_t i = 0; i < m->u.ticket.n_pages; i++)
        if (m->u.ticket.pages[i].id >= n_pages) return false;
    return true;
}

/* What the request holds by its ticket; false: out of memory. */
static bool take_held(bt_relay *r, bt_relay_request *q, const bt_up *ticket)
{
    uint32_t n = full_pages(r, q);

    q->held_pages = n == 0 ? NULL : bt_calloc(n, sizeof(*q->held_pages));
    if (q->held_pages == NULL && n > 0) return false;
    for (uint32_t i = 0; i < n; i++)
        q->held_pages[i] = ticket->u.ticket.pages[i].id;
    q->n_held = ticket->u.ticket.held;
    count_decode(r, q);
    if (n > 0) count_held(r, q, true);
    name_held(r, q, q->n_held / r->cfg.page_tokens);
    return true;
}

/* Others with its prefix may have been sent to its prefill rank since it was placed: the rank
 * computes that for them. */
static void count_prefill_anew(bt_relay *r, bt_relay_request *q)
{
    bt_rank_state *k    = &r->ranks[q->prefill_rank];
    uint32_t       rest = rest_of(r, q, q->prefill_rank);

    if (rest >= q->prefill_counts) return;
    k->prefill_tokens -= q->prefill_counts - rest;
    if (q->is_long) {
        k->long_tokens -= q->prefill_counts;
        k->long_pages -= q->prefill_pages;
    }
    q->prefill_counts = rest;
    q->is_long        = takes_steps(k, rest); /* it never becomes one */
    if (q->is_long) {
        k->long_tokens += rest;
        k->long_pages += q->prefill_pages;
    }
}

static void prefill(bt_relay *r, bt_relay_request *q, bt_up *ticket, uint64_t now_ns)
{
    bt_down          m = {.kind = BT_DOWN_PREFILL};
    bt_down_prefill *p = &m.u.prefill;

    if (bt_relay_fill_prefill(q, p) != BT_OK) {
        bt_down_free(&m);
        bt_relay_end_no_memory(r, q);
        return;
    }
    p->n_pages             = ticket->u.ticket.n_pages;
    p->pages               = ticket->u.ticket.pages;
    ticket->u.ticket.pages = NULL; /* goes with the message */
    p->held                = ticket->u.ticket.held;
    if (p->form_map == NULL) { /* what the decode rank holds binds the prefill rank */
        p->form_map               = ticket->u.ticket.form_map;
        p->n_form_map_bytes       = ticket->u.ticket.n_form_map_bytes;
        ticket->u.ticket.form_map = NULL;
    }
    count_prefill_anew(r, q);
    bt_prefix_index_add(&r->ranks[q->prefill_rank].index, q->n_keys, q->keys, NULL);
    bt_prefix_index_add(&r->ranks[q->decode_rank].index, q->n_keys, q->keys, q->held_pages);
    bt_relay_forget_matches(q);

    bt_relay_turn(r, q, BT_PREFILL);
    bt_relay_log_number(q);
    q->heard_ns = now_ns;
    if (q->prefill_rank != q->decode_rank) {
        q->prefill_holds = true;
        hold(&r->ranks[q->prefill_rank], now_ns);
    }
    wake_for(r, q->prefill_rank);
    r->events.send(r->events.ctx, q->prefill_rank, &m);
    r->events.client.placed(q->client);
}

void bt_relay_ticket(bt_relay *relay, uint32_t rank, bt_up *m, uint64_t now_ns)
{
    bt_relay_request *q = bt_table_get(&relay->numbers, m->u.ticket.request);

    /* An ended request's Abort is on its way already; a Released will follow. */
    if (q == NULL || q->state == BT_ENDED || m->u.ticket.epoch != q->epoch) return;
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
            "rank %u sent a ticket of %u pages, with %u tokens held, for %u + %u tokens; expected "
            "%u pages or more, of its %u, and whole pages of the prompt held",
            rank, m->u.ticket.n_pages, m->u.ticket.held, q->n_prompt, q->sampling.max_tokens,
            bt_relay_pages(relay, q->n_prompt), relay->ranks[rank].limits.n_pages);
        return;
    }
    if (!take_held(relay, q, m)) {
        bt_relay_end_no_memory(relay, q);
        return;
    }
    prefill(relay, q, m, now_ns);
}
