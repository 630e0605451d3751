/* tests/worker/hostile_orders.h - orders for one rank that no coordinator would send, between
 * others that it would: drawn at random, of few requests, so that many are of some that are here.
 */
#ifndef BT_TESTS_WORKER_HOSTILE_ORDERS_H
#define BT_TESTS_WORKER_HOSTILE_ORDERS_H

#include "tests/worker/bench.h"
#include "worker/state.h"

enum { N_IDS = 20 };

/* What the rank has said of a request, for the orders that follow. */
typedef struct {
    uint32_t    epoch, n_prompt, n_pages;
    bt_page_ref pages[BENCH_PAGES];
} ticket;

typedef struct {
    bench    b;
    uint64_t state; /* of the random numbers */
    uint32_t rank, n_prefill;
    ticket   tickets[N_IDS + 1];
} world;

static inline uint32_t draw(world *w, uint32_t below)
{
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->state >> 33) % below;
}

static inline bool one_in(world *w, uint32_t n) { return draw(w, n) == 0; }

/* v, or now and then anything. */
static inline uint32_t told(world *w, uint32_t v)
{
    if (!one_in(w, 25)) return v;
    switch (draw(w, 5)) {
    case 0: return 0;
    case 1: return UINT32_MAX;
    case 2: return v + 1;
    case 3: return v - 1;
    default: return draw(w, 400);
    }
}

static inline uint64_t any_id(world *w) { return 1 + draw(w, N_IDS); }

static inline uint32_t any_epoch(world *w) { return 2 + draw(w, 4); }

static inline uint32_t *ids(world *w, uint32_t n, uint32_t below)
{
    uint32_t *all = bt_calloc(n + 1, sizeof(*all));

    for (uint32_t i = 0; i < n; i++)
        all[i] = told(w, draw(w, below));
    return all;
}

static inline void fill_sampling(world *w, bt_sampling *s)
{
    s->max_tokens  = told(w, 1 + draw(w, 30));
    s->temperature = one_in(w, 3) ? 0.7f : 0;
    s->logprobs    = one_in(w, 6);
    if (s->logprobs) s->top_logprobs = told(w, 1 + draw(w, 4));
    if (one_in(w, 10)) s->prompt_logprobs = 1 + draw(w, 3);
    if (one_in(w, 8)) s->frequency_penalty = 0.5f;
}

/* Of a few prefixes that many share. */
static inline void *prefix_keys(world *w, uint32_t n_prompt, size_t *n_bytes_out)
{
    uint32_t  n = told(w, n_prompt / BT_PAGE_TOKENS) % 8, prefix = draw(w, 3);
    uint64_t *keys = bt_calloc(n + 1, BT_PREFIX_KEY_BYTES);

    for (uint32_t i = 0; i < n; i++)
        keys[2 * i] = prefix * 100 + i + 1;
    *n_bytes_out = (size_t)n * BT_PREFIX_KEY_BYTES;
    return keys;
}

/* Some of them begin with tokens that the client has. */
static inline void add_choices(world *w, bt_down_reserve *r)
{
    uint32_t n = 1 + draw(w, 3);

    r->n_choices      = n;
    r->choices        = ids(w, n, 1);
    r->replay_lengths = ids(w, n, 3);
    for (uint32_t i = 0; i < n; i++) {
        r->choices[i] = told(w, 2 * i);
        r->n_replay += r->replay_lengths[i] %= 8;
    }
    r->replay = ids(w, r->n_replay, BENCH_VOCAB);
}

static inline bt_down reserve(world *w)
{
    uint64_t         id       = any_id(w);
    uint32_t         n_prompt = told(w, 1 + draw(w, 200));
    bt_down          m        = bench_reserve(id, n_prompt, 0);
    bt_down_reserve *r        = &m.u.reserve;

    r->epoch        = any_epoch(w);
    r->prefill_rank = told(w, 0);
    r->arrival      = draw(w, 50);
    r->prefix_keys  = prefix_keys(w, n_prompt, &r->n_prefix_key_bytes);
    fill_sampling(w, &r->sampling);
    if (one_in(w, 4)) add_choices(w, r);
    r->eval = one_in(w, 12);
    if (r->eval) r->n_eval = draw(w, 5), r->eval_tokens = ids(w, r->n_eval, BENCH_VOCAB);
    return m;
}

/* With both roles mostly into the pages of the ticket. */
static inline bt_down prefill(world *w)
{
    uint64_t         id      = any_id(w);
    const ticket    *t       = &w->tickets[id];
    bool             own     = w->n_prefill == 0 && t->n_pages > 0;
    uint32_t         n       = own ? t->n_prompt : 1 + draw(w, 200);
    uint32_t         n_pages = own ? t->n_pages : bt_kv_pages_for(n) + draw(w, 2);
    bt_down          m       = bench_prefill(id, n, n_pages, told(w, w->n_prefill));
    bt_down_prefill *p       = &m.u.prefill;

    p->epoch   = own && !one_in(w, 10) ? t->epoch : any_epoch(w);
    p->arrival = draw(w, 50);
    if (own) memcpy(p->pages, t->pages, n_pages * sizeof(*p->pages));
    p->pages[0].generation += told(w, 0);
    for (uint32_t i = 0; i < n; i++) /* a wrong one in few */
        p->prompt[i] = i == 0 ? told(w, 0) : draw(w, BENCH_VOCAB);
    p->prefix_keys = prefix_keys(w, n, &p->n_prefix_key_bytes);
    p->held        = one_in(w, 10) ? BT_PAGE_TOKENS * draw(w, 3) : told(w, 0);
    p->eval        = one_in(w, 15);
    fill_sampling(w, &p->sampling);
    return m;
}

static inline bt_down end(world *w)
{
    uint64_t id    = any_id(w);
    uint32_t epoch = one_in(w, 3) ? any_epoch(w) : w->tickets[id].epoch;

    return (bt_down){
        .kind = BT_DOWN_ABORT, .u.abort = {id, epoch, one_in(w, 3) ? draw(w, 4) : 0}
    };
}

/* What cannot be read off the wire does not come. */
static inline void give(world *w, bt_down *m)
{
    uint8_t *bytes = NULL;
    size_t   n     = 0;
    bt_down  read;

    NEED(bt_down_pack(m, &bytes, &n) == BT_OK);
    bt_down_free(m);
    if (bt_down_unpack(bytes, n, &read) == BT_OK) bench_order(&w->b, &read);
    bt_free(bytes);
}

static inline void order(world *w)
{
    bool    prefills = w->n_prefill == 0 ? one_in(w, 2) : (w->rank == 0) != one_in(w, 20);
    bt_down m        = one_in(w, 10) ? end(w) : prefills ? prefill(w) : reserve(w);

    give(w, &m);
}

static inline void wake(world *w)
{
    bt_down m = {.kind = BT_DOWN_WAKE, .u.wake = {w->b.worker->wake_seen + told(w, 1) % 1000}};

    give(w, &m);
}

#endif
