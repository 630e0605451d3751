/* parallel/group_parts.h - what the carriers need of a group; inside parallel/ only. */
#ifndef BT_PARALLEL_GROUP_PARTS_H
#define BT_PARALLEL_GROUP_PARTS_H

#include "parallel/carrier.h"

/* An operation of the carrier failed: none is possible any more. */
void bt_group_break(bt_group *group);
/* PEER when the group is broken. */
bt_status bt_group_check(const bt_group *group, const bt_wait *wait);
/* Some member has begun the next operation of the group. */
bool bt_group_is_called(const bt_group *group);
/* How long a wait of the world's ranks may spin; and time that one has taken. */
uint64_t bt_world_spin_ns(const bt_world *world);
void     bt_world_count_wait(bt_world *world, uint64_t ns);
/* How a wait is called in errors. */
const char *bt_wait_name(const bt_wait *wait);

#endif
