#include "device/device.h"

#include "device/linear.h"

size_t bt_dtype_bytes(bt_dtype dtype)
{
    switch (dtype) {
    case BT_BF16: return 2;
    case BT_F32:
    case BT_I32: return 4;
    case BT_FP8_E4M3: return 1;
    }
    return 0;
}

uint32_t bt_linear_n(const bt_linear *linear) { return linear->n; }
uint32_t bt_linear_k(const bt_linear *linear) { return linear->k; }
size_t   bt_linear_bytes(const bt_linear *linear) { return linear->bytes; }
bool     bt_linear_is_fp8(const bt_linear *linear) { return linear->scale != NULL; }
