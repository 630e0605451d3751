#include "worker/draws.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/token_mask.h"

enum {
    MOST_CHOICES    = 64,      /* of a prompt whose step has no other row */
    MOST_MASK_BYTES = 16 << 20 /* of a step */
};

static uint32_t capacity_for(uint32_t max_rows) { return max_rows + MOST_CHOICES; }

static uint32_t max_masks_for(uint32_t n_vocab, uint32_t max_rows)
{
    size_t most = MOST_MASK_BYTES / (bt_mask_words(n_vocab) * sizeof(uint32_t));

    return capacity_for(max_rows) < most ? capacity_for(max_rows) : (uint32_t)most;
}

size_t bt_draw_list_bytes(const bt_device *dev, uint32_t n_vocab, uint32_t max_rows)
{
    const bt_sampling_ops *ops = dev->ops->sampling;

    return ops == NULL ? 0 : ops->bytes(n_vocab, capacity_for(max_rows));
}

size_t bt_draw_list_pinned_bytes(const bt_device *dev, uint32_t n_vocab, uint32_t max_rows)
{
    size_t top   = sizeof(uint32_t) + sizeof(float);
    size_t draw  = sizeof(int32_t) + sizeof(float) + sizeof(uint32_t) + BT_MAX_ALTERNATIVES * top;
    size_t masks = max_masks_for(n_vocab, max_rows) * bt_mask_words(n_vocab) * sizeof(uint32_t);

    if (dev->ops->sampling == NULL) return 0;
    return 2 * (draw * capacity_for(max_rows) + masks); /* of two steps */
}

static bt_status take_host(bt_draw_list *l, size_t n, size_t bytes_each, void *ptr_out)
{
    bt_status st  = BT_OK;
    void     *mem = NULL;

    BT_TRY(bt_device_alloc_host(l->dev, n * bytes_each, &mem));
    *(void **)ptr_out = mem;
out:
    return st;
}

static bt_status take_results(bt_draw_list *l, bt_draw_results *out)
{
    bt_status st = BT_OK;
    size_t    n = l->capacity, tops = n * BT_MAX_ALTERNATIVES;

    BT_TRY(take_host(l, n, sizeof(*out->ids), &out->ids));
    BT_TRY(take_host(l, n, sizeof(*out->logprob), &out->logprob));
    BT_TRY(take_host(l, n, sizeof(*out->n_found), &out->n_found));
    BT_TRY(take_host(l, tops, sizeof(*out->top_ids), &out->top_ids));
    BT_TRY(take_host(l, tops, sizeof(*out->top_logprobs), &out->top_logprobs));
out:
    return st;
}

static void free_results(bt_draw_list *l, bt_draw_results *out)
{
    bt_device_free_host(l->dev, out->ids);
    bt_device_free_host(l->dev, out->logprob);
    bt_device_free_host(l->dev, out->n_found);
    bt_device_free_host(l->dev, out->top_ids);
    bt_device_free_host(l->dev, out->top_logprobs);
}

bt_status bt_draw_list_init(bt_draw_list *l, bt_device *dev, uint32_t n_vocab, uint32_t max_rows)
{
    bt_status st = BT_OK;
    size_t    n  = capacity_for(max_rows);

    *l = (bt_draw_list){.dev        = dev,
                        .n_vocab    = n_vocab,
                        .capacity   = capacity_for(max_rows),
                        .max_masks  = max_masks_for(n_vocab, max_rows),
                        .mask_words = bt_mask_words(n_vocab)};
    if (dev->ops->sampling == NULL) goto out;
    l->draws = bt_calloc(n, sizeof(*l->draws));
    l->edits = bt_calloc(BT_MAX_EDITS, sizeof(*l->edits));
    l->seen  = bt_calloc(n_vocab, sizeof(*l->seen));
    BT_REQUIRE(l->draws != NULL && l->edits != NULL && l->seen != NULL, BT_ERR_NO_MEMORY,
               "a list of %zu draws", n);
    for (int i = 0; i < 2; i++) {
        BT_TRY(take_results(l, &l->out[i]));
        BT_TRY(
            take_host(l, (size_t)l->max_masks * l->mask_words, sizeof(*l->masks[i]), &l->masks[i]));
    }
    BT_TRY(dev->ops->sampling->create(dev, n_vocab, l->capacity, &l->sampling));
out:
    if (st != BT_OK) bt_draw_list_fini(l);
    return st;
}

void bt_draw_list_fini(bt_draw_list *l)
{
    if (l->dev == NULL) return;
    if (l->dev->ops->sampling != NULL) l->dev->ops->sampling->destroy(l->sampling);
    for (int i = 0; i < 2; i++) {
        free_results(l, &l->out[i]);
        bt_device_free_host(l->dev, l->masks[i]);
    }
    bt_free(l->draws);
    bt_free(l->edits);
    bt_free(l->seen);
    *l = (bt_draw_list){0};
}

void bt_draw_list_clear(bt_draw_list *l)
{
    l->n = l->n_edits = l->n_masks = 0;
    l->any_logprobs                = false;
    l->turn                        = 1 - l->turn;
}

bt_status bt_draw_list_set_history(bt_draw_list *l, uint32_t i, const bt_history *history)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < history->capacity; k++) {
        const bt_history_entry *e = &history->at[k];

        if (e->used) l->seen[n++] = (bt_seen_token){e->id, e->count};
    }
    return l->dev->ops->sampling->set_history(l->sampling, i, n, l->seen);
}

/* ---- edits: an id may stand in several lists, and gets one edit */

static bt_logit_edit *add_edit(bt_draw_list *l, uint32_t id)
{
    bt_logit_edit *e = l->n_edits == BT_MAX_EDITS ? NULL : &l->edits[l->n_edits++];

    if (e != NULL) *e = (bt_logit_edit){.draw = l->n, .id = id, .repetition = 1};
    return e;
}

static float repetition_of(const bt_sample_how *how)
{
    return how->repetition == 0 ? 1.0f : how->repetition;
}

static bool add_history(bt_draw_list *l, const bt_sample_how *how)
{
    const bt_history *h = how->history;

    for (uint32_t i = 0; h != NULL && i < h->capacity; i++) {
        bt_logit_edit *e;

        if (!h->at[i].used) continue;
        e = add_edit(l, h->at[i].id);
        if (e == NULL) return false;
        e->repetition = repetition_of(how);
        e->frequency  = how->frequency;
        e->presence   = how->presence;
        e->count      = h->at[i].count;
    }
    return true;
}

static bool add_lists(bt_draw_list *l, const bt_sample_how *how)
{
    for (uint32_t i = 0; i < how->biased.n; i++) {
        bt_logit_edit *e = add_edit(l, how->biased.ids[i]);

        if (e == NULL) return false;
        e->bias = how->biases[i];
    }
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < how->banned[list].n; i++) {
            bt_logit_edit *e = add_edit(l, how->banned[list].ids[i]);

            if (e == NULL) return false;
            e->banned = 1;
        }
    return true;
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const bt_logit_edit *)a)->id, y = ((const bt_logit_edit *)b)->id;

    return x < y ? -1 : x > y;
}

/* Merges those of the last n edits that have the same id: only one of them has a bias, only one
 * penalties. */
static void merge(bt_draw_list *l, uint32_t n)
{
    bt_logit_edit *e    = l->edits + l->n_edits - n;
    uint32_t       kept = 0;

    if (n == 0) return;
    qsort(e, n, sizeof(*e), by_id);
    for (uint32_t i = 1; i < n; i++) {
        if (e[i].id != e[kept].id) {
            e[++kept] = e[i];
            continue;
        }
        e[kept].bias += e[i].bias;
        if (e[i].repetition != 1) e[kept].repetition = e[i].repetition;
        e[kept].frequency += e[i].frequency;
        e[kept].presence += e[i].presence;
        e[kept].count += e[i].count;
        e[kept].banned |= e[i].banned;
    }
    l->n_edits -= n - kept - 1;
}

/* ---- draws */

/* The choices from a prompt's row have the same mask. */
static bool add_mask(bt_draw_list *l, const uint32_t *allowed, uint32_t *mask_out)
{
    size_t    bytes = l->mask_words * sizeof(*allowed);
    uint32_t *next  = l->masks[l->turn] + (size_t)l->n_masks * l->mask_words;

    if (allowed != NULL && (l->n_masks == 0 || memcmp(next - l->mask_words, allowed, bytes) != 0)) {
        if (l->n_masks == l->max_masks) return false;
        memcpy(next, allowed, bytes);
        l->n_masks++;
    }
    *mask_out = allowed == NULL ? 0 : l->n_masks;
    return true;
}

bool bt_draw_list_add(bt_draw_list *l, const bt_sample_how *how, uint32_t history, uint32_t row,
                      bool logprobs, uint32_t n_top)
{
    uint32_t before = l->n_edits, mask = 0;

    if (l->n == l->capacity || (history == 0 && !add_history(l, how)) || !add_lists(l, how) ||
        !add_mask(l, how->allowed, &mask))
        return false;
    merge(l, l->n_edits - before);
    l->draws[l->n++] = (bt_draw){.row         = row,
                                 .top_k       = how->top_k,
                                 .temperature = how->temperature,
                                 .top_p       = how->top_p,
                                 .min_p       = how->min_p,
                                 .n_top       = logprobs ? n_top : 0,
                                 .uniform     = bt_sample_uniform(how),
                                 .history     = history,
                                 .repetition  = repetition_of(how),
                                 .frequency   = how->frequency,
                                 .presence    = how->presence,
                                 .mask        = mask};
    l->any_logprobs  = l->any_logprobs || logprobs;
    return true;
}

bt_draws bt_draw_list_view(bt_draw_list *l)
{
    return (bt_draws){.n_draws      = l->n,
                      .n_edits      = l->n_edits,
                      .draws        = l->draws,
                      .edits        = l->edits,
                      .n_masks      = l->n_masks,
                      .masks        = l->masks[l->turn],
                      .any_logprobs = l->any_logprobs,
                      .out          = &l->out[l->turn]};
}

bool bt_drawn_id(const bt_draw_list *l, const bt_draw_results *out, uint32_t i, uint32_t *id_out)
{
    uint32_t id = (uint32_t)out->ids[i]; /* BT_NO_TOKEN is beyond every vocabulary */

    if (id >= l->n_vocab) return false;
    *id_out = id;
    return true;
}

uint32_t bt_drawn_logprobs(const bt_draw_results *out, uint32_t i, float *logprob_out,
                           uint32_t *ids_out, float *logprobs_out)
{
    size_t   at = (size_t)i * BT_MAX_ALTERNATIVES;
    uint32_t n  = out->n_found[i];

    BT_ASSERT(n <= BT_MAX_ALTERNATIVES);
    *logprob_out = out->logprob[i];
    memcpy(ids_out, out->top_ids + at, n * sizeof(*ids_out));
    memcpy(logprobs_out, out->top_logprobs + at, n * sizeof(*logprobs_out));
    return n;
}
