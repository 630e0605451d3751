#include "cli/client_call.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"

#define TICK_NS (50 * BT_NS_PER_MS)

/* One call: unary or server-streaming, which is the same from here. */
typedef struct {
    bt_client                        *client;
    grpc_call                        *call;
    const ProtobufCMessageDescriptor *answer;
    bt_client_message_fn              on_message;
    void                             *ctx;
    bt_rpc_tag                        sent, arrived, ended;
    grpc_metadata_array               head, trailer;
    grpc_byte_buffer                 *received;
    grpc_status_code                  code;
    grpc_slice                        details;
    uint64_t                          last_ns; /* when something came */
    bt_status                         st;      /* of on_message */
    uint32_t                          n_open;  /* operations that will still complete */
} call;

static void start(call *c, const grpc_op *ops, size_t n, bt_rpc_tag *tag)
{
    grpc_call_error error = grpc_call_start_batch(c->call, ops, n, tag, NULL);

    BT_ASSERT(error == GRPC_CALL_OK);
    bt_rpc_loop_begin(c->client->loop);
    c->n_open++;
}

static void on_done(bt_rpc_tag *tag, bool ok)
{
    call *c = tag->ctx;

    (void)ok; /* the status says more */
    c->n_open--;
}

static void receive(call *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->received};

    start(c, &op, 1, &c->arrived);
}

static void on_arrived(bt_rpc_tag *tag, bool ok)
{
    call             *c      = tag->ctx;
    grpc_byte_buffer *buffer = c->received;
    ProtobufCMessage *message;

    c->n_open--;
    c->received = NULL;
    if (!ok || buffer == NULL) return; /* no more: the status follows */
    c->last_ns = bt_now_ns();
    message    = bt_rpc_unpack(buffer, c->answer);
    grpc_byte_buffer_destroy(buffer);
    if (c->st == BT_OK && message == NULL) {
        bt_log_error(__FILE__, __LINE__, "a peer broke the protocol",
                     "%s sent bytes that cannot be parsed as %s", c->client->address,
                     c->answer->name);
        c->st = BT_ERR_PROTOCOL;
    }
    if (c->st == BT_OK) c->st = c->on_message(c->ctx, message);
    if (message != NULL) protobuf_c_message_free_unpacked(message, NULL);
    if (c->st != BT_OK) grpc_call_cancel(c->call, NULL);
    receive(c);
}

static void begin_call(call *c, const char *method, const ProtobufCMessage *request)
{
    grpc_completion_queue *cq     = bt_rpc_loop_cq(c->client->loop);
    grpc_slice             path   = grpc_slice_from_copied_string(method);
    grpc_byte_buffer      *bytes  = bt_rpc_pack(request);
    grpc_op                ops[4] = {
                       {.op = GRPC_OP_SEND_INITIAL_METADATA},
                       {.op = GRPC_OP_SEND_MESSAGE,          .data.send_message.send_message = bytes},
                       {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT                                  },
                       {.op = GRPC_OP_RECV_INITIAL_METADATA},
    };
    grpc_op end = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};

    ops[3].data.recv_initial_metadata.recv_initial_metadata = &c->head;
    end.data.recv_status_on_client.trailing_metadata        = &c->trailer;
    end.data.recv_status_on_client.status                   = &c->code;
    end.data.recv_status_on_client.status_details           = &c->details;
    c->call = grpc_channel_create_call(c->client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, cq, path,
                                       NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    start(c, &end, 1, &c->ended);
    start(c, ops, 4, &c->sent);
    receive(c);
    grpc_byte_buffer_destroy(bytes);
    grpc_slice_unref(path);
}

/* Drives the loop until every operation of the call has completed. */
static bt_status wait_call(call *c)
{
    bt_status st        = BT_OK;
    bool      cancelled = false; /* gRPC then completes the call by itself */

    while (c->n_open != 0) {
        uint64_t now     = bt_now_ns();
        bool     expired = now - c->last_ns > c->client->limit_ns;
        bool     stopped = c->client->stop != NULL && *c->client->stop != 0;

        if (!cancelled && (expired || stopped)) {
            st = stopped ? BT_ERR_CANCELLED : BT_ERR_TIMEOUT;
            if (!stopped) {
                bt_log_error(__FILE__, __LINE__, bt_status_str(st), "%s sent nothing for %llu s",
                             c->client->address,
                             (unsigned long long)(c->client->limit_ns / BT_NS_PER_S));
            }
            grpc_call_cancel(c->call, NULL);
            cancelled = true;
        }
        bt_rpc_loop_run_once(c->client->loop, now + TICK_NS);
    }
    return st;
}

bt_status bt_client_call(bt_client *client, const char *method, const ProtobufCMessage *request,
                         const ProtobufCMessageDescriptor *answer, bt_client_message_fn on_message,
                         void *ctx)
{
    bt_status st = BT_OK;
    call      c  = {.client     = client,
                    .answer     = answer,
                    .on_message = on_message,
                    .ctx        = ctx,
                    .last_ns    = bt_now_ns()};
    char      reason[1024];

    c.sent    = (bt_rpc_tag){on_done, &c};
    c.ended   = (bt_rpc_tag){on_done, &c};
    c.arrived = (bt_rpc_tag){on_arrived, &c};
    c.details = grpc_empty_slice();
    grpc_metadata_array_init(&c.head);
    grpc_metadata_array_init(&c.trailer);
    begin_call(&c, method, request);
    BT_TRY(wait_call(&c));
    BT_TRY(c.st);
    bt_rpc_slice_text(c.details, reason, sizeof(reason));
    BT_REQUIRE(c.code == GRPC_STATUS_OK, BT_ERR_PEER, "%s: %s: %s", client->address,
               bt_rpc_code_name(c.code), reason);
out:
    grpc_metadata_array_destroy(&c.head);
    grpc_metadata_array_destroy(&c.trailer);
    grpc_slice_unref(c.details);
    grpc_call_unref(c.call);
    return st;
}

bt_status bt_client_open(const char *address, const bt_rpc_client_tls *tls, uint64_t limit_ns,
                         const atomic_int *stop, bt_client **client_out)
{
    bt_status  st     = BT_OK;
    bt_client *client = bt_calloc(1, sizeof(*client));

    BT_REQUIRE(client != NULL, BT_ERR_NO_MEMORY, "client");
    BT_REQUIRE(snprintf(client->address, sizeof(client->address), "%s", address) <
                   (int)sizeof(client->address),
               BT_ERR_INVALID_ARG, "an address of %zu bytes", strlen(address));
    client->limit_ns = limit_ns;
    client->stop     = stop;
    BT_TRY(bt_rpc_loop_create(&client->loop));
    BT_TRY(bt_rpc_channel_create(address, tls, &client->channel));
    *client_out = client;
    client      = NULL;
out:
    bt_client_close(client);
    return st;
}

void bt_client_close(bt_client *client)
{
    if (client == NULL) return;
    if (client->channel != NULL) grpc_channel_destroy(client->channel);
    bt_rpc_loop_destroy(client->loop);
    bt_free(client);
}

/* ---- GetModelInfo */

static bt_status on_model_info(void *ctx, ProtobufCMessage *message)
{
    bt_client_model *model              = ctx;
    const VLLM(GetModelInfoResponse) *m = (const VLLM(GetModelInfoResponse) *)message;

    snprintf(model->tokenizer_path, sizeof(model->tokenizer_path), "%s", m->tokenizer_path);
    snprintf(model->served_model_name, sizeof(model->served_model_name), "%s",
             m->served_model_name);
    model->max_context = m->max_context_length;
    model->vocab_size  = m->vocab_size;
    return BT_OK;
}

bt_status bt_client_model_info(bt_client *client, bt_client_model *model_out)
{
    VLLM(GetModelInfoRequest) request = VLLM__GRPC__ENGINE__GET_MODEL_INFO_REQUEST__INIT;
    bt_client_model model             = {0};
    bt_status       st = bt_client_call(client, BT_VLLM_SERVICE "GetModelInfo", &request.base,
                                        &vllm__grpc__engine__get_model_info_response__descriptor,
                                        on_model_info, &model);

    if (st == BT_OK) *model_out = model;
    return st;
}
