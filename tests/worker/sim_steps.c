/* tests/worker/sim_steps.c - steps of the simulated cell: as a device runs them, at once or later,
 * one behind another. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/worker/sim_state.h"

/* Whether the step may run after its launch: it has no rows of a prompt, whose layers are told. */
static bool is_late(const sim_rank *r, const bt_step *step)
{
    bool late = r->cell->opt.lookahead && !sim_keeps_maps(r->cell) && step->draws != NULL;

    for (uint32_t i = 0; i < step->n_spans; i++)
        late = late && step->spans[i].role == BT_ROLE_GENERATED;
    return late;
}

/* What a device that chooses tokens counts, each history from 1 on. */
struct bt_device_sampler {
    bt_history histories[BT_MAX_HISTORIES + 1];
};

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

/* The logits after the edits of draw i. */
static const float *edited(const sim_late_step *l, uint32_t i, const float *logits)
{
    static float row[SIM_VOCAB];

    memcpy(row, logits, sizeof(row));
    for (uint32_t k = 0; k < l->draws.n_edits; k++) {
        const bt_logit_edit *e = &l->edits[k];
        float               *x = &row[e->id];

        if (e->draw != i) continue;
        *x += e->bias;
        if (e->repetition != 1) *x = *x > 0 ? *x / e->repetition : *x * e->repetition;
        *x -= e->frequency * (float)e->count;
        if (e->count > 0) *x -= e->presence;
        if (e->banned != 0) *x = -INFINITY;
    }
    return row;
}

static bool has_edit(const sim_late_step *l, uint32_t draw)
{
    for (uint32_t k = 0; k < l->draws.n_edits; k++)
        if (l->edits[k].draw == draw) return true;
    return false;
}

void sim_draw_for(sim_rank *r, sim_late_step *l, uint32_t row, const bt_span *span,
                  uint32_t position, const float *logits)
{
    for (uint32_t i = 0; i < l->draws.n_draws; i++) {
        const bt_draw *d       = &l->draw[i];
        bt_history    *history = &l->step.sampling->histories[d->history];
        bt_sample_how  how;
        uint32_t       ids[1];
        float          top[1];

        if (d->row != row) continue;
        how            = how_drawn(r->cell, d, position);
        how.history    = d->history != 0 ? history : NULL;
        how.repetition = d->repetition;
        how.frequency  = d->frequency;
        how.presence   = d->presence;
        how.allowed =
            d->mask == 0 ? NULL : l->draws.masks + (size_t)(d->mask - 1) * ((SIM_VOCAB + 31) / 32);
        r->cell->n_uncounted +=
            d->history == 0 && span->role == BT_ROLE_GENERATED && has_edit(l, i);
        if (!bt_sample(&r->cell->sampler, edited(l, i, logits), &how, &l->ids[i])) {
            if (d->mask == 0) abort(); /* else behind a draft that does not belong there */
            l->ids[i] = r->last_ids[i] = (uint32_t)BT_NO_TOKEN;
            continue;
        }
        if (d->history != 0 && bt_history_add(history, l->ids[i], false) != BT_OK) abort();
        bt_logprobs(&r->cell->sampler, logits, l->ids[i], 0, &l->logprobs[i], ids, top);
        r->last_ids[i] = l->ids[i];
    }
}

void sim_expect_pages_kept(const sim_rank *r, const sim_late_step *l)
{
    for (uint32_t s = 0; s < l->step.n_spans; s++)
        for (uint32_t k = 0; k < bt_kv_pages_for(l->spans[s].start + l->spans[s].n_rows); k++) {
            if (bt_kv_pool_generation(r->pool, l->pages[s][k]) == l->generations[s][k]) continue;
            fprintf(stderr, "rank %u: page %u is taken while a step has it\n", r->rank,
                    l->pages[s][k]);
            r->cell->broken = true;
        }
}

static bt_status run_step(sim_rank *r, sim_late_step *l)
{
    static float   row[SIM_VOCAB];
    sim_cell      *c    = r->cell;
    const bt_step *step = &l->step;

    sim_expect_pages_kept(r, l);
    for (uint32_t i = 0; step->fed != NULL && i < step->n_rows; i++)
        if (l->fed[i] != BT_NOT_DRAWN) l->tokens[i] = r->last_ids[l->fed[i]];
    for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
        for (uint32_t s = 0; s < step->n_spans; s++) {
            const bt_span *span = &step->spans[s];

            for (uint32_t i = 0; i < span->n_rows; i++) {
                uint32_t at = span->start + i;

                sim_latent(l->tokens[span->first_row + i], at, layer,
                           sim_keeps_maps(c) ? sim_how_of(span->role == BT_ROLE_GENERATED,
                                                          span->form == BT_FORM_ABSORBED)
                                             : 0,
                           bt_kv_pool_rows(r->pool, span->pages[at / BT_PAGE_TOKENS], layer) +
                               (size_t)(at % BT_PAGE_TOKENS) * SIM_DIM);
            }
        }
        r->is_cut = r->cut_at == layer + 1;
        if (r->is_cut) return BT_ERR_CANCELLED;
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
                h = sim_add_row(h,
                                bt_kv_pool_rows(r->pool, span->pages[t / BT_PAGE_TOKENS], layer) +
                                    (size_t)(t % BT_PAGE_TOKENS) * SIM_DIM);
        if (step->draws == NULL) {
            sim_fill_logits(h, step->logits + (size_t)k * SIM_VOCAB);
            continue;
        }
        sim_fill_logits(h, row);
        sim_draw_for(r, l, k, span, span->start + step->logit_rows[k] - span->first_row + 1, row);
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

/* What its lists hold is free after launch(). */
void sim_keep_step(const sim_rank *r, sim_late_step *l, const bt_step *step)
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
    l->edits = realloc(l->edits, (l->draws.n_edits + 1) * sizeof(*l->edits));
    memcpy(l->edits, step->draws->edits, l->draws.n_edits * sizeof(*l->edits));
}

bt_status sim_launch(void *ctx, bt_step *step)
{
    sim_rank *r = ctx;
    sim_cell *c = r->cell;

    if (r->n_late == SIM_MAX_LATE) abort();
    c->n_ahead += r->n_late > 0;
    sim_keep_step(r, &r->late[r->n_late++], step);
    if (is_late(r, step) && sim_roll(c, 4) != 0) return BT_OK;
    run_late(r, r->n_late);
    if (r->late[r->n_late - 1].st == BT_OK) return BT_OK;
    return r->late[--r->n_late].st;
}

/* Its pages are held until what drafts behind it is over too. */
static void keep_over(sim_rank *r, const sim_late_step *l)
{
    bt_logit_edit *edits = r->over.edits;

    r->over            = *l;
    r->over.edits      = edits;
    r->over.step.spans = r->over.spans;
    r->n_behind        = 0;
}

bt_status sim_await(void *ctx)
{
    sim_rank        *r     = ctx;
    sim_late_step   *l     = &r->late[0];
    bt_logit_edit   *edits = l->edits; /* stay with a place */
    bt_draw_results *out;
    bt_status        st;

    if (r->n_late == 0) abort();
    run_late(r, 1);
    st = l->st;
    keep_over(r, l);
    out = l->step.draws == NULL ? NULL : l->draws.out;
    for (uint32_t i = 0; out != NULL && i < l->draws.n_draws; i++) {
        out->ids[i]     = (int32_t)l->ids[i];
        out->logprob[i] = l->logprobs[i];
        out->n_found[i] = 0;
    }
    memmove(&r->late[0], &r->late[1], --r->n_late * sizeof(*l));
    if (r->n_late > 0) r->late[r->n_late].edits = edits;
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
    (void)dev, (void)n_vocab, (void)max_draws;
    *sampling_out = calloc(1, sizeof(**sampling_out));
    return BT_OK;
}

static bt_status set_history(bt_device_sampler *s, uint32_t history, uint32_t n,
                             const bt_seen_token *seen)
{
    bt_status   st = BT_OK;
    bt_history *h  = &s->histories[history];

    bt_history_fini(h);
    for (uint32_t i = 0; i < n; i++) {
        BT_TRY(bt_history_add(h, seen[i].id, true));
        for (uint32_t k = 0; k < seen[i].count; k++)
            BT_TRY(bt_history_add(h, seen[i].id, false));
    }
out:
    return st;
}

static void destroy_sampler(bt_device_sampler *s)
{
    for (uint32_t i = 0; s != NULL && i <= BT_MAX_HISTORIES; i++)
        bt_history_fini(&s->histories[i]);
    free(s);
}

const bt_sampling_ops sim_sampling = {.bytes       = no_bytes,
                                      .create      = create_sampler,
                                      .set_history = set_history,
                                      .destroy     = destroy_sampler};
