/* Drafts: what may come next, where the last tokens stood before. */
#include "worker/draft.h"

#include <stdlib.h>

#include "core/alloc.h"
#include "tests/support/test.h"

static void add(bt_drafter *d, const char *text)
{
    for (; *text != '\0'; text++) {
        uint32_t token = (uint32_t)*text;

        EXPECT_EQ(bt_drafter_add(d, 1, &token), BT_OK);
    }
}

static void expect_draft(bt_drafter *d, uint32_t n_most, const char *want)
{
    uint32_t got[BT_DRAFT_MAX], n = bt_drafter_draft(d, n_most, got);

    EXPECT_EQ(n, strlen(want));
    for (uint32_t i = 0; i < n && want[i] != '\0'; i++)
        EXPECT_EQ(got[i], (uint32_t)want[i]);
}

static void draft_is_what_followed_the_last_time(void)
{
    bt_drafter d = {0};

    expect_draft(&d, 4, "");
    add(&d, "ab");
    expect_draft(&d, 4, "");
    add(&d, "c");
    expect_draft(&d, 4, ""); /* not by its own end */
    add(&d, "def abc");
    expect_draft(&d, 4, "def ");
    expect_draft(&d, 2, "de");
    expect_draft(&d, 0, "");
    add(&d, "xyz abc");
    expect_draft(&d, 3, "xyz");
    add(&d, "q");
    expect_draft(&d, 3, "");
    bt_drafter_fini(&d);
}

static void draft_goes_on_with_itself_beyond_the_end(void)
{
    bt_drafter d = {0};

    add(&d, "-hahaha");
    expect_draft(&d, 9, "hahahahah");
    bt_drafter_fini(&d);
}

static void draft_follows_what_was_right(void)
{
    bt_drafter d = {0};

    add(&d, "abcdefghijklmnopabc");
    bt_drafter_learn(&d, 1, 1); /* there was no room for more */
    expect_draft(&d, 8, "defghijk");
    bt_drafter_learn(&d, 8, 3);
    expect_draft(&d, 8, "defg");
    bt_drafter_learn(&d, 4, 4);
    expect_draft(&d, 15, "defghijk");
    bt_drafter_learn(&d, 8, 0); /* the next chance is passed over */
    expect_draft(&d, 0, "");    /* which this is not */
    expect_draft(&d, 8, "");
    expect_draft(&d, 8, "d");
    bt_drafter_learn(&d, 1, 0);
    for (int i = 0; i < 3; i++)
        expect_draft(&d, 8, "");
    expect_draft(&d, 8, "d");
    bt_drafter_learn(&d, 1, 1);
    expect_draft(&d, 8, "de");
    for (int i = 0; i < 20; i++)
        bt_drafter_learn(&d, 1, 0);
    for (int i = 0; i < 63; i++)
        expect_draft(&d, 8, "");
    expect_draft(&d, 8, "d");
    bt_drafter_fini(&d);
}

/* Against a search from the end: long texts of few tokens, through every size of the table.  Where
 * two places share a slot of the table the later one has it, so that some are not found. */
static void draft_is_found_at_every_size(void)
{
    enum { N = 5000 };
    static uint32_t all[N];
    bt_drafter      d = {0}, same;
    uint32_t        got[BT_DRAFT_MAX], n, n_found = 0, n_missed = 0;

    srand(3);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t at = i;

        all[i] = (uint32_t)rand() % 7;
        EXPECT_EQ(bt_drafter_add(&d, 1, &all[i]), BT_OK);
        while (at >= 3 && memcmp(all + at - 3, all + i - 2, 3 * sizeof(*all)) != 0)
            at--;
        n = bt_drafter_draft(&d, 1, got);
        if (n == 0) {
            n_missed += at >= 3;
            continue;
        }
        n_found++;
        EXPECT(at >= 3);
        EXPECT_EQ(got[0], all[at]);
    }
    EXPECT(n_found > N / 2 && n_missed < N / 10);
    EXPECT_EQ(bt_drafter_copy(&d, &same), BT_OK);
    EXPECT_EQ(same.n, N);
    EXPECT(memcmp(same.tokens, all, sizeof(all)) == 0);
    bt_drafter_fini(&d);
    EXPECT_EQ(bt_drafter_draft(&same, 3, got), 3); /* of its own */
    bt_drafter_fini(&same);
}

static void draft_survives_a_lack_of_memory(void)
{
    bt_drafter d         = {0};
    uint32_t   many[100] = {0};

    add(&d, "abcdefabc");
    for (long k = 0; k < 2; k++) {
        bt_alloc_fail_at(k);
        EXPECT_EQ(bt_drafter_add(&d, 100, many), BT_ERR_NO_MEMORY);
        bt_alloc_fail_at(-1);
        EXPECT_EQ(d.n, 9);
        expect_draft(&d, 3, "def");
    }
    bt_drafter_fini(&d);
}

/* A draft is as long as its last token is right more often than its row's price; where none pays,
 * one is tried now and then. */
static void pace_follows_what_was_right(void)
{
    bt_draft_pace p       = {0};
    uint32_t      n_tried = 0;

    EXPECT_EQ(bt_pace_depth(&p, 0, 0.25f), 0);
    EXPECT_EQ(bt_pace_depth(&p, 1, 0.25f), 1);
    EXPECT_EQ(bt_pace_depth(&p, 5, 0.25f), 3); /* 0.7^3 is 0.34 */
    for (int i = 0; i < 200; i++)
        bt_pace_learn(&p, 2, 2);
    EXPECT_EQ(bt_pace_depth(&p, 5, 0.25f), 5);
    for (int i = 0; i < 200; i++) /* half of them */
        bt_pace_learn(&p, 1, (uint32_t)i % 2);
    EXPECT_EQ(bt_pace_depth(&p, 5, 0.25f), 1 + (p.right * p.right > 0.25f));
    EXPECT(p.right > 0.45f && p.right < 0.55f);
    for (int i = 0; i < 200; i++)
        bt_pace_learn(&p, 5, 0); /* the tokens behind the wrong one say nothing */
    EXPECT(p.right < 0.01f);
    for (int i = 0; i < 80; i++)
        n_tried += bt_pace_depth(&p, 5, 0.25f);
    EXPECT_EQ(n_tried, 10);
    for (int i = 0; i < 80; i++)
        EXPECT_EQ(bt_pace_depth(&p, 5, 1.0f), 0); /* nothing could be right so often */
    for (int i = 0; i < 80; i++)
        EXPECT_EQ(bt_pace_depth(&p, 0, 0.25f), 0);
    EXPECT_EQ(bt_pace_depth(&p, 5, 0), 5);
    for (int i = 0; i < 20; i++)
        bt_pace_learn(&p, 1, 1);
    EXPECT(bt_pace_depth(&p, 5, 0.25f) > 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(draft_is_what_followed_the_last_time),
        BT_TEST(draft_goes_on_with_itself_beyond_the_end),
        BT_TEST(draft_follows_what_was_right),
        BT_TEST(draft_is_found_at_every_size),
        BT_TEST(draft_survives_a_lack_of_memory),
        BT_TEST(pace_follows_what_was_right),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
