/* device/cpu/widen_avx512bf16.c - widen.h for AVX-512 with VBMI and BF16. */
#include <immintrin.h>

#define WIDEN bt_cpu_widen_avx512bf16
#include "device/cpu/widen.inc.h"
