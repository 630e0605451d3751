/* tests/cuda/fake/nccl.h - the part of NCCL that parallel/nccl/ uses, between real processes of one
 * machine whose GPU is the fake one beside it.
 *
 * As NCCL's non-blocking communicators: a call is in progress until ncclCommGetAsyncError() has
 * been asked a few times, only then it stands in its stream, and the communicator takes no other
 * call before, nor its stream other work; operations of a stream and of a communicator run in
 * order, and end when all ranks have done their part; messages match by their order alone; a peer
 * that has gone is waited for for ever.  In a captured stream an operation does not run but is
 * kept, and runs at each launch of the graph; graphs must be destroyed before the communicator that
 * they hold operations of.  Ranks that meet in an operation have captured it together, or none has:
 * else each is told, with the error INVALID_USAGE (NVIDIA's guide asks for that; the real one does
 * not check). */
#ifndef BT_TESTS_CUDA_FAKE_NCCL_H
#define BT_TESTS_CUDA_FAKE_NCCL_H

#include <cuda_runtime_api.h>

#define NCCL_VERSION_CODE    22809
#define NCCL_UNIQUE_ID_BYTES 128

typedef enum {
    ncclSuccess            = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError        = 2,
    ncclInternalError      = 3,
    ncclInvalidArgument    = 4,
    ncclInvalidUsage       = 5,
    ncclRemoteError        = 6,
    ncclInProgress         = 7
} ncclResult_t;
typedef enum { ncclChar = 0 } ncclDataType_t;
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef struct {
    int         magic, blocking, splitShare, minCTAs, maxCTAs;
    const char *commName;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER   \
    {                             \
        0x5afe, -1, -1, -1, -1, 0 \
    }

/* What goes wrong in this process: for tests to set. */
typedef struct {
    int  version;
    long refuse_at;  /* the call from now that is refused at once (ncclSystemError); -1: none */
    long fail_at;    /* the operation from now that fails on its way (ncclRemoteError); -1: none */
    long corrupt_at; /* the receiving operation from now whose first byte changes; -1: none */
    int  stalled;    /* operations stand still, and so do new communicators */
    int  held_up_ms; /* how long an end waits for peers to close their connections */
    long live;       /* communicators not yet given back */
    long n_launched; /* operations that stood in a stream */
    long n_ids;      /* given */
} fake_nccl;
extern fake_nccl g_fake_nccl;

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
const char  *ncclGetErrorString(ncclResult_t err);
const char  *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);

#endif
