/* attention/kv_pool.h - fixed-size pages of latent (MLA) KV on one device.
 *
 * One pool per rank.  A page holds BT_PAGE_TOKENS tokens of every layer:
 *     page[n_layers][BT_PAGE_TOKENS][kv_dim]     row-major bf16
 * with kv_dim = kv_lora_rank + qk_rope_dim (512 + 64 in the DeepSeek models): the latent after its
 * norm, then the rope key after RoPE, pairs interleaved; where attention is sparse index_dim more,
 * the indexer's key (bt_mla_kv_dim()).  Layers share a page, so that evicting or moving a token is
 * one operation.
 *
 * A page's generation grows each time it is taken, so a late message for an earlier owner is
 * recognised.
 *
 * Threads: none of this is thread-safe; the step thread owns the pool.
 * Memory:  all of it is taken in create(); no later call allocates. */
#ifndef BT_ATTENTION_KV_POOL_H
#define BT_ATTENTION_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "device/device.h"

#pragma GCC visibility push(default) /* libbaton_cuda.so takes these from the program */
#ifdef __cplusplus
extern "C" {
#endif

enum { BT_PAGE_TOKENS = 64 };

typedef struct bt_kv_pool bt_kv_pool;
typedef uint32_t          bt_page_id; /* 0 .. n_pages-1 */

typedef struct {
    uint32_t n_layers;
    uint32_t n_pages;
    uint32_t kv_dim; /* elements per token and layer */
} bt_kv_pool_config;

/* Bytes of one page. */
size_t bt_kv_page_bytes(uint32_t n_layers, uint32_t kv_dim);
/* Pages that hold n_tokens. */
static inline uint32_t bt_kv_pages_for(uint32_t n_tokens)
{
    return n_tokens / BT_PAGE_TOKENS + (n_tokens % BT_PAGE_TOKENS != 0);
}

/* Creates a pool on `dev`, which is borrowed and must outlive the pool.
 * INVALID_ARG: a zero field, or the bytes overflow.  NO_MEMORY: host or device. */
bt_status bt_kv_pool_create(bt_device *dev, const bt_kv_pool_config *cfg, bt_kv_pool **pool_out);
/* Frees the pool; NULL is allowed. */
void bt_kv_pool_destroy(bt_kv_pool *pool);

/* Takes n pages, one reference each, into pages_out[0..n): free ones, then the cached ones that
 * nobody holds, those first that were used longest ago.  All or nothing: NO_PAGES takes none and is
 * not logged (the caller waits or refuses). */
bt_status bt_kv_pool_acquire(bt_kv_pool *pool, uint32_t n, bt_page_id *pages_out);
/* One more reference (a shared prefix) / one less; the last one frees the page, unless the prefix
 * cache knows it. */
void bt_kv_pool_retain(bt_kv_pool *pool, bt_page_id page);
void bt_kv_pool_release(bt_kv_pool *pool, bt_page_id page);

/* Device address of page[layer], shape [BT_PAGE_TOKENS][kv_dim].  Borrowed: good for as long as the
 * caller holds a reference to the page. */
bt_bf16 *bt_kv_pool_rows(const bt_kv_pool *pool, bt_page_id page, uint32_t layer);

/* The prefix cache.  A key names the tokens of a full page and of all pages before it, and how the
 * latter were computed; whoever makes the keys must make equal ones for equal tokens only.  A page
 * in the cache is never written. */
typedef struct {
    uint64_t lo, hi;
} bt_prefix_key;

/* How the tokens of a page were computed, which its bits depend on: bit t set for a token t that
 * ran through the kernels made for generated rows, and for one that attended in the absorbed form.
 * All zero: prompt tokens in the form of their role. */
typedef struct {
    uint64_t generated, absorbed;
} bt_page_map;

/* A page of that key, one more reference, and its map.  want: of that map; NULL: whatever it has.
 * False: none is cached. */
bool bt_kv_pool_match(bt_kv_pool *pool, const bt_prefix_key *key, const bt_page_map *want,
                      bt_page_id *page_out, bt_page_map *map_out);
/* The cache shall know the page, which the caller holds and nobody will write again.  False: it
 * knows one of that key and map already, and this one stays as it is. */
bool bt_kv_pool_keep(bt_kv_pool *pool, bt_page_id page, const bt_prefix_key *key,
                     const bt_page_map *map);

uint32_t bt_kv_pool_generation(const bt_kv_pool *pool, bt_page_id page);
uint32_t bt_kv_pool_n_pages(const bt_kv_pool *pool);
uint32_t bt_kv_pool_n_free(const bt_kv_pool *pool);
uint32_t bt_kv_pool_n_cached(const bt_kv_pool *pool);    /* in the cache, held by nobody */
uint32_t bt_kv_pool_n_available(const bt_kv_pool *pool); /* both: what acquire() can give */
uint32_t bt_kv_pool_n_layers(const bt_kv_pool *pool);
uint32_t bt_kv_pool_kv_dim(const bt_kv_pool *pool);

/* The integrity check: the free list holds each free page once, the idle list each cached page that
 * nobody holds, their references are 0, every other page's are not, and all add up.  PROTOCOL with
 * the first difference when not. */
bt_status bt_kv_pool_check(const bt_kv_pool *pool);
/* The same on a rank without requests: no page is held. */
bt_status bt_kv_pool_check_idle(const bt_kv_pool *pool);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
