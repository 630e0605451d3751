/* model/grammar/schema.h - inside this folder: what the files that read a JSON schema share.
 *
 *   schema.c         a schema's keywords, references, enum and const
 *   schema_place.c   refusals, and bounds on depth and work
 *   schema_merge.c   which keywords there are, and schemas that must hold together as one
 *   schema_not.c     not, if and dependencies, said by other keywords
 *   schema_look.c    patterns that hold with others, or not
 *   schema_listed.c  values of enum and const, beside other keywords
 *   schema_value.c   JSON without a schema: whitespace, any value; literals
 *   schema_object.c  schema_keys.c  schema_patterns.c  schema_array.c  schema_unique.c
 *   schema_string.c  schema_counted.c  schema_number.c
 *   schema_style.c   the outermost object as a tool's arguments that are no JSON
 *
 * Each type's file reads the keywords of that type from a schema, an object of jansson's.
 *
 * Threads: one at a time for a bt_schema.  Memory: bt_alloc's and jansson's; all goes with the
 * reader. */
#ifndef BT_MODEL_GRAMMAR_SCHEMA_H
#define BT_MODEL_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "model/grammar/matcher.h"

/* The place of a value, for refusals: a JSON pointer (RFC 6901), the last step first. */
typedef struct bt_schema_at {
    const struct bt_schema_at *up;  /* NULL: `key` is a pointer as a whole */
    const char                *key; /* of an object; NULL: */
    size_t                     index;
} bt_schema_at;

typedef enum {
    BT_COMMON_SPACE,     /* whitespace between tokens, or none */
    BT_COMMON_CHARACTER, /* of a string */
    BT_COMMON_NON_ASCII, /* of a key: a character as it is, or \" or \\ */
    BT_COMMON_STRING,
    BT_COMMON_INTEGER,
    BT_COMMON_NUMBER,
    BT_COMMON_ANY, /* value */
    BT_COMMON_KINDS
} bt_schema_common;

typedef struct {
    const json_t *schema; /* borrowed */
    const char   *name;   /* borrowed: its pointer */
    uint32_t      rule;
} bt_schema_pending;

/* How a member of the outermost object is written: begin NAME, text or json, VALUE, end.  VALUE is
 * a text as it is, up to `end`, or JSON. */
struct bt_schema_style {
    const char *name; /* of the style */
    const char *begin, *text, *json;
    const char *value; /* behind those and whitespace, before VALUE; NULL: nothing */
    const char *end;
};

/* With a style: what is being read. */
typedef enum { BT_SCHEMA_JSON, BT_SCHEMA_OUTERMOST, BT_SCHEMA_VALUE } bt_schema_place;

typedef struct {
    bt_parts              *g;
    json_t                *root;    /* owned */
    json_t                *made;    /* owned: an array of the schemas that are merged */
    json_t                *memo;    /* owned: an object, a rule for each text */
    bt_schema_pending     *pending; /* owned: references that are to be read */
    uint32_t               common[BT_COMMON_KINDS]; /* 1 + its rule, or 0 */
    json_t                *matched;                 /* owned: a pattern or format, */
    bt_matcher            *matcher; /* owned: what values of enum were last held against */
    uint32_t               n_pending, pending_capacity;
    uint32_t               depth;
    uint32_t               n_before; /* steps that the schemas before this one have taken */
    const bt_schema_style *style;    /* borrowed; NULL: all is JSON */
    bt_schema_place        place;
} bt_schema;

/* Types as bits. */
enum {
    BT_TYPE_OBJECT  = 1,
    BT_TYPE_ARRAY   = 2,
    BT_TYPE_STRING  = 4,
    BT_TYPE_NUMBER  = 8,
    BT_TYPE_INTEGER = 16,
    BT_TYPE_BOOLEAN = 32,
    BT_TYPE_NULL    = 64,
    BT_TYPE_ALL     = 127
};

/* ---- schema.c */

bt_part bt_schema_read(bt_schema *s, const json_t *schema, const bt_schema_at *at);
/* What a $ref names, borrowed; NULL: refused. */
const json_t *bt_schema_resolve(bt_schema *s, const json_t *ref, const bt_schema_at *at);

/* ---- schema_place.c */

/* "at #/properties/a: ..." */
void bt_schema_refuse(bt_schema *s, const bt_schema_at *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same of a keyword's value, which is of the wrong kind. */
void bt_schema_unexpected(bt_schema *s, const json_t *schema, const char *keyword,
                          const bt_schema_at *at, const char *expected);
/* Counts n pieces of work, of all schemas of a structural tag together.  False: there is an error,
 * maybe that it is too much. */
bool bt_schema_step(bt_schema *s, const bt_schema_at *at, size_t n);
/* Pieces of work of comparing a value with another one (json_equal()). */
size_t bt_schema_weight(const json_t *value);
/* One level deeper; bt_schema_leave() goes with it in any case. */
bool bt_schema_enter(bt_schema *s, const bt_schema_at *at);
void bt_schema_leave(bt_schema *s);

/* Whole numbers of at least 0, or `absent`; what is beyond 32 bits becomes UINT32_MAX. */
uint32_t bt_schema_count(bt_schema *s, const json_t *schema, const char *keyword, uint32_t absent,
                         const bt_schema_at *at);
/* A value that jansson may have had no memory for. */
json_t *bt_schema_owned(bt_schema *s, json_t *value);
/* An object or array with the same members, owned: json_copy() may drop some where memory is
 * short. */
json_t *bt_schema_copy(bt_schema *s, json_t *value);
/* The same of a schema that is made here: borrowed then, as long as the reader is there. */
json_t *bt_schema_made(bt_schema *s, json_t *schema);

/* The rule that `text` stands for; false: it is new and must be said. */
bool bt_schema_memo(bt_schema *s, const char *text, uint32_t *rule_out);

/* ---- schema_merge.c */

/* Refuses keywords that cannot be kept.  Bits of the types that the others speak of. */
uint32_t bt_schema_check_keywords(bt_schema *s, const json_t *schema, const bt_schema_at *at);
/* A schema of any value: true or {}. */
bool bt_schema_says_nothing(const json_t *schema);
/* Whether it says which values are valid. */
bool bt_schema_is_keyword(const char *keyword, const json_t *value);
/* Whether it says more by what schema_not.c reads. */
bool bt_schema_has_conditions(const json_t *schema);
/* Whether it only says which values of a list, or which types: enum, const and the like. */
bool bt_schema_only_lists(const json_t *schema);
/* Whether all of its allOf are anyOf or oneOf, beside one of its own: those wait until a branch of
 * this is taken. */
bool bt_schema_has_waiting(const json_t *schema);
/* How many do. */
size_t bt_schema_n_keywords(const json_t *schema);
/* Bits of `type` and `nullable`; BT_TYPE_ALL without. */
uint32_t bt_schema_types(bt_schema *s, const json_t *schema, const bt_schema_at *at);
/* Their names, an owned array: "number" alone where integers are among them as numbers are. */
json_t *bt_schema_type_names(bt_schema *s, uint32_t types);
/* Of numbers. */
bool bt_schema_is_less(const json_t *a, const json_t *b);
/* A schema, borrowed, for all that `schema` says but one keyword, and allOf that waits for it. */
json_t *bt_schema_without(bt_schema *s, const json_t *schema, const char *keyword,
                          const bt_schema_at *at);
/* Whether it can be told without reading it that nothing satisfies the schema. */
bool bt_schema_is_empty(bt_schema *s, const json_t *schema, const bt_schema_at *at);
/* From now on `into` says what `from` says, too. */
void bt_schema_merge(bt_schema *s, json_t *into, const json_t *from, const bt_schema_at *at);
void bt_schema_merge_all_of(bt_schema *s, json_t *into, const json_t *from, const bt_schema_at *at);

/* ---- schema_not.c */

/* A `not` that only lists values, which stays as it is: {"enum": [...]}. */
bool bt_schema_is_not_listed(const char *keyword, const json_t *value);
/* From now on `into` says what the keyword of `from` says. */
void bt_schema_merge_condition(bt_schema *s, json_t *into, const json_t *from, const char *keyword,
                               const bt_schema_at *at);
/* Whether `not` of the schema lists the value. */
bool bt_schema_rules_out(bt_schema *s, const json_t *schema, const json_t *v,
                         const bt_schema_at *at);
/* The value of a type, but for those that `not` lists. */
bt_part bt_schema_but_listed(bt_schema *s, const json_t *schema, uint32_t type,
                             const bt_schema_at *at);

/* ---- schema_look.c */

/* A pattern, owned, of the strings in which this one, a string, is nowhere. */
json_t *bt_schema_no_pattern(bt_schema *s, const json_t *pattern, const bt_schema_at *at);
/* A pattern, owned, that says what both say; NULL: it cannot be told, or an error. */
json_t *bt_schema_both_patterns(bt_schema *s, const json_t *a, const json_t *b,
                                const bt_schema_at *at);

/* ---- schema_listed.c */

/* Bits of the types that a value is of. */
uint32_t bt_schema_type_of(const json_t *v);
/* Whether two are the same value: 1 and 1.0 are. */
bool bt_schema_is_equal(const json_t *a, const json_t *b);
/* Value i of enum, or const where that is alone; NULL: there are no more. */
const json_t *bt_schema_listed(const json_t *schema, size_t i);
/* Whether a value of enum or const is of a type, and said by enum, const and `not` alike. */
bool bt_schema_lists(bt_schema *s, const json_t *schema, uint32_t types, const json_t *v,
                     const bt_schema_at *at);
/* Whether enum or const are there, and no value is left. */
bool bt_schema_lists_none(bt_schema *s, const json_t *schema, uint32_t types,
                          const bt_schema_at *at);
/* Whether a value of enum or const is as the keywords beside it say: lengths, bounds, pattern,
 * multipleOf of whole numbers; of an object or array its size, names and what is unique, not what
 * they say of each member or item.  A text that is not as `format` says is refused. */
bool bt_schema_keeps_bounds(bt_schema *s, const json_t *schema, const json_t *v,
                            const bt_schema_at *at);

/* ---- schema_value.c */

bt_part bt_schema_call(bt_schema *s, bt_schema_common which);
/* A value, which is no text where a member or item is not as the schema says; NULL: any may be. */
bt_part bt_schema_literal(bt_schema *s, const json_t *value, const json_t *schema,
                          const bt_schema_at *at);
bt_part bt_schema_string_literal(bt_schema *s, const char *text, size_t n);
/* ", " and what comes then. */
bt_part bt_schema_next(bt_schema *s, bt_part item);

/* Enough for a number as bt_schema_print() writes it. */
enum { BT_SCHEMA_NUMBER_BYTES = 32 };
/* %e with the fewest digits, of 15 to 17, that give v again.  Returns their number. */
int bt_schema_print(double v, char text[BT_SCHEMA_NUMBER_BYTES]);

/* ---- schema_patterns.c */

enum { BT_SCHEMA_MOST_PATTERNS = 4 };

/* Of texts in which the regular expression matches somewhere, owned.  barred: where dialects differ
 * it takes more, not fewer.  NULL: it matches nothing, or there is an error. */
bt_matcher *bt_schema_matcher(bt_schema *s, const char *regex, bool barred, const bt_schema_at *at);
/* Whether it takes the text; NULL takes none. */
bool bt_schema_matches(bt_schema *s, bt_matcher *m, const char *text, const bt_schema_at *at);

/* From now on the schema of each name says what the patterns say that match it; of a name that is
 * none of the properties (which may be NULL) only that.  Whether any matches. */
bool bt_schema_hold_patterns(bt_schema *s, json_t *members, const json_t *properties,
                             json_t *patterns, const bt_schema_at *at);
/* "key": value, of any key that is none of the names and that a pattern matches, or, where `rest`
 * is not NULL, that none does. */
bt_part bt_schema_patterned(bt_schema *s, json_t *patterns, const json_t *rest, const json_t *names,
                            const bt_schema_at *at);

/* ---- schema_style.c */

/* A member's name, up to its value; a name that is none of these; what stands behind the value; and
 * whitespace before a member. */
bt_part bt_style_key(bt_schema *s, const char *name, const bt_schema_at *at);
bt_part bt_style_other_key(bt_schema *s, const json_t *names);
bt_part bt_style_end(bt_schema *s, bt_part member);
bt_part bt_style_next(bt_schema *s, bt_part member);
/* Before a value of JSON, and before a text as it is. */
bt_part bt_style_json(bt_schema *s, bt_part value);
bt_part bt_style_text(bt_schema *s, bt_part value);
/* Any text that does not hold the end; one of min to max characters that are no '<'. */
bt_part bt_style_free_text(bt_schema *s);
bt_part bt_style_characters(bt_schema *s, uint32_t min, uint32_t max);
/* Texts in which the regular expression matches somewhere, and that do not hold the end. */
bt_part bt_style_pattern(bt_schema *s, const char *text, size_t n);

/* ---- one file each */

bt_part bt_schema_object(bt_schema *s, const json_t *schema, const bt_schema_at *at);
/* What the schema says of each member of a value: an owned object of schemas. */
json_t *bt_schema_of_members(bt_schema *s, const json_t *schema, const json_t *value,
                             const bt_schema_at *at);
/* Between a key and its value. */
bt_part bt_schema_colon(bt_schema *s);
bt_part bt_schema_array(bt_schema *s, const json_t *schema, const bt_schema_at *at);
bt_part bt_schema_string(bt_schema *s, const json_t *schema, const bt_schema_at *at);
bt_part bt_schema_number(bt_schema *s, const json_t *schema, bool integer, const bt_schema_at *at);
/* The schema of item i, borrowed; NULL: there is none. */
const json_t *bt_schema_of_item(bt_schema *s, const json_t *schema, size_t i,
                                const bt_schema_at *at);
/* The number that a keyword says; NULL where it is not there.  Anything else is refused. */
const json_t *bt_schema_bound(bt_schema *s, const json_t *schema, const char *keyword,
                              const bt_schema_at *at);
/* min to max items, but for none, of which no two are equal: each of a list of values. */
bt_part bt_schema_unique(bt_schema *s, const json_t *items, uint32_t min, uint32_t max,
                         const bt_schema_at *at);
/* A key, in its quotes, that is none of the names of an object. */
bt_part bt_schema_other_keys(bt_schema *s, const json_t *names);
/* Texts inside a JSON string that the pattern matches and that have min to max characters. */
bt_part bt_schema_counted(bt_schema *s, const char *pattern, size_t n_bytes, uint32_t min,
                          uint32_t max, const bt_schema_at *at);
/* Formats that are kept; others are annotations. */
bool bt_schema_is_format(const json_t *format);
/* The regular expression of the texts that come of one that is kept: of a whole text. */
const char *bt_schema_format_regex(const json_t *format);

#endif
