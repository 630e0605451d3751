/* parallel/group.h - exchanges among a list of ranks, each with a deadline.
 *
 * A group is a list of world ranks and an epoch.  Its operations are our own, over non-blocking
 * point-to-point with epoch and sequence number in the tag, so that a change of the group is
 * bookkeeping and cannot hang: after start-up no communicator is created and nothing blocks inside
 * MPI.  While an operation waits it polls bt_wait.idle (the hand-off makes progress there).
 *
 * "Collective over <group>": every rank of the group calls it, in the same order, with consistent
 * counts.  When a rank does not answer until the deadline, the others get TIMEOUT, with an error
 * that names the operation, the layer, the epoch and the ranks still waited for.
 *
 * After any error the group is broken: later operations fail with PEER at once, and a new group of
 * a new epoch takes its place.
 *
 * Where ranks do not share memory at most one fragment below the eager limit is under way to each
 * peer (Open MPI can hang otherwise when that peer dies).  BT_TCP_RULE=1 in the environment of any
 * rank forces that rule for all.
 *
 * Threads: the step thread only (MPI_THREAD_FUNNELED).
 * Memory:  create() takes what the operations need (two fragments a peer); counts are bounded by
 *          nothing but the caller's buffers, which are free again when an operation returns, with
 *          any status: a late writer only meets the group's staging memory, which outlives the
 *          group until its requests have completed.  Host memory (the CPU back end's device memory
 *          is host memory). */
#ifndef BT_PARALLEL_GROUP_H
#define BT_PARALLEL_GROUP_H

#include "parallel/world.h"

typedef struct bt_group bt_group;

/* How to wait: all fields may be zero except timeout_ns. */
typedef struct {
    uint64_t    timeout_ns;  /* from the call */
    const char *what;        /* "dispatch", "step plan": for the error */
    int32_t     layer;       /* -1: outside the layers */
    void (*idle)(void *ctx); /* polled while waiting; must not enter this group.  NULL: none */
    void *ctx;
    bool (*stop)(void *ctx); /* true: give up at once with CANCELLED.  NULL: never */
} bt_wait;

/* ranks[0..n): world ranks in the group's order, this rank among them; copied.  `world` is
 * borrowed. `tag_space` 0..7 keeps groups that live side by side apart.  Local.  INVALID_ARG: a
 * rank that the job has not, or twice, a list without this rank, another tag space.  NO_MEMORY. */
bt_status bt_group_create(bt_world *world, uint32_t n, const uint32_t *ranks, uint32_t tag_space,
                          uint32_t epoch, bt_group **group_out);
void      bt_group_destroy(bt_group *group);
uint32_t  bt_group_size(const bt_group *group);
uint32_t  bt_group_self(const bt_group *group); /* this rank's index in the group */
uint32_t  bt_group_world_rank(const bt_group *group, uint32_t index);
uint32_t  bt_group_epoch(const bt_group *group);

/* Collective over the group.  recv[i * bytes ..] = rank i's send[0..bytes).  Of this and the other
 * two: TIMEOUT names ranks that have not come, PEER: one has gone, PROTOCOL: it has sent another
 * length, CANCELLED by wait->stop.  After each of them the group is broken. */
bt_status bt_group_all_gather(bt_group *group, const void *send, size_t bytes, void *recv,
                              const bt_wait *wait);

/* Collective over the group.  To rank i go send[send_at[i] .. + send_bytes[i]), from rank i come
 * recv[recv_at[i] .. + recv_bytes[i]); both sides know the counts (0 is allowed: no message). */
bt_status bt_group_exchange(bt_group *group, const void *send, const size_t *send_at,
                            const size_t *send_bytes, void *recv, const size_t *recv_at,
                            const size_t *recv_bytes, const bt_wait *wait);

/* Operations that have come to their end: to one that gathers all ranks have come. */
uint64_t bt_group_n_met(const bt_group *group);
/* An operation failed: no other one is possible. */
bool bt_group_is_broken(const bt_group *group);
/* After a TIMEOUT or PEER: the world ranks whose part of the operation is missing, at most the
 * group's size of them.  Returns how many. */
uint32_t bt_group_missing(const bt_group *group, uint32_t *ranks_out);
/* Throws away what this group's members have sent to groups of its tag space that came before it,
 * as far as it is there.  For a group that has taken another one's place; never blocks. */
void bt_group_drain(bt_group *group);

/* Collective over the group.  Nobody leaves before all have come. */
bt_status bt_group_barrier(bt_group *group, const bt_wait *wait);

#endif
