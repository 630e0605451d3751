/* The row kernels in the instructions that every x86-64 has. */
#define ROWS_TABLE bt_cpu_rows_sse2
#define WIDTH      4
#include "device/cpu/rows.inc.h"
