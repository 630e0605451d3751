/* One rank and the orders that it gets: wrong ones are answered with a sentence and cost nothing.
 */
#include "core/alloc.h"
#include "core/clock.h"
#include "tests/support/test.h"
#include "worker/worker.h"

enum { LAYERS = 2, DIM = 4, VOCAB = 50, CONTEXT = 300, N_PAGES = 4, MAX_UP = 64 };

/* What a rank stands on here: it only keeps what the rank says. */
typedef struct {
    bt_model_config model;
    bt_device      *dev;
    bt_kv_pool     *pool;
    bt_worker      *worker;
    bt_up           up[MAX_UP];
    uint32_t        n_up;
    uint64_t        now;
    bt_status       step_status;
    float           logit;         /* of every id */
    bool            granted;       /* a message is under way and cannot be withdrawn */
    uint32_t        n_quarantined; /* as the last beat says */
    size_t          tail_max;
} bench;

static uint64_t  bench_now(void *ctx) { return ((bench *)ctx)->now; }
static bt_status bench_up(void *ctx, bt_up *m)
{
    bench *b = ctx;

    if (m->kind == BT_UP_BEAT) b->n_quarantined = m->u.beat.slots_quarantined;
    if (m->kind == BT_UP_BEAT || b->n_up == MAX_UP)
        bt_up_free(m);
    else
        b->up[b->n_up++] = *m;
    return BT_OK;
}
static size_t bench_payload_max(void *ctx)
{
    (void)ctx;
    return 1 << 16;
}
static void *bench_stage(void *ctx)
{
    (void)ctx;
    return NULL; /* always full */
}
static size_t          bench_tail_max(void *ctx) { return ((bench *)ctx)->tail_max; }
static bt_page_payload bench_slot(void *ctx, void *slot, const bt_page_message *m)
{
    (void)ctx, (void)slot, (void)m;
    return (bt_page_payload){.on_device = false}; /* nobody has one */
}
static bt_status bench_take(void *ctx)
{
    (void)ctx;
    return BT_OK;
}
static void bench_unstage(void *ctx, void *slot)
{
    (void)ctx;
    (void)slot;
}
static void bench_send(void *ctx, uint32_t to, const bt_page_message *m, void *slot)
{
    (void)ctx;
    (void)to;
    (void)m;
    (void)slot;
}
static bool bench_cancel(void *ctx, uint64_t request)
{
    return request != 0 && !((bench *)ctx)->granted;
}
static bool bench_poll(void *ctx)
{
    (void)ctx;
    return false;
}
static bt_status bench_launch(void *ctx, bt_step *step)
{
    bench *b = ctx;

    for (uint32_t i = 0; i < step->n_logit_rows * VOCAB; i++)
        step->logits[i] = b->logit;
    return b->step_status;
}

static bt_status bench_await(void *ctx)
{
    (void)ctx;
    return BT_OK;
}

static const uint64_t *bench_expert_rows(void *ctx)
{
    (void)ctx;
    return NULL;
}

static const bt_traffic *no_traffic(void *ctx)
{
    (void)ctx;
    return NULL;
}

static uint64_t never_waited(void *ctx)
{
    (void)ctx;
    return 0;
}

static bt_worker_config config(bench *b, uint32_t rank, uint32_t n_prefill, uint32_t n_decode)
{
    bt_worker_links links = {.ctx         = b,
                             .now_ns      = bench_now,
                             .up          = bench_up,
                             .payload_max = bench_payload_max,
                             .tail_max    = bench_tail_max,
                             .stage       = bench_stage,
                             .slot        = bench_slot,
                             .take        = bench_take,
                             .unstage     = bench_unstage,
                             .send        = bench_send,
                             .cancel      = bench_cancel,
                             .poll        = bench_poll,
                             .expert_rows = bench_expert_rows,
                             .waited_ns   = never_waited,
                             .traffic     = no_traffic,
                             .launch      = bench_launch,
                             .await       = bench_await};

    return (bt_worker_config){
        .facts      = {.rank      = rank,
                       .n_ranks   = n_prefill == 0 ? 1 : n_prefill + n_decode,
                       .n_prefill = n_prefill,
                       .n_decode  = n_decode,
                       .model     = &b->model,
                       .n_pages   = N_PAGES},
        .dev        = b->dev,
        .pool       = b->pool,
        .kernels    = bt_cpu_kernels_find("scalar"),
        .links      = links,
        .group_size = 1,
        .epoch      = 1,
        .chunk      = 16,
        .max_rows   = 32,
        .timeout_ns = 10 * BT_NS_PER_S
    };
}

static void set_up(bench *b, uint32_t rank, uint32_t n_prefill, uint32_t n_decode)
{
    bt_device_cpu_options cpu  = {.n_threads = 1, .kernels = "scalar"};
    bt_kv_pool_config     pool = {.n_layers = LAYERS, .n_pages = N_PAGES, .kv_dim = DIM};
    bt_worker_config      cfg;

    *b       = (bench){.now = BT_NS_PER_S, .tail_max = SIZE_MAX};
    b->model = (bt_model_config){.vocab_size = VOCAB, .n_layers = LAYERS, .max_context = CONTEXT};
    b->model.moe.gate.n_experts = 8;
    b->model.moe.gate.top_k     = 2;
    b->model.moe_layer_freq     = 1;
    EXPECT_EQ(bt_device_cpu_create(&cpu, &b->dev), BT_OK);
    EXPECT_EQ(bt_kv_pool_create(b->dev, &pool, &b->pool), BT_OK);
    cfg = config(b, rank, n_prefill, n_decode);
    EXPECT_EQ(bt_worker_create(&cfg, &b->worker), BT_OK);
}

static void forget(bench *b)
{
    while (b->n_up > 0)
        bt_up_free(&b->up[--b->n_up]);
}

static void tear_down(bench *b)
{
    forget(b);
    bt_worker_destroy(b->worker);
    EXPECT_EQ(bt_kv_pool_check(b->pool), BT_OK);
    EXPECT_EQ(bt_kv_pool_n_free(b->pool), N_PAGES);
    bt_kv_pool_destroy(b->pool);
    bt_device_destroy(b->dev);
}

static void order(bench *b, bt_down *m)
{
    EXPECT_EQ(bt_worker_control(b->worker, m), BT_OK);
    bt_down_free(m);
}

static bt_down reserve(uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    bt_down m = {.kind = BT_DOWN_RESERVE};

    m.u.reserve.request             = id;
    m.u.reserve.epoch               = 3;
    m.u.reserve.n_prompt            = n_prompt;
    m.u.reserve.sampling.max_tokens = max_tokens;
    return m;
}

static bt_down prefill(uint64_t id, uint32_t n_prompt, uint32_t n_pages, uint32_t decode_rank)
{
    bt_down m = {.kind = BT_DOWN_PREFILL};

    m.u.prefill.request             = id;
    m.u.prefill.epoch               = 3;
    m.u.prefill.n_prompt            = n_prompt;
    m.u.prefill.prompt              = bt_calloc(n_prompt, sizeof(uint32_t));
    m.u.prefill.n_pages             = n_pages;
    m.u.prefill.pages               = bt_calloc(n_pages, sizeof(bt_page_ref));
    m.u.prefill.decode_rank         = decode_rank;
    m.u.prefill.sampling.max_tokens = 5;
    return m;
}

static void expect_failed(bench *b, uint32_t code, const char *says)
{
    EXPECT_EQ(b->n_up, 1);
    if (b->n_up != 1) return;
    EXPECT_EQ(b->up[0].kind, BT_UP_FAILED);
    EXPECT_EQ(b->up[0].u.failed.code, code);
    EXPECT_EQ(b->up[0].u.failed.epoch, 3);
    EXPECT_HAS(b->up[0].u.failed.message, says);
    forget(b);
}

static void decode_rank_refuses_wrong_reservations_with_a_sentence(void)
{
    bench   b;
    bt_down m;

    set_up(&b, 1, 1, 1);
    m = reserve(1, 0, 5), order(&b, &m);
    expect_failed(&b, 3, "0 tokens");
    m = reserve(1, CONTEXT + 1, 5), order(&b, &m);
    expect_failed(&b, 3, "301 tokens");
    m = reserve(1, 10, 0), order(&b, &m);
    expect_failed(&b, 3, "max_tokens");
    m = reserve(1, 200, 150), order(&b, &m);
    expect_failed(&b, 3, "context of 300");
    m = reserve(1, 200, 90), order(&b, &m); /* fits the context, not the pool */
    expect_failed(&b, 3, "5 pages");
    m = reserve(1, 200, UINT32_MAX), order(&b, &m);
    expect_failed(&b, 3, "context");
    m = reserve(1, 10, 5), m.u.reserve.prefill_rank = 1, order(&b, &m);
    expect_failed(&b, 3, "does not prefill");
    m = prefill(1, 10, 1, 1), order(&b, &m);
    expect_failed(&b, 3, "asked to prefill");
    tear_down(&b);
}

static void prefill_rank_refuses_wrong_orders_with_a_sentence(void)
{
    bench   b;
    bt_down m;

    set_up(&b, 0, 1, 1);
    m = reserve(1, 10, 5), order(&b, &m);
    expect_failed(&b, 3, "asked to reserve");
    m = prefill(1, 10, 1, 0), order(&b, &m);
    expect_failed(&b, 3, "cannot decode");
    m = prefill(1, 10, 1, 2), order(&b, &m);
    expect_failed(&b, 3, "cannot decode");
    m = prefill(1, 65, 1, 1), order(&b, &m);
    expect_failed(&b, 3, "ticket of 1 pages");
    m = prefill(1, 10, 1, 1), m.u.prefill.prompt[9] = VOCAB, order(&b, &m);
    expect_failed(&b, 3, "token 9 of the prompt is 50");
    m = prefill(1, 10, 1, 1), m.u.prefill.sampling.temperature = -1, order(&b, &m);
    expect_failed(&b, 3, "temperature");
    m = prefill(1, 280, 5, 1), order(&b, &m);
    expect_failed(&b, 3, "needs 5 pages");
    tear_down(&b);
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

    set_up(&b, 0, 1, 1);
    for (int i = 0; i < 3; i++) {
        m                               = prefill(1, 1, 1, 1);
        m.u.prefill.eval                = true;
        m.u.prefill.n_eval_expert_bytes = LAYERS * 2 * sizeof(int32_t);
        m.u.prefill.eval_experts        = bt_calloc(LAYERS * 2, sizeof(int32_t));
        for (int l = 0; l < LAYERS; l++)
            memcpy((int32_t *)m.u.prefill.eval_experts + 2 * l, WRONG[i], sizeof(WRONG[i]));
        order(&b, &m);
        expect_failed(&b, 3, i == 2 ? "twice" : "forced expert");
    }
    m                               = prefill(1, 3, 1, 1);
    m.u.prefill.eval                = true;
    m.u.prefill.n_eval_expert_bytes = 7;
    m.u.prefill.eval_experts        = bt_calloc(1, 7);
    order(&b, &m);
    expect_failed(&b, 3, "7 bytes");
    tear_down(&b);
}

static void rank_with_both_roles_needs_its_own_ticket(void)
{
    bench   b;
    bt_down m;

    set_up(&b, 0, 0, 0);
    m = prefill(1, 10, 1, 0), order(&b, &m);
    expect_failed(&b, 3, "without a reservation");

    m = reserve(1, 10, 5), order(&b, &m);
    EXPECT_EQ(b.n_up, 1);
    EXPECT_EQ(b.up[0].kind, BT_UP_TICKET);
    EXPECT_EQ(b.up[0].u.ticket.n_pages, 1);
    m                               = prefill(1, 10, 1, 0);
    m.u.prefill.pages[0].id         = b.up[0].u.ticket.pages[0].id;
    m.u.prefill.pages[0].generation = b.up[0].u.ticket.pages[0].generation + 1;
    forget(&b);
    order(&b, &m);
    EXPECT_EQ(b.n_up, 2); /* Failed, and Released: the reservation is gone too */
    EXPECT_EQ(b.up[1].kind, BT_UP_RELEASED);
    bt_up_free(&b.up[--b.n_up]);
    expect_failed(&b, 3, "not that of the ticket");
    tear_down(&b);
}

static void rank_without_pages_refuses_the_ticket(void)
{
    bench   b;
    bt_down m;

    set_up(&b, 1, 1, 1);
    m = reserve(1, 100, 60), order(&b, &m); /* 2 of 4 pages; a third when it needs one */
    m = reserve(2, 100, 20), order(&b, &m); /* would leave none for the first to grow */
    m = reserve(3, 60, 20), order(&b, &m);
    EXPECT_EQ(b.n_up, 3);
    EXPECT(!b.up[0].u.ticket.refused && b.up[0].u.ticket.n_pages == 2);
    EXPECT(b.up[1].u.ticket.refused && b.up[1].u.ticket.n_pages == 0);
    EXPECT(!b.up[2].u.ticket.refused && b.up[2].u.ticket.n_pages == 1);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), 1);
    tear_down(&b);
}

static void abort_of_an_unknown_request_is_answered(void)
{
    bench   b;
    bt_down m = {
        .kind = BT_DOWN_ABORT, .u.abort = {.request = 77, .epoch = 3}
    };

    set_up(&b, 1, 1, 1);
    order(&b, &m);
    EXPECT_EQ(b.n_up, 1);
    EXPECT_EQ(b.up[0].kind, BT_UP_RELEASED);
    EXPECT_EQ(b.up[0].u.released.request, 77);
    forget(&b);

    m = reserve(5, 10, 5), order(&b, &m);
    m = (bt_down){
        .kind = BT_DOWN_ABORT, .u.abort = {.request = 5, .epoch = 2}
    }; /* of an earlier placement */
    order(&b, &m);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), N_PAGES - 1);
    m = (bt_down){
        .kind = BT_DOWN_ABORT, .u.abort = {.request = 5, .epoch = 3}
    };
    order(&b, &m);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), N_PAGES);
    tear_down(&b);
}

/* Pages are free before the next step, whatever is under way: that is a copy, whose slot stays
 * until it has left; and only then does the rank say that it holds nothing. */
static void abort_frees_pages_at_once_and_quarantines_the_slot(void)
{
    bench   b;
    bt_plan plan;
    bt_next next;
    bt_down m;

    set_up(&b, 0, 1, 1);
    m = prefill(1, 100, 2, 1), order(&b, &m);
    m = (bt_down){.kind = BT_DOWN_WAKE, .u.wake = {1}};
    order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), N_PAGES - 2);
    forget(&b);
    b.granted = true;
    m         = (bt_down){
                .kind = BT_DOWN_ABORT, .u.abort = {.request = 1, .epoch = 3}
    };
    order(&b, &m);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), N_PAGES);
    b.now += 300 * BT_NS_PER_MS;
    bt_worker_background(b.worker);
    EXPECT_EQ(b.n_quarantined, 1);
    EXPECT_EQ(b.n_up, 0);
    b.granted = false; /* it has left */
    b.now += 300 * BT_NS_PER_MS;
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(b.n_up, 1);
    EXPECT_EQ(b.up[0].kind, BT_UP_RELEASED);
    bt_worker_background(b.worker);
    EXPECT_EQ(b.n_quarantined, 0);
    tear_down(&b);
}

static void newer_placement_takes_the_place_of_an_older_one(void)
{
    bench   b;
    bt_down m;

    set_up(&b, 1, 1, 1);
    m = reserve(1, 100, 20), order(&b, &m);
    m = reserve(1, 100, 20), order(&b, &m); /* the same again: dropped */
    EXPECT_EQ(b.n_up, 1);
    m = reserve(1, 10, 20), m.u.reserve.epoch = 4, order(&b, &m);
    EXPECT_EQ(b.n_up, 3);
    EXPECT_EQ(b.up[1].kind, BT_UP_RELEASED);
    EXPECT_EQ(b.up[1].u.released.epoch, 3);
    EXPECT_EQ(b.up[2].u.ticket.epoch, 4);
    EXPECT_EQ(bt_kv_pool_n_free(b.pool), N_PAGES - 1);
    tear_down(&b);
}

static void rank_that_is_not_woken_in_time_says_who_failed(void)
{
    bench   b;
    bt_down m;
    bt_plan plan;
    bt_next next;

    set_up(&b, 0, 1, 1);
    m = prefill(1, 10, 1, 1), order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_PARK);
    EXPECT_EQ(b.n_up, 1);
    EXPECT_EQ(b.up[0].kind, BT_UP_WAKE_REQUEST);
    EXPECT_EQ(b.up[0].u.wake_request.wake, 0);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(b.n_up, 1); /* it asks once */
    b.now += 11 * BT_NS_PER_S;
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_ERR_TIMEOUT);
    EXPECT_HAS(bt_error_text(), "coordinator");

    m = (bt_down){.kind = BT_DOWN_WAKE, .u.wake = {1}};
    order(&b, &m);
    EXPECT_EQ(bt_worker_begin(b.worker, &plan, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    EXPECT_EQ(plan.wake, 1);
    EXPECT_EQ(plan.n_rows[BT_ROLE_PROMPT], 10);
    tear_down(&b);
}

static void plans_that_do_not_agree_stop_the_rank(void)
{
    bench   b;
    bt_plan plan  = {.epoch = 2};
    bool    leave = false;

    set_up(&b, 0, 1, 1);
    EXPECT_EQ(bt_worker_finish(b.worker, &plan, &leave), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), "epoch 2");
    plan = (bt_plan){
        .epoch = 1, .n_rows = {UINT32_MAX, UINT32_MAX}
    };
    EXPECT_EQ(bt_worker_finish(b.worker, &plan, &leave), BT_ERR_PROTOCOL);
    tear_down(&b);
}

/* Runs the one request of a rank of both roles through its prompt. */
static bt_status run_prompt(bench *b)
{
    bt_down   m = reserve(1, 10, 5);
    bt_plan   plan;
    bt_next   next;
    bool      leave;
    bt_status st;

    order(b, &m);
    m                               = prefill(1, 10, 1, 0);
    m.u.prefill.pages[0].id         = b->up[0].u.ticket.pages[0].id;
    m.u.prefill.pages[0].generation = b->up[0].u.ticket.pages[0].generation;
    order(b, &m);
    m = (bt_down){.kind = BT_DOWN_WAKE, .u.wake = {1}};
    order(b, &m);
    forget(b);
    EXPECT_EQ(bt_worker_begin(b->worker, &plan, &next), BT_OK);
    EXPECT_EQ(next, BT_NEXT_GATHER);
    st = bt_worker_finish(b->worker, &plan, &leave);
    return st;
}

static void logits_that_are_no_numbers_fail_the_request_alone(void)
{
    bench b;

    set_up(&b, 0, 0, 0);
    b.logit = 0.0f / 0.0f;
    EXPECT_EQ(run_prompt(&b), BT_OK);
    EXPECT_EQ(b.n_up, 2);
    EXPECT_EQ(b.up[1].kind, BT_UP_RELEASED);
    bt_up_free(&b.up[--b.n_up]);
    expect_failed(&b, 13, "not a finite number");
    tear_down(&b);
}

static void step_that_fails_is_passed_on(void)
{
    bench b;

    set_up(&b, 0, 0, 0);
    b.step_status = BT_ERR_TIMEOUT;
    EXPECT_EQ(run_prompt(&b), BT_ERR_TIMEOUT);
    tear_down(&b);
}

static void worker_create_unwinds_at_every_allocation(void)
{
    bench            b;
    bt_worker_config cfg;
    bt_worker       *w    = NULL;
    long             live = 0, k = -1;
    bt_status        st;

    set_up(&b, 0, 1, 1);
    cfg  = config(&b, 0, 1, 1);
    live = bt_alloc_live();
    do {
        bt_alloc_fail_at(++k);
        st = bt_worker_create(&cfg, &w);
        bt_alloc_fail_at(-1);
        EXPECT(st == BT_OK || st == BT_ERR_NO_MEMORY);
        if (st != BT_OK) EXPECT_EQ(bt_alloc_live(), live);
    } while (st != BT_OK && k < 100);
    EXPECT(k > 5);
    bt_worker_destroy(w);
    EXPECT_EQ(bt_alloc_live(), live);
    tear_down(&b);
}

/* An order at whose k-th allocation memory ends takes nothing. */
static void orders_unwind_at_every_allocation(void)
{
    for (int kind = 0; kind < 2; kind++) {
        long      k = -1, live;
        bt_status st;
        bench     b;

        set_up(&b, kind == 0 ? 1 : 0, 1, 1);
        live = bt_alloc_live();
        do {
            bt_down m = kind == 0 ? reserve(1, 100, 5) : prefill(1, 100, 2, 1);

            bt_alloc_fail_at(++k);
            st = bt_worker_control(b.worker, &m);
            bt_alloc_fail_at(-1);
            bt_down_free(&m);
            EXPECT(st == BT_OK || st == BT_ERR_NO_MEMORY);
            if (st != BT_OK && k < 4) EXPECT_EQ(bt_alloc_live(), live);
        } while (st != BT_OK && k < 100);
        EXPECT(k > 3);
        tear_down(&b);
    }
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(decode_rank_refuses_wrong_reservations_with_a_sentence),
        BT_TEST(prefill_rank_refuses_wrong_orders_with_a_sentence),
        BT_TEST(forced_experts_are_checked),
        BT_TEST(rank_with_both_roles_needs_its_own_ticket),
        BT_TEST(rank_without_pages_refuses_the_ticket),
        BT_TEST(abort_of_an_unknown_request_is_answered),
        BT_TEST(abort_frees_pages_at_once_and_quarantines_the_slot),
        BT_TEST(newer_placement_takes_the_place_of_an_older_one),
        BT_TEST(rank_that_is_not_woken_in_time_says_who_failed),
        BT_TEST(plans_that_do_not_agree_stop_the_rank),
        BT_TEST(logits_that_are_no_numbers_fail_the_request_alone),
        BT_TEST(step_that_fails_is_passed_on),
        BT_TEST(worker_create_unwinds_at_every_allocation),
        BT_TEST(orders_unwind_at_every_allocation),
    };

    bt_log_init("orders", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
