/* baton-synth - a checkpoint with the shape of a known model and random weights. */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/parse.h"
#include "tools/out_dir.h"
#include "tools/synth_files.h"
#include "tools/synth_shape.h"

enum { OPT_LIKE = 256, OPT_SEED, OPT_FILE, OPT_FP8, OPT_INT4, OPT_SIZE };
enum { N_HEAD_OPTIONS = 7, MAX_OPTIONS = 48 };

static const char DOC[] =
    "Writes a checkpoint with the shape of a known model and random weights: config.json and "
    "safetensors in bf16, for tests and measurements that need a model's size but not its sense.\v"
    "The weights are scaled so that activations keep their size and logits stay a few units wide. "
    "A number depends on the seed, the tensor's name and its place alone, so the same command "
    "writes the same bytes on every machine. There is no tokenizer. Memory use is a few MiB, "
    "whatever the model's size.\n\n"
    "OUT must not exist, or be an empty directory. When the command fails or is interrupted, what "
    "it wrote is removed.\n\n"
    "Exit code: 0, 1 when something failed, 64 for wrong usage, 130 after SIGINT, SIGTERM or "
    "SIGHUP.\n\n"
    "Examples:\n"
    "  baton synth --like v2-lite --layers 4 --seed 1 lite4\n"
    "  baton synth --like v3 --layers 2 --dense-layers 1 --experts 16 \\\n"
    "    --groups 4 --topk-groups 2 small";

typedef struct {
    const char    *like, *out;
    bt_synth_shape shape;
    uint64_t       seed, file_bytes;
    bool           fp8, int4;
    uint32_t       size[64]; /* of each bt_synth_sizes */
    bool           given[64];
} options;

static void finish(options *opt, struct argp_state *state)
{
    if (opt->like == NULL) argp_error(state, "--like is missing: one of %s", bt_synth_names());
    if (!bt_synth_find(opt->like, &opt->shape))
        argp_error(state, "--like is \"%s\", expected one of %s", opt->like, bt_synth_names());
    if (opt->out == NULL) argp_error(state, "OUT is missing: the directory to write");
    for (size_t i = 0; i < bt_synth_n_sizes; i++)
        if (opt->given[i])
            memcpy((char *)&opt->shape + bt_synth_sizes[i].offset, &opt->size[i], sizeof(uint32_t));
    opt->shape.fp8  = opt->fp8;
    opt->shape.int4 = opt->shape.int4 || opt->int4;
    if (opt->shape.fp8 && opt->shape.int4)
        argp_error(state, "--fp8 does not go with weights of 4 bits");
    if (opt->shape.int4 && (opt->shape.hidden % 32 != 0 || opt->shape.expert_dim % 32 != 0))
        argp_error(state,
                   "--hidden and --expert-dim must be multiples of 32 for weights of 4 "
                   "bits, found %u and %u",
                   opt->shape.hidden, opt->shape.expert_dim);
    bt_synth_settle(&opt->shape);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;
    size_t   i   = (size_t)key - OPT_SIZE;
    char     name[64];

    switch (key) {
    case OPT_LIKE: opt->like = arg; return 0;
    case OPT_SEED:
        opt->seed = (uint64_t)bt_option_number(state, "--seed", arg, 0, INT64_MAX);
        return 0;
    case OPT_FILE:
        opt->file_bytes = (uint64_t)bt_option_number(state, "--file-mib", arg, 1, 1 << 20) << 20;
        return 0;
    case OPT_FP8: opt->fp8 = true; return 0;
    case OPT_INT4: opt->int4 = true; return 0;
    case ARGP_KEY_ARG:
        if (opt->out != NULL) argp_error(state, "expected one OUT, found \"%s\" too", arg);
        opt->out = bt_option_name(state, "OUT", "a directory", arg);
        return 0;
    case ARGP_KEY_END: finish(opt, state); return 0;
    default: break;
    }
    if (key < OPT_SIZE || i >= bt_synth_n_sizes) return ARGP_ERR_UNKNOWN;
    snprintf(name, sizeof(name), "--%s", bt_synth_sizes[i].option);
    opt->size[i]  = (uint32_t)bt_option_number(state, name, arg, bt_synth_sizes[i].least,
                                               bt_synth_sizes[i].most);
    opt->given[i] = true;
    return 0;
}

/* The fixed options, then one per size. */
static void make_options(struct argp_option all[MAX_OPTIONS])
{
    const struct argp_option head[N_HEAD_OPTIONS] = {
        {NULL,       0,        NULL,   0, "What to write:",                    1},
        {"like",     OPT_LIKE, "NAME", 0, bt_synth_names(),                    1},
        {"seed",     OPT_SEED, "N",    0, "Seed of the weights (default 1)",   1},
        {"file-mib", OPT_FILE, "N",    0,
         "Largest size of a file, unless one tensor is larger (default 4096)", 1},
        {"fp8",      OPT_FP8,  NULL,   0,
         "Matrices in FP8 with a scale for 128 x 128, as V3 is published, but for gate, embedding "
         "and head",                                                           1},
        {"int4",     OPT_INT4, NULL,   0,
         "The experts' matrices in 4 bits with a scale for 32 of a row, as Kimi-K2-Thinking is "
         "published, which has them without it",                               1},
        {NULL,       0,        NULL,   0, "Sizes other than the model's own:", 2},
    };

    memset(all, 0, MAX_OPTIONS * sizeof(*all));
    memcpy(all, head, sizeof(head));
    for (size_t i = 0; i < bt_synth_n_sizes; i++)
        all[N_HEAD_OPTIONS + i] = (struct argp_option){.name  = bt_synth_sizes[i].option,
                                                       .key   = OPT_SIZE + (int)i,
                                                       .arg   = "N",
                                                       .doc   = bt_synth_sizes[i].text,
                                                       .group = 2};
}

/* ---- the whole */

typedef struct {
    const bt_synth_list *list;
    uint64_t             seed;
} filling;

static void fill_tensor(void *ctx, size_t i, uint64_t first, size_t n, void *out)
{
    const filling *f = ctx;

    bt_synth_fill(&f->list->tensors[i], f->seed, first, n, out);
}

static bt_status synth(const options *opt)
{
    bt_status       st   = BT_OK;
    bt_synth_list   list = {0};
    bool            made = false, ours = false;
    bt_out_progress p    = {.start_ns = bt_now_ns()};
    filling         fill = {&list, opt->seed};
    bt_synth_job    job  = {.dir        = opt->out,
                            .list       = &list,
                            .file_bytes = opt->file_bytes,
                            .stop       = bt_out_stop_flag(),
                            .fill       = fill_tensor,
                            .fill_ctx   = &fill,
                            .progress   = &p};
    double          seconds;

    BT_TRY(bt_out_dir_open(opt->out, &made));
    ours = true;
    BT_TRY(bt_synth_write_config(&opt->shape, opt->out));
    BT_TRY(bt_synth_list_make(&opt->shape, &list));
    BT_TRY(bt_out_dir_check_room(opt->out, bt_synth_total_bytes(&list),
                                 "; fewer --layers or --experts need less"));
    BT_TRY(bt_synth_write(&job));
    seconds = (double)(bt_now_ns() - p.start_ns) * 1e-9;
    printf("%s: like %s, %u layers, seed %" PRIu64 ": %.3f B parameters, %.2f GiB in %u file%s, "
           "%.1f s\n",
           opt->out, opt->like, opt->shape.n_layers, opt->seed, (double)list.n_params * 1e-9,
           (double)bt_synth_total_bytes(&list) / (1 << 30), bt_synth_n_files(&job),
           bt_synth_n_files(&job) == 1 ? "" : "s", seconds);
out:
    if (st != BT_OK && p.shown) fputc('\n', stderr);
    if (st != BT_OK && ours) bt_synth_remove(&job);
    if (st != BT_OK && made) rmdir(opt->out);
    bt_free(list.tensors);
    return st;
}

int main(int argc, char **argv)
{
    struct argp_option all[MAX_OPTIONS];
    const struct argp  parser = {all, parse, "OUT", DOC, NULL, NULL, NULL};
    options            opt    = {.seed = 1, .file_bytes = 4096ull << 20};
    bt_status          st;

    bt_log_init_verb("synth", BT_LOG_INFO);
    make_options(all);
    argp_parse(&parser, argc, argv, 0, NULL, &opt);
    st = synth(&opt);
    if (st == BT_ERR_CANCELLED) {
        fprintf(stderr, "interrupted: %s is as it was before\n", opt.out);
        return 130;
    }
    return st == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
