/* The request table against a plain array. */
#include "coordinator/table.h"

#include "core/alloc.h"
#include "tests/support/test.h"

enum { N = 5000 };

static void table_holds_what_was_put_and_not_removed(void)
{
    bt_table table = {0};
    char    *there = bt_calloc(N, 1);
    uint64_t state = 3;
    long     live  = bt_alloc_live();

    for (int i = 0; i < 60000; i++) {
        uint64_t k;

        state = state * 6364136223846793005u + 1442695040888963407u;
        k     = (state >> 33) % N;
        if (there[k])
            bt_table_remove(&table, k + 1);
        else
            EXPECT_EQ(bt_table_put(&table, k + 1, &there[k]), BT_OK);
        there[k] = !there[k];
    }
    for (uint64_t k = 0; k < N; k++)
        EXPECT(bt_table_get(&table, k + 1) == (there[k] ? &there[k] : NULL));
    bt_table_fini(&table);
    EXPECT_EQ(bt_alloc_live(), live);
    bt_free(there);
}

static void table_empty_has_nothing(void)
{
    bt_table table = {0};

    EXPECT(bt_table_get(&table, 7) == NULL);
    bt_table_remove(&table, 7);
    bt_table_fini(&table);
}

static void table_short_memory_keeps_what_is_there(void)
{
    bt_table table = {0};
    int      value;

    bt_alloc_fail_at(0);
    EXPECT_EQ(bt_table_put(&table, 1, &value), BT_ERR_NO_MEMORY);
    for (uint64_t k = 1; k <= 42; k++)
        EXPECT_EQ(bt_table_put(&table, k, &value), BT_OK);
    bt_alloc_fail_at(0);
    EXPECT_EQ(bt_table_put(&table, 43, &value), BT_OK); /* two thirds of 64 are not yet over */
    EXPECT_EQ(bt_table_put(&table, 44, &value), BT_ERR_NO_MEMORY);
    bt_alloc_fail_at(-1);
    for (uint64_t k = 1; k <= 43; k++)
        EXPECT(bt_table_get(&table, k) == &value);
    EXPECT(bt_table_get(&table, 44) == NULL);
    bt_table_fini(&table);
}

static const bt_test tests[] = {
    BT_TEST(table_holds_what_was_put_and_not_removed),
    BT_TEST(table_empty_has_nothing),
    BT_TEST(table_short_memory_keeps_what_is_there),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
