/* tests/cuda/fake/nccl.c - see nccl.h beside it.
 *
 * A communicator is a file in memory that its ranks map: who has joined, and a ring of bytes for
 * each pair.  A message is its length and its bytes.  Nothing runs beside the caller: what is under
 * way moves in ncclCommGetAsyncError() and in the fake runtime's queries and waits. */
#include "nccl.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_RANKS = 8, RING_BYTES = 1 << 18, BUSY_POLLS = 3, MAX_PARTS = 2 * MAX_RANKS };

fake_nccl g_fake_nccl = {NCCL_VERSION_CODE, -1, -1, -1, 0, 0, 0};

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
    int      sends, peer;
    uint8_t *memory;
    uint64_t length, done; /* done counts the 8 bytes of the length before the message's */
} part;

typedef struct op {
    struct op   *next;
    ncclComm_t   comm;
    cudaStream_t stream;
    uint64_t     put;     /* pieces of work that the stream had before */
    uint64_t     capture; /* that its stream was in when it was asked for; 0: none */
    int         *done;    /* of a launch of a graph: set when it has ended; NULL: no graph's */
    int          n_parts, moved;
    part         parts[MAX_PARTS];
} op;

struct ncclComm {
    int          n, self, joined, busy, fd;
    int          n_kept; /* operations that graphs hold */
    int          n_held; /* of them, in graphs that the program has not destroyed */
    int          aborted;
    char         name[64];
    ncclResult_t error;
    shared      *s;
    op          *waiting; /* to be launched when it is busy no more */
};

typedef struct {
    int      pid, fd;
    uint64_t nonce; /* descriptors are used again */
} id_content;

/* BT_FAKE_NCCL="2:hand-off:5:9 3:group:40:19": rank 2 of the job gets signal 9 at its 5th operation
 * of communicators whose name has "hand-off" in it, rank 3 signal 19.  Once each. */
enum { MAX_FATES = 4 };
typedef struct {
    char name[16];
    int  at, signal;
} fate;
static fate g_fates[MAX_FATES];
static int  g_n_fates;

__attribute__((constructor)) static void read_fates(void)
{
    const char *text = getenv("BT_FAKE_NCCL"), *self = getenv("OMPI_COMM_WORLD_RANK");
    int         rank, n;
    fate        f;

    while (text != NULL && self != NULL && g_n_fates < MAX_FATES &&
           sscanf(text, "%d:%15[^:]:%d:%d%n", &rank, f.name, &f.at, &f.signal, &n) == 4) {
        if (rank == atoi(self)) g_fates[g_n_fates++] = f;
        text += n + strspn(text + n, " ");
    }
}

static op *g_under_way;        /* in the order of their launch */
static op *g_group;            /* of the group call that is open */
static int g_depth, g_spoiled; /* a call of the open group was refused: all of it is */

static ncclResult_t refused(void)
{
    if (g_fake_nccl.refuse_at >= 0 && g_fake_nccl.refuse_at-- == 0) return ncclSystemError;
    return ncclSuccess;
}

/* ---- what is under way */

/* As much as the ring takes or has; true when something moved. */
static int move_part(ncclComm_t c, part *p)
{
    ring    *r     = p->sends ? &c->s->rings[c->self][p->peer] : &c->s->rings[p->peer][c->self];
    uint64_t total = sizeof(p->length) + p->length, before = p->done, length;

    while (p->done < total) {
        uint64_t w = atomic_load(&r->written), at = p->done;
        uint64_t d = atomic_load(&r->read);
        uint8_t *ours;

        if (p->sends ? w - d == RING_BYTES : w == d) break;
        if (at < sizeof(p->length)) { /* the length, byte by byte */
            ours = (uint8_t *)&length + at;
            if (p->sends) length = p->length;
        } else {
            ours = p->memory + (at - sizeof(p->length));
        }
        if (p->sends) {
            uint64_t n = at < sizeof(p->length) ? 1 : total - at, end = RING_BYTES - w % RING_BYTES;

            if (n > RING_BYTES - (w - d)) n = RING_BYTES - (w - d);
            if (n > end) n = end;
            memcpy(r->bytes + w % RING_BYTES, ours, n);
            atomic_store(&r->written, w + n);
            p->done += n;
        } else {
            uint64_t n = at < sizeof(p->length) ? 1 : total - at, end = RING_BYTES - d % RING_BYTES;

            if (n > w - d) n = w - d;
            if (n > end) n = end;
            if (at < sizeof(p->length)) {
                uint8_t want = (uint8_t)(p->length >> (8 * at));

                if (r->bytes[d % RING_BYTES] != want) {
                    fprintf(stderr,
                            "fake NCCL: rank %d awaits %llu bytes of rank %d, which sends "
                            "another number\n",
                            c->self, (unsigned long long)p->length, p->peer);
                    c->error = ncclInvalidUsage;
                    return 1;
                }
            } else {
                memcpy(ours, r->bytes + d % RING_BYTES, n);
            }
            atomic_store(&r->read, d + n);
            p->done += n;
        }
    }
    return p->done != before;
}

/* Nothing is touched, or opened, for an operation that waits for its peers. */
static int may_move(const op *o)
{
    int open = 0;

    for (int i = 0; i < o->n_parts; i++) {
        const part *p = &o->parts[i];
        const ring *r = p->sends ? &o->comm->s->rings[o->comm->self][p->peer]
                                 : &o->comm->s->rings[p->peer][o->comm->self];
        uint64_t    n = atomic_load(&r->written) - atomic_load(&r->read);

        if (p->done == sizeof(p->length) + p->length) continue;
        if (p->sends ? n < RING_BYTES : n > 0) return 1;
        open++;
    }
    return open == 0;
}

/* Nothing of the operation has moved. */
static void meet_fate(const op *o)
{
    for (int i = 0; i < g_n_fates; i++) {
        fate *f = &g_fates[i];

        if (strstr(o->comm->name, f->name) == NULL || --f->at != 0) continue;
        fprintf(stderr, "fake NCCL: signal %d at an operation of %s\n", f->signal, o->comm->name);
        raise(f->signal);
    }
}

static int move_op(op *o)
{
    int open = 0;

    if (!o->moved) meet_fate(o);
    o->moved = 1;

    for (int i = 0; i < o->n_parts && o->comm->error == ncclSuccess; i++) {
        move_part(o->comm, &o->parts[i]);
        open += o->parts[i].done < sizeof(o->parts[i].length) + o->parts[i].length;
    }
    return open == 0 && o->comm->error == ncclSuccess;
}

/* What the stream had before is over. */
static int has_turn(const op *o) { return o->stream->n_ran >= o->put; }

/* A call that stands behind a launched graph is under way before the graph's operations are, whose
 * turn in the stream comes first. */
static int is_first(const op *o)
{
    if (!has_turn(o)) return 0;
    for (const op *before = g_under_way; before != o; before = before->next)
        if (before->stream == o->stream ? has_turn(before) : before->comm == o->comm) return 0;
    return 1;
}

/* Ended, or given up with its communicator. */
static void end_op(op *o)
{
    if (o->done != NULL)
        *o->done = 1;
    else
        o->stream->n_done++;
    free(o);
}

static void progress(void)
{
    op **at   = &g_under_way;
    int  open = 0;

    if (g_fake_nccl.stalled) return;
    while (*at != NULL) {
        op *o     = *at;
        int moves = is_first(o) && may_move(o);

        if (moves && !open) fake_gpu_open();
        open |= moves;
        if (moves && move_op(o)) {
            if (!o->parts[0].sends && g_fake_nccl.corrupt_at >= 0 && g_fake_nccl.corrupt_at-- == 0)
                o->parts[0].memory[0] ^= 1;
            *at = o->next;
            end_op(o);
        } else {
            at = &o->next;
        }
    }
    if (open) fake_gpu_close();
}

static void put_under_way(op *o)
{
    op **at = &g_under_way;

    if (g_fake_nccl.fail_at >= 0 && g_fake_nccl.fail_at-- == 0) o->comm->error = ncclRemoteError;
    g_fake_nccl.n_launched++;
    while (*at != NULL)
        at = &(*at)->next;
    *at = o;
}

/* ---- operations that a graph holds: each launch runs them once more */

static void begin_kept(void *of, int *done)
{
    const op *kept = of;
    op       *o;

    if (kept->comm->aborted) { /* its kernels see that, and leave */
        *done = 1;
        return;
    }
    o       = malloc(sizeof(*o));
    *o      = *kept;
    o->done = done;
    put_under_way(o);
}

static void drop_kept(void *of) { ((op *)of)->comm->n_held--; }

static void release_comm(ncclComm_t c)
{
    if (c->aborted && c->n_kept == 0) free(c);
}

static void release_kept(void *of)
{
    op *kept = of;

    kept->comm->n_kept--;
    release_comm(kept->comm);
    free(kept);
}

static void launch(ncclComm_t c)
{
    op *o = c->waiting;

    c->waiting = NULL;
    if (o == NULL) return;
    if (o->capture != fake_gpu_capture_of(o->stream)) {
        fprintf(stderr,
                "fake NCCL: a capture has begun or ended while %s worked on a call for it\n",
                c->name);
        c->error = ncclInvalidUsage;
        free(o);
    } else if (o->capture != 0) {
        c->n_kept++;
        c->n_held++;
        fake_gpu_capture(o->stream, &(fake_foreign){o, begin_kept, drop_kept, release_kept});
    } else {
        o->stream->n_given++;
        o->put = o->stream->n_put;
        put_under_way(o);
    }
}

/* ---- communicators */

ncclResult_t ncclGetVersion(int *version)
{
    *version = g_fake_nccl.version;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static uint64_t n_ids;
    id_content      content = {.pid = (int)getpid(), .nonce = ++n_ids};

    if (refused() != ncclSuccess) return ncclSystemError;
    content.fd = memfd_create("fake nccl", MFD_CLOEXEC);
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
    snprintf(c->name, sizeof(c->name), "%s", config->commName);
    c->busy         = BUSY_POLLS;
    g_fake_progress = progress;
    g_fake_nccl.live++;
    *comm = c;
    return ncclInProgress;
}

static void drop(op **at, ncclComm_t c)
{
    while (*at != NULL) {
        op *o = *at;

        if (o->comm != c) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        end_op(o);
    }
}

/* Peers hear nothing of it.  NCCL waits here for the end of all graphs that hold its operations. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (comm->n_held > 0) {
        fprintf(stderr, "fake NCCL: %s is to end while graphs hold %d of its operations\n",
                comm->name, comm->n_held);
        abort();
    }
    drop(&g_under_way, comm);
    free(comm->waiting);
    munmap(comm->s, sizeof(*comm->s));
    close(comm->fd);
    comm->aborted = 1;
    release_comm(comm);
    g_fake_nccl.live--;
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
        if (comm->busy == 0) launch(comm);
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

    if (--g_depth > 0 || o == NULL) return ncclSuccess;
    g_group = NULL;
    if (g_spoiled) {
        g_spoiled = 0;
        free(o);
        return ncclSystemError;
    }
    o->comm->waiting = o;
    o->comm->busy    = BUSY_POLLS;
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

ncclResult_t ncclAllGather(const void *send, void *recv, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t err = ncclSuccess, ended;

    (void)type;
    ncclGroupStart();
    for (int i = 0; i < comm->n && err == ncclSuccess; i++) {
        err = add(comm, stream, 1, i, send, n); /* to itself too, by way of a ring */
        if (err == ncclSuccess) err = add(comm, stream, 0, i, (uint8_t *)recv + (size_t)i * n, n);
    }
    ended = ncclGroupEnd();
    return err != ncclSuccess ? err : ended;
}
