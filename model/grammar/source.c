/* model/grammar/source.c - what all readers of texts do alike. */
#include "model/grammar/source.h"

#include "model/utf8.h"

bool bt_source_check(bt_source *s, const char *what)
{
    size_t length;

    for (size_t at = 0; at < s->n; at += length) {
        bt_utf8_kind kind;

        length = bt_utf8_next(s->text + at, s->n - at, &kind);
        if (kind == BT_UTF8_GOOD && s->text[at] != 0) continue;
        bt_parts_refuse(s->g, "byte %zu of %s is %s", at, what,
                        kind == BT_UTF8_GOOD ? "a zero" : "not UTF-8");
        return false;
    }
    return s->g->st == BT_OK;
}

uint32_t bt_source_char(bt_source *s)
{
    bt_utf8_kind kind;
    size_t       length;
    uint32_t     c;

    if (!bt_source_more(s)) return 0;
    length = bt_utf8_next(s->text + s->at, s->n - s->at, &kind);
    c      = bt_utf8_char(s->text + s->at, length);
    s->at += length;
    return c;
}

int bt_hex_digit(char c)
{
    if (bt_is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool bt_source_hex(bt_source *s, uint32_t n_min, uint32_t n_max, uint32_t *value_out)
{
    size_t   from  = s->at;
    uint32_t value = 0, n;

    for (n = 0; n < n_max; n++) {
        int digit = bt_hex_digit(bt_source_peek(s));

        if (digit < 0) break;
        value = value << 4 | (uint32_t)digit;
        s->at++;
    }
    if (n < n_min) {
        s->at = from;
        return false;
    }
    *value_out = value;
    return true;
}

bool bt_source_number(bt_source *s, uint32_t *value_out)
{
    size_t   from  = s->at;
    uint32_t value = 0;

    for (char c; bt_is_digit(c = bt_source_peek(s)); s->at++) {
        value = value * 10 + (uint32_t)(c - '0');
        if (value > BT_COUNT_MAX) value = BT_COUNT_MAX + 1;
    }
    *value_out = value;
    return s->at > from;
}

static bool read_braces(bt_source *s, uint32_t *min, uint32_t *max)
{
    bool has_min = bt_source_number(s, min);

    *max = *min;
    if (bt_source_take(s, ",")) {
        if (!bt_source_number(s, max)) *max = BT_UNLIMITED;
    } else if (!has_min) {
        return false;
    }
    return bt_source_take(s, "}");
}

bool bt_source_counts(bt_source *s, uint32_t *min_out, uint32_t *max_out)
{
    size_t   from = s->at;
    uint32_t min = 0, max = BT_UNLIMITED;
    bool     is;

    switch (bt_source_peek(s)) {
    case '*': is = true; break;
    case '+':
        is  = true;
        min = 1;
        break;
    case '?':
        is  = true;
        max = 1;
        break;
    case '{':
        s->at++;
        is    = read_braces(s, &min, &max);
        s->at = is ? s->at - 1 : from;
        break;
    default: return false;
    }
    if (!is) return false;
    s->at++;
    *min_out = min;
    *max_out = max;
    return true;
}
