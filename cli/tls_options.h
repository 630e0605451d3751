/* cli/tls_options.h - how a client speaks to a server with TLS: the options that clients share. */
#ifndef BT_CLI_TLS_OPTIONS_H
#define BT_CLI_TLS_OPTIONS_H

#include <argp.h>

#include "proto/rpc.h"

/* A child parser; its input is a bt_rpc_client_tls, zeroed. */
extern const struct argp bt_tls_argp;

#endif
