/* tests/model/golden_checks.h - what a run through the engine owes the golden outputs, by the rules
 * of tests/fixtures/README.md. */
#ifndef BT_TESTS_MODEL_GOLDEN_CHECKS_H
#define BT_TESTS_MODEL_GOLDEN_CHECKS_H

#include "tests/model/engine.h"

static goldens g_goldens; /* of the model under test */

/* Whether position p saw another expert than the golden run in some layer. */
static inline bool rerouted(const sequence *s, uint32_t p)
{
    size_t k = g_goldens.cfg.moe.gate.top_k;

    for (uint32_t layer = 0; layer < g_goldens.n_moe; layer++) {
        size_t at = ((size_t)layer * s->c->n_tokens + p) * k;

        if (memcmp(s->experts + at, s->c->experts + at, k * sizeof(uint16_t)) != 0) return true;
    }
    return false;
}

/* The greedy token wherever the golden gap is wider than four times the row's error, save in rows
 * that saw another expert: what that moves is no rounding, and may all lie in the best tokens.
 * Returns how many rows were held to it. */
static inline uint32_t expect_greedy(const sequence *s, const char *route)
{
    uint32_t vocab = g_goldens.cfg.vocab_size, n_held = 0;

    for (uint32_t r = 0; r < s->c->n_rows; r++) {
        const float *want = s->c->logits + (size_t)r * vocab, *got = s->logits + (size_t)r * vocab;
        uint32_t     best = argmax(want, vocab), mine = argmax(got, vocab);
        double       error  = rms_difference(got, want, vocab);
        float        second = -INFINITY;

        for (uint32_t i = 0; i < vocab; i++)
            if (i != best && want[i] > second) second = want[i];
        if (!((double)(want[best] - second) > 4 * error)) continue;
        if (rerouted(s, s->c->first_position + r)) continue;
        n_held++;
        if (mine == best) continue;
        g_failures++;
        fprintf(stderr, "%s %s: position %u takes token %u (%.4f), want %u (%.4f); error %.4f\n",
                s->c->name, route, s->c->first_position + r, mine, (double)got[mine], best,
                (double)got[best], error);
    }
    EXPECT(n_held > s->c->n_rows / 2);
    return n_held;
}

/* Forced routing: rounding alone. */
static inline void expect_forced(const sequence *s, const char *route)
{
    const golden_case *c     = s->c;
    double             error = forced_error(c, s->logits, g_goldens.cfg.vocab_size);

    printf("  %-6s %-14s forced: error %.4f, %.2f of bf16's; %u of %u greedy tokens held\n",
           c->name, route, error, error / c->fair_error, expect_greedy(s, route), c->n_rows);
    for (uint32_t p = 0; p < c->n_tokens; p++)
        EXPECT(!rerouted(s, p));
    if (!(error <= 1.5 * c->fair_error)) {
        g_failures++;
        fprintf(stderr, "%s %s: error %.5f with forced routing, at most 1.5 x %.5f\n", c->name,
                route, error, c->fair_error);
    }
}

/* Free routing: the median row, and how many rows were routed elsewhere. */
static inline void expect_free(const sequence *s, const char *route)
{
    const golden_case *c          = s->c;
    uint32_t           n_moved    = 0;
    uint32_t           most_moved = 2 * c->rows_rerouted > 3 ? 2 * c->rows_rerouted : 3;
    double             median     = median_error(c, s->logits, g_goldens.cfg.vocab_size);

    for (uint32_t r = 0; r < c->n_rows; r++)
        n_moved += rerouted(s, c->first_position + r);
    printf("  %-6s %-14s free: median row %.4f, %.2f of bf16's; %u rows rerouted, at most %u; "
           "%u of %u greedy tokens held\n",
           c->name, route, median, median / c->median_row_error, n_moved, most_moved,
           expect_greedy(s, route), c->n_rows);
    EXPECT(n_moved <= most_moved);
    if (!(median <= 1.5 * c->median_row_error)) {
        g_failures++;
        fprintf(stderr, "%s %s: median row error %.5f, at most 1.5 x %.5f\n", c->name, route,
                median, c->median_row_error);
    }
}

/* Runs a case twice, forced and free, checks both; *kept_out (or NULL) gets the free run. */
static inline void check_case(engine *e, const golden_case *c, bt_form_policy form, uint32_t chunk,
                              const char *route, sequence *kept_out)
{
    sequence s = {.c = c, .chunk = chunk, .rows_per_step = 1, .form = form, .forced = true};

    engine_run(e, 1, &s);
    expect_forced(&s, route);
    sequence_free(&s);
    s.forced = false;
    engine_run(e, 1, &s);
    expect_free(&s, route);
    if (kept_out != NULL)
        *kept_out = s;
    else
        sequence_free(&s);
}

#endif
