/* Ranks are silent, hang, or are waited for: whom the relay removes, and when. */
#include "coordinator/relay.h"

#include "tests/coordinator/relay_sim.h"

/* Whatever befalls the others meanwhile: new epochs are no sign of its life.  Nobody is silent who
 * is lost, or has a seat and no work. */
static void relay_silent_spare_is_removed(void)
{
    sim s;

    sim_init_as(&s, 1, 3, 6, 32, true);
    for (uint32_t second = 1; second <= 32; second++) {
        s.now += BT_NS_PER_S;
        for (uint32_t rank = 0; rank < (second < 9 ? 5 : 4); rank++)
            sim_tell(&s, rank, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = second}});
        if (second == 8) sim_lose(&s, 1);
        if (second == 9) bt_relay_ready(s.relay, 4, s.now); /* it takes the seat */
        if (second == 31) sim_lose(&s, 4);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 20 ? 0 : 1);
    }
    EXPECT_EQ(s.last_stuck, 5);
    sim_fini(&s);
}

/* Its counter stands still where its step thread does. */
static void relay_beats_are_progress_while_their_counter_moves(void)
{
    sim        s;
    sim_client c;

    sim_init_as(&s, 0, 0, 2, 32, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    for (uint32_t second = 1; second <= 50; second++) {
        s.now += BT_NS_PER_S;
        for (uint32_t rank = 0; rank < 2; rank++)
            sim_tell(&s, rank,
                     (bt_up){.kind = BT_UP_BEAT, .u.beat.progress = second < 30 ? second : 30});
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 50 ? 0 : 1);
    }
    sim_fini(&s);
}

/* Both decode ranks have work and no progress: the one that does not even beat is to blame. */
static void relay_of_stuck_ranks_the_most_silent_is_removed(void)
{
    sim        s;
    sim_client c[2];

    sim_init_as(&s, 1, 2, 3, 32, true);
    EXPECT_EQ(sim_submit(&s, &c[0], "a", 6, 10, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &c[1], "b", 6, 10, 100), BT_OK);
    for (uint32_t second = 1; second <= 20; second++) {
        s.now += BT_NS_PER_S;
        for (uint32_t rank = 0; rank < 2; rank++)
            sim_tell(&s, rank, (bt_up){.kind = BT_UP_BEAT});
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 2);
    sim_fini(&s);
}

/* Where nobody takes its place the cell ends; a spare's silence is no reason for that. */
static void relay_that_replaces_nobody_names_a_stuck_rank_once(void)
{
    sim        s;
    sim_client c;

    sim_init(&s, 1, 1, 3, 32);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    for (uint32_t second = 1; second <= 30; second++) {
        s.now += BT_NS_PER_S;
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 20 ? 0 : 1);
    }
    EXPECT_EQ(s.last_stuck, 1);
    sim_fini(&s);
}

/* Ranks that could not go on without a lost one have their quiet time again. */
static void relay_lost_rank_is_no_fault_of_those_that_waited(void)
{
    sim        s;
    sim_client c;

    sim_init_as(&s, 1, 2, 3, 32, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK); /* rank 1 decodes it */
    for (uint32_t second = 1; second <= 30; second++) {
        s.now += BT_NS_PER_S;
        if (second == 10) sim_lose(&s, 2);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 30 ? 0 : 1);
    }
    sim_fini(&s);
}

static bt_up expired(uint32_t epoch, uint32_t n, uint32_t a, uint32_t b)
{
    bt_up m = {.kind = BT_UP_EXPIRED};

    m.u.expired.epoch    = epoch;
    m.u.expired.n        = n;
    m.u.expired.ranks    = bt_calloc(2, sizeof(uint32_t));
    m.u.expired.ranks[0] = a;
    m.u.expired.ranks[1] = b;
    m.u.expired.what     = bt_strdup("experts");
    return m;
}

/* Ranks 2..5 decode.  Who is removed, and when. */
static void relay_expired_waits_remove_whom_most_wait_for(void)
{
    static const struct {
        uint32_t n, waiter[3], named[3][2], n_named[3];
        uint32_t lost; /* 6: nobody */
        bool     at_once;
    } cases[] = {
        {3, {2, 3, 5}, {{4, 0}, {4, 0}, {4, 0}}, {1, 1, 1}, 4, true },
        {2, {2, 3},    {{4, 0}, {4, 5}},         {1, 2},    4, true },
        {2, {2, 3},    {{4, 5}, {4, 5}},         {2, 2},    5, true }, /* a tie: the higher one */
        {2, {2, 5},    {{4, 5}, {2, 3}},         {2, 2},    4, true }, /* a tie: a silent one */
        {3, {2, 2, 3}, {{4, 0}, {4, 0}, {5, 0}}, {1, 1, 1}, 5, true }, /* twice is once: a tie */
        {2, {2, 3},    {{4, 4}, {5, 0}},         {2, 1},    5, true }, /* also in one report */
        {2, {2, 5},    {{5, 0}, {2, 0}},         {1, 1},    5, false}, /* both speak: the higher */
        {1, {2},       {{3, 0}},                 {1},       3, false}, /* the others say nothing */
        {3, {2, 3, 4}, {{6, 9}, {3, 1}, {4, 4}}, {2, 2, 2}, 6, false}, /* nobody of the group */
        {3, {2, 3, 4}, {{5, 0}, {2, 0}, {2, 0}}, {1, 1, 1}, 5, true }, /* 2 is held up by 5 */
        {3, {2, 3, 4}, {{3, 0}, {5, 0}, {2, 3}}, {1, 1, 2}, 5, true }, /* as 3 is */
        {3, {2, 3, 4}, {{3, 5}, {2, 0}, {2, 0}}, {2, 1, 1}, 2, true }, /* 2 cannot be reached */
        {3, {2, 3, 4}, {{3, 0}, {5, 0}, {2, 2}}, {1, 1, 2}, 5, true }, /* 2 by 3, and 3 by 5 */
        {3, {2, 3, 4}, {{2, 5}, {2, 0}, {2, 0}}, {2, 1, 1}, 5, true }, /* itself it does not name */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sim      s;
        uint32_t lost = cases[i].lost, taken[2];

        sim_init_as(&s, 2, 4, 6, 32, true);
        sim_tell(&s, 2, expired(EPOCH, 1, 3, 0)); /* of another epoch: not heard */
        for (uint32_t k = 0; k < cases[i].n; k++)
            sim_tell(&s, cases[i].waiter[k],
                     expired(EPOCH - 1, cases[i].n_named[k], cases[i].named[k][0],
                             cases[i].named[k][1]));
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, cases[i].at_once ? 1 : 0);
        s.now += 101 * BT_NS_PER_MS;
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, lost < 6);
        if (lost < 6) EXPECT_EQ(s.last_stuck, lost);
        bt_relay_count_seats(s.relay, taken);
        EXPECT(taken[0] == 2 && taken[1] == (lost < 6 ? 3u : 4u));
        EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], lost < 6 ? 5u : 6u); /* all that are left */
        s.now += BT_NS_PER_S;
        bt_relay_tick(s.relay, s.now); /* decided once */
        EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], lost < 6 ? 5u : 6u);
        sim_fini(&s);
    }
}

/* Each waits for the next: of equal ones the highest is it, wherever one begins to ask. */
static void relay_of_a_ring_whom_most_wait_for_is_removed(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    for (uint32_t rank = 2; rank < 6; rank++)
        sim_tell(&s, rank, expired(EPOCH - 1, 1, rank == 5 ? 2 : rank + 1, 0));
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 5);
    sim_fini(&s);
}

/* Rank 4 waits for what rank 5 has sent: the others are further, and wait for rank 4 in the end.
 * Of the other group, which has not got as far, rank 2 is still to speak. */
static void relay_of_a_ring_who_has_got_least_far_is_removed(void)
{
    static const uint64_t n_met[] = {8, 7, 9, 8};
    sim                   s;

    sim_init_as(&s, 3, 4, 7, 32, true);
    sim_tell(&s, 2, (bt_up){.kind = BT_UP_BEAT});
    sim_tell(&s, 0, expired(EPOCH - 1, 1, 1, 0));
    sim_tell(&s, 1, expired(EPOCH - 1, 1, 2, 0));
    for (uint32_t rank = 3; rank < 7; rank++) {
        bt_up m = expired(EPOCH - 1, 1, rank == 6 ? 3 : rank + 1, 0);

        m.u.expired.n_met = n_met[rank - 3];
        sim_tell(&s, rank, m);
    }
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 4);
    sim_fini(&s);
}

/* Rank 3 has waited for two, of which rank 5 waits for the other: if it beats it is given time to
 * say so, after the verdict's time too. */
static void relay_verdict_waits_for_who_may_report(void)
{
    for (int beats = 0; beats < 2; beats++) {
        sim s;

        sim_init_as(&s, 3, 3, 6, 32, true);
        for (int half = 0; half < 2; half++) {
            if (beats) sim_tell(&s, 5, (bt_up){.kind = BT_UP_BEAT});
            sim_tell(&s, 3, expired(EPOCH - 1, 2, 4, 5));
            bt_relay_tick(s.relay, s.now);
            EXPECT_EQ(s.n_stuck, !beats);
            if (!beats) EXPECT_EQ(s.last_stuck, 5);
            s.now += 200 * BT_NS_PER_MS;
        }
        sim_tell(&s, 5, expired(EPOCH - 1, 1, 4, 0));
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, 1);
        if (beats) EXPECT_EQ(s.last_stuck, 4);
        sim_fini(&s);
    }
}

/* Rank 3 beats and does not report: soon while it gets on, since it does not wait for anybody then;
 * else after the time that silent ranks are given. */
static void relay_who_beats_and_does_not_report_is_removed(void)
{
    for (int waits = 0; waits < 2; waits++) {
        sim      s;
        uint32_t until_ms = 400;

        sim_init_as(&s, 2, 4, 6, 32, true);
        if (waits) until_ms = 100 + (uint32_t)(s.cfg.rank_quiet_ns / BT_NS_PER_MS);
        sim_tell(&s, 2, expired(EPOCH - 1, 1, 3, 0));
        for (uint32_t ms = 0; ms <= until_ms; ms += 100) {
            sim_tell(&s, 3,
                     (bt_up){.kind = BT_UP_BEAT, .u.beat.progress = waits ? 1 : 1 + ms / 100});
            bt_relay_tick(s.relay, s.now);
            EXPECT_EQ(s.n_stuck, ms == until_ms);
            s.now += 100 * BT_NS_PER_MS;
        }
        EXPECT_EQ(s.last_stuck, 3);
        sim_fini(&s);
    }
}

/* From the first of them on, however many come until then. */
static void relay_verdict_comes_in_time(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 1, 3, 0));
    s.now += 60 * BT_NS_PER_MS;
    sim_tell(&s, 4, expired(EPOCH - 1, 1, 3, 0));
    s.now += 41 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 3);
    sim_fini(&s);
}

/* Nor is a rank to blame that the cell has not: the others begin anew. */
static void relay_that_replaces_nobody_hears_no_blame(void)
{
    for (int replace = 0; replace < 2; replace++) {
        sim s;

        sim_init_as(&s, 1, 2, 3, 32, replace != 0);
        sim_tell(&s, 1, expired(EPOCH - 1, 1, replace != 0 ? INT32_MAX : 2, 0));
        s.now += 101 * BT_NS_PER_MS;
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, 0);
        EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], replace != 0 ? 3u : 0u);
        sim_fini(&s);
    }
}

/* Rank 5 was waited for as well, but in a group that is no more. */
static void relay_blame_is_forgotten_with_its_epoch(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 2, 4, 5));
    sim_tell(&s, 3, expired(EPOCH - 1, 1, 4, 0));
    s.now += 101 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT(s.n_stuck == 1 && s.last_stuck == 4);
    sim_tell(&s, 2, expired(EPOCH + 1, 1, 3, 0));
    s.now += 101 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT(s.n_stuck == 2 && s.last_stuck == 3);
    sim_fini(&s);

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 1, 4, 0));
    sim_lose(&s, 0); /* which is the epoch of another group */
    s.now += 101 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT(s.n_stuck == 1 && s.last_stuck == 4);
    sim_fini(&s);
}

/* A decode rank does not wait for rank 1, which prefills: it has said nothing of use. */
static void relay_ranks_blame_none_of_another_group(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 1, 1, 0));
    sim_tell(&s, 0, expired(EPOCH - 1, 0, 0, 0));
    s.now += 101 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    sim_fini(&s);
}

/* The rank reads experts of a lost one. */
static void tell_reads(sim *s, uint32_t rank)
{
    bt_up progress = {
        .kind = BT_UP_PROGRESS, .u.progress = {1, 2}
    };

    sim_tell(s, rank, progress);
}

/* Ranks 0 and 1 have waited for rank 2 for too long. */
static void tell_of_rank_2(sim *s, uint32_t epoch)
{
    sim_tell(s, 0, expired(epoch, 1, 2, 0));
    sim_tell(s, 1, expired(epoch, 1, 2, 0));
}

/* While rank 2 reads experts of a lost one, the others of its group wait for it, and say so when
 * their waits expire.  Nobody is removed for that, also not when it takes longer than ranks may be
 * silent; once it hangs it is. */
static void relay_waits_for_a_rank_that_reads(void)
{
    sim        s;
    sim_client client;
    uint32_t   epoch = EPOCH - 1;

    sim_init_as(&s, 0, 0, 3, 32, true);
    EXPECT_EQ(sim_submit(&s, &client, "long", 5, 5, 9), BT_OK);
    for (int turn = 0; turn < 60; turn++) {
        s.now += BT_NS_PER_S;
        tell_reads(&s, 2);
        if (turn % 10 == 9) {
            tell_of_rank_2(&s, epoch);
            epoch = EPOCH + 1 + (uint32_t)turn / 10; /* they begin anew */
        }
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, 0);
        EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], 3 * (((uint32_t)turn + 1) / 10));
    }
    for (uint64_t ns = 0; ns < s.cfg.rank_quiet_ns; ns += BT_NS_PER_S) { /* so does rank 1, alone */
        s.now += BT_NS_PER_S;
        tell_reads(&s, 1);
        bt_relay_tick(s.relay, s.now);
    }
    tell_of_rank_2(&s, epoch);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 2);
    sim_fini(&s);
}

/* Another group does not wait for it. */
static void relay_rank_that_reads_excuses_its_own_group(void)
{
    sim        s;
    sim_client c;

    sim_init_as(&s, 1, 1, 2, 32, true);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    for (uint32_t second = 1; second <= 20; second++) {
        s.now += BT_NS_PER_S;
        tell_reads(&s, 0);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, second < 20 ? 0 : 1);
    }
    EXPECT_EQ(s.last_stuck, 1);
    sim_fini(&s);
}

/* It has time to come; then it is to blame at once. */
static void relay_a_rank_that_has_read_is_one_like_others(void)
{
    sim s;

    sim_init_as(&s, 0, 0, 3, 32, true);
    tell_reads(&s, 2);
    sim_tell(&s, 2, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
    s.now += s.cfg.rank_quiet_ns - 1;
    tell_of_rank_2(&s, EPOCH - 1);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    s.now += 1;
    tell_of_rank_2(&s, EPOCH + 1);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.last_stuck, 2);
    EXPECT_EQ(s.n_stuck, 1);
    sim_fini(&s);
}

/* Who has been in an exchange of this epoch knows that rank 2 was: it reads no more, and is to
 * blame at once, also in the next epoch if another one was in this; unless it reads again. */
static void relay_a_rank_that_has_come_to_an_exchange_is_not_excused(void)
{
    for (int how = 0; how < 3; how++) {
        int   removed = how > 0, again = how == 2;
        sim   s;
        bt_up m = expired(EPOCH - 1, (uint32_t)removed + 1, 3, 2);

        sim_init_as(&s, 0, 0, 4, 32, true);
        tell_reads(&s, 2);
        m.u.expired.n_met = 1;
        if (removed == 0) m.u.expired.ranks[0] = 2;
        sim_tell(&s, 0, m);
        sim_tell(&s, 1, expired(EPOCH - 1, 1, removed == 0 ? 2 : 3, 0));
        s.now += 101 * BT_NS_PER_MS;
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, 1);
        EXPECT_EQ(s.last_stuck, 2 + (uint32_t)removed);
        if (removed != 0) {
            if (again) tell_reads(&s, 2);
            tell_of_rank_2(&s, EPOCH + 1);
            bt_relay_tick(s.relay, s.now);
            EXPECT_EQ(s.n_stuck, again ? 1 : 2);
            EXPECT_EQ(s.last_stuck, again ? 3 : 2);
        }
        sim_fini(&s);
    }
}

/* It has said so: what the others wait for in this epoch may have been that, in the next one it is
 * not; but if it reads again, or has not said so yet, it is. */
static void relay_a_rank_that_has_read_all_is_excused_until_the_next_epoch(void)
{
    enum { HAS_READ, READS_AGAIN, READS };
    for (int how = HAS_READ; how <= READS; how++) {
        sim s;

        sim_init_as(&s, 0, 0, 4, 32, true);
        tell_reads(&s, 2);
        if (how != READS) sim_tell(&s, 2, (bt_up){.kind = BT_UP_PROGRESS});
        tell_of_rank_2(&s, EPOCH - 1);
        s.now += 101 * BT_NS_PER_MS;
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, 0);
        sim_lose(&s, 3);
        if (how == READS_AGAIN) tell_reads(&s, 2);
        tell_of_rank_2(&s, EPOCH + 2);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, how == HAS_READ);
        sim_fini(&s);
    }
}

/* That it has read all is the end of it, and no sign of its life for longer. */
static void relay_a_rank_that_has_read_all_is_excused_for_no_longer(void)
{
    sim s;

    sim_init_as(&s, 0, 0, 3, 32, true);
    tell_reads(&s, 2);
    s.now += s.cfg.rank_quiet_ns - 1;
    sim_tell(&s, 2, (bt_up){.kind = BT_UP_PROGRESS});
    s.now += 1;
    tell_of_rank_2(&s, EPOCH - 1);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 2);
    sim_fini(&s);
}

/* It has heard of nobody meanwhile: a rank may read still, one that never did is to blame at once.
 */
static void relay_that_stood_still_blames_no_rank_that_reads(void)
{
    for (int reads = 0; reads < 2; reads++) {
        sim s;

        sim_init_as(&s, 0, 0, 3, 32, true);
        bt_relay_tick(s.relay, s.now);
        if (reads) tell_reads(&s, 2);
        s.now += 2 * s.cfg.rank_quiet_ns;
        tell_of_rank_2(&s, EPOCH - 1);
        bt_relay_tick(s.relay, s.now);
        EXPECT_EQ(s.n_stuck, !reads);
        sim_fini(&s);
    }
}

/* Rank 5 has waited for rank 4 as well, and was about to say so when the coordinator stood still,
 * which hears one message of those that have come before it looks at the clock. */
static void relay_that_stood_still_hears_what_was_said_meanwhile(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 5, (bt_up){.kind = BT_UP_BEAT});
    sim_tell(&s, 2, expired(EPOCH - 1, 2, 4, 5));
    bt_relay_tick(s.relay, s.now);
    s.now += 3 * BT_NS_PER_S;
    sim_tell(&s, 3, expired(EPOCH - 1, 2, 4, 5));
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    sim_tell(&s, 5, expired(EPOCH - 1, 1, 4, 0));
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 4);
    sim_fini(&s);
}

/* Rank 3 waited for rank 5, as rank 4 did, and neither had been heard. */
static void relay_that_stood_still_waits_for_what_is_said(void)
{
    sim s;

    sim_init_as(&s, 2, 4, 6, 32, true);
    sim_tell(&s, 2, expired(EPOCH - 1, 1, 3, 0));
    s.now += 50 * BT_NS_PER_MS;
    bt_relay_tick(s.relay, s.now);
    s.now += 3 * BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    sim_tell(&s, 4, expired(EPOCH - 1, 1, 5, 0));
    sim_tell(&s, 3, expired(EPOCH - 1, 1, 5, 0));
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 5);
    sim_fini(&s);
}

/* While nobody heard them ranks 0 and 1 gave up waiting for rank 3, which read and came late: it
 * went on with what they had sent, as rank 2 did, until both waited for them.  All live. */
static void relay_a_rank_that_came_late_is_not_to_blame(void)
{
    bt_up second = expired(EPOCH - 1, 1, 1, 0), last = expired(EPOCH - 1, 2, 0, 1);
    sim   s;

    sim_init_as(&s, 0, 0, 4, 32, true);
    tell_reads(&s, 3);
    sim_tell(&s, 0, expired(EPOCH - 1, 1, 3, 0));
    sim_tell(&s, 1, expired(EPOCH - 1, 1, 3, 0));
    second.u.expired.n_met = 1;
    last.u.expired.n_met   = 2;
    sim_tell(&s, 2, second);
    sim_tell(&s, 3, (bt_up){.kind = BT_UP_PROGRESS});
    sim_tell(&s, 3, last);
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    EXPECT_EQ(s.n_down[BT_DOWN_REGROUP], 4);
    for (uint32_t rank = 0; rank < 3; rank++) /* once */
        sim_tell(&s, rank, expired(EPOCH + 1, 1, 3, 0));
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 1);
    EXPECT_EQ(s.last_stuck, 3);
    sim_fini(&s);
}

/* What a tick does for one cell of several may take until after the tick's own time: a request that
 * comes meanwhile is not older than time itself, and neither are the ranks that it wakes. */
static void relay_a_tick_of_before_finds_nobody_silent(void)
{
    sim        s;
    sim_client client;
    uint64_t   ticked;

    sim_init_as(&s, 1, 1, 2, 32, true);
    bt_relay_tick(s.relay, s.now);
    ticked = s.now += BT_NS_PER_S; /* the next scan is due */
    s.now += BT_NS_PER_MS;
    EXPECT_EQ(sim_submit(&s, &client, "late", 5, 5, 9), BT_OK);
    bt_relay_tick(s.relay, ticked);
    EXPECT_EQ(s.n_stuck, 0);
    sim_settle(&s);
    sim_expect_done(&client);
    sim_fini(&s);
}

static const bt_test tests[] = {
    BT_TEST(relay_silent_spare_is_removed),
    BT_TEST(relay_beats_are_progress_while_their_counter_moves),
    BT_TEST(relay_of_stuck_ranks_the_most_silent_is_removed),
    BT_TEST(relay_that_replaces_nobody_names_a_stuck_rank_once),
    BT_TEST(relay_lost_rank_is_no_fault_of_those_that_waited),
    BT_TEST(relay_expired_waits_remove_whom_most_wait_for),
    BT_TEST(relay_of_a_ring_whom_most_wait_for_is_removed),
    BT_TEST(relay_of_a_ring_who_has_got_least_far_is_removed),
    BT_TEST(relay_verdict_waits_for_who_may_report),
    BT_TEST(relay_who_beats_and_does_not_report_is_removed),
    BT_TEST(relay_verdict_comes_in_time),
    BT_TEST(relay_that_replaces_nobody_hears_no_blame),
    BT_TEST(relay_blame_is_forgotten_with_its_epoch),
    BT_TEST(relay_ranks_blame_none_of_another_group),
    BT_TEST(relay_waits_for_a_rank_that_reads),
    BT_TEST(relay_rank_that_reads_excuses_its_own_group),
    BT_TEST(relay_a_rank_that_has_read_is_one_like_others),
    BT_TEST(relay_a_rank_that_has_come_to_an_exchange_is_not_excused),
    BT_TEST(relay_a_rank_that_has_read_all_is_excused_until_the_next_epoch),
    BT_TEST(relay_a_rank_that_has_read_all_is_excused_for_no_longer),
    BT_TEST(relay_that_stood_still_blames_no_rank_that_reads),
    BT_TEST(relay_that_stood_still_waits_for_what_is_said),
    BT_TEST(relay_that_stood_still_hears_what_was_said_meanwhile),
    BT_TEST(relay_a_rank_that_came_late_is_not_to_blame),
    BT_TEST(relay_a_tick_of_before_finds_nobody_silent),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}
