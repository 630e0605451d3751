/* tests/cuda/fake/cudart.c - see cuda_runtime_api.h beside it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cuda_runtime_api.h"
#include "tests/cuda/simt_control.h"

fake_gpu g_fake_gpu = {1, CUDART_VERSION, 9, 0, (size_t)1 << 30, -1, 0, 0};

static int number_of(const char *text, const char *name, int otherwise)
{
    const char *at = strstr(text, name);

    return at == NULL ? otherwise : atoi(at + strlen(name));
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *text = getenv("BT_FAKE_GPU");

    if (text == NULL) return;
    g_fake_gpu.n_devices = number_of(text, "devices=", g_fake_gpu.n_devices);
    g_fake_gpu.driver    = number_of(text, "driver=", g_fake_gpu.driver);
    g_fake_gpu.major     = number_of(text, "major=", g_fake_gpu.major);
    g_fake_gpu.minor     = number_of(text, "minor=", g_fake_gpu.minor);
    g_fake_gpu.bytes     = (size_t)number_of(text, "mib=", 1024) << 20;
}

/* The GPU's memory: nobody may touch it but kernels and copies.  Pieces are taken from its free
 * end; it starts anew when all have come back. */
enum { ALIGN = 256, HUGE = 2 << 20 };
static const size_t ARENA_BYTES = (size_t)4 << 30;
static char        *g_arena;
static size_t       g_used;

typedef struct {
    size_t bytes;
    char   pad[ALIGN - sizeof(size_t)];
} head;

/* In whole huge pages, so that a change of protection is a change of few entries. */
static size_t protected_bytes(void) { return (g_used + HUGE - 1) / HUGE * HUGE; }
static void   close_arena(void) { mprotect(g_arena, protected_bytes(), PROT_NONE); }
static void   open_arena(void) { mprotect(g_arena, protected_bytes(), PROT_READ | PROT_WRITE); }
void          fake_gpu_open(void) { open_arena(); }
void          fake_gpu_close(void) { close_arena(); }

/* ---- work that others have given to streams */

enum { MAX_STREAMS = 16, WAIT_S = 60 };
struct fake_event {
    cudaStream_t  stream;
    unsigned long given;
};
void (*g_fake_progress)(void);
static cudaStream_t g_streams[MAX_STREAMS];

static void progress(void)
{
    if (g_fake_progress != NULL) g_fake_progress();
}

/* Waits as a stream does; work that never ends is the test's mistake. */
static void wait_for(cudaStream_t stream, unsigned long given)
{
    struct timespec nap = {0, 20000};
    time_t          end = time(NULL) + WAIT_S;

    while (stream != NULL && stream->n_done < given) {
        progress();
        if (stream->n_done >= given) break;
        if (time(NULL) > end) {
            fprintf(stderr, "the fake GPU's stream has stood still for %d s\n", WAIT_S);
            abort();
        }
        nanosleep(&nap, NULL);
    }
}

static void finish(cudaStream_t stream)
{
    if (stream != NULL) wait_for(stream, stream->n_given);
}

/* A launch does not say its stream here: it waits for those of normal priority. */
static void before_launch(void)
{
    for (int i = 0; i < MAX_STREAMS; i++)
        if (g_streams[i] != NULL && g_streams[i]->priority == 0) finish(g_streams[i]);
    open_arena();
}

static head *take_piece(size_t bytes)
{
    size_t need = (sizeof(head) + bytes + ALIGN - 1) / ALIGN * ALIGN;
    head  *h;

    if (g_arena == NULL) {
        g_arena = mmap(NULL, ARENA_BYTES + HUGE, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (g_arena == MAP_FAILED) abort();
        g_arena += HUGE - (uintptr_t)g_arena % HUGE;
        (void)madvise(g_arena, ARENA_BYTES, MADV_HUGEPAGE); /* where the system has them */
        simt_around_launches(before_launch, close_arena);
    }
    if (g_fake_gpu.taken == 0) g_used = 0;
    if (need > ARENA_BYTES - g_used) abort();
    h = (head *)(void *)(g_arena + g_used);
    g_used += need;
    open_arena();
    h->bytes = bytes;
    memset(h + 1, 0xff, bytes);
    close_arena();
    return h;
}

static cudaError_t step(void)
{
    if (g_fake_gpu.fail_at >= 0 && g_fake_gpu.fail_at-- == 0) return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    if (g_fake_gpu.driver < CUDART_VERSION) return cudaErrorInsufficientDriver;
    if (g_fake_gpu.n_devices == 0) return cudaErrorNoDevice;
    *n = g_fake_gpu.n_devices;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = g_fake_gpu.driver;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

const char *cudaGetErrorString(cudaError_t err)
{
    return err == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "invalid argument";
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    (void)device;
    *value = attr == cudaDevAttrComputeCapabilityMajor ? g_fake_gpu.major : g_fake_gpu.minor;
    return step();
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return step();
}

cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
    head *h;

    if (step() != cudaSuccess) return cudaErrorInvalidValue;
    if (bytes > g_fake_gpu.bytes - g_fake_gpu.taken) return cudaErrorMemoryAllocation;
    h = take_piece(bytes);
    g_fake_gpu.taken += bytes;
    g_fake_gpu.live++;
    *ptr = h + 1;
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr)
{
    if (ptr == NULL) return cudaSuccess;
    open_arena();
    g_fake_gpu.taken -= ((head *)ptr - 1)->bytes;
    close_arena();
    g_fake_gpu.live--;
    return cudaSuccess;
}

static cudaError_t give(void **ptr, size_t bytes)
{
    if (step() != cudaSuccess) return cudaErrorInvalidValue;
    *ptr = malloc(bytes);
    g_fake_gpu.live++;
    return cudaSuccess;
}

static cudaError_t take(void *ptr)
{
    free(ptr);
    g_fake_gpu.live--;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    return give(ptr, bytes);
}
cudaError_t cudaFreeHost(void *ptr) { return take(ptr); }

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *left = g_fake_gpu.bytes - g_fake_gpu.taken;
    *all  = g_fake_gpu.bytes;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t stream)
{
    finish(stream);
    if (step() != cudaSuccess) return cudaErrorInvalidValue;
    open_arena();
    memset(ptr, value, bytes);
    close_arena();
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    (void)kind;
    finish(stream);
    if (step() != cudaSuccess) return cudaErrorInvalidValue;
    open_arena();
    memcpy(dst, src, bytes);
    close_arena();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least    = 1; /* 0 on a GPU: told apart here from streams of normal priority */
    *greatest = -5;
    return step();
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    int i = 0;

    (void)flags;
    while (i < MAX_STREAMS && g_streams[i] != NULL)
        i++;
    if (i == MAX_STREAMS) abort();
    if (give((void **)stream, sizeof(**stream)) != cudaSuccess) return cudaErrorInvalidValue;
    **stream     = (struct fake_stream){.priority = priority};
    g_streams[i] = *stream;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    finish(stream);
    return step();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    stream->after       = event->stream;
    stream->after_given = event->given;
    return step();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    for (int i = 0; i < MAX_STREAMS; i++) {
        if (g_streams[i] == stream) g_streams[i] = NULL;
        if (g_streams[i] != NULL && g_streams[i]->after == stream) g_streams[i]->after = NULL;
    }
    return take(stream);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    if (give((void **)event, sizeof(**event)) != cudaSuccess) return cudaErrorInvalidValue;
    **event = (struct fake_event){.stream = NULL};
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    event->stream = stream;
    event->given  = stream != NULL ? stream->n_given : 0;
    return step();
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    progress();
    if (event->stream != NULL && event->stream->n_done < event->given) return cudaErrorNotReady;
    return step();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    wait_for(event->stream, event->given);
    return step();
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return take(event); }
