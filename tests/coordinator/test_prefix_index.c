/* What the index tells of a rank's cache. */
#include "coordinator/prefix_index.h"

#include "tests/support/test.h"

enum { PAGES = 64, SLOTS = 2 * PAGES, N = 20 };

/* Keys of one prompt, each in the slot of that number. */
static void make_keys(bt_page_key keys_out[N], const uint64_t slots[N], uint64_t prompt)
{
    for (uint64_t i = 0; i < N; i++)
        keys_out[i] = (bt_page_key){.lo = slots[i] + SLOTS * i, .hi = prompt * N + i + 1};
}

static void prefix_index_knows_a_prompt_whose_keys_share_slots(void)
{
    static const uint64_t SHARED[N] = {7, 9, 9, 9, 7, 5, 4, 7};
    bt_prefix_index       index;
    bt_page_key           keys[N];

    make_keys(keys, SHARED, 1);
    EXPECT_EQ(bt_prefix_index_init(&index, PAGES), BT_OK);
    EXPECT_EQ(bt_prefix_index_match(&index, 8, keys), 0);
    bt_prefix_index_add(&index, 8, keys, NULL);
    EXPECT_EQ(bt_prefix_index_match(&index, 8, keys), 8);
    EXPECT_EQ(bt_prefix_index_match(&index, 6, keys), 6);
    EXPECT_EQ(bt_prefix_index_match(&index, 5, keys), 4); /* its own 4 and 0 are overwritten */
    bt_prefix_index_fini(&index);
}

static void prefix_index_forgets_what_was_overwritten_in_a_row(void)
{
    uint64_t        slots[N];
    bt_prefix_index index;
    bt_page_key     one[N], other[N];

    for (uint64_t i = 0; i < N; i++)
        slots[i] = i;
    make_keys(one, slots, 1);
    make_keys(other, slots, 2);
    EXPECT_EQ(bt_prefix_index_init(&index, PAGES), BT_OK);
    bt_prefix_index_add(&index, N, one, NULL);
    bt_prefix_index_add(&index, N, one, NULL);
    EXPECT_EQ(index.n_new, N);
    bt_prefix_index_add(&index, 7, other + 2, NULL); /* 2 to 8 */
    EXPECT_EQ(index.n_new, N + 7);
    EXPECT_EQ(bt_prefix_index_match(&index, N, one), N);
    EXPECT_EQ(bt_prefix_index_match(&index, N, other), 9);
    bt_prefix_index_add(&index, 8, other + 2, NULL);
    EXPECT_EQ(bt_prefix_index_match(&index, N, one), 2);
    bt_prefix_index_fini(&index);
}

static void prefix_index_matches_anew_when_it_has_changed(void)
{
    static const uint64_t SLOT[N] = {0, 1, 2, 3};
    bt_prefix_match       last    = {0};
    bt_prefix_index       index;
    bt_page_key           one[N], other[N];

    make_keys(one, SLOT, 1);
    make_keys(other, SLOT, 2);
    EXPECT_EQ(bt_prefix_index_init(&index, PAGES), BT_OK);
    EXPECT_EQ(bt_prefix_index_rematch(&index, 4, one, &last), 0);
    bt_prefix_index_add(&index, 4, one, NULL);
    EXPECT_EQ(bt_prefix_index_rematch(&index, 4, one, &last), 4);
    EXPECT_EQ(bt_prefix_index_rematch(&index, 4, one, &last), 4);
    bt_prefix_index_add(&index, 2, other + 2, NULL);
    EXPECT_EQ(bt_prefix_index_rematch(&index, 4, one, &last), 2);
    bt_prefix_index_fini(&index);
}

static const bt_test tests[] = {
    BT_TEST(prefix_index_knows_a_prompt_whose_keys_share_slots),
    BT_TEST(prefix_index_forgets_what_was_overwritten_in_a_row),
    BT_TEST(prefix_index_matches_anew_when_it_has_changed),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
