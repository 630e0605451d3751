/* attention/cuda/prefill.cu - the normal form over one part of a context whose keys and values were
 * expanded.  See attn_kernels.h.
 *
 * A block holds WARPS * MT * 16 consecutive rows of a span for one head, each warp MT tiles of 16
 * with all their columns.  Keys and values of a page have a tile each; while one is used the other
 * is on its way. */
#include "attention/cuda/softmax.cuh"

enum { PAGE = BT_CUDA_PAGE, WARPS = 4, THREADS = WARPS * GPU_WARP };

typedef struct {
    bt_cuda_span span;
    uint32_t     row0, n_rows;         /* of the tile, in the span */
    uint32_t     first_pos, last_pos;  /* of its rows */
    uint32_t     part_start, end_page; /* pages of the part from its first */
    uint32_t     kv_at;
} work;

/* false: nothing to do. */
static __device__ bool find_work(const bt_cuda_prefill &p, uint32_t bm, work *w)
{
    uint32_t pages, first_page = p.part * p.split_pages;

    w->span  = p.items[blockIdx.z].span;
    w->kv_at = p.items[blockIdx.z].kv_at;
    w->row0  = (gridDim.x - 1 - blockIdx.x) * bm; /* those with the most keys first */
    if (w->row0 >= w->span.n_rows) return false;
    w->n_rows     = w->span.n_rows - w->row0 < bm ? w->span.n_rows - w->row0 : bm;
    w->first_pos  = w->span.start + w->row0;
    w->last_pos   = w->first_pos + w->n_rows - 1;
    w->part_start = first_page * PAGE;
    pages         = w->last_pos / PAGE + 1;
    w->end_page   = pages < first_page + p.split_pages ? pages : first_page + p.split_pages;
    return first_page < pages;
}

/* The position of a thread's i-th row in a warp's tiles, the warp's first row being row0; rows
 * beyond the last stand for it. */
static __device__ __forceinline__ uint32_t row_pos(const work &w, uint32_t row0, int i)
{
    uint32_t pos = w.first_pos + row0 + i * 8 + threadIdx.x % GPU_WARP / 4;

    return pos < w.last_pos ? pos : w.last_pos;
}

/* Rows of keys from `page` on that belong to the span's tile; a later request's may follow. */
static __device__ __forceinline__ uint32_t keys_left(const work &w, uint32_t page)
{
    return w.last_pos + 1 - page * PAGE;
}

template <int DN, bool WIDE>
static __device__ __forceinline__ void fill_keys(const bt_cuda_prefill &p, const work &w,
                                                 uint32_t page, bt_bf16 *tile)
{
    const bt_cuda_dims &m   = p.dims;
    size_t              row = w.kv_at + (page * PAGE - w.part_start);
    const bt_bf16 *rows = p.pages.base + p.pages.ids[w.span.page_at + page] * p.pages.page_stride;
    tile_source    src  = {p.k + (row * m.n_heads + blockIdx.y) * m.nope,
                           rows + m.kv_lora,
                           (size_t)m.n_heads * m.nope,
                           m.kv_lora + m.rope +
                               p.pages.index_dim, /* as a variable it makes ptxas spill */
                           (int)m.nope,
                           (int)m.rope};

    fill_tile<DN, DN + BT_CUDA_MAX_ROPE, PAGE, THREADS, WIDE>(tile, src, keys_left(w, page));
    copy_async_commit();
}

template <int DV, bool WIDE>
static __device__ __forceinline__ void fill_values(const bt_cuda_prefill &p, const work &w,
                                                   uint32_t page, bt_bf16 *tile)
{
    const bt_cuda_dims &m   = p.dims;
    size_t              row = w.kv_at + (page * PAGE - w.part_start);
    const bt_bf16      *v   = p.v + (row * m.n_heads + blockIdx.y) * m.v_dim;
    tile_source         src = {v, v, (size_t)m.n_heads * m.v_dim, 0, (int)m.v_dim, 0};

    fill_tile<DV, DV, PAGE, THREADS, WIDE>(tile, src, keys_left(w, page));
    copy_async_commit();
}

template <int DN, int BM, bool WIDE>
static __device__ __forceinline__ void fill_queries(const bt_cuda_prefill &p, const work &w,
                                                    bt_bf16 *tile)
{
    const bt_cuda_dims &m        = p.dims;
    size_t              head_dim = m.nope + m.rope, row = (size_t)w.span.first_row + w.row0;
    const bt_bf16      *q   = p.q + (row * m.n_heads + blockIdx.y) * head_dim;
    tile_source         src = {q,           q + m.nope, m.n_heads * head_dim, m.n_heads * head_dim,
                               (int)m.nope, (int)m.rope};

    fill_tile<DN, DN + BT_CUDA_MAX_ROPE, BM, THREADS, WIDE>(tile, src, w.n_rows);
}

/* Scores of a warp's rows with a page's keys. */
template <int COLS, int MT>
static __device__ __forceinline__ void score(float s[MT][8][4], bt_bf16 *queries, bt_bf16 *keys,
                                             uint32_t row0)
{
    GPU_UNROLL
    for (int i = 0; i < MT * 32; i++)
        s[i / 32][i / 4 % 8][i % 4] = 0;
    GPU_ONE_AT_A_TIME
    for (uint32_t k16 = 0; k16 < COLS / 16; k16++) {
        uint32_t a[MT][4], b[4];

        GPU_UNROLL
        for (int m = 0; m < MT; m++)
            load_a<COLS>(a[m], queries, row0 + m * 16, k16);
        GPU_UNROLL
        for (int n = 0; n < 8; n += 2) {
            load_b<COLS>(b, keys, n * 8, k16);
            GPU_UNROLL
            for (int m = 0; m < MT; m++) {
                mma_bf16(s[m][n], a[m], b);
                mma_bf16(s[m][n + 1], a[m], b + 2);
            }
        }
    }
}

/* Scores to weights, two neighbouring keys to a word: [block of 8 keys][row].  A row lies in a
 * quad's registers, so nothing leaves the warp.  ALL: each row sees the whole page. */
template <bool ALL>
static __device__ __forceinline__ void softmax(float s[8][4], float scale, uint32_t page_start,
                                               const uint32_t pos[2], row_state state[2],
                                               float shrink[2], uint32_t weights[8][2])
{
    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        float max = NO_KEY, sum = 0;

        GPU_UNROLL
        for (int i = 0; i < 16; i++) {
            float   *v   = &s[i / 2][2 * half + i % 2];
            uint32_t key = page_start + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;

            *v  = ALL || key <= pos[half] ? *v * scale : NO_KEY;
            max = fmaxf(*v, max);
        }
        shrink[half] = raise_max(&state[half], quad_max(max));
        GPU_UNROLL
        for (int n = 0; n < 8; n++) {
            uint32_t key = page_start + n * 8 + threadIdx.x % 4 * 2;
            float    a   = weight_of(ALL || key <= pos[half], s[n][2 * half], state[half]);
            float    b   = weight_of(ALL || key + 1 <= pos[half], s[n][2 * half + 1], state[half]);

            sum              = sum + a;
            sum              = sum + b;
            weights[n][half] = bf16x2_of(a, b);
        }
        state[half].sum = state[half].sum * shrink[half] + quad_sum(sum);
    }
}

/* A warp's weights as a tile [rows][PAGE]. */
static __device__ __forceinline__ void put_weights(const uint32_t weights[8][2], bt_bf16 *tile,
                                                   uint32_t row0)
{
    uint32_t lane = threadIdx.x % GPU_WARP;

    GPU_UNROLL
    for (int i = 0; i < 16; i++)
        *(uint32_t *)tile_at<PAGE>(tile, row0 + i % 2 * 8 + lane / 4, i / 2 * 8 + lane % 4 * 2) =
            weights[i / 2][i % 2];
}

/* A row's earlier parts and this one, by log-sum-exp; then out, or back for the parts to come. */
template <int NT>
static __device__ __forceinline__ void put_out(const bt_cuda_prefill &p, const work &w,
                                               uint32_t row0, const uint32_t pos[2],
                                               const row_state state[2], float acc[NT][4])
{
    uint32_t lane = threadIdx.x % GPU_WARP, dv = p.dims.v_dim, split = p.split_pages * PAGE;

    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t row  = row0 + half * 8 + lane / 4;
        size_t   at   = ((size_t)w.span.first_row + w.row0 + row) * p.dims.n_heads + blockIdx.y;
        bool     last = pos[half] / split == p.part;
        float    max = state[half].max, sum = state[half].sum, a = 0, b = 1, inverse;

        if (row < w.n_rows && pos[half] >= w.part_start && p.part != 0) {
            float before = p.run_ms[2 * at], top = gpu_max(max, before);

            a   = bt_expf(before - top);
            b   = bt_expf(max - top);
            sum = p.run_ms[2 * at + 1] * a + sum * b;
            max = top;
        }
        inverse = 1.0f / sum; /* here: in the loop each element would divide */
        __syncwarp();         /* a quad has read what its first lane writes below */
        if (row >= w.n_rows || pos[half] < w.part_start) continue;
        GPU_UNROLL
        for (int i = 0; i < 2 * NT; i++) {
            uint32_t col = i / 2 * 8 + lane % 4 * 2 + i % 2;
            float    v   = acc[i / 2][2 * half + i % 2];

            if (col >= dv) continue;
            if (p.part != 0) v = p.run_o[at * dv + col] * a + v * b;
            if (last) /* + 0: as for the absorbed form */
                p.out[at * dv + col] = bf16_of(v * inverse + 0.0f);
            else
                p.run_o[at * dv + col] = v;
        }
        if (!last && lane % 4 == 0) {
            p.run_ms[2 * at]     = max;
            p.run_ms[2 * at + 1] = sum;
        }
    }
}

template <int DN, int DV, int MT, bool WIDE>
static __global__ void __launch_bounds__(THREADS, DV <= 128 ? 2 : 1)
    prefill_kernel(const GPU_CONSTANT bt_cuda_prefill p)
{
    enum { COLS = DN + BT_CUDA_MAX_ROPE, BM = WARPS * MT * 16, NT = DV / 8 };
    GPU_DYNAMIC_SHARED(bt_bf16, queries);
    bt_bf16  *keys = queries + BM * COLS, *values = keys + PAGE * COLS, *spare = values + PAGE * DV;
    uint32_t  row0 = threadIdx.x / GPU_WARP * MT * 16, page;
    row_state state[MT][2];
    float     acc[MT][NT][4] = {};
    work      w;

    if (!find_work(p, BM, &w)) return;
    GPU_UNROLL
    for (int i = 0; i < 2 * MT; i++)
        state[i / 2][i % 2] = row_state{NO_KEY, 0};
    page = w.part_start / PAGE;
    fill_queries<DN, BM, WIDE>(p, w, queries);
    fill_keys<DN, WIDE>(p, w, page, keys); /* one group with the queries */
    fill_values<DV, WIDE>(p, w, page, values);
    for (; page < w.end_page; page++) {
        uint32_t start = page * PAGE;
        bool works = row0 < w.n_rows && start <= w.first_pos + row0 + MT * 16 - 1; /* this warp */
        uint32_t weights[MT][8][2];
        auto     fragment = [&](int m, uint32_t k16, uint32_t a[4]) {
            GPU_UNROLL
            for (int i = 0; i < 4; i++)
                a[i] = weights[m][2 * k16 + i / 2][i % 2];
        };

        copy_async_wait<1>(); /* the keys; the values may still be on their way */
        __syncthreads();
        if (works) {
            float s[MT][8][4];

            score<COLS, MT>(s, queries, keys, row0);
            GPU_UNROLL
            for (int m = 0; m < MT; m++) {
                uint32_t pos[2] = {row_pos(w, row0, 2 * m), row_pos(w, row0, 2 * m + 1)};
                float    shrink[2];

                if (start + PAGE - 1 <= w.first_pos + row0)
                    softmax<true>(s[m], p.dims.scale, start, pos, state[m], shrink, weights[m]);
                else
                    softmax<false>(s[m], p.dims.scale, start, pos, state[m], shrink, weights[m]);
                GPU_UNROLL
                for (int i = 0; i < 4 * NT; i++)
                    acc[m][i / 4][i % 4] *= shrink[i % 4 / 2];
            }
        }
        __syncthreads(); /* all have read the keys */
        if (page + 1 < w.end_page)
            fill_keys<DN, WIDE>(p, w, page + 1, keys);
        else
            copy_async_commit();
        copy_async_wait<1>(); /* the values */
        __syncthreads();
        if (w.first_pos < start + PAGE - 1 && any_not_finite<DV, DV>(values)) {
            uint32_t pos[MT][2];

            GPU_UNROLL
            for (int m = 0; m < MT; m++) {
                pos[m][0] = row_pos(w, row0, 2 * m);
                pos[m][1] = row_pos(w, row0, 2 * m + 1);
                if (works) put_weights(weights[m], spare, row0 + m * 16);
            }
            take_not_finite<DV, DV, MT, NT>(acc, spare, values, row0, 0, start, pos);
        }
        if (works) add_values<DV, MT, NT>(acc, fragment, values, 0);
        __syncthreads(); /* all have read the values */
        if (page + 1 < w.end_page)
            fill_values<DV, WIDE>(p, w, page + 1, values);
        else
            copy_async_commit();
    }
    copy_async_wait<0>();
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        uint32_t pos[2] = {row_pos(w, row0, 2 * m), row_pos(w, row0, 2 * m + 1)};

        put_out<NT>(p, w, row0 + m * 16, pos, state[m], acc[m]);
    }
}

template <int DN, int DV, int MT, bool WIDE = true>
static int run(void *stream, const bt_cuda_prefill *p)
{
    enum { COLS = DN + BT_CUDA_MAX_ROPE, BM = WARPS * MT * 16 };
    constexpr size_t shared =
        sizeof(bt_bf16) * ((size_t)(BM + PAGE) * COLS + (size_t)PAGE * DV + (size_t)BM * PAGE);
    static_assert(shared <= GPU_LEAST_SHARED, "a block's tiles");

    return gpu_launch(prefill_kernel<DN, DV, MT, WIDE>,
                      dim3(gpu_blocks(p->max_rows, BM), p->dims.n_heads, p->n_items), dim3(THREADS),
                      shared, stream, *p);
}

int bt_cuda_prefill_run(void *stream, const bt_cuda_prefill *p)
{
    const bt_cuda_dims *m = &p->dims;
    uintptr_t at = (uintptr_t)p->q | (uintptr_t)p->k | (uintptr_t)p->v | (uintptr_t)p->pages.base;
    uint32_t  elems = m->kv_lora | m->rope | m->nope | m->v_dim | p->pages.index_dim |
                     (uint32_t)(p->pages.page_stride % 8);
    bool wide = at % 16 == 0 && elems % 8 == 0;

    if (p->n_items == 0 || p->max_rows == 0) return 0;
    if (m->nope > BT_CUDA_MAX_HEAD || m->v_dim > BT_CUDA_MAX_HEAD || m->rope > BT_CUDA_MAX_ROPE)
        return BT_CUDA_BAD_SHAPE;
    if (!wide) return run<256, 256, 1, false>(stream, p);
    if (m->nope > 128 || m->v_dim > 128) return run<256, 256, 1>(stream, p);
    return p->max_rows <= 64 ? run<128, 128, 1>(stream, p) : run<128, 128, 2>(stream, p);
}
