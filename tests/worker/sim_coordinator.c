/* tests/worker/sim_coordinator.c - the coordinator's end of the simulated cell: orders, and what it
 * makes of the ranks' messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/prefix_key.h"
#include "tests/worker/sim_state.h"

/* That of the first token; 0: none. */
static uint64_t number_of(const bt_up *u)
{
    switch (u->kind) {
    case BT_UP_TICKET: return u->u.ticket.request;
    case BT_UP_TOKENS: return u->u.tokens.tokens[0].request;
    case BT_UP_FAILED: return u->u.failed.request;
    case BT_UP_RETRACTED: return u->u.retracted.request;
    case BT_UP_FORM_MAP: return u->u.form_map.request;
    case BT_UP_EVAL_ROWS: return u->u.eval_rows.request;
    case BT_UP_RELEASED: return u->u.released.request;
    default: return 0;
    }
}

static sim_request *request_of(sim_cell *c, uint64_t number)
{
    return &c->requests[(number - 1) % SIM_MAX];
}

void sim_give(sim_cell *c, uint32_t rank, const bt_down *m)
{
    sim_rank *r = &c->ranks[rank];

    if (r->dead) {
        bt_down gone = *m;

        bt_down_free(&gone);
        return;
    }
    if (r->n_inbox == 1024) {
        memmove(r->inbox, r->inbox + r->inbox_at, (r->n_inbox - r->inbox_at) * sizeof(*r->inbox));
        r->n_inbox -= r->inbox_at;
        r->inbox_at = 0;
        if (r->n_inbox == 1024) abort();
    }
    r->inbox[r->n_inbox++] = *m;
}

static void wake_group(sim_cell *c, uint32_t group)
{
    bt_down m = {.kind = BT_DOWN_WAKE, .u.wake = {++c->wake[group]}};

    for (uint32_t i = 0; i < c->group_size[group]; i++)
        sim_give(c, c->group_first[group] + i, &m);
}

static bt_sampling sampling_of(const sim_request *q)
{
    bt_sampling s = {.temperature     = q->temperature,
                     .seed            = q->seed,
                     .max_tokens      = q->max_tokens,
                     .ignore_eos      = q->ignore_eos,
                     .logprobs        = true,
                     .top_logprobs    = q->top_logprobs,
                     .prompt_logprobs = q->prompt_logprobs};

    if (q->repetition != 0) {
        s.repetition_penalty = q->repetition;
        s.frequency_penalty  = SIM_FREQUENCY;
        s.presence_penalty   = SIM_PRESENCE;
    }
    if (q->held != 0) {
        s.constraint         = bt_calloc(32, 1);
        s.n_constraint_bytes = (uint32_t)snprintf(s.constraint, 32, "[a-z ]{0,%u}", q->held);
        s.constraint_kind    = BT_CONSTRAINT_REGEX;
        s.constraint_after   = q->held_after;
    }
    if (q->stop_token < SIM_VOCAB) {
        s.stop_tokens    = bt_calloc(1, sizeof(uint32_t));
        s.stop_tokens[0] = q->stop_token;
        s.n_stop         = 1;
    }
    return s;
}

/* Forced experts of a position: descending on purpose, the worker sorts them. */
static void *forced_of(const sim_request *q, size_t *bytes)
{
    uint32_t n  = q->n_prompt + q->n_eval;
    int32_t *at = bt_calloc((size_t)SIM_MOE_LAYERS * n * SIM_TOP_K, sizeof(*at));

    *bytes = (size_t)SIM_MOE_LAYERS * n * SIM_TOP_K * sizeof(*at);
    for (uint32_t l = 0; l < SIM_MOE_LAYERS; l++) {
        for (uint32_t t = 0; t < n; t++) {
            at[(l * n + t) * SIM_TOP_K]     = (int32_t)(1 + (t + l) % 6);
            at[(l * n + t) * SIM_TOP_K + 1] = 0;
        }
    }
    return at;
}

static uint64_t prefix_seed_of(const sim_request *q)
{
    return bt_cache_salt_seed(SIM_PREFIX_SEED, q->cache_salt);
}

/* Chained over full pages, as the coordinator's are. */
static void *keys_of(const sim_request *q, size_t *bytes)
{
    uint32_t  n    = q->eval || q->prompt_logprobs != 0 ? 0 : q->n_prompt / BT_PAGE_TOKENS;
    uint64_t *keys = bt_calloc(2 * (size_t)n, sizeof(*keys)), key[2];

    bt_prefix_key_begin(prefix_seed_of(q), key);
    for (uint32_t i = 0; i < n; i++) {
        bt_prefix_key_next(prefix_seed_of(q), BT_PAGE_TOKENS, q->prompt + i * BT_PAGE_TOKENS, key);
        memcpy(keys + 2 * i, key, sizeof(key));
    }
    *bytes = 2 * (size_t)n * sizeof(*keys);
    return keys;
}

sim_request *sim_choice(sim_cell *c, const sim_request *q, uint32_t choice)
{
    return &c->requests[choice == 0 ? q->first_id - 1 : q->others_at + choice - 1];
}

void sim_split(sim_cell *c, sim_request *q, uint32_t n)
{
    q->n_choices = n;
    q->others_at = c->n_requests;
    for (uint32_t k = 1; k < n; k++) {
        sim_request *more = &c->requests[c->n_requests++];

        if (c->n_requests > SIM_MAX) abort();
        *more           = *q;
        more->id        = c->n_requests;
        more->choice    = k;
        more->n_choices = 0;
    }
}

/* What the client's tokens came from, or else what the ticket says. */
static void *map_of(const sim_request *q, void *ticket, size_t n_ticket, size_t *n_out)
{
    bool  fixed = q->n_tokens > 0 && q->n_map_bytes > 0;
    void *map;

    *n_out = fixed ? q->n_map_bytes : n_ticket;
    map    = bt_calloc(1, *n_out + 1);
    if (*n_out > 0) memcpy(map, fixed ? q->map : ticket, *n_out);
    return map;
}

/* Choices that have not ended, in *n_out; all tokens that the client has of them one after the
 * other. */
static uint32_t *open_choices(sim_cell *c, const sim_request *q, uint32_t *n_out,
                              uint32_t **replay_out, uint32_t *n_replay_out, uint32_t **lengths_out)
{
    uint32_t *choices = bt_calloc(q->n_choices, sizeof(*choices)), n = 0, total = 0;
    uint32_t *lengths = bt_calloc(q->n_choices, sizeof(*lengths));
    uint32_t *replay  = bt_calloc((size_t)q->n_choices * SIM_CONTEXT, sizeof(*replay));

    for (uint32_t k = 0; k < q->n_choices; k++) {
        const sim_request *one = sim_choice(c, q, k);

        if (one->finish != BT_FINISH_NONE) continue;
        choices[n]   = k;
        lengths[n++] = one->n_tokens;
        memcpy(replay + total, one->tokens, one->n_tokens * sizeof(*replay));
        total += one->n_tokens;
    }
    *n_out        = n;
    *replay_out   = replay;
    *n_replay_out = total;
    *lengths_out  = lengths;
    return choices;
}

/* The rank, or the next one of its group that lives. */
static uint32_t living(const sim_cell *c, uint32_t rank)
{
    uint32_t g = c->ranks[rank].group, first = c->group_first[g];

    while (c->ranks[rank].dead)
        rank = first + (rank - first + 1) % c->group_size[g];
    return rank;
}

void sim_start(sim_cell *c, sim_request *q)
{
    bt_down          m = {.kind = BT_DOWN_RESERVE};
    bt_down_reserve *o = &m.u.reserve;

    q->decode_rank  = living(c, q->decode_rank);
    q->prefill_rank = c->opt.n_both != 0 ? q->decode_rank : living(c, q->prefill_rank);
    q->epoch        = c->epoch;
    q->reserved     = true;
    q->refused      = false;
    q->number       = q->number == 0 ? q->id : q->number + SIM_MAX;
    o->request      = q->number;
    o->epoch        = q->epoch;
    o->n_prompt     = q->n_prompt;
    o->prefill_rank = q->prefill_rank;
    o->sampling     = sampling_of(q);
    o->eval         = q->eval;
    o->n_eval       = q->n_eval;
    o->eval_tokens  = bt_calloc(q->n_eval, sizeof(*o->eval_tokens));
    memcpy(o->eval_tokens, q->eval_tokens, q->n_eval * sizeof(*o->eval_tokens));
    o->arrival = q->id;
    o->choices = open_choices(c, q, &o->n_choices, &o->replay, &o->n_replay, &o->replay_lengths);
    o->prefix_keys = keys_of(q, &o->n_prefix_key_bytes);
    o->form_map    = map_of(q, NULL, 0, &o->n_form_map_bytes);
    o->prefix_seed = c->opt.share && q->prompt_logprobs == 0 ? prefix_seed_of(q) : 0;
    if (c->opt.share || c->opt.speculate != 0 || q->repetition != 0) {
        o->prompt = bt_calloc(q->n_prompt, sizeof(*o->prompt));
        memcpy(o->prompt, q->prompt, q->n_prompt * sizeof(*o->prompt));
    }
    if (q->force) o->eval_experts = forced_of(q, &o->n_eval_expert_bytes);
    sim_give(c, q->decode_rank, &m);
    wake_group(c, c->ranks[q->decode_rank].group);
}

void sim_abort(sim_cell *c, sim_request *q)
{
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {q->number, q->epoch, 0}
    };

    q->aborted = true;
    if (!q->reserved) return;
    sim_give(c, q->prefill_rank, &m);
    if (q->decode_rank != q->prefill_rank) sim_give(c, q->decode_rank, &m);
}

static void on_ticket(sim_cell *c, sim_request *q, bt_up *u)
{
    bt_down          m = {.kind = BT_DOWN_PREFILL};
    bt_down_prefill *o = &m.u.prefill;
    uint32_t        *replay, *lengths, n_replay;

    if (u->u.ticket.epoch != q->epoch || q->resume) return; /* of a placement that is over */
    if (u->u.ticket.refused || q->aborted) {
        q->refused = true;
        q->n_refused += u->u.ticket.refused;
        q->reserved = !u->u.ticket.refused;
        return;
    }
    q->ticketed    = true;
    o->request     = q->number;
    o->epoch       = q->epoch;
    o->n_prompt    = q->n_prompt;
    o->decode_rank = q->decode_rank;
    o->sampling    = sampling_of(q);
    o->eval        = q->eval;
    o->prompt      = bt_calloc(q->n_prompt, sizeof(*o->prompt));
    memcpy(o->prompt, q->prompt, q->n_prompt * sizeof(*o->prompt));
    o->prefix_keys    = keys_of(q, &o->n_prefix_key_bytes);
    o->held           = u->u.ticket.held;
    o->arrival        = q->id;
    o->n_pages        = u->u.ticket.n_pages;
    o->pages          = u->u.ticket.pages;
    u->u.ticket.pages = NULL;
    o->form_map =
        map_of(q, u->u.ticket.form_map, u->u.ticket.n_form_map_bytes, &o->n_form_map_bytes);
    if (q->force) o->eval_experts = forced_of(q, &o->n_eval_expert_bytes);
    o->choices = open_choices(c, q, &o->n_choices, &replay, &n_replay, &lengths);
    bt_free(replay);
    bt_free(lengths);
    sim_give(c, q->prefill_rank, &m);
    if (sim_roll(c, 2) == 0) wake_group(c, c->ranks[q->prefill_rank].group); /* or the rank asks */
}

static void on_token(sim_cell *c, const bt_token *t)
{
    sim_request *first = request_of(c, t->request), *q = sim_choice(c, first, t->choice);
    uint32_t     k   = t->position - q->n_prompt;
    bool         all = true;

    if (t->request != first->number || t->epoch != first->epoch || first->resume)
        return; /* of a placement that is over */
    while (q->finish != BT_FINISH_STOP_STRING && k > q->n_tokens &&
           c->ranks[first->prefill_rank].n_said > 0)
        sim_hear(&c->ranks[first->prefill_rank]); /* only that one says the first token */
    if (k < q->n_tokens) {
        q->n_repeats++;
        c->broken = c->broken || q->tokens[k] != t->id;
        return;
    }
    if (q->finish == BT_FINISH_STOP_STRING) return; /* on their way when it was cut */
    if (k > q->n_tokens || q->finish != BT_FINISH_NONE || !(t->logprob <= 0)) {
        fprintf(stderr, "request %u: token at %u, had %u, finish %d\n", (unsigned)q->id, k,
                q->n_tokens, (int)q->finish);
        c->broken = true;
        return;
    }
    if (q->n_tokens == 0) q->n_cached = t->cached;
    q->tokens[q->n_tokens++] = t->id;
    q->finish                = t->finish;
    if (q->n_tokens == q->cut_at && q->finish == BT_FINISH_NONE) {
        bt_down m = {
            .kind = BT_DOWN_ABORT, .u.abort = {first->number, first->epoch, 1 + q->choice}
        };

        q->finish = BT_FINISH_STOP_STRING;
        sim_give(c, first->decode_rank, &m);
    }
    for (uint32_t i = 0; i < first->n_choices; i++)
        all = all && sim_choice(c, first, i)->finish != BT_FINISH_NONE;
    if (all) sim_abort(c, first);
}

static void on_eval(sim_cell *c, sim_request *q, const bt_up_eval_rows *e)
{
    static float   want[SIM_VOCAB];
    uint32_t       all[SIM_CONTEXT];
    const int32_t *experts = e->experts;

    memcpy(all, q->prompt, q->n_prompt * sizeof(*all));
    memcpy(all + q->n_prompt, q->eval_tokens, q->n_eval * sizeof(*all));
    for (uint32_t i = 0; i < e->n_rows; i++) {
        uint32_t at = e->position + i;

        q->rows_seen[at]++;
        sim_logits_of(all, at + 1, want);
        if (memcmp(want, (const float *)e->logits + (size_t)i * SIM_VOCAB, sizeof(want)) != 0) {
            fprintf(stderr, "request %u: logits of row %u differ\n", (unsigned)q->id, at);
            c->broken = true;
        }
        for (uint32_t l = 0; l < SIM_MOE_LAYERS; l++) {
            const int32_t *row    = experts + ((size_t)l * e->n_rows + i) * SIM_TOP_K;
            int32_t        second = q->force ? (int32_t)(1 + (at + l) % 6) : 7;

            if (row[0] != 0 || row[1] != second) c->broken = true;
        }
    }
}

/* Whether the rank that decodes q has the other one too, as far as is known here. */
static bool is_beside(const sim_request *q, const sim_request *other)
{
    return other != q && other->n_choices > 0 && !other->eval && !other->lost && other->reserved &&
           !other->resume && other->decode_rank == q->decode_rank &&
           !other->released[other->decode_rank];
}

/* Nobody gives way who is alone on its rank or older than another one there, unless ranks die. */
static void check_youngest(sim_cell *c, const sim_request *q)
{
    bool older = false, younger = false;

    for (uint32_t i = 0; i < c->n_ranks; i++)
        if (c->ranks[i].dead) return;
    for (uint32_t i = 0; i < c->n_requests; i++) {
        const sim_request *other = &c->requests[i];

        if (!is_beside(q, other)) continue;
        older   = older || other->id < q->id;
        younger = younger || (other->id > q->id && other->ticketed && !other->aborted);
    }
    if (older && !younger) return;
    fprintf(stderr, "request %u was retracted: older ones there: %d, younger ones: %d\n",
            (unsigned)q->id, older, younger);
    c->broken = true;
}

static void on_retracted(sim_cell *c, sim_request *q)
{
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {q->number, q->epoch, 0}
    };

    if (q->aborted || q->resume) return;
    check_youngest(c, q);
    q->n_retracted++;
    q->resume = true;
    if (q->ticketed && q->prefill_rank != q->decode_rank && !q->released[q->prefill_rank])
        sim_give(c, q->prefill_rank, &m);
}

static void on_form_map(sim_cell *c, sim_request *q, const bt_up *u)
{
    size_t n = u->u.form_map.n_form_map_bytes;

    if (n != bt_kv_pages_for(q->n_prompt) * sizeof(*q->map) ||
        (q->n_tokens > 0 && q->n_map_bytes > 0 && memcmp(q->map, u->u.form_map.form_map, n) != 0)) {
        fprintf(stderr, "request %u: another form map than before\n", (unsigned)q->id);
        c->broken = true;
        return;
    }
    for (uint32_t k = 0; k < q->n_choices; k++) {
        memcpy(sim_choice(c, q, k)->map, u->u.form_map.form_map, n);
        sim_choice(c, q, k)->n_map_bytes = n;
    }
}

void sim_resume(sim_cell *c, sim_request *q)
{
    if (!q->resume || q->aborted || !q->released[q->decode_rank] ||
        (q->ticketed && !q->released[q->prefill_rank]))
        return;
    q->resume = q->ticketed = q->reserved = false;
    memset(q->released, 0, sizeof(q->released));
    sim_start(c, q);
}

static void hear(sim_rank *r, bt_up *u)
{
    sim_cell    *c      = r->cell;
    uint64_t     number = number_of(u);
    sim_request *q      = number == 0 ? NULL : request_of(c, number);

    /* A Released may come late: a granted message had to leave first. */
    if (q != NULL && q->lost && u->kind != BT_UP_RELEASED) {
        fprintf(stderr, "rank %u speaks of request %u, which its coordinator has taken along\n",
                r->rank, (unsigned)q->id);
        c->broken = true;
    }
    if (q != NULL && number != q->number && u->kind != BT_UP_TOKENS) {
        bt_up_free(u); /* of a placement that is over */
        return;
    }
    switch (u->kind) {
    case BT_UP_TICKET: on_ticket(c, q, u); break;
    case BT_UP_TOKENS:
        for (uint32_t i = 0; i < u->u.tokens.n; i++)
            on_token(c, &u->u.tokens.tokens[i]);
        break;
    case BT_UP_FAILED:
        if (q->resume || (c->opt.n_both != 0 && !q->ticketed)) break; /* of what was retracted */
        q->failed    = true;
        q->fail_code = u->u.failed.code;
        snprintf(q->why, sizeof(q->why), "%s", u->u.failed.message);
        if (!q->aborted) sim_abort(c, q);
        break;
    case BT_UP_RELEASED:
        if (q->epoch == u->u.released.epoch) q->released[r->rank] = true;
        break;
    case BT_UP_RETRACTED:
        if (q->epoch == u->u.retracted.epoch) on_retracted(c, q);
        break;
    case BT_UP_FORM_MAP:
        if (q->epoch == u->u.form_map.epoch && !q->resume) on_form_map(c, q, u);
        break;
    case BT_UP_WAKE_REQUEST:
        if (u->u.wake_request.wake == c->wake[r->group]) wake_group(c, r->group);
        break;
    case BT_UP_EVAL_ROWS: on_eval(c, q, &u->u.eval_rows); break;
    default: break;
    }
    bt_up_free(u);
}

void sim_hear(sim_rank *r)
{
    bt_up u = r->said[0];

    memmove(r->said, r->said + 1, --r->n_said * sizeof(u));
    hear(r, &u);
}

void sim_forget_said(sim_rank *r)
{
    while (r->n_said > 0)
        bt_up_free(&r->said[--r->n_said]);
}

bt_status sim_up(void *ctx, bt_up *u)
{
    sim_rank *r = ctx;

    if (r->n_said == sizeof(r->said) / sizeof(r->said[0])) sim_hear(r);
    r->said[r->n_said++] = *u;
    memset(&u->u, 0, sizeof(u->u));
    if (!r->cell->opt.late_words) sim_hear(r);
    return BT_OK;
}
