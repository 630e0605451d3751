/* grammar_walk - what a constraint lets through, for tests that ask others whether that is right.
 *
 * Each line of the input is {"kind": "json_schema", "text": ..., "n": 20, "seed": 1, "judge":
 * [texts]}, and gives a line: {"refused": why}, or {"walks": [n texts at random], "verdicts": [0:
 * refused, 1: may go on, 2: accepted]}. */
#include <jansson.h>
#include <stdlib.h>

#include "tests/model/grammar_check.h"

enum { LONG = 300, TOO_LONG = 6000 };

static uint64_t g_seed;

static uint32_t random_below(uint32_t n)
{
    g_seed = g_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(g_seed >> 33) % n;
}

/* Bytes that may come. */
static uint32_t choices(bt_matcher *m, uint32_t state, uint8_t *bytes)
{
    uint32_t n = 0;

    for (int b = 0; b < 256; b++) {
        char     c    = (char)b;
        uint32_t next = BT_STATE_DEAD;

        if (bt_matcher_step(m, state, &c, 1, &next) != BT_OK) abort();
        if (next != BT_STATE_DEAD) bytes[n++] = (uint8_t)b;
    }
    return n;
}

/* One of them; what closes something is liked, all the more in a long text. */
static uint8_t choose(const uint8_t *bytes, uint32_t n, size_t length)
{
    if (length > LONG || random_below(3) == 0)
        for (uint32_t i = 0; i < n; i++)
            if (strchr("\"}]", bytes[i]) != NULL && bytes[i] != 0) return bytes[i];
    while (n > 1 && bytes[n - 1] >= 0x80 && random_below(8) != 0)
        n--;
    return bytes[random_below(n)];
}

/* A text, or NULL: it came to no end. */
static json_t *walk(bt_matcher *m)
{
    char     text[TOO_LONG];
    uint8_t  bytes[256];
    uint32_t state = bt_matcher_start(m);

    for (size_t n = 0; n < TOO_LONG; n++) {
        uint32_t n_bytes = choices(m, state, bytes);

        if (bt_matcher_accepts(m, state) && (n_bytes == 0 || random_below(4) == 0))
            return json_stringn(text, n);
        if (n_bytes == 0) abort(); /* a text that has no end */
        text[n] = (char)choose(bytes, n_bytes, n);
        if (bt_matcher_step(m, state, &text[n], 1, &state) != BT_OK) abort();
    }
    return NULL;
}

static bt_part read_text(bt_parts *g, const char *kind, const json_t *text)
{
    const char *bytes = json_string_value(text);
    size_t      n     = json_string_length(text);

    if (strcmp(kind, "json_schema") == 0) return bt_read_json_schema(g, bytes, n);
    if (strcmp(kind, "regex") == 0) return bt_read_regex(g, bytes, n, true, false);
    if (strcmp(kind, "choice") == 0) return bt_read_choice(g, bytes, n);
    abort();
}

static json_t *answer(const json_t *request)
{
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_parts    g    = {0};
    const char *kind = json_string_value(json_object_get(request, "kind"));
    bt_part     part = read_text(&g, kind, json_object_get(request, "text"));
    bt_matcher *m    = matcher_of(&g, part, NULL, why);
    json_t     *walks, *verdicts, *text;
    json_int_t  n = json_integer_value(json_object_get(request, "n"));
    size_t      i;

    if (m == NULL) return json_pack("{s:s}", "refused", why);
    walks    = json_array();
    verdicts = json_array();
    g_seed   = (uint64_t)json_integer_value(json_object_get(request, "seed"));
    for (json_int_t k = 0; k < n; k++)
        if ((text = walk(m)) != NULL) json_array_append_new(walks, text);
    json_array_foreach(json_object_get(request, "judge"), i, text) json_array_append_new(
        verdicts, json_integer(judge_bytes(m, json_string_value(text), json_string_length(text))));
    bt_matcher_destroy(m);
    return json_pack("{s:o,s:o}", "walks", walks, "verdicts", verdicts);
}

int main(void)
{
    char  *line = NULL;
    size_t room = 0;

    while (getline(&line, &room, stdin) > 0) {
        json_t *request = json_loads(line, JSON_ALLOW_NUL, NULL), *reply;

        if (request == NULL) abort();
        reply = answer(request);
        json_dumpf(reply, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(reply);
        json_decref(request);
    }
    free(line);
    return 0;
}
