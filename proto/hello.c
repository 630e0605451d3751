#include "proto/hello.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

const char *bt_hello_build(void) { return BT_BUILD; }

typedef struct {
    char text[BT_CELL_NAME_MAX + 32];
} rank_name;

/* With its cell where the other one is of another. */
static rank_name name_of(const bt_up_hello *h, const bt_up_hello *other)
{
    rank_name name;
    bool      same = strcmp(h->cell, other->cell) == 0;

    snprintf(name.text, sizeof(name.text), "rank %u%s%.*s%s", h->rank, same ? "" : " of cell \"",
             same ? 0 : BT_CELL_NAME_MAX, h->cell, same ? "" : "\"");
    return name;
}

#define AGREE_U32(field)                                                                         \
    BT_REQUIRE(a->field == b->field, BT_ERR_INVALID_ARG,                                         \
               "%s on %s says " #field " %u, but %s on %s says %u", name_of(b, a).text, b->host, \
               b->field, name_of(a, b).text, a->host, a->field)
#define AGREE_TEXT(field)                                                         \
    BT_REQUIRE(strcmp(a->field, b->field) == 0, BT_ERR_INVALID_ARG,               \
               "%s on %s says " #field " \"%.80s\", but %s on %s says \"%.80s\"", \
               name_of(b, a).text, b->host, b->field, name_of(a, b).text, a->host, a->field)

bt_status bt_hello_agree(const bt_up_hello *a, const bt_up_hello *b)
{
    bt_status st = BT_OK;

    BT_REQUIRE((a->n_decode == 0) == (b->n_decode == 0), BT_ERR_INVALID_ARG,
               "%s on %s %s both roles, but %s on %s %s", name_of(b, a).text, b->host,
               b->n_decode == 0 ? "has" : "has not", name_of(a, b).text, a->host,
               a->n_decode == 0 ? "has" : "has not");
    BT_REQUIRE(a->model_fingerprint == b->model_fingerprint, BT_ERR_INVALID_ARG,
               "%s on %s has another model (fingerprint %016llx) than %s on %s (%016llx)",
               name_of(b, a).text, b->host, (unsigned long long)b->model_fingerprint,
               name_of(a, b).text, a->host, (unsigned long long)a->model_fingerprint);
    AGREE_TEXT(arithmetic);
    AGREE_U32(page_tokens);
    AGREE_U32(vocab_size);
    AGREE_U32(max_context);
    AGREE_U32(n_eos);
    BT_REQUIRE(a->n_eos == 0 ||
                   memcmp(a->eos_tokens, b->eos_tokens, a->n_eos * sizeof(*a->eos_tokens)) == 0,
               BT_ERR_INVALID_ARG, "%s on %s has other eos_tokens than %s on %s",
               name_of(b, a).text, b->host, name_of(a, b).text, a->host);
    AGREE_TEXT(model_type);
    AGREE_TEXT(architecture);
out:
    return st;
}

bt_status bt_hello_same_cell(const bt_up_hello *a, const bt_up_hello *b)
{
    bt_status st = BT_OK;

    AGREE_U32(n_ranks);
    AGREE_U32(n_prefill);
    AGREE_U32(n_decode);
    AGREE_U32(n_spares);
    AGREE_U32(mtp);
    BT_TRY(bt_hello_agree(a, b));
out:
    return st;
}

bt_status bt_hello_copy(const bt_up_hello *from, bt_up_hello *to_out)
{
    bt_status   st = BT_OK;
    bt_up_hello to = *from;

    to.host                  = bt_strdup(from->host);
    to.cell                  = bt_strdup(from->cell);
    to.left_out              = NULL; /* one cell's own, as are: */
    to.version               = NULL;
    to.seats                 = (bt_down_regroup){0};
    to.arithmetic            = bt_strdup(from->arithmetic);
    to.model_type            = bt_strdup(from->model_type);
    to.architecture          = bt_strdup(from->architecture);
    to.default_sampling_json = bt_strdup(from->default_sampling_json);
    to.eos_tokens            = bt_calloc(from->n_eos + 1, sizeof(*to.eos_tokens));
    BT_REQUIRE(to.host != NULL && to.cell != NULL && to.arithmetic != NULL &&
                   to.model_type != NULL && to.architecture != NULL &&
                   to.default_sampling_json != NULL && to.eos_tokens != NULL,
               BT_ERR_NO_MEMORY, "the facts of a cell");
    if (from->n_eos != 0)
        memcpy(to.eos_tokens, from->eos_tokens, from->n_eos * sizeof(*to.eos_tokens));
    *to_out = to;
out:
    if (st != BT_OK) bt_hello_free(&to);
    return st;
}

void bt_hello_free(bt_up_hello *hello)
{
    bt_up m = {.kind = BT_UP_HELLO, .u.hello = *hello};

    bt_up_free(&m);
    memset(hello, 0, sizeof(*hello));
}
