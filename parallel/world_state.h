/* parallel/world_state.h - inside parallel/ only: what groups and the hand-off share of the job.
 *
 * Two communicators are made at start-up, one for groups and one for the hand-off, so that their
 * messages never meet; none is made later.
 *
 * A wreck is memory that an abandoned request may still read or write: after a TIMEOUT the peer
 * may wake up and finish its part.  The world keeps it until the requests have completed, or until
 * MPI has ended. */
#ifndef BT_PARALLEL_WORLD_STATE_H
#define BT_PARALLEL_WORLD_STATE_H

#include <mpi.h>

#include "parallel/world.h"

/* Bits of a group's tag: space | epoch | sequence, highest first. */
typedef struct {
    uint32_t epoch_bits, sequence_bits;
} bt_tag_layout;

typedef struct bt_wreck {
    struct bt_wreck *next;
    void            *memory; /* one block of bt_calloc_aligned(), requests included */
    MPI_Request     *requests;
    int              n_requests;
} bt_wreck;
/* What lies in that block begins on cache lines. */
static inline size_t bt_wreck_pad(size_t bytes) { return (bytes + 63) / 64 * 64; }
/* One for a single request, without one yet, and so many bytes of room; NULL: no memory. */
bt_wreck *bt_wreck_create(size_t bytes);
/* Those bytes. */
static inline void *bt_wreck_room(bt_wreck *wreck)
{
    return (uint8_t *)wreck + bt_wreck_pad(sizeof(*wreck) + sizeof(MPI_Request));
}

struct bt_world {
    MPI_Comm      group_comm, handoff_comm;
    uint32_t      rank, size, local_rank, local_size;
    uint32_t     *node_of;        /* [size]: the lowest world rank on that rank's machine */
    int           shared_fd;      /* memory of this machine's ranks, or -1 */
    bool          shared_memory;  /* ranks of one machine talk through shared memory */
    size_t        fragment_bytes; /* largest message where the TCP rule holds */
    bt_tag_layout tags;
    uint64_t      waited_ns;   /* in exchanges of groups, for the others */
    bt_traffic   *traffic;     /* owned [size] */
    bool         *died;        /* owned [size]: see bt_world_has_died() */
    uint64_t      spin_ns;     /* how long a wait may spin before it gives the core away */
    uint64_t      next_serial; /* of the hand-off's requests to send, from 1 */
    bt_wreck     *wrecks;
};

/* world_start.c */
bt_status bt_world_start_mpi(int *argc, char ***argv);
/* Collective over the job, all that blocks in MPI once it has started: machines, transport, the two
 * communicators.  Rank, size and node_of are there. */
bt_status bt_world_meet(bt_world *world);
/* How a machine's other ranks find the file that its first one has made. */
typedef struct {
    uint64_t pid, fd, device, inode; /* fd: UINT64_MAX where there is none */
} bt_world_file;
bt_world_file bt_world_make_shared_file(bt_world *world);

/* True when messages between this rank and `peer` must obey the TCP rule: at most one fragment
 * below the eager limit is under way to a peer (Open MPI can hang otherwise when that peer dies).
 */
bool bt_world_tcp_rule(const bt_world *world, uint32_t peer);
/* True when no pair of ranks of the job needs the TCP rule. */
bool bt_world_all_shared(const bt_world *world);

/* Notes what MPI says of a request to or from the peer, and whether it has ever said that the
 * peer's process has died (an MPI that tolerates faults does: launch/openmpi.c).  Nothing may be
 * sent to it from then on: Open MPI 5 crashes when a message was under way to it. */
bool bt_world_has_died(bt_world *world, uint32_t peer, int code);

/* The layout for an MPI_TAG_UB, and the tag of one operation in it. */
bt_tag_layout bt_tag_layout_of(int tag_ub);
int           bt_tag_make(bt_tag_layout layout, uint32_t space, uint32_t epoch, uint64_t sequence);
/* Whether the tag is not one of an older group in this tag space: it is of that epoch, or of
 * another space. */
bool bt_tag_is_recent(bt_tag_layout layout, int tag, uint32_t space, uint32_t epoch);

/* Whether MPI's parameters `btl` and `pml` let ranks of one machine use shared memory. */
bool bt_transport_is_shared(const char *btl, const char *pml);

/* Takes ownership of wreck->memory, which holds the wreck itself and its requests. */
void bt_world_abandon(bt_world *world, bt_wreck *wreck);
/* Frees the wrecks whose requests have completed. */
void bt_world_sweep(bt_world *world);

/* Receives a matched message of n_bytes that nobody wants, without waiting, into memory of its own.
 * (Never receive a message into less room than it needs: Open MPI's single-copy path writes past
 * the end.) */
void bt_world_drain(bt_world *world, MPI_Message *message, size_t n_bytes);

/* MPI's text for a return code, in a static buffer of the calling thread. */
const char *bt_mpi_text(int code);

#endif
