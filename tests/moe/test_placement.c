#include "moe/placement.h"

#include "core/alloc.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

static void placement_blocks_follow_groups_then_divisors(void)
{
    static const struct {
        uint32_t experts, groups, blocks;
    } cases[] = {
        {256, 8, 8},
        {160, 8, 8},
        {16,  4, 4},
        {12,  4, 4},
        {384, 1, 8},
        {64,  1, 8},
        {24,  1, 8},
        {8,   1, 8},
        {10,  1, 5},
        {9,   1, 3},
        {7,   1, 7},
        {11,  1, 1},
        {1,   1, 1},
        {2,   0, 2},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        EXPECT_EQ(bt_sum_blocks(cases[i].experts, cases[i].groups), cases[i].blocks);
}

static void placement_default_is_even_and_consecutive(void)
{
    for (uint32_t ranks = 1; ranks <= 20; ranks++) {
        bt_placement p;
        uint32_t     n[20] = {0};

        EXPECT_EQ(bt_placement_init(&p, 16, 4, ranks), BT_OK);
        for (uint32_t e = 0; e < 16; e++) {
            EXPECT(p.owner[e] < ranks);
            EXPECT(e == 0 || p.owner[e] >= p.owner[e - 1]);
            n[p.owner[e]]++;
        }
        for (uint32_t r = 0; r < ranks; r++)
            EXPECT(n[r] == 16 / ranks || n[r] == (16 + ranks - 1) / ranks);
        bt_placement_fini(&p);
    }
}

/* Of every set of taken seats: who is there keeps what it had, and the others' is spread evenly. */
static void placement_of_seats_moves_only_what_is_lost(void)
{
    enum { SEATS = 5, N = 64 };

    for (uint32_t set = 1; set < 1u << SEATS; set++) {
        bt_placement all, p;
        bool         taken[SEATS];
        uint32_t     n_taken = 0, n[SEATS] = {0}, rank_of[SEATS], n_before[SEATS] = {0};
        uint32_t     run = 0; /* which lost experts went to last: they go in runs */

        for (uint32_t i = 0; i < SEATS; i++) {
            taken[i]   = set >> i & 1;
            rank_of[i] = n_taken;
            n_taken += taken[i];
        }
        EXPECT_EQ(bt_placement_init(&all, N, 8, SEATS), BT_OK);
        EXPECT_EQ(bt_placement_of_seats(&p, N, 8, SEATS, taken), BT_OK);
        EXPECT(p.n_ranks == n_taken && p.n_blocks == 8);
        for (uint32_t e = 0; e < N; e++) {
            EXPECT(p.owner[e] < n_taken);
            if (taken[all.owner[e]]) {
                EXPECT_EQ(p.owner[e], rank_of[all.owner[e]]);
                n_before[p.owner[e]]++;
            } else {
                EXPECT(p.owner[e] >= run);
                run = p.owner[e];
            }
            n[p.owner[e]]++;
        }
        for (uint32_t a = 0; a < n_taken; a++)
            for (uint32_t b = 0; b < n_taken; b++)
                EXPECT(n[a] - n_before[a] <= n[b] - n_before[b] + 1);
        bt_placement_fini(&p);
        bt_placement_fini(&all);
    }
    {
        bool         taken[2] = {false, false};
        bt_placement p;

        EXPECT_EQ(bt_placement_of_seats(&p, 8, 1, 2, taken), BT_ERR_INVALID_ARG);
        taken[1] = true;
        bt_alloc_fail_at(0);
        EXPECT_EQ(bt_placement_of_seats(&p, 8, 1, 2, taken), BT_ERR_NO_MEMORY);
        bt_alloc_fail_at(-1);
    }
}

static void placement_knows_whole_and_split_blocks(void)
{
    static const uint16_t owner[8] = {0, 0, 1, 0, 2, 2, 1, 2};
    bt_placement          p;

    EXPECT_EQ(bt_placement_init(&p, 8, 4, 3), BT_OK);
    memcpy(p.owner, owner, sizeof(owner));
    EXPECT_EQ(p.n_blocks, 4);
    EXPECT_EQ(bt_block_size(&p), 2);
    EXPECT_EQ(bt_placement_block_owner(&p, 0), 0);
    EXPECT_EQ(bt_placement_block_owner(&p, 1), -1);
    EXPECT_EQ(bt_placement_block_owner(&p, 2), 2);
    EXPECT_EQ(bt_placement_block_owner(&p, 3), -1);
    bt_placement_fini(&p);
    EXPECT(p.owner == NULL);
}

static void placement_refuses_what_does_not_fit(void)
{
    bt_placement p = {.n_experts = 77};

    EXPECT_EQ(bt_placement_init(&p, 0, 1, 2), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_placement_init(&p, BT_MAX_EXPERTS + 1, 1, 2), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_placement_init(&p, 8, 1, 0), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_placement_init(&p, 8, 1, UINT16_MAX + 1), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_placement_init(&p, 8, 3, 2), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "8 experts do not form 3 equal sum blocks");
    EXPECT_EQ(bt_placement_init(&p, 256, 128, 2), BT_ERR_INVALID_ARG);
    EXPECT_EQ(p.n_experts, 77); /* untouched */
}

static void placement_unwinds_at_every_allocation(void)
{
    bt_placement p = {0};

    EXPECT_EQ(BT_SWEEP(bt_placement_init(&p, 8, 1, 2), bt_placement_fini(&p)), 1);
    bt_placement_fini(NULL);
}

static const bt_test TESTS[] = {
    BT_TEST(placement_blocks_follow_groups_then_divisors),
    BT_TEST(placement_default_is_even_and_consecutive),
    BT_TEST(placement_of_seats_moves_only_what_is_lost),
    BT_TEST(placement_knows_whole_and_split_blocks),
    BT_TEST(placement_refuses_what_does_not_fit),
    BT_TEST(placement_unwinds_at_every_allocation),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }
