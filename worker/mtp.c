/* worker/mtp.c - drafts by the model's own layer for multi-token prediction (model/model.h).
 *
 * Behind each step, when its tokens are known, all of its rows fill the layer's pages; and of the
 * requests that go on, the last right row drafts the token after the next one, by the logits of the
 * layer and by that token's own number (sampler.h): where the layer is right about the
 * probabilities, it draws what the model will draw.  Each further draft is of the row before, one
 * position on.
 *
 * Which pieces draft is part of the step's plan, since experts are exchanged; one that ends with
 * the step drafts in vain. */
#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"
#include "worker/state.h"

/* What weighs against reading weights: products of rows, with a byte of them each, that a byte's
 * time has room for; and what a step takes beside them, in bytes.  Of a CPU as measured on a Zen 5
 * (docs/measurements/step_cpu.md; 0.3 ms), of a GPU by the data sheet of an H100, and as reckoned.
 */
static const struct {
    double ops_a_byte, beside;
} ON_CPU = {14, 15e6}, ON_GPU = {290, 1e9};

bt_status bt_mtp_init(bt_mtp *m, const bt_worker_config *cfg)
{
    bt_status st   = BT_OK;
    size_t    rows = cfg->max_rows;

    *m            = (bt_mtp){0};
    m->pieces     = bt_calloc(rows, sizeof(*m->pieces));
    m->depth      = bt_calloc(rows, sizeof(*m->depth));
    m->tokens     = bt_calloc(rows, sizeof(*m->tokens));
    m->logit_rows = bt_calloc(rows, sizeof(*m->logit_rows));
    m->spans      = bt_calloc(rows, sizeof(*m->spans));
    m->logits     = bt_calloc_aligned(rows * cfg->facts.model->vocab_size, sizeof(*m->logits));
    BT_REQUIRE(m->pieces != NULL && m->depth != NULL && m->tokens != NULL &&
                   m->logit_rows != NULL && m->spans != NULL && m->logits != NULL,
               BT_ERR_NO_MEMORY, "drafts of %u rows: try a smaller --max-rows", cfg->max_rows);
    BT_TRY(bt_draw_list_init(&m->draws, cfg->dev, cfg->facts.model->vocab_size, cfg->max_rows));
out:
    if (st != BT_OK) bt_mtp_fini(m);
    return st;
}

void bt_mtp_fini(bt_mtp *m)
{
    bt_free(m->pieces);
    bt_free(m->depth);
    bt_free(m->tokens);
    bt_free(m->logit_rows);
    bt_free(m->spans);
    bt_free(m->logits);
    bt_draw_list_fini(&m->draws);
    *m = (bt_mtp){0};
}

/* ---- the plan */

/* Tokens that the piece's request might use of a draft: those that it may still say, and has pages
 * for, wherever the step ends of what it drafts already. */
static uint32_t draft_room(const bt_worker *w, const bt_batch *b, uint32_t piece)
{
    const bt_piece   *p   = &b->pieces[piece];
    const bt_request *r   = p->request;
    uint32_t          end = p->start + p->n_rows, last, left;

    if (!r->drafts || !b->due[piece]) return 0;
    last = bt_min_u32(r->n_pages * BT_PAGE_TOKENS, w->cfg.facts.model->max_context);
    left = r->sampling.max_tokens - bt_min_u32(r->n_known + 2, r->sampling.max_tokens);
    /* all that draft do so as often as the one that has most to draft */
    if (end + w->cfg.facts.mtp - 1 > last) return 0;
    return bt_min_u32(left, w->cfg.facts.mtp);
}

/* Rows that the next step brings of requests that decode, drafts aside. */
static uint32_t n_going_on(const bt_batch *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_pieces; i++)
        n += b->due[i];
    return n;
}

/* Rows that it brings of prompts, of those that are here: they come before drafts. */
static uint32_t n_prompt_rows(const bt_worker *w, const bt_batch *b)
{
    uint32_t chunk = w->scheduler.chunk;
    uint64_t n     = 0;

    for (uint32_t i = 0; i < w->requests.n; i++) {
        const bt_request *r = w->requests.at[i];

        if (r->state == BT_REQUEST_PREFILL) n += bt_min_u32(chunk, r->n_prompt - r->n_computed);
    }
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        const bt_piece *p    = &b->pieces[i];
        uint32_t        left = bt_piece_is_prompt(p) ? p->request->n_prompt - p->start : 0;

        if (left == 0) continue;
        n += bt_min_u32(chunk, left - p->n_rows);
        n -= bt_min_u32(chunk, left);
    }
    return n < w->scheduler.max_rows ? (uint32_t)n : w->scheduler.max_rows;
}

/* What a step of n rows of the group costs this rank, in bytes that it reads in the same time.  Of
 * the experts, of which each row chooses top_k, those are read that some row has chosen; the ranks
 * have equal parts of them, and of the rows. */
static double step_cost(const bt_worker *w, double n)
{
    const bt_gate_config *gate  = &w->cfg.facts.model->moe.gate;
    const bt_step_reads  *reads = &w->cfg.reads;
    double                ranks = w->cfg.group_size, all = gate->n_experts;
    double                read = all == 0 ? 0 : all * (1 - pow(1 - gate->top_k / all, n)) / ranks;
    double                products = n * (reads->dense + gate->top_k * reads->expert) / ranks;

    return reads->dense + read * reads->expert +
           products / (w->cfg.dev->host_memory ? ON_CPU : ON_GPU).ops_a_byte;
}

/* What a token more of each draft costs, where each request that goes on brings one: the rows that
 * it adds to the step, and what the layer and the head take to draft them; in tokens of that step
 * for each of them. */
static float draft_price(const bt_worker *w, const bt_batch *b)
{
    const bt_model_config *cfg  = w->cfg.facts.model;
    double                 n    = n_going_on(b) * (double)w->cfg.group_size;
    double                 cost = step_cost(w, n), rows = n * (step_cost(w, n + 1) - cost);
    double                 head  = (double)cfg->vocab_size * cfg->hidden * sizeof(bt_bf16);
    double                 layer = (cost - head) / bt_model_n_served_layers(cfg);

    if (w->cfg.reads.dense <= 0) return 0;
    cost += (w->cfg.dev->host_memory ? ON_CPU : ON_GPU).beside;
    return (float)((rows + layer + head) / cost);
}

void bt_worker_plan_mtp(bt_worker *w, const bt_batch *b, bt_plan *plan_out)
{
    bt_mtp  *m      = &w->mtp;
    uint32_t most   = w->scheduler.mtp_rows;
    uint32_t n_rows = n_going_on(b) + n_prompt_rows(w, b);
    uint32_t first  = b->n_pieces == 0 ? 0 : (uint32_t)(w->n_steps % b->n_pieces);
    float    price  = draft_price(w, b);

    memset(m->depth, 0, b->n_pieces * sizeof(*m->depth));
    for (uint32_t k = 0; k < b->n_pieces && n_rows < most; k++) { /* each is first in turn */
        uint32_t       i = (first + k) % b->n_pieces, room = draft_room(w, b, i);
        bt_draft_pace *p = &b->pieces[i].request->pace;

        if (room == 0) continue;
        if (!p->knows) *p = m->pace;
        m->depth[i] = bt_pace_depth(p, bt_min_u32(room, most - n_rows), price);
        n_rows += m->depth[i];
    }
    m->n = 0;
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        if (m->depth[i] == 0) continue;
        m->depth[m->n]    = m->depth[i];
        m->pieces[m->n++] = i;
        plan_out->last_rows[b->pieces[i].role]++;
        plan_out->n_drafts = bt_max_u32(plan_out->n_drafts, m->depth[m->n - 1]);
    }
}

/* ---- the rows */

/* The token behind a row of the piece, as far as it is known; behind others it does not matter, nor
 * in an evaluation, which never drafts. */
static uint32_t token_after(const bt_batch *b, uint32_t piece, uint32_t row)
{
    const bt_piece   *p  = &b->pieces[piece];
    const bt_request *r  = b->held[piece];
    uint32_t          at = p->start + row + 1;

    if (at < r->n_prompt) return r->prompt[at];
    if (p->start < r->n_prompt && b->due[piece]) return r->firsts[0].id;
    if (p->start >= r->n_prompt && at == r->n_computed && b->due[piece]) return r->next_token;
    at -= r->n_prompt;
    if (row + 1 < p->n_rows) return b->tokens[b->spans[piece].first_row + row + 1];
    return at < r->n_replay ? r->replay[at] : 0;
}

/* Few rows draft, whatever their role: the absorbed form is the cheaper one.  Where a rank lacks
 * it, it only fills pages, or has the other one for all. */
static bt_attn_form form_of(const bt_worker *w, const bt_span *span)
{
    bool has = w->cfg.form != BT_FORM_ALL_NORMAL && bt_rank_decodes(&w->cfg.facts);

    return has ? BT_FORM_ABSORBED : span->form;
}

/* All rows of the step; those that draft are the last right ones. */
static void fill_first(bt_worker *w, const bt_batch *b, bt_step *step)
{
    bt_mtp *m = &w->mtp;

    step->n_rows  = b->step.n_rows;
    step->n_spans = b->step.n_spans;
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        m->spans[i]      = b->spans[i];
        m->spans[i].form = form_of(w, &b->spans[i]);
        for (uint32_t row = 0; row < b->spans[i].n_rows; row++)
            m->tokens[b->spans[i].first_row + row] = token_after(b, i, row);
    }
    for (uint32_t k = 0; k < m->n; k++) {
        uint32_t i = m->pieces[k];

        m->logit_rows[k] = b->spans[i].first_row + b->held[i]->n_computed - 1 - b->pieces[i].start;
    }
}

/* The rows that have drafted, with what they have drafted, one position on. */
static void fill_next(bt_worker *w, const bt_batch *b, uint32_t round, bt_step *step)
{
    bt_mtp *m = &w->mtp;

    step->n_rows = step->n_spans = m->n;
    for (uint32_t k = 0; k < m->n; k++) {
        bt_span           span = b->spans[m->pieces[k]];
        const bt_request *r    = b->held[m->pieces[k]];

        span.first_row   = k;
        span.n_rows      = 1;
        span.start       = r->n_computed - 1 + round;
        span.form        = form_of(w, &span);
        m->spans[k]      = span;
        m->tokens[k]     = r->n_mtp == round ? r->draft[round - 1] : 0;
        m->logit_rows[k] = k;
    }
}

/* ---- the choices */

static bt_sample_how how_of(const bt_worker *w, const bt_batch *b, uint32_t k, uint32_t round)
{
    const bt_request *r   = b->held[w->mtp.pieces[k]]; /* the piece's own, unless that has failed */
    bt_sample_how     how = bt_worker_how(w, r, r->sampling.choice, r->n_computed + 1 + round);

    bt_worker_apply_mask(w, k, &how);
    return how;
}

/* A draft that its request's constraint does not allow would never be right.  Behind a prompt the
 * first token is chosen, but not yet known to the request (choices.c). */
static bt_status make_masks(bt_worker *w, const bt_batch *b, uint32_t round)
{
    bt_status st = BT_OK;

    BT_TRY(bt_worker_take_masks(w, w->mtp.n));
    for (uint32_t k = 0; k < w->mtp.n; k++) {
        uint32_t          piece = w->mtp.pieces[k];
        const bt_request *r     = b->held[piece];
        bool              first = b->pieces[piece].start < r->n_prompt;

        bt_worker_add_mask(w, r, first ? &r->firsts[0].id : NULL, r->n_mtp == round ? round : 0);
    }
    bt_worker_fill_masks(w);
out:
    return st;
}

/* On the device with the step, unless it has no room for them. */
static void plan_draws(bt_worker *w, const bt_batch *b, uint32_t round, bt_step *step)
{
    bt_mtp *m = &w->mtp;

    step->logits   = m->logits;
    step->sampling = m->draws.sampling;
    if (m->draws.sampling == NULL) return;
    bt_draw_list_clear(&m->draws);
    for (uint32_t k = 0; k < m->n; k++) {
        bt_sample_how how = how_of(w, b, k, round);

        if (!bt_draw_list_add(&m->draws, &how, 0, k, false, 0)) return;
    }
    m->view     = bt_draw_list_view(&m->draws);
    step->draws = &m->view;
}

static bt_status draw_here(bt_worker *w, const bt_batch *b, uint32_t round)
{
    bt_mtp   *m  = &w->mtp;
    bt_status st = BT_OK;

    BT_TRY(bt_worker_take_draws(w, m->n));
    for (uint32_t k = 0; k < m->n; k++)
        w->host_draws[k] =
            (bt_host_draw){.logits = m->logits + (size_t)k * w->cfg.facts.model->vocab_size,
                           .how    = how_of(w, b, k, round)};
    bt_worker_draw(w, m->n);
out:
    return st;
}

/* False when no logit was finite. */
static bool drafted(const bt_worker *w, uint32_t k, const bt_step *step, uint32_t *id_out)
{
    if (step->draws != NULL) return bt_drawn_id(&w->mtp.draws, w->mtp.view.out, k, id_out);
    *id_out = w->host_draws[k].token.id;
    return w->host_draws[k].found;
}

/* What the round has drafted becomes the requests': as far as nothing before it failed. */
static bt_status take_drafts(bt_worker *w, const bt_batch *b, uint32_t round, const bt_step *step)
{
    bt_mtp   *m  = &w->mtp;
    bt_status st = BT_OK;

    if (step->draws == NULL) BT_TRY(draw_here(w, b, round));
    for (uint32_t k = 0; k < m->n; k++) {
        bt_request *r     = b->held[m->pieces[k]];
        bool        found = drafted(w, k, step, &r->draft[round]);

        r->n_mtp += found && r->n_mtp == round && round < m->depth[k];
    }
out:
    return st;
}

bt_status bt_worker_run_mtp(bt_worker *w, bt_batch *b)
{
    bt_mtp   *m    = &w->mtp;
    bt_status st   = BT_OK;
    bt_step   step = {
          .tokens = m->tokens, .spans = m->spans, .logit_rows = m->logit_rows, .n_logit_rows = m->n};

    step.last_rows = (bt_step_rows){.n_ranks = w->cfg.group_size,
                                    .n_rows  = (const uint32_t(*)[BT_N_ROLES])b->last_rows};
    for (uint32_t k = 0; k < m->n; k++) {
        bt_request *r = b->held[m->pieces[k]];

        r->n_mtp  = 0;
        r->mtp_at = r->n_computed + 1;
    }
    for (uint32_t round = 0; round == 0 || round < b->n_drafts; round++) {
        step.draws = NULL;
        if (round == 0)
            fill_first(w, b, &step);
        else
            fill_next(w, b, round, &step);
        BT_TRY(make_masks(w, b, round));
        plan_draws(w, b, round, &step);
        BT_TRY(w->cfg.links.draft(w->cfg.links.ctx, &step));
        BT_TRY(take_drafts(w, b, round, &step));
    }
out:
    return st;
}
