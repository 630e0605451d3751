/* proto/control_pb.h - inside proto/ only: what both directions of control_msg share.
 *
 * Unpacked protobuf memory comes from bt_calloc, so that tests can make it fail. */
#ifndef BT_PROTO_CONTROL_PB_H
#define BT_PROTO_CONTROL_PB_H

#include "proto/control.pb-c.h"
#include "proto/control_msg.h"

#define PB(name) Baton__Control__V1__##name

/* Fields that the plain structs and the messages call alike, and that go over as they are. */
/* clang-format off */
#define BT_PB_SAMPLING(X) \
    X(temperature) X(seed) X(max_tokens) X(min_tokens) X(prompt_logprobs) X(ignore_eos) X(logprobs) \
    X(top_logprobs) X(top_k) X(top_p) X(min_p) X(frequency_penalty) X(presence_penalty) \
    X(repetition_penalty) X(constraint_kind) X(constraint_after)
#define BT_PB_BEAT(X) \
    X(progress) X(n_requests) X(pages_free) X(pages_total) X(steps) X(handoff_bytes) \
    X(handoff_pages) X(gather_ns) X(model_ns) X(sample_ns) X(waited_ns) X(prompt_rows) \
    X(generated_rows) X(pages_cached) X(slots_quarantined) X(handoff_ns) X(prefix_asked_tokens) \
    X(prefix_hit_tokens) X(draft_tokens) X(drafts) X(draft_right_tokens) X(at_ns)
#define BT_PB_HELLO(X) \
    X(protocol) X(rank) X(n_ranks) X(n_prefill) X(n_decode) X(pid) X(model_fingerprint) X(n_pages) \
    X(page_tokens) X(max_rows) X(epoch) X(vocab_size) X(max_context) X(bos_token) \
    X(pad_token) X(weight_bytes) X(n_spares) X(share_generated) X(speculates) X(mtp) \
    X(config_hash) X(incarnation) X(prefix_seed)
#define BT_PB_HELLO_TEXTS(X) \
    X(host) X(cell) X(left_out) X(version) X(arithmetic) X(model_type) X(architecture) \
    X(default_sampling_json)
/* clang-format on */

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
