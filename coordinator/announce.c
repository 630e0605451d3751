#include "coordinator/announce.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
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

/* A file would grow for ever, and a pipe that nobody reads any more would be full when a line comes
 * that must get through. */
static bool is_read(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    struct stat   info;
    int           n_unread = 0;

    return fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode) && ioctl(fd, FIONREAD, &n_unread) == 0 &&
           n_unread == 0 && poll(&p, 1, 0) == 1 && (p.revents & POLLERR) == 0;
}

void bt_announce_alive(int fd, uint64_t now_ns, uint64_t *due_ns)
{
    if (fd < 0 || now_ns < *due_ns) return;
    *due_ns = now_ns + BT_NS_PER_S;
    if (is_read(fd)) bt_announce(fd, false, "alive");
}
