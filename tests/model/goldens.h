/* tests/model/goldens.h - golden outputs of one model:
 * tests/fixtures/<model>/cases.{json,safetensors}. What each tensor is stands in
 * tests/oracles/goldens.py, how to compare in tests/fixtures/README.md. */
#ifndef BT_TESTS_MODEL_GOLDENS_H
#define BT_TESTS_MODEL_GOLDENS_H

#include <jansson.h>
#include <math.h>

#include "model/config.h"
#include "model/safetensors.h"
#include "tests/support/test.h"

enum { MAX_GOLDEN_CASES = 8 };

typedef struct {
    const char *name;
    uint32_t  n_prompt, n_tokens, n_rows, first_position; /* logits of the last n_rows positions */
    double    logits_rms, median_row_error;
    double    fair_error; /* of bf16 with forced routing, as forced_error() measures it */
    bool      sparse;     /* attention */
    uint32_t  rows_rerouted;
    uint32_t *ids;                                       /* [n_tokens] */
    uint16_t *experts;                                   /* [n_moe_layers][n_tokens][top_k] */
    float    *logits;                                    /* [n_rows][vocab] */
    float    *hidden, *latent, *k_rope, *expert_weights; /* NULL unless traced */
} golden_case;

typedef struct {
    char            model_dir[512];
    bt_model_config cfg;
    bt_safetensors *weights;
    json_t         *info;
    bt_safetensors *tensors;
    uint32_t        n_cases, n_moe;
    golden_case     cases[MAX_GOLDEN_CASES];
} goldens;

/* Elements of 4 bytes, copied so that they are aligned; NULL when there is no such tensor. */
static inline void *golden_tensor(const goldens *g, const char *name, const char *what,
                                  size_t n_elems)
{
    char             full[128];
    const bt_tensor *t;
    void            *copy;

    snprintf(full, sizeof(full), "%s.%s", name, what);
    t = bt_safetensors_find(g->tensors, full);
    if (t == NULL) return NULL;
    NEED(t->bytes == n_elems * 4);
    copy = malloc(t->bytes);
    NEED(copy != NULL);
    memcpy(copy, t->data, t->bytes);
    return copy;
}

/* Expert numbers, of which there are n. */
static inline uint16_t *golden_experts(const goldens *g, const char *name, size_t n)
{
    int32_t  *wide    = golden_tensor(g, name, "experts", n);
    uint16_t *experts = malloc(n * sizeof(*experts));

    NEED(wide != NULL && experts != NULL);
    for (size_t i = 0; i < n; i++)
        experts[i] = (uint16_t)wide[i];
    free(wide);
    return experts;
}

static inline void golden_case_load(goldens *g, const char *name, const json_t *info,
                                    golden_case *c)
{
    const bt_model_config *m = &g->cfg;
    const bt_tensor       *ids;
    char                   full[128];
    size_t                 n_experts;

    snprintf(full, sizeof(full), "%s.ids", name);
    ids = bt_safetensors_find(g->tensors, full);
    NEED(ids != NULL && ids->n_dims == 1);
    c->name             = name;
    c->n_tokens         = (uint32_t)ids->shape[0];
    c->n_prompt         = (uint32_t)json_integer_value(json_object_get(info, "prompt"));
    c->first_position   = (uint32_t)json_integer_value(json_object_get(info, "first_position"));
    c->n_rows           = c->n_tokens - c->first_position;
    c->logits_rms       = json_number_value(json_object_get(info, "logits_rms"));
    c->sparse           = m->mla.index_topk != 0;
    c->fair_error       = json_number_value(json_object_get(
              info, c->sparse ? "bf16_forced_median_row_error" : "bf16_forced_rms_error"));
    c->median_row_error = json_number_value(json_object_get(info, "bf16_median_row_error"));
    c->rows_rerouted    = (uint32_t)json_integer_value(json_object_get(info, "bf16_rows_rerouted"));
    NEED(c->n_prompt >= 1 && c->n_prompt <= c->n_tokens && c->logits_rms > 0 && c->fair_error > 0 &&
         c->median_row_error > 0);

    n_experts  = (size_t)g->n_moe * c->n_tokens * m->moe.gate.top_k;
    c->ids     = golden_tensor(g, name, "ids", c->n_tokens);
    c->logits  = golden_tensor(g, name, "logits", (size_t)c->n_rows * m->vocab_size);
    c->experts = golden_experts(g, name, n_experts);
    NEED(c->ids != NULL && c->logits != NULL);
    c->expert_weights = golden_tensor(g, name, "expert_weights", n_experts);
    c->hidden =
        golden_tensor(g, name, "hidden", (size_t)(m->n_layers + 1) * c->n_tokens * m->hidden);
    c->latent =
        golden_tensor(g, name, "latent", (size_t)m->n_layers * c->n_tokens * m->mla.kv_lora_rank);
    c->k_rope =
        golden_tensor(g, name, "k_rope", (size_t)m->n_layers * c->n_tokens * m->mla.qk_rope_dim);
}

/* model: "demo", or a folder of tests/models. */
static inline void goldens_open(goldens *g, const char *model)
{
    char        path[640];
    const char *name;
    json_t     *info;

    memset(g, 0, sizeof(*g));
    snprintf(g->model_dir, sizeof(g->model_dir), "%s/%s/%s", BT_SOURCE_DIR,
             strcmp(model, "demo") == 0 ? "models" : "tests/models", model);
    NEED(bt_model_config_read(g->model_dir, &g->cfg) == BT_OK);
    NEED(bt_safetensors_open(g->model_dir, &g->weights) == BT_OK);
    g->n_moe = bt_model_n_moe_layers(&g->cfg);
    snprintf(path, sizeof(path), "%s/tests/fixtures/%s/cases.json", BT_SOURCE_DIR, model);
    g->info = json_load_file(path, 0, NULL);
    NEED(g->info != NULL);
    snprintf(path, sizeof(path), "%s/tests/fixtures/%s/cases.safetensors", BT_SOURCE_DIR, model);
    NEED(bt_safetensors_open(path, &g->tensors) == BT_OK);
    json_object_foreach(g->info, name, info)
    {
        NEED(g->n_cases < MAX_GOLDEN_CASES);
        golden_case_load(g, name, info, &g->cases[g->n_cases++]);
    }
    NEED(g->n_cases > 0);
}

static inline void goldens_close(goldens *g)
{
    for (uint32_t i = 0; i < g->n_cases; i++) {
        golden_case *c = &g->cases[i];

        free(c->ids);
        free(c->experts);
        free(c->logits);
        free(c->hidden);
        free(c->latent);
        free(c->k_rope);
        free(c->expert_weights);
    }
    json_decref(g->info);
    bt_safetensors_close(g->tensors);
    bt_safetensors_close(g->weights);
}

static inline uint32_t argmax(const float *values, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (values[i] > values[best]) best = i;
    return best;
}

/* Root of the mean square of a - b; NaN stays NaN. */
static inline double rms_difference(const float *a, const float *b, size_t n)
{
    double sum = 0.0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];

        sum += d * d;
    }
    return sqrt(sum / (double)n);
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The median of the rows' rms errors; both [n_rows][vocab]. */
static inline double median_of_rows(uint32_t n_rows, const float *got, const float *want,
                                    uint32_t vocab)
{
    double *errors = malloc(n_rows * sizeof(*errors)), median;

    NEED(errors != NULL);
    for (size_t r = 0; r < n_rows; r++)
        errors[r] = rms_difference(got + r * vocab, want + r * vocab, vocab);
    qsort(errors, n_rows, sizeof(*errors), compare_doubles);
    median = (errors[(n_rows - 1) / 2] + errors[n_rows / 2]) / 2;
    free(errors);
    return median;
}

static inline double median_error(const golden_case *c, const float *logits, uint32_t vocab)
{
    return median_of_rows(c->n_rows, logits, c->logits, vocab);
}

/* Over all rows, where rounding alone moves them; where attention is sparse it also moves which
 * positions some rows attend to, which the median row does not see. */
static inline double forced_error(const golden_case *c, const float *logits, uint32_t vocab)
{
    return c->sparse ? median_error(c, logits, vocab)
                     : rms_difference(logits, c->logits, (size_t)c->n_rows * vocab);
}

#endif
