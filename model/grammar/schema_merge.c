/* model/grammar/schema_merge.c - the keywords of JSON schemas, and schemas that must hold together
 * (allOf, and what stands beside $ref, anyOf or oneOf) as one schema.
 *
 * Two become one keyword by keyword.  What would not say what both say is refused, as where
 * additionalProperties of the one would have to know the patternProperties of the other. */
#include <string.h>

#include "model/grammar/schema.h"
#include "model/json.h"

enum {
    REFUSED        = 1 << 7,
    REFUSED_FILLED = 1 << 8,  /* {} and true say nothing */
    REFUSED_BASE   = 1 << 11, /* below the root, where references would begin there */
    GENERAL        = 1 << 9,
    CONDITION      = 1 << 10, /* schema_not.c */
    NUMERIC        = BT_TYPE_NUMBER | BT_TYPE_INTEGER
};

/* Bits of the types that it speaks of.  What is not here is an annotation, by the standard. */
static const struct {
    const char *name;
    uint32_t    kind;
} KEYWORDS[] = {
    {"type",                  GENERAL       },
    {"enum",                  GENERAL       },
    {"const",                 GENERAL       },
    {"$ref",                  GENERAL       },
    {"anyOf",                 GENERAL       },
    {"oneOf",                 GENERAL       },
    {"allOf",                 GENERAL       },
    {"properties",            BT_TYPE_OBJECT},
    {"required",              BT_TYPE_OBJECT},
    {"additionalProperties",  BT_TYPE_OBJECT},
    {"minProperties",         BT_TYPE_OBJECT},
    {"maxProperties",         BT_TYPE_OBJECT},
    {"patternProperties",     BT_TYPE_OBJECT},
    {"propertyNames",         BT_TYPE_OBJECT},
    {"items",                 BT_TYPE_ARRAY },
    {"prefixItems",           BT_TYPE_ARRAY },
    {"additionalItems",       BT_TYPE_ARRAY },
    {"minItems",              BT_TYPE_ARRAY },
    {"maxItems",              BT_TYPE_ARRAY },
    {"uniqueItems",           BT_TYPE_ARRAY },
    {"minLength",             BT_TYPE_STRING},
    {"maxLength",             BT_TYPE_STRING},
    {"pattern",               BT_TYPE_STRING},
    {"format",                BT_TYPE_STRING},
    {"minimum",               NUMERIC       },
    {"maximum",               NUMERIC       },
    {"exclusiveMinimum",      NUMERIC       },
    {"exclusiveMaximum",      NUMERIC       },
    {"multipleOf",            NUMERIC       },
    {"not",                   CONDITION     },
    {"if",                    CONDITION     },
    {"contains",              REFUSED       },
    {"dependentRequired",     CONDITION     },
    {"dependentSchemas",      CONDITION     },
    {"dependencies",          CONDITION     },
    {"unevaluatedProperties", REFUSED_FILLED},
    {"unevaluatedItems",      REFUSED_FILLED},
    {"$dynamicRef",           REFUSED       },
    {"$recursiveRef",         REFUSED       },
    {"$id",                   REFUSED_BASE  },
};

static bool is_one_of(const char *keyword, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strcmp(*names, keyword) == 0) return true;
    return false;
}

/* 0: an annotation. */
static uint32_t kind_of(const char *keyword, const json_t *value)
{
    for (size_t i = 0; i < sizeof(KEYWORDS) / sizeof(KEYWORDS[0]); i++)
        if (strcmp(KEYWORDS[i].name, keyword) == 0)
            return strcmp(keyword, "format") == 0 && !bt_schema_is_format(value) ? 0
                                                                                 : KEYWORDS[i].kind;
    return 0;
}

bool bt_schema_says_nothing(const json_t *v)
{
    return json_is_true(v) || (json_is_object(v) && json_object_size(v) == 0);
}

static bool has_references(const json_t *v)
{
    const char *key;
    json_t     *one;
    size_t      i;

    json_array_foreach(v, i, one) if (has_references(one)) return true;
    json_object_foreach((json_t *)v, key,
                        one) if (strcmp(key, "$ref") == 0 || has_references(one)) return true;
    return false;
}

static bool is_base(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    return schema != s->root && bt_schema_step(s, at, bt_schema_weight(schema)) &&
           has_references(schema);
}

static bool is_refused(uint32_t kind, const json_t *value)
{
    return kind == REFUSED || (kind == REFUSED_FILLED && !bt_schema_says_nothing(value));
}

uint32_t bt_schema_check_keywords(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    uint32_t    spoken = 0;
    const char *keyword;
    json_t     *value;

    json_object_foreach((json_t *)schema, keyword, value)
    {
        uint32_t kind = kind_of(keyword, value);

        if (!bt_schema_step(s, at, 1)) break;
        if (is_refused(kind, value) || (kind == REFUSED_BASE && is_base(s, schema, at)))
            bt_schema_refuse(s, at, "\"%s\" is not supported", keyword);
        spoken |= kind & BT_TYPE_ALL;
    }
    return spoken;
}

bool bt_schema_is_keyword(const char *keyword, const json_t *value)
{
    return (kind_of(keyword, value) & ~(uint32_t)(REFUSED | REFUSED_FILLED | REFUSED_BASE)) != 0;
}

size_t bt_schema_n_keywords(const json_t *schema)
{
    size_t      n = 0;
    const char *keyword;
    json_t     *value;

    json_object_foreach((json_t *)schema, keyword, value) n += bt_schema_is_keyword(keyword, value);
    return n;
}

static bool is_condition(const char *keyword, const json_t *value)
{
    return kind_of(keyword, value) == CONDITION && !bt_schema_is_not_listed(keyword, value);
}

bool bt_schema_has_conditions(const json_t *schema)
{
    const char *keyword;
    json_t     *value;

    json_object_foreach((json_t *)schema, keyword,
                        value) if (is_condition(keyword, value)) return true;
    return false;
}

/* ---- types */

static const struct {
    const char *name;
    uint32_t    types;
} TYPES[] = {
    {"object",  BT_TYPE_OBJECT },
    {"array",   BT_TYPE_ARRAY  },
    {"string",  BT_TYPE_STRING },
    {"number",  NUMERIC        },
    {"integer", BT_TYPE_INTEGER},
    {"boolean", BT_TYPE_BOOLEAN},
    {"null",    BT_TYPE_NULL   },
};
enum { N_TYPES = sizeof(TYPES) / sizeof(TYPES[0]) };

static uint32_t type_named(const json_t *name)
{
    const char *text = json_string_value(name);

    for (size_t i = 0; text != NULL && i < N_TYPES; i++)
        if (strcmp(TYPES[i].name, text) == 0) return TYPES[i].types;
    return 0;
}

uint32_t bt_schema_types(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    const json_t *type  = json_object_get(schema, "type"), *one;
    uint32_t      types = 0;
    size_t        i;

    if (type == NULL) return BT_TYPE_ALL;
    if (!bt_schema_step(s, at, json_array_size(type) / N_TYPES)) return 0;
    if (!json_is_array(type)) types = type_named(type);
    if (types == 0 && !json_is_array(type))
        bt_schema_unexpected(s, schema, "type", at, "the name of a type");
    json_array_foreach(type, i, one)
    {
        if (type_named(one) == 0)
            bt_schema_unexpected(s, schema, "type", at, "an array of names of types");
        types |= type_named(one);
    }
    return json_is_true(json_object_get(schema, "nullable")) ? types | BT_TYPE_NULL : types;
}

static void set(bt_schema *s, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) bt_parts_no_memory(s->g);
}

json_t *bt_schema_type_names(bt_schema *s, uint32_t types)
{
    json_t *array = bt_schema_owned(s, json_array());

    if ((types & BT_TYPE_NUMBER) != 0) types &= ~(uint32_t)BT_TYPE_INTEGER;
    for (size_t i = 0; i < N_TYPES; i++)
        if ((types & (TYPES[i].types == NUMERIC ? BT_TYPE_NUMBER : TYPES[i].types)) != 0 &&
            json_array_append_new(array, json_string(TYPES[i].name)) != 0)
            bt_parts_no_memory(s->g);
    return array;
}

static void set_types(bt_schema *s, json_t *into, uint32_t types)
{
    set(s, into, "type", bt_schema_type_names(s, types));
}

/* ---- two values of a keyword */

static bool is_same(bt_schema *s, const json_t *a, const json_t *b, const bt_schema_at *at)
{
    return bt_schema_step(s, at, bt_schema_weight(a)) && json_equal(a, b);
}

bool bt_schema_only_lists(const json_t *schema)
{
    static const char *const lists[] = {"type", "enum", "const", NULL};
    const char              *keyword;
    json_t                  *value;

    json_object_foreach((json_t *)schema, keyword, value)
    {
        bool lists_it = is_one_of(keyword, lists) || bt_schema_is_not_listed(keyword, value);

        if (kind_of(keyword, value) != 0 && !lists_it) return false;
    }
    return json_is_object(schema);
}

/* At once, so that it is known where nothing satisfies both. */
static json_t *both_lists_of_values(bt_schema *s, json_t *a, json_t *b, const bt_schema_at *at)
{
    json_t *all = bt_schema_owned(s, json_object());

    bt_schema_merge(s, all, a, at);
    bt_schema_merge(s, all, b, at);
    if (s->g->st != BT_OK || !bt_schema_is_empty(s, all, at)) return all;
    json_decref(all);
    return json_false();
}

/* Where `a` came of this, its list is made longer: many do not come to lie in each other. */
static json_t *both(bt_schema *s, json_t *a, json_t *b, const bt_schema_at *at)
{
    json_t *known = json_object_size(a) == 1 ? json_object_get(a, "allOf") : NULL;
    json_t *all   = NULL;

    if (json_is_false(a) || json_is_false(b)) return json_false();
    if (bt_schema_only_lists(a) && bt_schema_only_lists(b))
        return both_lists_of_values(s, a, b, at);
    if (!bt_schema_step(s, at, json_array_size(known))) return NULL;
    all = json_array_size(known) > 0 ? bt_schema_copy(s, known) : json_pack("[O]", a);
    if (json_array_append(all, b) != 0) bt_parts_no_memory(s->g);
    return bt_schema_owned(s, json_pack("{s:o}", "allOf", all));
}

static json_t *both_properties(bt_schema *s, json_t *a, json_t *b, const bt_schema_at *at)
{
    json_t     *all = bt_schema_copy(s, a);
    const char *name;
    json_t     *one;

    json_object_foreach(b, name, one)
    {
        json_t *known = json_object_get(a, name);

        if (s->g->st != BT_OK) break;
        set(s, all, name,
            known == NULL || is_same(s, known, one, at) ? json_incref(one)
                                                        : both(s, known, one, at));
    }
    return all;
}

static json_t *both_lists(bt_schema *s, json_t *a, json_t *b)
{
    json_t *all = bt_schema_copy(s, a);

    if (json_array_extend(all, b) != 0) bt_parts_no_memory(s->g);
    return all;
}

/* Beside an anyOf or oneOf that is there already, another one waits in allOf until a branch of the
 * first is taken: then few are taken with it where most contradict it. */
static void wait_beside(bt_schema *s, json_t *into, const char *keyword, json_t *value)
{
    json_t *waiting = json_object_get(into, "allOf");

    if (waiting == NULL) {
        waiting = bt_schema_owned(s, json_array());
        set(s, into, "allOf", waiting);
    }
    if (s->g->st == BT_OK && json_array_append_new(waiting, json_pack("{sO}", keyword, value)) != 0)
        bt_parts_no_memory(s->g);
}

bool bt_schema_has_waiting(const json_t *schema)
{
    const json_t *all = json_object_get(schema, "allOf"), *one;
    size_t        i;

    if (json_object_get(schema, "anyOf") == NULL && json_object_get(schema, "oneOf") == NULL)
        return false;
    json_array_foreach(all, i, one) if (json_object_size(one) != 1 ||
                                        (json_object_get(one, "anyOf") == NULL &&
                                         json_object_get(one, "oneOf") == NULL)) return false;
    return json_array_size(all) > 0;
}

static json_t *common_values(bt_schema *s, json_t *a, json_t *b, const bt_schema_at *at)
{
    json_t *all = bt_schema_owned(s, json_array()), *x, *y;
    size_t  i, k;

    json_array_foreach(a, i, x)
    {
        if (!bt_schema_step(s, at, json_array_size(b) * bt_schema_weight(x))) break;
        json_array_foreach(b, k, y)
        {
            if (!bt_schema_is_equal(x, y)) continue;
            if (json_array_append(all, x) != 0) bt_parts_no_memory(s->g);
            break;
        }
    }
    return all;
}

bool bt_schema_is_less(const json_t *a, const json_t *b)
{
    return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) < json_integer_value(b)
                                                    : json_number_value(a) < json_number_value(b);
}

/* The one value that says what both say, owned; NULL: there is none, or an error. */
static json_t *combine(bt_schema *s, const char *keyword, json_t *a, json_t *b,
                       const bt_schema_at *at)
{
    static const char *const at_least[] = {"minimum",  "exclusiveMinimum", "minLength",
                                           "minItems", "minProperties",    NULL};
    static const char *const at_most[]  = {"maximum",  "exclusiveMaximum", "maxLength",
                                           "maxItems", "maxProperties",    NULL};
    static const char *const schemas[]  = {"items", "propertyNames", "additionalProperties", NULL};
    bool                     objects    = json_is_object(a) && json_is_object(b);
    bool                     arrays     = json_is_array(a) && json_is_array(b);
    bool                     none       = json_is_false(a) || json_is_false(b);

    if (is_same(s, a, b, at)) return json_incref(a);
    if (json_is_number(a) && json_is_number(b)) {
        if (is_one_of(keyword, at_least)) return json_incref(bt_schema_is_less(a, b) ? b : a);
        if (is_one_of(keyword, at_most)) return json_incref(bt_schema_is_less(a, b) ? a : b);
    }
    if ((strcmp(keyword, "properties") == 0 || strcmp(keyword, "patternProperties") == 0) &&
        objects)
        return both_properties(s, a, b, at);
    if (strcmp(keyword, "required") == 0 && arrays) return both_lists(s, a, b);
    if (strcmp(keyword, "const") == 0 && bt_schema_is_equal(a, b)) return json_incref(a);
    if (strcmp(keyword, "enum") == 0 && arrays) return common_values(s, a, b, at);
    if (bt_schema_is_not_listed(keyword, a))
        return bt_schema_owned(
            s, json_pack("{so}", "enum",
                         both_lists(s, json_object_get(a, "enum"), json_object_get(b, "enum"))));
    if (strcmp(keyword, "pattern") == 0) return bt_schema_both_patterns(s, a, b, at);
    if (strcmp(keyword, "uniqueItems") == 0) return json_incref(json_is_true(a) ? a : b);
    if (!is_one_of(keyword, schemas)) return NULL;
    if (bt_schema_says_nothing(a) || bt_schema_says_nothing(b))
        return json_incref(bt_schema_says_nothing(a) ? b : a);
    return objects || none ? both(s, a, b, at) : NULL;
}

/* Pieces of work of going through its members or items: names may be long. */
static size_t n_within(const json_t *v)
{
    size_t      n = json_object_size(v) + json_array_size(v);
    const char *name;
    json_t     *one;

    json_object_foreach((json_t *)v, name, one) n += strlen(name) / 64;
    return n;
}

static void merge_keyword(bt_schema *s, json_t *into, const char *keyword, json_t *value,
                          const bt_schema_at *at)
{
    json_t *known = json_object_get(into, keyword), *all;

    if (known == NULL) {
        set(s, into, keyword, json_incref(value));
        return;
    }
    if (!bt_schema_step(s, at, n_within(known) + n_within(value))) return;
    all = combine(s, keyword, known, value, at);
    if (all != NULL)
        set(s, into, keyword, all);
    else if (strcmp(keyword, "const") == 0)
        set_types(s, into, 0);
    else if (strcmp(keyword, "anyOf") == 0 || strcmp(keyword, "oneOf") == 0)
        wait_beside(s, into, keyword, value);
    else
        bt_schema_refuse(s, at, "\"%s\" differs from the one that must hold with it: not supported",
                         keyword);
}

/* ---- two schemas */

/* Whether `b` has one of a keyword that `a` has not; one that must not come is no matter. */
static bool has_more(const json_t *a, const json_t *b, const char *keyword)
{
    const json_t *names = json_object_get(a, keyword);
    const char   *name;
    json_t       *value;

    json_object_foreach(json_object_get(b, keyword), name,
                        value) if (json_object_get(names, name) == NULL &&
                                   !json_is_false(value)) return true;
    return false;
}

/* additionalProperties that says something; NULL: there is none. */
static json_t *closing(const json_t *schema)
{
    json_t *additional = json_object_get(schema, "additionalProperties");

    return additional == NULL || bt_schema_says_nothing(additional) ? NULL : additional;
}

/* Whether additionalProperties of `a` would speak of keys of `b` that only patterns tell. */
static bool closes_patterns(const json_t *a, const json_t *b)
{
    return closing(a) != NULL && (has_more(a, b, "patternProperties") ||
                                  (json_object_size(json_object_get(a, "patternProperties")) != 0 &&
                                   has_more(a, b, "properties")));
}

/* The properties of `b`, owned, of which additionalProperties of `a` speaks where it does not name
 * them; NULL: they are as they were. */
static json_t *closed_properties(bt_schema *s, const json_t *a, const json_t *b,
                                 const bt_schema_at *at)
{
    json_t     *properties = json_object_get(b, "properties"), *additional = closing(a), *all, *one;
    const char *name;

    if (additional == NULL || !json_is_object(properties) || !has_more(a, b, "properties"))
        return NULL;
    all = bt_schema_copy(s, properties);
    json_object_foreach(properties, name, one)
    {
        if (json_object_get(json_object_get(a, "properties"), name) != NULL) continue;
        if (!bt_schema_step(s, at, 1 + json_object_size(one) + json_object_size(additional))) break;
        set(s, all, name, both(s, one, additional, at));
    }
    return all;
}

/* Whether items of `a` may speak of other items than those of `b` do. */
static bool shifts(const json_t *a, const json_t *b)
{
    bool prefix =
        json_object_get(a, "prefixItems") != NULL || json_is_array(json_object_get(a, "items"));

    return prefix &&
           (json_object_get(b, "items") != NULL || json_object_get(b, "prefixItems") != NULL ||
            json_object_get(b, "additionalItems") != NULL);
}

static size_t n_members(const json_t *schema)
{
    return json_object_size(json_object_get(schema, "properties")) +
           json_object_size(json_object_get(schema, "patternProperties"));
}

static void check_pair(bt_schema *s, const json_t *into, const json_t *from, const bt_schema_at *at)
{
    if (!bt_schema_step(s, at, n_members(into) + n_members(from))) return;
    if (closes_patterns(into, from) || closes_patterns(from, into))
        bt_schema_refuse(s, at,
                         "\"additionalProperties\" beside \"patternProperties\" and properties of "
                         "another schema: not supported");
    if (shifts(into, from) || shifts(from, into))
        bt_schema_refuse(s, at, "\"prefixItems\" beside items of another schema: not supported");
}

static void merge_types(bt_schema *s, json_t *into, const json_t *from, const bt_schema_at *at)
{
    if (json_object_get(from, "type") == NULL) return;
    set_types(s, into, bt_schema_types(s, into, at) & bt_schema_types(s, from, at));
}

/* Whether it has been told of no type: nothing satisfies it, whatever else it says. */
static bool has_no_type(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");

    return json_is_array(type) && json_array_size(type) == 0;
}

/* Before what else it says, which is no matter where no value remains. */
static void merge_values(bt_schema *s, json_t *into, const json_t *from, const bt_schema_at *at)
{
    static const char *const listing[] = {"enum", "const"};

    for (size_t i = 0; i < sizeof(listing) / sizeof(listing[0]); i++) {
        json_t *value = json_object_get(from, listing[i]);

        if (value != NULL) merge_keyword(s, into, listing[i], value, at);
    }
    if (bt_schema_lists_none(s, into, bt_schema_types(s, into, at), at)) set_types(s, into, 0);
}

/* Whether a name is required of a property that may not come. */
static bool misses(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required   = json_object_get(schema, "required"), *one;
    size_t        i;

    if (!bt_schema_step(s, at, json_array_size(required))) return false;
    json_array_foreach(required, i, one)
    {
        const char *name = json_string_value(one);

        if (name != NULL && json_is_false(json_object_get(properties, name))) return true;
    }
    return false;
}

bool bt_schema_is_empty(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    uint32_t types = bt_schema_types(s, schema, at);

    return types == 0 || bt_schema_lists_none(s, schema, types, at) ||
           (types == BT_TYPE_OBJECT && misses(s, schema, at));
}

void bt_schema_merge_all_of(bt_schema *s, json_t *into, const json_t *from, const bt_schema_at *at)
{
    const json_t *array = json_object_get(from, "allOf"), *one;
    bt_schema_at  here  = {.up = at, .key = "allOf"};
    size_t        i;

    if (!json_is_array(array)) bt_schema_unexpected(s, from, "allOf", at, "an array of schemas");
    json_array_foreach(array, i, one)
        bt_schema_merge(s, into, one, &(bt_schema_at){.up = &here, .index = i});
}

/* Of either schema with what additionalProperties of the other one says of them: before those are
 * merged. */
static void merge_properties(bt_schema *s, json_t *into, const json_t *from, const bt_schema_at *at)
{
    json_t *mine, *theirs, *properties = json_object_get(from, "properties");

    check_pair(s, into, from, at);
    if (s->g->st != BT_OK) return;
    mine   = closed_properties(s, from, into, at);
    theirs = closed_properties(s, into, from, at);
    if (mine != NULL) set(s, into, "properties", mine);
    if (theirs != NULL) properties = theirs;
    if (properties != NULL && s->g->st == BT_OK)
        merge_keyword(s, into, "properties", properties, at);
    json_decref(theirs);
}

/* First what it says itself, so that what it refers to is held against that. */
static void merge_object(bt_schema *s, json_t *into, const json_t *from, const char *except,
                         const bt_schema_at *at)
{
    static const char *const all_of[] = {"allOf", NULL}, *const either[] = {"anyOf", "oneOf", NULL};
    bool          waits = bt_schema_has_waiting(from);
    const json_t *ref   = json_object_get(from, "$ref");
    const char   *keyword;
    json_t       *value;

    bt_schema_check_keywords(s, from, at);
    merge_types(s, into, from, at);
    merge_values(s, into, from, at);
    if (has_no_type(into)) return;
    merge_properties(s, into, from, at);
    json_object_foreach((json_t *)from, keyword, value)
    {
        static const char *const elsewhere[] = {"type", "enum",  "const", "properties",
                                                "$ref", "allOf", NULL};

        if (s->g->st != BT_OK || has_no_type(into)) return;
        if (bt_schema_is_keyword(keyword, value) && !is_one_of(keyword, elsewhere) &&
            !is_condition(keyword, value) && strcmp(keyword, except) != 0)
            merge_keyword(s, into, keyword, value, at);
    }
    if (ref != NULL && strcmp(except, "$ref") != 0)
        bt_schema_merge(s, into, bt_schema_resolve(s, ref, at), at);
    if (json_object_get(from, "allOf") != NULL && !is_one_of(except, waits ? either : all_of))
        bt_schema_merge_all_of(s, into, from, at);
    json_object_foreach((json_t *)from, keyword,
                        value) if (is_condition(keyword, value) && !has_no_type(into))
        bt_schema_merge_condition(s, into, from, keyword, at);
}

void bt_schema_merge(bt_schema *s, json_t *into, const json_t *from, const bt_schema_at *at)
{
    char found[BT_JSON_SHOW_BYTES];

    if (bt_schema_enter(s, at) && !has_no_type(into)) {
        if (json_is_object(from))
            merge_object(s, into, from, "", at);
        else if (json_is_false(from))
            set_types(s, into, 0);
        else if (!json_is_true(from))
            bt_schema_refuse(s, at, "expected a schema, found %s",
                             bt_json_show(from, found, sizeof(found)));
    }
    bt_schema_leave(s);
}

json_t *bt_schema_without(bt_schema *s, const json_t *schema, const char *keyword,
                          const bt_schema_at *at)
{
    json_t *copy = bt_schema_made(s, json_object());

    if (copy != NULL) merge_object(s, copy, schema, keyword, at);
    return copy;
}
