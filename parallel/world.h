/* parallel/world.h - the MPI job: who is in it, and how one enters and leaves.
 *
 * Threads: the step thread only (MPI_THREAD_FUNNELED). */
#ifndef BT_PARALLEL_WORLD_H
#define BT_PARALLEL_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

typedef struct bt_world bt_world;

/* Whether all ranks of the job are of one build, which each names: before bt_world_init(), to which
 * it is the first half, since ranks of two builds may not understand each other there.  Collective
 * over the job.  INVALID_ARG on all ranks names two that differ, and as bt_world_init(). */
bt_status bt_world_same_build(int *argc, char ***argv, const char *build);
/* Joins the MPI job: ignores SIGPIPE, MPI_Init_thread(FUNNELED), errors returned.  Call once, in
 * main, before gRPC and any thread but the watchdog's exist.  Collective over the job.  PEER when
 * MPI does not start, UNSUPPORTED when it has no thread level FUNNELED, NO_MEMORY. */
bt_status bt_world_init(int *argc, char ***argv, bt_world **world_out);
/* Leaves by MPI_Finalize; only when every rank leaves too.  After a failure call bt_world_exit. */
void bt_world_fini(bt_world *world);
/* Leaves at once without MPI's consent (MPI_Finalize can hang after a death): flushes, _exit(code).
 */
void     bt_world_exit(int code) __attribute__((noreturn));
uint32_t bt_world_rank(const bt_world *world);
uint32_t bt_world_size(const bt_world *world);
/* Ranks of this job on this machine, and this rank's number among them (from MPI's launcher). */
uint32_t bt_world_local_size(const bt_world *world);
uint32_t bt_world_local_rank(const bt_world *world);
bool     bt_world_same_machine(const bt_world *world, uint32_t a, uint32_t b);
/* A file without a name in memory, empty at first and never made smaller, that all ranks of this
 * machine have open; -1 where one of them cannot (process ids that differ).  A rank alone makes
 * its own when it asks.  Owned by the world. */
int bt_world_shared_fd(bt_world *world);
/* Time that this rank has spent in exchanges of groups, waiting for others. */
uint64_t bt_world_waited_ns(const bt_world *world);

/* What went between this rank and another one, ever. */
typedef struct {
    uint64_t waited_ns;     /* in exchanges of groups, from the start to the last part that came */
    uint64_t handoff_bytes; /* handed over to it by host memory */
    uint64_t handoff_ns;    /* from each request to send to the end of its payload */
} bt_traffic;

/* [bt_world_size()], by world rank; borrowed for the world's life. */
const bt_traffic *bt_world_traffic(const bt_world *world);

#endif
