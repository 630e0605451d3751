/* core/lines.h - what another process writes, line by line. */
#ifndef BT_CORE_LINES_H
#define BT_CORE_LINES_H

#include <stddef.h>

/* Lines of a pipe, without their ends; a longer line comes in pieces. */
typedef struct {
    int    fd; /* -1: at its end */
    size_t n;
    char   buf[4096];
} bt_lines;
typedef void (*bt_line_fn)(void *ctx, const char *line);
/* Reads what is there (the pipe does not block) and calls fn for each line; of one who never stops
 * writing no more than a pipe holds, since others have a turn too. */
void bt_lines_read(bt_lines *lines, bt_line_fn fn, void *ctx);

#endif
