/* coordinator/stop_strings.h - finds the first stop string in a choice's bytes as they come.
 *
 * Knuth-Morris-Pratt for each string: a state is how much of it the bytes so far end with, so bytes
 * come in any pieces (tokens need not be whole characters) and nothing is looked at twice. */
#ifndef BT_COORDINATOR_STOP_STRINGS_H
#define BT_COORDINATOR_STOP_STRINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { BT_STOP_STRINGS_MAX = 64, BT_STOP_STRING_BYTES_MAX = 1024, BT_STOP_NONE = -1 };

typedef struct bt_stop_set bt_stop_set;

/* strings[n], 1 to 1024 bytes each, n from 1 to 64: copied.  NO_MEMORY. */
bt_status   bt_stop_set_create(size_t n, char *const *strings, bt_stop_set **set_out);
void        bt_stop_set_destroy(bt_stop_set *set);
const char *bt_stop_set_string(const bt_stop_set *set, int i);
uint32_t    bt_stop_set_size(const bt_stop_set *set);

/* state[bt_stop_set_size()], zeroed before the first bytes.  Feeds n more bytes; returns the string
 * that is complete first (of those that end in one byte, the first given), or BT_STOP_NONE.  With
 * may_match false a complete one is passed over.  *held_out: how many of the last bytes may still
 * begin a match. */
int bt_stop_feed(const bt_stop_set *set, uint32_t *state, const char *bytes, size_t n,
                 bool may_match, uint32_t *held_out);

#endif
