/* moe/cuda/moe_cuda.h - what the files of the CUDA back end of the expert layer share. */
#ifndef BT_MOE_CUDA_MOE_CUDA_H
#define BT_MOE_CUDA_MOE_CUDA_H

#include "moe/ops.h"

extern const bt_moe_routed_ops bt_moe_cuda_routed_ops;

#endif
