/* Every variant of the study computes the same attention: equal to rounding, to each other and to
 * plain loops in double, on random and on trained weights. */
#include "model/config.h"
#include "model/rows.h"

#include "attention/reference/variants_counted.h"
#include "tests/attention/shapes.h"
#include "tests/attention/study.h"
#include "tests/support/sweep.h"

enum { BATCH = 3 };
static const uint32_t PREFIX[] = {0, 1, 63, 64, 65, 4096};
enum { N_PREFIX = sizeof(PREFIX) / sizeof(PREFIX[0]) };

/* Root mean square of got - want over that of want; NaN in got gives NaN. */
static double distance(const bt_bf16 *got, const float *want, size_t n)
{
    double error = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        double e = (double)bt_bf16_to_f32(got[i]) - want[i];

        error += e * e;
        size += (double)want[i] * want[i];
    }
    return sqrt(error / size);
}

/* A step of `kind` for all requests, in both roles; the worst row's distance from `want`. */
static double run_variant(bt_study *s, bt_variant_kind kind, const bt_mla_config *cfg,
                          const bt_bf16 *x, const float *want)
{
    bt_variant *v     = NULL;
    double      worst = 0;
    bt_bf16    *out   = bt_calloc_aligned((size_t)BATCH * cfg->hidden, sizeof(*out));
    uint64_t    ns[BT_N_STAGES];

    EXPECT_EQ(bt_variant_open(s, kind, &v), BT_OK);
    for (int role = 0; role < BT_N_ROLES; role++) {
        memset(out, 0xff, (size_t)BATCH * cfg->hidden * sizeof(*out));
        bt_alloc_fail_at(0); /* a step that allocates fails */
        EXPECT_EQ(bt_variant_step(v, (bt_role)role, x, out, ns), BT_OK);
        bt_alloc_fail_at(-1);
        for (size_t r = 0; r < BATCH; r++) {
            double d = distance(out + r * cfg->hidden, want + r * cfg->hidden, cfg->hidden);

            worst = d <= worst ? worst : d;
        }
    }
    bt_free(out);
    bt_variant_close(v);
    return worst;
}

/* All variants over all prefixes.  rows: [4096]; x: [BATCH, hidden].  Prefixes above `period`
 * repeat the first rows. */
static void compare_all(const char *name, const bt_mla_config *cfg, const bt_study_weights *w,
                        const bt_bf16 *rows, uint32_t period, const bt_bf16 *x, double tolerance)
{
    bt_device_cpu_options opt   = {.n_threads = 2, .kernels = "auto"};
    bt_device            *dev   = NULL;
    bt_study             *s     = NULL;
    size_t                width = cfg->kv_lora_rank + cfg->qk_rope_dim;
    float                *want  = bt_calloc((size_t)BATCH * cfg->hidden, sizeof(*want));
    bt_bf16              *all   = bt_calloc(4096 * width, sizeof(*all));
    bt_variant_counts     counts;

    for (size_t t = 0; t < 4096; t++)
        memcpy(all + t * width, rows + t % period * width, width * sizeof(*all));
    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    EXPECT_EQ(bt_study_create(dev, cfg, w, BATCH, &s), BT_OK);
    for (int p = 0; p < N_PREFIX; p++) {
        for (size_t r = 0; r < BATCH; r++)
            EXPECT_EQ(bt_variant_counted(BT_VARIANT_FUSED, cfg, w, PREFIX[p], all,
                                         x + r * cfg->hidden, want + r * cfg->hidden, &counts),
                      BT_OK);
        EXPECT_EQ(bt_study_set(s, BATCH, PREFIX[p], period, rows), BT_OK);
        for (int kind = 0; kind < BT_N_VARIANTS; kind++) {
            double worst = run_variant(s, (bt_variant_kind)kind, cfg, x, want);

            if (!(worst <= tolerance))
                fprintf(stderr, "%s, %s, prefix %u: off by %.5f of the rms, allowed %.5f\n", name,
                        bt_variant_name((bt_variant_kind)kind), PREFIX[p], worst, tolerance);
            EXPECT(worst <= tolerance);
        }
    }
    bt_study_destroy(s);
    bt_device_destroy(dev);
    bt_free(all);
    bt_free(want);
}

static void variants_with_random_weights_are_equal(void)
{
    for (int i = 0; i < N_SHAPES; i++) {
        layer_data      *d    = layer_data_new(SHAPES[i].name, &SHAPES[i].cfg);
        bt_study_weights w    = study_weights_new(d);
        bt_bf16         *rows = random_rows(4096, d->cfg.kv_lora_rank + d->cfg.qk_rope_dim, 20);
        bt_bf16         *x    = random_rows(BATCH, d->cfg.hidden, 21);

        compare_all(d->name, &d->cfg, &w, rows, 4096, x, 0.02);
        if (i == SHAPE_GLM) compare_all("rows that repeat", &d->cfg, &w, rows, 128, x, 0.02);
        bt_free(x);
        bt_free(rows);
        study_weights_free(&w);
        layer_data_free(d);
    }
}

/* ---- trained ---- */

static bt_bf16 *tensor_rows(const bt_safetensors *files, const char *name, uint32_t n, uint32_t k)
{
    bt_bf16  *rows = bt_calloc((size_t)n * k, sizeof(*rows));
    bt_matrix m;

    EXPECT_EQ(k == 1 ? bt_vector_find(files, name, n, &m) : bt_matrix_find(files, name, n, k, &m),
              BT_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (k == 1)
            rows[i] = bt_bf16_from_f32(bt_matrix_element(&m, i));
        else
            bt_matrix_row(&m, i, rows + (size_t)i * k);
    }
    return rows;
}

static void normalise(const bt_bf16 *weight, double eps, float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(x[i] / sqrt(sum / (double)n + eps) * bt_bf16_to_f32(weight[i]));
}

/* Layer 0's input for a token, as the model has it: its embedding, normalised. */
static void hidden_of(const bt_model_config *cfg, const bt_bf16 *embedding, const bt_bf16 *norm,
                      uint32_t token, bt_bf16 *x)
{
    float *v = bt_calloc(cfg->hidden, sizeof(*v));

    for (uint32_t i = 0; i < cfg->hidden; i++)
        v[i] = bt_bf16_to_f32(embedding[(size_t)token * cfg->hidden + i]);
    normalise(norm, cfg->rms_norm_eps, v, cfg->hidden);
    for (uint32_t i = 0; i < cfg->hidden; i++)
        x[i] = bt_bf16_from_f32(v[i]);
    bt_free(v);
}

/* The cached row of a token at position t. */
static void latent_of(const bt_mla_config *m, const bt_study_weights *w, const bt_bf16 *x,
                      uint32_t t, bt_bf16 *row)
{
    uint32_t c = m->kv_lora_rank, n = c + m->qk_rope_dim;
    float   *v = bt_calloc(n, sizeof(*v));

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m->hidden; k++)
            v[i] += bt_bf16_to_f32(w->kv_a[(size_t)i * m->hidden + k]) * bt_bf16_to_f32(x[k]);
    normalise(w->kv_a_norm, m->latent_eps, v, c);
    for (uint32_t i = 0; i < m->qk_rope_dim; i += 2) {
        double angle = t * m->rope_inv_freq[i / 2], a = v[c + i], b = v[c + i + 1];

        v[c + i]     = (float)(a * cos(angle) - b * sin(angle));
        v[c + i + 1] = (float)(a * sin(angle) + b * cos(angle));
    }
    for (uint32_t i = 0; i < n; i++)
        row[i] = bt_bf16_from_f32(v[i]);
    bt_free(v);
}

#define ATTN "model.layers.0.self_attn."
static void variants_with_trained_weights_are_equal(void)
{
    enum { PERIOD = 512 };
    bt_model_config      cfg;
    bt_safetensors      *files = NULL;
    bt_study_weights     w;
    bt_bf16             *embedding, *norm, *rows, *x;
    const bt_mla_config *m = &cfg.mla;

    EXPECT_EQ(bt_model_config_read(BT_SOURCE_DIR "/models/demo", &cfg), BT_OK);
    EXPECT_EQ(bt_safetensors_open(BT_SOURCE_DIR "/models/demo", &files), BT_OK);
    w = (bt_study_weights){
        .q         = tensor_rows(files, ATTN "q_b_proj.weight",
                                 m->n_heads * (m->qk_nope_dim + m->qk_rope_dim), m->q_lora_rank),
        .q_a       = tensor_rows(files, ATTN "q_a_proj.weight", m->q_lora_rank, m->hidden),
        .q_a_norm  = tensor_rows(files, ATTN "q_a_layernorm.weight", m->q_lora_rank, 1),
        .kv_a      = tensor_rows(files, ATTN "kv_a_proj_with_mqa.weight",
                                 m->kv_lora_rank + m->qk_rope_dim, m->hidden),
        .kv_a_norm = tensor_rows(files, ATTN "kv_a_layernorm.weight", m->kv_lora_rank, 1),
        .kv_b      = tensor_rows(files, ATTN "kv_b_proj.weight",
                                 m->n_heads * (m->qk_nope_dim + m->v_dim), m->kv_lora_rank),
        .o         = tensor_rows(files, ATTN "o_proj.weight", m->hidden, m->n_heads * m->v_dim)};
    embedding = tensor_rows(files, "model.embed_tokens.weight", cfg.vocab_size, cfg.hidden);
    norm      = tensor_rows(files, "model.layers.0.input_layernorm.weight", cfg.hidden, 1);
    rows      = bt_calloc((size_t)PERIOD * (m->kv_lora_rank + m->qk_rope_dim), sizeof(*rows));
    x         = bt_calloc((size_t)BATCH * m->hidden, sizeof(*x));
    for (uint32_t t = 0; t < PERIOD; t++) {
        hidden_of(&cfg, embedding, norm, hash32(t) % cfg.vocab_size, x);
        latent_of(m, &w, x, t, rows + (size_t)t * (m->kv_lora_rank + m->qk_rope_dim));
    }
    for (uint32_t r = 0; r < BATCH; r++)
        hidden_of(&cfg, embedding, norm, 300 + r, x + (size_t)r * m->hidden);
    compare_all("demo, trained", m, &w, rows, PERIOD, x, 0.02);
    bt_free(x);
    bt_free(rows);
    bt_free(norm);
    bt_free(embedding);
    study_weights_free(&w);
    bt_safetensors_close(files);
}

/* ---- memory and refusals ---- */

static bt_status study_of_every_kind(bt_device *dev, const bt_mla_config *cfg,
                                     const bt_study_weights *w, const bt_bf16 *rows)
{
    bt_study *s = NULL;
    bt_status st;

    BT_TRY(bt_study_create(dev, cfg, w, 2, &s));
    BT_TRY(bt_study_set(s, 2, 70, 70, rows));
    for (int kind = 0; kind < BT_N_VARIANTS; kind++) {
        bt_variant *v = NULL;

        BT_TRY(bt_variant_open(s, (bt_variant_kind)kind, &v));
        bt_variant_close(v);
    }
out:
    bt_study_destroy(s);
    return st;
}

static void study_unwinds_at_every_allocation(void)
{
    layer_data           *d    = layer_data_new("glm-flash", &SHAPES[SHAPE_GLM].cfg);
    bt_study_weights      w    = study_weights_new(d);
    bt_bf16              *rows = random_rows(70, d->cfg.kv_lora_rank + d->cfg.qk_rope_dim, 22);
    bt_device_cpu_options opt  = {.n_threads = 2, .kernels = "auto"};
    bt_device            *dev  = NULL;

    d->cfg.max_context = 128;
    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    EXPECT(BT_SWEEP(study_of_every_kind(dev, &d->cfg, &w, rows), (void)0) >= 60);
    bt_device_destroy(dev);
    bt_free(rows);
    study_weights_free(&w);
    layer_data_free(d);
}

static void study_refuses_requests_that_it_cannot_hold(void)
{
    layer_data           *d    = layer_data_new("glm-flash", &SHAPES[SHAPE_GLM].cfg);
    bt_study_weights      w    = study_weights_new(d);
    bt_bf16              *rows = random_rows(70, d->cfg.kv_lora_rank + d->cfg.qk_rope_dim, 23);
    bt_device_cpu_options opt  = {.n_threads = 1, .kernels = "auto"};
    bt_device            *dev  = NULL;
    bt_study             *s    = NULL;
    bt_variant           *v    = NULL;

    d->cfg.max_context = 128;
    EXPECT_EQ(bt_device_cpu_create(&opt, &dev), BT_OK);
    EXPECT_EQ(bt_study_create(dev, &d->cfg, &w, 0, &s), BT_ERR_INVALID_ARG);
    EXPECT_EQ(bt_study_create(dev, &d->cfg, &w, 2, &s), BT_OK);
    EXPECT_EQ(bt_variant_open(s, BT_VARIANT_CD, &v), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "no requests");
    EXPECT_EQ(bt_study_set(s, 3, 10, 10, rows), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "it holds 1 to 2");
    EXPECT_EQ(bt_study_set(s, 1, 128, 64, rows), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "context 128");
    EXPECT_EQ(bt_study_set(s, 1, 127, 70, rows), BT_ERR_INVALID_ARG);
    EXPECT_HAS(bt_error_text(), "multiple of 64");
    EXPECT(bt_variant_bytes(s, BT_VARIANT_CD, 2, 127) > bt_variant_bytes(s, BT_VARIANT_CD, 1, 127));
    EXPECT_EQ(bt_study_set_bytes(s, 2, 64), 2 * 2 * 64 * 80 * sizeof(bt_bf16));
    bt_study_destroy(s);
    bt_device_destroy(dev);
    bt_free(rows);
    study_weights_free(&w);
    layer_data_free(d);
}

int main(int argc, char **argv)
{
    static const bt_test TESTS[] = {
        BT_TEST(variants_with_random_weights_are_equal),
        BT_TEST(variants_with_trained_weights_are_equal),
        BT_TEST(study_unwinds_at_every_allocation),
        BT_TEST(study_refuses_requests_that_it_cannot_hold),
    };

    bt_log_init("test", BT_LOG_ERROR);
    return BT_RUN_TESTS(TESTS, argc > 1 ? argv[1] : NULL);
}
