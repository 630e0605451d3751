/* device/cuda/gemm.cu - see gemm.h.
 *
 * A block computes BM rows by 128 weight rows of one group; blockIdx.y counts the row tiles of all
 * groups that have any.  k runs in slices of 64 through a ring of STAGES tiles in shared memory,
 * filled ahead by asynchronous copies.  e4m3 weights come to the ring as they are, and each slice
 * is widened into one bf16 tile beside it when its turn has come. */
#include "device/cuda/gemm.h"

#include "device/cpu/math.h"
#include "device/cuda/fp8.cuh"
#include "device/cuda/gpu.cuh"
#include "device/cuda/tile.cuh"

enum { INVALID_VALUE = 1 }; /* cudaErrorInvalidValue */
enum { BN = 128, BK = 64, THREADS = 256, N_WARPS = THREADS / GPU_WARP, RAW_CHUNK = 16 };

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

/* 16 bytes of a slice's e4m3 weights from src[0 .. n), the rest zeros; see fill_chunk(). */
static __device__ __forceinline__ void fill_raw(uint8_t *dst, const uint8_t *src, int n, bool wide)
{
    if (wide) {
        copy_async16(dst, src, n > 0);
        return;
    }
    for (int i = 0; i < RAW_CHUNK; i++)
        dst[i] = i < n ? src[i] : 0;
}

/* How many of `most` elements from k0 on a row has; UINT32_MAX is no row. */
static __device__ __forceinline__ int n_left(uint32_t row, uint32_t k0, uint32_t k, int most)
{
    return row == UINT32_MAX || k0 >= k ? 0 : k - k0 < (uint32_t)most ? (int)(k - k0) : most;
}

/* Slice `slice` of k of both operands into one stage: x tile, then weights. */
template <int BM, bool FP8>
static __device__ __forceinline__ void fill_stage(const bt_cuda_gemm &g, const bt_bf16 *x,
                                                  const row_tile &rows, bt_bf16 *stage,
                                                  uint32_t slice, bool wide)
{
    enum { PER_W = FP8 ? (int)RAW_CHUNK : (int)TILE_CHUNK };
    bt_bf16 *weights = stage + BM * BK;

    for (uint32_t c = threadIdx.x; c < BM * (BK / TILE_CHUNK); c += THREADS) {
        uint32_t r = c / (BK / TILE_CHUNK), chunk = c % (BK / TILE_CHUNK);
        uint32_t k0 = slice * BK + chunk * TILE_CHUNK;
        uint32_t at = r < rows.n_rows ? rows.first + r : UINT32_MAX;
        int      n;

        if (at != UINT32_MAX && g.x_row != NULL) at = g.x_row[at];
        n = n_left(at, k0, g.k, TILE_CHUNK);
        fill_chunk(tile_chunk<BK>(stage, r, chunk), x + (n > 0 ? at * g.ld_x + k0 : 0), n, wide);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < BN * BK / PER_W / THREADS; i++) {
        uint32_t c = i * THREADS + threadIdx.x, r = c / (BK / PER_W), chunk = c % (BK / PER_W);
        uint32_t k0 = slice * BK + chunk * PER_W, row = weight_row(g, r);
        int      n  = n_left(row, k0, g.k, PER_W);
        size_t   at = n > 0 ? (size_t)row * g.k + k0 : 0;

        if constexpr (FP8)
            fill_raw((uint8_t *)weights + r * BK + chunk * PER_W,
                     (const uint8_t *)g.w[rows.group] + at, n, wide);
        else
            fill_chunk(tile_chunk<BK>(weights, r, chunk), (const bt_bf16 *)g.w[rows.group] + at, n,
                       wide);
    }
    copy_async_commit();
}

/* A slice's e4m3 weights times their scales as bf16. */
static __device__ __forceinline__ void widen(const bt_cuda_gemm &g, const row_tile &rows,
                                             const uint8_t *raw, bt_bf16 *tile, uint32_t slice)
{
    uint32_t     ld      = (g.k + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK;
    const float *scale_0 = g.w_scale[rows.group] + slice * BK / BT_FP8_BLOCK;

    GPU_UNROLL
    for (uint32_t i = 0; i < BN * BK / TILE_CHUNK / THREADS; i++) {
        uint32_t c = i * THREADS + threadIdx.x, r = c / (BK / TILE_CHUNK);
        uint32_t row   = weight_row(g, r), u[4];
        uint64_t v     = *(const uint64_t *)(raw + (size_t)c * TILE_CHUNK);
        float    scale = row == UINT32_MAX ? 0 : scale_0[(size_t)row * ld];

        GPU_UNROLL
        for (int k = 0; k < 4; k++)
            u[k] = bf16x2_of(f32_of_e4m3((uint8_t)(v >> 16 * k)) * scale,
                             f32_of_e4m3((uint8_t)(v >> (16 * k + 8))) * scale);
        *(gpu_vec16 *)tile_chunk<BK>(tile, r, c % (BK / TILE_CHUNK)) =
            gpu_vec16{u[0], u[1], u[2], u[3]};
    }
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

template <int BM, int WARPS_M, int STAGES, bool FP8>
static __global__ void __launch_bounds__(THREADS, BM < 128 ? 1 : 2)
    gemm_kernel(const GPU_CONSTANT bt_cuda_gemm g, bool wide)
{
    enum {
        WARPS_N = N_WARPS / WARPS_M,
        MT      = BM / WARPS_M / 16,
        NT      = BN / WARPS_N / 8,
        WIDE    = FP8 ? BN * BK : 0, /* the tile of widened weights, before the stages */
        STAGE   = (BM + (FP8 ? BN / 2 : BN)) * BK
    };
    GPU_DYNAMIC_SHARED(bt_bf16, shared);
    GPU_SHARED(row_tile, where, 1);
    uint32_t       warp = threadIdx.x / GPU_WARP, n_slices = (g.k + BK - 1) / BK;
    uint32_t       row0 = warp / WARPS_N * MT * 16, col0 = warp % WARPS_N * NT * 8;
    row_tile       rows;
    const bt_bf16 *x              = g.x;
    bt_bf16       *stages         = shared + WIDE;
    float          acc[MT][NT][4] = {};

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
        x += rows.group * g.x_group;
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
        bt_bf16 *stage   = stages + s % STAGES * STAGE;
        bt_bf16 *weights = FP8 ? shared : stage + BM * BK;

        copy_async_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < n_slices)
            fill_stage<BM, FP8>(g, x, rows, stages + (s + STAGES - 1) % STAGES * STAGE,
                                s + STAGES - 1, wide);
        else
            copy_async_commit();
        if constexpr (FP8) {
            widen(g, rows, (const uint8_t *)(stage + BM * BK), weights, s);
            __syncthreads();
        }
        GPU_UNROLL
        for (uint32_t k16 = 0; k16 < BK / 16; k16++) {
            uint32_t a[MT][4], b[4];

            GPU_UNROLL
            for (int m = 0; m < MT; m++)
                load_a<BK>(a[m], stage, row0 + m * 16, k16);
            GPU_UNROLL
            for (int n = 0; n < NT; n += 2) {
                load_b<BK>(b, weights, col0 + n * 8, k16);
                GPU_UNROLL
                for (int m = 0; m < MT; m++) {
                    mma_bf16(acc[m][n], a[m], b);
                    mma_bf16(acc[m][n + 1], a[m], b + 2);
                }
            }
        }
    }
    copy_async_wait<0>();
    put_tile<MT, NT>(g, rows, row0, col0, acc);
}

template <int BM, int WARPS_M, int STAGES, bool FP8>
static int run(void *stream, const bt_cuda_gemm *g, bool wide)
{
    uint64_t tiles = g->row_at != NULL
                         ? ((uint64_t)g->max_rows + (uint64_t)g->n_groups * (BM - 1)) / BM
                         : (uint64_t)gpu_blocks(g->max_rows, BM) * g->n_groups;
    dim3     grid(gpu_blocks(g->n, g->out == BT_CUDA_OUT_SWIGLU ? BN / 2 : BN), (uint32_t)tiles);
    constexpr size_t shared =
        (FP8 ? STAGES * (BM + BN / 2) + BN : STAGES * (BM + BN)) * BK * sizeof(bt_bf16);
    static_assert(shared + sizeof(row_tile) <= GPU_LEAST_SHARED, "a block's stages");

    return gpu_launch(gemm_kernel<BM, WARPS_M, STAGES, FP8>, grid, dim3(THREADS), shared, stream,
                      *g, wide);
}

template <bool FP8> static int run_any(void *stream, const bt_cuda_gemm *g)
{
    uint32_t per_group = g->row_at != NULL ? g->max_rows / g->n_groups : g->max_rows;
    size_t   at        = (uintptr_t)g->x;
    bool     wide      = g->k % (FP8 ? (uint32_t)RAW_CHUNK : (uint32_t)TILE_CHUNK) == 0 &&
                g->ld_x % 8 == 0 && g->x_group % 8 == 0;

    for (uint32_t i = 0; i < g->n_groups; i++)
        at |= (uintptr_t)g->w[i];
    wide = wide && at % 16 == 0;
    if (per_group <= 16) return run<16, 1, 4, FP8>(stream, g, wide);
    if (per_group <= 64) return run<64, 2, 4, FP8>(stream, g, wide);
    return run<128, 2, 3, FP8>(stream, g, wide);
}

int bt_cuda_gemm_run(void *stream, const bt_cuda_gemm *g)
{
    if (g->max_rows == 0 || g->n == 0 || g->n_groups == 0) return 0;
    for (uint32_t i = 1; i < g->n_groups; i++)
        if ((g->w_scale[i] != NULL) != (g->w_scale[0] != NULL)) return INVALID_VALUE;
    return g->w_scale[0] != NULL ? run_any<true>(stream, g) : run_any<false>(stream, g);
}
