/* model/grammar/follow.c - from some readings to all that they come to without a byte: by edges of
 * nothing, into rules, and out of them. */
#include <string.h>
#include <xxhash.h>

#include "core/alloc.h"
#include "model/grammar/states.h"

enum { MOST_READINGS = 1 << 14 };

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

static uint64_t hash_seen(const void *of, uint32_t number)
{
    const bt_follow *f = of;

    return XXH3_64bits(&f->seen[number - 1], sizeof(*f->seen));
}

void bt_follow_begin(bt_follow *f)
{
    bt_number_table *t = &f->seen_table;

    for (uint32_t i = 1; i <= t->n; i++) { /* few of many slots */
        uint32_t at = (uint32_t)hash_seen(f, i) & (t->capacity - 1);

        for (; t->slots[at] != 0; at = (at + 1) & (t->capacity - 1))
            t->slots[at] = 0;
    }
    f->n_open = f->n_kept = t->n = 0;
    f->n_edges                   = 0;
    f->accepts                   = false;
}

bt_status bt_follow_add(bt_follow *f, bt_reading reading)
{
    bt_status        st = BT_OK;
    bt_number_table *t  = &f->seen_table;
    uint32_t         at;

    BT_TRY(bt_number_table_grow(t, hash_seen, f));
    at = (uint32_t)XXH3_64bits(&reading, sizeof(reading)) & (t->capacity - 1);
    for (; t->slots[at] != 0; at = (at + 1) & (t->capacity - 1))
        if (memcmp(&f->seen[t->slots[at] - 1], &reading, sizeof(reading)) == 0) return BT_OK;
    if (t->n == MOST_READINGS) return BT_ERR_UNSUPPORTED;
    BT_TRY(push(&f->seen, &t->n, &f->seen_capacity, reading));
    t->slots[at] = t->n;
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
