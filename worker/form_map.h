/* worker/form_map.h - how each token of a prompt was computed, where its role alone does not say.
 *
 * By default form and kernels follow the role (law B), and no map is kept.  --form cost chooses the
 * form of each piece of a prompt by its size, and --share-generated lets a prompt hit pages of
 * generated tokens: then the bits of a request's pages depend on how it came to be.  The map writes
 * that down, one bt_page_map a page; a hit copies the page's, a replay follows it (law A), and the
 * key by which a page is found in the cache covers the maps of all pages before it.
 *
 * Threads: the step thread. */
#ifndef BT_WORKER_FORM_MAP_H
#define BT_WORKER_FORM_MAP_H

#include "attention/kv_pool.h"
#include "attention/mla.h"

typedef struct {
    uint32_t     n_prompt;
    uint32_t     n_fixed; /* the first so many tokens have their form and kernels for good */
    bt_page_map *pages;   /* owned: [pages of the prompt]; NULL: no map is kept */
} bt_form_map;

/* A map of a prompt, its beginning fixed as the bytes say: whole pages, or the whole prompt.
 * INVALID_ARG: they are not such a map.  NO_MEMORY. */
bt_status bt_form_map_init(bt_form_map *map, uint32_t n_prompt, const void *bytes, size_t n_bytes);
/* A copy; of no map, no map.  NO_MEMORY. */
bt_status bt_form_map_copy(const bt_form_map *from, bt_form_map *to_out);
void      bt_form_map_fini(bt_form_map *map);
/* Bytes of the whole map; 0 without one. */
size_t bt_form_map_bytes(const bt_form_map *map);
/* Those of its fixed part. */
size_t bt_form_map_fixed_bytes(const bt_form_map *map);

static inline bool bt_form_map_fixes(const bt_form_map *map, uint32_t t)
{
    return t < map->n_fixed;
}
bt_role      bt_form_map_role(const bt_form_map *map, uint32_t t); /* t is fixed */
bt_attn_form bt_form_map_form(const bt_form_map *map, uint32_t t);
/* How many of the n tokens from t on are to be computed alike: all fixed in the same way, or none
 * of them fixed. */
uint32_t bt_form_map_run(const bt_form_map *map, uint32_t t, uint32_t n);
/* Tokens [n_fixed, end) were computed so. */
void bt_form_map_fix(bt_form_map *map, uint32_t end, bt_role role, bt_attn_form form);
/* The next page came from the cache with this map; n_fixed stands at its beginning. */
void bt_form_map_fix_page(bt_form_map *map, const bt_page_map *page);

/* A page's key in the pool: that of its tokens, and of the maps before it.  `before` is all zero as
 * long as every token had the form of its role, and then the key is that of the tokens. */
bt_prefix_key bt_form_map_key(const bt_prefix_key *tokens, const bt_prefix_key *before);
/* Extends `before` by the page of that key and map. */
void bt_form_map_chain(bt_prefix_key *before, const bt_prefix_key *key, const bt_page_map *page);

#endif
