/* tests/cuda/aborts.h - what a run that must end the process says. */
#ifndef BT_TESTS_CUDA_ABORTS_H
#define BT_TESTS_CUDA_ABORTS_H

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

/* Runs fn in a child whose stderr goes to text; whether it ended by abort(). */
static inline bool aborts(void (*fn)(void), char *text, size_t size)
{
    int     fd[2], status = 0;
    ssize_t n = 0, got;
    pid_t   child;

    if (pipe(fd) != 0 || (child = fork()) < 0) abort();
    if (child == 0) {
        dup2(fd[1], 2);
        close(fd[0]);
        fn();
        _exit(0);
    }
    close(fd[1]);
    while ((got = read(fd[0], text + n, size - 1 - (size_t)n)) > 0)
        n += got;
    text[n] = 0;
    close(fd[0]);
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}
#define EXPECT_ABORT(fn, part)                    \
    do {                                          \
        char said_[4096] = "";                    \
        EXPECT(aborts(fn, said_, sizeof(said_))); \
        EXPECT_HAS(said_, part);                  \
    } while (0)

#endif
