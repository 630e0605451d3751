/* The hash of a model's config.json. */
#include "proto/config_hash.h"

#include "tests/support/scratch.h"

static void config_hash_is_that_of_the_bytes(void)
{
    uint64_t first;

    scratch_write("config.json", "{}", 2);
    first = bt_config_hash(g_scratch);
    EXPECT(first != 0);
    EXPECT_EQ(bt_config_hash(g_scratch), first);
    scratch_write("config.json", "{ }", 3);
    EXPECT(bt_config_hash(g_scratch) != 0 && bt_config_hash(g_scratch) != first);
    scratch_clear();
}

static void config_hash_of_what_cannot_be_read_is_none(void)
{
    EXPECT_EQ(bt_config_hash(g_scratch), 0);
    EXPECT_EQ(symlink("/proc/self/mem", scratch_path("config.json")),
              0); /* opens, and fails to be read at 0 */
    EXPECT_EQ(bt_config_hash(g_scratch), 0);
    scratch_clear();
}

static const bt_test tests[] = {
    BT_TEST(config_hash_is_that_of_the_bytes),
    BT_TEST(config_hash_of_what_cannot_be_read_is_none),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
