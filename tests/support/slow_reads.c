/* tests/support/slow_reads.c - weights that come from a slow disk, to be preloaded.
 *
 * While the file $BT_SLOW_FILE exists, rank $BT_SLOW_RANK, or every one where that is not set,
 * waits each time that it gives a tensor's pages back.  The ranks of a machine share no memory, so
 * that all of them read. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAUSE_US = 200000 };

int memfd_create(const char *name, unsigned flags)
{
    (void)name, (void)flags;
    errno = ENOSYS;
    return -1;
}

int madvise(void *memory, size_t n, int advice)
{
    const char *file = getenv("BT_SLOW_FILE"), *rank = getenv("BT_SLOW_RANK");
    const char *self = getenv("OMPI_COMM_WORLD_RANK");
    int (*real)(void *, size_t, int);

    *(void **)&real = dlsym(RTLD_NEXT, "madvise");
    if (advice == MADV_DONTNEED && file != NULL && access(file, F_OK) == 0 &&
        (rank == NULL || (self != NULL && strcmp(rank, self) == 0)))
        usleep(PAUSE_US);
    return real(memory, n, advice);
}
