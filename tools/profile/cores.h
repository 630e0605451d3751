/* tools/profile/cores.h - compute threads that stay where they are. */
#ifndef BT_TOOLS_PROFILE_CORES_H
#define BT_TOOLS_PROFILE_CORES_H

#include "device/cpu/pool.h"

/* From now on each thread of the pool, the caller's among them, keeps to a core of its own, where
 * the process may use as many: now and then a scheduler leaves two of them on one for a while, and
 * a core beside them idle, and a step takes twice as long. */
void bt_cores_keep(bt_cpu_pool *pool);

#endif
