/* device/cuda/launch.h - for the other folders' kernels: weights as they read them, and what came
 * of a launch.  No CUDA header is needed. */
#ifndef BT_DEVICE_CUDA_LAUNCH_H
#define BT_DEVICE_CUDA_LAUNCH_H

#include "device/device.h"

/* The matrix as the kernels read it, [n, k] on the device, and its scales (device/cuda/gemm.h). */
const void *bt_cuda_weights(const bt_linear *linear);
const void *bt_cuda_weight_scales(const bt_linear *linear);
/* A cudaError_t as a status: BT_OK for success; else logs `what` with the runtime's text. */
bt_status bt_cuda_status(int err, const char *what, const char *file, int line);
#define CUDA(call) bt_cuda_status((int)(call), #call, __FILE__, __LINE__)

#endif
