/* What a message of the hand-off carries by way of host memory, on a GPU that is host memory: rows
 * of pages as one run, packed by one kernel and moved by one copy, and back. */
#include <cuda_runtime_api.h>

#include "attention/page_rows.h"
#include "core/alloc.h"
#include "device/cuda/module.h"
#include "tests/cuda/simt_control.h"
#include "tests/support/test.h"

extern const bt_cuda_module_table bt_cuda_module;

enum { LAYERS = 3, PAGES = 4, MOST_DIM = 24, ROWS = PAGES * BT_PAGE_TOKENS };

static bt_device  *g_dev;
static bt_kv_pool *g_pool;
static bt_page_id  g_from[PAGES], g_to[PAGES];
static bt_bf16     g_rows[LAYERS][ROWS][MOST_DIM]; /* of g_from */

static bt_bf16 value_of(uint32_t layer, uint32_t row, uint32_t i)
{
    return (bt_bf16)(layer * 30011u + row * 131u + i * 7u + 1u);
}

static void open_pool(uint32_t kv_dim, size_t run_bytes)
{
    bt_kv_pool_config cfg = {.n_layers = LAYERS, .n_pages = 2 * PAGES, .kv_dim = kv_dim};

    EXPECT_EQ(bt_cuda_module.create(0, &g_dev), BT_OK);
    EXPECT_EQ(bt_kv_pool_create(g_dev, &cfg, &g_pool), BT_OK);
    EXPECT_EQ(bt_page_rows_reserve(g_pool, run_bytes), BT_OK);
    EXPECT_EQ(bt_kv_pool_acquire(g_pool, PAGES, g_from), BT_OK);
    EXPECT_EQ(bt_kv_pool_acquire(g_pool, PAGES, g_to), BT_OK);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t r = 0; r < ROWS; r++) {
            for (uint32_t i = 0; i < kv_dim; i++)
                g_rows[l][r][i] = value_of(l, r, i);
            EXPECT_EQ(bt_device_upload(g_dev,
                                       bt_kv_pool_rows(g_pool, g_from[r / BT_PAGE_TOKENS], l) +
                                           r % BT_PAGE_TOKENS * (size_t)kv_dim,
                                       g_rows[l][r], kv_dim * sizeof(bt_bf16)),
                      BT_OK);
        }
    EXPECT_EQ(bt_device_sync(g_dev), BT_OK);
}

static void close_pool(void)
{
    for (uint32_t i = 0; i < PAGES; i++) {
        bt_kv_pool_release(g_pool, g_from[i]);
        bt_kv_pool_release(g_pool, g_to[i]);
    }
    bt_kv_pool_destroy(g_pool);
    bt_device_destroy(g_dev);
    EXPECT_EQ(g_fake_gpu.live, 0);
    EXPECT_EQ(bt_alloc_live(), 0);
}

/* Elements of the run, read from `pages`, that are not those of g_from. */
static size_t wrong_in(const bt_page_id *pages, const bt_page_rows *r, uint32_t kv_dim)
{
    size_t       n = (size_t)(r->layer1 - r->layer0) * (r->token1 - r->token0) * kv_dim, wrong = 0;
    bt_bf16     *run = bt_calloc(n, sizeof(*run)), *at = run;
    bt_page_rows own = *r;

    own.pages = pages;
    EXPECT_EQ(bt_page_rows_download(&own, run), BT_OK);
    for (uint32_t l = r->layer0; l < r->layer1; l++)
        for (uint32_t t = r->token0; t < r->token1; t++, at += kv_dim)
            for (uint32_t i = 0; i < kv_dim; i++)
                wrong += at[i] != value_of(l, t, i);
    bt_free(run);
    return wrong;
}

static void a_run_is_one_kernel_and_one_copy(void)
{
    static const uint32_t RANGES[][4] = {
        {0,  1,    0, 1},
        {63, 65,   1, 3},
        {5,  ROWS, 0, 3},
        {64, 128,  2, 3},
        {0,  ROWS, 0, 3}
    };
    static const uint32_t DIMS[] = {24, 10, 3};

    for (size_t d = 0; d < sizeof(DIMS) / sizeof(DIMS[0]); d++) {
        size_t row = DIMS[d] * sizeof(bt_bf16);

        open_pool(DIMS[d], LAYERS * ROWS * row);
        for (size_t i = 0; i < sizeof(RANGES) / sizeof(RANGES[0]); i++) {
            bt_page_rows  r        = {g_pool,       g_from,       RANGES[i][0],
                                      RANGES[i][1], RANGES[i][2], RANGES[i][3]};
            size_t        n        = (size_t)(r.layer1 - r.layer0) * (r.token1 - r.token0);
            uint8_t      *run      = bt_calloc(n, row);
            unsigned long launches = simt_n_launches();

            EXPECT_EQ(wrong_in(g_from, &r, DIMS[d]), 0);
            EXPECT_EQ(simt_n_launches(), launches + 1);
            EXPECT_EQ(bt_page_rows_download(&r, run), BT_OK);
            r.pages = g_to;
            EXPECT_EQ(bt_page_rows_upload(&r, run), BT_OK);
            EXPECT_EQ(simt_n_launches(), launches + 3);
            memset(run, 0, n * row); /* it is the caller's again */
            EXPECT_EQ(wrong_in(g_to, &r, DIMS[d]), 0);
            bt_free(run);
        }
        close_pool();
    }
}

static void a_run_that_is_too_long_is_refused(void)
{
    bt_bf16      run[3 * 10];
    bt_page_rows r = {.token0 = 0, .token1 = 3, .layer0 = 0, .layer1 = 1};

    open_pool(10, 2 * 10 * sizeof(bt_bf16));
    r.pool  = g_pool;
    r.pages = g_from;
    EXPECT_EQ(bt_page_rows_download(&r, run), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "a run of 60 bytes of rows, with room for 40");
    EXPECT_EQ(bt_page_rows_upload(&r, run), BT_ERR_INVALID_ARG);
    r.token1 = 2;
    EXPECT_EQ(bt_page_rows_download(&r, run), BT_OK);
    close_pool();
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(a_run_is_one_kernel_and_one_copy),
        BT_TEST(a_run_that_is_too_long_is_refused),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
