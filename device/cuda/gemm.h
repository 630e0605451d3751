/* device/cuda/gemm.h - matrix products with weights, many groups in one launch.
 *
 * y[r, n] = x[r, k] W_g[n, k]^T for the rows r of each group g: one product is a group; so are the
 * heads of a layer and the experts of a rank.  bf16 rows and weights of bf16, e4m3 or 4 bits in,
 * fp32 accumulation on tensor cores.
 *
 * Arithmetic "mma16": an element's accumulator starts at +0 and takes k in steps of 16, ascending;
 * within a step the instruction adds, as its GPU does.  A narrow weight counts as bf16(weight * its
 * scale), so that the bits are those of weights widened before.  Tiles are wider for more rows; an
 * element's bits do not depend on it.  A group without rows costs nothing. */
#ifndef BT_DEVICE_CUDA_GEMM_H
#define BT_DEVICE_CUDA_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include "core/bf16.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_CUDA_MAX_GROUPS = 256 };

/* BT_CUDA_OUT_SWIGLU: W is [2 n, k], gate rows before up rows; y[r, i] = bf16(silu(bf16(gate_i)) *
 * bf16(up_i)), i < n. */
typedef enum { BT_CUDA_OUT_BF16, BT_CUDA_OUT_F32, BT_CUDA_OUT_SWIGLU } bt_cuda_out;

typedef struct {
    uint32_t       n, k, n_groups; /* n_groups <= BT_CUDA_MAX_GROUPS */
    bt_cuda_out    out;
    bt_weight_kind kind; /* of w */
    /* Rows.  With row_at (device, [n_groups + 1]) group g has rows row_at[g] .. row_at[g + 1] of x
     * and y, max_rows in all; else each group has max_rows rows, and those of g begin at
     * x + g x_group and y + g y_group elements. */
    uint32_t        max_rows;
    const uint32_t *row_at;
    uint32_t likely_rows; /* of a group, with row_at: what tiles are made for; 0: an even share of
                             max_rows */
    size_t          x_group, y_group;
    const uint32_t *x_row; /* device, or NULL: row r reads row x_row[r] of x */
    const bt_bf16  *x;     /* [.., k], row stride ld_x elements */
    size_t          ld_x;
    void           *y; /* row stride ld_y elements */
    size_t          ld_y;
    const void     *w[BT_CUDA_MAX_GROUPS]; /* device, each [n, k] or [2 n, k], no gaps; of 4 bits
                                              rows are what bt_linear_int4_fn says */
    /* Device.  Of bf16 NULL.  Of e4m3 fp32, for row r scale [r, k / 128], [.., ceil(k / 128)]; of 4
     * bits bf16, scale [r, k / 32], [.., k / 32]. */
    const void *w_scale[BT_CUDA_MAX_GROUPS];
} bt_cuda_gemm;

/* Enqueues on `stream`; returns a cudaError_t.  `g` is borrowed during the call.
 * cudaErrorInvalidValue: a group lacks scales or has any against `kind`, or k of 4 bits is no
 * multiple of 32. */
int bt_cuda_gemm_run(void *stream, const bt_cuda_gemm *g);

#ifdef __cplusplus
}
#endif
#endif
