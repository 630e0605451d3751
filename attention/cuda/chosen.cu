/* attention/cuda/chosen.cu - sparse attention: the indexer's scores of a row's positions, and which
 * of these are the largest.  See attn_kernels.h.
 *
 * Scores: a block has one row's queries, all its heads, and goes through some pages of keys; each
 * warp has 16 keys of a page, which stay in registers while the heads pass, 16 at a time.  A score
 * adds heads in an order of its own, so that it depends on its row and key alone.  The choice: a
 * block a row finds the topk-th largest score digit by digit, then writes down what is not below
 * it. */
#include "attention/cuda/attn_kernels.h"
#include "device/cuda/gpu.cuh"
#include "device/cuda/tile.cuh"

enum {
    PAGE        = BT_CUDA_PAGE,
    COLS        = BT_CUDA_MAX_INDEX,
    WARPS       = 4,
    THREADS     = WARPS * GPU_WARP,
    CHUNK_PAGES = 16, /* that a block goes through */
    STAGES      = 2
};

static_assert(PAGE == WARPS * 16, "a page's keys, 16 a warp");

/* Bytes: pages, queries, weights of heads. */
static constexpr size_t score_shared(uint32_t n_tiles)
{
    return sizeof(bt_bf16) * ((size_t)STAGES * PAGE + n_tiles * 16) * COLS +
           sizeof(float) * n_tiles * 16;
}
static_assert(score_shared(BT_CUDA_MAX_INDEX_HEADS / 16) <= GPU_LEAST_SHARED, "a block's tiles");

static __host__ __device__ __forceinline__ uint32_t tiles_of(uint32_t n_heads)
{
    return (n_heads + 15) / 16;
}
static __host__ __device__ __forceinline__ uint32_t pages_of(uint32_t n_keys)
{
    return (n_keys + PAGE - 1) / PAGE;
}

/* A row's queries, heads beyond the last as zeros, and the weights of its heads. */
template <bool WIDE>
static __device__ void fill_queries(const bt_cuda_choose &c, size_t row, bt_bf16 *tile, float *w)
{
    uint32_t       n = c.n_heads, dim = c.pages.index_dim;
    const bt_bf16 *q = c.q + row * n * dim;

    GPU_ONE_AT_A_TIME
    for (uint32_t h = 0; h < n; h += 16)
        fill_columns<COLS, 0, COLS, 16, THREADS, WIDE>(tile + h * COLS, q + (size_t)h * dim, dim,
                                                       n - h < 16 ? n - h : 16, (int)dim);
    for (uint32_t h = threadIdx.x; h < tiles_of(n) * 16; h += THREADS)
        w[h] = h < n ? c.w[row * n + h] : 0.0f;
}

/* A page's keys, those from n_left on as zeros: what lies there may be anything. */
template <bool WIDE>
static __device__ void fill_keys(const bt_cuda_choose &c, uint32_t id, uint32_t n_left,
                                 bt_bf16 *tile)
{
    uint32_t       before = c.dims.kv_lora + c.dims.rope, dim = c.pages.index_dim;
    const bt_bf16 *keys = c.pages.base + id * c.pages.page_stride + before;

    fill_columns<COLS, 0, COLS, PAGE, THREADS, WIDE>(tile, keys, before + dim, n_left, (int)dim);
    copy_async_commit();
}

/* The scores of a page's first n_keys keys, 16 a warp. */
static __device__ __forceinline__ void score_page(bt_bf16 *queries, const float *w,
                                                  uint32_t n_tiles, bt_bf16 *keys, uint32_t n_keys,
                                                  float *scores)
{
    uint32_t lane = threadIdx.x % GPU_WARP, key0 = threadIdx.x / GPU_WARP * 16;
    uint32_t b[COLS / 16][4];
    float    sum[2][2] = {};

    GPU_UNROLL
    for (uint32_t k16 = 0; k16 < COLS / 16; k16++)
        load_b<COLS>(b[k16], keys, key0, k16);
    GPU_ONE_AT_A_TIME
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        float s[2][4] = {};

        GPU_UNROLL
        for (uint32_t k16 = 0; k16 < COLS / 16; k16++) {
            uint32_t a[4];

            load_a<COLS>(a, queries, tile * 16, k16);
            mma_bf16(s[0], a, b[k16]);
            mma_bf16(s[1], a, b[k16] + 2);
        }
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            float weight = w[tile * 16 + half * 8 + lane / 4];

            GPU_UNROLL
            for (int i = 0; i < 4; i++)
                sum[i / 2][i % 2] =
                    fmaf(weight, gpu_max(s[i / 2][2 * half + i % 2], 0.0f), sum[i / 2][i % 2]);
        }
    }
    GPU_UNROLL
    for (int i = 0; i < 4; i++) { /* over the lanes that hold a key's heads */
        float    v   = sum[i / 2][i % 2];
        uint32_t key = key0 + i / 2 * 8 + lane % 4 * 2 + i % 2;

        for (int x = 4; x < GPU_WARP; x *= 2)
            v = v + __shfl_xor_sync(~0u, v, x);
        if (lane < 4 && key < n_keys) scores[key] = v + 0.0f; /* zeros are equal: one sign */
    }
}

/* Blocks: [rows][chunks of pages]. */
template <bool WIDE>
static __global__ void __launch_bounds__(THREADS) score_kernel(const GPU_CONSTANT bt_cuda_choose c)
{
    GPU_DYNAMIC_SHARED(bt_bf16, ring);
    bt_bf16     *queries = ring + STAGES * PAGE * COLS;
    uint32_t     n_tiles = tiles_of(c.n_heads);
    float       *w       = (float *)(queries + n_tiles * 16 * COLS);
    bt_cuda_span span    = c.spans[blockIdx.y];
    uint32_t     n_keys = span.start + 1, page = blockIdx.x * CHUNK_PAGES, end = pages_of(n_keys);
    const uint32_t *ids    = c.pages.ids + span.page_at;
    float          *scores = c.scores + (size_t)blockIdx.y * pages_of(c.max_keys) * PAGE;

    if (page >= end) return;
    if (end > page + CHUNK_PAGES) end = page + CHUNK_PAGES;
    fill_queries<WIDE>(c, span.first_row, queries, w);
    fill_keys<WIDE>(c, ids[page], n_keys - page * PAGE, ring); /* one group with the queries */
    for (uint32_t i = 0; page < end; i++, page++) {
        copy_async_wait<0>();
        __syncthreads();
        if (page + 1 < end)
            fill_keys<WIDE>(c, ids[page + 1], n_keys - (page + 1) * PAGE,
                            ring + (i + 1) % STAGES * PAGE * COLS);
        score_page(queries, w, n_tiles, ring + i % STAGES * PAGE * COLS, n_keys - page * PAGE,
                   scores + page * PAGE);
    }
}

/* ---- the choice */

enum {
    PICKERS = 1024, /* threads */
    BINS    = 2048,
    AT_ONCE = 4 /* keys that a thread reads */
};
static_assert(PICKERS == GPU_WARP * GPU_WARP, "a warp scans the warps' sums");
static_assert(BINS == 2 * PICKERS, "two bins a thread");

/* A number that orders as the floats do, but NaN: above or below all. */
static __device__ __forceinline__ uint32_t order_of(uint32_t bits)
{
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/* The sum over the warp's lanes up to the own one. */
static __device__ __forceinline__ uint32_t warp_scan(uint32_t v)
{
    uint32_t lane = threadIdx.x % GPU_WARP;

    for (uint32_t by = 1; by < GPU_WARP; by *= 2) {
        uint32_t lower = __shfl_up_sync(~0u, v, by);

        if (lane >= by) v += lower;
    }
    return v;
}

/* The sum over the block's earlier threads, and over all.  part: [GPU_WARP] in shared memory, free
 * before and after. */
static __device__ __forceinline__ uint32_t block_scan(uint32_t v, uint32_t *part, uint32_t *all)
{
    uint32_t lane = threadIdx.x % GPU_WARP, warp = threadIdx.x / GPU_WARP;
    uint32_t up_to = warp_scan(v), warps, before;

    if (lane == GPU_WARP - 1) part[warp] = up_to;
    __syncthreads();
    warps  = warp_scan(part[lane]);
    before = __shfl_sync(~0u, warps, warp == 0 ? 0 : warp - 1);
    *all   = __shfl_sync(~0u, warps, GPU_WARP - 1);
    __syncthreads();
    return (warp == 0 ? 0 : before) + up_to - v;
}

/* How a row's AT_ONCE keys from `key` on order; of those from n_keys on anything. */
static __device__ __forceinline__ void read_orders(const float *scores, uint32_t key,
                                                   uint32_t order[AT_ONCE])
{
    gpu_vec16 v = *(const gpu_vec16 *)(scores + key);

    order[0] = order_of(v.x);
    order[1] = order_of(v.y);
    order[2] = order_of(v.z);
    order[3] = order_of(v.w);
}

/* Those of the orders that begin as nth does (the bits of `known`), counted by their next digit. */
static __device__ void count_digits(const float *scores, uint32_t n_keys, uint32_t nth,
                                    uint32_t known, int shift, uint32_t mask, uint32_t *count)
{
    for (uint32_t bin = threadIdx.x; bin < BINS; bin += PICKERS)
        count[bin] = 0;
    __syncthreads();
    for (uint32_t key = threadIdx.x * AT_ONCE; key < n_keys; key += PICKERS * AT_ONCE) {
        uint32_t order[AT_ONCE];

        read_orders(scores, key, order);
        GPU_UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (key + i < n_keys && (order[i] & known) == nth)
                atomicAdd(&count[order[i] >> shift & mask], 1u);
    }
    __syncthreads();
}

/* The n-th largest order of a row; *n becomes how many of the keys that have it belong to the n
 * largest.  By the whole block. */
static __device__ uint32_t find_nth(const float *scores, uint32_t n_keys, uint32_t *n,
                                    uint32_t *part)
{
    GPU_SHARED(uint32_t, count, BINS);
    GPU_SHARED(uint32_t, found, 2);
    uint32_t nth = 0, known = 0, top = BINS - 1 - 2 * threadIdx.x, all;

    GPU_ONE_AT_A_TIME
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
        uint32_t mask = shift == 0 ? BINS / 2 - 1 : BINS - 1, high, low, before;

        count_digits(scores, n_keys, nth, known, shift, mask, count);
        high   = count[top];
        low    = count[top - 1];
        before = block_scan(high + low, part, &all);
        if (before < *n && *n <= before + high + low) {
            found[0] = *n <= before + high ? top : top - 1;
            found[1] = *n - before - (*n <= before + high ? 0 : high);
        }
        __syncthreads();
        nth |= found[0] << shift;
        known |= mask << shift;
        *n = found[1];
    }
    return nth;
}

/* One block a row. */
static __global__ void __launch_bounds__(PICKERS) pick_kernel(const GPU_CONSTANT bt_cuda_choose c)
{
    GPU_SHARED(uint32_t, part, GPU_WARP);
    bt_cuda_span span   = c.spans[blockIdx.x];
    uint32_t     n_keys = span.start + 1, n_equal = c.topk;
    const float *scores = c.scores + (size_t)blockIdx.x * pages_of(c.max_keys) * PAGE;
    uint32_t    *out    = c.chosen + (size_t)span.first_row * c.topk;
    uint32_t     nth    = find_nth(scores, n_keys, &n_equal, part);
    uint32_t     above = 0, equal = 0; /* keys before these */

    for (uint32_t key0 = 0; key0 < n_keys; key0 += PICKERS * AT_ONCE) {
        uint32_t key = key0 + threadIdx.x * AT_ONCE, order[AT_ONCE] = {}, n = 0, before, all;

        if (key < n_keys) read_orders(scores, key, order);
        GPU_UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (key + i < n_keys) n += (order[i] > nth) + (order[i] == nth) * 0x10000u;
        before            = block_scan(n, part, &all); /* both counts in one number */
        uint32_t my_above = above + before % 0x10000u, my_equal = equal + before / 0x10000u;
        GPU_UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            bool is_above = order[i] > nth, is_equal = order[i] == nth;

            if (key + i >= n_keys) continue;
            if (is_above || (is_equal && my_equal < n_equal))
                out[my_above + (my_equal < n_equal ? my_equal : n_equal)] = key + i;
            my_above += is_above;
            my_equal += is_equal;
        }
        above += all % 0x10000u;
        equal += all / 0x10000u;
    }
}

int bt_cuda_choose_run(void *stream, const bt_cuda_choose *c)
{
    uintptr_t at    = (uintptr_t)c->q | (uintptr_t)c->pages.base;
    uint32_t  elems = (c->dims.kv_lora + c->dims.rope) | c->pages.index_dim |
                     (uint32_t)(c->pages.page_stride % 8);
    dim3   grid(gpu_blocks(c->max_keys, CHUNK_PAGES * PAGE), c->n_spans);
    size_t shared = score_shared(tiles_of(c->n_heads));
    int    err;

    if (c->n_spans == 0) return 0;
    if (c->pages.index_dim > BT_CUDA_MAX_INDEX || c->n_heads > BT_CUDA_MAX_INDEX_HEADS)
        return BT_CUDA_BAD_SHAPE;
    err = at % 16 == 0 && elems % 8 == 0
              ? gpu_launch(score_kernel<true>, grid, dim3(THREADS), shared, stream, *c)
              : gpu_launch(score_kernel<false>, grid, dim3(THREADS), shared, stream, *c);
    if (err != 0) return err;
    return gpu_launch(pick_kernel, dim3(c->n_spans), dim3(PICKERS), 0, stream, *c);
}
