/* The law of sampling once more, plainly and in double precision: full sorts, no blocks, no tricks.
 */
#ifndef BT_TESTS_WORKER_SAMPLE_ORACLE_H
#define BT_TESTS_WORKER_SAMPLE_ORACLE_H

#include <math.h>
#include <stdlib.h>

#include "worker/sampler.h"

enum { ORACLE_VOCAB_MAX = 4096 };

typedef struct {
    double   logit;
    uint32_t id;
} oracle_candidate;

/* How often each id came, told apart from bt_history on purpose. */
typedef struct {
    uint32_t generated[ORACLE_VOCAB_MAX];
    bool     prompt[ORACLE_VOCAB_MAX];
} oracle_seen;

static inline int oracle_order(const void *a, const void *b)
{
    const oracle_candidate *x = a, *y = b;

    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static inline double oracle_adjusted(const bt_sample_how *how, const oracle_seen *seen,
                                     double logit, uint32_t id)
{
    double x = logit;

    for (uint32_t i = 0; i < how->biased.n; i++)
        if (how->biased.ids[i] == id) x += (double)how->biases[i];
    if (seen != NULL && how->repetition != 0 && (seen->generated[id] > 0 || seen->prompt[id]))
        x = x > 0 ? x / (double)how->repetition : x * (double)how->repetition;
    if (seen != NULL) x -= (double)how->frequency * seen->generated[id];
    if (seen != NULL && seen->generated[id] > 0) x -= (double)how->presence;
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < how->banned[list].n; i++)
            if (how->banned[list].ids[i] == id) x = -INFINITY;
    if (how->allowed != NULL && (how->allowed[id / 32] & 1u << id % 32) == 0) x = -INFINITY;
    return x;
}

/* probability_out[n_vocab] of each id; returns how many may come.  Greedy: one. */
static inline uint32_t oracle_probabilities(const float *logits, uint32_t n_vocab,
                                            const bt_sample_how *how, const oracle_seen *seen,
                                            double *probability_out)
{
    static oracle_candidate c[ORACLE_VOCAB_MAX];
    uint32_t                n = n_vocab;
    double                  t = (double)how->temperature, total = 0, sum = 0, top;

    for (uint32_t i = 0; i < n_vocab; i++) {
        c[i] = (oracle_candidate){oracle_adjusted(how, seen, (double)logits[i], i), i};
        probability_out[i] = 0;
    }
    qsort(c, n_vocab, sizeof(c[0]), oracle_order);
    if (t == 0) {
        probability_out[c[0].id] = 1;
        return 1;
    }
    top = c[0].logit;
    while (n > 1 && (exp((c[n - 1].logit - top) / t) < (double)how->min_p || isinf(c[n - 1].logit)))
        n--;
    if (how->top_k > 0 && how->top_k < n) n = how->top_k;
    for (uint32_t i = 0; i < n; i++)
        total += exp((c[i].logit - top) / t);
    if (how->top_p > 0 && how->top_p < 1) {
        uint32_t kept = 0;

        while (kept < n && (kept == 0 || sum < (double)how->top_p * total))
            sum += exp((c[kept++].logit - top) / t);
        n     = kept;
        total = sum;
    }
    for (uint32_t i = 0; i < n; i++)
        probability_out[c[i].id] = exp((c[i].logit - top) / t) / total;
    return n;
}

#endif
