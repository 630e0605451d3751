/* The request state machine in a simulated cell. */
#include "coordinator/relay.h"

#include "tests/coordinator/relay_sim.h"

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

/* Moves a fresh request of a 1+1 cell to a state by hand. */
typedef enum { AT_QUEUE, AT_RESERVING, AT_PREFILL, AT_DECODE, AT_LAST } at;

static void bring(sim *s, sim_client *c, at state)
{
    sim_init(s, 1, 1, 2, 8);
    if (state == AT_QUEUE) { /* another one has all the pages */
        static sim_client big;

        EXPECT_EQ(sim_submit(s, &big, "big", 28, 4, 100), BT_OK);
    }
    EXPECT_EQ(sim_submit(s, c, "a", 6, 10, 100), BT_OK);
    if (state >= AT_PREFILL) sim_tell(s, 1, sim_ticket(c->number, 4));
    if (state >= AT_DECODE)
        sim_tell(s, 0, sim_tokens(c->number, 6, sim_token(6, 0), BT_FINISH_NONE));
}

static void relay_abort_ends_every_state_and_frees_it(void)
{
    static const uint32_t want_aborts[AT_LAST] = {0, 1, 2, 2}; /* ranks that were told of it */

    for (at state = AT_QUEUE; state < AT_LAST; state++)
        for (int by_name = 0; by_name < 2; by_name++) {
            sim        s;
            sim_client c, other;

            bring(&s, &c, state);
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

/* With alternatives the decode rank does not repeat the first token, and may be done before it
 * comes. */
static void relay_decode_rank_may_be_done_before_the_first_token_comes(void)
{
    sim        s;
    sim_client c;
    bt_up      gone = {.kind = BT_UP_RELEASED};

    bring(&s, &c, AT_PREFILL);
    sim_tell(&s, 1, sim_tokens(c.number, 7, sim_token(6, 1), BT_FINISH_NONE));
    sim_tell(&s, 1, sim_tokens(c.number, 8, sim_token(6, 2), BT_FINISH_EOS));
    gone.u.released.request = c.number;
    gone.u.released.epoch   = EPOCH;
    sim_tell(&s, 1, gone);
    EXPECT_EQ(c.ends, 0);
    sim_tell(&s, 0, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.n, 3);
    EXPECT_EQ(c.end.code, GRPC_STATUS_OK);
    sim_fini(&s);
}

/* What the client ends itself (a stop string) ends well, and every rank that holds it is told. */
static void relay_client_may_end_a_request_with_any_token(void)
{
    for (uint32_t cut = 1; cut <= 3; cut++) {
        sim        s;
        sim_client c;

        bring(&s, &c, AT_PREFILL);
        c.cut_at = cut;
        for (uint32_t i = 0; i < 5; i++) /* those that come behind it are dropped */
            sim_tell(&s, i == 0 ? 0 : 1,
                     sim_tokens(c.number, 6 + i, sim_token(6, i), BT_FINISH_NONE));
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.n, (int)cut);
        EXPECT_EQ(c.end.code, GRPC_STATUS_OK);
        EXPECT_EQ(c.end.finish, BT_FINISH_STOP_STRING);
        EXPECT_EQ(s.n_down[BT_DOWN_ABORT], 2);
        sim_settle(&s);
        sim_expect_idle(&s);
        sim_fini(&s);
    }
}

static void relay_failure_of_a_rank_ends_its_request_in_every_state(void)
{
    for (at state = AT_RESERVING; state < AT_LAST; state++) {
        sim        s;
        sim_client c;

        bring(&s, &c, state);
        sim_tell(&s, 1, sim_failed(c.number, 14));
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, GRPC_STATUS_UNAVAILABLE);
        EXPECT_HAS(c.message, "broken");
        sim_settle(&s);
        sim_expect_idle(&s);
        sim_fini(&s);
    }
}

static void relay_stop_ends_everything_once(void)
{
    for (at state = AT_QUEUE; state < AT_LAST; state++) {
        sim        s;
        sim_client c, late;

        bring(&s, &c, state);
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
        sim_fini(&s);
    }
}

static void relay_refused_ticket_waits_and_goes_on_with_a_new_number(void)
{
    sim        s;
    sim_client c;

    bring(&s, &c, AT_RESERVING);
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

static void relay_tokens_are_ordered_and_single(void)
{
    sim        s;
    sim_client c;

    bring(&s, &c, AT_PREFILL);
    sim_tell(&s, 1, sim_tokens(c.number, 8, 12, BT_FINISH_NONE)); /* before its turn */
    sim_tell(&s, 1, sim_tokens(c.number, 8, 12, BT_FINISH_NONE));
    EXPECT_EQ(c.n, 0);
    sim_tell(&s, 1, sim_tokens(c.number, 6, 10, BT_FINISH_NONE));
    EXPECT_EQ(c.n, 1);
    sim_tell(&s, 0, sim_tokens(c.number, 6, 10, BT_FINISH_NONE)); /* the first one again */
    EXPECT_EQ(c.n, 1);
    sim_tell(&s, 1, sim_tokens(c.number, 7, 11, BT_FINISH_NONE));
    EXPECT_EQ(c.n, 3);
    sim_tell(&s, 1, sim_tokens(c.number, 9, 13, BT_FINISH_EOS));
    EXPECT_EQ(c.n, 4);
    EXPECT_EQ(c.ends, 1);
    sim_tell(&s, 1, sim_tokens(c.number, 10, 14, BT_FINISH_NONE)); /* past the end */
    EXPECT_EQ(c.n, 4);
    EXPECT(c.ids[0] == 10 && c.ids[1] == 11 && c.ids[2] == 12 && c.ids[3] == 13);
    sim_fini(&s);
}

static void relay_absurd_tokens_end_their_request(void)
{
    const uint32_t FIRST = sim_token(6, 0);
    const struct {
        uint32_t  rank, position, id;
        bt_finish finish;
        bool      ends;
    } cases[] = {
        {0, 5,  1,         BT_FINISH_NONE, true }, /* of the prompt */
        {0, 16, 1,         BT_FINISH_NONE, true }, /* past max_tokens */
        {0, 15, 1,         BT_FINISH_NONE, true }, /* the last one without an end */
        {0, 6,  SIM_VOCAB, BT_FINISH_NONE, true }, /* no such id */
        {0, 6,  1,         BT_FINISH_NONE, true }, /* another first token than before */
        {1, 6,  FIRST,     BT_FINISH_NONE, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sim        s;
        sim_client c;

        bring(&s, &c, AT_DECODE);
        sim_tell(&s, cases[i].rank,
                 sim_tokens(c.number, cases[i].position, cases[i].id, cases[i].finish));
        EXPECT_EQ(c.ends, cases[i].ends);
        if (cases[i].ends) EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        EXPECT_EQ(c.n, 1);
        sim_fini(&s);
    }
}

static void relay_endless_gap_fails_the_request(void)
{
    sim        s;
    sim_client c;

    sim_init(&s, 1, 1, 2, 1000);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 1000, 5000), BT_OK);
    sim_tell(&s, 1, sim_ticket(c.number, 252));
    for (uint32_t i = 0; i < 300 && c.ends == 0; i++)
        sim_tell(&s, 1, sim_tokens(c.number, 8 + i, 1, BT_FINISH_NONE));
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    EXPECT_HAS(c.message, "token 6 of choice 0 is missing");
    sim_fini(&s);
}

static void relay_bad_tickets_fail_the_request(void)
{
    sim        s;
    sim_client c;
    bt_up      m;

    bring(&s, &c, AT_RESERVING);
    sim_tell(&s, 0, sim_ticket(c.number, 4)); /* by the wrong rank: not heard */
    EXPECT_EQ(s.n_down[BT_DOWN_PREFILL], 0);
    sim_tell(&s, 1, sim_ticket(c.number, 1)); /* 6 prompt tokens need 2 pages */
    EXPECT_EQ(c.ends, 1);
    sim_fini(&s);

    bring(&s, &c, AT_RESERVING);
    m                      = sim_ticket(c.number, 4);
    m.u.ticket.pages[3].id = 8; /* of pages 0 to 7 */
    sim_tell(&s, 1, m);
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    sim_fini(&s);
}

static void relay_rank_that_drops_a_live_request_fails_it(void)
{
    sim        s;
    sim_client c;

    bring(&s, &c, AT_DECODE);
    sim_tell(&s, 0, sim_released(c.number)); /* prefill is done: fine */
    EXPECT_EQ(c.ends, 0);
    sim_tell(&s, 1, sim_released(c.number));
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);
    sim_fini(&s);
}

static void relay_placement_takes_the_least_loaded_ranks(void)
{
    sim        s;
    sim_client c[4];

    sim_init(&s, 2, 2, 4, 64);
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 40, 8, 100), BT_OK); /* decode 2, prefill 0 */
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 44, 8, 100), BT_OK); /* decode 3, prefill 1 */
    EXPECT_EQ(sim_submit(&s, &c[2], "2", 8, 8, 100), BT_OK);  /* decode 2, prefill 0 */
    EXPECT_EQ(s.ranks[2].n_down, 5);                          /* three wakes, two reserves */
    EXPECT_EQ(s.ranks[3].n_down, 4);
    EXPECT_EQ(s.ranks[2].down[1].u.reserve.prefill_rank, 0);
    EXPECT_EQ(s.ranks[3].down[2].u.reserve.prefill_rank, 1);
    EXPECT_EQ(s.ranks[2].down[4].u.reserve.prefill_rank, 0);
    EXPECT_EQ(s.ranks[0].n_down, 0); /* prefill ranks are woken with their work */
    bt_relay_stop(s.relay, GRPC_STATUS_UNAVAILABLE, "end");
    sim_fini(&s);
}

static void relay_queue_is_first_come_first_served(void)
{
    sim        s;
    sim_client big, small, first;

    sim_init(&s, 1, 1, 2, 8);
    EXPECT_EQ(sim_submit(&s, &first, "first", 22, 2, 100), BT_OK); /* 6 of 8 pages */
    EXPECT_EQ(sim_submit(&s, &big, "big", 22, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &small, "small", 1, 2, 100), BT_OK); /* would fit, but is not first */
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT_EQ(sim_loads(&s).n_waiting, 3);
    sim_settle(&s);
    sim_expect_done(&first);
    sim_expect_done(&big);
    sim_expect_done(&small);
    sim_expect_idle(&s);
    sim_fini(&s);
}

static void relay_prefill_window_holds_work_back(void)
{
    sim        s;
    sim_client c[3];

    sim_init(&s, 1, 1, 2, 200);
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 100, 2, 100), BT_OK); /* beyond the window, but alone */
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 30, 2, 100), BT_OK);
    EXPECT_EQ(sim_submit(&s, &c[2], "2", 30, 2, 100), BT_OK);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    sim_settle(&s);
    for (int i = 0; i < 3; i++)
        sim_expect_done(&c[i]);
    sim_expect_idle(&s);
    sim_fini(&s);
}

static void relay_queue_is_bounded_in_tokens_and_time(void)
{
    sim        s;
    sim_client big, waiting, too_much;

    sim_init(&s, 1, 1, 2, 8);
    bt_relay_destroy(s.relay);
    s.cfg.queue_tokens = 10;
    s.cfg.ranks        = s.limits;
    EXPECT_EQ(bt_relay_create(
                  &s.cfg,
                  &(bt_relay_events){sim_send, sim_on_token, sim_on_end, sim_on_stuck, &s, NULL},
                  &s.relay),
              BT_OK);
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
    EXPECT_EQ(big.ends, 0);
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
    EXPECT_EQ(twin.end.code, GRPC_STATUS_INVALID_ARGUMENT);
    sim_settle(&s);
    sim_expect_done(&a);
    EXPECT_EQ(sim_submit(&s, &twin, "same", 4, 4, 100), BT_OK);
    sim_settle(&s);
    sim_expect_done(&twin);
    sim_fini(&s);
}

static void relay_quiet_rank_with_work_is_stuck(void)
{
    sim        s;
    sim_client c;

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
    for (int i = 0; i < 3; i++) { /* beats that show no progress */
        EXPECT_EQ(s.n_stuck, 0);
        s.now += 9 * BT_NS_PER_S;
        sim_tell(&s, 0, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 5}});
        sim_tell(&s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 100 + (uint64_t)i}});
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 1);
    sim_fini(&s);
}

/* It was stopped for long itself: what the ranks have said meanwhile is still to be read. */
static void relay_own_silence_is_not_taken_for_that_of_a_rank(void)
{
    sim        s;
    sim_client c;

    sim_init(&s, 1, 1, 2, 32);
    EXPECT_EQ(sim_submit(&s, &c, "a", 4, 4, 100), BT_OK);
    bt_relay_tick(s.relay, s.now);
    s.now += 50 * BT_NS_PER_S;
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(s.n_stuck, 0);
    for (int i = 0; i < 3; i++) { /* but from then on */
        EXPECT_EQ(s.n_stuck, 0);
        s.now += 9 * BT_NS_PER_S;
        bt_relay_tick(s.relay, s.now);
    }
    EXPECT_EQ(s.n_stuck, 1);
    sim_fini(&s);
}

static void relay_stalled_request_fails_alone(void)
{
    sim        s;
    sim_client c;

    bring(&s, &c, AT_PREFILL);
    for (uint64_t i = 1; i <= 7; i++) {
        s.now += 10 * BT_NS_PER_S;
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

static void relay_other_epochs_are_not_heard(void)
{
    sim        s;
    sim_client c;
    bt_up      m;

    bring(&s, &c, AT_RESERVING);
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
    sim_fini(&s);
}

/* Arrivals, aborts, refusals, failures and every order of messages that streams allow. */
/* A retracted request is placed again, before younger ones, with what its client has; the client
 * sees nothing of it. */
static void relay_retracted_request_replays(void)
{
    sim        s;
    sim_client c, young;
    uint64_t   first;
    bt_up      gone = {.kind = BT_UP_RETRACTED};

    for (int prefill_holds = 0; prefill_holds < 2; prefill_holds++) {
        const bt_down_reserve *again;

        bring(&s, &c, AT_DECODE);
        first = c.number;
        sim_tell(&s, 1, sim_tokens(first, 6, sim_token(6, 0), BT_FINISH_NONE));
        sim_tell(&s, 1, sim_tokens(first, 7, sim_token(6, 1), BT_FINISH_NONE));
        if (!prefill_holds) sim_tell(&s, 0, sim_released(first));
        gone.u.retracted.request = first + 7;
        gone.u.retracted.epoch   = EPOCH;
        sim_tell(&s, 1, gone); /* nobody of that number */
        gone.u.retracted.request = first;
        gone.u.retracted.epoch   = EPOCH - 1;
        sim_tell(&s, 1, gone); /* of another epoch */
        gone.u.retracted.epoch = EPOCH;
        sim_tell(&s, 0, gone); /* the wrong rank */
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
        sim_tell(&s, 1, gone);
        EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
        EXPECT_EQ(s.n_down[BT_DOWN_ABORT], (uint32_t)prefill_holds);
        again = &s.ranks[1].down[(s.ranks[1].down_at + s.ranks[1].n_down - 1) % FIFO].u.reserve;
        EXPECT(again->request > first && again->arrival == first);
        EXPECT(again->n_replay == 2 && again->replay[1] == sim_token(6, 1));
        EXPECT_EQ(c.ends, 0);
        EXPECT_EQ(sim_loads(&s).retracted, 1);
        EXPECT_EQ(sim_submit(&s, &young, "a", 2, 2, 100), BT_ERR_INVALID_ARG); /* its name lives */
        s.ranks[1].n_work = 0;
        sim_tell(&s, 1, sim_released(first));
        if (prefill_holds) sim_tell(&s, 0, sim_released(first));
        sim_tell(&s, 1, sim_tokens(first, 8, 0, BT_FINISH_NONE)); /* a late word: not heard */
        EXPECT_EQ(c.n, 2);
        bt_relay_abort_name(s.relay, "a", "asked");
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, GRPC_STATUS_CANCELLED);
        sim_fini(&s);
    }
}

/* The clock of the queue does not end what its client has begun to read. */
static void relay_retracted_request_outwaits_the_queue(void)
{
    sim        s;
    sim_client c;
    bt_up      gone = {.kind = BT_UP_RETRACTED};

    bring(&s, &c, AT_DECODE);
    gone.u.retracted.request = c.number;
    gone.u.retracted.epoch   = EPOCH;
    sim_tell(&s, 1, gone);
    sim_tell(&s, 1, sim_ticket(c.number + 1, 0)); /* refused: queued again */
    s.now += 31 * BT_NS_PER_S;
    sim_tell(&s, 1, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
    sim_tell(&s, 0, (bt_up){.kind = BT_UP_BEAT, .u.beat = {.progress = 1}});
    bt_relay_tick(s.relay, s.now);
    EXPECT_EQ(c.ends, 0);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 3);
    sim_fini(&s);
}

/* 6 prompt tokens are a full page and two rows: three choices take 1 + 3 of its 4 tokens' pages. */
static void bring_choices(sim *s, sim_client *c)
{
    sim_init(s, 1, 1, 2, 16);
    EXPECT_EQ(sim_submit_choices(s, c, "a", 6, 10, 100, 3), BT_OK);
    EXPECT_EQ(sim_loads(s).used_tokens, (1 + 3) * SIM_PAGE);
    sim_tell(s, 1, sim_ticket(c->number, 2));
    for (uint32_t i = 0; i < 3; i++)
        sim_tell(s, 0, sim_choice_token(c->number, i, 6, i, BT_FINISH_NONE));
}

static const bt_down *last_down(const sim *s, uint32_t rank)
{
    const sim_rank *k = &s->ranks[rank];

    return &k->down[(k->down_at + k->n_down - 1) % FIFO];
}

/* Each choice ends by itself; the request with the last of them. */
static void relay_choices_end_one_by_one(void)
{
    sim        s;
    sim_client c;

    bring_choices(&s, &c);
    c.cut_at = 2;
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 1);
    EXPECT_EQ(last_down(&s, 0)->u.prefill.n_choices, 3);
    sim_tell(&s, 1, sim_choice_token(c.number, 2, 8, 1, BT_FINISH_NONE)); /* before its turn */
    sim_tell(&s, 1, sim_choice_token(c.number, 2, 6, 2, BT_FINISH_NONE)); /* once more */
    sim_tell(&s, 1, sim_choice_token(c.number, 0, 7, 5, BT_FINISH_EOS));
    sim_tell(&s, 1, sim_choice_token(c.number, 0, 8, 5, BT_FINISH_NONE)); /* past its end */
    EXPECT(c.n_of[0] == 2 && c.n_of[1] == 1 && c.n_of[2] == 1);
    EXPECT_EQ(s.n_down[BT_DOWN_ABORT], 0);
    sim_tell(&s, 1, sim_choice_token(c.number, 1, 7, 5, BT_FINISH_NONE)); /* the client's own end */
    EXPECT_EQ(s.n_down[BT_DOWN_ABORT], 1);
    EXPECT_EQ(last_down(&s, 1)->u.abort.only_choice, 2);
    EXPECT_EQ(c.ends, 0);
    sim_tell(&s, 1, sim_choice_token(c.number, 2, 7, 5, BT_FINISH_NONE));
    EXPECT_EQ(c.n_of[2], 3);
    EXPECT_EQ(sim_submit(&s, &(sim_client){0}, "a", 2, 2, 100), BT_ERR_INVALID_ARG);
    sim_tell(&s, 1, sim_choice_token(c.number, 2, 9, 5, BT_FINISH_EOS));
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_OK);
    sim_tell(&s, 1, sim_released(c.number));
    sim_tell(&s, 0, sim_released(c.number));
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);
    sim_fini(&s);
}

/* A choice that has ended is not asked for again; of the others it is said what the client has. */
static void relay_retracted_choices_replay(void)
{
    sim                    s;
    sim_client             c;
    const bt_down_reserve *again;
    bt_up                  gone = {.kind = BT_UP_RETRACTED};

    bring_choices(&s, &c);
    sim_tell(&s, 1, sim_choice_token(c.number, 0, 7, 40, BT_FINISH_NONE));
    sim_tell(&s, 1, sim_choice_token(c.number, 1, 7, 41, BT_FINISH_EOS));
    gone.u.retracted.request = c.number;
    gone.u.retracted.epoch   = EPOCH;
    sim_tell(&s, 0, sim_released(c.number));
    sim_tell(&s, 1, gone);
    EXPECT_EQ(s.n_down[BT_DOWN_RESERVE], 2);
    again = &last_down(&s, 1)->u.reserve;
    EXPECT(again->n_choices == 2 && again->choices[0] == 0 && again->choices[1] == 2);
    EXPECT(again->n_replay == 3 && again->replay_lengths[0] == 2 && again->replay_lengths[1] == 1);
    EXPECT(again->replay[0] == 0 && again->replay[1] == 40 && again->replay[2] == 2);
    sim_tell(&s, 1, sim_released(c.number));
    bt_relay_abort_name(s.relay, "a", "asked");
    EXPECT_EQ(c.ends, 1);
    sim_fini(&s);
}

static void relay_absurd_choices_end_their_request(void)
{
    sim        s;
    sim_client c;

    bring_choices(&s, &c);
    sim_tell(&s, 1, sim_choice_token(c.number, 3, 6, 1, BT_FINISH_NONE));
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    EXPECT_HAS(c.message, "choice 3");
    sim_fini(&s);
    bring_choices(&s, &c);
    sim_tell(&s, 1, sim_choice_token(c.number, 0, 7, 1, BT_FINISH_EOS));
    sim_tell(&s, 1, sim_released(c.number)); /* two choices are still open */
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    sim_fini(&s);
}

/* Many growing requests on few pages: everybody ends with every token once. */
static void relay_retractions_lose_nothing(void)
{
    int n_retracted = 0;

    for (uint64_t seed = 1; seed <= 4; seed++) {
        enum { N = 60 };
        sim         s;
        sim_client *clients = calloc(N, sizeof(*clients));
        char        name[24];

        sim_init(&s, seed % 2 == 0 ? 0 : 1, seed % 2 == 0 ? 0 : 2, 3 - (seed % 2 == 0), 16);
        s.state = seed;
        for (int n = 0; n < N; n++) {
            snprintf(name, sizeof(name), "r%d", n);
            EXPECT_EQ(sim_submit(&s, &clients[n], name, 1 + sim_random(&s, 20),
                                 10 + sim_random(&s, 30), sim_random(&s, 60)),
                      BT_OK);
        }
        for (int i = 0; i < 2000 && sim_loads(&s).n_waiting + sim_loads(&s).n_running > 0; i++) {
            sim_settle(&s);
            s.now += 250 * BT_NS_PER_MS;
            bt_relay_tick(s.relay, s.now);
        }
        for (int n = 0; n < N; n++)
            sim_expect_done(&clients[n]);
        sim_settle(&s);
        sim_expect_idle(&s);
        n_retracted += s.n_retracted;
        sim_fini(&s);
        free(clients);
    }
    EXPECT(n_retracted > 20);
}

static void relay_placement_prefers_cached_prefixes(void)
{
    sim        s;
    sim_client c[3];

    sim_init(&s, 2, 2, 4, 64);
    EXPECT_EQ(sim_submit(&s, &c[0], "0", 13, 4, 100), BT_OK); /* decode 2, prefill 0 */
    sim_settle(&s);
    sim_expect_done(&c[0]);
    EXPECT_EQ(sim_submit(&s, &c[1], "1", 5, 4, 100), BT_OK); /* shares its first page */
    EXPECT_EQ(s.ranks[2].n_down, 2);                         /* a wake and the reserve */
    EXPECT_EQ(s.ranks[2].down[(s.ranks[2].down_at + 1) % FIFO].u.reserve.prefill_rank, 0);
    EXPECT_EQ(s.ranks[2].down[(s.ranks[2].down_at + 1) % FIFO].u.reserve.n_prefix_key_bytes, 16);
    EXPECT_EQ(sim_submit(&s, &c[2], "2", 60, 4, 100), BT_OK); /* 12 cached, but less to do there */
    sim_settle(&s);
    sim_expect_done(&c[1]);
    sim_expect_done(&c[2]);
    sim_expect_idle(&s);
    sim_fini(&s);
}

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
    for (long k = 0; k < 12; k++) {
        sim        s;
        sim_client c     = {0};
        bt_relay  *relay = NULL;
        long       live  = bt_alloc_live();
        bt_status  st;

        sim_init(&s, 1, 1, 2, 32);
        bt_alloc_fail_at(k);
        if (bt_relay_create(
                &s.cfg,
                &(bt_relay_events){sim_send, sim_on_token, sim_on_end, sim_on_stuck, &s, NULL},
                &relay) == BT_OK)
            bt_relay_destroy(relay);
        bt_alloc_fail_at(k);
        st = sim_submit(&s, &c, "a", 4, 4, 100);
        bt_alloc_fail_at(-1);
        EXPECT(st == BT_OK || st == BT_ERR_NO_MEMORY);
        EXPECT(st == BT_OK || c.ends == 0);
        if (c.ends > 0) EXPECT_EQ(c.end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
        sim_settle(&s);
        if (st == BT_OK && c.end.code == GRPC_STATUS_OK) sim_expect_done(&c);
        sim_expect_idle(&s);
        sim_fini(&s);
        EXPECT_EQ(bt_alloc_live(), live);
    }
}

static const bt_test tests[] = {
    BT_TEST(relay_request_runs_to_its_end),
    BT_TEST(relay_abort_ends_every_state_and_frees_it),
    BT_TEST(relay_client_may_end_a_request_with_any_token),
    BT_TEST(relay_decode_rank_may_be_done_before_the_first_token_comes),
    BT_TEST(relay_failure_of_a_rank_ends_its_request_in_every_state),
    BT_TEST(relay_stop_ends_everything_once),
    BT_TEST(relay_refused_ticket_waits_and_goes_on_with_a_new_number),
    BT_TEST(relay_refused_ticket_is_tried_when_something_is_released),
    BT_TEST(relay_tokens_are_ordered_and_single),
    BT_TEST(relay_absurd_tokens_end_their_request),
    BT_TEST(relay_endless_gap_fails_the_request),
    BT_TEST(relay_bad_tickets_fail_the_request),
    BT_TEST(relay_rank_that_drops_a_live_request_fails_it),
    BT_TEST(relay_placement_takes_the_least_loaded_ranks),
    BT_TEST(relay_queue_is_first_come_first_served),
    BT_TEST(relay_prefill_window_holds_work_back),
    BT_TEST(relay_queue_is_bounded_in_tokens_and_time),
    BT_TEST(relay_duplicate_name_is_refused_until_the_end),
    BT_TEST(relay_quiet_rank_with_work_is_stuck),
    BT_TEST(relay_own_silence_is_not_taken_for_that_of_a_rank),
    BT_TEST(relay_stalled_request_fails_alone),
    BT_TEST(relay_other_epochs_are_not_heard),
    BT_TEST(relay_retracted_request_replays),
    BT_TEST(relay_retracted_request_outwaits_the_queue),
    BT_TEST(relay_choices_end_one_by_one),
    BT_TEST(relay_retracted_choices_replay),
    BT_TEST(relay_absurd_choices_end_their_request),
    BT_TEST(relay_retractions_lose_nothing),
    BT_TEST(relay_placement_prefers_cached_prefixes),
    BT_TEST(relay_storm_leaves_nothing_behind),
    BT_TEST(relay_short_memory_leaks_nothing),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN); /* the storms would log thousands of ends */
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}
