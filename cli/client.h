/* cli/client.h - a client of the public protocol, vllm.grpc.engine.VllmEngine.
 *
 * One call at a time, on the caller's thread.  Every wait has a limit, which counts from the last
 * message that came. */
#ifndef BT_CLI_CLIENT_H
#define BT_CLI_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct bt_client bt_client;

/* address: "127.0.0.1:8000".  Nothing is connected yet.  *stop, when it is given, is looked at
 * while a call waits: nonzero cancels it. */
bt_status bt_client_open(const char *address, uint64_t limit_ns, const volatile int *stop,
                         bt_client **client_out);
void      bt_client_close(bt_client *client);

typedef struct {
    char     tokenizer_path[1024], served_model_name[256];
    uint32_t max_context, vocab_size;
} bt_client_model;
/* PEER names address, status and reason. */
bt_status bt_client_model_info(bt_client *client, bt_client_model *model_out);

typedef struct {
    const uint32_t *prompt; /* [n_prompt] */
    size_t          n_prompt;
    const uint32_t *stop_tokens; /* [n_stop_tokens] */
    size_t          n_stop_tokens;
    float           temperature; /* 0: greedy */
    bool            has_seed, has_max_tokens, ignore_eos, logprobs, stream;
    int32_t         seed;
    uint32_t        max_tokens;
} bt_client_request;

typedef struct {
    char     finish_reason[32]; /* "stop", "length" */
    bool     has_matched_token;
    uint32_t matched_token, prompt_tokens, completion_tokens;
    uint64_t first_ns, last_ns; /* from the call to the first and to the last token */
} bt_client_result;

/* Called for the tokens of each message, in order; logprobs is NULL unless asked for. */
typedef void (*bt_client_tokens_fn)(void *ctx, size_t n, const uint32_t *ids,
                                    const float *logprobs);

/* CANCELLED after *stop; PEER for the server's refusals and failures; PROTOCOL when an answer does
 * not follow the protocol. */
bt_status bt_client_generate(bt_client *client, const bt_client_request *request,
                             bt_client_tokens_fn on_tokens, void *ctx,
                             bt_client_result *result_out);

#endif
