/* bench/bench_gemm.c - the CPU products against this machine's own roofs, measured in the same run.
 *
 * For each family, role, number of threads and shape: the time of one product, its bandwidth over
 * the weights, its rate, and the part of the roof that it reaches,
 *     max(weight bytes / read bandwidth, operations / peak rate) / time.
 * Weights rotate through a set larger than the second-level caches, as they do in a model; with one
 * larger than the third level too they come from memory, as an expert's do.  The read roof is
 * measured over the same set, before each shape.  Medians of short samples: on a shared machine
 * compare only figures of one run.
 *
 * With one thread, and where the family has such a kernel, also a block of keys of a strip of
 * queries.
 *
 *     bench_gemm [family [threads [MiB of the set [bf16|bf12|e4m3|int4 [rows]]]]]
 *                      without: all families of this CPU, 1 and 2 threads, 128 MiB, bf16, all rows
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/stats.h"
#include "core/clock.h"
#include "device/cpu/linear.h"
#include "device/cpu/roofs.h"

enum {
    N_SAMPLES   = 7,
    SAMPLE_NS   = 12000000,
    SET_MIB     = 128,
    MAX_LINEARS = 1024,
    MAX_X       = 2048 * 10944,
    MAX_Y       = 2048 * 21888
};

static const uint32_t SHAPES[][3] = {
  /* m, n, k */
    {1,    2048,  2048 },
    {4,    2048,  2048 },
    {16,   2048,  2048 },
    {64,   2048,  2048 },
    {512,  2048,  2048 },
    {1,    256,   256  },
 /* of V2-Lite: experts, the shared and the dense layer at 32 requests */
    {3,    2816,  2048 },
    {3,    2048,  1408 },
    {32,   5632,  2048 },
    {32,   2048,  2816 },
    {32,   2048,  10944},
 /* experts at 128, 512 and 2,048 tokens; queries, the shared and the dense layer */
    {12,   2816,  2048 },
    {12,   2048,  1408 },
    {48,   2816,  2048 },
    {48,   2048,  1408 },
    {192,  2816,  2048 },
    {192,  2048,  1408 },
    {2048, 3072,  2048 },
    {2048, 5632,  2048 },
    {2048, 2048,  2816 },
    {2048, 21888, 2048 },
    {2048, 2048,  10944}
};

typedef struct {
    bt_device     *dev;
    bt_role        role;
    uint32_t       n_linears, next, m, k, n;
    bt_linear     *linears[MAX_LINEARS];
    bt_bf16       *x, *y;
    size_t         set_bytes;
    bt_weight_kind kind;
    const char    *kernels;
} bench;

typedef void (*work)(bench *b);

/* Median nanoseconds of one call. */
static double median_ns(work fn, bench *b)
{
    double samples[N_SAMPLES];

    fn(b);
    for (int s = 0; s < N_SAMPLES; s++) {
        uint64_t start = bt_now_ns(), end;
        long     n     = 0;

        do {
            fn(b);
            n++;
        } while ((end = bt_now_ns()) - start < SAMPLE_NS);
        samples[s] = (double)(end - start) / (double)n;
    }
    return bench_median(samples, N_SAMPLES);
}

static void fill_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const bench *b = ctx;

    for (uint32_t i = 0; i < b->k; i++)
        row[i] = (bt_bf16)(0x3f00u + (n * 7 + i * 13) % 128);
}

static void fill_fp8_row(void *ctx, uint32_t n, uint8_t *row, float *scale)
{
    const bench *b = ctx;

    for (uint32_t i = 0; i < b->k; i++)
        row[i] = (uint8_t)(0x30u + (n * 7 + i * 13) % 16);
    for (uint32_t i = 0; i < b->k; i += BT_FP8_BLOCK)
        scale[i / BT_FP8_BLOCK] = 1 + (float)(i / BT_FP8_BLOCK % 4) / 8;
}

static void fill_int4_row(void *ctx, uint32_t n, uint32_t *row, bt_bf16 *scale)
{
    const bench *b = ctx;

    for (uint32_t i = 0; i < b->k / BT_INT4_IN_WORD; i++)
        row[i] = (n * 7 + i) * 2654435761u;
    for (uint32_t i = 0; i < b->k / BT_INT4_GROUP; i++)
        scale[i] = (bt_bf16)(0x3e00u + (n + i) % 128);
}

static bt_status make_linear(bench *b, bt_linear **linear_out)
{
    switch (b->kind) {
    case BT_WEIGHT_BF12:
        return bt_cpu_linear_create(b->dev, b->n, b->k,
                                    (bt_cpu_rows){.kind = b->kind, .bf16 = fill_row, .ctx = b},
                                    linear_out);
    case BT_WEIGHT_FP8:
        return bt_device_linear_create_fp8(b->dev, b->n, b->k, fill_fp8_row, b, linear_out);
    case BT_WEIGHT_INT4:
        return bt_device_linear_create_int4(b->dev, b->n, b->k, fill_int4_row, b, linear_out);
    default: return bt_device_linear_create(b->dev, b->n, b->k, fill_row, b, linear_out);
    }
}

static void one_gemm(bench *b)
{
    bt_gemm g = {.w       = b->linears[b->next],
                 .x       = b->x,
                 .ld_x    = b->k,
                 .y       = b->y,
                 .ld_y    = b->n,
                 .m       = b->m,
                 .y_dtype = BT_BF16};

    b->next = (b->next + 1) % b->n_linears;
    if (bt_device_gemm(b->dev, b->role, 1, &g) != BT_OK) exit(EXIT_FAILURE);
}

/* Every thread reads its share of the weights; together all of them, once. */
static void read_share(void *ctx, uint32_t chunk, uint32_t member)
{
    const bench *b = ctx;

    (void)member;
    bt_roof_read(bt_cpu_linear_columns(b->linears[chunk], 0), bt_linear_bytes(b->linears[chunk]));
}
static void read_all(bench *b)
{
    bt_cpu_pool_run(bt_device_cpu_pool(b->dev), b->n_linears, read_share, b);
}

enum { PEAK_ROUNDS = 20000 };
static void multiply_all(bench *b)
{
    bt_cpu_pool *pool = bt_device_cpu_pool(b->dev);

    bt_roof_multiply_by(pool, bt_cpu_pool_n_threads(pool), b->kernels, PEAK_ROUNDS);
}

static void nothing(void *ctx, uint32_t chunk, uint32_t member)
{
    (void)ctx;
    (void)chunk;
    (void)member;
}
static void empty_run(bench *b) { bt_cpu_pool_run(bt_device_cpu_pool(b->dev), 64, nothing, NULL); }

/* ---- a strip of queries through blocks of keys, as the normal form of attention has it ---- */

enum { STRIP_K = 192, STRIP_V = 128, STRIP_BLOCKS = 8, KEYS = BT_CPU_STRIP_KEYS };

static void one_strip(bench *b)
{
    float        *max = (float *)b->y, *sum = max + BT_CPU_STRIP, *o = sum + BT_CPU_STRIP;
    float        *scores = o + BT_CPU_STRIP * STRIP_V;
    bt_cpu_attend a      = {.q         = b->x,
                            .keys      = b->x + BT_CPU_STRIP * STRIP_K,
                            .values    = b->x + (BT_CPU_STRIP + STRIP_BLOCKS * KEYS) * STRIP_K,
                            .last_k    = KEYS,
                            .last_keys = KEYS,
                            .k         = STRIP_K,
                            .v_dim     = STRIP_V,
                            .n_blocks  = STRIP_BLOCKS,
                            .scale     = 1e-3f,
                            .max       = max,
                            .sum       = sum,
                            .o         = o,
                            .ld_o      = STRIP_V,
                            .scores    = scores,
                            .p         = (bt_bf16 *)(scores + 2 * BT_CPU_STRIP * KEYS)};

    for (uint32_t i = 0; i < BT_CPU_STRIP; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    bt_device_cpu_table(b->dev)->attend(&a);
}

static void run_strip(bench *b)
{
    double ops = 2.0 * BT_CPU_STRIP * KEYS * (STRIP_K + STRIP_V), peak, ns;

    if (bt_device_cpu_table(b->dev)->attend == NULL) return;
    peak = bt_roof_multiply(b->kernels, 1) * PEAK_ROUNDS / median_ns(multiply_all, b);
    ns   = median_ns(one_strip, b) / STRIP_BLOCKS;
    printf("%-10s %u queries, %u keys of %u and %u: %.2f us, %.1f GFLOP/s | roof %.0f | %.2f\n",
           b->kernels, (uint32_t)BT_CPU_STRIP, (uint32_t)KEYS, (uint32_t)STRIP_K, (uint32_t)STRIP_V,
           ns * 1e-3, ops / ns, peak, ops / ns / peak);
    fflush(stdout);
}

static void make_linears(bench *b)
{
    size_t    bytes = bt_cpu_linear_bytes(b->n, b->k, b->kind);
    bt_status st    = BT_OK;

    b->n_linears =
        b->set_bytes / bytes < MAX_LINEARS ? (uint32_t)(b->set_bytes / bytes) : MAX_LINEARS;
    b->next = 0;
    for (uint32_t i = 0; st == BT_OK && i < b->n_linears; i++)
        st = make_linear(b, &b->linears[i]);
    if (st != BT_OK) exit(EXIT_FAILURE);
}

static void run_shape(bench *b, const uint32_t *shape, uint32_t n_threads)
{
    double read_gbs, peak, ns, weights, ops, roof_ns;

    b->m = shape[0];
    b->n = shape[1];
    b->k = shape[2];
    make_linears(b);
    weights  = (double)bt_linear_bytes(b->linears[0]);
    ops      = 2.0 * b->m * b->n * b->k;
    read_gbs = weights * b->n_linears / median_ns(read_all, b);
    for (int role = 0; role < BT_N_ROLES; role++) {
        b->role = (bt_role)role;
        peak =
            bt_roof_multiply(b->kernels, 1) * PEAK_ROUNDS * n_threads / median_ns(multiply_all, b);
        ns      = median_ns(one_gemm, b);
        roof_ns = weights / read_gbs > ops / peak ? weights / read_gbs : ops / peak;
        printf("%-10s %-9s t=%u m=%-3u n=%u k=%u %9.1f us %6.1f GB/s %7.1f GFLOP/s | roofs %5.1f "
               "GB/s %6.0f GFLOP/s | %.2f\n",
               b->kernels, role == BT_ROLE_PROMPT ? "prompt" : "generated", n_threads, b->m, b->n,
               b->k, ns * 1e-3, weights / ns, ops / ns, read_gbs, peak, roof_ns / ns);
        fflush(stdout);
        if (bt_device_cpu_table(b->dev)->mm[0] == bt_device_cpu_table(b->dev)->mm[1]) break;
    }
    for (uint32_t i = 0; i < b->n_linears; i++)
        bt_device_linear_destroy(b->dev, b->linears[i]);
}

static void run_family(const char *kernels, uint32_t n_threads, size_t set_bytes,
                       bt_weight_kind kind, uint32_t rows, bt_bf16 *x, bt_bf16 *y)
{
    bt_device_cpu_options opt = {.n_threads = n_threads, .kernels = kernels};
    static bench          b;
    uint32_t              most_rows;

    b = (bench){.x = x, .y = y, .set_bytes = set_bytes, .kind = kind, .kernels = kernels};
    if (bt_device_cpu_create(&opt, &b.dev) != BT_OK) exit(EXIT_FAILURE);
    most_rows = bt_device_cpu_table(b.dev)->mm_tiles != NULL ? UINT32_MAX
                : strcmp(kernels, "scalar") == 0             ? 16
                                                             : 512;
    printf("%-10s t=%u a run of 64 empty chunks: %.2f us\n", kernels, n_threads,
           median_ns(empty_run, &b) * 1e-3);
    if (n_threads == 1) run_strip(&b);
    for (size_t s = 0; s < sizeof(SHAPES) / sizeof(SHAPES[0]); s++)
        if (SHAPES[s][0] <= most_rows && (rows == 0 || SHAPES[s][0] == rows))
            run_shape(&b, SHAPES[s], n_threads);
    bt_device_destroy(b.dev);
}

static bool find_kind(const char *name, bt_weight_kind *kind_out)
{
    static const char *const NAMES[] = {[BT_WEIGHT_BF16] = "bf16",
                                        [BT_WEIGHT_FP8]  = "e4m3",
                                        [BT_WEIGHT_INT4] = "int4",
                                        [BT_WEIGHT_BF12] = "bf12"};

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(*NAMES); i++) {
        *kind_out = (bt_weight_kind)i;
        if (strcmp(name, NAMES[i]) == 0) return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    char           names[64], *rest = names, *name;
    uint32_t       first = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1;
    uint32_t       last  = argc > 2 ? first : 2;
    size_t         mib   = argc > 3 ? strtoul(argv[3], NULL, 10) : SET_MIB;
    bt_weight_kind kind  = BT_WEIGHT_BF16;
    uint32_t       rows  = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0;
    bt_bf16 *x = aligned_alloc(64, MAX_X * sizeof(*x)), *y = aligned_alloc(64, MAX_Y * sizeof(*y));

    if (x == NULL || y == NULL) return EXIT_FAILURE;
    if (argc > 4 && !find_kind(argv[4], &kind)) {
        fprintf(stderr, "bench_gemm: weights of \"%s\", expected bf16, bf12, e4m3 or int4\n",
                argv[4]);
        return EXIT_FAILURE;
    }
    if (mib < SET_MIB) {
        fprintf(stderr, "bench_gemm: a set of %zu MiB, expected %d or more\n", mib, SET_MIB);
        return EXIT_FAILURE;
    }
    for (size_t i = 0; i < MAX_X; i++)
        x[i] = (bt_bf16)(0x3f00u + i % 128);
    snprintf(names, sizeof(names), "%s", argc > 1 ? argv[1] : bt_device_cpu_kernels());
    while ((name = strtok_r(rest, ",", &rest)) != NULL)
        for (uint32_t n_threads = first; n_threads <= last; n_threads++)
            run_family(name, n_threads, mib << 20, kind, rows, x, y);
    free(x);
    free(y);
    return EXIT_SUCCESS;
}
