/* device/cpu/memory.h - zeroed memory of the CPU device that costs nothing until it is touched.
 *
 * A pool of pages or a weight matrix may be gigabytes: the kernel hands out its pages zeroed, on
 * first use, by the thread that uses them. */
#ifndef BT_DEVICE_CPU_MEMORY_H
#define BT_DEVICE_CPU_MEMORY_H

#include <stddef.h>

/* `bytes` of zeroed memory aligned to 64 bytes, or NULL (not logged).  Free with
 * bt_cpu_memory_free(). */
void *bt_cpu_memory_take(size_t bytes);
void  bt_cpu_memory_free(void *ptr); /* NULL is allowed */

#endif
