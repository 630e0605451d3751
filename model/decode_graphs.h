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
/* Captures what steps may need, in a group that is warm, as far as that goes.  wait: for the
 * capture of an exchange. */
void bt_decode_graphs_warm(bt_decode_graphs *g, bt_kv_pool *pool, const bt_wait *wait);
/* What this rank can do for the step, of which `graph` and group_rows are not known yet. */
void bt_decode_graphs_offer(const bt_decode_graphs *g, const bt_step *step,
                            bt_graph_offer *offer_out);
/* Whether this rank has offered that. */
bool bt_decode_graphs_allow(const bt_decode_graphs *g, const bt_graph_choice *graph);
/* Captures the step's graph, if it is not there.  Collective over the group.  Where that fails it
 * says so, and captures nothing more; an error only where the group's exchanges have failed. */
bt_status bt_decode_graphs_capture(bt_decode_graphs *g, bt_kv_pool *pool, const bt_step *step);
/* As bt_model_step() up to the logits of all rows, in order, by the step's graph, which is there;
 * enqueued.  Collective over the group. */
bt_status bt_decode_graphs_run(bt_decode_graphs *g, bt_kv_pool *pool, const bt_step *step);

#endif
