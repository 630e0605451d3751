/* tests/cuda/fake/nccl.c - the fake NCCL's communicators and calls: see nccl.h beside it. */
#include "nccl.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda/fake/inside.h"
#include "tests/cuda/fake/nccl_inside.h"

enum { BUSY_POLLS = 3 };

fake_nccl g_fake_nccl = {
    .version = NCCL_VERSION_CODE, .refuse_at = -1, .fail_at = -1, .corrupt_at = -1};

typedef struct {
    int      pid, fd;
    uint64_t nonce; /* descriptors are used again */
} id_content;

/* As in the real one, groups are a thread's. */
static _Thread_local op *g_group; /* of the group call that is open */
static _Thread_local int g_depth,
    g_spoiled;                    /* a call of the open group was refused: all of it is */
static _Thread_local int g_frees; /* a communicator has ended, its memory is there */

static ncclResult_t refused(void)
{
    if (g_fake_nccl.refuse_at >= 0 && g_fake_nccl.refuse_at-- == 0) return ncclSystemError;
    return ncclSuccess;
}

/* ---- communicators */

ncclResult_t ncclGetVersion(int *version)
{
    *version = g_fake_nccl.version;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    id_content content = {.pid = (int)getpid()};

    if (refused() != ncclSuccess) return ncclSystemError;
    content.nonce = (uint64_t)++g_fake_nccl.n_ids;
    content.fd    = memfd_create("fake nccl", MFD_CLOEXEC);
    if (content.fd < 0 || ftruncate(content.fd, sizeof(shared)) != 0 ||
        pwrite(content.fd, &content.nonce, sizeof(content.nonce), offsetof(shared, nonce)) !=
            sizeof(content.nonce))
        return ncclSystemError;
    memset(id, 0, sizeof(*id));
    memcpy(id->internal, &content, sizeof(content));
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    id_content content;
    ncclComm_t c = calloc(1, sizeof(*c));
    char       path[64];
    uint64_t   nonce = 0;

    if (config->blocking != 0 || config->splitShare != 0 || config->commName == NULL ||
        n > MAX_RANKS)
        abort(); /* this project's communicators are never otherwise */
    memcpy(&content, id.internal, sizeof(content));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", content.pid, content.fd);
    c->fd = content.pid == (int)getpid() ? content.fd : open(path, O_RDWR | O_CLOEXEC);
    c->s  = c->fd < 0 || refused() != ncclSuccess ||
                   pread(c->fd, &nonce, sizeof(nonce), offsetof(shared, nonce)) != sizeof(nonce) ||
                   nonce != content.nonce
                ? MAP_FAILED
                : mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    if (c->s == MAP_FAILED) {
        if (c->fd >= 0 && content.pid != (int)getpid()) close(c->fd);
        free(c);
        return ncclSystemError;
    }
    c->n    = n;
    c->self = rank;
    cudaGetDevice(&c->gpu);
    snprintf(c->name, sizeof(c->name), "%s", config->commName);
    c->busy         = BUSY_POLLS;
    g_fake_progress = fake_nccl_progress;
    g_fake_nccl.live++;
    *comm = c;
    return ncclInProgress;
}

static void free_memory(void)
{
    struct timespec held_up = {.tv_sec = g_fake_nccl.held_up_ms / 1000};

    if (!g_frees) return;
    g_frees = 0;
    if (gettid() == getpid())
        fake_gpu_drain();
    else
        fake_gpu_drain_beside();
    if (held_up.tv_sec > 0) nanosleep(&held_up, NULL);
}

/* Peers hear nothing of it.  NCCL waits here for the end of all graphs that hold its operations;
 * and it frees memory, for which CUDA may wait until the GPU has nothing to do, other
 * communicators' operations included.  Those that end in one group leave together before that. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    int gpu;

    cudaGetDevice(&gpu);
    if (gpu != comm->gpu) {
        fprintf(stderr, "fake NCCL: %s of GPU %d is to end in a thread of GPU %d\n", comm->name,
                comm->gpu, gpu);
        abort();
    }
    if (comm->n_held > 0) {
        fprintf(stderr, "fake NCCL: %s is to end while graphs hold %d of its operations\n",
                comm->name, comm->n_held);
        abort();
    }
    fake_nccl_drop(comm);
    if (comm->waiting != NULL) comm->waiting->stream->n_calls--;
    free(comm->waiting);
    munmap(comm->s, sizeof(*comm->s));
    close(comm->fd);
    comm->aborted = 1;
    fake_nccl_release(comm);
    g_fake_nccl.live--;
    g_frees = 1;
    if (g_depth == 0) free_memory();
    return ncclSuccess;
}

static int all_joined(ncclComm_t c)
{
    if (g_fake_nccl.stalled) return 0;
    atomic_store(&c->s->joined[c->self], 1);
    for (int i = 0; i < c->n; i++)
        if (!atomic_load(&c->s->joined[i])) return 0;
    return 1;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    fake_gpu_progress();
    if (comm->busy > 0 && (comm->joined || (comm->joined = all_joined(comm)))) {
        comm->busy--;
        if (comm->busy == 0) fake_nccl_launch(comm);
    }
    *state = comm->error != ncclSuccess ? comm->error
             : comm->busy > 0           ? ncclInProgress
                                        : ncclSuccess;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t err)
{
    return err == ncclRemoteError ? "remote process exited or there was a network error"
                                  : "an error of the fake NCCL";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

/* ---- operations: all of a group become one */

ncclResult_t ncclGroupStart(void)
{
    g_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    op *o = g_group;

    if (--g_depth > 0) return ncclSuccess;
    free_memory();
    if (o == NULL) return ncclSuccess;
    g_group = NULL;
    if (g_spoiled) {
        g_spoiled = 0;
        free(o);
        return ncclSystemError;
    }
    o->comm->waiting = o;
    o->comm->busy    = BUSY_POLLS;
    o->stream->n_calls++;
    return ncclInProgress;
}

static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, int sends, int peer,
                        const void *memory, size_t n)
{
    if (comm->busy > 0 || comm->waiting != NULL) {
        fprintf(stderr, "fake NCCL: a call while the communicator works on another one\n");
        return ncclInvalidArgument;
    }
    if (comm->error != ncclSuccess) return comm->error;
    if (!fake_gpu_reaches(memory)) {
        fprintf(stderr, "fake NCCL: %p, which is no memory of the GPU\n", memory);
        return ncclInvalidArgument;
    }
    if (g_group == NULL) {
        g_group          = calloc(1, sizeof(*g_group));
        g_group->comm    = comm;
        g_group->stream  = stream;
        g_group->capture = fake_gpu_capture_of(stream);
    }
    if (refused() != ncclSuccess) {
        g_spoiled = 1;
        return ncclSystemError;
    }
    if (g_group->comm != comm || g_group->stream != stream || g_group->n_parts == MAX_PARTS)
        abort(); /* not needed here */
    g_group->parts[g_group->n_parts++] =
        (part){.sends = sends, .peer = peer, .memory = (uint8_t *)(uintptr_t)memory, .length = n};
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    ncclResult_t err, ended;

    (void)type;
    ncclGroupStart();
    err   = add(comm, stream, 1, peer, from, n);
    ended = ncclGroupEnd();
    return err != ncclSuccess ? err : ended;
}

ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    ncclResult_t err, ended;

    (void)type;
    ncclGroupStart();
    err   = add(comm, stream, 0, peer, to, n);
    ended = ncclGroupEnd();
    return err != ncclSuccess ? err : ended;
}
