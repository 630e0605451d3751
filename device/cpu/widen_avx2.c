/* device/cpu/widen_avx2.c - widen.h for AVX2. */
#include <immintrin.h>

#define WIDEN bt_cpu_widen_avx2
#include "device/cpu/widen.inc.h"
