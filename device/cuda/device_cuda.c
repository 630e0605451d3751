/* device/cuda/device_cuda.c - the CUDA back end: bt_device_ops on one GPU and one stream.
 *
 * Plain C on the CUDA runtime; kernels lie in the .cu files beside it.  Everything is enqueued on
 * the device's stream in order. */
#include "device/cuda/device_cuda.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "device/cuda/advice.h"
#include "device/cuda/checksum.h"
#include "device/cuda/module.h"
#include "device/cuda/rows.h"
#include "device/linear.h"

enum { INDEX_ROWS = 1 << 16 };

/* Where a CUDA code becomes ours: logged here, not seen above this folder. */
bt_status bt_cuda_status(int err, const char *what, const char *file, int line)
{
    bt_status st = err == cudaErrorMemoryAllocation ? BT_ERR_NO_MEMORY : BT_ERR_DEVICE;

    if (err == cudaSuccess) return BT_OK;
    (void)cudaGetLastError(); /* or the next launch would report this one again */
    bt_log_error(file, line, bt_status_str(st), "%s: %s%s", what,
                 cudaGetErrorString((cudaError_t)err), bt_cuda_advice((cudaError_t)err));
    return st;
}

static bt_device_cuda *self_of(bt_device *dev) { return (bt_device_cuda *)dev; }

static void *cuda_stream(bt_device *dev) { return self_of(dev)->stream; }

const void *bt_cuda_weights(const bt_linear *linear) { return linear->packed; }
const void *bt_cuda_weight_scales(const bt_linear *linear) { return linear->scale; }

/* ---- memory */

static bt_status cuda_alloc(bt_device *dev, size_t bytes, void **ptr_out)
{
    bt_status   st   = BT_OK;
    void       *ptr  = NULL;
    size_t      left = 0, all = 0;
    cudaError_t err = cudaMalloc(&ptr, bytes == 0 ? 1 : bytes);

    if (err == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&left, &all);
    }
    BT_REQUIRE(err != cudaErrorMemoryAllocation, BT_ERR_NO_MEMORY,
               "%zu bytes on GPU %d: %zu of its %zu bytes are free", bytes, self_of(dev)->gpu, left,
               all);
    BT_TRY(bt_cuda_status(err, "cudaMalloc", __FILE__, __LINE__));
    BT_TRY(CUDA(cudaMemsetAsync(ptr, 0, bytes == 0 ? 1 : bytes, self_of(dev)->stream)));
    *ptr_out = ptr;
    ptr      = NULL;
out:
    if (ptr != NULL) (void)cudaFree(ptr);
    return st;
}

static void cuda_free(bt_device *dev, void *ptr)
{
    (void)dev;
    (void)CUDA(cudaFree(ptr));
}

static bt_status cuda_alloc_host(bt_device *dev, size_t bytes, void **ptr_out)
{
    bt_status st  = BT_OK;
    void     *ptr = NULL;

    (void)dev;
    BT_TRY(CUDA(cudaHostAlloc(&ptr, bytes == 0 ? 1 : bytes, cudaHostAllocDefault)));
    memset(ptr, 0, bytes);
    *ptr_out = ptr;
out:
    return st;
}

static void cuda_free_host(bt_device *dev, void *ptr)
{
    (void)dev;
    (void)CUDA(cudaFreeHost(ptr));
}

static bt_status cuda_memory(bt_device *dev, uint64_t *free_out, uint64_t *all_out)
{
    bt_status st   = BT_OK;
    size_t    left = 0, all = 0;

    (void)dev;
    BT_TRY(CUDA(cudaMemGetInfo(&left, &all)));
    *free_out = left;
    *all_out  = all;
out:
    return st;
}

static bt_status cuda_upload(bt_device *dev, void *dst, const void *host_src, size_t bytes)
{
    if (bytes == 0) return BT_OK;
    return bt_cuda_staging_upload(self_of(dev), dst, host_src, bytes);
}

static bt_status cuda_download(bt_device *dev, void *host_dst, const void *src, size_t bytes)
{
    BT_ASSERT(!self_of(dev)->capturing);
    if (bytes == 0) return BT_OK;
    return CUDA(
        cudaMemcpyAsync(host_dst, src, bytes, cudaMemcpyDeviceToHost, self_of(dev)->stream));
}

static bt_status cuda_sync(bt_device *dev)
{
    return CUDA(cudaStreamSynchronize(self_of(dev)->stream));
}

static bt_status cuda_mark(bt_device *dev, uint32_t i)
{
    return CUDA(cudaEventRecord(self_of(dev)->marks[i], self_of(dev)->main));
}

static bt_status cuda_await(bt_device *dev, uint32_t i)
{
    return CUDA(cudaEventSynchronize(self_of(dev)->marks[i]));
}

static bt_status cuda_checksum(bt_device *dev, void *stream, const void *data, size_t bytes,
                               uint64_t seed, uint64_t *sum)
{
    (void)dev;
    return CUDA(bt_cuda_checksum(stream, data, bytes, seed, sum));
}

/* ---- weights */

static void cuda_linear_destroy(bt_device *dev, bt_linear *linear)
{
    bt_device_free(dev, linear->packed);
    bt_device_free(dev, linear->scale);
    bt_free(linear);
}

/* A header, and device memory for its rows and scales. */
static bt_status linear_alloc(bt_device *dev, uint32_t n, uint32_t k, bt_weight_kind kind,
                              bt_linear **linear_out)
{
    bt_status st = BT_OK;
    size_t row   = kind == BT_WEIGHT_INT4 ? k / 2 : kind == BT_WEIGHT_FP8 ? k : k * sizeof(bt_bf16);
    size_t scales     = kind == BT_WEIGHT_INT4 ? k / BT_INT4_GROUP * sizeof(bt_bf16)
                        : kind == BT_WEIGHT_FP8 ? (k + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK * sizeof(float)
                                                : 0;
    bt_linear *linear = NULL;
    void      *w = NULL, *scale = NULL;

    BT_REQUIRE(n >= 1 && k >= 1 && n <= INT32_MAX && k <= BT_CUDA_ROWS_BYTES / sizeof(bt_bf16),
               BT_ERR_INVALID_ARG, "a weight matrix of [%u, %u]: expected 1 to %d rows of 1 to %zu",
               n, k, INT32_MAX, BT_CUDA_ROWS_BYTES / sizeof(bt_bf16));
    linear = bt_calloc(1, sizeof(*linear));
    BT_REQUIRE(linear != NULL, BT_ERR_NO_MEMORY, "weight matrix header");
    linear->n     = n;
    linear->k     = k;
    linear->kind  = kind;
    linear->bytes = n * (row + scales);
    BT_TRY(bt_device_alloc(dev, n * row, &w));
    linear->packed = w;
    if (scales != 0) BT_TRY(bt_device_alloc(dev, n * scales, &scale));
    linear->scale = scale;
    *linear_out   = linear;
    linear        = NULL;
out:
    if (linear != NULL) cuda_linear_destroy(dev, linear);
    return st;
}

static bt_status cuda_linear_create(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                                    void *ctx, bt_linear **linear_out)
{
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;

    BT_TRY(linear_alloc(dev, n, k, BT_WEIGHT_BF16, &linear));
    BT_TRY(bt_cuda_staging_rows(dev, n, k, rows, ctx, linear->packed));
    *linear_out = linear;
    linear      = NULL;
out:
    if (linear != NULL) cuda_linear_destroy(dev, linear);
    return st;
}

/* Narrow rows on their way, of one kind; their scales stay behind, [n, ld]. */
typedef struct {
    bt_linear_fp8_fn  fp8;
    bt_linear_int4_fn int4;
    void             *ctx;
    void             *scale;
    size_t            ld;
} narrow_rows;

static void fp8_row(void *ctx, uint32_t n, void *row)
{
    const narrow_rows *f = ctx;

    f->fp8(f->ctx, n, row, (float *)f->scale + n * f->ld);
}

static void int4_row(void *ctx, uint32_t n, void *row)
{
    const narrow_rows *f = ctx;

    f->int4(f->ctx, n, row, (bt_bf16 *)f->scale + n * f->ld);
}

static bt_status create_narrow(bt_device *dev, uint32_t n, uint32_t k, bt_weight_kind kind,
                               narrow_rows *f, bt_linear **linear_out)
{
    bool       int4   = kind == BT_WEIGHT_INT4;
    size_t     scales = n * f->ld * (int4 ? sizeof(bt_bf16) : sizeof(float));
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;

    BT_TRY(linear_alloc(dev, n, k, kind, &linear));
    f->scale = bt_calloc(scales, 1);
    BT_REQUIRE(f->scale != NULL, BT_ERR_NO_MEMORY, "scales of [%u, %u]", n, k);
    BT_TRY(bt_cuda_staging_fill(dev, n, int4 ? k / 2 : k, int4 ? int4_row : fp8_row, f,
                                linear->packed));
    BT_TRY(bt_device_upload(dev, linear->scale, f->scale, scales));
    BT_TRY(bt_device_sync(dev)); /* host memory goes */
    *linear_out = linear;
    linear      = NULL;
out:
    bt_free(f->scale);
    if (linear != NULL) cuda_linear_destroy(dev, linear);
    return st;
}

static bt_status cuda_linear_create_fp8(bt_device *dev, uint32_t n, uint32_t k,
                                        bt_linear_fp8_fn rows, void *ctx, bt_linear **linear_out)
{
    narrow_rows f = {.fp8 = rows, .ctx = ctx, .ld = (k + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK};

    return create_narrow(dev, n, k, BT_WEIGHT_FP8, &f, linear_out);
}

static bt_status cuda_linear_create_int4(bt_device *dev, uint32_t n, uint32_t k,
                                         bt_linear_int4_fn rows, void *ctx, bt_linear **linear_out)
{
    bt_status   st = BT_OK;
    narrow_rows f  = {.int4 = rows, .ctx = ctx, .ld = k / BT_INT4_GROUP};

    BT_REQUIRE(k % BT_INT4_GROUP == 0, BT_ERR_INVALID_ARG,
               "a weight matrix [%u, %u] of 4 bits: expected a multiple of %d columns", n, k,
               BT_INT4_GROUP);
    BT_TRY(create_narrow(dev, n, k, BT_WEIGHT_INT4, &f, linear_out));
out:
    return st;
}

/* ---- rows */

static bt_status cuda_rms_norm(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *x,
                               size_t ld_x, const bt_bf16 *weight, float eps, bt_bf16 *y,
                               size_t ld_y)
{
    return CUDA(bt_cuda_rms_norm(self_of(dev)->stream, rows, dim, x, ld_x, weight, eps, y, ld_y));
}

static bt_status cuda_add_norm(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *x,
                               bt_bf16 *residual, const bt_bf16 *weight, float eps, bt_bf16 *y)
{
    return CUDA(bt_cuda_add_norm(self_of(dev)->stream, rows, dim, x, residual, weight, eps, y));
}

static bt_status cuda_gather_rows(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *table,
                                  const uint32_t *index, bt_bf16 *y)
{
    bt_device_cuda *cuda = self_of(dev);
    bt_status       st   = BT_OK;

    for (uint32_t r = 0, n; r < rows; r += n) {
        n = rows - r < INDEX_ROWS ? rows - r : INDEX_ROWS;
        BT_TRY(cuda_upload(dev, cuda->index, index + r, n * sizeof(*index)));
        BT_TRY(CUDA(
            bt_cuda_gather_rows(cuda->stream, n, dim, table, cuda->index, y + (size_t)r * dim)));
    }
out:
    return st;
}

static bt_status cuda_gather_rows_by(bt_device *dev, uint32_t rows, uint32_t dim,
                                     const bt_bf16 *table, const uint32_t *index, bt_bf16 *y)
{
    return CUDA(bt_cuda_gather_rows(self_of(dev)->stream, rows, dim, table, index, y));
}

/* ---- work beside other work */

static bt_status cuda_fork(bt_device *dev)
{
    bt_device_cuda *cuda = self_of(dev);
    bt_status       st   = BT_OK;

    BT_ASSERT(cuda->stream == cuda->main);
    BT_TRY(CUDA(cudaEventRecord(cuda->forked, cuda->main)));
    BT_TRY(CUDA(cudaStreamWaitEvent(cuda->beside, cuda->forked, 0)));
    cuda->stream = cuda->beside;
out:
    return st;
}

static bt_status cuda_unfork(bt_device *dev)
{
    bt_device_cuda *cuda = self_of(dev);

    cuda->stream = cuda->main;
    return CUDA(cudaEventRecord(cuda->done, cuda->beside));
}

static bt_status cuda_join(bt_device *dev)
{
    bt_device_cuda *cuda = self_of(dev);

    return CUDA(cudaStreamWaitEvent(cuda->main, cuda->done, 0));
}

/* ---- life */

static void cuda_destroy(bt_device *dev)
{
    bt_device_cuda *cuda = self_of(dev);

    if (cuda->beside != NULL) (void)cudaStreamSynchronize(cuda->beside);
    if (cuda->main != NULL) (void)cudaStreamSynchronize(cuda->main);
    bt_cuda_staging_fini(&cuda->staging);
    bt_device_free(dev, cuda->index);
    if (cuda->forked != NULL) (void)cudaEventDestroy(cuda->forked);
    if (cuda->done != NULL) (void)cudaEventDestroy(cuda->done);
    for (int i = 0; i < BT_N_MARKS; i++)
        if (cuda->marks[i] != NULL) (void)cudaEventDestroy(cuda->marks[i]);
    if (cuda->beside != NULL) (void)cudaStreamDestroy(cuda->beside);
    if (cuda->main != NULL) (void)cudaStreamDestroy(cuda->main);
    bt_free(cuda);
}

static const bt_device_ops CUDA_OPS = {
    .name               = "cuda",
    .alloc              = cuda_alloc,
    .free               = cuda_free,
    .alloc_host         = cuda_alloc_host,
    .free_host          = cuda_free_host,
    .memory             = cuda_memory,
    .upload             = cuda_upload,
    .upload_rows        = bt_cuda_staging_rows,
    .download           = cuda_download,
    .sync               = cuda_sync,
    .mark               = cuda_mark,
    .await              = cuda_await,
    .stream             = cuda_stream,
    .checksum           = cuda_checksum,
    .linear_create      = cuda_linear_create,
    .linear_create_fp8  = cuda_linear_create_fp8,
    .linear_create_int4 = cuda_linear_create_int4,
    .linear_destroy     = cuda_linear_destroy,
    .gemm               = bt_cuda_products,
    .ffn                = bt_cuda_blocks,
    .rms_norm           = cuda_rms_norm,
    .add_norm           = cuda_add_norm,
    .gather_rows        = cuda_gather_rows,
    .gather_rows_by     = cuda_gather_rows_by,
    .fork               = cuda_fork,
    .unfork             = cuda_unfork,
    .join               = cuda_join,
    .destroy            = cuda_destroy,
    .sampling           = &bt_cuda_sampling_ops,
    .graphs             = &bt_cuda_graph_ops,
};

/* The kernels are compiled for these.  sm_80 code would load on all 8.x, but other than 8.0 they
 * have less shared memory than the tiles of attention take; sm_100 code runs on every 10.x. */
static bool has_kernels(int major, int minor)
{
    return (major == 8 && minor == 0) || (major == 9 && minor == 0) || major == 10;
}

/* The runtime takes each driver of its major version; kernels of more than 4 KiB of arguments
 * (gemm.h) take one of CUDA 12.1. */
enum {
    RUNTIME_MAJOR = CUDART_VERSION / 1000 * 1000,
    OLDEST_DRIVER = RUNTIME_MAJOR < 12010 ? 12010 : RUNTIME_MAJOR
};

static uint32_t cuda_count(char *text, size_t text_bytes)
{
    int         n = 0, driver = 0;
    cudaError_t err;

    err = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    if (err == cudaErrorInsufficientDriver && driver == 0)
        snprintf(text, text_bytes, "this machine has no NVIDIA driver");
    else if (driver != 0 && (err == cudaErrorInsufficientDriver || driver < OLDEST_DRIVER))
        snprintf(text, text_bytes,
                 "the NVIDIA driver is too old: it knows CUDA %d.%d, expected %d.%d or above",
                 driver / 1000, driver % 1000 / 10, OLDEST_DRIVER / 1000,
                 OLDEST_DRIVER % 1000 / 10);
    else if (err != cudaSuccess)
        snprintf(text, text_bytes, "no GPU can be used: %s%s", cudaGetErrorString(err),
                 bt_cuda_advice(err));
    else if (n <= 0)
        snprintf(text, text_bytes, "this machine has no GPU");
    else
        return (uint32_t)n;
    return 0;
}

static bool cuda_usable(uint32_t device, char *text, size_t text_bytes)
{
    int      major = 0, minor = 0, mode = 0;
    uint32_t n = cuda_count(text, text_bytes);

    if (n == 0) return false;
    if (device >= n)
        snprintf(text, text_bytes, "GPU %u is not there: this machine has %u", device, n);
    else if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)device) !=
                 cudaSuccess ||
             cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, (int)device) !=
                 cudaSuccess ||
             cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, (int)device) != cudaSuccess) {
        (void)cudaGetLastError(); /* or the first launch on another one would report it */
        snprintf(text, text_bytes, "GPU %u does not tell its compute capability and mode", device);
    } else if (!has_kernels(major, minor))
        snprintf(text, text_bytes, "GPU %u has compute capability %d.%d: expected 8.0, 9.0 or 10.x",
                 device, major, minor);
    else if (mode == cudaComputeModeProhibited)
        snprintf(text, text_bytes,
                 "GPU %u takes no process: its compute mode is prohibited (nvidia-smi -c 0 changes "
                 "it)",
                 device);
    else
        return true;
    return false;
}

/* Makes the context; a GPU in exclusive mode has room for one process. */
static bt_status enter(const bt_device_cuda *cuda)
{
    bt_status   st   = BT_OK;
    int         mode = 0;
    cudaError_t err  = cudaSetDevice(cuda->gpu);

    if (err != cudaSuccess) {
        (void)cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, cuda->gpu);
        (void)cudaGetLastError();
    }
    BT_REQUIRE(err == cudaSuccess || mode != cudaComputeModeExclusiveProcess, BT_ERR_UNSUPPORTED,
               "GPU %d takes one process, by its compute mode (exclusive), and has one: expected "
               "one rank for each GPU (as --both 1), or nvidia-smi -c 0",
               cuda->gpu);
    BT_TRY(bt_cuda_status(err, "cudaSetDevice", __FILE__, __LINE__));
out:
    return st;
}

/* Both before the hand-off's, which has the least priority: what streams have unless told. */
static bt_status make_streams(bt_device_cuda *cuda)
{
    bt_status st    = BT_OK;
    int       least = 0, greatest = 0;

    BT_TRY(CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest)));
    BT_TRY(CUDA(cudaStreamCreateWithPriority(&cuda->main, cudaStreamNonBlocking, greatest)));
    BT_TRY(CUDA(cudaStreamCreateWithPriority(&cuda->beside, cudaStreamNonBlocking, greatest)));
    cuda->stream = cuda->main;
out:
    return st;
}

/* Within an instruction's 16 products each compute capability may add in a way of its own. */
static bt_status name_arithmetic(bt_device_cuda *cuda)
{
    bt_status st    = BT_OK;
    int       major = 0, minor = 0;

    BT_TRY(CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->gpu)));
    BT_TRY(CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, cuda->gpu)));
    snprintf(cuda->arithmetic, sizeof(cuda->arithmetic), "prompt:mma16-sm%d,generated:mma16-sm%d",
             10 * major + minor, 10 * major + minor);
out:
    return st;
}

static bt_status name_gpu(bt_device_cuda *cuda)
{
    bt_status             st = BT_OK;
    struct cudaDeviceProp p;

    BT_TRY(CUDA(cudaDeviceGetPCIBusId(cuda->bus_id, sizeof(cuda->bus_id), cuda->gpu)));
    BT_TRY(CUDA(cudaGetDeviceProperties(&p, cuda->gpu)));
    for (size_t i = 0; i < sizeof(p.uuid.bytes); i++)
        snprintf(cuda->uuid + 2 * i, 3, "%02x", (unsigned char)p.uuid.bytes[i]);
out:
    return st;
}

static bt_status cuda_create(uint32_t device, bt_device **dev_out)
{
    bt_status       st   = BT_OK;
    bt_device_cuda *cuda = NULL;
    void           *mem  = NULL;
    char            why[256];

    BT_REQUIRE(cuda_usable(device, why, sizeof(why)), BT_ERR_UNSUPPORTED, "%s", why);
    cuda = bt_calloc(1, sizeof(*cuda));
    BT_REQUIRE(cuda != NULL, BT_ERR_NO_MEMORY, "CUDA device");
    cuda->super.ops        = &CUDA_OPS;
    cuda->super.fp8_rows   = 1;
    cuda->super.arithmetic = cuda->arithmetic;
    cuda->super.bus_id     = cuda->bus_id;
    cuda->super.uuid       = cuda->uuid;
    cuda->gpu              = (int)device;
    BT_TRY(enter(cuda));
    BT_TRY(name_arithmetic(cuda));
    BT_TRY(name_gpu(cuda));
    BT_TRY(make_streams(cuda));
    BT_TRY(CUDA(cudaEventCreateWithFlags(&cuda->forked, cudaEventDisableTiming)));
    BT_TRY(CUDA(cudaEventCreateWithFlags(&cuda->done, cudaEventDisableTiming)));
    for (int i = 0; i < BT_N_MARKS; i++)
        BT_TRY(CUDA(cudaEventCreateWithFlags(&cuda->marks[i], cudaEventDisableTiming)));
    BT_TRY(bt_device_alloc(&cuda->super, INDEX_ROWS * sizeof(*cuda->index), &mem));
    cuda->index = mem;
    BT_TRY(bt_cuda_staging_init(&cuda->staging));
    cuda->super.pinned_bytes += BT_CUDA_STAGING_BYTES;
    *dev_out = &cuda->super;
    cuda     = NULL;
out:
    if (cuda != NULL) cuda_destroy(&cuda->super);
    return st;
}

BT_CUDA_EXPORT const bt_cuda_module_table bt_cuda_module = {
    .version = BT_CUDA_MODULE_VERSION,
    .usable  = cuda_usable,
    .count   = cuda_count,
    .create  = cuda_create,
};
