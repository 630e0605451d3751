#include "coordinator/header_frames.h"

#include <stdatomic.h>

static const char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum { HEADERS = 1, GOAWAY = 7, CONTINUATION = 9 }; /* RFC 9113, sections 6.2, 6.8, 6.10 */
enum { END_HEADERS = 4 };

static atomic_uint_fast64_t g_n_held; /* by all connections */

static void begin_frame(bt_header_frames *h)
{
    uint8_t kind = h->head[3];

    h->n_head = 0;
    h->n_left = (uint32_t)h->head[0] << 16 | (uint32_t)h->head[1] << 8 | h->head[2];
    if (kind == HEADERS || kind == GOAWAY) h->n_headers = 0;
    if (kind == HEADERS || kind == GOAWAY || kind == CONTINUATION) {
        h->n_headers += h->n_left > BT_HEADER_FRAME_BYTES ? h->n_left : BT_HEADER_FRAME_BYTES;
        h->last = kind == GOAWAY || (h->head[4] & END_HEADERS) != 0;
    }
}

/* false: a call has too many. */
static bool count(bt_header_frames *h, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n && !h->other;) {
        size_t left = n - i;

        if (h->n_preface < sizeof(PREFACE) - 1) {
            h->other = bytes[i++] != (uint8_t)PREFACE[h->n_preface++];
        } else if (h->n_left > 0) {
            if (left > h->n_left) left = h->n_left;
            h->n_left -= (uint32_t)left;
            i += left;
        } else {
            h->head[h->n_head++] = bytes[i++];
            if (h->n_head == BT_FRAME_HEAD_BYTES) begin_frame(h);
            if (h->n_headers > BT_HEADER_BYTES) return false;
        }
        if (h->last && h->n_left == 0) h->n_headers = 0; /* they are whole */
    }
    return true;
}

static bool hold(bt_header_frames *h, uint32_t n)
{
    uint32_t before = h->n_held;

    h->n_held = n;
    return atomic_fetch_add(&g_n_held, (uint64_t)n - before) + n - before <= BT_HEADERS_BYTES ||
           n <= before;
}

const char *bt_header_frames_refuse(bt_header_frames *h, const uint8_t *bytes, size_t n)
{
    if (!count(h, bytes, n))
        return "has sent more than 64 KiB as the headers of a call, or to say that it goes";
    if (!hold(h, h->n_headers))
        return "has not sent the end of a call's headers, and 256 MiB of such are held";
    return NULL;
}

void bt_header_frames_end(bt_header_frames *h) { hold(h, 0); }
