#include "device/device.h"

#include <string.h>

#include "device/linear.h"

uint32_t       bt_linear_n(const bt_linear *linear) { return linear->n; }
uint32_t       bt_linear_k(const bt_linear *linear) { return linear->k; }
size_t         bt_linear_bytes(const bt_linear *linear) { return linear->bytes; }
bt_weight_kind bt_linear_kind(const bt_linear *linear)
{
    return linear->kind == BT_WEIGHT_BF12 ? BT_WEIGHT_BF16 : linear->kind;
}

bt_status bt_device_alloc_array(bt_device *dev, size_t n, size_t elem_bytes, size_t *bytes,
                                void *ptr_out)
{
    bt_status st  = BT_OK;
    void     *ptr = NULL;

    if (n == 0) goto out;
    BT_REQUIRE(n <= SIZE_MAX / elem_bytes, BT_ERR_NO_MEMORY, "%zu elements of %zu bytes", n,
               elem_bytes);
    BT_TRY(bt_device_alloc(dev, n * elem_bytes, &ptr));
    memcpy(ptr_out, &ptr, sizeof(ptr));
    if (bytes != NULL) *bytes += n * elem_bytes;
out:
    return st;
}

bt_status bt_device_ffn(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                        bt_bf16 *h, bt_bf16 *act)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < n_ffns; i++) {
        const bt_ffn *f   = &ffns[i];
        uint32_t      dim = bt_linear_k(f->down), hidden = bt_linear_k(f->gate_up);

        BT_REQUIRE(dim == bt_linear_k(ffns[0].down) && bt_linear_n(f->gate_up) == 2 * dim,
                   BT_ERR_INVALID_ARG,
                   "feed-forward block %u of %u: width %u, gate and up of %u: expected %u, %u", i,
                   n_ffns, dim, bt_linear_n(f->gate_up), bt_linear_k(ffns[0].down),
                   2 * bt_linear_k(ffns[0].down));
        BT_REQUIRE(f->m <= 1 || (f->ld_x >= hidden && f->ld_y >= bt_linear_n(f->down)),
                   BT_ERR_INVALID_ARG,
                   "feed-forward block %u of %u, [%u, %u, %u]: row strides %zu and %zu: expected "
                   "%u and %u or more",
                   i, n_ffns, hidden, dim, bt_linear_n(f->down), f->ld_x, f->ld_y, hidden,
                   bt_linear_n(f->down));
        BT_REQUIRE((f->weight == NULL || f->y_dtype == BT_BF16) &&
                       (f->x_row == NULL) == (f->gathered == NULL),
                   BT_ERR_INVALID_ARG,
                   "feed-forward block %u of %u: weights need results of bf16; rows to gather need "
                   "a place, and only they",
                   i, n_ffns);
    }
    BT_TRY(dev->ops->ffn(dev, role, n_ffns, ffns, h, act));
out:
    return st;
}
