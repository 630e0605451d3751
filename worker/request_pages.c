/* worker/request_pages.c - a request's pages: from the pool, from the prefix cache, and back. */
#include <string.h>

#include "core/alloc.h"
#include "proto/prefix_key.h"
#include "worker/requests.h"

/* The map of a page of the prompt; all zero for other pages, and where no map is kept. */
static const bt_page_map *map_of(const bt_request *r, uint32_t page)
{
    static const bt_page_map NONE = {0, 0};

    return r->map.pages != NULL && page < bt_kv_pages_for(r->n_prompt) ? &r->map.pages[page]
                                                                       : &NONE;
}

/* The next page is in the cache, or has been offered to it. */
static void pass_page(bt_request *r, const bt_prefix_key *tokens, const bt_prefix_key *key,
                      const bt_page_map *map)
{
    bt_form_map_chain(&r->before, key, map);
    r->last_key = *tokens;
    r->n_kept++;
}

/* The prompt's next page, if the cache has it: computed as the map says, or in any way where the
 * map does not say yet.  The prompt's last token is always computed. */
static bool find_page(bt_request *r, bt_kv_pool *pool, bt_page_id *page_out)
{
    uint32_t      at = r->n_kept, end = (at + 1) * BT_PAGE_TOKENS;
    bt_prefix_key key;
    bt_page_map   map;
    bool          fixed = r->map.n_fixed >= end;

    if (at >= r->n_keys || end >= r->n_prompt) return false;
    if (!fixed && r->map.n_fixed > end - BT_PAGE_TOKENS) return false; /* a step that broke off */
    key = bt_form_map_key(&r->keys[at], &r->before);
    if (!bt_kv_pool_match(pool, &key, fixed ? map_of(r, at) : NULL, page_out, &map)) return false;
    if (!fixed) bt_form_map_fix_page(&r->map, &map);
    pass_page(r, &r->keys[at], &key, &map);
    return true;
}

/* Room in the list for every page that the request may ever hold: it grows while steps run. */
static uint32_t list_size(const bt_request *r, uint32_t n_tokens)
{
    uint64_t most = (uint64_t)r->n_prompt + (r->eval ? r->n_eval : r->sampling.max_tokens);

    return bt_kv_pages_for(most > n_tokens && most <= UINT32_MAX ? (uint32_t)most : n_tokens);
}

bt_status bt_request_take_pages(bt_request *r, bt_kv_pool *pool, uint32_t n_tokens)
{
    bt_status     st = BT_OK;
    uint32_t      n = bt_kv_pages_for(n_tokens), n_hit = 0, n_fixed = r->map.n_fixed;
    bt_prefix_key last_key = r->last_key;

    BT_ASSERT(r->pages == NULL && n_tokens >= r->n_prompt);
    r->pages = bt_calloc(list_size(r, n_tokens), sizeof(*r->pages));
    BT_REQUIRE(r->pages != NULL, BT_ERR_NO_MEMORY, "list of %u pages", n);
    while (find_page(r, pool, &r->pages[n_hit]))
        r->n_pages = ++n_hit;
    st = bt_kv_pool_acquire(pool, n - n_hit, r->pages + n_hit);
    if (st != BT_OK) { /* as it was, for another try */
        bt_request_release_pages(r, pool);
        r->n_kept      = 0;
        r->before      = (bt_prefix_key){0, 0};
        r->last_key    = last_key;
        r->map.n_fixed = n_fixed;
        goto out;
    }
    r->n_pages    = n;
    r->n_held     = n_hit * BT_PAGE_TOKENS;
    r->n_computed = r->step_end = r->n_held;
out:
    return st;
}

bt_status bt_request_take_own_pages(bt_request *r, bt_kv_pool *pool, uint32_t n_tokens)
{
    bt_status st = BT_OK;
    uint32_t  n  = bt_kv_pages_for(n_tokens) - r->n_prompt / BT_PAGE_TOKENS;

    BT_ASSERT(r->pages == NULL && n_tokens > r->n_prompt);
    r->pages = bt_calloc(list_size(r, n_tokens), sizeof(*r->pages));
    BT_REQUIRE(r->pages != NULL, BT_ERR_NO_MEMORY, "list of %u pages", n);
    st = bt_kv_pool_acquire(pool, n, r->pages);
    if (st == BT_OK) r->n_pages = n;
out:
    if (st != BT_OK) bt_request_release_pages(r, pool);
    return st;
}

bt_status bt_request_share_prompt(bt_request *r, const bt_request *first, bt_device *dev,
                                  bt_kv_pool *pool)
{
    bt_status st     = BT_OK;
    uint32_t  n_full = r->n_prompt / BT_PAGE_TOKENS, n_rows = r->n_prompt % BT_PAGE_TOKENS;
    uint32_t  same[BT_PAGE_TOKENS];

    r->n_kept   = first->n_kept;
    r->before   = first->before;
    r->last_key = first->last_key;
    memcpy(r->tail, first->tail, sizeof(r->tail));
    BT_TRY(bt_form_map_copy(&first->map, &r->map));
    memmove(r->pages + n_full, r->pages, r->n_pages * sizeof(*r->pages));
    r->n_pages += n_full;
    for (uint32_t i = 0; i < n_full; i++) {
        bt_kv_pool_retain(pool, first->pages[i]);
        r->pages[i] = first->pages[i];
    }
    for (uint32_t i = 0; i < n_rows; i++)
        same[i] = i;
    for (uint32_t layer = 0; layer < bt_kv_pool_n_layers(pool) && n_rows > 0; layer++)
        BT_TRY(bt_device_gather_rows(dev, n_rows, bt_kv_pool_kv_dim(pool),
                                     bt_kv_pool_rows(pool, first->pages[n_full], layer), same,
                                     bt_kv_pool_rows(pool, r->pages[n_full], layer)));
out:
    return st;
}

bt_status bt_request_grow(bt_request *r, bt_kv_pool *pool, uint32_t n_tokens)
{
    bt_status st = BT_OK;

    if (bt_kv_pages_for(n_tokens) <= r->n_pages) return BT_OK;
    BT_ASSERT(n_tokens <= bt_request_n_tokens(r));
    st = bt_kv_pool_acquire(pool, 1, r->pages + r->n_pages);
    if (st == BT_OK) r->n_pages++;
    return st;
}

bool bt_request_find_more(bt_request *r, bt_kv_pool *pool)
{
    uint32_t   at = r->n_kept;
    bt_page_id page;

    if (r->n_computed != at * BT_PAGE_TOKENS || !find_page(r, pool, &page)) return false;
    bt_kv_pool_release(pool, r->pages[at]);
    r->pages[at] = page;
    r->n_held += BT_PAGE_TOKENS;
    r->n_computed += BT_PAGE_TOKENS;
    r->step_end = r->n_computed;
    return true;
}

/* Offers the page after those that have been kept. */
static void keep_page(bt_request *r, bt_kv_pool *pool, const bt_prefix_key *tokens,
                      const bt_page_map *map)
{
    bt_prefix_key key = bt_form_map_key(tokens, &r->before);

    bt_kv_pool_keep(pool, r->pages[r->n_kept], &key, map);
    pass_page(r, tokens, &key, map);
}

void bt_request_keep_pages(bt_request *r, bt_kv_pool *pool, uint32_t n_tokens)
{
    while (r->n_kept < r->n_keys && (r->n_kept + 1) * BT_PAGE_TOKENS <= n_tokens)
        keep_page(r, pool, &r->keys[r->n_kept], map_of(r, r->n_kept));
}

/* A page that holds generated tokens, and is full now. */
static void keep_generated_page(bt_request *r, bt_kv_pool *pool, uint32_t at, bt_attn_form form)
{
    uint64_t    key[2] = {r->last_key.lo, r->last_key.hi}, mine = ~0ull;
    bt_page_map map = *map_of(r, at);

    if (r->n_kept != at) return; /* a page before it has no key */
    if (at == r->n_prompt / BT_PAGE_TOKENS) mine <<= r->n_prompt % BT_PAGE_TOKENS;
    map.generated |= mine;
    if (form == BT_FORM_ABSORBED) map.absorbed |= mine;
    bt_prefix_key_next(r->prefix_seed, BT_PAGE_TOKENS, r->tail, key);
    keep_page(r, pool, &(bt_prefix_key){key[0], key[1]}, &map);
}

void bt_request_keep_generated(bt_request *r, bt_kv_pool *pool, uint32_t start, uint32_t n,
                               const uint32_t *tokens, bt_attn_form form)
{
    if (r->prefix_seed == 0) return;
    for (uint32_t t = start; t < start + n; t++) {
        r->tail[t % BT_PAGE_TOKENS] = tokens[t - start];
        if ((t + 1) % BT_PAGE_TOKENS == 0) keep_generated_page(r, pool, t / BT_PAGE_TOKENS, form);
    }
}

void bt_request_release_pages(bt_request *r, bt_kv_pool *pool)
{
    while (r->n_pages > 0) /* from the end: the cache forgets first what nothing follows */
        bt_kv_pool_release(pool, r->pages[--r->n_pages]);
    bt_free(r->pages);
    r->pages = NULL;
}
