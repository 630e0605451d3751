/* tests/model/drafts.h - runs golden cases as tests/model/engine.h does, with the drafts of the
 * layer for multi-token prediction after each step, and what these owe the golden drafts. */
#ifndef BT_TESTS_MODEL_DRAFTS_H
#define BT_TESTS_MODEL_DRAFTS_H

#include "tests/model/engine.h"
#include "tests/model/goldens_mtp.h"

static goldens    g_goldens;
static golden_mtp g_mtp;

static inline uint32_t id_at(const sequence *s, uint32_t position)
{
    return position < s->c->n_tokens ? s->c->ids[position] : 0;
}

static inline void run_draft(const engine *e, bt_step *step, const uint32_t (*rows)[BT_N_ROLES],
                             const uint32_t (*last_rows)[BT_N_ROLES])
{
    step->group_rows = (bt_step_rows){.n_ranks = e->n_ranks, .n_rows = rows};
    step->last_rows  = (bt_step_rows){.n_ranks = e->n_ranks, .n_rows = last_rows};
    step->wait       = (bt_wait){.timeout_ns = 30 * BT_NS_PER_S, .what = "test draft", .layer = -1};
    bt_alloc_fail_at(0); /* a draft allocates nothing */
    NEED(bt_model_draft(e->model, e->pool, step) == BT_OK);
    bt_alloc_fail_at(-1);
}

static inline void keep_draft(const engine *e, sequence *s, int round, uint32_t row,
                              const float *logits)
{
    size_t vocab = e->g->cfg.vocab_size;

    memcpy(s->drafts[round] + row * vocab, logits, vocab * sizeof(*logits));
    s->drafted[round][row] = true;
}

/* Over the rows with logits of the drafts before, which are the last ones of their spans: these
 * are in spans[n], the sequences in owner. */
static inline void run_chained(const engine *e, step_buffers *b, uint32_t n, bt_span *spans,
                               sequence *const *owner)
{
    uint32_t vocab = e->g->cfg.vocab_size, at = 0;
    bt_step  step = {.n_rows     = n,
                     .tokens     = b->tokens,
                     .n_spans    = n,
                     .spans      = spans,
                     .logit_rows = b->logit_rows,
                     .logits     = b->logits};

    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = spans[i].start;

        spans[i].first_row = i;
        spans[i].n_rows    = 1;
        spans[i].start     = position + 1;
        b->tokens[i]       = id_at(owner[i], position + 2);
        if (wants_chained(owner[i], position, true)) b->logit_rows[step.n_logit_rows++] = i;
    }
    run_draft(e, &step, (const uint32_t(*)[BT_N_ROLES])b->drafts[0],
              (const uint32_t(*)[BT_N_ROLES])b->drafts[1]);
    for (uint32_t i = 0; i < n; i++)
        if (wants_chained(owner[i], spans[i].start - 1, true))
            keep_draft(e, owner[i], 1, spans[i].start - 1, b->logits + (size_t)at++ * vocab);
}

/* Whether any rank's rows ask for the logits of their drafts. */
static inline bool any_drafts(const engine *e, const step_buffers *b)
{
    for (uint32_t r = 0; r < e->n_ranks; r++)
        if (b->drafts[0][r][BT_ROLE_PROMPT] + b->drafts[0][r][BT_ROLE_GENERATED] != 0) return true;
    return false;
}

/* Over the rows of the step that was. */
static inline void run_drafts(const engine *e, step_buffers *b)
{
    bt_span   spans[MAX_SPANS];
    sequence *owner[MAX_SPANS];
    uint32_t  vocab = e->g->cfg.vocab_size, at = 0, n = 0;
    bt_step   step = {.n_rows     = b->n_rows,
                      .tokens     = b->tokens,
                      .n_spans    = b->n_spans,
                      .spans      = b->spans,
                      .logit_rows = b->logit_rows,
                      .logits     = b->logits};

    for (uint32_t i = 0; i < b->n_spans; i++)
        for (uint32_t r = 0; r < b->spans[i].n_rows; r++) {
            uint32_t row = b->spans[i].first_row + r, p = b->spans[i].start + r;

            b->tokens[row] = id_at(b->owner[i], p + 1);
            if (wants_draft(b->owner[i], p, r + 1 == b->spans[i].n_rows))
                b->logit_rows[step.n_logit_rows++] = row;
        }
    run_draft(e, &step, (const uint32_t(*)[BT_N_ROLES])b->rows,
              (const uint32_t(*)[BT_N_ROLES])b->drafts[0]);
    for (uint32_t i = 0; i < b->n_spans; i++)
        for (uint32_t r = 0; r < b->spans[i].n_rows; r++) {
            uint32_t p    = b->spans[i].start + r;
            bool     last = r + 1 == b->spans[i].n_rows;

            if (!wants_draft(b->owner[i], p, last)) continue;
            keep_draft(e, b->owner[i], 0, p, b->logits + (size_t)at++ * vocab);
            if (!b->chains) continue;
            NEED(last);
            spans[n]       = b->spans[i];
            spans[n].start = p;
            owner[n++]     = b->owner[i];
        }
    if (b->chains && any_drafts(e, b)) run_chained(e, b, n, spans, owner);
}

/* With the layer served. */
static inline void drafting_open(engine *e, bt_world *world, uint32_t n_ranks,
                                 const uint32_t *ranks, const engine_options *opt)
{
    NEED(g_goldens.cfg.mtp);
    engine_open(e, &g_goldens, world, n_ranks, ranks, opt);
    e->drafts = run_drafts;
}

/* Same bits of all drafts that both have, of which there are some, and of the model's logits. */
static inline bool drafts_equal(const sequence *a, const sequence *b)
{
    size_t   bytes = g_goldens.cfg.vocab_size * sizeof(float);
    uint32_t n     = 0;

    for (int round = 0; round < 2; round++)
        for (uint32_t p = 0; p < a->c->n_tokens; p++) {
            size_t at = (size_t)p * g_goldens.cfg.vocab_size;

            if (!a->drafted[round][p] || !b->drafted[round][p]) continue;
            n++;
            if (memcmp(a->drafts[round] + at, b->drafts[round] + at, bytes) != 0) return false;
        }
    return n != 0 && sequence_equal(&g_goldens, a, b);
}

static inline uint32_t n_drafts(const sequence *s)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < s->c->n_tokens; p++)
        n += s->drafted[0][p] + s->drafted[1][p];
    return n;
}

/* The median row's error within 1.5 times that of the bf16 run. */
static inline void expect_drafts(const sequence *s, int round, const golden_drafts *want,
                                 const char *route)
{
    uint32_t vocab = g_goldens.cfg.vocab_size;
    double error = median_of_rows(want->n_rows, s->drafts[round] + (size_t)want->first_row * vocab,
                                  want->logits, vocab);

    for (uint32_t r = 0; r < want->n_rows; r++)
        EXPECT(s->drafted[round][want->first_row + r]);
    printf("  %-6s %-14s %s: median row %.4f, %.2f of bf16's, %.1f %% of their rms\n", s->c->name,
           route, round == 0 ? "drafts" : "chained", error, error / want->median_row_error,
           100 * error / want->logits_rms);
    if (!(error <= 1.5 * want->median_row_error)) {
        g_failures++;
        fprintf(stderr, "%s %s: median row error %.5f, at most 1.5 x %.5f\n", s->c->name, route,
                error, want->median_row_error);
    }
}

/* The main() of a test on a model's golden drafts, of which the world is there; it takes
 * that.  usage: mpiexec -n N PROGRAM MODEL [test] */
static inline int drafts_main(int argc, char **argv, const bt_test *tests, size_t n_tests,
                              bt_world *world)
{
    int rc;

    bt_cpu_flush_denormals();
    bt_log_init("test", BT_LOG_WARN);
    NEED(argc >= 2);
    goldens_open(&g_goldens, argv[1]);
    NEED(golden_mtp_open(&g_goldens, argv[1], &g_mtp));
    NEED(bt_model_config_serve_mtp(&g_goldens.cfg) == BT_OK);
    rc = bt_run_tests(tests, n_tests, argc > 2 ? argv[2] : NULL);
    golden_mtp_close(&g_mtp);
    goldens_close(&g_goldens);
    bt_world_fini(world);
    return rc;
}

#endif
