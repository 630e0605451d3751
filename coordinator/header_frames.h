/* coordinator/header_frames.h - in how many frames a client sends the headers of one call.
 *
 * gRPC (1.51) holds each HTTP/2 frame of headers to the bound of a call's metadata, but not how
 * many frames a call has: in CONTINUATION frames without an end one connection fills the memory,
 * and no call begins that could be refused.  A call within the bound has three frames of the size
 * that every client may send, 16 KiB.
 *
 * It sees all that a connection brings, from inflow.c or tls_frames.c, and reads the heads of
 * frames alone.  What does not begin as HTTP/2 does, such as ciphertext, is not looked at. */
#ifndef BT_COORDINATOR_HEADER_FRAMES_H
#define BT_COORDINATOR_HEADER_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BT_HEADER_FRAMES = 4, BT_FRAME_HEAD_BYTES = 9 };

/* A connection; all zero at its beginning. */
typedef struct {
    bool     other;                     /* it does not speak HTTP/2 */
    uint8_t  n_preface, n_head;         /* bytes that have come: of what all begin with, */
    uint8_t  head[BT_FRAME_HEAD_BYTES]; /* and of the next frame's head */
    uint32_t n_left;                    /* bytes of the frame behind its head that are to come */
    uint32_t n_frames;                  /* of the latest call's headers */
} bt_header_frames;

/* n more bytes.  false: a call has more than BT_HEADER_FRAMES of them. */
bool bt_header_frames_take(bt_header_frames *h, const uint8_t *bytes, size_t n);

#endif
