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

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_CUDA_VOCAB_BLOCK = 1024, BT_CUDA_NO_TOKEN = -1 };

/* One id's bias, penalty and ban, in this order; a row's ids are distinct. */
typedef struct {
    uint32_t row, id;
    float    bias;
    float    repetition, frequency, presence; /* repetition 1 and the others 0: no penalty */
    uint32_t count;  /* how often the id was generated; presence counts from 1 */
    uint32_t banned; /* 0 or 1 */
} bt_cuda_edit;
/* logits[edit.row, edit.id] changes in place; rows of ld floats. */
int bt_cuda_edit_logits(void *stream, uint32_t n_edits, const bt_cuda_edit *edits, size_t ld,
                        float *logits);

typedef struct {
    float    temperature;                     /* below 1e-5: greedy */
    float    top_p;                           /* 0 and from 1 on: off */
    float    min_p;                           /* 0: off */
    uint32_t top_k;                           /* 0: off */
    double   uniform;                         /* in [0, 1): from (seed, choice, position) */
    uint32_t history;                         /* from 1 on, distinct in a launch; 0: none */
    float    repetition, frequency, presence; /* as an edit's, of the history's tokens */
    uint32_t mask;                            /* from 1 on: of the ids that may come; 0: none */
} bt_cuda_draw;

/* Histories of sequences: a word for each id, 0: not seen; else 1 + 2 times how often it was
 * generated. */
typedef struct {
    uint32_t id, count;
} bt_cuda_seen;
/* words[id] of n distinct ids; words: [n_vocab] of one history, cleared. */
int bt_cuda_set_history(void *stream, uint32_t n, const bt_cuda_seen *seen, uint32_t *words);
/* logits[row, id] of the draws' histories change in place; words: [histories, n_vocab]. */
int bt_cuda_penalise(void *stream, uint32_t n_rows, uint32_t n_vocab, const bt_cuda_draw *draws,
                     const uint32_t *words, float *logits);
/* logits[row, id] is -inf for the ids whose bit the draw's mask lacks.  masks: [masks][(n_vocab +
 * 31) / 32], bit id % 32 of word id / 32. */
int bt_cuda_mask(void *stream, uint32_t n_rows, uint32_t n_vocab, const bt_cuda_draw *draws,
                 const uint32_t *masks, float *logits);

typedef struct {
    uint32_t            n_rows, n_vocab;
    const float        *logits; /* [n_rows, n_vocab], edited, masked; a NaN counts as the lowest */
    const bt_cuda_draw *draws;  /* [n_rows] */
    float              *e;      /* scratch [n_rows, n_vocab] */
    float              *ranked; /* scratch [n_rows, n_vocab] */
    uint64_t           *order;  /* scratch [n_rows, bt_cuda_order_elems(n_vocab)] */
    float              *maxima, *sums; /* scratch [n_rows, blocks of n_vocab] */
    int32_t            *ids;  /* out [n_rows]; BT_CUDA_NO_TOKEN: the highest is no finite number */
    uint32_t           *next; /* out [n_rows], the same, 0 where there is none; or NULL */
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
    uint32_t        n_rows, n_vocab, max_top;
    const float    *logits;        /* [n_rows, n_vocab] */
    const int32_t  *ids;           /* [n_rows]; below 0: such a row gets a NaN */
    const uint32_t *n_top;         /* [n_rows], each at most max_top */
    float          *maxima, *sums; /* scratch [n_rows, blocks of n_vocab] */
    float          *logprob;       /* out [n_rows]: of the id */
    uint32_t       *top_ids;       /* out [n_rows, max_top]: the highest finite ones, in order */
    float          *top_logprobs;  /* out [n_rows, max_top] */
    uint32_t       *n_found;       /* out [n_rows]: n_top, or fewer when fewer are finite */
} bt_cuda_logprobs;
int bt_cuda_logprobs_run(void *stream, const bt_cuda_logprobs *l);

#ifdef __cplusplus
}
#endif
#endif
