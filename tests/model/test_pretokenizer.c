#include <jansson.h>
#include <stdint.h>

#include "core/log.h"
#include "model/pretokenizer.h"
#include "model/utf8.h"
#include "tests/model/unicode_goldens.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* A step that isolates the matches of the regex, or "Digits". */
static bt_status create(const char *regex, bt_pretokenizer **pre_out)
{
    bool      digits = strcmp(regex, "Digits") == 0;
    json_t   *step   = digits ? json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1)
                              : json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern",
                                          "Regex", regex, "behavior", "Isolated", "invert", 0);
    json_t   *spec = json_pack("{s:s, s:[o, {s:s, s:b, s:b}]}", "type", "Sequence", "pretokenizers",
                               step, "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    bt_status st;

    NEED(spec != NULL);
    st = bt_pretokenizer_create("tokenizer.json", spec, pre_out);
    json_decref(spec);
    return st;
}

static bt_pretokenizer *create_or_die(const char *regex)
{
    bt_pretokenizer *pre = NULL;

    NEED(create(regex, &pre) == BT_OK);
    return pre;
}

static size_t put(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* The code points of the goldens, each behind the separator. */
static char *every_code_point(char separator, size_t *n_out)
{
    char  *text = malloc(5 * 0x33800);
    size_t n    = 0;

    NEED(text != NULL);
    for (uint32_t c = 0; c < 0xe0200; c++) {
        if (c == 0x33480) c = 0xe0000;
        if (c >= 0xd800 && c < 0xe000) continue;
        text[n++] = separator;
        n += put(text + n, c);
    }
    *n_out = n;
    return text;
}

typedef struct {
    uint32_t n;
    uint64_t hash;
} taken;

/* What the regex takes; it must not take the separator. */
static taken take(const char *regex, char separator)
{
    bt_pretokenizer *pre    = create_or_die(regex);
    bt_pretokens     pieces = {0};
    size_t           n      = 0;
    char            *text   = every_code_point(separator, &n);
    taken            got    = {0, UINT64_C(0xcbf29ce484222325)};

    NEED(bt_pretokenizer_cut(pre, text, n, &pieces) == BT_OK);
    for (size_t i = 0; i < pieces.n; i++) {
        const char *piece = text + pieces.pieces[i].at;

        if (piece[0] == separator) continue;
        got.n++;
        got.hash = (got.hash ^ bt_utf8_char(piece, pieces.pieces[i].n)) * UINT64_C(0x100000001b3);
    }
    bt_pretokens_fini(&pieces);
    bt_pretokenizer_destroy(pre);
    free(text);
    return got;
}

/* What the regex does not take. */
static char separator_of(const char *regex) { return strncmp(regex, "\\p{L", 4) == 0 ? '1' : 'a'; }

static void pretokenizer_properties_equal_hugging_face(void)
{
    for (size_t i = 0; i < COUNT(UNICODE_GOLDENS); i++) {
        const char *regex  = UNICODE_GOLDENS[i].regex;
        taken       got    = take(regex, separator_of(regex));
        int         before = g_failures;

        EXPECT_EQ(got.n, UNICODE_GOLDENS[i].n);
        EXPECT(got.hash == UNICODE_GOLDENS[i].hash);
        if (g_failures != before) fprintf(stderr, "    in %s\n", regex);
    }
}

static void pretokenizer_properties_stand_in_classes(void)
{
    static const char *const SAME[][2] = {
        {"\\p{L}",     "[\\p{L}]"                             },
        {"\\p{L}",     "[\\p{Lu}\\p{Ll}\\p{Lt}\\p{Lm}\\p{Lo}]"},
        {"\\p{L}",     "\\P{^L}"                              },
        {"\\p{L}",     "(?!\\P{L})\\S"                        },
        {"\\p{L}",     "(?![^\\p{L}])\\S"                     },
        {"\\p{L}",     "(?!\\p{^L})\\S"                       },
        {"\\p{Nd}",    "(?!\\D)\\S"                           },
        {"\\p{Latin}", "(?!\\P{Latin})\\S"                    },
    };

    for (size_t i = 0; i < COUNT(SAME); i++) {
        taken a = take(SAME[i][0], separator_of(SAME[i][0]));
        taken b = take(SAME[i][1], separator_of(SAME[i][0]));

        EXPECT_EQ(b.n, a.n);
        EXPECT(b.hash == a.hash);
    }
}

#define GLM                                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" \
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K                                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}" \
    "]?" UPPER "+" LOWER "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r"    \
    "\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define NO_HAN     "&&[^\\p{Han}]]"
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" NO_HAN
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" NO_HAN
#define KIMI                                                                     \
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER               \
    "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}"                              \
    "\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER                                         \
    "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define V3                                                                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}" \
    "\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define HEART "\xf0\x9f\xa9\xb7" /* U+1FA77, a symbol since Unicode 15 */
#define HAN   "\xf0\xb1\x8d\x90" /* U+31350, a letter since Unicode 15 */
#define GARAY "\xf0\x90\xb5\x90" /* U+10D50, a capital since Unicode 16 */
#define DIGIT "\xf0\x9e\x93\xb1" /* U+1E4F1, a digit since Unicode 15 */
#define NEWER "\xf0\x91\xb7\xa1" /* U+11DE1, a digit since Unicode 17 */
#define ZH    "\xe4\xb8\xad"
#define DITTO "\xe3\x80\x83" /* U+3003: of Han's Script_Extensions, not of Han */

/* What `tokenizers` 0.23.3 cuts: text | with bars between its pieces. */
static void pretokenizer_cuts_as_hugging_face(void)
{
    static const char *const CASES[][2] = {
        {V3,                              "ab|" HEART "!|cd| " HEART HEART "\n"                    },
        {V3,                              "ab" HAN "c|!|" HAN                                      },
        {GLM,                             "ab" HAN "|" HEART "|12" DIGIT "|3|'LL|'Re| a"           },
        {O200K,                           "don'T|" GARAY "b" HAN "b'S|" GARAY GARAY "| " HEART "/" },
        {KIMI,                            "don'T|" ZH HAN "|a|" DITTO "|" ZH "|Bc's|" ZH "| x|12|!"},
        {"[a-c&&[^b]]+|\\p{N}",           "b|ac|bb|a|1|b"                                          },
        {"[\\p{L}&&[^\\x{41}-\\x{43}x]]", "A|b|Cx|y|1"                                             },
        {"'(?i:[sdmt]|ll|ve|re)|\\p{N}",  "a|'LL|b|'S|c'f|1"                                       },
        {"(?i:[a-z])+",                   "K\xe2\x84\xaa"
                        "s\xc5\xbf"
                        "S|1"                                               },
        {"(?i:s)t|(?i:s+)x",              "\xef\xac\x86|st|\xc3\x9f|SSx"                           },
        {"[\\p{Han}]+",                   ZH HAN ZH "|" DITTO "|" ZH                               },
        {"a{2,3}?b|\\p{N}{2}",            "a|aaab|12|3"                                            },
        {"(?>[^q]+|y){1,2}=.",            "ay==b"                                                  },
        {"Digits",                        "a|1|" DIGIT "|" NEWER "|b"                              },
    };

    for (size_t i = 0; i < COUNT(CASES); i++) {
        bt_pretokenizer *pre    = create_or_die(CASES[i][0]);
        bt_pretokens     pieces = {0};
        char             text[256], got[256];
        size_t           n = 0, m = 0;

        for (const char *p = CASES[i][1]; *p != '\0'; p++)
            if (*p != '|') text[n++] = *p;
        NEED(bt_pretokenizer_cut(pre, text, n, &pieces) == BT_OK);
        for (size_t k = 0; k < pieces.n; k++) {
            if (k != 0) got[m++] = '|';
            memcpy(got + m, text + pieces.pieces[k].at, pieces.pieces[k].n);
            m += pieces.pieces[k].n;
        }
        got[m] = '\0';
        if (strcmp(got, CASES[i][1]) != 0) {
            g_failures++;
            fprintf(stderr, "case %zu: expected %s, found %s\n", i, CASES[i][1], got);
        }
        bt_pretokens_fini(&pieces);
        bt_pretokenizer_destroy(pre);
    }
}

/* What Oniguruma reads otherwise than PCRE2. */
static void pretokenizer_other_regexes_are_refused_by_name(void)
{
    static const char *const BAD[][2] = {
        {"a{1,2}+",               "\"{1,2}+\" at byte 1 (a repeat that is repeated"            },
        {"a{2}+",                 "\"{2}+\" at byte 1 (a repeat that is repeated"              },
        {"a{2,}+",                "\"{2,}+\" at byte 1 (a repeat that is repeated"             },
        {"a{2}?",                 "\"{2}?\" at byte 1 (an optional repeat"                     },
        {"ba{,3}",                "\"{,3}\" at byte 2 (no repeat that both read alike)"        },
        {"a{ 1}",                 "\"{ \" at byte 1 (no repeat that both read alike)"          },
        {"a{1",                   "\"{1\" at byte 1 (no repeat that both read alike)"          },
        {"\\p{Letter}",           "\"\\p{Letter}\" at byte 0 (a property that is not known"    },
        {"\\p{Mn}",               "\"\\p{Mn}\" at byte 0 (a property that is not known"        },
        {"[^\\p{Cn}]",            "\"\\p{Cn}\" at byte 2 (a property that is not known"        },
        {"\\p{Greek_Extended}",   "at byte 0 (a property that is not known"                    },
        {"\\p{L",                 "\"\\p{\" at byte 0 (a property that is not known"           },
        {"\\p{}",                 "\"\\p{\" at byte 0 (a property that is not known"           },
        {"\\p{Abcdefghijklmnop}", "\"\\p{\" at byte 0 (a property that is not known"           },
        {"[^]a]",                 "\"]\" at byte 2 (at the start of a class)"                  },
        {"[]a]",                  "\"]\" at byte 1 (at the start of a class)"                  },
        {"\\pL",                  "\"\\pL\" at byte 0 (a property that is not known"           },
        {"\\p",                   "\"\\p\" at byte 0 (a property that is not known"            },
        {"[\\P{L}]",              "\"\\P{L}\" at byte 1 (a negated property in a class)"       },
        {"[\\D]",                 "\"\\D\" at byte 1 (a negated property in a class)"          },
        {"[\\p{L}-z]",            "\"-\" at byte 6 (a range that starts with many"             },
        {"[\\s-\\x{4000}]",       "\"-\" at byte 3 (a range that starts with many"             },
        {"\\xe9",                 "\"\\xe\" at byte 0 (not known"                              },
        {"\\x4",                  "\"\\x4\" at byte 0 (not known"                              },
        {"\\x{4 5}",              "\"\\x{\" at byte 0 (no hexadecimal number)"                 },
        {"(?i:ss)",               "\"s\" at byte 5 (under (?i, where one letter may match two)"},
        {"(?i:'s|xST)",           "\"T\" at byte 9 (under (?i, where"                          },
        {"(?i:f(?:i))",           "\"i\" at byte 8 (under (?i, where"                          },
        {"(?i:(?:x)f+f)",         "\"f\" at byte 11 (under (?i, where"                         },
        {"(?i:\xc3\xa9)",         "\"\xc3\xa9\" at byte 4 (beyond ASCII under (?i)"            },
        {"(?i:[a" HEART "])",     "\"" HEART "\" at byte 6 (beyond ASCII under (?i)"           },
        {"(?i:[^a])",             "\"[^\" at byte 4 (not known"                                },
        {"[a&&b]",                "\"&&\" at byte 2 (an intersection of classes other than"    },
        {"[a&&[b]]",              "\"&&\" at byte 2 (an intersection of classes other than"    },
        {"[&&[^b]]",              "\"&&\" at byte 1 (an intersection of classes other than"    },
        {"[^a&&[^b]]",            "\"&&\" at byte 3 (an intersection of classes other than"    },
        {"[a&&[^b]c]",            "\"]c\" at byte 7 (an intersection of classes other than"    },
        {"[a&&[^b&&[^c]]]",       "\"&&\" at byte 7 (an intersection of classes other than"    },
        {"(?i:[a&&[^b]])",        "\"&&\" at byte 6 (an intersection of classes other than"    },
        {"(?i:\\p{Lu})",          "\"\\p\" at byte 4 (not known"                               },
        {"(?i:\\x73s)",           "\"\\x\" at byte 4 (not known"                               },
    };

    for (size_t i = 0; i < COUNT(BAD); i++) {
        bt_pretokenizer *pre    = NULL;
        int              before = g_failures;

        EXPECT_EQ(create(BAD[i][0], &pre), BT_ERR_UNSUPPORTED);
        EXPECT(pre == NULL);
        EXPECT_HAS(bt_error_text(), "tokenizer.json: pre_tokenizer: the regex has ");
        EXPECT_HAS(bt_error_text(), BAD[i][1]);
        if (g_failures != before) fprintf(stderr, "    in case %zu\n", i);
        bt_pretokenizer_destroy(pre);
    }
}

/* How often the regex matches the text. */
static size_t n_pieces(const char *regex, const char *text, size_t n)
{
    bt_pretokenizer *pre    = create_or_die(regex);
    bt_pretokens     pieces = {0};
    size_t           found;

    EXPECT_EQ(bt_pretokenizer_cut(pre, text, n, &pieces), BT_OK);
    found = pieces.n;
    bt_pretokens_fini(&pieces);
    bt_pretokenizer_destroy(pre);
    return found;
}

static void pretokenizer_class_may_end_with_a_hyphen(void)
{
    EXPECT_EQ(n_pieces("[\\s-]", "a- b", 4), 4);
}

/* More than the machine's stack of PCRE2's compiled code remembers. */
static void pretokenizer_match_that_takes_much_memory_is_found(void)
{
    enum { N = 200000 };
    char *text = malloc(N);

    NEED(text != NULL);
    memset(text, 'a', N);
    EXPECT_EQ(n_pieces("(?:a|b)+c|a", text, 2000), 2000);
    EXPECT_EQ(n_pieces("(?:a|b)+", text, N), 1);
    free(text);
}

static void pretokenizer_of_too_many_steps_is_refused(void)
{
    json_t          *steps = json_array(), *spec;
    bt_pretokenizer *pre   = NULL;

    for (int i = 0; i < 33; i++)
        json_array_append_new(steps,
                              json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
    json_array_append_new(steps, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel",
                                           "add_prefix_space", 0, "use_regex", 0));
    spec = json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
    NEED(spec != NULL);
    EXPECT_EQ(bt_pretokenizer_create("tokenizer.json", spec, &pre), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "expected at most 32 steps");
    json_array_remove(steps, 0);
    EXPECT_EQ(bt_pretokenizer_create("tokenizer.json", spec, &pre), BT_OK);
    bt_pretokenizer_destroy(pre);
    json_decref(spec);
}

static void pretokenizer_create_unwinds_at_every_allocation(void)
{
    static const char *const REGEXES[] = {"\\p{L}+|\\s", "Digits"};

    for (size_t i = 0; i < COUNT(REGEXES); i++) {
        bt_pretokenizer *pre = NULL;

        EXPECT(BT_SWEEP_BUT(12, create(REGEXES[i], &pre),
                            (bt_pretokenizer_destroy(pre), pre = NULL)) > 4);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(pretokenizer_properties_equal_hugging_face),
        BT_TEST(pretokenizer_properties_stand_in_classes),
        BT_TEST(pretokenizer_cuts_as_hugging_face),
        BT_TEST(pretokenizer_other_regexes_are_refused_by_name),
        BT_TEST(pretokenizer_class_may_end_with_a_hyphen),
        BT_TEST(pretokenizer_match_that_takes_much_memory_is_found),
        BT_TEST(pretokenizer_of_too_many_steps_is_refused),
        BT_TEST(pretokenizer_create_unwinds_at_every_allocation),
    };

    return bt_run_tests(TESTS, COUNT(TESTS), argc > 1 ? argv[1] : NULL);
}
