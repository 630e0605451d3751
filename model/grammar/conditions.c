/* model/grammar/conditions.c - texts under several conditions at once: each is made deterministic,
 * byte by byte, and what they come to together becomes an automaton (the product). */
#include "model/grammar/matcher.h"
#include "model/grammar/regex.h"
#include "model/grammar/states.h"

enum { MOST_PLACES = 1 << 16 };

typedef struct {
    bt_parts           *g;
    const bt_condition *conditions;
    uint32_t            n;
    bt_matcher         *matchers[BT_MOST_CONDITIONS]; /* owned; NULL: no text is of it */
    bool                begins[256]; /* the first bytes of ranges that all matchers read alike */
    /* A place is what all conditions have come to: reading i is {i, the state of condition i}.
     * Places are numbered from 1 on, and their nodes follow each other. */
    bt_states places;
    uint32_t  first_node, n_nodes;
} product;

/* The condition's own automaton. */
static bt_status make_matcher(product *p, uint32_t i)
{
    bt_grammar *grammar = NULL;
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_status   st = bt_grammar_pack(&p->conditions[i].g, p->conditions[i].is, &grammar, why);

    if (st == BT_ERR_INVALID_ARG) return BT_OK;
    BT_TRY(st);
    for (uint32_t b = 1; b < 256; b++)
        p->begins[b] = p->begins[b] || grammar->class_of[b] != grammar->class_of[b - 1];
    BT_TRY(bt_matcher_create(grammar, NULL, &p->matchers[i]));
    grammar = NULL; /* handed over */
out:
    bt_grammar_destroy(grammar);
    return st;
}

/* *place_out = 0: some condition that is not barred has failed for good. */
static bt_status find_place(product *p, const uint32_t *states, uint32_t *place_out)
{
    bt_status  st = BT_OK;
    bt_reading readings[BT_MOST_CONDITIONS];
    bool       accepts = true;

    *place_out = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        bool barred = p->conditions[i].barred;

        if (states[i] == BT_STATE_DEAD && !barred) return BT_OK;
        readings[i] = (bt_reading){i, states[i]};
        accepts     = accepts && (states[i] != BT_STATE_DEAD &&
                              bt_matcher_accepts(p->matchers[i], states[i])) != barred;
    }
    BT_TRY(bt_states_state(&p->places, readings, p->n, accepts, place_out));
    if (*place_out <= p->n_nodes) return BT_OK;
    if (p->n_nodes == MOST_PLACES) return BT_ERR_UNSUPPORTED;
    bt_part_node(p->g);
    p->n_nodes++;
out:
    return st;
}

static uint32_t node_of(const product *p, uint32_t place) { return p->first_node + place - 1; }

/* What all conditions come to with a byte. */
static bt_status step(product *p, const uint32_t *from, uint8_t byte, uint32_t *place_out)
{
    bt_status st   = BT_OK;
    char      b    = (char)byte;
    size_t    work = p->n;
    uint32_t  to[BT_MOST_CONDITIONS];

    for (uint32_t i = 0; i < p->n; i++) {
        to[i] = from[i];
        if (to[i] == BT_STATE_DEAD) continue;
        BT_TRY(bt_matcher_step(p->matchers[i], from[i], &b, 1, &to[i]));
        work += bt_matcher_work(p->matchers[i]);
    }
    bt_regex_worked(p->g, work);
    BT_TRY(find_place(p, to, place_out));
out:
    return st;
}

/* Lays out what may follow the place: bytes that come to the same are one range. */
static bt_status follow(product *p, uint32_t place)
{
    bt_status              st    = BT_OK;
    const bt_grammar_state at    = p->places.states[place];
    size_t                 bytes = bt_states_bytes(&p->places);
    uint32_t               from[BT_MOST_CONDITIONS], lo = 0, to = 0, next;

    for (uint32_t i = 0; i < p->n; i++) {
        from[i] = p->places.readings[at.first + i].frame;
        bytes += p->matchers[i] != NULL ? bt_matcher_bytes(p->matchers[i]) : 0;
    }
    if (bytes > BT_MATCHER_MOST_BYTES) return BT_ERR_UNSUPPORTED;
    for (uint32_t b = 0; b <= 256; b++) {
        if (b > 0 && b < 256 && !p->begins[b]) continue;
        next = 0;
        if (b < 256) BT_TRY(step(p, from, (uint8_t)b, &next));
        if (next == to) continue;
        if (to != 0)
            bt_part_step(p->g, node_of(p, place), (uint8_t)lo, (uint8_t)(b - 1), node_of(p, to));
        to = next;
        lo = b;
    }
out:
    return st;
}

static bt_status lay_out(product *p, bt_part *part_out)
{
    bt_status st = BT_OK;
    uint32_t  start[BT_MOST_CONDITIONS], first;

    for (uint32_t i = 0; i < p->n; i++) {
        BT_TRY(make_matcher(p, i));
        if (p->matchers[i] == NULL && !p->conditions[i].barred) goto out;
        start[i] = p->matchers[i] == NULL ? BT_STATE_DEAD : bt_matcher_start(p->matchers[i]);
    }
    BT_TRY(bt_states_init(&p->places, 1));
    p->first_node = p->g->n_nodes;
    BT_TRY(find_place(p, start, &first));
    if (first == 0) goto out;
    bt_part_join(p->g, part_out->start, node_of(p, first));
    for (uint32_t place = first; place <= p->n_nodes && p->g->st == BT_OK; place++) {
        BT_TRY(follow(p, place));
        if (p->places.states[place].accepts) bt_part_join(p->g, node_of(p, place), part_out->end);
    }
out:
    return st;
}

void bt_condition_read(bt_parts *g, const bt_condition *c)
{
    if (c->g.st == BT_ERR_INVALID_ARG) bt_parts_refuse(g, "%s", c->g.why);
    if (c->g.st == BT_ERR_NO_MEMORY) bt_parts_no_memory(g);
    bt_regex_worked(g, c->g.work + BT_NODE_WORK * (size_t)c->g.n_nodes);
}

bt_part bt_part_under(bt_parts *g, const bt_condition *conditions, uint32_t n)
{
    product   p    = {.g = g, .conditions = conditions, .n = n};
    bt_part   part = bt_part_never(g);
    bt_status st   = g->st == BT_OK ? lay_out(&p, &part) : g->st;

    if (st == BT_ERR_UNSUPPORTED) bt_regex_worked(g, BT_REGEX_WORK);
    if (st == BT_ERR_NO_MEMORY) bt_parts_no_memory(g);
    for (uint32_t i = 0; i < n; i++)
        bt_matcher_destroy(p.matchers[i]);
    bt_states_fini(&p.places);
    return part;
}

void bt_regex_worked(bt_parts *g, size_t work)
{
    g->work += work;
    if (g->work >= BT_REGEX_WORK)
        bt_parts_refuse(g, "its regular expressions come to too much with their look-aheads");
}
