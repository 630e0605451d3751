/* Which tokens of a vocabulary may follow a state, what that takes, and what a trim gives back. */
#include <time.h>

#include "core/alloc.h"
#include "model/grammar/tokens.h"
#include "model/utf8.h"
#include "tests/model/grammar_check.h"
#include "tests/support/sweep.h"

static bt_token_list *g_list;
static bt_tokenizer  *g_tok;
static uint32_t       g_bits[(1 << 18) / 32]; /* of the last mask */

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

static bool is_allowed(uint32_t id) { return g_bits[id / 32] >> id % 32 & 1; }

/* Of those that are none of a text it has nothing. */
static void token_list_has_the_bytes_of_every_token(void)
{
    uint32_t n_wrong = 0;

    EXPECT_EQ(g_list->n_ids, bt_tokenizer_vocab_size(g_tok));
    for (uint32_t id = 0; id < g_list->n_ids; id++) {
        const bt_token_text *t = &g_list->texts[id];
        size_t               n;
        const char          *text = bt_tokenizer_bytes(g_tok, id, &n, NULL);

        if (!bt_tokenizer_is_text(g_tok, id)) n = 0;
        n_wrong += t->n != n || (n > 0 && memcmp(g_list->bytes + t->at, text, n) != 0);
    }
    EXPECT_EQ(n_wrong, 0);
}

/* Every token's bit is what its bytes come to. */
static void check_mask(bt_matcher *m, uint32_t state, const bt_token_list *list)
{
    uint32_t n_wrong = 0;

    EXPECT_EQ(bt_matcher_mask(m, state, BT_MASK_WORK_MOST, g_bits), BT_OK);
    for (uint32_t id = 0; id < list->n_ids; id++) {
        const bt_token_text *t    = &list->texts[id];
        uint32_t             next = BT_STATE_DEAD, by_token = UINT32_MAX;

        if (t->n > 0) EXPECT_EQ(bt_matcher_step(m, state, list->bytes + t->at, t->n, &next), BT_OK);
        EXPECT_EQ(bt_matcher_step_token(m, state, id, &by_token), BT_OK);
        n_wrong += by_token != next || (next != BT_STATE_DEAD) != is_allowed(id);
    }
    EXPECT_EQ(n_wrong, 0);
}

static void mask_allows_exactly_the_tokens_that_may_follow(void)
{
    static const char *const TEXTS[] = {"", "[", "[x", "[[", "[x,[x,"};
    char                     why[BT_GRAMMAR_WHY_BYTES];
    bt_parts                 g = {0};
    uint32_t                 state;
    bt_matcher              *m = matcher_of(&g, nested(&g), g_list, why);

    for (size_t i = 0; i < sizeof(TEXTS) / sizeof(TEXTS[0]); i++) {
        EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), TEXTS[i], strlen(TEXTS[i]), &state),
                  BT_OK);
        check_mask(m, state, g_list);
        check_mask(m, state, g_list); /* as it was kept */
    }
    bt_matcher_destroy(m);
    bt_chars set = {0};
    bt_chars_add(&g, &set, ' ', 0x2FFF);
    m = matcher_of(&g, bt_part_repeat(&g, bt_part_chars(&g, &set), 0, 7), g_list, why);
    bt_chars_fini(&set);
    check_mask(m, bt_matcher_start(m), g_list);
    bt_matcher_destroy(m);
}

/* What has been learnt by the time that it is given up is kept. */
static void mask_of_little_work_comes_after_some_times(void)
{
    enum { WORK = 200, TIMES = 10000 };
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_parts    g  = {0};
    bt_matcher *m  = matcher_of(&g, nested(&g), g_list, why);
    bt_status   st = BT_ERR_UNSUPPORTED;
    uint32_t    n  = 0;

    for (; n < TIMES && st == BT_ERR_UNSUPPORTED; n++)
        st = bt_matcher_mask(m, bt_matcher_start(m), WORK, g_bits);
    EXPECT(st == BT_OK && n > 1);
    check_mask(m, bt_matcher_start(m), g_list);
    bt_matcher_destroy(m);
}

/* As those around calls of tools are in the vocabularies of models that make them. */
static void mask_has_added_tokens_that_are_not_special(void)
{
    const int64_t think = bt_tokenizer_added_id(g_tok, "</think>");
    char          why[BT_GRAMMAR_WHY_BYTES];
    bt_parts      g = {0};
    bt_matcher   *m = matcher_of(&g, bt_part_text(&g, "</think>"), g_list, why);
    uint32_t      next;

    EXPECT_EQ(bt_matcher_mask(m, bt_matcher_start(m), BT_MASK_WORK_MOST, g_bits), BT_OK);
    EXPECT(think >= 0 && is_allowed((uint32_t)think));
    EXPECT_EQ(bt_matcher_step_token(m, bt_matcher_start(m), (uint32_t)think, &next), BT_OK);
    EXPECT(bt_matcher_accepts(m, next));
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
            at += (uint32_t)bt_utf8_put(EDGES[(random >> 16) % kinds], bytes + at);
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
            check_mask(m, bt_matcher_start(m), list);
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

    check_mask(m, bt_matcher_start(m), list);
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

/* Edges that are looked at, on the way and where it leads, and readings; nothing a second time. */
static void text_is_work_where_it_is_new(void)
{
    enum { N = 1000, READING = 16 };
    char     why[BT_GRAMMAR_WHY_BYTES];
    bt_parts g    = {0};
    bt_part  many = bt_part_never(&g);
    uint32_t state;

    for (uint32_t i = 0; i < N; i++)
        bt_part_step(&g, many.start, 'c', 'd', many.end);
    bt_matcher *m = matcher_of(&g, bt_part_then(&g, bt_part_text(&g, "a"), many), g_list, why);
    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), "a", 1, &state), BT_OK);
    EXPECT(bt_matcher_work(m) >= READING + N);
    EXPECT_EQ(bt_matcher_step(m, state, "c", 1, &state), BT_OK);
    EXPECT(bt_matcher_work(m) >= READING + N);
    EXPECT_EQ(bt_matcher_mask(m, state, N, g_bits), BT_OK); /* its own work alone */
    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), "ac", 2, &state), BT_OK);
    EXPECT_EQ(bt_matcher_work(m), 0);
    bt_matcher_destroy(m);
}

static void masks_are_held_until_a_trim(void)
{
    char         why[BT_GRAMMAR_WHY_BYTES];
    bt_parts     g      = {0};
    bt_matcher  *m      = matcher_of(&g, bt_part_text(&g, "ab"), g_list, why);
    const size_t mask   = bt_mask_words(g_list->n_ids) * sizeof(*g_bits),
                 others = bt_matcher_held(m) - bt_matcher_bytes(m);
    uint32_t end, *live = &end;

    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), "ab", 2, &end), BT_OK);
    EXPECT(bt_matcher_has_grown(m));
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(bt_matcher_trim(m, 1, &live), BT_OK);
        EXPECT(!bt_matcher_has_grown(m));
        EXPECT_EQ(bt_matcher_held(m) - bt_matcher_bytes(m), others);
        for (uint32_t k = 0; k < 2; k++) { /* the second time it is there */
            EXPECT_EQ(bt_matcher_mask(m, end, BT_MASK_WORK_MOST, g_bits), BT_OK);
            EXPECT(bt_matcher_has_grown(m)); /* although no state comes after the end */
            EXPECT_EQ(bt_matcher_held(m) - bt_matcher_bytes(m), others + mask);
        }
        EXPECT_EQ(bt_matcher_mask(m, bt_matcher_start(m), BT_MASK_WORK_MOST, g_bits), BT_OK);
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
    check_mask(m, bt_matcher_start(m), g_list);
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

/* Masks that are kept are still there, and what lives is what it was. */
static void trim_without_memory_changes_nothing(void)
{
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_parts    g = {0};
    bt_matcher *m = matcher_of(&g, nested(&g), g_list, why);
    uint32_t    state, *live = &state;
    long        k  = -1;
    bt_status   st = BT_ERR_NO_MEMORY;

    EXPECT_EQ(bt_matcher_step(m, bt_matcher_start(m), "[x,", 3, &state), BT_OK);
    check_mask(m, state, g_list);
    while (st == BT_ERR_NO_MEMORY) {
        uint32_t was  = state;
        size_t   held = bt_matcher_held(m);

        bt_alloc_fail_at(++k);
        st = bt_matcher_trim(m, 1, &live);
        bt_alloc_fail_at(-1);
        if (st != BT_OK) EXPECT(state == was && bt_matcher_held(m) == held);
    }
    EXPECT(st == BT_OK && k > 3);
    check_mask(m, state, g_list);
    bt_matcher_destroy(m);
}

static bt_status build_and_use(void)
{
    bt_parts    g       = {0};
    bt_grammar *grammar = NULL;
    bt_matcher *m       = NULL;
    char        why[BT_GRAMMAR_WHY_BYTES];
    uint32_t    state = 0;
    bt_part     whole = bt_part_then(&g, nested(&g), letter(&g, ".!"));
    bt_status   st    = bt_grammar_pack(&g, whole, &grammar, why);

    if (st == BT_OK) {
        st = bt_matcher_create(grammar, g_list, &m);
        if (st != BT_OK) bt_grammar_destroy(grammar);
    }
    if (st == BT_OK) st = bt_matcher_step(m, bt_matcher_start(m), "[x,", 3, &state);
    if (st == BT_OK) st = bt_matcher_mask(m, state, BT_MASK_WORK_MOST, g_bits);
    bt_matcher_destroy(m);
    bt_parts_fini(&g);
    return st;
}

static void grammar_without_memory_leaves_nothing_behind(void)
{
    EXPECT(BT_SWEEP(build_and_use(), (void)0) > 0);
}

static const bt_test TESTS[] = {
    BT_TEST(token_list_has_the_bytes_of_every_token),
    BT_TEST(mask_allows_exactly_the_tokens_that_may_follow),
    BT_TEST(mask_of_little_work_comes_after_some_times),
    BT_TEST(mask_has_added_tokens_that_are_not_special),
    BT_TEST(mask_of_plain_texts_is_that_of_their_bytes),
    BT_TEST(mask_of_plain_texts_counts_no_state_that_it_has_not_seen),
    BT_TEST(mask_of_plain_texts_looks_on_while_states_come),
    BT_TEST(text_is_work_where_it_is_new),
    BT_TEST(masks_are_held_until_a_trim),
    BT_TEST(trim_keeps_what_lives),
    BT_TEST(trim_of_deep_readings_is_soon),
    BT_TEST(trim_without_memory_changes_nothing),
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
