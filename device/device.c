#include "device/device.h"

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
