#include "model/grammar/grammar.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

const char *bt_constraint_name(bt_constraint_kind kind)
{
    static const char *const names[BT_CONSTRAINT_KINDS] = {
        [BT_CONSTRAINT_NONE] = "no constraint", [BT_CONSTRAINT_JSON_SCHEMA] = "json_schema",
        [BT_CONSTRAINT_REGEX] = "regex",        [BT_CONSTRAINT_EBNF] = "grammar",
        [BT_CONSTRAINT_CHOICE] = "choice",      [BT_CONSTRAINT_STRUCTURAL_TAG] = "structural_tag"};

    return names[kind];
}

void bt_grammar_destroy(bt_grammar *grammar)
{
    if (grammar == NULL) return;
    bt_free(grammar->first);
    bt_free(grammar->edges);
    bt_free(grammar->ends);
    bt_free(grammar);
}

/* ---- which nodes lead to the end of their rule */

/* Edges by what they wait for: the node that they go to, and the rule that they call. */
typedef struct {
    const bt_parts *g;
    uint32_t       *from;                  /* owned [n_edges] */
    uint32_t       *to_first, *call_first; /* owned [n_nodes]: 1 + an edge, or 0 */
    uint32_t       *to_next, *call_next;   /* owned [n_edges] */
    uint32_t       *stack;                 /* owned [n_nodes] */
} waiting;

static void waiting_fini(waiting *w)
{
    bt_free(w->from);
    bt_free(w->to_first);
    bt_free(w->call_first);
    bt_free(w->to_next);
    bt_free(w->call_next);
    bt_free(w->stack);
    *w = (waiting){0};
}

static bt_status waiting_init(waiting *w, const bt_parts *g)
{
    bt_status st = BT_OK;

    *w            = (waiting){.g = g};
    w->from       = bt_calloc(g->n_edges, sizeof(*w->from));
    w->to_first   = bt_calloc(g->n_nodes, sizeof(*w->to_first));
    w->call_first = bt_calloc(g->n_nodes, sizeof(*w->call_first));
    w->to_next    = bt_calloc(g->n_edges, sizeof(*w->to_next));
    w->call_next  = bt_calloc(g->n_edges, sizeof(*w->call_next));
    w->stack      = bt_calloc(g->n_nodes, sizeof(*w->stack));
    BT_REQUIRE(w->from != NULL && w->to_first != NULL && w->call_first != NULL &&
                   w->to_next != NULL && w->call_next != NULL && w->stack != NULL,
               BT_ERR_NO_MEMORY, "a grammar of %u nodes", g->n_nodes);
    for (uint32_t node = 0; node < g->n_nodes; node++)
        for (uint32_t at = g->first[node]; at != 0; at = g->edges[at - 1].next) {
            const bt_part_edge *e = &g->edges[at - 1];

            w->from[at - 1]    = node;
            w->to_next[at - 1] = w->to_first[e->to];
            w->to_first[e->to] = at;
            if (e->kind != BT_EDGE_CALL || !g->rules[e->rule].given) continue;
            w->call_next[at - 1]                      = w->call_first[g->rules[e->rule].is.start];
            w->call_first[g->rules[e->rule].is.start] = at;
        }
out:
    if (st != BT_OK) waiting_fini(w);
    return st;
}

static bool passable(const bt_parts *g, const bt_part_edge *e, bool over_bytes,
                     const uint8_t *marked)
{
    if (!marked[e->to]) return false;
    if (e->kind == BT_EDGE_BYTES) return over_bytes;
    return e->kind == BT_EDGE_NOTHING ||
           (g->rules[e->rule].given && marked[g->rules[e->rule].is.start]);
}

static void mark(waiting *w, uint32_t node, uint8_t *marked, uint32_t *n)
{
    if (marked[node]) return;
    marked[node]     = 1;
    w->stack[(*n)++] = node;
}

/* marked[node]: its rule's end can be reached from it; with over_bytes false: by the empty text. */
static void mark_to_ends(waiting *w, bt_part whole, bool over_bytes, uint8_t *marked)
{
    const bt_parts *g = w->g;
    uint32_t        n = 0;

    mark(w, whole.end, marked, &n);
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (g->rules[i].given) mark(w, g->rules[i].is.end, marked, &n);
    while (n > 0) {
        uint32_t node = w->stack[--n];

        for (uint32_t at = w->to_first[node]; at != 0; at = w->to_next[at - 1])
            if (passable(g, &g->edges[at - 1], over_bytes, marked))
                mark(w, w->from[at - 1], marked, &n);
        for (uint32_t at = w->call_first[node]; at != 0; at = w->call_next[at - 1])
            if (passable(g, &g->edges[at - 1], over_bytes, marked))
                mark(w, w->from[at - 1], marked, &n);
    }
}

/* ---- left recursion: a rule that begins with itself would be called without end */

typedef struct {
    const bt_parts *g;
    const uint8_t  *lives, *is_empty; /* of mark_to_ends() */
    uint8_t        *seen;             /* owned [n_nodes] */
    uint8_t        *state;            /* owned [n_rules]: 0, under way, done */
    uint32_t       *stack;            /* owned: nodes; rules to look into; ends of rules */
    uint32_t       *under_way;        /* owned [n_rules]: those that began with each other */
    uint32_t        n, n_under_way;
} recursion;

enum { UNDER_WAY = 1, DONE = 2 };
#define RULE      (1u << 31)
#define RULE_ENDS UINT32_MAX

static void refuse_recursion(const bt_parts *g, uint32_t rule, char *why)
{
    const char *name = g->rules[rule].name;

    if (name != NULL)
        snprintf(why, BT_GRAMMAR_WHY_BYTES,
                 "%.80s begins with itself (left recursion): that is not supported", name);
    else
        snprintf(why, BT_GRAMMAR_WHY_BYTES,
                 "a part of it begins with itself (left recursion): that is not supported");
}

/* What can be reached from `node` by the empty text. */
static void look_at(recursion *r, uint32_t node)
{
    const bt_parts *g = r->g;

    if (r->seen[node]) return;
    r->seen[node] = 1;
    for (uint32_t at = g->first[node]; at != 0; at = g->edges[at - 1].next) {
        const bt_part_edge *e = &g->edges[at - 1];

        if (e->kind == BT_EDGE_BYTES || !r->lives[e->to]) continue;
        if (e->kind == BT_EDGE_CALL) {
            const bt_part_rule *rule = &g->rules[e->rule];

            if (!rule->given || !r->lives[rule->is.start]) continue;
            r->stack[r->n++] = RULE | e->rule;
            if (!r->is_empty[rule->is.start]) continue;
        }
        r->stack[r->n++] = e->to;
    }
}

/* False: the rule is one of those under way. */
static bool look_into(recursion *r, uint32_t rule)
{
    if (r->state[rule] != 0) return r->state[rule] == DONE;
    r->state[rule]                 = UNDER_WAY;
    r->under_way[r->n_under_way++] = rule;
    r->stack[r->n++]               = RULE_ENDS;
    r->stack[r->n++]               = r->g->rules[rule].is.start;
    return true;
}

/* first: a node, or RULE and a rule. */
static bt_status find_recursion(recursion *r, uint32_t first, char *why)
{
    r->stack[r->n++] = first;
    while (r->n > 0) {
        uint32_t at = r->stack[--r->n];

        if (at == RULE_ENDS) {
            r->state[r->under_way[--r->n_under_way]] = DONE;
        } else if ((at & RULE) == 0) {
            look_at(r, at);
        } else if (!look_into(r, at & ~RULE)) {
            refuse_recursion(r->g, at & ~RULE, why);
            return BT_ERR_INVALID_ARG;
        }
    }
    return BT_OK;
}

/* Of the beginning of a text, and of what comes later. */
static bt_status check_recursion(const bt_parts *g, bt_part whole, const uint8_t *lives,
                                 const uint8_t *is_empty, char *why)
{
    bt_status st = BT_OK;
    recursion r  = {.g = g, .lives = lives, .is_empty = is_empty};

    r.seen      = bt_calloc(g->n_nodes, sizeof(*r.seen));
    r.state     = bt_calloc(g->n_rules + 1, sizeof(*r.state));
    r.stack     = bt_calloc(2 * (size_t)(g->n_edges + g->n_rules) + 1, sizeof(*r.stack));
    r.under_way = bt_calloc(g->n_rules + 1, sizeof(*r.under_way));
    BT_REQUIRE(r.seen != NULL && r.state != NULL && r.stack != NULL && r.under_way != NULL,
               BT_ERR_NO_MEMORY, "a grammar of %u nodes", g->n_nodes);
    BT_TRY(find_recursion(&r, whole.start, why));
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (g->rules[i].given && lives[g->rules[i].is.start] && r.state[i] == 0)
            BT_TRY(find_recursion(&r, RULE | i, why));
out:
    bt_free(r.seen);
    bt_free(r.state);
    bt_free(r.stack);
    bt_free(r.under_way);
    return st;
}

/* ---- packing */

static void put_edges(const bt_parts *g, const uint8_t *lives, bt_grammar *grammar)
{
    uint32_t n = 0;

    for (uint32_t node = 0; node < g->n_nodes; node++) {
        grammar->first[node] = n;
        for (uint32_t at = lives[node] ? g->first[node] : 0; at != 0; at = g->edges[at - 1].next) {
            const bt_part_edge *e    = &g->edges[at - 1];
            bool                call = e->kind == BT_EDGE_CALL;

            if (!passable(g, e, true, lives)) continue;
            grammar->edges[n++] =
                (bt_grammar_edge){.to         = e->to,
                                  .rule_start = call ? g->rules[e->rule].is.start : 0,
                                  .kind       = e->kind,
                                  .lo         = e->lo,
                                  .hi         = e->hi};
        }
    }
    grammar->first[g->n_nodes] = grammar->n_edges = n;
}

/* From `node` on there is only one way, of the empty text, to an end. */
static bool is_tail(const bt_grammar *grammar, uint32_t node)
{
    enum { FAR = 64 };

    for (int i = 0; i < FAR; i++) {
        uint32_t               n = grammar->first[node + 1] - grammar->first[node];
        const bt_grammar_edge *e = &grammar->edges[grammar->first[node]];

        if (n == 0) return (grammar->ends[node] & BT_NODE_END) != 0;
        if (n > 1 || e->kind != BT_EDGE_NOTHING) return false;
        node = e->to;
    }
    return false;
}

static void put_ends(const bt_parts *g, bt_part whole, bt_grammar *grammar)
{
    grammar->ends[whole.end] = BT_NODE_END;
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (g->rules[i].given) grammar->ends[g->rules[i].is.end] = BT_NODE_END;
    for (uint32_t node = 0; node < grammar->n_nodes; node++)
        if (is_tail(grammar, node)) grammar->ends[node] |= BT_NODE_TAIL;
}

/* Bytes are told apart where some edge does. */
static void put_classes(bt_grammar *grammar)
{
    bool     begins[257] = {false};
    uint32_t n           = 0;

    for (uint32_t i = 0; i < grammar->n_edges; i++)
        if (grammar->edges[i].kind == BT_EDGE_BYTES) {
            begins[grammar->edges[i].lo]     = true;
            begins[grammar->edges[i].hi + 1] = true;
        }
    for (uint32_t b = 0; b < 256; b++) {
        n += b > 0 && begins[b];
        grammar->class_of[b] = (uint8_t)n;
    }
    grammar->n_classes = n + 1;
}

static bt_status pack(const bt_parts *g, bt_part whole, const uint8_t *lives,
                      bt_grammar **grammar_out)
{
    bt_status   st      = BT_OK;
    bt_grammar *grammar = bt_calloc(1, sizeof(*grammar));

    BT_REQUIRE(grammar != NULL, BT_ERR_NO_MEMORY, "a grammar");
    grammar->n_nodes = g->n_nodes;
    grammar->start   = whole.start;
    grammar->first   = bt_calloc((size_t)g->n_nodes + 1, sizeof(*grammar->first));
    grammar->edges   = bt_calloc(g->n_edges, sizeof(*grammar->edges));
    grammar->ends    = bt_calloc(g->n_nodes, sizeof(*grammar->ends));
    BT_REQUIRE(grammar->first != NULL && grammar->edges != NULL && grammar->ends != NULL,
               BT_ERR_NO_MEMORY, "a grammar of %u nodes", g->n_nodes);
    put_edges(g, lives, grammar);
    put_ends(g, whole, grammar);
    put_classes(grammar);
    *grammar_out = grammar;
    grammar      = NULL; /* handed over */
out:
    bt_grammar_destroy(grammar);
    return st;
}

bt_status bt_grammar_pack(const bt_parts *g, bt_part whole, bt_grammar **grammar_out, char *why)
{
    bt_status st    = g->st;
    waiting   w     = {0};
    uint8_t  *marks = NULL, *lives, *is_empty;

    if (st == BT_ERR_INVALID_ARG) memcpy(why, g->why, BT_GRAMMAR_WHY_BYTES);
    BT_TRY(st);
    marks = bt_calloc(2 * (size_t)g->n_nodes, sizeof(*marks));
    BT_REQUIRE(marks != NULL, BT_ERR_NO_MEMORY, "a grammar of %u nodes", g->n_nodes);
    lives    = marks;
    is_empty = marks + g->n_nodes;
    BT_TRY(waiting_init(&w, g));
    mark_to_ends(&w, whole, true, lives);
    mark_to_ends(&w, whole, false, is_empty);
    if (!lives[whole.start]) {
        snprintf(why, BT_GRAMMAR_WHY_BYTES, "nothing satisfies it: no text at all would do");
        st = BT_ERR_INVALID_ARG;
        goto out;
    }
    BT_TRY(check_recursion(g, whole, lives, is_empty, why));
    BT_TRY(pack(g, whole, lives, grammar_out));
out:
    waiting_fini(&w);
    bt_free(marks);
    return st;
}
