/* parallel/group_parts.h - what the carriers need of a group; inside parallel/ only. */
#ifndef BT_PARALLEL_GROUP_PARTS_H
#define BT_PARALLEL_GROUP_PARTS_H

#include "parallel/carrier.h"

/* An operation of the carrier failed: none is possible any more. */
void bt_group_break(bt_group *group);
/* PEER when the group is broken. */
bt_status bt_group_check(const bt_group *group, const bt_wait *wait);

#endif
