/* tests/parallel/mpi_test.h - a test table that runs as several ranks; the verdict is collective.
 *
 * Tests share g_world and take fresh epochs from next_epoch(), which advances alike on all ranks.
 * g_all is a group of all ranks that only the harness and the tests' rendezvous use. */
#ifndef BT_TESTS_PARALLEL_MPI_TEST_H
#define BT_TESTS_PARALLEL_MPI_TEST_H

#include <glob.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "parallel/group.h"
#include "tests/support/test.h"

enum { HARNESS_SPACE = 7, MAX_RANKS = 16 };

static bt_world *g_world;
static bt_group *g_all;
static uint32_t  g_rank, g_ranks, g_epoch = 100;

static inline uint32_t next_epoch(void) { return g_epoch++; }

static inline bt_wait wait_s(double seconds)
{
    return (bt_wait){.timeout_ns = (uint64_t)(seconds * 1e9), .what = "test", .layer = -1};
}

/* All ranks meet.  A harness that cannot meet ends the job. */
static inline void meet(void)
{
    bt_wait wait = wait_s(60);

    wait.what = "meeting of all ranks";
    if (bt_group_barrier(g_all, &wait) != BT_OK) bt_world_exit(EXIT_FAILURE);
}

/* The highest of all ranks' values. */
static inline uint64_t max_over_ranks(uint64_t mine)
{
    uint64_t all[MAX_RANKS], max = 0;
    bt_wait  wait = wait_s(60);

    if (bt_group_all_gather(g_all, &mine, sizeof(mine), all, &wait) != BT_OK)
        bt_world_exit(EXIT_FAILURE);
    for (uint32_t i = 0; i < g_ranks; i++)
        max = all[i] > max ? all[i] : max;
    return max;
}

/* A group of all ranks in tag space 0. */
static inline bt_group *group_of_all(void)
{
    uint32_t  ranks[MAX_RANKS];
    bt_group *group = NULL;

    for (uint32_t i = 0; i < g_ranks; i++)
        ranks[i] = i;
    EXPECT_EQ(bt_group_create(g_world, g_ranks, ranks, 0, next_epoch(), &group), BT_OK);
    if (group == NULL) bt_world_exit(EXIT_FAILURE);
    return group;
}

static inline void mpi_test_start(int *argc, char ***argv)
{
    uint32_t ranks[MAX_RANKS];

    bt_log_init("test", BT_LOG_INFO);
    if (g_world == NULL && bt_world_init(argc, argv, &g_world) != BT_OK) exit(EXIT_FAILURE);
    g_rank  = bt_world_rank(g_world);
    g_ranks = bt_world_size(g_world);
    if (g_ranks > MAX_RANKS) bt_world_exit(EXIT_FAILURE);
    for (uint32_t i = 0; i < g_ranks; i++)
        ranks[i] = i;
    if (bt_group_create(g_world, g_ranks, ranks, HARNESS_SPACE, 0, &g_all) != BT_OK)
        bt_world_exit(EXIT_FAILURE);
    if (g_rank != 0 && freopen("/dev/null", "w", stdout) == NULL) /* rank 0 prints the table */
        bt_world_exit(EXIT_FAILURE);
}

static inline int mpi_test_main(int argc, char **argv, const bt_test *tests, size_t n)
{
    int rc = EXIT_SUCCESS, found = argc < 2;

    mpi_test_start(&argc, &argv);
    for (size_t i = 0; i < n && rc == EXIT_SUCCESS;
         i++) { /* a rank that fails ends the run for all */
        if (argc > 1 && strcmp(argv[1], tests[i].name) != 0) continue;
        found = 1;
        rc    = bt_run_tests(tests + i, 1, NULL);
        rc    = (int)max_over_ranks((uint64_t)rc);
    }
    if (!found) {
        fprintf(stderr, "no test is called %s\n", argv[1]);
        rc = EXIT_FAILURE;
    }
    bt_group_destroy(g_all);
    bt_world_fini(g_world);
    if (bt_alloc_live() != 0) {
        fprintf(stderr, "rank %u: %ld allocations are still live\n", g_rank, bt_alloc_live());
        rc = EXIT_FAILURE;
    }
    return rc;
}
#define MPI_TEST_MAIN(tests)                                                         \
    int main(int argc, char **argv)                                                  \
    {                                                                                \
        return mpi_test_main(argc, argv, tests, sizeof(tests) / sizeof((tests)[0])); \
    }

/* Shared memory files of ranks that leave without MPI_Finalize stay: this job's lie in a directory
 * of their own. */
static inline void remove_backing_files(void)
{
    const char *directory = getenv("OMPI_MCA_btl_vader_backing_directory");
    char        pattern[512];
    glob_t      found;

    if (directory == NULL) return;
    snprintf(pattern, sizeof(pattern), "%s/*_segment.*", directory);
    if (glob(pattern, 0, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        unlink(found.gl_pathv[i]);
    globfree(&found);
}

/* The end of a test whose last rank has died: all failures count, and nobody calls MPI_Finalize. */
static inline void survivors_end(bt_group *group, const bt_wait *wait)
{
    uint64_t failures[MAX_RANKS], mine = (uint64_t)g_failures, sum = 0;

    if (bt_group_all_gather(group, &mine, sizeof(mine), failures, wait) != BT_OK)
        bt_world_exit(EXIT_FAILURE);
    for (uint32_t i = 0; i < g_ranks - 1; i++)
        sum += failures[i];
    if (g_rank == 0) remove_backing_files();
    if (sum == 0) printf("all survivors: ok\n");
    bt_world_exit(sum == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

/* A reproducible stream of numbers, for content and for choices. */
static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27, x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}
static inline uint64_t mix3(uint64_t a, uint64_t b, uint64_t c)
{
    return mix(mix(mix(a + 0x9e3779b97f4a7c15ull) + b) + c);
}

/* Bytes that one rank has for another one, as both compute them: the eight of word `at`. */
static inline uint64_t word_between(uint64_t seed, uint32_t from, uint32_t to, size_t at)
{
    return mix3(seed, (uint64_t)from << 32 | to, at);
}

static inline size_t word_bytes(size_t n, size_t at) { return n - at < 8 ? n - at : 8; }

static inline void fill(uint8_t *p, size_t n, uint64_t seed, uint32_t from, uint32_t to)
{
    for (size_t at = 0; at < n; at += 8) {
        uint64_t word = word_between(seed, from, to, at / 8);

        memcpy(p + at, &word, word_bytes(n, at));
    }
}

static inline size_t count_wrong(const uint8_t *p, size_t n, uint64_t seed, uint32_t from,
                                 uint32_t to)
{
    size_t wrong = 0;

    for (size_t at = 0; at < n; at += 8) {
        uint64_t want = word_between(seed, from, to, at / 8), found = want;

        memcpy(&found, p + at, word_bytes(n, at)); /* behind the end it is as wanted */
        for (uint64_t x = found ^ want; x != 0; x >>= 8)
            wrong += (x & 0xff) != 0;
    }
    return wrong;
}

/* What this rank sends to and receives from each rank in round k: many zeros, many small, a few of
 * up to `most` bytes. */
typedef struct {
    size_t send_at[MAX_RANKS], send_bytes[MAX_RANKS], n_sent;
    size_t recv_at[MAX_RANKS], recv_bytes[MAX_RANKS], n_received;
} random_exchange;

static inline size_t random_count(uint64_t k, uint32_t from, uint32_t to, size_t most)
{
    uint64_t x = mix3(k, from, to + 77);

    switch (x % 8) {
    case 0:
    case 1:
    case 2: return 0;
    case 3: return x / 8 % 200000;
    case 4: return k % 16 == 0 ? x / 8 % most : 1;
    default: return x / 8 % 2000;
    }
}

static inline random_exchange lay_out(uint64_t k, size_t most, bool own)
{
    random_exchange e = {.n_sent = 0};

    for (uint32_t i = 0; i < g_ranks; i++) {
        e.send_at[i] = e.n_sent;
        e.recv_at[i] = e.n_received;
        if (i == g_rank && !own) continue;
        e.n_sent += e.send_bytes[i]     = random_count(k, g_rank, i, most);
        e.n_received += e.recv_bytes[i] = random_count(k, i, g_rank, most);
    }
    return e;
}

#endif
