/* The request state machine in a simulated cell. */
#include "coordinator/relay.h"

#include "tests/coordinator/relay_sim.h"
#include "tests/support/sweep.h"

static void relay_request_runs_to_its_end(void)
{
    static const uint32_t stops[] = {0, 1, 5, 9, 100};

    for (int both = 0; both < 2; both++)
        for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++) {
            sim        s;
            sim_client c;
            long       live = bt_alloc_live();

            sim_init(&s, both ? 0 : 1, both ? 0 : 1, both ? 1 : 2, 32);
            EXPECT_EQ(sim_submit(&s, &c, "a", 7, 10, stops[i]), BT_OK);
            sim_settle(&s);
            sim_expect_done(&c);
            sim_expect_idle(&s);
            sim_fini(&s);
            EXPECT_EQ(bt_alloc_live(), live);
        }
}

static void relay_abort_ends_every_state_and_frees_it(void)
{
    static const uint32_t want_aborts[AT_LAST] = {0, 1, 2, 2}; /* ranks that were told of it */

    for (sim_at state = AT_QUEUE; state < AT_LAST; state++)
        for (int by_name = 0; by_name < 2; by_name++) {
            sim        s;
            sim_client c, other = {0};

            sim_bring(&s, &c, state);
            bt_relay_abort_client(s.relay, &other, "a", "not yours"); /* another client's */
            bt_relay_abort_name(s.relay, "b", "no such");
            EXPECT_EQ(c.ends, 0);
            if (by_name)
                bt_relay_abort_name(s.relay, "a", "asked");
            else
                bt_relay_abort_client(s.relay, &c, "a", "asked");
            EXPECT_EQ(c.ends, 1);
            EXPECT_EQ(c.end.code, GRPC_STATUS_CANCELLED);
            EXPECT_HAS(c.message, "asked");
            EXPECT_EQ(s.n_down[BT_DOWN_ABORT], want_aborts[state]);
            EXPECT_EQ(sim_submit(&s, &other, "a", 2, 2, 100), BT_OK); /* the name is free at once */
            bt_relay_abort_name(s.relay, "a", "asked");
            bt_relay_abort_client(s.relay, &c, "a", "again");
            EXPECT_EQ(c.ends, 1);
            sim_settle(&s);
            sim_expect_idle(&s);
            EXPECT_EQ(c.ends, 1);
            sim_fini(&s);
        }
}

static void relay_failure_of_a_rank_ends_its_request_in_every_state(void)
{
    for (sim_at state = AT_RESERVING; state < AT_LAST; state++) {
        sim        s;
        sim_client c;

        sim_bring(&s, &c, state);
        sim_tell(&s, 1, sim_failed(c.number, 14));
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, GRPC_STATUS_UNAVAILABLE);
        EXPECT_HAS(c.message, "broken");
        sim_settle(&s);
        sim_expect_idle(&s);
        sim_fini(&s);
    }
}

static bt_up sim_asks(uint64_t wake)
{
    return (bt_up){.kind = BT_UP_WAKE_REQUEST, .u.wake_request = {wake}};
}

static void relay_stop_ends_everything_once(void)
{
    for (sim_at state = AT_QUEUE; state < AT_LAST; state++) {
        sim        s;
        sim_client c, late;
        uint32_t   n_wakes;

        sim_bring(&s, &c, state);
        bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "rank 1 was lost");
        bt_relay_stop(s.relay, GRPC_STATUS_INTERNAL, "again");
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, GRPC_STATUS_UNAVAILABLE);
        EXPECT_HAS(c.message, "rank 1 was lost");
        EXPECT_EQ(s.n_down[BT_DOWN_ABORT], 0);
        EXPECT_EQ(sim_submit(&s, &late, "late", 2, 2, 100), BT_ERR_PEER);
        EXPECT_EQ(late.end.code, GRPC_STATUS_UNAVAILABLE);
        sim_tell(&s, 1, sim_released(c.number)); /* late words find deaf ears */
        sim_tell(&s, 1, sim_ticket(c.number, 4));
        EXPECT_EQ(c.ends, 1);
        n_wakes = s.n_down[BT_DOWN_WAKE];
        sim_tell(&s, 1, sim_asks(n_wakes)); /* its group has one rank */
        EXPECT_EQ(s.n_down[BT_DOWN_WAKE], n_wakes);
        sim_fini(&s);
    }
}

/* Every rank that has work asks: the group gets one number for all that asked with the last one. */
static void relay_wakes_a_group_once_for_each_number(void)
{
    sim s;

    sim_init(&s, 1, 2, 4, 8);
    sim_tell(&s, 1, sim_asks(0));
    sim_tell(&s, 2, sim_asks(0));
    EXPECT_EQ(s.n_down[BT_DOWN_WAKE], 2); /* ranks 1 and 2 */
    sim_tell(&s, 2, sim_asks(1));
    EXPECT_EQ(s.n_down[BT_DOWN_WAKE], 4);
    sim_tell(&s, 0, sim_asks(0)); /* another group */
    EXPECT_EQ(s.n_down[BT_DOWN_WAKE], 5);
    sim_fini(&s);
}

static void relay_refused_ticket_waits_and_goes_on_with_a_new_number(void)
{
    sim        s;
    sim_client c;

    sim_bring(&s, &c, AT_RESERVING);
    sim_tell(&s, 1, sim_ticket(c.number, 0));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT_EQ(sim_loads(&s).n_waiting, 1);
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);
    s.now += 100 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1); /* not at once */
    s.now += BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    sim_tell(&s, 1, sim_ticket(c.number, 4)); /* a word about the old placement */
    EXPECT_EQ(s.n_down[BT_DOWN_PREFILL], 0);
    sim_tell(&s, 1, sim_ticket(c.number + 1, 4));
    EXPECT_EQ(s.n_down[BT_DOWN_PREFILL], 1);
    EXPECT_EQ(c.ends, 0);
    bt_relay_abort_name(s.relay, "a", "enough");
    sim_tell(&s, 1, sim_released(c.number + 1));
    sim_tell(&s, 0, sim_released(c.number + 1));
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);
    sim_fini(&s);
}

static void relay_refused_ticket_is_tried_when_something_is_released(void)
{
    sim        s;
    sim_client a, b;

    sim_init(&s, 1, 1, 2, 16);
    EXPECT_EQ(sim_submit(&s, &a, "a", 4, 4, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &b, "b", 4, 4, 100), BT_OK);
    sim_tell(&s, 1, sim_ticket(a.number, 2));
    sim_tell(&s, 1, sim_ticket(b.number, 0));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    bt_relay_abort_name(s.relay, "a", "make room");
    sim_tell(&s, 1, sim_released(a.number));
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

static void relay_bad_tickets_fail_the_request(void)
{
    sim        s;
    sim_client c;
    bt_up      m;

    sim_bring(&s, &c, AT_RESERVING);
    sim_tell(&s, 0, sim_ticket(c.number, 4)); /* by the wrong rank: not heard */
    EXPECT_EQ(s.n_down[BT_DOWN_PREFILL], 0);
    sim_tell(&s, 1, sim_ticket(c.number, 1)); /* 6 prompt tokens need 2 pages */
    EXPECT_EQ(c.ends, 1);
    sim_fini(&s);

    sim_bring(&s, &c, AT_RESERVING);
    m                      = sim_ticket(c.number, 4);
    m.u.ticket.pages[3].id = 8; /* of pages 0 to 7 */
    sim_tell(&s, 1, m);
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    sim_fini(&s);

    sim_bring(&s, &c, AT_RESERVING);
    sim_tell(&s, 1, sim_ticket(c.number, 9)); /* more than there are */
    EXPECT_EQ(c.ends, 1);
    sim_fini(&s);

    sim_init(&s, 1, 1, 2, 8);
    EXPECT_EQ(sim_submit(&s, &c, "a", 2 * SIM_PAGE, 2, 100), BT_OK);
    m               = sim_ticket(c.number, 3);
    m.u.ticket.held = 2 * SIM_PAGE; /* its last token is always computed */
    sim_tell(&s, 1, m);
    EXPECT_EQ(c.ends, 1);
    sim_fini(&s);
}

static void relay_rank_that_drops_a_live_request_fails_it(void)
{
    for (int begun = 0; begun < 2; begun++) {
        sim        s;
        sim_client c;

        sim_bring(&s, &c, begun ? AT_DECODE : AT_PREFILL);
        sim_tell(&s, 0, sim_released(c.number)); /* prefill is done: fine */
        EXPECT_EQ(c.ends, 0);
        sim_tell(&s, 1, sim_released(c.number));
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        EXPECT_EQ(sim_loads(&s).used_tokens, 0);
        sim_fini(&s);
    }
}

static void relay_other_epochs_are_not_heard(void)
{
    sim        s;
    sim_client c;
    bt_up      m;

    sim_bring(&s, &c, AT_RESERVING);
    m                = sim_ticket(c.number, 4);
    m.u.ticket.epoch = EPOCH - 1;
    sim_tell(&s, 1, m);
    EXPECT_EQ(s.n_down[BT_DOWN_PREFILL], 0);
    m                = sim_failed(c.number, 13);
    m.u.failed.epoch = EPOCH + 1;
    sim_tell(&s, 1, m);
    m                  = sim_released(c.number);
    m.u.released.epoch = EPOCH - 1;
    sim_tell(&s, 1, m);
    EXPECT_EQ(c.ends, 0);
    EXPECT(sim_loads(&s).used_tokens > 0);
    sim_tell(&s, 1, sim_ticket(c.number, 4));
    sim_tell(&s, 0, sim_in(sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE), EPOCH - 1));
    EXPECT_EQ(c.n, 0);
    sim_fini(&s);
}

/* Whatever rank 2 says of a request that is not placed there, and what its ranks say that is not
 * theirs to say. */
static void relay_ranks_are_heard_of_what_they_have(void)
{
    sim                s;
    sim_client         c;
    bt_relay_rank_view v;

    sim_init(&s, 1, 2, 3, 8);
    s.prompt_logprobs = 2;
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK); /* prefill 0, decode 1 */
    sim_tell(&s, 2, sim_ticket(c.number, 4));
    EXPECT_EQ(s.n_down[BT_DOWN_PREFILL], 0);
    sim_tell(&s, 1, sim_ticket(c.number, 4));
    EXPECT_EQ(s.n_down[BT_DOWN_PREFILL], 1);
    sim_tell(&s, 2, sim_prompt_logprobs(c.number, 1, 5, 1));
    sim_tell(&s, 1, sim_prompt_logprobs(c.number, 1, 5, 1));
    sim_tell(&s, 0, sim_in(sim_prompt_logprobs(c.number, 1, 5, 1), EPOCH - 1));
    EXPECT_EQ(c.n_logprobs, 0);
    sim_tell(&s, 0, sim_prompt_logprobs(c.number, 1, 5, 1));
    EXPECT_EQ(c.n_logprobs, 5);
    sim_tell(&s, 2, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    sim_tell(&s, 2, sim_failed(c.number, 13));
    sim_tell(&s, 2, sim_retracted(c.number, EPOCH));
    sim_tell(&s, 0, sim_retracted(c.number, EPOCH));
    sim_tell(&s, 2, sim_released(c.number));
    EXPECT(c.n == 0 && c.ends == 0);
    bt_relay_view_rank(s.relay, 0, &v);
    EXPECT_EQ(v.n_held, 1);
    sim_tell(&s, 0, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    EXPECT(c.n == 1 && c.ends == 0);
    sim_fini(&s);
}

/* Rank 0 and epoch 0 are those of a request that has no ranks yet; nor has it a prompt that is
 * computed while its ticket is awaited. */
static void relay_ranks_are_not_heard_of_what_waits(void)
{
    for (sim_at state = AT_QUEUE; state <= AT_RESERVING; state++) {
        const bt_relay_request *q;
        sim                     s;
        sim_client              c;
        uint32_t                epoch = state == AT_QUEUE ? 0 : EPOCH;

        sim_bring(&s, &c, state);
        q = bt_table_get(&s.relay->numbers, c.number);
        NEED(q != NULL);
        sim_tell(&s, 0, sim_in(sim_form_map(c.number, 1, 1), epoch));
        sim_tell(&s, 0, sim_in(sim_form_map(c.number, 2 * BT_PAGE_MAP_BYTES, 1), epoch));
        sim_tell(&s, 0, sim_in(sim_prompt_logprobs(c.number, 1, 5, 1), epoch));
        EXPECT(c.ends == 0 && q->form_map == NULL);
        sim_fini(&s);
    }
}

/* Arrivals, aborts, refusals, failures and every order of messages that streams allow. */
static void storm(uint32_t n_prefill, uint32_t n_decode, uint32_t n_ranks, uint64_t seed)
{
    enum { N = 600 };
    sim         s;
    sim_client *clients = calloc(N, sizeof(*clients));
    int         n = 0, ok = 0, cancelled = 0, failed = 0;
    char        name[24];
    long        live = bt_alloc_live();

    sim_init(&s, n_prefill, n_decode, n_ranks, 40);
    s.state          = seed;
    s.refuse_percent = 5;
    s.fail_percent   = 3;
    while (n < N) {
        if (sim_random(&s, 40) == 0) {
            snprintf(name, sizeof(name), "r%d", n);
            s.prompt_logprobs = sim_random(&s, 3);
            s.cache_salt      = sim_any_salt(&s);
            EXPECT_EQ(sim_submit(&s, &clients[n], name, 1 + sim_random(&s, 60),
                                 1 + sim_random(&s, 40), sim_random(&s, 60)),
                      BT_OK);
            n++;
        }
        if (n > 0 && sim_random(&s, 400) == 0) {
            sim_client *c = &clients[sim_random(&s, (uint32_t)n)];

            bt_relay_abort_client(s.relay, c, c->name, "gone");
        }
        sim_once(&s);
        if (sim_random(&s, 200) == 0) {
            s.now += BT_NS_PER_MS;
            bt_relay_tick(s.relay, s.now);
        }
    }
    for (int i = 0; i < 2000 && sim_loads(&s).n_waiting + sim_loads(&s).n_running > 0; i++) {
        sim_settle(&s);
        s.now += 250 * BT_NS_PER_MS;
        bt_relay_tick(s.relay, s.now);
    }
    sim_settle(&s);
    for (int i = 0; i < N; i++) {
        const sim_client *c = &clients[i];

        EXPECT_EQ(c->ends, 1);
        for (int k = 0; k < c->n && k < 64; k++)
            EXPECT_EQ(c->ids[k], sim_token(c->n_prompt, (uint32_t)k));
        if (c->end.code == GRPC_STATUS_OK) sim_expect_done(c);
        ok += c->end.code == GRPC_STATUS_OK;
        cancelled += c->end.code == GRPC_STATUS_CANCELLED;
        failed += c->end.code == GRPC_STATUS_INTERNAL;
    }
    EXPECT(ok > N / 2 && cancelled > 0 && failed > 0);
    EXPECT_EQ(ok + cancelled + failed, N);
    EXPECT_EQ(s.n_stuck, 0);
    sim_expect_idle(&s);
    sim_fini(&s);
    EXPECT_EQ(bt_alloc_live(), live);
    free(clients);
}

static void relay_storm_leaves_nothing_behind(void)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        storm(2, 2, 4, seed);
        storm(1, 3, 4, seed);
        storm(0, 0, 2, seed);
    }
}

static void relay_short_memory_leaks_nothing(void)
{
    sim       s;
    bt_relay *relay = NULL;

    sim_init(&s, 1, 1, 2, 32);
    EXPECT(BT_SWEEP(sim_relay_create(&s, &relay), (bt_relay_destroy(relay), relay = NULL)) > 3);
    sim_fini(&s);
}

static const bt_test tests[] = {
    BT_TEST(relay_request_runs_to_its_end),
    BT_TEST(relay_abort_ends_every_state_and_frees_it),
    BT_TEST(relay_failure_of_a_rank_ends_its_request_in_every_state),
    BT_TEST(relay_stop_ends_everything_once),
    BT_TEST(relay_wakes_a_group_once_for_each_number),
    BT_TEST(relay_refused_ticket_waits_and_goes_on_with_a_new_number),
    BT_TEST(relay_refused_ticket_is_tried_when_something_is_released),
    BT_TEST(relay_bad_tickets_fail_the_request),
    BT_TEST(relay_rank_that_drops_a_live_request_fails_it),
    BT_TEST(relay_other_epochs_are_not_heard),
    BT_TEST(relay_ranks_are_heard_of_what_they_have),
    BT_TEST(relay_ranks_are_not_heard_of_what_waits),
    BT_TEST(relay_storm_leaves_nothing_behind),
    BT_TEST(relay_short_memory_leaks_nothing),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN); /* the storms would log thousands of ends */
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}
