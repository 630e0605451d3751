#include "coordinator/relay_view.h"

#include "coordinator/relay_state.h"
#include "proto/text.h"

static void view(const bt_relay_request *q, uint64_t now_ns, bt_relay_request_view *out)
{
    static const char *const states[] = {"queued", "reserving", "prefill", "decode", "ended"};

    *out = (bt_relay_request_view){.number       = q->number,
                                   .age_ns       = now_ns - q->arrived_ns,
                                   .n_prompt     = q->n_prompt,
                                   .n_out        = q->n_out,
                                   .max_tokens   = (uint64_t)q->sampling.max_tokens * q->n_choices,
                                   .prefill_rank = q->prefill_rank,
                                   .decode_rank  = q->decode_rank,
                                   .placed       = q->state != BT_QUEUED,
                                   .state        = states[q->state]};
    bt_text_clean(q->name, out->name, sizeof(out->name));
}

uint32_t bt_relay_view_list(const bt_relay_list *list, uint64_t now_ns, bt_relay_request_view *out,
                            uint32_t n_max)
{
    uint32_t n = 0;

    for (const bt_relay_request *q = list->first; q != NULL && n < n_max; q = q->next)
        if (q->state != BT_ENDED) view(q, now_ns, &out[n++]);
    return n;
}

uint32_t bt_relay_view_requests(const bt_relay *relay, uint64_t now_ns, bt_relay_request_view *out,
                                uint32_t n_max)
{
    uint32_t n = bt_relay_view_list(&relay->placed, now_ns, out, n_max);

    return n + bt_relay_view_list(&relay->queue, now_ns, out + n, n_max - n);
}

void bt_relay_view_rank(const bt_relay *relay, uint32_t rank, bt_relay_rank_view *view_out)
{
    const bt_rank_state *k = &relay->ranks[rank];

    *view_out = (bt_relay_rank_view){.n_held         = k->n_held,
                                     .taken_pages    = k->taken_pages,
                                     .max_rows       = k->limits.max_rows,
                                     .group          = k->group,
                                     .prefill_tokens = k->prefill_tokens};
}

uint32_t bt_relay_view_avoided(const bt_relay *relay, uint64_t now_ns, bt_avoided_view *out,
                               uint32_t n_max)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < relay->n_avoided && n < n_max; i++) {
        const bt_avoided_pair *p = &relay->avoided[i];

        if (bt_relay_prefills(relay, p->prefill) && bt_relay_decodes(relay, p->decode))
            out[n++] = (bt_avoided_view){p->prefill, p->decode, bt_since_ns(now_ns, p->until_ns)};
    }
    return n;
}

bt_relay_block bt_relay_blocked(const bt_relay *relay)
{
    return relay->queue.first == NULL ? BT_BLOCKED_NOT : relay->blocked;
}

uint64_t bt_relay_queued_tokens(const bt_relay *relay) { return relay->queued_tokens; }
