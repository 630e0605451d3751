/* Exchanges of device memory as n ranks, by each carrier: contents, counts, orders, and what
 * happens when a rank is late or stays away.
 *
 * usage: mpiexec -n N test_carrier host|staged|nccl [test] */
#include "tests/parallel/carrier_site.h"

/* ---- contents */

static void exchange_with_random_counts_brings_what_was_sent(void)
{
    enum { ROUNDS = 20, MAX_BYTES = 200000 };
    uint8_t  *send = take((size_t)g_ranks * MAX_BYTES), *recv = take((size_t)g_ranks * MAX_BYTES);
    bt_group *group = carried_group();
    bt_wait   wait  = wait_s(30);
    size_t    wrong = 0;

    for (uint64_t k = 0; k < ROUNDS; k++) {
        random_exchange e = lay_out(k, MAX_BYTES, false);

        for (uint32_t i = 0; i < g_ranks; i++)
            put(send + e.send_at[i], e.send_bytes[i], k, g_rank, i);
        EXPECT_EQ(bt_group_exchange_device(
                      group,
                      &(bt_exchange){send, e.send_at, e.send_bytes, recv, e.recv_at, e.recv_bytes},
                      &wait),
                  BT_OK);
        EXPECT_EQ(bt_group_settle(group, &wait), BT_OK);
        for (uint32_t i = 0; i < g_ranks; i++)
            wrong += wrong_bytes(recv + e.recv_at[i], e.recv_bytes[i], k, i, g_rank);
    }
    EXPECT_EQ(wrong, 0);
    bt_group_destroy(group);
    bt_device_free(g_dev, send);
    bt_device_free(g_dev, recv);
    close_device();
}

/* As the experts' dispatch: own rows lie among all rows already, and go to everybody; they must
 * stay.  Several operations are enqueued before one wait. */
static void rows_that_go_to_everyone_keep_their_own_place(void)
{
    enum { STEPS = 20, ROWS = 7000 };
    uint8_t  *rows  = take((size_t)STEPS * g_ranks * ROWS);
    bt_group *group = carried_group();
    bt_wait   wait  = wait_s(30);

    for (uint64_t k = 0; k < STEPS; k++) {
        size_t   to_at[MAX_RANKS], from_at[MAX_RANKS], to[MAX_RANKS], from[MAX_RANKS];
        size_t   own  = mix3(k, g_rank, 3) % ROWS;
        uint8_t *step = rows + k * g_ranks * ROWS;

        for (uint32_t i = 0; i < g_ranks; i++) {
            to_at[i]   = (size_t)g_rank * ROWS;
            to[i]      = i == g_rank ? 0 : own;
            from_at[i] = (size_t)i * ROWS;
            from[i]    = i == g_rank ? 0 : mix3(k, i, 3) % ROWS;
        }
        put(step + (size_t)g_rank * ROWS, own, k, g_rank, 0);
        EXPECT_EQ(bt_group_exchange_device(
                      group, &(bt_exchange){step, to_at, to, step, from_at, from}, &wait),
                  BT_OK);
    }
    EXPECT_EQ(bt_group_settle(group, &wait), BT_OK);
    for (uint64_t k = 0; k < STEPS; k++)
        for (uint32_t i = 0; i < g_ranks; i++)
            EXPECT_EQ(wrong_bytes(rows + (k * g_ranks + i) * ROWS, mix3(k, i, 3) % ROWS, k, i, 0),
                      0);
    bt_group_destroy(group);
    bt_device_free(g_dev, rows);
    close_device();
}

/* ---- waiting */

static void count(void *ctx) { ++*(int *)ctx; }

static void late_rank_is_waited_for_while_idle_is_polled(void)
{
    void     *memory = take(MAX_RANKS * 64);
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(30);
    int       idle   = 0;
    uint64_t  waited_ns;

    wait.idle = count;
    wait.ctx  = &idle;
    EXPECT_EQ(gather_and_settle(group, memory, 64, &wait), BT_OK); /* all are connected */
    idle      = 0;
    waited_ns = bt_world_waited_ns(g_world);
    if (g_rank == g_ranks - 1) bt_sleep_ns(300 * BT_NS_PER_MS);
    EXPECT_EQ(gather_and_settle(group, memory, 64, &wait), BT_OK);
    if (g_rank != g_ranks - 1) EXPECT(idle > 3);
    EXPECT(bt_world_waited_ns(g_world) > waited_ns);
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    close_device();
}

static bool stop_soon(void *ctx) { return ++*(int *)ctx > 3; }

static void stop_callback_cancels_the_wait(void)
{
    void     *memory = take(MAX_RANKS * 64);
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(30);
    int       polls  = 0;

    wait.stop = stop_soon;
    wait.ctx  = &polls;
    if (g_rank != 0) {
        EXPECT_EQ(gather_and_settle(group, memory, 64, &wait), BT_ERR_CANCELLED);
        EXPECT(bt_group_is_broken(group));
        EXPECT_EQ(gather_and_settle(group, memory, 64, &wait), BT_ERR_PEER);
        EXPECT_HAS(bt_error_text(), "made anew");
        EXPECT_EQ(bt_group_warm(group, &wait),
                  bt_group_carrier(group) != NULL ? BT_ERR_PEER : BT_OK);
    }
    meet();
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    close_device();
}

/* Memory is taken by reserve() alone. */
static void operation_beyond_what_was_reserved_is_refused(void)
{
    void     *memory = take((size_t)MAX_RANKS * (RESERVED / 2));
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(30);
    uint64_t  allocs = g_dev->n_allocs;
    bool      staged = strcmp(g_carrier, "staged") == 0;

    EXPECT_EQ(bt_group_reserve(group, 1, 1), BT_OK); /* the larger counts */
    EXPECT_EQ(gather_and_settle(group, memory, RESERVED / MAX_RANKS, &wait), BT_OK);
    EXPECT(!staged || g_dev->n_allocs == allocs);
    EXPECT_EQ(gather_and_settle(group, memory, RESERVED / 2, &wait),
              staged && g_ranks > 2 ? BT_ERR_INVALID_ARG : BT_OK);
    EXPECT(!staged || g_dev->n_allocs == allocs);
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    close_device();
}

/* Parts that end where the memory does, and a byte behind it. */
static void operation_may_use_all_that_was_reserved(void)
{
    enum { BYTES = 64 };
    uint8_t  *send = take(RESERVED + 1), *recv = take(RESERVED + 1);
    bt_group *group         = carried_group();
    bt_wait   wait          = wait_s(30);
    size_t    at[MAX_RANKS] = {0}, all[MAX_RANKS] = {0};
    bool      staged = strcmp(g_carrier, "staged") == 0;

    for (uint32_t i = 0; i < g_ranks; i++) {
        at[i]  = RESERVED - BYTES;
        all[i] = i == (g_rank + 1) % g_ranks ? BYTES : 0;
    }
    put(send + RESERVED - BYTES, BYTES, 3, g_rank, 0);
    for (size_t more = 0; more < 2; more++) {
        size_t   from_at[MAX_RANKS] = {0}, from[MAX_RANKS] = {0};
        uint32_t before = (g_rank + g_ranks - 1) % g_ranks;

        from_at[before] = RESERVED - BYTES + more;
        from[before]    = BYTES;
        EXPECT_EQ(bt_group_exchange_device(
                      group, &(bt_exchange){send, at, all, recv, from_at, from}, &wait),
                  staged && more ? BT_ERR_INVALID_ARG : BT_OK);
        if (staged && more) break;
        EXPECT_EQ(bt_group_settle(group, &wait), BT_OK);
        EXPECT_EQ(wrong_bytes(recv + from_at[before], BYTES, 3, before, 0), 0);
    }
    meet();
    bt_group_destroy(group);
    bt_device_free(g_dev, send);
    bt_device_free(g_dev, recv);
    close_device();
}

static void ended_exchanges_are_not_followed_by_others(void)
{
    void     *memory = take(MAX_RANKS * 64);
    bt_group *group  = carried_group();
    bt_wait   wait   = wait_s(30);

    EXPECT_EQ(gather_and_settle(group, memory, 64, &wait), BT_OK);
    meet();
    bt_group_end_exchanges(group);
    EXPECT_EQ(g_fake_nccl.live, 0);
    if (bt_group_carrier(group) != NULL) EXPECT_EQ(gather(group, memory, 64, &wait), BT_ERR_PEER);
    meet();
    bt_group_destroy(group);
    bt_device_free(g_dev, memory);
    close_device();
}

/* What a carrier would do comes to nothing there, and breaks nothing. */
static void host_memory_needs_no_carrier(void)
{
    void     *memory = take(MAX_RANKS * 64);
    bt_group *group  = group_of_all();
    bt_wait   wait   = wait_s(30);
    int       n_ends = 0;

    EXPECT_EQ(bt_group_carries(group, g_dev), strcmp(g_carrier, "host") == 0);
    EXPECT(!bt_group_captures(group));
    bt_group_watch_end(group, count, &n_ends);
    EXPECT_EQ(bt_group_reserve(group, 1, 1), BT_OK);
    EXPECT_EQ(bt_group_warm(group, &wait), BT_OK);
    EXPECT_EQ(bt_group_settle(group, &wait), BT_OK);
    bt_group_end_exchanges(group);
    EXPECT(!bt_group_is_broken(group));
    bt_group_destroy(group);
    EXPECT_EQ(n_ends, 0);
    bt_device_free(g_dev, memory);
    close_device();
}

/* With a carrier or without: nothing is sent, so that nothing is made for it. */
static void rank_alone_exchanges_nothing(void)
{
    void     *memory = take(64);
    bt_group *alone  = NULL;
    bt_wait   wait   = wait_s(30);

    EXPECT_EQ(bt_group_create(g_world, 1, &g_rank, 0, next_epoch(), &alone), BT_OK);
    for (int carried = 0; carried < 2; carried++) {
        EXPECT(bt_group_carries(alone, g_dev));
        EXPECT(bt_group_captures(alone));
        EXPECT_EQ(gather_and_settle(alone, memory, 64, &wait), BT_OK);
        EXPECT_EQ(g_fake_nccl.live, 0);
        if (!carried) bt_group_attach(alone, make_carrier());
    }
    bt_group_destroy(alone);
    bt_device_free(g_dev, memory);
    close_device();
}

/* The last rank stays away, from the first operation or from one of a group that is connected.
 * False: the others' error is another one than the absence of that rank alone. */
static bool absence_is_told(void *memory, bool connected, double seconds)
{
    bt_group *group = carried_group();
    bt_wait   wait  = wait_s(30);
    uint32_t  missing[MAX_RANKS];
    char      want[64];
    bool      told = true;
    uint64_t  start_ns;

    if (connected) EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_OK);
    meet();
    wait       = wait_s(seconds);
    wait.what  = "moe dispatch";
    wait.layer = 3;
    snprintf(want, sizeof(want), "nothing came from ranks: %u;", g_ranks - 1);
    if (g_rank != g_ranks - 1) {
        start_ns = bt_now_ns();
        EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_ERR_TIMEOUT);
        EXPECT_HAS(bt_error_text(), "moe dispatch");
        EXPECT_HAS(bt_error_text(), "of layer 3 in epoch");
        EXPECT(bt_now_ns() - start_ns < 25 * BT_NS_PER_S);
        told = strstr(bt_error_text(), want) != NULL && bt_group_missing(group, missing) == 1 &&
               missing[0] == g_ranks - 1;
    }
    meet();
    bt_group_destroy(group);
    return told;
}

/* A rank that is there but gets no time from its machine is named too: then everybody gets more.  A
 * new epoch is not disturbed by what was left behind. */
static void absent_rank_is_named_at_the_deadline(void)
{
    void *memory = take(MAX_RANKS * 1000);

    for (int connected = 0; connected < 2; connected++) {
        bt_wait   wait    = wait_s(30);
        bool      told    = false;
        double    seconds = 0.2;
        bt_group *group;

        for (; !told && seconds < 8; seconds *= 3)
            told = max_over_ranks(!absence_is_told(memory, connected, seconds)) == 0;
        EXPECT(told);
        group = carried_group();
        put((uint8_t *)memory + (size_t)g_rank * 1000, 1000, 7, g_rank, 0);
        EXPECT_EQ(gather_and_settle(group, memory, 1000, &wait), BT_OK);
        for (uint32_t i = 0; i < g_ranks; i++)
            EXPECT_EQ(wrong_bytes((uint8_t *)memory + (size_t)i * 1000, 1000, 7, i, 0), 0);
        bt_group_destroy(group);
    }
    bt_device_free(g_dev, memory);
    close_device();
}

static const bt_test TESTS[] = {
    BT_TEST(exchange_with_random_counts_brings_what_was_sent),
    BT_TEST(rows_that_go_to_everyone_keep_their_own_place),
    BT_TEST(late_rank_is_waited_for_while_idle_is_polled),
    BT_TEST(stop_callback_cancels_the_wait),
    BT_TEST(operation_beyond_what_was_reserved_is_refused),
    BT_TEST(operation_may_use_all_that_was_reserved),
    BT_TEST(ended_exchanges_are_not_followed_by_others),
    BT_TEST(host_memory_needs_no_carrier),
    BT_TEST(rank_alone_exchanges_nothing),
    BT_TEST(absent_rank_is_named_at_the_deadline),
};

/* usage above: the first argument is taken away. */
int main(int argc, char **argv)
{
    if (argc < 2) return EXIT_FAILURE;
    g_carrier = argv[1];
    argv[1]   = argv[0];
    return mpi_test_main(argc - 1, argv + 1, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
