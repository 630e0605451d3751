/* worker/masks.c - which tokens may follow the rows of a step whose replies are constrained: one
 * mask for each draw, made by a thread that is free.
 *
 * Most take microseconds.  One that takes long waits for the others, and has what time the step
 * gives such: beyond that its request fails, and nobody else's.
 *
 * Behind a row of a draft, what may follow depends on the draft's tokens before it.  Where these do
 * not belong, nothing that is drawn behind them will stand either. */
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "worker/state.h"

/* For masks that take long: other ranks wait for the step. */
#define MOST_NS BT_NS_PER_S

static uint32_t n_words(const bt_worker *w)
{
    return bt_mask_words(w->cfg.facts.model->vocab_size);
}

bt_status bt_worker_take_masks(bt_worker *w, uint32_t n)
{
    bt_status st = BT_OK;
    void     *grown;

    w->n_masks = 0;
    if (n <= w->masks_capacity) return BT_OK;
    grown = bt_realloc(w->masks, n, sizeof(*w->masks));
    if (grown != NULL) w->masks = grown;
    BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "masks of %u tokens", n);
    grown = bt_realloc(w->mask_bits, (size_t)n * n_words(w), sizeof(*w->mask_bits));
    BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "masks of %u tokens", n);
    w->mask_bits      = grown;
    w->masks_capacity = n;
out:
    return st;
}

void bt_worker_add_mask(bt_worker *w, const bt_request *r, const uint32_t *first, uint32_t n_draft)
{
    bt_constraint_at at = r->constraint_at;
    bt_status        st = BT_OK;
    bt_constraint   *c  = r->constraint;

    if (first != NULL && c != NULL) st = bt_constraint_next(c, &at, *first, &at);
    for (uint32_t i = 0; i < n_draft && c != NULL && st == BT_OK; i++)
        st = bt_constraint_next(c, &at, r->draft[i], &at);
    BT_ASSERT(w->n_masks < w->masks_capacity);
    w->masks[w->n_masks++] = (bt_draw_mask){
        .request = r, .constraint = c != NULL && at.after == 0 ? c : NULL, .at = at, .st = st};
}

bt_status bt_worker_trim_constraint(bt_worker *w, bt_constraint *c, bool crowded)
{
    bt_status          st   = BT_OK;
    uint32_t           n    = 0;
    bt_constraint_at **live = NULL;

    if (!bt_constraint_is_large(c, crowded)) goto out;
    live = bt_calloc(w->requests.n, sizeof(*live));
    BT_REQUIRE(live != NULL, BT_ERR_NO_MEMORY, "%u requests of a constraint", w->requests.n);
    for (uint32_t i = 0; i < w->requests.n; i++)
        if (w->requests.at[i]->constraint == c) live[n++] = &w->requests.at[i]->constraint_at;
    BT_TRY(bt_constraint_trim(c, n, live));
out:
    bt_free(live);
    return st;
}

static void allow(uint32_t *bits, uint32_t n, const uint32_t *ids)
{
    for (uint32_t i = 0; i < n; i++)
        bt_mask_add(bits, ids[i]);
}

static void make_mask(bt_worker *w, uint32_t i, uint64_t until_ns)
{
    bt_draw_mask          *m     = &w->masks[i];
    const bt_model_config *model = w->cfg.facts.model;
    uint32_t              *bits  = w->mask_bits + (size_t)i * n_words(w);

    memset(bits, 0, n_words(w) * sizeof(*bits));
    if (m->constraint == NULL || m->st != BT_OK) return;
    m->st = bt_constraint_mask(m->constraint, &m->at, until_ns, bits, &m->ends);
    if (m->st != BT_OK) { /* of a draft perhaps: nothing is drawn behind it then */
        memset(bits, 0, n_words(w) * sizeof(*bits));
        return;
    }
    if (m->ends) {
        allow(bits, model->n_eos, model->eos_tokens);
        allow(bits, m->request->sampling.n_stop, m->request->sampling.stop_tokens);
    }
    for (uint32_t word = 0; word < n_words(w); word++)
        m->any = m->any || bits[word] != 0;
}

static void soon_task(void *ctx, uint32_t i, uint32_t thread)
{
    bt_draw_mask *m    = &((bt_worker *)ctx)->masks[i];
    bool          asks = m->st == BT_OK;

    (void)thread;
    make_mask(ctx, i, 0);
    m->late = asks && m->st == BT_ERR_UNSUPPORTED;
}

void bt_worker_fill_masks(bt_worker *w) { bt_worker_on_all(w, w->n_masks, soon_task, w); }

/* Those that take long, as long as the step has time for such. */
static void late_task(void *ctx, uint32_t i, uint32_t thread)
{
    bt_worker    *w        = ctx;
    bt_draw_mask *m        = &w->masks[i];
    uint64_t      until_ns = w->masks_from_ns + MOST_NS;

    (void)thread;
    if (!m->late || bt_now_ns() >= until_ns) return;
    m->st = BT_OK;
    make_mask(w, i, until_ns);
}

static bool is_constrained(const bt_batch *b, uint32_t piece)
{
    return bt_batch_n_draws(b, piece) > 0 && b->pieces[piece].request->constraint != NULL;
}

/* Also those that have no rows in the step. */
static bt_status trim_all(bt_worker *w)
{
    bt_status st      = BT_OK;
    bool      crowded = bt_constraints_are_crowded(w->cfg.facts.constraints);

    for (uint32_t i = 0; i < w->requests.n; i++) {
        bt_constraint *c = w->requests.at[i]->constraint;

        if (c != NULL) BT_TRY(bt_worker_trim_constraint(w, c, crowded));
    }
out:
    return st;
}

/* All choices of a prompt share a mask. */
bt_status bt_worker_make_masks(bt_worker *w, bt_batch *b)
{
    bt_status st = BT_OK;
    uint32_t  n  = 0;

    for (uint32_t i = 0; i < b->n_pieces; i++) {
        if (is_constrained(b, i)) n += 1 + b->pieces[i].n_draft;
    }
    BT_TRY(bt_worker_take_masks(w, n));
    if (n > 0) BT_TRY(trim_all(w));
    for (uint32_t i = 0; i < b->n_pieces; i++) {
        b->first_mask[i] = w->n_masks;
        for (uint32_t k = 0; is_constrained(b, i) && k <= b->pieces[i].n_draft; k++)
            bt_worker_add_mask(w, b->pieces[i].request, NULL, k);
    }
    bt_worker_fill_masks(w);
    w->masks_from_ns = bt_now_ns();
    bt_worker_on_all(w, w->n_masks, late_task, w);
out:
    return st;
}

static bool is_banned(const bt_sample_how *how, uint32_t id)
{
    for (int list = 0; list < 2; list++)
        for (uint32_t i = 0; i < how->banned[list].n; i++)
            if (how->banned[list].ids[i] == id) return true;
    return false;
}

/* Whether some token is allowed and not banned. */
static bool leaves_any(const bt_sample_how *how, uint32_t n)
{
    for (uint32_t word = 0; word < n; word++)
        for (uint32_t bits = how->allowed[word]; bits != 0; bits &= bits - 1)
            if (!is_banned(how, 32 * word + (uint32_t)__builtin_ctz(bits))) return true;
    return false;
}

void bt_worker_apply_mask(const bt_worker *w, uint32_t mask, bt_sample_how *how)
{
    const bt_model_config *model = w->cfg.facts.model;
    const bt_draw_mask    *m     = &w->masks[mask];

    if (m->constraint == NULL && m->at.after == 0) return;
    if (!m->ends) { /* what is not whole, or has not begun, though the text may hold these tokens */
        how->banned[0] =
            (bt_id_list){m->request->sampling.stop_tokens, m->request->sampling.n_stop};
        how->banned[1] = (bt_id_list){model->eos_tokens, model->n_eos};
    }
    if (m->constraint == NULL) return;
    how->allowed = w->mask_bits + (size_t)mask * n_words(w);
    /* Bans would leave nothing: the text is complete, or goes on with a stop token only. */
    if (how->banned[0].n + how->banned[1].n > 0 && !leaves_any(how, n_words(w)))
        how->banned[0] = how->banned[1] = (bt_id_list){0};
}

bt_status bt_worker_mask_status(const bt_worker *w, uint32_t mask)
{
    bt_status           st = BT_OK;
    const bt_draw_mask *m  = &w->masks[mask];

    BT_ASSERT(mask < w->n_masks);
    BT_TRY(bt_constraint_check(m->st));
    BT_REQUIRE(m->constraint == NULL || m->any, BT_ERR_INVALID_ARG,
               "no token of the model's may follow the reply as its constraint has it");
out:
    return st;
}
