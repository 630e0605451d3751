/* tests/support/test.h - one table, one main(), exit 0 ok / 1 failed / 77 skipped. */
#ifndef BT_TESTS_SUPPORT_TEST_H
#define BT_TESTS_SUPPORT_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BT_TEST_SKIP = 77 };
static int g_failures;
/* The test that runs, for whatever ends the process; one for all files of a program. */
__attribute__((weak)) const char *bt_test_now;

#define EXPECT(cond)                                                           \
    do {                                                                       \
        if (!(cond)) {                                                         \
            g_failures++;                                                      \
            fprintf(stderr, "%s:%d expected %s\n", __FILE__, __LINE__, #cond); \
        }                                                                      \
    } while (0)
#define EXPECT_EQ(got, want)                                                                      \
    do {                                                                                          \
        long long got_ = (long long)(got), want_ = (long long)(want);                             \
        if (got_ != want_) {                                                                      \
            g_failures++;                                                                         \
            fprintf(stderr, "%s:%d %s is %lld, want %s = %lld\n", __FILE__, __LINE__, #got, got_, \
                    #want, want_);                                                                \
        }                                                                                         \
    } while (0)
/* Gives up: nothing after it would mean anything. */
#define NEED(cond)                                                                  \
    do {                                                                            \
        if (!(cond)) {                                                              \
            fprintf(stderr, "%s:%d cannot go on: %s\n", __FILE__, __LINE__, #cond); \
            exit(EXIT_FAILURE);                                                     \
        }                                                                           \
    } while (0)
/* The text holds the part: for error messages. */
#define EXPECT_HAS(text, part)                                                         \
    do {                                                                               \
        const char *text_ = (text), *part_ = (part);                                   \
        if (text_ == NULL || strstr(text_, part_) == NULL) {                           \
            g_failures++;                                                              \
            fprintf(stderr, "%s:%d \"%s\" does not hold \"%s\"\n", __FILE__, __LINE__, \
                    text_ ? text_ : "(null)", part_);                                  \
        }                                                                              \
    } while (0)

typedef struct {
    const char *name;
    void (*fn)(void);
} bt_test;
#define BT_TEST(fn) \
    {               \
#fn, fn     \
    }

/* only: the one test to run, an error if there is none of that name; "--list" prints all names. */
static inline int bt_run_tests(const bt_test *tests, size_t n, const char *only)
{
    int list = only != NULL && strcmp(only, "--list") == 0, found = only == NULL || list;

    for (size_t i = 0; i < n; i++) {
        int before = g_failures;

        if (list) puts(tests[i].name);
        if (only != NULL && strcmp(only, tests[i].name) != 0) continue;
        found       = 1;
        bt_test_now = tests[i].name;
        tests[i].fn();
        bt_test_now = NULL;
        printf("%-70s %s\n", tests[i].name, g_failures == before ? "ok" : "FAILED");
        fflush(stdout);
    }
    if (!found) fprintf(stderr, "no test is called %s; --list prints their names\n", only);
    return found && g_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
#define BT_RUN_TESTS(tests, only) bt_run_tests(tests, sizeof(tests) / sizeof((tests)[0]), only)
#endif
