/* cli/client_call.h - inside the client only: one call, and what it runs on. */
#ifndef BT_CLI_CLIENT_CALL_H
#define BT_CLI_CLIENT_CALL_H

#include <grpc/grpc.h>
#include <stdatomic.h>

#include "cli/client.h"
#include "core/parse.h"
#include "proto/vllm_engine.pb-c.h"

#define VLLM(name)      Vllm__Grpc__Engine__##name
#define BT_VLLM_SERVICE "/vllm.grpc.engine.VllmEngine/"

struct bt_client {
    bt_rpc_loop      *loop;
    grpc_channel     *channel;
    const atomic_int *stop; /* may be NULL */
    uint64_t          limit_ns;
    uint32_t          n_requests;
    bool              tls, connected; /* connected: the channel was ready once */
    char              address[BT_ADDRESS_BYTES];
};

/* Borrows the message; an error cancels the call. */
typedef bt_status (*bt_client_message_fn)(void *ctx, ProtobufCMessage *message);

/* Sends the request and calls on_message for each answer, up to the call's status.  cache_salt goes
 * with it as metadata; NULL: none. */
bt_status bt_client_call(bt_client *client, const char *method, const char *cache_salt,
                         const ProtobufCMessage *request, const ProtobufCMessageDescriptor *answer,
                         bt_client_message_fn on_message, void *ctx);

#endif
