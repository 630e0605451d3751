/* Group exchanges as n ranks: contents, counts, subsets, and what happens when a rank is late. */
#include <signal.h>
#include <unistd.h>

#include "parallel/group_parts.h"
#include "parallel/group_state.h"
#include "tests/parallel/mpi_test.h"
#include "tests/support/sweep.h"

static void all_gather_of_many_sizes_brings_everyones_bytes(void)
{
    static const size_t SIZES[] = {0,     1,      7,      8,      4096,   61439,   61440,  61441,
                                   64511, 100000, 262143, 262144, 262145, 1000003, 3 << 20};
    bt_group           *group   = group_of_all();
    uint8_t            *send = malloc(3 << 20), *recv = malloc((size_t)g_ranks * (3 << 20));
    bt_wait             wait = wait_s(30);

    for (size_t k = 0; k < sizeof(SIZES) / sizeof(SIZES[0]); k++) {
        fill(send, SIZES[k], k, g_rank, 0);
        memset(recv, 0xee, g_ranks * SIZES[k]);
        EXPECT_EQ(bt_group_all_gather(group, send, SIZES[k], recv, &wait), BT_OK);
        for (uint32_t i = 0; i < g_ranks; i++)
            EXPECT_EQ(count_wrong(recv + i * SIZES[k], SIZES[k], k, i, 0), 0);
    }
    free(send);
    free(recv);
    bt_group_destroy(group);
}

/* Which of the others are slow shows in it. */
static void time_that_others_take_is_counted_for_each(void)
{
    const bt_traffic *traffic = bt_world_traffic(g_world);
    bt_group         *group   = group_of_all();
    bt_wait           wait    = wait_s(30);
    uint8_t           mine    = 1, all[MAX_RANKS];
    uint64_t          before[MAX_RANKS];

    for (uint32_t i = 0; i < g_ranks; i++)
        before[i] = traffic[i].waited_ns;
    EXPECT_EQ(bt_group_all_gather(group, &mine, 1, all, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks; i++)
        EXPECT(i == g_rank ? traffic[i].waited_ns == before[i] : traffic[i].waited_ns > before[i]);
    bt_group_destroy(group);
}

static void exchange_with_random_counts_brings_what_was_sent(void)
{
    enum { ROUNDS = 400, MAX_BYTES = 900000 };
    bt_group *group = group_of_all();
    uint8_t  *send  = malloc((size_t)g_ranks * MAX_BYTES),
            *recv   = malloc((size_t)g_ranks * MAX_BYTES);
    bt_wait wait    = wait_s(30);
    size_t  wrong   = 0;

    for (uint64_t k = 0; k < ROUNDS; k++) {
        random_exchange e = lay_out(k, MAX_BYTES, true);

        for (uint32_t i = 0; i < g_ranks; i++)
            fill(send + e.send_at[i], e.send_bytes[i], k, g_rank, i);
        memset(recv, 0xee, e.n_received);
        EXPECT_EQ(bt_group_exchange(group, send, e.send_at, e.send_bytes, recv, e.recv_at,
                                    e.recv_bytes, &wait),
                  BT_OK);
        for (uint32_t i = 0; i < g_ranks; i++)
            wrong += count_wrong(recv + e.recv_at[i], e.recv_bytes[i], k, i, g_rank);
    }
    EXPECT_EQ(wrong, 0);
    free(send);
    free(recv);
    bt_group_destroy(group);
}

static void exchange_one_way_brings_a_large_block(void)
{
    enum { BYTES = 2500000 };
    bt_group *group           = group_of_all();
    size_t    zero[MAX_RANKS] = {0}, to[MAX_RANKS] = {0}, from[MAX_RANKS] = {0};
    uint8_t  *block = malloc(BYTES);
    bt_wait   wait  = wait_s(30);

    fill(block, BYTES, 5, 0, 0);
    for (uint32_t i = 1; i < g_ranks && g_rank == 0; i++)
        to[i] = BYTES;
    if (g_rank != 0) from[0] = BYTES, memset(block, 0xee, BYTES);
    for (int k = 0; k < 3; k++)
        EXPECT_EQ(bt_group_exchange(group, g_rank == 0 ? block : NULL, zero, to,
                                    g_rank == 0 ? NULL : block, zero, from, &wait),
                  BT_OK);
    EXPECT_EQ(count_wrong(block, BYTES, 5, 0, 0), 0);
    free(block);
    bt_group_destroy(group);
}

static void many_small_operations_stay_in_step(void)
{
    enum { STEPS = 2000 };
    bt_group *group = group_of_all();
    uint64_t  mine, all[MAX_RANKS], wrong = 0, start_ns;
    bt_wait   wait = wait_s(30);

    group->sequence = (1u << g_world->tags.sequence_bits) - STEPS / 2; /* the tag's begins anew */
    start_ns        = bt_now_ns();
    for (uint64_t k = 0; k < STEPS; k++) {
        mine = mix3(k, g_rank, 0);
        if (bt_group_all_gather(group, &mine, sizeof(mine), all, &wait) != BT_OK) break;
        for (uint32_t i = 0; i < g_ranks; i++)
            wrong += all[i] != mix3(k, i, 0);
        mine = k + 1;
    }
    EXPECT_EQ(mine, STEPS);
    EXPECT_EQ(wrong, 0);
    printf("  all-gather of 8 bytes over %u ranks: %.1f us\n", g_ranks,
           (double)(bt_now_ns() - start_ns) / 1e3 / STEPS);
    bt_group_destroy(group);
}

/* Ranks enter one after the other; nobody leaves before the last has come. */
static void barrier_holds_everyone_until_the_last_comes(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(30);
    uint64_t  entered_ns, left_ns, last_ns;

    bt_sleep_ns(g_rank * 20 * BT_NS_PER_MS);
    entered_ns = bt_now_ns();
    EXPECT_EQ(bt_group_barrier(group, &wait), BT_OK);
    left_ns = bt_now_ns();
    last_ns = max_over_ranks(entered_ns); /* one machine, one clock */
    EXPECT(left_ns >= last_ns);
    bt_group_destroy(group);
}

/* Two halves, then overlapping pairs, in different spaces and orders, side by side. */
static void groups_of_subsets_do_not_meet(void)
{
    bt_wait  wait  = wait_s(30);
    uint32_t epoch = next_epoch();

    for (uint32_t a = 0; a < g_ranks; a++) {
        for (uint32_t b = 0; b < g_ranks; b++) {
            uint32_t  ranks[2] = {a, b}, mine[2], all[4] = {0};
            bt_group *group = NULL;

            if (a == b || (g_rank != a && g_rank != b)) continue;
            EXPECT_EQ(bt_group_create(g_world, 2, ranks, (a + b) % 7, epoch, &group), BT_OK);
            EXPECT_EQ(bt_group_size(group), 2);
            EXPECT_EQ(bt_group_self(group), g_rank == b);
            EXPECT_EQ(bt_group_world_rank(group, 0), a);
            EXPECT_EQ(bt_group_epoch(group), epoch);
            mine[0] = g_rank * 100 + a;
            mine[1] = b;
            EXPECT_EQ(bt_group_all_gather(group, mine, sizeof(mine), all, &wait), BT_OK);
            EXPECT_EQ(all[0], a * 100 + a);
            EXPECT_EQ(all[2], b * 100 + a);
            EXPECT_EQ(all[3], b);
            bt_group_destroy(group);
        }
        epoch++;
    }
    while (g_epoch < epoch)
        next_epoch();
}

static void all_gather_in_place_works(void)
{
    bt_group *group          = group_of_all();
    uint32_t  all[MAX_RANKS] = {0};
    bt_wait   wait           = wait_s(30);

    all[g_rank] = g_rank + 1000;
    EXPECT_EQ(bt_group_all_gather(group, &all[g_rank], sizeof(all[0]), all, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks; i++)
        EXPECT_EQ(all[i], i + 1000);
    bt_group_destroy(group);
}

static void count_idle(void *ctx) { ++*(int *)ctx; }

static void late_rank_is_waited_for_while_idle_is_polled(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(30);
    int       idle  = 0;

    wait.idle = count_idle;
    wait.ctx  = &idle;
    if (g_rank == g_ranks - 1) bt_sleep_ns(500 * BT_NS_PER_MS);
    EXPECT_EQ(bt_group_barrier(group, &wait), BT_OK);
    if (g_rank != g_ranks - 1) EXPECT(idle > 3);
    bt_group_destroy(group);
}

static bool stop_soon(void *ctx) { return ++*(int *)ctx > 3; }

static void stop_callback_cancels_the_wait(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(30);
    int       polls = 0;

    wait.stop = stop_soon;
    wait.ctx  = &polls;
    if (g_rank != 0) {
        EXPECT_EQ(bt_group_barrier(group, &wait), BT_ERR_CANCELLED);
        EXPECT_EQ(bt_group_barrier(group, &wait), BT_ERR_PEER); /* broken from now on */
        EXPECT_HAS(bt_error_text(), "made anew");
    }
    bt_group_destroy(group);
    meet();
}

/* The last rank stays away; the others' error names it, and only it. */
static void absent_rank_is_named_at_the_deadline(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(2); /* so late the others may be */
    uint8_t   byte  = 1, all[MAX_RANKS];
    uint32_t  missing[MAX_RANKS];
    char      want[64];

    wait.what  = "dispatch";
    wait.layer = 3;
    snprintf(want, sizeof(want), "nothing came from ranks: %u;", g_ranks - 1);
    if (g_rank != g_ranks - 1) {
        EXPECT_EQ(bt_group_all_gather(group, &byte, 1, all, &wait), BT_ERR_TIMEOUT);
        EXPECT_HAS(bt_error_text(), "dispatch of layer 3 in epoch");
        EXPECT_HAS(bt_error_text(), want);
        EXPECT_EQ(bt_group_barrier(group, &wait), BT_ERR_PEER); /* which waits for nobody */
        EXPECT_EQ(bt_group_missing(group, missing), 1);
        EXPECT_EQ(missing[0], g_ranks - 1);
    }
    meet();
    bt_group_destroy(group);
    group = group_of_all(); /* a new epoch is not disturbed by what was left behind */
    wait  = wait_s(30);
    byte  = (uint8_t)g_rank;
    EXPECT_EQ(bt_group_all_gather(group, &byte, 1, all, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks; i++)
        EXPECT_EQ(all[i], i);
    bt_group_destroy(group);
}

static void all_that_are_absent_are_named(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(0.2);
    uint32_t  missing[MAX_RANKS];
    char      want[64] = "nothing came from ranks: 1";

    for (uint32_t i = 2; i < g_ranks; i++)
        snprintf(want + strlen(want), sizeof(want) - strlen(want), ", %u", i);
    if (g_rank == 0) {
        EXPECT_EQ(bt_group_barrier(group, &wait), BT_ERR_TIMEOUT);
        EXPECT_HAS(bt_error_text(), strcat(want, ";"));
        EXPECT_EQ(bt_group_missing(group, missing), g_ranks - 1);
        for (uint32_t i = 1; i < g_ranks; i++)
            EXPECT_EQ(missing[i - 1], i);
    }
    meet();
    bt_group_destroy(group);
}

/* The last rank does not come for what rank 0 alone sends. */
static void rank_that_takes_nothing_is_named(void)
{
    enum { BYTES = 2500000 };
    bt_group *group           = group_of_all(), *next;
    size_t    zero[MAX_RANKS] = {0}, to[MAX_RANKS] = {0};
    uint32_t  last  = g_ranks - 1, missing[MAX_RANKS];
    uint8_t  *block = calloc(1, BYTES);
    bt_wait   wait  = wait_s(0.2);
    char      want[64];

    to[last] = BYTES;
    snprintf(want, sizeof(want), "not taken by ranks: %u", last);
    if (g_rank == 0) {
        EXPECT_EQ(bt_group_missing(group, missing), 0);
        EXPECT_EQ(bt_group_exchange(group, block, zero, to, NULL, zero, zero, &wait),
                  BT_ERR_TIMEOUT);
        EXPECT_HAS(bt_error_text(), want);
        EXPECT_EQ(bt_group_missing(group, missing), 1);
        EXPECT_EQ(missing[0], last);
    }
    meet();
    bt_group_destroy(group);
    next = group_of_all();
    bt_group_drain(next); /* or it would stay in MPI's queue */
    wait = wait_s(30);
    EXPECT_EQ(bt_group_barrier(next, &wait), BT_OK);
    bt_group_destroy(next);
    free(block);
}

/* A large exchange is abandoned half way; the late rank completes into memory that nobody uses,
 * while the caller's buffers have long gone. */
static void late_writer_meets_no_live_memory(void)
{
    enum { BYTES = 700000 };
    bt_group *old  = group_of_all(), *group;
    uint8_t  *send = malloc(BYTES), *recv = malloc((size_t)g_ranks * BYTES);
    bt_wait   wait = wait_s(0.1);
    bool      late = g_rank == g_ranks - 1;

    fill(send, BYTES, 1, g_rank, 0);
    memset(recv, 0xee, (size_t)g_ranks * BYTES);
    if (!late) {
        EXPECT_EQ(bt_group_all_gather(old, send, BYTES, recv, &wait), BT_ERR_TIMEOUT);
        bt_group_destroy(old); /* requests are open: the world keeps the staging memory */
    }
    meet();
    if (late) {
        EXPECT_EQ(bt_group_all_gather(old, send, BYTES, recv, &wait), BT_ERR_TIMEOUT);
        bt_group_destroy(old);
    }
    memset(recv, 0x11, (size_t)g_ranks * BYTES);
    meet();
    for (size_t i = 0; i < (size_t)g_ranks * BYTES; i++)
        if (recv[i] != 0x11) {
            EXPECT(!"a late message wrote into the caller's memory");
            break;
        }
    group = group_of_all();
    wait  = wait_s(30);
    EXPECT_EQ(bt_group_all_gather(group, send, BYTES, recv, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks; i++)
        EXPECT_EQ(count_wrong(recv + (size_t)i * BYTES, BYTES, 1, i, 0), 0);
    bt_group_destroy(group);
    free(send);
    free(recv);
}

/* Waits until the kernel says that the process is stopped. */
static bool is_stopped(int32_t pid)
{
    char path[32], state = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    for (int i = 0; i < 3000 && state != 'T'; i++) {
        FILE *stat = fopen(path, "re");

        if (stat == NULL || fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) state = 0;
        if (stat != NULL) fclose(stat);
        if (state != 'T') bt_sleep_ns(10 * BT_NS_PER_MS);
    }
    return state == 'T';
}

static void stop_once(void *ctx)
{
    static bool stopped;

    (void)ctx;
    if (stopped) return;
    stopped = true;
    raise(SIGSTOP);
}

/* The last rank stops; the others wait for it in vain, all of them, before it goes on. */
static void stopped_process_is_named_and_comes_back(void)
{
    bt_group *group = group_of_all(), *survivors = NULL;
    bt_wait   wait = wait_s(30);
    int32_t   pid  = getpid(), pids[MAX_RANKS];
    uint32_t  ranks[MAX_RANKS], last = g_ranks - 1, epoch;
    uint8_t   byte = 7, all[MAX_RANKS];
    char      want[64];

    EXPECT_EQ(bt_group_all_gather(group, &pid, sizeof(pid), pids, &wait), BT_OK);
    bt_group_destroy(group);
    group = group_of_all();
    epoch = next_epoch();
    if (g_rank == last) {
        raise(SIGSTOP);
    } else {
        for (uint32_t i = 0; i < last; i++)
            ranks[i] = i;
        EXPECT_EQ(bt_group_create(g_world, last, ranks, 0, epoch, &survivors), BT_OK);
        EXPECT(is_stopped(pids[last]));
        wait = wait_s(2);
        snprintf(want, sizeof(want), "nothing came from ranks: %u;", last);
        EXPECT_EQ(bt_group_all_gather(group, &byte, 1, all, &wait), BT_ERR_TIMEOUT);
        EXPECT_HAS(bt_error_text(), want);
        wait = wait_s(30);
        EXPECT_EQ(bt_group_all_gather(survivors, &byte, 1, all, &wait), BT_OK);
        if (g_rank == 0) kill(pids[last], SIGCONT);
        bt_group_destroy(survivors);
    }
    meet();
    bt_group_destroy(group);
}

/* Rank 0 stops while it waits, for longer than its deadline; the other one comes when it runs
 * again. */
static void own_standstill_makes_nobody_late(void)
{
    bt_group *group = NULL;
    bt_wait   wait  = wait_s(30);
    int32_t   pid   = getpid(), pids[MAX_RANKS];

    if (g_ranks != 2) return; /* one size is enough: it takes its time */
    group = group_of_all();
    EXPECT_EQ(bt_group_all_gather(group, &pid, sizeof(pid), pids, &wait), BT_OK);
    if (g_rank == 0) {
        wait      = wait_s(2);
        wait.idle = stop_once;
        EXPECT_EQ(bt_group_barrier(group, &wait), BT_OK);
    } else {
        EXPECT(is_stopped(pids[0]));
        bt_sleep_ns(2500 * BT_NS_PER_MS);
        kill(pids[0], SIGCONT);
        bt_sleep_ns(300 * BT_NS_PER_MS);
        EXPECT_EQ(bt_group_barrier(group, &wait), BT_OK);
    }
    bt_group_destroy(group);
}

/* Others may be in the present group's first exchange by then. */
static void drain_takes_nothing_of_the_present_group(void)
{
    bt_group *group = group_of_all();
    bt_wait   wait  = wait_s(10);
    uint64_t  mine = mix3(1, g_rank, 0), all[MAX_RANKS], end_ns = bt_now_ns() + 10 * BT_NS_PER_S;

    EXPECT_EQ(bt_group_barrier(group, &wait), BT_OK);
    EXPECT(!bt_group_is_called(group)); /* for its second operation */
    meet();
    if (g_rank == 0 && g_ranks > 1) {
        while (!bt_group_is_called(group) && bt_now_ns() < end_ns)
            bt_sleep_ns(BT_NS_PER_MS);
        EXPECT(bt_group_is_called(group));
        bt_group_drain(group);
    }
    EXPECT_EQ(bt_group_all_gather(group, &mine, sizeof(mine), all, &wait), BT_OK);
    for (uint32_t i = 0; i < g_ranks; i++)
        EXPECT(all[i] == mix3(1, i, 0));
    bt_group_destroy(group);
}

/* By the TCP rule.  Rank 0 sends two fragments and gets nothing; rank 1 answers by hand, the first
 * one late. */
static void fragment_waits_for_the_answer_to_the_one_before(void)
{
    static const uint32_t PAIR[] = {0, 1};
    uint32_t              epoch  = next_epoch();
    bool                  rule   = g_rank < 2 && bt_world_tcp_rule(g_world, 1 - g_rank);
    size_t                bytes = g_world->fragment_bytes, at[2] = {0, 0};
    bt_group             *pair = NULL, *all = group_of_all();
    uint8_t              *data = calloc(2, bytes);
    bt_wait               wait = wait_s(30);
    int                   come = 0, tag = bt_tag_make(g_world->tags, 1, epoch, 0);

    if (rule && g_rank == 0) {
        size_t send[2] = {0, 2 * bytes}, none[2] = {0, 0};

        EXPECT_EQ(bt_group_create(g_world, 2, PAIR, 1, epoch, &pair), BT_OK);
        EXPECT_EQ(bt_group_exchange(pair, data, at, send, data, at, none, &wait), BT_OK);
        bt_group_destroy(pair);
    }
    for (int k = 0; rule && g_rank == 1 && k < 2; k++) {
        uint64_t begun = bt_now_ns();

        MPI_Recv(data, (int)bytes, MPI_BYTE, 0, tag, g_world->group_comm, MPI_STATUS_IGNORE);
        while (k == 0 && bt_now_ns() - begun < BT_NS_PER_S / 5 && come == 0)
            MPI_Iprobe(0, tag, g_world->group_comm, &come, MPI_STATUS_IGNORE);
        EXPECT_EQ(come, 0);
        MPI_Send(NULL, 0, MPI_BYTE, 0, tag, g_world->group_comm);
    }
    EXPECT_EQ(bt_group_barrier(all, &wait), BT_OK);
    bt_group_destroy(all);
    free(data);
}

/* The last rank sends more, or less, than the others await.  Of few bytes all are under way before
 * anybody stops; of many, the first rank that sees a wrong one may stop before it has sent all,
 * and who awaits the rest cannot tell why it does not come. */
static void differing_counts_are_a_protocol_error(void)
{
    static const size_t BYTES[][2] = {
        {32,     64    },
        {64,     32    },
        {20000,  50000 },
        {200000, 250000}
    };
    uint8_t *send = calloc(250000, 1), *recv = malloc((size_t)250000 * g_ranks);

    for (size_t i = 0; i < sizeof(BYTES) / sizeof(BYTES[0]); i++) {
        bt_group *group   = group_of_all();
        bt_wait   wait    = wait_s(20);
        bool      deviant = g_rank == g_ranks - 1;
        bt_status st      = bt_group_all_gather(group, send, BYTES[i][deviant], recv, &wait);
        uint8_t   saw     = st == BT_ERR_PROTOCOL, all[MAX_RANKS];

        if (saw) EXPECT_HAS(bt_error_text(), "counts differ");
        if (i < 2 && (deviant || g_ranks == 2)) EXPECT_EQ(st, BT_ERR_PROTOCOL);
        EXPECT(saw || st == BT_ERR_TIMEOUT);
        meet();
        bt_group_destroy(group);
        group = group_of_all();
        EXPECT_EQ(bt_group_all_gather(group, &saw, 1, all, &wait), BT_OK);
        EXPECT(memchr(all, 1, g_ranks) != NULL);
        bt_group_destroy(group);
        meet();
    }
    free(send);
    free(recv);
}

static void lists_that_make_no_group_are_refused(void)
{
    bt_group *group   = NULL;
    uint32_t  twice[] = {0, 0}, far[] = {g_rank, g_ranks}, other[] = {g_rank == 0 ? 1 : 0};

    EXPECT_EQ(bt_group_create(g_world, 0, twice, 0, 1, &group), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_group_create(g_world, 2, twice, 0, 1, &group), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_group_create(g_world, 2, far, 0, 1, &group), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_group_create(g_world, 1, other, 0, 1, &group), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_group_create(g_world, 1, &g_rank, 8, 1, &group), BT_ERR_INVALID_ARG);
    EXPECT(group == NULL);
}

static void every_failing_allocation_is_survived(void)
{
    uint32_t  ranks[MAX_RANKS];
    bt_group *group = NULL;

    for (uint32_t i = 0; i < g_ranks; i++)
        ranks[i] = i;
    EXPECT(BT_SWEEP(bt_group_create(g_world, g_ranks, ranks, 1, 1, &group),
                    bt_group_destroy(group)) >= 4);
}

static const bt_test TESTS[] = {
    BT_TEST(every_failing_allocation_is_survived), /* first: later ones leave memory to the world */
    BT_TEST(all_gather_of_many_sizes_brings_everyones_bytes),
    BT_TEST(time_that_others_take_is_counted_for_each),
    BT_TEST(exchange_with_random_counts_brings_what_was_sent),
    BT_TEST(exchange_one_way_brings_a_large_block),
    BT_TEST(many_small_operations_stay_in_step),
    BT_TEST(barrier_holds_everyone_until_the_last_comes),
    BT_TEST(groups_of_subsets_do_not_meet),
    BT_TEST(all_gather_in_place_works),
    BT_TEST(late_rank_is_waited_for_while_idle_is_polled),
    BT_TEST(stop_callback_cancels_the_wait),
    BT_TEST(absent_rank_is_named_at_the_deadline),
    BT_TEST(all_that_are_absent_are_named),
    BT_TEST(rank_that_takes_nothing_is_named),
    BT_TEST(late_writer_meets_no_live_memory),
    BT_TEST(stopped_process_is_named_and_comes_back),
    BT_TEST(own_standstill_makes_nobody_late),
    BT_TEST(drain_takes_nothing_of_the_present_group),
    BT_TEST(fragment_waits_for_the_answer_to_the_one_before),
    BT_TEST(differing_counts_are_a_protocol_error),
    BT_TEST(lists_that_make_no_group_are_refused),
};
MPI_TEST_MAIN(TESTS)
