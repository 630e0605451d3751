/* What the relay counts, held against decode ranks that have a pool and a prefix cache, while
 * requests come, share their prompts' pages, grow, are retracted, aborted and end, and ranks are
 * lost. */
#include "coordinator/relay_state.h"
#include "tests/coordinator/relay_recount.h"
#include "tests/coordinator/relay_sim.h"

enum { POOL = 24, KEYS_MAX = 16, HELD_MAX = 64 };
enum { N_CLIENTS = 700, OPS = 20000, FAMILIES = 3 };

typedef struct {
    uint32_t    n_refs;
    bool        cached;
    bt_page_key key;
    uint64_t    used; /* when */
} page;

typedef struct {
    uint64_t    number, arrival;
    uint32_t    epoch, n_prompt, max_tokens, stop_at, n_out, prefill_rank, n_pages, n_keys;
    uint32_t    pages[POOL];
    bt_page_key keys[KEYS_MAX];
    bool        joined;
} held;

/* A decode rank, as worker/request_pages.c and worker/growth.c have it. */
typedef struct {
    page     pages[POOL];
    held     held[HELD_MAX];
    uint32_t n_held;
    uint64_t clock;
} pool;

typedef struct {
    sim         s;
    pool        pools[MAX_RANKS];
    sim_client *clients;
    bool        aborted[N_CLIENTS];
    uint32_t    n_clients, n_tickets, n_refused, n_retracted, n_found, n_late, n_checks;
} cell;

static page *find_key(pool *p, const bt_page_key *key)
{
    for (uint32_t i = 0; i < POOL; i++)
        if (p->pages[i].cached && p->pages[i].key.lo == key->lo && p->pages[i].key.hi == key->hi)
            return &p->pages[i];
    return NULL;
}

static uint32_t n_in_use(const pool *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < POOL; i++)
        n += p->pages[i].n_refs > 0;
    return n;
}

static bool take_page(pool *p, held *h)
{
    page *best = NULL;

    for (uint32_t i = 0; i < POOL; i++) {
        page *x = &p->pages[i];

        if (x->n_refs == 0 &&
            (best == NULL || (best->cached && (!x->cached || x->used < best->used))))
            best = x;
    }
    if (best == NULL) return false;
    *best                  = (page){.n_refs = 1, .used = ++p->clock};
    h->pages[h->n_pages++] = (uint32_t)(best - p->pages);
    return true;
}

static void give_back(pool *p, held *h)
{
    while (h->n_pages > 0) {
        page *x = &p->pages[h->pages[--h->n_pages]];

        BT_ASSERT(x->n_refs > 0);
        x->n_refs--;
        x->used = ++p->clock;
    }
}

static held *find_held(pool *p, uint64_t number)
{
    for (uint32_t i = 0; i < p->n_held; i++)
        if (p->held[i].number == number) return &p->held[i];
    return NULL;
}

static void drop(cell *c, uint32_t rank, held *h)
{
    pool *p = &c->pools[rank];

    give_back(p, h);
    sim_up(&c->s, rank, sim_in(sim_released(h->number), h->epoch));
    *h = p->held[--p->n_held];
}

static void on_reserve(cell *c, uint32_t rank, const bt_down_reserve *m)
{
    pool    *p      = &c->pools[rank];
    held    *h      = &p->held[p->n_held];
    uint32_t n_keys = (uint32_t)(m->n_prefix_key_bytes / sizeof(bt_page_key)), n_found, n_pages;
    bool     fits   = true;
    bt_up    ticket;

    BT_ASSERT(p->n_held < HELD_MAX && n_keys <= KEYS_MAX);
    *h = (held){.number       = m->request,
                .arrival      = m->arrival,
                .epoch        = m->epoch,
                .n_prompt     = m->n_prompt,
                .max_tokens   = m->sampling.max_tokens,
                .stop_at      = (uint32_t)m->sampling.seed,
                .n_out        = m->n_replay,
                .prefill_rank = m->prefill_rank,
                .n_keys       = n_keys};
    if (n_keys > 0) memcpy(h->keys, m->prefix_keys, n_keys * sizeof(bt_page_key));
    while (h->n_pages < n_keys && (h->n_pages + 1) * SIM_PAGE < m->n_prompt) {
        page *x = find_key(p, &h->keys[h->n_pages]);

        if (x == NULL) break;
        x->n_refs++;
        h->pages[h->n_pages++] = (uint32_t)(x - p->pages);
    }
    n_found = h->n_pages;
    while (fits && h->n_pages < sim_pages(m->n_prompt + m->n_replay + 1))
        fits = take_page(p, h);
    fits = fits && n_in_use(p) + p->n_held <= POOL; /* a page is left for each of the others */
    c->n_tickets++;
    if (!fits) {
        give_back(p, h);
        c->n_refused++;
        sim_up(&c->s, rank, sim_in(sim_ticket(m->request, 0), m->epoch));
        return;
    }
    n_pages              = sim_pages(m->n_prompt);
    ticket               = sim_in(sim_ticket(m->request, n_pages), m->epoch);
    ticket.u.ticket.held = n_found * SIM_PAGE;
    for (uint32_t i = 0; i < n_pages; i++)
        ticket.u.ticket.pages[i].id = h->pages[i];
    c->n_found += n_found;
    p->n_held++;
    sim_up(&c->s, rank, ticket);
}

static void take_down(cell *c, uint32_t rank)
{
    sim_rank *k = &c->s.ranks[rank];
    bt_down   m;
    held     *h;

    if (rank < c->s.cfg.n_prefill || k->n_down == 0) {
        sim_take_down(&c->s, rank);
        return;
    }
    m          = k->down[k->down_at];
    k->down_at = (k->down_at + 1) % FIFO;
    k->n_down--;
    if (m.kind == BT_DOWN_RESERVE) on_reserve(c, rank, &m.u.reserve);
    if (m.kind == BT_DOWN_ABORT) {
        h = find_held(&c->pools[rank], m.u.abort.request);
        if (h != NULL)
            drop(c, rank, h);
        else
            sim_up(&c->s, rank, sim_in(sim_released(m.u.abort.request), m.u.abort.epoch));
    }
    bt_down_free(&m);
}

/* As long as it lacks one, the youngest gives way; false: it did so itself. */
static bool grow(cell *c, uint32_t rank, uint64_t number)
{
    pool *p = &c->pools[rank];
    held *h, *young;

    while (h = find_held(p, number), sim_pages(h->n_prompt + h->n_out + 1) > h->n_pages) {
        uint64_t gone;

        if (take_page(p, h)) continue;
        young = h;
        for (uint32_t i = 0; i < p->n_held; i++)
            if (p->held[i].arrival > young->arrival) young = &p->held[i];
        gone = young->number;
        c->n_retracted++;
        sim_up(&c->s, rank, sim_retracted(gone, young->epoch));
        drop(c, rank, young);
        if (gone == number) return false;
    }
    return true;
}

static bt_finish finish_of(const held *h, uint32_t i)
{
    if (i == h->stop_at) return BT_FINISH_EOS;
    return i + 1 == h->max_tokens ? BT_FINISH_LENGTH : BT_FINISH_NONE;
}

/* The prompt is there: its full pages can be found from now on. */
static void join(cell *c, uint32_t rank, held *h)
{
    pool *p = &c->pools[rank];

    for (uint32_t i = 0; i < h->n_keys; i++)
        if (find_key(p, &h->keys[i]) == NULL) {
            p->pages[h->pages[i]].cached = true;
            p->pages[h->pages[i]].key    = h->keys[i];
        }
    h->joined = true;
    if (h->n_out > 0) return;
    h->n_out = 1; /* as the prefill rank says */
    grow(c, rank, h->number);
}

static void step_prefill(cell *c, uint32_t rank)
{
    sim_rank *k = &c->s.ranks[rank];
    sim_work *w;
    held     *h;
    bt_finish finish;

    if (k->n_work == 0) return;
    w      = &k->work[sim_random(&c->s, k->n_work)];
    finish = sim_finish(w, 0);
    sim_say_first(&c->s, rank, w);
    h = find_held(&c->pools[w->decode_rank], w->number);
    if (h != NULL && finish == BT_FINISH_NONE) join(c, w->decode_rank, h);
    sim_drop(&c->s, rank, w);
}

static void step_decode(cell *c, uint32_t rank)
{
    pool     *p = &c->pools[rank];
    held     *h;
    bt_finish finish;

    if (p->n_held == 0) return;
    h = &p->held[sim_random(&c->s, p->n_held)];
    if (!h->joined) return;
    finish = finish_of(h, h->n_out);
    sim_up(&c->s, rank,
           sim_in(sim_tokens(h->number, h->n_prompt + h->n_out, sim_token(h->n_prompt, h->n_out),
                             finish),
                  h->epoch));
    h->n_out++;
    if (finish != BT_FINISH_NONE)
        drop(c, rank, h);
    else
        grow(c, rank, h->number);
}

static void step(cell *c, uint32_t rank)
{
    if (rank < c->s.cfg.n_prefill)
        step_prefill(c, rank);
    else
        step_decode(c, rank);
}

/* ---- what must be true */

/* Pages that the request would take of the rank if it came now. */
static uint32_t needs(cell *c, uint32_t rank, const bt_relay_request *q)
{
    uint32_t n = sim_pages(q->n_prompt + q->n_out + 1);

    for (uint32_t i = 0; i < q->n_keys && (i + 1) * SIM_PAGE < q->n_prompt; i++) {
        page *x = find_key(&c->pools[rank], &q->keys[i]);

        if (x == NULL) break;
        n -= x->n_refs > 0;
    }
    return n;
}

/* Nothing is under way: counts are those of the ranks' pools, and the oldest request waits only
 * where it does not fit. */
static void check(cell *c)
{
    sim                    *s = &c->s;
    const bt_relay_request *q;
    bool                    fits = false;

    for (bool busy = true; busy;) {
        busy = false;
        for (uint32_t i = 0; i < s->cfg.n_ranks; i++) {
            busy = busy || s->ranks[i].n_down > 0 || s->ranks[i].n_up > 0;
            take_down(c, i);
            sim_take_up(s, i);
        }
    }
    recount(s->relay);
    for (uint32_t i = s->cfg.n_prefill; i < s->cfg.n_ranks; i++)
        EXPECT_EQ(s->relay->ranks[i].taken_pages, n_in_use(&c->pools[i]));
    sim_loads(s);
    c->n_checks++;
    q = s->relay->queue.first;
    for (uint32_t i = s->cfg.n_prefill; q != NULL && i < s->cfg.n_ranks; i++)
        fits = fits ||
               (bt_relay_decodes(s->relay, i) && s->relay->ranks[i].refused_until_ns <= s->now &&
                n_in_use(&c->pools[i]) + c->pools[i].n_held + needs(c, i, q) <= POOL &&
                bt_rank_has_rows(&s->relay->ranks[i], 1));
    c->n_late += fits && s->relay->blocked == BT_BLOCKED_DECODE;
}

static void submit(cell *c)
{
    sim     *s = &c->s;
    uint32_t n = c->n_clients, n_prompt, max_tokens;
    char     name[24];

    if (n == N_CLIENTS || sim_loads(s).n_waiting > 12) return;
    s->first_token     = sim_random(s, FAMILIES);
    s->prompt_logprobs = 0;
    s->cache_salt      = sim_random(s, 4) == 0 ? "salt" : NULL;
    n_prompt           = 1 + sim_random(s, 48);
    max_tokens         = 1 + sim_random(s, 40);
    snprintf(name, sizeof(name), "r%u", n);
    EXPECT_EQ(sim_submit(s, &c->clients[n], name, n_prompt, max_tokens, sim_random(s, 60)), BT_OK);
    c->n_clients++;
}

static void act(cell *c, bool comes)
{
    sim     *s    = &c->s;
    uint32_t rank = sim_random(s, s->cfg.n_ranks), n;

    switch (sim_random(s, 16)) {
    case 0:
        if (comes) submit(c);
        break;
    case 1:
        n = c->n_clients == 0 ? 0 : sim_random(s, c->n_clients);
        if (!comes || c->n_clients == 0 || c->clients[n].ends > 0 || sim_random(s, 8) > 0) break;
        c->aborted[n] = true;
        bt_relay_abort_client(s->relay, &c->clients[n], c->clients[n].name, "gone");
        break;
    case 2:
        s->now += 20 * BT_NS_PER_MS;
        bt_relay_tick(s->relay, s->now);
        break;
    case 3:
    case 4:
    case 5:
    case 6: take_down(c, rank); break;
    case 7:
    case 8:
    case 9:
    case 10: sim_take_up(s, rank); break;
    default: step(c, rank);
    }
}

/* With all that it holds. */
static void lose(cell *c, uint32_t rank)
{
    memset(&c->pools[rank], 0, sizeof(c->pools[rank]));
    sim_lose(&c->s, rank);
    recount(c->s.relay);
}

/* loses: a decode rank at one time, a prefill rank at another. */
static void play(uint64_t seed, uint32_t n_prefill, uint32_t n_decode, bool loses,
                 uint32_t *n_retracted, uint32_t *n_found)
{
    cell *c = calloc(1, sizeof(*c));

    NEED(c != NULL);
    c->clients = calloc(N_CLIENTS, sizeof(*c->clients));
    NEED(c->clients != NULL);
    sim_init_as(&c->s, n_prefill, n_decode, n_prefill + n_decode, POOL, loses);
    c->s.state = seed;
    for (uint32_t i = 0; i < OPS; i++) {
        act(c, true);
        if (loses && i == OPS / 3 + 1) lose(c, n_prefill);
        if (loses && i == OPS / 2 + 1) lose(c, 0);
        if (i % 50 == 0) check(c);
    }
    for (uint32_t i = 0; i < 200000 && sim_loads(&c->s).n_waiting + sim_loads(&c->s).n_running > 0;
         i++)
        act(c, false);
    check(c);
    for (uint32_t n = 0; n < c->n_clients; n++)
        if (!c->aborted[n])
            sim_expect_done(&c->clients[n]);
        else
            EXPECT_EQ(c->clients[n].ends, 1);
    for (uint32_t i = 0; i < c->s.cfg.n_ranks; i++)
        EXPECT_EQ(c->s.relay->ranks[i].taken_pages, 0);
    EXPECT(c->n_refused < c->n_tickets / 8 && c->n_late < c->n_checks / 10);
    *n_retracted += c->n_retracted;
    *n_found += c->n_found;
    sim_fini(&c->s);
    free(c->clients);
    free(c);
}

static void play_several(uint32_t n_prefill, uint32_t n_decode, bool loses)
{
    uint32_t n_retracted = 0, n_found = 0;

    for (uint64_t seed = 1; seed <= 4; seed++)
        play(seed, n_prefill, n_decode, loses, &n_retracted, &n_found);
    EXPECT(n_retracted > 50 && n_found > 1000);
}

static void relay_counts_what_its_ranks_hold(void) { play_several(1, 2, false); }
static void relay_counts_what_is_held_after_ranks_are_lost(void) { play_several(2, 3, true); }

static const bt_test TESTS[] = {
    BT_TEST(relay_counts_what_its_ranks_hold),
    BT_TEST(relay_counts_what_is_held_after_ranks_are_lost),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
