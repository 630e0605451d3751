/* cli/request_options.h - what an answer shall be: the protocol's sampling fields as options. */
#ifndef BT_CLI_REQUEST_OPTIONS_H
#define BT_CLI_REQUEST_OPTIONS_H

#include <argp.h>

#include "cli/client.h"

enum { BT_REQUEST_STOPS = 64, BT_REQUEST_BIASES = 1024 };

/* The request (all but the prompt), and the lists that it points into. */
typedef struct {
    bt_client_request request;
    uint32_t          stop_tokens[BT_REQUEST_STOPS];
    char             *stop[BT_REQUEST_STOPS]; /* borrowed from argv */
    int32_t           bias_ids[BT_REQUEST_BIASES];
    float             biases[BT_REQUEST_BIASES];
    char             *answer_choices[BT_REQUEST_STOPS]; /* borrowed from argv */
    char             *answer_file;                      /* owned: what an option's @FILE has */
} bt_request_options;

void bt_request_options_fini(bt_request_options *options);

/* A child parser; its input is zeroed options. */
extern const struct argp bt_request_argp;

#endif
