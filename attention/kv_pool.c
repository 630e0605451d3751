#include "attention/kv_pool.h"

#include <string.h>

#include "attention/kv_pool_state.h"
#include "core/alloc.h"

/* a * b, or 0 when that overflows; a zero operand counts as an overflow. */
static size_t mul(size_t a, size_t b) { return b != 0 && a <= SIZE_MAX / b ? a * b : 0; }

size_t bt_kv_page_bytes(uint32_t n_layers, uint32_t kv_dim)
{
    return mul(mul((size_t)BT_PAGE_TOKENS * sizeof(bt_bf16), kv_dim), n_layers);
}

bt_status bt_kv_pool_create(bt_device *dev, const bt_kv_pool_config *cfg, bt_kv_pool **pool_out)
{
    bt_status   st         = BT_OK;
    bt_kv_pool *pool       = NULL;
    size_t      page_bytes = bt_kv_page_bytes(cfg->n_layers, cfg->kv_dim);
    size_t      pool_bytes = mul(page_bytes, cfg->n_pages);
    void       *mem        = NULL;

    BT_REQUIRE(pool_bytes != 0, BT_ERR_INVALID_ARG,
               "kv pool of %u pages, %u layers, %u elements a token: each must be above 0 and the "
               "bytes must fit in size_t",
               cfg->n_pages, cfg->n_layers, cfg->kv_dim);

    pool = bt_calloc(1, sizeof(*pool));
    BT_REQUIRE(pool != NULL, BT_ERR_NO_MEMORY, "kv pool header");
    pool->dev         = dev;
    pool->ops         = bt_attn_find(dev);
    pool->cfg         = *cfg;
    pool->page_elems  = page_bytes / sizeof(bt_bf16);
    pool->layer_elems = pool->page_elems / cfg->n_layers;

    pool->refs       = bt_calloc(cfg->n_pages, sizeof(*pool->refs));
    pool->generation = bt_calloc(cfg->n_pages, sizeof(*pool->generation));
    pool->free       = bt_calloc(cfg->n_pages, sizeof(*pool->free));
    pool->seen       = bt_calloc(cfg->n_pages, sizeof(*pool->seen));
    BT_REQUIRE(pool->refs != NULL && pool->generation != NULL && pool->free != NULL &&
                   pool->seen != NULL,
               BT_ERR_NO_MEMORY, "kv pool tables of %u pages", cfg->n_pages);
    BT_TRY(bt_kv_prefix_init(pool));
    BT_TRY(bt_device_alloc(dev, pool_bytes, &mem));
    pool->mem = mem;

    while (pool->n_free < cfg->n_pages) { /* page 0 ends on top: pages are taken 0, 1, 2, ... */
        pool->free[pool->n_free] = cfg->n_pages - 1 - pool->n_free;
        pool->n_free++;
    }
    *pool_out = pool;
    pool      = NULL; /* handed over */

out:
    bt_kv_pool_destroy(pool);
    return st;
}

void bt_kv_pool_destroy(bt_kv_pool *pool)
{
    if (pool == NULL) return;
    bt_device_free(pool->dev, pool->mem);
    bt_device_free(pool->dev, pool->run);
    bt_kv_prefix_fini(pool);
    bt_free(pool->seen);
    bt_free(pool->free);
    bt_free(pool->generation);
    bt_free(pool->refs);
    bt_free(pool);
}

bt_status bt_kv_pool_acquire(bt_kv_pool *pool, uint32_t n, bt_page_id *pages_out)
{
    if (n > bt_kv_pool_n_available(pool)) return BT_ERR_NO_PAGES;
    for (uint32_t i = 0; i < n; i++) {
        bt_page_id page = pool->n_free > 0 ? pool->free[--pool->n_free] : bt_kv_prefix_evict(pool);

        BT_ASSERT(pool->refs[page] == 0);
        pool->refs[page] = 1;
        pool->generation[page]++;
        pages_out[i] = page;
    }
    return BT_OK;
}

void bt_kv_pool_retain(bt_kv_pool *pool, bt_page_id page)
{
    BT_ASSERT(page < pool->cfg.n_pages && pool->refs[page] != 0 && pool->refs[page] != UINT32_MAX);
    pool->refs[page]++;
}

void bt_kv_pool_release(bt_kv_pool *pool, bt_page_id page)
{
    BT_ASSERT(page < pool->cfg.n_pages && pool->refs[page] != 0);
    if (--pool->refs[page] != 0) return;
    if (pool->entries[page].known) {
        bt_kv_prefix_idle(pool, page);
        return;
    }
    BT_ASSERT(pool->n_free < pool->cfg.n_pages);
    pool->free[pool->n_free++] = page;
}

bt_bf16 *bt_kv_pool_rows(const bt_kv_pool *pool, bt_page_id page, uint32_t layer)
{
    BT_ASSERT(page < pool->cfg.n_pages && layer < pool->cfg.n_layers);
    return pool->mem + page * pool->page_elems + layer * pool->layer_elems;
}

uint32_t bt_kv_pool_generation(const bt_kv_pool *pool, bt_page_id page)
{
    BT_ASSERT(page < pool->cfg.n_pages);
    return pool->generation[page];
}

uint32_t bt_kv_pool_n_pages(const bt_kv_pool *pool) { return pool->cfg.n_pages; }
uint32_t bt_kv_pool_n_free(const bt_kv_pool *pool) { return pool->n_free; }
uint32_t bt_kv_pool_n_available(const bt_kv_pool *pool) { return pool->n_free + pool->n_idle; }
uint32_t bt_kv_pool_n_layers(const bt_kv_pool *pool) { return pool->cfg.n_layers; }
uint32_t bt_kv_pool_kv_dim(const bt_kv_pool *pool) { return pool->cfg.kv_dim; }

bt_status bt_kv_pool_check(const bt_kv_pool *pool)
{
    bt_status st = BT_OK;

    memset(pool->seen, 0, pool->cfg.n_pages);
    BT_REQUIRE(pool->n_free <= pool->cfg.n_pages, BT_ERR_PROTOCOL,
               "kv pool: %u free pages of %u in all", pool->n_free, pool->cfg.n_pages);
    for (uint32_t i = 0; i < pool->n_free; i++) {
        bt_page_id page = pool->free[i];

        BT_REQUIRE(page < pool->cfg.n_pages, BT_ERR_PROTOCOL,
                   "kv pool: the free list holds page %u of %u", page, pool->cfg.n_pages);
        BT_REQUIRE(!pool->seen[page], BT_ERR_PROTOCOL, "kv pool: page %u is in the free list twice",
                   page);
        BT_REQUIRE(pool->refs[page] == 0 && !pool->entries[page].known, BT_ERR_PROTOCOL,
                   "kv pool: page %u is free, has %u references and is known %d", page,
                   pool->refs[page], pool->entries[page].known);
        pool->seen[page] = 1;
    }
    BT_TRY(bt_kv_prefix_check(pool));
    for (bt_page_id page = 0; page < pool->cfg.n_pages; page++)
        BT_REQUIRE(pool->seen[page] || pool->refs[page] != 0, BT_ERR_PROTOCOL,
                   "kv pool: page %u has no reference and is neither free nor cached", page);
out:
    return st;
}

bt_status bt_kv_pool_check_idle(const bt_kv_pool *pool)
{
    bt_status st = BT_OK;

    BT_TRY(bt_kv_pool_check(pool));
    BT_REQUIRE(bt_kv_pool_n_available(pool) == pool->cfg.n_pages, BT_ERR_PROTOCOL,
               "kv pool: no request is here, but %u pages are free and %u cached of %u",
               pool->n_free, pool->n_idle, pool->cfg.n_pages);
out:
    return st;
}
