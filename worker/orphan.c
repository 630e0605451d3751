/* worker/orphan.c - a rank without a coordinator.
 *
 * A coordinator keeps no state beyond its own process, and its clients are gone with it.  So
 * everything that it ordered is dropped at once, no step runs, and the rank looks for the next
 * coordinator at the same address.  It tells that one what it knows (hello.c).  When all ranks of
 * the cell have come it is welcomed, and the groups begin anew.  Weights and prefix caches stay. */
#include <stdio.h>

#include "core/clock.h"
#include "worker/rank.h"

#define AGAIN_NS (200 * BT_NS_PER_MS) /* between a refusal and the next search */

/* What it still says is of no use, whatever it was. */
static void let_go(bt_rank *r)
{
    bt_control_client_loss(r->client, r->refusal, sizeof(r->refusal));
    if (r->refusal[0] == '\0')
        snprintf(r->refusal, sizeof(r->refusal), "the coordinator does not answer");
    if (r->orphan_ns == 0)
        BT_WARN("%s: its requests are dropped; another one at %s is looked for, for %.0f s",
                r->refusal, r->opt.coordinator, (double)r->opt.orphan_ns * 1e-9);
    bt_control_client_stop(r->client, 0);
    r->client     = NULL;
    r->told_drain = false;
    bt_links_set_client(&r->links, NULL);
}

static bt_status become_orphan(bt_rank *r)
{
    bt_status st    = BT_OK;
    bool      again = r->orphan_ns != 0; /* it had not come further than its hello */

    let_go(r);
    r->search_ns = again ? bt_awake_ns() + AGAIN_NS : 0;
    if (!again) r->orphan_ns = bt_awake_ns();
    if (r->worker != NULL) BT_TRY(bt_worker_drop_all(r->worker));
out:
    return st;
}

static bt_status begin_search(bt_rank *r, uint64_t now)
{
    bt_status st     = BT_OK;
    uint64_t  end_ns = r->orphan_ns + r->opt.orphan_ns;
    bt_up     hello;

    if (now < r->search_ns) return BT_OK;
    BT_REQUIRE(now < end_ns, BT_ERR_PEER,
               "no coordinator at %s has taken this rank within the %.0f s of --orphan-s: %s",
               r->opt.coordinator, (double)r->opt.orphan_ns * 1e-9, r->refusal);
    BT_TRY(bt_rank_make_hello(r, &hello)); /* until it is welcomed nothing of that changes */
    BT_TRY(bt_control_attach_start(r->opt.coordinator, end_ns - now, r->opt.quiet_ns, &hello,
                                   &r->search));
out:
    return st;
}

/* To whom the search has said hello. */
static bt_status present_itself(bt_rank *r)
{
    bt_status st = BT_OK;

    bt_links_set_client(&r->links, r->client);
    bt_rank_pass_on_drain(r); /* before it is ready, so that the cell gets no request */
    if (r->worker != NULL) BT_TRY(bt_rank_say_ready(r));
    BT_DEBUG("attached to the coordinator at %s, %.2f s after the loss of the last one",
             r->opt.coordinator, (double)(bt_awake_ns() - r->orphan_ns) * 1e-9);
out:
    return st;
}

bt_status bt_rank_tend_coordinator(bt_rank *r)
{
    uint64_t now = bt_awake_ns(); /* while this rank stood still nobody could take it */

    if (!bt_links_orphaned(&r->links)) return BT_OK;
    if (r->client != NULL) return become_orphan(r);
    if (r->search == NULL) return begin_search(r, now);
    if (!bt_control_attach_poll(r->search, &r->client, r->refusal, sizeof(r->refusal)))
        return BT_OK;
    r->search = NULL;
    if (r->client != NULL) return present_itself(r);
    r->search_ns = now + AGAIN_NS;
    return BT_OK;
}

bt_status bt_rank_welcome(bt_rank *r, const bt_down *m)
{
    bt_status st    = BT_OK;
    uint64_t  own   = m->u.welcome.incarnation;
    bool      first = r->incarnation == 0;

    if (m->u.welcome.epoch > r->epoch) r->epoch = m->u.welcome.epoch;
    if (own == 0) goto out; /* one that never comes again */
    BT_REQUIRE(own > r->incarnation, BT_ERR_PROTOCOL,
               "the coordinator at %s is incarnation %016llx, this rank has followed %016llx",
               r->opt.coordinator, (unsigned long long)own, (unsigned long long)r->incarnation);
    r->incarnation = own;
    r->prefix_seed = m->u.welcome.prefix_seed;
    if (first) bt_rank_adopted(r); /* the groups are as launched: no step has run */
out:
    return st;
}

void bt_rank_adopted(bt_rank *r)
{
    if (r->orphan_ns == 0) return;
    BT_INFO("a coordinator drives this rank again, %.2f s after the loss of the last one",
            (double)(bt_awake_ns() - r->orphan_ns) * 1e-9);
    r->orphan_ns = 0;
}
