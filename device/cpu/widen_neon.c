/* device/cpu/widen_neon.c - widen.h for NEON. */
#include <arm_neon.h>

#define WIDEN_NEON
#define WIDEN bt_cpu_widen_neon
#include "device/cpu/widen.inc.h"
