/* What the model's own layer drafts in one rank's steps: how far, from which rows, and when not. */
#include "tests/support/test.h"
#include "tests/worker/bench.h"
#include "worker/state.h"

static uint32_t g_n_drafts; /* calls of the link */

/* A rank of both roles, whose model's own layer drafts up to `mtp` tokens by this link. */
static void set_up(bench *b, uint32_t mtp, bt_status (*draft)(void *ctx, bt_step *step))
{
    bt_worker_config cfg;

    bench_set_up(b, 0, 0, 0);
    cfg             = bench_config(b, 0, 0, 0);
    cfg.facts.mtp   = mtp;
    cfg.chunk       = 40;
    cfg.max_rows    = 64;
    cfg.links.draft = draft;
    bench_make_anew(b, &cfg);
    g_n_drafts = 0;
}

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
    bench b;

    set_up(&b, 1, draft_while_pages_are_held);
    b.logit = 0.0f / 0.0f;
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
    EXPECT_EQ(g_n_drafts, 1);
    EXPECT(b.all_rows); /* from which the layer goes on */
    bench_expect_failed_and_gone(&b, 13, "not a finite number");
    bench_tear_down(&b);
}

/* Tokens that are planned to be drafted behind a prompt, where weights of a step are such bytes. */
static uint32_t drafts_planned(bt_step_reads reads, bt_draft_pace pace, uint32_t n_prompt,
                               uint32_t max_tokens)
{
    bench   b;
    bt_plan plan;
    bt_next next;
    bt_down m = {.kind = BT_DOWN_WAKE, .u.wake = {1}};

    set_up(&b, 3, no_launch);
    b.worker->cfg.reads = reads;
    b.worker->mtp.pace  = pace;
    bench_order_both(&b, bench_reserve(1, n_prompt, max_tokens));
    if (n_prompt > 40) EXPECT_EQ(bench_run_step(&b), BT_OK); /* its first piece */
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
    static const bt_draft_pace UNKNOWN = {0}, WRONG = {.knows = true, .right = 0.1f};

    EXPECT_EQ(drafts_planned((bt_step_reads){0, 0}, UNKNOWN, 10, 9), 3);
    EXPECT_EQ(drafts_planned((bt_step_reads){4e7, 0}, UNKNOWN, 10, 9),
              2); /* beside what a step takes anyway */
    EXPECT_EQ(drafts_planned((bt_step_reads){1e9, 0}, UNKNOWN, 10, 9), 1);
    EXPECT_EQ(drafts_planned((bt_step_reads){1e9, 1e9}, UNKNOWN, 10, 9),
              0); /* a row has experts of its own */
    EXPECT_EQ(drafts_planned((bt_step_reads){1e9, 0}, WRONG, 10, 9),
              0); /* as those of others were */
}

/* Behind the first token and the next one, which is drawn beside the draft. */
static void drafts_are_planned_as_far_as_there_is_something_to_say(void)
{
    for (uint32_t n = 0; n < 4; n++)
        EXPECT_EQ(drafts_planned((bt_step_reads){0, 0}, (bt_draft_pace){0}, 10, 2 + n), n);
}

/* A page has 64: the rows of all rounds must have room. */
static void drafts_are_planned_as_far_as_there_are_pages(void)
{
    EXPECT_EQ(drafts_planned((bt_step_reads){0, 0}, (bt_draft_pace){0}, 62, 9), 3);
    EXPECT_EQ(drafts_planned((bt_step_reads){0, 0}, (bt_draft_pace){0}, 63, 9), 0);
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
    bench   b;
    bt_down m = bench_reserve(1, 10, 5);

    set_up(&b, 1, draft_of_own_rows);
    m.u.reserve.n_choices = 3;
    m.u.reserve.choices   = bench_ids(3, 0);
    EXPECT_EQ(bench_run_prompt(&b, m), BT_OK);
    bench_forget(&b);
    b.logit = 0.0f / 0.0f;
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(g_n_drafts, 2);
    bench_expect_failed_and_gone(&b, 13, "not a finite number");
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

static bt_status draft_without_numbers(void *ctx, bt_step *step)
{
    (void)ctx;
    g_n_drafts++;
    for (uint32_t i = 0; i < step->n_logit_rows * BENCH_VOCAB; i++)
        step->logits[i] = 0.0f / 0.0f;
    return BT_OK;
}

static void layer_without_a_finite_number_drafts_nothing(void)
{
    bench b;

    set_up(&b, 2, draft_without_numbers);
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 9)), BT_OK);
    bench_forget(&b);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(g_n_drafts, 4);
    EXPECT_EQ(b.worker->n_drafted, 0);
    EXPECT(b.n_up == 1 && b.up[0].kind == BT_UP_TOKENS); /* which fails nobody */
    bench_tear_down(&b);
}

/* A step with drafts has at most 32 rows here, and one with 30 of a prompt has room for one. */
static void nothing_is_drafted_for_a_step_that_prompts_fill(void)
{
    bench b;

    set_up(&b, 1, count_drafting);
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 40)), BT_OK);
    EXPECT_EQ(g_n_drafting, 1);
    bench_forget(&b);
    bench_order_both(&b, bench_reserve(2, 110, 1));
    for (uint32_t i = 0; i < 3; i++) {
        g_n_drafting = UINT32_MAX;
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        EXPECT_EQ(b.prompt.n_rows, i < 2 ? 40 : 30);
        EXPECT_EQ(g_n_drafting, i == 0 ? 0 : 1);
        bench_forget(&b);
    }
    bench_tear_down(&b);
}

/* The rest of the prompt would fill it. */
static void of_a_long_prompt_the_next_piece_counts(void)
{
    bench            b;
    bt_worker_config cfg;

    set_up(&b, 1, count_drafting);
    cfg       = b.worker->cfg;
    cfg.chunk = 20;
    bench_make_anew(&b, &cfg);
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 40)), BT_OK);
    bench_forget(&b);
    bench_order_both(&b, bench_reserve(2, 110, 1));
    g_n_drafting = 0;
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(b.prompt.n_rows, 20);
    EXPECT_EQ(g_n_drafting, 1);
    bench_tear_down(&b);
}

static uint32_t g_drafted[BENCH_PAGES]; /* how often, by a request's first page */

static bt_status count_by_page(void *ctx, bt_step *step)
{
    (void)ctx;
    g_n_drafts++;
    for (uint32_t i = 0; i < step->n_spans; i++)
        for (uint32_t k = 0; k < step->n_logit_rows; k++)
            if (step->logit_rows[k] - step->spans[i].first_row < step->spans[i].n_rows)
                g_drafted[step->spans[i].pages[0]]++;
    for (uint32_t i = 0; i < step->n_logit_rows * BENCH_VOCAB; i++)
        step->logits[i] = 0;
    return BT_OK;
}

/* A step of three rows has room for a draft of one token beside those of two requests. */
static void requests_draft_by_turns_where_there_is_no_room_for_all(void)
{
    bench            b;
    bt_worker_config cfg;

    set_up(&b, 2, count_by_page);
    cfg       = b.worker->cfg;
    cfg.chunk = cfg.max_rows = 3;
    bench_make_anew(&b, &cfg);
    for (uint64_t id = 1; id <= 2; id++)
        bench_order_both(&b, bench_reserve(id, 3, 40));
    for (uint32_t i = 0; i < 6; i++) {
        if (i == 2) memset(g_drafted, 0, sizeof(g_drafted)), g_n_drafts = 0; /* both decode */
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        bench_forget(&b);
    }
    EXPECT_EQ(g_drafted[0], 2);
    EXPECT_EQ(g_drafted[1], 2);
    EXPECT_EQ(g_n_drafts, 4);
    EXPECT(b.worker->mtp.pace.knows); /* of one token too */
    for (uint32_t i = 0; i < 2; i++)
        EXPECT(b.worker->requests.at[i]->pace.knows);
    bench_tear_down(&b);
}

enum { N_REPLAY = 11 };

static uint32_t g_n_behind_replayed; /* rows whose next token was replayed */

/* Those are 0, 1, 2 and so on, behind a prompt of 10. */
static bt_status expect_replayed_tokens(void *ctx, bt_step *step)
{
    for (uint32_t i = 0; i < step->n_spans; i++) {
        const bt_span *s = &step->spans[i];

        for (uint32_t row = 0; row < s->n_rows; row++) {
            uint32_t at = s->start + row + 1;

            if (at < 10 || at >= 10 + N_REPLAY) continue;
            EXPECT_EQ(step->tokens[s->first_row + row], at - 10);
            g_n_behind_replayed++;
        }
    }
    return count_drafting(ctx, step);
}

static void layer_goes_on_behind_what_is_replayed(void)
{
    bench            b;
    bt_worker_config cfg;
    bt_down          m = bench_reserve(1, 10, 40);

    set_up(&b, 1, expect_replayed_tokens);
    cfg       = b.worker->cfg;
    cfg.chunk = 4;
    bench_make_anew(&b, &cfg);
    m.u.reserve.n_replay = N_REPLAY;
    m.u.reserve.replay   = bench_ids(N_REPLAY, 0);
    bench_order_both(&b, m);
    for (uint32_t i = 0; i < 7; i++) { /* 3 pieces of the prompt, 3 of what is replayed */
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        bench_forget(&b);
    }
    EXPECT_EQ(g_n_behind_replayed, N_REPLAY);
    bench_tear_down(&b);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(request_that_fails_keeps_its_pages_until_its_step_has_drafted),
        BT_TEST(drafts_are_planned_as_far_as_they_pay),
        BT_TEST(drafts_are_planned_as_far_as_there_is_something_to_say),
        BT_TEST(drafts_are_planned_as_far_as_there_are_pages),
        BT_TEST(choices_that_fail_with_another_draft_from_rows_of_theirs),
        BT_TEST(layer_without_a_finite_number_drafts_nothing),
        BT_TEST(nothing_is_drafted_for_a_step_that_prompts_fill),
        BT_TEST(of_a_long_prompt_the_next_piece_counts),
        BT_TEST(layer_goes_on_behind_what_is_replayed),
        BT_TEST(requests_draft_by_turns_where_there_is_no_room_for_all),
    };

    bt_log_init("rank", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
