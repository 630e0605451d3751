#include "worker/handoff_out.h"

#include <string.h>

#include "attention/page_rows.h"
#include "core/alloc.h"

/* Layers of short pieces leave together, up to this; what has piled up fills a slot. */
enum { ENOUGH_BYTES = 512 << 10 };

bt_status bt_handoff_out_init(bt_handoff_out *out, uint32_t n_layers, uint32_t held,
                              uint32_t n_ticket, const bt_page_ref *ticket,
                              const bt_handoff_tail *tail)
{
    bt_status st = BT_OK;

    *out                    = (bt_handoff_out){.held = held, .tail = *tail};
    out->ticket_ids         = bt_calloc(n_ticket, sizeof(*out->ticket_ids));
    out->ticket_generations = bt_calloc(n_ticket, sizeof(*out->ticket_generations));
    out->staged             = bt_calloc(n_layers, sizeof(*out->staged));
    BT_REQUIRE(out->ticket_ids != NULL && out->ticket_generations != NULL && out->staged != NULL,
               BT_ERR_NO_MEMORY, "hand-off of %u pages in %u layers", n_ticket, n_layers);
    for (uint32_t i = 0; i < n_ticket; i++) {
        out->ticket_ids[i]         = ticket[i].id;
        out->ticket_generations[i] = ticket[i].generation;
    }
    for (uint32_t i = 0; i < n_layers; i++)
        out->staged[i] = held;
out:
    if (st != BT_OK) bt_handoff_out_fini(out);
    return st;
}

void bt_handoff_out_fini(bt_handoff_out *out)
{
    bt_free(out->ticket_ids);
    bt_free(out->ticket_generations);
    bt_free(out->staged);
    *out = (bt_handoff_out){0};
}

static uint32_t computed(const bt_handoff_out_view *v, uint32_t layer)
{
    return layer < v->n_high ? v->high : v->low;
}

bool bt_handoff_out_next(const bt_handoff_out *out, const bt_handoff_out_view *v,
                         bt_page_message *m_out)
{
    size_t   row_bytes = v->kv_dim * sizeof(bt_bf16), bytes;
    uint32_t tail      = (uint32_t)bt_handoff_tail_bytes(&out->tail);
    size_t   room      = v->payload_max - tail; /* any message may become the last */
    uint32_t fit = (uint32_t)(room / row_bytes), l0 = 0, l1, t0, t1, page0;
    bool     last, full;

    BT_ASSERT(v->payload_max >= tail && fit > 0);
    while (l0 < v->n_layers && out->staged[l0] >= computed(v, l0))
        l0++;
    if (l0 == v->n_layers) return false;
    t0    = out->staged[l0];
    t1    = computed(v, l0) - t0 > fit ? t0 + fit : computed(v, l0);
    bytes = (t1 - t0) * row_bytes;
    for (l1 = l0 + 1; l1 < v->n_layers; l1++) {
        if (out->staged[l1] != t0 || computed(v, l1) < t1 || bytes * (l1 - l0 + 1) > room) break;
    }
    bytes *= l1 - l0;
    last = l1 == v->n_layers && t1 == v->n_prompt;
    full = bytes >= ENOUGH_BYTES || 2 * bytes > room;
    if (last ? !out->first_known : !full && !v->flush) return false;

    page0  = t0 / BT_PAGE_TOKENS;
    *m_out = (bt_page_message){
        .token0        = t0,
        .token1        = t1,
        .layer0        = l0,
        .layer1        = l1,
        .kv_dim        = v->kv_dim,
        .pages_tag     = bt_pages_tag(bt_kv_pages_for(t1) - page0, out->ticket_ids + page0,
                                      out->ticket_generations + page0),
        .last          = last,
        .tail_bytes    = last ? tail : 0,
        .cached        = last ? out->cached : 0,
        .payload_bytes = bytes + (last ? tail : 0),
    };
    return true;
}

bt_status bt_handoff_out_pack(bt_handoff_out *out, const bt_kv_pool *pool, const bt_page_id *pages,
                              const bt_page_message *m, const bt_page_payload *p)
{
    bt_status    st   = BT_OK;
    bt_page_rows rows = {pool, pages, m->token0, m->token1, m->layer0, m->layer1};
    size_t       map  = out->tail.map_bytes;

    BT_TRY(p->on_device ? bt_page_rows_pack(&rows, p->stream, p->rows)
                        : bt_page_rows_download(&rows, p->rows));
    for (uint32_t layer = m->layer0; layer < m->layer1; layer++)
        out->staged[layer] = m->token1;
    if (m->last) memcpy(p->tail, out->tail.firsts, m->tail_bytes - map);
    if (m->last && map > 0) memcpy((uint8_t *)p->tail + m->tail_bytes - map, out->tail.map, map);
    out->n_in_flight++;
    out->last_staged = out->last_staged || m->last;
out:
    return st;
}
