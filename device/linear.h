/* device/linear.h - a weight matrix as back ends hold it.  Internal to device/. */
#ifndef BT_DEVICE_LINEAR_H
#define BT_DEVICE_LINEAR_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_linear {
    uint32_t       n, k;
    bt_weight_kind kind;
    size_t         bytes; /* of packed and scale */
    void *packed;         /* device memory; CPU: as device/cpu/kernels.h says; CUDA: [n, k], of int4
                             as its rows come */
    void *scale;   /* CPU: what stands beside them, within packed, or NULL; CUDA: device memory, of
                      e4m3 fp32 [n, ceil(k / 128)], of int4 bf16 [n, k / 32], else NULL */
    bool borrowed; /* packed is another's, and only read; else owned */
};

#ifdef __cplusplus
}
#endif
#endif
