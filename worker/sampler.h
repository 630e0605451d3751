/* worker/sampler.h - from one row of logits to one token.
 *
 * A choice is a function of (seed, choice index, absolute position) and the row alone:
 * Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011) with the
 * seed as its key and {position, choice} as its counter.  Sums over the vocabulary run in absolute
 * blocks of BT_VOCAB_BLOCK ids (the table's 16 lanes within a block, blocks ascending), so that no
 * machine and no neighbour changes a bit.
 *
 * Threads: any, with DAZ and FTZ set.  Memory: never allocates. */
#ifndef BT_WORKER_SAMPLER_H
#define BT_WORKER_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "device/cpu/kernels.h"

enum { BT_VOCAB_BLOCK = 1024, BT_MAX_VOCAB = 1 << 20 };

/* Below this a temperature means greedy. */
#define BT_MIN_TEMPERATURE 1e-5f

typedef struct {
    float    temperature; /* 0: greedy */
    uint64_t seed;
    uint32_t choice;   /* of n > 1 */
    uint32_t position; /* absolute position of the token that is chosen */
    bool     logprob;  /* wanted: costs a pass over the vocabulary */
} bt_sample_how;

/* logits: host [n_vocab].  *id_out: the highest logit, ties to the lower id; or, with a
 * temperature, a draw from softmax(logits / temperature).  *logprob_out: log softmax of the raw
 * logits at id, 0 when not wanted.  A NaN counts as the lowest logit. DEVICE when no logit is a
 * finite number. */
bt_status bt_sample(const bt_cpu_row_kernels *k, const float *logits, uint32_t n_vocab,
                    const bt_sample_how *how, uint32_t *id_out, float *logprob_out);

/* log(sum(exp(logits))). */
float bt_log_sum_exp(const bt_cpu_row_kernels *k, const float *logits, uint32_t n_vocab);

/* Ten rounds: four words from a counter and a key. */
void bt_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
