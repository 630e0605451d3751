/* Parts, packing, states and masks: what may follow a text, against plain searches. */
#include <time.h>

#include "core/alloc.h"
#include "model/grammar/tokens.h"
#include "tests/model/grammar_check.h"
#include "tests/support/sweep.h"

static bt_token_list *g_list;
static bt_tokenizer  *g_tok;

/* value ::= "x" | "[" (value ("," value)*)? "]" */
static bt_part nested(bt_parts *g)
{
    uint32_t value = bt_rule_new(g, "value");
    bt_part  more  = bt_part_then(g, bt_part_text(g, ","), bt_rule_call(g, value));
    bt_part  items =
        bt_part_then(g, bt_rule_call(g, value), bt_part_repeat(g, more, 0, BT_UNLIMITED));
    bt_part list = bt_part_then(g, bt_part_text(g, "["), bt_part_maybe(g, items));

    list = bt_part_then(g, list, bt_part_text(g, "]"));
    bt_rule_is(g, value, bt_part_either(g, bt_part_text(g, "x"), list));
    return bt_rule_call(g, value);
}

static bt_part letter(bt_parts *g, const char *letters)
{
    bt_chars set = {0};
    bt_part  p;

    for (; *letters != '\0'; letters++)
        bt_chars_add(g, &set, (unsigned char)*letters, (unsigned char)*letters);
    p = bt_part_chars(g, &set);
    bt_chars_fini(&set);
    return p;
}

static void parts_repeat_as_often_as_they_say(void)
{
    static const struct {
        uint32_t min, max;
    } TIMES[] = {
        {0, 0           },
        {0, 1           },
        {1, 1           },
        {0, 3           },
        {2, 2           },
        {2, 5           },
        {0, BT_UNLIMITED},
        {3, BT_UNLIMITED}
    };

    for (size_t i = 0; i < sizeof(TIMES) / sizeof(TIMES[0]); i++) {
        bt_parts    g = {0};
        char        why[BT_GRAMMAR_WHY_BYTES], text[12] = "";
        bt_part     p = bt_part_repeat(&g, bt_part_text(&g, "a"), TIMES[i].min, TIMES[i].max);
        bt_matcher *m = matcher_of(&g, bt_part_then(&g, p, bt_part_text(&g, ".")), NULL, why);

        for (uint32_t n = 0; n < 8; n++) {
            memset(text, 'a', n);
            text[n]     = '.';
            text[n + 1] = '\0';
            EXPECT_VERDICT(m, text, n >= TIMES[i].min && n <= TIMES[i].max ? ACCEPTS : REFUSES);
        }
        bt_matcher_destroy(m);
    }
}

static void parts_that_no_text_satisfies_are_refused(void)
{
    char     why[BT_GRAMMAR_WHY_BYTES] = "";
    bt_parts g                         = {0};
    uint32_t rule;

    EXPECT(matcher_of(&g, bt_part_never(&g), NULL, why) == NULL);
    EXPECT(strstr(why, "no text at all") != NULL);
    /* a ::= "x" a: it would never end */
    rule = bt_rule_new(&g, "a");
    bt_rule_is(&g, rule, bt_part_then(&g, bt_part_text(&g, "x"), bt_rule_call(&g, rule)));
    EXPECT(matcher_of(&g, bt_rule_call(&g, rule), NULL, why) == NULL);
    /* a way that does not end is left out beside one that does */
    rule = bt_rule_new(&g, "a");
    bt_rule_is(&g, rule, bt_part_then(&g, bt_part_text(&g, "x"), bt_rule_call(&g, rule)));
    bt_matcher *m = matcher_of(
        &g, bt_part_either(&g, bt_rule_call(&g, rule), bt_part_text(&g, "y")), NULL, why);
    EXPECT_VERDICT(m, "x", REFUSES);
    EXPECT_VERDICT(m, "y", ACCEPTS);
    bt_matcher_destroy(m);
    EXPECT(matcher_of(&g, bt_rule_call(&g, bt_rule_new(&g, "unsaid")), NULL, why) == NULL);
}

static void rules_that_begin_with_themselves_are_refused_by_name(void)
{
    char     why[BT_GRAMMAR_WHY_BYTES] = "";
    bt_parts g                         = {0};
    uint32_t a = bt_rule_new(&g, "first"), b = bt_rule_new(&g, "second");
    bt_part  p;

    /* first ::= second "x" | "y"; second ::= "z"? first */
    p = bt_part_then(&g, bt_rule_call(&g, b), bt_part_text(&g, "x"));
    bt_rule_is(&g, a, bt_part_either(&g, p, bt_part_text(&g, "y")));
    bt_rule_is(&g, b,
               bt_part_then(&g, bt_part_maybe(&g, bt_part_text(&g, "z")), bt_rule_call(&g, a)));
    EXPECT(matcher_of(&g, bt_part_then(&g, bt_part_text(&g, "q"), bt_rule_call(&g, a)), NULL,
                      why) == NULL);
    EXPECT(strstr(why, "first begins with itself") != NULL);
    /* siblings that begin with the same rule do not */
    a = bt_rule_new(&g, "a");
    b = bt_rule_new(&g, "b");
    bt_rule_is(&g, a, bt_part_text(&g, "x"));
    bt_rule_is(&g, b,
               bt_part_either(&g, bt_rule_call(&g, a),
                              bt_part_then(&g, bt_part_text(&g, "y"), bt_rule_call(&g, b))));
    bt_matcher *m =
        matcher_of(&g, bt_part_either(&g, bt_rule_call(&g, b), bt_rule_call(&g, a)), NULL, why);
    EXPECT_VERDICT(m, "x", ACCEPTS);
    EXPECT_VERDICT(m, "yyx", ACCEPTS);
    EXPECT_VERDICT(m, "y", GOES_ON);
    bt_matcher_destroy(m);
}

static void matcher_follows_calls_within_calls(void)
{
    static const struct {
        const char *text;
        verdict     want;
    } CASES[] = {
        {"x",         ACCEPTS},
        {"[]",        ACCEPTS},
        {"[x,[x],x]", ACCEPTS},
        {"[[[[",      GOES_ON},
        {"[[x]",      GOES_ON},
        {"[x,]",      REFUSES},
        {"]",         REFUSES},
        {"[x]]",      REFUSES},
        {"xx",        REFUSES},
        {"",          GOES_ON},
    };
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_parts    g = {0};
    bt_matcher *m = matcher_of(&g, nested(&g), NULL, why);
    char        deep[4001];

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        EXPECT_VERDICT(m, CASES[i].text, CASES[i].want);
    memset(deep, '[', 2000);
    memset(deep + 2000, ']', 2000);
    deep[4000] = '\0';
    EXPECT_VERDICT(m, deep, ACCEPTS);
    deep[3999] = '\0';
    EXPECT_VERDICT(m, deep, GOES_ON);
    bt_matcher_destroy(m);
}

/* list ::= "x" list | "x": what is called last takes no frame, so that few states are enough. */
static void matcher_of_a_list_that_calls_itself_last_stays_small(void)
{
    char     why[BT_GRAMMAR_WHY_BYTES], text[20001];
    bt_parts g    = {0};
    uint32_t list = bt_rule_new(&g, "list");
    bt_part  more = bt_part_then(&g, bt_part_text(&g, "x"), bt_rule_call(&g, list));
    size_t   before;

    bt_rule_is(&g, list, bt_part_either(&g, more, bt_part_text(&g, "x")));
    bt_matcher *m = matcher_of(&g, bt_rule_call(&g, list), NULL, why);
    EXPECT_VERDICT(m, "xxxx", ACCEPTS);
    before = bt_matcher_bytes(m);
    memset(text, 'x', 20000);
    text[20000] = '\0';
    EXPECT_VERDICT(m, text, ACCEPTS);
    EXPECT_EQ(bt_matcher_bytes(m), before);
    bt_matcher_destroy(m);
}

static void matcher_gives_up_on_what_is_read_in_too_many_ways(void)
{
    /* a ::= "x" a "y" | "x" a "z" | ..: each x opens two calls of the same rule at two places */
    char        why[BT_GRAMMAR_WHY_BYTES], text[200];
    bt_parts    g = {0};
    uint32_t    a = bt_rule_new(&g, "a"), state;
    bt_part     p = bt_part_text(&g, "!");
    bt_matcher *m;

    for (int i = 0; i < 2; i++) {
        bt_part way = bt_part_then(&g, bt_part_text(&g, "x"), bt_rule_call(&g, a));

        p = bt_part_either(&g, p, bt_part_then(&g, way, bt_part_text(&g, i == 0 ? "y" : "z")));
    }
    bt_rule_is(&g, a, p);
    m = matcher_of(&g, bt_rule_call(&g, a), NULL, why);
    EXPECT_VERDICT(m, "xx!yz", ACCEPTS);
    memset(text, 'x', sizeof(text));
    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), text, sizeof(text), &state),
              BT_ERR_UNSUPPORTED);
    bt_matcher_destroy(m);
}

/* ---- characters */

static size_t put_utf8(uint32_t c, char *out)
{
    if (c < 0x80) return (void)(out[0] = (char)c), 1;
    if (c < 0x800)
        return (void)(out[0] = (char)(0xC0 | c >> 6)), (void)(out[1] = (char)(0x80 | (c & 0x3F))),
               2;
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

static void chars_are_exactly_their_code_points(void)
{
    static const bt_char_range RANGES[][3] = {
        {{0, BT_CHAR_MAX}     },
        { {0x41, 0x5A},     {0x50, 0x7F}, {0x80, 0x80}},
        {         {0x7FF, 0x800},   {0xFFFF, 0x10000}, {0x10FFFF, 0x10FFFF}},
        { {0xD700, 0xE100}, {0x3A5, 0x12345}, {0x1, 0x1}},
        {           {0x20AC, 0x20AC}, {0x10400, 0x2F800}, {0x900, 0xDFF}},
    };

    for (size_t i = 0; i < sizeof(RANGES) / sizeof(RANGES[0]); i++)
        for (int negated = 0; negated < 2; negated++) {
            bt_parts    g   = {0};
            bt_chars    set = {0};
            char        why[BT_GRAMMAR_WHY_BYTES], text[4];
            uint32_t    n_wrong = 0;
            bt_matcher *m;

            for (int k = 0; k < 3; k++)
                bt_chars_add(&g, &set, RANGES[i][k].lo, RANGES[i][k].hi);
            bt_chars_sort(&g, &set);
            if (negated) bt_chars_negate(&g, &set);
            m = matcher_of(&g, bt_part_chars(&g, &set), NULL, why);
            bt_chars_fini(&set);
            if (m == NULL) { /* all, negated */
                EXPECT(i == 0 && negated);
                continue;
            }
            for (uint32_t c = 0; c <= BT_CHAR_MAX; c++) {
                bool in = false;

                for (int k = 0; k < 3; k++)
                    in = in || (RANGES[i][k].lo <= c && c <= RANGES[i][k].hi);
                in = in != (negated == 1) && (c < 0xD800 || c > 0xDFFF);
                n_wrong += (judge_bytes(m, text, put_utf8(c, text)) == ACCEPTS) != in;
            }
            EXPECT_EQ(n_wrong, 0);
            EXPECT_EQ(judge_bytes(m, "\xC0\x80", 2), REFUSES);
            EXPECT_EQ(judge_bytes(m, "\xFF", 1), REFUSES);
            bt_matcher_destroy(m);
        }
}

/* Of a thousand ranges, 64 of a leading pair of bytes; a text of one is read in one way. */
static void chars_share_the_bytes_that_they_begin_with(void)
{
    bt_parts    g   = {0};
    bt_chars    set = {0};
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_part     one;
    bt_matcher *m;

    for (uint32_t c = 0x4E00; c < 0x4E00 + 2000; c += 2)
        bt_chars_add(&g, &set, c, c);
    one = bt_part_chars(&g, &set);
    EXPECT(g.n_nodes <= 2 + 2 + 2000 / 64 + 1);
    m = matcher_of(&g, bt_part_repeat(&g, one, 1, BT_UNLIMITED), NULL, why);
    EXPECT_VERDICT(m, "\xe4\xb8\x80\xe5\x80\x80\xe4\xb8\x82", ACCEPTS);
    EXPECT_VERDICT(m, "\xe4\xb8\x81", REFUSES);
    EXPECT_VERDICT(m, "\xe4\xb8\x80\xe5\x80\x81", REFUSES);
    bt_matcher_destroy(m);
    bt_chars_fini(&set);
}

static void chars_of_json_are_escaped_where_they_must_be(void)
{
    bt_parts    g   = {0};
    bt_chars    set = {0};
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_matcher *m;

    bt_chars_add(&g, &set, 0, 0x5D); /* with the quote and the backslash */
    m = matcher_of(&g, bt_part_json_chars(&g, &set), NULL, why);
    bt_chars_fini(&set);
    EXPECT_VERDICT(m, "a", REFUSES);
    EXPECT_VERDICT(m, "A", ACCEPTS);
    EXPECT_VERDICT(m, "]", ACCEPTS);
    EXPECT_VERDICT(m, "\"", REFUSES);
    EXPECT_VERDICT(m, "\\", GOES_ON);
    EXPECT_VERDICT(m, "\\\\", ACCEPTS);
    EXPECT_VERDICT(m, "\\\"", ACCEPTS);
    EXPECT_VERDICT(m, "\\n", ACCEPTS);
    EXPECT_VERDICT(m, "\n", REFUSES);
    EXPECT_VERDICT(m, "\\u0000", ACCEPTS);
    EXPECT_VERDICT(m, "\\u001f", ACCEPTS);
    EXPECT_VERDICT(m, "\\u000a", REFUSES); /* it has a shorter one */
    EXPECT_VERDICT(m, "\\u0041", REFUSES);
    bt_matcher_destroy(m);
}

/* ---- tokens */

/* Every token's bit is what its bytes come to. */
static void check_mask_of(bt_matcher *m, uint32_t state, const bt_token_list *list)
{
    static uint32_t bits[(1 << 18) / 32];
    uint32_t        n_wrong = 0;

    EXPECT_EQ(bt_matcher_mask(m, state, BT_MASK_WORK_MOST, bits), BT_OK);
    for (uint32_t id = 0; id < list->n_ids; id++) {
        const bt_token_text *t    = &list->texts[id];
        uint32_t             next = BT_STATE_DEAD;

        if (t->n > 0) EXPECT_EQ(bt_matcher_step(m, state, list->bytes + t->at, t->n, &next), BT_OK);
        n_wrong += (next != BT_STATE_DEAD) != (bits[id / 32] >> id % 32 & 1);
    }
    EXPECT_EQ(n_wrong, 0);
}

/* Likewise, by the tokenizer. */
static void check_mask(bt_matcher *m, uint32_t state, uint32_t n_ids)
{
    static uint32_t bits[(1 << 18) / 32];
    uint32_t        n_wrong = 0;

    EXPECT_EQ(bt_matcher_mask(m, state, BT_MASK_WORK_MOST, bits), BT_OK);
    for (uint32_t id = 0; id < n_ids; id++) {
        size_t      n;
        uint32_t    next = BT_STATE_DEAD;
        const char *text = bt_tokenizer_bytes(g_tok, id, &n, NULL);

        if (bt_tokenizer_is_text(g_tok, id))
            EXPECT_EQ(bt_matcher_step(m, state, text, n, &next), BT_OK);
        n_wrong += (next != BT_STATE_DEAD) != (bits[id / 32] >> id % 32 & 1);
        uint32_t by_token = UINT32_MAX;
        EXPECT_EQ(bt_matcher_step_token(m, state, id, &by_token), BT_OK);
        n_wrong += by_token != next;
    }
    EXPECT_EQ(n_wrong, 0);
}

static void mask_allows_exactly_the_tokens_that_may_follow(void)
{
    static const char *const TEXTS[] = {"", "[", "[x", "[[", "[x,[x,"};
    char                     why[BT_GRAMMAR_WHY_BYTES];
    bt_parts                 g     = {0};
    uint32_t                 n_ids = bt_tokenizer_vocab_size(g_tok), state;
    bt_matcher              *m     = matcher_of(&g, nested(&g), g_list, why);

    for (size_t i = 0; i < sizeof(TEXTS) / sizeof(TEXTS[0]); i++) {
        EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), TEXTS[i], strlen(TEXTS[i]), &state),
                  BT_OK);
        check_mask(m, state, n_ids);
        check_mask(m, state, n_ids); /* as it was kept */
    }
    bt_matcher_destroy(m);
    bt_chars set = {0};
    bt_chars_add(&g, &set, ' ', 0x2FFF);
    m = matcher_of(&g, bt_part_repeat(&g, bt_part_chars(&g, &set), 0, 7), g_list, why);
    bt_chars_fini(&set);
    check_mask(m, bt_matcher_start(m), n_ids);
    bt_matcher_destroy(m);
}

/* As those around calls of tools are in the vocabularies of models that make them. */
static void mask_has_added_tokens_that_are_not_special(void)
{
    static uint32_t bits[(1 << 18) / 32];
    const int64_t   think = bt_tokenizer_added_id(g_tok, "</think>");
    char            why[BT_GRAMMAR_WHY_BYTES];
    bt_parts        g     = {0};
    bt_matcher     *m     = matcher_of(&g, bt_part_text(&g, "</think>"), g_list, why);
    uint32_t        n_ids = bt_tokenizer_vocab_size(g_tok), next;
    bool            special;
    size_t          n;

    EXPECT_EQ(bt_matcher_mask(m, bt_matcher_start(m), BT_MASK_WORK_MOST, bits), BT_OK);
    EXPECT(think >= 0 && (bits[think / 32] >> think % 32 & 1) != 0);
    EXPECT_EQ(bt_matcher_step_token(m, bt_matcher_start(m), (uint32_t)think, &next), BT_OK);
    EXPECT(bt_matcher_accepts(m, next));
    bt_matcher_destroy(m);
    m = matcher_of(&g, bt_part_repeat(&g, bt_part_byte(&g, 0, 255), 0, BT_UNLIMITED), g_list, why);
    EXPECT_EQ(bt_matcher_mask(m, bt_matcher_start(m), BT_MASK_WORK_MOST, bits), BT_OK);
    for (uint32_t id = 0; id < n_ids; id++) {
        bt_tokenizer_bytes(g_tok, id, &n, &special);
        EXPECT_EQ(bits[id / 32] >> id % 32 & 1, n != 0 && !special);
    }
    bt_matcher_destroy(m);
}

/* Characters at the ends of ranges of UTF-8, and what is no plain text. */
static const uint32_t EDGES[] = {
    'a',     'e',     ' ',     '!',     '#',      '[',         ']',    0x7F,   0x80,   0xE9,
    0x7FF,   0x800,   0xFFF,   0x1000,  0xCFFF,   0xD000,      0xD7FF, 0xE000, 0xFFFD, 0xFFFF,
    0x10000, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, BT_CHAR_MAX, '"',    '\\',   '\n'};
enum { N_EDGES = sizeof(EDGES) / sizeof(EDGES[0]), N_TEXTS = 4096 };

/* Texts of 1 to 20 of them, most short; a few end within a character. */
static bt_token_list *texts_of_edges(void)
{
    bt_token_list *list  = NULL;
    bt_token_text *texts = bt_calloc(N_TEXTS, sizeof(*texts));
    char          *bytes = bt_calloc(N_TEXTS, 20 * 4);
    uint32_t       at = 0, random = 1;

    for (uint32_t id = 0; id < N_TEXTS; id++) {
        uint32_t n_chars = 1 + (id % 7 == 0 ? id / 7 % 20 : id % 3),
                 kinds   = id % 5 == 0 ? N_EDGES : N_EDGES - 3;

        texts[id].at = at;
        for (uint32_t i = 0; i < n_chars; i++) {
            random = random * 1664525 + 1013904223;
            at += (uint32_t)put_utf8(EDGES[(random >> 16) % kinds], bytes + at);
        }
        at -= id % 50 == 0 && at > texts[id].at + 1;
        texts[id].n = at - texts[id].at;
    }
    if (bt_token_list_make(N_TEXTS, texts, bytes, at, &list) != BT_OK) abort();
    return list;
}

/* Tokens that are allowed without a look at each: so many characters, of which one may be missing.
 */
static void mask_of_plain_texts_is_that_of_their_bytes(void)
{
    static const uint32_t COUNTS[] = {0, 1, 3, 4, 5, 8, 9, 15, 16, 17, 40, BT_UNLIMITED};
    bt_token_list        *list     = texts_of_edges();

    for (size_t i = 0; i < sizeof(COUNTS) / sizeof(COUNTS[0]); i++)
        for (size_t k = 0; k <= N_EDGES; k++) {
            uint32_t without = k < N_EDGES ? EDGES[k] : 0;
            bt_parts g       = {0};
            bt_chars set     = {0};
            char     why[BT_GRAMMAR_WHY_BYTES];
            bt_part  text;

            bt_chars_add(&g, &set, 0x20, without - (without > 0));
            bt_chars_add(&g, &set, without < 0x20 ? 0x20 : without + 1, BT_CHAR_MAX);
            text = bt_part_repeat(&g, bt_part_json_chars(&g, &set), 0, COUNTS[i]);
            bt_chars_fini(&set);
            text          = bt_part_then(&g, text, bt_part_text(&g, "\""));
            bt_matcher *m = matcher_of(&g, text, list, why);
            check_mask_of(m, bt_matcher_start(m), list);
            bt_matcher_destroy(m);
        }
    bt_token_list_destroy(list);
}

enum { NO_CHAR = 0x1F }; /* of these */

static bt_part all_chars_but(bt_parts *g, uint32_t without)
{
    bt_chars set = {0};
    bt_part  part;

    bt_chars_add(g, &set, 0x20, without - 1);
    bt_chars_add(g, &set, without + 1, BT_CHAR_MAX);
    part = bt_part_json_chars(g, &set);
    bt_chars_fini(&set);
    return part;
}

static void check_mask_of_part(bt_parts *g, bt_part text, const bt_token_list *list)
{
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_matcher *m = matcher_of(g, bt_part_then(g, text, bt_part_text(g, "\"")), list, why);

    check_mask_of(m, bt_matcher_start(m), list);
    bt_matcher_destroy(m);
}

/* More states behind one character than are looked at, of one range of bytes or of all together:
 * behind the last one not all characters may follow. */
static void mask_of_plain_texts_counts_no_state_that_it_has_not_seen(void)
{
    static const struct {
        uint32_t width, last;
    } CASES[] = {
        {2, '[' },
        {4, 0x7F}
    };
    bt_token_list *list = texts_of_edges();

    for (int k = 0; k < 2; k++) {
        bt_parts g    = {0};
        bt_part  text = bt_part_never(&g);

        for (uint32_t i = 0, lo = 0x24; lo <= CASES[k].last; i++) {
            uint32_t hi    = i == 0 ? lo - 1 : lo + CASES[k].width - 1;
            bt_chars first = {0};
            bt_part  one;

            bt_chars_add(&g, &first, i == 0 ? 0x20 : lo, hi);
            if (i == 0) bt_chars_add(&g, &first, CASES[k].last + 1, BT_CHAR_MAX);
            one = bt_part_repeat(&g, all_chars_but(&g, hi < CASES[k].last ? NO_CHAR : 'e'), 0,
                                 BT_UNLIMITED);
            one = bt_part_then(&g, bt_part_json_chars(&g, &first), one);
            bt_chars_fini(&first);
            text = bt_part_either(&g, text, one);
            lo   = hi + 1;
        }
        check_mask_of_part(&g, text, list);
    }
    bt_token_list_destroy(list);
}

/* Behind the second character there is a state more than behind the first: no "e" follows an "a".
 */
static void mask_of_plain_texts_looks_on_while_states_come(void)
{
    bt_token_list *list = texts_of_edges();
    bt_parts       g    = {0};
    bt_part        pair = bt_part_then(&g, bt_part_text(&g, "a"), all_chars_but(&g, 'e'));
    bt_part        loop = bt_part_either(&g, all_chars_but(&g, 'a'), pair);

    loop = bt_part_repeat(&g, loop, 0, BT_UNLIMITED);
    check_mask_of_part(&g, bt_part_then(&g, all_chars_but(&g, NO_CHAR), loop), list);
    bt_token_list_destroy(list);
}

/* A text within few readings at a time, of which one has very many edges. */
static void text_that_looks_at_too_many_edges_is_given_up(void)
{
    enum { N = 20000, N_BYTES = 8000 };
    char        why[BT_GRAMMAR_WHY_BYTES], text[N_BYTES];
    bt_parts    g    = {0};
    uint32_t    rule = bt_rule_new(&g, NULL), state;
    bt_part     pair = bt_part_then(&g, bt_part_text(&g, "a"), bt_rule_call(&g, rule));
    bt_part     many = bt_part_never(&g);
    bt_matcher *m;

    for (uint32_t i = 0; i < N; i++)
        bt_part_step(&g, many.start, 'c', 'd', many.end);
    pair = bt_part_then(&g, pair, bt_part_text(&g, "b"));
    bt_rule_is(&g, rule, bt_part_either(&g, pair, many));
    m = matcher_of(&g, bt_rule_call(&g, rule), NULL, why);
    memset(text, 'a', N_BYTES);
    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), text, 1000, &state), BT_OK);
    EXPECT_EQ(bt_matcher_step(m, state, text, N_BYTES, &state), BT_ERR_UNSUPPORTED);
    bt_matcher_destroy(m);
}

/* Edges that are looked at, on the way and where it leads, and readings; nothing a second time. */
static void text_is_work_where_it_is_new(void)
{
    enum { N = 1000, READING = 16 };
    static uint32_t bits[(1 << 18) / 32];
    char            why[BT_GRAMMAR_WHY_BYTES];
    bt_parts        g    = {0};
    bt_part         many = bt_part_never(&g);
    uint32_t        state;

    for (uint32_t i = 0; i < N; i++)
        bt_part_step(&g, many.start, 'c', 'd', many.end);
    bt_matcher *m = matcher_of(&g, bt_part_then(&g, bt_part_text(&g, "a"), many), g_list, why);
    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), "a", 1, &state), BT_OK);
    EXPECT(bt_matcher_work(m) >= READING + N);
    EXPECT_EQ(bt_matcher_step(m, state, "c", 1, &state), BT_OK);
    EXPECT(bt_matcher_work(m) >= READING + N);
    EXPECT_EQ(bt_matcher_mask(m, state, N, bits), BT_OK); /* its own work alone */
    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), "ac", 2, &state), BT_OK);
    EXPECT_EQ(bt_matcher_work(m), 0);
    bt_matcher_destroy(m);
}

/* ---- memory */

static void masks_are_held_until_a_trim(void)
{
    static uint32_t bits[(1 << 18) / 32];
    char            why[BT_GRAMMAR_WHY_BYTES];
    bt_parts        g    = {0};
    bt_matcher     *m    = matcher_of(&g, bt_part_text(&g, "ab"), g_list, why);
    const size_t    mask = bt_mask_words(g_list->n_ids) * sizeof(*bits),
                 others  = bt_matcher_held(m) - bt_matcher_bytes(m);
    uint32_t end, *live = &end;

    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), "ab", 2, &end), BT_OK);
    EXPECT(bt_matcher_has_grown(m));
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(bt_matcher_trim(m, 1, &live), BT_OK);
        EXPECT(!bt_matcher_has_grown(m));
        EXPECT_EQ(bt_matcher_held(m) - bt_matcher_bytes(m), others);
        for (uint32_t k = 0; k < 2; k++) { /* the second time it is there */
            EXPECT_EQ(bt_matcher_mask(m, end, BT_MASK_WORK_MOST, bits), BT_OK);
            EXPECT(bt_matcher_has_grown(m)); /* although no state comes after the end */
            EXPECT_EQ(bt_matcher_held(m) - bt_matcher_bytes(m), others + mask);
        }
        EXPECT_EQ(bt_matcher_mask(m, bt_matcher_start(m), BT_MASK_WORK_MOST, bits), BT_OK);
        EXPECT_EQ(bt_matcher_held(m) - bt_matcher_bytes(m), others + 2 * mask);
    }
    bt_matcher_destroy(m);
}

/* Texts without end through a grammar whose states never come again. */
static void trim_keeps_what_lives(void)
{
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_parts    g = {0};
    bt_matcher *m;
    uint32_t    live[2], *states[2] = {&live[0], &live[1]}, n_trims = 0;
    uint32_t    depth = 0;

    m       = matcher_of(&g, nested(&g), g_list, why);
    live[0] = live[1] = bt_matcher_start(m);
    EXPECT_EQ(bt_matcher_step(m, live[1], "[x,", 3, &live[1]), BT_OK);
    for (; depth < 600000; depth++) {
        size_t before;

        EXPECT_EQ(bt_matcher_step(m, live[0], "[", 1, &live[0]), BT_OK);
        before = bt_matcher_bytes(m);
        if (bt_matcher_is_large(m)) EXPECT_EQ(bt_matcher_trim(m, 2, states), BT_OK);
        n_trims += bt_matcher_bytes(m) < before;
        if (n_trims == 2) break;
    }
    EXPECT_EQ(n_trims, 2);
    EXPECT(live[0] != BT_STATE_DEAD && !bt_matcher_accepts(m, live[0]));
    EXPECT_EQ(bt_matcher_step(m, live[1], "[]]", 3, &live[1]), BT_OK);
    EXPECT(bt_matcher_accepts(m, live[1]));
    for (uint32_t i = 0; i <= depth; i++) {
        EXPECT(!bt_matcher_accepts(m, live[0]));
        EXPECT_EQ(bt_matcher_step(m, live[0], "]", 1, &live[0]), BT_OK);
    }
    EXPECT(bt_matcher_accepts(m, live[0]));
    check_mask(m, bt_matcher_start(m), bt_tokenizer_vocab_size(g_tok));
    bt_matcher_destroy(m);
}

/* Palindromes: as many readings as bytes, within as many calls. */
static void trim_of_deep_readings_is_soon(void)
{
    enum { N_LIVE = 40, N_EACH = 100 };
    char        why[BT_GRAMMAR_WHY_BYTES], text[N_EACH];
    bt_parts    g    = {0};
    uint32_t    rule = bt_rule_new(&g, NULL), live[N_LIVE], *states[N_LIVE], state;
    bt_part     pair = bt_part_then(&g, bt_part_text(&g, "a"), bt_rule_call(&g, rule));
    bt_matcher *m;
    clock_t     from;

    pair = bt_part_then(&g, pair, bt_part_text(&g, "a"));
    bt_rule_is(&g, rule, bt_part_maybe(&g, pair));
    m     = matcher_of(&g, bt_rule_call(&g, rule), g_list, why);
    state = bt_matcher_start(m);
    memset(text, 'a', N_EACH);
    for (int i = 0; i < N_LIVE; i++) {
        EXPECT_EQ(bt_matcher_step(m, state, text, N_EACH, &state), BT_OK);
        live[i]   = state;
        states[i] = &live[i];
        from      = clock();
        EXPECT_EQ(bt_matcher_trim(m, (uint32_t)i + 1, states), BT_OK);
        EXPECT(clock() - from <= CLOCKS_PER_SEC / 4);
        state = live[i];
    }
    EXPECT(bt_matcher_accepts(m, state));
    EXPECT_EQ(bt_matcher_step(m, live[0], "a", 1, &state), BT_OK);
    EXPECT(state != BT_STATE_DEAD && !bt_matcher_accepts(m, state));
    bt_matcher_destroy(m);
}

static bt_status build_and_use(void)
{
    bt_parts    g       = {0};
    bt_grammar *grammar = NULL;
    bt_matcher *m       = NULL;
    char        why[BT_GRAMMAR_WHY_BYTES];
    uint32_t    bits[1 << 13], state = 0;
    bt_part     whole = bt_part_then(&g, nested(&g), letter(&g, ".!"));
    bt_status   st    = bt_grammar_pack(&g, whole, &grammar, why);

    if (st == BT_OK) {
        st = bt_matcher_create(grammar, g_list, &m);
        if (st != BT_OK) bt_grammar_destroy(grammar);
    }
    if (st == BT_OK) st = bt_matcher_step(m, bt_matcher_start(m), "[x,", 3, &state);
    if (st == BT_OK) st = bt_matcher_mask(m, state, BT_MASK_WORK_MOST, bits);
    bt_matcher_destroy(m);
    bt_parts_fini(&g);
    return st;
}

static void grammar_without_memory_leaves_nothing_behind(void)
{
    EXPECT(BT_SWEEP(build_and_use(), (void)0) > 0);
}

static const bt_test TESTS[] = {
    BT_TEST(parts_repeat_as_often_as_they_say),
    BT_TEST(parts_that_no_text_satisfies_are_refused),
    BT_TEST(rules_that_begin_with_themselves_are_refused_by_name),
    BT_TEST(matcher_follows_calls_within_calls),
    BT_TEST(matcher_of_a_list_that_calls_itself_last_stays_small),
    BT_TEST(matcher_gives_up_on_what_is_read_in_too_many_ways),
    BT_TEST(chars_are_exactly_their_code_points),
    BT_TEST(chars_share_the_bytes_that_they_begin_with),
    BT_TEST(chars_of_json_are_escaped_where_they_must_be),
    BT_TEST(mask_allows_exactly_the_tokens_that_may_follow),
    BT_TEST(mask_has_added_tokens_that_are_not_special),
    BT_TEST(mask_of_plain_texts_is_that_of_their_bytes),
    BT_TEST(mask_of_plain_texts_counts_no_state_that_it_has_not_seen),
    BT_TEST(mask_of_plain_texts_looks_on_while_states_come),
    BT_TEST(text_that_looks_at_too_many_edges_is_given_up),
    BT_TEST(text_is_work_where_it_is_new),
    BT_TEST(masks_are_held_until_a_trim),
    BT_TEST(trim_keeps_what_lives),
    BT_TEST(trim_of_deep_readings_is_soon),
    BT_TEST(grammar_without_memory_leaves_nothing_behind),
};

int main(int argc, char **argv)
{
    int result;

    if (bt_tokenizer_open(BT_SOURCE_DIR "/models/demo", &g_tok) != BT_OK ||
        bt_token_list_create(g_tok, bt_tokenizer_vocab_size(g_tok), &g_list) != BT_OK)
        return 2;
    result = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    bt_token_list_destroy(g_list);
    bt_tokenizer_close(g_tok);
    return result;
}
