/* One rank's steps: when it wakes, what it does not take from others, and what fails alone. */
#include "core/clock.h"
#include "tests/support/test.h"
#include "tests/worker/bench.h"
#include "worker/state.h"

/* So long, in looks that are not far apart. */
static bt_status waits(bench *b, uint64_t ns)
{
    bt_status st = BT_OK;
    bt_plan   plan;
    bt_next   next;

    for (int i = 0; i < 40 && st == BT_OK; i++) {
        b->now += ns / 40;
        st = bt_worker_begin(b->worker, &plan, &next);
        if (st == BT_OK) EXPECT_EQ(next, BT_NEXT_PARK);
    }
    return st;
}

static void rank_that_is_not_woken_in_time_says_who_failed(void)
{
    bench   b;
    bt_down m;
    bt_plan plan;
    bt_next next;

    bench_set_up(&b, 0, 1, 1);
    m = bench_prefill(1, 10, 1, 1), bench_order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_PARK);
    EXPECT_EQ(b.n_up, 1);
    EXPECT_EQ(b.up[0].kind, BT_UP_WAKE_REQUEST);
    EXPECT_EQ(b.up[0].u.wake_request.wake, 0);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(b.n_up, 1); /* it asks once */
    EXPECT_EQ(waits(&b, 10 * BT_NS_PER_S), BT_OK);
    b.now += 60 * BT_NS_PER_S; /* in which it stood still itself */
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    b.now++;
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_ERR_TIMEOUT);
    EXPECT_HAS(bt_error_text(), "coordinator");

    m = (bt_down){.kind = BT_DOWN_WAKE, .u.wake = {1}};
    bench_order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    EXPECT_EQ(plan.wake, 1);
    EXPECT_EQ(plan.n_rows[BT_ROLE_PROMPT], 10);
    bench_tear_down(&b);
}

/* Whether a coordinator that stands still is lost is not for a step's deadline to say. */
static void rank_waits_to_be_woken_for_longer_than_for_a_step(void)
{
    bench   b;
    bt_down m;
    bt_plan plan;
    bt_next next;

    bench_set_up(&b, 0, 1, 1);
    b.worker->cfg.wake_ns = 3 * b.worker->cfg.timeout_ns;
    m                     = bench_prefill(1, 10, 1, 1), bench_order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_PARK);
    EXPECT_EQ(waits(&b, b.worker->cfg.wake_ns), BT_OK);
    b.now++;
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_ERR_TIMEOUT);
    bench_tear_down(&b);
}

static void plans_that_do_not_agree_stop_the_rank(void)
{
    bench   b;
    bt_plan plan  = {.epoch = 2};
    bool    leave = false;

    bench_set_up(&b, 0, 1, 1);
    EXPECT_EQ(bt_worker_finish(b.worker, &plan, &leave), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), "epoch 2");
    plan = (bt_plan){
        .epoch = 1, .n_rows = {UINT32_MAX, UINT32_MAX}
    };
    EXPECT_EQ(bt_worker_finish(b.worker, &plan, &leave), BT_ERR_PROTOCOL);
    bench_tear_down(&b);
}

/* In place of what bench_set_up() has made. */
static void make_anew(bench *b, const bt_worker_config *cfg)
{
    bt_worker_destroy(b->worker);
    EXPECT_EQ(bt_worker_create(cfg, &b->worker), BT_OK);
}

/* The last decode rank of n, awake at wake number 1. */
static void set_up_in_group(bench *b, uint32_t n)
{
    bt_worker_config cfg;
    bt_down          m = {.kind = BT_DOWN_WAKE, .u.wake = {1}};

    bench_set_up(b, n, 1, n);
    cfg            = bench_config(b, n, 1, n);
    cfg.group_size = n;
    make_anew(b, &cfg);
    bench_order(b, &m);
}

/* The last of three ranks, after a step without rows: its next step. */
static bt_next step_after(bt_plan plans[3], bt_status want, bool *leave_out)
{
    bench   b;
    bt_plan own;
    bt_next next = BT_NEXT_LEAVE;

    set_up_in_group(&b, 3);
    EXPECT_EQ(bt_worker_begin(b.worker, &own, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    plans[2] = own;
    EXPECT_EQ(bt_worker_finish(b.worker, plans, leave_out), want);
    if (want == BT_OK) EXPECT_EQ(bt_worker_begin(b.worker, &own, &next), BT_OK);
    bench_tear_down(&b);
    return next;
}

/* Whichever rank it is that differs. */
static void plans_of_all_ranks_decide(void)
{
    for (int i = 0; i < 2; i++) {
        bt_plan plans[3];
        bool    leave = true;

        plans[0] = plans[1] = (bt_plan){.epoch = 1, .wake = 1};
        EXPECT_EQ(step_after(plans, BT_OK, &leave), BT_NEXT_PARK);
        EXPECT(!leave);
        plans[i].wake = 2; /* it would go on alone */
        EXPECT_EQ(step_after(plans, BT_OK, &leave), BT_NEXT_GATHER);
        plans[i].wake     = 1;
        plans[i].shutdown = 1;
        EXPECT_EQ(step_after(plans, BT_OK, &leave), BT_NEXT_GATHER);
        EXPECT(leave);
        plans[i] = (bt_plan){
            .epoch = 1, .wake = 1, .n_rows = {2, 1},
                    .last_rows = {2, 2}
        };
        step_after(plans, BT_ERR_PROTOCOL, &leave);
        EXPECT_HAS(bt_error_text(), "2 rows of a role in the last layer");
        plans[i] = (bt_plan){.epoch = 1, .wake = 1, .n_drafts = 1};
        step_after(plans, BT_ERR_PROTOCOL, &leave);
        EXPECT_HAS(bt_error_text(), "drafts of 1 tokens; expected at most 0");
    }
}

/* A wake number that comes between a plan and what follows from it is not the one that the group
 * parks with: the rank must not sleep through it. */
static void wake_that_comes_while_the_group_agrees_is_not_lost(void)
{
    bench   b;
    bt_down m = {.kind = BT_DOWN_WAKE, .u.wake = {2}};
    bt_plan plans[2];
    bt_next next;
    bool    leave = true;

    set_up_in_group(&b, 2);
    EXPECT_EQ(bt_worker_begin(b.worker, &plans[1], &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    plans[0] = plans[1];
    bench_order(&b, &m);
    EXPECT_EQ(bt_worker_finish(b.worker, plans, &leave), BT_OK);
    EXPECT_EQ(bt_worker_begin(b.worker, &plans[1], &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    EXPECT_EQ(plans[1].wake, 2);
    m = (bt_down){.kind = BT_DOWN_WAKE, .u.wake = {1}}; /* an older one changes nothing */
    bench_order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plans[1], &next), BT_OK);
    EXPECT_EQ(plans[1].wake, 2);
    bench_tear_down(&b);
}

/* A rank without rows; the other one of its group has three. */
static void run_beside(bench *b, const bt_graph_offer *other)
{
    bt_plan plans[2];
    bt_next next;
    bool    leave = true;

    EXPECT_EQ(bt_worker_begin(b->worker, &plans[1], &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    plans[0]                           = plans[1];
    plans[0].n_rows[BT_ROLE_GENERATED] = 3;
    plans[0].graphs                    = *other;
    EXPECT_EQ(bt_worker_finish(b->worker, plans, &leave), BT_OK);
}

static void ranks_agree_on_the_graph_of_a_step(void)
{
    static const bt_graph_offer ALL = {
        .n_parts = 1, .has = {3, 3, 3, 3},
             .can = {3, 3, 3, 3}
    };
    bench          b;
    bt_graph_offer other = ALL;

    set_up_in_group(&b, 2);
    b.offer       = ALL;
    other.n_parts = 2;
    run_beside(&b, &other);
    EXPECT(b.graph.n_rows == 4 && b.graph.n_parts == 2 && !b.graph.captures);
    EXPECT_EQ(b.group_rows, 8);
    b.offer.has[2] = 1;
    run_beside(&b, &other);
    EXPECT(b.graph.n_rows == 4 && b.graph.n_parts == 2 && b.graph.captures);
    EXPECT_EQ(b.group_rows, 8);
    b.offer.can[2] = 1;
    run_beside(&b, &other);
    EXPECT_EQ(b.graph.n_rows, 0);
    EXPECT_EQ(b.group_rows, 3);
    b.offer       = ALL;
    other.n_parts = 0;
    run_beside(&b, &other);
    EXPECT_EQ(b.graph.n_rows, 0);
    EXPECT_EQ(b.group_rows, 3);
    bench_tear_down(&b);
}

/* Reserves for a request of a rank of both roles, sampled without lists, and orders its prompt. */
static void order_both(bench *b, bt_down m)
{
    const bt_up *said     = &b->up[0];
    bt_sampling  sampling = m.u.reserve.sampling;
    uint64_t     id       = m.u.reserve.request;
    uint32_t     n_prompt = m.u.reserve.n_prompt;

    bench_order(b, &m);
    m                    = bench_prefill(id, n_prompt, said->u.ticket.n_pages, 0);
    m.u.prefill.sampling = sampling;
    memcpy(m.u.prefill.pages, said->u.ticket.pages, m.u.prefill.n_pages * sizeof(bt_page_ref));
    bench_order(b, &m);
    bench_forget(b);
}

/* Runs the one request of a rank of both roles, of 10 tokens, through its prompt. */
static bt_status run_prompt(bench *b, bt_down m)
{
    order_both(b, m);
    return bench_run_step(b);
}

/* One request has failed and is gone, since its logits are no numbers. */
static void expect_no_number_failed(bench *b)
{
    EXPECT_EQ(b->n_up, 2);
    EXPECT_EQ(b->up[1].kind, BT_UP_RELEASED);
    bt_up_free(&b->up[--b->n_up]);
    bench_expect_failed(b, 13, "not a finite number");
}

static void logits_that_are_no_numbers_fail_the_request_alone(void)
{
    bench b;

    bench_set_up(&b, 0, 0, 0);
    b.logit = 0.0f / 0.0f;
    EXPECT_EQ(run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
    expect_no_number_failed(&b);
    bench_tear_down(&b);
}

/* A rank of both roles, whose model's own layer drafts up to `mtp` tokens. */
static bt_worker_config drafting_config(bench *b, uint32_t mtp)
{
    bt_worker_config cfg = bench_config(b, 0, 0, 0);

    cfg.facts.mtp = mtp;
    return cfg;
}

static uint32_t g_n_drafts; /* calls of the link below */

static bt_status draft_while_pages_are_held(void *ctx, bt_step *step)
{
    const bench *b = ctx;

    g_n_drafts++;
    EXPECT_EQ(step->n_rows, 10);
    EXPECT_EQ(step->n_logit_rows, 1);
    EXPECT_EQ(step->spans[0].pages[0], 0);
    EXPECT(bt_kv_pool_n_free(b->pool) < BENCH_PAGES);
    return BT_OK;
}

/* Its rows are part of a plan, so they draft all the same. */
static void request_that_fails_keeps_its_pages_until_its_step_has_drafted(void)
{
    bench            b;
    bt_worker_config cfg;

    bench_set_up(&b, 0, 0, 0);
    cfg             = drafting_config(&b, 1);
    cfg.links.draft = draft_while_pages_are_held;
    make_anew(&b, &cfg);
    b.logit = 0.0f / 0.0f;
    EXPECT_EQ(run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
    EXPECT_EQ(g_n_drafts, 1);
    expect_no_number_failed(&b);
    bench_tear_down(&b);
}

/* Tokens that are planned to be drafted behind a prompt, where weights of a step are such bytes. */
static uint32_t drafts_planned(bt_step_reads reads)
{
    bench            b;
    bt_worker_config cfg;
    bt_plan          plan;
    bt_next          next;
    bt_down          m = {.kind = BT_DOWN_WAKE, .u.wake = {1}};

    bench_set_up(&b, 0, 0, 0);
    cfg       = drafting_config(&b, 3);
    cfg.reads = reads;
    make_anew(&b, &cfg);
    order_both(&b, bench_reserve(1, 10, 9));
    bench_order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    EXPECT_EQ(plan.last_rows[BT_ROLE_PROMPT], plan.n_drafts > 0);
    bench_tear_down(&b);
    return plan.n_drafts;
}

/* Nobody knows yet how often drafts are right: 0.7 is taken, so 0.49 for the second token.  Of two
 * layers the one that drafts is much. */
static void drafts_are_planned_as_far_as_they_pay(void)
{
    EXPECT_EQ(drafts_planned((bt_step_reads){0, 0}), 3);
    EXPECT_EQ(drafts_planned((bt_step_reads){4e7, 0}), 2); /* beside what a step takes anyway */
    EXPECT_EQ(drafts_planned((bt_step_reads){1e9, 0}), 1);
    EXPECT_EQ(drafts_planned((bt_step_reads){1e9, 1e9}), 0); /* a row has experts of its own */
}

/* Each row that drafts is one of its span's. */
static bt_status draft_of_own_rows(void *ctx, bt_step *step)
{
    (void)ctx;
    g_n_drafts++;
    EXPECT_EQ(step->n_logit_rows, step->n_spans);
    for (uint32_t i = 0; i < step->n_logit_rows; i++)
        EXPECT(step->logit_rows[i] - step->spans[i].first_row < step->spans[i].n_rows);
    return BT_OK;
}

/* One choice's end is that of those behind it in the step, of which nothing is chosen. */
static void choices_that_fail_with_another_draft_from_rows_of_theirs(void)
{
    bench            b;
    bt_worker_config cfg;
    bt_down          m = bench_reserve(1, 10, 5);

    bench_set_up(&b, 0, 0, 0);
    cfg             = drafting_config(&b, 1);
    cfg.links.draft = draft_of_own_rows;
    make_anew(&b, &cfg);
    g_n_drafts            = 0;
    m.u.reserve.n_choices = 3;
    m.u.reserve.choices   = bt_calloc(3, sizeof(uint32_t));
    for (uint32_t i = 0; i < 3; i++)
        m.u.reserve.choices[i] = i;
    EXPECT_EQ(run_prompt(&b, m), BT_OK);
    bench_forget(&b);
    b.logit = 0.0f / 0.0f;
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(g_n_drafts, 2);
    expect_no_number_failed(&b);
    bench_tear_down(&b);
}

static uint32_t g_n_drafting; /* rows of the last call of the link below */

static bt_status count_drafting(void *ctx, bt_step *step)
{
    (void)ctx;
    g_n_drafting = step->n_logit_rows;
    for (uint32_t i = 0; i < step->n_logit_rows * BENCH_VOCAB; i++)
        step->logits[i] = 0;
    return BT_OK;
}

/* A step with drafts has at most 32 rows here, and one with 30 of a prompt has room for one. */
static void nothing_is_drafted_for_a_step_that_prompts_fill(void)
{
    bench            b;
    bt_worker_config cfg;

    bench_set_up(&b, 0, 0, 0);
    cfg             = drafting_config(&b, 1);
    cfg.chunk       = 40;
    cfg.max_rows    = 64;
    cfg.links.draft = count_drafting;
    make_anew(&b, &cfg);
    EXPECT_EQ(run_prompt(&b, bench_reserve(1, 10, 40)), BT_OK);
    EXPECT_EQ(g_n_drafting, 1);
    bench_forget(&b);
    order_both(&b, bench_reserve(2, 110, 1));
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        EXPECT_EQ(b.prompt.n_rows, i < 2 ? 40 : 30);
        EXPECT_EQ(g_n_drafting, i == 0 ? 0 : 1);
        bench_forget(&b);
    }
    bench_tear_down(&b);
}

/* Four choices of a prompt, and logprobs of everything. */
static void run_choices(bench *b, bt_cpu_pool *threads)
{
    bt_worker_config cfg = bench_config(b, 0, 1, 1);
    bt_down          m   = bench_prefill(1, 10, 4, 1);

    cfg.threads = threads;
    b->uneven   = true;
    make_anew(b, &cfg);
    m.u.prefill.sampling  = (bt_sampling){.temperature     = 1,
                                          .seed            = 7,
                                          .max_tokens      = 5,
                                          .logprobs        = true,
                                          .top_logprobs    = 3,
                                          .prompt_logprobs = 3};
    m.u.prefill.n_choices = 4;
    m.u.prefill.choices   = bt_calloc(4, sizeof(uint32_t));
    for (uint32_t i = 0; i < 4; i++)
        m.u.prefill.choices[i] = i;
    bench_order(b, &m);
    EXPECT_EQ(bench_run_step(b), BT_OK);
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
        m.u.prefill.sampling.n_stop       = 1;
        m.u.prefill.sampling.stop_tokens  = bt_calloc(1, sizeof(uint32_t));
        *m.u.prefill.sampling.stop_tokens = end;
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
        EXPECT_EQ(b[i].up[1].u.tokens.n, 4);
    }
    EXPECT_EQ(memcmp(prompt[0]->logprobs, prompt[1]->logprobs, 9 * sizeof(float)), 0);
    EXPECT_EQ(memcmp(prompt[0]->top_ids, prompt[1]->top_ids, 9 * 2 * sizeof(uint32_t)), 0);
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
    m.u.reserve.replay   = bt_calloc(1, sizeof(uint32_t));
    *m.u.reserve.replay  = 7;
    bench_set_up(&b, 0, 0, 0);
    EXPECT_EQ(run_prompt(&b, m), BT_OK);
    EXPECT(b.n_up == 3 && b.up[0].kind == BT_UP_TOKENS && b.up[2].kind == BT_UP_RELEASED);
    EXPECT_EQ(b.up[1].kind, BT_UP_FAILED);
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
    m.u.reserve.replay   = bt_calloc(3, sizeof(uint32_t));
    for (uint32_t i = 0; i < 3; i++)
        m.u.reserve.replay[i] = 7 + i;
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

/* A long step is no rank that stands still. */
static void every_layer_is_progress(void)
{
    bench b;

    bench_set_up(&b, 0, 0, 0);
    b.tells_layers = true;
    EXPECT_EQ(run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
    b.now += BT_NS_PER_S;
    bt_worker_background(b.worker);
    EXPECT_EQ(b.progress, 1 + BENCH_LAYERS); /* the step's begin, too */
    bench_tear_down(&b);
}

/* A beat between layers counts those before it, else a rank in a long step would look idle, and
 * after it busy for more than all of its time. */
static void beat_within_a_step_counts_the_time_so_far(void)
{
    bench b;

    bench_set_up(&b, 0, 0, 0);
    b.tells_layers = true;
    b.layer_ns     = BT_NS_PER_S;
    EXPECT_EQ(run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
    EXPECT_EQ(b.model_ns, BENCH_LAYERS * BT_NS_PER_S); /* the last one comes before the end */
    b.now += BT_NS_PER_S;
    bt_worker_background(b.worker);
    EXPECT_EQ(b.model_ns, BENCH_LAYERS * BT_NS_PER_S);
    bench_tear_down(&b);
}

/* How long a rank has waited for others is known when that has ended: a beat meanwhile counts
 * neither, else one that waits for a rank that stands still would be the slow one. */
static void beat_within_a_layer_does_not_count_it(void)
{
    bench b;

    bench_set_up(&b, 0, 0, 0);
    b.tells_layers = b.waits = true;
    b.layer_ns               = BT_NS_PER_S;
    EXPECT_EQ(run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
    EXPECT_EQ(b.model_ns, (BENCH_LAYERS - 1) * BT_NS_PER_S); /* of a beat within the last one */
    EXPECT_EQ(b.counted_ns, b.now - BT_NS_PER_S);
    b.now += BT_NS_PER_S;
    bt_worker_background(b.worker);
    EXPECT_EQ(b.model_ns, BENCH_LAYERS * BT_NS_PER_S);
    EXPECT_EQ(b.counted_ns, b.now);
    bench_tear_down(&b);
}

static void step_that_fails_is_passed_on(void)
{
    bench b;

    bench_set_up(&b, 0, 0, 0);
    b.step_status = BT_ERR_TIMEOUT;
    EXPECT_EQ(run_prompt(&b, bench_reserve(1, 10, 5)), BT_ERR_TIMEOUT);
    bench_tear_down(&b);
}

/* Rows of it may have been handed over.  By the dimensions here 16 rows behind 16 others are
 * cheaper in the normal form, 15 in the absorbed one. */
static void step_that_came_to_nothing_is_computed_in_the_same_form(void)
{
    for (uint32_t fails = 0; fails < 2; fails++) {
        bench            b;
        bt_worker_config cfg;

        bench_set_up(&b, 0, 0, 0);
        b.model.mla =
            (bt_mla_config){.kv_lora_rank = 32, .qk_nope_dim = 16, .v_dim = 15, .qk_rope_dim = 2};
        cfg                  = bench_config(&b, 0, 0, 0);
        cfg.max_rows         = cfg.chunk;
        cfg.form             = BT_FORM_BY_COST;
        cfg.facts.keeps_maps = true;
        make_anew(&b, &cfg);
        order_both(&b, bench_reserve(1, 40, 5));
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        if (fails) {
            b.step_status = BT_ERR_CANCELLED;
            EXPECT_EQ(bench_run_step(&b), BT_ERR_CANCELLED);
            EXPECT(b.prompt.start == 16 && b.prompt.n_rows == 16);
            EXPECT_EQ(b.prompt.form, BT_FORM_NORMAL);
            b.step_status = BT_OK;
        }
        order_both(&b, bench_reserve(2, 10, 5));
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        EXPECT_EQ(b.prompt.n_rows, 10);
        EXPECT_EQ(bench_run_step(&b), BT_OK); /* and a row that request 2 generates */
        EXPECT(b.prompt.start == 16 && b.prompt.n_rows == 15);
        EXPECT_EQ(b.prompt.form, fails ? BT_FORM_NORMAL : BT_FORM_ABSORBED);
        bench_tear_down(&b);
    }
}

/* A page that no request has, where none is left, has been lost. */
static void rank_that_has_lost_a_page_does_not_park(void)
{
    bench      b;
    bt_page_id page = 0;

    bench_set_up(&b, 0, 0, 0);
    EXPECT_EQ(bt_kv_pool_acquire(b.pool, 1, &page), BT_OK);
    EXPECT_EQ(bench_run_step(&b), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), "no request is here, but 3 pages are free");
    bt_kv_pool_release(b.pool, page);
    bench_tear_down(&b);
}

/* Two requests and an evaluation fill the pool; request 1 is younger than request 2. */
static void youngest_that_grows_gives_way(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 0, 0, 0);
    m = bench_reserve(3, 10, 0), m.u.reserve.eval = true, m.u.reserve.arrival = 11;
    bench_order(&b, &m);
    bench_forget(&b);
    for (uint64_t id = 1; id <= 2; id++) {
        m                               = bench_reserve(id, 60, 80);
        m.u.reserve.arrival             = 10 - id;
        m.u.reserve.sampling.ignore_eos = true;
        order_both(&b, m);
    }
    for (uint32_t i = 0; i < 30 && (b.n_up == 0 || b.up[0].kind == BT_UP_TOKENS); i++) {
        bench_forget(&b);
        EXPECT_EQ(bench_run_step(&b), BT_OK);
    }
    EXPECT(b.n_up >= 2 && b.up[0].kind == BT_UP_RETRACTED && b.up[1].kind == BT_UP_RELEASED);
    EXPECT(b.up[0].u.retracted.request == 1 && b.up[0].u.retracted.epoch == 3);
    EXPECT_EQ(b.worker->requests.n, 2);
    bench_tear_down(&b);
}

/* The evaluation has two pages of four until it ends, and the request beside it wants a third. */
static void request_beside_an_evaluation_has_nobody_to_give_way(void)
{
    bench   b;
    bt_down m;

    bench_set_up(&b, 0, 0, 0);
    m = bench_reserve(2, 100, 0), m.u.reserve.eval = true, bench_order(&b, &m);
    bench_forget(&b);
    m                               = bench_reserve(1, 100, 60);
    m.u.reserve.sampling.ignore_eos = true;
    order_both(&b, m);
    for (uint32_t i = 0; i < 60 && (b.n_up == 0 || b.up[0].kind == BT_UP_TOKENS); i++) {
        bench_forget(&b);
        EXPECT_EQ(bench_run_step(&b), BT_OK);
    }
    EXPECT_EQ(b.n_up, 2); /* Failed, and Released */
    EXPECT_EQ(b.up[1].kind, BT_UP_RELEASED);
    bt_up_free(&b.up[--b.n_up]);
    bench_expect_failed(&b, 8, "nobody can give one back");
    bench_tear_down(&b);
}

/* Orders, a prompt, and decoding to the end; what the rank says is kept. */
static bt_status run_life(bench *b, bt_down *orders)
{
    bt_status st   = BT_OK;
    bt_next   next = BT_NEXT_GATHER;
    bt_plan   plan;
    bool      leave = false;

    BT_TRY(bt_worker_control(b->worker, &orders[0]));
    orders[1].u.prefill.pages[0] = b->up[0].u.ticket.pages[0];
    BT_TRY(bt_worker_control(b->worker, &orders[1]));
    BT_TRY(bt_worker_control(b->worker, &orders[2]));
    for (int i = 0; i < 12 && next == BT_NEXT_GATHER; i++) {
        BT_TRY(bt_worker_begin(b->worker, &plan, &next));
        if (next == BT_NEXT_GATHER) BT_TRY(bt_worker_finish(b->worker, &plan, &leave));
    }
    EXPECT_EQ(next, BT_NEXT_PARK);
    EXPECT_EQ(b->worker->requests.n, 0);
out:
    return st;
}

/* A rank of both roles, and what it will be ordered: three choices of a prompt. */
static void begin_life(bench *b, bt_down *orders)
{
    bt_sampling how = {
        .max_tokens = 3, .temperature = 1, .repetition_penalty = 1.1f, .prompt_logprobs = 3};
    bt_down *r = &orders[0], *p = &orders[1];

    bench_set_up(b, 0, 0, 0);
    b->uneven                            = true;
    b->worker->cfg.facts.keeps_maps      = true;
    b->worker->cfg.facts.share_generated = true;
    *r                                   = bench_reserve(1, 10, 3);
    *p                                   = bench_prefill(1, 10, 1, 0);
    orders[2]                            = (bt_down){.kind = BT_DOWN_WAKE, .u.wake = {1}};
    r->u.reserve.sampling = p->u.prefill.sampling = how;
    r->u.reserve.prompt                           = bt_calloc(10, sizeof(uint32_t));
    r->u.reserve.n_choices = p->u.prefill.n_choices = 3;
    r->u.reserve.choices                            = bt_calloc(3, sizeof(uint32_t));
    p->u.prefill.choices                            = bt_calloc(3, sizeof(uint32_t));
    for (uint32_t i = 0; i < 3; i++)
        r->u.reserve.choices[i] = p->u.prefill.choices[i] = i;
}

static void end_life(bench *b, bt_down *orders)
{
    for (int i = 0; i < 3; i++)
        bt_down_free(&orders[i]);
    bench_tear_down(b);
}

/* Memory that ends at any moment of a request costs that request or the rank; either leaves
 * nothing. */
static void steps_unwind_at_every_allocation(void)
{
    enum { ALL = 23 };
    uint32_t n_failed = 0, n_done = 0;

    for (long k = 0; k <= ALL; k++) {
        long      live = bt_alloc_live();
        bench     b;
        bt_down   orders[3];
        bt_status st;

        begin_life(&b, orders);
        bt_alloc_fail_at(k);
        st = run_life(&b, orders);
        bt_alloc_fail_at(-1);
        EXPECT(st == BT_OK || st == BT_ERR_NO_MEMORY);
        if (st == BT_OK && b.up[b.n_up - 2].kind == BT_UP_FAILED)
            n_failed++;
        else if (st == BT_OK)
            n_done++;
        end_life(&b, orders);
        EXPECT_EQ(bt_alloc_live(), live);
    }
    EXPECT_EQ(n_done, 1); /* with all memory */
    EXPECT(n_failed > 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(rank_that_is_not_woken_in_time_says_who_failed),
        BT_TEST(rank_waits_to_be_woken_for_longer_than_for_a_step),
        BT_TEST(plans_that_do_not_agree_stop_the_rank),
        BT_TEST(plans_of_all_ranks_decide),
        BT_TEST(wake_that_comes_while_the_group_agrees_is_not_lost),
        BT_TEST(ranks_agree_on_the_graph_of_a_step),
        BT_TEST(logits_that_are_no_numbers_fail_the_request_alone),
        BT_TEST(request_that_fails_keeps_its_pages_until_its_step_has_drafted),
        BT_TEST(drafts_are_planned_as_far_as_they_pay),
        BT_TEST(choices_that_fail_with_another_draft_from_rows_of_theirs),
        BT_TEST(nothing_is_drafted_for_a_step_that_prompts_fill),
        BT_TEST(nothing_ends_a_request_before_its_least_tokens),
        BT_TEST(every_end_is_one),
        BT_TEST(choices_do_not_depend_on_threads),
        BT_TEST(replay_that_begins_otherwise_fails_the_request),
        BT_TEST(replayed_tokens_are_counted_once),
        BT_TEST(every_layer_is_progress),
        BT_TEST(beat_within_a_step_counts_the_time_so_far),
        BT_TEST(beat_within_a_layer_does_not_count_it),
        BT_TEST(step_that_fails_is_passed_on),
        BT_TEST(step_that_came_to_nothing_is_computed_in_the_same_form),
        BT_TEST(rank_that_has_lost_a_page_does_not_park),
        BT_TEST(youngest_that_grows_gives_way),
        BT_TEST(request_beside_an_evaluation_has_nobody_to_give_way),
        BT_TEST(steps_unwind_at_every_allocation),
    };

    bt_log_init("rank", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
