/* device/cuda/rows.h - operations on rows as kernels: norms, residuals, embedding.
 *
 * Each function enqueues on `stream` (a cudaStream_t) and returns a cudaError_t, 0 for success; no
 * rows, no launch.  Every pointer is device memory.  A row's bits are a function of its shape and
 * values only.  What is added to a residual has the bits of the CPU back end; rms_norm adds in an
 * order of its own. */
#ifndef BT_DEVICE_CUDA_ROWS_H
#define BT_DEVICE_CUDA_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "core/bf16.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = bf16(weight * bf16(x / sqrt(mean(x^2) + eps))), [rows, dim]; y may be x. */
int bt_cuda_rms_norm(void *stream, uint32_t rows, uint32_t dim, const bt_bf16 *x, size_t ld_x,
                     const bt_bf16 *weight, float eps, bt_bf16 *y, size_t ld_y);
/* residual += x in fp32, rounded; y is rms_norm of that, with its bits.  [rows, dim]; y may be x.
 */
int bt_cuda_add_norm(void *stream, uint32_t rows, uint32_t dim, const bt_bf16 *x, bt_bf16 *residual,
                     const bt_bf16 *weight, float eps, bt_bf16 *y);
/* y[r, :] = table[index[r], :] */
int bt_cuda_gather_rows(void *stream, uint32_t rows, uint32_t dim, const bt_bf16 *table,
                        const uint32_t *index, bt_bf16 *y);

#ifdef __cplusplus
}
#endif
#endif
