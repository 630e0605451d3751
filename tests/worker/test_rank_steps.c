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
    EXPECT_HAS(bt_error_text(), "plans 8589934590 rows");
    bench_tear_down(&b);
}

/* The last decode rank of n, awake at wake number 1. */
static void set_up_in_group(bench *b, uint32_t n)
{
    bt_worker_config cfg;
    bt_down          m = {.kind = BT_DOWN_WAKE, .u.wake = {1}};

    bench_set_up(b, n, 1, n);
    cfg            = bench_config(b, n, 1, n);
    cfg.group_size = n;
    bench_make_anew(b, &cfg);
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

static void step_that_fails_is_passed_on(void)
{
    bench b;

    bench_set_up(&b, 0, 0, 0);
    b.step_status = BT_ERR_TIMEOUT;
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 5)), BT_ERR_TIMEOUT);
    EXPECT(!b.all_rows); /* only what tokens are chosen from goes through the last layer */
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
        bench_make_anew(&b, &cfg);
        bench_order_both(&b, bench_reserve(1, 40, 5));
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        if (fails) {
            b.step_status = BT_ERR_CANCELLED;
            EXPECT_EQ(bench_run_step(&b), BT_ERR_CANCELLED);
            EXPECT(b.prompt.start == 16 && b.prompt.n_rows == 16);
            EXPECT_EQ(b.prompt.form, BT_FORM_NORMAL);
            b.step_status = BT_OK;
        }
        bench_order_both(&b, bench_reserve(2, 10, 5));
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        EXPECT_EQ(b.prompt.n_rows, 10);
        EXPECT_EQ(bench_run_step(&b), BT_OK); /* and a row that request 2 generates */
        EXPECT(b.prompt.start == 16 && b.prompt.n_rows == 15);
        EXPECT_EQ(b.prompt.form, fails ? BT_FORM_NORMAL : BT_FORM_ABSORBED);
        bench_tear_down(&b);
    }
}

static bt_attn_form g_form[BT_N_ROLES]; /* of the last span of each role */

static bt_status launch_and_note_forms(void *ctx, bt_step *step)
{
    for (uint32_t i = 0; i < step->n_spans; i++)
        g_form[step->spans[i].role] = step->spans[i].form;
    return bench_launch(ctx, step);
}

/* By these dimensions both forms cost the same. */
static void forms_of_prompts_and_of_what_is_generated_are_as_set(void)
{
    static const struct {
        bt_form_policy form;
        bt_attn_form   prompt, generated;
    } CASES[] = {
        {BT_FORM_BY_ROLE,      BT_FORM_NORMAL,   BT_FORM_ABSORBED},
        {BT_FORM_ALL_NORMAL,   BT_FORM_NORMAL,   BT_FORM_NORMAL  },
        {BT_FORM_ALL_ABSORBED, BT_FORM_ABSORBED, BT_FORM_ABSORBED},
        {BT_FORM_BY_COST,      BT_FORM_NORMAL,   BT_FORM_ABSORBED},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bench            b;
        bt_worker_config cfg;

        bench_set_up(&b, 0, 0, 0);
        cfg              = bench_config(&b, 0, 0, 0);
        cfg.form         = CASES[i].form;
        cfg.links.launch = launch_and_note_forms;
        bench_make_anew(&b, &cfg);
        EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        EXPECT_EQ(g_form[BT_ROLE_PROMPT], CASES[i].prompt);
        EXPECT_EQ(g_form[BT_ROLE_GENERATED], CASES[i].generated);
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
        bench_order_both(&b, m);
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
    bench_order_both(&b, m);
    for (uint32_t i = 0; i < 60 && (b.n_up == 0 || b.up[0].kind == BT_UP_TOKENS); i++) {
        bench_forget(&b);
        EXPECT_EQ(bench_run_step(&b), BT_OK);
    }
    bench_expect_failed_and_gone(&b, 8, "nobody can give one back");
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
    r->u.reserve.choices                            = bench_ids(3, 0);
    p->u.prefill.choices                            = bench_ids(3, 0);
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
        BT_TEST(step_that_fails_is_passed_on),
        BT_TEST(step_that_came_to_nothing_is_computed_in_the_same_form),
        BT_TEST(forms_of_prompts_and_of_what_is_generated_are_as_set),
        BT_TEST(rank_that_has_lost_a_page_does_not_park),
        BT_TEST(youngest_that_grows_gives_way),
        BT_TEST(request_beside_an_evaluation_has_nobody_to_give_way),
        BT_TEST(steps_unwind_at_every_allocation),
    };

    bt_log_init("rank", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
