/* worker/growth.c - pages for what is generated, and who gives way when none is left; and what is
 * known of a request that was retracted: its tokens, which are replayed. */
#include "core/clock.h"
#include "worker/state.h"

/* Of a step, for constraints that follow what is replayed.  Most of them take microseconds. */
#define MOST_REPLAY_NS (BT_NS_PER_S / 20)

/* A page to each that needs one, the oldest first: false when none is left for one of them. */
static bool grow_all(bt_worker *w)
{
    for (uint32_t i = 0; i < w->requests.n; i++) {
        bt_request *r = w->requests.at[i];

        if (bt_request_needs_page(r) &&
            bt_request_grow(r, w->cfg.pool, bt_request_n_ready(r)) != BT_OK)
            return false;
    }
    return true;
}

/* Of those that may take more pages, of which there are some.  Reservations count like requests
 * that decode. */
static bt_request *youngest(const bt_worker *w)
{
    uint32_t i = w->requests.n - 1;

    while (!bt_worker_may_grow(w->requests.at[i]))
        i--;
    return w->requests.at[i];
}

static bool is_alone(const bt_worker *w, const bt_request *r)
{
    for (uint32_t i = 0; i < w->requests.n; i++)
        if (w->requests.at[i]->id != r->id && bt_worker_may_grow(w->requests.at[i])) return false;
    return true;
}

bt_status bt_worker_retract(bt_worker *w, bt_request *r)
{
    bt_status st = BT_OK;
    bt_up     m  = {
             .kind = BT_UP_RETRACTED, .u.retracted = {r->id, r->epoch}
    };

    bt_log_set_request(r->id);
    BT_DEBUG("retracted with %u pages after %u tokens", r->n_pages, r->n_known);
    BT_TRY(bt_worker_up(w, &m));
    BT_TRY(bt_worker_end(w, r));
out:
    bt_log_set_request(0);
    return st;
}

bt_status bt_worker_grow(bt_worker *w)
{
    bt_status st = BT_OK;

    while (!grow_all(w)) {
        bt_request *victim = youngest(w);

        if (is_alone(w, victim)) /* it fits, as admission has seen: evaluations are in its way */
            BT_TRY(bt_worker_fail(w, victim, BT_RPC_RESOURCE_EXHAUSTED,
                                  "no page is left, and nobody can give one back"));
        else
            BT_TRY(bt_worker_retract(w, victim));
    }
out:
    return st;
}

/* A page that another request has computed meanwhile need not be computed again. */
void bt_worker_find_prefixes(bt_worker *w)
{
    for (uint32_t i = 0; i < w->requests.n; i++)
        while (w->requests.at[i]->state == BT_REQUEST_PREFILL &&
               bt_request_find_more(w->requests.at[i], w->cfg.pool))
            w->prefix_hit_tokens += BT_PAGE_TOKENS;
}

bt_status bt_worker_adopt_replay(bt_request *r, uint32_t first)
{
    bt_status st = BT_OK;

    r->n_known = r->n_replay != 0 ? r->n_replay : 1;
    if (r->n_replay == 0) return BT_OK;
    BT_REQUIRE(r->replay[0] == first, BT_ERR_PROTOCOL,
               "the replayed prompt is followed by token %u, the client has %u", first,
               r->replay[0]);
    for (uint32_t i = 1; i < r->n_replay; i++)
        BT_TRY(bt_request_recall(r, r->replay[i]));
    r->next_token   = r->replay[r->n_replay - 1];
    r->repeat_first = false;
out:
    return st;
}

/* At least one token, and others for so long. */
static bt_status follow_for(bt_worker *w, bt_request *r, uint64_t most_ns)
{
    bt_status st      = BT_OK;
    uint64_t  from_ns = bt_now_ns();

    do { /* as when they were drawn */
        BT_TRY(bt_worker_trim_constraint(w, r->constraint, false));
        BT_TRY(bt_request_follow(r));
    } while (r->n_behind > 0 && bt_now_ns() - from_ns < most_ns);
out:
    return st;
}

static uint32_t n_that_lag(const bt_worker *w)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->requests.n; i++)
        n += w->requests.at[i]->n_behind > 0;
    return n;
}

bt_status bt_worker_follow_replays(bt_worker *w)
{
    bt_status st = BT_OK;
    uint32_t  n  = n_that_lag(w);

    for (uint32_t i = 0; n > 0 && i < w->requests.n; i++) {
        bt_request *r = w->requests.at[i];

        if (r->n_behind == 0 || r->state != BT_REQUEST_DECODE) continue;
        bt_log_set_request(r->id);
        st = follow_for(w, r, MOST_REPLAY_NS / n);
        if (st == BT_OK) continue;
        BT_TRY(bt_worker_fail(w, r, bt_worker_rpc_code(st), bt_error_text()));
        break; /* others have moved in the table */
    }
out:
    bt_log_set_request(0);
    return st;
}
