#include "coordinator/table.h"

#include "core/alloc.h"

enum { FIRST_SLOTS = 64 };

/* Keys may be consecutive numbers: multiply (golden ratio) and use the upper bits. */
static uint64_t home(const bt_table *t, uint64_t key)
{
    return (key * 0x9e3779b97f4a7c15u >> 20) & (t->n_slots - 1);
}

void bt_table_fini(bt_table *table)
{
    bt_free(table->slots);
    *table = (bt_table){0};
}

static bt_table_slot *find(const bt_table *t, uint64_t key)
{
    if (t->n_slots == 0) return NULL;
    for (uint64_t i = home(t, key); t->slots[i].key != 0; i = (i + 1) & (t->n_slots - 1))
        if (t->slots[i].key == key) return &t->slots[i];
    return NULL;
}

static void insert(bt_table *t, uint64_t key, void *value)
{
    uint64_t i = home(t, key);

    while (t->slots[i].key != 0)
        i = (i + 1) & (t->n_slots - 1);
    t->slots[i] = (bt_table_slot){key, value};
    t->n_used++;
}

static bt_status grow(bt_table *t)
{
    bt_status st     = BT_OK;
    bt_table  bigger = {.n_slots = t->n_slots == 0 ? FIRST_SLOTS : t->n_slots * 2};

    bigger.slots = bt_calloc(bigger.n_slots, sizeof(*bigger.slots));
    BT_REQUIRE(bigger.slots != NULL, BT_ERR_NO_MEMORY, "request table of %llu entries",
               (unsigned long long)bigger.n_slots);
    for (uint64_t i = 0; i < t->n_slots; i++)
        if (t->slots[i].key != 0) insert(&bigger, t->slots[i].key, t->slots[i].value);
    bt_free(t->slots);
    *t = bigger;
out:
    return st;
}

bt_status bt_table_put(bt_table *table, uint64_t key, void *value)
{
    bt_status st = BT_OK;

    BT_ASSERT(key != 0 && find(table, key) == NULL);
    if (table->n_used * 3 >= table->n_slots * 2) BT_TRY(grow(table));
    insert(table, key, value);
out:
    return st;
}

void *bt_table_get(const bt_table *table, uint64_t key)
{
    bt_table_slot *slot = find(table, key);

    return slot != NULL ? slot->value : NULL;
}

void bt_table_remove(bt_table *table, uint64_t key)
{
    bt_table_slot *slot = find(table, key);
    uint64_t       mask = table->n_slots - 1, hole, i;

    if (slot == NULL) return;
    hole = (uint64_t)(slot - table->slots);
    for (i = (hole + 1) & mask; table->slots[i].key != 0; i = (i + 1) & mask) {
        uint64_t want = home(table, table->slots[i].key);

        if (((i - want) & mask) < ((i - hole) & mask)) continue; /* its home lies after the hole */
        table->slots[hole] = table->slots[i];
        hole               = i;
    }
    table->slots[hole] = (bt_table_slot){0};
    table->n_used--;
}
