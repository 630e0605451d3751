/* The row kernels in AVX-512 F, BW, DQ, VL; called after cpuid has said so. */
#include <immintrin.h>

#define ROWS_TABLE bt_cpu_rows_avx512
#define WIDTH      16
#include "device/cpu/rows.inc.h"
