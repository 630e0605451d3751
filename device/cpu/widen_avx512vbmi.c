/* device/cpu/widen_avx512vbmi.c - widen.h for AVX-512 with VBMI. */
#define WIDEN bt_cpu_widen_avx512vbmi
#include "device/cpu/widen.inc.h"
