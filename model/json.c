#include "model/json.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/file.h"

/* more: JSON_ALLOW_NUL, or JSON_DECODE_INT_AS_REAL for where it cannot be read without. */
static bt_status parse(const char *where, const char *text, size_t n, size_t more,
                       json_t **json_out)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | (more & JSON_ALLOW_NUL);
    bt_status    st    = BT_OK;
    json_error_t err   = {.text = ""};
    json_t      *json  = json_loadb(text, n, flags, &err);
    char         what[BT_JSON_SHOW_BYTES];

    if (json == NULL && more != 0 && json_error_code(&err) == json_error_numeric_overflow)
        json = json_loadb(text, n, flags | more, &err);
    /* jansson leaves the text empty when an allocation failed */
    BT_REQUIRE(json != NULL || err.text[0] != '\0', BT_ERR_NO_MEMORY, "%s: parsing %zu bytes",
               where, n);
    BT_REQUIRE(json != NULL, BT_ERR_FORMAT, "%s: expected JSON, found at byte %d (line %d): %s",
               where, err.position, err.line, bt_json_printable(err.text, what, sizeof(what)));
    *json_out = json;
out:
    return st;
}

bt_status bt_json_parse(const char *where, const char *text, size_t n, json_t **json_out)
{
    return parse(where, text, n, 0, json_out);
}

static bt_status read_file(const char *path, size_t max_bytes, size_t more, json_t **json_out)
{
    bt_status st   = BT_OK;
    char     *text = NULL;
    size_t    n    = 0;

    BT_TRY(bt_read_regular(path, max_bytes, &text, &n));
    BT_TRY(parse(path, text, n, more, json_out));
out:
    bt_free(text);
    return st;
}

bt_status bt_json_read_file(const char *path, size_t max_bytes, json_t **json_out)
{
    return read_file(path, max_bytes, 0, json_out);
}

bt_status bt_json_read_loose(const char *path, size_t max_bytes, json_t **json_out)
{
    return read_file(path, max_bytes, JSON_DECODE_INT_AS_REAL, json_out);
}

bt_status bt_json_read_nul(const char *path, size_t max_bytes, json_t **json_out)
{
    return read_file(path, max_bytes, JSON_ALLOW_NUL, json_out);
}

json_t *bt_json_field(const bt_json_at *at, const char *field)
{
    json_t *v = json_object_get(at->obj, field);

    return json_is_null(v) ? NULL : v;
}

static bt_status wrong(const bt_json_at *at, const char *field, const char *expected)
{
    char found[BT_JSON_SHOW_BYTES];

    bt_log_error(__FILE__, __LINE__, bt_status_head(BT_ERR_FORMAT),
                 "%s: field %s%s%s: expected %s, found %s", at->file, at->in,
                 at->in[0] != '\0' ? "." : "", field, expected,
                 bt_json_show(bt_json_field(at, field), found, sizeof(found)));
    return BT_ERR_FORMAT;
}

bt_status bt_json_u32(const bt_json_at *at, const char *field, uint32_t lo, uint32_t hi,
                      uint32_t *v_out)
{
    const json_t *v = bt_json_field(at, field);
    char          expected[BT_JSON_SHOW_BYTES];

    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi) {
        snprintf(expected, sizeof(expected), "an integer from %u to %u", lo, hi);
        return wrong(at, field, expected);
    }
    *v_out = (uint32_t)json_integer_value(v);
    return BT_OK;
}

bt_status bt_json_f64(const bt_json_at *at, const char *field, double lo, double hi, double *v_out)
{
    const json_t *v = bt_json_field(at, field);
    double        x = json_number_value(v);
    char          expected[BT_JSON_SHOW_BYTES];

    if (!json_is_number(v) || !(x >= lo && x <= hi)) {
        snprintf(expected, sizeof(expected), "a number from %g to %g", lo, hi);
        return wrong(at, field, expected);
    }
    *v_out = x;
    return BT_OK;
}

bt_status bt_json_bool(const bt_json_at *at, const char *field, bool *v_out)
{
    const json_t *v = bt_json_field(at, field);

    if (!json_is_boolean(v)) return wrong(at, field, "true or false");
    *v_out = json_is_true(v);
    return BT_OK;
}

bt_status bt_json_str(const bt_json_at *at, const char *field, const char **v_out)
{
    const json_t *v = bt_json_field(at, field);

    if (!json_is_string(v)) return wrong(at, field, "a string");
    if (strlen(json_string_value(v)) != json_string_length(v))
        return wrong(at, field, "a string without U+0000");
    *v_out = json_string_value(v);
    return BT_OK;
}

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

/* Keeps the first bytes of a dump of any length, so that a huge value costs no memory. */
typedef struct {
    char  *buf;
    size_t n, capacity;
} prefix;

static int take_prefix(const char *data, size_t n, void *ctx)
{
    prefix *p = ctx;

    for (size_t i = 0; i < n; i++) {
        if (p->n + 1 >= p->capacity) return -1; /* enough: the dump ends here */
        p->buf[p->n++] = data[i];
    }
    return 0;
}

const char *bt_json_show(const json_t *v, char *buf, size_t capacity)
{
    char   text[48];
    prefix p = {text, 0, sizeof(text)};
    bool   cut;

    if (v == NULL) {
        snprintf(buf, capacity, "nothing");
        return buf;
    }
    cut       = json_dump_callback(v, take_prefix, &p,
                                   JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_COMPACT) != 0;
    text[p.n] = '\0';
    snprintf(buf, capacity, "%s%s (%s)", text, cut ? ".." : "", type_name(v));
    return buf;
}

const char *bt_json_printable(const char *text, char *buf, size_t capacity)
{
    size_t i = 0;

    for (; text[i] != '\0' && i + 1 < capacity; i++)
        buf[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    buf[i] = '\0';
    return buf;
}
