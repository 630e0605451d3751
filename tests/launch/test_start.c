/* What baton-launch starts from: its command line, and the machine and the shell around it. */
#include "tests/launch/launch.h"

static void launch_bad_command_lines_are_refused(void)
{
    static const struct {
        const char *argv[7];
        const char *says;
    } CASES[] = {
        {{"-n", "2", NULL},                                       "no program"        },
        {{"--", "/bin/true", NULL},                               "--ranks"           },
        {{"-n", "0", "--", "/bin/true", NULL},                    "from 1 to"         },
        {{"-n", "2x", "--", "/bin/true", NULL},                   "\"2x\""            },
        {{"--nonsense", NULL},                                    "unrecognized"      },
        {{"-n", "1", "--slurm", "--", "/bin/true", NULL},         "SLURM_JOB_ID"      },
        {{"--rank-map", "/nowhere.map", "--", "/bin/true", NULL},
         "baton launch: rank map /nowhere.map: No such file"                          },
        {{"-n", "1", "-f", "/nowhere", "--", "/bin/true", NULL},
         "--hostfile /nowhere: No such file"                                          },
        {{"-n", "1", "--host", "", "--", "/bin/true", NULL},      "--host is \"\""    },
        {{"-n", "1", "--host", "a,:2", "--", "/bin/true", NULL},  "--host is \"a,:2\""},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const char *argv[8] = {g_launch};

        for (int k = 0; CASES[i].argv[k] != NULL; k++)
            argv[k + 1] = CASES[i].argv[k];
        EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 64);
        EXPECT_HAS(g_command.output, CASES[i].says);
    }
}

static void launch_without_mpirun_says_what_to_do(void)
{
    const char *const missing[] = {"BATON_MPIRUN=/nowhere/mpirun", NULL};

    EXPECT_EQ(launch("true", missing), 1);
    EXPECT_HAS(g_command.output, "/nowhere/mpirun");
}

static void launch_tmpdir_too_long_is_refused(void)
{
    const char *const deep[] = {
        "TMPDIR=/tmp/a-directory-name-that-is-much-too-long-for-the-path-of-a-unix-socket-below-it",
        NULL};

    EXPECT_EQ(launch("true", deep), 1);
    EXPECT_HAS(g_command.output, "TMPDIR");
}

/* mpirun itself would not say whose. */
static void launch_in_a_deleted_directory_is_refused(void)
{
    const char *argv[] = {"/bin/sh", "-c",
                          "cd $(mktemp -d) && rmdir $PWD && exec $0 -n 1 -- /bin/true", g_launch,
                          NULL};

    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 1);
    EXPECT_HAS(g_command.output,
               "the working directory, where mpirun starts the ranks: No such file or "
               "directory: cd to another one");
}

/* mpirun itself would hang. */
static void launch_with_few_files_is_refused(void)
{
    const char *argv[] = {"/bin/sh", "-c", "ulimit -n 32; exec \"$0\" --ranks 2 -- /bin/true",
                          g_launch, NULL};

    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 1);
    EXPECT_HAS(g_command.output, "this program may open 32 files, and needs up to 64");
    EXPECT_HAS(g_command.output, "ulimit -n");
    argv[2] = "ulimit -n 70; exec \"$0\" --ranks 2 -- /bin/true";
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 1);
    EXPECT_HAS(g_command.output, "mpirun may open 70 files, and needs up to 80");
    /* A soft limit below the hard one is no obstacle. */
    argv[2] = "ulimit -Sn 32; exec \"$0\" --ranks 2 -- /bin/true";
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 0);
    /* Four are free: the log takes one, the directories two, and the guard's pipe wants two. */
    argv[0] = "/bin/bash";
    argv[2] = "ulimit -n 64; for ((i = 3; i < 60; i++)); do eval \"exec $i</dev/null\"; done; "
              "exec \"$0\" --ranks 2 -- /bin/true";
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 1);
    EXPECT_HAS(g_command.output, "cannot start the guard process: Too many open files");
}

/* It would fail by Open MPI's words alone, or hang. */
static void launch_with_few_threads_is_refused(void)
{
    static const struct {
        int         n;
        const char *says;
    } CASES[] = {
        {1,  "cannot start the guard process: Resource temporarily unavailable: raise `ulimit -u`"},
        {20, "mpirun with its ranks can start 1"                                                  },
        {20, " threads, and needs up to 20 (Resource temporarily unavailable): raise `ulimit -u`" },
        {40, "it starts"                                                                          },
    };
    char        as_other[64], script[256]; /* another one than in other runs of this test */
    int         other  = 62000 + getpid() % 3000;
    const char *argv[] = {"/bin/sh", "-c", script, g_launch, NULL};

    snprintf(as_other, sizeof(as_other), "exec setpriv --reuid=%d --regid=%d --clear-groups", other,
             other);
    snprintf(script, sizeof(script), "%s test -x \"$0\"", as_other);
    if (geteuid() != 0 || bt_command_run(&g_command, argv, NULL, END_S) != 0) {
        printf("skipped: nobody here to be who has no other process and may run %s\n", g_launch);
        return;
    }
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        snprintf(script, sizeof(script),
                 "export TMPDIR=/tmp BATON_MPIRUN=/bin/echo; "
                 "%s prlimit --nproc=%d \"$0\" -n 2 -- it starts",
                 as_other, CASES[i].n);
        EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 1); /* no rank has told */
        EXPECT_HAS(g_command.output, CASES[i].says);
    }
}

/* A shell that lets nobody use what it makes, not even its user; root may anyhow. */
static void launch_makes_what_its_user_can_use(void)
{
    const char *argv[] = {"/bin/sh",
                          "-c",
                          "umask 777; exec $1 \"$0\" --ranks 1 -- /bin/sh -c \"$2\"",
                          g_launch,
                          geteuid() == 0 ? "setpriv --bounding-set=-all" : "",
                          SAY,
                          NULL};

    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 0);
    EXPECT_HAS(g_command.output, "rank 0 of 1");
    expect_removed("shm ", &g_command);
    expect_removed("session ", &g_command);
}

static void launch_tmpdir_that_is_none_is_named(void)
{
    static const char *const none[] = {"TMPDIR=/nowhere", NULL};

    EXPECT_EQ(launch("true", none), 1);
    EXPECT_HAS(g_command.output, "/nowhere: No such file");
    EXPECT_HAS(g_command.output, "set TMPDIR");
}

/* Variables that are left of a job of Grid Engine, whose host file is gone. */
static void launch_on_one_machine_asks_no_grid_engine(void)
{
    static const char *const job[] = {"PE_HOSTFILE=/nowhere", "SGE_ROOT=/nowhere", "ARC=x",
                                      "JOB_ID=1", NULL};

    EXPECT_EQ(launch(SAY, job), 0);
    EXPECT_HAS(g_command.output, "rank 2 of 3");
}

/* mpirun itself would end without a word, or hang. */
static void launch_without_room_says_where(void)
{
    static const char *const CASES[][3] = {
        {"size=1m /tmp",     "",                                  "/tmp has 1 MiB left, expected at least 16 "   },
        {"size=4m /dev/shm", "",                                  "/dev/shm has 4 MiB left, expected at least 8 "},
        {"size=8m /dev/shm", "",                                  "it starts"                                    },
        {"size=0 /dev/shm",  "",                                  "it starts"                                    }, /* no limit */
        {"ro /dev/shm",      "",                                  "it starts"                                    },
        {"size=4m /dev/shm", "OMPI_MCA_btl=tcp,self",             "it starts"                                    },
        {"size=4m /dev/shm", "OMPI_MCA_btl_vader_segment_size=1", "it starts"                                    },
        {"size=4m /dev/shm", "OMPI_MCA_btl_sm_segment_size=1",    "it starts"                                    },
    };
    char        script[512];
    const char *argv[] = {
        "/usr/bin/unshare", "--user", "--map-root-user", "--mount", "/bin/sh", "-c", script,
        g_launch,           NULL};

    if (system("unshare --user --map-root-user --mount true") != 0) {
        printf("skipped: no namespaces of mounts here\n");
        return;
    }
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        if (i == 0 && strncmp(g_launch, "/tmp/", 5) == 0) {
            printf("skipped: the case of a full /tmp, since %s would be hidden\n", g_launch);
            continue;
        }
        snprintf(script, sizeof(script),
                 "unset TMPDIR; mount -t tmpfs none -o %s && exec env %s BATON_MPIRUN=/bin/echo "
                 "\"$0\" --ranks 2 -- it starts",
                 CASES[i][0], CASES[i][1]);
        EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 1); /* no rank has told */
        EXPECT_HAS(g_command.output, CASES[i][2]);
    }
}

/* A cell of another size than its ranks': the worker says which command line would do. */
static void launch_too_few_ranks_are_refused(void)
{
    char        worker[512];
    const char *argv[] = {g_launch,
                          "-n",
                          "1",
                          "--",
                          worker,
                          "--model",
                          BT_SOURCE_DIR "/models/demo",
                          "--prefill",
                          "1",
                          "--decode",
                          "2",
                          "--coordinator",
                          "127.0.0.1:1",
                          NULL};

    snprintf(worker, sizeof(worker), "%.*s/baton-worker", (int)(strrchr(g_launch, '/') - g_launch),
             g_launch);
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 1);
    EXPECT_HAS(g_command.output, "mpirun -n 3 ");
}

static const bt_test TESTS[] = {
    BT_TEST(launch_bad_command_lines_are_refused),
    BT_TEST(launch_without_mpirun_says_what_to_do),
    BT_TEST(launch_tmpdir_too_long_is_refused),
    BT_TEST(launch_in_a_deleted_directory_is_refused),
    BT_TEST(launch_with_few_files_is_refused),
    BT_TEST(launch_with_few_threads_is_refused),
    BT_TEST(launch_makes_what_its_user_can_use),
    BT_TEST(launch_tmpdir_that_is_none_is_named),
    BT_TEST(launch_on_one_machine_asks_no_grid_engine),
    BT_TEST(launch_without_room_says_where),
    BT_TEST(launch_too_few_ranks_are_refused),
};

/* usage: test_start BATON_LAUNCH [test] */
int main(int argc, char **argv)
{
    if (argc < 2) return EXIT_FAILURE;
    g_launch = argv[1];
    return BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
}
