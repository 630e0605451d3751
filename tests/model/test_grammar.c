/* Parts, packing and states: what may follow a text. */
#include "model/utf8.h"
#include "tests/model/grammar_check.h"

static void parts_repeat_as_often_as_they_say(void)
{
    static const struct {
        uint32_t min, max;
    } TIMES[] = {
        {0, 0           },
        {0, 1           },
        {1, 1           },
        {0, 3           },
        {2, 2           },
        {2, 5           },
        {0, BT_UNLIMITED},
        {3, BT_UNLIMITED}
    };

    for (size_t i = 0; i < sizeof(TIMES) / sizeof(TIMES[0]); i++) {
        bt_parts    g = {0};
        char        why[BT_GRAMMAR_WHY_BYTES], text[12] = "";
        bt_part     p = bt_part_repeat(&g, bt_part_text(&g, "a"), TIMES[i].min, TIMES[i].max);
        bt_matcher *m = matcher_of(&g, bt_part_then(&g, p, bt_part_text(&g, ".")), NULL, why);

        for (uint32_t n = 0; n < 8; n++) {
            memset(text, 'a', n);
            text[n]     = '.';
            text[n + 1] = '\0';
            EXPECT_VERDICT(m, text, n >= TIMES[i].min && n <= TIMES[i].max ? ACCEPTS : REFUSES);
        }
        bt_matcher_destroy(m);
    }
}

static void expect_refused(bt_parts *g, bt_part whole, const char *says)
{
    char why[BT_GRAMMAR_WHY_BYTES] = "";

    EXPECT(matcher_of(g, whole, NULL, why) == NULL);
    EXPECT_HAS(why, says);
}

static void parts_that_no_text_satisfies_are_refused(void)
{
    char     why[BT_GRAMMAR_WHY_BYTES];
    bt_parts g = {0};
    uint32_t rule;

    expect_refused(&g, bt_part_never(&g), "no text at all");
    /* a ::= "x" a: it would never end */
    rule = bt_rule_new(&g, "a");
    bt_rule_is(&g, rule, bt_part_then(&g, bt_part_text(&g, "x"), bt_rule_call(&g, rule)));
    expect_refused(&g, bt_rule_call(&g, rule), "no text at all");
    /* a way that does not end is left out beside one that does */
    rule = bt_rule_new(&g, "a");
    bt_rule_is(&g, rule, bt_part_then(&g, bt_part_text(&g, "x"), bt_rule_call(&g, rule)));
    bt_matcher *m = matcher_of(
        &g, bt_part_either(&g, bt_rule_call(&g, rule), bt_part_text(&g, "y")), NULL, why);
    EXPECT_VERDICT(m, "x", REFUSES);
    EXPECT_VERDICT(m, "y", ACCEPTS);
    bt_matcher_destroy(m);
    expect_refused(&g, bt_rule_call(&g, bt_rule_new(&g, "unsaid")), "no text at all");
}

static void rules_that_begin_with_themselves_are_refused_by_name(void)
{
    char     why[BT_GRAMMAR_WHY_BYTES];
    bt_parts g = {0};
    uint32_t a = bt_rule_new(&g, "first"), b = bt_rule_new(&g, "second");
    bt_part  p;

    /* first ::= second "x" | "y"; second ::= "z"? first */
    p = bt_part_then(&g, bt_rule_call(&g, b), bt_part_text(&g, "x"));
    bt_rule_is(&g, a, bt_part_either(&g, p, bt_part_text(&g, "y")));
    bt_rule_is(&g, b,
               bt_part_then(&g, bt_part_maybe(&g, bt_part_text(&g, "z")), bt_rule_call(&g, a)));
    expect_refused(&g, bt_part_then(&g, bt_part_text(&g, "q"), bt_rule_call(&g, a)),
                   "first begins with itself");
    /* siblings that begin with the same rule do not */
    a = bt_rule_new(&g, "a");
    b = bt_rule_new(&g, "b");
    bt_rule_is(&g, a, bt_part_text(&g, "x"));
    bt_rule_is(&g, b,
               bt_part_either(&g, bt_rule_call(&g, a),
                              bt_part_then(&g, bt_part_text(&g, "y"), bt_rule_call(&g, b))));
    bt_matcher *m =
        matcher_of(&g, bt_part_either(&g, bt_rule_call(&g, b), bt_rule_call(&g, a)), NULL, why);
    EXPECT_VERDICT(m, "x", ACCEPTS);
    EXPECT_VERDICT(m, "yyx", ACCEPTS);
    EXPECT_VERDICT(m, "y", GOES_ON);
    bt_matcher_destroy(m);
}

static void matcher_follows_calls_within_calls(void)
{
    static const struct {
        const char *text;
        verdict     want;
    } CASES[] = {
        {"x",         ACCEPTS},
        {"[]",        ACCEPTS},
        {"[x,[x],x]", ACCEPTS},
        {"[[[[",      GOES_ON},
        {"[[x]",      GOES_ON},
        {"[x,]",      REFUSES},
        {"]",         REFUSES},
        {"[x]]",      REFUSES},
        {"xx",        REFUSES},
        {"",          GOES_ON},
    };
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_parts    g = {0};
    bt_matcher *m = matcher_of(&g, nested(&g), NULL, why);
    char        deep[4001];

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        EXPECT_VERDICT(m, CASES[i].text, CASES[i].want);
    memset(deep, '[', 2000);
    memset(deep + 2000, ']', 2000);
    deep[4000] = '\0';
    EXPECT_VERDICT(m, deep, ACCEPTS);
    deep[3999] = '\0';
    EXPECT_VERDICT(m, deep, GOES_ON);
    bt_matcher_destroy(m);
}

/* list ::= "x" list | "x": what is called last takes no frame, so that few states are enough. */
static void matcher_of_a_list_that_calls_itself_last_stays_small(void)
{
    char     why[BT_GRAMMAR_WHY_BYTES], text[20001];
    bt_parts g    = {0};
    uint32_t list = bt_rule_new(&g, "list");
    bt_part  more = bt_part_then(&g, bt_part_text(&g, "x"), bt_rule_call(&g, list));
    size_t   before;

    bt_rule_is(&g, list, bt_part_either(&g, more, bt_part_text(&g, "x")));
    bt_matcher *m = matcher_of(&g, bt_rule_call(&g, list), NULL, why);
    EXPECT_VERDICT(m, "xxxx", ACCEPTS);
    before = bt_matcher_bytes(m);
    memset(text, 'x', 20000);
    text[20000] = '\0';
    EXPECT_VERDICT(m, text, ACCEPTS);
    EXPECT_EQ(bt_matcher_bytes(m), before);
    bt_matcher_destroy(m);
}

static void matcher_gives_up_on_what_is_read_in_too_many_ways(void)
{
    /* a ::= "x" a "y" | "x" a "z" | ..: each x opens two calls of the same rule at two places */
    char        why[BT_GRAMMAR_WHY_BYTES], text[200];
    bt_parts    g = {0};
    uint32_t    a = bt_rule_new(&g, "a"), state;
    bt_part     p = bt_part_text(&g, "!");
    bt_matcher *m;

    for (int i = 0; i < 2; i++) {
        bt_part way = bt_part_then(&g, bt_part_text(&g, "x"), bt_rule_call(&g, a));

        p = bt_part_either(&g, p, bt_part_then(&g, way, bt_part_text(&g, i == 0 ? "y" : "z")));
    }
    bt_rule_is(&g, a, p);
    m = matcher_of(&g, bt_rule_call(&g, a), NULL, why);
    EXPECT_VERDICT(m, "xx!yz", ACCEPTS);
    memset(text, 'x', sizeof(text));
    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), text, sizeof(text), &state),
              BT_ERR_UNSUPPORTED);
    bt_matcher_destroy(m);
}

static void chars_are_exactly_their_code_points(void)
{
    static const bt_char_range RANGES[][3] = {
        {{0, BT_CHAR_MAX}     },
        { {0x41, 0x5A},     {0x50, 0x7F}, {0x80, 0x80}},
        {         {0x7FF, 0x800},   {0xFFFF, 0x10000}, {0x10FFFF, 0x10FFFF}},
        { {0xD700, 0xE100}, {0x3A5, 0x12345}, {0x1, 0x1}},
        {           {0x20AC, 0x20AC}, {0x10400, 0x2F800}, {0x900, 0xDFF}},
    };

    for (size_t i = 0; i < sizeof(RANGES) / sizeof(RANGES[0]); i++)
        for (int negated = 0; negated < 2; negated++) {
            bt_parts    g   = {0};
            bt_chars    set = {0};
            char        why[BT_GRAMMAR_WHY_BYTES], text[4];
            uint32_t    n_wrong = 0;
            bt_matcher *m;

            for (int k = 0; k < 3; k++)
                bt_chars_add(&g, &set, RANGES[i][k].lo, RANGES[i][k].hi);
            if (negated) bt_chars_negate(&g, &set);
            m = matcher_of(&g, bt_part_chars(&g, &set), NULL, why);
            bt_chars_fini(&set);
            if (m == NULL) { /* all, negated */
                EXPECT(i == 0 && negated);
                continue;
            }
            for (uint32_t c = 0; c <= BT_CHAR_MAX; c++) {
                bool in = false;

                for (int k = 0; k < 3; k++)
                    in = in || (RANGES[i][k].lo <= c && c <= RANGES[i][k].hi);
                in = in != (negated == 1) && (c < 0xD800 || c > 0xDFFF);
                n_wrong += (judge_bytes(m, text, bt_utf8_put(c, text)) == ACCEPTS) != in;
            }
            EXPECT_EQ(n_wrong, 0);
            EXPECT_EQ(judge_bytes(m, "\xC0\x80", 2), REFUSES);
            EXPECT_EQ(judge_bytes(m, "\xFF", 1), REFUSES);
            bt_matcher_destroy(m);
        }
}

/* Of a thousand ranges, 64 of a leading pair of bytes; a text of one is read in one way. */
static void chars_share_the_bytes_that_they_begin_with(void)
{
    bt_parts    g   = {0};
    bt_chars    set = {0};
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_part     one;
    bt_matcher *m;

    for (uint32_t c = 0x4E00; c < 0x4E00 + 2000; c += 2)
        bt_chars_add(&g, &set, c, c);
    one = bt_part_chars(&g, &set);
    EXPECT(g.n_nodes <= 2 + 2 + 2000 / 64 + 1);
    m = matcher_of(&g, bt_part_repeat(&g, one, 1, BT_UNLIMITED), NULL, why);
    EXPECT_VERDICT(m, "\xe4\xb8\x80\xe5\x80\x80\xe4\xb8\x82", ACCEPTS);
    EXPECT_VERDICT(m, "\xe4\xb8\x81", REFUSES);
    EXPECT_VERDICT(m, "\xe4\xb8\x80\xe5\x80\x81", REFUSES);
    bt_matcher_destroy(m);
    bt_chars_fini(&set);
}

static void chars_of_json_are_escaped_where_they_must_be(void)
{
    bt_parts    g   = {0};
    bt_chars    set = {0};
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_matcher *m;

    bt_chars_add(&g, &set, 0, 0x5D); /* with the quote and the backslash */
    m = matcher_of(&g, bt_part_json_chars(&g, &set), NULL, why);
    bt_chars_fini(&set);
    EXPECT_VERDICT(m, "a", REFUSES);
    EXPECT_VERDICT(m, "A", ACCEPTS);
    EXPECT_VERDICT(m, "]", ACCEPTS);
    EXPECT_VERDICT(m, "\"", REFUSES);
    EXPECT_VERDICT(m, "\\", GOES_ON);
    EXPECT_VERDICT(m, "\\\\", ACCEPTS);
    EXPECT_VERDICT(m, "\\\"", ACCEPTS);
    EXPECT_VERDICT(m, "\\n", ACCEPTS);
    EXPECT_VERDICT(m, "\n", REFUSES);
    EXPECT_VERDICT(m, "\\u0000", ACCEPTS);
    EXPECT_VERDICT(m, "\\u001f", ACCEPTS);
    EXPECT_VERDICT(m, "\\u000a", REFUSES); /* it has a shorter one */
    EXPECT_VERDICT(m, "\\u0041", REFUSES);
    bt_matcher_destroy(m);
}

/* A text within few readings at a time, of which one has very many edges. */
static void text_that_looks_at_too_many_edges_is_given_up(void)
{
    enum { N = 20000, N_BYTES = 8000 };
    char        why[BT_GRAMMAR_WHY_BYTES], text[N_BYTES];
    bt_parts    g    = {0};
    uint32_t    rule = bt_rule_new(&g, NULL), state;
    bt_part     pair = bt_part_then(&g, bt_part_text(&g, "a"), bt_rule_call(&g, rule));
    bt_part     many = bt_part_never(&g);
    bt_matcher *m;

    for (uint32_t i = 0; i < N; i++)
        bt_part_step(&g, many.start, 'c', 'd', many.end);
    pair = bt_part_then(&g, pair, bt_part_text(&g, "b"));
    bt_rule_is(&g, rule, bt_part_either(&g, pair, many));
    m = matcher_of(&g, bt_rule_call(&g, rule), NULL, why);
    memset(text, 'a', N_BYTES);
    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), text, 1000, &state), BT_OK);
    EXPECT_EQ(bt_matcher_step(m, state, text, N_BYTES, &state), BT_ERR_UNSUPPORTED);
    bt_matcher_destroy(m);
}

static const bt_test TESTS[] = {
    BT_TEST(parts_repeat_as_often_as_they_say),
    BT_TEST(parts_that_no_text_satisfies_are_refused),
    BT_TEST(rules_that_begin_with_themselves_are_refused_by_name),
    BT_TEST(matcher_follows_calls_within_calls),
    BT_TEST(matcher_of_a_list_that_calls_itself_last_stays_small),
    BT_TEST(matcher_gives_up_on_what_is_read_in_too_many_ways),
    BT_TEST(chars_are_exactly_their_code_points),
    BT_TEST(chars_share_the_bytes_that_they_begin_with),
    BT_TEST(chars_of_json_are_escaped_where_they_must_be),
    BT_TEST(text_that_looks_at_too_many_edges_is_given_up),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }
