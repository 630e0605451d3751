/* Where ranks run, and where without some hosts. */
#include <sys/mman.h>
#include <unistd.h>

#include "cli/places.h"
#include "core/log.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

/* "P n1 D n2 S n3": roles and hosts in order. */
static const char *text_of(const bt_rank_map *map)
{
    static char text[512];
    size_t      n = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < map->n_ranks; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%c %s", n > 0 ? " " : "",
                              "PDS"[map->ranks[i].kind], map -> ranks[i].host);
    return text;
}

/* Through a file and back, as the launcher reads it: sorted by role. */
static const char *text_again(const bt_rank_map *map)
{
    static char text[512];
    bt_rank_map again = {0};
    char        path[64];
    int         fd = memfd_create("map", MFD_CLOEXEC);

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
    EXPECT_EQ(bt_places_write(map, fd), BT_OK);
    EXPECT_EQ(bt_rank_map_read(path, &again), BT_OK);
    EXPECT_EQ(again.n_prefill, map->n_prefill);
    EXPECT_EQ(again.n_decode, map->n_decode);
    EXPECT_EQ(again.n_both, map->n_both);
    EXPECT_EQ(again.n_spares, map->n_spares);
    snprintf(text, sizeof(text), "%s", text_of(&again));
    bt_rank_map_fini(&again);
    close(fd);
    return text;
}

static bool is_in(const void *list, const char *host) { return strstr(list, host) != NULL; }

static void places_follow_slots_in_order(void)
{
    bt_cell_options opt = {.n_prefill = 1, .n_decode = 3, .n_spares = 1, .hosts = "n1:2,n2,n3:1"};
    bt_rank_map     map = {0};

    EXPECT_EQ(bt_places_read(&opt, &map), BT_OK);
    EXPECT(strcmp(text_of(&map), "P n1 D n1 D n2 D n3 S n1") == 0); /* more ranks than slots */
    EXPECT(strcmp(text_again(&map), "P n1 D n1 D n2 D n3 S n1") == 0);
    bt_rank_map_fini(&map);
}

static void places_of_a_list_have_one_slot_unless_it_says_more(void)
{
    static const struct {
        const char *hosts, *want;
    } CASES[] = {
        {"n1,2nd",    "P n1 D 2nd S n1"}, /* no number of slots: it begins a name */
        {"n1:0,n2",   "P n1 D n2 S n1" },
        {",n1:2,,n2", "P n1 D n1 S n2" },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_cell_options opt = {
            .n_prefill = 1, .n_decode = 1, .n_spares = 1, .hosts = CASES[i].hosts};
        bt_rank_map map = {0};

        EXPECT_EQ(bt_places_read(&opt, &map), BT_OK);
        EXPECT(strcmp(text_of(&map), CASES[i].want) == 0);
        bt_rank_map_fini(&map);
    }
}

/* Each start writes its map into the same file. */
static void places_written_again_are_those_alone(void)
{
    bt_cell_options opt = {.n_both = 2, .n_spares = 1, .hosts = "n1,n2,n3"};
    bt_rank_map     map = {0};
    int             fd  = memfd_create("map", MFD_CLOEXEC);
    char            text[64];

    EXPECT_EQ(bt_places_read(&opt, &map), BT_OK);
    EXPECT_EQ(bt_places_write(&map, fd), BT_OK);
    EXPECT_EQ(pread(fd, text, sizeof(text), 0), 25);
    EXPECT(memcmp(text, "both n1\nboth n2\nspare n3\n", 25) == 0);
    EXPECT(bt_places_leave_out(&map, is_in, "n2 n3"));
    EXPECT_EQ(bt_places_write(&map, fd), BT_OK);
    EXPECT_EQ(pread(fd, text, sizeof(text), 0), 8);
    EXPECT(memcmp(text, "both n1\n", 8) == 0);
    bt_rank_map_fini(&map);
    close(fd);
}

static void places_of_a_host_file_are_its_lines(void)
{
    static const char FILE_TEXT[] =
        "# all of them\nn1 slots=1\n\n  n2\tmax_slots=9 slots=2 # two\n";
    char            path[64];
    int             fd  = memfd_create("hosts", MFD_CLOEXEC);
    bt_cell_options opt = {.n_both = 3, .hostfile = path};
    bt_rank_map     map = {0};

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
    EXPECT(write(fd, FILE_TEXT, sizeof(FILE_TEXT) - 1) == sizeof(FILE_TEXT) - 1);
    EXPECT_EQ(bt_places_read(&opt, &map), BT_OK);
    EXPECT(strcmp(text_of(&map), "P n1 P n2 P n2") == 0);
    EXPECT(bt_places_leave_out(&map, is_in, "n1"));
    EXPECT(strcmp(text_again(&map), "P n2 P n2") == 0);
    EXPECT_EQ(map.n_both, 2);
    EXPECT(!bt_places_leave_out(&map, is_in, "n2"));
    bt_rank_map_fini(&map);
    close(fd);
    opt.hostfile = "/proc/self/mem"; /* opens, and fails to be read at 0 */
    EXPECT_EQ(bt_places_read(&opt, &map), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "host file /proc/self/mem: Input/output error");
    opt.hostfile = "/nowhere/hosts";
    EXPECT_EQ(bt_places_read(&opt, &map), BT_ERR_IO);
    EXPECT_HAS(bt_error_text(), "/nowhere/hosts");
}

/* As mpirun takes it. */
static void places_of_a_host_file_have_slots_however_they_are_written(void)
{
    static const char *const LINES[] = {"n1 slots=2\nn2\n", "n1\tslots=2\nn2\n",
                                        "n1 slots = 2\nn2\n", "n1  max_slots=9\tslots =2\nn2\n"};

    for (size_t i = 0; i < sizeof(LINES) / sizeof(LINES[0]); i++) {
        char            path[64];
        int             fd  = memfd_create("hosts", MFD_CLOEXEC);
        bt_cell_options opt = {.n_both = 3, .hostfile = path};
        bt_rank_map     map = {0};

        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
        EXPECT(write(fd, LINES[i], strlen(LINES[i])) > 0);
        EXPECT_EQ(bt_places_read(&opt, &map), BT_OK);
        EXPECT(strcmp(text_of(&map), "P n1 P n1 P n2") == 0);
        bt_rank_map_fini(&map);
        close(fd);
    }
}

static void places_on_one_machine_are_none(void)
{
    bt_cell_options opt = {.n_prefill = 1, .n_decode = 1};
    bt_rank_map     map = {0};

    EXPECT_EQ(bt_places_read(&opt, &map), BT_OK);
    EXPECT_EQ(map.n_ranks, 0);
}

/* The seats of lost ranks go to spares, those of the emptier role first. */
static void places_left_out_are_filled_by_spares(void)
{
    static const struct {
        const char *out, *left;
    } CASES[] = {
        {"n4",       "P n1 P n1 D n2 D n2 D n3 S n3"     },
        {"n2",       "P n1 P n1 D n3 D n3 D n4"          },
        {"n1",       "P n3 P n4 D n2 D n2 D n3"          },
        {"n1 n4",    "P n3 D n2 D n2 D n3"               },
        {"n2 n3 n4", NULL                                }, /* nobody for decode */
        {"n1 n3 n4", NULL                                },
        {"n1 n2 n3", NULL                                }, /* one spare for two roles */
        {"n2 n3",    "P n1 P n1 D n4"                    },
        {"nobody",   "P n1 P n1 D n2 D n2 D n3 S n3 S n4"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bt_cell_options opt = {
            .n_prefill = 2, .n_decode = 3, .n_spares = 2, .hosts = "n1:2,n2:2,n3:2,n4:1"};
        bt_rank_map map = {0};

        EXPECT_EQ(bt_places_read(&opt, &map), BT_OK);
        EXPECT_EQ(bt_places_leave_out(&map, is_in, CASES[i].out), CASES[i].left != NULL);
        if (CASES[i].left == NULL)
            EXPECT_EQ(map.n_ranks, 7); /* as it was */
        else if (strcmp(text_again(&map), CASES[i].left) != 0) {
            fprintf(stderr, "without %s: %s, want %s\n", CASES[i].out, text_again(&map),
                    CASES[i].left);
            g_failures++;
        }
        bt_rank_map_fini(&map);
    }
}

static void places_unwind_at_every_allocation(void)
{
    bt_cell_options opt = {.n_prefill = 1, .n_decode = 1, .hosts = "n1,n2"};
    bt_rank_map     map = {0};

    EXPECT(BT_SWEEP(bt_places_read(&opt, &map), bt_rank_map_fini(&map)) > 7);
}

/* With every option that a cell has. */
static void places_can_be_said_beside_all_options(void)
{
    static char    *argv[] = {"baton-run",
                              "--model=" BT_SOURCE_DIR "/models/demo",
                              "--both=1",
                              "--hosts=n1,n2",
                              "--cell=a",
                              "--kv-bytes=1M",
                              "--chunk=64",
                              "--weights-cache=/tmp",
                              "--form=role",
                              "--max-rows=64",
                              "--mtp=1",
                              "--speculate=1",
                              "--threads=1",
                              "--share-generated",
                              "--device=cpu",
                              "--kernels=auto",
                              "--timeout-s=9",
                              "--transport=mpi",
                              "--orphan-s=9",
                              "--coordinator-timeout-s=9",
                              NULL};
    bt_cell_options opt    = {0};
    bt_rank_map     map    = {.n_both = 1};
    uint32_t        n;

    EXPECT_EQ(argp_parse(&bt_cell_argp, 20, argv, 0, NULL, &opt), 0);
    bt_cell_place(&opt, &map, "map", "n2");
    EXPECT(opt.hosts == NULL && strcmp(opt.rank_map, "map") == 0); /* which exclude each other */
    n = opt.worker.n;
    bt_cell_rename(&opt, "b"); /* in the place of the one before */
    EXPECT_EQ(opt.worker.n, n);
    EXPECT(strcmp(bt_passed_value(&opt.worker, "--left-out"), "n2") == 0);
    EXPECT(strcmp(bt_passed_value(&opt.worker, "--cell"), "b") == 0);
    bt_cell_default(&opt, "--orphan-s", "0"); /* for who has not said it */
    EXPECT(strcmp(bt_passed_value(&opt.worker, "--orphan-s"), "9") == 0);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(places_follow_slots_in_order),
        BT_TEST(places_of_a_list_have_one_slot_unless_it_says_more),
        BT_TEST(places_written_again_are_those_alone),
        BT_TEST(places_of_a_host_file_are_its_lines),
        BT_TEST(places_of_a_host_file_have_slots_however_they_are_written),
        BT_TEST(places_on_one_machine_are_none),
        BT_TEST(places_left_out_are_filled_by_spares),
        BT_TEST(places_unwind_at_every_allocation),
        BT_TEST(places_can_be_said_beside_all_options),
    };

    bt_log_init("test", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
