/* model/grammar/parts.h - what the readers of this folder build a grammar of: parts, each a piece
 * of text that may come, over bytes.
 *
 * A part is a small automaton between two nodes (Thompson, "Regular Expression Search Algorithm",
 * CACM 1968) whose edges are byte ranges, nothing, or calls of a rule; rules may call each other
 * and themselves.  A part is used once: whoever takes one as an argument makes it its own.
 *
 * Errors: the first one stays (of memory, of size, or what a reader refuses); everything after it
 * is harmless and means nothing, so that readers ask once, at their end or in a loop's condition.
 *
 * Threads: one at a time for a bt_parts.  Memory: grows as parts come, up to the limits below. */
#ifndef BT_MODEL_GRAMMAR_PARTS_H
#define BT_MODEL_GRAMMAR_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum {
    BT_GRAMMAR_NODES_MAX = 1 << 18, /* of a grammar, edges twice as many */
    BT_GRAMMAR_DEPTH_MAX = 128, /* of a text that is read: groups, objects, schemas in each other */
    BT_GRAMMAR_WHY_BYTES = 200  /* of a refusal: a sentence for the client */
};
#define BT_UNLIMITED UINT32_MAX

typedef struct {
    uint32_t start, end; /* nodes; nothing leaves `end` yet, nothing arrives at `start` */
} bt_part;

typedef struct {
    uint32_t to;
    uint32_t next; /* of the same node: 1 + its index, 0 ends the list */
    uint32_t rule; /* CALL */
    uint8_t  kind, lo, hi;
} bt_part_edge;

enum { BT_EDGE_NOTHING, BT_EDGE_BYTES, BT_EDGE_CALL };

typedef struct {
    char   *name; /* owned; for refusals, or NULL */
    bool    given;
    bt_part is;
} bt_part_rule;

typedef struct {
    bt_status     st;                        /* the first error */
    char          why[BT_GRAMMAR_WHY_BYTES]; /* INVALID_ARG: what is refused */
    uint32_t     *first;                     /* owned [n_nodes]: 1 + the node's first edge, or 0 */
    bt_part_edge *edges;                     /* owned */
    bt_part_rule *rules;                     /* owned */
    uint32_t      n_nodes, n_edges, n_rules;
    uint32_t      nodes_capacity, edges_capacity, rules_capacity;
    uint32_t      n_steps; /* of all JSON schemas that are read into it (schema.h) */
    size_t        work;    /* of look-aheads (regex.h) */
} bt_parts;

/* All zero is an empty one. */
void bt_parts_fini(bt_parts *g);

/* INVALID_ARG with this sentence, unless there is an error already. */
void bt_parts_refuse(bt_parts *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* NO_MEMORY, unless there is an error already. */
void bt_parts_no_memory(bt_parts *g);
/* Room for one more than n in the array of bt_alloc's memory at *array.  False: there is an error,
 * maybe that there is no room, or that there are `most` already. */
bool bt_parts_grow(bt_parts *g, void *array, size_t size, uint32_t n, uint32_t *capacity,
                   uint32_t most);

bt_part bt_part_nothing(bt_parts *g); /* the empty text */
bt_part bt_part_never(bt_parts *g);   /* no text at all */
bt_part bt_part_bytes(bt_parts *g, const char *bytes, size_t n);
bt_part bt_part_text(bt_parts *g, const char *text); /* up to its zero */
/* One byte of lo..hi. */
bt_part bt_part_byte(bt_parts *g, uint8_t lo, uint8_t hi);
bt_part bt_part_then(bt_parts *g, bt_part a, bt_part b);
bt_part bt_part_between(bt_parts *g, const char *before, bt_part a, const char *behind);
bt_part bt_part_either(bt_parts *g, bt_part a, bt_part b);
bt_part bt_part_maybe(bt_parts *g, bt_part a);
/* `a` at least `min` times, at most `max` (BT_UNLIMITED: no limit).  min > max is no text at all.
 */
bt_part bt_part_repeat(bt_parts *g, bt_part a, uint32_t min, uint32_t max);

/* One more way through a part that began as bt_part_never(). */
void bt_part_add(bt_parts *g, bt_part part, bt_part way);

/* ---- automata that are no trees: a reader lays out nodes, and says what leads from one to
 * another.  Two of them make a part, {start, end}, where that holds what bt_part says. */

uint32_t bt_part_node(bt_parts *g);
void     bt_part_join(bt_parts *g, uint32_t from, uint32_t to); /* the empty text */
void     bt_part_step(bt_parts *g, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to); /* a byte */
void     bt_part_way(bt_parts *g, uint32_t from, bt_part by, uint32_t to);

/* ---- rules */

/* A rule, which is said later, once (bt_rule_is), and called before or after.  name: for refusals,
 * copied; NULL: none.  A rule that is never said is no text at all. */
uint32_t bt_rule_new(bt_parts *g, const char *name);
void     bt_rule_is(bt_parts *g, uint32_t rule, bt_part part);
bt_part  bt_rule_call(bt_parts *g, uint32_t rule);

/* ---- characters: sets of code points */

typedef struct {
    uint32_t lo, hi;
} bt_char_range;

/* All zero is the empty set. */
typedef struct {
    bt_char_range *at; /* owned; in any order, may overlap */
    uint32_t       n, capacity;
} bt_chars;

#define BT_CHAR_MAX 0x10FFFFu

void bt_chars_fini(bt_chars *set);
void bt_chars_add(bt_parts *g, bt_chars *set, uint32_t lo, uint32_t hi); /* nothing where lo > hi */
void bt_chars_negate(bt_parts *g, bt_chars *set); /* no surrogates, which no text has */

/* One character of the set, in UTF-8. */
bt_part bt_part_chars(bt_parts *g, bt_chars *set);
/* The shortest escape of a character that must not stand in a JSON string as it is (RFC 8259,
 * section 7).  False: it may. */
bool bt_json_escape(uint32_t c, char out[8]);
/* One character of the set as it stands inside a JSON string: itself, or its escape. */
bt_part bt_part_json_chars(bt_parts *g, bt_chars *set);

#endif
