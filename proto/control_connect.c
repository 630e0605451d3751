/* The stream's start: attempts, each with a channel of its own, until somebody answers who is a
 * coordinator. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "proto/control_client_state.h"
#include "proto/control_wire.h"
#include "proto/rpc.h"

enum {
    RETRY_MS  = 50,   /* between attempts at first; it doubles */
    SLOW_MS   = 400,  /* up to this */
    TRY_MS    = 5000, /* an attempt may take: who listens there may be stopped */
    CANCEL_MS = 100,  /* a cancelled call completes at once; this process may be slow, */
    CANCEL_N  = 100   /* or stand still, so that the clock alone does not tell: more is a bug */
};

#define SILENCE_NS (2 * BT_NS_PER_S) /* in which a coordinator that starts beside it comes */

/* A channel of its own for each attempt: none waits because of what an earlier one has met. */
static void open_channel(bt_control_client *c)
{
    const grpc_channel_args  *usual   = bt_rpc_client_args();
    grpc_channel_credentials *creds   = grpc_insecure_credentials_create();
    int                       half_ms = (int)(c->quiet_ns / (2 * BT_NS_PER_MS));
    grpc_arg                  args[16];
    grpc_channel_args         all = {0, args};

    BT_ASSERT(usual->num_args < sizeof(args) / sizeof(args[0]));
    for (size_t i = 0; i < usual->num_args; i++) {
        args[i] = usual->args[i];
        if (c->quiet_ns != 0 && (strcmp(args[i].key, GRPC_ARG_KEEPALIVE_TIME_MS) == 0 ||
                                 strcmp(args[i].key, GRPC_ARG_KEEPALIVE_TIMEOUT_MS) == 0))
            args[i].value.integer = half_ms;
    }
    all.num_args          = usual->num_args + 1;
    args[usual->num_args] = (grpc_arg)BT_RPC_INT_ARG(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    c->channel            = grpc_channel_create(c->address, creds, &all);
    grpc_channel_credentials_release(creds);
}

static void close_channel(bt_control_client *c)
{
    if (c->channel != NULL) grpc_channel_destroy(c->channel);
    c->channel = NULL;
}

static void call_begin(bt_control_client *c)
{
    grpc_op ops[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    grpc_slice      method = grpc_slice_from_static_string(BT_CONTROL_METHOD);
    grpc_metadata   secret = {.key   = grpc_slice_from_static_string(BT_SECRET_HEADER),
                              .value = grpc_slice_from_copied_string(c->secret)};
    grpc_call_error e;

    ops[0].data.send_initial_metadata.count    = c->secret[0] != 0;
    ops[0].data.send_initial_metadata.metadata = &secret;
    grpc_metadata_array_init(&c->headers);
    grpc_metadata_array_init(&c->trailers);
    c->details = grpc_empty_slice();
    c->call    = grpc_channel_create_call(c->channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->cq, method,
                                          NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &c->headers;
    status.data.recv_status_on_client.trailing_metadata     = &c->trailers;
    status.data.recv_status_on_client.status                = &c->code;
    status.data.recv_status_on_client.status_details        = &c->details;
    e = grpc_call_start_batch(c->call, &status, 1, bt_control_tag_ptr(TAG_STATUS), NULL);
    BT_ASSERT(e == GRPC_CALL_OK);
    e = grpc_call_start_batch(c->call, ops, 2, bt_control_tag_ptr(TAG_HEADERS), NULL);
    BT_ASSERT(e == GRPC_CALL_OK);
    grpc_slice_unref(secret.value);
}

static void call_end(bt_control_client *c)
{
    if (c->call == NULL) return;
    grpc_metadata_array_destroy(&c->headers);
    grpc_metadata_array_destroy(&c->trailers);
    grpc_slice_unref(c->details);
    grpc_call_unref(c->call);
    c->call = NULL;
}

static bool is_coordinator(const grpc_metadata_array *headers)
{
    for (size_t i = 0; i < headers->count; i++)
        if (grpc_slice_str_cmp(headers->metadata[i].key, BT_CONTROL_HEADER) == 0) return true;
    return false;
}

/* One attempt: attached, or the call is over and cause says why; *retry_out when another attempt
 * may find somebody. */
static bool attach_once(bt_control_client *c, uint64_t deadline_ns, char *cause, bool *retry_out)
{
    bool       has_headers = false, has_status = false;
    uint32_t   late = 0; /* since it was cancelled: waits in vain */
    grpc_event ev;

    open_channel(c);
    call_begin(c);
    while (!has_headers || !has_status) {
        ev = grpc_completion_queue_next(c->cq, bt_rpc_deadline(deadline_ns), NULL);
        if (ev.type == GRPC_QUEUE_TIMEOUT) {
            BT_ASSERT(late < CANCEL_N);
            if (late++ == 0) grpc_call_cancel(c->call, NULL);
            deadline_ns = bt_now_ns() + CANCEL_MS * BT_NS_PER_MS;
            continue;
        }
        if (ev.tag == bt_control_tag_ptr(TAG_STATUS)) has_status = true;
        if (ev.tag != bt_control_tag_ptr(TAG_HEADERS)) continue;
        has_headers = true;
        if (has_status || late != 0 || !ev.success) continue;
        if (is_coordinator(&c->headers)) return true;
        if (c->headers.count > 0) grpc_call_cancel(c->call, NULL); /* somebody else's stream */
    }
    bt_rpc_slice_text(c->details, cause, BT_CONTROL_TEXT);
    if (late != 0) snprintf(cause, BT_CONTROL_TEXT, "no answer");
    *retry_out = c->code == GRPC_STATUS_UNAVAILABLE || late != 0;
    c->refusal = c->code;
    call_end(c);
    close_channel(c);
    return false;
}

bt_status bt_control_connect(bt_control_client *c, uint64_t connect_ns)
{
    bt_status st    = BT_OK;
    uint64_t  begin = bt_now_ns(), left_ns = connect_ns, wait_ns = RETRY_MS * BT_NS_PER_MS;
    bool      attached = false, retry = true, told = false;
    char      cause[BT_CONTROL_TEXT] = "no attempt was made";

    for (;;) {
        uint64_t most_ns = TRY_MS * BT_NS_PER_MS, from_ns = bt_now_ns(), took_ns;

        if (most_ns > left_ns) most_ns = left_ns;
        attached = attach_once(c, from_ns + most_ns, cause, &retry);
        took_ns  = bt_now_ns() - from_ns;
        left_ns -= took_ns < most_ns ? took_ns : most_ns; /* the rest it stood still itself */
        if (attached || !retry || wait_ns >= left_ns) break;
        if (!told && bt_now_ns() - begin > SILENCE_NS) {
            told = true;
            BT_INFO("no coordinator at %s yet: it is looked for, for %.0f s", c->address,
                    (double)connect_ns * 1e-9);
        }
        bt_sleep_ns(wait_ns);
        left_ns -= wait_ns;
        if (wait_ns < SLOW_MS * BT_NS_PER_MS) wait_ns *= 2;
    }
    BT_REQUIRE(attached || c->refusal != GRPC_STATUS_UNAUTHENTICATED, BT_ERR_PEER,
               "the coordinator at %s refuses this rank: %s", c->address, cause);
    BT_REQUIRE(attached || retry, BT_ERR_PEER, "at %s there is no Baton coordinator: %s",
               c->address, cause);
    BT_REQUIRE(attached, BT_ERR_PEER, "no coordinator at %s for %.1f s: %s", c->address,
               (double)(bt_now_ns() - begin) * 1e-9, cause);
out:
    return st;
}

void bt_control_disconnect(bt_control_client *c)
{
    call_end(c);
    close_channel(c);
}
