/* tests/cuda/fake/inside.h - what the files of the fake GPU share. */
#ifndef BT_TESTS_CUDA_FAKE_INSIDE_H
#define BT_TESTS_CUDA_FAKE_INSIDE_H

#include "cuda_runtime_api.h"
#include "tests/cuda/simt_control.h"

/* Counts a call of the runtime; an error when it is the one that fails. */
cudaError_t fake_gpu_step(void);
/* Whether cudaHostAlloc() gave all of it. */
int fake_gpu_is_pinned(const void *ptr, size_t bytes);
/* All work that waits for nothing. */
void fake_gpu_run_all(void);

#endif
