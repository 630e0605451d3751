/* parallel/carrier.h - exchanges of device memory among the ranks of a group.
 *
 * A group's own operations (parallel/group.h) move host memory.  A carrier moves what lies on a
 * device; it is attached to the group and leaves with it.  Without one the device's memory must be
 * host memory, as the CPU back end's is.
 *
 * An operation here is enqueued behind the device's earlier work, and later work of the device sees
 * what it brought.  It may still be under way when the call returns: before the host waits for the
 * device (bt_device_sync()) it calls bt_group_settle(), the wait with a deadline.  Host memory and
 * the staged carrier are complete at once, and settling costs nothing.
 *
 * Threads, deadlines and errors: as the group's.  After an error what was to be received is
 * undefined, and the device may still write there until the group is destroyed. */
#ifndef BT_PARALLEL_CARRIER_H
#define BT_PARALLEL_CARRIER_H

#include "device/device.h"
#include "parallel/group.h"

/* To rank i of the group go send[send_at[i] .. + send_bytes[i]), from rank i come
 * recv[recv_at[i] .. + recv_bytes[i]).  Lists are host memory, [group size], borrowed during the
 * call.  Both sides know the counts; 0 is allowed: no message.  The parts of a rank to itself must
 * be empty. */
typedef struct {
    const void   *send;
    const size_t *send_at, *send_bytes;
    void         *recv;
    const size_t *recv_at, *recv_bytes;
} bt_exchange;

typedef struct bt_carrier bt_carrier;

/* A slot is never NULL.  `group` is the one that the carrier is attached to. */
typedef struct {
    bool captures; /* once warm, exchange() only enqueues */
    bt_status (*exchange)(bt_carrier *c, bt_group *group, const bt_exchange *x,
                          const bt_wait *wait);
    bt_status (*reserve)(bt_carrier *c, size_t out_bytes, size_t in_bytes);
    bt_status (*mark)(bt_carrier *c, uint32_t i, const bt_wait *wait);
    bt_status (*settle)(bt_carrier *c, uint32_t i, const bt_wait *wait);
    bt_status (*warm)(bt_carrier *c, bt_group *group, const bt_wait *wait);
    /* While the group waits for messages of its own: lets what is under way go on.  The wait ends
     * with the error where that has failed, here or at another rank. */
    bt_status (*tend)(bt_carrier *c, const bt_wait *wait);
    /* See bt_group_end_exchanges(). */
    void (*end)(bt_carrier *c);
    /* As bt_group_missing(), of what the carrier itself waits for. */
    uint32_t (*missing)(const bt_carrier *c, uint32_t *ranks_out);
    void (*destroy)(bt_carrier *c);
} bt_carrier_ops;

struct bt_carrier {
    const bt_carrier_ops *ops;
    void (*ends)(void *ctx); /* see bt_group_watch_end() */
    void *ends_ctx;
}; /* first member of each implementation */

/* Takes ownership; the group has none yet. */
void bt_group_attach(bt_group *group, bt_carrier *carrier);
/* What the group's device memory travels by; NULL: none is attached. */
bt_carrier *bt_group_carrier(const bt_group *group);
/* Whether memory of `dev` can travel in this group. */
bool bt_group_carries(const bt_group *group, const bt_device *dev);

/* Whether a captured stream can hold the group's operations on device memory, once it is warm.  All
 * ranks then capture the same ones, in the same order, and launch a graph all or none. */
bool bt_group_captures(const bt_group *group);
/* ends(ctx) is called before what carries them ends, after an error or with the group: graphs that
 * hold operations must be destroyed by then, and a capture that is on ended, since the end waits
 * for that.  One at a time; ends NULL: nobody. */
void bt_group_watch_end(bt_group *group, void (*ends)(void *ctx), void *ctx);

/* Collective over the group.  Device memory. */
bt_status bt_group_exchange_device(bt_group *group, const bt_exchange *x, const bt_wait *wait);
/* No operation to come sends from beyond out_bytes of its memory, or receives beyond in_bytes of
 * it. Takes the memory that the carrier needs for that; again: the larger counts.  Local.  An
 * operation beyond it is an INVALID_ARG where memory is needed. */
bt_status bt_group_reserve(bt_group *group, size_t out_bytes, size_t in_bytes);
/* All that was enqueued by exchanges, and by the device before, is done.  Each rank for
 * itself. */
bt_status bt_group_settle(bt_group *group, const bt_wait *wait);
/* In two parts: mark i < BT_N_MARKS stands behind what has been enqueued so far, and the wait is
 * for that, whatever has been enqueued since.  wait: what the first part's error may wait for. */
bt_status bt_group_mark(bt_group *group, uint32_t i, const bt_wait *wait);
bt_status bt_group_settle_mark(bt_group *group, uint32_t i, const bt_wait *wait);
/* Collective over the group, before its first step.  What the first operation would have to make is
 * made (a communicator, a connection to every rank) and used once.  From then on operations wait
 * for nothing on the device, and a captured stream can hold them; again it costs nothing. */
bt_status bt_group_warm(bt_group *group, const bt_wait *wait);

/* What is under way comes to nothing, and has left the device.  Local; no operation may follow. */
void bt_group_end_exchanges(bt_group *group);

/* What libbaton_nccl.so shows (parallel/nccl/module.h). */
typedef struct bt_nccl_module bt_nccl_module;

/* The least timeout of waits in a job with NCCL, and of its watchdog: an end of a communicator may
 * keep a rank 2 s inside NCCL, and 2 s more until its kernels have left the GPU. */
#define BT_NCCL_LEAST_TIMEOUT_NS (4 * BT_NS_PER_S)

/* Opens libbaton_nccl.so, from the program's folder, ../lib/baton beside it, or the loader's path;
 * or `library` when that is not NULL.  Once, before the process has threads.  shares_gpu: other
 * ranks of the job use this rank's GPU too (NCCL's way between them is then the network).  NULL,
 * with a sentence in text and nothing logged, when there is no module, no NCCL of its version, or
 * no GPU. */
const bt_nccl_module *bt_nccl_open(const char *library, uint32_t rank, bool shares_gpu, char *text,
                                   size_t text_bytes);

/* By NCCL, on the device's stream; can be captured in a graph once the group is warm.  The
 * communicator is made by then, or by the first operation, within that one's deadline; its id goes
 * by the group's own exchange.  A wait that fails ends the communicator at once and alone, and
 * a call of the roll over MPI then names who does not answer.  `nccl` and `dev` are borrowed.
 * tag_space: one of the world's that no other group uses, for the roll. */
bt_status bt_carrier_nccl_create(const bt_nccl_module *nccl, bt_device *dev, bt_world *world,
                                 uint32_t tag_space, bt_carrier **carrier_out);

/* By way of pinned host memory, which bt_group_reserve() takes, and the group's own exchange. `dev`
 * is borrowed. */
bt_status bt_carrier_staged_create(bt_device *dev, bt_carrier **carrier_out);

#endif
