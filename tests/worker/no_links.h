/* tests/worker/no_links.h - a worker's links that do nothing: its hand-off has no room and brings
 * nothing, its clock stands still, its steps are over at once.  A test replaces what it needs. */
#ifndef BT_TESTS_WORKER_NO_LINKS_H
#define BT_TESTS_WORKER_NO_LINKS_H

#include "worker/worker.h"

static inline uint64_t no_time(void *ctx)
{
    (void)ctx;
    return 0;
}
static inline bt_status no_up(void *ctx, bt_up *m)
{
    (void)ctx;
    bt_up_free(m);
    return BT_OK;
}
static inline void *no_stage(void *ctx)
{
    (void)ctx;
    return NULL; /* always full */
}
static inline bt_page_payload no_slot(void *ctx, void *slot, const bt_page_message *m)
{
    (void)ctx, (void)slot, (void)m;
    return (bt_page_payload){.on_device = false}; /* nobody has one */
}
static inline bt_status no_wait(void *ctx)
{
    (void)ctx;
    return BT_OK;
}
static inline void no_unstage(void *ctx, void *slot) { (void)ctx, (void)slot; }
static inline void no_send(void *ctx, uint32_t to, const bt_page_message *m, void *slot)
{
    (void)ctx, (void)to, (void)m, (void)slot;
}
static inline bool no_cancel(void *ctx, uint64_t request)
{
    (void)ctx, (void)request;
    return true;
}
static inline bool no_poll(void *ctx)
{
    (void)ctx;
    return false;
}
static inline const uint64_t *no_expert_rows(void *ctx)
{
    (void)ctx;
    return NULL;
}
static inline const bt_traffic *no_traffic(void *ctx)
{
    (void)ctx;
    return NULL;
}
static inline void no_graphs(void *ctx, const bt_step *step, bt_graph_offer *offer_out)
{
    (void)ctx, (void)step;
    *offer_out = (bt_graph_offer){.n_parts = 0};
}
static inline bt_status no_launch(void *ctx, bt_step *step)
{
    (void)ctx, (void)step;
    return BT_OK;
}

static inline bt_worker_links no_links(void *ctx)
{
    return (bt_worker_links){.ctx          = ctx,
                             .now_ns       = no_time,
                             .up           = no_up,
                             .payload_max  = 1 << 16,
                             .tail_max     = 1 << 16,
                             .stage        = no_stage,
                             .slot         = no_slot,
                             .take         = no_wait,
                             .unstage      = no_unstage,
                             .send         = no_send,
                             .cancel       = no_cancel,
                             .poll         = no_poll,
                             .expert_rows  = no_expert_rows,
                             .waited_ns    = no_time,
                             .traffic      = no_traffic,
                             .offer_graphs = no_graphs,
                             .launch       = no_launch,
                             .await        = no_wait,
                             .draft        = no_launch};
}

#endif
