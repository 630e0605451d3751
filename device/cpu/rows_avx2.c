/* The row kernels in AVX2; compiled with -mavx2, called after cpuid has said so. */
#define ROWS_TABLE bt_cpu_rows_avx2
#define WIDTH      8
#include "device/cpu/rows.inc.h"
