/* launch/mpirun.h - everything that Baton knows about Open MPI's launcher. */
#ifndef BT_LAUNCH_MPIRUN_H
#define BT_LAUNCH_MPIRUN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/rank_map.h"
#include "launch/scratch.h"

typedef struct {
    uint32_t           n_ranks;
    const char        *mpirun;   /* NULL: search */
    const char        *hostfile; /* NULL: this machine only */
    const char        *hosts;    /* "n1:2,n2:2", or NULL */
    const bt_rank_map *map;   /* where each rank runs, borrowed; NULL: in the slots of the hosts */
    bool               slurm; /* the nodes of the Slurm job that this runs in */
    bool               survive; /* the other ranks go on when one dies */
    char             **argv;    /* the program and its arguments, NULL-terminated */
} bt_mpirun_options;

/* The ranks run on several hosts and go on when one dies: endings come by lines (endings.h). */
bool bt_mpirun_survives_far(const bt_mpirun_options *options);

/* Starts mpirun in a session of its own; it dies with this process.  Every rank runs
 * `baton-launch --as-rank -- argv`.  Variables of Open MPI that the user has set stay as they are.
 */
bt_status bt_mpirun_start(const bt_mpirun_options *options, const bt_scratch *scratch,
                          pid_t *pid_out);

/* Becomes `mpirun --version`, of the one that a start would use; `wanted` may be NULL.  Returns
 * only with an error. */
bt_status bt_mpirun_tell_version(const char *wanted);

/* For a child of `parent`: it becomes argv[0], in a session of its own, and dies with the parent.
 * out: its standard output, or -1 for this process's. */
BT_NORETURN void bt_mpirun_exec(char **argv, pid_t parent, int out);

/* Ranks may run on other hosts; else all of them are children of mpirun. */
bool bt_mpirun_is_far(const bt_mpirun_options *options);

/* The process that has ranks as children: mpirun, or the one that a script in its place waits for.
 * 0: none has any yet, or they cannot be known. */
pid_t bt_mpirun_starter(pid_t mpirun);

/* The children of mpirun now, dead ones among them that it has not collected; UINT32_MAX: not to be
 * known. */
uint32_t bt_mpirun_n_children(pid_t mpirun);

/* Ends what a killed mpirun may have left: every child of this process except `keep`; session_only:
 * of these the ones of mpirun's session, as others may be none of the job's.  Needs
 * PR_SET_CHILD_SUBREAPER, which start() sets. */
void bt_mpirun_reap(pid_t mpirun, pid_t keep, bool session_only);

#endif
