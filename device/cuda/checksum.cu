/* device/cuda/checksum.cu - see checksum.h; device/checksum.c is the plain twin. */
#include "device/cuda/checksum.h"

#include "device/cuda/gpu.cuh"

enum { THREADS = 512 };

static __device__ __forceinline__ uint64_t mixed(uint64_t word, uint64_t i)
{
    uint64_t x = (word ^ (word >> 31)) * 0xbf58476d1ce4e5b9u + (i + 1) * 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    return x ^ (x >> 32);
}

static __global__ void __launch_bounds__(THREADS)
    checksum_kernel(const uint64_t *words, uint64_t bytes, uint64_t seed, uint64_t *sum)
{
    GPU_SHARED(uint64_t, part, THREADS);
    uint64_t mine = 0, n = bytes / 8;

    for (uint64_t i = threadIdx.x; i < n; i += THREADS)
        mine += mixed(words[i], i);
    part[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int t = 1; t < THREADS; t++)
        mine += part[t];
    if (bytes % 8 != 0) {
        const unsigned char *rest = (const unsigned char *)(words + n);
        uint64_t             last = 0;

        for (uint64_t i = 0; i < bytes % 8; i++)
            last |= (uint64_t)rest[i] << (8 * i);
        mine += mixed(last, n);
    }
    *sum = mine + mixed(seed, bytes);
}

int bt_cuda_checksum(void *stream, const void *data, size_t bytes, uint64_t seed, uint64_t *sum)
{
    return gpu_launch(checksum_kernel, 1, THREADS, 0, stream, (const uint64_t *)data,
                      (uint64_t)bytes, seed, sum);
}
