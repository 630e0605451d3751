#include "proto/message_text.h"

#include <stdio.h>

#include "core/log.h"
#include "proto/text.h"

static uint64_t take_varint(const uint8_t **p, const uint8_t *end)
{
    uint64_t value = 0;

    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t byte = *(*p)++;

        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) break;
    }
    return value;
}

static bool walk(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                 uint64_t *n_parts_left, char *why, size_t capacity);

/* Whether protobuf-c would merge the field into one that came before: of their oneofs it may then
 * take the wrong member. */
static bool is_again(const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *field,
                     uint64_t *seen)
{
    uint64_t bit = UINT64_C(1) << (field - type->fields);
    bool     again;

    if (field->type != PROTOBUF_C_TYPE_MESSAGE || field->label == PROTOBUF_C_LABEL_REPEATED)
        return false;
    again = (*seen & bit) != 0;
    *seen |= bit;
    return again;
}

static bool field_ok(const ProtobufCMessageDescriptor *type, const ProtobufCFieldDescriptor *field,
                     const uint8_t *bytes, size_t n, uint64_t *n_parts_left, char *why,
                     size_t capacity)
{
    size_t n_good;

    if (field->type == PROTOBUF_C_TYPE_MESSAGE) /* an entry of a map is one, too */
        return walk(field->descriptor, bytes, n, n_parts_left, why, capacity);
    if (field->type != PROTOBUF_C_TYPE_STRING) return true;
    n_good = bt_text_good_bytes(bytes, n);
    if (n_good < n)
        snprintf(why, capacity, "%s.%s %s at byte %zu of its %zu", type->short_name, field->name,
                 bytes[n_good] == 0 ? "has a NUL" : "is not UTF-8", n_good, n);
    return n_good == n;
}

static bool walk(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                 uint64_t *n_parts_left, char *why, size_t capacity)
{
    const uint8_t *p = bytes, *end = bytes + n;
    uint64_t       seen = 0; /* a bit for each field of the type */

    BT_ASSERT(type->n_fields <= 64);
    while (p < end) {
        uint64_t                        key = take_varint(&p, end), n_value = 0;
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(type, (unsigned)(key >> 3));

        switch (key & 7) {
        case PROTOBUF_C_WIRE_TYPE_VARINT: take_varint(&p, end); break;
        case PROTOBUF_C_WIRE_TYPE_64BIT: n_value = 8; break;
        case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED: n_value = take_varint(&p, end); break;
        case PROTOBUF_C_WIRE_TYPE_32BIT: n_value = 4; break;
        default: n_value = UINT64_MAX; /* protobuf-c refuses groups */
        }
        if (n_value > (size_t)(end - p)) {
            snprintf(why, capacity, "%s cannot be parsed: it is cut short, or none",
                     type->short_name);
            return false;
        }
        if (field == NULL || (key & 7) == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) {
            if (*n_parts_left == 0) {
                snprintf(why, capacity, "%s has too many parts", type->short_name);
                return false;
            }
            --*n_parts_left;
        }
        if ((key & 7) == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED && field != NULL) {
            if (is_again(type, field, &seen)) {
                snprintf(why, capacity, "%s.%s comes twice, expected once", type->short_name,
                         field->name);
                return false;
            }
            if (!field_ok(type, field, p, (size_t)n_value, n_parts_left, why, capacity))
                return false;
        }
        p += n_value;
    }
    return true;
}

bool bt_message_text_ok(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
                        uint64_t n_parts_max, char *why, size_t capacity)
{
    return walk(type, bytes, n, &n_parts_max, why, capacity);
}
