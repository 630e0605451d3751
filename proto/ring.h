/* proto/ring.h - a queue of values of one size that grows as it fills; a zeroed one with item_bytes
 * set is empty.  Nothing is locked. */
#ifndef BT_PROTO_RING_H
#define BT_PROTO_RING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/alloc.h"

typedef struct {
    size_t   item_bytes;
    char    *items; /* owned; whoever frees it has taken out what the items own */
    uint32_t capacity, first, n;
} bt_ring;

static inline char *bt_ring_at(const bt_ring *r, uint32_t i)
{
    return r->items + (r->first + i) % r->capacity * r->item_bytes;
}

/* Copies *item to the end; false: no memory. */
static inline bool bt_ring_push(bt_ring *r, const void *item)
{
    if (r->n == r->capacity) {
        bt_ring grown = {.item_bytes = r->item_bytes, .n = r->n};

        grown.capacity = r->capacity == 0 ? 16 : 2 * r->capacity;
        grown.items    = bt_calloc(grown.capacity, grown.item_bytes);
        if (grown.items == NULL) return false;
        for (uint32_t i = 0; i < r->n; i++)
            memcpy(bt_ring_at(&grown, i), bt_ring_at(r, i), r->item_bytes);
        bt_free(r->items);
        *r = grown;
    }
    memcpy(bt_ring_at(r, r->n++), item, r->item_bytes);
    return true;
}

/* Moves the oldest to *item_out; false: there is none. */
static inline bool bt_ring_pop(bt_ring *r, void *item_out)
{
    if (r->n == 0) return false;
    memcpy(item_out, bt_ring_at(r, 0), r->item_bytes);
    r->first = (r->first + 1) % r->capacity;
    r->n--;
    return true;
}

#endif
