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

typedef struct {
    const char *model, *served_name, *host, *control;
    const char *public_path; /* of the model, for clients; "": unsaid */
    uint32_t    port;
    int         announce_fd;
    double      queue_s, rank_timeout_s, stall_s, attach_s, load_s;
    double      cell_wait_s; /* how long requests wait for a cell when none is left; 0: the end */
    uint64_t    queue_tokens;
    uint32_t    prefill_window;
    const char *http_host;
    int         http_port; /* -1: none */
    bool        replace;   /* --on-death=replace */
    double      rejoin_s;
    double      unread_s;  /* a client from which nothing comes, though it should, is cut off */
    double      drain_s;   /* SIGTERM lets running requests go on so long; 0: not at all */
    bool        busy_poll; /* no sleep while ranks have requests */
    bool        sglang;    /* the public port speaks that protocol too */
    bool        verbose;   /* main's: log with level debug */
    const char *tls_cert, *tls_key, *tls_client_ca; /* files; NULL: plain text */
} bt_coordinator_options;

/* Returns the process's exit code. */
int bt_coordinator_run(const bt_coordinator_options *options);

#endif
