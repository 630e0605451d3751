/* core/rank_map.h - a file that says where each rank of a cell runs.
 *
 *     # role     host   and, if wanted
 *     prefill    n1     ranks=2 cores=0-15 device=0,1
 *     prefill    n2     ranks=2 cores=0-15 device=0,1
 *     decode     n3     ranks=8
 *     spare      n4
 *
 * One line for some ranks of one role on one host; roles are prefill and decode, or both, and
 * spare. Ranks are numbered in the order of the lines, prefill (or both) first, then decode, then
 * spare. Cores and devices of a line are dealt out evenly to its ranks, in order; their numbers are
 * the host's.  Devices may also be named by UUID, GPU-... or MIG-... (nvidia-smi -L), which
 * instances of a GPU have to be.  '#' begins a comment. */
#ifndef BT_CORE_RANK_MAP_H
#define BT_CORE_RANK_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

/* Ranks of a role, and of a map; and of a job, all roles together. */
enum { BT_RANKS_MAX = 4096, BT_JOB_RANKS_MAX = 65536 };
enum { BT_RANK_LIST_MAX = 256 };

typedef enum { BT_RANK_PREFILL, BT_RANK_DECODE, BT_RANK_SPARE } bt_rank_kind; /* both: PREFILL */

typedef struct {
    bt_rank_kind kind;
    char        *host;    /* owned */
    char        *cores;   /* owned: "0-3,8", or "": any */
    char        *devices; /* owned: "0", "MIG-<UUID>", or "": any */
} bt_rank_place;

typedef struct {
    uint32_t       n_ranks, n_prefill, n_decode, n_both, n_spares; /* n_both: instead of the two */
    bt_rank_place *ranks;                                          /* owned [n_ranks], by number */
} bt_rank_map;

/* IO or INVALID_ARG names file, line, and what was expected there. */
bt_status bt_rank_map_read(const char *path, bt_rank_map *map_out);
void      bt_rank_map_fini(bt_rank_map *map); /* accepts zeroes */

/* "0-3,8" as numbers below n_max, ascending or not; at most BT_RANK_LIST_MAX.  False: no such list,
 * or a number twice. */
bool bt_rank_list_parse(const char *text, uint32_t n_max, uint32_t *numbers_out, uint32_t *n_out);

#endif
