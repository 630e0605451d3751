/* moe/cuda/items.cu - rows to experts and back: the permutation, the items of a row, and the
 * combination of blocks.  See moe_kernels.h. */
#include "device/cuda/gpu.cuh"
#include "moe/cuda/moe_kernels.h"

enum { THREADS = 256, N_WARPS = THREADS / GPU_WARP };

/* ---- permutation: one block an expert; it looks at all rows, so that its terms ascend by row */

typedef struct {
    uint32_t before; /* how many experts of the row stand before this block's on this rank */
    uint32_t entry;  /* which one is this block's; top_k: none */
    bool     ok;     /* else it asks for nothing */
} row_wish;

static __device__ const uint16_t *experts_of(const bt_cuda_permute &p, uint32_t row)
{
    return (const uint16_t *)p.wire + (size_t)row * p.n_wire + p.hidden;
}

static __device__ row_wish wish_of(const bt_cuda_permute &p, uint32_t row)
{
    const uint16_t *experts = experts_of(p, row);
    row_wish        w       = {0, p.top_k, true};

    for (uint32_t j = 0, last = 0; j < p.top_k && w.ok; j++) {
        uint32_t e = experts[j], local;

        w.ok = e < p.n_experts && (j == 0 || e > last);
        last = e;
        if (!w.ok) break;
        local = p.local_of[e];
        w.before += local < blockIdx.x;
        w.entry = local == blockIdx.x ? j : w.entry;
    }
    return w.ok ? w : row_wish{0, p.top_k, false};
}

/* Entries that are nobody's here, and a row that says nonsense. */
static __device__ void check_row(const bt_cuda_permute &p, uint32_t row, bool ok)
{
    const uint16_t *experts = experts_of(p, row);

    if (!ok && experts[0] != BT_NO_EXPERTS) atomicMin(p.bad_row, p.first_row + row);
    for (uint32_t j = 0; j < p.top_k; j++)
        if (!ok || p.local_of[experts[j]] >= p.n_local)
            p.term_of[(size_t)row * p.top_k + j] = UINT32_MAX;
}

static __device__ void put_term(const bt_cuda_permute &p, uint32_t row, uint32_t entry,
                                uint32_t term)
{
    const uint16_t *w = experts_of(p, row) + p.top_k + 2 * entry;

    p.term_row[term]                         = row;
    p.term_weight[term]                      = __uint_as_float((uint32_t)w[1] << 16 | w[0]);
    p.term_of[(size_t)row * p.top_k + entry] = term;
}

/* The sum over the block, in every thread; in_warp is free before and after. */
static __device__ uint32_t sum_all(uint32_t n, uint32_t *in_warp)
{
    uint32_t sum = 0;

    for (int x = GPU_WARP / 2; x >= 1; x /= 2)
        n += __shfl_xor_sync(~0u, n, x);
    if (threadIdx.x % GPU_WARP == 0) in_warp[threadIdx.x / GPU_WARP] = n;
    __syncthreads();
    for (uint32_t w = 0; w < N_WARPS; w++)
        sum += in_warp[w];
    __syncthreads();
    return sum;
}

/* Its first term, and how many it has; each row is checked by one block. */
static __device__ void count_terms(const bt_cuda_permute &p, uint32_t *in_warp, uint32_t *first,
                                   uint32_t *n)
{
    *first = *n = 0;
    for (uint32_t row = threadIdx.x; row < p.n_rows; row += THREADS) {
        row_wish w = wish_of(p, row);

        *first += w.before;
        *n += w.entry < p.top_k;
        if (row % p.n_local == blockIdx.x) check_row(p, row, w.ok);
    }
    *first = sum_all(*first, in_warp);
    *n     = sum_all(*n, in_warp);
}

static __global__ void __launch_bounds__(THREADS)
    permute_kernel(const GPU_CONSTANT bt_cuda_permute p)
{
    GPU_SHARED(uint32_t, in_warp, N_WARPS);
    uint32_t lane = threadIdx.x % GPU_WARP, warp = threadIdx.x / GPU_WARP, at, n;

    count_terms(p, in_warp, &at, &n);
    if (threadIdx.x == 0) {
        p.row_at[blockIdx.x] = at;
        p.rows_run[blockIdx.x] += n;
        if (blockIdx.x + 1 == p.n_local) p.row_at[p.n_local] = at + n;
    }
    for (uint32_t row0 = 0; row0 < p.n_rows && n != 0; row0 += THREADS) {
        uint32_t row   = row0 + threadIdx.x;
        uint32_t entry = row < p.n_rows ? wish_of(p, row).entry : p.top_k;
        uint32_t mask = __ballot_sync(~0u, entry < p.top_k), before = 0, total = 0;

        if (lane == 0) in_warp[warp] = __popc(mask);
        __syncthreads();
        for (uint32_t w = 0; w < N_WARPS; w++) {
            before += w < warp ? in_warp[w] : 0;
            total += in_warp[w];
        }
        if (entry < p.top_k)
            put_term(p, row, entry, at + before + __popc(mask & ((1u << lane) - 1)));
        at += total;
        __syncthreads();
    }
}

int bt_cuda_permute_run(void *stream, const bt_cuda_permute *p)
{
    if (p->n_local == 0) return 0; /* without rows the offsets are still written */
    return gpu_launch(permute_kernel, dim3(p->n_local), dim3(THREADS), 0, stream, *p);
}

static __global__ void __launch_bounds__(THREADS)
    entries_kernel(uint32_t n_rows, uint32_t hidden, uint32_t n_wire, uint32_t n,
                   const bt_bf16 *wire, uint16_t *out)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < (size_t)n_rows * n) out[i] = wire[i / n * n_wire + hidden + i % n];
}

int bt_cuda_entries_run(void *stream, uint32_t n_rows, uint32_t hidden, uint32_t top_k,
                        const bt_bf16 *wire, uint16_t *out)
{
    if (n_rows == 0) return 0;
    return gpu_launch(entries_kernel, dim3(gpu_blocks((uint64_t)n_rows * 3 * top_k, THREADS)),
                      dim3(THREADS), 0, stream, n_rows, hidden, bt_wire_elems(hidden, top_k),
                      3 * top_k, wire, out);
}

/* ---- items: what this rank's experts made of a row; blocks: [rows][parts of the columns], since a
 * decode step's rows alone leave most of a GPU idle */

enum { PART = 4 * THREADS };

#define FOR_COLUMNS(i, n) \
    for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < (n); i += gridDim.y * THREADS)

static __global__ void __launch_bounds__(THREADS) items_kernel(const GPU_CONSTANT bt_cuda_items p)
{
    size_t          row     = blockIdx.x;
    const uint16_t *experts = (const uint16_t *)p.wire + row * p.n_wire + p.hidden;
    const uint32_t *term    = p.term_of + row * p.top_k;
    bt_bf16        *item    = p.items + row * p.items_per_row * p.hidden;

    for (uint32_t j = 0, end; j < p.top_k; j = end) {
        end = j + 1;
        if (term[j] == UINT32_MAX) continue;
        while (p.whole[experts[j] / p.block_size] != 0 && end < p.top_k &&
               experts[end] / p.block_size == experts[j] / p.block_size)
            end++;
        FOR_COLUMNS(i, p.hidden)
        {
            bt_bf16 one = 0;
            float   sum = 0;

            for (uint32_t t = j; t < end; t++) {
                one = bf16_of(p.y[(size_t)term[t] * p.hidden + i] * p.term_weight[term[t]]);
                sum = sum + f32_of(one);
            }
            item[i] = end - j == 1 ? one : bf16_of(sum);
        }
        item += p.hidden;
    }
}

int bt_cuda_items_run(void *stream, const bt_cuda_items *p)
{
    if (p->n_rows == 0) return 0;
    return gpu_launch(items_kernel, dim3(p->n_rows, gpu_blocks(p->hidden, PART)), dim3(THREADS), 0,
                      stream, *p);
}

/* ---- combination; blocks as for the items */

/* Whether entry j begins an item: a whole block's outputs share one, a split block's are single. */
static __device__ bool begins(const bt_cuda_join &c, const uint16_t *experts, uint32_t j)
{
    uint32_t block = experts[j] / c.block_size;

    return j == 0 || c.whole[block] == 0 || experts[j - 1] / c.block_size != block;
}

/* Where the item that entry j begins lies; NULL: the entry before has it. */
static __device__ const bt_bf16 *find_item(const bt_cuda_join &c, size_t row,
                                           const uint16_t *experts, uint32_t j)
{
    uint32_t rank = c.owner[experts[j]], slot = 0;

    if (!begins(c, experts, j)) return NULL;
    for (uint32_t i = 0; i < j; i++)
        slot += c.owner[experts[i]] == rank && begins(c, experts, i);
    if (rank == c.self) return c.own + (row * c.items_of[rank] + slot) * c.hidden;
    return c.came +
           ((size_t)c.n_rows * c.items_before[rank] + row * c.items_of[rank] + slot) * c.hidden;
}

/* Behind the last entry, from j on, of entry j's block. */
static __device__ uint32_t block_end(const bt_cuda_join &c, const uint16_t *experts, uint32_t j)
{
    uint32_t block = experts[j] / c.block_size;

    while (j < c.top_k && experts[j] / c.block_size == block)
        j++;
    return j;
}

/* Column i of what came for the block whose entries are [first, end), from +0. */
static __device__ __forceinline__ float block_part(const bt_bf16 *const *items, uint32_t first,
                                                   uint32_t end, uint32_t i)
{
    float part = 0;

    for (uint32_t j = first; j < end && items[j] != NULL; j++)
        part = part + f32_of(items[j][i]);
    if (end - first <= 1 || items[first + 1] == NULL) return part;
    return f32_of(bf16_of(part)) + 0.0f; /* -0 becomes +0, as for a sum that travelled */
}

static __global__ void __launch_bounds__(THREADS) join_kernel(const GPU_CONSTANT bt_cuda_join c)
{
    GPU_SHARED(const bt_bf16 *, items, BT_MAX_TOP_K);
    GPU_SHARED(uint32_t, ends, BT_MAX_TOP_K); /* of the block that entry j begins */
    size_t          row     = blockIdx.x;
    const uint16_t *experts = (const uint16_t *)c.wire + row * c.n_wire + c.hidden;

    if (experts[0] == BT_NO_EXPERTS) return;
    if (threadIdx.x < c.top_k) {
        items[threadIdx.x] = find_item(c, row, experts, threadIdx.x);
        ends[threadIdx.x]  = block_end(c, experts, threadIdx.x);
    }
    __syncthreads();
    FOR_COLUMNS(i, c.hidden)
    {
        float sum = 0; /* never -0, so that blocks without an entry, which add +0, change nothing */

        for (uint32_t j = 0; j < c.top_k; j = ends[j])
            sum = sum + block_part(items, j, ends[j], i);
        if (c.shared != NULL) sum = sum + c.shared[row * c.hidden + i];
        c.y[row * c.hidden + i] = bf16_of(sum);
    }
}

int bt_cuda_join_run(void *stream, const bt_cuda_join *c)
{
    if (c->n_rows == 0) return 0;
    return gpu_launch(join_kernel, dim3(c->n_rows, gpu_blocks(c->hidden, PART)), dim3(THREADS), 0,
                      stream, *c);
}
