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

/* With alternatives the decode rank does not repeat the first token, and may be done before it
 * comes. */
static void relay_decode_rank_may_be_done_before_the_first_token_comes(void)
{
    sim        s;
    sim_client c;
    bt_up      gone = {.kind = BT_UP_RELEASED};

    sim_bring(&s, &c, AT_PREFILL);
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

        sim_bring(&s, &c, AT_PREFILL);
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

static void relay_tokens_are_ordered_and_single(void)
{
    sim        s;
    sim_client c;

    sim_bring(&s, &c, AT_PREFILL);
    sim_tell(&s, 1, sim_tokens(c.number, 7, 11, BT_FINISH_NONE)); /* before its turn */
    sim_tell(&s, 1, sim_tokens(c.number, 7, 11, BT_FINISH_NONE));
    sim_tell(&s, 1, sim_tokens(c.number, 8, 12, BT_FINISH_NONE));
    EXPECT_EQ(c.n, 0);
    sim_tell(&s, 0, sim_tokens(c.number, 6, 10, BT_FINISH_NONE));
    EXPECT_EQ(c.n, 3);
    sim_tell(&s, 1, sim_tokens(c.number, 6, 10, BT_FINISH_NONE)); /* the first one again */
    EXPECT_EQ(c.n, 3);
    sim_tell(&s, 1, sim_tokens(c.number, 9, 13, BT_FINISH_EOS));
    EXPECT_EQ(c.n, 4);
    EXPECT_EQ(c.ends, 1);
    sim_tell(&s, 1, sim_tokens(c.number, 10, 14, BT_FINISH_NONE)); /* past the end */
    EXPECT_EQ(c.n, 4);
    EXPECT(c.ids[0] == 10 && c.ids[1] == 11 && c.ids[2] == 12 && c.ids[3] == 13);
    sim_fini(&s);
}

/* A decode rank whose requests have grown has less room for others. */
static void relay_request_counts_the_pages_that_it_grows_into(void)
{
    sim        s;
    sim_client c;

    sim_bring(&s, &c, AT_DECODE); /* 6 prompt tokens, one that it has, and the next one: 2 pages */
    EXPECT_EQ(sim_loads(&s).used_tokens, 2 * SIM_PAGE);
    for (uint32_t i = 1; i < 6; i++) {
        sim_tell(&s, 1, sim_tokens(c.number, 6 + i, sim_token(6, i), BT_FINISH_NONE));
        EXPECT_EQ(sim_loads(&s).used_tokens, sim_pages(6 + c.n + 1) * SIM_PAGE);
    }
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
        {1, 7,  SIM_VOCAB, BT_FINISH_NONE, true }, /* no such id */
        {0, 6,  1,         BT_FINISH_NONE, true }, /* another first token than before */
        {1, 6,  FIRST,     BT_FINISH_NONE, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sim        s;
        sim_client c;

        sim_bring(&s, &c, AT_DECODE);
        sim_tell(&s, cases[i].rank,
                 sim_tokens(c.number, cases[i].position, cases[i].id, cases[i].finish));
        EXPECT_EQ(c.ends, cases[i].ends);
        if (cases[i].ends) EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        EXPECT_EQ(c.n, 1);
        sim_fini(&s);
    }
}

static void relay_last_token_without_an_end_ends_its_request(void)
{
    for (int ends = 0; ends < 2; ends++) {
        sim        s;
        sim_client c;

        sim_bring(&s, &c, AT_DECODE);
        for (uint32_t i = 1; i < 9; i++)
            sim_tell(&s, 1, sim_tokens(c.number, 6 + i, sim_token(6, i), BT_FINISH_NONE));
        EXPECT(c.ends == 0 && c.n == 9);
        sim_tell(&s, 1, sim_tokens(c.number, 15, 1, ends ? BT_FINISH_LENGTH : BT_FINISH_NONE));
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, ends ? GRPC_STATUS_OK : GRPC_STATUS_INTERNAL);
        EXPECT_EQ(c.n, 9 + ends);
        sim_fini(&s);
    }
}

/* What a client would get for facts. */
static void relay_absurd_facts_of_a_token_end_its_request(void)
{
    for (int i = 0; i < 3; i++) {
        sim        s;
        sim_client c;
        bt_up      m;

        sim_bring(&s, &c, AT_DECODE);
        m = sim_tokens(c.number, 7, 1, BT_FINISH_NONE);
        if (i == 1) m.u.tokens.tokens[0].cached = 7; /* of 6 */
        if (i == 2) m.u.tokens.tokens[0].n_top = 2;
        if (i == 2) m.u.tokens.tokens[0].top_ids[1] = SIM_VOCAB;
        sim_tell(&s, 1, m);
        EXPECT_EQ(c.ends, i > 0);
        if (i > 0) EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        sim_fini(&s);
    }
}

/* Of a prompt of 6 tokens 5 have a logprob, and a client would take those that are missing for 0.
 */
static void relay_missing_prompt_logprobs_end_their_request(void)
{
    static const struct {
        uint32_t position[2], n[2], top_id;
        bool     ends;
    } cases[] = {
        {{1, 4}, {3, 2}, 0,         false},
        {{1, 1}, {5, 5}, 0,         false}, /* again, after a loss */
        {{1, 4}, {2, 2}, 0,         true }, /* a gap */
        {{1, 3}, {2, 2}, 0,         true }, /* without the last one */
        {{1, 4}, {3, 3}, 0,         true }, /* one that the prompt has not */
        {{1, 4}, {3, 2}, SIM_VOCAB, true },
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sim        s;
        sim_client c = {.n_prompt = 6, .max_tokens = 10, .n_choices = 1, .prompt_logprobs = 2};
        grpc_status_code    code = GRPC_STATUS_OK;
        bt_relay_submission r    = {
               .name      = "a",
               .n_prompt  = 6,
               .prompt    = bt_calloc(6, sizeof(uint32_t)),
               .sampling  = {.max_tokens = 10, .prompt_logprobs = 2},
               .n_choices = 1,
               .arrival   = 1,
        };

        sim_init(&s, 1, 1, 2, 8);
        EXPECT_EQ(bt_relay_submit(s.relay, &r, &c, s.now, &c.number, &code), BT_OK);
        sim_tell(&s, 1, sim_ticket(c.number, 4));
        for (int k = 0; k < 2; k++) {
            bt_up m = sim_prompt_logprobs(c.number, cases[i].position[k], cases[i].n[k], 1);

            m.u.prompt_logprobs.top_ids[cases[i].n[k] - 1] = cases[i].top_id;
            sim_tell(&s, 0, m);
        }
        sim_tell(&s, 0, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
        EXPECT_EQ(c.ends, cases[i].ends);
        EXPECT_EQ(c.n, !cases[i].ends);
        if (c.n > 0) EXPECT(c.n_logprobs >= 5);
        if (c.ends > 0) EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        sim_fini(&s);
    }
}

/* The prefill rank's stream is late with the first token, while the decode rank says all others. */
static void relay_late_first_token_is_a_pause(void)
{
    enum { N = 1000 };
    sim        s;
    sim_client c;

    sim_init(&s, 1, 1, 2, 1000);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, N, 5000), BT_OK);
    sim_tell(&s, 1, sim_ticket(c.number, 252));
    for (uint32_t i = 1; i < N; i++)
        sim_tell(&s, 1,
                 sim_tokens(c.number, 6 + i, sim_token(6, i),
                            i + 1 == N ? BT_FINISH_LENGTH : BT_FINISH_NONE));
    sim_tell(&s, 1, sim_released(c.number));
    EXPECT(c.ends == 0 && c.n == 0);
    sim_tell(&s, 0, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    EXPECT_EQ(c.n, N);
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_OK);
    for (uint32_t i = 0; i < 64; i++)
        EXPECT_EQ(c.ids[i], sim_token(6, i));
    sim_tell(&s, 0, sim_released(c.number));
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);
    sim_fini(&s);
}

/* A rank's tokens come in order: nothing but the first token, which is another rank's, can be late.
 */
static void relay_gap_fails_the_request(void)
{
    for (uint32_t n_out = 0; n_out < 3; n_out++) {
        sim        s;
        sim_client c;
        char       missing[64];

        sim_bring(&s, &c, AT_PREFILL);
        for (uint32_t i = 0; i < n_out; i++)
            sim_tell(&s, 0, sim_tokens(c.number, 6 + i, sim_token(6, i), BT_FINISH_NONE));
        if (n_out == 0) sim_tell(&s, 1, sim_tokens(c.number, 7, 1, BT_FINISH_NONE));
        sim_tell(&s, 1, sim_tokens(c.number, 9, 1, BT_FINISH_NONE));
        EXPECT_EQ(c.ends, 1);
        EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        snprintf(missing, sizeof(missing), "token %u of choice 0 is missing", n_out == 1 ? 7 : 8);
        EXPECT_HAS(c.message, missing);
        sim_fini(&s);
    }
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
}

static void relay_rank_that_drops_a_live_request_fails_it(void)
{
    sim        s;
    sim_client c;

    sim_bring(&s, &c, AT_DECODE);
    sim_tell(&s, 0, sim_released(c.number)); /* prefill is done: fine */
    EXPECT_EQ(c.ends, 0);
    sim_tell(&s, 1, sim_released(c.number));
    EXPECT_EQ(c.ends, 1);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    EXPECT_EQ(sim_loads(&s).used_tokens, 0);
    sim_fini(&s);
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

/* The client hears of it, and does not wait for what follows. */
static void relay_token_that_cannot_be_kept_ends_its_request(void)
{
    for (uint32_t early = 0; early < 2; early++) {
        sim        s;
        sim_client c;
        bt_up      m;

        sim_bring(&s, &c, AT_PREFILL);
        m = sim_tokens(c.number, 6 + early, sim_token(6, early), BT_FINISH_NONE);
        bt_alloc_fail_at(0);
        bt_relay_message(s.relay, early, &m, s.now);
        bt_alloc_fail_at(-1);
        bt_up_free(&m);
        EXPECT(c.ends == 1 && c.n == 0);
        EXPECT_EQ(c.end.code, GRPC_STATUS_RESOURCE_EXHAUSTED);
        sim_fini(&s);
    }
}

/* It has one choice, number 0. */
static void relay_token_of_the_next_choice_ends_its_request(void)
{
    sim        s;
    sim_client c;

    sim_bring(&s, &c, AT_PREFILL);
    sim_tell(&s, 0, sim_choice_token(c.number, 1, 6, sim_token(6, 0), BT_FINISH_NONE));
    EXPECT(c.ends == 1 && c.n == 0);
    EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
    sim_fini(&s);
}

static void relay_short_memory_leaks_nothing(void)
{
    for (long k = 0; k < 13; k++) {
        sim        s;
        sim_client c     = {0};
        bt_relay  *relay = NULL;
        long       live  = bt_alloc_live();
        bt_status  st;

        sim_init(&s, 1, 1, 2, 32);
        s.cache_salt = "a";
        bt_alloc_fail_at(k);
        if (sim_relay_create(&s, &relay) == BT_OK) bt_relay_destroy(relay);
        bt_alloc_fail_at(k);
        st = sim_submit(&s, &c, "a", 4, 4, 100);
        bt_alloc_fail_at(-1);
        EXPECT(st == BT_OK || st == BT_ERR_NO_MEMORY);
        EXPECT(st == BT_OK || c.ends == 0);
        EXPECT(st == BT_OK || !bt_relay_has_name(s.relay, "a"));
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
    BT_TEST(relay_wakes_a_group_once_for_each_number),
    BT_TEST(relay_refused_ticket_waits_and_goes_on_with_a_new_number),
    BT_TEST(relay_refused_ticket_is_tried_when_something_is_released),
    BT_TEST(relay_tokens_are_ordered_and_single),
    BT_TEST(relay_request_counts_the_pages_that_it_grows_into),
    BT_TEST(relay_absurd_tokens_end_their_request),
    BT_TEST(relay_last_token_without_an_end_ends_its_request),
    BT_TEST(relay_absurd_facts_of_a_token_end_its_request),
    BT_TEST(relay_missing_prompt_logprobs_end_their_request),
    BT_TEST(relay_late_first_token_is_a_pause),
    BT_TEST(relay_gap_fails_the_request),
    BT_TEST(relay_bad_tickets_fail_the_request),
    BT_TEST(relay_rank_that_drops_a_live_request_fails_it),
    BT_TEST(relay_other_epochs_are_not_heard),
    BT_TEST(relay_ranks_are_heard_of_what_they_have),
    BT_TEST(relay_ranks_are_not_heard_of_what_waits),
    BT_TEST(relay_storm_leaves_nothing_behind),
    BT_TEST(relay_token_that_cannot_be_kept_ends_its_request),
    BT_TEST(relay_token_of_the_next_choice_ends_its_request),
    BT_TEST(relay_short_memory_leaks_nothing),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN); /* the storms would log thousands of ends */
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}
