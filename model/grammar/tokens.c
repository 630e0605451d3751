#include "model/grammar/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

void bt_token_list_destroy(bt_token_list *list)
{
    if (list == NULL) return;
    bt_free(list->sorted);
    bt_free(list->where);
    bt_free(list->bytes);
    bt_free(list);
}

static int by_bytes(const void *a, const void *b, void *of)
{
    const bt_sorted_token *x = a, *y = b;
    const char            *bytes = of;
    int                    c     = memcmp(bytes + x->at, bytes + y->at, x->n < y->n ? x->n : y->n);

    if (c == 0) c = (int)x->n - (int)y->n;
    return c != 0 ? c : (x->id < y->id ? -1 : x->id > y->id);
}

/* Of `id`, or NULL: it is no text. */
static const char *text_of(const bt_tokenizer *tok, uint32_t id, size_t *n_out)
{
    const char *bytes = bt_tokenizer_bytes(tok, id, n_out, NULL);

    return bt_tokenizer_is_text(tok, id) && *n_out <= BT_TOKEN_BYTES_MAX ? bytes : NULL;
}

static void take_texts(bt_token_list *list, const bt_tokenizer *tok)
{
    uint32_t at = 0;

    for (uint32_t id = 0; id < list->n_ids; id++) {
        size_t      n;
        const char *bytes = text_of(tok, id, &n);

        if (bytes == NULL) continue;
        memcpy(list->bytes + at, bytes, n);
        list->sorted[list->n++] = (bt_sorted_token){.id = id, .at = at, .n = (uint16_t)n};
        at += (uint32_t)n;
    }
}

static void sort(bt_token_list *list)
{
    qsort_r(list->sorted, list->n, sizeof(*list->sorted), by_bytes, list->bytes);
    for (uint32_t i = 0; i < list->n; i++) {
        bt_sorted_token       *t = &list->sorted[i];
        const bt_sorted_token *p = i > 0 ? t - 1 : t;

        while (i > 0 && t->shared < p->n && t->shared < t->n &&
               list->bytes[p->at + t->shared] == list->bytes[t->at + t->shared])
            t->shared++;
        list->where[t->id] = i + 1;
    }
}

bt_status bt_token_list_create(const bt_tokenizer *tok, uint32_t n_ids, bt_token_list **list_out)
{
    bt_status      st      = BT_OK;
    bt_token_list *list    = bt_calloc(1, sizeof(*list));
    size_t         n_bytes = 0, n;

    BT_REQUIRE(list != NULL, BT_ERR_NO_MEMORY, "a list of tokens");
    for (uint32_t id = 0; id < n_ids; id++)
        if (text_of(tok, id, &n) != NULL) n_bytes += n;
    BT_REQUIRE(n_bytes < UINT32_MAX, BT_ERR_FORMAT, "a vocabulary of %zu bytes", n_bytes);
    list->n_ids  = n_ids;
    list->bytes  = bt_calloc(n_bytes, 1);
    list->where  = bt_calloc(n_ids, sizeof(*list->where));
    list->sorted = bt_calloc(n_ids, sizeof(*list->sorted));
    BT_REQUIRE(list->bytes != NULL && list->where != NULL && list->sorted != NULL, BT_ERR_NO_MEMORY,
               "a list of %u tokens", n_ids);
    take_texts(list, tok);
    sort(list);
    *list_out = list;
    list      = NULL; /* handed over */
out:
    bt_token_list_destroy(list);
    return st;
}
