/* What tiktoken.model and tekken.json share: tokens in base64, and ranks in place of merges. */
#include <string.h>

#include "core/alloc.h"
#include "model/tokenizer_parts.h"

enum { MAX_MERGES = 1 << 22 }; /* Kimi-K2 and Mistral have under a tenth */

size_t bt_base64_decode(const char *text, char *bytes, uint32_t *n_bytes_out)
{
    static const char BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t            body = strspn(text, BASE64), n = body + strspn(text + body, "=");
    uint32_t          bits = 0, n_bytes = 0;

    if (n % 4 != 0 || n - body > 2) return 0;
    for (size_t i = 0; i < body; i++) {
        bits = bits << 6 | (uint32_t)(strchr(BASE64, text[i]) - BASE64);
        if (i % 4 != 0) bytes[n_bytes++] = (char)(bits >> (6 - i % 4 * 2));
    }
    *n_bytes_out = n_bytes;
    return n;
}

static bt_status check_tokens(const bt_tokenizer *tok)
{
    bt_status st = BT_OK;

    for (size_t i = 0; i < tok->n_by_text; i++)
        BT_REQUIRE(tok->tokens[tok->by_text[i]].n < BT_MAX_TOKEN_BYTES, BT_ERR_FORMAT,
                   "%s: expected tokens of under %d bytes, found id %u of %u", tok->path,
                   BT_MAX_TOKEN_BYTES, tok->by_text[i], tok->tokens[tok->by_text[i]].n);
    for (size_t i = 1; i < tok->n_by_text; i++) {
        const bt_vocab_token *a = &tok->tokens[tok->by_text[i - 1]];
        const bt_vocab_token *b = &tok->tokens[tok->by_text[i]];

        BT_REQUIRE(a->n != b->n || memcmp(tok->arena + a->at, tok->arena + b->at, a->n) != 0,
                   BT_ERR_FORMAT, "%s: expected different tokens, found ids %u and %u alike",
                   tok->path, tok->by_text[i - 1], tok->by_text[i]);
    }
out:
    return st;
}

/* Of each token that merging can make the longest other one that it begins with, and that it ends
 * with; UINT32_MAX: none. */
typedef struct {
    uint32_t *begin, *end; /* owned: [n_tokens] */
} inner;

static bool begins_with(const bt_tokenizer *tok, uint32_t id, uint32_t with)
{
    const bt_vocab_token *t = &tok->tokens[id], *w = &tok->tokens[with];

    return w->n < t->n && memcmp(tok->arena + t->at, tok->arena + w->at, w->n) == 0;
}

/* ids, which are sorted by their bytes: what one begins with begins the one before it, or is it. */
static void find_begins(const bt_tokenizer *tok, const uint32_t *ids, uint32_t *begin)
{
    for (size_t i = 0; i < tok->n_by_text; i++) {
        uint32_t with = i == 0 ? UINT32_MAX : ids[i - 1];

        while (with != UINT32_MAX && !begins_with(tok, ids[i], with))
            with = begin[with];
        begin[ids[i]] = with;
    }
}

/* Turns the bytes of each token round. */
static void turn(bt_tokenizer *tok)
{
    for (size_t i = 0; i < tok->n_by_text; i++) {
        const bt_vocab_token *t    = &tok->tokens[tok->by_text[i]];
        char                 *text = tok->arena + t->at;

        for (uint32_t k = 0; k < t->n / 2; k++) {
            char byte = text[k];

            text[k]            = text[t->n - 1 - k];
            text[t->n - 1 - k] = byte;
        }
    }
}

static bt_status find_inner(bt_tokenizer *tok, inner *in)
{
    bt_status st  = BT_OK;
    uint32_t *ids = bt_copy(tok->by_text, tok->n_by_text, sizeof(*ids));

    in->begin = bt_calloc(tok->n_tokens, sizeof(*in->begin));
    in->end   = bt_calloc(tok->n_tokens, sizeof(*in->end));
    BT_REQUIRE(ids != NULL && in->begin != NULL && in->end != NULL, BT_ERR_NO_MEMORY,
               "%s: %u tokens", tok->path, tok->n_tokens);
    find_begins(tok, tok->by_text, in->begin);
    turn(tok);
    bt_vocab_order(tok, ids, tok->n_by_text);
    find_begins(tok, ids, in->end);
    turn(tok);
out:
    bt_free(ids);
    return st;
}

/* Calls for each pair of tokens whose bytes together are a token's; bpe NULL: counts them only. */
static size_t each_merge(const bt_tokenizer *tok, const inner *in, bt_bpe *bpe)
{
    size_t   n_merges = 0;
    uint32_t left[BT_MAX_TOKEN_BYTES]; /* by how many bytes they have */

    memset(left, 0xff, sizeof(left));
    for (size_t i = 0; i < tok->n_by_text && n_merges <= MAX_MERGES; i++) {
        uint32_t id = tok->by_text[i], part;

        for (part = in->begin[id]; part != UINT32_MAX; part = in->begin[part])
            left[tok->tokens[part].n] = part;
        for (part = in->end[id]; part != UINT32_MAX; part = in->end[part]) {
            uint32_t with = left[tok->tokens[id].n - tok->tokens[part].n];

            if (with == UINT32_MAX) continue;
            if (bpe != NULL) bt_bpe_add(bpe, id, with, part, id);
            n_merges++;
        }
        for (part = in->begin[id]; part != UINT32_MAX; part = in->begin[part])
            left[tok->tokens[part].n] = UINT32_MAX;
    }
    return n_merges;
}

bt_status bt_vocab_rank(bt_tokenizer *tok)
{
    bt_status st = BT_OK;
    inner     in = {0};
    size_t    n_merges;
    uint32_t  byte_ids[256];

    BT_TRY(bt_vocab_sort(tok));
    BT_TRY(check_tokens(tok));
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;

        BT_REQUIRE(bt_vocab_find(tok, &byte, 1, &byte_ids[b]), BT_ERR_FORMAT,
                   "%s: expected a token for each byte, found none for 0x%02x", tok->path, b);
    }
    BT_TRY(find_inner(tok, &in));
    n_merges = each_merge(tok, &in, NULL);
    BT_REQUIRE(n_merges <= MAX_MERGES, BT_ERR_FORMAT,
               "%s: expected tokens that are made of two others in at most %d ways in all, found "
               "more",
               tok->path, MAX_MERGES);
    BT_TRY(bt_bpe_create(byte_ids, n_merges, &tok->bpe));
    each_merge(tok, &in, tok->bpe);
out:
    bt_free(in.begin);
    bt_free(in.end);
    return st;
}
