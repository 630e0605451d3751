/* cli/talk.h - what `generate` and `chat` share: main, the options of a request, the model's
 * tokenizer, text as it streams, and the account at the end. */
#ifndef BT_CLI_TALK_H
#define BT_CLI_TALK_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/client.h"
#include "cli/request_options.h"
#include "model/tokenizer.h"

typedef struct {
    const char        *address, *model; /* model NULL: where the server says its tokenizer lies */
    bt_rpc_client_tls  tls;
    bt_request_options request;
    bool               json, quiet;
    uint64_t           limit_ns;
} bt_talk_options;

typedef struct {
    const bt_talk_options *opt; /* borrowed */
    bt_client             *client;
    bt_tokenizer          *tokenizer;
    char                   colour[2][16]; /* around the account, on a terminal; else empty */
} bt_talk;

/* Catches SIGINT and SIGTERM, which from now on end the request under way.  Fill a zeroed struct.
 */
bt_status bt_talk_open(const bt_talk_options *opt, bt_talk *talk);
void      bt_talk_close(bt_talk *talk);
/* A signal came; resets it. */
bool bt_talk_interrupted(void);
/* Until stdin has something or its end; false when a signal came first, or before. */
bool bt_talk_await_input(void);

/* Sends the prompt, writes the answer to stdout as it comes and the account to stderr.  *reply_out,
 * when it is not NULL, becomes the text (owned by the caller), without the special token that ended
 * it: that is the template's to write. */
bt_status bt_talk_ask(bt_talk *talk, const uint32_t *ids, size_t n, char **reply_out);

/* All that stdin holds, terminated (owned by the caller).  BT_ERR_CANCELLED, after a signal, is not
 * logged. */
bt_status bt_talk_read_all(const char *what, char **text_out, size_t *n_out);

/* Such a verb's main.  own: its own parser, without children, which gives the first child's input,
 * `opt`, to these options'.  opt is the first member of what the verb's parser and `run` take. */
int bt_talk_main(const char *verb, const struct argp *own, int argc, char **argv,
                 bt_talk_options *opt, bt_status (*run)(const bt_talk_options *opt));

#endif
