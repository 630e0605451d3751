/* worker/lifecycle.c - how requests come, fail and go; what moves while steps run. */
#include <stdio.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "worker/state.h"

enum { LEASE_TIMEOUTS = 6 }; /* a hand-off may stand still for so many deadlines */

#define LEASES_NS (100 * BT_NS_PER_MS)

static bt_status say_failed(bt_worker *w, uint64_t request, uint32_t epoch, uint32_t code,
                            const char *why, bool stands_still)
{
    bt_status st   = BT_OK;
    char     *text = bt_strdup(why);
    bt_up     m    = {
               .kind = BT_UP_FAILED, .u.failed = {request, epoch, code, text, stands_still}
    };

    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "the reason of a failed request");
    st = bt_worker_up(w, &m);
out:
    return st;
}

bt_status bt_worker_send_failed(bt_worker *w, uint64_t request, uint32_t epoch, uint32_t code,
                                const char *why)
{
    return say_failed(w, request, epoch, code, why, false);
}

bt_status bt_worker_send_released(bt_worker *w, uint64_t request, uint32_t epoch)
{
    bt_up m = {
        .kind = BT_UP_RELEASED, .u.released = {request, epoch}
    };

    return bt_worker_up(w, &m);
}

static bt_status fail(bt_worker *w, bt_request *r, uint32_t code, const char *why,
                      bool stands_still)
{
    bt_status st = BT_OK;

    if (r->state != BT_REQUEST_DRAINING)
        BT_TRY(say_failed(w, r->id, r->epoch, code, why, stands_still));
    BT_TRY(bt_worker_end(w, r));
out:
    return st;
}

bt_status bt_worker_fail(bt_worker *w, bt_request *r, uint32_t code, const char *why)
{
    return fail(w, r, code, why, false);
}

/* With choices it has several entries. */
static bool has_rows_under_way(const bt_worker *w, uint64_t id)
{
    bool found = false;

    for (uint32_t i = 0; i < w->requests.n; i++)
        found = found || (w->requests.at[i]->id == id && w->requests.at[i]->n_launched > 0);
    return found;
}

static void set_draining(bt_worker *w, uint64_t id)
{
    for (uint32_t i = 0; i < w->requests.n; i++)
        if (w->requests.at[i]->id == id) w->requests.at[i]->state = BT_REQUEST_DRAINING;
}

bt_status bt_worker_end(bt_worker *w, bt_request *r)
{
    const bt_worker_links *links = &w->cfg.links;
    uint64_t               id    = r->id;
    uint32_t               epoch = r->epoch;

    if (has_rows_under_way(w, id)) { /* what they are written to is nobody else's until then */
        set_draining(w, id);
        return BT_OK;
    }
    if (r->out.ticket_ids != NULL && !links->cancel(links->ctx, id)) {
        bt_request_release_pages(r, w->cfg.pool); /* what is staged is a copy */
        if (r->state != BT_REQUEST_DRAINING)
            BT_DEBUG("request %llu has no pages any more; a granted message is still leaving",
                     (unsigned long long)id);
        r->state = BT_REQUEST_DRAINING;
        return BT_OK;
    }
    BT_DEBUG("request %llu is gone after %u computed tokens", (unsigned long long)id,
             r->n_computed);
    bt_worker_forget(w, id);
    return bt_worker_send_released(w, id, epoch);
}

void bt_worker_forget(bt_worker *w, uint64_t id)
{
    bt_request *r;

    while ((r = bt_requests_find(&w->requests, id)) != NULL)
        bt_worker_discard(w, r);
}

void bt_worker_discard(bt_worker *w, bt_request *r)
{
    bt_request_release_pages(r, w->cfg.pool);
    bt_requests_remove(&w->requests, r);
    bt_request_destroy(r);
}

bt_status bt_worker_admit(bt_worker *w)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < w->requests.n; i++) {
        bt_request *r = w->requests.at[i];

        if (r->state != BT_REQUEST_QUEUED) continue;
        st = bt_request_take_pages(r, w->cfg.pool, r->n_prompt);
        if (st == BT_ERR_NO_PAGES) return BT_OK; /* the next one must not overtake it */
        BT_TRY(st);
        r->state = BT_REQUEST_PREFILL;
        w->prefix_asked_tokens += r->n_keys == 0 ? 0 : r->n_prompt;
        w->prefix_hit_tokens += r->n_held;
    }
out:
    return st;
}

bt_status bt_worker_pump(bt_worker *w, bt_request *r, bool flush)
{
    bt_status              st    = BT_OK;
    const bt_worker_links *links = &w->cfg.links;
    bt_page_message        m;
    bt_page_payload        payload;
    bt_handoff_out_view    view = {.n_layers    = bt_kv_pool_n_layers(w->cfg.pool),
                                   .n_prompt    = r->n_prompt,
                                   .kv_dim      = bt_kv_pool_kv_dim(w->cfg.pool),
                                   .low         = r->n_computed,
                                   .high        = r->step_end,
                                   .n_high      = w->layers_done,
                                   .payload_max = links->payload_max,
                                   .flush       = flush};

    if (r->out.ticket_ids == NULL ||
        (r->state != BT_REQUEST_PREFILL && r->state != BT_REQUEST_SENDING))
        return BT_OK;
    /* Cached pages go with the first piece: from the first message on a lease runs, and a prompt
     * may wait for others longer than that. */
    if (r->step_end == r->n_held) return BT_OK;
    while (bt_handoff_out_next(&r->out, &view, &m)) {
        void *slot = links->stage(links->ctx);

        if (slot == NULL) {
            w->deferred = true;
            return BT_OK;
        }
        payload = links->slot(links->ctx, slot, &m);
        st      = bt_handoff_out_pack(&r->out, w->cfg.pool, r->pages, &m, &payload);
        if (st != BT_OK) {
            links->unstage(links->ctx, slot);
            goto out;
        }
        m.request       = r->id;
        m.epoch         = r->epoch;
        r->out.moved_ns = bt_worker_awake_ns(w);
        links->send(links->ctx, r->peer, &m, slot);
    }
out:
    return st;
}

static void note_handoff(bt_worker *w, const bt_request *r)
{
    uint64_t took_ns = r->out.moved_ns - r->out.computed_ns;

    w->handoff_pages += bt_kv_pages_for(r->n_prompt - r->out.held);
    w->handoff_ns += took_ns;
    bt_worker_count(w->handoff_times, BT_BEAT_TIME_BUCKETS, took_ns, BT_BEAT_TIME_NS);
}

bt_status bt_worker_reap(bt_worker *w)
{
    bt_status st = BT_OK;

    for (uint32_t i = w->requests.n; i-- > 0;) {
        bt_request *r = w->requests.at[i];

        if (r->state == BT_REQUEST_SENDING && bt_handoff_out_done(&r->out)) {
            note_handoff(w, r);
            BT_TRY(bt_worker_end(w, r));
        } else if (r->state == BT_REQUEST_DRAINING) {
            BT_TRY(bt_worker_end_choice(w, r));
        }
    }
out:
    return st;
}

static uint64_t lease_ns(const bt_worker *w) { return LEASE_TIMEOUTS * w->cfg.timeout_ns; }

uint64_t bt_worker_awake_ns(bt_worker *w)
{
    return bt_awake_at_ns(&w->leases_clock, bt_worker_now_ns(w), lease_ns(w) / 2);
}

static bt_status check_lease(bt_worker *w, bt_request *r, uint64_t now)
{
    uint64_t lease = lease_ns(w);
    char     text[200];

    if (r->in.moved_ns != 0 && now - r->in.moved_ns > lease)
        snprintf(text, sizeof(text),
                 "the hand-off from rank %u stands still after %llu of %llu rows", r->peer,
                 (unsigned long long)r->in.n_rows,
                 (unsigned long long)r->in.n_layers * r->n_prompt);
    else if (r->state == BT_REQUEST_SENDING && r->out.n_in_flight > 0 && /* else: for a slot */
             now - r->out.moved_ns > lease)
        snprintf(text, sizeof(text), "rank %u takes no pages: %u messages wait", r->peer,
                 r->out.n_in_flight);
    else
        return BT_OK;
    bt_log_set_request(r->id);
    BT_WARN("%s", text);
    bt_log_set_request(0);
    return fail(w, r, BT_RPC_UNAVAILABLE, text, true);
}

bt_status bt_worker_check_leases(bt_worker *w)
{
    bt_status st  = BT_OK;
    uint64_t  now = bt_worker_awake_ns(w);

    if (now - w->leases_ns < LEASES_NS) return BT_OK;
    w->leases_ns = now;
    for (uint32_t i = w->requests.n; i-- > 0;)
        BT_TRY(check_lease(w, w->requests.at[i], now));
    BT_TRY(bt_worker_reap(w));
out:
    return st;
}

/* Keeps the first error of the background, where no status can be returned. */
static void keep(bt_worker *w, bt_status st)
{
    if (w->background == BT_OK) w->background = st;
}

/* The request joins the decode batch: its rows are complete. */
static bt_status join(bt_worker *w, bt_request *r)
{
    /* A page message has no room for the alternatives, which only the prefill rank's own has;
     * and it must not overtake the prompt's logprobs. */
    bool repeat = r->sampling.top_logprobs == 0 && r->sampling.prompt_logprobs == 0;

    r->n_cached = r->in.cached;
    bt_request_keep_pages(r, w->cfg.pool, r->n_prompt);
    BT_DEBUG("all rows of %u prompt tokens are here: it decodes", r->n_prompt);
    bt_handoff_in_fini(&r->in);
    if (!r->eval) return bt_worker_begin_decode(w, r, repeat);
    r->state      = BT_REQUEST_DECODE;
    r->n_computed = r->step_end = r->n_prompt;
    return r->n_eval == 0 ? bt_worker_end(w, r) : BT_OK;
}

/* A request whose rows have all come.  It joins the batch outside of the hand-off's event, when
 * work of the device may use the rows. */
static bt_request *next_complete(const bt_worker *w)
{
    for (uint32_t i = 0; i < w->requests.n; i++)
        if (bt_handoff_in_complete(&w->requests.at[i]->in)) return w->requests.at[i];
    return NULL;
}

bool bt_worker_background(bt_worker *w)
{
    bool        moved = w->cfg.links.poll(w->cfg.links.ctx);
    bt_request *complete;

    while (moved && (complete = next_complete(w)) != NULL) {
        bt_log_set_request(complete->id);
        keep(w, join(w, complete)); /* it is complete no more, whatever came of it */
        bt_log_set_request(0);
    }
    /* A slot also becomes free when another request's messages are withdrawn. */
    if (moved || w->deferred) {
        w->deferred = false;
        for (uint32_t i = 0; i < w->requests.n; i++) {
            bt_request *r = w->requests.at[i];

            keep(w, bt_worker_pump(w, r, r->step_end == r->n_computed));
        }
        keep(w, bt_worker_reap(w));
    }
    keep(w, bt_worker_beat(w));
    return moved;
}

bt_status bt_worker_background_status(bt_worker *w)
{
    bt_status st = w->background;

    w->background = BT_OK;
    return st;
}

bool bt_worker_expects_pages(const bt_worker *w)
{
    if (bt_rank_has_both(&w->cfg.facts)) return false;
    for (uint32_t i = 0; i < w->requests.n; i++) {
        bt_request_state s = w->requests.at[i]->state;

        if (s == BT_REQUEST_RESERVED || s == BT_REQUEST_SENDING || s == BT_REQUEST_DRAINING)
            return true;
    }
    return false;
}

void bt_worker_delivered(bt_worker *w, uint32_t from, const bt_page_message *m,
                         const bt_page_payload *p)
{
    bt_request *r = bt_requests_find(&w->requests, m->request);
    bt_status   st;

    if (r == NULL || r->epoch != m->epoch) {
        BT_DEBUG("a message of rank %u for request %llu in epoch %u, which is not here: dropped",
                 from, (unsigned long long)m->request, m->epoch);
        return;
    }
    bt_log_set_request(r->id);
    if (r->in.seen == NULL || r->peer != from) {
        BT_WARN("a message of rank %u that nobody waits for (state %d, sender %u): dropped", from,
                (int)r->state, r->peer);
    } else {
        st             = bt_handoff_in_accept(&r->in, w->cfg.pool, r->pages, m, p);
        r->in.moved_ns = bt_worker_awake_ns(w);
        if (st != BT_OK && bt_status_scope(st) == BT_SCOPE_REQUEST)
            st = bt_worker_fail(w, r, BT_RPC_DATA_LOSS, bt_error_text());
        keep(w, st);
    }
    bt_log_set_request(0);
}

void bt_worker_rejected(bt_worker *w, uint32_t from, uint64_t request, bt_status why)
{
    bt_request *r = bt_requests_find(&w->requests, request); /* 0: none */
    char        text[160];

    snprintf(text, sizeof(text), "a page message of rank %u was refused: %s", from,
             bt_status_str(why));
    if (r == NULL || r->in.seen == NULL || r->peer != from) {
        BT_WARN("%s (request %llu, not waited for)", text, (unsigned long long)request);
        if (request == 0) keep(w, why); /* nobody can tell whose rows are missing now */
        return;
    }
    keep(w, bt_worker_fail(w, r, BT_RPC_DATA_LOSS, text));
}

void bt_worker_sent(bt_worker *w, const bt_page_message *m)
{
    bt_request *r = bt_requests_find(&w->requests, m->request);

    w->handoff_bytes += m->payload_bytes - m->tail_bytes;
    if (r == NULL || r->epoch != m->epoch || r->out.n_in_flight == 0) return;
    r->out.n_in_flight--;
    r->out.moved_ns = bt_worker_awake_ns(w);
}
