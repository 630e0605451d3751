/* worker/control.c - what the coordinator orders. */
#include "core/alloc.h"
#include "worker/state.h"

/* A second order for a request that is still here.  One of an older placement gives way; anything
 * else is dropped.  *go_on_out: the new order goes on. */
static bt_status make_way(bt_worker *w, uint64_t request, uint32_t epoch, bool *go_on_out)
{
    bt_status   st = BT_OK;
    bt_request *r  = bt_requests_find(&w->requests, request);

    *go_on_out = r == NULL || r->epoch < epoch;
    if (r == NULL) return BT_OK;
    if (!*go_on_out) {
        BT_WARN("a second order for request %llu in epoch %u: dropped", (unsigned long long)request,
                epoch);
        return BT_OK;
    }
    BT_TRY(bt_worker_end(w, r));
    if (bt_requests_find(&w->requests, request) != NULL) { /* its last message must leave first */
        *go_on_out = false;
        st         = bt_worker_send_failed(w, request, epoch, BT_RPC_UNAVAILABLE,
                                           "an earlier placement of this request is still leaving");
    }
out:
    return st;
}

static bt_status send_ticket(bt_worker *w, uint64_t request, uint32_t epoch, const bt_request *r)
{
    bt_status st = BT_OK;
    bt_up     m  = {.kind = BT_UP_TICKET};

    m.u.ticket.request = request;
    m.u.ticket.epoch   = epoch;
    m.u.ticket.refused = r == NULL;
    m.u.ticket.held    = r == NULL ? 0 : r->n_held;
    m.u.ticket.n_pages = r == NULL ? 0 : bt_kv_pages_for(r->n_prompt);
    m.u.ticket.pages   = bt_calloc(m.u.ticket.n_pages, sizeof(*m.u.ticket.pages));
    BT_REQUIRE(m.u.ticket.pages != NULL, BT_ERR_NO_MEMORY, "ticket of %u pages",
               m.u.ticket.n_pages);
    for (uint32_t i = 0; i < m.u.ticket.n_pages; i++)
        m.u.ticket.pages[i] =
            (bt_page_ref){r->pages[i], bt_kv_pool_generation(w->cfg.pool, r->pages[i])};
    if (r != NULL && r->map.pages != NULL && r->n_held > 0) {
        m.u.ticket.n_form_map_bytes = r->n_held / BT_PAGE_TOKENS * sizeof(*r->map.pages);
        m.u.ticket.form_map         = bt_copy(r->map.pages, m.u.ticket.n_form_map_bytes, 1);
        BT_REQUIRE(m.u.ticket.form_map != NULL, BT_ERR_NO_MEMORY, "form map of a ticket");
    }
    st     = bt_worker_up(w, &m);
    m.kind = BT_UP_READY; /* it owns nothing any more */
out:
    bt_up_free(&m);
    return st;
}

/* Pages for the prompt, for what is replayed and for the next token; the rest as it grows.  An
 * evaluation, which is never retracted, has all of its own at once. */
static bt_status take_pages(bt_worker *w, bt_request *r)
{
    return bt_request_take_pages(r, w->cfg.pool,
                                 r->eval ? bt_request_n_tokens(r) : r->n_prompt + r->n_replay + 1);
}

/* NO_PAGES (not logged) when the requests that grow already could not take one page each: they
 * would soon retract this one. */
static bt_status leave_some(const bt_worker *w, uint64_t id)
{
    uint32_t others = 0;

    for (uint32_t i = 0; i < w->requests.n; i++)
        others += w->requests.at[i]->id != id && bt_worker_may_grow(w->requests.at[i]);
    return bt_kv_pool_n_available(w->cfg.pool) < others ? BT_ERR_NO_PAGES : BT_OK;
}

static bt_status on_reserve(bt_worker *w, bt_down_reserve *m)
{
    bt_status   st    = BT_OK;
    bt_request *r     = NULL, *first;
    bool        go_on = false;

    BT_TRY(make_way(w, m->request, m->epoch, &go_on));
    if (!go_on) goto out;
    st = bt_request_from_reserve(&w->cfg.facts, m, &r);
    if (st == BT_ERR_INVALID_ARG) {
        st = bt_worker_send_failed(w, m->request, m->epoch, BT_RPC_INVALID_ARGUMENT,
                                   bt_error_text());
        goto out;
    }
    BT_TRY(st);
    st = take_pages(w, r);
    if (st == BT_ERR_NO_PAGES) {
        st = send_ticket(w, m->request, m->epoch, NULL);
        goto out;
    }
    BT_TRY(st);
    if (!bt_rank_has_both(&w->cfg.facts))
        BT_TRY(bt_handoff_in_init(
            &r->in, w->cfg.pool, r->n_prompt, r->n_held, w->cfg.facts.model->vocab_size, r->pages,
            &(bt_handoff_tail){r->n_choices, r->firsts, r->map.pages, bt_form_map_bytes(&r->map),
                               bt_form_map_fixed_bytes(&r->map)}));
    BT_TRY(bt_requests_add(&w->requests, r));
    first = r;
    r     = NULL; /* the table has it */
    BT_TRY(w->cfg.links.take(w->cfg.links.ctx));
    st = bt_worker_add_choices(w, first, m);
    if (st == BT_OK) st = leave_some(w, first->id);
    if (st == BT_ERR_NO_PAGES) {
        bt_worker_forget(w, first->id);
        st = send_ticket(w, m->request, m->epoch, NULL);
        goto out;
    }
    BT_TRY(st);
    w->prefix_asked_tokens += first->n_keys == 0 ? 0 : first->n_prompt;
    w->prefix_hit_tokens += first->n_held;
    BT_DEBUG("reserved %u pages for %u prompt tokens from rank %u, and %u choices", first->n_pages,
             first->n_prompt, first->peer, first->n_choices);
    st = send_ticket(w, first->id, first->epoch, first);
out:
    if (r != NULL) bt_request_release_pages(r, w->cfg.pool);
    bt_request_destroy(r);
    return st;
}

/* With both roles the prompt is added to the request that was reserved for it. */
static bt_status on_prompt(bt_worker *w, bt_down_prefill *m)
{
    bt_status   st = BT_OK;
    bt_request *r  = bt_requests_find(&w->requests, m->request);

    if (r == NULL || r->epoch != m->epoch)
        return bt_worker_send_failed(w, m->request, m->epoch, BT_RPC_INVALID_ARGUMENT,
                                     "an order to prefill without a reservation on this rank");
    st = bt_request_add_prompt(&w->cfg.facts, r, w->cfg.pool, m);
    return st == BT_ERR_INVALID_ARG ? bt_worker_fail(w, r, BT_RPC_INVALID_ARGUMENT, bt_error_text())
                                    : st;
}

/* The last message has room for its tail, and for a row beside it.  INVALID_ARG, with what does not
 * fit. */
static bt_status check_tail(const bt_worker *w, const bt_request *r)
{
    bt_status st   = BT_OK;
    size_t    tail = bt_handoff_tail_bytes(&r->out.tail), most = w->cfg.links.tail_max;
    size_t    row  = bt_kv_pool_kv_dim(w->cfg.pool) * sizeof(bt_bf16);
    size_t    room = w->cfg.links.payload_max - row;

    most = most < room ? most : room;
    BT_REQUIRE(tail <= most, BT_ERR_INVALID_ARG,
               "its first tokens (%u choices) and form map have %zu bytes, and a page message has "
               "room for %zu",
               r->n_choices, tail, most);
out:
    return st;
}

static bt_status on_prefill(bt_worker *w, bt_down_prefill *m)
{
    bt_status   st    = BT_OK;
    bt_request *r     = NULL;
    bool        go_on = false;

    if (bt_rank_has_both(&w->cfg.facts)) return on_prompt(w, m);
    BT_TRY(make_way(w, m->request, m->epoch, &go_on));
    if (!go_on) goto out;
    st = bt_request_from_prefill(&w->cfg.facts, m, &r);
    if (st == BT_OK) st = check_tail(w, r);
    if (st == BT_ERR_INVALID_ARG) {
        st = bt_worker_send_failed(w, m->request, m->epoch, BT_RPC_INVALID_ARGUMENT,
                                   bt_error_text());
        goto out;
    }
    BT_TRY(st);
    BT_TRY(bt_requests_add(&w->requests, r));
    BT_DEBUG("queued: %u prompt tokens for rank %u", r->n_prompt, r->peer);
    r = NULL;
out:
    bt_request_destroy(r);
    return st;
}

static bt_status on_abort(bt_worker *w, uint64_t request, uint32_t epoch, uint32_t only_choice)
{
    bt_request *r = bt_requests_find(&w->requests, request);

    if (only_choice != 0) return bt_worker_drop_choice(w, request, epoch, only_choice - 1);
    if (r != NULL && r->epoch == epoch) return bt_worker_end(w, r);
    return bt_worker_send_released(w, request, epoch);
}

bt_status bt_worker_control(bt_worker *w, bt_down *m)
{
    bt_status st = BT_OK;

    switch (m->kind) {
    case BT_DOWN_WELCOME: break;
    case BT_DOWN_RESERVE:
        bt_log_set_request(m->u.reserve.request);
        BT_TRY(on_reserve(w, &m->u.reserve));
        break;
    case BT_DOWN_PREFILL:
        bt_log_set_request(m->u.prefill.request);
        BT_TRY(on_prefill(w, &m->u.prefill));
        break;
    case BT_DOWN_ABORT:
        bt_log_set_request(m->u.abort.request);
        BT_TRY(on_abort(w, m->u.abort.request, m->u.abort.epoch, m->u.abort.only_choice));
        break;
    case BT_DOWN_WAKE:
        /* After Shutdown a wake number would not reach ranks that have left already. */
        if (!w->shutdown && m->u.wake.wake > w->wake_seen) w->wake_seen = m->u.wake.wake;
        break;
    case BT_DOWN_REGROUP: BT_TRY(bt_worker_regroup(w, &m->u.regroup)); break;
    case BT_DOWN_SHUTDOWN: w->shutdown = true; break;
    }
out:
    bt_log_set_request(0);
    return st;
}
