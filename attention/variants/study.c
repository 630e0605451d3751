/* attention/variants/study.c - the study's layer and its requests. */
#include <string.h>

#include "attention/rope.h"
#include "attention/variants/core.h"
#include "core/alloc.h"

/* ---- the layer ---- */

typedef struct {
    const bt_bf16 *data;
    size_t         ld;
    uint32_t       k;
    bool           transposed;
} view;

static void view_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const view *v = ctx;

    if (!v->transposed) {
        memcpy(row, v->data + n * v->ld, v->k * sizeof(*row));
        return;
    }
    for (uint32_t i = 0; i < v->k; i++)
        row[i] = v->data[i * v->ld + n];
}

bt_status bt_study_linear(bt_device *dev, const bt_bf16 *data, size_t ld, uint32_t n, uint32_t k,
                          bool transposed, bt_linear **linear_out)
{
    view v = {data, ld, k, transposed};

    return bt_device_linear_create(dev, n, k, view_row, &v, linear_out);
}

static bt_status take(bt_study *s, size_t elems, size_t size, void *ptr_out)
{
    return bt_device_alloc_array(s->dev, elems, size, NULL, ptr_out);
}

bt_status bt_study_upload(bt_study *s, const bt_bf16 *host, size_t elems, bt_bf16 **ptr_out)
{
    bt_status st = BT_OK;

    BT_TRY(take(s, elems, sizeof(*host), ptr_out));
    BT_TRY(bt_device_upload(s->dev, *ptr_out, host, elems * sizeof(*host)));
    BT_TRY(bt_device_sync(s->dev));
out:
    return st;
}

static bt_status create_heads(bt_study *s)
{
    bt_status            st  = BT_OK;
    const bt_mla_config *cfg = &s->cfg;
    size_t               c   = cfg->kv_lora_rank;

    s->w.uk  = bt_calloc(cfg->n_heads, sizeof(*s->w.uk));
    s->w.ukt = bt_calloc(cfg->n_heads, sizeof(*s->w.ukt));
    s->w.uv  = bt_calloc(cfg->n_heads, sizeof(*s->w.uv));
    BT_REQUIRE(s->w.uk != NULL && s->w.ukt != NULL && s->w.uv != NULL, BT_ERR_NO_MEMORY,
               "study: lists of %u heads", cfg->n_heads);
    for (uint32_t h = 0; h < cfg->n_heads; h++) {
        const bt_bf16 *uk = s->host.kv_b + (size_t)h * (cfg->qk_nope_dim + cfg->v_dim) * c;
        const bt_bf16 *uv = uk + cfg->qk_nope_dim * c;

        BT_TRY(bt_study_linear(s->dev, uk, c, cfg->qk_nope_dim, cfg->kv_lora_rank, false,
                               &s->w.uk[h]));
        BT_TRY(bt_study_linear(s->dev, uk, c, cfg->kv_lora_rank, cfg->qk_nope_dim, true,
                               &s->w.ukt[h]));
        BT_TRY(bt_study_linear(s->dev, uv, c, cfg->v_dim, cfg->kv_lora_rank, false, &s->w.uv[h]));
    }
out:
    return st;
}

static bt_status create_weights(bt_study *s)
{
    bt_status               st  = BT_OK;
    const bt_mla_config    *cfg = &s->cfg;
    const bt_study_weights *h   = &s->host;
    uint32_t                n_o = cfg->n_heads * cfg->v_dim;

    if (cfg->q_lora_rank != 0) {
        BT_TRY(bt_study_linear(s->dev, h->q_a, cfg->hidden, cfg->q_lora_rank, cfg->hidden, false,
                               &s->w.q_a));
        BT_TRY(bt_study_upload(s, h->q_a_norm, cfg->q_lora_rank, &s->w.q_a_norm));
        BT_TRY(bt_study_linear(s->dev, h->q, s->q_in, s->q_dim, s->q_in, false, &s->w.q_b));
    } else {
        BT_TRY(bt_study_linear(s->dev, h->q, s->q_in, s->q_dim, s->q_in, false, &s->w.q));
    }
    BT_TRY(
        bt_study_linear(s->dev, h->kv_a, cfg->hidden, s->kv_dim, cfg->hidden, false, &s->w.kv_a));
    BT_TRY(bt_study_upload(s, h->kv_a_norm, cfg->kv_lora_rank, &s->w.kv_a_norm));
    BT_TRY(bt_study_linear(s->dev, h->o, n_o, cfg->hidden, n_o, false, &s->w.o));
    BT_TRY(create_heads(s));
out:
    return st;
}

static bt_status create_rows(bt_study *s)
{
    bt_status            st    = BT_OK;
    const bt_mla_config *cfg   = &s->cfg;
    size_t               rows  = s->max_batch;
    size_t               elems = (size_t)cfg->max_context * cfg->qk_rope_dim;
    float               *host  = NULL;

    if (cfg->q_lora_rank != 0) BT_TRY(take(s, rows * s->q_in, sizeof(bt_bf16), &s->q_a));
    BT_TRY(take(s, rows * s->q_dim, sizeof(bt_bf16), &s->q));
    BT_TRY(take(s, rows * s->kv_dim, sizeof(bt_bf16), &s->kv));
    BT_TRY(take(s, rows * cfg->n_heads * cfg->kv_lora_rank, sizeof(bt_bf16), &s->ql));
    BT_TRY(take(s, rows * cfg->n_heads * cfg->kv_lora_rank, sizeof(bt_bf16), &s->ol));
    BT_TRY(take(s, rows * cfg->n_heads * cfg->v_dim, sizeof(bt_bf16), &s->heads));
    BT_TRY(take(s, elems, sizeof(float), &s->rope));
    s->gemms = bt_calloc(cfg->n_heads, sizeof(*s->gemms));
    s->spans = bt_calloc(rows, sizeof(*s->spans));
    host     = bt_calloc(elems, sizeof(*host));
    BT_REQUIRE(s->gemms != NULL && s->spans != NULL && host != NULL, BT_ERR_NO_MEMORY,
               "study: lists of %u heads and %zu requests, %u positions", cfg->n_heads, rows,
               cfg->max_context);
    bt_rope_fill(0, cfg->max_context, cfg->qk_rope_dim / 2, cfg->rope_inv_freq, cfg->rope_magnitude,
                 host);
    BT_TRY(bt_device_upload(s->dev, s->rope, host, elems * sizeof(*host)));
    BT_TRY(bt_device_sync(s->dev));
out:
    bt_free(host);
    return st;
}

bt_status bt_study_create(bt_device *dev, const bt_mla_config *cfg, const bt_study_weights *w,
                          uint32_t max_batch, bt_study **study_out)
{
    bt_status          st  = BT_OK;
    bt_study          *s   = NULL;
    const bt_core_ops *ops = &bt_core_cpu_ops;
    bt_mla            *mla = NULL;

    BT_REQUIRE(strcmp(ops->attn->device, dev->ops->name) == 0, BT_ERR_UNSUPPORTED,
               "no attention study for device \"%s\"", dev->ops->name);
    BT_REQUIRE(cfg->index_topk == 0, BT_ERR_UNSUPPORTED,
               "the study is one of dense attention: expected an index_topk of 0, found %u",
               cfg->index_topk);
    BT_TRY(bt_mla_create(dev, cfg, max_batch, &mla)); /* it knows which sizes are right */
    s = bt_calloc(1, sizeof(*s));
    BT_REQUIRE(s != NULL, BT_ERR_NO_MEMORY, "study header");
    s->dev       = dev;
    s->ops       = ops;
    s->cfg       = *cfg;
    s->host      = *w;
    s->max_batch = max_batch;
    s->q_in      = cfg->q_lora_rank != 0 ? cfg->q_lora_rank : cfg->hidden;
    s->q_dim     = cfg->n_heads * (cfg->qk_nope_dim + cfg->qk_rope_dim);
    s->kv_dim    = cfg->kv_lora_rank + cfg->qk_rope_dim;
    BT_TRY(create_weights(s));
    BT_TRY(create_rows(s));
    bt_mla_destroy(mla);
    mla                  = NULL;
    s->cfg.rope_inv_freq = NULL; /* was borrowed during this call only */
    s->cfg.query_beta    = 0;
    BT_TRY(ops->attn->create(dev, &s->cfg, max_batch, s->rope, &s->attn));
    *study_out = s;
    s          = NULL; /* handed over */
out:
    bt_mla_destroy(mla);
    bt_study_destroy(s);
    return st;
}

static void destroy_list(bt_device *dev, bt_linear **list, uint32_t n)
{
    for (uint32_t i = 0; i < n && list != NULL; i++)
        bt_device_linear_destroy(dev, list[i]);
    bt_free(list);
}

static void forget_requests(bt_study *s)
{
    bt_kv_pool_destroy(s->pool);
    bt_free(s->pages);
    s->pool  = NULL;
    s->pages = NULL;
    s->batch = 0;
}

void bt_study_destroy(bt_study *s)
{
    if (s == NULL) return;
    forget_requests(s);
    bt_merged_fini(s);
    if (s->attn != NULL) s->attn->ops->destroy(s->attn);
    destroy_list(s->dev, s->w.uk, s->cfg.n_heads);
    destroy_list(s->dev, s->w.ukt, s->cfg.n_heads);
    destroy_list(s->dev, s->w.uv, s->cfg.n_heads);
    bt_device_linear_destroy(s->dev, s->w.q);
    bt_device_linear_destroy(s->dev, s->w.q_a);
    bt_device_linear_destroy(s->dev, s->w.q_b);
    bt_device_linear_destroy(s->dev, s->w.kv_a);
    bt_device_linear_destroy(s->dev, s->w.o);
    bt_device_free(s->dev, s->w.q_a_norm);
    bt_device_free(s->dev, s->w.kv_a_norm);
    bt_device_free(s->dev, s->q_a);
    bt_device_free(s->dev, s->q);
    bt_device_free(s->dev, s->kv);
    bt_device_free(s->dev, s->ql);
    bt_device_free(s->dev, s->ol);
    bt_device_free(s->dev, s->heads);
    bt_device_free(s->dev, s->rope);
    bt_free(s->gemms);
    bt_free(s->spans);
    bt_free(s);
}

/* ---- requests ---- */

size_t bt_study_set_bytes(const bt_study *s, uint32_t batch, uint32_t n_prefix)
{
    return batch * (size_t)bt_kv_pages_for(n_prefix + 1) * bt_kv_page_bytes(1, s->kv_dim);
}

static bt_status fill_pages(bt_study *s, const bt_bf16 *rows)
{
    bt_status st      = BT_OK;
    uint32_t  n_pages = bt_kv_pages_for(bt_study_n_keys(s));

    for (uint32_t r = 0; r < s->batch; r++) {
        for (uint32_t t = 0, n; t < s->n_prefix; t += n) {
            bt_bf16 *page =
                bt_kv_pool_rows(s->pool, s->pages[r * (size_t)n_pages + t / BT_PAGE_TOKENS], 0);
            uint32_t row = t % s->n_rows;

            n = BT_PAGE_TOKENS < s->n_prefix - t ? BT_PAGE_TOKENS : s->n_prefix - t;
            BT_TRY(bt_device_upload(s->dev, page, rows + (size_t)row * s->kv_dim,
                                    (size_t)n * s->kv_dim * sizeof(*rows)));
        }
    }
    BT_TRY(bt_device_sync(s->dev));
out:
    return st;
}

bt_status bt_study_set(bt_study *s, uint32_t batch, uint32_t n_prefix, uint32_t n_rows,
                       const bt_bf16 *rows)
{
    bt_status st = BT_OK;
    uint32_t  n_pages;

    BT_REQUIRE(batch >= 1 && batch <= s->max_batch && n_prefix < s->cfg.max_context,
               BT_ERR_INVALID_ARG,
               "study of %u requests with prefixes of %u: it holds 1 to %u, context %u", batch,
               n_prefix, s->max_batch, s->cfg.max_context);
    BT_REQUIRE(n_rows >= n_prefix || (n_rows != 0 && n_rows % BT_PAGE_TOKENS == 0),
               BT_ERR_INVALID_ARG, "%u rows repeat over a prefix of %u: expected a multiple of %d",
               n_rows, n_prefix, (int)BT_PAGE_TOKENS);
    forget_requests(s);
    n_pages  = bt_kv_pages_for(n_prefix + 1);
    s->pages = bt_calloc((size_t)batch * n_pages, sizeof(*s->pages));
    BT_REQUIRE(s->pages != NULL, BT_ERR_NO_MEMORY, "pages of %u requests", batch);
    BT_TRY(bt_kv_pool_create(
        s->dev,
        &(bt_kv_pool_config){.n_layers = 1, .n_pages = batch * n_pages, .kv_dim = s->kv_dim},
        &s->pool));
    BT_TRY(bt_kv_pool_acquire(s->pool, batch * n_pages, s->pages));
    s->batch    = batch;
    s->n_prefix = n_prefix;
    s->n_rows   = n_rows;
    for (uint32_t r = 0; r < batch; r++)
        s->spans[r] = (bt_span){.pages     = bt_study_pages(s, r),
                                .first_row = r,
                                .n_rows    = 1,
                                .start     = n_prefix,
                                .form      = BT_FORM_ABSORBED};
    BT_TRY(fill_pages(s, rows));
out:
    if (st != BT_OK) forget_requests(s);
    return st;
}
