/* grpc.health.v1 Watch: sends the status at once, and again whenever it changes, until the client
 * leaves.  An unknown service is SERVICE_UNKNOWN and the call goes on, as the protocol demands. */
#include <string.h>

#include "coordinator/dialect.h"
#include "proto/health.pb-c.h"

bool bt_public_has_service(const bt_public *pub, const char *service)
{
    for (size_t i = 0; i < pub->n_dialects; i++)
        if (strcmp(service, pub->dialects[i]->service) == 0) return true;
    return service[0] == 0 || strcmp(service, "grpc.health.v1.Health") == 0;
}

static int status_now(const bt_call *call)
{
    if (!call->watch.known)
        return GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN;
    return call->pub->draining
               ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
               : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
}

static void tell(bt_call *call);

static void on_told(bt_call *call)
{
    call->watch.sending = false;
    tell(call);
}

/* Sends the status unless it is the one that the client has. */
static void tell(bt_call *call)
{
    Grpc__Health__V1__HealthCheckResponse reply  = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    grpc_op                               ops[2] = {0};
    grpc_byte_buffer                     *message;
    size_t                                n   = 0;
    int                                   now = status_now(call);

    if (!call->watch.listed || call->watch.sending || call->watch.told == now) return;
    if (call->watch.told < 0) ops[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    reply.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)now;
    message      = bt_rpc_pack(&reply.base);
    ops[n].op    = GRPC_OP_SEND_MESSAGE;
    ops[n++].data.send_message.send_message = message;
    call->watch.told                        = now;
    call->watch.sending                     = true;
    bt_call_send(call, ops, n, on_told);
    grpc_byte_buffer_destroy(message);
}

static void on_closed(bt_rpc_tag *tag, bool ok)
{
    bt_call  *call = tag->ctx;
    bt_watch *w    = &call->watch;

    (void)ok;
    *(w->prev != NULL ? &w->prev->watch.next : &call->pub->watchers) = w->next;
    if (w->next != NULL) w->next->watch.prev = w->prev;
    w->listed = false;
    bt_call_release(call);
}

void bt_public_watch(bt_call *call, const ProtobufCMessage *request)
{
    bt_public *pub = call->pub;

    call->watch =
        (bt_watch){.next   = pub->watchers,
                   .listed = true,
                   .told   = -1,
                   .known  = bt_public_has_service(
                        pub, ((const Grpc__Health__V1__HealthCheckRequest *)request)->service)};
    if (pub->watchers != NULL) pub->watchers->watch.prev = call;
    pub->watchers = call;
    bt_call_watch_close(call, on_closed);
    tell(call);
}

void bt_public_tell_watchers(bt_public *pub)
{
    for (bt_call *call = pub->watchers; call != NULL; call = call->watch.next)
        tell(call);
}
