/* tests/model/checkpoint.h - a model of tests/models whose tensors a test may change, and loading
 * it.
 */
#ifndef BT_TESTS_MODEL_CHECKPOINT_H
#define BT_TESTS_MODEL_CHECKPOINT_H

#include <stdio.h>
#include <unistd.h>

#include "device/cpu/kernels.h"
#include "model/weights.h"
#include "tests/model/goldens.h"

enum { MAX_TENSORS = 512, MAX_EXPERTS = 64 };

static bt_device *g_dev;

/* A model's config, its tensors as a list that a test may change, and a file to write it to.  The
 * layer for multi-token prediction is served where there is one. */
typedef struct {
    char            dir[512], file[64];
    bt_model_config cfg;
    bt_safetensors *set;
    bt_tensor       tensors[MAX_TENSORS];
    size_t          n;
    bool            own[MAX_EXPERTS];
    bool            few_rows;
    bt_store       *store;  /* where load() shares what it packs, or NULL */
    bt_packed      *packed; /* what it need not pack, or NULL */
} checkpoint;

static inline void checkpoint_open(checkpoint *c, const char *model)
{
    int fd;

    memset(c, 0, sizeof(*c));
    snprintf(c->dir, sizeof(c->dir), "%s/tests/models/%s", BT_SOURCE_DIR, model);
    snprintf(c->file, sizeof(c->file), "/tmp/baton-weights-XXXXXX");
    fd = mkstemp(c->file);
    NEED(fd >= 0);
    close(fd);
    NEED(bt_model_config_read(c->dir, &c->cfg) == BT_OK);
    NEED(c->cfg.n_mtp_layers == 0 || bt_model_config_serve_mtp(&c->cfg) == BT_OK);
    NEED(bt_safetensors_open(c->dir, &c->set) == BT_OK);
    c->n = bt_safetensors_count(c->set);
    NEED(c->n <= MAX_TENSORS && c->cfg.moe.gate.n_experts <= MAX_EXPERTS);
    for (size_t i = 0; i < c->n; i++)
        c->tensors[i] = *bt_safetensors_at(c->set, i);
    for (uint32_t e = 0; e < MAX_EXPERTS; e++)
        c->own[e] = true;
}

/* What this CPU packs bf16 weights in for few rows. */
static inline bt_weight_kind few_rows_kind(void)
{
    return bt_device_cpu_table(g_dev)->bf12 ? BT_WEIGHT_BF12 : BT_WEIGHT_BF16;
}

static inline void checkpoint_close(checkpoint *c)
{
    bt_safetensors_close(c->set);
    unlink(c->file);
}

static inline bt_status load(const checkpoint *c, const bt_safetensors *set, bt_weights *w)
{
    bt_weights_options opt = {.dev         = g_dev,
                              .own_experts = c->own,
                              .normal      = true,
                              .absorbed    = true,
                              .few_rows    = c->few_rows,
                              .store       = c->store,
                              .packed      = c->packed};

    return bt_weights_load(&c->cfg, set, &opt, w);
}

/* Writes the list as a file and loads that. */
static inline bt_status load_list(checkpoint *c, bt_weights *w)
{
    bt_safetensors *set = NULL;
    bt_status       st;

    NEED(bt_safetensors_write(c->file, c->n, c->tensors) == BT_OK);
    NEED(bt_safetensors_open(c->file, &set) == BT_OK);
    st = load(c, set, w);
    bt_safetensors_close(set);
    return st;
}

/* The main() of tests that load checkpoints. */
static inline int checkpoint_main(int argc, char **argv, const bt_test *tests, size_t n_tests)
{
    bt_device_cpu_options opt = {.n_threads = 2, .kernels = "auto"};
    int                   rc;

    NEED(bt_device_cpu_create(&opt, &g_dev) == BT_OK);
    rc = bt_run_tests(tests, n_tests, argc > 1 ? argv[1] : NULL);
    bt_device_destroy(g_dev);
    return rc;
}

#endif
