/* Bounds of numbers in JSON schemas: all numbers near them, and bounds of any size. */
#include "tests/model/grammar_texts.h"

/* Bounds and numbers are in hundredths. */
enum { NONE = -100000 };

typedef struct {
    int  lo, hi;
    bool lo_excluded, hi_excluded, integer;
} bounds;

static void print_hundredths(int v, char text[16])
{
    snprintf(text, 16, "%s%d.%02d", v < 0 ? "-" : "", abs(v) / 100, abs(v) % 100);
}

static bool is_within(const bounds *b, int v)
{
    return (b->lo == NONE || (b->lo_excluded ? v > b->lo : v >= b->lo)) &&
           (b->hi == NONE || (b->hi_excluded ? v < b->hi : v <= b->hi));
}

static bt_matcher *matcher_of_bounds(const bounds *b)
{
    char text[256], lo[16], hi[16], why[BT_GRAMMAR_WHY_BYTES];
    int  n = snprintf(text, sizeof(text), "{\"type\":\"%s\"", b->integer ? "integer" : "number");
    bt_parts g = {0};

    print_hundredths(b->lo, lo);
    print_hundredths(b->hi, hi);
    if (b->lo != NONE)
        n += snprintf(text + n, sizeof(text) - (size_t)n, ",\"%s\":%s",
                      b->lo_excluded ? "exclusiveMinimum" : "minimum", lo);
    if (b->hi != NONE)
        n += snprintf(text + n, sizeof(text) - (size_t)n, ",\"%s\":%s",
                      b->hi_excluded ? "exclusiveMaximum" : "maximum", hi);
    n += snprintf(text + n, sizeof(text) - (size_t)n, "}");
    return matcher_of(&g, bt_read_json_schema(&g, text, (size_t)n), NULL, why);
}

/* m NULL: no number is within the bounds. */
static void expect_number(bt_matcher *m, const bounds *b, const char *text, int v, bool allowed)
{
    bool found = m != NULL && judge(m, text) == ACCEPTS;

    if (found == (allowed && is_within(b, v))) return;
    g_failures++;
    fprintf(stderr, "%s from %d%s to %d%s: %s is %slet through\n",
            b->integer ? "integer" : "number", b->lo, b->lo_excluded ? " excluded" : "", b->hi,
            b->hi_excluded ? " excluded" : "", text, found ? "" : "not ");
}

/* A number without a fraction, with one digit behind the point, and with two. */
static void expect_spellings(bt_matcher *m, const bounds *b, int v)
{
    bool bare = b->lo == NONE && b->hi == NONE; /* then -0 is a number */
    char text[16];

    for (int minus = 0; minus < 2; minus++) {
        const char *sign    = minus ? "-" : "";
        int         signed_ = minus ? -v : v;
        bool        good    = !minus || v != 0 || (bare && !b->integer);

        if (v % 100 == 0) {
            snprintf(text, sizeof(text), "%s%d", sign, v / 100);
            expect_number(m, b, text, signed_, good);
        }
        if (v % 10 == 0) {
            snprintf(text, sizeof(text), "%s%d.%d", sign, v / 100, v / 10 % 10);
            expect_number(m, b, text, signed_, good && !b->integer);
        }
        snprintf(text, sizeof(text), "%s%d.%02d", sign, v / 100, v % 100);
        expect_number(m, b, text, signed_, good && !b->integer);
    }
}

static void expect_bounds(bounds b)
{
    bt_matcher *m = matcher_of_bounds(&b);

    for (int v = 0; v < 1310; v += v >= 200 && v < 900 ? 7 : 1)
        expect_spellings(m, &b, v);
    for (int v = 9890; v < 10210; v++)
        expect_spellings(m, &b, v);
    bt_matcher_destroy(m);
}

static void schema_bounds_let_through_the_numbers_between_them(void)
{
    static const int BOUNDS[] = {NONE, -10001, -1000, -950, -99, -50, -7,   0,    1,    5,
                                 25,   99,     100,   101,  250, 999, 1001, 1250, 9999, 10010};
    enum { N = sizeof(BOUNDS) / sizeof(BOUNDS[0]) };

    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) {
            int how = (3 * i + k) % 8;

            if (BOUNDS[k] != NONE && BOUNDS[i] > BOUNDS[k] + 1) continue;
            expect_bounds((bounds){BOUNDS[i], BOUNDS[k], how & 1, how & 2, how & 4});
            expect_bounds((bounds){BOUNDS[i], BOUNDS[k], !(how & 1), !(how & 2), how & 4});
        }
}

static void schema_bounds_of_any_size_are_kept(void)
{
    static const texts_case CASES[] = {
        {"{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807}",
         {"0", "-999999999999999999", "999999999999999999"},
         {"1000000000000000000"}                                                                                                              },
        {"{\"type\":\"integer\",\"exclusiveMinimum\":999999999999999997}",
         {"999999999999999998", "999999999999999999"},
         {"999999999999999997", "999999999999999996", "-5"}                                                                                   },
        {"{\"minimum\":0.1,\"maximum\":0.3}",
         {"0.1", "0.3", "0.10000000000000001", "0.29999999999999999", "0.300"},
         {"0.09999999999999999", "0.30000000000000001", "0"}                                                                                  },
        {"{\"exclusiveMinimum\":0.1,\"exclusiveMaximum\":0.3}",                                     /* as doubles, too */
         {"0.2", "0.100000000000001", "0.299999999999999"},
         {"0.1", "0.10000000000000001", "0.29999999999999999", "0.3"}                                                                         },
        {"{\"exclusiveMinimum\":0,\"maximum\":1e-20}",
         {"0.00000000000000000001"},
         {"0", "0.0", "0.00000000000000000002", "1e-21"}                                                                                      },
        {"{\"minimum\":0.30000000000000004,\"maximum\":1}",
         {"0.30000000000000004"},
         {"0.3", "0.30000000000000003"}                                                                                                       },
        {"{\"minimum\":5e-324,\"maximum\":1}",                                                      {"1", "0.5"},          {"0", "0.0", "1.1"}},
        {"{\"minimum\":1e17,\"maximum\":1.5e17}",
         {"100000000000000000", "150000000000000000", "100000000000000000.5"},
         {"99999999999999999", "150000000000000001", "1e17"}                                                                                  },
        {"{\"type\":\"integer\",\"minimum\":1,\"exclusiveMinimum\":1,\"maximum\":5,"
         "\"exclusiveMaximum\":9}",                                                        {"2", "5"},
         {"1", "6"}                                                                                                                           },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_json_schema, &CASES[i]);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(schema_bounds_let_through_the_numbers_between_them),
        BT_TEST(schema_bounds_of_any_size_are_kept),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
