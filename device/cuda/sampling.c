/* device/cuda/sampling.c - tokens and logprobs of a step from logits that stay on the device: some
 * rows at a time, in memory taken at start. */
#include "core/alloc.h"
#include "core/token_mask.h"
#include "device/cuda/device_cuda.h"
#include "device/cuda/rows.h"
#include "device/cuda/vocab.h"

struct bt_device_sampler {
    bt_device *dev; /* borrowed */
    uint32_t   n_vocab, chunk, max_draws;

    /* Owned, device; [chunk, ..]. */
    float         *logits, *e, *ranked, *maxima, *sums;
    uint64_t      *order;
    uint32_t      *rows, *n_found, *top_ids;
    int32_t       *ids;
    float         *logprob, *top_logprobs;
    bt_draw       *draws;
    bt_logit_edit *edits;  /* [BT_MAX_EDITS] */
    uint32_t      *fed;    /* [2][max_draws]: ids of the last run, then what is known */
    uint32_t      *fed_at; /* [max_draws] */
    bt_seen_token *seen;   /* [MOST_SEEN]: of a history on its way */
    uint32_t      *words;  /* [BT_MAX_HISTORIES, n_vocab] */
    uint32_t      *masks;  /* [chunk, bt_mask_words(n_vocab)]: those that the chunk's draws use */

    /* Owned, host: as they go up. */
    uint32_t      *host_rows, *host_masks; /* [chunk]; masks: which of the step's */
    bt_draw       *host_draws;
    bt_logit_edit *host_edits;
    uint32_t      *host_fed_at; /* [max_draws] */
};

enum { CHUNK = 64, MOST_SEEN = 1024 };
_Static_assert(BT_MAX_EDITS * sizeof(bt_logit_edit) <= BT_CUDA_RING_PART,
               "a longer list, not being pinned, would wait for the stream, without a deadline");

static uint32_t blocks_of(uint32_t n_vocab)
{
    return (n_vocab + BT_CUDA_VOCAB_BLOCK - 1) / BT_CUDA_VOCAB_BLOCK;
}

static uint32_t chunk_of(uint32_t max_draws) { return max_draws < CHUNK ? max_draws : CHUNK; }

static size_t bytes(uint32_t n_vocab, uint32_t max_draws)
{
    size_t row =
        (size_t)n_vocab * 3 * sizeof(float) + bt_cuda_order_elems(n_vocab) * sizeof(uint64_t) +
        (size_t)blocks_of(n_vocab) * 2 * sizeof(float) + bt_mask_words(n_vocab) * sizeof(uint32_t) +
        BT_MAX_ALTERNATIVES * (sizeof(uint32_t) + sizeof(float)) + sizeof(bt_draw) +
        4 * sizeof(uint32_t);

    return chunk_of(max_draws) * row + BT_MAX_EDITS * sizeof(bt_logit_edit) +
           3 * (size_t)max_draws * sizeof(uint32_t) + MOST_SEEN * sizeof(bt_seen_token) +
           (size_t)BT_MAX_HISTORIES * n_vocab * sizeof(uint32_t);
}

static void destroy(bt_device_sampler *s)
{
    if (s == NULL) return;
    void *device[] = {s->logits, s->e,       s->ranked,  s->maxima, s->sums,    s->order,
                      s->rows,   s->n_found, s->top_ids, s->ids,    s->logprob, s->top_logprobs,
                      s->draws,  s->edits,   s->fed,     s->fed_at, s->seen,    s->words,
                      s->masks};
    void *host[]   = {s->host_rows, s->host_masks, s->host_draws, s->host_edits, s->host_fed_at};

    for (size_t i = 0; i < sizeof(device) / sizeof(device[0]); i++)
        bt_device_free(s->dev, device[i]);
    for (size_t i = 0; i < sizeof(host) / sizeof(host[0]); i++)
        bt_free(host[i]);
    bt_free(s);
}

static bt_status take(bt_device_sampler *s, size_t n, size_t bytes_each, void *ptr_out)
{
    return bt_device_alloc_array(s->dev, n, bytes_each, NULL, ptr_out);
}

static bt_status take_all(bt_device_sampler *s)
{
    bt_status st = BT_OK;
    size_t    n = s->chunk, ids = n * s->n_vocab, blocks = n * blocks_of(s->n_vocab);
    size_t    tops = n * BT_MAX_ALTERNATIVES;

    BT_TRY(take(s, ids, sizeof(*s->logits), &s->logits));
    BT_TRY(take(s, ids, sizeof(*s->e), &s->e));
    BT_TRY(take(s, ids, sizeof(*s->ranked), &s->ranked));
    BT_TRY(take(s, blocks, sizeof(*s->maxima), &s->maxima));
    BT_TRY(take(s, blocks, sizeof(*s->sums), &s->sums));
    BT_TRY(take(s, n * bt_cuda_order_elems(s->n_vocab), sizeof(*s->order), &s->order));
    BT_TRY(take(s, n, sizeof(*s->rows), &s->rows));
    BT_TRY(take(s, n, sizeof(*s->n_found), &s->n_found));
    BT_TRY(take(s, tops, sizeof(*s->top_ids), &s->top_ids));
    BT_TRY(take(s, n, sizeof(*s->ids), &s->ids));
    BT_TRY(take(s, n, sizeof(*s->logprob), &s->logprob));
    BT_TRY(take(s, tops, sizeof(*s->top_logprobs), &s->top_logprobs));
    BT_TRY(take(s, n, sizeof(*s->draws), &s->draws));
    BT_TRY(take(s, BT_MAX_EDITS, sizeof(*s->edits), &s->edits));
    BT_TRY(take(s, 2 * (size_t)s->max_draws, sizeof(*s->fed), &s->fed));
    BT_TRY(take(s, s->max_draws, sizeof(*s->fed_at), &s->fed_at));
    BT_TRY(take(s, MOST_SEEN, sizeof(*s->seen), &s->seen));
    BT_TRY(take(s, (size_t)BT_MAX_HISTORIES * s->n_vocab, sizeof(*s->words), &s->words));
    BT_TRY(take(s, n * bt_mask_words(s->n_vocab), sizeof(*s->masks), &s->masks));
    s->host_rows   = bt_calloc(n, sizeof(*s->host_rows));
    s->host_masks  = bt_calloc(n, sizeof(*s->host_masks));
    s->host_draws  = bt_calloc(n, sizeof(*s->host_draws));
    s->host_edits  = bt_calloc(BT_MAX_EDITS, sizeof(*s->host_edits));
    s->host_fed_at = bt_calloc(s->max_draws, sizeof(*s->host_fed_at));
    BT_REQUIRE(s->host_rows != NULL && s->host_masks != NULL && s->host_draws != NULL &&
                   s->host_edits != NULL && s->host_fed_at != NULL,
               BT_ERR_NO_MEMORY, "lists of %zu draws", n);
out:
    return st;
}

static bt_status create(bt_device *dev, uint32_t n_vocab, uint32_t max_draws,
                        bt_device_sampler **sampling_out)
{
    bt_status          st = BT_OK;
    bt_device_sampler *s  = bt_calloc(1, sizeof(*s));

    BT_REQUIRE(s != NULL, BT_ERR_NO_MEMORY, "sampling");
    s->dev       = dev;
    s->n_vocab   = n_vocab;
    s->chunk     = chunk_of(max_draws);
    s->max_draws = max_draws;
    BT_TRY(take_all(s));
    *sampling_out = s;
    s             = NULL; /* handed over */
out:
    destroy(s);
    return st;
}

/* ---- a step's draws, `chunk` at a time */

/* Copies of the rows that draws [first, first + n) are from. */
static bt_status copy_rows(bt_device_sampler *s, const bt_draws *d, uint32_t n)
{
    return CUDA(bt_cuda_gather_rows(
        bt_device_stream(s->dev), n, s->n_vocab * (uint32_t)(sizeof(float) / sizeof(bt_bf16)),
        (const bt_bf16 *)(const void *)d->logits, s->rows, (bt_bf16 *)(void *)s->logits));
}

/* Where the step's mask will lie, from 1 on; of neighbours that share one it goes up once. */
static uint32_t place_of(bt_device_sampler *s, uint32_t mask, uint32_t *n_masks)
{
    if (mask == 0) return 0;
    if (*n_masks == 0 || s->host_masks[*n_masks - 1] != mask - 1)
        s->host_masks[(*n_masks)++] = mask - 1;
    return *n_masks;
}

/* *n_masks_out: how many masks the draws use. */
static bt_status send_lists(bt_device_sampler *s, const bt_draws *d, uint32_t first, uint32_t n,
                            uint32_t *n_masks_out)
{
    bt_status st      = BT_OK;
    uint32_t  n_masks = 0;

    for (uint32_t i = 0; i < n; i++) {
        const bt_draw *from = &d->draws[first + i];

        s->host_rows[i]       = d->row_of != NULL ? d->row_of[from->row] : from->row;
        s->host_draws[i]      = *from;
        s->host_draws[i].mask = place_of(s, from->mask, &n_masks);
    }
    *n_masks_out = n_masks;
    BT_TRY(bt_device_upload(s->dev, s->rows, s->host_rows, n * sizeof(*s->rows)));
    BT_TRY(bt_device_upload(s->dev, s->draws, s->host_draws, n * sizeof(*s->draws)));
out:
    return st;
}

/* The edits from *at on that are for draws [first, first + n). */
static bt_status edit_rows(bt_device_sampler *s, const bt_draws *d, uint32_t first, uint32_t n,
                           uint32_t *at)
{
    bt_status st    = BT_OK;
    uint32_t  count = 0;

    for (; *at < d->n_edits && d->edits[*at].draw < first + n; ++*at) {
        s->host_edits[count] = d->edits[*at];
        s->host_edits[count++].draw -= first;
    }
    if (count == 0) goto out;
    BT_TRY(bt_device_upload(s->dev, s->edits, s->host_edits, count * sizeof(*s->edits)));
    BT_TRY(CUDA(
        bt_cuda_edit_logits(bt_device_stream(s->dev), count, s->edits, s->n_vocab, s->logits)));
out:
    return st;
}

/* Of the draws that have a history. */
static bt_status penalise(bt_device_sampler *s, const bt_draws *d, uint32_t first, uint32_t n)
{
    bool any = false;

    for (uint32_t i = first; i < first + n; i++)
        any = any || d->draws[i].history != 0;
    return !any ? BT_OK
                : CUDA(bt_cuda_penalise(bt_device_stream(s->dev), n, s->n_vocab, s->draws, s->words,
                                        s->logits));
}

/* Masks that are neighbours go up at once, and not through the ring: those of a step can be more
 * than it holds, and would wait for the stream. */
static bt_status mask_rows(bt_device_sampler *s, const bt_draws *d, uint32_t n, uint32_t n_masks)
{
    bt_status st     = BT_OK;
    size_t    words  = bt_mask_words(s->n_vocab);
    void     *stream = bt_device_stream(s->dev);

    if (n_masks == 0) goto out;
    for (uint32_t at = 0, m; at < n_masks; at += m) {
        m = 1;
        while (at + m < n_masks && s->host_masks[at + m] == s->host_masks[at] + m)
            m++;
        BT_TRY(
            CUDA(cudaMemcpyAsync(s->masks + at * words, d->masks + s->host_masks[at] * words,
                                 m * words * sizeof(*s->masks), cudaMemcpyHostToDevice, stream)));
    }
    BT_TRY(CUDA(bt_cuda_mask(stream, n, s->n_vocab, s->draws, s->masks, s->logits)));
out:
    return st;
}

static bt_status draw(bt_device_sampler *s, const bt_draws *d, uint32_t first, uint32_t n)
{
    bt_status st = BT_OK;

    BT_TRY(
        CUDA(bt_cuda_sample_run(bt_device_stream(s->dev), &(bt_cuda_sample){.n_rows  = n,
                                                                            .n_vocab = s->n_vocab,
                                                                            .logits  = s->logits,
                                                                            .draws   = s->draws,
                                                                            .e       = s->e,
                                                                            .ranked  = s->ranked,
                                                                            .order   = s->order,
                                                                            .maxima  = s->maxima,
                                                                            .sums    = s->sums,
                                                                            .ids     = s->ids,
                                                                            .next  = s->fed + first,
                                                                            .words = s->words})));
    BT_TRY(bt_device_download(s->dev, d->out->ids + first, s->ids, n * sizeof(*s->ids)));
out:
    return st;
}

static bt_status find_logprobs(bt_device_sampler *s, const bt_draws *d, uint32_t first, uint32_t n)
{
    bt_status        st  = BT_OK;
    bt_draw_results *out = d->out;
    size_t           top = (size_t)first * BT_MAX_ALTERNATIVES, tops = n * BT_MAX_ALTERNATIVES;

    BT_TRY(CUDA(bt_cuda_logprobs_run(bt_device_stream(s->dev),
                                     &(bt_cuda_logprobs){.n_rows       = n,
                                                         .n_vocab      = s->n_vocab,
                                                         .max_top      = BT_MAX_ALTERNATIVES,
                                                         .logits       = s->logits,
                                                         .ids          = s->ids,
                                                         .draws        = s->draws,
                                                         .maxima       = s->maxima,
                                                         .sums         = s->sums,
                                                         .logprob      = s->logprob,
                                                         .top_ids      = s->top_ids,
                                                         .top_logprobs = s->top_logprobs,
                                                         .n_found      = s->n_found})));
    BT_TRY(bt_device_download(s->dev, out->logprob + first, s->logprob, n * sizeof(*s->logprob)));
    BT_TRY(bt_device_download(s->dev, out->n_found + first, s->n_found, n * sizeof(*s->n_found)));
    BT_TRY(bt_device_download(s->dev, out->top_ids + top, s->top_ids, tops * sizeof(*s->top_ids)));
    BT_TRY(bt_device_download(s->dev, out->top_logprobs + top, s->top_logprobs,
                              tops * sizeof(*s->top_logprobs)));
out:
    return st;
}

static bt_status check(const bt_draws *d)
{
    bt_status st = BT_OK;

    BT_REQUIRE(d->n_edits <= BT_MAX_EDITS, BT_ERR_INVALID_ARG, "%u edits of logits, at most %d",
               d->n_edits, (int)BT_MAX_EDITS);
    for (uint32_t i = 0; i < d->n_draws; i++) {
        BT_REQUIRE(d->draws[i].history <= BT_MAX_HISTORIES, BT_ERR_INVALID_ARG,
                   "draw %u has history %u, of %d", i, d->draws[i].history, (int)BT_MAX_HISTORIES);
        BT_REQUIRE(d->draws[i].mask <= d->n_masks, BT_ERR_INVALID_ARG, "draw %u has mask %u, of %u",
                   i, d->draws[i].mask, d->n_masks);
    }
out:
    return st;
}

static bt_status run(bt_device_sampler *s, const bt_draws *d)
{
    bt_status st = BT_OK;
    uint32_t  at = 0, n_masks = 0;

    BT_TRY(check(d));
    for (uint32_t first = 0, n; first < d->n_draws; first += n) {
        n = d->n_draws - first < s->chunk ? d->n_draws - first : s->chunk;
        BT_TRY(send_lists(s, d, first, n, &n_masks));
        BT_TRY(copy_rows(s, d, n));
        BT_TRY(edit_rows(s, d, first, n, &at));
        BT_TRY(penalise(s, d, first, n));
        BT_TRY(mask_rows(s, d, n, n_masks));
        BT_TRY(draw(s, d, first, n));
        if (!d->any_logprobs) continue;
        BT_TRY(copy_rows(s, d, n)); /* logprobs are of raw logits */
        BT_TRY(find_logprobs(s, d, first, n));
    }
out:
    return st;
}

static bt_status set_history(bt_device_sampler *s, uint32_t history, uint32_t n,
                             const bt_seen_token *seen)
{
    bt_status st     = BT_OK;
    void     *stream = bt_device_stream(s->dev);
    uint32_t *words  = NULL;

    BT_REQUIRE(history >= 1 && history <= BT_MAX_HISTORIES, BT_ERR_INVALID_ARG, "history %u, of %d",
               history, (int)BT_MAX_HISTORIES);
    for (uint32_t i = 0; i < n; i++)
        BT_REQUIRE(seen[i].id < s->n_vocab, BT_ERR_INVALID_ARG, "token %u of a vocabulary of %u",
                   seen[i].id, s->n_vocab);
    words = s->words + (size_t)(history - 1) * s->n_vocab;
    BT_TRY(CUDA(cudaMemsetAsync(words, 0, s->n_vocab * sizeof(*words), stream)));
    for (uint32_t first = 0, m; first < n; first += m) {
        m = n - first < MOST_SEEN ? n - first : MOST_SEEN;
        BT_TRY(bt_device_upload(s->dev, s->seen, seen + first, m * sizeof(*seen)));
        BT_TRY(CUDA(bt_cuda_set_history(stream, m, s->seen, words)));
    }
out:
    return st;
}

static bt_status feed(bt_device_sampler *s, uint32_t n, const uint32_t *token, const uint32_t *from,
                      uint32_t *tokens)
{
    bt_status st = BT_OK;

    BT_REQUIRE(n <= s->max_draws, BT_ERR_INVALID_ARG, "%u rows are fed, at most %u", n,
               s->max_draws);
    for (uint32_t i = 0; i < n; i++) {
        BT_REQUIRE(from[i] == BT_NOT_DRAWN || from[i] < s->max_draws, BT_ERR_INVALID_ARG,
                   "row %u is fed by draw %u, of at most %u", i, from[i], s->max_draws);
        s->host_fed_at[i] = from[i] == BT_NOT_DRAWN ? s->max_draws + i : from[i];
    }
    BT_TRY(bt_device_upload(s->dev, s->fed + s->max_draws, token, n * sizeof(*token)));
    BT_TRY(bt_device_upload(s->dev, s->fed_at, s->host_fed_at, n * sizeof(*s->fed_at)));
    BT_TRY(CUDA(bt_cuda_gather_rows(
        bt_device_stream(s->dev), n, (uint32_t)(sizeof(*tokens) / sizeof(bt_bf16)),
        (const bt_bf16 *)(const void *)s->fed, s->fed_at, (bt_bf16 *)(void *)tokens)));
out:
    return st;
}

const bt_sampling_ops bt_cuda_sampling_ops = {.bytes       = bytes,
                                              .create      = create,
                                              .run         = run,
                                              .set_history = set_history,
                                              .feed        = feed,
                                              .destroy     = destroy};
