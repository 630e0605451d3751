/* baton-tokenize - JSON strings on stdin to lists of token ids on stdout, one a line; or back. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parse.h"
#include "model/tokenizer.h"

static const char DOC[] =
    "Turns text into token ids as the model sees them.\v"
    "Each line of stdin is one JSON string, each line of stdout the JSON list of its ids, without "
    "a "
    "beginning-of-text token. With --decode it is the other way round: lists of ids in, strings "
    "out, special tokens kept, bytes that are no UTF-8 shown as U+FFFD.\n\n"
    "The first line that is no JSON string ends the program with an error that names it; the lines "
    "before it have been answered.\n\n"
    "Exit code: 0 when every line was answered, 1 on an error, 64 for wrong usage.\n\n"
    "Examples:\n"
    "  echo '\"To be, or not to be\"' | baton tokenize --model models/demo\n"
    "  echo '[407, 310]' | baton tokenize --model models/demo --decode";

static const struct argp_option OPTIONS[] = {
    BT_OPTION("model", 'm', "PATH",
              "The model's directory, or its tokenizer.json, tiktoken.model or tekken.json"),
    BT_OPTION("decode", 'd', NULL, "Turn lists of ids into strings"),
    {0},
};

typedef struct {
    const char *model;
    bool        decode;
} options;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    options *opt = state->input;

    switch (key) {
    case 'm': opt->model = bt_option_name(state, "--model", "a path", arg); return 0;
    case 'd': opt->decode = true; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "\"%s\" is not an option; the text comes on stdin", arg);
        return 0;
    case ARGP_KEY_END:
        if (opt->model == NULL)
            argp_error(state, "--model is missing: a model's directory, or its tokenizer's file");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static bt_status encode_line(const bt_tokenizer *tok, size_t line, const json_t *v)
{
    bt_status st  = BT_OK;
    uint32_t *ids = NULL;
    size_t    n   = 0;

    BT_REQUIRE(json_is_string(v), BT_ERR_INVALID_ARG,
               "stdin line %zu: expected a JSON string such as \"text\"", line);
    BT_TRY(bt_tokenizer_encode(tok, json_string_value(v), json_string_length(v), &ids, &n));
    putchar('[');
    for (size_t i = 0; i < n; i++)
        printf("%s%u", i == 0 ? "" : ", ", ids[i]);
    puts("]");
out:
    bt_free(ids);
    return st;
}

/* The ids of a list, and room for their text. */
static bt_status read_ids(const bt_tokenizer *tok, size_t line, const json_t *v, uint32_t *ids,
                          size_t *n_bytes_out)
{
    bt_status st      = BT_OK;
    size_t    n_bytes = 16;

    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *id = json_array_get(v, i);
        size_t        n  = 0;

        BT_REQUIRE(json_is_integer(id) && json_integer_value(id) >= 0 &&
                       json_integer_value(id) < bt_tokenizer_vocab_size(tok),
                   BT_ERR_INVALID_ARG, "stdin line %zu, entry %zu: expected an id from 0 to %u",
                   line, i + 1, bt_tokenizer_vocab_size(tok) - 1);
        ids[i] = (uint32_t)json_integer_value(id);
        bt_tokenizer_bytes(tok, ids[i], &n, NULL);
        n_bytes += 3 * n + 16;
    }
    *n_bytes_out = n_bytes;
out:
    return st;
}

static bt_status decode_line(const bt_tokenizer *tok, size_t line, const json_t *v)
{
    bt_status      st       = BT_OK;
    bt_detokenizer state    = {0};
    uint32_t      *ids      = NULL;
    char          *text     = NULL;
    json_t        *shown    = NULL;
    size_t         capacity = 0, at = 0, n = json_array_size(v);

    BT_REQUIRE(json_is_array(v), BT_ERR_INVALID_ARG,
               "stdin line %zu: expected a JSON list such as [407, 310]", line);
    ids = bt_calloc(n, sizeof(*ids));
    BT_REQUIRE(ids != NULL, BT_ERR_NO_MEMORY, "stdin line %zu: %zu ids", line, n);
    BT_TRY(read_ids(tok, line, v, ids, &capacity));
    text = bt_calloc(capacity, 1);
    BT_REQUIRE(text != NULL, BT_ERR_NO_MEMORY, "stdin line %zu: %zu bytes", line, capacity);
    for (size_t i = 0; i < n; i++)
        at += bt_detokenize(tok, &state, ids[i], true, text + at, capacity - at);
    at += bt_detokenize_end(&state, text + at, capacity - at);
    shown = json_stringn(text, at);
    BT_REQUIRE(shown != NULL && json_dumpf(shown, stdout, JSON_ENCODE_ANY) == 0, BT_ERR_IO,
               "stdin line %zu: its text cannot be written", line);
    putchar('\n');
out:
    json_decref(shown);
    bt_free(text);
    bt_free(ids);
    return st;
}

static bt_status answer_line(const bt_tokenizer *tok, const options *opt, size_t line,
                             const char *text, size_t n)
{
    bt_status    st  = BT_OK;
    json_error_t err = {.text = ""};
    json_t      *v   = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &err);

    BT_REQUIRE(v != NULL, BT_ERR_INVALID_ARG,
               "stdin line %zu: expected a JSON %s, found at byte %d: %s", line,
               opt->decode ? "list of ids" : "string", err.position, err.text);
    BT_TRY(opt->decode ? decode_line(tok, line, v) : encode_line(tok, line, v));
    BT_REQUIRE(!ferror(stdout), BT_ERR_IO, "stdout: %s", strerror(errno));
out:
    json_decref(v);
    return st;
}

static bt_status answer_all(const options *opt)
{
    bt_status     st   = BT_OK;
    bt_tokenizer *tok  = NULL;
    char         *text = NULL;
    size_t        room = 0, line = 0;
    ssize_t       n;

    BT_TRY(bt_tokenizer_open(opt->model, &tok));
    while ((n = getline(&text, &room, stdin)) >= 0)
        BT_TRY(answer_line(tok, opt, ++line, text, (size_t)n));
    BT_REQUIRE(!ferror(stdin), BT_ERR_IO, "stdin: %s", strerror(errno));
out:
    free(text); /* getline's own */
    bt_tokenizer_close(tok);
    return st;
}

int main(int argc, char **argv)
{
    const struct argp parser = {OPTIONS, parse, NULL, DOC, NULL, NULL, NULL};
    options           opt    = {0};

    bt_log_init_verb("tokenize", BT_LOG_INFO);
    argp_parse(&parser, argc, argv, 0, NULL, &opt);
    setvbuf(stdout, NULL, _IOLBF, 1 << 16); /* an answer is there as soon as it is complete */
    return answer_all(&opt) == BT_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
