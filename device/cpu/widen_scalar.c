/* device/cpu/widen_scalar.c - widen.h for any processor. */
#define WIDEN bt_cpu_widen_scalar
#include "device/cpu/widen.inc.h"
