/* tests/cuda/fake/streams.c - streams and events of the fake GPU: see cuda_runtime_api.h.
 *
 * What is given to a stream waits in it.  Work runs when the host waits or asks: that of one stream
 * in order, that of several in an order that follows from the seed, so that a wait or an event that
 * is missing shows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/fake/inside.h"

enum { MAX_STREAMS = 16, WAIT_S = 60, MOST_AT_ONCE = 8, BESIDE_MS = 1500 };

void (*g_fake_progress)(void);
static cudaStream_t  g_streams[MAX_STREAMS];
static unsigned long g_random = 1;

void fake_gpu_seed(unsigned long seed) { g_random = seed * 2654435769u + 1; }

unsigned fake_gpu_random_below(unsigned n)
{
    g_random = g_random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(g_random >> 33) % n;
}

/* ---- what waits in streams */

static void release(cudaEvent_t event)
{
    if (event != NULL && --event->holders == 0) free(event);
}

void fake_op_fini(fake_op *op)
{
    if (op->job != NULL) simt_job_free(op->job);
    release(op->event);
    fake_run_free(op->run);
    fake_graph_release(op->graph);
    free(op->kept);
}

/* NVIDIA's guide to NCCL, ncclCommGetAsyncError(): no kernel before the call has succeeded. */
static void expect_no_call(cudaStream_t stream, fake_op_kind kind)
{
    if (stream->n_calls == 0 || kind == RECORD || kind == AWAIT) return;
    fprintf(stderr,
            "the fake GPU is given work for a stream that NCCL has a call in progress on\n");
    abort();
}

static cudaError_t put(cudaStream_t stream, fake_op from)
{
    fake_op *op;

    expect_no_call(stream, from.kind);
    if (fake_capture_has(stream) || (fake_capture_is_on() && from.kind == AWAIT))
        return fake_capture_add(stream, &from);
    op        = malloc(sizeof(*op));
    *op       = from;
    op->next  = NULL;
    op->given = stream->n_given;
    if (op->event != NULL) op->event->holders++;
    if (op->graph != NULL) fake_graph_hold(op->graph);
    fake_gpu_lock();
    *stream->end = op;
    stream->end  = &op->next;
    stream->n_put++;
    fake_gpu_unlock();
    return cudaSuccess;
}

void fake_op_run(const fake_op *op)
{
    switch (op->kind) {
    case COPY: memcpy(op->dst, op->kept != NULL ? op->kept : op->src, op->bytes); break;
    case SET: memset(op->dst, op->value, op->bytes); break;
    case LAUNCH: simt_job_run(op->job); break;
    case RECORD: op->event->n_done = op->number; break;
    case AWAIT:
    case GRAPH:
    case FOREIGN: break; /* graphs.c */
    }
}

static int is_ready(const struct fake_stream *s)
{
    const fake_op *op = s->first;

    return op != NULL && s->n_done >= op->given &&
           (op->kind != AWAIT || op->event->n_done >= op->number) &&
           (op->kind != GRAPH || fake_graph_can_move(op));
}

static void run_first(cudaStream_t s)
{
    fake_op *op = s->first;

    if (op->kind == GRAPH && !fake_graph_move(op)) return;
    fake_op_run(op);
    s->first = op->next;
    if (s->first == NULL) s->end = &s->first;
    s->n_ran++;
    fake_op_fini(op);
    free(op);
}

/* At most n pieces of work, each from a stream by chance; or from `only` while it can. */
static unsigned run_some(unsigned n, cudaStream_t only)
{
    unsigned done = 0;

    if (g_fake_gpu.lazy && n > 1) n = 1;
    fake_gpu_open();
    for (; done < n; done++) {
        cudaStream_t ready[MAX_STREAMS];
        unsigned     n_ready = 0;

        for (int i = 0; i < MAX_STREAMS; i++)
            if (g_streams[i] != NULL && is_ready(g_streams[i])) ready[n_ready++] = g_streams[i];
        if (n_ready == 0) break;
        if (g_fake_gpu.lazy) n_ready = 1;
        run_first(only != NULL && is_ready(only) ? only : ready[fake_gpu_random_below(n_ready)]);
    }
    fake_gpu_close();
    return done;
}

void fake_gpu_run_all(void)
{
    while (run_some(MOST_AT_ONCE, NULL) > 0)
        ;
}

void fake_gpu_progress(void)
{
    run_some(fake_gpu_random_below(MOST_AT_ONCE), NULL);
    if (g_fake_progress != NULL) g_fake_progress();
}

/* Waits as the host does; work that never ends is the test's mistake. */
static void wait_until(int (*is_done)(const void *of), const void *of, cudaStream_t stream)
{
    struct timespec nap  = {0, 20000};
    time_t          end  = time(NULL) + WAIT_S;
    cudaStream_t    only = fake_gpu_random_below(2) == 0 ? stream : NULL;

    g_fake_gpu.n_waits += !is_done(of);
    while (!is_done(of)) {
        unsigned n = run_some(1 + fake_gpu_random_below(MOST_AT_ONCE), only);

        if (g_fake_progress != NULL) g_fake_progress();
        if (n > 0 || is_done(of)) continue;
        if (g_fake_progress == NULL || time(NULL) > end) {
            fprintf(stderr, "the fake GPU waits for what nobody gives it to do\n");
            abort();
        }
        nanosleep(&nap, NULL);
    }
}

static int stream_is_done(const void *of)
{
    const struct fake_stream *s = of;

    return s->first == NULL && s->n_done >= s->n_given;
}

static int all_are_done(const void *unused)
{
    (void)unused;
    for (int i = 0; i < MAX_STREAMS; i++)
        if (g_streams[i] != NULL && !stream_is_done(g_streams[i])) return 0;
    return 1;
}

void fake_gpu_drain(void) { wait_until(all_are_done, NULL, NULL); }

static long ms_between(const struct timespec *a, const struct timespec *b)
{
    return (b->tv_sec - a->tv_sec) * 1000 + (b->tv_nsec - a->tv_nsec) / 1000000;
}

void fake_gpu_drain_beside(void)
{
    struct timespec nap = {0, 20000}, begin, now;

    clock_gettime(CLOCK_MONOTONIC, &begin);
    now = begin;
    while (!all_are_done(NULL) && ms_between(&begin, &now) < BESIDE_MS) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (run_some(MOST_AT_ONCE, NULL) > 0) continue;
        if (g_fake_progress != NULL) g_fake_progress();
        nanosleep(&nap, NULL);
    }
}

/* As gpu_launch() on a GPU, which returns what cudaGetLastError() says then. */
static int take_launch(simt_job *job, void *stream)
{
    cudaError_t err = fake_gpu_step();

    if (err == cudaSuccess && stream == NULL) {
        fake_gpu_open();
        simt_job_run(job);
        fake_gpu_close();
    } else if (err == cudaSuccess) {
        err = put(stream, (fake_op){.kind = LAUNCH, .job = job});
    }
    if (err != cudaSuccess || stream == NULL) simt_job_free(job);
    return (int)cudaGetLastError();
}

/* ---- streams */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least    = 0;
    *greatest = -5;
    return fake_gpu_step();
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    int i = 0;

    (void)flags;
    while (i < MAX_STREAMS && g_streams[i] != NULL)
        i++;
    if (i == MAX_STREAMS) abort();
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    simt_take_launches(take_launch, fake_gpu_reaches);
    *stream             = calloc(1, sizeof(**stream));
    (*stream)->end      = &(*stream)->first;
    (*stream)->priority = priority;
    g_streams[i]        = *stream;
    g_fake_gpu.live++;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (fake_capture_is_on()) return fake_capture_refuse();
    wait_until(stream_is_done, stream, stream);
    return fake_gpu_step();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fake_gpu_run_all();
    for (fake_op *op = stream->first, *next; op != NULL; op = next) {
        next = op->next;
        fake_op_fini(op);
        free(op);
    }
    for (int i = 0; i < MAX_STREAMS; i++)
        if (g_streams[i] == stream) g_streams[i] = NULL;
    free(stream);
    g_fake_gpu.live--;
    return cudaSuccess;
}

/* ---- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    *event            = calloc(1, sizeof(**event));
    (*event)->holders = 1;
    g_fake_gpu.live++;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    if (fake_capture_has(stream))
        return fake_capture_add(stream, &(fake_op){.kind = RECORD, .event = event});
    event->capture = 0;
    return put(stream, (fake_op){.kind = RECORD, .event = event, .number = ++event->n_recorded});
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    if (event->capture != 0 && !fake_capture_is_on()) return fake_error(cudaErrorCapturedEvent);
    return put(stream, (fake_op){.kind = AWAIT, .event = event, .number = event->n_recorded});
}

static int event_is_done(const void *of)
{
    const struct fake_event *e = of;

    return e->n_done >= e->n_recorded;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (fake_capture_is_on()) return fake_capture_refuse();
    if (event->capture != 0) return fake_error(cudaErrorCapturedEvent);
    if (g_fake_gpu.broken != cudaSuccess) return fake_gpu_step();
    fake_gpu_progress();
    if (!event_is_done(event)) return fake_error(cudaErrorNotReady);
    return fake_gpu_step();
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (fake_capture_is_on()) return fake_capture_refuse();
    if (event->capture != 0) return fake_error(cudaErrorCapturedEvent);
    wait_until(event_is_done, event, NULL);
    return fake_gpu_step();
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    release(event);
    g_fake_gpu.live--;
    return cudaSuccess;
}

/* ---- copies */

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t stream)
{
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    if (!fake_gpu_has(ptr)) return fake_error(cudaErrorInvalidValue);
    return put(stream, (fake_op){.kind = SET, .dst = ptr, .value = value, .bytes = bytes});
}

/* Pinned memory is read when the copy's turn comes, and what comes to it is all ones until then.
 * With other memory a copy "might be synchronous" (CUDA's page on the synchronization behavior of
 * its API), no more: by chance it is read at once, and a copy to it waits until it is done. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    fake_op op   = {.kind = COPY, .dst = dst, .src = src, .bytes = bytes};
    int     late = 1;

    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    if (fake_gpu_has(dst) == (kind == cudaMemcpyDeviceToHost) ||
        fake_gpu_has(src) == (kind == cudaMemcpyHostToDevice))
        return fake_error(cudaErrorInvalidValue);
    if (fake_capture_has(stream)) return put(stream, op); /* host memory is read when it runs */
    if (kind != cudaMemcpyDeviceToDevice)
        late = fake_gpu_is_pinned(kind == cudaMemcpyHostToDevice ? src : dst, bytes) ||
               fake_gpu_random_below(2) == 0;
    if (kind == cudaMemcpyHostToDevice && !late) {
        op.kept = malloc(bytes);
        memcpy(op.kept, src, bytes);
    }
    if (kind == cudaMemcpyDeviceToHost) memset(dst, 0xff, bytes);
    (void)put(stream, op);
    if (kind == cudaMemcpyDeviceToHost && !late) wait_until(stream_is_done, stream, stream);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    g_fake_gpu.n_graphs++;
    return put(stream, (fake_op){.kind = GRAPH, .graph = exec});
}
