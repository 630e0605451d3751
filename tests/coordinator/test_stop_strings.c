/* Stop strings against a plain search, and the tokens of a choice that they hold back. */
#include "coordinator/stop_strings.h"

#include "tests/support/sweep.h"
#include "tests/support/test.h"

static bt_stop_set *set_of(size_t n, char *const *strings)
{
    bt_stop_set *set = NULL;

    EXPECT_EQ(bt_stop_set_create(n, strings, &set), BT_OK);
    return set;
}

/* Feeds text in pieces of `step` bytes; where the match ended, or 0, and which it was. */
static size_t feed(const bt_stop_set *set, const char *text, size_t step, int *which)
{
    uint32_t state[BT_STOP_STRINGS_MAX] = {0}, held;
    size_t   n                          = strlen(text);

    for (size_t at = 0; at < n; at += step) {
        size_t len = n - at < step ? n - at : step;

        *which = bt_stop_feed(set, state, text + at, len, true, &held);
        EXPECT(held <= at + len);
        if (*which != BT_STOP_NONE) return at + len;
    }
    return 0;
}

/* The end of the earliest complete match, by trying every place. */
static size_t plain_search(const char *text, size_t n, char *const *strings, int *which)
{
    for (size_t end = 1; end <= strlen(text); end++)
        for (size_t i = 0; i < n; i++) {
            size_t len = strlen(strings[i]);

            if (len <= end && memcmp(text + end - len, strings[i], len) == 0) {
                *which = (int)i;
                return end;
            }
        }
    *which = BT_STOP_NONE;
    return 0;
}

static void stop_strings_agree_with_a_plain_search(void)
{
    uint32_t state = 7;
    char     text[40], words[3][7];
    char    *strings[3] = {words[0], words[1], words[2]};

    for (int round = 0; round < 20000; round++) {
        size_t n = 0, want, got;
        int    which, want_which;

        for (int w = 0; w < 4; w++) { /* few letters, so that borders and overlaps happen */
            char  *to  = w < 3 ? words[w] : text;
            size_t len = 0;

            state = state * 1664525u + 1013904223u;
            len   = w < 3 ? 1 + (state >> 20) % 6 : 39;
            for (size_t i = 0; i < len; i++) {
                state = state * 1664525u + 1013904223u;
                to[i] = (char)('a' + (state >> 24) % 2);
            }
            to[len] = 0;
        }
        n                = 1 + (state >> 10) % 3;
        want             = plain_search(text, n, strings, &want_which);
        bt_stop_set *set = set_of(n, strings);
        got              = feed(set, text, 1, &which);
        EXPECT_EQ(got, want);
        EXPECT_EQ(which, want_which);
        got = feed(set, text, 5, &which);
        EXPECT(want == 0 ? got == 0 : got >= want && got < want + 5);
        EXPECT_EQ(which, want_which);
        bt_stop_set_destroy(set);
    }
}

static void stop_strings_say_what_may_still_begin_one(void)
{
    char        *strings[] = {(char *)"abcabd", (char *)"xy"};
    bt_stop_set *set       = set_of(2, strings);
    uint32_t     state[2]  = {0}, held;

    EXPECT_EQ(bt_stop_feed(set, state, "zzabcab", 7, true, &held), BT_STOP_NONE);
    EXPECT_EQ(held, 5);
    EXPECT_EQ(bt_stop_feed(set, state, "c", 1, true, &held), BT_STOP_NONE);
    EXPECT_EQ(held, 3); /* "abc" again */
    EXPECT_EQ(bt_stop_feed(set, state, "x", 1, true, &held), BT_STOP_NONE);
    EXPECT_EQ(held, 1);
    EXPECT_EQ(bt_stop_feed(set, state, "", 0, true, &held), BT_STOP_NONE);
    EXPECT_EQ(held, 1);
    EXPECT_EQ(bt_stop_feed(set, state, "y", 1, false, &held), BT_STOP_NONE); /* too early */
    EXPECT_EQ(held, 0);
    EXPECT_EQ(bt_stop_feed(set, state, "y", 1, true, &held), BT_STOP_NONE);
    EXPECT_EQ(bt_stop_feed(set, state, "qxyabcabd", 9, true, &held), 1);
    EXPECT_EQ(strcmp(bt_stop_set_string(set, 1), "xy"), 0);
    bt_stop_set_destroy(set);
}

/* Whole ones that stand too early to count: what follows may share their end. */
static void stop_strings_go_on_behind_one_that_came_too_early(void)
{
    char        *strings[] = {(char *)"abab"};
    bt_stop_set *set       = set_of(1, strings);
    uint32_t     state[1]  = {0}, held;

    EXPECT_EQ(bt_stop_feed(set, state, "abab", 4, false, &held), BT_STOP_NONE);
    EXPECT_EQ(held, 2);
    EXPECT_EQ(bt_stop_feed(set, state, "ab", 2, true, &held), 0);
    EXPECT_EQ(bt_stop_feed(set, state, "\0", 1, true, &held), BT_STOP_NONE);
    EXPECT_EQ(held, 0);
    EXPECT_EQ(bt_stop_feed(set, state, "abab", 4, true, &held), 0);
    bt_stop_set_destroy(set);
}

static void stop_strings_survive_failed_allocations(void)
{
    char        *strings[] = {(char *)"ab", (char *)"cd"};
    bt_stop_set *set       = NULL;

    EXPECT_EQ(BT_SWEEP(bt_stop_set_create(2, strings, &set), bt_stop_set_destroy(set)), 6);
}

static const bt_test tests[] = {
    BT_TEST(stop_strings_agree_with_a_plain_search),
    BT_TEST(stop_strings_say_what_may_still_begin_one),
    BT_TEST(stop_strings_go_on_behind_one_that_came_too_early),
    BT_TEST(stop_strings_survive_failed_allocations),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL); }
