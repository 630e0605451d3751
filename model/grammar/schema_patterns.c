/* model/grammar/schema_patterns.c - patternProperties beside named properties, several of them, and
 * a schema of the members that none of them matches.
 *
 * A name that patterns match must satisfy their schemas too.  The other keys fall into classes, one
 * for each set of patterns that a key may match and that no other key of the object is: the keys
 * that match these and none of the others, which an automaton tells (conditions.c). */
#include <string.h>

#include "model/grammar/regex.h"
#include "model/grammar/schema.h"

enum { MOST_CONDITIONS = BT_SCHEMA_MOST_PATTERNS + 2 };

_Static_assert((int)MOST_CONDITIONS <= (int)BT_MOST_CONDITIONS, "patterns, names and any key");

/* In JSON: with its quotes. */
static void read_regex(bt_schema *s, bt_condition *c, const char *regex, bool in_json,
                       const bt_schema_at *at)
{
    size_t n = strlen(regex);

    c->is = c->barred ? bt_read_barred_regex(&c->g, regex, n, in_json)
                      : bt_read_regex(&c->g, regex, n, false, in_json);
    if (c->g.st == BT_ERR_INVALID_ARG) bt_schema_refuse(s, at, "%s", c->g.why);
    bt_condition_read(s->g, c);
    if (in_json) c->is = bt_part_between(&c->g, "\"", c->is, "\"");
}

/* *grammar_out is NULL where no text matches, or there is an error. */
static void pack(bt_schema *s, const bt_condition *c, bt_grammar **grammar_out,
                 const bt_schema_at *at)
{
    char      why[BT_GRAMMAR_WHY_BYTES];
    bt_status st = BT_OK;

    *grammar_out = NULL;
    if (s->g->st != BT_OK) return;
    if (c->g.st == BT_ERR_INVALID_ARG) bt_schema_refuse(s, at, "%s", c->g.why);
    st = bt_grammar_pack(&c->g, c->is, grammar_out, why);
    if (st == BT_ERR_NO_MEMORY) bt_parts_no_memory(s->g);
}

/* ---- texts that are there */

bt_matcher *bt_schema_matcher(bt_schema *s, const char *regex, bool barred, const bt_schema_at *at)
{
    bt_condition c       = {.barred = barred};
    bt_grammar  *grammar = NULL;
    bt_matcher  *m       = NULL;
    bt_status    st      = BT_OK;

    read_regex(s, &c, regex, false, at);
    pack(s, &c, &grammar, at);
    if (grammar != NULL) st = bt_matcher_create(grammar, NULL, &m);
    if (st != BT_OK) bt_grammar_destroy(grammar);
    if (st == BT_ERR_NO_MEMORY) bt_parts_no_memory(s->g);
    if (st == BT_ERR_UNSUPPORTED) bt_schema_refuse(s, at, "it comes to too many parts");
    bt_parts_fini(&c.g);
    return m;
}

bool bt_schema_matches(bt_schema *s, bt_matcher *m, const char *text, const bt_schema_at *at)
{
    uint32_t  state = BT_STATE_DEAD;
    bt_status st    = BT_OK;

    if (m == NULL || !bt_schema_step(s, at, 1 + strlen(text))) return false;
    st = bt_matcher_step(m, bt_matcher_start(m), text, strlen(text), &state);
    bt_regex_worked(s->g, bt_matcher_work(m));
    if (st == BT_ERR_NO_MEMORY) bt_parts_no_memory(s->g);
    if (st == BT_ERR_UNSUPPORTED) bt_schema_refuse(s, at, "it comes to too many parts");
    return st == BT_OK && state != BT_STATE_DEAD && bt_matcher_accepts(m, state);
}

/* What is said of a name: `own` (NULL: nothing) and what the patterns say that match. */
static json_t *with_patterns(bt_schema *s, json_t *own, const char *name, json_t *patterns,
                             bt_matcher *const *matchers, const bt_schema_at *at)
{
    const char *pattern;
    json_t     *schema;
    size_t      i = 0;

    json_object_foreach(patterns, pattern, schema)
    {
        bt_schema_at here = {.up = at, .key = pattern};

        if (!bt_schema_matches(s, matchers[i++], name, &here)) continue;
        own = own == NULL ? schema : bt_schema_made(s, json_pack("{s[OO]}", "allOf", own, schema));
    }
    return own;
}

bool bt_schema_hold_patterns(bt_schema *s, json_t *members, const json_t *properties,
                             json_t *patterns, const bt_schema_at *at)
{
    bt_matcher *matchers[BT_SCHEMA_MOST_PATTERNS] = {NULL};
    const char *name;
    json_t     *schema, *own, *said;
    size_t      n   = 0;
    bool        any = false;

    /* barred: a name that only some dialects match must satisfy the pattern's schema */
    json_object_foreach(patterns, name, schema) matchers[n++] =
        bt_schema_matcher(s, name, true, &(bt_schema_at){.up = at, .key = name});
    json_object_foreach(members, name, schema)
    {
        if (s->g->st != BT_OK) break;
        own  = json_object_get(properties, name) != NULL ? schema : NULL;
        said = with_patterns(s, own, name, patterns, matchers, at);
        if (said == own || s->g->st != BT_OK) continue;
        any = true;
        if (json_object_set(members, name, said) != 0) bt_parts_no_memory(s->g);
    }
    for (size_t i = 0; i < n; i++)
        bt_matcher_destroy(matchers[i]);
    return any;
}

/* ---- other keys */

static void read_names(bt_schema *s, bt_condition *c, const json_t *names, const bt_schema_at *at)
{
    bt_schema   own = {.g = &c->g};
    const char *name;
    json_t     *value;

    c->barred = true;
    c->is     = bt_part_never(&c->g);
    json_object_foreach((json_t *)names, name, value)
    {
        if (!bt_schema_step(s, at, 1)) return;
        bt_part_add(&c->g, c->is, bt_schema_string_literal(&own, name, strlen(name)));
    }
    bt_condition_read(s->g, c);
}

/* The keys, in quotes, that match the patterns of the set and no others, and are no names.  Returns
 * the number of conditions. */
static uint32_t read_conditions(bt_schema *s, bt_condition *conditions, uint32_t set,
                                json_t *patterns, const json_t *names, const bt_schema_at *at)
{
    const char *pattern;
    json_t     *schema;
    uint32_t    n = 0;

    json_object_foreach(patterns, pattern, schema)
    {
        bt_schema_at here = {.up = at, .key = pattern};

        conditions[n].barred = (set >> n & 1) == 0;
        read_regex(s, &conditions[n++], pattern, true, &here);
    }
    if (set == 0) /* one condition at least must not be barred */
        read_regex(s, &conditions[n++], "", true, at);
    if (json_object_size(names) > 0) read_names(s, &conditions[n++], names, at);
    return n;
}

/* What the patterns of the set say together; of none, what `rest` says. */
static const json_t *schema_of(bt_schema *s, uint32_t set, json_t *patterns, const json_t *rest)
{
    json_t     *all, *schema;
    const char *pattern;
    uint32_t    i = 0;

    if (set == 0) return rest;
    all = bt_schema_made(s, json_array());
    json_object_foreach(patterns, pattern,
                        schema) if ((set >> i++ & 1) != 0 && json_array_append(all, schema) != 0)
        bt_parts_no_memory(s->g);
    if (json_array_size(all) == 1) return json_array_get(all, 0);
    return bt_schema_made(s, json_pack("{sO}", "allOf", all));
}

/* "key": value of a set, where there are such keys. */
static void add_class(bt_schema *s, bt_part part, uint32_t set, json_t *patterns,
                      const json_t *rest, const json_t *names, const bt_schema_at *at)
{
    bt_condition conditions[MOST_CONDITIONS] = {0}, whole = {0};
    uint32_t     n       = read_conditions(s, conditions, set, patterns, names, at);
    bt_grammar  *grammar = NULL;
    bt_part      key;

    if (s->g->st == BT_OK) whole.is = bt_part_under(&whole.g, conditions, n);
    bt_regex_worked(s->g, whole.g.work);
    pack(s, &whole, &grammar, at);
    if (grammar != NULL) {
        key = bt_part_under(s->g, conditions, n);
        key = bt_part_then(s->g, key, bt_schema_colon(s));
        bt_part_add(
            s->g, part,
            bt_part_then(s->g, key, bt_schema_read(s, schema_of(s, set, patterns, rest), at)));
    }
    bt_grammar_destroy(grammar);
    bt_parts_fini(&whole.g);
    for (uint32_t i = 0; i < n; i++)
        bt_parts_fini(&conditions[i].g);
}

bt_part bt_schema_patterned(bt_schema *s, json_t *patterns, const json_t *rest, const json_t *names,
                            const bt_schema_at *at)
{
    bt_part  part   = bt_part_never(s->g);
    uint32_t n_sets = 1u << json_object_size(patterns);

    for (uint32_t set = rest == NULL; set < n_sets && s->g->st == BT_OK; set++)
        add_class(s, part, set, patterns, rest, names, at);
    return part;
}
