/* device/cuda/device_cuda.h - what the files of the CUDA back end share. */
#ifndef BT_DEVICE_CUDA_DEVICE_CUDA_H
#define BT_DEVICE_CUDA_DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include "device/cuda/launch.h"

typedef struct {
    bt_device    super;
    int          gpu;
    cudaStream_t stream;     /* owned */
    uint32_t    *index;      /* owned, device: of gather_rows */
    uint32_t    *row_at;     /* owned, device: first rows of a product's groups */
    bt_bf16     *staging[2]; /* owned, pinned host memory: weights on their way */
    cudaEvent_t  sent[2];    /* owned: the buffer may be filled again */
} bt_device_cuda;

#endif
