#include "worker/constraint.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"

struct bt_constraints {
    bt_token_list *list; /* owned */
    bt_constraint *first;
    size_t         most_bytes;
};

struct bt_constraint {
    bt_constraints    *all;  /* borrowed: whose list it is in */
    bt_constraint     *next; /* borrowed */
    uint32_t           n_holders;
    bt_constraint_kind kind;
    uint32_t           n_bytes;
    char              *text;    /* owned [n_bytes] */
    pthread_mutex_t    lock;    /* of the matcher: masks are made by several threads */
    bt_matcher        *matcher; /* owned */
};

bt_status bt_constraints_open(const char *model, uint32_t n_vocab, size_t most_bytes,
                              bt_constraints **all_out)
{
    bt_status       st  = BT_OK;
    bt_constraints *all = NULL;
    bt_tokenizer   *tok = NULL;
    char            path[PATH_MAX];

    *all_out = NULL;
    bt_tokenizer_file(model, path);
    if (!bt_file_exists(path)) goto out;
    st = bt_tokenizer_open(model, &tok);
    if (st != BT_OK && st != BT_ERR_NO_MEMORY) {
        BT_WARN("without a tokenizer this rank takes no requests for structured output");
        st = BT_OK;
        goto out;
    }
    BT_TRY(st);
    all = bt_calloc(1, sizeof(*all));
    BT_REQUIRE(all != NULL, BT_ERR_NO_MEMORY, "constraints");
    all->most_bytes = most_bytes;
    BT_TRY(bt_token_list_create(tok, n_vocab, &all->list));
    *all_out = all;
    all      = NULL; /* handed over */
out:
    bt_constraints_close(all);
    bt_tokenizer_close(tok);
    return st;
}

void bt_constraints_close(bt_constraints *all)
{
    if (all == NULL) return;
    BT_ASSERT(all->first == NULL);
    bt_token_list_destroy(all->list);
    bt_free(all);
}

/* ---- one of them */

static bool is_of(const bt_constraint *c, const bt_sampling *s)
{
    return c->kind == (bt_constraint_kind)s->constraint_kind &&
           c->n_bytes == s->n_constraint_bytes && memcmp(c->text, s->constraint, c->n_bytes) == 0;
}

static void destroy(bt_constraint *c)
{
    if (c == NULL) return;
    bt_matcher_destroy(c->matcher);
    pthread_mutex_destroy(&c->lock);
    bt_free(c->text);
    bt_free(c);
}

static bt_status read_text(const bt_constraints *all, const bt_sampling *s,
                           bt_matcher **matcher_out)
{
    bt_status   st                        = BT_OK;
    bt_grammar *grammar                   = NULL;
    char        why[BT_GRAMMAR_WHY_BYTES] = "";

    BT_REQUIRE(s->constraint_kind < BT_CONSTRAINT_KINDS, BT_ERR_INVALID_ARG,
               "a constraint of kind %u, expected one below %d", s->constraint_kind,
               (int)BT_CONSTRAINT_KINDS);
    st = bt_grammar_create((bt_constraint_kind)s->constraint_kind, s->constraint,
                           s->n_constraint_bytes, &grammar, why);
    BT_REQUIRE(st != BT_ERR_INVALID_ARG, BT_ERR_INVALID_ARG, "%s: %s",
               bt_constraint_name((bt_constraint_kind)s->constraint_kind), why);
    BT_TRY(st);
    BT_TRY(bt_constraint_check(bt_matcher_create(grammar, all->list, matcher_out)));
    grammar = NULL; /* handed over */
out:
    bt_grammar_destroy(grammar);
    return st;
}

static bt_status create(bt_constraints *all, const bt_sampling *s, bt_constraint **constraint_out)
{
    bt_status      st = BT_OK;
    bt_constraint *c  = bt_calloc(1, sizeof(*c));

    BT_REQUIRE(c != NULL, BT_ERR_NO_MEMORY, "a constraint");
    pthread_mutex_init(&c->lock, NULL);
    c->all     = all;
    c->kind    = (bt_constraint_kind)s->constraint_kind;
    c->n_bytes = s->n_constraint_bytes;
    c->text    = bt_copy(s->constraint, c->n_bytes, 1);
    BT_REQUIRE(c->text != NULL, BT_ERR_NO_MEMORY, "a constraint of %u bytes", c->n_bytes);
    BT_TRY(read_text(all, s, &c->matcher));
    c->next         = all->first;
    all->first      = c;
    *constraint_out = c;
    c               = NULL; /* handed over */
out:
    destroy(c);
    return st;
}

bt_status bt_constraint_acquire(bt_constraints *all, const bt_sampling *sampling,
                                bt_constraint **constraint_out)
{
    bt_status      st = BT_OK;
    bt_constraint *c  = all == NULL ? NULL : all->first;

    BT_REQUIRE(all != NULL, BT_ERR_INVALID_ARG,
               "structured output needs a tokenizer in the model's directory, this rank has none");
    while (c != NULL && !is_of(c, sampling))
        c = c->next;
    if (c == NULL) BT_TRY(create(all, sampling, &c));
    c->n_holders++;
    *constraint_out = c;
out:
    return st;
}

void bt_constraint_share(bt_constraint *c)
{
    if (c != NULL) c->n_holders++;
}

void bt_constraint_release(bt_constraint *c)
{
    bt_constraint **at = c == NULL ? NULL : &c->all->first;

    if (c == NULL || --c->n_holders > 0) return;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    destroy(c);
}

/* ---- where a choice stands */

bt_constraint_at bt_constraint_begin(const bt_constraint *c, const bt_sampling *sampling)
{
    return (bt_constraint_at){bt_matcher_start(c->matcher), sampling->constraint_after};
}

bt_status bt_constraint_next(bt_constraint *c, const bt_constraint_at *at, uint32_t id,
                             bt_constraint_at *next_out)
{
    bt_status        st   = BT_OK;
    bt_constraint_at next = *at;

    pthread_mutex_lock(&c->lock);
    if (at->after == 0)
        st = bt_matcher_step_token(c->matcher, at->state, id, &next.state);
    else if (at->after == id + 1)
        next = (bt_constraint_at){.state = bt_matcher_start(c->matcher)};
    pthread_mutex_unlock(&c->lock);
    if (st == BT_OK) *next_out = next;
    return st;
}

bt_status bt_constraint_mask(bt_constraint *c, const bt_constraint_at *at, uint64_t until_ns,
                             uint32_t *bits, bool *ends_out)
{
    bt_status st;
    size_t    most;

    pthread_mutex_lock(&c->lock);
    most      = bt_now_ns() < until_ns ? BT_MASK_WORK_MOST : BT_MASK_WORK_LITTLE;
    st        = bt_matcher_mask(c->matcher, at->state, most, bits);
    *ends_out = bt_matcher_accepts(c->matcher, at->state);
    pthread_mutex_unlock(&c->lock);
    return st;
}

bt_status bt_constraint_check(bt_status met)
{
    bt_status st = met;

    BT_REQUIRE(met != BT_ERR_UNSUPPORTED, BT_ERR_INVALID_ARG,
               "the constraint can be read in too many ways: it needs more memory or time than a "
               "request is given");
    BT_REQUIRE(met != BT_ERR_NO_MEMORY, BT_ERR_NO_MEMORY, "what may follow a constrained reply");
out:
    return st;
}

bool bt_constraints_are_crowded(const bt_constraints *all)
{
    size_t bytes = 0;

    if (all == NULL) return false;
    for (const bt_constraint *c = all->first; c != NULL; c = c->next)
        bytes += bt_matcher_held(c->matcher);
    return bytes > all->most_bytes;
}

bool bt_constraint_is_large(const bt_constraint *c, bool crowded)
{
    return bt_matcher_is_large(c->matcher) || (crowded && bt_matcher_has_grown(c->matcher));
}

bt_status bt_constraint_trim(bt_constraint *c, uint32_t n, bt_constraint_at **live)
{
    bt_status  st     = BT_OK;
    uint32_t **states = bt_calloc(n, sizeof(*states));

    BT_REQUIRE(states != NULL, BT_ERR_NO_MEMORY, "%u states of a constraint", n);
    for (uint32_t i = 0; i < n; i++) {
        if (live[i]->after != 0) live[i]->state = bt_matcher_start(c->matcher);
        states[i] = &live[i]->state;
    }
    BT_TRY(bt_matcher_trim(c->matcher, n, states));
out:
    bt_free(states);
    return st;
}
