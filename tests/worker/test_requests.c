/* What orders bring to a rank: requests are made of it, or it is refused with a sentence. */
#include "core/alloc.h"
#include "proto/prefix_key.h"
#include "tests/support/test.h"
#include "tests/worker/bench.h"
#include "worker/state.h"

static void decode_rank_refuses_wrong_reservations_with_a_sentence(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 1, 1, 1);
    m = bench_reserve(1, 0, 5), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "0 tokens");
    m = bench_reserve(1, BENCH_CONTEXT + 1, 5), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "301 tokens");
    m = bench_reserve(1, 10, 0), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "max_tokens");
    m = bench_reserve(1, 200, 150), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "context of 300");
    m = bench_reserve(1, 200, 90), bench_order(&b, &m); /* fits the context, not the pool */
    bench_expect_failed(&b, 3, "5 pages");
    m = bench_reserve(1, 200, UINT32_MAX), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "context");
    m = bench_reserve(1, 10, 5), m.u.reserve.prefill_rank = 1, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "does not prefill");
    m = bench_prefill(1, 10, 1, 1), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "asked to prefill");
    m = bench_reserve(0, 10, 5), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "request 0");
    m = bench_reserve(1, 10, 5), m.u.reserve.sampling.constraint_kind = 1, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "structured output needs a tokenizer");
    bench_tear_down(&b);
}

/* What would lie outside of the vocabulary's rows, or has no meaning together. */
static void decode_rank_refuses_what_a_reservation_brings(void)
{
    static const char *const SAYS[] = {
        "token 0 of the stop tokens is 50",
        "token 0 of the logit bias is 50",
        "token 0 of the replay is 50",
        "5 tokens to replay of a request for 5",
        "token 0 of the continuation is 50",
        "1 tokens to replay",
        "16 bytes of prefix keys",
        "without the prompt's tokens",
        "this rank keeps none",
        "an evaluation of 2 choices",
        "token 69 of the prompt is 50",
        "token 69 of the prompt is 50",
        "token 69 of the prompt is 50",
        "the prompt's tokens are not here",
        "5 tokens to replay of a request for 5",
    };
    bench b;

    bench_set_up(&b, 1, 1, 1);
    for (int fault = 0; fault < 15; fault++) {
        bt_down          m     = bench_reserve(1, 70, 5);
        bt_down_reserve *r     = &m.u.reserve;
        bt_rank_facts   *facts = &b.worker->cfg.facts;

        r->eval = (fault >= 4 && fault <= 6) || fault == 9;
        if (fault >= 10 && fault <= 12) {
            r->prompt     = bt_calloc(70, sizeof(uint32_t));
            r->prompt[69] = BENCH_VOCAB;
        }
        switch (fault) {
        case 0: r->sampling.n_stop = 1, r->sampling.stop_tokens = bench_ids(1, BENCH_VOCAB); break;
        case 1:
            r->sampling.n_bias = 1, r->sampling.bias_ids = bench_ids(1, BENCH_VOCAB);
            r->sampling.biases = bt_calloc(1, sizeof(float));
            break;
        case 2: r->n_replay = 1, r->replay = bench_ids(1, BENCH_VOCAB); break;
        case 3: r->n_replay = 5, r->replay = bt_calloc(5, sizeof(uint32_t)); break;
        case 4: r->n_eval = 1, r->eval_tokens = bench_ids(1, BENCH_VOCAB); break;
        case 5: r->n_replay = 1, r->replay = bench_ids(1, 0); break;
        case 6: r->n_prefix_key_bytes = 16, r->prefix_keys = bt_calloc(1, 16); break;
        case 7:
        case 10: r->sampling.repetition_penalty = 2; break;
        case 8: r->n_form_map_bytes = 16, r->form_map = bt_calloc(1, 16); break;
        case 9: r->n_choices = 2, r->choices = bt_calloc(2, sizeof(uint32_t)); break;
        case 11: facts->speculate = 4; break;
        case 14:
            r->n_choices = 2, r->choices = bt_calloc(2, sizeof(uint32_t));
            r->n_replay = 6, r->replay = bt_calloc(6, sizeof(uint32_t));
            r->replay_lengths    = bt_calloc(2, sizeof(uint32_t));
            r->replay_lengths[0] = 1, r->replay_lengths[1] = 5;
            break;
        default: facts->share_generated = true, r->prefix_seed = 1;
        }
        bench_order(&b, &m);
        facts->speculate       = 0;
        facts->share_generated = false;
        bench_expect_failed(&b, 3, SAYS[fault]);
    }
    bench_tear_down(&b);
}

/* What a penalty counts is not known to be right in a draft. */
static void requests_with_penalties_make_no_drafts(void)
{
    bench         b;
    bt_rank_facts facts;

    bench_set_up(&b, 1, 1, 1);
    facts = bench_config(&b, 1, 1, 1).facts;
    for (int penalty = 0; penalty < 8; penalty++) {
        bt_down      m = bench_reserve(1, 70, 5);
        bt_sampling *s = &m.u.reserve.sampling;
        bt_request  *r = NULL;

        facts.speculate    = penalty < 4 ? 4 : 0;
        facts.mtp          = penalty < 4 ? 0 : 1;
        m.u.reserve.prompt = bt_calloc(70, sizeof(uint32_t));
        if (penalty % 4 == 1) s->frequency_penalty = 0.1f;
        if (penalty % 4 == 2) s->presence_penalty = -0.1f;
        if (penalty % 4 == 3) s->repetition_penalty = 1.1f;
        EXPECT_EQ(bt_request_from_reserve(&facts, &m.u.reserve, &r), BT_OK);
        if (r != NULL) EXPECT_EQ(r->drafts, penalty % 4 == 0);
        if (r != NULL) EXPECT_EQ(r->looks_up, penalty == 0);
        if (r != NULL) EXPECT_EQ(r->drafter.n, penalty == 0 ? 70 : 0);
        bt_request_destroy(r);
        bt_down_free(&m);
    }
    facts.speculate       = 4;
    facts.share_generated = true; /* but not those of requests without a seed */
    for (int eval = 0; eval < 2;
         eval++) { /* without the prompt's tokens, and none for an evaluation */
        bt_down     m = bench_reserve(1, 70, 5);
        bt_request *r = NULL;

        m.u.reserve.eval = eval;
        NEED(bt_request_from_reserve(&facts, &m.u.reserve, &r) == BT_OK);
        EXPECT(r->drafts == !eval && r->looks_up == !eval && r->drafter.n == 0);
        bt_request_destroy(r);
        bt_down_free(&m);
    }
    bench_tear_down(&b);
}

/* As long as the model's context is, and as large as the pool. */
static void orders_go_to_the_last_token_and_page(void)
{
    bt_rank_facts facts;
    bt_request   *r = NULL;
    bench         b;
    bt_down       m = bench_reserve(1, 200, BENCH_CONTEXT - 200);

    bench_set_up(&b, 1, 1, 1);
    facts                          = bench_config(&b, 1, 1, 1).facts;
    facts.n_pages                  = 5;
    m.u.reserve.n_prefix_key_bytes = 4 * sizeof(bt_prefix_key); /* its fourth page is not full */
    m.u.reserve.prefix_keys        = bt_calloc(4, sizeof(bt_prefix_key));
    EXPECT_EQ(bt_request_from_reserve(&facts, &m.u.reserve, &r), BT_OK);
    if (r != NULL) EXPECT_EQ(r->n_keys, 3);
    bt_request_destroy(r);
    bt_down_free(&m);
    r                              = NULL;
    m                              = bench_reserve(1, 200, 5);
    m.u.reserve.n_prefix_key_bytes = 40; /* two keys and a half */
    m.u.reserve.prefix_keys        = bt_calloc(1, 40);
    memset(m.u.reserve.prefix_keys, 7, 40);
    EXPECT_EQ(bt_request_from_reserve(&facts, &m.u.reserve, &r), BT_OK);
    EXPECT(r != NULL && r->n_keys == 2 && memcmp(r->keys, m.u.reserve.prefix_keys, 32) == 0);
    bt_request_destroy(r);
    bt_down_free(&m);
    r          = NULL;
    m          = bench_prefill(1, BENCH_CONTEXT, 5, 1);
    facts.rank = 0;
    EXPECT_EQ(bt_request_from_prefill(&facts, &m.u.prefill, &r), BT_OK);
    bt_request_destroy(r);
    bt_down_free(&m);
    bench_tear_down(&b);
}

static void prefill_rank_refuses_wrong_orders_with_a_sentence(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 0, 1, 1);
    m = bench_reserve(1, 10, 5), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "asked to reserve");
    m = bench_prefill(1, 10, 1, 0), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "cannot decode");
    m = bench_prefill(1, 10, 1, 2), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "cannot decode");
    m = bench_prefill(1, 65, 1, 1), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "ticket of 1 pages");
    m = bench_prefill(1, 10, 1, 1), m.u.prefill.prompt[9] = BENCH_VOCAB, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "token 9 of the prompt is 50");
    m = bench_prefill(1, 10, 1, 1), m.u.prefill.sampling.temperature = -1, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "temperature");
    m = bench_prefill(1, 10, 1, 1), m.u.prefill.sampling.temperature = 2e6f, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "temperature");
    m = bench_prefill(1, 10, 1, 1), m.u.prefill.sampling.max_tokens = 0, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "max_tokens");
    m = bench_prefill(0, 10, 1, 1), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "request 0");
    m = bench_prefill(1, 10, 1, 1), m.u.prefill.sampling.constraint_kind = 1, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "structured output needs a tokenizer");
    m = bench_prefill(1, 280, 5, 1), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "needs 5 pages");
    m = bench_prefill(1, 100, 2, 1), m.u.prefill.held = 10, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "holds 10 of 100");
    m = bench_prefill(1, 128, 2, 1), m.u.prefill.held = 128, bench_order(&b, &m);
    bench_expect_failed(&b, 3, "holds 128 of 128");
    b.worker->cfg.links.tail_max = sizeof(bt_first_token) - 1;
    m                            = bench_prefill(1, 10, 1, 1), bench_order(&b, &m);
    bench_expect_failed(&b, 3, "has room for 11");
    bench_tear_down(&b);
}

static void forced_experts_are_checked(void)
{
    static const int32_t WRONG[3][2] = {
        {8,  0},
        {-1, 0},
        {3,  3}
    };
    bench   b;
    bt_down m;

    bench_set_up(&b, 0, 1, 1);
    for (int i = 0; i < 3; i++) {
        m                               = bench_prefill(1, 1, 1, 1);
        m.u.prefill.eval                = true;
        m.u.prefill.n_eval_expert_bytes = BENCH_LAYERS * 2 * sizeof(int32_t);
        m.u.prefill.eval_experts        = bt_calloc(BENCH_LAYERS * 2, sizeof(int32_t));
        for (int l = 0; l < BENCH_LAYERS; l++)
            memcpy((int32_t *)m.u.prefill.eval_experts + 2 * l, WRONG[i], sizeof(WRONG[i]));
        bench_order(&b, &m);
        bench_expect_failed(&b, 3, i == 2 ? "twice" : "forced expert");
    }
    m                               = bench_prefill(1, 3, 1, 1);
    m.u.prefill.eval                = true;
    m.u.prefill.n_eval_expert_bytes = 7;
    m.u.prefill.eval_experts        = bt_calloc(1, 7);
    bench_order(&b, &m);
    bench_expect_failed(&b, 3, "7 bytes");
    bench_tear_down(&b);
}

/* An evaluation of three prompt tokens and one more, which bring experts for n positions and n_more
 * bytes: {k % 4, 7 - k % 4} for the k-th row, the higher one first. */
static bt_status force(const bt_rank_facts *facts, bool reserves, uint32_t n, size_t n_more,
                       bt_request **r_out)
{
    bt_down   m       = reserves ? bench_reserve(1, 3, 0) : bench_prefill(1, 3, 1, 1);
    uint32_t  n_rows  = BENCH_LAYERS * n;
    size_t    n_bytes = n_rows * 2 * sizeof(int32_t) + n_more;
    int32_t  *experts = bt_calloc(n_bytes, 1);
    bt_status st;

    for (uint32_t k = 0; k < n_rows; k++) {
        experts[2 * k]     = 7 - (int32_t)(k % 4);
        experts[2 * k + 1] = (int32_t)(k % 4);
    }
    if (reserves) {
        m.u.reserve.eval                = true;
        m.u.reserve.n_eval              = 1;
        m.u.reserve.eval_tokens         = bench_ids(1, 0);
        m.u.reserve.n_choices           = 1;
        m.u.reserve.choices             = bench_ids(1, 0);
        m.u.reserve.eval_experts        = experts;
        m.u.reserve.n_eval_expert_bytes = n_bytes;
        st                              = bt_request_from_reserve(facts, &m.u.reserve, r_out);
    } else {
        m.u.prefill.eval                = true;
        m.u.prefill.eval_experts        = experts;
        m.u.prefill.n_eval_expert_bytes = n_bytes;
        st                              = bt_request_from_prefill(facts, &m.u.prefill, r_out);
    }
    bt_down_free(&m);
    return st;
}

/* Who prefills needs those of the prompt at least, who decodes those of all its rows. */
static void forced_experts_are_those_of_the_rows(void)
{
    for (int reserves = 0; reserves < 2; reserves++) {
        bench         b;
        bt_rank_facts facts;
        bt_request   *r = NULL;

        bench_set_up(&b, (uint32_t)reserves, 1, 1);
        facts = bench_config(&b, (uint32_t)reserves, 1, 1).facts;
        for (uint32_t n = 1; n <= 5; n++) {
            bool fits = reserves ? n == 4 : n >= 3;

            EXPECT_EQ(force(&facts, reserves, n, 8, &r), BT_ERR_INVALID_ARG);
            EXPECT_EQ(force(&facts, reserves, n, 0, &r), fits ? BT_OK : BT_ERR_INVALID_ARG);
            if (r == NULL) continue;
            EXPECT_EQ(r->n_forced, n);
            for (uint32_t k = 0; k < BENCH_LAYERS * n; k++) {
                EXPECT_EQ(r->forced[2 * k], k % 4);
                EXPECT_EQ(r->forced[2 * k + 1], 7 - k % 4);
            }
            bt_request_destroy(r);
            r = NULL;
        }
        b.model.first_moe_layer = BENCH_LAYERS; /* no layer has experts */
        EXPECT_EQ(force(&facts, reserves, 4, 0, &r), BT_ERR_INVALID_ARG);
        bench_tear_down(&b);
    }
}

/* Whatever the order in which they come and go; a request's choices as they have come. */
static void table_holds_many_requests_in_the_order_of_their_arrival(void)
{
    enum { N = 301 };
    static bt_request all[N];
    bt_requests       t = {0};

    for (uint32_t i = 0; i < N; i++) {
        all[i] = (bt_request){.id = i + 1, .arrival = i * 7 % N / 2};
        EXPECT_EQ(bt_requests_add(&t, &all[i]), BT_OK);
    }
    for (uint32_t i = 0; i < N; i += 3)
        bt_requests_remove(&t, &all[i]);
    EXPECT_EQ(t.n, N * 2 / 3);
    for (uint32_t i = 1; i < t.n; i++) {
        const bt_request *a = t.at[i - 1], *b = t.at[i];

        EXPECT(a->arrival < b->arrival || (a->arrival == b->arrival && a->id < b->id));
    }
    for (uint32_t i = 0; i < N; i++) {
        EXPECT(bt_requests_find(&t, i + 1) == (i % 3 == 0 ? NULL : &all[i]));
        if (i % 3 != 0) bt_requests_remove(&t, &all[i]);
    }
    bt_requests_fini(&t);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(decode_rank_refuses_wrong_reservations_with_a_sentence),
        BT_TEST(decode_rank_refuses_what_a_reservation_brings),
        BT_TEST(requests_with_penalties_make_no_drafts),
        BT_TEST(orders_go_to_the_last_token_and_page),
        BT_TEST(prefill_rank_refuses_wrong_orders_with_a_sentence),
        BT_TEST(forced_experts_are_checked),
        BT_TEST(forced_experts_are_those_of_the_rows),
        BT_TEST(table_holds_many_requests_in_the_order_of_their_arrival),
    };

    bt_log_init("requests", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
