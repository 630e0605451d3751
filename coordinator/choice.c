#include "coordinator/choice.h"

#include <string.h>

#include "core/alloc.h"

enum { CAPACITY_INIT = 64 }; /* tokens */

bt_status bt_choice_init(bt_choice *c, const bt_intake_answer *how, const bt_tokenizer *tokenizer)
{
    bt_status st = BT_OK;

    *c = (bt_choice){.matched = BT_STOP_NONE, .n_top = how->n_top};
    if (how->stop != NULL) {
        c->stop         = how->stop;
        c->tokenizer    = tokenizer;
        c->keep_special = !how->skip_special;
        c->min_tokens   = how->min_tokens;
        c->stop_state   = bt_calloc(bt_stop_set_size(how->stop), sizeof(*c->stop_state));
        BT_REQUIRE(c->stop_state != NULL, BT_ERR_NO_MEMORY, "stop strings");
    }
out:
    return st;
}

void bt_choice_fini(bt_choice *c)
{
    bt_free(c->ids);
    bt_free(c->logprobs);
    bt_free(c->tops);
    bt_free(c->top_ids);
    bt_free(c->top_logprobs);
    bt_free(c->stop_state);
    bt_free(c->ends);
    *c = (bt_choice){0};
}

/* Looks for stop strings in the newest token; true when one is complete. */
static bool match(bt_choice *c)
{
    bool        special = false;
    size_t      n       = 0;
    uint32_t    held = 0, last = c->n - 1;
    const char *bytes = bt_tokenizer_bytes(c->tokenizer, c->ids[last], &n, &special);

    if (special && !c->keep_special) n = 0;
    c->matched    = bt_stop_feed(c->stop, c->stop_state, bytes, n, last >= c->min_tokens, &held);
    c->ends[last] = c->n_bytes += n;
    while (c->n_ready < c->n && c->ends[c->n_ready] + held <= c->n_bytes)
        c->n_ready++;
    return c->matched != BT_STOP_NONE;
}

/* The array with room for n elements, or as it was. */
static void *grown(void *array, size_t n, size_t elem_bytes, bool *ok)
{
    void *larger = bt_realloc(array, n, elem_bytes);

    if (larger != NULL) return larger;
    *ok = false;
    return array;
}

/* Few choices have as many tokens as they may have. */
static bt_status grow(bt_choice *c)
{
    bt_status st       = BT_OK;
    bool      ok       = true;
    uint32_t  capacity = c->capacity == 0 ? CAPACITY_INIT : 2 * c->capacity;
    size_t    n = capacity, top = n * c->n_top;

    c->ids      = grown(c->ids, n, sizeof(*c->ids), &ok);
    c->logprobs = grown(c->logprobs, n, sizeof(*c->logprobs), &ok);
    if (c->n_top > 0) {
        c->tops         = grown(c->tops, n, sizeof(*c->tops), &ok);
        c->top_ids      = grown(c->top_ids, top, sizeof(*c->top_ids), &ok);
        c->top_logprobs = grown(c->top_logprobs, top, sizeof(*c->top_logprobs), &ok);
    }
    if (c->stop != NULL) c->ends = grown(c->ends, n, sizeof(*c->ends), &ok);
    BT_REQUIRE(ok, BT_ERR_NO_MEMORY, "%u tokens of choice %u", capacity, c->index);
    c->capacity = capacity;
out:
    return st;
}

bt_status bt_choice_token(bt_choice *c, const bt_token *token, bt_finish *finish_out)
{
    bt_status st     = BT_OK;
    bt_finish finish = token->finish;

    if (c->n == c->capacity) BT_TRY(grow(c));
    c->ids[c->n]      = token->id;
    c->logprobs[c->n] = token->logprob;
    if (c->n_top > 0) {
        uint32_t n  = token->n_top < c->n_top ? token->n_top : c->n_top;
        size_t   at = (size_t)c->n * c->n_top;

        c->tops[c->n] = (uint8_t)n;
        memcpy(c->top_ids + at, token->top_ids, n * sizeof(*c->top_ids));
        memcpy(c->top_logprobs + at, token->top_logprobs, n * sizeof(*c->top_logprobs));
    }
    c->n++;
    if (c->stop == NULL)
        c->n_ready = c->n;
    else if (match(c) && (finish == BT_FINISH_NONE || finish == BT_FINISH_LENGTH))
        finish = BT_FINISH_STOP_STRING;
    *finish_out = finish;
out:
    return st;
}

void bt_choice_end(bt_choice *c, bt_finish finish)
{
    c->finish  = finish;
    c->n_ready = c->n;
}
