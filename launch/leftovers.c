#include "launch/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/processes.h"
#include "launch/endings.h"
#include "launch/openmpi.h"
#include "launch/scratch.h"

enum { HOLD_TRIES = 20 };

#define WORKER_NS (200 * BT_NS_PER_MS) /* for the kernel to end the worker after its parent */
#define DAEMON_NS (20 * BT_NS_PER_S)

/* Open MPI names a rank's segments so: "vader_segment.HOST.UID.JOB.LOCAL_RANK"; since 5 "sm_..". */
static void remove_segments(const char *dir, const char *local_rank)
{
    DIR           *d = opendir(dir);
    struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        const char *dot = strrchr(e->d_name, '.');

        if (dot != NULL && strcmp(dot + 1, local_rank) == 0) unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d != NULL) closedir(d);
}

/* A zombie has ended: a daemon that hangs leaves its children so. */
static bool lives(pid_t daemon, pid_t pid, void *ctx)
{
    char  path[64], state = 'Z';
    FILE *f;

    (void)daemon, (void)ctx;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (f == NULL) return false;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 'Z';
    fclose(f);
    return state != 'Z' && state != 'X';
}

static bool is_daemon(pid_t pid)
{
    char name[BT_PROCESS_NAME];

    bt_process_name(pid, name);
    return strcmp(name, "orted") == 0 || strcmp(name, "prted") == 0;
}

/* Ranks of the job live here: where others go on, the daemon is needed. */
static bool has_ranks(pid_t daemon) { return bt_process_each_child(daemon, lives, NULL); }

/* The last rank's guard ends a daemon that stays: one whose mpirun cannot be reached does. */
static void end_daemon(pid_t pid)
{
    uint64_t end_ns = bt_now_ns() + DAEMON_NS;

    while (is_daemon(pid) && !has_ranks(pid) && bt_now_ns() < end_ns)
        bt_sleep_ns(50 * BT_NS_PER_MS);
    if (is_daemon(pid) && !has_ranks(pid)) kill(pid, SIGKILL);
}

static BT_NORETURN void guard(const char *dir, const char *local_rank, pid_t daemon, int alive_fd,
                              bool tell)
{
    if (!bt_scratch_outlive(alive_fd) && tell) {
        fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK); /* of a daemon that may hang */
        bt_endings_note(128 + SIGKILL, true);
    }
    close(STDOUT_FILENO);
    bt_sleep_ns(WORKER_NS);
    remove_segments(dir, local_rank);
    if (rmdir(dir) == 0 || errno == ENOENT) end_daemon(daemon);
    _exit(0);
}

/* Makes the directory unless a rank beside this one has, and holds it until this process ends. */
static bool make_shared(const char *dir)
{
    for (int i = 0; i < HOLD_TRIES; i++) {
        if (mkdir(dir, 0700) != 0 && errno != EEXIST) return false;
        if (bt_scratch_hold(dir) >= 0) return true;
        bt_sleep_ns(10 * BT_NS_PER_MS); /* somebody has taken it for a dead job's */
    }
    return false;
}

static void clear_beside(const char *dir)
{
    const char *slash = strrchr(dir, '/');
    char        base[PATH_MAX];

    if (slash == NULL) return;
    snprintf(base, sizeof(base), "%.*s", (int)(slash - dir), dir);
    bt_scratch_clear(base);
}

static int g_alive_fd = -1; /* closes with this process */

bt_status bt_leftovers_watch(const char *dir, const char *local_rank, bool tell)
{
    bt_status st     = BT_OK;
    pid_t     daemon = getppid(), pid;
    int       ends[2];

    clear_beside(dir);
    if (make_shared(dir)) bt_openmpi_set_shared_memory(dir, false);
    BT_REQUIRE(pipe2(ends, O_CLOEXEC) == 0 && (pid = fork()) >= 0, BT_ERR_IO,
               "cannot start the guard of local rank %s: %s", local_rank, strerror(errno));
    if (pid == 0) guard(dir, local_rank, daemon, ends[0], tell);
    close(ends[0]);
    g_alive_fd = ends[1];
out:
    return st;
}

void bt_leftovers_told(void)
{
    if (g_alive_fd >= 0 && write(g_alive_fd, "", 1) != 1)
        BT_WARN("this rank's guard has gone: %s", strerror(errno));
}
