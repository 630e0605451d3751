/* model/step.c - one forward step: checked, launched layer by layer or as a graph, awaited. */
#include <string.h>

#include "model/decode_graphs.h"
#include "model/state.h"
#include "parallel/carrier.h"

static bool tells_experts(const bt_step *step)
{
    return step->forced != NULL || step->chosen != NULL;
}

/* The rows with logits, by role. */
static void count_logit_rows(const bt_step *step, uint32_t n_prompt_rows,
                             uint32_t n_out[BT_N_ROLES])
{
    n_out[BT_ROLE_PROMPT] = 0;
    while (n_out[BT_ROLE_PROMPT] < step->n_logit_rows &&
           step->logit_rows[n_out[BT_ROLE_PROMPT]] < n_prompt_rows)
        n_out[BT_ROLE_PROMPT]++;
    n_out[BT_ROLE_GENERATED] = step->n_logit_rows - n_out[BT_ROLE_PROMPT];
}

void bt_model_last_rows(const bt_step *step, uint32_t n_rows_out[BT_N_ROLES])
{
    uint32_t n_prompt = 0;

    for (uint32_t i = 0; i < step->n_spans; i++)
        n_prompt += step->spans[i].role == BT_ROLE_PROMPT ? step->spans[i].n_rows : 0;
    count_logit_rows(step, n_prompt, n_rows_out);
    if (!tells_experts(step)) return;
    n_rows_out[BT_ROLE_PROMPT]    = n_prompt;
    n_rows_out[BT_ROLE_GENERATED] = step->n_rows - n_prompt;
}

/* Whether the group's last layer is for bt_model_last_rows() only. */
static bool cuts_last(const bt_step *step)
{
    return step->last_rows.n_rows != NULL && step->graph.n_rows == 0;
}

/* Whether that leaves rows of this rank out. */
static bool leaves_rows_out(const bt_step *step)
{
    return cuts_last(step) && !tells_experts(step) && step->n_logit_rows < step->n_rows;
}

static bt_status check_step(const bt_model *model, const bt_step *step,
                            uint32_t n_rows_out[BT_N_ROLES])
{
    uint32_t  n_rows[BT_N_ROLES] = {0, 0}, self = bt_group_self(model->group);
    uint32_t  padded[BT_N_ROLES], last[BT_N_ROLES];
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < step->n_spans; i++)
        n_rows[step->spans[i].role] += step->spans[i].n_rows;
    BT_REQUIRE(step->n_rows <= model->max_rows &&
                   step->n_rows == n_rows[BT_ROLE_PROMPT] + n_rows[BT_ROLE_GENERATED],
               BT_ERR_INVALID_ARG, "step of %u rows with spans of %u + %u, at most %u",
               step->n_rows, n_rows[BT_ROLE_PROMPT], n_rows[BT_ROLE_GENERATED], model->max_rows);
    memcpy(padded, n_rows, sizeof(padded));
    if (step->graph.n_rows != 0) padded[BT_ROLE_GENERATED] = step->graph.n_rows;
    BT_REQUIRE(step->group_rows.n_rows == NULL || /* of a draft */
                   (step->group_rows.n_ranks == bt_group_size(model->group) &&
                    memcmp(step->group_rows.n_rows[self], padded, sizeof(padded)) == 0),
               BT_ERR_INVALID_ARG, "step of %u + %u rows: the group has agreed on something else",
               n_rows[BT_ROLE_PROMPT], n_rows[BT_ROLE_GENERATED]);
    BT_REQUIRE(step->graph.n_rows == 0 ||
                   (model->graphs != NULL && step->graph.n_rows >= step->n_rows &&
                    bt_decode_graphs_allow(model->graphs, &step->graph)),
               BT_ERR_INVALID_ARG, "step of %u rows as a graph of %u, with contexts of %u parts",
               step->n_rows, step->graph.n_rows, step->graph.n_parts);
    bt_model_last_rows(step, last);
    BT_REQUIRE(step->last_rows.n_rows == NULL ||
                   (step->last_rows.n_ranks == bt_group_size(model->group) &&
                    memcmp(step->last_rows.n_rows[self], last, sizeof(last)) == 0),
               BT_ERR_INVALID_ARG,
               "%u + %u rows in the last layer: the group has agreed on something else",
               last[BT_ROLE_PROMPT], last[BT_ROLE_GENERATED]);
    BT_REQUIRE(step->fed == NULL || (step->sampling != NULL && model->tokens != NULL),
               BT_ERR_INVALID_ARG, "a step whose rows are fed by what nothing has chosen");
    for (uint32_t r = 0; r < step->n_rows; r++)
        BT_REQUIRE(step->tokens[r] < model->cfg->vocab_size, BT_ERR_INVALID_ARG,
                   "row %u: token %u is outside the vocabulary of %u", r, step->tokens[r],
                   model->cfg->vocab_size);
    BT_REQUIRE(step->n_logit_rows <= model->max_logit_rows, BT_ERR_INVALID_ARG,
               "logits of %u rows wanted, at most %u", step->n_logit_rows, model->max_logit_rows);
    for (uint32_t i = 0; i < step->n_logit_rows; i++)
        BT_REQUIRE(step->logit_rows[i] < step->n_rows &&
                       (i == 0 || step->logit_rows[i] > step->logit_rows[i - 1]),
                   BT_ERR_INVALID_ARG, "logit row %u is %u: not ascending below %u", i,
                   step->logit_rows[i], step->n_rows);
    memcpy(n_rows_out, n_rows, sizeof(n_rows));
out:
    return st;
}

bt_status bt_model_dense(bt_model *model, const bt_layer_weights *w,
                         const uint32_t n_rows[BT_N_ROLES])
{
    size_t    hidden = model->cfg->hidden, at = 0;
    bt_status st = BT_OK;

    for (int role = 0; role < BT_N_ROLES; role++) {
        bt_ffn ffn = {.gate_up = w->gate_up,
                      .down    = w->down,
                      .x       = model->normed + at * hidden,
                      .ld_x    = hidden,
                      .y       = model->out + at * hidden,
                      .ld_y    = hidden,
                      .m       = n_rows[role],
                      .y_dtype = BT_BF16};

        BT_TRY(bt_device_ffn(model->dev, (bt_role)role, 1, &ffn, model->gate_up, model->act));
        at += n_rows[role];
    }
out:
    return st;
}

bt_status bt_model_norm_first(bt_model *model, uint32_t layer, uint32_t rows)
{
    uint32_t hidden = model->cfg->hidden;

    return bt_device_rms_norm(model->dev, rows, hidden, model->h, hidden,
                              model->w.layers[layer].input_norm, model->cfg->rms_norm_eps,
                              model->normed, hidden);
}

bt_status bt_model_add_norm(bt_model *model, uint32_t rows, const bt_bf16 *x, bt_bf16 *h,
                            const bt_bf16 *weight)
{
    return bt_device_add_norm(model->dev, rows, model->cfg->hidden, x, h, weight,
                              model->cfg->rms_norm_eps, model->normed);
}

static const bt_bf16 *norm_after(const bt_model *model, uint32_t layer)
{
    if (layer + 1 < model->cfg->n_layers) return model->w.layers[layer + 1].input_norm;
    return layer < model->cfg->n_layers ? model->w.norm : model->w.mtp.norm;
}

bt_status bt_model_end_layer(bt_model *model, uint32_t layer, uint32_t rows, bt_bf16 *h)
{
    const bt_bf16 *weight = model->w.layers[layer].moe_norm;
    uint32_t       hidden = model->cfg->hidden;
    bt_status      st     = BT_OK;

    if (weight != NULL)
        BT_TRY(bt_device_rms_norm(model->dev, rows, hidden, model->out, hidden, weight,
                                  model->cfg->rms_norm_eps, model->out, hidden));
    BT_TRY(bt_model_add_norm(model, rows, model->out, h, norm_after(model, layer)));
out:
    return st;
}

static bt_status attend(bt_model *model, bt_kv_pool *pool, const bt_step *step, uint32_t layer)
{
    const bt_layer_weights *w  = &model->w.layers[layer];
    bt_status               st = BT_OK;

    BT_TRY(bt_mla_forward(model->mla, &w->mla, pool, layer, model->normed, model->out,
                          step->n_spans, step->spans));
    BT_TRY(bt_model_add_norm(model, step->n_rows, model->out, model->h, w->post_norm));
out:
    return st;
}

/* The rows with logits as spans, numbered among themselves.  Returns how many. */
static uint32_t list_last_spans(const bt_step *step, bt_span *spans)
{
    const bt_span *of = step->spans;
    uint32_t       n  = 0;

    for (uint32_t i = 0; i < step->n_logit_rows; i++) {
        uint32_t row = step->logit_rows[i];
        bool new     = i == 0 || row != step->logit_rows[i - 1] + 1;

        for (; row >= of->first_row + of->n_rows; of++)
            new = true;
        if (new) {
            spans[n]           = *of;
            spans[n].first_row = i;
            spans[n].n_rows    = 0;
            spans[n++].start   = of->start + (row - of->first_row);
        }
        spans[n - 1].n_rows++;
    }
    return n;
}

/* Of the last layer: all rows fill their pages, those with logits alone go on, in `last`. */
static bt_status attend_last(bt_model *model, bt_kv_pool *pool, const bt_step *step, uint32_t layer)
{
    uint32_t                hidden = model->cfg->hidden, n = step->n_logit_rows;
    const bt_layer_weights *w  = &model->w.layers[layer];
    bt_status               st = BT_OK;

    BT_TRY(bt_mla_fill_pages(model->mla, &w->mla, pool, layer, model->normed, step->n_spans,
                             step->spans));
    if (n == 0) goto out;
    BT_TRY(bt_device_gather_rows(model->dev, n, hidden, model->h, step->logit_rows, model->last));
    BT_TRY(
        bt_device_gather_rows(model->dev, n, hidden, model->normed, step->logit_rows, model->out));
    BT_TRY(bt_mla_attend(model->mla, &w->mla, pool, layer, model->out, model->normed,
                         list_last_spans(step, model->last_spans), model->last_spans,
                         step->logit_rows));
    BT_TRY(bt_model_add_norm(model, n, model->normed, model->last, w->post_norm));
out:
    return st;
}

/* Rows of this rank that go on in a layer. */
typedef struct {
    bt_bf16            *h;
    uint32_t            of_role[BT_N_ROLES];
    const bt_step_rows *group; /* with the others' */
} layer_rows;

static uint32_t n_of(const layer_rows *r)
{
    return r->of_role[BT_ROLE_PROMPT] + r->of_role[BT_ROLE_GENERATED];
}

static bool any_rank_has_rows(const bt_step_rows *rows)
{
    uint32_t any = 0;

    for (uint32_t q = 0; q < rows->n_ranks; q++)
        any |= rows->n_rows[q][BT_ROLE_PROMPT] | rows->n_rows[q][BT_ROLE_GENERATED];
    return any != 0;
}

/* The dense layer, or the experts: h += ffn(normed). */
static bt_status feed_forward(bt_model *model, const bt_step *step, uint32_t layer,
                              uint32_t moe_layer, const layer_rows *rows)
{
    const bt_layer_weights *w      = &model->w.layers[layer];
    size_t                  routes = (size_t)step->n_rows * model->cfg->moe.gate.top_k;
    bt_wait                 wait   = step->wait;
    bt_status               st     = BT_OK;

    wait.layer = (int32_t)layer;
    if (bt_model_layer_is_moe(model->cfg, layer)) {
        const uint16_t *forced = step->forced != NULL ? step->forced + moe_layer * routes : NULL;
        uint16_t       *chosen = step->chosen != NULL ? step->chosen + moe_layer * routes : NULL;

        BT_TRY(bt_moe_forward(model->moe, &w->moe, rows->group, model->normed, forced, model->out,
                              chosen, &wait));
        BT_TRY(bt_group_settle(model->group, &wait)); /* the next wait for the device is any one */
    } else {
        BT_TRY(bt_model_dense(model, w, rows->of_role));
    }
    BT_TRY(bt_model_end_layer(model, layer, n_of(rows), rows->h));
out:
    return st;
}

static bt_status run_layer(bt_model *model, bt_kv_pool *pool, const bt_step *step, uint32_t layer,
                           uint32_t moe_layer, const uint32_t n_rows[BT_N_ROLES])
{
    layer_rows rows = {.h = model->h, .group = &step->group_rows};
    bool       last = layer + 1 >= model->cfg->n_layers; /* or behind it: bt_model_draft() */
    bt_status  st   = BT_OK;

    memcpy(rows.of_role, n_rows, sizeof(rows.of_role));
    if (last && leaves_rows_out(step)) {
        BT_TRY(attend_last(model, pool, step, layer));
        rows.h = model->last;
    } else {
        BT_TRY(attend(model, pool, step, layer));
    }
    if (last && cuts_last(step)) {
        rows.group = &step->last_rows;
        bt_model_last_rows(step, rows.of_role);
    }
    if (any_rank_has_rows(rows.group)) BT_TRY(feed_forward(model, step, layer, moe_layer, &rows));
    if (step->layer_done != NULL) step->layer_done(step->ctx, layer);
out:
    return st;
}

/* The head, for the rows that ask, each in its role: into the step's logits where the device can
 * write there, else into the model's. */
static bt_status run_head(bt_model *model, const bt_step *step, uint32_t n_prompt_rows)
{
    size_t    hidden = model->cfg->hidden, vocab = model->cfg->vocab_size, at = 0;
    uint32_t  n  = step->n_logit_rows, n_of[BT_N_ROLES];
    float    *y  = model->dev->host_memory ? step->logits : model->logits;
    bt_bf16  *x  = model->normed;
    bt_status st = BT_OK;

    if (n == 0) return BT_OK;
    count_logit_rows(step, n_prompt_rows, n_of);
    if (n < step->n_rows && !leaves_rows_out(step)) {
        x = model->last;
        BT_TRY(bt_device_gather_rows(model->dev, n, (uint32_t)hidden, model->normed,
                                     step->logit_rows, x));
    }
    for (int role = 0; role < BT_N_ROLES; role++) {
        bt_gemm gemm = {.w       = model->w.lm_head,
                        .x       = x + at * hidden,
                        .ld_x    = hidden,
                        .y       = y + at * vocab,
                        .ld_y    = vocab,
                        .m       = n_of[role],
                        .y_dtype = BT_F32};

        BT_TRY(bt_device_gemm(model->dev, (bt_role)role, 1, &gemm));
        at += n_of[role];
    }
out:
    return st;
}

/* Of the steps that are under way. */
static uint32_t mark_of(uint32_t n) { return n % BT_N_MARKS; }

/* Tokens, or logits, on their way to the host if they are not there, and marks behind them.
 * row_of: where the step's logit rows are. */
static bt_status send_results(bt_model *model, const bt_step *step, const uint32_t *row_of)
{
    bt_draws  draws;
    uint32_t  mark  = mark_of(model->n_launched);
    size_t    bytes = (size_t)step->n_logit_rows * model->cfg->vocab_size * sizeof(float);
    bt_status st    = BT_OK;

    if (step->draws != NULL) {
        draws        = *step->draws;
        draws.logits = model->logits;
        draws.row_of = row_of;
        BT_TRY(model->dev->ops->sampling->run(step->sampling, &draws));
    } else if (!model->dev->host_memory) {
        BT_TRY(bt_device_download(model->dev, step->logits, model->logits, bytes));
    }
    if (model->moe != NULL) BT_TRY(bt_moe_note(model->moe, mark));
    BT_TRY(bt_group_mark(model->group, mark, &step->wait));
    BT_TRY(bt_device_mark(model->dev, mark));
    model->n_launched++;
out:
    return st;
}

bt_status bt_model_send_tokens(bt_model *model, const bt_step *step, uint32_t n)
{
    bt_status st     = BT_OK;
    uint32_t  n_more = n - step->n_rows, none[BT_GRAPH_MAX_ROWS] = {0};

    BT_ASSERT(n_more <= BT_GRAPH_MAX_ROWS);
    BT_TRY(
        bt_device_upload(model->dev, model->tokens + step->n_rows, none, n_more * sizeof(*none)));
    if (step->fed == NULL)
        return bt_device_upload(model->dev, model->tokens, step->tokens,
                                step->n_rows * sizeof(*step->tokens));
    BT_TRY(model->dev->ops->sampling->feed(step->sampling, step->n_rows, step->tokens, step->fed,
                                           model->tokens));
out:
    return st;
}

static bt_status embed(bt_model *model, const bt_step *step)
{
    bt_status st = BT_OK;

    if (step->fed == NULL)
        return bt_device_gather_rows(model->dev, step->n_rows, model->cfg->hidden,
                                     model->w.embedding, step->tokens, model->h);
    BT_TRY(bt_model_send_tokens(model, step, step->n_rows));
    BT_TRY(bt_device_gather_rows_by(model->dev, step->n_rows, model->cfg->hidden,
                                    model->w.embedding, model->tokens, model->h));
out:
    return st;
}

static bt_status run_layers(bt_model *model, bt_kv_pool *pool, const bt_step *step,
                            const uint32_t n_rows[BT_N_ROLES])
{
    uint32_t  moe_layer = 0;
    bt_status st        = BT_OK;

    BT_TRY(embed(model, step));
    BT_TRY(bt_model_norm_first(model, 0, step->n_rows));
    for (uint32_t layer = 0; layer < model->cfg->n_layers; layer++) {
        BT_TRY(run_layer(model, pool, step, layer, moe_layer, n_rows));
        moe_layer += bt_model_layer_is_moe(model->cfg, layer);
    }
    BT_TRY(run_head(model, step, n_rows[BT_ROLE_PROMPT]));
out:
    return st;
}

bt_status bt_model_launch(bt_model *model, bt_kv_pool *pool, const bt_step *asked)
{
    uint32_t  n_rows[BT_N_ROLES];
    bt_status st    = BT_OK;
    bt_step   step  = *asked;
    bool      graph = step.graph.n_rows != 0 && !step.graph.captures;

    BT_ASSERT(model->n_launched - model->n_awaited < BT_N_MARKS && step.group_rows.n_rows != NULL);
    BT_TRY(check_step(model, &step, n_rows));
    step.last_rows.partial = true;
    if (step.graph.n_rows != 0) {
        step.group_rows.live   = model->live;
        step.group_rows.n_live = step.n_rows;
        BT_TRY(bt_device_upload(model->dev, model->live, &step.n_rows, sizeof(step.n_rows)));
    }
    if (step.graph.captures) BT_TRY(bt_decode_graphs_capture(model->graphs, pool, &step));
    BT_TRY(graph ? bt_decode_graphs_run(model->graphs, pool, &step)
                 : run_layers(model, pool, &step, n_rows));
    BT_TRY(send_results(model, &step, graph ? step.logit_rows : NULL));
out:
    return st;
}

bt_status bt_model_await(bt_model *model, const bt_wait *wait)
{
    bt_status st   = BT_OK;
    uint32_t  mark = mark_of(model->n_awaited);

    BT_ASSERT(model->n_awaited != model->n_launched);
    model->n_awaited++;
    BT_TRY(
        bt_group_settle_mark(model->group, mark, wait)); /* before the host waits for the device */
    BT_TRY(bt_device_await(model->dev, mark));
    if (model->moe != NULL) BT_TRY(bt_moe_check(model->moe, mark));
out:
    return st;
}

/* h = eh_proj [ rms_norm(embed[token]) | rms_norm(normed) ], each row in its role. */
static bt_status join_tokens(bt_model *model, const bt_step *step,
                             const uint32_t n_rows[BT_N_ROLES])
{
    const bt_mtp_weights *w      = &model->w.mtp;
    uint32_t              hidden = model->cfg->hidden, at = 0;
    float                 eps = model->cfg->rms_norm_eps;
    bt_status             st  = BT_OK;

    BT_TRY(bt_device_gather_rows(model->dev, step->n_rows, hidden, model->w.embedding, step->tokens,
                                 model->h));
    BT_TRY(bt_device_rms_norm(model->dev, step->n_rows, hidden, model->h, hidden, w->token_norm,
                              eps, model->joined, 2 * hidden));
    BT_TRY(bt_device_rms_norm(model->dev, step->n_rows, hidden, model->normed, hidden,
                              w->hidden_norm, eps, model->joined + hidden, 2 * hidden));
    for (int role = 0; role < BT_N_ROLES; role++) {
        bt_gemm gemm = {.w       = w->join,
                        .x       = model->joined + (size_t)at * 2 * hidden,
                        .ld_x    = 2 * hidden,
                        .y       = model->h + (size_t)at * hidden,
                        .ld_y    = hidden,
                        .m       = n_rows[role],
                        .y_dtype = BT_BF16};

        BT_TRY(bt_device_gemm(model->dev, (bt_role)role, 1, &gemm));
        at += n_rows[role];
    }
out:
    return st;
}

bt_status bt_model_draft(bt_model *model, bt_kv_pool *pool, const bt_step *asked)
{
    uint32_t  n_rows[BT_N_ROLES], layer = model->cfg->n_layers;
    bt_step   step = *asked;
    bt_status st   = BT_OK;

    BT_ASSERT(model->cfg->mtp && model->n_launched == model->n_awaited);
    BT_ASSERT(step.last_rows.n_rows != NULL && step.fed == NULL && step.graph.n_rows == 0 &&
              !tells_experts(&step));
    step.group_rows.n_rows = NULL;
    BT_TRY(check_step(model, &step, n_rows));
    step.last_rows.partial = true;
    BT_TRY(join_tokens(model, &step, n_rows));
    BT_TRY(bt_model_norm_first(model, layer, step.n_rows));
    BT_TRY(run_layer(model, pool, &step, layer, 0, n_rows));
    BT_TRY(run_head(model, &step, n_rows[BT_ROLE_PROMPT]));
    BT_TRY(send_results(model, &step, NULL));
    BT_TRY(bt_model_await(model, &step.wait));
out:
    return st;
}

bt_status bt_model_step(bt_model *model, bt_kv_pool *pool, const bt_step *step)
{
    bt_status st = bt_model_launch(model, pool, step);

    return st == BT_OK ? bt_model_await(model, &step->wait) : st;
}
