/* model/grammar/names.h - the rules of a grammar in EBNF by their names. */
#ifndef BT_MODEL_GRAMMAR_NAMES_H
#define BT_MODEL_GRAMMAR_NAMES_H

#include "model/grammar/source.h"

enum { BT_NAME_BYTES_MAX = 256 };

typedef struct {
    const char *text;    /* borrowed [n]: of the source, where the rule is first named */
    size_t      n;       /* at most BT_NAME_BYTES_MAX, once has_rule */
    uint32_t    rule;    /* bt_rule_new() */
    bool        is_said; /* bt_rule_is(): its reader's affair */
    bool        has_rule;
} bt_name;

/* Sorted, so that no text makes a search slow. */
typedef struct {
    bt_name *at; /* owned [n] */
    size_t   n;
} bt_names;

/* Letters, digits, - _ and, behind the first, dots. */
bool bt_name_begins(char c);
/* Of the name that comes, or 0. */
size_t bt_name_length(const bt_source *s);

/* All that looks like a name from where the source is, in literals and comments too: what is none
 * is never asked for. */
void bt_names_find(bt_names *names, bt_source s);
void bt_names_fini(bt_names *names);
/* NULL: it is nowhere. */
bt_name *bt_names_get(const bt_names *names, const char *text, size_t n);
/* Passes the name that comes, and makes its rule when it comes first.  NULL: it is too long. */
bt_name *bt_names_read(const bt_names *names, bt_source *s);

#endif
