/* device/cuda/gpu.cuh - everything that a kernel of this project says to the GPU beyond plain C.
 *
 * Under nvcc this page gives the instructions; without it, a header that the build includes before
 * this one gives twins of them that run on the CPU, for tests.  A kernel that keeps to these names,
 * to threadIdx and its kin, __syncthreads(), __syncthreads_or(), __syncwarp(), __shfl_*_sync(),
 * __ballot_sync(), __any_sync(), and atomicAdd() and atomicMin() on integers runs on both.
 *
 * bf16 travels as bt_bf16 (16 bits).  The build turns contraction off: a fused multiply-add is
 * written fmaf(). */
#ifndef BT_DEVICE_CUDA_GPU_CUH
#define BT_DEVICE_CUDA_GPU_CUH

#include <stddef.h>
#include <stdint.h>

#include "core/bf16.h"

/* LEAST_SHARED: bytes that a block may ask for on every GPU that kernels are compiled for: those of
 * compute capability 8.0. */
enum { GPU_WARP = 32, GPU_LEAST_SHARED = 163 << 10 };

#ifdef __CUDACC__
#include <cuda_runtime.h>

/* T name[n] in shared memory, n a constant; and what the launch has asked for. */
#define GPU_SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define GPU_DYNAMIC_SHARED(T, name)                               \
    extern __shared__ __align__(128) unsigned char gpu_shared_[]; \
    T *const                                       name = (T *)gpu_shared_
#define GPU_UNROLL        _Pragma("unroll")
#define GPU_PRAGMA_(p)    _Pragma(#p)
#define GPU_UNROLL_BY(n)  GPU_PRAGMA_(unroll n)
#define GPU_ONE_AT_A_TIME _Pragma("unroll 1")
#define GPU_CONSTANT      __grid_constant__ /* a parameter struct that is read where it lies */

struct __align__(16) gpu_vec16 { uint32_t x, y, z, w; };
struct __align__(8) gpu_vec8 { uint32_t x, y; };

static __device__ __forceinline__ float f32_of(bt_bf16 v)
{
    return __uint_as_float((uint32_t)v << 16);
}

/* Nearest, ties to even. */
static __device__ __forceinline__ bt_bf16 bf16_of(float f)
{
    bt_bf16 v;

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v) : "f"(f));
    return v;
}

static __device__ __forceinline__ uint32_t bf16x2_of(float low, float high)
{
    uint32_t v;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

/* D[16][8] += A[16][16] B[16][8] by a warp: mma.sync m16n8k16, bf16 in, fp32 out. */
static __device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ uint32_t gpu_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8x8 matrices of 16-bit elements; lane 8 m + i gives the address of row i of matrix m, and
 * r[m] gets elements 2 t, 2 t + 1 of row g (lane 4 g + t); turned: rows and columns change places.
 */
static __device__ __forceinline__ void load_matrix(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(gpu_shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void load_matrix_turned(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(gpu_shared_address(row))
                 : "memory");
}

/* 16 bytes from global to shared memory, both aligned to 16; zeros when not valid (src is not read
 * then, but names global memory all the same).  Lands at copy_async_wait<n>(), which leaves the n
 * groups committed last under way. */
static __device__ __forceinline__ void copy_async16(void *dst, const void *src, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(gpu_shared_address(dst)),
                 "l"(src), "r"(valid ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N_LEFT> static __device__ __forceinline__ void copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N_LEFT) : "memory");
}

/* A value that a loop is to find in a register: the compiler would compute some of them again in
 * each turn. */
static __device__ __forceinline__ void gpu_keep(uint32_t &v) { asm volatile("" : "+r"(v)); }

/* Shared memory that a block may ask for on the current device. */
static inline uint32_t gpu_max_shared(void)
{
    int device = 0, bytes = 0;

    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
            cudaSuccess)
        return 0;
    return (uint32_t)bytes;
}

/* Of the current device; 0: it does not tell. */
static inline uint32_t gpu_n_multiprocessors(void)
{
    int device = 0, n = 0;

    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 0;
    return (uint32_t)n;
}

/* Enqueues; returns a cudaError_t, 0 for success.  Beside 48 KiB there is no room for what a kernel
 * has of its own. */
template <typename K, typename... A>
static int gpu_launch(K *kernel, dim3 grid, dim3 block, size_t shared_bytes, void *stream,
                      A... args)
{
    if (shared_bytes >= 48 << 10) {
        cudaError_t err = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               (int)shared_bytes);

        if (err != cudaSuccess) return (int)err;
    }
    kernel<<<grid, block, shared_bytes, (cudaStream_t)stream>>>(args...);
    return (int)cudaGetLastError();
}
#endif /* __CUDACC__ */

/* ---- the same on both sides */

static inline uint32_t gpu_blocks(uint64_t n, uint32_t per_block)
{
    return (uint32_t)((n + per_block - 1) / per_block);
}

static __device__ __forceinline__ float gpu_max(float a, float b) { return a > b ? a : b; }

/* The sum over a warp, in every lane: lane i adds lane i^16, then i^8, ... i^1. */
static __device__ __forceinline__ float warp_sum(float v)
{
    for (int x = GPU_WARP / 2; x >= 1; x /= 2)
        v = v + __shfl_xor_sync(~0u, v, x);
    return v;
}
/* NaN is passed over. */
static __device__ __forceinline__ float warp_max(float v)
{
    for (int x = GPU_WARP / 2; x >= 1; x /= 2)
        v = gpu_max(__shfl_xor_sync(~0u, v, x), v);
    return v;
}

/* The sum over a block of at most 32 full warps, in every thread: warps as above, then their sums
 * ascending.  `part` is [32] in shared memory, free before and after. */
static __device__ __forceinline__ float block_sum(float v, float *part)
{
    unsigned n_warps = blockDim.x / GPU_WARP;
    float    sum     = 0;

    v = warp_sum(v);
    if (threadIdx.x % GPU_WARP == 0) part[threadIdx.x / GPU_WARP] = v;
    __syncthreads();
    for (unsigned w = 0; w < n_warps; w++)
        sum = sum + part[w];
    __syncthreads();
    return sum;
}

static __device__ __forceinline__ float block_max(float v, float *part)
{
    unsigned n_warps = blockDim.x / GPU_WARP;

    v = warp_max(v);
    if (threadIdx.x % GPU_WARP == 0) part[threadIdx.x / GPU_WARP] = v;
    __syncthreads();
    v = part[0];
    for (unsigned w = 1; w < n_warps; w++)
        v = gpu_max(part[w], v);
    __syncthreads();
    return v;
}

#endif
