#include "attention/page_rows.h"

#include "attention/kv_pool_state.h"
#include "attention/ops.h"

/* A page's share of a layer's tokens at a time. */
static bt_status copy(const bt_page_rows *r, uint8_t *run, bool to_pages)
{
    bt_status  st        = BT_OK;
    bt_device *dev       = r->pool->dev;
    uint32_t   kv_dim    = bt_kv_pool_kv_dim(r->pool);
    size_t     row_bytes = kv_dim * sizeof(bt_bf16);

    for (uint32_t layer = r->layer0; layer < r->layer1; layer++)
        for (uint32_t t = r->token0, n; t < r->token1; t += n) {
            uint32_t row  = t % BT_PAGE_TOKENS;
            bt_bf16 *page = bt_kv_pool_rows(r->pool, r->pages[t / BT_PAGE_TOKENS], layer);

            n = BT_PAGE_TOKENS - row < r->token1 - t ? BT_PAGE_TOKENS - row : r->token1 - t;
            page += (size_t)row * kv_dim;
            BT_TRY(to_pages ? bt_device_upload(dev, page, run, n * row_bytes)
                            : bt_device_download(dev, run, page, n * row_bytes));
            run += n * row_bytes;
        }
    BT_TRY(bt_device_sync(dev)); /* the run is the caller's */
out:
    return st;
}

bt_status bt_page_rows_download(const bt_page_rows *r, void *run) { return copy(r, run, false); }

bt_status bt_page_rows_upload(const bt_page_rows *r, const void *run)
{
    return copy(r, (uint8_t *)(uintptr_t)run, true); /* only read */
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

bt_status bt_page_rows_pack(const bt_page_rows *r, void *stream, void *run)
{
    return move(r, stream, run, false);
}

bt_status bt_page_rows_scatter(const bt_page_rows *r, void *stream, const void *run)
{
    return move(r, stream, (void *)(uintptr_t)run, true); /* only read */
}
