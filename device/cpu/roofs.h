/* device/cpu/roofs.h - what this machine can do at most, measured now: the yardstick of benchmarks.
 */
#ifndef BT_DEVICE_CPU_ROOFS_H
#define BT_DEVICE_CPU_ROOFS_H

#include "device/cpu/pool.h"

/* On the calling thread.  Reads the memory once, in four streams of plain loads. */
void bt_roof_read(const void *memory, size_t bytes);

/* On the calling thread.  Does `n` rounds of the widest multiply-add that the family's arithmetic
 * can use, on registers alone, those of AMX with a tile load for each from the first-level cache,
 * since no product does without; returns the floating-point operations done.  kernels: a name from
 * bt_device_cpu_kernels(). */
double bt_roof_multiply(const char *kernels, long n);

/* The same by a pool's threads: bytes, a multiple of the piece, are read once; the multiplications
 * are done n_pieces times. */
enum { BT_ROOF_PIECE = 1 << 20 };
void   bt_roof_read_by(bt_cpu_pool *pool, const void *memory, size_t bytes);
double bt_roof_multiply_by(bt_cpu_pool *pool, uint32_t n_pieces, const char *kernels, long n);

#endif
