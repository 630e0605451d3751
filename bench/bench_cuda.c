/* bench/bench_cuda.c - the kernels of an MLA layer and of its experts on a GPU, at the sizes of V3,
 * each beside the roofs: memory (measured here, by a copy) and bf16 products (the data sheet's, an
 * argument).  A line ends with the nearer of the two and the share of it; of a case that has a
 * target (docs/cuda.md) and misses it, with that too.  What a launch costs whatever it does comes
 * first: a decode step is some twenty of them a layer.
 *
 *     bench_cuda [launch | decode | prefill | experts | dense] [TFLOP/S]
 *                               all unless told; 989: H100 and H200, dense bf16
 *
 * A time is the median of ROUNDS, each the mean of some calls in a graph, as in a decode step.  The
 * GPU still runs the graph once more while the host launches the one that counts, so that a short
 * kernel's time is its own.  What is read lies in as many places as keep it out of the cache, and a
 * graph goes over all of them; but for prefill, whose limit is the products.
 *
 * The first error ends the program and names its case. */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/cuda/attn_kernels.h"
#include "device/cuda/gemm.h"
#include "device/cuda/rows.h"

enum {
    ROUNDS    = 7,
    CALLS     = 10,
    WARM_MS   = 500,
    PAGE      = BT_CUDA_PAGE,
    LORA      = 512,
    ROPE      = 64,
    KV_DIM    = LORA + ROPE,
    SPLIT     = 2048, /* positions of a part */
    HIDDEN    = 7168,
    EXPERT    = 2048,
    EXPERTS   = 32,
    SCALES    = 2 * EXPERT * (HIDDEN / 128), /* of an e4m3 expert, */
    GROUPS    = 2 * EXPERT * (HIDDEN / 32),  /* and of one of 4 bits */
    MANY_ROWS = 1024 /* an expert's: bf16 weights cost more time than their products below 300 */
};
static const size_t COLD_BYTES = (size_t)256 << 20, KV_BYTES = (size_t)256 << 20;
/* Percent of the roof, of calls that read KV_BYTES or more, of prompts, of many rows. */
enum { DECODE_TARGET = 85, PREFILL_TARGET = 60, PRODUCTS_TARGET = 65 };

static cudaStream_t g_stream;
static double       g_gbps, g_tflops = 989;
static char         g_case[128] = "start";

static void must(int err, const char *what)
{
    if (err == cudaSuccess) return;
    fprintf(stderr, "bench_cuda: %s: %s: %s\n", g_case, what, cudaGetErrorString((cudaError_t)err));
    exit(EXIT_FAILURE);
}
#define MUST(call) must((int)(call), #call)

static void *take(size_t bytes)
{
    void *p = NULL;

    MUST(cudaMalloc(&p, bytes));
    MUST(cudaMemset(p, 0, bytes));
    return p;
}

/* Numbers of about -1/4 .. 1/4 as bf16, or any finite e4m3. */
static void *take_random(size_t bytes)
{
    enum { BLOCK = 1 << 20 };
    static uint16_t block[BLOCK];
    uint8_t        *p   = take(bytes);
    uint64_t        rng = bytes;

    for (int i = 0; i < BLOCK; i++) {
        rng      = rng * 6364136223846793005u + 1442695040888963407u;
        block[i] = (uint16_t)((rng >> 48 & 0x807e) | 0x3e00); /* bf16 +-1/8 .. 1/4 */
    }
    for (size_t at = 0; at < bytes; at += sizeof(block))
        MUST(cudaMemcpy(p + at, block, bytes - at < sizeof(block) ? bytes - at : sizeof(block),
                        cudaMemcpyHostToDevice));
    return p;
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* call(ctx, i) for i < n_calls, one behind the other. */
static cudaGraphExec_t capture(int (*call)(void *ctx, unsigned i), void *ctx, unsigned n_calls)
{
    cudaGraph_t     graph = NULL;
    cudaGraphExec_t exec  = NULL;

    must(call(ctx, 0), "a kernel's launch"); /* which loads it: not for a capture to do */
    MUST(cudaStreamSynchronize(g_stream));
    MUST(cudaStreamBeginCapture(g_stream, cudaStreamCaptureModeThreadLocal));
    for (unsigned i = 0; i < n_calls; i++)
        must(call(ctx, i), "a kernel's launch");
    MUST(cudaStreamEndCapture(g_stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return exec;
}

static void enqueue(cudaGraphExec_t exec, int (*call)(void *ctx, unsigned i), void *ctx,
                    unsigned n_calls)
{
    if (exec != NULL) MUST(cudaGraphLaunch(exec, g_stream));
    for (unsigned i = 0; exec == NULL && i < n_calls; i++)
        must(call(ctx, i), "a call");
}

/* Microseconds of a call, which reads another of n_places each time; 0: not in a graph. */
static double time_us(int (*call)(void *ctx, unsigned i), void *ctx, unsigned n_places)
{
    unsigned        n_calls = n_places > CALLS ? n_places : CALLS;
    cudaGraphExec_t exec    = NULL;
    cudaEvent_t     begin, end;
    float           ms[ROUNDS];

    MUST(cudaDeviceSynchronize()); /* copies of what the call reads may be on their way */
    if (n_places != 0) exec = capture(call, ctx, n_calls);
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int r = 0; r < ROUNDS; r++) {
        enqueue(exec, call, ctx, n_calls); /* warms up, and lasts while the rest is enqueued */
        MUST(cudaEventRecord(begin, g_stream));
        enqueue(exec, call, ctx, n_calls);
        MUST(cudaEventRecord(end, g_stream));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms[r], begin, end));
    }
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
    if (exec != NULL) MUST(cudaGraphExecDestroy(exec));
    qsort(ms, ROUNDS, sizeof(*ms), compare);
    return (double)ms[ROUNDS / 2] * 1e3 / n_calls;
}

/* target: percent of the nearer roof, 0: none. */
static void print(double us, double bytes, double flops, double target)
{
    double gbps = bytes / us * 1e-3, tflops = flops / us * 1e-6;
    double memory = 100 * gbps / g_gbps, products = 100 * tflops / g_tflops;
    double share = memory > products ? memory : products;

    printf("%-58s %9.1f us %7.0f GB/s %5.1f %% %7.1f TFLOP/s %5.1f %%  %s %.0f %%", g_case, us,
           gbps, memory, tflops, products, memory > products ? "memory" : "products", share);
    if (share < target) printf(" MISSES %.0f %%", target);
    printf("\n");
    fflush(stdout);
}

/* ---- a launch */

typedef struct {
    uint32_t rows;
    bt_bf16 *x, *y, *weight;
} norming;

static int norm(void *ctx, unsigned i)
{
    const norming *n = ctx;

    (void)i;
    return bt_cuda_rms_norm(g_stream, n->rows, HIDDEN, n->x, HIDDEN, n->weight, 1e-6f, n->y,
                            HIDDEN);
}

/* One behind the other in a graph, each of almost nothing, from the caches. */
static void bench_launch(void)
{
    norming n = {.x      = take_random((size_t)256 * HIDDEN * sizeof(bt_bf16)),
                 .y      = take((size_t)256 * HIDDEN * sizeof(bt_bf16)),
                 .weight = take_random(HIDDEN * sizeof(bt_bf16))};

    for (n.rows = 1; n.rows <= 256; n.rows *= 16) {
        snprintf(g_case, sizeof(g_case), "a launch in a graph: norm of %u rows", n.rows);
        print(time_us(norm, &n, 1), 2.0 * n.rows * HIDDEN * sizeof(bt_bf16), 0, 0);
    }
    MUST(cudaFree(n.x));
    MUST(cudaFree(n.y));
    MUST(cudaFree(n.weight));
}

/* ---- the memory's roof */

typedef struct {
    uint8_t *from, *to;
} copying;

static int copy(void *ctx, unsigned i)
{
    const copying *c = ctx;

    (void)i;
    return (int)cudaMemcpyAsync(c->to, c->from, COLD_BYTES, cudaMemcpyDeviceToDevice, g_stream);
}

/* As plain calls: a graph may give them to a copy engine, which is slower.  So many ms of them go
 * first: a GPU that was idle needs some time for its full clocks. */
static double copy_gbps(const char *when, double warm_ms)
{
    copying c;
    double  gbps, us;

    snprintf(g_case, sizeof(g_case), "copy within the device, %s", when);
    c = (copying){take(COLD_BYTES), take(COLD_BYTES)};
    do {
        us = time_us(copy, &c, 0);
        warm_ms -= us * 2 * ROUNDS * CALLS * 1e-3;
    } while (warm_ms > 0);
    gbps = 2.0 * (double)COLD_BYTES / us * 1e-3;
    printf("%s: %.0f GB/s, read and written\n", g_case, gbps);
    fflush(stdout);
    MUST(cudaFree(c.from));
    MUST(cudaFree(c.to));
    return gbps;
}

/* ---- attention */

static bt_cuda_dims dims_of(uint32_t heads)
{
    return (bt_cuda_dims){heads, LORA, 128, ROPE, 128, 0.07f};
}

/* n requests of equal context, their pages in order. */
static uint32_t *take_pages(uint32_t n)
{
    uint32_t *host = calloc(n, sizeof(*host)), *ids = take(n * sizeof(*ids));

    for (uint32_t i = 0; host != NULL && i < n; i++)
        host[i] = n - 1 - i;
    MUST(cudaMemcpy(ids, host, n * sizeof(*ids), cudaMemcpyHostToDevice));
    free(host);
    return ids;
}

typedef struct {
    bt_cuda_decode d;
    uint32_t       n_layers;
    bt_bf16       *pool;
} decoding;

static int decode(void *ctx, unsigned i)
{
    decoding *x = ctx;

    x->d.pages.base = x->pool + (size_t)(i % x->n_layers) * PAGE * KV_DIM;
    return bt_cuda_decode_run(g_stream, &x->d);
}

static void bench_decode(uint32_t heads, uint32_t batch, uint32_t rows, uint32_t context)
{
    uint32_t pages = context / PAGE, n = batch * rows, parts = (context - 1) / SPLIT + 1;

    snprintf(g_case, sizeof(g_case), "MLA decode, %u heads, %u x %u rows, context %u", heads, batch,
             rows, context);
    size_t        layer  = (size_t)batch * pages * PAGE * KV_DIM * sizeof(bt_bf16);
    uint32_t      layers = (uint32_t)(COLD_BYTES / layer + 1);
    bt_cuda_span *spans = take(batch * sizeof(*spans)), *host = calloc(batch, sizeof(*host));
    uint32_t     *ids   = take_pages(batch * pages);
    decoding      x     = {.n_layers = layers, .pool = take_random(layer * layers)};
    double        lanes = (double)n * heads, bytes = (double)layer;

    bytes += lanes * (LORA + ROPE + LORA) * sizeof(bt_bf16);
    if (parts > 1) bytes += lanes * parts * 2 * (LORA + 2) * sizeof(float);
    for (uint32_t i = 0; host != NULL && i < batch; i++)
        host[i] = (bt_cuda_span){i * rows, rows, context - rows, i * pages, 0};
    MUST(cudaMemcpy(spans, host, batch * sizeof(*spans), cudaMemcpyHostToDevice));
    x.d = (bt_cuda_decode){
        .dims        = dims_of(heads),
        .pages       = {.page_stride = (size_t)layers * PAGE * KV_DIM, .ids = ids},
        .spans       = spans,
        .n_spans     = batch,
        .max_rows    = rows,
        .max_parts   = parts,
        .split_pages = SPLIT / PAGE,
        .ql          = take_random((size_t)n * heads * LORA * sizeof(bt_bf16)),
        .q           = take_random((size_t)n * heads * (128 + ROPE) * sizeof(bt_bf16)),
        .out         = take((size_t)n * heads * LORA * sizeof(bt_bf16)),
        .part_o      = take((size_t)n * heads * parts * LORA * sizeof(float)),
        .part_ms     = take((size_t)n * heads * parts * 2 * sizeof(float))
    };
    print(time_us(decode, &x, layers), bytes, 2 * lanes * context * (KV_DIM + LORA),
          rows > 1 && layer >= KV_BYTES ? PREFILL_TARGET
          : layer >= KV_BYTES           ? DECODE_TARGET
                                        : 0);
    void *all[] = {ids,           spans,   x.pool,     (void *)x.d.ql,
                   (void *)x.d.q, x.d.out, x.d.part_o, x.d.part_ms};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        MUST(cudaFree(all[i]));
    free(host);
}

static int prefill(void *ctx, unsigned i)
{
    (void)i;
    return bt_cuda_prefill_run(g_stream, ctx);
}

/* The last part of a prompt of SPLIT rows from `start` on, against its own part of keys. */
static void bench_prefill(uint32_t heads, uint32_t rows)
{
    size_t n = rows, q_dim = 128 + ROPE;
    double pairs = (double)heads * ((double)rows * (rows + 1) / 2);

    snprintf(g_case, sizeof(g_case), "prefill attention, %u heads, %u rows, causal", heads, rows);
    uint32_t             *ids  = take_pages(SPLIT / PAGE);
    bt_cuda_prefill_item *item = take(sizeof(*item)), host = {
                                                          {0, rows, 0, 0, 0},
                                                          0
    };
    bt_cuda_pages   pages = {take_random((size_t)SPLIT * KV_DIM * sizeof(bt_bf16)),
                             (size_t)PAGE * KV_DIM, 0, ids};
    bt_cuda_prefill p     = {.dims        = dims_of(heads),
                             .pages       = pages,
                             .items       = item,
                             .n_items     = 1,
                             .max_rows    = rows,
                             .split_pages = SPLIT / PAGE,
                             .q           = take_random(n * heads * q_dim * sizeof(bt_bf16)),
                             .k           = take_random(n * heads * 128 * sizeof(bt_bf16)),
                             .v           = take_random(n * heads * 128 * sizeof(bt_bf16)),
                             .out         = take(n * heads * 128 * sizeof(bt_bf16)),
                             .run_o       = take(n * heads * 128 * sizeof(float)),
                             .run_ms      = take(n * heads * 2 * sizeof(float))};

    MUST(cudaMemcpy(item, &host, sizeof(host), cudaMemcpyHostToDevice));
    print(time_us(prefill, &p, 1), (double)n * heads * (q_dim + 3 * 128) * sizeof(bt_bf16),
          2 * pairs * (double)(q_dim + 128), PREFILL_TARGET);
    void *all[] = {ids,         item,          p.pages.base, (void *)p.q, (void *)p.k,
                   (void *)p.v, (void *)p.out, p.run_o,      p.run_ms};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        MUST(cudaFree(all[i]));
}

/* ---- experts: gate, up and SwiGLU in one launch */

static int product(void *ctx, unsigned i)
{
    (void)i;
    return bt_cuda_gemm_run(g_stream, ctx);
}

typedef struct {
    void     *w;
    uint8_t  *scales;
    bt_bf16  *x, *y;
    uint32_t *row_at;
} expert_data;

enum { N_KINDS = BT_WEIGHT_INT4 + 1 };
static const char *const KINDS[N_KINDS] = {"bf16", "e4m3", "int4"};

static size_t weight_bytes(bt_weight_kind kind, size_t n)
{
    return kind == BT_WEIGHT_INT4 ? n / 2 : kind == BT_WEIGHT_FP8 ? n : n * sizeof(bt_bf16);
}

/* Of at most max_rows rows, the first n experts have `rows` each. */
static void bench_experts(const expert_data *d, bt_weight_kind kind, uint32_t n, uint32_t rows,
                          uint32_t max_rows)
{
    size_t       bytes  = weight_bytes(kind, (size_t)2 * EXPERT * HIDDEN);
    size_t       scales = kind == BT_WEIGHT_INT4  ? GROUPS * sizeof(bt_bf16)
                          : kind == BT_WEIGHT_FP8 ? SCALES * sizeof(float)
                                                  : 0;
    uint32_t     host[EXPERTS + 1];
    bt_cuda_gemm g = {.n           = EXPERT,
                      .kind        = kind,
                      .k           = HIDDEN,
                      .n_groups    = n,
                      .out         = BT_CUDA_OUT_SWIGLU,
                      .max_rows    = max_rows,
                      .row_at      = d->row_at,
                      .likely_rows = rows,
                      .x           = d->x,
                      .ld_x        = HIDDEN,
                      .y           = d->y,
                      .ld_y        = EXPERT};

    snprintf(g_case, sizeof(g_case), "%u experts, %s, %u rows each of at most %u", n, KINDS[kind],
             rows, max_rows);
    for (uint32_t e = 0; e <= n; e++)
        host[e] = e * rows;
    for (uint32_t e = 0; e < n; e++) {
        g.w[e]       = (uint8_t *)d->w + e * bytes;
        g.w_scale[e] = scales != 0 ? d->scales + e * scales : NULL;
    }
    MUST(cudaMemcpy(d->row_at, host, (n + 1) * sizeof(*host), cudaMemcpyHostToDevice));
    bytes += scales;
    print(time_us(product, &g, 1),
          (double)n * ((double)bytes + (double)rows * (HIDDEN + EXPERT) * 2),
          2.0 * n * rows * 2 * EXPERT * HIDDEN, rows == MANY_ROWS ? PRODUCTS_TARGET : 0);
}

static void bench_all_experts(void)
{
    snprintf(g_case, sizeof(g_case), "%u experts", EXPERTS);
    size_t      n = (size_t)EXPERTS * 2 * EXPERT * HIDDEN;
    expert_data d = {take_random(n * sizeof(bt_bf16)),
                     take_random((size_t)EXPERTS * GROUPS * sizeof(bt_bf16)),
                     take_random((size_t)EXPERTS * MANY_ROWS * HIDDEN * sizeof(bt_bf16)),
                     take((size_t)EXPERTS * MANY_ROWS * EXPERT * sizeof(bt_bf16)),
                     take((EXPERTS + 1) * sizeof(*d.row_at))};

    for (int i = 0; i < N_KINDS; i++) {
        bt_weight_kind kind = (bt_weight_kind)i;

        for (uint32_t rows = 1; rows <= MANY_ROWS; rows *= 4)
            bench_experts(&d, kind, EXPERTS, rows, rows * EXPERTS);
        /* one rank of 32 in a step of 256 rows, each of which may ask for all 8 experts here: what
         * blocks without a row cost */
        bench_experts(&d, kind, 8, 8, 8 * 8);
        bench_experts(&d, kind, 8, 8, 256 * 8);
    }
    MUST(cudaFree(d.w));
    MUST(cudaFree(d.scales));
    MUST(cudaFree(d.x));
    MUST(cudaFree(d.y));
    MUST(cudaFree(d.row_at));
}

/* ---- one product: the narrow ones of a decode step, and the widest */

typedef struct {
    bt_cuda_gemm g;
    uint8_t     *weights;
    uint8_t     *scales;              /* NULL: bf16 */
    size_t       bytes, scales_bytes; /* of one copy of them */
    uint32_t     n_copies;
} dense;

static int dense_product(void *ctx, unsigned i)
{
    dense *x = ctx;

    x->g.w[0]       = x->weights + i % x->n_copies * x->bytes;
    x->g.w_scale[0] = x->scales != NULL ? x->scales + i % x->n_copies * x->scales_bytes : NULL;
    return bt_cuda_gemm_run(g_stream, &x->g);
}

static void bench_dense(const char *name, uint32_t n, uint32_t k, bt_weight_kind kind)
{
    static const uint32_t ROWS[] = {1, 32, 256, MANY_ROWS};
    const char           *dtype  = KINDS[kind];

    snprintf(g_case, sizeof(g_case), "%s, %u x %u, %s", name, n, k, dtype);
    size_t   bytes  = weight_bytes(kind, (size_t)n * k);
    size_t   scales = kind == BT_WEIGHT_INT4  ? (size_t)n * (k / 32) * sizeof(bt_bf16)
                      : kind == BT_WEIGHT_FP8 ? (size_t)n * ((k + 127) / 128) * sizeof(float)
                                              : 0;
    uint32_t copies = (uint32_t)(COLD_BYTES / bytes + 1);
    dense    x      = {.weights      = take_random(bytes * copies),
                       .scales       = scales != 0 ? take_random(scales * copies) : NULL,
                       .bytes        = bytes,
                       .scales_bytes = scales,
                       .n_copies     = copies};
    bt_bf16 *rows   = take_random((size_t)MANY_ROWS * k * sizeof(bt_bf16));
    bt_bf16 *y      = take((size_t)MANY_ROWS * n * sizeof(bt_bf16));

    for (int i = 0; i < 4; i++) {
        uint32_t m = ROWS[i];

        x.g = (bt_cuda_gemm){.n        = n,
                             .k        = k,
                             .kind     = kind,
                             .n_groups = 1,
                             .max_rows = m,
                             .x        = rows,
                             .ld_x     = k,
                             .y        = y,
                             .ld_y     = n};
        snprintf(g_case, sizeof(g_case), "%s, %u x %u, %s, %u rows", name, n, k, dtype, m);
        print(time_us(dense_product, &x, copies),
              (double)bytes + (double)scales + (double)m * (n + k) * 2, 2.0 * m * n * k, 0);
    }
    void *all[] = {x.weights, x.scales, rows, y};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        MUST(cudaFree(all[i]));
}

/* ---- all */

static void bench_all_decode(void)
{
    static const uint32_t CONTEXTS[] = {1024, 4096, 32768};

    for (uint32_t heads = 128; heads >= 16; heads /= 8)
        for (int c = 0; c < 3; c++)
            for (uint32_t batch = 1; batch <= 128; batch *= CONTEXTS[c] > 4096 ? 16 : 8)
                bench_decode(heads, batch, 1, CONTEXTS[c]);
    bench_decode(128, 128, 2, 4096);
}

static void bench_all_prefill(void)
{
    for (uint32_t heads = 128; heads >= 16; heads /= 8)
        for (uint32_t rows = 512; rows <= SPLIT; rows *= 2)
            bench_prefill(heads, rows);
}

static void bench_all_dense(void)
{
    for (int i = 0; i < N_KINDS; i++) {
        bench_dense("q_a", 1536, HIDDEN, (bt_weight_kind)i);
        bench_dense("kv_a", KV_DIM, HIDDEN, (bt_weight_kind)i);
        bench_dense("q_b", 128 * (128 + ROPE), 1536, (bt_weight_kind)i);
        bench_dense("o", HIDDEN, 16384, (bt_weight_kind)i);
    }
    bench_dense("gate", 256, HIDDEN, BT_WEIGHT_BF16);
}

static const struct {
    const char *name, *bytes;
    void (*run)(void);
} BENCHES[] = {
    {"launch",  "rows, read and written",                                       bench_launch     },
    {"decode",  "pages, queries, outputs, parts if several (written and read)", bench_all_decode },
    {"prefill", "queries, keys, values, outputs",                               bench_all_prefill},
    {"experts", "weights, scales, rows, outputs",                               bench_all_experts},
    {"dense",   "weights, scales, rows, outputs",                               bench_all_dense  }
};
enum { N_BENCHES = sizeof(BENCHES) / sizeof(BENCHES[0]) };

/* Which to run, N_BENCHES for all; false: the arguments make no sense. */
static bool parse(int argc, char **argv, int *only_out)
{
    int only = 0, at = 1;

    while (at < argc && only < N_BENCHES && strcmp(argv[at], BENCHES[only].name) != 0)
        only++;
    if (at < argc && only < N_BENCHES) at++;
    if (argc == 1) only = N_BENCHES;
    if (at < argc) g_tflops = atof(argv[at++]);
    *only_out = only;
    return at == argc && g_tflops > 0;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp gpu;
    int                   n = 0, only;

    if (!parse(argc, argv, &only)) {
        fprintf(stderr, "bench_cuda [launch | decode | prefill | experts | dense] [TFLOP/S]\n");
        return EXIT_FAILURE;
    }
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("bench_cuda: no GPU\n");
        return 77;
    }
    MUST(cudaGetDeviceProperties(&gpu, 0));
    MUST(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking));
    printf("%s, %d multiprocessors; products: %.0f TFLOP/s by the data sheet\n", gpu.name,
           gpu.multiProcessorCount, g_tflops);
    g_gbps = copy_gbps("first", WARM_MS);
    for (int i = 0; i < N_BENCHES; i++)
        if (only == N_BENCHES || only == i) {
            printf("%s; bytes: %s\n", BENCHES[i].name, BENCHES[i].bytes);
            BENCHES[i].run();
        }
    copy_gbps("last", 0);
    return EXIT_SUCCESS;
}
