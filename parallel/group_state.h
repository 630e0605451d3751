/* parallel/group_state.h - inside groups only: what group.c and group_exchange.c share.
 *
 * Each pair of ranks has a lane.  A message crosses it in fragments through the group's own
 * staging memory, never through the caller's: a request that is abandoned at a deadline may
 * complete much later, and then must not meet memory that has a new use. */
#ifndef BT_PARALLEL_GROUP_STATE_H
#define BT_PARALLEL_GROUP_STATE_H

#include "parallel/group_parts.h"
#include "parallel/world_state.h"

typedef struct {
    uint32_t peer;   /* world rank */
    bool     rounds; /* the TCP rule holds */
    size_t   fragment_bytes;
    uint8_t *out, *in; /* staging, fragment_bytes each; NULL on the lane to itself */

    const uint8_t *send; /* of the present operation: the caller's */
    uint8_t       *recv;
    size_t         send_bytes, recv_bytes;
    size_t         n_send, n_recv; /* messages */
    size_t         n_sent, n_received;
    size_t         in_bytes; /* expected in the message under way */
} bt_group_lane;

struct bt_group {
    bt_world      *world;
    uint32_t       n, self, tag_space, epoch;
    uint64_t       sequence, start_ns; /* start_ns: of the present operation */
    int            tag;
    bool           broken; /* an operation failed: the ranks disagree on the sequence */
    bt_wreck      *arena;  /* staging and requests, in one block that may outlive the group */
    MPI_Request   *requests;
    MPI_Status    *statuses;
    int           *indices;
    bt_group_lane *lanes;
    bt_carrier    *carrier; /* owned; NULL: none */
};

#endif
