/* Structural tags: free text, and what stands within tags.  Schemas are read elsewhere: here one is
 * its own text, as it is handed on. */
#include "model/grammar/free_text.h"
#include "tests/model/grammar_texts.h"

#define FORMAT(format) "{\"type\": \"structural_tag\", \"format\": " format "}"
#define ANY            "{\"type\": \"any_text\"}"
#define CONST(text)    "{\"type\": \"const_string\", \"value\": \"" text "\"}"
#define TAG(begin, content, end) \
    "{\"begin\": \"" begin "\", \"content\": " content ", \"end\": \"" end "\"}"
#define TRIGGERED(triggers, tags, more) \
    "{\"type\": \"triggered_tags\", \"triggers\": [" triggers "], \"tags\": [" tags "]" more "}"
#define SEPARATED(more)                                                           \
    "{\"type\": \"tags_with_separator\", \"separator\": \", \", \"tags\": [" TAG( \
        "<a>", CONST("1"), "</a>") ", " TAG("<b>", CONST("2"), "</b>") "]" more "}"
#define TAG_THINK                                                                 \
    "{\"type\": \"tag\", \"begin\": \"<think>\", \"content\": " ANY ", \"end\": " \
    "\"</think>\"}"
#define AT_LEAST ", \"at_least_one\": true"
#define STOP     ", \"stop_after_first\": true"

static void tag_older_form_calls_tools_in_free_text(void)
{
    static const texts_case CASE = {
        "{\"structures\": [{\"begin\": \"<f=a>\", \"schema\": {\"const\": {\"x\": 1}}, \"end\": "
        "\"</f>\"},"
        "{\"begin\": \"<f=b>\", \"schema\": {\"const\": true}, \"end\": \"\"}], \"triggers\": "
        "[\"<f=\"]}",
        {"",             "hello \xc3\xa9 < <f", "<f=a>{\"x\":1}</f>", "x <f=b>true y<<f=a>{\"x\":1}</f>\n"},
        { "<f=", "<f=a>", "<f=c>", "<f=a>{\"x\":1}</f",                                                                            "<f=a>{}</f>", "x<f=b>truf",
          "<f=b>true<f=", "\xff"}
    };

    expect_texts(bt_read_structural_tag, &CASE);
}

static void tag_content_comes_as_often_as_it_says(void)
{
#define SEVERAL(type, more) FORMAT("{\"type\": \"" type "\"" more ", \"content\": " CONST("a") "}")
    static const texts_case CASES[] = {
        {SEVERAL("optional", ""),                          {"", "a"},        {"aa"}     },
        {SEVERAL("plus",     ""),                          {"a", "aaa"},     {"", "ab"} },
        {SEVERAL("star",     ", \"what\": null"),          {"", "a", "aaa"}, {"b"}      },
        {SEVERAL("repeat",   ", \"min\": 1, \"max\": 2"),  {"a", "aa"},      {"", "aaa"}},
        {SEVERAL("repeat",   ", \"min\": 2, \"max\": -1"), {"aa", "aaaa"},   {"", "a"}  },
    };
    static const refused_case REFUSED[] = {
        {SEVERAL("repeat",                       ", \"min\": 2, \"max\": 1"),
         "at /format of the structural tag: min and max should"},
        {SEVERAL("repeat",                                      ", \"min\": 1"),                                                  "min and max should be whole numbers"},
        {FORMAT("{\"type\": \"star\"}"),
         "at /format/content of the structural tag: a format should be"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_structural_tag, &CASES[i]);
    for (size_t i = 0; i < sizeof(REFUSED) / sizeof(REFUSED[0]); i++)
        expect_refused(bt_read_structural_tag, REFUSED[i].grammar, strlen(REFUSED[i].grammar),
                       REFUSED[i].why);
}

static void tag_formats_give_what_they_say(void)
{
    static const texts_case CASES[] = {
        {FORMAT(CONST("a\\n\xc3\xa9")),                                                                       {"a\n\xc3\xa9"},                    {"", "a"}                 },
        {FORMAT("{\"type\": \"json_schema\", \"json_schema\": {\"const\": {\"k\": [1]}}}"),
         {"{\"k\":[1]}"},
         {""}                                                                                                                                                               },
        {FORMAT("{\"type\": \"json_schema\", \"style\": \"json\", \"json_schema\": {\"const\": "
                "false}}"),
         {"false"},
         {""}                                                                                                                                                               },
        {FORMAT("{\"type\": \"json_schema\", \"style\": \"json\", \"any_order\": false, "
                "\"max_whitespace_cnt\": null, \"excludes\": [], \"json_schema\": {\"const\": 1}}"),
         {"1"},
         {""}                                                                                                                                                               },
        {FORMAT("{\"type\": \"grammar\", \"syntax\": \"ebnf\", \"grammar\": \"root ::= "
                "\\\"x\\\"\"}"),
         {"x"},
         {""}                                                                                                                                                               },
        {FORMAT("{\"type\": \"regex\", \"pattern\": \"a+|b$\"}"),                                             {"aa", "b"},                        {"", "ab"}                },
        {FORMAT("{\"type\": \"grammar\", \"grammar\": \"root ::= \\\"(\\\" root \\\")\\\" | "
                "\\\"x\\\"\"}"),
         {"((x))"},
         {"((x)"}                                                                                                                                                           },
        {FORMAT(ANY),                                                                                         {"", "a<\n", "\xf0\x9f\x98\x80"},   {"\xff"}                  },
        {FORMAT("{\"type\": \"any_text\", \"excludes\": [\"ab\", \"\xc3\xa9\"]}"),
         {"", "a", "ba", "aca\xc3\xa8"},
         {"ab", "xaab", "\xc3\xa9", "a\xc3\xa9"}                                                                                                                            },
        {FORMAT("{\"type\": \"sequence\", \"elements\": [" CONST("a") ", " CONST("b") "]}"),
         {"ab"},
         {"a", "b", "ba"}                                                                                                                                                   },
        {FORMAT("{\"type\": \"or\", \"elements\": [" CONST("a") ", " CONST("b") "]}"),
         {"a", "b"},
         {"ab", ""}                                                                                                                                                         },
        {FORMAT("{\"type\": \"tag\", \"begin\": \"<t>\", \"content\": " ANY ", \"end\": \"</t>\"}"),
         {"<t></t>", "<t>a</</t</t>", "<t><t></t>"},
         {"<t></t></t>", "<t></t>x", "<t>", "</t>"}                                                                                                                         },
        {FORMAT("{\"type\": \"tag\", \"begin\": \"\", \"content\": " ANY
                ", \"end\": [\"!\", \"##\"]}"),
         {"!", "a#b!", "a##"},
         {"a", "!!", "##!", "a!b!"}                                                                                                                                         },
        {FORMAT(SEPARATED("")),
         {"", "<a>1</a>", "<b>2</b>, <a>1</a>, <a>1</a>"},
         {"<a>1</a><b>2</b>", "<a>2</a>", "<a>1</a>, ", "x<a>1</a>"}                                                                                                        },
        {FORMAT(SEPARATED(AT_LEAST)),                                                                         {"<a>1</a>", "<b>2</b>, <a>1</a>"}, {""}                      },
        {FORMAT(SEPARATED(STOP)),                                                                             {"", "<a>1</a>"},                   {"<b>2</b>, <a>1</a>"}    },
        {FORMAT(SEPARATED(STOP AT_LEAST)),                                                                    {"<b>2</b>"},                       {"", "<b>2</b>, <a>1</a>"}},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_structural_tag, &CASES[i]);
}

#define ONE TAG("<a>", CONST("1"), "</a>")

static void tag_triggers_bind_what_follows(void)
{
    static const texts_case CASES[] = {
        {FORMAT(TRIGGERED("\"<a\"",          ONE,             "")),
         {"", "x<<", "<a>1</a>", "x<a>1</a>y<a>1</a>"},
         {"<a", "x<a>2</a>", "x<a>1</a><a", "<ab"}                                                                                                                                        },
        {FORMAT(TRIGGERED("\"<a\"",          ONE,             AT_LEAST)),
         {"<a>1</a>", "<a>1</a>x<a>1</a>"},
         {"", "x", "x<a>1</a>", "<a>1</a><a"}                                                                                                                                             },
        {FORMAT(TRIGGERED("\"<a\"",          ONE,             STOP)),
         {"", "x", "x<a>1</a>"},
         {"<a>1</a>x", "<a>1</a><a>1</a>", "<a"}                                                                                                                                          },
        {FORMAT(TRIGGERED("\"<a\"",          ONE,             STOP AT_LEAST)),            {"<a>1</a>"},              {"", "x", "<a>1</a>x"}                                               },
 /* a trigger that is complete first binds, also where another began before it */
        {FORMAT(TRIGGERED("\"abc\", \"bx\"",
         TAG("abcd",                                          CONST("1"),                 ".") ", " TAG("bxy",       CONST("2"),                                                            "."), "")),
         {"ab", "abcd1.", "abxy2.", "aabxy2.ab", "bbabcd1."},
         {"abx", "abxz", "abc", "aabcx"}},
        {FORMAT(TRIGGERED("\"abcd\", \"bc\"",
         TAG("abcd", CONST("1"),                                                 ".") ", " TAG("bc!",                                                                          CONST("2"),                                                                                                             "."), "")),
         {"abc!2.", "bc!2.ab"},
         {"abcd1.", "abc", "bcd1."}},
        {FORMAT(TRIGGERED("\"a\", \"xa\"",                        TAG("a1",                    CONST(""),"") ", " TAG("xa2",CONST(""),""),
         "")),
         {"a1", "xa2", "xxa2a1", "ya1"},
         {"xa1", "a2", "xa", "a"}},
        {FORMAT(TRIGGERED("\"<\", \"<b\"",         TAG("<b>",                        ANY,                   "</b>"),             "")),
         {"<b></b>", "x<b>< <b></b>"},
         {"<", "<b", "<c>"}},
        {FORMAT(TRIGGERED("\"<t>\"",
         TAG("<t>",                                     TRIGGERED("\"<i\"",                                                                            TAG("<i>",                                                                             ANY,                                                                                                                                                          "</i>"), ""), "</t>"),
         ", \"excludes\": [\"no\"]")),
         {"<t></t>", "n<t>no<i></t></i> </</t>y", "</t>n"},
         {"<t><i></t>", "no", "<t></t>no", "<t></t><t>", "<t><i"}},
        {FORMAT("{\"type\": \"sequence\", \"elements\": [" TAG_THINK
                ", " TRIGGERED("\"<a\"",   ONE, "") "]}"),
         {"<think>so <a</think>", "<think></think>x<a>1</a>"},
         {"", "x", "<think></think><a"}                                                     },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_structural_tag, &CASES[i]);
}

static void tag_that_cannot_be_held_is_refused_where_it_stands(void)
{
    /* clang-format off */
    static const refused_case CASES[] = {
        {"", "at / of the structural tag: no JSON object"},
        {"{\"a\": 1, \"a\": 2}", "no JSON object: duplicate"},
        {"[]", "at /format of the structural tag: a format should be an object with a type"},
        {"{\"type\": \"x\"}", "at / of the structural tag: its type should be structural_tag"},
        {FORMAT("{\"type\": \"json_schema\", \"json_schema\": {}, \"excludes\": [\"a\"]}"), "the field excludes is not supported"},
        {FORMAT("{\"type\": \"grammar\", \"grammar\": \"root ::= []\", \"syntax\": \"lark\"}"), "the only syntax of a grammar"},
        {FORMAT("{\"type\": \"grammar\", \"grammar\": \"root ::= []\", \"syntax\": 1}"), "the only syntax of a grammar"},
        {"{\"format\": " ANY ", \"what\": 1}", "the field what is not supported"},
        {"{\"format\": " ANY ", \"\xc3\xa9\": 1}", "the field ?? is not supported"},
        {FORMAT("{\"type\": \"qwen_xml_parameter\"}"),
         "at /format of the structural tag: the format qwen_xml_parameter is not supported"},
        {FORMAT("{\"type\": \"const_string\"}"), "at /format of the structural tag: value should be"},
        {FORMAT("{\"type\": \"or\", \"elements\": []}"), "elements should be a list, and not empty"},
        {FORMAT("{\"type\": \"or\", \"elements\": [" ANY ", 1]}"),
         "at /format/elements/1 of the structural tag: a format should be an object"},
        {FORMAT("{\"type\": \"regex\", \"pattern\": \"a(?<=b)\"}"),
         "at /format of the structural tag: the look-behind (?<= at byte 1"},
        {FORMAT("{\"type\": \"grammar\", \"grammar\": \"a ::= 1\"}"), "there is no rule 1"},
        {FORMAT("{\"type\": \"json_schema\"}"), "a schema is missing"},
        {FORMAT("{\"type\": \"json_schema\", \"json_schema\": {\"contains\": {}}}"),
         "at /format of the structural tag: at #"},
        {FORMAT("{\"type\": \"json_schema\", \"json_schema\": {}, \"style\": \"qwen_xml\"}"),
         "the style qwen_xml is not"},
        {FORMAT("{\"type\": \"any_text\", \"excludes\": [\"\"]}"), "should be texts, and not empty"},
        {FORMAT("{\"type\": \"any_text\", \"excludes\": [1]}"), "should be texts, and not empty"},
        {FORMAT("{\"type\": \"tag\", \"begin\": \"a\", \"content\": " ANY "}"),
         "end should be a text, or a list of them"},
        {FORMAT("{\"type\": \"tag\", \"begin\": \"a\", \"content\": " CONST("") ", \"end\": [\"\"]}"),
         "end should be of texts that are not empty"},
        {FORMAT("{\"type\": \"tag\", \"content\": " ANY ", \"end\": \"\"}"), "begin should be a text"},
        {FORMAT(TRIGGERED("\"<a\"", TAG("<b>", ANY, ""), "")), "the tag <b> begins with no trigger"},
        {FORMAT(TRIGGERED("\"<a\"", TAG("<a>", ANY, ""), ", \"at_least_one\": 1")),
         "at_least_one should be true or false"},
        {FORMAT(TRIGGERED("", TAG("<a>", ANY, ""), "")), "triggers should be a list, and not empty"},
        {FORMAT(TRIGGERED("\"<a\"", "1", "")), "at /format/tags/0 of the structural tag: a tag"},
        {"{\"structures\": [1], \"triggers\": [\"<a\"]}",
         "at /structures/0 of the structural tag: a tag should be an object"},
        {"{\"structures\": [], \"triggers\": [\"<a\"]}",
         "at / of the structural tag: structures should be a list"},
        {FORMAT(TRIGGERED("\"<a\"", TAG("<a>", "1", ""), "")),
         "at /format/tags/0/content of the structural tag: a format should be"},
        {FORMAT("{\"type\": \"tags_with_separator\", \"tags\": [" TAG("", ANY, "") "]}"),
         "separator should be a text"},
    };
    /* clang-format on */

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_refused(bt_read_structural_tag, CASES[i].grammar, strlen(CASES[i].grammar),
                       CASES[i].why);
}

/* Whether the text has one of the stops in it. */
static bool has_stop(const char *text, const bt_stop *stops, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (strstr(text, stops[i].text) != NULL) return true;
    return false;
}

static void free_text_has_no_stop_in_it(void)
{
    static const char *const SETS[][3] = {
        {"aa",   "ab",  "bba" },
        {"abab", "ba",  "c"   },
        {"aab",  "aba", "bb"  },
        {"abc",  "bc",  "cab" },
        {"c",    "cc",  "aaaa"},
    };
    char text[7];

    for (size_t i = 0; i < sizeof(SETS) / sizeof(SETS[0]); i++) {
        const bt_stop stops[] = {{.text = SETS[i][0]}, {.text = SETS[i][1]}, {.text = SETS[i][2]}};
        bt_parts      g       = {0};
        char          why[BT_GRAMMAR_WHY_BYTES];
        bt_matcher   *m = matcher_of(&g, bt_part_free_text(&g, stops, 3, false), NULL, why);

        for (uint32_t k = 0; k < 4096; k++) { /* six of four letters, the fourth the end */
            for (int at = 0; at < 6; at++)
                text[at] = "abc"[(k >> 2 * at & 3) % 3] * ((k >> 2 * at & 3) != 3);
            text[6] = '\0';
            EXPECT_VERDICT(m, text, has_stop(text, stops, 3) ? REFUSES : ACCEPTS);
        }
        bt_matcher_destroy(m);
    }
}

static void tag_nests_to_a_depth_and_no_deeper(void)
{
    static const char OPEN[] = "{\"type\": \"or\", \"elements\": [";
    char              text[64 * (BT_GRAMMAR_DEPTH_MAX + 2)];

    for (int depth = BT_GRAMMAR_DEPTH_MAX; depth <= BT_GRAMMAR_DEPTH_MAX + 1; depth++) {
        bt_parts    g                         = {0};
        char        why[BT_GRAMMAR_WHY_BYTES] = "formats in each other";
        size_t      n                         = (size_t)sprintf(text, "{\"format\": ");
        bt_matcher *m;

        for (int i = 1; i < depth; i++)
            n += (size_t)sprintf(text + n, "%s", OPEN);
        n += (size_t)sprintf(text + n, "%s", CONST("a"));
        for (int i = 1; i < depth; i++)
            n += (size_t)sprintf(text + n, "]}");
        n += (size_t)sprintf(text + n, "}");
        m = matcher_of(&g, bt_read_structural_tag(&g, text, n), NULL, why);
        EXPECT_EQ(m != NULL, depth == BT_GRAMMAR_DEPTH_MAX);
        EXPECT_HAS(why, "formats in each other");
        if (m != NULL) EXPECT_VERDICT(m, "a", ACCEPTS);
        bt_matcher_destroy(m);
    }
}

static void tag_of_hostile_size_is_answered_soon(void)
{
    static const char *const PIECES[] = {
        "[",
        "{\"format\":",
        "\"a\",",
        ANY ",",
        "{\"type\": \"or\", \"elements\": [",
        TAG("a", ANY, "b") ",",
        TAG("a", CONST("b"), "c") ",",
    };
    static const char *const HEADS[] = {
        "",
        "{\"format\": ",
        "{\"format\": {\"type\": \"or\", \"elements\": [",
        "{\"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"a\"], \"tags\": [",
        "{\"format\": {\"type\": \"any_text\", \"excludes\": [",
    };

    for (size_t i = 0; i < sizeof(PIECES) / sizeof(PIECES[0]); i++)
        for (size_t k = 0; k < sizeof(HEADS) / sizeof(HEADS[0]); k++)
            expect_read_soon(bt_read_structural_tag, HEADS[k], PIECES[i]);
}

/* Different stops: as many of one character as come, or one as long as comes. */
static void free_text_of_hostile_stops_is_answered_soon(void)
{
    static const char HEAD[] = "{\"format\": {\"type\": \"any_text\", \"excludes\": [";
    char             *text   = bt_calloc(1 << 16, 1);

    NEED(text != NULL);
    for (int kind = 0; kind < 3; kind++) {
        const clock_t from                      = clock();
        bt_parts      g                         = {0};
        bt_grammar   *packed                    = NULL;
        char          why[BT_GRAMMAR_WHY_BYTES] = "";
        size_t        n                         = (size_t)sprintf(text, "%s", HEAD);

        for (int i = 0; i < (kind == 0 ? 1000 : kind == 1 ? 1 : 60); i++)
            n += (size_t)sprintf(text + n, "%s\"%c%c%c%0*d\"", i == 0 ? "" : ",",
                                 0xE0 + 1 + i / 1000, 0x80 + i / 64 % 64, 0x80 + i % 64,
                                 kind == 0   ? 1
                                 : kind == 1 ? 3000
                                             : 60,
                                 0);
        n += (size_t)sprintf(text + n, "]}}");
        EXPECT(bt_grammar_pack(&g, bt_read_structural_tag(&g, text, n), &packed, why) !=
               BT_ERR_NO_MEMORY);
        EXPECT((double)(clock() - from) / CLOCKS_PER_SEC < 3);
        bt_grammar_destroy(packed);
        bt_parts_fini(&g);
    }
    bt_free(text);
}

static void tag_survives_every_failed_allocation(void)
{
    expect_survives_no_memory(
        bt_read_structural_tag,
        FORMAT(TRIGGERED("\"<a\"", TAG("<a>", "{\"type\": \"regex\", \"pattern\": \"a*\"}", "</a>"),
                         AT_LEAST)));
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(tag_older_form_calls_tools_in_free_text),
        BT_TEST(tag_formats_give_what_they_say),
        BT_TEST(tag_content_comes_as_often_as_it_says),
        BT_TEST(tag_triggers_bind_what_follows),
        BT_TEST(tag_that_cannot_be_held_is_refused_where_it_stands),
        BT_TEST(free_text_has_no_stop_in_it),
        BT_TEST(tag_nests_to_a_depth_and_no_deeper),
        BT_TEST(tag_of_hostile_size_is_answered_soon),
        BT_TEST(free_text_of_hostile_stops_is_answered_soon),
        BT_TEST(tag_survives_every_failed_allocation),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
