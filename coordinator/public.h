/* coordinator/public.h - the public port: vllm.grpc.engine.VllmEngine, if wanted
 * sglang.grpc.scheduler.SglangScheduler too, grpc.health.v1.Health and
 * grpc.reflection.v1.ServerReflection.
 *
 * Every other method, of these services or any, is answered with UNIMPLEMENTED at once: gateways
 * probe for several protocols and wait for all answers.  Runs on the loop's thread. */
#ifndef BT_COORDINATOR_PUBLIC_H
#define BT_COORDINATOR_PUBLIC_H

#include "coordinator/fleet.h"
#include "coordinator/metrics.h"
#include "proto/rpc.h"

typedef struct bt_public bt_public;

typedef struct {
    const char        *model_path;
    const char        *served_name; /* borrowed while the port is open, as all that follows */
    const char        *public_path; /* of the model, for clients; "": unsaid */
    const bt_up_hello *facts;
    bt_metrics        *metrics;   /* requests write there */
    bt_rpc_tls_files  *tls;       /* NULL: plain */
    bool               sglang;    /* speak that protocol too */
    uint64_t           unread_ns; /* a client that takes nothing, does not finish its request, or
                                     has no call for so long is cut off */
} bt_public_config;

/* Listens and serves from now on.  IO where it cannot listen, with the cause; NO_MEMORY. */
bt_status bt_public_create(bt_rpc_loop *loop, const char *address, const bt_public_config *config,
                           bt_fleet *fleet, bt_public **public_out, uint16_t *port_out);
/* One more cell serves: what the largest can hold may be asked for. */
void bt_public_grow(bt_public *pub);
/* From now on health says that nothing is served here, and new requests are refused with
 * UNAVAILABLE; streams go on until they have ended. */
void bt_public_drain(bt_public *pub);
/* Generate calls whose end has not reached the wire. */
uint32_t bt_public_n_streams(const bt_public *pub);
/* Cuts what is left and frees everything, driving the loop.  False, which is logged: gRPC does not
 * end.  It may still use all of it and what was given to create(): none of that may be freed, and
 * the loop may not run again. */
bool bt_public_destroy(bt_public *pub);

/* Sends what has come for clients, to so many of them that ranks need not wait for long, and cuts
 * off those that do not read; call it whenever the loop has run. */
void bt_public_poll(bt_public *pub);
/* There are clients left to whom it has not sent: the loop is not to sleep. */
bool bt_public_has_more(const bt_public *pub);

/* The fleet's events: client is the stream of bt_fleet_submit(). */
extern const bt_client_events bt_public_events;

#endif
