#include "model/grammar/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

void bt_token_list_destroy(bt_token_list *list)
{
    if (list == NULL) return;
    bt_free(list->nodes);
    bt_free(list->same);
    bt_free(list->texts);
    bt_free(list->bytes);
    bt_free(list);
}

/* Of `id`, or NULL: it is no text. */
static const char *text_of(const bt_tokenizer *tok, uint32_t id, size_t *n_out)
{
    const char *bytes = bt_tokenizer_bytes(tok, id, n_out, NULL);

    return bt_tokenizer_is_text(tok, id) && *n_out <= BT_TOKEN_BYTES_MAX ? bytes : NULL;
}

/* Copies the texts, and the ids of those that are some into sorted[]; returns how many. */
static uint32_t take_texts(bt_token_list *list, const bt_tokenizer *tok, uint32_t *sorted)
{
    uint32_t at = 0, n_texts = 0;

    for (uint32_t id = 0; id < list->n_ids; id++) {
        size_t      n;
        const char *bytes = text_of(tok, id, &n);

        if (bytes == NULL) continue;
        memcpy(list->bytes + at, bytes, n);
        list->texts[id]   = (bt_token_text){at, (uint32_t)n};
        sorted[n_texts++] = id;
        at += (uint32_t)n;
    }
    return n_texts;
}

static int by_bytes(const void *a, const void *b, void *of)
{
    const bt_token_list *list = of;
    uint32_t             x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const bt_token_text *p = &list->texts[x], *q = &list->texts[y];
    int c = memcmp(list->bytes + p->at, list->bytes + q->at, p->n < q->n ? p->n : q->n);

    if (c == 0) c = (int)p->n - (int)q->n;
    return c != 0 ? c : (x < y ? -1 : x > y);
}

/* How many bytes begin both. */
static uint32_t shared(const bt_token_list *list, uint32_t a, uint32_t b)
{
    const bt_token_text *p = &list->texts[a], *q = &list->texts[b];
    uint32_t             n = 0;

    while (n < p->n && n < q->n && list->bytes[p->at + n] == list->bytes[q->at + n])
        n++;
    return n;
}

/* The tree below the sorted ids, of which each adds what it does not share with the one before. */
static void make_nodes(bt_token_list *list, const uint32_t *sorted, uint32_t n)
{
    uint32_t open[BT_TOKEN_BYTES_MAX + 1]; /* the last node of each depth, up to `depth` */
    uint32_t depth = 0;

    for (uint32_t i = 0; i < n; i++) {
        const bt_token_text *t    = &list->texts[sorted[i]];
        uint32_t             keep = i == 0 ? 0 : shared(list, sorted[i - 1], sorted[i]);

        if (keep == t->n) { /* that one again */
            list->same[list->n_same][0]   = sorted[i];
            list->same[list->n_same++][1] = list->nodes[open[depth]].id;
            continue;
        }
        for (; depth > keep; depth--)
            list->nodes[open[depth]].next = list->n_nodes;
        while (depth < t->n) {
            open[++depth] = list->n_nodes;
            list->nodes[list->n_nodes++] =
                (bt_token_node){.id    = BT_NOT_A_TOKEN,
                                .depth = (uint16_t)depth,
                                .byte  = (uint8_t)list->bytes[t->at + depth - 1]};
        }
        list->nodes[open[depth]].id = sorted[i];
    }
    for (; depth > 0; depth--)
        list->nodes[open[depth]].next = list->n_nodes;
}

static bt_status take_memory(bt_token_list *list, const bt_tokenizer *tok)
{
    bt_status st      = BT_OK;
    size_t    n_bytes = 0, n;

    for (uint32_t id = 0; id < list->n_ids; id++)
        if (text_of(tok, id, &n) != NULL) n_bytes += n;
    BT_REQUIRE(n_bytes < UINT32_MAX, BT_ERR_FORMAT, "a vocabulary of %zu bytes", n_bytes);
    list->bytes = bt_calloc(n_bytes, 1);
    list->nodes = bt_calloc(n_bytes, sizeof(*list->nodes));
    list->same  = bt_calloc(list->n_ids, sizeof(*list->same));
    list->texts = bt_calloc(list->n_ids, sizeof(*list->texts));
    BT_REQUIRE(list->bytes != NULL && list->nodes != NULL && list->same != NULL &&
                   list->texts != NULL,
               BT_ERR_NO_MEMORY, "a list of %u tokens", list->n_ids);
out:
    return st;
}

bt_status bt_token_list_create(const bt_tokenizer *tok, uint32_t n_ids, bt_token_list **list_out)
{
    bt_status      st     = BT_OK;
    bt_token_list *list   = bt_calloc(1, sizeof(*list));
    uint32_t      *sorted = bt_calloc(n_ids, sizeof(*sorted)), n;

    BT_REQUIRE(list != NULL && sorted != NULL, BT_ERR_NO_MEMORY, "a list of %u tokens", n_ids);
    list->n_ids = n_ids;
    BT_TRY(take_memory(list, tok));
    n = take_texts(list, tok, sorted);
    qsort_r(sorted, n, sizeof(*sorted), by_bytes, list);
    make_nodes(list, sorted, n);
    *list_out = list;
    list      = NULL; /* handed over */
out:
    bt_free(sorted);
    bt_token_list_destroy(list);
    return st;
}
