#include "core/parse.h"

#include "tests/support/test.h"

static void bytes_have_binary_suffixes(void)
{
    uint64_t n = 0;

    EXPECT(bt_parse_bytes("65536", &n) && n == 65536);
    EXPECT(bt_parse_bytes("3k", &n) && n == 3072);
    EXPECT(bt_parse_bytes("2g", &n) && n == 2ull << 30);
    EXPECT(bt_parse_bytes("512M", &n) && n == 512ull << 20);
    EXPECT(bt_parse_bytes("1T", &n) && n == 1ull << 40);
    EXPECT(bt_parse_bytes("18446744073709551615", &n) && n == UINT64_MAX);
    EXPECT(!bt_parse_bytes("18446744073709551616", &n));
    EXPECT(!bt_parse_bytes("-1", &n));
    EXPECT(!bt_parse_bytes("", &n));
    EXPECT(!bt_parse_bytes("1GB", &n));
    EXPECT(!bt_parse_bytes(" 1", &n));
    EXPECT(!bt_parse_bytes("99999999T", &n));
}

static void addresses_have_a_host_and_a_port(void)
{
    EXPECT(bt_parse_address("127.0.0.1:8000"));
    EXPECT(bt_parse_address("node1.cluster:0"));
    EXPECT(bt_parse_address("[::1]:65535"));
    EXPECT(!bt_parse_address("127.0.0.1:65536")); /* gRPC would take it modulo 65536 */
    EXPECT(!bt_parse_address("127.0.0.1:99999999999999999999"));
    EXPECT(!bt_parse_address("127.0.0.1:-1"));
    EXPECT(!bt_parse_address("127.0.0.1:"));
    EXPECT(!bt_parse_address("127.0.0.1:80x"));
    EXPECT(!bt_parse_address("localhost"));
    EXPECT(!bt_parse_address(":8000"));
    EXPECT(!bt_parse_address("::1:8000"));
    EXPECT(!bt_parse_address("::1"));
    EXPECT(!bt_parse_address("http://host:80"));
    EXPECT(!bt_parse_address("a b:80"));
    EXPECT(!bt_parse_address(""));
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(bytes_have_binary_suffixes),
        BT_TEST(addresses_have_a_host_and_a_port),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
