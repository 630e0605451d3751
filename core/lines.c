#include "core/lines.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { AT_ONCE = 1 << 16 }; /* bytes: as many as a pipe holds */

void bt_lines_read(bt_lines *lines, bt_line_fn fn, void *ctx)
{
    for (size_t n_read = 0; lines->fd >= 0 && n_read < AT_ONCE;) {
        ssize_t got   = read(lines->fd, lines->buf + lines->n, sizeof(lines->buf) - 1 - lines->n);
        char   *start = lines->buf, *end;

        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {
            lines->buf[lines->n] = '\0';
            if (lines->n != 0) fn(ctx, lines->buf);
            close(lines->fd);
            lines->fd = -1;
            lines->n  = 0;
            return;
        }
        n_read += (size_t)got;
        lines->n += (size_t)got;
        lines->buf[lines->n] = '\0';
        while ((end = memchr(start, '\n', lines->n - (size_t)(start - lines->buf))) != NULL) {
            *end = '\0';
            fn(ctx, start);
            start = end + 1;
        }
        lines->n -= (size_t)(start - lines->buf);
        memmove(lines->buf, start, lines->n + 1);
        if (lines->n == sizeof(lines->buf) - 1) { /* too long: a piece */
            fn(ctx, lines->buf);
            lines->n = 0;
        }
    }
}
