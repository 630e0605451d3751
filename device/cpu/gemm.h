/* device/cpu/gemm.h - products that run together, for gemm.c and ffn.c only. */
#ifndef BT_DEVICE_CPU_GEMM_H
#define BT_DEVICE_CPU_GEMM_H

#include "device/cpu/device_cpu.h"

enum { BT_CPU_UNTILED_ROWS = 16 }; /* x of so few rows is not worth making into tiles */

typedef struct {
    const bt_device_cpu *dev;
    bt_role              role;
    uint32_t             n_gemms;
    const bt_gemm       *gemms; /* [n_gemms] */
    bt_bf16             *tiles; /* where x that becomes tiles lies, product after product */
    /* The first products of feed-forward blocks, or the second ones: */
    bool                   all_tiles; /* also x of few rows is in tiles */
    bt_bf16               *act;    /* tiles for SwiGLU of gate and up, block after block; or NULL */
    const uint32_t *const *x_rows; /* [n_gemms] which row of x is row i, or NULL; or NULL */
    /* Set by run(). */
    uint32_t finer;    /* how often the widths of chunks are halved, */
    uint32_t n_chunks; /* and how many of all products there are then */
} bt_cpu_gemms;

/* Makes tiles of each x that wants them; one that several products read, one after the other, once.
 */
void bt_cpu_gemms_tile(bt_cpu_gemms *job);
/* Multiplies, once the tiles are there. */
void bt_cpu_gemms_run(bt_cpu_gemms *job);

#endif
