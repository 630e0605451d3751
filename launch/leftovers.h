/* launch/leftovers.h - what the ranks of a job over several hosts leave on one of them, removed
 * whatever happens.
 *
 * Each rank has a guard, a process of its own that outlives whatever kills the rank: it removes the
 * rank's shared memory, and says in the parent's place that the rank has ended, when the parent was
 * killed.  The guard that comes last on a host also ends Open MPI's daemon there, when that stays
 * without any rank: cut off from mpirun it would wait for a quarter of an hour. */
#ifndef BT_LAUNCH_LEFTOVERS_H
#define BT_LAUNCH_LEFTOVERS_H

#include <stdbool.h>

#include "core/status.h"

/* Makes dir, tells Open MPI to use it, starts the guard, which acts when this process has ended.
 * Where dir cannot be made, Open MPI looks for a place itself, and the guard has less to do.  tell:
 * the guard notes the rank's ending (endings.h), by a line, unless bt_leftovers_told() was called.
 */
bt_status bt_leftovers_watch(const char *dir, const char *local_rank, bool tell);
void      bt_leftovers_told(void);

#endif
