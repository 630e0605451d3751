/* The row kernels in vectors of 4, which every x86-64 (SSE2) and every aarch64 (NEON) has. */
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#define ROWS_TABLE bt_cpu_rows_base
#define WIDTH      4
#include "device/cpu/rows.inc.h"
