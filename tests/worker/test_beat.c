/* What a rank says of itself: each count under its own name, and nothing more often than due. */
#include "core/clock.h"
#include "tests/support/test.h"
#include "tests/worker/bench.h"
#include "worker/state.h"

static bt_up_beat g_beat; /* the last one of the link below */
static uint32_t   g_n_beats;

static bt_status up_of_beats(void *ctx, bt_up *m)
{
    if (m->kind == BT_UP_BEAT) {
        g_beat = m->u.beat;
        g_n_beats++;
    }
    return bench_up(ctx, m);
}

static uint64_t waited_for_77(void *ctx)
{
    (void)ctx;
    return 77;
}

/* A prefill rank of four. */
static void set_up(bench *b)
{
    bench_set_up(b, 0, 2, 2);
    b->worker->cfg.links.up        = up_of_beats;
    b->worker->cfg.links.waited_ns = waited_for_77;
    g_n_beats                      = 0;
}

static void values_are_counted_in_the_first_bucket_that_holds_them(void)
{
    static const struct {
        uint64_t value;
        uint32_t bucket;
    } CASES[] = {
        {0,          0},
        {10,         0},
        {11,         1},
        {20,         1},
        {21,         2},
        {40,         2},
        {41,         3},
        {UINT64_MAX, 3},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        uint64_t buckets[4] = {0};

        bt_worker_count(buckets, 4, CASES[i].value, 10);
        for (uint32_t k = 0; k < 4; k++)
            EXPECT_EQ(buckets[k], k == CASES[i].bucket);
    }
}

static void beat_says_each_count_under_its_name(void)
{
    bench      b;
    bt_worker *w;
    bt_page_id pages[2] = {0, 0};

    set_up(&b);
    w = b.worker;
    EXPECT_EQ(bt_kv_pool_acquire(b.pool, 2, pages), BT_OK);
    bt_kv_pool_keep(b.pool, pages[0], &(bt_prefix_key){1, 2}, &(bt_page_map){0, 0});
    bt_kv_pool_release(b.pool, pages[0]);
    w->progress = 1, w->n_steps = 2, w->gather_ns = 3, w->model_ns = 4, w->sample_ns = 5;
    w->handoff_bytes = 6, w->handoff_pages = 7, w->handoff_ns = 8;
    w->prefix_asked_tokens = 9, w->prefix_hit_tokens = 10;
    w->n_drafts = 11, w->n_drafted = 12, w->n_draft_right = 13;
    w->n_rows_done[BT_ROLE_PROMPT] = 14, w->n_rows_done[BT_ROLE_GENERATED] = 15;
    w->batch_rows[BT_BEAT_BATCH_BUCKETS - 1]   = 16;
    w->step_times[BT_BEAT_TIME_BUCKETS - 1]    = 17;
    w->handoff_times[BT_BEAT_TIME_BUCKETS - 1] = 18;
    EXPECT_EQ(bt_worker_beat(w), BT_OK);
    EXPECT_EQ(g_beat.at_ns, BT_NS_PER_S);
    EXPECT(g_beat.progress == 1 && g_beat.steps == 2);
    EXPECT(g_beat.gather_ns == 3 && g_beat.model_ns == 4 && g_beat.sample_ns == 5);
    EXPECT_EQ(g_beat.waited_ns, 77);
    EXPECT(g_beat.handoff_bytes == 6 && g_beat.handoff_pages == 7 && g_beat.handoff_ns == 8);
    EXPECT(g_beat.prefix_asked_tokens == 9 && g_beat.prefix_hit_tokens == 10);
    EXPECT(g_beat.drafts == 11 && g_beat.draft_tokens == 12 && g_beat.draft_right_tokens == 13);
    EXPECT(g_beat.prompt_rows == 14 && g_beat.generated_rows == 15);
    EXPECT_EQ(g_beat.batch_rows[BT_BEAT_BATCH_BUCKETS - 1], 16);
    EXPECT_EQ(g_beat.step_times[BT_BEAT_TIME_BUCKETS - 1], 17);
    EXPECT_EQ(g_beat.handoff_times[BT_BEAT_TIME_BUCKETS - 1], 18);
    EXPECT(g_beat.pages_total == BENCH_PAGES && g_beat.pages_cached == 1);
    EXPECT_EQ(g_beat.pages_free, BENCH_PAGES - 2);
    bt_kv_pool_release(b.pool, pages[1]);
    bench_tear_down(&b);
}

/* Those of requests that have ended here and hand over, which two of five do. */
static void only_slots_of_ended_requests_are_in_quarantine(void)
{
    bench     b;
    uint32_t *ticket;

    set_up(&b);
    for (uint64_t id = 1; id <= 5; id++) {
        bt_down m = bench_prefill(id, 10, 1, 2);

        bench_order(&b, &m);
    }
    for (uint32_t i = 0; i < 3; i++)
        b.worker->requests.at[i]->state = BT_REQUEST_DRAINING;
    ticket                                   = b.worker->requests.at[0]->out.ticket_ids;
    b.worker->requests.at[0]->out.ticket_ids = NULL; /* as where it decodes */
    EXPECT_EQ(bt_worker_beat(b.worker), BT_OK);
    b.worker->requests.at[0]->out.ticket_ids = ticket;
    EXPECT_EQ(g_beat.n_requests, 5);
    EXPECT_EQ(g_beat.slots_quarantined, 2);
    bench_tear_down(&b);
}

static void beats_are_a_fifth_of_a_second_apart(void)
{
    bench b;

    set_up(&b);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(bt_worker_beat(b.worker), BT_OK);
        EXPECT_EQ(g_n_beats, 1 + i);
        b.now += 200 * BT_NS_PER_MS - 1;
        EXPECT_EQ(bt_worker_beat(b.worker), BT_OK);
        EXPECT_EQ(g_n_beats, 1 + i);
        b.now++;
    }
    bench_tear_down(&b);
}

static uint64_t   g_rows[8] = {5, 0, 0, 0, 0, 0, 0, 3};
static bt_traffic g_traffic[4];

static const uint64_t *rows_of_experts(void *ctx)
{
    (void)ctx;
    return g_rows;
}

static const bt_traffic *traffic_of_four(void *ctx)
{
    (void)ctx;
    return g_traffic;
}

/* Once a second at most, and not where no step has run since. */
static void expect_load(bench *b, uint64_t now, uint64_t n_steps, bool said)
{
    b->now             = now;
    b->worker->n_steps = n_steps;
    EXPECT_EQ(bt_worker_send_load(b->worker), BT_OK);
    EXPECT_EQ(b->n_up, said);
    EXPECT_EQ(b->n_up > 0 && b->up[0].kind == BT_UP_EXPERT_LOAD, said);
    bench_forget(b);
}

static void load_of_experts_is_said_once_a_second_of_steps(void)
{
    bench b;

    set_up(&b);
    b.worker->cfg.links.expert_rows = rows_of_experts;
    expect_load(&b, 10 * BT_NS_PER_S, 0, false);
    expect_load(&b, 10 * BT_NS_PER_S, 1, true);
    expect_load(&b, 20 * BT_NS_PER_S, 1, false);
    expect_load(&b, 20 * BT_NS_PER_S, 2, true);
    expect_load(&b, 21 * BT_NS_PER_S - 1, 3, false);
    expect_load(&b, 21 * BT_NS_PER_S, 3, true);
    bench_tear_down(&b);
}

/* Peers with which nothing went are left out.  A rank that has parked tells of its last steps with
 * a beat; one that has not may have an exchange of the device under way. */
static void load_is_that_of_experts_and_peers(void)
{
    bench b;

    set_up(&b);
    b.worker->cfg.links.expert_rows = rows_of_experts;
    b.worker->cfg.links.traffic     = traffic_of_four;
    g_traffic[1]                    = (bt_traffic){.waited_ns = 4};
    g_traffic[3]                    = (bt_traffic){.handoff_bytes = 5, .handoff_ns = 6};
    b.worker->n_steps               = 1;
    b.worker->parked                = false;
    EXPECT_EQ(bt_worker_beat(b.worker), BT_OK);
    EXPECT_EQ(b.n_up, 0);
    b.worker->parked = true;
    b.now += BT_NS_PER_S;
    EXPECT_EQ(bt_worker_beat(b.worker), BT_OK);
    EXPECT(b.n_up == 2 && b.up[0].kind == BT_UP_EXPERT_LOAD && b.up[1].kind == BT_UP_PEER_LOAD);
    if (b.n_up == 2) {
        const bt_peer_load *peers = b.up[1].u.peer_load.peers;

        EXPECT_EQ(b.up[0].u.expert_load.n, 8);
        EXPECT_EQ(memcmp(b.up[0].u.expert_load.rows, g_rows, sizeof(g_rows)), 0);
        EXPECT_EQ(b.up[1].u.peer_load.at_ns, 2 * BT_NS_PER_S);
        EXPECT_EQ(b.up[1].u.peer_load.n, 2);
        EXPECT(peers[0].rank == 1 && peers[0].waited_ns == 4 && peers[0].handoff_ns == 0);
        EXPECT(peers[1].rank == 3 && peers[1].waited_ns == 0);
        EXPECT(peers[1].handoff_bytes == 5 && peers[1].handoff_ns == 6);
    }
    bench_forget(&b);
    memset(g_traffic, 0, sizeof(g_traffic));
    b.worker->n_steps = 2;
    b.now += BT_NS_PER_S;
    EXPECT_EQ(bt_worker_send_load(b.worker), BT_OK);
    EXPECT(b.n_up == 1 && b.up[0].kind == BT_UP_EXPERT_LOAD);
    bench_tear_down(&b);
}

/* A long step is no rank that stands still. */
static void every_layer_is_progress(void)
{
    bench b;

    bench_set_up(&b, 0, 0, 0);
    b.tells_layers = true;
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
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
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
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
    EXPECT_EQ(bench_run_prompt(&b, bench_reserve(1, 10, 5)), BT_OK);
    EXPECT_EQ(b.model_ns, (BENCH_LAYERS - 1) * BT_NS_PER_S); /* of a beat within the last one */
    EXPECT_EQ(b.counted_ns, b.now - BT_NS_PER_S);
    b.now += BT_NS_PER_S;
    bt_worker_background(b.worker);
    EXPECT_EQ(b.model_ns, BENCH_LAYERS * BT_NS_PER_S);
    EXPECT_EQ(b.counted_ns, b.now);
    bench_tear_down(&b);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(values_are_counted_in_the_first_bucket_that_holds_them),
        BT_TEST(beat_says_each_count_under_its_name),
        BT_TEST(only_slots_of_ended_requests_are_in_quarantine),
        BT_TEST(beats_are_a_fifth_of_a_second_apart),
        BT_TEST(load_of_experts_is_said_once_a_second_of_steps),
        BT_TEST(load_is_that_of_experts_and_peers),
        BT_TEST(every_layer_is_progress),
        BT_TEST(beat_within_a_step_counts_the_time_so_far),
        BT_TEST(beat_within_a_layer_does_not_count_it),
    };

    bt_log_init("beat", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
