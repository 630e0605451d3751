/* model/grammar/schema_array.c - arrays of a JSON schema: items, each of its own schema as far as
 * prefixItems goes (or an array of draft-07's items), then all of one. */
#include "model/grammar/schema.h"

/* What an array's keywords come to. */
typedef struct {
    const json_t *prefix;  /* schemas, or NULL */
    const json_t *rest;    /* of the items behind, or NULL: any */
    const char   *keyword; /* of the prefix, and of the rest */
    const char   *rest_keyword;
    size_t        n_prefix;
    uint32_t      min, max;
    bool          unique; /* no two are equal */
} bounds;

static bounds read_places(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    bounds b = {.prefix       = json_object_get(schema, "prefixItems"),
                .rest         = json_object_get(schema, "items"),
                .keyword      = "prefixItems",
                .rest_keyword = "items"};

    if (b.prefix == NULL && json_is_array(b.rest)) {
        b.prefix       = b.rest;
        b.keyword      = "items";
        b.rest         = json_object_get(schema, "additionalItems");
        b.rest_keyword = "additionalItems";
    }
    if (b.prefix != NULL && !json_is_array(b.prefix))
        bt_schema_unexpected(s, schema, b.keyword, at, "an array of schemas");
    b.n_prefix = json_array_size(b.prefix);
    return b;
}

static bounds read_bounds(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    bounds b = read_places(s, schema, at);

    b.min = bt_schema_count(s, schema, "minItems", 0, at);
    b.max = bt_schema_count(s, schema, "maxItems", BT_UNLIMITED, at);
    if (b.n_prefix > 0 && b.rest == NULL && b.min <= b.n_prefix && b.max > b.n_prefix)
        b.max = (uint32_t)b.n_prefix; /* as with properties: none that no schema speaks of */
    b.unique = json_is_true(json_object_get(schema, "uniqueItems")) && b.max > 1;
    if (b.unique && b.prefix != NULL)
        bt_schema_refuse(s, at, "\"uniqueItems\" beside items by place is not supported");
    return b;
}

static bt_part read_rest(bt_schema *s, const bounds *b, const bt_schema_at *at)
{
    bt_schema_at here = {.up = at, .key = b->rest_keyword};

    return b->rest == NULL ? bt_schema_call(s, BT_COMMON_ANY) : bt_schema_read(s, b->rest, &here);
}

/* The items of the prefix, of which as many may come as min and max let; `done` is where they may
 * end.  Returns where all have come. */
static uint32_t prefix(bt_schema *s, const bounds *b, uint32_t from, uint32_t done,
                       const bt_schema_at *at)
{
    bt_schema_at here = {.up = at, .key = b->keyword};

    for (size_t i = 0; i < b->n_prefix && i < b->max && s->g->st == BT_OK; i++) {
        bt_schema_at place = {.up = &here, .index = i};
        bt_part      item  = bt_schema_read(s, json_array_get(b->prefix, i), &place);
        uint32_t     next  = bt_part_node(s->g);

        if (i > 0 && i >= b->min) bt_part_join(s->g, from, done);
        bt_part_way(s->g, from, i == 0 ? item : bt_schema_next(s, item), next);
        from = next;
    }
    return from;
}

/* All items but none at all. */
static bt_part some_items(bt_schema *s, const bounds *b, const bt_schema_at *at)
{
    bt_parts *g     = s->g;
    uint32_t  start = bt_part_node(g), done = bt_part_node(g), from, rule;
    uint32_t  min = b->min, max = b->max, n = (uint32_t)b->n_prefix;

    from = prefix(s, b, start, done, at);
    if (max > n) {
        rule = bt_rule_new(g, NULL);
        bt_rule_is(g, rule, read_rest(s, b, at));
        if (n == 0) {
            uint32_t next = bt_part_node(g);

            bt_part_way(g, from, bt_rule_call(g, rule), next);
            from = next;
            n    = 1;
        }
        bt_part_way(g, from,
                    bt_part_repeat(g, bt_schema_next(s, bt_rule_call(g, rule)),
                                   min > n ? min - n : 0, max == BT_UNLIMITED ? max : max - n),
                    done);
    } else if (min <= max && max > 0) {
        bt_part_join(g, from, done);
    }
    return (bt_part){start, done};
}

bt_part bt_schema_array(bt_schema *s, const json_t *schema, const bt_schema_at *at)
{
    bt_parts *g = s->g;
    bounds    b = read_bounds(s, schema, at);
    bt_part   some, inner = bt_part_never(g);

    some = b.unique ? bt_schema_unique(s, b.rest, b.min, b.max, at) : some_items(s, &b, at);
    some = bt_part_then(g, bt_schema_call(s, BT_COMMON_SPACE), some);
    bt_part_add(g, inner, some);
    if (b.min == 0) bt_part_add(g, inner, bt_part_nothing(g));
    inner = bt_part_then(g, inner, bt_schema_call(s, BT_COMMON_SPACE));
    return bt_part_between(g, "[", inner, "]");
}

const json_t *bt_schema_of_item(bt_schema *s, const json_t *schema, size_t i,
                                const bt_schema_at *at)
{
    bounds b = read_places(s, schema, at);

    return i < b.n_prefix ? json_array_get(b.prefix, i) : b.rest;
}
