#include "cli/cell_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "cli/child.h"
#include "core/alloc.h"
#include "core/defaults.h"
#include "core/file.h"
#include "core/parse.h"
#include "core/rank_flags.h"
#include "core/rank_map.h"

enum {
    OPT_PREFILL = 512,
    OPT_DECODE,
    OPT_BOTH,
    OPT_HOSTS,
    OPT_HOSTFILE,
    OPT_KV_BYTES,
    OPT_CACHE,
    OPT_CHUNK,
    OPT_MAX_ROWS,
    OPT_FORM,
    OPT_SHARE,
    OPT_SPECULATE,
    OPT_MTP,
    OPT_THREADS,
    OPT_KERNELS,
    OPT_DEVICE,
    OPT_TRANSPORT,
    OPT_TIMEOUT,
    OPT_QUIET,
    OPT_ORPHAN,
    OPT_CELL,
    OPT_RANK_MAP,
    OPT_SLURM
};

static const struct argp_option OPTIONS[] = {
    BT_OPTION_GROUP("The cell:", 1),
    BT_OPTION("model", 'm', "DIR",
              "Model directory: config.json or params.json, tokenizer.json, tiktoken.model or "
              "tekken.json, and *.safetensors"),
    BT_OPTION_DEFAULT("prefill", OPT_PREFILL, "P", "1 without --both",
                      "Ranks that compute prompts"),
    BT_OPTION_DEFAULT("decode", OPT_DECODE, "D", "1 without --both", "Ranks that generate"),
    BT_OPTION("both", OPT_BOTH, "N", "N ranks that do both, in place of --prefill and --decode"),
    BT_OPTION("hosts", OPT_HOSTS, "LIST", "Hosts and slots for mpirun: node1:8,node2:8"),
    BT_OPTION("hostfile", OPT_HOSTFILE, "FILE", "Open MPI host file"),
    BT_OPTION("rank-map", OPT_RANK_MAP, "FILE",
              "File that says where each rank runs, with its role, cores and devices; in place of "
              "--prefill, --decode, --both and --hosts"),
    BT_OPTION("slurm", OPT_SLURM, NULL, "Run the ranks on all nodes of this Slurm job"),
    BT_OPTION("cell", OPT_CELL, "NAME", "Name of this cell, for a coordinator with several"),
    BT_OPTION_GROUP("Each rank:", 5),
    BT_OPTION("kv-bytes", OPT_KV_BYTES, "BYTES",
              "Memory of each rank for KV pages, like 512M or 2G (default: what its memory account "
              "leaves, on a CPU at most 4 full contexts; it logs that)"),
    BT_OPTION("weights-cache", OPT_CACHE, "DIR",
              "Keep packed weights in a file in DIR, and map it at later starts (CPU only)"),
    BT_OPTION_DEFAULT("chunk", OPT_CHUNK, "ROWS",
                      BT_TEXT(BT_DEFAULT_CHUNK) ", with --both " BT_TEXT(BT_DEFAULT_CHUNK_BOTH),
                      "Most rows of one prompt in a step; at most --max-rows"),
    BT_OPTION_DEFAULT("max-rows", OPT_MAX_ROWS, "ROWS",
                      "the larger of --chunk and " BT_TEXT(BT_DEFAULT_MAX_ROWS),
                      "Most rows of a rank in a step, over all requests"),
    BT_OPTION_DEFAULT(
        "form", OPT_FORM, "FORM", "role",
        "Form of attention: role (normal for prompts, absorbed for generated tokens), normal, "
        "absorbed, or cost (the cheaper one; tokens then depend on how prompts were cut)"),
    BT_OPTION_DEFAULT("speculate", OPT_SPECULATE, "N", "0",
                      "Up to N tokens more a step of a request that repeats what it has said or "
                      "was told; tokens do not change"),
    BT_OPTION_DEFAULT("mtp", OPT_MTP, "N", "0",
                      "Up to N tokens more a step, drafted by the checkpoint's layer for "
                      "multi-token prediction (DeepSeek-V3, GLM-5); tokens do not change"),
    BT_OPTION("share-generated", OPT_SHARE, NULL,
              "Cache full pages of replies too; tokens then depend on what was cached"),
    BT_OPTION_DEFAULT("threads", OPT_THREADS, "N", "one per core",
                      "Compute threads of a rank; an idle rank leaves its cores to the others"),
    BT_OPTION_DEFAULT(
        "kernels", OPT_KERNELS, "NAME", "auto",
        "CPU kernels: auto (the best that the machine has), amx, avx512bf16, avx512, avx2, neon, "
        "scalar"),
    BT_OPTION_DEFAULT("device", OPT_DEVICE, "WHERE", "auto",
                      "Where ranks compute: auto (a GPU if one can be used), cpu, cuda, cuda:N"),
    BT_OPTION_DEFAULT("transport", OPT_TRANSPORT, "HOW", "auto",
                      "How ranks on GPUs exchange data: auto, nccl, mpi"),
    BT_OPTION_DEFAULT("timeout-s", OPT_TIMEOUT, "S", BT_TEXT(BT_DEFAULT_TIMEOUT_S),
                      "How long a rank waits for another one in a step; with NCCL 4 or more"),
    BT_OPTION_DEFAULT("coordinator-timeout-s", OPT_QUIET, "S",
                      BT_TEXT(BT_DEFAULT_COORDINATOR_TIMEOUT_S),
                      "A coordinator that has not answered for S seconds is lost"),
    BT_OPTION_DEFAULT("orphan-s", OPT_ORPHAN, "S",
                      BT_TEXT(BT_DEFAULT_ORPHAN_S) " if one may come, else 0",
                      "How long ranks that have lost their coordinator look for a new one"),
    {0},
};

static uint64_t read_flag(struct argp_state *state, const char *flag, const char *arg)
{
    uint64_t value = 0;
    char     why[BT_RANK_FLAG_WHY];

    if (!bt_rank_flag_read(flag, arg, &value, why)) argp_error(state, "%s", why);
    return value;
}

static void pass_checked(struct argp_state *state, bt_cell_options *opt, const char *flag,
                         const char *arg)
{
    read_flag(state, flag, arg);
    bt_pass_on(&opt->worker, flag, arg);
}

void bt_cell_default(bt_cell_options *opt, const char *flag, const char *value)
{
    if (bt_passed_value(&opt->worker, flag) == NULL) bt_pass_on(&opt->worker, flag, value);
}

void bt_cell_rename(bt_cell_options *opt, const char *name)
{
    opt->name = name;
    bt_pass_on(&opt->worker, "--cell", name);
}

void bt_cell_place(bt_cell_options *opt, const bt_rank_map *map, const char *path,
                   const char *left_out)
{
    opt->n_prefill = map->n_prefill;
    opt->n_decode  = map->n_decode;
    opt->n_both    = map->n_both;
    opt->n_spares  = map->n_spares;
    opt->rank_map  = path;
    opt->hosts = opt->hostfile = NULL;
    bt_pass_on(&opt->worker, "--left-out", left_out);
}

static error_t parse_worker(int key, char *arg, struct argp_state *state, bt_cell_options *opt)
{
    switch (key) {
    case OPT_KV_BYTES: pass_checked(state, opt, "--kv-bytes", arg); return 0;
    case OPT_CACHE: pass_checked(state, opt, "--weights-cache", arg); return 0;
    case OPT_CHUNK: pass_checked(state, opt, "--chunk", arg); return 0;
    case OPT_MAX_ROWS: pass_checked(state, opt, "--max-rows", arg); return 0;
    case OPT_FORM: pass_checked(state, opt, "--form", arg); return 0;
    case OPT_SPECULATE: pass_checked(state, opt, "--speculate", arg); return 0;
    case OPT_MTP: pass_checked(state, opt, "--mtp", arg); return 0;
    case OPT_SHARE: bt_pass_flag(&opt->worker, "--share-generated"); return 0;
    case OPT_THREADS: pass_checked(state, opt, "--threads", arg); return 0;
    case OPT_KERNELS: pass_checked(state, opt, "--kernels", arg); return 0;
    case OPT_DEVICE: pass_checked(state, opt, "--device", arg); return 0;
    case OPT_TRANSPORT: pass_checked(state, opt, "--transport", arg); return 0;
    case OPT_TIMEOUT: pass_checked(state, opt, "--timeout-s", arg); return 0;
    case OPT_QUIET: pass_checked(state, opt, "--coordinator-timeout-s", arg); return 0;
    case OPT_ORPHAN: pass_checked(state, opt, "--orphan-s", arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void check_rows(struct argp_state *state, const bt_cell_options *opt)
{
    const char *chunk = bt_passed_value(&opt->worker, "--chunk");
    const char *rows  = bt_passed_value(&opt->worker, "--max-rows");
    char        why[BT_RANK_FLAG_WHY];

    if (chunk != NULL && rows != NULL &&
        !bt_rank_rows_fit(read_flag(state, "--chunk", chunk), read_flag(state, "--max-rows", rows),
                          why))
        argp_error(state, "%s", why);
}

static void check_model(struct argp_state *state, const char *dir)
{
    char path[PATH_MAX];

    if (dir == NULL) argp_error(state, "--model is missing: the directory of a model");
    bt_option_model(state, "--model", dir);
    bt_model_config_file(dir, path);
    if (access(path, R_OK) != 0) {
        argp_failure(state, EXIT_FAILURE, errno, "--model %s is no model directory: %s", dir, path);
    }
}

/* How many of the options that name hosts are given, --rank-map aside. */
static int n_places(const bt_cell_options *opt)
{
    return (opt->hosts != NULL) + (opt->hostfile != NULL) + opt->slurm;
}

/* On other hosts the ranks look: what lies there is not known here. */
static void check_cache(const bt_cell_options *opt)
{
    const char *dir = bt_passed_value(&opt->worker, "--weights-cache");

    if (dir == NULL || opt->rank_map != NULL || n_places(opt) > 0) return;
    if (bt_check_folder("--weights-cache", dir) != BT_OK) exit(EXIT_FAILURE);
}

static void take_map(struct argp_state *state, bt_cell_options *opt)
{
    bt_rank_map map;

    if (opt->n_both != 0 || opt->n_prefill != 0 || opt->n_decode != 0 || opt->n_spares != 0 ||
        n_places(opt) > 0)
        argp_error(state, "--rank-map says how many ranks there are and where: it goes without "
                          "--prefill, --decode, --both, --spares, --hosts, --hostfile and --slurm");
    if (bt_rank_map_read(opt->rank_map, &map) != BT_OK) exit(EX_USAGE);
    opt->n_both    = map.n_both;
    opt->n_prefill = map.n_prefill;
    opt->n_decode  = map.n_decode;
    opt->n_spares  = map.n_spares;
    bt_rank_map_fini(&map);
}

static void check(struct argp_state *state, bt_cell_options *opt)
{
    if (opt->rank_map != NULL) take_map(state, opt);
    if (opt->n_both != 0 && (opt->n_prefill != 0 || opt->n_decode != 0)) {
        argp_error(state, "--both goes without --prefill and --decode");
    }
    if (opt->n_both == 0) {
        if (opt->n_prefill == 0) opt->n_prefill = 1;
        if (opt->n_decode == 0) opt->n_decode = 1;
    }
    if (n_places(opt) > 1) argp_error(state, "--hosts, --hostfile and --slurm exclude each other");
    if (opt->slurm) bt_option_slurm(state);
    check_rows(state, opt);
    check_model(state, opt->model);
    check_cache(opt);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    bt_cell_options *opt = state->input;

    switch (key) {
    case 'm':
        read_flag(state, "--model", arg);
        opt->model = arg;
        return 0;
    case OPT_PREFILL: opt->n_prefill = (uint32_t)read_flag(state, "--prefill", arg); return 0;
    case OPT_DECODE: opt->n_decode = (uint32_t)read_flag(state, "--decode", arg); return 0;
    case OPT_BOTH: opt->n_both = (uint32_t)read_flag(state, "--both", arg); return 0;
    case OPT_RANK_MAP: opt->rank_map = bt_option_name(state, "--rank-map", "a file", arg); return 0;
    case OPT_SLURM: opt->slurm = true; return 0;
    case OPT_CELL:
        read_flag(state, "--cell", arg);
        bt_cell_rename(opt, arg);
        return 0;
    case OPT_HOSTS: bt_option_hosts(state, "--hosts", opt->hosts = arg); return 0;
    case OPT_HOSTFILE: bt_option_hostfile(state, "--hostfile", opt->hostfile = arg); return 0;
    case ARGP_KEY_END: check(state, opt); return 0;
    default: return parse_worker(key, arg, state, opt);
    }
}

const bt_setting_conflict bt_cell_conflicts[] = {
    {"both",     "prefill" },
    {"both",     "decode"  },
    {"hosts",    "hostfile"},
    {"hosts",    "slurm"   },
    {"hostfile", "slurm"   },
    {"rank-map", "both"    },
    {"rank-map", "prefill" },
    {"rank-map", "decode"  },
    {"rank-map", "hosts"   },
    {"rank-map", "hostfile"},
    {"rank-map", "slurm"   },
    {"rank-map", "spares"  },
    {NULL,       NULL      }
};

const struct argp bt_cell_argp = {OPTIONS, parse, NULL, NULL, NULL, NULL, NULL};

/* Argument strings that are made here live behind the pointers, in the same block. */
typedef struct {
    char *argv[BT_PASSED_ON + 24];
    char  n_ranks[16], n_first[16], n_second[16], n_spares[16];
    char  launch[PATH_MAX], worker[PATH_MAX];
} launch_command;

bt_status bt_cell_launch_argv(const bt_cell_options *opt, const char *coordinator, char ***argv_out)
{
    bt_status       st    = BT_OK;
    launch_command *c     = bt_calloc(1, sizeof(*c));
    const char     *death = opt->replace ? "replace" : "stop";
    char          **argv;
    size_t          n = 0;

    BT_REQUIRE(c != NULL, BT_ERR_NO_MEMORY, "the command that starts the ranks");
    BT_TRY(bt_program_path("baton-launch", c->launch));
    BT_TRY(bt_program_path("baton-worker", c->worker));
    snprintf(c->n_ranks, sizeof(c->n_ranks), "%u", bt_cell_n_ranks(opt));
    snprintf(c->n_first, sizeof(c->n_first), "%u", opt->n_both ? opt->n_both : opt->n_prefill);
    snprintf(c->n_second, sizeof(c->n_second), "%u", opt->n_decode);
    snprintf(c->n_spares, sizeof(c->n_spares), "%u", opt->n_spares);
    argv = c->argv;
    bt_add_word(argv, &n, c->launch);
    bt_add_flag(argv, &n, "--rank-map", opt->rank_map);
    bt_add_flag(argv, &n, "--ranks", opt->rank_map == NULL ? c->n_ranks : NULL);
    if (opt->slurm) bt_add_word(argv, &n, "--slurm");
    bt_add_flag(argv, &n, "--host", opt->hosts);
    bt_add_flag(argv, &n, "--hostfile", opt->hostfile);
    bt_add_flag(argv, &n, "--on-death", death);
    bt_add_word(argv, &n, "--");
    bt_add_word(argv, &n, c->worker);
    bt_add_flag(argv, &n, "--model", opt->model);
    bt_add_flag(argv, &n, opt->n_both != 0 ? "--both" : "--prefill", c->n_first);
    bt_add_flag(argv, &n, "--decode", opt->n_both == 0 ? c->n_second : NULL);
    bt_add_flag(argv, &n, "--on-death", death);
    bt_add_flag(argv, &n, "--spares", opt->n_spares != 0 ? c->n_spares : NULL);
    for (uint32_t i = 0; i < opt->worker.n; i++)
        bt_add_word(argv, &n, opt->worker.args[i]);
    if (opt->verbose) bt_add_word(argv, &n, "--verbose");
    bt_add_flag(argv, &n, "--coordinator", coordinator);
    *argv_out = argv;
    c         = NULL;
out:
    bt_free(c);
    return st;
}
