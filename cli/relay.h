/* cli/relay.h - what the processes of a cell write, passed on to our stderr, and remembered.
 *
 * Lines of core/log.h are filtered by level; other lines (of MPI, of a crash) always pass.  The
 * first error of a rank is kept: it says why a cell ended better than what follows from it. */
#ifndef BT_CLI_RELAY_H
#define BT_CLI_RELAY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/log.h"

typedef struct {
    bt_log_level max_level;
    bool         terminal;         /* stderr is one: a progress bar may stand on its last line */
    bool         bar;              /* it stands there now */
    char         first_error[600]; /* "rank 2: out of memory: ..."; "" when there was none */
} bt_relay;

void bt_relay_init(bt_relay *relay, bt_log_level max_level);
/* A bt_line_fn; ctx is the relay. */
void bt_relay_line(void *relay, const char *line);
/* On a terminal: one line that the next one overwrites, cut to the terminal's width. */
BT_PRINTF(2, 3) void bt_relay_bar(bt_relay *relay, const char *fmt, ...);
void bt_relay_clear_bar(bt_relay *relay);

#endif
