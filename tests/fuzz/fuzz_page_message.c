/* Any bytes as a page message: refused, or a header whose ranges and sizes agree; what is sealed
 * parses to the same, and one flipped bit of it is noticed.  Input: a header, then a payload. */
#include <stdlib.h>
#include <string.h>

#include "parallel/page_message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_parsed(const bt_page_message *m, const uint8_t *payload, size_t n)
{
    BT_ASSERT(m->request != 0 && m->token0 < m->token1 && m->layer0 < m->layer1 && m->kv_dim != 0);
    BT_ASSERT(m->payload_bytes ==
              (uint64_t)(m->token1 - m->token0) * (m->layer1 - m->layer0) * m->kv_dim * 2 +
                  m->tail_bytes);
    if (m->payload_bytes <= n) (void)bt_page_message_verify(m, payload, true);
}

/* A small message with fields from the input. */
static void check_sealed(const uint8_t *data, size_t n)
{
    bt_page_message m = {0}, back;
    uint8_t         wire[BT_PAGE_MESSAGE_BYTES], payload[3 * 2 * 4 * 2 + 12];
    size_t          bit;

    memcpy(&m.request, data, 8);
    memcpy(&m.epoch, data + 8, 4);
    memcpy(&m.pages_tag, data + 12, 8);
    m.request |= 1;
    m.token0     = data[24];
    m.token1     = m.token0 + 1 + data[25] % 3;
    m.layer0     = data[26];
    m.layer1     = m.layer0 + 1 + data[27] % 2;
    m.kv_dim     = 1 + data[28] % 4;
    m.last       = data[29] & 1;
    m.tail_bytes = m.last ? data[20] % 13 : 0;
    for (size_t i = 0; i < sizeof(payload); i++)
        payload[i] = data[(30 + i) % n];
    bt_page_message_seal(&m, payload, true, wire);
    BT_ASSERT(m.payload_bytes <= sizeof(payload));
    if (bt_page_message_parse(wire, sizeof(wire), &back) != BT_OK) abort();
    check_parsed(&back, payload, sizeof(payload));
    BT_ASSERT(back.tail_bytes == m.tail_bytes && back.request == m.request &&
              back.epoch == m.epoch && back.token1 == m.token1 && back.layer1 == m.layer1 &&
              back.pages_tag == m.pages_tag && back.last == m.last);
    if (bt_page_message_verify(&back, payload, true) != BT_OK) abort();
    bit = (data[24] | (size_t)data[25] << 8) % (m.payload_bytes * 8);
    payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
    BT_ASSERT(bt_page_message_verify(&back, payload, true) == BT_ERR_CHECKSUM);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    bt_page_message m;

    if (bt_page_message_parse(data, n, &m) == BT_OK)
        check_parsed(&m, data + BT_PAGE_MESSAGE_BYTES, n - BT_PAGE_MESSAGE_BYTES);
    if (n >= 32) check_sealed(data, n);
    return 0;
}
