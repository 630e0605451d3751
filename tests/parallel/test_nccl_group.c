/* What only NCCL does: calls that it refuses, operations that fail or stand still on their way,
 * communicators side by side. */
#include "core/watchdog.h"
#include "tests/parallel/carrier_site.h"

/* A call of rank 0 is refused, its operation fails, or its GPU, of which no call succeeds any more:
 * it says so at once, and why, and the others, who hear it call the roll, do not sit out their
 * deadline. */
static void failure_of_one_rank_is_heard_by_all(void)
{
    enum { REFUSED, ON_ITS_WAY, BROKEN, N_KINDS };
    static const char *const WHY[N_KINDS] = {
        [REFUSED]    = "ncclGroupEnd(): an error of the fake NCCL, though all",
        [ON_ITS_WAY] = "working on what was asked for: remote process exited",
        [BROKEN]     = "an illegal memory access was encountered: a kernel launched before",
    };
    void *memory = take(MAX_RANKS * 1000);

    for (int kind = 0; kind < N_KINDS; kind++) {
        bt_group *group = carried_group();
        bt_wait   wait  = wait_s(30);
        uint32_t  missing[MAX_RANKS];
        uint64_t  start_ns;

        EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_OK);
        wait.what  = "moe combine";
        wait.layer = 7;
        if (g_rank == 0 && kind == ON_ITS_WAY) g_fake_nccl.fail_at = 0;
        if (g_rank == 0 && kind == REFUSED) g_fake_nccl.refuse_at = 0;
        if (g_rank == 0 && kind == BROKEN) g_fake_gpu.broken = cudaErrorIllegalAddress;
        g_fake_nccl.stalled = g_rank == 0 && kind == BROKEN; /* or the others may get theirs */
        start_ns            = bt_now_ns();
        EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), g_rank != 0      ? BT_ERR_TIMEOUT
                                                                 : kind == BROKEN ? BT_ERR_DEVICE
                                                                                  : BT_ERR_PEER);
        EXPECT(bt_now_ns() - start_ns < 20 * BT_NS_PER_S);
        EXPECT_HAS(bt_error_text(), "moe combine of layer 7 in epoch");
        EXPECT_HAS(bt_error_text(),
                   g_rank == 0 ? WHY[kind] : "it, and another rank has given it up, though all");
        EXPECT_HAS(bt_error_text(), "ranks answer");
        EXPECT_EQ(bt_group_missing(group, missing), 0);
        EXPECT_EQ(g_fake_nccl.live, 0); /* ended with the error, not with the group */
        g_fake_gpu.broken   = cudaSuccess;
        g_fake_nccl.stalled = 0;
        meet();
        bt_group_destroy(group);
    }
    bt_device_free(g_dev, memory);
    close_device();
}

/* The last rank stands still; the first one waits for it by NCCL, the others wait for the first by
 * the group's own messages, as ranks do that have got what they needed and plan the next step. They
 * hear the call of the roll, and all name the one that stands still. */
static void ranks_that_wait_for_a_waiting_one_name_whom_it_waits_for(void)
{
    void     *memory = take(MAX_RANKS * 1000);
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(8); /* others have an eighth of it for an answer */
    uint32_t  missing[MAX_RANKS];
    uint8_t   mine = 1, all[MAX_RANKS];

    EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_OK);
    meet();
    if (g_rank == 0)
        EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_ERR_TIMEOUT);
    else if (g_rank < g_ranks - 1)
        EXPECT_EQ(bt_group_all_gather(group, &mine, 1, all, &wait), BT_ERR_TIMEOUT);
    meet();
    if (g_rank < g_ranks - 1) {
        EXPECT_EQ(bt_group_missing(group, missing), 1);
        EXPECT_EQ(missing[0], g_ranks - 1);
    }
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    close_device();
}

/* NCCL does not get on though every rank is there. */
static void operation_that_stands_still_ends_at_the_deadline(void)
{
    bt_wait   wait   = wait_s(3);
    void     *memory = take(MAX_RANKS * 1000);
    bt_group *group;

    for (int connected = 0; connected < 2; connected++) {
        group = carried_group();
        if (connected) EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_OK);
        g_fake_nccl.stalled = 1;
        EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_ERR_TIMEOUT);
        EXPECT_HAS(bt_error_text(), "NCCL has not done it");
        g_fake_nccl.stalled = 0;
        meet();
        bt_group_destroy(group);
    }
    bt_device_free(g_dev, memory);
    close_device();
}

static void on_stuck(void *ctx, const char *where, uint64_t quiet_ns)
{
    (void)ctx;
    fprintf(stderr, "the watchdog: %s for %.1f s\n", where, (double)quiet_ns / 1e9);
    abort();
}

/* NCCL comes back late from the end of a communicator: the rank goes on after two seconds, and a
 * new communicator works.  The watchdog has nothing to say, even where ranks wait for each other no
 * longer than is allowed. */
static void end_that_peers_hold_up_holds_nobody_up(void)
{
    void     *memory = take(MAX_RANKS * 1000);
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(30);
    uint64_t  start_ns;
    long      live = bt_alloc_live();

    EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_OK);
    meet();
    EXPECT_EQ(bt_watchdog_start(BT_NCCL_LEAST_TIMEOUT_NS, on_stuck, NULL), BT_OK);
    g_fake_nccl.held_up_ms = g_rank == 0 ? 4000 : 0;
    start_ns               = bt_now_ns();
    bt_group_end_exchanges(group);
    EXPECT(bt_now_ns() - start_ns < 3500 * BT_NS_PER_MS);
    bt_group_destroy(group);
    bt_watchdog_set_limit(60 * BT_NS_PER_S);
    g_fake_nccl.held_up_ms = 0;
    meet();
    group = carried_group();
    EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_OK);
    meet();
    bt_group_destroy(group);
    while (bt_alloc_live() >= live && bt_now_ns() - start_ns < 30 * BT_NS_PER_S)
        bt_sleep_ns(10 * BT_NS_PER_MS); /* what ended late has given its memory back */
    EXPECT(bt_alloc_live() < live);
    bt_device_free(g_dev, memory);
    close_device();
}

/* After that nothing on the device is waited for: one operation of NCCL is enqueued for each call.
 */
static void warm_group_has_its_communicator_and_only_enqueues(void)
{
    uint8_t  *memory = take(MAX_RANKS * 1000);
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(30);
    long      launched, live;

    EXPECT_EQ(bt_group_warm(group, &wait), BT_OK);
    launched = g_fake_nccl.n_launched;
    live     = g_fake_gpu.live;
    EXPECT_EQ(g_fake_nccl.live, 1);
    EXPECT_EQ(bt_group_warm(group, &wait), BT_OK);
    EXPECT_EQ(g_fake_nccl.n_launched, launched);
    meet();
    g_fake_nccl.stalled = 1; /* what was enqueued does not get on */
    put(memory + (size_t)g_rank * 1000, 1000, 3, g_rank, 0);
    for (long k = 1; k < 4; k++) {
        EXPECT_EQ(gather(group, memory, 1000, &wait), BT_OK);
        EXPECT_EQ(g_fake_nccl.n_launched, launched + k);
    }
    EXPECT_EQ(g_fake_gpu.live, live);
    g_fake_nccl.stalled = 0;
    EXPECT_EQ(bt_group_settle(group, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks; i++)
        EXPECT_EQ(wrong_bytes(memory + (size_t)i * 1000, 1000, 3, i, 0), 0);
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    close_device();
}

/* All ranks in one group, the first two in another: that one ends with an error, on half way, and
 * the first goes on. */
static void end_of_one_communicator_leaves_the_other_alone(void)
{
    enum { BYTES = 400000 };
    static const uint32_t PAIR[] = {0, 1};
    uint8_t              *memory = take(2 * (size_t)MAX_RANKS * BYTES),
            *other               = memory + (size_t)MAX_RANKS * BYTES;
    bt_group   *all = carried_group(), *pair = NULL;
    bt_carrier *carrier = NULL;
    bt_wait     wait = wait_s(30), brief = wait_s(0.2);
    uint32_t    epoch = next_epoch();

    if (g_rank < 2) {
        EXPECT_EQ(bt_group_create(g_world, 2, PAIR, 1, epoch, &pair), BT_OK);
        EXPECT_EQ(
            bt_carrier_nccl_create(&bt_nccl_module_table, g_dev, g_world, ROLL_SPACE + 1, &carrier),
            BT_OK);
        bt_group_attach(pair, carrier);
        EXPECT_EQ(gather_and_settle(pair, other, BYTES, &wait), BT_OK);
    }
    for (uint64_t k = 0; k < 6; k++) {
        if (k == 3 && g_rank == 0)
            EXPECT_EQ(gather_and_settle(pair, other, BYTES, &brief), BT_ERR_TIMEOUT);
        put(memory + (size_t)g_rank * BYTES, BYTES, k, g_rank, 0);
        EXPECT_EQ(gather_and_settle(all, memory, BYTES, &wait), BT_OK);
        for (uint32_t i = 0; i < g_ranks; i++)
            EXPECT_EQ(wrong_bytes(memory + (size_t)i * BYTES, BYTES, k, i, 0), 0);
    }
    bt_group_destroy(pair);
    bt_group_destroy(all);
    bt_device_free(g_dev, memory);
    close_device();
}

/* It may be older than the header that the module was compiled with. */
static void nccl_that_lacks_a_call_is_refused(void)
{
    char text[200];
    int  version = g_fake_nccl.version;

    g_fake_nccl.version = 22605;
    EXPECT(!bt_nccl_module_table.usable(text, sizeof(text)));
    EXPECT_HAS(text, "of version 22605: expected 22700 or newer");
    g_fake_nccl.version = 22703;
    EXPECT(bt_nccl_module_table.usable(text, sizeof(text)));
    g_fake_nccl.version = version;
}

/* Each call into NCCL and the runtime, and each allocation, fails once on rank 0: an error, nothing
 * that stays, and the next group works. */
static void every_failing_call_is_survived(void)
{
    enum { KINDS = 3, MOST = 60 };
    void   *memory = take(MAX_RANKS * 1000);
    bt_wait wait   = wait_s(5);

    for (int kind = 0; kind < KINDS; kind++) {
        uint64_t k = 0, failed = 1;

        for (; k < MOST && failed; k++) {
            long      live  = g_fake_gpu.live;
            bt_group *group = carried_group();
            bt_status st;

            if (g_rank == 0 && kind == 0) g_fake_nccl.refuse_at = (long)k;
            if (g_rank == 0 && kind == 1) g_fake_gpu.fail_at = (long)k;
            if (g_rank == 0 && kind == 2) bt_alloc_fail_at((long)k);
            wait.timeout_ns       = kind == 2 ? BT_NS_PER_S / 2 : 5 * BT_NS_PER_S;
            st                    = gather_and_settle(group, memory, 1000, &wait);
            g_fake_nccl.refuse_at = g_fake_gpu.fail_at = -1;
            bt_alloc_fail_at(-1);
            if (st != BT_OK && g_rank == 0) EXPECT(bt_group_is_broken(group));
            failed = max_over_ranks(st != BT_OK);
            bt_group_destroy(group);
            EXPECT_EQ(g_fake_nccl.live, 0);
            EXPECT_EQ(g_fake_gpu.live, live);
        }
        EXPECT(k > 3 && k < MOST);
    }
    bt_device_free(g_dev, memory);
    close_device();
}

/* ---- operations in graphs */

typedef struct {
    bt_graph *graph;
    int       n_dropped;
} kept;

static void drop_kept(void *ctx)
{
    kept *k = ctx;

    EXPECT_EQ(g_dev->ops->graphs->end(g_dev, NULL), BT_OK);
    g_dev->ops->graphs->destroy(g_dev, k->graph);
    k->graph = NULL;
    k->n_dropped++;
}

/* A gather and, of what it brought, everyone's bytes to the next rank. */
static bt_status gather_and_pass(bt_group *group, uint8_t *memory, const bt_wait *wait)
{
    enum { BYTES = 1000 };
    size_t      none[MAX_RANKS] = {0}, at[MAX_RANKS] = {0}, to[MAX_RANKS] = {0};
    size_t      from[MAX_RANKS] = {0};
    bt_exchange x               = {memory, none, to, memory + (size_t)g_ranks * BYTES, at, from};
    bt_status   st;

    to[(g_rank + 1) % g_ranks]             = g_ranks * (size_t)BYTES;
    from[(g_rank + g_ranks - 1) % g_ranks] = g_ranks * (size_t)BYTES;
    st                                     = gather(group, memory, BYTES, wait);
    return st != BT_OK ? st : bt_group_exchange_device(group, &x, wait);
}

static void capture(kept *k, bt_group *group, uint8_t *memory, const bt_wait *wait)
{
    const bt_graph_ops *graphs   = g_dev->ops->graphs;
    long                launched = g_fake_nccl.n_launched;

    EXPECT(bt_group_captures(group));
    bt_group_watch_end(group, drop_kept, k);
    EXPECT_EQ(graphs->begin(g_dev), BT_OK);
    EXPECT_EQ(gather_and_pass(group, memory, wait), BT_OK);
    EXPECT_EQ(graphs->end(g_dev, &k->graph), BT_OK);
    EXPECT_EQ(g_fake_nccl.n_launched, launched); /* nothing has run */
}

/* Round k, by a graph or by calls: what came, and what was passed on, is everyone's. */
static void expect_round(bt_group *group, kept *graph, uint8_t *memory, uint64_t k, bool by_graph,
                         const bt_wait *wait)
{
    put(memory + (size_t)g_rank * 1000, 1000, k, g_rank, 0);
    EXPECT_EQ(by_graph ? g_dev->ops->graphs->launch(g_dev, graph->graph)
                       : gather_and_pass(group, memory, wait),
              BT_OK);
    EXPECT_EQ(bt_group_settle(group, wait), BT_OK);
    for (uint32_t i = 0; i < 2 * g_ranks; i++)
        EXPECT_EQ(wrong_bytes(memory + (size_t)i * 1000, 1000, k, i % g_ranks, 0), 0);
}

/* Graphs and calls in any order: the same messages. */
static void captured_exchanges_run_at_each_launch(void)
{
    uint8_t  *memory = take(2 * (size_t)MAX_RANKS * 1000);
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(30);
    kept      k      = {.n_dropped = 0};

    EXPECT_EQ(bt_group_warm(group, &wait), BT_OK);
    capture(&k, group, memory, &wait);
    for (uint64_t round = 0; round < 8; round++)
        expect_round(group, &k, memory, round, round % 4 != 2, &wait);
    bt_group_destroy(group); /* the communicator ends after its graphs */
    EXPECT_EQ(k.n_dropped, 1);
    bt_device_free(g_dev, memory);
    close_device();
}

/* Between two launches a rank's NCCL fails, or a rank stays away: the others' launches end at their
 * wait, graphs are dropped before the communicator, and captured anew in the next group. */
static void graphs_of_a_failed_group_are_dropped_and_captured_anew(void)
{
    uint8_t *memory = take(2 * (size_t)MAX_RANKS * 1000);

    for (int absent = 0; absent < 2; absent++) {
        bt_group *group = carried_group();
        bt_wait   wait  = wait_s(30);
        kept      k     = {.n_dropped = 0};
        uint32_t  missing[MAX_RANKS];

        EXPECT_EQ(bt_group_warm(group, &wait), BT_OK);
        capture(&k, group, memory, &wait);
        expect_round(group, &k, memory, 1, true, &wait);
        meet();
        if (g_rank == 0 && !absent) g_fake_nccl.fail_at = 0;
        if (absent) wait = wait_s(2);
        if (g_rank != 0 || !absent) {
            EXPECT_EQ(g_dev->ops->graphs->launch(g_dev, k.graph), BT_OK);
            EXPECT_EQ(bt_group_settle(group, &wait), g_rank == 0 ? BT_ERR_PEER : BT_ERR_TIMEOUT);
            EXPECT_EQ(k.n_dropped, 1);
            EXPECT_EQ(g_fake_nccl.live, 0);
        }
        if (absent && g_rank != 0) {
            EXPECT_EQ(bt_group_missing(group, missing), 1);
            EXPECT_EQ(missing[0], 0);
        }
        g_fake_nccl.fail_at = -1;
        meet();
        bt_group_destroy(group);
        EXPECT_EQ(k.n_dropped, 1);
        group = carried_group();
        wait  = wait_s(30);
        EXPECT_EQ(bt_group_warm(group, &wait), BT_OK);
        capture(&k, group, memory, &wait);
        expect_round(group, &k, memory, 7, true, &wait);
        bt_group_destroy(group);
    }
    bt_device_free(g_dev, memory);
    close_device();
}

/* NCCL refuses a call within a capture: that ends too, and what it had got is not kept. */
static void refused_call_ends_the_capture(void)
{
    uint8_t  *memory = take(2 * (size_t)MAX_RANKS * 1000);
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(30);
    kept      k      = {.n_dropped = 0};
    bt_status st;

    EXPECT_EQ(bt_group_warm(group, &wait), BT_OK);
    bt_group_watch_end(group, drop_kept, &k);
    EXPECT_EQ(g_dev->ops->graphs->begin(g_dev), BT_OK);
    if (g_rank == 0) {
        g_fake_nccl.refuse_at = 3;
        wait                  = wait_s(1); /* the others may be done, and hear no roll */
    }
    st = gather_and_pass(group, memory, &wait);
    EXPECT(g_rank == 0 ? st != BT_OK : st == BT_OK || st == BT_ERR_TIMEOUT);
    EXPECT_EQ(k.n_dropped, st != BT_OK);
    if (st == BT_OK) EXPECT_EQ(g_dev->ops->graphs->end(g_dev, &k.graph), BT_OK);
    meet();
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    close_device();
}

static const bt_test TESTS[] = {
    BT_TEST(failure_of_one_rank_is_heard_by_all),
    BT_TEST(ranks_that_wait_for_a_waiting_one_name_whom_it_waits_for),
    BT_TEST(operation_that_stands_still_ends_at_the_deadline),
    BT_TEST(end_that_peers_hold_up_holds_nobody_up),
    BT_TEST(warm_group_has_its_communicator_and_only_enqueues),
    BT_TEST(end_of_one_communicator_leaves_the_other_alone),
    BT_TEST(nccl_that_lacks_a_call_is_refused),
    BT_TEST(every_failing_call_is_survived),
    BT_TEST(captured_exchanges_run_at_each_launch),
    BT_TEST(graphs_of_a_failed_group_are_dropped_and_captured_anew),
    BT_TEST(refused_call_ends_the_capture),
};

MPI_TEST_MAIN(TESTS)
