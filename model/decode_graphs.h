/* model/decode_graphs.h - decode steps as graphs: captured once for each padded number of rows and
 * each length of contexts, and launched in place of their hundreds of calls.
 *
 * A step is cut where its group exchanges rows, since those are the host's to wait for; with one
 * rank it is one graph.  The same launches run either way, so the bits are the same.
 *
 * Threads: the step thread.  Memory: create() and warm() take it. */
#ifndef BT_MODEL_DECODE_GRAPHS_H
#define BT_MODEL_DECODE_GRAPHS_H

#include "model/model.h"

typedef struct bt_decode_graphs bt_decode_graphs;

/* *graphs_out is left alone where the device has no graphs, or the weights of the absorbed form are
 * not here.  `model`, which has its weights, is borrowed. */
bt_status bt_decode_graphs_create(bt_model *model, bt_decode_graphs **graphs_out);
void      bt_decode_graphs_destroy(bt_decode_graphs *g); /* NULL is allowed */
/* Captures what steps may need. */
bt_status bt_decode_graphs_warm(bt_decode_graphs *g, bt_kv_pool *pool);
/* Whether this step is one of them: padded, one generated row a request in the absorbed form, its
 * tokens drawn on the device, and within the workspaces. */
bool bt_decode_graphs_take(const bt_decode_graphs *g, const bt_step *step);
/* As bt_model_step() up to the logits of all rows, in order; enqueued.  Collective over the group,
 * as the same step without graphs. */
bt_status bt_decode_graphs_run(bt_decode_graphs *g, bt_kv_pool *pool, const bt_step *step);

#endif
