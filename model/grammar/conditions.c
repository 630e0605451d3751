/* model/grammar/conditions.c - texts under several conditions at once: each is made deterministic,
 * byte by byte, and what they come to together becomes an automaton (the product). */
#include <xxhash.h>

#include "core/alloc.h"
#include "model/grammar/matcher.h"
#include "model/grammar/regex.h"

enum {
    MOST_PLACES = 1 << 16,
    N_SLOTS     = 2 * MOST_PLACES,
    MOST_WORK   = 1 << 24 /* of the matchers of all conditions of a grammar: some hundredths of a
                             second */
};

typedef struct {
    bt_parts           *g;
    const bt_condition *conditions;
    uint32_t            n;
    bt_matcher         *matchers[BT_MOST_CONDITIONS]; /* owned */
    bool                begins[256];                  /* bytes before which some matcher differs */
    /* A place is the states of all conditions, and a node. */
    uint32_t *places; /* owned [MOST_PLACES][n] */
    uint32_t *nodes;  /* owned [MOST_PLACES] */
    uint32_t *slots;  /* owned [N_SLOTS]: open addressing, 1 + a place, or 0 */
    uint32_t  n_places;
} product;

/* The condition's own automaton.  *never: no text at all is of it. */
static bt_status make_matcher(product *p, uint32_t i, bool *never)
{
    const bt_condition *c       = &p->conditions[i];
    bt_grammar         *grammar = NULL;
    char                why[BT_GRAMMAR_WHY_BYTES];
    bt_status           st = bt_grammar_pack(&c->g, c->is, &grammar, why);

    if (st == BT_ERR_INVALID_ARG) {
        *never = true;
        return BT_OK;
    }
    BT_TRY(st);
    for (uint32_t b = 1; b < 256; b++)
        p->begins[b] = p->begins[b] || grammar->class_of[b] != grammar->class_of[b - 1];
    BT_TRY(bt_matcher_create(grammar, NULL, &p->matchers[i]));
    grammar = NULL; /* handed over */
out:
    bt_grammar_destroy(grammar);
    return st;
}

/* False: there are too many. */
static bool find_place(product *p, const uint32_t *states, uint32_t *place_out)
{
    size_t   bytes = p->n * sizeof(*states);
    uint32_t slot  = (uint32_t)XXH3_64bits(states, bytes) & (N_SLOTS - 1);

    for (; p->slots[slot] != 0; slot = (slot + 1) & (N_SLOTS - 1)) {
        *place_out = p->slots[slot] - 1;
        if (memcmp(p->places + (size_t)*place_out * p->n, states, bytes) == 0) return true;
    }
    if (p->n_places == MOST_PLACES) return false;
    *place_out = p->n_places;
    memcpy(p->places + (size_t)p->n_places * p->n, states, bytes);
    p->nodes[p->n_places] = bt_part_node(p->g);
    p->slots[slot]        = ++p->n_places;
    return true;
}

/* What the place comes to with a byte; *lives: some text may go on there. */
static bt_status step(product *p, uint32_t from, uint8_t byte, uint32_t *states, bool *lives)
{
    bt_status st = BT_OK;
    char      b  = (char)byte;

    *lives = true;
    for (uint32_t i = 0; i < p->n && *lives; i++) {
        states[i] = p->places[(size_t)from * p->n + i];
        if (p->matchers[i] == NULL) continue;
        BT_TRY(bt_matcher_step(p->matchers[i], states[i], &b, 1, &states[i]));
        p->g->work += bt_matcher_work(p->matchers[i]);
        *lives = p->conditions[i].barred || states[i] != BT_STATE_DEAD;
    }
    if (p->g->work > MOST_WORK) st = BT_ERR_UNSUPPORTED;
out:
    return st;
}

static bool accepts(const product *p, uint32_t place)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->matchers[i] != NULL &&
            bt_matcher_accepts(p->matchers[i], p->places[(size_t)place * p->n + i]) ==
                p->conditions[i].barred)
            return false;
    return true;
}

/* Lays out what may follow the place: bytes that come to the same are one range. */
static bt_status follow(product *p, uint32_t from)
{
    bt_status st = BT_OK;
    uint32_t  states[BT_MOST_CONDITIONS], lo = 0, to = 0, next = 0;
    bool      lives = false, goes_on;

    for (uint32_t b = 0; b <= 256; b++) {
        if (b > 0 && b < 256 && !p->begins[b]) continue;
        goes_on = b < 256;
        if (goes_on) BT_TRY(step(p, from, (uint8_t)b, states, &goes_on));
        if (goes_on && !find_place(p, states, &next)) return BT_ERR_UNSUPPORTED;
        if (lives && goes_on && next == to) continue;
        if (lives) bt_part_step(p->g, p->nodes[from], (uint8_t)lo, (uint8_t)(b - 1), p->nodes[to]);
        lives = goes_on;
        to    = next;
        lo    = b;
    }
out:
    return st;
}

static bt_status lay_out(product *p, bt_part *part_out)
{
    bt_status st                         = BT_OK;
    uint32_t  states[BT_MOST_CONDITIONS] = {0}, first;
    bool      never                      = false;

    for (uint32_t i = 0; i < p->n; i++) {
        bool none = false;

        BT_TRY(make_matcher(p, i, &none));
        never = never || (none && !p->conditions[i].barred);
        if (!none) states[i] = bt_matcher_start(p->matchers[i]);
    }
    *part_out = bt_part_never(p->g);
    if (never) goto out;
    p->places = bt_calloc((size_t)MOST_PLACES * p->n, sizeof(*p->places));
    p->nodes  = bt_calloc(MOST_PLACES, sizeof(*p->nodes));
    p->slots  = bt_calloc(N_SLOTS, sizeof(*p->slots));
    BT_REQUIRE(p->places != NULL && p->nodes != NULL && p->slots != NULL, BT_ERR_NO_MEMORY,
               "a grammar under %u conditions", p->n);
    find_place(p, states, &first);
    bt_part_join(p->g, part_out->start, p->nodes[first]);
    for (uint32_t i = 0; i < p->n_places && p->g->st == BT_OK; i++) {
        BT_TRY(follow(p, i));
        if (accepts(p, i)) bt_part_join(p->g, p->nodes[i], part_out->end);
    }
out:
    return st;
}

bt_part bt_part_under(bt_parts *g, const bt_condition *conditions, uint32_t n)
{
    product   p    = {.g = g, .conditions = conditions, .n = n};
    bt_part   part = {0};
    bt_status st   = g->st == BT_OK ? lay_out(&p, &part) : g->st;

    if (st == BT_ERR_UNSUPPORTED)
        bt_parts_refuse(g, "the regular expression comes to too many parts with its look-aheads");
    if (st == BT_ERR_NO_MEMORY) g->st = st;
    for (uint32_t i = 0; i < n; i++)
        bt_matcher_destroy(p.matchers[i]);
    bt_free(p.places);
    bt_free(p.nodes);
    bt_free(p.slots);
    return g->st == BT_OK ? part : bt_part_never(g);
}
