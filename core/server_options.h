/* core/server_options.h - the options of the public server, which baton-coordinator reads
 * and `baton run` reads, checks and passes on to it. */
#ifndef BT_CORE_SERVER_OPTIONS_H
#define BT_CORE_SERVER_OPTIONS_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/passed_on.h"

/* Strings are borrowed from argv. */
typedef struct {
    const char  *host;        /* of the public port */
    const char  *served_name; /* NULL: unsaid */
    const char  *public_path; /* of the model, for clients; "none", or NULL: unsaid */
    double       queue_s;     /* a request may wait so long for its turn */
    uint64_t     queue_tokens;
    double       drain_s;  /* SIGTERM lets running requests go on so long; 0: not at all */
    double       unread_s; /* a client from which nothing comes, though it should, is cut off */
    double       rejoin_s, rank_timeout_s;
    const char  *http_host;
    int          http_port;                          /* -1: none */
    bool         busy_poll;                          /* no sleep while ranks have requests */
    bool         sglang;                             /* the public port speaks that protocol too */
    const char  *tls_cert, *tls_key, *tls_client_ca; /* files; NULL: plain text */
    bt_passed_on given;                              /* the same, as far as it was said */
} bt_server_options;

/* A child parser: its input is a bt_server_options, which gets the defaults, and is complete and
 * checked at the end.  Errors end the program, as argp's do.  Groups 2 and 4 of --help are its own;
 * of group 3 ("when a rank dies") the heading is the parent's. */
extern const struct argp bt_server_argp;

#endif
