#include "cli/streams.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

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

void bt_streams_init(void) { signal(SIGPIPE, SIG_IGN); }
