/* JSON schemas of hostile size, depth and work: kept while they can be, and answered soon. */
#include "tests/model/grammar_texts.h"

/* head, n times the piece, tail; where the piece has a %, that is its number, and commas part them.
 */
static char *repeated(const char *head, const char *piece, int n, const char *tail)
{
    size_t room = strlen(head) + (size_t)n * (2 * strlen(piece) + 12) + strlen(tail) + 1;
    size_t at   = strlen(head);
    char  *text = bt_calloc(room, 1);

    NEED(text != NULL);
    memcpy(text, head, at);
    for (int i = 0; i < n; i++) {
        if (i > 0 && strchr(piece, '%') != NULL) text[at++] = ',';
        for (const char *p = piece; *p != '\0'; p++)
            if (*p == '%')
                at += (size_t)snprintf(text + at, room - at, "%d", i);
            else
                text[at++] = *p;
    }
    snprintf(text + at, room - at, "%s", tail);
    return text;
}

static void schema_of_a_thousand_properties_is_kept(void)
{
    static const char *const TAILS[] = {"}}", "},\"additionalProperties\":true}"};
    char                     why[BT_GRAMMAR_WHY_BYTES];

    for (int i = 0; i < 2; i++) {
        char *text =
            repeated("{\"properties\":{", "\"property_%\":{\"type\":\"integer\",\"minimum\":%}",
                     1000, TAILS[i]);
        bt_parts    g = {0};
        bt_matcher *m = matcher_of(&g, bt_read_json_schema(&g, text, strlen(text)), NULL, why);

        NEED(m != NULL);
        EXPECT_VERDICT(m, "{}", ACCEPTS);
        EXPECT_VERDICT(m, "{\"property_0\":0,\"property_500\":500,\"property_999\":1000}", ACCEPTS);
        EXPECT(judge(m, "{\"property_500\":499}") != ACCEPTS);
        EXPECT(judge(m, "{\"property_5\":5,\"property_4\":4}") != ACCEPTS);
        EXPECT_EQ(judge(m, "{\"property_1000\":\"x\"}"), i == 0 ? REFUSES : ACCEPTS);
        bt_matcher_destroy(m);
        bt_free(text);
    }
}

static void schema_nests_to_a_depth_and_no_deeper(void)
{
    for (int depth = BT_GRAMMAR_DEPTH_MAX - 1; depth <= 300;
         depth += depth < BT_GRAMMAR_DEPTH_MAX ? 1 : 172) {
        char       *head = repeated("", "{\"items\":", depth, "{\"type\":\"null\"}");
        char       *text = repeated(head, "}", depth, ""), why[BT_GRAMMAR_WHY_BYTES] = "";
        bt_parts    g = {0};
        bt_matcher *m = matcher_of(&g, bt_read_json_schema(&g, text, strlen(text)), NULL, why);

        EXPECT_EQ(m != NULL, depth < BT_GRAMMAR_DEPTH_MAX);
        if (m == NULL) EXPECT_HAS(why, "items/items: more than 128 levels deep");
        bt_matcher_destroy(m);
        bt_free(head);
        bt_free(text);
    }
}

static void schema_of_hostile_size_is_answered_soon(void)
{
    static const char *const HEADS[] = {
        "{\"anyOf\":[",
        "[",
        "{\"allOf\":[",
        "{\"enum\":[",
        "{\"required\":[",
        "{\"$ref\":\"#/",
        "{\"enum\":[1,1,1,1,1,1],\"anyOf\":[",
        "{\"properties\":{\"",
        "{\"const\":",
        "{\"const\":\"",
    };
    static const char *const PIECES[] = {
        "[",
        "{\"a\":",
        "true,",
        "1,",
        "\"a\",",
        "{\"$ref\":\"#\"},",
        "a/",
        "{\"allOf\":[",
        "a",
        "{\"anyOf\":[{\"type\":\"string\"},",
        "{\"minLength\":70000},",
        "%",
    };

    for (size_t i = 0; i < sizeof(HEADS) / sizeof(HEADS[0]); i++)
        for (size_t k = 0; k < sizeof(PIECES) / sizeof(PIECES[0]); k++)
            expect_read_soon(bt_read_json_schema, HEADS[i], PIECES[k]);
}

static void expect_answered_soon(const char *text)
{
    bt_parts    g      = {0};
    bt_grammar *packed = NULL;
    char        why[BT_GRAMMAR_WHY_BYTES];
    clock_t     from = clock();
    bt_status   st = bt_grammar_pack(&g, bt_read_json_schema(&g, text, strlen(text)), &packed, why);
    double      seconds = (double)(clock() - from) / CLOCKS_PER_SEC;

    if (seconds > 3) fprintf(stderr, "%.60s...: %.3f s\n", text, seconds);
    EXPECT(st == BT_OK || st == BT_ERR_INVALID_ARG);
    EXPECT(seconds <= 3);
    bt_grammar_destroy(packed);
    bt_parts_fini(&g);
}

/* Of many kinds of bytes, each of which leads to many readings. */
#define DEEP "(?=a{9999}a{9999}a{9999})[^\\\\s\\\\S]" /* no text at all */
#define STARS                                                        \
    "a*b*c*d*e*f*g*h*i*j*k*l*m*n*o*p*q*r*s*t*u*v*w*x*y*z*A*B*C*D*E*" \
    "F*G*H*I*J*K*L*M*N*O*P*Q*R*S*T*U*V*W*X*Y*Z*0*1*2*3*4*5*6*7*8*9*"

/* Texts that jansson takes: work that a few keywords ask for again and again. */
static void schema_of_much_work_is_answered_soon(void)
{
    static const struct {
        const char *head, *piece, *tail;
        int         n;
    } CASES[] = {
        {"{\"enum\":[1",                                                                      ",1",                                                               "],\"anyOf\":[{}",                            50000 },
        {"{\"type\":\"object\",\"anyOf\":[{}",                                                ",{\"required\":[\"a\"]}",                                          "]}",                                         10000 },
        {"{\"properties\":{",                                                                 "\"%\":{}",                                                         "},\"additionalProperties\":true}",           18000 },
        {"{\"properties\":{",                                                                 "\"%\":{}",                                                         "},\"allOf\":[{\"properties\":{\"x\":{}}}]}", 18000 },
        {"{\"enum\":[",                                                                       "\"text %\"",                                                       "]}",                                         18000 },
        {"{\"anyOf\":[",                                                                      "{\"$ref\":\"#/x/%\"}",                                             "],\"x\":[]}",                                10000 },
        {"{\"anyOf\":[",                                                                      "{\"minimum\":%}",                                                  "]}",                                         15000 },
        {"{\"anyOf\":[",                                                                      "{\"maxLength\":%}",                                                "]}",                                         15000 },
        {"{\"allOf\":[{}",                                                                    ",{\"not\":{\"required\":[\"a\",\"b\",\"c\"]}}",                    "]}",                                         5000  },
        {"{\"allOf\":[{}",                                                                    ",{\"if\":{\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]}}", "]}",
         4000                                                                                                                                                                                                         },
        {"{\"dependencies\":{",                                                               "\"%\":[\"a\"]",                                                    "}}",                                         15000 },
        {"{\"patternProperties\":{\"a\":{},\"b$\":{}},\"properties\":{",                      "\"%\":{}",                                                         "}}",                                         15000 },
        {"{\"anyOf\":[",
         "{\"patternProperties\":{\"a%\":{},\"^b\":{},\"c{9}\":{}},\"additionalProperties\":{"
         "\"type\":\"null\"}}",                                                                                                                                   "]}",                                         2000  },
        {"{\"anyOf\":[",
         "{\"patternProperties\":{\"" DEEP "%\":{},\"" STARS "\":{},\"a.{0,12}b\":{}}}",                                                                          "]}",                                         400   },
        {"{\"anyOf\":[",
         "{\"properties\":{\"a%\":{}},\"patternProperties\":{\"^[a-z]{0,99}(a|b)$\":{\"type\":"
         "\"null\"}}}",                                                                                                                                           "]}",                                         2000  },
        {"{\"properties\":{\"p\":{}},\"additionalProperties\":{\"minimum\":1},\"allOf\":[{}",
         ",{\"properties\":{\"a\":{}},\"additionalProperties\":{\"minimum\":2}}",                                                                                 "]}",                                         4000  },
        {"{\"minProperties\":250,\"properties\":{",                                           "\"%\":{}",
         "},\"additionalProperties\":true,\"maxProperties\":300}",                                                                                                                                              15000 },
        {"{\"minProperties\":250,\"properties\":{",                                           "\"%\":{}",                                                         "},\"maxProperties\":7000}",                  15000 },
        {"{\"pattern\":\"" STARS STARS "$\",\"enum\":[",                                      "\"abcabc %\"",                                                     "]}",                                         15000 },
        {"{\"enum\":[\"a\"],\"anyOf\":[",                                                     "{\"pattern\":\"(a{99}){9}|a%\"}",                                  "]}",                                         6000  },
        {"{\"not\":{\"oneOf\":[{}",                                                           ",{\"minimum\":1}",                                                 "]}}",                                        12000 },
        {"{\"type\":\"number\",\"not\":{\"enum\":[0",                                         ",%",                                                               "]}}",                                        18000 },
        {"{\"not\":{\"properties\":{",                                                        "\"%\":{\"const\":1}",                                              "}}}",                                        10000 },
        {"{\"allOf\":[{}",                                                                    ",{\"pattern\":\"^a\"},{\"pattern\":\"b\"}",                        "]}",                                         6000  },
        {"{\"not\":{\"pattern\":\"a",                                                         "|b",                                                               "\"}}",                                       100000},
        {"{\"properties\":{\"k\":{\"enum\":[0",                                               ",1",
         "]}},\"allOf\":[{\"not\":{\"properties\":{\"k\":{\"const\":1}}}},{\"not\":{\"properties\":"
         "{\"k\":{\"const\":0}}}}]}",                                                                                                                                                                           60000 },
        {"{\"maxLength\":9,\"pattern\":\"^#{0,200}",                                          STARS,                                                              "$\"}",                                       60    },
        {"{\"anyOf\":[",                                                                      "{\"maxLength\":9,\"pattern\":\"^a{%}#{0,9}" STARS "$\"}",          "]}",                                         1000  },
        {"{\"anyOf\":[",                                                                      "{\"maxLength\":9,\"pattern\":\"^" DEEP "%$\"}",                    "]}",                                         2000  },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        char *text = repeated(CASES[i].head, CASES[i].piece, CASES[i].n, CASES[i].tail);

        if (i == 0) { /* each branch would look at each value */
            char *more = repeated(text, ",{\"type\":\"string\"}", 7000, "]}");

            bt_free(text);
            text = more;
        }
        expect_answered_soon(text);
        bt_free(text);
    }
}

/* Where each kind contradicts the others, branches grow with their number, not with its power. */
static void schema_of_many_conditions_on_one_name_is_kept(void)
{
    char *text =
        repeated("{\"type\":\"object\",\"properties\":{\"kind\":{\"type\":\"string\"}},"
                 "\"required\":[\"kind\"],\"allOf\":[",
                 "{\"if\":{\"properties\":{\"kind\":{\"const\":\"k%\"}},\"required\":[\"kind\"]},"
                 "\"then\":{\"required\":[\"p%\"]}}",
                 20, "]}");
    char        why[BT_GRAMMAR_WHY_BYTES] = "";
    bt_parts    g                         = {0};
    bt_matcher *m = matcher_of(&g, bt_read_json_schema(&g, text, strlen(text)), NULL, why);

    NEED(m != NULL);
    EXPECT_VERDICT(m, "{\"kind\":\"k7\",\"p7\":1}", ACCEPTS);
    EXPECT_VERDICT(m, "{\"kind\":\"k20\"}", ACCEPTS);
    EXPECT(judge(m, "{\"kind\":\"k7\",\"p8\":1}") != ACCEPTS);
    EXPECT(judge(m, "{\"kind\":\"k7\"}") != ACCEPTS);
    bt_matcher_destroy(m);
    bt_free(text);
}

/* Conditions in each other. */
static void schema_of_nested_conditions_is_answered_soon(void)
{
    static const char *const PIECES[][2] = {
        {"{\"not\":",                                                           "}"                                                                },
        {"{\"if\":",                                                            ",\"then\":{\"required\":[\"a\"]},\"else\":{\"required\":[\"b\"]}}"},
        {"{\"not\":{\"anyOf\":[{\"required\":[\"a\"]},{\"properties\":{\"a\":", "}}]}}"                                                            },
        {"{\"not\":{\"oneOf\":[{\"required\":[\"a\"]},",                        "]}}"                                                              },
        {"{\"dependencies\":{\"a\":",                                           ",\"b\":[\"c\"]}}"                                                 }
    };

    for (size_t i = 0; i < sizeof(PIECES) / sizeof(PIECES[0]); i++)
        for (int depth = 5; depth <= 120; depth += depth < 20 ? 5 : 50) {
            char *head = repeated("", PIECES[i][0], depth, "{\"required\":[\"c\"]}");
            char *text = repeated(head, PIECES[i][1], depth, "");

            expect_answered_soon(text);
            bt_free(head);
            bt_free(text);
        }
}

/* The tail, n times, behind a head with a long value in it. */
static void expect_too_much(const char *head, const char *piece, const char *middle,
                            const char *again, int n)
{
    char *front = repeated(head, piece, 30000, middle);
    char *text  = repeated(front, again, n, "]}");

    EXPECT(strlen(text) <= BT_CONSTRAINT_BYTES_MAX);
    expect_refused(bt_read_json_schema, text, strlen(text), "the schema is too large");
    bt_free(front);
    bt_free(text);
}

/* The same long value is compared or read each time. */
static void schema_of_much_work_at_a_long_value_is_refused(void)
{
    expect_too_much("{\"e\":{\"enum\":[3]},\"enum\":[[", "1,", "2]],\"anyOf\":[{}",
                    ",{\"$ref\":\"#/e\"}", 8000);
    expect_too_much("{\"e\":{\"enum\":[3]},\"const\":[", "1,", "2],\"anyOf\":[{}",
                    ",{\"$ref\":\"#/e\"}", 8000);
    expect_too_much("{\"e\":{\"properties\":{\"a\":{}}},\"type\":\"null\",\"properties\":{\"a\":[",
                    "1,", "2]},\"anyOf\":[{}", ",{\"$ref\":\"#/e\"}", 8000);
    expect_too_much("{\"type\":[\"null\"", ",\"null\"", "],\"anyOf\":[{}", ",{}", 15000);
    expect_too_much("{\"e\":{\"pattern\":\"[", "a", "]\"},\"anyOf\":[{}",
                    ",{\"$ref\":\"#/e\",\"type\":\"string\"}", 5000);
}

static void schema_of_much_work_at_a_long_name_is_refused(void)
{
    char *front = repeated("{\"e\":{\"properties\":{\"", "k", 30000,
                           "\":{}}},\"type\":\"null\",\"properties\":{\"");

    expect_too_much(front, "k", "\":{\"minimum\":1}},\"anyOf\":[{}", ",{\"$ref\":\"#/e\"}", 8000);
    bt_free(front);
}

/* Each schema of the tag is within what reading may take; two of them are beyond it. */
static void schemas_of_a_tag_are_too_much_together(void)
{
    char    *front  = repeated("{\"enum\":[", "%", 700, "],\"allOf\":[{\"enum\":[");
    char    *schema = repeated(front, "-%", 700, "]}]}");
    char    *format = repeated("{\"type\":\"json_schema\",\"json_schema\":", schema, 1, "}");
    char    *begin  = repeated("{\"format\":{\"type\":\"or\",\"elements\":[", format, 1, "");
    char    *one = repeated(begin, "]}}", 1, ""), *next = repeated(begin, ",", 1, format);
    char    *two = repeated(next, "]}}", 1, "");
    bt_parts g   = {0};

    bt_read_structural_tag(&g, one, strlen(one));
    EXPECT(g.st == BT_OK);
    expect_refused(bt_read_structural_tag, two, strlen(two),
                   "at /format/elements/1 of the structural tag: at #/allOf/0: the schema is too "
                   "large beside those before it: reading all takes more than 524288 steps");
    bt_parts_fini(&g);
    bt_free(front);
    bt_free(schema);
    bt_free(format);
    bt_free(begin);
    bt_free(one);
    bt_free(next);
    bt_free(two);
}

/* Held against each property of another schema. */
static void schema_of_a_long_additional_one_is_refused(void)
{
    char *front =
        repeated("{\"additionalProperties\":{", "\"%\":1", 9000, "},\"allOf\":[{\"properties\":{");
    char *text = repeated(front, "\"p%\":{}", 9000, "}}]}");

    expect_refused(bt_read_json_schema, text, strlen(text), "the schema is too large");
    bt_free(front);
    bt_free(text);
}

/* Schemas that must hold together do not come to lie in each other: that would be as deep. */
static void schema_of_many_that_must_hold_is_no_deep_one(void)
{
    static const char *const HEADS[] = {
        "{\"a\":{\"items\":{\"minimum\":1}},\"b\":{\"items\":{\"minimum\":2}},\"allOf\":[{}",
        "{\"a\":{\"properties\":{\"p\":{\"minimum\":1}}},"
        "\"b\":{\"properties\":{\"p\":{\"minimum\":2}}},\"allOf\":[{}"};
    static const char both[] = ",{\"$ref\":\"#/a\"},{\"$ref\":\"#/b\"}";

    for (int i = 0; i < 2; i++) {
        char *few  = repeated(HEADS[i], both, 200, "]}"),
             *many = repeated(HEADS[i], both, 8000, "]}");
        bt_parts g = {0};

        bt_read_json_schema(&g, few, strlen(few));
        EXPECT(g.st == BT_OK);
        expect_refused(bt_read_json_schema, many, strlen(many), "the schema is too large");
        bt_parts_fini(&g);
        bt_free(few);
        bt_free(many);
    }
}

/* Each level refers to the next twice. */
static void schema_that_doubles_is_refused_in_time(void)
{
    char   text[8192];
    size_t n = (size_t)snprintf(text, sizeof(text), "{\"allOf\":[{\"$ref\":\"#/x/0\"},{}],\"x\":[");

    for (int i = 0; i < 60; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n,
                              "{\"allOf\":[{\"$ref\":\"#/x/%d\"},{\"$ref\":\"#/x/%d\"}]},", i + 1,
                              i + 1);
    n += (size_t)snprintf(text + n, sizeof(text) - n, "{}]}");
    expect_refused(bt_read_json_schema, text, n, "the schema is too large");
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(schema_of_a_thousand_properties_is_kept),
        BT_TEST(schema_nests_to_a_depth_and_no_deeper),
        BT_TEST(schema_of_hostile_size_is_answered_soon),
        BT_TEST(schema_of_much_work_is_answered_soon),
        BT_TEST(schema_of_many_conditions_on_one_name_is_kept),
        BT_TEST(schema_of_nested_conditions_is_answered_soon),
        BT_TEST(schema_of_much_work_at_a_long_value_is_refused),
        BT_TEST(schema_of_much_work_at_a_long_name_is_refused),
        BT_TEST(schemas_of_a_tag_are_too_much_together),
        BT_TEST(schema_of_a_long_additional_one_is_refused),
        BT_TEST(schema_of_many_that_must_hold_is_no_deep_one),
        BT_TEST(schema_that_doubles_is_refused_in_time),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
