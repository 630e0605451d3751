/* The parts of the verbs that can be looked at without processes: lines of a pipe, what is
 * remembered of a rank's words, what waits to be read, clients, and the end of all children. */
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/account.h"
#include "cli/child.h"
#include "cli/client.h"
#include "cli/echo.h"
#include "cli/outlet.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/parse.h"
#include "tests/support/own_stderr.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

/* ---- child, echo */

static char g_lines[8][5000];
static int  g_n_lines;

static void keep_line(void *ctx, const char *line)
{
    (void)ctx;
    if (g_n_lines < 8) snprintf(g_lines[g_n_lines], sizeof(g_lines[0]), "%s", line);
    g_n_lines++;
}

static void lines_come_whole_whatever_the_reads(void)
{
    bt_lines lines = {.fd = -1};
    int      fds[2];
    char     text[9000];

    EXPECT(pipe2(fds, O_CLOEXEC) == 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    lines.fd  = fds[0];
    g_n_lines = 0;
    EXPECT(write(fds[1], "one\ntw", 6) == 6);
    bt_lines_read(&lines, keep_line, NULL);
    EXPECT_EQ(g_n_lines, 1);
    EXPECT(write(fds[1], "o\n\nlast", 7) == 7);
    bt_lines_read(&lines, keep_line, NULL);
    EXPECT_EQ(g_n_lines, 3);
    EXPECT(strcmp(g_lines[0], "one") == 0 && strcmp(g_lines[1], "two") == 0 && g_lines[2][0] == 0);
    close(fds[1]);
    bt_lines_read(&lines, keep_line, NULL); /* the end gives up what has no newline */
    EXPECT_EQ(g_n_lines, 4);
    EXPECT(strcmp(g_lines[3], "last") == 0 && lines.fd == -1);

    EXPECT(pipe2(fds, O_CLOEXEC) == 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    lines     = (bt_lines){.fd = fds[0]};
    g_n_lines = 0;
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\n';
    EXPECT(write(fds[1], text, sizeof(text)) == sizeof(text));
    close(fds[1]);
    bt_lines_read(&lines, keep_line, NULL); /* too long: in pieces, nothing lost */
    EXPECT_EQ(g_n_lines, 3);
    EXPECT_EQ(strlen(g_lines[0]) + strlen(g_lines[1]) + strlen(g_lines[2]), sizeof(text) - 1);
}

/* One who writes faster than we read. */
static void write_more(void *fd, const char *line)
{
    (void)line;
    g_n_lines++;
    while (write(*(int *)fd, "x\n", 2) == 2) {
    }
}

static void lines_without_end_leave_others_a_turn(void)
{
    bt_lines lines = {.fd = -1};
    int      fds[2];

    EXPECT(pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0);
    lines.fd  = fds[0];
    g_n_lines = 0;
    write_more(&fds[1], "");
    alarm(60); /* else it goes on for ever */
    bt_lines_read(&lines, write_more, &fds[1]);
    alarm(0);
    EXPECT(g_n_lines > 1 && lines.fd == fds[0]);
    close(fds[0]);
    close(fds[1]);
}

static void echo_keeps_the_first_error_of_a_rank(void)
{
    bt_echo echo;

    bt_echo_init(&echo, BT_LOG_ERROR);
    bt_echo_line(&echo, "2026-11-23 11:02:07.153 I rank=1 - worker/main.c:88 ready");
    bt_echo_line(&echo, "2026-11-23 11:02:07.153 E coordinator - a/b.c:1 not of a rank");
    EXPECT(echo.first_error[0] == '\0');
    bt_echo_line(&echo,
                 "2026-11-23 11:02:09.001 E rank=2 req=17 worker/x.c:140 out of memory: 3 bytes");
    bt_echo_line(&echo, "2026-11-23 11:02:09.002 E rank=1 - worker/x.c:140 a peer left");
    EXPECT(strcmp(echo.first_error, "rank 2: out of memory: 3 bytes") == 0);
    bt_echo_init(&echo, BT_LOG_ERROR); /* of one that MPI has not numbered yet */
    bt_echo_line(&echo, "2026-11-23 11:02:07.153 E worker - parallel/x.c:1 MPI did not start");
    bt_echo_line(&echo, "2026-11-23 11:02:09.002 E rank=1 - worker/x.c:140 a peer left");
    EXPECT(strcmp(echo.first_error, "MPI did not start") == 0);
}

static void echo_knows_the_lines_that_the_log_writes(void)
{
    FILE   *file      = tmpfile();
    int     old       = dup(STDERR_FILENO);
    time_t  now       = time(NULL), after;
    char    line[200] = "", day[16], day_after[16];
    bt_echo echo;

    NEED(file != NULL && old >= 0);
    dup2(fileno(file), STDERR_FILENO);
    bt_log_init("rank=2", BT_LOG_INFO);
    bt_log_write(BT_LOG_ERROR, "worker/x.c", 140, "out of memory: %d bytes", 3);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(file);
    NEED(fgets(line, sizeof(line), file) != NULL);
    fclose(file);
    after = time(NULL);
    strftime(day, sizeof(day), "%Y-%m-%d ", localtime(&now));
    strftime(day_after, sizeof(day_after), "%Y-%m-%d ", localtime(&after));
    EXPECT(strncmp(line, day, strlen(day)) == 0 ||
           strncmp(line, day_after, strlen(day_after)) == 0);
    line[strcspn(line, "\n")] = '\0';
    bt_echo_init(&echo, BT_LOG_ERROR);
    bt_echo_line(&echo, line);
    EXPECT(strcmp(echo.first_error, "rank 2: out of memory: 3 bytes") == 0);
}

/* What an echo that shows all but debug lines passes on of these. */
static const char *passed_on(const char *const *lines, size_t n)
{
    own_stderr own = begin_stderr();
    bt_echo    echo;

    bt_echo_init(&echo, BT_LOG_INFO);
    for (size_t i = 0; i < n; i++)
        bt_echo_line(&echo, lines[i]);
    return end_stderr(own);
}

static void echo_passes_on_what_mpi_says_but_for_noise(void)
{
    static const char *const LINES[] = {
        ("[n1:17483] PMIX ERROR: BAD-PARAM in file ../../../src/event/pmix_event_notification.c at "
         "line 1033"),
        "[n1:17483] PMIX ERROR: NO-PERMISSIONS in file ../../../src/mca/ptl/ptl.c at line 3",
        "2026-11-23 11:02:07.153 I rank=1 - worker/main.c:88 ready",
        "2026-11-23 11:02:07.153 D rank=1 - worker/main.c:88 a step"};

    EXPECT(strcmp(passed_on(LINES, 4),
                  "[n1:17483] PMIX ERROR: NO-PERMISSIONS in file ../../../src/mca/ptl/ptl.c at "
                  "line 3\n2026-11-23 11:02:07.153 I rank=1 - worker/main.c:88 ready\n") == 0);
}

static void echo_bar_stays_in_its_row(void)
{
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    int     other = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), old = dup(STDERR_FILENO), fd;
    bt_echo echo;
    char    text[200];
    ssize_t n;

    NEED(other >= 0 && old >= 0 && grantpt(other) == 0 && unlockpt(other) == 0);
    fd = open(ptsname(other), O_RDWR | O_NOCTTY | O_CLOEXEC);
    NEED(fd >= 0 && ioctl(fd, TIOCSWINSZ, &size) == 0);
    setenv("TERM", "xterm", 1);
    dup2(fd, STDERR_FILENO);
    bt_echo_init(&echo, BT_LOG_ERROR);
    bt_echo_bar(&echo, "%s%s", "123456789 123456789 ", "123456789 123456789 123456789");
    dup2(old, STDERR_FILENO);
    n = read(other, text, sizeof(text) - 1);
    NEED(n > 0);
    text[n] = '\0';
    EXPECT(strcmp(text, "\r\033[K123456789 123456789 123456789 123456789") == 0);
    close(old);
    close(fd);
    close(other);
}

static void account_is_read_from_a_ranks_line(void)
{
    bt_account accounts[3] = {0};

    bt_account_read(
        "2026-11-23 11:02:09.001 I rank=1 - worker/step.c:302 account: 25 steps; "
        "computed 12 prompt tokens and 24 generated tokens; handed over 3 pages, 47040 bytes",
        3, accounts);
    EXPECT(accounts[1].known && !accounts[0].known && !accounts[2].known);
    EXPECT(accounts[1].steps == 25 && accounts[1].prompt_tokens == 12 &&
           accounts[1].generated_tokens == 24 && accounts[1].pages == 3 &&
           accounts[1].bytes == 47040 && accounts[1].drafted == 0);
    bt_account_read(
        "2026-11-23 11:02:09.001 I rank=0 - worker/step.c:302 account: 7 steps; computed 0 "
        "prompt tokens and 14 generated tokens; handed over 0 pages, 0 bytes; launched 0 "
        "steps ahead; took memory of the device 0 times since ready; of 7 tokens of drafts "
        "5 were right",
        3, accounts);
    EXPECT(accounts[0].drafted == 7 && accounts[0].right == 5);
    accounts[0] = (bt_account){0};
    bt_account_read(
        "2026-11-23 11:02:09.001 I rank=3 - worker/step.c:302 account: 25 steps; "
        "computed 12 prompt tokens and 24 generated tokens; handed over 3 pages, 47040 bytes",
        3, accounts); /* there is no rank 3 */
    bt_account_read("2026-11-23 11:02:09.001 I rank=2 - worker/step.c:302 account: many steps", 3,
                    accounts);
    EXPECT(!accounts[2].known);
}

/* What bt_account_print() writes to stderr. */
static const char *printed(const bt_cell_options *cell, const bt_account *accounts)
{
    own_stderr own = begin_stderr();

    bt_account_print(cell, accounts);
    return end_stderr(own);
}

static void account_of_an_idle_rank_claims_no_work(void)
{
    const bt_cell_options one = {.n_both = 1}, two = {.n_both = 2};
    bt_account            accounts[2] = {
                   {.known = true},
                   { .known = true,   .steps = 3}
    };

    EXPECT_HAS(printed(&one, accounts), "rank 0, both roles: 0 steps, no tokens\n");
    EXPECT_HAS(printed(&two, accounts), "rank 1, both roles: 3 steps, no tokens\n");
    accounts[0] = (bt_account){.known = true, .steps = 3, .prompt_tokens = 2};
    EXPECT_HAS(printed(&two, accounts), "3 steps, its experts for the others' tokens\n");
    accounts[0] =
        (bt_account){.known = true, .steps = 7, .generated_tokens = 14, .drafted = 7, .right = 5};
    EXPECT_HAS(printed(&one, accounts), "14 generated (of 7 that were drafted 5 were right)\n");
}

static void account_names_a_spare(void)
{
    const bt_cell_options split       = {.n_prefill = 1, .n_decode = 1, .n_spares = 1};
    const bt_cell_options both        = {.n_both = 2, .n_spares = 1};
    bt_account            accounts[3] = {{.known = true}, {.known = true}, {.known = true}};

    EXPECT_HAS(printed(&split, accounts), "rank 1, decode: 0 steps");
    EXPECT_HAS(printed(&split, accounts), "rank 2, spare: 0 steps");
    EXPECT_HAS(printed(&both, accounts), "rank 1, both roles: 0 steps");
    EXPECT_HAS(printed(&both, accounts), "rank 2, spare: 0 steps");
}

/* ---- outlet */

static size_t fill(int fd)
{
    size_t n = 0;

    while (write(fd, "x", 1) == 1)
        n++;
    return n;
}

/* A socket and a pipe, with ends that block for others; the text is longer than one write. */
static void outlet_waits_in_memory(void)
{
    static char  text[9000], got[300000];
    sighandler_t pipe_ends = signal(SIGPIPE, SIG_IGN);

    memset(text, 'y', sizeof(text) - 1);
    for (int i = 0; i < 2; i++) {
        bt_outlet out;
        size_t    n, n_got = 0;
        ssize_t   some;
        int       fds[2];

        NEED(i == 0 ? pipe(fds) == 0 : socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
        fcntl(fds[0], F_SETFL, O_NONBLOCK);
        fcntl(fds[1], F_SETFL, O_WRONLY | O_NONBLOCK);
        n = fill(fds[1]);
        fcntl(fds[1], F_SETFL, O_WRONLY);
        bt_outlet_open(&out, fds[1]);
        bt_outlet_say(&out, "%s", text);
        bt_alloc_fail_at(0);
        bt_outlet_say(&out, "there is no memory for that");
        bt_alloc_fail_at(-1);
        bt_outlet_say(&out, "%d", 17);
        bt_outlet_push(&out);
        while (n_got < sizeof(got) - 1 &&
               (some = read(fds[0], got + n_got, sizeof(got) - 1 - n_got)) > 0) {
            n_got += (size_t)some;
            bt_outlet_push(&out);
        }
        got[n_got] = '\0';
        EXPECT_EQ(n_got, n + sizeof(text) - 1 + 2);
        EXPECT(n_got > 9000 && got[n - 1] == 'x' && strncmp(got + n, text, 8999) == 0);
        EXPECT(strcmp(got + n + 8999, "17") == 0);
        EXPECT((fcntl(fds[1], F_GETFL) & O_NONBLOCK) == 0);
        close(fds[0]);
        bt_outlet_say(&out, "to nobody");
        EXPECT_EQ(out.n_rest, 0);
        bt_outlet_close(&out);
        EXPECT(close(fds[1]) == 0);
    }
    signal(SIGPIPE, pipe_ends);
}

static void outlet_tells_what_is_lost_on_a_full_disk(void)
{
    int         full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    own_stderr  own  = begin_stderr();
    const char *said;
    bt_outlet   out;

    bt_outlet_open(&out, full);
    bt_outlet_say(&out, "serving at %d\n", 17);
    EXPECT_EQ(out.n_rest, 0);
    bt_outlet_close(&out);
    said = end_stderr(own);
    EXPECT_HAS(said, "No space left on device: not written: serving at 17\n");
    close(full);
}

/* ---- client */

static const bt_rpc_client_tls PLAIN;

static void client_open_unwinds_at_every_allocation(void)
{
    bt_client *client = NULL;

    EXPECT(BT_SWEEP(bt_client_open("127.0.0.1:1", &PLAIN, BT_NS_PER_S, NULL, &client),
                    bt_client_close(client)) >= 1);
}

static void client_to_nobody_is_refused(void)
{
    bt_client      *client = NULL;
    bt_client_model model;

    EXPECT_EQ(bt_client_open("127.0.0.1:1", &PLAIN, 5 * BT_NS_PER_S, NULL, &client), BT_OK);
    EXPECT_EQ(bt_client_model_info(client, &model), BT_ERR_PEER);
    EXPECT_HAS(bt_error_text(), "cannot connect to 127.0.0.1:1 ");
    bt_client_close(client);
}

/* The options take hosts of that length. */
static void client_address_may_be_as_long_as_any(void)
{
    bt_client *client = NULL;
    char       host[BT_HOST_MAX + 1], address[BT_ADDRESS_BYTES];

    memset(host, 'x', sizeof(host) - 1);
    host[sizeof(host) - 1] = '\0';
    bt_join_address(host, 65535, address);
    EXPECT_EQ(bt_client_open(address, &PLAIN, 5 * BT_NS_PER_S, NULL, &client), BT_OK);
    bt_client_close(client);
}

/* ---- the end of all children */

/* A launcher that must be killed, and its guard, which takes a while to remove the folder and says
 * on ready_fd that it stands. */
static BT_NORETURN void be_launcher(const char *folder, int ready_fd)
{
    int alive[2];

    if (pipe(alive) == 0 && fork() == 0) {
        char byte;

        close(alive[1]);
        prctl(PR_SET_NAME, "baton-guard");
        if (write(ready_fd, "g", 1) != 1 || read(alive[0], &byte, 1) < 0) _exit(1);
        bt_sleep_ns(300 * BT_NS_PER_MS);
        rmdir(folder);
        _exit(0);
    }
    close(alive[0]);
    for (;;)
        pause();
}

static void guard_of_a_killed_launcher_may_finish(void)
{
    char  folder[] = "/tmp/baton-test-XXXXXX";
    char  byte;
    int   ready[2];
    pid_t child;

    EXPECT(mkdtemp(folder) != NULL && pipe(ready) == 0);
    child = fork();
    if (child == 0) { /* of which all children are ended */
        bt_child_adopt();
        if (fork() == 0) be_launcher(folder, ready[1]);
        if (read(ready[0], &byte, 1) != 1) _exit(1);
        bt_child_end_all(200 * BT_NS_PER_MS);
        _exit(0);
    }
    EXPECT(waitpid(child, NULL, 0) == child);
    close(ready[0]);
    close(ready[1]);
    EXPECT(access(folder, F_OK) != 0);
    rmdir(folder);
}

/* What waits, most often with its machine, takes nothing of its children's time. */
static void children_have_their_time_after_a_standstill(void)
{
    int   waits[2], told[2], left[2];
    char  byte;
    pid_t verb;

    EXPECT(pipe(waits) == 0 && pipe(told) == 0 && pipe(left) == 0);
    verb = fork();
    if (verb == 0) {
        bt_child_adopt();
        if (fork() == 0) _exit(read(told[0], &byte, 1) != 1 || write(left[1], "l", 1) != 1);
        if (write(waits[1], "w", 1) != 1) _exit(1);
        bt_child_end_all(2000 * BT_NS_PER_MS);
        _exit(0);
    }
    EXPECT(read(waits[0], &byte, 1) == 1);
    bt_sleep_ns(100 * BT_NS_PER_MS); /* it looks at the clock */
    kill(verb, SIGSTOP);
    bt_sleep_ns(2200 * BT_NS_PER_MS);
    kill(verb, SIGCONT);
    bt_sleep_ns(100 * BT_NS_PER_MS);
    EXPECT(write(told[1], "t", 1) == 1);
    EXPECT(waitpid(verb, NULL, 0) == verb);
    close(left[1]);
    EXPECT(read(left[0], &byte, 1) == 1); /* it was not killed */
    for (int i = 0; i < 2; i++)
        close(waits[i]), close(told[i]);
    close(left[0]);
}

static BT_NORETURN void be_idle(void)
{
    for (;;)
        pause();
}

/* Writes the pid of a child when it is told to, and leaves it behind. */
static BT_NORETURN void be_parent(int told_fd, int pid_fd)
{
    char  byte;
    pid_t child;

    if (read(told_fd, &byte, 1) != 1) _exit(1);
    child = fork();
    if (child == 0) be_idle();
    _exit(write(pid_fd, &child, sizeof(child)) != sizeof(child));
}

/* As `helper & exec baton run` has it: 0 when ours alone has ended. */
static int end_beside_others(int told[2], int pid_fd)
{
    char *const         argv[] = {(char *)"/bin/sleep", (char *)"600", NULL};
    const bt_child_spec spec   = {.name = "ours", .argv = (char **)argv};
    bt_child            ours;
    pid_t               helper = fork(), parent;

    if (helper == 0) be_idle();
    parent = fork();
    if (parent == 0) be_parent(told[0], pid_fd);
    bt_child_adopt();
    if (bt_child_spawn(&spec, &ours) != BT_OK || write(told[1], "t", 1) != 1 ||
        waitpid(parent, NULL, 0) != parent)
        return 1;
    bt_child_end_all(100 * BT_NS_PER_MS);
    if (waitpid(helper, NULL, WNOHANG) != 0) return 2;
    kill(helper, SIGKILL);
    return waitpid(ours.pid, NULL, WNOHANG) < 0 ? 0 : 3;
}

/* What may have been the cause is for signals that are not our own. */
static void child_that_was_killed_tells_of_memory_unless_we_did_it(void)
{
    static const char *const ENDINGS[] = {
        "was ended by signal 9 (Killed); if nobody did that, memory had run out: see dmesg",
        "was ended by signal 9 (Killed)"};
    char *const         argv[] = {(char *)"/bin/sleep", (char *)"600", NULL};
    const bt_child_spec spec   = {.name = "sleep", .argv = (char **)argv};

    for (int ours = 0; ours < 2; ours++) {
        bt_child child, *children[] = {&child};
        char     text[128];

        NEED(bt_child_spawn(&spec, &child) == BT_OK);
        if (ours)
            bt_child_kill(&child, SIGKILL);
        else
            kill(child.pid, SIGKILL);
        while (!bt_child_collect(children, 1))
            bt_sleep_ns(BT_NS_PER_MS);
        EXPECT(strcmp(bt_child_ending(&child, text, sizeof(text)), ENDINGS[ours]) == 0);
        bt_child_close(&child);
    }
}

static void children_from_before_live_on(void)
{
    int   told[2], pids[2], status = -1;
    pid_t child, left = -1;

    EXPECT(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && pipe(told) == 0 && pipe(pids) == 0);
    child = fork();
    if (child == 0) _exit(end_beside_others(told, pids[1]));
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    EXPECT(read(pids[0], &left, sizeof(left)) == sizeof(left));
    EXPECT_EQ(waitpid(left, NULL, WNOHANG), 0); /* it lives, and has come to us */
    if (left > 0) {
        kill(left, SIGKILL);
        waitpid(left, NULL, 0);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    for (int i = 0; i < 2; i++) {
        close(told[i]);
        close(pids[i]);
    }
}

static const bt_test TESTS[] = {
    BT_TEST(guard_of_a_killed_launcher_may_finish),
    BT_TEST(children_have_their_time_after_a_standstill),
    BT_TEST(children_from_before_live_on),
    BT_TEST(child_that_was_killed_tells_of_memory_unless_we_did_it),
    BT_TEST(lines_come_whole_whatever_the_reads),
    BT_TEST(lines_without_end_leave_others_a_turn),
    BT_TEST(echo_keeps_the_first_error_of_a_rank),
    BT_TEST(echo_knows_the_lines_that_the_log_writes),
    BT_TEST(echo_passes_on_what_mpi_says_but_for_noise),
    BT_TEST(echo_bar_stays_in_its_row),
    BT_TEST(account_is_read_from_a_ranks_line),
    BT_TEST(account_of_an_idle_rank_claims_no_work),
    BT_TEST(account_names_a_spare),
    BT_TEST(outlet_waits_in_memory),
    BT_TEST(outlet_tells_what_is_lost_on_a_full_disk),
    BT_TEST(client_open_unwinds_at_every_allocation),
    BT_TEST(client_to_nobody_is_refused),
    BT_TEST(client_address_may_be_as_long_as_any),
};

int main(int argc, char **argv) { return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL); }
