/* coordinator/coordinator.h - the life of the process: bind, wait for the ranks, serve, end.
 *
 * One thread and one completion queue.  A cell whose rank is lost ends, and its requests go on in
 * another one (fleet.h); with --on-death=replace its other ranks go on once all have been ready,
 * and it ends when a group has been without any rank for rejoin_s.  When no cell is left requests
 * wait for one, for cell_wait_s, or, where that is 0, get their status, and the process exits 1. */
#ifndef BT_COORDINATOR_COORDINATOR_H
#define BT_COORDINATOR_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "core/server_options.h"

typedef struct {
    bt_server_options server; /* its name and path have been said; path "": unsaid to clients */
    const char       *model, *control;
    uint32_t          port;
    int               announce_fd;
    double            stall_s, attach_s, load_s;
    double   cell_wait_s; /* how long requests wait for a cell when none is left; 0: the end */
    uint32_t prefill_window;
    bool     replace; /* --on-death=replace */
    bool     verbose; /* main's: log with level debug */
} bt_coordinator_options;

/* Returns the process's exit code. */
int bt_coordinator_run(const bt_coordinator_options *options);

#endif
