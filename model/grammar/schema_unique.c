/* model/grammar/schema_unique.c - arrays of a JSON schema of which no two items are equal, where an
 * item is one of a list of values: a node for each set of values that may have come, and from it a
 * way for each value that has not.
 *
 * Sets of k values are numbered in the combinatorial number system: that of the values c1 < c2 < ..
 * is number C(c1, 1) + C(c2, 2) + .., which is their order as numbers of bits, too. */
#include "core/alloc.h"
#include "core/minmax.h"
#include "model/grammar/schema.h"

enum { MOST_VALUES = 64, MOST_SETS = 1 << 12 };

typedef struct {
    bt_schema *s;
    uint32_t   n, min, max; /* values, and how many of them may come */
    uint32_t   item[MOST_VALUES], next_item[MOST_VALUES]; /* rules: the value, and with a comma */
    uint32_t   size[MOST_VALUES + 1];                     /* how many sets of k values there are, */
    uint32_t   first[MOST_VALUES + 1];                    /* and where their nodes begin in */
    uint32_t  *nodes;                                     /* owned */
    uint32_t   done;
} sets;

/* ---- the list of values */

static void add(bt_schema *s, json_t *values, json_t *value, const bt_schema_at *at)
{
    const json_t *one;
    size_t        i;

    if (json_array_size(values) > MOST_VALUES) return; /* refused in any case */
    if (!bt_schema_step(s, at, 1 + json_array_size(values) * bt_schema_weight(value))) return;
    json_array_foreach(values, i, one) if (bt_schema_is_equal(one, value)) return;
    if (json_array_append(values, value) != 0) bt_parts_no_memory(s->g);
}

static bool list(bt_schema *s, json_t *values, const json_t *schema, const bt_schema_at *at);

/* Whether all of the schemas are lists (or, with `any`, one of them). */
static bool list_branches(bt_schema *s, json_t *values, const json_t *schemas, bool any,
                          const bt_schema_at *at)
{
    const json_t *one;
    size_t        i;

    json_array_foreach(schemas, i, one) if (list(s, values, one, at) == any) return any;
    return !any && json_array_size(schemas) > 0;
}

static bool list_types(bt_schema *s, json_t *values, const json_t *schema, const bt_schema_at *at)
{
    uint32_t types = bt_schema_types(s, schema, at);

    if ((types & ~(uint32_t)(BT_TYPE_BOOLEAN | BT_TYPE_NULL)) != 0) return false;
    if ((types & BT_TYPE_BOOLEAN) != 0)
        add(s, values, json_true(), at), add(s, values, json_false(), at);
    if ((types & BT_TYPE_NULL) != 0) add(s, values, json_null(), at);
    return true;
}

/* Adds all values that the schema may describe, and maybe others; false: they are no list. */
static bool list_keywords(bt_schema *s, json_t *values, const json_t *schema,
                          const bt_schema_at *at)
{
    json_t       *many = json_object_get(schema, "enum"), *fixed = json_object_get(schema, "const");
    const json_t *ref = json_object_get(schema, "$ref"), *one;
    size_t        i;

    if (fixed != NULL) {
        add(s, values, fixed, at);
        return true;
    }
    json_array_foreach(many, i, one) add(s, values, (json_t *)one, at);
    return json_is_array(many) ||
           (ref != NULL && list(s, values, bt_schema_resolve(s, ref, at), at)) ||
           list_branches(s, values, json_object_get(schema, "anyOf"), false, at) ||
           list_branches(s, values, json_object_get(schema, "oneOf"), false, at) ||
           list_branches(s, values, json_object_get(schema, "allOf"), true, at) ||
           list_types(s, values, schema, at);
}

static bool list(bt_schema *s, json_t *values, const json_t *schema, const bt_schema_at *at)
{
    bool is_list = json_is_false(schema);

    if (bt_schema_enter(s, at) && json_is_object(schema))
        is_list = list_keywords(s, values, schema, at);
    bt_schema_leave(s);
    return is_list;
}

/* ---- sets of them */

/* C(n, k), or MOST_SETS + 1 where it is more. */
static uint32_t choose(uint32_t n, uint32_t k)
{
    uint64_t c = k <= n;

    for (uint32_t i = 1; i <= k && c != 0; i++) {
        c = c * (n - k + i) / i;
        if (c > MOST_SETS) return MOST_SETS + 1;
    }
    return (uint32_t)c;
}

static uint32_t number_of(uint64_t set)
{
    uint32_t number = 0;

    for (uint32_t k = 1; set != 0; k++, set &= set - 1)
        number += choose((uint32_t)__builtin_ctzll(set), k);
    return number;
}

/* The next higher number with as many bits (Gosper). */
static uint64_t next_set(uint64_t set)
{
    uint64_t low = set & (~set + 1), high = set + low;

    return ((high ^ set) >> 2) / low | high;
}

static void read_items(sets *c, const json_t *values, const json_t *items, const bt_schema_at *at)
{
    bt_parts     *g = c->s->g;
    const json_t *value;
    size_t        i;

    json_array_foreach(values, i, value)
    {
        json_t *item =
            bt_schema_made(c->s, json_pack("{s:[O,{s:[O]}]}", "allOf", items, "enum", value));

        c->item[i]      = bt_rule_new(g, NULL);
        c->next_item[i] = bt_rule_new(g, NULL);
        if (g->st != BT_OK) return;
        bt_rule_is(g, c->item[i], bt_schema_read(c->s, item, at));
        bt_rule_is(g, c->next_item[i], bt_schema_next(c->s, bt_rule_call(g, c->item[i])));
    }
}

/* How many sets there are, and room for their nodes. */
static void count_sets(sets *c, const bt_schema_at *at)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k <= c->max && n <= MOST_SETS; k++) {
        c->first[k] = n;
        c->size[k]  = choose(c->n, k);
        n += c->size[k];
    }
    if (n > MOST_SETS)
        bt_schema_refuse(
            c->s, at, "\"uniqueItems\" of %u values has more than %d sets: bring \"maxItems\" down",
            c->n, (int)MOST_SETS);
    if (!bt_schema_step(c->s, at, (size_t)n * c->n)) return;
    c->nodes = bt_calloc(n, sizeof(*c->nodes));
    if (c->nodes == NULL) bt_parts_no_memory(c->s->g);
    for (uint32_t i = 0; c->nodes != NULL && i < n; i++)
        c->nodes[i] = bt_part_node(c->s->g);
}

/* What may follow a set of k values. */
static void add_ways(const sets *c, uint64_t set, uint32_t k, uint32_t node)
{
    bt_parts *g = c->s->g;

    if (k > 0 && k >= c->min) bt_part_join(g, node, c->done);
    for (uint32_t i = 0; i < c->n && k < c->max; i++) {
        uint64_t one = (uint64_t)1 << i;

        if ((set & one) == 0)
            bt_part_way(g, node, bt_rule_call(g, k == 0 ? c->item[i] : c->next_item[i]),
                        c->nodes[c->first[k + 1] + number_of(set | one)]);
    }
}

bt_part bt_schema_unique(bt_schema *s, const json_t *items, uint32_t min, uint32_t max,
                         const bt_schema_at *at)
{
    bt_schema_at here   = {.up = at, .key = "items"};
    json_t      *values = bt_schema_owned(s, json_array());
    sets         c      = {.s = s, .min = min, .done = bt_part_node(s->g)};
    uint32_t     start  = bt_part_node(s->g);

    if (!list(s, values, items, &here))
        bt_schema_refuse(s, at,
                         "\"uniqueItems\" is not supported but for items of a list of values");
    if (json_array_size(values) > MOST_VALUES)
        bt_schema_refuse(s, at, "\"uniqueItems\" of more than %d values is not supported",
                         (int)MOST_VALUES);
    if (s->g->st == BT_OK) {
        c.n   = (uint32_t)json_array_size(values);
        c.max = bt_min_u32(max, c.n);
        count_sets(&c, at);
        if (s->g->st == BT_OK) read_items(&c, values, items, &here);
        for (uint32_t k = 0; k <= c.max && s->g->st == BT_OK; k++) {
            uint64_t set = ((uint64_t)1 << k) - 1;

            for (uint32_t i = 0; i < c.size[k]; i++) {
                add_ways(&c, set, k, c.nodes[c.first[k] + i]);
                if (i + 1 < c.size[k]) set = next_set(set);
            }
        }
        if (s->g->st == BT_OK) bt_part_join(s->g, start, c.nodes[0]);
    }
    bt_free(c.nodes);
    json_decref(values);
    return (bt_part){start, c.done};
}
