/* proto/control_client_state.h - inside the control client only: what control_client.c and
 * control_connect.c share. */
#ifndef BT_PROTO_CONTROL_CLIENT_STATE_H
#define BT_PROTO_CONTROL_CLIENT_STATE_H

#include <grpc/grpc.h>
#include <pthread.h>

#include "core/parse.h"
#include "proto/control_client.h"
#include "proto/ring.h"
#include "proto/secret.h"

enum { BT_CONTROL_TEXT = 512 };
typedef enum { TAG_HEADERS = 1, TAG_STATUS, TAG_RECV, TAG_SEND, TAG_CLOSE } bt_control_tag;

struct bt_control_client {
    char                   address[BT_ADDRESS_BYTES], secret[BT_SECRET_MAX + 1];
    grpc_channel          *channel; /* owned, as all of gRPC's here */
    grpc_completion_queue *cq;
    grpc_call             *call; /* NULL: none is under way */
    grpc_metadata_array    headers, trailers;
    grpc_status_code       code, refusal; /* refusal: of the last attempt to attach */
    grpc_slice             details;
    grpc_byte_buffer      *received; /* of the RECV_MESSAGE in flight */
    pthread_t              reader, writer;
    bool                   has_reader;
    bool                   heard; /* the reader's: a message has come */
    uint64_t               quiet_ns;
    int                    fd;
    pthread_mutex_t        lock; /* of everything below */
    pthread_cond_t         changed;
    bt_ring                up, down; /* of bt_up and of bt_down */
    bool                   sending, stopping, cancelled, no_more, has_status, ended;
    uint64_t               flush_deadline_ns;
    char                   loss[2 * BT_CONTROL_TEXT];
};

static inline void *bt_control_tag_ptr(bt_control_tag t) { return (void *)(uintptr_t)t; }

/* control_connect.c, on the thread that starts the client; address, secret, quiet_ns and cq are
 * set.  Tries until connect_ns have passed: attached with channel and call, or neither is there. */
bt_status bt_control_connect(bt_control_client *c, uint64_t connect_ns);
/* What connect() has made, if it has. */
void bt_control_disconnect(bt_control_client *c);

#endif
