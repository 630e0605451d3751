/* cli/outlet.h - what a program says once, for whoever reads it whenever he does: it waits in
 * memory where stdout or stderr takes nothing now (a terminal after ^S, a pager, a full pipe), and
 * the program never waits.
 *
 * Threads: one at a time. */
#ifndef BT_CLI_OUTLET_H
#define BT_CLI_OUTLET_H

#include <stdbool.h>
#include <stddef.h>

#include "core/log.h"

typedef struct {
    int    fd; /* -1: closed */
    bool   is_own, is_socket;
    char  *rest; /* owned: [n_rest], not taken yet */
    size_t n_rest;
} bt_outlet;

/* fd is borrowed up to the close, and nobody else's way of writing to it changes. */
void bt_outlet_open(bt_outlet *outlet, int fd);
/* Writes it after what waits.  Short of memory, or with no reader any more, it is dropped; what
 * cannot be written for another reason is logged. */
BT_PRINTF(2, 3) void bt_outlet_say(bt_outlet *outlet, const char *fmt, ...);
/* Writes what is taken now of what waits.  To be called now and then. */
void bt_outlet_push(bt_outlet *outlet);
/* Drops what waits. */
void bt_outlet_close(bt_outlet *outlet);

#endif
