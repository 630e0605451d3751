/* tests/worker/sim_mtp.c - the layer for multi-token prediction of the simulated cell.
 *
 * Its row of a position holds the token that follows, in plain.  So what it drafts is what the
 * model will say, three times of four, by the model's own pages and the tokens that its rows hold;
 * and every row that it reads can be held against the page that has its token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/worker/sim_state.h"

static bt_bf16 *row_of(const sim_rank *r, const bt_span *span, uint32_t position, uint32_t layer)
{
    return bt_kv_pool_rows(r->pool, span->pages[position / BT_PAGE_TOKENS], layer) +
           (size_t)(position % BT_PAGE_TOKENS) * SIM_DIM;
}

static void fill_row(bt_bf16 *row, uint32_t token, uint32_t position)
{
    row[0] = (bt_bf16)token;
    row[1] = (bt_bf16)position;
    row[2] = (bt_bf16)(token ^ 0x5a5a);
    row[3] = (bt_bf16)(position * 7 + 3);
}

/* SIM_VOCAB: the row is not this position's. */
static uint32_t token_in(const bt_bf16 *row, uint32_t position)
{
    bt_bf16 want[SIM_DIM];

    fill_row(want, row[0], position);
    return memcmp(row, want, sizeof(want)) == 0 && row[0] < SIM_VOCAB ? row[0] : SIM_VOCAB;
}

/* Whether the model's row of the position is this token's, however it was computed. */
static bool is_token(const sim_cell *c, const bt_bf16 *row, uint32_t token, uint32_t position)
{
    bt_bf16 want[SIM_DIM];

    for (uint32_t how = sim_keeps_maps(c) ? 1 : 0; how <= (sim_keeps_maps(c) ? 4 : 0); how++) {
        sim_latent(token, position, 0, how, want);
        if (memcmp(row, want, sizeof(want)) == 0) return true;
    }
    return false;
}

/* Rows up to `end` of which the model has the token behind them.  The last one of a page may be
 * another's, who had the page's tokens in common, and not the next. */
static void check_rows(sim_rank *r, const bt_span *span, uint32_t end)
{
    sim_cell *c = r->cell;

    for (uint32_t t = 0; t < end; t++) {
        uint32_t token = token_in(row_of(r, span, t, SIM_LAYERS), t);

        if (t % BT_PAGE_TOKENS == BT_PAGE_TOKENS - 1 && token != SIM_VOCAB) continue;
        if (token == SIM_VOCAB || !is_token(c, row_of(r, span, t + 1, 0), token, t + 1))
            c->n_stale++;
    }
}

/* The logits of the token after the next one, by the model's rows up to `known` and the tokens
 * that the layer's rows from there on hold. */
static void draft_logits(const sim_rank *r, const bt_span *span, uint32_t known, uint32_t position,
                         float *logits)
{
    uint32_t how = sim_keeps_maps(r->cell) ? sim_how_of(true, true) : 0;
    uint64_t h   = 0;
    bt_bf16  row[SIM_DIM];

    for (uint32_t t = 0; t <= position + 1; t++)
        for (uint32_t layer = 0; layer < SIM_LAYERS; layer++) {
            if (t > known)
                sim_latent(row_of(r, span, t - 1, SIM_LAYERS)[0], t, layer, how, row);
            else
                memcpy(row, row_of(r, span, t, layer), sizeof(row));
            h = sim_add_row(h, row);
        }
    sim_fill_logits(sim_mix(h) % 4 == 0 ? h + 1 : h, logits);
}

/* The rows that the group has agreed on for this rank. */
static void check_plan(const sim_rank *r, const bt_step *step, const uint32_t n[BT_N_ROLES])
{
    sim_cell *c    = r->cell;
    uint32_t  self = 0;

    for (uint32_t i = c->group_first[r->group]; i < r->rank; i++)
        self += !c->ranks[i].dead;
    if (memcmp(step->last_rows.n_rows[self], n, BT_N_ROLES * sizeof(*n)) == 0) return;
    fprintf(stderr, "rank %u drafts for %u + %u rows, which it did not plan\n", r->rank, n[0],
            n[1]);
    c->broken = true;
}

bt_status sim_draft(void *ctx, bt_step *step)
{
    static float   logits[SIM_VOCAB];
    sim_rank      *r             = ctx;
    sim_late_step *l             = &r->draft;
    bool           first         = r->n_behind == 0;
    uint32_t       n[BT_N_ROLES] = {0, 0};

    sim_keep_step(r, l, step);
    if (step->draws != NULL && step->sampling == NULL) {
        fprintf(stderr, "rank %u: a draft is drawn by no sampler\n", r->rank);
        r->cell->broken = true;
    }
    if (first) sim_expect_pages_kept(r, &r->over);
    r->n_behind++;
    r->n_draft_calls++;
    for (uint32_t s = 0; s < step->n_spans; s++)
        for (uint32_t i = 0; i < step->spans[s].n_rows; i++) {
            uint32_t at = step->spans[s].start + i;

            fill_row(row_of(r, &step->spans[s], at, SIM_LAYERS),
                     step->tokens[step->spans[s].first_row + i], at);
        }
    r->is_cut = r->cut_at == SIM_LAYERS + 1;
    if (r->is_cut) return BT_ERR_CANCELLED;
    for (uint32_t k = 0, s = 0; k < step->n_logit_rows; k++) {
        const bt_span *span;
        uint32_t       at;

        while (step->spans[s].first_row + step->spans[s].n_rows <= step->logit_rows[k])
            s++;
        span = &step->spans[s];
        at   = span->start + step->logit_rows[k] - span->first_row;
        n[span->role]++;
        if (first) r->known[k] = at;
        if (first) check_rows(r, span, at);
        draft_logits(r, span, r->known[k], at, logits);
        if (step->draws == NULL)
            memcpy(step->logits + (size_t)k * SIM_VOCAB, logits, sizeof(logits));
        else
            sim_draw_for(r, l, k, span, at + 2, logits);
    }
    check_plan(r, step, n);
    for (uint32_t i = 0; step->draws != NULL && i < step->draws->n_draws; i++)
        step->draws->out->ids[i] = (int32_t)l->ids[i];
    return BT_OK;
}
