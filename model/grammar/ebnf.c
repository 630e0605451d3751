/* model/grammar/ebnf.c - grammars as llama.cpp (GBNF) and XGrammar write them:
 *     # a comment
 *     root ::= "a" item{2,3} | [^a-z\n]+ .
 *     item ::= ("x" | "")?
 * A rule begins on a line of its own and goes on until the next one begins; its name is of letters,
 * digits, - _ and, within it, dots.  "." is any character; what [^..] leaves out is all that it
 * does not take; \xHH is a character too, no byte.  Left recursion is found when the grammar is
 * packed. */
#include <stdarg.h>
#include <stdio.h>

#include "model/grammar/grammar.h"
#include "model/grammar/names.h"

enum { SENTENCE_BYTES = 160 };

typedef struct {
    bt_source s;
    bt_names  names;
    uint32_t  depth;
} reader;

static bt_part read_alternatives(reader *r);

__attribute__((format(printf, 3, 4))) static void refuse(reader *r, size_t at, const char *format,
                                                         ...)
{
    char     sentence[SENTENCE_BYTES];
    uint32_t line = 1, column = 1;
    va_list  args;

    if (r->s.g->st != BT_OK) return;
    for (size_t i = 0; i < at; i++) {
        if (r->s.text[i] == '\n') line++;
        column = r->s.text[i] == '\n' ? 1 : column + ((r->s.text[i] & 0xC0) != 0x80);
    }
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    bt_parts_refuse(r->s.g, "line %u, column %u of the grammar: %s", line, column, sentence);
}

/* NULL: refused. */
static bt_name *read_name(reader *r)
{
    bt_name *n = bt_names_read(&r->names, &r->s);

    if (n == NULL) refuse(r, r->s.at, "a name of more than %d bytes", (int)BT_NAME_BYTES_MAX);
    return n;
}

/* ---- between things */

static void pass_space(reader *r)
{
    for (char c; (c = bt_source_peek(&r->s)) != 0; r->s.at++) {
        if (c == '#')
            while (bt_source_more(&r->s) && bt_source_peek(&r->s) != '\n')
                r->s.at++;
        else if (c != ' ' && c != '\t' && c != '\r' && c != '\n')
            return;
        if (!bt_source_more(&r->s)) return;
    }
}

/* A name and ::= come: the next rule. */
static bool rule_comes(const reader *r)
{
    reader ahead = *r;

    ahead.s.at += bt_name_length(&ahead.s);
    if (ahead.s.at == r->s.at) return false;
    pass_space(&ahead);
    return bt_source_is(&ahead.s, "::=");
}

/* Only space stands before it in its line. */
static bool is_first_of_line(const reader *r)
{
    size_t at = r->s.at;

    while (at > 0 && (r->s.text[at - 1] == ' ' || r->s.text[at - 1] == '\t'))
        at--;
    return at == 0 || r->s.text[at - 1] == '\n' || r->s.text[at - 1] == '\r';
}

static void refuse_char(reader *r, const char *where)
{
    size_t   at = r->s.at;
    uint32_t c  = bt_source_char(&r->s);

    if (c == 0)
        refuse(r, at, "the grammar ends %s", where);
    else if (c > ' ' && c < 0x7F)
        refuse(r, at, "'%c' is not expected %s", (char)c, where);
    else
        refuse(r, at, "U+%04X is not expected %s", (unsigned)c, where);
}

/* ---- literals and classes */

/* Behind a backslash. */
static uint32_t read_escape(reader *r, size_t at)
{
    static const char names[] = "nrtfvab0e", chars[] = "\n\r\t\f\v\a\b\0\x1b";
    char              c      = bt_source_peek(&r->s);
    const char       *one    = c == 0 ? NULL : strchr(names, c);
    uint32_t          digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, value = 0;

    if (digits > 0) {
        r->s.at++;
        if (!bt_source_hex(&r->s, digits, digits, &value))
            refuse(r, at, "\\%c is not followed by %u hexadecimal digits", c, digits);
        else if (value > BT_CHAR_MAX || (value >= 0xD800 && value <= 0xDFFF))
            refuse(r, at, "\\%c and a number that is no character's", c);
        return value;
    }
    if (one == NULL && (c == 0 || strchr("\"'\\?[]^-/", c) == NULL)) {
        refuse(r, at, "an escape that is not known");
        return 0;
    }
    r->s.at++;
    return one != NULL ? (uint8_t)chars[one - names] : (uint8_t)c;
}

/* The next character of a literal or class. */
static uint32_t read_char(reader *r, const char *where)
{
    size_t at = r->s.at;

    if (bt_source_take(&r->s, "\\")) return read_escape(r, at);
    if (bt_source_peek(&r->s) == '\n' || bt_source_peek(&r->s) == '\r') {
        refuse(r, at, "the line ends within %s (write \\n)", where);
        return 0;
    }
    return bt_source_char(&r->s);
}

static bt_part one_char(reader *r, bt_chars *set)
{
    bt_part p = bt_part_chars(r->s.g, set);

    bt_chars_fini(set);
    return p;
}

static bt_part read_literal(reader *r)
{
    bt_parts *g  = r->s.g;
    size_t    at = r->s.at++;
    bt_part   p  = bt_part_nothing(g);

    while (bt_source_more(&r->s) && bt_source_peek(&r->s) != '"') {
        size_t   from = r->s.at;
        uint32_t c;

        while (bt_source_more(&r->s) && strchr("\"\\\r\n", bt_source_peek(&r->s)) == NULL)
            r->s.at++;
        if (r->s.at > from) {
            p = bt_part_then(g, p, bt_part_bytes(g, r->s.text + from, r->s.at - from));
        } else {
            bt_chars set = {0};

            c = read_char(r, "a literal");
            bt_chars_add(g, &set, c, c);
            p = bt_part_then(g, p, one_char(r, &set));
        }
    }
    if (!bt_source_take(&r->s, "\"")) refuse(r, at, "the literal has no closing \"");
    return p;
}

static bt_part read_class(reader *r)
{
    bt_parts  *g       = r->s.g;
    bt_source *s       = &r->s;
    size_t     at      = s->at++;
    bt_chars   set     = {0};
    bool       negated = bt_source_take(s, "^");

    if (bt_source_peek(s) == ']') refuse(r, at, "an empty class");
    while (bt_source_more(s) && bt_source_peek(s) != ']') {
        size_t   from = s->at;
        uint32_t lo = read_char(r, "a class"), hi = lo;

        if (bt_source_peek(s) == '-' && !bt_source_is(s, "-]")) {
            s->at++;
            hi = read_char(r, "a class");
        }
        if (lo > hi && bt_source_more(s))
            refuse(r, from, "a range of a class ends before it begins");
        bt_chars_add(g, &set, lo, hi);
    }
    if (!bt_source_take(s, "]")) refuse(r, at, "the class has no ]");
    if (negated) bt_chars_negate(g, &set);
    return one_char(r, &set);
}

static bt_part read_any(reader *r)
{
    bt_chars all = {0};

    r->s.at++;
    bt_chars_add(r->s.g, &all, 0, BT_CHAR_MAX);
    return one_char(r, &all);
}

/* ---- expressions */

static bt_part read_group(reader *r)
{
    size_t  at = r->s.at++;
    bt_part p;

    if (r->depth == BT_GRAMMAR_DEPTH_MAX)
        refuse(r, at, "groups in each other, more than %d of them", (int)BT_GRAMMAR_DEPTH_MAX);
    if (bt_source_peek(&r->s) == '=') refuse(r, at, "look-ahead (= is not supported");
    r->depth++;
    p = read_alternatives(r);
    r->depth--;
    if (!bt_source_take(&r->s, ")")) refuse(r, at, "the group has no )");
    return p;
}

static bt_part read_reference(reader *r)
{
    static const char *const MACROS[] = {"TagDispatch", "TokenTagDispatch"};
    size_t                   at       = r->s.at;
    const bt_name           *n        = read_name(r);

    if (n == NULL) return bt_part_never(r->s.g);
    for (size_t i = 0; i < sizeof(MACROS) / sizeof(MACROS[0]); i++)
        if (n->n == strlen(MACROS[i]) && memcmp(n->text, MACROS[i], n->n) == 0)
            refuse(r, at, "%s is not supported in a grammar (structural tags can say it)",
                   MACROS[i]);
    return bt_rule_call(r->s.g, n->rule);
}

static bt_part read_item(reader *r)
{
    char c = bt_source_peek(&r->s);

    if (c == '"') return read_literal(r);
    if (c == '[') return read_class(r);
    if (c == '(') return read_group(r);
    if (c == '.') return read_any(r);
    if (bt_name_begins(c)) return read_reference(r);
    if (c == '<' || c == '!')
        refuse(r, r->s.at, "'%c': tokens in a grammar are not supported", c);
    else if (c == '*' || c == '+' || c == '?' || c == '{')
        refuse(r, r->s.at, "'%c' repeats nothing", c);
    else
        refuse_char(r, "in an expression");
    return bt_part_never(r->s.g);
}

static void pass_blanks(bt_source *s)
{
    while (bt_source_peek(s) == ' ')
        s->at++;
}

/* {m} {m,} {m,n}, in which blanks may stand. */
static bool read_braces(bt_source *s, uint32_t *min, uint32_t *max)
{
    pass_blanks(s);
    if (!bt_source_number(s, min)) return false;
    *max = *min;
    pass_blanks(s);
    if (bt_source_take(s, ",")) {
        pass_blanks(s);
        if (!bt_source_number(s, max)) *max = BT_UNLIMITED;
        pass_blanks(s);
    }
    return bt_source_take(s, "}");
}

static bt_part read_repetition(reader *r, bt_part p)
{
    bt_source *s   = &r->s;
    uint32_t   min = 0, max = BT_UNLIMITED;
    size_t     at;

    pass_space(r);
    at = s->at;
    if (bt_source_take(s, "+"))
        min = 1;
    else if (bt_source_take(s, "?"))
        max = 1;
    else if (bt_source_take(s, "{")) {
        if (!read_braces(s, &min, &max)) refuse(r, at, "a repetition is {m}, {m,} or {m,n}");
    } else if (!bt_source_take(s, "*"))
        return p;
    if (min > BT_COUNT_MAX || (max > BT_COUNT_MAX && max != BT_UNLIMITED))
        refuse(r, at, "a repetition of more than %d times is not supported", (int)BT_COUNT_MAX);
    if (min > max) refuse(r, at, "a repetition of more at least than at most");
    pass_space(r);
    if (bt_source_more(s) && strchr("*+?{", bt_source_peek(s)) != NULL)
        refuse(r, s->at, "a repetition of a repetition (put it into a group)");
    return bt_part_repeat(s->g, p, min, max);
}

static bool sequence_ends(reader *r)
{
    char c;

    pass_space(r);
    c = bt_source_peek(&r->s);
    return c == 0 || c == '|' || c == ')' || rule_comes(r);
}

static bt_part read_sequence(reader *r)
{
    bt_part p   = {0};
    bool    any = false;

    while (!sequence_ends(r)) {
        bt_part item = read_repetition(r, read_item(r));

        p   = any ? bt_part_then(r->s.g, p, item) : item;
        any = true;
    }
    return any ? p : bt_part_nothing(r->s.g);
}

static bt_part read_alternatives(reader *r)
{
    bt_part p = read_sequence(r);

    while (bt_source_take(&r->s, "|"))
        p = bt_part_either(r->s.g, p, read_sequence(r));
    return p;
}

/* ---- rules */

static bool refuse_lark(reader *r)
{
    bt_source ahead  = r->s;
    char      c      = bt_source_peek(&ahead);
    bool      marked = c == '?' || c == '%' || c == '!' || bt_source_is(&ahead, "//");

    ahead.at += bt_name_length(&ahead);
    pass_blanks(&ahead);
    if (!marked && (ahead.at == r->s.at || bt_source_peek(&ahead) != ':' ||
                    bt_source_is(&ahead, "::=") || bt_source_is(&ahead, ":=")))
        return false;
    refuse(r, r->s.at, "this looks like Lark; a grammar in EBNF (GBNF) is expected, name ::= ...");
    return true;
}

static void read_rule(reader *r)
{
    size_t   at = r->s.at;
    bt_name *n;
    bt_part  p;

    if (refuse_lark(r)) return;
    if (!bt_name_begins(bt_source_peek(&r->s))) {
        refuse_char(r, "where a rule should begin, name ::= ...");
        return;
    }
    if (!is_first_of_line(r)) refuse(r, at, "a rule begins on a line of its own");
    n = read_name(r);
    pass_space(r);
    if (!bt_source_take(&r->s, "::="))
        refuse_char(r, "where ::= should stand behind a rule's name");
    if (n == NULL) return;
    if (n->is_said) refuse(r, at, "the rule %.*s is there already", (int)n->n, n->text);
    n->is_said = true;
    p          = read_alternatives(r);
    bt_rule_is(r->s.g, n->rule, p);
}

/* The first place that names a rule which is nowhere. */
static void check_all_said(reader *r)
{
    const bt_name *first = NULL;

    for (size_t i = 0; i < r->names.n; i++) {
        const bt_name *n = &r->names.at[i];

        if (n->has_rule && !n->is_said && (first == NULL || n->text < first->text)) first = n;
    }
    if (first != NULL)
        refuse(r, (size_t)(first->text - r->s.text), "there is no rule %.*s", (int)first->n,
               first->text);
}

bt_part bt_read_ebnf(bt_parts *g, const char *text, size_t n)
{
    reader r = {
        .s = {.g = g, .text = text, .n = n}
    };
    bt_part        whole = {0};
    const bt_name *root;

    if (!bt_source_check(&r.s, "the grammar")) return whole;
    bt_names_find(&r.names, r.s);
    for (pass_space(&r); bt_source_more(&r.s); pass_space(&r)) {
        read_rule(&r);
        if (bt_source_peek(&r.s) == ')') refuse(&r, r.s.at, "this ) closes no group");
    }
    check_all_said(&r);
    root = bt_names_get(&r.names, "root", 4);
    if (root == NULL || !root->is_said)
        bt_parts_refuse(g, "the grammar has no rule root, with which it should begin");
    else
        whole = bt_rule_call(g, root->rule);
    bt_names_fini(&r.names);
    return whole;
}
