/* worker/choose.c - the tokens that follow a step's rows: chosen by the host from logits, or by the
 * device inside the step; and the messages that carry them. */
#include <math.h>

#include "core/alloc.h"
#include "worker/state.h"

/* One more token of the step's message. */
static bt_status emit(bt_batch *b, const bt_token *token)
{
    bt_status st = BT_OK;

    if (b->n_out == b->out_capacity) { /* first tokens of many choices */
        bt_token *grown = bt_realloc(b->out, 2 * b->out_capacity, sizeof(*grown));

        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "message of %u tokens", b->n_out);
        b->out = grown;
        b->out_capacity *= 2;
    }
    b->out[b->n_out++] = *token;
out:
    return st;
}

bt_sample_how bt_worker_how(const bt_worker *w, const bt_request *r, uint32_t choice,
                            uint32_t position)
{
    const bt_sampling     *s     = &r->sampling;
    const bt_model_config *model = w->cfg.facts.model;
    bt_sample_how          how   = {
                   .temperature = s->temperature,
                   .seed        = s->seed,
                   .choice      = choice,
                   .position    = position,
                   .top_k       = s->top_k,
                   .top_p       = s->top_p,
                   .min_p       = s->min_p,
                   .repetition  = s->repetition_penalty,
                   .frequency   = s->frequency_penalty,
                   .presence    = s->presence_penalty,
                   .history     = bt_sampling_counts_tokens(s) ? &r->history : NULL,
                   .biased      = {s->bias_ids, s->n_bias},
                   .biases      = s->biases
    };

    if (position - r->n_prompt < s->min_tokens) {
        how.banned[0] = (bt_id_list){s->stop_tokens, s->n_stop};
        if (!s->ignore_eos) how.banned[1] = (bt_id_list){model->eos_tokens, model->n_eos};
    }
    return how;
}

/* The row that the piece's i-th draw is from: one row has a prompt's first tokens, and each row of
 * a draft the token after it. */
static const float *logits_of_draw(const bt_batch *b, uint32_t piece, uint32_t i, uint32_t n_vocab)
{
    const bt_piece *p   = &b->pieces[piece];
    bool            all = bt_piece_is_prompt(p) && p->request->sampling.prompt_logprobs != 0;
    uint32_t        row = bt_piece_is_prompt(p) ? (all ? p->n_rows - 1 : 0) : i;

    return b->logits + (size_t)(b->first_logit[piece] + row) * n_vocab;
}

/* Of a request that is constrained. */
static uint32_t mask_of_draw(const bt_batch *b, uint32_t piece, uint32_t i)
{
    return b->first_mask[piece] + (bt_piece_is_prompt(&b->pieces[piece]) ? 0 : i);
}

static bt_sample_how how_of_draw(const bt_worker *w, const bt_batch *b, uint32_t piece, uint32_t i)
{
    const bt_piece   *p = &b->pieces[piece];
    const bt_request *r = p->request;
    bt_sample_how     how =
        bt_piece_is_prompt(p)
                ? bt_worker_how(w, r, r->choices[i], r->n_prompt)
                : bt_worker_how(w, r, r->sampling.choice, r->n_prompt + r->n_known + r->n_drawn + i);

    if (r->constraint != NULL) bt_worker_apply_mask(w, mask_of_draw(b, piece, i), &how);
    return how;
}

/* ---- choices of the host, each made by a thread that is free */

void bt_worker_on_all(const bt_worker *w, uint32_t n, bt_cpu_task task, void *ctx)
{
    if (w->cfg.threads != NULL) {
        bt_cpu_pool_run(w->cfg.threads, n, task, ctx);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        task(ctx, i, 0);
}

static void draw_task(void *ctx, uint32_t draw, uint32_t thread)
{
    const bt_worker  *w = ctx;
    const bt_sampler *s = &w->samplers[thread];
    bt_host_draw     *d = &w->host_draws[draw];
    bt_token         *t = &d->token;

    d->found = bt_sample(s, d->logits, &d->how, &t->id);
    if (d->found && d->sampling != NULL && d->sampling->logprobs)
        t->n_top = bt_logprobs(s, d->logits, t->id, d->sampling->top_logprobs, &t->logprob,
                               t->top_ids, t->top_logprobs);
}

bt_status bt_worker_take_draws(bt_worker *w, uint32_t n)
{
    bt_status st = BT_OK;

    if (n > w->host_draws_capacity) {
        bt_host_draw *grown = bt_realloc(w->host_draws, n, sizeof(*grown));

        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "choices of %u tokens", n);
        w->host_draws          = grown;
        w->host_draws_capacity = n;
    }
out:
    return st;
}

void bt_worker_draw(bt_worker *w, uint32_t n) { bt_worker_on_all(w, n, draw_task, w); }

/* All choices of the step into w->host_draws, a piece's from first_draw on. */
static bt_status draw_here(bt_worker *w, bt_batch *b)
{
    bt_status st = BT_OK;
    uint32_t  n  = 0;

    BT_TRY(bt_worker_make_masks(w, b));
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        b->first_draw[i] = n;
        n += bt_batch_n_draws(b, i);
    }
    BT_TRY(bt_worker_take_draws(w, n));
    for (uint32_t i = 0; i < b->n_pieces; i++)
        for (uint32_t k = 0; k < bt_batch_n_draws(b, i); k++)
            w->host_draws[b->first_draw[i] + k] =
                (bt_host_draw){.logits   = logits_of_draw(b, i, k, w->cfg.facts.model->vocab_size),
                               .how      = how_of_draw(w, b, i, k),
                               .sampling = &b->pieces[i].request->sampling};
    bt_worker_draw(w, n);
out:
    return st;
}

/* ---- what a step has chosen */

/* Whether some logit was finite. */
static bool is_drawn(const bt_worker *w, const bt_batch *b, uint32_t draw)
{
    uint32_t id;

    return b->on_device ? bt_drawn_id(&w->draws, b->draws.out, draw, &id)
                        : w->host_draws[draw].found;
}

/* False when no logit was finite. */
static bool take_drawn(const bt_worker *w, const bt_batch *b, const bt_request *r, uint32_t draw,
                       bt_token *t)
{
    if (!b->on_device) {
        *t = w->host_draws[draw].token;
        return w->host_draws[draw].found;
    }
    if (!bt_drawn_id(&w->draws, b->draws.out, draw, &t->id)) return false;
    if (r->sampling.logprobs)
        t->n_top = bt_drawn_logprobs(b->draws.out, draw, &t->logprob, t->top_ids, t->top_logprobs);
    return true;
}

/* Takes what is drawn for a choice's token at `position`, the piece's draw `draw`, and puts it into
 * the message. */
static bt_status choose(bt_worker *w, bt_batch *b, uint32_t piece, uint32_t choice,
                        uint32_t position, uint32_t draw, bt_token *token_out)
{
    bt_status         st = BT_OK;
    const bt_request *r  = b->pieces[piece].request;
    bt_token          t  = {0};

    if (r->constraint != NULL) BT_TRY(bt_worker_mask_status(w, mask_of_draw(b, piece, draw)));
    BT_REQUIRE(take_drawn(w, b, r, b->first_draw[piece] + draw, &t), BT_ERR_DEVICE,
               "the highest of %u logits for position %u is not a finite number",
               w->cfg.facts.model->vocab_size, position);
    t.request  = r->id;
    t.choice   = choice;
    t.position = position;
    t.epoch    = r->epoch;
    t.cached   = position == r->n_prompt ? r->n_held : 0;
    t.finish   = bt_request_finish(w->cfg.facts.model, r, position, t.id);
    BT_TRY(emit(b, &t));
    *token_out = t;
out:
    return st;
}

bt_status bt_worker_send_form_map(bt_worker *w, const bt_request *r)
{
    bt_status st = BT_OK;
    bt_up     m  = {.kind = BT_UP_FORM_MAP};

    if (r->map.pages == NULL) return BT_OK;
    m.u.form_map.request          = r->id;
    m.u.form_map.epoch            = r->epoch;
    m.u.form_map.n_form_map_bytes = bt_form_map_bytes(&r->map);
    m.u.form_map.form_map         = bt_copy(r->map.pages, m.u.form_map.n_form_map_bytes, 1);
    BT_REQUIRE(m.u.form_map.form_map != NULL, BT_ERR_NO_MEMORY, "form map");
    st = bt_worker_up(w, &m);
out:
    return st;
}

/* The first token of every choice, from the prompt's last row. */
static bt_status choose_firsts(bt_worker *w, bt_batch *b, uint32_t piece)
{
    bt_status   st     = BT_OK;
    bt_request *r      = b->pieces[piece].request;
    uint32_t    n_open = 0;
    bt_token    t      = {0};

    BT_TRY(bt_worker_send_form_map(w, r));
    for (uint32_t i = 0; i < r->n_choices; i++) {
        BT_TRY(choose(w, b, piece, r->choices[i], r->n_prompt, i, &t));
        r->firsts[i] = (bt_first_token){t.id, t.logprob, t.finish};
        n_open += t.finish == BT_FINISH_NONE;
    }
    r->n_cached      = r->n_held;
    b->finish[piece] = n_open > 0 ? BT_FINISH_NONE : t.finish;
out:
    return st;
}

/* The token that follows what is known, from the piece's draw `draw`. */
static bt_status choose_one(bt_worker *w, bt_batch *b, uint32_t piece, uint32_t draw)
{
    bt_status   st = BT_OK;
    bt_request *r  = b->pieces[piece].request;
    bt_token    t  = {0};

    BT_TRY(choose(w, b, piece, r->sampling.choice, r->n_prompt + r->n_known, draw, &t));
    BT_TRY(bt_request_note(r, t.id));
    if (!b->on_device) r->on_device = 0; /* which lacks the token */
    r->n_known++;
    r->next_token    = t.id;
    b->finish[piece] = t.finish;
out:
    return st;
}

/* The row of the draft's token i is right: what was drawn before it is that token. */
static void keep_drafted(bt_worker *w, const bt_batch *b, uint32_t piece, uint32_t i)
{
    bt_request *r = b->pieces[piece].request;

    bt_request_keep_generated(r, w->cfg.pool, r->n_computed, 1, &r->draft[i], b->spans[piece].form);
    r->step_end = ++r->n_computed;
}

/* The token after the piece's last known one, and after each of its draft that was drawn. */
static bt_status choose_next(bt_worker *w, bt_batch *b, uint32_t piece)
{
    bt_status   st      = BT_OK;
    bt_request *r       = b->pieces[piece].request;
    uint32_t    n_draft = b->pieces[piece].n_draft, n_right = 0;
    bt_token    again = {.request  = r->id,
                         .choice   = r->sampling.choice,
                         .position = r->n_prompt,
                         .epoch    = r->epoch,
                         .id       = r->next_token,
                         .logprob  = r->next_logprob,
                         .cached   = r->n_cached};

    if (r->repeat_first) BT_TRY(emit(b, &again)); /* should the prefill rank have died */
    r->repeat_first = false;
    BT_TRY(choose_one(w, b, piece, 0));
    while (n_right < n_draft && b->finish[piece] == BT_FINISH_NONE &&
           r->next_token == r->draft[n_right] &&
           is_drawn(w, b, b->first_draw[piece] + n_right + 1)) { /* else it fails alone */
        keep_drafted(w, b, piece, n_right++);
        BT_TRY(choose_one(w, b, piece, n_right));
    }
    if (b->pieces[piece].looked_up) {
        bt_drafter_learn(&r->drafter, n_draft, n_right);
    } else if (n_draft > 0) {
        bt_pace_learn(&r->pace, n_draft, n_right);
        bt_pace_learn(&w->mtp.pace, n_draft, n_right);
    }
    w->n_drafts += n_draft > 0;
    w->n_drafted += n_draft;
    w->n_draft_right += n_right;
out:
    return st;
}

typedef struct {
    const bt_worker       *w;
    const float           *logits; /* of the first of them */
    const uint32_t        *ids;
    bt_up_prompt_logprobs *u;
} prompt_rows;

/* Where fewer alternatives are finite the rest says id 0 and probability 0. */
static void prompt_row_task(void *ctx, uint32_t row, uint32_t thread)
{
    const prompt_rows     *p       = ctx;
    bt_up_prompt_logprobs *u       = p->u;
    uint32_t               n_vocab = p->w->cfg.facts.model->vocab_size;
    size_t                 at      = (size_t)row * u->n_top;

    for (uint32_t k =
             bt_logprobs(&p->w->samplers[thread], p->logits + (size_t)row * n_vocab, p->ids[row],
                         u->n_top, &u->logprobs[row], u->top_ids + at, u->top_logprobs + at);
         k < u->n_top; k++)
        u->top_logprobs[at + k] = -INFINITY;
}

/* What the piece's rows say of the prompt's own next tokens. */
static bt_status send_prompt_logprobs(bt_worker *w, const bt_batch *b, uint32_t piece)
{
    bt_status              st      = BT_OK;
    const bt_piece        *p       = &b->pieces[piece];
    const bt_request      *r       = p->request;
    uint32_t               n_vocab = w->cfg.facts.model->vocab_size;
    bt_up                  m       = {.kind = BT_UP_PROMPT_LOGPROBS};
    bt_up_prompt_logprobs *u       = &m.u.prompt_logprobs;
    prompt_rows            rows    = {w, b->logits + (size_t)b->first_logit[piece] * n_vocab,
                                      r->prompt + p->start + 1, u};

    if (r->eval || r->sampling.prompt_logprobs == 0) goto out;
    u->request  = r->id;
    u->epoch    = r->epoch;
    u->position = p->start + 1;
    u->n        = p->start + p->n_rows < r->n_prompt ? p->n_rows : p->n_rows - 1;
    u->n_top    = r->sampling.prompt_logprobs - 1;
    if (u->n == 0) goto out;
    u->logprobs     = bt_calloc(u->n, sizeof(*u->logprobs));
    u->top_ids      = bt_calloc((size_t)u->n * u->n_top + 1, sizeof(*u->top_ids));
    u->top_logprobs = bt_calloc((size_t)u->n * u->n_top + 1, sizeof(*u->top_logprobs));
    BT_REQUIRE(u->logprobs != NULL && u->top_ids != NULL && u->top_logprobs != NULL,
               BT_ERR_NO_MEMORY, "logprobs of %u prompt tokens", u->n);
    bt_worker_on_all(w, u->n, prompt_row_task, &rows);
    st     = bt_worker_up(w, &m);
    m.kind = BT_UP_READY; /* it owns nothing any more */
out:
    bt_up_free(&m);
    return st;
}

/* No piece names the request any more. */
static void forget_pieces(bt_batch *b, uint64_t id)
{
    for (uint32_t i = 0; i < b->n_pieces; i++)
        if (b->pieces[i].request != NULL && b->pieces[i].request->id == id)
            b->pieces[i].request = NULL;
}

/* One that no request has; 0: there is none. */
static uint32_t free_history(const bt_worker *w)
{
    bool     taken[BT_MAX_HISTORIES + 1] = {false};
    uint32_t i                           = 1;

    for (uint32_t k = 0; k < w->requests.n; k++)
        taken[w->requests.at[k]->on_device] = true;
    while (i <= BT_MAX_HISTORIES && taken[i])
        i++;
    return i <= BT_MAX_HISTORIES ? i : 0;
}

/* From this step on the device counts the tokens of those that decode, as far as it has room. */
static bt_status move_histories(bt_worker *w, const bt_batch *b)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < b->n_pieces; i++) {
        bt_request *r = b->pieces[i].request;
        uint32_t    history;

        if (!bt_worker_needs_history(r)) continue;
        BT_ASSERT(r->n_drawn == 0); /* bt_worker_must_catch_up() */
        history = free_history(w);
        if (history == 0) break;
        BT_TRY(bt_draw_list_set_history(&w->draws, history, &r->history));
        r->on_device = history;
    }
out:
    return st;
}

static bool add_draws(bt_worker *w, bt_batch *b, uint32_t piece)
{
    const bt_request *r = b->pieces[piece].request;

    b->first_draw[piece] = w->draws.n;
    for (uint32_t i = 0; i < bt_batch_n_draws(b, piece); i++) {
        bt_sample_how how = how_of_draw(w, b, piece, i);
        uint32_t      row = b->first_logit[piece] + (bt_piece_is_prompt(&b->pieces[piece]) ? 0 : i);

        if (!bt_draw_list_add(&w->draws, &how, r->on_device, row, r->sampling.logprobs,
                              r->sampling.top_logprobs))
            return false;
    }
    return true;
}

/* Whether somebody wants to see the step's logits themselves. */
static bool wants_logits(const bt_batch *b)
{
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        const bt_piece *p = &b->pieces[i];

        if (p->request->eval ||
            (bt_piece_is_prompt(p) && p->request->sampling.prompt_logprobs != 0))
            return true;
    }
    return false;
}

bt_status bt_worker_plan_draws(bt_worker *w, bt_batch *b)
{
    bt_status st = BT_OK;

    b->on_device = false;
    bt_draw_list_clear(&w->draws);
    b->step.sampling = w->draws.sampling;
    if (w->draws.sampling == NULL || wants_logits(b)) goto out;
    BT_TRY(move_histories(w, b));
    BT_TRY(bt_worker_make_masks(w, b));
    for (uint32_t i = 0; i < b->n_pieces; i++)
        if (!add_draws(w, b, i)) goto out;
    b->on_device  = true;
    b->draws      = bt_draw_list_view(&w->draws);
    b->step.draws = &b->draws;
out:
    return st;
}

/* Offers what the piece has filled to the prefix cache. */
static void keep_pages(bt_worker *w, bt_batch *b, uint32_t piece)
{
    const bt_piece *p    = &b->pieces[piece];
    const bt_span  *span = &b->spans[piece];
    bt_request     *r    = p->request;
    uint32_t        n = p->n_rows - p->n_draft, last = span->first_row + n - 1;

    if (bt_piece_is_prompt(p)) {
        bt_form_map_fix(&r->map, r->n_computed, p->role, span->form);
        bt_request_keep_pages(r, w->cfg.pool, r->n_computed);
    } else {
        if (b->fed[last] != BT_NOT_DRAWN) b->tokens[last] = r->next_token; /* known by now */
        bt_request_keep_generated(r, w->cfg.pool, p->start, n, b->tokens + span->first_row,
                                  span->form);
    }
}

bt_status bt_worker_choose_all(bt_worker *w, bt_batch *b)
{
    bt_status st = BT_OK;

    b->n_out = 0;
    if (!b->on_device) BT_TRY(draw_here(w, b));
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        bt_piece   *p      = &b->pieces[i];
        bt_request *r      = p->request;
        bool        prompt = r != NULL && bt_piece_is_prompt(p);

        b->finish[i] = BT_FINISH_NONE;
        if (r == NULL) continue;
        if (prompt) BT_TRY(send_prompt_logprobs(w, b, i));
        keep_pages(w, b, i);
        if (!b->due[i]) continue;
        bt_log_set_request(r->id);
        st = prompt ? choose_firsts(w, b, i) : choose_next(w, b, i);
        if (st == BT_OK) continue;
        forget_pieces(b, r->id);
        BT_TRY(bt_worker_fail(w, r, bt_worker_rpc_code(st), bt_error_text()));
    }
out:
    return st;
}

bt_status bt_worker_send_tokens(bt_worker *w, uint32_t n, const bt_token *tokens)
{
    bt_status st = BT_OK;
    bt_up     m  = {.kind = BT_UP_TOKENS};

    if (n == 0) return BT_OK;
    m.u.tokens.n      = n;
    m.u.tokens.tokens = bt_copy(tokens, n, sizeof(*tokens));
    BT_REQUIRE(m.u.tokens.tokens != NULL, BT_ERR_NO_MEMORY, "message of %u tokens", n);
    st = bt_worker_up(w, &m);
out:
    return st;
}
