/* bench/bench_roofs.c - this machine's roofs, measured now, as one line of JSON.
 *
 *     bench_roofs [threads [kernels]]        default: every core, the machine's best family
 *
 * read_gbs: loads over memory far larger than the caches, in huge pages where the system has them,
 * each thread its own part.
 * gflops: multiply-adds on registers, the widest that the family's arithmetic can use.
 * The same with _cpu counts the threads' own time instead of the wall's: what the cores do while
 * they are ours, of use when others have them too.
 * Medians of short samples: on a shared machine a roof holds for the seconds in which it was taken.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench/stats.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/machine.h"
#include "device/cpu/kernels.h"
#include "device/cpu/roofs.h"

enum { N_SAMPLES = 5, MAX_THREADS = 4096, PEAK_ROUNDS = 40000 };
#define PART_BYTES (16ull << 20)
#define ALL_BYTES  (1536ull << 20)

typedef struct {
    bt_cpu_pool *pool;
    const char  *kernels, *memory;
} probe;

static void read_part(void *ctx, uint32_t chunk, uint32_t member)
{
    const probe *p = ctx;

    (void)member;
    bt_roof_read(p->memory + chunk * PART_BYTES, PART_BYTES);
}

static void multiply_part(void *ctx, uint32_t chunk, uint32_t member)
{
    const probe *p = ctx;

    (void)chunk;
    (void)member;
    bt_roof_multiply(p->kernels, PEAK_ROUNDS);
}

/* Of a task over n_chunks chunks: by the wall's clock, and had every thread a core of its own. */
typedef struct {
    double wall_ns, cpu_ns;
} cost;

static double cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static cost measure(probe *p, uint32_t n_chunks, bt_cpu_task task)
{
    double   wall[N_SAMPLES], cpu[N_SAMPLES];
    uint32_t n_threads = bt_cpu_pool_n_threads(p->pool);

    bt_cpu_pool_run(p->pool, n_chunks, task, p);
    for (int i = 0; i < N_SAMPLES; i++) {
        uint64_t start     = bt_now_ns();
        double   cpu_start = cpu_ns();

        bt_cpu_pool_run(p->pool, n_chunks, task, p);
        wall[i] = (double)(bt_now_ns() - start);
        cpu[i]  = (cpu_ns() - cpu_start) / n_threads;
    }
    return (cost){bench_median(wall, N_SAMPLES), bench_median(cpu, N_SAMPLES)};
}

static void print_rates(const char *name, double amount, cost c)
{
    printf(", \"%s\": %.2f, \"%s_cpu\": %.2f", name, amount / c.wall_ns, name, amount / c.cpu_ns);
}

/* Sixteen pieces a thread, so that an uneven core does not hold up the sum. */
static void print_peak(probe *p)
{
    uint32_t n_chunks = 16 * bt_cpu_pool_n_threads(p->pool);
    double   ops      = bt_roof_multiply(p->kernels, 1) * PEAK_ROUNDS * n_chunks;

    print_rates("gflops", ops, measure(p, n_chunks, multiply_part));
}

int main(int argc, char **argv)
{
    uint32_t    n_threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : bt_machine_cores();
    char        best[64];
    const char *kernels = argc > 2 ? argv[2] : best;
    char       *memory =
        mmap(NULL, ALL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    probe p = {.kernels = kernels, .memory = memory};

    snprintf(best, sizeof(best), "%s", bt_device_cpu_kernels());
    best[strcspn(best, ",")] = '\0'; /* the best comes first */
    if (memory == MAP_FAILED || n_threads < 1 || n_threads > MAX_THREADS ||
        bt_cpu_pool_create(n_threads, &p.pool) != BT_OK) {
        fputs("bench_roofs: cannot take 1.5 GiB and start the threads\n", stderr);
        return EXIT_FAILURE;
    }
    bt_advise_large(memory, ALL_BYTES); /* as weights lie */
    memset(memory, 1, ALL_BYTES);       /* zero pages may share one frame */
    printf("{\"threads\": %u, \"kernels\": \"%s\"", n_threads, kernels);
    print_rates("read_gbs", (double)ALL_BYTES,
                measure(&p, (uint32_t)(ALL_BYTES / PART_BYTES), read_part));
    print_peak(&p);
    puts("}");
    bt_cpu_pool_destroy(p.pool);
    munmap(memory, ALL_BYTES);
    return EXIT_SUCCESS;
}
