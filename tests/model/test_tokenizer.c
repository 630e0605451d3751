#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "core/alloc.h"
#include "tests/model/tokenizer_cases.h"
#include "tests/support/scratch.h"
#include "tests/support/sweep.h"

#define FIXTURES BT_SOURCE_DIR "/tests/fixtures"
#define DEMO     BT_SOURCE_DIR "/models/demo"
#define V2       BT_SOURCE_DIR "/tests/models/v2-lite"
#define CODE     FIXTURES "/tokenizer-code.json"

static void tokenizer_of_demo_equals_hugging_face(void)
{
    check_fixture(DEMO, FIXTURES "/tokenizer-v3.jsonl");
}

static void tokenizer_of_v2_equals_hugging_face(void)
{
    check_fixture(V2, FIXTURES "/tokenizer-v2.jsonl");
}

static void tokenizer_of_code_equals_hugging_face(void)
{
    check_fixture(CODE, FIXTURES "/tokenizer-code.jsonl");
}

static void tokenizer_v2_gives_each_digit_a_token(void)
{
    bt_tokenizer *tok = open_or_die(V2);

    EXPECT_EQ(count(tok, "123", 3), 3);
    EXPECT_EQ(count(tok, "0", 1), 1);
    bt_tokenizer_close(tok);
}

static void tokenizer_empty_text_has_no_ids(void)
{
    bt_tokenizer *tok = open_or_die(DEMO);

    EXPECT_EQ(count(tok, "", 0), 0);
    bt_tokenizer_close(tok);
}

static void tokenizer_vocabulary_and_added_tokens_are_known(void)
{
    bt_tokenizer *tok     = open_or_die(DEMO);
    bool          special = false;
    size_t        n       = 0;
    const char   *bytes;

    EXPECT_EQ(bt_tokenizer_vocab_size(tok), 2048);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<\xef\xbd\x9c"
                                         "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"),
              0);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<think>"), 2044);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<think"), -1);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "x<think>"), -1);
    EXPECT_EQ(bt_tokenizer_added_id(tok, ""), -1);
    bytes = bt_tokenizer_bytes(tok, 2044, &n, &special);
    EXPECT(n == 7 && memcmp(bytes, "<think>", 7) == 0 && !special);
    bt_tokenizer_bytes(tok, 0, &n, &special);
    EXPECT(n == strlen("<|begin_of_sentence|>") + 8 && special);
    bt_tokenizer_bytes(tok, 2048, &n, &special);
    EXPECT(n == 0 && !special);
    bt_tokenizer_bytes(tok, UINT32_MAX, &n, &special);
    EXPECT(n == 0 && !special);
    bt_tokenizer_close(tok);
}

static void tokenizer_broken_utf8_is_replaced_first(void)
{
    static const struct {
        const char *broken, *whole;
    } CASES[] = {
        {"\xff",                 "\xef\xbf\xbd"                                                },
        {"a\xc3",                "a\xef\xbf\xbd"                                               },
        {"\xe4\xb8z",            "\xef\xbf\xbdz"                                               },
        {"\xed\xa0\x80",         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"                        },
        {"\xf0\x9f\x99x\x80",    "\xef\xbf\xbdx\xef\xbf\xbd"                                   },
        {"\xc0\xaf\xf4\x90\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    bt_tokenizer *tok = open_or_die(DEMO);

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        uint32_t *a = NULL, *b = NULL;
        size_t    n = 0, m = 1;

        EXPECT_EQ(bt_tokenizer_encode(tok, CASES[i].broken, strlen(CASES[i].broken), &a, &n),
                  BT_OK);
        EXPECT_EQ(bt_tokenizer_encode(tok, CASES[i].whole, strlen(CASES[i].whole), &b, &m), BT_OK);
        EXPECT_EQ(n, m);
        EXPECT(n == m && memcmp(a, b, n * sizeof(*a)) == 0);
        bt_free(a);
        bt_free(b);
    }
    bt_tokenizer_close(tok);
}

/* A NUL is a byte like any other, and no run of text is too long to be tokenised at once. */
static void tokenizer_long_runs_are_tokenised(void)
{
    enum { N = 200000 };
    static const char RUNS[]  = {'a', ' ', '\n', '!', '7', '\0'};
    bt_tokenizer     *toks[2] = {open_or_die(DEMO), open_or_die(V2)};
    char             *text    = malloc(N), *back;
    uint32_t         *ids     = NULL;
    size_t            n_ids = 0, n = 0;

    if (text == NULL) abort();
    for (size_t i = 0; i < 2 * sizeof(RUNS); i++) {
        memset(text, RUNS[i / 2], N);
        EXPECT_EQ(bt_tokenizer_encode(toks[i % 2], text, N, &ids, &n_ids), BT_OK);
        back = decode(toks[i % 2], ids, n_ids, &n);
        EXPECT(n == N && memcmp(back, text, N) == 0);
        free(back);
        bt_free(ids);
    }
    free(text);
    for (int i = 0; i < 2; i++)
        bt_tokenizer_close(toks[i]);
}

static void tokenizer_streams_whole_characters_only(void)
{
    bt_tokenizer  *tok   = open_or_die(DEMO);
    const char    *text  = "\xf0\x9f\x99\x82"; /* one emoji: in this vocabulary several tokens */
    bt_detokenizer state = {0};
    uint32_t      *ids   = NULL;
    size_t         n     = 0;
    char           buf[256];

    EXPECT_EQ(bt_tokenizer_encode(tok, text, 4, &ids, &n), BT_OK);
    EXPECT(n > 1);
    for (size_t i = 0; i + 1 < n; i++)
        EXPECT_EQ(bt_detokenize(tok, &state, ids[i], false, buf, sizeof(buf)), 0);
    EXPECT_EQ(bt_detokenize(tok, &state, 0, false, buf, sizeof(buf)), 0); /* special: skipped */
    EXPECT_EQ(bt_detokenize(tok, &state, ids[n - 1], false, buf, sizeof(buf)), 4);
    EXPECT(memcmp(buf, text, 4) == 0);
    EXPECT_EQ(bt_detokenize_end(&state, buf, sizeof(buf)), 0);

    EXPECT_EQ(bt_detokenize(tok, &state, ids[0], false, buf, sizeof(buf)), 0);
    EXPECT_EQ(bt_detokenize_end(&state, buf, sizeof(buf)), 3);
    EXPECT(memcmp(buf, "\xef\xbf\xbd", 3) == 0);
    EXPECT_EQ(bt_detokenize_end(&state, buf, sizeof(buf)), 0);

    EXPECT_EQ(bt_detokenize(tok, &state, ids[0], false, buf, sizeof(buf)), 0);
    EXPECT_EQ(bt_detokenize(tok, &state, 2044, false, buf, sizeof(buf)), 3 + 7); /* added, kept */
    EXPECT(memcmp(buf, "\xef\xbf\xbd<think>", 10) == 0);
    bt_free(ids);
    bt_tokenizer_close(tok);
}

/* The vocabulary entry of a byte, as JSON text. */
static void put_byte_entry(char *out, uint32_t b, uint32_t *n_stand_ins)
{
    bool     itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    uint32_t c      = itself ? b : 0x100 + (*n_stand_ins)++;

    sprintf(out, "%s\"\\u%04x\": %u", b == 0 ? "" : ", ", c, b);
}

/* A small tokenizer whose bytes have themselves as ids, everything else as in the texts. */
static void write_small(const char *extra_vocab, const char *merges, const char *pre,
                        const char *frame)
{
    char     vocab[256 * 24], file[sizeof(vocab) + (1 << 15)];
    uint32_t n_stand_ins = 0;
    size_t   at          = 0;

    for (uint32_t b = 0; b < 256; b++) {
        put_byte_entry(vocab + at, b, &n_stand_ins);
        at += strlen(vocab + at);
    }
    snprintf(file, sizeof(file),
             "{\"model\": {\"type\": \"BPE\", \"vocab\": {%s%s}, \"merges\": %s}, "
             "\"pre_tokenizer\": %s, \"decoder\": {\"type\": \"ByteLevel\"}%s}",
             vocab, extra_vocab, merges, pre, frame);
    scratch_clear();
    scratch_write("tokenizer.json", file, strlen(file));
}

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SPLIT(regex)                                          \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex \
    "\"}, \"behavior\": \"Isolated\", \"invert\": false}"
#define SEQUENCE(steps) "{\"type\": \"Sequence\", \"pretokenizers\": [" steps ", " BYTE_LEVEL "]}"
#define AB_VOCAB        ", \"ab\": 300, \"abc\": 301, \"bc\": 302"

static void expect_ids(const char *text, size_t n, const uint32_t *want)
{
    bt_tokenizer *tok = NULL;
    uint32_t     *ids = NULL;
    size_t        m   = 0;

    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    if (tok == NULL) return;
    EXPECT_EQ(bt_tokenizer_encode(tok, text, strlen(text), &ids, &m), BT_OK);
    EXPECT_EQ(m, n);
    for (size_t i = 0; i < n && i < m; i++)
        EXPECT_EQ(ids[i], want[i]);
    bt_free(ids);
    bt_tokenizer_close(tok);
}

static void tokenizer_merges_are_strings_or_pairs(void)
{
    write_small(AB_VOCAB, "[\"a b\", \"ab c\"]", BYTE_LEVEL, "");
    expect_ids("abcab", 2, (uint32_t[]){301, 300});
    write_small(AB_VOCAB, "[[\"a\", \"b\"], [\"ab\", \"c\"]]", BYTE_LEVEL, "");
    expect_ids("abcab", 2, (uint32_t[]){301, 300});
}

static void tokenizer_lower_rank_merges_first(void)
{
    write_small(AB_VOCAB, "[\"b c\", \"a b\", \"ab c\"]", BYTE_LEVEL, "");
    expect_ids("bcab", 2, (uint32_t[]){302, 300});
    write_small(AB_VOCAB, "[\"a b\", \"b c\"]", BYTE_LEVEL, "");
    expect_ids("abbc", 2, (uint32_t[]){300, 302});
    write_small(AB_VOCAB, "[\"b c\", \"a b\"]", BYTE_LEVEL, "");
    expect_ids("abc", 2, (uint32_t[]){'a', 302});
    /* of one that stands twice the last rank counts, as in Hugging Face's tokenizers */
    write_small(AB_VOCAB, "[\"b c\", \"a b\", [\"b\", \"c\"]]", BYTE_LEVEL, "");
    expect_ids("abc", 2, (uint32_t[]){300, 'c'});
}

static void tokenizer_ignore_merges_takes_whole_tokens(void)
{
    write_small(AB_VOCAB, "[\"b c\"], \"ignore_merges\": true", SEQUENCE(SPLIT("x")), "");
    expect_ids("abcxbcxabc", 5, (uint32_t[]){301, 'x', 302, 'x', 301});
}

static void tokenizer_pieces_end_where_the_step_before_cut(void)
{
    /* the lookahead sees the end of its piece, not the digit behind it */
    write_small(", \"\xc4\xa0\xc4\xa0\": 300", "[\"\xc4\xa0 \xc4\xa0\"]",
                SEQUENCE(SPLIT("\\\\p{N}") ", " SPLIT("\\\\s+(?!\\\\S)|\\\\s")), "");
    expect_ids("  1", 2, (uint32_t[]){300, '1'});
}

/* PCRE2's own \s has U+180E, Hugging Face's engine has not. */
static void tokenizer_blanks_are_unicode_white_space(void)
{
    write_small(", \"a\xc3\xa1\": 300, \"a\xc3\xa2\": 301", "[\"a \xc3\xa1\", \"a \xc3\xa2\"]",
                SEQUENCE(SPLIT("\\\\s+")), "");
    expect_ids("a\xe1\xa0\x8e", 3, (uint32_t[]){300, 0xa0, 0x8e});       /* U+180E: no blank */
    expect_ids("a\xe2\x80\x83", 4, (uint32_t[]){'a', 0xe2, 0x80, 0x83}); /* U+2003: a blank */
    expect_ids("a\xe2\x80\x8b", 3, (uint32_t[]){301, 0x80, 0x8b});       /* U+200B: no blank */
}

/* As in Ruby, $ is the end of a line too. */
static void tokenizer_dollar_is_the_end_of_a_line(void)
{
    write_small(AB_VOCAB, "[\"a b\"]", SEQUENCE(SPLIT("b$")), "");
    expect_ids("ab\nabc", 5, (uint32_t[]){'a', 'b', '\n', 300, 'c'});
    expect_ids("ab\rabc", 4, (uint32_t[]){300, '\r', 300, 'c'}); /* no end of a line */
}

static void tokenizer_added_tokens_match_longest_first(void)
{
    write_small("", "[]", BYTE_LEVEL,
                ", \"added_tokens\": [{\"id\": 400, \"content\": \"ab\", \"special\": true}, "
                "{\"id\": 401, \"content\": \"abc\"}, {\"id\": 402, \"content\": \"bcd\"}, "
                "{\"id\": 403, \"content\": \"bb\", \"normalized\": true}]");
    expect_ids("abcd", 2, (uint32_t[]){401, 'd'});
    expect_ids("abdbcdabb", 5, (uint32_t[]){400, 'd', 402, 400, 'b'});
    expect_ids("xbbb", 3, (uint32_t[]){'x', 403, 'b'});
    /* those that are not normalized go first, though another begins before them */
    expect_ids("bbcd", 2, (uint32_t[]){'b', 402});
}

/* What a constraint on text may draw, and how each comes to its id. */
static void tokenizer_text_is_what_is_not_special(void)
{
    bt_tokenizer *tok = NULL;

    write_small(AB_VOCAB ", \"\\uff5c\": 303, \"\\u0144\": 304, \"\\u0120x\": 305", "[]",
                BYTE_LEVEL,
                ", \"added_tokens\": [{\"id\": 400, \"content\": \"<s>\", \"special\": true}, "
                "{\"id\": 401, \"content\": \"<t>\"}, {\"id\": 402, \"content\": \"<n>\", "
                "\"normalized\": true}, {\"id\": 403, \"content\": \"\\u00e9\\u00e9\"}, "
                "{\"id\": 404, \"content\": \" x\"}]");
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    if (tok == NULL) return;
    EXPECT(bt_tokenizer_is_text(tok, 'a') && bt_tokenizer_is_text(tok, 301));
    EXPECT(bt_tokenizer_is_text(tok, 401) && bt_tokenizer_is_text(tok, 402));
    EXPECT(!bt_tokenizer_is_text(tok, 400)); /* special */
    /* no bytes make them: U+0143 is the last that stands for one */
    EXPECT(!bt_tokenizer_is_text(tok, 303) && !bt_tokenizer_is_text(tok, 304));
    EXPECT(!bt_tokenizer_is_text(tok, 403)); /* its bytes are not its text */
    /* " x" becomes the added token */
    EXPECT(!bt_tokenizer_is_text(tok, 305) && bt_tokenizer_is_text(tok, 404));
    EXPECT(!bt_tokenizer_is_text(tok, 310) && !bt_tokenizer_is_text(tok, 405));
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<n>"), 402);
    bt_tokenizer_close(tok);
}

/* Each token is asked for once, as a whole: not for what begins at each of its bytes. */
static void tokenizer_long_texts_are_known_in_time(void)
{
    enum { LONG = 14000, ADDED = 4000, TIMES = 200 };
    char          vocab[LONG + 16], frame[ADDED + 64], text[LONG + 1];
    bt_tokenizer *tok = NULL;
    clock_t       from;

    memset(text, 'a', LONG);
    text[LONG] = '\0';
    sprintf(vocab, ", \"%s\": 300", text);
    sprintf(frame, ", \"added_tokens\": [{\"id\": 400, \"content\": \"%.*sb\"}]", ADDED, text);
    write_small(vocab, "[]", BYTE_LEVEL, frame);
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    if (tok == NULL) return;
    from = clock();
    for (int i = 0; i < TIMES; i++)
        EXPECT(bt_tokenizer_is_text(tok, 300));
    EXPECT((double)(clock() - from) / CLOCKS_PER_SEC < 3);
    bt_tokenizer_close(tok);
}

static void tokenizer_merge_that_is_too_long_is_refused(void)
{
    enum { HALF = 1 << 13 };
    char         *merges = malloc(2 * HALF + 8);
    bt_tokenizer *tok    = NULL;

    if (merges == NULL) abort();
    memset(merges, 'a', 2 * HALF + 8);
    memcpy(merges, "[\"", 2);
    merges[2 + HALF] = ' ';
    memcpy(merges + 2 + 2 * HALF + 1, "\"]", 3);
    write_small("", merges, BYTE_LEVEL, "");
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "merges[0]: expected under 16384 bytes, found 16384");
    free(merges);
}

#define SPECIAL     "{\"SpecialToken\": {\"id\": \"<b>\"}}"
#define BEGIN_TOKEN ", \"added_tokens\": [{\"id\": 400, \"content\": \"<b>\"}]"
#define TEMPLATE                                                                     \
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "   \
    "\"<b>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], "  \
    "\"pair\": [], \"special_tokens\": {\"<b>\": {\"id\": \"<b>\", \"ids\": [400], " \
    "\"tokens\": [\"<b>\"]}}}"

/* What stands in front of a prompt with this post-processor and this tokenizer_config.json: the
 * digits of all ids, -1 without any. */
static int64_t begin_of(const char *post, const char *config, bool always)
{
    bt_tokenizer *tok = NULL;
    uint32_t      ids[BT_MAX_FRONT];
    size_t        n  = 0;
    int64_t       id = -1;
    char          frame[1024];

    snprintf(frame, sizeof(frame), BEGIN_TOKEN ", \"post_processor\": %s", post);
    write_small("", "[]", BYTE_LEVEL, frame);
    if (config != NULL) scratch_write("tokenizer_config.json", config, strlen(config));
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    if (tok != NULL && bt_tokenizer_front(tok, always, ids, &n) != BT_OK) {
        EXPECT_HAS(bt_error_text(), "tokenizer.json: expected bos_token of tokenizer_config.json");
        EXPECT_HAS(bt_error_text(), "--no-bos does without");
        id = -3;
    } else if (n != 0) {
        id = 0;
        for (size_t i = 0; i < n; i++)
            id = 1000 * id + ids[i];
    }
    bt_tokenizer_close(tok);
    return id;
}

static void tokenizer_begin_is_add_bos_token_or_the_post_processor(void)
{
    static const char BYTES[]    = "{\"type\": \"ByteLevel\", \"trim_offsets\": false}";
    static const char SEQUENCE[] = "{\"type\": \"Sequence\", \"processors\": [{\"type\": "
                                   "\"ByteLevel\"}, " TEMPLATE "]}";
    static const char TWO[] =
        "{\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL "," SPECIAL
        ",{\"Sequence\": {}}," SPECIAL "], \"special_tokens\": {\"<b>\": {\"ids\": [400]}}}";
    static const char BEHIND[] = "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": "
                                 "{\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": \"<b>\"}}]}";

    EXPECT_EQ(begin_of("null", NULL, false), -1);
    EXPECT_EQ(begin_of(BYTES, "{\"bos_token\": \"<b>\"}", false), -1);
    EXPECT_EQ(begin_of(BEHIND, "{\"bos_token\": \"<b>\"}", false), -1);
    EXPECT_EQ(begin_of(TEMPLATE, NULL, false), 400);
    EXPECT_EQ(begin_of(TWO, NULL, false), 400400);
    EXPECT_EQ(begin_of(TWO, "{\"add_bos_token\": true, \"bos_token\": \"<b>\"}", false), 400);
    EXPECT_EQ(begin_of(TEMPLATE, "{\"model_max_length\": 1000000000000000019884624838656}", false),
              400);
    EXPECT_EQ(begin_of(SEQUENCE, "{\"add_bos_token\": null}", false), 400);
    EXPECT_EQ(begin_of(TEMPLATE, "{\"add_bos_token\": false}", false), -1);
    EXPECT_EQ(begin_of(BYTES, "{\"add_bos_token\": true, \"bos_token\": \"<b>\"}", false), 400);
    EXPECT_EQ(begin_of("null", "{\"add_bos_token\": false, \"bos_token\": \"<b>\"}", true), 400);
    EXPECT_EQ(begin_of("null", "{\"add_bos_token\": true}", false), -3);
    EXPECT_EQ(begin_of("null", "{\"bos_token\": \"<c>\"}", true), -3);
}

typedef struct {
    const char *vocab, *merges, *pre, *frame;
    bt_status   st;
    const char *parts[2];
} bad_case;

/* clang-format off */
static const bad_case BAD[] = {
    {AB_VOCAB, "[\"a b\", \"ab x\"]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[1]: expected a token \"abx\"", "found none"}},
    {AB_VOCAB, "[\"zz b\"]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]: expected a token \"zz\"", ""}},
    {AB_VOCAB, "[\"ab\"]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]", "found \"ab\""}},
    {AB_VOCAB, "[\"a b c\"]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]", "found \"a b c\""}},
    {AB_VOCAB, "[[\"a\"]]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]", "found [\"a\"]"}},
    {AB_VOCAB, "[[\"a\", 3]]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]", "found [\"a\",3]"}},
    {AB_VOCAB, "[7]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]", "found 7"}},
    {AB_VOCAB, "{}", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges: expected a list", "found {}"}},
    {", \"x y\": -1", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"x y\": expected an id", "found -1"}},
    {", \"xy\": 99999999999", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"xy\": expected an id", "found 99999999999"}},
    {", \"xy\": 16777215", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"xy\": expected an id from 0 to 65793", "found 16777215"}},
    {", \"xy\": 300.0", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"xy\": expected an id", "found 300.0"}},
    {", \"xy\": 1e400", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"", "real number overflow"}},
    {", \"xy\": {\"id\": 300}", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"xy\": expected an id", "found {"}},
    {", \"\": 300", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"\": expected a text", "found none for id 300"}},
    {", \"\\u0000\": 300", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"", "u0000"}},
    {AB_VOCAB, "[[\"a\", \"b\", \"c\"]]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]: expected [\"a\", \"b\"]", "found ["}},
    {AB_VOCAB, "[\" b\"]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]: expected a token \"\"", "found none"}},
    {AB_VOCAB, "[[\"a\", \"\"]]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"field model.merges[0]: expected a token \"\"", "found none"}},
    {", \"xy\": \"7\"", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"xy\": expected an id", "found \"7\""}},
    {", \"xy\": 97", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"xy\": expected an id of its own", "found 97, as token \"a\" has"}},
    {AB_VOCAB ", \"xy\": 301", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"token \"xy\": expected an id of its own", "found 301, as token \"abc\" has"}},
    {", \"a\": 301", "[]", BYTE_LEVEL, "", BT_ERR_FORMAT, {"duplicate", ""}},
    {"", "[], \"type\": \"BPE\"", BYTE_LEVEL, "", BT_ERR_FORMAT, {"duplicate", ""}},
    {"", "[], \"byte_fallback\": true", BYTE_LEVEL, "", BT_ERR_UNSUPPORTED, {"field model.byte_fallback", "found true"}},
    {"", "[], \"unk_token\": \"<unk>\"", BYTE_LEVEL, "", BT_ERR_UNSUPPORTED, {"field model.unk_token: expected null", "found \"<unk>\""}},
    {"", "[], \"dropout\": 0.1", BYTE_LEVEL, "", BT_ERR_UNSUPPORTED, {"field model.dropout: expected null", "found 0.1"}},
    {"", "[]", "null", "", BT_ERR_FORMAT, {"pre_tokenizer: expected an object", "found null"}},
    {"", "[]", "{\"type\": \"Whitespace\"}", "", BT_ERR_UNSUPPORTED, {"pre_tokenizer", "found \"Whitespace\""}},
    {"", "[]", "{\"type\": \"Metaspace\"}", "", BT_ERR_UNSUPPORTED, {"pre_tokenizer", "found \"Metaspace\""}},
    {"", "[]", SEQUENCE("{\"type\": \"Punctuation\"}"), "", BT_ERR_UNSUPPORTED, {"pre_tokenizer: expected Split, Digits or ByteLevel", "found \"Punctuation\""}},
    {"", "[]", SEQUENCE(BYTE_LEVEL), "", BT_ERR_UNSUPPORTED, {"pre_tokenizer", "ByteLevel as the last"}},
    {"", "[]", "{\"type\": \"Sequence\", \"pretokenizers\": []}", "", BT_ERR_FORMAT, {"field pre_tokenizer.pretokenizers", "found []"}},
    {"", "[]", SEQUENCE("{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Removed\", \"invert\": false}"), "", BT_ERR_UNSUPPORTED, {"Split: expected behavior Isolated", "found Removed"}},
    {"", "[]", SEQUENCE("{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Isolated\", \"invert\": true}"), "", BT_ERR_UNSUPPORTED, {"Split: expected behavior Isolated, not inverted", "inverted"}},
    {"", "[]", SEQUENCE("{\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Isolated\", \"invert\": false}"), "", BT_ERR_FORMAT, {"field pre_tokenizer.pattern.Regex: expected a string", "found nothing"}},
    {"", "[]", SEQUENCE(SPLIT("a(")), "", BT_ERR_UNSUPPORTED, {"pre_tokenizer: regex: missing closing parenthesis", "a("}},
    {"", "[]", SEQUENCE(SPLIT("a*")), "", BT_ERR_UNSUPPORTED, {"expected a regex that matches no empty text", "found a*"}},
    {"", "[]", SEQUENCE(SPLIT("[a[b]]")), "", BT_ERR_UNSUPPORTED, {"a class within a class", ""}},
    {"", "[]", SEQUENCE(SPLIT("[a&&b]")), "", BT_ERR_UNSUPPORTED, {"an intersection of classes", ""}},
    {"", "[]", SEQUENCE(SPLIT("\\\\w+")), "", BT_ERR_UNSUPPORTED, {"not known to mean the same", ""}},
    {"", "[]", SEQUENCE(SPLIT("(?<name>a)")), "", BT_ERR_UNSUPPORTED, {"a group that is not known", ""}},
    {"", "[]", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": false}", "", BT_ERR_UNSUPPORTED, {"ByteLevel: expected add_prefix_space and use_regex false", "found true"}},
    {"", "[]", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}", "", BT_ERR_UNSUPPORTED, {"ByteLevel: expected add_prefix_space and use_regex false", "found false and true"}},
    {"", "[]", "{\"type\": \"ByteLevel\"}", "", BT_ERR_FORMAT, {"add_prefix_space: expected true or false", "found nothing"}},
    {"", "[]", BYTE_LEVEL, ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}", BT_ERR_UNSUPPORTED, {"field normalizer: expected none", "Sequence"}},
    {"", "[]", BYTE_LEVEL, ", \"normalizer\": {\"type\": \"NFC\"}", BT_ERR_UNSUPPORTED, {"field normalizer: expected none", "NFC"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"id\": 70000, \"content\": \"x\"}]", BT_ERR_FORMAT, {"token \"x\": expected an id from 0 to 65793", "found 70000"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"id\": 400, \"content\": \"xy\"}, {\"id\": 400, \"content\": \"xz\"}]", BT_ERR_FORMAT, {"added token \"xz\": expected an id of its own", "found 400"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"id\": 400, \"content\": \"xy\"}, {\"id\": 401, \"content\": \"xy\"}]", BT_ERR_FORMAT, {"added token \"xy\": expected one id", "found 400 and 401"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": 3", BT_ERR_FORMAT, {"field added_tokens: expected a list", "found 3"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"content\": \"x\"}]", BT_ERR_FORMAT, {"token \"x\": expected an id", "found nothing"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"id\": 400}]", BT_ERR_FORMAT, {"field added_tokens.content", "found nothing"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [3]", BT_ERR_FORMAT, {"field added_tokens.content", "found nothing"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"id\": 400, \"content\": \"\"}]", BT_ERR_FORMAT, {"field added_tokens[0].content: expected text", ""}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"id\": 3, \"content\": \"xyz\"}]", BT_ERR_FORMAT, {"added token \"xyz\": expected an id of its own", "found 3"}},
    {AB_VOCAB, "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"id\": 3, \"content\": \"ab\"}]", BT_ERR_FORMAT, {"added token \"ab\": expected the id of the vocabulary, 300", "found 3"}},
    {"", "[]", BYTE_LEVEL, ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<b>\"}}]}", BT_ERR_UNSUPPORTED, {"field post_processor: expected one id of the special token \"<b>\"", "found nothing"}},
    {"", "[]", BYTE_LEVEL, BEGIN_TOKEN ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "," SPECIAL "], \"special_tokens\": {\"<b>\": {\"ids\": [400]}}}", BT_ERR_UNSUPPORTED, {"field post_processor: expected at most 8 special tokens", ""}},
    {"", "[]", BYTE_LEVEL, BEGIN_TOKEN ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL "], \"special_tokens\": {\"<b>\": {\"ids\": [400, 400]}}}", BT_ERR_UNSUPPORTED, {"field post_processor: expected one id of the special token \"<b>\"", "found [400,400]"}},
    {"", "[]", BYTE_LEVEL, BEGIN_TOKEN ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [" SPECIAL "], \"special_tokens\": {\"<b>\": {\"ids\": [300]}}}", BT_ERR_FORMAT, {"field post_processor: expected the id of a token for \"<b>\"", "found 300"}},
    {"", "[]", BYTE_LEVEL, ", \"post_processor\": " TEMPLATE, BT_ERR_FORMAT, {"field post_processor: expected the id of a token for \"<b>\"", "found 400"}},
    {"", "[]", BYTE_LEVEL, ", \"added_tokens\": [{\"id\": 400, \"content\": \"x\\ny\", \"lstrip\": true}]", BT_ERR_UNSUPPORTED, {"added token \"x?y\": field lstrip", "found true"}},
};
/* clang-format on */

static void tokenizer_bad_files_are_refused_by_name(void)
{
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        write_small(BAD[i].vocab, BAD[i].merges, BAD[i].pre, BAD[i].frame);
        expect_refused(g_scratch, BAD[i].st, BAD[i].parts, i);
        EXPECT_HAS(bt_error_text(), "tokenizer.json");
    }
}

static void tokenizer_added_token_that_is_too_long_is_refused(void)
{
    static const char *const PARTS[2] = {"tokenizer.json: expected added tokens of under 4096",
                                         "found id 400 of 4096"};
    char                     frame[8192];
    bt_tokenizer            *tok = NULL;

    for (int n = 4095; n <= 4096; n++) {
        snprintf(frame, sizeof(frame), ", \"added_tokens\": [{\"id\": 400, \"content\": \"%0*d\"}]",
                 n, 0);
        write_small("", "[]", BYTE_LEVEL, frame);
        if (n == 4095) EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    }
    expect_refused(g_scratch, BT_ERR_FORMAT, PARTS, 0);
    bt_tokenizer_close(tok);
}

static void tokenizer_other_bad_files_are_refused(void)
{
    static const struct {
        const char *text;
        bt_status   st;
        const char *part;
    } FILES[] = {
        {"",                                                                             BT_ERR_FORMAT,      "expected JSON"     },
        {"[]",                                                                           BT_ERR_FORMAT,      "expected an object"},
        {"{}",                                                                           BT_ERR_UNSUPPORTED, "field decoder"     },
        {"{\"decoder\": {\"type\": \"Metaspace\"}}",                                     BT_ERR_UNSUPPORTED, "field decoder"     },
        {"{\"decoder\": {\"type\": \"ByteLevel\"}}",                                     BT_ERR_FORMAT,      "field model"       },
        {"{\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"Unigram\"}}",
         BT_ERR_UNSUPPORTED,                                                                                 "found \"Unigram\"" },
        {"{\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\"}}",     BT_ERR_FORMAT,
         "field model.vocab"                                                                                                     },
        {"{\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": "
         "{\"a\": 0}, "
         "\"merges\": []}}",                                                    BT_ERR_UNSUPPORTED, "found none for 0x" },
    };
    bt_tokenizer *tok = NULL;

    for (size_t i = 0; i < sizeof(FILES) / sizeof(FILES[0]); i++) {
        scratch_clear();
        scratch_write("tokenizer.json", FILES[i].text, strlen(FILES[i].text));
        EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), FILES[i].st);
        EXPECT_HAS(bt_error_text(), FILES[i].part);
    }
    scratch_clear();
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "tokenizer.json");
    EXPECT(tok == NULL);
}

/* text, n times an opening bracket or its like, and nothing that closes them. */
static void write_deep(const char *before, const char *one, uint32_t n)
{
    size_t n_before = strlen(before), n_one = strlen(one);
    char  *text = calloc(n_before + n * n_one + 1, 1);

    memcpy(text, before, n_before);
    for (uint32_t i = 0; i < n; i++)
        memcpy(text + n_before + i * n_one, one, n_one);
    scratch_clear();
    scratch_write("tokenizer.json", text, n_before + n * n_one);
    free(text);
}

static void tokenizer_deep_files_are_refused(void)
{
    static const char *const DEEP[][2] = {
        {"",                                             "["                                            },
        {"{\"model\": ",                                 "{\"model\": "                                 },
        {"{\"model\": {\"type\": \"BPE\", \"merges\": ", "["                                            },
        {"{\"pre_tokenizer\": ",                         "{\"type\": \"Sequence\", \"pretokenizers\": ["}
    };
    bt_tokenizer *tok = NULL;

    for (size_t i = 0; i < sizeof(DEEP) / sizeof(DEEP[0]); i++) {
        write_deep(DEEP[i][0], DEEP[i][1], 100000);
        EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), "tokenizer.json");
        EXPECT_HAS(bt_error_text(), "depth");
    }
}

/* Merges whose ranks form a circle, and one given twice (the last counts): each makes a token
 * longer, so that encoding ends. */
static void tokenizer_merges_in_circles_end(void)
{
    write_small(", \"aa\": 300, \"aaaa\": 301, \"aaa\": 302",
                "[\"aa aa\", \"a aaa\", \"aaa a\", \"a a\", \"aa a\", \"a a\"]", BYTE_LEVEL, "");
    expect_ids("aaaaaaaa", 2, (uint32_t[]){301, 301});
}

typedef struct {
    const bt_tokenizer *tok;
    const char         *text;
    const uint32_t     *want;
    size_t              n;
    bool                equal;
} thread_case;

static void *encode_often(void *arg)
{
    thread_case *c = arg;

    for (int i = 0; i < 20; i++) {
        uint32_t *ids = NULL;
        size_t    n = 0, n_back = 0;
        char     *back;

        c->equal = c->equal &&
                   bt_tokenizer_encode(c->tok, c->text, strlen(c->text), &ids, &n) == BT_OK &&
                   n == c->n && memcmp(ids, c->want, n * sizeof(*ids)) == 0;
        back     = decode(c->tok, ids, n, &n_back);
        c->equal = c->equal && n_back == strlen(c->text) && memcmp(back, c->text, n_back) == 0;
        free(back);
        bt_free(ids);
    }
    return NULL;
}

static void tokenizer_serves_several_threads(void)
{
    enum { N = 4 };
    bt_tokenizer *tok  = open_or_die(DEMO);
    const char   *text = "ROMEO: <think> 1234 \xe4\xb8\xad\n\n  O, speak again, bright angel!";
    uint32_t     *want = NULL;
    thread_case   cases[N];
    pthread_t     threads[N];
    size_t        n = 0;

    EXPECT_EQ(bt_tokenizer_encode(tok, text, strlen(text), &want, &n), BT_OK);
    for (int i = 0; i < N; i++) {
        cases[i] = (thread_case){tok, text, want, n, true};
        if (pthread_create(&threads[i], NULL, encode_often, &cases[i]) != 0) abort();
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(cases[i].equal);
    }
    bt_free(want);
    bt_tokenizer_close(tok);
}

static void tokenizer_open_unwinds_at_every_allocation(void)
{
    write_small(AB_VOCAB, "[\"a b\"], \"ignore_merges\": true",
                SEQUENCE(SPLIT("\\\\s+x") ", {\"type\": \"Digits\", \"individual_digits\": true}"),
                ", \"added_tokens\": [{\"id\": 400, \"content\": \"<x>\"}]");
    scratch_write("tokenizer_config.json", "{\"bos_token\": \"<x>\", \"chat_template\": \"t\"}",
                  42);
    expect_open_unwinds(g_scratch, 15);
}

static void tokenizer_encode_unwinds_at_every_allocation(void)
{
    bt_tokenizer *tok  = open_or_die(DEMO);
    const char   *text = "Hello <think> world 123 \xff";
    uint32_t     *ids  = NULL;
    size_t        n    = 0;

    EXPECT(BT_SWEEP(bt_tokenizer_encode(tok, text, strlen(text), &ids, &n), bt_free(ids)) >= 5);
    bt_tokenizer_close(tok);
}

static const bt_test TESTS[] = {
    BT_TEST(tokenizer_of_demo_equals_hugging_face),
    BT_TEST(tokenizer_of_v2_equals_hugging_face),
    BT_TEST(tokenizer_of_code_equals_hugging_face),
    BT_TEST(tokenizer_v2_gives_each_digit_a_token),
    BT_TEST(tokenizer_empty_text_has_no_ids),
    BT_TEST(tokenizer_vocabulary_and_added_tokens_are_known),
    BT_TEST(tokenizer_broken_utf8_is_replaced_first),
    BT_TEST(tokenizer_long_runs_are_tokenised),
    BT_TEST(tokenizer_streams_whole_characters_only),
    BT_TEST(tokenizer_merges_are_strings_or_pairs),
    BT_TEST(tokenizer_lower_rank_merges_first),
    BT_TEST(tokenizer_ignore_merges_takes_whole_tokens),
    BT_TEST(tokenizer_pieces_end_where_the_step_before_cut),
    BT_TEST(tokenizer_blanks_are_unicode_white_space),
    BT_TEST(tokenizer_dollar_is_the_end_of_a_line),
    BT_TEST(tokenizer_added_tokens_match_longest_first),
    BT_TEST(tokenizer_text_is_what_is_not_special),
    BT_TEST(tokenizer_long_texts_are_known_in_time),
    BT_TEST(tokenizer_merge_that_is_too_long_is_refused),
    BT_TEST(tokenizer_begin_is_add_bos_token_or_the_post_processor),
    BT_TEST(tokenizer_bad_files_are_refused_by_name),
    BT_TEST(tokenizer_added_token_that_is_too_long_is_refused),
    BT_TEST(tokenizer_other_bad_files_are_refused),
    BT_TEST(tokenizer_deep_files_are_refused),
    BT_TEST(tokenizer_merges_in_circles_end),
    BT_TEST(tokenizer_serves_several_threads),
    BT_TEST(tokenizer_open_unwinds_at_every_allocation),
    BT_TEST(tokenizer_encode_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
