/* model/grammar/grammar.h - which texts a reply may be: constraints of structured output.
 *
 * A constraint is a JSON schema (schema.c), a regular expression (regex.c), a grammar in EBNF
 * (ebnf.c), a list of texts (choice.c), or structural tags (tag.c).  Each is read into parts
 * (parts.h) over the bytes of UTF-8, then checked and packed into a bt_grammar: what may follow
 * some text is then found by matcher.h.
 *
 * Threads: a bt_grammar never changes. */
#ifndef BT_MODEL_GRAMMAR_GRAMMAR_H
#define BT_MODEL_GRAMMAR_GRAMMAR_H

#include "model/grammar/parts.h"

typedef enum {
    BT_CONSTRAINT_NONE,
    BT_CONSTRAINT_JSON_SCHEMA, /* JSON text: a schema; the reply is one JSON value that it describes
                                */
    BT_CONSTRAINT_REGEX,       /* the whole reply */
    BT_CONSTRAINT_EBNF,        /* the rule `root` */
    BT_CONSTRAINT_CHOICE,      /* JSON text: an array of strings, of which the reply is one */
    BT_CONSTRAINT_STRUCTURAL_TAG, /* JSON text */
    BT_CONSTRAINT_KINDS
} bt_constraint_kind;

enum { BT_CONSTRAINT_BYTES_MAX = 1 << 18 }; /* of its text */

/* "json_schema", ... */
const char *bt_constraint_name(bt_constraint_kind kind);

typedef struct {
    uint32_t to;
    uint32_t rule_start; /* CALL: the start of the rule that is called */
    uint8_t  kind, lo, hi;
} bt_grammar_edge;

enum {
    BT_NODE_END  = 1, /* of a rule, or of the whole */
    BT_NODE_TAIL = 2  /* nothing comes any more but that end */
};

/* Nodes with edges [first[i], first[i + 1]); those that lead nowhere are gone. */
typedef struct {
    uint32_t         n_nodes, n_edges, start;
    uint32_t        *first; /* owned [n_nodes + 1] */
    bt_grammar_edge *edges; /* owned [n_edges] */
    uint8_t         *ends;  /* owned [n_nodes]: of BT_NODE_* */
    uint32_t         n_classes;
    uint8_t          class_of[256]; /* bytes of a class have the same edges everywhere */
} bt_grammar;

/* Reads n bytes.  INVALID_ARG (not logged: it is the client's affair) with a sentence in
 * why[BT_GRAMMAR_WHY_BYTES]: what is refused, and where in the text; NO_MEMORY. */
bt_status bt_grammar_create(bt_constraint_kind kind, const char *text, size_t n,
                            bt_grammar **grammar_out, char *why);
void      bt_grammar_destroy(bt_grammar *grammar);

/* Inside this folder: checks and packs what g has, of which `whole` is the reply.  INVALID_ARG (not
 * logged) also when no text at all may come, when a rule calls itself before anything else
 * (left recursion), and when g has an error. */
bt_status bt_grammar_pack(const bt_parts *g, bt_part whole, bt_grammar **grammar_out, char *why);

/* Inside this folder: the readers, each of the whole of a text.  What they refuse is in g. */
bt_part bt_read_json_schema(bt_parts *g, const char *text, size_t n);
/* The same of an object whose members are written in a style (schema_style.c). */
typedef struct bt_schema_style bt_schema_style;
const bt_schema_style         *bt_schema_style_of(const char *name); /* NULL: there is none */
bt_part                        bt_read_styled_schema(bt_parts *g, const char *text, size_t n,
                                                     const bt_schema_style *style);
bt_part                        bt_read_ebnf(bt_parts *g, const char *text, size_t n);
bt_part                        bt_read_choice(bt_parts *g, const char *text, size_t n);
bt_part                        bt_read_structural_tag(bt_parts *g, const char *text, size_t n);
/* whole: the text must match from its start to its end; else somewhere in it, as far as ^ and $ do
 * not say otherwise.  in_json: the text stands inside a JSON string (bt_part_json_chars()). */
bt_part bt_read_regex(bt_parts *g, const char *text, size_t n, bool whole, bool in_json);
/* Somewhere in a text that must not match: where dialects differ it takes more, not fewer. */
bt_part bt_read_barred_regex(bt_parts *g, const char *text, size_t n, bool in_json);
/* Somewhere in a text inside a JSON string, which has *least_out to *most_out characters. */
bt_part bt_read_pattern(bt_parts *g, const char *text, size_t n, uint32_t *least_out,
                        uint32_t *most_out);

#endif
