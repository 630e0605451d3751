/* moe/cuda/items.cu - rows to experts and back: the permutation, the items of a row, and the
 * combination of blocks.  See moe_kernels.h. */
#include "device/cuda/gpu.cuh"
#include "moe/cuda/moe_kernels.h"

enum { THREADS = 256, N_WARPS = THREADS / GPU_WARP };

/* ---- permutation: one block an expert; it scans all entries, so that its terms ascend by row */

static __device__ bool row_ok(const bt_cuda_permute &p, const uint16_t *experts)
{
    bool ok = true;

    for (uint32_t j = 0; j < p.top_k; j++)
        ok = ok && experts[j] < p.n_experts && (j == 0 || experts[j] > experts[j - 1]);
    return ok;
}

/* Whether entry i (of n_rows top_k) asks for this block's expert. */
static __device__ bool asks(const bt_cuda_permute &p, size_t i)
{
    const uint16_t *experts;

    if (i >= (size_t)p.n_rows * p.top_k) return false;
    experts = (const uint16_t *)p.wire + i / p.top_k * p.n_wire + p.hidden;
    return row_ok(p, experts) && p.local_of[experts[i % p.top_k]] == blockIdx.x;
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

static __global__ void __launch_bounds__(THREADS) count_kernel(const GPU_CONSTANT bt_cuda_permute p)
{
    GPU_SHARED(uint32_t, in_warp, N_WARPS);
    uint32_t n = 0;

    for (size_t i = threadIdx.x; i < (size_t)p.n_rows * p.top_k; i += THREADS)
        n += asks(p, i);
    n = sum_all(n, in_warp);
    if (threadIdx.x == 0) p.count[blockIdx.x] = n;
    if (threadIdx.x == 0) p.rows_run[blockIdx.x] += n;
}

/* Entries that are nobody's here, and rows that say nonsense. */
static __global__ void __launch_bounds__(THREADS) check_kernel(const GPU_CONSTANT bt_cuda_permute p)
{
    uint32_t        row = blockIdx.x * THREADS + threadIdx.x;
    const uint16_t *experts;
    bool            ok;

    if (row >= p.n_rows) return;
    experts = (const uint16_t *)p.wire + (size_t)row * p.n_wire + p.hidden;
    ok      = row_ok(p, experts);
    if (!ok && experts[0] != BT_NO_EXPERTS) atomicMin(p.bad_row, p.first_row + row);
    for (uint32_t j = 0; j < p.top_k; j++)
        if (!ok || p.local_of[experts[j]] >= p.n_local)
            p.term_of[(size_t)row * p.top_k + j] = UINT32_MAX;
}

static __global__ void __launch_bounds__(THREADS) fill_kernel(const GPU_CONSTANT bt_cuda_permute p)
{
    GPU_SHARED(uint32_t, in_warp, N_WARPS);
    uint32_t lane = threadIdx.x % GPU_WARP, warp = threadIdx.x / GPU_WARP, at = 0;

    for (uint32_t e = threadIdx.x; e < blockIdx.x; e += THREADS)
        at += p.count[e];
    at = sum_all(at, in_warp);
    if (threadIdx.x == 0) {
        p.row_at[blockIdx.x] = at;
        if (blockIdx.x + 1 == p.n_local) p.row_at[p.n_local] = at + p.count[blockIdx.x];
    }
    for (size_t i0 = 0; i0 < (size_t)p.n_rows * p.top_k; i0 += THREADS) {
        size_t   i = i0 + threadIdx.x, row = i / p.top_k;
        bool     mine = asks(p, i);
        uint32_t mask = __ballot_sync(~0u, mine), before = 0, total = 0;

        if (lane == 0) in_warp[warp] = __popc(mask);
        __syncthreads();
        for (uint32_t w = 0; w < N_WARPS; w++) {
            before += w < warp ? in_warp[w] : 0;
            total += in_warp[w];
        }
        if (mine) {
            uint32_t        term = at + before + __popc(mask & ((1u << lane) - 1));
            const uint16_t *w =
                (const uint16_t *)p.wire + row * p.n_wire + p.hidden + p.top_k + 2 * (i % p.top_k);

            p.term_row[term]    = (uint32_t)row;
            p.term_weight[term] = __uint_as_float((uint32_t)w[1] << 16 | w[0]);
            p.term_of[i]        = term;
        }
        at += total;
        __syncthreads();
    }
}

int bt_cuda_permute_run(void *stream, const bt_cuda_permute *p)
{
    int err;

    if (p->n_local == 0) return 0; /* without rows the offsets are still written */
    err = gpu_launch(count_kernel, dim3(p->n_local), dim3(THREADS), 0, stream, *p);
    if (err == 0 && p->n_rows != 0)
        err = gpu_launch(check_kernel, dim3(gpu_blocks(p->n_rows, THREADS)), dim3(THREADS), 0,
                         stream, *p);
    if (err == 0) err = gpu_launch(fill_kernel, dim3(p->n_local), dim3(THREADS), 0, stream, *p);
    return err;
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
    size_t          row     = blockIdx.x;
    const uint16_t *experts = (const uint16_t *)c.wire + row * c.n_wire + c.hidden;

    if (experts[0] == BT_NO_EXPERTS) return;
    if (threadIdx.x < c.top_k) items[threadIdx.x] = find_item(c, row, experts, threadIdx.x);
    __syncthreads();
    FOR_COLUMNS(i, c.hidden)
    {
        float    sum = 0;
        uint32_t j   = 0;

        for (uint32_t b = 0; b < c.n_blocks; b++) {
            uint32_t first = j;

            while (j < c.top_k && experts[j] / c.block_size == b)
                j++;
            sum = sum + block_part(items, first, j, i);
        }
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
