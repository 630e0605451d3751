/* model/grammar/schema_not.c - keywords that say what must not hold, or what must where something
 * does, said by others.
 *
 *     not X               by De Morgan, a branch of anyOf for each keyword of X: not {required:
 *                         [a]} is an object with properties: {a: false}; of listed values
 *                         {not: {enum: [...]}} is left
 *     if X then Y else Z  X and Y, or Z and not X
 *     dependencies a: Y   properties: {a: false}, or Y and required: [a]
 *
 * All of it is exact; a keyword that has no opposite here is refused. */
#include <string.h>

#include "model/grammar/schema.h"

/* Of a schema that is made here, by json_pack(). */
#define MADE(s, ...) bt_schema_made(s, json_pack(__VA_ARGS__))

static void append(bt_schema *s, json_t *array, json_t *value)
{
    if (json_array_append(array, value) != 0) bt_parts_no_memory(s->g);
}

bool bt_schema_is_not_listed(const char *keyword, const json_t *v)
{
    return strcmp(keyword, "not") == 0 && json_object_size(v) == 1 &&
           json_is_array(json_object_get(v, "enum"));
}

/* {keyword: what each of the schemas is not}. */
static json_t *none_of(bt_schema *s, const char *keyword, const json_t *schemas)
{
    json_t *all = bt_schema_owned(s, json_array()), *one;
    size_t  i;

    json_array_foreach(schemas, i, one) append(s, all, MADE(s, "{sO}", "not", one));
    return MADE(s, "{so}", keyword, all);
}

/* What satisfies two of the schemas at once. */
static void add_pairs(bt_schema *s, json_t *ways, const json_t *schemas, const bt_schema_at *at)
{
    size_t n = json_array_size(schemas);

    if (!bt_schema_step(s, at, n * n)) return;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            append(s, ways,
                   MADE(s, "{s[OO]}", "allOf", json_array_get(schemas, k),
                        json_array_get(schemas, i)));
}

/* A schema of properties, made here; where an object has no others, it stays as open as it was. */
static json_t *with_properties(bt_schema *s, bool open, json_t *made)
{
    if (open && json_object_set(made, "additionalProperties", json_true()) != 0)
        bt_parts_no_memory(s->g);
    return made;
}

/* An object that has not all of these. */
static void add_missing(bt_schema *s, json_t *ways, const json_t *names, bool open)
{
    const json_t *one;
    size_t        i;
    json_t       *way;

    json_array_foreach(names, i, one)
    {
        if (!json_is_string(one)) continue;
        way = MADE(s, "{sss{sb}}", "type", "object", "properties", json_string_value(one), 0);
        append(s, ways, with_properties(s, open, way));
    }
}

/* Not one of the values that a schema lists which says nothing else; NULL: it does. */
static json_t *but_values(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    json_t       *values;
    const json_t *v;
    uint32_t      types;

    if (!bt_schema_only_lists(schema) || bt_schema_listed(schema, 0) == NULL) return NULL;
    types  = bt_schema_types(s, schema, at);
    values = bt_schema_owned(s, json_array());
    for (size_t i = 0; (v = bt_schema_listed(schema, i)) != NULL && s->g->st == BT_OK; i++)
        if (bt_schema_lists(s, schema, types, v, at)) append(s, values, (json_t *)v);
    return MADE(s, "{s{so}}", "not", "enum", values);
}

/* An object with one that is not as it should be. */
static void add_others(bt_schema *s, json_t *ways, json_t *properties, bool open,
                       const bt_schema_at *at)
{
    const char *name;
    json_t     *one, *way;

    json_object_foreach(properties, name, one)
    {
        way = but_values(s, one, at);
        if (way == NULL) way = MADE(s, "{sO}", "not", one);
        if (s->g->st != BT_OK) return;
        way = MADE(s, "{sss[s]s{sO}}", "type", "object", "required", name, "properties", name, way);
        append(s, ways, with_properties(s, open, way));
    }
}

static json_t *other_types(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    uint32_t types = bt_schema_types(s, schema, at);

    if ((types & BT_TYPE_INTEGER) != 0 && (types & BT_TYPE_NUMBER) == 0)
        bt_schema_refuse(s, at, "\"not\" of integers is not supported");
    return MADE(s, "{so}", "type", bt_schema_type_names(s, BT_TYPE_ALL & ~types));
}

/* Bounds: the type that they speak of, and the bound that begins where they end. */
static const struct {
    const char *keyword, *type, *other;
    int         beyond; /* of whole numbers */
} BOUNDS[] = {
    {"minimum",          "number", "exclusiveMaximum", 0 },
    {"maximum",          "number", "exclusiveMinimum", 0 },
    {"exclusiveMinimum", "number", "maximum",          0 },
    {"exclusiveMaximum", "number", "minimum",          0 },
    {"minLength",        "string", "maxLength",        -1},
    {"maxLength",        "string", "minLength",        1 },
    {"minItems",         "array",  "maxItems",         -1},
    {"maxItems",         "array",  "minItems",         1 },
    {"minProperties",    "object", "maxProperties",    -1},
    {"maxProperties",    "object", "minProperties",    1 },
};
enum { N_BOUNDS = sizeof(BOUNDS) / sizeof(BOUNDS[0]) };

/* NULL: it is no bound. */
static json_t *beyond(bt_schema *s, const json_t *schema, const char *keyword, json_t *value,
                      const bt_schema_at *at)
{
    size_t     i = 0;
    json_int_t n;

    while (i < N_BOUNDS && strcmp(BOUNDS[i].keyword, keyword) != 0)
        i++;
    if (i == N_BOUNDS) return NULL;
    if (BOUNDS[i].beyond == 0)
        return MADE(s, "{sssO}", "type", BOUNDS[i].type, BOUNDS[i].other, value);
    n = (json_int_t)bt_schema_count(s, schema, keyword, 0, at) + BOUNDS[i].beyond;
    if (n < 0) return json_false();
    return MADE(s, "{sssI}", "type", BOUNDS[i].type, BOUNDS[i].other, n);
}

/* What satisfies all but this keyword of the schema. */
static void add_ways(bt_schema *s, json_t *ways, const json_t *schema, const char *keyword,
                     json_t *value, bool open, const bt_schema_at *at)
{
    json_t *way = beyond(s, schema, keyword, value, at);

    if (way != NULL)
        append(s, ways, way);
    else if (strcmp(keyword, "not") == 0)
        append(s, ways, value);
    else if (strcmp(keyword, "$ref") == 0)
        append(s, ways, MADE(s, "{sO}", "not", bt_schema_resolve(s, value, at)));
    else if (strcmp(keyword, "type") == 0)
        append(s, ways, other_types(s, schema, at));
    else if (strcmp(keyword, "const") == 0)
        append(s, ways, MADE(s, "{s{s[O]}}", "not", "enum", value));
    else if (strcmp(keyword, "enum") == 0 && json_is_array(value))
        append(s, ways, MADE(s, "{s{sO}}", "not", "enum", value));
    else if (strcmp(keyword, "anyOf") == 0 && json_array_size(value) > 0)
        append(s, ways, none_of(s, "allOf", value));
    else if (strcmp(keyword, "allOf") == 0 && json_array_size(value) > 0)
        append(s, ways, none_of(s, "anyOf", value));
    else if (strcmp(keyword, "oneOf") == 0 && json_array_size(value) > 0) {
        append(s, ways, none_of(s, "allOf", value));
        add_pairs(s, ways, value, at);
    } else if (strcmp(keyword, "required") == 0 && json_is_array(value))
        add_missing(s, ways, value, open);
    else if (strcmp(keyword, "properties") == 0 && json_is_object(value))
        add_others(s, ways, value, open, at);
    else if (strcmp(keyword, "pattern") == 0 && json_is_string(value))
        append(s, ways,
               MADE(s, "{ssso}", "type", "string", "pattern", bt_schema_no_pattern(s, value, at)));
    else
        bt_schema_refuse(s, at, "\"not\" of \"%s\" is not supported", keyword);
}

/* Borrowed. */
static json_t *opposite(bt_schema *s, const json_t *schema, bool open, const bt_schema_at *at)
{
    json_t     *ways = MADE(s, "[]"), *value;
    const char *keyword;

    if (json_is_true(schema)) return json_false();
    if (json_is_false(schema)) return json_true();
    if (!json_is_object(schema)) bt_schema_refuse(s, at, "expected a schema in \"not\"");
    bt_schema_check_keywords(s, schema, at);
    value = but_values(s, schema, at);
    if (value != NULL) return value;
    json_object_foreach((json_t *)schema, keyword, value)
    {
        if (!bt_schema_step(s, at, 1 + bt_schema_weight(value))) return json_false();
        if (bt_schema_is_keyword(keyword, value))
            add_ways(s, ways, schema, keyword, value, open, at);
    }
    if (json_array_size(ways) == 0) return json_false();
    return json_array_size(ways) == 1 ? json_array_get(ways, 0) : MADE(s, "{sO}", "anyOf", ways);
}

static void merge_if(bt_schema *s, json_t *into, const json_t *schema, const bt_schema_at *at)
{
    json_t *condition = json_object_get(schema, "if");
    json_t *yes = json_object_get(schema, "then"), *no = json_object_get(schema, "else");

    if (yes == NULL && no == NULL) return;
    yes = MADE(s, "{s[OO]}", "allOf", condition, yes == NULL ? json_true() : yes);
    no  = MADE(s, "{s[{sO}O]}", "allOf", "not", condition, no == NULL ? json_true() : no);
    if (s->g->st == BT_OK) bt_schema_merge(s, into, MADE(s, "{s[OO]}", "anyOf", yes, no), at);
}

/* Of a name: the names or the schema that must hold beside it. */
static void merge_dependency(bt_schema *s, json_t *into, const char *name, json_t *needs, bool open,
                             const bt_schema_at *at)
{
    json_t *with, *without = MADE(s, "{s{sb}}", "properties", name, 0);

    without = with_properties(s, open, without);
    if (json_is_string(needs)) needs = MADE(s, "[O]", needs); /* draft-03's */
    with = json_is_array(needs) ? MADE(s, "{sO}", "required", needs) : needs;
    with = MADE(s, "{s[{s[s]}O]}", "allOf", "required", name, with);
    if (s->g->st == BT_OK) bt_schema_merge(s, into, MADE(s, "{s[OO]}", "anyOf", without, with), at);
}

static void merge_dependencies(bt_schema *s, json_t *into, const json_t *schema,
                               const char *keyword, bool open, const bt_schema_at *at)
{
    json_t      *all  = json_object_get(schema, keyword), *needs;
    bt_schema_at here = {.up = at, .key = keyword};
    const char  *name;

    if (!json_is_object(all)) bt_schema_unexpected(s, schema, keyword, at, "an object");
    json_object_foreach(all, name, needs)
    {
        bt_schema_at below = {.up = &here, .key = name};

        if (!bt_schema_step(s, at, 1)) return;
        merge_dependency(s, into, name, needs, open, &below);
    }
}

void bt_schema_merge_condition(bt_schema *s, json_t *into, const json_t *from, const char *keyword,
                               const bt_schema_at *at)
{
    bt_schema_at here = {.up = at, .key = keyword};
    bool         open = json_object_get(into, "properties") == NULL &&
                json_object_get(into, "additionalProperties") == NULL;

    if (strcmp(keyword, "if") == 0)
        merge_if(s, into, from, &here);
    else if (strcmp(keyword, "not") == 0)
        bt_schema_merge(s, into, opposite(s, json_object_get(from, keyword), open, &here), &here);
    else
        merge_dependencies(s, into, from, keyword, open, at);
}

/* ---- values that are not */

bool bt_schema_rules_out(bt_schema *s, const json_t *schema, const json_t *v,
                         const bt_schema_at *at)
{
    const json_t *values = json_object_get(json_object_get(schema, "not"), "enum"), *one;
    size_t        i;

    if (values == NULL || !bt_schema_step(s, at, json_array_size(values) * bt_schema_weight(v)))
        return false;
    json_array_foreach(values, i, one) if (bt_schema_is_equal(v, one)) return true;
    return false;
}

/* Any string but the names. */
static bt_part other_strings(bt_schema *s, const json_t *schema, const json_t *values,
                             const bt_schema_at *at)
{
    static const char *const bounds[] = {"minLength", "maxLength", "pattern", "format"};
    json_t                  *names    = MADE(s, "{}"), *one;
    size_t                   i;

    for (i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
        if (json_object_get(schema, bounds[i]) != NULL)
            bt_schema_refuse(s, at, "\"not\" of a string beside \"%s\" is not supported",
                             bounds[i]);
    json_array_foreach(values, i, one)
    {
        if (s->g->st != BT_OK) return bt_part_never(s->g);
        if (json_is_string(one) &&
            json_object_set_new(names, json_string_value(one), json_true()) != 0)
            bt_parts_no_memory(s->g);
    }
    return s->g->st == BT_OK ? bt_schema_other_keys(s, names) : bt_part_never(s->g);
}

bt_part bt_schema_but_listed(bt_schema *s, const json_t *schema, uint32_t type,
                             const bt_schema_at *at)
{
    const json_t *values = json_object_get(json_object_get(schema, "not"), "enum");
    bool          no_true, no_false;

    if (s->place != BT_SCHEMA_JSON ||
        (type & (BT_TYPE_STRING | BT_TYPE_BOOLEAN | BT_TYPE_NULL)) == 0)
        bt_schema_refuse(
            s, at, "\"not\" of an object, an array or a text without quotes is not supported");
    if (s->g->st != BT_OK || type == BT_TYPE_NULL) return bt_part_never(s->g);
    if (type == BT_TYPE_STRING) return other_strings(s, schema, values, at);
    no_true  = bt_schema_rules_out(s, schema, json_true(), at);
    no_false = bt_schema_rules_out(s, schema, json_false(), at);
    if (no_true && no_false) return bt_part_never(s->g);
    return bt_part_text(s->g, no_true ? "false" : "true");
}
