#include "device/cpu/linear.h"

#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"

/* Rows of scratch lie a line further apart than their length, which is often a power of two: they
 * would compete for one set of the cache. */
enum { BLOCK_ROWS = 16, GAP = 32 };

typedef struct {
    const bt_cpu_row_kernels *kernels;
    uint32_t                  n, k;
    bt_bf16                  *packed;
    bt_linear_row_fn          rows;
    void                     *ctx;
    bt_bf16                  *scratch; /* [n_threads][BLOCK_ROWS][k + GAP] */
} pack_job;

static void pack_block(void *ctx, uint32_t chunk, uint32_t member)
{
    const pack_job *job = ctx;
    uint32_t        k = job->k, n0 = chunk * BLOCK_ROWS;
    uint32_t        n     = bt_min_u32(job->n - n0, BLOCK_ROWS);
    size_t          ld    = k + GAP;
    bt_bf16        *block = job->scratch + member * BLOCK_ROWS * ld;

    for (uint32_t j = 0; j < n; j++)
        job->rows(job->ctx, n0 + j, block + j * ld);
    job->kernels->pack_rows(block, ld, n, k, job->packed + bt_cpu_packed_elems(n0, k));
}

bt_status bt_cpu_linear_pack(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                             void *ctx, bt_bf16 *packed)
{
    bt_status    st   = BT_OK;
    bt_cpu_pool *pool = bt_device_cpu_pool(dev);
    pack_job     job  = {.kernels = bt_device_cpu_table(dev)->rows,
                         .n       = n,
                         .k       = k,
                         .packed  = packed,
                         .rows    = rows,
                         .ctx     = ctx};

    job.scratch = bt_calloc((size_t)bt_cpu_pool_n_threads(pool) * BLOCK_ROWS * (k + GAP),
                            sizeof(*job.scratch));
    BT_REQUIRE(job.scratch != NULL, BT_ERR_NO_MEMORY, "rows of a weight matrix with k = %u", k);
    bt_cpu_pool_run(pool, bt_cpu_pad(n, BLOCK_ROWS) / BLOCK_ROWS, pack_block, &job);
out:
    bt_free(job.scratch);
    return st;
}

static bt_status create_header(uint32_t n, uint32_t k, bt_linear **linear_out)
{
    bt_status  st = BT_OK;
    bt_linear *linear;

    BT_REQUIRE(n >= 1 && k >= 1 && n <= INT32_MAX && k <= INT32_MAX, BT_ERR_INVALID_ARG,
               "a weight matrix of [%u, %u]", n, k);
    linear = bt_calloc(1, sizeof(*linear));
    BT_REQUIRE(linear != NULL, BT_ERR_NO_MEMORY, "weight matrix header");
    linear->n     = n;
    linear->k     = k;
    linear->bytes = bt_cpu_packed_elems(n, k) * sizeof(*linear->packed);
    *linear_out   = linear;
out:
    return st;
}

bt_status bt_cpu_linear_create(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                               void *ctx, bt_linear **linear_out)
{
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;

    BT_TRY(create_header(n, k, &linear));
    linear->packed = bt_calloc_aligned(bt_linear_bytes(linear), 1);
    BT_REQUIRE(linear->packed != NULL, BT_ERR_NO_MEMORY, "weight matrix of %zu bytes",
               bt_linear_bytes(linear));
    BT_TRY(bt_cpu_linear_pack(dev, n, k, rows, ctx, linear->packed));
    *linear_out = linear;
    linear      = NULL;
out:
    bt_cpu_linear_destroy(linear);
    return st;
}

bt_status bt_cpu_linear_over(uint32_t n, uint32_t k, const bt_bf16 *packed, bt_linear **linear_out)
{
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;

    BT_TRY(create_header(n, k, &linear));
    memcpy(&linear->packed, &packed, sizeof(packed)); /* only ever read */
    linear->borrowed = true;
    *linear_out      = linear;
out:
    return st;
}

void bt_cpu_linear_destroy(bt_linear *linear)
{
    if (linear == NULL) return;
    if (!linear->borrowed) bt_free(linear->packed);
    bt_free(linear);
}

const bt_bf16 *bt_linear_packed(const bt_linear *linear) { return linear->packed; }
