/* Arguments of tools in the styles of DeepSeek and GLM. */
#include "tests/model/grammar_texts.h"

#define STYLED(style, schema)                                                                   \
    "{\"format\": {\"type\": \"json_schema\", \"style\": \"" style "\", \"any_order\": false, " \
    "\"max_whitespace_cnt\": null, \"json_schema\": " schema "}}"
#define DEEPSEEK(schema)         STYLED("deepseek_xml", schema)
#define GLM(schema)              STYLED("glm_xml", schema)
#define OBJECT(properties, more) "{\"type\": \"object\", \"properties\": {" properties "}" more "}"
#define ALL(names)               ", \"required\": [" names "]"

#define BAR "\xef\xbd\x9c"
#define TEXT(name, value) \
    "<" BAR "DSML" BAR "parameter name=\"" name "\" string=\"true\">" value DS_END
#define JSON(name, value) \
    "<" BAR "DSML" BAR "parameter name=\"" name "\" string=\"false\">" value DS_END
#define DS_END           "</" BAR "DSML" BAR "parameter>"
#define ARG(name, value) "<arg_key>" name "</arg_key><arg_value>" value "</arg_value>"

static void style_of_deepseek_says_what_is_text(void)
{
    static const texts_case CASES[] = {
        {DEEPSEEK(OBJECT("\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}",
         ALL("\"city\", \"days\""))),
         {TEXT("city", "Bern \"<b>\"\n") "\n" JSON("days", "3"),
          TEXT("city", "") JSON("days", "-1")},
         {"", TEXT("city", "Bern"), JSON("days", "3"), TEXT("city", "Bern") TEXT("days", "3"),
          JSON("city", "\"Bern\"") JSON("days", "3"), JSON("days", "3") TEXT("city", "Bern"),
          TEXT("city", "a" DS_END "b") JSON("days", "3"), TEXT("city", "Bern") JSON("days", "x")}},
        {DEEPSEEK(OBJECT("\"a\": {\"type\": [\"string\", \"null\"]}",                                                                                          "")),
         {"", TEXT("a", "null"), JSON("a", "null")},
         {JSON("a", "\"x\""), TEXT("a", "x") TEXT("a", "y")}},
        {DEEPSEEK(OBJECT("\"a\": {\"enum\": [\"x y\", 2, true]}",                                        ALL("\"a\""))),
         {TEXT("a", "x y"), JSON("a", "2"), JSON("a", "true")},
         {"", TEXT("a", "2"), JSON("a", "\"x y\""), TEXT("a", "x")}},
        {DEEPSEEK(OBJECT("\"a\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}}",                                      "")),
         {JSON("a", "[\"x\", \"y\"]"), JSON("a", "[]")},
         {TEXT("a", "[\"x\"]"), JSON("a", "[x]")}},
        {DEEPSEEK(OBJECT(
             "\"a\": {\"enum\": [[\"x\"], [1], \"y\"], \"items\": {\"type\": \"string\"}}",                                                 "")),
         {"", JSON("a", "[\"x\"]"), TEXT("a", "y")},
         {JSON("a", "[1]"), TEXT("a", "[\"x\"]"), JSON("a", "\"y\"")}},
        {DEEPSEEK(OBJECT("\"a\": {\"type\": [\"number\", \"null\"], \"not\": {\"enum\": [1, 2.5]}}",
         "")),
         {"", JSON("a", "1.5"), JSON("a", "null")},
         {JSON("a", "1"), JSON("a", "2.50"), TEXT("a", "3")}},
        {DEEPSEEK("true"),
         {"", TEXT("a", "x") " " JSON("b_2", "{\"k\": [1]}")},
         {"{}", TEXT("2a", "x"), TEXT("", "x")}                                                                                                                                                        },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_structural_tag, &CASES[i]);
}

static void style_of_glm_tells_keys_and_values_apart(void)
{
    static const texts_case CASES[] = {
        {GLM(OBJECT("\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"number\"}",
         ALL("\"city\""))),
         {ARG("city", "Bern</arg_key> <"), ARG("city", "x") "\n" ARG("days", "1.5"),
          "\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n"},
         {"", ARG("days", "1"), ARG("city", "x") ARG("days", "two"), "{\"city\":\"x\"}",
          ARG("city", "x") ",", "<arg_key>city</arg_key>x</arg_value>"}                   },
        {GLM("{\"$ref\": \"#/$defs/o\", \"$defs\": {\"o\": " OBJECT(
             "\"a\": {\"$ref\": \"#/$defs/s\"}, \"b\": {\"$ref\": \"#/$defs/t\"}", "") ", \"s\": {\"type\": "
                 "\"string\"}, \"t\": {\"type\": \"array\", \"items\": {\"$ref\": "
                 "\"#/$defs/s\"}}}}"),
         {"", ARG("a", "x"), ARG("b", "[\"x\"]")},
         {ARG("b", "[x]"), ARG("b", "x")}                                                 },
        {GLM(OBJECT("\"a\": {\"anyOf\": [{\"type\": \"string\", \"maxLength\": 2}, {\"type\": "
                    "\"boolean\"}]}",                                              "")),
         {"", ARG("a", "xy"), ARG("a", "true")},
         {ARG("a", "xyz"), ARG("a", "<"), ARG("a", "truer")}                              },
        {GLM(OBJECT("\"a\": {\"type\": \"string\", \"pattern\": \"^[a-c<]+$\"}, \"d\": {\"type\": "
                    "\"string\", "
                    "\"format\": \"date\"}",                                       "")),
         {ARG("a", "a<bc"), ARG("d", "2026-11-28")},
         {ARG("a", "x"), ARG("a", ""), ARG("d", "28.11.2026"), ARG("d", "\"2026-11-28\"")}},
        {GLM(OBJECT("\"a\": {\"type\": \"string\", \"pattern\": \"b\"}",                    "")),
         {ARG("a", "abc"), ARG("a", "b</arg")},
         {ARG("a", "ac"), ARG("a", "b</arg_value>")}                                      },
        {GLM(OBJECT("\"a\": {\"type\": \"integer\", \"not\": {\"const\": 1}}",              "")),
         {"", ARG("a", "0"), ARG("a", "11")},
         {ARG("a", "1"), ARG("a", "1.5"), ARG("a", "x")}                                  },
        {GLM(OBJECT("\"a\": {}, \"c.d\": {\"const\": 1}, \"e-f\": {}",
         ", \"additionalProperties\": {\"type\": \"integer\"}")),
         {ARG("a", "any <x>") ARG("b", "2") ARG("aa", "3"),
          ARG("a", "1") ARG("c.d", "1") ARG("e-", "1"), ARG("c_d", "7")},
         {ARG("b", "x"), ARG("b", "1") ARG("a", "x"), ARG("c.d", "2")}                    },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_structural_tag, &CASES[i]);
}

static void style_refuses_what_it_cannot_write(void)
{
    static const struct {
        const char *tag, *why;
    } CASES[] = {
        {STYLED("qwen_xml",                                                                "{}"),
         "the style qwen_xml is not supported; json, deepseek_xml and glm_xml are"},
        {"{\"format\": {\"type\": \"json_schema\", \"json_schema\": {}, \"any_order\": true}}",
         "any_order is not supported"                                        },
        {"{\"format\": {\"type\": \"json_schema\", \"json_schema\": {}, \"max_whitespace_cnt\": "
         "2}}",                                                                                "the field max_whitespace_cnt is not supported"                                                                       },
        {GLM("{\"type\": \"array\"}"),                                                                                "no text"                          },
        {GLM("{\"enum\": [{}]}"),                                                                                "enum or const in the style glm_xml"                                                                            },
        {GLM(OBJECT("\"a<b\": {}",                                                                                "")),                          "a name with <, > or \" in the style glm_xml"},
        {GLM(OBJECT("\"a\": {\"const\": \"x</arg_value>\"}",                                   "")),
         "a text with the end of the style glm_xml"},
        {GLM(OBJECT("\"a\": {\"type\": \"string\", \"pattern\": \"x\", \"minLength\": 2}",                                          "")),
         "beside a minLength or maxLength in the style glm_xml"},
        {GLM(OBJECT("\"a\": {\"type\": \"string\", \"format\": \"email\", \"minLength\": 6}", "")),
         "\"format\" with a minLength or maxLength"},
        {GLM("{\"type\": \"object\", \"patternProperties\": {\"^a\": {}}}"),
         "in the style glm_xml is not supported"                                          },
        {GLM(OBJECT("\"a\": {\"type\": \"string\", \"pattern\": \"(\"}",                                       "")),
         "the group has no )"},
        {GLM("{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"$ref\": \"#/$defs/a\"}}}"),
         "levels deep"                                            },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_refused(bt_read_structural_tag, CASES[i].tag, strlen(CASES[i].tag), CASES[i].why);
}

/* What a model writes before and after them. */
static void style_stands_within_a_call(void)
{
    static const texts_case CASE = {
        "{\"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"<tool_call>\"], "
        "\"excludes\": "
        "[\"<think>\"], \"tags\": [{\"begin\": \"<tool_call>now\", \"content\": {\"type\": "
        "\"json_schema\", \"style\": \"glm_xml\", \"json_schema\": " OBJECT(
            "\"zone\": {\"type\": \"string\"}", "") "}, "
                                                    "\"end\": \"</tool_call>\"}]}}",
        {"",                             "Let me see.<tool_call>now" ARG("zone", "UTC") "</tool_call>",
          "<tool_call>now</tool_call><tool_call>now</tool_call>"                                                  },
        {"<tool_call>later</tool_call>", "<tool_call>now" ARG("zone",            "UTC"),                "<think>"}
    };

    expect_texts(bt_read_structural_tag, &CASE);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(style_of_deepseek_says_what_is_text),
        BT_TEST(style_of_glm_tells_keys_and_values_apart),
        BT_TEST(style_refuses_what_it_cannot_write),
        BT_TEST(style_stands_within_a_call),
    };

    bt_log_init("test", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
