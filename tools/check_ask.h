/* tools/check_ask.h - runs a command for each of many nodes at once and hears their answers. */
#ifndef BT_TOOLS_CHECK_ASK_H
#define BT_TOOLS_CHECK_ASK_H

#include "core/status.h"
#include "tools/check_node.h"

typedef struct {
    const char   *host; /* borrowed, as is the command */
    char         *command;
    bt_node_facts facts;
    double        skew_s;              /* of its clock against ours, at least; 0: none is certain */
    char          last[BT_CHECK_TEXT]; /* what it said instead of an answer */
    bool          late;                /* its deadline passed before its answer was complete */
} bt_asked_node;

/* Each command by a shell, at most so many at a time that descriptors suffice; a node that has not
 * answered limit_ns after its command was started is given up, and its processes here are killed.
 * NO_MEMORY; what is wrong with a node is in the node. */
bt_status bt_check_ask(bt_asked_node *nodes, uint32_t n_nodes, uint64_t limit_ns);

#endif
