/* Masks of constrained replies in the steps of one rank: what lifts a ban, whose error it is, and
 * what is given back while tokens are replayed. */
#include "tests/worker/bench.h"
#include "worker/state.h"

#define DEMO BT_SOURCE_DIR "/models/demo"

/* Of the demo model's tokens. */
enum { ID_QUOTE = 4, ID_A = 35, ID_B = 36 };

static bt_constraints *g_all; /* of its first BENCH_VOCAB tokens: small letters are none of them */

static bt_sampling sampling_of(const char *regex)
{
    return (bt_sampling){.max_tokens         = 5,
                         .constraint_kind    = BT_CONSTRAINT_REGEX,
                         .constraint         = bt_strdup(regex),
                         .n_constraint_bytes = (uint32_t)strlen(regex)};
}

static void set_up(bench *b, uint32_t n_prefill, bool threads)
{
    bt_worker_config cfg;

    bench_set_up(b, 0, n_prefill, n_prefill);
    cfg                   = bench_config(b, 0, n_prefill, n_prefill);
    cfg.facts.constraints = g_all;
    cfg.threads           = threads ? bt_device_cpu_pool(b->dev) : NULL;
    bench_make_anew(b, &cfg);
}

static void order_prompt(bench *b, uint64_t id, bt_sampling sampling)
{
    bt_down m = bench_prefill(id, 4, 1, 1);

    m.u.prefill.sampling = sampling;
    bench_order(b, &m);
}

static void reply_that_only_a_stop_token_goes_on_is_not_held_by_its_least_tokens(void)
{
    bench       b;
    bt_sampling s = sampling_of("A");

    set_up(&b, 1, false);
    s.min_tokens  = 5;
    s.n_stop      = 1;
    s.stop_tokens = bench_ids(1, ID_A);
    order_prompt(&b, 1, s);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT(b.n_up > 0 && b.up[0].kind == BT_UP_TOKENS);
    if (b.n_up > 0 && b.up[0].kind == BT_UP_TOKENS) {
        EXPECT_EQ(b.up[0].u.tokens.tokens[0].id, ID_A);
        EXPECT_EQ(b.up[0].u.tokens.tokens[0].finish, BT_FINISH_STOP_TOKEN);
    }
    bench_tear_down(&b);
}

/* Other tokens may come before the end. */
static void reply_that_can_go_on_is_held_by_its_least_tokens(void)
{
    bench       b;
    bt_sampling s = sampling_of("(A|B)*");

    set_up(&b, 1, false);
    b.model.n_eos         = 1;
    b.model.eos_tokens[0] = 1;
    s.min_tokens          = 1;
    s.n_stop              = 1;
    s.stop_tokens         = bench_ids(1, ID_A);
    order_prompt(&b, 1, s);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT(b.n_up > 0 && b.up[0].kind == BT_UP_TOKENS);
    if (b.n_up > 0 && b.up[0].kind == BT_UP_TOKENS) EXPECT_EQ(b.up[0].u.tokens.tokens[0].id, ID_B);
    bench_tear_down(&b);
}

/* What the mask behind a reply's first tokens bans of its stop tokens. */
static uint32_t n_banned(const char *regex, uint32_t after)
{
    bench         b;
    bt_sampling   s   = sampling_of(regex);
    bt_sample_how how = {0};

    set_up(&b, 1, false);
    s.constraint_after = after;
    s.n_stop           = 1;
    s.stop_tokens      = bench_ids(1, ID_A);
    order_prompt(&b, 1, s);
    EXPECT_EQ(bt_worker_take_masks(b.worker, 1), BT_OK);
    bt_worker_add_mask(b.worker, b.worker->requests.at[0], NULL, 0);
    bt_worker_fill_masks(b.worker);
    bt_worker_apply_mask(b.worker, 0, &how);
    EXPECT(how.banned[0].n == 0 || how.banned[0].ids[0] == ID_A);
    EXPECT_EQ(how.allowed == NULL, after != 0);
    bench_tear_down(&b);
    return how.banned[0].n;
}

/* It would end a text that is not whole, or thoughts before it. */
static void stop_token_is_drawn_where_the_text_may_end(void)
{
    EXPECT_EQ(n_banned("[AB]{3}", 0), 1);
    EXPECT_EQ(n_banned("[AB]{0,3}", 0), 0);
    EXPECT_EQ(n_banned("A{3}", 0), 0); /* nothing else may come */
    EXPECT_EQ(n_banned("[AB]{3}", 1 + ID_QUOTE), 1);
    EXPECT_EQ(n_banned("[AB]{0,3}", 1 + ID_QUOTE), 1);
}

/* How many requests have failed so. */
static uint32_t n_failed(const bench *b, const char *says)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->n_up; i++) {
        if (b->up[i].kind != BT_UP_FAILED) continue;
        EXPECT_EQ(b->up[i].u.failed.code, BT_RPC_INVALID_ARGUMENT);
        EXPECT_HAS(b->up[i].u.failed.message, says);
        n++;
    }
    return n;
}

/* Whichever thread has met it. */
static void constraint_read_in_too_many_ways_fails_its_request_with_words(void)
{
    uint32_t n_tokens = 0;

    for (int i = 0; i < 20; i++) {
        bench b;

        set_up(&b, 1, true);
        for (uint64_t id = 1; id <= 3; id++)
            order_prompt(&b, id, sampling_of(id == 2 ? "[AB]*" : "A|\"(!?){9000}(!?){9000}"));
        EXPECT_EQ(bench_run_step(&b), BT_OK);
        EXPECT_EQ(n_failed(&b, "too many ways"), 2);
        for (uint32_t k = 0; k < b.n_up; k++)
            n_tokens += b.up[k].kind == BT_UP_TOKENS ? b.up[k].u.tokens.n : 0;
        bench_tear_down(&b);
    }
    EXPECT_EQ(n_tokens, 20); /* of the one beside them */
}

static void constraint_that_no_token_goes_on_fails_its_request_with_words(void)
{
    bench b;

    set_up(&b, 1, false);
    order_prompt(&b, 1, sampling_of("abc"));
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(n_failed(&b, "no token"), 1);
    bench_tear_down(&b);
}

/* Of 64 choices each would have a copy. */
static void text_of_a_constraint_is_kept_once(void)
{
    bench   b;
    bt_down m = bench_reserve(1, 10, 5);

    set_up(&b, 0, false);
    m.u.reserve.sampling  = sampling_of("[AB]*");
    m.u.reserve.n_choices = 3;
    m.u.reserve.choices   = bench_ids(3, 0);
    bench_order(&b, &m);
    EXPECT_EQ(b.worker->requests.n, 3);
    for (uint32_t i = 0; i < b.worker->requests.n; i++) {
        EXPECT(b.worker->requests.at[i]->constraint != NULL);
        EXPECT(b.worker->requests.at[i]->sampling.constraint == NULL);
    }
    bench_tear_down(&b);
}

/* A draft may lead to where the reply never comes. */
static void draft_whose_mask_cannot_be_made_fails_nobody(void)
{
    bench         b;
    bt_worker    *w;
    bt_request   *r;
    bt_sample_how how = {0};

    set_up(&b, 1, false);
    w = b.worker;
    order_prompt(&b, 1, sampling_of("A+|\"(!|C(!?){9000}(!?){9000})"));
    r           = w->requests.at[0];
    r->draft[0] = ID_QUOTE;
    EXPECT_EQ(bt_worker_take_masks(w, 2), BT_OK);
    bt_worker_add_mask(w, r, NULL, 0);
    bt_worker_add_mask(w, r, NULL, 1);
    bt_worker_fill_masks(w);
    EXPECT_EQ(bt_worker_mask_status(w, 0), BT_OK);
    EXPECT_EQ(bt_worker_mask_status(w, 1), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "too many ways");
    bt_worker_apply_mask(w, 0, &how);
    EXPECT_EQ(how.allowed[0], 1u << ID_QUOTE);
    EXPECT_EQ(how.allowed[1], 1u << ID_A % 32);
    bt_worker_apply_mask(w, 1, &how);
    EXPECT(how.allowed[0] == 0 && how.allowed[1] == 0); /* of what was found by then, nothing */
    bench_tear_down(&b);
}

/* What takes long is not for drafts, but a reply waits for it. */
static void mask_that_takes_long_is_made_for_the_reply_itself(void)
{
    bench      b;
    bt_worker *w;

    set_up(&b, 1, false);
    w = b.worker;
    order_prompt(&b, 1, sampling_of("((A|C|E|G|I|K|M|O|Q|S|U|W|Y)?){200}B"));
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(w->n_masks, 1);
    EXPECT(w->masks[0].late && w->masks[0].st == BT_OK && w->masks[0].any);
    order_prompt(&b, 2, sampling_of("((A|C|E|G|I|K|M|O|Q|S|U|W|Y)?){201}B"));
    EXPECT_EQ(bt_worker_take_masks(w, 1), BT_OK);
    bt_worker_add_mask(w, bt_requests_find(&w->requests, 2), NULL, 0);
    bt_worker_fill_masks(w);
    EXPECT(w->masks[0].late && w->masks[0].st == BT_ERR_UNSUPPORTED);
    bench_tear_down(&b);
}

/* A thread that has waited for others at the same constraint, until the time was over. */
static void mask_that_takes_long_is_not_begun_when_the_time_is_over(void)
{
    bench            b;
    uint32_t         bits[(BENCH_VOCAB + 31) / 32];
    bt_constraint   *c;
    bt_constraint_at at;
    bool             ends;

    set_up(&b, 1, false);
    order_prompt(&b, 1, sampling_of("((A|C|E|G|I|K|M|O|Q|S|U|W|Y)?){200}B"));
    c  = b.worker->requests.at[0]->constraint;
    at = b.worker->requests.at[0]->constraint_at;
    EXPECT_EQ(bt_constraint_mask(c, &at, 1, bits, &ends), BT_ERR_UNSUPPORTED);
    EXPECT_EQ(bt_constraint_mask(c, &at, UINT64_MAX, bits, &ends), BT_OK);
    EXPECT_EQ(bt_constraint_mask(c, &at, 1, bits, &ends), BT_OK); /* it is there now */
    bench_tear_down(&b);
}

/* A first token that the request does not know yet. */
static void mask_behind_a_prompt_s_first_token_begins_there(void)
{
    bench          b;
    bt_sample_how  how   = {0};
    const uint32_t first = ID_A;

    set_up(&b, 1, false);
    order_prompt(&b, 1, sampling_of("AB"));
    EXPECT_EQ(bt_worker_take_masks(b.worker, 1), BT_OK);
    bt_worker_add_mask(b.worker, b.worker->requests.at[0], &first, 0);
    bt_worker_fill_masks(b.worker);
    bt_worker_apply_mask(b.worker, 0, &how);
    EXPECT(how.allowed[0] == 0 && how.allowed[1] == 1u << ID_B % 32);
    bench_tear_down(&b);
}

/* What a reply has learnt of its constraint as it was drawn would not all have been kept: as little
 * is when it is replayed. */
static void replay_gives_back_what_its_constraint_has_learnt(void)
{
    enum { ROUNDS = 9000, AS = 30, N = ROUNDS * (AS + 1) };
    bench       b;
    bt_request *r;
    uint32_t    n_steps = 0;
    bt_status   st      = BT_OK;

    set_up(&b, 1, false);
    order_prompt(&b, 1, sampling_of("(A{1,40}B){0,9000}(0|2|4|6|8|:|<|>)"));
    r           = b.worker->requests.at[0];
    r->n_replay = N;
    r->replay   = bt_calloc(N, sizeof(*r->replay));
    for (uint32_t i = 0; i < N; i++)
        r->replay[i] = i % (AS + 1) == AS ? ID_B : ID_A;
    EXPECT_EQ(bt_request_note(r, ID_A), BT_OK);
    EXPECT_EQ(bt_worker_adopt_replay(r, ID_A), BT_OK);
    r->state = BT_REQUEST_DECODE;
    for (; r->n_behind > 0 && st == BT_OK; n_steps++)
        st = bt_worker_follow_replays(b.worker);
    EXPECT_EQ(st, BT_OK);
    EXPECT(n_steps < N / 2); /* they take microseconds each */
    EXPECT(r->constraint_at.state != BT_STATE_DEAD);
    bench_tear_down(&b);
}

/* Each token leads to thousands of readings that nobody has come to before: other ranks would wait
 * for all of that, so it goes on in later steps, and the next token is drawn behind it. */
static void replay_that_takes_long_takes_several_steps(void)
{
    enum { N = 2000 };
    bench       b;
    bt_request *r;
    uint32_t    n_steps = 0;
    bt_status   st      = BT_OK;

    set_up(&b, 1, false);
    order_prompt(&b, 1, sampling_of("([AB]?){2000}"));
    r           = b.worker->requests.at[0];
    r->n_replay = N;
    r->replay   = bt_calloc(N, sizeof(*r->replay));
    for (uint32_t i = 0; i < N; i++)
        r->replay[i] = i % 2 == 0 ? ID_A : ID_B;
    EXPECT_EQ(bt_request_note(r, ID_A), BT_OK);
    EXPECT_EQ(bt_worker_adopt_replay(r, ID_A), BT_OK);
    r->state = BT_REQUEST_DECODE;
    for (; r->n_behind > 0 && st == BT_OK; n_steps++)
        st = bt_worker_follow_replays(b.worker);
    EXPECT_EQ(st, BT_OK);
    EXPECT(n_steps > 1);
    EXPECT(r->n_behind == 0 && r->constraint_at.state != BT_STATE_DEAD);
    bench_tear_down(&b);
}

static bt_status draft_of_equal_logits(void *ctx, bt_step *step)
{
    (void)ctx;
    memset(step->logits, 0, (size_t)step->n_logit_rows * BENCH_VOCAB * sizeof(float));
    return BT_OK;
}

/* Behind the first token, which the request does not know yet, and behind the draft's own. */
static void layer_drafts_what_the_constraint_allows(void)
{
    bench            b;
    bt_worker_config cfg;
    bt_request      *r;
    bt_down          m;

    set_up(&b, 0, false);
    cfg             = b.worker->cfg;
    cfg.facts.mtp   = 2;
    cfg.links.draft = draft_of_equal_logits;
    bench_make_anew(&b, &cfg);
    m                    = bench_reserve(1, 4, 9);
    m.u.reserve.sampling = sampling_of("A(BA){4}");
    bench_order(&b, &m);
    m                    = bench_prefill(1, 4, 1, 0);
    m.u.prefill.sampling = sampling_of("A(BA){4}");
    m.u.prefill.pages[0] = b.up[0].u.ticket.pages[0];
    bench_order(&b, &m);
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    r = b.worker->requests.at[0];
    EXPECT_EQ(r->next_token, ID_A);
    EXPECT_EQ(r->n_mtp, 2);
    EXPECT(r->draft[0] == ID_B && r->draft[1] == ID_A);
    bench_tear_down(&b);
}

/* Beside one that has nothing to follow. */
static void replay_whose_constraint_cannot_follow_fails_alone(void)
{
    bench       b;
    bt_request *r;

    set_up(&b, 1, false);
    order_prompt(&b, 1, sampling_of("[AB]*"));
    order_prompt(&b, 2, sampling_of("A\"(!?){9000}(!?){9000}"));
    r            = b.worker->requests.at[1];
    r->n_replay  = 2;
    r->replay    = bt_calloc(2, sizeof(*r->replay));
    r->replay[0] = ID_A;
    r->replay[1] = ID_QUOTE;
    EXPECT_EQ(bt_request_note(r, ID_A), BT_OK);
    EXPECT_EQ(bt_worker_adopt_replay(r, ID_A), BT_OK);
    b.worker->requests.at[0]->state = r->state = BT_REQUEST_DECODE;
    EXPECT_EQ(bt_worker_follow_replays(b.worker), BT_OK);
    EXPECT_EQ(n_failed(&b, "too many ways"), 1);
    EXPECT(b.worker->requests.n == 1 && b.worker->requests.at[0]->id == 1);
    bench_tear_down(&b);
}

/* Also of requests that have no rows in the step. */
static void step_of_a_crowd_gives_back_what_all_constraints_have_learnt(void)
{
    bt_constraints *rest = g_all;
    bench           b;

    EXPECT_EQ(bt_constraints_open(DEMO, BENCH_VOCAB, 1, &g_all), BT_OK);
    set_up(&b, 1, false);
    order_prompt(&b, 1, sampling_of("[AB]*"));
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT(bt_constraint_is_large(b.worker->requests.at[0]->constraint, true));
    order_prompt(&b, 2, sampling_of("[CD]*"));
    EXPECT_EQ(bench_run_step(&b), BT_OK);
    EXPECT_EQ(b.worker->requests.n, 2);
    EXPECT(!bt_constraint_is_large(b.worker->requests.at[0]->constraint, true));
    bench_tear_down(&b);
    bt_constraints_close(g_all);
    g_all = rest;
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(reply_that_only_a_stop_token_goes_on_is_not_held_by_its_least_tokens),
        BT_TEST(reply_that_can_go_on_is_held_by_its_least_tokens),
        BT_TEST(stop_token_is_drawn_where_the_text_may_end),
        BT_TEST(constraint_read_in_too_many_ways_fails_its_request_with_words),
        BT_TEST(constraint_that_no_token_goes_on_fails_its_request_with_words),
        BT_TEST(text_of_a_constraint_is_kept_once),
        BT_TEST(draft_whose_mask_cannot_be_made_fails_nobody),
        BT_TEST(mask_that_takes_long_is_made_for_the_reply_itself),
        BT_TEST(mask_that_takes_long_is_not_begun_when_the_time_is_over),
        BT_TEST(mask_behind_a_prompt_s_first_token_begins_there),
        BT_TEST(replay_gives_back_what_its_constraint_has_learnt),
        BT_TEST(replay_that_takes_long_takes_several_steps),
        BT_TEST(layer_drafts_what_the_constraint_allows),
        BT_TEST(replay_whose_constraint_cannot_follow_fails_alone),
        BT_TEST(step_of_a_crowd_gives_back_what_all_constraints_have_learnt),
    };
    int failed;

    if (bt_constraints_open(DEMO, BENCH_VOCAB, BT_CONSTRAINTS_BYTES, &g_all) != BT_OK ||
        g_all == NULL)
        return 1;
    failed = BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
    bt_constraints_close(g_all);
    return failed;
}
