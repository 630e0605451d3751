/* model/grammar/schema_value.c - JSON (RFC 8259) without a schema: whitespace, any value; and the
 * values of enum and const.
 *
 * Whitespace is bounded, so that a reply cannot go on with nothing else: between tokens comes
 * nothing, a space, or a new line and an indent.  It is none at the start and the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/grammar/schema.h"

enum { MOST_INDENT = 20, MOST_DIGITS = 17, MOST_WHOLE_DIGITS = 18 };

static bt_part digit(bt_parts *g) { return bt_part_byte(g, '0', '9'); }

/* One of these bytes. */
static bt_part one_of(bt_parts *g, const char *bytes)
{
    bt_part part = bt_part_never(g);

    for (; *bytes != '\0'; bytes++)
        bt_part_step(g, part.start, (uint8_t)*bytes, (uint8_t)*bytes, part.end);
    return part;
}

static bt_part space(bt_parts *g)
{
    bt_part indent = bt_part_repeat(g, one_of(g, " \t"), 0, MOST_INDENT);

    return bt_part_maybe(
        g, bt_part_either(g, bt_part_text(g, " "), bt_part_then(g, bt_part_text(g, "\n"), indent)));
}

/* ---- strings */

static bt_part hex_digits(bt_parts *g, uint32_t n)
{
    bt_part part = bt_part_nothing(g);

    for (uint32_t i = 0; i < n; i++) {
        bt_part letter = bt_part_either(g, bt_part_byte(g, 'a', 'f'), bt_part_byte(g, 'A', 'F'));

        part = bt_part_then(g, part, bt_part_either(g, digit(g), letter));
    }
    return part;
}

/* \uD8.. of a pair, or \uDC..: a D, then one of the bytes, then two digits. */
static bt_part surrogate(bt_parts *g, const char *second)
{
    bt_part d = bt_part_then(g, one_of(g, "dD"), one_of(g, second));

    return bt_part_then(g, bt_part_text(g, "\\u"), bt_part_then(g, d, hex_digits(g, 2)));
}

/* \uXXXX of a character: four digits that are no surrogate, or a pair of surrogates. */
static bt_part unicode_escape(bt_parts *g)
{
    bt_part other = bt_part_then(g, one_of(g, "0123456789abcefABCEF"), hex_digits(g, 3));
    bt_part d     = bt_part_then(g, one_of(g, "dD"), one_of(g, "01234567"));
    bt_part one   = bt_part_either(g, other, bt_part_then(g, d, hex_digits(g, 2)));
    bt_part pair  = bt_part_then(g, surrogate(g, "89abAB"), surrogate(g, "cdefCDEF"));

    return bt_part_either(g, bt_part_then(g, bt_part_text(g, "\\u"), one), pair);
}

static bt_part characters(bt_parts *g, uint32_t lo)
{
    bt_chars set = {0};
    bt_part  part;

    bt_chars_add(g, &set, lo, '"' - 1);
    bt_chars_add(g, &set, lo > '"' ? lo : '"' + 1, '\\' - 1);
    bt_chars_add(g, &set, lo > '\\' ? lo : '\\' + 1, BT_CHAR_MAX);
    part = bt_part_chars(g, &set);
    bt_chars_fini(&set);
    return part;
}

/* Written in any way. */
static bt_part character(bt_parts *g)
{
    bt_part brief = bt_part_then(g, bt_part_text(g, "\\"), one_of(g, "\"\\/bfnrt"));

    return bt_part_either(g, characters(g, ' '), bt_part_either(g, brief, unicode_escape(g)));
}

static bt_part non_ascii(bt_parts *g)
{
    bt_part escaped = bt_part_then(g, bt_part_text(g, "\\"), one_of(g, "\"\\"));

    return bt_part_either(g, characters(g, 0x80), escaped);
}

static bt_part string(bt_schema *s)
{
    bt_parts *g    = s->g;
    bt_part   many = bt_part_repeat(g, bt_schema_call(s, BT_COMMON_CHARACTER), 0, BT_UNLIMITED);

    return bt_part_between(g, "\"", many, "\"");
}

/* ---- numbers: as many digits as 64 bits hold, so that they end */

static bt_part whole_number(bt_parts *g)
{
    bt_part more = bt_part_repeat(g, digit(g), 0, MOST_WHOLE_DIGITS - 1);

    return bt_part_then(g, bt_part_byte(g, '1', '9'), more);
}

static bt_part integer(bt_parts *g)
{
    bt_part minus = bt_part_maybe(g, bt_part_text(g, "-"));

    return bt_part_either(g, bt_part_text(g, "0"), bt_part_then(g, minus, whole_number(g)));
}

static bt_part number(bt_parts *g)
{
    bt_part minus    = bt_part_maybe(g, bt_part_text(g, "-"));
    bt_part whole    = bt_part_either(g, bt_part_text(g, "0"), whole_number(g));
    bt_part fraction = bt_part_repeat(g, digit(g), 1, MOST_DIGITS);
    bt_part sign     = bt_part_maybe(g, one_of(g, "+-"));
    bt_part exponent = bt_part_then(g, sign, bt_part_repeat(g, digit(g), 1, 2));

    fraction = bt_part_maybe(g, bt_part_then(g, bt_part_text(g, "."), fraction));
    exponent = bt_part_maybe(g, bt_part_then(g, one_of(g, "eE"), exponent));
    return bt_part_then(g, bt_part_then(g, minus, whole), bt_part_then(g, fraction, exponent));
}

/* ---- values */

bt_part bt_schema_next(bt_schema *s, bt_part item)
{
    bt_part comma = bt_part_then(s->g, bt_part_text(s->g, ","), bt_schema_call(s, BT_COMMON_SPACE));

    return bt_part_then(s->g, comma, item);
}

/* Any number of items between brackets; the item is that rule. */
static bt_part bracketed(bt_schema *s, const char *open, uint32_t item, const char *close)
{
    bt_parts *g    = s->g;
    bt_part   more = bt_schema_next(s, bt_rule_call(g, item));
    bt_part many = bt_part_then(g, bt_rule_call(g, item), bt_part_repeat(g, more, 0, BT_UNLIMITED));

    many = bt_part_then(g, bt_schema_call(s, BT_COMMON_SPACE), many);
    many = bt_part_either(g, many, bt_part_nothing(g));
    many = bt_part_then(g, many, bt_schema_call(s, BT_COMMON_SPACE));
    return bt_part_between(g, open, many, close);
}

static bt_part any(bt_schema *s)
{
    bt_parts *g      = s->g;
    bt_part   part   = bt_part_never(g), key;
    uint32_t  member = bt_rule_new(g, NULL), item = bt_rule_new(g, NULL);

    key = bt_part_then(g, bt_schema_call(s, BT_COMMON_STRING), bt_schema_colon(s));
    bt_rule_is(g, member, bt_part_then(g, key, bt_schema_call(s, BT_COMMON_ANY)));
    bt_rule_is(g, item, bt_schema_call(s, BT_COMMON_ANY));
    bt_part_add(g, part, bracketed(s, "{", member, "}"));
    bt_part_add(g, part, bracketed(s, "[", item, "]"));
    bt_part_add(g, part, bt_schema_call(s, BT_COMMON_STRING));
    bt_part_add(g, part, bt_schema_call(s, BT_COMMON_NUMBER));
    bt_part_add(g, part, bt_part_text(g, "true"));
    bt_part_add(g, part, bt_part_text(g, "false"));
    bt_part_add(g, part, bt_part_text(g, "null"));
    return part;
}

static bt_part common(bt_schema *s, bt_schema_common which)
{
    switch (which) {
    case BT_COMMON_SPACE: return space(s->g);
    case BT_COMMON_CHARACTER: return character(s->g);
    case BT_COMMON_NON_ASCII: return non_ascii(s->g);
    case BT_COMMON_STRING: return string(s);
    case BT_COMMON_INTEGER: return integer(s->g);
    case BT_COMMON_NUMBER: return number(s->g);
    default: return any(s);
    }
}

bt_part bt_schema_call(bt_schema *s, bt_schema_common which)
{
    if (s->common[which] == 0 && s->g->st == BT_OK) {
        s->common[which] = 1 + bt_rule_new(s->g, NULL); /* known to what it holds */
        bt_rule_is(s->g, s->common[which] - 1, common(s, which));
    }
    return bt_rule_call(s->g, s->common[which] - 1);
}

/* ---- literals */

bt_part bt_schema_string_literal(bt_schema *s, const char *text, size_t n)
{
    char   *out = bt_calloc(n, 6), escape[8];
    size_t  m   = 0;
    bt_part part;

    if (out == NULL) bt_parts_no_memory(s->g);
    for (size_t i = 0; out != NULL && i < n; i++)
        if (bt_json_escape((uint8_t)text[i], escape)) {
            memcpy(out + m, escape, strlen(escape));
            m += strlen(escape);
        } else {
            out[m++] = text[i];
        }
    part = bt_part_between(s->g, "\"", bt_part_bytes(s->g, out, m), "\"");
    bt_free(out);
    return part;
}

int bt_schema_print(double v, char text[BT_SCHEMA_NUMBER_BYTES])
{
    int n = 14;

    do
        snprintf(text, BT_SCHEMA_NUMBER_BYTES, "%.*e", n, v);
    while (strtod(text, NULL) != v && n++ < 16);
    return n + 1;
}

/* With a point or an exponent, as it stands in the schema. */
static bt_part real_literal(bt_parts *g, double v)
{
    char text[BT_SCHEMA_NUMBER_BYTES];
    int  n = bt_schema_print(v, text);

    snprintf(text, sizeof(text), "%.*g", n, v);
    if (strpbrk(text, ".e") == NULL) strcat(text, ".0");
    return bt_part_text(g, text);
}

static bt_part scalar_literal(bt_schema *s, const json_t *value)
{
    char text[24];

    switch (json_typeof(value)) {
    case JSON_STRING:
        return bt_schema_string_literal(s, json_string_value(value), json_string_length(value));
    case JSON_INTEGER:
        snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return bt_part_text(s->g, text);
    case JSON_REAL: return real_literal(s->g, json_real_value(value));
    case JSON_TRUE: return bt_part_text(s->g, "true");
    case JSON_FALSE: return bt_part_text(s->g, "false");
    default: return bt_part_text(s->g, "null");
    }
}

/* The value, or no text where it is not as the schema says; NULL: there is none. */
static bt_part under(bt_schema *s, const json_t *schema, const json_t *value,
                     const bt_schema_at *at)
{
    json_t *merged;

    if (schema == NULL || bt_schema_says_nothing(schema))
        return bt_schema_literal(s, value, NULL, at);
    merged = bt_schema_made(s, json_pack("{s[O]}", "enum", value));
    bt_schema_merge(s, merged, schema, at);
    return bt_schema_read(s, merged, at);
}

static bt_part members(bt_schema *s, const json_t *value, const json_t *schema,
                       const bt_schema_at *at)
{
    bt_part       all   = bt_part_nothing(s->g), member;
    const json_t *names = json_object_get(schema, "propertyNames");
    json_t       *said  = schema == NULL ? NULL : bt_schema_of_members(s, schema, value, at), *one;
    const char   *key;
    bool          first = true;

    json_object_foreach((json_t *)value, key, one)
    {
        if (s->g->st != BT_OK) break;
        member = names == NULL ? bt_schema_string_literal(s, key, strlen(key))
                               : under(s, names, bt_schema_made(s, json_string(key)), at);
        member = bt_part_then(s->g, member, bt_schema_colon(s));
        member = bt_part_then(s->g, member, under(s, json_object_get(said, key), one, at));
        all    = bt_part_then(s->g, all, first ? member : bt_schema_next(s, member));
        first  = false;
    }
    json_decref(said);
    return all;
}

static bt_part items(bt_schema *s, const json_t *value, const json_t *schema,
                     const bt_schema_at *at)
{
    bt_part all = bt_part_nothing(s->g), item;
    json_t *one;
    size_t  i;

    json_array_foreach(value, i, one)
    {
        if (s->g->st != BT_OK) break;
        item = under(s, bt_schema_of_item(s, schema, i, at), one, at);
        all  = bt_part_then(s->g, all, i == 0 ? item : bt_schema_next(s, item));
    }
    return all;
}

bt_part bt_schema_literal(bt_schema *s, const json_t *value, const json_t *schema,
                          const bt_schema_at *at)
{
    bt_parts *g     = s->g;
    bool      array = json_is_array(value);
    bt_part   part;

    if (!array && !json_is_object(value)) return scalar_literal(s, value);
    part = bt_part_text(g, array ? "[" : "{");
    if (bt_schema_enter(s, at)) {
        if (json_array_size(value) + json_object_size(value) > 0) {
            part = bt_part_then(g, part, bt_schema_call(s, BT_COMMON_SPACE));
            part = bt_part_then(
                g, part, array ? items(s, value, schema, at) : members(s, value, schema, at));
        }
        part = bt_part_then(g, part, bt_schema_call(s, BT_COMMON_SPACE));
    }
    bt_schema_leave(s);
    return bt_part_then(g, part, bt_part_text(g, array ? "]" : "}"));
}
