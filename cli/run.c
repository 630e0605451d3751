/* baton-run - a whole cell on this machine in one command: coordinator and ranks. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "cli/streams.h"
#include "cli/supervisor.h"
#include "core/clock.h"

enum { OPT_HOST = 256, OPT_CONTROL, OPT_QUEUE, OPT_STALL, OPT_LOG, OPT_CHAT, OPT_MAX, OPT_DEATH };

static const char DOC[] =
    "Starts a cell - one coordinator, P ranks that compute prompts and D ranks that generate - and "
    "serves until SIGTERM or SIGINT.\v"
    "When every rank has loaded its part of the model, one line goes to stdout:\n"
    "  serving DIR at HOST:PORT (...)\n"
    "The port accepts connections only from then on, and speaks vllm.grpc.engine.VllmEngine over "
    "gRPC: point a gateway, `baton generate` or `baton chat` at it. Everything else goes to "
    "stderr.\n\n"
    "When a process of the cell dies, every open request ends with UNAVAILABLE and the reason, all "
    "processes end, and this one says which died and how.\n\n"
    "Exit code: 0 after SIGTERM or SIGINT, 1 when the cell failed, 64 for wrong usage.\n\n"
    "Examples:\n"
    "  baton run --model models/demo --prefill 2 --decode 2 --port 8000\n"
    "  baton run --model models/demo --both 1 --port 0      (any free port)\n"
    "  baton run --model models/demo --chat 'Good morrow.'  (one answer, then the end)";

static const struct argp_option OPTIONS[] = {
    {"port",                                                            'p', "N", 0, "Public port (default 8000; 0: any free one)", 0},
    {"host",                                                              OPT_HOST, "HOST", 0,
     "Public address (default 127.0.0.1; 0.0.0.0 lets other machines in)", 0},
    {"chat",                    OPT_CHAT, "TEXT", 0, "Send this to the cell, show the answer and an account, and end",
     0},
    {"max-tokens",                                                                 OPT_MAX, "N", 0, "Of that answer (default 256)", 0},
    {"queue-s",OPT_QUEUE, "S", 0, "How long a request may wait for its turn", 0},
    {"on-death",                                                                OPT_DEATH, "WHAT", 0, "When a rank dies: stop (the only way yet)", 0},
    {"control",                                                                OPT_CONTROL, "HOST:PORT", 0,
     "Where the ranks attach (default 127.0.0.1:0; with several hosts an address they reach)", 0},
    {"stall-s",                                                            OPT_STALL, "S", 0,
     "Give up when nothing happens for so long before the cell is ready (default 120)", 0},
    {"log",                                                           OPT_LOG, "LEVEL", 0,
     "Lines of the ranks to show: error, warn, info (default; with --chat warn), debug", 0},
    {0}
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
    bool           log_given, port_given;
} options;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options        *all = state->input;
    bt_run_options *opt = &all->run;

    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &opt->cell; return 0;
    case 'p':
        opt->port       = (uint16_t)bt_option_number(state, "--port", arg, 0, 65535);
        all->port_given = true;
        return 0;
    case OPT_HOST: opt->host = arg; return 0;
    case OPT_CHAT: opt->chat = arg; return 0;
    case OPT_MAX:
        bt_option_number(state, "--max-tokens", arg, 1, INT32_MAX);
        opt->max_tokens = arg;
        return 0;
    case OPT_QUEUE:
        bt_option_number(state, "--queue-s", arg, 1, 86400);
        opt->queue_s = arg;
        return 0;
    case OPT_DEATH:
        if (strcmp(arg, "stop") != 0) {
            argp_error(state, "--on-death is \"%s\", expected stop", arg);
        }
        return 0;
    case OPT_CONTROL:
        if (strrchr(arg, ':') == NULL) {
            argp_error(state, "--control is \"%s\", expected HOST:PORT", arg);
        }
        opt->control = arg;
        return 0;
    case OPT_STALL:
        opt->stall_ns = (uint64_t)bt_option_number(state, "--stall-s", arg, 1, 86400) * BT_NS_PER_S;
        return 0;
    case OPT_LOG:
        opt->log       = log_level(state, arg);
        all->log_given = true;
        return 0;
    case ARGP_KEY_ARG: argp_error(state, "\"%s\" is no option", arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    const struct argp_child children[] = {
        {&bt_cell_argp, 0, NULL, 0},
        {0        }
    };
    const struct argp parser = {OPTIONS, parse, NULL, DOC, children, NULL, NULL};
    options           opt    = {
                     .run = {.host       = "127.0.0.1",
                             .control    = "127.0.0.1:0",
                             .port       = 8000,
                             .stall_ns   = 120 * BT_NS_PER_S,
                             .log        = BT_LOG_INFO,
                             .max_tokens = "256"}
    };

    bt_streams_init();
    argp_parse(&parser, argc, argv, 0, NULL, &opt);
    if (opt.run.chat != NULL && !opt.log_given) opt.run.log = BT_LOG_WARN;
    if (opt.run.chat != NULL && !opt.port_given) opt.run.port = 0;
    bt_log_init("run", opt.run.log);
    return bt_supervisor_run(&opt.run);
}
