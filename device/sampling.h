/* device/sampling.h - tokens and logprobs chosen on a device, for the rows of one step.
 *
 * The order of things, every sum and so every bit are those of worker/sampler.h.  Logits are device
 * memory, all lists the host's. */
#ifndef BT_DEVICE_SAMPLING_H
#define BT_DEVICE_SAMPLING_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_MAX_ALTERNATIVES = 20,
    BT_MAX_EDITS        = 1 << 16, /* of a step */
    BT_MAX_HISTORIES    = 64,
    BT_NO_TOKEN         = -1
};
#define BT_NOT_DRAWN UINT32_MAX /* what is known already */

/* One token from one row. */
typedef struct {
    uint32_t row;         /* of the step's logits; several draws may be from one */
    uint32_t top_k;       /* 0: off */
    float    temperature; /* 0: greedy */
    float    top_p;       /* 0 and from 1 on: off */
    float    min_p;       /* 0: off */
    uint32_t n_top;       /* alternatives wanted, at most BT_MAX_ALTERNATIVES */
    double   uniform;     /* in [0, 1) */
    uint32_t history;     /* 1 .. BT_MAX_HISTORIES: its tokens get the penalties, after the edits,
                             and the token that is drawn is added to it; 0: none */
    float    repetition, frequency, presence; /* 1, 0 and 0: no penalty */
    uint32_t mask; /* 1 .. n_masks: whose ids alone may come; several may share one; 0: none */
} bt_draw;

/* A token of a sequence, and how often it was generated; 0: it is of the prompt alone. */
typedef struct {
    uint32_t id, count;
} bt_seen_token;

/* One id's bias, penalty and ban, in this order. */
typedef struct {
    uint32_t draw, id;
    float    bias;
    float    repetition, frequency, presence; /* 1, 0 and 0: no penalty */
    uint32_t count;                           /* how often the id was generated */
    uint32_t banned;                          /* 0 or 1 */
} bt_logit_edit;

/* [max draws]; memory of bt_device_alloc_host(). */
typedef struct {
    int32_t  *ids;     /* BT_NO_TOKEN: the highest logit is no finite number */
    float    *logprob; /* these four where any_logprobs was set */
    uint32_t *n_found; /* alternatives: n_top, or fewer when fewer are finite */
    uint32_t *top_ids; /* [..][BT_MAX_ALTERNATIVES] */
    float    *top_logprobs;
} bt_draw_results;

typedef struct {
    const float         *logits; /* device [rows, n_vocab], raw; not changed */
    const uint32_t      *row_of; /* a draw is from row row_of[its row]; NULL: from its row */
    uint32_t             n_draws, n_edits, n_masks;
    const bt_draw       *draws;
    const bt_logit_edit *edits; /* by draw ascending; ids of a draw are distinct */
    const uint32_t *masks; /* [n_masks][(n_vocab + 31) / 32]: bit id % 32 of word id / 32; memory
                              of bt_device_alloc_host(), as it is until `out` is there */
    bool             any_logprobs;
    bt_draw_results *out; /* there when the device has come to what is enqueued by then */
} bt_draws;

typedef struct bt_device_sampler bt_device_sampler;

struct bt_sampling_ops {
    /* Device memory that create() takes. */
    size_t (*bytes)(uint32_t n_vocab, uint32_t max_draws);
    bt_status (*create)(bt_device *dev, uint32_t n_vocab, uint32_t max_draws,
                        bt_device_sampler **sampling_out);
    bt_status (*run)(bt_device_sampler *s, const bt_draws *d); /* enqueued */
    /* The history is these distinct tokens from then on; the list is free again when the call
     * returns.  Enqueued. */
    bt_status (*set_history)(bt_device_sampler *s, uint32_t history, uint32_t n,
                             const bt_seen_token *seen);
    /* tokens[r], device: the id that draw from[r] of the last run has chosen (0 where there is
     * none), or token[r] where from[r] is BT_NOT_DRAWN.  n at most max_draws; the lists are free
     * again when the call returns.  Enqueued. */
    bt_status (*feed)(bt_device_sampler *s, uint32_t n, const uint32_t *token, const uint32_t *from,
                      uint32_t *tokens);
    void (*destroy)(bt_device_sampler *s); /* NULL is allowed */
};

#ifdef __cplusplus
}
#endif
#endif
