/* device/cuda/checksum.cu - see checksum.h; device/checksum.c is the plain twin. */
#include "device/cuda/checksum.h"

#include "device/checksum_mix.h"
#include "device/cuda/gpu.cuh"

enum { THREADS = 512, WORDS_A_BLOCK = 4 * THREADS, MOST_BLOCKS = 64 };

/* What the words' sum is added to: seed, length, and the bytes behind the last whole word. */
static __global__ void __launch_bounds__(1)
    begin_kernel(const unsigned char *data, uint64_t bytes, uint64_t seed, uint64_t *sum)
{
    uint64_t n = bytes / 8, last = 0;

    for (uint64_t i = 0; i < bytes % 8; i++)
        last |= (uint64_t)data[8 * n + i] << (8 * i);
    *sum = bt_checksum_mix(seed, bytes) + (bytes % 8 != 0 ? bt_checksum_mix(last, n) : 0);
}

/* A sum of integers is the same in any order. */
static __global__ void __launch_bounds__(THREADS)
    words_kernel(const uint64_t *words, uint64_t n, uint64_t *sum)
{
    unsigned long long mine = 0;

    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * THREADS)
        mine += bt_checksum_mix(words[i], i);
    for (int x = GPU_WARP / 2; x >= 1; x /= 2)
        mine += __shfl_xor_sync(~0u, mine, x);
    if (threadIdx.x % GPU_WARP == 0) atomicAdd((unsigned long long *)sum, mine);
}

int bt_cuda_checksum(void *stream, const void *data, size_t bytes, uint64_t seed, uint64_t *sum)
{
    uint64_t n      = bytes / 8;
    uint32_t blocks = gpu_blocks(n, WORDS_A_BLOCK);
    int      err    = gpu_launch(begin_kernel, 1, 1, 0, stream, (const unsigned char *)data,
                                 (uint64_t)bytes, seed, sum);

    if (err != 0 || n == 0) return err;
    if (blocks > MOST_BLOCKS) blocks = MOST_BLOCKS;
    return gpu_launch(words_kernel, blocks, THREADS, 0, stream, (const uint64_t *)data, n, sum);
}
