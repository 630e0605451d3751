/* cli/client.h - a client of the public protocol, vllm.grpc.engine.VllmEngine.
 *
 * One call at a time, on the caller's thread.  Every wait has a limit, which counts from the last
 * message that came. */
#ifndef BT_CLI_CLIENT_H
#define BT_CLI_CLIENT_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "proto/rpc.h"

enum { BT_CLIENT_CHOICES = 64, BT_CLIENT_STOP_BYTES = 1024 };

typedef struct bt_client bt_client;

/* address: bt_parse_address().  Nothing is connected yet.  *stop, when it is given, is looked at
 * while a call waits: nonzero cancels it. */
bt_status bt_client_open(const char *address, const bt_rpc_client_tls *tls, uint64_t limit_ns,
                         const atomic_int *stop, bt_client **client_out);
void      bt_client_close(bt_client *client);

typedef struct {
    char     tokenizer_path[PATH_MAX], served_model_name[256];
    uint32_t max_context, vocab_size;
} bt_client_model;
/* PEER names address, status and reason. */
bt_status bt_client_model_info(bt_client *client, bt_client_model *model_out);

/* What the answer must be: the protocol's fields of these names. */
typedef enum {
    BT_ANSWER_ANYTHING,
    BT_ANSWER_JSON_OBJECT,
    BT_ANSWER_JSON_SCHEMA,
    BT_ANSWER_REGEX,
    BT_ANSWER_GRAMMAR,
    BT_ANSWER_CHOICE,
    BT_ANSWER_STRUCTURAL_TAG
} bt_client_answer;

/* As the protocol's fields of these names; zeroes are greedy, one choice, and what the server does
 * by itself. */
typedef struct {
    const uint32_t *prompt; /* [n_prompt] */
    size_t          n_prompt;
    const char     *cache_salt;  /* bt_cache_salt_check(); NULL: none */
    const uint32_t *stop_tokens; /* [n_stop_tokens] */
    size_t          n_stop_tokens;
    char          **stop; /* [n_stop] */
    size_t          n_stop;
    const int32_t  *bias_ids; /* [n_biases] */
    const float    *biases;
    size_t          n_biases;
    float    temperature, top_p, min_p, frequency_penalty, presence_penalty, repetition_penalty;
    bool     has_seed, has_max_tokens, ignore_eos, keep_special, include_stop, stream;
    bool     logprobs, prompt_logprobs;
    int32_t  seed, top_logprobs, top_prompt_logprobs;
    uint32_t max_tokens, min_tokens, top_k, n_choices;
    bt_client_answer answer;
    char            *answer_text;    /* of the kinds that have one */
    char           **answer_choices; /* [n_answer_choices], of BT_ANSWER_CHOICE */
    size_t           n_answer_choices;
} bt_client_request;

/* Alternatives of one token, best first. */
typedef struct {
    size_t          n;
    const uint32_t *ids;
    const float    *logprobs;
} bt_client_top;

/* Tokens of one message. */
typedef struct {
    uint32_t             choice;
    bool                 prompt; /* not an answer's: the prompt, which comes once and first */
    size_t               n;
    const uint32_t      *ids;
    const float         *logprobs; /* NULL unless asked for; NAN: has none (the first token) */
    const bt_client_top *tops;     /* [n]; NULL unless asked for */
} bt_client_tokens;
typedef void (*bt_client_tokens_fn)(void *ctx, const bt_client_tokens *tokens);

typedef struct {
    char     finish_reason[32];                      /* "stop", "length" */
    char     matched_stop[BT_CLIENT_STOP_BYTES + 1]; /* the stop string that ended it; "" */
    bool     has_matched_token, complete;
    uint32_t matched_token, completion_tokens;
} bt_client_choice;

typedef struct {
    uint32_t         n_choices, prompt_tokens, cached_tokens, completion_tokens;
    uint64_t         first_ns, last_ns; /* from the call to the first and to the last token */
    bt_client_choice choices[BT_CLIENT_CHOICES];
} bt_client_result;

/* Calls on_tokens for the tokens of each message, in order.  CANCELLED after *stop; PEER for the
 * server's refusals and failures; PROTOCOL when an answer does not follow the protocol. */
bt_status bt_client_generate(bt_client *client, const bt_client_request *request,
                             bt_client_tokens_fn on_tokens, void *ctx,
                             bt_client_result *result_out);

#endif
