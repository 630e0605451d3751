/* baton-run - a whole cell in one command: coordinator and ranks. */
#include <argp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "cli/places.h"
#include "cli/supervisor.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/defaults.h"
#include "core/limits.h"
#include "core/parse.h"
#include "core/settings.h"
#include "model/tokenizer.h"

/* When nobody says anything; what several programs share is in core/defaults.h. */
#define RESTARTS   5 /* with --on-death restart */
#define MAX_TOKENS 256

enum {
    OPT_CONTROL = 256,
    OPT_STALL,
    OPT_LOG,
    OPT_CHAT,
    OPT_MAX,
    OPT_DEATH,
    OPT_SPARES,
    OPT_RESTARTS,
    OPT_RENEW,
    OPT_JOIN,
    OPT_CHAT_TLS_CA,
    OPT_CHAT_TLS_NAME,
    OPT_CHAT_TLS_CERT,
    OPT_CHAT_TLS_KEY
};

static const char DOC[] =
    "Starts a cell - one coordinator, P ranks that compute prompts and D ranks that generate - and "
    "serves until SIGTERM or SIGINT.\v"
    "When every rank has loaded its part of the model, a line goes to stdout, with --http-port "
    "two, "
    "with --chat to stderr:\n"
    "  serving DIR at HOST:PORT (...)\n"
    "  metrics and status page at http://HOST:PORT/\n"
    "Only then does the public port accept connections. It speaks vllm.grpc.engine.VllmEngine over "
    "gRPC "
    "(with --sglang sglang.grpc.scheduler.SglangScheduler too): point a gateway, `baton generate` "
    "or `baton chat` at it. Everything else goes to stderr.\n\n"
    "SIGTERM drains: new requests are refused, running ones have --drain-s seconds to finish, then "
    "what is still open ends with UNAVAILABLE and the cell exits. SIGUSR1 drains without a limit. "
    "SIGINT ends the cell at once, and so does SIGTERM while it drains.\n\n"
    "A rank must show the secret of its cell to attach. A new one is drawn at each start, unless "
    "BATON_SECRET or BATON_SECRET_FILE gives one.\n\n"
    "When a rank dies or hangs, the others go on without it, or with a spare, and clients see a "
    "pause (--on-death replace). When a role has no rank left, or the coordinator dies, the cell "
    "ends: every open request ends with UNAVAILABLE and the reason, all processes exit, and a "
    "message says which died and how. With --on-death stop that is so for every rank.\n\n"
    "With --on-death restart, or with replace and --restarts, what died is started again: either "
    "the ranks, under the same coordinator, which continues their requests (clients see a pause); "
    "or the coordinator and new ranks (clients get UNAVAILABLE). The wait before a restart grows "
    "from 0.2 s to 30 s. After --restarts in a row, none of which lasted a minute, it gives up.\n\n"
    "With --coordinator the ranks join a coordinator that runs elsewhere, beside its other cells. "
    "The line on stdout is then \"cell NAME serves DIR under HOST:PORT (...)\"; SIGUSR1 "
    "drains this cell alone, and BATON_SECRET must be the coordinator's.\n\n" BT_CONFIG_TEXT
    " The outcome is logged at the start.\n\n"
    "Exit code: 0 after SIGTERM, SIGINT or SIGUSR1, 1 when the cell failed, also while it ended, "
    "64 for wrong usage.\n\n"
    "Examples:\n"
    "  baton run --model models/demo --prefill 2 --decode 2 --port 8000\n"
    "  baton run --model models/demo --both 1 --port 0      (any free port)\n"
    "  baton run --model models/demo --chat 'Good morrow.'  (one answer)";

/* Beside those of bt_cell_argp, groups 1 and 5, and of bt_server_argp. */
static const struct argp_option OPTIONS[] = {
    BT_OPTION_OF(
        2, "port", 'p', "N",
        "Public port; 0: any free one (default " BT_TEXT(BT_DEFAULT_PORT) ", with --chat 0)"),
    BT_OPTION_DEFAULT("log", OPT_LOG, "LEVEL", "info, with --chat warn",
                      "Which log lines to show, of all its processes: error, warn, info, debug"),
    BT_OPTION_GROUP("When a process dies:", 3),
    BT_OPTION_DEFAULT("on-death", OPT_DEATH, "WHAT", "replace",
                      "replace: the other ranks go on, and recompute what the lost one had; "
                      "restart: what died is started again; stop: the cell ends"),
    BT_OPTION_DEFAULT("spares", OPT_SPARES, "N", "0",
                      "Standby ranks, each of which can take the place of a lost one"),
    BT_OPTION_DEFAULT("restarts", OPT_RESTARTS, "N",
                      BT_TEXT(RESTARTS) " with --on-death restart, else 0",
                      "Restart a failed cell up to N times in a row"),
    BT_OPTION("renew", OPT_RENEW, NULL,
              "replace, with --restarts: when ranks are missing and no spare is left, start a new "
              "cell beside this one if memory allows, then drain this one"),
    BT_OPTION_DEFAULT("stall-s", OPT_STALL, "S", BT_TEXT(BT_DEFAULT_STALL_S),
                      "Give up when nothing happens for S seconds before the cell is ready"),
    BT_OPTION_GROUP("One answer, then exit:", 6),
    BT_OPTION("chat", OPT_CHAT, "TEXT", "Send TEXT, show answer and summary, then exit"),
    BT_OPTION_DEFAULT("max-tokens", OPT_MAX, "N", BT_TEXT(MAX_TOKENS), "Longest answer, in tokens"),
    BT_OPTION("chat-tls-ca", OPT_CHAT_TLS_CA, "FILE",
              "--chat: authorities to trust (default: the server's certificate)"),
    BT_OPTION("chat-tls-server-name", OPT_CHAT_TLS_NAME, "NAME",
              "--chat: name in the server's certificate, if it is not the address"),
    BT_OPTION("chat-tls-cert", OPT_CHAT_TLS_CERT, "FILE",
              "--chat: the client's certificate, for --tls-client-ca"),
    BT_OPTION("chat-tls-key", OPT_CHAT_TLS_KEY, "FILE", "--chat: its private key"),
    BT_OPTION_GROUP("Several cells, several machines:", 7),
    BT_OPTION("coordinator", OPT_JOIN, "HOST:PORT",
              "Start ranks only, for the coordinator with this control port; needs --cell"),
    BT_OPTION_DEFAULT("control", OPT_CONTROL, "HOST:PORT", BT_DEFAULT_CONTROL,
                      "Control port, where the ranks attach; with several hosts an address that "
                      "all of them reach"),
    BT_CONFIG_OPTION(8),
    {0},
};

static bt_log_level log_level(struct argp_state *state, const char *arg)
{
    static const char *const LEVELS[] = {"error", "warn", "info", "debug"};

    for (int i = 0; i < 4; i++) {
        if (strcmp(arg, LEVELS[i]) == 0) return (bt_log_level)i;
    }
    argp_error(state, "--log is \"%s\", expected error, warn, info or debug", arg);
    return BT_LOG_INFO;
}

typedef struct {
    bt_run_options run;
    bool           log_given, port_given, restart, restarts_given;
} options;

/* The client that asks calls --chat-tls-ca --tls-ca. */
static void pass_to_chat(struct argp_state *state, bt_run_options *opt, const char *flag,
                         const char *what, const char *arg)
{
    char option[32];

    snprintf(option, sizeof(option), "--chat%s", flag + 1);
    bt_option_name(state, option, what, arg);
    bt_pass_on(&opt->client, flag, arg);
}

static void check_tls(struct argp_state *state, bt_run_options *opt)
{
    const char *cert = opt->server.tls_cert;
    bool        asks = opt->server.tls_client_ca != NULL;

    if (opt->client.n > 0 && (opt->chat == NULL || cert == NULL))
        argp_error(state, "--chat%s goes with --chat and --tls-cert", opt->client.args[0] + 1);
    if ((bt_passed_value(&opt->client, "--tls-cert") != NULL) !=
        (bt_passed_value(&opt->client, "--tls-key") != NULL))
        argp_error(state, "--chat-tls-cert and --chat-tls-key go together");
    if (opt->chat == NULL || cert == NULL) return;
    if (asks && bt_passed_value(&opt->client, "--tls-cert") == NULL)
        argp_error(state, "--chat with --tls-client-ca needs --chat-tls-cert and --chat-tls-key");
    if (bt_passed_value(&opt->client, "--tls-ca") == NULL)
        pass_to_chat(state, opt, "--tls-ca", "a file", cert);
}

static void check(struct argp_state *state, options *all)
{
    bt_run_options *opt = &all->run;

    if (opt->cell.n_spares != 0 && !opt->cell.replace)
        argp_error(state, "--spares needs --on-death=replace");
    if (opt->chat != NULL || (!all->restart && !(opt->cell.replace && all->restarts_given)))
        opt->restarts = 0;
    if (opt->renew && (!opt->cell.replace || opt->restarts == 0 || opt->join != NULL))
        argp_error(state, "--renew goes with --on-death replace and --restarts N, and without "
                          "--coordinator");
    if (opt->restarts == 0 && opt->join == NULL)
        bt_cell_default(&opt->cell, "--orphan-s", "0"); /* no other coordinator will come */
    if (opt->join != NULL && (opt->cell.name == NULL || opt->chat != NULL))
        argp_error(state, "--coordinator needs --cell NAME and goes without --chat");
    check_tls(state, opt);
    if (opt->join == NULL) bt_places_check_control(state, &opt->cell, opt->control);
    if (opt->control == NULL) opt->control = BT_DEFAULT_CONTROL;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options        *all = state->input;
    bt_run_options *opt = &all->run;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &opt->cell;
        state->child_inputs[1] = &opt->server;
        return 0;
    case 'p':
        opt->port       = (uint16_t)bt_option_number(state, "--port", arg, 0, 65535);
        all->port_given = true;
        return 0;
    case OPT_CHAT:
        if (arg[0] == '\0') argp_error(state, "--chat is empty");
        opt->chat = arg;
        return 0;
    case OPT_MAX:
        bt_option_number(state, "--max-tokens", arg, 1, INT32_MAX);
        opt->max_tokens = arg;
        return 0;
    case ARGP_KEY_END: check(state, all); return 0;
    case OPT_DEATH:
        opt->cell.replace = strcmp(arg, "replace") == 0;
        all->restart      = strcmp(arg, "restart") == 0;
        if (!opt->cell.replace && !all->restart && strcmp(arg, "stop") != 0)
            argp_error(state, "--on-death is \"%s\", expected stop, restart or replace", arg);
        return 0;
    case OPT_SPARES:
        opt->cell.n_spares = (uint32_t)bt_option_number(state, "--spares", arg, 0, BT_RANKS_MAX);
        return 0;
    case OPT_RESTARTS:
        all->restarts_given = true;
        opt->restarts       = (uint32_t)bt_option_number(state, "--restarts", arg, 1, 1000000);
        return 0;
    case OPT_RENEW: opt->renew = true; return 0;
    case OPT_JOIN: opt->join = bt_option_address(state, "--coordinator", arg); return 0;
    case OPT_CONTROL: opt->control = bt_option_address(state, "--control", arg); return 0;
    case OPT_STALL:
        opt->stall_ns = (uint64_t)bt_option_number(state, "--stall-s", arg, 1, 86400) * BT_NS_PER_S;
        return 0;
    case OPT_LOG:
        opt->log       = log_level(state, arg);
        all->log_given = true;
        return 0;
    case OPT_CHAT_TLS_CA: pass_to_chat(state, opt, "--tls-ca", "a file", arg); return 0;
    case OPT_CHAT_TLS_NAME: pass_to_chat(state, opt, "--tls-server-name", "a name", arg); return 0;
    case OPT_CHAT_TLS_CERT: pass_to_chat(state, opt, "--tls-cert", "a file", arg); return 0;
    case OPT_CHAT_TLS_KEY: pass_to_chat(state, opt, "--tls-key", "a file", arg); return 0;
    case BT_OPT_CONFIG: return 0; /* has been read */
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; the model goes after --model", arg);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

#define OF_COORDINATOR(name)                                                                       \
    {                                                                                              \
        name, BT_WITH, "coordinator", NULL, "or give it to the coordinator, where that is started" \
    }
static const bt_setting_idle IDLE[] = {
    OF_COORDINATOR("port"),
    OF_COORDINATOR("host"),
    OF_COORDINATOR("control"),
    OF_COORDINATOR("served-model-name"),
    OF_COORDINATOR("public-model-path"),
    OF_COORDINATOR("queue-s"),
    OF_COORDINATOR("queue-tokens"),
    OF_COORDINATOR("unread-s"),
    OF_COORDINATOR("busy-poll"),
    OF_COORDINATOR("sglang"),
    OF_COORDINATOR("http-port"),
    OF_COORDINATOR("http-host"),
    OF_COORDINATOR("rejoin-s"),
    OF_COORDINATOR("rank-timeout-s"),
    OF_COORDINATOR("tls-cert"),
    OF_COORDINATOR("tls-key"),
    OF_COORDINATOR("tls-client-ca"),
    {"http-host",  BT_WITHOUT, "http-port", NULL,      "or give --http-port too"               },
    {"rejoin-s",   BT_WITHOUT, "on-death",  "replace", "or give --on-death replace"            },
    {"restarts",   BT_WITH,    "on-death",  "stop",    "or give another --on-death"            },
    {"restarts",   BT_WITH,    "chat",      NULL,      "since one answer ends the cell"        },
    {"max-tokens", BT_WITHOUT, "chat",      NULL,      "since clients say it with each request"},
    {NULL,         BT_WITH,    NULL,        NULL,      NULL                                    }
};

/* Better said before a large model is loaded than after. */
static bt_status check_chat(const char *model)
{
    bt_status       st      = BT_OK;
    bt_tokenizer   *tok     = NULL;
    char           *text    = NULL;
    bt_chat_message message = {"user", ""};

    BT_TRY(bt_tokenizer_open(model, &tok));
    BT_TRY(bt_tokenizer_chat(tok, 1, &message, BT_THINK_UNSAID, &text));
out:
    if (st != BT_OK)
        BT_WARN("--chat needs the model's tokenizer and chat template: leave it out to serve "
                "without; `baton generate` needs the tokenizer only, token ids neither");
    bt_free(text);
    bt_tokenizer_close(tok);
    return st;
}

int main(int argc, char **argv)
{
    const struct argp_child children[] = {
        {&bt_cell_argp,   0, NULL, 0},
        {&bt_server_argp, 0, NULL, 0},
        {NULL,            0, NULL, 0}
    };
    const struct argp parser   = {OPTIONS, parse, NULL, DOC, children, NULL, NULL};
    bt_settings_spec  spec     = {&parser, bt_cell_conflicts, IDLE};
    bt_settings      *settings = NULL;
    int               code;
    options           opt = {
                  .run = {.cell       = {.replace = true},
                          .port       = BT_DEFAULT_PORT,
                          .restarts   = RESTARTS,
                          .stall_ns   = BT_DEFAULT_STALL_S * BT_NS_PER_S,
                          .log        = BT_LOG_INFO,
                          .max_tokens = BT_TEXT(MAX_TOKENS)}
    };

    signal(SIGPIPE, SIG_IGN); /* a reader who has gone is an error of a write */
    bt_log_init("run", BT_LOG_INFO);
    if (bt_settings_gather(&spec, argc, argv, &settings) != BT_OK) return EX_USAGE;
    argp_parse(&parser, bt_settings_argc(settings), bt_settings_argv(settings), 0, NULL, &opt);
    if (opt.run.chat != NULL && !opt.log_given) opt.run.log = BT_LOG_WARN;
    if (opt.run.chat != NULL && !opt.port_given) opt.run.port = 0;
    bt_log_init("run", opt.run.log);
    if (bt_limits_check() != BT_OK) return EXIT_FAILURE;
    if (opt.run.chat != NULL && check_chat(opt.run.cell.model) != BT_OK) return EXIT_FAILURE;
    bt_log_never_block(); /* who stops reading its lines does not stop the cell */
    opt.run.cell.verbose = opt.run.log == BT_LOG_DEBUG;
    bt_settings_log(settings);
    bt_settings_clear_environment(settings); /* coordinator and ranks get them as flags */
    code = bt_supervisor_run(&opt.run);
    bt_settings_destroy(settings);
    return code;
}
