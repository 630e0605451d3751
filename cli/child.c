#include "cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/ending.h"
#include "core/file.h"
#include "core/processes.h"

enum { ARGUMENT_MAX = 512, STARTED_MAX = 64 };
#define GUARD_NS (3 * BT_NS_PER_S) /* to remove what a killed launcher left */

/* What bt_child_spawn() has started and nobody has collected yet. */
static pid_t  g_started[STARTED_MAX];
static size_t g_n_started;
static bool   g_others; /* there were children before: bt_child_adopt() */

void bt_child_init(bt_child *child)
{
    memset(child, 0, sizeof(*child));
    child->go_fd     = -1;
    child->err.fd    = -1;
    child->report.fd = -1;
}

/* Waits for the argument that was not known at the fork; exits when the parent does not give it. */
static void take_last_argument(char **argv, int go_fd)
{
    static char argument[ARGUMENT_MAX];
    size_t      n = 0, last = 0;
    ssize_t     got;

    while (n < sizeof(argument) - 1 &&
           ((got = read(go_fd, argument + n, sizeof(argument) - 1 - n)) > 0 ||
            (got < 0 && errno == EINTR))) {
        if (got > 0) n += (size_t)got;
    }
    if (n == 0) _exit(0);
    while (argv[last] != NULL)
        last++;
    argv[last - 1] = argument;
}

static void replace_report(char **argv, int fd)
{
    static char number[16];

    snprintf(number, sizeof(number), "%d", fd);
    for (; *argv != NULL; argv++) {
        if (strcmp(*argv, "@report") == 0) *argv = number;
    }
}

static BT_NORETURN void run_child(const bt_child_spec *spec, pid_t parent, int go_fd, int err_fd,
                                  int report_fd)
{
    static const int OURS[] = {SIGTERM, SIGINT, SIGUSR1};
    sigset_t         none;
    int              null;

    if (!spec->in_front) setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(128 + SIGTERM);
    for (size_t i = 0; !spec->in_front && i < sizeof(OURS) / sizeof(OURS[0]); i++)
        signal(OURS[i], SIG_DFL); /* an ignored one would be lost until the program has its own */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (!spec->in_front && (null = open("/dev/null", O_RDONLY)) >= 0) dup2(null, STDIN_FILENO);
    if (err_fd >= 0) dup2(err_fd, STDERR_FILENO);
    if (report_fd >= 0) {
        fcntl(report_fd, F_SETFD, 0);
        replace_report(spec->argv, report_fd);
    }
    if (go_fd >= 0) take_last_argument(spec->argv, go_fd);
    execv(spec->argv[0], spec->argv);
    bt_log_error(__FILE__, __LINE__, "cannot start", "%s: %s", spec->argv[0], strerror(errno));
    _exit(127);
}

/* fds_out[0] is ours (it does not block when we read), fds_out[1] the child's. */
static bt_status make_pipe(bool wanted, bool child_reads, int fds_out[2])
{
    bt_status st = BT_OK;
    int       fds[2];

    fds_out[0] = fds_out[1] = -1;
    if (!wanted) goto out;
    BT_REQUIRE(pipe2(fds, O_CLOEXEC) == 0, BT_ERR_IO, "pipe: %s", strerror(errno));
    fds_out[0] = fds[child_reads ? 1 : 0];
    fds_out[1] = fds[child_reads ? 0 : 1];
    if (!child_reads) fcntl(fds_out[0], F_SETFL, O_NONBLOCK);
out:
    return st;
}

static void close_pair(int fds[2], bool ours)
{
    if (ours && fds[0] >= 0) close(fds[0]);
    if (fds[1] >= 0) close(fds[1]);
}

bt_status bt_child_spawn(const bt_child_spec *spec, bt_child *child_out)
{
    bt_status st    = BT_OK;
    pid_t     self  = getpid(), pid;
    int       go[2] = {-1, -1}, err[2] = {-1, -1}, report[2] = {-1, -1};
    bool      failed = true;

    BT_ASSERT(g_n_started < STARTED_MAX);
    BT_TRY(make_pipe(spec->held, true, go));
    BT_TRY(make_pipe(!spec->in_front, false, err));
    BT_TRY(make_pipe(spec->reports, false, report));
    pid = fork();
    if (pid == 0) {
        if (go[0] >= 0) close(go[0]); /* or it would never see its end */
        run_child(spec, self, go[1], err[1], report[1]);
    }
    BT_REQUIRE(pid > 0, BT_ERR_IO, "fork for %s: %s", spec->name, strerror(errno));
    if (!spec->in_front) setpgid(pid, pid);
    g_started[g_n_started++] = pid;
    bt_child_init(child_out);
    child_out->name      = spec->name;
    child_out->pid       = pid;
    child_out->go_fd     = go[0];
    child_out->err.fd    = err[0];
    child_out->report.fd = report[0];
    failed               = false;
out:
    close_pair(go, failed);
    close_pair(err, failed);
    close_pair(report, failed);
    return st;
}

bt_status bt_child_go(bt_child *child, const char *last_argument)
{
    bt_status st = BT_OK;
    size_t    n  = strlen(last_argument);

    BT_ASSERT(child->go_fd >= 0 && n != 0 && n < ARGUMENT_MAX);
    BT_REQUIRE(write(child->go_fd, last_argument, n) == (ssize_t)n, BT_ERR_IO, "starting %s: %s",
               child->name, strerror(errno));
    close(child->go_fd);
    child->go_fd = -1;
out:
    return st;
}

void bt_child_kill(bt_child *child, int sig)
{
    if (!bt_child_running(child)) return;
    kill(child->pid, sig);
    if (sig == SIGTERM && child->told_ns == 0) child->told_ns = bt_awake_ns();
    child->killed = child->killed || sig == SIGKILL;
}

void bt_child_tell(bt_child *child, int sig, int value)
{
    if (bt_child_running(child)) sigqueue(child->pid, sig, (union sigval){.sival_int = value});
}

/* Before its pid can be another's. */
static void forget_started(pid_t pid)
{
    for (size_t i = 0; i < g_n_started; i++) {
        if (g_started[i] != pid) continue;
        g_started[i] = g_started[--g_n_started];
        return;
    }
}

bool bt_child_collect(bt_child *const *children, size_t n)
{
    bool  found = false;
    int   status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        forget_started(pid);
        for (size_t i = 0; i < n; i++) {
            if (children[i]->pid != pid) continue;
            children[i]->ended  = true;
            children[i]->status = status;
            found               = true;
        }
    }
    return found;
}

const char *bt_child_ending(const bt_child *child, char *buf, size_t capacity)
{
    if (WIFSIGNALED(child->status)) {
        bt_ending_by_signal(WTERMSIG(child->status), child->killed, buf, capacity);
    } else {
        snprintf(buf, capacity, "ended with exit code %d", WEXITSTATUS(child->status));
    }
    return buf;
}

void bt_child_close(bt_child *child)
{
    if (child->go_fd >= 0) close(child->go_fd);
    if (child->err.fd >= 0) close(child->err.fd);
    if (child->report.fd >= 0) close(child->report.fd);
    bt_child_init(child);
}

void bt_child_adopt(void)
{
    g_others = bt_has_children();
    if (!g_others) prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static bool is_ours(pid_t pid)
{
    bool found = !g_others;

    for (size_t i = 0; !found && i < g_n_started; i++)
        found = g_started[i] == pid;
    return found;
}

/* The launcher's guard, which removes the private directories of a launcher that was killed. */
static bool is_guard(pid_t pid)
{
    char name[BT_PROCESS_NAME];

    bt_process_name(pid, name);
    return strcmp(name, "baton-guard") == 0;
}

static bool kill_if_ours(pid_t self, pid_t pid, void *guards_too)
{
    (void)self;
    if (is_ours(pid) && (*(const bool *)guards_too || !is_guard(pid))) kill(pid, SIGKILL);
    return false;
}

void bt_child_end_all(uint64_t wait_ns)
{
    uint64_t kill_at_ns = bt_awake_ns() + wait_ns, now_ns;
    bool     guards_too;

    for (;;) {
        pid_t got = waitpid(-1, NULL, WNOHANG);

        if (got > 0) forget_started(got);
        if (got > 0 || (got < 0 && errno == EINTR)) continue;
        if (got < 0 || (g_others && g_n_started == 0)) return; /* none of ours is left */
        now_ns     = bt_awake_ns();
        guards_too = now_ns > kill_at_ns + GUARD_NS;
        if (now_ns > kill_at_ns) bt_process_each_child(getpid(), kill_if_ours, &guards_too);
        bt_sleep_ns(10 * BT_NS_PER_MS);
    }
}

bt_status bt_program_path(const char *name, char path_out[PATH_MAX])
{
    bt_status st = BT_OK;

    BT_REQUIRE(bt_path_beside(name, path_out), BT_ERR_IO,
               "this program's folder, where %s lies, is not known: is /proc mounted?", name);
    BT_REQUIRE(access(path_out, X_OK) == 0, BT_ERR_IO,
               "%s: %s (the programs of Baton stay in one directory)", path_out, strerror(errno));
out:
    return st;
}
