/* worker/choices.c - the choices of n on the rank that decodes them.
 *
 * They are reserved together: the first takes pages for the prompt, each of the others those that
 * it alone will write, its copy of the partial page first.  When the prompt is there the others
 * share its full pages and copy the partial one's rows, and all decode from their first tokens.
 * From then on each is a request like any other, but for its end. */
#include "worker/state.h"

/* The other choices of the order, without pages, into more[0..n_choices - 1). */
static bt_status make_others(const bt_request *first, const bt_down_reserve *m, bt_request **more,
                             uint32_t *n_out)
{
    bt_status st = BT_OK;
    uint32_t  at = first->n_replay;

    for (uint32_t i = 1; i < first->n_choices; i++) {
        uint32_t n = m->replay_lengths != NULL ? m->replay_lengths[i] : 0;

        BT_TRY(bt_request_add_choice(first, first->choices[i], n,
                                     n == 0 ? NULL : first->replay + at, &more[i - 1]));
        at += n;
        *n_out = i;
    }
out:
    return st;
}

bt_status bt_worker_add_choices(bt_worker *w, bt_request *first, const bt_down_reserve *m)
{
    bt_status   st                   = BT_OK;
    bt_request *more[BT_CHOICES_MAX] = {NULL};
    uint32_t    n = 0, n_added = 0;

    BT_TRY(make_others(first, m, more, &n));
    for (uint32_t i = 0; i < n; i++) {
        st = bt_request_take_own_pages(more[i], w->cfg.pool,
                                       first->n_prompt + more[i]->n_replay + 1);
        if (st != BT_OK) goto out; /* NO_PAGES is not an error */
    }
    for (; n_added < n; n_added++)
        BT_TRY(bt_requests_add(&w->requests, more[n_added]));
out:
    for (uint32_t i = n_added; i < n; i++) {
        bt_request_release_pages(more[i], w->cfg.pool);
        bt_request_destroy(more[i]);
    }
    return st;
}

bt_status bt_worker_end_choice(bt_worker *w, bt_request *r)
{
    if (bt_requests_count(&w->requests, r->id) == 1) return bt_worker_end(w, r);
    if (r->n_launched > 0) { /* its last row is under way */
        r->state = BT_REQUEST_DRAINING;
        return BT_OK;
    }
    BT_DEBUG("choice %u ends after %u computed tokens", r->sampling.choice, r->n_computed);
    bt_worker_discard(w, r);
    return BT_OK;
}

bt_status bt_worker_drop_choice(bt_worker *w, uint64_t request, uint32_t epoch, uint32_t choice)
{
    for (uint32_t i = 0; i < w->requests.n; i++) {
        bt_request *r = w->requests.at[i];

        if (r->id != request || r->epoch != epoch || r->sampling.choice != choice) continue;
        if (r->state == BT_REQUEST_DECODE) return bt_worker_end_choice(w, r);
        r->dropped = true; /* its prompt may be the others' */
    }
    return BT_OK;
}

/* A first token that ends its choice is not repeated beside a second token: it goes by itself. */
static bt_status repeat_ended(bt_worker *w, const bt_request *r, uint32_t index)
{
    const bt_first_token *first = &r->firsts[index];
    bt_token              token = {.request  = r->id,
                                   .choice   = r->choices[index],
                                   .position = r->n_prompt,
                                   .epoch    = r->epoch,
                                   .id       = first->id,
                                   .logprob  = first->logprob,
                                   .finish   = (bt_finish)first->finish,
                                   .cached   = r->n_cached};

    return bt_worker_send_tokens(w, 1, &token);
}

/* One choice begins to decode from what follows the prompt in it. */
static bt_status begin(bt_request *r, const bt_first_token *first, uint32_t n_cached, bool repeat)
{
    bt_status st;

    r->state      = BT_REQUEST_DECODE;
    r->n_computed = r->step_end = r->n_prompt;
    r->next_token               = first->id;
    r->next_logprob             = first->logprob;
    r->n_cached                 = n_cached;
    r->repeat_first             = repeat;
    r->dropped                  = r->dropped || first->finish != BT_FINISH_NONE;
    st                          = bt_request_note(r, first->id);
    return st == BT_OK ? bt_worker_adopt_replay(r, first->id) : st;
}

bt_status bt_worker_begin_decode(bt_worker *w, bt_request *first, bool repeat)
{
    bt_status   st                  = BT_OK;
    bt_request *all[BT_CHOICES_MAX] = {NULL};
    uint32_t    n = 0, n_choices = first->n_choices;

    for (uint32_t i = 0; i < w->requests.n; i++)
        if (w->requests.at[i]->id == first->id) all[n++] = w->requests.at[i];
    BT_ASSERT(n == n_choices && all[0] == first);
    if (repeat) BT_TRY(bt_worker_send_form_map(w, first)); /* it goes before first tokens */
    for (uint32_t i = 1; i < n && st == BT_OK; i++)
        st = bt_request_share_prompt(all[i], first, w->cfg.dev, w->cfg.pool);
    for (uint32_t i = 0; i < n && st == BT_OK; i++) {
        if (repeat && first->firsts[i].finish != BT_FINISH_NONE) BT_TRY(repeat_ended(w, first, i));
        st = begin(all[i], &first->firsts[i], first->n_cached, repeat);
    }
    if (st != BT_OK) return bt_worker_fail(w, first, bt_worker_rpc_code(st), bt_error_text());
    for (uint32_t i = 0; i < n; i++)
        if (all[i]->dropped) BT_TRY(bt_worker_end_choice(w, all[i]));
out:
    return st;
}
