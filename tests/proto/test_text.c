/* UTF-8 checks: every form that Unicode table 3-7 forbids. */
#include "proto/text.h"
#include "tests/support/test.h"

static void text_well_formed_is_utf8(void)
{
    EXPECT(bt_text_is_utf8(""));
    EXPECT(bt_text_is_utf8("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x99\x82"));
    EXPECT(bt_text_is_utf8("\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"));
}

static void text_ill_formed_is_not_utf8(void)
{
    static const char *const bad[] = {
        "\x80",
        "\xc0\x80",
        "\xc1\xbf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xf0\x8f\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
        "abc\xe2\x82",
        "\xc3",
        "\xf0\x9f\x99",
        "\xc3(",
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        EXPECT(!bt_text_is_utf8(bad[i]));
}

static void text_clean_replaces_and_cuts_at_characters(void)
{
    char buf[6];

    bt_text_clean("a\xff"
                  "b",
                  buf, sizeof(buf));
    EXPECT(strcmp(buf, "a?b") == 0);
    bt_text_clean("abcd\xe2\x82\xac", buf, sizeof(buf)); /* no room for all three bytes */
    EXPECT(strcmp(buf, "abcd") == 0);
    bt_text_clean("abcdefgh", buf, sizeof(buf));
    EXPECT(strcmp(buf, "abcde") == 0);
}

static const bt_test tests[] = {
    BT_TEST(text_well_formed_is_utf8),
    BT_TEST(text_ill_formed_is_not_utf8),
    BT_TEST(text_clean_replaces_and_cuts_at_characters),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
