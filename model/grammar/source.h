/* model/grammar/source.h - the text that a reader of this folder reads, and how far it has come.
 *
 * The text is well-formed UTF-8 without zeros (bt_source_check), so that a zero stands for its end.
 * After the first error of its parts it is at its end, as every reader's loop asks. */
#ifndef BT_MODEL_GRAMMAR_SOURCE_H
#define BT_MODEL_GRAMMAR_SOURCE_H

#include <string.h>

#include "model/grammar/parts.h"

enum { BT_COUNT_MAX = 10000 }; /* of a repetition */

typedef struct {
    bt_parts   *g;    /* borrowed, as the text */
    const char *text; /* [n] */
    size_t      n, at;
} bt_source;

/* Refuses what is not UTF-8, and zeros; `what`: what the sentence calls the text. */
bool bt_source_check(bt_source *s, const char *what);

/* The byte that comes, or 0. */
static inline char bt_source_peek(const bt_source *s)
{
    return s->at < s->n && s->g->st == BT_OK ? s->text[s->at] : 0;
}

static inline bool bt_source_more(const bt_source *s) { return bt_source_peek(s) != 0; }

static inline bool bt_source_is(const bt_source *s, const char *what)
{
    size_t n = strlen(what);

    return bt_source_more(s) && n <= s->n - s->at && memcmp(s->text + s->at, what, n) == 0;
}

static inline bool bt_is_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
static inline bool bt_is_digit(char c) { return c >= '0' && c <= '9'; }

/* Passes `what`, if it comes. */
static inline bool bt_source_take(bt_source *s, const char *what)
{
    bool is = bt_source_is(s, what);

    if (is) s->at += strlen(what);
    return is;
}

/* Passes one character; 0 at the end. */
uint32_t bt_source_char(bt_source *s);
/* -1: it is none. */
int bt_hex_digit(char c);
/* Passes n_min to n_max hexadecimal digits (8 at most); false, and nothing passed: fewer come. */
bool bt_source_hex(bt_source *s, uint32_t n_min, uint32_t n_max, uint32_t *value_out);

/* Passes a number of decimal digits; one above BT_COUNT_MAX comes as BT_COUNT_MAX + 1.  False, and
 * 0: no digit comes. */
bool bt_source_number(bt_source *s, uint32_t *value_out);
/* Passes a quantifier: * + ? {m} {m,} {m,n} {,n} {,}, numbers as above, no upper limit as
 * BT_UNLIMITED.  False, and nothing passed: none comes. */
bool bt_source_counts(bt_source *s, uint32_t *min_out, uint32_t *max_out);

#endif
