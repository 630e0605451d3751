/* cli/echo.h - what the processes of a cell write, passed on to our stderr, and remembered.
 *
 * Lines of core/log.h are filtered by level; other lines (of MPI, of a crash) pass, but for one of
 * MPI's that means nothing.  The first error of a rank is kept: it says why a cell ended better
 * than what follows from it. */
#ifndef BT_CLI_ECHO_H
#define BT_CLI_ECHO_H

#include <stdbool.h>

#include "core/log.h"

typedef struct {
    bt_log_level max_level;
    bool         terminal;         /* stderr is one: a progress bar may stand on its last line */
    bool         bar;              /* it stands there now */
    char         first_error[600]; /* "rank 2: out of memory: ...", without "rank 2: " where
                                    * it had no number yet; "" when there was none */
} bt_echo;

void bt_echo_init(bt_echo *echo, bt_log_level max_level);
/* A bt_line_fn; ctx is the echo. */
void bt_echo_line(void *echo, const char *line);
/* On a terminal: one line that the next one overwrites, cut to the terminal's width. */
BT_PRINTF(2, 3) void bt_echo_bar(bt_echo *echo, const char *fmt, ...);
void bt_echo_clear_bar(bt_echo *echo);

#endif
