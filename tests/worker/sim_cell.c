#include "tests/worker/sim_cell.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "proto/prefix_key.h"

enum { MAX_PAGES = SIM_CONTEXT / BT_PAGE_TOKENS + 1, MAX_LATE = 2 };
enum { MAX_FLIGHT = 4096, STEP_LIMIT = 400000, PREFIX_SEED = 77 };

typedef struct {
    bt_page_message m;
    uint32_t        from, to;
    uint8_t        *payload;
    bool            granted, delivered, refuse;
} flight;

/* A step that has been launched, with all that it needs. */
typedef struct {
    bt_step    step;
    bt_span    spans[SIM_CONTEXT];
    bt_page_id pages[SIM_CONTEXT][MAX_PAGES];
    uint32_t   generations[SIM_CONTEXT][MAX_PAGES];
    uint32_t   tokens[SIM_CONTEXT], fed[SIM_CONTEXT], logit_rows[SIM_CONTEXT];
    bt_draws   draws;
    bt_draw    draw[SIM_CONTEXT];
    uint32_t   ids[SIM_CONTEXT];
    float      logprobs[SIM_CONTEXT];
    bool       done;
    bt_status  st;
} late_step;

typedef struct sim_rank sim_rank;
struct sim_rank {
    sim_cell   *cell;
    uint32_t    rank, group, self; /* group 0: prefill or all, 1: decode */
    bt_worker  *worker;
    bt_kv_pool *pool;
    bt_down     inbox[1024];
    uint32_t    inbox_at, n_inbox;
    uint32_t    n_slots_used;
    bool        waiting, left; /* waiting: in the all-gather */
    bool        dead;
    uint32_t    epoch;  /* of its group, as it has heard */
    uint32_t    cut_at; /* not 0: its next step comes to nothing in that layer (from 1) */
    bt_plan     plan;
    late_step   late[MAX_LATE]; /* under way, in order */
    uint32_t    n_late;
    uint32_t    last_ids[SIM_CONTEXT]; /* chosen by the step that ran last */
};

struct sim_cell {
    sim_options     opt;
    bt_model_config model;
    bt_device      *dev;
    bt_device_ops   ops; /* its own, or also a device's that chooses tokens */
    bt_sampler      sampler;
    uint64_t        n_ahead;
    uint32_t        n_ranks, group_size[2], group_first[2];
    uint32_t        wake[2];
    uint32_t        epoch, group_epoch[2];
    bool            forsaken; /* the coordinator dies in the next step */
    uint32_t        doomed;   /* 1 + the rank that dies in its group's next step; 0: none */
    sim_rank        ranks[SIM_MAX_RANKS];
    sim_request     requests[SIM_MAX];
    uint32_t        n_requests;
    flight          flights[MAX_FLIGHT];
    uint32_t        n_flights, n_sent_of_first;
    uint64_t        now, random, n_steps;
    bool            broken;
};

static uint32_t roll(sim_cell *c, uint32_t n)
{
    c->random = c->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(c->random >> 33) % n;
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 33;
}

/* how: 0, or what it was computed with beside its role's own. */
static void latent(uint32_t token, uint32_t position, uint32_t layer, uint32_t how,
                   bt_bf16 row[SIM_DIM])
{
    uint64_t h = mix(token * 1000003ull + position * 8191ull + layer + 1 + how * 77777777777ull);

    for (uint32_t i = 0; i < SIM_DIM; i++)
        row[i] = (bt_bf16)(h >> 16 * i);
}

static uint64_t add_row(uint64_t h, const bt_bf16 row[SIM_DIM])
{
    for (uint32_t i = 0; i < SIM_DIM; i++)
        h = mix(h ^ row[i]);
    return h;
}

static void fill_logits(uint64_t h, float *logits)
{
    for (uint32_t i = 0; i < SIM_VOCAB; i++)
        logits[i] = (float)(mix(h + i) % 1000) / 100.0f;
    logits[h % SIM_VOCAB] = 20.0f;
}

void sim_logits_of(const uint32_t *tokens, uint32_t n, float *logits_out)
{
    uint64_t h = 0;
    bt_bf16  row[SIM_DIM];

    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
            latent(tokens[t], t, layer, 0, row);
            h = add_row(h, row);
        }
    }
    fill_logits(h, logits_out);
}

static uint32_t how_of(bool generated, bool absorbed) { return 1 + generated + 2 * absorbed; }

/* The same, with the prompt as its map says and the rest as generated. */
static void logits_by_map(const sim_request *q, const uint32_t *tokens, uint32_t n, float *logits)
{
    uint64_t h = 0;
    bt_bf16  row[SIM_DIM];

    for (uint32_t t = 0; t < n; t++) {
        const bt_page_map *map = &q->map[t / BT_PAGE_TOKENS];
        uint64_t           one = 1ull << t % BT_PAGE_TOKENS;
        uint32_t           how = t < q->n_prompt ? how_of(map->generated & one, map->absorbed & one)
                                                 : how_of(true, true);

        for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
            latent(tokens[t], t, layer, how, row);
            h = add_row(h, row);
        }
    }
    fill_logits(h, logits);
}

void sim_expected(const sim_request *r, uint32_t *tokens_out, uint32_t *n_out, bt_finish *how_out)
{
    static float logits[SIM_VOCAB];
    uint32_t     all[SIM_CONTEXT], n = r->n_prompt, id;
    bt_sampler   sampler;

    if (bt_sampler_init(&sampler, bt_cpu_kernels_find("scalar")->rows, SIM_VOCAB) != BT_OK) abort();
    memcpy(all, r->prompt, n * sizeof(*all));
    for (*n_out = 0, *how_out = BT_FINISH_NONE; *how_out == BT_FINISH_NONE; n++) {
        bt_sample_how how = {
            .temperature = r->temperature, .seed = r->seed, .choice = r->choice, .position = n};

        if (r->n_map_bytes != 0)
            logits_by_map(r, all, n, logits);
        else
            sim_logits_of(all, n, logits);
        if (bt_sample(&sampler, logits, &how, &id) != BT_OK) abort();
        all[n]                 = id;
        tokens_out[(*n_out)++] = id;
        if (id == SIM_EOS && !r->ignore_eos)
            *how_out = BT_FINISH_EOS;
        else if (id == r->stop_token)
            *how_out = BT_FINISH_STOP_TOKEN;
        else if (*n_out == r->max_tokens)
            *how_out = BT_FINISH_LENGTH;
        else if (*n_out == r->cut_at)
            *how_out = BT_FINISH_STOP_STRING;
    }
    bt_sampler_fini(&sampler);
}

/* ---- links of a rank */

static uint64_t sim_now(void *ctx)
{
    sim_rank *r = ctx;

    return r->cell->now;
}

static size_t sim_payload_max(void *ctx)
{
    sim_rank *r = ctx;

    return r->cell->opt.payload_max;
}

static bt_page_payload payload_at(void *memory, const bt_page_message *m)
{
    return (bt_page_payload){.rows = memory,
                             .tail = (uint8_t *)memory + m->payload_bytes - m->tail_bytes};
}

static bt_page_payload sim_slot(void *ctx, void *slot, const bt_page_message *m)
{
    (void)ctx;
    return payload_at(slot, m);
}

static bt_status sim_take(void *ctx)
{
    (void)ctx;
    return BT_OK;
}

static void *sim_stage(void *ctx)
{
    sim_rank *r = ctx;

    if (r->n_slots_used == r->cell->opt.n_slots) return NULL;
    r->n_slots_used++;
    return malloc(r->cell->opt.payload_max);
}

static void sim_unstage(void *ctx, void *slot)
{
    sim_rank *r = ctx;

    r->n_slots_used--;
    free(slot);
}

static void sim_send(void *ctx, uint32_t to, const bt_page_message *m, void *slot)
{
    sim_rank *r = ctx;
    sim_cell *c = r->cell;
    flight   *f = &c->flights[c->n_flights++];

    if (c->n_flights == MAX_FLIGHT) abort();
    *f = (flight){.m = *m, .from = r->rank, .to = to, .payload = slot};
    if (m->request != 1 || c->n_sent_of_first++ != 1) return;
    if (c->opt.fault == SIM_BAD_TAG) f->m.pages_tag ^= 1;
    if (c->opt.fault == SIM_BAD_CHECKSUM) f->refuse = true;
    if (c->opt.fault == SIM_TWICE) {
        c->flights[c->n_flights]         = *f;
        c->flights[c->n_flights].payload = malloc(c->opt.payload_max);
        memcpy(c->flights[c->n_flights++].payload, slot, m->payload_bytes);
        r->n_slots_used++;
    }
}

static void drop_flight(sim_cell *c, uint32_t i)
{
    free(c->flights[i].payload);
    c->ranks[c->flights[i].from].n_slots_used--;
    memmove(&c->flights[i], &c->flights[i + 1], (--c->n_flights - i) * sizeof(flight));
}

static bool sim_cancel(void *ctx, uint64_t request)
{
    sim_rank *r    = ctx;
    sim_cell *c    = r->cell;
    bool      none = true;

    for (uint32_t i = c->n_flights; i-- > 0;) {
        flight *f = &c->flights[i];

        if (f->from != r->rank || f->m.request != request) continue;
        if (f->granted)
            none = false;
        else
            drop_flight(c, i);
    }
    return none;
}

/* Grants, delivers or confirms one random message that concerns this rank. */
static bool sim_poll(void *ctx)
{
    sim_rank *r = ctx;
    sim_cell *c = r->cell;
    uint32_t  i;
    flight    f;

    if (c->n_flights == 0) return false;
    i = roll(c, c->n_flights);
    f = c->flights[i];
    if (f.from == r->rank && !f.granted) {
        c->flights[i].granted = true;
        return true;
    }
    if (f.to == r->rank && f.granted && !f.delivered) {
        bt_page_payload payload = payload_at(f.payload, &f.m);

        c->flights[i].delivered = true;
        if (c->opt.fault == SIM_LOST && f.m.request == 1 && f.m.token0 == 0) return true;
        if (f.refuse)
            bt_worker_rejected(r->worker, f.from, f.m.request, BT_ERR_CHECKSUM);
        else
            bt_worker_delivered(r->worker, f.from, &f.m, &payload);
        return true;
    }
    if (f.from == r->rank && f.delivered) {
        drop_flight(c, i);
        bt_worker_sent(r->worker, &f.m);
        return true;
    }
    return false;
}

static const uint64_t *sim_expert_rows(void *ctx)
{
    (void)ctx;
    return NULL;
}

static bool keeps_maps(const sim_cell *c) { return c->opt.by_cost || c->opt.share; }

/* Whether the step may run after its launch: it has no rows of a prompt, whose layers are told. */
static bool is_late(const sim_rank *r, const bt_step *step)
{
    bool late = r->cell->opt.lookahead && !keeps_maps(r->cell) && step->draws != NULL;

    for (uint32_t i = 0; i < step->n_spans; i++)
        late = late && step->spans[i].role == BT_ROLE_GENERATED;
    return late;
}

/* How the draw is made: that of the one choice whose number it has at this position. */
static bt_sample_how how_drawn(sim_cell *c, const bt_draw *d, uint32_t position)
{
    bt_sample_how how = {.temperature = d->temperature, .position = position};

    for (uint32_t i = 0; i < c->n_requests; i++) {
        how.seed   = c->requests[i].seed;
        how.choice = c->requests[i].choice;
        if (bt_sample_uniform(&how) == d->uniform) return how;
    }
    fprintf(stderr, "nobody draws at position %u like this\n", position);
    c->broken = true;
    return how;
}

static void draw_for(sim_rank *r, late_step *l, uint32_t row, uint32_t position,
                     const float *logits)
{
    for (uint32_t i = 0; i < l->draws.n_draws; i++) {
        bt_sample_how how;
        uint32_t      ids[1];
        float         top[1];

        if (l->draw[i].row != row) continue;
        how = how_drawn(r->cell, &l->draw[i], position);
        if (bt_sample(&r->cell->sampler, logits, &how, &l->ids[i]) != BT_OK) abort();
        bt_logprobs(&r->cell->sampler, logits, l->ids[i], 0, &l->logprobs[i], ids, top);
        r->last_ids[i] = l->ids[i];
    }
}

/* A page that a step under way reads and writes is nobody else's. */
static void expect_pages_kept(const sim_rank *r, const late_step *l)
{
    for (uint32_t s = 0; s < l->step.n_spans; s++)
        for (uint32_t k = 0; k < bt_kv_pages_for(l->spans[s].start + l->spans[s].n_rows); k++) {
            if (bt_kv_pool_generation(r->pool, l->pages[s][k]) == l->generations[s][k]) continue;
            fprintf(stderr, "rank %u: page %u is taken while a step has it\n", r->rank,
                    l->pages[s][k]);
            r->cell->broken = true;
        }
}

static bt_status run_step(sim_rank *r, late_step *l)
{
    static float   row[SIM_VOCAB];
    sim_cell      *c    = r->cell;
    const bt_step *step = &l->step;

    expect_pages_kept(r, l);
    for (uint32_t i = 0; step->fed != NULL && i < step->n_rows; i++)
        if (l->fed[i] != BT_NOT_DRAWN) l->tokens[i] = r->last_ids[l->fed[i]];
    for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
        for (uint32_t s = 0; s < step->n_spans; s++) {
            const bt_span *span = &step->spans[s];

            for (uint32_t i = 0; i < span->n_rows; i++) {
                uint32_t at = span->start + i;

                latent(l->tokens[span->first_row + i], at, layer,
                       keeps_maps(c)
                           ? how_of(span->role == BT_ROLE_GENERATED, span->form == BT_FORM_ABSORBED)
                           : 0,
                       bt_kv_pool_rows(r->pool, span->pages[at / BT_PAGE_TOKENS], layer) +
                           (size_t)(at % BT_PAGE_TOKENS) * SIM_DIM);
            }
        }
        if (r->cut_at == layer + 1) return BT_ERR_CANCELLED;
        if (!is_late(r, step)) step->layer_done(step->ctx, layer);
    }
    for (uint32_t k = 0, s = 0; k < step->n_logit_rows; k++) {
        const bt_span *span;
        uint64_t       h = 0;

        while (step->spans[s].first_row + step->spans[s].n_rows <= step->logit_rows[k])
            s++;
        span = &step->spans[s];
        for (uint32_t t = 0; t <= span->start + step->logit_rows[k] - span->first_row; t++)
            for (uint32_t layer = 0; layer < SIM_LAYERS; layer++)
                h = add_row(h, bt_kv_pool_rows(r->pool, span->pages[t / BT_PAGE_TOKENS], layer) +
                                   (size_t)(t % BT_PAGE_TOKENS) * SIM_DIM);
        if (step->draws == NULL) {
            fill_logits(h, step->logits + (size_t)k * SIM_VOCAB);
            continue;
        }
        fill_logits(h, row);
        draw_for(r, l, k, span->start + step->logit_rows[k] - span->first_row + 1, row);
    }
    for (uint32_t i = 0; step->chosen != NULL && i < SIM_MOE_LAYERS * step->n_rows; i++) {
        const uint16_t *forced   = step->forced == NULL ? NULL : step->forced + i * SIM_TOP_K;
        bool            free_row = forced == NULL || forced[0] == UINT16_MAX;

        step->chosen[i * SIM_TOP_K]     = free_row ? 0 : forced[0];
        step->chosen[i * SIM_TOP_K + 1] = free_row ? 7 : forced[1];
    }
    c->n_steps++;
    return BT_OK;
}

/* All that is under way, or only the first. */
static void run_late(sim_rank *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!r->late[i].done) r->late[i].st = run_step(r, &r->late[i]);
        r->late[i].done = true;
    }
}

/* What the step's lists hold is free after launch(). */
static void keep_step(const sim_rank *r, late_step *l, const bt_step *step)
{
    l->step = *step;
    l->done = false;
    memcpy(l->spans, step->spans, step->n_spans * sizeof(*l->spans));
    for (uint32_t s = 0; s < step->n_spans; s++) {
        const bt_span *span = &step->spans[s];

        memcpy(l->pages[s], span->pages,
               bt_kv_pages_for(span->start + span->n_rows) * sizeof(*span->pages));
        l->spans[s].pages = l->pages[s];
        for (uint32_t k = 0; k < bt_kv_pages_for(span->start + span->n_rows); k++)
            l->generations[s][k] = bt_kv_pool_generation(r->pool, span->pages[k]);
    }
    memcpy(l->tokens, step->tokens, step->n_rows * sizeof(*l->tokens));
    if (step->fed != NULL) memcpy(l->fed, step->fed, step->n_rows * sizeof(*l->fed));
    memcpy(l->logit_rows, step->logit_rows, step->n_logit_rows * sizeof(*l->logit_rows));
    l->step.spans      = l->spans;
    l->step.logit_rows = l->logit_rows;
    if (step->draws == NULL) return;
    l->draws = *step->draws;
    memcpy(l->draw, step->draws->draws, l->draws.n_draws * sizeof(*l->draw));
}

static bt_status sim_launch(void *ctx, bt_step *step)
{
    sim_rank *r = ctx;
    sim_cell *c = r->cell;

    if (r->n_late == MAX_LATE) abort();
    c->n_ahead += r->n_late > 0;
    keep_step(r, &r->late[r->n_late++], step);
    if (is_late(r, step) && roll(c, 4) != 0) return BT_OK;
    run_late(r, r->n_late);
    if (r->late[r->n_late - 1].st == BT_OK) return BT_OK;
    return r->late[--r->n_late].st;
}

static bt_status sim_await(void *ctx)
{
    sim_rank        *r = ctx;
    late_step       *l = &r->late[0];
    bt_draw_results *out;
    bt_status        st;

    if (r->n_late == 0) abort();
    run_late(r, 1);
    st  = l->st;
    out = l->step.draws == NULL ? NULL : l->draws.out;
    for (uint32_t i = 0; out != NULL && i < l->draws.n_draws; i++) {
        out->ids[i]     = (int32_t)l->ids[i];
        out->logprob[i] = l->logprobs[i];
        out->n_found[i] = 0;
    }
    memmove(&r->late[0], &r->late[1], --r->n_late * sizeof(*l));
    for (uint32_t i = 0; i < r->n_late; i++) /* which point into their own step */
        for (uint32_t s = 0; s < r->late[i].step.n_spans; s++) {
            r->late[i].spans[s].pages  = r->late[i].pages[s];
            r->late[i].step.spans      = r->late[i].spans;
            r->late[i].step.logit_rows = r->late[i].logit_rows;
        }
    return st;
}

/* A device that chooses tokens: the steps above do it. */
static size_t no_bytes(uint32_t n_vocab, uint32_t max_draws)
{
    (void)n_vocab, (void)max_draws;
    return 0;
}

static bt_status create_sampler(bt_device *dev, uint32_t n_vocab, uint32_t max_draws,
                                bt_device_sampler **sampling_out)
{
    (void)n_vocab, (void)max_draws;
    *sampling_out = (bt_device_sampler *)(void *)dev; /* something that is not NULL */
    return BT_OK;
}

static void destroy_sampler(bt_device_sampler *s) { (void)s; }

static const bt_sampling_ops SAMPLING = {
    .bytes = no_bytes, .create = create_sampler, .destroy = destroy_sampler};

/* ---- the coordinator's end */

static uint64_t request_of(const bt_up *u)
{
    switch (u->kind) {
    case BT_UP_TICKET: return u->u.ticket.request;
    case BT_UP_TOKENS: return u->u.tokens.tokens[0].request;
    case BT_UP_FAILED: return u->u.failed.request;
    case BT_UP_RETRACTED: return u->u.retracted.request;
    case BT_UP_FORM_MAP: return u->u.form_map.request;
    case BT_UP_EVAL_ROWS: return u->u.eval_rows.request;
    default: return 0; /* a Released may come late: a granted message had to leave first */
    }
}

static void give(sim_cell *c, uint32_t rank, const bt_down *m)
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
        give(c, c->group_first[group] + i, &m);
}

static bt_sampling sampling_of(const sim_request *q)
{
    bt_sampling s = {.temperature = q->temperature,
                     .seed        = q->seed,
                     .max_tokens  = q->max_tokens,
                     .ignore_eos  = q->ignore_eos,
                     .logprobs    = true};

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

/* Chained over full pages, as the coordinator's are. */
static void *keys_of(const sim_request *q, size_t *bytes)
{
    uint32_t  n    = q->eval ? 0 : q->n_prompt / BT_PAGE_TOKENS;
    uint64_t *keys = bt_calloc(2 * (size_t)n, sizeof(*keys)), key[2];

    bt_prefix_key_begin(PREFIX_SEED, key);
    for (uint32_t i = 0; i < n; i++) {
        bt_prefix_key_next(PREFIX_SEED, BT_PAGE_TOKENS, q->prompt + i * BT_PAGE_TOKENS, key);
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
    o->request      = q->id;
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
    o->prefix_seed = c->opt.share ? PREFIX_SEED : 0;
    if (c->opt.share) {
        o->prompt = bt_calloc(q->n_prompt, sizeof(*o->prompt));
        memcpy(o->prompt, q->prompt, q->n_prompt * sizeof(*o->prompt));
    }
    if (q->force) o->eval_experts = forced_of(q, &o->n_eval_expert_bytes);
    give(c, q->decode_rank, &m);
    wake_group(c, c->ranks[q->decode_rank].group);
}

void sim_abort(sim_cell *c, sim_request *q)
{
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {q->id, q->epoch, 0}
    };

    q->aborted = true;
    if (!q->reserved) return;
    give(c, q->prefill_rank, &m);
    if (q->decode_rank != q->prefill_rank) give(c, q->decode_rank, &m);
}

static void on_ticket(sim_cell *c, sim_request *q, bt_up *u)
{
    bt_down          m = {.kind = BT_DOWN_PREFILL};
    bt_down_prefill *o = &m.u.prefill;
    uint32_t        *replay, *lengths, n_replay;

    if (u->u.ticket.epoch != q->epoch || q->resume) return; /* of a placement that is over */
    if (u->u.ticket.refused || q->aborted) {
        q->refused  = true;
        q->reserved = !u->u.ticket.refused;
        return;
    }
    q->ticketed    = true;
    o->request     = q->id;
    o->epoch       = q->epoch;
    o->n_prompt    = q->n_prompt;
    o->decode_rank = q->decode_rank;
    o->sampling    = sampling_of(q);
    o->eval        = q->eval;
    o->prompt      = bt_calloc(q->n_prompt, sizeof(*o->prompt));
    memcpy(o->prompt, q->prompt, q->n_prompt * sizeof(*o->prompt));
    o->prefix_keys    = keys_of(q, &o->n_prefix_key_bytes);
    o->held           = u->u.ticket.held;
    o->n_pages        = u->u.ticket.n_pages;
    o->pages          = u->u.ticket.pages;
    u->u.ticket.pages = NULL;
    o->form_map =
        map_of(q, u->u.ticket.form_map, u->u.ticket.n_form_map_bytes, &o->n_form_map_bytes);
    if (q->force) o->eval_experts = forced_of(q, &o->n_eval_expert_bytes);
    o->choices = open_choices(c, q, &o->n_choices, &replay, &n_replay, &lengths);
    bt_free(replay);
    bt_free(lengths);
    give(c, q->prefill_rank, &m);
    if (roll(c, 2) == 0) wake_group(c, c->ranks[q->prefill_rank].group); /* or the rank asks */
}

static void on_token(sim_cell *c, const bt_token *t)
{
    sim_request *first = &c->requests[t->request - 1], *q = sim_choice(c, first, t->choice);
    uint32_t     k   = t->position - q->n_prompt;
    bool         all = true;

    if (t->epoch != first->epoch || first->resume) return; /* of a placement that is over */
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
            .kind = BT_DOWN_ABORT, .u.abort = {first->id, first->epoch, 1 + q->choice}
        };

        q->finish = BT_FINISH_STOP_STRING;
        give(c, first->decode_rank, &m);
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

static void on_retracted(sim_cell *c, sim_request *q)
{
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {q->id, q->epoch, 0}
    };

    if (q->aborted || q->resume) return;
    q->n_retracted++;
    q->resume = true;
    if (q->ticketed && q->prefill_rank != q->decode_rank && !q->released[q->prefill_rank])
        give(c, q->prefill_rank, &m);
}

static void on_form_map(sim_cell *c, sim_request *q, const bt_up *u)
{
    size_t n = u->u.form_map.n_form_map_bytes;

    if (n != bt_kv_pages_for(q->n_prompt) * sizeof(*q->map) ||
        (q->n_tokens > 0 && memcmp(q->map, u->u.form_map.form_map, n) != 0)) {
        fprintf(stderr, "request %u: another form map than before\n", (unsigned)q->id);
        c->broken = true;
        return;
    }
    for (uint32_t k = 0; k < q->n_choices; k++) {
        memcpy(sim_choice(c, q, k)->map, u->u.form_map.form_map, n);
        sim_choice(c, q, k)->n_map_bytes = n;
    }
}

static void resume(sim_cell *c, sim_request *q)
{
    if (!q->resume || q->aborted || !q->released[q->decode_rank] ||
        (q->ticketed && !q->released[q->prefill_rank]))
        return;
    q->resume = q->ticketed = q->reserved = false;
    memset(q->released, 0, sizeof(q->released));
    sim_start(c, q);
}

static bt_status sim_up(void *ctx, bt_up *u)
{
    sim_rank    *r = ctx;
    sim_cell    *c = r->cell;
    sim_request *q;

    if (request_of(u) != 0 && c->requests[request_of(u) - 1].lost) {
        fprintf(stderr, "rank %u speaks of request %u, which its coordinator has taken along\n",
                r->rank, (unsigned)request_of(u));
        c->broken = true;
    }
    switch (u->kind) {
    case BT_UP_TICKET: on_ticket(c, &c->requests[u->u.ticket.request - 1], u); break;
    case BT_UP_TOKENS:
        for (uint32_t i = 0; i < u->u.tokens.n; i++)
            on_token(c, &u->u.tokens.tokens[i]);
        break;
    case BT_UP_FAILED:
        q            = &c->requests[u->u.failed.request - 1];
        q->failed    = true;
        q->fail_code = u->u.failed.code;
        snprintf(q->why, sizeof(q->why), "%s", u->u.failed.message);
        if (!q->aborted) sim_abort(c, q);
        break;
    case BT_UP_RELEASED:
        q = &c->requests[u->u.released.request - 1];
        if (q->epoch == u->u.released.epoch) q->released[r->rank] = true;
        break;
    case BT_UP_RETRACTED:
        q = &c->requests[u->u.retracted.request - 1];
        if (q->epoch == u->u.retracted.epoch) on_retracted(c, q);
        break;
    case BT_UP_FORM_MAP:
        q = &c->requests[u->u.form_map.request - 1];
        if (q->epoch == u->u.form_map.epoch && !q->resume) on_form_map(c, q, u);
        break;
    case BT_UP_WAKE_REQUEST:
        if (u->u.wake_request.wake == c->wake[r->group]) wake_group(c, r->group);
        break;
    case BT_UP_EVAL_ROWS:
        on_eval(c, &c->requests[u->u.eval_rows.request - 1], &u->u.eval_rows);
        break;
    default: break;
    }
    bt_up_free(u);
    memset(&u->u, 0, sizeof(u->u));
    return BT_OK;
}

/* ---- the cell */

static void set_model(bt_model_config *m)
{
    *m                    = (bt_model_config){.vocab_size      = SIM_VOCAB,
                                              .hidden          = 8,
                                              .n_layers        = SIM_LAYERS,
                                              .max_context     = SIM_CONTEXT,
                                              .first_moe_layer = 1,
                                              .moe_layer_freq  = 1,
                                              .n_eos           = 1,
                                              .eos_tokens      = {SIM_EOS}};
    m->moe.gate.n_experts = SIM_EXPERTS;
    m->moe.gate.top_k     = SIM_TOP_K;
    m->mla = (bt_mla_config){.kv_lora_rank = 16, .qk_nope_dim = 8, .qk_rope_dim = 4, .v_dim = 8};
}

static const bt_traffic *no_traffic(void *ctx)
{
    (void)ctx;
    return NULL;
}

static uint64_t never_waited(void *ctx)
{
    (void)ctx;
    return 0;
}

static void create_rank(sim_cell *c, uint32_t rank)
{
    sim_rank         *r    = &c->ranks[rank];
    bt_kv_pool_config pool = {.n_layers = SIM_LAYERS, .n_pages = c->opt.n_pages, .kv_dim = SIM_DIM};
    bt_worker_links   links = {.ctx         = r,
                               .now_ns      = sim_now,
                               .up          = sim_up,
                               .payload_max = sim_payload_max,
                               .tail_max    = sim_payload_max,
                               .stage       = sim_stage,
                               .slot        = sim_slot,
                               .take        = sim_take,
                               .unstage     = sim_unstage,
                               .send        = sim_send,
                               .cancel      = sim_cancel,
                               .poll        = sim_poll,
                               .expert_rows = sim_expert_rows,
                               .waited_ns   = never_waited,
                               .traffic     = no_traffic,
                               .launch      = sim_launch,
                               .await       = sim_await};
    bt_worker_config  cfg   = {.dev        = c->dev,
                               .kernels    = bt_cpu_kernels_find("scalar"),
                               .links      = links,
                               .epoch      = 1,
                               .chunk      = c->opt.chunk,
                               .max_rows   = c->opt.max_rows,
                               .lookahead  = true,
                               .timeout_ns = 10 * BT_NS_PER_S};

    r->cell        = c;
    r->rank        = rank;
    r->group       = c->opt.n_both == 0 && rank >= c->opt.n_prefill;
    r->self        = rank - c->group_first[r->group];
    r->epoch       = c->group_epoch[r->group];
    cfg.facts      = (bt_rank_facts){.rank            = rank,
                                     .n_ranks         = c->n_ranks,
                                     .n_prefill       = c->opt.n_prefill,
                                     .n_decode        = c->opt.n_decode,
                                     .model           = &c->model,
                                     .n_pages         = c->opt.n_pages,
                                     .share_generated = c->opt.share,
                                     .keeps_maps      = keeps_maps(c)};
    cfg.form       = c->opt.by_cost ? BT_FORM_BY_COST : BT_FORM_BY_ROLE;
    cfg.group_size = c->group_size[r->group];
    cfg.group_self = r->self;
    if (bt_kv_pool_create(c->dev, &pool, &r->pool) != BT_OK) abort();
    cfg.pool = r->pool;
    if (bt_worker_create(&cfg, &r->worker) != BT_OK) abort();
}

sim_cell *sim_create(const sim_options *opt)
{
    sim_cell             *c   = calloc(1, sizeof(*c));
    bt_device_cpu_options cpu = {.n_threads = 1, .kernels = "scalar"};

    c->opt            = *opt;
    c->random         = opt->seed * 0x9E3779B97F4A7C15ull + 1;
    c->now            = BT_NS_PER_S;
    c->n_ranks        = opt->n_both + opt->n_prefill + opt->n_decode;
    c->group_size[0]  = opt->n_both + opt->n_prefill;
    c->group_size[1]  = opt->n_decode;
    c->group_first[1] = opt->n_prefill;
    c->epoch = c->group_epoch[0] = c->group_epoch[1] = 1;
    set_model(&c->model);
    if (bt_device_cpu_create(&cpu, &c->dev) != BT_OK) abort();
    if (bt_sampler_init(&c->sampler, bt_cpu_kernels_find("scalar")->rows, SIM_VOCAB) != BT_OK)
        abort();
    c->ops = *c->dev->ops;
    if (opt->lookahead) c->ops.sampling = &SAMPLING;
    c->dev->ops = &c->ops;
    for (uint32_t i = 0; i < c->n_ranks; i++)
        create_rank(c, i);
    return c;
}

void sim_destroy(sim_cell *c)
{
    while (c->n_flights > 0)
        drop_flight(c, c->n_flights - 1);
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        sim_rank *r = &c->ranks[i];

        while (r->inbox_at < r->n_inbox)
            bt_down_free(&r->inbox[r->inbox_at++]);
        bt_worker_destroy(r->worker);
        bt_kv_pool_destroy(r->pool);
    }
    bt_sampler_fini(&c->sampler);
    bt_device_destroy(c->dev);
    free(c);
}

sim_request *sim_add(sim_cell *c, uint32_t n_prompt, uint32_t max_tokens)
{
    sim_request *q = &c->requests[c->n_requests++];

    if (c->n_requests > SIM_MAX) abort();
    q->id = q->first_id = c->n_requests;
    q->n_choices        = 1;
    q->n_prompt         = n_prompt;
    q->max_tokens       = max_tokens;
    q->stop_token       = SIM_VOCAB;
    for (uint32_t i = 0; i < n_prompt; i++)
        q->prompt[i] = (uint32_t)(mix(q->id * 1000 + i) % SIM_VOCAB);
    q->prefill_rank = (uint32_t)q->id % c->group_size[0];
    q->decode_rank =
        c->opt.n_both != 0 ? q->prefill_rank : c->opt.n_prefill + (uint32_t)q->id % c->opt.n_decode;
    return q;
}

static void check(sim_cell *c, bt_status st)
{
    if (st == BT_OK) return;
    fprintf(stderr, "a rank stops: %s\n", bt_error_text());
    c->broken = true;
}

/* ---- death */

static bt_seats seats_of(const sim_cell *c, uint32_t group)
{
    bt_seats seats = {.epoch = c->group_epoch[group], .n = c->group_size[group]};

    seats.ranks = bt_calloc(seats.n, sizeof(*seats.ranks));
    for (uint32_t i = 0; i < seats.n; i++) {
        uint32_t rank = c->group_first[group] + i;

        seats.ranks[i] = c->ranks[rank].dead ? BT_NO_RANK : rank;
    }
    return seats;
}

/* Some choice has not begun: its first token may have died with the prefill rank. */
static bool lacks_first(sim_cell *c, sim_request *q)
{
    for (uint32_t i = 0; i < q->n_choices; i++)
        if (sim_choice(c, q, i)->n_tokens == 0 && sim_choice(c, q, i)->finish == BT_FINISH_NONE)
            return true;
    return false;
}

/* As the coordinator does. */
static void lose_placement(sim_cell *c, sim_request *q, uint32_t rank)
{
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {q->id, q->epoch, 0}
    };

    if (q->n_choices == 0 || !q->reserved) return;
    q->released[rank] = true;
    if (q->aborted || q->resume) return;
    if (q->decode_rank == rank) {
        q->resume = true;
        if (q->ticketed && !q->released[q->prefill_rank]) give(c, q->prefill_rank, &m);
    } else if (q->prefill_rank == rank && lacks_first(c, q)) {
        q->resume = true;
        give(c, q->decode_rank, &m);
    }
}

static void empty_inbox(sim_rank *r)
{
    while (r->inbox_at < r->n_inbox)
        bt_down_free(&r->inbox[r->inbox_at++]);
    r->inbox_at = r->n_inbox = 0;
}

static void tell_seats(sim_cell *c)
{
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        bt_down m = {.kind = BT_DOWN_REGROUP};

        if (c->ranks[i].dead) continue;
        m.u.regroup.epoch     = c->epoch;
        m.u.regroup.groups[0] = seats_of(c, 0);
        m.u.regroup.groups[1] = seats_of(c, 1);
        give(c, i, &m);
    }
}

static void lose_coordinator(sim_cell *c)
{
    c->forsaken = false;
    for (uint32_t i = 0; i < c->n_requests; i++) {
        sim_request *q = &c->requests[i];

        if (q->epoch != 0 && !sim_ended(q)) q->lost = true;
    }
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        sim_rank *r = &c->ranks[i];

        if (r->dead) continue;
        r->waiting = false;
        empty_inbox(r);
        check(c, bt_worker_drop_all(r->worker));
    }
    c->wake[0] = c->wake[1] = 0;
    c->group_epoch[0]       = ++c->epoch;
    if (c->opt.n_both == 0) c->group_epoch[1] = ++c->epoch;
    tell_seats(c);
}

void sim_lose_coordinator(sim_cell *c, bool in_a_step)
{
    if (in_a_step)
        c->forsaken = true;
    else
        lose_coordinator(c);
}

static void die(sim_cell *c, uint32_t rank)
{
    sim_rank *r = &c->ranks[rank];

    r->dead    = true;
    r->waiting = false;
    empty_inbox(r);
    for (uint32_t i = c->n_flights; i-- > 0;)
        if (c->flights[i].from == rank) drop_flight(c, i);
    c->group_epoch[r->group] = ++c->epoch;
    tell_seats(c);
    for (uint32_t i = 0; i < c->n_requests; i++)
        lose_placement(c, &c->requests[i], rank);
}

void sim_kill(sim_cell *c, uint32_t rank, bool in_a_step)
{
    if (in_a_step)
        c->doomed = 1 + rank;
    else
        die(c, rank);
}

bool sim_is_dead(const sim_cell *c, uint32_t rank) { return c->ranks[rank].dead; }
bool sim_is_doomed(const sim_cell *c) { return c->doomed != 0 || c->forsaken; }

/* ---- steps */

/* Somebody dies under way, one of the group or the coordinator: each of the others has got what it
 * needed before, or not. */
static void break_step(sim_cell *c, uint32_t group, const bt_plan *plans)
{
    for (uint32_t i = 0; i < c->group_size[group]; i++) {
        sim_rank *r = &c->ranks[c->group_first[group] + i];
        bt_status st;

        if (r->dead) continue;
        r->waiting = false;
        r->cut_at  = roll(c, 2) == 0 ? 0 : 1 + roll(c, SIM_LAYERS);
        st         = bt_worker_finish(r->worker, plans, &r->left);
        if (st != BT_ERR_CANCELLED || r->cut_at == 0) check(c, st);
        r->cut_at = 0;
    }
    if (c->forsaken) {
        lose_coordinator(c);
        return;
    }
    die(c, c->doomed - 1);
    c->doomed = 0;
}

static void finish_group(sim_cell *c, uint32_t group)
{
    bt_plan  plans[SIM_MAX_RANKS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->group_size[group]; i++) {
        sim_rank *r = &c->ranks[c->group_first[group] + i];

        if (r->dead) continue;
        if (!r->waiting || r->epoch != c->group_epoch[group]) return;
        plans[n++] = r->plan;
    }
    if (c->forsaken || (c->doomed != 0 && c->ranks[c->doomed - 1].group == group)) {
        break_step(c, group, plans);
        return;
    }
    for (uint32_t i = 0; i < c->group_size[group]; i++) {
        sim_rank *r = &c->ranks[c->group_first[group] + i];

        if (r->dead) continue;
        r->waiting = false;
        check(c, bt_worker_finish(r->worker, plans, &r->left));
    }
}

/* What the transport does before: messages for the dead are gone. */
static void follow(sim_cell *c, sim_rank *r, const bt_down_regroup *m)
{
    if (r->epoch != m->groups[r->group].epoch) r->n_late = 0; /* it has come to nothing */
    r->epoch = m->groups[r->group].epoch;
    for (uint32_t i = c->n_flights; i-- > 0;)
        if (c->flights[i].from == r->rank && c->ranks[c->flights[i].to].dead) drop_flight(c, i);
}

static void take_message(sim_cell *c, sim_rank *r)
{
    bt_down m = r->inbox[r->inbox_at++];

    if (r->inbox_at == r->n_inbox) r->inbox_at = r->n_inbox = 0;
    if (m.kind == BT_DOWN_REGROUP) follow(c, r, &m.u.regroup);
    check(c, bt_worker_control(r->worker, &m));
    bt_down_free(&m);
}

/* The exchange that it waits in will never end: it has heard of another epoch. */
static bool hears_of_change(const sim_rank *r)
{
    for (uint32_t i = r->inbox_at; i < r->n_inbox; i++)
        if (r->inbox[i].kind == BT_DOWN_REGROUP &&
            r->inbox[i].u.regroup.groups[r->group].epoch != r->epoch)
            return true;
    return false;
}

static void act(sim_cell *c, sim_rank *r)
{
    bt_next next = BT_NEXT_PARK;

    if (r->left || r->dead) return;
    if (r->waiting && hears_of_change(r)) {
        r->waiting = false;
        while (r->inbox_at < r->n_inbox) /* all of it, before the next step */
            take_message(c, r);
    }
    if (r->waiting || roll(c, 3) == 0) {
        bt_worker_background(r->worker);
        check(c, bt_worker_background_status(r->worker));
        return;
    }
    for (uint32_t n = roll(c, 4); n > 0 && r->inbox_at < r->n_inbox; n--)
        take_message(c, r);
    check(c, bt_worker_begin(r->worker, &r->plan, &next));
    r->left    = next == BT_NEXT_LEAVE;
    r->waiting = next == BT_NEXT_GATHER;
    if (r->waiting) finish_group(c, r->group);
}

bool sim_act(sim_cell *c)
{
    c->now += BT_NS_PER_MS / 10;
    act(c, &c->ranks[roll(c, c->n_ranks)]);
    for (uint32_t i = 0; i < c->n_requests; i++) {
        sim_request *q = &c->requests[i]; /* refused: again when somebody has let go */

        if (q->lost) continue;
        if (q->n_choices > 0 && q->refused && !q->reserved && !q->aborted && roll(c, 50) == 0)
            sim_start(c, q);
        resume(c, q);
    }
    return !c->broken;
}

bool sim_ended(const sim_request *q)
{
    uint32_t seen = 0;

    if (q->n_choices == 0 || q->lost) return true; /* ends with the first */
    for (uint32_t i = 0; q->eval && i < q->n_prompt + q->n_eval; i++)
        seen += q->rows_seen[i];
    if (!q->aborted && !q->failed && !(q->eval && seen == q->n_prompt + q->n_eval)) return false;
    return (!q->reserved || q->released[q->decode_rank]) &&
           (!q->ticketed || q->released[q->prefill_rank]);
}

bool sim_run(sim_cell *c)
{
    for (uint32_t k = 0; k < STEP_LIMIT; k++) {
        bool all = true;

        if (!sim_act(c)) return false;
        for (uint32_t i = 0; i < c->n_requests; i++)
            all = all && sim_ended(&c->requests[i]);
        if (all && c->n_flights == 0) return true;
    }
    for (uint32_t i = 0; i < c->n_requests; i++)
        if (!sim_ended(&c->requests[i]))
            fprintf(stderr, "request %u has not ended: %u tokens, ticketed %d, released %d %d\n",
                    i + 1, c->requests[i].n_tokens, c->requests[i].ticketed,
                    c->requests[i].released[c->requests[i].prefill_rank],
                    c->requests[i].released[c->requests[i].decode_rank]);
    return false;
}

bool sim_shut_down(sim_cell *c)
{
    bt_down m   = {.kind = BT_DOWN_SHUTDOWN};
    bool    all = false;

    for (uint32_t i = 0; i < c->n_ranks; i++)
        give(c, i, &m);
    for (uint32_t k = 0; k < 20000 && !all; k++) {
        if (!sim_act(c)) return false;
        all = true;
        for (uint32_t i = 0; i < c->n_ranks; i++)
            all = all && (c->ranks[i].left || c->ranks[i].dead);
    }
    return all;
}

uint32_t sim_n_ranks(const sim_cell *c) { return c->n_ranks; }
uint32_t sim_free_pages(const sim_cell *c, uint32_t rank)
{
    return bt_kv_pool_n_available(c->ranks[rank].pool);
}
bool sim_pool_is_sound(const sim_cell *c, uint32_t rank)
{
    return bt_kv_pool_check(c->ranks[rank].pool) == BT_OK;
}
uint64_t sim_steps(const sim_cell *c) { return c->n_steps; }
uint64_t sim_steps_ahead(const sim_cell *c) { return c->n_ahead; }
void     sim_pass_time(sim_cell *c, uint64_t ns) { c->now += ns; }
