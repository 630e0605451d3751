/* model/grammar/schema_object.c - objects of a JSON schema.
 *
 * Members come in the order in which the schema names them; which of them came is known only as
 * far as their number, up to one, which is what a comma asks, or to what minProperties and
 * maxProperties ask.  So there is a row of nodes for each number, with a step per property:
 *
 *   row 0 - member 0 -> row 1      row 0 -> row 0   where it may be missing
 *   row 1 - , member 1 -> row 2    row 1 -> row 1
 *
 * The last row stays where it is with a member more; where no more may come it has no step.
 * Members without a name of their own come last.  propertyNames that lists names makes them
 * members; else it says how the others' keys look, as patternProperties does. */
#include <string.h>

#include "core/alloc.h"
#include "model/grammar/schema.h"

/* What an object's keywords come to. */
typedef struct {
    json_t       *members;    /* owned: an object, the schema of each name */
    json_t       *required;   /* owned: an object, its keys are the names */
    const json_t *properties; /* those of them that the schema calls so, or NULL */
    const json_t *additional; /* the schema of other members, or NULL: there are none */
    const json_t *key;        /* that of their keys, or NULL: any key that is not named */
    const char   *pattern;    /* that of patternProperties which they follow, or NULL */
    json_t       *patterns;   /* those that they follow where it is not so simple, or NULL */
    const json_t *rest;       /* then: the schema of those that none matches, or NULL */
    uint32_t      min, max, n_members, n_required; /* members: those that may come */
    uint32_t      last;                            /* row */
} members;

static void members_fini(members *m)
{
    json_decref(m->members);
    json_decref(m->required);
}

static void read_required(bt_schema *s, members *m, const json_t *schema, const bt_schema_at *at)
{
    const json_t *array = json_object_get(schema, "required"), *one;
    const json_t *other = m->additional;
    size_t        i;

    if (array != NULL && !json_is_array(array))
        bt_schema_unexpected(s, schema, "required", at, "an array of names");
    if (json_object_get(schema, "additionalProperties") == NULL) other = json_true();
    json_array_foreach(array, i, one)
    {
        const char *name = json_string_value(one);

        if (!bt_schema_step(s, at, 1)) return;
        if (name == NULL) {
            bt_schema_unexpected(s, schema, "required", at, "an array of names");
            return;
        }
        if (json_object_set_new(m->required, name, json_true()) != 0) bt_parts_no_memory(s->g);
        if (json_object_get(m->members, name) != NULL) continue;
        if (other == NULL) other = json_false(); /* no object does */
        if (json_object_set(m->members, name, (json_t *)other) != 0) bt_parts_no_memory(s->g);
    }
}

/* Members with a name that may come. */
static uint32_t count_named(json_t *named)
{
    uint32_t    n = 0;
    const char *name;
    json_t     *value;

    json_object_foreach(named, name, value) n += !json_is_false(value);
    return n;
}

/* Others may come, whom nothing keeps out, where minProperties asks for more than have a name. */
static void open_for_more(bt_schema *s, members *m, const json_t *schema, const bt_schema_at *at)
{
    if (json_object_get(schema, "additionalProperties") == NULL &&
        bt_schema_count(s, schema, "minProperties", 0, at) > count_named(m->members))
        m->additional = json_true();
}

static void check_counts(bt_schema *s, members *m, const json_t *schema, const bt_schema_at *at)
{
    m->n_members  = count_named(m->members);
    m->n_required = (uint32_t)json_object_size(m->required);
    m->min        = bt_schema_count(s, schema, "minProperties", 0, at);
    m->max        = bt_schema_count(s, schema, "maxProperties", BT_UNLIMITED, at);
    if (m->min <= m->n_required) m->min = 0;
    if (m->additional != NULL && m->min > m->n_members + 1) /* other keys might be the same */
        bt_schema_refuse(s, at,
                         "\"minProperties\" above the number of properties by more than one is not "
                         "supported");
    m->last = m->max < m->n_members ? m->max : m->min > 1 ? m->min : 1;
}

/* NULL: there are none. */
static json_t *patterns_of(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    json_t *patterns = json_object_get(schema, "patternProperties");

    if (patterns != NULL && !json_is_object(patterns))
        bt_schema_unexpected(s, schema, "patternProperties", at, "an object of schemas");
    if (json_object_size(patterns) > BT_SCHEMA_MOST_PATTERNS)
        bt_schema_refuse(s, at, "more than %d of \"patternProperties\" is not supported",
                         (int)BT_SCHEMA_MOST_PATTERNS);
    return json_object_size(patterns) == 0 || s->g->st != BT_OK ? NULL : patterns;
}

static void read_patterns(bt_schema *s, members *m, const json_t *schema, const bt_schema_at *at)
{
    json_t       *patterns = patterns_of(s, schema, at);
    const json_t *rest     = json_object_get(schema, "additionalProperties");
    json_t       *value    = json_object_iter_value(json_object_iter(patterns));
    bt_schema_at  here     = {.up = at, .key = "patternProperties"};
    bool          held;

    if (patterns == NULL) return;
    if (json_is_false(rest) || bt_schema_says_nothing(rest)) rest = NULL;
    held = json_object_size(m->members) != 0 &&
           bt_schema_hold_patterns(s, m->members, m->properties, patterns, &here);
    if (held || rest != NULL || json_object_size(patterns) > 1) {
        m->patterns   = patterns;
        m->rest       = rest;
        m->additional = json_true();
        return;
    }
    m->pattern    = json_object_iter_key(json_object_iter(patterns));
    m->key        = bt_schema_made(s, json_pack("{ssss}", "type", "string", "pattern", m->pattern));
    m->additional = json_is_false(value) ? NULL : value;
}

/* Only what is `allowed` remains, named or not; no object has another one that is required. */
static void allow(bt_schema *s, members *m, const json_t *allowed)
{
    json_t     *kept = bt_schema_owned(s, json_object());
    const char *name;
    json_t     *value;

    json_object_foreach(m->members, name, value)
    {
        bool is_allowed = json_object_get(allowed, name) != NULL;

        if (!is_allowed && json_object_get(m->required, name) == NULL) continue;
        if (json_object_set(kept, name, is_allowed ? value : json_false()) != 0)
            bt_parts_no_memory(s->g);
    }
    json_object_foreach((json_t *)allowed, name, value)
    {
        if (m->additional == NULL || json_object_get(kept, name) != NULL) continue;
        if (json_object_set(kept, name, (json_t *)m->additional) != 0) bt_parts_no_memory(s->g);
    }
    json_decref(m->members);
    m->members    = kept;
    m->additional = NULL;
}

/* Of enum and const; no name at all where a key would have to be no string. */
static void allow_listed(bt_schema *s, members *m, const json_t *key, const bt_schema_at *at)
{
    const json_t *values  = json_object_get(key, "enum"), *one;
    uint32_t      types   = bt_schema_types(s, key, at);
    json_t       *allowed = bt_schema_owned(s, json_object());

    if (types != 0 &&
        (json_object_get(key, "anyOf") != NULL || json_object_get(key, "oneOf") != NULL))
        bt_schema_refuse(s, at, "enum or const beside anyOf or oneOf is not supported");
    if (values != NULL && !json_is_array(values))
        bt_schema_unexpected(s, key, "enum", at, "an array of values");
    for (size_t i = 0; (one = bt_schema_listed(key, i)) != NULL && s->g->st == BT_OK; i++)
        if (bt_schema_lists(s, key, types, one, at) && bt_schema_keeps_bounds(s, key, one, at) &&
            json_object_set_new(allowed, json_string_value(one), json_true()) != 0)
            bt_parts_no_memory(s->g);
    allow(s, m, allowed);
    json_decref(allowed);
}

static void read_names(bt_schema *s, members *m, const json_t *schema, const bt_schema_at *at)
{
    const json_t *names = json_object_get(schema, "propertyNames");
    bt_schema_at  here  = {.up = at, .key = "propertyNames"};
    json_t       *key;

    if (names == NULL) return;
    key = bt_schema_made(s, json_pack("{ss}", "type", "string"));
    bt_schema_merge(s, key, names, &here);
    if (s->g->st != BT_OK) return;
    if (json_object_get(key, "enum") != NULL || json_object_get(key, "const") != NULL ||
        bt_schema_types(s, key, &here) == 0) {
        if (m->key != NULL || m->patterns != NULL)
            bt_schema_refuse(s, at,
                             "\"propertyNames\" beside \"patternProperties\" is not supported");
        allow_listed(s, m, key, &here);
    } else if (bt_schema_n_keywords(key) > 1) {
        if (m->key != NULL || m->patterns != NULL || json_object_size(m->members) != 0)
            bt_schema_refuse(s, at,
                             "\"propertyNames\" beside named or patterned ones is not supported, "
                             "but for an enum of names");
        m->key = key;
    }
}

/* NULL: there is no such keyword. */
static json_t *properties_of(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    json_t *named = json_object_get(schema, "properties");

    if (named != NULL && !json_is_object(named))
        bt_schema_unexpected(s, schema, "properties", at, "an object of schemas");
    return named;
}

static members read_members(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    json_t *named = properties_of(s, schema, at);
    members m     = {.properties = named,
                     .additional = json_object_get(schema, "additionalProperties")};

    if (m.additional == NULL && named == NULL) m.additional = json_true();
    if (json_is_false(m.additional)) m.additional = NULL;
    m.required = bt_schema_owned(s, json_object());
    m.members =
        json_is_object(named) ? bt_schema_copy(s, named) : bt_schema_owned(s, json_object());
    if (bt_schema_step(s, at, json_object_size(named))) {
        read_required(s, &m, schema, at);
        open_for_more(s, &m, schema, at);
        read_patterns(s, &m, schema, at);
        read_names(s, &m, schema, at);
        check_counts(s, &m, schema, at);
    }
    return m;
}

/* The schema of a member's value, in the style that the object has. */
static bt_part read_value(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    bt_schema_place place = s->place;
    bt_part         value;

    if (place == BT_SCHEMA_JSON) return bt_schema_read(s, schema, at);
    s->place = BT_SCHEMA_VALUE;
    value    = bt_style_end(s, bt_schema_read(s, schema, at));
    s->place = place;
    return value;
}

static bt_part next_member(bt_schema *s, bt_part member)
{
    return s->place == BT_SCHEMA_JSON ? bt_schema_next(s, member) : bt_style_next(s, member);
}

bt_part bt_schema_colon(bt_schema *s)
{
    return bt_part_then(s->g, bt_part_text(s->g, ":"), bt_schema_call(s, BT_COMMON_SPACE));
}

/* The rule of a member with a name, which `required` or propertyNames may have given it. */
static uint32_t read_member(bt_schema *s, const members *m, const char *name, const json_t *schema,
                            const bt_schema_at *at)
{
    bool         is_property = json_object_get(m->properties, name) != NULL;
    bt_schema_at here  = {.up = at, .key = is_property ? "properties" : "additionalProperties"};
    bt_schema_at below = {.up = &here, .key = name};
    uint32_t     rule  = bt_rule_new(s->g, NULL);
    bt_part      key;

    if (s->place != BT_SCHEMA_JSON)
        key = bt_style_key(s, name, &below);
    else
        key =
            bt_part_then(s->g, bt_schema_string_literal(s, name, strlen(name)), bt_schema_colon(s));
    key = bt_part_then(s->g, key, read_value(s, schema, is_property ? &below : &here));
    bt_rule_is(s->g, rule, key);
    return rule;
}

static bt_part other_key(bt_schema *s, const members *m, const bt_schema_at *at)
{
    bt_part key;

    if ((m->key != NULL || m->patterns != NULL) && s->place != BT_SCHEMA_JSON)
        bt_schema_refuse(s, at, "in the style %s is not supported", s->style->name);
    if (s->place != BT_SCHEMA_JSON) return bt_style_other_key(s, m->members);
    if (m->key != NULL)
        key = bt_schema_read(s, m->key, at);
    else
        key = json_object_size(m->members) == 0 ? bt_schema_call(s, BT_COMMON_STRING)
                                                : bt_schema_other_keys(s, m->members);
    return bt_part_then(s->g, key, bt_schema_colon(s));
}

/* The rule of a member without a name of its own. */
static uint32_t read_other(bt_schema *s, const members *m, const bt_schema_at *at)
{
    bt_schema_at patterns   = {.up = at, .key = "patternProperties"};
    bt_schema_at pattern    = {.up = &patterns, .key = m->pattern};
    bt_schema_at names      = {.up = at, .key = "propertyNames"};
    bt_schema_at additional = {.up = at, .key = "additionalProperties"};
    bool         patterned  = m->pattern != NULL;
    uint32_t     rule       = bt_rule_new(s->g, NULL);
    bt_part      key, value;

    if (m->patterns != NULL && s->place == BT_SCHEMA_JSON) {
        bt_rule_is(s->g, rule, bt_schema_patterned(s, m->patterns, m->rest, m->members, &patterns));
        return rule;
    }
    key   = other_key(s, m, patterned ? &pattern : &names);
    value = read_value(s, m->additional, patterned ? &pattern : &additional);
    bt_rule_is(s->g, rule, bt_part_then(s->g, key, value));
    return rule;
}

/* Of as many members as there may be: one that has a row's number of them leads to the next. */
static void add_member(bt_schema *s, const members *m, uint32_t *rows, uint32_t rule, bool required)
{
    bt_parts *g    = s->g;
    bool      full = m->last == m->max; /* then the last row takes no more */
    uint32_t  before, kept = 0;

    for (uint32_t k = 0; k <= m->last && g->st == BT_OK; k++) {
        before  = kept; /* the row before, behind this member */
        kept    = rows[k];
        rows[k] = bt_part_node(g);
        if (!required) bt_part_join(g, kept, rows[k]);
        if (k > 0)
            bt_part_way(g, before,
                        k == 1 ? bt_rule_call(g, rule) : next_member(s, bt_rule_call(g, rule)),
                        rows[k]);
    }
    if (m->last > 0 && !full)
        bt_part_way(g, kept, next_member(s, bt_rule_call(g, rule)), rows[m->last]);
}

/* From the start to where the named ones are through. */
static void add_named(bt_schema *s, const members *m, uint32_t *rows, const bt_schema_at *at)
{
    const char *name;
    json_t     *schema;

    json_object_foreach(m->members, name, schema)
    {
        bool required = json_object_get(m->required, name) != NULL;

        if (s->g->st != BT_OK || !bt_schema_step(s, at, m->last)) return;
        if (json_is_false(schema) && !required) continue;
        add_member(s, m, rows, read_member(s, m, name, schema, at), required);
    }
}

/* Other members behind k named ones; done: the end of an object that has any.  They count as one
 * towards minProperties. */
static void add_others(bt_schema *s, const members *m, uint32_t k, uint32_t row, uint32_t rule,
                       uint32_t done)
{
    bt_parts *g     = s->g;
    uint32_t  named = m->max < m->n_members ? k : m->n_members;
    uint32_t  least = k < m->min, most = m->max == BT_UNLIMITED ? m->max : m->max - named;
    bt_part   more;

    if (k + 1 < m->min || most < least) return;
    if (k > 0) {
        more = next_member(s, bt_rule_call(g, rule));
        bt_part_way(g, row, bt_part_repeat(g, more, least, most), done);
    } else if (most > 0) {
        more = next_member(s, bt_rule_call(g, rule));
        more = bt_part_repeat(g, more, 0, most == BT_UNLIMITED ? most : most - 1);
        bt_part_way(g, row, bt_part_then(g, bt_rule_call(g, rule), more), done);
    }
}

/* The members of an object that has any. */
static bt_part read_body(bt_schema *s, const members *m, const bt_schema_at *at)
{
    bt_parts *g    = s->g;
    bt_part   body = {bt_part_node(g), bt_part_node(g)};
    uint32_t *rows = bt_calloc((size_t)m->last + 1, sizeof(*rows)), rule;

    if (rows == NULL) {
        bt_parts_no_memory(g);
        return body;
    }
    rows[0] = body.start;
    for (uint32_t k = 1; k <= m->last && g->st == BT_OK; k++)
        rows[k] = bt_part_node(g);
    add_named(s, m, rows, at);
    for (uint32_t k = m->min > 1 ? m->min : 1; k <= m->last; k++)
        bt_part_join(g, rows[k], body.end);
    if (m->additional != NULL && g->st == BT_OK) {
        rule = read_other(s, m, at);
        for (uint32_t k = 0; k <= m->last && g->st == BT_OK; k++)
            add_others(s, m, k, rows[k], rule, body.end);
    }
    bt_free(rows);
    return body;
}

bt_part bt_schema_object(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    bt_parts *g     = s->g;
    members   m     = read_members(s, schema, at);
    bt_part   inner = bt_part_never(g), body;

    if (g->st == BT_OK && m.min <= m.n_members + 1) { /* else there are not so many */
        body = bt_part_then(g, bt_schema_call(s, BT_COMMON_SPACE), read_body(s, &m, at));
        bt_part_add(g, inner, body);
        if (m.min == 0 && m.n_required == 0) bt_part_add(g, inner, bt_part_nothing(g));
        inner = bt_part_then(g, inner, bt_schema_call(s, BT_COMMON_SPACE));
    }
    members_fini(&m);
    if (s->place != BT_SCHEMA_JSON) return inner;
    return bt_part_between(g, "{", inner, "}");
}

json_t *bt_schema_of_members(bt_schema *s, const json_t *schema, const json_t *value,
                             const bt_schema_at *at)
{
    const json_t *named = properties_of(s, schema, at), *own;
    const json_t *other = json_object_get(schema, "additionalProperties");
    json_t       *said  = bt_schema_owned(s, json_object()), *patterns, *one;
    bt_schema_at  here  = {.up = at, .key = "patternProperties"};
    const char   *name;

    json_object_foreach((json_t *)value, name, one)
    {
        if (!bt_schema_step(s, at, 1)) break;
        own = json_object_get(named, name);
        if (own == NULL) own = other == NULL ? json_true() : other;
        if (json_object_set(said, name, (json_t *)own) != 0) bt_parts_no_memory(s->g);
    }
    patterns = patterns_of(s, schema, at);
    if (patterns != NULL) bt_schema_hold_patterns(s, said, named, patterns, &here);
    return said;
}
