/* device/cuda/device_cuda.h - what the files of the CUDA back end share. */
#ifndef BT_DEVICE_CUDA_DEVICE_CUDA_H
#define BT_DEVICE_CUDA_DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include "device/cpu/pool.h"
#include "device/cuda/launch.h"
#include "device/sampling.h"

enum {
    BT_CUDA_RING_PARTS    = 4,
    BT_CUDA_RING_PART     = 2 << 20,
    BT_CUDA_ROWS_BYTES    = 16 << 20, /* of one of the two buffers for weights */
    BT_CUDA_STAGING_BYTES = BT_CUDA_RING_PARTS * BT_CUDA_RING_PART + 2 * BT_CUDA_ROWS_BYTES
};

/* Pinned host memory, owned, as is the rest. */
typedef struct {
    uint8_t     *ring; /* [BT_CUDA_RING_PARTS][BT_CUDA_RING_PART]: lists on their way */
    uint32_t     part;
    size_t       used;                     /* of the part */
    cudaEvent_t  left[BT_CUDA_RING_PARTS]; /* the part may be filled again */
    void        *rows[2];                  /* weights on their way */
    cudaEvent_t  sent[2];                  /* the buffer may be filled again */
    uint32_t     turn;                     /* the buffer that is next */
    bt_cpu_pool *fillers;
} bt_cuda_staging;

typedef struct {
    bt_device       super;
    int             gpu;
    cudaStream_t    stream;            /* where work goes now: main's or beside's */
    cudaStream_t    main, beside;      /* owned */
    cudaEvent_t     forked, done;      /* owned: the fork; the end of what is beside */
    cudaEvent_t     marks[BT_N_MARKS]; /* owned */
    bool            capturing;
    char            arithmetic[48], bus_id[32], uuid[33];
    uint32_t       *index; /* owned, device: of gather_rows */
    bt_cuda_staging staging;
} bt_device_cuda;

/* staging.c.  After an error of init() fini() gives back what there is. */
bt_status bt_cuda_staging_init(bt_cuda_staging *s);
void      bt_cuda_staging_fini(bt_cuda_staging *s);
/* host_src is free again when the call returns, unless it is longer than a part of the ring and
 * pinned. */
bt_status bt_cuda_staging_upload(bt_device_cuda *cuda, void *dst, const void *host_src,
                                 size_t bytes);
/* Makes row n, from several threads. */
typedef void (*bt_cuda_row_fn)(void *ctx, uint32_t n, void *row);
/* dst[n rows] on the device, without gaps. */
bt_status bt_cuda_staging_fill(bt_device *dev, uint32_t n, size_t row_bytes, bt_cuda_row_fn row,
                               void *ctx, void *dst);
/* bt_device_upload_rows(). */
bt_status bt_cuda_staging_rows(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                               void *ctx, bt_bf16 *dst);

/* products.c: bt_device_gemm() and bt_device_ffn(). */
bt_status bt_cuda_products(bt_device *dev, bt_role role, uint32_t n_gemms, const bt_gemm *gemms);
bt_status bt_cuda_blocks(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                         bt_bf16 *h, bt_bf16 *act);

extern const bt_sampling_ops bt_cuda_sampling_ops; /* sampling.c */
extern const bt_graph_ops    bt_cuda_graph_ops;    /* graph.c */

#endif
