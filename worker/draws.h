/* worker/draws.h - a step's choices, in the form that a device which samples by itself takes
 * (device/sampling.h), and its results.
 *
 * The host chooses where the device does not sample, and in steps that want logits themselves
 * (evaluations, a prompt's own logprobs) or more than fits: the bits are the same.
 *
 * The list is for the next step; results of two steps are kept, so that one may be under way. */
#ifndef BT_WORKER_DRAWS_H
#define BT_WORKER_DRAWS_H

#include "device/sampling.h"
#include "worker/sampler.h"

typedef struct {
    bt_device         *dev;      /* borrowed */
    bt_device_sampler *sampling; /* owned; NULL: the host chooses */
    uint32_t           capacity, n_vocab;
    bt_draw           *draws;    /* owned: [capacity] */
    bt_logit_edit     *edits;    /* owned: [BT_MAX_EDITS] */
    bt_seen_token     *seen;     /* owned: [n_vocab] of a history on its way */
    bt_draw_results    out[2];   /* owned: [capacity]; by turns */
    uint32_t          *masks[2]; /* owned: [max_masks][mask_words]; by turns */
    uint32_t           max_masks, mask_words;
    uint32_t           turn;
    uint32_t           n, n_edits, n_masks; /* of the step */
    bool               any_logprobs;
} bt_draw_list;

/* For steps of at most max_rows rows.  NO_MEMORY, DEVICE. */
bt_status bt_draw_list_init(bt_draw_list *l, bt_device *dev, uint32_t n_vocab, uint32_t max_rows);
void      bt_draw_list_fini(bt_draw_list *l);
/* Device memory that init() takes; and pinned memory. */
size_t bt_draw_list_bytes(const bt_device *dev, uint32_t n_vocab, uint32_t max_rows);
size_t bt_draw_list_pinned_bytes(const bt_device *dev, uint32_t n_vocab, uint32_t max_rows);

void bt_draw_list_clear(bt_draw_list *l);
/* The device's history i is this one; what draws add to it from then on it counts itself.
 * Enqueued.  DEVICE. */
bt_status bt_draw_list_set_history(bt_draw_list *l, uint32_t i, const bt_history *history);
/* One more choice, from row `row` of the step's logits; logprobs: with n_top alternatives.
 * history: the device's that stands for how->history; 0: that goes up with the choice.  Copies
 * how->allowed, but once where choices in a row have the same ones.  False: there is no room. */
bool bt_draw_list_add(bt_draw_list *l, const bt_sample_how *how, uint32_t history, uint32_t row,
                      bool logprobs, uint32_t n_top);
/* What the model runs.  Its `out` and `masks` are good until the list has been cleared twice, the
 * rest until the step is launched. */
bt_draws bt_draw_list_view(bt_draw_list *l);
/* As bt_sample(), of choice i of the step that had `out`, when that has come. */
bool bt_drawn_id(const bt_draw_list *l, const bt_draw_results *out, uint32_t i, uint32_t *id_out);
/* As bt_logprobs(). */
uint32_t bt_drawn_logprobs(const bt_draw_results *out, uint32_t i, float *logprob_out,
                           uint32_t *ids_out, float *logprobs_out);

#endif
