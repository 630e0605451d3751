/* worker/run.c - a step from its launch to what follows from its tokens.
 *
 * With lookahead (state.h) a step of generated rows is left under way: the next one is planned,
 * agreed and launched from the state before its tokens, which feed that one on the device, and only
 * then the host waits for them.  What they show to be over has a row more in the step that runs by
 * then: it is dropped, and the request keeps its pages until that step is over as well (DRAINING).
 * Each rank does this for itself: a plan's rows are what it says, whatever they were planned from.
 *
 * The host catches up before the next plan where that needs the tokens: for penalties of a request
 * whose tokens the device does not count (device/sampling.h), for a constraint, and when pages run
 * short, so that nobody is retracted for one that has ended.  A step with rows of a prompt, or
 * whose tokens the host chooses, is never left under way. */
#include "worker/state.h"

/* The prompt's last row is computed. */
static bt_status prompt_done(bt_worker *w, bt_request *r, bt_finish finish)
{
    BT_DEBUG("the prompt's %u tokens are computed", r->n_prompt);
    if (finish != BT_FINISH_NONE) return bt_worker_end(w, r);
    if (!bt_rank_has_both(&w->cfg.facts)) {
        r->state           = BT_REQUEST_SENDING;
        r->out.first_known = true;
        r->out.cached      = r->n_held;
        r->out.moved_ns = r->out.computed_ns = bt_worker_awake_ns(w);
        return bt_worker_pump(w, r, true);
    }
    if (!r->eval) return bt_worker_begin_decode(w, r, false);
    r->state = BT_REQUEST_DECODE;
    return r->n_eval == 0 ? bt_worker_end(w, r) : BT_OK;
}

/* Advances the request of a piece once its tokens are on their way: they must not come after its
 * Released. */
static bt_status conclude(bt_worker *w, const bt_batch *b, uint32_t piece)
{
    bt_status   st = BT_OK;
    bt_piece   *p  = &b->pieces[piece];
    bt_request *r  = p->request;

    if (r == NULL) return BT_OK;
    bt_log_set_request(r->id);
    if (r->eval) BT_TRY(bt_batch_send_eval(b, &w->cfg, piece));
    if (bt_piece_is_prompt(p) && r->n_computed == r->n_prompt)
        return prompt_done(w, r, b->finish[piece]);
    if (b->finish[piece] != BT_FINISH_NONE) return bt_worker_end_choice(w, r);
    if (r->eval && r->n_computed == r->n_prompt + r->n_eval) return bt_worker_end(w, r);
    BT_TRY(bt_worker_pump(w, r, true));
out:
    return st;
}

/* Phases of steps do not overlap: this is the host's time. */
static uint64_t enter_model(bt_worker *w) { return w->phase_from_ns = bt_worker_now_ns(w); }

/* Counts what has passed since then, or since this was last called, and returns it. */
static uint64_t count_model(bt_worker *w)
{
    uint64_t from_ns = w->phase_from_ns, took_ns = enter_model(w) - from_ns;

    w->model_ns += took_ns;
    return took_ns;
}

static uint64_t leave_model(bt_worker *w)
{
    uint64_t took_ns = count_model(w);

    w->phase_from_ns = 0;
    return took_ns;
}

/* Beats within a step count its layers so far, and none within a layer: there the rank may wait for
 * others, which is known only when that has ended, and would pass for computing.  Nor are they
 * about its time, or all of it would come with the next beat, which is about much less. */
static void layer_done(void *ctx, uint32_t layer)
{
    bt_worker *w = ctx;
    bt_status  st;

    count_model(w);
    w->progress++;
    w->layers_done = layer + 1;
    for (uint32_t i = 0; i < w->batch->n_pieces; i++) {
        st = bt_worker_pump(w, w->batch->pieces[i].request, false);
        if (w->background == BT_OK) w->background = st;
    }
    bt_worker_background(w);
}

/* ---- launch */

/* The step is void.  Rows of it may have been handed over: computed again they must have the same
 * form, however the prompt is cut then. */
static void take_back(bt_batch *b)
{
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        const bt_piece *p = &b->pieces[i];
        bt_request     *r = p->request;

        if (bt_piece_is_prompt(p))
            bt_form_map_fix(&r->map, p->start + p->n_rows, p->role, b->spans[i].form);
        r->step_end  = r->n_computed;
        r->n_drawn   = 0;
        r->on_device = 0; /* it may have counted what comes to nothing */
        r->n_launched--;
    }
}

static bt_status launch(bt_worker *w)
{
    bt_status st;
    bt_batch *b = w->batch;

    BT_DEBUG("step %llu: %u prompt and %u generated rows", (unsigned long long)w->n_steps,
             b->n_rows[BT_ROLE_PROMPT], b->n_rows[BT_ROLE_GENERATED]);
    b->from_ns         = enter_model(w);
    b->step.layer_done = layer_done;
    b->step.ctx        = w;
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        const bt_piece *p = &b->pieces[i];
        bt_request     *r = p->request;

        r->step_end = p->start + p->n_rows - p->n_draft;
        r->n_launched++;
        if (!b->due[i] || bt_piece_is_prompt(p)) continue;
        r->n_drawn++;
        r->draw = b->first_draw[i];
    }
    st = w->cfg.links.launch(w->cfg.links.ctx, &b->step);
    leave_model(w);
    w->layers_done = 0;
    w->n_steps++;
    if (st != BT_OK) take_back(b);
    return st;
}

/* Whether the step may stay under way while the next one is planned. */
static bool may_stay(const bt_worker *w, const bt_batch *b)
{
    for (uint32_t i = 0; i < b->n_pieces; i++)
        if (bt_piece_is_prompt(&b->pieces[i])) return false;
    return w->lookahead && b->on_device && !bt_worker_load_is_due(w);
}

/* ---- the end */

/* Its rows are over. */
static void let_go(bt_batch *b)
{
    for (uint32_t i = 0; i < b->n_pieces; i++)
        b->held[i]->n_launched--;
}

/* Pieces of requests that have ended meanwhile are none any more. */
static void count_in(bt_worker *w, bt_batch *b)
{
    uint64_t end_ns = bt_worker_now_ns(w), from_ns = b->from_ns;

    if (from_ns < w->ended_ns) from_ns = w->ended_ns; /* the step before was under way */
    w->ended_ns = end_ns;
    bt_worker_count(w->step_times, BT_BEAT_TIME_BUCKETS, end_ns - from_ns, BT_BEAT_TIME_NS);
    bt_worker_count(w->batch_rows, BT_BEAT_BATCH_BUCKETS, b->step.n_rows, 1);
    for (int role = 0; role < BT_N_ROLES; role++)
        w->n_rows_done[role] += b->n_rows[role];
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        bt_piece   *p = &b->pieces[i];
        bt_request *r = p->request;

        b->held[i]    = r;
        r->n_computed = p->start + p->n_rows - p->n_draft;
        r->n_drawn -= b->due[i] && !bt_piece_is_prompt(p);
        if (r->state == BT_REQUEST_DRAINING) p->request = NULL;
    }
}

/* The model's drafts of what comes next, behind the step's tokens.  Its requests go on also where
 * that fails. */
static bt_status draft(bt_worker *w, bt_batch *b)
{
    bt_status st;

    enter_model(w);
    st = bt_worker_run_mtp(w, b);
    w->ended_ns += leave_model(w); /* sample_ns is without */
    return st;
}

static bt_status end_step(bt_worker *w, bt_batch *b)
{
    bt_status st = BT_OK, drafted = BT_OK;

    enter_model(w);
    st = w->cfg.links.await(w->cfg.links.ctx);
    leave_model(w);
    if (st != BT_OK) {
        take_back(b);
        goto out;
    }
    count_in(w, b);
    st = bt_worker_choose_all(w, b);
    if (st == BT_OK) st = bt_worker_send_tokens(w, b->n_out, b->out);
    if (st == BT_OK && w->cfg.facts.mtp != 0) drafted = draft(w, b);
    let_go(b);
    BT_TRY(st);
    for (uint32_t i = 0; i < b->n_pieces; i++)
        BT_TRY(conclude(w, b, i));
    BT_TRY(bt_worker_reap(w));
    BT_TRY(drafted);
    if (w->under_way == NULL) BT_TRY(bt_worker_send_load(w));
    BT_TRY(bt_worker_background_status(w));
    w->sample_ns += bt_worker_now_ns(w) - w->ended_ns;
out:
    bt_log_set_request(0);
    return st;
}

bt_status bt_worker_catch_up(bt_worker *w)
{
    bt_batch *b = w->under_way;

    w->under_way = NULL;
    return b == NULL ? BT_OK : end_step(w, b);
}

bool bt_worker_must_catch_up(const bt_worker *w)
{
    uint32_t n_pages = 0;

    for (uint32_t i = 0; i < w->requests.n && w->under_way != NULL; i++) {
        const bt_request *r = w->requests.at[i];

        if (bt_worker_needs_history(r)) return true;
        if (r->state == BT_REQUEST_DECODE && r->constraint != NULL) return true;
        n_pages += bt_request_needs_page(r);
    }
    return n_pages > bt_kv_pool_n_available(w->cfg.pool);
}

bt_status bt_worker_abandon(bt_worker *w)
{
    if (w->under_way == NULL) return BT_OK;
    take_back(w->under_way);
    w->under_way = NULL;
    return bt_worker_reap(w);
}

bt_status bt_worker_run(bt_worker *w)
{
    bt_status st     = BT_OK;
    bt_batch *before = w->under_way, *b = w->batch;

    BT_TRY(launch(w));
    w->under_way = b;
    if (w->lookahead) w->batch = b == &w->batches[0] ? &w->batches[1] : &w->batches[0];
    w->n_ahead += before != NULL;
    if (before != NULL) BT_TRY(end_step(w, before));
    if (!may_stay(w, b)) BT_TRY(bt_worker_catch_up(w));
out:
    if (st != BT_OK && bt_worker_abandon(w) != BT_OK) BT_WARN("what has ended is told later");
    return st;
}
