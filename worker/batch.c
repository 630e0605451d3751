/* worker/batch.c - a step's rows as the model wants them: tokens, spans, rows that need logits,
 * forced experts; and an evaluation's results on their way back. */
#include <string.h>

#include "core/alloc.h"
#include "worker/state.h"

/* Well below the largest gRPC message, and of some rows of any vocabulary. */
enum { EVAL_MESSAGE_BYTES = 32 << 20 };

static size_t experts_elems(const bt_worker_config *cfg)
{
    return (size_t)bt_model_n_moe_layers(cfg->facts.model) * cfg->max_rows *
           cfg->facts.model->moe.gate.top_k;
}

bt_status bt_batch_init(bt_batch *b, const bt_worker_config *cfg)
{
    bt_status st   = BT_OK;
    size_t    rows = cfg->max_rows;

    *b              = (bt_batch){0};
    b->pieces       = bt_calloc(rows, sizeof(*b->pieces));
    b->spans        = bt_calloc(rows, sizeof(*b->spans));
    b->tokens       = bt_calloc(rows, sizeof(*b->tokens));
    b->logit_rows   = bt_calloc(rows, sizeof(*b->logit_rows));
    b->first_logit  = bt_calloc(rows, sizeof(*b->first_logit));
    b->first_draw   = bt_calloc(rows, sizeof(*b->first_draw));
    b->first_mask   = bt_calloc(rows, sizeof(*b->first_mask));
    b->fed          = bt_calloc(rows, sizeof(*b->fed));
    b->due          = bt_calloc(rows, sizeof(*b->due));
    b->logits       = bt_calloc_aligned(rows * cfg->facts.model->vocab_size, sizeof(*b->logits));
    b->forced       = bt_calloc(experts_elems(cfg), sizeof(*b->forced));
    b->chosen       = bt_calloc(experts_elems(cfg), sizeof(*b->chosen));
    b->group_rows   = bt_calloc(cfg->facts.n_ranks, sizeof(*b->group_rows));
    b->last_rows    = bt_calloc(cfg->facts.n_ranks, sizeof(*b->last_rows));
    b->finish       = bt_calloc(rows, sizeof(*b->finish));
    b->held         = bt_calloc(rows, sizeof(bt_request *));
    b->out          = bt_calloc(2 * rows, sizeof(*b->out));
    b->out_capacity = 2 * cfg->max_rows;
    BT_REQUIRE(b->pieces != NULL && b->spans != NULL && b->tokens != NULL &&
                   b->logit_rows != NULL && b->first_logit != NULL && b->first_draw != NULL &&
                   b->first_mask != NULL && b->fed != NULL && b->due != NULL && b->logits != NULL &&
                   b->forced != NULL && b->chosen != NULL && b->group_rows != NULL &&
                   b->last_rows != NULL && b->finish != NULL && b->held != NULL && b->out != NULL,
               BT_ERR_NO_MEMORY, "a step of %u rows: try a smaller --max-rows", cfg->max_rows);
out:
    if (st != BT_OK) bt_batch_fini(b);
    return st;
}

void bt_batch_fini(bt_batch *b)
{
    bt_free(b->pieces);
    bt_free(b->spans);
    bt_free(b->tokens);
    bt_free(b->logit_rows);
    bt_free(b->first_logit);
    bt_free(b->first_draw);
    bt_free(b->first_mask);
    bt_free(b->fed);
    bt_free(b->due);
    bt_free(b->logits);
    bt_free(b->forced);
    bt_free(b->chosen);
    bt_free(b->group_rows);
    bt_free(b->last_rows);
    bt_free(b->finish);
    bt_free(b->held);
    bt_free(b->out);
    *b = (bt_batch){0};
}

static bt_attn_form form_of(const bt_worker_config *cfg, const bt_piece *p)
{
    if (bt_piece_is_prompt(p) && bt_form_map_fixes(&p->request->map, p->start))
        return bt_form_map_form(&p->request->map, p->start);
    switch (cfg->form) {
    case BT_FORM_ALL_NORMAL: return BT_FORM_NORMAL;
    case BT_FORM_ALL_ABSORBED: return BT_FORM_ABSORBED;
    case BT_FORM_BY_COST: /* for one row there is nothing to choose */
        if (p->role == BT_ROLE_GENERATED) return BT_FORM_ABSORBED;
        return bt_mla_cheaper_form(&cfg->facts.model->mla, p->n_rows, p->start + p->n_rows);
    default: return p->role == BT_ROLE_PROMPT ? BT_FORM_NORMAL : BT_FORM_ABSORBED;
    }
}

static uint32_t token_at(const bt_piece *p, uint32_t position)
{
    const bt_request *r = p->request;

    if (bt_piece_is_prompt(p)) return r->prompt[position];
    position -= r->n_prompt;
    if (r->eval) return r->eval_tokens[position];
    if (position >= r->n_known) return r->draft[position - r->n_known];
    return position < r->n_replay ? r->replay[position] : r->next_token;
}

/* Rows of the piece whose logits are needed: all rows of an evaluation, and of a prompt with
 * prompt logprobs, else the row that a token is chosen from and those of the draft after it. */
static uint32_t first_logit_row(const bt_piece *p)
{
    bool ends = !bt_piece_is_prompt(p) || p->start + p->n_rows == p->request->n_prompt;

    if (bt_piece_is_prompt(p) && p->request->sampling.prompt_logprobs != 0) return 0;
    return p->request->eval ? 0 : ends ? p->n_rows - p->n_draft - 1 : p->n_rows;
}

static void fill_forced(bt_batch *b, const bt_worker_config *cfg, uint32_t n_rows)
{
    uint32_t top_k = cfg->facts.model->moe.gate.top_k;

    for (uint32_t layer = 0; layer < bt_model_n_moe_layers(cfg->facts.model); layer++) {
        uint16_t *row = b->forced + (size_t)layer * n_rows * top_k;

        for (uint32_t i = 0; i < b->n_pieces; i++) {
            const bt_piece   *p = &b->pieces[i];
            const bt_request *r = p->request;

            for (uint32_t at = p->start; at < p->start + p->n_rows; at++, row += top_k) {
                if (at < r->n_forced)
                    memcpy(row, r->forced + ((size_t)layer * r->n_forced + at) * top_k,
                           top_k * sizeof(*row));
                else
                    row[0] = UINT16_MAX; /* free */
            }
        }
    }
}

/* Whether a token must be chosen after the piece: no known token, and none under way, follows it.
 */
static bool is_due(const bt_piece *p)
{
    const bt_request *r   = p->request;
    uint32_t          end = p->start + p->n_rows;

    return !r->eval && end >= r->n_prompt + (bt_piece_is_prompt(p) ? 0 : r->n_known + r->n_drawn);
}

/* The token of a row: a known one, or (true) the one that the step under way will have drawn. */
static bool fill_token(bt_batch *b, uint32_t row, const bt_piece *p, uint32_t position)
{
    const bt_request *r = p->request;
    bool fed = r->n_drawn > 0 && position == r->n_prompt + r->n_known; /* decodes, so no prompt */

    b->tokens[row] = fed ? 0 : token_at(p, position);
    b->fed[row]    = fed ? r->draw : BT_NOT_DRAWN;
    return fed;
}

void bt_batch_fill(bt_batch *b, const bt_worker_config *cfg)
{
    uint32_t n_rows = 0, n_logits = 0;
    bool     any_eval = false, any_forced = false, any_fed = false;

    for (uint32_t i = 0; i < b->n_pieces; i++) {
        bt_piece *p = &b->pieces[i];

        b->spans[i]       = (bt_span){.pages     = p->request->pages,
                                      .first_row = n_rows,
                                      .n_rows    = p->n_rows,
                                      .start     = p->start,
                                      .role      = p->role,
                                      .form      = form_of(cfg, p)};
        b->first_logit[i] = n_logits;
        for (uint32_t row = first_logit_row(p); row < p->n_rows; row++)
            b->logit_rows[n_logits++] = n_rows + row;
        for (uint32_t row = 0; row < p->n_rows; row++)
            any_fed |= fill_token(b, n_rows + row, p, p->start + row);
        b->due[i] = is_due(p);
        n_rows += p->n_rows;
        any_eval |= p->request->eval;
        any_forced |= p->request->n_forced != 0;
    }
    if (any_forced) fill_forced(b, cfg, n_rows);
    b->step = (bt_step){
        .n_rows       = n_rows,
        .tokens       = b->tokens,
        .fed          = any_fed ? b->fed : NULL,
        .n_spans      = b->n_pieces,
        .spans        = b->spans,
        .group_rows   = {.n_ranks = cfg->group_size,
                         .n_rows  = (const uint32_t(*)[BT_N_ROLES])b->group_rows     },
        .last_rows    = {.n_ranks = cfg->group_size,
                         .n_rows  = cfg->facts.mtp != 0 /* which goes on from all rows */
                                        ? NULL
                                        : (const uint32_t(*)[BT_N_ROLES])b->last_rows},
        .n_logit_rows = n_logits,
        .logit_rows   = b->logit_rows,
        .logits       = b->logits,
        .forced       = any_forced ? b->forced : NULL,
        .chosen       = any_eval && experts_elems(cfg) != 0 ? b->chosen : NULL,
    };
}

/* Rows [row, row + n) of the piece as one message. */
static bt_status send_rows(const bt_batch *b, const bt_worker_config *cfg, uint32_t piece,
                           uint32_t row, uint32_t n)
{
    bt_status              st    = BT_OK;
    const bt_model_config *model = cfg->facts.model;
    const bt_piece        *p     = &b->pieces[piece];
    uint32_t               top_k = model->moe.gate.top_k, n_moe = bt_model_n_moe_layers(model);
    size_t                 at = 0, first = b->spans[piece].first_row + row;
    bt_up                  up = {.kind = BT_UP_EVAL_ROWS};
    bt_up_eval_rows       *e  = &up.u.eval_rows;
    int32_t               *experts;

    e->request        = p->request->id;
    e->epoch          = p->request->epoch;
    e->position       = p->start + row;
    e->n_rows         = n;
    e->n_logit_bytes  = (size_t)n * model->vocab_size * sizeof(float);
    e->n_expert_bytes = (size_t)n_moe * n * top_k * sizeof(int32_t);
    e->logits         = bt_calloc(1, e->n_logit_bytes);
    e->experts = experts = bt_calloc(1, e->n_expert_bytes);
    BT_REQUIRE(e->logits != NULL && experts != NULL, BT_ERR_NO_MEMORY, "%u evaluated rows", n);
    memcpy(e->logits, b->logits + (size_t)(b->first_logit[piece] + row) * model->vocab_size,
           e->n_logit_bytes);
    for (uint32_t layer = 0; layer < n_moe; layer++) {
        const uint16_t *from = b->chosen + ((size_t)layer * b->step.n_rows + first) * top_k;

        for (size_t i = 0; i < (size_t)n * top_k; i++)
            experts[at++] = from[i];
    }
    st      = cfg->links.up(cfg->links.ctx, &up);
    up.kind = BT_UP_READY; /* it owns nothing any more */
out:
    bt_up_free(&up);
    return st;
}

bt_status bt_batch_send_eval(const bt_batch *b, const bt_worker_config *cfg, uint32_t piece)
{
    bt_status st       = BT_OK;
    size_t    row_size = (size_t)cfg->facts.model->vocab_size * sizeof(float);
    uint32_t  most     = (uint32_t)(EVAL_MESSAGE_BYTES / row_size);
    uint32_t  n_rows   = b->pieces[piece].n_rows;

    for (uint32_t row = 0, n; row < n_rows; row += n) {
        n = n_rows - row < most ? n_rows - row : most;
        BT_TRY(send_rows(b, cfg, piece, row, n));
    }
out:
    return st;
}
