/* coordinator/intake.h - a GenerateRequest as a validated request of the relay.
 *
 * What cannot be done is refused by the field's name before anything is sent: a field is never
 * ignored unless it holds a value that changes nothing. */
#ifndef BT_COORDINATOR_INTAKE_H
#define BT_COORDINATOR_INTAKE_H

#include "coordinator/relay.h"
#include "coordinator/stop_strings.h"
#include "proto/vllm_engine.pb-c.h"

typedef struct {
    uint32_t vocab_size, max_context, page_tokens;
    uint64_t max_tokens; /* of a request that one rank's pool can hold */
    uint64_t max_prompt; /* likewise, of its prompt */
    bool     tokenizer;  /* the model has one: stop strings can be found */
} bt_intake_limits;

/* How the client wants its answer. */
typedef struct {
    bool         stream, logprobs;
    uint32_t     n_top, n; /* alternatives of each token; choices */
    bt_stop_set *stop;     /* owned; NULL: none */
    bool     skip_special; /* special tokens are not part of the text, and match no stop string */
    uint32_t min_tokens;   /* tokens that come before a stop string counts */
} bt_intake_answer;

void bt_intake_answer_free(bt_intake_answer *answer);

enum { BT_INTAKE_TEXT = 256, BT_INTAKE_NAME_MAX = 1024 };

/* OK: request_out owns its prompt and the sampling's arrays, answer_out its stop strings; the name
 * is borrowed from pb.  INVALID_ARG (not logged: it is the client's affair) writes why into
 * refusal[BT_INTAKE_TEXT]. */
bt_status bt_intake(const Vllm__Grpc__Engine__GenerateRequest *pb, const bt_intake_limits *limits,
                    bt_relay_submission *request_out, bt_intake_answer *answer_out, char *refusal);

#endif
