/* parallel/nccl/comm_nccl.c - the module's table over NCCL and the CUDA runtime.
 *
 * Communicators are non-blocking and share nothing (splitShare off), so that the end of one leaves
 * the others alone.  Buffers are never registered with NCCL: peers write into its own buffers, and
 * only kernels of this rank into ours, so that nothing comes late into memory of a new use. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/thread.h"
#include "device/cuda/advice.h"
#include "parallel/nccl/module.h"

#if NCCL_VERSION_CODE < 22700 /* OLDEST */
#error "NCCL 2.27 or newer is needed (communicators with names)"
#endif
_Static_assert(BT_NCCL_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "ids travel as bytes");

enum { NAME_BYTES = 64, OLDEST = 22700 }; /* that has all that is called here */
#define END_MAX_NS (2 * BT_NS_PER_S)

typedef struct ending ending;

struct bt_nccl_comm {
    ncclComm_t   comm; /* NULL: stopped */
    ending      *end;  /* owned, until it is used */
    uint32_t     n, self;
    char         name[NAME_BYTES];
    cudaStream_t stream;
    uint32_t     n_marks;
    cudaEvent_t *marks; /* owned, [n_marks] */
};

static bt_nccl_comm *g_along; /* ends with any other */

static bt_status cuda_status(cudaError_t err, const bt_nccl_comm *c, const char *what, int line)
{
    if (err == cudaSuccess) return BT_OK;
    (void)cudaGetLastError();
    bt_log_error(__FILE__, line, bt_status_str(BT_ERR_DEVICE), "%s: %s: %s%s", c->name, what,
                 cudaGetErrorString(err), bt_cuda_advice(err));
    return BT_ERR_DEVICE;
}
#define CUDA(c, call) cuda_status((call), (c), #call, __LINE__)

/* "In progress" is no error: poll() tells how it ends. */
static bt_status nccl_status(ncclResult_t err, const bt_nccl_comm *c, const char *what, int line)
{
    bt_status   st = err == ncclRemoteError || err == ncclSystemError ? BT_ERR_PEER : BT_ERR_DEVICE;
    const char *more;

    if (err == ncclSuccess || err == ncclInProgress) return BT_OK;
    more = ncclGetLastError(NULL);
    bt_log_error(__FILE__, line, bt_status_str(st), "%s: %s: %s%s%s", c->name, what,
                 ncclGetErrorString(err), more != NULL && more[0] != 0 ? ": " : "",
                 more != NULL ? more : "");
    return st;
}
#define NCCL(c, call) nccl_status((call), (c), #call, __LINE__)

static bool nccl_usable(char *text, size_t text_bytes)
{
    int version = 0, n = 0;

    (void)setenv("NCCL_GRAPH_REGISTER", "0", 1); /* read by NCCL at its first communicator */
    (void)setenv("NCCL_LOCAL_REGISTER", "0", 1);
    (void)setenv("NCCL_COMM_BLOCKING", "0", 1); /* it would outrank what init_comm() asks for */
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1); /* no order among communicators is needed */
    (void)setenv("NCCL_GRAPH_MIXING_SUPPORT", "1", 1); /* steps as graphs and by calls take turns */
    if (ncclGetVersion(&version) != ncclSuccess || version < OLDEST)
        snprintf(text, text_bytes, "NCCL here is of version %d: expected %d or newer", version,
                 OLDEST);
    else if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0)
        snprintf(text, text_bytes, "NCCL needs a GPU, and the CUDA runtime finds none");
    else
        return true;
    (void)cudaGetLastError();
    return false;
}

static bt_status nccl_new_id(uint8_t id_out[BT_NCCL_ID_BYTES])
{
    bt_nccl_comm nobody = {.name = "a new communicator"};
    ncclUniqueId id;
    bt_status    st = NCCL(&nobody, ncclGetUniqueId(&id));

    if (st == BT_OK) memcpy(id_out, id.internal, BT_NCCL_ID_BYTES);
    return st;
}

/* Communicators that end together.  Where NCCL has no memory that the driver shares between
 * processes (containers without CAP_SYS_NICE), its proxy ends only when the peers on this machine
 * have closed their connections (proxy.cc, version 2.28), which they do when they hear of the end:
 * perhaps later, and from this rank.  So a thread of its own waits for that. */
struct ending {
    bt_nccl_comm of[2];
    uint32_t     n;
    int          gpu;
    atomic_bool  over;
    atomic_int   users; /* the last one frees it */
};

static void leave_ending(ending *e)
{
    if (atomic_fetch_sub(&e->users, 1) == 1) bt_free(e);
}

/* In a group all are told to stop before the first one's memory is freed.  A new thread's GPU is
 * the first one until it says otherwise, and NCCL goes back to it: that takes memory there. */
static void *end_all(void *arg)
{
    ending *e = arg;

    (void)CUDA(&e->of[0], cudaSetDevice(e->gpu));
    (void)NCCL(&e->of[0], ncclGroupStart());
    for (uint32_t i = 0; i < e->n; i++)
        (void)NCCL(&e->of[i], ncclCommAbort(e->of[i].comm));
    (void)NCCL(&e->of[0], ncclGroupEnd());
    atomic_store(&e->over, true);
    leave_ending(e);
    return NULL;
}

/* Without a thread to be had the caller waits. */
static void end_beside(ending *e)
{
    pthread_t thread;

    if (bt_thread_start(&thread, end_all, e) == 0)
        pthread_detach(thread);
    else
        end_all(e);
}

static void nccl_abort(bt_nccl_comm *comm)
{
    ending  *e      = comm->end;
    uint64_t end_ns = bt_now_ns() + END_MAX_NS;

    if (comm->comm == NULL) return;
    comm->end     = NULL;
    e->of[e->n++] = *comm;
    comm->comm    = NULL;
    (void)CUDA(comm, cudaGetDevice(&e->gpu));
    if (g_along != NULL && g_along->comm != NULL) {
        e->of[e->n++] = *g_along;
        g_along->comm = NULL;
    }
    atomic_store(&e->users, 2);
    end_beside(e);
    while (!atomic_load(&e->over) && bt_now_ns() < end_ns)
        bt_sleep_ns(BT_NS_PER_MS / 10);
    if (!atomic_load(&e->over))
        BT_WARN(
            "%s: NCCL has not ended it within %.0f s, as where other ranks of this machine still "
            "have connections to it, or the GPU has work of it, and goes on beside",
            comm->name, (double)END_MAX_NS / BT_NS_PER_S);
    leave_ending(e);
}

static bt_status still_there(const bt_nccl_comm *c)
{
    bt_status st = BT_OK;

    BT_REQUIRE(c->comm != NULL, BT_ERR_PEER, "%s: it has ended with another communicator", c->name);
out:
    return st;
}

static void nccl_destroy(bt_nccl_comm *comm)
{
    if (comm == NULL) return;
    nccl_abort(comm);
    if (g_along == comm) g_along = NULL;
    for (uint32_t i = 0; comm->marks != NULL && i < comm->n_marks; i++)
        if (comm->marks[i] != NULL) (void)cudaEventDestroy(comm->marks[i]);
    bt_free(comm->marks);
    bt_free(comm->end);
    bt_free(comm);
}

static bt_status take_marks(bt_nccl_comm *c)
{
    bt_status st = BT_OK;

    for (uint32_t i = 0; i < c->n_marks; i++)
        BT_TRY(CUDA(c, cudaEventCreateWithFlags(&c->marks[i], cudaEventDisableTiming)));
out:
    return st;
}

static bt_status init_comm(bt_nccl_comm *c, const bt_nccl_config *cfg)
{
    bt_status    st     = BT_OK;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;

    memcpy(id.internal, cfg->id, BT_NCCL_ID_BYTES);
    config.blocking   = 0;
    config.splitShare = 0;
    config.commName   = c->name;
    if (cfg->max_ctas != 0) {
        config.minCTAs = 1;
        config.maxCTAs = (int)cfg->max_ctas;
    }
    BT_TRY(NCCL(c, ncclCommInitRankConfig(&c->comm, (int)c->n, id, (int)c->self, &config)));
out:
    return st;
}

static bt_status nccl_start(const bt_nccl_config *cfg, bt_nccl_comm **comm_out)
{
    bt_status     st = BT_OK;
    bt_nccl_comm *c  = NULL;

    BT_ASSERT(cfg->n >= 1 && cfg->self < cfg->n && cfg->n_marks >= 1);
    c = bt_calloc(1, sizeof(*c));
    BT_REQUIRE(c != NULL, BT_ERR_NO_MEMORY, "a communicator of %u ranks", cfg->n);
    c->n       = cfg->n;
    c->self    = cfg->self;
    c->n_marks = cfg->n_marks;
    c->stream  = cfg->stream;
    snprintf(c->name, sizeof(c->name), "%s", cfg->name);
    c->marks = bt_calloc(c->n_marks, sizeof(*c->marks));
    c->end   = bt_calloc(1, sizeof(*c->end));
    BT_REQUIRE(c->marks != NULL && c->end != NULL, BT_ERR_NO_MEMORY, "the marks of a communicator");
    BT_TRY(take_marks(c));
    BT_TRY(init_comm(c, cfg));
    if (cfg->along) {
        BT_ASSERT(g_along == NULL);
        g_along = c;
    }
    *comm_out = c;
    c         = NULL;
out:
    nccl_destroy(c);
    return st;
}

static bt_status nccl_poll(bt_nccl_comm *comm, bool *busy_out)
{
    bt_status    st    = BT_OK;
    ncclResult_t state = ncclSuccess;

    BT_TRY(still_there(comm));
    BT_TRY(NCCL(comm, ncclCommGetAsyncError(comm->comm, &state)));
    BT_TRY(nccl_status(state, comm, "working on what was asked for", __LINE__));
    *busy_out = state == ncclInProgress;
out:
    return st;
}

/* One message to and from each peer, all in one group: they go side by side. */
static bt_status nccl_exchange(bt_nccl_comm *comm, const bt_exchange *x)
{
    bt_status st = BT_OK, ended;

    BT_TRY(still_there(comm));
    BT_TRY(NCCL(comm, ncclGroupStart()));
    for (uint32_t i = 0; i < comm->n && st == BT_OK; i++) {
        if (x->send_bytes[i] > 0)
            st = NCCL(comm, ncclSend((const char *)x->send + x->send_at[i], x->send_bytes[i],
                                     ncclChar, (int)i, comm->comm, comm->stream));
        if (st == BT_OK && x->recv_bytes[i] > 0)
            st = NCCL(comm, ncclRecv((char *)x->recv + x->recv_at[i], x->recv_bytes[i], ncclChar,
                                     (int)i, comm->comm, comm->stream));
    }
    ended = NCCL(comm, ncclGroupEnd()); /* a group that was begun is always ended */
    if (st == BT_OK) st = ended;
out:
    return st;
}

static bt_status nccl_send(bt_nccl_comm *comm, const void *from, size_t bytes, uint32_t to)
{
    bt_status st = still_there(comm);

    return st != BT_OK
               ? st
               : NCCL(comm, ncclSend(from, bytes, ncclChar, (int)to, comm->comm, comm->stream));
}

static bt_status nccl_recv(bt_nccl_comm *comm, void *to, size_t bytes, uint32_t from)
{
    bt_status st = still_there(comm);

    return st != BT_OK
               ? st
               : NCCL(comm, ncclRecv(to, bytes, ncclChar, (int)from, comm->comm, comm->stream));
}

static bt_status nccl_mark(bt_nccl_comm *comm, uint32_t i)
{
    BT_ASSERT(i < comm->n_marks);
    return CUDA(comm, cudaEventRecord(comm->marks[i], comm->stream));
}

static bt_status has_come(const bt_nccl_comm *c, cudaEvent_t event, bool *come_out)
{
    cudaError_t err = cudaEventQuery(event);

    if (err == cudaErrorNotReady) (void)cudaGetLastError();
    *come_out = err == cudaSuccess;
    return err == cudaErrorNotReady ? BT_OK : cuda_status(err, c, "cudaEventQuery", __LINE__);
}

static bt_status nccl_reached(bt_nccl_comm *comm, uint32_t i, bool *reached_out)
{
    return has_come(comm, comm->marks[i], reached_out);
}

/* ---- lanes */

struct bt_nccl_lane {
    bt_nccl_comm nobody; /* the name of errors */
    cudaStream_t stream;
    void        *fetched; /* owned, pinned host memory, BT_NCCL_FETCH_BYTES */
    uint32_t     n_notes;
    cudaEvent_t *notes; /* owned, [n_notes] */
};

static void nccl_lane_destroy(bt_nccl_lane *lane)
{
    if (lane == NULL) return;
    for (uint32_t i = 0; lane->notes != NULL && i < lane->n_notes; i++)
        if (lane->notes[i] != NULL) (void)cudaEventDestroy(lane->notes[i]);
    if (lane->stream != NULL) {
        (void)cudaStreamSynchronize(lane->stream);
        (void)cudaStreamDestroy(lane->stream);
    }
    if (lane->fetched != NULL) (void)cudaFreeHost(lane->fetched);
    bt_free(lane->notes);
    bt_free(lane);
}

static bt_status nccl_lane_create(uint32_t n_notes, bt_nccl_lane **lane_out)
{
    bt_status     st    = BT_OK;
    int           least = 0, greatest = 0;
    bt_nccl_lane *l = bt_calloc(1, sizeof(*l));

    BT_REQUIRE(l != NULL, BT_ERR_NO_MEMORY, "a stream for NCCL");
    l->nobody  = (bt_nccl_comm){.name = "the hand-off's stream"};
    l->n_notes = n_notes;
    l->notes   = bt_calloc(n_notes, sizeof(*l->notes));
    BT_REQUIRE(l->notes != NULL, BT_ERR_NO_MEMORY, "%u notes of a stream", n_notes);
    BT_TRY(CUDA(&l->nobody, cudaDeviceGetStreamPriorityRange(&least, &greatest)));
    BT_TRY(
        CUDA(&l->nobody, cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, least)));
    BT_TRY(CUDA(&l->nobody, cudaHostAlloc(&l->fetched, BT_NCCL_FETCH_BYTES, cudaHostAllocDefault)));
    for (uint32_t i = 0; i < n_notes; i++)
        BT_TRY(CUDA(&l->nobody, cudaEventCreateWithFlags(&l->notes[i], cudaEventDisableTiming)));
    *lane_out = l;
    l         = NULL;
out:
    nccl_lane_destroy(l);
    return st;
}

static void *nccl_lane_stream(const bt_nccl_lane *lane) { return lane->stream; }

static bt_status nccl_note(bt_nccl_lane *lane, uint32_t i, void *stream)
{
    BT_ASSERT(i < lane->n_notes);
    return CUDA(&lane->nobody, cudaEventRecord(lane->notes[i], stream));
}

static bt_status nccl_follow(bt_nccl_lane *lane, uint32_t i, void *stream)
{
    BT_ASSERT(i < lane->n_notes);
    return CUDA(&lane->nobody, cudaStreamWaitEvent(stream, lane->notes[i], 0));
}

static bt_status nccl_passed(const bt_nccl_lane *lane, uint32_t i, bool *passed_out)
{
    return has_come(&lane->nobody, lane->notes[i], passed_out);
}

static bt_status nccl_fetch(bt_nccl_lane *lane, const void *from)
{
    return CUDA(&lane->nobody, cudaMemcpyAsync(lane->fetched, from, BT_NCCL_FETCH_BYTES,
                                               cudaMemcpyDeviceToHost, lane->stream));
}

static const void *nccl_fetched(const bt_nccl_lane *lane) { return lane->fetched; }

__attribute__((visibility("default"))) const bt_nccl_module bt_nccl_module_table = {
    .version      = BT_NCCL_MODULE_VERSION,
    .usable       = nccl_usable,
    .new_id       = nccl_new_id,
    .start        = nccl_start,
    .poll         = nccl_poll,
    .exchange     = nccl_exchange,
    .send         = nccl_send,
    .recv         = nccl_recv,
    .lane_create  = nccl_lane_create,
    .lane_destroy = nccl_lane_destroy,
    .lane_stream  = nccl_lane_stream,
    .note         = nccl_note,
    .follow       = nccl_follow,
    .passed       = nccl_passed,
    .fetch        = nccl_fetch,
    .fetched      = nccl_fetched,
    .mark         = nccl_mark,
    .reached      = nccl_reached,
    .abort        = nccl_abort,
    .destroy      = nccl_destroy,
};
