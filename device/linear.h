/* device/linear.h - a weight matrix as back ends hold it.  Internal to device/. */
#ifndef BT_DEVICE_LINEAR_H
#define BT_DEVICE_LINEAR_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct bt_linear {
    uint32_t n, k;
    size_t   bytes;  /* of packed and scale */
    void    *packed; /* device memory; CPU: as device/cpu/kernels.h says; CUDA: [n, k] */
    float   *scale;  /* NULL: packed is bf16; or it is e4m3, and this CUDA: [n, ceil(k / 128)],
                        device memory; CPU: within packed */
    bool borrowed;   /* packed is another's, and only read; else owned */
};

#ifdef __cplusplus
}
#endif
#endif
