/* attention/kv_prefix.c - the prefix cache: full pages of prompt tokens, with --share-generated of
 * generated ones too, found by their key.
 *
 * A hash table over pages, chained by page number, and a list of the idle ones in order of their
 * last use.  A chain of pages is released from its end, so that its end is the older part: what is
 * evicted first is what no other page follows. */
#include "attention/kv_pool_state.h"
#include "core/alloc.h"

bt_status bt_kv_prefix_init(bt_kv_pool *pool)
{
    bt_status st = BT_OK;

    pool->n_buckets = 1;
    while (pool->n_buckets < pool->cfg.n_pages && pool->n_buckets < 1u << 31)
        pool->n_buckets *= 2;
    pool->entries = bt_calloc(pool->cfg.n_pages, sizeof(*pool->entries));
    pool->buckets = bt_calloc(pool->n_buckets, sizeof(*pool->buckets));
    BT_REQUIRE(pool->entries != NULL && pool->buckets != NULL, BT_ERR_NO_MEMORY,
               "prefix cache of %u pages", pool->cfg.n_pages);
    for (uint32_t i = 0; i < pool->n_buckets; i++)
        pool->buckets[i] = BT_NO_PAGE;
    pool->oldest = pool->newest = BT_NO_PAGE;
out:
    return st;
}

void bt_kv_prefix_fini(bt_kv_pool *pool)
{
    bt_free(pool->buckets);
    bt_free(pool->entries);
}

static bt_page_id *bucket_of(const bt_kv_pool *pool, const bt_prefix_key *key)
{
    return &pool->buckets[(key->lo ^ key->hi >> 32) & (pool->n_buckets - 1)];
}

static bool fits(const bt_kv_entry *e, const bt_prefix_key *key, const bt_page_map *want)
{
    return e->key.lo == key->lo && e->key.hi == key->hi &&
           (want == NULL ||
            (e->map.generated == want->generated && e->map.absorbed == want->absorbed));
}

static bt_page_id find(const bt_kv_pool *pool, const bt_prefix_key *key, const bt_page_map *want)
{
    bt_page_id page = *bucket_of(pool, key);

    while (page != BT_NO_PAGE && !fits(&pool->entries[page], key, want))
        page = pool->entries[page].chain;
    return page;
}

static void leave_idle(bt_kv_pool *pool, bt_page_id page)
{
    bt_kv_entry *e = &pool->entries[page];

    *(e->older != BT_NO_PAGE ? &pool->entries[e->older].newer : &pool->oldest) = e->newer;
    *(e->newer != BT_NO_PAGE ? &pool->entries[e->newer].older : &pool->newest) = e->older;
    pool->n_idle--;
}

void bt_kv_prefix_idle(bt_kv_pool *pool, bt_page_id page)
{
    bt_kv_entry *e = &pool->entries[page];

    e->older                                                                   = pool->newest;
    e->newer                                                                   = BT_NO_PAGE;
    *(e->older != BT_NO_PAGE ? &pool->entries[e->older].newer : &pool->oldest) = page;
    pool->newest                                                               = page;
    pool->n_idle++;
}

bt_page_id bt_kv_prefix_evict(bt_kv_pool *pool)
{
    bt_page_id   page = pool->oldest;
    bt_page_id  *at;
    bt_kv_entry *e;

    BT_ASSERT(page != BT_NO_PAGE && pool->refs[page] == 0);
    e  = &pool->entries[page];
    at = bucket_of(pool, &e->key);
    while (*at != page)
        at = &pool->entries[*at].chain;
    *at      = e->chain;
    e->known = false;
    leave_idle(pool, page);
    pool->n_known--;
    return page;
}

bool bt_kv_pool_match(bt_kv_pool *pool, const bt_prefix_key *key, const bt_page_map *want,
                      bt_page_id *page_out, bt_page_map *map_out)
{
    bt_page_id page = find(pool, key, want);

    if (page == BT_NO_PAGE) return false;
    if (pool->refs[page] == 0) leave_idle(pool, page);
    pool->refs[page]++;
    *page_out = page;
    *map_out  = pool->entries[page].map;
    return true;
}

bool bt_kv_pool_keep(bt_kv_pool *pool, bt_page_id page, const bt_prefix_key *key,
                     const bt_page_map *map)
{
    bt_kv_entry *e = &pool->entries[page];
    bt_page_id  *bucket;

    BT_ASSERT(page < pool->cfg.n_pages && pool->refs[page] != 0);
    if (e->known || find(pool, key, map) != BT_NO_PAGE) return false;
    bucket   = bucket_of(pool, key);
    e->key   = *key;
    e->map   = *map;
    e->chain = *bucket;
    e->known = true;
    *bucket  = page;
    pool->n_known++;
    return true;
}

uint32_t bt_kv_pool_n_cached(const bt_kv_pool *pool) { return pool->n_idle; }

bt_status bt_kv_prefix_check(const bt_kv_pool *pool)
{
    bt_status  st      = BT_OK;
    uint32_t   n_known = 0, n_idle = 0;
    bt_page_id older = BT_NO_PAGE;

    for (bt_page_id page = pool->oldest; page != BT_NO_PAGE; page = pool->entries[page].newer) {
        const bt_kv_entry *e = &pool->entries[page];

        BT_REQUIRE(n_idle++ < pool->n_idle, BT_ERR_PROTOCOL,
                   "kv pool: more than %u idle pages are listed", pool->n_idle);
        BT_REQUIRE(e->known && e->older == older && pool->refs[page] == 0, BT_ERR_PROTOCOL,
                   "kv pool: idle page %u is known %d, has %u references, and names page %u as "
                   "the one before it",
                   page, e->known, pool->refs[page], e->older);
        BT_REQUIRE(find(pool, &e->key, &e->map) == page, BT_ERR_PROTOCOL,
                   "kv pool: idle page %u is not found under its key", page);
        pool->seen[page] = 1;
        older            = page;
    }
    BT_REQUIRE(n_idle == pool->n_idle && pool->newest == older, BT_ERR_PROTOCOL,
               "kv pool: %u idle pages are listed, %u counted", n_idle, pool->n_idle);
    for (bt_page_id page = 0; page < pool->cfg.n_pages; page++)
        n_known += pool->entries[page].known;
    BT_REQUIRE(n_known == pool->n_known, BT_ERR_PROTOCOL, "kv pool: %u pages are known, %u counted",
               n_known, pool->n_known);
out:
    return st;
}
