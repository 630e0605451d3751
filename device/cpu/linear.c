#include "device/cpu/linear.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/minmax.h"

/* Rows of scratch lie a line further apart than their length, which is often a power of two: they
 * would compete for one set of the cache. */
enum { BLOCK_ROWS = 16, GAP = 32 };

typedef struct {
    const bt_cpu_row_kernels *kernels;
    uint32_t                  n, k;
    void                     *packed;
    bt_cpu_rows               rows;
    void                     *scratch; /* [n_threads][BLOCK_ROWS][k + GAP] weights */
    float                    *scales;  /* of e4m3: [n_threads][2][ld]: of a row, and of the first */
    atomic_uint               n_strange; /* blocks whose rows do not have the same scales */
} pack_job;

static void pack_block(void *ctx, uint32_t chunk, uint32_t member)
{
    const pack_job *job = ctx;
    uint32_t        k = job->k, n0 = chunk * BLOCK_ROWS;
    uint32_t        n     = bt_min_u32(job->n - n0, BLOCK_ROWS);
    size_t          ld    = k + GAP;
    bt_bf16        *block = (bt_bf16 *)job->scratch + member * BLOCK_ROWS * ld;

    for (uint32_t j = 0; j < n; j++)
        job->rows.bf16(job->rows.ctx, n0 + j, block + j * ld);
    job->kernels->pack_rows(block, ld, n, k, (bt_bf16 *)job->packed + bt_cpu_packed_elems(n0, k));
}

/* 16 rows of e4m3 in the order of kernels.h: two k of a row follow each other, so they go as one.
 */
static void pack_bytes(const uint8_t *rows, size_t ld, uint32_t k, uint8_t *packed)
{
    for (uint32_t k0 = 0; k0 < bt_cpu_pad(k, 32); k0 += 4)
        for (uint32_t l = 0; l < 4; l++)
            for (uint32_t h = 0; h < 2; h++)
                for (uint32_t j = 0; j < 4; j++, packed += 2)
                    memcpy(packed, rows + (4 * l + j) * ld + k0 + 2 * h, 2);
}

static void pack_fp8_block(void *ctx, uint32_t chunk, uint32_t member)
{
    pack_job *job = ctx;
    uint32_t  k = job->k, n0 = chunk * BLOCK_ROWS;
    uint32_t  n  = bt_min_u32(job->n - n0, BLOCK_ROWS);
    size_t    ld = bt_cpu_pad(k, 32) + GAP, n_scales = bt_cpu_scale_ld(k);
    uint8_t  *block = (uint8_t *)job->scratch + member * BLOCK_ROWS * ld;
    float    *scale = job->scales + member * 2 * n_scales, *first = scale + n_scales;
    float    *out = (float *)(void *)((uint8_t *)job->packed + bt_cpu_packed_elems(job->n, k));

    memset(block, 0, BLOCK_ROWS * ld);
    for (uint32_t j = 0; j < n; j++) {
        job->rows.fp8(job->rows.ctx, n0 + j, block + j * ld, j == 0 ? first : scale);
        if (j != 0 && memcmp(first, scale, n_scales * sizeof(*scale)) != 0)
            atomic_fetch_add(&job->n_strange, 1);
    }
    for (size_t i = 0; i < n_scales; i++)
        if (!isfinite(first[i]) || signbit(first[i])) atomic_fetch_add(&job->n_strange, 1);
    pack_bytes(block, ld, k, (uint8_t *)job->packed + bt_cpu_packed_elems(n0, k));
    memcpy(out + chunk * n_scales, first, n_scales * sizeof(*first));
}

bt_status bt_cpu_linear_pack(bt_device *dev, uint32_t n, uint32_t k, bt_cpu_rows rows, void *packed)
{
    bt_status    st        = BT_OK;
    bt_cpu_pool *pool      = bt_device_cpu_pool(dev);
    bool         fp8       = rows.fp8 != NULL;
    uint32_t     n_threads = bt_cpu_pool_n_threads(pool);
    pack_job     job       = {
                  .kernels = bt_device_cpu_table(dev)->rows, .n = n, .k = k, .packed = packed, .rows = rows};

    job.scratch = bt_calloc((size_t)n_threads * BLOCK_ROWS * (bt_cpu_pad(k, 32) + GAP),
                            fp8 ? 1 : sizeof(bt_bf16));
    if (fp8) job.scales = bt_calloc(n_threads * 2 * bt_cpu_scale_ld(k), sizeof(*job.scales));
    BT_REQUIRE(job.scratch != NULL && (job.scales != NULL || !fp8), BT_ERR_NO_MEMORY,
               "rows of a weight matrix with k = %u", k);
    bt_cpu_pool_run(pool, bt_cpu_pad(n, BLOCK_ROWS) / BLOCK_ROWS, fp8 ? pack_fp8_block : pack_block,
                    &job);
    BT_REQUIRE(
        atomic_load(&job.n_strange) == 0, BT_ERR_INVALID_ARG,
        "a weight matrix [%u, %u] of e4m3: expected finite scales of 0 or more, the same for "
        "16 rows, found others at %u places",
        n, k, atomic_load(&job.n_strange));
out:
    bt_free(job.scales);
    bt_free(job.scratch);
    return st;
}

size_t bt_cpu_linear_bytes(uint32_t n, uint32_t k, bool fp8)
{
    size_t elems = bt_cpu_packed_elems(n, k);

    return fp8 ? elems + bt_cpu_n_scales(n, k) * sizeof(float) : elems * sizeof(bt_bf16);
}

static bt_status create_header(uint32_t n, uint32_t k, bool fp8, bt_linear **linear_out)
{
    bt_status  st = BT_OK;
    bt_linear *linear;

    BT_REQUIRE(n >= 1 && k >= 1 && n <= INT32_MAX && k <= INT32_MAX, BT_ERR_INVALID_ARG,
               "a weight matrix of [%u, %u]", n, k);
    linear = bt_calloc(1, sizeof(*linear));
    BT_REQUIRE(linear != NULL, BT_ERR_NO_MEMORY, "weight matrix header");
    linear->n     = n;
    linear->k     = k;
    linear->bytes = bt_cpu_linear_bytes(n, k, fp8);
    *linear_out   = linear;
out:
    return st;
}

static void set_packed(bt_linear *linear, bool fp8, void *packed)
{
    linear->packed = packed;
    if (fp8)
        linear->scale =
            (float *)(void *)((uint8_t *)packed + bt_cpu_packed_elems(linear->n, linear->k));
}

bt_status bt_cpu_linear_create(bt_device *dev, uint32_t n, uint32_t k, bt_cpu_rows rows,
                               bt_linear **linear_out)
{
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;
    bool       fp8    = rows.fp8 != NULL;

    BT_TRY(create_header(n, k, fp8, &linear));
    linear->packed = bt_calloc_aligned(bt_linear_bytes(linear), 1);
    BT_REQUIRE(linear->packed != NULL, BT_ERR_NO_MEMORY, "weight matrix of %zu bytes",
               bt_linear_bytes(linear));
    set_packed(linear, fp8, linear->packed);
    BT_TRY(bt_cpu_linear_pack(dev, n, k, rows, linear->packed));
    *linear_out = linear;
    linear      = NULL;
out:
    bt_cpu_linear_destroy(linear);
    return st;
}

bt_status bt_cpu_linear_over(uint32_t n, uint32_t k, bool fp8, const void *packed,
                             bt_linear **linear_out)
{
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;
    void      *mem;

    BT_TRY(create_header(n, k, fp8, &linear));
    memcpy(&mem, &packed, sizeof(packed)); /* only ever read */
    set_packed(linear, fp8, mem);
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

const void *bt_cpu_linear_columns(const bt_linear *linear, uint32_t n0)
{
    return (const char *)linear->packed +
           bt_cpu_packed_elems(n0, linear->k) * (linear->scale != NULL ? 1 : sizeof(bt_bf16));
}

const float *bt_cpu_linear_scale(const bt_linear *linear, uint32_t n0)
{
    return linear->scale == NULL ? NULL : linear->scale + bt_cpu_n_scales(n0, linear->k);
}

const bt_bf16 *bt_linear_packed(const bt_linear *linear)
{
    BT_ASSERT(linear->scale == NULL);
    return linear->packed;
}
