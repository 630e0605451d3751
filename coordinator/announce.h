/* coordinator/announce.h - lines for whoever started the coordinator, on a file descriptor.
 *
 *     control HOST:PORT      workers may attach here
 *     progress RANK DONE TOTAL [CELL]
 *     ready HOST:PORT        the public port is open
 *     http HOST:PORT         the operators' port is open
 *     draining               no new requests are taken
 *     serving CELL           a cell takes requests; the first one's follows "ready"
 *     lost REASON            a cell has failed
 *     left CELL              all its ranks have gone
 *     failed REASON
 *
 * A reader that does not read misses progress lines, and never holds the coordinator up for more
 * than a second. */
#ifndef BT_COORDINATOR_ANNOUNCE_H
#define BT_COORDINATOR_ANNOUNCE_H

#include <stdbool.h>

/* fd: -1 says nothing.  must: wait up to a second for room, else drop the line. */
__attribute__((format(printf, 3, 4))) void bt_announce(int fd, bool must, const char *fmt, ...);

#endif
