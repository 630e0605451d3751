/* core/watchdog.h - speaks up when a call into a library does not come back.
 *
 * What promises not to wait may wait all the same, inside the library, where no deadline of ours
 * is looked at.  One thread is watched, one call at a time:
 *     bt_watchdog_enter("MPI_Testsome", -1);
 *     MPI_Testsome(...);
 *     bt_watchdog_leave();
 * A call that lasts longer than the limit makes the watchdog's own thread call `expired`, once,
 * which is to end the process.  Time in which the whole process stood still (SIGSTOP, a debugger)
 * does not count.  Before start() all of it does nothing.
 *
 * Threads: enter() and leave() belong to the watched thread; start() and set_limit() may be called
 * by it as well.  Memory: none. */
#ifndef BT_CORE_WATCHDOG_H
#define BT_CORE_WATCHDOG_H

#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* where: "step plan" or "experts of layer 3", borrowed during the call; quiet_ns: how long the
 * watched thread has been there.  It runs beside that thread, which, should it come back now,
 * stays in leave() for ever: the process is this function's to end. */
typedef void (*bt_watchdog_fn)(void *ctx, const char *where, uint64_t quiet_ns);

/* Once a process.  NO_MEMORY when there is no thread to be had. */
bt_status bt_watchdog_start(uint64_t limit_ns, bt_watchdog_fn expired, void *ctx);
void      bt_watchdog_set_limit(uint64_t limit_ns); /* from the next look, within a second */

/* what: a string that stays; layer: -1 for none.  Calls do not nest. */
void bt_watchdog_enter(const char *what, int layer);
void bt_watchdog_leave(void);

#ifdef __cplusplus
}
#endif
#endif
