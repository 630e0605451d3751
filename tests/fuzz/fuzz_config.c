/* Any bytes as a config.json: refused, or sizes that the engine may rely on. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "model/config.h"
#include "tests/fuzz/memory_file.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char g_dir[128];

static void remove_dir(void)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/config.json", g_dir);
    unlink(path);
    rmdir(g_dir);
}

/* A directory whose config.json is the memory file. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    snprintf(g_dir, sizeof(g_dir), "/tmp/baton-fuzz-XXXXXX");
    if (mkdtemp(g_dir) == NULL || atexit(remove_dir) != 0) abort();
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
        snprintf(path, sizeof(path), "%s/config.json", g_dir);
        if (symlink(target, path) != 0) abort();
    }
    memory_file(&fd, data, n);
    if (bt_model_config_read(g_dir, &cfg) == BT_OK) check(&cfg);
    return 0;
}
