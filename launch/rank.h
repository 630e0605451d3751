/* launch/rank.h - what mpirun starts for each rank: the parent of one worker.
 *
 * It ties the worker's life to mpirun's (which leaves its ranks running when it is killed), and
 * reports how the worker ended, which mpirun tells in prose or not at all. */
#ifndef BT_LAUNCH_RANK_H
#define BT_LAUNCH_RANK_H

#include <stdbool.h>

typedef struct {
    const char *shm; /* of a job over several hosts: the folder for its shared memory (leftovers.h);
                      * NULL: somebody else removes that */
    const char *bind; /* launch/bind.h; NULL: to nothing */
    bool        tell; /* by a line how it ended (endings.h) */
} bt_rank_options;

/* Runs argv and returns the exit code that tells how it ended: its own, or 128 + signal; 127 when
 * it cannot be executed.  Signals that mpirun sends go to the whole process group, so the worker
 * has them by itself. */
int bt_rank_run(char **argv, const bt_rank_options *options);

#endif
