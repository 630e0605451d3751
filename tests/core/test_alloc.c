/* Memory for weights: large blocks side by side in mappings of huge pages. */
#include "core/alloc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/test.h"

enum { SMALL = 100 << 10, LARGE = (3 << 20) + 100, MANY = 300 << 20 };

static bool is_zero(const char *at, size_t bytes)
{
    return at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0;
}

/* Whether the page of `at` belongs to this process at all, and whether it is in memory. */
static bool is_mapped(char *at, bool *in_memory_out)
{
    unsigned char seen = 0;
    bool          is   = mincore(at - (uintptr_t)at % (size_t)sysconf(_SC_PAGESIZE), 1, &seen) == 0;

    if (!is) EXPECT_EQ(errno, ENOMEM);
    *in_memory_out = (seen & 1) != 0;
    return is;
}

static void large_blocks_lie_side_by_side(void)
{
    long  live = bt_alloc_live();
    char *block[3];

    for (int i = 0; i < 3; i++) {
        block[i] = bt_alloc_weights(LARGE);
        NEED(block[i] != NULL);
        EXPECT(is_zero(block[i], LARGE));
        memset(block[i], i + 1, LARGE);
        EXPECT_EQ(block[i] - block[0], i * ((LARGE + 63) / 64 * 64));
    }
    EXPECT_EQ((uintptr_t)block[0] % BT_HUGE_BYTES, 0);
    EXPECT_EQ(bt_alloc_live(), live + 3);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(block[i][0], i + 1);
        EXPECT_EQ(block[i][LARGE - 1], i + 1);
    }
    for (int i = 0; i < 3; i++)
        bt_free_weights(block[i], LARGE);
    EXPECT_EQ(bt_alloc_live(), live);
}

static void what_is_freed_goes_back(void)
{
    char *first = bt_alloc_weights(LARGE), *second = bt_alloc_weights(4 * LARGE);
    char *third = bt_alloc_weights(LARGE), *inside;
    bool  in_memory;

    NEED(first != NULL && second != NULL && third != NULL);
    memset(first, 1, LARGE);
    memset(second, 2, 4 * LARGE);
    memset(third, 3, LARGE);
    inside = second + 2 * LARGE;
    EXPECT(is_mapped(inside, &in_memory) && in_memory);
    bt_free_weights(second, 4 * LARGE);
    EXPECT(is_mapped(inside, &in_memory) && !in_memory);
    for (size_t i = 0; i < LARGE; i++)
        if (first[i] != 1 || third[i] != 3) {
            EXPECT(!"a neighbour has changed");
            break;
        }
    bt_free_weights(first, LARGE);
    EXPECT(is_mapped(third, &in_memory));
    bt_free_weights(third, LARGE);
    EXPECT(!is_mapped(third, &in_memory) && !is_mapped(first, &in_memory));
}

static void a_block_may_be_larger_than_an_area(void)
{
    char *small = bt_alloc_weights(LARGE), *large = bt_alloc_weights(MANY), *after;

    NEED(small != NULL && large != NULL);
    EXPECT_EQ((uintptr_t)large % BT_HUGE_BYTES, 0);
    large[0] = large[MANY - 1] = 1;
    after                      = bt_alloc_weights(LARGE); /* where there is still room */
    EXPECT(after > small && (size_t)(after - small) < LARGE + 64);
    bt_free_weights(large, MANY);
    bt_free_weights(small, LARGE);
    bt_free_weights(after, LARGE);
}

static void small_blocks_are_blocks_like_others(void)
{
    char *block = bt_alloc_weights(SMALL);

    NEED(block != NULL);
    EXPECT_EQ((uintptr_t)block % 64, 0);
    EXPECT(is_zero(block, SMALL));
    bt_free_weights(block, SMALL);
    bt_free_weights(NULL, LARGE);
}

static void memory_may_be_missing(void)
{
    long live = bt_alloc_live();

    bt_alloc_fail_at(0);
    EXPECT(bt_alloc_weights(LARGE) == NULL);
    EXPECT(bt_alloc_weights(SIZE_MAX) == NULL);
    EXPECT(bt_alloc_weights(SIZE_MAX / 4) == NULL); /* no machine has so many addresses */
    EXPECT_EQ(bt_alloc_live(), live);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(large_blocks_lie_side_by_side), BT_TEST(what_is_freed_goes_back),
        BT_TEST(a_block_may_be_larger_than_an_area), BT_TEST(small_blocks_are_blocks_like_others),
        BT_TEST(memory_may_be_missing)};

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
