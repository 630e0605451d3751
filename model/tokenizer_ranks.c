/* What tiktoken.model and tekken.json share: tokens in base64, and ranks in place of merges. */
#include <string.h>

#include "model/tokenizer_parts.h"

enum {
    MAX_MERGES      = 1 << 22, /* Kimi-K2 and Mistral have under a tenth */
    MAX_TOKEN_BYTES = 1 << 12  /* each place to cut one is a search among all */
};

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
        BT_REQUIRE(tok->tokens[tok->by_text[i]].n < MAX_TOKEN_BYTES, BT_ERR_FORMAT,
                   "%s: expected tokens of under %d bytes, found id %u of %u", tok->path,
                   MAX_TOKEN_BYTES, tok->by_text[i], tok->tokens[tok->by_text[i]].n);
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

/* Calls for each pair of tokens whose bytes together are a token's; bpe NULL: counts them only. */
static size_t each_merge(const bt_tokenizer *tok, bt_bpe *bpe)
{
    size_t   n_merges = 0;
    uint32_t left = 0, right = 0;

    for (size_t i = 0; i < tok->n_by_text; i++) {
        uint32_t              id = tok->by_text[i];
        const bt_vocab_token *t  = &tok->tokens[id];
        const char           *of = tok->arena + t->at;

        for (uint32_t cut = 1; cut < t->n; cut++) {
            if (!bt_vocab_find(tok, of, cut, &left) ||
                !bt_vocab_find(tok, of + cut, t->n - cut, &right))
                continue;
            if (bpe != NULL) bt_bpe_add(bpe, id, left, right, id);
            if (++n_merges > MAX_MERGES) return n_merges;
        }
    }
    return n_merges;
}

bt_status bt_vocab_rank(bt_tokenizer *tok)
{
    bt_status st = BT_OK;
    size_t    n_merges;
    uint32_t  byte_ids[256];

    BT_TRY(bt_vocab_sort(tok));
    BT_TRY(check_tokens(tok));
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;

        BT_REQUIRE(bt_vocab_find(tok, &byte, 1, &byte_ids[b]), BT_ERR_FORMAT,
                   "%s: expected a token for each byte, found none for 0x%02x", tok->path, b);
    }
    n_merges = each_merge(tok, NULL);
    BT_REQUIRE(n_merges <= MAX_MERGES, BT_ERR_FORMAT,
               "%s: expected tokens that are made of two others in at most %d ways in all, found "
               "more",
               tok->path, MAX_MERGES);
    BT_TRY(bt_bpe_create(byte_ids, n_merges, &tok->bpe));
    each_merge(tok, tok->bpe);
out:
    return st;
}
