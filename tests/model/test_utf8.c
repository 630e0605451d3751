#include "core/alloc.h"
#include "model/byte_level.h"
#include "model/tokenizer.h"
#include "model/utf8.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static void utf8_next_judges_every_kind_of_start(void)
{
    static const struct {
        const char  *text;
        size_t       n, length;
        bt_utf8_kind kind;
    } CASES[] = {
        {"a",                1, 1, BT_UTF8_GOOD},
        {"\xc3\xa9x",        3, 2, BT_UTF8_GOOD},
        {"\xe4\xb8\xad",     3, 3, BT_UTF8_GOOD},
        {"\xf0\x9f\x99\x82", 4, 4, BT_UTF8_GOOD},
        {"\xf4\x8f\xbf\xbf", 4, 4, BT_UTF8_GOOD}, /* U+10FFFF */
        {"\x80",             1, 1, BT_UTF8_BAD }, /* a continuation alone */
        {"\xc0\x80",         2, 1, BT_UTF8_BAD }, /* overlong */
        {"\xc1\xbf",         2, 1, BT_UTF8_BAD },
        {"\xe0\x9f\xbf",     3, 1, BT_UTF8_BAD },
        {"\xf0\x8f\xbf\xbf", 4, 1, BT_UTF8_BAD },
        {"\xed\xa0\x80",     3, 1, BT_UTF8_BAD }, /* a surrogate */
        {"\xf4\x90\x80\x80", 4, 1, BT_UTF8_BAD }, /* beyond U+10FFFF */
        {"\xf5\x80\x80\x80", 4, 1, BT_UTF8_BAD },
        {"\xff",             1, 1, BT_UTF8_BAD },
        {"\xe4\xb8z",        3, 2, BT_UTF8_BAD },
        {"\xf0\x9f\x99\xff", 4, 3, BT_UTF8_BAD },
        {"\xc3",             1, 1, BT_UTF8_CUT },
        {"\xe4\xb8",         2, 2, BT_UTF8_CUT },
        {"\xf0\x9f\x99",     3, 3, BT_UTF8_CUT },
        {"\xf0\x9f",         2, 2, BT_UTF8_CUT },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_utf8_kind kind;

        EXPECT_EQ(bt_utf8_next(CASES[i].text, CASES[i].n, &kind), CASES[i].length);
        EXPECT_EQ(kind, CASES[i].kind);
    }
    EXPECT_EQ(bt_utf8_char("\xc3\xa9", 2), 0xe9);
    EXPECT_EQ(bt_utf8_char("\xe4\xb8\xad", 3), 0x4e2d);
    EXPECT_EQ(bt_utf8_char("\xf0\x9f\x99\x82", 4), 0x1f642);
}

static void utf8_put_is_read_back(void)
{
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        bt_utf8_kind kind = BT_UTF8_BAD;
        char         text[4];
        size_t       n = bt_utf8_put(c, text);

        if (c >= 0xd800 && c <= 0xdfff) continue;
        if (bt_utf8_next(text, n, &kind) == n && kind == BT_UTF8_GOOD && bt_utf8_char(text, n) == c)
            continue;
        fprintf(stderr, "U+%04X is not read back\n", c);
        g_failures++;
        break;
    }
}

static void utf8_repair_replaces_maximal_parts(void)
{
    char  *text = NULL;
    size_t n    = 0;

    /* the example of the Unicode standard, table 3-8 */
    EXPECT_EQ(bt_utf8_repair("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", 13, &text, &n),
              BT_OK);
    EXPECT_EQ(n, 4 + 6 * 3);
    EXPECT(text != NULL && memcmp(text,
                                  "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                                  "b\xef\xbf\xbd"
                                  "c\xef\xbf\xbd\xef\xbf\xbd"
                                  "d",
                                  n) == 0);
    bt_free(text);
    text = NULL;
    bt_alloc_fail_at(0);
    EXPECT_EQ(bt_utf8_repair("a", 1, &text, &n), BT_ERR_NO_MEMORY);
    bt_alloc_fail_at(-1);
    EXPECT(text == NULL);
}

static void byte_level_maps_every_byte_there_and_back(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c        = bt_byte_level_char((uint8_t)b);
        char     entry[3] = {(char)(c < 0x80 ? c : 0xc0 | c >> 6), (char)(0x80 | (c & 0x3f)), 0};
        char     out[3];
        bool     mapped = false;

        EXPECT(c < 0x144);
        EXPECT_EQ(bt_byte_level_bytes(entry, c < 0x80 ? 1 : 2, out, &mapped), 1);
        EXPECT(mapped && (uint8_t)out[0] == b);
    }
    EXPECT_EQ(bt_byte_level_char(' '), 0x120);
    EXPECT_EQ(bt_byte_level_char('\n'), 0x10a);
    EXPECT_EQ(bt_byte_level_char(0xad), 0x143);
}

static void byte_level_special_texts_stand_for_themselves(void)
{
    const char *entry = "<\xef\xbd\x9cUser\xef\xbd\x9c>\xc4\xa0";
    char        out[32];
    bool        mapped = true;

    EXPECT_EQ(bt_byte_level_bytes(entry, strlen(entry), out, &mapped), strlen(entry));
    EXPECT(!mapped && memcmp(out, entry, strlen(entry)) == 0);
    EXPECT_EQ(bt_byte_level_bytes("a b", 3, out, &mapped), 3); /* a blank is no stand-in */
    EXPECT(!mapped && memcmp(out, "a b", 3) == 0);
}

/* The demo's tokenizer, whose last token is `text` instead. */
static bt_tokenizer *with_token(const char *text)
{
    static const char NAME[] = "<\xef\xbd\x9c"
                               "Assistant\xef\xbd\x9c>";
    static char       file[1 << 20];
    FILE             *from = fopen(BT_SOURCE_DIR "/models/demo/tokenizer.json", "re");
    FILE             *to   = fopen(scratch_path("tokenizer.json"), "we");
    bt_tokenizer     *tok  = NULL;
    char             *name;

    NEED(from != NULL && to != NULL && fread(file, 1, sizeof(file) - 1, from) > 0);
    name = strstr(file, NAME);
    NEED(name != NULL);
    fprintf(to, "%.*s%s%s", (int)(name - file), file, text, name + strlen(NAME));
    NEED(fclose(to) == 0 && bt_tokenizer_open(g_scratch, &tok) == BT_OK);
    fclose(from);
    return tok;
}

/* A token may be a whole character of four bytes, or more of them than can be held back. */
static void detokenizer_shows_characters_of_four_bytes(void)
{
    static const char *const TEXTS[] = {"\xf0\x9f\x98\x80",
                                        "\xf0\x9f\x98\x80\xf0\x9f\x99\x82!\xf0\x9f\x98\x80"};

    for (size_t i = 0; i < sizeof(TEXTS) / sizeof(TEXTS[0]); i++) {
        bt_tokenizer  *tok   = with_token(TEXTS[i]);
        bt_detokenizer state = {0};
        char           buf[64];

        EXPECT_EQ(bt_detokenize(tok, &state, 2047, false, buf, sizeof(buf)), 0); /* a special one */
        EXPECT_EQ(bt_detokenize(tok, &state, 2047, true, buf, sizeof(buf)), strlen(TEXTS[i]));
        EXPECT(memcmp(buf, TEXTS[i], strlen(TEXTS[i])) == 0);
        EXPECT_EQ(bt_detokenize_end(&state, buf, sizeof(buf)), 0);
        bt_tokenizer_close(tok);
    }
}

static const bt_test TESTS[] = {
    BT_TEST(detokenizer_shows_characters_of_four_bytes),
    BT_TEST(utf8_next_judges_every_kind_of_start),
    BT_TEST(utf8_put_is_read_back),
    BT_TEST(utf8_repair_replaces_maximal_parts),
    BT_TEST(byte_level_maps_every_byte_there_and_back),
    BT_TEST(byte_level_special_texts_stand_for_themselves),
};

int main(int argc, char **argv)
{
    return scratch_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
