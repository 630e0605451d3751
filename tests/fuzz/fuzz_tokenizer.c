/* Any text through each of the tokenizers and back, any ids through the detokeniser.  Input: one
 * byte chooses tokenizer and direction, the rest is text or ids of two bytes. */
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { N_TOKENIZERS = 5 };
static bt_tokenizer *g_toks[N_TOKENIZERS];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const PATHS[N_TOKENIZERS] = {
        BT_SOURCE_DIR "/models/demo",
        BT_SOURCE_DIR "/tests/models/v2-lite",
        BT_SOURCE_DIR "/tests/fixtures/tokenizer-code.json",
        BT_SOURCE_DIR "/tests/fixtures/tiktoken",
        BT_SOURCE_DIR "/tests/fixtures/tekken",
    };

    (void)argc;
    (void)argv;
    for (int i = 0; i < N_TOKENIZERS; i++)
        if (bt_tokenizer_open(PATHS[i], &g_toks[i]) != BT_OK) abort();
    return 0;
}

/* The tokens' bytes one after the other, and what the detokeniser shows of them. */
static void decode(const bt_tokenizer *tok, const uint32_t *ids, size_t n, char *bytes,
                   size_t *n_bytes_out, char *shown, size_t capacity, size_t *n_shown_out)
{
    bt_detokenizer state = {0};
    size_t         at = 0, n_shown = 0;

    for (size_t i = 0; i < n; i++) {
        size_t      n_token;
        const char *token = bt_tokenizer_bytes(tok, ids[i], &n_token, NULL);

        memcpy(bytes + at, token, n_token);
        at += n_token;
        n_shown += bt_detokenize(tok, &state, ids[i], true, shown + n_shown, capacity - n_shown);
    }
    n_shown += bt_detokenize_end(&state, shown + n_shown, capacity - n_shown);
    *n_bytes_out = at;
    *n_shown_out = n_shown;
}

/* What is shown is the bytes, repaired as a whole; and for text, the text itself. */
static void check(const bt_tokenizer *tok, const uint32_t *ids, size_t n, const char *want,
                  size_t n_want)
{
    size_t capacity = 64, n_bytes = 0, n_shown = 0, n_whole = 0, n_token;
    char  *bytes, *shown, *whole = NULL;

    for (size_t i = 0; i < n; i++) {
        bt_tokenizer_bytes(tok, ids[i], &n_token, NULL);
        capacity += 3 * n_token + 16;
    }
    bytes = malloc(capacity);
    shown = malloc(capacity);
    if (bytes == NULL || shown == NULL) abort();
    decode(tok, ids, n, bytes, &n_bytes, shown, capacity, &n_shown);
    if (bt_utf8_repair(bytes, n_bytes, &whole, &n_whole) != BT_OK) abort();
    BT_ASSERT(n_shown == n_whole && memcmp(shown, whole, n_shown) == 0);
    if (want != NULL) BT_ASSERT(n_bytes == n_want && memcmp(bytes, want, n_want) == 0);
    bt_free(whole);
    free(shown);
    free(bytes);
}

static void check_text(const bt_tokenizer *tok, const char *text, size_t n)
{
    uint32_t *ids   = NULL;
    char     *whole = NULL;
    size_t    n_ids = 0, n_whole = 0;

    if (bt_tokenizer_encode(tok, text, n, &ids, &n_ids) != BT_OK) abort();
    if (bt_utf8_repair(text, n, &whole, &n_whole) != BT_OK) abort();
    for (size_t i = 0; i < n_ids; i++)
        BT_ASSERT(ids[i] < bt_tokenizer_vocab_size(tok));
    check(tok, ids, n_ids, whole, n_whole);
    bt_free(whole);
    bt_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint32_t ids[1024];
    size_t   n_ids = 0;

    if (n == 0) return 0;
    if (data[0] & 0x80) {
        for (size_t i = 1; i + 1 < n && n_ids < 1024; i += 2)
            ids[n_ids++] = (uint32_t)data[i] | (uint32_t)data[i + 1] << 8;
        check(g_toks[(data[0] & 0x7f) % N_TOKENIZERS], ids, n_ids, NULL, 0);
    } else {
        check_text(g_toks[data[0] % N_TOKENIZERS], (const char *)data + 1, n - 1);
    }
    return 0;
}
