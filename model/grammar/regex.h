/* model/grammar/regex.h - between the files that read regular expressions: which characters an
 * escape or a class stands for, and what becomes of look-aheads. */
#ifndef BT_MODEL_GRAMMAR_REGEX_H
#define BT_MODEL_GRAMMAR_REGEX_H

#include "model/grammar/source.h"

typedef enum {
    BT_ESCAPE_CHAR,    /* the character *c_out */
    BT_ESCAPE_SET,     /* characters, added to the set */
    BT_ESCAPE_NOTHING, /* refused */
} bt_regex_escape;

/* Refuse what stands at byte `at`: a sentence; the name of what is not supported. */
void bt_regex_wrong(bt_source *s, size_t at, const char *sentence);
void bt_regex_unsupported(bt_source *s, size_t at, const char *name);

/* Passes an escape, from its backslash on.  more: where dialects differ, what any of them means
 * rather than what all do. */
bt_regex_escape bt_regex_read_escape(bt_source *s, bool in_class, bool more, bt_chars *set,
                                     uint32_t *c_out);
/* Passes a class, from its [ on, and adds what it holds. */
void bt_regex_read_class(bt_source *s, bool more, bt_chars *set);

/* What a text must be, or, barred, must not: a part of a grammar of its own. */
typedef struct {
    bt_parts g; /* owned */
    bt_part  is;
    bool     barred;
} bt_condition;
enum { BT_MOST_CONDITIONS = 8 };

/* g takes over what the condition's reader refused, and its work. */
void bt_condition_read(bt_parts *g, const bt_condition *c);
/* The texts under all of n >= 1 conditions, of which one at least is not barred; what their readers
 * refused is in g already. */
bt_part bt_part_under(bt_parts *g, const bt_condition *conditions, uint32_t n);

/* Counts work for look-aheads (a look at an edge is 1); all expressions of g may take so much: some
 * tenths of a second. */
#define BT_REGEX_WORK ((size_t)1 << 25)
enum { BT_NODE_WORK = 64 /* of a node that is read, packed, and thrown away */ };
void bt_regex_worked(bt_parts *g, size_t work);

#endif
