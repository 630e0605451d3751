/* device/cpu/linear.h - a weight matrix packed for the CPU kernels. */
#ifndef BT_DEVICE_CPU_LINEAR_H
#define BT_DEVICE_CPU_LINEAR_H

#include "device/cpu/kernels.h"
#include "device/linear.h"

/* Where a matrix's rows come from: the one of its kind. */
typedef struct {
    bt_weight_kind    kind; /* BF12: of bf16 rows */
    bt_linear_row_fn  bf16;
    bt_linear_fp8_fn  fp8; /* scales are 0 or more, the same for 16 rows from a multiple of it on */
    bt_linear_int4_fn int4;
    void             *ctx;
} bt_cpu_rows;

/* Packs on the device's pool; see bt_device_linear_create() and its like.  OK, and *linear_out as
 * it was: in 12 bits the matrix cannot be packed. */
bt_status bt_cpu_linear_create(bt_device *dev, uint32_t n, uint32_t k, bt_cpu_rows rows,
                               bt_linear **linear_out);
/* Bytes of the packed matrix, with what stands beside it. */
size_t bt_cpu_linear_bytes(uint32_t n, uint32_t k, bt_weight_kind kind);
/* Packs into zeroed memory of so many bytes, aligned to 64.  In 12 bits not every matrix can be. */
bt_status bt_cpu_linear_pack(bt_device *dev, uint32_t n, uint32_t k, bt_cpu_rows rows,
                             void *packed);
/* false: it could not be packed in 12 bits, or what an earlier start has kept of it is damaged
 * where kernels would look for rare weights without end: it is to be in bf16. */
bool bt_cpu_linear_is_whole(uint32_t n, uint32_t k, bt_weight_kind kind, const void *packed);
/* A matrix over memory that has been packed; borrowed until destroy(), and only read. */
bt_status bt_cpu_linear_over(uint32_t n, uint32_t k, bt_weight_kind kind, const void *packed,
                             bt_linear **linear_out);
void      bt_cpu_linear_destroy(bt_linear *linear);

/* For kernels: the columns from n0 on, a multiple of 16, and what stands beside them. */
const void *bt_cpu_linear_columns(const bt_linear *linear, uint32_t n0);
const void *bt_cpu_linear_side(const bt_linear *linear, uint32_t n0);

#endif
