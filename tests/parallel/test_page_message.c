/* The page message: what is sealed is read back, and everything else is refused. */
#include "parallel/page_message.h"
#include "tests/support/test.h"

enum { KV_DIM = 24, TAIL = 12, PAYLOAD = 2 * 3 * KV_DIM * 2 + TAIL };

static bt_page_message example(void)
{
    return (bt_page_message){.request    = 0x1122334455667788ull,
                             .epoch      = 9,
                             .token0     = 62,
                             .token1     = 65,
                             .layer0     = 1,
                             .layer1     = 3,
                             .kv_dim     = KV_DIM,
                             .pages_tag  = 0xfedcba9876543210ull,
                             .last       = true,
                             .tail_bytes = TAIL,
                             .cached     = 192};
}

static void fill(uint8_t *payload)
{
    for (size_t i = 0; i < PAYLOAD; i++)
        payload[i] = (uint8_t)(i * 37 + 11);
}

static void put_at(uint8_t *wire, size_t at, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        wire[at + i] = (uint8_t)(v >> 8 * i);
}

static void message_sealed_then_parsed_is_the_same(void)
{
    bt_page_message m = example(), back;
    uint8_t         wire[BT_PAGE_MESSAGE_BYTES], payload[PAYLOAD];

    fill(payload);
    bt_page_message_seal(&m, payload, true, wire);
    EXPECT_EQ(m.payload_bytes, PAYLOAD);
    EXPECT_EQ(bt_page_message_parse(wire, sizeof(wire), &back), BT_OK);
    EXPECT_EQ(back.request, m.request);
    EXPECT_EQ(back.epoch, m.epoch);
    EXPECT_EQ(back.token0, m.token0);
    EXPECT_EQ(back.token1, m.token1);
    EXPECT_EQ(back.layer0, m.layer0);
    EXPECT_EQ(back.layer1, m.layer1);
    EXPECT_EQ(back.kv_dim, m.kv_dim);
    EXPECT_EQ(back.pages_tag, m.pages_tag);
    EXPECT_EQ(back.last, true);
    EXPECT_EQ(back.tail_bytes, TAIL);
    EXPECT_EQ(back.cached, 192);
    EXPECT_EQ(back.payload_bytes, PAYLOAD);
    EXPECT_EQ(back.checksum, m.checksum);
    EXPECT_EQ(bt_page_message_verify(&back, payload, true), BT_OK);
    /* the wire form itself is a contract: little endian, at these places */
    EXPECT_EQ(wire[8], 0x88);
    EXPECT_EQ(wire[20], 62);
    EXPECT_EQ(wire[40], 0x10);
    m.last       = false;
    m.tail_bytes = 0;
    bt_page_message_seal(&m, payload, true, wire);
    EXPECT_EQ(bt_page_message_parse(wire, sizeof(wire), &back), BT_OK);
    EXPECT_EQ(back.last, false);
}

/* Each single flipped bit is refused by the parser or by the checksum. */
static void any_flipped_bit_is_noticed(void)
{
    bt_page_message m = example(), back;
    uint8_t         wire[BT_PAGE_MESSAGE_BYTES], payload[PAYLOAD];
    size_t          unnoticed = 0;

    fill(payload);
    bt_page_message_seal(&m, payload, true, wire);
    for (size_t bit = 0; bit < 8 * (sizeof(wire) + sizeof(payload)); bit++) {
        uint8_t *byte = bit / 8 < sizeof(wire) ? &wire[bit / 8] : &payload[bit / 8 - sizeof(wire)];

        *byte ^= (uint8_t)(1u << bit % 8);
        unnoticed += bt_page_message_parse(wire, sizeof(wire), &back) == BT_OK &&
                     bt_page_message_verify(&back, payload, true) == BT_OK;
        *byte ^= (uint8_t)(1u << bit % 8);
    }
    EXPECT_EQ(unnoticed, 0);
    EXPECT_EQ(bt_page_message_parse(wire, sizeof(wire), &back), BT_OK);
    EXPECT_EQ(bt_page_message_verify(&back, payload, true), BT_OK);
}

static void short_headers_are_refused(void)
{
    bt_page_message m = example(), back = {.request = 77};
    uint8_t         wire[BT_PAGE_MESSAGE_BYTES], payload[PAYLOAD];

    fill(payload);
    bt_page_message_seal(&m, payload, true, wire);
    for (size_t n = 0; n < sizeof(wire); n++)
        EXPECT_EQ(bt_page_message_parse(wire, n, &back), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), "95 bytes, want a header of 96");
    EXPECT_EQ(back.request, 77); /* written on success only */
}

static void lying_ranges_are_refused_by_name(void)
{
    static const struct {
        size_t      at, n;
        uint64_t    value;
        const char *says;
    } LIES[] = {
        {0,  4, 0,           "begins with"                                     },
        {4,  4, 2,           "version 2, want 3"                               },
        {8,  8, 0,           "request 0"                                       },
        {24, 4, 62,          "tokens [62, 62), layers [1, 3), kv_dim 24: empty"},
        {24, 4, 1,           "tokens [62, 1), layers [1, 3), kv_dim 24: empty" },
        {32, 4, 1,           "layers [1, 1), kv_dim 24: empty"                 },
        {32, 4, 0,           "layers [1, 0), kv_dim 24: empty"                 },
        {36, 4, 0,           "kv_dim 0: empty"                                 },
        {36, 4, 0xffffffff,  "claims 300 payload bytes"                        },
        {24, 4, 0xffffffff,  "claims 300 payload bytes"                        },
        {52, 4, 0xffffffff,  "claims 300 payload bytes"                        },
        {48, 4, 0,           "a tail of 12 bytes"                              },
        {64, 8, PAYLOAD + 1, "claims 301 payload bytes, want 300"              },
        {64, 8, UINT64_MAX,  "want 300"                                        },
        {56, 4, 1,           "unknown flags"                                   },
        {60, 4, 1,           "unknown flags"                                   },
        {48, 4, 3,           "unknown flags 00000003"                          },
        {76, 1, 1,           "unknown flags"                                   },
        {87, 1, 1,           "unknown flags"                                   },
    };
    bt_page_message back;
    uint8_t         payload[PAYLOAD];

    fill(payload);
    for (size_t i = 0; i < sizeof(LIES) / sizeof(LIES[0]); i++) {
        bt_page_message m = example();
        uint8_t         wire[BT_PAGE_MESSAGE_BYTES];

        bt_page_message_seal(&m, payload, true, wire);
        put_at(wire, LIES[i].at, LIES[i].value, LIES[i].n);
        EXPECT_EQ(bt_page_message_parse(wire, sizeof(wire), &back), BT_ERR_PROTOCOL);
        EXPECT_HAS(bt_error_text(), LIES[i].says);
    }
}

/* Products that overflow 64 bits must not come out as a small payload. */
static void overflowing_products_are_refused(void)
{
    bt_page_message m = example(), back;
    uint8_t         wire[BT_PAGE_MESSAGE_BYTES], payload[PAYLOAD];

    fill(payload);
    bt_page_message_seal(&m, payload, true, wire);
    put_at(wire, 20, 0, 4);
    put_at(wire, 24, 0xffffffff, 4);
    put_at(wire, 28, 0, 4);
    put_at(wire, 32, 0xffffffff, 4);
    put_at(wire, 36, 0x80000000, 4);
    put_at(wire, 64, 0, 8); /* (2^32-1)^2 * 2^31 * 2 mod 2^64 = 2^32 * (1 mod 2^32) */
    EXPECT_EQ(bt_page_message_parse(wire, sizeof(wire), &back), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), "empty or absurd");
    put_at(wire, 64, 0x100000000ull, 8);
    EXPECT_EQ(bt_page_message_parse(wire, sizeof(wire), &back), BT_ERR_PROTOCOL);
    put_at(wire, 24, 1 << 20, 4);
    put_at(wire, 32, 1 << 20, 4);
    put_at(wire, 36, (1 << 24) + 1, 4);
    put_at(wire, 64, (1ull << 41) + m.tail_bytes, 8); /* 2^65 + 2^41 bytes and the tail */
    EXPECT_EQ(bt_page_message_parse(wire, sizeof(wire), &back), BT_ERR_PROTOCOL);
    EXPECT_HAS(bt_error_text(), "empty or absurd");
}

static void page_tags_tell_ids_generations_order_and_length_apart(void)
{
    uint32_t ids[3] = {5, 6, 7}, gens[3] = {1, 1, 2}, turned[3] = {6, 5, 7}, older[3] = {1, 1, 1};
    uint32_t swapped[3] = {1, 1, 2}, as_gens[3] = {5, 6, 7};
    uint64_t tag = bt_pages_tag(3, ids, gens);

    EXPECT(tag == bt_pages_tag(3, ids, gens));
    EXPECT(tag != bt_pages_tag(3, turned, gens));
    EXPECT(tag != bt_pages_tag(3, ids, older));
    EXPECT(tag != bt_pages_tag(2, ids, gens));
    EXPECT(tag != bt_pages_tag(3, swapped, as_gens));
    EXPECT(bt_pages_tag(1, ids, gens) != bt_pages_tag(1, ids, gens + 2)); /* also of one page */
    EXPECT(bt_pages_tag(1, ids, gens) != bt_pages_tag(1, ids + 1, gens));
    EXPECT(bt_pages_tag(0, NULL, NULL) == bt_pages_tag(0, ids, gens));
}

static const bt_test TESTS[] = {
    BT_TEST(message_sealed_then_parsed_is_the_same),
    BT_TEST(any_flipped_bit_is_noticed),
    BT_TEST(short_headers_are_refused),
    BT_TEST(lying_ranges_are_refused_by_name),
    BT_TEST(overflowing_products_are_refused),
    BT_TEST(page_tags_tell_ids_generations_order_and_length_apart),
};

int main(int argc, char **argv)
{
    bt_log_init("test", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
