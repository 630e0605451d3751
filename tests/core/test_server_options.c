/* What baton-coordinator and `baton run` read alike. */
#include "core/server_options.h"

#include <string.h>

#include "core/defaults.h"
#include "tests/support/test.h"

/* Each once, where it was said first, with its last value. */
static void server_options_are_read_and_passed_on(void)
{
    static const char *const SAID[] = {"--host",
                                       "h",
                                       "--sglang",
                                       "--drain-s",
                                       "0",
                                       "--served-model-name",
                                       "n",
                                       "--public-model-path",
                                       "p",
                                       "--queue-s",
                                       "1.5",
                                       "--queue-tokens",
                                       "2",
                                       "--unread-s",
                                       "0.5",
                                       "--busy-poll",
                                       "--http-port",
                                       "65535",
                                       "--http-host",
                                       "i",
                                       "--rejoin-s",
                                       "3",
                                       "--rank-timeout-s",
                                       "4",
                                       "--tls-cert",
                                       "c",
                                       "--tls-key",
                                       "k",
                                       "--tls-client-ca",
                                       "a"};
    enum { N = sizeof(SAID) / sizeof(SAID[0]) };
    char             *argv[4 + N + 1] = {"", "--host=0", "--sglang", "--drain-s=9"};
    bt_server_options o;

    for (int i = 0; i < N; i++)
        argv[4 + i] = (char *)SAID[i];
    EXPECT_EQ(argp_parse(&bt_server_argp, 4 + N, argv, 0, NULL, &o), 0);
    EXPECT(strcmp(o.host, "h") == 0 && strcmp(o.served_name, "n") == 0);
    EXPECT(strcmp(o.public_path, "p") == 0 && strcmp(o.http_host, "i") == 0);
    EXPECT(strcmp(o.tls_cert, "c") == 0 && strcmp(o.tls_key, "k") == 0);
    EXPECT(strcmp(o.tls_client_ca, "a") == 0 && o.sglang && o.busy_poll);
    EXPECT(o.queue_s == 1.5 && o.drain_s == 0 && o.unread_s == 0.5);
    EXPECT(o.rejoin_s == 3 && o.rank_timeout_s == 4);
    EXPECT(o.queue_tokens == 2 && o.http_port == 65535);
    EXPECT_EQ(o.given.n, N);
    for (int i = 0; i < N; i++)
        EXPECT(strcmp(o.given.args[i], SAID[i]) == 0);
    EXPECT(strcmp(bt_passed_value(&o.given, "--tls-client-ca"), "a") == 0);

    EXPECT_EQ(argp_parse(&bt_server_argp, 1, argv, 0, NULL, &o), 0);
    EXPECT(o.given.n == 0 && bt_passed_value(&o.given, "--host") == NULL);
    EXPECT(strcmp(o.host, BT_DEFAULT_HOST) == 0 && strcmp(o.http_host, BT_DEFAULT_HOST) == 0);
    EXPECT(o.http_port == -1 && o.drain_s == BT_DEFAULT_DRAIN_S && !o.sglang && !o.busy_poll);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {BT_TEST(server_options_are_read_and_passed_on)};

    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
