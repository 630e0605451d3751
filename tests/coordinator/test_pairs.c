/* Which two ranks reach each other slowly. */
#include "coordinator/pairs.h"
#include "coordinator/slow.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "tests/support/own_stderr.h"
#include "tests/support/test.h"

enum { N = 5, SECONDS = 10 };

static const char *const HOSTS[N] = {"n1", "n1", "n2", "n3", "n4"};

typedef struct {
    bt_cell      cell;
    bt_peer_load sums[N][N];
    uint64_t     now_ns;
} site;

/* Hellos as of 2 prefill and 3 decode ranks. */
static void begin(site *s)
{
    memset(s, 0, sizeof(*s));
    s->cell.n_ranks = N;
    s->cell.name    = "";
    s->cell.ranks   = bt_calloc(N, sizeof(*s->cell.ranks));
    for (uint32_t i = 0; i < N; i++) {
        s->cell.ranks[i].hello = (bt_up_hello){
            .rank = i, .n_ranks = N, .n_prefill = 2, .n_decode = 3, .host = bt_strdup(HOSTS[i])};
        s->cell.ranks[i].group = i >= 2;
        for (uint32_t k = 0; k < N; k++)
            s->sums[i][k].rank = k;
    }
}

static void end(site *s) { bt_cell_fini(&s->cell); }

/* One second: how much of it each rank waits for each peer, and hands over to it at what rate. */
static void second(site *s, double wait[N][N], double rate[N][N], double busy)
{
    s->now_ns += BT_NS_PER_S;
    for (uint32_t a = 0; a < N; a++) {
        for (uint32_t b = 0; b < N; b++) {
            bt_peer_load *p = &s->sums[a][b];

            p->waited_ns += (uint64_t)(wait[a][b] * 1e9);
            if (rate[a][b] == 0) continue;
            p->handoff_ns += (uint64_t)(busy * 1e9);
            p->handoff_bytes += (uint64_t)(busy * rate[a][b]);
        }
        bt_pairs_hear(&s->cell, a, s->now_ns, N, s->sums[a]);
    }
    bt_pairs_compare(&s->cell);
}

static uint32_t named(site *s, bt_pair_view *out) { return bt_pairs_view(&s->cell, out, 64); }

#define EVEN  \
    {         \
        {     \
            0 \
        }     \
    }

static uint32_t count(const char *text, const char *word)
{
    uint32_t n = 0;

    for (; (text = strstr(text, word)) != NULL; text++)
        n++;
    return n;
}

/* Of six reports the first one says nothing, by the fourth the link counts as busy, and then it is
 * to be slow for BT_SLOW_SECONDS.  Each change is said once. */
static void pairs_slow_hand_off_is_named_and_forgotten(void)
{
    double       none[N][N] = EVEN, rate[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];
    own_stderr   own;
    const char  *said;

    begin(&s);
    for (uint32_t a = 0; a < 2; a++)
        for (uint32_t b = 2; b < N; b++)
            rate[a][b] = a == 1 && b == 3 ? 1e6 : 20e6 + 1e6 * b;
    bt_log_init("test", BT_LOG_INFO);
    own = begin_stderr();
    for (int i = 1; i <= SECONDS; i++) {
        second(&s, none, rate, 0.5);
        EXPECT_EQ(named(&s, v), i >= 6);
    }
    EXPECT(v[0].kind == BT_PAIR_HANDOFF && v[0].from == 1 && v[0].to == 3);
    EXPECT(v[0].value > 0.9e6 && v[0].value < 1.1e6 && v[0].typical > 20e6 && v[0].slowness > 20);
    rate[1][3] = 20e6; /* mended */
    second(&s, none, rate, 0.5);
    EXPECT_EQ(named(&s, v), 1); /* one second is not all */
    for (int i = 0; i < 3 * SECONDS; i++)
        second(&s, none, rate, 0.5);
    EXPECT_EQ(named(&s, v), 0);
    said = end_stderr(own);
    bt_log_init("test", BT_LOG_ERROR);
    EXPECT_EQ(count(said, "\n"), 2);
    EXPECT_HAS(said, "prefill rank 1 (pid 0 on n1) and decode rank 3 (pid 0 on n3) is slow: pages "
                     "move at 1 MB/s, between others at 23\n");
    EXPECT_HAS(said, "decode rank 3 (pid 0 on n3) keeps pace again (handoff)\n");
    end(&s);
}

/* Most often with its machine: what was under way then took long, but once. */
static void pairs_hand_off_that_stood_still_once_is_not_slow(void)
{
    double       none[N][N] = EVEN, rate[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];

    for (int says_more = 0; says_more < 2; says_more++) { /* before it ends */
        begin(&s);
        rate[0][2] = rate[0][3] = rate[1][3] = rate[1][4] = 20e6;
        for (int i = 0; i < SECONDS; i++)
            second(&s, none, rate, 0.5);
        s.now_ns += 60 * BT_NS_PER_S;
        if (says_more) second(&s, none, rate, 0.5);
        s.sums[1][3].handoff_ns += 60 * BT_NS_PER_S;
        for (int i = 0; i < SECONDS; i++) {
            second(&s, none, rate, 0.5);
            EXPECT_EQ(named(&s, v), 0);
        }
        end(&s);
    }
}

/* The other one is the measure. */
static void pairs_of_two_the_slow_one_is_named(void)
{
    double       none[N][N] = EVEN, rate[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];

    begin(&s);
    rate[0][2] = 50e6;
    for (int i = 0; i < SECONDS; i++)
        second(&s, none, rate, 0.5);
    EXPECT_EQ(named(&s, v), 0); /* alone it is as fast as all */
    rate[0][3] = 1e6;
    for (int i = 0; i < SECONDS; i++)
        second(&s, none, rate, 0.5);
    EXPECT_EQ(named(&s, v), 1);
    EXPECT(v[0].to == 3 && v[0].typical > 49e6 && v[0].typical < 51e6);
    end(&s);
}

/* Ranks of one machine have no link, and there are no hand-offs within a group. */
static void pairs_without_a_link_are_not_compared(void)
{
    double       wait[N][N] = EVEN, rate[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];

    begin(&s);
    wait[0][1] = wait[1][0] = 0.9;
    rate[2][3] = rate[2][1] = 1e6;
    rate[0][2] = rate[0][3] = 50e6;
    for (int i = 0; i < SECONDS; i++)
        second(&s, wait, rate, 0.5);
    EXPECT_EQ(named(&s, v), 0);
    end(&s);
}

static void pairs_with_little_to_hand_over_are_not(void)
{
    double       none[N][N] = EVEN, rate[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];

    begin(&s);
    rate[0][2] = 1e6;
    rate[0][3] = rate[0][4] = 50e6;
    for (int i = 0; i < SECONDS; i++)
        second(&s, none, rate, 0.1); /* of the time: nobody waits for it */
    EXPECT_EQ(named(&s, v), 0);
    end(&s);
}

static void pairs_that_wait_for_each_other_are_a_slow_link(void)
{
    double       wait[N][N] = EVEN, none[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];

    begin(&s);
    for (uint32_t a = 2; a < N; a++)
        for (uint32_t b = 2; b < N; b++)
            wait[a][b] = a == b ? 0 : 0.05;
    wait[2][4] = wait[4][2] = 0.6;
    wait[3][2] = wait[3][4] = 0.6; /* the third one waits for both, they do not for it */
    for (int i = 0; i < SECONDS; i++)
        second(&s, wait, none, 0);
    EXPECT_EQ(named(&s, v), 1);
    EXPECT(v[0].kind == BT_PAIR_EXCHANGE && v[0].from == 2 && v[0].to == 4);
    EXPECT(v[0].slowness > 10);
    for (int i = 0; i < SECONDS; i++) /* silence is no waiting */
        bt_pairs_compare(&s.cell);
    EXPECT_EQ(named(&s, v), 0);
    end(&s);
}

/* Others that do not wait at all count as if they did a little; a rank that is lost or says nothing
 * has no pairs. */
static void pairs_of_which_others_never_wait_have_a_measure(void)
{
    double       wait[N][N] = EVEN, none[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];
    own_stderr   own;
    const char  *said;

    begin(&s);
    wait[2][4] = wait[4][2] = 0.6;
    bt_log_init("test", BT_LOG_WARN);
    own = begin_stderr();
    for (int i = 0; i < SECONDS; i++)
        second(&s, wait, none, 0);
    said = end_stderr(own);
    bt_log_init("test", BT_LOG_ERROR);
    EXPECT_EQ(count(said, "\n"), 1);
    EXPECT_HAS(said, " % of the time, others 1 %\n");
    EXPECT_EQ(named(&s, v), 1);
    EXPECT(v[0].slowness > 55 && v[0].slowness < 65);
    s.cell.ranks[4].lost = true;
    EXPECT_EQ(named(&s, v), 0);
    s.cell.ranks[4].lost = false;
    bt_free(s.cell.ranks[2].peers);
    s.cell.ranks[2].peers = NULL;
    bt_pairs_compare(&s.cell);
    EXPECT_EQ(named(&s, v), 0);
    end(&s);
}

/* The others wait for it, it does not wait for them; nor are two of which one is slow by itself. */
static void pairs_of_a_slow_rank_are_not(void)
{
    double       wait[N][N] = EVEN, none[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];

    begin(&s);
    wait[2][4] = wait[3][4] = 0.8;
    for (int i = 0; i < SECONDS; i++)
        second(&s, wait, none, 0);
    EXPECT_EQ(named(&s, v), 0);
    wait[4][2]                   = 0.8;
    s.cell.ranks[4].rates.n_slow = BT_SLOW_SECONDS;
    for (int i = 0; i < SECONDS; i++)
        second(&s, wait, none, 0);
    EXPECT_EQ(named(&s, v), 0);
    s.cell.ranks[4].rates.n_slow = 0;
    for (int i = 0; i < SECONDS; i++)
        second(&s, wait, none, 0);
    EXPECT_EQ(named(&s, v), 1);
    end(&s);
}

/* Silence is no work; numbers that go back, or of ranks that are not there, are passed over. */
static void pairs_fade_without_reports(void)
{
    double       none[N][N] = EVEN, rate[N][N] = EVEN;
    site         s;
    bt_pair_view v[64];
    bt_peer_load bad = {.rank = N, .waited_ns = 1};

    begin(&s);
    rate[0][2] = 1e6;
    rate[0][3] = rate[0][4] = 50e6;
    for (int i = 0; i < SECONDS; i++)
        second(&s, none, rate, 0.5);
    bt_pairs_hear(&s.cell, 0, s.now_ns, N, s.sums[0]); /* twice is once */
    bt_pairs_compare(&s.cell);
    EXPECT_EQ(named(&s, v), 1);
    bt_pairs_hear(&s.cell, 0, s.now_ns + 1, 1, &bad);
    bad = (bt_peer_load){.rank = 2};
    bt_pairs_hear(&s.cell, 0, s.now_ns + 2, 1, &bad);
    for (int i = 0; i < SECONDS; i++)
        bt_pairs_compare(&s.cell);
    EXPECT_EQ(named(&s, v), 0);
    end(&s);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(pairs_slow_hand_off_is_named_and_forgotten),
        BT_TEST(pairs_hand_off_that_stood_still_once_is_not_slow),
        BT_TEST(pairs_of_two_the_slow_one_is_named),
        BT_TEST(pairs_without_a_link_are_not_compared),
        BT_TEST(pairs_with_little_to_hand_over_are_not),
        BT_TEST(pairs_that_wait_for_each_other_are_a_slow_link),
        BT_TEST(pairs_of_which_others_never_wait_have_a_measure),
        BT_TEST(pairs_of_a_slow_rank_are_not),
        BT_TEST(pairs_fade_without_reports),
    };

    bt_log_init("test", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
