/* cli/eval_cell.h - the coordinator's part of `baton logits`: gives the cases to the ranks of a
 * cell of its own, and gathers the rows.
 *
 * It speaks the control protocol as the coordinator does (wake, reserve, ticket, prefill, abort,
 * released), so that the rows come from the very path that serves.
 *
 * Threads: the one that drives the loop. */
#ifndef BT_CLI_EVAL_CELL_H
#define BT_CLI_EVAL_CELL_H

#include "cli/eval_cases.h"
#include "core/parse.h"
#include "proto/rpc.h"

typedef struct bt_eval_cell bt_eval_cell;

typedef struct {
    const char *address;             /* of the control port, "127.0.0.1:0" */
    uint32_t    n_prefill, n_decode; /* 0 and 0: all ranks have both roles */
    uint32_t    n_ranks;
    uint32_t    n_parallel; /* cases under way at once */
} bt_eval_options;

/* Listens.  `cases` is borrowed; address_out is where the ranks attach. */
bt_status bt_eval_cell_create(bt_rpc_loop *loop, const bt_eval_options *options,
                              bt_eval_cases *cases, bt_eval_cell **cell_out,
                              char address_out[BT_ADDRESS_BYTES]);
/* After stop and an idle loop.  False: as bt_control_server_destroy(). */
bool bt_eval_cell_destroy(bt_eval_cell *cell);

/* The first failure (already logged), or BT_OK. */
bt_status bt_eval_cell_status(const bt_eval_cell *cell);
/* Every case has all of its rows, and no rank holds anything of it. */
bool bt_eval_cell_done(const bt_eval_cell *cell);
/* "rank 2 has not attached", "case chat: 12 of 60 rows": what a wait is waiting for. */
const char *bt_eval_cell_waits_for(const bt_eval_cell *cell, char *buf, size_t capacity);
/* Every rank has loaded its part of the model. */
bool bt_eval_cell_ready(const bt_eval_cell *cell);
/* Grows with every message but beats, which parked ranks send too: a watchdog's food. */
uint64_t bt_eval_cell_progress(const bt_eval_cell *cell);

/* Tells the ranks to leave; what they do then is no failure any more. */
void bt_eval_cell_shutdown(bt_eval_cell *cell);
/* Ranks still attached. */
uint32_t bt_eval_cell_attached(const bt_eval_cell *cell);
/* Cancels the streams and stops listening. */
void bt_eval_cell_stop(bt_eval_cell *cell);

#endif
