/* model/grammar/schema_listed.c - values of enum or const beside keywords that bound them: those
 * that keep to the bounds remain. */
#include "model/grammar/schema.h"

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

bool bt_schema_keeps_bounds(bt_schema *s, const json_t *schema, const json_t *v,
                            const bt_schema_at *at)
{
    const json_t *format = json_object_get(schema, "format");
    bool          plain  = json_object_get(schema, "pattern") == NULL &&
                 (format == NULL || !bt_schema_is_format(format));

    if (json_is_string(v) && plain) return keeps_length(s, schema, v, at);
    if (json_is_number(v) && json_object_get(schema, "multipleOf") == NULL)
        return keeps_range(s, schema, v, at);
    bt_schema_refuse(s, at, "enum or const beside keywords that describe such a value");
    return false;
}
