/* device/cpu/device_cpu.c - the CPU back end: bt_device_ops on the pool and a kernel table. */
#include "device/cpu/device_cpu.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/machine.h"
#include "device/cpu/linear.h"

enum { CHUNK_ELEMS = 32768 };

static bt_status cpu_alloc(bt_device *dev, size_t bytes, void **ptr_out)
{
    bt_status st  = BT_OK;
    void     *ptr = bt_calloc_aligned(bytes, 1);

    (void)dev;
    BT_REQUIRE(ptr != NULL, BT_ERR_NO_MEMORY,
               "%zu bytes of weights, pages or a step's work space on the CPU device", bytes);
    *ptr_out = ptr;
out:
    return st;
}

static void cpu_free(bt_device *dev, void *ptr)
{
    (void)dev;
    bt_free(ptr);
}

static bt_status cpu_memory(bt_device *dev, uint64_t *free_out, uint64_t *all_out)
{
    (void)dev;
    *free_out = *all_out = 0;
    return BT_OK;
}

static bt_status cpu_copy(bt_device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    if (bytes != 0) memcpy(dst, src, bytes);
    return BT_OK;
}

typedef struct {
    bt_linear_row_fn rows;
    void            *ctx;
    uint32_t         k;
    bt_bf16         *dst;
} row_upload;

static void upload_row(void *ctx, uint32_t chunk, uint32_t member)
{
    const row_upload *u = ctx;

    (void)member;
    u->rows(u->ctx, chunk, u->dst + (size_t)chunk * u->k);
}

static bt_status cpu_upload_rows(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                                 void *ctx, bt_bf16 *dst)
{
    row_upload u = {rows, ctx, k, dst};

    bt_cpu_pool_run(((bt_device_cpu *)dev)->pool, n, upload_row, &u);
    return BT_OK;
}

static bt_status cpu_sync(bt_device *dev)
{
    (void)dev;
    return BT_OK;
}

static bt_status cpu_mark(bt_device *dev, uint32_t i)
{
    (void)dev, (void)i;
    return BT_OK;
}

static void *cpu_stream(bt_device *dev)
{
    (void)dev;
    return NULL;
}

static bt_status cpu_checksum(bt_device *dev, void *stream, const void *data, size_t bytes,
                              uint64_t seed, uint64_t *sum)
{
    (void)dev, (void)stream;
    *sum = bt_checksum(data, bytes, seed);
    return BT_OK;
}

static bt_status cpu_linear_create(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                                   void *ctx, bt_linear **linear_out)
{
    return bt_cpu_linear_create(
        dev, n, k, (bt_cpu_rows){.kind = BT_WEIGHT_BF16, .bf16 = rows, .ctx = ctx}, linear_out);
}

static bt_status cpu_linear_create_fp8(bt_device *dev, uint32_t n, uint32_t k,
                                       bt_linear_fp8_fn rows, void *ctx, bt_linear **linear_out)
{
    return bt_cpu_linear_create(
        dev, n, k, (bt_cpu_rows){.kind = BT_WEIGHT_FP8, .fp8 = rows, .ctx = ctx}, linear_out);
}

static bt_status cpu_linear_create_int4(bt_device *dev, uint32_t n, uint32_t k,
                                        bt_linear_int4_fn rows, void *ctx, bt_linear **linear_out)
{
    return bt_cpu_linear_create(
        dev, n, k, (bt_cpu_rows){.kind = BT_WEIGHT_INT4, .int4 = rows, .ctx = ctx}, linear_out);
}

static void cpu_linear_destroy(bt_device *dev, bt_linear *linear)
{
    (void)dev;
    bt_cpu_linear_destroy(linear);
}

/* A row operation cut into chunks of whole rows. */
typedef struct {
    const bt_cpu_row_kernels *kernels;
    uint32_t                  rows, rows_per_chunk, dim;
    const bt_bf16            *x;
    size_t                    ld_x;
    bt_bf16                  *residual;
    const bt_bf16            *weight;
    float                     eps;
    const uint32_t           *index;
    bt_bf16                  *y;
    size_t                    ld_y;
    void (*one)(const void *job, uint32_t row);
} row_job;

static void run_rows(void *ctx, uint32_t chunk, uint32_t member)
{
    const row_job *job = ctx;
    uint32_t       r = chunk * job->rows_per_chunk, left = job->rows - r;

    (void)member;
    for (uint32_t end = r + (left < job->rows_per_chunk ? left : job->rows_per_chunk); r < end; r++)
        job->one(job, r);
}

static bt_status over_rows(bt_device *dev, row_job *job)
{
    bt_device_cpu *cpu = (bt_device_cpu *)dev;

    if (job->rows == 0 || job->dim == 0) return BT_OK;
    job->kernels        = cpu->kernels->rows;
    job->rows_per_chunk = job->dim >= CHUNK_ELEMS ? 1 : CHUNK_ELEMS / job->dim;
    bt_cpu_pool_run(cpu->pool, (job->rows - 1) / job->rows_per_chunk + 1, run_rows, job);
    return BT_OK;
}

static void rms_norm_one(const void *ctx, uint32_t row)
{
    const row_job *job = ctx;

    job->kernels->rms_norm_row(job->x + row * job->ld_x, job->weight, job->dim, job->eps,
                               job->y + row * job->ld_y);
}

static bt_status cpu_rms_norm(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *x,
                              size_t ld_x, const bt_bf16 *weight, float eps, bt_bf16 *y,
                              size_t ld_y)
{
    row_job job = {.rows   = rows,
                   .dim    = dim,
                   .x      = x,
                   .ld_x   = ld_x,
                   .weight = weight,
                   .eps    = eps,
                   .y      = y,
                   .ld_y   = ld_y,
                   .one    = rms_norm_one};

    return over_rows(dev, &job);
}

static void add_norm_one(const void *ctx, uint32_t row)
{
    const row_job *job = ctx;
    size_t         at  = (size_t)row * job->dim;

    job->kernels->add_norm_row(job->x + at, job->residual + at, job->weight, job->dim, job->eps,
                               job->y + at);
}

static bt_status cpu_add_norm(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *x,
                              bt_bf16 *residual, const bt_bf16 *weight, float eps, bt_bf16 *y)
{
    row_job job = {.rows     = rows,
                   .dim      = dim,
                   .x        = x,
                   .residual = residual,
                   .weight   = weight,
                   .eps      = eps,
                   .y        = y,
                   .one      = add_norm_one};

    return over_rows(dev, &job);
}

static void swiglu_one(const void *ctx, uint32_t row)
{
    const row_job *job  = ctx;
    const bt_bf16 *gate = job->x + row * job->ld_x;

    job->kernels->swiglu_row(gate, gate + job->dim, job->dim, job->y + row * job->ld_y);
}

bt_status bt_cpu_swiglu(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *gate_up,
                        bt_bf16 *y)
{
    row_job job = {.rows = rows,
                   .dim  = dim,
                   .x    = gate_up,
                   .ld_x = 2 * (size_t)dim,
                   .y    = y,
                   .ld_y = dim,
                   .one  = swiglu_one};

    return over_rows(dev, &job);
}

static void gather_one(const void *ctx, uint32_t row)
{
    const row_job *job = ctx;

    memcpy(job->y + row * job->ld_y, job->x + job->index[row] * job->ld_x,
           job->dim * sizeof(*job->y));
}

static bt_status cpu_gather_rows(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *table,
                                 const uint32_t *index, bt_bf16 *y)
{
    row_job job = {.rows  = rows,
                   .dim   = dim,
                   .x     = table,
                   .ld_x  = dim,
                   .index = index,
                   .y     = y,
                   .ld_y  = dim,
                   .one   = gather_one};

    return over_rows(dev, &job);
}

static void cpu_destroy(bt_device *dev)
{
    bt_device_cpu *cpu = (bt_device_cpu *)dev;

    bt_cpu_pool_destroy(cpu->pool);
    bt_free(cpu->members);
    bt_free(cpu->scratch);
    bt_free(cpu->tiles);
    bt_free(cpu);
}

static const bt_device_ops CPU_OPS = {
    .name               = "cpu",
    .alloc              = cpu_alloc,
    .free               = cpu_free,
    .alloc_host         = cpu_alloc,
    .free_host          = cpu_free,
    .memory             = cpu_memory,
    .upload             = cpu_copy,
    .upload_rows        = cpu_upload_rows,
    .download           = cpu_copy,
    .sync               = cpu_sync,
    .mark               = cpu_mark,
    .await              = cpu_mark,
    .stream             = cpu_stream,
    .checksum           = cpu_checksum,
    .linear_create      = cpu_linear_create,
    .linear_create_fp8  = cpu_linear_create_fp8,
    .linear_create_int4 = cpu_linear_create_int4,
    .linear_destroy     = cpu_linear_destroy,
    .gemm               = bt_cpu_gemm,
    .ffn                = bt_cpu_ffn,
    .rms_norm           = cpu_rms_norm,
    .add_norm           = cpu_add_norm,
    .gather_rows        = cpu_gather_rows,
    .gather_rows_by     = cpu_gather_rows,
    .fork               = cpu_sync,
    .unfork             = cpu_sync,
    .join               = cpu_sync,
    .destroy            = cpu_destroy,
};

static bt_status create_members(bt_device_cpu *cpu)
{
    bt_status st     = BT_OK;
    size_t    floats = (size_t)BT_CPU_CHUNK_ROWS * BT_CPU_WIDE_COLS;

    cpu->members = bt_calloc_aligned(cpu->n_threads, sizeof(*cpu->members));
    cpu->scratch = bt_calloc_aligned(cpu->n_threads * floats, sizeof(*cpu->scratch));
    BT_REQUIRE(cpu->members != NULL && cpu->scratch != NULL, BT_ERR_NO_MEMORY,
               "scratch of %u compute threads", cpu->n_threads);
    if (cpu->kernels->mm_tiles != NULL) {
        cpu->tiles = bt_calloc_aligned(BT_CPU_TILE_ELEMS, sizeof(*cpu->tiles));
        BT_REQUIRE(cpu->tiles != NULL, BT_ERR_NO_MEMORY, "tiles of rows");
    }
    for (uint32_t t = 0; t < cpu->n_threads; t++)
        cpu->members[t].scratch = cpu->scratch + t * floats;
out:
    return st;
}

bt_status bt_device_cpu_create(const bt_device_cpu_options *opt, bt_device **dev_out)
{
    static const char *const ARITHMETIC[] = {[BT_CPU_DP2] = "dp2", [BT_CPU_TILE32] = "tile32"};
    bt_status                st           = BT_OK;
    bt_device_cpu           *cpu          = NULL;

    bt_cpu_flush_denormals();
    cpu = bt_calloc(1, sizeof(*cpu));
    BT_REQUIRE(cpu != NULL, BT_ERR_NO_MEMORY, "CPU device");
    cpu->super.ops         = &CPU_OPS;
    cpu->super.host_memory = true;
    cpu->super.fp8_rows    = BT_CPU_SCALE_COLS;
    cpu->n_threads         = opt->n_threads != 0 ? opt->n_threads : bt_machine_cores();
    cpu->kernels           = bt_cpu_kernels_find(opt->kernels);
    BT_REQUIRE(cpu->kernels != NULL, BT_ERR_UNSUPPORTED, "kernels \"%s\": this CPU has auto,%s",
               opt->kernels, bt_device_cpu_kernels());
    snprintf(cpu->arithmetic, sizeof(cpu->arithmetic), "prompt:%s,generated:%s",
             ARITHMETIC[cpu->kernels->arithmetic[BT_ROLE_PROMPT]],
             ARITHMETIC[cpu->kernels->arithmetic[BT_ROLE_GENERATED]]);
    cpu->super.arithmetic = cpu->arithmetic;
    cpu->super.bus_id     = "";
    cpu->super.uuid       = "";
    BT_TRY(create_members(cpu));
    BT_TRY(bt_cpu_pool_create(cpu->n_threads, &cpu->pool));
    *dev_out = &cpu->super;
    cpu      = NULL;
out:
    if (cpu != NULL) cpu_destroy(&cpu->super);
    return st;
}

const bt_cpu_kernels *bt_device_cpu_table(const bt_device *dev)
{
    BT_ASSERT(dev->ops == &CPU_OPS);
    return ((const bt_device_cpu *)dev)->kernels;
}

bt_cpu_pool *bt_device_cpu_pool(bt_device *dev)
{
    BT_ASSERT(dev->ops == &CPU_OPS);
    return ((bt_device_cpu *)dev)->pool;
}
