/* device/cpu/widen_scalar.c - widen.h for any x86-64. */
#define WIDEN bt_cpu_widen_scalar
#include "device/cpu/widen.inc.h"
