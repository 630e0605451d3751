/* launch/openmpi.h - what mpirun and the ranks' MPI are told through the environment.
 *
 * Open MPI 4 has a run time of its own (ORTE), which reads OMPI_MCA_*; 5 has PRRTE and PMIx, which
 * read PRTE_MCA_* and PMIX_MCA_*, and know much of the same by other names. */
#ifndef BT_LAUNCH_OPENMPI_H
#define BT_LAUNCH_OPENMPI_H

#include "launch/mpirun.h"

/* Sets HOME where there is none: 5 does not start without. */
void bt_openmpi_need_home(void);

/* Of which Open MPI the mpirun at this path is: 4, 5, ..; 4 if it does not say so.  Sees to HOME.
 */
unsigned bt_openmpi_major(const char *mpirun);

/* Sets the variables for a job of such an Open MPI; those that the user has set stay as they are,
 * but for the job's private directories. */
void bt_openmpi_set_environment(const bt_mpirun_options *options, const bt_scratch *scratch,
                                unsigned major);

/* What mpirun's own srun is told inside a Slurm job, where several jobs share the nodes: their
 * daemons do not wait for each other.  NULL outside of one.  4 hears it from the environment, as
 * set above, 5 from its command line alone. */
const char *bt_openmpi_srun_arguments(const bt_mpirun_options *options);

/* Where the ranks of this machine put what they share, by the names that Open MPI 4 and 5 have for
 * it.  replace: also where the user has set one of them. */
void bt_openmpi_set_shared_memory(const char *dir, bool replace);
/* Those of mpirun and of its daemons, each at a place of its own.  Open MPI does not start where
 * there is one for all beside them: ours, or in a rank mpirun's. */
void bt_openmpi_forget_sessions(void);

#endif
