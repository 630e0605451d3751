/* model/grammar/free_text.c - the automaton of Aho and Corasick ("Efficient String Matching: An Aid
 * to Bibliographic Search", CACM 1975) over characters, laid out as nodes.
 *
 * A state stands for the longest end of the text that begins a stop.  Its steps are the characters
 * that do not lead back to the first state; they are made breadth first, as a state's steps are its
 * own and those of its longest shorter end. */
#include "model/grammar/free_text.h"

#include <string.h>

#include "core/alloc.h"
#include "model/grammar/source.h"

enum { MOST_STATES = 4096 };

typedef struct {
    uint32_t c, to;
} stop_step;

typedef struct {
    uint32_t c;           /* that leads to it */
    uint32_t child, next; /* of the tree; 0: none */
    uint32_t fail;        /* the longest shorter end of it */
    uint32_t stop;        /* 1 + the longest that is complete, or 0 */
    bool     is_barred;   /* one that must not come is */
    uint32_t first, n;    /* of the steps */
    uint32_t node;
} stop_state;

typedef struct {
    bt_parts      *g;
    const bt_stop *stops;
    stop_state    *states; /* owned [n_states], the first state is 0 */
    stop_step     *steps;  /* owned */
    uint32_t       n_states, states_capacity, n_steps, steps_capacity;
} automaton;

/* 0, or an error. */
static uint32_t add_state(automaton *a, uint32_t parent, uint32_t c)
{
    stop_state state = {.c = c};

    if (a->n_states == MOST_STATES)
        bt_parts_refuse(a->g, "triggers and ends of tags of more than %d characters",
                        (int)MOST_STATES);
    if (!bt_parts_grow(a->g, &a->states, sizeof(*a->states), a->n_states, &a->states_capacity,
                       MOST_STATES))
        return 0;
    state.node = bt_part_node(a->g);
    if (a->n_states > 0) {
        state.next              = a->states[parent].child;
        a->states[parent].child = a->n_states;
    }
    a->states[a->n_states] = state;
    return a->n_states++;
}

static uint32_t child_of(const automaton *a, uint32_t state, uint32_t c)
{
    uint32_t child = a->states[state].child;

    while (child != 0 && a->states[child].c != c)
        child = a->states[child].next;
    return child;
}

static void add_stop(automaton *a, uint32_t stop)
{
    bt_source s  = {.g = a->g, .text = a->stops[stop].text, .n = strlen(a->stops[stop].text)};
    uint32_t  at = 0;

    while (bt_source_more(&s)) {
        uint32_t c = bt_source_char(&s), child = child_of(a, at, c);

        at = child != 0 ? child : add_state(a, at, c);
    }
    if (a->g->st != BT_OK) return;
    if (a->states[at].stop == 0) a->states[at].stop = stop + 1;
    a->states[at].is_barred |= !a->stops[stop].goes_on;
}

static void add_step(automaton *a, uint32_t c, uint32_t to)
{
    if (bt_parts_grow(a->g, &a->steps, sizeof(*a->steps), a->n_steps, &a->steps_capacity,
                      UINT32_MAX))
        a->steps[a->n_steps++] = (stop_step){c, to};
}

static uint32_t step(const automaton *a, uint32_t state, uint32_t c)
{
    const stop_state *s = &a->states[state];

    for (uint32_t i = s->first; i < s->first + s->n; i++)
        if (a->steps[i].c == c) return a->steps[i].to;
    return 0;
}

static void make_steps(automaton *a, uint32_t state)
{
    stop_state *s = &a->states[state];

    s->first = a->n_steps;
    for (uint32_t child = s->child; child != 0; child = a->states[child].next)
        add_step(a, a->states[child].c, child);
    for (uint32_t i = 0; state != 0 && i < a->states[s->fail].n; i++) {
        stop_step of = a->steps[a->states[s->fail].first + i];

        if (child_of(a, state, of.c) == 0) add_step(a, of.c, of.to);
    }
    s->n = a->n_steps - s->first;
}

static void find_fail(automaton *a, uint32_t parent, uint32_t child)
{
    stop_state       *s = &a->states[child];
    const stop_state *fail;

    s->fail = parent == 0 ? 0 : step(a, a->states[parent].fail, s->c);
    fail    = &a->states[s->fail];
    if (s->stop == 0) s->stop = fail->stop;
    s->is_barred |= fail->is_barred;
}

/* What the state's characters lead to. */
static void lay_out(automaton *a, uint32_t state, uint32_t end)
{
    bt_parts         *g      = a->g;
    const stop_state *s      = &a->states[state];
    bt_chars          others = {0};
    bt_part           p;

    for (uint32_t i = s->first; i < s->first + s->n && g->st == BT_OK; i++) {
        const stop_state *to  = &a->states[a->steps[i].to];
        bt_chars          one = {0};

        bt_chars_add(g, &others, a->steps[i].c, a->steps[i].c);
        if (to->is_barred) continue;
        bt_chars_add(g, &one, a->steps[i].c, a->steps[i].c);
        p = bt_part_chars(g, &one);
        bt_chars_fini(&one);
        bt_part_way(g, s->node, p, to->stop != 0 ? a->stops[to->stop - 1].then.start : to->node);
    }
    bt_chars_negate(g, &others);
    p = bt_part_chars(g, &others);
    bt_chars_fini(&others);
    bt_part_way(g, s->node, p, a->states[0].node);
    bt_part_join(g, s->node, end);
}

/* Breadth first; what lies behind a stop is never come to. */
static void lay_out_all(automaton *a, uint32_t end)
{
    uint32_t *queue = bt_calloc(a->n_states, sizeof(*queue)), n = 1;

    if (queue == NULL) {
        bt_parts_no_memory(a->g);
        return;
    }
    for (uint32_t i = 0; i < n && a->g->st == BT_OK; i++) {
        uint32_t state = queue[i];

        if (a->states[state].stop != 0) continue;
        make_steps(a, state);
        for (uint32_t child = a->states[state].child; child != 0; child = a->states[child].next) {
            find_fail(a, state, child);
            queue[n++] = child;
        }
        lay_out(a, state, end);
    }
    bt_free(queue);
}

bt_part bt_part_free_text(bt_parts *g, const bt_stop *stops, uint32_t n, bool again)
{
    automaton a     = {.g = g, .stops = stops};
    bt_part   whole = bt_part_never(g);

    add_state(&a, 0, 0);
    for (uint32_t i = 0; i < n && g->st == BT_OK; i++)
        add_stop(&a, i);
    if (g->st == BT_OK) {
        bt_part_join(g, whole.start, a.states[0].node);
        lay_out_all(&a, whole.end);
        for (uint32_t i = 0; i < n; i++)
            if (stops[i].goes_on)
                bt_part_join(g, stops[i].then.end, again ? a.states[0].node : whole.end);
    }
    bt_free(a.states);
    bt_free(a.steps);
    return whole;
}
