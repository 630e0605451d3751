/* device/cuda/checksum.h - see bt_device_checksum(): two launches, the second as wide as the data
 * is long. */
#ifndef BT_DEVICE_CUDA_CHECKSUM_H
#define BT_DEVICE_CUDA_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues on `stream` (a cudaStream_t) and returns a cudaError_t; data and sum are device memory,
 * aligned to 8. */
int bt_cuda_checksum(void *stream, const void *data, size_t bytes, uint64_t seed, uint64_t *sum);

#ifdef __cplusplus
}
#endif
#endif
