/* baton, baton-run and the clients: a real coordinator, and ranks that compute nothing
 * (fake_worker.c), so that every stage of a cell's life can be made to fail. */
#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "core/defaults.h"
#include "tests/cli/fake_cell.h"

static void stop(int sig)
{
    kill(g_run.pid, sig);
    EXPECT_EQ(bt_command_finish(&g_run, END_S), 0);
}

static void expect_over(void) { EXPECT_EQ(bt_command_finish(&g_run, END_S), 1); }

static void run_serves_until_a_signal(void)
{
    static const int SIGNALS[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

    for (size_t i = 0; i < 4; i++) {
        start_run("", TWO_RANKS);
        if (serving()) stop(SIGNALS[i]);
        EXPECT(strstr(g_run.output, "had not left in time") == NULL);
    }
}

static void run_generates_for_a_client(void)
{
    const char *handed_on;

    setenv("BATON_PREFILL", "3", 1);
    start_run("", ARGS("--both", "1", "--busy-poll", "--sglang", "--unread-s", "5"));
    unsetenv("BATON_PREFILL");
    if (!serving()) return;
    EXPECT_HAS(g_run.output, "prefill=3 (environment, gives way)");
    handed_on = strstr(g_run.output, "coordinator - ");
    EXPECT_HAS(handed_on, "busy-poll=true (flag)");
    EXPECT_HAS(handed_on, "sglang=true (flag)");
    EXPECT_HAS(handed_on, "unread-s=5 (flag)");
    EXPECT_EQ(client("baton-generate",
                     ARGS("--prompt", "To be", "--max-tokens", "5", "--json", "--logprobs")),
              0);
    EXPECT_HAS(g_client.output, "\"ids\":[300,301,302,303,304]");
    EXPECT_HAS(g_client.output, "\"finish_reason\":\"length\"");
    EXPECT_HAS(g_client.output, "\"logprobs\":[-0.5,-0.5,-0.5,-0.5,-0.5]");
    EXPECT_HAS(g_client.output, "\"completion_tokens\":5");
    EXPECT_HAS(g_client.output, "5 generated (length)");
    EXPECT_EQ(client("baton-generate",
                     ARGS("--prompt", "To be", "--no-stream", "--max-tokens", "3", "--logprobs")),
              0);
    EXPECT_HAS(g_client.output, " -0.500000     302");
    EXPECT_EQ(
        client("baton-chat", ARGS("--message", "Good morrow.", "--quiet", "--max-tokens", "3")), 0);
    EXPECT(g_client.n > 1);
    stop(SIGTERM);
}

static void generate_refusals_are_told(void)
{
    start_run("", BOTH_1);
    if (!serving()) return;
    EXPECT_EQ(client("baton-generate", ARGS("--prompt", "x", "--max-tokens", "100000")), 1);
    EXPECT_HAS(g_client.output, "INVALID_ARGUMENT");
    EXPECT_EQ(client("baton-generate", ARGS("--prompt", "", "--no-bos")), 1);
    EXPECT_HAS(g_client.output, "the prompt is empty");
    EXPECT_EQ(client("baton-chat", ARGS("--message", "")), 1);
    EXPECT_HAS(g_client.output, "the message is empty: expected text after --message");
    EXPECT_EQ(client("baton-chat", ARGS("--message", "x", "--think", "no")), 1);
    EXPECT_HAS(g_client.output, "expected a chat template that says when to think");
    EXPECT_EQ(client("baton-chat", ARGS("--message", "x", "--think", "hard")), 64);
    EXPECT_HAS(g_client.output, "--think is \"hard\": expected yes or no");
    EXPECT_EQ(client("baton-generate", ARGS("--temperature", "-1")), 64);
    EXPECT_HAS(g_client.output, "--temperature");
    stop(SIGTERM);
    EXPECT_EQ(client("baton-generate", ARGS("--prompt", "x")), 1);
    EXPECT_HAS(g_client.output, "cannot connect to "); /* nobody listens any more */
}

/* SCRIPT with $0: a client and $1.. its arguments, as a shell runs it. */
static void shell_client(const char *name, const char *script, const char *const *more)
{
    char        program[256];
    const char *argv[32] = {"/bin/sh", "-c",      script,  program,        "--address",
                            g_address, "--model", g_model, "--max-tokens", "5"};

    snprintf(program, sizeof(program), "%s/%s", g_bin, name);
    for (int i = 0; more[i] != NULL; i++)
        argv[10 + i] = more[i];
    EXPECT_EQ(bt_command_run(&g_client, argv, NULL, END_S), 0);
}

/* Streams that are closed, and a reader who leaves: an error with a sentence, not silence. */
static void clients_tell_lost_streams(void)
{
    static const char *const SCRIPTS[] = {
        "\"$0\" \"$@\" >&-; echo code $?",
        "{ sleep 1; \"$0\" \"$@\"; echo code $? >&2; } | :",
    };

    start_run("", BOTH_1);
    if (!serving()) return;
    for (size_t i = 0; i < 2; i++) {
        shell_client("baton-generate", SCRIPTS[i], ARGS("--prompt", "To be"));
        EXPECT_HAS(g_client.output, "cannot write the answer to stdout");
        EXPECT_HAS(g_client.output, "code 1\n");
        shell_client("baton-generate", SCRIPTS[i], ARGS("--prompt", "x", "--json"));
        EXPECT_HAS(g_client.output, "cannot write the answer to stdout");
        EXPECT_HAS(g_client.output, "code 1\n");
        shell_client("baton-chat", SCRIPTS[i], ARGS("--message", "To be"));
        EXPECT_HAS(g_client.output, "cannot write the answer to stdout");
        EXPECT_HAS(g_client.output, "code 1\n");
    }
    shell_client("baton-generate", "\"$0\" \"$@\" <&-; echo code $?", ARGS(NULL));
    EXPECT_HAS(g_client.output, "the prompt on stdin cannot be read: it is closed");
    EXPECT_HAS(g_client.output, "code 1\n");
    stop(SIGTERM);
}

#define FIRST "baton-run: first error of a rank: rank "

static void run_death_of_a_rank_is_named(void)
{
    static const struct {
        const char *fake, *says, *also;
    } CASES[] = {
        {"error_at_start:1", FIRST "1: a fake error: the fake rank cannot start", ""              },
        {"die_at_start:0",   FIRST "0: the worker died: ",                        "signal 9"      },
        {"die_loading:1",    FIRST "1: the worker died: ",                        "signal 9"      },
        {"never_ready:0",    "no sign of life for 6 s",                           "the ranks load"},
        {"absent:1",         "no sign of life for 6 s",                           "the ranks load"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        bool stalls = strncmp(CASES[i].says, "no sign of life", 15) == 0;
        int  before = g_failures;

        start_run(CASES[i].fake,
                  ARGS("--prefill", "1", "--decode", "1", "--stall-s", stalls ? "6" : "300"));
        expect_over();
        EXPECT_HAS(g_run.output, CASES[i].says);
        EXPECT_HAS(g_run.output, CASES[i].also);
        EXPECT(strstr(g_run.output, "serving ") == NULL);
        if (g_failures != before) {
            fprintf(stderr, "%s: it wrote:\n%s\n", CASES[i].fake, g_run.output);
        }
    }
}

static void run_death_while_serving_ends_requests(void)
{
    start_run("die_in_prefill:0", BOTH_1);
    if (!serving()) return;
    EXPECT_EQ(client("baton-generate", ARGS("--prompt", "To be")), 1);
    EXPECT_HAS(g_client.output, "UNAVAILABLE");
    expect_over();
    EXPECT_HAS(g_run.output, FIRST "0: the worker died: ");
    EXPECT_HAS(g_run.output, "signal 9");
}

static void run_signal_while_loading_ends_cleanly(void)
{
    start_run("never_ready:1", TWO_RANKS);
    EXPECT(bt_command_wait_for(&g_run, "all 2 ranks have attached", START_S));
    stop(SIGTERM);
}

/* What the ranks and the coordinator say fills the pipe, and nobody reads it: requests are served,
 * and the end comes when it is asked for. */
static void run_goes_on_when_nobody_reads_its_lines(void)
{
    double end;
    int    status = 0;

    start_run("", ARGS("--prefill", "1", "--decode", "1", "--log", "debug"));
    fcntl(g_run.fd, F_SETPIPE_SZ, 4096);
    if (!serving()) return;
    for (int i = 0; i < 8; i++)
        EXPECT_EQ(client("baton-generate", ARGS("--prompt", "x", "--max-tokens", "2")), 0);
    kill(g_run.pid, SIGTERM);
    end = bt_command_now() + END_S;
    while (waitpid(g_run.pid, &status, WNOHANG | WNOWAIT) == 0 && bt_command_now() < end)
        usleep(10000);
    EXPECT(bt_command_now() < end);
    EXPECT_EQ(bt_command_finish(&g_run, END_S), 0);
}

/* A pipe whose writing end is full; returns of how many bytes. */
static size_t open_full_pipe(int fds_out[2])
{
    char   byte = 'x';
    size_t n    = 0;

    EXPECT(pipe2(fds_out, O_NONBLOCK) == 0);
    fcntl(fds_out[1], F_SETPIPE_SZ, 4096);
    while (write(fds_out[1], &byte, 1) == 1)
        n++;
    fcntl(fds_out[1], F_SETFL, 0);
    return n;
}

/* The line that comes after n_skipped bytes, borrowed; "" when none does. */
static const char *read_line(int fd, size_t n_skipped)
{
    static char line[1024];
    double      end = bt_command_now() + START_S;
    size_t      n   = 0;
    char        byte;

    while (n + 1 < sizeof(line) && (n == 0 || line[n - 1] != '\n') && bt_command_now() < end) {
        struct pollfd p = {fd, POLLIN, 0};

        poll(&p, 1, 20);
        if (read(fd, &byte, 1) != 1) continue;
        if (n_skipped > 0)
            n_skipped--;
        else
            line[n++] = byte;
    }
    line[n] = '\0';
    return line;
}

/* Where it serves it says when somebody reads; until then it serves, and ends when asked. */
static void run_goes_on_when_nobody_reads_its_stdout(void)
{
    char        program[256], script[64];
    const char *argv[] = {"/bin/sh", "-c", script,   program, "--model", g_model,
                          "--port",  "0",  "--both", "1",     NULL};

    snprintf(program, sizeof(program), "%s/baton-run", g_bin);
    for (int reads = 0; reads < 2; reads++) {
        int         fds[2];
        size_t      n = open_full_pipe(fds);
        const char *line;

        snprintf(script, sizeof(script), "exec \"$0\" \"$@\" >&%d", fds[1]);
        bt_command_start(&g_run, argv, NULL);
        close(fds[1]);
        EXPECT(bt_command_wait_for(&g_run, " ready: ", START_S));
        if (reads != 0) {
            line = read_line(fds[0], n);
            EXPECT(strncmp(line, "serving ", 8) == 0);
            EXPECT_HAS(line, " at 127.0.0.1:");
            EXPECT_HAS(line, " s)\n");
        }
        stop(SIGTERM);
        close(fds[0]);
    }
}

/* Of the program as the kernel shortens its name. */
static pid_t child_pid(const char *name)
{
    pid_t found = bt_command_child(&g_run, name);

    EXPECT(found != 0);
    return found;
}

static pid_t coordinator_pid(void) { return child_pid("baton-coordinat"); }

/* One that may be started again: tests/system/restarts.py. */
static void run_coordinator_that_hangs_ends_the_cell(void)
{
    pid_t pid;

    start_run("", ARGS("--both", "1", "--on-death", "stop", "--coordinator-timeout-s", "3"));
    if (!serving() || (pid = coordinator_pid()) == 0) return;
    kill(pid, SIGSTOP);
    expect_over();
    EXPECT_HAS(g_run.output, "the coordinator has not answered for ");
}

/* Nobody ends the requests, and nobody tells the ranks. */
static void run_drain_ends_when_the_coordinator_hangs(void)
{
    pid_t pid;

    start_run("", ARGS("--both", "1", "--drain-s", "1"));
    if (!serving() || (pid = coordinator_pid()) == 0) return;
    kill(pid, SIGSTOP);
    kill(g_run.pid, SIGTERM);
    expect_over();
    EXPECT_HAS(g_run.output, "s while it drained");
}

/* As early as there is anything to end: the coordinator has not even become itself. */
static void run_signal_at_once_ends_cleanly(void)
{
    start_run("", TWO_RANKS);
    EXPECT(bt_command_has_child(&g_run, START_S));
    stop(SIGTERM);
    EXPECT(strstr(g_run.output, "baton-run: ") == NULL);
}

/* A shell's background job ignores SIGINT, one under nohup SIGHUP too: the first is no reason to be
 * deaf to the coordinator's end, the second is to be left alone.  Who takes no interest in children
 * of its own ignores SIGCHLD: those of baton-run end all the same. */
static void run_with_ignored_signals_ends_when_asked(void)
{
    sighandler_t interrupt = signal(SIGINT, SIG_IGN), hangup = signal(SIGHUP, SIG_IGN), child;

    run_signal_at_once_ends_cleanly();
    child = signal(SIGCHLD, SIG_IGN);
    start_run("", TWO_RANKS);
    signal(SIGCHLD, child);
    signal(SIGINT, interrupt);
    signal(SIGHUP, hangup);
    if (!serving()) return;
    kill(g_run.pid, SIGHUP);
    EXPECT_EQ(client("baton-generate", ARGS("--prompt", "x", "--max-tokens", "2")), 0);
    stop(SIGTERM);
}

/* The coordinator cannot tell ranks that have not attached: we do, long before we kill. */
static void run_signal_before_ranks_attach_ends_soon(void)
{
    double begun = bt_command_now();

    start_run("absent:1", TWO_RANKS);
    while (bt_command_child(&g_run, "baton-launch") == 0 && bt_command_now() < begun + START_S)
        bt_command_wait_for(&g_run, "\x01", 0.02);
    begun = bt_command_now();
    stop(SIGTERM);
    EXPECT(bt_command_now() - begun < 12);
}

/* Impatience is no failure, however early it comes. */
static void run_second_signal_hurries_the_end(void)
{
    static const int WAITS_MS[] = {1, 30, 150};

    for (size_t i = 0; i < sizeof(WAITS_MS) / sizeof(WAITS_MS[0]); i++) {
        struct timespec wait = {0, WAITS_MS[i] * 1000000L};

        start_run("", TWO_RANKS);
        if (!serving()) return;
        kill(g_run.pid, SIGINT);
        nanosleep(&wait, NULL);
        stop(SIGINT);
        EXPECT(strstr(g_run.output, "baton-run: ") == NULL);
    }
}

/* Ranks that were ended because nobody had patience were not late. */
static void run_second_signal_ends_a_rank_that_stays(void)
{
    double begun;

    start_run("leave_late:1", TWO_RANKS);
    if (!serving()) return;
    kill(g_run.pid, SIGINT);
    EXPECT(bt_command_wait_for(&g_run, "shutting down on signal ", 4)); /* a failure waits 5 s */
    begun = bt_command_now();
    stop(SIGINT);
    EXPECT(bt_command_now() - begun < 7); /* without the second it is told after 8 s */
    EXPECT(strstr(g_run.output, "had not left in time") == NULL);
    EXPECT(strstr(g_run.output, "baton-run: ") == NULL);
}

/* SIGUSR1 waits for what runs; SIGTERM does not, neither then nor where it has no time. */
static void run_drain_of_no_time_is_for_sigterm_alone(void)
{
    for (int drains = 0; drains < 3; drains++) {
        char        program[256];
        const char *argv[] = {program, "--address", g_address, "--model",
                              g_model, "--prompt",  "To be",   NULL};

        start_run("silent:0", ARGS("--both", "1", "--drain-s", drains < 2 ? "0" : "60"));
        if (!serving()) return;
        snprintf(program, sizeof(program), "%s/baton-generate", g_bin);
        bt_command_start(&g_client, argv, NULL);
        EXPECT(bt_command_wait_for(&g_run, " prompt tokens, at most ", START_S));
        if (drains) {
            kill(g_run.pid, SIGUSR1);
            EXPECT(bt_command_wait_for(&g_run, "draining: 1 request under way", START_S));
            kill(g_run.pid, SIGUSR1); /* again is once */
        }
        stop(SIGTERM);
        EXPECT_EQ(bt_command_finish(&g_client, END_S), 1);
        EXPECT_HAS(g_client.output, "UNAVAILABLE");
        EXPECT_EQ(strstr(g_run.output, "draining: ") != NULL, drains > 0);
        EXPECT(strstr(g_run.output, "shutting down on signal 15") == NULL); /* it would drain */
    }
}

/* Ranks under a coordinator elsewhere that do not drain are ended after --drain-s, as was asked. */
static void run_drain_under_a_coordinator_elsewhere_has_an_end(void)
{
    static const char *const env[] = {"BATON_SECRET=0123456789abcdef0123456789abcdef", NULL};
    char                     programs[2][256], control[64] = "";
    const char              *argv[32], *at;

    build_argv(programs[0], sizeof(programs[0]), "baton-coordinator",
               ARGS("--model", g_model, "--port", "0", "--control", "127.0.0.1:0"), argv);
    bt_command_start(&g_client, argv, env);
    EXPECT(bt_command_wait_for(&g_client, "workers attach on ", START_S));
    at = strstr(g_client.output, "attach on ");
    EXPECT(at != NULL && sscanf(at, "attach on %63s", control) == 1);
    build_argv(programs[1], sizeof(programs[1]), "baton-run",
               ARGS("--model", g_model, "--coordinator", control, "--cell", "a", "--both", "1",
                    "--drain-s", "1"),
               argv);
    bt_command_start(&g_run, argv, env);
    EXPECT(bt_command_wait_for(&g_run, "cell a serves ", START_S));
    stop(SIGTERM);
    EXPECT(strstr(g_run.output, "baton-run: ") == NULL);
    kill(g_client.pid, SIGKILL);
    bt_command_finish(&g_client, END_S);
}

/* Also where both are there before its loop has looked. */
static void coordinator_told_to_end_at_once_does_not_drain(void)
{
    char        program[256];
    const char *argv[] = {program, "--address", g_address, "--model",
                          g_model, "--prompt",  "To be",   NULL};
    pid_t       pid;

    snprintf(program, sizeof(program), "%s/baton-generate", g_bin);
    for (int i = 0; i < 4; i++) {
        start_run("silent:0", BOTH_1);
        if (!serving() || (pid = coordinator_pid()) == 0) return;
        bt_command_start(&g_client, argv, NULL);
        EXPECT(bt_command_wait_for(&g_run, " prompt tokens, at most ", START_S));
        kill(pid, SIGINT);
        usleep(300); /* its handler has run, its loop not yet looked */
        kill(pid, SIGTERM);
        expect_over();
        EXPECT_EQ(bt_command_finish(&g_client, END_S), 1);
        EXPECT_HAS(g_run.output, "shutting down on signal 2");
        EXPECT(strstr(g_run.output, "draining: ") == NULL);
    }
}

static void run_tells_the_coordinator_what_a_death_means(void)
{
    static const struct {
        const char *args[6];
        const char *says;
        bool        waits; /* for a cell that comes again */
    } CASES[] = {
        {{"--both", "1", NULL},                                          "on-death=replace (flag)", false},
        {{"--both", "1", "--on-death", "stop", NULL},                    "on-death=stop (flag)",    false},
        {{"--both", "1", "--on-death", "restart", NULL},                 "on-death=restart (flag)", false},
        {{"--both", "1", "--on-death=replace", "--restarts", "1", NULL},
         "on-death=replace (flag)",                                                                 true },
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        const char *handed_on;

        start_run("", CASES[i].args);
        if (!serving()) return;
        handed_on = strstr(g_run.output, "coordinator - ");
        EXPECT_HAS(handed_on, CASES[i].says);
        EXPECT_EQ(strstr(handed_on, "cell-wait-s=" BT_TEXT(BT_DEFAULT_CELL_WAIT_S) " (flag)") !=
                      NULL,
                  CASES[i].waits);
        stop(SIGTERM);
    }
}

/* The next one comes; these ranks, unlike real ones, do not wait for it. */
static void run_coordinator_that_dies_while_loading_is_started_again(void)
{
    pid_t pid;

    start_run("never_ready:1", ARGS("--prefill", "1", "--decode", "1", "--on-death", "restart"));
    EXPECT(bt_command_wait_for(&g_run, "all 2 ranks have attached", START_S));
    if ((pid = coordinator_pid()) == 0) return;
    kill(pid, SIGKILL);
    expect_over();
    EXPECT_HAS(
        g_run.output,
        "the coordinator was ended by signal 9 (Killed); if nobody did that, memory had run out: "
        "see dmesg; starting again in ");
}

/* Whose ranks leave with it: on a busy machine both ends are seen at once. */
static void run_coordinator_that_dies_with_its_ranks_is_named(void)
{
    char  state = ' ', path[64];
    pid_t pid, launch;

    start_run("never_ready:1", ARGS("--prefill", "1", "--decode", "1", "--on-death", "restart"));
    EXPECT(bt_command_wait_for(&g_run, "all 2 ranks have attached", START_S));
    if ((pid = coordinator_pid()) == 0 || (launch = child_pid("baton-launch")) == 0) return;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)launch);
    kill(g_run.pid, SIGSTOP);
    kill(pid, SIGKILL);
    for (int i = 0; i < END_S * 100 && state != 'Z'; i++) {
        FILE *stat = fopen(path, "re");

        EXPECT(stat != NULL && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        if (stat != NULL) fclose(stat);
        usleep(10000);
    }
    EXPECT_EQ(state, 'Z');
    kill(g_run.pid, SIGCONT);
    expect_over();
    EXPECT_HAS(g_run.output, "the coordinator was ended by signal 9 (Killed)");
}

/* Where that child of the cell writes its lines. */
static void say_as(pid_t child, const char *line)
{
    char path[64];
    int  fd;

    snprintf(path, sizeof(path), "/proc/%d/fd/2", (int)child);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    EXPECT(fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line));
    if (fd >= 0) close(fd);
}

/* Ranks under the same coordinator, each time later, and not for ever.  Of the first end
 * the coordinator speaks before the launcher has ended: ranks that come later are not meant. */
static void run_restarts_ranks_until_it_gives_up(void)
{
    static const char *const SAYS[] = {
        "starting again in 0.2 s, the 1. of at most 2 times in a row",
        "starting again in 0.4 s, the 2. of at most 2 times in a row",
        "given up after 2 restarts in a row\n"};
    char again[48];

    start_run("", ARGS("--both", "1", "--on-death", "restart", "--restarts", "2"));
    if (!serving()) return;
    for (int i = 0; i < 3; i++) {
        pid_t launch = child_pid("baton-launch"), coordinator = coordinator_pid();

        if (launch == 0 || coordinator == 0) return;
        if (i == 0) say_as(launch, "2026-01-01 00:00:00.000 E rank=0 - a/b.c:1 an error of old\n");
        kill(launch, i == 0 ? SIGTERM : SIGKILL);
        EXPECT(bt_command_wait_for(&g_run, SAYS[i], START_S));
        if (i == 2) break;
        snprintf(again, sizeof(again), " s after the end; restart %d\n", i + 1);
        EXPECT(bt_command_wait_for(&g_run, again, START_S));
        EXPECT_EQ(coordinator_pid(), coordinator);
        EXPECT_EQ(client("baton-generate", ARGS("--prompt", "x", "--max-tokens", "2")), 0);
        if (i == 0) EXPECT(!bt_command_wait_for(&g_run, SAYS[1], 6));
    }
    expect_over();
    EXPECT_HAS(g_run.output, "baton-run: the ranks have ended: baton-launch was ended by signal 9");
    EXPECT_HAS(g_run.output, "an error of old");
    EXPECT(strstr(g_run.output, FIRST) == NULL); /* it was not one of the last ranks */
}

/* Ranks that are lost end their launcher, or we end it: else nobody would ever serve again. */
static void run_launcher_that_hangs_is_started_again(void)
{
    char        program[256];
    const char *argv[] = {program, "--address", g_address, "--model",
                          g_model, "--prompt",  "To be",   NULL};
    pid_t       pid;

    start_run("die_in_prefill:0", ARGS("--both", "1", "--on-death", "restart", "--restarts", "1"));
    if (!serving() || (pid = child_pid("baton-launch")) == 0) return;
    kill(pid, SIGSTOP);
    snprintf(program, sizeof(program), "%s/baton-generate", g_bin);
    bt_command_start(&g_client, argv, NULL);
    EXPECT(bt_command_wait_for(
        &g_run, "baton-launch was ended by signal 9 (Killed); starting again", START_S));
    expect_over(); /* the same request ends the next ones */
    EXPECT_EQ(bt_command_finish(&g_client, END_S), 1);
    EXPECT_HAS(g_client.output, "UNAVAILABLE");
}

/* At the same addresses: ranks, clients and who watches it look for it where it was. */
static void run_coordinator_that_hangs_is_started_again(void)
{
    char        control[64], attach[96], http[64];
    const char *at;
    pid_t       pid;
    int         port;

    start_run("", ARGS("--both", "1", "--on-death", "restart", "--coordinator-timeout-s", "3",
                       "--http-port", "0"));
    if (!serving() || (pid = coordinator_pid()) == 0) return;
    EXPECT(bt_command_wait_for(&g_run, "status page at http://127.0.0.1:", START_S));
    at = strstr(g_run.output, "status page at ");
    NEED(at != NULL && sscanf(at, "status page at http://127.0.0.1:%d/", &port) == 1);
    at = strstr(g_run.output, "attach on ");
    NEED(at != NULL && sscanf(at, "attach on %63s", control) == 1);
    kill(pid, SIGSTOP);
    EXPECT(bt_command_wait_for(&g_run, "the coordinator has not answered for 3 s; starting again",
                               START_S));
    EXPECT(bt_command_wait_for(&g_run, "serving again, ", START_S));
    EXPECT(coordinator_pid() != pid);
    at = strstr(g_run.output, "starting again");
    NEED(at != NULL);
    snprintf(http, sizeof(http), " http-port=%d (flag)", port);
    snprintf(attach, sizeof(attach), "workers attach on %s\n", control);
    EXPECT_HAS(at, http);
    EXPECT_HAS(at, attach);
    EXPECT_EQ(client("baton-generate", ARGS("--prompt", "x", "--max-tokens", "2")), 0);
    kill(coordinator_pid(), SIGKILL); /* the next end is one of its own */
    EXPECT(bt_command_wait_for(&g_run, "the coordinator was ended by signal 9 (Killed)", START_S));
    stop(SIGTERM);
}

/* Everybody was served, and the signal that ends the slow one is our own. */
static void run_rank_that_leaves_late_is_no_failure(void)
{
    start_run("leave_late:1", TWO_RANKS);
    if (!serving()) return;
    EXPECT_EQ(client("baton-generate", ARGS("--prompt", "x", "--max-tokens", "2")), 0);
    stop(SIGTERM);
    EXPECT_HAS(g_run.output, "the ranks had not left in time, and were told by a signal");
}

static void run_port_in_use_is_named(void)
{
    struct sockaddr_in a  = {.sin_family = AF_INET};
    socklen_t          n  = sizeof(a);
    int                fd = socket(AF_INET, SOCK_STREAM, 0);
    char               port[16];

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 1) == 0 &&
           getsockname(fd, (struct sockaddr *)&a, &n) == 0);
    snprintf(port, sizeof(port), "%d", ntohs(a.sin_port));
    start_run("", ARGS("--both", "1", "--port", port));
    expect_over();
    EXPECT_HAS(g_run.output, port);
    EXPECT_HAS(g_run.output, "in use");
    close(fd);
}

static const bt_test TESTS[] = {
    BT_TEST(run_serves_until_a_signal),
    BT_TEST(run_generates_for_a_client),
    BT_TEST(generate_refusals_are_told),
    BT_TEST(clients_tell_lost_streams),
    BT_TEST(run_death_of_a_rank_is_named),
    BT_TEST(run_death_while_serving_ends_requests),
    BT_TEST(run_signal_at_once_ends_cleanly),
    BT_TEST(run_goes_on_when_nobody_reads_its_lines),
    BT_TEST(run_goes_on_when_nobody_reads_its_stdout),
    BT_TEST(run_coordinator_that_hangs_ends_the_cell),
    BT_TEST(run_drain_ends_when_the_coordinator_hangs),
    BT_TEST(run_with_ignored_signals_ends_when_asked),
    BT_TEST(run_signal_while_loading_ends_cleanly),
    BT_TEST(run_signal_before_ranks_attach_ends_soon),
    BT_TEST(run_second_signal_hurries_the_end),
    BT_TEST(run_second_signal_ends_a_rank_that_stays),
    BT_TEST(run_drain_of_no_time_is_for_sigterm_alone),
    BT_TEST(run_drain_under_a_coordinator_elsewhere_has_an_end),
    BT_TEST(coordinator_told_to_end_at_once_does_not_drain),
    BT_TEST(run_tells_the_coordinator_what_a_death_means),
    BT_TEST(run_coordinator_that_dies_while_loading_is_started_again),
    BT_TEST(run_coordinator_that_dies_with_its_ranks_is_named),
    BT_TEST(run_restarts_ranks_until_it_gives_up),
    BT_TEST(run_coordinator_that_hangs_is_started_again),
    BT_TEST(run_launcher_that_hangs_is_started_again),
    BT_TEST(run_rank_that_leaves_late_is_no_failure),
    BT_TEST(run_port_in_use_is_named),
};

int main(int argc, char **argv)
{
    return fake_cell_main(argc, argv, TESTS, sizeof(TESTS) / sizeof(TESTS[0]));
}
