#include "coordinator/announce.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "core/log.h"

enum { LINE_MAX_BYTES = 1024, WAIT_MS = 1000 };

void bt_announce(int fd, bool must, const char *fmt, ...)
{
    char          line[LINE_MAX_BYTES];
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    va_list       ap;
    int           n;

    if (fd < 0) return;
    va_start(ap, fmt);
    n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
    va_end(ap);
    if (n > (int)sizeof(line) - 2) n = (int)sizeof(line) - 2;
    for (int i = 0; i < n; i++) /* a reason with a newline stays one line */
        if (line[i] == '\n') line[i] = ' ';
    line[n++] = '\n';
    /* When a pipe polls writable, a line this short fits in whole and without waiting. */
    if (poll(&p, 1, must ? WAIT_MS : 0) != 1 || (p.revents & POLLOUT) == 0) return;
    if (write(fd, line, (size_t)n) < 0) BT_WARN("nobody reads descriptor %d", fd);
}
