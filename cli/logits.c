/* baton-logits - evaluation: the logits of given token ids, computed by the ranks that serve.
 *
 * Starts a cell of its own, without a coordinator: this process is the other end of the ranks'
 * control streams. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>

#include "cli/cell_options.h"
#include "cli/child.h"
#include "cli/echo.h"
#include "cli/eval_cell.h"
#include "cli/places.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/defaults.h"
#include "core/file.h"
#include "core/limits.h"
#include "core/parse.h"
#include "core/settings.h"
#include "proto/secret.h"

#define PARALLEL 8 /* --parallel, when nobody says anything */

enum { OPT_IDS = 256, OPT_OUT, OPT_PARALLEL, OPT_CONTROL, OPT_STALL };
enum { TICK_MS = 20, STEP_STALLS = 5 }; /* a whole prompt may be one long step */
#define LEAVE_NS (8 * BT_NS_PER_S)
#define KILL_NS  (5 * BT_NS_PER_S)

static const char DOC[] =
    "Computes the logits of every position of given token sequences, in a cell that it starts and "
    "ends.\v"
    "IN.safetensors holds for each case NAME:\n"
    "  NAME.ids      i32 [T]         the tokens\n"
    "  NAME.prompt   i32 [1]         how many of them are the prompt (1 to T)\n"
    "  NAME.experts  i32 [Lm, T, k]  optional: routing to force, by MoE layer\n"
    "OUT.safetensors gets:\n"
    "  NAME.logits   f32 [T, V]      row t predicts token t + 1\n"
    "  NAME.experts  i32 [Lm, T, k]  the experts as routed, ascending by id\n\n"
    "Prompt positions come from the prefill path, without --chunk each prompt in one step; the "
    "others are teacher-forced through the decode path after the hand-off, in the same ranks that "
    "serve. --form changes attention only: the GEMM family stays by role.\n\n" BT_CONFIG_TEXT "\n\n"
    "Exit code: 0 when OUT holds every case; 1 on any failure, a logit that is no finite number "
    "among them (OUT is then not written); 64 for wrong usage.\n\n"
    "Example:\n"
    "  baton logits --model models/demo --prefill 2 --decode 2 --chunk 64 \\\n"
    "    --ids in.safetensors --out out.safetensors";

static const struct argp_option OPTIONS[] = {
    BT_OPTION("ids", OPT_IDS, "IN", "The cases (safetensors)"),
    BT_OPTION("out", OPT_OUT, "OUT", "Where the answers go (safetensors)"),
    BT_OPTION_DEFAULT("parallel", OPT_PARALLEL, "N", BT_TEXT(PARALLEL), "Cases computed at once"),
    BT_OPTION_DEFAULT("control", OPT_CONTROL, "HOST:PORT", BT_DEFAULT_CONTROL,
                      "Control port, where the ranks attach; with several hosts an address that "
                      "all of them reach"),
    BT_OPTION_DEFAULT("stall-s", OPT_STALL, "S", BT_TEXT(BT_DEFAULT_STALL_S),
                      "Give up when no rank reports progress for S seconds while loading, or 5 "
                      "times as long while computing"),
    BT_OPTION("verbose", 'v', NULL, "Show everything that the ranks say"),
    BT_CONFIG_OPTION(0),
    {0},
};

typedef struct {
    bt_cell_options cell;
    const char     *in, *out, *control;
    uint32_t        n_parallel;
    uint64_t        stall_ns;
} options;

static atomic_int g_signal; /* as a signal may find any thread of gRPC's */

static void note_signal(int sig) { g_signal = sig; }

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;

    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &opt->cell; return 0;
    case OPT_IDS: opt->in = bt_option_name(state, "--ids", "a file", arg); return 0;
    case OPT_OUT: opt->out = bt_option_name(state, "--out", "a file", arg); return 0;
    case OPT_CONTROL: opt->control = bt_option_address(state, "--control", arg); return 0;
    case OPT_PARALLEL:
        opt->n_parallel = (uint32_t)bt_option_number(state, "--parallel", arg, 1, 65536);
        return 0;
    case OPT_STALL:
        opt->stall_ns = (uint64_t)bt_option_number(state, "--stall-s", arg, 1, 86400) * BT_NS_PER_S;
        return 0;
    case 'v': opt->cell.verbose = true; return 0;
    case BT_OPT_CONFIG: return 0; /* has been read */
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; the model goes after --model", arg);
        return 0;
    case ARGP_KEY_END:
        if (opt->in == NULL) argp_error(state, "--ids is missing: the cases to compute");
        if (opt->out == NULL) argp_error(state, "--out is missing: where the answers go");
        if (opt->cell.n_spares != 0)
            argp_error(state, "--rank-map has a spare: leave it out, since no rank is replaced");
        bt_places_check_control(state, &opt->cell, opt->control);
        if (opt->control == NULL) opt->control = BT_DEFAULT_CONTROL;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* How many experts a token takes, 0 for a dense model: the one number that the rows do not tell;
 * and how many ids there are, 0 where that is not said, which ranks tell only once they are there.
 * A multimodal model's are those of its language model; params.json and Sarvam's config.json have
 * another name. */
static bt_status read_config(const char *model, uint32_t *top_k_out, uint32_t *vocab_out)
{
    bt_status    st = BT_OK;
    char         path[PATH_MAX];
    json_error_t error;
    json_t      *config = NULL, *language, *from, *top_k, *experts;
    json_int_t   vocab, n = 0;
    struct stat  info;

    bt_model_config_file(model, path);
    BT_REQUIRE(stat(path, &info) == 0, BT_ERR_IO, "%s: %s", path, strerror(errno));
    BT_REQUIRE(S_ISREG(info.st_mode), BT_ERR_FORMAT, "%s: expected a regular file, found %s", path,
               bt_file_kind(info.st_mode));
    config = json_load_file(path, 0, &error);
    BT_REQUIRE(config != NULL, BT_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
    language = json_object_get(config, "text_config");
    if (!json_is_object(language)) language = config;
    vocab = json_integer_value(json_object_get(language, "vocab_size"));
    from  = json_object_get(config, "moe");
    if (!json_is_object(from)) from = language;
    experts = json_object_get(from, "n_routed_experts");
    if (!json_is_integer(experts)) experts = json_object_get(from, "num_experts");
    top_k = json_object_get(from, "num_experts_per_tok");
    if (json_integer_value(experts) != 0) {
        n = json_integer_value(top_k);
        BT_REQUIRE(n >= 1 && n <= json_integer_value(experts), BT_ERR_FORMAT,
                   "%s: field num_experts_per_tok: expected 1 to %lld, the number of experts", path,
                   (long long)json_integer_value(experts));
    }
    *top_k_out = (uint32_t)n;
    *vocab_out = vocab > 0 && vocab <= UINT32_MAX ? (uint32_t)vocab : 0;
out:
    json_decref(config);
    return st;
}

typedef struct {
    bt_echo       echo;
    bt_child      launch;
    bt_rpc_loop  *loop;
    bt_eval_cell *cell;
    bt_eval_cases cases;
} session;

/* One turn: completions, what the ranks print, whether the launcher still runs. */
static void turn(session *s)
{
    bt_child *children[] = {&s->launch};

    bt_rpc_loop_run_once(s->loop, bt_now_ns() + TICK_MS * BT_NS_PER_MS);
    bt_lines_read(&s->launch.err, bt_echo_line, &s->echo);
    bt_child_collect(children, 1);
}

static bt_status run_cases(session *s, uint64_t stall_ns)
{
    bt_status st   = BT_OK;
    uint64_t  seen = 0, heard_ns = bt_awake_ns(), limit_ns;
    char      text[256];

    while (!bt_eval_cell_done(s->cell)) {
        turn(s);
        BT_TRY(bt_eval_cell_status(s->cell));
        BT_REQUIRE(g_signal == 0, BT_ERR_CANCELLED, "signal %d", (int)g_signal);
        BT_REQUIRE(!s->launch.ended, BT_ERR_PEER, "the ranks have ended: baton-launch %s",
                   bt_child_ending(&s->launch, text, sizeof(text)));
        if (bt_eval_cell_progress(s->cell) != seen) {
            seen     = bt_eval_cell_progress(s->cell);
            heard_ns = bt_awake_ns();
        }
        limit_ns = bt_eval_cell_ready(s->cell) ? STEP_STALLS * stall_ns : stall_ns;
        BT_REQUIRE(bt_awake_ns() - heard_ns < limit_ns, BT_ERR_TIMEOUT,
                   "no progress for %llu s; waiting for %s",
                   (unsigned long long)(limit_ns / BT_NS_PER_S),
                   bt_eval_cell_waits_for(s->cell, text, sizeof(text)));
    }
out:
    return st;
}

/* Asks the ranks to leave, then makes them. */
static void end_cell(session *s, bool failed)
{
    uint64_t deadline = bt_awake_ns() + LEAVE_NS;

    if (s->cell != NULL) bt_eval_cell_shutdown(s->cell);
    while (bt_child_running(&s->launch) && s->cell != NULL && bt_awake_ns() < deadline) {
        turn(s);
        if (failed && bt_eval_cell_attached(s->cell) == 0) break;
    }
    bt_child_kill(&s->launch, SIGTERM);
    if (s->cell != NULL) {
        bt_eval_cell_stop(s->cell);
        deadline = bt_awake_ns() + KILL_NS;
        while ((!bt_rpc_loop_idle(s->loop) || bt_child_running(&s->launch)) &&
               bt_awake_ns() < deadline) {
            turn(s);
        }
    }
    if (bt_eval_cell_destroy(s->cell)) bt_rpc_loop_destroy(s->loop);
    bt_child_end_all(KILL_NS);
    bt_lines_read(&s->launch.err, bt_echo_line, &s->echo);
    bt_child_close(&s->launch);
}

static bt_status start_cell(session *s, const options *opt)
{
    bt_status       st   = BT_OK;
    char          **argv = NULL;
    char            address[BT_ADDRESS_BYTES];
    bt_eval_options eval = {.address    = opt->control,
                            .n_prefill  = opt->cell.n_both ? 0 : opt->cell.n_prefill,
                            .n_decode   = opt->cell.n_both ? 0 : opt->cell.n_decode,
                            .n_ranks    = bt_cell_n_ranks(&opt->cell),
                            .n_parallel = opt->n_parallel};

    BT_TRY(bt_cell_launch_argv(&opt->cell, "?", &argv));
    /* The child exists before gRPC's threads do, and waits for the address. */
    BT_TRY(bt_secret_provide()); /* its ranks inherit it */
    BT_TRY(
        bt_child_spawn(&(bt_child_spec){.name = "launch", .argv = argv, .held = true}, &s->launch));
    BT_TRY(bt_rpc_loop_create(&s->loop));
    BT_TRY(bt_eval_cell_create(s->loop, &eval, &s->cases, &s->cell, address));
    BT_TRY(bt_child_go(&s->launch, address));
out:
    bt_free(argv);
    return st;
}

/* Without --chunk a prompt is computed whole, in one step, if --max-rows lets it. */
static void default_chunk(bt_cell_options *opt, const bt_eval_cases *cases, char text[16])
{
    const char *most    = bt_passed_value(&opt->worker, "--max-rows");
    uint32_t    longest = 1;

    for (size_t i = 0; i < cases->n; i++) {
        if (cases->cases[i].n_prompt > longest) longest = cases->cases[i].n_prompt;
    }
    snprintf(text, 16, "%u", longest);
    bt_cell_default(opt, "--chunk",
                    most != NULL && strtoul(most, NULL, 10) < longest ? most : text);
}

static bt_status evaluate(options *opt)
{
    bt_status st = BT_OK;
    session   s  = {0};
    uint32_t  top_k, vocab;
    char      chunk[16];

    bt_child_init(&s.launch);
    bt_echo_init(&s.echo, opt->cell.verbose ? BT_LOG_DEBUG : BT_LOG_WARN);
    BT_TRY(bt_check_out("--out", opt->out)); /* before hours of work */
    BT_TRY(read_config(opt->cell.model, &top_k, &vocab));
    BT_TRY(bt_eval_cases_read(opt->in, top_k, vocab, &s.cases));
    default_chunk(&opt->cell, &s.cases, chunk);
    bt_cell_default(&opt->cell, "--orphan-s", "0"); /* nobody else takes its ranks */
    bt_child_adopt();
    st = start_cell(&s, opt);
    if (st == BT_OK) st = run_cases(&s, opt->stall_ns);
    end_cell(&s, st != BT_OK);
    if (st != BT_OK && s.echo.first_error[0] != '\0') {
        fprintf(stderr, "%s: first error of the cell: %s\n", program_invocation_short_name,
                s.echo.first_error);
    }
    if (st == BT_OK) st = bt_eval_cases_write(&s.cases, opt->out);
out:
    bt_eval_cases_free(&s.cases);
    return st;
}

static const bt_setting_idle IDLE[] = {
    {"cell",            BT_WITH, NULL, NULL, "since its cell has no coordinator, which could have others"},
    {"share-generated", BT_WITH, NULL, NULL, "since an evaluation uses no cache"                         },
    {"speculate",       BT_WITH, NULL, NULL, "since an evaluation is told its tokens"                    },
    {"mtp",             BT_WITH, NULL, NULL, "since an evaluation is told its tokens"                    },
    {NULL,              BT_WITH, NULL, NULL, NULL                                                        }
};

int main(int argc, char **argv)
{
    const struct argp_child children[] = {
        {&bt_cell_argp, 0, NULL, 0},
        {NULL,          0, NULL, 0}
    };
    const struct argp      parser   = {OPTIONS, parse, NULL, DOC, children, NULL, NULL};
    const struct sigaction note     = {.sa_handler = note_signal};
    bt_settings_spec       spec     = {&parser, bt_cell_conflicts, IDLE};
    bt_settings           *settings = NULL;
    int                    code;
    options opt = {.n_parallel = PARALLEL, .stall_ns = BT_DEFAULT_STALL_S * BT_NS_PER_S};

    signal(SIGPIPE, SIG_IGN); /* a reader who has gone is an error of a write */
    bt_log_init("logits", BT_LOG_INFO);
    if (bt_settings_gather(&spec, argc, argv, &settings) != BT_OK) return EX_USAGE;
    argp_parse(&parser, bt_settings_argc(settings), bt_settings_argv(settings), 0, NULL, &opt);
    bt_log_init("logits", opt.cell.verbose ? BT_LOG_DEBUG : BT_LOG_INFO);
    if (bt_limits_check() != BT_OK) return EXIT_FAILURE;
    bt_settings_log(settings);
    bt_settings_clear_environment(settings); /* the ranks get them as flags */
    sigaction(SIGTERM, &note, NULL);
    sigaction(SIGINT, &note, NULL);
    if (signal(SIGHUP, SIG_IGN) != SIG_IGN) sigaction(SIGHUP, &note, NULL); /* not under nohup */
    code = evaluate(&opt) == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
    bt_settings_destroy(settings);
    return code;
}
