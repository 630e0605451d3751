#include "model/grammar/states.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/alloc.h"

enum { MOST_FRAMES = 1 << 20, MOST_STATES = 1 << 20, FIRST_SLOTS = 256 };

/* Room for n of an array. */
static bt_status grow(void *array, size_t size, uint32_t n, uint32_t *capacity)
{
    bt_status st   = BT_OK;
    uint32_t  more = *capacity == 0 ? 64 : *capacity;
    void     *grown;

    while (more < n)
        more *= 2;
    if (more == *capacity) return BT_OK;
    grown = bt_realloc(*(void **)array, more, size);
    BT_REQUIRE(grown != NULL, BT_ERR_NO_MEMORY, "states of a grammar");
    *(void **)array = grown;
    *capacity       = more;
out:
    return st;
}

/* ---- tables */

bt_status bt_number_table_grow(bt_number_table *t, bt_number_hash *hash, const void *of)
{
    bt_status       st    = BT_OK;
    bt_number_table grown = {.n        = t->n,
                             .capacity = t->capacity == 0 ? FIRST_SLOTS : 2 * t->capacity};

    if (2 * (t->n + 1) <= t->capacity) return BT_OK;
    grown.slots = bt_calloc(grown.capacity, sizeof(*grown.slots));
    BT_REQUIRE(grown.slots != NULL, BT_ERR_NO_MEMORY, "states of a grammar");
    for (uint32_t i = 0; i < t->capacity; i++) {
        uint32_t at;

        if (t->slots[i] == 0) continue;
        at = (uint32_t)hash(of, t->slots[i]) & (grown.capacity - 1);
        while (grown.slots[at] != 0)
            at = (at + 1) & (grown.capacity - 1);
        grown.slots[at] = t->slots[i];
    }
    bt_free(t->slots);
    *t = grown;
out:
    return st;
}

static uint64_t hash_frame(const void *of, uint32_t number)
{
    const bt_states *s = of;

    return XXH3_64bits(&s->frames[number], sizeof(*s->frames));
}

static uint64_t hash_readings(const bt_reading *readings, uint32_t n, bool accepts)
{
    return XXH3_64bits_withSeed(readings, n * sizeof(*readings), accepts);
}

static uint64_t hash_state(const void *of, uint32_t number)
{
    const bt_states        *s  = of;
    const bt_grammar_state *at = &s->states[number];

    return hash_readings(s->readings + at->first, at->n, at->accepts);
}

/* ---- frames and states */

void bt_states_fini(bt_states *s)
{
    bt_free(s->frames);
    bt_free(s->states);
    bt_free(s->readings);
    bt_free(s->steps);
    bt_free(s->frame_table.slots);
    bt_free(s->state_table.slots);
    *s = (bt_states){0};
}

/* A state more, whose steps are not known. */
static bt_status add_state(bt_states *s, const bt_grammar_state *state)
{
    bt_status st       = BT_OK;
    uint32_t  capacity = s->states_capacity;
    uint32_t *steps;

    if (s->n_states == MOST_STATES) return BT_ERR_UNSUPPORTED;
    BT_TRY(grow(&s->states, sizeof(*s->states), s->n_states + 1, &s->states_capacity));
    if (capacity != s->states_capacity || s->steps == NULL) {
        steps = bt_realloc(s->steps, (size_t)s->states_capacity * s->n_classes, sizeof(*steps));
        if (steps == NULL) s->states_capacity = capacity;
        BT_REQUIRE(steps != NULL, BT_ERR_NO_MEMORY, "states of a grammar");
        s->steps = steps;
    }
    s->states[s->n_states] = *state;
    memset(s->steps + (size_t)s->n_states * s->n_classes, 0xFF, s->n_classes * sizeof(*s->steps));
    s->n_states++;
out:
    return st;
}

bt_status bt_states_init(bt_states *s, uint32_t n_classes)
{
    bt_status              st   = BT_OK;
    const bt_grammar_state dead = {0};

    *s = (bt_states){.n_classes = n_classes, .n_frames = 1};
    BT_TRY(grow(&s->frames, sizeof(*s->frames), 1, &s->frames_capacity));
    s->frames[0] = (bt_frame){0};
    BT_TRY(add_state(s, &dead));
out:
    if (st != BT_OK) bt_states_fini(s);
    return st;
}

size_t bt_states_bytes(const bt_states *s)
{
    return s->frames_capacity * sizeof(*s->frames) + s->states_capacity * sizeof(*s->states) +
           s->readings_capacity * sizeof(*s->readings) +
           (size_t)s->states_capacity * s->n_classes * sizeof(*s->steps) +
           (s->frame_table.capacity + s->state_table.capacity) * sizeof(uint32_t);
}

bt_status bt_states_frame(bt_states *s, uint32_t back, uint32_t outer, uint32_t *frame_out)
{
    bt_status        st    = BT_OK;
    const bt_frame   frame = {back, outer};
    bt_number_table *t     = &s->frame_table;
    uint32_t         at;

    BT_TRY(bt_number_table_grow(t, hash_frame, s));
    at = (uint32_t)XXH3_64bits(&frame, sizeof(frame)) & (t->capacity - 1);
    for (; t->slots[at] != 0; at = (at + 1) & (t->capacity - 1))
        if (memcmp(&s->frames[t->slots[at]], &frame, sizeof(frame)) == 0) {
            *frame_out = t->slots[at];
            return BT_OK;
        }
    if (s->n_frames == MOST_FRAMES) return BT_ERR_UNSUPPORTED;
    BT_TRY(grow(&s->frames, sizeof(*s->frames), s->n_frames + 1, &s->frames_capacity));
    s->frames[s->n_frames] = frame;
    t->slots[at]           = s->n_frames;
    t->n++;
    *frame_out = s->n_frames++;
out:
    return st;
}

static int by_node(const void *a, const void *b)
{
    const bt_reading *x = a, *y = b;

    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

bt_status bt_states_state(bt_states *s, bt_reading *readings, uint32_t n, bool accepts,
                          uint32_t *state_out)
{
    bt_status        st    = BT_OK;
    bt_number_table *t     = &s->state_table;
    bt_grammar_state state = {.first = s->n_readings, .n = n, .accepts = accepts};
    uint32_t         at;

    if (n == 0 && !accepts) {
        *state_out = 0;
        return BT_OK;
    }
    if (n > 1) qsort(readings, n, sizeof(*readings), by_node); /* of none there may be no memory */
    BT_TRY(bt_number_table_grow(t, hash_state, s));
    at = (uint32_t)hash_readings(readings, n, accepts) & (t->capacity - 1);
    for (; t->slots[at] != 0; at = (at + 1) & (t->capacity - 1)) {
        const bt_grammar_state *is = &s->states[t->slots[at]];

        if (is->n != n || is->accepts != accepts ||
            (n > 0 && memcmp(s->readings + is->first, readings, n * sizeof(*readings)) != 0))
            continue;
        *state_out = t->slots[at];
        return BT_OK;
    }
    BT_TRY(grow(&s->readings, sizeof(*s->readings), s->n_readings + n, &s->readings_capacity));
    BT_TRY(add_state(s, &state));
    if (n > 0) memcpy(s->readings + s->n_readings, readings, n * sizeof(*readings));
    s->n_readings += n;
    t->slots[at] = *state_out = s->n_states - 1;
    t->n++;
out:
    return st;
}

/* moved[frame] from 0 to its number in `to`, of all in which the readings of the states stand: each
 * once, and a frame comes after the one around it. */
static bt_status copy_frames(const bt_states *s, uint32_t n, const uint32_t *states, bt_states *to,
                             uint32_t *moved)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < s->states[states[i]].n; k++) {
            uint32_t at = s->readings[s->states[states[i]].first + k].frame;

            for (; at != 0 && moved[at] == 0; at = s->frames[at].outer)
                moved[at] = 1;
        }
    for (uint32_t at = 1; at < s->n_frames; at++)
        if (moved[at] != 0)
            BT_TRY(bt_states_frame(to, s->frames[at].back, moved[s->frames[at].outer], &moved[at]));
out:
    return st;
}

static bt_status copy_state(const bt_states *s, uint32_t state, const uint32_t *moved,
                            bt_states *to, uint32_t *state_out)
{
    bt_status               st       = BT_OK;
    const bt_grammar_state *from     = &s->states[state];
    bt_reading             *readings = bt_calloc(from->n, sizeof(*readings));

    BT_REQUIRE(readings != NULL, BT_ERR_NO_MEMORY, "states of a grammar");
    for (uint32_t i = 0; i < from->n; i++) {
        const bt_reading *r = &s->readings[from->first + i];

        readings[i] = (bt_reading){r->node, moved[r->frame]};
    }
    BT_TRY(bt_states_state(to, readings, from->n, from->accepts, state_out));
out:
    bt_free(readings);
    return st;
}

bt_status bt_states_copy(const bt_states *s, uint32_t n, const uint32_t *states, bt_states *to,
                         uint32_t *states_out)
{
    bt_status st    = BT_OK;
    uint32_t *moved = bt_calloc(s->n_frames, sizeof(*moved));

    BT_REQUIRE(moved != NULL, BT_ERR_NO_MEMORY, "states of a grammar");
    BT_TRY(copy_frames(s, n, states, to, moved));
    for (uint32_t i = 0; i < n; i++)
        BT_TRY(copy_state(s, states[i], moved, to, &states_out[i]));
out:
    bt_free(moved);
    return st;
}
