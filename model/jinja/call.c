/* Methods, filters, tests and functions: those that chat templates use, by their names. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/jinja/parts.h"

enum { STRIPPED_BYTES = 256 };

/* An argument by name is the i-th by place, if those before it are there. */
static void place(bt_jinja_call *call, size_t i, const char *name)
{
    const bt_jinja_entry *e = bt_jinja_find(&call->keywords, bt_jinja_word(name));

    if (e == NULL || call->n_args != i) return;
    call->args[call->n_args++] = e->value;
    call->keywords.n--;
}

static bt_status want(bt_jinja *j, const bt_jinja_call *call, size_t least, size_t most)
{
    bt_status st = BT_OK;

    BT_JINJA_REQUIRE(
        j, call->at, call->n_args >= least && call->n_args <= most && call->keywords.n == 0,
        BT_ERR_UNSUPPORTED, "%.*s: expected %zu to %zu arguments, found %zu, and %zu more by name",
        bt_jinja_shown(call->name), call->name.s, least, most, call->n_args, call->keywords.n);
out:
    return st;
}

static bt_status want_texts(bt_jinja *j, const bt_jinja_call *call, size_t least, size_t most)
{
    bt_status st = BT_OK;

    BT_TRY(want(j, call, least, most));
    for (size_t i = 0; i < call->n_args; i++)
        BT_JINJA_REQUIRE(j, call->at, call->args[i].kind == BT_JINJA_IS_STRING, BT_ERR_UNSUPPORTED,
                         "%.*s: expected texts, found %s", bt_jinja_shown(call->name), call->name.s,
                         bt_jinja_kind(&call->args[i]));
out:
    return st;
}

static bt_status unknown(bt_jinja *j, const bt_jinja_call *call, const char *what)
{
    return bt_jinja_refuse(j, call->at, BT_ERR_UNSUPPORTED, "%s %.*s is not supported", what,
                           bt_jinja_shown(call->name), call->name.s);
}

static bt_status strip_call(bt_jinja *j, const bt_jinja_call *call, bt_jinja_text t, bool left,
                            bool right, bt_jinja_value *value_out)
{
    bt_status st = BT_OK;

    BT_TRY(want_texts(j, call, 0, 1));
    BT_JINJA_REQUIRE(j, call->at, call->n_args == 0 || call->args[0].text.n <= STRIPPED_BYTES,
                     BT_ERR_UNSUPPORTED, "%.*s: expected at most %d bytes of characters",
                     bt_jinja_shown(call->name), call->name.s, STRIPPED_BYTES);
    t          = bt_jinja_strip(t, call->n_args != 0 ? &call->args[0].text : NULL, left, right);
    *value_out = bt_jinja_string(t.s, t.n);
out:
    return st;
}

/* At a separator, at most as often as a second argument says. */
static bt_status split_call(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status      st   = BT_OK;
    bt_jinja_text  t    = call->value.text, by;
    int64_t        most = -1;
    bt_jinja_value list = {.kind = BT_JINJA_IS_LIST};
    const char    *at;

    place(call, 0, "sep");
    place(call, 1, "maxsplit");
    BT_TRY(want(j, call, 1, 2));
    BT_JINJA_REQUIRE(j, call->at,
                     call->args[0].kind == BT_JINJA_IS_STRING && call->args[0].text.n != 0 &&
                         (call->n_args == 1 || bt_jinja_is_number(&call->args[1])),
                     BT_ERR_UNSUPPORTED, "split: expected a text, and how often at most");
    by = call->args[0].text;
    if (call->n_args == 2) most = call->args[1].number;
    for (bt_jinja_text rest = t; (at = bt_jinja_find_text(rest, by)) != NULL; list.list.n++)
        rest = bt_jinja_behind(t, (size_t)(at - t.s) + by.n);
    BT_JINJA_NEW(j, list.list.at, list.list.n + 1);
    for (list.list.n = 0; most != 0 && (at = bt_jinja_find_text(t, by)) != NULL; most--) {
        list.list.at[list.list.n++] = bt_jinja_string(t.s, (size_t)(at - t.s));
        t                           = bt_jinja_behind(t, (size_t)(at - t.s) + by.n);
    }
    list.list.at[list.list.n++] = bt_jinja_string(t.s, t.n);
    *value_out                  = list;
out:
    return st;
}

static bt_status replace_call(bt_jinja *j, const bt_jinja_call *call, bt_jinja_text t,
                              bt_jinja_value *value_out)
{
    bt_status     st = BT_OK;
    bt_jinja_text from, to, rest = t;
    size_t        n = 0;
    const char   *at;
    char         *text, *end;

    BT_TRY(want_texts(j, call, 2, 2));
    from = call->args[0].text;
    to   = call->args[1].text;
    BT_JINJA_REQUIRE(j, call->at, from.n != 0, BT_ERR_UNSUPPORTED,
                     "replace: expected a text that is not empty");
    for (; (at = bt_jinja_find_text(rest, from)) != NULL; n++)
        rest = bt_jinja_behind(t, (size_t)(at - t.s) + from.n);
    BT_JINJA_REQUIRE(j, call->at, to.n == 0 || n <= SIZE_MAX / 2 / to.n, BT_ERR_NO_MEMORY,
                     "replace");
    BT_JINJA_NEW(j, text, t.n - n * from.n + n * to.n + 1);
    for (end = text; (at = bt_jinja_find_text(t, from)) != NULL;) {
        end = mempcpy(end, t.s, (size_t)(at - t.s));
        end = mempcpy(end, to.s, to.n);
        t   = bt_jinja_behind(t, (size_t)(at - t.s) + from.n);
    }
    end        = mempcpy(end, t.s, t.n);
    *value_out = bt_jinja_string(text, (size_t)(end - text));
out:
    return st;
}

static bt_status case_call(bt_jinja *j, const bt_jinja_call *call, bt_jinja_text t, bool upper,
                           bt_jinja_value *value_out)
{
    bt_status st = BT_OK;
    char     *text;

    BT_TRY(want(j, call, 0, 0));
    BT_JINJA_NEW(j, text, t.n + 1);
    for (size_t i = 0; i < t.n; i++) {
        char c = t.s[i];

        BT_JINJA_REQUIRE(j, call->at, (unsigned char)c < 0x80, BT_ERR_UNSUPPORTED,
                         "%.*s: expected ASCII", bt_jinja_shown(call->name), call->name.s);
        if (upper && c >= 'a' && c <= 'z') c = (char)(c - 'a' + 'A');
        if (!upper && c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
        text[i] = c;
    }
    *value_out = bt_jinja_string(text, t.n);
out:
    return st;
}

static bt_status ends_call(bt_jinja *j, const bt_jinja_call *call, bool at_end,
                           bt_jinja_value *value_out)
{
    bt_status     st = BT_OK;
    bt_jinja_text t  = call->value.text, part;

    BT_TRY(want_texts(j, call, 1, 1));
    part       = call->args[0].text;
    *value_out = bt_jinja_bool(
        part.n <= t.n &&
        bt_jinja_same_text(part, (bt_jinja_text){t.s + (at_end ? t.n - part.n : 0), part.n}));
out:
    return st;
}

static bt_status text_method(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status     st   = BT_OK;
    bt_jinja_text t    = call->value.text;
    bt_jinja_text name = call->name;

    if (bt_jinja_is(name, "strip"))
        BT_TRY(strip_call(j, call, t, true, true, value_out));
    else if (bt_jinja_is(name, "lstrip"))
        BT_TRY(strip_call(j, call, t, true, false, value_out));
    else if (bt_jinja_is(name, "rstrip"))
        BT_TRY(strip_call(j, call, t, false, true, value_out));
    else if (bt_jinja_is(name, "split"))
        BT_TRY(split_call(j, call, value_out));
    else if (bt_jinja_is(name, "replace"))
        BT_TRY(replace_call(j, call, t, value_out));
    else if (bt_jinja_is(name, "startswith") || bt_jinja_is(name, "endswith"))
        BT_TRY(ends_call(j, call, name.s[0] == 'e', value_out));
    else if (bt_jinja_is(name, "upper") || bt_jinja_is(name, "lower"))
        BT_TRY(case_call(j, call, t, name.s[0] == 'u', value_out));
    else
        BT_TRY(unknown(j, call, "a text's method"));
out:
    return st;
}

static bt_status map_method(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status             st    = BT_OK;
    const bt_jinja_map   *map   = call->value.map;
    bool                  items = bt_jinja_is(call->name, "items");
    const bt_jinja_entry *e;

    if (bt_jinja_is(call->name, "get")) {
        BT_TRY(want(j, call, 1, 2));
        BT_JINJA_REQUIRE(j, call->at, call->args[0].kind == BT_JINJA_IS_STRING, BT_ERR_UNSUPPORTED,
                         "get: expected a text as key, found %s", bt_jinja_kind(&call->args[0]));
        BT_TRY(bt_jinja_look_up(j, call->at, map, call->args[0].text, &e));
        *value_out = e != NULL           ? e->value
                     : call->n_args == 2 ? call->args[1]
                                         : (bt_jinja_value){.kind = BT_JINJA_IS_NONE};
    } else if (items || bt_jinja_is(call->name, "keys") || bt_jinja_is(call->name, "values")) {
        BT_TRY(want(j, call, 0, 0));
        BT_TRY(bt_jinja_entries(j, map, items || call->name.s[0] == 'k',
                                items || call->name.s[0] == 'v', value_out));
    } else {
        BT_TRY(unknown(j, call, "a map's method"));
    }
out:
    return st;
}

bt_status bt_jinja_method(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status             st = BT_OK;
    const bt_jinja_value *of = &call->value;

    BT_TRY(bt_jinja_count(j, call->at, bt_jinja_steps(of)));
    if (of->kind == BT_JINJA_IS_STRING) {
        BT_TRY(text_method(j, call, value_out));
    } else if (of->kind == BT_JINJA_IS_MAP && of->map->sort == BT_JINJA_DICT) {
        BT_TRY(map_method(j, call, value_out));
    } else {
        st = bt_jinja_refuse(j, call->at, BT_ERR_UNSUPPORTED, "%s has no method %.*s",
                             bt_jinja_kind(of), bt_jinja_shown(call->name), call->name.s);
    }
out:
    return st;
}

/* ---- filters ---- */

static bt_status length_filter(bt_jinja *j, const bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status      st = BT_OK;
    bt_jinja_value list;

    BT_TRY(want(j, call, 0, 0));
    if (call->value.kind == BT_JINJA_IS_STRING) {
        *value_out = bt_jinja_int((int64_t)bt_jinja_n_chars(call->value.text));
        goto out;
    }
    BT_TRY(bt_jinja_items(j, call->at, &call->value, &list));
    *value_out = bt_jinja_int((int64_t)list.list.n);
out:
    return st;
}

static bt_status default_filter(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status st = BT_OK;
    bool      absent;

    place(call, 0, "default_value");
    if (call->n_args == 0) call->args[call->n_args++] = bt_jinja_string("", 0);
    place(call, 1, "boolean");
    BT_TRY(want(j, call, 0, 2));
    absent = call->value.kind == BT_JINJA_UNDEFINED ||
             (call->n_args == 2 && bt_jinja_truth(&call->args[1]) && !bt_jinja_truth(&call->value));
    *value_out = absent ? call->args[0] : call->value;
out:
    return st;
}

/* first and last */
static bt_status end_filter(bt_jinja *j, const bt_jinja_call *call, bool last,
                            bt_jinja_value *value_out)
{
    bt_status      st   = BT_OK;
    bt_jinja_value list = call->value, at = bt_jinja_int(last ? -1 : 0);

    BT_TRY(want(j, call, 0, 0));
    if (list.kind != BT_JINJA_IS_STRING) BT_TRY(bt_jinja_items(j, call->at, &call->value, &list));
    BT_TRY(bt_jinja_index(j, call->at, &list, &at, value_out));
out:
    return st;
}

static bt_status join_filter(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status      st   = BT_OK;
    bt_jinja_value list = {.kind = BT_JINJA_IS_LIST}, of;

    place(call, 0, "d");
    BT_TRY(want_texts(j, call, 0, 1));
    BT_TRY(bt_jinja_items(j, call->at, &call->value, &of));
    BT_JINJA_NEW(j, list.list.at, 2 * of.list.n);
    for (size_t i = 0; i < of.list.n; i++) {
        bt_jinja_text t;

        BT_TRY(bt_jinja_to_text(j, call->at, &of.list.at[i], &t));
        if (i != 0 && call->n_args != 0) list.list.at[list.list.n++] = call->args[0];
        list.list.at[list.list.n++] = bt_jinja_string(t.s, t.n);
    }
    BT_TRY(bt_jinja_join(j, &list, value_out));
out:
    return st;
}

/* Filters of texts, to which other values are made first. */
static bt_status text_filter(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status     st = BT_OK;
    bt_jinja_text t, name = call->name;

    BT_TRY(bt_jinja_to_text(j, call->at, &call->value, &t));
    if (bt_jinja_is(name, "trim"))
        BT_TRY(strip_call(j, call, t, true, true, value_out));
    else if (bt_jinja_is(name, "replace"))
        BT_TRY(replace_call(j, call, t, value_out));
    else if (bt_jinja_is(name, "string"))
        *value_out = bt_jinja_string(t.s, t.n);
    else
        BT_TRY(case_call(j, call, t, name.s[0] == 'u', value_out));
out:
    return st;
}

bt_status bt_jinja_filter(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status     st   = BT_OK;
    bt_jinja_text name = call->name;

    BT_TRY(bt_jinja_count(j, call->at, bt_jinja_steps(&call->value)));
    if (bt_jinja_is(name, "trim") || bt_jinja_is(name, "replace") || bt_jinja_is(name, "string") ||
        bt_jinja_is(name, "upper") || bt_jinja_is(name, "lower"))
        BT_TRY(text_filter(j, call, value_out));
    else if (bt_jinja_is(name, "length") || bt_jinja_is(name, "count"))
        BT_TRY(length_filter(j, call, value_out));
    else if (bt_jinja_is(name, "default") || bt_jinja_is(name, "d"))
        BT_TRY(default_filter(j, call, value_out));
    else if (bt_jinja_is(name, "first") || bt_jinja_is(name, "last"))
        BT_TRY(end_filter(j, call, name.s[0] == 'l', value_out));
    else if (bt_jinja_is(name, "join"))
        BT_TRY(join_filter(j, call, value_out));
    else if (bt_jinja_is(name, "list"))
        BT_TRY(bt_jinja_items(j, call->at, &call->value, value_out));
    else
        BT_TRY(unknown(j, call, "the filter"));
out:
    return st;
}

/* ---- tests ---- */

/* Tests of what a value is, by the kinds that pass. */
#define KIND(kind) (1u << BT_JINJA_##kind)
static const struct {
    const char *name;
    uint32_t    kinds;
} TESTS[] = {
    {"undefined", KIND(UNDEFINED)                                                 },
    {"defined",   ~KIND(UNDEFINED)                                                },
    {"none",      KIND(IS_NONE)                                                   },
    {"boolean",   KIND(IS_BOOL)                                                   },
    {"integer",   KIND(IS_INT)                                                    },
    {"number",    KIND(IS_INT) | KIND(IS_BOOL)                                    },
    {"string",    KIND(IS_STRING)                                                 },
    {"mapping",   KIND(IS_MAP)                                                    },
    {"callable",  KIND(UNDEFINED) | KIND(IS_MACRO)                                },
    {"iterable",  KIND(UNDEFINED) | KIND(IS_STRING) | KIND(IS_LIST) | KIND(IS_MAP)},
    {"sequence",  KIND(UNDEFINED) | KIND(IS_STRING) | KIND(IS_LIST) | KIND(IS_MAP)},
};

static bt_status number_test(bt_jinja *j, const bt_jinja_call *call, bool odd, bool *is_out)
{
    bt_status st = BT_OK;

    BT_TRY(want(j, call, 0, 0));
    BT_JINJA_REQUIRE(j, call->at, bt_jinja_is_number(&call->value), BT_ERR_UNSUPPORTED,
                     "%.*s: expected a number, found %s", bt_jinja_shown(call->name), call->name.s,
                     bt_jinja_kind(&call->value));
    *is_out = (call->value.number % 2 != 0) == odd;
out:
    return st;
}

bt_status bt_jinja_test(bt_jinja *j, bt_jinja_call *call, bool *is_out)
{
    bt_status             st   = BT_OK;
    bt_jinja_text         name = call->name;
    const bt_jinja_value *v    = &call->value;
    bool                  own  = v->kind == BT_JINJA_IS_MAP && v->map->sort != BT_JINJA_DICT;
    int kind = own ? BT_JINJA_ABSENT : (int)v->kind; /* a namespace is nothing else */

    for (size_t i = 0; i < sizeof(TESTS) / sizeof(TESTS[0]); i++)
        if (bt_jinja_is(name, TESTS[i].name)) {
            BT_TRY(want(j, call, 0, 0));
            *is_out = (TESTS[i].kinds >> kind & 1) != 0 &&
                      (v->sort != BT_JINJA_VIEW || !bt_jinja_is(name, "sequence"));
            goto out;
        }
    if (bt_jinja_is(name, "true") || bt_jinja_is(name, "false")) {
        BT_TRY(want(j, call, 0, 0));
        *is_out = v->kind == BT_JINJA_IS_BOOL && (v->number != 0) == (name.s[0] == 't');
    } else if (bt_jinja_is(name, "odd") || bt_jinja_is(name, "even")) {
        BT_TRY(number_test(j, call, name.s[0] == 'o', is_out));
    } else if (bt_jinja_is(name, "eq") || bt_jinja_is(name, "equalto") || bt_jinja_is(name, "ne")) {
        BT_TRY(want(j, call, 1, 1));
        BT_TRY(bt_jinja_same(j, call->at, v, &call->args[0], 0, is_out));
        if (name.s[0] == 'n') *is_out = !*is_out;
    } else if (bt_jinja_is(name, "in")) {
        BT_TRY(want(j, call, 1, 1));
        BT_TRY(bt_jinja_is_in(j, call->at, v, &call->args[0], is_out));
    } else {
        BT_TRY(unknown(j, call, "the test"));
    }
out:
    return st;
}

/* ---- functions ---- */

static bt_status range_call(bt_jinja *j, const bt_jinja_call *call, bt_jinja_value *value_out)
{
    enum { MOST = 100000 };
    bt_status      st   = BT_OK;
    int64_t        from = 0, to, step = 1;
    bt_jinja_value list = {.kind = BT_JINJA_IS_LIST, .sort = BT_JINJA_RANGE};

    BT_TRY(want(j, call, 1, 3));
    for (size_t i = 0; i < call->n_args; i++)
        BT_JINJA_REQUIRE(j, call->at,
                         bt_jinja_is_number(&call->args[i]) &&
                             llabs(call->args[i].number) < INT32_MAX,
                         BT_ERR_UNSUPPORTED, "range: expected numbers below 2^31");
    if (call->n_args > 1) from = call->args[0].number;
    to = call->args[call->n_args > 1].number;
    if (call->n_args == 3) step = call->args[2].number;
    BT_JINJA_REQUIRE(j, call->at, step != 0 && (to - from) / step <= MOST, BT_ERR_UNSUPPORTED,
                     "range: expected at most %d numbers", MOST);
    BT_JINJA_NEW(j, list.list.at, (size_t)((to - from) / step > 0 ? (to - from) / step + 1 : 1));
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        list.list.at[list.list.n++] = bt_jinja_int(i);
    *value_out = list;
out:
    return st;
}

static bt_status strftime_call(bt_jinja *j, const bt_jinja_call *call, bt_jinja_value *value_out)
{
    enum { MOST = 4096 };
    bt_status st  = BT_OK;
    time_t    now = time(NULL);
    struct tm local;
    char     *format, *text;
    size_t    n;

    BT_TRY(want_texts(j, call, 1, 1));
    BT_JINJA_NEW(j, format, call->args[0].text.n + 1);
    memcpy(format, call->args[0].text.s, call->args[0].text.n);
    for (const char *c = format; (c = strchr(c, '%')) != NULL && c[1] != '\0'; c += 2)
        BT_JINJA_REQUIRE(j, call->at, strchr("fzZ:", c[1]) == NULL, BT_ERR_UNSUPPORTED,
                         "strftime_now: expected a date or a time of day, found %.2s", c);
    BT_JINJA_NEW(j, text, MOST);
    localtime_r(&now, &local);
    n = strftime(text, MOST, format, &local);
    BT_JINJA_REQUIRE(j, call->at, n != 0 || *format == '\0', BT_ERR_UNSUPPORTED,
                     "strftime_now: expected less than %d bytes", MOST);
    *value_out = bt_jinja_string(text, n);
out:
    return st;
}

bool bt_jinja_is_function(bt_jinja_text name)
{
    static const char *const NAMES[] = {"range",        "namespace", "dict",   "raise_exception",
                                        "strftime_now", "lipsum",    "cycler", "joiner"};

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++)
        if (bt_jinja_is(name, NAMES[i])) return true;
    return false;
}

bt_status bt_jinja_function(bt_jinja *j, bt_jinja_call *call, bt_jinja_value *value_out)
{
    bt_status     st = BT_OK;
    bt_jinja_text why;

    if (bt_jinja_is(call->name, "range")) {
        BT_TRY(range_call(j, call, value_out));
    } else if (bt_jinja_is(call->name, "namespace") || bt_jinja_is(call->name, "dict")) {
        bt_jinja_value made = {.kind = BT_JINJA_IS_MAP};

        BT_JINJA_REQUIRE(j, call->at, call->n_args == 0, BT_ERR_UNSUPPORTED,
                         "%.*s: expected arguments by name", bt_jinja_shown(call->name),
                         call->name.s);
        BT_JINJA_NEW(j, made.map, 1);
        *made.map      = call->keywords;
        made.map->sort = call->name.s[0] == 'n' ? BT_JINJA_NAMESPACE : BT_JINJA_DICT;
        *value_out     = made;
    } else if (bt_jinja_is(call->name, "strftime_now")) {
        BT_TRY(strftime_call(j, call, value_out));
    } else if (bt_jinja_is(call->name, "raise_exception")) {
        BT_TRY(want(j, call, 1, 1));
        BT_TRY(bt_jinja_to_text(j, call->at, &call->args[0], &why));
        st = bt_jinja_refuse(j, call->at, BT_ERR_INVALID_ARG, "refused by the template: %.*s",
                             (int)(why.n < BT_JINJA_WHY_BYTES ? why.n : BT_JINJA_WHY_BYTES), why.s);
    } else {
        BT_TRY(unknown(j, call, "the function"));
    }
out:
    return st;
}
