/* coordinator/dialect.h - the public protocols: what of them differs.
 *
 * Both speak of token ids and say the same things in messages of their own: a request becomes a
 * request of the relay, a choice's tokens become messages.  vllm.c and sglang.c are the two. */
#ifndef BT_COORDINATOR_DIALECT_H
#define BT_COORDINATOR_DIALECT_H

#include <grpc/byte_buffer.h>

#include "coordinator/choice.h"
#include "coordinator/input_logprobs.h"
#include "coordinator/public_call.h"

/* What a message says beside the choice's tokens. */
typedef struct {
    const char              *name; /* request_id */
    uint32_t                 n_prompt, n_cached;
    bool                     logprobs;
    const bt_input_logprobs *input; /* NULL: none, or not in this message */
} bt_choice_facts;

struct bt_dialect {
    const char      *service;
    const bt_method *methods; /* [n_methods] */
    size_t           n_methods;
    /* A GenerateRequest, as bt_intake() has it. */
    bt_status (*intake)(const ProtobufCMessage *request, const bt_intake_limits *limits,
                        bt_relay_submission *request_out, bt_intake_answer *answer_out,
                        char *refusal);
    /* The ready tokens that no chunk has carried yet, or all of them as the last message.  NULL:
     * out of memory. */
    grpc_byte_buffer *(*chunk)(bt_choice *c, const bt_choice_facts *facts);
    grpc_byte_buffer *(*complete)(const bt_choice *c, const bt_choice_facts *facts);
};

extern const bt_dialect bt_dialect_vllm, bt_dialect_sglang;

#endif
