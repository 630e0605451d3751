/* tests/cuda/fake/cuda_runtime_api.h - the part of the CUDA runtime that the back end uses, for
 * tests of the back end's own code.  Its GPU is host memory that only kernels (tests/cuda/simt.h)
 * and copies may touch: other code that follows a device pointer gets a segmentation fault.  What a
 * stream is given waits there until the host waits or asks for something: what belongs to one
 * stream runs in order, streams among each other as their events and a seed have it. */
#ifndef BT_TESTS_CUDA_FAKE_CUDA_RUNTIME_API_H
#define BT_TESTS_CUDA_FAKE_CUDA_RUNTIME_API_H

#include <stddef.h>

#define CUDART_VERSION 12080

typedef enum {
    cudaSuccess                       = 0,
    cudaErrorInvalidValue             = 1,
    cudaErrorMemoryAllocation         = 2,
    cudaErrorStubLibrary              = 34,
    cudaErrorDevicesUnavailable       = 46,
    cudaErrorInsufficientDriver       = 35,
    cudaErrorNoDevice                 = 100,
    cudaErrorECCUncorrectable         = 214,
    cudaErrorNvlinkUncorrectable      = 220,
    cudaErrorContained                = 226,
    cudaErrorNotReady                 = 600,
    cudaErrorIllegalAddress           = 700,
    cudaErrorLaunchTimeout            = 702,
    cudaErrorHardwareStackError       = 714,
    cudaErrorIllegalInstruction       = 715,
    cudaErrorMisalignedAddress        = 716,
    cudaErrorInvalidAddressSpace      = 717,
    cudaErrorInvalidPc                = 718,
    cudaErrorLaunchFailure            = 719,
    cudaErrorSystemNotReady           = 802,
    cudaErrorSystemDriverMismatch     = 803,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnjoined    = 904,
    cudaErrorStreamCaptureIsolation   = 905,
    cudaErrorCapturedEvent            = 907
} cudaError_t;
typedef enum {
    cudaMemcpyHostToDevice   = 1,
    cudaMemcpyDeviceToHost   = 2,
    cudaMemcpyDeviceToDevice = 3
} cudaMemcpyKind;
typedef enum {
    cudaDevAttrComputeMode            = 20,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
} cudaDeviceAttr;
struct cudaDeviceProp {
    struct {
        char bytes[16];
    } uuid;
};
typedef struct fake_stream *cudaStream_t;
typedef struct fake_event  *cudaEvent_t;
typedef struct fake_graph  *cudaGraph_t, *cudaGraphExec_t;
typedef enum { cudaStreamCaptureModeThreadLocal = 1 } cudaStreamCaptureMode;
typedef struct fake_op fake_op;
/* Work of the runtime's own, and what other libraries (fake/nccl.h) give the stream to do, each
 * counted; an own piece waits for what they had given before.  While a library works on a call for
 * the stream (n_calls) nobody may give it anything to run. */
struct fake_stream {
    unsigned long n_put, n_ran;
    unsigned long n_given, n_done;
    unsigned      n_calls;
    int           priority;
    fake_op      *first, **end;
};
/* What another library puts into a captured stream.  begin() comes at each launch, when the work's
 * turn has come; *done becomes 1 when it has run.  Graph and executable are both destroyed:
 * dropped(), though a launch may still be under way; then no launch is either: release(). */
typedef struct {
    void *of;
    void (*begin)(void *of, int *done);
    void (*dropped)(void *of);
    void (*release)(void *of);
} fake_foreign;
enum { cudaComputeModeProhibited = 2, cudaComputeModeExclusiveProcess = 3 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };

/* What the machine is: for tests to set, or the environment: BT_FAKE_GPU="devices=2 driver=12040
 * major=7 minor=5 mib=64 seed=3", of which any may be left out. */
typedef struct {
    int    n_devices, driver, major, minor;
    int    mig;      /* all are instances of one GPU, of which a process sees one */
    int    mode;     /* cudaDevAttrComputeMode of all */
    int    old;      /* 1 + the GPU of compute capability 7.5; 0: none */
    int    busy_for; /* 1 + MPI's rank for which there is no context; 0: none */
    size_t others;   /* of the GPU, taken by other programs */
    int    hmm;      /* kernels may follow pointers to all of the process's memory */
    int    stub;     /* the driver's library is the one that programs are linked with */
    int    lazy;     /* of streams the one that was made first goes on, no further than the host
                        waits for: what nobody waits for has not run */
    size_t bytes;    /* of the GPU */
    long   fail_at;  /* the call from now that fails with cudaErrorInvalidValue; -1: none */
    int    broken;   /* what calls fail with from now on, as behind a kernel's fault; 0: none */
    size_t taken;    /* of the GPU */
    long   live;     /* memory, streams and events not yet given back */
    long   n_waits;  /* of the host, for work that had not ended */
    long   n_graphs; /* launched */
} fake_gpu;
extern fake_gpu g_fake_gpu;
/* Moves what other libraries have under way; NULL: there is none. */
extern void (*g_fake_progress)(void);
/* A little of what can run, and that. */
void fake_gpu_progress(void);
/* The capture that the stream takes part in, a number; 0: none. */
unsigned long fake_gpu_capture_of(cudaStream_t stream);
void          fake_gpu_capture(cudaStream_t stream, const fake_foreign *work);
/* The order among streams follows from it. */
void fake_gpu_seed(unsigned long seed);
/* The GPU's memory may be touched from open to close. */
void fake_gpu_open(void);
void fake_gpu_close(void);

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t err);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaMalloc(void **ptr, size_t bytes);
cudaError_t cudaFree(void *ptr);
cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaMemGetInfo(size_t *left, size_t *all);
cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);

/* One capture at a time.  What is captured is kept with its arguments and runs when it is launched,
 * in an order that its streams and events allow; a call that a capture does not take spoils it. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

#endif
