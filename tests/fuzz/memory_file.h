/* tests/fuzz/memory_file.h - bytes as a file that has a path. */
#ifndef BT_TESTS_FUZZ_MEMORY_FILE_H
#define BT_TESTS_FUZZ_MEMORY_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

/* The file's descriptor; made on the first call, refilled on each. */
static inline int memory_file(int *fd, const uint8_t *data, size_t n)
{
    if (*fd < 0) *fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, 0) != 0 || pwrite(*fd, data, n, 0) != (ssize_t)n) abort();
    return *fd;
}
#endif
