/* coordinator/coordinator.h - the life of the process: bind, wait for the ranks, serve, end.
 *
 * One thread and one completion queue.  With --on-death=stop a cell whose rank is lost ends: every
 * open request gets its status, the other ranks are told to leave, and the process exits 1.  With
 * --on-death=replace the others go on once all have been ready; where a group has lost its last
 * rank, requests wait for one, and after rejoin_s the cell ends all the same. */
#ifndef BT_COORDINATOR_COORDINATOR_H
#define BT_COORDINATOR_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *model, *served_name, *host, *control;
    uint32_t    port;
    int         announce_fd;
    double      queue_s, rank_timeout_s, stall_s, attach_s, load_s;
    uint64_t    queue_tokens;
    uint32_t    prefill_window;
    const char *http_host;
    int         http_port; /* -1: none */
    bool        replace;   /* --on-death=replace */
    double      rejoin_s;
    double      drain_s; /* SIGTERM lets running requests go on so long; 0: not at all */
    const char *tls_cert, *tls_key, *tls_client_ca; /* files; NULL: plain text */
} bt_coordinator_options;

/* Returns the process's exit code. */
int bt_coordinator_run(const bt_coordinator_options *options);

#endif
