#include "cli/outlet.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/file.h"

void bt_outlet_open(bt_outlet *outlet, int fd)
{
    struct stat info;
    int         own = bt_open_never_blocking(fd);

    memset(outlet, 0, sizeof(*outlet));
    outlet->fd        = own >= 0 ? own : fd;
    outlet->is_own    = own >= 0;
    outlet->is_socket = fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

void bt_outlet_say(bt_outlet *outlet, const char *fmt, ...)
{
    va_list ap, again;
    char   *rest = NULL;
    int     n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    if (n > 0) rest = bt_realloc(outlet->rest, outlet->n_rest + (size_t)n + 1, 1);
    if (rest != NULL) {
        vsnprintf(rest + outlet->n_rest, (size_t)n + 1, fmt, again);
        outlet->rest = rest;
        outlet->n_rest += (size_t)n;
    }
    va_end(again);
    va_end(ap);
    bt_outlet_push(outlet);
}

void bt_outlet_push(bt_outlet *outlet)
{
    struct pollfd p    = {.fd = outlet->fd, .events = POLLOUT};
    size_t        done = 0;

    /* Also where it could not be opened anew: a pipe that polls writable takes PIPE_BUF bytes. */
    while (done < outlet->n_rest && poll(&p, 1, 0) == 1) {
        const char *at   = outlet->rest + done;
        size_t      left = outlet->n_rest - done, n = left < PIPE_BUF ? left : PIPE_BUF;
        ssize_t     put = outlet->is_socket ? send(outlet->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL)
                                            : write(outlet->fd, at, n);

        if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
        if (put < 0 && errno != EPIPE)
            BT_WARN("%s: not written: %.*s", strerror(errno), (int)(left - (at[left - 1] == '\n')),
                    at);
        done += put > 0 ? (size_t)put : left; /* else nobody will ever read it */
    }
    if (done == 0) return;
    outlet->n_rest -= done;
    memmove(outlet->rest, outlet->rest + done, outlet->n_rest);
}

void bt_outlet_close(bt_outlet *outlet)
{
    if (outlet->is_own) close(outlet->fd);
    bt_free(outlet->rest);
    memset(outlet, 0, sizeof(*outlet));
    outlet->fd = -1;
}
