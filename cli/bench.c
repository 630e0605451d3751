/* baton-bench - puts load on a server over the public protocol and reports how it answered. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/bench_load.h"
#include "cli/bench_plot.h"
#include "cli/bench_report.h"
#include "cli/client.h"
#include "cli/tls_options.h"
#include "core/clock.h"
#include "core/defaults.h"
#include "core/file.h"
#include "core/limits.h"
#include "core/parse.h"
#include "core/terminal.h"

/* When nobody says anything; what several programs share is in core/defaults.h. */
#define CONCURRENCY   8
#define REQUESTS      100
#define WARMUP        1
#define TIMEOUT_S     600
#define SEED          1
#define PROMPT_TOKENS 128
#define OUTPUT_TOKENS 64
#define PREFIXES      1

enum {
    OPT_RATE = 256,
    OPT_PROMPT,
    OPT_OUTPUT,
    OPT_SHARED,
    OPT_PREFIXES,
    OPT_SECONDS,
    OPT_WARMUP,
    OPT_SEED,
    OPT_TEMPERATURE,
    OPT_ALLOW_EOS,
    OPT_TIMEOUT,
    OPT_SLO_TTFT,
    OPT_SLO_ITL,
    OPT_JSON,
    OPT_PLOT,
    OPT_TOKEN_TIMES
};
enum { WARMUP_FIRST = 1 << 30 }; /* warm-up requests lie far behind the measured ones in the plan */
#define INFO_LIMIT_NS (20 * BT_NS_PER_S)

static const char DOC[] =
    "Sends requests of random tokens to a server that speaks vllm.grpc.engine.VllmEngine, and "
    "measures how long the answers take.\v"
    "With --rate, arrivals are a Poisson process that does not wait for answers (open loop), and "
    "times count from the planned arrival; with --concurrency, that many requests are always "
    "under way. One seed gives the same requests, whatever the server does.\n\n"
    "LENGTHS are 128 (fixed), 128,512,2048 (equally likely), 64-512 (uniform), zipf:64-4096 or "
    "zipf:64-4096:1.5 (a power law: length n has the weight 1/n^1.5).\n\n"
    "TTFT is the time to the first token, ITL the time between two messages with tokens, TPOT the "
    "mean time of a token after the first, e2e the time to the final status. The first two are of "
    "all requests whose first token came, the others of those that ended well; n says how many "
    "values there are. Goodput counts the requests whose TTFT and TPOT are within the limits.\n\n"
    "Exit code: 0 when every request ended well, 1 when one did not or nothing could be sent, 64 "
    "for wrong usage, 130 after SIGINT or SIGTERM (what had come is reported).\n\n"
    "Examples:\n"
    "  baton bench -c 16 -n 200 --prompt-tokens 64-512 --output-tokens 128\n"
    "  baton bench --rate 8 --seconds 60 --shared-prefix 0.5 \\\n"
    "    --slo-ttft-ms 500 --slo-itl-ms 50 --json run.json --plot run.svg";

static const struct argp_option OPTIONS[] = {
    BT_OPTION_GROUP("The load:", 1),
    BT_OPTION_DEFAULT("address", 'a', "HOST:PORT", BT_DEFAULT_ADDRESS, "What `baton run` printed"),
    BT_OPTION("rate", OPT_RATE, "R", "Open loop: arrivals a second, on average"),
    BT_OPTION_DEFAULT("concurrency", 'c', "N", BT_TEXT(CONCURRENCY),
                      "Closed loop: requests under way at all times"),
    BT_OPTION_DEFAULT("requests", 'n', "N", BT_TEXT(REQUESTS) ", or no limit with --seconds",
                      "Requests to send"),
    BT_OPTION("seconds", OPT_SECONDS, "S", "Send for S seconds, then wait for the answers"),
    BT_OPTION_DEFAULT("warmup", OPT_WARMUP, "N", BT_TEXT(WARMUP),
                      "Requests sent first that do not count"),
    BT_OPTION_DEFAULT("timeout-s", OPT_TIMEOUT, "S", BT_TEXT(TIMEOUT_S),
                      "Deadline of each request"),
    BT_OPTION_DEFAULT("seed", OPT_SEED, "N", BT_TEXT(SEED), "Seed of lengths, tokens and arrivals"),
    BT_OPTION_GROUP("Each request:", 2),
    BT_OPTION_DEFAULT("prompt-tokens", OPT_PROMPT, "LENGTHS", BT_TEXT(PROMPT_TOKENS),
                      "Length of a prompt"),
    BT_OPTION_DEFAULT("output-tokens", OPT_OUTPUT, "LENGTHS", BT_TEXT(OUTPUT_TOKENS),
                      "Length of an answer"),
    BT_OPTION("shared-prefix", OPT_SHARED, "PART",
              "Part of each prompt, 0 to 1, that is the beginning of a common text (default 0)"),
    BT_OPTION_DEFAULT("prefixes", OPT_PREFIXES, "N", BT_TEXT(PREFIXES), "Number of common texts"),
    BT_OPTION("temperature", OPT_TEMPERATURE, "T", "0 takes the likeliest token (default 0)"),
    BT_OPTION("allow-eos", OPT_ALLOW_EOS, NULL, "Let the model end an answer before its length"),
    BT_OPTION_GROUP("The report:", 3),
    BT_OPTION("slo-ttft-ms", OPT_SLO_TTFT, "MS", "Goodput: limit of TTFT"),
    BT_OPTION("slo-itl-ms", OPT_SLO_ITL, "MS", "Goodput: limit of TPOT, a request's mean ITL"),
    BT_OPTION("json", OPT_JSON, "FILE", "Write all that was measured to FILE"),
    BT_OPTION("token-times", OPT_TOKEN_TIMES, NULL, "With --json: also when each message came"),
    BT_OPTION("plot", OPT_PLOT, "FILE",
              "Plot to FILE.svg or FILE.png (needs Python and matplotlib)"),
    BT_OPTION("quiet", 'q', NULL, "No progress on a terminal"),
    {0},
};

typedef struct {
    const char       *address, *prompt, *output, *json, *plot;
    bt_rpc_client_tls tls;
    bt_bench_plan     plan;
    uint32_t          concurrency, n_warmup;
    uint64_t          n_requests, send_ns, timeout_ns;
    double            slo_ttft_ms, slo_itl_ms;
    float             temperature;
    bool              allow_eos, token_times, quiet;
} options;

static atomic_int g_stop;

static void on_signal(int sig) { g_stop = sig; }

static void take_lengths(struct argp_state *state, const char *option, const char *arg,
                         bt_lengths *out)
{
    if (!bt_lengths_parse(arg, out))
        argp_error(state,
                   "%s is \"%s\", expected lengths like 128, 128,512, 64-512, zipf:64-4096 or "
                   "zipf:64-4096:1.5",
                   option, arg);
}

static error_t parse_request(int key, char *arg, struct argp_state *state, options *opt)
{
    switch (key) {
    case OPT_PROMPT:
        opt->prompt = arg;
        take_lengths(state, "--prompt-tokens", arg, &opt->plan.prompt);
        return 0;
    case OPT_OUTPUT:
        opt->output = arg;
        take_lengths(state, "--output-tokens", arg, &opt->plan.output);
        return 0;
    case OPT_SHARED:
        opt->plan.shared = bt_option_real(state, "--shared-prefix", arg, 0, 1);
        return 0;
    case OPT_PREFIXES:
        opt->plan.n_prefixes = (uint32_t)bt_option_number(state, "--prefixes", arg, 1, 1 << 20);
        return 0;
    case OPT_TEMPERATURE:
        opt->temperature = (float)bt_option_real(state, "--temperature", arg, 0, 1e6);
        return 0;
    case OPT_ALLOW_EOS: opt->allow_eos = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char *parse_plot(struct argp_state *state, const char *arg)
{
    const char *dot = strrchr(bt_option_name(state, "--plot", "a file", arg), '.');

    if (dot == NULL || (strcasecmp(dot, ".svg") != 0 && strcasecmp(dot, ".png") != 0))
        argp_error(state, "--plot is \"%s\", expected a name that ends in .svg or .png", arg);
    return arg;
}

static error_t parse_report(int key, char *arg, struct argp_state *state, options *opt)
{
    switch (key) {
    case OPT_SLO_TTFT:
        opt->slo_ttft_ms = bt_option_real(state, "--slo-ttft-ms", arg, 1e-3, 1e9);
        return 0;
    case OPT_SLO_ITL:
        opt->slo_itl_ms = bt_option_real(state, "--slo-itl-ms", arg, 1e-3, 1e9);
        return 0;
    case OPT_JSON: opt->json = bt_option_name(state, "--json", "a file", arg); return 0;
    case OPT_PLOT: opt->plot = parse_plot(state, arg); return 0;
    case OPT_TOKEN_TIMES: opt->token_times = true; return 0;
    case 'q': opt->quiet = true; return 0;
    default: return parse_request(key, arg, state, opt);
    }
}

static void finish(options *opt, struct argp_state *state)
{
    if (opt->plan.rate != 0 && opt->concurrency != 0)
        argp_error(state, "--rate goes without --concurrency");
    if (opt->token_times && opt->json == NULL) argp_error(state, "--token-times goes with --json");
    if (opt->plan.n_prefixes > 1 && opt->plan.shared == 0)
        argp_error(state, "--prefixes goes with --shared-prefix");
    if (opt->plan.rate == 0 && opt->concurrency == 0) opt->concurrency = CONCURRENCY;
    if (opt->n_requests == 0)
        opt->n_requests = opt->send_ns == UINT64_MAX ? REQUESTS : WARMUP_FIRST;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;

    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &opt->tls; return 0;
    case 'a': opt->address = bt_option_address(state, "--address", arg); return 0;
    case OPT_RATE: opt->plan.rate = bt_option_real(state, "--rate", arg, 1e-3, 1e6); return 0;
    case 'c':
        opt->concurrency = (uint32_t)bt_option_number(state, "--concurrency", arg, 1, 1 << 16);
        return 0;
    case 'n':
        opt->n_requests = (uint64_t)bt_option_number(state, "--requests", arg, 1, WARMUP_FIRST);
        return 0;
    case OPT_SECONDS:
        opt->send_ns = (uint64_t)(bt_option_real(state, "--seconds", arg, 1e-3, 1e6) * 1e9);
        return 0;
    case OPT_WARMUP:
        opt->n_warmup = (uint32_t)bt_option_number(state, "--warmup", arg, 0, 1 << 20);
        return 0;
    case OPT_TIMEOUT:
        opt->timeout_ns = (uint64_t)(bt_option_real(state, "--timeout-s", arg, 1e-3, 86400) * 1e9);
        return 0;
    case OPT_SEED:
        opt->plan.seed = (uint64_t)bt_option_number(state, "--seed", arg, 0, INT64_MAX);
        return 0;
    case ARGP_KEY_ARG: argp_error(state, "\"%s\" is not an option", arg); return 0;
    case ARGP_KEY_END: finish(opt, state); return 0;
    default: return parse_report(key, arg, state, opt);
    }
}

/* ---- a run */

static void show_progress(void *ctx, const bt_bench_progress *p)
{
    const bt_bench_load *l            = ctx;
    double               s            = (double)p->elapsed_ns * 1e-9;
    char                 requests[32] = "", seconds[32] = "", line[200];

    if (l->send_ns == UINT64_MAX)
        snprintf(requests, sizeof(requests), " of %" PRIu64, l->n_requests);
    else
        snprintf(seconds, sizeof(seconds), " of %.1f", (double)l->send_ns * 1e-9);
    snprintf(line, sizeof(line),
             "%" PRIu64 "%s requests ended, %u under way, %u failed, %.0f tokens/s, %.1f%s s",
             p->n_ended, requests, p->n_running, p->n_failed, s > 0 ? (double)p->n_tokens / s : 0,
             s, seconds);
    fprintf(stderr, BT_TERMINAL_CLEAR "%.*s", bt_terminal_columns(STDERR_FILENO), line);
}

/* Asks what the server is, and checks that these lengths fit into its context. */
static bt_status ask_model(const options *opt, bt_client_model *model)
{
    bt_status  st      = BT_OK;
    bt_client *client  = NULL;
    uint64_t   longest = (uint64_t)opt->plan.prompt.hi + opt->plan.output.hi;

    BT_TRY(bt_client_open(opt->address, &opt->tls, INFO_LIMIT_NS, &g_stop, &client));
    BT_TRY(bt_client_model_info(client, model));
    BT_REQUIRE(model->vocab_size != 0, BT_ERR_PROTOCOL, "%s names no vocab_size", opt->address);
    BT_REQUIRE(model->max_context == 0 || longest <= model->max_context, BT_ERR_INVALID_ARG,
               "a request of %u prompt and %u output tokens does not fit into the context of %u",
               opt->plan.prompt.hi, opt->plan.output.hi, model->max_context);
out:
    bt_client_close(client);
    return st;
}

/* Of the warm-up's requests those that failed. */
static void tell_cold(const bt_bench_run *run)
{
    uint64_t n[BT_BENCH_CODES] = {0};

    for (size_t i = 0; i < run->n; i++)
        n[run->records[i].code]++;
    for (int code = 1; code < BT_BENCH_CODES; code++)
        if (n[code] != 0)
            printf("Warm-up      %" PRIu64 " of %zu failed with %s: %s\n", n[code], run->n,
                   bt_bench_code_name(code), run->first_error[code]);
}

/* A failure here is told, and is none of the run, whose first requests it leaves colder. CANCELLED,
 * told: it was stopped. */
static bt_status warm_up(const options *opt, const bt_bench_load *load)
{
    bt_status     st   = BT_OK;
    bt_bench_load warm = *load;
    bt_bench_run  run  = {0};
    bool          under_way;

    warm.first_request = WARMUP_FIRST;
    warm.n_requests    = opt->n_warmup;
    warm.send_ns       = UINT64_MAX;
    warm.concurrency   = 1;
    warm.progress      = NULL;
    if (opt->n_warmup == 0) goto out;
    BT_TRY(bt_bench_load_run(&warm, &run));
    if (!run.stopped) {
        tell_cold(&run);
        goto out;
    }
    under_way = run.n != 0 && run.records[run.n - 1].code < 0;
    printf("Stopped      in the warm-up, after %zu of %u requests, with %d under way: none was "
           "measured\n",
           run.n - under_way, opt->n_warmup, under_way);
    st = BT_ERR_CANCELLED;
out:
    bt_bench_run_fini(&run);
    return st;
}

static bt_status report(const options *opt, const bt_bench_about *about, const bt_bench_run *run,
                        bt_bench_summary *s)
{
    bt_status   st = BT_OK;
    char        made[PATH_MAX];
    const char *json      = opt->json;
    bool        temporary = false;
    int         fd        = -1;

    BT_TRY(bt_bench_summarise(run, s));
    bt_bench_print(stdout, run, s);
    if (json == NULL && opt->plot != NULL) {
        BT_REQUIRE(snprintf(made, sizeof(made), "%s/baton-bench-XXXXXX", bt_temporary_folder()) <
                       (int)sizeof(made),
                   BT_ERR_INVALID_ARG, "TMPDIR is too long");
        fd = mkstemp(made);
        BT_REQUIRE(fd >= 0, BT_ERR_IO, "%s: %s", made, strerror(errno));
        temporary = true;
        json      = made;
    }
    if (json != NULL) BT_TRY(bt_bench_write_json(json, about, run, s));
    if (opt->plot != NULL) BT_TRY(bt_bench_plot(json, opt->plot));
out:
    if (fd >= 0) close(fd);
    if (temporary) unlink(made);
    return st;
}

/* As bt_check_out(), but what is there is written in place: its folder need not be writable. */
static bt_status check_json(const char *path)
{
    bt_status   st = BT_OK;
    struct stat info;

    if (stat(path, &info) != 0 || S_ISDIR(info.st_mode)) return bt_check_out("--json", path);
    BT_REQUIRE(access(path, W_OK) == 0, BT_ERR_IO, "--json %s: %s", path, strerror(errno));
out:
    return st;
}

static bt_status bench(options *opt, bool *all_well_out)
{
    bt_status        st    = BT_OK;
    bt_client_model  model = {0};
    bt_bench_run     run   = {0};
    bt_bench_summary s     = {.slo_ttft_ms = opt->slo_ttft_ms, .slo_itl_ms = opt->slo_itl_ms};
    bt_bench_load    load  = {.address     = opt->address,
                              .tls         = opt->tls,
                              .plan        = &opt->plan,
                              .n_requests  = opt->n_requests,
                              .send_ns     = opt->send_ns,
                              .concurrency = opt->concurrency,
                              .timeout_ns  = opt->timeout_ns,
                              .temperature = opt->temperature,
                              .ignore_eos  = !opt->allow_eos,
                              .stop        = &g_stop,
                              .ctx         = &load};
    bt_bench_about   about = {.address       = opt->address,
                              .model         = model.served_model_name,
                              .prompt_tokens = opt->prompt,
                              .output_tokens = opt->output,
                              .load          = &load,
                              .token_times   = opt->token_times};

    if (!opt->quiet && bt_terminal_columns(STDERR_FILENO) != 0) load.progress = show_progress;
    if (opt->json != NULL) BT_TRY(check_json(opt->json));
    if (opt->plot != NULL) BT_TRY(bt_bench_plot_check(opt->plot));
    BT_TRY(ask_model(opt, &model));
    opt->plan.vocab_size = model.vocab_size;
    BT_TRY(warm_up(opt, &load));
    BT_TRY(bt_bench_load_run(&load, &run));
    if (load.progress != NULL) fputs(BT_TERMINAL_CLEAR, stderr);
    BT_TRY(report(opt, &about, &run, &s));
    *all_well_out = run.n != 0 && s.n_codes[0] == run.n;
out:
    bt_bench_run_fini(&run);
    return st;
}

int main(int argc, char **argv)
{
    const struct argp_child children[] = {
        {&bt_tls_argp, 0, NULL, 0},
        {NULL,         0, NULL, 0}
    };
    const struct argp      parser = {OPTIONS, parse, NULL, DOC, children, NULL, NULL};
    const struct sigaction action = {.sa_handler = on_signal};
    bool                   well   = false;
    bt_status              st;
    options                opt = {
                       .address    = BT_DEFAULT_ADDRESS,
                       .prompt     = BT_TEXT(PROMPT_TOKENS),
                       .output     = BT_TEXT(OUTPUT_TOKENS),
                       .plan       = {.n_prefixes = PREFIXES, .seed = SEED},
                       .n_warmup   = WARMUP,
                       .send_ns    = UINT64_MAX,
                       .timeout_ns = TIMEOUT_S * BT_NS_PER_S
    };

    bt_lengths_parse(opt.prompt, &opt.plan.prompt);
    bt_lengths_parse(opt.output, &opt.plan.output);
    argp_parse(&parser, argc, argv, 0, NULL, &opt);
    bt_log_init_verb("bench", BT_LOG_WARN);
    if (bt_limits_check() != BT_OK) return EXIT_FAILURE;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    st = bench(&opt, &well);
    if (g_stop != 0) return 130;
    return st == BT_OK && well ? EXIT_SUCCESS : EXIT_FAILURE;
}
