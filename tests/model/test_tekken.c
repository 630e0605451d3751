/* tekken.json, as Mistral's models come. */
#include <stdint.h>

#include "tests/model/tokenizer_cases.h"
#include "tests/support/scratch.h"

#define FIXTURES BT_SOURCE_DIR "/tests/fixtures"
#define TEKKEN   FIXTURES "/tekken"

static void tekken_equals_mistral_common(void)
{
    check_fixture(TEKKEN, FIXTURES "/tokenizer-tekken.jsonl");
    check_fixture(TEKKEN "/tekken.json", FIXTURES "/tokenizer-tekken.jsonl");
}

/* The vocabulary of the file goes on, with 100 tokens that do not count. */
static void tekken_has_special_tokens_before_the_vocabulary(void)
{
    bt_tokenizer *tok     = open_or_die(TEKKEN);
    bool          special = false;
    size_t        n       = 0;
    const char   *bytes   = bt_tokenizer_bytes(tok, 32 + 'a', &n, &special);

    EXPECT(n == 1 && bytes[0] == 'a' && !special);
    bt_tokenizer_bytes(tok, 18, &n, &special);
    EXPECT(n == strlen("[THINK]") && special);
    bt_tokenizer_bytes(tok, 31, &n, &special);
    EXPECT(n == strlen("<SPECIAL_31>") && special);
    EXPECT_EQ(bt_tokenizer_vocab_size(tok), 32 + 900);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<s>"), 1);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "[THINK]"), 18);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<SPECIAL_20>"), 20);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<SPECIAL_19>"), -1);
    EXPECT(bt_tokenizer_is_text(tok, 32) && !bt_tokenizer_is_text(tok, 31));
    bt_tokenizer_close(tok);
}

#define LETTERS "\"pattern\": \"\\\\p{L}+|\\\\P{L}\""
#define SIZES(n_special, size) \
    ", \"default_num_special_tokens\": " #n_special ", \"default_vocab_size\": " #size
#define NAMED                                                                                      \
    ", \"special_tokens\": [{\"rank\": 0, \"token_str\": \"</s>\"}, {\"rank\": 1, \"token_str\": " \
    "\"<s>\"}]"
#define AB  ", {\"rank\": 256, \"token_bytes\": \"YWI=\", \"token_str\": null}"
#define ABC ", {\"rank\": 257, \"token_bytes\": \"YWJj\"}"

/* All bytes, this behind them, and this behind the list. */
static void write_small(const char *config, const char *more, const char *frame)
{
    static const char BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char              file[1 << 15];
    size_t            at = (size_t)sprintf(file, "{\"config\": {%s}, \"vocab\": [", config);

    for (int b = 0; b < 256; b++)
        at += (size_t)sprintf(
            file + at, "%s{\"rank\": %d, \"token_bytes\": \"%c%c==\", \"token_str\": \"\\u%04x\"}",
            b == 0 ? "" : ", ", b, BASE64[b >> 2], BASE64[b << 4 & 63], b);
    at += (size_t)snprintf(file + at, sizeof(file) - at, "%s]%s}", more, frame);
    scratch_clear();
    scratch_write("tekken.json", file, at);
}

static bt_tokenizer *open_small(const char *config, const char *more, const char *frame)
{
    write_small(config, more, frame);
    return open_or_die(g_scratch);
}

static void tekken_vocabulary_ends_where_its_size_says(void)
{
    bt_tokenizer *tok = open_small(LETTERS SIZES(3, 261), AB ABC, NAMED);

    EXPECT_EQ(count(tok, "abc", 3), 1);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<SPECIAL_2>"), 2);
    bt_tokenizer_close(tok);
    tok = open_small(LETTERS SIZES(3, 260), AB ABC, NAMED);
    EXPECT_EQ(count(tok, "abc", 3), 2);
    EXPECT_EQ(bt_tokenizer_vocab_size(tok), 260);
    bt_tokenizer_close(tok);
}

static void tekken_of_old_versions_names_no_special_tokens(void)
{
    bt_tokenizer *tok = open_small(LETTERS SIZES(21, 277) ", \"version\": \"v3\"", "", "");

    EXPECT_EQ(bt_tokenizer_added_id(tok, "</s>"), 2);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "[INST]"), 3);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "[TOOL_CONTENT]"), 19);
    EXPECT_EQ(bt_tokenizer_added_id(tok, "<SPECIAL_20>"), 20);
    bt_tokenizer_close(tok);
}

static uint32_t front_of(const bt_tokenizer *tok, bool always)
{
    uint32_t front[BT_MAX_FRONT];
    size_t   n = 9;

    EXPECT_EQ(bt_tokenizer_front(tok, always, front, &n), BT_OK);
    EXPECT(n <= 1);
    return n == 1 ? front[0] : UINT32_MAX;
}

/* Where tokenizer_config.json says nothing else. */
static void tekken_texts_begin_with_bos(void)
{
    static const char OTHER[] = "{\"bos_token\": \"</s>\", \"add_bos_token\": false}";
    bt_tokenizer     *tok     = open_small(LETTERS SIZES(2, 258), "", NAMED);

    EXPECT_EQ(front_of(tok, false), 1);
    EXPECT_EQ(front_of(tok, true), 1);
    bt_tokenizer_close(tok);
    scratch_write("tokenizer_config.json", OTHER, strlen(OTHER));
    tok = open_or_die(g_scratch);
    EXPECT_EQ(front_of(tok, false), UINT32_MAX);
    EXPECT_EQ(front_of(tok, true), 0);
    bt_tokenizer_close(tok);
}

static void tekken_chats_by_the_template_beside_it(void)
{
    static const char     TEMPLATE[] = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
    const bt_chat_message message    = {"user", "hi"};
    bt_tokenizer         *tok;
    char                 *text = NULL;

    write_small(LETTERS SIZES(2, 258), "", NAMED);
    scratch_write("chat_template.jinja", TEMPLATE, strlen(TEMPLATE));
    tok = open_or_die(g_scratch);
    EXPECT_EQ(bt_tokenizer_chat(tok, 1, &message, BT_THINK_UNSAID, &text), BT_OK);
    EXPECT(text != NULL && strcmp(text, "<s>hi</s>") == 0);
    EXPECT_EQ(count(tok, "<s>hi</s>", 9), 4);
    bt_free(text);
    bt_tokenizer_close(tok);
}

/* clang-format off */
static const struct {
    const char *config, *more, *frame;
    bt_status   st;
    const char *parts[2];
} BAD[] = {
    {"", "", NAMED, BT_ERR_FORMAT, {"tekken.json: field config.pattern: expected a string", "found nothing"}},
    {"\"pattern\": \"a\\u0000\"" SIZES(2, 258), "", NAMED, BT_ERR_FORMAT, {"field config.pattern: expected a string without U+0000", ""}},
    {"\"pattern\": \"a[$]\"" SIZES(2, 258), "", NAMED, BT_ERR_UNSUPPORTED, {"field config.pattern: expected a regex without ^ and $", "found \"a[$]\""}},
    {"\"pattern\": \"^a\"" SIZES(2, 258), "", NAMED, BT_ERR_UNSUPPORTED, {"field config.pattern: expected a regex without ^ and $", ""}},
    {"\"pattern\": \"[^a]|a^\"" SIZES(2, 258), "", NAMED, BT_ERR_UNSUPPORTED, {"field config.pattern: expected a regex without ^ and $", ""}},
    {"\"pattern\": \"(\"" SIZES(2, 258), "", NAMED, BT_ERR_UNSUPPORTED, {"tekken.json: pre_tokenizer: regex", ""}},
    {LETTERS, "", NAMED, BT_ERR_FORMAT, {"field config.default_num_special_tokens: expected an integer from 2 to 65536", "found nothing"}},
    {LETTERS SIZES(1, 258), "", NAMED, BT_ERR_FORMAT, {"expected an integer from 2 to 65536", "found 1"}},
    {LETTERS SIZES(65537, 65793), "", NAMED, BT_ERR_FORMAT, {"expected an integer from 2 to 65536", "found 65537"}},
    {LETTERS SIZES(2, 257), "", NAMED, BT_ERR_FORMAT, {"field config.default_vocab_size: expected an integer from 258 to 258", "found 257"}},
    {LETTERS SIZES(3, 261), AB, NAMED, BT_ERR_FORMAT, {"field config.default_vocab_size: expected an integer from 259 to 260", "found 261"}},
    {LETTERS SIZES(2, 258), "", ", \"vocab\": 1", BT_ERR_FORMAT, {"expected JSON", "duplicate"}},
    {LETTERS SIZES(2, 259), ", 7", NAMED, BT_ERR_FORMAT, {"field vocab[256].rank: expected an integer from 256 to 256", "found nothing"}},
    {LETTERS SIZES(2, 259), ABC, NAMED, BT_ERR_FORMAT, {"field vocab[256].rank", "found 257"}},
    {LETTERS SIZES(2, 259), ", {\"rank\": 256, \"token_bytes\": 5}", NAMED, BT_ERR_FORMAT, {"field vocab[256].token_bytes: expected a string", "found 5"}},
    {LETTERS SIZES(2, 259), ", {\"rank\": 256, \"token_bytes\": \"\"}", NAMED, BT_ERR_FORMAT, {"field vocab[256].token_bytes: expected base64", "found \"\""}},
    {LETTERS SIZES(2, 259), ", {\"rank\": 256, \"token_bytes\": \"YWI\"}", NAMED, BT_ERR_FORMAT, {"field vocab[256].token_bytes: expected base64", "found \"YWI\""}},
    {LETTERS SIZES(2, 259), ", {\"rank\": 256, \"token_bytes\": \"YWI= \"}", NAMED, BT_ERR_FORMAT, {"field vocab[256].token_bytes: expected base64", ""}},
    {LETTERS SIZES(2, 259), ", {\"rank\": 256, \"token_bytes\": \"YQ==\"}", NAMED, BT_ERR_FORMAT, {"tekken.json: expected different tokens", "99"}},
    {LETTERS SIZES(2, 258), "", ", \"special_tokens\": {}", BT_ERR_FORMAT, {"field special_tokens: expected a list", "found {} (an object)"}},
    {LETTERS SIZES(2, 258), "", ", \"special_tokens\": []", BT_ERR_FORMAT, {"field special_tokens: expected <s>", "found none"}},
    {LETTERS SIZES(2, 258), "", ", \"special_tokens\": [7]", BT_ERR_FORMAT, {"field special_tokens[0].rank", "found nothing"}},
    {LETTERS SIZES(2, 258), "", ", \"special_tokens\": [{\"rank\": 1, \"token_str\": \"<s>\"}]", BT_ERR_FORMAT, {"field special_tokens[0].rank: expected an integer from 0 to 0", "found 1"}},
    {LETTERS SIZES(2, 258), "", ", \"special_tokens\": [{\"rank\": 0}]", BT_ERR_FORMAT, {"field special_tokens[0].token_str: expected a string", "found nothing"}},
    {LETTERS SIZES(2, 258), "", ", \"special_tokens\": [{\"rank\": 0, \"token_str\": \"\"}]", BT_ERR_FORMAT, {"field special_tokens[0].token_str: expected a text", "found none"}},
    {LETTERS SIZES(2, 258), "", ", \"special_tokens\": [{\"rank\": 0, \"token_str\": \"<SPECIAL_1>\"}]", BT_ERR_FORMAT, {"field special_tokens: expected one id for \"<SPECIAL_1>\"", "found 0 and 1"}},
    {LETTERS SIZES(20, 276), "", "", BT_ERR_FORMAT, {"field config.version: expected a string", "found nothing"}},
    {LETTERS SIZES(20, 276) ", \"version\": \"v11\"", "", "", BT_ERR_FORMAT, {"field special_tokens: expected a list in a file of version \"v11\"", "found nothing"}},
    {LETTERS SIZES(19, 275) ", \"version\": \"v7\"", "", "", BT_ERR_FORMAT, {"field config.default_num_special_tokens: expected an integer from 20", "found 19"}},
};
/* clang-format on */

static void tekken_bad_files_are_refused_by_name(void)
{
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        write_small(BAD[i].config, BAD[i].more, BAD[i].frame);
        expect_refused(g_scratch, BAD[i].st, BAD[i].parts, i);
    }
}

static void tekken_special_token_that_is_too_long_is_refused(void)
{
    static const char *const PARTS[2] = {"tekken.json: expected added tokens of under 4096",
                                         "found id 0 of 4096"};
    char                     frame[8192];

    snprintf(frame, sizeof(frame), ", \"special_tokens\": [{\"rank\": 0, \"token_str\": \"%0*d\"}]",
             4096, 0);
    write_small(LETTERS SIZES(2, 258), "", frame);
    expect_refused(g_scratch, BT_ERR_FORMAT, PARTS, 0);
}

/* What cannot be made of bytes and a frame around them. */
static void tekken_other_bad_files_are_refused(void)
{
    static const char *const FILES[][2] = {
        {"",                                                                            "tekken.json: expected JSON"       },
        {"[]",                                                                          "tekken.json: field config.pattern"},
        {"{\"config\": 3}",                                                             "tekken.json: field config.pattern"},
        {"{\"config\": {\"pattern\": \"a\"}, \"special_tokens\": []}",
         "field vocab: expected a list of 256 tokens or more, found nothing"                                               },
        {"{\"config\": {\"pattern\": \"a\"}, \"special_tokens\": [], \"vocab\": {}}",
         "field vocab: expected a list of 256 tokens or more, found {}"                                                    },
        {"{\"config\": {\"pattern\": \"a\"}, \"special_tokens\": [], \"vocab\": [{}]}",
         "field vocab: expected a list of 256 tokens or more, found [{}]"                                                  },
    };
    bt_tokenizer *tok = NULL;

    for (size_t i = 0; i < sizeof(FILES) / sizeof(FILES[0]); i++) {
        scratch_clear();
        scratch_write("tekken.json", FILES[i][0], strlen(FILES[i][0]));
        EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), FILES[i][1]);
        EXPECT(tok == NULL);
    }
}

/* Whoever puts another there means it. */
static void tekken_is_for_where_no_other_file_is(void)
{
    static const char *const OTHERS[] = {"tiktoken.model", "tokenizer.json"};
    bt_tokenizer            *tok      = NULL;

    write_small(LETTERS SIZES(2, 258), "", NAMED);
    for (int i = 0; i < 2; i++) {
        scratch_write(OTHERS[i], "x", 1);
        EXPECT_EQ(bt_tokenizer_open(g_scratch, &tok), BT_ERR_FORMAT);
        EXPECT_HAS(bt_error_text(), OTHERS[i]);
        EXPECT(tok == NULL);
    }
}

static void tekken_open_unwinds_at_every_allocation(void)
{
    write_small(LETTERS SIZES(2, 259), AB, NAMED);
    scratch_write("tokenizer_config.json", "{\"bos_token\": \"<s>\"}", 20);
    expect_open_unwinds(g_scratch, 20);
}

static const bt_test TESTS[] = {
    BT_TEST(tekken_equals_mistral_common),
    BT_TEST(tekken_has_special_tokens_before_the_vocabulary),
    BT_TEST(tekken_vocabulary_ends_where_its_size_says),
    BT_TEST(tekken_of_old_versions_names_no_special_tokens),
    BT_TEST(tekken_texts_begin_with_bos),
    BT_TEST(tekken_chats_by_the_template_beside_it),
    BT_TEST(tekken_bad_files_are_refused_by_name),
    BT_TEST(tekken_special_token_that_is_too_long_is_refused),
    BT_TEST(tekken_other_bad_files_are_refused),
    BT_TEST(tekken_is_for_where_no_other_file_is),
    BT_TEST(tekken_open_unwinds_at_every_allocation),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
