/* tests/cuda/numbers.h - arrays that end where they end, numbers to fill them with, and
 * comparisons.
 */
#ifndef BT_TESTS_CUDA_NUMBERS_H
#define BT_TESTS_CUDA_NUMBERS_H

#include <math.h>

#include "core/alloc.h"
#include "core/bf16.h"
#include "tests/cuda/simt_control.h"
#include "tests/support/test.h"

/* Not zeroed: NaN, and never all ones, which kernels write where there is nothing; aligned to 16
 * bytes. */
static inline void *poisoned(size_t n, size_t bytes_each)
{
    void *p = NULL;

    if (posix_memalign(&p, 16, n * bytes_each) != 0) abort();
    for (size_t i = 0; i < n * bytes_each; i++)
        ((uint8_t *)p)[i] = i % 2 == 0 ? 0xf5 : 0x7f;
    return p;
}
#define ARRAY(T, n) ((T *)poisoned((n), sizeof(T)))

static inline uint32_t random_bits(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}
/* About -1 .. 1. */
static inline float random_float(uint64_t *state)
{
    return (float)((double)random_bits(state) / 2147483648.0 - 1.0);
}
static inline bt_bf16 *random_bf16(size_t n, float size, uint64_t *state)
{
    bt_bf16 *v = ARRAY(bt_bf16, n);

    for (size_t i = 0; i < n; i++)
        v[i] = bt_bf16_from_f32(size * random_float(state));
    return v;
}
static inline float *random_f32(size_t n, float size, uint64_t *state)
{
    float *v = ARRAY(float, n);

    for (size_t i = 0; i < n; i++)
        v[i] = size * random_float(state);
    return v;
}

/* How many bytes differ: 0 for equal bits. */
static inline size_t n_different(const void *a, const void *b, size_t bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n += ((const char *)a)[i] != ((const char *)b)[i];
    return n;
}

/* The worst |got - want| / (size + |want|); a NaN in only one of them is infinitely bad. */
typedef struct {
    double worst;
    size_t at;
} difference;
static inline void differ(difference *d, double got, double want, double size, size_t at)
{
    double e = fabs(got - want) / (size + fabs(want));

    if (isnan(want) && isnan(got)) return;
    if (got == want) return;
    if (!(e <= d->worst)) *d = (difference){isnan(e) ? INFINITY : e, at};
}
#define EXPECT_CLOSE(d, limit)                                                                    \
    do {                                                                                          \
        difference d_ = (d);                                                                      \
        if (!(d_.worst <= (limit))) {                                                             \
            g_failures++;                                                                         \
            fprintf(stderr, "%s:%d element %zu is off by %g, more than %g\n", __FILE__, __LINE__, \
                    d_.at, d_.worst, (double)(limit));                                            \
        }                                                                                         \
    } while (0)

/* From the definition: sign, 4 exponent bits of bias 7, 3 bits. */
static inline float e4m3(uint8_t v)
{
    int   e = v >> 3 & 15, m = v & 7;
    float f = e ? ldexpf(1 + (float)m / 8, e - 7) : ldexpf((float)m / 8, -6);

    return v & 0x80 ? -f : f;
}

#endif
