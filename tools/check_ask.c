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
#include "core/lines.h"

enum { AT_ONCE = 128 };
#define CANNOT_START "its command cannot be started: %s"

/* One whose command runs. */
typedef struct {
    bt_asked_node *node;
    pid_t          pid;
    uint64_t       end_ns;
    double         begun_s; /* by the wall clock */
    bt_lines       lines;   /* of its output */
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

/* False: the node's last words say why not. */
static bool begin(asked *a, bt_asked_node *node, uint64_t limit_ns)
{
    int   ends[2] = {-1, -1};
    pid_t self    = getpid();

    *a = (asked){.node = node, .pid = -1, .end_ns = bt_now_ns() + limit_ns, .begun_s = bt_unix_s()};
    if (pipe2(ends, O_CLOEXEC) == 0) a->pid = fork();
    if (a->pid == 0) run_child(node->command, self, ends);
    if (ends[1] >= 0) close(ends[1]);
    if (a->pid > 0) {
        setpgid(a->pid, a->pid); /* on both sides, so that nobody can be too early */
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        a->lines.fd = ends[0];
        return true;
    }
    snprintf(node->last, sizeof(node->last), CANNOT_START, strerror(errno));
    if (ends[0] >= 0) close(ends[0]);
    return false;
}

static void finish(asked *a)
{
    kill(-a->pid, SIGKILL); /* agents may leave something behind */
    while (waitpid(a->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    if (a->lines.fd >= 0) close(a->lines.fd);
}

/* What lies within the question and now may be right, however long the line was under way. */
static double skew(double unix_s, double begun_s)
{
    double now_s = bt_unix_s();

    if (unix_s > now_s) return unix_s - now_s;
    return unix_s >= begun_s ? 0 : unix_s - begun_s;
}

static void take_line(void *ctx, const char *line)
{
    asked         *a     = ctx;
    bt_asked_node *node  = a->node;
    bool           timed = node->facts.unix_s != 0;

    if (!node->facts.answered && line[0] != '\0')
        snprintf(node->last, sizeof(node->last), "%.*s", BT_CHECK_TEXT - 1, line);
    bt_check_node_hear(&node->facts, line);
    if (!timed && node->facts.unix_s != 0) node->skew_s = skew(node->facts.unix_s, a->begun_s);
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

        while (n < AT_ONCE && n_begun < n_nodes)
            if (begin(&running[n], &nodes[n_begun++], limit_ns)) n++;
        for (uint32_t i = 0; i < n; i++)
            fds[i] = (struct pollfd){.fd = running[i].lines.fd, .events = POLLIN};
        poll(fds, n, 100);
        now = bt_now_ns();
        for (uint32_t i = n; i-- > 0;) {
            asked *a = &running[i];

            bt_lines_read(&a->lines, take_line, a);
            a->node->late = a->lines.fd >= 0 && now >= a->end_ns;
            if (a->lines.fd >= 0 && !a->node->late) continue;
            finish(a);
            *a = running[--n];
        }
    }
out:
    bt_free(running);
    bt_free(fds);
    return st;
}
