/* worker/scheduler.h - which rows this rank brings to the next step.
 *
 * Plain functions of the request table.  Prompts come in pieces of at most `chunk` rows; several
 * share a step.  Those that one piece ends go before the longer ones, so that a long prompt never
 * holds them up for more than a piece; but where a step has passed over the long ones, one of them
 * is the first of the next, and those that have begun take turns.  Among equals: the oldest first,
 * but behind those whose hand-off has begun, which has a deadline.  A prompt that is not the step's
 * first waits for the next step rather than take a piece that is cut short by the budget; and one
 * that would not end with its piece waits where another prompt of the step computes its next page,
 * which it then finds in the cache.  Decoding requests bring one row each (an evaluation or a
 * replay its next known tokens, up to `chunk`); where they exceed the budget they take turns. With
 * both roles prompts keep a quarter of the budget while any waits.
 *
 * Where the rank speculates, a request that brings its last known token brings a draft's rows as
 * well, into the pages that it has: as long as the step stays small, where a row costs little.  The
 * draft is that of the model's own layer (mtp.c), or, where that has none or one that begins alike,
 * a longer one that is looked up. */
#ifndef BT_WORKER_SCHEDULER_H
#define BT_WORKER_SCHEDULER_H

#include "worker/requests.h"

typedef struct {
    bt_request *request; /* borrowed */
    bt_role     role;
    uint32_t    start, n_rows; /* absolute position of the first row */
    uint32_t    n_draft;       /* of these rows, the last ones: their tokens are a draft's, */
    bool        looked_up;     /* from the request's drafter */
} bt_piece;

/* Whether the piece is of its request's prompt; no piece has rows of both sides. */
static inline bool bt_piece_is_prompt(const bt_piece *p) { return p->start < p->request->n_prompt; }

typedef struct {
    uint32_t max_rows, chunk; /* 1 <= chunk <= max_rows */
    uint32_t speculate;       /* most tokens of a draft that is looked up; 0: none */
    uint32_t draft_rows; /* most rows of a step with drafts that are looked up, at most max_rows */
    uint32_t mtp_rows;   /* likewise, with those of the model's own layer; 0: there are none */
    uint32_t draft_turn; /* whose draft comes first where these are too few */
    uint32_t turn;       /* which decoding request comes first when not all fit */
    bool     prompts_turn; /* with max_rows 1 the roles alternate */
    bool     long_turn;    /* a prompt of several pieces got nothing in the last step */
} bt_scheduler;

/* Into pieces_out (room for max_rows), those of role prompt first; returns how many, their rows by
 * role in rows_out. */
uint32_t bt_schedule(bt_scheduler *s, const bt_requests *t, bt_piece *pieces_out,
                     uint32_t rows_out[BT_N_ROLES]);

#endif
