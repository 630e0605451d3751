#include "model/grammar/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/utf8.h"

void bt_token_list_destroy(bt_token_list *list)
{
    if (list == NULL) return;
    for (int i = 0; i < BT_PLAIN_GROUPS; i++)
        bt_free(list->plain[i]);
    bt_free(list->nodes);
    bt_free(list->same);
    bt_free(list->texts);
    bt_free(list->bytes);
    bt_free(list);
}

/* Whole characters that a JSON string may have unescaped: which group its tokens belong to. */
static uint32_t group_of(const char *bytes, size_t n)
{
    uint32_t n_chars = 0, group = 0;

    for (size_t at = 0, length; at < n; at += length, n_chars++) {
        bt_utf8_kind kind;

        length = bt_utf8_next(bytes + at, n - at, &kind);
        if (kind != BT_UTF8_GOOD || (uint8_t)bytes[at] < 0x20 || bytes[at] == '"' ||
            bytes[at] == '\\')
            return BT_PLAIN_GROUPS;
    }
    while (group < BT_PLAIN_GROUPS && n_chars > bt_plain_chars(group))
        group++;
    return group;
}

/* Those of the group into sorted[], as they come; returns how many. */
static uint32_t take_group(bt_token_list *list, uint32_t group, uint32_t *sorted)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < list->n_ids; id++) {
        const bt_token_text *t = &list->texts[id];

        if (t->n == 0 || group_of(list->bytes + t->at, t->n) != group) continue;
        sorted[n++] = id;
        if (group < BT_PLAIN_GROUPS) bt_mask_add(list->plain[group], id);
    }
    return n;
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

static bt_status take_memory(bt_token_list *list, size_t n_bytes)
{
    bt_status st    = BT_OK;
    bool      plain = true;

    for (int i = 0; i < BT_PLAIN_GROUPS; i++) {
        list->plain[i] = bt_calloc(bt_mask_words(list->n_ids), sizeof(*list->plain[i]));
        plain          = plain && list->plain[i] != NULL;
    }
    list->nodes = bt_calloc(n_bytes, sizeof(*list->nodes));
    list->same  = bt_calloc(list->n_ids, sizeof(*list->same));
    BT_REQUIRE(plain && list->nodes != NULL && list->same != NULL, BT_ERR_NO_MEMORY,
               "a list of %u tokens", list->n_ids);
out:
    return st;
}

bt_status bt_token_list_make(uint32_t n_ids, bt_token_text *texts, char *bytes, size_t n_bytes,
                             bt_token_list **list_out)
{
    bt_status      st     = BT_OK;
    bt_token_list *list   = bt_calloc(1, sizeof(*list));
    uint32_t      *sorted = bt_calloc(n_ids, sizeof(*sorted));

    BT_REQUIRE(list != NULL && sorted != NULL, BT_ERR_NO_MEMORY, "a list of %u tokens", n_ids);
    list->n_ids = n_ids;
    list->texts = texts;
    list->bytes = bytes;
    BT_TRY(take_memory(list, n_bytes));
    for (uint32_t group = 0; group < BT_TOKEN_GROUPS; group++) {
        uint32_t n = take_group(list, group, sorted);

        qsort_r(sorted, n, sizeof(*sorted), by_bytes, list);
        make_nodes(list, sorted, n);
        list->first_node[group + 1] = list->n_nodes;
    }
    *list_out = list;
    list      = NULL; /* handed over */
out:
    if (st != BT_OK && list != NULL) list->texts = NULL, list->bytes = NULL; /* the caller's */
    bt_free(sorted);
    bt_token_list_destroy(list);
    return st;
}

/* ---- of a tokenizer */

/* Of `id`, or NULL: it is no text. */
static const char *text_of(const bt_tokenizer *tok, uint32_t id, size_t *n_out)
{
    const char *bytes = bt_tokenizer_bytes(tok, id, n_out, NULL);

    return bt_tokenizer_is_text(tok, id) && *n_out <= BT_TOKEN_BYTES_MAX ? bytes : NULL;
}

/* Copies the texts and says where they lie. */
static void take_texts(const bt_tokenizer *tok, uint32_t n_ids, bt_token_text *texts, char *bytes)
{
    uint32_t at = 0;

    for (uint32_t id = 0; id < n_ids; id++) {
        size_t      n;
        const char *text = text_of(tok, id, &n);

        if (text == NULL) continue;
        memcpy(bytes + at, text, n);
        texts[id] = (bt_token_text){at, (uint32_t)n};
        at += (uint32_t)n;
    }
}

bt_status bt_token_list_create(const bt_tokenizer *tok, uint32_t n_ids, bt_token_list **list_out)
{
    bt_status      st      = BT_OK;
    bt_token_text *texts   = bt_calloc(n_ids, sizeof(*texts));
    char          *bytes   = NULL;
    size_t         n_bytes = 0, n;

    for (uint32_t id = 0; id < n_ids; id++)
        if (text_of(tok, id, &n) != NULL) n_bytes += n;
    BT_REQUIRE(n_bytes < UINT32_MAX, BT_ERR_FORMAT, "a vocabulary of %zu bytes", n_bytes);
    bytes = bt_calloc(n_bytes, 1);
    BT_REQUIRE(texts != NULL && bytes != NULL, BT_ERR_NO_MEMORY, "a list of %u tokens", n_ids);
    take_texts(tok, n_ids, texts, bytes);
    BT_TRY(bt_token_list_make(n_ids, texts, bytes, n_bytes, list_out));
    texts = NULL; /* handed over */
    bytes = NULL;
out:
    bt_free(texts);
    bt_free(bytes);
    return st;
}
