/* coordinator/prefix_index.h - what a rank's prefix cache probably holds, and the keys it is asked
 * by.
 *
 * A key (proto/prefix_key.h) stands for one full page of a prompt and everything before it.
 * Workers take keys as they are.
 *
 * The index remembers pages that were placed on a rank, in a table of fixed size where new entries
 * overwrite old ones.  It only guides placement: the rank says what it really holds.  The tables of
 * all ranks lie side by side, since a request is looked for in all of them: [slot][rank]. */
#ifndef BT_COORDINATOR_PREFIX_INDEX_H
#define BT_COORDINATOR_PREFIX_INDEX_H

#include <stdint.h>

#include "core/status.h"

#define BT_NO_PAGE UINT32_MAX

typedef struct {
    uint64_t lo, hi; /* as 16 bytes on the wire */
} bt_page_key;

typedef struct {
    uint64_t *slots; /* borrowed: of bt_prefix_slots_create(), each n_ranks behind the last */
    uint32_t *pages; /* owned [n_slots]: where the rank has it, as it said last; or BT_NO_PAGE */
    uint32_t  n_slots, n_ranks;
    uint32_t  version; /* counts what was added, from 1 */
    uint64_t  n_new;   /* pages that were not there when they were added, since it was 0 */
} bt_prefix_index;

/* What a match found, of a version; zeroed: nothing yet. */
typedef struct {
    uint32_t version, n_pages;
    uint32_t held_version, n_held; /* of n_pages: those that requests hold (bt_held_pages) */
} bt_prefix_match;

/* A new one, drawn at random; never 0. */
uint64_t bt_prefix_seed(void);
/* Keys of the prompt's full pages, owned by the caller; *n_out may be 0, then *keys_out is NULL.
 * NO_MEMORY. */
bt_status bt_page_keys(uint64_t seed, uint32_t page_tokens, uint32_t n_prompt,
                       const uint32_t *prompt, bt_page_key **keys_out, uint32_t *n_out);

/* For the indexes of so many ranks, of so many pages each at most; owned by the caller.  NULL:
 * there is no memory. */
uint64_t *bt_prefix_slots_create(uint32_t n_ranks, uint32_t n_pages);
/* slots: borrowed until fini().  NO_MEMORY. */
bt_status bt_prefix_index_init(bt_prefix_index *index, uint32_t n_pages, uint64_t *slots,
                               uint32_t rank, uint32_t n_ranks);
void      bt_prefix_index_fini(bt_prefix_index *index);
/* pages[n]: where the rank says that it has them; NULL: it has not said. */
void bt_prefix_index_add(bt_prefix_index *index, uint32_t n, const bt_page_key *keys,
                         const uint32_t *pages);
/* The page of that key, BT_NO_PAGE where it is not known. */
uint32_t bt_prefix_index_page(const bt_prefix_index *index, const bt_page_key *key);
/* How many of the first pages are probably there: a key stands for all pages before its own too, so
 * that it makes up for a few before it that were overwritten. */
uint32_t bt_prefix_index_match(const bt_prefix_index *index, uint32_t n, const bt_page_key *keys);
/* The same; of keys that were asked for before, with the same n, from *last, while the index is the
 * same. */
uint32_t bt_prefix_index_rematch(const bt_prefix_index *index, uint32_t n, const bt_page_key *keys,
                                 bt_prefix_match *last);

#endif
