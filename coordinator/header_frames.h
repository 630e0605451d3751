/* coordinator/header_frames.h - how much a client sends as the headers of one call.
 *
 * gRPC (1.51) holds each entry, and each HTTP/2 frame, to the bound of a call's metadata, 32 KiB,
 * but not all frames of a call together: in CONTINUATION frames without an end one connection fills
 * the memory, and no call begins that could be refused; nor an entry before its end, though it
 * lets clients send frames of 4 MiB.
 *
 * What a client says when it goes (GOAWAY) has no bound either, and is held to that of a call here.
 *
 * Of all connections together, those whose end has not come have a bound too: beyond it a
 * connection is closed that does not send them at once.
 *
 * It sees all that a connection brings, from inflow.c or tls_frames.c, and reads the heads of
 * frames alone.  What does not begin as HTTP/2 does, such as ciphertext, is not looked at. */
#ifndef BT_COORDINATOR_HEADER_FRAMES_H
#define BT_COORDINATOR_HEADER_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a call, where a frame counts for the size that every client may send, at least: entries of an
 * empty frame or a short one can stand for many bytes. */
enum { BT_HEADER_BYTES = 64 << 10, BT_HEADER_FRAME_BYTES = 16 << 10, BT_FRAME_HEAD_BYTES = 9 };
enum { BT_HEADERS_BYTES = 256 << 20 }; /* of all whose end has not come, so counted */

/* A connection; all zero at its beginning. */
typedef struct {
    bool     other;                     /* it does not speak HTTP/2 */
    bool     last;                      /* the latest frame of headers ends them */
    uint8_t  n_preface, n_head;         /* bytes that have come: of what all begin with, */
    uint8_t  head[BT_FRAME_HEAD_BYTES]; /* and of the next frame's head */
    uint32_t n_left;                    /* bytes of the frame behind its head that are to come */
    uint32_t n_headers;                 /* bytes of headers whose end has not come, so counted */
    uint32_t n_held;                    /* of them are in the sum of all connections */
} bt_header_frames;

/* n more bytes.  Why the connection is to be closed, for its log line; NULL: it is well.  Any
 * thread, one at a time for each connection. */
const char *bt_header_frames_refuse(bt_header_frames *h, const uint8_t *bytes, size_t n);
/* The connection is over. */
void bt_header_frames_end(bt_header_frames *h);

#endif
