/* core/program.c - what every program of ours does before and after its main; bt_program() of
 * cmake/baton.cmake links it in, and nobody calls it.
 *
 * Before: where descriptor 0, 1 or 2 is closed, /dev/null takes its number, opened the wrong way
 * round. No socket or pipe can get it later, and using it still fails with EBADF.
 * After: a program that ends well has written all that it had to say to stdout, else it fails. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* argp's --version shows it; declared in argp.h, and libc looks for it in the program. */
__attribute__((visibility("default"))) extern const char *argp_program_version;
const char *argp_program_version = "baton " BT_VERSION;

/* Before the shared libraries' constructors: gRPC's make descriptors before main begins. */
static void reserve(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        /* The lowest free number is this one. */
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) _exit(EXIT_FAILURE);
    }
}

__attribute__((section(".preinit_array"), used)) static void (*const g_reserve)(void) = reserve;

/* Whoever read stdout has heard enough and has closed the pipe. */
static bool no_reader(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR) != 0;
}

/* Whoever fails has said why. */
static void finish(int status, void *unused)
{
    (void)unused;
    errno = 0;
    if (status != EXIT_SUCCESS || (fflush(stdout) == 0 && !ferror(stdout))) return;
    if (errno == EPIPE || no_reader()) _exit(EXIT_FAILURE); /* as where SIGPIPE ends a program */
    fprintf(stderr, "%s: stdout: %s\n", program_invocation_short_name,
            errno != 0 ? strerror(errno) : "a write has failed: is the disk full?");
    _exit(EXIT_FAILURE);
}

__attribute__((constructor)) static void start(void) { on_exit(finish, NULL); }
