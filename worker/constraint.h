/* worker/constraint.h - which texts the replies of this rank's requests may be (structured output).
 *
 * A constraint is a grammar of the client's (model/grammar/) run over the model's vocabulary.
 * Requests with equal texts share one, with what it has learnt of its states.  Where a choice
 * stands in it follows from the choice's tokens alone, so that a replay comes to the same.
 *
 * Threads: the step thread; bt_constraint_mask() any thread.
 * Memory: beside the account (worker/memory.h).  Each has its grammar, of 8 MB at most, and what it
 * has learnt, of about 64 MB; where all of them have more than `most_bytes`, what nobody stands in
 * is given back before each step. */
#ifndef BT_WORKER_CONSTRAINT_H
#define BT_WORKER_CONSTRAINT_H

#include "model/grammar/matcher.h"
#include "proto/control_msg.h"

#define BT_CONSTRAINTS_BYTES ((size_t)1 << 30) /* of a rank */

typedef struct bt_constraints bt_constraints; /* of a rank */
typedef struct bt_constraint  bt_constraint;  /* counted */

/* Reads the tokenizer in the model's directory.  *all_out is NULL where there is none, or none that
 * can be read (logged): such a rank takes no constraints.  NO_MEMORY.  A vocabulary of 129,280
 * tokens takes some 0.4 s. */
bt_status bt_constraints_open(const char *model, uint32_t n_vocab, size_t most_bytes,
                              bt_constraints **all_out);
void bt_constraints_close(bt_constraints *all); /* nobody holds one any more; NULL is allowed */

/* The constraint of the sampling, which has one.  INVALID_ARG: a sentence that says what is
 * refused; also when all is NULL. */
bt_status bt_constraint_acquire(bt_constraints *all, const bt_sampling *sampling,
                                bt_constraint **constraint_out);
void      bt_constraint_share(bt_constraint *c);   /* one more; NULL is allowed */
void      bt_constraint_release(bt_constraint *c); /* NULL is allowed */

/* Where a choice stands in its constraint. */
typedef struct {
    uint32_t state; /* bt_matcher's; void as long as it waits */
    uint32_t after; /* 1 + the token that it waits for, behind which it is constrained; 0: none */
} bt_constraint_at;

bt_constraint_at bt_constraint_begin(const bt_constraint *c, const bt_sampling *sampling);
/* Behind one more token.  A token that does not belong there leads to where nothing may follow.
 * UNSUPPORTED (not logged: check() does): the grammar can be read in too many ways; NO_MEMORY. */
bt_status bt_constraint_next(bt_constraint *c, const bt_constraint_at *at, uint32_t id,
                             bt_constraint_at *next_out);
/* bits: [bt_mask_words(n_vocab)], of a choice that does not wait: the tokens of texts that may
 * follow. *ends_out: the reply may end there.  Errors as of bt_constraint_next(); UNSUPPORTED also
 * where a millisecond or so is not enough, unless it is begun before until_ns, behind other
 * threads' masks of this constraint. */
bt_status bt_constraint_mask(bt_constraint *c, const bt_constraint_at *at, uint64_t until_ns,
                             uint32_t *bits, bool *ends_out);

/* What next() or mask() have met, perhaps in another thread, is the request's error: INVALID_ARG
 * (logged by the thread that calls this, which tells the client); NO_MEMORY. */
bt_status bt_constraint_check(bt_status met);

/* Whether all of them have more than most_bytes; false for NULL. */
bool bt_constraints_are_crowded(const bt_constraints *all);
/* Whether there is memory to give back, for which all that stand in it are needed. */
bool bt_constraint_is_large(const bt_constraint *c, bool crowded);
/* Gives it back; live[n]: those.  NO_MEMORY leaves everything as it was. */
bt_status bt_constraint_trim(bt_constraint *c, uint32_t n, bt_constraint_at **live);

#endif
