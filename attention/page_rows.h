/* attention/page_rows.h - rows of a request's pages as one run, and back: what a message of the
 * hand-off carries.
 *
 *     run[layer1 - layer0][token1 - token0][kv_dim]     row-major bf16
 *
 * Threads: the step thread.  Memory: reserve() takes it. */
#ifndef BT_ATTENTION_PAGE_ROWS_H
#define BT_ATTENTION_PAGE_ROWS_H

#include "attention/kv_pool.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const bt_kv_pool *pool;
    const bt_page_id *pages;          /* of the request, from its first token on */
    uint32_t          token0, token1; /* token0 < token1 */
    uint32_t          layer0, layer1; /* layer0 < layer1 */
} bt_page_rows;

/* Room for a run on the pool's device, owned by the pool; where its memory is the host's: none.
 * Once, and before download() and upload().  NO_MEMORY, DEVICE. */
bt_status bt_page_rows_reserve(bt_kv_pool *pool, size_t run_bytes);
/* run: host memory; complete when the call returns.  On a GPU one kernel packs (or scatters) what
 * one copy moves.  INVALID_ARG: longer than what was reserved. */
bt_status bt_page_rows_download(const bt_page_rows *r, void *run);
bt_status bt_page_rows_upload(const bt_page_rows *r, const void *run);
/* run: memory of the pool's device, by one kernel for 256 pages; enqueued on `stream`, of the kind
 * of bt_device_stream().  UNSUPPORTED: the device has no attention. */
bt_status bt_page_rows_pack(const bt_page_rows *r, void *stream, void *run);
bt_status bt_page_rows_scatter(const bt_page_rows *r, void *stream, const void *run);

#ifdef __cplusplus
}
#endif
#endif
