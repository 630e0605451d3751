/* device/cpu/linear.h - a weight matrix packed for the CPU kernels. */
#ifndef BT_DEVICE_CPU_LINEAR_H
#define BT_DEVICE_CPU_LINEAR_H

#include "device/cpu/kernels.h"
#include "device/linear.h"

/* Packs on the device's pool; see bt_device_linear_create(). */
bt_status bt_cpu_linear_create(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                               void *ctx, bt_linear **linear_out);
/* Packs into zeroed memory of bt_cpu_packed_elems(n, k) elements, aligned to 64 bytes. */
bt_status bt_cpu_linear_pack(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                             void *ctx, bt_bf16 *packed);
/* A matrix over memory that has been packed; borrowed until destroy(), and only read. */
bt_status bt_cpu_linear_over(uint32_t n, uint32_t k, const bt_bf16 *packed, bt_linear **linear_out);
void      bt_cpu_linear_destroy(bt_linear *linear);

#endif
