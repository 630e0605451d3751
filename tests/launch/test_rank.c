/* The parent of a rank by itself, without mpirun: what it tells its program and of its end, and
 * what its guard clears. */
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/launch/launch.h"

/* Nobody reads what comes there any more, but for whoever waits until its last writer has gone. */
static int open_full(const char *fifo, int *full_out)
{
    int  reader;
    char some[4096] = "";

    EXPECT_EQ(mkfifo(fifo, 0600), 0);
    reader    = open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    *full_out = open(fifo, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    while (write(*full_out, some, sizeof(some)) > 0)
        continue;
    return reader;
}

/* Is now, or, without WNOHANG, when something has become of it. */
static bool is_stopped(pid_t child, int options)
{
    siginfo_t seen = {0};

    return waitid(P_PID, (id_t)child, &seen, WSTOPPED | WEXITED | WNOWAIT | options) == 0 &&
           seen.si_code == CLD_STOPPED;
}

/* On another host, whose ranks are zombies then: the guard of its last rank ends it, whether its
 * folder is there or not, and keeps nobody waiting meanwhile: neither who reads what the rank
 * wrote, nor itself, when it tells of the rank's end and nobody reads. */
static void launch_daemon_that_hangs_is_ended(void)
{
    static const struct {
        const char *shm, *options;
    } CASES[] = {
        {"shm",         "-- true"                                 },
        {"nowhere/shm", "--tell-end -- /bin/sh -c 'kill -9 $PPID'"},
    };
    static bt_command commands[2];
    char              folder[] = "/tmp/baton-test-XXXXXX", script[1024], daemon[64], fifo[2][64];
    const char       *argv[]   = {daemon, "-c", script, NULL};
    struct pollfd     ended[2];
    int               full;

    EXPECT(mkdtemp(folder) != NULL);
    snprintf(daemon, sizeof(daemon), "%s/orted", folder);
    snprintf(script, sizeof(script), "cp /bin/sh %s", daemon);
    EXPECT_EQ(system(script), 0);
    for (int i = 0; i < 2; i++) { /* both at once: each takes its time */
        snprintf(fifo[i], sizeof(fifo[i]), "%s/fifo%d", folder, i);
        ended[i] = (struct pollfd){.fd = open_full(fifo[i], &full)};
        snprintf(script, sizeof(script),
                 "exec 5>%s; OMPI_COMM_WORLD_LOCAL_RANK=0 %s --as-rank --shm %s/%s %s >&5 2>&5 & "
                 "exec 5>&-; kill -STOP $$",
                 fifo[i], g_launch, folder, CASES[i].shm, CASES[i].options);
        bt_command_start(&commands[i], argv, NULL);
        EXPECT(is_stopped(commands[i].pid, 0));
        close(full);
    }
    for (int i = 0; i < 2; i++) {
        EXPECT(poll(&ended[i], 1, END_S * 1000) == 1 && (ended[i].revents & POLLHUP) != 0);
        EXPECT(is_stopped(commands[i].pid, WNOHANG));
        close(ended[i].fd);
    }
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(bt_command_finish(&commands[i], END_S), 128 + 9);
    snprintf(script, sizeof(script), "rm -r %s", folder);
    EXPECT_EQ(system(script), 0);
}

/* With its shared memory elsewhere a job has none in the folder that the guards watch. */
static void *start_two_ranks(void *shm)
{
    static const char *const PROGRAMS[] = {"sleep", "true"};

    for (int i = 0; i < 2; i++) {
        if (fork() != 0) continue;
        setenv("OMPI_COMM_WORLD_LOCAL_RANK", i == 0 ? "0" : "1", 1);
        execl(g_launch, g_launch, "--as-rank", "--shm", (char *)shm, "--", PROGRAMS[i], "600",
              (char *)NULL);
        _exit(127);
    }
    for (;;) /* they are this thread's children while it is there */
        pause();
}

/* Daemons start ranks from several threads, from 32 on: those that live on keep it. */
static void launch_daemon_whose_threads_have_ranks_stays(void)
{
    char      folder[] = "/tmp/baton-test-XXXXXX", shm[64];
    pthread_t thread;
    pid_t     daemon;
    int       status = 0;

    EXPECT(mkdtemp(folder) != NULL);
    snprintf(shm, sizeof(shm), "%s/shm", folder);
    EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* guards outlive the ranks' parents */
    daemon = fork();
    if (daemon == 0) {
        prctl(PR_SET_NAME, "orted");
        if (pthread_create(&thread, NULL, start_two_ranks, shm) == 0) pthread_join(thread, NULL);
        _exit(1);
    }
    EXPECT(waitpid(-1, NULL, 0) != daemon); /* but the guard of the rank that has ended */
    kill(daemon, SIGTERM);
    EXPECT_EQ(waitpid(daemon, &status, 0), daemon);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM); /* not the guard's SIGKILL */
    while (waitpid(-1, NULL, 0) > 0)
        continue;
    EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
    EXPECT_EQ(rmdir(folder), 0);
}

/* A rank's parent, without mpirun. */
static void launch_rank_takes_its_part_of_the_bindings(void)
{
    static const struct {
        const char *bind, *rank, *told;
    } CASES[] = {
        {"/3;0/",   "OMPI_COMM_WORLD_RANK=0", "device 3\n"                                     },
        {"/3;0/",   "OMPI_COMM_WORLD_RANK=1", "device 7\n"                                     },
        {"/3;0/",   "OMPI_COMM_WORLD_RANK=2", "there is no binding for rank 2"                 },
        {"3;0/",    "OMPI_COMM_WORLD_RANK=0", "is \"3\": expected CORES/DEVICES"               },
        {"99999/1", "OMPI_COMM_WORLD_RANK=0", "to be bound to cores \"99999\": expected num"   },
        {"0,1023/", "OMPI_COMM_WORLD_RANK=0", "cores 0,1023 of this machine: it gets 1 of them"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const char *environment[] = {"CUDA_VISIBLE_DEVICES=7", CASES[i].rank, NULL};
        const char *argv[]        = {g_launch, "--as-rank", "--bind", CASES[i].bind,
                                     "--",     "/bin/sh",   "-c",     "echo device $CUDA_VISIBLE_DEVICES",
                                     NULL};

        EXPECT_EQ(bt_command_run(&g_command, argv, environment, END_S), i < 2 ? 0 : 1);
        EXPECT_HAS(g_command.output, CASES[i].told);
    }
}

/* The same, of a program that the signals reach. */
static void launch_rank_tells_how_its_program_ended(void)
{
    static const struct {
        const char *script, *told;
        int         code;
    } CASES[] = {
        {"exit 3",                                             " W rank=1 - ",                                       3       },
        {"exit 3",                                             " sh (pid ",                                          3       },
        {"kill -TERM $$; echo lives",                          ") was ended by SIGTERM\n",                           128 + 15},
        {"kill -INT $$; echo lives",                           ") was ended by SIGINT\n",                            128 + 2 },
        {"kill -KILL $$",                                      ") was ended by signal 9 (Killed); if nobody did",    128 + 9 },
        {"kill -SEGV $$",                                      ") was ended by signal 11 (Segmentation fault)\n",    128 + 11},
        {"kill -BUS $$",                                       ") was ended by signal 7 (Bus error); /dev/shm has ", 128 + 7 },
        {"kill -BUS $$",                                       "; if that is enough, a file was cut while it was",   128 + 7 },
        {"echo place ${OMPI_MCA_orte_local_tmpdir_base-none}", "place none\n",                                       0       },
    };
    const char *environment[] = {"OMPI_COMM_WORLD_RANK=1", "OMPI_MCA_orte_local_tmpdir_base=/user",
                                 NULL};

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const char *argv[] = {g_launch, "--as-rank", "--", "/bin/sh", "-c", CASES[i].script, NULL};

        EXPECT_EQ(bt_command_run(&g_command, argv, environment, END_S), CASES[i].code);
        EXPECT_HAS(g_command.output, CASES[i].told);
        EXPECT((CASES[i].code == 0) == (strstr(g_command.output, "ended") == NULL));
    }
}

/* By the parent, or by its guard when that was killed, whose program does not outlive it. */
static void launch_rank_of_a_host_is_told_of_once(void)
{
    char        shm[]         = "/tmp/baton-job-XXXXXX";
    const char *environment[] = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_LOCAL_RANK=0", NULL};
    const char *argv[]        = {g_launch, "--as-rank", "--shm", shm,  "--tell-end",
                                 "--",     "/bin/sh",   "-c",    NULL, NULL};

    EXPECT(mkdtemp(shm) != NULL);
    argv[8] = "true";
    EXPECT_EQ(bt_command_run(&g_command, argv, environment, END_S), 0);
    EXPECT_HAS(g_command.output, "a rank has ended with 0\n");
    EXPECT(strstr(g_command.output, "with 137") == NULL);
    argv[8] = "echo pid $$ up 0; exec sleep 600";
    bt_command_start(&g_command, argv, environment);
    EXPECT(bt_command_wait_for(&g_command, "up 0", START_S));
    kill(g_command.pid, SIGKILL);
    EXPECT(bt_command_wait_for(&g_command, "a rank has ended with 137\n", END_S));
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    EXPECT(bt_process_gone((pid_t)number_after("pid ", 0), END_S));
}

/* The segments of others, which may still attach to them, stay; what dead jobs left is cleared. */
static void launch_rank_of_a_host_leaves_others_their_memory(void)
{
    char        folder[]      = "/tmp/baton-test-XXXXXX", shm[64], own[96], others[96], old[64];
    const char *environment[] = {"OMPI_COMM_WORLD_RANK=4", "OMPI_COMM_WORLD_LOCAL_RANK=1", NULL};
    const char *argv[]        = {g_launch,
                                 "--as-rank",
                                 "--shm",
                                 shm,
                                 "--",
                                 "/bin/sh",
                                 "-c",
                                 "cd $OMPI_MCA_btl_vader_backing_directory && "
                                        "touch segment.n1.0.1.1 segment.n1.0.1.11",
                                 NULL};
    double      end           = bt_command_now() + END_S;

    EXPECT(mkdtemp(folder) != NULL);
    snprintf(shm, sizeof(shm), "%s/baton-job-new", folder);
    snprintf(old, sizeof(old), "%s/baton-job-old", folder);
    snprintf(own, sizeof(own), "%s/segment.n1.0.1.1", shm);
    snprintf(others, sizeof(others), "%s/segment.n1.0.1.11", shm);
    EXPECT_EQ(mkdir(old, 0700), 0);
    EXPECT_EQ(bt_command_run(&g_command, argv, environment, END_S), 0);
    EXPECT(access(old, F_OK) != 0);
    while (access(own, F_OK) == 0 && bt_command_now() < end)
        usleep(10000);
    EXPECT(access(own, F_OK) != 0);
    EXPECT(unlink(others) == 0 && rmdir(shm) == 0 && rmdir(folder) == 0);
}

/* By the names of 4 and of 5. */
static void launch_users_shared_memory_wins_over_hosts(void)
{
    static const char *const NAMES[] = {"vader", "sm"};
    char                     shm[]   = "/tmp/baton-job-XXXXXX", own[64], want[64];
    const char *environment[] = {own, "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                                 NULL};
    const char *argv[]        = {g_launch,
                                 "--as-rank",
                                 "--shm",
                                 shm,
                                 "--",
                                 "/bin/sh",
                                 "-c",
                                 "echo told $OMPI_MCA_btl_vader_backing_directory "
                                        "$OMPI_MCA_btl_sm_backing_directory .",
                                 NULL};

    EXPECT(mkdtemp(shm) != NULL);
    for (size_t i = 0; i < 2; i++) {
        snprintf(own, sizeof(own), "OMPI_MCA_btl_%s_backing_directory=/user", NAMES[i]);
        EXPECT_EQ(bt_command_run(&g_command, argv, environment, END_S), 0);
        EXPECT_HAS(g_command.output, "told /user .\n");
    }
    environment[0] = environment[1];
    snprintf(want, sizeof(want), "told %s %s .\n", shm, shm);
    EXPECT_EQ(bt_command_run(&g_command, argv, environment, END_S), 0);
    EXPECT_HAS(g_command.output, want);
    expect_removed("told ", &g_command);
    argv[3] = "/nowhere/baton-job"; /* then Open MPI looks for a place itself */
    EXPECT_EQ(bt_command_run(&g_command, argv, environment, END_S), 0);
    EXPECT_HAS(g_command.output, "told .\n");
}

static const bt_test TESTS[] = {
    BT_TEST(launch_daemon_that_hangs_is_ended),
    BT_TEST(launch_daemon_whose_threads_have_ranks_stays),
    BT_TEST(launch_rank_takes_its_part_of_the_bindings),
    BT_TEST(launch_rank_tells_how_its_program_ended),
    BT_TEST(launch_rank_of_a_host_is_told_of_once),
    BT_TEST(launch_rank_of_a_host_leaves_others_their_memory),
    BT_TEST(launch_users_shared_memory_wins_over_hosts),
};

/* usage: test_rank BATON_LAUNCH [test] */
int main(int argc, char **argv)
{
    if (!launch_tests_begin(argc, argv)) return EXIT_FAILURE;
    return BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
}
