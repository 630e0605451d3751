/* tests/cuda/simt_control.h - what a test may set about the CPU runs of kernels (simt.h). */
#ifndef BT_TESTS_CUDA_SIMT_CONTROL_H
#define BT_TESTS_CUDA_SIMT_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of the GPU, as kernels' launchers see it in tests: few, so that small launches can fill them. */
enum { SIMT_MULTIPROCESSORS = 4 };

/* The order in which fibers run follows from it; each launch draws a new order. */
void simt_seed(uint64_t seed);
/* Bytes of shared memory that a block may ask for: 232448 (a Hopper) unless set. */
void     simt_limit_shared(uint32_t bytes);
uint32_t simt_max_shared(void);
/* So far; on a GPU (on_gpu/main.c) nobody counts: both stay 0, and simt_counts() says so. */
uint64_t simt_n_launches(void);
uint64_t simt_n_blocks(void);
bool     simt_counts(void);
/* A launch with its arguments as they were.  It may run any number of times, or never. */
typedef struct simt_job simt_job;
/* Launches from now on do not run at once: `take` gets them, and owns them; it returns 0, or what
 * the launch has failed by.  A launch in a stream one of whose arguments is, or holds, a pointer to
 * memory of this process for which `reaches` says 0 ends the process: a GPU would fault there. */
void simt_take_launches(int (*take)(simt_job *job, void *stream), int (*reaches)(const void *ptr));
void simt_job_run(simt_job *job);
void simt_job_free(simt_job *job);

#ifdef __cplusplus
}
#endif
#endif
