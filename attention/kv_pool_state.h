/* attention/kv_pool_state.h - the inside of a pool, for kv_pool.c, kv_prefix.c and page_rows.c
 * only. */
#ifndef BT_ATTENTION_KV_POOL_STATE_H
#define BT_ATTENTION_KV_POOL_STATE_H

#include "attention/ops.h"

#define BT_NO_PAGE UINT32_MAX

/* A page of the prefix cache: its key, its chain in the table, its place among the idle ones. */
typedef struct {
    bt_prefix_key key;
    bt_page_map   map;
    bt_page_id    chain;        /* next page of the same bucket */
    bt_page_id    older, newer; /* while idle */
    bool          known;        /* the table holds it */
} bt_kv_entry;

struct bt_kv_pool {
    bt_device         *dev; /* borrowed */
    const bt_attn_ops *ops; /* of dev, or NULL */
    bt_kv_pool_config  cfg;
    bt_bf16           *mem;        /* owned, on the device: [n_pages] pages */
    uint32_t          *refs;       /* owned: [n_pages] reference counts */
    uint32_t          *generation; /* owned: [n_pages] times taken */
    bt_page_id        *free;       /* owned: stack of free pages, top at n_free-1 */
    uint8_t           *seen;       /* owned: [n_pages] scratch of the integrity check */
    void              *run;        /* owned, on the device: see bt_page_rows_reserve(); or NULL */
    size_t             run_bytes;
    uint32_t           n_free;
    size_t             page_elems, layer_elems;

    bt_kv_entry *entries; /* owned: [n_pages] */
    bt_page_id  *buckets; /* owned: [n_buckets], a power of two */
    uint32_t     n_buckets;
    bt_page_id   oldest, newest; /* idle pages: known and without a reference */
    uint32_t     n_idle, n_known;
};

/* kv_prefix.c */
bt_status bt_kv_prefix_init(bt_kv_pool *pool);
void      bt_kv_prefix_fini(bt_kv_pool *pool);
/* The last reference of a known page has gone: it waits, as the newest, for a hit or for its end.
 */
void bt_kv_prefix_idle(bt_kv_pool *pool, bt_page_id page);
/* Forgets the oldest idle page and returns it. */
bt_page_id bt_kv_prefix_evict(bt_kv_pool *pool);
/* Part of the integrity check: marks idle pages in `seen`. */
bt_status bt_kv_prefix_check(const bt_kv_pool *pool);

#endif
