/* What a template computes with: as Python's None, bool, int, str, list and dict, and Jinja's
 * undefined.  Texts are UTF-8 and count in characters. */
#include <stdio.h>
#include <string.h>

#include "model/jinja/parts.h"

enum { MOST_NESTED = 100, STEP_ENTRIES = 16 };

size_t bt_jinja_find_steps(const bt_jinja_map *map, bt_jinja_text key)
{
    return map->n / STEP_ENTRIES + map->n * bt_jinja_text_steps(key);
}

/* ---- making and finding ---- */

bt_jinja_value bt_jinja_undefined(bt_jinja_text name)
{
    return (bt_jinja_value){.kind = BT_JINJA_UNDEFINED, .text = name};
}
bt_jinja_value bt_jinja_bool(bool is)
{
    return (bt_jinja_value){.kind = BT_JINJA_IS_BOOL, .number = is};
}
bt_jinja_value bt_jinja_int(int64_t number)
{
    return (bt_jinja_value){.kind = BT_JINJA_IS_INT, .number = number};
}
bt_jinja_value bt_jinja_string(const char *s, size_t n)
{
    return (bt_jinja_value){
        .kind = BT_JINJA_IS_STRING, .text = {s, n}
    };
}

static bt_jinja_entry *entry_of(const bt_jinja_map *map, bt_jinja_text key)
{
    bt_jinja_entry *e = map->first;

    while (e != NULL && !bt_jinja_same_text(e->key, key))
        e = e->next;
    return e;
}

bt_jinja_entry *bt_jinja_find(const bt_jinja_map *map, bt_jinja_text key)
{
    bt_jinja_entry *e = entry_of(map, key);

    return e != NULL && e->value.kind != BT_JINJA_ABSENT ? e : NULL;
}

bt_status bt_jinja_look_up(bt_jinja *j, const char *at, const bt_jinja_map *map, bt_jinja_text key,
                           const bt_jinja_entry **entry_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_count(j, at, bt_jinja_find_steps(map, key)));
    *entry_out = bt_jinja_find(map, key);
out:
    return st;
}

bt_status bt_jinja_put(bt_jinja *j, bt_jinja_map *map, bt_jinja_text key, bt_jinja_value v)
{
    bt_status       st = BT_OK;
    bt_jinja_entry *e  = entry_of(map, key);

    BT_TRY(bt_jinja_count(j, j->text, bt_jinja_find_steps(map, key)));
    if (e == NULL) {
        BT_JINJA_NEW(j, e, 1);
        e->key = key;
        if (map->last != NULL)
            map->last->next = e;
        else
            map->first = e;
        map->last = e;
        map->n++;
    }
    e->value = v;
out:
    return st;
}

/* ---- what a value is ---- */

bool bt_jinja_truth(const bt_jinja_value *v)
{
    switch (v->kind) {
    case BT_JINJA_IS_BOOL:
    case BT_JINJA_IS_INT: return v->number != 0;
    case BT_JINJA_IS_STRING: return v->text.n != 0;
    case BT_JINJA_IS_LIST: return v->list.n != 0;
    case BT_JINJA_IS_MAP: return v->map->n != 0 || v->map->sort != BT_JINJA_DICT;
    case BT_JINJA_IS_MACRO: return true;
    default: return false;
    }
}

const char *bt_jinja_kind(const bt_jinja_value *v)
{
    static const char *const KINDS[] = {"what is undefined",
                                        "none",
                                        "true or false",
                                        "a number",
                                        "a text",
                                        "a list",
                                        "a map",
                                        "a macro"};
    static const char *const LISTS[] = {"a list", "a tuple", "a range",
                                        "keys(), values() or items()"};

    return v->kind == BT_JINJA_IS_LIST ? LISTS[v->sort] : KINDS[v->kind];
}

bt_status bt_jinja_to_text(bt_jinja *j, const char *at, const bt_jinja_value *v,
                           bt_jinja_text *text_out)
{
    bt_status st = BT_OK;
    char     *digits;

    BT_JINJA_REQUIRE(j, at, v->kind < BT_JINJA_IS_LIST, BT_ERR_UNSUPPORTED,
                     "expected a text or a number to print, found %s", bt_jinja_kind(v));
    if (v->kind == BT_JINJA_IS_STRING) {
        *text_out = v->text;
    } else if (v->kind == BT_JINJA_IS_BOOL) {
        *text_out = v->number != 0 ? bt_jinja_word("True") : bt_jinja_word("False");
    } else if (v->kind == BT_JINJA_IS_INT) {
        BT_JINJA_NEW(j, digits, 24);
        *text_out =
            (bt_jinja_text){digits, (size_t)snprintf(digits, 24, "%lld", (long long)v->number)};
    } else {
        *text_out = v->kind == BT_JINJA_IS_NONE ? bt_jinja_word("None") : bt_jinja_word("");
    }
out:
    return st;
}

/* ---- operators ---- */

bt_status bt_jinja_same(bt_jinja *j, const char *at, const bt_jinja_value *a,
                        const bt_jinja_value *b, uint32_t depth, bool *is_out)
{
    bt_status st = BT_OK;

    BT_TRY(bt_jinja_count(j, at, 1 + bt_jinja_steps(a)));
    BT_JINJA_REQUIRE(j, at, depth < MOST_NESTED, BT_ERR_UNSUPPORTED,
                     "expected lists less than %d deep", MOST_NESTED);
    *is_out = a->kind == b->kind;
    if (bt_jinja_is_number(a) && bt_jinja_is_number(b)) {
        *is_out = a->number == b->number;
    } else if (*is_out && a->kind == BT_JINJA_IS_STRING) {
        *is_out = bt_jinja_same_text(a->text, b->text);
    } else if (*is_out && a->kind == BT_JINJA_IS_LIST) {
        BT_JINJA_REQUIRE(j, at, a->sort != BT_JINJA_VIEW || b->sort != BT_JINJA_VIEW,
                         BT_ERR_UNSUPPORTED, "expected no comparison of %s", bt_jinja_kind(a));
        *is_out = a->sort == b->sort && a->list.n == b->list.n;
        for (size_t i = 0; i < a->list.n && *is_out; i++)
            BT_TRY(bt_jinja_same(j, at, &a->list.at[i], &b->list.at[i], depth + 1, is_out));
    } else if (*is_out && a->kind == BT_JINJA_IS_MAP && a->map != b->map) {
        *is_out = a->map->sort == BT_JINJA_DICT && b->map->sort == BT_JINJA_DICT &&
                  a->map->n == b->map->n;
        for (const bt_jinja_entry *e = a->map->first; e != NULL && *is_out; e = e->next) {
            const bt_jinja_entry *other = NULL;

            BT_TRY(bt_jinja_look_up(j, at, b->map, e->key, &other));
            *is_out = other != NULL;
            if (other != NULL)
                BT_TRY(bt_jinja_same(j, at, &e->value, &other->value, depth + 1, is_out));
        }
    } else if (*is_out && a->kind == BT_JINJA_IS_MACRO) {
        *is_out = a->macro.node == b->macro.node && a->macro.scope == b->macro.scope;
    }
out:
    return st;
}

bt_status bt_jinja_is_in(bt_jinja *j, const char *at, const bt_jinja_value *a,
                         const bt_jinja_value *b, bool *is_out)
{
    bt_status             st = BT_OK;
    const bt_jinja_entry *e  = NULL;

    *is_out = false;
    BT_TRY(bt_jinja_count(j, at, bt_jinja_steps(b)));
    BT_JINJA_REQUIRE(j, at,
                     b->kind == BT_JINJA_UNDEFINED || b->kind == BT_JINJA_IS_LIST ||
                         (b->kind == BT_JINJA_IS_STRING && a->kind == BT_JINJA_IS_STRING) ||
                         (b->kind == BT_JINJA_IS_MAP && b->map->sort == BT_JINJA_DICT &&
                          a->kind < BT_JINJA_IS_LIST),
                     BT_ERR_UNSUPPORTED,
                     "expected a text in a text, or a value in a list: not %s in %s",
                     bt_jinja_kind(a), bt_jinja_kind(b));
    if (b->kind == BT_JINJA_IS_STRING) *is_out = bt_jinja_find_text(b->text, a->text) != NULL;
    if (b->kind == BT_JINJA_IS_MAP && a->kind == BT_JINJA_IS_STRING) {
        BT_TRY(bt_jinja_look_up(j, at, b->map, a->text, &e));
        *is_out = e != NULL;
    }
    if (b->kind != BT_JINJA_IS_LIST) goto out;
    for (size_t i = 0; i < b->list.n && !*is_out; i++)
        BT_TRY(bt_jinja_same(j, at, a, &b->list.at[i], 0, is_out));
out:
    return st;
}

static int order_texts(bt_jinja_text a, bt_jinja_text b)
{
    size_t n     = a.n < b.n ? a.n : b.n;
    int    order = n == 0 ? 0 : memcmp(a.s, b.s, n);

    return order != 0 ? order : (a.n > b.n) - (a.n < b.n);
}

bt_status bt_jinja_compare(bt_jinja *j, const bt_jinja_node *node, const bt_jinja_value *a,
                           const bt_jinja_value *b, bool *is_out)
{
    bt_status st      = BT_OK;
    bool      numbers = bt_jinja_is_number(a) && bt_jinja_is_number(b);
    bool      texts   = a->kind == BT_JINJA_IS_STRING && b->kind == BT_JINJA_IS_STRING;
    int       order;

    if (node->number == BT_JINJA_IN) return bt_jinja_is_in(j, node->at, a, b, is_out);
    if (node->number == BT_JINJA_EQ || node->number == BT_JINJA_NE) {
        BT_TRY(bt_jinja_same(j, node->at, a, b, 0, is_out));
        *is_out = *is_out == (node->number == BT_JINJA_EQ);
        goto out;
    }
    BT_JINJA_REQUIRE(j, node->at, numbers || texts, BT_ERR_UNSUPPORTED,
                     "expected two numbers or two texts to order, found %s and %s",
                     bt_jinja_kind(a), bt_jinja_kind(b));
    BT_TRY(bt_jinja_count(j, node->at, bt_jinja_steps(a)));
    order =
        numbers ? (a->number > b->number) - (a->number < b->number) : order_texts(a->text, b->text);
    *is_out = node->number == '<'           ? order < 0
              : node->number == '>'         ? order > 0
              : node->number == BT_JINJA_LE ? order <= 0
                                            : order >= 0;
out:
    return st;
}

static bt_status join_lists(bt_jinja *j, const bt_jinja_value *a, const bt_jinja_value *b,
                            bt_jinja_value *value_out)
{
    bt_status      st   = BT_OK;
    bt_jinja_value list = {
        .kind = BT_JINJA_IS_LIST, .sort = a->sort, .list = {NULL, a->list.n + b->list.n}
    };

    BT_JINJA_NEW(j, list.list.at, list.list.n);
    for (size_t i = 0; i < a->list.n; i++)
        list.list.at[i] = a->list.at[i];
    for (size_t i = 0; i < b->list.n; i++)
        list.list.at[a->list.n + i] = b->list.at[i];
    *value_out = list;
out:
    return st;
}

static bt_status repeat_text(bt_jinja *j, bt_jinja_text text, int64_t times,
                             bt_jinja_value *value_out)
{
    bt_status st = BT_OK;
    size_t    n  = times < 0 || text.n == 0 ? 0 : (size_t)times, bytes;
    char     *all;

    if (__builtin_mul_overflow(n, text.n, &bytes)) bytes = SIZE_MAX;
    BT_JINJA_NEW(j, all, bytes);
    for (size_t i = 0; i < n; i++)
        memcpy(all + i * text.n, text.s, text.n);
    *value_out = bt_jinja_string(all, bytes);
out:
    return st;
}

static int sign_bytes(const bt_jinja_node *node) { return node->number < BT_JINJA_EQ ? 1 : 2; }

/* Whole numbers, // and % towards minus infinity as in Python. */
static bt_status calculate(bt_jinja *j, const bt_jinja_node *node, int64_t a, int64_t b,
                           bt_jinja_value *value_out)
{
    bt_status st   = BT_OK;
    int64_t   sign = node->number, result = 0;
    bool      over = false, divides = sign == BT_JINJA_FLOOR || sign == '%';

    BT_JINJA_REQUIRE(j, node->at, divides || sign == '+' || sign == '-' || sign == '*',
                     BT_ERR_UNSUPPORTED, "expected + - * // or %% of whole numbers, found %.*s",
                     sign_bytes(node), node->at);
    BT_JINJA_REQUIRE(j, node->at, !divides || b != 0, BT_ERR_FORMAT,
                     "expected a divisor other than 0");
    if (divides && b == -1) { /* a is no less than -INT64_MAX */
        *value_out = bt_jinja_int(sign == '%' ? 0 : -a);
        goto out;
    }
    if (sign == '+') over = __builtin_add_overflow(a, b, &result);
    if (sign == '-') over = __builtin_sub_overflow(a, b, &result);
    if (sign == '*') over = __builtin_mul_overflow(a, b, &result);
    if (divides) result = sign == '%' ? a % b : a / b;
    if (divides && a % b != 0 && (a % b < 0) != (b < 0)) result += sign == '%' ? b : -1;
    BT_JINJA_REQUIRE(j, node->at, !over && result > INT64_MIN, BT_ERR_UNSUPPORTED,
                     "expected a result below 2^63");
    *value_out = bt_jinja_int(result);
out:
    return st;
}

bt_status bt_jinja_binary(bt_jinja *j, const bt_jinja_node *node, const bt_jinja_value *a,
                          const bt_jinja_value *b, bt_jinja_value *value_out)
{
    bt_status     st = BT_OK;
    bt_jinja_text left, right;

    if (node->number == '~') {
        BT_TRY(bt_jinja_to_text(j, node->at, a, &left));
        BT_TRY(bt_jinja_to_text(j, node->at, b, &right));
        BT_TRY(bt_jinja_concat(j, left, right, &left));
        *value_out = bt_jinja_string(left.s, left.n);
    } else if (node->number == '+' && a->kind == BT_JINJA_IS_STRING && b->kind == a->kind) {
        BT_TRY(bt_jinja_concat(j, a->text, b->text, &left));
        *value_out = bt_jinja_string(left.s, left.n);
    } else if (node->number == '+' && a->kind == BT_JINJA_IS_LIST && b->kind == a->kind &&
               a->sort == b->sort && a->sort <= BT_JINJA_TUPLE) {
        BT_TRY(join_lists(j, a, b, value_out));
    } else if (node->number == '*' && a->kind == BT_JINJA_IS_STRING && bt_jinja_is_number(b)) {
        BT_TRY(repeat_text(j, a->text, b->number, value_out));
    } else if (node->number == '*' && b->kind == BT_JINJA_IS_STRING && bt_jinja_is_number(a)) {
        BT_TRY(repeat_text(j, b->text, a->number, value_out));
    } else {
        const bt_jinja_value *absent = a->kind == BT_JINJA_UNDEFINED ? a : b;
        bool                  named  = absent->kind == BT_JINJA_UNDEFINED;

        BT_JINJA_REQUIRE(
            j, node->at, bt_jinja_is_number(a) && bt_jinja_is_number(b), BT_ERR_UNSUPPORTED,
            "expected two texts, two lists or two numbers for %.*s, found %s and %s%s%.*s",
            sign_bytes(node), node->at, bt_jinja_kind(a), bt_jinja_kind(b), named ? ": " : "",
            named ? bt_jinja_shown(absent->text) : 0, named ? absent->text.s : "");
        BT_TRY(calculate(j, node, a->number, b->number, value_out));
    }
out:
    return st;
}

/* ---- parts ---- */

/* Of a text, a text. */
static void take_char(bt_jinja_text t, int64_t i, bt_jinja_value *value_out)
{
    int64_t n = i < 0 ? (int64_t)bt_jinja_n_chars(t) : 0;

    if (i + n < 0) return;
    t = bt_jinja_part(t, (size_t)(i + n), (size_t)(i + n) + 1);
    if (t.n != 0) *value_out = bt_jinja_string(t.s, t.n);
}

bt_status bt_jinja_index(bt_jinja *j, const char *at, const bt_jinja_value *of,
                         const bt_jinja_value *by, bt_jinja_value *value_out)
{
    bt_status     st   = BT_OK;
    bt_jinja_text name = by->kind == BT_JINJA_IS_STRING ? by->text : bt_jinja_word("item");

    BT_JINJA_REQUIRE(j, at, of->kind != BT_JINJA_UNDEFINED, BT_ERR_FORMAT,
                     "%.*s is undefined and has no %.*s", bt_jinja_shown(of->text), of->text.s,
                     bt_jinja_shown(name), name.s);
    *value_out = bt_jinja_undefined(name);
    if (of->kind == BT_JINJA_IS_MAP && by->kind == BT_JINJA_IS_STRING) {
        const bt_jinja_entry *e = NULL;

        BT_TRY(bt_jinja_look_up(j, at, of->map, by->text, &e));
        if (e != NULL) *value_out = e->value;
    } else if (of->kind == BT_JINJA_IS_STRING && bt_jinja_is_number(by)) {
        BT_TRY(bt_jinja_count(j, at, bt_jinja_steps(of)));
        take_char(of->text, by->number, value_out);
    } else if (of->kind == BT_JINJA_IS_LIST && of->sort != BT_JINJA_VIEW &&
               bt_jinja_is_number(by)) {
        int64_t n = (int64_t)of->list.n, i = by->number < 0 ? by->number + n : by->number;

        if (i >= 0 && i < n) *value_out = of->list.at[i];
    }
out:
    return st;
}

/* A slice's bound in 0 .. n, or with a negative step in -1 .. n - 1. */
static int64_t bound(const bt_jinja_value *v, int64_t n, int64_t step, int64_t otherwise)
{
    int64_t i = v->number, least = step < 0 ? -1 : 0, most = step < 0 ? n - 1 : n;

    if (v->kind == BT_JINJA_IS_NONE) return otherwise;
    if (i < 0) i += n;
    return i < least ? least : i > most ? most : i;
}

static bt_jinja_value part_of(bt_jinja_text t, const bt_jinja_value bounds[3])
{
    int64_t n    = (int64_t)bt_jinja_n_chars(t);
    int64_t from = bound(&bounds[0], n, 1, 0), to = bound(&bounds[1], n, 1, n);

    if (from < to) t = bt_jinja_part(t, (size_t)from, (size_t)to);
    return bt_jinja_string(t.s, from < to ? t.n : 0);
}

bt_status bt_jinja_slice(bt_jinja *j, const char *at, const bt_jinja_value *of,
                         const bt_jinja_value bounds[3], bt_jinja_value *value_out)
{
    bt_status      st   = BT_OK;
    int64_t        step = bounds[2].kind == BT_JINJA_IS_NONE ? 1 : bounds[2].number, n, from, to;
    bt_jinja_value list = *of, part = {.kind = BT_JINJA_IS_LIST, .sort = of->sort};

    for (int i = 0; i < 3; i++)
        BT_JINJA_REQUIRE(j, at,
                         bounds[i].kind == BT_JINJA_IS_NONE || bt_jinja_is_number(&bounds[i]),
                         BT_ERR_FORMAT, "expected numbers as a slice's bounds, found %s",
                         bt_jinja_kind(&bounds[i]));
    BT_JINJA_REQUIRE(j, at, step != 0 && step > -INT32_MAX && step < INT32_MAX, BT_ERR_FORMAT,
                     "expected a slice's step other than 0");
    BT_JINJA_REQUIRE(j, at, of->kind != BT_JINJA_UNDEFINED, BT_ERR_FORMAT,
                     "%.*s is undefined and cannot be sliced", bt_jinja_shown(of->text),
                     of->text.s);
    BT_JINJA_REQUIRE(j, at, of->sort != BT_JINJA_VIEW, BT_ERR_FORMAT,
                     "expected a list to slice, found %s", bt_jinja_kind(of));
    if (of->kind == BT_JINJA_IS_STRING && step == 1) {
        BT_TRY(bt_jinja_count(j, at, bt_jinja_steps(of)));
        *value_out = part_of(of->text, bounds);
        goto out;
    }
    if (of->kind == BT_JINJA_IS_STRING) BT_TRY(bt_jinja_chars(j, of->text, &list));
    if (list.kind != BT_JINJA_IS_LIST) {
        *value_out = bt_jinja_undefined(bt_jinja_word("a slice"));
        goto out;
    }
    n    = (int64_t)list.list.n;
    from = bound(&bounds[0], n, step, step < 0 ? n - 1 : 0);
    to   = bound(&bounds[1], n, step, step < 0 ? -1 : n);
    BT_JINJA_NEW(j, part.list.at, list.list.n);
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        part.list.at[part.list.n++] = list.list.at[i];
    *value_out = part;
    if (of->kind == BT_JINJA_IS_STRING) BT_TRY(bt_jinja_join(j, &part, value_out));
out:
    return st;
}

bt_status bt_jinja_entries(bt_jinja *j, const bt_jinja_map *map, bool keys, bool values,
                           bt_jinja_value *list_out)
{
    bt_status      st   = BT_OK;
    bt_jinja_value list = {.kind = BT_JINJA_IS_LIST, .sort = BT_JINJA_VIEW}, *pair;

    BT_JINJA_NEW(j, list.list.at, map->n);
    for (const bt_jinja_entry *e = map->first; e != NULL; e = e->next) {
        bt_jinja_value key = bt_jinja_string(e->key.s, e->key.n);

        pair = &list.list.at[list.list.n++];
        if (!keys || !values) {
            *pair = keys ? key : e->value;
            continue;
        }
        *pair = (bt_jinja_value){
            .kind = BT_JINJA_IS_LIST, .sort = BT_JINJA_TUPLE, .list = {NULL, 2}
        };
        BT_JINJA_NEW(j, pair->list.at, 2);
        pair->list.at[0] = key;
        pair->list.at[1] = e->value;
    }
    *list_out = list;
out:
    return st;
}

bt_status bt_jinja_items(bt_jinja *j, const char *at, const bt_jinja_value *of,
                         bt_jinja_value *list_out)
{
    bt_status st = BT_OK;

    BT_JINJA_REQUIRE(j, at,
                     of->kind == BT_JINJA_UNDEFINED || of->kind == BT_JINJA_IS_LIST ||
                         of->kind == BT_JINJA_IS_STRING ||
                         (of->kind == BT_JINJA_IS_MAP && of->map->sort == BT_JINJA_DICT),
                     BT_ERR_FORMAT, "expected a list to go through, found %s", bt_jinja_kind(of));
    if (of->kind == BT_JINJA_IS_STRING)
        BT_TRY(bt_jinja_chars(j, of->text, list_out));
    else if (of->kind == BT_JINJA_IS_MAP)
        BT_TRY(bt_jinja_entries(j, of->map, true, false, list_out));
    else
        *list_out = of->kind == BT_JINJA_IS_LIST ? *of : (bt_jinja_value){.kind = BT_JINJA_IS_LIST};
    list_out->sort = BT_JINJA_PLAIN;
out:
    return st;
}
