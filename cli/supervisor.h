/* cli/supervisor.h - one coordinator and one job of ranks on this machine, from start to end.
 *
 *   starting --control port--> loading --every rank ready--> serving --signal, death--> stopping
 *
 * With restarts, what dies after it has served is started again, with a growing wait
 * (restart_wait.h): ranks under the same coordinator, which replays their requests; or the
 * coordinator, also while ranks load, at the same addresses: the ranks attach to it again.  One
 * that is silent for too long is killed, and has died.  With `join` there are only ranks, for a
 * coordinator elsewhere.
 *
 * With `renew` ranks of a second cell are started under the same coordinator when the first lacks
 * some; the first drains when the second serves.
 *
 * A signal that drains goes to the coordinator, which ends by itself when its last request has; it
 * is told whether a second cell is on its way, for which requests wait if the first one dies.
 *
 * Whatever happens, run() returns only when every process of the cell is gone.
 *
 * Threads: the main thread, which has no others. */
#ifndef BT_CLI_SUPERVISOR_H
#define BT_CLI_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cell_options.h"
#include "core/log.h"
#include "core/server_options.h"

typedef struct {
    bt_cell_options   cell;
    bt_server_options server;  /* what the coordinator gets as it is */
    const char       *control; /* HOST:PORT where the ranks attach */
    const char       *join; /* HOST:PORT of another coordinator's control port; NULL: start one */
    uint32_t          restarts; /* so many in a row at most; 0: what dies ends the cell */
    bool              renew;    /* a cell that lacks ranks is replaced by a fresh one beside it */
    uint16_t          port;     /* 0: any */
    uint64_t          stall_ns; /* loading without progress for so long is a failure */
    bt_log_level      log;
    const char       *chat;       /* ask this, then stop; NULL: serve until a signal */
    const char       *max_tokens; /* of that answer */
    bt_passed_on      client;     /* what the one that asks gets as it is */
} bt_run_options;

/* Returns the exit code: 0 after a clean end that was asked for, 1 after any failure, which has
 * been reported; with `chat`, that of the client. */
int bt_supervisor_run(const bt_run_options *opt);

#endif
