/* Which side limits, and the ranks that would balance: from snapshots as the ranks make them. */
#include <string.h>

#include "coordinator/exposition.h"
#include "tests/support/test.h"

enum { RANKS = 8 };

/* A cell of P prefill and D decode ranks of 100 pages and 256 rows, all idle. */
static bt_snapshot make_cell(uint32_t n_prefill, uint32_t n_decode, bt_rank_view ranks[RANKS])
{
    bt_snapshot s = {.n_ranks   = n_prefill + n_decode,
                     .n_prefill = n_decode == 0 ? 0 : n_prefill,
                     .n_decode  = n_decode,
                     .ranks     = ranks};

    memset(ranks, 0, RANKS * sizeof(*ranks));
    for (uint32_t i = 0; i < s.n_ranks; i++) {
        ranks[i].n_pages        = 100;
        ranks[i].relay.max_rows = 256;
        ranks[i].group          = n_decode != 0 && i >= n_prefill;
    }
    return s;
}

static void expect(const bt_snapshot *s, const char *limit, uint32_t best_prefill)
{
    bt_balance b;

    bt_balance_of(s, &b);
    EXPECT(strcmp(b.limit, limit) == 0);
    EXPECT_EQ(b.best_prefill, best_prefill);
    EXPECT_EQ(b.best_decode, best_prefill == 0 ? 0 : s->n_ranks - best_prefill);
}

static void balance_of_an_idle_cell_is_unknown(void)
{
    bt_rank_view ranks[RANKS];
    bt_snapshot  s = make_cell(2, 2, ranks);

    expect(&s, "none", 0);
}

/* All ranks of the group are busy while one prompt is computed: three of four have room. */
static void balance_one_prompt_does_not_fill_a_group(void)
{
    bt_rank_view ranks[RANKS];
    bt_snapshot  s = make_cell(4, 4, ranks);
    bt_balance   b;

    for (uint32_t i = 0; i < 4; i++)
        ranks[i].rates.busy = 0.96;
    ranks[2].prompt_share = 1;
    for (uint32_t i = 4; i < 8; i++)
        ranks[i].relay.taken_pages = 24;
    bt_balance_of(&s, &b);
    EXPECT(b.prefill > 0.23 && b.prefill < 0.25);
    expect(&s, "none", 4);
    for (uint32_t i = 0; i < 4; i++)
        ranks[i].prompt_share = 1; /* now all of them have one */
    expect(&s, "prefill", 6);
}

static void balance_full_pages_limit_decode(void)
{
    bt_rank_view ranks[RANKS];
    bt_snapshot  s = make_cell(2, 2, ranks);

    for (uint32_t i = 0; i < 2; i++) {
        ranks[i].rates.busy              = 0.3;
        ranks[i].prompt_share            = 1;
        ranks[2 + i].rates.busy          = 0.95; /* always, whatever the rows */
        ranks[2 + i].rates.rows_per_step = 4;
        ranks[2 + i].relay.taken_pages   = 90;
    }
    expect(&s, "decode", 1);
    for (uint32_t i = 0; i < 2; i++)
        ranks[2 + i].relay.taken_pages = 20;
    expect(&s, "none", 2);
    for (uint32_t i = 0; i < 2; i++)
        ranks[2 + i].rates.rows_per_step = 250;
    expect(&s, "decode", 1);
}

/* What the oldest request waits for is no estimate. */
static void balance_follows_the_queue(void)
{
    bt_rank_view ranks[RANKS];
    bt_snapshot  s = make_cell(2, 2, ranks);

    for (uint32_t i = 0; i < 2; i++) {
        ranks[i].rates.busy            = 0.75;
        ranks[i].prompt_share          = 1;
        ranks[2 + i].relay.taken_pages = 50;
    }
    expect(&s, "prefill", 2);
    s.blocked_decode = 0.9;
    expect(&s, "decode", 2);
    s.blocked_decode    = 0.1; /* now and then is no limit */
    ranks[0].rates.busy = 0.5;
    ranks[1].rates.busy = 0.5;
    expect(&s, "none", 2);
    s.blocked_prefill = 1;
    expect(&s, "prefill", 3);
}

static void balance_counts_neither_spares_nor_lost_ranks(void)
{
    bt_rank_view ranks[RANKS];
    bt_snapshot  s = make_cell(1, 2, ranks);
    bt_balance   b;

    s.n_ranks                  = 4;
    ranks[3].n_pages           = 100;
    ranks[3].group             = 2;
    ranks[0].rates.busy        = 0.8;
    ranks[0].prompt_share      = 1;
    ranks[1].relay.taken_pages = 80;
    ranks[2].lost              = true;
    ranks[2].group             = 2;
    bt_balance_of(&s, &b);
    EXPECT(b.decode > 0.79 && b.decode < 0.81);
    EXPECT_EQ(b.best_prefill + b.best_decode, 2);
}

static void balance_both_roles_have_no_ratio(void)
{
    bt_rank_view ranks[RANKS];
    bt_snapshot  s = make_cell(2, 0, ranks);

    ranks[0].rates.busy = ranks[1].rates.busy = 0.9;
    expect(&s, "prefill", 0);
    s.blocked_decode = 1;
    expect(&s, "decode", 0);
}

static const bt_test TESTS[] = {
    BT_TEST(balance_of_an_idle_cell_is_unknown),
    BT_TEST(balance_one_prompt_does_not_fill_a_group),
    BT_TEST(balance_full_pages_limit_decode),
    BT_TEST(balance_follows_the_queue),
    BT_TEST(balance_counts_neither_spares_nor_lost_ranks),
    BT_TEST(balance_both_roles_have_no_ratio),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }
