/* coordinator/table.h - a hash table from 64-bit keys to borrowed pointers.
 *
 * Open addressing, linear probing, deletion by shifting back: no tombstones, so a table that lives
 * for months stays as fast as a new one. */
#ifndef BT_COORDINATOR_TABLE_H
#define BT_COORDINATOR_TABLE_H

#include <stdint.h>

#include "core/status.h"

typedef struct {
    uint64_t key; /* 0: free */
    void    *value;
} bt_table_slot;

typedef struct {
    bt_table_slot *slots; /* owned */
    uint64_t       n_slots, n_used;
} bt_table;

void bt_table_fini(bt_table *table); /* a table of zeroes is an empty one */
/* key: not 0 and not in the table yet.  NO_MEMORY; not where one has gone since the last put. */
bt_status bt_table_put(bt_table *table, uint64_t key, void *value);
void     *bt_table_get(const bt_table *table, uint64_t key); /* or NULL */
void      bt_table_remove(bt_table *table, uint64_t key);    /* an absent key is allowed */

#endif
