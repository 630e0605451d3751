/* moe/cuda/moe_cuda.c - the CUDA back end of the expert layer: lists go up, kernels run, and what
 * the host must know of wire rows comes down. */
#include "moe/cuda/moe_cuda.h"
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
    size_t entries = (size_t)s->max_rows * s->top_k;
    size_t route   = rounded(entries, sizeof(uint16_t));
    size_t read    = rounded((size_t)s->all_rows * s->top_k, 3 * sizeof(uint16_t));

    (void)dev;
    return larger(route, read);
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
    bt_status   st     = BT_OK;
    char       *at     = r->scratch;
    const void *forced = NULL;

    if (r->n_rows == 0) return BT_OK;
    BT_TRY(
        up(dev, &at, r->forced, (size_t)r->n_forced * r->gate->top_k, sizeof(*r->forced), &forced));
    BT_TRY(CUDA(bt_cuda_route_run(bt_cuda_stream(dev), &(bt_cuda_route){.gate   = *r->gate,
                                                                        .n_rows = r->n_rows,
                                                                        .hidden = r->hidden,
                                                                        .x      = r->x,
                                                                        .logits = r->logits,
                                                                        .bias   = r->bias,
                                                                        .forced = forced,
                                                                        .live   = r->live,
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

extern const bt_moe_ops         bt_moe_cuda_ops;
BT_CUDA_EXPORT const bt_moe_ops bt_moe_cuda_ops = {
    .device        = "cuda",
    .scratch_bytes = scratch_bytes,
    .route         = route,
    .read          = read,
    .routed        = &bt_moe_cuda_routed_ops,
};
