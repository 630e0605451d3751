/* device/cuda/staging.c - host memory on its way to the device: short lists through a ring of
 * pinned memory, weights through two pinned buffers that several threads fill. */
#include <string.h>

#include "core/machine.h"
#include "device/cuda/device_cuda.h"

enum {
    ALIGN          = 64,
    MAX_FILLERS    = 8,
    BYTES_IN_CHUNK = 128 << 10 /* that are worth a thread's while */
};

/* ---- lists */

/* The next bytes of the ring, free.  What a part held has left when its event has come. */
static bt_status take(bt_device_cuda *cuda, size_t bytes, uint8_t **at_out)
{
    bt_status        st = BT_OK;
    bt_cuda_staging *s  = &cuda->staging;

    if (bytes > BT_CUDA_RING_PART - s->used) {
        BT_TRY(CUDA(cudaEventRecord(s->left[s->part], cuda->stream)));
        s->part = (s->part + 1) % BT_CUDA_RING_PARTS;
        s->used = 0;
        BT_TRY(CUDA(cudaEventSynchronize(s->left[s->part])));
    }
    *at_out = s->ring + (size_t)s->part * BT_CUDA_RING_PART + s->used;
    s->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
out:
    return st;
}

bt_status bt_cuda_staging_upload(bt_device_cuda *cuda, void *dst, const void *host_src,
                                 size_t bytes)
{
    bt_status st = BT_OK;
    uint8_t  *at = NULL;

    BT_ASSERT(!cuda->capturing && cuda->stream == cuda->main); /* a part's event is of that one */
    if (bytes <= BT_CUDA_RING_PART) {
        BT_TRY(take(cuda, bytes, &at));
        memcpy(at, host_src, bytes);
        host_src = at;
    }
    BT_TRY(CUDA(cudaMemcpyAsync(dst, host_src, bytes, cudaMemcpyHostToDevice, cuda->stream)));
out:
    return st;
}

/* ---- weights */

typedef struct {
    bt_cuda_row_fn row;
    void          *ctx;
    uint32_t       first, n, per_chunk;
    size_t         row_bytes;
    uint8_t       *to; /* [n] rows */
} filling;

static void fill(void *ctx, uint32_t chunk, uint32_t member)
{
    const filling *f   = ctx;
    uint32_t       row = chunk * f->per_chunk;
    uint32_t       end = f->n - row < f->per_chunk ? f->n : row + f->per_chunk;

    (void)member;
    for (; row < end; row++)
        f->row(f->ctx, f->first + row, f->to + row * f->row_bytes);
}

bt_status bt_cuda_staging_fill(bt_device *dev, uint32_t n, size_t row_bytes, bt_cuda_row_fn row,
                               void *ctx, void *dst)
{
    bt_status        st       = BT_OK;
    bt_device_cuda  *cuda     = (bt_device_cuda *)dev;
    bt_cuda_staging *s        = &cuda->staging;
    uint32_t         per_turn = (uint32_t)(BT_CUDA_ROWS_BYTES / row_bytes);

    BT_REQUIRE(n >= 1 && per_turn >= 1, BT_ERR_INVALID_ARG, "%u rows of %zu bytes for the device",
               n, row_bytes);
    for (uint32_t at = 0; at < n; at += per_turn, s->turn = 1 - s->turn) {
        filling f = {.row       = row,
                     .ctx       = ctx,
                     .first     = at,
                     .n         = n - at < per_turn ? n - at : per_turn,
                     .row_bytes = row_bytes,
                     .per_chunk = (uint32_t)(BYTES_IN_CHUNK / row_bytes + 1),
                     .to        = s->rows[s->turn]};

        BT_TRY(CUDA(cudaEventSynchronize(s->sent[s->turn]))); /* what it held before has left */
        bt_cpu_pool_run(s->fillers, (f.n - 1) / f.per_chunk + 1, fill, &f);
        BT_TRY(CUDA(cudaMemcpyAsync((uint8_t *)dst + at * row_bytes, f.to, f.n * row_bytes,
                                    cudaMemcpyHostToDevice, cuda->stream)));
        BT_TRY(CUDA(cudaEventRecord(s->sent[s->turn], cuda->stream)));
    }
out:
    return st;
}

typedef struct {
    bt_linear_row_fn rows;
    void            *ctx;
} bf16_rows;

static void bf16_row(void *ctx, uint32_t n, void *row)
{
    const bf16_rows *r = ctx;

    r->rows(r->ctx, n, row);
}

bt_status bt_cuda_staging_rows(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                               void *ctx, bt_bf16 *dst)
{
    return bt_cuda_staging_fill(dev, n, k * sizeof(bt_bf16), bf16_row, &(bf16_rows){rows, ctx},
                                dst);
}

/* ---- life */

static bt_status event_create(cudaEvent_t *event_out)
{
    return CUDA(cudaEventCreateWithFlags(event_out, cudaEventDisableTiming));
}

bt_status bt_cuda_staging_init(bt_cuda_staging *s)
{
    bt_status st      = BT_OK;
    void     *mem     = NULL;
    uint32_t  n_cores = bt_machine_cores();

    BT_TRY(bt_cpu_pool_create(n_cores < MAX_FILLERS ? n_cores : MAX_FILLERS, &s->fillers));
    BT_TRY(CUDA(
        cudaHostAlloc(&mem, (size_t)BT_CUDA_RING_PARTS * BT_CUDA_RING_PART, cudaHostAllocDefault)));
    s->ring = mem;
    for (int i = 0; i < BT_CUDA_RING_PARTS; i++)
        BT_TRY(event_create(&s->left[i]));
    for (int i = 0; i < 2; i++) {
        BT_TRY(CUDA(cudaHostAlloc(&mem, BT_CUDA_ROWS_BYTES, cudaHostAllocDefault)));
        s->rows[i] = mem;
        BT_TRY(event_create(&s->sent[i]));
    }
out:
    return st;
}

void bt_cuda_staging_fini(bt_cuda_staging *s)
{
    for (int i = 0; i < BT_CUDA_RING_PARTS; i++)
        if (s->left[i] != NULL) (void)cudaEventDestroy(s->left[i]);
    for (int i = 0; i < 2; i++) {
        if (s->sent[i] != NULL) (void)cudaEventDestroy(s->sent[i]);
        if (s->rows[i] != NULL) (void)cudaFreeHost(s->rows[i]);
    }
    if (s->ring != NULL) (void)cudaFreeHost(s->ring);
    bt_cpu_pool_destroy(s->fillers);
}
