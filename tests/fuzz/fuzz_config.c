/* Any bytes as a config.json, and as a params.json: refused, or sizes that the engine may rely on.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "model/config.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { N_FILES = 2 };
static const char *const FILES[N_FILES] = {"config.json", "params.json"};
static char              g_dirs[N_FILES][128];

static void remove_dirs(void)
{
    for (int i = 0; i < N_FILES; i++) {
        char path[256];

        snprintf(path, sizeof(path), "%s/%s", g_dirs[i], FILES[i]);
        unlink(path);
        rmdir(g_dirs[i]);
    }
}

/* Directories of one file each, which is the memory file. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    if (atexit(remove_dirs) != 0) abort();
    for (int i = 0; i < N_FILES; i++) {
        snprintf(g_dirs[i], sizeof(g_dirs[i]), "/tmp/baton-fuzz-XXXXXX");
        if (mkdtemp(g_dirs[i]) == NULL) abort();
    }
    return 0;
}

static void check(const bt_model_config *cfg)
{
    const bt_gate_config *g = &cfg->moe.gate;

    BT_ASSERT(cfg->hidden > 0 && cfg->n_layers > 0 && cfg->vocab_size > 0 && cfg->max_context > 0);
    BT_ASSERT(cfg->mla.qk_rope_dim % 2 == 0 && cfg->mla.qk_rope_dim / 2 <= BT_MAX_ROPE_PAIRS);
    BT_ASSERT(isfinite(cfg->mla.softmax_scale) && cfg->mla.softmax_scale > 0);
    BT_ASSERT(isfinite(cfg->mla.rope_magnitude));
    for (uint32_t i = 0; i < cfg->mla.qk_rope_dim / 2; i++)
        BT_ASSERT(isfinite(cfg->mla.rope_inv_freq[i]) && cfg->mla.rope_inv_freq[i] >= 0);
    if (g->n_experts != 0) {
        BT_ASSERT(g->n_groups > 0 && g->n_experts % g->n_groups == 0);
        BT_ASSERT(g->topk_groups > 0 && g->topk_groups <= g->n_groups);
        BT_ASSERT(g->top_k > 0 && g->top_k <= g->n_experts / g->n_groups * g->topk_groups);
    }
    for (uint32_t i = 0; i < cfg->n_eos; i++)
        BT_ASSERT(cfg->eos_tokens[i] < cfg->vocab_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int      fd = -1;
    bt_model_config cfg;
    char            path[256], target[64];

    if (fd < 0) {
        snprintf(target, sizeof(target), "/proc/self/fd/%d", memory_file(&fd, data, n));
        for (int i = 0; i < N_FILES; i++) {
            snprintf(path, sizeof(path), "%s/%s", g_dirs[i], FILES[i]);
            if (symlink(target, path) != 0) abort();
        }
    }
    memory_file(&fd, data, n);
    for (int i = 0; i < N_FILES; i++)
        if (bt_model_config_read(g_dirs[i], &cfg) == BT_OK) check(&cfg);
    return 0;
}
