/* coordinator/pairs.h - which two ranks reach each other slowly: a link, not a rank.
 *
 * Ranks say once a second what went between them and each peer (PeerLoad).  Two figures of a pair
 * are compared with the median of the other pairs of its kind:
 *     hand-off: bytes by the time that handing them over took, from a prefill to a decode rank;
 *     exchange: the part of the time that two ranks of a group wait for each other, the smaller of
 *               both directions.  The others wait for a slow rank and it does not wait for them; on
 *               a slow link both wait.
 * A pair with a rank that is slow by itself (slow.h) is not named, nor are two ranks of one
 * machine.
 *
 * Plain code over numbers; the loop's thread. */
#ifndef BT_COORDINATOR_PAIRS_H
#define BT_COORDINATOR_PAIRS_H

#include "coordinator/cell.h"

enum { BT_VIEW_PAIRS = 64 };

typedef enum { BT_PAIR_HANDOFF, BT_PAIR_EXCHANGE, BT_N_PAIR_KINDS } bt_pair_kind;

/* Takes what the rank says.  Ignored: peers that the cell does not have, all when out of memory. */
void bt_pairs_hear(bt_cell *cell, uint32_t rank, uint64_t at_ns, uint32_t n,
                   const bt_peer_load *peers);

/* Once a second.  Warns of a pair that has been slow for BT_SLOW_SECONDS, and says when it keeps
 * pace again. */
void bt_pairs_compare(bt_cell *cell);

typedef struct {
    bt_pair_kind kind;
    uint32_t     from, to;
    double       slowness; /* how many times as slow as the median of the others */
    double value, typical; /* bytes a second, or the part of the time; the pair's, the median */
} bt_pair_view;

/* The pairs that are named now, at most n_max; returns how many. */
uint32_t    bt_pairs_view(const bt_cell *cell, bt_pair_view *out, uint32_t n_max);
const char *bt_pair_kind_name(bt_pair_kind kind); /* "handoff", "exchange" */

#endif
