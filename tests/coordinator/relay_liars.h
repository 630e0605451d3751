/* tests/coordinator/relay_liars.h - what the ranks of a simulated cell say by what the relay has on
 * its requests: what is due, or, when they lie, anything.
 *
 * Nobody reads what the relay orders. */
#ifndef BT_TESTS_COORDINATOR_RELAY_LIARS_H
#define BT_TESTS_COORDINATOR_RELAY_LIARS_H

#include "tests/coordinator/relay_sim.h"

typedef struct {
    sim      s;
    uint32_t n_lies; /* of ten messages */
    bool     lies;   /* in the message that is made */
} liars;

/* In place of v. */
static inline uint32_t told(liars *c, uint32_t v)
{
    sim *s = &c->s;

    if (!c->lies || sim_random(s, 12) > 0) return v;
    switch (sim_random(s, 5)) {
    case 0: return 0;
    case 1: return UINT32_MAX - sim_random(s, 4);
    case 2: return v + 1;
    case 3: return v - 1;
    default: return sim_random(s, 100);
    }
}

static inline const bt_relay_request *any_request(liars *c)
{
    const bt_relay *r = c->s.relay;
    uint32_t        n = 0;

    for (uint32_t state = 0; state <= BT_ENDED; state++)
        n += r->n_in[state];
    if (n == 0) return NULL;
    n = sim_random(&c->s, n);
    for (const bt_relay_request *q = r->placed.first; q != NULL; q = q->next)
        if (n-- == 0) return q;
    for (const bt_relay_request *q = r->queue.first; q != NULL; q = q->next)
        if (n-- == 0) return q;
    return NULL;
}

/* A copy, to be read only: the request as a rank has it. */
static inline bt_relay_request known(liars *c, const bt_relay_request *q)
{
    bt_relay_request k = *q;

    k.epoch                    = told(c, q->epoch);
    k.sampling.prompt_logprobs = told(c, q->sampling.prompt_logprobs);
    k.n_prompt_logprobs        = told(c, q->n_prompt_logprobs);
    if (c->lies && sim_random(&c->s, 20) == 0)
        k.number = sim_random(&c->s, (uint32_t)c->s.relay->next_number + 2);
    return k;
}

static inline bt_up say_ticket(liars *c, const bt_relay_request *q)
{
    sim     *s     = &c->s;
    uint32_t least = sim_pages(q->n_prompt);
    uint32_t n     = sim_random(s, 20) == 0 ? 0 : told(c, least) % 100;
    bt_up    m     = sim_ticket(q->number, n);

    m.u.ticket.held = told(c, SIM_PAGE * sim_random(s, least + c->lies));
    for (uint32_t i = 0; i < n; i++)
        m.u.ticket.pages[i].id = told(c, sim_random(s, s->limits[0].n_pages));
    if (!c->lies || sim_random(s, 4) > 0) return m;
    m.u.ticket.n_form_map_bytes = 1 + sim_random(s, 200);
    m.u.ticket.form_map         = bt_calloc(1, m.u.ticket.n_form_map_bytes);
    return m;
}

/* The next token of a choice that is open, or one so far ahead; while the first one is missing now
 * and then the next one behind that. */
static inline bt_token any_token(liars *c, const bt_relay_request *q, uint32_t ahead)
{
    sim     *s      = &c->s;
    uint32_t choice = sim_random(s, q->n_choices), n = 0;
    bt_token t;

    for (uint32_t i = 1; i < q->n_choices && q->choices != NULL && q->choices[choice].ended; i++)
        choice = (choice + 1) % q->n_choices;
    if (q->choices != NULL) n = q->choices[choice].n_out;
    if (q->choices != NULL && n == 0 && sim_random(s, 3) == 0 &&
        q->choices[choice].n_early + 1 < q->sampling.max_tokens)
        n = 1 + q->choices[choice].n_early;
    n += ahead;
    t = (bt_token){.request  = q->number,
                   .choice   = told(c, choice),
                   .position = told(c, q->n_prompt + n),
                   .epoch    = q->epoch,
                   .id       = told(c, sim_random(s, SIM_VOCAB)),
                   .cached   = told(c, 0),
                   .n_top    = sim_random(s, 3)};
    for (uint32_t i = 0; i < t.n_top; i++)
        t.top_ids[i] = told(c, sim_random(s, SIM_VOCAB));
    if (n + 1 >= q->sampling.max_tokens)
        t.finish = BT_FINISH_LENGTH;
    else if (sim_random(s, 10) == 0)
        t.finish = BT_FINISH_EOS;
    if (told(c, 1) != 1) t.finish = (bt_finish)sim_random(s, BT_FINISH_STOP_STRING);
    return t;
}

/* A liar brings several, of others too. */
static inline bt_up say_tokens(liars *c, const bt_relay_request *q)
{
    uint32_t n = c->lies ? 1 + sim_random(&c->s, 5) : 1;
    bt_up    m = {
           .kind = BT_UP_TOKENS, .u.tokens = {n, bt_calloc(n, sizeof(bt_token))}
    };

    for (uint32_t i = 0; i < n; i++) {
        bool             other = i > 0 && sim_random(&c->s, 3) == 0;
        bt_relay_request k     = other ? known(c, any_request(c)) : *q;

        m.u.tokens.tokens[i] = any_token(c, &k, other ? 0 : i);
    }
    return m;
}

static inline bt_up say_prompt_logprobs(liars *c, const bt_relay_request *q)
{
    uint32_t at = 1 + q->n_prompt_logprobs, left = at < q->n_prompt ? q->n_prompt - at : 1;
    uint32_t n = told(c, 1 + sim_random(&c->s, left)) % 100;
    uint32_t n_top =
        told(c, q->sampling.prompt_logprobs == 0 ? 0 : q->sampling.prompt_logprobs - 1) % 8;
    bt_up m = sim_prompt_logprobs(q->number, told(c, at), n, n_top);

    for (uint32_t i = 0; i < n * n_top; i++)
        m.u.prompt_logprobs.top_ids[i] = told(c, sim_random(&c->s, SIM_VOCAB));
    return m;
}

static inline bt_up say_form_map(liars *c, const bt_relay_request *q)
{
    size_t n_bytes = told(c, sim_pages(q->n_prompt)) % 100 * (size_t)BT_PAGE_MAP_BYTES;

    return sim_form_map(q->number, n_bytes == 0 ? 1 : n_bytes, (uint8_t)told(c, 1));
}

static inline bt_up say_failed(liars *c, const bt_relay_request *q)
{
    bt_up m = sim_failed(q->number, 1 + sim_random(&c->s, 16));

    if (sim_random(&c->s, 2) == 0) m.u.failed.message[0] = '\0';
    m.u.failed.stands_still = m.u.failed.code == GRPC_STATUS_UNAVAILABLE;
    return m;
}

static inline bt_up say_of(liars *c, bt_up_kind kind, const bt_relay_request *q)
{
    switch (kind) {
    case BT_UP_TICKET: return sim_in(say_ticket(c, q), q->epoch);
    case BT_UP_TOKENS: return say_tokens(c, q);
    case BT_UP_PROMPT_LOGPROBS: return sim_in(say_prompt_logprobs(c, q), q->epoch);
    case BT_UP_FORM_MAP: return sim_in(say_form_map(c, q), q->epoch);
    case BT_UP_FAILED: return sim_in(say_failed(c, q), q->epoch);
    case BT_UP_RETRACTED: return sim_retracted(q->number, q->epoch);
    default: return sim_in(sim_released(q->number), q->epoch);
    }
}

/* What a rank of the placed request has to say next. */
static inline bt_up_kind due(liars *c, const bt_relay_request *q)
{
    sim *s = &c->s;

    if (q->state == BT_ENDED) return BT_UP_RELEASED;
    if (q->state == BT_RESERVING) return BT_UP_TICKET;
    if (sim_random(s, 40) == 0) return BT_UP_RETRACTED;
    if (q->sampling.prompt_logprobs != 0 && 1 + q->n_prompt_logprobs < q->n_prompt)
        return BT_UP_PROMPT_LOGPROBS;
    if (q->state == BT_PREFILL && sim_random(s, 2) == 0) return BT_UP_FORM_MAP;
    return BT_UP_TOKENS;
}

static inline uint32_t speaker(liars *c, bt_up_kind kind, const bt_relay_request *q)
{
    sim *s    = &c->s;
    bool both = q->decode_holds && q->prefill_holds;

    if (c->lies && sim_random(s, 4) == 0) return sim_random(s, s->cfg.n_ranks);
    switch (kind) {
    case BT_UP_TICKET:
    case BT_UP_RETRACTED: return q->decode_rank;
    case BT_UP_PROMPT_LOGPROBS:
    case BT_UP_FORM_MAP: return q->prefill_rank;
    case BT_UP_RELEASED:
        return q->decode_holds && (!both || sim_random(s, 2) == 0) ? q->decode_rank
                                                                   : q->prefill_rank;
    default: return sim_random(s, 2) == 0 ? q->decode_rank : q->prefill_rank;
    }
}

/* Of no request. */
static inline void say_otherwise(liars *c)
{
    static const bt_up_kind KINDS[] = {BT_UP_HELLO, BT_UP_PROGRESS,  BT_UP_BEAT,
                                       BT_UP_READY, BT_UP_EVAL_ROWS, BT_UP_EXPIRED,
                                       BT_UP_DRAIN, BT_UP_LEAVING,   BT_UP_WAKE_REQUEST};
    sim                    *s       = &c->s;
    uint32_t                rank = sim_random(s, s->cfg.n_ranks), n = sim_random(s, 8);
    bt_up                   m = {.kind = KINDS[sim_random(s, sizeof(KINDS) / sizeof(KINDS[0]))]};

    if (m.kind == BT_UP_BEAT) m.u.beat.progress = m.u.beat.prompt_rows = n;
    if (m.kind == BT_UP_WAKE_REQUEST) m.u.wake_request.wake = s->relay->wake[0] + told(c, 0);
    if (m.kind == BT_UP_EXPIRED) {
        m.u.expired.epoch = told(c, s->relay->seats[sim_random(s, 2)].epoch);
        m.u.expired.what  = bt_strdup("experts");
        m.u.expired.ranks = bt_calloc(n + 1, sizeof(uint32_t));
        m.u.expired.n     = n;
        for (uint32_t i = 0; i < n; i++)
            m.u.expired.ranks[i] = told(c, sim_random(s, s->cfg.n_ranks));
    }
    if (m.kind == BT_UP_READY) bt_relay_ready(s->relay, rank, s->now);
    sim_tell(s, rank, m);
}

static inline void say(liars *c)
{
    static const bt_up_kind KINDS[] = {
        BT_UP_TICKET,          BT_UP_TICKET,   BT_UP_TOKENS,   BT_UP_TOKENS,    BT_UP_FAILED,
        BT_UP_PROMPT_LOGPROBS, BT_UP_FORM_MAP, BT_UP_RELEASED, BT_UP_RETRACTED, BT_UP_LEAVING};
    const bt_relay_request *q     = any_request(c);
    const sim_client       *waits = NULL; /* the client of a request that no rank has */
    bt_relay_request        k;
    bt_up_kind              kind;
    bt_up                   m;

    c->lies = sim_random(&c->s, 10) < c->n_lies;
    if (q == NULL || (q->state == BT_QUEUED && !c->lies)) return;
    if (q->state == BT_QUEUED) waits = q->client;
    k    = known(c, q);
    kind = c->lies ? KINDS[sim_random(&c->s, sizeof(KINDS) / sizeof(KINDS[0]))] : due(c, q);
    if (kind == BT_UP_LEAVING) {
        say_otherwise(c);
        return;
    }
    m = say_of(c, kind, &k);
    sim_tell(&c->s, speaker(c, kind, q), m);
    EXPECT(waits == NULL || waits->ends == 0);
}

#endif
