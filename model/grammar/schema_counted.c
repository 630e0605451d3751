/* model/grammar/schema_counted.c - texts of a pattern that have so many characters.
 *
 * The pattern is made deterministic, byte by byte as it stands in a JSON string, and laid out once
 * for each number of characters that have come (the product with a counter).  A character is a
 * whole escape, or UTF-8's first byte with those behind it. */
#include "core/alloc.h"
#include "model/grammar/schema.h"

enum {
    MOST_PLACES = 512,
    MOST_RANGES = 1 << 14,
    MOST_STATES = 1 << 14,
    MOST_WORK   = 1 << 24, /* of the matcher: some hundredths of a second */
    STEP_WORK   = 64       /* as much as a step of the schema takes */
};

/* Where a text stands: at a state, between characters or within an escape. */
typedef enum { BETWEEN, ESCAPED, HEX_1, HEX_2, HEX_3, HEX_4, N_WITHIN } within;

typedef struct {
    uint32_t state;
    within   within;
} place;

/* Bytes lo..hi lead from one place to another; counted: with them a character begins. */
typedef struct {
    uint32_t from, to;
    uint8_t  lo, hi;
    bool     counted;
} range;

typedef struct {
    bt_matcher *m;
    place       places[MOST_PLACES];
    range       ranges[MOST_RANGES];
    uint32_t    index[MOST_STATES][N_WITHIN]; /* 1 + the place, or 0 */
    uint32_t    n_places, n_ranges;
    size_t      work;
} counter;

static within next_within(within at, uint8_t byte)
{
    switch (at) {
    case BETWEEN: return byte == '\\' ? ESCAPED : BETWEEN;
    case ESCAPED: return byte == 'u' ? HEX_4 : BETWEEN;
    case HEX_2:
    case HEX_3:
    case HEX_4: return at - 1;
    default: return BETWEEN;
    }
}

/* False: there are too many. */
static bool find_place(counter *c, uint32_t state, within at, uint32_t *place_out)
{
    if (state >= MOST_STATES) return false;
    if (c->index[state][at] == 0) {
        if (c->n_places == MOST_PLACES) return false;
        c->places[c->n_places] = (place){state, at};
        c->index[state][at]    = ++c->n_places;
    }
    *place_out = c->index[state][at] - 1;
    return true;
}

/* One byte more of the range before, or a range of its own. */
static bool add_byte(counter *c, uint32_t from, uint32_t to, uint8_t byte, bool counted)
{
    range *last = c->n_ranges == 0 ? NULL : &c->ranges[c->n_ranges - 1];

    if (last != NULL && last->from == from && last->to == to && last->counted == counted &&
        last->hi + 1 == byte) {
        last->hi = byte;
        return true;
    }
    if (c->n_ranges == MOST_RANGES) return false;
    c->ranges[c->n_ranges++] = (range){from, to, byte, byte, counted};
    return true;
}

/* What may follow the place.  UNSUPPORTED: there is too much. */
static bt_status follow(counter *c, uint32_t from)
{
    bt_status st = BT_OK;
    place     at = c->places[from];

    for (uint32_t b = 0; b < 256; b++) {
        char     byte    = (char)b;
        bool     counted = at.within == BETWEEN && (b & 0xC0) != 0x80;
        uint32_t next    = BT_STATE_DEAD, to;

        BT_TRY(bt_matcher_step(c->m, at.state, &byte, 1, &next));
        c->work += bt_matcher_work(c->m);
        if (c->work > MOST_WORK) return BT_ERR_UNSUPPORTED;
        if (next == BT_STATE_DEAD) continue;
        if (!find_place(c, next, next_within(at.within, (uint8_t)b), &to) ||
            !add_byte(c, from, to, (uint8_t)b, counted))
            return BT_ERR_UNSUPPORTED;
    }
out:
    return st;
}

/* All places and ranges of the pattern. */
static bt_status find_all(counter *c)
{
    bt_status st = BT_OK;
    uint32_t  first;

    find_place(c, bt_matcher_start(c->m), BETWEEN, &first);
    for (uint32_t i = 0; i < c->n_places; i++)
        BT_TRY(follow(c, i));
out:
    return st;
}

/* A node for each place and number of characters, up to n; where nothing is too much, from n on all
 * are n.  nodes: [n_places][n + 1]. */
static bt_part lay_out(bt_parts *g, const counter *c, uint32_t min, uint32_t n, bool saturates,
                       uint32_t *nodes)
{
    bt_part part = bt_part_never(g);

    for (uint32_t i = 0; i < c->n_places * (n + 1) && g->st == BT_OK; i++)
        nodes[i] = bt_part_node(g);
    for (uint32_t i = 0; i < c->n_places; i++)
        for (uint32_t k = min; k <= n && g->st == BT_OK; k++)
            if (bt_matcher_accepts(c->m, c->places[i].state))
                bt_part_join(g, nodes[i * (n + 1) + k], part.end);
    for (uint32_t i = 0; i < c->n_ranges; i++)
        for (uint32_t k = 0; k <= n && g->st == BT_OK; k++) {
            const range *r  = &c->ranges[i];
            uint32_t     to = k + r->counted;

            if (to > n && !saturates) continue;
            to = to > n ? n : to;
            bt_part_step(g, nodes[r->from * (n + 1) + k], r->lo, r->hi,
                         nodes[r->to * (n + 1) + to]);
        }
    if (g->st == BT_OK) bt_part_join(g, part.start, nodes[0]);
    return part;
}

/* The pattern by itself.  What it refuses has been refused before. */
static bt_status make_matcher(const char *pattern, size_t n, size_t *work_out, bt_matcher **m_out)
{
    bt_parts    g       = {0};
    bt_grammar *grammar = NULL;
    uint32_t    least, most;
    char        why[BT_GRAMMAR_WHY_BYTES];
    bt_part     part = bt_read_pattern(&g, pattern, n, &least, &most);
    bt_status   st   = bt_grammar_pack(&g, part, &grammar, why);

    *work_out = g.work + STEP_WORK * (size_t)g.n_nodes;
    bt_parts_fini(&g);
    BT_TRY(st);
    BT_TRY(bt_matcher_create(grammar, NULL, m_out));
    grammar = NULL; /* handed over */
out:
    bt_grammar_destroy(grammar);
    return st;
}

bt_part bt_schema_counted(bt_schema *s, const char *pattern, size_t n_bytes, uint32_t min,
                          uint32_t max, const bt_schema_at *at)
{
    bt_status st    = BT_OK;
    counter  *c     = bt_calloc(1, sizeof(*c));
    uint32_t *nodes = NULL, n = max == BT_UNLIMITED ? min : max;
    bt_part   part = {0};

    BT_REQUIRE(c != NULL, BT_ERR_NO_MEMORY, "a pattern of a length");
    st = make_matcher(pattern, n_bytes, &c->work, &c->m);
    if (st == BT_OK) st = find_all(c);
    bt_schema_step(s, at, 256 * (size_t)c->n_places + c->work / STEP_WORK);
    BT_TRY(st);
    if (n >= BT_GRAMMAR_NODES_MAX / c->n_places) {
        st = BT_ERR_UNSUPPORTED;
        goto out;
    }
    nodes = bt_calloc((size_t)c->n_places * (n + 1), sizeof(*nodes));
    BT_REQUIRE(nodes != NULL, BT_ERR_NO_MEMORY, "a pattern of a length");
    part = lay_out(s->g, c, min, n, max == BT_UNLIMITED, nodes);
out:
    if (st == BT_ERR_INVALID_ARG) part = bt_part_never(s->g);
    if (st == BT_ERR_UNSUPPORTED)
        bt_schema_refuse(s, at, "beside this minLength or maxLength it comes to too many parts");
    if (st == BT_ERR_NO_MEMORY) bt_parts_no_memory(s->g);
    if (c != NULL) bt_matcher_destroy(c->m);
    bt_free(nodes);
    bt_free(c);
    return part;
}
