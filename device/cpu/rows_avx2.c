/* The row kernels in AVX2 and FMA; called after cpuid has said so. */
#include <immintrin.h>

#define ROWS_TABLE bt_cpu_rows_avx2
#define WIDTH      8
#include "device/cpu/rows.inc.h"
