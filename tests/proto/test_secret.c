#include "proto/secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/test.h"

static void secret_equal_compares_whole_values(void)
{
    EXPECT(bt_secret_equal("abc", 3, "abc", 3));
    EXPECT(!bt_secret_equal("abc", 3, "abd", 3));
    EXPECT(!bt_secret_equal("abcabc", 6, "abc", 3));
    EXPECT(!bt_secret_equal("abc", 3, "abcabc", 6));
    EXPECT(!bt_secret_equal("", 0, "abc", 3));
    EXPECT(!bt_secret_equal("abc", 3, "", 0));
    EXPECT(bt_secret_equal("", 0, "", 0));
}

static void secret_of_environment_and_file(void)
{
    char  secret[BT_SECRET_MAX + 1] = "x", path[] = "/tmp/baton-secret-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");

    EXPECT_EQ(bt_secret_read(secret), BT_OK);
    EXPECT(secret[0] == 0);
    fputs("from-the-file-0123\nsecond line\n", f);
    fclose(f);
    setenv(BT_SECRET_FILE_ENV, path, 1);
    EXPECT_EQ(bt_secret_read(secret), BT_OK);
    EXPECT(strcmp(secret, "from-the-file-0123") == 0);
    setenv(BT_SECRET_ENV, "from-the-environment", 1);
    EXPECT_EQ(bt_secret_read(secret), BT_OK);
    EXPECT(strcmp(secret, "from-the-environment") == 0);
    unsetenv(BT_SECRET_ENV);
    unlink(path);
    EXPECT_EQ(bt_secret_read(secret), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), path);
    EXPECT_HAS(bt_error_text(), "the secret's file /"); /* an option may have named it */
    EXPECT(mkfifo(path, 0600) == 0);                    /* nobody will ever write to it */
    EXPECT_EQ(bt_secret_read(secret), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "expected a regular file");
    unlink(path);
    unsetenv(BT_SECRET_FILE_ENV);
}

static void secret_that_is_none_is_refused_and_not_shown(void)
{
    static const char *const bad[] = {"short", "with a space in it, long enough",
                                      "with-a-\xc3\xa4-in-it-000000"};
    char                     secret[BT_SECRET_MAX + 1], longer[BT_SECRET_MAX + 2];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        setenv(BT_SECRET_ENV, bad[i], 1);
        EXPECT_EQ(bt_secret_read(secret), BT_ERR_INVALID_ARG);
        EXPECT(strstr(bt_error_text(), bad[i]) == NULL);
    }
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    setenv(BT_SECRET_ENV, longer, 1);
    EXPECT_EQ(bt_secret_read(secret), BT_ERR_INVALID_ARG);
    unsetenv(BT_SECRET_ENV);
}

static void secret_provided_is_new_each_time_and_kept_when_there(void)
{
    char first[BT_SECRET_MAX + 1], second[BT_SECRET_MAX + 1];

    EXPECT_EQ(bt_secret_provide(), BT_OK);
    EXPECT_EQ(bt_secret_read(first), BT_OK);
    EXPECT_EQ(strlen(first), 64);
    EXPECT_EQ(bt_secret_provide(), BT_OK);
    EXPECT_EQ(bt_secret_read(second), BT_OK);
    EXPECT(strcmp(first, second) == 0);
    unsetenv(BT_SECRET_ENV);
    EXPECT_EQ(bt_secret_provide(), BT_OK);
    EXPECT_EQ(bt_secret_read(second), BT_OK);
    EXPECT(strcmp(first, second) != 0);
    unsetenv(BT_SECRET_ENV);
}

static const bt_test tests[] = {
    BT_TEST(secret_equal_compares_whole_values),
    BT_TEST(secret_of_environment_and_file),
    BT_TEST(secret_that_is_none_is_refused_and_not_shown),
    BT_TEST(secret_provided_is_new_each_time_and_kept_when_there),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
