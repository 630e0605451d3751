/* cli/child.h - the processes that a verb starts: spawned, read line by line, ended for certain.
 *
 * A child dies with this process (PR_SET_PDEATHSIG), has no terminal input, and runs in a process
 * group of its own, so that ^C reaches this process alone, which ends its children in order.  Call
 * bt_child_spawn() before gRPC or any thread exists.
 *
 * Threads: the main thread. */
#ifndef BT_CLI_CHILD_H
#define BT_CLI_CHILD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/lines.h"
#include "core/status.h"

typedef struct {
    const char *name; /* for messages: "coordinator" */
    pid_t       pid;  /* 0: not started */
    bool        ended;
    int         status;  /* of waitpid, once ended */
    bool        killed;  /* by bt_child_kill(), if by SIGKILL */
    uint64_t    told_ns; /* when bt_child_kill() first sent SIGTERM; 0: it did not */
    int         go_fd;   /* a held child waits for its last argument here; -1: not held */
    bt_lines    err;     /* its stderr */
    bt_lines    report;  /* what it writes to report_fd */
} bt_child;

typedef struct {
    const char *name;
    char      **argv;     /* NULL-terminated; argv[0] is a path */
    bool        held;     /* exec only when bt_child_go() gives the last argument */
    bool        reports;  /* gets a pipe; its number replaces the argument "@report" */
    bool        in_front; /* has our process group, terminal input and stderr: nothing to read */
} bt_child_spec;

/* Not started: what a bt_child is before spawn. */
void bt_child_init(bt_child *child);
/* spec is borrowed, its name for the child's life.  IO: no pipe, or no process. */
bt_status bt_child_spawn(const bt_child_spec *spec, bt_child *child_out);
/* Of a held child, once; last_argument has 1 to 511 bytes.  IO: it has ended. */
bt_status          bt_child_go(bt_child *child, const char *last_argument);
static inline bool bt_child_running(const bt_child *child)
{
    return child->pid != 0 && !child->ended;
}
void bt_child_kill(bt_child *child, int sig);
/* With a value, as sigqueue(3). */
void bt_child_tell(bt_child *child, int sig, int value);
/* Waits for any child that has ended, without blocking; true when one of children[0..n) did. */
bool bt_child_collect(bt_child *const *children, size_t n);
/* "ended with exit code 3", "was ended by signal 15 (Terminated)" (core/ending.h). */
const char *bt_child_ending(const bt_child *child, char *buf, size_t capacity);
/* Closes its pipes, and leaves it as init() does: in the place of one that has ended another one
 * can be spawned. */
void bt_child_close(bt_child *child);

/* Before the first spawn: takes over what dying children leave behind (PR_SET_CHILD_SUBREAPER).
 * Where this process has children already, as after `helper & exec baton run`, it does not: theirs
 * could not be told from ours, which die with their parents anyway. */
void bt_child_adopt(void);
/* Waits wait_ns, then kills and collects, what was spawned and taken over; children from before
 * adopt() and their children live on.  Call it last. */
void bt_child_end_all(uint64_t wait_ns);

/* The path of a program of ours: it lies in this program's own directory. */
bt_status bt_program_path(const char *name, char path_out[PATH_MAX]);

#endif
