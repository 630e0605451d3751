/* grpc.health.v1: the server as a whole ("") serves until it drains, a service that generates only
 * while there are ranks for it.
 *
 * Watch sends the status at once, and again whenever it changes, until the client leaves.  An
 * unknown service is SERVICE_UNKNOWN and the call goes on, as the protocol demands. */
#include <string.h>

#include "coordinator/dialect.h"

#define STATUS(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

bt_asked bt_public_asked(const bt_public *pub, const char *service)
{
    for (size_t i = 0; i < pub->n_dialects; i++)
        if (strcmp(service, pub->dialects[i]->service) == 0) return BT_ASKED_ENGINE;
    return service[0] == 0 || strcmp(service, "grpc.health.v1.Health") == 0 ? BT_ASKED_SERVER
                                                                            : BT_ASKED_UNKNOWN;
}

bt_health bt_public_health(const bt_public *pub, bt_asked asked)
{
    if (asked == BT_ASKED_UNKNOWN) return STATUS(SERVICE_UNKNOWN);
    if (pub->draining || (asked == BT_ASKED_ENGINE && !bt_fleet_serves(pub->fleet)))
        return STATUS(NOT_SERVING);
    return STATUS(SERVING);
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
    Grpc__Health__V1__HealthCheckResponse reply = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    bt_health                             now   = bt_public_health(call->pub, call->watch.asked);

    if (!call->watch.listed || call->watch.sending || call->watch.told == (int)now) return;
    reply.status        = now;
    call->watch.told    = (int)now;
    call->watch.sending = true;
    bt_call_send(call, bt_rpc_pack(&reply.base), GRPC_STATUS_OK, NULL, on_told);
}

static void on_closed(bt_rpc_tag *tag, bool ok)
{
    bt_call  *call = tag->ctx;
    bt_watch *w    = &call->watch;

    (void)ok;
    *(w->prev != NULL ? &w->prev->watch.next : &call->pub->watchers) = w->next;
    if (w->next != NULL) w->next->watch.prev = w->prev;
    w->listed = false;
    call->pub->n_watchers--;
    bt_call_release(call);
}

void bt_public_watch(bt_call *call, const ProtobufCMessage *request)
{
    bt_public *pub = call->pub;

    call->watch =
        (bt_watch){.next   = pub->watchers,
                   .listed = true,
                   .told   = -1,
                   .asked  = bt_public_asked(
                        pub, ((const Grpc__Health__V1__HealthCheckRequest *)request)->service)};
    if (pub->watchers != NULL) pub->watchers->watch.prev = call;
    pub->watchers = call;
    if (++pub->n_watchers > BT_PUBLIC_WATCHERS)
        grpc_call_cancel_with_status(call->call, GRPC_STATUS_RESOURCE_EXHAUSTED,
                                     "too many calls watch: try again later", NULL);
    bt_call_watch_close(call, on_closed);
    tell(call);
}

void bt_public_tell_watchers(bt_public *pub)
{
    for (bt_call *call = pub->watchers; call != NULL; call = call->watch.next)
        tell(call);
}
