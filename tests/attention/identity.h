/* tests/attention/identity.h - attention of the CPU back end whose W_UK and W_UV are identities and
 * whose RoPE turns by nothing, so that keys, values and absorbed queries are what a test puts in;
 * held against the scalar twin.  argv[1] of such a test: the kernel family. */
#ifndef BT_TESTS_ATTENTION_IDENTITY_H
#define BT_TESTS_ATTENTION_IDENTITY_H

#include "attention/ops.h"
#include "tests/attention/twin.h"
#include "tests/support/test.h"

enum {
    DIM         = 32,
    ROPE        = 8,
    HEADS       = 3,
    WIDTH       = DIM + ROPE,
    Q           = HEADS * WIDTH,
    BLOCK       = 256, /* keys */
    MAX_CONTEXT = 18500,
    MAX_PAGES   = 290
};

static const char *g_family;
static bt_device  *g_dev;
static bt_attn    *g_attn;
static bt_kv_pool *g_pool;
static bt_linear  *g_identity[HEADS];
static bt_page_id  g_pages[MAX_PAGES];
static float       g_rope[MAX_CONTEXT * ROPE];

static void identity_row(void *ctx, uint32_t n, bt_bf16 *row)
{
    (void)ctx;
    memset(row, 0, DIM * sizeof(*row));
    row[n] = 0x3f80;
}

static void fill(bt_bf16 *x, size_t n, uint32_t seed, float size)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = bt_bf16_from_f32((float)(int32_t)seed / 2147483648.0f * size);
    }
}

/* The main() of such a test: steps of at most max_rows rows, pages for cfg->max_context. */
static int identity_main(int argc, char **argv, const bt_test *tests, size_t n_tests,
                         const bt_mla_config *cfg, uint32_t max_rows, uint32_t n_threads)
{
    bt_kv_pool_config pool = {
        .n_layers = 1, .n_pages = bt_kv_pages_for(cfg->max_context), .kv_dim = bt_mla_kv_dim(cfg)};
    bt_device_cpu_options opt = {.n_threads = n_threads};
    int                   rc  = EXIT_FAILURE;

    opt.kernels = g_family = argc > 1 ? argv[1] : "auto";
    if (bt_cpu_kernels_find(g_family) == NULL) {
        printf("skipped: this CPU has no %s, only %s\n", g_family, bt_device_cpu_kernels());
        return BT_TEST_SKIP;
    }
    g_twin_arithmetic = bt_cpu_kernels_find(g_family)->arithmetic[BT_ROLE_GENERATED];
    for (uint32_t i = 0; i < MAX_CONTEXT * ROPE; i += 2)
        g_rope[i] = 1; /* cos 0, sin 0 */
    if (pool.n_pages > MAX_PAGES || bt_device_cpu_create(&opt, &g_dev) != BT_OK ||
        bt_kv_pool_create(g_dev, &pool, &g_pool) != BT_OK ||
        bt_kv_pool_acquire(g_pool, pool.n_pages, g_pages) != BT_OK ||
        bt_attn_cpu_ops.create(g_dev, cfg, max_rows, g_rope, &g_attn) != BT_OK ||
        bt_device_linear_create(g_dev, DIM, DIM, identity_row, NULL, &g_identity[0]) != BT_OK)
        return EXIT_FAILURE;
    g_identity[1] = g_identity[2] = g_identity[0];
    rc                            = bt_run_tests(tests, n_tests, argc > 2 ? argv[2] : NULL);
    bt_device_linear_destroy(g_dev, g_identity[0]);
    g_attn->ops->destroy(g_attn);
    bt_kv_pool_destroy(g_pool);
    bt_device_destroy(g_dev);
    return rc;
}

#endif
