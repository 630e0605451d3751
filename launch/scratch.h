/* launch/scratch.h - the private directories of one MPI job, removed whatever happens.
 *
 * Open MPI puts its session files under TMPDIR and its shared memory under /dev/shm, and leaves
 * both behind when it is killed.  Here both lie in directories of our own, and a guard process,
 * which sees the end of this one even after SIGKILL, removes them.  Where the guard is killed too,
 * the next job clears them: who lives holds his directories by a lock, which the kernel drops with
 * its last holder.
 *
 * Threads: the main thread.  open() forks. */
#ifndef BT_LAUNCH_SCRATCH_H
#define BT_LAUNCH_SCRATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/status.h"

typedef struct {
    char  session[64]; /* short: unix socket paths are built below it */
    char  shm[64];     /* in /dev/shm, or below session where that is not writable */
    int   held_fds[2]; /* of both directories: locked */
    int   alive_fd;    /* its closing tells the guard that we have ended; -1: not open */
    pid_t guard;
} bt_scratch;

/* IO names the directory and the cause. */
bt_status bt_scratch_open(bt_scratch *scratch_out);
/* Have both directories room for what Open MPI puts there for n_ranks on this machine?  IO names
 * the one that has not: mpirun says nothing of use then, or a rank dies of SIGBUS later. */
bt_status bt_scratch_check_room(const bt_scratch *scratch, uint32_t n_ranks);
/* Waits until the directories are gone.  Accepts a scratch that was never opened
 * (BT_SCRATCH_NONE). */
void bt_scratch_close(bt_scratch *scratch);

/* A shared lock on the directory until the descriptor closes: it belongs to a job that lives.
 * -1: it is not there, or is being cleared. */
int bt_scratch_hold(const char *path);
/* A guard: of a process just forked, whose parent has blocked the signals that could end it. Leaves
 * the parent's group, and its files but for stdout, and returns when the pipe's other end has
 * closed, which the kernel does however the parent ends: true when the parent has written something
 * into it before. */
bool bt_scratch_outlive(int alive_fd);
/* Removes the directories of jobs in base that belong to this user and that nobody holds. */
void bt_scratch_clear(const char *base);

#define BT_SCRATCH_NONE \
    (bt_scratch) { .alive_fd = -1, .guard = -1 }
#endif
