/* moe/cuda/gate.cu - the gate: a block a row, whose first warp chooses while the others copy.  See
 * moe_kernels.h.  Sums run as on the CPU, one after the other, since a row has few experts;
 * searches run over the lanes. */
#include "device/cpu/math.h"
#include "device/cuda/gpu.cuh"
#include "moe/cuda/moe_kernels.h"
#include "moe/group_score.h"

enum { THREADS = 128 };

/* The row's work space in shared memory. */
typedef struct {
    float   *score, *choice; /* [n_experts]: for the weights; for the selection */
    uint8_t *marked;         /* [n_experts] dropped or chosen */
} gate_row;

enum { CHOSEN = 2, DROPPED = 1 };

#define FOR_LANES(i, n) for (uint32_t i = threadIdx.x % GPU_WARP; i < (n); i += GPU_WARP)

static __device__ __forceinline__ bool is_nan(float v) { return v != v; }

static __device__ void score_softmax(uint32_t n, const float *logits, const gate_row &row)
{
    float max = -INFINITY, sum = 0;

    FOR_LANES(e, n) max = gpu_max(logits[e], max);
    max                 = warp_max(max);
    FOR_LANES(e, n)
    {
        float l = logits[e]; /* equality first: inf - inf is no number */

        row.score[e] = is_nan(l) ? 0.0f : l == max ? 1.0f : bt_expf(l - max);
    }
    __syncwarp();
    for (uint32_t e = 0; e < n; e++)
        sum += row.score[e];
    __syncwarp();
    FOR_LANES(e, n)
    {
        if (sum > 0.0f) row.score[e] /= sum;
        row.choice[e] = is_nan(logits[e]) ? -INFINITY : row.score[e];
    }
    __syncwarp();
}

static __device__ void score_sigmoid(uint32_t n, const float *logits, const float *bias,
                                     const gate_row &row)
{
    FOR_LANES(e, n)
    {
        float score = is_nan(logits[e]) ? 0.0f : 1.0f / (1.0f + bt_expf(-logits[e]));
        float z     = bias != NULL ? score + bias[e] : score;

        row.score[e]  = score;
        row.choice[e] = is_nan(logits[e]) || is_nan(z) ? -INFINITY : z;
    }
    __syncwarp();
}

/* The best of the warp's candidates, ties to the lower index; n: a lane has none.  Every lane gets
 * the first lane's answer. */
static __device__ uint32_t warp_best(uint32_t n, uint32_t best, float value)
{
    for (int x = GPU_WARP / 2; x >= 1; x /= 2) {
        uint32_t other   = __shfl_xor_sync(~0u, best, x);
        float    v       = __shfl_xor_sync(~0u, value, x);
        bool     greater = v > value, equal = !greater && !(value > v);

        if (other < n && (best >= n || greater || (equal && other < best))) {
            best  = other;
            value = v;
        }
    }
    return __shfl_sync(~0u, best, 0);
}

/* The best unmarked of values[0..n); one is unmarked. */
static __device__ uint32_t best_of(uint32_t n, const float *values, const uint8_t *marked)
{
    uint32_t best  = n;
    float    value = 0;

    FOR_LANES(i, n)
    {
        if (marked[i] != 0 || (best < n && !(values[i] > value))) continue;
        best  = i;
        value = values[i];
    }
    return warp_best(n, best, value);
}

/* Marks the experts of all groups but the best.  `scores` and `kept`: [n_groups]. */
static __device__ void drop_groups(const bt_gate_config &g, const gate_row &row, float *scores,
                                   uint8_t *kept)
{
    uint32_t size = g.n_experts / g.n_groups;

    FOR_LANES(i, g.n_groups)
    {
        scores[i] = bt_gate_group_score(g.kind, size, row.choice + (size_t)i * size);
        kept[i]   = 0;
    }
    __syncwarp();
    for (uint32_t i = 0; i < g.topk_groups; i++) {
        uint32_t best = best_of(g.n_groups, scores, kept);

        __syncwarp();
        if (threadIdx.x % GPU_WARP == 0) kept[best] = 1;
        __syncwarp();
    }
    FOR_LANES(e, g.n_experts) row.marked[e] = kept[e / size] ? 0 : DROPPED;
    __syncwarp();
}

/* Marks the chosen, and writes them ascending. */
static __device__ void choose(const bt_gate_config &g, const gate_row &row, uint16_t *experts)
{
    uint32_t lane = threadIdx.x % GPU_WARP, n = 0;

    for (uint32_t i = 0; i < g.top_k; i++) {
        uint32_t best = best_of(g.n_experts, row.choice, row.marked);

        __syncwarp();
        if (lane == 0) row.marked[best] = CHOSEN;
        __syncwarp();
    }
    for (uint32_t e0 = 0; e0 < g.n_experts; e0 += GPU_WARP) {
        bool     chosen = e0 + lane < g.n_experts && row.marked[e0 + lane] == CHOSEN;
        uint32_t mask   = __ballot_sync(~0u, chosen);

        if (chosen) experts[n + __popc(mask & ((1u << lane) - 1))] = (uint16_t)(e0 + lane);
        n += __popc(mask);
    }
    __syncwarp();
}

static __device__ void put_weights(const bt_gate_config &g, const gate_row &row,
                                   const uint16_t *experts, uint16_t *out)
{
    float sum = 0.0f;

    for (uint32_t j = 0; j < g.top_k; j++)
        sum += row.score[experts[j]];
    FOR_LANES(j, g.top_k)
    {
        float    w = row.score[experts[j]];
        uint32_t bits;

        if (g.norm_topk) w /= sum + 1e-20f;
        bits           = __float_as_uint(w * g.scale); /* not always aligned to 4 */
        out[2 * j]     = (uint16_t)bits;
        out[2 * j + 1] = (uint16_t)(bits >> 16);
    }
}

/* The row's elements to the wire, 16 bytes at a time where that fits; by all warps but the first.
 */
static __device__ __forceinline__ void copy_row(bt_bf16 *dst, const bt_bf16 *src, uint32_t n)
{
    enum { PER_VEC = sizeof(gpu_vec16) / sizeof(bt_bf16), COPYING = THREADS - GPU_WARP };
    uint32_t first = threadIdx.x - GPU_WARP;

    if (((uintptr_t)dst | (uintptr_t)src) % sizeof(gpu_vec16) == 0 && n % PER_VEC == 0)
        for (uint32_t i = first; i < n / PER_VEC; i += COPYING)
            ((gpu_vec16 *)dst)[i] = ((const gpu_vec16 *)src)[i];
    else
        for (uint32_t i = first; i < n; i += COPYING)
            dst[i] = src[i];
}

static __global__ void __launch_bounds__(THREADS)
    route_kernel(const GPU_CONSTANT bt_cuda_route r, uint32_t n_wire)
{
    GPU_DYNAMIC_SHARED(float, own); /* score, choice, group scores; marks of experts and groups */
    const bt_gate_config &g = r.gate;
    uint32_t              n = g.n_experts, row = blockIdx.x;
    uint8_t              *marks   = (uint8_t *)(own + 3 * (size_t)n);
    gate_row              w       = {own, own + n, marks};
    bt_bf16              *wire    = r.wire + (size_t)row * n_wire;
    uint16_t             *experts = wire + r.hidden;
    const float          *logits  = r.logits + (size_t)row * n;
    const uint16_t       *forced  = r.forced == NULL ? NULL : r.forced + (size_t)row * g.top_k;

    if (r.live != NULL && row >= *r.live) {
        if (threadIdx.x == 0) experts[0] = BT_NO_EXPERTS;
        return;
    }
    if (threadIdx.x >= GPU_WARP) {
        copy_row(wire, r.x + (size_t)row * r.hidden, r.hidden);
        return;
    }
    FOR_LANES(e, n) w.marked[e] = 0;
    if (g.kind == BT_GATE_SIGMOID_BIAS)
        score_sigmoid(n, logits, r.bias, w);
    else
        score_softmax(n, logits, w);
    if (forced != NULL && forced[0] != UINT16_MAX) {
        FOR_LANES(j, g.top_k) experts[j] = forced[j];
        __syncwarp();
    } else {
        if (g.n_groups > 1 && g.kind != BT_GATE_SOFTMAX) drop_groups(g, w, own + 2 * n, marks + n);
        choose(g, w, experts);
    }
    put_weights(g, w, experts, experts + g.top_k);
}

int bt_cuda_route_run(void *stream, const bt_cuda_route *r)
{
    size_t shared = (size_t)r->gate.n_experts * (3 * sizeof(float) + 2);

    if (r->n_rows == 0) return 0;
    return gpu_launch(route_kernel, dim3(r->n_rows), dim3(THREADS), shared, stream, *r,
                      bt_wire_elems(r->hidden, r->gate.top_k));
}
