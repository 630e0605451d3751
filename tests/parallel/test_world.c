/* What the start learns about the job: tags, transports, machines; and start-up without memory. */
#include <signal.h>
#include <sys/stat.h>

#include "parallel/world_state.h"
#include "tests/parallel/mpi_test.h"

static long g_init_failures;

static void init_survived_every_failing_allocation(void) { EXPECT_EQ(g_init_failures, 4); }

/* The last rank is of another build: all hear which. */
static void ranks_of_two_builds_are_told_so(void)
{
    bool last = g_rank == g_ranks - 1;
    char host[64], others[256];

    EXPECT_EQ(bt_world_same_build(NULL, NULL, "1.0 (sources a)"), BT_OK);
    if (g_ranks == 1) return;
    EXPECT_EQ(bt_world_same_build(NULL, NULL, last ? "1.0 (sources b)" : "1.0 (sources a)"),
              BT_ERR_INVALID_ARG);
    EXPECT_EQ(gethostname(host, sizeof(host)), 0);
    snprintf(others, sizeof(others),
             "rank %u on %s is of Baton 1.0 (sources b), rank 0 on %s of 1.0 (sources a) (1 of %u "
             "ranks differ",
             g_ranks - 1, host, host, g_ranks);
    EXPECT_HAS(bt_error_text(), others);
    bt_alloc_fail_at(0);
    EXPECT_EQ(bt_world_same_build(NULL, NULL, "1.0"), BT_ERR_NO_MEMORY);
    bt_alloc_fail_at(-1);
}

static void ranks_of_one_machine_are_counted(void)
{
    EXPECT_EQ(bt_world_size(g_world), g_ranks);
    EXPECT_EQ(bt_world_local_size(g_world), g_ranks);
    EXPECT_EQ(bt_world_local_rank(g_world), g_rank);
    for (uint32_t r = 0; r < g_ranks; r++)
        EXPECT_EQ(g_world->node_of[r], 0);
}

/* Whether all ranks have the same number, where there is one for each. */
static bool is_same(uint64_t mine)
{
    uint64_t highest = max_over_ranks(mine), least = ~max_over_ranks(~mine);

    return highest == least;
}

/* By all that see each other's processes: not all do in tests/parallel/own_pids. */
static void memory_is_shared_by_all_ranks_of_a_machine_or_by_none(void)
{
    struct stat pids, file = {0};
    int         fd = bt_world_shared_fd(g_world);

    EXPECT_EQ(stat("/proc/self/ns/pid", &pids), 0);
    if (fd >= 0) EXPECT_EQ(fstat(fd, &file), 0);
    EXPECT_EQ(max_over_ranks(!is_same(pids.st_ino)), fd < 0);
    EXPECT(is_same(file.st_ino));
}

static void codes_of_mpi_have_its_words(void)
{
    EXPECT(strstr(bt_mpi_text(MPI_ERR_TAG), "MPI code") == NULL);
}

static void wreck_without_memory_is_none(void)
{
    bt_alloc_fail_at(0);
    EXPECT(bt_wreck_create(100) == NULL);
    bt_alloc_fail_at(-1);
}

/* MPI's own handler can hang: a rank that aborts would not be seen to die. */
static void abort_ends_a_rank_at_once(void)
{
    struct sigaction now;

    EXPECT_EQ(sigaction(SIGABRT, NULL, &now), 0);
    EXPECT(now.sa_handler == SIG_DFL);
}

/* The tests run with and without the rule: the environment says which. */
static void tcp_rule_follows_the_transport(void)
{
    const char *force = getenv("BT_TCP_RULE"), *btl = getenv("OMPI_MCA_btl");
    bool        tcp = force != NULL || (btl != NULL && strcmp(btl, "tcp,self") == 0);

    for (uint32_t r = 0; r < g_ranks; r++)
        EXPECT_EQ(bt_world_tcp_rule(g_world, r), tcp);
    EXPECT_EQ(bt_world_all_shared(g_world), !tcp);
}

/* So that each leaves at once: below MPI's limit for that, which the environment may set. */
static void fragments_are_below_the_eager_limit(void)
{
    const char *limit = getenv("OMPI_MCA_btl_tcp_eager_limit");
    size_t      bytes = g_world->fragment_bytes, want;

    EXPECT(bytes < 65536 && bytes >= 1024);
    if (limit == NULL) return;
    want = strtoul(limit, NULL, 10) - 1024;
    EXPECT_EQ(bytes, want < 1024 ? 1024 : want);
}

/* Another machine's ranks need the rule even where shared memory exists. */
static void ranks_of_another_machine_need_the_rule(void)
{
    bt_world there      = *g_world;
    uint32_t node_of[3] = {0, 0, 2};

    there.rank          = 0;
    there.size          = 3;
    there.node_of       = node_of;
    there.shared_memory = true;
    EXPECT(!bt_world_tcp_rule(&there, 1));
    EXPECT(bt_world_tcp_rule(&there, 2));
    EXPECT(!bt_world_all_shared(&there));
    there.size = 2;
    EXPECT(bt_world_all_shared(&there));
    there.shared_memory = false;
    EXPECT(bt_world_tcp_rule(&there, 1));
}

static void component_lists_tell_the_transport(void)
{
    EXPECT(bt_transport_is_shared("", ""));
    EXPECT(bt_transport_is_shared("^uct,openib,ofi", "^ucx"));
    EXPECT(bt_transport_is_shared("vader,tcp,self", "ob1"));
    EXPECT(bt_transport_is_shared("self, vader", ""));
    EXPECT(bt_transport_is_shared("self,sm", ""));
    EXPECT(!bt_transport_is_shared("tcp,self", ""));
    EXPECT(!bt_transport_is_shared("^vader,sm", ""));
    EXPECT(!bt_transport_is_shared("vaders,smx", ""));
    EXPECT(!bt_transport_is_shared("", "ucx"));
    EXPECT(!bt_transport_is_shared("", "^ob1"));
}

static void tags_fit_every_upper_bound(void)
{
    static const int BOUNDS[] = {32767,         65535,      (1 << 22) - 1,
                                 (1 << 23) - 1, 2147483646, 2147483647};

    for (size_t i = 0; i < sizeof(BOUNDS) / sizeof(BOUNDS[0]); i++) {
        bt_tag_layout t   = bt_tag_layout_of(BOUNDS[i]);
        int           top = bt_tag_make(t, 7, UINT32_MAX, UINT64_MAX);

        EXPECT(top > 0 && top <= BOUNDS[i]);
        EXPECT(t.epoch_bits >= 6 && t.sequence_bits >= 6);
        EXPECT(bt_tag_make(t, 1, 5, 9) != bt_tag_make(t, 2, 5, 9));
        EXPECT(bt_tag_make(t, 1, 5, 9) != bt_tag_make(t, 1, 6, 9));
        EXPECT(bt_tag_make(t, 1, 5, 9) != bt_tag_make(t, 1, 5, 10));
        EXPECT_EQ(bt_tag_make(t, 0, 0, 1u << t.sequence_bits), 0); /* wraps inside its field */
        EXPECT(bt_tag_is_recent(t, bt_tag_make(t, 1, 5, 9), 1, 5));
        EXPECT(bt_tag_is_recent(t, bt_tag_make(t, 1, 6, 0), 1, 5));
        EXPECT(!bt_tag_is_recent(t, bt_tag_make(t, 1, 4, 9), 1, 5));
        EXPECT(!bt_tag_is_recent(t, bt_tag_make(t, 1, UINT32_MAX, 9), 1, 2));
        EXPECT(bt_tag_is_recent(t, bt_tag_make(t, 2, 4, 9), 1, 5)); /* somebody else's */
    }
}

static const bt_test TESTS[] = {
    BT_TEST(init_survived_every_failing_allocation),
    BT_TEST(ranks_of_two_builds_are_told_so),
    BT_TEST(ranks_of_one_machine_are_counted),
    BT_TEST(memory_is_shared_by_all_ranks_of_a_machine_or_by_none),
    BT_TEST(codes_of_mpi_have_its_words),
    BT_TEST(wreck_without_memory_is_none),
    BT_TEST(abort_ends_a_rank_at_once),
    BT_TEST(tcp_rule_follows_the_transport),
    BT_TEST(fragments_are_below_the_eager_limit),
    BT_TEST(ranks_of_another_machine_need_the_rule),
    BT_TEST(component_lists_tell_the_transport),
    BT_TEST(tags_fit_every_upper_bound),
};

/* The failures are alike on all ranks, so that nobody waits for another in between; the first
 * start that succeeds is the tests' world. */
int main(int argc, char **argv)
{
    for (;; g_init_failures++) {
        bt_status st;

        bt_alloc_fail_at(g_init_failures);
        st = bt_world_init(&argc, &argv, &g_world);
        bt_alloc_fail_at(-1);
        if (st == BT_OK) break;
        if (st != BT_ERR_NO_MEMORY || g_world != NULL || bt_alloc_live() != 0) return EXIT_FAILURE;
    }
    return mpi_test_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
