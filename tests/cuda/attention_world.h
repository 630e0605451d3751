/* tests/cuda/attention_world.h - requests with pages full of random latents, and what attention
 * over them is, in double. */
#ifndef BT_TESTS_CUDA_ATTENTION_WORLD_H
#define BT_TESTS_CUDA_ATTENTION_WORLD_H

#include "attention/cuda/attn_kernels.h"
#include "tests/cuda/numbers.h"

enum { PAGE = BT_CUDA_PAGE, MAX_SPANS = 8, LAYERS = 2 };

typedef struct {
    bt_cuda_dims  dims;
    bt_cuda_pages pages; /* of layer 1 */
    bt_bf16      *pool;
    uint32_t     *ids, n_spans, n_rows, max_rows, max_end, n_pages;
    bt_cuda_span  spans[MAX_SPANS];
    uint64_t      rng;
} world;

/* Elements of a token: of what attention reads, and of all. */
static inline size_t latent_dim(const world *w) { return w->dims.kv_lora + w->dims.rope; }
static inline size_t kv_dim(const world *w) { return latent_dim(w) + w->pages.index_dim; }

/* spans: {start, n_rows} pairs, ended by n_rows 0. */
static inline world make_index_world(bt_cuda_dims dims, uint32_t          index_dim,
                                     const uint32_t (*spans)[2], uint64_t seed)
{
    world w = {.dims = dims, .rng = seed};

    for (; spans[w.n_spans][1] != 0; w.n_spans++) {
        uint32_t start = spans[w.n_spans][0], n = spans[w.n_spans][1];

        w.spans[w.n_spans] = (bt_cuda_span){w.n_rows, n, start, w.n_pages, 0};
        w.n_rows += n;
        w.n_pages += (start + n + PAGE - 1) / PAGE;
        if (n > w.max_rows) w.max_rows = n;
        if (start + n > w.max_end) w.max_end = start + n;
    }
    w.ids = ARRAY(uint32_t, w.n_pages);
    for (uint32_t i = 0; i < w.n_pages; i++)
        w.ids[i] = w.n_pages - 1 - i;
    w.pages.ids         = w.ids;
    w.pages.index_dim   = index_dim;
    w.pages.page_stride = LAYERS * PAGE * kv_dim(&w);
    w.pool              = random_bf16(w.n_pages * w.pages.page_stride, 1, &w.rng);
    w.pages.base        = w.pool + PAGE * kv_dim(&w);
    return w;
}

/* Odd seeds have an index_dim. */
static inline world make_world(bt_cuda_dims dims, const uint32_t (*spans)[2], uint64_t seed)
{
    return make_index_world(dims, seed % 2 ? dims.rope + 16 : 0, spans, seed);
}

static inline void drop_world(world *w) { free(w->pool), free(w->ids); }

/* The latent and rope key of a span's token, and what lies behind them. */
static inline bt_bf16 *token_at(const world *w, uint32_t span, uint32_t pos)
{
    return w->pages.base + w->ids[w->spans[span].page_at + pos / PAGE] * w->pages.page_stride +
           pos % PAGE * kv_dim(w);
}

/* What no request may see: everything of other layers and beyond the spans' ends; and what is not
 * for attention. */
static inline void poison_the_rest(world *w)
{
    for (uint32_t p = 0; p < w->n_pages; p++)
        memset(w->pages.base - PAGE * kv_dim(w) + p * w->pages.page_stride, 0xff,
               PAGE * kv_dim(w) * sizeof(bt_bf16));
    for (uint32_t s = 0; s < w->n_spans; s++) {
        uint32_t end = w->spans[s].start + w->spans[s].n_rows;

        if (end % PAGE != 0)
            memset(token_at(w, s, end), 0xff, (PAGE - end % PAGE) * kv_dim(w) * sizeof(bt_bf16));
        for (uint32_t pos = 0; pos < end; pos++)
            memset(token_at(w, s, pos) + latent_dim(w), 0xff, w->pages.index_dim * sizeof(bt_bf16));
    }
}

static inline double dot_bf16(const bt_bf16 *a, const bt_bf16 *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)bt_bf16_to_f32(a[i]) * (double)bt_bf16_to_f32(b[i]);
    return sum;
}

/* s[0 .. n) from scores to weights. */
static inline void softmax_of(double *s, uint32_t n)
{
    double max = -INFINITY, sum = 0;

    for (uint32_t j = 0; j < n; j++)
        max = s[j] > max ? s[j] : max;
    for (uint32_t j = 0; j < n; j++)
        sum += s[j] = exp(s[j] - max);
    for (uint32_t j = 0; j < n; j++)
        s[j] /= sum;
}

#endif
