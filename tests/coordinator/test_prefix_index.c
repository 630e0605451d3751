/* What the index tells of a rank's cache. */
#include "coordinator/prefix_index.h"

#include <string.h>

#include "core/alloc.h"
#include "proto/prefix_key.h"
#include "tests/support/test.h"

enum { PAGES = 64, SLOTS = 2 * PAGES, N = 20 };

static uint64_t *g_slots;

/* The second of three ranks, of which another has more pages. */
static void index_init(bt_prefix_index *index)
{
    g_slots = bt_prefix_slots_create(3, 2 * PAGES);
    EXPECT_EQ(bt_prefix_index_init(index, PAGES, g_slots, 1, 3), BT_OK);
}

/* The others have got nothing. */
static void index_fini(bt_prefix_index *index)
{
    for (uint32_t i = 0; i < 3 * 2 * SLOTS; i++)
        EXPECT(g_slots[i] == 0 || (i % 3 == 1 && i < 3 * SLOTS));
    bt_prefix_index_fini(index);
    bt_free(g_slots);
}

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
    index_init(&index);
    EXPECT_EQ(bt_prefix_index_match(&index, 8, keys), 0);
    bt_prefix_index_add(&index, 8, keys, NULL);
    EXPECT_EQ(bt_prefix_index_match(&index, 8, keys), 8);
    EXPECT_EQ(bt_prefix_index_match(&index, 6, keys), 6);
    EXPECT_EQ(bt_prefix_index_match(&index, 5, keys), 4); /* its own 4 and 0 are overwritten */
    index_fini(&index);
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
    index_init(&index);
    bt_prefix_index_add(&index, N, one, NULL);
    bt_prefix_index_add(&index, N, one, NULL);
    EXPECT_EQ(index.n_new, N);
    bt_prefix_index_add(&index, 7, other + 2, NULL); /* 2 to 8 */
    EXPECT_EQ(index.n_new, N + 7);
    EXPECT_EQ(bt_prefix_index_match(&index, N, one), N);
    EXPECT_EQ(bt_prefix_index_match(&index, N, other), 9);
    bt_prefix_index_add(&index, 8, other + 2, NULL);
    EXPECT_EQ(bt_prefix_index_match(&index, N, one), 2);
    index_fini(&index);
}

static void prefix_index_matches_anew_when_it_has_changed(void)
{
    static const uint64_t SLOT[N] = {0, 1, 2, 3};
    bt_prefix_match       last    = {0};
    bt_prefix_index       index;
    bt_page_key           one[N], other[N];

    make_keys(one, SLOT, 1);
    make_keys(other, SLOT, 2);
    index_init(&index);
    EXPECT_EQ(bt_prefix_index_rematch(&index, 4, one, &last), 0);
    bt_prefix_index_add(&index, 4, one, NULL);
    EXPECT_EQ(bt_prefix_index_rematch(&index, 4, one, &last), 4);
    EXPECT_EQ(bt_prefix_index_rematch(&index, 4, one, &last), 4);
    bt_prefix_index_add(&index, 2, other + 2, NULL);
    EXPECT_EQ(bt_prefix_index_rematch(&index, 4, one, &last), 2);
    index_fini(&index);
}

/* The keys of one prompt of N pages, for a request with this salt. */
static void salted_keys(const char *salt, bt_page_key keys_out[N])
{
    static const uint32_t PROMPT[4 * N];
    bt_page_key          *keys = NULL;
    uint32_t              n    = 0;

    EXPECT_EQ(bt_page_keys(bt_cache_salt_seed(7, salt), 4, 4 * N, PROMPT, &keys, &n), BT_OK);
    EXPECT_EQ(n, N);
    memcpy(keys_out, keys, N * sizeof(*keys));
    bt_free(keys);
}

static void prefix_keys_are_those_of_the_salt(void)
{
    const char *const SALTS[] = {NULL, "a", "b", "ab", "a"};
    enum { N_SALTS = sizeof(SALTS) / sizeof(SALTS[0]) };
    bt_page_key keys[N_SALTS][N];

    EXPECT_EQ(bt_cache_salt_seed(7, NULL), 7);
    EXPECT(bt_cache_salt_seed(7, "a") != bt_cache_salt_seed(8, "a"));
    for (uint32_t i = 0; i < N_SALTS; i++)
        salted_keys(SALTS[i], keys[i]);
    EXPECT_EQ(memcmp(keys[1], keys[4], sizeof(keys[1])), 0);
    for (uint32_t i = 0; i < N_SALTS - 1; i++)
        for (uint32_t k = 0; k < i; k++)
            for (uint32_t page = 0; page < N; page++)
                EXPECT(keys[i][page].lo != keys[k][page].lo &&
                       keys[i][page].hi != keys[k][page].hi);
}

static void cache_salt_is_visible_and_short(void)
{
    char long_one[BT_CACHE_SALT_MAX + 2], why[BT_CACHE_SALT_TEXT] = "";

    memset(long_one, '~', sizeof(long_one));
    EXPECT(bt_cache_salt_check(1, "!", why) &&
           bt_cache_salt_check(BT_CACHE_SALT_MAX, long_one, why));
    EXPECT_EQ(why[0], '\0');
    EXPECT(!bt_cache_salt_check(BT_CACHE_SALT_MAX + 1, long_one, why));
    EXPECT_HAS(why, "has 257 bytes, expected 1 to 256");
    EXPECT(!bt_cache_salt_check(0, "", why));
    EXPECT_HAS(why, "has 0 bytes");
    EXPECT(!bt_cache_salt_check(3, "a b", why));
    EXPECT_HAS(why, "has byte 0x20 at 1, expected visible ASCII");
    EXPECT(!bt_cache_salt_check(3, "ab\0", why) && !bt_cache_salt_check(1, "\x7f", why));
    EXPECT(!bt_cache_salt_check(2, "\xc3\xa4", why));
    EXPECT_HAS(why, "0xc3 at 0");
}

static const bt_test tests[] = {
    BT_TEST(prefix_index_knows_a_prompt_whose_keys_share_slots),
    BT_TEST(prefix_index_forgets_what_was_overwritten_in_a_row),
    BT_TEST(prefix_index_matches_anew_when_it_has_changed),
    BT_TEST(prefix_keys_are_those_of_the_salt),
    BT_TEST(cache_salt_is_visible_and_short),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
