#include "worker/history.h"

#include "core/alloc.h"

enum { FIRST_CAPACITY = 64 };

/* The entry of id, or the free one where it belongs. */
static bt_history_entry *find(const bt_history *h, uint32_t id)
{
    uint32_t at = (id * 0x9E3779B1u) & (h->capacity - 1);

    while (h->at[at].used && h->at[at].id != id)
        at = (at + 1) & (h->capacity - 1);
    return &h->at[at];
}

static bt_status grow(bt_history *h)
{
    bt_status  st    = BT_OK;
    bt_history grown = {.n = h->n, .capacity = h->capacity == 0 ? FIRST_CAPACITY : 2 * h->capacity};

    grown.at = bt_calloc(grown.capacity, sizeof(*grown.at));
    BT_REQUIRE(grown.at != NULL, BT_ERR_NO_MEMORY, "history of %u distinct tokens", h->n);
    for (uint32_t i = 0; i < h->capacity; i++)
        if (h->at[i].used) *find(&grown, h->at[i].id) = h->at[i];
    bt_free(h->at);
    *h = grown;
out:
    return st;
}

bt_status bt_history_add(bt_history *h, uint32_t id, bool prompt)
{
    bt_status         st = BT_OK;
    bt_history_entry *e;

    if (2 * (h->n + 1) > h->capacity) BT_TRY(grow(h));
    e = find(h, id);
    if (!e->used) {
        *e = (bt_history_entry){.id = id, .used = true};
        h->n++;
    }
    if (!prompt) e->count++;
out:
    return st;
}

bt_status bt_history_copy(const bt_history *from, bt_history *to_out)
{
    bt_status  st = BT_OK;
    bt_history h  = *from;

    if (h.capacity > 0) {
        h.at = bt_copy(from->at, h.capacity, sizeof(*h.at));
        BT_REQUIRE(h.at != NULL, BT_ERR_NO_MEMORY, "history of %u distinct tokens", h.n);
    }
    *to_out = h;
out:
    return st;
}

void bt_history_fini(bt_history *h)
{
    bt_free(h->at);
    *h = (bt_history){0};
}
