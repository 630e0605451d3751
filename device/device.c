#include "device/device.h"

#include <string.h>

#include "device/linear.h"

uint32_t       bt_linear_n(const bt_linear *linear) { return linear->n; }
uint32_t       bt_linear_k(const bt_linear *linear) { return linear->k; }
size_t         bt_linear_bytes(const bt_linear *linear) { return linear->bytes; }
bt_weight_kind bt_linear_kind(const bt_linear *linear) { return linear->kind; }

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
