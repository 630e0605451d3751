#include "tools/profile/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attention/variants/variants.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/machine.h"
#include "device/cpu/kernels.h"
#include "device/cpu/roofs.h"
#include "tools/profile/cores.h"

enum {
    PERIOD      = 512,
    MIN_ROUNDS  = 3,
    FAR_BEHIND  = 3,       /* times the fused kernel's step: no more rounds than MIN_ROUNDS */
    CACHE_BYTES = 64 << 20 /* where the system does not say */
};

/* After the stages: their sum, that without append, and CPU time. */
enum { WHOLE = BT_N_STAGES, BARE, CPU, N_SERIES };

/* Everything of a run.  Variants are opened for a point and closed after it. */
typedef struct {
    const bt_profile_model   *model;
    const bt_measure_options *opt;
    bt_measurement           *m;
    bt_device                *dev;
    bt_study                 *study;
    bt_study_weights          w; /* owned */
    bt_bf16                  *rows, *x, *out[BT_N_VARIANTS];
    char                     *other; /* owned: [other_bytes], what fills the caches before a step */
    size_t                    other_bytes; /* whole pieces to read */
    bt_variant               *open[BT_N_VARIANTS];
    uint32_t                  max_batch;
    bool                      merged; /* the study has AM_CC_ME's matrices, and keeps them */
    double                    seconds_each;
    double                    samples[BT_N_VARIANTS][N_SERIES][BT_PROFILE_MAX_ROUNDS];
} run;

/* In which they are opened: fused needs nothing of its own, and the others are compared with it. */
static const bt_variant_kind ORDER[BT_N_VARIANTS] = {BT_VARIANT_FUSED, BT_VARIANT_A_CC_ME,
                                                     BT_VARIANT_CD,    BT_VARIANT_CC,
                                                     BT_VARIANT_A_CC,  BT_VARIANT_AM_CC_ME};

/* ---- random weights ---- */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Uniform in +-size, four from each number. */
static bt_bf16 *random_bf16(size_t n, float size, uint64_t seed)
{
    bt_bf16 *v     = bt_calloc_aligned(n + 4, sizeof(*v));
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;

    for (size_t i = 0; v != NULL && i < n; i += 4) {
        uint64_t r = next_random(&state);

        for (size_t j = 0; j < 4; j++)
            v[i + j] = bt_bf16_from_f32((float)(int16_t)(r >> 16 * j) * (size / 32768.0f));
    }
    return v;
}

static bt_status create_weights(run *r)
{
    bt_status            st = BT_OK;
    const bt_mla_config *c  = &r->model->mla;
    size_t h = c->hidden, low = c->q_lora_rank, q_in = low != 0 ? low : h, n = c->n_heads;
    size_t width = c->kv_lora_rank + c->qk_rope_dim;
    float  to_h = sqrtf(3.0f / (float)h), to_c = sqrtf(3.0f / (float)c->kv_lora_rank);

    r->w.q =
        random_bf16(n * (c->qk_nope_dim + c->qk_rope_dim) * q_in, sqrtf(3.0f / (float)q_in), 1);
    r->w.q_a       = low != 0 ? random_bf16(low * h, to_h, 2) : NULL;
    r->w.q_a_norm  = low != 0 ? random_bf16(low, 1.7f, 3) : NULL;
    r->w.kv_a      = random_bf16(width * h, to_h, 4);
    r->w.kv_a_norm = random_bf16(c->kv_lora_rank, 1.7f, 5);
    r->w.kv_b      = random_bf16(n * (c->qk_nope_dim + c->v_dim) * c->kv_lora_rank, to_c, 6);
    r->w.o         = random_bf16(h * n * c->v_dim, sqrtf(3.0f / (float)(n * c->v_dim)), 7);
    r->rows        = random_bf16(PERIOD * width, 1.7f, 8);
    r->x           = random_bf16(r->max_batch * h, 1.7f, 9);
    BT_REQUIRE(r->w.q != NULL && (low == 0 || (r->w.q_a != NULL && r->w.q_a_norm != NULL)) &&
                   r->w.kv_a != NULL && r->w.kv_a_norm != NULL && r->w.kv_b != NULL &&
                   r->w.o != NULL && r->rows != NULL && r->x != NULL,
               BT_ERR_NO_MEMORY, "random weights of a layer");
    for (int i = 0; i < BT_N_VARIANTS; i++) {
        r->out[i] = bt_calloc_aligned(r->max_batch * h, sizeof(bt_bf16));
        BT_REQUIRE(r->out[i] != NULL, BT_ERR_NO_MEMORY, "outputs of %u requests", r->max_batch);
    }
out:
    return st;
}

static void free_all(run *r)
{
    const bt_bf16 *mem[] = {r->w.q,    r->w.q_a, r->w.q_a_norm, r->w.kv_a, r->w.kv_a_norm,
                            r->w.kv_b, r->w.o,   r->rows,       r->x};

    bt_study_destroy(r->study);
    bt_device_destroy(r->dev);
    bt_free(r->other);
    for (size_t i = 0; i < sizeof(mem) / sizeof(mem[0]); i++)
        bt_free((void *)(uintptr_t)mem[i]);
    for (int i = 0; i < BT_N_VARIANTS; i++)
        bt_free(r->out[i]);
}

/* ---- a point ---- */

static double free_bytes(void)
{
    bt_machine machine;

    bt_machine_look(&machine);
    return 0.9 * (double)machine.free_bytes;
}

/* A guess, on the careful side. */
static double guess_s(const run *r, bt_variant_kind kind, const bt_measured *p)
{
    bt_variant_account a = bt_variant_account_of(kind, &r->model->mla);

    return 2.5 * bt_roof_step_s(&r->m->roof, &a, p->batch, p->n_keys) +
           p->batch * (double)p->n_keys * (double)a.moved_bytes / r->m->roof.bytes_per_s;
}

static bool takes_too_long(const run *r, bt_variant_kind kind, const bt_measured *p)
{
    return guess_s(r, kind, p) * MIN_ROUNDS > r->seconds_each / 2;
}

static bt_status open_variant(run *r, bt_variant_kind kind, bt_measured *p)
{
    bt_status st    = BT_OK;
    bt_point *at    = &p->of[kind];
    double    bytes = (double)bt_variant_bytes(r->study, kind, p->batch, p->n_keys - 1);

    if (kind == BT_VARIANT_AM_CC_ME && !r->merged)
        bytes += (double)bt_study_merge_bytes(&r->model->mla);
    at->needs = guess_s(r, kind, p);
    at->state = BT_POINT_TOO_LONG;
    if (takes_too_long(r, kind, p)) return BT_OK;
    if (3 * bytes / r->m->roof.bytes_per_s > 2 * r->seconds_each && bytes <= free_bytes())
        return BT_OK; /* to fill its cache would take longer than to measure it */
    at->state = BT_POINT_NO_MEMORY;
    at->needs = bytes;
    if (bytes > free_bytes()) return BT_OK;
    BT_TRY(bt_variant_open(r->study, kind, &r->open[kind]));
    r->merged = r->merged || kind == BT_VARIANT_AM_CC_ME;
    at->state = BT_POINT_DONE;
out:
    return st;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double distance(const bt_bf16 *a, const bt_bf16 *b, size_t n)
{
    double error = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        double x = bt_bf16_to_f32(a[i]), y = bt_bf16_to_f32(b[i]);

        error += (x - y) * (x - y);
        size += y * y;
    }
    return sqrt(error / size);
}

/* As much as the caches hold, but no more than the model's weights. */
static bt_status create_sweep(run *r)
{
    bt_status               st = BT_OK;
    const bt_profile_model *m  = r->model;
    long     l2 = sysconf(_SC_LEVEL2_CACHE_SIZE), l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t caches  = l3 > 0 ? (uint64_t)l3 + (l2 > 0 ? r->m->n_threads * (uint64_t)l2 : 0) : 0;
    uint64_t weights = 2 * (m->attention_params + m->expert_params + m->other_params);
    uint64_t bytes   = caches > 0 ? caches : CACHE_BYTES;

    if (weights < bytes) bytes = weights;
    r->other_bytes = bytes / BT_ROOF_PIECE * BT_ROOF_PIECE;
    r->other       = bt_calloc_aligned(r->other_bytes + 1, 1);
    BT_REQUIRE(r->other != NULL, BT_ERR_NO_MEMORY, "%zu bytes to fill the caches with",
               r->other_bytes);
    memset(r->other, 1, r->other_bytes); /* else it might be one page of zeros */
out:
    return st;
}

static bt_status step_once(run *r, bt_variant_kind kind, bt_point *at)
{
    bt_status st = BT_OK;
    uint64_t  ns[BT_N_STAGES];
    uint64_t  cpu_ns;
    double    sum                           = 0;
    double(*samples)[BT_PROFILE_MAX_ROUNDS] = r->samples[kind];

    bt_roof_read_by(bt_device_cpu_pool(r->dev), r->other, r->other_bytes);
    cpu_ns = bt_cpu_pool_cpu_ns(bt_device_cpu_pool(r->dev));
    BT_TRY(bt_variant_step(r->open[kind], BT_ROLE_GENERATED, r->x, r->out[kind], ns));
    cpu_ns                     = bt_cpu_pool_cpu_ns(bt_device_cpu_pool(r->dev)) - cpu_ns;
    samples[CPU][at->n_rounds] = (double)cpu_ns * 1e-9;
    for (int s = 0; s < BT_N_STAGES; s++) {
        samples[s][at->n_rounds] = (double)ns[s] * 1e-9;
        sum += samples[s][at->n_rounds];
    }
    samples[WHOLE][at->n_rounds] = sum;
    samples[BARE][at->n_rounds]  = sum - samples[BT_STAGE_APPEND][at->n_rounds];
    at->n_rounds++;
out:
    return st;
}

/* By their fastest steps, since any other may have met with something else. */
static bool far_behind(const run *r, bt_variant_kind kind, const bt_measured *p)
{
    double   fastest = INFINITY, fused = INFINITY;
    uint32_t n = p->of[kind].n_rounds;

    for (uint32_t i = 0; i < n; i++) {
        fastest = fmin(fastest, r->samples[kind][WHOLE][i]);
        fused   = fmin(fused, r->samples[BT_VARIANT_FUSED][WHOLE][i]);
    }
    return n >= MIN_ROUNDS && fastest > FAR_BEHIND * fused;
}

static void shuffle(bt_variant_kind order[BT_N_VARIANTS], uint64_t *state)
{
    for (uint32_t i = BT_N_VARIANTS - 1; i > 0; i--) {
        uint32_t        j    = (uint32_t)(next_random(state) >> 32) % (i + 1);
        bt_variant_kind kind = order[i];

        order[i] = order[j];
        order[j] = kind;
    }
}

/* The first round warms up and is not kept, where there is time for another. */
static bt_status run_rounds(run *r, bt_measured *p)
{
    bt_status       st    = BT_OK;
    uint64_t        start = bt_now_ns(), random = 0x9e3779b97f4a7c15ull;
    double          spent = 0, last = 0;
    bt_variant_kind order[BT_N_VARIANTS];

    memcpy(order, ORDER, sizeof(order));
    for (uint32_t round = 0; round <= BT_PROFILE_MAX_ROUNDS; round++) {
        shuffle(order, &random);
        for (uint32_t i = 0; i < BT_N_VARIANTS; i++) {
            bt_variant_kind kind = order[i];

            if (r->open[kind] != NULL && !far_behind(r, kind, p))
                BT_TRY(step_once(r, kind, &p->of[kind]));
        }
        last  = (double)(bt_now_ns() - start) * 1e-9 - spent;
        spent = spent + last;
        if (round == 0) {
            for (int i = 0; i < BT_N_VARIANTS; i++)
                p->of[i].n_rounds = 0;
        }
        if (round >= MIN_ROUNDS && spent + last > r->seconds_each) break;
    }
out:
    return st;
}

/* Medians sort: this one goes first.  The number of ratios below their true median is binomial, of
 * n and 1/2: with 95 % within 1.96 deviations, sqrt(n) / 2 each, of n / 2. */
static bt_ratio over_fused(const run *r, int kind, int series, uint32_t n)
{
    double   ratios[BT_PROFILE_MAX_ROUNDS];
    double   below = floor((n - 1.96 * sqrt(n)) / 2) - 1;
    uint32_t low   = below > 0 ? (uint32_t)below : 0;
    bt_ratio ratio;

    for (uint32_t i = 0; i < n; i++)
        ratios[i] = r->samples[kind][series][i] / r->samples[BT_VARIANT_FUSED][series][i];
    ratio.median = median(ratios, n);
    ratio.low    = ratios[low];
    ratio.high   = ratios[n - 1 - low];
    return ratio;
}

static void conclude(run *r, bt_measured *p)
{
    size_t n = (size_t)p->batch * r->model->mla.hidden;

    for (int kind = 0; kind < BT_N_VARIANTS; kind++) {
        bt_point *at = &p->of[kind];

        if (at->state != BT_POINT_DONE) continue;
        at->over_fused     = over_fused(r, kind, WHOLE, at->n_rounds);
        at->cpu_over_fused = over_fused(r, kind, CPU, at->n_rounds);
    }
    for (int kind = 0; kind < BT_N_VARIANTS; kind++) {
        bt_point *at = &p->of[kind];

        if (at->state != BT_POINT_DONE) continue;
        for (int s = 0; s < BT_N_STAGES; s++)
            at->stage_s[s] = median(r->samples[kind][s], at->n_rounds);
        at->step_s    = median(r->samples[kind][WHOLE], at->n_rounds);
        at->bare_s    = median(r->samples[kind][BARE], at->n_rounds);
        at->cpu_s     = median(r->samples[kind][CPU], at->n_rounds);
        at->fastest_s = r->samples[kind][WHOLE][0]; /* sorted */
        at->distance  = distance(r->out[kind], r->out[BT_VARIANT_FUSED], n);
    }
}

static bt_status run_point(run *r, bt_measured *p)
{
    bt_status st    = BT_OK;
    double    pages = (double)bt_study_set_bytes(r->study, p->batch, p->n_keys - 1);

    for (int i = 0; i < BT_N_VARIANTS; i++)
        p->of[i] = (bt_point){.state = BT_POINT_NO_MEMORY, .needs = pages};
    if (pages > free_bytes()) return BT_OK;
    if (takes_too_long(r, BT_VARIANT_FUSED, p)) { /* then all of them do: fill no pages */
        for (int i = 0; i < BT_N_VARIANTS; i++)
            p->of[i] = (bt_point){BT_POINT_TOO_LONG, .needs = guess_s(r, (bt_variant_kind)i, p)};
        return BT_OK;
    }
    BT_TRY(bt_study_set(r->study, p->batch, p->n_keys - 1, PERIOD, r->rows));
    for (int i = 0; i < BT_N_VARIANTS; i++) {
        if (r->opt->left_out[ORDER[i]])
            p->of[ORDER[i]] = (bt_point){.state = BT_POINT_LEFT_OUT};
        else
            BT_TRY(open_variant(r, ORDER[i], p));
    }
    BT_TRY(run_rounds(r, p));
    conclude(r, p);
out:
    for (int i = 0; i < BT_N_VARIANTS; i++) {
        bt_variant_close(r->open[i]);
        r->open[i] = NULL;
    }
    return st;
}

/* ---- all of it ---- */

static uint32_t largest(const uint32_t *list, uint32_t n)
{
    uint32_t max = 0;

    for (uint32_t i = 0; i < n; i++)
        max = list[i] > max ? list[i] : max;
    return max;
}

/* Raw and packed weights; kv_b packed twice. */
static double weights_bytes(const bt_mla_config *cfg)
{
    return 3.0 * (double)bt_variant_account_of(BT_VARIANT_FUSED, cfg).weight_bytes;
}

static bt_status prepare(run *r)
{
    bt_status             st  = BT_OK;
    bt_mla_config         cfg = r->model->mla;
    bt_device_cpu_options dev = {.n_threads = r->opt->n_threads, .kernels = r->opt->kernels};

    r->max_batch    = largest(r->opt->batches, r->opt->n_batches);
    cfg.max_context = largest(r->opt->contexts, r->opt->n_contexts);
    if (r->opt->progress != NULL) r->opt->progress("measuring the roof of this machine");
    BT_TRY(bt_device_cpu_create(&dev, &r->dev));
    snprintf(r->m->kernels, sizeof(r->m->kernels), "%s", bt_device_cpu_table(r->dev)->name);
    r->m->n_threads = bt_cpu_pool_n_threads(bt_device_cpu_pool(r->dev));
    bt_cores_keep(bt_device_cpu_pool(r->dev));
    BT_TRY(bt_roof_measure(r->dev, r->m->kernels, &r->m->roof));
    BT_REQUIRE(weights_bytes(&cfg) < free_bytes(), BT_ERR_NO_MEMORY,
               "a layer of %s takes %.1f GB here and %.1f GB are free: try --like v2-lite, or "
               "--analysis, which needs none",
               r->model->name, weights_bytes(&cfg) / 1e9, free_bytes() / 1e9);
    if (r->opt->progress != NULL) r->opt->progress("making a layer with random weights");
    BT_TRY(create_weights(r));
    BT_TRY(create_sweep(r));
    BT_TRY(bt_study_create(r->dev, &cfg, &r->w, r->max_batch, &r->study));
out:
    return st;
}

bt_status bt_measure(const bt_profile_model *model, const bt_measure_options *opt,
                     bt_measurement *m)
{
    bt_status st    = BT_OK;
    uint64_t  start = bt_now_ns();
    run      *r     = bt_calloc(1, sizeof(*r));
    char      text[96];

    memset(m, 0, sizeof(*m));
    BT_REQUIRE(r != NULL, BT_ERR_NO_MEMORY, "measurement");
    r->model        = model;
    r->opt          = opt;
    r->m            = m;
    r->seconds_each = opt->seconds / (double)(opt->n_batches * opt->n_contexts);
    BT_TRY(prepare(r));
    for (uint32_t b = 0; b < opt->n_batches; b++) {
        for (uint32_t c = 0; c < opt->n_contexts; c++) {
            bt_measured *p = &m->points[m->n_points];

            *p = (bt_measured){.batch = opt->batches[b], .n_keys = opt->contexts[c]};
            snprintf(text, sizeof(text), "batch %u, context %u", p->batch, p->n_keys);
            if (opt->progress != NULL) opt->progress(text);
            BT_TRY(run_point(r, p));
            m->n_points++;
        }
    }
    BT_TRY(bt_roof_measure(r->dev, m->kernels, &m->roof));
    for (uint32_t i = 0; i < m->n_points; i++)
        for (int kind = 0; kind < BT_N_VARIANTS; kind++) {
            bt_variant_account a = bt_variant_account_of((bt_variant_kind)kind, &model->mla);

            m->points[i].of[kind].roof_s =
                bt_roof_step_s(&m->roof, &a, m->points[i].batch, m->points[i].n_keys);
        }
    m->wall_s = (double)(bt_now_ns() - start) * 1e-9;
out:
    if (r != NULL) free_all(r);
    bt_free(r);
    return st;
}

int bt_measured_best(const bt_measured *p, bool by_cpu_time)
{
    int    best  = BT_N_VARIANTS;
    double least = INFINITY;

    for (int i = 0; i < BT_VARIANT_FUSED; i++) {
        double s = by_cpu_time ? p->of[i].cpu_over_fused.median : p->of[i].over_fused.median;

        if (p->of[i].state != BT_POINT_DONE || s >= least) continue;
        least = s;
        best  = i;
    }
    return best;
}
