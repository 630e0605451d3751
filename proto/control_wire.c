#include "proto/control_wire.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "core/alloc.h"

static void free_bytes(void *bytes) { bt_free(bytes); }

/* The bytes go into the buffer as they are: no copy of what may be 100 MiB of logits. */
static grpc_byte_buffer *wrap(uint8_t *bytes, size_t n)
{
    grpc_slice        slice  = grpc_slice_new(bytes, n, free_bytes);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);

    grpc_slice_unref(slice);
    return buffer;
}

bt_status bt_control_write_up(const bt_up *m, grpc_byte_buffer **buffer_out)
{
    bt_status st    = BT_OK;
    uint8_t  *bytes = NULL;
    size_t    n     = 0;

    BT_TRY(bt_up_pack(m, &bytes, &n));
    *buffer_out = wrap(bytes, n);
out:
    return st;
}

bt_status bt_control_write_down(const bt_down *m, grpc_byte_buffer **buffer_out)
{
    bt_status st    = BT_OK;
    uint8_t  *bytes = NULL;
    size_t    n     = 0;

    BT_TRY(bt_down_pack(m, &bytes, &n));
    *buffer_out = wrap(bytes, n);
out:
    return st;
}

/* The buffer as one slice (to be unreferenced). */
static bt_status read_all(grpc_byte_buffer *buffer, grpc_slice *slice_out)
{
    bt_status               st = BT_OK;
    grpc_byte_buffer_reader reader;

    BT_REQUIRE(grpc_byte_buffer_reader_init(&reader, buffer), BT_ERR_PROTOCOL,
               "a control message cannot be decompressed");
    *slice_out = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
out:
    return st;
}

bt_status bt_control_read_up(grpc_byte_buffer *buffer, bt_up *m_out)
{
    bt_status  st    = BT_OK;
    grpc_slice slice = grpc_empty_slice();

    BT_TRY(read_all(buffer, &slice));
    BT_TRY(bt_up_unpack(GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice), m_out));
out:
    grpc_slice_unref(slice);
    return st;
}

bt_status bt_control_read_down(grpc_byte_buffer *buffer, bt_down *m_out)
{
    bt_status  st    = BT_OK;
    grpc_slice slice = grpc_empty_slice();

    BT_TRY(read_all(buffer, &slice));
    BT_TRY(bt_down_unpack(GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice), m_out));
out:
    grpc_slice_unref(slice);
    return st;
}
