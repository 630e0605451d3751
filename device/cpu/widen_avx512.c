/* device/cpu/widen_avx512.c - widen.h for AVX-512 F and BW. */
#include <immintrin.h>

#define WIDEN bt_cpu_widen_avx512
#include "device/cpu/widen.inc.h"
