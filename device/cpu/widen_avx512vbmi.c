/* device/cpu/widen_avx512vbmi.c - widen.h for AVX-512 with VBMI. */
#include <immintrin.h>

#define WIDEN bt_cpu_widen_avx512vbmi
#include "device/cpu/widen.inc.h"
