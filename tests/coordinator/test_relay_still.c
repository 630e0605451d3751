/* Hand-offs that stand still between two ranks which are well otherwise, in a simulated cell. */
#include "coordinator/relay_state.h"
#include "tests/coordinator/relay_sim.h"

enum { AVOID_S = 600, CLIENTS = 40 };

typedef struct {
    uint32_t n, pairs[16][2];
    uint32_t n_still[MAX_RANKS][MAX_RANKS]; /* hand-offs, by prefill and decode rank */
    uint64_t pause_ns;                      /* after each of them */
} cuts;

static bool is_cut(const cuts *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->pairs[i][0] == from && c->pairs[i][1] == to) return true;
    return false;
}

/* The prompt is computed, and nothing of it comes to its decode rank: one of the two says so when
 * its lease is over, and lets it go. */
static void stand_still(sim *s, cuts *c, uint32_t from, const sim_work *w)
{
    uint32_t  to = w->decode_rank, teller = sim_random(s, 2) == 0 ? from : to;
    sim_work *left = sim_find(&s->ranks[teller], w->number);
    bt_up     m;

    c->n_still[from][to]++;
    s->now += c->pause_ns;
    if (left == NULL) return; /* its Abort has come */
    sim_say_first(s, from, w);
    m = sim_in(sim_failed(w->number, GRPC_STATUS_UNAVAILABLE), w->epoch);

    m.u.failed.stands_still = true;
    sim_up(s, teller, m);
    sim_drop(s, teller, left);
}

static void step(sim *s, cuts *c, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];

    for (uint32_t i = 0; i < k->n_work; i++)
        if (k->work[i].prefilling && is_cut(c, rank, k->work[i].decode_rank)) {
            stand_still(s, c, rank, &k->work[i]);
            return;
        }
    sim_step(s, rank);
}

/* Until nothing moves any more. */
static void settle(sim *s, cuts *c)
{
    for (int i = 0; i < 20000; i++) {
        sim_take_down(s, sim_random(s, s->cfg.n_ranks));
        sim_take_up(s, sim_random(s, s->cfg.n_ranks));
        step(s, c, sim_random(s, s->cfg.n_ranks));
        if (i % 64 == 0) bt_relay_tick(s->relay, s->now);
    }
    sim_expect_idle(s);
}

static void ask(sim *s, sim_client *clients, uint32_t n)
{
    char name[24];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%u", i);
        EXPECT_EQ(
            sim_submit(s, &clients[i], name, 1 + sim_random(s, 20), 2 + sim_random(s, 8), 100),
            BT_OK);
    }
}

/* Everybody gets all tokens, once; what comes later goes by other pairs, until it is long ago. */
static void relay_handoff_that_stands_still_is_made_by_others(void)
{
    static sim_client clients[CLIENTS];

    for (uint64_t seed = 1; seed <= 40; seed++) {
        sim  s;
        cuts c = {
            .n = 1 + seed % 2, .pairs = {{0, 2}, {1, 3}}
        };
        uint32_t before;

        sim_init(&s, 2, 2, 4, 64);
        s.state = seed;
        ask(&s, clients, CLIENTS);
        settle(&s, &c);
        before = c.n_still[0][2] + c.n_still[1][3];
        EXPECT(before > 0);
        for (int i = 0; i < CLIENTS; i++)
            sim_expect_done(&clients[i]);
        for (int late = 0; late < 2; late++) {
            s.now += (late ? 1 : AVOID_S - 1) * BT_NS_PER_S;
            ask(&s, clients, CLIENTS);
            settle(&s, &c);
            EXPECT_EQ(c.n_still[0][2] + c.n_still[1][3] > before, late);
            for (int i = 0; i < CLIENTS; i++)
                sim_expect_done(&clients[i]);
        }
        sim_fini(&s);
    }
}

/* What else waits for the same two ranks goes with it, and nothing that goes between others. */
static void relay_handoffs_of_a_pair_that_stands_still_go_together(void)
{
    enum { N = 6 };
    uint32_t   n_placed = 0;
    sim        s;
    sim_client clients[N];
    cuts       none = {0};
    bt_up      m;

    sim_init(&s, 1, 2, 3, 64);
    ask(&s, clients, N);
    for (int i = 0; i < N; i++)
        for (uint32_t rank = 0; rank < 3; rank++)
            for (int k = 0; k < N; k++)
                sim_take_down(&s, rank), sim_take_up(&s, rank);
    for (uint32_t rank = 1; rank < 3; rank++)
        EXPECT_EQ(s.ranks[rank].n_work, N / 2);
    m                       = sim_failed(s.ranks[1].work[0].number, GRPC_STATUS_UNAVAILABLE);
    m.u.failed.stands_still = true;
    sim_up(&s, 0, m);
    sim_drop(&s, 0, sim_find(&s.ranks[0], s.ranks[1].work[0].number));
    settle(&s, &none);
    for (int i = 0; i < N; i++) {
        sim_expect_done(&clients[i]);
        n_placed += clients[i].n_placed;
    }
    EXPECT_EQ(n_placed, N + N / 2);
    sim_fini(&s);
}

/* What decodes already, has ended, or comes from another rank stays as it is. */
static void relay_handoff_that_stands_still_takes_no_others_along(void)
{
    enum { STILL, WAITS, DECODES, ENDED, N_OF_PAIR, N = 2 * N_OF_PAIR };
    sim               s;
    sim_client        clients[N], *c[N_OF_PAIR];
    bt_relay_request *q[N_OF_PAIR], *other = NULL;
    uint32_t          n = 0;
    bt_relay_loads    loads;
    bt_up             m;

    sim_init(&s, 2, 1, 3, 64);
    for (uint32_t i = 0; i < N; i++) {
        char              name[8];
        bt_relay_request *placed;

        snprintf(name, sizeof(name), "%u", i);
        EXPECT_EQ(sim_submit(&s, &clients[i], name, SIM_PAGE, 5, 100), BT_OK);
        placed = bt_table_get(&s.relay->numbers, clients[i].number);
        if (placed->prefill_rank == 1) {
            other = placed;
        } else {
            NEED(n < N_OF_PAIR);
            q[n]   = placed;
            c[n++] = &clients[i];
        }
        if (n != WAITS + 1 || placed->prefill_rank == 1)
            sim_tell(&s, 2, sim_ticket(placed->number, 3));
    }
    NEED(n == N_OF_PAIR && other != NULL);
    sim_tell(&s, 0, sim_tokens(q[DECODES]->number, SIM_PAGE, 7, BT_FINISH_NONE));
    sim_tell(&s, 0, sim_released(q[DECODES]->number));
    EXPECT(bt_relay_abort_name(s.relay, c[ENDED]->name, "no more"));
    m                       = sim_failed(q[STILL]->number, GRPC_STATUS_UNAVAILABLE);
    m.u.failed.stands_still = true;
    sim_tell(&s, 0, m);
    EXPECT(q[STILL]->state == BT_ENDED && q[WAITS]->state == BT_ENDED); /* others go on for them */
    EXPECT_EQ(q[DECODES]->state, BT_DECODE);
    EXPECT_EQ(other->state, BT_PREFILL);
    bt_relay_get_loads(s.relay, &loads);
    EXPECT_EQ(loads.n_waiting + loads.n_running, N - 1);
    for (uint32_t i = 0; i < N_OF_PAIR; i++)
        EXPECT_EQ(c[i]->ends, i == ENDED);
    sim_fini(&s);
}

/* Once for each pair, with what the rank says. */
static void relay_handoff_that_stands_still_between_the_last_ranks_fails(void)
{
    for (uint32_t n_decode = 1; n_decode <= 2; n_decode++) {
        sim        s;
        sim_client c;
        cuts       all = {
                  .n = 2, .pairs = {{0, 1}, {0, 2}}
        };

        sim_init(&s, 1, n_decode, 1 + n_decode, 64);
        ask(&s, &c, 1);
        settle(&s, &all);
        EXPECT_EQ(c.n_placed, n_decode);
        EXPECT(all.n_still[0][1] > 0 && (all.n_still[0][2] > 0) == (n_decode == 2));
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, GRPC_STATUS_UNAVAILABLE);
        all.n = 0; /* mended: all are tried again at once */
        ask(&s, &c, 1);
        settle(&s, &all);
        sim_expect_done(&c);
        sim_fini(&s);
    }
}

/* Without waiting for what nobody else has room for, to decode or to prefill. */
static void relay_handoff_that_only_one_rank_could_take_fails(void)
{
    for (uint32_t n_prefill = 1; n_prefill <= 2; n_prefill++) {
        uint32_t   small = n_prefill == 1 ? 2 : 1, decode = n_prefill;
        sim        s;
        sim_client big, brief;
        cuts       one = {.n = 1, .pairs = {{0, decode}}};

        sim_init(&s, n_prefill, 3 - n_prefill, 3, 64);
        s.relay->ranks[small].limits.n_pages = 8;
        s.state                              = 2; /* the Abort comes before another step */
        EXPECT_EQ(sim_submit(&s, &big, "big", 40, 2, 100), BT_OK);
        settle(&s, &one);
        EXPECT_EQ(big.ends, 1);
        EXPECT_EQ(big.end.code, GRPC_STATUS_UNAVAILABLE);
        EXPECT_EQ(s.relay->n_avoided, 1);
        EXPECT_EQ(sim_submit(&s, &brief, "brief", 8, 2, 100), BT_OK);
        settle(&s, &one);
        sim_expect_done(&brief);
        EXPECT_EQ(one.n_still[0][decode], 1);
        sim_fini(&s);
    }
}

/* Where the other ranks are lost meanwhile it is tried again. */
static void relay_avoided_pair_is_taken_when_it_is_the_last(void)
{
    sim        s;
    sim_client c;
    cuts       one = {.n = 1, .pairs = {{0, 2}}};

    sim_init_as(&s, 2, 1, 3, 64, true);
    do {
        ask(&s, &c, 1);
        settle(&s, &one);
        sim_expect_done(&c);
    } while (one.n_still[0][2] == 0);
    one.n = 0;
    ask(&s, &c, 1);
    sim_lose(&s, 1);
    EXPECT(s.relay->queue.first == NULL); /* at once */
    settle(&s, &one);
    sim_expect_done(&c);
    sim_fini(&s);
}

static void avoid(sim *s, uint32_t prefill, uint32_t decode)
{
    bt_relay_request q = {.prefill_rank = prefill, .decode_rank = decode};

    s->now += BT_NS_PER_S;
    EXPECT(bt_relay_avoid(s->relay, &q, s->now));
}

/* A pair that stands still again counts once, and from then on; of many the oldest are tried. */
static void relay_pairs_are_avoided_since_they_stood_still_last(void)
{
    enum { N_DECODE = 5 };
    const bt_relay *r;
    sim             s;

    sim_init(&s, 4, N_DECODE, 4 + N_DECODE, 64);
    r = s.relay;
    for (uint32_t i = 0; i < 3 * N_DECODE; i++)
        avoid(&s, i / N_DECODE, 4 + i % N_DECODE);
    avoid(&s, 0, 5);
    EXPECT_EQ(r->n_avoided, 3 * N_DECODE);
    avoid(&s, 3, 5);
    avoid(&s, 3, 4); /* one too many: the first one goes */
    EXPECT_EQ(r->n_avoided, BT_AVOIDED_PAIRS);
    for (uint32_t i = 0; i < BT_AVOIDED_PAIRS; i++) {
        uint32_t n = i + 2; /* in the order of the first ones, but for 0 and 1 */

        if (n < 3 * N_DECODE)
            EXPECT(r->avoided[i].prefill == n / N_DECODE &&
                   r->avoided[i].decode == 4 + n % N_DECODE);
    }
    EXPECT(r->avoided[13].prefill == 0 && r->avoided[13].decode == 5);
    sim_fini(&s);
}

/* Wherever it is, for so long that pairs are forgotten meanwhile. */
static void relay_request_that_always_stands_still_ends(void)
{
    sim        s;
    sim_client c;
    cuts       all = {
              .n = 2, .pairs = {{0, 1}, {0, 2}},
                   .pause_ns = AVOID_S * BT_NS_PER_S
    };

    sim_init(&s, 1, 2, 3, 64);
    s.relay->cfg.stall_ns = s.relay->cfg.queue_ns = INT64_MAX;
    ask(&s, &c, 1);
    settle(&s, &all);
    EXPECT_EQ(c.n_placed, 1 + 8);
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_UNAVAILABLE);
    sim_fini(&s);
}

static uint32_t count_reserves(const sim *s, uint32_t rank)
{
    const sim_rank *k = &s->ranks[rank];
    uint32_t        n = 0;

    for (uint32_t i = 0; i < k->n_down; i++)
        n += k->down[(k->down_at + i) % FIFO].kind == BT_DOWN_RESERVE;
    return n;
}

/* Of two prefill ranks and two decode ranks the first of each: nothing goes between them. */
static void init_with_one_cut(sim *s, const uint32_t n_pages[4])
{
    sim_init(s, 2, 2, 4, 64);
    for (uint32_t i = 0; i < 4; i++)
        s->relay->ranks[i].limits.n_pages = n_pages[i];
    s->relay->avoided[s->relay->n_avoided++] =
        (bt_avoided_pair){0, 2, s->now + AVOID_S * BT_NS_PER_S};
}

/* Though it would go to the first one otherwise. */
static void relay_decode_rank_is_one_that_its_prefill_rank_reaches(void)
{
    static const uint32_t EQUAL[] = {64, 64, 64, 64}, UNEQUAL[] = {64, 4, 64, 64};
    sim                   s;
    sim_client            c[4];

    init_with_one_cut(&s, UNEQUAL);
    EXPECT_EQ(sim_submit(&s, &c[0], "a", 30, 2, 100), BT_OK); /* the second holds no 8 pages */
    EXPECT_EQ(count_reserves(&s, 3), 1);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);

    init_with_one_cut(&s, EQUAL);
    s.relay->ranks[1].prefill_tokens = 64; /* its window is full */
    s.relay->ranks[3].taken_pages    = 16;
    EXPECT_EQ(sim_submit(&s, &c[0], "a", 10, 2, 100), BT_OK);
    EXPECT_EQ(count_reserves(&s, 3), 1);
    s.relay->ranks[0].prefill_tokens       = 64;
    s.relay->avoided[s.relay->n_avoided++] = (bt_avoided_pair){1, 3, s.now + AVOID_S * BT_NS_PER_S};
    EXPECT_EQ(sim_submit(&s, &c[1], "b", 10, 2, 100), BT_OK); /* waits for either */
    EXPECT_EQ(count_reserves(&s, 2) + count_reserves(&s, 3), 1);
    EXPECT_EQ(s.relay->blocked, BT_BLOCKED_PREFILL); /* and keeps no decode rank from others */
    EXPECT(!s.relay->ranks[2].kept && !s.relay->ranks[3].kept);
    s.relay->ranks[1].prefill_tokens = 0;
    bt_relay_place(s.relay, s.now);
    EXPECT_EQ(count_reserves(&s, 2), 1);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* It waits until something is handed over there, and nobody behind it does. */
static void relay_request_for_a_rank_that_is_cut_off_lets_others_pass(void)
{
    static const uint32_t PAGES[] = {64, 64, 64, 8};
    sim                   s;
    sim_client            big[6], brief;
    char                  name[12];

    init_with_one_cut(&s, PAGES);
    s.relay->avoided[s.relay->n_avoided++] = (bt_avoided_pair){1, 2, s.now + AVOID_S * BT_NS_PER_S};
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof(name), "%d", i);
        EXPECT_EQ(sim_submit(&s, &big[i], name, 40, 2, 100), BT_OK);
    }
    EXPECT_EQ(sim_submit(&s, &brief, "brief", 8, 2, 100), BT_OK);
    EXPECT_EQ(count_reserves(&s, 3), 1);
    EXPECT_EQ(count_reserves(&s, 2), 0);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* To prefill likewise, and nobody leaves it pages to decode. */
static void relay_prompt_for_a_rank_that_is_cut_off_lets_others_pass(void)
{
    sim        s;
    sim_client big, brief;

    sim_init(&s, 2, 1, 3, 12);
    s.relay->ranks[1].limits.n_pages       = 8;
    s.relay->avoided[s.relay->n_avoided++] = (bt_avoided_pair){0, 2, s.now + AVOID_S * BT_NS_PER_S};
    EXPECT_EQ(sim_submit(&s, &big, "big", 40, 2, 100), BT_OK); /* 11 of 12 pages */
    EXPECT_EQ(sim_submit(&s, &brief, "brief", 8, 2, 100), BT_OK);
    EXPECT_EQ(count_reserves(&s, 2), 1);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

/* The one rank that could compute it, and the one that could hold it, hand nothing over to one
 * another: it has no place, and takes none from others. */
static void relay_request_for_a_pair_that_is_avoided_lets_others_pass(void)
{
    static const uint32_t PAGES[] = {64, 8, 64, 8};
    sim                   s;
    sim_client            big, other;
    bt_relay_request      q = {.n_prompt     = 40,
                               .sampling     = {.max_tokens = 2},
                               .n_open       = 1,
                               .prefill_rank = 0,
                               .decode_rank  = 2};

    init_with_one_cut(&s, PAGES);
    EXPECT(!bt_relay_could_ever_hold(s.relay, &q) && !bt_relay_avoid(s.relay, &q, s.now));
    s.relay->ranks[1].prefill_tokens = s.relay->ranks[1].long_tokens = 64; /* a full window */
    EXPECT_EQ(sim_submit(&s, &big, "big", 40, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &other, "other", 24, 2, 100), BT_OK); /* takes several steps, too */
    EXPECT_EQ(count_reserves(&s, 2), 0);
    EXPECT_EQ(count_reserves(&s, 3), 1);
    q.n_prompt = 24; /* 0 to 3, or 1 to either */
    EXPECT(bt_relay_could_ever_hold(s.relay, &q));
    q.n_prompt            = 8;
    q.sampling.max_tokens = 40; /* 1 to 2 */
    EXPECT(bt_relay_could_ever_hold(s.relay, &q));
    s.relay->ranks[1].limits.n_pages = 1;
    EXPECT(!bt_relay_could_ever_hold(s.relay, &q));
    for (uint32_t group = 0; group < 2; group++) { /* others may come */
        uint32_t *seats = s.relay->seats[group].ranks;

        seats[0] = seats[1] = BT_NO_RANK;
        EXPECT(bt_relay_could_ever_hold(s.relay, &q));
        seats[0] = 2 * group;
        seats[1] = 2 * group + 1;
    }
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

static const bt_test TESTS[] = {
    BT_TEST(relay_handoff_that_stands_still_is_made_by_others),
    BT_TEST(relay_handoffs_of_a_pair_that_stands_still_go_together),
    BT_TEST(relay_handoff_that_stands_still_takes_no_others_along),
    BT_TEST(relay_handoff_that_stands_still_between_the_last_ranks_fails),
    BT_TEST(relay_handoff_that_only_one_rank_could_take_fails),
    BT_TEST(relay_avoided_pair_is_taken_when_it_is_the_last),
    BT_TEST(relay_pairs_are_avoided_since_they_stood_still_last),
    BT_TEST(relay_request_that_always_stands_still_ends),
    BT_TEST(relay_decode_rank_is_one_that_its_prefill_rank_reaches),
    BT_TEST(relay_request_for_a_rank_that_is_cut_off_lets_others_pass),
    BT_TEST(relay_prompt_for_a_rank_that_is_cut_off_lets_others_pass),
    BT_TEST(relay_request_for_a_pair_that_is_avoided_lets_others_pass),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
