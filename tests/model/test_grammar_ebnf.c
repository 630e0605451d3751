/* Grammars in EBNF (GBNF, XGrammar's): which texts they give, and what is refused. */
#include "tests/model/grammar_texts.h"

static void ebnf_gives_what_its_rules_say(void)
{
    static const texts_case CASES[] = {
        {"root ::= \"abc\"",                                                            {"abc"},                         {"", "ab", "abcd"}        },
        {"root ::= \"\"",                                                               {""},                            {"a"}                     },
        {"root ::=",                                                                    {""},                            {"a"}                     },
        {"root::=\"a\"|\"b\" \"c\"|",                                                   {"a", "bc", ""},                 {"ac", "b"}               },
        {"root ::= ( | \"a\") \"b\"",                                                   {"b", "ab"},                     {"a"}                     },
        {"root ::= \"ab\"* \"c\"+ \"d\"?",                                              {"c", "ababccd"},                {"abbc", "ab", "cdd"}     },
        {"root ::= \"a\"{2} \"b\"{1,} \"c\"{ 0 , 2 }",                                  {"aab", "aabbcc"},               {"ab", "aaabccc"}         },
        {"root ::= [a-c] [^a-c\\]] [-x] [x-]",
         {"ad-x", "c\xc3\xa9x-", "b\nxx"},
         {"aa-x", "a]xx", "adax"}                                                                                                                  },
        {"root ::= [\\]\\\\\\-\\^\\n\\x41\\u0042[]+",                                   {"]\\-^\nAB["},                  {"a", "n", "x"}           },
        {"root ::= .",                                                                  {"a", "\n", "\xf0\x9f\x98\x80"}, {"", "ab", "\xff", "\xc3"}},
        {"root ::= .{2}",                                                               {"ab"},                          {"a", "abc"}              },
        {"root ::= ..\"a\".x.y\nx.y ::= \"b\"",                                         {"12a3b"},                       {"12ab"}                  },
        {"root ::= \"\\n\\r\\t\\\"\\\\\\'\\x41\\u00e9\\U0001F600\\0\"",                 {NULL},                          {"n"}                     },
        {"root ::= \"\\n\\r\\t\\\"\\\\\\'\\x41\\u00e9\\U0001F600\"",
         {"\n\r\t\"\\'A\xc3\xa9\xf0\x9f\x98\x80"},
         {"n"}                                                                                                                                     },
        {"root ::= \"\\xe9\" \"\xc3\xa9\"",                                             {"\xc3\xa9\xc3\xa9"},            {"\xe9\xc3\xa9"}          },
        {"root ::= \"# ::= (\" [#|] # a comment ::= \"\n# another",
         {"# ::= (#", "# ::= (|"},
         {"#"}                                                                                                                                     },
        {"# first\n\n  root ::= a-1 b_2\n\r\n\ta-1 ::= \"a\"\nb_2 ::= \"b\" |\n \"c\"",
         {"ab", "ac"},
         {"a"}                                                                                                                                     },
        {"root ::= (\"a\"\n | \"b\" # or\n)\n \"c\"\n| x *\nx ::= \"x\"",
         {"ac", "bc", "", "xx"},
         {"a"}                                                                                                                                     },
        {"root ::= item(\",\" item)*\nitem ::= [0-9]+",                                 {"1", "12,3"},                   {",", "1,"}               },
        {"x ::= \"(\" x \")\" | \"y\"\nroot ::= x",                                     {"y", "((y))"},                  {"((y)", "()"}            },
        {"root ::= \"a\" root | \"b\"",                                                 {"b", "aaab"},                   {"a", "ba"}               },
        {"root ::= word\nword ::= [a-z] tail\ntail ::= [a-z] tail | \"\"",              {"a", "abc"},                    {"", "A"}                 },
        {"a.b ::= \"x\"\nroot ::= a.b{2}",                                              {"xx"},                          {"x"}                     },
        {"root ::= (((\"a\"?)*)+){0,3}",                                                {"", "aaaa"},                    {"b"}                     },
        {"root\n  ::=\n \"a\"\n\n 2b\n2b\n::= \"c\"",                                   {"ac"},                          {"a"}                     },
        {"root ::= TagDispatch-x\nTagDispatch-x ::= \"t\"",                             {"t"},                           {""}                      },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_ebnf, &CASES[i]);
}

/* The grammar of JSON that llama.cpp's users begin with, in our words. */
static void ebnf_of_json_gives_json(void)
{
    static const texts_case JSON = {
        "root   ::= object\n"
        "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\n"
        "object ::=\n"
        "  \"{\" ws (\n"
        "            string \":\" ws value\n"
        "    (\",\" ws string \":\" ws value)*\n"
        "  )? \"}\" ws\n\n"
        "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
        "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" "
        "[0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
        "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ws\n"
        "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n",
        {"{}",              "{\"a\": [1, -2.5, {\"b\":\"\\u00e9\\n\"}], \"c\":null}", "{\"x\":\n \"\xc3\xa9\"}"},
        { "", "[]", "{\"a\" 1}",                                                     "{\"a\":\"\n\"}", "{\"a\":01}", "{\"a\":\"\\x\"}"}
    };

    expect_texts(bt_read_ebnf, &JSON);
}

static void ebnf_that_cannot_be_held_is_refused_where_it_stands(void)
{
    static const refused_case CASES[] = {
        {"",                                                 "no rule root"                                                       },
        {"a ::= \"b\"",                                      "no rule root"                                                       },
        {"# root ::= \"b\"",                                 "no rule root"                                                       },
        {"root ::= a\n b c\nb ::= \"\"",                     "line 1, column 10 of the grammar: there is no rule a"               },
        {"root ::= a\n b c\nb ::= \"\"\na ::= b",
         "line 2, column 4 of the grammar: there is no rule c"                                                                    },
        {"root ::= \"a\"\nb ::= \"\"\n root ::= b",
         "line 3, column 2 of the grammar: the rule root is there already"                                                        },
        {"root ::= root \"a\" | \"b\"",                      "root begins with itself"                                            },
        {"root ::= x\nx ::= \"\"? y\ny ::= x \"a\" | \"b\"", "begins with itself"                                                 },
        {"root ::= \"a\" root",                              "no text at all"                                                     },
        {"root ::= \"a\" b ::= \"c\"",
         "line 1, column 14 of the grammar: a rule begins on a line of its own"                                                   },
        {"root ::= (\"a\"\nb ::= \"c\")",                    "line 1, column 10 of the grammar: the group has no )"               },
        {"root ::= \"a\")",                                  "line 1, column 13 of the grammar: this ) closes no group"           },
        {"root ::= (\"\xc3\xa9\" | \"b",
         "line 1, column 17 of the grammar: the literal has no closing"                                                           },
        {"root ::= \"a\n\"",                                 "column 12 of the grammar: the line ends within a literal"           },
        {"root ::= [a\n]",                                   "column 12 of the grammar: the line ends within a class"             },
        {"root ::= [a",                                      "column 10 of the grammar: the class has no ]"                       },
        {"root ::= [a-",                                     "column 10 of the grammar: the class has no ]"                       },
        {"root ::= []",                                      "column 10 of the grammar: an empty class"                           },
        {"root ::= [^]",                                     "an empty class"                                                     },
        {"root ::= [b-a]",                                   "column 11 of the grammar: a range of a class ends before"           },
        {"root ::= \"\\q\"",                                 "column 11 of the grammar: an escape that is not known"              },
        {"root ::= \"\\",                                    "an escape that is not known"                                        },
        {"root ::= [\\d]",                                   "an escape that is not known"                                        },
        {"root ::= \"\\x4\"",                                "\\x is not followed by 2"                                           },
        {"root ::= \"\\ud800\"",                             "\\u and a number that is no character's"                            },
        {"root ::= \"\\U00110000\"",                         "\\U and a number that is no character's"                            },
        {"root ::= *",                                       "column 10 of the grammar: '*' repeats nothing"                      },
        {"root ::= | {2}",                                   "'{' repeats nothing"                                                },
        {"root ::= \"a\"*+",                                 "column 14 of the grammar: a repetition of a repetition"             },
        {"root ::= \"a\"{,2}",                               "column 13 of the grammar: a repetition is {m}"                      },
        {"root ::= \"a\"{2",                                 "a repetition is {m}"                                                },
        {"root ::= \"a\"{3,2}",                              "more at least than at most"                                         },
        {"root ::= \"a\"{10001}",
         "column 13 of the grammar: a repetition of more than 10000 times"                                                        },
        {"root ::= \"a\" (=\"b\")",                          "column 14 of the grammar: look-ahead (= is not supported"           },
        {"root ::= TagDispatch((\"a\", b))\nb ::= \"\"",
         "column 10 of the grammar: TagDispatch is not supported"                                                                 },
        {"root ::= TokenTagDispatch((1, b))",                "TokenTagDispatch is not supported"                                  },
        {"root ::= <think>",                                 "'<': tokens in a grammar"                                           },
        {"root ::= !<[12]>",                                 "'!': tokens in a grammar"                                           },
        {"root ::= 'a'",                                     "column 10 of the grammar: ''' is not expected in an expression"     },
        {"root ::= \xc3\xa9",                                "column 10 of the grammar: U+00E9 is not expected"                   },
        {"root = \"a\"",                                     "column 6 of the grammar: '=' is not expected where ::= should stand"},
        {"root := \"a\"",                                    "':' is not expected where ::= should stand"                         },
        {"root",                                             "the grammar ends where ::= should stand"                            },
        {"\"a\"",
         "line 1, column 1 of the grammar: '\"' is not expected where a rule should begin"                                        },
        {"start: \"a\"",
         "line 1, column 1 of the grammar: this looks like Lark; a grammar in EBNF"                                               },
        {"?start : x\nx: \"a\"",                             "this looks like Lark"                                               },
        {"%import common.NUMBER",                            "this looks like Lark"                                               },
        {"// a\nstart: \"a\"",                               "this looks like Lark"                                               },
        {"root ::= \"\xff\"",                                "byte 10 of the grammar is not UTF-8"                                },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_refused(bt_read_ebnf, CASES[i].grammar, strlen(CASES[i].grammar), CASES[i].why);
    expect_refused(bt_read_ebnf, "root ::= \"\0\"", 12, "byte 10 of the grammar is a zero");
}

static void ebnf_names_have_a_length(void)
{
    char text[700];

    for (int n = 256; n <= 257; n++) {
        bt_parts    g                         = {0};
        char        why[BT_GRAMMAR_WHY_BYTES] = "";
        bt_matcher *m;

        snprintf(text, sizeof(text), "root ::= %0*d\n%0*d ::= \"a\"", n, 0, n, 0);
        m = matcher_of(&g, bt_read_ebnf(&g, text, strlen(text)), NULL, why);
        EXPECT_EQ(m != NULL, n == 256);
        if (m == NULL) EXPECT_HAS(why, "column 10 of the grammar: a name of more than 256 bytes");
        bt_matcher_destroy(m);
    }
}

static void ebnf_of_hostile_size_is_answered_soon(void)
{
    static const char *const PIECES[] = {
        "(",     "\"",      "[",         "a|",         "|",     "a ",        "a",
        "aa ",   "a.",      ".",         "\"\"",       "\"a\"", "#",         "\n",
        " ",     "\n# x\n", "\\",        "a#\n",       "[^a]",  "a{10000} ", "\"a\"{10000}",
        "{",     "(a)",     "root ::= ", "\na ::= a ", "\n \t", "::=",       "root ",
        "[a-b]", "\"a\"*",
    };

    for (size_t i = 0; i < sizeof(PIECES) / sizeof(PIECES[0]); i++) {
        expect_read_soon(bt_read_ebnf, "", PIECES[i]);
        expect_read_soon(bt_read_ebnf, "a ::= \"\"\nroot ::= ", PIECES[i]);
        expect_read_soon(bt_read_ebnf, "root ::= [", PIECES[i]);
        expect_read_soon(bt_read_ebnf, "root ::= \"", PIECES[i]);
    }
}

/* As many rules as the text has room for, all different, each used and said. */
static void ebnf_of_many_rules_is_read_soon(void)
{
    char       *text = bt_calloc(BT_CONSTRAINT_BYTES_MAX + 64, 1), why[BT_GRAMMAR_WHY_BYTES];
    size_t      n    = 0, i;
    clock_t     from = clock();
    bt_parts    g    = {0};
    bt_matcher *m;

    NEED(text != NULL);
    n += (size_t)sprintf(text, "root ::= r0\n");
    for (i = 0; n < BT_CONSTRAINT_BYTES_MAX - 64; i++)
        n += (size_t)sprintf(text + n, "r%zu ::= \"a\" r%zu\n", i, i + 1);
    n += (size_t)sprintf(text + n, "r%zu ::= \"b\"\n", i);
    m = matcher_of(&g, bt_read_ebnf(&g, text, n), NULL, why);
    EXPECT(m != NULL && i > 10000);
    if (m != NULL) EXPECT_VERDICT(m, "aaa", GOES_ON);
    bt_matcher_destroy(m);
    EXPECT((double)(clock() - from) / CLOCKS_PER_SEC < 3);
    bt_free(text);
}

static void ebnf_nests_to_a_depth_and_no_deeper(void)
{
    char text[2 * (BT_GRAMMAR_DEPTH_MAX + 1) + 16] = "root ::= ";

    for (size_t depth = BT_GRAMMAR_DEPTH_MAX; depth <= BT_GRAMMAR_DEPTH_MAX + 1; depth++) {
        bt_parts    g = {0};
        char        why[BT_GRAMMAR_WHY_BYTES];
        bt_matcher *m;

        memset(text + 9, '(', depth);
        text[9 + depth] = '.';
        memset(text + 10 + depth, ')', depth);
        m = matcher_of(&g, bt_read_ebnf(&g, text, 2 * depth + 10), NULL, why);
        EXPECT_EQ(m != NULL, depth == BT_GRAMMAR_DEPTH_MAX);
        if (m != NULL) EXPECT_VERDICT(m, "a", ACCEPTS);
        bt_matcher_destroy(m);
    }
}

static void ebnf_survives_every_failed_allocation(void)
{
    expect_survives_no_memory(bt_read_ebnf,
                              "root ::= a{2,3} | [^b-c\\n]* b\na ::= \"\\x41z\"?\nb ::= .\n");
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(ebnf_gives_what_its_rules_say),
        BT_TEST(ebnf_of_json_gives_json),
        BT_TEST(ebnf_that_cannot_be_held_is_refused_where_it_stands),
        BT_TEST(ebnf_names_have_a_length),
        BT_TEST(ebnf_of_hostile_size_is_answered_soon),
        BT_TEST(ebnf_of_many_rules_is_read_soon),
        BT_TEST(ebnf_nests_to_a_depth_and_no_deeper),
        BT_TEST(ebnf_survives_every_failed_allocation),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
