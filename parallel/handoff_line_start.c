/* parallel/handoff_line_start.c - who is on a line, and how it begins: all of them join, the
 * communicator is made, and each pair that will hand over has a first message. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "parallel/handoff_line.h"
#include "parallel/handoff_parts.h"

enum { MAX_CTAS = 2, NAME_BYTES = 64 };

bt_status bt_line_join(bt_handoff *h, uint32_t epoch, uint32_t n, uint32_t n_senders,
                       const uint32_t *ranks)
{
    bt_status st  = BT_OK;
    bt_line  *l   = h->line;
    uint64_t  now = bt_now_ns();

    BT_REQUIRE(n <= h->world->size && n_senders <= n && epoch >= l->epoch, BT_ERR_INVALID_ARG,
               "%u of %u ranks are to hand over in epoch %u, %u of them send, after epoch %u", n,
               h->world->size, epoch, n_senders, l->epoch);
    bt_line_end(h, now);
    l->epoch = epoch;
    l->n = l->self = n;
    l->n_senders   = n_senders;
    memcpy(l->ranks, ranks, n * sizeof(*ranks));
    for (uint32_t i = 0; i < n; i++)
        if (ranks[i] == h->world->rank) l->self = i;
    l->try_again = l->self == 0 && n > 0;
    l->try_ns = l->join_ns = now;
    l->n_in_vain           = 0;
    l->missed              = false;
    bt_line_say_here(h);
out:
    return st;
}

bool bt_line_begin(bt_handoff *h, uint64_t now_ns)
{
    bt_line       *l = h->line;
    char           name[NAME_BYTES];
    bt_nccl_config cfg = {.n        = l->n,
                          .self     = l->self,
                          .id       = l->due_id,
                          .name     = name,
                          .stream   = l->nccl->lane_stream(l->lane),
                          .n_marks  = 1,
                          .max_ctas = MAX_CTAS,
                          .along    = true};

    if (l->due_number >> 32 != l->epoch || l->due_number <= l->number || l->self == l->n ||
        l->due_from != l->ranks[0])
        return false;
    l->number = l->due_number;
    snprintf(name, sizeof(name), "NCCL, hand-off of epoch %u", l->epoch);
    if (l->nccl->start(&cfg, &l->comm) != BT_OK) {
        bt_line_fail(h, now_ns);
        return true;
    }
    l->state    = BT_LINE_CONNECTING;
    l->since_ns = now_ns;
    return true;
}

/* NCCL connects two ranks at their first message: one from each that sends to each other one. */
static bt_status start_warm(bt_handoff *h)
{
    bt_line *l  = h->line;
    size_t  *at = l->warm_lists, *out = at + h->world->size, *in = out + h->world->size;
    uint8_t *memory = bt_line_rows(l, h->n_slots + 1);
    bool     sends  = l->self < l->n_senders;

    for (uint32_t i = 0; i < l->n; i++) {
        bool meets = sends != (i < l->n_senders);

        at[i]  = i * (size_t)BT_LINE_WARM_BYTES;
        out[i] = sends && meets ? BT_LINE_WARM_BYTES : 0;
        in[i]  = !sends && meets ? BT_LINE_WARM_BYTES : 0;
    }
    l->state = BT_LINE_WARMING;
    l->phase = BT_LINE_TAKING;
    l->sends = true; /* no inbox waits for it */
    l->peer  = l->ranks[0];
    return l->nccl->exchange(l->comm, &(bt_exchange){memory, at, out, memory, at, in});
}

/* One look at a line that is not ready yet. */
static bt_status look_at_start(bt_handoff *h, uint64_t now_ns, bool *moved_out)
{
    bt_status st   = BT_OK;
    bt_line  *l    = h->line;
    bool      busy = true, reached = false;

    BT_TRY(l->nccl->poll(l->comm, &busy));
    if (busy) goto out;
    *moved_out = true;
    if (l->state == BT_LINE_CONNECTING) {
        BT_TRY(start_warm(h));
    } else if (l->phase == BT_LINE_TAKING) {
        BT_TRY(l->nccl->mark(l->comm, 0));
        l->phase = BT_LINE_UNDER_WAY;
    } else {
        BT_TRY(l->nccl->reached(l->comm, 0, &reached));
        *moved_out = reached;
        if (!reached) goto out;
        BT_INFO("hand-off by NCCL in epoch %u: all %u ranks after %.1f ms", l->epoch, l->n,
                (double)(now_ns - l->since_ns) / BT_NS_PER_MS);
        l->phase     = BT_LINE_IDLE;
        l->state     = BT_LINE_READY;
        l->next_ns   = 0;
        l->n_in_vain = 0;
    }
out:
    return st;
}

bool bt_line_start_up(bt_handoff *h, uint64_t now_ns)
{
    bt_line *l     = h->line;
    bool     moved = false;

    if (look_at_start(h, now_ns, &moved) != BT_OK) {
        bt_line_fail(h, now_ns);
        return true;
    }
    l->peer = l->ranks[0];
    if (!moved && now_ns - l->since_ns >= bt_line_start_limit_ns(h))
        bt_line_fail_late(h,
                          l->state == BT_LINE_CONNECTING ? "the communicator of"
                                                         : "a first message in the communicator of",
                          bt_line_start_limit_ns(h), now_ns);
    return moved || l->state == BT_LINE_LEAVING;
}
