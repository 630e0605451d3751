/* tests/support/command.h - runs a program as a user would, and keeps what it wrote and how it
 * ended.
 *
 * stdout and stderr come together; every wait has a limit, after which the program is killed. */
#ifndef BT_TESTS_SUPPORT_COMMAND_H
#define BT_TESTS_SUPPORT_COMMAND_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BT_COMMAND_OUTPUT = 1 << 20 };

typedef struct {
    pid_t  pid;
    int    fd;
    int    code; /* exit code, or 128 + signal; -1: had to be killed */
    size_t n;
    char   output[BT_COMMAND_OUTPUT]; /* terminated */
} bt_command;

static inline double bt_command_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* argv[0] is a path; `environment` holds NAME=VALUE strings to add, or a NAME to be without it, in
 * this order, NULL-terminated, or NULL. */
static inline void bt_command_start(bt_command *c, const char *const *argv,
                                    const char *const *environment)
{
    int fds[2];

    memset(c, 0, sizeof(*c));
    if (pipe2(fds, O_CLOEXEC) != 0 || (c->pid = fork()) < 0) {
        perror("cannot start a test's program");
        exit(EXIT_FAILURE);
    }
    if (c->pid == 0) {
        int null = open("/dev/null", O_RDONLY);

        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(null, STDIN_FILENO);
        dup2(fds[1], STDOUT_FILENO);
        dup2(fds[1], STDERR_FILENO);
        for (; environment != NULL && *environment != NULL; environment++) {
            putenv((char *)*environment);
        }
        execv(argv[0], (char *const *)argv);
        _exit(126);
    }
    close(fds[1]);
    c->fd = fds[0];
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
}

/* Reads what there is within `seconds`; true when `part` is in the output. */
static inline bool bt_command_wait_for(bt_command *c, const char *part, double seconds)
{
    double end = bt_command_now() + seconds;

    while (strstr(c->output, part) == NULL && bt_command_now() < end) {
        struct pollfd p = {c->fd, POLLIN, 0};
        ssize_t       got;

        poll(&p, 1, 20);
        if (c->n >= sizeof(c->output) - 1) break;
        got = read(c->fd, c->output + c->n, sizeof(c->output) - 1 - c->n);
        if (got == 0) break;
        if (got > 0) c->n += (size_t)got;
        c->output[c->n] = '\0';
    }
    return strstr(c->output, part) != NULL;
}

/* Waits for the end, at most so long; returns the code. */
static inline int bt_command_finish(bt_command *c, double seconds)
{
    double end    = bt_command_now() + seconds;
    int    status = 0;

    while (waitpid(c->pid, &status, WNOHANG) == 0) {
        bt_command_wait_for(c, "\x01", 0.02); /* keeps the pipe empty */
        if (bt_command_now() < end) continue;
        kill(c->pid, SIGKILL);
        waitpid(c->pid, &status, 0);
        fprintf(stderr, "still running after %g s; it wrote:\n%s\n", seconds, c->output);
        c->code = -1;
        break;
    }
    bt_command_wait_for(c, "\x01", 0.05);
    close(c->fd);
    if (c->code != -1) {
        c->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    return c->code;
}

static inline int bt_command_run(bt_command *c, const char *const *argv,
                                 const char *const *environment, double seconds)
{
    bt_command_start(c, argv, environment);
    return bt_command_finish(c, seconds);
}

/* A child of the program, the one that ps calls so where name is not NULL; 0: there is none. */
static inline pid_t bt_command_child(const bt_command *c, const char *name)
{
    char  path[64], comm[32];
    FILE *list, *f;
    long  pid;
    pid_t found = 0;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)c->pid, (int)c->pid);
    list = fopen(path, "re");
    while (list != NULL && found == 0 && fscanf(list, "%ld", &pid) == 1) {
        snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
        f = fopen(path, "re");
        if (name == NULL || (f != NULL && fscanf(f, "%31s", comm) == 1 && strcmp(comm, name) == 0))
            found = (pid_t)pid;
        if (f != NULL) fclose(f);
    }
    if (list != NULL) fclose(list);
    return found;
}

/* True when the program has started one of its own within `seconds`. */
static inline bool bt_command_has_child(const bt_command *c, double seconds)
{
    double end = bt_command_now() + seconds;

    while (bt_command_child(c, NULL) == 0)
        if (bt_command_now() >= end) return false;
    return true;
}

/* No such process, or a zombie, within `seconds`. */
static inline bool bt_process_gone(pid_t pid, double seconds)
{
    double end = bt_command_now() + seconds;
    char   path[64], state = 'Z';
    FILE  *f;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    do {
        f = fopen(path, "re");
        if (f == NULL) return true;
        if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
        fclose(f);
        if (state == 'Z') return true;
        usleep(10000);
    } while (bt_command_now() < end);
    return false;
}

#endif
