/* proto/message_text.h - whether protobuf-c reads a message as its sender means it.
 *
 * protobuf-c looks at no text, and gives each as a C string: what stands behind a NUL byte is lost,
 * and nobody can tell.  Messages that come twice in a field that is not repeated, which proto3
 * allows, are to be merged, but it (1.4.1) may take the wrong member of a oneof in them.  So the
 * bytes are looked at as they came. */
#ifndef BT_PROTO_MESSAGE_TEXT_H
#define BT_PROTO_MESSAGE_TEXT_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of any bytes[n] that may be a `type`: every `string` in it, and in the messages in it, is UTF-8
 * without a NUL byte, no message comes twice in a field that is not repeated, and it has at most
 * n_parts_max texts, messages, packed lists and unknown fields, for each of which protobuf-c takes
 * memory, be it of two bytes.  Else why[capacity] names the field, and a text's byte. */
bool bt_message_text_ok(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                        uint64_t n_parts_max, char *why, size_t capacity);

#endif
