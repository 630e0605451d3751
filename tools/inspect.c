/* baton-inspect - what a model is, what it weighs, and what of it fits here. */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/kv_pool.h"
#include "core/defaults.h"
#include "core/file.h"
#include "core/machine.h"
#include "core/parse.h"
#include "device/cpu/kernels.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "tools/census.h"

#define PERCENT BT_TEXT(BT_MEMORY_PERCENT)
static const char DOC[] =
    "Says what a model is, what it weighs, and what of it fits on this machine.\v"
    "Reads config.json or params.json, and the headers of the safetensors files; no weight is "
    "loaded. The files are checked completely, each tensor's name, type and shape against the "
    "former, so that what passes can be loaded, unless a scale of FP8 or 4-bit weights is no "
    "number.\n\n"
    "The last table is an estimate for cells of CPU ranks on this machine, without --mtp: weights "
    "in bf16, or in FP8 or 4 bits where the files have them so, in memory once for all ranks, or "
    "those in bf16 for prefill and decode ranks each where they pack them in two ways; "
    "" PERCENT " % of the free memory in use; on each rank the buffers of a step with the default "
    "--chunk, and those of the hand-off; the rest for latent KV pages. One rank has both roles; "
    "of more, half are prefill ranks.\n\n"
    "Exit code: 0, 1 when the model cannot be loaded, 64 for wrong usage.\n\n"
    "Example:\n"
    "  baton inspect models/demo";

static error_t parse(int key, char *arg, struct argp_state *state)
{
    const char **dir = state->input;

    switch (key) {
    case ARGP_KEY_ARG:
        if (*dir != NULL) argp_error(state, "expected one directory, found \"%s\" too", arg);
        *dir = bt_option_model(state, "DIR", arg);
        return 0;
    case ARGP_KEY_END:
        if (*dir == NULL) argp_error(state, "the model's directory is missing");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* 12,345,678 into buf; returns buf. */
static const char *grouped(uint64_t v, char buf[32])
{
    char   digits[24];
    int    n  = snprintf(digits, sizeof(digits), "%" PRIu64, v);
    size_t at = 0;

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = '\0';
    return buf;
}

/* "31.2 MiB" into buf; returns buf. */
static const char *in_units(uint64_t bytes, char buf[32])
{
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double                   v       = (double)bytes;
    int                      unit    = 0;

    while (v >= 1024 && unit < 6) {
        v /= 1024;
        unit++;
    }
    snprintf(buf, 32, unit == 0 ? "%.0f %s" : "%.1f %s", v, UNITS[unit]);
    return buf;
}

/* corrected: the files have biases for it. */
static void print_gate(const bt_gate_config *g, bool corrected)
{
    static const char *const KINDS[] = {"softmax", "softmax limited to groups",
                                        "sigmoid with correction bias"};

    printf("  gate        %s, %u of %u experts",
           g->kind == BT_GATE_SIGMOID_BIAS && !corrected ? "sigmoid" : KINDS[g->kind], g->top_k,
           g->n_experts);
    if (g->n_groups > 1) printf(", in the best %u of %u groups", g->topk_groups, g->n_groups);
    printf(", weights%s x %g\n", g->norm_topk ? " normalised" : "", g->scale);
}

static void print_mtp(const bt_model_config *cfg, const bt_census *c)
{
    uint32_t n = cfg->n_mtp_layers;

    if (n == 0) return;
    printf("; and %u MTP, %s", n,
           c->bytes[BT_PART_MTP] == 0 ? "not in the files"
           : n == 1                   ? "served with --mtp"
                                      : "the first served with --mtp");
}

static void print_model(const bt_model_config *cfg, const bt_census *c)
{
    const bt_mla_config *m     = &cfg->mla;
    uint32_t             n_moe = bt_model_n_moe_layers(cfg);

    printf("Model         %s (%s)%s\n", cfg->architecture, cfg->model_type,
           cfg->fp8_one_scale ? ", FP8 weights, each matrix with one scale"
           : cfg->fp8         ? ", FP8 weights in 128x128 blocks"
           : cfg->int4        ? ", weights of 4 bits in groups of 32"
                              : "");
    printf("  vocabulary  %u%s\n", cfg->vocab_size,
           cfg->tie_embeddings ? ", embedding and head tied" : "");
    printf("  context     %u tokens", cfg->max_context);
    if (cfg->yarn)
        printf(" (YaRN: factor %g over %g)", cfg->yarn_factor, cfg->yarn_original_context);
    printf("\n  layers      %u: %u dense, %u MoE", cfg->n_layers, cfg->n_layers - n_moe, n_moe);
    print_mtp(cfg, c);
    printf("\n  hidden      %u; dense MLP %u", cfg->hidden, cfg->dense_dim);
    if (n_moe != 0)
        printf(", expert %u, shared expert %u", cfg->moe.expert_dim, cfg->moe.shared_dim);
    printf("\n  attention   %u heads of %u + %u (value %u), latent %u + %u, ", m->n_heads,
           m->qk_nope_dim, m->qk_rope_dim, m->v_dim, m->kv_lora_rank, m->qk_rope_dim);
    if (m->q_lora_rank != 0)
        printf("query rank %u\n", m->q_lora_rank);
    else
        printf("full-rank query\n");
    if (m->index_topk != 0)
        printf("  sparse      to %u positions, by %u heads of %u in %u layers\n", m->index_topk,
               m->index_heads, m->index_dim, bt_model_n_indexers(cfg));
    if (n_moe != 0) print_gate(&cfg->moe.gate, c->corrected || !cfg->moe_norm);
}

/* Ranks compute without one; clients that send text look for it beside the weights. */
static void print_tokenizer(const char *dir)
{
    char path[PATH_MAX];

    bt_tokenizer_file(dir, path);
    printf("  tokenizer   %s\n",
           bt_file_exists(path)
               ? strrchr(path, '/') + 1
               : "none: `baton chat`, `generate`, stop strings and structured output need one");
}

static void print_census(const bt_model_config *cfg, const bt_census *c)
{
    uint64_t expected[BT_N_PARTS], total = bt_census_served(c->n_params), used;
    char     a[32], b[32];

    bt_census_expect(cfg, expected);
    printf("\n%-18s %22s %12s\n", "Parameters", "", "in files");
    for (int i = 0; i < BT_N_PARTS; i++) {
        if (c->bytes[i] == 0 && expected[i] == 0) continue;
        printf("  %-16s %22s %12s", bt_part_name(i), grouped(c->n_params[i], a),
               in_units(c->bytes[i], b));
        if (i < BT_PART_MTP && c->n_params[i] != expected[i])
            printf("  expected %s by config.json", grouped(expected[i], a));
        if (i == BT_PART_OTHER) printf("  (the first is %s)", c->first_other);
        printf("\n");
    }
    printf("  %-16s %22s %12s  in %" PRIu64 " tensors\n", "all (served)", grouped(total, a),
           in_units(bt_census_served(c->bytes), b), c->n_tensors);
    used = total;
    if (cfg->moe.gate.n_experts != 0)
        used -= c->n_params[BT_PART_EXPERTS] / cfg->moe.gate.n_experts *
                (cfg->moe.gate.n_experts - cfg->moe.gate.top_k);
    printf("  %-16s %22s\n", "used by a token", grouped(used, a));
}

static uint64_t kv_token_bytes(const bt_model_config *cfg)
{
    return (uint64_t)cfg->n_layers * bt_mla_kv_dim(&cfg->mla) * 2;
}

static void print_kv(const bt_model_config *cfg)
{
    char a[32], b[32], c[32];

    printf("\nLatent KV     %s bytes a token, %s a page of %d tokens, %s a full context\n",
           grouped(kv_token_bytes(cfg), a), in_units(kv_token_bytes(cfg) * BT_PAGE_TOKENS, b),
           BT_PAGE_TOKENS, in_units(kv_token_bytes(cfg) * cfg->max_context, c));
}

/* What a rank on a CPU takes beside weights and pages, where n are started and nobody says how. */
static uint64_t rank_bytes(const bt_model_config *cfg, uint32_t n)
{
    return n == 1 ? bt_model_step_bytes(cfg, 1, BT_DEFAULT_CHUNK_BOTH)
                  : bt_model_step_bytes(cfg, n / 2, BT_DEFAULT_CHUNK) + BT_STAGING_BYTES;
}

static void print_fit(const bt_model_config *cfg, const bt_census *c)
{
    bt_machine m;
    uint64_t   usable, weights = bt_census_served(c->loaded), twice = 0;
    char       a[32], b[32];

    bt_machine_look(&m);
    usable = m.free_bytes / 100 * BT_MEMORY_PERCENT;
    printf("\nThis machine  %u cores, %s of memory, %s free\n", m.n_cores,
           in_units(m.total_bytes, a), in_units(m.free_bytes, b));
    if (!cfg->fp8 && !cfg->int4 && bt_cpu_kernels_find("auto")->bf12 &&
        bt_weights_fit_twice(weights, weights, m.free_bytes))
        twice = weights;
    printf("  weights     %s, once for all %sranks\n", in_units(weights, a),
           twice != 0 ? "prefill and all decode " : "");
    if (weights >= usable) {
        printf("  no room     %s too many\n", in_units(weights - usable, a));
        return;
    }
    for (uint32_t n = 1; n <= 8; n *= 2) {
        uint64_t share = (usable - weights - (n == 1 ? 0 : twice)) / n, taken = rank_bytes(cfg, n);
        uint64_t pages =
            share > taken ? (share - taken) / (kv_token_bytes(cfg) * BT_PAGE_TOKENS) : 0;

        if (pages == 0)
            printf("  %u rank%s     none: each needs %s for its steps, and has %s\n", n,
                   n == 1 ? " " : "s", in_units(taken, a), in_units(share, b));
        else
            printf("  %u rank%s     room for %s tokens of KV on each\n", n, n == 1 ? " " : "s",
                   grouped(pages * BT_PAGE_TOKENS, a));
    }
    printf("  on a CPU    a rank takes room for at most %s, unless --kv-bytes says more\n",
           grouped((uint64_t)BT_CPU_CONTEXTS * cfg->max_context, a));
}

static bt_status inspect(const char *dir)
{
    bt_status       st    = BT_OK;
    bt_safetensors *files = NULL;
    bt_model_config cfg;
    bt_census       census;

    BT_TRY(bt_model_config_read(dir, &cfg));
    BT_TRY(bt_safetensors_open(dir, &files));
    bt_census_take(files, &cfg, &census);
    print_model(&cfg, &census);
    print_tokenizer(dir);
    print_census(&cfg, &census);
    print_kv(&cfg);
    print_fit(&cfg, &census);
    bt_weights_warn_of_layers(&cfg, files);
    if (census.bytes[BT_PART_MTP] != 0) BT_TRY(bt_model_config_serve_mtp(&cfg));
    BT_TRY(bt_weights_check(&cfg, files)); /* last: the tables help to see what is wrong */
out:
    bt_safetensors_close(files);
    return st;
}

int main(int argc, char **argv)
{
    const struct argp parser = {NULL, parse, "DIR", DOC, NULL, NULL, NULL};
    const char       *dir    = NULL;

    bt_log_init_verb("inspect", BT_LOG_INFO);
    argp_parse(&parser, argc, argv, 0, NULL, &dir);
    return inspect(dir) == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
