#include "cli/tls_options.h"

#include "core/parse.h"

enum { OPT_TLS = 0x6000, OPT_CA, OPT_CERT, OPT_KEY, OPT_NAME };

static const struct argp_option OPTIONS[] = {
    BT_OPTION_GROUP("A server with TLS (`baton run --tls-cert`):", 8),
    BT_OPTION("tls", OPT_TLS, NULL, "Speak TLS, and trust the system's authorities"),
    BT_OPTION("tls-ca", OPT_CA, "FILE", "Speak TLS, and trust the authorities in this PEM file"),
    BT_OPTION("tls-cert", OPT_CERT, "FILE",
              "This client's PEM certificate, for servers with --tls-client-ca; needs --tls-key"),
    BT_OPTION("tls-key", OPT_KEY, "FILE", "Private key of that certificate"),
    BT_OPTION("tls-server-name", OPT_NAME, "NAME",
              "Name in the server's certificate, if it is not the host of --address"),
    {0},
};

static void check(struct argp_state *state, const bt_rpc_client_tls *tls)
{
    if ((tls->cert == NULL) != (tls->key == NULL))
        argp_error(state, "--tls-cert and --tls-key go together");
    if (!tls->on && (tls->cert != NULL || tls->server_name != NULL))
        argp_error(state, "%s goes with --tls-ca FILE or --tls",
                   tls->cert != NULL ? "--tls-cert" : "--tls-server-name");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bt_rpc_client_tls *tls = state->input;

    switch (key) {
    case OPT_TLS: tls->on = true; return 0;
    case OPT_CA:
        tls->on = true;
        tls->ca = bt_option_name(state, "--tls-ca", "a file", arg);
        return 0;
    case OPT_CERT: tls->cert = bt_option_name(state, "--tls-cert", "a file", arg); return 0;
    case OPT_KEY: tls->key = bt_option_name(state, "--tls-key", "a file", arg); return 0;
    case OPT_NAME:
        tls->server_name = bt_option_name(state, "--tls-server-name", "a name", arg);
        return 0;
    case ARGP_KEY_END: check(state, tls); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp bt_tls_argp = {OPTIONS, parse, NULL, NULL, NULL, NULL, NULL};
