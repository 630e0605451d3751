/* device/cpu/linear.h - a weight matrix packed for the CPU kernels. */
#ifndef BT_DEVICE_CPU_LINEAR_H
#define BT_DEVICE_CPU_LINEAR_H

#include "device/cpu/kernels.h"
#include "device/linear.h"

/* Packs on the pool; see bt_device_linear_create(). */
bt_status bt_cpu_linear_create(bt_cpu_pool *pool, const bt_cpu_row_kernels *rows_kernels,
                               uint32_t n, uint32_t k, bt_linear_row_fn rows, void *ctx,
                               bt_linear **linear_out);
void      bt_cpu_linear_destroy(bt_linear *linear);

#endif
