/* tests/attention/layer.h - a random attention layer, and requests that run through it in steps. */
#ifndef BT_TESTS_ATTENTION_LAYER_H
#define BT_TESTS_ATTENTION_LAYER_H

#include <math.h>
#include <stdbool.h>

#include "attention/mla.h"
#include "core/alloc.h"
#include "tests/support/test.h"

enum { LAYERS = 2, LAYER = 1, MAX_PAGES = 128 };

static inline uint32_t hash32(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}
static inline float hash_uniform(uint32_t seed, uint32_t i) /* -1 .. 1 */
{
    return (float)(int32_t)hash32(seed * 0x9e3779b9u + i) / 2147483648.0f;
}

/* A weight matrix [n, k] of bf16 values as floats; rows of the device's matrix come from it. */
typedef struct {
    uint32_t n, k;
    float   *data;
} matrix;

static inline matrix matrix_new(uint32_t n, uint32_t k, uint32_t seed, float size)
{
    matrix m = {n, k, bt_calloc((size_t)n * k, sizeof(float))};

    for (uint32_t i = 0; i < n * k; i++)
        m.data[i] = bt_bf16_to_f32(bt_bf16_from_f32(hash_uniform(seed, i) * size));
    return m;
}

/* Rows of a part of a matrix, or of its transpose. */
typedef struct {
    const float *data;
    size_t       ld;
    uint32_t     k;
    bool         transposed;
} matrix_view;

static inline void view_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const matrix_view *v = ctx;

    for (uint32_t i = 0; i < v->k; i++)
        row[i] = bt_bf16_from_f32(v->transposed ? v->data[i * v->ld + n] : v->data[n * v->ld + i]);
}

static inline bt_linear *linear_of(bt_device *dev, const float *data, size_t ld, uint32_t n,
                                   uint32_t k, bool transposed)
{
    matrix_view v      = {data, ld, k, transposed};
    bt_linear  *linear = NULL;

    EXPECT_EQ(bt_device_linear_create(dev, n, k, view_row, &v, &linear), BT_OK);
    return linear;
}

static inline bt_linear *whole(bt_device *dev, const matrix *m)
{
    return linear_of(dev, m->data, m->k, m->n, m->k, false);
}

/* Sizes, then what they make. */
typedef struct {
    const char   *name;
    bt_mla_config cfg;
    double        inv_freq[32];
    matrix        q, q_a, q_b, kv_a, kv_b, o, q_a_norm, kv_a_norm;
    matrix        index_q, index_k, index_w, index_k_norm, index_k_bias; /* where there are any */
} layer_data;

static inline layer_data *layer_data_new(const char *name, const bt_mla_config *cfg)
{
    layer_data *d        = bt_calloc(1, sizeof(*d));
    uint32_t    q_dim    = cfg->n_heads * (cfg->qk_nope_dim + cfg->qk_rope_dim);
    float       w_hidden = sqrtf(3.0f / (float)cfg->hidden);
    float       w_latent = sqrtf(3.0f / (float)cfg->kv_lora_rank);

    d->name = name;
    d->cfg  = *cfg;
    for (uint32_t i = 0; i < cfg->qk_rope_dim / 2; i++)
        d->inv_freq[i] = pow(10000, -2.0 * i / cfg->qk_rope_dim);
    d->cfg.rope_inv_freq = d->inv_freq;
    if (d->cfg.rope_magnitude == 0) d->cfg.rope_magnitude = 1;
    d->cfg.latent_eps = 1e-6f;
    /* Scores of some size, so that a softmax is not nearly flat. */
    d->cfg.softmax_scale = 2.0f / sqrtf((float)(cfg->qk_nope_dim + cfg->qk_rope_dim));
    if (cfg->q_lora_rank != 0) {
        d->q_a      = matrix_new(cfg->q_lora_rank, cfg->hidden, 1, w_hidden);
        d->q_a_norm = matrix_new(1, cfg->q_lora_rank, 2, 0.5f);
        d->q_b = matrix_new(q_dim, cfg->q_lora_rank, 3, 2 * sqrtf(3.0f / (float)cfg->q_lora_rank));
        for (uint32_t i = 0; i < cfg->q_lora_rank; i++)
            d->q_a_norm.data[i] += 1;
    } else {
        d->q = matrix_new(q_dim, cfg->hidden, 4, w_hidden);
    }
    d->kv_a      = matrix_new(cfg->kv_lora_rank + cfg->qk_rope_dim, cfg->hidden, 5, w_hidden);
    d->kv_a_norm = matrix_new(1, cfg->kv_lora_rank, 6, 0.5f);
    for (uint32_t i = 0; i < cfg->kv_lora_rank; i++)
        d->kv_a_norm.data[i] = bt_bf16_to_f32(bt_bf16_from_f32(d->kv_a_norm.data[i] + 1));
    for (uint32_t i = 0; i < cfg->q_lora_rank; i++)
        d->q_a_norm.data[i] = bt_bf16_to_f32(bt_bf16_from_f32(d->q_a_norm.data[i]));
    d->kv_b =
        matrix_new(cfg->n_heads * (cfg->qk_nope_dim + cfg->v_dim), cfg->kv_lora_rank, 7, w_latent);
    d->o = matrix_new(cfg->hidden, cfg->n_heads * cfg->v_dim, 8,
                      sqrtf(3.0f / (float)(cfg->n_heads * cfg->v_dim)));
    if (cfg->index_topk == 0) return d;
    d->index_q      = matrix_new(cfg->index_heads * cfg->index_dim, cfg->q_lora_rank, 9,
                                 sqrtf(3.0f / (float)cfg->q_lora_rank));
    d->index_k      = matrix_new(cfg->index_dim, cfg->hidden, 10, w_hidden);
    d->index_w      = matrix_new(cfg->index_heads, cfg->hidden, 11, w_hidden);
    d->index_k_norm = matrix_new(1, cfg->index_dim, 12, 2);
    d->index_k_bias = matrix_new(1, cfg->index_dim, 13, 0.3f);
    return d;
}

static inline void layer_data_free(layer_data *d)
{
    bt_free(d->q.data);
    bt_free(d->q_a.data);
    bt_free(d->q_b.data);
    bt_free(d->kv_a.data);
    bt_free(d->kv_b.data);
    bt_free(d->o.data);
    bt_free(d->q_a_norm.data);
    bt_free(d->kv_a_norm.data);
    bt_free(d->index_q.data);
    bt_free(d->index_k.data);
    bt_free(d->index_w.data);
    bt_free(d->index_k_norm.data);
    bt_free(d->index_k_bias.data);
    bt_free(d);
}

/* The layer on a device, with a pool whose pages are all NaN until they are written. */
typedef struct {
    bt_device     *dev; /* owned */
    bt_mla_config  cfg;
    bt_mla_weights w;
    bt_mla        *mla;
    bt_kv_pool    *pool;
    uint32_t       max_rows;
} layer;

static inline bt_bf16 *upload_bf16(bt_device *dev, const matrix *m)
{
    void    *mem   = NULL;
    size_t   elems = (size_t)m->n * m->k;
    bt_bf16 *host  = bt_calloc(elems, sizeof(*host));

    for (size_t i = 0; i < elems; i++)
        host[i] = bt_bf16_from_f32(m->data[i]);
    EXPECT_EQ(bt_device_alloc(dev, elems * sizeof(*host), &mem), BT_OK);
    EXPECT_EQ(bt_device_upload(dev, mem, host, elems * sizeof(*host)), BT_OK);
    EXPECT_EQ(bt_device_sync(dev), BT_OK);
    bt_free(host);
    return mem;
}

static inline void layer_poison(const layer *l)
{
    size_t bytes = bt_kv_page_bytes(LAYERS, bt_kv_pool_kv_dim(l->pool));
    char  *nan   = bt_calloc(1, bytes);

    memset(nan, 0xff, bytes);
    for (bt_page_id p = 0; p < bt_kv_pool_n_pages(l->pool); p++)
        EXPECT_EQ(bt_device_upload(l->dev, bt_kv_pool_rows(l->pool, p, 0), nan, bytes), BT_OK);
    bt_free(nan);
}

/* A test of another back end says how it is made. */
#ifndef LAYER_DEVICE
#define LAYER_DEVICE(opt, dev_out) bt_device_cpu_create((opt), (dev_out))
#endif

static inline layer layer_new(const layer_data *d, const char *kernels, uint32_t n_threads,
                              uint32_t max_rows)
{
    bt_device_cpu_options opt = {.n_threads = n_threads, .kernels = kernels};
    layer                 l   = {.cfg = d->cfg, .max_rows = max_rows};
    const bt_mla_config  *cfg = &l.cfg;
    size_t                c = cfg->kv_lora_rank, dn = cfg->qk_nope_dim, dv = cfg->v_dim;

    EXPECT_EQ(LAYER_DEVICE(&opt, &l.dev), BT_OK);
    if (cfg->q_lora_rank != 0) {
        l.w.q_a      = whole(l.dev, &d->q_a);
        l.w.q_b      = whole(l.dev, &d->q_b);
        l.w.q_a_norm = upload_bf16(l.dev, &d->q_a_norm);
    } else {
        l.w.q = whole(l.dev, &d->q);
    }
    l.w.kv_a      = whole(l.dev, &d->kv_a);
    l.w.kv_a_norm = upload_bf16(l.dev, &d->kv_a_norm);
    l.w.o         = whole(l.dev, &d->o);
    l.w.uk        = bt_calloc(cfg->n_heads, sizeof(*l.w.uk));
    l.w.ukt       = bt_calloc(cfg->n_heads, sizeof(*l.w.ukt));
    l.w.uv        = bt_calloc(cfg->n_heads, sizeof(*l.w.uv));
    for (uint32_t h = 0; h < cfg->n_heads; h++) {
        const float *uk = d->kv_b.data + h * (dn + dv) * c;

        l.w.uk[h]  = linear_of(l.dev, uk, c, cfg->qk_nope_dim, cfg->kv_lora_rank, false);
        l.w.ukt[h] = linear_of(l.dev, uk, c, cfg->kv_lora_rank, cfg->qk_nope_dim, true);
        l.w.uv[h]  = linear_of(l.dev, uk + dn * c, c, cfg->v_dim, cfg->kv_lora_rank, false);
    }
    if (cfg->index_topk != 0) {
        l.w.index_q      = whole(l.dev, &d->index_q);
        l.w.index_k      = whole(l.dev, &d->index_k);
        l.w.index_w      = whole(l.dev, &d->index_w);
        l.w.index_k_norm = upload_bf16(l.dev, &d->index_k_norm);
        l.w.index_k_bias = upload_bf16(l.dev, &d->index_k_bias);
    }
    EXPECT_EQ(bt_mla_create(l.dev, cfg, max_rows, &l.mla), BT_OK);
    EXPECT_EQ(bt_kv_pool_create(l.dev,
                                &(bt_kv_pool_config){.n_layers = LAYERS,
                                                     .n_pages  = MAX_PAGES,
                                                     .kv_dim   = bt_mla_kv_dim(cfg)},
                                &l.pool),
              BT_OK);
    layer_poison(&l);
    return l;
}

static inline void layer_free(layer *l)
{
    for (uint32_t h = 0; h < l->cfg.n_heads; h++) {
        bt_device_linear_destroy(l->dev, l->w.uk[h]);
        bt_device_linear_destroy(l->dev, l->w.ukt[h]);
        bt_device_linear_destroy(l->dev, l->w.uv[h]);
    }
    bt_free(l->w.uk);
    bt_free(l->w.ukt);
    bt_free(l->w.uv);
    bt_device_linear_destroy(l->dev, l->w.q);
    bt_device_linear_destroy(l->dev, l->w.q_a);
    bt_device_linear_destroy(l->dev, l->w.q_b);
    bt_device_linear_destroy(l->dev, l->w.kv_a);
    bt_device_linear_destroy(l->dev, l->w.o);
    bt_device_free(l->dev, l->w.q_a_norm);
    bt_device_free(l->dev, l->w.kv_a_norm);
    bt_device_linear_destroy(l->dev, l->w.index_q);
    bt_device_linear_destroy(l->dev, l->w.index_k);
    bt_device_linear_destroy(l->dev, l->w.index_w);
    bt_device_free(l->dev, l->w.index_k_norm);
    bt_device_free(l->dev, l->w.index_k_bias);
    bt_kv_pool_destroy(l->pool);
    bt_mla_destroy(l->mla);
    bt_device_destroy(l->dev);
}

/* A request: its inputs and outputs, [n, hidden], and its pages. */
typedef struct {
    uint32_t   n;
    bt_bf16   *x, *out;
    bt_page_id pages[MAX_PAGES];
} request;

static inline request request_new(const layer *l, uint32_t n, uint32_t seed)
{
    request r = {.n   = n,
                 .x   = bt_calloc((size_t)n * l->cfg.hidden, sizeof(bt_bf16)),
                 .out = bt_calloc((size_t)n * l->cfg.hidden, sizeof(bt_bf16))};

    for (uint32_t i = 0; i < n * l->cfg.hidden; i++)
        r.x[i] = bt_bf16_from_f32(hash_uniform(seed + 100, i) * 1.7f);
    EXPECT_EQ(bt_kv_pool_acquire(l->pool, bt_kv_pages_for(n), r.pages), BT_OK);
    return r;
}

static inline void request_free(const layer *l, request *r)
{
    for (uint32_t i = 0; i < bt_kv_pages_for(r->n); i++)
        bt_kv_pool_release(l->pool, r->pages[i]);
    bt_free(r->x);
    bt_free(r->out);
}

/* A piece of a request that runs in a step. */
typedef struct {
    request     *r;
    uint32_t     start, n;
    bt_role      role;
    bt_attn_form form;
} piece;

/* One step of these pieces. */
static inline bt_status layer_step(const layer *l, uint32_t n_pieces, const piece *pieces)
{
    size_t    width = l->cfg.hidden * sizeof(bt_bf16); /* of a row, in bytes */
    void     *x = NULL, *out = NULL;
    bt_span  *spans = bt_calloc(n_pieces + 1, sizeof(*spans));
    uint32_t  row   = 0;
    bt_status st;

    EXPECT_EQ(bt_device_alloc(l->dev, l->max_rows * width, &x), BT_OK);
    EXPECT_EQ(bt_device_alloc(l->dev, l->max_rows * width, &out), BT_OK);
    for (uint32_t i = 0; i < n_pieces; i++) {
        const piece *p = &pieces[i];

        EXPECT_EQ(bt_device_upload(l->dev, (char *)x + row * width,
                                   p->r->x + (size_t)p->start * l->cfg.hidden, p->n * width),
                  BT_OK);
        spans[i] = (bt_span){p->r->pages, row, p->n, p->start, p->role, p->form};
        row += p->n;
    }
    bt_alloc_fail_at(0); /* a forward pass that allocates fails */
    st = bt_mla_forward(l->mla, &l->w, l->pool, LAYER, x, out, n_pieces, spans);
    bt_alloc_fail_at(-1);
    row = 0;
    for (uint32_t i = 0; i < n_pieces; i++) {
        const piece *p = &pieces[i];

        EXPECT_EQ(bt_device_download(l->dev, p->r->out + (size_t)p->start * l->cfg.hidden,
                                     (char *)out + row * width, p->n * width),
                  BT_OK);
        row += p->n;
    }
    EXPECT_EQ(bt_device_sync(l->dev), BT_OK);
    bt_device_free(l->dev, x);
    bt_device_free(l->dev, out);
    bt_free(spans);
    return st;
}

/* Rows [start, end) of a request in steps of `chunk` rows. */
static inline void layer_run(const layer *l, request *r, uint32_t start, uint32_t end,
                             uint32_t chunk, bt_role role, bt_attn_form form)
{
    for (uint32_t n; start < end; start += n) {
        n = end - start < chunk ? end - start : chunk;
        EXPECT_EQ(layer_step(l, 1, &(piece){r, start, n, role, form}), BT_OK);
    }
}

/* First row at which two [n, hidden] outputs differ; n when equal. */
static inline uint32_t first_difference(const layer *l, const bt_bf16 *a, const bt_bf16 *b,
                                        uint32_t n)
{
    size_t width = l->cfg.hidden;

    for (uint32_t r = 0; r < n; r++)
        if (memcmp(a + r * width, b + r * width, width * sizeof(*a)) != 0) return r;
    return n;
}

#endif
