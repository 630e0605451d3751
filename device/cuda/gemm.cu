/* device/cuda/gemm.cu - see gemm.h.
 *
 * A block computes BM rows by 128 weight rows of one group; blockIdx.y counts the row tiles of all
 * groups that have any.  k runs in slices of 64 through a ring of STAGES tiles in shared memory,
 * filled ahead by asynchronous copies (FP8: through registers, widened to bf16 on the way). */
#include "device/cuda/gemm.h"

#include "device/cpu/math.h"
#include "device/cuda/fp8.cuh"
#include "device/cuda/gpu.cuh"
#include "device/cuda/tile.cuh"

enum { BN = 128, BK = 64, THREADS = 256, N_WARPS = THREADS / GPU_WARP, FP8_BLOCK = 128 };

/* The rows that a block works on. */
typedef struct {
    uint32_t group, first, n_rows;
} row_tile;

/* Tile number `slot` of the groups' tiles of bm rows, in group order; n_rows is 0 beyond the last.
 * For the first warp, every lane alike. */
static __device__ row_tile find_tile(const bt_cuda_gemm &g, uint32_t slot, uint32_t bm)
{
    uint32_t lane = threadIdx.x % GPU_WARP, before = 0;

    for (uint32_t g0 = 0; g0 < g.n_groups; g0 += GPU_WARP) {
        bool     in    = g0 + lane < g.n_groups;
        uint32_t first = in ? g.row_at[g0 + lane] : 0;
        uint32_t n     = in ? g.row_at[g0 + lane + 1] - first : 0;
        uint32_t end   = (n + bm - 1) / bm; /* becomes the tiles up to this group */
        uint32_t found, here;

        for (int by = 1; by < GPU_WARP; by *= 2) {
            uint32_t other = __shfl_up_sync(~0u, end, by);

            end += lane >= (uint32_t)by ? other : 0;
        }
        found = __ballot_sync(~0u, before + end > slot);
        if (found == 0) {
            before += __shfl_sync(~0u, end, GPU_WARP - 1);
            continue;
        }
        here = (uint32_t)__ffs((int)found) - 1;
        slot -= before + __shfl_sync(~0u, end, here) -
                (__shfl_sync(~0u, n, here) + bm - 1) / bm; /* within the group */
        first = __shfl_sync(~0u, first, here) + slot * bm;
        n     = __shfl_sync(~0u, n, here) - slot * bm;
        return row_tile{g0 + here, first, n < bm ? n : bm};
    }
    return row_tile{0, 0, 0};
}

/* Where tile row r of the weights stands: for swiglu, 8 gate rows alternate with their 8 up rows.
 * UINT32_MAX: nowhere. */
static __device__ __forceinline__ uint32_t weight_row(const bt_cuda_gemm &g, uint32_t r)
{
    uint32_t n0 = blockIdx.x * (g.out == BT_CUDA_OUT_SWIGLU ? BN / 2 : BN);

    if (g.out != BT_CUDA_OUT_SWIGLU) return n0 + r < g.n ? n0 + r : UINT32_MAX;
    n0 += r / 16 * 8 + r % 8;
    if (n0 >= g.n) return UINT32_MAX;
    return r % 16 < 8 ? n0 : g.n + n0;
}

/* 8 elements of k from k0 on, of a row or of none (at == UINT32_MAX), into a chunk. */
template <bool FP8>
static __device__ __forceinline__ void fill(bt_bf16 *dst, const void *mem, size_t ld, uint32_t at,
                                            uint32_t k0, uint32_t k, bool wide)
{
    int n = at == UINT32_MAX || k0 >= k ? 0 : k - k0 < 8 ? (int)(k - k0) : 8;

    if (FP8) {
        const uint8_t *src = (const uint8_t *)mem + (size_t)at * ld + k0;
        uint64_t       raw = 0;
        uint32_t       u[4];

        if (wide && n == 8)
            raw = *(const uint64_t *)src;
        else
            for (int i = 0; i < n; i++)
                raw |= (uint64_t)src[i] << 8 * i;
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            u[i] = bf16x2_of(f32_of_e4m3((uint8_t)(raw >> 16 * i)),
                             f32_of_e4m3((uint8_t)(raw >> (16 * i + 8))));
        *(gpu_vec16 *)dst = gpu_vec16{u[0], u[1], u[2], u[3]};
    } else {
        fill_chunk(dst, (const bt_bf16 *)mem + (n > 0 ? (size_t)at * ld + k0 : 0), n, wide);
    }
}

/* Slice `slice` of k of both operands into one stage: x tile, then weight tile. */
template <int BM, bool FP8>
static __device__ __forceinline__ void fill_stage(const bt_cuda_gemm &g, const void *x,
                                                  const row_tile &rows, bt_bf16 *stage,
                                                  uint32_t slice, bool wide)
{
    for (uint32_t c = threadIdx.x; c < (BM + BN) * (BK / 8); c += THREADS) {
        uint32_t r = c / (BK / 8), chunk = c % (BK / 8), k0 = slice * BK + chunk * 8, at;
        bt_bf16 *dst = tile_chunk<BK>(stage, r, chunk);

        if (r < BM) {
            at = r < rows.n_rows ? rows.first + r : UINT32_MAX;
            if (at != UINT32_MAX && g.x_row != NULL) at = g.x_row[at];
            fill<FP8>(dst, x, g.ld_x, at, k0, g.k, wide);
        } else {
            fill<FP8>(dst, g.w[rows.group], g.k, weight_row(g, r - BM), k0, g.k, wide);
        }
    }
    copy_async_commit();
}

static __device__ __forceinline__ float silu(float z) { return z / (bt_expf(-z) + 1.0f); }

/* Two neighbouring columns of a row; of them, those below n. */
static __device__ __forceinline__ void put2(const bt_cuda_gemm &g, size_t at, uint32_t col, float a,
                                            float b)
{
    if (g.out == BT_CUDA_OUT_F32) {
        if (col < g.n) ((float *)g.y)[at + col] = a;
        if (col + 1 < g.n) ((float *)g.y)[at + col + 1] = b;
    } else {
        if (col < g.n) ((bt_bf16 *)g.y)[at + col] = bf16_of(a);
        if (col + 1 < g.n) ((bt_bf16 *)g.y)[at + col + 1] = bf16_of(b);
    }
}

/* fp32 sums of a warp: MT x NT tiles of 16 x 8. */
template <int MT, int NT>
static __device__ __forceinline__ void put_tile(const bt_cuda_gemm &g, const row_tile &rows,
                                                uint32_t row0, uint32_t col0, float acc[MT][NT][4])
{
    uint32_t lane   = threadIdx.x % GPU_WARP;
    bool     swiglu = g.out == BT_CUDA_OUT_SWIGLU;

    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            uint32_t row = row0 + m * 16 + half * 8 + lane / 4;
            size_t   at  = (size_t)(rows.first + row) * g.ld_y + rows.group * g.y_group;

            if (row >= rows.n_rows) continue;
            GPU_UNROLL
            for (int n = 0; n < NT; n++) {
                uint32_t col = col0 + n * 8;
                float    a = acc[m][n][2 * half], b = acc[m][n][2 * half + 1];

                if (swiglu && n % 2 != 0) continue;
                if (swiglu) {
                    const float *up = &acc[m][(n + 1) % NT][2 * half];

                    a   = silu(f32_of(bf16_of(a))) * f32_of(bf16_of(up[0]));
                    b   = silu(f32_of(bf16_of(b))) * f32_of(bf16_of(up[1]));
                    col = blockIdx.x * (BN / 2) + col / 2;
                } else {
                    col += blockIdx.x * BN;
                }
                put2(g, at, col + lane % 4 * 2, a, b);
            }
        }
    }
}

/* total += x_scale w_scale part, for one slice of 128 k; part starts anew. */
template <int MT, int NT>
static __device__ __forceinline__ void add_scaled(const bt_cuda_gemm &g, const row_tile &rows,
                                                  uint32_t row0, uint32_t k_block,
                                                  float part[MT][NT][4], float total[MT][NT][4])
{
    uint32_t     lane = threadIdx.x % GPU_WARP, ld = (g.k + FP8_BLOCK - 1) / FP8_BLOCK;
    bool         swiglu     = g.out == BT_CUDA_OUT_SWIGLU;
    uint32_t     n0         = blockIdx.x * (swiglu ? BN / 2 : BN) / FP8_BLOCK;
    const float *w          = g.w_scale[rows.group] + (size_t)n0 * ld + k_block;
    float        w_scale[2] = {w[0], w[0]};

    if (swiglu) w_scale[1] = w[(size_t)((g.n + FP8_BLOCK - 1) / FP8_BLOCK) * ld];
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            uint32_t row = row0 + m * 16 + half * 8 + lane / 4, at = rows.first + row;
            float    x_scale = 0;

            if (row < rows.n_rows) {
                if (g.x_row != NULL) at = g.x_row[at];
                x_scale = g.x_scale[(size_t)at * ld + k_block];
            }
            GPU_UNROLL
            for (int n = 0; n < NT; n++) {
                float scale = x_scale * w_scale[n % 2];

                GPU_UNROLL
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    total[m][n][i] = fmaf(scale, part[m][n][i], total[m][n][i]);
                    part[m][n][i]  = 0;
                }
            }
        }
    }
}

template <int BM, int WARPS_M, int STAGES, bool FP8>
static __global__ void __launch_bounds__(THREADS, FP8 || BM < 128 ? 1 : 2)
    gemm_kernel(const GPU_CONSTANT bt_cuda_gemm g, bool wide)
{
    enum {
        WARPS_N = N_WARPS / WARPS_M,
        MT      = BM / WARPS_M / 16,
        NT      = BN / WARPS_N / 8,
        STAGE   = (BM + BN) * BK
    };
    GPU_DYNAMIC_SHARED(bt_bf16, stages);
    GPU_SHARED(row_tile, where, 1);
    uint32_t    warp = threadIdx.x / GPU_WARP, n_slices = (g.k + BK - 1) / BK;
    uint32_t    row0 = warp / WARPS_N * MT * 16, col0 = warp % WARPS_N * NT * 8;
    row_tile    rows;
    const char *x              = (const char *)g.x;
    float       acc[MT][NT][4] = {}, total[FP8 ? MT : 1][FP8 ? NT : 1][4] = {};

    if (g.row_at != NULL) {
        if (warp == 0) {
            rows = find_tile(g, blockIdx.y, BM);
            if (threadIdx.x == 0) where[0] = rows;
        }
        __syncthreads();
        rows = where[0];
    } else {
        uint32_t per_group = (g.max_rows + BM - 1) / BM, first = blockIdx.y % per_group * BM;

        rows = row_tile{blockIdx.y / per_group, first,
                        g.max_rows - first < BM ? g.max_rows - first : BM};
        x += rows.group * g.x_group * (FP8 ? 1 : sizeof(bt_bf16));
    }
    if (rows.n_rows == 0) return;

    GPU_UNROLL
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < n_slices)
            fill_stage<BM, FP8>(g, x, rows, stages + s * STAGE, s, wide);
        else
            copy_async_commit();
    }
    for (uint32_t s = 0; s < n_slices; s++) {
        bt_bf16 *stage = stages + s % STAGES * STAGE;

        copy_async_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < n_slices)
            fill_stage<BM, FP8>(g, x, rows, stages + (s + STAGES - 1) % STAGES * STAGE,
                                s + STAGES - 1, wide);
        else
            copy_async_commit();
        GPU_UNROLL
        for (uint32_t k16 = 0; k16 < BK / 16; k16++) {
            uint32_t a[MT][4], b[4];

            GPU_UNROLL
            for (int m = 0; m < MT; m++)
                load_a<BK>(a[m], stage, row0 + m * 16, k16);
            GPU_UNROLL
            for (int n = 0; n < NT; n += 2) {
                load_b<BK>(b, stage + BM * BK, col0 + n * 8, k16);
                GPU_UNROLL
                for (int m = 0; m < MT; m++) {
                    mma_bf16(acc[m][n], a[m], b);
                    mma_bf16(acc[m][n + 1], a[m], b + 2);
                }
            }
        }
        if constexpr (FP8) {
            if ((s + 1) % (FP8_BLOCK / BK) == 0 || s + 1 == n_slices)
                add_scaled<MT, NT>(g, rows, row0, s / (FP8_BLOCK / BK), acc, total);
        }
    }
    copy_async_wait<0>();
    if constexpr (FP8)
        put_tile<MT, NT>(g, rows, row0, col0, total);
    else
        put_tile<MT, NT>(g, rows, row0, col0, acc);
}

template <int BM, int WARPS_M, int STAGES, bool FP8>
static int run(void *stream, const bt_cuda_gemm *g, bool wide)
{
    uint64_t tiles = g->row_at != NULL
                         ? ((uint64_t)g->max_rows + (uint64_t)g->n_groups * (BM - 1)) / BM
                         : (uint64_t)gpu_blocks(g->max_rows, BM) * g->n_groups;
    dim3     grid(gpu_blocks(g->n, g->out == BT_CUDA_OUT_SWIGLU ? BN / 2 : BN), (uint32_t)tiles);

    return gpu_launch(gemm_kernel<BM, WARPS_M, STAGES, FP8>, grid, dim3(THREADS),
                      (size_t)STAGES * (BM + BN) * BK * sizeof(bt_bf16), stream, *g, wide);
}

template <bool FP8> static int run_any(void *stream, const bt_cuda_gemm *g)
{
    uint32_t per_group = g->row_at != NULL ? g->max_rows / g->n_groups : g->max_rows;
    size_t   at        = (uintptr_t)g->x;
    bool     wide      = g->k % 8 == 0 && g->ld_x % 8 == 0 && g->x_group % 8 == 0;

    for (uint32_t i = 0; i < g->n_groups; i++)
        at |= (uintptr_t)g->w[i];
    wide = wide && at % (FP8 ? 8 : 16) == 0;
    if (per_group <= 16) return run<16, 1, 4, FP8>(stream, g, wide);
    if (per_group <= 64) return run<64, 2, 4, FP8>(stream, g, wide);
    return run<128, 2, 3, FP8>(stream, g, wide);
}

int bt_cuda_gemm_run(void *stream, const bt_cuda_gemm *g)
{
    if (g->max_rows == 0 || g->n == 0 || g->n_groups == 0) return 0;
    return g->x_scale != NULL ? run_any<true>(stream, g) : run_any<false>(stream, g);
}
