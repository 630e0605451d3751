/* attention/cuda/softmax.cuh - what both forms of attention share: the state of a row, its merge,
 * and weights times values on tensor cores. */
#ifndef BT_ATTENTION_CUDA_SOFTMAX_CUH
#define BT_ATTENTION_CUDA_SOFTMAX_CUH

#include "attention/cuda/attn_kernels.h"
#include "device/cpu/math.h"
#include "device/cuda/gpu.cuh"
#include "device/cuda/tile.cuh"

#define NO_KEY (-INFINITY) /* the maximum of a row that has seen no key */

/* One row's running softmax, as each thread of the quad that holds the row keeps it. */
typedef struct {
    float max, sum;
} row_state;

/* bt_expf() of what is not above 0, or no number: its bits in fewer steps.  Below e^-87.3 it is 0,
 * since denormals are flushed. */
static __device__ __forceinline__ float exp_down(float x)
{
    float   t, n, r, y;
    int32_t k;

    x = x < -110.0f ? -110.0f : x;
    t = fmaf(x, BT_LOG2_E_F32, BT_ROUND_F32);
    n = t - BT_ROUND_F32;
    r = fmaf(n, -BT_LN2_HI_F32, x);
    r = fmaf(n, -BT_LN2_LO_F32, r);
    y = fmaf(r, 1.0f / 5040, 1.0f / 720);
    y = fmaf(y, r, 1.0f / 120);
    y = fmaf(y, r, 1.0f / 24);
    y = fmaf(y, r, 1.0f / 6);
    y = fmaf(y, r, 0.5f);
    y = fmaf(y * r, r, r) + 1.0f;
    k = (int32_t)(__float_as_uint(t) - 0x4b400000u);
    return y * __uint_as_float((uint32_t)((k > -127 ? k : -127) + 127) << 23);
}

/* The maximum with a block's keys counted; by how much what was summed before shrinks.  A block
 * without a visible key (NO_KEY) changes nothing. */
static __device__ __forceinline__ float raise_max(row_state *s, float block_max)
{
    float before = s->max, shrink;

    s->max = gpu_max(block_max, before);
    shrink = exp_down(before - s->max);
    return s->max == before ? 1.0f : shrink;
}

/* A key's weight; computed for all, so that no thread branches. */
static __device__ __forceinline__ float weight_of(bool visible, float score, const row_state &s)
{
    float weight = exp_down(score - s.max);

    return visible ? weight : 0.0f;
}

/* Over the four lanes that hold a row of a fragment. */
static __device__ __forceinline__ float quad_max(float v)
{
    v = gpu_max(__shfl_xor_sync(~0u, v, 1), v);
    return gpu_max(__shfl_xor_sync(~0u, v, 2), v);
}
static __device__ __forceinline__ float quad_sum(float v)
{
    v = v + __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

/* acc += p V for a warp's MT tiles of 16 rows and NT blocks of 8 columns from column n16_0 * 16 on;
 * V's tile has a page's 64 keys as rows.  p(m, k16, a) gives the weights of tile m's rows and keys
 * 16 k16 .. as a fragment. */
template <int COLS, int MT, int NT, typename P>
static __device__ __forceinline__ void add_values(float acc[MT][NT][4], const P &p, bt_bf16 *tile,
                                                  uint32_t n16_0)
{
    GPU_UNROLL
    for (uint32_t k16 = 0; k16 < BT_CUDA_PAGE / 16; k16++) {
        uint32_t a[MT][4];

        GPU_UNROLL
        for (int m = 0; m < MT; m++)
            p(m, k16, a[m]);
        GPU_UNROLL
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];

            load_b_rows<COLS>(b, tile, k16, n16_0 + n / 2);
            GPU_UNROLL
            for (int m = 0; m < MT; m++) {
                mma_bf16(acc[m][n], a[m], b);
                mma_bf16(acc[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* Element col of a tile's row. */
template <int COLS>
static __device__ __forceinline__ bt_bf16 *tile_at(bt_bf16 *tile, uint32_t row, uint32_t col)
{
    return tile_chunk<COLS>(tile, row, col / TILE_CHUNK) + col % TILE_CHUNK;
}

static __device__ __forceinline__ bool not_finite(bt_bf16 v) { return (v & 0x7f80u) == 0x7f80u; }

/* Either of two neighbours. */
static __device__ __forceinline__ bool pair_not_finite(uint32_t v)
{
    return not_finite((bt_bf16)v) || not_finite((bt_bf16)(v >> 16));
}

/* Whether columns [0, N_COLS) of a page's values hold an inf or a NaN; for the whole block. */
template <int COLS, int N_COLS> static __device__ bool any_not_finite(bt_bf16 *tile)
{
    enum { CHUNKS = N_COLS / TILE_CHUNK };
    static_assert(N_COLS % TILE_CHUNK == 0, "whole chunks");
    bool bad = false;

    GPU_ONE_AT_A_TIME
    for (uint32_t i = threadIdx.x; i < BT_CUDA_PAGE * CHUNKS; i += blockDim.x) {
        gpu_vec16 v = *(const gpu_vec16 *)tile_chunk<COLS>(tile, i / CHUNKS, i % CHUNKS);

        bad = bad || pair_not_finite(v.x) || pair_not_finite(v.y) || pair_not_finite(v.z) ||
              pair_not_finite(v.w);
    }
    return __syncthreads_or(bad) != 0;
}

/* A weight of 0 keeps a finite value away from a row, but not an inf or a NaN that a later token of
 * the same request has brought.  Where rows of a block see more of a page than others and it holds
 * one, those that see it take it here, and it becomes 0 for add_values(), which has then nothing to
 * keep away.  weights: tile [rows][PAGE]; row0: the warp's first; pos: of the thread's two rows in
 * each of the warp's MT tiles.  For the whole block. */
template <int COLS, int N_COLS, int MT, int NT>
static __device__ __forceinline__ void
take_not_finite(float acc[MT][NT][4], bt_bf16 *weights, bt_bf16 *tile, uint32_t row0, uint32_t col0,
                uint32_t page_start, const uint32_t pos[MT][2])
{
    uint32_t lane = threadIdx.x % GPU_WARP;

    __syncthreads();
    GPU_ONE_AT_A_TIME
    for (uint32_t key = 0; key < BT_CUDA_PAGE; key++) {
        GPU_UNROLL
        for (int i = 0; i < 4 * NT; i++) {
            int     half = i % 4 / 2;
            bt_bf16 v    = *tile_at<COLS>(tile, key, col0 + i / 4 * 8 + lane % 4 * 2 + i % 2);

            if (!not_finite(v)) continue;
            GPU_UNROLL
            for (int m = 0; m < MT; m++) {
                uint32_t row = row0 + m * 16 + half * 8 + lane / 4;
                bt_bf16  p   = *tile_at<BT_CUDA_PAGE>(weights, row, key);
                float   *at  = &acc[m][i / 4][i % 4];

                if (page_start + key <= pos[m][half]) *at = fmaf(f32_of(p), f32_of(v), *at);
            }
        }
    }
    __syncthreads();
    GPU_ONE_AT_A_TIME
    for (uint32_t i = threadIdx.x; i < BT_CUDA_PAGE * N_COLS; i += blockDim.x) {
        bt_bf16 *v = tile_at<COLS>(tile, i / N_COLS, i % N_COLS);

        if (not_finite(*v)) *v = 0;
    }
    __syncthreads();
}

#endif
