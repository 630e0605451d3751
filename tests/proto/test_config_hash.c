/* The hash of a model's config.json. */
#include "proto/config_hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/test.h"

static char g_dir[] = "/tmp/baton-config-XXXXXX", g_path[64];

static void write_config(const char *text)
{
    FILE *f = fopen(g_path, "w");

    EXPECT(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void config_hash_is_that_of_the_bytes(void)
{
    uint64_t first;

    write_config("{}");
    first = bt_config_hash(g_dir);
    EXPECT(first != 0);
    EXPECT_EQ(bt_config_hash(g_dir), first);
    write_config("{ }");
    EXPECT(bt_config_hash(g_dir) != 0 && bt_config_hash(g_dir) != first);
    unlink(g_path);
}

static void config_hash_of_what_cannot_be_read_is_none(void)
{
    EXPECT_EQ(bt_config_hash(g_dir), 0);
    EXPECT_EQ(symlink("/proc/self/mem", g_path), 0); /* opens, and fails to be read at 0 */
    EXPECT_EQ(bt_config_hash(g_dir), 0);
    unlink(g_path);
}

static const bt_test tests[] = {
    BT_TEST(config_hash_is_that_of_the_bytes),
    BT_TEST(config_hash_of_what_cannot_be_read_is_none),
};

int main(int argc, char **argv)
{
    int code = EXIT_FAILURE;

    if (mkdtemp(g_dir) == NULL) return code;
    snprintf(g_path, sizeof(g_path), "%s/config.json", g_dir);
    code = BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
    rmdir(g_dir);
    return code;
}
