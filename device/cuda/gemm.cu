/* device/cuda/gemm.cu - see gemm.h.
 *
 * A block computes BM rows by BN weight rows of one group; blockIdx.y counts the row tiles of all
 * groups that have any.  k runs in slices of 64 through a ring of STAGES tiles in shared memory,
 * filled ahead by asynchronous copies.  Narrow weights come to the ring as they are, and each slice
 * is widened into one bf16 tile beside it when its turn has come.  Launches that would leave half
 * of the GPU idle take narrow tiles, and so do those that no vector access fits. */
#include "device/cuda/gemm.h"

#include "device/cpu/math.h"
#include "device/cuda/fp8.cuh"
#include "device/cuda/gpu.cuh"
#include "device/cuda/tile.cuh"

enum { INVALID_VALUE = 1 }; /* cudaErrorInvalidValue */
enum { BK = 64, RAW_CHUNK = 16, WIDE_BN = 128, NARROW_BN = 64 };

/* The rows that a block works on. */
typedef struct {
    uint32_t group, first, n_rows;
} row_tile;

/* Tile number `slot` of the groups' tiles of BM rows, in group order; n_rows is 0 beyond the last.
 * By the first warp, for the block: each lane has some neighbouring groups, and asks for all their
 * rows at once. */
template <int BM>
static __device__ void find_tile(const bt_cuda_gemm &g, uint32_t slot, row_tile *tile)
{
    enum { GROUPS = BT_CUDA_MAX_GROUPS / GPU_WARP };
    uint32_t lane = threadIdx.x % GPU_WARP, group = lane * GROUPS, at[GROUPS + 1], n = 0, end;

    GPU_UNROLL
    for (int i = 0; i <= GROUPS; i++)
        at[i] = g.row_at[group + i < g.n_groups ? group + i : g.n_groups];
    GPU_UNROLL
    for (int i = 0; i < GROUPS; i++)
        n += (at[i + 1] - at[i] + BM - 1) / BM;
    end = n; /* becomes the tiles up to this lane's last */
    for (int by = 1; by < GPU_WARP; by *= 2) {
        uint32_t other = __shfl_up_sync(~0u, end, by);

        end += lane >= (uint32_t)by ? other : 0;
    }
    if (slot >= __shfl_sync(~0u, end, GPU_WARP - 1)) {
        if (lane == 0) *tile = row_tile{0, 0, 0};
        return;
    }
    if (slot >= end || slot < end - n) return; /* another lane's */
    slot -= end - n;
    GPU_UNROLL
    for (int i = 0; i < GROUPS; i++) {
        uint32_t rows = at[i + 1] - at[i], n_tiles = (rows + BM - 1) / BM;

        if (slot < n_tiles) {
            rows -= slot * BM;
            *tile = row_tile{group + i, at[i] + slot * BM, rows < BM ? rows : BM};
            return;
        }
        slot -= n_tiles;
    }
}

/* Where tile row r of the weights stands: for swiglu, 8 gate rows alternate with their 8 up rows.
 * UINT32_MAX: nowhere. */
template <int BN>
static __device__ __forceinline__ uint32_t weight_row(const bt_cuda_gemm &g, uint32_t r)
{
    uint32_t n0 = blockIdx.x * (g.out == BT_CUDA_OUT_SWIGLU ? BN / 2 : BN);

    if (g.out != BT_CUDA_OUT_SWIGLU) return n0 + r < g.n ? n0 + r : UINT32_MAX;
    n0 += r / 16 * 8 + r % 8;
    if (n0 >= g.n) return UINT32_MAX;
    return r % 16 < 8 ? n0 : g.n + n0;
}

/* 16 bytes of a slice's narrow weights from src[0 .. n), the rest zeros; see fill_chunk(). */
static __device__ __forceinline__ void fill_raw(uint8_t *dst, const uint8_t *src, int n, bool wide)
{
    if (wide) {
        copy_async16(dst, src, n > 0);
        return;
    }
    GPU_ONE_AT_A_TIME
    for (int i = 0; i < RAW_CHUNK; i++)
        dst[i] = i < n ? src[i] : 0;
}

template <bt_weight_kind KIND> struct weight {
    enum { BITS = KIND == BT_WEIGHT_BF16 ? 16 : KIND == BT_WEIGHT_FP8 ? 8 : 4 };
};

/* What a thread brings of every slice: the same chunk of some rows of x and of the weights, and the
 * scales of the 8 columns of some rows that it widens.  Rows are APART from each other.  A copy for
 * nothing names what has come last. */
template <int BM, int BN, int THREADS, bt_weight_kind KIND> struct share {
    enum {
        W_BITS  = weight<KIND>::BITS,
        PER_W   = RAW_CHUNK * 8 / W_BITS,      /* weights of 16 bytes */
        APART   = THREADS / (BK / TILE_CHUNK), /* of x, and of what is widened */
        X_ROWS  = (BM + APART - 1) / APART,
        W_APART = THREADS / (BK / PER_W),
        W_ROWS  = BN / W_APART,
        V_ROWS  = BN / APART
    };
    static_assert(W_ROWS * W_APART == BN, "each thread brings as many rows");
    const bt_bf16 *x[X_ROWS]; /* of the slice to come */
    const uint8_t *w;         /* likewise, of the first row; the next rows each w_step bytes on */
    int            x_left, w_left; /* elements from there to the end of the row */
    const void    *scale;
    uint32_t       w_step, scale_step;
    uint32_t       n_x, n_w, n_scale; /* how many of the rows there are */
};

/* How many of n weight rows, the first of them row r of the tile, there are. */
template <int BN>
static __device__ __forceinline__ uint32_t weight_rows(const bt_cuda_gemm &g, uint32_t r, int n,
                                                       int apart)
{
    uint32_t there = 0;

    for (int i = 0; i < n; i++)
        there += weight_row<BN>(g, r + i * apart) != UINT32_MAX;
    return there;
}

template <int BM, int BN, int THREADS, bt_weight_kind KIND>
static __device__ __forceinline__ share<BM, BN, THREADS, KIND>
make_share(const bt_cuda_gemm &g, const bt_bf16 *x, const row_tile &rows)
{
    typedef share<BM, BN, THREADS, KIND> S;
    S                                    s = {};
    uint32_t r = threadIdx.x / (BK / TILE_CHUNK), chunk = threadIdx.x % (BK / TILE_CHUNK);
    uint32_t w_r = threadIdx.x / (BK / S::PER_W), w_col = threadIdx.x % (BK / S::PER_W) * S::PER_W;
    uint32_t row  = weight_row<BN>(g, w_r);
    uint32_t half = g.out == BT_CUDA_OUT_SWIGLU ? 2 : 1; /* of a tile's rows are neighbours */

    for (int i = 0; i < S::X_ROWS; i++) {
        uint32_t at  = rows.first + r + i * S::APART;
        bool     has = r + i * S::APART < rows.n_rows;

        if (has && g.x_row != NULL) at = g.x_row[at];
        s.x[i] = x + (has ? at * g.ld_x : 0) + chunk * TILE_CHUNK;
        s.n_x += has;
    }
    s.x_left = (int)g.k - (int)(chunk * TILE_CHUNK);
    s.w_left = (int)g.k - (int)w_col;
    s.n_w    = weight_rows<BN>(g, w_r, S::W_ROWS, S::W_APART);
    s.w_step = S::W_APART / half * g.k / 8 * S::W_BITS;
    s.w      = (const uint8_t *)g.w[rows.group] +
          ((row == UINT32_MAX ? 0 : (size_t)row * g.k) + w_col) * S::W_BITS / 8;
    if (KIND != BT_WEIGHT_BF16) {
        uint32_t ld =
            KIND == BT_WEIGHT_FP8 ? (g.k + BT_FP8_BLOCK - 1) / BT_FP8_BLOCK : g.k / BT_INT4_GROUP;
        size_t bytes = KIND == BT_WEIGHT_FP8 ? sizeof(float) : sizeof(bt_bf16);

        row          = weight_row<BN>(g, r);
        s.n_scale    = weight_rows<BN>(g, r, S::V_ROWS, S::APART);
        s.scale_step = S::APART / half * ld;
        s.scale      = (const uint8_t *)g.w_scale[rows.group] +
                  (row == UINT32_MAX ? 0 : (size_t)row * ld) * bytes;
    }
    gpu_keep(s.n_x), gpu_keep(s.n_w), gpu_keep(s.n_scale);
    gpu_keep(s.w_step), gpu_keep(s.scale_step);
    return s;
}

/* The slice to come of both operands into one stage: x tile, then weights. */
template <int BM, int BN, int THREADS, bt_weight_kind KIND, bool WIDE>
static __device__ __forceinline__ void fill_stage(share<BM, BN, THREADS, KIND> &s, bt_bf16 *stage)
{
    typedef share<BM, BN, THREADS, KIND> S;
    uint32_t r = threadIdx.x / (BK / TILE_CHUNK), chunk = threadIdx.x % (BK / TILE_CHUNK);
    uint32_t w_r = threadIdx.x / (BK / S::PER_W), w_chunk = threadIdx.x % (BK / S::PER_W);
    uint32_t n_x = s.x_left > 0 ? s.n_x : 0, n_w = s.w_left > 0 ? s.n_w : 0;
    uint32_t x_on = s.x_left > BK ? BK : 0, w_on = s.w_left > BK ? BK / 8 * S::W_BITS : 0;
    bt_bf16 *to = tile_chunk<BK>(stage, r, chunk), *weights = stage + BM * BK;

    GPU_UNROLL
    for (uint32_t i = 0; i < S::X_ROWS; i++) {
        if (BM % S::APART == 0 || r < BM)
            fill_chunk(to + i * S::APART * BK, s.x[i], i < n_x ? s.x_left : 0, WIDE);
        s.x[i] += x_on;
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < S::W_ROWS; i++) {
        int            n    = i < n_w ? s.w_left : 0;
        const uint8_t *from = s.w + (i < n_w ? i * s.w_step : 0);

        if constexpr (KIND != BT_WEIGHT_BF16)
            fill_raw((uint8_t *)weights + (w_r + i * S::W_APART) * (BK / 8 * S::W_BITS) +
                         w_chunk * RAW_CHUNK,
                     from, n * S::W_BITS / 8, WIDE);
        else
            fill_chunk(tile_chunk<BK>(weights, w_r, w_chunk) + i * S::W_APART * BK,
                       (const bt_bf16 *)from, n, WIDE);
    }
    s.w += w_on;
    s.x_left -= BK;
    s.w_left -= BK;
    copy_async_commit();
}

/* The scales of the rows that a thread widens; those of rows that are not there stay. */
template <int BM, int BN, int THREADS, bt_weight_kind KIND>
static __device__ __forceinline__ void load_scales(const share<BM, BN, THREADS, KIND> &s,
                                                   uint32_t k, uint32_t slice, float *scale)
{
    uint32_t k0 = slice * BK + threadIdx.x % (BK / TILE_CHUNK) * TILE_CHUNK;

    GPU_UNROLL
    for (uint32_t i = 0; i < share<BM, BN, THREADS, KIND>::V_ROWS; i++) {
        if (i >= s.n_scale) continue;
        if (KIND == BT_WEIGHT_FP8)
            scale[i] = ((const float *)s.scale)[i * s.scale_step + slice * BK / BT_FP8_BLOCK];
        else
            scale[i] =
                k0 < k ? f32_of(((const bt_bf16 *)s.scale)[i * s.scale_step + k0 / BT_INT4_GROUP])
                       : 0;
    }
}

/* Weight i of a word, which has weight + 8: where it stands, 4 i bits up, it is the units of a
 * float of 2^(23 - 4 i).  A float has room for five of them; the last three come down first. */
static __device__ __forceinline__ float f32_of_int4(uint32_t word, int i)
{
    uint32_t up = i < 5 ? 4 * i : 4 * i - 12, size = 1u << (23 - up);

    if (i >= 5) word >>= 12;
    return __uint_as_float((word & 15u << up) | (127 + 23 - up) << 23) - (float)(size + 8);
}

/* A slice's weights of 4 bits times their scales as bf16. */
template <int BN, int THREADS>
static __device__ __forceinline__ void widen_int4(const uint8_t *raw, const float *scale,
                                                  bt_bf16 *tile)
{
    enum { APART = THREADS / (BK / TILE_CHUNK) };
    uint32_t r = threadIdx.x / (BK / TILE_CHUNK), chunk = threadIdx.x % (BK / TILE_CHUNK);

    GPU_UNROLL
    for (int i = 0; i < BN / APART; i++) {
        uint32_t v = *(const uint32_t *)(raw + ((r + i * APART) * BK + chunk * TILE_CHUNK) / 2);
        uint32_t u[4];

        GPU_UNROLL
        for (int k = 0; k < 4; k++)
            u[k] =
                bf16x2_of(f32_of_int4(v, 2 * k) * scale[i], f32_of_int4(v, 2 * k + 1) * scale[i]);
        *(gpu_vec16 *)(tile_chunk<BK>(tile, r, chunk) + i * APART * BK) =
            gpu_vec16{u[0], u[1], u[2], u[3]};
    }
}

/* The same of e4m3. */
template <int BN, int THREADS>
static __device__ __forceinline__ void widen_fp8(const uint8_t *raw, const float *scale,
                                                 bt_bf16 *tile)
{
    enum { APART = THREADS / (BK / TILE_CHUNK) };
    uint32_t r = threadIdx.x / (BK / TILE_CHUNK), chunk = threadIdx.x % (BK / TILE_CHUNK);

    GPU_UNROLL
    for (int i = 0; i < BN / APART; i++) {
        uint64_t v = *(const uint64_t *)(raw + (r + i * APART) * BK + chunk * TILE_CHUNK);
        uint32_t u[4];

        GPU_UNROLL
        for (int k = 0; k < 4; k++) {
            float low, high;

            f32_of_e4m3x2((uint16_t)(v >> 16 * k), &low, &high);
            u[k] = bf16x2_of(low * scale[i], high * scale[i]);
        }
        *(gpu_vec16 *)(tile_chunk<BK>(tile, r, chunk) + i * APART * BK) =
            gpu_vec16{u[0], u[1], u[2], u[3]};
    }
}

static __device__ __forceinline__ float silu(float z) { return z / (bt_expf(-z) + 1.0f); }

/* Whether two neighbouring columns, the first of them even, are one store wherever they lie. */
static __device__ __forceinline__ bool stores_pairs(const bt_cuda_gemm &g)
{
    return (g.ld_y | g.y_group | g.n) % 2 == 0 && (uintptr_t)g.y % 8 == 0;
}

/* Two neighbouring columns of a row; of them, those below n. */
static __device__ __forceinline__ void put2(const bt_cuda_gemm &g, bool pairs, size_t at,
                                            uint32_t col, float a, float b)
{
    if (col >= g.n) return;
    if (g.out == BT_CUDA_OUT_F32) {
        float *y = (float *)g.y + at + col;

        if (pairs) {
            *(gpu_vec8 *)y = gpu_vec8{__float_as_uint(a), __float_as_uint(b)};
            return;
        }
        y[0] = a;
        if (col + 1 < g.n) y[1] = b;
    } else {
        bt_bf16 *y = (bt_bf16 *)g.y + at + col;

        if (pairs) {
            *(uint32_t *)y = bf16x2_of(a, b);
            return;
        }
        y[0] = bf16_of(a);
        if (col + 1 < g.n) y[1] = bf16_of(b);
    }
}

/* fp32 sums of a warp: MT x NT tiles of 16 x 8. */
template <int BN, int MT, int NT>
static __device__ __forceinline__ void put_tile(const bt_cuda_gemm &g, const row_tile &rows,
                                                uint32_t row0, uint32_t col0, float acc[MT][NT][4])
{
    uint32_t lane   = threadIdx.x % GPU_WARP;
    bool     swiglu = g.out == BT_CUDA_OUT_SWIGLU, pairs = stores_pairs(g);

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
                put2(g, pairs, at, col + lane % 4 * 2, a, b);
            }
        }
    }
}

/* One tile of rows.  `shared` holds the stages, before them the widened weights. */
template <int BM, int BN, int WARPS_M, int N_WARPS, int STAGES, bt_weight_kind KIND, bool WIDE>
static __device__ __forceinline__ void multiply_tile(const bt_cuda_gemm &g, const bt_bf16 *x,
                                                     const row_tile &rows, bt_bf16 *shared)
{
    enum {
        THREADS = N_WARPS * GPU_WARP,
        WARPS_N = N_WARPS / WARPS_M,
        MT      = BM / WARPS_M / 16,
        NT      = BN / WARPS_N / 8,
        NARROW  = KIND != BT_WEIGHT_BF16,
        WIDENED = NARROW ? BN * BK : 0,
        STAGE   = (BM + BN * weight<KIND>::BITS / 16) * BK,

        SLICES_A_SCALE = KIND == BT_WEIGHT_FP8 ? BT_FP8_BLOCK / BK : 1
    };
    uint32_t                     warp = threadIdx.x / GPU_WARP, n_slices = (g.k + BK - 1) / BK;
    uint32_t                     row0 = warp / WARPS_N * MT * 16, col0 = warp % WARPS_N * NT * 8;
    bt_bf16                     *stages         = shared + WIDENED;
    float                        acc[MT][NT][4] = {};
    share<BM, BN, THREADS, KIND> mine           = make_share<BM, BN, THREADS, KIND>(g, x, rows);
    float scale[share<BM, BN, THREADS, KIND>::V_ROWS] = {}; /* of the slice to be widened */

    GPU_UNROLL
    for (uint32_t s = 0; s < STAGES - 1; s++) {
        if (s < n_slices)
            fill_stage<BM, BN, THREADS, KIND, WIDE>(mine, stages + s * STAGE);
        else
            copy_async_commit();
    }
    if constexpr (NARROW) load_scales(mine, g.k, 0, scale);
    for (uint32_t s = 0; s < n_slices; s++) {
        bt_bf16 *stage   = stages + s % STAGES * STAGE;
        bt_bf16 *weights = NARROW ? shared : stage + BM * BK;

        copy_async_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < n_slices)
            fill_stage<BM, BN, THREADS, KIND, WIDE>(mine,
                                                    stages + (s + STAGES - 1) % STAGES * STAGE);
        else
            copy_async_commit();
        if constexpr (NARROW) {
            const uint8_t *raw = (const uint8_t *)(stage + BM * BK);

            if constexpr (KIND == BT_WEIGHT_FP8)
                widen_fp8<BN, THREADS>(raw, scale, weights);
            else
                widen_int4<BN, THREADS>(raw, scale, weights);
            if (s + 1 < n_slices && (s + 1) % SLICES_A_SCALE == 0)
                load_scales(mine, g.k, s + 1, scale); /* come while it multiplies */
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
    put_tile<BN, MT, NT>(g, rows, row0, col0, acc);
}

/* WIDE: see fill_chunk().  It is known beforehand, since the loop over slices is short.  With
 * row_at a block goes on to the tile a grid's height below, should there be one. */
template <int BM, int BN, int WARPS_M, int N_WARPS, int STAGES, bt_weight_kind KIND, bool WIDE>
static __global__ void __launch_bounds__(N_WARPS *GPU_WARP, BM == 16 ? 3 : 2)
    gemm_kernel(const GPU_CONSTANT bt_cuda_gemm g)
{
    GPU_DYNAMIC_SHARED(bt_bf16, shared);
    GPU_SHARED(row_tile, where, 1);

    for (uint32_t slot = blockIdx.y;; slot += gridDim.y) {
        const bt_bf16 *x = g.x;
        row_tile       rows;

        if (g.row_at != NULL) {
            if (threadIdx.x < GPU_WARP) find_tile<BM>(g, slot, where);
            __syncthreads();
            rows = where[0];
            if (rows.n_rows == 0) return;
        } else {
            uint32_t per_group = (g.max_rows + BM - 1) / BM, first = slot % per_group * BM;

            rows = row_tile{slot / per_group, first,
                            g.max_rows - first < BM ? g.max_rows - first : BM};
            x += rows.group * g.x_group;
        }
        multiply_tile<BM, BN, WARPS_M, N_WARPS, STAGES, KIND, WIDE>(g, x, rows, shared);
        if (g.row_at == NULL) return;
        __syncthreads(); /* all have read the last stage */
    }
}

/* Of tiles of bm by bn; with row_at at most: each has a row, and a group one that is not full.  Of
 * many ranks' rows most are not this rank's: twice what is likely are enough then, since blocks
 * take more than one tile where that is wrong. */
static dim3 grid_of(const bt_cuda_gemm *g, uint32_t bm, uint32_t bn)
{
    uint32_t with_rows = g->n_groups < g->max_rows ? g->n_groups : g->max_rows;
    uint64_t tiles     = g->row_at != NULL
                             ? ((uint64_t)g->max_rows + (uint64_t)with_rows * (bm - 1)) / bm
                             : (uint64_t)gpu_blocks(g->max_rows, bm) * g->n_groups;
    uint64_t likely    = 2 * (uint64_t)gpu_blocks(g->likely_rows, bm) * g->n_groups;

    if (g->row_at != NULL && g->likely_rows != 0 && likely < tiles) tiles = likely;
    return dim3(gpu_blocks(g->n, g->out == BT_CUDA_OUT_SWIGLU ? bn / 2 : bn), (uint32_t)tiles);
}

template <int BM, int BN, int WARPS_M, int N_WARPS, int STAGES, bt_weight_kind KIND,
          bool WIDE = true>
static int run(void *stream, const bt_cuda_gemm *g)
{
    constexpr size_t shared =
        (STAGES * (BM + BN * weight<KIND>::BITS / 16) + (KIND != BT_WEIGHT_BF16 ? BN : 0)) * BK *
        sizeof(bt_bf16);
    static_assert(shared + sizeof(row_tile) <= GPU_LEAST_SHARED, "a block's stages");

    return gpu_launch(gemm_kernel<BM, BN, WARPS_M, N_WARPS, STAGES, KIND, WIDE>, grid_of(g, BM, BN),
                      dim3(N_WARPS * GPU_WARP), shared, stream, *g);
}

template <bt_weight_kind KIND> static bool is_wide(const bt_cuda_gemm *g)
{
    uint32_t  chunk = RAW_CHUNK * 8 / weight<KIND>::BITS;
    uintptr_t at    = (uintptr_t)g->x;

    for (uint32_t i = 0; i < g->n_groups; i++)
        at |= (uintptr_t)g->w[i];
    return at % 16 == 0 && g->k % chunk == 0 && g->ld_x % 8 == 0 && g->x_group % 8 == 0;
}

template <bt_weight_kind KIND> static int run_any(void *stream, const bt_cuda_gemm *g)
{
    uint32_t per_group = g->row_at == NULL     ? g->max_rows
                         : g->likely_rows != 0 ? g->likely_rows
                                               : g->max_rows / g->n_groups;
    uint32_t bm        = per_group <= 16 ? 16 : per_group <= 64 ? 64 : 128;
    dim3     grid      = grid_of(g, bm, WIDE_BN);
    bool     narrow    = (uint64_t)grid.x * grid.y * 2 <= gpu_n_multiprocessors();

    if (!is_wide<KIND>(g)) return run<64, NARROW_BN, 2, 4, 4, KIND, false>(stream, g);
    if (bm == 16)
        return narrow ? run<16, NARROW_BN, 1, 4, 8, KIND>(stream, g)
                      : run<16, WIDE_BN, 1, 8, 4, KIND>(stream, g);
    if (narrow) return run<64, NARROW_BN, 2, 4, 6, KIND>(stream, g);
    return bm == 64 ? run<64, WIDE_BN, 2, 8, 4, KIND>(stream, g)
                    : run<128, WIDE_BN, 2, 4, 3, KIND>(stream, g);
}

int bt_cuda_gemm_run(void *stream, const bt_cuda_gemm *g)
{
    if (g->max_rows == 0 || g->n == 0 || g->n_groups == 0) return 0;
    for (uint32_t i = 0; i < g->n_groups; i++)
        if ((g->w_scale[i] != NULL) != (g->kind != BT_WEIGHT_BF16)) return INVALID_VALUE;
    switch (g->kind) {
    case BT_WEIGHT_BF16: return run_any<BT_WEIGHT_BF16>(stream, g);
    case BT_WEIGHT_FP8: return run_any<BT_WEIGHT_FP8>(stream, g);
    case BT_WEIGHT_INT4:
        return g->k % BT_INT4_GROUP == 0 ? run_any<BT_WEIGHT_INT4>(stream, g) : INVALID_VALUE;
    case BT_WEIGHT_BF12: break; /* of a CPU */
    }
    return INVALID_VALUE;
}
