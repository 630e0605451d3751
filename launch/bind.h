/* launch/bind.h - the cores and the device of one rank, from a rank map to its process.
 *
 * Every rank of a job is started with the same words, so the bindings of all travel in one
 * argument: one entry a rank, "CORES/DEVICES" with either part empty for any, entries separated by
 * ';'. */
#ifndef BT_LAUNCH_BIND_H
#define BT_LAUNCH_BIND_H

#include "core/rank_map.h"

/* Owned by the caller (bt_free); NULL in *text_out when no rank is bound to anything. */
bt_status bt_bind_text(const bt_rank_map *map, char **text_out);
/* Binds this process, and what it starts: its cores by affinity, its devices by
 * CUDA_VISIBLE_DEVICES.  INVALID_ARG names the rank and what is wrong with its entry. */
bt_status bt_bind_apply(const char *text, uint32_t rank);

#endif
