/* proto/control_wire.h - inside proto/ only: control messages as gRPC byte buffers, and the names
 * that both ends of a stream must agree on. */
#ifndef BT_PROTO_CONTROL_WIRE_H
#define BT_PROTO_CONTROL_WIRE_H

#include <grpc/grpc.h>

#include "proto/control_msg.h"

#define BT_CONTROL_METHOD "/baton.control.v1.Control/Attach"
/* Response header by which a worker knows that it has found a coordinator. */
#define BT_CONTROL_HEADER "baton-control"

/* *buffer_out is owned by the caller. */
bt_status bt_control_write_up(const bt_up *m, grpc_byte_buffer **buffer_out);
bt_status bt_control_write_down(const bt_down *m, grpc_byte_buffer **buffer_out);
/* buffer is borrowed. */
bt_status bt_control_read_up(grpc_byte_buffer *buffer, bt_up *m_out);
bt_status bt_control_read_down(grpc_byte_buffer *buffer, bt_down *m_out);

#endif
