#include "proto/rpc_call.h"

#include "core/log.h"

static void start(bt_rpc_call *c, const grpc_op *ops, size_t n, bt_rpc_tag *tag)
{
    grpc_call_error error = grpc_call_start_batch(c->call, ops, n, tag, NULL);

    BT_ASSERT(error == GRPC_CALL_OK);
    bt_rpc_loop_begin(c->loop);
    c->n_open++;
}

static void receive(bt_rpc_call *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->received};

    start(c, &op, 1, &c->arrived);
}

static void on_done(bt_rpc_tag *tag, bool ok)
{
    bt_rpc_call *c = tag->ctx;

    (void)ok; /* the status says more */
    if (--c->n_open == 0) c->on_end(c);
}

static void on_arrived(bt_rpc_tag *tag, bool ok)
{
    bt_rpc_call      *c      = tag->ctx;
    grpc_byte_buffer *buffer = c->received;
    ProtobufCMessage *message;

    c->received = NULL;
    if (ok && buffer != NULL) { /* else no more comes */
        message = bt_rpc_unpack(buffer, c->answer);
        grpc_byte_buffer_destroy(buffer);
        c->on_message(c, message);
        if (message != NULL) protobuf_c_message_free_unpacked(message, NULL);
        receive(c);
    }
    on_done(tag, ok);
}

void bt_rpc_call_start(bt_rpc_call *c, bt_rpc_loop *loop, grpc_channel *channel, const char *method,
                       const ProtobufCMessage *request, uint64_t deadline_ns)
{
    grpc_slice        path   = grpc_slice_from_static_string(method);
    grpc_byte_buffer *bytes  = bt_rpc_pack(request);
    grpc_op           ops[4] = {
                  {.op = GRPC_OP_SEND_INITIAL_METADATA},
                  {.op = GRPC_OP_SEND_MESSAGE,          .data.send_message.send_message = bytes},
                  {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT                                  },
                  {.op = GRPC_OP_RECV_INITIAL_METADATA},
    };
    grpc_op end = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};

    c->loop    = loop;
    c->sent    = (bt_rpc_tag){on_done, c};
    c->ended   = (bt_rpc_tag){on_done, c};
    c->arrived = (bt_rpc_tag){on_arrived, c};
    c->details = grpc_empty_slice();
    grpc_metadata_array_init(&c->head);
    grpc_metadata_array_init(&c->trailer);
    ops[0].data.send_initial_metadata.count                 = c->n_metadata;
    ops[0].data.send_initial_metadata.metadata              = (grpc_metadata *)c->metadata;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &c->head;
    end.data.recv_status_on_client.trailing_metadata        = &c->trailer;
    end.data.recv_status_on_client.status                   = &c->code;
    end.data.recv_status_on_client.status_details           = &c->details;
    c->call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, bt_rpc_loop_cq(loop),
                                       path, NULL, bt_rpc_deadline(deadline_ns), NULL);
    start(c, &end, 1, &c->ended);
    start(c, ops, 4, &c->sent);
    receive(c);
    grpc_byte_buffer_destroy(bytes);
}

void bt_rpc_call_cancel(bt_rpc_call *c) { grpc_call_cancel(c->call, NULL); }

void bt_rpc_call_fini(bt_rpc_call *c)
{
    if (c->call == NULL) return;
    grpc_metadata_array_destroy(&c->head);
    grpc_metadata_array_destroy(&c->trailer);
    grpc_slice_unref(c->details);
    grpc_call_unref(c->call);
}
