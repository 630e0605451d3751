#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/pretokenizer.h"

#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "model/json.h"
#include "model/unicode_added.h"

enum { MAX_STEPS = 32 };

struct bt_pretokenizer {
    pcre2_general_context *memory;           /* owned: PCRE2 allocates through core/alloc.h */
    pcre2_code            *steps[MAX_STEPS]; /* owned */
    uint32_t               n_steps;
};

static void *allocate(size_t bytes, void *ctx)
{
    (void)ctx;
    return bt_calloc(bytes, 1);
}

static void release(void *ptr, void *ctx)
{
    (void)ctx;
    bt_free(ptr);
}

/* A step that isolates the matches of a regex as the file has it. */
static bt_status add_regex(bt_pretokenizer *pre, const char *where, const char *regex)
{
    bt_status              st      = BT_OK;
    pcre2_compile_context *context = pcre2_compile_context_create(pre->memory);
    char                  *pcre    = NULL;
    int                    code    = 0;
    uint32_t               empty   = 0;
    PCRE2_SIZE             at      = 0;
    PCRE2_UCHAR            why[96];
    char                   show[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(context != NULL, BT_ERR_NO_MEMORY, "%s: pre_tokenizer", where);
    BT_TRY(bt_pretokenizer_translate(where, regex, &pcre));
    BT_REQUIRE(pre->n_steps < MAX_STEPS, BT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer: expected at most %d steps", where, MAX_STEPS);
    /* as in Ruby, $ is the end of a line too, and only \n ends one */
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pre->steps[pre->n_steps] = pcre2_compile(
        (PCRE2_SPTR)pcre, PCRE2_ZERO_TERMINATED,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    BT_REQUIRE(pre->steps[pre->n_steps] != NULL || code != PCRE2_ERROR_HEAP_FAILED,
               BT_ERR_NO_MEMORY, "%s: pre_tokenizer", where);
    if (pre->steps[pre->n_steps] == NULL) pcre2_get_error_message(code, why, sizeof(why));
    BT_REQUIRE(pre->steps[pre->n_steps] != NULL, BT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer: regex: %s at byte %zu of %s", where, (const char *)why,
               (size_t)at, bt_json_printable(pcre, show, sizeof(show)));
    pcre2_pattern_info(pre->steps[pre->n_steps], PCRE2_INFO_MATCHEMPTY, &empty);
    pre->n_steps++; /* destroy() sees it */
    BT_REQUIRE(empty == 0, BT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer: expected a regex that matches no empty text, found %s", where,
               bt_json_printable(pcre, show, sizeof(show)));
    /* only speed: without it the interpreter runs; 10.42's goes back into a repeated (?>..) */
    if (strstr(pcre, "(?>") == NULL)
        pcre2_jit_compile(pre->steps[pre->n_steps - 1], PCRE2_JIT_COMPLETE);
out:
    pcre2_compile_context_free(context);
    bt_free(pcre);
    return st;
}

static bt_status add_split(bt_pretokenizer *pre, const bt_json_at *at)
{
    bt_status   st       = BT_OK;
    bt_json_at  pattern  = {at->file, "pre_tokenizer.pattern", json_object_get(at->obj, "pattern")};
    const char *behavior = NULL, *regex = NULL;
    bool        invert = false;
    char        show[BT_JSON_SHOW_BYTES];

    BT_TRY(bt_json_str(at, "behavior", &behavior));
    BT_TRY(bt_json_bool(at, "invert", &invert));
    BT_REQUIRE(strcmp(behavior, "Isolated") == 0 && !invert, BT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer: Split: expected behavior Isolated, not inverted, found %s%s",
               at->file, bt_json_printable(behavior, show, sizeof(show)),
               invert ? ", inverted" : "");
    BT_TRY(bt_json_str(&pattern, "Regex", &regex));
    BT_TRY(add_regex(pre, at->file, regex));
out:
    return st;
}

static bt_status add_digits(bt_pretokenizer *pre, const bt_json_at *at)
{
    bt_status st         = BT_OK;
    bool      individual = false;
    char      regex[128];

    BT_TRY(bt_json_bool(at, "individual_digits", &individual));
    snprintf(regex, sizeof(regex), "%s%s", bt_unicode_digits, individual ? "" : "+");
    BT_TRY(add_regex(pre, at->file, regex));
out:
    return st;
}

/* Its own work, bytes to printable characters, is undone at load: merging works on bytes. */
static bt_status check_byte_level(const bt_json_at *at)
{
    bt_status st     = BT_OK;
    bool      prefix = false, use_regex = false;

    BT_TRY(bt_json_bool(at, "add_prefix_space", &prefix));
    BT_TRY(bt_json_bool(at, "use_regex", &use_regex));
    BT_REQUIRE(!prefix && !use_regex, BT_ERR_UNSUPPORTED,
               "%s: pre_tokenizer: ByteLevel: expected add_prefix_space and use_regex false, found "
               "%s and %s",
               at->file, prefix ? "true" : "false", use_regex ? "true" : "false");
out:
    return st;
}

static bt_status add_step(bt_pretokenizer *pre, const bt_json_at *at, bool is_last)
{
    bt_status   st   = BT_OK;
    const char *type = NULL;
    char        show[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(json_is_object(at->obj), BT_ERR_FORMAT,
               "%s: pre_tokenizer: expected an object, found %s", at->file,
               bt_json_show(at->obj, show, sizeof(show)));
    BT_TRY(bt_json_str(at, "type", &type));
    BT_REQUIRE(
        (strcmp(type, "ByteLevel") == 0) == is_last, BT_ERR_UNSUPPORTED,
        "%s: pre_tokenizer: expected Split and Digits steps and ByteLevel as the last, found "
        "\"%s\"%s",
        at->file, bt_json_printable(type, show, sizeof(show)), is_last ? " as the last" : "");
    if (is_last) {
        BT_TRY(check_byte_level(at));
    } else if (strcmp(type, "Split") == 0) {
        BT_TRY(add_split(pre, at));
    } else if (strcmp(type, "Digits") == 0) {
        BT_TRY(add_digits(pre, at));
    } else {
        BT_REQUIRE(false, BT_ERR_UNSUPPORTED,
                   "%s: pre_tokenizer: expected Split, Digits or ByteLevel, found \"%s\"", at->file,
                   bt_json_printable(type, show, sizeof(show)));
    }
out:
    return st;
}

bt_status bt_pretokenizer_create(const char *where, const json_t *spec, bt_pretokenizer **pre_out)
{
    bt_status        st   = BT_OK;
    bt_pretokenizer *pre  = bt_calloc(1, sizeof(*pre));
    const json_t    *list = json_object_get(spec, "pretokenizers");
    const char      *type = json_string_value(json_object_get(spec, "type"));
    bt_json_at       at   = {where, "pre_tokenizer", spec};
    char             show[BT_JSON_SHOW_BYTES];

    BT_REQUIRE(pre != NULL, BT_ERR_NO_MEMORY, "%s: pre_tokenizer", where);
    pre->memory = pcre2_general_context_create(allocate, release, NULL);
    BT_REQUIRE(pre->memory != NULL, BT_ERR_NO_MEMORY, "%s: pre_tokenizer", where);
    if (type != NULL && strcmp(type, "Sequence") == 0) {
        BT_REQUIRE(json_array_size(list) > 0, BT_ERR_FORMAT,
                   "%s: field pre_tokenizer.pretokenizers: expected a list of steps, found %s",
                   where, bt_json_show(list, show, sizeof(show)));
        for (size_t i = 0; i < json_array_size(list); i++) {
            at.obj = json_array_get(list, i);
            BT_TRY(add_step(pre, &at, i + 1 == json_array_size(list)));
        }
    } else {
        BT_TRY(add_step(pre, &at, true));
    }
    *pre_out = pre;
    pre      = NULL;
out:
    bt_pretokenizer_destroy(pre);
    return st;
}

void bt_pretokenizer_destroy(bt_pretokenizer *pre)
{
    if (pre == NULL) return;
    for (uint32_t i = 0; i < pre->n_steps; i++)
        pcre2_code_free(pre->steps[i]);
    if (pre->memory != NULL) pcre2_general_context_free(pre->memory);
    bt_free(pre);
}

void bt_pretokens_fini(bt_pretokens *pieces)
{
    if (pieces->match != NULL) pcre2_match_data_free(pieces->match);
    bt_free(pieces->pieces);
    bt_free(pieces->before);
    *pieces = (bt_pretokens){0};
}

static bt_status push(bt_pretokens *p, size_t at, size_t n)
{
    bt_status st = BT_OK;

    if (p->n == p->capacity) {
        size_t       capacity = p->capacity == 0 ? 64 : 2 * p->capacity;
        bt_pretoken *grown    = bt_realloc(p->pieces, capacity, sizeof(*grown));

        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "tokenizer: %zu pieces", capacity);
        p->pieces   = grown;
        p->capacity = capacity;
    }
    p->pieces[p->n++] = (bt_pretoken){(uint32_t)at, (uint32_t)n};
out:
    return st;
}

/* The next match at or after `from`, or n when there is none. */
static bt_status next_match(const pcre2_code *code, const char *text, size_t n, size_t from,
                            pcre2_match_data *match, size_t *start_out, size_t *end_out)
{
    bt_status         st   = BT_OK;
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
    int rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, match, NULL);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                         NULL);
    BT_REQUIRE(rc != PCRE2_ERROR_NOMEMORY && rc != PCRE2_ERROR_HEAPLIMIT, BT_ERR_NO_MEMORY,
               "tokenizer: splitting %zu bytes of text", n);
    BT_REQUIRE(rc >= 0 || rc == PCRE2_ERROR_NOMATCH, BT_ERR_INVALID_ARG,
               "tokenizer: splitting a run of %zu bytes: expected text that the pre-tokenizer "
               "splits in reasonable time, found PCRE2 error %d",
               n, rc);
    *start_out = rc < 0 ? n : span[0];
    *end_out   = rc < 0 ? n : span[1];
out:
    return st;
}

/* One step on one piece: matches and gaps both become pieces. */
static bt_status cut_piece(const pcre2_code *code, const char *text, bt_pretoken piece,
                           bt_pretokens *pieces)
{
    bt_status   st  = BT_OK;
    const char *sub = text + piece.at; /* the piece alone: lookaheads and $ see its end */
    size_t      at  = 0, start, end;

    while (at < piece.n) {
        BT_TRY(next_match(code, sub, piece.n, at, pieces->match, &start, &end));
        if (start > at) BT_TRY(push(pieces, piece.at + at, start - at));
        if (end > start) BT_TRY(push(pieces, piece.at + start, end - start));
        at = end;
    }
out:
    return st;
}

static void swap_lists(bt_pretokens *p)
{
    bt_pretoken *list     = p->pieces;
    size_t       capacity = p->capacity;

    p->pieces          = p->before;
    p->capacity        = p->before_capacity;
    p->before          = list;
    p->before_capacity = capacity;
}

bt_status bt_pretokenizer_cut(const bt_pretokenizer *pre, const char *text, size_t n,
                              bt_pretokens *pieces)
{
    bt_status st = BT_OK;

    BT_ASSERT(n <= INT32_MAX);
    if (pieces->match == NULL) pieces->match = pcre2_match_data_create(1, pre->memory);
    BT_REQUIRE(pieces->match != NULL, BT_ERR_NO_MEMORY, "tokenizer");
    pieces->n = 0;
    if (n != 0) BT_TRY(push(pieces, 0, n));
    for (uint32_t i = 0; i < pre->n_steps; i++) {
        size_t n_before = pieces->n;

        swap_lists(pieces);
        pieces->n = 0;
        for (size_t k = 0; k < n_before; k++)
            BT_TRY(cut_piece(pre->steps[i], text, pieces->before[k], pieces));
    }
out:
    return st;
}
