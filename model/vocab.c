/* The tokens of a vocabulary by their bytes. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/tokenizer_parts.h"

/* memcmp order, a prefix first. */
static int compare(const bt_tokenizer *tok, uint32_t id, const char *text, size_t n)
{
    const bt_vocab_token *t     = &tok->tokens[id];
    int                   order = memcmp(tok->arena + t->at, text, t->n < n ? t->n : n);

    return order != 0 ? order : (t->n > n) - (t->n < n);
}

static int by_text(const void *a, const void *b, void *ctx)
{
    const bt_tokenizer   *tok = ctx;
    const bt_vocab_token *t   = &tok->tokens[*(const uint32_t *)b];

    return compare(tok, *(const uint32_t *)a, tok->arena + t->at, t->n);
}

void bt_vocab_order(const bt_tokenizer *tok, uint32_t *ids, size_t n)
{
    qsort_r(ids, n, sizeof(*ids), by_text, (void *)(uintptr_t)tok);
}

bt_status bt_vocab_sort(bt_tokenizer *tok)
{
    bt_status st = BT_OK;

    tok->by_text = bt_calloc(tok->n_tokens, sizeof(*tok->by_text));
    BT_REQUIRE(tok->by_text != NULL, BT_ERR_NO_MEMORY, "%s: %u tokens", tok->path, tok->n_tokens);
    for (uint32_t id = 0; id < tok->n_tokens; id++)
        if (tok->tokens[id].mapped) tok->by_text[tok->n_by_text++] = id;
    bt_vocab_order(tok, tok->by_text, tok->n_by_text);
out:
    return st;
}

bool bt_vocab_find(const bt_tokenizer *tok, const char *text, size_t n, uint32_t *id_out)
{
    size_t lo = 0, hi = tok->n_by_text;

    while (lo < hi) {
        size_t mid   = lo + (hi - lo) / 2;
        int    order = compare(tok, tok->by_text[mid], text, n);

        if (order == 0) {
            *id_out = tok->by_text[mid];
            return true;
        }
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}
