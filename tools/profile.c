/* baton-profile - which way of computing MLA is cheapest, where, and why: the attention study. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "core/alloc.h"
#include "core/defaults.h"
#include "core/limits.h"
#include "core/machine.h"
#include "core/parse.h"
#include "core/rank_flags.h"
#include "core/settings.h"
#include "device/cpu/kernels.h"
#include "tools/profile/files.h"
#include "tools/profile/report.h"

static const char DOC[] =
    "Says which way of computing multi-head latent attention is cheapest for a model on this "
    "machine, where, and why.\v"
    "Runs one attention layer with random weights for a decode step, in six variants that give the "
    "same result:\n"
    "  CD         caches each head's keys and values\n"
    "  CC         caches latents, decompresses all of them each step\n"
    "  A_CC       absorbed; concatenates latent and rope key for each head\n"
    "  A_CC_ME    absorbed; the rope part is a product of its own\n"
    "  AM_CC_ME   the same, with the absorbed matrices multiplied out beforehand\n"
    "  fused      the kernel that serves requests\n\n"
    "The table gives each variant's time, how many times its floor that is (1.0x: limited by this "
    "machine's measured bandwidth and arithmetic alone), and its ratio to the fused kernel. Other "
    "work on the machine disturbs times more than ratios. Points that do not fit into memory, or "
    "take longer than --seconds allows, are left out, with what they need.\n\n"
    "--analysis runs no layer. It prints bytes and FLOP of each variant, cache sizes, the "
    "crossover between the normal and the absorbed form, KV per rank under TP, DP and PD, hand-off "
    "times, "
    "and what laws A and B of docs/architecture.md cost.\n\n"
    "Exit code: 0, 1 when it failed or a variant's result was another one, 64 for wrong usage.\n\n"
    "Examples:\n"
    "  baton profile --like v2                the study's model, a minute\n"
    "  baton profile --like v2-lite --out d   files and plots in d/ too\n"
    "  baton profile models/demo --analysis   a checkpoint's sizes\n"
    "  baton profile --like v3 --analysis --gpu H100\n"
    "  baton profile --like v3 --explain 64,8192,4";

enum {
    KEY_LIKE = 256,
    KEY_ANALYSIS,
    KEY_EXPLAIN,
    KEY_BATCH,
    KEY_CONTEXT,
    KEY_VARIANTS,
    KEY_THREADS,
    KEY_KERNELS,
    KEY_SECONDS,
    KEY_OUT,
    KEY_JSON,
    KEY_CSV,
    KEY_GPU,
    KEY_BANDWIDTH
};

#define DEFAULT_MODEL      "v2"
#define DEFAULT_BATCHES    "1,32"
#define DEFAULT_CONTEXTS   "32,512,4096,32768"
#define DEFAULT_SECONDS    30
#define DEFAULT_BANDWIDTHS "1.25,12.5,50"

static const struct argp_option OPTIONS[] = {
    BT_OPTION_GROUP("The model:", 1),
    BT_OPTION("like", KEY_LIKE, "MODEL",
              "A published model: v2, v2-lite, v3 (r1, v3.1), v3.2, kimi-k2, moonlight, glm-flash, "
              "glm-5, mistral-large-3, mistral-small-4, longcat-flash, minicpm3 (default, if no "
              "DIR is given: " DEFAULT_MODEL ")"),
    BT_OPTION_GROUP("Without running a layer:", 2),
    BT_OPTION("analysis", KEY_ANALYSIS, NULL,
              "Formulas, with this machine's measured bandwidth and arithmetic"),
    BT_OPTION("explain", KEY_EXPLAIN, "Q,KV,BATCH",
              "Which form --form cost chooses for Q new tokens that attend to KV tokens, and the "
              "cost of both"),
    BT_OPTION_GROUP("What to measure:", 3),
    BT_OPTION_DEFAULT("batch", KEY_BATCH, "LIST", DEFAULT_BATCHES,
                      "Requests in a step, like 1,8,32"),
    BT_OPTION_DEFAULT("context", KEY_CONTEXT, "LIST", DEFAULT_CONTEXTS,
                      "Tokens that each attends to"),
    BT_OPTION("variants", KEY_VARIANTS, "LIST",
              "Which variants to measure beside fused, like CD,A_CC_ME (default: all five)"),
    BT_OPTION("threads", KEY_THREADS, "N", "Compute threads (default: one per core)"),
    BT_OPTION_DEFAULT(
        "kernels", KEY_KERNELS, "NAME", "auto",
        "CPU kernels: auto (the best that the machine has), amx, avx512bf16, avx512, avx2, neon, "
        "scalar"),
    BT_OPTION_DEFAULT("seconds", KEY_SECONDS, "S", BT_TEXT(DEFAULT_SECONDS),
                      "About how long to measure, all points together"),
    BT_OPTION_GROUP("Output:", 4),
    BT_OPTION("out", KEY_OUT, "DIR", "Write profile.json, profile.csv and plots (SVG, PNG) there"),
    BT_OPTION("json", KEY_JSON, NULL, "JSON to stdout in place of the tables"),
    BT_OPTION("csv", KEY_CSV, NULL, "CSV of the measured points to stdout in place of the tables"),
    BT_OPTION_GROUP("For the analysis:", 5),
    BT_OPTION(
        "gpu", KEY_GPU, "NAME",
        "A GPU's bandwidth and arithmetic, by its vendor's figures, in place of this machine's: "
        "A100-40GB, A100-80GB, RTX4080, RTX4090, L40S, H20, H800, H100, H200, B200"),
    BT_OPTION_DEFAULT("bandwidth", KEY_BANDWIDTH, "LIST", DEFAULT_BANDWIDTHS,
                      "GB/s between prefill and decode ranks, for hand-off times"),
    {0},
};

typedef struct {
    const char        *model;
    bool               analysis, explain, json, csv;
    uint32_t           explain_for[3]; /* q, kv, batch */
    const char        *out, *gpu;
    bt_measure_options measure;
    uint32_t           n_bandwidths;
    double             bandwidths[BT_ANALYSIS_MAX_BANDWIDTHS];
} options;

/* "1,8,32" into at most max numbers from 1 to limit. */
static uint32_t parse_list(struct argp_state *state, const char *name, const char *text,
                           uint32_t max, uint32_t limit, uint32_t *list)
{
    uint32_t n = 0;

    for (const char *at = text;; at++) {
        int64_t v = 0;

        if (n == max || !bt_parse_whole_in(&at, ",", 1, limit, &v))
            argp_error(state,
                       "--%s %s: expected at most %u numbers from 1 to %u, separated by commas",
                       name, text, max, limit);
        list[n++] = (uint32_t)v;
        if (*at == '\0') return n;
    }
}

/* "CD,A_CC_ME" */
static void parse_variants(struct argp_state *state, const char *text, bt_measure_options *m)
{
    for (int kind = 0; kind < BT_VARIANT_FUSED; kind++)
        m->left_out[kind] = true;
    for (const char *at = text;;) {
        size_t n    = strcspn(at, ",");
        int    kind = 0;

        while (kind < BT_VARIANT_FUSED && (strlen(bt_variant_name((bt_variant_kind)kind)) != n ||
                                           strncmp(bt_variant_name((bt_variant_kind)kind), at, n)))
            kind++;
        if (kind == BT_VARIANT_FUSED)
            argp_error(state,
                       "--variants %s: expected some of CD, CC, A_CC, A_CC_ME and AM_CC_ME, "
                       "separated by commas",
                       text);
        m->left_out[kind] = false;
        if (at[n] == '\0') return;
        at += n + 1;
    }
}

static void parse_bandwidths(struct argp_state *state, const char *text, options *opt)
{
    opt->n_bandwidths = 0;
    for (const char *at = text;; at++) {
        double v = 0;

        if (opt->n_bandwidths == BT_ANALYSIS_MAX_BANDWIDTHS ||
            !bt_parse_real_in(&at, ",", 1e-6, 1e6, &v))
            argp_error(state,
                       "--bandwidth %s: expected at most %d numbers of GB/s from 1e-6 to 1e6, "
                       "separated by commas",
                       text, BT_ANALYSIS_MAX_BANDWIDTHS);
        opt->bandwidths[opt->n_bandwidths++] = v * 1e9;
        if (*at == '\0') return;
    }
}

static void parse_explain(struct argp_state *state, const char *text, options *opt)
{
    if (parse_list(state, "explain", text, 3, 1u << 24, opt->explain_for) != 3)
        argp_error(state, "--explain %s: expected Q,KV,BATCH", text);
    if (opt->explain_for[0] > opt->explain_for[1])
        argp_error(state, "--explain %s: KV counts the new tokens, so it is at least Q", text);
    opt->explain = true;
}

static void parse_model(struct argp_state *state, int key, const char *name, options *opt)
{
    if (key == KEY_LIKE && !bt_profile_model_known(name))
        argp_error(state, "--like is \"%s\", expected one of %s", name, bt_profile_model_names());
    if (opt->model != NULL)
        argp_error(state, "expected one model, found \"%s\" and \"%s\"", opt->model, name);
    opt->model = bt_option_name(state, "DIR", "a directory", name);
}

static error_t parse_measured(int key, const char *arg, struct argp_state *state, options *opt)
{
    bt_measure_options *m = &opt->measure;
    uint64_t            word;
    char                why[BT_RANK_FLAG_WHY];

    switch (key) {
    case KEY_BATCH:
        m->n_batches = parse_list(state, "batch", arg, BT_PROFILE_MAX_LIST, 4096, m->batches);
        return 0;
    case KEY_CONTEXT:
        m->n_contexts =
            parse_list(state, "context", arg, BT_PROFILE_MAX_LIST, 1u << 20, m->contexts);
        return 0;
    case KEY_VARIANTS: parse_variants(state, arg, m); return 0;
    case KEY_THREADS:
        m->n_threads = (uint32_t)bt_option_number(state, "--threads", arg, 1, BT_MAX_THREADS);
        return 0;
    case KEY_KERNELS:
        if (!bt_rank_flag_read("--kernels", arg, &word, why)) argp_error(state, "%s", why);
        m->kernels = arg;
        return 0;
    case KEY_SECONDS: m->seconds = bt_option_real(state, "--seconds", arg, 1e-3, 86400); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void set_lists(struct argp_state *state, options *opt)
{
    parse_measured(KEY_BATCH, DEFAULT_BATCHES, state, opt);
    parse_measured(KEY_CONTEXT, DEFAULT_CONTEXTS, state, opt);
    parse_bandwidths(state, DEFAULT_BANDWIDTHS, opt);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;

    switch (key) {
    case ARGP_KEY_INIT: set_lists(state, opt); return 0;
    case KEY_LIKE:
    case ARGP_KEY_ARG: parse_model(state, key, arg, opt); return 0;
    case KEY_ANALYSIS: opt->analysis = true; return 0;
    case KEY_EXPLAIN: parse_explain(state, arg, opt); return 0;
    case KEY_OUT: opt->out = bt_option_name(state, "--out", "a directory", arg); return 0;
    case KEY_JSON: opt->json = true; return 0;
    case KEY_CSV: opt->csv = true; return 0;
    case KEY_BANDWIDTH: parse_bandwidths(state, arg, opt); return 0;
    case KEY_GPU:
        if (bt_roof_gpu(arg) == NULL)
            argp_error(state, "--gpu %s: known are %s", arg, bt_roof_gpu_names());
        opt->gpu = arg;
        return 0;
    case ARGP_KEY_END:
        if (opt->json && opt->csv) argp_error(state, "--json and --csv are two ways of one output");
        if (opt->csv && (opt->analysis || opt->explain || opt->gpu != NULL))
            argp_error(state, "--csv holds measured points, and nothing is to be measured");
        return 0;
    default: return parse_measured(key, arg, state, opt);
    }
}

static void progress(const char *text) { fprintf(stderr, "%s...\n", text); }

/* Of this machine, without a layer. */
static bt_status roof_of_machine(const options *opt, bt_roof *roof)
{
    bt_status             st   = BT_OK;
    bt_device            *dev  = NULL;
    bt_device_cpu_options from = {.n_threads = opt->measure.n_threads,
                                  .kernels   = opt->measure.kernels};

    BT_TRY(bt_device_cpu_create(&from, &dev));
    BT_TRY(bt_roof_measure(dev, bt_device_cpu_table(dev)->name, roof));
out:
    bt_device_destroy(dev);
    return st;
}

static bt_status output(const options *opt, const bt_analysis *a, const bt_measurement *m)
{
    bt_status st   = BT_OK;
    json_t   *json = bt_report_json(a, m);

    BT_REQUIRE(json != NULL, BT_ERR_NO_MEMORY, "JSON of the profile");
    if (opt->json) {
        json_dumpf(json, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
    } else if (opt->csv) {
        bt_report_csv(a->model, m, stdout);
    } else {
        bt_analysis_print(a, stdout);
        if (m != NULL) bt_report_print(a->model, m, stdout);
    }
    if (opt->out != NULL) {
        BT_TRY(bt_files_write(opt->out, json, a->model, m));
        BT_TRY(bt_files_plot(opt->out));
        fprintf(stderr, "written to %s/\n", opt->out);
    }
    if (m != NULL) BT_TRY(bt_report_check(m)); /* last: the figures help to see what is wrong */
out:
    json_decref(json);
    return st;
}

static bt_status profile(options *opt)
{
    bt_status         st       = BT_OK;
    bt_measurement   *m        = bt_calloc(1, sizeof(*m));
    bt_profile_model *model    = bt_calloc(1, sizeof(*model));
    bool              measures = !opt->analysis && !opt->explain && opt->gpu == NULL;
    bt_roof           roof     = {.measured = false};
    bt_analysis       a        = {.model        = model,
                                  .roof         = &roof,
                                  .batch        = opt->measure.batches[opt->measure.n_batches - 1],
                                  .n_keys       = opt->measure.contexts[opt->measure.n_contexts - 1],
                                  .n_bandwidths = opt->n_bandwidths};

    memcpy(a.bandwidths, opt->bandwidths, sizeof(a.bandwidths));
    BT_REQUIRE(m != NULL && model != NULL, BT_ERR_NO_MEMORY, "measurement");
    BT_TRY(bt_profile_model_find(opt->model != NULL ? opt->model : DEFAULT_MODEL, model));
    if (opt->out != NULL) BT_TRY(bt_files_prepare(opt->out)); /* before the work */
    if (measures) {
        BT_TRY(bt_measure(model, &opt->measure, m));
        roof = m->roof;
    } else if (opt->gpu != NULL) {
        roof = *bt_roof_gpu(opt->gpu);
    } else {
        BT_TRY(roof_of_machine(opt, &roof));
    }
    if (opt->explain) {
        bt_analysis_explain(&a, opt->explain_for[0], opt->explain_for[1], opt->explain_for[2],
                            stdout);
        goto out;
    }
    BT_TRY(output(opt, &a, measures ? m : NULL));
out:
    bt_free(m);
    bt_free(model);
    return st;
}

#define NOT_MEASURED(option, other)                                     \
    {                                                                   \
        option, BT_WITH, other, NULL, "since nothing is to be measured" \
    }
#define NOT_EXPLAINED(option)                                                        \
    {                                                                                \
        option, BT_WITH, "explain", NULL, "since it answers one question, on stdout" \
    }
static const bt_setting_idle IDLE[] = {
    NOT_MEASURED("variants", "analysis"),
    NOT_MEASURED("variants", "explain"),
    NOT_MEASURED("variants", "gpu"),
    NOT_MEASURED("seconds", "analysis"),
    NOT_MEASURED("seconds", "explain"),
    NOT_MEASURED("seconds", "gpu"),
    NOT_MEASURED("threads", "gpu"),
    NOT_MEASURED("kernels", "gpu"),
    NOT_EXPLAINED("analysis"),
    NOT_EXPLAINED("batch"),
    NOT_EXPLAINED("context"),
    NOT_EXPLAINED("bandwidth"),
    NOT_EXPLAINED("out"),
    NOT_EXPLAINED("json"),
    {NULL, BT_WITH, NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    const struct argp      parser = {OPTIONS, parse, "[DIR]", DOC, NULL, NULL, NULL};
    const bt_settings_spec spec   = {&parser, NULL, IDLE};
    options                opt    = {
                          .measure = {.kernels = "auto", .seconds = DEFAULT_SECONDS, .progress = progress}
    };

    bt_log_init_verb("profile", BT_LOG_INFO);
    argp_parse(&parser, argc, argv, 0, NULL, &opt);
    if (bt_settings_check_flags(&spec, argc, argv) != BT_OK) return EX_USAGE;
    if (bt_limits_check() != BT_OK) return EXIT_FAILURE;
    return profile(&opt) == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
