/* model/decode_graphs.h - decode steps as graphs: captured once for each padded number of rows and
 * each length of contexts, and launched in place of their hundreds of calls.
 *
 * A step is one graph, its exchanges within, with one rank and where bt_group_captures(); else it
 * is cut at the exchanges, since those are the host's to wait for.  The same launches run either
 * way, so the bits are the same.
 *
 * Threads: the step thread.  Memory: create() and warm() take it. */
#ifndef BT_MODEL_DECODE_GRAPHS_H
#define BT_MODEL_DECODE_GRAPHS_H

#include "model/model.h"

typedef struct bt_decode_graphs bt_decode_graphs;

/* Graphs are destroyed at the end of what carries the group's exchanges, and captured anew when
 * they are wanted.  *graphs_out is left alone where the device has no graphs, or the weights of the
 * absorbed form are not here.  `model`, which has its weights, is borrowed, as is its group, which
 * must outlive it. */
bt_status bt_decode_graphs_create(bt_model *model, bt_decode_graphs **graphs_out);
void      bt_decode_graphs_destroy(bt_decode_graphs *g); /* NULL is allowed */
/* Captures what steps may need, in a group that is warm.  wait: for the capture of an exchange. */
bt_status bt_decode_graphs_warm(bt_decode_graphs *g, bt_kv_pool *pool, const bt_wait *wait);
/* Whether this step can be one of them: padded, one generated row a request in the absorbed form,
 * its tokens drawn on the device, and within the workspaces. */
bool bt_decode_graphs_take(const bt_decode_graphs *g, const bt_step *step);
/* Captures what such a step needs, if it is not there.  Local, whatever the others do. */
bt_status bt_decode_graphs_prepare(bt_decode_graphs *g, bt_kv_pool *pool, const bt_step *step);
/* As bt_model_step() up to the logits of all rows, in order; enqueued.  Collective over the group,
 * as the same step without graphs. */
bt_status bt_decode_graphs_run(bt_decode_graphs *g, bt_kv_pool *pool, const bt_step *step);

#endif
