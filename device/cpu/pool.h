/* device/cpu/pool.h - the project's one compute pool: its caller is a member.
 *
 * Work comes as chunks that members take one at a time from an atomic counter.  The caller takes
 * chunks too and waits only for chunks already taken by others, so a member that the kernel does
 * not schedule (a neighbour rank uses its core) costs nothing.  Idle members sleep on a futex;
 * nothing spins for longer than some ten microseconds. */
#ifndef BT_DEVICE_CPU_POOL_H
#define BT_DEVICE_CPU_POOL_H

#include <stdint.h>

#include "core/status.h"

typedef struct bt_cpu_pool bt_cpu_pool;

/* A task: chunk is 0 .. n_chunks-1; member is 0 .. n_threads-1 and picks per-thread scratch. */
typedef void (*bt_cpu_task)(void *ctx, uint32_t chunk, uint32_t member);

/* n_threads >= 1 counts the caller; n_threads-1 threads are started, with DAZ and FTZ set and all
 * signals blocked.  Owned by the caller. */
bt_status bt_cpu_pool_create(uint32_t n_threads, bt_cpu_pool **pool_out);
void      bt_cpu_pool_destroy(bt_cpu_pool *pool);
uint32_t  bt_cpu_pool_n_threads(const bt_cpu_pool *pool);

/* CPU time of the pool's threads, the caller's included, since each began: what a thread that still
 * spins has used is counted, which the process's clock adds with the next tick only. */
uint64_t bt_cpu_pool_cpu_ns(const bt_cpu_pool *pool);

/* Runs task for every chunk and returns when all are done.  Not reentrant. */
void bt_cpu_pool_run(bt_cpu_pool *pool, uint32_t n_chunks, bt_cpu_task task, void *ctx);

/* DAZ and FTZ on the calling thread: bf16 matrix instructions flush anyway, and every other path
 * must agree with them bit by bit. */
void bt_cpu_flush_denormals(void);

#endif
