/* core/thread.h - threads that leave the process's signals to the others. */
#ifndef BT_CORE_THREAD_H
#define BT_CORE_THREAD_H

#include <pthread.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default) /* libbaton_nccl.so takes this from the program */

/* As pthread_create(), whose code it returns; the thread has all signals blocked. */
int bt_thread_start(pthread_t *thread_out, void *(*run)(void *ctx), void *ctx);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
