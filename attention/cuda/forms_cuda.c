/* attention/cuda/forms_cuda.c - both forms of attention on the CUDA back end, batch by batch. */
#include "attention/cuda/attn_cuda.h"
#include "device/cuda/launch.h"

enum { SPLIT_PAGES = BT_ATTN_SPLIT_TOKENS / BT_PAGE_TOKENS };

/* y_h[m, n_h] = x_h W_h^T for every head, in one launch: rows of x and y hold all heads. */
static bt_status heads(bt_attn_cuda *a, bt_linear *const *w, bt_role role, const bt_bf16 *x,
                       size_t x_head, size_t ld_x, bt_bf16 *y, uint32_t m)
{
    size_t n = bt_linear_n(w[0]);

    for (uint32_t h = 0; h < a->cfg.n_heads; h++)
        a->gemms[h] = (bt_gemm){.w       = w[h],
                                .x       = x + h * x_head,
                                .ld_x    = ld_x,
                                .y       = y + h * n,
                                .ld_y    = a->cfg.n_heads * n,
                                .m       = m,
                                .y_dtype = BT_BF16};
    return bt_device_gemm(a->dev, role, a->cfg.n_heads, a->gemms);
}

bt_status bt_attn_cuda_absorbed_batch(bt_attn_cuda *a, const bt_attn_call *call,
                                      const bt_attn_batch *b, const uint32_t *chosen)
{
    bt_status            st       = BT_OK;
    const bt_mla_config *c        = &a->cfg;
    size_t               head_dim = c->qk_nope_dim + c->qk_rope_dim, ld_q = c->n_heads * head_dim;
    bt_role              role = call->fixed != NULL ? BT_ROLE_GENERATED : call->spans[0].role;
    const bt_bf16       *q    = call->q + b->first_row * ld_q;

    BT_TRY(heads(a, call->w->ukt, role, q, head_dim, ld_q, a->ql, b->n_rows));
    BT_TRY(CUDA(bt_cuda_decode_run(bt_device_stream(a->dev),
                                   &(bt_cuda_decode){.dims        = bt_attn_cuda_dims(a),
                                                     .pages       = bt_attn_cuda_pages(a, call),
                                                     .spans       = a->spans_dev,
                                                     .n_spans     = b->n_spans,
                                                     .max_rows    = b->max_rows,
                                                     .max_parts   = bt_attn_parts(b->max_end),
                                                     .split_pages = SPLIT_PAGES,
                                                     .ql          = a->ql,
                                                     .q           = q,
                                                     .out         = a->ol,
                                                     .part_o      = a->part_o,
                                                     .part_ms     = a->part_ms,
                                                     .chosen      = chosen,
                                                     .topk        = c->index_topk})));
    BT_TRY(heads(a, call->w->uv, role, a->ol, c->kv_lora_rank, (size_t)c->n_heads * c->kv_lora_rank,
                 call->out + (size_t)b->first_row * c->n_heads * c->v_dim, b->n_rows));
out:
    return st;
}

bt_status bt_attn_cuda_absorbed(bt_attn *attn, const bt_attn_call *call)
{
    bt_status      st = BT_OK;
    bt_attn_cuda  *a  = (bt_attn_cuda *)attn;
    bt_attn_cursor at = {0, 0};
    bt_attn_batch  b  = {0};

    for (;;) {
        BT_TRY(bt_attn_cuda_next(a, call, a->absorbed_rows, a->part_rows, &at, &b));
        if (b.n_rows == 0) break;
        BT_TRY(bt_attn_cuda_absorbed_batch(a, call, &b, NULL));
    }
out:
    return st;
}

/* n tokens of the span's pages from `first` on, into the workspace at kv_at. */
static bt_status collect(bt_attn_cuda *a, const bt_attn_call *call, const bt_cuda_span *s,
                         uint32_t first, uint32_t n, uint32_t kv_at)
{
    bt_cuda_dims  dims  = bt_attn_cuda_dims(a);
    bt_cuda_pages pages = bt_attn_cuda_pages(a, call);

    pages.ids += s->page_at;
    return CUDA(bt_cuda_latents_run(bt_device_stream(a->dev), &dims, &pages, first, n,
                                    a->latents + (size_t)kv_at * a->cfg.kv_lora_rank));
}

/* Keys and values of the n latents that have been collected: W_UK and W_UV are read once for all.
 */
static bt_status expand(bt_attn_cuda *a, const bt_attn_call *call, uint32_t n)
{
    bt_status st   = BT_OK;
    size_t    rank = a->cfg.kv_lora_rank;
    bt_role   role = call->spans[0].role;

    BT_TRY(heads(a, call->w->uk, role, a->latents, 0, rank, a->keys, n));
    BT_TRY(heads(a, call->w->uv, role, a->latents, 0, rank, a->values, n));
out:
    return st;
}

/* The spans of a batch from *next on whose keys in this part fit the workspace. */
static bt_status normal_wave(bt_attn_cuda *a, const bt_attn_call *call, const bt_attn_batch *b,
                             uint32_t part, uint32_t *next)
{
    bt_status            st    = BT_OK;
    const bt_mla_config *c     = &a->cfg;
    size_t               q_dim = (size_t)c->n_heads * (c->qk_nope_dim + c->qk_rope_dim);
    uint32_t             first = part * BT_ATTN_SPLIT_TOKENS, used = 0, n_items = 0, max_rows = 0;

    for (; *next < b->n_spans; ++*next) {
        const bt_cuda_span *s   = &a->spans[*next];
        uint32_t            end = s->start + s->n_rows;
        uint32_t            n   = end > first ? bt_min_u32(end - first, BT_ATTN_SPLIT_TOKENS) : 0;

        if (n == 0) continue;
        if (n > a->kv_tokens - used) break;
        BT_TRY(collect(a, call, s, first, n, used));
        a->items[n_items++] = (bt_cuda_prefill_item){*s, used};
        used += n;
        if (s->n_rows > max_rows) max_rows = s->n_rows;
    }
    BT_TRY(expand(a, call, used));
    BT_TRY(bt_device_upload(a->dev, a->items_dev, a->items, n_items * sizeof(*a->items)));
    BT_TRY(CUDA(bt_cuda_prefill_run(
        bt_device_stream(a->dev),
        &(bt_cuda_prefill){.dims        = bt_attn_cuda_dims(a),
                           .pages       = bt_attn_cuda_pages(a, call),
                           .items       = a->items_dev,
                           .n_items     = n_items,
                           .max_rows    = max_rows,
                           .part        = part,
                           .split_pages = SPLIT_PAGES,
                           .q           = call->q + b->first_row * q_dim,
                           .k           = a->keys,
                           .v           = a->values,
                           .out         = call->out + (size_t)b->first_row * c->n_heads * c->v_dim,
                           .run_o       = a->run_o,
                           .run_ms      = a->run_ms})));
out:
    return st;
}

bt_status bt_attn_cuda_normal(bt_attn *attn, const bt_attn_call *call)
{
    bt_status      st = BT_OK;
    bt_attn_cuda  *a  = (bt_attn_cuda *)attn;
    bt_attn_cursor at = {0, 0};
    bt_attn_batch  b  = {0};

    for (;;) {
        BT_TRY(bt_attn_cuda_next(a, call, a->normal_rows, 0, &at, &b));
        if (b.n_rows == 0) break;
        for (uint32_t part = 0; part * BT_ATTN_SPLIT_TOKENS < b.max_end; part++)
            for (uint32_t next = 0; next < b.n_spans;)
                BT_TRY(normal_wave(a, call, &b, part, &next));
    }
out:
    return st;
}
