#include "attention/page_rows.h"

#include <string.h>

#include "attention/kv_pool_state.h"
#include "attention/ops.h"

bt_status bt_page_rows_reserve(bt_kv_pool *pool, size_t run_bytes)
{
    bt_status st = BT_OK;

    BT_ASSERT(pool->run == NULL);
    if (pool->dev->host_memory) goto out;
    BT_TRY(bt_device_alloc(pool->dev, run_bytes, &pool->run));
    pool->run_bytes = run_bytes;
out:
    return st;
}

/* Host memory: a page's share of a layer's tokens at a time. */
static void copy(const bt_page_rows *r, uint8_t *run, bool to_pages)
{
    uint32_t kv_dim    = bt_kv_pool_kv_dim(r->pool);
    size_t   row_bytes = kv_dim * sizeof(bt_bf16);

    for (uint32_t layer = r->layer0; layer < r->layer1; layer++)
        for (uint32_t t = r->token0, n; t < r->token1; t += n) {
            uint32_t row  = t % BT_PAGE_TOKENS;
            bt_bf16 *page = bt_kv_pool_rows(r->pool, r->pages[t / BT_PAGE_TOKENS], layer);

            n = bt_min_u32(BT_PAGE_TOKENS - row, r->token1 - t);
            page += (size_t)row * kv_dim;
            memcpy(to_pages ? (void *)page : run, to_pages ? run : (void *)page, n * row_bytes);
            run += n * row_bytes;
        }
}

static bt_status move(const bt_page_rows *r, void *stream, void *run, bool to_pages)
{
    bt_status  st  = BT_OK;
    bt_device *dev = r->pool->dev;

    BT_REQUIRE(r->pool->ops != NULL, BT_ERR_UNSUPPORTED, "no attention for device \"%s\"",
               dev->ops->name);
    BT_TRY(r->pool->ops->move_rows(r, stream, run, to_pages));
out:
    return st;
}

/* By way of the pool's room for a run, where memory is a GPU's. */
static bt_status carry(const bt_page_rows *r, uint8_t *run, bool to_pages)
{
    bt_status  st    = BT_OK;
    bt_device *dev   = r->pool->dev;
    size_t     bytes = (size_t)(r->layer1 - r->layer0) * (r->token1 - r->token0) *
                   bt_kv_pool_kv_dim(r->pool) * sizeof(bt_bf16);

    if (dev->host_memory) {
        copy(r, run, to_pages);
        goto out;
    }
    BT_REQUIRE(bytes <= r->pool->run_bytes, BT_ERR_INVALID_ARG,
               "a run of %zu bytes of rows, with room for %zu", bytes, r->pool->run_bytes);
    if (to_pages) BT_TRY(bt_device_upload(dev, r->pool->run, run, bytes));
    BT_TRY(move(r, bt_device_stream(dev), r->pool->run, to_pages));
    if (!to_pages) BT_TRY(bt_device_download(dev, run, r->pool->run, bytes));
    BT_TRY(bt_device_sync(dev)); /* the run is the caller's */
out:
    return st;
}

bt_status bt_page_rows_download(const bt_page_rows *r, void *run) { return carry(r, run, false); }

bt_status bt_page_rows_upload(const bt_page_rows *r, const void *run)
{
    return carry(r, (uint8_t *)(uintptr_t)run, true); /* only read */
}

bt_status bt_page_rows_pack(const bt_page_rows *r, void *stream, void *run)
{
    return move(r, stream, run, false);
}

bt_status bt_page_rows_scatter(const bt_page_rows *r, void *stream, const void *run)
{
    return move(r, stream, (void *)(uintptr_t)run, true); /* only read */
}
