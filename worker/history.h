/* worker/history.h - which tokens a choice has seen, for the penalties.
 *
 * A table of the distinct ids of the prompt and of the generated tokens, and how often each was
 * generated.  It is a function of the tokens alone: a replayed request rebuilds it by adding them
 * again.
 *
 * Memory: doubles as distinct ids come; an id that is known costs nothing. */
#ifndef BT_WORKER_HISTORY_H
#define BT_WORKER_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct {
    uint32_t id, count; /* count: times generated */
    bool     used;
} bt_history_entry;

typedef struct {
    uint32_t          n, capacity; /* a power of two, or 0 */
    bt_history_entry *at;          /* owned: open addressing; entries with `used` count */
} bt_history;

/* One more token: of the prompt, or generated.  NO_MEMORY leaves the table as it was. */
bt_status bt_history_add(bt_history *h, uint32_t id, bool prompt);
bt_status bt_history_copy(const bt_history *from, bt_history *to_out);
void      bt_history_fini(bt_history *h);

#endif
