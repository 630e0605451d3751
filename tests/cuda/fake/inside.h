/* tests/cuda/fake/inside.h - what the files of the fake GPU share. */
#ifndef BT_TESTS_CUDA_FAKE_INSIDE_H
#define BT_TESTS_CUDA_FAKE_INSIDE_H

#include "cuda_runtime_api.h"
#include "tests/cuda/simt_control.h"

/* What a call fails by: it stays until cudaGetLastError(), which a launch asks too. */
cudaError_t fake_error(cudaError_t err);
cudaError_t fake_last_error(void); /* which stays */
/* Counts a call of the runtime; an error when it is the one that fails. */
cudaError_t fake_gpu_step(void);
/* Whether cudaHostAlloc() gave all of it. */
int fake_gpu_is_pinned(const void *ptr, size_t bytes);
/* Whether the pointer is the GPU's; whether kernels may follow it. */
int fake_gpu_has(const void *ptr);
int fake_gpu_reaches(const void *ptr);
/* All work that waits for nothing. */
void fake_gpu_run_all(void);
/* All work of the GPU; what never ends is the test's mistake. */
void fake_gpu_drain(void);
/* What ends soon, in a thread beside the one that gives work, which waits meanwhile, but not for
 * ever (comm_nccl.c). */
void fake_gpu_drain_beside(void);
/* The fake GPU serves one thread at a time; it is locked while its memory is open too. */
void fake_gpu_lock(void);
void fake_gpu_unlock(void);

typedef struct fake_run fake_run; /* a launch of a graph that is under way */
typedef enum { COPY, SET, LAUNCH, RECORD, AWAIT, GRAPH, FOREIGN } fake_op_kind;
struct fake_op {
    fake_op      *next;
    fake_op_kind  kind;
    unsigned long given; /* of what other libraries had given the stream before it */
    void         *dst;
    const void   *src;
    void         *kept; /* owned: what pageable memory held */
    size_t        bytes;
    int           value;
    simt_job     *job; /* owned */
    cudaEvent_t   event;
    unsigned long number; /* of the event's record; in a graph the node that is awaited */
    cudaGraph_t   graph;
    fake_run     *run; /* owned */
    fake_foreign  foreign;
};

struct fake_event {
    unsigned long n_recorded, n_done;
    unsigned long capture, node; /* the capture that has its last record, and where; 0: none */
    unsigned      holders;       /* the program, and what waits in streams */
};

unsigned fake_gpu_random_below(unsigned n);
void     fake_op_run(const fake_op *op);
void     fake_op_fini(fake_op *op); /* gives back what it owns */

/* graphs.c */
int fake_capture_is_on(void);
int fake_capture_has(cudaStream_t stream);
cudaError_t
fake_capture_refuse(void); /* a call that a capture does not take: it comes to nothing */
cudaError_t fake_capture_add(cudaStream_t stream, const fake_op *op);
/* Another piece of the launch can run, or its end be seen; runs some; it has ended. */
int  fake_graph_can_move(const fake_op *launch);
int  fake_graph_move(fake_op *launch);
void fake_run_free(fake_run *run);
void fake_graph_release(cudaGraph_t graph); /* NULL is allowed */
void fake_graph_hold(cudaGraph_t graph);

#endif
