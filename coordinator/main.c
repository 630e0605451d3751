/* baton-coordinator - the options; coordinator.c does the rest. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

#include "coordinator/accept.h"
#include "coordinator/coordinator.h"
#include "core/defaults.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/parse.h"
#include "core/settings.h"
#include "proto/secret.h"
#include "proto/text.h"

static const char doc[] =
    "The coordinator of one cell or several: takes requests over gRPC "
    "(vllm.grpc.engine.VllmEngine, with --sglang sglang.grpc.scheduler.SglangScheduler too), gives "
    "each to a decode and a prefill rank, and streams the "
    "tokens back.\v"
    "Ranks attach to the control port by themselves (baton-worker --coordinator HOST:PORT). The "
    "public port opens when all ranks of a cell have loaded the model. `baton run` starts a "
    "coordinator and its ranks in one command.\n\n"
    "--announce-fd gets these lines: \"http HOST:PORT\", \"control HOST:PORT\", \"progress RANK "
    "DONE TOTAL [CELL]\", \"ready HOST:PORT\", \"serving CELL\", \"draining\", \"worn CELL\" (it "
    "lacks ranks and has no spare left), \"lost CELL: REASON\", \"left CELL\", \"failed "
    "REASON\", and, in a pipe that is read, \"alive\" every second.\n\n"
    "SIGTERM drains: new requests are refused with UNAVAILABLE, running ones have --drain-s "
    "seconds to finish, then what is still open ends with UNAVAILABLE, and the ranks are told to "
    "exit. SIGUSR1 drains without a limit. SIGINT ends at once, and so does SIGTERM "
    "while it drains.\n\n"
    "When a cell is lost, its requests go on in another one that computes the same bits, with the "
    "tokens that their clients have. When there is no other cell, the coordinator exits, "
    "or, with --on-death restart, waits for one. Cells are told apart by `baton-worker --cell "
    "NAME`; SIGUSR1 to any rank drains its cell.\n\n" BT_CONFIG_TEXT
    " The outcome is logged at the start.\n\n"
    "Exit code: 0 after SIGTERM, SIGINT or SIGUSR1, 1 when it failed or lost its last cell, 64 "
    "for wrong usage.\n\n"
    "Example:\n"
    "  baton-coordinator --model models/demo --port 50051 --control 127.0.0.1:50052\n"
    "  mpirun -n 2 baton-worker --model models/demo --prefill 1 --decode 1 \\\n"
    "    --coordinator 127.0.0.1:50052";

/* When nobody says anything; what several programs share is in core/defaults.h. */
#define ATTACH_S       60
#define LOAD_S         3600
#define STALL_S        600
#define PREFILL_WINDOW 16384

enum {
    OPT_MODEL = 256,
    OPT_PORT,
    OPT_CONTROL,
    OPT_ANNOUNCE,
    OPT_ON_DEATH,
    OPT_WINDOW,
    OPT_ATTACH_S,
    OPT_LOAD_S,
    OPT_STALL_S,
    OPT_SECRET_FILE,
    OPT_CELL_WAIT_S,
    OPT_VERBOSE
};

/* Beside those of bt_server_argp. */
static const struct argp_option options[] = {
    BT_OPTION_GROUP("The cell:", 1),
    BT_OPTION("model", OPT_MODEL, "DIR", "Model directory; gateways look for the tokenizer there"),
    BT_OPTION_DEFAULT("control", OPT_CONTROL, "HOST:PORT", BT_DEFAULT_CONTROL,
                      "Control port, where the ranks attach"),
    BT_OPTION_DEFAULT("attach-s", OPT_ATTACH_S, "S", BT_TEXT(ATTACH_S),
                      "How long to wait for the other ranks once the first one has attached"),
    BT_OPTION_DEFAULT("load-s", OPT_LOAD_S, "S", BT_TEXT(LOAD_S), "How long loading may take"),
    BT_OPTION_DEFAULT("cell-wait-s", OPT_CELL_WAIT_S, "S",
                      BT_TEXT(BT_DEFAULT_CELL_WAIT_S) " with --on-death restart, else not at all",
                      "How long requests wait for a cell when none is left"),
    BT_OPTION("secret-file", OPT_SECRET_FILE, "FILE",
              "File whose first line is the secret that ranks must show (BATON_SECRET in the "
              "environment wins)"),
    BT_OPTION("announce-fd", OPT_ANNOUNCE, "FD",
              "Write what happens, as lines, to this file descriptor"),
    BT_OPTION("verbose", OPT_VERBOSE, NULL, "Log requests that go back to the queue too"),
    BT_OPTION_OF(2, "port", OPT_PORT, "N", "Public port, without a default; 0: any free one"),
    BT_OPTION_DEFAULT("prefill-window", OPT_WINDOW, "N", BT_TEXT(PREFILL_WINDOW),
                      "Prompt tokens sent ahead to one prefill rank"),
    BT_OPTION_GROUP("When a rank dies:", 3),
    BT_OPTION_DEFAULT("on-death", OPT_ON_DEATH, "WHAT", "stop",
                      "stop: its cell ends, and the coordinator with its last one; restart: its "
                      "cell ends, and its requests go on in another one or wait for it to come "
                      "back; replace: the other ranks go on, and recompute what it had"),
    BT_OPTION_DEFAULT("stall-s", OPT_STALL_S, "S", BT_TEXT(STALL_S),
                      "A placed request that nothing is heard of for S seconds fails, unless its "
                      "rank computes prompts"),
    BT_CONFIG_OPTION(5),
    {0},
};

static double seconds(struct argp_state *state, const char *option, const char *arg)
{
    return bt_option_real(state, option, arg, 1e-3, 1e8);
}

static bool g_has_port, g_restarts;

static void check(struct argp_state *state, bt_coordinator_options *o)
{
    if (o->model == NULL) argp_error(state, "--model DIR is missing");
    if (!g_has_port) argp_error(state, "--port N is missing (0 takes any free port)");
    if (g_restarts && o->cell_wait_s == 0) o->cell_wait_s = BT_DEFAULT_CELL_WAIT_S;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bt_coordinator_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->server; break;
    case OPT_MODEL: o->model = bt_option_model(state, "--model", arg); break;
    case OPT_PORT:
        o->port    = (uint32_t)bt_option_number(state, "--port", arg, 0, 65535);
        g_has_port = true;
        break;
    case OPT_CONTROL: o->control = bt_option_address(state, "--control", arg); break;
    case OPT_ANNOUNCE:
        o->announce_fd = (int)bt_option_number(state, "--announce-fd", arg, 0, INT_MAX);
        if (fcntl(o->announce_fd, F_GETFD) < 0) /* else the number of a connection to come */
            argp_error(state, "--announce-fd is %s, expected a descriptor that is open: %s", arg,
                       strerror(errno));
        break;
    case OPT_ON_DEATH:
        o->replace = strcmp(arg, "replace") == 0;
        g_restarts = strcmp(arg, "restart") == 0;
        if (!o->replace && !g_restarts && strcmp(arg, "stop") != 0)
            argp_error(state, "--on-death is \"%s\", expected stop, restart or replace", arg);
        break;
    case OPT_CELL_WAIT_S: o->cell_wait_s = seconds(state, "--cell-wait-s", arg); break;
    case OPT_WINDOW:
        o->prefill_window = (uint32_t)bt_option_number(state, "--prefill-window", arg, 1, 1u << 30);
        break;
    case OPT_ATTACH_S: o->attach_s = seconds(state, "--attach-s", arg); break;
    case OPT_LOAD_S: o->load_s = seconds(state, "--load-s", arg); break;
    case OPT_STALL_S: o->stall_s = seconds(state, "--stall-s", arg); break;
    case OPT_VERBOSE: o->verbose = true; break;
    case OPT_SECRET_FILE:
        bt_option_name(state, "--secret-file", "a file", arg);
        if (setenv(BT_SECRET_FILE_ENV, arg, 1) != 0) argp_failure(state, 1, errno, "secret-file");
        break;
    case BT_OPT_CONFIG: break; /* has been read */
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; the model goes after --model", arg);
        break;
    case ARGP_KEY_END: check(state, o); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const bt_setting_idle IDLE[] = {
    {"http-host", BT_WITHOUT, "http-port", NULL,      "or give --http-port too"   },
    {"rejoin-s",  BT_WITHOUT, "on-death",  "replace", "or give --on-death replace"},
    {NULL,        BT_WITH,    NULL,        NULL,      NULL                        }
};

/* What clients and operators are told would be no protobuf string, and no JSON. */
static bt_status check_names(const bt_coordinator_options *o)
{
    bt_status st = BT_OK;
    char      shown[PATH_MAX];

    bt_text_clean(o->model, shown, sizeof(shown));
    BT_REQUIRE(bt_text_is_utf8(o->model), BT_ERR_INVALID_ARG,
               "--model %s: expected a path in UTF-8, since clients are told it: rename it", shown);
    bt_text_clean(o->server.served_name, shown, sizeof(shown));
    BT_REQUIRE(bt_text_is_utf8(o->server.served_name), BT_ERR_INVALID_ARG,
               "--served-model-name %s: expected a name in UTF-8", shown);
    bt_text_clean(o->server.public_path, shown, sizeof(shown));
    BT_REQUIRE(bt_text_is_utf8(o->server.public_path), BT_ERR_INVALID_ARG,
               "--public-model-path %s: expected a path in UTF-8", shown);
out:
    return st;
}

int main(int argc, char **argv)
{
    const struct argp_child children[] = {
        {&bt_server_argp, 0, NULL, 0},
        {NULL,            0, NULL, 0}
    };
    const struct argp      argp     = {options, parse, NULL, doc, children, NULL, NULL};
    bt_coordinator_options o        = {.control        = BT_DEFAULT_CONTROL,
                                       .announce_fd    = -1,
                                       .prefill_window = PREFILL_WINDOW,
                                       .attach_s       = ATTACH_S,
                                       .load_s         = LOAD_S,
                                       .stall_s        = STALL_S};
    bt_settings_spec       spec     = {&argp, NULL, IDLE};
    bt_settings           *settings = NULL;
    struct stat            info;
    char                  *path;
    int                    rc;

    bt_log_init("coordinator", BT_LOG_INFO);
    bt_log_never_block();
    bt_log_bound();
    if (bt_settings_gather(&spec, argc, argv, &settings) != BT_OK) return EX_USAGE;
    argp_parse(&argp, bt_settings_argc(settings), bt_settings_argv(settings), 0, NULL, &o);
    if (o.verbose) bt_log_init("coordinator", BT_LOG_DEBUG);
    bt_settings_log(settings);
    if (bt_limits_check() != BT_OK) return 1;
    bt_accept_bound();
    path = realpath(o.model, NULL);
    if (path == NULL || stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        fprintf(stderr, "%s: --model %s: %s\n", program_invocation_short_name, o.model,
                path == NULL ? strerror(errno) : "expected a directory");
        free(path);
        bt_settings_destroy(settings);
        return 1;
    }
    o.model = path;
    if (o.server.served_name == NULL) o.server.served_name = strrchr(path, '/') + 1;
    if (o.server.public_path == NULL) o.server.public_path = path;
    if (strcmp(o.server.public_path, "none") == 0) o.server.public_path = "";
    rc = check_names(&o) == BT_OK ? bt_coordinator_run(&o) : 1;
    free(path);
    bt_settings_destroy(settings);
    return rc;
}
