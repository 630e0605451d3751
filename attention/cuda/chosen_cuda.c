/* attention/cuda/chosen_cuda.c - sparse attention on the CUDA back end, batch by batch: rows choose
 * positions, which stay on the device; rows attend to those.  Each row is a span of its own; those
 * of one request share its list of pages. */
#include "attention/cuda/attn_cuda.h"
#include "device/cuda/launch.h"

enum { SCORES_BYTES = 64 << 20 }; /* of the rows that choose at once; one row always fits */

/* Floats of the scores of a row with so many positions. */
static size_t scores_of(uint32_t n_keys)
{
    return (size_t)bt_kv_pages_for(n_keys) * BT_PAGE_TOKENS;
}

void bt_attn_cuda_chosen_sizes(bt_attn_cuda *a, uint32_t max_rows)
{
    size_t row = scores_of(a->cfg.max_context), fit = SCORES_BYTES / sizeof(float) / row;

    if (!bt_mla_chooses(&a->cfg)) return;
    if (fit > max_rows) fit = max_rows;
    a->n_scores = fit == 0 ? row : fit * row;
    a->n_chosen = (size_t)max_rows * a->cfg.index_topk;
}

/* What a batch of rows is for. */
typedef enum { TO_CHOOSE, TO_ATTEND } purpose;

/* Whether another row, with so many keys, fits the batch. */
static bool row_fits(const bt_attn_cuda *a, const bt_attn_batch *b, purpose why, uint32_t n_keys)
{
    uint32_t end   = bt_max_u32(b->max_end, n_keys);
    uint32_t parts = bt_attn_parts(end);

    if (b->n_spans == a->max_spans) return false;
    if (why == TO_CHOOSE) return (b->n_spans + 1) * scores_of(end) <= a->n_scores;
    return b->n_rows < a->absorbed_rows &&
           (parts == 1 || (size_t)(b->n_rows + 1) * parts <= a->part_rows);
}

/* Rows of the cursor's span, from its row on, as many as fit; their pages are at page_at. */
static void take_rows(bt_attn_cuda *a, const bt_attn_call *call, purpose why, uint32_t page_at,
                      bt_attn_cursor *at, bt_attn_batch *b)
{
    const bt_span *s    = &call->spans[at->span];
    uint32_t       topk = a->cfg.index_topk;

    for (; at->row < s->n_rows; at->row++) {
        uint32_t row = s->first_row + at->row, n_keys = s->start + at->row + 1;
        uint32_t chooser = call->step_rows != NULL ? call->step_rows[row] : row;
        uint32_t places  = why == TO_ATTEND ? bt_min_u32(n_keys, topk) : n_keys;

        if (!row_fits(a, b, why, places)) return;
        if (b->n_rows == 0) b->first_row = row;
        a->spans[b->n_spans++] =
            (bt_cuda_span){.first_row = why == TO_ATTEND ? b->n_rows : row,
                           .n_rows    = 1,
                           .start     = places - 1,
                           .page_at   = page_at,
                           .list      = why == TO_ATTEND && n_keys > topk ? 1 + chooser : 0};
        b->n_rows++;
        b->max_rows = 1;
        b->max_end  = bt_max_u32(b->max_end, places);
    }
}

/* The batch from the cursor on; to choose, of rows that have to.  Its spans and pages are on their
 * way to the device.  n_rows is 0 at the end. */
static bt_status next_rows(bt_attn_cuda *a, const bt_attn_call *call, purpose why,
                           bt_attn_cursor *at, bt_attn_batch *batch_out)
{
    bt_status     st    = BT_OK;
    bt_attn_batch b     = {0};
    uint32_t      n_ids = 0, topk = a->cfg.index_topk;

    for (; at->span < call->n_spans; at->span++, at->row = 0) {
        const bt_span *s     = &call->spans[at->span];
        uint32_t       pages = bt_kv_pages_for(s->start + s->n_rows);

        if (why == TO_CHOOSE && s->start + at->row < topk)
            at->row = bt_min_u32(s->n_rows, topk - s->start);
        if (at->row == s->n_rows) continue;
        if (pages > a->max_ids - n_ids) break;
        for (uint32_t i = 0; i < pages; i++)
            a->ids[n_ids + i] = s->pages[i];
        take_rows(a, call, why, n_ids, at, &b);
        n_ids += pages;
        if (at->row < s->n_rows) break;
    }
    BT_TRY(bt_device_upload(a->dev, a->ids_dev, a->ids, n_ids * sizeof(*a->ids)));
    BT_TRY(bt_device_upload(a->dev, a->spans_dev, a->spans, b.n_spans * sizeof(*a->spans)));
    *batch_out = b;
out:
    return st;
}

bt_status bt_attn_cuda_choose(bt_attn *attn, const bt_attn_call *call)
{
    bt_status      st = BT_OK;
    bt_attn_cuda  *a  = (bt_attn_cuda *)attn;
    bt_attn_cursor at = {0, 0};
    bt_attn_batch  b  = {0};

    for (;;) {
        BT_TRY(next_rows(a, call, TO_CHOOSE, &at, &b));
        if (b.n_rows == 0) break;
        BT_TRY(CUDA(bt_cuda_choose_run(bt_device_stream(a->dev),
                                       &(bt_cuda_choose){.dims     = bt_attn_cuda_dims(a),
                                                         .pages    = bt_attn_cuda_pages(a, call),
                                                         .spans    = a->spans_dev,
                                                         .n_spans  = b.n_spans,
                                                         .max_keys = b.max_end,
                                                         .n_heads  = a->cfg.index_heads,
                                                         .topk     = a->cfg.index_topk,
                                                         .q        = call->index_q,
                                                         .w        = call->index_w,
                                                         .scores   = a->scores,
                                                         .chosen   = a->chosen})));
    }
out:
    return st;
}

bt_status bt_attn_cuda_attend_chosen(bt_attn *attn, const bt_attn_call *call)
{
    bt_status      st = BT_OK;
    bt_attn_cuda  *a  = (bt_attn_cuda *)attn;
    bt_attn_cursor at = {0, 0};
    bt_attn_batch  b  = {0};

    for (;;) {
        BT_TRY(next_rows(a, call, TO_ATTEND, &at, &b));
        if (b.n_rows == 0) break;
        BT_TRY(bt_attn_cuda_absorbed_batch(a, call, &b, a->chosen));
    }
out:
    return st;
}
