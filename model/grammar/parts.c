#include "model/grammar/parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

void bt_parts_fini(bt_parts *g)
{
    for (uint32_t i = 0; i < g->n_rules; i++)
        bt_free(g->rules[i].name);
    bt_free(g->first);
    bt_free(g->edges);
    bt_free(g->rules);
    *g = (bt_parts){0};
}

void bt_parts_refuse(bt_parts *g, const char *format, ...)
{
    va_list args;

    if (g->st != BT_OK) return;
    g->st = BT_ERR_INVALID_ARG;
    va_start(args, format);
    vsnprintf(g->why, sizeof(g->why), format, args);
    va_end(args);
}

void bt_parts_no_memory(bt_parts *g)
{
    if (g->st == BT_OK) g->st = BT_ERR_NO_MEMORY;
}

bool bt_parts_grow(bt_parts *g, void *array, size_t size, uint32_t n, uint32_t *capacity,
                   uint32_t most)
{
    uint32_t wanted = *capacity == 0 ? 64 : 2 * *capacity;
    void    *grown;

    if (g->st != BT_OK) return false;
    if (n < *capacity) return true;
    if (n >= most) {
        bt_parts_refuse(g, "it is too large: it comes to more than %u parts", most);
        return false;
    }
    grown = bt_realloc(*(void **)array, wanted, size);
    if (grown == NULL) {
        bt_parts_no_memory(g);
        return false;
    }
    *(void **)array = grown;
    *capacity       = wanted;
    return true;
}

uint32_t bt_part_node(bt_parts *g)
{
    if (!bt_parts_grow(g, &g->first, sizeof(*g->first), g->n_nodes, &g->nodes_capacity,
                       BT_GRAMMAR_NODES_MAX))
        return 0;
    g->first[g->n_nodes] = 0;
    return g->n_nodes++;
}

static void add_edge(bt_parts *g, uint32_t from, bt_part_edge edge)
{
    if (!bt_parts_grow(g, &g->edges, sizeof(*g->edges), g->n_edges, &g->edges_capacity,
                       2 * BT_GRAMMAR_NODES_MAX))
        return;
    edge.next            = g->first[from];
    g->edges[g->n_edges] = edge;
    g->first[from]       = ++g->n_edges;
}

void bt_part_join(bt_parts *g, uint32_t from, uint32_t to)
{
    add_edge(g, from, (bt_part_edge){.to = to, .kind = BT_EDGE_NOTHING});
}

void bt_part_step(bt_parts *g, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to)
{
    add_edge(g, from, (bt_part_edge){.to = to, .kind = BT_EDGE_BYTES, .lo = lo, .hi = hi});
}

void bt_part_way(bt_parts *g, uint32_t from, bt_part by, uint32_t to)
{
    bt_part_join(g, from, by.start);
    bt_part_join(g, by.end, to);
}

void bt_part_add(bt_parts *g, bt_part part, bt_part way)
{
    bt_part_way(g, part.start, way, part.end);
}

bt_part bt_part_never(bt_parts *g)
{
    uint32_t start = bt_part_node(g);

    return (bt_part){start, bt_part_node(g)};
}

bt_part bt_part_nothing(bt_parts *g)
{
    bt_part p = bt_part_never(g);

    bt_part_join(g, p.start, p.end);
    return p;
}

bt_part bt_part_byte(bt_parts *g, uint8_t lo, uint8_t hi)
{
    bt_part p = bt_part_never(g);

    bt_part_step(g, p.start, lo, hi, p.end);
    return p;
}

bt_part bt_part_bytes(bt_parts *g, const char *bytes, size_t n)
{
    uint32_t start = bt_part_node(g), end = start;

    for (size_t i = 0; i < n && g->st == BT_OK; i++) {
        uint32_t to = bt_part_node(g);
        uint8_t  b  = (uint8_t)bytes[i];

        bt_part_step(g, end, b, b, to);
        end = to;
    }
    return n == 0 ? bt_part_nothing(g) : (bt_part){start, end};
}

bt_part bt_part_text(bt_parts *g, const char *text) { return bt_part_bytes(g, text, strlen(text)); }

bt_part bt_part_then(bt_parts *g, bt_part a, bt_part b)
{
    bt_part_join(g, a.end, b.start);
    return (bt_part){a.start, b.end};
}

bt_part bt_part_between(bt_parts *g, const char *before, bt_part a, const char *behind)
{
    a = bt_part_then(g, bt_part_text(g, before), a);
    return bt_part_then(g, a, bt_part_text(g, behind));
}

bt_part bt_part_either(bt_parts *g, bt_part a, bt_part b)
{
    bt_part p = bt_part_never(g);

    bt_part_add(g, p, a);
    bt_part_add(g, p, b);
    return p;
}

bt_part bt_part_maybe(bt_parts *g, bt_part a) { return bt_part_either(g, a, bt_part_nothing(g)); }

/* As often as it comes, or not at all. */
static bt_part any_number(bt_parts *g, bt_part a)
{
    bt_part p = bt_part_nothing(g);

    bt_part_join(g, p.start, a.start);
    bt_part_join(g, a.end, a.start);
    bt_part_join(g, a.end, p.end);
    return p;
}

bt_part bt_part_repeat(bt_parts *g, bt_part a, uint32_t min, uint32_t max)
{
    bt_part  p = bt_part_nothing(g), item;
    uint32_t rule, end = p.end, done;

    if (min > max) return bt_part_never(g);
    if (max == 0) return p;
    if (min == 0 && max == 1) return bt_part_maybe(g, a);
    if (min == 0 && max == BT_UNLIMITED) return any_number(g, a);
    rule = bt_rule_new(g, NULL); /* its copies are calls */
    bt_rule_is(g, rule, a);
    for (uint32_t i = 0; i < min && g->st == BT_OK; i++)
        p = bt_part_then(g, p, bt_rule_call(g, rule));
    if (max == BT_UNLIMITED) return bt_part_then(g, p, any_number(g, bt_rule_call(g, rule)));
    done = bt_part_node(g);
    end  = p.end;
    for (uint32_t i = min; i < max && g->st == BT_OK; i++) {
        item = bt_rule_call(g, rule);
        bt_part_join(g, end, done);
        bt_part_join(g, end, item.start);
        end = item.end;
    }
    bt_part_join(g, end, done);
    return (bt_part){p.start, done};
}

/* ---- rules */

uint32_t bt_rule_new(bt_parts *g, const char *name)
{
    bt_part_rule rule = {0};

    if (!bt_parts_grow(g, &g->rules, sizeof(*g->rules), g->n_rules, &g->rules_capacity,
                       BT_GRAMMAR_NODES_MAX))
        return 0;
    if (name != NULL && (rule.name = bt_strdup(name)) == NULL) {
        bt_parts_no_memory(g);
        return 0;
    }
    g->rules[g->n_rules] = rule;
    return g->n_rules++;
}

void bt_rule_is(bt_parts *g, uint32_t rule, bt_part part)
{
    if (g->st != BT_OK) return;
    BT_ASSERT(rule < g->n_rules && !g->rules[rule].given);
    g->rules[rule].given = true;
    g->rules[rule].is    = part;
}

bt_part bt_rule_call(bt_parts *g, uint32_t rule)
{
    bt_part p = bt_part_never(g);

    add_edge(g, p.start, (bt_part_edge){.to = p.end, .kind = BT_EDGE_CALL, .rule = rule});
    return p;
}
