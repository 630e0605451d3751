/* Whole jobs, as a user runs them: how the ranks run, and how they end.  They are shell scripts,
 * which mpirun starts as well. */
#include <sched.h>
#include <sys/stat.h>

#include "model/safetensors.h"
#include "tests/launch/launch.h"

static void start_with(const char *script, const char *const *environment)
{
    const char *argv[] = {g_launch, "--ranks", "2", "--", "/bin/sh", "-c", script, NULL};

    bt_command_start(&g_command, argv, environment);
    EXPECT(bt_command_wait_for(&g_command, "up 0", START_S));
    EXPECT(bt_command_wait_for(&g_command, "up 1", START_S));
}

static void start(const char *script) { start_with(script, NULL); }

/* Not 0, to which no rank has come: that is this test's own group, and whoever runs it. */
static void signal_number_after(const char *word, int n, int sig)
{
    pid_t pid = (pid_t)number_after(word, n);

    EXPECT(pid > 1);
    if (pid > 1) kill(pid, sig);
}

/* Where the job's ranks have their sessions. */
static void read_session(char session_out[256])
{
    const char *at = strstr(g_command.output, "session ");

    EXPECT(at != NULL && sscanf(at, "session %255s", session_out) == 1);
}

static void expect_nothing_left(void)
{
    expect_removed("shm ", &g_command);
    expect_removed("session ", &g_command);
    for (int i = 0; i < 2; i++) {
        EXPECT(number_after(" pid ", i) > 1);
        EXPECT(bt_process_gone((pid_t)number_after(" pid ", i), END_S));
        EXPECT(bt_process_gone((pid_t)number_after(" parent ", i), END_S));
    }
}

static void launch_ranks_end_well_returns_0(void)
{
    EXPECT_EQ(launch(SAY, NULL), 0);
    EXPECT_HAS(g_command.output, "rank 0 of 3");
    EXPECT_HAS(g_command.output, "rank 1 of 3");
    EXPECT_HAS(g_command.output, "rank 2 of 3");
    expect_nothing_left();
}

static void launch_exit_code_of_a_rank_is_returned(void)
{
    EXPECT_EQ(launch(SAY "test $OMPI_COMM_WORLD_RANK = 1 && exit 7; exec sleep 600", NULL), 7);
    EXPECT_HAS(g_command.output, "rank=1");
    EXPECT_HAS(g_command.output, "ended with exit code 7");
    expect_nothing_left();
}

static void launch_signal_of_a_rank_is_named(void)
{
    EXPECT_EQ(launch(SAY "test $OMPI_COMM_WORLD_RANK = 2 && kill -9 $$; exec sleep 600", NULL),
              128 + 9);
    EXPECT_HAS(g_command.output, "rank=2");
    EXPECT_HAS(g_command.output, "was ended by signal 9");
    expect_nothing_left();
}

/* Where ranks may be lost, what counts is whether any of them ended well. */
static void launch_that_survives_deaths_tells_when_none_was_survived(void)
{
    const char *argv[] = {
        g_launch, "--on-death=replace", "-n", "2", "--", "/bin/sh", "-c", "exit 3", NULL};

    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 3);
    argv[7] = "kill -9 $$";
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 128 + 9);
    argv[7] = "[ $OMPI_COMM_WORLD_RANK = 0 ] || exit 3";
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 0);
}

static void launch_program_that_is_missing_is_named(void)
{
    const char *argv[] = {g_launch, "-n", "1", "--", "/nowhere/worker", NULL};

    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 127);
    EXPECT_HAS(g_command.output, "/nowhere/worker: No such file");
}

static void launch_sigterm_ends_ranks_that_ignore_it(void)
{
    start(SAY "trap '' TERM; echo up $OMPI_COMM_WORLD_RANK; while :; do sleep 1; done");
    kill(g_command.pid, SIGTERM);
    EXPECT(bt_command_finish(&g_command, END_S) > 0);
    expect_nothing_left();
}

/* While mpirun starts, Open MPI would hang or crash when told to stop. */
static void launch_sigterm_at_any_moment_of_the_start(void)
{
    const char *argv[] = {g_launch, "--ranks", "2", "--", "/bin/sh", "-c", "exec sleep 600", NULL};

    for (int ms = 0; ms <= 480; ms += 80) {
        struct timespec wait = {0, ms * 1000000L};
        int             code;

        bt_command_start(&g_command, argv, NULL);
        nanosleep(&wait, NULL);
        kill(g_command.pid, SIGTERM);
        code = bt_command_finish(&g_command, END_S);
        EXPECT(code == 128 + SIGTERM || code == 1); /* 1: mpirun's own, of ranks that it ended */
    }
}

/* Whatever its guard, whose session is its own, is sent before but SIGKILL. */
static void launch_killed_takes_its_ranks_along(void)
{
    static const int SIGNALS[] = {SIGTERM, SIGINT, SIGHUP};
    pid_t            guard;

    start(SAY "echo up $OMPI_COMM_WORLD_RANK; exec sleep 600");
    guard = bt_command_child(&g_command, "baton-guard");
    EXPECT(guard > 0 && getsid(guard) == guard);
    for (size_t i = 0; guard > 0 && i < sizeof(SIGNALS) / sizeof(SIGNALS[0]); i++)
        kill(guard, SIGNALS[i]);
    kill(g_command.pid, SIGKILL);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    expect_nothing_left();
}

/* Whatever mpirun, which is killed as well, has put in TMPDIR. */
static void launch_over_hosts_killed_leaves_nothing(void)
{
    const char *argv[] = {
        g_launch, "--host=localhost:2",
        "-n",     "2",
        "--",     "/bin/sh",
        "-c",     "echo base ${OMPI_MCA_orte_local_tmpdir_base-none}; echo up; exec sleep 600",
        NULL};
    char              folder[] = "/tmp/baton-test-XXXXXX", tmpdir[64];
    const char *const own[]    = {tmpdir, NULL};
    double            end;

    EXPECT(mkdtemp(folder) != NULL);
    snprintf(tmpdir, sizeof(tmpdir), "TMPDIR=%s", folder);
    bt_command_start(&g_command, argv, own);
    EXPECT(bt_command_wait_for(&g_command, "up", START_S));
    EXPECT_HAS(g_command.output, "base none"); /* a rank would not start MPI */
    kill(g_command.pid, SIGKILL);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    end = bt_command_now() + END_S;
    while (rmdir(folder) != 0 && bt_command_now() < end)
        usleep(10000);
    EXPECT(access(folder, F_OK) != 0);
}

/* Where nobody is left to remove them, as when a container ends: the next job does, and spares the
 * directories of those that live.  A job beside this test may do so in /dev/shm, but not in a
 * TMPDIR of its own. */
static void launch_clears_what_a_killed_guard_left(void)
{
    static bt_command other;
    char              folder[] = "/tmp/baton-test-XXXXXX", tmpdir[64], session[256] = "";
    const char *const own[] = {tmpdir, NULL};
    pid_t             guard;

    EXPECT(mkdtemp(folder) != NULL);
    snprintf(tmpdir, sizeof(tmpdir), "TMPDIR=%s", folder);
    start_with(SAY "echo up $OMPI_COMM_WORLD_RANK; exec sleep 600", own);
    guard = bt_command_child(&g_command, "baton-guard");
    EXPECT(guard > 0);
    if (guard > 0) kill(guard, SIGKILL);
    EXPECT(bt_process_gone(guard, END_S));
    kill(g_command.pid, SIGKILL);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    for (int i = 0; i < 2; i++) {
        EXPECT(number_after(" pid ", i) > 1);
        EXPECT(bt_process_gone((pid_t)number_after(" pid ", i), END_S));
    }
    read_session(session);
    EXPECT(access(session, F_OK) == 0);
    other = g_command;

    start_with(SAY "echo up $OMPI_COMM_WORLD_RANK; exec sleep 600", own);
    EXPECT(access(session, F_OK) != 0);
    expect_removed("shm ", &other);
    read_session(session);
    other = g_command;
    EXPECT_EQ(launch("true", own), 0);
    EXPECT(access(session, F_OK) == 0);
    kill(other.pid, SIGTERM);
    EXPECT(bt_command_finish(&other, END_S) != -1);
    g_command = other;
    expect_nothing_left();
    EXPECT(rmdir(folder) == 0);
}

/* Root could, and whoever it belongs to has no lock on it yet. */
static void launch_spares_directories_of_other_users(void)
{
    char              folder[] = "/tmp/baton-test-XXXXXX", tmpdir[64], others[64];
    const char *const own[]    = {tmpdir, NULL};

    EXPECT(mkdtemp(folder) != NULL);
    snprintf(tmpdir, sizeof(tmpdir), "TMPDIR=%s", folder);
    snprintf(others, sizeof(others), "%s/baton-job-others", folder);
    EXPECT_EQ(mkdir(others, 0755), 0);
    if (geteuid() == 0) EXPECT_EQ(chown(others, 65534, 65534), 0);
    EXPECT_EQ(launch("true", own), 0);
    EXPECT((rmdir(others) == 0) == (geteuid() == 0)); /* one's own has gone */
    EXPECT_EQ(rmdir(folder), 0);
}

/* Whoever clears the job's directories meanwhile would leave it. */
static void launch_rank_that_ends_late_makes_no_file(void)
{
    char session[256] = "", endings[300];

    start(SAY "echo up $OMPI_COMM_WORLD_RANK; exec sleep 600");
    read_session(session);
    snprintf(endings, sizeof(endings), "%s/endings", session);
    kill(g_command.pid, SIGSTOP); /* it would end the job, and its guard would clear all */
    for (int i = 0; i < 2; i++) {
        signal_number_after(" parent ", i, SIGSTOP);
        signal_number_after(" pid ", i, SIGKILL);
    }
    EXPECT(unlink(endings) == 0);
    for (int i = 0; i < 2; i++) {
        signal_number_after(" parent ", i, SIGCONT);
        EXPECT(bt_process_gone((pid_t)number_after(" parent ", i), END_S));
    }
    EXPECT(access(session, F_OK) == 0 && access(endings, F_OK) != 0);
    kill(g_command.pid, SIGCONT);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    expect_nothing_left();
}

/* The parent of a rank's parent. */
static void signal_mpirun(int sig)
{
    char  text[64];
    FILE *f;
    long  mpirun = 0;

    snprintf(text, sizeof(text), "/proc/%ld/stat", number_after(" parent ", 0));
    f = fopen(text, "re");
    EXPECT(f != NULL && fscanf(f, "%*d (%*[^)]) %*c %ld", &mpirun) == 1 && mpirun > 1);
    if (f != NULL) fclose(f);
    if (mpirun > 1) kill((pid_t)mpirun, sig);
}

static void launch_mpirun_killed_ends_everything(void)
{
    start(SAY "echo up $OMPI_COMM_WORLD_RANK; exec sleep 600");
    signal_mpirun(SIGKILL);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    expect_nothing_left();
}

/* It does when a rank dies while it connects; then nobody else would end the other ranks. */
static void launch_mpirun_that_hangs_after_a_death_is_ended(void)
{
    start(SAY "echo up $OMPI_COMM_WORLD_RANK; exec sleep 600");
    signal_mpirun(SIGSTOP);
    signal_number_after(" pid ", 1, SIGKILL);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    EXPECT_HAS(g_command.output, "mpirun has not ended its ranks");
    expect_nothing_left();
}

/* Who kills a rank's parent kills what would have said how the rank ended. */
static void launch_rank_whose_parent_is_killed_is_told(void)
{
    const char *argv[] = {g_launch, "--on-death=replace",
                          "-n",     "2",
                          "--",     "/bin/sh",
                          "-c",     SAY "[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -9 $PPID; sleep 600",
                          NULL};

    bt_command_start(&g_command, argv, NULL);
    EXPECT(bt_command_wait_for(&g_command, "1 of 2 ranks have failed", START_S));
    kill(g_command.pid, SIGTERM);
    EXPECT(bt_command_finish(&g_command, END_S) != -1);
    expect_nothing_left();
}

/* mpirun starts so many from several of its threads: those that live are not taken for lost. */
static void launch_many_ranks_that_live_are_not_lost(void)
{
    const char *argv[] = {g_launch, "--on-death=replace",
                          "-n",     "33",
                          "--",     "/bin/sh",
                          "-c",     "[ $OMPI_COMM_WORLD_RANK != 0 ] || exit 3; sleep 600",
                          NULL};

    bt_command_start(&g_command, argv, NULL);
    EXPECT(bt_command_wait_for(&g_command, "1 of 33 ranks have failed", START_S));
    EXPECT(!bt_command_wait_for(&g_command, "33 of 33 ranks have failed", 5));
    kill(g_command.pid, SIGTERM);
    EXPECT(bt_command_finish(&g_command, END_S) != -1);
}

/* Over several hosts the rank's guard says it in its place; here the one host is this machine. */
static void launch_rank_of_a_host_whose_parent_is_killed_is_told(void)
{
    const char *argv[] = {g_launch,
                          "--on-death=replace",
                          "--host=localhost:2",
                          "-n",
                          "2",
                          "--",
                          "/bin/sh",
                          "-c",
                          SAY "[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -9 $PPID; sleep 600",
                          NULL};

    bt_command_start(&g_command, argv, NULL);
    EXPECT(bt_command_wait_for(&g_command, "1 of 2 ranks have failed", START_S));
    kill(g_command.pid, SIGTERM);
    EXPECT(bt_command_finish(&g_command, END_S) != -1);
    expect_removed("shm ", &g_command);
    for (int i = 0; i < 2; i++) {
        EXPECT(number_after(" pid ", i) > 1);
        EXPECT(bt_process_gone((pid_t)number_after(" pid ", i), END_S));
    }
}

/* A rank that cannot even start its worker: the other would wait for it inside MPI_Init. */
static void launch_rank_of_a_host_that_cannot_be_bound_is_told(void)
{
    char        path[] = "/tmp/baton-map-XXXXXX";
    int         fd     = mkstemp(path);
    const char *argv[] = {g_launch, "--on-death=replace", "--rank-map", path, "--", "/bin/sh",
                          "-c",     SAY "sleep 600",      NULL};

    EXPECT(fd >= 0 &&
           dprintf(fd, "prefill localhost\ndecode localhost cores=%d\n", CPU_SETSIZE - 1) > 0);
    close(fd);
    bt_command_start(&g_command, argv, NULL);
    EXPECT(bt_command_wait_for(&g_command, "1 of 2 ranks have failed", START_S));
    EXPECT(bt_command_wait_for(&g_command, "rank 0 of 2", START_S));
    kill(g_command.pid, SIGTERM);
    EXPECT(bt_command_finish(&g_command, END_S) != -1);
    EXPECT_HAS(g_command.output, "rank 1 cannot be bound to cores");
    EXPECT(number_after(" pid ", 0) > 1);
    EXPECT(bt_process_gone((pid_t)number_after(" pid ", 0), END_S));
    unlink(path);
}

/* While mpirun ends the other ranks by itself, Open MPI would crash when told to stop. */
static void launch_sigterm_after_a_death_ends_in_order(void)
{
    start(SAY "trap 'echo told' TERM; echo up $OMPI_COMM_WORLD_RANK; while :; do sleep 0.1; done");
    signal_number_after(" pid ", 1, SIGKILL);
    EXPECT(bt_command_wait_for(&g_command, "was ended by signal 9", END_S));
    /* By mpirun, which gives the other a second; with 5 it may end before that is heard. */
    bt_command_wait_for(&g_command, "told", END_S);
    kill(g_command.pid, SIGTERM);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    EXPECT(strstr(g_command.output, "abort is already in progress") == NULL);
    expect_nothing_left();
}

static void launch_user_signals_reach_every_rank(void)
{
    start("trap 'echo drained $OMPI_COMM_WORLD_RANK' USR1; trap 'exit 0' USR2; echo up "
          "$OMPI_COMM_WORLD_RANK; while :; do sleep 0.1; done");
    kill(g_command.pid, SIGUSR1);
    EXPECT(bt_command_wait_for(&g_command, "drained 0", END_S));
    EXPECT(bt_command_wait_for(&g_command, "drained 1", END_S));
    kill(g_command.pid, SIGUSR2);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 0);
}

/* Under nohup. */
static void launch_hangup_that_is_ignored_ends_nothing(void)
{
    const char *argv[] = {
        "/bin/sh", "-c",
        "trap '' HUP; exec \"$0\" -n 1 -- /bin/sh -c \"trap 'echo drained; exit 0' "
        "USR1; echo up 0; while :; do sleep 0.1; done\"",
        g_launch, NULL};

    bt_command_start(&g_command, argv, NULL);
    EXPECT(bt_command_wait_for(&g_command, "up 0", START_S));
    kill(g_command.pid, SIGHUP);
    kill(g_command.pid, SIGUSR1);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 0);
    EXPECT_HAS(g_command.output, "drained");
}

/* The same of a verb that starts ranks itself. */
static void logits_hangup_that_is_ignored_ends_nothing(void)
{
    int32_t         ids[] = {1, 2, 3, 4}, prompt = 2;
    const bt_tensor tensors[] = {
        {"a.ids",    BT_ST_I32, 1, {4}, ids,     sizeof(ids),    NULL},
        {"a.prompt", BT_ST_I32, 1, {1}, &prompt, sizeof(prompt), NULL},
    };
    char        folder[] = "/tmp/baton-test-XXXXXX", program[512], in[64], out[64];
    const char *argv[]   = {"/bin/sh", "-c",      "trap '' HUP; exec \"$0\" \"$@\"",
                            program,   "--model", BT_SOURCE_DIR "/models/demo",
                            "--ids",   in,        "--out",
                            out,       NULL};

    EXPECT(mkdtemp(folder) != NULL);
    snprintf(program, sizeof(program), "%.*s/baton-logits",
             (int)(strrchr(g_launch, '/') - g_launch), g_launch);
    snprintf(in, sizeof(in), "%s/in", folder);
    snprintf(out, sizeof(out), "%s/out", folder);
    EXPECT_EQ(bt_safetensors_write(in, 2, tensors), BT_OK);
    bt_command_start(&g_command, argv, NULL);
    EXPECT(bt_command_has_child(&g_command, START_S)); /* from then on it would hear it */
    kill(g_command.pid, SIGHUP);
    EXPECT_EQ(bt_command_finish(&g_command, 2 * END_S), 0);
    EXPECT(unlink(out) == 0 && unlink(in) == 0 && rmdir(folder) == 0);
}

/* Those of a shell that has exec'ed the launcher, and theirs, which come to it as the job's do. */
static void launch_children_from_before_live_on(void)
{
    const char *argv[] = {
        "/bin/sh",
        "-c",
        "(trap 'sleep 600 & echo orphan $!; exit' USR1; for i in $(seq 600); do sleep 0.1; done) & "
        "echo helper $!; sleep 600 & echo other $!; exec \"$0\" -n 2 -- /bin/sh -c \"$1\"",
        g_launch,
        SAY "sleep 600 & echo stray $!; echo up $OMPI_COMM_WORLD_RANK; exec sleep 600",
        NULL};
    pid_t left[2], helper;

    bt_command_start(&g_command, argv, NULL);
    EXPECT(bt_command_wait_for(&g_command, "up 0", START_S));
    EXPECT(bt_command_wait_for(&g_command, "up 1", START_S));
    helper = (pid_t)number_after("helper ", 0);
    if (helper > 0) kill(helper, SIGUSR1);
    EXPECT(bt_command_wait_for(&g_command, "orphan ", START_S));
    EXPECT(helper > 0 && bt_process_gone(helper, END_S));
    signal_mpirun(SIGKILL);
    EXPECT_EQ(bt_command_finish(&g_command, END_S), 128 + 9);
    expect_nothing_left();
    for (int i = 0; i < 2; i++)
        EXPECT(bt_process_gone((pid_t)number_after("stray ", i), END_S));
    left[0] = (pid_t)number_after("other ", 0);
    left[1] = (pid_t)number_after("orphan ", 0);
    for (int i = 0; i < 2; i++) {
        EXPECT(left[i] > 0 && !bt_process_gone(left[i], 0));
        if (left[i] > 0) kill(left[i], SIGKILL);
    }
}

/* Ranks in the order of their roles, each on its own cores and device. */
static void launch_rank_map_binds_each_rank(void)
{
    char        path[] = "/tmp/baton-map-XXXXXX";
    int         fd     = mkstemp(path);
    const char *argv[] = {
        g_launch,
        "--rank-map",
        path,
        "--",
        "/bin/sh",
        "-c",
        "echo rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE cores $(taskset -cp $$ | "
        "sed 's/.*: //') device ${CUDA_VISIBLE_DEVICES-none}; echo shm "
        "$OMPI_MCA_btl_vader_backing_directory",
        NULL};
    cpu_set_t own;

    EXPECT(fd >= 0 && dprintf(fd, "decode localhost cores=0 device=3\n"
                                  "prefill 127.0.0.1 ranks=2 device=1,0\n") > 0);
    close(fd);
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 0);
    EXPECT_HAS(g_command.output, "rank 2 of 3 cores 0 device 3");
    EXPECT_HAS(g_command.output, "rank 0 of 3 cores ");
    EXPECT_EQ(sched_getaffinity(0, sizeof(own), &own), 0);
    EXPECT(strstr(g_command.output, "rank 0 of 3 cores 0 device") == NULL || CPU_COUNT(&own) == 1);
    EXPECT_HAS(g_command.output, " device 1\n");
    EXPECT_HAS(g_command.output, " device 0\n");
    expect_removed("shm ", &g_command);
    fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    EXPECT(fd >= 0 && dprintf(fd, "both localhost device=5\n") > 0); /* no cores */
    close(fd);
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 0);
    EXPECT_HAS(g_command.output, " device 5\n");
    argv[3] = "--ranks=2";
    argv[4] = "/bin/true";
    argv[5] = NULL;
    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 64);
    EXPECT_HAS(g_command.output, "it goes without --ranks");
    unlink(path);
}

/* In the words of 5 or of 4: the ranks have what the user says, and nothing else. */
static void launch_users_shared_memory_reaches_ranks_of_hosts(void)
{
    const char *own[]  = {"OMPI_MCA_btl_sm_backing_directory=/user", NULL};
    const char *argv[] = {g_launch,
                          "-n",
                          "1",
                          "--host",
                          "localhost",
                          "--",
                          "/bin/sh",
                          "-c",
                          "echo sm $OMPI_MCA_btl_sm_backing_directory "
                          "vader ${OMPI_MCA_btl_vader_backing_directory-unset} .",
                          NULL};

    EXPECT_EQ(bt_command_run(&g_command, argv, own, END_S), 0);
    EXPECT_HAS(g_command.output, "sm /user vader unset .");
}

/* Open MPI would start nothing with these and a place for all sessions. */
static void launch_users_places_for_sessions_are_no_error(void)
{
    const char *const own[] = {"OMPI_MCA_orte_local_tmpdir_base=/tmp",
                               "OMPI_MCA_orte_remote_tmpdir_base=/tmp", NULL};

    EXPECT_EQ(launch("true", own), 0);
}

/* A script in mpirun's place that waits for it, as some clusters have: what is meant for mpirun
 * reaches it, and its child is not taken for the only rank. */
static void launch_script_that_waits_for_mpirun_is_no_matter(void)
{
    const char *argv[] = {g_launch,
                          "--on-death=replace",
                          "-n3",
                          "--",
                          "/bin/sh",
                          "-c",
                          "trap 'echo drained $OMPI_COMM_WORLD_RANK; exit 0' USR1; echo up "
                          "$OMPI_COMM_WORLD_RANK; while :; do sleep 0.1; done",
                          NULL};
    own_mpirun  mpirun;
    const char *own = getenv("BATON_MPIRUN");
    int         code;

    make_mpirun(&mpirun);
    write_mpirun(&mpirun, "%s \"$@\"\nexit $?\n", own != NULL ? own : "mpirun");
    for (int sig = SIGUSR1; sig != 0; sig = sig == SIGUSR1 ? SIGTERM : 0) {
        bt_command_start(&g_command, argv, mpirun.environment);
        EXPECT(bt_command_wait_for(&g_command, "up 2", START_S));
        if (sig == SIGUSR1)
            EXPECT(!bt_command_wait_for(&g_command, "have failed", 4)); /* more than LOST_NS */
        kill(g_command.pid, sig);
        code = bt_command_finish(&g_command, END_S);
        EXPECT(sig == SIGUSR1 ? code == 0 : code == 128 + SIGTERM || code == 1);
    }
    remove_mpirun(&mpirun);
}

/* However long the others take. */
static void launch_ranks_that_work_on_are_waited_for(void)
{
    const char *argv[] = {g_launch, "-n2",
                          "--",     "/bin/sh",
                          "-c",     "[ $OMPI_COMM_WORLD_RANK = 0 ] || { sleep 6; echo worked; }",
                          NULL};

    EXPECT_EQ(bt_command_run(&g_command, argv, NULL, END_S), 0);
    EXPECT_HAS(g_command.output, "worked");
}

static const bt_test TESTS[] = {
    BT_TEST(launch_ranks_end_well_returns_0),
    BT_TEST(launch_exit_code_of_a_rank_is_returned),
    BT_TEST(launch_signal_of_a_rank_is_named),
    BT_TEST(launch_that_survives_deaths_tells_when_none_was_survived),
    BT_TEST(launch_program_that_is_missing_is_named),
    BT_TEST(launch_sigterm_ends_ranks_that_ignore_it),
    BT_TEST(launch_sigterm_at_any_moment_of_the_start),
    BT_TEST(launch_killed_takes_its_ranks_along),
    BT_TEST(launch_over_hosts_killed_leaves_nothing),
    BT_TEST(launch_clears_what_a_killed_guard_left),
    BT_TEST(launch_spares_directories_of_other_users),
    BT_TEST(launch_rank_that_ends_late_makes_no_file),
    BT_TEST(launch_mpirun_killed_ends_everything),
    BT_TEST(launch_mpirun_that_hangs_after_a_death_is_ended),
    BT_TEST(launch_rank_whose_parent_is_killed_is_told),
    BT_TEST(launch_many_ranks_that_live_are_not_lost),
    BT_TEST(launch_rank_of_a_host_whose_parent_is_killed_is_told),
    BT_TEST(launch_rank_of_a_host_that_cannot_be_bound_is_told),
    BT_TEST(launch_sigterm_after_a_death_ends_in_order),
    BT_TEST(launch_user_signals_reach_every_rank),
    BT_TEST(launch_hangup_that_is_ignored_ends_nothing),
    BT_TEST(logits_hangup_that_is_ignored_ends_nothing),
    BT_TEST(launch_children_from_before_live_on),
    BT_TEST(launch_rank_map_binds_each_rank),
    BT_TEST(launch_users_shared_memory_reaches_ranks_of_hosts),
    BT_TEST(launch_users_places_for_sessions_are_no_error),
    BT_TEST(launch_script_that_waits_for_mpirun_is_no_matter),
    BT_TEST(launch_ranks_that_work_on_are_waited_for),
};

/* usage: test_launch BATON_LAUNCH [test] */
int main(int argc, char **argv)
{
    if (!launch_tests_begin(argc, argv)) return EXIT_FAILURE;
    return BT_RUN_TESTS(TESTS, argc > 2 ? argv[2] : NULL);
}
