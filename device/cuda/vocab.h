/* device/cuda/vocab.h - from logits to tokens and log-probabilities on the GPU.
 *
 * The order of things and every sum are those of worker/sampler.h, so equal logits give the tokens
 * and logprobs of the CPU bit for bit: sums run in absolute blocks of 1,024 ids (16 lanes in a
 * block), blocks ascending; candidates stand by (logit descending, id ascending).
 *
 * Each function enqueues on `stream` (a cudaStream_t) and returns a cudaError_t, 0 for success; no
 * rows, no launch.  Pointers are device memory. */
#ifndef BT_DEVICE_CUDA_VOCAB_H
#define BT_DEVICE_CUDA_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "device/sampling.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_CUDA_VOCAB_BLOCK = 1024 };

/* logits[edit.draw, edit.id] changes in place: an edit's draw is a row here, of ld floats. */
int bt_cuda_edit_logits(void *stream, uint32_t n_edits, const bt_logit_edit *edits, size_t ld,
                        float *logits);

/* Below, draw r is from row r, and its mask one of `masks`; those of temperatures below 1e-5 are
 * greedy; histories are distinct in a launch.
 *
 * A history has a word for each id, 0: not seen; else 1 + 2 times how often it was generated. */

/* words[id] of n distinct ids; words: [n_vocab] of one history, cleared. */
int bt_cuda_set_history(void *stream, uint32_t n, const bt_seen_token *seen, uint32_t *words);
/* logits[row, id] of the draws' histories change in place; words: [histories, n_vocab]. */
int bt_cuda_penalise(void *stream, uint32_t n_rows, uint32_t n_vocab, const bt_draw *draws,
                     const uint32_t *words, float *logits);
/* logits[row, id] is -inf for the ids whose bit the draw's mask lacks.  masks: [masks][(n_vocab +
 * 31) / 32], bit id % 32 of word id / 32. */
int bt_cuda_mask(void *stream, uint32_t n_rows, uint32_t n_vocab, const bt_draw *draws,
                 const uint32_t *masks, float *logits);

typedef struct {
    uint32_t       n_rows, n_vocab;
    const float   *logits; /* [n_rows, n_vocab], edited, masked; a NaN counts as the lowest */
    const bt_draw *draws;  /* [n_rows] */
    float         *e;      /* scratch [n_rows, n_vocab] */
    float         *ranked; /* scratch [n_rows, n_vocab] */
    uint64_t      *order;  /* scratch [n_rows, bt_cuda_order_elems(n_vocab)] */
    float         *maxima, *sums; /* scratch [n_rows, blocks of n_vocab] */
    int32_t       *ids;           /* out [n_rows]; BT_NO_TOKEN: the highest is no finite number */
    uint32_t      *next;          /* out [n_rows], the same, 0 where there is none; or NULL */
    uint32_t *words; /* [histories, n_vocab]: where the id is added; NULL: no draw has a history */
} bt_cuda_sample;
static inline size_t bt_cuda_order_elems(uint32_t n_vocab)
{
    size_t n = 1;

    while (n < n_vocab)
        n *= 2;
    return n;
}
int bt_cuda_sample_run(void *stream, const bt_cuda_sample *s);

/* Log softmax of raw logits. */
typedef struct {
    uint32_t       n_rows, n_vocab, max_top;
    const float   *logits;        /* [n_rows, n_vocab] */
    const int32_t *ids;           /* [n_rows]; below 0: such a row gets a NaN */
    const bt_draw *draws;         /* [n_rows], of which n_top counts, at most max_top */
    float         *maxima, *sums; /* scratch [n_rows, blocks of n_vocab] */
    float         *logprob;       /* out [n_rows]: of the id */
    uint32_t      *top_ids;       /* out [n_rows, max_top]: the highest finite ones, in order */
    float         *top_logprobs;  /* out [n_rows, max_top] */
    uint32_t      *n_found;       /* out [n_rows]: n_top, or fewer when fewer are finite */
} bt_cuda_logprobs;
int bt_cuda_logprobs_run(void *stream, const bt_cuda_logprobs *l);

#ifdef __cplusplus
}
#endif
#endif
