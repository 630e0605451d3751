#include "core/parse.h"

#include <string.h>

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
    EXPECT(bt_parse_bytes("16777215T", &n) && n == 16777215ull << 40);
    EXPECT(!bt_parse_bytes("16777216T", &n));
}

static void addresses_have_a_host_and_a_port(void)
{
    char longest[BT_ADDRESS_BYTES + 1], host[BT_ADDRESS_BYTES], joined[BT_ADDRESS_BYTES];

    snprintf(longest, sizeof(longest), "%0*d:65535", BT_ADDRESS_BYTES - 7, 0);
    EXPECT(bt_parse_address(longest));
    bt_split_address(longest, host);
    bt_join_address(host, 65535, joined);
    EXPECT(strcmp(joined, longest) == 0);
    snprintf(longest, sizeof(longest), "%0*d:65535", BT_ADDRESS_BYTES - 6, 0);
    EXPECT(!bt_parse_address(longest));
    EXPECT(strcmp(bt_split_address("[::1]:65535", host), "65535") == 0 && strcmp(host, "::1") == 0);
    EXPECT(strcmp(bt_split_address("node1:0", host), "0") == 0 && strcmp(host, "node1") == 0);
    bt_join_address("node1", 7, host);
    EXPECT(strcmp(host, "node1:7") == 0);
    bt_join_address("::1", 65535, host);
    EXPECT(strcmp(host, "[::1]:65535") == 0);
    bt_join_address("[::1]", 65535, host);
    EXPECT(strcmp(host, "[::1]:65535") == 0);
    EXPECT(bt_parse_address("127.0.0.1:8000"));
    EXPECT(bt_parse_address("node1.cluster:0"));
    EXPECT(bt_parse_address("[::1]:65535"));
    EXPECT(!bt_parse_address("127.0.0.1:65536")); /* gRPC would take it modulo 65536 */
    EXPECT(!bt_parse_address("127.0.0.1:99999999999999999999"));
    EXPECT(!bt_parse_address("127.0.0.1:4294967376")); /* 80 in 32 bits */
    EXPECT(!bt_parse_address("127.0.0.1:-1"));
    EXPECT(!bt_parse_address("127.0.0.1:"));
    EXPECT(!bt_parse_address("127.0.0.1:80x"));
    EXPECT(!bt_parse_address("localhost"));
    EXPECT(!bt_parse_address(":8000"));
    EXPECT(!bt_parse_address("::1:8000"));
    EXPECT(!bt_parse_address("[::1:8000"));
    EXPECT(!bt_parse_address("::1"));
    EXPECT(!bt_parse_address("http://host:80"));
    EXPECT(!bt_parse_address("a b:80"));
    EXPECT(!bt_parse_address(""));
}

static void hosts_have_names_and_slots(void)
{
    char longest[300];

    memset(longest, 'n', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    EXPECT(bt_parse_host(longest, 253));
    EXPECT(!bt_parse_host(longest, 254));
    for (const char *const *good =
             (const char *const[]){"n1", "n1:8", "n1:65536,n2", "10.0.0.1:1,n-2", NULL};
         *good != NULL; good++)
        EXPECT(bt_parse_hosts(*good));
    for (const char *const *bad =
             (const char *const[]){"", ",", "n1,", ",n1", "n1:", "n1:0", "n1:x", "n1:1:1", "n1:+1",
                                   "n1:65537", "n1: 1", "n1:99999999999", "-oX=y", "n1 n2",
                                   "n\0011", "n\x7f", "n\xc3\xbc", NULL};
         *bad != NULL; bad++)
        EXPECT(!bt_parse_hosts(*bad));
}

static void numbers_are_within_limits_and_nothing_else(void)
{
    int64_t n = 77;
    double  x = 77;

    EXPECT(bt_parse_whole("-12", -12, 5, &n) && n == -12);
    EXPECT(bt_parse_whole("9223372036854775807", 0, INT64_MAX, &n) && n == INT64_MAX);
    EXPECT(bt_parse_real("2.5e3", 0, 2500, &x) && x == 2500);
    EXPECT(bt_parse_real("-.5", -1, 0, &x) && x == -0.5);
    n = 77;
    x = 77;
    EXPECT(!bt_parse_whole("9223372036854775808", 0, INT64_MAX, &n));
    EXPECT(!bt_parse_whole("6", -12, 5, &n));
    EXPECT(!bt_parse_real("2501", 0, 2500, &x));
    EXPECT(!bt_parse_real("nan", -1, 1, &x));
    for (const char *const *bad = (const char *const[]){"", "-", ".", " 1", "+1", "1 ", "1x", "0x1",
                                                        "0x1p1", "inf", "1\t", NULL};
         *bad != NULL; bad++) {
        EXPECT(!bt_parse_whole(*bad, -9, 9, &n));
        EXPECT(!bt_parse_real(*bad, -9, 9, &x));
    }
    EXPECT(n == 77 && x == 77);
    EXPECT(!bt_parse_whole("1e1", 0, 10, &n) && bt_parse_real("1e1", 0, 10, &x) && x == 10);
    EXPECT_HAS(bt_parse_hint("0x10"), "decimal digits");
    EXPECT(strcmp(bt_parse_hint("70000"), "") == 0);
}

static void numbers_of_a_list_end_at_its_separators(void)
{
    const char *at = "17=-2.5,x";
    int64_t     n  = 0;
    double      x  = 0;

    EXPECT(bt_parse_whole_in(&at, "=:", 0, 99, &n) && n == 17 && *at == '=');
    at++;
    EXPECT(bt_parse_real_in(&at, ",", -9, 9, &x) && x == -2.5 && *at == ',');
    at++;
    EXPECT(!bt_parse_whole_in(&at, ",", 0, 9, &n));
    at = "1111111111111111111111111111111111111111111111111111111111111111111111111";
    EXPECT(!bt_parse_real_in(&at, ",", 0, 1e300, &x));
    at += strlen(at) - 64; /* one more than there is room for */
    EXPECT(!bt_parse_real_in(&at, ",", 0, 1e300, &x));
    at++;
    EXPECT(bt_parse_real_in(&at, ",", 0, 1e300, &x) && *at == '\0');
    at = " 1";
    EXPECT(!bt_parse_whole_in(&at, ",", 0, 9, &n));
}

static void names_are_not_blank_and_no_options(void)
{
    EXPECT(bt_parse_name("a b"));
    EXPECT(bt_parse_name("-"));
    EXPECT(!bt_parse_name(""));
    EXPECT(!bt_parse_name(" \t"));
    EXPECT(!bt_parse_name("--both"));
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(bytes_have_binary_suffixes),
        BT_TEST(addresses_have_a_host_and_a_port),
        BT_TEST(hosts_have_names_and_slots),
        BT_TEST(names_are_not_blank_and_no_options),
        BT_TEST(numbers_of_a_list_end_at_its_separators),
        BT_TEST(numbers_are_within_limits_and_nothing_else),
    };

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
