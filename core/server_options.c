#include "core/server_options.h"

#include <string.h>

#include "core/defaults.h"
#include "core/parse.h"

enum {
    OPT_HOST = 1024,
    OPT_NAME,
    OPT_PUBLIC_PATH,
    OPT_SGLANG,
    OPT_QUEUE_S,
    OPT_QUEUE_TOKENS,
    OPT_DRAIN_S,
    OPT_UNREAD_S,
    OPT_BUSY_POLL,
    OPT_HTTP_PORT,
    OPT_HTTP_HOST,
    OPT_REJOIN_S,
    OPT_RANK_S,
    OPT_TLS_CERT,
    OPT_TLS_KEY,
    OPT_TLS_CLIENT_CA
};

static const struct argp_option OPTIONS[] = {
    BT_OPTION_OF(3, "rejoin-s", OPT_REJOIN_S, "S",
                 "replace: how long to wait for a spare when a role has no rank left "
                 "(default " BT_TEXT(BT_DEFAULT_REJOIN_S) ")"),
    BT_OPTION_DEFAULT("rank-timeout-s", OPT_RANK_S, "S", BT_TEXT(BT_DEFAULT_RANK_TIMEOUT_S),
                      "A rank with requests that makes no progress for S seconds is lost"),
    BT_OPTION_GROUP("The server:", 2),
    BT_OPTION_DEFAULT("host", OPT_HOST, "HOST", BT_DEFAULT_HOST,
                      "Public address; 0.0.0.0 lets other machines in"),
    BT_OPTION("served-model-name", OPT_NAME, "NAME",
              "What clients call the model (default: the directory's name)"),
    BT_OPTION("public-model-path", OPT_PUBLIC_PATH, "PATH",
              "Where gateways find the model's files, if not where they are here; none: unsaid, so "
              "that each gateway goes by its own settings"),
    BT_OPTION("sglang", OPT_SGLANG, NULL,
              "Speak sglang.grpc.scheduler.SglangScheduler too; a gateway that finds both uses "
              "that one, which has no seeds"),
    BT_OPTION_DEFAULT("queue-s", OPT_QUEUE_S, "S", BT_TEXT(BT_DEFAULT_QUEUE_S),
                      "How long a request may wait for its turn"),
    BT_OPTION_DEFAULT("queue-tokens", OPT_QUEUE_TOKENS, "N", BT_TEXT(BT_DEFAULT_QUEUE_TOKENS),
                      "Prompt tokens that may wait; a request beyond them is refused"),
    BT_OPTION_DEFAULT("drain-s", OPT_DRAIN_S, "S", BT_TEXT(BT_DEFAULT_DRAIN_S),
                      "How long requests may go on after SIGTERM; 0: not at all"),
    BT_OPTION_DEFAULT("unread-s", OPT_UNREAD_S, "S", BT_TEXT(BT_DEFAULT_UNREAD_S),
                      "A client that reads nothing of its answer, does not finish its request, or "
                      "has a connection and no call for S seconds is cut off"),
    BT_OPTION(
        "busy-poll", OPT_BUSY_POLL, NULL,
        "While ranks have requests the coordinator looks for their tokens without sleeping: they "
        "are sent sooner and more evenly, for a whole core, which nothing else should want"),
    BT_OPTION_DEFAULT("http-port", OPT_HTTP_PORT, "N", "none",
                      "Port of /metrics, /health, /ready and the status page; 0: any free one"),
    BT_OPTION_DEFAULT("http-host", OPT_HTTP_HOST, "HOST", BT_DEFAULT_HOST,
                      "Address of the HTTP port"),
    BT_OPTION_GROUP("TLS of the public port:", 4),
    BT_OPTION("tls-cert", OPT_TLS_CERT, "FILE", "PEM certificate chain of the public port"),
    BT_OPTION("tls-key", OPT_TLS_KEY, "FILE",
              "Private key of that certificate, without a passphrase"),
    BT_OPTION("tls-client-ca", OPT_TLS_CLIENT_CA, "FILE",
              "Accept only clients with a certificate from these authorities"),
    {0},
};

static double real(struct argp_state *state, const char *flag, double least, const char *arg)
{
    bt_server_options *o = state->input;

    bt_pass_on(&o->given, flag, arg);
    return bt_option_real(state, flag, arg, least, 1e8);
}

static int64_t whole(struct argp_state *state, const char *flag, int64_t least, int64_t most,
                     const char *arg)
{
    bt_server_options *o = state->input;

    bt_pass_on(&o->given, flag, arg);
    return bt_option_number(state, flag, arg, least, most);
}

static const char *name(struct argp_state *state, const char *flag, const char *what,
                        const char *arg)
{
    bt_server_options *o = state->input;

    bt_pass_on(&o->given, flag, arg);
    return bt_option_name(state, flag, what, arg);
}

static bool yes(bt_server_options *o, const char *flag)
{
    bt_pass_flag(&o->given, flag);
    return true;
}

static void check_host(struct argp_state *state, const char *option, const char *host)
{
    if (strlen(host) > BT_HOST_MAX)
        argp_error(state, "%s has %zu bytes, expected at most %d", option, strlen(host),
                   BT_HOST_MAX);
}

static void check(struct argp_state *state, const bt_server_options *o)
{
    check_host(state, "--host", o->host);
    check_host(state, "--http-host", o->http_host);
    if ((o->tls_cert == NULL) != (o->tls_key == NULL) ||
        (o->tls_client_ca != NULL && o->tls_cert == NULL))
        argp_error(state, "--tls-cert and --tls-key go together, --tls-client-ca needs both");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bt_server_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        *o = (bt_server_options){.host           = BT_DEFAULT_HOST,
                                 .queue_s        = BT_DEFAULT_QUEUE_S,
                                 .queue_tokens   = BT_DEFAULT_QUEUE_TOKENS,
                                 .drain_s        = BT_DEFAULT_DRAIN_S,
                                 .unread_s       = BT_DEFAULT_UNREAD_S,
                                 .rejoin_s       = BT_DEFAULT_REJOIN_S,
                                 .rank_timeout_s = BT_DEFAULT_RANK_TIMEOUT_S,
                                 .http_host      = BT_DEFAULT_HOST,
                                 .http_port      = -1};
        return 0;
    case OPT_HOST: o->host = name(state, "--host", "an address (0.0.0.0: all)", arg); return 0;
    case OPT_NAME: o->served_name = name(state, "--served-model-name", "a name", arg); return 0;
    case OPT_PUBLIC_PATH:
        o->public_path = name(state, "--public-model-path", "a path or none", arg);
        return 0;
    case OPT_SGLANG: o->sglang = yes(o, "--sglang"); return 0;
    case OPT_QUEUE_S: o->queue_s = real(state, "--queue-s", 1e-3, arg); return 0;
    case OPT_QUEUE_TOKENS:
        o->queue_tokens = (uint64_t)whole(state, "--queue-tokens", 1, 1ll << 40, arg);
        return 0;
    case OPT_DRAIN_S: o->drain_s = real(state, "--drain-s", 0, arg); return 0;
    case OPT_UNREAD_S: o->unread_s = real(state, "--unread-s", 0.5, arg); return 0;
    case OPT_BUSY_POLL: o->busy_poll = yes(o, "--busy-poll"); return 0;
    case OPT_HTTP_PORT: o->http_port = (int)whole(state, "--http-port", 0, 65535, arg); return 0;
    case OPT_HTTP_HOST: o->http_host = name(state, "--http-host", "an address", arg); return 0;
    case OPT_REJOIN_S: o->rejoin_s = real(state, "--rejoin-s", 1e-3, arg); return 0;
    case OPT_RANK_S: o->rank_timeout_s = real(state, "--rank-timeout-s", 1e-3, arg); return 0;
    case OPT_TLS_CERT: o->tls_cert = name(state, "--tls-cert", "a file", arg); return 0;
    case OPT_TLS_KEY: o->tls_key = name(state, "--tls-key", "a file", arg); return 0;
    case OPT_TLS_CLIENT_CA:
        o->tls_client_ca = name(state, "--tls-client-ca", "a file", arg);
        return 0;
    case ARGP_KEY_END: check(state, o); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp bt_server_argp = {OPTIONS, parse, NULL, NULL, NULL, NULL, NULL};
