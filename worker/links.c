#include "worker/links.h"

#include <poll.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "parallel/carrier.h"

#define LOOK_NS  (1 * BT_NS_PER_MS)
#define GRACE_NS (3 * BT_NS_PER_S) /* for a step to end, once a Shutdown has come */

static uint64_t link_now(void *ctx)
{
    (void)ctx;
    return bt_now_ns();
}

bt_status bt_links_send(bt_links *l, bt_up *m)
{
    bt_status st = BT_ERR_PEER;

    if (l->client != NULL)
        st = bt_control_client_send(l->client, m);
    else
        bt_up_free(m);
    if (st == BT_ERR_PEER && l->orphan_ns != 0) return BT_OK; /* the loss shows by itself */
    if (st == BT_ERR_TIMEOUT && bt_links_forsake(l)) return BT_OK;
    return st;
}

static bt_status link_up(void *ctx, bt_up *m) { return bt_links_send(ctx, m); }

static bt_page_payload link_slot(void *ctx, void *slot, const bt_page_message *m)
{
    bt_links *l = ctx;

    return bt_handoff_slot(l->handoff, slot, m);
}

static bt_status link_take(void *ctx)
{
    bt_links *l = ctx;

    return l->handoff == NULL ? BT_OK : bt_handoff_take(l->handoff);
}

static void *link_stage(void *ctx)
{
    bt_links *l = ctx;

    return bt_handoff_stage(l->handoff);
}

static void link_unstage(void *ctx, void *slot)
{
    bt_links *l = ctx;

    bt_handoff_unstage(l->handoff, slot);
}

static void link_send(void *ctx, uint32_t to, const bt_page_message *m, void *slot)
{
    bt_links *l = ctx;

    bt_handoff_send(l->handoff, to, m, slot);
}

static bool link_cancel(void *ctx, uint64_t request)
{
    bt_links *l = ctx;

    return bt_handoff_cancel(l->handoff, request);
}

static bool link_poll(void *ctx)
{
    bt_links *l = ctx;

    return l->handoff != NULL && bt_handoff_poll(l->handoff);
}

/* ---- waiting */

/* The coordinator has made another group of this rank's. */
static bool changes_group(const bt_links *l, const bt_down_regroup *m)
{
    uint32_t g = bt_seats_group_of(m->groups, l->rank);

    if (g == 2) return true; /* it has no seat any more */
    return l->group != NULL && m->groups[g].epoch != bt_group_epoch(l->group);
}

static bool keep_message(bt_links *l, const bt_down *m)
{
    if (l->n_inbox == l->inbox_capacity) {
        uint32_t capacity = l->inbox_capacity == 0 ? 64 : 2 * l->inbox_capacity;
        bt_down *inbox    = bt_realloc(l->inbox, capacity, sizeof(*inbox));

        if (inbox == NULL) return false;
        l->inbox          = inbox;
        l->inbox_capacity = capacity;
    }
    l->inbox[l->n_inbox++] = *m;
    return true;
}

/* Said here, since a rank that waits for others in vain leaves without handling it. */
static void note_shutdown(bt_links *l, const bt_down *m, uint64_t now)
{
    if (m->kind != BT_DOWN_SHUTDOWN || l->shutdown_ns != 0) return;
    l->shutdown_ns = now;
    BT_INFO("told to leave: %s", m->u.shutdown.reason == NULL ? "" : m->u.shutdown.reason);
}

bool bt_links_must_leave(bt_links *l)
{
    uint64_t now = bt_now_ns();
    bt_down  m;

    if (*l->signal != 0 || l->broken) return true;
    if (l->client != NULL && now - l->looked_ns >= LOOK_NS) {
        l->looked_ns = now;
        while (bt_control_client_poll(l->client, &m)) {
            note_shutdown(l, &m, now);
            if (m.kind == BT_DOWN_REGROUP && !m.u.regroup.prepare && changes_group(l, &m.u.regroup))
                l->regroup_due = true;
            if (!keep_message(l, &m)) {
                bt_down_free(&m);
                l->broken = true;
                return true;
            }
        }
        l->lost = bt_control_client_lost(l->client);
        if (l->lost && bt_control_client_orphaned(l->client)) bt_links_forsake(l);
    }
    return (l->lost && !l->orphaned) || (l->shutdown_ns != 0 && now - l->shutdown_ns > GRACE_NS);
}

bool bt_links_forsake(bt_links *l)
{
    l->orphaned = l->orphaned || (l->orphan_ns != 0 && l->shutdown_ns == 0);
    return l->orphaned;
}

static void empty_inbox(bt_links *l)
{
    while (l->inbox_at < l->n_inbox)
        bt_down_free(&l->inbox[l->inbox_at++]);
    l->inbox_at = l->n_inbox = 0;
}

void bt_links_set_client(bt_links *l, bt_control_client *client)
{
    empty_inbox(l);
    l->client      = client;
    l->looked_ns   = 0;
    l->regroup_due = l->lost = false;
    l->orphaned              = client == NULL;
}

static bool wait_stop(void *ctx)
{
    bt_links *l = ctx;

    return bt_links_must_leave(l) || l->regroup_due || l->orphaned;
}

static void wait_idle(void *ctx)
{
    bt_links *l = ctx;

    bt_worker_background(l->worker);
}

static bt_wait wait_for(bt_links *l, const char *what)
{
    return (bt_wait){.timeout_ns = l->timeout_ns,
                     .what       = what,
                     .layer      = -1,
                     .idle       = wait_idle,
                     .ctx        = l,
                     .stop       = wait_stop};
}

static uint64_t link_waited(void *ctx)
{
    const bt_links *l = ctx;

    return bt_world_waited_ns(l->world);
}

static const bt_traffic *link_traffic(void *ctx)
{
    const bt_links *l = ctx;

    return bt_world_traffic(l->world);
}

static void link_offer_graphs(void *ctx, const bt_step *step, bt_graph_offer *offer_out)
{
    const bt_links *l = ctx;

    bt_model_offer_graphs(l->model, step, offer_out);
}

static bt_status link_launch(void *ctx, bt_step *step)
{
    bt_links *l = ctx;

    step->wait = wait_for(l, "experts");
    return bt_model_launch(l->model, l->pool, step);
}

static bt_status link_await(void *ctx)
{
    bt_links *l    = ctx;
    bt_wait   wait = wait_for(l, "experts");

    return bt_model_await(l->model, &wait);
}

static bt_status link_draft(void *ctx, bt_step *step)
{
    bt_links *l = ctx;

    step->wait = wait_for(l, "experts of a draft");
    return bt_model_draft(l->model, l->pool, step);
}

static const uint64_t *link_expert_rows(void *ctx)
{
    bt_links *l = ctx;

    return bt_model_expert_rows(l->model);
}

bt_status bt_links_gather(bt_links *l, const bt_plan *plan, bt_plan *plans_out)
{
    bt_status st   = BT_OK;
    bt_wait   wait = wait_for(l, "step plan");

    BT_TRY(bt_group_all_gather(l->group, plan, sizeof(*plan), plans_out, &wait));
    wait.what = "first exchange"; /* all of the group are here */
    wait.timeout_ns *= 2;         /* NCCL connects all pairs, which takes longer than a step */
    BT_TRY(bt_group_warm(l->group, &wait));
out:
    return st;
}

/* ---- the rest */

bt_worker_links bt_links_table(bt_links *l)
{
    const bt_handoff *h = l->handoff;

    return (bt_worker_links){.ctx          = l,
                             .now_ns       = link_now,
                             .up           = link_up,
                             .payload_max  = h == NULL ? SIZE_MAX : bt_handoff_payload_max(h),
                             .tail_max     = h == NULL ? SIZE_MAX : bt_handoff_tail_max(h),
                             .stage        = link_stage,
                             .slot         = link_slot,
                             .take         = link_take,
                             .unstage      = link_unstage,
                             .send         = link_send,
                             .cancel       = link_cancel,
                             .poll         = link_poll,
                             .expert_rows  = link_expert_rows,
                             .waited_ns    = link_waited,
                             .traffic      = link_traffic,
                             .offer_graphs = link_offer_graphs,
                             .launch       = link_launch,
                             .await        = link_await,
                             .draft        = link_draft};
}

static void on_deliver(void *ctx, uint32_t from, const bt_page_message *m, const bt_page_payload *p)
{
    bt_links *l = ctx;

    bt_worker_delivered(l->worker, from, m, p);
}

static void on_reject(void *ctx, uint32_t from, uint64_t request, bt_status why)
{
    bt_links *l = ctx;

    bt_worker_rejected(l->worker, from, request, why);
}

static void on_sent(void *ctx, const bt_page_message *m)
{
    bt_links *l = ctx;

    bt_worker_sent(l->worker, m);
}

static void on_expired(void *ctx, uint32_t to, uint32_t n)
{
    (void)ctx;
    BT_WARN("rank %u has let %u requests to send in a row expire", to, n);
}

bt_handoff_events bt_links_events(bt_links *l)
{
    return (bt_handoff_events){.deliver = on_deliver,
                               .reject  = on_reject,
                               .sent    = on_sent,
                               .expired = on_expired,
                               .ctx     = l};
}

void bt_links_fini(bt_links *l)
{
    empty_inbox(l);
    bt_free(l->inbox);
    l->inbox = NULL;
}

bool bt_links_receive(bt_links *l, bt_down *m_out)
{
    if (l->inbox_at < l->n_inbox) {
        *m_out = l->inbox[l->inbox_at++];
        return true;
    }
    l->inbox_at = l->n_inbox = 0;
    if (l->client == NULL || !bt_control_client_poll(l->client, m_out)) return false;
    note_shutdown(l, m_out, bt_now_ns());
    return true;
}

void bt_links_sleep(bt_links *l, uint64_t max_ns)
{
    int             wake = l->client == NULL ? -1 : bt_control_client_fd(l->client);
    struct pollfd   fd   = {.fd = wake, .events = POLLIN};
    struct timespec t    = {.tv_sec  = (time_t)(max_ns / BT_NS_PER_S),
                            .tv_nsec = (long)(max_ns % BT_NS_PER_S)};

    ppoll(&fd, 1, &t, NULL);
}
