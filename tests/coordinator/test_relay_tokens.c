/* What ranks say of tokens: released in order and once; what cannot be ends its request. */
#include "tests/coordinator/relay_sim.h"

/* With alternatives the decode rank does not repeat the first token, and may be done before it
 * comes. */
static void relay_decode_rank_may_be_done_before_the_first_token_comes(void)
{
    sim        s;
    sim_client c;

    sim_bring(&s, &c, AT_PREFILL);
    sim_tell(&s, 1, sim_tokens(c.number, 7, sim_token(6, 1), BT_FINISH_NONE));
    sim_tell(&s, 1, sim_tokens(c.number, 8, sim_token(6, 2), BT_FINISH_EOS));
    sim_tell(&s, 1, sim_released(c.number));
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
        {0, 5,  1,         BT_FINISH_NONE,   true }, /* of the prompt */
        {0, 16, 1,         BT_FINISH_LENGTH, true }, /* past max_tokens */
        {1, 7,  SIM_VOCAB, BT_FINISH_NONE,   true }, /* no such id */
        {0, 6,  1,         BT_FINISH_NONE,   true }, /* another first token than before */
        {1, 6,  FIRST,     BT_FINISH_NONE,   false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        sim        s;
        sim_client c;

        sim_bring(&s, &c, AT_DECODE);
        sim_tell(&s, cases[i].rank,
                 sim_tokens(c.number, cases[i].position, cases[i].id, cases[i].finish));
        EXPECT_EQ(c.ends, cases[i].ends);
        if (cases[i].ends) EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        if (cases[i].ends) EXPECT_HAS(c.message, " sent token "); /* none is missing */
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
    for (int i = 0; i < 4; i++) {
        sim        s;
        sim_client c;
        bt_up      m;

        sim_bring(&s, &c, AT_DECODE);
        m = sim_tokens(c.number, 7, 1, BT_FINISH_NONE);
        if (i == 1) m.u.tokens.tokens[0].cached = 7; /* of 6 */
        if (i == 2) m.u.tokens.tokens[0].n_top = 2;
        if (i == 2) m.u.tokens.tokens[0].top_ids[1] = SIM_VOCAB;
        if (i == 3) m.u.tokens.tokens[0].choice = 1; /* of one, number 0 */
        sim_tell(&s, 1, m);
        EXPECT_EQ(c.ends, i > 0);
        EXPECT_EQ(c.n, i > 0 ? 1 : 2);
        if (i > 0) EXPECT_EQ(c.end.code, GRPC_STATUS_INTERNAL);
        if (i > 0) EXPECT_HAS(c.message, " sent token ");
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

/* With many choices that takes a look at each of them. */
static void relay_pages_are_counted_where_a_token_begins_one(void)
{
    sim        s;
    sim_client c;
    uint32_t  *pages;

    sim_init(&s, 1, 1, 2, 8);
    EXPECT_EQ(sim_submit(&s, &c, "a", 6, 10, 100), BT_OK);
    sim_tell(&s, 1, sim_ticket(c.number, 2));
    pages = &s.relay->placed.first->decode_pages;
    EXPECT_EQ(*pages, 2);
    *pages = 7; /* until somebody counts */
    sim_tell(&s, 1, sim_tokens(c.number, 6, sim_token(6, 0), BT_FINISH_NONE));
    EXPECT_EQ(*pages, 7);
    sim_tell(&s, 1, sim_tokens(c.number, 7, sim_token(6, 1), BT_FINISH_NONE));
    EXPECT_EQ(*pages, 3);
    *pages = 7;
    sim_tell(&s, 1, sim_tokens(c.number, 8, sim_token(6, 2), BT_FINISH_EOS));
    EXPECT_EQ(*pages, 1); /* no choice is open */
    sim_fini(&s);
}

static const bt_test tests[] = {
    BT_TEST(relay_decode_rank_may_be_done_before_the_first_token_comes),
    BT_TEST(relay_client_may_end_a_request_with_any_token),
    BT_TEST(relay_tokens_are_ordered_and_single),
    BT_TEST(relay_request_counts_the_pages_that_it_grows_into),
    BT_TEST(relay_absurd_tokens_end_their_request),
    BT_TEST(relay_last_token_without_an_end_ends_its_request),
    BT_TEST(relay_absurd_facts_of_a_token_end_its_request),
    BT_TEST(relay_missing_prompt_logprobs_end_their_request),
    BT_TEST(relay_late_first_token_is_a_pause),
    BT_TEST(relay_gap_fails_the_request),
    BT_TEST(relay_pages_are_counted_where_a_token_begins_one),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_WARN);
    return BT_RUN_TESTS(tests, argc > 1 ? argv[1] : NULL);
}
