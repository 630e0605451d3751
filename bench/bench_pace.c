/* How evenly a core computes: one piece of work in registers, again and again.
 *
 *     bench_pace [CORE [SECONDS]]        (0 6)
 *
 * The work needs no memory, no kernel and no other core, so on a core of one's own each slice of
 * 50 ms should have the same median.  Where some take up to twice as long, a virtual machine's
 * host gives its core's other half to somebody else meanwhile.  Printed: every slice's median, and
 * how many are slow (1.3 times the fastest). */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/stats.h"
#include "core/clock.h"

enum { SLICE_MS = 50, MOST = 100000, ROUNDS = 6000, REGISTERS = 8, MAX_SLICES = 2000 };

static uint64_t work_ns(void)
{
    uint64_t r[REGISTERS] = {1, 2, 3, 4, 5, 6, 7, 8}, begun_ns = bt_now_ns();

    for (uint64_t i = 0; i < ROUNDS; i++)
        for (int k = 0; k < REGISTERS; k++) {
            r[k] += r[k] ^ i;
            __asm__ volatile("" : "+r"(r[k])); /* neither left out nor several at once */
        }
    return bt_now_ns() - begun_ns;
}

static double slice_us(void)
{
    static uint64_t took_ns[MOST];
    uint64_t        end_ns = bt_now_ns() + SLICE_MS * BT_NS_PER_MS;
    size_t          n      = 0;

    do
        took_ns[n++] = work_ns();
    while (n < MOST && bt_now_ns() < end_ns);
    return bench_percentile_us(took_ns, n, 0.5);
}

int main(int argc, char **argv)
{
    static double us[MAX_SLICES];
    int           core = argc > 1 ? atoi(argv[1]) : 0, n_slow = 0, n;
    double        least = 1e9;
    cpu_set_t     set;

    n = (argc > 2 ? atoi(argv[2]) : 6) * 1000 / SLICE_MS;
    if (core < 0 || core >= CPU_SETSIZE || n < 1 || n > MAX_SLICES) {
        fprintf(stderr, "usage: bench_pace [CORE [SECONDS]], at most %d s\n",
                MAX_SLICES * SLICE_MS / 1000);
        return EXIT_FAILURE;
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0) {
        fprintf(stderr, "bench_pace: core %d: %s\n", core, strerror(errno));
        return EXIT_FAILURE;
    }
    for (int i = 0; i < n; i++) {
        us[i] = slice_us();
        if (us[i] < least) least = us[i];
        printf("%.1f%c", us[i], i + 1 < n ? ' ' : '\n');
    }
    for (int i = 0; i < n; i++)
        n_slow += us[i] > 1.3 * least;
    printf("fastest slice %.1f us; %d of %d are slow\n", least, n_slow, n);
    return EXIT_SUCCESS;
}
