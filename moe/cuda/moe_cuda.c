/* moe/cuda/moe_cuda.c - the CUDA back end of the expert layer: lists go up, kernels run, and what
 * the host must know of wire rows comes down. */
#include "device/cuda/launch.h"
#include "device/cuda/module.h"
#include "moe/cuda/moe_kernels.h"

/* The scratch as a row of lists, each aligned for every type. */
static void *next_list(char **at, size_t bytes)
{
    void *list = *at;

    *at += (bytes + 15) / 16 * 16;
    return list;
}

static size_t rounded(size_t n, size_t bytes_each) { return (n * bytes_each + 15) / 16 * 16; }

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t scratch_bytes(bt_device *dev, const bt_moe_sizes *s)
{
    size_t entries = (size_t)s->max_rows * s->top_k, terms = s->max_terms;
    size_t route   = rounded(s->n_experts, sizeof(float)) + rounded(entries, sizeof(uint16_t));
    size_t read    = rounded((size_t)s->all_rows * s->top_k, 3 * sizeof(uint16_t));
    size_t sum     = rounded(terms + 1, sizeof(uint32_t)) * 3 + rounded(terms, sizeof(float));
    size_t combine = rounded(entries, sizeof(uint16_t)) + rounded(entries, sizeof(void *));

    (void)dev;
    return larger(larger(route, read), larger(sum, combine));
}

/* A host list's place in the scratch, filled; NULL for NULL. */
static bt_status up(bt_device *dev, char **at, const void *host, size_t n, size_t bytes_each,
                    const void **list_out)
{
    bt_status st   = BT_OK;
    void     *list = NULL;

    if (host != NULL) {
        list = next_list(at, n * bytes_each);
        BT_TRY(bt_device_upload(dev, list, host, n * bytes_each));
    }
    *list_out = list;
out:
    return st;
}

static bt_status route(bt_device *dev, const bt_moe_route *r)
{
    bt_status   st   = BT_OK;
    char       *at   = r->scratch;
    const void *bias = NULL, *forced = NULL;

    if (r->n_rows == 0) return BT_OK;
    BT_TRY(up(dev, &at, r->bias, r->gate->n_experts, sizeof(*r->bias), &bias));
    BT_TRY(
        up(dev, &at, r->forced, (size_t)r->n_rows * r->gate->top_k, sizeof(*r->forced), &forced));
    BT_TRY(CUDA(bt_cuda_route_run(bt_cuda_stream(dev), &(bt_cuda_route){.gate   = *r->gate,
                                                                        .n_rows = r->n_rows,
                                                                        .hidden = r->hidden,
                                                                        .x      = r->x,
                                                                        .logits = r->logits,
                                                                        .bias   = bias,
                                                                        .forced = forced,
                                                                        .wire   = r->wire})));
out:
    return st;
}

static bt_status read(bt_device *dev, const bt_moe_read *r)
{
    bt_status st   = BT_OK;
    uint16_t *list = r->scratch;

    if (r->n_rows == 0) return BT_OK;
    BT_TRY(CUDA(
        bt_cuda_entries_run(bt_cuda_stream(dev), r->n_rows, r->hidden, r->top_k, r->wire, list)));
    BT_TRY(bt_device_download(dev, r->entries, list,
                              (size_t)r->n_rows * 3 * r->top_k * sizeof(*list)));
    BT_TRY(bt_device_sync(dev));
out:
    return st;
}

static bt_status sum(bt_device *dev, const bt_moe_sums *s)
{
    bt_status   st = BT_OK;
    char       *at = s->scratch;
    const void *dst, *term_at, *y_row, *weight;
    uint32_t    n_terms = s->n_items == 0 ? 0 : s->term_at[s->n_items];

    if (s->n_items == 0) return BT_OK;
    BT_TRY(up(dev, &at, s->dst, s->n_items, sizeof(*s->dst), &dst));
    BT_TRY(up(dev, &at, s->term_at, (size_t)s->n_items + 1, sizeof(*s->term_at), &term_at));
    BT_TRY(up(dev, &at, s->y_row, n_terms, sizeof(*s->y_row), &y_row));
    BT_TRY(up(dev, &at, s->weight, n_terms, sizeof(*s->weight), &weight));
    BT_TRY(CUDA(bt_cuda_sums_run(bt_cuda_stream(dev), &(bt_cuda_sums){.n_items = s->n_items,
                                                                      .hidden  = s->hidden,
                                                                      .dst     = dst,
                                                                      .term_at = term_at,
                                                                      .y_row   = y_row,
                                                                      .weight  = weight,
                                                                      .y       = s->y,
                                                                      .items   = s->items})));
out:
    return st;
}

static bt_status combine(bt_device *dev, const bt_moe_combine *c)
{
    bt_status   st = BT_OK;
    char       *at = c->scratch;
    size_t      n  = (size_t)c->n_rows * c->top_k;
    const void *experts, *items;

    if (c->n_rows == 0) return BT_OK;
    BT_TRY(up(dev, &at, c->experts, n, sizeof(*c->experts), &experts));
    BT_TRY(up(dev, &at, (const void *)c->items, n, sizeof(*c->items), &items));
    BT_TRY(CUDA(
        bt_cuda_combine_run(bt_cuda_stream(dev), &(bt_cuda_combine){.n_rows     = c->n_rows,
                                                                    .hidden     = c->hidden,
                                                                    .top_k      = c->top_k,
                                                                    .n_blocks   = c->n_blocks,
                                                                    .block_size = c->block_size,
                                                                    .experts    = experts,
                                                                    .items      = items,
                                                                    .shared     = c->shared,
                                                                    .y          = c->y})));
out:
    return st;
}

extern const bt_moe_ops         bt_moe_cuda_ops;
BT_CUDA_EXPORT const bt_moe_ops bt_moe_cuda_ops = {
    .device        = "cuda",
    .scratch_bytes = scratch_bytes,
    .route         = route,
    .read          = read,
    .sum           = sum,
    .combine       = combine,
};
