/* tiktoken.model and its tokenizer_config.json, as Kimi-K2 and Moonlight come. */
#include <stdint.h>
#include <time.h>

#include "model/tokenizer_parts.h"
#include "tests/model/tokenizer_cases.h"
#include "tests/support/scratch.h"

#define FIXTURES BT_SOURCE_DIR "/tests/fixtures"
#define TIKTOKEN FIXTURES "/tiktoken"

static void tiktoken_equals_tiktoken(void)
{
    check_fixture(TIKTOKEN, FIXTURES "/tokenizer-tiktoken.jsonl");
    check_fixture(TIKTOKEN "/tiktoken.model", FIXTURES "/tokenizer-tiktoken.jsonl");
}

static bool is_special(const bt_tokenizer *tok, const char *text)
{
    int64_t id = bt_tokenizer_added_id(tok, text);
    size_t  n;
    bool    special = false;

    EXPECT(id >= 0);
    bt_tokenizer_bytes(tok, (uint32_t)id, &n, &special);
    EXPECT_EQ(n, strlen(text));
    return special;
}

static void tiktoken_has_256_ids_behind_the_vocabulary(void)
{
    bt_tokenizer *tok = open_or_die(TIKTOKEN);
    uint32_t      front[BT_MAX_FRONT];
    size_t        n = 9;

    EXPECT_EQ(bt_tokenizer_vocab_size(tok), 1792 + 256);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "[BOS]"), 1792);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<|reserved_token_1797|>"), 1797);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "[PAD]"), 2047);
    EXPECT(is_special(tok, "[BOS]"));
    EXPECT(!is_special(tok, "<think>"));
    EXPECT(!is_special(tok, "<|reserved_token_1797|>"));
    EXPECT_EQ(bt_tokenizer_front(tok, false, front, &n), BT_OK);
    EXPECT_EQ(n, 0);
    EXPECT_EQ(bt_tokenizer_front(tok, true, front, &n), BT_OK);
    EXPECT(n == 1 && front[0] == 1792);
    bt_tokenizer_close(tok);
}

/* n times the same. */
static char *repeat(const char *one, size_t n)
{
    size_t length = strlen(one);
    char  *text   = calloc(n * length + 1, 1);

    if (text == NULL) abort();
    for (size_t i = 0; i < n; i++)
        memcpy(text + i * length, one, length);
    return text;
}

static size_t first_part(const char *text)
{
    uint32_t in_block = 0;

    return bt_tiktoken_part(text, strlen(text), &in_block);
}

static void tiktoken_runs_are_cut(void)
{
    static const struct {
        const char *one;
        size_t      n, part; /* bytes of the first part */
    } RUNS[] = {
        {"a",             25000,  25000 }, /* no cut */
        {"a",             25001,  25000 },
        {"\xc3\xa9",      25001,  50000 }, /* characters count, not bytes */
        {"\t",            25001,  25000 },
        {"\x1c\xc2\xa0",  12501,  37500 }, /* both are blanks */
        {"a\xe2\x80\x8b", 12501,  50000 }, /* U+200B is none: no new run */
        {" \xe3\x80\x80", 12501,  50000 }, /* U+3000 is one */
        {"a ",            200000, 400000},
        {"a ",            200001, 400000}, /* a block */
    };

    for (size_t i = 0; i < sizeof(RUNS) / sizeof(RUNS[0]); i++) {
        char *text = repeat(RUNS[i].one, RUNS[i].n);

        EXPECT_EQ(first_part(text), RUNS[i].part);
        free(text);
    }
}

/* A cut begins a run anew; a block goes on over it. */
static void tiktoken_blocks_hold_what_runs_were_cut_into(void)
{
    char    *text = calloc(500001, 1);
    uint32_t in   = 0;
    size_t   at;

    if (text == NULL) abort();
    memset(text, 'a', 50001);
    for (size_t i = 50001; i < 500000; i++)
        text[i] = i % 2 != 0 ? ' ' : 'b';
    at = bt_tiktoken_part(text, 500000, &in);
    EXPECT_EQ(at, 25000);
    at += bt_tiktoken_part(text + at, 500000 - at, &in);
    EXPECT_EQ(at, 50000);
    at += bt_tiktoken_part(text + at, 500000 - at, &in);
    EXPECT_EQ(at, 400000);
    at += bt_tiktoken_part(text + at, 500000 - at, &in);
    EXPECT_EQ(at, 500000);
    EXPECT_EQ(in, 100000); /* of the next block */
    free(text);
}

/* Three digits are a piece, "11" is a token: the last two stand in different parts. */
static void tiktoken_encodes_part_by_part(void)
{
    bt_tokenizer *tok  = open_or_die(TIKTOKEN);
    char         *ones = repeat("1", 25001);

    EXPECT_EQ(count(tok, ones, 24999), 2 * 8333);
    EXPECT_EQ(count(tok, "11", 2), 1);
    EXPECT_EQ(count(tok, ones, 25001), 2 * 8333 + 2);
    free(ones);
    bt_tokenizer_close(tok);
}

#define CLASS  "\"tokenizer_class\": \"TikTokenTokenizer\""
#define CONFIG "{" CLASS "}"

/* All bytes, and these lines behind them. */
static void write_small(const char *more, const char *config)
{
    static const char BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char             *file     = calloc(256 * 16 + strlen(more) + 1, 1);
    size_t            at       = 0;

    if (file == NULL) abort();
    for (int b = 0; b < 256; b++)
        at += (size_t)sprintf(file + at, "%c%c== %d\n", BASE64[b >> 2], BASE64[b << 4 & 63], b);
    strcpy(file + at, more);
    scratch_clear();
    scratch_write("tiktoken.model", file, strlen(file));
    free(file);
    if (config != NULL) scratch_write("tokenizer_config.json", config, strlen(config));
}

/* clang-format off */
static const struct {
    const char *more, *config;
    bt_status   st;
    const char *parts[2];
} BAD[] = {
    {"x", CONFIG, BT_ERR_FORMAT, {"tiktoken.model: expected lines of base64, a blank and a rank", "found \"x\""}},
    {"YWI=", CONFIG, BT_ERR_FORMAT, {"tiktoken.model: expected lines of base64", "found \"YWI=\""}},
    {"YWI= ", CONFIG, BT_ERR_FORMAT, {"expected lines of base64", ""}},
    {"YWI= 256 1", CONFIG, BT_ERR_FORMAT, {"expected lines of base64", ""}},
    {"YWI=256", CONFIG, BT_ERR_FORMAT, {"expected lines of base64", ""}},
    {" 256", CONFIG, BT_ERR_FORMAT, {"expected lines of base64", ""}},
    {"YWI 256", CONFIG, BT_ERR_FORMAT, {"expected lines of base64", ""}},
    {"Y=== 256", CONFIG, BT_ERR_FORMAT, {"expected lines of base64", ""}},
    {"YW=I 256", CONFIG, BT_ERR_FORMAT, {"expected lines of base64", ""}},
    {"YWI= -1", CONFIG, BT_ERR_FORMAT, {"expected lines of base64", ""}},
    {"YWI= 257", CONFIG, BT_ERR_FORMAT, {"expected each rank from 0 to 256 once", "\"YWI= 257\""}},
    {"YWI= 10000000000000000256", CONFIG, BT_ERR_FORMAT, {"expected each rank from 0 to 256 once", ""}},
    {"YWI= 7", CONFIG, BT_ERR_FORMAT, {"expected each rank from 0 to 256 once", "\"YWI= 7\""}},
    {"YWI= 256\nYWI= 257", CONFIG, BT_ERR_FORMAT, {"expected different tokens", "ids 25"}},
    {"", NULL, BT_ERR_IO, {"tokenizer_config.json", "No such file"}},
    {"", "[]", BT_ERR_FORMAT, {"tokenizer_config.json: expected an object", ""}},
    {"", "{}", BT_ERR_FORMAT, {"tokenizer_config.json: field tokenizer_class", "found nothing"}},
    {"", "{\"tokenizer_class\": \"QWenTokenizer\"}", BT_ERR_UNSUPPORTED, {"expected \"TikTokenTokenizer\" beside tiktoken.model", "found \"QWenTokenizer\""}},
    {"", "{" CLASS ", \"added_tokens_decoder\": 3}", BT_ERR_FORMAT, {"field added_tokens_decoder: expected {id: token}", "found 3"}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"255\": {\"content\": \"x\"}}}", BT_ERR_FORMAT, {"expected ids from 256 to 511", "found \"255\""}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"512\": {\"content\": \"x\"}}}", BT_ERR_FORMAT, {"expected ids from 256 to 511", "found \"512\""}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"0256\": {\"content\": \"x\"}}}", BT_ERR_FORMAT, {"expected ids from 256 to 511", "found \"0256\""}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"256x\": {\"content\": \"x\"}}}", BT_ERR_FORMAT, {"expected ids from 256 to 511", "found \"256x\""}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"256\": 1}}", BT_ERR_FORMAT, {"field added_tokens_decoder.256: expected an object", "found 1"}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"256\": {}}}", BT_ERR_FORMAT, {"field added_tokens_decoder.256.content", "found nothing"}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"256\": {\"content\": \"\"}}}", BT_ERR_FORMAT, {"field added_tokens_decoder.256.content: expected a text", "found none"}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"256\": {\"content\": \"x\", \"rstrip\": true}}}", BT_ERR_UNSUPPORTED, {"added token \"x\": field rstrip", "found true"}},
    {"", "{" CLASS ", \"added_tokens_decoder\": {\"256\": {\"content\": \"x\"}, \"257\": {\"content\": \"x\"}}}", BT_ERR_FORMAT, {"expected one id for \"x\"", "found 256 and 257"}},
};
/* clang-format on */

static void tiktoken_bad_files_are_refused_by_name(void)
{
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        write_small(BAD[i].more, BAD[i].config);
        expect_refused(g_scratch, BAD[i].st, BAD[i].parts, i);
    }
}

/* What cannot be made of bytes and lines behind them; tokenizer_config.json is not to blame. */
static void tiktoken_other_bad_files_are_refused(void)
{
    static const struct {
        const char *text;
        size_t      n;
        const char *part;
    } FILES[] = {
        {"",                        0,  "expected tokens, found none"   },
        {"\n\n",                    2,  "expected tokens, found none"   },
        {"YQ== 0\n",                7,  "expected a token for each byte"},
        {"YQ== 0\0\nx",             10, "found a byte of zero"          },
        {"version https://git-lfs", 23, "expected lines of base64"      },
    };
    bt_tokenizer *tok = NULL;

    for (size_t i = 0; i < sizeof(FILES) / sizeof(FILES[0]); i++) {
        write_small("", "{" CLASS ", \"added_tokens_decoder\": {\"300\": {\"content\": \"x\"}}}");
        scratch_write("tiktoken.model", FILES[i].text, FILES[i].n);
        EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), "tiktoken.model: ");
        EXPECT_HAS(bt_error_text(), FILES[i].part);
        EXPECT(tok == NULL);
    }
}

/* aa, aaa, ..: each is made of two others in as many ways as it is long. */
static void tiktoken_too_many_merges_are_refused(void)
{
    enum { LONGEST = 2900 };
    char         *more = calloc(LONGEST * (LONGEST / 3 * 2 + 32), 1);
    size_t        at   = 0;
    bt_tokenizer *tok  = NULL;

    if (more == NULL) abort();
    for (int n = 2; n <= LONGEST; n++) {
        for (int i = 0; i < n / 3; i++)
            at += (size_t)sprintf(more + at, "YWFh");
        at += (size_t)sprintf(more + at, "%s %d\n", (const char *[]){"", "YQ==", "YWE="}[n % 3],
                              254 + n);
    }
    write_small(more, CONFIG);
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "tiktoken.model: expected tokens that are made of two others");
    EXPECT(tok == NULL);
    free(more);
}

static void tiktoken_token_that_is_too_long_is_refused(void)
{
    static const char RANK[] = " 256\n";
    char             *more   = calloc(4096 / 3 * 4 + 8 + sizeof(RANK), 1);
    bt_tokenizer     *tok    = NULL;

    if (more == NULL) abort();
    for (int i = 0; i < 4096 / 3; i++)
        strcpy(more + i * 4, "YWFh");
    sprintf(more + 4096 / 3 * 4, "YQ==%s", RANK);
    write_small(more, CONFIG);
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_FORMAT);
    EXPECT_HAS(bt_error_text(), "expected tokens of under 4096 bytes, found id 256 of 4096");
    EXPECT(tok == NULL);
    free(more);
}

static void tiktoken_added_token_that_is_too_long_is_refused(void)
{
    static const char *const PARTS[2] = {
        "tokenizer_config.json: expected added tokens of under 4096", "found id 256 of 4096"};
    char config[8192];

    snprintf(config, sizeof(config),
             "{" CLASS ", \"added_tokens_decoder\": {\"256\": {\"content\": \"%0*d\"}}}", 4096, 0);
    write_small("", config);
    expect_refused(g_scratch, BT_ERR_FORMAT, PARTS, 0);
}

/* aaa, aaaaaa, .., and others that begin with all of these: their bytes count, not their square. */
static void tiktoken_long_tokens_are_read_in_time(void)
{
    enum { SHORT = 1300, LONG = 1500 };
    char         *all  = calloc(SHORT + 1, 4), *end;
    char         *more = calloc(SHORT / 2 * (SHORT * 4 + 64) + LONG * (SHORT * 4 + 32), 1);
    bt_tokenizer *tok  = NULL;
    clock_t       from;

    if (all == NULL || more == NULL) abort();
    for (int i = 0; i < SHORT; i++)
        strcpy(all + i * 4, "YWFh");
    end = more;
    for (int i = 1; i <= SHORT; i++)
        end += sprintf(end, "%.*s %d\n", i * 4, all, 255 + i);
    for (int i = 0; i < LONG; i++)
        end += sprintf(end, "%s%08d %d\n", all, i, 256 + SHORT + i);
    write_small(more, CONFIG);
    from = clock();
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    EXPECT((double)(clock() - from) / CLOCKS_PER_SEC < 3);
    if (tok != NULL) EXPECT_EQ(count(tok, "aaaaaaaaaa", 10), 10); /* no aa */
    bt_tokenizer_close(tok);
    free(more);
    free(all);
}

/* Without a line's end at the file's end, and with empty lines; any order of ranks. */
static void tiktoken_lines_stand_in_any_order(void)
{
    bt_tokenizer *tok = NULL;

    write_small("YWJj 257\n\nYWI= 256", CONFIG);
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_OK);
    if (tok == NULL) return;
    EXPECT_EQ(bt_tokenizer_vocab_size(tok), 258 + 256);
    EXPECT_EQ(count(tok, "abc", 3), 1);
    EXPECT_EQ(count(tok, "abcab", 5), 2);
    bt_tokenizer_close(tok);
}

/* Whoever puts a tokenizer.json there means it. */
static void tiktoken_is_for_where_no_tokenizer_json_is(void)
{
    bt_tokenizer *tok = NULL;

    write_small("", CONFIG);
    scratch_write("tokenizer.json", "{}", 2);
    EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_UNSUPPORTED);
    EXPECT_HAS(bt_error_text(), "tokenizer.json: field decoder");
    EXPECT(tok == NULL);
}

static void tiktoken_open_unwinds_at_every_allocation(void)
{
    write_small("YWI= 256",
                "{" CLASS ", \"added_tokens_decoder\": {\"257\": {\"content\": \"<x>\"}}}");
    expect_open_unwinds(g_scratch, 12);
}

static const bt_test TESTS[] = {
    BT_TEST(tiktoken_equals_tiktoken),
    BT_TEST(tiktoken_has_256_ids_behind_the_vocabulary),
    BT_TEST(tiktoken_runs_are_cut),
    BT_TEST(tiktoken_blocks_hold_what_runs_were_cut_into),
    BT_TEST(tiktoken_encodes_part_by_part),
    BT_TEST(tiktoken_bad_files_are_refused_by_name),
    BT_TEST(tiktoken_other_bad_files_are_refused),
    BT_TEST(tiktoken_too_many_merges_are_refused),
    BT_TEST(tiktoken_token_that_is_too_long_is_refused),
    BT_TEST(tiktoken_added_token_that_is_too_long_is_refused),
    BT_TEST(tiktoken_long_tokens_are_read_in_time),
    BT_TEST(tiktoken_lines_stand_in_any_order),
    BT_TEST(tiktoken_is_for_where_no_tokenizer_json_is),
    BT_TEST(tiktoken_open_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
