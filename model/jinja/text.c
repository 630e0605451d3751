/* Texts of a template: UTF-8, in characters where Python counts in them. */
#include <string.h>

#include "model/jinja/parts.h"
#include "model/utf8.h"

enum { STEP_BYTES = 64 };

bool bt_jinja_same_text(bt_jinja_text a, bt_jinja_text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
}

size_t bt_jinja_text_steps(bt_jinja_text text) { return text.n / STEP_BYTES; }

size_t bt_jinja_steps(const bt_jinja_value *v)
{
    return v->kind == BT_JINJA_IS_STRING ? bt_jinja_text_steps(v->text) : 0;
}

static size_t char_bytes(bt_jinja_text t)
{
    bt_utf8_kind kind;

    return bt_utf8_next(t.s, t.n, &kind);
}

bt_jinja_text bt_jinja_behind(bt_jinja_text t, size_t n)
{
    return (bt_jinja_text){t.s + n, t.n - n};
}

size_t bt_jinja_n_chars(bt_jinja_text t)
{
    size_t n = 0;

    for (; t.n != 0; n++)
        t = bt_jinja_behind(t, char_bytes(t));
    return n;
}

bt_jinja_text bt_jinja_part(bt_jinja_text t, size_t from, size_t to)
{
    bt_jinja_text part;

    for (size_t i = 0; i < from && t.n != 0; i++)
        t = bt_jinja_behind(t, char_bytes(t));
    part = t;
    for (size_t i = from; i < to && t.n != 0; i++)
        t = bt_jinja_behind(t, char_bytes(t));
    part.n -= t.n;
    return part;
}

bt_status bt_jinja_chars(bt_jinja *j, bt_jinja_text t, bt_jinja_value *list_out)
{
    bt_status      st   = BT_OK;
    bt_jinja_value list = {.kind = BT_JINJA_IS_LIST};

    BT_JINJA_NEW(j, list.list.at, bt_jinja_n_chars(t));
    while (t.n != 0) {
        size_t n = char_bytes(t);

        list.list.at[list.list.n++] = bt_jinja_string(t.s, n);
        t                           = bt_jinja_behind(t, n);
    }
    *list_out = list;
out:
    return st;
}

/* Of one character. */
static bool is_space(bt_jinja_text c)
{
    bt_utf8_kind kind;

    bt_utf8_next(c.s, c.n, &kind);
    return kind == BT_UTF8_GOOD && bt_utf8_is_space(bt_utf8_char(c.s, c.n));
}

const char *bt_jinja_find_text(bt_jinja_text in, bt_jinja_text what)
{
    return what.n == 0 ? in.s : memmem(in.s, in.n, what.s, what.n);
}

/* The last character of a text that is not empty; an ill-formed part goes byte by byte. */
static bt_jinja_text last_char(bt_jinja_text t)
{
    for (size_t n = 1; n <= 4 && n <= t.n; n++) {
        bt_utf8_kind kind;

        if (bt_utf8_next(t.s + t.n - n, n, &kind) == n && kind == BT_UTF8_GOOD)
            return (bt_jinja_text){t.s + t.n - n, n};
    }
    return (bt_jinja_text){t.s + t.n - 1, 1};
}

static bool goes(bt_jinja_text c, const bt_jinja_text *chars)
{
    return chars != NULL ? bt_jinja_find_text(*chars, c) != NULL : is_space(c);
}

bt_jinja_text bt_jinja_strip(bt_jinja_text t, const bt_jinja_text *chars, bool left, bool right)
{
    while (left && t.n != 0) {
        bt_jinja_text c = {t.s, char_bytes(t)};

        left = goes(c, chars);
        if (left) t = bt_jinja_behind(t, c.n);
    }
    while (right && t.n != 0) {
        bt_jinja_text c = last_char(t);

        right = goes(c, chars);
        if (right) t.n -= c.n;
    }
    return t;
}

const char *bt_jinja_skip_space(const char *at)
{
    while (*at != '\0') {
        bt_jinja_text c = {at, strnlen(at, 4)};

        c.n = char_bytes(c);
        if (!is_space(c)) break;
        at += c.n;
    }
    return at;
}

bt_status bt_jinja_concat(bt_jinja *j, bt_jinja_text a, bt_jinja_text b, bt_jinja_text *text_out)
{
    bt_status st = BT_OK;
    char     *both;

    BT_JINJA_NEW(j, both, a.n + b.n + 1);
    if (a.n != 0) memcpy(both, a.s, a.n);
    if (b.n != 0) memcpy(both + a.n, b.s, b.n);
    *text_out = (bt_jinja_text){both, a.n + b.n};
out:
    return st;
}

bt_status bt_jinja_join(bt_jinja *j, const bt_jinja_value *list, bt_jinja_value *value_out)
{
    bt_status st = BT_OK;
    size_t    n  = 0;
    char     *text;

    for (size_t i = 0; i < list->list.n; i++)
        n += list->list.at[i].text.n;
    BT_JINJA_NEW(j, text, n + 1);
    n = 0;
    for (size_t i = 0; i < list->list.n; i++) {
        memcpy(text + n, list->list.at[i].text.s, list->list.at[i].text.n);
        n += list->list.at[i].text.n;
    }
    *value_out = bt_jinja_string(text, n);
out:
    return st;
}
