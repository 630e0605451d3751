/* The tokens that follow one rank's steps: what is chosen, what ends a request, what is replayed.
 */
#include "tests/support/test.h"
#include "tests/worker/bench.h"
#include "worker/state.h"

static void logits_that_are_no_numbers_fail_the_request_alone(void)
{
    bench b;

    bench_set_up(&b, 0, 0, 0);
    b.logit = 0.0f / 0.0f;
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
    bench_expect_failed_and_gone(&b, 13, "not a finite number");
    b.logit = 0;
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(2, 10, 5)), BT_OK);
    EXPECT(b.n_up == 1 && b.up[0].kind == BT_UP_TOKENS);
    bench_tear_down(&b);
}

/* Rows without a token that may come are of a draft here: the last of several. */
static bt_status launch_without_numbers_last(void *ctx, bt_step *step)
{
    (void)ctx;
    for (uint32_t row = 0; row < step->n_logit_rows; row++)
        for (uint32_t id = 0; id < BENCH_VOCAB; id++)
            step->logits[row * BENCH_VOCAB + id] =
                row > 0 && row + 1 == step->n_logit_rows ? 0.0f / 0.0f : 0;
    return BT_OK;
}

/* The token behind it may come when it is drawn alone. */
static void row_of_a_draft_that_has_no_token_fails_nobody(void)
{
    bench            b;
    bt_worker_config cfg;
    bt_down          m = bench_reserve(1, 10, 9);

    bench_set_up(&b, 0, 0, 0);
    cfg                 = bench_config(&b, 0, 0, 0);
    cfg.facts.speculate = 2;
    cfg.links.launch    = launch_without_numbers_last;
    bench_make_anew(&b, &cfg);
    m.u.reserve.prompt = bt_calloc(10, sizeof(uint32_t));
    EXPECT_EQ(bench_run_prompt(&b, m), BT_OK);
    bench_forget(&b);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(b.n_up, 1);
    EXPECT_EQ(b.up[0].kind, BT_UP_TOKENS);
    EXPECT_EQ(b.up[0].u.tokens.n, 2); /* the draft's first row is good */
    EXPECT_EQ(b.worker->requests.n, 1);
    EXPECT_EQ(b.worker->n_drafts, 1);
    EXPECT_EQ(b.worker->n_drafted, 2);
    EXPECT_EQ(b.worker->n_draft_right, 1);
    bench_tear_down(&b);
}

/* The tokens of a step that says nothing else. */
static const bt_token *tokens_of_step(bench *b, uint32_t n)
{
    bench_forget(b);
    EXPECT_EQ(bench_run_step(b), BT_OK);
    NEED(b->n_up == 1 && b->up[0].kind == BT_UP_TOKENS && b->up[0].u.tokens.n == n);
    return b->up[0].u.tokens.tokens;
}

/* With all that was said of it. */
static void first_token_says_what_was_cached_and_is_said_again(void)
{
    bench           b;
    bt_request     *r;
    const bt_token *t;

    bench_set_up(&b, 0, 0, 0);
    bench_order_both(&b, bench_reserve(1, 10, 5));
    r         = b.worker->requests.at[0];
    r->n_held = 6;
    t         = tokens_of_step(&b, 1);
    EXPECT(t->request == 1 && t->epoch == 3 && t->position == 10 && t->cached == 6);
    r->repeat_first = true;
    r->next_token   = 3;
    r->next_logprob = -1.5f;
    t               = tokens_of_step(&b, 2);
    EXPECT(t[0].request == 1 && t[0].epoch == 3 && t[0].choice == 0);
    EXPECT(t[0].position == 10 && t[0].id == 3 && t[0].cached == 6);
    EXPECT(t[0].logprob == -1.5f && t[0].finish == BT_FINISH_NONE);
    EXPECT(t[1].request == 1 && t[1].epoch == 3 && t[1].position == 11 && t[1].cached == 0);
    EXPECT_EQ(tokens_of_step(&b, 1)->position, 12); /* once */
    bench_tear_down(&b);
}

/* Four choices of a prompt, and logprobs of everything. */
static void run_choices(bench *b, bt_cpu_pool *threads)
{
    bt_worker_config cfg = bench_config(b, 0, 1, 1);
    bt_down          m   = bench_prefill(1, 10, 4, 1);

    cfg.threads = threads;
    b->uneven   = true;
    bench_make_anew(b, &cfg);
    m.u.prefill.sampling  = (bt_sampling){.temperature     = 1,
                                          .seed            = 7,
                                          .max_tokens      = 5,
                                          .logprobs        = true,
                                          .top_logprobs    = 3,
                                          .prompt_logprobs = 3};
    m.u.prefill.n_choices = 4;
    m.u.prefill.choices   = bench_ids(4, 0);
    bench_order(b, &m);
    EXPECT_EQ(bench_run_step(b), BT_OK);
}

/* In each row id 7 may come, and no other. */
static bt_status launch_with_one_id(void *ctx, bt_step *step)
{
    (void)ctx;
    for (uint32_t row = 0; row < step->n_logit_rows; row++)
        for (uint32_t id = 0; id < BENCH_VOCAB; id++)
            step->logits[row * BENCH_VOCAB + id] = id == 7 ? 0 : -1.0f / 0.0f;
    return BT_OK;
}

/* Each position has two places all the same. */
static void alternatives_that_are_not_there_have_no_chance(void)
{
    bench                        b;
    bt_worker_config             cfg;
    bt_down                      m = bench_prefill(1, 10, 1, 1);
    const bt_up_prompt_logprobs *u;

    bench_set_up(&b, 0, 1, 1);
    cfg              = bench_config(&b, 0, 1, 1);
    cfg.links.launch = launch_with_one_id;
    bench_make_anew(&b, &cfg);
    m.u.prefill.sampling.prompt_logprobs = 3;
    bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    NEED(b.n_up == 2 && b.up[0].kind == BT_UP_PROMPT_LOGPROBS);
    u = &b.up[0].u.prompt_logprobs;
    NEED(u->n == 9 && u->n_top == 2);
    for (uint32_t i = 0; i < 9; i++) {
        EXPECT_EQ(u->top_ids[2 * i], 7);
        EXPECT_EQ(u->top_ids[2 * i + 1], 0);
        EXPECT(u->top_logprobs[2 * i] == 0);
        EXPECT(u->top_logprobs[2 * i + 1] == -1.0f / 0.0f);
    }
    bench_tear_down(&b);
}

/* The likeliest first token when those before the n-th may not be `end`, which is the model's end
 * or a stop token. */
static uint32_t first_but(uint32_t end, bool is_eos, bool ignore_eos, uint32_t min_tokens)
{
    bench    b;
    bt_down  m;
    uint32_t id = UINT32_MAX;

    bench_set_up(&b, 0, 1, 1);
    b.uneven                        = true;
    m                               = bench_prefill(1, 10, 1, 1);
    m.u.prefill.sampling.min_tokens = min_tokens;
    m.u.prefill.sampling.ignore_eos = ignore_eos;
    if (is_eos) {
        b.model.n_eos         = 1;
        b.model.eos_tokens[0] = end;
    } else {
        m.u.prefill.sampling.n_stop      = 1;
        m.u.prefill.sampling.stop_tokens = bench_ids(1, end);
    }
    bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    for (uint32_t i = 0; i < b.n_up; i++)
        if (b.up[i].kind == BT_UP_TOKENS) id = b.up[i].u.tokens.tokens[0].id;
    bench_tear_down(&b);
    return id;
}

static void nothing_ends_a_request_before_its_least_tokens(void)
{
    uint32_t likeliest = first_but(0, false, false, 0);

    EXPECT(likeliest != 0 && likeliest < BENCH_VOCAB);
    for (int is_eos = 0; is_eos < 2; is_eos++) {
        uint32_t other = first_but(likeliest, is_eos, false, 1);

        EXPECT_EQ(first_but(likeliest, is_eos, false, 0), likeliest);
        EXPECT(other != likeliest && other < BENCH_VOCAB);
    }
    EXPECT_EQ(first_but(likeliest, true, true, 1), likeliest); /* it is no end then */
}

static void draws_are_made_as_the_request_says(void)
{
    static uint32_t ids[]    = {5, 6};
    static float    biases[] = {1, -1};
    bench           b;
    bt_sample_how   how;
    bt_request      r = {
             .n_prompt = 10,
             .sampling = {.temperature        = 0.5f,
                          .seed               = 7ull << 32,
                          .top_k              = 3,
                          .top_p              = 0.25f,
                          .min_p              = 0.125f,
                          .repetition_penalty = 1.5f,
                          .frequency_penalty  = 0.75f,
                          .presence_penalty   = -0.5f,
                          .n_bias             = 2,
                          .bias_ids           = ids,
                          .biases             = biases}
    };

    bench_set_up(&b, 0, 0, 0);
    how = bt_worker_how(b.worker, &r, 4, 12);
    EXPECT(how.temperature == 0.5f && how.seed == 7ull << 32);
    EXPECT(how.choice == 4 && how.position == 12);
    EXPECT(how.top_k == 3 && how.top_p == 0.25f && how.min_p == 0.125f);
    EXPECT(how.repetition == 1.5f && how.frequency == 0.75f && how.presence == -0.5f);
    EXPECT(how.history == &r.history);
    EXPECT(how.biased.n == 2 && how.biased.ids == ids && how.biases == biases);
    EXPECT(how.banned[0].n == 0 && how.banned[1].n == 0 && how.allowed == NULL);
    bench_tear_down(&b);
}

static void every_end_is_one(void)
{
    static uint32_t stops[] = {7, 9};
    static const struct {
        uint32_t  position, id;
        bt_finish finish, without_eos;
    } CASES[] = {
        {10, 1, BT_FINISH_EOS,        BT_FINISH_NONE      },
        {10, 2, BT_FINISH_EOS,        BT_FINISH_NONE      },
        {10, 7, BT_FINISH_STOP_TOKEN, BT_FINISH_STOP_TOKEN},
        {10, 9, BT_FINISH_STOP_TOKEN, BT_FINISH_STOP_TOKEN},
        {13, 3, BT_FINISH_NONE,       BT_FINISH_NONE      },
        {14, 3, BT_FINISH_LENGTH,     BT_FINISH_LENGTH    },
    };
    bt_model_config model = {
        .n_eos = 2, .eos_tokens = {1, 2}
    };
    bt_request r = {
        .n_prompt = 10, .sampling = {.max_tokens = 5, .n_stop = 2, .stop_tokens = stops}
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        r.sampling.ignore_eos = false;
        EXPECT_EQ(bt_request_finish(&model, &r, CASES[i].position, CASES[i].id), CASES[i].finish);
        r.sampling.ignore_eos = true;
        EXPECT_EQ(bt_request_finish(&model, &r, CASES[i].position, CASES[i].id),
                  CASES[i].without_eos);
    }
}

static void choices_do_not_depend_on_threads(void)
{
    bench                        b[2];
    const bt_up_prompt_logprobs *prompt[2];
    const bt_token              *tokens[2];

    for (int i = 0; i < 2; i++) {
        bench_set_up(&b[i], 0, 1, 1);
        run_choices(&b[i], i == 0 ? NULL : bt_device_cpu_pool(b[i].dev));
        EXPECT_EQ(b[i].n_up, 2);
        EXPECT(b[i].up[0].kind == BT_UP_PROMPT_LOGPROBS && b[i].up[1].kind == BT_UP_TOKENS);
        prompt[i] = &b[i].up[0].u.prompt_logprobs;
        tokens[i] = b[i].up[1].u.tokens.tokens;
        EXPECT_EQ(prompt[i]->n, 9);
        EXPECT_EQ(prompt[i]->position, 1); /* nothing is said of the first token */
        EXPECT_EQ(b[i].up[1].u.tokens.n, 4);
    }
    EXPECT_EQ(memcmp(prompt[0]->logprobs, prompt[1]->logprobs, 9 * sizeof(float)), 0);
    EXPECT_EQ(memcmp(prompt[0]->top_ids, prompt[1]->top_ids, 9 * 2 * sizeof(uint32_t)), 0);
    EXPECT_EQ(memcmp(prompt[0]->top_logprobs, prompt[1]->top_logprobs, 9 * 2 * sizeof(float)), 0);
    EXPECT_EQ(memcmp(tokens[0], tokens[1], 4 * sizeof(*tokens[0])), 0);
    for (uint32_t i = 0; i < 4; i++)
        EXPECT(tokens[0][i].choice == i && tokens[0][i].n_top == 3 && tokens[0][i].logprob < 0);
    EXPECT(tokens[0][0].id != tokens[0][1].id || tokens[0][0].id != tokens[0][2].id);
    EXPECT(prompt[0]->logprobs[0] != prompt[0]->logprobs[8]);
    bench_tear_down(&b[0]);
    bench_tear_down(&b[1]);
}

static void replay_that_begins_otherwise_fails_the_request(void)
{
    bench   b;
    bt_down m = bench_reserve(1, 10, 5);

    m.u.reserve.n_replay = 1;
    m.u.reserve.replay   = bench_ids(1, 7);
    bench_set_up(&b, 0, 0, 0);
    EXPECT_EQ(bench_run_prompt(&b, m), BT_OK);
    EXPECT(b.n_up == 3 && b.up[0].kind == BT_UP_TOKENS && b.up[2].kind == BT_UP_RELEASED);
    EXPECT(b.up[1].kind == BT_UP_FAILED && b.up[1].u.failed.code == 13);
    EXPECT_HAS(b.up[1].u.failed.message, "is followed by token 0, the client has 7");
    bench_tear_down(&b);
}

/* The first one was when it came, as that of any request. */
static void replayed_tokens_are_counted_once(void)
{
    bench         b;
    bt_rank_facts facts;
    bt_down       m = bench_reserve(1, 10, 5);
    bt_request   *r = NULL;

    bench_set_up(&b, 1, 1, 1);
    facts                = bench_config(&b, 1, 1, 1).facts;
    facts.speculate      = 4; /* what is looked up has each token */
    m.u.reserve.prompt   = bt_calloc(10, sizeof(uint32_t));
    m.u.reserve.n_replay = 3;
    m.u.reserve.replay   = bench_ids(3, 7);
    EXPECT_EQ(bt_request_from_reserve(&facts, &m.u.reserve, &r), BT_OK);
    NEED(r != NULL);
    r->repeat_first = true;
    EXPECT_EQ(bt_request_note(r, 7), BT_OK);
    EXPECT_EQ(bt_worker_adopt_replay(r, 7), BT_OK);
    EXPECT_EQ(r->n_known, 3);
    EXPECT_EQ(r->next_token, 9);
    EXPECT(!r->repeat_first);
    EXPECT_EQ(r->drafter.n, 10 + 3);
    bt_request_destroy(r);
    bt_down_free(&m);
    bench_tear_down(&b);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(logits_that_are_no_numbers_fail_the_request_alone),
        BT_TEST(row_of_a_draft_that_has_no_token_fails_nobody),
        BT_TEST(first_token_says_what_was_cached_and_is_said_again),
        BT_TEST(nothing_ends_a_request_before_its_least_tokens),
        BT_TEST(draws_are_made_as_the_request_says),
        BT_TEST(every_end_is_one),
        BT_TEST(choices_do_not_depend_on_threads),
        BT_TEST(alternatives_that_are_not_there_have_no_chance),
        BT_TEST(replay_that_begins_otherwise_fails_the_request),
        BT_TEST(replayed_tokens_are_counted_once),
    };

    bt_log_init("rank", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
