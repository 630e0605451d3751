/* device/cuda/vocab.cu - see vocab.h.  Three passes: the maxima of blocks of ids; exponentials and
 * their sums, block by block; then one block of threads a row, in which what must run in order runs
 * on one thread. */
#include "device/cuda/vocab.h"

#include "device/cpu/math.h"
#include "device/cuda/gpu.cuh"

enum { THREADS = 256, BLOCK = BT_CUDA_VOCAB_BLOCK, LANES = 16, SORT_IN_SHARED = 2048 };

static __device__ __forceinline__ bool is_finite(float v)
{
    return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u;
}
static __host__ __device__ __forceinline__ uint32_t n_blocks_of(uint32_t n_vocab)
{
    return (n_vocab + BLOCK - 1) / BLOCK;
}
static __device__ __forceinline__ uint32_t block_len(uint32_t n_vocab, uint32_t block)
{
    return n_vocab - block * BLOCK < (uint32_t)BLOCK ? n_vocab - block * BLOCK : (uint32_t)BLOCK;
}

static __device__ __forceinline__ float penalised(float x, float repetition, float frequency,
                                                  float presence, uint32_t count)
{
    if (repetition != 1.0f) x = x > 0 ? x / repetition : x * repetition;
    x -= frequency * (float)count;
    return count > 0 ? x - presence : x;
}

static __global__ void __launch_bounds__(THREADS)
    edit_kernel(uint32_t n, const bt_logit_edit *edits, size_t ld, float *logits)
{
    uint32_t      i = blockIdx.x * THREADS + threadIdx.x;
    bt_logit_edit e;
    float         x;

    if (i >= n) return;
    e = edits[i];
    x = logits[e.draw * ld + e.id] + e.bias;
    x = penalised(x, e.repetition, e.frequency, e.presence, e.count);

    logits[e.draw * ld + e.id] = e.banned ? -INFINITY : x;
}

int bt_cuda_edit_logits(void *stream, uint32_t n_edits, const bt_logit_edit *edits, size_t ld,
                        float *logits)
{
    if (n_edits == 0) return 0;
    return gpu_launch(edit_kernel, dim3(gpu_blocks(n_edits, THREADS)), dim3(THREADS), 0, stream,
                      n_edits, edits, ld, logits);
}

static __global__ void __launch_bounds__(THREADS)
    seen_kernel(uint32_t n, const bt_seen_token *seen, uint32_t *words)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;

    if (i < n) words[seen[i].id] = 1 + 2 * seen[i].count;
}

int bt_cuda_set_history(void *stream, uint32_t n, const bt_seen_token *seen, uint32_t *words)
{
    if (n == 0) return 0;
    return gpu_launch(seen_kernel, dim3(gpu_blocks(n, THREADS)), dim3(THREADS), 0, stream, n, seen,
                      words);
}

/* Blocks: [rows][blocks of ids]. */
static __global__ void __launch_bounds__(THREADS)
    penalise_kernel(uint32_t n_vocab, const bt_draw *draws, const uint32_t *words, float *logits)
{
    bt_draw d  = draws[blockIdx.y];
    size_t  at = (size_t)blockIdx.x * BLOCK;

    if (d.history == 0) return;
    words += (size_t)(d.history - 1) * n_vocab + at;
    logits += (size_t)blockIdx.y * n_vocab + at;
    for (uint32_t i = threadIdx.x; i < block_len(n_vocab, blockIdx.x); i += THREADS)
        if (words[i] != 0)
            logits[i] = penalised(logits[i], d.repetition, d.frequency, d.presence, words[i] / 2);
}

int bt_cuda_penalise(void *stream, uint32_t n_rows, uint32_t n_vocab, const bt_draw *draws,
                     const uint32_t *words, float *logits)
{
    if (n_rows == 0 || n_vocab == 0) return 0;
    return gpu_launch(penalise_kernel, dim3(n_blocks_of(n_vocab), n_rows), dim3(THREADS), 0, stream,
                      n_vocab, draws, words, logits);
}

/* Blocks: [rows][blocks of ids].  A warp reads one word. */
static __global__ void __launch_bounds__(THREADS)
    mask_kernel(uint32_t n_vocab, const bt_draw *draws, const uint32_t *masks, float *logits)
{
    uint32_t which = draws[blockIdx.y].mask, first = blockIdx.x * BLOCK;

    if (which == 0) return;
    masks += (which - 1) * (size_t)((n_vocab + 31) / 32) + first / 32;
    logits += (size_t)blockIdx.y * n_vocab + first;
    for (uint32_t i = threadIdx.x; i < block_len(n_vocab, blockIdx.x); i += THREADS)
        if ((masks[i / 32] >> i % 32 & 1) == 0) logits[i] = -INFINITY;
}

int bt_cuda_mask(void *stream, uint32_t n_rows, uint32_t n_vocab, const bt_draw *draws,
                 const uint32_t *masks, float *logits)
{
    if (n_rows == 0 || n_vocab == 0) return 0;
    return gpu_launch(mask_kernel, dim3(n_blocks_of(n_vocab), n_rows), dim3(THREADS), 0, stream,
                      n_vocab, draws, masks, logits);
}

/* Blocks: [rows][blocks of ids]. */
static __global__ void __launch_bounds__(THREADS)
    maxima_kernel(uint32_t n_vocab, const float *logits, float *maxima)
{
    GPU_SHARED(float, part, GPU_WARP);
    const float *x   = logits + (size_t)blockIdx.y * n_vocab + (size_t)blockIdx.x * BLOCK;
    float        max = -INFINITY;

    for (uint32_t i = threadIdx.x; i < block_len(n_vocab, blockIdx.x); i += THREADS)
        max = gpu_max(x[i], max);
    max = block_max(max, part);
    if (threadIdx.x == 0) maxima[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = max;
}

/* The highest of a row, from its blocks' maxima; in every thread. */
static __device__ float row_max(const float *maxima, uint32_t n_blocks, float *part)
{
    float max = -INFINITY;

    for (uint32_t i = threadIdx.x; i < n_blocks; i += THREADS)
        max = gpu_max(maxima[i], max);
    return block_max(max, part);
}

/* The sum of e[0 .. n) in LANES lanes, then lane i adds lane i+8, i+4, i+2, i+1; for thread 0.
 * lanes: [LANES] in shared memory. */
static __device__ float sum_in_lanes(const float *e, uint32_t n, float *lanes)
{
    float sum = 0;

    if (threadIdx.x < LANES) {
        for (uint32_t i = threadIdx.x; i < n; i += LANES)
            sum = sum + e[i];
        lanes[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int width = LANES / 2; width >= 1; width /= 2)
            for (int i = 0; i < width; i++)
                lanes[i] = lanes[i] + lanes[i + width];
        sum = lanes[0];
    }
    return sum;
}

/* e = exp(x / temperature - highest), 0 below min_p, and its sum, for each block of ids; without
 * draws the temperature is 1 and e is not kept. */
static __global__ void __launch_bounds__(THREADS)
    sums_kernel(uint32_t n_vocab, const float *logits, const bt_draw *draws, const float *maxima,
                float *e_out, float *sums)
{
    GPU_SHARED(float, part, GPU_WARP);
    GPU_SHARED(float, lanes, LANES);
    GPU_SHARED(float, e, BLOCK);
    size_t   at   = (size_t)blockIdx.y * n_vocab + (size_t)blockIdx.x * BLOCK;
    uint32_t n    = block_len(n_vocab, blockIdx.x);
    bt_draw  draw = {};
    float    scale, top;

    draw.temperature = 1.0f;
    if (draws != NULL) draw = draws[blockIdx.y];
    if (draws != NULL && draw.temperature < 1e-5f) return; /* greedy: no draw */
    scale = 1.0f / draw.temperature;
    top   = row_max(maxima + (size_t)blockIdx.y * gridDim.x, gridDim.x, part) * scale;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        float x = logits[at + i], v = bt_expf((x == x ? x : -INFINITY) * scale - top);

        e[i] = draw.min_p > 0 && !(v >= draw.min_p) ? 0.0f : v;
        if (e_out != NULL) e_out[at + i] = e[i];
    }
    __syncthreads();
    top = sum_in_lanes(e, n, lanes);
    if (threadIdx.x == 0) sums[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = top;
}

/* ---- one row's choice */

typedef struct {
    uint32_t     n_vocab, n_blocks;
    const float *logits, *e, *maxima, *sums;
    float       *ranked;
    uint64_t    *order;
    float        max;
} choice_row;

/* The lowest id with this logit. */
static __device__ uint32_t first_equal(const choice_row &r, float value, uint32_t *least)
{
    if (threadIdx.x == 0) *least = UINT32_MAX;
    __syncthreads();
    for (uint32_t b = 0; b < r.n_blocks && *least == UINT32_MAX; b++) {
        __syncthreads(); /* all have seen that there is none yet */
        if (r.maxima[b] == value)
            for (uint32_t i = threadIdx.x; i < block_len(r.n_vocab, b); i += THREADS)
                if (r.logits[b * BLOCK + i] == value) atomicMin(least, b * BLOCK + i);
        __syncthreads();
    }
    return *least;
}

/* The id in which the running sum over the vocabulary passes u times the whole.  One thread. */
static __device__ uint32_t draw_by_id(const choice_row &r, const bt_draw &d)
{
    double   whole = 0, before = 0, target;
    uint32_t block = 0, last = 0;

    for (uint32_t b = 0; b < r.n_blocks; b++)
        whole += r.sums[b];
    target = d.uniform * whole;
    while (block + 1 < r.n_blocks && before + r.sums[block] <= target)
        before += r.sums[block++];
    while (block > 0 && r.sums[block] == 0)
        before -= r.sums[--block];
    for (uint32_t i = block * BLOCK; i < block * BLOCK + block_len(r.n_vocab, block); i++) {
        if (r.e[i] == 0) continue;
        last = i;
        before += r.e[i];
        if (before > target) break;
    }
    return last;
}

/* Ascending keys are descending logits, then ascending ids. */
static __device__ uint64_t candidate(float logit, uint32_t id)
{
    uint32_t bits = __float_as_uint(logit);

    if ((bits & 0x7F800000u) == 0) bits = 0; /* all zeros are equal */
    bits = bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
    return (uint64_t)bits << 32 | id;
}

/* Collects the candidates whose logit is at least t; returns how many.  In no order. */
static __device__ uint32_t gather(const choice_row &r, float t, uint64_t *to, uint32_t room,
                                  uint32_t *n)
{
    __syncthreads();
    if (threadIdx.x == 0) *n = 0;
    __syncthreads();
    for (uint32_t b = 0; b < r.n_blocks; b++) {
        if (r.sums[b] == 0 || r.maxima[b] < t) continue;
        for (uint32_t i = threadIdx.x; i < block_len(r.n_vocab, b); i += THREADS) {
            uint32_t id = b * BLOCK + i;

            if (r.logits[id] >= t && r.e[id] != 0) {
                uint32_t at = atomicAdd(n, 1u);

                if (at < room) to[at] = candidate(r.logits[id], id);
            }
        }
    }
    __syncthreads();
    return *n;
}

/* Bitonic, ascending; keys are distinct.  a has room for the next power of two, n_all. */
static __device__ void sort(uint64_t *a, uint32_t n, uint32_t n_all)
{
    for (uint32_t i = n + threadIdx.x; i < n_all; i += THREADS)
        a[i] = UINT64_MAX;
    __syncthreads();
    for (uint32_t size = 2; size <= n_all; size *= 2)
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            for (uint32_t k = threadIdx.x; k < n_all / 2; k += THREADS) {
                uint32_t i = k / step * 2 * step + k % step, j = i + step;
                bool     up = (i & size) == 0;
                uint64_t x = a[i], y = a[j];

                if ((x > y) == up) {
                    a[i] = y;
                    a[j] = x;
                }
            }
            __syncthreads();
        }
}

static __device__ uint32_t power_above(uint32_t n)
{
    uint32_t p = 1;

    while (p < n)
        p *= 2;
    return p;
}

/* Of n candidates in order, how many top_k and top_p leave; 0 when top_p needs more of them, which
 * there are none of when `all` says so.  One thread. */
static __device__ uint32_t cut(const choice_row &r, const bt_draw &d, uint32_t n, bool all)
{
    float total = 0, sum = 0;

    if (d.top_k > 0) {
        if (n > d.top_k) n = d.top_k;
        for (uint32_t i = 0; i < n; i++)
            total += r.ranked[i];
    } else {
        for (uint32_t b = 0; b < r.n_blocks; b++)
            total += r.sums[b];
    }
    if (d.top_p <= 0 || d.top_p >= 1) return n;
    for (uint32_t i = 0; i < n; i++) {
        sum += r.ranked[i];
        if (sum >= d.top_p * total) return i + 1;
    }
    return all ? n : 0;
}

/* Sorts the candidates from t on and cuts them; `left` (shared) is how many stay, 0: too few. */
static __device__ const uint64_t *rank(const choice_row &r, const bt_draw &d, float t,
                                       uint64_t *near_by, uint32_t *left)
{
    uint64_t *order = near_by;
    uint32_t  n     = gather(r, t, near_by, SORT_IN_SHARED, left);
    bool      all   = t == -INFINITY;

    if (n > SORT_IN_SHARED) {
        order = r.order;
        n     = gather(r, t, order, UINT32_MAX, left);
    }
    if (n == 0 || (!all && d.top_k > 0 && n < d.top_k)) {
        __syncthreads();
        if (threadIdx.x == 0) *left = 0;
        __syncthreads();
        return order;
    }
    sort(order, n, power_above(n));
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        r.ranked[i] = r.e[(uint32_t)order[i]];
    __syncthreads();
    if (threadIdx.x == 0) *left = cut(r, d, n, all);
    __syncthreads();
    return order;
}

/* Fewer nats below the highest first: few candidates decide nearly always, and a wide step to the
 * next bound would sort many more than are needed. */
static __device__ uint32_t draw_by_rank(const choice_row &r, const bt_draw &d, uint64_t *near_by,
                                        uint32_t *left)
{
    const uint64_t *order = near_by;
    double          whole = 0, target, before = 0;
    uint32_t        n, at = 0;

    for (float nats = 1; nats <= 14; nats += nats < 4 ? 3 : 2) {
        float t = nats <= 12 ? r.max - nats * d.temperature : -INFINITY;

        order = rank(r, d, t, near_by, left);
        if (*left != 0) break;
        __syncthreads();
    }
    n = *left;
    if (threadIdx.x != 0 || n == 0) return 0;
    for (uint32_t i = 0; i < n; i++)
        whole += r.ranked[i];
    target = d.uniform * whole;
    for (; at + 1 < n; at++) {
        before += r.ranked[at];
        if (before > target) break;
    }
    return (uint32_t)order[at];
}

/* One block a row; a bound of one block a multiprocessor, or it gets 32 registers and spills. */
static __global__ void __launch_bounds__(THREADS, 1)
    choose_kernel(const GPU_CONSTANT bt_cuda_sample s)
{
    GPU_SHARED(float, part, GPU_WARP);
    GPU_SHARED(uint32_t, word, 1);
    GPU_SHARED(uint64_t, near_by, SORT_IN_SHARED);
    size_t     row = blockIdx.x, at = row * s.n_vocab;
    uint32_t   n_blocks = n_blocks_of(s.n_vocab), id;
    bt_draw    d        = s.draws[row];
    choice_row r        = {s.n_vocab,
                           n_blocks,
                           s.logits + at,
                           s.e + at,
                           s.maxima + row * n_blocks,
                           s.sums + row * n_blocks,
                           s.ranked + at,
                           s.order + row * power_above(s.n_vocab),
                           0};

    r.max = row_max(r.maxima, n_blocks, part);
    if (!is_finite(r.max)) {
        if (threadIdx.x == 0) s.ids[row] = BT_NO_TOKEN;
        if (threadIdx.x == 0 && s.next != NULL) s.next[row] = 0;
        return;
    }
    if (d.temperature < 1e-5f)
        id = first_equal(r, r.max, word);
    else if ((d.top_k > 0 && d.top_k < s.n_vocab) || (d.top_p > 0 && d.top_p < 1))
        id = draw_by_rank(r, d, near_by, word);
    else
        id = threadIdx.x == 0 ? draw_by_id(r, d) : 0;
    if (threadIdx.x != 0) return;
    s.ids[row] = (int32_t)id;
    if (s.next != NULL) s.next[row] = id;
    if (d.history != 0) { /* seen, and generated once more */
        uint32_t *seen = &s.words[(size_t)(d.history - 1) * s.n_vocab + id];

        *seen = (*seen | 1) + 2;
    }
}

int bt_cuda_sample_run(void *stream, const bt_cuda_sample *s)
{
    dim3 blocks(n_blocks_of(s->n_vocab), s->n_rows);
    int  err;

    if (s->n_rows == 0 || s->n_vocab == 0) return 0;
    err = gpu_launch(maxima_kernel, blocks, dim3(THREADS), 0, stream, s->n_vocab, s->logits,
                     s->maxima);
    if (err == 0)
        err = gpu_launch(sums_kernel, blocks, dim3(THREADS), 0, stream, s->n_vocab, s->logits,
                         s->draws, (const float *)s->maxima, s->e, s->sums);
    if (err == 0) err = gpu_launch(choose_kernel, dim3(s->n_rows), dim3(THREADS), 0, stream, *s);
    return err;
}

/* ---- logprobs */

/* The best finite candidate after `last`, in every thread; UINT64_MAX: none.  best: shared. */
static __device__ uint64_t next_best(const bt_cuda_logprobs &l, const float *logits,
                                     const float *maxima, uint64_t last, uint64_t *best)
{
    uint64_t mine = UINT64_MAX;

    for (uint32_t b = 0; b < n_blocks_of(l.n_vocab); b++) {
        if (is_finite(maxima[b]) && candidate(maxima[b], 0) > mine) continue; /* ids below win */
        for (uint32_t i = threadIdx.x; i < block_len(l.n_vocab, b); i += THREADS) {
            float    x = logits[b * BLOCK + i];
            uint64_t c = is_finite(x) ? candidate(x, b * BLOCK + i) : UINT64_MAX;

            if ((last == UINT64_MAX || c > last) && c < mine) mine = c;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) *best = UINT64_MAX;
    __syncthreads();
    atomicMin((unsigned long long *)best, (unsigned long long)mine);
    __syncthreads();
    return *best;
}

static __global__ void __launch_bounds__(THREADS)
    logprobs_kernel(const GPU_CONSTANT bt_cuda_logprobs l)
{
    GPU_SHARED(float, part, GPU_WARP);
    GPU_SHARED(uint64_t, best, 1);
    size_t       row      = blockIdx.x;
    uint32_t     n_blocks = n_blocks_of(l.n_vocab), n = 0;
    const float *logits = l.logits + row * l.n_vocab, *maxima = l.maxima + row * n_blocks;
    float        max = row_max(maxima, n_blocks, part), log = 0;
    uint64_t     last = UINT64_MAX;
    int32_t      id   = l.ids[row];

    for (uint32_t b = 0; b < n_blocks; b++)
        log = log + l.sums[row * n_blocks + b];
    log = bt_logf(log);
    if (threadIdx.x == 0) {
        float x = id >= 0 ? logits[id] : 0;

        l.logprob[row] = id < 0 ? NAN : x == x ? x - max - log : -INFINITY;
    }
    for (; n < l.draws[row].n_top; n++) {
        last = next_best(l, logits, maxima, last, best);
        if (last == UINT64_MAX) break;
        if (threadIdx.x != 0) continue;
        l.top_ids[row * l.max_top + n]      = (uint32_t)last;
        l.top_logprobs[row * l.max_top + n] = logits[(uint32_t)last] - max - log;
    }
    if (threadIdx.x == 0) l.n_found[row] = n;
}

int bt_cuda_logprobs_run(void *stream, const bt_cuda_logprobs *l)
{
    dim3 blocks(n_blocks_of(l->n_vocab), l->n_rows);
    int  err;

    if (l->n_rows == 0 || l->n_vocab == 0) return 0;
    err = gpu_launch(maxima_kernel, blocks, dim3(THREADS), 0, stream, l->n_vocab, l->logits,
                     l->maxima);
    if (err == 0)
        err = gpu_launch(sums_kernel, blocks, dim3(THREADS), 0, stream, l->n_vocab, l->logits,
                         (const bt_draw *)NULL, (const float *)l->maxima, (float *)NULL, l->sums);
    if (err == 0) err = gpu_launch(logprobs_kernel, dim3(l->n_rows), dim3(THREADS), 0, stream, *l);
    return err;
}
