/* attention/cuda/decode.cu - the absorbed form: one pass over a part's pages (scores, online
 * softmax, weighted sum of latents), and the merge of parts.  See attn_kernels.h.
 *
 * A block holds WARPS_M * 16 lanes and all C latent columns of their sums in registers: for scores
 * warps stand WARPS_M high over lanes and 8 / WARPS_M wide over keys, for sums each has all lanes
 * and an eighth of the columns.  Pages pass through STAGES tiles in shared memory, each filled as
 * soon as it is free, so that of three two are under way at any time.  Which tile height runs
 * changes no bit: a page's sum of weights adds the 8 blocks of 8 keys ascending,
 * whichever warps hold them. */
#include "attention/cuda/softmax.cuh"

enum { THREADS = 256, N_WARPS = THREADS / GPU_WARP, PAGE = BT_CUDA_PAGE, KEY_BLOCKS = PAGE / 8 };

/* What a block works on. */
typedef struct {
    bt_cuda_span span;
    size_t       lane0;               /* of the step's (row, head) pairs */
    uint32_t     n_lanes;             /* in this tile */
    uint32_t     head0;               /* the first lane's head */
    uint32_t     first_pos, last_pos; /* of its lanes */
    uint32_t     first_page, end_page;
} work;

static __device__ __forceinline__ uint32_t lane_pos(const work &w, uint32_t n_heads, uint32_t lane)
{
    return w.first_pos + (w.head0 + lane) / n_heads;
}

/* Of the thread's two rows in the 16 from row0 on; rows beyond the last stand for it. */
static __device__ __forceinline__ void rows_pos(const work &w, uint32_t n_heads, uint32_t row0,
                                                uint32_t pos[2])
{
    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t row = row0 + half * 8 + threadIdx.x % GPU_WARP / 4;

        pos[half] = lane_pos(w, n_heads, row < w.n_lanes ? row : w.n_lanes - 1);
    }
}

/* false: nothing to do. */
static __device__ bool find_work(const bt_cuda_decode &d, uint32_t bm, work *w)
{
    size_t   total, lane = (size_t)blockIdx.y * bm;
    uint32_t n_heads = d.dims.n_heads, pages;

    w->span = d.spans[blockIdx.z];
    total   = (size_t)w->span.n_rows * n_heads;
    if (lane >= total) return false;
    w->lane0      = (size_t)w->span.first_row * n_heads + lane;
    w->n_lanes    = total - lane < bm ? (uint32_t)(total - lane) : bm;
    w->head0      = (uint32_t)(lane % n_heads);
    w->first_pos  = w->span.start + (uint32_t)(lane / n_heads);
    w->last_pos   = lane_pos(*w, n_heads, w->n_lanes - 1);
    w->first_page = blockIdx.x * d.split_pages;
    pages         = w->last_pos / PAGE + 1;
    w->end_page   = pages < w->first_page + d.split_pages ? pages : w->first_page + d.split_pages;
    return w->first_page < pages;
}

/* Queries: C columns of the latent part, then the rope part, zeros around them. */
template <int C, int BM, bool WIDE>
static __device__ void fill_queries(const bt_cuda_decode &d, const work &w, bt_bf16 *tile)
{
    uint32_t    head_dim = d.dims.nope + d.dims.rope;
    tile_source src      = {d.ql + w.lane0 * d.dims.kv_lora,
                            d.q + w.lane0 * head_dim + d.dims.nope,
                            d.dims.kv_lora,
                            head_dim,
                            (int)d.dims.kv_lora,
                            (int)d.dims.rope};

    fill_tile<C, C + BT_CUDA_MAX_ROPE, BM, THREADS, WIDE>(tile, src, w.n_lanes);
}

/* A page, rows beyond the last position as zeros: what lies there may be anything. */
template <int C, bool WIDE>
static __device__ void fill_page(const bt_cuda_decode &d, const work &w, uint32_t page,
                                 bt_bf16 *tile)
{
    const bt_bf16 *rows   = d.pages.base + d.pages.ids[w.span.page_at + page] * d.pages.page_stride;
    size_t         kv_dim = d.dims.kv_lora + d.dims.rope + d.pages.index_dim;
    tile_source    src    = {rows,   rows + d.dims.kv_lora, kv_dim,
                             kv_dim, (int)d.dims.kv_lora,   (int)d.dims.rope};

    fill_tile<C, C + BT_CUDA_MAX_ROPE, PAGE, THREADS, WIDE>(tile, src,
                                                            w.last_pos + 1 - page * PAGE);
    copy_async_commit();
}

/* Where in the pool the key at place `at` of a span's list lies, in tokens; anywhere if the list
 * ends before. */
static __device__ __forceinline__ uint32_t key_place(const bt_cuda_decode &d, const work &w,
                                                     uint32_t at)
{
    uint32_t pos = at;

    if (at > w.last_pos) return 0;
    if (w.span.list != 0) pos = d.chosen[(size_t)(w.span.list - 1) * d.topk + at];
    return d.pages.ids[w.span.page_at + pos / PAGE] * PAGE + pos % PAGE;
}

/* N_COLS columns of a tile, from COL0 on, of keys at `places`: n_cols columns from `from` on. */
template <int COLS, int COL0, int N_COLS, bool WIDE>
static __device__ __forceinline__ void gather_columns(const bt_cuda_decode &d,
                                                      const uint32_t *places, uint32_t from,
                                                      uint32_t n_rows, int n_cols, bt_bf16 *tile)
{
    enum { CHUNKS = N_COLS / TILE_CHUNK, APART = THREADS / CHUNKS };
    uint32_t kv_dim = d.dims.kv_lora + d.dims.rope + d.pages.index_dim;
    uint32_t chunk = threadIdx.x % CHUNKS, col = chunk * TILE_CHUNK;
    int      n = n_cols - (int)col;

    GPU_UNROLL_BY(2)
    for (uint32_t row = threadIdx.x / CHUNKS; row < PAGE; row += APART) {
        bool           there = n > 0 && row < n_rows;
        uint32_t       place = places[row];
        const bt_bf16 *key   = d.pages.base + place / PAGE * d.pages.page_stride +
                             (size_t)(place % PAGE) * kv_dim + from;

        fill_chunk(tile_chunk<COLS>(tile, row, COL0 / TILE_CHUNK + chunk), there ? key + col : key,
                   there ? n : 0, WIDE);
    }
}

/* A page's worth of keys that lie at `places`, those beyond the last as zeros. */
template <int C, bool WIDE>
static __device__ void gather_page(const bt_cuda_decode &d, const work &w, const uint32_t *places,
                                   uint32_t page, bt_bf16 *tile)
{
    enum { COLS = C + BT_CUDA_MAX_ROPE };
    uint32_t c = d.dims.kv_lora, n_rows = w.last_pos + 1 - page * PAGE;

    gather_columns<COLS, 0, C, WIDE>(d, places, 0, n_rows, (int)c, tile);
    gather_columns<COLS, C, COLS - C, WIDE>(d, places, c, n_rows, (int)d.dims.rope, tile);
    copy_async_commit();
}

/* Scores of a warp's 16 lanes with NT blocks of 8 keys from key0 on; q(k16, a) gives the lanes'
 * columns 16 k16 .. as a fragment. */
template <int COLS, int NT, typename Q>
static __device__ __forceinline__ void score(float s[NT][4], const Q &q, bt_bf16 *page,
                                             uint32_t key0)
{
    uint32_t lane = threadIdx.x % GPU_WARP;

    GPU_UNROLL
    for (int i = 0; i < 4 * NT; i++)
        s[i / 4][i % 4] = 0;
    GPU_UNROLL_BY(Q::AT_ONCE)
    for (uint32_t k32 = 0; k32 < COLS / 32; k32++) {
        uint32_t a[2][4], b[4];

        q(2 * k32, a[0]);
        q(2 * k32 + 1, a[1]);
        GPU_UNROLL
        for (int n = 0; n < NT; n++) {
            /* 8 keys, 32 columns */
            load_matrix(b, tile_chunk_of<COLS>(page, key0 + n * 8 + lane % 8, k32 * 4, lane / 8));
            mma_bf16(s[n], a[0], b);
            mma_bf16(s[n], a[1], b + 2);
        }
    }
}

/* Where a warp has its queries: of one tile of lanes they stay in registers from page to page, so
 * that shared memory gives each page and nothing else; of more, sums leave no room for them. */
template <int COLS, bool KEPT> struct query_rows {
    enum { AT_ONCE = 2 }; /* turns of score() */
    bt_bf16 *tile;
    uint32_t row0;

    __device__ __forceinline__ query_rows(bt_bf16 *queries, uint32_t first)
        : tile(queries), row0(first)
    {
    }
    __device__ __forceinline__ void operator()(uint32_t k16, uint32_t a[4]) const
    {
        load_a<COLS>(a, tile, row0, k16);
    }
};
template <int COLS> struct query_rows<COLS, true> {
    enum { AT_ONCE = COLS / 32 };
    uint32_t kept[COLS / 16][4];

    __device__ __forceinline__ query_rows(bt_bf16 *queries, uint32_t first)
    {
        GPU_UNROLL
        for (uint32_t k16 = 0; k16 < COLS / 16; k16++)
            load_a<COLS>(kept[k16], queries, first, k16);
    }
    __device__ __forceinline__ void operator()(uint32_t k16, uint32_t a[4]) const
    {
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            a[i] = kept[k16][i];
    }
};

/* Where warps exchange what they know of a page. */
typedef struct {
    float   *maxima;  /* [BM][WARPS_N] */
    float   *sums;    /* [BM][KEY_BLOCKS] */
    float   *shrink;  /* [BM] by how much what was summed before shrinks */
    bt_bf16 *weights; /* tile [BM][PAGE] */
} exchange;

/* Scores to weights, in the exchange, and the state of the warp's upper and lower row. */
template <int NT>
static __device__ __forceinline__ void softmax(float s[NT][4], const exchange &x, float scale,
                                               uint32_t page_start, uint32_t row0, uint32_t key0,
                                               const uint32_t pos[2], row_state state[2])
{
    enum { WARPS_N = KEY_BLOCKS / NT };
    uint32_t lane = threadIdx.x % GPU_WARP, quad = lane % 4, warp_n = key0 / (8 * NT);
    float    shrink[2];

    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t row = row0 + half * 8 + lane / 4;
        float    max = NO_KEY;

        GPU_UNROLL
        for (int i = 0; i < 2 * NT; i++) {
            float   *v   = &s[i / 2][2 * half + i % 2];
            uint32_t key = page_start + key0 + i / 2 * 8 + quad * 2 + i % 2;

            *v = *v * scale;
            if (key <= pos[half]) max = gpu_max(*v, max);
        }
        max = quad_max(max);
        if (quad == 0) x.maxima[row * WARPS_N + warp_n] = max;
    }
    __syncthreads();
    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t row = row0 + half * 8 + lane / 4;
        float    max = NO_KEY;

        GPU_UNROLL
        for (int w = 0; w < WARPS_N; w++)
            max = gpu_max(x.maxima[row * WARPS_N + w], max);
        shrink[half] = raise_max(&state[half], max);
        if (quad == 0 && warp_n == 0) x.shrink[row] = shrink[half];
        GPU_UNROLL
        for (int n = 0; n < NT; n++) {
            uint32_t key = page_start + key0 + n * 8 + quad * 2;
            float    a   = weight_of(key <= pos[half], s[n][2 * half], state[half]);
            float    b   = weight_of(key + 1 <= pos[half], s[n][2 * half + 1], state[half]);
            float    sum = quad_sum(a + b);

            if (quad == 0) x.sums[row * KEY_BLOCKS + key0 / 8 + n] = sum;
            *(uint32_t *)(tile_chunk<PAGE>(x.weights, row, key0 / 8 + n) + quad * 2) =
                bf16x2_of(a, b);
        }
    }
    __syncthreads();
    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        const float *sums = x.sums + (row0 + half * 8 + lane / 4) * KEY_BLOCKS;
        float        sum  = sums[0];

        GPU_UNROLL
        for (int b = 1; b < KEY_BLOCKS; b++)
            sum = sum + sums[b];
        state[half].sum = state[half].sum * shrink[half] + sum;
    }
}

/* What was summed before, of all lanes, in the columns of a warp. */
template <int MT, int NT>
static __device__ __forceinline__ void shrink_sums(float acc[MT][NT][4], const exchange &x)
{
    GPU_UNROLL
    for (int i = 0; i < 2 * MT; i++) {
        float shrink = x.shrink[i * 8 + threadIdx.x % GPU_WARP / 4];

        GPU_UNROLL
        for (int n = 0; n < 2 * NT; n++)
            acc[i / 2][n / 2][2 * (i % 2) + n % 2] *= shrink;
    }
}

/* A lane whose context is one part is done; others leave their part for the merge. */
template <int NT>
static __device__ void put_out(const bt_cuda_decode &d, const work &w, uint32_t row0, uint32_t col0,
                               const uint32_t pos[2], const row_state state[2], float acc[NT][4])
{
    uint32_t lane = threadIdx.x % GPU_WARP, c = d.dims.kv_lora, split = d.split_pages * PAGE;

    GPU_UNROLL
    for (int half = 0; half < 2; half++) {
        uint32_t row = row0 + half * 8 + lane / 4;
        size_t   at = w.lane0 + row, part = at * d.max_parts + blockIdx.x;
        bool     only    = pos[half] < split;
        float    inverse = 1.0f / state[half].sum;

        if (row >= w.n_lanes || pos[half] < w.first_page * PAGE) continue;
        if (!only && col0 == 0 && lane % 4 == 0) {
            d.part_ms[2 * part]     = state[half].max;
            d.part_ms[2 * part + 1] = state[half].sum;
        }
        GPU_UNROLL
        for (int i = 0; i < 2 * NT; i++) {
            uint32_t col = col0 + i / 2 * 8 + lane % 4 * 2 + i % 2;
            float    v   = acc[i / 2][2 * half + i % 2];

            if (col >= c) continue;
            if (only) /* + 0: the sign of a zero would tell of keys that the lane does not see */
                d.out[at * c + col] = bf16_of(v * inverse + 0.0f);
            else
                d.part_o[part * c + col] = v;
        }
    }
}

/* Whether a warp's queries stay in registers; see query_rows. */
template <int WARPS_M> static constexpr bool KEEPS_QUERIES = WARPS_M == 1;

/* Bytes: queries (those that warps keep lie at first where the last page will), pages, weights,
 * then the floats of the exchange, and places of keys. */
template <int C, int WARPS_M, int STAGES, bool LISTS> static constexpr size_t shared_bytes(void)
{
    enum { COLS = C + BT_CUDA_MAX_ROPE, BM = WARPS_M * 16, WARPS_N = N_WARPS / WARPS_M };
    enum { QUERIES = KEEPS_QUERIES<WARPS_M> ? 0 : BM };
    return sizeof(bt_bf16) * ((size_t)(QUERIES + STAGES * PAGE) * COLS + BM * PAGE) +
           sizeof(float) * BM * (WARPS_N + KEY_BLOCKS + 1) + (LISTS ? sizeof(uint32_t) * PAGE : 0);
}
enum { HOPPER_SHARED = 227 << 10 };
static_assert(shared_bytes<512, 1, 3, true>() <= HOPPER_SHARED, "three pages for the lowest tile");
static_assert(shared_bytes<512, 4, 2, true>() <= HOPPER_SHARED, "two beside the tallest");
static_assert(shared_bytes<512, 1, 2, true>() <= GPU_LEAST_SHARED, "one less where there is less");
static_assert(shared_bytes<512, 4, 1, true>() <= GPU_LEAST_SHARED, "one less where there is less");

/* LISTS: spans of one row, of which some have lists. */
template <int C, int WARPS_M, int STAGES, bool WIDE, bool LISTS>
static __global__ void __launch_bounds__(THREADS, 1)
    decode_kernel(const GPU_CONSTANT bt_cuda_decode d)
{
    enum {
        COLS    = C + BT_CUDA_MAX_ROPE,
        BM      = WARPS_M * 16,
        WARPS_N = N_WARPS / WARPS_M,
        NT_S    = KEY_BLOCKS / WARPS_N,
        NT_O    = C / N_WARPS / 8,
        TILE    = PAGE * COLS,
        AHEAD   = STAGES > 1 ? STAGES - 1 : 1 /* pages that are filled before they are used */
    };
    constexpr bool KEPT = KEEPS_QUERIES<WARPS_M>;
    static_assert(AHEAD <= 2, "the first pages");
    static_assert(STAGES > 1 || !KEPT, "queries lie where no page comes before they are kept");
    GPU_DYNAMIC_SHARED(bt_bf16, shared);
    bt_bf16  *ring = KEPT ? shared : shared + BM * COLS, *weights = ring + STAGES * TILE;
    bt_bf16  *queries = KEPT ? weights - TILE : shared;
    float    *maxima = (float *)(weights + BM * PAGE), *sums = maxima + BM * WARPS_N;
    exchange  x    = {maxima, sums, sums + BM * KEY_BLOCKS, weights};
    uint32_t  warp = threadIdx.x / GPU_WARP, lane = threadIdx.x % GPU_WARP;
    uint32_t  row0 = warp / WARPS_N * 16, key0 = warp % WARPS_N * NT_S * 8;
    uint32_t  col0     = warp * NT_O * 8, pos[2];
    row_state state[2] = {
        {NO_KEY, 0},
        {NO_KEY, 0}
    };
    float acc[WARPS_M][NT_O][4] = {};
    auto  p = [=](int m, uint32_t k16, uint32_t a[4]) { load_a<PAGE>(a, weights, m * 16, k16); };
    work  w;

    uint32_t *places = (uint32_t *)(x.shrink + BM), next_place = 0; /* of a page's keys; LISTS */
    auto      find_places = [&](uint32_t page) {
        if (LISTS && threadIdx.x < PAGE) next_place = key_place(d, w, page * PAGE + threadIdx.x);
    };
    auto put_places = [&]() {
        if (LISTS && threadIdx.x < PAGE) places[threadIdx.x] = next_place;
    };
    /* Those that were put before the last barrier; then finds where the next page's are. */
    auto fill = [&](uint32_t page, bt_bf16 *tile) {
        if constexpr (LISTS)
            gather_page<C, WIDE>(d, w, places, page, tile);
        else
            fill_page<C, WIDE>(d, w, page, tile);
        find_places(page + 1);
    };

    if (!find_work(d, BM, &w)) return;
    if (LISTS) {
        find_places(w.first_page);
        put_places();
        __syncthreads();
    }
    rows_pos(w, d.dims.n_heads, row0, pos);
    fill_queries<C, BM, WIDE>(d, w, queries);
    fill(w.first_page, ring); /* one group with the queries */
    if constexpr (AHEAD == 2) {
        if (LISTS) {
            __syncthreads(); /* the first page's places have been read */
            put_places();
            __syncthreads();
        }
        if (w.first_page + 1 < w.end_page)
            fill(w.first_page + 1, ring + TILE);
        else
            copy_async_commit();
    }
    copy_async_wait<AHEAD - 1>();
    __syncthreads();
    query_rows<COLS, KEPT> q(queries, row0);
    for (uint32_t page = w.first_page, at = 0; page < w.end_page; page++) {
        uint32_t start = page * PAGE;
        bt_bf16 *tile  = ring + at;
        float    s[NT_S][4];

        if (STAGES > 1) put_places();
        copy_async_wait<AHEAD - 1>();
        __syncthreads();
        if (STAGES > 1 && page + AHEAD < w.end_page)
            fill(page + AHEAD, ring + (at == 0 ? AHEAD * TILE : at - TILE));
        else if (AHEAD > 1)
            copy_async_commit();
        score<COLS, NT_S>(s, q, tile, key0);
        softmax<NT_S>(s, x, d.dims.scale, start, row0, key0, pos, state);
        shrink_sums<WARPS_M, NT_O>(acc, x);
        if (!LISTS && w.first_pos < w.last_pos && w.first_pos < start + PAGE - 1 &&
            any_not_finite<COLS, C>(tile)) {
            uint32_t all_pos[WARPS_M][2];

            GPU_UNROLL
            for (int m = 0; m < WARPS_M; m++)
                rows_pos(w, d.dims.n_heads, m * 16, all_pos[m]);
            take_not_finite<COLS, C, WARPS_M, NT_O>(acc, weights, tile, 0, col0, start, all_pos);
        }
        add_values<COLS, WARPS_M, NT_O>(acc, p, tile, col0 / 16);
        if (STAGES == 1 && page + 1 < w.end_page) {
            put_places();
            __syncthreads();
            fill(page + 1, ring);
        }
        at = at == (STAGES - 1) * TILE ? 0 : at + TILE;
    }
    __syncthreads(); /* the exchange is free */
    if (warp % WARPS_N == 0 && lane % 4 == 0) {
        for (int half = 0; half < 2; half++) {
            maxima[row0 + half * 8 + lane / 4]   = state[half].max;
            x.shrink[row0 + half * 8 + lane / 4] = state[half].sum;
        }
    }
    __syncthreads();
    GPU_UNROLL
    for (int m = 0; m < WARPS_M; m++) {
        uint32_t row = m * 16 + lane / 4;

        rows_pos(w, d.dims.n_heads, m * 16, pos);
        state[0] = row_state{maxima[row], x.shrink[row]};
        state[1] = row_state{maxima[row + 8], x.shrink[row + 8]};
        put_out<NT_O>(d, w, m * 16, col0, pos, state, acc[m]);
    }
}

/* Parts ascending into the first, by log-sum-exp.  One block a lane. */
static __global__ void __launch_bounds__(THREADS) merge_kernel(const GPU_CONSTANT bt_cuda_decode d)
{
    bt_cuda_span span    = d.spans[blockIdx.y];
    uint32_t     n_heads = d.dims.n_heads, c = d.dims.kv_lora, n_parts;
    size_t       lane = (size_t)span.first_row * n_heads + blockIdx.x, at = lane * d.max_parts;

    if (blockIdx.x >= (size_t)span.n_rows * n_heads) return;
    n_parts = (span.start + blockIdx.x / n_heads) / (d.split_pages * PAGE) + 1;
    if (n_parts == 1) return;
    for (uint32_t col = threadIdx.x; col < c; col += THREADS) {
        float max = d.part_ms[2 * at], sum = d.part_ms[2 * at + 1], o = d.part_o[at * c + col];

        for (size_t part = at + 1; part < at + n_parts; part++) {
            float m = d.part_ms[2 * part], top = gpu_max(m, max);
            float a = bt_expf(max - top), b = bt_expf(m - top);

            max = top;
            sum = sum * a + d.part_ms[2 * part + 1] * b;
            o   = o * a + d.part_o[part * c + col] * b;
        }
        d.out[lane * c + col] = bf16_of(o * (1.0f / sum) + 0.0f);
    }
}

template <int C, int WARPS_M, int STAGES, bool LISTS, bool WIDE = true>
static int run(void *stream, const bt_cuda_decode *d)
{
    uint32_t lanes = d->max_rows * d->dims.n_heads;

    return gpu_launch(decode_kernel<C, WARPS_M, STAGES, WIDE, LISTS>,
                      dim3(d->max_parts, gpu_blocks(lanes, WARPS_M * 16), d->n_spans),
                      dim3(THREADS), shared_bytes<C, WARPS_M, STAGES, LISTS>(), stream, *d);
}

/* As many pages in shared memory as the device has room for. */
template <int C, int WARPS_M, bool LISTS>
static int run_staged(void *stream, const bt_cuda_decode *d)
{
    enum { MOST = KEEPS_QUERIES<WARPS_M> ? 3 : 2 };
    constexpr size_t most = shared_bytes<C, WARPS_M, MOST, LISTS>();

    if constexpr (most > GPU_LEAST_SHARED)
        if (most > gpu_max_shared()) return run<C, WARPS_M, MOST - 1, LISTS>(stream, d);
    return run<C, WARPS_M, MOST, LISTS>(stream, d);
}

/* Whether tiles of so many lanes have all, or as blocks find a multiprocessor each. */
static bool is_enough(const bt_cuda_decode *d, uint32_t bm)
{
    uint32_t tiles = gpu_blocks((uint64_t)d->max_rows * d->dims.n_heads, bm);

    return tiles == 1 || (uint64_t)tiles * d->max_parts * d->n_spans <= gpu_n_multiprocessors();
}

/* The lower a tile, the sooner it is through a page, but the more often pages are read. */
template <int C, bool LISTS> static int run_tiled(void *stream, const bt_cuda_decode *d, bool wide)
{
    if (!wide) return run<C, 4, 1, LISTS, false>(stream, d);
    if (is_enough(d, 16)) return run_staged<C, 1, LISTS>(stream, d);
    if (is_enough(d, 32)) return run_staged<C, 2, LISTS>(stream, d);
    return run_staged<C, 4, LISTS>(stream, d);
}

template <int C> static int run_listed(void *stream, const bt_cuda_decode *d, bool wide)
{
    return d->chosen == NULL ? run_tiled<C, false>(stream, d, wide)
                             : run_tiled<C, true>(stream, d, wide);
}

int bt_cuda_decode_run(void *stream, const bt_cuda_decode *d)
{
    const bt_cuda_dims *m  = &d->dims;
    uintptr_t           at = (uintptr_t)d->ql | (uintptr_t)d->q | (uintptr_t)d->pages.base;
    uint32_t            elems =
        m->kv_lora | m->rope | m->nope | d->pages.index_dim | (uint32_t)(d->pages.page_stride % 8);
    int err;

    if (d->n_spans == 0 || d->max_rows == 0) return 0;
    if (m->kv_lora > BT_CUDA_MAX_LATENT || m->rope > BT_CUDA_MAX_ROPE) return BT_CUDA_BAD_SHAPE;
    err = m->kv_lora <= 128 ? run_listed<128>(stream, d, at % 16 == 0 && elems % 8 == 0)
                            : run_listed<512>(stream, d, at % 16 == 0 && elems % 8 == 0);
    if (err != 0 || d->max_parts == 1) return err;
    return gpu_launch(merge_kernel, dim3(d->max_rows * m->n_heads, d->n_spans), dim3(THREADS), 0,
                      stream, *d);
}
