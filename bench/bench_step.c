/* bench/bench_step.c - steps of a whole model in one process, against this machine's own roofs.
 *
 *     baton synth --like v2-lite --layers 4 --mtp 1 DIR
 *     bench_step DIR [threads [rounds [case]]]
 *
 * Cases: prompts in chunks, and decode steps of a batch at a context, also with drafts
 * (worker/draft.h: several rows of a request); random tokens, so that rows choose their experts
 * apart.  Of a model with a layer for multi-token prediction also steps behind which that drafts
 * (worker/mtp.c).  For each: milliseconds by the wall's clock and in CPU time a thread, the least
 * bytes (weights that the step needs, each once, by the experts that were chosen, or all of them
 * for a prompt; latents in context) and operations of the work, and the share of the roof,
 * max(bytes / read bandwidth, operations / multiply rate) / time, both ways; the roofs are measured
 * before each case, on the same threads.  Weights in bf16 count as two bytes, also where they are
 * packed in 12 bits, as for all cases but prompts (model/weights.h): so a share can be above 1.
 * Cases take turns, and medians count.  The time and the peak memory of loading are printed
 * first. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "bench/need.h"
#include "bench/stats.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "device/cpu/kernels.h"
#include "device/cpu/roofs.h"
#include "model/model.h"

enum {
    MAX_ROWS   = 2048,
    MAX_BATCH  = 32,
    MAX_LOGITS = MAX_BATCH,
    MAX_ROUNDS = 31,
    CONTEXT    = 1024,
    READ_BYTES = 512 << 20,
    PEAK_TURNS = 100000, /* some 10 ms: clocks of threads, and waking them, do not count */
    STEPS      = 4       /* of a decode sample */
};

typedef struct {
    const char *name;
    uint32_t    n_tokens, chunk; /* a prompt; or */
    uint32_t    batch, context;  /* decode, */
    uint32_t    n_draft;         /* each request with rows of a draft, */
    uint32_t    n_mtp; /* and behind the step it drafts so many; a prompt: its rows' pages fill */
} bench_case;

static const bench_case CASES[] = {
    {"prefill 512, chunk 512",        512,  512,  0,  0,       0,  0},
    {"prefill 2048, chunk 512",       2048, 512,  0,  0,       0,  0},
    {"prefill 2048, chunk 2048",      2048, 2048, 0,  0,       0,  0},
    {"decode batch 1, context 16",    0,    0,    1,  16,      0,  0},
    {"decode batch 1, context 1024",  0,    0,    1,  CONTEXT, 0,  0},
    {"decode batch 1, context 8191",  0,    0,    1,  8191,    0,  0},
    {"decode batch 8, context 1024",  0,    0,    8,  CONTEXT, 0,  0},
    {"decode batch 32, context 1024", 0,    0,    32, CONTEXT, 0,  0},
    {"the first with a draft of 1",   0,    0,    1,  16,      1,  0},
    {"the first with a draft of 2",   0,    0,    1,  16,      2,  0},
    {"the first with a draft of 4",   0,    0,    1,  16,      4,  0},
    {"the first with a draft of 8",   0,    0,    1,  16,      8,  0},
    {"the first with a draft of 15",  0,    0,    1,  16,      15, 0},
    {"four with drafts of 3",         0,    0,    4,  CONTEXT, 3,  0},
    {"four without",                  0,    0,    4,  CONTEXT, 0,  0},
    {"prefill 2048 with --mtp",       2048, 2048, 0,  0,       0,  1},
    {"the first with --mtp 1",        0,    0,    1,  16,      1,  1},
    {"the first with --mtp 2",        0,    0,    1,  16,      2,  2},
    {"the first with --mtp 3",        0,    0,    1,  16,      3,  3},
    {"eight with --mtp 1",            0,    0,    8,  CONTEXT, 1,  1},
};
enum { N_CASES = sizeof(CASES) / sizeof(CASES[0]) };

typedef struct {
    bt_model_config cfg;
    bt_device      *dev;
    bt_kv_pool     *pool;
    bt_model       *models[2], *model; /* of prompts, and of few rows; and that of the case */
    bt_group       *group;
    bt_placement    placement;
    uint32_t        n_threads, n_moe;
    bt_page_id     *pages;
    uint32_t        tokens[MAX_ROWS];
    uint16_t       *chosen;
    float          *logits;
    char           *memory; /* for the read roof */
    double          bytes, ops;
} bench;

typedef struct {
    double wall, cpu; /* seconds; CPU: a thread's share */
} cost;

static cost now(const bench *b)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (cost){(double)bt_now_ns() * 1e-9,
                  ((double)t.tv_sec + (double)t.tv_nsec * 1e-9) / b->n_threads};
}
static cost since(const bench *b, cost from)
{
    cost t = now(b);

    return (cost){t.wall - from.wall, t.cpu - from.cpu};
}

/* ---- roofs ---- */

typedef struct {
    cost read, multiply; /* of a byte, of an operation */
} roofs;

static roofs measure_roofs(bench *b)
{
    bt_cpu_pool *pool = bt_device_cpu_pool(b->dev);
    double       ops;
    cost         from = now(b), t;
    roofs        r;

    bt_roof_read_by(pool, b->memory, READ_BYTES);
    t      = since(b, from);
    r.read = (cost){t.wall / READ_BYTES, t.cpu / READ_BYTES};
    from   = now(b);
    ops =
        bt_roof_multiply_by(pool, 4 * b->n_threads, bt_device_cpu_table(b->dev)->name, PEAK_TURNS);
    t          = since(b, from);
    r.multiply = (cost){t.wall / ops, t.cpu / ops};
    return r;
}

/* ---- what the work is at least ---- */

/* Weight elements of a layer's attention: that a row meets to fill its page, to be expanded, and to
 * attend. */
static double latent_weights(const bt_mla_config *m)
{
    return (double)(m->kv_lora_rank + m->qk_rope_dim) * m->hidden;
}
static double expansion_weights(const bt_mla_config *m)
{
    return (double)m->n_heads * (m->qk_nope_dim + m->v_dim) * m->kv_lora_rank;
}
static double query_weights(const bt_mla_config *m)
{
    double h = m->hidden, n = m->n_heads, width = m->qk_nope_dim + m->qk_rope_dim;
    double q = m->q_lora_rank != 0 ? m->q_lora_rank * (h + n * width) : n * width * h;

    return q + n * m->v_dim * h;
}

/* Bytes of a weight that is e4m3 where the model is: not of gate, expansion and head. */
static double weight_bytes(const bench *b) { return b->cfg.fp8 ? 1 : sizeof(bt_bf16); }
static double expert_weight_bytes(const bench *b) { return b->cfg.int4 ? 0.5 : weight_bytes(b); }

static uint32_t unique_experts(const bench *b, uint32_t layer, uint32_t n_rows)
{
    uint32_t k = b->cfg.moe.gate.top_k, n = 0;
    bool     seen[1024] = {false};

    for (size_t i = 0; i < (size_t)n_rows * k; i++) {
        uint16_t e = b->chosen[(size_t)layer * n_rows * k + i];

        n += !seen[e];
        seen[e] = true;
    }
    return n;
}

/* What rows of a step do in one layer: all fill their pages, of `rows` that go on each attends, in
 * `pairs` with a key, and `expanded` latents become keys and values.  Where attention is sparse
 * `choosers` of the rows score `scored` keys in all, and attend to index_topk of them. */
typedef struct {
    double filled, rows, pairs, expanded, context, choosers, scored;
    bool   prompt;
} layer_work;

/* The pairs of n rows from position `start` on, times so many requests. */
static void count_pairs(const bench *b, double start, double n, double times, layer_work *w)
{
    double topk = b->cfg.mla.index_topk != 0 ? b->cfg.mla.index_topk : HUGE_VAL, end = start + n;
    double a = fmin(start, topk), e = fmin(end, topk), c = fmax(start, topk);

    w->pairs = times * (e * (e + 1) - a * (a + 1)) / 2;
    if (end <= topk) return;
    w->choosers = times * (end - c);
    w->scored   = times * (end * (end + 1) - c * (c + 1)) / 2;
}

/* What sparse attention adds to a layer: keys of all rows; queries and weights of those that
 * choose, whose pairs are in the absorbed form. */
static void count_index(bench *b, uint32_t layer, const layer_work *w)
{
    const bt_mla_config *m   = &b->cfg.mla;
    double               key = (double)m->index_dim * m->hidden;
    double query = (double)m->index_heads * m->index_dim * m->q_lora_rank, head = m->index_heads;

    b->ops +=
        2 * w->choosers * m->index_topk * m->n_heads * (2.0 * m->kv_lora_rank + m->qk_rope_dim);
    if (!bt_model_layer_has_indexer(&b->cfg, layer)) return;
    b->ops += 2 * w->filled * key;
    b->bytes += weight_bytes(b) * key;
    if (w->choosers == 0) return;
    b->ops += 2 * w->choosers * (query + head * m->hidden) + 2 * w->scored * head * m->index_dim;
    b->bytes += weight_bytes(b) * query + 2 * head * m->hidden + 2 * w->context * m->index_dim;
}

static void count_layer(bench *b, uint32_t layer, double unique, const layer_work *w)
{
    const bt_mla_config *m      = &b->cfg.mla;
    double               h      = b->cfg.hidden;
    double               expert = 3.0 * h * b->cfg.moe.expert_dim;
    double               width  = w->prompt ? m->qk_nope_dim + m->qk_rope_dim + m->v_dim
                                            : 2.0 * m->kv_lora_rank + m->qk_rope_dim;
    double               on     = query_weights(m); /* weights for rows that go on */
    double               latents =
        w->choosers != 0 && !w->prompt ? fmin(w->context, w->rows * m->index_topk) : w->context;

    b->ops += 2 * w->filled * latent_weights(m);
    b->bytes += weight_bytes(b) * latent_weights(m);
    b->bytes += 2 * latents * (m->kv_lora_rank + m->qk_rope_dim);
    count_index(b, layer, w);
    if (w->rows == 0) return;
    if (bt_model_layer_is_moe(&b->cfg, layer)) {
        on += 3.0 * h * b->cfg.moe.shared_dim;
        b->ops += 2 * w->rows * h * b->cfg.moe.gate.n_experts;
        b->bytes += 2 * h * b->cfg.moe.gate.n_experts;
        b->ops += 2 * w->rows * b->cfg.moe.gate.top_k * expert;
        b->bytes += expert_weight_bytes(b) * unique * expert;
    } else {
        on += 3.0 * h * b->cfg.dense_dim;
    }
    b->ops += 2 * w->rows * on + 2 * w->expanded * expansion_weights(m) +
              2 * w->pairs * m->n_heads * width;
    b->bytes += weight_bytes(b) * on + 2 * expansion_weights(m);
}

/* A piece of a prompt that begins at `start`; in the last layer the row with logits alone goes on.
 */
static void count_piece(bench *b, uint32_t n_rows, uint32_t start, bool ends, bool mtp)
{
    double     rows = n_rows, context = start + rows, all = b->cfg.moe.gate.n_experts;
    layer_work w = {
        .filled = rows, .rows = rows, .expanded = rows, .context = context, .prompt = true};
    layer_work last = {.filled   = rows,
                       .rows     = ends,
                       .expanded = ends * context,
                       .context  = ends ? context : rows,
                       .prompt   = true};

    count_pairs(b, start, rows, 1, &w);
    if (ends) count_pairs(b, context - 1, 1, 1, &last);
    for (uint32_t layer = 0; layer + 1 < b->cfg.n_layers; layer++)
        count_layer(b, layer, all, &w);
    if (mtp) /* which needs what the last layer makes of each row */
        count_layer(b, b->cfg.n_layers - 1, all, &w);
    else
        count_layer(b, b->cfg.n_layers - 1, b->cfg.moe.gate.top_k, &last);
}

static void count_decode(bench *b, const bench_case *c, uint32_t n_rows)
{
    double     rows = n_rows, context = c->context + 1 + c->n_draft;
    layer_work w = {.filled = rows, .rows = rows, .expanded = rows, .context = c->batch * context};

    count_pairs(b, c->context, 1 + c->n_draft, c->batch, &w);
    for (uint32_t layer = 0, moe = 0; layer < b->cfg.n_layers; layer++)
        count_layer(b, layer,
                    bt_model_layer_is_moe(&b->cfg, layer) ? unique_experts(b, moe++, n_rows) : 0,
                    &w);
}

/* The layer that drafts: n_rows fill its pages, the last of each request goes on. */
static void count_mtp(bench *b, const bench_case *c, uint32_t n_rows, uint32_t start)
{
    double     h = b->cfg.hidden, rows = n_rows, batch = c->batch;
    double     end = start + rows / fmax(batch, 1);
    layer_work w   = {.filled = rows, .rows = batch, .expanded = batch, .context = batch * end};

    count_pairs(b, end - 1, 1, batch, &w);
    count_layer(b, b->cfg.n_layers, fmin(batch * b->cfg.moe.gate.top_k, b->cfg.moe.gate.n_experts),
                &w);
    b->bytes += sizeof(bt_bf16) * 2 * h * h;
    b->ops += 2 * rows * 2 * h * h;
}

static void count_head(bench *b, uint32_t n_rows)
{
    b->bytes += 2.0 * b->cfg.vocab_size * b->cfg.hidden;
    b->ops += 2.0 * n_rows * b->cfg.vocab_size * b->cfg.hidden;
}

/* ---- steps ---- */

typedef enum { ALONE, WITH_MTP, MTP } step_kind; /* MTP: what drafts behind one WITH_MTP */

static void run_step(bench *b, uint32_t n_rows, uint32_t n_spans, const bt_span *spans,
                     uint32_t n_logits, const uint32_t *logit_rows, step_kind kind)
{
    bool           prompt              = spans[0].role == BT_ROLE_PROMPT;
    const uint32_t rows[1][BT_N_ROLES] = {
        {prompt ? n_rows : 0, prompt ? 0 : n_rows}
    };
    const uint32_t last[1][BT_N_ROLES] = {
        {prompt ? n_logits : 0, prompt ? 0 : n_logits}
    };
    bt_step step = {
        .n_rows       = n_rows,
        .tokens       = b->tokens,
        .n_spans      = n_spans,
        .spans        = spans,
        .group_rows   = {.n_ranks = 1,                   .n_rows = rows },
        .last_rows    = {.n_ranks = 1,                   .n_rows = last },
        .n_logit_rows = n_logits,
        .logit_rows   = logit_rows,
        .logits       = b->logits,
        .chosen       = prompt || kind == MTP ? NULL : b->chosen,
        .wait         = {.timeout_ns = 30 * BT_NS_PER_S, .what = "bench"}
    };

    for (uint32_t i = 0; i < n_rows; i++)
        b->tokens[i] = (uint32_t)rand() % b->cfg.vocab_size;
    if (kind == WITH_MTP) step.last_rows.n_rows = NULL;
    need((kind == MTP ? bt_model_draft : bt_model_step)(b->model, b->pool, &step) == BT_OK,
         "a step failed");
}

static void run_prompt(bench *b, const bench_case *c)
{
    for (uint32_t start = 0; start < c->n_tokens; start += c->chunk) {
        bt_span  span = {.pages = b->pages, .n_rows = c->chunk, .start = start};
        bool     last = start + c->chunk == c->n_tokens;
        uint32_t row  = c->chunk - 1;

        span.role = BT_ROLE_PROMPT;
        span.form = BT_FORM_NORMAL;
        run_step(b, c->chunk, 1, &span, last, &row, c->n_mtp != 0 ? WITH_MTP : ALONE);
        count_piece(b, c->chunk, start, last, c->n_mtp != 0);
        if (c->n_mtp != 0) {
            run_step(b, c->chunk, 1, &span, 0, NULL, MTP);
            count_mtp(b, c, c->chunk, start);
        }
        if (last) count_head(b, 1);
    }
}

/* Behind a step with a row of its own and those of a draft, all of them right: the last row of
 * each request drafts, and then what it has drafted. */
static void run_mtp(bench *b, const bench_case *c, bt_span *spans, uint32_t n_rows)
{
    uint32_t rows[MAX_BATCH];

    for (uint32_t round = 0; round < c->n_mtp; round++) {
        uint32_t start = c->context + (round == 0 ? 0 : c->n_draft + round);

        for (uint32_t i = 0; i < c->batch; i++) {
            spans[i].first_row = round == 0 ? spans[i].first_row : i;
            spans[i].n_rows    = round == 0 ? spans[i].n_rows : 1;
            spans[i].start     = start;
            rows[i]            = spans[i].first_row + spans[i].n_rows - 1;
        }
        run_step(b, round == 0 ? n_rows : c->batch, c->batch, spans, c->batch, rows, MTP);
        count_mtp(b, c, round == 0 ? n_rows : c->batch, start);
        count_head(b, c->batch);
    }
}

static void run_batch(bench *b, const bench_case *c)
{
    bt_span  spans[MAX_BATCH], behind[MAX_BATCH];
    uint32_t rows[MAX_LOGITS], each = bt_kv_pages_for(CONTEXT + 1), n_rows = 0;

    for (uint32_t i = 0; i < c->batch; i++) {
        spans[i] = (bt_span){.pages     = b->pages + (size_t)i * each,
                             .first_row = n_rows,
                             .n_rows    = 1 + c->n_draft,
                             .start     = c->context,
                             .role      = BT_ROLE_GENERATED,
                             .form      = BT_FORM_ABSORBED};
        for (uint32_t k = 0; k <= c->n_draft; k++, n_rows++)
            rows[n_rows] = n_rows;
    }
    for (int i = 0; i < STEPS; i++) {
        run_step(b, n_rows, c->batch, spans, n_rows, rows, c->n_mtp != 0 ? WITH_MTP : ALONE);
        count_decode(b, c, n_rows);
        count_head(b, n_rows);
        memcpy(behind, spans, sizeof(behind));
        run_mtp(b, c, behind, n_rows);
    }
}

typedef struct {
    double ms, cpu_ms, share, cpu_share, gbytes, gflop, gbs, tflops;
} sample;

static sample take(bench *b, const bench_case *c)
{
    roofs  r = measure_roofs(b);
    cost   from, t;
    double parts = c->batch != 0 ? STEPS : 1;

    b->model = b->models[c->batch != 0];
    b->bytes = b->ops = 0;
    from              = now(b);
    if (c->batch != 0)
        run_batch(b, c);
    else
        run_prompt(b, c);
    t = since(b, from);
    return (sample){.ms        = t.wall / parts * 1e3,
                    .cpu_ms    = t.cpu / parts * 1e3,
                    .share     = fmax(b->bytes * r.read.wall, b->ops * r.multiply.wall) / t.wall,
                    .cpu_share = fmax(b->bytes * r.read.cpu, b->ops * r.multiply.cpu) / t.cpu,
                    .gbytes    = b->bytes / parts * 1e-9,
                    .gflop     = b->ops / parts * 1e-9,
                    .gbs       = 1e-9 / r.read.cpu,
                    .tflops    = 1e-12 / r.multiply.cpu};
}

static double middle(const sample *samples, uint32_t n, size_t field)
{
    double v[MAX_ROUNDS];

    for (uint32_t i = 0; i < n; i++)
        memcpy(&v[i], (const char *)&samples[i] + field, sizeof(v[i]));
    return bench_median(v, n);
}

static void print_case(const bench_case *c, const sample *s, uint32_t n)
{
#define MIDDLE(field) middle(s, n, offsetof(sample, field))
    double tokens = c->batch != 0 ? c->batch * (1 + c->n_draft) : c->n_tokens; /* if right */

    printf("%-30s %8.1f ms %8.1f tokens/s, CPU %8.1f ms a thread; %6.2f GB %7.1f GFLOP; share of "
           "roof %.2f, by CPU time %.2f (%.1f GB/s, %.2f TFLOP/s)\n",
           c->name, MIDDLE(ms), tokens / MIDDLE(ms) * 1e3, MIDDLE(cpu_ms), MIDDLE(gbytes),
           MIDDLE(gflop), MIDDLE(share), MIDDLE(cpu_share), MIDDLE(gbs), MIDDLE(tflops));
    fflush(stdout);
#undef MIDDLE
}

/* ---- start ---- */

static void read_config(bench *b, const char *dir, bt_world *world)
{
    static const uint32_t SELF[1] = {0};

    need(bt_model_config_read(dir, &b->cfg) == BT_OK, "no model");
    need(b->cfg.moe.gate.n_experts != 0, "expected a model with experts");
    b->n_moe = bt_model_n_moe_layers(&b->cfg);
    if (b->cfg.n_mtp_layers != 0)
        need(bt_model_config_serve_mtp(&b->cfg) == BT_OK, "no layer that drafts");
    need(bt_group_create(world, 1, SELF, 0, 1, &b->group) == BT_OK &&
             bt_placement_init(&b->placement, b->cfg.moe.gate.n_experts, b->cfg.moe.gate.n_groups,
                               1) == BT_OK,
         "no group");
}

static void load(bench *b, const char *dir, bool few_rows)
{
    bt_safetensors  *set   = NULL;
    bt_model_options opt   = {.dev            = b->dev,
                              .group          = b->group,
                              .placement      = &b->placement,
                              .max_rows       = MAX_ROWS,
                              .max_logit_rows = MAX_LOGITS,
                              .normal         = !few_rows,
                              .absorbed       = few_rows,
                              .few_rows       = few_rows};
    bt_model       **model = &b->models[few_rows];
    cost             from  = now(b), t;
    struct rusage    used;
    double           files = 0;

    if (*model != NULL) return;
    need(bt_safetensors_open(dir, &set) == BT_OK &&
             bt_model_load(&b->cfg, set, &opt, model) == BT_OK,
         "the model does not load");
    for (size_t i = 0; i < bt_safetensors_count(set); i++)
        files += (double)bt_safetensors_at(set, i)->bytes;
    t = since(b, from);
    getrusage(RUSAGE_SELF, &used);
    printf("load for %s: %.2f GB of tensors in %.1f s (CPU %.1f s a thread), weights %.2f GB, "
           "workspace %.2f GB, peak memory so far %.2f GB\n",
           few_rows ? "few rows" : "prompts", files * 1e-9, t.wall, t.cpu,
           (double)bt_model_weight_bytes(*model) * 1e-9,
           (double)bt_model_workspace_bytes(*model) * 1e-9, (double)used.ru_maxrss * 1024e-9);
    fflush(stdout);
    bt_safetensors_close(set);
}

static void take_memory(bench *b)
{
    bt_kv_pool_config pool = {.n_layers = bt_model_n_served_layers(&b->cfg),
                              .kv_dim   = bt_mla_kv_dim(&b->cfg.mla),
                              .n_pages  = MAX_BATCH * bt_kv_pages_for(CONTEXT + 1)};

    b->pages  = bt_calloc(pool.n_pages, sizeof(*b->pages));
    b->chosen = bt_calloc((size_t)b->n_moe * MAX_ROWS, b->cfg.moe.gate.top_k * sizeof(*b->chosen));
    b->logits = bt_calloc_aligned((size_t)MAX_LOGITS * b->cfg.vocab_size, sizeof(*b->logits));
    b->memory = bt_calloc_aligned(READ_BYTES, 1);
    need(b->pages != NULL && b->chosen != NULL && b->logits != NULL && b->memory != NULL &&
             bt_kv_pool_create(b->dev, &pool, &b->pool) == BT_OK &&
             bt_kv_pool_acquire(b->pool, pool.n_pages, b->pages) == BT_OK,
         "no memory");
    memset(b->memory, 1, READ_BYTES);
}

/* only: N_CASES: all that the model can. */
static bool is_asked_for(const bench *b, uint32_t i, uint32_t only)
{
    if (only < N_CASES && only != i) return false;
    need(only >= N_CASES || CASES[i].n_mtp == 0 || b->cfg.mtp,
         "this model has no layer for multi-token prediction");
    return CASES[i].n_mtp == 0 || b->cfg.mtp;
}

int main(int argc, char **argv)
{
    static bench          b;
    static sample         samples[N_CASES][MAX_ROUNDS];
    bt_world             *world = NULL;
    bt_device_cpu_options dev   = {.kernels = "auto"};
    uint32_t              n_rounds, only = N_CASES;

    need(bt_world_init(&argc, &argv, &world) == BT_OK, "no MPI");
    if (argc < 2) {
        fputs("usage: bench_step DIR [threads [rounds [case]]]\n", stderr);
        return 64;
    }
    if (argc > 2) dev.n_threads = (uint32_t)strtoul(argv[2], NULL, 10);
    n_rounds = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 3;
    if (argc > 4) only = (uint32_t)strtoul(argv[4], NULL, 10);
    need(n_rounds >= 1 && n_rounds <= MAX_ROUNDS, "1 to 31 rounds");
    need(bt_device_cpu_create(&dev, &b.dev) == BT_OK, "no device");
    b.n_threads = bt_cpu_pool_n_threads(bt_device_cpu_pool(b.dev));
    read_config(&b, argv[1], world);
    for (uint32_t i = 0; i < N_CASES; i++)
        if (is_asked_for(&b, i, only)) load(&b, argv[1], CASES[i].batch != 0);
    take_memory(&b);
    for (uint32_t round = 0; round < n_rounds + 1; round++) /* the first one warms up */
        for (uint32_t i = 0; i < N_CASES; i++)
            if (is_asked_for(&b, i, only))
                samples[i][round == 0 ? 0 : round - 1] = take(&b, &CASES[i]);
    for (uint32_t i = 0; i < N_CASES; i++)
        if (is_asked_for(&b, i, only)) print_case(&CASES[i], samples[i], n_rounds);
    return EXIT_SUCCESS;
}
