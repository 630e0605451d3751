#include "cli/client_call.h"

#include <grpc/grpc.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "proto/prefix_key.h"
#include "proto/rpc_call.h"

#define TICK_NS (50 * BT_NS_PER_MS)

/* One call: unary or server-streaming, which is the same from here. */
typedef struct {
    bt_rpc_call          rpc;
    bt_client           *client;
    bt_client_message_fn on_message;
    void                *ctx;
    uint64_t             last_ns; /* when something came */
    bt_status            st;      /* of on_message */
    bool                 ended;
} call;

static void on_message(bt_rpc_call *rpc, ProtobufCMessage *message)
{
    call *c = rpc->ctx;

    c->last_ns = bt_awake_ns();
    if (c->st == BT_OK && message == NULL) {
        bt_log_error(__FILE__, __LINE__, "a peer broke the protocol", "%s: %s", c->client->address,
                     bt_error_text());
        c->st = BT_ERR_PROTOCOL;
    }
    if (c->st == BT_OK) c->st = c->on_message(c->ctx, message);
    if (c->st != BT_OK) bt_rpc_call_cancel(rpc);
}

static void on_end(bt_rpc_call *rpc)
{
    call *c = rpc->ctx;

    c->ended = true;
}

/* The call's status. */
static bt_status check_end(const call *c)
{
    bt_status        st     = BT_OK;
    const bt_client *client = c->client;
    char             reason[1024];
    const char      *cause = reason; /* the deepest: gRPC tells a chain of them */
    char             names[64];

    bt_rpc_slice_text(c->rpc.details, reason, sizeof(reason));
    for (const char *at = reason; (at = strstr(at, ": ")) != NULL;)
        cause = at += 2;
    if (strcmp(cause, "DNS query cancelled") == 0) { /* c-ares's word for the end of that time */
        snprintf(names, sizeof(names), "no name server has answered for %d s", BT_RPC_NAME_S);
        cause = names;
    }
    BT_REQUIRE(c->rpc.code != GRPC_STATUS_UNAVAILABLE || client->connected, BT_ERR_PEER,
               "cannot connect to %s %s TLS: %s; expected the address that `baton run` %s",
               client->address, client->tls ? "with" : "without", cause,
               client->tls ? "printed, a server with a certificate that --tls-ca vouches for, and "
                             "--tls-cert for one with --tls-client-ca"
                           : "printed, and --tls-ca for a server with TLS");
    BT_REQUIRE(c->rpc.code == GRPC_STATUS_OK, BT_ERR_PEER, "%s: %s: %s%s", client->address,
               bt_rpc_code_name(c->rpc.code), reason,
               c->rpc.code == GRPC_STATUS_UNAVAILABLE ? "; the request may be sent again" : "");
out:
    return st;
}

/* Drives the loop until the call has ended. */
static bt_status wait_call(call *c)
{
    bt_status st        = BT_OK;
    bool      cancelled = false; /* gRPC then ends the call by itself */

    while (!c->ended) {
        bool stopped = c->client->stop != NULL && *c->client->stop != 0;
        bool expired = bt_awake_ns() - c->last_ns > c->client->limit_ns;

        if (!cancelled && (expired || stopped)) {
            st = stopped ? BT_ERR_CANCELLED : BT_ERR_TIMEOUT;
            if (!stopped) {
                bt_log_error(__FILE__, __LINE__, bt_status_head(st), "%s sent nothing for %llu s",
                             c->client->address,
                             (unsigned long long)(c->client->limit_ns / BT_NS_PER_S));
            }
            bt_rpc_call_cancel(&c->rpc);
            cancelled = true;
        }
        bt_rpc_loop_run_once(c->client->loop, bt_now_ns() + TICK_NS);
        c->client->connected |=
            grpc_channel_check_connectivity_state(c->client->channel, 0) == GRPC_CHANNEL_READY;
    }
    return st;
}

bt_status bt_client_call(bt_client *client, const char *method, const char *cache_salt,
                         const ProtobufCMessage *request, const ProtobufCMessageDescriptor *answer,
                         bt_client_message_fn on_answer, void *ctx)
{
    bt_status     st   = BT_OK;
    grpc_metadata salt = {.key = grpc_slice_from_static_string(BT_CACHE_SALT_HEADER),
                          .value =
                              grpc_slice_from_copied_string(cache_salt != NULL ? cache_salt : "")};
    call          c    = {
                    .rpc        = {.answer     = answer,
                                   .on_message = on_message,
                                   .on_end     = on_end,
                                   .metadata   = &salt,
                                   .n_metadata = cache_salt != NULL},
                    .client     = client,
                    .on_message = on_answer,
                    .ctx        = ctx,
                    .last_ns    = bt_awake_ns()
    };

    c.rpc.ctx = &c;
    bt_rpc_call_start(&c.rpc, client->loop, client->channel, method, request, UINT64_MAX);
    BT_TRY(wait_call(&c));
    BT_TRY(c.st);
    BT_TRY(check_end(&c));
out:
    bt_rpc_call_fini(&c.rpc);
    grpc_slice_unref(salt.value);
    return st;
}

bt_status bt_client_open(const char *address, const bt_rpc_client_tls *tls, uint64_t limit_ns,
                         const atomic_int *stop, bt_client **client_out)
{
    bt_status  st     = BT_OK;
    bt_client *client = bt_calloc(1, sizeof(*client));

    BT_REQUIRE(client != NULL, BT_ERR_NO_MEMORY, "client");
    snprintf(client->address, sizeof(client->address), "%s", address);
    client->limit_ns = limit_ns;
    client->stop     = stop;
    client->tls      = tls->on;
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
    bt_status       st = bt_client_call(client, BT_VLLM_SERVICE "GetModelInfo", NULL, &request.base,
                                        &vllm__grpc__engine__get_model_info_response__descriptor,
                                        on_model_info, &model);

    if (st == BT_OK) *model_out = model;
    return st;
}
