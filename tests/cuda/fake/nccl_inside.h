/* tests/cuda/fake/nccl_inside.h - what the files of the fake NCCL share.
 *
 * A communicator is a file in memory that its ranks map: who has joined, and a ring of bytes for
 * each pair.  A message is a head and its bytes.  Nothing runs beside the caller: what is under
 * way moves in ncclCommGetAsyncError() and in the fake runtime's queries and waits. */
#ifndef BT_TESTS_CUDA_FAKE_NCCL_INSIDE_H
#define BT_TESTS_CUDA_FAKE_NCCL_INSIDE_H

#include <stdatomic.h>
#include <stdint.h>

#include "nccl.h"

enum { MAX_RANKS = 8, RING_BYTES = 1 << 18, MAX_PARTS = 2 * MAX_RANKS };

typedef struct {
    _Atomic uint64_t written, read;
    uint8_t          bytes[RING_BYTES];
} ring;

typedef struct {
    uint64_t   nonce; /* of the id */
    atomic_int joined[MAX_RANKS];
    ring       rings[MAX_RANKS][MAX_RANKS]; /* from, to */
} shared;

typedef struct {
    uint64_t length, captured; /* the operation's number among captured ones; 0: a plain call */
} head;

typedef struct {
    int      sends, peer;
    uint8_t *memory;
    head     its;          /* of the message that is sent, or of the one that has come */
    uint64_t length, done; /* done counts the head too */
} part;

typedef struct op {
    struct op   *next;
    ncclComm_t   comm;
    cudaStream_t stream;
    uint64_t     put;      /* pieces of work that the stream had before */
    uint64_t     capture;  /* that its stream was in when it was asked for; 0: none */
    uint64_t     captured; /* as in a head */
    int         *done;     /* of a launch of a graph: set when it has ended; NULL: no graph's */
    int          n_parts, moved, stays;
    part         parts[MAX_PARTS];
} op;

struct ncclComm {
    int          n, self, joined, busy, fd, gpu;
    int          n_kept; /* operations that graphs hold */
    int          n_held; /* of them, in graphs that the program has not destroyed */
    int          aborted;
    uint64_t     n_captured; /* operations, ever */
    char         name[64];
    ncclResult_t error;
    shared      *s;
    op          *waiting; /* to be launched when it is busy no more */
};

/* nccl_moves.c */
/* What the communicator has taken: into its stream, or into the graph that this one captures. */
void fake_nccl_launch(ncclComm_t c);
/* Moves what is under way. */
void fake_nccl_progress(void);
/* Gives up what is under way by this communicator. */
void fake_nccl_drop(ncclComm_t c);
/* Frees it once it is aborted and no graph's operation names it. */
void fake_nccl_release(ncclComm_t c);

#endif
