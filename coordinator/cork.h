/* coordinator/cork.h - what goes to many streams of one connection leaves in few packets.
 *
 * gRPC C core writes every stream's message with a system call of its own, and TCP would make a
 * packet of each, which costs more than everything else that is done for a token.  So a connection
 * with several calls holds what is written (TCP_CORK) from the first message of a burst until the
 * last one, or until BURST of them wait for each other.
 *
 * gRPC does not tell a call's socket: it is found among the process's own by the peer's address.
 * Where that fails, messages leave one by one.  Should gRPC have closed the socket meanwhile and
 * its number belong to another one, that one is held for the burst.  Runs on the loop's thread. */
#ifndef BT_COORDINATOR_CORK_H
#define BT_COORDINATOR_CORK_H

#include <grpc/grpc.h>

#include "coordinator/table.h"

typedef struct bt_connection bt_connection;

typedef struct {
    uint16_t       port;      /* ours, of all connections */
    bt_table       by_peer;   /* owns the connections */
    bt_connection *held;      /* list */
    uint64_t       looked_ns; /* when sockets were last looked for */
} bt_corks;

/* The connection of a call, counted; NULL: no memory, and its messages are never held. */
bt_connection *bt_cork_join(bt_corks *corks, grpc_call *call);
void           bt_cork_leave(bt_corks *corks, bt_connection *connection); /* accepts NULL */

/* A message is about to be written there (NULL: nothing to do).  Every burst ends with release().
 */
void bt_cork_hold(bt_corks *corks, bt_connection *connection);
void bt_cork_release(bt_corks *corks);
/* Ends the call's connection, with all its calls.  Looks at every socket.  Of a call that has been
 * cancelled gRPC no longer knows the peer. */
void bt_cork_hang_up(const bt_corks *corks, grpc_call *call);
/* After the last leave(). */
void bt_cork_fini(bt_corks *corks);

#endif
