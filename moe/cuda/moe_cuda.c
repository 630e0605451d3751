/* moe/cuda/moe_cuda.c - the CUDA back end of the expert layer: lists go up, kernels run, and what
 * the host must know of wire rows comes down. */
#include "moe/cuda/moe_cuda.h"
#include "device/cuda/launch.h"
#include "device/cuda/module.h"
#include "moe/cuda/moe_kernels.h"

/* One list at a time: forced experts, or entries, which are longer. */
static size_t scratch_bytes(uint32_t max_rows, uint32_t top_k)
{
    return (size_t)max_rows * 3 * top_k * sizeof(uint16_t);
}

static bt_status route(bt_device *dev, const bt_moe_route *r)
{
    bt_status st     = BT_OK;
    uint16_t *forced = r->forced != NULL ? r->scratch : NULL;

    if (r->n_rows == 0) return BT_OK;
    if (forced != NULL)
        BT_TRY(bt_device_upload(dev, forced, r->forced,
                                (size_t)r->n_forced * r->gate->top_k * sizeof(*forced)));
    BT_TRY(CUDA(bt_cuda_route_run(bt_device_stream(dev), &(bt_cuda_route){.gate   = *r->gate,
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
        bt_cuda_entries_run(bt_device_stream(dev), r->n_rows, r->hidden, r->top_k, r->wire, list)));
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
