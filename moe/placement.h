/* moe/placement.h - which rank of a group holds which expert, and the blocks in which outputs add.
 *
 * The E experts form n_blocks consecutive sum blocks, a constant of the model: n_groups where that
 * is above 1, else the largest divisor of E up to 8.  The order of every addition follows the
 * blocks, never the placement, so that no placement changes a bit (design law B). */
#ifndef BT_MOE_PLACEMENT_H
#define BT_MOE_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_MAX_SUM_BLOCKS = 64, BT_MAX_TOP_K = 64, BT_MAX_EXPERTS = 1024 };

typedef struct {
    uint32_t  n_experts, n_blocks, n_ranks;
    uint16_t *owner; /* owned: [n_experts] index into the group's rank list */
} bt_placement;

/* How many sum blocks, as above; n_experts >= 1. */
uint32_t bt_sum_blocks(uint32_t n_experts, uint32_t n_groups);

/* The default table: consecutive experts, as even as E / n_ranks allows; a rank may hold none.
 * INVALID_ARG for no or more than BT_MAX_EXPERTS experts, and for groups that do not divide them.
 * *p is written on success only. */
bt_status bt_placement_init(bt_placement *p, uint32_t n_experts, uint32_t n_groups,
                            uint32_t n_ranks);
/* The table of a group of n_seats places, of which taken[i] (borrowed, [n_seats], one at least)
 * says whether somebody sits there; the group's rank list is the taken seats in order.  Experts
 * whose default place is taken stay; those of empty seats go, in ascending runs of even length, to
 * the others.  A function of its arguments alone: every rank draws up the same table, whatever the
 * order of losses, and a seat that is taken again has its old experts back.  Errors as above. */
bt_status bt_placement_of_seats(bt_placement *p, uint32_t n_experts, uint32_t n_groups,
                                uint32_t n_seats, const bool *taken);
void      bt_placement_fini(bt_placement *p);

static inline uint32_t bt_block_size(const bt_placement *p) { return p->n_experts / p->n_blocks; }
/* The rank that holds the whole block, or -1 when it is split: then its outputs travel singly. */
int bt_placement_block_owner(const bt_placement *p, uint32_t block);

#ifdef __cplusplus
}
#endif
#endif
