/* JSON schemas and lists of texts: which replies they let through, and what is refused. */
#include <jansson.h>

#include "tests/model/grammar_texts.h"

#define SPACES8 "        "

#define A_TEN     "abcdefghij"
#define A_HUNDRED A_TEN A_TEN A_TEN A_TEN A_TEN A_TEN A_TEN A_TEN A_TEN A_TEN

static void schema_lets_through_what_its_keywords_say(void)
{
    static const texts_case CASES[] = {
        {"true",
         {"1", "\"x\"", "[1, {\"a\":[]}]", "{}", "null", "-0.5e+10", "\"\\u00e9\\ud83d\\ude00\""},
         {"", " 1", "1 ", "01", "\"\\ud83d\\ud83d\"", "\"\\ude00\\ud83d\"", "[1,]", "\"\n\""}                                                                                                                    },
        {"{\"type\":\"integer\"}",
         {"0", "-1", "999999999999999999"},
         {"-0", "01", "1.0", "1e3", "1000000000000000000", "+1"}                                                                                                                                                 },
        {"{\"type\":\"number\",\"maximum\":1e18}",
         {"1.5", "-999999999999999999"},
         {"1e99", "1e1", "1000000000000000000"}                                                                                                                                                                  },
        {"{\"type\":\"number\",\"multipleOf\":0.25,\"maximum\":12.5}",
         {"0", "-0.75", "12.5", "12.50", "-123456789012345678.25"},
         {"12.75", "0.1", "0.250", "1e2", "-0"}                                                                                                                                                                  },
        {"{\"type\":\"integer\",\"multipleOf\":1.5}",                                               {"0", "3", "-300"},                                                                 {"1", "1.5", "3.0"}      },
        {"{\"type\":\"number\"}",                                                                   {"0", "-1.5", "1e-7", "12.50"},                                                     {".5", "1.", "1e", "NaN"}},
        {"{\"type\":[\"boolean\",\"null\"]}",                                                       {"true", "false", "null"},                                                          {"True", "\"null\"", "1"}},
        {"{\"type\":\"string\",\"nullable\":true}",                                                 {"\"\"", "null"},                                                                   {"1"}                    },
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
         "\"null\"}},"
         "\"required\":[\"a\"]}",                                                          {"{\"a\":1}", "{\"a\":1,\"b\":null}", "{ \"a\": 1, \"b\": null }",
          "{\n  \"a\": 1,\n\t\"b\": null\n}"},
         {"{}", "{\"b\":null}", "{\"b\":null,\"a\":1}", "{\"a\":1,}", "{\"a\":1,\"c\":1}",
          "{\"a\" :1}", "{\"a\":1 ,\"b\":null}", "{  \"a\":1}"}                                                                                                                                                  },
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"ab\",1,1.0]},"
         "\"minItems\":2}",                                                                {"[\"a\",\"ab\"]", "[\"ab\", \"a\", 1]"},
         {"[]", "[1]", "[\"a\",\"a\"]", "[1,1.0]", "[\"a\",1,\"a\"]", "[\"a\",1,\"ab\",1]"}                                                                                                                      },
        {"{\"uniqueItems\":true,\"items\":{\"enum\":[9007199254740993,9007199254740992.0"
         "]}}",                                                                            {"[9007199254740993]", "[9007199254740993,9007199254740992.0]"},
         {"[9007199254740993,9007199254740993]"}                                                                                                                                                                 },
        {"{\"const\":[1]}",
         {"[1]", "[\n" SPACES8 SPACES8 "    1]"},
         {"[\n" SPACES8 SPACES8 "     1]", "[\n\n1]", "[1", "[1]\n"}                                                                                                                                             },
        {"{\"properties\":{\"a\":true,\"ab\":true,\"\xc3\xa9\":true},\"additionalProperties\":{"
         "\"type\":"
         "\"null\"}}",                                                                     {"{\"a\":1,\"ab\":2,\"\xc3\xa9\":3,\"abc\":null}", "{\"b\":null}", "{\"\":null}",
          "{\"\xc3\xa8\":null}", "{\"\\\"\":null}", "{\"a\xc3\xa9\":null}"},
         {"{\"b\":1}", "{\"b\":null,\"a\":1}", "{\"\\u0061\":null}", "{\"\\u0062\":null}",
          "{\"b\":null,\"\xc3\xa9\":null}", "{\"a\\/\":null}"}                                                                                                                                                   },
        {"{\"properties\":{\"\":true,\"\xc3\xa9\":true,\"\\n\\\"\":true},\"additionalProperties\":"
         "true,"
         "\"maxProperties\":4}",                                                           {"{\"\":1,\"\xc3\xa9\":2,\"\\n\\\"\":3,\"x\":4}", "{\"x\":1}", "{\"\xc3\xa8\":1}"},
         {"{\"x\":1,\"\":1}", "{\"x\":1,\"y\":2}", "{\"\\t\":1}", "{\"x\":1,\"\\n\\\"\":2}"}                                                                                                                     },
        {"{\"type\":\"array\",\"items\":[{\"const\":1},{\"const\":2}],\"additionalItems\":{"
         "\"const\":3}}",                                                                  {"[]", "[1]", "[1,2]", "[1,2,3,3]"},
         {"[2]", "[1,3]", "[1,2,2]"}                                                                                                                                                                             },
        {"{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"minItems\":1}",
         {"[1]", "[1,2]"},
         {"[]", "[1,2,3]"}                                                                                                                                                                                       },
        {"{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"anyOf\":[{"
         "\"properties\":{"
         "\"name\":{\"type\":\"string\",\"enum\":[\"f\"]},\"parameters\":{\"type\":\"object\","
         "\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]}},\"required\":["
         "\"name\","
         "\"parameters\"]}]}}",                                                            {"[{\"name\":\"f\",\"parameters\":{\"x\":1}}]",
          "[{\"name\": \"f\", \"parameters\": {\"x\": 1}}, {\"name\": \"f\", \"parameters\": "
          "{\"x\": 2}}]"},
         {"[]", "[{\"name\":\"g\",\"parameters\":{\"x\":1}}]", "[{\"name\":\"f\"}]",
          "[{\"name\":\"f\",\"parameters\":{}}]"}                                                                                                                                                                },
        {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
         {"\"a\"", "\"\\n\\\"\"", "\"\\ud83d\\ude00\xf0\x9f\x98\x80\""},
         {"\"\"", "\"abc\"", "\"\\n\\\"\\\\\""}                                                                                                                                                                  },
        {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\",\"title\":\"x\"},"
         "\"additionalProperties\":{\"type\":\"integer\"}}",                               {"{\"x\":1}"},
         {"{\"x\":\"\"}"}                                                                                                                                                                                        },
        {"{\"type\":\"object\",\"patternProperties\":{\"^[a-z]{1,3}$\":{\"type\":\"integer\"}},"
         "\"additionalProperties\":false}",                                                {"{}", "{\"abc\":1,\"x\":2}"},
         {"{\"A\":1}", "{\"abc\":\"\"}", "{\"abcd\":1}", "{\"abc\":1,\"\":2}"}                                                                                                                                   },
        {"{\"patternProperties\":{\"-\":{\"type\":\"null\"}},\"additionalProperties\":{},"
         "\"minProperties\":1,\"maxProperties\":2}",                                       {"{\"x-y\":null}", "{\"\\\"-\":null,\"-\":null}"},
         {"{}", "{\"x\":null}", "{\"-\":null,\"-\":null,\"-\":null}"}                                                                                                                                            },
        {"{\"patternProperties\":{\"a\":false},\"propertyNames\":true}",                            {"{}"},                                                                             {"{\"a\":1}"}            },
        {"{\"propertyNames\":{\"enum\":[\"a\",\"b\",1]},\"additionalProperties\":{\"type\":"
         "\"integer\"}}",                                                                  {"{}", "{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
         {"{\"c\":1}", "{\"b\":1,\"a\":2}", "{\"a\":null}", "{\"a\":1,\"b\":2,\"c\":3}"}                                                                                                                         },
        {"{\"propertyNames\":{\"$ref\":\"#/$defs/"
         "c\"},\"additionalProperties\":{\"type\":\"null\"},\"required\":[\"y\"],\"$defs\":{\"c\":{"
         "\"type\":\"string\",\"enum\":[\"x\",\"y\"]}}}",                                  {"{\"y\":null}", "{\"y\":null,\"x\":null}"},
         {"{}", "{\"x\":null}"}                                                                                                                                                                                  },
        {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"z\":true},\"propertyNames\":{\"enum\":["
         "\"b\",\"a\"]}}",                                                                 {"{}", "{\"a\":1}"},
         {"{\"z\":1}", "{\"b\":1}", "{\"a\":null}"}                                                                                                                                                              },
        {"{\"properties\":{\"a\":true},\"propertyNames\":{\"enum\":[\"b\",\"a\"],\"const\":\"b\"},"
         "\"additionalProperties\":{\"const\":1}}",                                        {"{}", "{\"b\":1}"},
         {"{\"a\":1}", "{\"b\":2}"}                                                                                                                                                                              },
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":1,\"maxProperties\":1}",
         {"{\"a\":1}", "{\"b\":1}", "{\"c\":1}"},
         {"{}", "{\"a\":1,\"b\":1}", "{\"b\":1,\"c\":1}"}                                                                                                                                                        },
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"c\"],\"minProperties\":2,"
         "\"maxProperties\":2,\"additionalProperties\":true}",                             {"{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}", "{\"c\":1,\"x\":1}"},
         {"{\"c\":1}", "{\"a\":1,\"b\":1}", "{\"a\":1,\"b\":1,\"c\":1}",
          "{\"a\":1,\"c\":1,\"x\":1}"}                                                                                                                                                                           },
        {"{\"properties\":{\"a\":{},\"b\":{}},\"minProperties\":3,\"additionalProperties\":true}",
         {"{\"a\":1,\"b\":1,\"x\":1,\"y\":1}"},
         {"{\"a\":1,\"b\":1}", "{\"a\":1,\"x\":1,\"x\":1}"}                                                                                                                                                      },
        {"{\"properties\":{\"a\":{}},\"minProperties\":2}",
         {"{\"a\":1,\"x\":1}"},
         {"{\"a\":1}", "{\"x\":1}"}                                                                                                                                                                              },
        {"{\"properties\":{\"a\":{}},\"required\":[\"b\"],\"minProperties\":2}",
         {"{\"a\":1,\"b\":1}"},
         {"{\"b\":1}", "{\"b\":1,\"x\":1}"}                                                                                                                                                                      },
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"not\":{\"maxProperties\":1},"
         "\"maxProperties\":2}",                                                           {"{\"a\":1,\"c\":1}"},
         {"{}", "{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}"}                                                                                                                                                        },
        {"{\"properties\":{\"a\":{},\"b\":{}},\"maxProperties\":0}",                                {"{}"},                                                                             {"{\"a\":1}"}            },
        {"{\"type\":\"string\",\"enum\":[\"a1\",\"b2\",\"\xc3\xa9\\\"3\",\"c\",\"a12\"],"
         "\"pattern\":"
         "\"^.+[0-9]$\",\"maxLength\":3,\"not\":{\"const\":\"b2\"},\"format\":\"date\"}",  {"\"a1\"", "\"a12\"", "\"\xc3\xa9\\\"3\""},
         {"\"b2\"", "\"c\""}                                                                                                                                                                                     },
        {"{\"format\":\"uri\",\"const\":\"https://a.org/1\"}",
         {"\"https://a.org/1\""},
         {"\"https://a.org/2\""}                                                                                                                                                                                 },
        {"{\"enum\":[4,5,-6,\"x\",null],\"multipleOf\":2,\"pattern\":\"y\"}",
         {"4", "-6", "null"},
         {"5", "\"x\""}                                                                                                                                                                                          },
        {"{\"anyOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"c$\"}],\"enum\":[\"ab\",\"bc\",\"bb\"]}",
         {"\"ab\"", "\"bc\""},
         {"\"bb\""}                                                                                                                                                                                              },
        {"{\"propertyNames\":{\"const\":\"b\"},\"maxProperties\":1}",
         {"{\"b\":[]}"},
         {"{\"a\":1}", "{\"b\":1,\"b\":1}"}                                                                                                                                                                      },
        {"{\"propertyNames\":{\"pattern\":\"^x-\",\"maxLength\":4}}",
         {"{\"x-ab\":[]}", "{\"x-\":1,\"x-b\":2}"},
         {"{\"y\":1}", "{\"x-abc\":1}"}                                                                                                                                                                          },
        {"{\"propertyNames\":{\"anyOf\":[{\"format\":\"date\"},{\"const\":\"now\"}]},"
         "\"additionalProperties\":{\"type\":\"boolean\"}}",                               {"{\"now\":true,\"2024-02-28\":false}"},
         {"{\"2024-02-30\":true}", "{\"then\":true}"}                                                                                                                                                            },
        {"{\"propertyNames\":{\"type\":\"integer\"}}",                                              {"{}"},                                                                             {"{\"1\":1}"}            },
        {"{\"propertyNames\":{\"enum\":[]}}",                                                       {"{}"},                                                                             {"{\"a\":1}"}            },
        {"{\"propertyNames\":{\"type\":\"integer\",\"enum\":[\"a\"]}}",                             {"{}"},                                                                             {"{\"a\":1}"}            },
        {"{\"propertyNames\":{\"allOf\":[false,{\"enum\":[\"a\"]}]}}",                              {"{}"},                                                                             {"{\"a\":1}"}            },
        {"{\"propertyNames\":{\"allOf\":[{\"oneOf\":[{},{}]},false]}}",                             {"{}"},                                                                             {"{\"a\":1}"}            },
        {"{\"propertyNames\":{\"$ref\":\"#/x\",\"const\":\"a\"},\"x\":false}",
         {"{}"},
         {"{\"a\":1}"}                                                                                                                                                                                           },
        {"{\"allOf\":[{\"properties\":{\"a\":{}}},{\"propertyNames\":{\"type\":\"integer\"}},{"
         "\"propertyNames\":{\"const\":\"a\"}}]}",                                         {"{}"},
         {"{\"a\":1}"}                                                                                                                                                                                           },
        {"{\"propertyNames\":false}",                                                               {"{}"},                                                                             {"{\"a\":1}"}            },
        {"{\"allOf\":[{\"propertyNames\":{\"maxLength\":2}},{\"propertyNames\":{\"pattern\":\"^a\"}"
         "},{\"propertyNames\":{}}]}",                                                     {"{\"ab\":1}"},
         {"{\"abc\":1}", "{\"b\":1}"}                                                                                                                                                                            },
        {"{\"patternProperties\":{\"^a\":{}},\"allOf\":[{\"patternProperties\":{\"^a\":{}},"
         "\"additionalProperties\":false},{\"patternProperties\":{}}]}",                   {"{\"ab\":1}"},
         {"{\"b\":1}"}                                                                                                                                                                                           },
        {"{\"pattern\":\"^(?:[A-Z]|b.d)e{2}\xc3\xa9$\",\"minLength\":4,\"maxLength\":6}",
         {"\"Xee\xc3\xa9\"", "\"b\\\"dee\xc3\xa9\""},
         {"\"Xe\xc3\xa9\""}                                                                                                                                                                                      },
        {"{\"pattern\":\"a\",\"maxLength\":5}",
         {"\"a\"", "\"xxaxx\"", "\"\\n\\\"a\\u0001\xc3\xa9\""},
         {"\"xxxxax\"", "\"b\"", "\"\\n\\\"a\\u0001\xc3\xa9x\""}                                                                                                                                                 },
        {"{\"pattern\":\"^a{2,3}b$\",\"minLength\":4}",                                             {"\"aaab\""},                                                                       {"\"aab\""}              },
        {"{\"pattern\":\"^(?:a|bcd)*$\",\"minLength\":1,\"maxLength\":4}",
         {"\"a\"", "\"abcd\"", "\"aaaa\""},
         {"\"\"", "\"bcdbcd\"", "\"aaaaa\""}                                                                                                                                                                     },
        {"{\"pattern\":\"^(?:a|b.d)e\xc3\xa9$\",\"maxLength\":4}",
         {"\"ae\xc3\xa9\""},
         {"\"b.de\xc3\xa9\""}                                                                                                                                                                                    },
        {"{\"pattern\":\"^[^a]*$\",\"minLength\":2}",
         {"\"\\\\\\\\\"", "\"\xf0\x9f\x98\x80\xe4\xb8\xad\"", "\"bcdefghijk\""},
         {"\"\\\\\"", "\"\xf0\x9f\x98\x80\"", "\"\\u0000\"", "\"bca\""}                                                                                                                                          },
        {"{\"pattern\":\"^(?!.*--)(?=.*\\\\d)[-\\\\d]+$\",\"maxLength\":3}",
         {"\"1\"", "\"-1-\""},
         {"\"1--\"", "\"-\"", "\"1111\""}                                                                                                                                                                        },
        {"{\"pattern\":\"ab|cde\",\"minLength\":2}",                                                {"\"ab\"", "\"abcde\""},                                                            {"\"a\""}                },
        {"{\"type\":\"string\",\"format\":\"date\",\"minLength\":10}",
         {"\"2024-02-28\""},
         {"\"2024-02-30\""}                                                                                                                                                                                      },
        {"{\"format\":\"email\",\"type\":\"string\",\"minLength\":6,\"maxLength\":12}",
         {"\"a.b@c-d.ef\"", "\"a@b.cd\"", "\"a@b.c.d.e.fg\""},
         {"\"a@b.c\"", "\"a@b.c.d.e.fgh\"", "\"a..b@c.de\"", "\"a@b-.cd\"", "\"abcdefgh\""}                                                                                                                      },
        {"{\"format\":\"uri\",\"type\":\"string\",\"maxLength\":19}",
         {"\"http://my-host:80/\"", "\"file:///a/b?c=/d#/e\"", "\"mailto:a@b.cd\""},
         {"\"http://my-host:80/ab\"", "\"http://a b\"", "\"http:a\""}                                                                                                                                            },
        {"{\"format\":\"uri\",\"type\":\"string\",\"minLength\":10}",
         {"\"http://a.b\"", "\"http://a.b/" A_HUNDRED A_HUNDRED A_HUNDRED "\""},
         {"\"http://ab\""}                                                                                                                                                                                       },
        {"{\"type\":\"string\",\"format\":\"uuid\",\"pattern\":\"^a$\"}",                           {"\"a\""},                                                                          {"\"b\""}                },
        {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"patternProperties\":{\"^x-\":{\"type\":"
         "\"integer\"}}}",                                                                 {"{}", "{\"a\":null,\"x-1\":2}", "{\"x-\":1}"},
         {"{\"b\":1}", "{\"x-1\":null}", "{\"x-1\":1,\"a\":null}"}                                                                                                                                               },
        {"{\"properties\":{\"x\\n\":{\"minimum\":3},\"y\":true},\"patternProperties\":{\"^x\":{"
         "\"type\":\"integer\"}}}",                                                        {"{\"x\\n\":3,\"y\":\"\",\"x\":2}", "{\"xy\":1}"},
         {"{\"x\\n\":2}", "{\"x\\n\":3.5}", "{\"x\":1,\"x\\n\":3}", "{\"x\\u000a\":1}"}                                                                                                                          },
        {"{\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\"b$\":{\"minimum\":5}}}",
         {"{\"ab\":5}", "{\"a\":4,\"b\":5.5}", "{\"a\\\"b\":6}"},
         {"{\"ab\":4}", "{\"ab\":5.5}", "{\"c\":5}", "{\"b\":4}"}                                                                                                                                                },
        {"{\"patternProperties\":{\"^a\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":"
         "\"string\"},\"required\":[\"ab\",\"z\"]}",                                       {"{\"ab\":null,\"z\":\"\"}", "{\"ab\":null,\"z\":\"\",\"\\n\":\"\",\"a\":null}"},
         {"{\"ab\":null}", "{\"ab\":\"\",\"z\":\"\"}", "{\"ab\":null,\"z\":\"\",\"ac\":\"\"}",
          "{\"ab\":null,\"z\":\"\",\"y\":null}"}                                                                                                                                                                 },
        {"{\"patternProperties\":{\"^a\":{\"pattern\":\"x\"}},\"allOf\":[{\"patternProperties\":{"
         "\"^b\":{\"pattern\":\"y\"},\"a\":{\"maxLength\":1}}}]}",                         {"{\"ab\":\"x\",\"b\":\"y\",\"ca\":\"z\"}"},
         {"{\"a\":\"xx\"}", "{\"b\":\"x\"}", "{\"ba\":\"yy\"}"}                                                                                                                                                  },
        {"{\"pattern\":\"a|b\",\"allOf\":[{\"pattern\":\"^x\"},{\"pattern\":\"c$\"}],\"maxLength\":"
         "4}",                                                                             {"\"xac\"", "\"xbyc\""},
         {"\"xc\"", "\"ac\"", "\"xacd\"", "\"xayyc\""}                                                                                                                                                           },
        {"{\"pattern\":\"^[a|b]\",\"allOf\":[{\"pattern\":\"^.{2}$\"},{\"not\":{\"pattern\":\"c\"}}"
         "]}",                                                                             {"\"ab\"", "\"|x\""},
         {"\"ac\"", "\"a\"", "\"abb\""}                                                                                                                                                                          },
        {"{\"type\":\"string\",\"not\":{\"pattern\":\"^a|[b|]|x\\\\|$\"}}",
         {"\"\"", "\"ca\"", "\"x\""},
         {"\"a\"", "\"cb\"", "\"c|\"", "\"x|\""}                                                                                                                                                                 },
        {"{\"properties\":{\"a\":{\"$id\":\"/properties/a\",\"type\":\"null\"}}}",
         {"{\"a\":null}"},
         {"{\"a\":1}"}                                                                                                                                                                                           },
        {"{\"enum\":[1,2,3],\"allOf\":[{\"enum\":[2.0,3,4]},{\"const\":2.0}]}",                     {"2"},                                                                              {"1", "3"}               },
        {"{\"anyOf\":[{\"const\":1,\"pattern\":\"a\"},{\"const\":2}],\"const\":2,\"pattern\":"
         "\"b\"}",                                                                         {"2"},
         {"1"}                                                                                                                                                                                                   },
        {"{\"type\":\"string\",\"format\":\"ipv4\"}",
         {"\"127.0.0.1\""},
         {"\"127.0.0.256\"", "127.0.0.1"}                                                                                                                                                                        },
        {"{\"type\":\"string\",\"format\":\"color\",\"maxLength\":1}",                              {"\"x\""},                                                                          {"\"xy\""}               },
        {"{\"type\":\"string\",\"pattern\":\"^(a|b){2}$\"}",                                        {"\"ab\""},                                                                         {"\"a\"", "\"aba\""}     },
        {"{\"anyOf\":[{\"const\":1},{\"properties\":{\"a\":{\"$ref\":\"#\"}}}]}",
         {"1", "{}", "{\"a\":{\"a\":1}}"},
         {"2", "{\"a\":2}"}                                                                                                                                                                                      },
        {"{\"$id\":\"https://example.com/s\",\"$ref\":\"#/$defs/"
         "a\",\"$defs\":{\"a\":{\"enum\":[\"\\u0001\\t\"]}}}",                             {"\"\\u0001\\t\""},
         {"\"\\u0001\\u0009\""}                                                                                                                                                                                  },
        {"{\"type\":\"integer\",\"enum\":[1.0,2,2.5,1e300]}",                                       {"1", "2"},                                                                         {"1.0", "2.5"}           },
        {"{\"enum\":[1.0,0.1,1e300]}",                                                              {"1.0", "0.1", "1e+300"},                                                           {"1"}                    },
        {"{\"enum\":[1,2,3],\"const\":2}",                                                          {"2"},                                                                              {"1"}                    },
        {"{\"enum\":[\"\",\"a\",\"\xc3\xa9\xe2\x82\xac\",\"abc\",5],\"minLength\":1,\"maxLength\":"
         "2}",                                                                             {"\"a\"", "\"\xc3\xa9\xe2\x82\xac\"", "5"},
         {"\"\"", "\"abc\""}                                                                                                                                                                                     },
        {"{\"enum\":[1,2,2.5,3,4,\"x\"],\"minimum\":2,\"exclusiveMaximum\":4}",
         {"2", "2.5", "3", "\"x\""},
         {"1", "4"}                                                                                                                                                                                              },
        {"{\"enum\":[1,2,3],\"exclusiveMinimum\":1,\"maximum\":2}",                                 {"2"},                                                                              {"1", "3"}               },
        {"{\"enum\":[1,2],\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"enum\":[2,3]}}}",
         {"2"},
         {"1", "3"}                                                                                                                                                                                              },
        {"{\"type\":[\"string\",\"integer\"],\"allOf\":[{\"type\":\"number\"},{\"minimum\":1},{"
         "\"minimum\":2,"
         "\"description\":\"x\"}]}",                                                       {"2"},
         {"1", "\"\""}                                                                                                                                                                                           },
        {"{\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,\"allOf\":[{"
         "\"properties\":{\"b\":{\"type\":\"integer\"},\"c\":{}}}]}",                      {"{}", "{\"a\":\"x\",\"b\":1}"},
         {"{\"c\":1}", "{\"b\":null}", "{\"d\":1}"}                                                                                                                                                              },
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"integer\"}},"
         "{\"properties\":{\"b\":{}},\"additionalProperties\":{\"minimum\":2}}]}",         {"{\"a\":2,\"b\":1,\"c\":3}", "{\"a\":2.5}"},
         {"{\"a\":1}", "{\"b\":2.5}", "{\"c\":1}", "{\"c\":2.5}"}                                                                                                                                                },
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"null\"}},{"
         "\"properties\":{\"b\":{}},\"additionalProperties\":false},{\"items\":{}},{\"items\":"
         "false}]}",                                                                       {"{\"b\":null}", "[]"},
         {"{\"a\":1}", "{\"b\":1}", "{\"c\":null}", "[1]"}                                                                                                                                                       },
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":{},\"allOf\":[{"
         "\"properties\":{\"b\":{\"type\":\"null\"}},"
         "\"additionalProperties\":true}]}",                                               {"{\"a\":1,\"b\":null,\"c\":2}"},
         {"{\"b\":1}"}                                                                                                                                                                                           },
        {"{\"type\":\"array\",\"items\":true,\"allOf\":[{\"items\":{\"type\":\"integer\"}},{"
         "\"items\":{\"minimum\":2}}]}",                                                   {"[]", "[2,3]"},
         {"[1]", "[null]"}                                                                                                                                                                                       },
        {"{\"patternProperties\":{\"^\\\\s$\":{\"type\":\"null\"}},\"properties\":{"
         "\"\xe2\x80\xa8\":{}},"
         "\"additionalProperties\":{\"type\":\"integer\"}}",                               {"{\"\xe2\x80\xa8\":null}", "{\" \":null,\"a\":1}"},
         {"{\"\xe2\x80\xa8\":1}", "{\"\xc2\xa0\":1}"}                                                                                                                                                            },
        {"{\"type\":\"number\",\"minimum\":-1,\"not\":{\"enum\":[3,\"x\",0,2.5,3.0,-4]}}",
         {"-1", "0.1", "2", "2.51", "3.1", "30"},
         {"-4", "0.0", "2.5", "3", "3.00", "-2"}                                                                                                                                                                 },
        {"{\"type\":\"integer\",\"multipleOf\":2,\"maximum\":6,\"not\":{\"enum\":[2,4,5.5]}}",
         {"-2", "0", "6"},
         {"2", "4", "5", "8"}                                                                                                                                                                                    },
        {"{\"not\":{\"const\":1}}",
         {"0", "1.5", "10", "null", "\"1\"", "[1]"},
         {"1", "1.0", "1e0"}                                                                                                                                                                                     },
        {"{\"type\":[\"integer\",\"null\"],\"enum\":[1e16,1e30,10000000000000001,null],\"not\":{"
         "\"type\":\"integer\",\"enum\":[1e16,1e30]}}",                                    {"10000000000000001", "null"},
         {"10000000000000000", "1e30", "1e+30"}                                                                                                                                                                  },
        {"{\"type\":\"integer\",\"enum\":[1e17,1e30]}",                                             {"100000000000000000", "1e+30"},                                                    {"1e17"}                 },
        {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"allOf\":[{\"properties\":{\"a\":{"
         "\"minimum\":1}}}]}",                                                             {"{}", "{\"a\":1}"},
         {"{\"a\":0}", "{\"a\":1.5}"}                                                                                                                                                                            },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_json_schema, &CASES[i]);
}

static void schema_that_cannot_be_kept_is_refused_by_name(void)
{
    static const refused_case CASES[] = {
        {"",                                                                                        "expected a JSON schema, found at byte 0"                                        },
        {"{\"a\":1,\"a\":2}",                                                                       "duplicate"                                                                      },
        {"false",                                                                                   "at #: false describes no value"                                                 },
        {"5",                                                                                       "at #: expected a schema, found 5 (a number)"                                    },
        {"{\"properties\":{\"a\":{\"multipleOf\":1001}}}",
         "at #/properties/a: \"multipleOf\" of digits that make more than 1000, or of more than 17 "
         "behind"                                                                                                                                                                    },
        {"{\"multipleOf\":1e-18}",                                                                  "\"multipleOf\" of digits that make more"                                        },
        {"{\"multipleOf\":1e4}",                                                                    "\"multipleOf\" of digits that make more"                                        },
        {"{\"multipleOf\":0}",                                                                      "at #/multipleOf: expected a number above 0, found 0 (a number)"                 },
        {"{\"multipleOf\":-0.5}",                                                                   "at #/multipleOf: expected a number above 0"                                     },
        {"{\"multipleOf\":\"x\"}",                                                                  "at #/multipleOf: expected a number above 0, found \"x\""                        },
        {"{\"multipleOf\":100,\"minimum\":1,\"maximum\":99}",                                       "no text at all would do"                                                        },
        {"{\"properties\":{\"a/b~\":{\"minLength\":\"x\"}}}",
         "at #/properties/a~1b~0/minLength: expected a whole number of at least 0, found \"x\""                                                                                      },
        {"{\"minLength\":-1}",                                                                      "at #/minLength: expected a whole number"                                        },
        {"{\"items\":{\"anyOf\":[true,{\"contains\":{}}]}}",
         "at #/items/anyOf/1: \"contains\" is not supported"                                                                                                                         },
        {"{\"unevaluatedItems\":false}",                                                            "\"unevaluatedItems\" is not"                                                    },
        {"{\"contains\":{}}",                                                                       "\"contains\" is not"                                                            },
        {"{\"patternProperties\":{\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"e\":{}}}",
         "at #: more than 4 of \"patternProperties\" is not"                                                                                                                         },
        {"{\"patternProperties\":{\"a\":{},\"(\":{}}}",                                             "at #/patternProperties/(: byte 0"                                               },
        {"{\"properties\":{\"a\":{}},\"patternProperties\":{\"(\":{}}}",
         "at #/patternProperties/(: byte 0"                                                                                                                                          },
        {"{\"propertyNames\":{\"enum\":[\"a\"]},\"patternProperties\":{\"a\":{},\"b\":{}}}",
         "\"propertyNames\" beside \"patternProperties\""                                                                                                                            },
        {"{\"required\":[\"a\"],\"patternProperties\":{\"a\":false}}",                              "nothing satisfies it"                                                           },
        {"{\"patternProperties\":[]}",                                                              "at #/patternProperties: expected an object of schemas"                          },
        {"{\"patternProperties\":{\"(\":{}}}",                                                      "at #/patternProperties/(/pattern: "                                             },
        {"{\"patternProperties\":{\"a\":{\"contains\":{}}}}",
         "at #/patternProperties/a: \"contains\" is not"                                                                                                                             },
        {"{\"patternProperties\":{\"a\":{}},\"allOf\":[{\"patternProperties\":true}]}",
         "\"patternProperties\" differs from the one"                                                                                                                                },
        {"{\"additionalProperties\":false,\"allOf\":[{\"patternProperties\":{\"a\":{}}}]}",
         "\"additionalProperties\" beside \"patternProperties\" and properties of another"                                                                                           },
        {"{\"propertyNames\":{\"type\":\"string\",\"contains\":{}}}",
         "at #/propertyNames: \"contains\" is not"                                                                                                                                   },
        {"{\"const\":1,\"minimum\":\"x\"}",                                                         "at #/minimum: expected a number"                                                },
        {"{\"const\":4,\"multipleOf\":1.5}",                                                        "at #: enum or const of numbers"                                                 },
        {"{\"const\":[],\"minItems\":1}",                                                           "nothing satisfies it"                                                           },
        {"{\"const\":[[1]],\"items\":{\"items\":{\"type\":\"null\"}}}",                             "nothing satisfies it"                                                           },
        {"{\"const\":{\"a\":1},\"properties\":5}",
         "at #/properties: expected an object of schemas"                                                                                                                            },
        {"{\"const\":{\"a\":1},\"required\":[1]}",                                                  "at #/required: expected an array of names"                                      },
        {"{\"const\":[1],\"prefixItems\":5}",                                                       "at #/prefixItems: expected an array of schemas"                                 },
        {"{\"const\":[1],\"items\":{\"contains\":{}}}",                                             "at #: \"contains\" is not"                                                      },
        {"{\"const\":\"a\",\"format\":\"date\"}",                                                   "at #/format: a text of enum"                                                    },
        {"{\"propertyNames\":5}",                                                                   "at #/propertyNames: expected a schema, found 5"                                 },
        {"{\"propertyNames\":{\"enum\":5}}",
         "at #/propertyNames/enum: expected an array of values"                                                                                                                      },
        {"{\"propertyNames\":{\"const\":\"a\",\"anyOf\":[{\"minLength\":2},{}]}}",
         "at #/propertyNames: enum or const beside anyOf"                                                                                                                            },
        {"{\"propertyNames\":{\"pattern\":\"(\"}}",                                                 "at #/propertyNames/pattern: "                                                   },
        {"{\"propertyNames\":{\"enum\":[\"a\"]},\"required\":[\"b\"]}",                             "nothing satisfies it"                                                           },
        {"{\"required\":[\"a\"],\"propertyNames\":{\"type\":\"integer\",\"enum\":[\"a\"]}}",
         "nothing satisfies it"                                                                                                                                                      },
        {"{\"propertyNames\":{\"enum\":[\"a\"]},\"additionalProperties\":{\"contains\":{}}}",
         "at #/additionalProperties: \"contains\" is not"                                                                                                                            },
        {"{\"required\":[\"a\"],\"additionalProperties\":{\"contains\":{}}}",
         "at #/additionalProperties: \"contains\" is not"                                                                                                                            },
        {"{\"propertyNames\":false,\"required\":[\"b\"]}",                                          "nothing satisfies it"                                                           },
        {"{\"propertyNames\":{\"minLength\":1},\"properties\":{\"a\":{}}}",
         "\"propertyNames\" beside named or patterned ones"                                                                                                                          },
        {"{\"propertyNames\":{\"minLength\":1},\"patternProperties\":{\"a\":{}}}",
         "\"propertyNames\" beside named or patterned ones"                                                                                                                          },
        {"{\"propertyNames\":{\"enum\":[\"a\"]},\"patternProperties\":{\"a\":{}}}",
         "\"propertyNames\" beside \"patternProperties\""                                                                                                                            },
        {"{\"dependentRequired\":[]}",                                                              "at #/dependentRequired: expected an object"                                     },
        {"{\"not\":{\"oneOf\":[]}}",                                                                "at #/not: \"not\" of \"oneOf\" is not"                                          },
        {"{\"not\":{\"type\":\"integer\"}}",                                                        "at #/not: \"not\" of integers is not"                                           },
        {"{\"not\":{\"required\":[\"a\"],\"multipleOf\":2}}",                                       "\"not\" of \"multipleOf\" is not"                                               },
        {"{\"not\":{\"contains\":{}}}",                                                             "at #/not: \"contains\" is not"                                                  },
        {"{\"not\":5}",                                                                             "at #/not: expected a schema"                                                    },
        {"{\"not\":[]}",                                                                            "at #/not: expected a schema"                                                    },
        {"{\"type\":\"array\",\"not\":{\"enum\":[[1]]}}",
         "\"not\" of an object, an array or a text without quotes"                                                                                                                   },
        {"{\"type\":\"integer\",\"not\":{\"type\":\"integer\",\"enum\":[1e16]}}",
         "\"not\" of numbers beyond 1e+15 is not"                                                                                                                                    },
        {"{\"type\":\"integer\",\"not\":{\"enum\":[1e16]}}",
         "\"not\" of numbers beyond 1e+15 is not"                                                                                                                                    },
        {"{\"type\":\"string\",\"minLength\":2,\"not\":{\"const\":\"ab\"}}",
         "\"not\" of a string beside \"minLength\""                                                                                                                                  },
        {"{\"$defs\":{\"x\":{\"not\":{\"$ref\":\"#/$defs/x\"}}},\"$ref\":\"#/$defs/x\"}",
         "levels deep"                                                                                                                                                               },
        {"{\"if\":{\"propertyNames\":{}},\"else\":false}",                                          "\"not\" of \"propertyNames\" is not"                                            },
        {"{\"type\":\"object\",\"required\":[\"a\"],\"additionalProperties\":false}",
         "nothing satisfies it"                                                                                                                                                      },
        {"{\"unevaluatedProperties\":false}",                                                       "\"unevaluatedProperties\" is not"                                               },
        {"{\"uniqueItems\":true}",                                                                  "\"uniqueItems\" is not supported but for items of a list"                       },
        {"{\"uniqueItems\":true,\"items\":{\"anyOf\":[{\"const\":1},{\"$ref\":\"#\"}]}}",
         "\"uniqueItems\" is not supported but"                                                                                                                                      },
        {"{\"uniqueItems\":true,\"items\":{\"$ref\":\"#/items\"}}",                                 "levels deep"                                                                    },
        {"{\"uniqueItems\":true,\"items\":[{\"const\":1}],\"additionalItems\":true}",
         "\"uniqueItems\" beside items by place"                                                                                                                                     },
        {"{\"uniqueItems\":true,\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9,10,11,12,13]}}",
         "13 values has more than 4096 sets"                                                                                                                                         },
        {"{\"not\":{\"pattern\":\"a)|(b\"}}",                                                       "brackets do not pair"                                                           },
        {"{\"allOf\":[{\"const\":9007199254740993},{\"const\":9007199254740992.0}]}",
         "no text at all would do"                                                                                                                                                   },
        {"{\"allOf\":[{\"const\":1},{\"const\":2}]}",                                               "no text at all would do"                                                        },
        {"{\"anyOf\":[{\"const\":1},{\"const\":2}],\"const\":3}",                                   "no text at all would do"                                                        },
        {"{\"type\":\"string\",\"format\":\"date\",\"minLength\":12,\"maxLength\":11}",
         "no text at all would do"                                                                                                                                                   },
        {"{\"properties\":{\"a\":{\"$id\":\"x\",\"items\":{\"$ref\":\"#\"}}}}",
         "at #/properties/a: \"$id\" is not"                                                                                                                                         },
        {"{\"$ref\":\"other.json\"}",                                                               "at #/$ref: expected a pointer into this schema"                                 },
        {"{\"$ref\":\"#name\"}",                                                                    "at #/$ref: expected a pointer into this schema"                                 },
        {"{\"$ref\":5}",                                                                            "at #/$ref: expected a pointer"                                                  },
        {"{\"$ref\":\"#/$defs/a\"}",                                                                "\"#/$defs/a\" (a string) names nothing"                                         },
        {"{\"$ref\":\"#/a~2\",\"a~2\":true}",                                                       "names nothing"                                                                  },
        {"{\"$ref\":\"#/a%4\",\"a%4\":true}",                                                       "names nothing"                                                                  },
        {"{\"$ref\":\"#/x\",\"x\":{\"items\":{\"contains\":true}}}",                                "at #/x/items: \"contains\""                                                     },
        {"{\"$ref\":\"#\"}",                                                                        "no text at all would do"                                                        },
        {"{\"anyOf\":[{\"$ref\":\"#/x\"},{\"const\":1}],\"x\":{\"anyOf\":[{\"$ref\":\"#/"
         "x\"},{\"const\":1}]}}",                                                          "#/x begins with itself"                                                         },
        {"{\"allOf\":[{\"$ref\":\"#\"},{\"minimum\":1}]}",                                          "more than 128 levels deep"                                                      },
        {"{\"type\":\"text\"}",                                                                     "at #/type: expected the name of a type, found \"text\""                         },
        {"{\"type\":[\"string\",1]}",                                                               "at #/type: expected an array of names of types"                                 },
        {"{\"anyOf\":[]}",                                                                          "at #/anyOf: expected an array of schemas"                                       },
        {"{\"allOf\":{}}",                                                                          "at #/allOf: expected an array of schemas"                                       },
        {"{\"allOf\":[{\"allOf\":1},{}]}",                                                          "at #/allOf/0/allOf: expected an array of schemas"                               },
        {"{\"enum\":5}",                                                                            "at #/enum: expected an array of values"                                         },
        {"{\"enum\":[]}",                                                                           "no text at all would do"                                                        },
        {"{\"enum\":[\"a\"],\"pattern\":\"(\"}",                                                    "at #/pattern: "                                                                 },
        {"{\"properties\":[]}",                                                                     "at #/properties: expected an object of schemas"                                 },
        {"{\"required\":\"a\"}",                                                                    "at #/required: expected an array of names"                                      },
        {"{\"required\":[1]}",                                                                      "at #/required: expected an array of names"                                      },
        {"{\"required\":[\"a\"],\"additionalProperties\":false}",                                   "nothing satisfies it"                                                           },
        {"{\"type\":\"object\",\"minProperties\":2}",                                               "\"minProperties\" above"                                                        },
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":false,\"minProperties\":2}",
         "nothing satisfies it"                                                                                                                                                      },
        {"{\"properties\":{\"a\":{},\"b\":false},\"additionalProperties\":{},\"minProperties\":3}",
         "\"minProperties\" above"                                                                                                                                                   },
        {"{\"prefixItems\":{}}",                                                                    "at #/prefixItems: expected an array of schemas"                                 },
        {"{\"exclusiveMinimum\":true}",                                                             "at #/exclusiveMinimum: expected a number, found true"                           },
        {"{\"minimum\":1e18}",                                                                      "\"minimum\": numbers have at most 18 digits"                                    },
        {"{\"minimum\":2,\"maximum\":1}",                                                           "no text at all would do"                                                        },
        {"{\"type\":\"array\",\"prefixItems\":[{},{}],\"minItems\":2,\"maxItems\":1}",
         "no text at all would do"                                                                                                                                                   },
        {"{\"pattern\":5}",                                                                         "at #/pattern: expected a regular expression"                                    },
        {"{\"pattern\":\"(\"}",                                                                     "at #/pattern: "                                                                 },
        {"{\"pattern\":\"^(?:a|bb)*$\",\"maxLength\":200000}",
         "at #/pattern: beside this minLength or"                                                                                                                                    },
        {"{\"pattern\":\"(a?){9999}\",\"maxLength\":2}",                                            "at #/pattern: "                                                                 },
        {"{\"pattern\":\"a{,2}\"}",                                                                 "text in ECMAScript"                                                             },
        {"{\"format\":\"date\",\"maxLength\":5}",                                                   "\"format\" with a minLength or"                                                 },
        {"{\"format\":\"email\",\"minLength\":65}",                                                 "\"format\" with a minLength or"                                                 },
        {"{\"format\":\"uri\",\"minLength\":256,\"maxLength\":300}",
         "\"format\" with a minLength or"                                                                                                                                            },
        {"{\"format\":5}",                                                                          "at #/format: expected the name of a format"                                     },
        {"{\"patternProperties\":{\"b\":{}},\"additionalProperties\":false,\"allOf\":[{"
         "\"properties\":{\"b\":{}}}]}",                                                   "\"additionalProperties\" beside \"patternProperties\" and properties of another"},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":false,\"allOf\":[{\"required\":["
         "\"b\"],\"properties\":{\"b\":{}}}]}",                                            "nothing satisfies it"                                                           },
        {"{\"prefixItems\":[{}],\"allOf\":[{\"items\":{\"type\":\"null\"}}]}",
         "\"prefixItems\" beside items"                                                                                                                                              },
        {"{\"pattern\":\"^a|b\",\"allOf\":[{\"pattern\":\"b\"}]}",
         "\"pattern\" differs from the one"                                                                                                                                          },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_refused(bt_read_json_schema, CASES[i].grammar, strlen(CASES[i].grammar),
                       CASES[i].why);
}

/* ---- memory */

static long g_n_allocs;

static void *jansson_alloc(size_t n)
{
    g_n_allocs++;
    return bt_calloc(1, n);
}

static long n_allocs_of_reading(const char *text)
{
    g_n_allocs = 0;
    json_decref(json_loads(text, JSON_REJECT_DUPLICATES, NULL));
    return g_n_allocs;
}

/* Each allocation fails once, jansson's too: it calls some of its own failures bad JSON, and loses
 * a character in others.  Of what it has read, nothing is left out in silence. */
static void expect_survives(read_fn read, const char *text)
{
    bt_status st      = BT_ERR_NO_MEMORY;
    long      n_read  = n_allocs_of_reading(text);
    uint32_t  n_edges = 0;

    for (long k = -1; (st != BT_OK || k <= n_read) && k < 10000; k++) {
        bt_parts    g                         = {0};
        bt_grammar *packed                    = NULL;
        char        why[BT_GRAMMAR_WHY_BYTES] = "";
        long        live                      = bt_alloc_live();
        bt_part     whole;

        bt_alloc_fail_at(k);
        whole = read(&g, text, strlen(text));
        st    = bt_grammar_pack(&g, whole, &packed, why);
        bt_alloc_fail_at(-1);
        EXPECT(st == BT_OK || st == BT_ERR_NO_MEMORY || strstr(why, "found at byte") != NULL);
        if (k < 0) n_edges = packed->n_edges;
        if (st == BT_OK && k >= n_read) EXPECT_EQ(packed->n_edges, n_edges);
        bt_grammar_destroy(packed);
        bt_parts_fini(&g);
        EXPECT_EQ(bt_alloc_live(), live);
    }
    EXPECT_EQ(st, BT_OK);
}

static void schema_survives_every_failed_allocation(void)
{
    json_set_alloc_funcs(jansson_alloc, bt_free);
    expect_survives(
        bt_read_json_schema,
        "{\"properties\":{\"a\":{\"type\":[\"integer\",\"null\"],\"minimum\":-1.5},\"b\":{\"$ref\":"
        "\"#/$defs/x~1\"}},"
        "\"additionalProperties\":{\"enum\":[1.5,\"x\\n\",[{\"k\":null}]]},\"required\":[\"c\"],"
        "\"$defs\":{\"x/"
        "\":{\"minLength\":1,\"format\":\"date\",\"type\":\"array\",\"prefixItems\":[true]}}}");
    expect_survives(
        bt_read_json_schema,
        "{\"allOf\":[{\"properties\":{\"a\":{\"enum\":[1,2]}}},{\"properties\":{\"a\":{\"enum\":[2]"
        "}}},"
        "{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"anyOf\":[{\"type\":\"object\"}]}");
    expect_survives(
        bt_read_json_schema,
        "{\"patternProperties\":{\"^a\":{\"propertyNames\":{\"allOf\":[{\"enum\":[\"a\",\"b\"]},{"
        "\"const\":\"b\"}]},\"additionalProperties\":{\"propertyNames\":{\"maxLength\":1}}}}}");
    expect_survives(
        bt_read_json_schema,
        "{\"uniqueItems\":true,\"items\":{\"anyOf\":[{\"enum\":[\"a\",1]},{\"type\":\"null\"}]}}");
    expect_survives(
        bt_read_json_schema,
        "{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"a\",\"b\"]}},\"required\":[\"k\"],"
        "\"allOf\":[{\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}}},\"then\":{\"dependencies\":{"
        "\"k\":[\"x\"]}}},{\"not\":{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"b\"}}},{"
        "\"required\":[\"z\"]}]}}]}");
    expect_survives(bt_read_json_schema, "{\"type\":[\"string\",\"null\"],\"pattern\":\"c\","
                                         "\"not\":{\"anyOf\":[{\"pattern\":\"^a|b\"},{\"const\":"
                                         "null}]}}");
    expect_survives(
        bt_read_json_schema,
        "{\"properties\":{\"ab\":{\"minimum\":1}},\"patternProperties\":{\"^a\":{\"type\":"
        "\"integer\"},\"b\":{}},\"additionalProperties\":{\"type\":\"null\"}}");
    expect_survives(bt_read_json_schema,
                    "{\"allOf\":[{\"properties\":{\"a\":{\"enum\":[\"x\",\"y1\"],\"pattern\":\"[0-"
                    "9]\"}},\"additionalProperties\":{\"format\":\"date\","
                    "\"const\":\"2000-01-01\"}},{\"properties\":{\"b\":{},\"c\":{}}}],"
                    "\"minProperties\":2,\"maxProperties\":2}");
    expect_survives(
        bt_read_json_schema,
        "{\"enum\":[{\"ab\":[1,2],\"c\":{}},[[1]]],\"properties\":{\"c\":{\"maxItems\":0}},"
        "\"propertyNames\":{\"minLength\":1},\"patternProperties\":{\"^a\":{\"items\":{"
        "\"minimum\":1}}},\"uniqueItems\":true,\"prefixItems\":[{\"maxItems\":2}]}");
    expect_survives(bt_read_json_schema,
                    "{\"type\":\"number\",\"minimum\":0,\"not\":{\"enum\":[2.5,1]}}");
    expect_survives(bt_read_choice, "[\"a\",\"bc\"]");
    json_set_alloc_funcs(malloc, free);
}

/* ---- choice */

static void choice_is_one_of_its_texts(void)
{
    static const texts_case CASES[] = {
        {"[\"yes\",\"no\",\"\xc3\xa9\\n\"]",
         {"yes", "no", "\xc3\xa9\n"},
         {"", "y", "yesno", "\"yes\""}                         },
        {"[\"a\",\"a\",\"ab\"]",             {"a", "ab"}, {"b"}},
    };
    static const refused_case REFUSED[] = {
        {"[]",        "expected an array of strings that is not empty, found []"},
        {"{}",        "expected an array of strings"                            },
        {"[\"a\",5]", "choice 1: expected a string that is not empty, found 5"  },
        {"[\"\"]",    "choice 0: expected a string that is not empty"           },
        {"[\"a\"",    "expected JSON, found at byte 4"                          },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        expect_texts(bt_read_choice, &CASES[i]);
    for (size_t i = 0; i < sizeof(REFUSED) / sizeof(REFUSED[0]); i++)
        expect_refused(bt_read_choice, REFUSED[i].grammar, strlen(REFUSED[i].grammar),
                       REFUSED[i].why);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(schema_lets_through_what_its_keywords_say),
        BT_TEST(schema_that_cannot_be_kept_is_refused_by_name),
        BT_TEST(schema_survives_every_failed_allocation),
        BT_TEST(choice_is_one_of_its_texts),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
