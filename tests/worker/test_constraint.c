/* Constraints of a rank: shared by equal texts, and where a choice stands in them. */
#include "core/alloc.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"
#include "worker/constraint.h"

#define DEMO BT_SOURCE_DIR "/models/demo"

enum { N_VOCAB = 2048, N_WORDS = N_VOCAB / 32 };

static bt_sampling sampling_of(const char *regex)
{
    bt_sampling s = {.constraint_kind    = BT_CONSTRAINT_REGEX,
                     .constraint         = bt_strdup(regex),
                     .n_constraint_bytes = (uint32_t)strlen(regex)};

    return s;
}

static bt_constraints *open_demo(void)
{
    bt_constraints *all = NULL;

    if (bt_constraints_open(DEMO, N_VOCAB, BT_CONSTRAINTS_BYTES, &all) != BT_OK || all == NULL)
        abort();
    return all;
}

/* The one token of these bytes. */
static uint32_t id_of(const char *text)
{
    bt_tokenizer *tok = NULL;
    uint32_t      id  = 0;
    size_t        n   = 0;

    if (bt_tokenizer_open(DEMO, &tok) != BT_OK) abort();
    for (; id < N_VOCAB; id++) {
        const char *bytes = bt_tokenizer_bytes(tok, id, &n, NULL);

        if (n == strlen(text) && memcmp(bytes, text, n) == 0) break;
    }
    bt_tokenizer_close(tok);
    if (id == N_VOCAB) abort();
    return id;
}

static uint32_t count(const uint32_t *bits)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < N_VOCAB; id++)
        n += bits[id / 32] >> id % 32 & 1;
    return n;
}

static void constraints_of_equal_texts_are_one(void)
{
    bt_constraints *all = open_demo();
    bt_sampling     a = sampling_of("[ab]+"), b = sampling_of("[ab]+"), c = sampling_of("[ab]*");
    bt_constraint  *held[4] = {NULL};

    b.constraint_after = 1 + id_of("a");
    EXPECT_EQ(bt_constraint_acquire(all, &a, &held[0]), BT_OK);
    EXPECT_EQ(bt_constraint_acquire(all, &b, &held[1]), BT_OK);
    EXPECT_EQ(bt_constraint_acquire(all, &c, &held[2]), BT_OK);
    EXPECT(held[0] == held[1] && held[1] != held[2]);
    c.constraint_kind = BT_CONSTRAINT_EBNF;
    EXPECT_EQ(bt_constraint_acquire(all, &c, &held[3]), BT_ERR_INVALID_ARG);
    bt_constraint_share(held[0]);
    for (int i = 0; i < 3; i++)
        bt_constraint_release(held[i]);
    bt_constraint_release(held[0]);
    bt_constraints_close(all); /* asserts that nobody holds one */
    bt_sampling_free(&a);
    bt_sampling_free(&b);
    bt_sampling_free(&c);
}

/* One that begins like another one is not that. */
static void constraints_of_other_lengths_are_others(void)
{
    static const char *const TEXTS[] = {"ab", "abc", "a", "b"};
    bt_constraints          *all     = open_demo();
    bt_constraint           *held[4] = {NULL};

    for (int i = 0; i < 4; i++) {
        bt_sampling s = sampling_of(TEXTS[i]);

        EXPECT_EQ(bt_constraint_acquire(all, &s, &held[i]), BT_OK);
        for (int k = 0; k < i; k++)
            EXPECT(held[k] != held[i]);
        bt_sampling_free(&s);
    }
    for (int i = 0; i < 4; i++)
        bt_constraint_release(held[i]);
    bt_constraints_close(all);
}

static void constraint_masks_follow_the_tokens(void)
{
    bt_constraints  *all = open_demo();
    bt_sampling      s   = sampling_of("ab?");
    bt_constraint   *c   = NULL;
    bt_constraint_at at;
    uint32_t         bits[N_WORDS], a = id_of("a"), b = id_of("b");
    bool             ends = true;

    EXPECT_EQ(bt_constraint_acquire(all, &s, &c), BT_OK);
    at = bt_constraint_begin(c, &s);
    EXPECT_EQ(at.after, 0);
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(!ends && (bits[a / 32] >> a % 32 & 1) && !(bits[b / 32] >> b % 32 & 1));
    EXPECT_EQ(bt_constraint_next(c, &at, a, &at), BT_OK);
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(ends && count(bits) == 1 && (bits[b / 32] >> b % 32 & 1));
    EXPECT_EQ(bt_constraint_next(c, &at, b, &at), BT_OK);
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(ends && count(bits) == 0);
    EXPECT_EQ(bt_constraint_next(c, &at, b, &at), BT_OK); /* does not belong there */
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(!ends && count(bits) == 0);
    bt_constraint_release(c);
    bt_constraints_close(all);
    bt_sampling_free(&s);
}

static void constraint_waits_for_its_token(void)
{
    bt_constraints  *all = open_demo();
    bt_sampling      s   = sampling_of("ba");
    bt_constraint   *c   = NULL;
    bt_constraint_at at, here;
    uint32_t         bits[N_WORDS], a = id_of("a"), b = id_of("b");
    bool             ends = true;

    s.constraint_after = 1 + a;
    EXPECT_EQ(bt_constraint_acquire(all, &s, &c), BT_OK);
    at = bt_constraint_begin(c, &s);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(at.after, 1 + a);
        EXPECT_EQ(bt_constraint_next(c, &at, b, &at), BT_OK);
    }
    EXPECT_EQ(bt_constraint_next(c, &at, a, &here), BT_OK);
    EXPECT_EQ(at.after, 1 + a); /* as it was */
    EXPECT_EQ(here.after, 0);
    EXPECT_EQ(bt_constraint_next(c, &here, b, &here), BT_OK);
    EXPECT_EQ(bt_constraint_next(c, &here, a, &here), BT_OK); /* means no wait any more */
    EXPECT_EQ(bt_constraint_mask(c, &here, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(ends);
    bt_constraint_release(c);
    bt_constraints_close(all);
    bt_sampling_free(&s);
}

/* So many different counts that what is learnt grows large: whoever stands in it goes on after it
 * was given back. */
static void constraint_trimmed_under_its_choices(void)
{
    bt_constraints  *all = open_demo();
    bt_sampling      s   = sampling_of("(a{1,40}b){0,9000}c");
    bt_constraint   *c   = NULL;
    bt_constraint_at at, waits, *live[2] = {&at, &waits};
    uint32_t         bits[N_WORDS], a = id_of("a"), b = id_of("b"), n_trims = 0;
    bool             ends;

    EXPECT_EQ(bt_constraint_acquire(all, &s, &c), BT_OK);
    at                 = bt_constraint_begin(c, &s);
    s.constraint_after = 1 + b;
    waits              = bt_constraint_begin(c, &s);
    for (uint32_t i = 0; i < 9000; i++) {
        for (uint32_t k = 0; k < 30; k++)
            EXPECT_EQ(bt_constraint_next(c, &at, a, &at), BT_OK);
        EXPECT_EQ(bt_constraint_next(c, &at, b, &at), BT_OK);
        if (i % 3 == 0) EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK);
        if (!bt_constraint_is_large(c, false)) continue;
        n_trims++;
        EXPECT_EQ(bt_constraint_trim(c, 2, live), BT_OK);
    }
    EXPECT(n_trims > 0);
    EXPECT_EQ(bt_constraint_next(c, &waits, b, &waits), BT_OK);
    EXPECT_EQ(bt_constraint_next(c, &waits, a, &waits), BT_OK);
    EXPECT_EQ(bt_constraint_next(c, &waits, b, &waits), BT_OK);
    EXPECT_EQ(bt_constraint_mask(c, &waits, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(!ends && (bits[a / 32] >> a % 32 & 1));
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK); /* all 9,000 have been */
    EXPECT(!ends && count(bits) == 1);
    bt_constraint_release(c);
    bt_constraints_close(all);
    bt_sampling_free(&s);
}

/* Nobody stands at the beginning: who comes next begins there all the same. */
static void constraint_begins_where_it_did_after_a_trim(void)
{
    bt_constraints  *all = open_demo();
    bt_sampling      s   = sampling_of("abc");
    bt_constraint   *c   = NULL;
    bt_constraint_at at, begun, *live[1] = {&at};
    uint32_t         before[N_WORDS], bits[N_WORDS];
    bool             ends;

    EXPECT_EQ(bt_constraint_acquire(all, &s, &c), BT_OK);
    at = bt_constraint_begin(c, &s);
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, before, &ends), BT_OK);
    EXPECT_EQ(bt_constraint_next(c, &at, id_of("a"), &at), BT_OK);
    EXPECT_EQ(bt_constraint_trim(c, 1, live), BT_OK);
    begun = bt_constraint_begin(c, &s);
    EXPECT_EQ(bt_constraint_mask(c, &begun, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(memcmp(bits, before, sizeof(bits)) == 0);
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(bits[id_of("b") / 32] >> id_of("b") % 32 & 1);
    bt_constraint_release(c);
    bt_constraints_close(all);
    bt_sampling_free(&s);
}

/* More than there may be in all is given back, however little it is. */
static void constraints_in_a_crowd_give_back_what_they_have_learnt(void)
{
    bt_constraints  *all = NULL;
    bt_sampling      s   = sampling_of("(a|b)*c");
    bt_constraint   *c   = NULL;
    bt_constraint_at at, *live[1] = {&at};
    uint32_t         before[N_WORDS], bits[N_WORDS];
    long             held;
    bool             ends;

    EXPECT(!bt_constraints_are_crowded(NULL));
    EXPECT_EQ(bt_constraints_open(DEMO, N_VOCAB, 1, &all), BT_OK);
    EXPECT(!bt_constraints_are_crowded(all));
    EXPECT_EQ(bt_constraint_acquire(all, &s, &c), BT_OK);
    EXPECT(bt_constraints_are_crowded(all));
    at = bt_constraint_begin(c, &s);
    EXPECT_EQ(bt_constraint_next(c, &at, id_of("a"), &at), BT_OK);
    held = bt_alloc_live();
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, before, &ends), BT_OK);
    EXPECT(!bt_constraint_is_large(c, false) && bt_constraint_is_large(c, true));
    EXPECT_EQ(bt_constraint_trim(c, 1, live), BT_OK);
    EXPECT(!bt_constraint_is_large(c, true));
    EXPECT(bt_alloc_live() <= held); /* the mask too */
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT(memcmp(bits, before, sizeof(bits)) == 0);
    bt_constraint_release(c);
    EXPECT(!bt_constraints_are_crowded(all));
    bt_constraints_close(all);
    all = open_demo();
    EXPECT_EQ(bt_constraint_acquire(all, &s, &c), BT_OK);
    EXPECT(!bt_constraints_are_crowded(all));
    bt_constraint_release(c);
    bt_constraints_close(all);
    bt_sampling_free(&s);
}

static void constraints_without_a_tokenizer_are_refused(void)
{
    bt_constraints *all = NULL;
    bt_sampling     s   = sampling_of("a");
    bt_constraint  *c   = NULL;

    EXPECT_EQ(
        bt_constraints_open(BT_SOURCE_DIR "/tests/fixtures", N_VOCAB, BT_CONSTRAINTS_BYTES, &all),
        BT_OK);
    EXPECT(all == NULL);
    EXPECT_EQ(bt_constraint_acquire(all, &s, &c), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "tokenizer");
    bt_sampling_free(&s);
}

static void constraints_unwind_at_every_allocation(void)
{
    bt_constraints *all = open_demo();
    bt_sampling     s   = sampling_of("a(b|c){2,3}");
    bt_constraint  *c   = NULL;

    EXPECT(BT_SWEEP(bt_constraint_acquire(all, &s, &c), bt_constraint_release(c)) > 0);
    bt_constraints_close(all);
    all = NULL;
    EXPECT(BT_SWEEP_BUT(46, bt_constraints_open(DEMO, N_VOCAB, BT_CONSTRAINTS_BYTES, &all),
                        bt_constraints_close(all)) > 0);
    bt_sampling_free(&s);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(constraints_of_equal_texts_are_one),
        BT_TEST(constraints_of_other_lengths_are_others),
        BT_TEST(constraint_masks_follow_the_tokens),
        BT_TEST(constraint_waits_for_its_token),
        BT_TEST(constraint_trimmed_under_its_choices),
        BT_TEST(constraint_begins_where_it_did_after_a_trim),
        BT_TEST(constraints_in_a_crowd_give_back_what_they_have_learnt),
        BT_TEST(constraints_without_a_tokenizer_are_refused),
        BT_TEST(constraints_unwind_at_every_allocation),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
