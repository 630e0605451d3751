#include "coordinator/prefix_index.h"

#include <stdbool.h>
#include <sys/random.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "proto/prefix_key.h"

/* Keys in a row that newer ones may have overwritten: of the last n_pages that were added, the
 * oldest are overwritten with probability 0.4. */
enum { GAP_MAX = 8 };

uint64_t bt_prefix_seed(void)
{
    uint64_t seed;

    if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) seed = bt_now_ns();
    return seed != 0 ? seed : 1;
}

bt_status bt_page_keys(uint64_t seed, uint32_t page_tokens, uint32_t n_prompt,
                       const uint32_t *prompt, bt_page_key **keys_out, uint32_t *n_out)
{
    bt_status    st   = BT_OK;
    uint32_t     n    = n_prompt / page_tokens;
    bt_page_key *keys = n != 0 ? bt_calloc(n, sizeof(*keys)) : NULL;
    uint64_t     key[2];

    BT_REQUIRE(keys != NULL || n == 0, BT_ERR_NO_MEMORY, "keys of %u pages", n);
    bt_prefix_key_begin(seed, key);
    for (uint32_t i = 0; i < n; i++) {
        bt_prefix_key_next(seed, page_tokens, prompt + (size_t)i * page_tokens, key);
        keys[i] = (bt_page_key){key[0], key[1]};
    }
    *keys_out = keys;
    *n_out    = n;
out:
    return st;
}

static uint32_t slots_for(uint32_t n_pages)
{
    uint32_t n = 64;

    while (n / 2 < n_pages && n < 1u << 30)
        n *= 2;
    return n;
}

uint64_t *bt_prefix_slots_create(uint32_t n_ranks, uint32_t n_pages)
{
    return bt_calloc((size_t)slots_for(n_pages) * n_ranks, sizeof(uint64_t));
}

bt_status bt_prefix_index_init(bt_prefix_index *index, uint32_t n_pages, uint64_t *slots,
                               uint32_t rank, uint32_t n_ranks)
{
    bt_status st = BT_OK;

    *index = (bt_prefix_index){
        .slots = slots + rank, .n_slots = slots_for(n_pages), .n_ranks = n_ranks, .version = 1};
    index->pages = bt_calloc(index->n_slots, sizeof(*index->pages));
    BT_REQUIRE(index->pages != NULL, BT_ERR_NO_MEMORY, "index of %u pages", n_pages);
out:
    return st;
}

void bt_prefix_index_fini(bt_prefix_index *index)
{
    bt_free(index->pages);
    *index = (bt_prefix_index){0};
}

static uint32_t slot_of(const bt_prefix_index *index, const bt_page_key *key)
{
    return (uint32_t)key->lo & (index->n_slots - 1);
}

static uint64_t *in_slot(const bt_prefix_index *index, uint32_t slot)
{
    return &index->slots[(size_t)slot * index->n_ranks];
}

void bt_prefix_index_add(bt_prefix_index *index, uint32_t n, const bt_page_key *keys,
                         const uint32_t *pages)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot   = slot_of(index, &keys[i]);
        bool     is_new = *in_slot(index, slot) != keys[i].hi;

        index->n_new += is_new;
        *in_slot(index, slot) = keys[i].hi;
        if (pages != NULL)
            index->pages[slot] = pages[i];
        else if (is_new)
            index->pages[slot] = BT_NO_PAGE;
    }
    index->version++;
}

uint32_t bt_prefix_index_page(const bt_prefix_index *index, const bt_page_key *key)
{
    uint32_t slot = slot_of(index, key);

    return *in_slot(index, slot) == key->hi ? index->pages[slot] : BT_NO_PAGE;
}

uint32_t bt_prefix_index_match(const bt_prefix_index *index, uint32_t n, const bt_page_key *keys)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < n && i - found < GAP_MAX; i++)
        if (*in_slot(index, slot_of(index, &keys[i])) == keys[i].hi) found = i + 1;
    return found;
}

uint32_t bt_prefix_index_rematch(const bt_prefix_index *index, uint32_t n, const bt_page_key *keys,
                                 bt_prefix_match *last)
{
    if (last->version != index->version)
        *last = (bt_prefix_match){.version = index->version,
                                  .n_pages = bt_prefix_index_match(index, n, keys)};
    return last->n_pages;
}
