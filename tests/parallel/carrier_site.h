/* tests/parallel/carrier_site.h - one rank's device memory and the carrier that moves it.
 *
 * The GPU is host memory that nobody but kernels and copies may touch, save for "host", where there
 * is none; NCCL is the one of tests/cuda/fake. */
#ifndef BT_TESTS_PARALLEL_CARRIER_SITE_H
#define BT_TESTS_PARALLEL_CARRIER_SITE_H

#include <nccl.h>

#include "device/cuda/module.h"
#include "parallel/nccl/module.h"
#include "tests/parallel/mpi_test.h"

extern const bt_cuda_module_table bt_cuda_module;
extern const bt_nccl_module       bt_nccl_module_table;

enum { ROLL_SPACE = 4, RESERVED = 4 << 20 };

static bt_device  *g_dev;
static const char *g_carrier = "nccl";

/* ---- device memory with known content */

/* Each test has a device of its own, from the first call to close_device(). */
static inline void *take(size_t bytes)
{
    bt_device_cpu_options cpu = {.n_threads = 1, .kernels = "auto"};
    void                 *p   = NULL;

    if (g_dev == NULL)
        EXPECT_EQ(strcmp(g_carrier, "host") == 0 ? bt_device_cpu_create(&cpu, &g_dev)
                                                 : bt_cuda_module.create(0, &g_dev),
                  BT_OK);
    if (g_dev == NULL || bt_device_alloc(g_dev, bytes, &p) != BT_OK) bt_world_exit(EXIT_FAILURE);
    return p;
}

static inline void put(void *device, size_t n, uint64_t seed, uint32_t from, uint32_t to)
{
    uint8_t *host = malloc(n + 1);

    fill(host, n, seed, from, to);
    EXPECT_EQ(bt_device_upload(g_dev, device, host, n), BT_OK);
    EXPECT_EQ(bt_device_sync(g_dev), BT_OK);
    free(host);
}

static inline size_t wrong_bytes(const void *device, size_t n, uint64_t seed, uint32_t from,
                                 uint32_t to)
{
    uint8_t *host  = malloc(n + 1);
    size_t   wrong = 0;

    EXPECT_EQ(bt_device_download(g_dev, host, device, n), BT_OK);
    EXPECT_EQ(bt_device_sync(g_dev), BT_OK);
    wrong = count_wrong(host, n, seed, from, to);
    free(host);
    return wrong;
}

static inline bool is_nccl(void) { return strcmp(g_carrier, "nccl") == 0; }

static inline void close_device(void)
{
    EXPECT_EQ(g_fake_nccl.live, 0);
    bt_device_destroy(g_dev);
    g_dev = NULL;
    EXPECT_EQ(g_fake_gpu.live, 0);
    meet();
}

static inline bt_carrier *make_carrier(void)
{
    bt_carrier *carrier = NULL;

    EXPECT_EQ(is_nccl() ? bt_carrier_nccl_create(&bt_nccl_module_table, g_dev, g_world, ROLL_SPACE,
                                                 &carrier)
                        : bt_carrier_staged_create(g_dev, &carrier),
              BT_OK);
    if (carrier == NULL) bt_world_exit(EXIT_FAILURE);
    return carrier;
}

static inline bt_group *carried_group(void)
{
    bt_group *group = group_of_all();

    if (strcmp(g_carrier, "host") == 0) return group;
    EXPECT(!bt_group_carries(group, g_dev) || g_ranks == 1);
    bt_group_attach(group, make_carrier());
    EXPECT_EQ(bt_group_reserve(group, RESERVED, RESERVED), BT_OK);
    EXPECT(bt_group_carries(group, g_dev));
    return group;
}

/* Everyone's `bytes` at their places, to all. */
static inline bt_status gather(bt_group *group, void *memory, size_t bytes, const bt_wait *wait)
{
    uint32_t self              = bt_group_self(group);
    size_t   own_at[MAX_RANKS] = {0}, at[MAX_RANKS] = {0}, n_bytes[MAX_RANKS] = {0};

    for (uint32_t i = 0; i < bt_group_size(group); i++) {
        own_at[i]  = self * bytes;
        at[i]      = i * bytes;
        n_bytes[i] = i == self ? 0 : bytes;
    }
    return bt_group_exchange_device(
        group, &(bt_exchange){memory, own_at, n_bytes, memory, at, n_bytes}, wait);
}

static inline bt_status gather_and_settle(bt_group *group, void *memory, size_t bytes,
                                          const bt_wait *wait)
{
    bt_status st = gather(group, memory, bytes, wait);

    return st == BT_OK ? bt_group_settle(group, wait) : st;
}

#endif
