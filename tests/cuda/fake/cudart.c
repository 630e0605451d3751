/* tests/cuda/fake/cudart.c - the fake GPU and its memory: see cuda_runtime_api.h beside it. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/fake/inside.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(ptr, bytes)   ((void)(ptr), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(ptr, bytes) ((void)(ptr), (void)(bytes))
#endif

fake_gpu g_fake_gpu = {
    .n_devices = 1, .driver = CUDART_VERSION, .major = 9, .bytes = (size_t)1 << 30, .fail_at = -1};

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
    g_fake_gpu.mig       = number_of(text, "mig=", 0);
    g_fake_gpu.mode      = number_of(text, "mode=", 0);
    g_fake_gpu.old       = number_of(text, "old=", -1) + 1;
    g_fake_gpu.busy_for  = number_of(text, "busy_for=", -1) + 1;
    g_fake_gpu.others    = (size_t)number_of(text, "others=", 0) << 20;
    g_fake_gpu.bytes     = (size_t)number_of(text, "mib=", 1024) << 20;
    fake_gpu_seed((unsigned long)number_of(text, "seed=", 0));
}

/* The GPU's memory: nobody may touch it but kernels and copies.  Pieces are taken from its free
 * end; it starts anew when all have come back.  Under AddressSanitizer nobody may touch what lies
 * between pieces, nor one that has come back. */
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

static pthread_mutex_t g_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void fake_gpu_lock(void) { pthread_mutex_lock(&g_lock); }
void fake_gpu_unlock(void) { pthread_mutex_unlock(&g_lock); }

void fake_gpu_open(void)
{
    fake_gpu_lock();
    mprotect(g_arena, protected_bytes(), PROT_READ | PROT_WRITE);
}

void fake_gpu_close(void)
{
    mprotect(g_arena, protected_bytes(), PROT_NONE);
    fake_gpu_unlock();
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
    }
    if (g_fake_gpu.taken == 0) g_used = 0;
    if (need > ARENA_BYTES - g_used) abort();
    h = (head *)(void *)(g_arena + g_used);
    g_used += need;
    fake_gpu_open();
    ASAN_UNPOISON_MEMORY_REGION(h, need);
    h->bytes = bytes;
    memset(h + 1, 0xff, bytes);
    ASAN_POISON_MEMORY_REGION(h, sizeof(*h));
    ASAN_POISON_MEMORY_REGION((char *)(h + 1) + bytes, need - sizeof(*h) - bytes);
    fake_gpu_close();
    return h;
}

static _Thread_local cudaError_t g_last;

cudaError_t fake_error(cudaError_t err)
{
    g_last = err;
    return err;
}

cudaError_t fake_last_error(void) { return g_last; }

cudaError_t cudaGetLastError(void)
{
    cudaError_t err = g_last;

    g_last = cudaSuccess;
    return err;
}

cudaError_t fake_gpu_step(void)
{
    if (g_fake_gpu.broken != cudaSuccess) return fake_error((cudaError_t)g_fake_gpu.broken);
    if (g_fake_gpu.fail_at >= 0 && g_fake_gpu.fail_at-- == 0)
        return fake_error(cudaErrorInvalidValue);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    if (g_fake_gpu.stub) return fake_error(cudaErrorStubLibrary);
    if (g_fake_gpu.broken == cudaErrorSystemNotReady) return fake_error(cudaErrorSystemNotReady);
    if (g_fake_gpu.driver < CUDART_VERSION / 1000 * 1000)
        return fake_error(cudaErrorInsufficientDriver);
    if (g_fake_gpu.n_devices == 0) return fake_error(cudaErrorNoDevice);
    *n = g_fake_gpu.mig ? 1 : g_fake_gpu.n_devices; /* a process sees one instance */
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = g_fake_gpu.stub ? 0 : g_fake_gpu.driver;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t err)
{
    return err == cudaErrorNoDevice      ? "no CUDA-capable device is detected"
           : err == cudaErrorStubLibrary ? "CUDA driver is a stub library"
           : err == cudaErrorDevicesUnavailable
               ? "CUDA-capable device(s) is/are busy or unavailable"
           : err == cudaErrorIllegalAddress   ? "an illegal memory access was encountered"
           : err == cudaErrorECCUncorrectable ? "uncorrectable ECC error encountered"
           : err == cudaErrorSystemNotReady   ? "system not yet initialized"
                                              : "invalid argument";
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    bool old = device + 1 == g_fake_gpu.old;

    *value = attr == cudaDevAttrComputeMode              ? g_fake_gpu.mode
             : attr == cudaDevAttrComputeCapabilityMajor ? (old ? 7 : g_fake_gpu.major)
                                                         : (old ? 5 : g_fake_gpu.minor);
    return fake_gpu_step();
}

/* CUDA_VISIBLE_DEVICES says which of the machine's GPUs this process sees, in which order. */
static int seen_as(int device)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");

    for (int i = 0; at != NULL && i < device; i++)
        at = strchr(at, ',') == NULL ? NULL : strchr(at, ',') + 1;
    if (at != NULL && strncmp(at, "MIG-", 4) == 0) at += 4;
    return at != NULL ? atoi(at) : device;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", g_fake_gpu.mig ? 0 : seen_as(device));
    return fake_gpu_step();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof(*p));
    p->uuid.bytes[15] = (char)seen_as(device);
    return fake_gpu_step();
}

static _Thread_local int g_device;

cudaError_t cudaSetDevice(int device)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");

    if (rank != NULL && atoi(rank) + 1 == g_fake_gpu.busy_for)
        return fake_error(cudaErrorDevicesUnavailable);
    g_device = device;
    return fake_gpu_step();
}

cudaError_t cudaGetDevice(int *device)
{
    *device = g_device;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
    head *h;

    if (fake_capture_is_on()) return fake_capture_refuse();
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    if (bytes > g_fake_gpu.bytes - g_fake_gpu.taken) return fake_error(cudaErrorMemoryAllocation);
    h = take_piece(bytes);
    g_fake_gpu.taken += bytes;
    g_fake_gpu.live++;
    *ptr = h + 1;
    return cudaSuccess;
}

cudaError_t cudaFree(void *ptr)
{
    if (ptr == NULL) return cudaSuccess;
    if (fake_capture_is_on()) return fake_capture_refuse();

    head *h = (head *)ptr - 1;

    fake_gpu_drain();
    fake_gpu_open();
    ASAN_UNPOISON_MEMORY_REGION(h, sizeof(*h));
    g_fake_gpu.taken -= h->bytes;
    ASAN_POISON_MEMORY_REGION(h, sizeof(*h) + h->bytes);
    fake_gpu_close();
    g_fake_gpu.live--;
    return cudaSuccess;
}

typedef struct pinned {
    struct pinned *next;
    char          *ptr;
    size_t         bytes;
} pinned;
static pinned *g_pinned;

int fake_gpu_is_pinned(const void *ptr, size_t bytes)
{
    const char *at = ptr;

    for (const pinned *p = g_pinned; p != NULL; p = p->next)
        if (at >= p->ptr && at + bytes <= p->ptr + p->bytes) return 1;
    return 0;
}

int fake_gpu_has(const void *ptr)
{
    return g_arena != NULL && (const char *)ptr >= g_arena &&
           (const char *)ptr <= g_arena + ARENA_BYTES;
}

int fake_gpu_reaches(const void *ptr)
{
    return g_fake_gpu.hmm || fake_gpu_has(ptr) || fake_gpu_is_pinned(ptr, 0);
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags)
{
    pinned *p;

    (void)flags;
    if (fake_capture_is_on()) return fake_capture_refuse();
    if (fake_gpu_step() != cudaSuccess) return fake_last_error();
    p        = malloc(sizeof(*p));
    *p       = (pinned){g_pinned, malloc(bytes), bytes};
    g_pinned = p;
    *ptr     = p->ptr;
    g_fake_gpu.live++;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *ptr)
{
    if (fake_capture_is_on()) return fake_capture_refuse();
    fake_gpu_drain();
    for (pinned **at = &g_pinned; *at != NULL; at = &(*at)->next) {
        pinned *p = *at;

        if (p->ptr != ptr) continue;
        *at = p->next;
        free(p);
        break;
    }
    free(ptr);
    g_fake_gpu.live--;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *left = g_fake_gpu.bytes - g_fake_gpu.taken - g_fake_gpu.others;
    *all  = g_fake_gpu.bytes;
    return cudaSuccess;
}
