/* device/cuda/launch.h - for the other folders' kernels: the stream to launch on, and what came of
 * it. No CUDA header is needed. */
#ifndef BT_DEVICE_CUDA_LAUNCH_H
#define BT_DEVICE_CUDA_LAUNCH_H

#include "device/device.h"

/* The stream (a cudaStream_t) of a device named "cuda"; borrowed for the device's life. */
void *bt_cuda_stream(bt_device *dev);
/* The matrix as the kernels read it, [n, k] on the device, and its scales (device/cuda/gemm.h). */
const void *bt_cuda_weights(const bt_linear *linear);
const void *bt_cuda_weight_scales(const bt_linear *linear);
/* A cudaError_t as a status: BT_OK for success; else logs `what` with the runtime's text. */
bt_status bt_cuda_status(int err, const char *what, const char *file, int line);
#define CUDA(call) bt_cuda_status((int)(call), #call, __FILE__, __LINE__)

#endif
