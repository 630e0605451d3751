/* worker/sampler.h - from one row of logits to one token.
 *
 * A choice is a function of (seed, choice index, absolute position), the row and the choice's
 * tokens so far: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC
 * 2011) with the seed as its key and {position, choice} as its counter.  Sums over the vocabulary
 * run in absolute blocks of BT_VOCAB_BLOCK ids (the table's 16 lanes within a block, blocks
 * ascending), so that no machine and no neighbour changes a bit.
 *
 * The order of things: logit bias; repetition penalty, then frequency and presence; banned ids and
 * those that are not allowed; temperature; min_p; top_k; top_p.  Candidates stand by (logit
 * descending, id ascending).  min_p keeps those with at least min_p times the highest probability.
 * top_p keeps the shortest prefix whose fp32 sum reaches top_p times the sum of what is left by
 * then: with top_k that sum runs down the candidates, without it over the vocabulary in blocks.
 *
 * Threads: one at a time for a bt_sampler, with DAZ and FTZ set.  Memory: only init() allocates. */
#ifndef BT_WORKER_SAMPLER_H
#define BT_WORKER_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "device/cpu/kernels.h"
#include "worker/history.h"

enum { BT_VOCAB_BLOCK = 1024, BT_MAX_VOCAB = 1 << 20 };

/* Below this a temperature means greedy. */
#define BT_MIN_TEMPERATURE 1e-5f

/* The work space of a thread for rows of n_vocab logits. */
typedef struct {
    const bt_cpu_row_kernels *k; /* borrowed */
    uint32_t                  n_vocab;
    float                    *adjusted, *e;  /* owned [n_vocab] */
    uint64_t                 *order, *spare; /* owned [n_vocab]: candidates, (key << 32 | id) */
} bt_sampler;

/* Memory that init() takes, as far as it is used; NO_MEMORY where there is none. */
size_t    bt_sampler_bytes(uint32_t n_vocab);
bt_status bt_sampler_init(bt_sampler *s, const bt_cpu_row_kernels *k, uint32_t n_vocab);
void      bt_sampler_fini(bt_sampler *s);

typedef struct {
    const uint32_t *ids;
    uint32_t        n;
} bt_id_list;

/* All zero: greedy on the raw logits. */
typedef struct {
    float    temperature; /* 0: greedy */
    uint64_t seed;
    uint32_t choice;   /* of n > 1 */
    uint32_t position; /* absolute position of the token that is chosen */

    uint32_t          top_k;      /* 0: off */
    float             top_p;      /* 0 and from 1 on: off */
    float             min_p;      /* 0: off */
    float             repetition; /* 0 and 1: off; for ids of the prompt and generated ones */
    float             frequency;  /* times how often the id was generated */
    float             presence;   /* for ids that were generated */
    const bt_history *history;    /* of the vocabulary's ids; NULL unless one of these is on */
    bt_id_list        biased;     /* distinct */
    const float      *biases;     /* [biased.n] */
    bt_id_list        banned[2];  /* must not come: as long as min_tokens are not there */
    const uint32_t   *allowed;    /* [(n_vocab + 31) / 32], borrowed: bit id % 32 of word id / 32 is
                                     set for the only ids that may come; NULL: all */
} bt_sample_how;

/* logits: host [n_vocab], of which a NaN counts as the lowest.  *id_out: the highest adjusted
 * logit, ties to the lower id; or, with a temperature, a draw.  False when the highest is no finite
 * number, as when nothing is allowed. */
bool bt_sample(const bt_sampler *s, const float *logits, const bt_sample_how *how,
               uint32_t *id_out);

/* Log softmax of the raw logits: *logprob_out of `id`; and of the n_top highest, by (logit
 * descending, id ascending), into ids_out and logprobs_out.  Returns how many of these there are:
 * n_top, or fewer when the vocabulary has fewer finite logits. */
uint32_t bt_logprobs(const bt_sampler *s, const float *logits, uint32_t id, uint32_t n_top,
                     float *logprob_out, uint32_t *ids_out, float *logprobs_out);

/* In [0, 1), 53 bits: from seed, choice and position. */
double bt_sample_uniform(const bt_sample_how *how);

/* Ten rounds: four words from a counter and a key. */
void bt_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
