/* The expressions of a template, as trees.  The grammar and its precedence are Jinja's: choice, or,
 * and, not, comparison, + -, ~, * / // %, **, unary sign, and behind each operand . [] () | and is.
 */

#include "model/jinja/parts.h"

enum { MOST_DEPTH = 200 };

bt_status bt_jinja_node_new(bt_jinja_parser *p, int kind, bt_jinja_node **node_out)
{
    bt_status      st = BT_OK;
    bt_jinja_node *node;

    BT_JINJA_NEW(p->j, node, 1);
    node->kind = kind;
    node->at   = p->now.at;
    *node_out  = node;
out:
    return st;
}

bt_status bt_jinja_deeper(bt_jinja_parser *p)
{
    bt_status st = BT_OK;

    p->depth++;
    BT_JINJA_REQUIRE(p->j, p->at, p->depth <= MOST_DEPTH, BT_ERR_UNSUPPORTED,
                     "nested more than %d deep", MOST_DEPTH);
out:
    return st;
}

/* *node_out = a node over it. */
static bt_status wrap(bt_jinja_parser *p, int kind, bt_jinja_node **node_out)
{
    bt_status      st = BT_OK;
    bt_jinja_node *over;

    BT_TRY(bt_jinja_node_new(p, kind, &over));
    over->a   = *node_out;
    *node_out = over;
out:
    return st;
}

/* A literal, a word that is not one of the language's, or what stands in brackets. */
static bt_status parse_word(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st       = BT_OK;
    bool      is_true  = bt_jinja_at_word(p, "true") || bt_jinja_at_word(p, "True");
    bool      is_false = bt_jinja_at_word(p, "false") || bt_jinja_at_word(p, "False");
    bool      is_none  = bt_jinja_at_word(p, "none") || bt_jinja_at_word(p, "None");
    int       kind = is_none ? BT_JINJA_NONE : is_true || is_false ? BT_JINJA_BOOL : BT_JINJA_NAME;

    BT_TRY(bt_jinja_node_new(p, kind, node_out));
    (*node_out)->text   = p->now.text;
    (*node_out)->number = is_true;
    BT_TRY(bt_jinja_read(p));
out:
    return st;
}

/* Quoted texts next to each other are one. */
static bt_status parse_quoted(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status     st = BT_OK;
    bt_jinja_text all;

    BT_TRY(bt_jinja_node_new(p, BT_JINJA_STRING, node_out));
    all = p->now.text;
    BT_TRY(bt_jinja_read(p));
    while (p->now.kind == BT_JINJA_QUOTED) {
        BT_TRY(bt_jinja_concat(p->j, all, p->now.text, &all));
        BT_TRY(bt_jinja_read(p));
    }
    (*node_out)->text = all;
out:
    return st;
}

/* Up to the closing sign: items with commas, of a map with a key and a colon each. */
static bt_status parse_items(bt_jinja_parser *p, int kind, int closing, bt_jinja_node **node_out)
{
    bt_status       st = BT_OK;
    bt_jinja_node **to;

    BT_TRY(bt_jinja_node_new(p, kind, node_out));
    to = &(*node_out)->list;
    BT_TRY(bt_jinja_read(p));
    while (!bt_jinja_at_sign(p, closing)) {
        if (to != &(*node_out)->list) {
            BT_TRY(bt_jinja_pass_sign(p, ','));
            if (bt_jinja_at_sign(p, closing)) break;
        }
        BT_TRY(bt_jinja_parse_expression(p, to));
        to = &(*to)->next;
        if (kind != BT_JINJA_MAP) continue;
        BT_TRY(bt_jinja_pass_sign(p, ':'));
        BT_TRY(bt_jinja_parse_expression(p, to));
        to = &(*to)->next;
    }
    BT_TRY(bt_jinja_read(p));
out:
    return st;
}

static bt_status parse_brackets(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_read(p));
    if (bt_jinja_at_sign(p, ')')) {
        BT_TRY(bt_jinja_node_new(p, BT_JINJA_LIST, node_out));
        (*node_out)->number = true;
    } else {
        BT_TRY(bt_jinja_parse_tuple(p, true, node_out));
    }
    BT_TRY(bt_jinja_pass_sign(p, ')'));
out:
    return st;
}

static bt_status parse_primary(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    if (p->now.kind == BT_JINJA_WORD)
        BT_TRY(parse_word(p, node_out));
    else if (p->now.kind == BT_JINJA_QUOTED)
        BT_TRY(parse_quoted(p, node_out));
    else if (bt_jinja_at_sign(p, '['))
        BT_TRY(parse_items(p, BT_JINJA_LIST, ']', node_out));
    else if (bt_jinja_at_sign(p, '{'))
        BT_TRY(parse_items(p, BT_JINJA_MAP, '}', node_out));
    else if (bt_jinja_at_sign(p, '('))
        BT_TRY(parse_brackets(p, node_out));
    else if (p->now.kind == BT_JINJA_NUMBER) {
        BT_TRY(bt_jinja_node_new(p, BT_JINJA_INT, node_out));
        (*node_out)->number = p->now.number;
        BT_TRY(bt_jinja_read(p));
    } else
        BT_TRY(bt_jinja_expected(p, "an expression"));
out:
    return st;
}

/* ---- behind an operand ---- */

/* From the bracket on: values, and name=value. */
static bt_status parse_arguments(bt_jinja_parser *p, bt_jinja_node **list_out)
{
    bt_status       st = BT_OK;
    bt_jinja_node **to = list_out, *node;

    BT_TRY(bt_jinja_pass_sign(p, '('));
    while (!bt_jinja_at_sign(p, ')')) {
        if (to != list_out) {
            BT_TRY(bt_jinja_pass_sign(p, ','));
            if (bt_jinja_at_sign(p, ')')) break;
        }
        BT_TRY(bt_jinja_parse_expression(p, &node));
        if (node->kind == BT_JINJA_NAME && bt_jinja_at_sign(p, '=')) {
            node->kind = BT_JINJA_KEYWORD;
            BT_TRY(bt_jinja_read(p));
            BT_TRY(bt_jinja_parse_expression(p, &node->a));
        }
        *to = node;
        to  = &node->next;
    }
    BT_TRY(bt_jinja_read(p));
out:
    return st;
}

/* [b], or [b:c:d] with none or some of them. */
static bt_status parse_index(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status       st = BT_OK;
    bt_jinja_node **bounds[3];
    uint32_t        n = 0;

    BT_TRY(wrap(p, BT_JINJA_INDEX, node_out));
    bounds[0] = &(*node_out)->b;
    bounds[1] = &(*node_out)->c;
    bounds[2] = &(*node_out)->d;
    BT_TRY(bt_jinja_read(p));
    while (!bt_jinja_at_sign(p, ']')) {
        if (bt_jinja_at_sign(p, ':') && n < 2) {
            (*node_out)->kind = BT_JINJA_SLICE;
            n++;
            BT_TRY(bt_jinja_read(p));
        } else if (*bounds[n] == NULL) {
            BT_TRY(bt_jinja_parse_expression(p, bounds[n]));
        } else {
            BT_TRY(bt_jinja_expected(p, "]"));
        }
    }
    if ((*node_out)->kind == BT_JINJA_INDEX && (*node_out)->b == NULL)
        BT_TRY(bt_jinja_expected(p, "an index"));
    BT_TRY(bt_jinja_read(p));
out:
    return st;
}

/* . [] and ( */
static bt_status parse_postfix(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    for (;;) {
        if (bt_jinja_at_sign(p, '[')) {
            BT_TRY(parse_index(p, node_out));
        } else if (bt_jinja_at_sign(p, '(')) {
            BT_TRY(wrap(p, BT_JINJA_CALL, node_out));
            BT_TRY(parse_arguments(p, &(*node_out)->list));
        } else if (bt_jinja_at_sign(p, '.')) {
            BT_TRY(wrap(p, BT_JINJA_ATTR, node_out));
            BT_TRY(bt_jinja_read(p));
            if (p->now.kind == BT_JINJA_NUMBER) {
                (*node_out)->kind = BT_JINJA_INDEX;
                BT_TRY(parse_primary(p, &(*node_out)->b));
                continue;
            }
            BT_TRY(bt_jinja_pass_name(p, "a name", &(*node_out)->text));
        } else {
            goto out;
        }
    }
out:
    return st;
}

/* `is not word`, `is word(arguments)` or `is word argument`. */
static bt_status parse_test(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    static const char *const ENDS[] = {"else", "or", "and", NULL};
    bt_status                st     = BT_OK;
    bt_jinja_node           *test;
    bool                     negated;

    BT_TRY(wrap(p, BT_JINJA_TEST, node_out));
    test = *node_out;
    BT_TRY(bt_jinja_read(p));
    negated = bt_jinja_at_word(p, "not");
    if (negated) BT_TRY(bt_jinja_read(p));
    BT_TRY(bt_jinja_pass_name(p, "a test", &test->text));
    if (bt_jinja_at_sign(p, '(')) {
        BT_TRY(parse_arguments(p, &test->list));
    } else if ((p->now.kind == BT_JINJA_WORD && !bt_jinja_at_any(p, ENDS)) ||
               p->now.kind == BT_JINJA_QUOTED || p->now.kind == BT_JINJA_NUMBER ||
               bt_jinja_at_sign(p, '[') || bt_jinja_at_sign(p, '{')) {
        BT_TRY(parse_primary(p, &test->list));
        BT_TRY(parse_postfix(p, &test->list));
    }
    if (negated) BT_TRY(wrap(p, BT_JINJA_NOT, node_out));
out:
    return st;
}

/* | is and ( */
static bt_status parse_filters(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    for (;;) {
        if (bt_jinja_at_word(p, "is")) {
            BT_TRY(parse_test(p, node_out));
        } else if (bt_jinja_at_sign(p, '|')) {
            BT_TRY(wrap(p, BT_JINJA_FILTER, node_out));
            BT_TRY(bt_jinja_read(p));
            BT_TRY(bt_jinja_pass_name(p, "a filter", &(*node_out)->text));
            if (bt_jinja_at_sign(p, '(')) BT_TRY(parse_arguments(p, &(*node_out)->list));
        } else if (bt_jinja_at_sign(p, '(')) {
            BT_TRY(wrap(p, BT_JINJA_CALL, node_out));
            BT_TRY(parse_arguments(p, &(*node_out)->list));
        } else {
            goto out;
        }
    }
out:
    return st;
}

static bt_status parse_unary(bt_jinja_parser *p, bool filters, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_deeper(p));
    if (bt_jinja_at_sign(p, '-') || bt_jinja_at_sign(p, '+')) {
        bool minus = bt_jinja_at_sign(p, '-');

        BT_TRY(bt_jinja_read(p));
        BT_TRY(parse_unary(p, false, node_out));
        BT_TRY(wrap(p, BT_JINJA_SIGNED, node_out));
        (*node_out)->number = minus ? -1 : 1;
    } else {
        BT_TRY(parse_primary(p, node_out));
    }
    BT_TRY(parse_postfix(p, node_out));
    if (filters) BT_TRY(parse_filters(p, node_out));
out:
    p->depth--;
    return st;
}

/* ---- operators ---- */

/* What binds two operands, the loosest first; each level's signs, by their numbers. */
enum { N_LEVELS = 4, N_SIGNS = 5 };
static const int LEVELS[N_LEVELS][N_SIGNS] = {
    {'+',  '-'},
    {'~'   },
    {'*', '/', BT_JINJA_FLOOR, '%'},
    {BT_JINJA_POWER}
};

static int level_sign(const bt_jinja_parser *p, int level)
{
    for (int i = 0; i < N_SIGNS && LEVELS[level][i] != 0; i++)
        if (bt_jinja_at_sign(p, LEVELS[level][i])) return LEVELS[level][i];
    return 0;
}

static bt_status parse_binary(bt_jinja_parser *p, int level, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;
    int       sign;

    if (level == N_LEVELS) return parse_unary(p, true, node_out);
    BT_TRY(parse_binary(p, level + 1, node_out));
    while ((sign = level_sign(p, level)) != 0) {
        BT_TRY(wrap(p, BT_JINJA_BINARY, node_out));
        (*node_out)->number = sign;
        BT_TRY(bt_jinja_read(p));
        BT_TRY(parse_binary(p, level + 1, &(*node_out)->b));
    }
out:
    return st;
}

/* The comparison that stands here, passed, or 0. */
static bt_status read_comparison(bt_jinja_parser *p, int *sign_out, bool *negated_out)
{
    static const int SIGNS[] = {BT_JINJA_EQ, BT_JINJA_NE, BT_JINJA_LE, BT_JINJA_GE, '<', '>'};
    bt_status        st      = BT_OK;

    *sign_out    = 0;
    *negated_out = bt_jinja_at_word(p, "not");
    for (size_t i = 0; i < sizeof(SIGNS) / sizeof(SIGNS[0]); i++)
        if (bt_jinja_at_sign(p, SIGNS[i])) *sign_out = SIGNS[i];
    if (*negated_out) BT_TRY(bt_jinja_read(p));
    if (*negated_out || bt_jinja_at_word(p, "in")) {
        if (!bt_jinja_at_word(p, "in")) BT_TRY(bt_jinja_expected(p, "in"));
        *sign_out = BT_JINJA_IN;
    }
    if (*sign_out != 0) BT_TRY(bt_jinja_read(p));
out:
    return st;
}

/* a < b < c is a < b and b < c. */
static bt_status parse_comparison(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status      st = BT_OK;
    bt_jinja_node *left, *before = NULL;
    int            sign;
    bool           negated;

    BT_TRY(parse_binary(p, 0, &left));
    *node_out = left;
    for (;;) {
        const char *at = p->now.at;

        BT_TRY(read_comparison(p, &sign, &negated));
        if (sign == 0) goto out;
        *node_out = left;
        BT_TRY(wrap(p, BT_JINJA_COMPARE, node_out));
        (*node_out)->at     = at;
        (*node_out)->number = sign;
        BT_TRY(parse_binary(p, 0, &(*node_out)->b));
        left = (*node_out)->b;
        if (negated) BT_TRY(wrap(p, BT_JINJA_NOT, node_out));
        if (before != NULL) {
            bt_jinja_node *last = *node_out;

            *node_out = before;
            BT_TRY(wrap(p, BT_JINJA_AND, node_out));
            (*node_out)->b = last;
        }
        before = *node_out;
    }
out:
    return st;
}

static bt_status parse_not(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_deeper(p));
    if (!bt_jinja_at_word(p, "not")) {
        BT_TRY(parse_comparison(p, node_out));
        goto out;
    }
    BT_TRY(bt_jinja_read(p));
    BT_TRY(parse_not(p, node_out));
    BT_TRY(wrap(p, BT_JINJA_NOT, node_out));
out:
    p->depth--;
    return st;
}

static bt_status parse_logic(bt_jinja_parser *p, bool is_or, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_TRY(is_or ? parse_logic(p, false, node_out) : parse_not(p, node_out));
    while (bt_jinja_at_word(p, is_or ? "or" : "and")) {
        BT_TRY(wrap(p, is_or ? BT_JINJA_OR : BT_JINJA_AND, node_out));
        BT_TRY(bt_jinja_read(p));
        BT_TRY(is_or ? parse_logic(p, false, &(*node_out)->b) : parse_not(p, &(*node_out)->b));
    }
out:
    return st;
}

bt_status bt_jinja_parse_expression(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_deeper(p));
    BT_TRY(parse_logic(p, true, node_out));
    while (bt_jinja_at_word(p, "if")) {
        BT_TRY(wrap(p, BT_JINJA_CHOOSE, node_out));
        BT_TRY(bt_jinja_read(p));
        BT_TRY(parse_logic(p, true, &(*node_out)->b));
        if (!bt_jinja_at_word(p, "else")) continue;
        BT_TRY(bt_jinja_read(p));
        BT_TRY(bt_jinja_parse_expression(p, &(*node_out)->c));
    }
out:
    p->depth--;
    return st;
}

static bool ends_tuple(const bt_jinja_parser *p)
{
    return p->now.kind == BT_JINJA_TAG_END || bt_jinja_at_sign(p, ')') || bt_jinja_at_word(p, "if");
}

bt_status bt_jinja_parse_tuple(bt_jinja_parser *p, bool choice, bt_jinja_node **node_out)
{
    bt_status      st = BT_OK;
    bt_jinja_node *list, *last;

    BT_TRY(choice ? bt_jinja_parse_expression(p, node_out) : parse_logic(p, true, node_out));
    if (!bt_jinja_at_sign(p, ',')) goto out;
    BT_TRY(bt_jinja_node_new(p, BT_JINJA_LIST, &list));
    list->number = true;
    list->list = last = *node_out;
    while (bt_jinja_at_sign(p, ',')) {
        BT_TRY(bt_jinja_read(p));
        if (ends_tuple(p)) break;
        BT_TRY(choice ? bt_jinja_parse_expression(p, &last->next)
                      : parse_logic(p, true, &last->next));
        last = last->next;
    }
    *node_out = list;
out:
    return st;
}

bt_status bt_jinja_parse_target(bt_jinja_parser *p, bt_jinja_node **node_out)
{
    bt_status      st = BT_OK;
    bt_jinja_node *list, *last;

    BT_TRY(bt_jinja_deeper(p));
    if (bt_jinja_at_sign(p, '(')) {
        BT_TRY(bt_jinja_read(p));
        BT_TRY(bt_jinja_parse_target(p, node_out));
        BT_TRY(bt_jinja_pass_sign(p, ')'));
        goto out;
    }
    if (p->now.kind != BT_JINJA_WORD) BT_TRY(bt_jinja_expected(p, "a name"));
    BT_TRY(parse_word(p, node_out));
    if ((*node_out)->kind != BT_JINJA_NAME) BT_TRY(bt_jinja_expected(p, "a name to store in"));
    if (bt_jinja_at_sign(p, '.')) {
        BT_TRY(parse_postfix(p, node_out));
        goto out;
    }
    if (!bt_jinja_at_sign(p, ',')) goto out;
    BT_TRY(bt_jinja_node_new(p, BT_JINJA_LIST, &list));
    list->list = last = *node_out;
    while (bt_jinja_at_sign(p, ',')) {
        BT_TRY(bt_jinja_read(p));
        if (p->now.kind != BT_JINJA_WORD) BT_TRY(bt_jinja_expected(p, "a name"));
        BT_TRY(parse_word(p, &last->next));
        last = last->next;
    }
    *node_out = list;
out:
    p->depth--;
    return st;
}
