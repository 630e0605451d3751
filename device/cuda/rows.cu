/* device/cuda/rows.cu - see rows.h.  A thread takes 8 consecutive elements at a time, as one
 * 16-byte access where everything is aligned; which thread takes which is the same either way. */
#include "device/cuda/rows.h"

#include "device/cuda/gpu.cuh"

enum { THREADS = 256, CHUNK = 8 };

/* x[0 .. n), n <= 8; the others are 0. */
static __device__ __forceinline__ void load8(const bt_bf16 *x, uint32_t n, bool wide, float v[8])
{
    if (wide && n >= CHUNK) {
        gpu_vec16 w    = *(const gpu_vec16 *)x;
        uint32_t  u[4] = {w.x, w.y, w.z, w.w};

        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            v[2 * i]     = __uint_as_float(u[i] << 16);
            v[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        }
        return;
    }
    GPU_UNROLL
    for (int i = 0; i < CHUNK; i++)
        v[i] = (uint32_t)i < n ? f32_of(x[i]) : 0.0f;
}

static __device__ __forceinline__ void store8(bt_bf16 *y, uint32_t n, bool wide, const float v[8])
{
    if (wide && n >= CHUNK) {
        *(gpu_vec16 *)y = gpu_vec16{bf16x2_of(v[0], v[1]), bf16x2_of(v[2], v[3]),
                                    bf16x2_of(v[4], v[5]), bf16x2_of(v[6], v[7])};
        return;
    }
    GPU_UNROLL
    for (int i = 0; i < CHUNK; i++)
        if ((uint32_t)i < n) y[i] = bf16_of(v[i]);
}

static bool aligned(const void *p, size_t ld) { return (uintptr_t)p % 16 == 0 && ld % CHUNK == 0; }

static uint32_t blocks_for(size_t n_chunks)
{
    size_t n = (n_chunks + THREADS - 1) / THREADS;

    return n < 1u << 20 ? (uint32_t)n : 1u << 20;
}

/* The chunks of a launch, each taken by one thread. */
#define FOR_CHUNKS(c, n_chunks)                                                 \
    for (size_t c = (size_t)blockIdx.x * THREADS + threadIdx.x; c < (n_chunks); \
         c += (size_t)gridDim.x * THREADS)

/* One block a row: the norm of x, or, where residual [rows, dim] is not NULL, of residual += x. */
static __global__ void __launch_bounds__(THREADS)
    norm_kernel(uint32_t dim, const bt_bf16 *x, size_t ld_x, bt_bf16 *residual,
                const bt_bf16 *weight, float eps, bt_bf16 *y, size_t ld_y, bool wide)
{
    GPU_SHARED(float, part, GPU_WARP);
    float sum = 0, v[CHUNK], w[CHUNK];

    x += blockIdx.x * ld_x;
    y += blockIdx.x * ld_y;
    if (residual != NULL) residual += blockIdx.x * (size_t)dim;
    for (uint32_t i = threadIdx.x * CHUNK; i < dim; i += THREADS * CHUNK) {
        load8(x + i, dim - i, wide, v);
        if (residual != NULL) {
            load8(residual + i, dim - i, wide, w);
            GPU_UNROLL
            for (int j = 0; j < CHUNK; j++)
                v[j] = f32_of(bf16_of(w[j] + v[j]));
            store8(residual + i, dim - i, wide, v);
        }
        GPU_UNROLL
        for (int j = 0; j < CHUNK; j++)
            sum = fmaf(v[j], v[j], sum);
    }
    sum = 1.0f / sqrtf(block_sum(sum, part) / (float)dim + eps);
    if (residual != NULL) x = residual; /* what this thread has stored */
    for (uint32_t i = threadIdx.x * CHUNK; i < dim; i += THREADS * CHUNK) {
        load8(x + i, dim - i, wide, v);
        load8(weight + i, dim - i, wide, w);
        GPU_UNROLL
        for (int j = 0; j < CHUNK; j++)
            v[j] = f32_of(bf16_of(v[j] * sum)) * w[j];
        store8(y + i, dim - i, wide, v);
    }
}

int bt_cuda_rms_norm(void *stream, uint32_t rows, uint32_t dim, const bt_bf16 *x, size_t ld_x,
                     const bt_bf16 *weight, float eps, bt_bf16 *y, size_t ld_y)
{
    bool wide = aligned(x, ld_x) && aligned(y, ld_y) && aligned(weight, 0);

    if (rows == 0 || dim == 0) return 0;
    return gpu_launch(norm_kernel, rows, THREADS, 0, stream, dim, x, ld_x, (bt_bf16 *)NULL, weight,
                      eps, y, ld_y, wide);
}

int bt_cuda_add_norm(void *stream, uint32_t rows, uint32_t dim, const bt_bf16 *x, bt_bf16 *residual,
                     const bt_bf16 *weight, float eps, bt_bf16 *y)
{
    bool wide = aligned(x, dim) && aligned(residual, dim) && aligned(y, dim) && aligned(weight, 0);

    if (rows == 0 || dim == 0) return 0;
    return gpu_launch(norm_kernel, rows, THREADS, 0, stream, dim, x, dim, residual, weight, eps, y,
                      dim, wide);
}

static __global__ void __launch_bounds__(THREADS)
    gather_kernel(uint32_t rows, uint32_t dim, const bt_bf16 *table, const uint32_t *index,
                  bt_bf16 *y, bool wide)
{
    uint32_t per_row = (dim + CHUNK - 1) / CHUNK;

    FOR_CHUNKS(c, (size_t)rows * per_row)
    {
        size_t         row = c / per_row;
        uint32_t       at = (uint32_t)(c % per_row) * CHUNK, left = dim - at;
        const bt_bf16 *src = table + (size_t)index[row] * dim + at;
        bt_bf16       *dst = y + row * dim + at;

        if (wide && left >= CHUNK)
            *(gpu_vec16 *)dst = *(const gpu_vec16 *)src;
        else
            for (uint32_t j = 0; j < CHUNK && j < left; j++)
                dst[j] = src[j];
    }
}

int bt_cuda_gather_rows(void *stream, uint32_t rows, uint32_t dim, const bt_bf16 *table,
                        const uint32_t *index, bt_bf16 *y)
{
    size_t chunks = (size_t)rows * ((dim + CHUNK - 1) / CHUNK);

    if (chunks == 0) return 0;
    return gpu_launch(gather_kernel, blocks_for(chunks), THREADS, 0, stream, rows, dim, table,
                      index, y, aligned(table, dim) && aligned(y, dim));
}
