/* bench/bench_sampler.c - how long the host takes to choose the tokens of a decode step.
 *
 *     bench_sampler [threads [rows [vocabulary [spread]]]]     default: every core, 32, 102400, 3
 *
 * Normal logits with that standard deviation: a small one is a flat distribution, of which top_p
 * keeps many ids; trained models are rather steep.  For each way of choosing: milliseconds of all
 * rows on one thread, on all of them, and how many times the time of reading the logits once from
 * memory that is.  Medians; ways and threads take turns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/need.h"
#include "bench/stats.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "device/cpu/roofs.h"
#include "worker/sampler.h"

enum { N_ROUNDS = 21, MAX_THREADS = 1024, ROOF_BYTES = 128 << 20 };

typedef struct {
    const char *name;
    float       temperature, top_p, min_p;
    uint32_t    top_k;
    bool        logprobs;
} way;

static const way WAYS[] = {
    {"greedy",                      0,    0,     0,     0,  false},
    {"greedy, 5 logprobs",          0,    0,     0,     0,  true },
    {"temperature 1",               1,    0,     0,     0,  false},
    {"temperature 1, min_p 0.05",   1,    0,     0.05f, 0,  false},
    {"temperature 1, top_k 20",     1,    0,     0,     20, false},
    {"temperature 1, top_p 0.95",   1,    0.95f, 0,     0,  false},
    {"temperature 0.6, top_p 0.95", 0.6f, 0.95f, 0,     0,  false},
};
enum { N_WAYS = sizeof(WAYS) / sizeof(WAYS[0]) };

typedef struct {
    bt_cpu_pool *pool;
    uint32_t     n_threads, n_rows, n_vocab;
    float       *logits; /* [n_rows][n_vocab] */
    char        *memory; /* [ROOF_BYTES] */
    bt_sampler   samplers[MAX_THREADS];
    const way   *way;
} bench;

static void choose(void *ctx, uint32_t row, uint32_t thread)
{
    const bench      *b      = ctx;
    const bt_sampler *s      = &b->samplers[thread];
    const float      *logits = b->logits + (size_t)row * b->n_vocab;
    const way        *w      = b->way;
    bt_sample_how     how    = {.temperature = w->temperature,
                                .position    = row,
                                .top_k       = w->top_k,
                                .top_p       = w->top_p,
                                .min_p       = w->min_p};
    uint32_t          id     = 0, ids[5];
    float             logprob, tops[5];

    need(bt_sample(s, logits, &how, &id), "a row without a finite logit");
    if (w->logprobs) bt_logprobs(s, logits, id, 5, &logprob, ids, tops);
}

static double ms_of_all(bench *b)
{
    uint64_t from = bt_now_ns();

    bt_cpu_pool_run(b->pool, b->n_rows, choose, b);
    return (double)(bt_now_ns() - from) * 1e-6;
}

static double ms_of_one(bench *b)
{
    uint64_t from = bt_now_ns();

    for (uint32_t row = 0; row < b->n_rows; row++)
        choose(b, row, 0);
    return (double)(bt_now_ns() - from) * 1e-6;
}

/* Of the logits' bytes, by all threads. */
static double ms_of_reading(bench *b)
{
    uint64_t from = bt_now_ns();

    bt_roof_read_by(b->pool, b->memory, ROOF_BYTES);
    return (double)(bt_now_ns() - from) * 1e-6 / ROOF_BYTES * b->n_rows * b->n_vocab *
           sizeof(float);
}

/* Box and Muller's, with the numbers of the sampler's own generator. */
static void fill(float *logits, size_t n, float spread)
{
    for (size_t i = 0; i < n; i++) {
        const bt_sample_how a = {.seed = 1, .position = (uint32_t)i};
        const bt_sample_how b = {.seed = 2, .position = (uint32_t)i};

        logits[i] = spread * (float)(sqrt(-2 * log(1 - bt_sample_uniform(&a))) *
                                     cos(6.283185307179586 * bt_sample_uniform(&b)));
    }
}

static uint32_t argument(int argc, char **argv, int i, uint32_t absent)
{
    return argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : absent;
}

int main(int argc, char **argv)
{
    static bench          b;
    static double         one[N_WAYS][N_ROUNDS], all[N_WAYS][N_ROUNDS], reading[N_ROUNDS];
    bt_device            *dev    = NULL;
    bt_device_cpu_options cpu    = {.n_threads = argument(argc, argv, 1, 0), .kernels = "auto"};
    float                 spread = argc > 4 ? strtof(argv[4], NULL) : 3;
    double                roof;

    b.n_rows  = argument(argc, argv, 2, 32);
    b.n_vocab = argument(argc, argv, 3, 102400);
    need(b.n_rows >= 1 && b.n_rows <= 4096, "rows: 1 to 4096");
    need(b.n_vocab >= 1 && b.n_vocab <= BT_MAX_VOCAB, "vocabulary: 1 to 1048576");
    need(bt_device_cpu_create(&cpu, &dev) == BT_OK, "no device");
    b.pool      = bt_device_cpu_pool(dev);
    b.n_threads = bt_cpu_pool_n_threads(b.pool);
    need(b.n_threads <= MAX_THREADS, "at most 1024 threads");
    b.logits = bt_calloc_aligned((size_t)b.n_rows * b.n_vocab, sizeof(*b.logits));
    b.memory = bt_calloc_aligned(1, ROOF_BYTES);
    need(b.logits != NULL && b.memory != NULL, "no memory");
    memset(b.memory, 1, ROOF_BYTES);
    fill(b.logits, (size_t)b.n_rows * b.n_vocab, spread);
    for (uint32_t i = 0; i < b.n_threads; i++)
        need(bt_sampler_init(&b.samplers[i], bt_device_cpu_table(dev)->rows, b.n_vocab) == BT_OK,
             "no sampler");
    for (int round = 0; round < N_ROUNDS; round++) {
        reading[round] = ms_of_reading(&b);
        for (int i = 0; i < N_WAYS; i++) {
            b.way         = &WAYS[i];
            one[i][round] = ms_of_one(&b);
            all[i][round] = ms_of_all(&b);
        }
    }
    roof = bench_median(reading, N_ROUNDS);
    printf("%u rows of %u logits, %u threads; to read them once takes %.2f ms\n", b.n_rows,
           b.n_vocab, b.n_threads, roof);
    for (int i = 0; i < N_WAYS; i++) {
        double ms = bench_median(all[i], N_ROUNDS);

        printf("%-28s %8.2f ms on one thread %8.2f ms on all, %.1f readings\n", WAYS[i].name,
               bench_median(one[i], N_ROUNDS), ms, ms / roof);
    }
    for (uint32_t i = 0; i < b.n_threads; i++)
        bt_sampler_fini(&b.samplers[i]);
    bt_free(b.memory);
    bt_free(b.logits);
    bt_device_destroy(dev);
    return EXIT_SUCCESS;
}
