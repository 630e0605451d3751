/* Who stands still, and what has only waited, in a simulated cell. */
#include "tests/coordinator/relay_sim.h"

static void relay_quiet_rank_with_work_is_stuck(void)
{
    sim        s;
    sim_client c, more[3];

    sim_init(&s, 1, 1, 2, 32);
    s.now += 100 * BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0); /* idle ranks may be silent */
    EXPECT_EQ(sim_submit(&s, &c, "a", 4, 4, 100), BT_OK);
    for (uint64_t i = 1; i <= 5; i++) { /* 15 s each, but its counter moves */
        s.now += 15 * BT_NS_PER_S;
        sim_tell(&s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = i}});
        if (i == 1) sim_tell(&s, 1, sim_ticket(c.number, 2));
        if (i > 1) sim_tell(&s, 0, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = i}});
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, 0);
        if (c.ends > 0) break; /* the request's own stall, later */
    }
    for (int i = 0; i < 3; i++) { /* beats that show no progress, while more work comes */
        char name[20];

        EXPECT_EQ(s.n_stuck, 0);
        snprintf(name, sizeof(name), "more %d", i);
        EXPECT_EQ(sim_submit(&s, &more[i], name, 4, 4, 100), BT_OK);
        sim_tell(&s, 1, sim_ticket(more[i].number, 2));
        s.now += 9 * BT_NS_PER_S;
        sim_tell(&s, 0, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 5}});
        sim_tell(&s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 100 + (uint64_t)i}});
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 1);
    sim_fini(&s);
}

/* Of several that show no progress it is the one of which nothing has been heard for longest: those
 * that only wait for it still beat. */
static void relay_of_stuck_ranks_the_silent_one_goes(void)
{
    for (uint32_t silent = 0; silent < 2; silent++) {
        sim        s;
        sim_client c;

        sim_bring(&s, &c, AT_PREFILL);
        for (uint32_t second = 1; second <= 21 && s.n_stuck == 0; second++) {
            s.now += BT_NS_PER_S;
            sim_tell(&s, 1 - silent, (bt_up){.kind = BT_UP_BEAT});
            bt_relay_tick(s.relay, s.now);
        }
        EXPECT_EQ(s.n_stuck, 1);
        EXPECT_EQ(s.last_stuck, silent);
        sim_fini(&s);
    }
}

/* It was stopped for long itself: what the ranks have said meanwhile is still to be read. */
static void relay_own_silence_is_not_taken_for_that_of_a_rank(void)
{
    sim        s;
    sim_client c;

    sim_init(&s, 1, 1, 2, 32);
    EXPECT_EQ(sim_submit(&s, &c, "a", 4, 4, 100), BT_OK);
    bt_relay_tick(s.relay, s.now);
    s.now += 70 * BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    EXPECT_EQ(c.ends, 0);         /* nor for a stall of the request */
    for (int i = 0; i < 3; i++) { /* but from then on */
        EXPECT_EQ(s.n_stuck, 0);
        s.now += 9 * BT_NS_PER_S;
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 1);
    sim_fini(&s);
}

static void relay_own_silence_is_not_taken_for_that_of_a_spare(void)
{
    sim s;

    sim_init_as(&s, 1, 1, 3, 32, true);
    bt_relay_tick(s.relay, s.now);
    s.now += 50 * BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(s.n_stuck, 0);
        s.now += 9 * BT_NS_PER_S;
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 2);
    sim_fini(&s);
}

/* It was stopped while requests waited: no rank has refused them meanwhile. */
static void relay_own_silence_is_no_wait_for_room(void)
{
    sim        s;
    sim_client waiting;
    bt_up      beat = {.kind = BT_UP_BEAT};

    sim_bring(&s, &waiting, AT_QUEUE);
    bt_relay_tick(s.relay, s.now);
    s.now += 50 * BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    for (int i = 0; i < 3; i++) { /* the whole of its time from then on */
        s.now += 9 * BT_NS_PER_S;
        for (uint32_t r = 0; r < 2; r++, beat.u.beat.progress++)
            sim_tell(&s, r, beat);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(waiting.ends, 0);
    }
    s.now += 4 * BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(waiting.ends, 1);
    EXPECT_EQ(waiting.end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
    sim_fini(&s);
}

static void relay_stalled_request_fails_alone(void)
{
    sim        s;
    sim_client c;

    sim_bring(&s, &c, AT_RESERVING);
    s.now += 9 * BT_NS_PER_S;
    sim_tell(&s, 1, sim_ticket(c.number, 4));
    for (uint64_t i = 1; i <= 7; i++) {
        EXPECT_EQ(c.ends, 0);
        s.now += 9 * BT_NS_PER_S;
        for (uint32_t r = 0; r < 2; r++)
            sim_tell(&s, r, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = i}});
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 0);
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_DEADLINE_EXCEEDED);
    EXPECT_HAS(c.message, "rank 0");
    EXPECT_HAS(c.message, "in prefill");
    sim_fini(&s);
}

/* A long prompt says nothing until its first token, while its rank computes rows of prompts. */
static void relay_long_prefill_is_no_stall(void)
{
    sim        s;
    sim_client c;
    bt_up      beat = {.kind = BT_UP_BEAT};

    sim_bring(&s, &c, AT_PREFILL);
    for (int i = 0; i < 20; i++) {
        s.now += 9 * BT_NS_PER_S;
        beat.u.beat.progress++;
        beat.u.beat.prompt_rows = 0;
        sim_tell(&s, 1, beat);
        beat.u.beat.prompt_rows = beat.u.beat.progress;
        sim_tell(&s, 0, beat);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(c.ends, 0);
    }
    for (int i = 0; i < 7; i++) { /* it only joins steps of its group now */
        EXPECT_EQ(c.ends, 0);
        s.now += 9 * BT_NS_PER_S;
        beat.u.beat.progress++;
        for (uint32_t rank = 0; rank < 2; rank++)
            sim_tell(&s, rank, beat);
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 0);
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_DEADLINE_EXCEEDED);
    sim_fini(&s);
}

/* Once the first token has come, prompts of others say nothing of it. */
static void relay_prompts_of_others_do_not_hide_a_stall(void)
{
    sim        s;
    sim_client c;
    bt_up      beat = {.kind = BT_UP_BEAT};

    sim_bring(&s, &c, AT_DECODE);
    for (int i = 0; i < 7; i++) {
        EXPECT_EQ(c.ends, 0);
        s.now += 9 * BT_NS_PER_S;
        beat.u.beat.progress    = 1 + (uint64_t)i;
        beat.u.beat.prompt_rows = 1 + (uint64_t)i;
        for (uint32_t rank = 0; rank < 2; rank++)
            sim_tell(&s, rank, beat);
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(c.ends, 1);
    EXPECT_HAS(c.message, "decoding");
    sim_fini(&s);
}

static const bt_test TESTS[] = {
    BT_TEST(relay_quiet_rank_with_work_is_stuck),
    BT_TEST(relay_of_stuck_ranks_the_silent_one_goes),
    BT_TEST(relay_own_silence_is_not_taken_for_that_of_a_rank),
    BT_TEST(relay_own_silence_is_not_taken_for_that_of_a_spare),
    BT_TEST(relay_own_silence_is_no_wait_for_room),
    BT_TEST(relay_stalled_request_fails_alone),
    BT_TEST(relay_long_prefill_is_no_stall),
    BT_TEST(relay_prompts_of_others_do_not_hide_a_stall),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
