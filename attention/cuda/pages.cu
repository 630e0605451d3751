/* attention/cuda/pages.cu - what goes into pages and out of them: new tokens, latents to expand,
 * and the messages of the hand-off.  See attn_kernels.h. */
#include "attention/cuda/attn_kernels.h"
#include "device/cuda/gpu.cuh"

enum { THREADS = 128, PAGE = BT_CUDA_PAGE, CHUNK = 8 };
enum { PART = 4 * THREADS }; /* pairs of a row's queries that a block turns */

/* (x[0], x[apart]) turn by the pair's angle, in fp32, rounded once. */
static __device__ __forceinline__ void turn_pair(const float *cos_sin, uint32_t apart,
                                                 const bt_bf16 *x, bt_bf16 *y)
{
    float c = cos_sin[0], s = cos_sin[1], x0 = f32_of(x[0]), x1 = f32_of(x[apart]);

    y[0]     = bf16_of(x0 * c - x1 * s);
    y[apart] = bf16_of(x0 * s + x1 * c);
}

/* The pair of this number, in place; halves: its elements lie half a rope part apart. */
static __device__ __forceinline__ void turn_in_place(const float *cos_sin, uint32_t pair,
                                                     uint32_t n_pairs, bool halves, bt_bf16 *x)
{
    turn_pair(cos_sin + 2 * pair, halves ? n_pairs : 1, x + (halves ? pair : 2 * pair),
              x + (halves ? pair : 2 * pair));
}

/* dst = latent, or bf16(norm * bf16(latent / sqrt(mean(latent^2) + eps))) as rms_norm has it. */
static __device__ void put_latent(const bt_cuda_append &a, const bt_bf16 *latent, bt_bf16 *dst,
                                  float *part)
{
    uint32_t c   = a.dims.kv_lora;
    float    sum = 0;

    if (a.norm == NULL) {
        for (uint32_t i = threadIdx.x; i < c; i += THREADS)
            dst[i] = latent[i];
        return;
    }
    for (uint32_t i = threadIdx.x; i < c; i += THREADS)
        sum = fmaf(f32_of(latent[i]), f32_of(latent[i]), sum);
    sum = 1.0f / sqrtf(block_sum(sum, part) / (float)c + a.eps);
    for (uint32_t i = threadIdx.x; i < c; i += THREADS)
        dst[i] = bf16_of(f32_of(bf16_of(f32_of(latent[i]) * sum)) * f32_of(a.norm[i]));
}

/* dst = RoPE of bf16((k - mean) / sqrt(variance + eps) * norm + bias), or zeros. */
static __device__ void put_index_key(const bt_cuda_append &a, size_t row, const float *cos_sin,
                                     bt_bf16 *dst, float *part)
{
    const bt_cuda_append_index &x   = a.index;
    uint32_t                    n   = a.pages.index_dim;
    const bt_bf16              *k   = x.k + row * n;
    float                       sum = 0, mean, factor;

    if (x.k == NULL) {
        for (uint32_t i = threadIdx.x; i < n; i += THREADS)
            dst[i] = 0;
        return;
    }
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        sum = sum + f32_of(k[i]);
    mean = block_sum(sum, part) / (float)n;
    sum  = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        sum = fmaf(f32_of(k[i]) - mean, f32_of(k[i]) - mean, sum);
    factor = 1.0f / sqrtf(block_sum(sum, part) / (float)n + x.eps);
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        dst[i] = bf16_of((f32_of(k[i]) - mean) * factor * f32_of(x.norm[i]) + f32_of(x.bias[i]));
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < a.dims.rope / 2; i += THREADS)
        turn_in_place(cos_sin, i, a.dims.rope / 2, x.halves, dst);
}

/* The rope parts of a row's heads, which begin at x, by the blocks of the row. */
static __device__ void turn_heads(const bt_cuda_append &a, const float *cos_sin, bt_bf16 *x,
                                  uint32_t n_heads, uint32_t head_dim, bool halves)
{
    uint32_t pairs = a.dims.rope / 2;

    for (uint32_t i = blockIdx.y * THREADS + threadIdx.x; i < n_heads * pairs;
         i += gridDim.y * THREADS)
        turn_in_place(cos_sin, i % pairs, pairs, halves, x + (size_t)(i / pairs) * head_dim);
}

static __device__ __forceinline__ void scale_in_place(float factor, bt_bf16 *x)
{
    *x = bf16_of(f32_of(*x) * factor);
}

/* A row of q times its factor, by the blocks of the row: each thread scales the pairs that it has
 * turned in turn_heads(). */
static __device__ void scale_heads(const bt_cuda_append &a, float factor, bt_bf16 *q)
{
    uint32_t pairs = a.dims.rope / 2, nope = a.dims.nope, head_dim = nope + a.dims.rope;
    uint32_t first = blockIdx.y * THREADS + threadIdx.x, step = gridDim.y * THREADS;

    for (uint32_t i = first; i < a.dims.n_heads * pairs; i += step) {
        bt_bf16 *x = q + (size_t)(i / pairs) * head_dim + nope + 2 * (i % pairs);

        scale_in_place(factor, x);
        scale_in_place(factor, x + 1);
    }
    for (uint32_t i = first; i < a.dims.n_heads * nope; i += step)
        scale_in_place(factor, q + (size_t)(i / nope) * head_dim + i % nope);
}

/* The span that has the row, or that ends before it: the last one that begins no later.  Where each
 * row has its own no search is needed. */
static __device__ bt_cuda_span span_of(const bt_cuda_append &a, uint32_t row)
{
    uint32_t at = 0, n = a.n_spans;

    if (a.n_spans == a.n_rows) return a.spans[row];
    while (n > 1) {
        uint32_t half  = n / 2;
        bool     right = a.spans[at + half].first_row <= row;

        at = right ? at + half : at;
        n  = right ? n - half : half;
    }
    return a.spans[at];
}

/* Blocks: [parts of the queries][rows]; the first part has the latent too. */
static __global__ void __launch_bounds__(THREADS) append_kernel(const GPU_CONSTANT bt_cuda_append a)
{
    GPU_SHARED(float, part, GPU_WARP);
    size_t       row  = blockIdx.x;
    bt_cuda_span span = span_of(a, blockIdx.x);
    uint32_t     pos = span.start + (blockIdx.x - span.first_row), pairs = a.dims.rope / 2;
    uint32_t     head_dim = a.dims.nope + a.dims.rope, kv_dim = a.dims.kv_lora + a.dims.rope;
    const float *cos_sin = a.cos_sin + (size_t)pos * a.dims.rope;

    if (blockIdx.x - span.first_row >= span.n_rows) return;
    if (a.kv != NULL && blockIdx.y == 0) {
        const bt_bf16 *kv = a.kv + row * kv_dim;
        bt_bf16 *dst = a.pages.base + a.pages.ids[span.page_at + pos / PAGE] * a.pages.page_stride +
                       (size_t)(pos % PAGE) * (kv_dim + a.pages.index_dim);

        put_latent(a, kv, dst, part);
        for (uint32_t i = threadIdx.x; i < pairs; i += THREADS)
            turn_pair(cos_sin + 2 * i, 1, kv + a.dims.kv_lora + 2 * i,
                      dst + a.dims.kv_lora + 2 * i);
        if (a.pages.index_dim != 0) put_index_key(a, row, cos_sin, dst + kv_dim, part);
    }
    if (a.q != NULL) {
        bt_bf16 *q = a.q + row * a.dims.n_heads * head_dim;

        turn_heads(a, cos_sin, q + a.dims.nope, a.dims.n_heads, head_dim, false);
        if (a.factor != NULL && a.factor[pos] != 1) scale_heads(a, a.factor[pos], q);
    }
    if (a.index.q != NULL)
        turn_heads(a, cos_sin, a.index.q + row * a.index.n_heads * a.pages.index_dim,
                   a.index.n_heads, a.pages.index_dim, a.index.halves);
}

int bt_cuda_append_run(void *stream, const bt_cuda_append *a)
{
    uint32_t heads = a->q == NULL ? 0 : a->dims.n_heads, n_parts;

    if (a->index.q != NULL && a->index.n_heads > heads) heads = a->index.n_heads;
    n_parts = heads == 0 ? 1 : gpu_blocks(heads * a->dims.rope / 2, PART);
    if (a->n_spans == 0 || a->n_rows == 0) return 0;
    return gpu_launch(append_kernel, dim3(a->n_rows, n_parts), dim3(THREADS), 0, stream, *a);
}

/* Rows of elements that move together: 16 bytes at a time where everything is aligned. */
static __device__ __forceinline__ void move_row(bt_bf16 *dst, const bt_bf16 *src, uint32_t n,
                                                bool wide)
{
    if (wide)
        for (uint32_t i = threadIdx.x * CHUNK; i < n; i += THREADS * CHUNK)
            *(gpu_vec16 *)(dst + i) = *(const gpu_vec16 *)(src + i);
    else
        for (uint32_t i = threadIdx.x; i < n; i += THREADS)
            dst[i] = src[i];
}

static __global__ void __launch_bounds__(THREADS)
    latents_kernel(uint32_t kv_lora, uint32_t kv_dim, bt_cuda_pages pages, uint32_t first,
                   bt_bf16 *dst, bool wide)
{
    uint32_t token = first + blockIdx.x;

    move_row(dst + (size_t)blockIdx.x * kv_lora,
             pages.base + pages.ids[token / PAGE] * pages.page_stride +
                 (size_t)(token % PAGE) * kv_dim,
             kv_lora, wide);
}

int bt_cuda_latents_run(void *stream, const bt_cuda_dims *dims, const bt_cuda_pages *pages,
                        uint32_t first, uint32_t n_tokens, bt_bf16 *dst)
{
    uint32_t kv_dim = dims->kv_lora + dims->rope + pages->index_dim;
    bool wide = ((uintptr_t)pages->base | (uintptr_t)dst) % 16 == 0 && dims->kv_lora % CHUNK == 0 &&
                kv_dim % CHUNK == 0 && pages->page_stride % CHUNK == 0;

    if (n_tokens == 0) return 0;
    return gpu_launch(latents_kernel, dim3(n_tokens), dim3(THREADS), 0, stream, dims->kv_lora,
                      kv_dim, *pages, first, dst, wide);
}

/* Blocks: [layers][tokens]. */
static __global__ void __launch_bounds__(THREADS)
    message_kernel(const GPU_CONSTANT bt_cuda_page_rows r, bool to_pages, bool wide)
{
    uint32_t token   = r.first + blockIdx.x;
    bt_bf16 *in_page = r.base + r.ids[token / PAGE] * r.page_stride + blockIdx.y * r.layer_stride +
                       (size_t)(token % PAGE) * r.kv_dim;
    bt_bf16 *in_message = r.message + blockIdx.y * r.message_stride + (size_t)blockIdx.x * r.kv_dim;

    move_row(to_pages ? in_page : in_message, to_pages ? in_message : in_page, r.kv_dim, wide);
}

static int move_pages(void *stream, const bt_cuda_page_rows *r, bool to_pages)
{
    bool wide = ((uintptr_t)r->base | (uintptr_t)r->message) % 16 == 0 && r->kv_dim % CHUNK == 0 &&
                r->layer_stride % CHUNK == 0 && r->message_stride % CHUNK == 0 &&
                r->page_stride % CHUNK == 0;

    if (r->n_tokens == 0 || r->n_layers == 0) return 0;
    if ((size_t)r->first + r->n_tokens > (size_t)BT_CUDA_MOVE_PAGES * PAGE)
        return BT_CUDA_BAD_SHAPE;
    return gpu_launch(message_kernel, dim3(r->n_tokens, r->n_layers), dim3(THREADS), 0, stream, *r,
                      to_pages, wide);
}

int bt_cuda_pack_pages(void *stream, const bt_cuda_page_rows *r)
{
    return move_pages(stream, r, false);
}

int bt_cuda_scatter_pages(void *stream, const bt_cuda_page_rows *r)
{
    return move_pages(stream, r, true);
}
