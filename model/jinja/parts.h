/* model/jinja/parts.h - what this folder shares: a template's tree, values, and the memory of one
 * rendering, which is freed as a whole. */
#ifndef BT_MODEL_JINJA_PARTS_H
#define BT_MODEL_JINJA_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "model/jinja/jinja.h"

typedef struct bt_jinja_block bt_jinja_block;

/* One rendering. */
typedef struct {
    const char     *name; /* of the file */
    const char     *text; /* the template, lines ending in \n, with a zero behind */
    bt_jinja_block *blocks;
    size_t          n_bytes; /* in blocks */
    size_t          n_steps;
    uint32_t        depth;
    char           *out; /* what has been printed: of the template, or of the macro that runs */
    size_t          n_out, out_capacity;
} bt_jinja;

/* Zeroed, until the rendering ends; NULL: no memory, or more than a template may take. */
void *bt_jinja_take(bt_jinja *j, size_t n, size_t size);

#define BT_JINJA_NEW(j, ptr, n)                                                                  \
    do {                                                                                         \
        (ptr) = bt_jinja_take(j, n, sizeof(*(ptr)));                                             \
        BT_REQUIRE((ptr) != NULL, BT_ERR_NO_MEMORY,                                              \
                   "%s: the chat template takes more memory than there is, or than it may take", \
                   (j)->name);                                                                   \
    } while (0)
/* BT_REQUIRE with the place in the template; the text is made in another function's frame, as these
 * lie deep in each other. */
#define BT_JINJA_REQUIRE(j, where, cond, code, ...)              \
    do {                                                         \
        if (!(cond)) {                                           \
            st = bt_jinja_refuse(j, where, (code), __VA_ARGS__); \
            goto out;                                            \
        }                                                        \
    } while (0)
enum { BT_JINJA_WHY_BYTES = 320 };

/* Returns st, which is not BT_OK. */
bt_status bt_jinja_refuse(const bt_jinja *j, const char *where, bt_status st, const char *format,
                          ...) __attribute__((format(printf, 4, 5)));
/* Counts n steps; UNSUPPORTED after more than a template may take. */
bt_status bt_jinja_count(bt_jinja *j, const char *at, size_t n);

/* Bytes that live as long as the rendering. */
typedef struct {
    const char *s;
    size_t      n;
} bt_jinja_text;

static inline bt_jinja_text bt_jinja_word(const char *s) { return (bt_jinja_text){s, strlen(s)}; }
bool                        bt_jinja_is(bt_jinja_text text, const char *word);
/* For "%.*s", cut to what an error shows. */
int bt_jinja_shown(bt_jinja_text text);

/* ---- the tree ---- */

typedef struct bt_jinja_node bt_jinja_node;
/* Lists go by `next`. */
struct bt_jinja_node {
    enum {
        /* expressions */
        BT_JINJA_NONE,
        BT_JINJA_BOOL,    /* number */
        BT_JINJA_INT,     /* number */
        BT_JINJA_STRING,  /* text */
        BT_JINJA_NAME,    /* text */
        BT_JINJA_LIST,    /* list: items; number: it is a tuple */
        BT_JINJA_MAP,     /* list: key, value, key, value */
        BT_JINJA_ATTR,    /* a . text */
        BT_JINJA_INDEX,   /* a [b] */
        BT_JINJA_SLICE,   /* a [b : c : d]; each may be NULL */
        BT_JINJA_CALL,    /* a (list) */
        BT_JINJA_KEYWORD, /* of a call: text = a */
        BT_JINJA_FILTER,  /* a | text (list) */
        BT_JINJA_TEST,    /* a is text (list) */
        BT_JINJA_NOT,     /* not a */
        BT_JINJA_SIGNED,  /* number, which is 1 or -1, times a */
        BT_JINJA_AND,     /* a and b */
        BT_JINJA_OR,      /* a or b */
        BT_JINJA_COMPARE, /* a number b: < > and BT_JINJA_EQ to BT_JINJA_IN */
        BT_JINJA_BINARY,  /* a number b: + - * / % ~ and BT_JINJA_FLOOR, BT_JINJA_POWER */
        BT_JINJA_CHOOSE,  /* a if b else c, which may be NULL */
        /* statements */
        BT_JINJA_TEXT,  /* text */
        BT_JINJA_PRINT, /* a */
        BT_JINJA_IF,    /* if a: list, else: or_else, which is another one for elif */
        BT_JINJA_FOR,   /* for b, a list of names, in a if c: list, else: or_else */
        BT_JINJA_SET,   /* a (a name, an ATTR or a list of names) = b, or what list prints */
        BT_JINJA_MACRO, /* text (b: names, with a default each in a, or NULL): list */
        BT_JINJA_BREAK,
        BT_JINJA_CONTINUE,
        BT_JINJA_BODY /* list */
    } kind;
    const char    *at; /* in the template */
    bt_jinja_text  text;
    int64_t        number;
    bt_jinja_node *a, *b, *c, *d, *list, *or_else, *next;
};

/* Signs of two characters. */
enum {
    BT_JINJA_EQ = 256,
    BT_JINJA_NE,
    BT_JINJA_LE,
    BT_JINJA_GE,
    BT_JINJA_IN,
    BT_JINJA_FLOOR,
    BT_JINJA_POWER
};

/* What is read next of a tag. */
typedef struct {
    enum { BT_JINJA_WORD, BT_JINJA_NUMBER, BT_JINJA_QUOTED, BT_JINJA_SIGN, BT_JINJA_TAG_END } kind;
    const char   *at;
    bt_jinja_text text;   /* of a word or sign as it stands, of a quoted text what it means */
    int64_t       number; /* or which sign */
} bt_jinja_token;

typedef struct {
    bt_jinja      *j;
    const char    *at; /* behind `now` */
    bt_jinja_token now;
    char           closing;        /* of the tag: '%' or '}' */
    uint32_t       open;           /* brackets in the tag */
    uint32_t       depth, n_loops; /* around */
} bt_jinja_parser;

/* The next token of a tag. */
bt_status bt_jinja_read(bt_jinja_parser *p);
bool      bt_jinja_at_word(const bt_jinja_parser *p, const char *word);
bool      bt_jinja_at_sign(const bt_jinja_parser *p, int sign);
/* At one of the words, which end with NULL. */
bool bt_jinja_at_any(const bt_jinja_parser *p, const char *const *words);
/* Passes it, or says what was found instead. */
bt_status bt_jinja_pass_word(bt_jinja_parser *p, const char *word);
bt_status bt_jinja_pass_sign(bt_jinja_parser *p, int sign);
bt_status bt_jinja_pass_name(bt_jinja_parser *p, const char *what, bt_jinja_text *name_out);
bt_status bt_jinja_node_new(bt_jinja_parser *p, int kind, bt_jinja_node **node_out);
bt_status bt_jinja_expected(const bt_jinja_parser *p, const char *what);
/* One more level of the tree; undone by p->depth--, also after an error. */
bt_status bt_jinja_deeper(bt_jinja_parser *p);

/* With commas: a list.  `choice`: it may be `a if b else c`. */
bt_status bt_jinja_parse_tuple(bt_jinja_parser *p, bool choice, bt_jinja_node **node_out);
bt_status bt_jinja_parse_expression(bt_jinja_parser *p, bt_jinja_node **node_out);
/* A name, or an attribute of one, or names with commas: where `set` and `for` store. */
bt_status bt_jinja_parse_target(bt_jinja_parser *p, bt_jinja_node **node_out);
bt_status bt_jinja_parse_template(bt_jinja *j, bt_jinja_node **body_out);

/* ---- values ---- */

typedef struct bt_jinja_map   bt_jinja_map;
typedef struct bt_jinja_value bt_jinja_value;
struct bt_jinja_value {
    enum {
        BT_JINJA_UNDEFINED,
        BT_JINJA_IS_NONE,
        BT_JINJA_IS_BOOL,
        BT_JINJA_IS_INT,
        BT_JINJA_IS_STRING,
        BT_JINJA_IS_LIST,
        BT_JINJA_IS_MAP,
        BT_JINJA_IS_MACRO, /* or, without a node, one of the functions */
        BT_JINJA_ABSENT    /* of an entry that is kept for later */
    } kind;
    /* Of a list: none equals one of another sort, nor is added to it; a view has no indices. */
    enum { BT_JINJA_PLAIN, BT_JINJA_TUPLE, BT_JINJA_RANGE, BT_JINJA_VIEW } sort;
    union {
        int64_t       number;
        bt_jinja_text text; /* of a string; of what is undefined its name */
        struct {
            bt_jinja_value *at;
            size_t          n;
        } list;
        bt_jinja_map *map;
        struct {
            const bt_jinja_node *node;
            bt_jinja_map        *scope; /* where it stands */
        } macro;
    };
};

typedef struct bt_jinja_entry bt_jinja_entry;
struct bt_jinja_entry {
    bt_jinja_text   key;
    bt_jinja_value  value;
    bt_jinja_entry *next;
};
/* Entries in their order: of a map, of a namespace, of `loop`, of the names in a scope. */
struct bt_jinja_map {
    bt_jinja_entry *first, *last;
    size_t          n;
    bt_jinja_map   *up; /* of a scope: what is around it */
    enum { BT_JINJA_DICT, BT_JINJA_NAMESPACE, BT_JINJA_LOOP } sort;
};

bt_jinja_value bt_jinja_undefined(bt_jinja_text name);
bt_jinja_value bt_jinja_bool(bool is);
bt_jinja_value bt_jinja_int(int64_t number);
bt_jinja_value bt_jinja_string(const char *s, size_t n);
/* Steps that a search for the key counts as: all others may begin as it does. */
size_t          bt_jinja_find_steps(const bt_jinja_map *map, bt_jinja_text key);
bt_jinja_entry *bt_jinja_find(const bt_jinja_map *map, bt_jinja_text key);
/* The same, counted; *entry_out is NULL where there is none. */
bt_status bt_jinja_look_up(bt_jinja *j, const char *at, const bt_jinja_map *map, bt_jinja_text key,
                           const bt_jinja_entry **entry_out);
bt_status bt_jinja_put(bt_jinja *j, bt_jinja_map *map, bt_jinja_text key, bt_jinja_value v);

static inline bool bt_jinja_is_number(const bt_jinja_value *v)
{
    return v->kind == BT_JINJA_IS_INT || v->kind == BT_JINJA_IS_BOOL;
}

/* ---- texts ---- */

bool bt_jinja_same_text(bt_jinja_text a, bt_jinja_text b);
/* Steps that going through it counts as. */
size_t bt_jinja_text_steps(bt_jinja_text text);
size_t bt_jinja_steps(const bt_jinja_value *v);
/* Without its first n bytes. */
bt_jinja_text bt_jinja_behind(bt_jinja_text t, size_t n);
/* Where `what` stands first, or NULL. */
const char *bt_jinja_find_text(bt_jinja_text in, bt_jinja_text what);
/* Without what is in `chars` (NULL: blanks, as Python's str.isspace()) at its ends. */
bt_jinja_text bt_jinja_strip(bt_jinja_text t, const bt_jinja_text *chars, bool left, bool right);
/* Behind the blanks that a text with a zero at its end begins with. */
const char *bt_jinja_skip_space(const char *at);
size_t      bt_jinja_n_chars(bt_jinja_text t);
/* Its characters from number `from` to before number `to`, as far as there are some. */
bt_jinja_text bt_jinja_part(bt_jinja_text t, size_t from, size_t to);
bt_status bt_jinja_concat(bt_jinja *j, bt_jinja_text a, bt_jinja_text b, bt_jinja_text *text_out);
/* The characters as a list, and a list of texts as one. */
bt_status bt_jinja_chars(bt_jinja *j, bt_jinja_text t, bt_jinja_value *list_out);
bt_status bt_jinja_join(bt_jinja *j, const bt_jinja_value *list, bt_jinja_value *value_out);

/* ---- operators ---- */

bool        bt_jinja_truth(const bt_jinja_value *v);
const char *bt_jinja_kind(const bt_jinja_value *v); /* in words */
/* As printed. */
bt_status bt_jinja_to_text(bt_jinja *j, const char *at, const bt_jinja_value *v,
                           bt_jinja_text *text_out);
/* ==, of lists and maps by what is in them; `depth` of them are around. */
bt_status bt_jinja_same(bt_jinja *j, const char *at, const bt_jinja_value *a,
                        const bt_jinja_value *b, uint32_t depth, bool *is_out);
bt_status bt_jinja_is_in(bt_jinja *j, const char *at, const bt_jinja_value *a,
                         const bt_jinja_value *b, bool *is_out);
bt_status bt_jinja_compare(bt_jinja *j, const bt_jinja_node *node, const bt_jinja_value *a,
                           const bt_jinja_value *b, bool *is_out);
bt_status bt_jinja_binary(bt_jinja *j, const bt_jinja_node *node, const bt_jinja_value *a,
                          const bt_jinja_value *b, bt_jinja_value *value_out);
bt_status bt_jinja_index(bt_jinja *j, const char *at, const bt_jinja_value *of,
                         const bt_jinja_value *by, bt_jinja_value *value_out);
/* Of a list or a string; bounds: from, to and step, a number or none each. */
bt_status bt_jinja_slice(bt_jinja *j, const char *at, const bt_jinja_value *of,
                         const bt_jinja_value bounds[3], bt_jinja_value *value_out);
/* What a loop goes through, as a plain list. */
bt_status bt_jinja_items(bt_jinja *j, const char *at, const bt_jinja_value *of,
                         bt_jinja_value *list_out);
/* keys, values, or [key, value] of each entry. */
bt_status bt_jinja_entries(bt_jinja *j, const bt_jinja_map *map, bool keys, bool values,
                           bt_jinja_value *list_out);

/* ---- calls ---- */

/* What a call, a filter or a test gets: the values in their order, and those with names. */
enum { BT_JINJA_MAX_ARGS = 8 };
typedef struct {
    const char    *at; /* in the template */
    bt_jinja_text  name;
    bt_jinja_value value; /* what it is applied to */
    bt_jinja_value args[BT_JINJA_MAX_ARGS];
    size_t         n_args;
    bt_jinja_map   keywords;
} bt_jinja_call;

bt_status bt_jinja_method(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out);
bt_status bt_jinja_filter(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out);
bt_status bt_jinja_test(bt_jinja *j, bt_jinja_call *call, bool *is_out);
/* Whether Jinja, or Hugging Face, has a function of that name. */
bool bt_jinja_is_function(bt_jinja_text name);
/* range(), namespace(), dict(), strftime_now(), raise_exception() */
bt_status bt_jinja_function(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out);

/* One step deeper; undone by j->depth--, also after an error. */
bt_status bt_jinja_step(bt_jinja *j, const bt_jinja_node *node);
bt_status bt_jinja_evaluate(bt_jinja *j, bt_jinja_map *scope, const bt_jinja_node *node,
                            bt_jinja_value *value_out);
/* call->value is a macro; what it prints. */
bt_status bt_jinja_run_macro(bt_jinja *j, const bt_jinja_call *call, bt_jinja_value *value_out);
/* Prints the tree's text into j->out. */
bt_status bt_jinja_run(bt_jinja *j, const bt_jinja_node *body, bt_jinja_map *globals);

#endif
