/* model/grammar/follow.c - from some readings to all that they come to without a byte: by edges of
 * nothing, into rules, and out of them. */
#include <string.h>
#include <xxhash.h>

#include "core/alloc.h"
#include "model/grammar/states.h"

enum { MOST_READINGS = 1 << 14, FIRST_SLOTS = 64 };

void bt_follow_fini(bt_follow *f)
{
    bt_free(f->open);
    bt_free(f->kept);
    bt_free(f->seen);
    bt_free(f->seen_table.slots);
    *f = (bt_follow){0};
}

static bt_status push(bt_reading **at, uint32_t *n, uint32_t *capacity, bt_reading reading)
{
    bt_status st = BT_OK;

    if (*n == *capacity) {
        uint32_t    more  = *capacity == 0 ? 64 : 2 * *capacity;
        bt_reading *grown = bt_realloc(*at, more, sizeof(*grown));

        BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "readings of a text");
        *at       = grown;
        *capacity = more;
    }
    (*at)[(*n)++] = reading;
out:
    return st;
}

static uint32_t slot_of(const bt_number_table *t, const bt_reading *reading)
{
    return (uint32_t)XXH3_64bits(reading, sizeof(*reading)) & (t->capacity - 1);
}

/* Twice the slots, all free of what no set holds any more. */
static bt_status grow_seen(bt_follow *f)
{
    bt_status        st    = BT_OK;
    bt_number_table *t     = &f->seen_table;
    uint32_t         n     = t->capacity == 0 ? FIRST_SLOTS : 2 * t->capacity;
    uint32_t        *slots = bt_calloc(n, sizeof(*slots));

    BT_REQUIRE(slots != NULL, BT_ERR_NO_MEMORY, "readings of a text");
    bt_free(t->slots);
    t->slots    = slots;
    t->capacity = n;
    for (uint32_t i = 0; i < f->n_seen; i++) {
        uint32_t at = slot_of(t, &f->seen[i]);

        while (slots[at] != 0)
            at = (at + 1) & (n - 1);
        slots[at] = i + 1;
    }
out:
    return st;
}

void bt_follow_begin(bt_follow *f)
{
    for (uint32_t i = 0; i < f->n_seen; i++) { /* few of many slots */
        uint32_t at = slot_of(&f->seen_table, &f->seen[i]);

        while (f->seen_table.slots[at] != 0) {
            f->seen_table.slots[at] = 0;
            at                      = (at + 1) & (f->seen_table.capacity - 1);
        }
    }
    f->n_open = f->n_kept = f->n_seen = 0;
    f->n_edges                        = 0;
    f->accepts                        = false;
}

bt_status bt_follow_add(bt_follow *f, bt_reading reading)
{
    bt_status        st = BT_OK;
    bt_number_table *t  = &f->seen_table;
    uint32_t         at;

    if (2 * (f->n_seen + 1) > t->capacity) BT_TRY(grow_seen(f));
    at = slot_of(t, &reading);
    for (; t->slots[at] != 0; at = (at + 1) & (t->capacity - 1))
        if (memcmp(&f->seen[t->slots[at] - 1], &reading, sizeof(reading)) == 0) return BT_OK;
    if (f->n_seen == MOST_READINGS) return BT_ERR_UNSUPPORTED;
    BT_TRY(push(&f->seen, &f->n_seen, &f->seen_capacity, reading));
    t->slots[at] = f->n_seen;
    BT_TRY(push(&f->open, &f->n_open, &f->open_capacity, reading));
out:
    return st;
}

static bt_status follow_edges(bt_follow *f, const bt_grammar *grammar, bt_states *s, bt_reading r)
{
    bt_status st       = BT_OK;
    bool      consumes = false;

    f->n_edges += grammar->first[r.node + 1] - grammar->first[r.node];
    for (uint32_t i = grammar->first[r.node]; i < grammar->first[r.node + 1]; i++) {
        const bt_grammar_edge *e    = &grammar->edges[i];
        bt_reading             next = {e->to, r.frame};
        bool                   tail = (grammar->ends[e->to] & BT_NODE_TAIL) != 0;

        consumes = consumes || e->kind == BT_EDGE_BYTES;
        if (e->kind == BT_EDGE_BYTES) continue;
        if (e->kind == BT_EDGE_CALL) {
            next.node = e->rule_start;
            /* What is called last ends with its caller, so that lists need no frame an item. */
            if (!tail) BT_TRY(bt_states_frame(s, e->to, r.frame, &next.frame));
        }
        BT_TRY(bt_follow_add(f, next));
    }
    if (consumes) BT_TRY(push(&f->kept, &f->n_kept, &f->kept_capacity, r));
out:
    return st;
}

bt_status bt_follow_end(bt_follow *f, const bt_grammar *grammar, bt_states *s, uint32_t *state_out)
{
    bt_status st = BT_OK;

    while (f->n_open > 0) {
        bt_reading r = f->open[--f->n_open];

        BT_TRY(follow_edges(f, grammar, s, r));
        if ((grammar->ends[r.node] & BT_NODE_END) == 0) continue;
        if (r.frame == 0)
            f->accepts = true;
        else
            BT_TRY(
                bt_follow_add(f, (bt_reading){s->frames[r.frame].back, s->frames[r.frame].outer}));
    }
    BT_TRY(bt_states_state(s, f->kept, f->n_kept, f->accepts, state_out));
out:
    return st;
}
