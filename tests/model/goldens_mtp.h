/* tests/model/goldens_mtp.h - golden drafts of a model's layer for multi-token prediction:
 * tests/fixtures/<model>/mtp.{json,safetensors}. What each tensor is stands in
 * tests/oracles/goldens_mtp.py. */
#ifndef BT_TESTS_MODEL_GOLDENS_MTP_H
#define BT_TESTS_MODEL_GOLDENS_MTP_H

#include <unistd.h>

#include "tests/model/goldens.h"

/* Logits of the rows first_row .. first_row + n_rows - 1 of a case. */
typedef struct {
    uint32_t first_row, n_rows;
    double   logits_rms, median_row_error;
    float   *logits; /* [n_rows][vocab] */
} golden_drafts;

typedef struct {
    golden_drafts first[MAX_GOLDEN_CASES];
    golden_drafts chained;                   /* of the first case */
    uint16_t     *experts[MAX_GOLDEN_CASES]; /* [n_tokens - 1][top_k] */
} golden_mtp;

static inline void golden_drafts_load(const goldens *files, const char *name, const char *what,
                                      const char *info_name, golden_drafts *d)
{
    const json_t    *info  = json_object_get(files->info, info_name);
    uint32_t         vocab = files->cfg.vocab_size;
    const bt_tensor *t;
    char             full[128];

    snprintf(full, sizeof(full), "%s.%s", name, what);
    t = bt_safetensors_find(files->tensors, full);
    NEED(info != NULL && t != NULL && t->n_dims == 2 && t->shape[1] == vocab);
    d->n_rows           = (uint32_t)t->shape[0];
    d->logits           = golden_tensor(files, name, what, (size_t)d->n_rows * vocab);
    d->first_row        = (uint32_t)json_integer_value(json_object_get(info, "first_position"));
    d->logits_rms       = json_number_value(json_object_get(info, "logits_rms"));
    d->median_row_error = json_number_value(json_object_get(info, "bf16_median_row_error"));
    NEED(d->n_rows > 0 && d->logits_rms > 0 && d->median_row_error > 0);
}

/* Returns whether the model has any: g is that of goldens_open(). */
static inline bool golden_mtp_open(const goldens *g, const char *model, golden_mtp *m)
{
    goldens files = {.cfg = g->cfg};
    char    path[640], chained[128];

    memset(m, 0, sizeof(*m));
    snprintf(path, sizeof(path), "%s/tests/fixtures/%s/mtp.json", BT_SOURCE_DIR, model);
    if (access(path, F_OK) != 0) return false;
    files.info = json_load_file(path, 0, NULL);
    NEED(files.info != NULL);
    snprintf(path, sizeof(path), "%s/tests/fixtures/%s/mtp.safetensors", BT_SOURCE_DIR, model);
    NEED(bt_safetensors_open(path, &files.tensors) == BT_OK);
    for (uint32_t i = 0; i < g->n_cases; i++) {
        const golden_case *c = &g->cases[i];
        size_t             n = (size_t)(c->n_tokens - 1) * g->cfg.moe.gate.top_k;

        golden_drafts_load(&files, c->name, "logits", c->name, &m->first[i]);
        NEED(m->first[i].first_row + m->first[i].n_rows == c->n_tokens - 1);
        m->experts[i] = golden_experts(&files, c->name, n);
    }
    snprintf(chained, sizeof(chained), "%s.chained", g->cases[0].name);
    golden_drafts_load(&files, g->cases[0].name, "chained", chained, &m->chained);
    NEED(m->chained.first_row + m->chained.n_rows == g->cases[0].n_tokens - 2);
    json_decref(files.info);
    bt_safetensors_close(files.tensors);
    return true;
}

static inline void golden_mtp_close(golden_mtp *m)
{
    for (uint32_t i = 0; i < MAX_GOLDEN_CASES; i++) {
        free(m->first[i].logits);
        free(m->experts[i]);
    }
    free(m->chained.logits);
}

#endif
