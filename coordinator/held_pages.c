#include "coordinator/held_pages.h"

#include "core/alloc.h"

bt_status bt_held_pages_init(bt_held_pages *held, uint32_t n_pages)
{
    bt_status st = BT_OK;

    *held       = (bt_held_pages){.n_pages = n_pages, .version = 1};
    held->pages = bt_calloc(n_pages, sizeof(*held->pages));
    BT_REQUIRE(held->pages != NULL || n_pages == 0, BT_ERR_NO_MEMORY, "holders of %u pages",
               n_pages);
out:
    return st;
}

void bt_held_pages_fini(bt_held_pages *held)
{
    bt_free(held->pages);
    *held = (bt_held_pages){0};
}

static bool only_found(const bt_held_page *p) { return p->n_finders > 0 && p->n_owners == 0; }

void bt_held_pages_count(bt_held_pages *held, uint32_t n_found, uint32_t n, const uint32_t *ids,
                         bool comes)
{
    uint32_t sign = comes ? 1 : UINT32_MAX;

    for (uint32_t i = 0; i < n; i++) {
        bt_held_page *p = &held->pages[ids[i]];

        held->n_found -= only_found(p);
        *(i < n_found ? &p->n_finders : &p->n_owners) += sign;
        held->n_found += only_found(p);
        if (comes) p->key = 0;
    }
    held->version++;
}

void bt_held_pages_name(bt_held_pages *held, uint32_t n, const uint32_t *ids,
                        const bt_page_key *keys)
{
    for (uint32_t i = 0; i < n; i++)
        held->pages[ids[i]].key = keys[i].hi;
    held->version++;
}

bool bt_held_pages_has(const bt_held_pages *held, uint32_t id, const bt_page_key *key)
{
    const bt_held_page *p;

    if (id >= held->n_pages) return false;
    p = &held->pages[id];
    return p->key == key->hi && (p->n_owners > 0 || p->n_finders > 0);
}
