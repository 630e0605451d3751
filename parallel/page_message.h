/* parallel/page_message.h - the header that travels before each run of latent rows.
 *
 * A message carries rows [token0, token1) of layers [layer0, layer1) of one request, layer-major:
 *     payload[layer1 - layer0][token1 - token0][kv_dim]  bf16, then tail_bytes bytes
 * The tail belongs to the prompt's last message: what the two ends tell each other beside the rows.
 * Everything a receiver needs to decide whether the rows are its own is in the header; the
 * checksum (XXH3, 64 bit) covers the header's other fields and the payload.  Little endian. */
#ifndef BT_PARALLEL_PAGE_MESSAGE_H
#define BT_PARALLEL_PAGE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { BT_PAGE_MESSAGE_BYTES = 96 };

typedef struct {
    uint64_t request;        /* the coordinator's number, never 0 */
    uint32_t epoch;          /* placement epoch of the request */
    uint32_t token0, token1; /* absolute positions, token0 < token1 */
    uint32_t layer0, layer1; /* layer0 < layer1 */
    uint32_t kv_dim;
    uint64_t pages_tag; /* bt_pages_tag() of the pages that the rows touch */
    bool     last;      /* the prompt's last message: the two fields below count */
    uint32_t tail_bytes;
    uint32_t cached;        /* prompt tokens that the sender had and did not compute */
    uint64_t payload_bytes; /* rows and tail */
    uint64_t checksum;
} bt_page_message;

/* Where a message's rows and tail lie. */
typedef struct {
    void *rows;      /* memory of the device where on_device, else of the host */
    void *tail;      /* host memory */
    bool  on_device; /* work on the rows belongs on `stream` */
    void *stream;    /* of the kind of bt_device_stream() */
} bt_page_payload;

/* XXH3 over (id, generation) pairs of n pages. */
uint64_t bt_pages_tag(uint32_t n, const uint32_t *ids, const uint32_t *generations);

/* Fills m->payload_bytes and m->checksum, and writes the wire form.  `covered` is the payload; or,
 * where the rows travel apart from header and tail and are not covered, the tail: not `whole`. */
void bt_page_message_seal(bt_page_message *m, const void *covered, bool whole,
                          uint8_t wire_out[BT_PAGE_MESSAGE_BYTES]);
/* Parses and bounds-checks a header from `n_bytes` bytes of a peer.  PROTOCOL with what was
 * expected and found. */
bt_status bt_page_message_parse(const uint8_t *wire, size_t n_bytes, bt_page_message *m_out);
/* CHECKSUM when header and what it covers do not belong together. */
bt_status bt_page_message_verify(const bt_page_message *m, const void *covered, bool whole);

#endif
