/* model/grammar/schema.c - JSON schemas as grammars of the values that they describe.
 *
 * The reply is one value, as JSON with a little whitespace between tokens.  What comes is valid by
 * JSON Schema 2020-12, and by draft-07 for its spellings; not all that is valid may come: objects
 * hold their properties in the schema's order, and none besides unless additionalProperties says
 * so; without `type` only values of those types come that the other keywords speak of; integers
 * have at most 18 digits.  Two things are not kept: that only one branch of a oneOf holds (it is
 * read as anyOf), and that keys which the schema does not name differ from each other.
 *
 * References are read one after another, not inside each other: how deep the C stack goes is how
 * deep the text goes, at most BT_GRAMMAR_DEPTH_MAX. */
#include "model/grammar/schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "model/grammar/source.h"
#include "model/json.h"

/* ---- references */

/* A step of a pointer in a URI fragment: %-escapes (RFC 3986), then ~0 and ~1 (RFC 6901).  out has
 * room for n + 1 bytes.  False: an escape is wrong. */
static bool step_of(const char *text, size_t n, char *out)
{
    size_t m = 0, k = 0;

    for (size_t i = 0; i < n; i++) {
        int c = (uint8_t)text[i];

        if (c == '%') {
            if (i + 2 >= n || bt_hex_digit(text[i + 1]) < 0 || bt_hex_digit(text[i + 2]) < 0)
                return false;
            c = bt_hex_digit(text[i + 1]) << 4 | bt_hex_digit(text[i + 2]);
            i += 2;
        }
        if (c == 0) return false;
        out[m++] = (char)c;
    }
    for (size_t i = 0; i < m; i++, k++) {
        bool escape = out[i] == '~';

        if (escape && (i + 1 == m || (out[i + 1] != '0' && out[i + 1] != '1'))) return false;
        out[k] = !escape ? out[i] : out[i + 1] == '0' ? '~' : '/';
        i += escape;
    }
    out[k] = '\0';
    return true;
}

/* NULL: there is none. */
static const json_t *child(const json_t *v, const char *step)
{
    char  *end = NULL;
    size_t i;

    if (json_is_object(v)) return json_object_get(v, step);
    if (!json_is_array(v) || !bt_is_digit(step[0]) || (step[0] == '0' && step[1] != '\0'))
        return NULL;
    i = strtoul(step, &end, 10);
    return *end == '\0' ? json_array_get(v, i) : NULL;
}

static const json_t *follow(bt_schema *s, const char *pointer)
{
    const json_t *v    = s->root;
    char         *step = bt_calloc(strlen(pointer) + 1, 1);

    if (step == NULL) bt_parts_no_memory(s->g);
    while (step != NULL && v != NULL && *pointer != '\0') {
        size_t n = strcspn(pointer + 1, "/");

        v = pointer[0] == '/' && step_of(pointer + 1, n, step) ? child(v, step) : NULL;
        pointer += 1 + n;
    }
    bt_free(step);
    return v;
}

const json_t *bt_schema_resolve(bt_schema *s, const json_t *ref, const bt_schema_at *at)
{
    const char   *text = json_string_value(ref);
    bt_schema_at  here = {.up = at, .key = "$ref"};
    const json_t *v;
    char          shown[BT_JSON_SHOW_BYTES];

    if (text == NULL || text[0] != '#' || (text[1] != '\0' && text[1] != '/')) {
        bt_schema_refuse(s, &here, "expected a pointer into this schema, \"#/...\", found %s",
                         bt_json_show(ref, shown, sizeof(shown)));
        return NULL;
    }
    if (!bt_schema_step(s, at, 1 + strlen(text) / 16)) return NULL;
    v = follow(s, text + 1);
    if (v == NULL)
        bt_schema_refuse(s, &here, "%s names nothing", bt_json_show(ref, shown, sizeof(shown)));
    return v;
}

/* Its schema is read later. */
static void postpone(bt_schema *s, const json_t *schema, const char *name, uint32_t rule)
{
    if (bt_parts_grow(s->g, &s->pending, sizeof(*s->pending), s->n_pending, &s->pending_capacity,
                      UINT32_MAX))
        s->pending[s->n_pending++] = (bt_schema_pending){schema, name, rule};
}

/* A rule for each text of a reference, under its name. */
static bt_part call_ref(bt_schema *s, const json_t *ref, const bt_schema_at *at)
{
    const json_t *target = bt_schema_resolve(s, ref, at), *known;
    const char   *name   = json_string_value(ref);
    uint32_t      rule;

    if (target == NULL) return bt_part_never(s->g);
    if (s->place != BT_SCHEMA_JSON) return bt_schema_read(s, target, at); /* here, not as a rule */
    known = json_object_get(s->memo, name);
    if (known != NULL) return bt_rule_call(s->g, (uint32_t)json_integer_value(known));
    rule = bt_rule_new(s->g, name);
    if (json_object_set_new(s->memo, name, json_integer(rule)) != 0) bt_parts_no_memory(s->g);
    postpone(s, target, name, rule);
    return bt_rule_call(s->g, rule);
}

static bt_part read_ref(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    const json_t *ref = json_object_get(schema, "$ref"), *target;
    json_t       *merged;

    if (bt_schema_n_keywords(schema) == 1) return call_ref(s, ref, at);
    target = bt_schema_resolve(s, ref, at);
    merged = bt_schema_without(s, schema, "$ref", at);
    bt_schema_merge(s, merged, target, at);
    return bt_schema_read(s, merged, at);
}

/* ---- schemas of schemas */

static const json_t *branches(bt_schema *s, const json_t *schema, const char *keyword,
                              const bt_schema_at *at)
{
    const json_t *array = json_object_get(schema, keyword);

    if (json_array_size(array) == 0)
        bt_schema_unexpected(s, schema, keyword, at, "an array of schemas");
    return array;
}

static bt_part read_all_of(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    const json_t *array = branches(s, schema, "allOf", at);
    bt_schema_at  here  = {.up = at, .key = "allOf"};
    json_t       *merged;

    if (json_array_size(array) == 1 && bt_schema_n_keywords(schema) == 1)
        return bt_schema_read(s, json_array_get(array, 0), &(bt_schema_at){.up = &here});
    merged = bt_schema_without(s, schema, "allOf", at);
    bt_schema_merge_all_of(s, merged, schema, at);
    return bt_schema_read(s, merged, at);
}

/* What stands beside it holds for each branch. */
static bt_part read_any_of(bt_schema *s, const json_t *schema, const char *keyword,
                           const bt_schema_at *at)
{
    const json_t *array = branches(s, schema, keyword, at), *one;
    bt_schema_at  here  = {.up = at, .key = keyword};
    bool          alone = bt_schema_n_keywords(schema) == 1;
    bt_part       part  = bt_part_never(s->g);
    size_t        i;

    json_array_foreach(array, i, one)
    {
        bt_schema_at  branch = {.up = &here, .index = i};
        const json_t *read   = one;

        if (s->g->st != BT_OK) break;
        if (!alone) {
            json_t *merged = bt_schema_without(s, schema, keyword, at);

            bt_schema_merge(s, merged, one, &branch);
            if (bt_schema_has_waiting(schema)) bt_schema_merge_all_of(s, merged, schema, at);
            if (s->g->st == BT_OK && bt_schema_is_empty(s, merged, &branch)) continue;
            read = merged;
        }
        bt_part_add(s->g, part, bt_schema_read(s, read, &branch));
    }
    return part;
}

/* ---- enum and const */

/* Of a type that must be an integer: written as one, where 64 bits hold it. */
static bt_part literal(bt_schema *s, const json_t *v, const json_t *schema, uint32_t types,
                       const bt_schema_at *at)
{
    json_t *whole;
    bt_part part;

    if (!json_is_real(v) || (types & BT_TYPE_NUMBER) != 0 || fabs(json_real_value(v)) >= 0x1p63)
        return bt_schema_literal(s, v, schema, at);
    whole = bt_schema_owned(s, json_integer((json_int_t)json_real_value(v)));
    part  = whole == NULL ? bt_part_never(s->g) : bt_schema_literal(s, whole, NULL, at);
    json_decref(whole);
    return part;
}

/* As JSON, or in a style. */
static bt_part written(bt_schema *s, const json_t *v, const json_t *schema, uint32_t types,
                       const bt_schema_at *at)
{
    const char *text = json_string_value(v);
    bt_part     value;

    if (s->place == BT_SCHEMA_JSON) return literal(s, v, schema, types, at);
    if (s->place == BT_SCHEMA_OUTERMOST)
        bt_schema_refuse(s, at, "enum or const in the style %s is not supported", s->style->name);
    if (text == NULL) {
        s->place = BT_SCHEMA_JSON;
        value    = bt_style_json(s, literal(s, v, schema, types, at));
        s->place = BT_SCHEMA_VALUE;
        return value;
    }
    if (strstr(text, s->style->end) != NULL)
        bt_schema_refuse(s, at, "a text with the end of the style %s in it", s->style->name);
    return bt_style_text(s, bt_part_bytes(s->g, text, json_string_length(v)));
}

/* spoken: types that other keywords speak of. */
static bt_part read_enum(bt_schema *s, const json_t *schema, uint32_t spoken,
                         const bt_schema_at *at)
{
    const json_t *values = json_object_get(schema, "enum"), *v;
    uint32_t      types  = bt_schema_types(s, schema, at);
    bt_part       part   = bt_part_never(s->g);

    if (values != NULL && !json_is_array(values))
        bt_schema_unexpected(s, schema, "enum", at, "an array of values");
    for (size_t i = 0; (v = bt_schema_listed(schema, i)) != NULL && s->g->st == BT_OK; i++) {
        bool says = (bt_schema_type_of(v) & spoken) != 0;

        if (!bt_schema_lists(s, schema, types, v, at)) continue;
        if (says && !bt_schema_keeps_bounds(s, schema, v, at)) continue;
        bt_part_add(s->g, part, written(s, v, says ? schema : NULL, types, at));
    }
    return part;
}

/* ---- a schema */

static bt_part read_type(bt_schema *s, const json_t *schema, uint32_t type, const bt_schema_at *at)
{
    switch (type) {
    case BT_TYPE_OBJECT: return bt_schema_object(s, schema, at);
    case BT_TYPE_ARRAY: return bt_schema_array(s, schema, at);
    case BT_TYPE_STRING: return bt_schema_string(s, schema, at);
    case BT_TYPE_NUMBER: return bt_schema_number(s, schema, false, at);
    case BT_TYPE_INTEGER: return bt_schema_number(s, schema, true, at);
    case BT_TYPE_BOOLEAN:
        return bt_part_either(s->g, bt_part_text(s->g, "true"), bt_part_text(s->g, "false"));
    default: return bt_part_text(s->g, "null");
    }
}

/* A member's value in a style. */
static bt_part read_value(bt_schema *s, const json_t *schema, uint32_t type, const bt_schema_at *at)
{
    bt_part value;

    if (type == BT_TYPE_STRING) return bt_style_text(s, read_type(s, schema, type, at));
    s->place = BT_SCHEMA_JSON;
    value    = bt_style_json(s, read_type(s, schema, type, at));
    s->place = BT_SCHEMA_VALUE;
    return value;
}

static bt_part read_typed(bt_schema *s, const json_t *schema, uint32_t type, const bt_schema_at *at)
{
    switch (s->place) {
    case BT_SCHEMA_OUTERMOST: /* what is no object has no arguments */
        return type == BT_TYPE_OBJECT ? bt_schema_object(s, schema, at) : bt_part_never(s->g);
    case BT_SCHEMA_VALUE: return read_value(s, schema, type, at);
    default: return read_type(s, schema, type, at);
    }
}

/* Whether `not` lists values of the type. */
static bool lists(const json_t *schema, uint32_t type)
{
    const json_t *one;
    size_t        i;

    json_array_foreach(json_object_get(json_object_get(schema, "not"), "enum"), i,
                       one) if ((bt_schema_type_of(one) & type) != 0) return true;
    return false;
}

/* Of a type, but for the values that `not` lists. */
static bt_part read_but_listed(bt_schema *s, const json_t *schema, uint32_t type,
                               const bt_schema_at *at)
{
    if ((type & (BT_TYPE_NUMBER | BT_TYPE_INTEGER)) != 0 || !lists(schema, type))
        return read_typed(s, schema, type, at); /* of numbers schema_number.c leaves them out */
    return bt_schema_but_listed(s, schema, type, at);
}

/* Of a schema that says nothing. */
static bt_part read_any(bt_schema *s, const bt_schema_at *at)
{
    bt_part any;

    switch (s->place) {
    case BT_SCHEMA_OUTERMOST: return bt_schema_object(s, bt_schema_made(s, json_object()), at);
    case BT_SCHEMA_VALUE:
        any = bt_style_json(s, bt_schema_call(s, BT_COMMON_ANY));
        return bt_part_either(s->g, bt_style_text(s, bt_style_free_text(s)), any);
    default: return bt_schema_call(s, BT_COMMON_ANY);
    }
}

static bt_part read_types(bt_schema *s, const json_t *schema, uint32_t spoken,
                          const bt_schema_at *at)
{
    bool     typed = json_object_get(schema, "type") != NULL;
    uint32_t types = typed ? bt_schema_types(s, schema, at) : spoken;
    bt_part  part  = bt_part_never(s->g);

    if (types == 0 && !typed && json_object_get(schema, "not") == NULL) return read_any(s, at);
    if (types == 0 && !typed) types = BT_TYPE_ALL;
    if ((types & BT_TYPE_NUMBER) != 0) types &= ~(uint32_t)BT_TYPE_INTEGER;
    for (uint32_t type = 1; type <= BT_TYPE_NULL && s->g->st == BT_OK; type <<= 1)
        if ((types & type) != 0) bt_part_add(s->g, part, read_but_listed(s, schema, type, at));
    return part;
}

static bt_part read_keywords(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    uint32_t spoken = bt_schema_check_keywords(s, schema, at);

    if (s->g->st != BT_OK) return bt_part_never(s->g);
    if (json_object_get(schema, "$ref") != NULL) return read_ref(s, schema, at);
    if (bt_schema_has_conditions(schema))
        return bt_schema_read(s, bt_schema_without(s, schema, "", at), at);
    if (json_object_get(schema, "allOf") != NULL && !bt_schema_has_waiting(schema))
        return read_all_of(s, schema, at);
    if (json_object_get(schema, "anyOf") != NULL) return read_any_of(s, schema, "anyOf", at);
    if (json_object_get(schema, "oneOf") != NULL) return read_any_of(s, schema, "oneOf", at);
    if (json_object_get(schema, "enum") != NULL || json_object_get(schema, "const") != NULL)
        return read_enum(s, schema, spoken, at);
    return read_types(s, schema, spoken, at);
}

bt_part bt_schema_read(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    bt_part part = {0};
    char    found[BT_JSON_SHOW_BYTES];

    if (!bt_schema_enter(s, at))
        part = bt_part_never(s->g);
    else if (json_is_object(schema))
        part = read_keywords(s, schema, at);
    else if (json_is_true(schema))
        part = read_any(s, at);
    else if (json_is_false(schema))
        part = bt_part_never(s->g);
    else
        bt_schema_refuse(s, at, "expected a schema, found %s",
                         bt_json_show(schema, found, sizeof(found)));
    bt_schema_leave(s);
    return part;
}

static bt_part read_root(bt_schema *s)
{
    bt_schema_at at = {.key = "#"};
    bt_part      part;

    s->place = s->style != NULL ? BT_SCHEMA_OUTERMOST : BT_SCHEMA_JSON;
    part     = bt_schema_read(s, s->root, &at);
    s->place = BT_SCHEMA_JSON;

    for (uint32_t i = 0; i < s->n_pending && s->g->st == BT_OK; i++) {
        bt_schema_pending p = s->pending[i]; /* more may come meanwhile */

        at.key = p.name;
        bt_rule_is(s->g, p.rule, bt_schema_read(s, p.schema, &at));
    }
    return part;
}

bt_part bt_read_json_schema(bt_parts *g, const char *text, size_t n)
{
    return bt_read_styled_schema(g, text, n, NULL);
}

bt_part bt_read_styled_schema(bt_parts *g, const char *text, size_t n, const bt_schema_style *style)
{
    bt_schema    s    = {.g = g, .n_before = g->n_steps, .style = style};
    json_error_t err  = {.text = ""};
    bt_part      part = {0};
    char         what[BT_JSON_SHOW_BYTES];

    s.root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &err);
    s.made = json_array();
    s.memo = json_object();
    if (s.root == NULL && err.text[0] != '\0')
        bt_parts_refuse(g, "expected a JSON schema, found at byte %d (line %d): %s", err.position,
                        err.line, bt_json_printable(err.text, what, sizeof(what)));
    else if (s.root == NULL || s.made == NULL || s.memo == NULL)
        bt_parts_no_memory(g);
    else if (json_is_false(s.root))
        bt_parts_refuse(g, "at #: false describes no value");
    else
        part = read_root(&s);
    json_decref(s.root);
    json_decref(s.made);
    json_decref(s.memo);
    json_decref(s.matched);
    bt_matcher_destroy(s.matcher);
    bt_free(s.pending);
    return part;
}
