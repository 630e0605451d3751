/* tests/coordinator/relay_sim.h - a cell in a box: a relay, scripted ranks, streams that keep order
 * but not pace, and clients that count.
 *
 * Time stands still unless the test moves it.  Messages to and from a rank wait in two FIFOs until
 * the simulation delivers them; which FIFO comes next is drawn from a seed. */
#ifndef BT_TESTS_COORDINATOR_RELAY_SIM_H
#define BT_TESTS_COORDINATOR_RELAY_SIM_H

#include "coordinator/relay_state.h"
#include "coordinator/relay_view.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "tests/coordinator/relay_words.h"
#include "tests/support/test.h"

enum { MAX_RANKS = 9, MAX_LIVE = 4096, FIFO = 8192, SIM_PAGE = 4, SIM_VOCAB = 50 };

typedef struct {
    int          ends, n;
    uint32_t     n_prompt, max_tokens, stop_at; /* the end-of-text token comes at index stop_at */
    uint32_t     cut_at; /* not 0: the client ends it (of choices: choice 1) with so many tokens */
    uint32_t     n_choices, n_of[4];
    uint32_t     ended;    /* a bit for each choice that has had its last token */
    uint32_t     n_placed; /* how often it was given to its ranks */
    uint64_t     number;
    uint32_t     ids[64];
    bt_relay_end end;
    uint32_t     prompt_logprobs, n_logprobs; /* wanted, and given, of its prompt */
    char         message[256], name[24];
} sim_client;

/* A request as a rank knows it. */
typedef struct {
    uint64_t number;
    uint32_t n_prompt, max_tokens, n_pages, n_out, stop_at, decode_rank, prefill_rank, epoch;
    uint32_t prompt_logprobs, n_told; /* wanted, and told */
    uint64_t arrival;
    bool     joined, prefilling;
    uint8_t  forms; /* how the prompt was computed */
} sim_work;

typedef struct {
    uint32_t free_pages, n_work;
    sim_work work[256];
    bt_up    up[FIFO]; /* to the relay */
    bt_down  down[FIFO];
    uint32_t up_at, n_up, down_at, n_down;
    bool     dead;
    uint32_t epoch[2]; /* of the groups, as it has heard last */
} sim_rank;

typedef struct {
    bt_relay       *relay;
    bt_relay_config cfg;
    bt_relay_rank   limits[MAX_RANKS];
    sim_rank       *ranks; /* [MAX_RANKS] */
    uint64_t        now, state;
    uint32_t        last_stuck, prompt_logprobs, n_constraint_bytes;
    uint32_t        first_token; /* of prompts; all others are 0 */
    const char     *cache_salt;  /* of what is submitted */
    int             n_stuck, refuse_percent, fail_percent, n_retracted;
    uint32_t        n_down[BT_DOWN_SHUTDOWN + 1];
    uint64_t        n_arrived;
} sim;

static inline uint32_t sim_random(sim *s, uint32_t below)
{
    s->state = s->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s->state >> 33) % below;
}

static inline uint32_t sim_token(uint32_t n_prompt, uint32_t i)
{
    return (n_prompt * 3 + i) % SIM_VOCAB;
}

/* Two salts, or none. */
static inline const char *sim_any_salt(sim *s)
{
    static const char *const SALTS[] = {NULL, NULL, "a", "b"};

    return SALTS[sim_random(s, 4)];
}

/* ---- the relay's callbacks */

static void sim_send(void *ctx, uint32_t rank, bt_down *m)
{
    sim      *s = ctx;
    sim_rank *k = &s->ranks[rank];

    if (k->dead) {
        bt_down_free(m);
        return;
    }
    BT_ASSERT(k->n_down < FIFO);
    s->n_down[m->kind]++;
    k->down[(k->down_at + k->n_down++) % FIFO] = *m;
}

static inline bt_finish sim_on_token(void *client, const bt_token *t)
{
    sim_client *c      = client;
    bt_finish   finish = t->finish;

    EXPECT_EQ(c->ends, 0);
    NEED(t->choice < c->n_choices);
    EXPECT_EQ(t->position, c->n_prompt + c->n_of[t->choice]); /* in order, each once */
    EXPECT((c->ended >> t->choice & 1) == 0 && t->id < SIM_VOCAB);
    if (c->n_choices == 1 && c->n < 64) c->ids[c->n] = t->id;
    c->n += c->n_choices == 1;
    if (++c->n_of[t->choice] == c->cut_at && (c->n_choices == 1 || t->choice == 1))
        finish = BT_FINISH_STOP_STRING;
    if (finish != BT_FINISH_NONE) c->ended |= 1u << t->choice;
    return finish;
}

static inline void sim_on_end(void *client, const bt_relay_end *end)
{
    sim_client *c = client;

    EXPECT(end->code != GRPC_STATUS_OK || c->ended == (1u << c->n_choices) - 1);
    c->ends++;
    c->end = *end;
    snprintf(c->message, sizeof(c->message), "%s", end->message);
}

static inline void sim_on_prompt(void *client, const bt_up_prompt_logprobs *m)
{
    sim_client *c = client;

    EXPECT_EQ(c->ends, 0);
    EXPECT(m->n_top + 1 == c->prompt_logprobs && m->position + m->n <= c->n_prompt);
    c->n_logprobs += m->n;
}

static inline void sim_on_placed(void *client)
{
    sim_client *c = client;

    EXPECT_EQ(c->ends, 0);
    c->n_placed++;
}

static void sim_on_stuck(void *ctx, uint32_t rank, const char *reason)
{
    EXPECT(strstr(reason, "no progress") != NULL || strstr(reason, "too long") != NULL ||
           strstr(reason, "was heard of the spare") != NULL);
    ((sim *)ctx)->n_stuck++;
    ((sim *)ctx)->last_stuck = rank;
}

static inline bt_status sim_relay_create(sim *s, bt_relay **relay_out)
{
    bt_relay_events events = {
        .client = {sim_on_token, sim_on_prompt, sim_on_placed, sim_on_end},
        .send   = sim_send,
        .stuck  = sim_on_stuck,
        .ctx    = s
    };

    return bt_relay_create(&s->cfg, &events, relay_out);
}

static inline void sim_init_as(sim *s, uint32_t n_prefill, uint32_t n_decode, uint32_t n_ranks,
                               uint32_t n_pages, bool replace)
{
    memset(s, 0, sizeof(*s));
    s->ranks = calloc(MAX_RANKS, sizeof(sim_rank));
    s->now   = 1000 * BT_NS_PER_S;
    s->state = 99;
    for (uint32_t i = 0; i < MAX_RANKS; i++) {
        s->limits[i]           = (bt_relay_rank){.n_pages = n_pages, .max_rows = 16};
        s->ranks[i].free_pages = n_pages;
    }
    s->cfg          = (bt_relay_config){.n_ranks   = n_ranks,
                                        .n_prefill = n_prefill,
                                        .n_decode  = n_decode,
                                        .ranks     = s->limits,
                                        .epoch     = EPOCH,

                                        .verdict_ns     = 100 * BT_NS_PER_MS,
                                        .page_tokens    = SIM_PAGE,
                                        .vocab_size     = SIM_VOCAB,
                                        .queue_tokens   = 100000,
                                        .queue_ns       = 30 * BT_NS_PER_S,
                                        .rank_quiet_ns  = 20 * BT_NS_PER_S,
                                        .stall_ns       = 60 * BT_NS_PER_S,
                                        .prefill_window = 64,
                                        .first_number   = 1,
                                        .prefix_seed    = 1}; /* else keys share slots now and then */
    s->cfg.replace  = replace;
    s->cfg.n_spares = n_decode == 0 ? 0 : n_ranks - n_prefill - n_decode;
    EXPECT_EQ(sim_relay_create(s, &s->relay), BT_OK);
    for (uint32_t i = 0; i < n_ranks && s->relay != NULL; i++)
        bt_relay_ready(s->relay, i, s->now);
}

static inline void sim_init(sim *s, uint32_t n_prefill, uint32_t n_decode, uint32_t n_ranks,
                            uint32_t n_pages)
{
    sim_init_as(s, n_prefill, n_decode, n_ranks, n_pages, false);
}

static inline void sim_fini(sim *s)
{
    bt_relay_destroy(s->relay);
    for (uint32_t i = 0; i < MAX_RANKS; i++) {
        sim_rank *k = &s->ranks[i];

        for (; k->n_up > 0; k->n_up--)
            bt_up_free(&k->up[(k->up_at + k->n_up - 1) % FIFO]);
        for (; k->n_down > 0; k->n_down--)
            bt_down_free(&k->down[(k->down_at + k->n_down - 1) % FIFO]);
    }
    free(s->ranks);
}

/* stop_at >= max_tokens: it ends by length.  It travels as the seed. */
static inline bt_status sim_submit_choices(sim *s, sim_client *c, const char *name,
                                           uint32_t n_prompt, uint32_t max_tokens, uint32_t stop_at,
                                           uint32_t n_choices)
{
    grpc_status_code    code = GRPC_STATUS_OK;
    bt_relay_submission r    = {
           .name       = name,
           .cache_salt = s->cache_salt,
           .n_prompt   = n_prompt,
           .prompt     = words_calloc(n_prompt, sizeof(uint32_t)),
           .sampling   = {.max_tokens         = max_tokens,
                          .seed               = stop_at,
                          .n_stop             = 1,
                          .prompt_logprobs    = s->prompt_logprobs,
                          .n_constraint_bytes = s->n_constraint_bytes},
           .n_choices  = n_choices,
           .arrival    = ++s->n_arrived,
    };
    bt_status st;

    *c                     = (sim_client){.n_prompt        = n_prompt,
                                          .max_tokens      = max_tokens,
                                          .stop_at         = stop_at,
                                          .n_choices       = n_choices,
                                          .prompt_logprobs = s->prompt_logprobs};
    r.sampling.stop_tokens = words_calloc(1, sizeof(uint32_t));
    snprintf(c->name, sizeof(c->name), "%s", name);
    ((uint32_t *)r.prompt)[0] = s->first_token;
    st                        = bt_relay_submit(s->relay, &r, c, s->now, &c->number, &code);
    if (st != BT_OK) c->end.code = code;
    bt_free(r.prompt);
    bt_sampling_free(&r.sampling);
    return st;
}

static inline bt_status sim_submit(sim *s, sim_client *c, const char *name, uint32_t n_prompt,
                                   uint32_t max_tokens, uint32_t stop_at)
{
    return sim_submit_choices(s, c, name, n_prompt, max_tokens, stop_at, 1);
}

/* ---- ranks */

static inline void sim_up(sim *s, uint32_t rank, bt_up m)
{
    sim_rank *k = &s->ranks[rank];

    BT_ASSERT(k->n_up < FIFO);
    k->up[(k->up_at + k->n_up++) % FIFO] = m;
}

/* The same message about a placement of another epoch. */
static inline bt_up sim_in(bt_up m, uint32_t epoch)
{
    switch (m.kind) {
    case BT_UP_TICKET: m.u.ticket.epoch = epoch; break;
    case BT_UP_TOKENS: m.u.tokens.tokens[0].epoch = epoch; break;
    case BT_UP_FAILED: m.u.failed.epoch = epoch; break;
    case BT_UP_RETRACTED: m.u.retracted.epoch = epoch; break;
    case BT_UP_FORM_MAP: m.u.form_map.epoch = epoch; break;
    case BT_UP_PROMPT_LOGPROBS: m.u.prompt_logprobs.epoch = epoch; break;
    default: m.u.released.epoch = epoch;
    }
    return m;
}

/* Of n tokens of the prompt from `position` on. */
static inline bt_up sim_prompt_logprobs(uint64_t number, uint32_t position, uint32_t n,
                                        uint32_t n_top)
{
    bt_up                  m = {.kind = BT_UP_PROMPT_LOGPROBS};
    bt_up_prompt_logprobs *p = &m.u.prompt_logprobs;

    *p = (bt_up_prompt_logprobs){
        .request = number, .epoch = EPOCH, .position = position, .n = n, .n_top = n_top};
    p->logprobs     = words_calloc(n, sizeof(*p->logprobs));
    p->top_ids      = words_calloc((size_t)n * n_top, sizeof(*p->top_ids));
    p->top_logprobs = words_calloc((size_t)n * n_top, sizeof(*p->top_logprobs));
    return m;
}

static inline bt_up sim_form_map(uint64_t number, size_t n_bytes, uint8_t of)
{
    bt_up m = {.kind = BT_UP_FORM_MAP};

    m.u.form_map.request          = number;
    m.u.form_map.epoch            = EPOCH;
    m.u.form_map.n_form_map_bytes = n_bytes;
    m.u.form_map.form_map         = words_calloc(1, n_bytes);
    memset(m.u.form_map.form_map, of, n_bytes);
    return m;
}

/* Straight into the relay, past the FIFO. */
static inline void sim_tell(sim *s, uint32_t rank, bt_up m)
{
    bt_relay_message(s->relay, rank, &m, s->now);
    bt_up_free(&m);
}

static inline uint32_t sim_pages(uint32_t n_tokens) { return (n_tokens + SIM_PAGE - 1) / SIM_PAGE; }

static inline sim_work *sim_find(sim_rank *k, uint64_t number)
{
    for (uint32_t i = 0; i < k->n_work; i++)
        if (k->work[i].number == number) return &k->work[i];
    return NULL;
}

static inline void sim_drop(sim *s, uint32_t rank, sim_work *w)
{
    sim_rank *k = &s->ranks[rank];

    k->free_pages += w->n_pages;
    sim_up(s, rank, sim_in(sim_released(w->number), w->epoch));
    *w = k->work[--k->n_work];
}

static inline void sim_on_reserve(sim *s, uint32_t rank, const bt_down_reserve *m)
{
    sim_rank *k       = &s->ranks[rank];
    uint32_t  n_pages = sim_pages(m->n_prompt + m->n_replay + 1);

    for (uint32_t i = 0; i < m->n_replay; i++)
        EXPECT_EQ(m->replay[i], sim_token(m->n_prompt, i));
    EXPECT((m->form_map != NULL) == (m->n_replay > 0));
    if ((int)sim_random(s, 100) < s->refuse_percent || n_pages > k->free_pages) {
        sim_up(s, rank, sim_in(sim_ticket(m->request, 0), m->epoch));
        return;
    }
    BT_ASSERT(k->n_work < 256);
    k->work[k->n_work++] = (sim_work){.number       = m->request,
                                      .epoch        = m->epoch,
                                      .prefill_rank = m->prefill_rank,
                                      .n_prompt     = m->n_prompt,
                                      .max_tokens   = m->sampling.max_tokens,
                                      .stop_at      = (uint32_t)m->sampling.seed,
                                      .n_pages      = n_pages,
                                      .n_out        = m->n_replay,
                                      .arrival      = m->arrival,
                                      .decode_rank  = rank};
    if (m->prefill_rank == rank)
        k->work[k->n_work - 1].prompt_logprobs = m->sampling.prompt_logprobs;
    k->free_pages -= n_pages;
    sim_up(s, rank, sim_in(sim_ticket(m->request, n_pages), m->epoch));
}

/* Those of its order, or others at each placement. */
static inline uint8_t sim_forms(sim *s, const bt_down_prefill *m)
{
    return m->form_map != NULL ? *(const uint8_t *)m->form_map : (uint8_t)(1 + sim_random(s, 255));
}

static inline void sim_on_prefill(sim *s, uint32_t rank, const bt_down_prefill *m)
{
    sim_rank *k = &s->ranks[rank];
    uint32_t  n_pages;

    if (m->decode_rank == rank) { /* both roles: it is here already, unless aborted meanwhile */
        sim_work *w = sim_find(k, m->request);

        if (w != NULL) w->joined = true;
        if (w != NULL) w->forms = sim_forms(s, m);
        return;
    }
    n_pages = (m->n_prompt + SIM_PAGE - 1) / SIM_PAGE;
    EXPECT(n_pages <= k->free_pages);
    BT_ASSERT(k->n_work < 256);
    k->work[k->n_work++] = (sim_work){.number          = m->request,
                                      .epoch           = m->epoch,
                                      .n_prompt        = m->n_prompt,
                                      .max_tokens      = m->sampling.max_tokens,
                                      .stop_at         = (uint32_t)m->sampling.seed,
                                      .n_pages         = n_pages,
                                      .prompt_logprobs = m->sampling.prompt_logprobs,
                                      .decode_rank     = m->decode_rank,
                                      .prefilling      = true,
                                      .forms           = sim_forms(s, m)};
    k->free_pages -= n_pages;
}

static inline bool sim_sits(const bt_down_regroup *m, uint32_t rank)
{
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t i = 0; i < m->groups[g].n; i++)
            if (m->groups[g].ranks[i] == rank) return true;
    return false;
}

/* As a rank does: what waits for a lost one is retracted, what was for a lost one is dropped. */
static inline void sim_on_regroup(sim *s, uint32_t rank, const bt_down_regroup *m)
{
    sim_rank *k = &s->ranks[rank];

    if (m->prepare) {
        EXPECT(sim_sits(m, rank));
        sim_up(s, rank, (bt_up){.kind = BT_UP_READY});
        return;
    }
    EXPECT(sim_sits(m, rank) || k->n_work == 0);
    EXPECT(m->groups[0].epoch >= k->epoch[0] && m->groups[1].epoch >= k->epoch[1]);
    EXPECT(m->epoch >= m->groups[0].epoch && m->epoch >= m->groups[1].epoch);
    k->epoch[0] = m->groups[0].epoch;
    k->epoch[1] = m->groups[1].epoch;
    for (uint32_t i = k->n_work; i-- > 0;) {
        sim_work *w = &k->work[i];

        if (w->prefilling && !sim_sits(m, w->decode_rank)) {
            sim_drop(s, rank, w);
        } else if (!w->prefilling && !w->joined && !sim_sits(m, w->prefill_rank)) {
            sim_up(s, rank, sim_retracted(w->number, w->epoch));
            sim_drop(s, rank, w);
        }
    }
}

/* Its process is gone, with all that it has not said yet, and the relay hears of it. */
static inline void sim_lose(sim *s, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];

    k->dead = true;
    for (; k->n_up > 0; k->n_up--)
        bt_up_free(&k->up[(k->up_at + k->n_up - 1) % FIFO]);
    for (; k->n_down > 0; k->n_down--)
        bt_down_free(&k->down[(k->down_at + k->n_down - 1) % FIFO]);
    k->n_work     = 0;
    k->free_pages = s->limits[rank].n_pages;
    bt_relay_lose(s->relay, rank, s->now);
}

static inline void sim_take_down(sim *s, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];
    bt_down   m;
    sim_work *w;

    if (k->n_down == 0) return;
    m          = k->down[k->down_at];
    k->down_at = (k->down_at + 1) % FIFO;
    k->n_down--;
    switch (m.kind) {
    case BT_DOWN_RESERVE: sim_on_reserve(s, rank, &m.u.reserve); break;
    case BT_DOWN_PREFILL: sim_on_prefill(s, rank, &m.u.prefill); break;
    case BT_DOWN_REGROUP: sim_on_regroup(s, rank, &m.u.regroup); break;
    case BT_DOWN_ABORT:
        w = sim_find(k, m.u.abort.request);
        if (w != NULL)
            sim_drop(s, rank, w);
        else
            sim_up(s, rank, sim_in(sim_released(m.u.abort.request), m.u.abort.epoch));
        break;
    default: break;
    }
    bt_down_free(&m);
}

static inline void sim_take_up(sim *s, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];
    bt_up     m;

    if (k->n_up == 0) return;
    m        = k->up[k->up_at];
    k->up_at = (k->up_at + 1) % FIFO;
    k->n_up--;
    if (m.kind == BT_UP_READY)
        bt_relay_ready(s->relay, rank, s->now);
    else
        bt_relay_message(s->relay, rank, &m, s->now);
    bt_up_free(&m);
}

static inline bt_finish sim_finish(const sim_work *w, uint32_t i)
{
    if (i == w->stop_at) return BT_FINISH_EOS;
    return i + 1 == w->max_tokens ? BT_FINISH_LENGTH : BT_FINISH_NONE;
}

/* A page for the work's next token; false: it was the youngest, and has been retracted. */
static inline bool sim_grow(sim *s, uint32_t rank, uint64_t number)
{
    sim_rank *k = &s->ranks[rank];
    sim_work *w = sim_find(k, number);

    while (sim_pages(w->n_prompt + w->n_out + 1) > w->n_pages) {
        sim_work *young = NULL;
        uint64_t  gone;

        if (k->free_pages > 0) {
            k->free_pages--;
            w->n_pages++;
            return true;
        }
        for (uint32_t i = 0; i < k->n_work; i++)
            if (!k->work[i].prefilling && (young == NULL || k->work[i].arrival > young->arrival))
                young = &k->work[i];
        gone = young->number;
        s->n_retracted++;
        sim_up(s, rank, sim_retracted(gone, young->epoch));
        sim_drop(s, rank, young);
        if (gone == number) return false;
        w = sim_find(k, number);
    }
    return true;
}

/* Logprobs of some of the prompt's tokens, as they are computed; false: they are told. */
static inline bool sim_tell_prompt(sim *s, uint32_t rank, sim_work *w)
{
    uint32_t left = w->n_prompt - 1 - w->n_told, n;

    if (w->prompt_logprobs == 0 || left == 0) return false;
    n = 1 + sim_random(s, left);
    sim_up(
        s, rank,
        sim_in(sim_prompt_logprobs(w->number, 1 + w->n_told, n, w->prompt_logprobs - 1), w->epoch));
    w->n_told += n;
    return true;
}

/* How the prompt was computed, and the first token. */
static inline void sim_say_first(sim *s, uint32_t rank, const sim_work *w)
{
    size_t n_bytes = sim_pages(w->n_prompt) * (size_t)BT_PAGE_MAP_BYTES;

    sim_up(s, rank, sim_in(sim_form_map(w->number, n_bytes, w->forms), w->epoch));
    sim_up(s, rank,
           sim_in(sim_tokens(w->number, w->n_prompt, sim_token(w->n_prompt, 0), sim_finish(w, 0)),
                  w->epoch));
}

/* One of the rank's requests moves by one token. */
static inline void sim_step(sim *s, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];
    sim_work *w, *there;
    uint64_t  number;

    if (k->n_work == 0) return;
    w      = &k->work[sim_random(s, k->n_work)];
    number = w->number;
    if ((int)sim_random(s, 1000) < s->fail_percent && (w->joined || w->prefilling)) {
        sim_up(s, rank, sim_in(sim_failed(w->number, 13), w->epoch));
        sim_drop(s, rank, w);
        return;
    }
    if ((w->prefilling || w->joined) && sim_tell_prompt(s, rank, w)) return;
    if (w->prefilling) {
        bt_finish finish = sim_finish(w, 0);

        sim_say_first(s, rank, w);
        there = sim_find(&s->ranks[w->decode_rank], w->number);
        if (there != NULL && finish == BT_FINISH_NONE) {
            there->joined = true; /* handed over */
            there->forms  = w->forms;
            /* It says the first token again, but not before the prompt's logprobs. */
            if (w->prompt_logprobs != 0 && there->n_out == 0) there->n_out = 1;
        }
        sim_drop(s, rank, w);
    } else if (w->joined) {
        bt_finish finish = sim_finish(w, w->n_out);

        if (!sim_grow(s, rank, w->number)) return;
        w = sim_find(k, number);
        if (w->n_out == 0)
            sim_say_first(s, rank, w);
        else
            sim_up(s, rank,
                   sim_in(sim_tokens(w->number, w->n_prompt + w->n_out,
                                     sim_token(w->n_prompt, w->n_out), finish),
                          w->epoch));
        w->n_out++;
        if (finish != BT_FINISH_NONE) sim_drop(s, rank, w);
    }
}

/* Anything, anywhere. */
static inline void sim_once(sim *s)
{
    uint32_t rank = sim_random(s, s->cfg.n_ranks);

    switch (sim_random(s, 3)) {
    case 0: sim_take_down(s, rank); break;
    case 1: sim_take_up(s, rank); break;
    default: sim_step(s, rank);
    }
}

/* Until nothing moves any more: no work, no message under way. */
static inline void sim_settle(sim *s)
{
    for (int i = 0; i < 400000; i++) {
        bool busy = false;

        for (uint32_t r = 0; r < s->cfg.n_ranks; r++)
            busy = busy || s->ranks[r].n_up > 0 || s->ranks[r].n_down > 0 || s->ranks[r].n_work > 0;
        if (!busy) return;
        sim_once(s);
        if (i % 64 == 0) {
            s->now += 10 * BT_NS_PER_MS;
            bt_relay_tick(s->relay, s->now);
        }
    }
}

/* Moves a fresh request of a 1+1 cell to a state by hand. */
typedef enum { AT_QUEUE, AT_RESERVING, AT_PREFILL, AT_DECODE, AT_LAST } sim_at;

static inline void sim_bring(sim *s, sim_client *c, sim_at state)
{
    sim_init(s, 1, 1, 2, 8);
    if (state == AT_QUEUE) { /* another one has all the pages */
        static sim_client big;

        EXPECT_EQ(sim_submit(s, &big, "big", 28, 4, 100), BT_OK);
    }
    EXPECT_EQ(sim_submit(s, c, "a", 6, 10, 100), BT_OK);
    if (state >= AT_PREFILL) sim_tell(s, 1, sim_ticket(c->number, 4));
    if (state >= AT_DECODE)
        sim_tell(s, 0, sim_tokens(c->number, 6, sim_token(6, 0), BT_FINISH_NONE));
}

/* ---- what must be true */

/* What the relay counts, held against its requests one by one. */
static inline bt_relay_loads sim_loads(const sim *s)
{
    static bt_relay_request_view all[MAX_LIVE];
    bt_relay_loads               l;
    uint32_t n = bt_relay_view_requests(s->relay, s->now, all, MAX_LIVE), running = 0;

    for (uint32_t i = 0; i < n; i++)
        running += strcmp(all[i].state, "prefill") == 0 || strcmp(all[i].state, "decode") == 0;
    bt_relay_get_loads(s->relay, &l);
    EXPECT_EQ(l.n_running, running);
    EXPECT_EQ(l.n_waiting, n - running);
    return l;
}

/* Nothing is left: no request, no page, nothing that is counted of either. */
static inline void sim_expect_idle(const sim *s)
{
    EXPECT_EQ(sim_loads(s).n_waiting, 0);
    EXPECT_EQ(sim_loads(s).n_running, 0);
    EXPECT_EQ(sim_loads(s).used_tokens, 0);
    EXPECT_EQ(bt_relay_queued_tokens(s->relay), 0);
    EXPECT(s->relay->placed.first == NULL); /* nor one that has ended */
    EXPECT_EQ(s->relay->numbers.n_used, 0);
    for (uint32_t i = 0; i < s->cfg.n_ranks; i++) {
        bt_relay_rank_view v;

        bt_relay_view_rank(s->relay, i, &v);
        EXPECT(v.taken_pages == 0 && v.n_held == 0 && v.prefill_tokens == 0);
        EXPECT_EQ(s->ranks[i].free_pages, s->limits[i].n_pages);
    }
}

static inline void sim_expect_done(const sim_client *c)
{
    uint32_t n = c->stop_at < c->max_tokens ? c->stop_at + 1 : c->max_tokens;

    EXPECT_EQ(c->ends, 1);
    EXPECT_EQ(c->end.code, GRPC_STATUS_OK);
    EXPECT_EQ(c->end.finish, c->stop_at < c->max_tokens ? BT_FINISH_EOS : BT_FINISH_LENGTH);
    EXPECT_EQ(c->n, n);
    EXPECT(c->n_placed > 0);
    EXPECT(c->prompt_logprobs == 0 || c->n_logprobs >= c->n_prompt - 1);
    for (uint32_t i = 0; i < n && i < 64; i++)
        EXPECT_EQ(c->ids[i], sim_token(c->n_prompt, i));
}

#endif
