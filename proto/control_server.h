/* proto/control_server.h - the other end of the control streams: what the coordinator and
 * `baton logits` build on.
 *
 * Runs on the caller's completion queue (proto/rpc.h): callbacks come from the thread that drives
 * it, and send may be called from that thread only. */
#ifndef BT_PROTO_CONTROL_SERVER_H
#define BT_PROTO_CONTROL_SERVER_H

#include "proto/control_msg.h"
#include "proto/rpc.h"

typedef struct bt_control_server bt_control_server;
typedef struct bt_control_peer   bt_control_peer; /* one attached rank */

typedef struct {
    /* m is borrowed during the call; a handler that keeps its arrays sets their pointers to NULL.
     * The first message of a peer is always its hello, checked for protocol version and ranges. */
    void (*message)(void *ctx, bt_control_peer *peer, bt_up *m);
    /* The stream has ended; peer is invalid afterwards.  Not called for a peer that never said
     * hello. */
    void (*lost)(void *ctx, bt_control_peer *peer);
    void *ctx;
} bt_control_events;

/* Where there is a secret (proto/secret.h), only peers that show it get in; others end with
 * UNAUTHENTICATED and are never heard of.  Binds address ("127.0.0.1:0": any port); *port_out is
 * what it became.  IO names address and cause. */
bt_status bt_control_server_create(bt_rpc_loop *loop, const char *address,
                                   const bt_control_events *events, bt_control_server **server_out,
                                   uint16_t *port_out);
/* To be called now and then (bt_now_ns clock): a peer that has not said hello BT_CONTROL_HELLO_S
 * after it has attached is named and cut off.  While this process stands still nobody is late.
 * Where there was no memory to wait for the next peer, it is tried again. */
enum { BT_CONTROL_HELLO_S = 30 };
void bt_control_server_tick(bt_control_server *server, uint64_t now_ns);
/* Cancels every stream and stops listening; then drive the loop until bt_rpc_loop_idle(). */
void bt_control_server_stop(bt_control_server *server);
/* False, which is logged: gRPC does not end.  It may still use the server and what its owner gave
 * it: none of that may be freed, and the loop may not run again. */
bool bt_control_server_destroy(bt_control_server *server);

/* Queues a message; takes ownership of what m owns. */
void bt_control_send(bt_control_peer *peer, bt_down *m);
/* Free for the owner's use: which rank this is to it. */
void  bt_control_peer_set_data(bt_control_peer *peer, void *data);
void *bt_control_peer_data(const bt_control_peer *peer);
/* Ends the stream with a status that the worker logs.  FAILED_PRECONDITION: it leaves; UNAVAILABLE:
 * it may try again. */
void bt_control_refuse(bt_control_peer *peer, grpc_status_code code, const char *reason);

#endif
