/* device/cuda/device_cuda.c - the CUDA back end: bt_device_ops on one GPU and one stream.
 *
 * Plain C on the CUDA runtime; kernels lie in the .cu files beside it.  Everything is enqueued on
 * the device's stream in order. */
#include "device/cuda/device_cuda.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "device/cuda/checksum.h"
#include "device/cuda/gemm.h"
#include "device/cuda/module.h"
#include "device/cuda/rows.h"
#include "device/linear.h"

enum { INDEX_ROWS = 1 << 16, UPLOAD_BYTES = 16 << 20 };

/* Where a CUDA code becomes ours: logged here, not seen above this folder. */
bt_status bt_cuda_status(int err, const char *what, const char *file, int line)
{
    bt_status st = err == cudaErrorMemoryAllocation ? BT_ERR_NO_MEMORY : BT_ERR_DEVICE;

    if (err == cudaSuccess) return BT_OK;
    (void)cudaGetLastError(); /* or the next launch would report this one again */
    bt_log_error(file, line, bt_status_str(st), "%s: %s", what,
                 cudaGetErrorString((cudaError_t)err));
    return st;
}

static bt_device_cuda *self_of(bt_device *dev) { return (bt_device_cuda *)dev; }

void *bt_cuda_stream(bt_device *dev) { return self_of(dev)->stream; }

const void *bt_cuda_weights(const bt_linear *linear) { return linear->packed; }

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
    return CUDA(
        cudaMemcpyAsync(dst, host_src, bytes, cudaMemcpyHostToDevice, self_of(dev)->stream));
}

static bt_status cuda_download(bt_device *dev, void *host_dst, const void *src, size_t bytes)
{
    if (bytes == 0) return BT_OK;
    return CUDA(
        cudaMemcpyAsync(host_dst, src, bytes, cudaMemcpyDeviceToHost, self_of(dev)->stream));
}

static bt_status cuda_sync(bt_device *dev)
{
    return CUDA(cudaStreamSynchronize(self_of(dev)->stream));
}

static bt_status cuda_checksum(bt_device *dev, void *stream, const void *data, size_t bytes,
                               uint64_t seed, uint64_t *sum)
{
    (void)dev;
    return CUDA(bt_cuda_checksum(stream, data, bytes, seed, sum));
}

/* ---- weights: rows fill one pinned buffer while the other one is on its way */

static void cuda_linear_destroy(bt_device *dev, bt_linear *linear)
{
    bt_device_free(dev, linear->packed);
    bt_free(linear);
}

static bt_status upload_rows(bt_device_cuda *cuda, const bt_linear *l, bt_linear_row_fn rows,
                             void *ctx)
{
    bt_status st       = BT_OK;
    uint32_t  per_turn = (uint32_t)(UPLOAD_BYTES / sizeof(bt_bf16) / l->k);

    for (uint32_t n = 0, turn = 0, count; n < l->n; n += count, turn++) {
        bt_bf16    *half = cuda->staging[turn % 2];
        cudaEvent_t sent = cuda->sent[turn % 2];

        count = l->n - n < per_turn ? l->n - n : per_turn;
        BT_TRY(CUDA(cudaEventSynchronize(sent))); /* what it held before has left */
        for (uint32_t i = 0; i < count; i++)
            rows(ctx, n + i, half + (size_t)i * l->k);
        BT_TRY(CUDA(cudaMemcpyAsync(l->packed + (size_t)n * l->k, half,
                                    (size_t)count * l->k * sizeof(bt_bf16), cudaMemcpyHostToDevice,
                                    cuda->stream)));
        BT_TRY(CUDA(cudaEventRecord(sent, cuda->stream)));
    }
out:
    return st;
}

static bt_status cuda_linear_create(bt_device *dev, uint32_t n, uint32_t k, bt_linear_row_fn rows,
                                    void *ctx, bt_linear **linear_out)
{
    bt_status  st     = BT_OK;
    bt_linear *linear = NULL;
    void      *w      = NULL;

    BT_REQUIRE(n >= 1 && k >= 1 && n <= INT32_MAX && k <= UPLOAD_BYTES / sizeof(bt_bf16),
               BT_ERR_INVALID_ARG, "a weight matrix of [%u, %u]", n, k);
    linear = bt_calloc(1, sizeof(*linear));
    BT_REQUIRE(linear != NULL, BT_ERR_NO_MEMORY, "weight matrix header");
    linear->n     = n;
    linear->k     = k;
    linear->bytes = (size_t)n * k * sizeof(bt_bf16);
    BT_TRY(bt_device_alloc(dev, linear->bytes, &w));
    linear->packed = w;
    BT_TRY(upload_rows(self_of(dev), linear, rows, ctx));
    *linear_out = linear;
    linear      = NULL;
out:
    if (linear != NULL) cuda_linear_destroy(dev, linear);
    return st;
}

/* ---- products */

/* Elements from one row pointer to another, when it is a whole number of them and not negative. */
static bool distance(const void *from, const void *to, size_t elem_bytes, size_t *elems_out)
{
    uintptr_t a = (uintptr_t)from, b = (uintptr_t)to;

    if (b < a || (b - a) % elem_bytes != 0) return false;
    *elems_out = (b - a) / elem_bytes;
    return true;
}

static bool same_shape(const bt_gemm *a, const bt_gemm *b)
{
    return a->w->n == b->w->n && a->w->k == b->w->k && a->ld_x == b->ld_x && a->ld_y == b->ld_y &&
           a->y_dtype == b->y_dtype;
}

/* How many of g[0 .. n) are one launch: of equal shape, and with equal rows at one stride (heads:
 * *by_rows false), or with rows that follow each other in x and y (experts: true). */
static uint32_t run_of(const bt_gemm *g, uint32_t n, bool *by_rows, size_t *x_group,
                       size_t *y_group)
{
    size_t   y_bytes = g->y_dtype == BT_F32 ? sizeof(float) : sizeof(bt_bf16), x_step, y_step;
    uint32_t count   = 1;

    *by_rows = false;
    *x_group = *y_group = 0;
    for (; count < n && count < BT_CUDA_MAX_GROUPS; count++) {
        const bt_gemm *last = &g[count - 1], *next = &g[count];
        bool           rows, strided;

        if (!same_shape(g, next) || !distance(last->x, next->x, sizeof(bt_bf16), &x_step) ||
            !distance(last->y, next->y, y_bytes, &y_step))
            break;
        rows    = x_step == last->m * g->ld_x && y_step == last->m * g->ld_y;
        strided = next->m == g->m && (count == 1 || (x_step == *x_group && y_step == *y_group));
        if (count == 1) {
            *by_rows = rows;
            *x_group = x_step;
            *y_group = y_step;
        }
        if (*by_rows ? !rows : !strided) break;
    }
    if (count == 1) *by_rows = false;
    return count;
}

static bt_status run_group(bt_device_cuda *cuda, const bt_gemm *g, uint32_t n, bool by_rows,
                           size_t x_group, size_t y_group)
{
    bt_status    st                             = BT_OK;
    bt_cuda_gemm run                            = {.n        = g->w->n,
                                                   .k        = g->w->k,
                                                   .n_groups = n,
                                                   .out      = g->y_dtype == BT_F32 ? BT_CUDA_OUT_F32 : BT_CUDA_OUT_BF16,
                                                   .max_rows = g->m,
                                                   .x_group  = by_rows ? 0 : x_group,
                                                   .y_group  = by_rows ? 0 : y_group,
                                                   .x        = g->x,
                                                   .ld_x     = g->ld_x,
                                                   .y        = g->y,
                                                   .ld_y     = g->ld_y};
    uint32_t     row_at[BT_CUDA_MAX_GROUPS + 1] = {0};

    for (uint32_t i = 0; i < n; i++) {
        run.w[i]      = g[i].w->packed;
        row_at[i + 1] = row_at[i] + g[i].m;
    }
    if (by_rows) {
        run.max_rows = row_at[n];
        run.row_at   = cuda->row_at;
        BT_TRY(cuda_upload(&cuda->super, cuda->row_at, row_at, (n + 1) * sizeof(*row_at)));
    }
    BT_TRY(CUDA(bt_cuda_gemm_run(cuda->stream, &run)));
out:
    return st;
}

static bt_status cuda_gemm(bt_device *dev, bt_role role, uint32_t n_gemms, const bt_gemm *gemms)
{
    bt_status st = BT_OK;

    (void)role; /* one arithmetic for both */
    for (uint32_t i = 0; i < n_gemms; i++)
        BT_REQUIRE(gemms[i].y_dtype == BT_F32 || gemms[i].y_dtype == BT_BF16, BT_ERR_INVALID_ARG,
                   "product %u of %u has a result of dtype %d, neither bf16 nor fp32", i, n_gemms,
                   (int)gemms[i].y_dtype);
    for (uint32_t i = 0, n; i < n_gemms; i += n) {
        bool   by_rows = false;
        size_t x_group = 0, y_group = 0;

        n = run_of(&gemms[i], n_gemms - i, &by_rows, &x_group, &y_group);
        BT_TRY(run_group(self_of(dev), &gemms[i], n, by_rows, x_group, y_group));
    }
out:
    return st;
}

/* SwiGLU within the first product, so that h is not needed. */
static bt_status cuda_ffn(bt_device *dev, bt_role role, uint32_t n_ffns, const bt_ffn *ffns,
                          bt_bf16 *h, bt_bf16 *act)
{
    bt_status st = BT_OK;

    (void)h;
    for (uint32_t i = 0; i < n_ffns; i++) {
        const bt_ffn *f    = &ffns[i];
        uint32_t      dim  = f->down->k;
        bt_cuda_gemm  up   = {.n        = dim,
                              .k        = f->gate_up->k,
                              .n_groups = 1,
                              .out      = BT_CUDA_OUT_SWIGLU,
                              .max_rows = f->m,
                              .x        = f->x,
                              .ld_x     = f->ld_x,
                              .y        = act,
                              .ld_y     = dim,
                              .w        = {f->gate_up->packed}};
        bt_gemm       down = {.w       = f->down,
                              .x       = act,
                              .ld_x    = dim,
                              .y       = f->y,
                              .ld_y    = f->ld_y,
                              .m       = f->m,
                              .y_dtype = f->y_dtype};

        BT_TRY(CUDA(bt_cuda_gemm_run(self_of(dev)->stream, &up)));
        BT_TRY(cuda_gemm(dev, role, 1, &down));
        act += (size_t)f->m * dim;
    }
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

static bt_status cuda_add(bt_device *dev, size_t n_elems, const bt_bf16 *x, bt_bf16 *y)
{
    return CUDA(bt_cuda_add(self_of(dev)->stream, n_elems, x, y));
}

static bt_status cuda_swiglu(bt_device *dev, uint32_t rows, uint32_t dim, const bt_bf16 *gate_up,
                             bt_bf16 *y)
{
    return CUDA(bt_cuda_swiglu(self_of(dev)->stream, rows, dim, gate_up, y));
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

/* ---- life */

static void cuda_destroy(bt_device *dev)
{
    bt_device_cuda *cuda = self_of(dev);

    if (cuda->stream != NULL) (void)cudaStreamSynchronize(cuda->stream);
    for (int i = 0; i < 2; i++) {
        if (cuda->sent[i] != NULL) (void)cudaEventDestroy(cuda->sent[i]);
        if (cuda->staging[i] != NULL) (void)cudaFreeHost(cuda->staging[i]);
    }
    bt_device_free(dev, cuda->index);
    bt_device_free(dev, cuda->row_at);
    if (cuda->stream != NULL) (void)cudaStreamDestroy(cuda->stream);
    bt_free(cuda);
}

static const bt_device_ops CUDA_OPS = {
    .name           = "cuda",
    .alloc          = cuda_alloc,
    .free           = cuda_free,
    .alloc_host     = cuda_alloc_host,
    .free_host      = cuda_free_host,
    .memory         = cuda_memory,
    .upload         = cuda_upload,
    .download       = cuda_download,
    .sync           = cuda_sync,
    .stream         = bt_cuda_stream,
    .checksum       = cuda_checksum,
    .linear_create  = cuda_linear_create,
    .linear_destroy = cuda_linear_destroy,
    .gemm           = cuda_gemm,
    .ffn            = cuda_ffn,
    .rms_norm       = cuda_rms_norm,
    .add            = cuda_add,
    .swiglu         = cuda_swiglu,
    .gather_rows    = cuda_gather_rows,
    .destroy        = cuda_destroy,
};

/* The kernels are compiled for these: sm_80 code runs on every 8.x, sm_90a on 9.0, sm_100 on 10.x.
 */
static bool has_kernels(int major, int minor)
{
    return major == 8 || (major == 9 && minor == 0) || major == 10;
}

static uint32_t cuda_count(char *text, size_t text_bytes)
{
    int         n = 0, driver = 0;
    cudaError_t err = cudaGetDeviceCount(&n);

    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    if (err == cudaErrorInsufficientDriver && driver == 0)
        snprintf(text, text_bytes, "this machine has no NVIDIA driver");
    else if (err == cudaErrorInsufficientDriver)
        snprintf(text, text_bytes,
                 "the NVIDIA driver is too old: it knows CUDA %d.%d, expected %d.%d or above",
                 driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                 CUDART_VERSION % 1000 / 10);
    else if (err != cudaSuccess)
        snprintf(text, text_bytes, "no GPU can be used: %s", cudaGetErrorString(err));
    else if (n <= 0)
        snprintf(text, text_bytes, "this machine has no GPU");
    else
        return (uint32_t)n;
    return 0;
}

static bool cuda_usable(uint32_t device, char *text, size_t text_bytes)
{
    int      major = 0, minor = 0;
    uint32_t n = cuda_count(text, text_bytes);

    if (n == 0) return false;
    if (device >= n)
        snprintf(text, text_bytes, "GPU %u is not there: this machine has %u", device, n);
    else if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)device) !=
                 cudaSuccess ||
             cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, (int)device) !=
                 cudaSuccess)
        snprintf(text, text_bytes, "GPU %u does not tell its compute capability", device);
    else if (!has_kernels(major, minor))
        snprintf(text, text_bytes, "GPU %u has compute capability %d.%d: expected 8.x, 9.0 or 10.x",
                 device, major, minor);
    else
        return true;
    return false;
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
    cuda->super.arithmetic = "prompt:mma16,generated:mma16";
    cuda->gpu              = (int)device;
    BT_TRY(CUDA(cudaSetDevice(cuda->gpu)));
    BT_TRY(CUDA(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking)));
    BT_TRY(bt_device_alloc(&cuda->super, INDEX_ROWS * sizeof(*cuda->index), &mem));
    cuda->index = mem;
    BT_TRY(bt_device_alloc(&cuda->super, (BT_CUDA_MAX_GROUPS + 1) * sizeof(*cuda->row_at), &mem));
    cuda->row_at = mem;
    for (int i = 0; i < 2; i++) {
        BT_TRY(CUDA(cudaHostAlloc(&mem, UPLOAD_BYTES, cudaHostAllocDefault)));
        cuda->staging[i] = mem;
        BT_TRY(CUDA(cudaEventCreateWithFlags(&cuda->sent[i], cudaEventDisableTiming)));
    }
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
