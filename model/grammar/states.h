/* model/grammar/states.h - what texts have come to, inside this folder: frames, states and the
 * steps between them, each kept once. */
#ifndef BT_MODEL_GRAMMAR_STATES_H
#define BT_MODEL_GRAMMAR_STATES_H

#include "model/grammar/grammar.h"

#define BT_STEP_UNKNOWN UINT32_MAX

/* One reading of the text so far: it stands at this node, within these calls. */
typedef struct {
    uint32_t node, frame;
} bt_reading;

/* A call that is open: the node where it goes on, and the call around it.  Frame 0: none is. */
typedef struct {
    uint32_t back, outer;
} bt_frame;

typedef struct {
    uint32_t first, n; /* of the readings: ascending */
    bool     accepts;
} bt_grammar_state;

/* Open addressing over numbers; 0 is a free slot. */
typedef struct {
    uint32_t *slots; /* owned [capacity]; a power of two, or none */
    uint32_t  n, capacity;
} bt_number_table;

typedef uint64_t bt_number_hash(const void *of, uint32_t number);

/* Room for one more number.  NO_MEMORY. */
bt_status bt_number_table_grow(bt_number_table *t, bt_number_hash *hash, const void *of);

typedef struct {
    bt_frame         *frames;   /* owned; [0] is none */
    bt_grammar_state *states;   /* owned; [0] is dead */
    bt_reading       *readings; /* owned */
    uint32_t         *steps;    /* owned [states_capacity][n_classes] */
    uint32_t          n_classes, n_frames, n_states, n_readings;
    uint32_t          frames_capacity, states_capacity, readings_capacity;
    bt_number_table   frame_table, state_table;
} bt_states;

/* NO_MEMORY. */
bt_status bt_states_init(bt_states *s, uint32_t n_classes);
void      bt_states_fini(bt_states *s);
size_t    bt_states_bytes(const bt_states *s);

/* The number of what is equal, kept from now on.  NO_MEMORY; UNSUPPORTED (not logged): there are
 * too many. */
bt_status bt_states_frame(bt_states *s, uint32_t back, uint32_t outer, uint32_t *frame_out);
/* readings: [n], sorted here.  None, and no end: the dead state. */
bt_status bt_states_state(bt_states *s, bt_reading *readings, uint32_t n, bool accepts,
                          uint32_t *state_out);
/* Copies n states into `to`, as states_out[n], which may be `states`.  As above. */
bt_status bt_states_copy(const bt_states *s, uint32_t n, const uint32_t *states, bt_states *to,
                         uint32_t *states_out);

/* The work of a step: the readings that are still to be followed, and those that wait for a byte.
 */
typedef struct {
    bt_reading     *open, *kept, *seen; /* owned */
    uint32_t        n_open, n_kept;
    size_t          n_edges; /* looked at */
    uint32_t        open_capacity, kept_capacity, seen_capacity;
    bt_number_table seen_table; /* of its n that are seen, by number from 1 on */
    bool            accepts;
} bt_follow;

void bt_follow_fini(bt_follow *f);
/* Begins a set of readings. */
void bt_follow_begin(bt_follow *f);
/* One more reading.  NO_MEMORY; UNSUPPORTED (not logged): there are too many. */
bt_status bt_follow_add(bt_follow *f, bt_reading reading);
/* The state of all readings, and of what they come to without a byte. */
bt_status bt_follow_end(bt_follow *f, const bt_grammar *grammar, bt_states *s, uint32_t *state_out);

#endif
