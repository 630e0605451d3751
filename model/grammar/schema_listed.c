/* model/grammar/schema_listed.c - values of enum or const: which of them remain beside the other
 * keywords of a schema. */
#include <math.h>

#include "model/grammar/schema.h"

uint32_t bt_schema_type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return BT_TYPE_OBJECT;
    case JSON_ARRAY: return BT_TYPE_ARRAY;
    case JSON_STRING: return BT_TYPE_STRING;
    case JSON_INTEGER: return BT_TYPE_INTEGER | BT_TYPE_NUMBER;
    case JSON_REAL:
        return json_real_value(v) == floor(json_real_value(v)) ? BT_TYPE_INTEGER | BT_TYPE_NUMBER
                                                               : BT_TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return BT_TYPE_BOOLEAN;
    default: return BT_TYPE_NULL;
    }
}

/* As a double a large integer may look like another one. */
static bool is_equal_number(const json_t *a, const json_t *b)
{
    const json_t *whole = json_is_integer(a) ? a : b, *real = whole == a ? b : a;

    if (bt_schema_is_less(a, b) || bt_schema_is_less(b, a)) return false;
    if (!json_is_integer(whole) || !json_is_real(real)) return true;
    return json_real_value(real) < 0x1p63 &&
           (json_int_t)json_real_value(real) == json_integer_value(whole);
}

bool bt_schema_is_equal(const json_t *a, const json_t *b)
{
    const char *key;
    json_t     *one;
    size_t      i;

    if (json_is_number(a) && json_is_number(b)) return is_equal_number(a, b);
    if (json_typeof(a) != json_typeof(b) || json_array_size(a) != json_array_size(b) ||
        json_object_size(a) != json_object_size(b))
        return false;
    if (!json_is_array(a) && !json_is_object(a)) return json_equal(a, b);
    json_array_foreach(a, i, one) if (!bt_schema_is_equal(one, json_array_get(b, i))) return false;
    json_object_foreach((json_t *)a, key, one)
    {
        const json_t *other = json_object_get(b, key);

        if (other == NULL || !bt_schema_is_equal(one, other)) return false;
    }
    return true;
}

const json_t *bt_schema_listed(const json_t *schema, size_t i)
{
    const json_t *values = json_object_get(schema, "enum");

    if (values != NULL) return json_array_get(values, i);
    return i == 0 ? json_object_get(schema, "const") : NULL;
}

bool bt_schema_lists(bt_schema *s, const json_t *schema, uint32_t types, const json_t *v,
                     const bt_schema_at *at)
{
    const json_t *fixed = json_object_get(schema, "const");

    if (!bt_schema_step(s, at, fixed == NULL || fixed == v ? 1 : bt_schema_weight(fixed)))
        return false;
    return (bt_schema_type_of(v) & types) != 0 && (fixed == NULL || bt_schema_is_equal(v, fixed)) &&
           !bt_schema_rules_out(s, schema, v, at);
}

bool bt_schema_lists_none(bt_schema *s, const json_t *schema, uint32_t types,
                          const bt_schema_at *at)
{
    const json_t *values = json_object_get(schema, "enum"), *v;

    if (values == NULL && json_object_get(schema, "const") == NULL) return false;
    if (values != NULL && !json_is_array(values)) return false; /* which is refused later */
    for (size_t i = 0; (v = bt_schema_listed(schema, i)) != NULL; i++)
        if (bt_schema_lists(s, schema, types, v, at) || s->g->st != BT_OK) return false;
    return true;
}

/* Characters of UTF-8. */
static size_t n_chars(const json_t *text)
{
    const char *at = json_string_value(text);
    size_t      n  = 0;

    for (size_t i = 0; i < json_string_length(text); i++)
        n += ((uint8_t)at[i] & 0xC0) != 0x80;
    return n;
}

static bool keeps_length(bt_schema *s, const json_t *schema, const json_t *v,
                         const bt_schema_at *at)
{
    size_t n = n_chars(v);

    return n >= bt_schema_count(s, schema, "minLength", 0, at) &&
           n <= bt_schema_count(s, schema, "maxLength", BT_UNLIMITED, at);
}

static bool keeps_range(bt_schema *s, const json_t *schema, const json_t *v, const bt_schema_at *at)
{
    const json_t *min   = bt_schema_bound(s, schema, "minimum", at);
    const json_t *max   = bt_schema_bound(s, schema, "maximum", at);
    const json_t *above = bt_schema_bound(s, schema, "exclusiveMinimum", at);
    const json_t *below = bt_schema_bound(s, schema, "exclusiveMaximum", at);

    return (min == NULL || !bt_schema_is_less(v, min)) &&
           (max == NULL || !bt_schema_is_less(max, v)) &&
           (above == NULL || bt_schema_is_less(above, v)) &&
           (below == NULL || bt_schema_is_less(v, below));
}

/* Whether the text is as a pattern or a format says: many values are held against the same one. */
static bool keeps_regex(bt_schema *s, json_t *keyword, bool is_format, const json_t *v,
                        const bt_schema_at *at)
{
    json_t *regex;

    if (s->matched != keyword) {
        regex = !is_format
                    ? json_incref(keyword)
                    : bt_schema_owned(s, json_sprintf("^(?:%s)$", bt_schema_format_regex(keyword)));
        json_decref(s->matched);
        bt_matcher_destroy(s->matcher);
        s->matched = json_incref(keyword);
        s->matcher =
            regex == NULL ? NULL : bt_schema_matcher(s, json_string_value(regex), false, at);
        json_decref(regex);
    }
    return bt_schema_matches(s, s->matcher, json_string_value(v), at);
}

static bool keeps_text(bt_schema *s, const json_t *schema, const json_t *v, const bt_schema_at *at)
{
    json_t      *pattern = json_object_get(schema, "pattern");
    json_t      *format  = json_object_get(schema, "format");
    bt_schema_at here    = {.up = at, .key = pattern != NULL ? "pattern" : "format"};

    if (pattern != NULL && !json_is_string(pattern))
        bt_schema_unexpected(s, schema, "pattern", at, "a regular expression");
    if (format != NULL && !json_is_string(format))
        bt_schema_unexpected(s, schema, "format", at, "the name of a format");
    if (s->g->st != BT_OK || !keeps_length(s, schema, v, at)) return false;
    if (pattern != NULL) return keeps_regex(s, pattern, false, v, &here);
    if (format == NULL || !bt_schema_is_format(format)) return true;
    if (!keeps_regex(s, format, true, v, &here))
        bt_schema_refuse(s, &here, "a text of enum or const is none of those that come of it");
    return s->g->st == BT_OK;
}

/* Of whole numbers; others are refused. */
static bool keeps_multiple(bt_schema *s, const json_t *schema, const json_t *v,
                           const bt_schema_at *at)
{
    const json_t *of = json_object_get(schema, "multipleOf");

    if (of == NULL) return true;
    if (json_is_integer(of) && json_integer_value(of) > 0 && json_is_integer(v))
        return json_integer_value(v) % json_integer_value(of) == 0;
    bt_schema_refuse(s, at, "enum or const of numbers beside \"multipleOf\", but for whole ones");
    return false;
}

static bool keeps_names(bt_schema *s, const json_t *schema, const json_t *v, const bt_schema_at *at)
{
    const json_t *required = json_object_get(schema, "required"), *one;
    size_t        n        = json_object_size(v), i;

    if (required != NULL && !json_is_array(required))
        bt_schema_unexpected(s, schema, "required", at, "an array of names");
    json_array_foreach(required, i, one)
    {
        if (!json_is_string(one))
            bt_schema_unexpected(s, schema, "required", at, "an array of names");
        if (!bt_schema_step(s, at, 1) || json_object_get(v, json_string_value(one)) == NULL)
            return false;
    }
    return n >= bt_schema_count(s, schema, "minProperties", 0, at) &&
           n <= bt_schema_count(s, schema, "maxProperties", BT_UNLIMITED, at);
}

static bool is_unique(bt_schema *s, const json_t *v, const bt_schema_at *at)
{
    size_t n = json_array_size(v);

    for (size_t i = 1; i < n; i++) {
        const json_t *one = json_array_get(v, i);

        if (!bt_schema_step(s, at, i * bt_schema_weight(one))) return false;
        for (size_t k = 0; k < i; k++)
            if (bt_schema_is_equal(json_array_get(v, k), one)) return false;
    }
    return true;
}

static bool keeps_items(bt_schema *s, const json_t *schema, const json_t *v, const bt_schema_at *at)
{
    size_t n = json_array_size(v);

    return n >= bt_schema_count(s, schema, "minItems", 0, at) &&
           n <= bt_schema_count(s, schema, "maxItems", BT_UNLIMITED, at) &&
           (!json_is_true(json_object_get(schema, "uniqueItems")) || is_unique(s, v, at));
}

bool bt_schema_keeps_bounds(bt_schema *s, const json_t *schema, const json_t *v,
                            const bt_schema_at *at)
{
    if (json_is_string(v)) return keeps_text(s, schema, v, at);
    if (json_is_object(v)) return keeps_names(s, schema, v, at);
    if (json_is_array(v)) return keeps_items(s, schema, v, at);
    return keeps_range(s, schema, v, at) && keeps_multiple(s, schema, v, at);
}
