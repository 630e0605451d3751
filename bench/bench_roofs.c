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
#define ALL_BYTES (1536ull << 20)

typedef struct {
    bt_cpu_pool *pool;
    const char  *kernels, *memory;
} probe;

static double read_all(probe *p)
{
    bt_roof_read_by(p->pool, p->memory, ALL_BYTES);
    return (double)ALL_BYTES;
}

/* Sixteen pieces a thread, so that an uneven core does not hold up the sum. */
static double multiply_all(probe *p)
{
    return bt_roof_multiply_by(p->pool, 16 * bt_cpu_pool_n_threads(p->pool), p->kernels,
                               PEAK_ROUNDS);
}

static double cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* By the wall's clock, and had every thread a core of its own. */
static void print_rates(const char *name, probe *p, double (*work)(probe *))
{
    double   amount    = work(p), wall[N_SAMPLES], cpu[N_SAMPLES];
    uint32_t n_threads = bt_cpu_pool_n_threads(p->pool);

    for (int i = 0; i < N_SAMPLES; i++) {
        uint64_t start     = bt_now_ns();
        double   cpu_start = cpu_ns();

        work(p);
        wall[i] = (double)(bt_now_ns() - start);
        cpu[i]  = (cpu_ns() - cpu_start) / n_threads;
    }
    printf(", \"%s\": %.2f, \"%s_cpu\": %.2f", name, amount / bench_median(wall, N_SAMPLES), name,
           amount / bench_median(cpu, N_SAMPLES));
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
    print_rates("read_gbs", &p, read_all);
    print_rates("gflops", &p, multiply_all);
    puts("}");
    bt_cpu_pool_destroy(p.pool);
    munmap(memory, ALL_BYTES);
    return EXIT_SUCCESS;
}
