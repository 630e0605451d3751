/* attention/cuda/attn_cuda.c - the CUDA back end of attention: workspaces, batches, and the tokens
 * that a step appends. */
#include "attention/cuda/attn_cuda.h"

#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"
#include "device/cuda/launch.h"
#include "device/cuda/module.h"

enum {
    MAX_SPANS      = 4096,
    MAX_IDS        = 1 << 18,
    ABSORBED_ROWS  = 512,
    NORMAL_ROWS    = 2048,
    KV_TOKENS      = 2 * BT_ATTN_SPLIT_TOKENS,
    PART_MEGABYTES = 1024 /* what does not fit runs batch by batch, and not as a graph */
};

bt_cuda_dims bt_attn_cuda_dims(const bt_attn_cuda *a)
{
    return (bt_cuda_dims){.n_heads = a->cfg.n_heads,
                          .kv_lora = a->cfg.kv_lora_rank,
                          .nope    = a->cfg.qk_nope_dim,
                          .rope    = a->cfg.qk_rope_dim,
                          .v_dim   = a->cfg.v_dim,
                          .scale   = a->cfg.softmax_scale};
}

bt_cuda_pages bt_attn_cuda_pages(const bt_attn_cuda *a, const bt_attn_call *call)
{
    size_t layer = (size_t)BT_PAGE_TOKENS * bt_kv_pool_kv_dim(call->pool);

    return (bt_cuda_pages){.base        = bt_kv_pool_rows(call->pool, 0, call->layer),
                           .page_stride = bt_kv_pool_n_layers(call->pool) * layer,
                           .index_dim =
                               bt_mla_kv_dim(&a->cfg) - a->cfg.kv_lora_rank - a->cfg.qk_rope_dim,
                           .ids = a->ids_dev};
}

/* How many of the span's `left` rows from position `start` on still fit the batch; with one part no
 * part is kept. */
static uint32_t rows_that_fit(const bt_attn_batch *b, uint32_t start, uint32_t left,
                              uint32_t max_rows, uint32_t part_rows)
{
    uint32_t n = bt_min_u32(left, max_rows - b->n_rows);

    if (n == 0 || part_rows == 0) return n;
    for (;;) {
        uint32_t parts = bt_attn_parts(bt_max_u32(b->max_end, start + n));
        uint32_t room  = part_rows / parts;

        if (parts == 1 || b->n_rows + n <= room) return n;
        if (room <= b->n_rows) return 0;
        n = room - b->n_rows; /* fewer rows may mean fewer parts, never more */
    }
}

/* All rows of a step at fixed places. */
static bt_attn_batch all_fixed(const bt_attn_fixed *fixed)
{
    return (bt_attn_batch){.n_rows   = fixed->n_rows,
                           .n_spans  = fixed->n_rows,
                           .max_rows = 1,
                           .max_end  = fixed->n_parts * BT_ATTN_SPLIT_TOKENS};
}

bt_status bt_attn_cuda_next(bt_attn_cuda *a, const bt_attn_call *call, uint32_t max_rows,
                            uint32_t part_rows, bt_attn_cursor *at, bt_attn_batch *batch_out)
{
    bt_status     st    = BT_OK;
    bt_attn_batch b     = {0};
    uint32_t      n_ids = 0;

    if (call->fixed != NULL) {
        if (at->span++ == 0) b = all_fixed(call->fixed); /* send() has brought spans and pages */
        *batch_out = b;
        return BT_OK;
    }
    for (; at->span < call->n_spans && b.n_spans < a->max_spans; at->span++, at->row = 0) {
        const bt_span *s     = &call->spans[at->span];
        uint32_t       start = s->start + at->row, left = s->n_rows - at->row;
        uint32_t       n     = rows_that_fit(&b, start, left, max_rows, part_rows);
        uint32_t       pages = bt_kv_pages_for(start + n);

        if (left == 0) continue;
        if (n == 0 || pages > a->max_ids - n_ids) break;
        /* Blocks are made for the longest span: few of them would work for spans of one row. */
        if (part_rows != 0 && b.n_rows != 0 && (n > 1) != (b.max_rows > 1)) break;
        if (b.n_rows == 0) b.first_row = s->first_row + at->row;
        for (uint32_t i = 0; i < pages; i++)
            a->ids[n_ids + i] = s->pages[i];
        a->spans[b.n_spans++] = (bt_cuda_span){b.n_rows, n, start, n_ids, 0};
        n_ids += pages;
        b.n_rows += n;
        b.max_rows = bt_max_u32(b.max_rows, n);
        b.max_end  = bt_max_u32(b.max_end, start + n);
        if (n < left) {
            at->row += n;
            break;
        }
    }
    BT_TRY(bt_device_upload(a->dev, a->ids_dev, a->ids, n_ids * sizeof(*a->ids)));
    BT_TRY(bt_device_upload(a->dev, a->spans_dev, a->spans, b.n_spans * sizeof(*a->spans)));
    *batch_out = b;
out:
    return st;
}

/* What the indexer has of the rows from first_row on. */
static bt_cuda_append_index append_index(const bt_attn_cuda *a, const bt_attn_call *call,
                                         size_t first_row)
{
    const bt_mla_config *c    = &a->cfg;
    bt_cuda_append_index none = {0};
    size_t               q_at = first_row * c->index_heads * c->index_dim;

    if (c->index_topk == 0) return none;
    return (bt_cuda_append_index){
        .n_heads = c->index_heads,
        .halves  = c->index_halves,
        .q       = call->index_q != NULL ? call->index_q + q_at : NULL,
        .k       = call->index_k != NULL ? call->index_k + first_row * c->index_dim : NULL,
        .norm    = call->w->index_k_norm,
        .bias    = call->w->index_k_bias,
        .eps     = BT_INDEX_EPS};
}

static bt_status append_batch(bt_attn_cuda *a, const bt_attn_call *call, const bt_attn_batch *b)
{
    size_t head_dim = a->cfg.qk_nope_dim + a->cfg.qk_rope_dim;
    size_t kv_dim   = a->cfg.kv_lora_rank + a->cfg.qk_rope_dim;
    size_t q_at = b->first_row * a->cfg.n_heads * head_dim, kv_at = b->first_row * kv_dim;

    return CUDA(
        bt_cuda_append_run(bt_device_stream(a->dev),
                           &(bt_cuda_append){.dims    = bt_attn_cuda_dims(a),
                                             .pages   = bt_attn_cuda_pages(a, call),
                                             .spans   = a->spans_dev,
                                             .n_spans = b->n_spans,
                                             .n_rows  = b->n_rows,
                                             .q       = call->q != NULL ? call->q + q_at : NULL,
                                             .kv      = call->kv != NULL ? call->kv + kv_at : NULL,
                                             .norm    = call->kv_norm,
                                             .eps     = a->cfg.latent_eps,
                                             .cos_sin = a->rope,
                                             .factor  = bt_mla_query_factors(&a->cfg, a->rope),
                                             .index   = append_index(a, call, b->first_row)}));
}

static bt_status append(bt_attn *attn, const bt_attn_call *call)
{
    bt_status      st = BT_OK;
    bt_attn_cuda  *a  = (bt_attn_cuda *)attn;
    bt_attn_cursor at = {0, 0};
    bt_attn_batch  b  = {0};

    for (;;) {
        BT_TRY(bt_attn_cuda_next(a, call, UINT32_MAX, 0, &at, &b));
        if (b.n_rows == 0) break;
        BT_TRY(append_batch(a, call, &b));
    }
out:
    return st;
}

/* ---- a step at fixed places: each row is a span here, those of padding rows are empty */

static bool fits(const bt_attn *attn, const bt_attn_fixed *fixed, uint32_t n_spans,
                 const bt_span *spans)
{
    const bt_attn_cuda *a     = (const bt_attn_cuda *)attn;
    size_t              n_ids = 0;

    for (uint32_t i = 0; i < n_spans; i++)
        n_ids += bt_kv_pages_for(spans[i].start + spans[i].n_rows);
    return n_ids <= a->max_ids && fixed->n_rows <= a->max_spans &&
           fixed->n_rows <= a->absorbed_rows &&
           (fixed->n_parts == 1 || (size_t)fixed->n_rows * fixed->n_parts <= a->part_rows);
}

static bt_status send(bt_attn *attn, const bt_attn_fixed *fixed, uint32_t n_spans,
                      const bt_span *spans)
{
    bt_status     st    = BT_OK;
    bt_attn_cuda *a     = (bt_attn_cuda *)attn;
    uint32_t      n_ids = 0, row = 0;

    for (uint32_t i = 0; i < n_spans; i++) {
        const bt_span *s     = &spans[i];
        uint32_t       pages = bt_kv_pages_for(s->start + s->n_rows);

        for (uint32_t k = 0; k < s->n_rows; k++, row++)
            a->spans[row] = (bt_cuda_span){
                .first_row = row, .n_rows = 1, .start = s->start + k, .page_at = n_ids};
        for (uint32_t page = 0; page < pages; page++)
            a->ids[n_ids++] = s->pages[page];
    }
    for (; row < fixed->n_rows; row++)
        a->spans[row] = (bt_cuda_span){.first_row = row, .page_at = n_ids};
    BT_TRY(bt_device_upload(a->dev, a->ids_dev, a->ids, n_ids * sizeof(*a->ids)));
    BT_TRY(bt_device_upload(a->dev, a->spans_dev, a->spans, fixed->n_rows * sizeof(*a->spans)));
out:
    return st;
}

/* ---- rows of a message: a launch for as many pages as its list has */

static bt_status move_rows(const bt_page_rows *r, void *stream, void *run, bool to_pages)
{
    bt_status         st     = BT_OK;
    uint32_t          kv_dim = bt_kv_pool_kv_dim(r->pool), n_tokens = r->token1 - r->token0;
    size_t            layer = (size_t)BT_PAGE_TOKENS * kv_dim;
    bt_cuda_page_rows k     = {.base           = bt_kv_pool_rows(r->pool, 0, r->layer0),
                               .page_stride    = bt_kv_pool_n_layers(r->pool) * layer,
                               .layer_stride   = layer,
                               .message_stride = (size_t)n_tokens * kv_dim,
                               .kv_dim         = kv_dim,
                               .n_layers       = r->layer1 - r->layer0,
                               .message        = run};

    for (uint32_t t = r->token0; t < r->token1; t += k.n_tokens) {
        const bt_page_id *pages = r->pages + t / BT_PAGE_TOKENS;

        k.first    = t % BT_PAGE_TOKENS;
        k.n_tokens = bt_min_u32(BT_CUDA_MOVE_PAGES * BT_PAGE_TOKENS - k.first, r->token1 - t);
        k.message  = (bt_bf16 *)run + (size_t)(t - r->token0) * kv_dim;
        memcpy(k.ids, pages, bt_kv_pages_for(k.first + k.n_tokens) * sizeof(*k.ids));
        BT_TRY(CUDA(to_pages ? bt_cuda_scatter_pages(stream, &k) : bt_cuda_pack_pages(stream, &k)));
    }
out:
    return st;
}

static const bt_attn_fixed_ops FIXED_OPS = {.fits = fits, .send = send};

/* ---- life */

static void destroy(bt_attn *attn)
{
    bt_attn_cuda *a = (bt_attn_cuda *)attn;

    if (a == NULL) return;
    bt_device_free(a->dev, a->chosen);
    bt_device_free(a->dev, a->scores);
    bt_device_free(a->dev, a->run_ms);
    bt_device_free(a->dev, a->run_o);
    bt_device_free(a->dev, a->values);
    bt_device_free(a->dev, a->keys);
    bt_device_free(a->dev, a->latents);
    bt_device_free(a->dev, a->part_ms);
    bt_device_free(a->dev, a->part_o);
    bt_device_free(a->dev, a->ol);
    bt_device_free(a->dev, a->ql);
    bt_device_free(a->dev, a->ids_dev);
    bt_device_free(a->dev, a->items_dev);
    bt_device_free(a->dev, a->spans_dev);
    bt_free(a->gemms);
    bt_free(a->ids);
    bt_free(a->items);
    bt_free(a->spans);
    bt_free(a);
}

static bt_status take(bt_attn_cuda *a, size_t n, size_t bytes_each, void *ptr_out)
{
    return bt_device_alloc_array(a->dev, n, bytes_each, &a->base.bytes, ptr_out);
}

static bt_status take_all(bt_attn_cuda *a)
{
    const bt_mla_config *c     = &a->cfg;
    bt_status            st    = BT_OK;
    size_t               heads = c->n_heads, lanes = (size_t)a->part_rows * heads;

    BT_TRY(take(a, a->max_spans, sizeof(*a->spans), &a->spans_dev));
    BT_TRY(take(a, a->max_spans, sizeof(*a->items), &a->items_dev));
    BT_TRY(take(a, a->max_ids, sizeof(*a->ids), &a->ids_dev));
    BT_TRY(take(a, a->absorbed_rows * heads * c->kv_lora_rank, sizeof(bt_bf16), &a->ql));
    BT_TRY(take(a, a->absorbed_rows * heads * c->kv_lora_rank, sizeof(bt_bf16), &a->ol));
    BT_TRY(take(a, lanes * c->kv_lora_rank, sizeof(float), &a->part_o));
    BT_TRY(take(a, lanes * 2, sizeof(float), &a->part_ms));
    BT_TRY(take(a, (size_t)a->kv_tokens * c->kv_lora_rank, sizeof(bt_bf16), &a->latents));
    BT_TRY(take(a, a->kv_tokens * heads * c->qk_nope_dim, sizeof(bt_bf16), &a->keys));
    BT_TRY(take(a, a->kv_tokens * heads * c->v_dim, sizeof(bt_bf16), &a->values));
    BT_TRY(take(a, a->normal_rows * heads * c->v_dim, sizeof(float), &a->run_o));
    BT_TRY(take(a, a->normal_rows * heads * 2, sizeof(float), &a->run_ms));
    if (a->n_chosen == 0) goto out;
    BT_TRY(take(a, a->n_scores, sizeof(*a->scores), &a->scores));
    BT_TRY(take(a, a->n_chosen, sizeof(*a->chosen), &a->chosen));
out:
    return st;
}

/* Workspaces follow the shapes; a part's rows also a bound in bytes. */
static void choose_sizes(bt_attn_cuda *a, uint32_t max_rows)
{
    uint32_t max_parts  = bt_attn_parts(a->cfg.max_context);
    size_t   part_bytes = (size_t)a->cfg.n_heads * a->cfg.kv_lora_rank * sizeof(float);
    size_t   fit        = ((size_t)PART_MEGABYTES << 20) / part_bytes;

    a->max_spans     = bt_min_u32(max_rows, MAX_SPANS);
    a->max_ids       = bt_max_u32(MAX_IDS, bt_kv_pages_for(a->cfg.max_context));
    a->absorbed_rows = bt_min_u32(max_rows, ABSORBED_ROWS);
    a->normal_rows   = bt_min_u32(max_rows, NORMAL_ROWS);
    a->kv_tokens     = bt_min_u32(KV_TOKENS, bt_kv_pages_for(a->cfg.max_context) * BT_PAGE_TOKENS);
    a->kv_tokens     = bt_max_u32(a->kv_tokens, a->normal_rows);
    a->part_rows =
        bt_min_u32(a->absorbed_rows * max_parts, fit < UINT32_MAX ? (uint32_t)fit : UINT32_MAX);
    a->part_rows = bt_max_u32(a->part_rows, max_parts); /* one row always fits */
    bt_attn_cuda_chosen_sizes(a, max_rows);
}

static size_t large_bytes(const bt_mla_config *cfg, uint32_t max_rows)
{
    bt_attn_cuda a     = {.cfg = *cfg};
    size_t       heads = cfg->n_heads;

    choose_sizes(&a, max_rows);
    return a.part_rows * heads * (cfg->kv_lora_rank + 2) * sizeof(float) +
           a.kv_tokens * (cfg->kv_lora_rank + heads * (cfg->qk_nope_dim + cfg->v_dim)) *
               sizeof(bt_bf16) +
           a.normal_rows * heads * (cfg->v_dim + 2) * sizeof(float) +
           2 * a.absorbed_rows * heads * cfg->kv_lora_rank * sizeof(bt_bf16) +
           a.n_scores * sizeof(*a.scores) + a.n_chosen * sizeof(*a.chosen) +
           a.max_ids * sizeof(*a.ids) + a.max_spans * (sizeof(*a.spans) + sizeof(*a.items));
}

static bt_status create(bt_device *dev, const bt_mla_config *cfg, uint32_t max_rows,
                        const float *rope, bt_attn **attn_out)
{
    bt_status     st = BT_OK;
    bt_attn_cuda *a  = NULL;

    BT_REQUIRE(cfg->kv_lora_rank <= BT_CUDA_MAX_LATENT && cfg->qk_rope_dim <= BT_CUDA_MAX_ROPE &&
                   cfg->qk_nope_dim <= BT_CUDA_MAX_HEAD && cfg->v_dim <= BT_CUDA_MAX_HEAD,
               BT_ERR_UNSUPPORTED,
               "attention on a GPU takes kv_lora_rank to %d, qk_rope_dim to %d, qk_nope_dim and "
               "v_dim to %d: found %u, %u, %u and %u",
               BT_CUDA_MAX_LATENT, BT_CUDA_MAX_ROPE, BT_CUDA_MAX_HEAD, cfg->kv_lora_rank,
               cfg->qk_rope_dim, cfg->qk_nope_dim, cfg->v_dim);
    BT_REQUIRE(
        !bt_mla_chooses(cfg) ||
            (cfg->index_dim <= BT_CUDA_MAX_INDEX && cfg->index_heads <= BT_CUDA_MAX_INDEX_HEADS),
        BT_ERR_UNSUPPORTED,
        "sparse attention on a GPU takes index_head_dim to %d and index_n_heads to %d: found "
        "%u and %u",
        BT_CUDA_MAX_INDEX, BT_CUDA_MAX_INDEX_HEADS, cfg->index_dim, cfg->index_heads);
    a = bt_calloc(1, sizeof(*a));
    BT_REQUIRE(a != NULL, BT_ERR_NO_MEMORY, "attention header");
    a->base.ops = &bt_attn_cuda_ops;
    a->dev      = dev;
    a->cfg      = *cfg;
    a->rope     = rope;
    choose_sizes(a, max_rows);
    a->spans = bt_calloc(a->max_spans, sizeof(*a->spans));
    a->items = bt_calloc(a->max_spans, sizeof(*a->items));
    a->ids   = bt_calloc(a->max_ids, sizeof(*a->ids));
    a->gemms = bt_calloc(cfg->n_heads, sizeof(*a->gemms));
    BT_REQUIRE(a->spans != NULL && a->items != NULL && a->ids != NULL && a->gemms != NULL,
               BT_ERR_NO_MEMORY, "attention lists of %u spans and %u pages", a->max_spans,
               a->max_ids);
    BT_TRY(take_all(a));
    *attn_out = &a->base;
    a         = NULL; /* handed over */
out:
    destroy(a == NULL ? NULL : &a->base);
    return st;
}

BT_CUDA_EXPORT const bt_attn_ops bt_attn_cuda_ops = {
    .device      = "cuda",
    .large_bytes = large_bytes,
    .create      = create,
    .append      = append,
    .attend = {[BT_FORM_NORMAL] = bt_attn_cuda_normal, [BT_FORM_ABSORBED] = bt_attn_cuda_absorbed},
    .choose = bt_attn_cuda_choose,
    .attend_chosen = bt_attn_cuda_attend_chosen,
    .move_rows     = move_rows,
    .destroy       = destroy,
    .fixed         = &FIXED_OPS,
};
