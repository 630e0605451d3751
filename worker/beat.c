/* worker/beat.c - what a rank says of itself: beats, and the load of its experts. */
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "worker/state.h"

#define BEAT_NS (200 * BT_NS_PER_MS)
#define LOAD_NS (1 * BT_NS_PER_S)

void bt_worker_count(uint64_t *buckets, uint32_t n, uint64_t value, uint64_t unit)
{
    uint32_t i = 0;

    while (i + 1 < n && value > unit << i)
        i++;
    buckets[i]++;
}

/* Staging slots of granted messages whose requests have ended. */
static uint32_t count_quarantined(const bt_worker *w)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->requests.n; i++)
        n += w->requests.at[i]->state == BT_REQUEST_DRAINING &&
             w->requests.at[i]->out.ticket_ids != NULL;
    return n;
}

bool bt_worker_load_is_due(const bt_worker *w)
{
    return w->n_steps != w->load_steps && bt_worker_now_ns(w) - w->load_ns >= LOAD_NS;
}

static bt_status send_expert_load(bt_worker *w)
{
    bt_status       st   = BT_OK;
    uint32_t        n    = w->cfg.facts.model->moe.gate.n_experts;
    bt_up           m    = {.kind = BT_UP_EXPERT_LOAD};
    const uint64_t *rows = w->cfg.links.expert_rows(w->cfg.links.ctx);

    if (rows == NULL) return BT_OK;
    m.u.expert_load.n    = n;
    m.u.expert_load.rows = bt_copy(rows, n, sizeof(*rows));
    BT_REQUIRE(m.u.expert_load.rows != NULL, BT_ERR_NO_MEMORY, "load of %u experts", n);
    st = bt_worker_up(w, &m);
out:
    return st;
}

/* Of the peers with which something went. */
static bt_status send_peer_load(bt_worker *w, uint64_t now_ns)
{
    bt_status         st      = BT_OK;
    bt_up             m       = {.kind = BT_UP_PEER_LOAD};
    const bt_traffic *traffic = w->cfg.links.traffic(w->cfg.links.ctx);
    uint32_t          n       = w->cfg.facts.n_ranks;
    bt_peer_load     *peers;

    if (traffic == NULL) return BT_OK;
    m.u.peer_load.at_ns = now_ns;
    m.u.peer_load.peers = peers = bt_calloc(n, sizeof(*peers));
    BT_REQUIRE(peers != NULL, BT_ERR_NO_MEMORY, "load of %u peers", n);
    for (uint32_t i = 0; i < n; i++)
        if (traffic[i].waited_ns + traffic[i].handoff_ns > 0)
            peers[m.u.peer_load.n++] = (bt_peer_load){
                i, traffic[i].waited_ns, traffic[i].handoff_bytes, traffic[i].handoff_ns};
    if (m.u.peer_load.n == 0)
        bt_up_free(&m);
    else
        st = bt_worker_up(w, &m);
out:
    return st;
}

bt_status bt_worker_send_load(bt_worker *w)
{
    bt_status st  = BT_OK;
    uint64_t  now = bt_worker_now_ns(w);

    if (!bt_worker_load_is_due(w)) return BT_OK;
    w->load_ns    = now;
    w->load_steps = w->n_steps;
    BT_TRY(send_expert_load(w));
    st = send_peer_load(w, now);
out:
    return st;
}

bt_status bt_worker_beat(bt_worker *w)
{
    bt_status st  = BT_OK;
    uint64_t  now = bt_worker_now_ns(w);
    bt_up     m   = {.kind = BT_UP_BEAT};

    if (now - w->beat_ns < BEAT_NS) return BT_OK;
    w->beat_ns = now;
    m.u.beat   = (bt_up_beat){.progress            = w->progress,
                              .at_ns               = w->phase_from_ns != 0 ? w->phase_from_ns : now,
                              .steps               = w->n_steps,
                              .handoff_bytes       = w->handoff_bytes,
                              .handoff_pages       = w->handoff_pages,
                              .handoff_ns          = w->handoff_ns,
                              .n_requests          = w->requests.n,
                              .pages_free          = bt_kv_pool_n_free(w->cfg.pool),
                              .pages_total         = bt_kv_pool_n_pages(w->cfg.pool),
                              .pages_cached        = bt_kv_pool_n_cached(w->cfg.pool),
                              .slots_quarantined   = count_quarantined(w),
                              .prefix_asked_tokens = w->prefix_asked_tokens,
                              .prefix_hit_tokens   = w->prefix_hit_tokens,
                              .draft_tokens        = w->n_drafted,
                              .drafts              = w->n_drafts,
                              .draft_right_tokens  = w->n_draft_right,
                              .gather_ns           = w->gather_ns,
                              .model_ns            = w->model_ns,
                              .sample_ns           = w->sample_ns,
                              .waited_ns           = w->cfg.links.waited_ns(w->cfg.links.ctx),
                              .prompt_rows         = w->n_rows_done[BT_ROLE_PROMPT],
                              .generated_rows      = w->n_rows_done[BT_ROLE_GENERATED]};
    memcpy(m.u.beat.batch_rows, w->batch_rows, sizeof(w->batch_rows));
    memcpy(m.u.beat.step_times, w->step_times, sizeof(w->step_times));
    memcpy(m.u.beat.handoff_times, w->handoff_times, sizeof(w->handoff_times));
    BT_TRY(bt_worker_up(w, &m));
    if (w->parked) BT_TRY(bt_worker_send_load(w));
out:
    return st;
}
