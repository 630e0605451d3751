/* Who holds a group up. */
#include "coordinator/slow.h"
#include "tests/support/test.h"

#include <string.h>

/* Of rank i. */
static double slowness(const double *own, uint32_t n, uint32_t i)
{
    double sorted[8];

    EXPECT(n <= 8);
    memcpy(sorted, own, n * sizeof(*own));
    bt_slowness_sort(sorted, n);
    return bt_slowness(sorted, n, own[i]);
}

static void slow_rank_is_told_from_the_ones_that_wait(void)
{
    const double own[] = {0.10, 0.95, 0.09, 0.11};

    EXPECT(slowness(own, 4, 1) > 9 && slowness(own, 4, 1) < 10);
    for (uint32_t i = 0; i < 4; i++)
        EXPECT(bt_slowness_is_much(slowness(own, 4, i)) == (i == 1));
}

static void slow_equal_ranks_are_not(void)
{
    const double busy[] = {0.9, 0.8, 0.95}, idle[] = {0.001, 0.29, 0.001}, alone[] = {1.0};

    for (uint32_t i = 0; i < 3; i++) {
        EXPECT(!bt_slowness_is_much(slowness(busy, 3, i)));
        EXPECT(slowness(idle, 3, i) == 0); /* too little to do for anybody to wait long */
    }
    EXPECT(slowness(alone, 1, 0) == 0);
}

static void slow_half_of_a_group_is_not_one_rank(void)
{
    const double own[] = {0.9, 0.9, 0.1, 0.1, 0.1};

    EXPECT(bt_slowness_is_much(slowness(own, 5, 0))); /* both are named */
    EXPECT(bt_slowness_is_much(slowness(own, 5, 1)));
    EXPECT(!bt_slowness_is_much(slowness(own, 5, 2)));
}

static void slow_of_two_others_the_one_that_computes_less_counts(void)
{
    const double own[] = {0.9, 0.1, 0.8}, close[] = {0.4, 0.4, 0.8};

    EXPECT(slowness(own, 3, 0) > 8.9 && slowness(own, 3, 0) < 9.1);
    EXPECT(slowness(own, 3, 2) > 7.9 && slowness(own, 3, 2) < 8.1);
    EXPECT(slowness(close, 3, 2) > 1.9 && slowness(close, 3, 2) < 2.1);
}

static void slow_two_ranks_compare_with_each_other(void)
{
    const double own[] = {0.0, 0.9};

    EXPECT(bt_slowness_is_much(slowness(own, 2, 1))); /* a divisor of 0 is none */
    EXPECT(slowness(own, 2, 0) == 0);
}

/* Steady ranks, until their machine is stopped while one computes and the other waits for it. */
static void slow_is_not_who_stood_still_once(void)
{
    double   own[] = {0.25, 0.2};
    uint32_t n     = 0;

    bt_smooth_report(&own[0], 1, 3600);
    bt_smooth_report(&own[1], 0, 3600);
    for (int i = 0; i < 10; i++) {
        n += bt_slowness_is_much(slowness(own, 2, 0));
        bt_smooth_report(&own[0], 0.25, 1);
        bt_smooth_report(&own[1], 0.2, 1);
    }
    EXPECT(n < BT_SLOW_SECONDS);
    EXPECT(own[0] > 0.25 && own[0] < 0.27);
}

static const bt_test TESTS[] = {
    BT_TEST(slow_rank_is_told_from_the_ones_that_wait),
    BT_TEST(slow_equal_ranks_are_not),
    BT_TEST(slow_half_of_a_group_is_not_one_rank),
    BT_TEST(slow_of_two_others_the_one_that_computes_less_counts),
    BT_TEST(slow_two_ranks_compare_with_each_other),
    BT_TEST(slow_is_not_who_stood_still_once),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }
