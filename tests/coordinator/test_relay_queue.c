/* What may wait in the queue, and what a look at a long one costs, in a simulated cell. */
#include "tests/coordinator/relay_sim.h"

static void relay_queue_is_bounded_in_tokens_and_time(void)
{
    sim        s;
    sim_client big, waiting, too_much;

    sim_init(&s, 1, 1, 2, 8);
    bt_relay_destroy(s.relay);
    s.cfg.queue_tokens = 10;
    s.cfg.ranks        = s.limits;
    EXPECT_EQ(sim_relay_create(&s, &s.relay), BT_OK);
    EXPECT_EQ(sim_submit(&s, &big, "big", 28, 4, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &waiting, "waiting", 8, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &too_much, "too much", 3, 2, 100), BT_ERR_NO_PAGES);
    EXPECT_EQ(too_much.end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    s.now += 30 * BT_NS_PER_S - 1;
    sim_tell(&s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(waiting.ends, 0);
    s.now += BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(waiting.ends, 1);
    EXPECT_EQ(waiting.end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    EXPECT_HAS(waiting.message, "no rank had room for 8 + 2 tokens, 1 choice, within 31.0 s");
    EXPECT_EQ(big.ends, 0);
    EXPECT_EQ(sim_submit(&s, &too_much, "too much", 3, 2, 100), BT_OK);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

static void relay_queue_is_bounded_in_bytes_of_constraints(void)
{
    sim        s;
    sim_client big, waiting, too_much, plain;

    sim_init(&s, 1, 1, 2, 8);
    EXPECT_EQ(sim_submit(&s, &big, "big", 28, 4, 100), BT_OK);
    s.n_constraint_bytes = 200 << 20;
    EXPECT_EQ(sim_submit(&s, &waiting, "waiting", 8, 2, 100), BT_OK);
    s.n_constraint_bytes = 100 << 20;
    EXPECT_EQ(sim_submit(&s, &too_much, "too much", 3, 2, 100), BT_ERR_NO_PAGES);
    EXPECT_EQ(too_much.end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    EXPECT_HAS(bt_error_text(), "constraints of 209715200 bytes wait");
    s.n_constraint_bytes = 0;
    EXPECT_EQ(sim_submit(&s, &plain, "plain", 3, 2, 100), BT_OK);
    bt_relay_abort_client(s.relay, &waiting, "waiting", "gone");
    s.n_constraint_bytes = 100 << 20;
    EXPECT_EQ(sim_submit(&s, &too_much, "too much", 3, 2, 100), BT_OK);
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

static void relay_duplicate_name_is_refused_until_the_end(void)
{
    sim        s;
    sim_client a, twin;

    sim_init(&s, 1, 1, 2, 32);
    EXPECT_EQ(sim_submit(&s, &a, "same", 4, 4, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &twin, "same", 4, 4, 100), BT_ERR_INVALID_ARG);
    EXPECT_EQ(twin.end.code, GRPC_STATUS_ALREADY_EXISTS);
    sim_settle(&s);
    sim_expect_done(&a);
    EXPECT_EQ(sim_submit(&s, &twin, "same", 4, 4, 100), BT_OK);
    sim_settle(&s);
    sim_expect_done(&twin);
    sim_fini(&s);
}

/* So many alike, with prompts of their own. */
static void submit_many(sim *s, sim_client *c, uint32_t n, uint32_t n_prompt)
{
    for (uint32_t i = 0; i < n; i++) {
        char name[24];

        s->first_token = 1 + s->first_token;
        snprintf(name, sizeof(name), "%u of %u", s->first_token, n_prompt);
        EXPECT_EQ(sim_submit(s, &c[i], name, n_prompt, 2, 100), BT_OK);
    }
}

static void end_many(sim *s, sim_client *c)
{
    bt_relay_stop(s->relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(s);
    free(c);
}

/* What a message costs does not grow with the queue: a tick looks at it for all of them. */
static void relay_long_queue_is_looked_at_once_a_tick(void)
{
    enum { ALL = 2000, WINDOW = 4 };
    sim         s;
    sim_client *c = calloc(ALL, sizeof(*c));

    sim_init(&s, 1, 1, 2, 8192);
    submit_many(&s, c, ALL, 16);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], WINDOW);
    EXPECT(s.relay->freed);
    EXPECT(s.relay->looks < 1200); /* of the last one before they cost too much */
    bt_relay_tick(s.relay, s.now);
    EXPECT(!s.relay->freed);
    s.relay->looks = 0;
    for (uint32_t i = 0; i < WINDOW; i++)
        sim_tell(&s, 1, sim_ticket(c[i].number, 5));
    for (uint32_t i = 0; i < WINDOW; i++)
        sim_tell(&s, 0, sim_tokens(c[i].number, 16, 1, BT_FINISH_NONE));
    EXPECT_EQ(s.relay->looks, 0); /* nobody has looked */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], WINDOW);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2 * WINDOW);
    end_many(&s, c);
}

/* Each of them might have a prefix somewhere: that is not asked of all of them at every rank. Short
 * ones behind them pass all the same. */
static void relay_long_prompts_that_wait_are_not_asked_at_every_rank(void)
{
    enum { LONG = 1000, RANKS = 6 };
    sim         s;
    sim_client *c = calloc(LONG + 1, sizeof(*c));

    sim_init(&s, 5, 1, RANKS, 65536);
    submit_many(&s, c, LONG, 40);
    bt_relay_tick(s.relay, s.now);
    EXPECT(s.relay->looks > 4096);
    EXPECT(s.relay->looks <= LONG + 4096 + 2 * RANKS);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 5);
    submit_many(&s, c + LONG, 1, 8);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 6);
    end_many(&s, c);
}

/* The loop goes on meanwhile. */
static void relay_many_are_placed_in_parts(void)
{
    enum { ALL = 3000, LOOKS = 16384, EACH = 1 + 6 };
    sim         s;
    sim_client *c = calloc(ALL, sizeof(*c));

    sim_init(&s, 0, 0, 6, 65536);
    for (uint32_t i = 0; i < 6; i++)
        s.relay->ranks[i].limits.max_rows = ALL;
    s.relay->dear = true;
    submit_many(&s, c, ALL, 4);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 0);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], LOOKS / EACH + 1);
    EXPECT(s.relay->freed);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], ALL);
    EXPECT(!s.relay->freed && !s.relay->dear);
    end_many(&s, c);
}

/* What the ranks' indexes say of a prompt takes memory for each rank: of those that are looked at.
 */
static void relay_matches_are_kept_of_those_that_are_looked_at(void)
{
    enum { ALL = 100 };
    sim         s;
    sim_client *c = calloc(ALL, sizeof(*c));

    sim_init(&s, 1, 1, 2, 8192);
    submit_many(&s, c, ALL, 16); /* four fill the window, the fifth waits for it */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 4);
    EXPECT(s.relay->queue.first->matches != NULL);
    for (bt_relay_request *q = s.relay->queue.first->next; q != NULL; q = q->next)
        EXPECT(q->matches == NULL);
    sim_tell(&s, 1, sim_ticket(c[0].number, 5));
    EXPECT(s.relay->placed.first->state == BT_PREFILL && s.relay->placed.first->matches == NULL);
    end_many(&s, c);
}

/* With the next tick, by its client or to another cell: those behind it may have waited for it. */
static void relay_request_that_leaves_the_queue_lets_others_go(void)
{
    for (int moves = 0; moves < 2; moves++) {
        sim               s;
        sim_client        first, big, small;
        bt_relay_request *q = NULL;

        sim_init(&s, 1, 1, 2, 12);
        bt_relay_tick(s.relay, s.now); /* the next one to look without a reason is 250 ms away */
        EXPECT_EQ(sim_submit(&s, &first, "first", 22, 2, 100), BT_OK); /* 6 pages, and one */
        EXPECT_EQ(sim_submit(&s, &big, "big", 22, 2, 100), BT_OK);
        EXPECT_EQ(sim_submit(&s, &small, "small", 1, 2, 100), BT_OK);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
        if (moves)
            q = bt_relay_take_queued(s.relay, s.relay->queue.first);
        else
            bt_relay_abort_client(s.relay, &big, "big", "gone");
        bt_relay_tick(s.relay, s.now + 1);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
        bt_relay_request_destroy(q);
        bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
        sim_fini(&s);
    }
}

static const bt_test TESTS[] = {
    BT_TEST(relay_queue_is_bounded_in_tokens_and_time),
    BT_TEST(relay_queue_is_bounded_in_bytes_of_constraints),
    BT_TEST(relay_duplicate_name_is_refused_until_the_end),
    BT_TEST(relay_long_queue_is_looked_at_once_a_tick),
    BT_TEST(relay_long_prompts_that_wait_are_not_asked_at_every_rank),
    BT_TEST(relay_many_are_placed_in_parts),
    BT_TEST(relay_matches_are_kept_of_those_that_are_looked_at),
    BT_TEST(relay_request_that_leaves_the_queue_lets_others_go),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
