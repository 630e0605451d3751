#include "worker/options.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/defaults.h"
#include "core/minmax.h"
#include "core/parse.h"
#include "core/rank_flags.h"

enum {
    KEY_MODEL = 256,
    KEY_PREFILL,
    KEY_DECODE,
    KEY_BOTH,
    KEY_COORDINATOR,
    KEY_KV_BYTES,
    KEY_CACHE,
    KEY_CHUNK,
    KEY_MAX_ROWS,
    KEY_LOOKAHEAD,
    KEY_FORM,
    KEY_THREADS,
    KEY_KERNELS,
    KEY_DEVICE,
    KEY_CUDA_LIBRARY,
    KEY_TRANSPORT,
    KEY_NCCL_LIBRARY,
    KEY_TIMEOUT,
    KEY_QUIET,
    KEY_ORPHAN,
    KEY_ON_DEATH,
    KEY_SPARES,
    KEY_CELL,
    KEY_LEFT_OUT,
    KEY_SHARE,
    KEY_SPECULATE,
    KEY_MTP,
    KEY_VERBOSE
};

/* The value of a flag, as the verbs that pass it on have read it too. */
static bt_status read_flag(const char *flag, const char *text, uint64_t *value_out)
{
    bt_status st = BT_OK;
    char      why[BT_RANK_FLAG_WHY];

    BT_REQUIRE(bt_rank_flag_read(flag, text, value_out, why), BT_ERR_INVALID_ARG, "%s", why);
out:
    return st;
}

static bt_status read_count(const char *flag, const char *text, uint32_t *n_out)
{
    bt_status st = BT_OK;
    uint64_t  n  = 0;

    BT_TRY(read_flag(flag, text, &n));
    *n_out = (uint32_t)n;
out:
    return st;
}

static bt_status read_seconds(const char *flag, const char *text, uint64_t *ns_out)
{
    bt_status st = BT_OK;
    uint64_t  s  = 0;

    BT_TRY(read_flag(flag, text, &s));
    *ns_out = s * BT_NS_PER_S;
out:
    return st;
}

static bt_status take(bt_worker_options *opt, int key, const char *text)
{
    bt_status st    = BT_OK;
    uint64_t  value = 0;

    switch (key) {
    case KEY_MODEL: opt->model = text; return read_flag("--model", text, &value);
    case KEY_COORDINATOR:
        BT_REQUIRE(bt_parse_address(text), BT_ERR_INVALID_ARG,
                   "--coordinator must be HOST:PORT, not \"%s\"", text);
        opt->coordinator = text;
        break;
    case KEY_CELL: opt->cell = text; return read_flag("--cell", text, &value);
    case KEY_LEFT_OUT: opt->left_out = text; break;
    case KEY_KERNELS: opt->kernels = text; return read_flag("--kernels", text, &value);
    case KEY_CACHE: opt->weights_cache = text; return read_flag("--weights-cache", text, &value);
    case KEY_CUDA_LIBRARY:
        opt->cuda_library = text;
        return read_flag("--cuda-library", text, &value);
    case KEY_DEVICE:
        BT_TRY(read_flag("--device", text, &value));
        opt->device = value < BT_RANK_DEVICE_CUDA_0 ? (bt_device_choice)value : BT_ON_GPU;
        opt->gpu    = value < BT_RANK_DEVICE_CUDA_0 ? BT_GPU_BY_LOCAL_RANK
                                                    : (int32_t)(value - BT_RANK_DEVICE_CUDA_0);
        break;
    case KEY_TRANSPORT:
        BT_TRY(read_flag("--transport", text, &value));
        opt->transport = (bt_transport_choice)value;
        break;
    case KEY_NCCL_LIBRARY:
        opt->nccl_library = text;
        return read_flag("--nccl-library", text, &value);
    case KEY_VERBOSE: opt->verbose = true; break;
    case KEY_SHARE: opt->share_generated = true; break;
    case KEY_PREFILL: return read_count("--prefill", text, &opt->n_prefill);
    case KEY_DECODE: return read_count("--decode", text, &opt->n_decode);
    case KEY_BOTH: return read_count("--both", text, &opt->n_both);
    case KEY_SPARES: return read_count("--spares", text, &opt->n_spares);
    case KEY_KV_BYTES: return read_flag("--kv-bytes", text, &opt->kv_bytes);
    case KEY_CHUNK: return read_count("--chunk", text, &opt->chunk);
    case KEY_MAX_ROWS: return read_count("--max-rows", text, &opt->max_rows);
    case KEY_LOOKAHEAD: return read_count("--lookahead", text, &opt->lookahead);
    case KEY_SPECULATE: return read_count("--speculate", text, &opt->speculate);
    case KEY_MTP: return read_count("--mtp", text, &opt->mtp);
    case KEY_FORM:
        BT_TRY(read_flag("--form", text, &value));
        opt->form = (bt_form_policy)value;
        break;
    case KEY_THREADS: return read_count("--threads", text, &opt->n_threads);
    case KEY_TIMEOUT: return read_seconds("--timeout-s", text, &opt->timeout_ns);
    case KEY_QUIET: return read_seconds("--coordinator-timeout-s", text, &opt->quiet_ns);
    case KEY_ORPHAN: return read_seconds("--orphan-s", text, &opt->orphan_ns);
    case KEY_ON_DEATH:
        opt->replace = strcmp(text, "replace") == 0;
        BT_REQUIRE(opt->replace || strcmp(text, "stop") == 0, BT_ERR_INVALID_ARG,
                   "--on-death must be stop or replace, not \"%s\"", text);
        break;
    default: break;
    }
out:
    return st;
}

/* What argp calls; the first error ends the parsing and stays in `st`. */
typedef struct {
    bt_worker_options *opt;
    bt_status          st;
} parse_state;

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    parse_state *p = state->input;

    if (key == ARGP_KEY_ARG) {
        bt_log_error(__FILE__, __LINE__, bt_status_str(BT_ERR_INVALID_ARG),
                     "unexpected word \"%s\": every argument is an option", arg);
        p->st = BT_ERR_INVALID_ARG;
        return EINVAL;
    }
    if (key == BT_OPT_CONFIG) return 0; /* has been read */
    if (key < KEY_MODEL || key > KEY_VERBOSE) return ARGP_ERR_UNKNOWN;
    p->st = take(p->opt, key, arg);
    return p->st == BT_OK ? 0 : EINVAL;
}

static const struct argp_option OPTIONS[] = {
    BT_OPTION_GROUP("What to run:", 1),
    BT_OPTION("model", KEY_MODEL, "DIR",
              "Model directory (config.json or params.json, safetensors)"),
    BT_OPTION("prefill", KEY_PREFILL, "P", "World ranks 0 to P-1 compute prompts"),
    BT_OPTION("decode", KEY_DECODE, "D", "World ranks P to P+D-1 generate"),
    BT_OPTION("both", KEY_BOTH, "N", "All N ranks do both, in place of --prefill and --decode"),
    BT_OPTION("coordinator", KEY_COORDINATOR, "HOST:PORT", "Control port of the coordinator"),
    BT_OPTION("cell", KEY_CELL, "NAME", "Name of this cell, for a coordinator with several"),
    BT_OPTION("left-out", KEY_LEFT_OUT, "LIST",
              "Hosts that this cell was started without, for the status page"),
    BT_OPTION_GROUP("Memory and speed:", 2),
    BT_OPTION("kv-bytes", KEY_KV_BYTES, "SIZE",
              "Memory of this rank for KV pages, like 512M or 2G (default: what the memory account "
              "leaves, on a CPU at most 4 full contexts)"),
    BT_OPTION("weights-cache", KEY_CACHE, "DIR",
              "Keep packed weights in a file in DIR, as large as the model, and map it at later "
              "starts (CPU only; default: pack at each start)"),
    BT_OPTION_DEFAULT(
        "chunk", KEY_CHUNK, "N",
        BT_TEXT(BT_DEFAULT_CHUNK) ", with --both " BT_TEXT(BT_DEFAULT_CHUNK_BOTH),
        "Most rows of one prompt in a step, at most --max-rows; fewer with --both, where "
        "generated tokens wait for the step"),
    BT_OPTION_DEFAULT("max-rows", KEY_MAX_ROWS, "N",
                      "the larger of --chunk and " BT_TEXT(BT_DEFAULT_MAX_ROWS),
                      "Most rows of this rank in a step, over all requests"),
    BT_OPTION_DEFAULT("lookahead", KEY_LOOKAHEAD, "N", "1",
                      "On a GPU, steps of generated tokens that are launched before the one ahead "
                      "of them is over: 0 or 1"),
    BT_OPTION_DEFAULT(
        "threads", KEY_THREADS, "N", "0",
        "Compute threads; 0: one per core that this process may use. Ranks that share a machine "
        "can each have one per core: an idle rank leaves its cores to the others"),
    BT_OPTION_DEFAULT(
        "kernels", KEY_KERNELS, "NAME", "auto",
        "CPU kernels: auto (the best that the machine has), amx, avx512bf16, avx512, avx2, neon, "
        "scalar"),
    BT_OPTION_DEFAULT("device", KEY_DEVICE, "WHERE", "auto",
                      "auto: a GPU if one can be used, else the CPU; cpu; cuda: a GPU, dealt out "
                      "in turn to the ranks of a machine; cuda:N: GPU N"),
    BT_OPTION("cuda-library", KEY_CUDA_LIBRARY, "FILE",
              "The CUDA back end (default: libbaton_cuda.so of this installation)"),
    BT_OPTION_DEFAULT("transport", KEY_TRANSPORT, "HOW", "auto",
                      "How ranks on GPUs exchange data: auto: nccl if every rank has a GPU of its "
                      "own and can use it, else mpi; mpi: through host memory; nccl"),
    BT_OPTION("nccl-library", KEY_NCCL_LIBRARY, "FILE",
              "The NCCL module (default: libbaton_nccl.so of this installation)"),
    BT_OPTION_GROUP("Behaviour:", 3),
    BT_OPTION_DEFAULT(
        "form", KEY_FORM, "FORM", "role",
        "Form of attention: role (normal for prompts, absorbed for generated tokens), normal, "
        "absorbed, or cost (the cheaper one; tokens then depend on how prompts were cut)"),
    BT_OPTION_DEFAULT(
        "timeout-s", KEY_TIMEOUT, "S", BT_TEXT(BT_DEFAULT_TIMEOUT_S),
        "Deadline of each wait for another rank and of each MPI call; with NCCL 4 or more"),
    BT_OPTION_DEFAULT("coordinator-timeout-s", KEY_QUIET, "S",
                      BT_TEXT(BT_DEFAULT_COORDINATOR_TIMEOUT_S),
                      "A coordinator that has not answered for S seconds is lost"),
    BT_OPTION_DEFAULT("orphan-s", KEY_ORPHAN, "S", BT_TEXT(BT_DEFAULT_ORPHAN_S),
                      "Without a coordinator: drop all requests, look for a new one at the same "
                      "address for S seconds, then exit; 0: exit at once"),
    BT_OPTION_DEFAULT(
        "on-death", KEY_ON_DEATH, "WHAT", "stop",
        "When a rank dies: stop: the cell ends; replace: the others go on without it"),
    BT_OPTION("spares", KEY_SPARES, "N",
              "Standby ranks, the last N of the job, each of which can take the place of a lost "
              "one (needs --on-death=replace)"),
    BT_OPTION_DEFAULT("speculate", KEY_SPECULATE, "N", "0",
                      "Compute up to N more tokens of a request in a step where what it "
                      "has said or was told suggests them; those that prove right count, so tokens "
                      "do not change"),
    BT_OPTION_DEFAULT("mtp", KEY_MTP, "N", "0",
                      "Compute up to N more tokens of a request in a step, drafted by the "
                      "checkpoint's layer for multi-token prediction: DeepSeek-V3 and GLM-5 have "
                      "one; it has weights and pages like the other layers; tokens do not change"),
    BT_OPTION("share-generated", KEY_SHARE, NULL,
              "Cache full pages of generated tokens too, so that a later prompt that contains a "
              "reply finds them; its tokens then depend on what was cached"),
    BT_OPTION("verbose", KEY_VERBOSE, NULL, "Log steps too"),
    BT_CONFIG_OPTION(4),
    {0},
};

static const char DOC[] =
    "One rank of a Baton cell, launched by mpirun; baton-run and baton-launch do that for you.\v"
    "The rank loads its share of the weights, reports ready, works until the coordinator says "
    "Shutdown, and exits with 0. An error that concerns more than one request ends it with 1, "
    "wrong usage with 64.\n\n" BT_CONFIG_TEXT " Rank 0 logs the outcome at the start.\n\n"
    "Example, two prefill and two decode ranks, under a coordinator:\n"
    "  mpirun -n 4 baton-worker --model models/demo --prefill 2 --decode 2 \\\n"
    "    --coordinator 127.0.0.1:4711";

static bt_status check(bt_worker_options *opt)
{
    bt_status st    = BT_OK;
    bool      split = opt->n_prefill != 0 && opt->n_decode != 0;
    char      why[BT_RANK_FLAG_WHY];

    BT_REQUIRE(opt->model != NULL, BT_ERR_INVALID_ARG, "--model DIR is missing");
    BT_REQUIRE(opt->coordinator != NULL, BT_ERR_INVALID_ARG,
               "--coordinator HOST:PORT is missing: the control port of baton-coordinator");
    BT_REQUIRE(opt->n_both == 0 || (opt->n_prefill == 0 && opt->n_decode == 0), BT_ERR_INVALID_ARG,
               "--both %u excludes --prefill and --decode: in a cell all ranks have both roles, or "
               "none has",
               opt->n_both);
    BT_REQUIRE(split || opt->n_both != 0, BT_ERR_INVALID_ARG,
               "roles are missing: give --prefill P and --decode D, or --both N");
    BT_REQUIRE(opt->n_spares == 0 || opt->replace, BT_ERR_INVALID_ARG,
               "--spares %u needs --on-death=replace", opt->n_spares);
    if (opt->chunk == 0) {
        opt->chunk = opt->n_both != 0 ? BT_DEFAULT_CHUNK_BOTH : BT_DEFAULT_CHUNK;
        if (opt->max_rows != 0 && opt->max_rows < opt->chunk) opt->chunk = opt->max_rows;
    }
    if (opt->max_rows == 0) opt->max_rows = bt_max_u32(opt->chunk, BT_DEFAULT_MAX_ROWS);
    BT_REQUIRE(bt_rank_rows_fit(opt->chunk, opt->max_rows, why), BT_ERR_INVALID_ARG, "%s", why);
out:
    return st;
}

static const struct argp         ARGP        = {OPTIONS, parse_option, NULL, DOC, NULL, NULL, NULL};
static const bt_setting_conflict CONFLICTS[] = {
    {"both", "prefill"},
    {"both", "decode" },
    {NULL,   NULL     }
};
static const bt_setting_idle IDLE[] = {
    {"nccl-library", BT_WITH, "device",    "cpu", "since ranks on CPUs exchange by MPI"},
    {"nccl-library", BT_WITH, "transport", "mpi", "since ranks exchange by MPI then"   },
    {"cuda-library", BT_WITH, "device",    "cpu", "since no GPU is used then"          },
    {"lookahead",    BT_WITH, "device",    "cpu", "since it is for GPUs"               },
    {NULL,           BT_WITH, NULL,        NULL,  NULL                                 }
};
const bt_settings_spec bt_worker_settings = {&ARGP, CONFLICTS, IDLE};

bt_status bt_worker_options_parse(int argc, char **argv, bool may_exit, bt_worker_options *opt_out)
{
    bt_status         st   = BT_OK;
    bt_worker_options opt  = {.kernels    = "auto",
                              .gpu        = BT_GPU_BY_LOCAL_RANK,
                              .cell       = "",
                              .left_out   = "",
                              .lookahead  = 1,
                              .timeout_ns = BT_DEFAULT_TIMEOUT_S * BT_NS_PER_S,
                              .quiet_ns   = BT_DEFAULT_COORDINATOR_TIMEOUT_S * BT_NS_PER_S,
                              .orphan_ns  = BT_DEFAULT_ORPHAN_S * BT_NS_PER_S};
    parse_state       p    = {&opt, BT_OK};
    error_t           code = 0;

    code = argp_parse(&ARGP, argc, argv, may_exit ? 0 : ARGP_NO_EXIT | ARGP_NO_ERRS, NULL, &p);
    BT_TRY(p.st);
    BT_REQUIRE(code == 0, BT_ERR_INVALID_ARG, "the command line cannot be read: %s",
               strerror(code));
    BT_TRY(check(&opt));
    *opt_out = opt;
out:
    return st;
}

bt_status bt_worker_options_check_ranks(const bt_worker_options *opt, uint32_t n_ranks)
{
    bt_status st       = BT_OK;
    uint32_t  seats    = opt->n_both != 0 ? opt->n_both : opt->n_prefill + opt->n_decode;
    uint32_t  all      = seats + opt->n_spares;
    char      more[32] = "";

    if (opt->n_spares != 0) snprintf(more, sizeof(more), " --spares %u", opt->n_spares);
    if (opt->n_both != 0)
        BT_REQUIRE(n_ranks == all, BT_ERR_INVALID_ARG,
                   "--both %u%s needs %u ranks, this job has %u: mpirun -n %u baton-worker --both "
                   "%u%s",
                   opt->n_both, more, all, n_ranks, all, opt->n_both, more);
    else
        BT_REQUIRE(n_ranks == all, BT_ERR_INVALID_ARG,
                   "--prefill %u --decode %u%s needs %u ranks, this job has %u: mpirun -n %u "
                   "baton-worker --prefill %u --decode %u%s",
                   opt->n_prefill, opt->n_decode, more, all, n_ranks, all, opt->n_prefill,
                   opt->n_decode, more);
out:
    return st;
}
