/* parallel/carrier.c - the operations on device memory: by the group's carrier, or as host memory.
 */
#include "parallel/carrier.h"

#include "parallel/group_parts.h"

bool bt_group_carries(const bt_group *group, const bt_device *dev)
{
    return bt_group_size(group) == 1 || bt_group_carrier(group) != NULL || dev->host_memory;
}

bool bt_group_captures(const bt_group *group)
{
    const bt_carrier *c = bt_group_carrier(group);

    return bt_group_size(group) == 1 || (c != NULL && c->ops->captures);
}

void bt_group_watch_end(bt_group *group, void (*ends)(void *ctx), void *ctx)
{
    bt_carrier *c = bt_group_carrier(group);

    if (c == NULL) return;
    c->ends     = ends;
    c->ends_ctx = ctx;
}

/* The group's later operations fail at once when this one has failed. */
static bt_status ended(bt_group *group, bt_status st)
{
    if (st != BT_OK) bt_group_break(group);
    return st;
}

bt_status bt_group_exchange_device(bt_group *group, const bt_exchange *x, const bt_wait *wait)
{
    bt_carrier *c    = bt_group_carrier(group);
    uint32_t    self = bt_group_self(group);
    bt_status   st   = BT_OK;

    BT_ASSERT(x->send_bytes[self] == 0 && x->recv_bytes[self] == 0);
    if (c == NULL)
        return bt_group_exchange(group, x->send, x->send_at, x->send_bytes, x->recv, x->recv_at,
                                 x->recv_bytes, wait);
    if (bt_group_size(group) == 1) return BT_OK;
    BT_TRY(bt_group_check(group, wait));
    st = ended(group, c->ops->exchange(c, group, x, wait));
out:
    return st;
}

bt_status bt_group_reserve(bt_group *group, size_t out_bytes, size_t in_bytes)
{
    bt_carrier *c = bt_group_carrier(group);

    return c == NULL ? BT_OK : c->ops->reserve(c, out_bytes, in_bytes);
}

/* An operation with a mark. */
static bt_status at_mark(bt_group *group, uint32_t i, const bt_wait *wait,
                         bt_status (*op)(bt_carrier *c, uint32_t i, const bt_wait *wait))
{
    bt_status st = BT_OK;

    BT_TRY(bt_group_check(group, wait));
    st = ended(group, op(bt_group_carrier(group), i, wait));
out:
    return st;
}

bt_status bt_group_mark(bt_group *group, uint32_t i, const bt_wait *wait)
{
    bt_carrier *c = bt_group_carrier(group);

    return c == NULL ? BT_OK : at_mark(group, i, wait, c->ops->mark);
}

bt_status bt_group_settle_mark(bt_group *group, uint32_t i, const bt_wait *wait)
{
    bt_carrier *c = bt_group_carrier(group);

    return c == NULL ? BT_OK : at_mark(group, i, wait, c->ops->settle);
}

bt_status bt_group_settle(bt_group *group, const bt_wait *wait)
{
    bt_status st = bt_group_mark(group, BT_N_MARKS, wait);

    return st == BT_OK ? bt_group_settle_mark(group, BT_N_MARKS, wait) : st;
}

bt_status bt_group_warm(bt_group *group, const bt_wait *wait)
{
    bt_carrier *c  = bt_group_carrier(group);
    bt_status   st = BT_OK;

    if (c == NULL) return BT_OK;
    BT_TRY(bt_group_check(group, wait));
    st = ended(group, c->ops->warm(c, group, wait));
out:
    return st;
}

void bt_group_end_exchanges(bt_group *group)
{
    bt_carrier *c = bt_group_carrier(group);

    if (c == NULL) return;
    bt_group_break(group);
    c->ops->end(c);
}
