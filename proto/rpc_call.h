/* proto/rpc_call.h - the client's side of one call: a request, any number of answers, a status.
 *
 * The thread that drives the loop owns the call.  Callbacks come from bt_rpc_loop_run_once(). */
#ifndef BT_PROTO_RPC_CALL_H
#define BT_PROTO_RPC_CALL_H

#include "proto/rpc.h"

typedef struct bt_rpc_call bt_rpc_call;
struct bt_rpc_call {
    /* Set before the start. */
    const ProtobufCMessageDescriptor *answer;
    /* A message, borrowed until the return; NULL: bytes that are no such message. */
    void (*on_message)(bt_rpc_call *call, ProtobufCMessage *message);
    /* Once, last: code and details are known.  May fini the call and free it. */
    void (*on_end)(bt_rpc_call *call);
    void                *ctx;
    const grpc_metadata *metadata; /* [n_metadata], borrowed to the end: sent with the request */
    size_t               n_metadata;

    grpc_status_code code;
    grpc_slice       details;

    /* The call's own. */
    grpc_call          *call;
    bt_rpc_loop        *loop;
    bt_rpc_tag          sent, arrived, ended;
    grpc_metadata_array head, trailer;
    grpc_byte_buffer   *received;
    uint32_t            n_open; /* operations that will still complete */
};

/* Sends the request (borrowed) to the method, a string that outlives the call; the deadline is of
 * the bt_now_ns clock.  The call stays where it is until on_end. */
void bt_rpc_call_start(bt_rpc_call *call, bt_rpc_loop *loop, grpc_channel *channel,
                       const char *method, const ProtobufCMessage *request, uint64_t deadline_ns);
/* on_end still follows, soon. */
void bt_rpc_call_cancel(bt_rpc_call *call);
/* Of a call that has ended, or was never started. */
void bt_rpc_call_fini(bt_rpc_call *call);

#endif
