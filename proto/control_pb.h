/* proto/control_pb.h - inside proto/ only: what both directions of control_msg share.
 *
 * Unpacked protobuf memory comes from bt_calloc, so that tests can make it fail. */
#ifndef BT_PROTO_CONTROL_PB_H
#define BT_PROTO_CONTROL_PB_H

#include "proto/control.pb-c.h"
#include "proto/control_msg.h"

#define PB(name) Baton__Control__V1__##name

bt_status bt_pb_pack(const ProtobufCMessage *m, uint8_t **bytes_out, size_t *n_out);
/* from: whose it should be. */
bt_status bt_pb_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                       const char *from, ProtobufCMessage **pb_out);
void      bt_pb_free(ProtobufCMessage *pb); /* of bt_pb_unpack(), or NULL */

/* Copies of what a protobuf message holds.  NULL with n == 0 is a success. */
bt_status bt_pb_take_string(const char *text, char **text_out);
bt_status bt_pb_take_bytes(const ProtobufCBinaryData *data, const char *field, void **bytes_out,
                           size_t *n_out);
/* A form map: whole pages of it. */
bt_status bt_pb_take_map(const ProtobufCBinaryData *data, void **bytes_out, size_t *n_out);
bt_status bt_pb_take_u32s(const uint32_t *values, size_t n, uint32_t **values_out, uint32_t *n_out);
bt_status bt_pb_take_floats(const float *values, size_t n, float **values_out);
bt_status bt_pb_take_pages(PB(Page) **pages, size_t n, bt_page_ref **pages_out, uint32_t *n_out);

/* Page messages for n refs: one block of memory with the pointer table in front (bt_free it). */
bt_status bt_pb_make_pages(const bt_page_ref *refs, size_t n, PB(Page) ***pages_out);

/* control_seats.c.  seats: what pb points to. */
void      bt_pb_make_regroup(const bt_down_regroup *r, PB(Seats) seats[2], PB(Regroup) *pb);
bt_status bt_pb_take_regroup(const PB(Regroup) *pb, bt_down_regroup *r);

/* control_tokens.c.  A Tokens message as our own packer writes it; false: anything else, for the
 * general way. */
bool bt_pb_tokens(const uint8_t *bytes, size_t n, bt_up *m_out);
/* The general way; bt_up_unpack() is either. */
bt_status bt_pb_up(const uint8_t *bytes, size_t n, bt_up *m_out);

/* eval: a request that is not sampled may leave the message out. */
bt_status bt_pb_take_sampling(const PB(Sampling) *pb, bool eval, bt_sampling *sampling_out);
void      bt_pb_make_sampling(const bt_sampling *sampling, PB(Sampling) *pb_out);

#endif
