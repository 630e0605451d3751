/* model/graph_plan.h - how the ranks of a group agree whether a decode step is a graph, and which.
 *
 * NCCL asks that all ranks launch an exchange from graphs that they have captured together, or none
 * does.  So each rank offers before the step what it can, and all conclude the same: the step is a
 * graph if every rank's rows allow it and every rank has that graph.  Where some lack it but can
 * capture it, they do so in this step, which itself runs call by call.
 *
 * A graph's shape: rows, the same number on every rank, and parts (of BT_ATTN_SPLIT_TOKENS
 * positions) of the longest context, both rounded up to a power of two. */
#ifndef BT_MODEL_GRAPH_PLAN_H
#define BT_MODEL_GRAPH_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_GRAPH_MAX_ROWS = 256, BT_GRAPH_SIZES = 9, BT_GRAPH_CLASSES = 16 };

/* Of one rank, or of several together; sent as it is.  Bit c of [s]: 2^s rows and 2^c parts. */
typedef struct {
    uint32_t n_parts; /* of the longest context, at least 1; 0: the rows can be no graph */
    uint16_t has[BT_GRAPH_SIZES]; /* captured */
    uint16_t can[BT_GRAPH_SIZES]; /* captured, or still to be */
} bt_graph_offer;

typedef struct {
    uint32_t n_rows;  /* of each rank, with padding; 0: no graph */
    uint32_t n_parts; /* a power of two */
    bool captures;    /* the graph is captured, where it is not there; the step runs call by call */
} bt_graph_choice;

/* i so that 2^i is n or the first above it; n at most 2^31. */
uint32_t bt_log2_up(uint32_t n);
/* all: what it was, and `one`, can do together. */
void bt_graph_join(bt_graph_offer *all, const bt_graph_offer *one);
/* most_rows: of any rank. */
bt_graph_choice bt_graph_choose(const bt_graph_offer *all, uint32_t most_rows);

#ifdef __cplusplus
}
#endif
#endif
