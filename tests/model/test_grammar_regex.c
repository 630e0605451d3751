/* Regular expressions: which texts match, and what is refused. */
#include "tests/model/grammar_texts.h"

/* zod's. */
#define EMAIL                                                   \
    "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]" \
    "@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"
/* pydantic's. */
#define DECIMAL "(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*"
#define DIGITS  "(?!^[-+.]*$)[+-]?0*(?:\\d{0,3}|(?=[\\d.]{1,6}0*$)\\d{0,3}\\.\\d{0,2}0*$)"
#define ENDS    "an anchor of the end, or a look-ahead in a group, that something follows, "
#define PERIODS \
    "(?=(?:[\\x00-\\x7f]{7})*$)(?=(?:[\\x00-\\x7f]{11})*$)(?:[\\x00-\\x3f]|[\\x20-\\x7f]{17})*|"
#define EIGHT "(?=)(?=)(?=)(?=)(?=)(?=)(?=)(?=)a"

static bt_part read_whole(bt_parts *g, const char *text, size_t n)
{
    return bt_read_regex(g, text, n, true, false);
}

/* As a JSON schema's pattern. */
static bt_part read_pattern(bt_parts *g, const char *text, size_t n)
{
    return bt_read_regex(g, text, n, false, true);
}

static bt_part read_somewhere(bt_parts *g, const char *text, size_t n)
{
    return bt_read_regex(g, text, n, false, false);
}

static void regex_whole_takes_what_matches_it_all(void)
{
    static const texts_case CASES[] = {
        {"",                             {""},                                            {"a", " "}                          },
        {"abc",                          {"abc"},                                         {"", "ab", "abcd", "xabc"}          },
        {"^abc$",                        {"abc"},                                         {"xabc", "abc\n"}                   },
        {"\\Aabc\\Z",                    {"abc"},                                         {"abc\n"}                           },
        {"a|^b$|\\Ac\\z",                {"a", "b", "c"},                                 {"", "ab"}                          },
        {"^(?:a|b)$",                    {"a", "b"},                                      {"ab", "^a"}                        },
        {"(^a|b)(c|d$)",                 {"ac", "ad", "bc", "bd"},                        {"a", "cd"}                         },
        {"a|",                           {"a", ""},                                       {"|", "aa"}                         },
        {"()|(|x)y",                     {"", "y", "xy"},                                 {"x"}                               },
        {"-?\\d+\\.?\\d*\\(?\\$*",       {"-1.5", "2", "3.($$"},                          {"1x5", "1.5x", "."}                },
        {"ab*",                          {"a", "ab", "abbb"},                             {"abab", ""}                        },
        {"ab+c?",                        {"ab", "abbc"},                                  {"a", "abcc"}                       },
        {"(ab)*?c",                      {"c", "abc", "ababc"},                           {"ab", "aab"}                       },
        {"a{2}",                         {"aa"},                                          {"a", "aaa"}                        },
        {"a{2,}b{,2}",                   {"aa", "aaab", "aabb"},                          {"a", "aabbb"}                      },
        {"(?:a|b){1,3}?",                {"a", "ab", "bab"},                              {"", "abab"}                        },
        {"a{0}b",                        {"b"},                                           {"ab"}                              },
        {"(a*)*(b?)+",                   {"", "aab", "abb"},                              {"ba"}                              },
        {"(a?){3,}",                     {"", "a", "aaaaa"},                              {"b"}                               },
        {"{a}x{y}{,}",                   {"{a}x{y", "{a}x{y}}"},                          {"{a}x"}                            },
        {"a{1,b]}",                      {"a{1,b]}"},                                     {"a"}                               },
        {"x{1000}y{1,10000}",            {NULL},                                          {"xy"}                              },
        {"((x{100}){100}){0,100}",       {""},                                            {"x"}                               },
        {"(?P<n_1>a)(?<m>b)",            {"ab"},                                          {"a"}                               },
        {"[abc]",                        {"a", "c"},                                      {"", "d", "ab"}                     },
        {"[^abc]",                       {"d", "\n", "\xc3\xa9"},                         {"a", "", "\xc3"}                   },
        {"[a-c-x]",                      {"a", "b", "-", "x"},                            {"d", "y"}                          },
        {"[-a]|[b-]",                    {"-", "a", "b"},                                 {"c"}                               },
        {"[\\w-.]+",                     {"a-b.c_9"},                                     {"a b"}                             },
        {"[a-\\d]+",                     {"a-5"},                                         {"b"}                               },
        {"[[\\]^{}().*+?|$]+",           {"[]^{}().*+?|$"},                               {"\\"}                              },
        {"[\\b\\n\\t]",                  {"\b", "\n", "\t"},                              {"b", "n"}                          },
        {"[\\d\\s]+",                    {"1 2\t3"},                                      {"a", ""}                           },
        {"[^\\d\\s]+",                   {"ab"},                                          {"1", "a b", "\xc2\xa0"}            },
        {"\\d\\D\\w\\W\\s\\S",           {"1a_- x", "1a_-\tx"},                           {"1a_-xx", "aa_- x"}                },
        {"\\S",                          {"a", "\xc3\xa9"},                               {" ", "\xc2\xa0", "\xe3\x80\x80"}   },
        {"\\s|\\d|\\w",                  {" ", "\f", "9", "Z"},                           {"\xc2\xa0", "\xd9\xa3", "\xc3\xa9"}},
        {"\\n\\t\\r\\f\\v",              {"\n\t\r\f\v"},                                  {"ntrfv"}                           },
        {"\\x41\\u0042\\u{43}\\cA",      {"ABC\1"},                                       {"x41"}                             },
        {"\\ud83d\\ude00|\\u{1F600}",    {"\xf0\x9f\x98\x80"},                            {"\xf0\x9f\x98\x81"}                },
        {"\\/\\.\\*\\-\\\\\\{3}\\_",     {"/.*-\\{3}_"},                                  {"/a*-"}                            },
        {"\\^\\$",                       {"^$"},                                          {""}                                },
        {"\xc3\xa9+\xe4\xb8\xad?",       {"\xc3\xa9", "\xc3\xa9\xc3\xa9\xe4\xb8\xad"},    {"\xc3\xa9\xa9"}                    },
        {"[\xc3\xa0-\xc3\xbf]",          {"\xc3\xa9"},                                    {"\xc3\x9f", "e"}                   },
        {".",                            {"a", "\r", "\xe2\x80\xa8", "\xf0\x9f\x98\x80"}, {"\n", "", "\x80", "\xed\xa0\x80"}  },
        {"\\d{3}-\\d{4}",                {"555-1234"},                                    {"5555-123"}                        },
        {"(\\d{1,3}\\.){3}\\d{1,3}",     {"127.0.0.1"},                                   {"127.0.0", "1.2.3.4444"}           },
        {"(?=a)\\w+",                    {"a", "ab"},                                     {"b", "ba", ""}                     },
        {"^(?=.*\\d)(?=.*a).{3,}$",      {"a1-", "1-a", "xa9x"},                          {"a1", "abc", "123"}                },
        {"(?!ab)\\w*",                   {"", "a", "ba", "aab"},                          {"ab", "abc"}                       },
        {"(?!ab$)\\w*",                  {"", "a", "abc"},                                {"ab"}                              },
        {"(?!a|b$)\\w*",                 {"", "bc", "c"},                                 {"a", "ab", "b"}                    },
        {"(?=ab|a$)[ab]*",               {"a", "ab", "abb"},                              {"aa", "b"}                         },
        {"(?=)a|(?!x)(?!y)\\w|-",        {"a", "b", "-"},                                 {"x", "y", ""}                      },
        {"(?![^\\s\\S])a",               {"a"},                                           {"b"}                               },
        {"(?!)a|b",                      {"b"},                                           {"a"}                               },
        {"(?=.\\xe9)..",                 {"a\xc3\xa9"},                                   {"aa", "\xc3\xa9"}                  },
        {DECIMAL,                        {"1", "-1.5", "+.5", "007."},                    {"", "-", "+.", "."}                },
        {"a(?=b)\\w+(?!.)",              {"ab", "abc"},                                   {"a", "ac"}                         },
        {"a(?!b)\\w*|(?:x(?=y|z$)\\w+)", {"a", "ac", "xya", "xz"},                        {"ab", "xza", "x"}                  },
        {"(?=(?!ab)a(?=.c)).*",          {"axc", "aacd"},                                 {"abc", "axb", "a"}                 },
        {"(?=^a)a(?=b(?=c))bc",          {"abc"},                                         {"abd", "ab"}                       },
        {DIGITS,                         {"1", "0012.34", "-999.9900", ".5"},             {"1234.5", "1.234", "-", "."}       },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(read_whole, &CASES[i]);
}

static void regex_pattern_matches_somewhere_unless_anchored(void)
{
    static const texts_case CASES[] = {
        {"b",             {"b", "abc", "b\n", "\nb"}, {"", "ac"}        },
        {"^b",            {"b", "bc"},                {"ab", ""}        },
        {"b$",            {"b", "ab"},                {"ba", "b\n"}     },
        {"^b$",           {"b"},                      {"ab", "bc"}      },
        {"^",             {"", "x"},                  {"\xff"}          },
        {"$|a",           {"", "x"},                  {"\xff"}          },
        {"^$",            {""},                       {"a"}             },
        {"^a|b",          {"a", "ax", "xb", "xbx"},   {"xa", ""}        },
        {"a$|b",          {"a", "xa", "bx"},          {"ax"}            },
        {"^a|b$|c",       {"ax", "xb", "xcx"},        {"xa", "bx"}      },
        {"(^a|b)x",       {"ax", "axq", "qbx"},       {"qax", "a"}      },
        {"x(a$|b)",       {"xa", "qxa", "xbq"},       {"xaq", "x"}      },
        {"^(a|b$)",       {"a", "aq", "b"},           {"bq", "qa", "qb"}},
        {"^(^a$|^b$)$",   {"a", "b"},                 {"ab", "aq", "qb"}},
        {"(?:^|x)a(y|$)", {"a", "ay", "xa", "qxayq"}, {"qa", "aq"}      },
        {"^(?!b)",        {"", "a", "ab"},            {"b", "ba"}       },
        {"^(?=a$)|b",     {"a", "b", "ab", "cbc"},    {"aa", ""}        },
        {"^(?=.*b)a",     {"ab", "acb", "abc"},       {"a", "ba"}       },
        {"a(?!b)",        {"a", "xac", "aba"},        {"ab", "xab", "b"}},
        {"(?=b)",         {"b", "ab"},                {"", "a"}         },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(read_somewhere, &CASES[i]);
}

static void regex_in_json_reads_escapes_as_characters(void)
{
    static const texts_case CASES[] = {
        {"^a\tb\x7f$",               {"a\\tb\x7f"},                    {"a\tb\x7f"}                               },
        {"^a\"b$",                   {"a\\\"b"},                       {"a\"b", "a\\\\b"}                         },
        {"^a\\\\b$",                 {"a\\\\b"},                       {"a\\b", "ab"}                             },
        {"^\\n\"?\\x01$",            {"\\n\\u0001", "\\n\\\"\\u0001"}, {"\n\1", "\\n"}                            },
        {"^[\\n\"a]+$",              {"a\\n\\\"a"},                    {"\n", "\"", "\\"}                         },
        {"^.$",                      {"a", "\\\"", "\\\\", "\\t"},     {"\\n", "\\r", "\"", "\xe2\x80\xa8", "n\\"}},
        {"b",                        {"\\nb\\\"", "b"},                {"\"b", "\nb", "\\b"}                      },
        {"a\\.b",                    {"a.b"},                          {"axb", "a\\.b"}                           },
        {"^(?!.*\")(?=.\\n).+\\nb$", {"\\\\\\nb"},                     {"\\\"\\nb", "anb"}                        },
        {"^(?!.*\")a.$",             {"ab", "a\\\\"},                  {"a\\\"", "a\\n"}                          },
        {"^(?!\\s)[^a]$",            {"b"},                            {"a", " ", "\\t", "\xc2\xa0"}              },
        {"^(?!\\S)[^a]$",            {" "},                            {"b", "\\u001c", "\xc2\x85"}               },
        {"^(?![^\\s])[^a]$",         {" "},                            {"b", "\\u001c", "\xc2\x85"}               },
        {"^(?!(?!\\s))[^a]$",        {" "},                            {"b", "\xc2\xa0"}                          },
        {"^(?!.$)[^a]$",             {"\\n"},                          {"b", "\\r", "\xe2\x80\xa8"}               },
        {EMAIL,                      {"a@b.cd", "a.b'c@x-y.z9.org"},   {".a@b.cd", "a..b@c.de", "a@b.c"}          },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(read_pattern, &CASES[i]);
}

static void regex_what_cannot_be_held_is_refused_by_name(void)
{
    static const refused_case CASES[] = {
        {"(a(?=b))c",                  ENDS "at byte 2"                                                      },
        {"((?!b)a)*",                  "a quantifier of a group with an anchor or look-ahead in it"          },
        {"a(?=^b)b",                   "an anchor of the start at a look-ahead or behind it, at byte 4"      },
        {"a(?=(b|^c))b",               "an anchor of the start at a look-ahead or behind it, at byte 4"      },
        {"(?=a)*b",                    "a quantifier of a look-ahead at byte 5"                              },
        {"(?=a",                       "byte 0 of the regular expression: the look-ahead has no )"           },
        {"(?=a\\p)b",                  "the Unicode property \\p at byte 4"                                  },
        {EIGHT,                        "one look-ahead more than 7 at byte 28"                               },
        {"(?=.*a.{20})(?=.*b.{20}).*", "come to too much with their look-aheads"                             },
        {"(?=a)b",                     "no text at all would do"                                             },
        {"(?=[^\\s\\S])b",             "no text at all would do"                                             },
        {"x(?<=b)",                    "the look-behind (?<= at byte 1"                                      },
        {"x(?<!b)",                    "the look-behind (?<! at byte 1"                                      },
        {"(?>a)",                      "the atomic group (?> at byte 0"                                      },
        {"(?(1)a|b)",                  "the conditional (?( at byte 0"                                       },
        {"(?P=n)",                     "the back reference (?P= at byte 0"                                   },
        {"(?P>n)",                     "the recursion (?P>"                                                  },
        {"(?#x)",                      "the comment (?# at byte 0"                                           },
        {"(?i)a",                      "inline flags"                                                        },
        {"(?i:a)",                     "inline flags"                                                        },
        {"(?<1a>b)",                   "the group has no name"                                               },
        {"(?P<a",                      "the group has no name"                                               },
        {"(a)\\1",                     "a back reference at byte 3"                                          },
        {"[\\1]",                      "a back reference at byte 1"                                          },
        {"\\k<n>",                     "the back reference \\k at byte 0"                                    },
        {"a\\b",                       "the word boundary \\b at byte 1"                                     },
        {"a\\B",                       "the word boundary \\B at byte 1"                                     },
        {"\\p{L}",                     "the Unicode property \\p at byte 0"                                  },
        {"[\\P{L}]",                   "the Unicode property \\P at byte 1"                                  },
        {"\\q",                        "the escape \\q at byte 0"                                            },
        {"\\G",                        "the escape \\G at byte 0"                                            },
        {"\\012",                      "an octal escape at byte 0"                                           },
        {"\\x4",                       "byte 0 of the regular expression: \\x"                               },
        {"\\ud83d",                    "\\u is followed by no character"                                     },
        {"\\ud83d\\u0041",             "\\u is followed by no character"                                     },
        {"\\udc00",                    "\\u is followed by no character"                                     },
        {"\\u{110000}",                "\\u is followed by no character"                                     },
        {"\\u12",                      "\\u is followed by no character"                                     },
        {"a\\",                        "a backslash with nothing behind it"                                  },
        {"[a",                         "byte 0 of the regular expression: the class has no ]"                },
        {"[a-",                        "byte 0 of the regular expression: the class has no ]"                },
        {"[]a]",                       "a class that begins with ]"                                          },
        {"[^]a]",                      "a class that begins with ]"                                          },
        {"[b-a]",                      "a range of a class ends before it begins"                            },
        {"[[:alpha:]]",                "a POSIX class [:...:] at byte 1"                                     },
        {"[\\A]",                      "the anchor \\A in a class"                                           },
        {"(a",                         "byte 0 of the regular expression: the group has no )"                },
        {"a)b",                        "byte 1 of the regular expression: this ) closes no group"            },
        {"*a",                         "byte 0 of the regular expression: a quantifier of nothing"           },
        {"(|+)",                       "byte 2 of the regular expression: a quantifier of nothing"           },
        {"^*",                         "byte 1 of the regular expression: a quantifier of nothing"           },
        {"{2}",                        "byte 0 of the regular expression: a quantifier of nothing"           },
        {"a**",                        "a quantifier behind a quantifier"                                    },
        {"a{2}{3}",                    "a quantifier behind a quantifier"                                    },
        {"a*??",                       "a quantifier behind a quantifier"                                    },
        {"a*+",                        "a possessive quantifier at byte 1"                                   },
        {"a{3,2}",                     "more at least than at most"                                          },
        {"a{10001}",                   "a repetition of more than 10000 times at byte 1"                     },
        {"a{1,99999999999999999999}",  "a repetition of more than 10000 times"                               },
        {"a^b",                        "an anchor of the start that something precedes, at byte 1"           },
        {"(a|^b)c|d(^e)",              "a group with ^ in it that something precedes, at byte 9"             },
        {"a$b",                        ENDS "at byte 1"                                                      },
        {"(a$|b)c",                    ENDS "at byte 2"                                                      },
        {"$^",                         "an anchor of the start that something precedes"                      },
        {"(^a)*",                      "a quantifier of a group with an anchor or look-ahead in it at byte 4"},
        {"(a|b$)?",                    "a quantifier of a group with an anchor or look-ahead in it"          },
        {"[^\\u{0}-\\u{10FFFF}]",      "no text at all"                                                      },
        {"a\xff",                      "byte 1 of the regular expression is not UTF-8"                       },
        {"\xed\xa0\x80",               "not UTF-8"                                                           },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_refused(read_whole, CASES[i].grammar, strlen(CASES[i].grammar), CASES[i].why);
    expect_refused(read_whole, "a\0b", 3, "byte 1 of the regular expression is a zero");
    /* where some alternatives only are anchored, another anchor would bind the others too */
    expect_refused(read_somewhere, "^(^a|b)", 7, "a group with ^ in it");
    expect_refused(read_somewhere, "(a$|b)$", 7, "an anchor of the end");
}

static void regex_of_hostile_size_is_answered_soon(void)
{
    static const char *const PIECES[] = {
        "(",
        "(?:",
        "a|",
        "|",
        "[",
        "[a",
        "\\",
        "a{",
        "a{1",
        ".",
        "\\w",
        "()",
        "(a)",
        "[^a]",
        "a*",
        "a{10000}",
        "{",
        "^",
        "$",
        "a?",
        "1",
        "\\s",
        "(a?){0,1000}",
        "(?=",
        "(?=(",
        "(?=a)",
        "a(?=a)",
        "(?=)a|",
        "(?=)|",
        "(?=)(?=)(?=)(?=)(?=)(?=)|",
        "(?!a*$)a*|",
        "(?=a{10000}a{10000}a{10000})[^\\s\\S]|",
        "(?=(?:a?){1000})[^\\s\\S]|",
        PERIODS,
    };

    for (size_t i = 0; i < sizeof(PIECES) / sizeof(PIECES[0]); i++) {
        expect_read_soon(read_whole, "", PIECES[i]);
        expect_read_soon(read_pattern, "", PIECES[i]);
        expect_read_soon(read_whole, "[", PIECES[i]);
        expect_read_soon(read_whole, "a{", PIECES[i]);
    }
}

static void regex_nests_to_a_depth_and_no_deeper(void)
{
    char text[2 * (BT_GRAMMAR_DEPTH_MAX + 1) + 2] = "";

    for (size_t depth = BT_GRAMMAR_DEPTH_MAX; depth <= BT_GRAMMAR_DEPTH_MAX + 1; depth++) {
        bt_parts    g = {0};
        char        why[BT_GRAMMAR_WHY_BYTES];
        bt_matcher *m;

        memset(text, '(', depth);
        text[depth] = 'a';
        memset(text + depth + 1, ')', depth);
        m = matcher_of(&g, read_whole(&g, text, 2 * depth + 1), NULL, why);
        EXPECT_EQ(m != NULL, depth == BT_GRAMMAR_DEPTH_MAX);
        if (m != NULL) EXPECT_VERDICT(m, "a", ACCEPTS);
        bt_matcher_destroy(m);
    }
}

static void regex_survives_every_failed_allocation(void)
{
    expect_survives_no_memory(read_whole, "a(b|[^c-e]\\D{2,4})*$");
    expect_survives_no_memory(read_pattern, "^a\"|[\\S\\n]+b");
    expect_survives_no_memory(read_pattern, "^(?=a.)(?!.b$)[ab]+");
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(regex_whole_takes_what_matches_it_all),
        BT_TEST(regex_pattern_matches_somewhere_unless_anchored),
        BT_TEST(regex_in_json_reads_escapes_as_characters),
        BT_TEST(regex_what_cannot_be_held_is_refused_by_name),
        BT_TEST(regex_of_hostile_size_is_answered_soon),
        BT_TEST(regex_nests_to_a_depth_and_no_deeper),
        BT_TEST(regex_survives_every_failed_allocation),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
