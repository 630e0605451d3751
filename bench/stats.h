/* bench/stats.h - the middle of samples, and their tail.  Both sort in place. */
#ifndef BT_BENCH_STATS_H
#define BT_BENCH_STATS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static inline int bench_by_real(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* n >= 1; the mean of the two in the middle where n is even. */
static inline double bench_median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), bench_by_real);
    return n % 2 != 0 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static inline int bench_by_count(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Of nanoseconds, in microseconds; part: 0 to 1.  -1: there are none. */
static inline double bench_percentile_us(uint64_t *v, size_t n, double part)
{
    size_t i = (size_t)(part * (double)n);

    if (n == 0) return -1;
    qsort(v, n, sizeof(*v), bench_by_count);
    return (double)v[i < n ? i : n - 1] * 1e-3;
}

#endif
