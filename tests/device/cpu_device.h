/* tests/device/cpu_device.h - a device of the CPU and random matrices, of which linears are made by
 * their rows. */
#ifndef BT_TESTS_DEVICE_CPU_DEVICE_H
#define BT_TESTS_DEVICE_CPU_DEVICE_H

#include "core/alloc.h"
#include "tests/device/twin.h"
#include "tests/support/test.h"

typedef struct {
    uint32_t n, k;
    bt_bf16 *values; /* [n][k] */
} matrix;

static inline void copy_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    const matrix *m = ctx;

    memcpy(row, m->values + (size_t)n * m->k, m->k * sizeof(*row));
}

static inline matrix random_matrix(uint32_t n, uint32_t k, uint64_t seed)
{
    matrix m = {n, k, bt_calloc((size_t)n * k, sizeof(bt_bf16))};

    for (size_t i = 0; i < (size_t)n * k; i++)
        m.values[i] = twin_value(TWIN_ORDINARY, &seed);
    return m;
}

static inline bt_device *device(const char *kernels, uint32_t n_threads)
{
    bt_device_cpu_options opt = {.n_threads = n_threads, .kernels = kernels};
    bt_device            *dev = NULL;

    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    return dev;
}

#endif
