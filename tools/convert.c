/* baton-convert - a checkpoint that Baton and Hugging Face load, from a GGUF file. */
#include <argp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/parse.h"
#include "tools/convert.h"
#include "tools/out_dir.h"
#include "tools/synth_files.h"

enum { OPT_FILE = 256 };

static const char DOC[] =
    "Turns a GGUF file of a DeepSeek-class model into a checkpoint that Baton and Hugging Face "
    "load: config.json, safetensors in bf16, tokenizer.json and tokenizer_config.json.\v"
    "FILE is a GGUF file of version 2 or 3 and architecture deepseek2, which V2, V3, R1, Kimi-K2, "
    "Moonlight and GLM-4.7-Flash have. Of a model in several files it is the first, "
    "NAME-00001-of-0000N.gguf, with the others beside it.\n\n"
    "Tensors of type F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, "
    "IQ4_NL, IQ4_XS and MXFP4 are read. BF16 keeps every bit; the others are computed in fp32 and "
    "rounded to "
    "bf16, so a file of 4 bits a weight becomes almost four times as large, and no better. V3 and "
    "R1 take 1.3 TB in bf16. Too little room on the disk is an error before any weights are "
    "written.\n\n"
    "config.json says deepseek_v3 where the gate is a sigmoid, else deepseek_v2. Layers for "
    "multi-token prediction are left out: --mtp is for the published checkpoint.\n\n"
    "The tokenizer is written where it is V3's, V2's or Kimi-K2's (key tokenizer.ggml.pre: "
    "deepseek-v3, deepseek-llm, kimi-k2). Where it is another, or the file has none, the weights "
    "are converted all the same, and the last line says so: copy tokenizer.json (or "
    "tiktoken.model) and tokenizer_config.json of the original model into DIR, or send token ids. "
    "Default sampling and further ids that end an answer stand in the "
    "original's generation_config.json, which no GGUF file holds: copy it as well. A GGUF file may "
    "call added tokens special that "
    "the original shows in answers, such as those around tool calls; if that matters, copy "
    "these two files as well.\n\n"
    "DIR must not exist, or be an empty directory. When the command fails or is interrupted, what "
    "it wrote is removed, unless FILE is cut or cannot be read meanwhile (SIGBUS). Weights pass "
    "through memory a few MiB at a time, whatever the model's "
    "size.\n\n"
    "Exit code: 0, 1 when something failed, 64 for wrong usage, 130 after SIGINT, SIGTERM or "
    "SIGHUP.\n\n"
    "Examples:\n"
    "  baton convert DeepSeek-V2-Lite-Chat.Q8_0.gguf v2-lite-chat\n"
    "  baton convert DeepSeek-R1-Q4_K_M-00001-of-00009.gguf r1\n"
    "  baton inspect v2-lite-chat";

static const struct argp_option OPTIONS[] = {
    BT_OPTION_DEFAULT("file-mib", OPT_FILE, "N", "4096",
                      "Largest size of a file, unless one tensor is larger"),
    {0},
};

typedef struct {
    const char *file, *dir;
    uint64_t    file_bytes;
} options;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;

    switch (key) {
    case OPT_FILE:
        opt->file_bytes = (uint64_t)bt_option_number(state, "--file-mib", arg, 1, 1 << 20) << 20;
        return 0;
    case ARGP_KEY_ARG:
        if (opt->dir != NULL) argp_error(state, "expected FILE and DIR, found \"%s\" too", arg);
        if (opt->file == NULL)
            opt->file = bt_option_name(state, "FILE", "a GGUF file", arg);
        else
            opt->dir = bt_option_name(state, "DIR", "a directory", arg);
        return 0;
    case ARGP_KEY_END:
        if (opt->file == NULL) argp_error(state, "FILE is missing: the GGUF file to read");
        if (opt->dir == NULL) argp_error(state, "DIR is missing: the directory to write");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void remove_tokenizer(const char *dir)
{
    static const char *const NAMES[] = {"tokenizer.json", "tokenizer_config.json"};
    char                     path[PATH_MAX];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, NAMES[i]);
        unlink(path);
    }
}

static void tell(const options *opt, const bt_synth_job *job, uint32_t n_mtp, const char *why_not,
                 uint64_t start_ns)
{
    uint32_t n_files = bt_synth_n_files(job);

    if (n_mtp != 0)
        printf("%u layer%s for multi-token prediction left out: --mtp is for the published "
               "checkpoint\n",
               n_mtp, n_mtp == 1 ? "" : "s");
    printf("%s: %.3f B parameters in bf16, %.2f GiB in %u file%s, %.1f s\n", opt->dir,
           (double)job->list->n_params * 1e-9, (double)bt_synth_total_bytes(job->list) / (1 << 30),
           n_files, n_files == 1 ? "" : "s", (double)(bt_now_ns() - start_ns) * 1e-9);
    if (why_not != NULL) printf("%s: no tokenizer: %s\n", opt->dir, why_not);
}

static bt_status convert(const options *opt)
{
    bt_status           st      = BT_OK;
    bt_gguf            *g       = NULL;
    bt_convert_weights *weights = NULL;
    bt_synth_list       list    = {0};
    bt_synth_shape      shape;
    const char         *why_not = NULL;
    uint32_t            n_mtp   = 0;
    bool                made = false, ours = false;
    bt_out_progress     p   = {.start_ns = bt_now_ns()};
    bt_synth_job        job = {.dir        = opt->dir,
                               .list       = &list,
                               .file_bytes = opt->file_bytes,
                               .stop       = bt_out_stop_flag(),
                               .fill       = bt_convert_fill,
                               .progress   = &p};

    BT_TRY(bt_gguf_open(opt->file, &g));
    BT_TRY(bt_convert_shape(g, &shape, &n_mtp));
    BT_TRY(bt_synth_list_make(&shape, &list));
    BT_TRY(bt_convert_weights_find(g, &shape, n_mtp, &list, &weights));
    job.fill_ctx = weights;
    BT_TRY(bt_out_dir_open(opt->dir, &made));
    ours = true;
    BT_TRY(bt_synth_write_config(&shape, opt->dir));
    BT_TRY(bt_out_dir_check_room(opt->dir, bt_synth_total_bytes(&list), ""));
    BT_TRY(bt_convert_tokenizer(g, shape.vocab_size, opt->dir, &why_not));
    BT_TRY(bt_synth_write(&job));
    tell(opt, &job, n_mtp, why_not, p.start_ns);
out:
    if (st != BT_OK && p.shown) fputc('\n', stderr);
    if (st != BT_OK && ours) {
        bt_synth_remove(&job);
        remove_tokenizer(opt->dir);
    }
    if (st != BT_OK && made) rmdir(opt->dir);
    bt_convert_weights_free(weights);
    bt_free(list.tensors);
    bt_gguf_close(g);
    return st;
}

int main(int argc, char **argv)
{
    const struct argp parser = {OPTIONS, parse, "FILE DIR", DOC, NULL, NULL, NULL};
    options           opt    = {.file_bytes = 4096ull << 20};
    bt_status         st;

    bt_log_init_verb("convert", BT_LOG_INFO);
    argp_parse(&parser, argc, argv, 0, NULL, &opt);
    st = convert(&opt);
    if (st == BT_ERR_CANCELLED) {
        fprintf(stderr, "interrupted: %s is as it was before\n", opt.dir);
        return 130;
    }
    return st == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
