/* proto/control_client.h - a worker's control stream: one gRPC thread, two queues, an eventfd.
 *
 * The step thread never touches gRPC: it takes messages with poll(), sends with send() (which takes
 * ownership of what the message owns), and may sleep on fd() while the rank is parked.  Order
 * is kept, and a lost stream is reported once.  (Inside, a reader drives the completion queue and a
 * writer packs and sends: gRPC's C interface has no way to wake a waiting thread.) */
#ifndef BT_PROTO_CONTROL_CLIENT_H
#define BT_PROTO_CONTROL_CLIENT_H

#include "proto/control_msg.h"

typedef struct bt_control_client bt_control_client;

/* address: "127.0.0.1:4711".  Shows the cell's secret (proto/secret.h).  Connects, retrying with
 * back-off until connect_ns have passed, then starts the threads.  PEER names address and cause
 * when nobody answers, or somebody else does.  quiet_ns: a coordinator whose machine has not
 * answered for so long is lost; 0: only when the connection breaks. */
bt_status bt_control_client_start(const char *address, uint64_t connect_ns, uint64_t quiet_ns,
                                  bt_control_client **client_out);
/* Sends what is queued (until flush_ns), ends the stream, joins the thread. */
void bt_control_client_stop(bt_control_client *client, uint64_t flush_ns);

/* Takes ownership of what m owns, also on error.  PEER when the stream is lost (not logged);
 * TIMEOUT when the coordinator has taken nothing for tens of thousands of messages. */
bt_status bt_control_client_send(bt_control_client *client, bt_up *m);
/* The next message, or false when there is none. */
bool bt_control_client_poll(bt_control_client *client, bt_down *m_out);
/* The stream has ended and poll() has handed out all that came before: nothing will come any more.
 */
bool bt_control_client_lost(bt_control_client *client);
/* Lost, and not by a word of the coordinator: it has gone, or asks to be tried again. */
bool bt_control_client_orphaned(bt_control_client *client);
/* Why it ended, in words ("" while it lives): buf is always terminated. */
void bt_control_client_loss(bt_control_client *client, char *buf, size_t capacity);
/* Readable while poll() may have something, or when the stream is lost. */
int bt_control_client_fd(const bt_control_client *client);

#endif
