#include "tools/check_ask.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"

enum { AT_ONCE = 128 };
#define CANNOT_START "its command cannot be started: %s"

/* One whose command runs. */
typedef struct {
    bt_asked_node *node;
    pid_t          pid;
    uint64_t       end_ns;
    double         begun_s; /* by the wall clock */
    size_t         n;
    char           line[2 * BT_CHECK_TEXT];
} asked;

static void end_group(int sig)
{
    (void)sig;
    kill(0, SIGKILL);
}

/* An agent that asks for a password there would be stopped, and wait in vain. */
static void leave_terminal(void)
{
    int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);

    if (tty < 0) return;
    ioctl(tty, TIOCNOTTY);
    close(tty);
}

/* The leader of a group that ends with its parent: the shell, the agent and what that starts. */
static BT_NORETURN void run_child(const char *command, pid_t parent, const int ends[2])
{
    pid_t shell;

    setpgid(0, 0); /* signals of the terminal do not reach it */
    leave_terminal();
    signal(SIGTERM, end_group);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    shell = fork();
    if (shell == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    if (shell < 0) dprintf(ends[1], CANNOT_START, strerror(errno));
    close(ends[1]);
    wait(NULL);
    _exit(0);
}

/* Its output's descriptor, or -1, which the node's last words then explain. */
static int begin(asked *a, bt_asked_node *node, uint64_t limit_ns)
{
    int   ends[2] = {-1, -1};
    pid_t self    = getpid();

    *a = (asked){.node = node, .pid = -1, .end_ns = bt_now_ns() + limit_ns, .begun_s = bt_unix_s()};
    if (pipe2(ends, O_CLOEXEC) == 0) a->pid = fork();
    if (a->pid == 0) run_child(node->command, self, ends);
    if (ends[1] >= 0) close(ends[1]);
    if (a->pid > 0) {
        setpgid(a->pid, a->pid); /* on both sides, so that nobody can be too early */
        return ends[0];
    }
    snprintf(node->last, sizeof(node->last), CANNOT_START, strerror(errno));
    if (ends[0] >= 0) close(ends[0]);
    return -1;
}

static void finish(asked *a, int fd)
{
    kill(-a->pid, SIGKILL); /* agents may leave something behind */
    while (waitpid(a->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    close(fd);
}

/* What lies within the question and now may be right, however long the line was under way. */
static double skew(double unix_s, double begun_s)
{
    double now_s = bt_unix_s();

    if (unix_s > now_s) return unix_s - now_s;
    return unix_s >= begun_s ? 0 : unix_s - begun_s;
}

static void take_line(asked *a, const char *line)
{
    bt_asked_node *node  = a->node;
    bool           timed = node->facts.unix_s != 0;

    if (!node->facts.answered && line[0] != '\0')
        snprintf(node->last, sizeof(node->last), "%.*s", BT_CHECK_TEXT - 1, line);
    bt_check_node_hear(&node->facts, line);
    if (!timed && node->facts.unix_s != 0) node->skew_s = skew(node->facts.unix_s, a->begun_s);
}

/* False at the end of its output. */
static bool hear(asked *a, int fd)
{
    ssize_t got = read(fd, a->line + a->n, sizeof(a->line) - 1 - a->n);
    char   *at  = a->line, *end;

    if (got < 0 && errno == EINTR) return true;
    if (got > 0) a->n += (size_t)got;
    a->line[a->n] = '\0';
    while ((end = strchr(at, '\n')) != NULL) {
        *end = '\0';
        take_line(a, at);
        at = end + 1;
    }
    a->n = strlen(at);
    memmove(a->line, at, a->n + 1);
    if (a->n > 0 && (got <= 0 || a->n == sizeof(a->line) - 1)) {
        take_line(a, a->line); /* without an end, or longer than any of ours */
        a->n = 0;
    }
    return got > 0;
}

bt_status bt_check_ask(bt_asked_node *nodes, uint32_t n_nodes, uint64_t limit_ns)
{
    bt_status      st      = BT_OK;
    uint32_t       n_begun = 0, n = 0;
    asked         *running = bt_calloc(AT_ONCE, sizeof(*running));
    struct pollfd *fds     = bt_calloc(AT_ONCE, sizeof(*fds));

    BT_REQUIRE(running != NULL && fds != NULL, BT_ERR_NO_MEMORY, "%d nodes at a time", AT_ONCE);
    while (n > 0 || n_begun < n_nodes) {
        uint64_t now;

        while (n < AT_ONCE && n_begun < n_nodes) {
            fds[n] = (struct pollfd){.events = POLLIN};
            if ((fds[n].fd = begin(&running[n], &nodes[n_begun++], limit_ns)) >= 0) n++;
        }
        poll(fds, n, 100);
        now = bt_now_ns();
        for (uint32_t i = 0; i < n;) {
            bool goes_on = fds[i].revents == 0 || hear(&running[i], fds[i].fd);

            if (goes_on && now >= running[i].end_ns) running[i].node->late = true;
            if (goes_on && !running[i].node->late) {
                i++;
                continue;
            }
            finish(&running[i], fds[i].fd);
            n--;
            running[i] = running[n];
            fds[i]     = fds[n];
        }
    }
out:
    bt_free(running);
    bt_free(fds);
    return st;
}
