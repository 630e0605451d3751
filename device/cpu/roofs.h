/* device/cpu/roofs.h - what this machine can do at most, measured now: the yardstick of benchmarks.
 * Each call works on the calling thread. */
#ifndef BT_DEVICE_CPU_ROOFS_H
#define BT_DEVICE_CPU_ROOFS_H

#include <stddef.h>

/* Reads the memory once, in four streams of plain loads. */
void bt_roof_read(const void *memory, size_t bytes);

/* Does `n` rounds of the widest multiply-add that the family's arithmetic can use, on registers
 * alone, those of AMX with a tile load for each from the first-level cache, since no product does
 * without; returns the floating-point operations done.  kernels: a name from
 * bt_device_cpu_kernels(). */
double bt_roof_multiply(const char *kernels, long n);

#endif
