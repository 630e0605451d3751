#include "moe/placement.h"

#include <string.h>

#include "core/alloc.h"

enum { MAX_DEFAULT_BLOCKS = 8 };

uint32_t bt_sum_blocks(uint32_t n_experts, uint32_t n_groups)
{
    if (n_groups > 1) return n_groups;
    for (uint32_t n = MAX_DEFAULT_BLOCKS; n > 1; n--)
        if (n_experts % n == 0) return n;
    return 1;
}

/* Rank r holds experts [r E / n, (r + 1) E / n): sizes differ by one at most. */
static void place_evenly(bt_placement *p)
{
    for (uint32_t rank = 0; rank < p->n_ranks; rank++) {
        uint64_t first = (uint64_t)rank * p->n_experts / p->n_ranks;
        uint64_t end   = (uint64_t)(rank + 1) * p->n_experts / p->n_ranks;

        for (uint64_t e = first; e < end; e++)
            p->owner[e] = (uint16_t)rank;
    }
}

bt_status bt_placement_init(bt_placement *p, uint32_t n_experts, uint32_t n_groups,
                            uint32_t n_ranks)
{
    bt_status    st    = BT_OK;
    bt_placement built = {.n_experts = n_experts,
                          .n_blocks  = bt_sum_blocks(n_experts, n_groups),
                          .n_ranks   = n_ranks,
                          .owner     = NULL};

    BT_REQUIRE(n_experts >= 1 && n_experts <= BT_MAX_EXPERTS, BT_ERR_INVALID_ARG,
               "placement: expected 1 to %d experts, found %u", BT_MAX_EXPERTS, n_experts);
    BT_REQUIRE(n_ranks >= 1 && n_ranks <= UINT16_MAX, BT_ERR_INVALID_ARG,
               "placement: expected 1 to %u ranks, found %u", UINT16_MAX, n_ranks);
    BT_REQUIRE(built.n_blocks <= BT_MAX_SUM_BLOCKS && n_experts % built.n_blocks == 0,
               BT_ERR_INVALID_ARG,
               "placement: %u experts do not form %u equal sum blocks (at most %d)", n_experts,
               built.n_blocks, BT_MAX_SUM_BLOCKS);

    built.owner = bt_calloc(n_experts, sizeof(*built.owner));
    BT_REQUIRE(built.owner != NULL, BT_ERR_NO_MEMORY, "placement of %u experts", n_experts);
    place_evenly(&built);
    *p          = built;
    built.owner = NULL; /* handed over */

out:
    bt_free(built.owner);
    return st;
}

/* The taken seats before `seat`: the index in the rank list of who sits there. */
static uint32_t index_of(const bool *taken, uint32_t seat)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < seat; i++)
        n += taken[i];
    return n;
}

bt_status bt_placement_of_seats(bt_placement *p, uint32_t n_experts, uint32_t n_groups,
                                uint32_t n_seats, const bool *taken)
{
    bt_status    st      = BT_OK;
    uint32_t     n_taken = index_of(taken, n_seats), n_lost = 0, at = 0;
    bt_placement built = {0};

    BT_REQUIRE(n_taken >= 1, BT_ERR_INVALID_ARG, "placement: none of %u seats is taken", n_seats);
    BT_TRY(bt_placement_init(&built, n_experts, n_groups, n_seats));
    for (uint32_t e = 0; e < n_experts; e++)
        n_lost += !taken[built.owner[e]];
    for (uint32_t e = 0; e < n_experts; e++) {
        uint32_t seat = built.owner[e];

        built.owner[e] =
            (uint16_t)(taken[seat] ? index_of(taken, seat) : (uint64_t)at++ * n_taken / n_lost);
    }
    built.n_ranks = n_taken;
    *p            = built;
    built.owner   = NULL; /* handed over */
out:
    bt_free(built.owner);
    return st;
}

void bt_placement_fini(bt_placement *p)
{
    if (p == NULL) return;
    bt_free(p->owner);
    memset(p, 0, sizeof(*p));
}

int bt_placement_block_owner(const bt_placement *p, uint32_t block)
{
    uint32_t size  = bt_block_size(p);
    uint32_t first = block * size;

    BT_ASSERT(block < p->n_blocks);
    for (uint32_t e = first + 1; e < first + size; e++)
        if (p->owner[e] != p->owner[first]) return -1;
    return p->owner[first];
}
