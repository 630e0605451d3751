/* tests/model/tokenizer_cases.h - a tokenizer against cases of tests/oracles/tokenizer_cases.py. */
#ifndef BT_TESTS_MODEL_TOKENIZER_CASES_H
#define BT_TESTS_MODEL_TOKENIZER_CASES_H

#include <jansson.h>

#include "core/alloc.h"
#include "model/tokenizer.h"
#include "tests/support/sweep.h"
#include "tests/support/test.h"

static inline bt_tokenizer *open_or_die(const char *path)
{
    bt_tokenizer *tok = NULL;

    if (bt_tokenizer_open(path, &tok) != BT_OK) abort();
    return tok;
}

/* The text of the ids, token by token; the caller frees.  Special tokens kept. */
static inline char *decode(const bt_tokenizer *tok, const uint32_t *ids, size_t n, size_t *n_out)
{
    bt_detokenizer state = {0};
    size_t         at = 0, capacity = 64;

    for (size_t i = 0; i < n; i++) {
        size_t bytes;

        bt_tokenizer_bytes(tok, ids[i], &bytes, NULL);
        capacity += 3 * bytes + 16;
    }
    char *text = calloc(capacity, 1);
    if (text == NULL) abort();
    for (size_t i = 0; i < n; i++)
        at += bt_detokenize(tok, &state, ids[i], true, text + at, capacity - at);
    at += bt_detokenize_end(&state, text + at, capacity - at);
    *n_out = at;
    return text;
}

static inline bool ids_equal(const uint32_t *ids, size_t n, const json_t *want)
{
    bool equal = n == json_array_size(want);

    for (size_t i = 0; equal && i < n; i++)
        equal = (json_int_t)ids[i] == json_integer_value(json_array_get(want, i));
    return equal;
}

static inline void check_case(const bt_tokenizer *tok, const char *file, int line, const json_t *c)
{
    const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, "decoded");
    uint32_t     *ids = NULL;
    size_t        n = 0, n_decoded = 0;
    char         *decoded;

    EXPECT_EQ(bt_tokenizer_encode(tok, json_string_value(text), json_string_length(text), &ids, &n),
              BT_OK);
    if (!ids_equal(ids, n, json_object_get(c, "ids"))) {
        g_failures++;
        fprintf(stderr, "%s:%d: other ids for %s\n", file, line, json_string_value(text));
    }
    decoded = decode(tok, ids, n, &n_decoded);
    if (n_decoded != json_string_length(want) ||
        memcmp(decoded, json_string_value(want), n_decoded) != 0) {
        g_failures++;
        fprintf(stderr, "%s:%d: decoded to \"%s\"\n", file, line, decoded);
    }
    free(decoded);
    bt_free(ids);
}

/* Every case of Hugging Face's tokenizers, both ways. */
static inline void check_fixture(const char *tokenizer, const char *file)
{
    bt_tokenizer *tok  = open_or_die(tokenizer);
    FILE         *f    = fopen(file, "r");
    char         *text = NULL;
    size_t        room = 0;
    int           line = 0;

    if (f == NULL) abort();
    while (getline(&text, &room, f) > 0) {
        json_t *c = json_loads(text, JSON_ALLOW_NUL, NULL);

        if (c == NULL) abort();
        check_case(tok, file, ++line, c);
        json_decref(c);
    }
    EXPECT_EQ(line, 453);
    free(text);
    fclose(f);
    bt_tokenizer_close(tok);
}

static inline size_t count(const bt_tokenizer *tok, const char *text, size_t n)
{
    uint32_t *ids   = NULL;
    size_t    n_ids = SIZE_MAX;

    EXPECT_EQ(bt_tokenizer_encode(tok, text, n, &ids, &n_ids), BT_OK);
    bt_free(ids);
    return n_ids;
}

/* Opening the tokenizer fails, and the error has both parts. */
static inline void expect_refused(const char *path, bt_status want, const char *const parts[2],
                                  size_t i)
{
    bt_tokenizer *tok    = NULL;
    int           before = g_failures;

    EXPECT_EQ(bt_tokenizer_open(path, &tok), want);
    EXPECT(tok == NULL);
    EXPECT_HAS(bt_error_text(), parts[0]);
    EXPECT_HAS(bt_error_text(), parts[1]);
    if (g_failures != before) fprintf(stderr, "    in case %zu\n", i);
    bt_tokenizer_close(tok);
}

/* Opening it takes more than `least` allocations, and leaves nothing behind when any of them
 * fails.  Regexes do without some: PCRE2 interprets them then. */
static inline void expect_open_unwinds(const char *path, long least)
{
    bt_tokenizer *tok = NULL;

    EXPECT(BT_SWEEP_BUT(34, bt_tokenizer_open(path, &tok), (bt_tokenizer_close(tok), tok = NULL)) >
           least);
}

#endif
