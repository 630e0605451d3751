/* coordinator/held_pages.h - which pages of a rank's pool the prompts of its requests hold, as
 * their tickets say.
 *
 * A page that a rank takes for a request counts among that request's own.  Others may find it in
 * the rank's cache and hold it too, beside its owner or once that has gone.  Counted here, each
 * once, are the pages that are held and have no owner.
 *
 * The loop's thread. */
#ifndef BT_COORDINATOR_HELD_PAGES_H
#define BT_COORDINATOR_HELD_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/prefix_index.h"

typedef struct {
    uint32_t n_owners, n_finders; /* a rank takes a page for one; what it says may be wrong */
    uint64_t key;                 /* key.hi of what is in it; 0: not known, or not yet there */
} bt_held_page;

typedef struct {
    bt_held_page *pages; /* owned [n_pages] */
    uint32_t      n_pages;
    uint32_t      n_found; /* that are held only by those who found them */
    uint32_t      version; /* counts changes, from 1 */
} bt_held_pages;

bt_status bt_held_pages_init(bt_held_pages *held, uint32_t n_pages); /* NO_MEMORY */
void      bt_held_pages_fini(bt_held_pages *held);
/* A request with these pages comes, or goes: it found the first n_found of n in the cache.  What is
 * in those that come is not known until they have a name.  Ids are below n_pages. */
void bt_held_pages_count(bt_held_pages *held, uint32_t n_found, uint32_t n, const uint32_t *ids,
                         bool comes);
/* What is in them: the rank's cache finds them by these keys from now on. */
void bt_held_pages_name(bt_held_pages *held, uint32_t n, const uint32_t *ids,
                        const bt_page_key *keys);
/* Whether anybody holds it, with that in it; false for ids of no page. */
bool bt_held_pages_has(const bt_held_pages *held, uint32_t id, const bt_page_key *key);

#endif
