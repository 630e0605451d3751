/* parallel/page_message.c - the wire form, little endian:
 *
 *      0 magic      4 version    8 request   16 epoch      20 token0    24 token1
 *     28 layer0    32 layer1    36 kv_dim    40 pages_tag  48 flags     52 tail_bytes
 *     56 zero, 8 bytes          64 payload_bytes           72 cached    76 zero, 12 bytes
 *     88 checksum
 *
 * The checksum is XXH3 of bytes 0..88 with XXH3 of the payload as its seed. */
#include "parallel/page_message.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

enum {
    MAGIC       = 0x67705442, /* "BTpg" */
    VERSION     = 3,
    FLAG_LAST   = 1,
    ZERO_AT     = 76,
    CHECKSUM_AT = 88,
    BF16_BYTES  = 2,
};
#define PAYLOAD_MAX (UINT64_C(1) << 40)

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p) { return get32(p) | (uint64_t)get32(p + 4) << 32; }

uint64_t bt_pages_tag(uint32_t n, const uint32_t *ids, const uint32_t *generations)
{
    uint64_t tag = n;
    uint8_t  pair[8];

    for (uint32_t i = 0; i < n; i++) {
        put32(pair, ids[i]);
        put32(pair + 4, generations[i]);
        tag = XXH3_64bits_withSeed(pair, sizeof(pair), tag);
    }
    return tag;
}

/* rows * layers * kv_dim * 2 and the tail; 0 when a factor is out of range. */
static uint64_t payload_bytes_of(const bt_page_message *m)
{
    uint64_t rows;

    if (m->token0 >= m->token1 || m->layer0 >= m->layer1 || m->kv_dim == 0) return 0;
    rows = (uint64_t)(m->token1 - m->token0) * (m->layer1 - m->layer0); /* < 2^64 */
    if (rows > PAYLOAD_MAX / BF16_BYTES / m->kv_dim) return 0;
    return rows * m->kv_dim * BF16_BYTES + m->tail_bytes;
}

/* All but the checksum. */
static void encode(const bt_page_message *m, uint8_t wire[BT_PAGE_MESSAGE_BYTES])
{
    memset(wire, 0, BT_PAGE_MESSAGE_BYTES);
    put32(wire + 0, MAGIC);
    put32(wire + 4, VERSION);
    put64(wire + 8, m->request);
    put32(wire + 16, m->epoch);
    put32(wire + 20, m->token0);
    put32(wire + 24, m->token1);
    put32(wire + 28, m->layer0);
    put32(wire + 32, m->layer1);
    put32(wire + 36, m->kv_dim);
    put64(wire + 40, m->pages_tag);
    put32(wire + 48, m->last ? FLAG_LAST : 0);
    put32(wire + 52, m->tail_bytes);
    put64(wire + 64, m->payload_bytes);
    put32(wire + 72, m->cached);
}

/* Writes all but that into `wire`. */
static uint64_t checksum_of(const bt_page_message *m, const void *covered, bool whole,
                            uint8_t wire[BT_PAGE_MESSAGE_BYTES])
{
    encode(m, wire);
    return XXH3_64bits_withSeed(wire, CHECKSUM_AT,
                                XXH3_64bits(covered, whole ? m->payload_bytes : m->tail_bytes));
}

void bt_page_message_seal(bt_page_message *m, const void *covered, bool whole,
                          uint8_t wire_out[BT_PAGE_MESSAGE_BYTES])
{
    m->payload_bytes = payload_bytes_of(m);
    BT_ASSERT(m->request != 0 && m->payload_bytes > 0);
    m->checksum = checksum_of(m, covered, whole, wire_out);
    put64(wire_out + CHECKSUM_AT, m->checksum);
}

static void decode(const uint8_t *wire, bt_page_message *m)
{
    *m = (bt_page_message){
        .request       = get64(wire + 8),
        .epoch         = get32(wire + 16),
        .token0        = get32(wire + 20),
        .token1        = get32(wire + 24),
        .layer0        = get32(wire + 28),
        .layer1        = get32(wire + 32),
        .kv_dim        = get32(wire + 36),
        .pages_tag     = get64(wire + 40),
        .last          = (get32(wire + 48) & FLAG_LAST) != 0,
        .tail_bytes    = get32(wire + 52),
        .payload_bytes = get64(wire + 64),
        .cached        = get32(wire + 72),
        .checksum      = get64(wire + CHECKSUM_AT),
    };
}

bt_status bt_page_message_parse(const uint8_t *wire, size_t n_bytes, bt_page_message *m_out)
{
    bt_status       st = BT_OK;
    bt_page_message m;

    BT_REQUIRE(n_bytes >= BT_PAGE_MESSAGE_BYTES, BT_ERR_PROTOCOL,
               "a page message of %zu bytes, want a header of %d", n_bytes, BT_PAGE_MESSAGE_BYTES);
    BT_REQUIRE(get32(wire) == MAGIC, BT_ERR_PROTOCOL, "a page message begins with %08x, want %08x",
               get32(wire), MAGIC);
    BT_REQUIRE(get32(wire + 4) == VERSION, BT_ERR_PROTOCOL,
               "a page message has version %u, want %d: all ranks must run the same build",
               get32(wire + 4), VERSION);
    BT_REQUIRE((get32(wire + 48) & ~(uint32_t)FLAG_LAST) == 0 && get64(wire + 56) == 0 &&
                   get32(wire + ZERO_AT) == 0 && get64(wire + ZERO_AT + 4) == 0,
               BT_ERR_PROTOCOL, "a page message has unknown flags %08x or fields",
               get32(wire + 48));
    decode(wire, &m);
    BT_REQUIRE(m.request != 0, BT_ERR_PROTOCOL, "a page message names request 0");
    BT_REQUIRE(m.last || m.tail_bytes == 0, BT_ERR_PROTOCOL,
               "a page message of request %" PRIu64 " has a tail of %u bytes and is not the last",
               m.request, m.tail_bytes);
    BT_REQUIRE(payload_bytes_of(&m) > 0, BT_ERR_PROTOCOL,
               "a page message of request %" PRIu64
               " has tokens [%u, %u), layers [%u, %u), kv_dim %u: empty or absurd",
               m.request, m.token0, m.token1, m.layer0, m.layer1, m.kv_dim);
    BT_REQUIRE(payload_bytes_of(&m) == m.payload_bytes, BT_ERR_PROTOCOL,
               "a page message of request %" PRIu64 " claims %" PRIu64
               " payload bytes, want %" PRIu64
               " for tokens [%u, %u), layers [%u, %u), kv_dim %u of 2 bytes",
               m.request, m.payload_bytes, payload_bytes_of(&m), m.token0, m.token1, m.layer0,
               m.layer1, m.kv_dim);
    *m_out = m;
out:
    return st;
}

bt_status bt_page_message_verify(const bt_page_message *m, const void *covered, bool whole)
{
    bt_status st = BT_OK;
    uint8_t   wire[BT_PAGE_MESSAGE_BYTES];
    uint64_t  sum = checksum_of(m, covered, whole, wire);

    BT_REQUIRE(sum == m->checksum, BT_ERR_CHECKSUM,
               "tokens [%u, %u), layers [%u, %u) of request %" PRIu64 ": checksum %016" PRIx64
               ", want %016" PRIx64,
               m->token0, m->token1, m->layer0, m->layer1, m->request, sum, m->checksum);
out:
    return st;
}
