#include "coordinator/choice.h"

#include <string.h>

#include "core/alloc.h"

bt_status bt_choice_init(bt_choice *c, const bt_intake_answer *how, uint32_t max_tokens,
                         const bt_tokenizer *tokenizer)
{
    bt_status st  = BT_OK;
    size_t    top = (size_t)max_tokens * how->n_top;

    *c          = (bt_choice){.matched = BT_STOP_NONE};
    c->capacity = max_tokens;
    c->n_top    = how->n_top;
    c->ids      = bt_calloc(max_tokens, sizeof(*c->ids));
    c->logprobs = bt_calloc(max_tokens, sizeof(*c->logprobs));
    BT_REQUIRE(c->ids != NULL && c->logprobs != NULL, BT_ERR_NO_MEMORY, "%u tokens", max_tokens);
    if (top > 0) {
        c->tops         = bt_calloc(max_tokens, sizeof(*c->tops));
        c->top_ids      = bt_calloc(top, sizeof(*c->top_ids));
        c->top_logprobs = bt_calloc(top, sizeof(*c->top_logprobs));
        BT_REQUIRE(c->tops != NULL && c->top_ids != NULL && c->top_logprobs != NULL,
                   BT_ERR_NO_MEMORY, "alternatives of %u tokens", max_tokens);
    }
    if (how->stop != NULL) {
        c->stop         = how->stop;
        c->tokenizer    = tokenizer;
        c->keep_special = !how->skip_special;
        c->min_tokens   = how->min_tokens;
        c->stop_state   = bt_calloc(bt_stop_set_size(how->stop), sizeof(*c->stop_state));
        c->ends         = bt_calloc(max_tokens, sizeof(*c->ends));
        BT_REQUIRE(c->stop_state != NULL && c->ends != NULL, BT_ERR_NO_MEMORY, "stop strings");
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

bt_finish bt_choice_token(bt_choice *c, const bt_token *token)
{
    BT_ASSERT(c->n < c->capacity);
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
    else if (match(c) && (token->finish == BT_FINISH_NONE || token->finish == BT_FINISH_LENGTH))
        return BT_FINISH_STOP_STRING;
    return token->finish;
}

void bt_choice_end(bt_choice *c, bt_finish finish)
{
    c->finish  = finish;
    c->n_ready = c->n;
}
