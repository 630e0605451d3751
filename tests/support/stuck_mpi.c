/* tests/support/stuck_mpi.c - an MPI that does not come back, to be preloaded.
 *
 * Once the file $BT_STUCK_FILE exists, MPI_Testsome of rank $BT_STUCK_RANK never returns: what a
 * fault inside the library looks like from outside.  With $BT_STUCK_END no rank comes back from
 * MPI_Finalize, as may happen once one has died.  The names are MPI's own profiling interface. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int MPI_Testsome(int n, MPI_Request requests[], int *n_done, int indices[], MPI_Status statuses[])
{
    const char *file = getenv("BT_STUCK_FILE"), *rank = getenv("BT_STUCK_RANK");
    const char *self = getenv("OMPI_COMM_WORLD_RANK");

    while (file != NULL && rank != NULL && self != NULL && strcmp(rank, self) == 0 &&
           access(file, F_OK) == 0)
        pause();
    return PMPI_Testsome(n, requests, n_done, indices, statuses);
}

int MPI_Finalize(void)
{
    while (getenv("BT_STUCK_END") != NULL)
        pause();
    return PMPI_Finalize();
}
