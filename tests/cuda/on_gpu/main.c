/* tests/cuda/on_gpu/main.c - the main() of kernel tests on a GPU.
 *
 * The tests hand ordinary arrays to kernels.  Here their heap and their stack are host memory that
 * the GPU reads and writes where it lies, and each launch has ended when it returns, so the same
 * bodies run: the linker gives this file their calls, and their start (--wrap).  Without a GPU they
 * skip.
 *
 *     gpu_test_NAME [TEST | --list]
 *
 * After a kernel's fault every call fails for as long as the process lives, so it names the test
 * and ends; scripts/gpu-check gives each test a process. */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "tests/cuda/simt_control.h"
#include "tests/support/test.h"

enum { STACK_BYTES = 8 << 20 };

int         __real_main(int argc, char **argv);
int         __wrap_main(int argc, char **argv);
int         __real_posix_memalign(void **ptr, size_t align, size_t bytes);
void        __real_free(void *ptr);
cudaError_t __real_cudaGetLastError(void);
cudaError_t __real_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
int         __wrap_posix_memalign(void **ptr, size_t align, size_t bytes);
void        __wrap_free(void *ptr);
cudaError_t __wrap_cudaGetLastError(void);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);

static void say(const char *call, cudaError_t err)
{
    fprintf(stderr, "on the GPU, in %s, %s: %s\n", bt_test_now != NULL ? bt_test_now : "no test",
            call, cudaGetErrorString(err));
}

/* ---- memory: an array has a list entry, since free() is asked about everything */

typedef struct piece {
    struct piece *next;
    void         *ptr;
} piece;

static piece *g_pieces;
static bool   g_ready, g_inside; /* a GPU is there; the runtime is at work, which allocates too */

int __wrap_posix_memalign(void **ptr, size_t align, size_t bytes)
{
    piece      *p;
    cudaError_t err;

    if (!g_ready || g_inside) return __real_posix_memalign(ptr, align, bytes);
    p        = malloc(sizeof(*p));
    g_inside = true;
    err      = cudaHostAlloc(ptr, bytes == 0 ? 1 : bytes, cudaHostAllocDefault);
    g_inside = false;
    if (err != cudaSuccess) say("cudaHostAlloc", err);
    if (p == NULL || err != cudaSuccess) abort();
    *p       = (piece){g_pieces, *ptr};
    g_pieces = p;
    return 0;
}

void __wrap_free(void *ptr)
{
    piece     **at = &g_pieces;
    cudaError_t err;

    while (!g_inside && *at != NULL && (*at)->ptr != ptr)
        at = &(*at)->next;
    if (g_inside || ptr == NULL || *at == NULL) {
        __real_free(ptr);
        return;
    }
    piece *p = *at;

    *at      = p->next;
    g_inside = true;
    err      = cudaFreeHost(ptr);
    g_inside = false;
    if (err != cudaSuccess) {
        say("cudaFreeHost", err);
        abort();
    }
    __real_free(p);
}

/* ---- launches end here: each asks for its error */

cudaError_t __wrap_cudaGetLastError(void)
{
    cudaError_t err = __real_cudaGetLastError();

    if (!g_ready || g_inside) return err;
    if (err == cudaSuccess) {
        g_inside = true;
        err      = cudaDeviceSynchronize();
        g_inside = false;
    }
    if (err != cudaSuccess) say("a launch", err);
    return err;
}

/* ---- launchers choose tiles by the GPU's size: on all of it these small tests would take those
 * for small launches alone */

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    cudaError_t err = __real_cudaDeviceGetAttribute(value, attr, device);

    if (err == cudaSuccess && attr == cudaDevAttrMultiProcessorCount) *value = SIMT_MULTIPROCESSORS;
    return err;
}

/* ---- what only the harness on the CPU has */

void     simt_seed(uint64_t seed) { (void)seed; }
void     simt_limit_shared(uint32_t bytes) { (void)bytes; }
uint64_t simt_n_launches(void) { return 0; }
uint64_t simt_n_blocks(void) { return 0; }
bool     simt_counts(void) { return false; }

/* ---- life */

static ucontext_t g_outside, g_test;
static int        g_argc, g_code;
static char     **g_argv;

static void run_test(void) { g_code = __real_main(g_argc, g_argv); }

int __wrap_main(int argc, char **argv)
{
    void                 *stack = NULL;
    int                   n     = 0;
    struct cudaDeviceProp gpu;
    cudaError_t           err;

    if (argc > 1 && strcmp(argv[1], "--list") == 0) return __real_main(argc, argv);
    err = cudaGetDeviceCount(&n);
    if (err != cudaSuccess || n == 0) {
        printf("skipped, no GPU: %s\n", cudaGetErrorString(err));
        return BT_TEST_SKIP;
    }
    if (cudaGetDeviceProperties(&gpu, 0) != cudaSuccess ||
        cudaHostAlloc(&stack, STACK_BYTES, cudaHostAllocDefault) != cudaSuccess ||
        getcontext(&g_test) != 0) {
        printf("the GPU does not start: %s\n", cudaGetErrorString(cudaGetLastError()));
        return EXIT_FAILURE;
    }
    printf("on %s\n", gpu.name);
    g_argc                  = argc;
    g_argv                  = argv;
    g_test.uc_stack.ss_sp   = stack;
    g_test.uc_stack.ss_size = STACK_BYTES;
    g_test.uc_link          = &g_outside;
    makecontext(&g_test, run_test, 0);
    g_ready = true;
    if (swapcontext(&g_outside, &g_test) != 0) abort();
    return g_code;
}
