#include "worker/form_map.h"

#include <string.h>
#include <xxhash.h>

#include "core/alloc.h"
#include "proto/control_msg.h"

_Static_assert(BT_PAGE_TOKENS == 64 && sizeof(bt_page_map) == BT_PAGE_MAP_BYTES,
               "a word of the map holds the tokens of one page");

bt_status bt_form_map_init(bt_form_map *map, uint32_t n_prompt, const void *bytes, size_t n_bytes)
{
    bt_status st      = BT_OK;
    uint32_t  n_pages = bt_kv_pages_for(n_prompt);

    *map = (bt_form_map){.n_prompt = n_prompt};
    BT_REQUIRE(n_bytes % sizeof(*map->pages) == 0 && n_bytes / sizeof(*map->pages) <= n_pages,
               BT_ERR_INVALID_ARG, "a form map of %zu bytes for a prompt of %u pages", n_bytes,
               n_pages);
    map->pages = bt_calloc(n_pages, sizeof(*map->pages));
    BT_REQUIRE(map->pages != NULL, BT_ERR_NO_MEMORY, "form map of %u pages", n_pages);
    if (n_bytes > 0) memcpy(map->pages, bytes, n_bytes);
    map->n_fixed = (uint32_t)(n_bytes / sizeof(*map->pages)) * BT_PAGE_TOKENS;
    if (map->n_fixed > n_prompt) map->n_fixed = n_prompt;
out:
    return st;
}

bt_status bt_form_map_copy(const bt_form_map *from, bt_form_map *to_out)
{
    bt_status   st  = BT_OK;
    bt_form_map map = {0};

    if (from->pages != NULL) {
        BT_TRY(bt_form_map_init(&map, from->n_prompt, from->pages, bt_form_map_bytes(from)));
        map.n_fixed = from->n_fixed;
    }
    *to_out = map;
out:
    return st;
}

void bt_form_map_fini(bt_form_map *map)
{
    bt_free(map->pages);
    *map = (bt_form_map){0};
}

size_t bt_form_map_bytes(const bt_form_map *map)
{
    return map->pages == NULL ? 0 : bt_kv_pages_for(map->n_prompt) * sizeof(*map->pages);
}

size_t bt_form_map_fixed_bytes(const bt_form_map *map)
{
    return map->n_fixed == map->n_prompt ? bt_form_map_bytes(map)
                                         : map->n_fixed / BT_PAGE_TOKENS * sizeof(*map->pages);
}

static uint32_t bit(uint64_t word, uint32_t t) { return word >> t % BT_PAGE_TOKENS & 1; }

bt_role bt_form_map_role(const bt_form_map *map, uint32_t t)
{
    return bit(map->pages[t / BT_PAGE_TOKENS].generated, t) ? BT_ROLE_GENERATED : BT_ROLE_PROMPT;
}

bt_attn_form bt_form_map_form(const bt_form_map *map, uint32_t t)
{
    return bit(map->pages[t / BT_PAGE_TOKENS].absorbed, t) ? BT_FORM_ABSORBED : BT_FORM_NORMAL;
}

uint32_t bt_form_map_run(const bt_form_map *map, uint32_t t, uint32_t n)
{
    uint32_t k = 1;

    if (!bt_form_map_fixes(map, t)) return n;
    while (k < n && bt_form_map_fixes(map, t + k) &&
           bt_form_map_role(map, t + k) == bt_form_map_role(map, t) &&
           bt_form_map_form(map, t + k) == bt_form_map_form(map, t))
        k++;
    return k;
}

void bt_form_map_fix(bt_form_map *map, uint32_t end, bt_role role, bt_attn_form form)
{
    for (; map->pages != NULL && map->n_fixed < end; map->n_fixed++) {
        bt_page_map *page = &map->pages[map->n_fixed / BT_PAGE_TOKENS];
        uint64_t     one  = 1ull << map->n_fixed % BT_PAGE_TOKENS;

        page->generated =
            role == BT_ROLE_GENERATED ? page->generated | one : page->generated & ~one;
        page->absorbed = form == BT_FORM_ABSORBED ? page->absorbed | one : page->absorbed & ~one;
    }
}

void bt_form_map_fix_page(bt_form_map *map, const bt_page_map *page)
{
    if (map->pages == NULL) return;
    map->pages[map->n_fixed / BT_PAGE_TOKENS] = *page;
    map->n_fixed += BT_PAGE_TOKENS;
}

static bool is_zero(const bt_prefix_key *key) { return key->lo == 0 && key->hi == 0; }

bt_prefix_key bt_form_map_key(const bt_prefix_key *tokens, const bt_prefix_key *before)
{
    uint64_t      both[4] = {tokens->lo, tokens->hi, before->lo, before->hi};
    XXH128_hash_t h;

    if (is_zero(before)) return *tokens;
    h = XXH3_128bits(both, sizeof(both));
    return (bt_prefix_key){h.low64, h.high64};
}

void bt_form_map_chain(bt_prefix_key *before, const bt_prefix_key *key, const bt_page_map *page)
{
    uint64_t      all[4] = {key->lo, key->hi, page->generated, page->absorbed};
    XXH128_hash_t h;

    if (is_zero(before) && page->generated == 0 && page->absorbed == 0) return;
    h       = XXH3_128bits(all, sizeof(all));
    *before = (bt_prefix_key){h.low64, h.high64 | 1}; /* never zero again */
}
