/* proto/control_attach.h - looks for a coordinator on a thread of its own, for a rank that has lost
 * its own and has other things to do meanwhile, and says hello at once: a coordinator does not wait
 * long for it.
 *
 * Threads: start() and poll() are for one thread.  The search ends by itself, at the latest some
 * seconds after connect_ns; there is no way to end it earlier. */
#ifndef BT_PROTO_CONTROL_ATTACH_H
#define BT_PROTO_CONTROL_ATTACH_H

#include "proto/control_client.h"

typedef struct bt_control_attach bt_control_attach;

/* As bt_control_client_start(); address is copied.  Takes ownership of what hello owns, also on
 * error. */
bt_status bt_control_attach_start(const char *address, uint64_t connect_ns, uint64_t quiet_ns,
                                  bt_up *hello, bt_control_attach **attach_out);
/* False: still looking.  True: it is over, and `attach` is gone; *client_out, which has said hello,
 * is owned by the caller, or NULL with the reason in why. */
bool bt_control_attach_poll(bt_control_attach *attach, bt_control_client **client_out, char *why,
                            size_t capacity);

#endif
