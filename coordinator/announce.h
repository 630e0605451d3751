/* coordinator/announce.h - lines for whoever started the coordinator, on a file descriptor.
 *
 *     control HOST:PORT      workers may attach here
 *     progress RANK DONE TOTAL [CELL]
 *     ready HOST:PORT        the public port is open
 *     http HOST:PORT         the operators' port is open
 *     draining               no new requests are taken
 *     serving CELL           a cell takes requests; the first one's follows "ready"
 *     worn CELL              it lacks ranks, and has no spare left
 *     lost CELL: REASON      a cell has failed
 *     left CELL              all its ranks have gone
 *     failed REASON
 *     alive                  every second, into a pipe that its reader has emptied
 *
 * A reader that does not read misses progress lines, and holds the coordinator up for a second at
 * most. */
#ifndef BT_COORDINATOR_ANNOUNCE_H
#define BT_COORDINATOR_ANNOUNCE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/log.h"

/* fd -1: writes nothing.  must: waits up to a second for room before the line is dropped. */
BT_PRINTF(3, 4) void bt_announce(int fd, bool must, const char *fmt, ...);

/* To be called all the time: writes "alive" when it is due.  *due_ns: 0 before the first call. */
void bt_announce_alive(int fd, uint64_t now_ns, uint64_t *due_ns);

#endif
